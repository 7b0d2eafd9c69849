//! Orders of an operator about a service that exists: stop it, start it, restart it in place.
//!
//! Guarantees
//! - A service that an operator has stopped is started by an operator alone: by no failover, no
//!   retry, no change of its specification, and no return of a node.
//! - Its resource stays primary where it is, and fails over as it would without the service.
//! - A stop and a start that are asked for again change nothing.
//! - A restart counts in the epoch in which it was asked for. A service that was started anew
//!   meanwhile, for whatever reason, need not be restarted.

use crate::service::unknown_service;
use crate::state::{Outcome, Service, State, refused};
use mainstay_types::{Code, ServicePhase, Severity, reach};
use serde::{Deserialize, Serialize};

/// A service that an operator has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stopped {
    /// Wall clock of the order, for display.
    pub at_ms: u64,
}

/// A restart in place that is not known to be done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// Higher than that of every earlier restart of any service.
    pub number: u64,
    /// Name of the process that is to be restarted, with what was started after it. `None`: all
    /// processes.
    pub process: Option<String>,
}

impl Service {
    /// Whether the service is to run, as far as operators are concerned.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.deleting && self.stopped.is_none()
    }

    /// The place of the restarted process in the specification; `None` for all processes.
    pub(crate) fn restarts_process(&self) -> Option<usize> {
        let named = self.restart.as_ref()?.process.as_ref()?;
        self.spec.processes.iter().position(|process| process.name == *named)
    }
}

impl State {
    pub(crate) fn stop_service(&mut self, at_ms: u64, name: &str) -> Outcome {
        let found = self.services.get_mut(name).filter(|service| !service.deleting);
        let Some(service) = found else { return unknown_service(&self.services, name) };
        if service.stopped.is_some() {
            reach!("control: a service is stopped once more");
            return Outcome::Unchanged;
        }
        reach!("control: an operator stops a service");
        service.stopped = Some(Stopped { at_ms });
        service.desired_node = None;
        service.halted = None;
        service.nodes_changed = false;
        service.restart = None;
        self.note(at_ms, Severity::Info, format!("service {name}"), "an operator stops it");
        Outcome::Done
    }

    pub(crate) fn start_service(&mut self, at_ms: u64, name: &str) -> Outcome {
        let rests = self.rests(name).is_some();
        let found = self.services.get_mut(name).filter(|service| !service.deleting);
        let Some(service) = found else { return unknown_service(&self.services, name) };
        // In maintenance, only an operator starts a service that is down.
        let is_down = rests && service.nodes.values().all(|on| on.phase.is_silent());
        if service.stopped.is_none() && !service.has_failures() && !is_down {
            reach!("control: a service is started that is wanted already");
            return Outcome::Unchanged;
        }
        reach!("control: an operator starts a service");
        let text = match service.stopped.take() {
            Some(_) => "an operator starts it",
            None if is_down => "an operator starts it in maintenance",
            None => "an operator clears its failures",
        };
        service.round += 1;
        service.halted = None;
        service.nodes_changed = false;
        service.restart = None;
        self.order(name);
        self.note(at_ms, Severity::Info, format!("service {name}"), text);
        Outcome::Done
    }

    /// Asks for a restart of what runs. A restart that is asked for again is another restart.
    pub(crate) fn restart_service(&mut self, at_ms: u64, name: &str, process: Option<String>) -> Outcome {
        let number = self.revision + 1;
        let known = self.services.get(name).filter(|service| !service.deleting);
        let Some(service) = known else { return unknown_service(&self.services, name) };
        if service.stopped.is_some() {
            return refused(
                Code::ServiceStopped,
                format!("service {name} is not restarted: an operator has stopped it"),
                format!("start it with `mainstay service start {name}`"),
            );
        }
        let primary = self.resource_of(service).and_then(|resource| resource.record.primary);
        let on = primary.and_then(|node| service.nodes.get(&node));
        if on.is_none_or(|on| on.phase != ServicePhase::Running) {
            reach!("control: a service that does not run is not restarted");
            let phase = on.map_or(ServicePhase::Stopped, |on| on.phase);
            return refused(
                Code::ServiceNotRunning,
                format!("service {name} is not restarted: it does not run, it is {phase}"),
                format!(
                    "see `mainstay service status {name}`; `mainstay service start {name}` clears its failures and tries it again"
                ),
            );
        }
        if let Some(process) = &process
            && !service.spec.processes.iter().any(|known| known.name == *process)
        {
            let names: Vec<&str> = service.spec.processes.iter().map(|known| known.name.as_str()).collect();
            return refused(
                Code::UnknownProcess,
                format!("service {name} has no process {process}"),
                if names.is_empty() {
                    "leave --process out: the service has no processes".to_owned()
                } else {
                    format!("name one of {}", names.join(", "))
                },
            );
        }
        reach!("control: an operator restarts a service");
        let text = match &process {
            Some(process) => format!("an operator restarts its process {process}"),
            None => "an operator restarts it".to_owned(),
        };
        if let Some(service) = self.services.get_mut(name) {
            service.restart = Some(Restart { number, process });
        }
        self.note(at_ms, Severity::Info, format!("service {name}"), text);
        Outcome::Done
    }

    /// The node that runs the service has done this restart, and the service runs again.
    pub(crate) fn service_restarted(&mut self, at_ms: u64, name: &str, number: u64) -> Outcome {
        let found = self.services.get_mut(name);
        let asked = |service: &&mut Service| service.restart.as_ref().is_some_and(|of| of.number == number);
        let Some(service) = found.filter(asked) else { return Outcome::Unchanged };
        reach!("control: a service is restarted");
        service.restart = None;
        self.note(at_ms, Severity::Info, format!("service {name}"), "is restarted in place");
        Outcome::Done
    }
}
