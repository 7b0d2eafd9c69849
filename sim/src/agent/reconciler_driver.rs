//! Surroundings of the reconciler, as `agent/src/reconciler_thread.rs` has them: they tell it
//! events, and carry out its wishes.

use super::services::Instance;
use super::{Agent, EngineEvent, Out};
use mainstay_control::reconciler::{Event, NodeSeen, ReconcilerTask};
use mainstay_ha::Effect;
use mainstay_types::Time;

impl Agent {
    /// Tells the core of an event, and carries out at once the tasks that are due at once.
    pub(super) fn tell(&mut self, now: Time, event: Event) {
        self.core.handle(now, &self.state, event);
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Time) {
        while let Some(task) = self.core.poll(now, &self.state) {
            self.task(now, task);
        }
    }

    pub(super) fn reconcile(&mut self, now: Time) {
        let seen = NodeSeen {
            wall_ms: self.wall_ms,
            links: None,
            unfit: None,
            // All nodes of the simulator have one build, whose level the first state has.
            level: None,
            replayed: self.log.applied >= self.log.found,
            engine: self.connected,
            room: self.room,
            replicas: self.replicas.clone(),
            gone: self.replaced.clone().into_iter().chain(self.gone.clone()).collect(),
            clients: self.clients.clone(),
        };
        self.core.reconcile(now, &self.state, &seen);
        self.carry_out(now);
    }

    fn task(&mut self, now: Time, task: ReconcilerTask) {
        match task {
            ReconcilerTask::Submit(command) => self.outs.push_back(Out::Submit(command)),
            ReconcilerTask::Job { resource, order } => self.start_job(now, resource, order),
            ReconcilerTask::MakeService { name, spec, revision, edition, resource } => {
                self.instances.insert(name, Instance::new(spec, (revision, edition), resource));
            }
            ReconcilerTask::AmendService { name, spec, edition } => {
                if let Some(instance) = self.instances.get_mut(&name) {
                    instance.amend(spec, edition);
                }
            }
            ReconcilerTask::ForgetService { name } => {
                self.instances.remove(&name);
                self.durable.services.remove(&name);
            }
            ReconcilerTask::Sweep { name, .. } => self.outs.push_back(Out::Sweep(name)),
            ReconcilerTask::Guard { number, services } => {
                self.outs.push_back(Out::Guard { number, services })
            }
            ReconcilerTask::Service { name, effect } => {
                if let Some(instance) = self.instances.get_mut(&name) {
                    instance.carry_out(&name, effect, &mut self.durable, &mut self.outs);
                }
            }
            // For the oracle: the report says in which epoch a start is, and which service came to
            // rest by itself.
            ReconcilerTask::Reached { name, report } => {
                self.outs.push_back(Out::Service { name, effect: Effect::Report(report) });
            }
            ReconcilerTask::Stopping { .. } => {}
        }
    }

    pub(super) fn engine_connected(&mut self, now: Time, lease_until: Time, silenced: Time) {
        self.connected = true;
        self.successor_until = Time(0);
        // The connection first tells the engine the lease that this process has counted. Before
        // that only the engine's word counts.
        let counted = self.lease.lease_until();
        if counted != Time(0) {
            self.outs.push_back(Out::Lease(counted));
        }
        self.tell(now, Event::EngineConnected { lease_until, silenced });
    }

    pub(super) fn engine_disconnected(&mut self, now: Time) {
        self.connected = false;
        // A successor that does not come counts as an engine that owes an answer.
        self.asked_since = (now < self.successor_until).then_some(now);
        self.replicas.clear();
        self.clients.clear();
        // The next engine opens the files that are there.
        self.replaced.clear();
        self.fail_requests(now);
        self.tell(now, Event::EngineDisconnected);
    }

    pub(super) fn engine_event(&mut self, now: Time, event: EngineEvent) {
        match event {
            EngineEvent::Replica(report) => {
                self.replicas.insert(report.resource, report.seen);
                if let Some(proposal) = report.proposal {
                    self.tell(now, Event::Proposed { resource: report.resource, proposal });
                }
            }
            EngineEvent::Client { resource, seen: Some(seen) } => {
                self.clients.insert(resource, seen);
            }
            EngineEvent::Client { resource, seen: None } => {
                self.clients.remove(&resource);
            }
            EngineEvent::Proposal { resource, proposal } => {
                self.tell(now, Event::Proposed { resource, proposal });
            }
            EngineEvent::Failed { resource, reason } => {
                self.tell(now, Event::ReplicaFailed { resource, reason });
            }
            EngineEvent::LeaseLost { silenced } => self.tell(now, Event::LeaseLost { silenced }),
            EngineEvent::Lease { .. } => {}
        }
    }
}
