//! One agent process: the real cores of the control plane and of services, and around them what
//! `agent/src/{node,lease,replicas}.rs` and `agent/src/service/runner.rs` do, in the same order and with the same constants.
//! I/O is an [`Out`]; its answers are an [`In`].
//!
//! Differences to the real agent: it is one thread, so the lease is told of a new state before the reconciler acts on it;
//! it reconciles when an input changed something, not with every renewal of the lease; it proposes no notes.

mod initial;
mod reconcile;
mod services;

pub use initial::{add_node, create_resource, initial_state, service};
pub use services::SavedService;

use crate::random::Random;
use mainstay_control::State;
use mainstay_control::lease::{self, Ack, Heartbeat, LeaseMachine, Suspect};
use mainstay_control::reconcile::Role;
use mainstay_control::state::{Command, Entry, ServicePhase};
pub use mainstay_ha::GUARD_MARGIN_MS;
use mainstay_ha::{Effect, Guard, Report};
use mainstay_replica::Proposal;
use mainstay_types::{ConfigVersion, Epoch, Incarnation, NodeId, ResourceId, ResourceRecord, Time};
use services::Runner;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The reconciler looks at everything at least this often.
const TICK_MS: u64 = 1000;
/// The same proposal is not made again before this time.
const REPEAT_PROPOSAL_MS: u64 = 800;
/// A failed job of a replica is not started again before this time.
const RETRY_JOB_MS: u64 = 1000;
/// How long a starting agent waits to hear of a lease before it takes itself for one without.
const LEASE_UNKNOWN_MS_MAX: u64 = 500;
/// How long the engine may take to make or open a replica, and to do anything else.
const JOB_TIMEOUT_MS: u64 = 120_000;
const REQUEST_TIMEOUT_MS: u64 = 15_000;

/// What outlives the process. All of it is durable before it counts; the services do not outlive a reboot.
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
    /// R9: the disk of this replica was replaced by an empty one; its label is gone with it.
    pub fn disk_lost(&mut self, resource: ResourceId) {
        self.stored.remove(&resource);
    }

    /// A suspicion has reached the disk. [`In::SuspectPersisted`] does this; on its own it is for an agent that ends in between.
    pub fn suspect(&mut self, suspect: Suspect) {
        let known = self.suspects.entry(suspect.node).or_default();
        *known = suspect.generation.max(*known);
    }

    #[must_use]
    pub fn stored(&self) -> &BTreeMap<ResourceId, Incarnation> {
        &self.stored
    }
}

/// What agents say to each other outside the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseMessage {
    Heartbeat(Heartbeat),
    Ack(Ack),
}

/// What the engine is asked to do to a replica. Answered by [`In::JobDone`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Job {
    /// Format and open. What an earlier attempt left is removed first.
    Create {
        /// Bytes of each volume.
        volumes: Vec<u64>,
        journal_bytes: u64,
        incarnation: Incarnation,
    },
    /// Recover and open.
    Open,
    /// Close and remove. Of a replica that is not open only the files.
    Drop,
    Record(ResourceRecord),
    Demote,
}

impl Job {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Open => "open",
            Self::Drop => "drop",
            Self::Record(_) => "record",
            Self::Demote => "demote",
        }
    }
}

/// How a job ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobReply {
    Created {
        incarnation: Incarnation,
    },
    /// `incarnation` is what the disk says.
    Opened {
        incarnation: Incarnation,
    },
    Done,
}

/// How a job ended badly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobError {
    /// Nobody did it, or it may do the next time.
    NotDone(String),
    /// R12: what is on the disk, or the disk, is not fit for use.
    Unusable(String),
}

/// What the engine says unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    Replica(ReplicaReport),
    Proposal {
        resource: ResourceId,
        proposal: Proposal,
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

/// What the engine says of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaReport {
    pub resource: ResourceId,
    pub role: Role,
    pub epoch: Epoch,
    pub version: ConfigVersion,
    pub incarnation: Incarnation,
    /// All devices exist.
    pub devices_ready: bool,
    /// Its store failed and is not used any more (R13).
    pub failed: bool,
    /// What it waits for.
    pub proposal: Option<Proposal>,
}

