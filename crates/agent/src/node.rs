//! The reconciler of this node: it compares what the cluster agreed on with what is here, and acts.
//!
//! Guarantees
//! - It decides nothing: `mainstay_control::reconcile::plan` says what is due. Called after every change and at
//!   least once per second.
//! - It waits for nobody: replicas are handled on threads of their own, one job per replica at a time, services by
//!   their runners, proposals by the log's thread, and the engine is told by another (see [`crate::teller`]). A service
//!   is killed before anything else is looked at.
//! - The engine knows what to silence before a step of a service begins, and within which lease (R19). Without its
//!   confirmation none begins, also of a service that an earlier process started; and with it only if the lease still
//!   allows it (R10). What the engine's guard has silenced is killed, however late this process hears of it.
//! - The state of a service is reported until the cluster state says the same.

use crate::clock::boot_now;
use crate::engine_link::{EngineInput, EngineLink};
use crate::left_devices::LeftDevices;
use crate::raft::{ConsensusLog, View};
use crate::replicas::{self, Replicas};
use crate::service::runner::{Done, OnDone, Places, Runner};
use crate::teller::Teller;
use crate::threads::{lock, spawn};
use mainstay_api::engine::{
    self, DataState, EngineError, EngineEvent, GuardEntry, ProposalEvent, ProposedChange, ReplicaStatus,
    Request,
};
use mainstay_control::State;
use mainstay_control::reconcile::{self, Action, Observed, ReplicaObserved, Role, ServiceObserved};
use mainstay_control::state::{Command, IssChange, ServicePhase};
use mainstay_ha::{Event, GUARD_MARGIN_MS, Guard, Report, Wanted};
use mainstay_types::{ConfigVersion, Epoch, NodeId, ResourceId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_secs(1);
/// The same proposal is not made again before this time.
const REPEAT_PROPOSAL_AFTER: Duration = Duration::from_millis(800);
/// A failed job of a replica is not started again before this time.
const RETRY_JOB_AFTER: Duration = Duration::from_secs(1);
/// How long a starting agent waits to hear of a lease before it takes itself for one without.
const LEASE_UNKNOWN_MAX: Duration = Duration::from_millis(500);

/// What wakes the reconciler.
pub enum Input {
    /// Comes from the lease's thread, which has taken it before.
    State(View),
    Engine(EngineInput),
    Service(Done),
    Lease(Time),
    JobDone {
        resource: ResourceId,
        job: &'static str,
        result: Result<(), EngineError>,
    },
    /// The engine has confirmed a list for its guard, or has not.
    Guarded {
        number: u64,
        confirmed: bool,
    },
    /// Nothing is left of an instance of this service that nobody remembers.
    Swept {
        service: String,
    },
    Stop,
}

/// What the reconciler is started with.
pub struct NodeParts {
    pub node: NodeId,
    pub log: Arc<dyn ConsensusLog>,
    pub engine: EngineLink,
    pub replicas: Arc<Replicas>,
    pub places: Places,
    pub left_devices: LeftDevices,
}

/// The way to the thread.
#[derive(Clone)]
pub struct NodeHandle {
    queue: Sender<Input>,
}

impl NodeHandle {
    /// Hands something over; after the thread's end it is dropped.
    pub fn send(&self, input: Input) {
        drop(self.queue.send(input));
    }
}

/// Starts the thread.
#[must_use]
pub fn start(parts: NodeParts) -> NodeHandle {
    let (queue, inputs) = channel();
    let handle = NodeHandle { queue };
    let done_queue = Mutex::new(handle.queue.clone());
    let on_done: OnDone = Arc::new(move |done| drop(lock(&done_queue).send(Input::Service(done))));
    let thread_handle = handle.clone();
    spawn("agent-node", move || Node::new(parts, thread_handle, on_done).run(&inputs));
    handle
}

struct Node {
    parts: NodeParts,
    queue: NodeHandle,
    on_done: OnDone,
    view: View,
    runners: BTreeMap<String, Runner>,
    lease_until: Time,
    /// Somebody has said when the lease ends: the keeper, or the engine, which knew it from an earlier agent.
    lease_known: bool,
    started: Instant,
    /// Replicas with a job under way.
    busy: BTreeSet<ResourceId>,
    retry_at: BTreeMap<ResourceId, Instant>,
    proposed: Vec<(Command, Instant)>,
    /// Replicas that the present engine process has given up.
    failed: BTreeMap<ResourceId, String>,
    /// Replicas that it could not open, for a reason that does not pass by itself (R12).
    unusable: BTreeMap<ResourceId, String>,
    /// Replicas that asked to be relieved: on which version of the record, and why.
    relief: BTreeMap<ResourceId, (ConfigVersion, String)>,
    /// Newest report per service and when it was last proposed.
    reports: BTreeMap<String, (Report, Option<Instant>)>,
    teller: Teller,
    guard: Guard<Vec<GuardEntry>>,
    greeting: Option<Request>,
    peers: Vec<engine::Peer>,
    /// What was last noted about replicas: epoch, role, whether devices exist.
    noted: BTreeMap<ResourceId, (Epoch, engine::Role, bool)>,
    /// The removal of what forgotten instances left here has begun.
    swept: bool,
    /// Services that this is still under way for.
    sweeping: BTreeSet<String>,
}

impl Node {
    fn new(parts: NodeParts, queue: NodeHandle, on_done: OnDone) -> Self {
        let runners = Runner::load_all(&parts.places, &on_done);
        let answers = queue.clone();
        let answered = move |number, confirmed| answers.send(Input::Guarded { number, confirmed });
        let teller = Teller::start(parts.engine.clone(), answered);
        Self {
            parts,
            queue,
            on_done,
            // Nothing is known, and nothing is done, until the first view comes.
            view: View::default(),
            runners,
            lease_until: Time(0),
            lease_known: false,
            started: Instant::now(),
            busy: BTreeSet::new(),
            retry_at: BTreeMap::new(),
            proposed: Vec::new(),
            failed: BTreeMap::new(),
            unusable: BTreeMap::new(),
            relief: BTreeMap::new(),
            reports: BTreeMap::new(),
            teller,
            guard: Guard::default(),
            greeting: None,
            peers: Vec::new(),
            noted: BTreeMap::new(),
            swept: false,
            sweeping: BTreeSet::new(),
        }
    }

    fn run(mut self, inputs: &Receiver<Input>) {
        loop {
            let mut input = inputs.recv_timeout(self.patience());
            loop {
                match input {
                    Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(input) => self.take(input),
                    Err(RecvTimeoutError::Timeout) => break,
                }
                input = inputs.recv_timeout(Duration::ZERO);
            }
            self.reconcile();
        }
    }

    /// Until when nothing has to be done unless something happens.
    fn patience(&self) -> Duration {
        let now = boot_now();
        let lease_end = Time(self.lease_until.0.saturating_sub(GUARD_MARGIN_MS * 1000));
        self.runners
            .values()
            .filter_map(Runner::next_deadline)
            .chain((lease_end > now).then_some(lease_end))
            .chain(self.guard.next_deadline())
            .map(|deadline| Duration::from_micros(deadline.0.saturating_sub(now.0)))
            .fold(if self.lease_known { TICK } else { LEASE_UNKNOWN_MAX }, Duration::min)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::State(view) => self.view = view,
            Input::Lease(until) => {
                self.lease_until = until;
                self.lease_known = true;
            }
            Input::Engine(EngineInput::Connected { lease_until, silenced }) => {
                if !self.lease_known {
                    // A lease does not end because the agent was restarted.
                    self.lease_until = lease_until;
                    self.lease_known = true;
                }
                // A new engine process knows nothing; an old one is told again.
                self.guard.forget();
                self.guard.lease_taken(lease_until);
                self.silenced(silenced);
                self.peers.clear();
                self.retry_at.clear();
            }
            Input::Engine(EngineInput::Lease { until, silenced }) => {
                self.guard.lease_taken(until);
                self.silenced(silenced);
            }
            Input::Engine(EngineInput::Disconnected) => {
                self.failed.clear();
                self.unusable.clear();
                self.relief.clear();
                self.guard.forget();
            }
            Input::Engine(EngineInput::Event(event)) => self.engine_event(*event),
            Input::Service(Done { service, event }) => {
                if let Some(runner) = self.runners.get_mut(&service) {
                    runner.handle(boot_now(), event);
                }
            }
            Input::JobDone { resource, job, result } => {
                self.busy.remove(&resource);
                match result {
                    Err(error) => {
                        tracing::warn!(%resource, job, %error, "a job of a replica failed; it is tried again");
                        self.retry_at.insert(resource, Instant::now() + RETRY_JOB_AFTER);
                        if job == "open" && replicas::stays_unusable(&error) {
                            self.unusable.insert(resource, error.message);
                        }
                    }
                    // What was given up is gone; whatever comes next is another replica.
                    Ok(()) if job == "drop" => {
                        self.failed.remove(&resource);
                        self.relief.remove(&resource);
                        self.unusable.remove(&resource);
                    }
                    Ok(()) if matches!(job, "create" | "open") => {
                        self.unusable.remove(&resource);
                    }
                    Ok(()) => {}
                }
            }
            Input::Guarded { number, confirmed } => self.guard.answered(number, confirmed),
            Input::Swept { service } => {
                self.sweeping.remove(&service);
            }
            Input::Stop => {}
        }
    }

    fn engine_event(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Replica(status) => {
                link_devices(&self.parts.places.run_dir, &status);
                self.note_replica(&status);
                if let Some(proposal) = status.proposal {
                    self.engine_proposal(proposal);
                }
            }
            EngineEvent::Proposal(proposal) => self.engine_proposal(proposal),
            EngineEvent::Failed { resource, reason } => {
                tracing::error!(%resource, reason, "the engine has given a replica up");
                self.failed.insert(resource, reason);
            }
            EngineEvent::LeaseLost { until_us, silenced_us } => {
                tracing::error!(
                    until_us = until_us.0,
                    "the engine has silenced this node, because its lease ran out"
                );
                self.silenced(silenced_us);
            }
        }
    }

    /// The engine's guard was done with silencing this node then: what began before is killed (R19).
    fn silenced(&mut self, at: Time) {
        for runner in self.runners.values_mut() {
            runner.handle(boot_now(), Event::Silenced { at });
            runner.carry_out(false);
        }
    }

    /// Tells the operator when a replica begins to serve and when its devices exist.
    fn note_replica(&mut self, status: &ReplicaStatus) {
        let now = (status.epoch, status.role, !status.devices.is_empty());
        let before = self.noted.insert(status.resource, now);
        let serves = |(_, role, _): &(Epoch, engine::Role, bool)| *role == engine::Role::Primary;
        let same_epoch = before.is_some_and(|(epoch, ..)| epoch == status.epoch);
        let (subject, node) = (format!("resource {}", status.name), self.name());
        if serves(&now) && !(same_epoch && before.as_ref().is_some_and(serves)) {
            self.note(subject.clone(), format!("{node} serves epoch {}", status.epoch.0));
        }
        if now.2 && !(same_epoch && before.is_some_and(|(.., attached)| attached)) {
            self.note(subject, format!("devices attached on {node}"));
        }
    }

    fn note(&self, subject: String, text: String) {
        self.parts.log.submit(Command::Note { subject, text });
    }

    fn name(&self) -> String {
        self.view.state.node_name(self.parts.node)
    }

    fn engine_proposal(&mut self, proposal: ProposalEvent) {
        let ProposalEvent { resource, version, epoch, change } = proposal;
        let change = match change {
            ProposedChange::Shrink { remove } => IssChange::Shrink { remove },
            ProposedChange::Grow { add } => IssChange::Grow { add },
            ProposedChange::StepDown { reason } => {
                let current = self.view.state.resources.get(&resource).map(|known| known.record.version);
                if current == Some(version) {
                    self.relief.insert(resource, (version, reason));
                }
                return;
            }
        };
        self.propose(Command::ChangeIss { resource, version, epoch, change });
    }

    fn propose(&mut self, command: Command) {
        let now = Instant::now();
        self.proposed.retain(|(_, at)| now.duration_since(*at) < REPEAT_PROPOSAL_AFTER);
        if self.proposed.iter().any(|(known, _)| *known == command) {
            return;
        }
        self.parts.log.submit(command.clone());
        self.proposed.push((command, now));
    }

    fn reconcile(&mut self) {
        let in_use = self.runners.values().any(|runner| !runner.machine().phase().is_silent());
        self.parts.left_devices.look(self.parts.engine.is_connected(), in_use);
        let state = self.view.state.clone();
        if state.cluster.is_none() {
            return;
        }
        self.tell_engine(&state);
        // Whoever is dead in its own state need not wait to hear that it has no lease.
        let lease_unknown = !self.lease_known && state.alive(self.parts.node);
        if lease_unknown && self.started.elapsed() < LEASE_UNKNOWN_MAX {
            return;
        }
        let now = boot_now();
        for runner in self.runners.values_mut() {
            if runner.next_deadline().is_some_and(|deadline| deadline <= now) {
                runner.handle(now, Event::Tick);
            }
        }
        let observed = self.observe();
        let mut starts = Vec::new();
        for action in reconcile::plan(self.parts.node, &state, &observed) {
            self.act(&state, action, &mut starts);
        }
        self.sweep(&state);
        let guarded = self.start_services(&state, starts);
        let node_name = self.name();
        for (name, runner) in &mut self.runners {
            runner.carry_out(guarded && self.guard.may_run(boot_now()));
            for stage in runner.take_stages() {
                let (subject, text) = (format!("service {name}"), format!("{stage} on {node_name}"));
                self.parts.log.submit(Command::Note { subject, text });
            }
            for report in runner.take_reports() {
                tracing::info!(service = name, phase = ?report.phase, detail = report.detail, "service");
                self.reports.insert(name.clone(), (report, None));
            }
        }
        self.report(&state);
    }

    fn lease_valid(&self) -> bool {
        boot_now().plus_ms(GUARD_MARGIN_MS) < self.lease_until
    }

    fn observe(&self) -> Observed {
        let replicas = self
            .parts
            .engine
            .replicas()
            .into_iter()
            .map(|(resource, status)| (resource, self.observe_replica(&status)))
            .collect();
        let services = self
            .runners
            .iter()
            .map(|(name, runner)| {
                let machine = runner.machine();
                let seen = ServiceObserved {
                    phase: machine.phase(),
                    epoch: machine.epoch(),
                    round: machine.round(),
                    spent_epoch: machine.spent_epoch(),
                    revision: runner.revision(),
                };
                (name.clone(), seen)
            })
            .collect();
        Observed {
            lease_valid: self.lease_valid(),
            engine: self.parts.engine.is_connected(),
            stored: self.parts.replicas.stored(),
            unusable: self.unusable.clone(),
            replicas,
            services,
        }
    }

    fn observe_replica(&self, status: &ReplicaStatus) -> ReplicaObserved {
        let role = match status.role {
            engine::Role::Secondary => Role::Secondary,
            engine::Role::Promoting => Role::Promoting,
            engine::Role::Primary => Role::Primary,
            engine::Role::Fenced => Role::Fenced,
        };
        let relief = self
            .relief
            .get(&status.resource)
            .filter(|(asked, _)| reconcile::asks_for_relief(*asked, status.version, role));
        let failed =
            self.failed.get(&status.resource).or(relief.map(|(_, why)| why)).cloned().or_else(|| {
                (status.data == DataState::Failed)
                    .then(|| "its store failed and is no longer used".to_owned())
            });
        ReplicaObserved {
            role,
            epoch: status.epoch,
            version: status.version,
            incarnation: status.incarnation,
            devices_ready: !status.devices.is_empty() && status.devices.len() == status.volumes.len(),
            failed,
            store_failed: status.data == DataState::Failed,
        }
    }

    fn act(&mut self, state: &State, action: Action, starts: &mut Vec<(String, Event)>) {
        match action {
            Action::CreateReplica { resource } => {
                if let Some(resource) = state.resources.get(&resource).cloned() {
                    self.job(resource.id, "create", move |replicas| replicas.create(&resource));
                }
            }
            Action::OpenReplica { resource } => {
                self.job(resource, "open", move |replicas| replicas.open_replica(resource));
            }
            Action::DropReplica { resource } => {
                self.job(resource, "drop", move |replicas| replicas.drop_replica(resource));
            }
            Action::GiveRecord(record) => {
                self.job(record.resource, "record", move |replicas| replicas.give_record(record));
            }
            Action::Demote { resource } => {
                self.job(resource, "demote", move |replicas| replicas.demote(resource));
            }
            Action::StartService { name, epoch, round } => {
                starts.push((name, Event::Start { epoch, round }));
            }
            Action::StopService { name, reason } => {
                if let Some(runner) = self.runners.get_mut(&name) {
                    if runner.machine().phase() != ServicePhase::Stopping {
                        tracing::info!(service = name, reason, "stopping a service");
                    }
                    runner.handle(boot_now(), Event::Stop);
                }
            }
            Action::KillService { name } => {
                self.runners.get_mut(&name).into_iter().for_each(kill);
            }
            Action::ForgetService { name } => {
                let unknown = |(report, _): &(Report, _)| !is_known(state, self.parts.node, &name, report);
                let known =
                    !self.reports.get(&name).is_some_and(unknown) || !state.services.contains_key(&name);
                if known && let Some(runner) = self.runners.remove(&name) {
                    runner.forget();
                    self.reports.remove(&name);
                }
            }
            Action::Propose(command) => self.propose(command),
        }
    }

    /// Starts services of which the engine has confirmed that it silences them; asks it about the others (R19). Says
    /// whether it has confirmed all that run.
    fn start_services(&mut self, state: &State, starts: Vec<(String, Event)>) -> bool {
        let mut starting = BTreeSet::new();
        for (name, _) in &starts {
            let Some((service, resource)) =
                state.services.get(name).and_then(|service| Some((service, state.resource_of(service)?)))
            else {
                continue;
            };
            if self.sweeping.contains(name) {
                continue;
            }
            let (places, on_done) = (&self.parts.places, &self.on_done);
            self.runners.entry(name.clone()).or_insert_with(|| {
                Runner::new(&service.spec, service.revision, resource.id, places, on_done.clone())
            });
            starting.insert(name.clone());
        }
        // R10: making a runner asks the kernel, which takes its time.
        if !self.is_guarded(&starting) || !self.lease_valid() {
            return false;
        }
        for (name, event) in starts.into_iter().filter(|(name, _)| starting.contains(name)) {
            if let Some(runner) = self.runners.get_mut(&name) {
                runner.handle(boot_now(), event);
            }
        }
        true
    }

    fn job(
        &mut self,
        resource: ResourceId,
        job: &'static str,
        body: impl FnOnce(&Replicas) -> Result<(), EngineError> + Send + 'static,
    ) {
        let waits = self.retry_at.get(&resource).is_some_and(|at| *at > Instant::now());
        if waits || !self.busy.insert(resource) {
            return;
        }
        self.retry_at.remove(&resource);
        let (replicas, queue) = (self.parts.replicas.clone(), self.queue.clone());
        spawn("agent-job", move || {
            let result = body(&replicas);
            queue.send(Input::JobDone { resource, job, result });
        });
    }

    /// Who this node is and who the others are.
    fn tell_engine(&mut self, state: &State) {
        let (Some(cluster), Some(me)) = (&state.cluster, state.nodes.get(&self.parts.node)) else { return };
        let greeting = Request::Hello { node: me.id, cluster: cluster.id, generation: me.generation };
        if self.greeting.as_ref() != Some(&greeting) {
            self.teller.greet(greeting.clone());
            self.greeting = Some(greeting);
        }
        let peers: Vec<engine::Peer> = state
            .nodes
            .values()
            .filter(|node| !node.witness)
            .map(|node| engine::Peer { node: node.id, addr: node.engine_addr.clone() })
            .collect();
        if self.peers != peers && self.parts.engine.is_connected() {
            self.teller.post(Request::Peers { peers: peers.clone() });
            self.peers = peers;
        }
    }

    /// Whether the engine has confirmed that it silences exactly what runs here and what is `starting`. If not, it is asked,
    /// and its answer is an [`Input::Guarded`].
    fn is_guarded(&mut self, starting: &BTreeSet<String>) -> bool {
        if !self.parts.engine.is_connected() {
            return false;
        }
        let silent = |runner: &Runner| runner.machine().phase().is_silent();
        let entries: Vec<GuardEntry> = self
            .runners
            .iter()
            .filter(|(name, runner)| starting.contains(*name) || !silent(runner))
            .map(|(_, runner)| runner.guard().clone())
            .collect();
        match self.guard.want(boot_now(), entries) {
            Wanted::Confirmed => true,
            Wanted::Wait => false,
            Wanted::Ask { number, list } => {
                self.teller.guard(number, list);
                false
            }
        }
    }

    /// Once, at the start: an instance that an earlier agent process left and nobody remembers counts as running
    /// until this was done (R19). Services that are applied later cannot have left anything.
    fn sweep(&mut self, state: &State) {
        if std::mem::replace(&mut self.swept, true) {
            return;
        }
        for (name, service) in state.services.iter().filter(|(name, _)| !self.runners.contains_key(*name)) {
            self.sweeping.insert(name.clone());
            let (service, spec) = (name.clone(), service.spec.clone());
            let (places, queue) = (self.parts.places.clone(), self.queue.clone());
            spawn("agent-sweep", move || {
                Runner::sweep(&spec, &places);
                queue.send(Input::Swept { service });
            });
        }
    }

    fn report(&mut self, state: &State) {
        let node = self.parts.node;
        let mut due = Vec::new();
        self.reports.retain(|name, (report, proposed)| {
            if !state.services.contains_key(name) {
                return false;
            }
            let known = is_known(state, node, name, report);
            // It is kept: an older report that is still on its way would overwrite what is known now.
            if known {
                return true;
            }
            if proposed.is_none_or(|at| at.elapsed() >= REPEAT_PROPOSAL_AFTER) {
                *proposed = Some(Instant::now());
                due.push((name.clone(), report.clone()));
            }
            true
        });
        for (name, report) in due {
            let Report { phase, epoch, round, detail, failures } = report;
            self.parts.log.submit(Command::ServiceStatus {
                name,
                node,
                phase,
                epoch,
                round,
                detail,
                failures,
            });
        }
    }
}

