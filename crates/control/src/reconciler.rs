//! The reconciler of one node: it compares what the cluster agreed on with what is here, and says
//! what to do. The agent carries that out with threads, files and processes; the simulator with its
//! own.
//!
//! Guarantees
//! - [`plan`](crate::actions::plan) says what is due. The reconciler keeps what `plan` needs to
//!   know of earlier moments: the actions under way, recent failures, and proposals without an
//!   answer.
//! - One job per replica at a time ([`job`]). A failed job is tried again after [`RETRY_JOB_MS`].
//!   The reconciler knows the stored replicas from their labels alone, and from no report of an
//!   engine.
//! - The engine knows what to silence, and within which lease, before a step of a service begins
//!   (R19). No step begins without the engine's confirmation, also of a service that an earlier
//!   process started. A step also needs a lease that still allows it (R10) at the moment when the
//!   step is handed out. A service that the engine's guard has silenced is killed, however late
//!   this process hears of it.
//! - A service is killed before anything else is done.
//! - The reconciler remembers a proposal that gives this node's role up until the record is another
//!   one. If an earlier process may have made such a proposal, it counts as made. No service starts
//!   on such a record ([`gives_up`](crate::actions::gives_up)).
//! - The state of a service is reported until the cluster state says the same.
//!
//! To run the reconciler, tell it what happens with [`Reconciler::handle`]. Afterwards, and at
//! [`Reconciler::next_deadline`], call [`Reconciler::reconcile`]. After each of the two, do what
//! [`Reconciler::poll`] gives until it gives no more. Carry out the effects of a service in the
//! order in which they are given.

pub mod job;
mod proposals;
mod replicas;
mod services;
pub mod succession;

use crate::actions::{Action, Observed, Unusable, gives_up, plan};
use crate::attachments::ClientSeen;
use crate::maintenance::COUNT_MS;
use crate::state::{Command, Links, State};
use job::{Ended, Order};
use mainstay_ha::{Effect, Event as ServiceEvent, Machine, Report, ServiceSpec};
use mainstay_silence::guard_acts_at;
use mainstay_types::{
    ConfigVersion, Copies, Epoch, Incarnation, Instance, NodeId, Position, Proposal, ProposedChange,
    ResourceId, Role, ScrubSummary, ServicePhase, SnapshotId, SnapshotOn, Time,
};
use proposals::Proposals;
use replicas::Replicas;
pub use replicas::{REPEAT_ORDER_MS, RETRY_JOB_MS};
pub use services::Adopted;
use services::{Services, Start};
use std::collections::{BTreeMap, VecDeque};
use succession::Succession;

/// Everything is looked at at least this often.
pub const TICK_MS: u64 = 1000;
/// The same proposal is not made again before this time.
pub const REPEAT_PROPOSAL_MS: u64 = 800;
/// How long a service stays halted whose failures may pass by themselves, the first time and at
/// most.
pub const RETRY_HALTED_MS: u64 = 60_000;
pub const RETRY_HALTED_MS_MAX: u64 = 30 * 60_000;
/// Least time between the last failure of a service and another attempt because nodes came or went,
/// in milliseconds.
pub const RETRY_FAILED_MS: u64 = 60_000;
/// How long a starting agent waits to hear of a lease before it takes itself for one without.
pub const LEASE_UNKNOWN_MS_MAX: u64 = 500;

/// State of an open replica, as the engine reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaSeen {
    pub role: Role,
    /// Highest epoch promised (R1).
    pub epoch: Epoch,
    /// Version of the record that it acts on; 0 for none.
    pub version: ConfigVersion,
    pub incarnation: Incarnation,
    pub instance: Instance,
    /// The end of its log. Set only if the record that it acts on counts on memory of another
    /// instance.
    pub reopened: Option<Position>,
    /// All devices exist and answer.
    pub devices_ready: bool,
    /// Epoch in which an engine before this one served the same devices and left them.
    pub continues: Option<Epoch>,
    /// Bytes of each volume, in the log and on the disk.
    pub volumes: Vec<u64>,
    /// The snapshots that its log has, in ascending order.
    pub snapshots: Vec<(SnapshotId, SnapshotOn)>,
    /// The last scrub that it led since it was opened, or the one that is under way.
    pub scrub: Option<ScrubSummary>,
    /// Whether a primary in mode A feeds every follower and copies to none. In the other modes the
    /// in-sync set tells that.
    pub feeds_all: bool,
    /// Copies on a primary: whether there are as many as are wanted.
    pub copies: Copies,
    /// The store is no longer used (R13).
    pub store_failed: bool,
    /// The store is no longer used because the pool had no space.
    pub full: bool,
    /// The replica led, and another replica holds acknowledged entries that it lacks.
    pub older: bool,
}

