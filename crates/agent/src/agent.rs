//! The agent as a whole: it serves the API from the start, and becomes a member when told to.

mod address_proof;
mod authority;
pub(crate) mod certificates;
mod membership;
mod questions;
pub mod removed;
mod successor;
mod twins;

use crate::AgentOptions;
use crate::access::Callers;
use crate::clock::boot_now;
use crate::engine_link::EngineLink;
use crate::error::{AgentError, OTHER_RELEASE};
use crate::held;
use crate::history;
use crate::http::idempotency::Keys;
use crate::http::operations::Operations;
use crate::http::stream::Streams;
use crate::https::bearer::Uses;
use crate::identity::Identity;
use crate::member::{EngineInputs, Member, Ways, fatal_channel, log_path};
use crate::messages::{Call, CallReply, LeaseMessage, Proposal, Waits};
use crate::metrics::Metrics;
use crate::own_state;
use crate::picture::Pictures;
use crate::programs;
use crate::raft::store::RaftStore;
use crate::raft::{ConsensusLog, View};
use crate::reach::LARGE;
use crate::reconciler_thread::Input;
use crate::service::instance::users_of;
use crate::service::lacks::{Lack, lacks, lacks_before};
use crate::service::logs;
use crate::service::place;
use crate::threads::{lock, read, spawn, write};
use crate::transport::{Inbound, Notices, Proofs, Transport};
use crate::trust::{OwnTrust, believed};
use crate::views::{self, Connections, Live};
use crate::watch;
use mainstay_api::engine::{DeviceStatus, DeviceUser, Reply, Request};
use mainstay_api::rest::{ClusterView, ProgramsView};
use mainstay_control::labels::{MOVE_OUT, Notice};
use mainstay_control::level::build_too_old;
use mainstay_control::members::{AGENT_PORT, twin_words, twins_in_place_words};
use mainstay_control::state::Command;
use mainstay_devices::supervisor;
use mainstay_ha::{ServiceSpec, valid_name};
use mainstay_trust::{Expect, Peer, Trust};
use mainstay_types::{Code, NodeId, NodeStatus, Problem, Severity};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// How long a change waits for its majority.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a question about the state waits for a majority to confirm it.
pub const READ_PATIENCE: Duration = Duration::from_secs(1);
/// How often the agent looks for needs of services that this node does not meet, while nothing
/// changes.
const LACKS_EVERY: Duration = Duration::from_secs(5);
/// How often a status looks whether they are known by the newest state.
const LACKS_PAUSE: Duration = Duration::from_millis(20);
/// How long a status waits for what services lack by the newest state.
const LACKS_PATIENCE: Duration = Duration::from_millis(500);
/// An older answer about what services lack says how old it is.
const LACKS_AGE_TOLD: Duration = Duration::from_secs(15);
/// Questions of this node to itself that may be open; its disk may hang. Further ones get no
/// answer.
const OWN_QUESTIONS_MAX: usize = 32;
/// How long another node may take to answer a question about itself.
const ASK_TIMEOUT: Duration = Duration::from_millis(1500);

pub struct Agent {
    pub options: AgentOptions,
    /// Where it listens for other agents, as it was told.
    listens: String,
    pub engine: EngineLink,
    pub metrics: Arc<Metrics>,
    /// Finds out the rights of those who ask.
    pub callers: Callers,
    /// Uses of tokens of the API that were told of.
    pub uses: Uses,
    /// Readers of the stream of events, and what tells them of changes.
    pub streams: Streams,
    /// Keys of changes that were made.
    pub keys: Keys,
    /// Changes that are carried out while their senders ask for other things.
    pub operations: Operations,
    pub pictures: Pictures,
    engine_inputs: EngineInputs,
    transport: Transport,
    /// Keys and certificates of this node.
    trust: Arc<Mutex<OwnTrust>>,
    /// Why the certificate of this node cannot be renewed, as of the last attempt.
    renewal: Mutex<Option<String>>,
    /// When this agent made an authority to announce. Held while it announces one.
    rotating: Mutex<Option<Instant>>,
    member: RwLock<Option<Arc<Member>>>,
    /// Needs of services that this node does not meet, as of the last check.
    known_lacks: Mutex<Option<KnownLacks>>,
    /// Wakes up the thread that looks for them.
    lacks_wake: SyncSender<()>,
    /// Questions of this node to itself that are open.
    own_questions: AtomicUsize,
    /// The last answers of all nodes.
    latest: questions::Latest,
    /// Requests to join that were taken back; held while one of them is recorded or taken back.
    withdrawn: Mutex<membership::Withdrawn>,
    /// Becoming a member happens once.
    joining: Mutex<()>,
    /// The peer of a join that is under way.
    joins_by: Mutex<Option<String>>,
    /// Answer to [`Call::WhoJoins`] while this node becomes a member.
    nonce: Mutex<Option<u64>>,
    /// Second processes that speak as nodes.
    twins: Mutex<Notices>,
    fatal: SyncSender<AgentError>,
}

