//! How this node becomes a member of a cluster, and lets others become one (R29).
//!
//! Guarantees
//! - A node joins by a token. It sends nothing to a peer that does not prove, by the authority that
//!   the token names, that it belongs to the cluster.
//! - A node is let in only after a member has found it at each address that it states. It votes
//!   only after it has received the state of the cluster there.
//! - An attempt that fails leaves neither files here nor a member there, and can be repeated.

use super::address_proof::{Looked, Proof, prove};
use super::certificates::{Founded, first_number, found, problem_of, proofs_of};
use super::{ASK_TIMEOUT, Agent, PROPOSE_TIMEOUT};
use crate::clock::wall_ms;
use crate::error::{AgentError, OTHER_RELEASE, settle};
use crate::identity::{Identity, LogMark, write_durable};
use crate::level;
use crate::member::{Member, has_joined, log_path, suspects_path};
use crate::messages::{Call, CallReply, JoinRequest, JoinTicket, Secret, random_u64};
use crate::raft::store::RaftStore;
use crate::raft::{ConsensusLog, Machine, View};
use crate::threads::{lock, read, write};
use crate::transport::{Listening, Proofs, TransportError, local_address};
use crate::trust::Membership;
use mainstay_api::engine::{Reply, Request};
use mainstay_api::rest::{ClusterInit, ClusterJoin, ClusterView};
use mainstay_control::State;
use mainstay_control::identities::Admission;
use mainstay_control::members::{AGENT_PORT, Addresses, Newcomer, canonical};
use mainstay_control::state::{Command, Entry, Outcome, Settings};
use mainstay_trust::peer::authority_in;
use mainstay_trust::{CertificateDer, Expect, Peer, PublicKey, SealKey, Token, Trust, Zeroizing};
use mainstay_types::Problem;
use mainstay_types::{Code, HexBytes, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long becoming a member may take from the command to its end.
const JOIN_WITHIN: Duration = Duration::from_secs(57);
/// Part of that within which a member has to take the request, so that the node can still receive
/// the state afterwards.
const ASK_WITHIN: Duration = Duration::from_secs(35);
/// Part of that which is kept for taking the request back.
const WITHDRAW_WITHIN: Duration = Duration::from_millis(11_500);
/// An attempt that had to wait longer than this for another one does not begin.
const TURN_WITHIN: Duration = Duration::from_secs(5);
const _: () = assert!(
    WITHDRAW_WITHIN.as_millis() == PROPOSE_TIMEOUT.as_millis() + ASK_TIMEOUT.as_millis()
        && ASK_WITHIN.as_millis() + WITHDRAW_WITHIN.as_millis() < JOIN_WITHIN.as_millis()
);
/// Requests to join that were taken back and are remembered.
const WITHDRAWN_MAX: usize = 256;
/// How long a member may take to see that a joiner is where it says.
const PROOF_TIMEOUT: Duration = Duration::from_secs(12);
/// Remedy when a node is told to become a member while it joins a cluster.
const JOINING_REMEDY: &str =
    "Wait for the end of that join, which `mainstay status` shows, or run the same command to join again.";
/// Remedy when a joining node is not found at an address that it states.
const JOINER_REMEDY: &str =
    "Give addresses of the joining node that the members can reach, and open their ports.";
/// Remedy when the first node of a cluster is not found at its address.
const FIRST_REMEDY: &str = "Give an address that an interface of this node has, with the port on which its agent listens; `ip address` lists the \
     addresses.";
/// Named file of the number by which a repeated request to join is known.
const JOIN_NONCE: &str = "join-nonce";

impl Agent {
    /// Makes this node the first member of a new cluster.
    ///
    /// # Errors
    /// When it is a member already, a name, an address or a setting is refused, or the disk fails.
    /// Nothing is left then.
    pub fn init(self: &Arc<Self>, request: &ClusterInit) -> Result<ClusterView, Problem> {
        let asked_at = Instant::now();
        if let Some(peer) = self.joins_by() {
            let message = format!("this node is asking {peer} to join its cluster");
            return Err(Problem::new(Code::JoinBusy, message, JOINING_REMEDY));
        }
        let _once = self.joining.lock();
        if let Some(view) = self.has_made(request) {
            return Ok(view);
        }
        self.refuse_members()?;
        refuse_late(asked_at)?;
        let mut settings = Settings::default();
        if let Some(lease_ms) = request.lease_ms {
            settings.lease_ms = lease_ms;
            settings.margin_ms = settings.margin_ms.max(lease_ms.div_ceil(40));
            settings.heartbeat_ms = settings.heartbeat_ms.min(lease_ms / 5);
        }
        settings.heartbeat_ms = request.heartbeat_ms.unwrap_or(settings.heartbeat_ms);
        let (cluster, nonce) = (random_u64(), random_u64());
        let addresses = Addresses::read(&request.address, request.engine_address.as_deref())?;
        let mut state = State::default();
        let mut node = NodeId(0);
        for command in [
            Command::InitCluster { id: cluster, name: request.name.clone(), settings },
            Command::AddNode {
                name: request.node.clone(),
                agent_addr: addresses.agent.to_string(),
                engine_addr: addresses.engine.to_string(),
                voter: true,
                witness: false,
                nonce,
            },
        ] {
            match state.apply(Entry { at_ms: wall_ms(), command }) {
                Outcome::Refused(refused) => return Err(refused),
                Outcome::NodeAdded { node: added, .. } => node = added,
                _ => {}
            }
        }
        // Those of levels change nothing on a level of 0.
        let level = level::own();
        let levels = [Command::NodeLevel { node, level }, Command::RaiseLevel { level }];
        let key = lock(&self.trust).key.public();
        let Founded { authority, membership, given } =
            found(cluster, first_number(), node, &key).map_err(|error| problem_of(&error))?;
        for command in levels.into_iter().chain([Command::SetAuthority { authority }, given]) {
            if let Outcome::Refused(refused) = state.apply(Entry { at_ms: wall_ms(), command }) {
                return Err(refused);
            }
        }
        let proof = Proof::begin(self, nonce);
        drop(self.show_engine(addresses.engine)?);
        let looked = Looked { expect: Expect::Newcomer(key.fingerprint()), nonce };
        prove(&self.transport, addresses.agent, looked, ("the agent", FIRST_REMEDY))?;
        drop(proof);
        let identity = Identity {
            cluster,
            cluster_name: request.name.clone(),
            node,
            name: request.node.clone(),
            first_members: BTreeMap::new(),
            log: LogMark::Begun,
            era: 0,
            removed: None,
        };
        // The log before the identity: with the identity the node is a member, and has to have its
        // log.
        let write = || -> Result<Arc<Member>, AgentError> {
            self.clear_leftovers()?;
            let mut store = RaftStore::open(&log_path(&self.options.state_dir))?;
            store.bootstrap(u64::from(node.0), Machine::new(state).encode()?)?;
            drop(store);
            self.keep_membership(membership, cluster)?;
            self.save_identity(&identity)?;
            self.start_member(identity)
        };
        let member = write().map_err(|error| {
            self.forget_membership(true);
            error.problem()
        })?;
        self.wait_for(&member, Duration::from_secs(10), |view| view.leader.is_some());
        Ok(self.cluster_view(&member))
    }

    /// Where other agents reach this one, as far as it can tell: where it listens, or, if it
    /// listens everywhere, where `peer` sees it.
    fn own_address(&self, peer: &str) -> Result<String, TransportError> {
        let listens = self.listens.parse::<SocketAddr>().ok().map(canonical);
        if let Some(address) = listens.filter(|address| !address.ip().is_unspecified()) {
            return Ok(address.to_string());
        }
        let port = listens.map_or(AGENT_PORT, |address| address.port());
        Ok(SocketAddr::new(local_address(peer)?, port).to_string())
    }

    /// Makes this node a member of the cluster that `request.peer` belongs to.
    ///
    /// # Errors
    /// When it is a member already, the peer does not answer or refuses, one of the two does not
    /// reach the other, or the disk fails. Nothing is left then, unless the code says
    /// `join-unfinished`.
    pub fn join(self: &Arc<Self>, request: &ClusterJoin) -> Result<ClusterView, Problem> {
        let asked_at = Instant::now();
        let _once = self.joining.lock();
        let _joins = Joins::begin(self, &request.peer);
        if let Some(view) = self.has_joined(request) {
            return Ok(view);
        }
        let deadline = asked_at + JOIN_WITHIN;
        if let Some(member) = self.goes_on_joining(request) {
            while member.is_joining() {
                if Instant::now() >= deadline {
                    return Err(unfinished());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            return Ok(self.cluster_view(&member));
        }
        self.refuse_members()?;
        refuse_late(asked_at)?;
        let token = Token::read(&request.token).map_err(|bad| {
            let remedy =
                "Copy the whole token, or make a new one on a member: `mainstay cluster token create NODE`.";
            Problem::new(Code::BadToken, format!("this is no token: {bad}"), remedy)
        })?;
        let address = match &request.address {
            Some(address) => address.clone(),
            None => self.own_address(&request.peer).map_err(|error| AgentError::from(error).problem())?,
        };
        let addresses = Addresses::read(&address, request.engine_address.as_deref())?;
        let engine = if request.witness { None } else { Some(self.show_engine(addresses.engine)?) };
        let ask_until = asked_at + ASK_WITHIN;
        let peer = ClusterPeer { address: &request.peer, expect: Expect::Authority(token.authority()) };
        self.meet_cluster(peer)?;
        let ask = || -> Result<(JoinTicket, u64), Problem> {
            let (nonce, is_new) = self.join_nonce().map_err(|error| error.problem())?;
            let _proof = Proof::begin(self, nonce);
            let question = Call::Join(JoinRequest {
                node: request.node.clone(),
                agent_address: addresses.agent.to_string(),
                engine_address: addresses.engine.to_string(),
                witness: request.witness,
                nonce,
                replace: request.replace,
                level: level::own(),
                token: Secret(token.text()),
            });
            let error = match self.ask_to_join(peer, &question, ask_until) {
                Ok(ticket) => return Ok((ticket, nonce)),
                Err(error) => error,
            };
            // The answer may have got lost, and the request not: now, or in an earlier attempt. Its
            // number is then kept until it is known that nothing came of the request.
            let is_lost = error.code == Code::AgentTransport || error.code == Code::ResultUnknown;
            let nothing_came = if is_lost || !is_new {
                matches!(self.withdraw(peer, nonce), Withdrawal::Done)
            } else {
                true
            };
            self.forget_membership(nothing_came);
            Err(error)
        };
        let asked = match ask() {
            // The node took the request back in an earlier attempt; a new request has another
            // number.
            Err(error) if error.code == Code::JoinWithdrawn => {
                self.meet_cluster(peer)?;
                ask()
            }
            asked => asked,
        };
        drop(engine);
        let (ticket, nonce) = asked?;
        let JoinTicket { cluster, cluster_name, node, era, members, certified, seal } = ticket;
        let (name, first_members) = (request.node.clone(), members.clone());
        let log = LogMark::Awaited;
        let removed = None;
        let identity = Identity { cluster, cluster_name, node, name, first_members, log, era, removed };
        let begin = || -> Result<Arc<Member>, AgentError> {
            self.clear_leftovers()?;
            let seal = Zeroizing::new(seal.0);
            let seal = SealKey::read(&seal).map_err(|error| AgentError::Fatal(error.to_string()))?;
            let membership = Membership {
                certificate: CertificateDer::from(certified.certificate.0),
                until_ms: certified.until_ms,
                authorities: certified
                    .authorities
                    .into_iter()
                    .map(|der| CertificateDer::from(der.0))
                    .collect(),
                seal,
                number: 0,
                next: None,
            };
            self.keep_membership(membership, cluster)?;
            self.save_identity(&identity)?;
            self.start_member(identity.clone())
        };
        let member = begin().map_err(|error| {
            let withdrawn = self.withdraw(peer, nonce);
            self.forget_membership(matches!(withdrawn, Withdrawal::Done));
            error.problem()
        })?;
        let is_member = |view: &View| has_joined(view, node);
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        if self.wait_for(&member, left(deadline - WITHDRAW_WITHIN), is_member) {
            return Ok(self.cluster_view(&member));
        }
        match self.withdraw(peer, nonce) {
            Withdrawal::Done => {
                let unreachable = unreachable(&members);
                self.forget_membership(true);
                Err(Problem::new(
                    Code::JoinFailed,
                    format!(
                        "this node did not receive the state of the cluster in time, and is no member: {unreachable}"
                    ),
                    "Check the network between this node and all members in both directions, also with large packets, and join again.",
                ))
            }
            Withdrawal::Votes if self.wait_for(&member, left(deadline), is_member) => {
                Ok(self.cluster_view(&member))
            }
            Withdrawal::Votes | Withdrawal::Unknown => Err(unfinished()),
        }
    }

    /// This member, if an earlier agent of this node has begun to join by the same request and that
    /// is under way.
    fn goes_on_joining(&self, request: &ClusterJoin) -> Option<Arc<Member>> {
        let member = read(&self.member).clone()?;
        let identity = &member.identity;
        let is_known = member.log.view().state.nodes.contains_key(&identity.node);
        let is_at = |address: &String| self.is_at(&member, address, request.engine_address.as_deref());
        let at = !is_known || request.address.as_ref().is_none_or(is_at);
        if !member.is_joining() || identity.name != request.node || !at {
            return None;
        }
        // A peer that does not answer now may be a member.
        let answer = member.transport.call(&request.peer, Expect::Member, &Call::AmI, ASK_TIMEOUT);
        (!matches!(answer, Ok(CallReply::Error(_)))).then_some(member)
    }

    /// The cluster, if this node has made it by the same request.
    fn has_made(self: &Arc<Self>, request: &ClusterInit) -> Option<ClusterView> {
        let member = read(&self.member).clone()?;
        let identity = &member.identity;
        let same = identity.first_members.is_empty()
            && (&identity.cluster_name, &identity.name) == (&request.name, &request.node)
            && self.is_at(&member, &request.address, request.engine_address.as_deref());
        same.then(|| self.cluster_view(&member))
    }

    /// The cluster, if this node has joined it by the same request.
    fn has_joined(self: &Arc<Self>, request: &ClusterJoin) -> Option<ClusterView> {
        let member = read(&self.member).clone()?;
        let identity = &member.identity;
        let at = |address: &String| self.is_at(&member, address, request.engine_address.as_deref());
        let same = !identity.first_members.is_empty()
            && identity.name == request.node
            && request.address.as_ref().is_none_or(at);
        if !same {
            return None;
        }
        let answer = member.transport.call(&request.peer, Expect::Member, &Call::AmI, ASK_TIMEOUT).ok()?;
        let joined = member.log.view().state.nodes.get(&identity.node).is_some_and(|node| !node.candidate);
        (joined && matches!(answer, CallReply::Other { .. })).then(|| self.cluster_view(&member))
    }

    /// Whether this node is recorded with these addresses.
    fn is_at(&self, member: &Member, agent: &str, engine: Option<&str>) -> bool {
        let Ok(addresses) = Addresses::read(agent, engine) else { return false };
        let state = member.log.view().state;
        state.nodes.get(&member.identity.node).is_some_and(|node| {
            node.agent_addr == addresses.agent.to_string() && node.engine_addr == addresses.engine.to_string()
        })
    }

    /// Sees that the peer belongs to the cluster of the token, before anything is sent to it, and
    /// believes the members of that cluster from now on.
    fn meet_cluster(&self, peer: ClusterPeer<'_>) -> Result<(), Problem> {
        let answer = self
            .transport
            .call_as(None, peer.address, peer.expect, &Call::WhoJoins, PROPOSE_TIMEOUT)
            .map_err(|error| AgentError::from(error).problem())?;
        let (Some(Peer::Member { subject, .. }), Expect::Authority(fingerprint)) = (answer.peer, peer.expect)
        else {
            return Err(Problem::new(Code::PeerAnswer, "the peer is no member of a cluster", OTHER_RELEASE));
        };
        let authorities = authority_in(&answer.chain, fingerprint).into_iter().collect();
        let trust = Trust { cluster: Some(subject.cluster), authorities, members: None };
        self.transport.change_proofs(|proofs| proofs.trust = Arc::new(trust));
        Ok(())
    }

    /// Keeps the certificate of this node, and shows it from now on.
    fn keep_membership(&self, membership: Membership, cluster: u64) -> Result<(), AgentError> {
        let mut own = lock(&self.trust);
        own.membership = Some(membership);
        let proofs = proofs_of(&own, Some(cluster))?;
        own.save()?;
        self.transport.set_proofs(proofs);
        Ok(())
    }

    /// Shows and believes what a node of no cluster does. The key stays.
    fn forget_certificate(&self) -> Result<(), AgentError> {
        let mut own = lock(&self.trust);
        if own.membership.take().is_some() {
            own.save()?;
        }
        let proofs = proofs_of(&own, None)?;
        self.transport.set_proofs(Proofs { trust: Arc::default(), ..proofs });
        Ok(())
    }

    fn ask_to_join(
        &self,
        peer: ClusterPeer<'_>,
        question: &Call,
        deadline: Instant,
    ) -> Result<JoinTicket, Problem> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let patience = left.clamp(ASK_TIMEOUT, PROPOSE_TIMEOUT + PROOF_TIMEOUT);
            let reply = self
                .transport
                .call_as(None, peer.address, peer.expect, question, patience)
                .map_err(|error| AgentError::from(error).problem())?;
            match reply.reply {
                CallReply::Joined(ticket) => return Ok(ticket),
                CallReply::Error(error)
                    if error.code == Code::MembershipSettling && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(100));
                }
                CallReply::Error(error) => return Err(error),
                _ => {
                    return Err(Problem::new(
                        Code::PeerAnswer,
                        "the peer gave an answer to another question",
                        OTHER_RELEASE,
                    ));
                }
            }
        }
    }

    /// Takes the request to join back.
    fn withdraw(&self, peer: ClusterPeer<'_>, nonce: u64) -> Withdrawal {
        let question = Call::Withdraw { nonce };
        let answer = self.transport.call_as(None, peer.address, peer.expect, &question, WITHDRAW_WITHIN);
        match answer.map(|answer| answer.reply) {
            Ok(CallReply::Withdrawn) => Withdrawal::Done,
            Ok(CallReply::Error(error)) if error.code == Code::AlreadyVotes => Withdrawal::Votes,
            _ => Withdrawal::Unknown,
        }
    }

    /// Ends what a failed attempt to become a member has begun, and removes its files. The number
    /// of the request stays unless `nothing_came` of it: with the same number a further attempt is
    /// the same request to the cluster.
    fn forget_membership(&self, nothing_came: bool) {
        if let Some(member) = write(&self.member).take() {
            member.stop();
            self.engine_inputs.disconnect();
        }
        self.transport.clear_identity();
        let identity = Identity::remove(&self.options.state_dir);
        // After the identity: a member without its certificate does not run.
        if let Err(error) = self.forget_certificate() {
            tracing::error!(%error, "cannot remove what a failed attempt to become a member has left");
        }
        let nonce = if nothing_came { remove_file(&self.options.state_dir.join(JOIN_NONCE)) } else { Ok(()) };
        if let Err(error) = self.clear_leftovers() {
            tracing::error!(%error, "cannot remove what a failed attempt to become a member has left");
        }
        if let Err(error) = identity.and(nonce) {
            tracing::error!(%error, "cannot remove what a failed attempt to become a member has left");
        }
    }

    /// Shows that the engine of this node will be found at an address: nothing listens there yet,
    /// and until the guard is dropped this agent does.
    fn show_engine(self: &Arc<Self>, address: SocketAddr) -> Result<Listening, Problem> {
        if let Ok(Reply::Status(status)) = self.engine.request(Request::Status, ASK_TIMEOUT) {
            if let Some(node) = status.node {
                return Err(Problem::new(
                    Code::EngineInUse,
                    format!("the engine of this machine still runs as node {node} of an earlier cluster"),
                    "Restart the engine, and try again.",
                ));
            }
            let listens = status.listen.and_then(|text| text.parse::<SocketAddr>().ok());
            let fits = |listens: &SocketAddr| {
                listens.port() == address.port()
                    && (listens.ip().is_unspecified() || listens.ip() == address.ip())
            };
            if let Some(listens) = listens.map(canonical).filter(|listens| !fits(listens)) {
                return Err(Problem::new(
                    Code::BadAddress,
                    format!("the engine of this node listens on {listens}, and not on {address}"),
                    "Give the engine's address with --engine-address, or restart the engine with another --listen.",
                ));
            }
        }
        self.transport.listen_for_a_while(address, self.clone()).map_err(|error| {
            let (message, remedy) = match error.kind() {
                io::ErrorKind::AddrNotAvailable => (
                    format!("{} is not an address of this node", address.ip()),
                    "Give an address that an interface of this node has; `ip address` lists them.",
                ),
                io::ErrorKind::AddrInUse => (
                    format!("another program uses {address}, where the engine of this node is to listen"),
                    "End that program, or name another address with --engine-address.",
                ),
                _ => (format!("nothing can listen on {address}: {error}"), "Give another address."),
            };
            Problem::new(Code::BadAddress, message, remedy)
        })
    }

    fn refuse_members(&self) -> Result<(), Problem> {
        match read(&self.member).as_ref() {
            None => Ok(()),
            Some(member) if member.is_joining() => Err(Problem::new(
                Code::JoinBusy,
                format!(
                    "this node is joining the cluster {} as {}, and does not vote yet",
                    member.identity.cluster_name, member.identity.name
                ),
                JOINING_REMEDY,
            )),
            Some(member) => Err(Problem::new(
                Code::AlreadyAMember,
                format!(
                    "this node is {} of the cluster {}",
                    member.identity.name, member.identity.cluster_name
                ),
                "A node belongs to one cluster. Use a new state directory for another.",
            )),
        }
    }

    /// Removes the files that an attempt to become a member left before there was an identity.
    fn clear_leftovers(&self) -> Result<(), AgentError> {
        for path in [log_path(&self.options.state_dir), suspects_path(&self.options.state_dir)] {
            remove_file(&path).map_err(|source| AgentError::File { path, source })?;
        }
        Ok(())
    }

    fn save_identity(&self, identity: &Identity) -> Result<(), AgentError> {
        let path = self.options.state_dir.clone();
        identity.save(&path).map_err(|source| AgentError::File { path, source })
    }

    /// The same number for every attempt of this node to join, so that a repeated request adds one
    /// node; and whether it is new.
    fn join_nonce(&self) -> Result<(u64, bool), AgentError> {
        let path = self.options.state_dir.join(JOIN_NONCE);
        if let Some(nonce) = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()) {
            return Ok((nonce, false));
        }
        let nonce = random_u64();
        write_durable(&path, nonce.to_string().as_bytes())
            .map_err(|source| AgentError::File { path, source })?;
        Ok((nonce, true))
    }

    /// A node wants to join. It is let in when it has been found at the addresses that it states
    /// (R29).
    pub(super) fn admit(&self, request: JoinRequest, key: &PublicKey) -> Result<JoinTicket, Problem> {
        let member = self.member()?;
        let JoinRequest { node, agent_address, engine_address, witness, nonce, replace, level, token } =
            request;
        let (agent_addr, engine_addr) = (agent_address, engine_address);
        let token = Token::read(&token.0).map_err(|bad| {
            let remedy = "Make a new one on a member: `mainstay cluster token create NODE`.";
            Problem::new(Code::TokenRefused, format!("the node that joins gave no token: {bad}"), remedy)
        })?;
        let by = Some(Admission { token: token.id(), hash: token.hash(), key: key.fingerprint() });
        let new = Newcomer { name: node, agent_addr, engine_addr, witness, nonce, replace, level, by };
        let state = member.log.view().state;
        if let Some(refused) = state.cannot_admit(wall_ms(), &new) {
            return Err(refused);
        }
        let Addresses { agent, engine } = Addresses::read(&new.agent_addr, Some(&new.engine_addr))?;
        let looked = Looked { expect: Expect::Newcomer(key.fingerprint()), nonce };
        prove(&member.transport, agent, looked, ("the agent", JOINER_REMEDY))?;
        if !witness {
            prove(&member.transport, engine, looked, ("the engine", JOINER_REMEDY))?;
        }
        let Newcomer { name, witness, nonce, replace, by, .. } = new;
        let (agent_addr, engine_addr) = (agent.to_string(), engine.to_string());
        // Nodes that know no levels would not keep it.
        let level = if state.knows_levels() { level } else { 0 };
        let command =
            Command::AdmitNode { name, agent_addr, engine_addr, witness, nonce, replace, level, by };
        // A request that was taken back while its addresses were looked at is not recorded
        // afterwards.
        let withdrawn = lock(&self.withdrawn);
        if withdrawn.has(nonce) {
            return Err(Problem::new(
                Code::JoinWithdrawn,
                "this request to join was taken back by its node",
                "Run the command again.",
            ));
        }
        let node = match settle(member.log.propose(command, PROPOSE_TIMEOUT))? {
            Outcome::NodeAdded { node, .. } => node,
            other => {
                let message = format!("the cluster answered {other:?}");
                return Err(Problem::new(Code::PeerAnswer, message, OTHER_RELEASE));
            }
        };
        let (certified, entry, seal) = self.issue(&member, node, key)?;
        member.log.submit(entry);
        let view = member.log.view();
        let others = view.state.nodes.values().filter(|known| known.id != node);
        Ok(JoinTicket {
            cluster: member.identity.cluster,
            cluster_name: member.identity.cluster_name.clone(),
            node,
            era: view.state.cluster.as_ref().map_or(0, |cluster| cluster.era),
            members: others.map(|known| (known.id, known.agent_addr.clone())).collect(),
            certified,
            seal: HexBytes(seal.bytes().to_vec()),
        })
    }

    /// A node that wanted to join here takes that back.
    pub(super) fn forget_newcomer(&self, nonce: u64) -> Result<(), Problem> {
        let member = self.member()?;
        let mut withdrawn = lock(&self.withdrawn);
        withdrawn.note(nonce);
        settle(member.log.propose(Command::WithdrawNode { nonce }, PROPOSE_TIMEOUT)).map(drop)
    }
}

