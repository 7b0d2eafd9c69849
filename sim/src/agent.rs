//! One agent process: the real cores of the control plane, of the node's reconciler and of
//! services, and the code around them that carries out their wishes. A wish for I/O is an [`Out`];
//! its answer is an [`In`].
//!
//! Differences to the real agent:
//! - It is one thread, so the lease hears of a new state before the reconciler acts on it.
//! - It reconciles when an input has changed something, not with every renewal of the lease.
//! - It proposes no notes.

mod initial;
mod jobs;
mod reconciler_driver;
mod services;

pub use initial::{add_node, create_resource, initial_state, service};
pub use services::SavedService;

use crate::random::Random;
use jobs::UnderWay;
use mainstay_control::State;
use mainstay_control::attachments::ClientSeen;
use mainstay_control::lease::{self, Ack, Heartbeat, LeaseMachine, Suspect};
use mainstay_control::reconciler::job::{Step, StepAnswer};
use mainstay_control::reconciler::succession::services_stay;
use mainstay_control::reconciler::{self, Reconciler, ReplicaSeen};
use mainstay_control::standstill::{JournalWait, Measured, Standstill};
use mainstay_control::state::{Command, Entry};
use mainstay_ha::{Effect, ServiceSpec};
use mainstay_silence::Absence;
use mainstay_types::{Incarnation, NodeId, Proposal, ResourceId, ServicePhase, Time};
use services::Instance;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Pause between two looks for what stands still.
const LOOK_MS: u64 = 300;
/// How long a successor is announced, as `mainstay node upgrade` does it.
const ANNOUNCED_MS: u64 = 10_000;

/// State of an agent that outlives its process. Every part of it is durable before the agent relies
/// on it. A reboot of the machine ends the services.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// Generations that were ever suspected here, and have not been superseded.
    suspects: BTreeMap<NodeId, u64>,
    /// Labels of replicas.
    stored: BTreeMap<ResourceId, Incarnation>,
    services: BTreeMap<String, SavedService>,
    /// The boot of the machine that `services` belong to.
    boot: u64,
}

impl Durable {
    /// The files of this replica are gone, as with a new disk (R9), and its label with them.
    pub fn files_lost(&mut self, resource: ResourceId) {
        self.stored.remove(&resource);
    }

    /// Whether the agent has noted that a service is in maintenance.
    #[must_use]
    pub fn rests(&self, service: &str) -> bool {
        self.services.get(service).is_some_and(SavedService::rests)
    }

    /// A suspicion has reached the disk. [`In::SuspectPersisted`] does this too. Call it alone for
    /// an agent that ends in between.
    pub fn suspect(&mut self, suspect: Suspect) {
        let known = self.suspects.entry(suspect.node).or_default();
        *known = suspect.generation.max(*known);
    }

    /// The files of this replica, and its label, are in their place again.
    pub fn files_put_back(&mut self, resource: ResourceId, incarnation: Incarnation) {
        self.stored.insert(resource, incarnation);
    }

    #[must_use]
    pub fn stored(&self) -> &BTreeMap<ResourceId, Incarnation> {
        &self.stored
    }
}

/// The log of a node, as far as its agent needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Log {
    /// Entries that are in the state.
    pub applied: u64,
    /// Entries that were in the log when the process began.
    pub found: u64,
}

/// Message of one agent to another, outside the control plane's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseMessage {
    Heartbeat(Heartbeat),
    Ack(Ack),
}

/// How a step of a job failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepError {
    /// The step was not carried out, or it may succeed when the agent repeats it. Holds the reason.
    NotDone(String),
    /// R12: the disk, or the content of the disk, is not fit for use. Holds the reason.
    Unusable(String),
}

