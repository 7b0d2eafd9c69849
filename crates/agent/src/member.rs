//! Threads of a node that is a member of a cluster: log, lease, reconciler.

use crate::AgentOptions;
use crate::agent::certificates::follow;
use crate::engine_absence::EngineAbsence;
use crate::engine_link::{EngineInput, EngineLink};
use crate::error::AgentError;
use crate::fence::Fencer;
use crate::hooks::Hooks;
use crate::identity::{Identity, LogMark, number_of};
use crate::lease::{self, LeaseKeeper};
use crate::metrics::Metrics;
use crate::own_state::{mark, recorded};
use crate::raft::store::{RaftStore, RaftStoreError};
use crate::raft::{self, ConsensusLog, RaftHandle, RaftSettings, View};
use crate::reach::Reach;
use crate::reconciler_thread::{self, Input, ReconcilerHandle, ReconcilerParts};
use crate::replicas::Replicas;
use crate::service::hindrances::Hindrances;
use crate::service::instance::{Disregarded, Neighbours, Places};
use crate::service::left_mounts::MountLanes;
use crate::service::mount::cgroup2_mount;
use crate::threads::lock;
use crate::transport::Transport;
use crate::trust::OwnTrust;
use crate::views;
use crate::watch::Watch;
use mainstay_types::{NodeId, Time};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Named file of the replicated log.
#[must_use]
pub fn log_path(state_dir: &Path) -> PathBuf {
    state_dir.join("agent.redb")
}

/// Named file of the durable suspicions.
#[must_use]
pub fn suspects_path(state_dir: &Path) -> PathBuf {
    state_dir.join("suspects.redb")
}

/// Whether the node is a full member: it has its vote, or is to have none.
#[must_use]
pub fn has_joined(view: &View, node: NodeId) -> bool {
    let known = view.state.nodes.get(&node).filter(|node| !node.candidate);
    known.is_some_and(|known| !known.voter || view.voters.contains(&node))
}

/// Agents of all other nodes. A removed node is one of them for as long as it is a member of the
/// log: it may have to confirm that it is taken out.
fn peers_of(view: &View, own: NodeId) -> BTreeMap<NodeId, String> {
    let nodes = view.state.nodes.values().map(|node| (node.id, &node.agent_addr));
    let parts = |node: &NodeId| view.voters.contains(node) || view.learners.contains(node);
    let parting = view.state.removed.iter().filter(|(node, _)| parts(node));
    let parting = parting.map(|(node, removed)| (*node, &removed.agent_addr));
    let others = nodes.chain(parting).filter(|(node, address)| *node != own && !address.is_empty());
    others.map(|(node, address)| (node, address.clone())).collect()
}

pub struct Member {
    pub identity: Identity,
    pub log: RaftHandle,
    pub lease: LeaseKeeper,
    pub node: ReconcilerHandle,
    pub replicas: Arc<Replicas>,
    pub transport: Transport,
    pub places: Places,
    /// Number of the newest event.
    pub last_event: watch::Receiver<u64>,
    /// Revision of the newest state.
    pub revision: watch::Receiver<u64>,
    /// Revision at which this agent saw the destinations of clients change last.
    pub destinations_changed: watch::Receiver<u64>,
    /// Other nodes as this one reaches them.
    pub reach: Reach,
    /// Until it is stopped.
    watch: Mutex<Option<Watch>>,
    fencer: Mutex<Option<Fencer>>,
    started: Instant,
}

/// Ways of a member to other nodes and to its engine.
pub struct Ways {
    pub transport: Transport,
    /// Keys and certificates of this node, which both show.
    pub keys: Arc<Mutex<OwnTrust>>,
    pub engine: EngineLink,
}