/// Requests to join that were taken back here, the last one at the end.
#[derive(Default)]
pub(super) struct Withdrawn(VecDeque<u64>);

impl Withdrawn {
    fn has(&self, nonce: u64) -> bool {
        self.0.contains(&nonce)
    }

    fn note(&mut self, nonce: u64) {
        if !self.has(nonce) {
            self.0.push_back(nonce);
        }
        self.0.drain(..self.0.len().saturating_sub(WITHDRAWN_MAX));
    }
}

/// Tells that this node asks a peer to join its cluster.
struct Joins<'a>(&'a Agent);

impl<'a> Joins<'a> {
    fn begin(agent: &'a Agent, peer: &str) -> Self {
        *lock(&agent.joins_by) = Some(peer.to_owned());
        Self(agent)
    }
}

impl Drop for Joins<'_> {
    fn drop(&mut self) {
        *lock(&self.0.joins_by) = None;
    }
}

/// An attempt that waited long for another one does not begin: the operator may not expect it any
/// more.
fn refuse_late(asked_at: Instant) -> Result<(), Problem> {
    if asked_at.elapsed() <= TURN_WITHIN {
        return Ok(());
    }
    Err(Problem::new(
        Code::JoinBusy,
        "another attempt of this node to become a member ran until now, and failed",
        "Run the command again.",
    ))
}

