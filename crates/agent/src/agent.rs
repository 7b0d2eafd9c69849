//! The agent as a whole: it serves the API from the start, and becomes a member when told to.

use crate::AgentOptions;
use crate::clock::{boot_now, wall_ms};
use crate::engine_link::EngineLink;
use crate::error::{AgentError, body, from_engine, settle};
use crate::identity::{Identity, write_durable};
use crate::member::{EngineInputs, Member, fatal_channel, log_path, suspects_path};
use crate::messages::{Call, CallReply, JoinRequest, JoinTicket, LeaseMessage, Proposal, random_u64};
use crate::metrics::Metrics;
use crate::pool;
use crate::raft::store::RaftStore;
use crate::raft::{ConsensusLog, Machine, View};
use crate::service::lacks::{Lack, lacks};
use crate::service::place;
use crate::service::runner::users_of;
use crate::threads::{lock, read, spawn, write};
use crate::transport::{AGENT_PORT, Inbound, Transport, TransportError, call, local_address, with_port};
use crate::views::{self, Connections, Live};
use mainstay_api::engine::{Reply, Request};
use mainstay_api::rest::{ClusterInit, ClusterJoin, ClusterView, ErrorBody};
use mainstay_control::State;
use mainstay_control::state::{Command, Entry, NodeStatus, Outcome, Refusal, Settings};
use mainstay_ha::ServiceSpec;
use mainstay_types::NodeId;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// Port of engines when none is named.
const ENGINE_PORT: u16 = 7401;
/// How long a change waits for its majority.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a question about the state waits for a majority to confirm it.
pub const READ_PATIENCE: Duration = Duration::from_secs(1);
/// How long a joiner waits until it is a voter.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How old an answer may be about what services lack.
const LACKS_AGE_MAX: Duration = Duration::from_secs(5);
/// How long another node may take to answer a question about itself.
const ASK_TIMEOUT: Duration = Duration::from_millis(1500);

pub struct Agent {
    pub options: AgentOptions,
    /// Where it listens for other agents, as it was told.
    listens: String,
    pub engine: EngineLink,
    pub metrics: Arc<Metrics>,
    engine_inputs: EngineInputs,
    transport: Transport,
    member: RwLock<Option<Arc<Member>>>,
    /// What services lack here, as it was found last.
    known_lacks: Mutex<Option<KnownLacks>>,
    /// Becoming a member happens once.
    joining: Mutex<()>,
    fatal: SyncSender<String>,
}

/// What services lack on this node, by name.
struct KnownLacks {
    at: Instant,
    /// Of the state that it is about.
    revision: u64,
    lacks: BTreeMap<String, Vec<Lack>>,
}