/// Needs of services that this node does not meet, by service.
struct KnownLacks {
    at: Instant,
    /// Revision of the state that was looked at.
    revision: u64,
    lacks: BTreeMap<String, Vec<Lack>>,
}

/// The same lacks; if they were found long ago each says so.
fn with_age(mut lacks: BTreeMap<String, Vec<Lack>>, age: Duration) -> BTreeMap<String, Vec<Lack>> {
    if age > LACKS_AGE_TOLD {
        for lack in lacks.values_mut().flatten() {
            lack.problem = format!("{}, as of {} s ago", lack.problem, age.as_secs());
        }
    }
    lacks
}

/// Returns the proofs that an agent shows, and whom it believes, when it starts.
fn first_proofs(
    trust: &OwnTrust,
    identity: Option<&Identity>,
    state_dir: &Path,
) -> Result<Proofs, AgentError> {
    let cluster = identity.map(|identity| identity.cluster);
    let mut proofs = certificates::proofs_of(trust, cluster)?;
    let Some(cluster) = cluster else {
        proofs.trust = Arc::new(Trust::default());
        return Ok(proofs);
    };
    if trust.membership.is_none() {
        let path = state_dir.join(crate::trust::FILE);
        let what = "has no certificate of this node".to_owned();
        return Err(AgentError::TrustLost { path, what });
    }
    let known = own_state::recorded(&RaftStore::open(&log_path(state_dir))?)?;
    if known.cluster.is_some() {
        proofs.trust = Arc::new(believed(cluster, &known.identities, &proofs.ahead));
    }
    Ok(proofs)
}

/// A started agent.
pub struct Started {
    pub agent: Arc<Agent>,
    /// Where other agents are served.
    pub address: SocketAddr,
    /// Says why the agent has to end.
    pub fatal: Receiver<AgentError>,
}

impl Agent {
    /// Starts everything but the API.
    ///
    /// # Errors
    /// When something on disk or an address cannot be used.
    pub fn start(options: AgentOptions) -> Result<Started, AgentError> {
        for path in [&options.state_dir, &options.run_dir] {
            fs::create_dir_all(path).map_err(|source| AgentError::File { path: path.clone(), source })?;
        }
        mainstay_devices::descriptor_holder::start(&options.run_dir)
            .map_err(|source| AgentError::File { path: options.run_dir.clone(), source })?;
        let engine_inputs = EngineInputs::default();
        let inputs = engine_inputs.clone();
        let engine = EngineLink::start(&options.run_dir.join("engine.sock"), move |input| inputs.pass(input));
        let (fatal, fatal_receiver) = fatal_channel();
        let listen = options.listen.clone().unwrap_or_else(|| format!("0.0.0.0:{AGENT_PORT}"));
        let callers = Callers::new(options.groups.clone());
        let (lacks_wake, lacks_woken) = sync_channel(1);
        let identity = own_state::load(&options.state_dir)?;
        let trust = OwnTrust::load(&options.state_dir, identity.is_some())?;
        let transport = Transport::new();
        transport.set_proofs(first_proofs(&trust, identity.as_ref(), &options.state_dir)?);
        let agent = Arc::new(Self {
            options,
            listens: listen.clone(),
            engine,
            metrics: Arc::default(),
            callers,
            uses: Uses::default(),
            streams: Streams::default(),
            keys: Keys::default(),
            operations: Operations::default(),
            pictures: Pictures::default(),
            engine_inputs,
            transport,
            trust: Arc::new(Mutex::new(trust)),
            renewal: Mutex::default(),
            rotating: Mutex::default(),
            member: RwLock::new(None),
            known_lacks: Mutex::new(None),
            lacks_wake,
            own_questions: AtomicUsize::new(0),
            latest: questions::Latest::default(),
            withdrawn: Mutex::default(),
            joining: Mutex::new(()),
            joins_by: Mutex::new(None),
            nonce: Mutex::new(None),
            twins: Mutex::default(),
            fatal,
        });
        agent.watch_lacks(lacks_woken);
        let address = agent.transport.listen(&listen, agent.clone())?;
        if let Some(identity) = identity {
            agent.refuse_twins(&identity)?;
            agent.refuse_elsewhere(&identity)?;
            agent.start_member(identity)?;
        }
        agent.watch_certificate();
        history::keep(&agent);
        Ok(Started { agent, address, fatal: fatal_receiver })
    }