/// State of the node at this moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeSeen {
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The node's interfaces; `None` until the agent has looked at them.
    pub links: Option<Links>,
    /// Why this node is not to be primary, if it is not; `None` while that is not known.
    pub unfit: Option<Option<String>>,
    /// The feature level of its build; `None` while other nodes may not know levels.
    pub level: Option<u32>,
    /// The state is no older than any that an earlier process on this node has seen. Everything
    /// that was in the node's log when this process began has been applied or replaced.
    pub replayed: bool,
    /// The engine answers.
    pub engine: bool,
    /// The pool has space. Counts only for replicas that are `full`.
    pub room: bool,
    /// Replicas that the engine has open.
    pub replicas: BTreeMap<ResourceId, ReplicaSeen>,
    /// Open replicas whose directory is no longer in its place, and the reason
    /// ([`crate::labels::Stands::failure`]).
    pub gone: BTreeMap<ResourceId, String>,
    /// Clients that the engine has open.
    pub clients: BTreeMap<ResourceId, ClientSeen>,
}

/// Why a job failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub why: Unusable,
    /// The cause is the disk or its content (R12, R13), and not an engine that is not ready. Only
    /// such a failure is told to the cluster, so that another member takes over.
    pub stays: bool,
}

/// An event for the reconciler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The node has counted a lease until then.
    Lease(Time),
    /// The engine has reported its replicas. `lease_until` is the end of this node's lease as the
    /// engine knows it, perhaps from an earlier agent process; 0 if the engine's guard has acted.
    /// `silenced` is the time when the guard last acted.
    EngineConnected {
        lease_until: Time,
        silenced: Time,
    },
    EngineDisconnected,
    /// The engine is replaced: it leaves its devices to a successor. See [`succession`].
    Succession,
    /// The engine's guard knows this lease now.
    LeaseTaken {
        until: Time,
        silenced: Time,
    },
    /// The engine's guard has acted.
    LeaseLost {
        silenced: Time,
    },
    /// The engine has confirmed a list for its guard, or has not.
    Guarded {
        number: u64,
        confirmed: bool,
    },
    /// The engine has given a replica up.
    ReplicaFailed {
        resource: ResourceId,
        reason: String,
    },
    /// The engine's primary wants another record, or to be primary no longer. The latter counts for
    /// that version of the record only.
    Proposed {
        resource: ResourceId,
        proposal: Proposal,
    },
    /// Answer to [`ReconcilerTask::Job`].
    JobEnded {
        resource: ResourceId,
        result: Result<Ended, Failure>,
    },
    Service {
        name: String,
        event: ServiceEvent,
    },
    /// Answer to [`ReconcilerTask::Sweep`].
    Swept {
        name: String,
    },
}

/// A task for the runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReconcilerTask {
    /// Propose it to the cluster; the outcome shows in its state.
    Submit(Command),
    /// Do this with [`job::Job`]. Answered by [`Event::JobEnded`].
    Job { resource: ResourceId, order: Order },
    /// Make what carries out the steps of a service.
    MakeService { name: String, spec: ServiceSpec, revision: u64, edition: u64, resource: ResourceId },
    /// Carry out the steps of a service by this specification from now on. Note it together with
    /// the next state that the machine wants noted.
    AmendService { name: String, spec: ServiceSpec, edition: u64 },
    /// Forget a service of which this node has nothing left and need remember nothing.
    ForgetService { name: String },
    /// Silence what is left of an instance that no agent remembers (R19). Answered by
    /// [`Event::Swept`].
    Sweep { name: String, spec: ServiceSpec },
    /// Have the engine silence these services when the lease ends, and no others. Answered by
    /// [`Event::Guarded`].
    Guard { number: u64, services: Vec<String> },
    /// Every effect but [`Effect::Report`].
    Service { name: String, effect: Effect },
    /// For the log: a service begins to stop.
    Stopping { name: String, reason: String },
    /// For the log: what a service has come to. It is reported without further ado.
    Reached { name: String, report: Report },
}