/// Report of the engine that the agent has not asked for.
#[expect(clippy::large_enum_variant, reason = "no list of them is kept")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    Replica(ReplicaReport),
    Proposal {
        resource: ResourceId,
        proposal: Proposal,
    },
    /// `None`: there is no client any more.
    Client {
        resource: ResourceId,
        seen: Option<ClientSeen>,
    },
    /// The engine has given a replica up.
    Failed {
        resource: ResourceId,
        reason: String,
    },
    /// The guard knows this lease now. `silenced` is when it acted the last time, 0 for never.
    Lease {
        until: Time,
        silenced: Time,
    },
    /// The guard has acted.
    LeaseLost {
        silenced: Time,
    },
}

/// Report of the engine on one replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaReport {
    pub resource: ResourceId,
    pub seen: ReplicaSeen,
    /// Proposal whose outcome the replica waits for; `None` if it waits for none.
    pub proposal: Option<Proposal>,
}

#[expect(clippy::large_enum_variant, reason = "as of those of the engine")]
#[derive(Clone, Debug)]
pub enum In {
    /// The next entry of the log.
    Committed(Arc<Entry>),
    /// The state whole, up to entry `index`, newer than the one that is here.
    Snapshot {
        index: u64,
        state: Box<State>,
    },
    Leader(bool),
    Lease {
        from: NodeId,
        message: LeaseMessage,
    },
    /// The engine has reported what it has: an [`EngineEvent::Replica`] for every open replica has
    /// come before this. `lease_until` is the lease that the engine knows, 0 if it is fenced.
    /// `silenced` is the time of its guard's last act.
    EngineConnected {
        lease_until: Time,
        silenced: Time,
    },
    EngineDisconnected,
    /// The engine is replaced. If its connection ends soon, it leaves its devices to a successor.
    Succession,
    Engine(EngineEvent),
    StepAnswered {
        resource: ResourceId,
        number: u64,
        result: Result<StepAnswer, StepError>,
    },
    GuardConfirmed(u64),
    SuspectPersisted(Suspect),
    /// The node has silenced everything that was left of the service of this name, see
    /// [`Out::Sweep`].
    Swept(String),
    StepDone {
        service: String,
        ticket: u64,
        result: Result<(), String>,
    },
    Probed {
        service: String,
        ticket: u64,
        process: usize,
        finding: mainstay_ha::Finding,
    },
    ProcessExited {
        service: String,
        process: usize,
        status: String,
    },
    /// A running service does not stand on its file system any more.
    MountLost {
        service: String,
        why: String,
        mendable: bool,
    },
    /// A process runs with arguments that do not hold any more. This is repeated until the process
    /// is started again.
    Outdated {
        service: String,
        process: usize,
        why: String,
    },
    Tick,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// A datagram to another agent.
    SendLease {
        to: NodeId,
        message: LeaseMessage,
    },
    Submit(Command),
    /// Tell the engine when the lease ends.
    Lease(Time),
    /// Tell the engine which services to silence when the lease ends. Answered by
    /// [`In::GuardConfirmed`] with the number.
    Guard {
        number: u64,
        services: Vec<String>,
    },
    /// A step of a job. Answered by [`In::StepAnswered`] with the number.
    Step {
        resource: ResourceId,
        number: u64,
        step: Step,
    },
    /// Answered by [`In::SuspectPersisted`].
    PersistSuspect(Suspect),
    /// The service's address stays from now on while its processes are restarted, or does not any
    /// longer.
    AddressStays {
        name: String,
        stays: bool,
    },
    /// `Run`, `Undo` or `Kill`. Answered by [`In::StepDone`].
    Service {
        name: String,
        effect: Effect,
    },
    /// A process of an earlier agent process is watched: if it does not run, [`In::ProcessExited`]
    /// says so.
    WatchProcess {
        name: String,
        process: usize,
    },
    /// R19: silences all that is left of this service. Answered by [`In::Swept`].
    Sweep(String),
    /// R20: the engine is gone for too long. The devices that it left fail from now on.
    FailLeft,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Agent {
    node: NodeId,
    log: Log,
    state: State,
    durable: Durable,
    chance: Random,
    lease: LeaseMachine,
    standstill: Standstill,
    /// When it looks for a standstill again.
    standstill_due: Time,
    /// Since when the engine has owed an answer to a lease.
    asked_since: Option<Time>,
    /// Until when the end of the connection is that of an engine whose successor comes.
    successor_until: Time,
    journals: Vec<JournalWait>,
    is_leader: bool,
    core: Reconciler,
    connected: bool,
    absence: Absence,
    /// The last report of every replica on the present connection.
    replicas: BTreeMap<ResourceId, ReplicaSeen>,
    clients: BTreeMap<ResourceId, ClientSeen>,
    jobs: BTreeMap<ResourceId, UnderWay>,
    /// Number of the last step of a job that the agent asked the engine for. It starts at random.
    /// So the answer to a step of an earlier agent process never looks like an answer to this
    /// process.
    last_step: u64,
    instances: BTreeMap<String, Instance>,
    outs: VecDeque<Out>,
    wall_ms: u64,
    /// The pool has space.
    room: bool,
    /// Why the directories of open replicas are not in their places.
    gone: BTreeMap<ResourceId, String>,
    /// Replicas whose files are no longer in their place, although the engine still has them open.
    replaced: BTreeMap<ResourceId, String>,
}

impl Agent {
    /// A process that starts on the machine's boot number `boot`, with the state after
    /// `log.applied` entries. `session` is random.
    #[must_use]
    pub fn new(
        node: NodeId,
        mut durable: Durable,
        session: u64,
        boot: u64,
        now: Time,
        log: Log,
        state: State,
    ) -> Self {
        if durable.boot != boot {
            // The run directory does not outlive a reboot, and neither does anything of a service.
            durable.services.clear();
            durable.boot = boot;
        }
        let suspects = durable.suspects.iter().map(|(&node, &generation)| Suspect { node, generation });
        let mut lease = LeaseMachine::new(node, session, suspects, now);
        lease.handle(now, lease::Event::View(lease::View::of(&state)));
        let mut outs = VecDeque::new();
        let (instances, adopted) = services::load_all(&durable, &mut outs);
        let core = Reconciler::new(node, now, durable.stored.clone(), adopted);
        let mut agent = Self {
            node,
            log,
            state,
            durable,
            chance: Random::new(session),
            lease,
            standstill: Standstill::default(),
            standstill_due: now,
            asked_since: None,
            successor_until: Time(0),
            journals: Vec::new(),
            is_leader: false,
            core,
            connected: false,
            absence: Absence::default(),
            replicas: BTreeMap::new(),
            clients: BTreeMap::new(),
            jobs: BTreeMap::new(),
            last_step: session,
            instances,
            outs,
            wall_ms: 0,
            room: true,
            gone: BTreeMap::new(),
            replaced: BTreeMap::new(),
        };
        agent.run_lease(now);
        agent
    }