    fn start_member(&self, identity: Identity) -> Result<Arc<Member>, AgentError> {
        let member = Arc::new(Member::start(
            identity,
            &self.options,
            Ways { transport: self.transport.clone(), keys: self.trust.clone(), engine: self.engine.clone() },
            &self.engine_inputs,
            &self.metrics,
            &self.fatal,
        )?);
        let (metrics, own) = (self.metrics.clone(), member.identity.node);
        metrics.view(own, &member.log.view());
        member.log.subscribe(Box::new(move |view: &View| metrics.view(own, view)));
        if let Some(hooks) = &member.places.hooks {
            hooks.start(&self.options.state_dir, Arc::new(member.log.clone()));
        }
        *write(&self.member) = Some(member.clone());
        // Calls this now, too.
        let news = self.lacks_wake.clone();
        member.log.subscribe(Box::new(move |_: &View| {
            let _ = news.try_send(());
        }));
        removed::watch(&member, &self.options.state_dir, &self.fatal);
        Ok(member)
    }

    /// # Errors
    /// `not-a-member` before [`Agent::init`] or [`Agent::join`].
    pub fn member(&self) -> Result<Arc<Member>, Problem> {
        read(&self.member).clone().ok_or_else(|| {
            Problem::new(
                Code::NotAMember,
                "this node is not a member of a cluster",
                "Run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS` or `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on it.",
            )
        })
    }

    /// Lets the reconciler tell the supervisor that it works. A node that is no member has none.
    pub fn say_alive(&self) {
        match &*read(&self.member) {
            Some(member) => member.node.send(Input::Alive),
            None => supervisor::alive(),
        }
    }