/// How far [`Reconciler::poll`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Services start if they may.
    Start,
    /// Services go on.
    Services {
        guarded: bool,
    },
    /// The node reports the states that services have reached.
    Reports,
    Rest,
}

#[derive(Debug)]
struct Lease {
    until: Time,
    /// The end of the lease was told: by the keeper, or by the engine, which knew it from an
    /// earlier agent.
    known: bool,
    /// Whether the lease was valid at the last look at everything.
    seen_valid: bool,
}

impl Lease {
    fn is_valid(&self, now: Time) -> bool {
        now < guard_acts_at(self.until)
    }
}

/// A halted service.
#[derive(Debug)]
struct Halted {
    revision: u64,
    /// The round in which the service was halted, seen first then.
    round: u64,
    since: Time,
    /// How long it stays halted.
    pause_ms: u64,
}

/// Epoch and number of the last failure of a service on each node.
type LastFailures = BTreeMap<NodeId, (Epoch, u32)>;

/// See the top of this file.
#[derive(Debug)]
pub struct Reconciler {
    node: NodeId,
    started: Time,
    lease: Lease,
    /// The next look at everything, if nothing happens.
    look_at: Time,
    /// The engine answered at the last look.
    engine: bool,
    replicas: Replicas,
    proposals: Proposals,
    /// See [`Observed::given_up`].
    given_up: BTreeMap<ResourceId, ConfigVersion>,
    /// Every record has been looked at on which an earlier process may have proposed something.
    found: bool,
    /// Services that are halted and may be tried again from here: see [`Self::retry_halted`].
    halted: BTreeMap<String, Halted>,
    /// Maintenances whose time this node counts, by number: when it began, and how much was left
    /// then.
    counted: BTreeMap<u64, (Time, u64)>,
    /// When this process has first seen the last failures of a service.
    failed: BTreeMap<String, (LastFailures, Time)>,
    services: Services,
    succession: Succession,
    starts: Vec<Start>,
    stage: Stage,
    tasks: VecDeque<ReconcilerTask>,
}

impl Reconciler {
    /// Returns the reconciler of an agent process that starts now. `stored` and `adopted` are the
    /// labels and the services that an earlier process left.
    #[must_use]
    pub fn new(
        node: NodeId,
        now: Time,
        stored: BTreeMap<ResourceId, Incarnation>,
        adopted: BTreeMap<String, Adopted>,
    ) -> Self {
        Self {
            node,
            started: now,
            lease: Lease { until: Time(0), known: false, seen_valid: false },
            look_at: now.plus_ms(LEASE_UNKNOWN_MS_MAX),
            engine: false,
            replicas: Replicas::new(stored),
            proposals: Proposals::default(),
            given_up: BTreeMap::new(),
            found: false,
            halted: BTreeMap::new(),
            counted: BTreeMap::new(),
            failed: BTreeMap::new(),
            services: Services::new(adopted, now),
            succession: Succession::default(),
            starts: Vec::new(),
            stage: Stage::Rest,
            tasks: VecDeque::new(),
        }
    }

    /// Whether this node has hooks, so that each start of a service begins with the one before it
    /// ([`mainstay_ha::Machine::run_hook`]).
    pub fn run_hooks(&mut self, hooks: bool) {
        self.services.run_hooks(hooks);
    }

