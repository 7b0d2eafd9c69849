//! Messages between agents. The encoding is JSON, except for the Raft core's own messages.

use crate::clock::wall_ms;
use crate::history::LoadQuestion;
use crate::history::baselines::{BaselineOrder, KeptBaseline};
use crate::service::lacks::Lack;
use crate::service::logs;
use mainstay_api::engine;
use mainstay_api::rest::LoadPage;
use mainstay_control::labels::Notice;
use mainstay_control::lease::{Ack, Heartbeat};
use mainstay_control::stalls::Hindrance;
use mainstay_control::state::Entry;
use mainstay_ha::ServiceSpec;
use mainstay_trust::Zeroizing;
use mainstay_types::{Code, HexBytes, NodeId, Problem, ResourceId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// First on every connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// 0 when the sender is not a member yet.
    pub cluster: u64,
    pub node: NodeId,
    pub lane: LaneKind,
    /// Random per start of the sender's agent, to tell two machines with one identity apart; 0 from
    /// one that does not say.
    #[serde(default)]
    pub run: u64,
    /// Address on which the sender listens; `None` for all addresses of its machine.
    #[serde(default)]
    pub address: Option<SocketAddr>,
    /// Feature level of the sender's build; 0 from one that knows no levels.
    #[serde(default)]
    pub level: u32,
}

/// Purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LaneKind {
    Lease,
    Log,
    /// Questions with answers.
    Call,
}

/// See `mainstay_control::lease`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LeaseMessage {
    Heartbeat(Heartbeat),
    Ack(Ack),
}

/// Identity of a proposal; the same id takes effect at most once, however often it is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ProposalId(pub u64, pub u64);

impl ProposalId {
    /// A new id. Its randomness is what tells it from those of other nodes and earlier runs.
    #[must_use]
    pub fn random() -> Self {
        Self(random_u64(), random_u64())
    }
}

/// A random number that is not 0.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel gives randomness once it is up");
    u64::from_le_bytes(bytes).max(1)
}

impl fmt::Display for ProposalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0, self.1)
    }
}

/// A command on its way into the log; also the content of a log entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proposal {
    pub id: ProposalId,
    pub entry: Entry,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    pub node: String,
    pub agent_address: String,
    pub engine_address: String,
    /// Votes and holds no data.
    #[serde(default)]
    pub witness: bool,
    /// Random per joiner, to recognise a repeated request, and the joiner at the addresses that it
    /// states.
    pub nonce: u64,
    /// The joiner takes the place of the dead node of this name.
    #[serde(default)]
    pub replace: bool,
    /// Feature level of the joiner's build.
    #[serde(default)]
    pub level: u32,
    /// The whole token.
    pub token: Secret,
}

/// A text that is shown nowhere, and wiped from memory.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret(pub Zeroizing<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A certificate of a node, and those of the authorities that the cluster has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Certified {
    pub certificate: HexBytes,
    pub until_ms: u64,
    /// The authority that gave the certificate is the first.
    pub authorities: Vec<HexBytes>,
}

/// Data that a joiner needs to become a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinTicket {
    pub cluster: u64,
    pub cluster_name: String,
    pub node: NodeId,
    /// See [`mainstay_control::state::Cluster::era`].
    #[serde(default)]
    pub era: u64,
    /// Agents of the members: the joiner has to answer them before it has their state.
    pub members: BTreeMap<NodeId, String>,
    pub certified: Certified,
    /// Key with which the authority's key is sealed in the record. Secret; not shown.
    pub seal: HexBytes,
}