    /// Waits until the view is as wanted; `false` after `patience`.
    pub fn wait_for(&self, member: &Member, patience: Duration, wanted: impl Fn(&View) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        while !wanted(&member.log.view()) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    #[must_use]
    pub fn cluster_view(self: &Arc<Self>, member: &Member) -> ClusterView {
        let view = member.log.confirmed_view(READ_PATIENCE);
        let live = self.ask_all(member, &view);
        self.cluster_view_of(member, &view, &live)
    }

    #[must_use]
    pub fn cluster_view_of(&self, member: &Member, view: &View, live: &Live) -> ClusterView {
        let connected = |node| self.transport.is_connected(node);
        let connections = Connections {
            this_node: member.identity.node,
            leader: view.leader,
            connected: &connected,
            age_ms: view.age_ms,
        };
        let mut cluster = views::cluster(&view.state, &connections, live);
        if let Some(time) = member.waits_for_state() {
            let identity = &member.identity;
            (cluster.id, cluster.name) = (identity.cluster, identity.cluster_name.clone());
            cluster.this_node.clone_from(&identity.name);
            cluster.joining_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        }
        cluster
    }

    /// The peer that this node asks to join, while it does.
    #[must_use]
    pub fn joins_by(&self) -> Option<String> {
        lock(&self.joins_by).clone()
    }

    /// Whether the log lane to `node` has a connection.
    #[must_use]
    pub fn is_connected(&self, node: NodeId) -> bool {
        self.transport.is_connected(node)
    }

    /// Milliseconds that this node's lease has left.
    #[must_use]
    pub fn lease_left_ms(&self) -> u64 {
        read(&self.member).as_ref().map_or(0, |member| member.lease.until().ms_since(boot_now()))
    }

    /// Asks every node that may run `spec` what it lacks for that, all at once. The answer leaves
    /// out nodes that are dead or do not answer.
    #[must_use]
    pub fn ask_lacks(
        self: &Arc<Self>,
        member: &Member,
        view: &View,
        nodes: &[NodeId],
        spec: &ServiceSpec,
    ) -> BTreeMap<NodeId, Vec<Lack>> {
        let (sender, answers) = sync_channel(nodes.len());
        let asked = nodes.iter().filter_map(|node| view.state.nodes.get(node));
        for node in asked.filter(|node| node.status == NodeStatus::Alive) {
            let question = Call::Lacks(Box::new(spec.clone()));
            let (sender, transport, own) = (sender.clone(), member.transport.clone(), self.clone());
            let (id, address, is_own) = (node.id, node.agent_addr.clone(), node.id == member.identity.node);
            // Users may be looked up over a network, so not even this node answers at once.
            spawn("agent-ask", move || {
                let reply = if is_own {
                    Some(own.answer(question))
                } else {
                    transport.call(&address, Expect::Node(id), &question, ASK_TIMEOUT).ok()
                };
                drop(sender.send((id, reply)));
            });
        }
        drop(sender);
        let deadline = Instant::now() + ASK_TIMEOUT;
        let mut found = BTreeMap::new();
        while let Ok((node, reply)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Some(CallReply::Lacks(lacks)) = reply {
                found.insert(node, lacks);
            }
        }
        found
    }

    /// Needs of the services that may run here which this node does not meet, as they were found
    /// last. Nothing is looked up here: users may be looked up over a network, and that may hang.
    fn lacks(&self) -> BTreeMap<String, Vec<Lack>> {
        let Ok(member) = self.member() else { return BTreeMap::new() };
        let deadline = Instant::now() + LACKS_PATIENCE;
        loop {
            let revision = member.log.view().state.revision;
            let is_late = Instant::now() >= deadline;
            if let Some(known) = lock(&self.known_lacks).as_ref()
                && (known.revision == revision || is_late)
            {
                return with_age(known.lacks.clone(), known.at.elapsed());
            }
            if is_late {
                return BTreeMap::new();
            }
            std::thread::sleep(LACKS_PAUSE);
        }
    }

    /// Looks for what services lack, on a thread, as long as the agent is in use: after every
    /// change of the state, and every [`LACKS_EVERY`].
    fn watch_lacks(self: &Arc<Self>, woken: Receiver<()>) {
        let this = Arc::downgrade(self);
        spawn("agent-lacks", move || {
            while let Some(agent) = this.upgrade() {
                agent.look_for_lacks();
                drop(agent);
                let _ = woken.recv_timeout(LACKS_EVERY);
            }
        });
    }

    fn look_for_lacks(&self) {
        let Ok(member) = self.member() else { return };
        let view = member.log.view();
        let revision = view.state.revision;
        let is_current = |known: &KnownLacks| known.revision == revision && known.at.elapsed() < LACKS_EVERY;
        if lock(&self.known_lacks).as_ref().is_some_and(is_current) {
            return;
        }
        let (at, own) = (Instant::now(), member.identity.node);
        let here = view.state.services.iter().filter(|(_, service)| {
            let resource = view.state.resource_of(service);
            !service.deleting && resource.is_some_and(|resource| resource.spec.replicas.contains(&own))
        });
        let found = here.map(|(name, service)| (name.clone(), lacks(&service.spec)));
        let lacks: BTreeMap<_, _> = found.filter(|(_, lacks)| !lacks.is_empty()).collect();
        *lock(&self.known_lacks) = Some(KnownLacks { at, revision, lacks });
    }

    /// Where the pool, the log and what else must survive a restart are.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.options.state_dir
    }