    /// The process has ended.
    #[must_use]
    pub fn into_durable(self) -> Durable {
        self.durable
    }

    /// Labels of replicas, as they are on the disk.
    #[must_use]
    pub fn labels(&self) -> &BTreeMap<ResourceId, Incarnation> {
        self.durable.stored()
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// End of the lease that this process has counted itself.
    #[must_use]
    pub fn lease_until(&self) -> Time {
        self.lease.lease_until()
    }

    /// `None`: the node has no machine for it, so nothing of it runs here.
    #[must_use]
    pub fn service_phase(&self, name: &str) -> Option<ServicePhase> {
        self.core.service_phase(name)
    }

    /// The files of a replica were removed under the hands of this process.
    pub fn files_lost(&mut self, resource: ResourceId) {
        self.durable.files_lost(resource);
    }

    /// The files of a replica were put back under the hands of this process.
    pub fn files_put_back(&mut self, resource: ResourceId, incarnation: Incarnation) {
        self.durable.files_put_back(resource, incarnation);
    }

    /// Why the directories of open replicas are not in their places, from here on.
    pub fn set_gone(&mut self, gone: BTreeMap<ResourceId, String>) {
        self.gone = gone;
    }

    /// Whether the agent looks now for what stands still.
    #[must_use]
    pub fn looks_for_standstill(&self, now: Time) -> bool {
        now >= self.standstill_due
    }

    /// Sets the ages of the journals of primaries, as the engine tells them if it answers.
    pub fn set_journals(&mut self, journals: Vec<JournalWait>) {
        self.journals = journals;
    }

    /// Whether the pool has space from here on.
    pub fn set_room(&mut self, room: bool) {
        self.room = room;
    }

    /// Sets whether the engine has files of the replica open that are no longer in their place.
    pub fn set_replaced(&mut self, resource: ResourceId, replaced: bool) {
        if replaced {
            self.replaced.insert(resource, "files of the running replica were replaced".into());
        } else {
            self.replaced.remove(&resource);
        }
    }

    /// An operator has put the replaced files back.
    pub fn put_back(&mut self) {
        self.replaced.clear();
    }

    /// Sets the time that the wall clock shows from now on, in milliseconds since 1970.
    pub fn set_wall_ms(&mut self, wall_ms: u64) {
        self.wall_ms = wall_ms;
    }

    /// When [`In::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let jobs = self.jobs.values().filter_map(UnderWay::deadline);
        jobs.fold(self.lease.next_deadline().min(self.core.next_deadline()), Time::min)
    }