    /// When everything has to be looked at, even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let lease_end = guard_acts_at(self.lease.until);
        if self.lease.seen_valid { self.look_at.min(lease_end) } else { self.look_at }
    }

    /// Whether [`Reconciler::reconcile`] is to be called although nothing was told.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.next_deadline() || self.lease.is_valid(now) != self.lease.seen_valid
    }

    /// Whether the end of the lease is known, from the keeper or from the engine.
    #[must_use]
    pub fn knows_lease(&self) -> bool {
        self.lease.known
    }

    /// `None`: the node has no machine for it, so nothing of it runs here.
    #[must_use]
    pub fn service_phase(&self, name: &str) -> Option<ServicePhase> {
        self.services.machine(name).map(mainstay_ha::Machine::phase)
    }

    /// Whether steps of a service wait until they may begin.
    #[must_use]
    pub fn holds_steps(&self) -> bool {
        self.services.machines().any(mainstay_ha::Machine::is_held)
    }

    /// Whether anything of any service is left on this node.
    #[must_use]
    pub fn has_services(&self) -> bool {
        self.services.machines().any(|machine| !machine.phase().is_silent())
    }

    /// Whether a service on this resource runs on while the engine is replaced.
    #[must_use]
    pub fn keeps(&self, resource: ResourceId) -> bool {
        self.succession.kept().any(|kept| kept == resource)
    }

    /// The replicas that are stored here.
    #[must_use]
    pub fn stored(&self) -> &BTreeMap<ResourceId, Incarnation> {
        self.replicas.stored()
    }

    /// Takes in what happens.
    pub fn handle(&mut self, now: Time, state: &State, event: Event) {
        match event {
            Event::Lease(until) => {
                self.lease.until = until;
                self.lease.known = true;
            }
            Event::EngineConnected { lease_until, silenced } => {
                if !self.lease.known {
                    // A lease does not end because the agent was restarted.
                    self.lease.until = lease_until;
                    self.lease.known = true;
                }
                // A new engine process knows nothing; an old one is told again.
                self.services.guard().forget();
                self.services.guard().lease_taken(lease_until);
                self.silenced(now, silenced);
                self.replicas.engine_connected();
            }
            Event::Succession => self.succession.begins(now, state, self.node, &self.services.observe()),
            Event::EngineDisconnected => {
                self.replicas.engine_disconnected();
                self.services.guard().forget();
            }
            Event::LeaseTaken { until, silenced } => {
                self.services.guard().lease_taken(until);
                self.silenced(now, silenced);
            }
            Event::LeaseLost { silenced } => {
                // The engine has no lease any more, or it is ending and guards nothing that comes.
                // Its earlier confirmation says nothing (R19).
                self.services.guard().forget();
                self.silenced(now, silenced);
            }
            Event::Guarded { number, confirmed } => self.services.guard().answered(number, confirmed),
            Event::ReplicaFailed { resource, reason } => self.replicas.given_up(resource, reason),
            Event::Proposed { resource, proposal: Proposal { version, epoch, change } } => match change {
                ProposedChange::Iss(change) => {
                    self.propose(now, Command::ChangeIss { resource, version, epoch, change });
                }
                ProposedChange::StepDown { reason } => {
                    let current = state.resources.get(&resource).map(|known| known.record.version);
                    if current == Some(version) {
                        self.replicas.asks_for_relief(resource, version, reason.to_string());
                    }
                }
            },
            Event::JobEnded { resource, result } => self.replicas.ended(now, resource, result),
            Event::Service { name, event } => {
                let told = self.services.restarts_process(state, self.node, &name, &event);
                self.services.handle(now, &name, event);
                let begun = self.services.machine(&name).map(Machine::phase) == Some(ServicePhase::Stopping);
                self.tasks.extend(told.filter(|_| begun).map(ReconcilerTask::Submit));
            }
            Event::Swept { name } => self.services.swept(&name),
        }
    }

    fn silenced(&mut self, now: Time, at: Time) {
        self.services.silenced(now, at, &mut self.proposals, &mut self.tasks);
    }

    fn propose(&mut self, now: Time, command: Command) {
        if let Some((resource, version)) = gives_up(&command) {
            self.given_up.insert(resource, version);
        }
        if self.proposals.is_new(now, &command) {
            self.tasks.push_back(ReconcilerTask::Submit(command));
        }
    }

    /// Looks at everything.
    pub fn reconcile(&mut self, now: Time, state: &State, seen: &NodeSeen) {
        self.lease.seen_valid = self.lease.is_valid(now);
        self.look_at = now.plus_ms(TICK_MS);
        self.engine = seen.engine;
        if state.cluster.is_none() {
            return;
        }
        // A node that is dead in its own state need not wait to hear that it has no lease.
        let lease_unknown = !self.lease.known && state.alive(self.node);
        if lease_unknown && now.ms_since(self.started) < LEASE_UNKNOWN_MS_MAX {
            self.look_at = self.started.plus_ms(LEASE_UNKNOWN_MS_MAX);
            return;
        }
        self.refresh_given_up(state, seen.replayed);
        self.retry_halted(now, state);
        self.count_maintenance(now, state);
        let sweeps = self.services.sweep(state);
        self.services.rest(state, now);
        self.services.tick(now);
        self.succession.look(now, &self.services.observe());
        let mut starts = Vec::new();
        for action in plan(self.node, state, &self.observe(seen)) {
            self.act(now, state, action, &mut starts);
        }
        self.tasks.extend(sweeps);
        self.services.prepare(state, &mut starts, &mut self.tasks);
        self.starts = starts;
        self.stage = Stage::Start;
    }

    /// Tries a service anew that failed on every node for a cause that may have passed, at a
    /// bounded rate (R21). The primary's node sees to that.
    fn retry_halted(&mut self, now: Time, state: &State) {
        self.see_failures(now, state);
        let me = self.node;
        let own = |name: &String| {
            let service = state.services.get(name).filter(|service| service.is_wanted());
            let service = service.filter(|_| state.rests(name).is_none());
            let resource = service.and_then(|service| state.resource_of(service));
            service.filter(|_| resource.is_some_and(|of| of.record.primary == Some(me)))
        };
        // Each pause is longer than the one before, until the service runs somewhere or is another
        // one.
        self.halted.retain(|name, known| {
            own(name).is_some_and(|service| {
                let runs = service.nodes.values().any(|on| on.phase == ServicePhase::Running);
                service.revision == known.revision && !runs
            })
        });
        let mut due = Vec::new();
        for (name, service) in &state.services {
            if own(name).is_none() {
                continue;
            }
            let round = service.round;
            let failed = self.failed.get(name).filter(|_| service.nodes_have_changed());
            if failed.is_some_and(|(_, since)| now.ms_since(*since) >= RETRY_FAILED_MS) {
                due.push(Command::RetryService { name: name.clone(), round });
                continue;
            }
            if !service.may_pass() {
                continue;
            }
            let known = self.halted.entry(name.clone()).or_insert(Halted {
                revision: service.revision,
                round,
                since: now,
                pause_ms: RETRY_HALTED_MS,
            });
            if known.round != round {
                let pause_ms = (known.pause_ms * 2).min(RETRY_HALTED_MS_MAX);
                *known = Halted { revision: service.revision, round, since: now, pause_ms };
            }
            if now.ms_since(known.since) >= known.pause_ms {
                due.push(Command::RetryService { name: name.clone(), round });
            }
        }
        due.into_iter().for_each(|command| self.propose(now, command));
    }

    /// Counts how much is left of each maintenance that ends by itself, if this node is the one
    /// that counts; see `maintenance.rs`.
    fn count_maintenance(&mut self, now: Time, state: &State) {
        if state.counts() != Some(self.node) || !self.lease.seen_valid {
            self.counted.clear();
            return;
        }
        let mut due = Vec::new();
        let mut known = BTreeMap::new();
        for (scope, maintenance) in state.maintenances() {
            let Some((_, left_ms)) = maintenance.left_ms else { continue };
            let number = maintenance.number;
            let (since, left_then) = self.counted.get(&number).copied().unwrap_or((now, left_ms));
            known.insert(number, (since, left_then));
            let left_now = left_then.saturating_sub(now.ms_since(since));
            if left_now == 0 || left_ms.saturating_sub(left_now) >= COUNT_MS {
                due.push(Command::MaintenanceCounted { scope, number, left_ms: left_now });
            }
        }
        self.counted = known;
        due.into_iter().for_each(|command| self.propose(now, command));
    }

    /// Notes when failures of services are seen first. Every node does so, because any may be the
    /// next primary.
    fn see_failures(&mut self, now: Time, state: &State) {
        self.failed.retain(|name, _| state.services.contains_key(name));
        for (name, service) in &state.services {
            let failures = service.failures();
            match self.failed.get(name) {
                _ if failures.is_empty() => drop(self.failed.remove(name)),
                Some((known, _)) if *known == failures => {}
                _ => drop(self.failed.insert(name.clone(), (failures, now))),
            }
        }
    }

    /// Forgets proposals that count on no record any more. An earlier process may have proposed to
    /// give the role up on any record that names this node primary. So all such records count as
    /// given up until the log is replayed, except where the earlier process left a service that
    /// runs.
    fn refresh_given_up(&mut self, state: &State, replayed: bool) {
        self.given_up.retain(|id, version| {
            state.resources.get(id).is_some_and(|known| known.record.version == *version)
        });
        if self.found {
            return;
        }
        self.found = replayed;
        let services = self.services.observe();
        let runs = |id: ResourceId, epoch: Epoch| {
            let mut here = services.values().filter(|seen| seen.resource == id);
            here.any(|seen| !seen.phase.is_silent() && seen.epoch == epoch)
        };
        let own = state.resources.values().map(|known| &known.record);
        let own =
            own.filter(|record| record.primary == Some(self.node) && !runs(record.resource, record.epoch));
        self.given_up.extend(own.map(|record| (record.resource, record.version)));
    }

    fn observe(&self, seen: &NodeSeen) -> Observed {
        let replicas = seen.replicas.iter().map(|(id, open)| {
            let mut observed = self.replicas.observe(*id, open);
            observed.gone = seen.gone.get(id).cloned();
            observed.failed = observed.failed.or_else(|| observed.gone.clone());
            (*id, observed)
        });
        Observed {
            wall_ms: seen.wall_ms,
            links: seen.links.clone(),
            unfit: seen.unfit.clone(),
            level: seen.level,
            lease_valid: self.lease.seen_valid,
            engine: seen.engine,
            room: seen.room,
            stored: self.replicas.stored().clone(),
            unusable: self.replicas.unusable().clone(),
            replicas: replicas.collect(),
            clients: seen.clients.clone(),
            services: self.services.observe(),
            sweeping: self.services.sweeping().clone(),
            given_up: self.given_up.clone(),
            kept: self.succession.kept().collect(),
        }
    }

    fn act(&mut self, now: Time, state: &State, action: Action, starts: &mut Vec<Start>) {
        match action {
            Action::CreateReplica { resource, of } => self.order(now, resource, Order::Make { of }),
            Action::OpenReplica { resource } => {
                if let Some(&label) = self.replicas.stored().get(&resource) {
                    self.order(now, resource, Order::Open { label });
                }
            }
            Action::ReopenReplica { resource } => {
                if let Some(&label) = self.replicas.stored().get(&resource) {
                    self.order(now, resource, Order::Reopen { label });
                }
            }
            Action::ReplaceReplica { resource } => {
                if let Some(&label) = self.replicas.stored().get(&resource) {
                    self.order(now, resource, Order::Replace { label });
                }
            }
            Action::DropReplica { resource } => self.order(now, resource, Order::Drop),
            Action::GiveRecord(record) => self.order(now, record.resource, Order::Tell(record)),
            Action::AttachClient(record) => self.order(now, record.resource, Order::Attach(record)),
            Action::DetachClient { resource } => self.order(now, resource, Order::Detach),
            Action::GrowVolumes { resource, volumes } => self.order(now, resource, Order::Grow(volumes)),
            Action::KeepSnapshots { resource, wanted } => self.order(now, resource, Order::Snapshots(wanted)),
            Action::Scrub { resource, task } => self.order(now, resource, Order::Scrub(task)),
            Action::Demote { resource } => self.order(now, resource, Order::Demote),
            Action::StartService { name, epoch, round } => starts.push(Start { name, epoch, round }),
            Action::ContinueService { name, epoch } => {
                self.services.handle(now, &name, ServiceEvent::Continued { epoch });
                self.succession.look(now, &self.services.observe());
            }
            Action::StopService { name, reason } => {
                let stops = self.service_phase(&name) == Some(ServicePhase::Stopping);
                self.services.handle(now, &name, ServiceEvent::Stop);
                if !stops {
                    self.tasks.push_back(ReconcilerTask::Stopping { name, reason });
                }
            }
            Action::RestartService { name, number, process } => {
                self.services.handle(now, &name, ServiceEvent::Restart { number, process });
            }
            Action::AmendService { name } => {
                // The machine's earlier tasks are about the earlier specification.
                self.services.drain(&name, &mut self.proposals, &mut self.tasks);
                if let Some(service) = state.services.get(&name) {
                    let (spec, edition) = (service.spec.clone(), service.edition);
                    self.services.amend(&name, spec.clone(), edition, now);
                    self.tasks.push_back(ReconcilerTask::AmendService { name, spec, edition });
                }
            }
            Action::KillService { name } => {
                self.services.handle(now, &name, ServiceEvent::LeaseLost);
                self.services.drain(&name, &mut self.proposals, &mut self.tasks);
            }
            Action::ForgetService { name } => {
                // Takes the machine's last report first. Otherwise the plan would find an older
                // report, and take the service for one that a restart has ended.
                self.services.drain(&name, &mut self.proposals, &mut self.tasks);
                if !self.proposals.is_unsaid(state, self.node, &name) && self.services.forget(&name) {
                    self.proposals.forget_report(&name);
                    self.tasks.push_back(ReconcilerTask::ForgetService { name });
                }
            }
            Action::Propose(command) => self.propose(now, command),
        }
    }

    fn order(&mut self, now: Time, resource: ResourceId, order: Order) {
        if self.replicas.begin(now, resource, &order) {
            self.tasks.push_back(ReconcilerTask::Job { resource, order });
        }
    }

    /// Returns the next task at this moment. Call it until it returns `None`.
    pub fn poll(&mut self, now: Time, state: &State) -> Option<ReconcilerTask> {
        loop {
            if let Some(task) = self.tasks.pop_front() {
                return Some(task);
            }
            match self.stage {
                Stage::Start => self.stage = Stage::Services { guarded: self.start_services(now) },
                Stage::Services { guarded } => {
                    let may_run = guarded && self.services.may_run(now);
                    let next = self.services.poll(may_run, &mut self.proposals);
                    if next.is_some() {
                        return next;
                    }
                    self.stage = Stage::Reports;
                }
                Stage::Reports => {
                    let due = self.proposals.due_reports(now, state, self.node);
                    self.tasks.extend(due.into_iter().map(ReconcilerTask::Submit));
                    self.look_at = self.next_look(now, state);
                    self.stage = Stage::Rest;
                }
                Stage::Rest => return None,
            }
        }
    }

    /// Starts services that the engine has confirmed to silence, and asks it about the others
    /// (R19). Returns whether the engine has confirmed all that run.
    fn start_services(&mut self, now: Time) -> bool {
        let starts = std::mem::take(&mut self.starts);
        // R10: the work since the look has taken time.
        let guarded = self.engine && self.services.is_guarded(now, &starts, &mut self.tasks);
        if !guarded || !self.lease.is_valid(now) {
            return false;
        }
        for Start { name, epoch, round } in starts {
            self.services.handle(now, &name, ServiceEvent::Start { epoch, round });
        }
        true
    }

    fn next_look(&mut self, now: Time, state: &State) -> Time {
        let repeat = self.proposals.next_repeat(now, state, self.node);
        let due = [repeat, self.replicas.next_retry(now), self.services.next_deadline()];
        due.into_iter().flatten().fold(now.plus_ms(TICK_MS), Time::min)
    }
}

#[cfg(test)]
mod tests;
