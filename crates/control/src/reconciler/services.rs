//! The services of this node: their machines, the list for the engine's guard, and the remains of
//! forgotten instances.

use super::ReconcilerTask;
use super::proposals::Proposals;
use crate::actions::ServiceObserved;
use crate::state::{Command, State};
use mainstay_ha::{Effect, Event, Guard, Machine, Saved, ServiceSpec, Wanted};
use mainstay_types::{Epoch, NodeId, ResourceId, ServicePhase, Severity, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A service that an earlier agent process of the same boot left.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The specification that was in force then.
    pub spec: ServiceSpec,
    /// Revision of the specification, as the control plane counts it.
    pub revision: u64,
    pub edition: u64,
    pub resource: ResourceId,
    pub saved: Saved,
}

/// A service that is to start.
#[derive(Debug)]
pub(super) struct Start {
    pub name: String,
    pub epoch: Epoch,
    pub round: u64,
}

#[derive(Debug)]
struct Held {
    machine: Machine,
    revision: u64,
    edition: u64,
    resource: ResourceId,
    /// Which machine of this process it is: two of one name may be silenced in different ways.
    number: u64,
}

#[derive(Debug)]
pub(super) struct Services {
    held: BTreeMap<String, Held>,
    made: u64,
    /// See [`Machine::run_hook`].
    hooks: bool,
    guard: Guard<Vec<(String, u64)>>,
    /// The removal of what forgotten instances left here has begun.
    swept: bool,
    /// Services that this is still under way for.
    sweeping: BTreeSet<String>,
}

impl Services {
    pub fn new(adopted: BTreeMap<String, Adopted>, now: Time) -> Self {
        let held: BTreeMap<String, Held> = adopted
            .into_iter()
            .zip(0..)
            .map(|((name, Adopted { spec, revision, edition, resource, saved }), number)| {
                (
                    name,
                    Held { machine: Machine::restore(spec, saved, now), revision, edition, resource, number },
                )
            })
            .collect();
        Self {
            made: held.len() as u64,
            held,
            hooks: false,
            guard: Guard::default(),
            swept: false,
            sweeping: BTreeSet::new(),
        }
    }

    /// Whether starts from now on begin with the operator's hook.
    pub fn run_hooks(&mut self, hooks: bool) {
        self.hooks = hooks;
        self.held.values_mut().for_each(|held| held.machine.run_hook(hooks));
    }

    pub fn guard(&mut self) -> &mut Guard<Vec<(String, u64)>> {
        &mut self.guard
    }

