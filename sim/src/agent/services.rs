//! One service on this node, as `agent/src/service/runner.rs` has it: its machine, and what is saved of it.

use super::{Durable, Out};
use mainstay_ha::{Effect, Event, Machine, Report, Saved, ServiceSpec, Step};
use mainstay_types::{ResourceId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What has to be known again after a restart of the agent.
#[derive(Clone, Debug)]
pub struct SavedService {
    resource: ResourceId,
    /// Of the specification, as the control plane counts it.
    revision: u64,
    spec: ServiceSpec,
    saved: Saved,
    /// Processes that were started and not stopped.
    running: BTreeSet<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Run(Step),
    Undo(Step),
    Kill,
}

#[derive(Debug)]
pub(super) struct Runner {
    machine: Machine,
    resource: ResourceId,
    revision: u64,
    spec: ServiceSpec,
    saved: Option<Saved>,
    running: BTreeSet<usize>,
    /// What is under way, by ticket.
    work: BTreeMap<u64, Work>,
}

/// All services that an earlier agent process of the same boot left.
pub(super) fn load_all(durable: &Durable, now: Time, outs: &mut VecDeque<Out>) -> BTreeMap<String, Runner> {
    let mut found = BTreeMap::new();
    for (name, file) in &durable.services {
        for &process in &file.running {
            outs.push_back(Out::WatchProcess { name: name.clone(), process });
        }
        let runner = Runner {
            machine: Machine::restore(file.spec.clone(), file.saved.clone(), now),
            resource: file.resource,
            revision: file.revision,
            spec: file.spec.clone(),
            saved: None,
            running: file.running.clone(),
            work: BTreeMap::new(),
        };
        found.insert(name.clone(), runner);
    }
    found
}

impl Runner {
    /// A service of which nothing runs here.
    pub(super) fn new(spec: &ServiceSpec, revision: u64, resource: ResourceId) -> Self {
        Self {
            machine: Machine::new(spec.clone()),
            resource,
            revision,
            spec: spec.clone(),
            saved: None,
            running: BTreeSet::new(),
            work: BTreeMap::new(),
        }
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn handle(&mut self, now: Time, event: Event) {
        self.machine.handle(now, event);
    }

    pub(super) fn step_done(&mut self, now: Time, ticket: u64, result: Result<(), String>) {
        match (self.work.remove(&ticket), &result) {
            (Some(Work::Run(Step::StartProcess { process })), Err(_))
            | (Some(Work::Undo(Step::StartProcess { process })), Ok(())) => {
                self.running.remove(&process);
            }
            (Some(Work::Kill), Ok(())) => self.running.clear(),
            _ => {}
        }
        self.machine.handle(now, Event::StepDone { ticket, result });
    }

    /// Carries out what the machine wants; steps of a start only if they `may_run`. Gives the newest report.
    pub(super) fn carry_out(
        &mut self,
        name: &str,
        may_run: bool,
        durable: &mut Durable,
        outs: &mut VecDeque<Out>,
    ) -> Option<Report> {
        let mut newest = None;
        while let Some(effect) = self.machine.poll(may_run) {
            match effect {
                Effect::Persist(saved) => {
                    self.saved = Some(saved);
                    self.save(name, durable);
                }
                Effect::Report(report) => newest = Some(report),
                Effect::Run { ticket, step, .. } => {
                    self.work.insert(ticket, Work::Run(step));
                    if let Step::StartProcess { process } = step {
                        // The process belongs into the saved state before anybody may forget it.
                        self.running.insert(process);
                        self.save(name, durable);
                    }
                    outs.push_back(Out::Service { name: name.to_owned(), effect });
                }
                Effect::Undo { ticket, step, .. } => {
                    self.work.insert(ticket, Work::Undo(step));
                    outs.push_back(Out::Service { name: name.to_owned(), effect });
                }
                Effect::Kill { ticket } => {
                    self.work.insert(ticket, Work::Kill);
                    outs.push_back(Out::Service { name: name.to_owned(), effect });
                }
            }
        }
        newest
    }

    fn save(&self, name: &str, durable: &mut Durable) {
        let Some(saved) = &self.saved else { return };
        let file = SavedService {
            resource: self.resource,
            revision: self.revision,
            spec: self.spec.clone(),
            saved: saved.clone(),
            running: self.running.clone(),
        };
        durable.services.insert(name.to_owned(), file);
    }
}