impl Member {
    /// Whether this node has asked to join, and does not vote yet.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        let (view, own) = (self.log.view(), self.identity.node);
        !self.identity.first_members.is_empty() && !has_joined(&view, own) && !view.state.is_removed(own)
    }

    /// Time for which this node has been joining without the state of the cluster; `None` once it
    /// has received that.
    #[must_use]
    pub fn waits_for_state(&self) -> Option<Duration> {
        let has_none = self.is_joining() && self.log.view().state.cluster.is_none();
        has_none.then(|| self.started.elapsed())
    }

    /// Starts everything. `fatal` hears why the agent has to end.
    ///
    /// # Errors
    /// When something on disk cannot be used.
    pub fn start(
        identity: Identity,
        options: &AgentOptions,
        Ways { transport, keys, engine }: Ways,
        engine_inputs: &EngineInputs,
        metrics: &Arc<Metrics>,
        fatal: &SyncSender<AgentError>,
    ) -> Result<Self, AgentError> {
        let file = |path: &Path| {
            let path = path.to_path_buf();
            move |source| AgentError::File { path, source }
        };
        let replicas = Replicas::open(&options.state_dir, options.journals.clone(), engine.clone())
            .map_err(file(&options.state_dir))
            .map(Arc::new)?;
        replicas.watch();
        let places = Places {
            cgroup_root: cgroup_root(options, &identity)?,
            state_dir: options.state_dir.clone(),
            run_dir: options.run_dir.clone(),
            journal_dir: options.journals.directory.clone(),
            neighbours: Neighbours::default(),
            hindrances: Hindrances::default(),
            disregarded: Disregarded::default(),
            mount_lanes: MountLanes::default(),
            log_writer: options.log_writer.clone(),
            hooks: options
                .hooks
                .clone()
                .map(|directory| Hooks::new(directory, identity.node, identity.name.clone())),
        };
        // Before the log has content: from then on both files have to be there.
        lease::prepare(&suspects_path(&options.state_dir))?;
        let mut store = RaftStore::open(&log_path(&options.state_dir))?;
        // Nothing is sent before this is known: another era is another cluster.
        let era = recorded(&store)?.cluster.map_or(identity.era, |cluster| cluster.era);
        transport.set_identity(number_of(identity.cluster, era), identity.node);
        if identity.log == LogMark::Awaited {
            let (state_dir, mut begun) = (options.state_dir.clone(), identity.clone());
            store.on_begin(move || mark(&state_dir, &mut begun, LogMark::Begun));
        }
        let (fatal, state_dir, mut known) = (fatal.clone(), options.state_dir.clone(), identity.clone());
        let on_fatal = move |why: AgentError| {
            if matches!(why, AgentError::Store(RaftStoreError::Lost { .. }))
                && let Err(error) = mark(&state_dir, &mut known, LogMark::Lost)
            {
                tracing::error!(%error, "cannot note that this node has lost its log");
            }
            drop(fatal.try_send(why));
        };
        let settings = RaftSettings { node: identity.node, on_fatal: Box::new(on_fatal) };
        let log = raft::start(store, transport.clone(), settings)?;
        let peers = transport.clone();
        let own = identity.node;
        let first_members = identity.first_members.clone();
        let (event_sender, last_event) = watch::channel(0);
        let (revision_sender, revision) = watch::channel(0);
        let (destination_sender, destinations_changed) = watch::channel(0);
        let destinations = Mutex::new(None);
        let (cluster, believed) = (identity.cluster, AtomicU64::new(0));
        log.subscribe(Box::new(move |view: &View| {
            let addresses = peers_of(view, own);
            // Whom this node believes, before it connects to anybody.
            if believed.swap(view.state.revision, Ordering::Relaxed) != view.state.revision {
                follow(&peers, cluster, &view.state);
            }
            peers.set_heartbeat(view.state.settings.heartbeat_ms);
            peers.set_peers(if view.state.cluster.is_none() { &first_members } else { &addresses });
            event_sender.send_if_modified(|last| {
                std::mem::replace(last, view.state.last_event) != view.state.last_event
            });
            revision_sender.send_if_modified(|revision| {
                std::mem::replace(revision, view.state.revision) != view.state.revision
            });
            let now = Some(views::destinations(&view.state));
            if *lock(&destinations) != now {
                *lock(&destinations) = now;
                destination_sender.send_replace(view.state.revision);
            }
        }));
        let node = reconciler_thread::start(ReconcilerParts {
            node: identity.node,
            log: Arc::new(log.clone()),
            engine: engine.clone(),
            replicas: replicas.clone(),
            places: places.clone(),
            engine_absence: EngineAbsence::new(options.run_dir.clone(), mainstay_devices::give_up_left),
            metrics: metrics.clone(),
            transport: transport.clone(),
            keys,
        });
        engine_inputs.connect(node.clone());
        let (leases, views) = (node.clone(), node.clone());
        let watched = engine.clone();
        let started = lease::start(
            identity.node,
            &suspects_path(&options.state_dir),
            transport.clone(),
            Arc::new(log.clone()),
            engine,
            Box::new(move |until| leases.send(Input::Lease(until))),
            Box::new(move |view| views.send(Input::State(view))),
        );
        let lease = match started {
            Ok(lease) => lease,
            Err(error) => {
                node.send(Input::Stop);
                log.stop();
                return Err(error.into());
            }
        };
        let hindrances = places.hindrances.clone();
        let reach = Reach::default();
        let watched = (watched, hindrances, reach.clone());
        let watch =
            crate::watch::start(identity.node, log.clone(), watched, lease.clone(), transport.clone());
        let watch = Mutex::new(Some(watch));
        let fencer = crate::fence::start(identity.node, log.clone(), options.fence_command.clone());
        let fencer = Mutex::new(Some(fencer));
        Ok(Self {
            identity,
            log,
            lease,
            node,
            replicas,
            transport,
            places,
            last_event,
            revision,
            destinations_changed,
            reach,
            watch,
            fencer,
            started: Instant::now(),
        })
    }

    /// Ends the threads that decide. Services and the engine go on.
    pub fn stop(&self) {
        drop(lock(&self.watch).take());
        drop(lock(&self.fencer).take());
        self.node.send(Input::Stop);
        self.lease.stop();
        self.log.stop();
    }
}