/// A started agent.
pub struct Started {
    pub agent: Arc<Agent>,
    /// Where other agents are served.
    pub address: SocketAddr,
    /// Says why the agent has to end.
    pub fatal: Receiver<String>,
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
        (options.keep_devices)(&options.run_dir)
            .map_err(|source| AgentError::File { path: options.run_dir.clone(), source })?;
        let engine_inputs = EngineInputs::default();
        let inputs = engine_inputs.clone();
        let engine = EngineLink::start(&options.run_dir.join("engine.sock"), move |input| inputs.pass(input));
        let (fatal, fatal_receiver) = fatal_channel();
        let listen = options.listen.clone().unwrap_or_else(|| format!("0.0.0.0:{AGENT_PORT}"));
        let agent = Arc::new(Self {
            options,
            listens: listen.clone(),
            engine,
            metrics: Arc::default(),
            engine_inputs,
            transport: Transport::new(),
            member: RwLock::new(None),
            known_lacks: Mutex::new(None),
            joining: Mutex::new(()),
            fatal,
        });
        let identity = Identity::load(&agent.options.state_dir)
            .map_err(|source| AgentError::File { path: agent.options.state_dir.clone(), source })?;
        if let Some(identity) = identity {
            agent.start_member(identity)?;
        }
        let address = agent.transport.listen(&listen, agent.clone())?;
        Ok(Started { agent, address, fatal: fatal_receiver })
    }

    fn start_member(&self, identity: Identity) -> Result<Arc<Member>, AgentError> {
        let member = Arc::new(Member::start(
            identity,
            &self.options,
            self.transport.clone(),
            self.engine.clone(),
            &self.engine_inputs,
            &self.metrics,
            &self.fatal,
        )?);
        let (metrics, own) = (self.metrics.clone(), member.identity.node);
        metrics.view(own, &member.log.view());
        member.log.subscribe(Box::new(move |view: &View| metrics.view(own, view)));
        *write(&self.member) = Some(member.clone());
        Ok(member)
    }

    /// # Errors
    /// `not-a-member` before [`Agent::init`] or [`Agent::join`].
    pub fn member(&self) -> Result<Arc<Member>, ErrorBody> {
        read(&self.member).clone().ok_or_else(|| {
            body(
                "not-a-member",
                "this node is not a member of a cluster",
                "Run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS` or `mainstay cluster join --peer ADDRESS --as NODE` on it.",
            )
        })
    }

    /// Makes this node the first member of a new cluster.
    ///
    /// # Errors
    /// When it is a member already, a name or setting is refused, or the disk fails.
    pub fn init(&self, request: &ClusterInit) -> Result<ClusterView, ErrorBody> {
        let _once = self.joining.lock();
        self.refuse_members()?;
        let mut settings = Settings::default();
        if let Some(lease_ms) = request.lease_ms {
            settings.lease_ms = lease_ms;
            settings.margin_ms = settings.margin_ms.max(lease_ms.div_ceil(40));
            settings.heartbeat_ms = settings.heartbeat_ms.min(lease_ms / 5);
        }
        settings.heartbeat_ms = request.heartbeat_ms.unwrap_or(settings.heartbeat_ms);
        let cluster = random_u64();
        let (agent_addr, engine_addr) = addresses(&request.address, request.engine_address.as_deref());
        let mut state = State::default();
        let mut node = NodeId(0);
        for command in [
            Command::InitCluster { id: cluster, name: request.name.clone(), settings },
            Command::AddNode {
                name: request.node.clone(),
                agent_addr,
                engine_addr,
                voter: true,
                witness: false,
                nonce: random_u64(),
            },
        ] {
            match state.apply(Entry { at_ms: wall_ms(), command }) {
                Outcome::Refused(Refusal { code, message, remedy }) => {
                    return Err(ErrorBody { code, message, remedy });
                }
                Outcome::NodeAdded { node: added, .. } => node = added,
                _ => {}
            }
        }
        let identity = Identity {
            cluster,
            cluster_name: request.name.clone(),
            node,
            name: request.node.clone(),
            first_members: BTreeMap::new(),
        };
        self.clear_leftovers().map_err(|error| error.body())?;
        // The log before the identity: with the identity the node is a member, and has to have its log.
        let write = || -> Result<(), AgentError> {
            let mut store = RaftStore::open(&log_path(&self.options.state_dir))?;
            store.bootstrap(u64::from(node.0), Machine::new(state).encode()?)?;
            drop(store);
            self.save_identity(&identity)
        };
        write().map_err(|error| error.body())?;
        let member = self.start_member(identity).map_err(|error| error.body())?;
        self.wait_for(&member, Duration::from_secs(10), |view| view.leader.is_some());
        Ok(self.cluster_view(&member))
    }

    /// Where other agents reach this one, as far as it can tell: where it listens, or, if it listens everywhere, where `peer` sees it.
    fn own_address(&self, peer: &str) -> Result<String, TransportError> {
        let listens = self.listens.parse::<SocketAddr>().ok();
        if let Some(address) = listens.filter(|address| !address.ip().is_unspecified()) {
            return Ok(address.to_string());
        }
        let port = listens.map_or(AGENT_PORT, |address| address.port());
        Ok(SocketAddr::new(local_address(peer)?, port).to_string())
    }

    /// Makes this node a member of the cluster that `request.peer` belongs to.
    ///
    /// # Errors
    /// When it is a member already, the peer does not answer or refuses, or the disk fails.
    pub fn join(&self, request: &ClusterJoin) -> Result<ClusterView, ErrorBody> {
        let _once = self.joining.lock();
        self.refuse_members()?;
        let address = match &request.address {
            Some(address) => address.clone(),
            None => self.own_address(&request.peer).map_err(|error| AgentError::from(error).body())?,
        };
        let (agent_address, engine_address) = addresses(&address, request.engine_address.as_deref());
        let nonce = self.join_nonce().map_err(|error| error.body())?;
        let question = Call::Join(JoinRequest {
            node: request.node.clone(),
            agent_address,
            engine_address,
            witness: request.witness,
            nonce,
        });
        let deadline = Instant::now() + JOIN_TIMEOUT;
        let ticket = loop {
            let reply = call(&request.peer, None, &question, PROPOSE_TIMEOUT + ASK_TIMEOUT)
                .map_err(|error| AgentError::from(error).body())?;
            match reply {
                CallReply::Joined(ticket) => break ticket,
                CallReply::Error(error)
                    if error.code == "membership-settling" && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(100));
                }
                CallReply::Error(error) => return Err(error),
                _ => return Err(body("peer-answer", "the peer gave an answer to another question", "")),
            }
        };
        let JoinTicket { cluster, cluster_name, node, members } = ticket;
        let identity =
            Identity { cluster, cluster_name, node, name: request.node.clone(), first_members: members };
        self.clear_leftovers().and_then(|()| self.save_identity(&identity)).map_err(|error| error.body())?;
        let member = self.start_member(identity).map_err(|error| error.body())?;
        let joined = self.wait_for(&member, JOIN_TIMEOUT, |view| {
            view.state.nodes.contains_key(&node) && view.voters.contains(&node)
        });
        if !joined {
            return Err(body(
                "join-unfinished",
                "this node is a member now, but has not received the cluster's log yet",
                "Check that the members can reach this node's address; joining goes on by itself.",
            ));
        }
        Ok(self.cluster_view(&member))
    }

    fn refuse_members(&self) -> Result<(), ErrorBody> {
        match read(&self.member).as_ref() {
            None => Ok(()),
            Some(member) => Err(body(
                "already-a-member",
                format!(
                    "this node is {} of the cluster {}",
                    member.identity.name, member.identity.cluster_name
                ),
                "A node belongs to one cluster. Use a new state directory for another.",
            )),
        }
    }

    /// What an attempt to become a member left, that ended before there was an identity.
    fn clear_leftovers(&self) -> Result<(), AgentError> {
        for path in [log_path(&self.options.state_dir), suspects_path(&self.options.state_dir)] {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(AgentError::File { path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn save_identity(&self, identity: &Identity) -> Result<(), AgentError> {
        let path = self.options.state_dir.clone();
        identity.save(&path).map_err(|source| AgentError::File { path, source })
    }

    /// The same number for every attempt of this node to join, so that a repeated request adds one node.
    fn join_nonce(&self) -> Result<u64, AgentError> {
        let path = self.options.state_dir.join("join-nonce");
        if let Some(nonce) = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()) {
            return Ok(nonce);
        }
        let nonce = random_u64();
        write_durable(&path, nonce.to_string().as_bytes())
            .map_err(|source| AgentError::File { path, source })?;
        Ok(nonce)
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
    pub fn cluster_view(&self, member: &Member) -> ClusterView {
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
        views::cluster(&view.state, &connections, live)
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

    /// Asks every living node about its engine and its pool, all at once.
    #[must_use]
    pub fn ask_all(&self, member: &Member, view: &View) -> Live {
        let (sender, answers) = sync_channel(256);
        let mut asked = 0;
        let holders = view.state.nodes.values().filter(|node| !node.witness);
        for node in holders.filter(|node| node.status == NodeStatus::Alive) {
            for question in [Call::Engine(Request::Status), Call::Pool] {
                asked += 1;
                let (sender, identity) = (sender.clone(), member.transport.identity());
                let (id, address) = (node.id, node.agent_addr.clone());
                if id == member.identity.node {
                    drop(sender.send((id, Some(self.call(question)))));
                } else {
                    spawn("agent-ask", move || {
                        let reply = call(&address, identity, &question, ASK_TIMEOUT).ok();
                        drop(sender.send((id, reply)));
                    });
                }
            }
        }
        drop(sender);
        let mut live = Live::default();
        let deadline = Instant::now() + ASK_TIMEOUT;
        for _ in 0..asked {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((node, Some(CallReply::Engine(Reply::Status(status))))) => {
                    live.engines.insert(node, status);
                }
                Ok((node, Some(CallReply::Pool { free_bytes, failures, lacks }))) => {
                    live.pools.insert(node, free_bytes);
                    live.failures.insert(node, failures);
                    live.lacks.insert(node, lacks);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        live
    }

    /// Asks every node that may run `spec` what it lacks for that, all at once. A node that is dead or does not answer is not in the
    /// answer.
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
            let (sender, identity, own) = (sender.clone(), member.transport.identity(), self.clone());
            let (id, address, is_own) = (node.id, node.agent_addr.clone(), node.id == member.identity.node);
            // Users may be looked up over a network, so not even this node answers at once.
            spawn("agent-ask", move || {
                let reply = if is_own {
                    Some(own.call(question))
                } else {
                    call(&address, identity, &question, ASK_TIMEOUT).ok()
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

    /// What services that may run here need and this node lacks. As it was a moment ago: every status asks.
    fn lacks(&self) -> BTreeMap<String, Vec<Lack>> {
        let Ok(member) = self.member() else { return BTreeMap::new() };
        let view = member.log.view();
        let mut known = lock(&self.known_lacks);
        if let Some(known) = known.as_ref()
            && known.revision == view.state.revision
            && known.at.elapsed() < LACKS_AGE_MAX
        {
            return known.lacks.clone();
        }
        let own = member.identity.node;
        let here = view.state.services.iter().filter(|(_, service)| {
            let resource = view.state.resource_of(service);
            !service.deleting && resource.is_some_and(|resource| resource.spec.replicas.contains(&own))
        });
        let found = here.map(|(name, service)| (name.clone(), lacks(&service.spec)));
        let found: BTreeMap<_, _> = found.filter(|(_, lacks)| !lacks.is_empty()).collect();
        let revision = view.state.revision;
        *known = Some(KnownLacks { at: Instant::now(), revision, lacks: found.clone() });
        found
    }

    /// Where the pool, the log and what else must survive a restart are.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.options.state_dir
    }

    /// Asks one node; itself without the network.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask(
        &self,
        member: &Member,
        node: NodeId,
        question: Call,
        timeout: Duration,
    ) -> Result<CallReply, ErrorBody> {
        if node == member.identity.node {
            return Ok(self.call(question));
        }
        let address = member.log.view().state.nodes.get(&node).map(|node| node.agent_addr.clone());
        let Some(address) = address else {
            return Err(body("unknown-node", format!("there is no node {node}"), ""));
        };
        call(&address, member.transport.identity(), &question, timeout)
            .map_err(|error| AgentError::from(error).body())
    }

    fn admit(&self, request: JoinRequest) -> Result<JoinTicket, ErrorBody> {
        let member = self.member()?;
        let JoinRequest { node, agent_address, engine_address, witness, nonce } = request;
        let command = Command::AddNode {
            name: node,
            agent_addr: agent_address,
            engine_addr: engine_address,
            voter: true,
            witness,
            nonce,
        };
        match settle(member.log.propose(command, PROPOSE_TIMEOUT))? {
            Outcome::NodeAdded { node, .. } => Ok(JoinTicket {
                cluster: member.identity.cluster,
                cluster_name: member.identity.cluster_name.clone(),
                node,
                members: member
                    .log
                    .view()
                    .state
                    .nodes
                    .values()
                    .filter(|known| known.id != node)
                    .map(|known| (known.id, known.agent_addr.clone()))
                    .collect(),
            }),
            other => Err(body("peer-answer", format!("the cluster answered {other:?}"), "")),
        }
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
            return CallReply::Error(body("not-allowed", "this is not passed on to an engine", ""));
        }
        let timeout = if matches!(request, Request::Status) {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(600)
        };
        match self.engine.request(request, timeout) {
            Ok(reply) => CallReply::Engine(reply),
            Err(error) => CallReply::Error(from_engine(error.into_engine_error())),
        }
    }

    /// Ends the threads that decide, as a crash of the process would. Services and the engine go on.
    pub fn stop(&self) {
        if let Some(member) = read(&self.member).as_ref() {
            member.stop();
        }
    }
}

impl Inbound for Agent {
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

    fn call(&self, question: Call) -> CallReply {
        match question {
            Call::Join(request) => self.admit(request).map_or_else(CallReply::Error, CallReply::Joined),
            Call::Engine(request) => self.engine_question(request),
            Call::Users { resource, service } => match self.member() {
                Ok(member) => {
                    CallReply::Users { users: users_of(&member.places, &resource, service.as_ref()) }
                }
                Err(error) => CallReply::Error(error),
            },
            Call::Place { spec, others } => match self.member() {
                Ok(member) => CallReply::Place { unfit: place::unfit(&spec, &member.places, &others) },
                Err(error) => CallReply::Error(error),
            },
            Call::Lacks(spec) => CallReply::Lacks(lacks(&spec)),
            Call::Pool => {
                let failures = self.member().map(|member| member.replicas.failures()).unwrap_or_default();
                let lacks = self.lacks();
                match pool::free_bytes(&self.options.state_dir) {
                    Ok(free_bytes) => CallReply::Pool { free_bytes, failures, lacks },
                    Err(error) => CallReply::Error(body("pool-files", error.to_string(), "")),
                }
            }
        }
    }
}

/// The agent's and the engine's address, with ports.
fn addresses(address: &str, engine: Option<&str>) -> (String, String) {
    let agent = with_port(address, AGENT_PORT);
    let engine = match engine {
        Some(engine) => with_port(engine, ENGINE_PORT),
        None => {
            let host = agent.rsplit_once(':').map_or(agent.as_str(), |(host, _)| host);
            format!("{host}:{ENGINE_PORT}")
        }
    };
    (agent, engine)
}