    pub fn may_run(&self, now: Time) -> bool {
        self.guard.may_run(now)
    }

    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.held.get(name).map(|held| &held.machine)
    }

    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.held.values().map(|held| &held.machine)
    }

    pub fn handle(&mut self, now: Time, name: &str, event: Event) {
        if let Some(held) = self.held.get_mut(name) {
            held.machine.handle(now, event);
        }
    }

    /// The event for the operator about a process of a running service that is started again
    /// because its arguments do not hold any more. It is true only if the machine then begins that.
    pub fn restarts_process(
        &self,
        state: &State,
        node: NodeId,
        name: &str,
        event: &Event,
    ) -> Option<Command> {
        let Event::Outdated { process, why, remedy } = event else { return None };
        let machine = self.machine(name).filter(|machine| machine.phase() == ServicePhase::Running)?;
        let process = &machine.spec().processes.get(*process)?.name;
        let text = format!(
            "Mainstay starts its process {process} on {0} again {why}. To have them back, on {0}: {remedy} Then run `mainstay service restart {name}`",
            state.node_name(node)
        );
        Some(Command::Note { severity: Severity::Warning, subject: format!("service {name}"), text })
    }

    pub fn tick(&mut self, now: Time) {
        for Held { machine, .. } in self.held.values_mut() {
            if machine.next_deadline().is_some_and(|deadline| deadline <= now) {
                machine.handle(now, Event::Tick);
            }
        }
    }

    /// Tells each machine whether its service is in maintenance.
    pub fn rest(&mut self, state: &State, now: Time) {
        for (name, Held { machine, .. }) in &mut self.held {
            machine.rest(state.rests(name).is_some(), now);
        }
    }

    pub fn observe(&self) -> BTreeMap<String, ServiceObserved> {
        let seen = |Held { machine, revision, edition, resource, .. }: &Held| ServiceObserved {
            phase: machine.phase(),
            epoch: machine.epoch(),
            round: machine.round(),
            spent_epoch: machine.spent_epoch(),
            restarted: machine.restarted(),
            revision: *revision,
            edition: *edition,
            resource: *resource,
        };
        self.held.iter().map(|(name, held)| (name.clone(), seen(held))).collect()
    }

    /// Makes the service go by this specification from now on.
    pub fn amend(&mut self, name: &str, spec: ServiceSpec, edition: u64, now: Time) {
        if let Some(held) = self.held.get_mut(name) {
            held.machine.amend(spec, now);
            held.edition = edition;
        }
    }

    /// Forgets the machine of a service. Returns whether there was one.
    pub fn forget(&mut self, name: &str) -> bool {
        self.held.remove(name).is_some()
    }

    /// The engine's guard had silenced this node by the time `at`: services that began before are
    /// killed (R19).
    pub fn silenced(
        &mut self,
        now: Time,
        at: Time,
        proposals: &mut Proposals,
        tasks: &mut VecDeque<ReconcilerTask>,
    ) {
        for name in self.held.keys().cloned().collect::<Vec<_>>() {
            self.handle(now, &name, Event::Silenced { at });
            self.drain(&name, proposals, tasks);
        }
    }

    /// Queues all effects of this service that may happen at any time. They come before all later
    /// wishes.
    pub fn drain(&mut self, name: &str, proposals: &mut Proposals, tasks: &mut VecDeque<ReconcilerTask>) {
        let Some(held) = self.held.get_mut(name) else { return };
        while let Some(effect) = held.machine.poll(false) {
            tasks.push_back(task(name, effect, proposals));
        }
    }

    /// Returns the next wish of a machine; steps of a start only if they `may_run`.
    pub fn poll(&mut self, may_run: bool, proposals: &mut Proposals) -> Option<ReconcilerTask> {
        self.held
            .iter_mut()
            .find_map(|(name, held)| held.machine.poll(may_run).map(|effect| task(name, effect, proposals)))
    }

    /// Runs once, at the start. An earlier agent process may have left an instance that this one
    /// does not remember. Such an instance counts as running until the sweep is done (R19).
    /// Services that are applied later cannot have left anything.
    pub fn sweep(&mut self, state: &State) -> Vec<ReconcilerTask> {
        if std::mem::replace(&mut self.swept, true) {
            return Vec::new();
        }
        let unknown = state.services.iter().filter(|(name, _)| !self.held.contains_key(*name));
        let sweeps: Vec<ReconcilerTask> = unknown
            .map(|(name, service)| ReconcilerTask::Sweep { name: name.clone(), spec: service.spec.clone() })
            .collect();
        self.sweeping =
            state.services.keys().filter(|name| !self.held.contains_key(*name)).cloned().collect();
        sweeps
    }

    pub fn sweeping(&self) -> &BTreeSet<String> {
        &self.sweeping
    }

    pub fn swept(&mut self, name: &str) {
        self.sweeping.remove(name);
    }

    /// Gives every service that is to start a machine, and leaves out those that cannot have one.
    pub fn prepare(&mut self, state: &State, starts: &mut Vec<Start>, tasks: &mut VecDeque<ReconcilerTask>) {
        starts.retain(|Start { name, .. }| {
            let service = state.services.get(name);
            let known = service.and_then(|service| Some((service, state.resource_of(service)?)));
            let Some((service, resource)) = known.filter(|_| !self.sweeping.contains(name)) else {
                return false;
            };
            if !self.held.contains_key(name) {
                let (spec, revision, edition) = (service.spec.clone(), service.revision, service.edition);
                let mut machine = Machine::new(spec.clone());
                machine.run_hook(self.hooks);
                let held = Held { machine, revision, edition, resource: resource.id, number: self.made };
                self.held.insert(name.clone(), held);
                self.made += 1;
                tasks.push_back(ReconcilerTask::MakeService {
                    name: name.clone(),
                    spec,
                    revision,
                    edition,
                    resource: resource.id,
                });
            }
            true
        });
    }

    /// Whether the engine has confirmed that it silences exactly what runs here and what starts. If
    /// not, it is asked.
    pub fn is_guarded(&mut self, now: Time, starts: &[Start], tasks: &mut VecDeque<ReconcilerTask>) -> bool {
        let starting = |name: &String| starts.iter().any(|start| start.name == *name);
        let list = self
            .held
            .iter()
            .filter(|(name, held)| starting(name) || !held.machine.phase().is_silent())
            .map(|(name, held)| (name.clone(), held.number))
            .collect();
        match self.guard.want(now, list) {
            Wanted::Confirmed => true,
            Wanted::Wait => false,
            Wanted::Ask { number, list } => {
                let services = list.into_iter().map(|(name, _)| name).collect();
                tasks.push_back(ReconcilerTask::Guard { number, services });
                false
            }
        }
    }

    /// When a machine or the guard has to be looked at.
    pub fn next_deadline(&self) -> Option<Time> {
        self.machines().filter_map(Machine::next_deadline).chain(self.guard.next_deadline()).min()
    }
}

fn task(name: &str, effect: Effect, proposals: &mut Proposals) -> ReconcilerTask {
    let name = name.to_owned();
    if let Effect::Report(report) = effect {
        proposals.report(name.clone(), report.clone());
        return ReconcilerTask::Reached { name, report };
    }
    ReconcilerTask::Service { name, effect }
}