/// Silences a service (R19). Its threads are under way when this returns.
fn kill(runner: &mut Runner) {
    runner.handle(boot_now(), Event::LeaseLost);
    runner.carry_out(false);
}

/// Keeps `<run>/dev/<resource>/<volume>` pointing at the devices that exist now; a volume that is only an export, with an
/// address instead of a path, has none.
fn link_devices(run_dir: &Path, status: &ReplicaStatus) {
    let directory = run_dir.join("dev").join(&status.name);
    let link = || -> std::io::Result<()> {
        let devices: Vec<_> = status.devices.iter().filter(|device| device.path.starts_with('/')).collect();
        if devices.is_empty() {
            return match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        std::fs::create_dir_all(&directory)?;
        for device in devices {
            let path = directory.join(device.volume.0.to_string());
            if std::fs::read_link(&path).ok() == Some(PathBuf::from(&device.path)) {
                continue;
            }
            let fresh = directory.join(format!("{}.new", device.volume.0));
            drop(std::fs::remove_file(&fresh));
            std::os::unix::fs::symlink(&device.path, &fresh)?;
            std::fs::rename(&fresh, &path)?;
        }
        Ok(())
    };
    if let Err(error) = link() {
        tracing::warn!(directory = %directory.display(), %error, "cannot name the devices of a resource");
    }
}

/// Whether the control plane has the newest report of a service on this node.
fn is_known(state: &State, node: NodeId, name: &str, report: &Report) -> bool {
    state.services.get(name).and_then(|service| service.nodes.get(&node)).is_some_and(|on| {
        on.phase == report.phase
            && on.epoch == report.epoch
            && on.round == report.round
            && on.failures == report.failures
    })
}

#[cfg(test)]
mod tests;