#[derive(Clone, Debug)]
pub enum In {
    /// The next entry of the log.
    Committed(Arc<Entry>),
    /// The state whole, newer than the one that is here.
    Snapshot(Box<State>),
    Leader(bool),
    Lease {
        from: NodeId,
        message: LeaseMessage,
    },
    /// The engine has said what it has: [`EngineEvent::Replica`] of every open replica has come before this.
    /// `lease_until` is what it knows of the lease, 0 if it is fenced; `silenced` is when its guard acted the last time.
    EngineConnected {
        lease_until: Time,
        silenced: Time,
    },
    EngineDisconnected,
    Engine(EngineEvent),
    /// `job` is [`Job::name`].
    JobDone {
        resource: ResourceId,
        job: &'static str,
        result: Result<JobReply, JobError>,
    },
    GuardConfirmed(u64),
    SuspectPersisted(Suspect),
    StepDone {
        service: String,
        ticket: u64,
        result: Result<(), String>,
    },
    ProcessExited {
        service: String,
        process: usize,
        status: String,
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
    /// Tell the engine which services to silence when the lease ends. Answered by [`In::GuardConfirmed`] with the number.
    Guard {
        number: u64,
        services: Vec<String>,
    },
    Job {
        resource: ResourceId,
        job: Job,
    },
    /// Answered by [`In::SuspectPersisted`].
    PersistSuspect(Suspect),
    /// `Run`, `Undo` or `Kill`. Answered by [`In::StepDone`].
    Service {
        name: String,
        effect: Effect,
    },
    /// A process of an earlier agent process is watched: if it does not run, [`In::ProcessExited`] says so.
    WatchProcess {
        name: String,
        process: usize,
    },
    /// R19: whatever is left of this service is silenced at once; nobody waits for it.
    DropServiceRemains(String),
}

/// A job under way.
#[derive(Debug)]
struct Busy {
    job: &'static str,
    /// Of a replica that is being made.
    incarnation: Option<Incarnation>,
    deadline: Time,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Agent {
    node: NodeId,
    state: State,
    durable: Durable,
    chance: Random,
    lease: LeaseMachine,
    is_leader: bool,
    lease_until: Time,
    /// Somebody has said when the lease ends: the keeper, or the engine, which knew it from an earlier agent.
    lease_known: bool,
    /// What the last look at everything was based on.
    lease_seen: bool,
    started: Time,
    /// The next look at everything, if nothing happens.
    reconcile_at: Time,
    connected: bool,
    replicas: BTreeMap<ResourceId, ReplicaReport>,
    busy: BTreeMap<ResourceId, Busy>,
    retry_at: BTreeMap<ResourceId, Time>,
    proposed: Vec<(Command, Time)>,
    /// Replicas that the present engine process has given up.
    failed: BTreeMap<ResourceId, String>,
    /// Replicas that it could not open, for a reason that does not pass by itself (R12).
    unusable: BTreeMap<ResourceId, String>,
    /// Replicas that asked to be relieved: on which version of the record, and why.
    relief: BTreeMap<ResourceId, (ConfigVersion, &'static str)>,
    runners: BTreeMap<String, Runner>,
    /// Newest report per service and when it was last proposed.
    reports: BTreeMap<String, (Report, Option<Time>)>,
    guard: Guard<Vec<String>>,
    /// No remains of forgotten instances are left here.
    swept: bool,
    outs: VecDeque<Out>,
}

impl Agent {
    /// A process that starts on the machine's boot number `boot`, with the state that its log has. `session` is random.
    #[must_use]
    pub fn new(node: NodeId, mut durable: Durable, session: u64, boot: u64, now: Time, state: State) -> Self {
        if durable.boot != boot {
            // The run directory does not outlive a reboot, and neither does anything of a service.
            durable.services.clear();
            durable.boot = boot;
        }
        let suspects = durable.suspects.iter().map(|(&node, &generation)| Suspect { node, generation });
        let mut lease = LeaseMachine::new(node, session, suspects, now);
        lease.handle(now, lease::Event::View(lease::View::of(&state)));
        let mut outs = VecDeque::new();
        let runners = services::load_all(&durable, now, &mut outs);
        let mut agent = Self {
            node,
            state,
            durable,
            chance: Random::new(session),
            lease,
            is_leader: false,
            lease_until: Time(0),
            lease_known: false,
            lease_seen: false,
            started: now,
            reconcile_at: now.plus_ms(LEASE_UNKNOWN_MS_MAX),
            connected: false,
            replicas: BTreeMap::new(),
            busy: BTreeMap::new(),
            retry_at: BTreeMap::new(),
            proposed: Vec::new(),
            failed: BTreeMap::new(),
            unusable: BTreeMap::new(),
            relief: BTreeMap::new(),
            runners,
            reports: BTreeMap::new(),
            guard: Guard::default(),
            swept: false,
            outs,
        };
        agent.run_lease();
        agent
    }

    /// The process has ended.
    #[must_use]
    pub fn into_durable(self) -> Durable {
        self.durable
    }

    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// When the lease ends that this process has counted itself.
    #[must_use]
    pub fn lease_until(&self) -> Time {
        self.lease.lease_until()
    }

    /// `None`: the node has no machine for it, so nothing of it runs here.
    #[must_use]
    pub fn service_phase(&self, name: &str) -> Option<ServicePhase> {
        self.runners.get(name).map(|runner| runner.machine().phase())
    }

    /// When [`In::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let mut due = self.lease.next_deadline().min(self.reconcile_at);
        if self.lease_seen {
            due = due.min(Time(self.lease_until.0.saturating_sub(GUARD_MARGIN_MS * 1000)));
        }
        due
    }

    /// The next thing to carry out, in order.
    pub fn poll(&mut self) -> Option<Out> {
        self.outs.pop_front()
    }

    pub fn handle(&mut self, now: Time, input: In) {
        let changed = self.take(now, input);
        if now >= self.lease.next_deadline() {
            self.lease.handle(now, lease::Event::Tick);
        }
        let lease_news = self.run_lease();
        if changed || lease_news || self.lease_valid(now) != self.lease_seen || now >= self.reconcile_at {
            self.reconcile(now);
        }
    }

    fn lease_valid(&self, now: Time) -> bool {
        now.plus_ms(GUARD_MARGIN_MS) < self.lease_until
    }

    /// Takes an input in; `true` if the reconciler has to look at it.
    fn take(&mut self, now: Time, input: In) -> bool {
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
                self.state.apply(Entry::clone(&entry));
                self.lease.handle(now, lease::Event::View(lease::View::of(&self.state)));
            }
            In::Snapshot(state) => {
                self.state = *state;
                self.lease.handle(now, lease::Event::View(lease::View::of(&self.state)));
            }
            In::EngineConnected { lease_until, silenced } => {
                self.engine_connected(now, lease_until, silenced)
            }
            In::EngineDisconnected => self.engine_disconnected(now),
            In::Engine(EngineEvent::Lease { until, silenced }) => {
                self.guard.lease_taken(until);
                self.silenced(now, silenced);
                return self.runners.values().any(|runner| runner.machine().is_held());
            }
            In::Engine(event) => self.engine_event(now, event),
            In::JobDone { resource, job, result } => self.job_done(now, resource, job, result),
            In::GuardConfirmed(number) => self.guard.answered(number, true),
            In::StepDone { service, ticket, result } => {
                if let Some(runner) = self.runners.get_mut(&service) {
                    runner.step_done(now, ticket, result);
                }
            }
            In::ProcessExited { service, process, status } => {
                if let Some(runner) = self.runners.get_mut(&service) {
                    runner.handle(now, mainstay_ha::Event::ProcessExited { process, status });
                }
            }
        }
        true
    }

    /// Carries out what the lease machine wants; `true` if the reconciler hears of a lease for the first time.
    fn run_lease(&mut self) -> bool {
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
                    self.lease_until = until;
                    news |= !std::mem::replace(&mut self.lease_known, true);
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