/// When the engine's lease ends, and when its guard silenced this node the last time.
#[derive(Clone, Copy)]
struct Said {
    lease_until: Time,
    silenced: Time,
}

/// Passes on the engine's news, from the moment on when a reconciler runs.
#[derive(Clone, Default)]
pub struct EngineInputs {
    to: Arc<Mutex<Option<ReconcilerHandle>>>,
    /// The engine's last words about the lease on the present connection.
    connected: Arc<Mutex<Option<Said>>>,
}

impl EngineInputs {
    pub fn pass(&self, input: EngineInput) {
        let to = lock(&self.to);
        match input {
            EngineInput::Connected { lease_until, silenced } => {
                *lock(&self.connected) = Some(Said { lease_until, silenced });
            }
            EngineInput::Lease { until: lease_until, silenced } => {
                if let Some(said) = lock(&self.connected).as_mut() {
                    *said = Said { lease_until, silenced };
                }
            }
            EngineInput::Disconnected => *lock(&self.connected) = None,
            EngineInput::Event(_) => {}
        }
        if let Some(node) = to.as_ref() {
            node.send(Input::Engine(input));
        }
    }

    /// Stops passing news on: no reconciler hears it any more.
    pub fn disconnect(&self) {
        *lock(&self.to) = None;
    }

    fn connect(&self, node: ReconcilerHandle) {
        let mut to = lock(&self.to);
        if let Some(Said { lease_until, silenced }) = *lock(&self.connected) {
            node.send(Input::Engine(EngineInput::Connected { lease_until, silenced }));
        }
        *to = Some(node);
    }
}

fn cgroup_root(options: &AgentOptions, identity: &Identity) -> Result<PathBuf, AgentError> {
    if let Some(root) = &options.cgroup_root {
        return Ok(root.clone());
    }
    let mount = cgroup2_mount().ok_or(AgentError::NoCgroup)?;
    Ok(mount.join("mainstay").join(&identity.name))
}

/// A bounded channel for the reason why the agent ends: the first one counts.
#[must_use]
pub fn fatal_channel() -> (SyncSender<AgentError>, std::sync::mpsc::Receiver<AgentError>) {
    sync_channel(1)
}