impl Call {
    /// Whether it is answered to an agent that is not a member of the cluster.
    #[must_use]
    pub fn is_for_strangers(&self) -> bool {
        matches!(self, Self::Join(_) | Self::WhoJoins | Self::Withdraw { .. })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Call {
    Join(JoinRequest),
    /// Asked at every address that a node states when it makes or joins a cluster (R29).
    WhoJoins,
    /// The node that wanted to join with this nonce could not; see `mainstay_control::members`.
    Withdraw {
        nonce: u64,
    },
    /// Whether another process than the asking one has been heard as the asking node just now.
    AmI,
    /// Which node answers.
    Who,
    /// A question to the engine of the asked node: only [`engine::Request::Status`],
    /// [`engine::Request::Promise`] and those about scrubs are passed on.
    Engine(engine::Request),
    Pool,
    /// Everything on the asked node that uses the devices of this resource, but for its own
    /// service.
    Users {
        resource: String,
        service: Option<ServiceSpec>,
        /// The devices come back on another node: users that find them there by themselves do not
        /// count.
        #[serde(default)]
        moves: bool,
    },
    /// The next stop of this service on the asked node does not wait for processes that use its
    /// file system.
    Disregard {
        service: String,
    },
    /// Whether this service finds a place for its file system on the asked node, beside the others.
    Place {
        spec: Box<ServiceSpec>,
        others: Vec<ServiceSpec>,
    },
    /// Asks for output of a process of a service on the asked node.
    Log {
        service: String,
        process: String,
        wanted: logs::Wanted,
    },
    /// Asks for the needs of this service that the asked node does not meet.
    Lacks(Box<ServiceSpec>),
    /// Asks for a part of the history of the asked node.
    Load(LoadQuestion),
    /// Asks for baselines of the asked node, or changes them.
    Baseline(BaselineOrder),
    /// Asks for the requests that the asked node waits for.
    Waits,
    /// An answer that takes several packets of full size.
    Large,
    /// Asks for a new certificate for the node and the key that have proven themselves.
    Renew,
    /// A member asks for the key with which an announced authority is sealed in the record.
    Seal {
        authority: u32,
    },
}

/// A voter that gets no entries of the control plane's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogLag {
    /// Entries that it lacks.
    pub entries: u64,
    /// Since it confirmed the last one, or lacks any, in milliseconds.
    pub ms: u64,
}

/// The ages of requests that a node has made and got no answer to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// To its engine, in milliseconds; 0 if none is open.
    pub engine_ms: u64,
    /// To the disk of its part of the control plane's log, in milliseconds; 0 if none is open.
    pub disk_ms: u64,
    /// If it leads: voters that lack entries.
    pub lags: BTreeMap<NodeId, LogLag>,
    /// Hindrances of services that run there.
    #[serde(default)]
    pub services: Vec<Hindered>,
    /// Nodes to which it has no connection, and for how long, in milliseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unheard: BTreeMap<NodeId, u64>,
    /// Nodes whose small answers reach it and whose large ones do not, and for how long, in
    /// milliseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cropped: BTreeMap<NodeId, u64>,
    /// Why it cannot renew its certificate, or do its part in a rotation of the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal: Option<String>,
}

/// A service that runs on the node that says so, and is hindered there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hindered {
    pub service: String,
    pub what: Hindrance,
    /// Age, in milliseconds.
    pub ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CallReply {
    Joined(JoinTicket),
    /// The nonce of the node that is about to become a member here.
    Joins {
        nonce: u64,
    },
    Withdrawn,
    Waits(Waits),
    /// The answer to [`Call::Large`].
    Large {
        filler: String,
    },
    /// The address of the other process, and where the asking node is recorded.
    Other {
        address: Option<String>,
        #[serde(default)]
        recorded: Option<String>,
    },
    /// The answer to [`Call::Who`].
    Is {
        node: NodeId,
    },
    Engine(engine::Reply),
    Pool {
        free_bytes: u64,
        /// Replicas that could not be made.
        failures: BTreeMap<ResourceId, Problem>,
        /// Needs of services that the node does not meet, by the service's name. Only services that
        /// may run there count.
        #[serde(default)]
        lacks: BTreeMap<String, Vec<Lack>>,
        /// Directories in the pool that are not used, with the reason.
        #[serde(default)]
        left: BTreeMap<String, String>,
        /// Paths of this node that are not as they should be, with what to do; more than `left`,
        /// which earlier releases read.
        #[serde(default)]
        notices: BTreeMap<String, Notice>,
    },
    /// In words for the operator.
    Users {
        users: Vec<String>,
    },
    Disregarded,
    /// Why it does not, in words for the operator.
    Place {
        unfit: Option<String>,
    },
    Log(logs::Piece),
    Lacks(Vec<Lack>),
    Load(Box<LoadPage>),
    /// The answer to a list, and to an order to keep a baseline: none if nothing is recorded.
    Baselines(Vec<KeptBaseline>),
    BaselineDeleted {
        /// Whether there was one.
        deleted: bool,
    },
    /// The answer to [`Call::Renew`].
    Renewed(Certified),
    /// The answer to [`Call::Seal`]. Secret; not shown.
    Seal(HexBytes),
    Error(Problem),
}

impl CallReply {
    /// The answer to a node whose certificate ended at this time, in seconds since 1970.
    #[must_use]
    pub fn expired(until_s: u64) -> Self {
        let age_s = (wall_ms() / 1000).saturating_sub(until_s);
        Self::Error(Problem::new(
            Code::CertificateRefused,
            format!("the certificate of this node ended {age_s} s ago by the clock of the asked node"),
            "The node renews it by itself within a minute. If it does not, compare the clocks of the two machines.",
        ))
    }

    /// The answer to a node of another cluster.
    #[must_use]
    pub fn other_cluster() -> Self {
        Self::Error(Problem::new(
            Code::OtherCluster,
            "the asked node is not a member of the asker's cluster",
            "Check the address of the peer.",
        ))
    }
}