    /// Asks one node; itself without the network, and no longer than another.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask(
        self: &Arc<Self>,
        member: &Member,
        node: NodeId,
        question: Call,
        timeout: Duration,
    ) -> Result<CallReply, Problem> {
        if node == member.identity.node {
            let (answer, answers) = sync_channel(1);
            let own = self.clone();
            spawn("agent-ask", move || drop(answer.send(own.answer(question))));
            return answers.recv_timeout(timeout).map_err(|_| {
                Problem::new(Code::Unreachable, format!("this node does not answer within {} s", timeout.as_secs()), "Its disk may hang: look at `mainstay status` and at the kernel's messages with `dmesg`, and try again.")
            });
        }
        let address = member.log.view().state.nodes.get(&node).map(|node| node.agent_addr.clone());
        let Some(address) = address else {
            return Err(Problem::new(
                Code::UnknownNode,
                format!("there is no node {node}"),
                "See `mainstay node list`.",
            ));
        };
        member
            .transport
            .call(&address, Expect::Node(node), &question, timeout)
            .map_err(|error| AgentError::from(error).problem())
    }

    fn engine_question(&self, request: Request) -> CallReply {
        let passed_on = matches!(
            request,
            Request::Status
                | Request::Promise { .. }
                | Request::Scrub { .. }
                | Request::StopScrub { .. }
                | Request::ScrubStatus { .. }
        );
        if !passed_on {
            return CallReply::Error(Problem::new(
                Code::NotAllowed,
                "this is not passed on to an engine",
                OTHER_RELEASE,
            ));
        }
        let timeout = if matches!(request, Request::Status) {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(600)
        };
        match self.engine.request(request, timeout) {
            Ok(reply) => CallReply::Engine(reply),
            Err(error) => CallReply::Error(error.into_problem()),
        }
    }

    /// Users of the devices of a resource that its engine serves without the kernel. If the engine
    /// does not answer, its last report counts.
    fn served_users(&self, resource: &str, moves: bool) -> Vec<DeviceUser> {
        let devices: Vec<DeviceStatus> = match self.engine.request(Request::Status, Duration::from_secs(1)) {
            Ok(Reply::Status(status)) => {
                let replicas = status.replicas.into_iter().filter(|known| known.name == resource);
                let clients = status.clients.into_iter().filter(|known| known.name == resource);
                replicas
                    .flat_map(|known| known.devices)
                    .chain(clients.flat_map(|known| known.devices))
                    .collect()
            }
            _ => {
                let own = |name: &str, devices: &[DeviceStatus]| {
                    if name == resource { devices.to_vec() } else { Vec::new() }
                };
                let replicas = self.engine.replicas(|known| own(&known.name, &known.devices));
                let clients = self.engine.clients(|known| own(&known.name, &known.devices));
                replicas.into_values().chain(clients.into_values()).flatten().collect()
            }
        };
        devices.into_iter().flat_map(|device| device.users).filter(|user| !moves || !user.follows).collect()
    }

    /// Ends the threads that decide, as a crash of the process would. Services and the engine go
    /// on.
    pub fn stop(&self) {
        if let Some(member) = read(&self.member).as_ref() {
            member.stop();
        }
    }
}

impl Inbound for Agent {
    fn twin(&self, node: NodeId, holder: &str, other: &str) {
        let Ok(member) = self.member() else { return };
        if !lock(&self.twins).note(node, (holder, other), Instant::now(), self.transport.silence()) {
            return;
        }
        let state = member.log.view().state;
        let recorded = state.nodes.get(&node).map(|node| node.agent_addr.as_str());
        let text = twin_words(recorded, holder, other);
        tracing::error!(%node, holder, other, "two machines have one identity");
        let subject = format!("node {}", state.node_name(node));
        member.log.submit(Command::Note { severity: Severity::Critical, subject, text });
    }

    fn twin_in_place(&self, node: NodeId, address: &str) {
        let Ok(member) = self.member() else { return };
        if !lock(&self.twins).note_in_place(node, Instant::now(), self.transport.silence()) {
            return;
        }
        tracing::error!(%node, address, "two machines have one identity and one address");
        let subject = format!("node {}", member.log.view().state.node_name(node));
        let text = twins_in_place_words(address);
        member.log.submit(Command::Note { severity: Severity::Critical, subject, text });
    }