    /// Whether the services here can stay while the engine is replaced.
    #[must_use]
    pub fn services_stay(&self) -> bool {
        services_stay(&self.state, self.node).is_ok()
    }

    /// The next thing to carry out, in order.
    pub fn poll(&mut self) -> Option<Out> {
        self.outs.pop_front()
    }

    pub fn handle(&mut self, now: Time, input: In) {
        let changed = self.take(now, input);
        self.look_for_standstill(now);
        if now >= self.lease.next_deadline() {
            self.lease.handle(now, lease::Event::Tick);
        }
        let lease_news = self.run_lease(now);
        if self.absence.is_due(now, self.connected, self.core.has_services()) {
            self.outs.push_back(Out::FailLeft);
        }
        let given_up = self.give_up_steps(now);
        if changed || lease_news || given_up || self.core.is_due(now) {
            self.reconcile(now);
        }
    }

    /// R19: this node gives its lease up while its engine or the journal of a primary stands still.
    fn look_for_standstill(&mut self, now: Time) {
        if !self.looks_for_standstill(now) {
            return;
        }
        self.standstill_due = now.plus_ms(LOOK_MS);
        let engine_ms = self.asked_since.map_or(0, |since| now.ms_since(since));
        let measured = Measured { engine_ms, journals: self.journals.clone() };
        self.standstill.look(now, self.node, &self.state, &measured);
        self.lease.handle(now, lease::Event::GivesUp(self.standstill.gives_up().is_some()));
    }