fn unfinished() -> Problem {
    Problem::new(
        Code::JoinUnfinished,
        "this node has asked to join, and has not received the state of the cluster yet; until then it does not vote",
        "Check that the members can reach this node's address; joining goes on by itself.",
    )
}

/// Outcome of taking a request to join back.
enum Withdrawal {
    Done,
    /// The request had its effect before it was taken back.
    Votes,
    Unknown,
}

/// The member by which a node joins, and what it has to prove.
#[derive(Clone, Copy)]
struct ClusterPeer<'a> {
    address: &'a str,
    expect: Expect,
}

/// Which of these agents cannot be reached, in words.
fn unreachable(members: &BTreeMap<NodeId, String>) -> String {
    let lost = members.values().filter(|address| local_address(address).is_err());
    let lost: Vec<&str> = lost.map(String::as_str).collect();
    if lost.is_empty() {
        return "this node reaches all members, so check the network from them to this node".to_owned();
    }
    format!("it cannot reach the members at {}", lost.join(", "))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{WITHDRAWN_MAX, Withdrawn};

    #[test]
    fn requests_that_were_taken_back_are_remembered_and_not_all_for_ever() {
        let mut withdrawn = Withdrawn::default();
        (0..WITHDRAWN_MAX as u64 + 9).for_each(|nonce| {
            withdrawn.note(nonce);
            withdrawn.note(nonce);
        });
        assert!(!withdrawn.has(8) && withdrawn.has(9) && withdrawn.has(WITHDRAWN_MAX as u64 + 8));
        assert_eq!(withdrawn.0.len(), WITHDRAWN_MAX);
    }
}