    fn gone(&self, cluster: u64, node: NodeId) -> Option<Problem> {
        let member = self.member().ok()?;
        removed::of(&member.log.view(), cluster, node)
    }

    fn too_old(&self, node: NodeId, level: u32) -> Option<Problem> {
        let state = self.member().ok()?.log.view().state;
        (level < state.level).then(|| build_too_old(&state.node_name(node), level, state.level))
    }

    fn raft(&self, _from: NodeId, message: Vec<u8>) {
        if let Some(member) = read(&self.member).as_ref() {
            member.log.message(&message);
        }
    }

    fn lease(&self, from: NodeId, message: LeaseMessage) {
        if let Some(member) = read(&self.member).as_ref() {
            member.lease.message(from, message);
        }
    }

    fn propose(&self, _from: NodeId, proposal: Proposal) {
        if let Some(member) = read(&self.member).as_ref() {
            member.log.forwarded(proposal);
        }
    }

    fn call(&self, peer: &Peer, question: Call) -> CallReply {
        match (question, peer) {
            (Call::Join(request), Peer::Newcomer { key }) => {
                self.admit(request, key).map_or_else(CallReply::Error, CallReply::Joined)
            }
            (Call::Renew, Peer::Member { subject, key } | Peer::Expired { subject, key, .. }) => {
                self.renew_for(*subject, key).map_or_else(CallReply::Error, CallReply::Renewed)
            }
            (Call::Seal { authority }, Peer::Member { subject, key }) => {
                self.give_seal(*subject, key, authority).map_or_else(CallReply::Error, CallReply::Seal)
            }
            (question, _) => self.answer(question),
        }
    }
}

impl Agent {
    /// Answers a question for which it does not matter who asks.
    fn answer(&self, question: Call) -> CallReply {
        match question {
            Call::Join(_) | Call::Renew | Call::Seal { .. } => CallReply::Error(Problem::new(
                Code::NotAllowed,
                "this is no question of such a node",
                "A member of a cluster does not join one.",
            )),
            Call::WhoJoins => match *lock(&self.nonce) {
                Some(nonce) => CallReply::Joins { nonce },
                None => CallReply::Error(Problem::new(
                    Code::JoinsNothing,
                    "this node is not about to become a member",
                    "Run `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on it again.",
                )),
            },
            Call::Withdraw { nonce } => {
                self.forget_newcomer(nonce).map_or_else(CallReply::Error, |()| CallReply::Withdrawn)
            }
            Call::Waits => {
                let waits = |member: Arc<Member>| Waits {
                    renewal: lock(&self.renewal).clone(),
                    ..watch::waits(&member.log, &self.engine, &member.places.hindrances, &member.reach)
                };
                CallReply::Waits(self.member().map(waits).unwrap_or_default())
            }
            Call::Large => CallReply::Large { filler: "x".repeat(LARGE) },
            // The transport answers this question, because it knows which process asks.
            Call::AmI => CallReply::Other { address: None, recorded: None },
            Call::Who => match self.transport.own_node() {
                Some(node) => CallReply::Is { node },
                None => CallReply::other_cluster(),
            },
            Call::Engine(request) => self.engine_question(request),
            Call::Users { resource, service, moves } => match self.member() {
                Ok(member) => match users_of(
                    &member.places,
                    &resource,
                    service.as_ref(),
                    &self.served_users(&resource, moves),
                ) {
                    Ok(users) => CallReply::Users { users },
                    Err(error) => CallReply::Error(Problem::new(
                        Code::UsersUnknown,
                        error.to_string(),
                        "Look at the agent's log on that node, and try again.",
                    )),
                },
                Err(error) => CallReply::Error(error),
            },
            Call::Disregard { service } => match self.member() {
                Ok(member) => {
                    member.places.disregarded.set(&service);
                    CallReply::Disregarded
                }
                Err(error) => CallReply::Error(error),
            },
            Call::Place { spec, others } => match self.member() {
                Ok(member) => CallReply::Place { unfit: place::unfit(&spec, &member.places, &others) },
                Err(error) => CallReply::Error(error),
            },
            Call::Log { service, process, wanted } => self.log_of(&service, &process, wanted),
            Call::Lacks(spec) => CallReply::Lacks(lacks_before(&spec)),
            Call::Load(question) => history::answer(self, &question),
            Call::Baseline(order) => history::answer_baseline(self, order),
            Call::Pool => {
                let replicas = self.member().map(|member| member.replicas.clone()).ok();
                let failures = replicas.as_ref().map(|replicas| replicas.failures()).unwrap_or_default();
                let mut notices = replicas.map(|replicas| replicas.notices()).unwrap_or_default();
                notices.extend(held::unreadable(&self.options.state_dir));
                notices.extend(self.replaced_programs());
                let lacks = self.lacks();
                let pool = mainstay_pool::of_node(&self.options.state_dir);
                match pool.make().and_then(|()| pool.space()) {
                    Ok(space) => {
                        let free_bytes = space.for_replicas();
                        CallReply::Pool { free_bytes, failures, lacks, left: BTreeMap::new(), notices }
                    }
                    Err(error) => CallReply::Error(Problem::new(
                        Code::PoolFiles,
                        error.to_string(),
                        "Look at the file system of the state directory on that node.",
                    )),
                }
            }
        }
    }