    /// Takes an input in; `true` if the reconciler has to look at it.
    fn take(&mut self, now: Time, input: In) -> bool {
        if matches!(input, In::Engine(_) | In::EngineConnected { .. } | In::EngineDisconnected) {
            self.asked_since = None;
        }
        match input {
            In::Lease { from, message } => {
                let event = match message {
                    LeaseMessage::Heartbeat(heartbeat) => lease::Event::Heartbeat { from, heartbeat },
                    LeaseMessage::Ack(ack) => lease::Event::Ack { from, ack },
                };
                self.lease.handle(now, event);
                return false;
            }
            In::Tick => return false,
            In::Leader(leads) => {
                self.is_leader = leads;
                return false;
            }
            In::SuspectPersisted(suspect) => {
                self.durable.suspect(suspect);
                self.lease.handle(now, lease::Event::SuspectPersisted(suspect));
                return false;
            }
            In::Committed(entry) => {
                self.log.applied += 1;
                self.state.apply(Entry::clone(&entry));
                self.lease.handle(now, lease::Event::View(lease::View::of(&self.state)));
            }
            In::Snapshot { index, state } => {
                self.log.applied = index;
                self.state = *state;
                self.lease.handle(now, lease::Event::View(lease::View::of(&self.state)));
            }
            In::EngineConnected { lease_until, silenced } => {
                self.engine_connected(now, lease_until, silenced)
            }
            In::EngineDisconnected => self.engine_disconnected(now),
            In::Succession => {
                self.successor_until = now.plus_ms(ANNOUNCED_MS);
                self.tell(now, reconciler::Event::Succession);
            }
            In::Engine(EngineEvent::Lease { until, silenced }) => {
                self.tell(now, reconciler::Event::LeaseTaken { until, silenced });
                return self.core.holds_steps();
            }
            In::Engine(event) => self.engine_event(now, event),
            In::StepAnswered { resource, number, result } => {
                return self.step_answered(now, resource, number, result);
            }
            In::GuardConfirmed(number) => {
                self.tell(now, reconciler::Event::Guarded { number, confirmed: true });
            }
            In::Swept(name) => self.tell(now, reconciler::Event::Swept { name }),
            In::StepDone { service, ticket, result } => {
                if let Some(instance) = self.instances.get_mut(&service) {
                    instance.step_done(ticket, &result);
                }
                let event = mainstay_ha::Event::StepDone { ticket, result };
                self.tell(now, reconciler::Event::Service { name: service, event });
            }
            In::Probed { service, ticket, process, finding } => {
                let event = mainstay_ha::Event::Probed { ticket, process, finding };
                self.tell(now, reconciler::Event::Service { name: service, event });
            }
            In::ProcessExited { service, process, status } => {
                let event = mainstay_ha::Event::ProcessExited { process, status };
                self.tell(now, reconciler::Event::Service { name: service, event });
            }
            In::Outdated { service, process, why } => {
                let event = mainstay_ha::Event::Outdated { process, why, remedy: String::new() };
                self.tell(now, reconciler::Event::Service { name: service, event });
            }
            In::MountLost { service, why, mendable } => {
                let event = mainstay_ha::Event::Lost { step: mainstay_ha::Step::Mount, why, mendable };
                self.tell(now, reconciler::Event::Service { name: service, event });
            }
        }
        true
    }

    /// Carries out what the lease machine wants; `true` if the reconciler hears of a lease for the
    /// first time.
    fn run_lease(&mut self, now: Time) -> bool {
        let mut news = false;
        while let Some(effect) = self.lease.poll() {
            match effect {
                lease::Effect::SendHeartbeat { to, heartbeat } => {
                    self.outs.push_back(Out::SendLease { to, message: LeaseMessage::Heartbeat(heartbeat) });
                }
                lease::Effect::SendAck { to, ack } => {
                    self.outs.push_back(Out::SendLease { to, message: LeaseMessage::Ack(ack) });
                }
                lease::Effect::PersistSuspect(suspect) => self.outs.push_back(Out::PersistSuspect(suspect)),
                lease::Effect::LeaseUntil(until) => {
                    self.outs.push_back(Out::Lease(until));
                    if self.connected {
                        self.asked_since.get_or_insert(now);
                    }
                    news |= !self.core.knows_lease();
                    self.tell(now, reconciler::Event::Lease(until));
                }
                lease::Effect::ProposeDead(Suspect { node, generation }) => {
                    if self.is_leader {
                        self.outs.push_back(Out::Submit(Command::NodeDead { node, generation }));
                    }
                }
                lease::Effect::ProposeRejoin { generation } => {
                    self.outs.push_back(Out::Submit(Command::NodeRejoin { node: self.node, generation }));
                }
            }
        }
        news
    }
}

#[cfg(test)]
mod tests;
