//! The reconciler of this node: the threads around `mainstay_control::reconciler`, which decides.
//!
//! Guarantees
//! - The tasks that the core gives are carried out in the order in which it gives them. The thread
//!   asks for them after every input and after every look at everything, with the time of that
//!   moment.
//! - The core looks at everything after every input that may change what there is to do, and
//!   whenever it asks to. A lease that goes on as it was changes nothing, and comes with every
//!   heartbeat. Otherwise an agent with a thousand resources would do little else.
//! - The thread waits for nothing. Replicas are handled on threads of their own, services by their
//!   instances, proposals by the log's thread. Another thread tells the engine (see
//!   [`crate::engine_feed`]).

mod clients;

use crate::clock::{boot_now, wall_ms};
use crate::engine_absence::EngineAbsence;
use crate::engine_feed::EngineFeed;
use crate::engine_link::{EngineInput, EngineLink};
use crate::engine_proofs::engine_proofs;
use crate::level;
use crate::metrics::Metrics;
use crate::raft::{ConsensusLog, View};
use crate::replicas::{self, Replicas};
use crate::service::instance::{Done, Instance, OnDone, Places, Volumes};
use crate::service::vip;
use crate::threads::{lock, spawn};
use crate::transport::Transport;
use crate::trust::OwnTrust;
use crate::volumes::ClusterVolumes;
use mainstay_api::engine::{
    self, DeviceStatus, EngineEvent, ProposalEvent, ReplicaStatus, Request, WatchdogChoice,
};
use mainstay_control::State;
use mainstay_control::actions::Unusable;
use mainstay_control::reconciler::job::{Ended, Order};
use mainstay_control::reconciler::{Event, Failure, NodeSeen, Reconciler, ReconcilerTask, ReplicaSeen};
use mainstay_control::state::{Command, Links};
use mainstay_devices::supervisor;
use mainstay_types::{
    Code, Epoch, HexBytes, NodeId, Problem, ResourceId, Role, Severity, SnapshotId, SnapshotOn, StoreState,
    Time,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the node's interfaces are looked at.
const LINKS_LOOK: Duration = Duration::from_secs(3);
/// Shortest time between the events that a pool is full and that it has space again.
const FULL_FOR: Duration = Duration::from_secs(10);

/// Events that wake the reconciler.
pub enum Input {
    /// Comes from the lease's thread, which has taken it before.
    State(View),
    Engine(EngineInput),
    Service(Done),
    /// The engine is replaced, and leaves its devices to its successor.
    Succession,
    Lease(Time),
    JobDone {
        resource: ResourceId,
        job: &'static str,
        result: Result<Ended, Problem>,
    },
    /// The engine has confirmed a list for its guard, or has not.
    Guarded {
        number: u64,
        confirmed: bool,
    },
    /// A service of which the agent remembers no instance has left nothing on this node.
    Swept {
        service: String,
    },
    /// The supervisor wants to hear that this thread works.
    Alive,
    Stop,
}

/// Parts that the reconciler is started with.
pub struct ReconcilerParts {
    pub node: NodeId,
    pub log: Arc<dyn ConsensusLog>,
    pub engine: EngineLink,
    pub replicas: Arc<Replicas>,
    pub places: Places,
    pub engine_absence: EngineAbsence,
    pub metrics: Arc<Metrics>,
    pub transport: Transport,
    /// Keys and certificates of this node.
    pub keys: Arc<Mutex<OwnTrust>>,
}

/// The way to the thread.
#[derive(Clone)]
pub struct ReconcilerHandle {
    queue: Sender<Input>,
}

impl ReconcilerHandle {
    /// Hands something over; after the thread's end it is dropped.
    pub fn send(&self, input: Input) {
        drop(self.queue.send(input));
    }
}

/// Starts the thread.
#[must_use]
pub fn start(parts: ReconcilerParts) -> ReconcilerHandle {
    let (queue, inputs) = channel();
    let handle = ReconcilerHandle { queue };
    let done_queue = Mutex::new(handle.queue.clone());
    let on_done: OnDone = Arc::new(move |done| drop(lock(&done_queue).send(Input::Service(done))));
    let thread_handle = handle.clone();
    spawn("agent-reconcile", move || ReconcilerThread::new(parts, thread_handle, on_done).run(&inputs));
    handle
}

/// A pool that had no space, as it was told.
struct Full {
    subject: String,
    /// Whether the pool has no space at this moment.
    now: bool,
    told: Instant,
}

struct ReconcilerThread {
    parts: ReconcilerParts,
    queue: ReconcilerHandle,
    volumes: Arc<dyn Volumes>,
    on_done: OnDone,
    view: View,
    core: Reconciler,
    /// Instances, which carry out the steps of each service of which the core has a machine.
    instances: BTreeMap<String, Instance>,
    feed: EngineFeed,
    greeting: Option<Request>,
    /// Proofs that the engine was told last, without the key.
    proofs: Option<engine::Proofs>,
    peers: Vec<engine::Peer>,
    /// Last noted state of each replica: epoch, role, whether devices exist.
    noted: BTreeMap<ResourceId, (Epoch, Role, bool)>,
    /// Last noted state of each client, with the name of its resource.
    noted_clients: BTreeMap<ResourceId, (String, clients::Noted)>,
    /// Resources for which this node's pool has no space, or had none a moment ago.
    full: BTreeMap<ResourceId, Full>,
    /// The node's interfaces, as a thread of their own sees them.
    links: Arc<Mutex<Option<Links>>>,
    /// Sizes of volumes in bytes, as engines reported them last.
    sizes: BTreeMap<ResourceId, Vec<u64>>,
    /// Names of the resources whose devices are linked.
    linked: BTreeMap<ResourceId, String>,
}

impl ReconcilerThread {
    fn new(parts: ReconcilerParts, queue: ReconcilerHandle, on_done: OnDone) -> Self {
        let volumes: Arc<dyn Volumes> =
            Arc::new(ClusterVolumes { log: parts.log.clone(), engine: parts.engine.clone() });
        let (instances, adopted) = Instance::load_all(&parts.places, &volumes, &on_done);
        let answers = queue.clone();
        let answered = move |number, confirmed| answers.send(Input::Guarded { number, confirmed });
        let feed = EngineFeed::start(parts.engine.clone(), answered);
        let mut core = Reconciler::new(parts.node, boot_now(), parts.replicas.stored(), adopted);
        core.run_hooks(parts.places.hooks.is_some());
        Self {
            parts,
            queue,
            volumes,
            on_done,
            // Nothing is known, and nothing is done, until the first view comes.
            view: View::default(),
            core,
            instances,
            feed,
            greeting: None,
            proofs: None,
            peers: Vec::new(),
            noted: BTreeMap::new(),
            noted_clients: BTreeMap::new(),
            full: BTreeMap::new(),
            links: watch_links(),
            sizes: BTreeMap::new(),
            linked: BTreeMap::new(),
        }
    }

    fn run(mut self, inputs: &Receiver<Input>) {
        loop {
            let left_us = self.core.next_deadline().0.saturating_sub(boot_now().0);
            let mut input = inputs.recv_timeout(Duration::from_micros(left_us));
            let mut news = false;
            loop {
                match input {
                    Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(input) => news |= self.take(input),
                    Err(RecvTimeoutError::Timeout) => break,
                }
                input = inputs.recv_timeout(Duration::ZERO);
            }
            self.parts.engine_absence.look(self.parts.engine.is_connected(), self.core.has_services());
            if news || self.core.is_due(boot_now()) {
                self.reconcile();
            }
        }
    }

    /// Takes an input in; `true` if everything is to be looked at. The simulator does the same
    /// (`sim/src/agent.rs`).
    fn take(&mut self, input: Input) -> bool {
        match input {
            Input::State(view) => {
                self.parts.places.neighbours.set(&view.state);
                self.view = view;
            }
            Input::Lease(until) => {
                let first = !self.core.knows_lease();
                self.tell(Event::Lease(until));
                return first;
            }
            Input::Engine(EngineInput::Connected { lease_until, silenced }) => {
                self.peers.clear();
                self.proofs = None;
                self.tell(Event::EngineConnected { lease_until, silenced });
            }
            Input::Engine(EngineInput::Lease { until, silenced }) => {
                self.tell(Event::LeaseTaken { until, silenced });
                return self.core.holds_steps();
            }
            Input::Engine(EngineInput::Disconnected) => self.tell(Event::EngineDisconnected),
            Input::Engine(EngineInput::Event(event)) => self.engine_event(*event),
            Input::Succession => self.tell(Event::Succession),
            Input::Service(Done { service, event }) => {
                let stage = self.instances.get_mut(&service).and_then(|instance| instance.stage(&event));
                if let Some(stage) = stage {
                    let text = format!("{stage} on {}", self.name());
                    self.note(format!("service {service}"), text);
                }
                self.tell(Event::Service { name: service, event });
            }
            Input::JobDone { resource, job, result } => {
                // An engine reports no replica that it closes. One that is still open reports
                // again.
                let is_closed =
                    if result.is_ok() { job == "drop" } else { matches!(job, "reopen" | "replace") };
                if is_closed && let Some(name) = self.linked.remove(&resource) {
                    link_devices(&self.parts.places.run_dir, &name, &[]);
                }
                let result = result.map_err(|error| {
                    tracing::warn!(%resource, job, %error, remedy = error.remedy, "a job of a replica failed; it is tried again");
                    // A replica that could not be made may be made the next time, unless something
                    // else is in its place.
                    let stays = if job == "create" {
                        [Code::NoLabel, Code::DirectoryGone].contains(&error.code)
                    } else {
                        replicas::stays_unusable(&error)
                    };
                    Failure { stays, why: Unusable { code: error.code, reason: error.message } }
                });
                self.tell(Event::JobEnded { resource, result });
            }
            Input::Guarded { number, confirmed } => self.tell(Event::Guarded { number, confirmed }),
            Input::Swept { service } => self.tell(Event::Swept { name: service }),
            Input::Alive => {
                supervisor::alive();
                return false;
            }
            Input::Stop => {}
        }
        true
    }

    /// Tells the core what happens, and does at once what it wishes for at once.
    fn tell(&mut self, event: Event) {
        self.core.handle(boot_now(), &self.view.state, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(task) = self.core.poll(boot_now(), &self.view.state) {
            self.task(task);
        }
    }

    fn engine_event(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Replica(status) => {
                // The devices of a service that is kept are with the agent.
                if !status.devices.is_empty() || !self.core.keeps(status.resource) {
                    link_devices(&self.parts.places.run_dir, &status.name, &status.devices);
                }
                self.linked.insert(status.resource, status.name.clone());
                self.parts.metrics.replica(&status);
                self.note_replica(&status);
                self.note_full(&status);
                self.note_sizes(&status);
                if let Some(proposal) = status.proposal {
                    self.engine_proposal(proposal);
                }
            }
            EngineEvent::Client(status) => self.client(&status),
            EngineEvent::ClientGone { resource } => self.client_gone(resource),
            EngineEvent::Proposal(proposal) => self.engine_proposal(proposal),
            EngineEvent::Failed { resource, reason } => {
                tracing::error!(%resource, reason, "the engine has given a replica up");
                self.tell(Event::ReplicaFailed { resource, reason });
            }
            EngineEvent::LeaseLost { until_us, silenced_us } => {
                tracing::error!(
                    until_us = until_us.0,
                    "the engine silences this node, because its lease ran out or because it was told to end"
                );
                self.tell(Event::LeaseLost { silenced: silenced_us });
            }
        }
    }

    /// Tells the operator when a replica begins to serve and when its devices exist.
    fn note_replica(&mut self, status: &ReplicaStatus) {
        let now = (status.epoch, status.role, !status.devices.is_empty());
        let before = self.noted.insert(status.resource, now);
        let serves = |(_, role, _): &(Epoch, Role, bool)| *role == Role::Primary;
        let same_epoch = before.is_some_and(|(epoch, ..)| epoch == status.epoch);
        let (subject, node) = (format!("resource {}", status.name), self.name());
        if serves(&now) && !(same_epoch && before.as_ref().is_some_and(serves)) {
            self.note(subject.clone(), format!("{node} serves epoch {}", status.epoch.0));
        }
        if now.2 && !(same_epoch && before.is_some_and(|(.., attached)| attached)) {
            self.note(subject, format!("devices attached on {node}"));
        }
    }

    /// Tells the operator that the pool has no space for what is written to a replica.
    fn note_full(&mut self, status: &ReplicaStatus) {
        let now = status.no_space.is_some() || status.full;
        if let Some(full) = self.full.get_mut(&status.resource) {
            full.now = now;
        } else if now {
            let why = status.no_space.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
            let text = format!(
                "the pool of {} has no space for what is written{why}: it goes on by itself when there is room",
                self.name()
            );
            let subject = format!("resource {}", status.name);
            self.full.insert(status.resource, Full { subject: subject.clone(), now, told: Instant::now() });
            let note = Command::Note { severity: Severity::Warning, subject, text };
            self.parts.log.submit(note);
        }
    }

    /// Tells that there is space again, unless there was none a moment ago: a pool that is nearly
    /// full changes often.
    fn note_room(&mut self) {
        let is_over = |full: &Full| !full.now && full.told.elapsed() >= FULL_FOR;
        let over: Vec<ResourceId> =
            self.full.iter().filter(|(_, full)| is_over(full)).map(|(id, _)| *id).collect();
        for id in over {
            if let Some(full) = self.full.remove(&id) {
                self.note(full.subject, format!("the pool of {} has space again", self.name()));
            }
        }
    }

    /// Has file systems fill volumes that have grown. Does so once for all of them, because an
    /// earlier agent may have ended before they did.
    fn note_sizes(&mut self, status: &ReplicaStatus) {
        let before = self.sizes.insert(status.resource, status.volumes.clone());
        if before.is_some_and(|before| before == status.volumes) || status.role != Role::Primary {
            return;
        }
        for instance in
            self.instances.values().filter(|instance| instance.guard().resource == status.resource)
        {
            instance.volumes_grew(status.volumes.clone());
        }
    }

    fn note(&self, subject: String, text: String) {
        self.parts.log.submit(Command::Note { severity: Severity::Info, subject, text });
    }

    fn name(&self) -> String {
        self.view.state.node_name(self.parts.node)
    }

    fn engine_proposal(&mut self, ProposalEvent { resource, proposal }: ProposalEvent) {
        self.tell(Event::Proposed { resource, proposal });
    }

    fn reconcile(&mut self) {
        self.note_room();
        self.tell_engine(&self.view.state.clone());
        for (name, text) in self.parts.replicas.take_events() {
            self.note(format!("resource {name}"), format!("on {}, {text}", self.name()));
        }
        let mut seen = NodeSeen {
            wall_ms: wall_ms(),
            links: lock(&self.links).clone(),
            unfit: self.unfit(),
            level: self.level(),
            replayed: self.view.replayed,
            engine: self.parts.engine.is_connected(),
            room: false,
            replicas: self.parts.engine.replicas(seen),
            gone: self.parts.replicas.gone(),
            clients: self.parts.engine.clients(clients::seen),
        };
        seen.room = seen.replicas.values().any(|replica| replica.full) && self.parts.replicas.has_room();
        self.core.reconcile(boot_now(), &self.view.state, &seen);
        self.carry_out();
    }

    /// The feature level to tell, if every other node knows levels. A voter hears from each living
    /// node; the other nodes wait until one of the voters has told its level.
    fn level(&self) -> Option<u32> {
        let (state, own) = (&self.view.state, self.parts.node);
        let votes = state.nodes.get(&own).is_some_and(|node| node.voter);
        let others = state.nodes.keys().copied().filter(|node| *node != own && state.alive(*node));
        let known = state.knows_levels() || votes && self.parts.transport.know_levels(others);
        known.then(level::own)
    }

    /// Why this node is not to be primary: its watchdog is required and cannot be used.
    fn unfit(&self) -> Option<Option<String>> {
        if !self.parts.engine.is_connected() {
            return None;
        }
        let watchdog = self.parts.engine.watchdog();
        let required = watchdog.filter(|watchdog| watchdog.choice == WatchdogChoice::Required);
        Some(
            required
                .and_then(|watchdog| watchdog.problem)
                .map(|problem| format!("its engine was started with --watchdog required, and {problem}")),
        )
    }

    fn task(&mut self, task: ReconcilerTask) {
        match task {
            ReconcilerTask::Submit(command) => self.parts.log.submit(command),
            ReconcilerTask::Job { resource, order } => self.job(resource, order),
            ReconcilerTask::MakeService { name, spec, revision, edition, resource } => {
                let (places, on_done) = (&self.parts.places, self.on_done.clone());
                let instance =
                    Instance::new(&spec, (revision, edition), resource, places, &self.volumes, on_done);
                self.instances.insert(name, instance);
            }
            ReconcilerTask::AmendService { name, spec, edition } => {
                if let Some(instance) = self.instances.get_mut(&name) {
                    instance.amend(spec, edition);
                }
            }
            ReconcilerTask::ForgetService { name } => {
                if let Some(instance) = self.instances.remove(&name) {
                    instance.forget();
                }
            }
            ReconcilerTask::Sweep { name, spec } => {
                let (places, queue) = (self.parts.places.clone(), self.queue.clone());
                spawn("agent-sweep", move || {
                    Instance::sweep(&spec, &places);
                    queue.send(Input::Swept { service: name });
                });
            }
            ReconcilerTask::Guard { number, services } => {
                let instances = services.iter().filter_map(|name| self.instances.get(name));
                self.feed.guard(number, instances.map(|instance| instance.guard().clone()).collect());
            }
            ReconcilerTask::Service { name, effect } => {
                if let Some(instance) = self.instances.get_mut(&name) {
                    instance.carry_out(effect);
                }
            }
            ReconcilerTask::Stopping { name, reason } => {
                tracing::info!(service = name, reason, "stopping a service");
            }
            ReconcilerTask::Reached { name, report } => {
                tracing::info!(service = name, phase = ?report.phase, detail = report.detail, "service");
                self.parts.metrics.reached(&name, report.phase);
            }
        }
    }

    fn job(&self, resource: ResourceId, order: Order) {
        // The state that the core has just seen asked for this job.
        let wanted = self.view.state.resources.get(&resource).cloned();
        let (replicas, queue) = (self.parts.replicas.clone(), self.queue.clone());
        spawn("agent-job", move || {
            let job = order.name();
            let result = replicas.carry_out(resource, wanted.as_ref(), order);
            queue.send(Input::JobDone { resource, job, result });
        });
    }

    /// Tells the engine what it shows to others and whom it believes, if that has changed.
    fn tell_proofs(&mut self, cluster: u64, state: &State) {
        let keys = lock(&self.parts.keys);
        let Some(proofs) = engine_proofs(&keys, cluster, state) else { return };
        if self.proofs.as_ref() != Some(&proofs) && self.parts.engine.is_connected() {
            self.proofs = Some(proofs.clone());
            let key = HexBytes(keys.key.pkcs8().to_vec());
            self.feed.post(Request::Trust { proofs: Box::new(engine::Proofs { key, ..proofs }) });
        }
    }

    /// Tells the engine the identity of this node and the addresses of the others.
    fn tell_engine(&mut self, state: &State) {
        let (Some(cluster), Some(me)) = (&state.cluster, state.nodes.get(&self.parts.node)) else { return };
        // An engine keeps the identity that it was told first, and a join may fail.
        if me.candidate {
            return;
        }
        let greeting = Request::Hello { node: me.id, cluster: cluster.id, generation: me.generation };
        if self.greeting.as_ref() != Some(&greeting) {
            self.feed.greet(greeting.clone());
            self.greeting = Some(greeting);
        }
        self.tell_proofs(cluster.id, state);
        let peers: Vec<engine::Peer> = state
            .nodes
            .values()
            .filter(|node| !node.witness && !node.candidate)
            .map(|node| engine::Peer { node: node.id, addr: node.engine_addr.clone() })
            .collect();
        if self.peers != peers && self.parts.engine.is_connected() {
            self.feed.post(Request::Peers { peers: peers.clone() });
            self.peers = peers;
        }
    }
}

/// Looks at the node's interfaces now and then, for as long as the reconciler exists.
fn watch_links() -> Arc<Mutex<Option<Links>>> {
    let links = Arc::new(Mutex::new(None));
    let seen = Arc::downgrade(&links);
    spawn("agent-links", move || {
        loop {
            let found = vip::links();
            let Some(links) = seen.upgrade() else { return };
            match found {
                Ok(found) => *lock(&links) = Some(found),
                Err(error) => tracing::debug!(%error, "cannot list the interfaces"),
            }
            drop(links);
            std::thread::sleep(LINKS_LOOK);
        }
    });
    links
}

/// Returns the part of a replica's status that the reconciler needs.
fn seen(status: &ReplicaStatus) -> ReplicaSeen {
    ReplicaSeen {
        role: status.role,
        epoch: status.epoch,
        version: status.version,
        incarnation: status.incarnation,
        instance: status.instance,
        reopened: status.reopened,
        devices_ready: !status.devices.is_empty() && status.devices.len() == status.volumes.len(),
        continues: status.continues,
        volumes: status.volumes.clone(),
        snapshots: status.snapshots.iter().map(snapshot_seen).collect(),
        scrub: status.scrub.clone(),
        feeds_all: status.feeds_all,
        copies: status.copies,
        store_failed: status.data == StoreState::Failed,
        full: status.full,
        older: status.older,
    }
}

fn snapshot_seen(snapshot: &engine::SnapshotStatus) -> (SnapshotId, SnapshotOn) {
    (snapshot.id, SnapshotOn { at: snapshot.at, state: snapshot.state })
}

/// Keeps `<run>/dev/<resource>/<volume>` pointing at the devices that exist now; a volume that is
/// only an export, with an address instead of a path, has none.
fn link_devices(run_dir: &Path, name: &str, devices: &[DeviceStatus]) {
    let directory = run_dir.join("dev").join(name);
    let link = || -> std::io::Result<()> {
        let devices: Vec<_> = devices.iter().filter(|device| device.path.starts_with('/')).collect();
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

#[cfg(test)]
mod tests;