    /// The agent and the engine of this node.
    #[must_use]
    pub fn programs(&self) -> ProgramsView {
        let engine = self.engine.pid().and_then(programs::of);
        ProgramsView { agent: programs::of(std::process::id()), engine }
    }

    fn replaced_programs(&self) -> Vec<(String, Notice)> {
        let node = self.member().map(|member| member.identity.name.clone()).unwrap_or_default();
        let ProgramsView { agent, engine } = self.programs();
        programs::notices([("agent", agent), ("engine", engine)], &node)
    }

    /// Reads the output of a process on this node. The names become parts of a path.
    fn log_of(&self, service: &str, process: &str, wanted: logs::Wanted) -> CallReply {
        if ![service, process].into_iter().all(valid_name) {
            return CallReply::Error(Problem::new(
                Code::UnknownProcess,
                "no process of a service has such a name",
                "See `mainstay service list`.",
            ));
        }
        let read = |member: Arc<Member>| {
            let (dirs, view) = (member.places.dirs(service), member.log.view());
            let processes = view.state.services.get(service).map(|known| known.spec.processes.iter());
            let unit = processes.into_iter().flatten().find(|known| known.name == process);
            match unit.and_then(|known| known.unit.as_ref()) {
                Some(unit) => logs::read_unit(&dirs, process, unit, wanted),
                None => logs::read(&dirs, process, wanted),
            }
        };
        match self.member().map(read) {
            Ok(Ok(piece)) => CallReply::Log(piece),
            Ok(Err(error)) => CallReply::Error(Problem::new(
                Code::Io,
                format!("the log of process {process} cannot be read: {error}"),
                format!("Look at services/{service} in the state directory on that node."),
            )),
            Err(error) => CallReply::Error(error),
        }
    }
}

/// Notices of a node. An earlier release tells only which directories are not used, and why.
fn with_notices(
    left: BTreeMap<String, String>,
    mut notices: BTreeMap<String, Notice>,
) -> BTreeMap<String, Notice> {
    for (path, why) in left {
        let notice = Notice { what: format!("is not used: {why}"), remedy: MOVE_OUT.into() };
        notices.entry(path).or_insert(notice);
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_that_was_found_long_ago_says_so() {
        let lack = Lack {
            field: "process[0].user".into(),
            problem: "there is no user m".into(),
            remedy: String::new(),
        };
        let lacks = BTreeMap::from([("db".to_owned(), vec![lack])]);
        assert_eq!(with_age(lacks.clone(), Duration::from_secs(5)), lacks);
        let old = with_age(lacks, Duration::from_secs(40));
        assert_eq!(old["db"][0].problem, "there is no user m, as of 40 s ago");
    }
}
