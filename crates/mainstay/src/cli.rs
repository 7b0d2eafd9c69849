//! The command line as data: every noun, verb and option, from which help and errors come.

use crate::lab::cli::LabCommand;
use crate::{duration, size};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use mainstay_api::rest::{OriginView, ScrubRepair, ScrubSchedule};
use mainstay_engine::frontend::nbd::TlsFiles;
use mainstay_engine::{BackgroundLimits, DeviceOption, SlowLimits};
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0    done
  1    refused or failed; the message names a code, the cause and what to do
  2    wrong command line
  3    no agent answered, or not in time
  4    `status`, `inspect`: something needs attention
  5    `resource scrub`: replicas differ, or were not all compared
  125  `lab exec`: the command could not be started (otherwise its own code)
  130  interrupted; the message says what goes on without the command";

/// Replicated block storage with failover of the services on top of it.
#[derive(Parser, Debug)]
#[command(name = "mainstay", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: Command,
}

/// Which agent is asked, and how the answer is printed.
#[derive(Args, Debug)]
pub struct Target {
    /// Print answers and errors as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of the agent to ask.
    #[arg(
        long,
        global = true,
        env = "MAINSTAY_SOCKET",
        default_value = "/run/mainstay/agent.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Ask an agent inside this lab instead of the one behind --socket. With `mainstay lab` it means the same as --name.
    #[arg(long, global = true, value_name = "NAME")]
    pub lab: Option<String>,
    /// With --lab: the node whose agent is asked; the first that runs if not given.
    #[arg(long = "node", id = "lab_node", global = true, requires = "lab", value_name = "NODE")]
    pub node: Option<String>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the data plane of this node in the foreground.
    Engine(EngineArgs),
    /// Run the control plane of this node in the foreground.
    Agent(AgentArgs),
    /// Make, join and look at a cluster.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Look at the nodes.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Create, look at, compare and delete resources.
    #[command(subcommand)]
    Resource(ResourceCommand),
    /// Take, list, delete and clone snapshots of resources.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Apply, look at, move and delete services.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Show what happened in the cluster.
    Events(EventsArgs),
    /// Say what is wrong and what to do next. Exits with 4 if anything needs attention.
    Status,
    /// Print the metrics of the asked node, as Prometheus gets them.
    Metrics,
    /// Show what journal and metadata of a replica hold; for a directory that no engine uses, such as a copy of one.
    Inspect(InspectArgs),
    /// Measure devices, files and databases under fio and sysbench.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// A whole cluster on this machine, for trying out and testing. Needs root.
    Lab(LabCommand),
    /// Writes the output of a process of a service to its log; started by the agent.
    #[command(hide = true)]
    LogWriter(LogWriterArgs),
    /// First process of a lab node; started by `lab up`.
    /// Silences this node when its lease ends although engine and agent are dead. The engine starts it.
    #[command(hide = true)]
    Silencer(SilencerArgs),
    #[command(hide = true)]
    LabNode(crate::lab::cli::LabNodeArgs),
    /// Ends FUSE connections that outlived their node; started by `lab kill`.
    #[command(hide = true)]
    LabFuseAbort { connections: Vec<u32> },
}

#[derive(Args, Debug)]
pub struct LogWriterArgs {
    pub log: PathBuf,
}

/// Paths that engine and agent share.
#[derive(Args, Debug, Clone)]
pub struct PathArgs {
    /// Durable state of the node.
    #[arg(long, default_value = "/var/lib/mainstay", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Sockets, devices and mounts; empty after a restart of the machine.
    #[arg(long, default_value = "/run/mainstay", value_name = "DIR")]
    pub run_dir: PathBuf,
}

#[derive(Args, Debug, Clone)]
pub struct SilencerArgs {
    /// The run directory of the engine.
    #[arg(long, default_value = "/run/mainstay", value_name = "DIR")]
    pub run_dir: PathBuf,
}

#[derive(Args, Debug, Clone)]
pub struct EngineArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    /// Address and port for other engines.
    #[arg(long, default_value = "0.0.0.0:7401", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// How volumes become devices: auto takes the best that this kernel offers, and `mainstay status` says which and why.
    #[arg(long, env = "MAINSTAY_DEVICE", default_value = "auto", value_name = "FRONTEND", value_parser = device_option())]
    pub device: DeviceOption,
    /// Address and port for NBD clients of other machines, with --device nbd. Without certificates nobody has to prove who
    /// he is, and nothing is encrypted: only for a network that you trust. Off when not given.
    #[arg(long, env = "MAINSTAY_NBD_LISTEN", value_name = "ADDRESS:PORT")]
    pub nbd_listen: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pub nbd_tls: NbdTlsArgs,
    /// Allocate the files of new volumes whole, and keep the space of what is discarded: what is written then never lacks any. Without
    /// this a volume takes what is written to it, and gives back what is discarded.
    #[arg(long, env = "MAINSTAY_PREALLOCATE")]
    pub preallocate: bool,
    /// Never poll before going to sleep. Otherwise the engine does for up to 200 us, where it saves a wake-up and processors
    /// are idle: a quarter of all and two at least, more than half where two share a core.
    #[arg(long, env = "MAINSTAY_NO_POLL", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub no_poll: bool,
    #[command(flatten)]
    pub slow: SlowArgs,
    #[command(flatten)]
    pub background: BackgroundArgs,
}

/// How fast replicas that are not in sync are filled: those of resources whose primary is on this node, all together. Names and meaning
/// are those of DRBD.
#[derive(Args, Debug, Clone, Copy)]
pub struct BackgroundArgs {
    /// So many bytes per second at most. 0: no limit.
    #[arg(long, env = "MAINSTAY_C_MAX_RATE", default_value = "0", value_parser = rate, value_name = "BYTES")]
    pub c_max_rate: u64,
    /// While clients write, copies slow down until a write takes no longer than usual by half, but not below so many bytes per second
    /// for each resource. 0: they never slow down.
    #[arg(long, env = "MAINSTAY_C_MIN_RATE", default_value = "8MiB", value_parser = rate, value_name = "BYTES")]
    pub c_min_rate: u64,
}

impl BackgroundArgs {
    pub fn limits(&self) -> BackgroundLimits {
        BackgroundLimits {
            max_rate: self.c_max_rate,
            min_rate: self.c_min_rate,
            ..BackgroundLimits::default()
        }
    }
}

/// A size, or none.
fn rate(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size::parse(text) }
}

/// When a replica is too slow to stay in the in-sync set. They count on the node of the primary, so they should be the same on all
/// nodes.
#[derive(Args, Debug, Clone, Copy)]
pub struct SlowArgs {
    /// A replica leaves when it takes longer than this to acknowledge writes, and longer than the others by --slow-factor, for
    /// --slow-for-ms. 0: none leaves for being slow.
    #[arg(long, env = "MAINSTAY_SLOW_ACK_MS", default_value_t = SlowLimits::default().ack_ms, value_name = "MS")]
    pub slow_ack_ms: u64,
    /// How many times as long as the others.
    #[arg(long, env = "MAINSTAY_SLOW_FACTOR", default_value_t = SlowLimits::default().factor,
        value_parser = clap::value_parser!(u64).range(1..), value_name = "TIMES")]
    pub slow_factor: u64,
    /// For how long it must be so.
    #[arg(long, env = "MAINSTAY_SLOW_FOR_MS", default_value_t = SlowLimits::default().for_ms,
        value_parser = clap::value_parser!(u64).range(1..), value_name = "MS")]
    pub slow_for_ms: u64,
    /// How long it must have kept up before it returns; twice as long each time it leaves again.
    #[arg(long, env = "MAINSTAY_SLOW_QUIET_S", default_value_t = SlowLimits::default().quiet_ms / 1000, value_name = "S")]
    pub slow_quiet_s: u64,
    /// The longest that this becomes. A replica that has stayed for so long is forgiven one doubling.
    #[arg(long, env = "MAINSTAY_SLOW_QUIET_MAX_S", default_value_t = SlowLimits::default().quiet_max_ms / 1000, value_name = "S")]
    pub slow_quiet_max_s: u64,
    /// So many copies stay in sync, the primary's included, however slow they are; more if the resource wants more (--min-copies).
    #[arg(long, env = "MAINSTAY_SLOW_MIN_COPIES", default_value_t = SlowLimits::default().min_copies as u32,
        value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub slow_min_copies: u32,
}

impl SlowArgs {
    pub fn limits(&self) -> SlowLimits {
        SlowLimits {
            ack_ms: self.slow_ack_ms,
            factor: self.slow_factor,
            for_ms: self.slow_for_ms,
            min_copies: self.slow_min_copies as usize,
            quiet_ms: self.slow_quiet_s.saturating_mul(1000),
            quiet_max_ms: self.slow_quiet_max_s.saturating_mul(1000),
        }
    }
}

/// All three or none: with them NBD clients of the network get in by TLS 1.3 and a certificate of their own, and in no other way.
/// The files are read anew for every client.
#[derive(Args, Debug, Clone)]
pub struct NbdTlsArgs {
    /// Certificate that NBD clients of the network are shown, PEM; behind it those between it and its authority.
    #[arg(
        long,
        env = "MAINSTAY_NBD_CERTIFICATE",
        value_name = "FILE",
        requires_all = ["nbd_listen", "nbd_key", "nbd_client_ca"]
    )]
    pub nbd_certificate: Option<PathBuf>,
    /// Private key of that certificate, PEM, without a password, not readable by others.
    #[arg(long, env = "MAINSTAY_NBD_KEY", value_name = "FILE", requires = "nbd_certificate")]
    pub nbd_key: Option<PathBuf>,
    /// Certificates of the authorities whose clients get in, PEM. Whoever has a client's certificate of one of them reads and writes
    /// every export, so it should be an authority for nothing else.
    #[arg(long, env = "MAINSTAY_NBD_CLIENT_CA", value_name = "FILE", requires = "nbd_certificate")]
    pub nbd_client_ca: Option<PathBuf>,
}

impl NbdTlsArgs {
    /// `None` unless all are there, which the command line sees to.
    pub fn files(self) -> Option<TlsFiles> {
        let (certificate, key, client_ca) = (self.nbd_certificate?, self.nbd_key?, self.nbd_client_ca?);
        Some(TlsFiles { certificate, key, client_ca })
    }
}

fn device_option() -> impl TypedValueParser<Value = DeviceOption> {
    PossibleValuesParser::new(DeviceOption::NAMES).try_map(|name| name.parse::<DeviceOption>())
}

#[derive(Args, Debug, Clone)]
pub struct AgentArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    /// Address and port for other agents.
    #[arg(long, default_value = "0.0.0.0:7400", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// Address and port on which Prometheus finds this node's metrics, as http://ADDRESS:PORT/metrics: for example 127.0.0.1:7402. Nobody has to
    /// prove who he is, and nothing is encrypted; nothing but metrics is served there. Off when not given.
    #[arg(long, env = "MAINSTAY_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<std::net::SocketAddr>,
    /// Control group (version 2) under which services get groups of their own.
    #[arg(long, value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// Directory for the journals of new replicas, on a device of its own; in the pool when not given. It must exist, and lie
    /// below the mount point of that device, so that it is not there while the device is not mounted.
    #[arg(long, env = "MAINSTAY_JOURNAL_DIR", value_name = "DIR")]
    pub journal_dir: Option<PathBuf>,
    /// Allow --journal-dir on tmpfs. What a power cut finds there is LOST, and the replica with it: for tests and measurements.
    #[arg(long, requires = "journal_dir")]
    pub volatile_journals: bool,
}

#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make this node the first member of a new cluster.
    Init {
        /// Name of the cluster.
        #[arg(long)]
        name: String,
        /// Name of this node.
        #[arg(long = "as", value_name = "NODE")]
        node: String,
        /// Address under which other agents reach this one, with or without a port.
        #[arg(long)]
        address: String,
        /// Address under which other engines reach this node's engine, if it is another one.
        #[arg(long)]
        engine_address: Option<String>,
        /// How long a node may serve without hearing from a majority.
        #[arg(long)]
        lease_ms: Option<u64>,
        /// How often nodes renew their lease.
        #[arg(long)]
        heartbeat_ms: Option<u64>,
    },
    /// Make this node a member of an existing cluster.
    Join {
        /// Address of the agent of any member.
        #[arg(long)]
        peer: String,
        /// Name of this node.
        #[arg(long = "as", value_name = "NODE")]
        node: String,
        /// Address under which other agents reach this one; if not given, the one on which it listens, or the one used to reach the peer if it
        /// listens on all.
        #[arg(long)]
        address: Option<String>,
        /// Address under which other engines reach this node's engine, if it is another one.
        #[arg(long)]
        engine_address: Option<String>,
        /// The node votes and holds no data; it needs an agent and no engine.
        #[arg(long)]
        witness: bool,
    },
    /// Show the cluster and its nodes.
    Status,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Directory of the replica; of its files meta and journal are enough.
    pub directory: PathBuf,
    /// The journal, if the directory does not have it and no link to it.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// List the entries of the journal after the checkpoint.
    #[arg(long)]
    pub entries: bool,
    /// List the extents that were ever written.
    #[arg(long)]
    pub extents: bool,
}

#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// List the nodes.
    List,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("content").required(true).multiple(true))]
pub struct CreateArgs {
    pub name: String,
    /// Size of a volume, for example 4GiB; once per volume. GiB and G are powers of 1024, GB of 1000. With --from: as the snapshot's resource has them, or larger.
    #[arg(long = "size", group = "content", value_parser = size::parse_blocks, value_name = "SIZE")]
    pub sizes: Vec<u64>,
    /// Begin with what a snapshot of another resource holds, for example db@before-upgrade. Replicas on the nodes that hold it share its space;
    /// further ones are copied from them.
    #[arg(long, group = "content", value_name = "RESOURCE@SNAPSHOT", value_parser = parse_origin)]
    pub from: Option<OriginView>,
    /// Size of the journal.
    #[arg(long, value_parser = size::parse_blocks, value_name = "SIZE")]
    pub journal: Option<u64>,
    /// Nodes that get a replica, separated by commas.
    #[arg(long, value_delimiter = ',', conflicts_with = "replica_count", value_name = "NODES")]
    pub replicas: Vec<String>,
    /// Number of replicas; the nodes with the most free space get them. With --from the nodes that hold the snapshot come first.
    #[arg(long, value_name = "N")]
    pub replica_count: Option<u32>,
    /// Nodes that should be primary, best first, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NODES")]
    pub preferred: Vec<String>,
    #[command(flatten)]
    pub scrub: ScrubArgs,
    /// Acknowledge nothing unless so many replicas that are in sync have it, the primary's included [default: 1]
    #[arg(long, value_name = "N")]
    pub min_copies: Option<u32>,
    #[command(flatten)]
    pub suspend: SuspendArgs,
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// What becomes of requests while there are fewer copies than are wanted.
#[derive(Args, Debug, Clone, Copy)]
pub struct SuspendArgs {
    /// With fewer copies than --min-copies requests wait for so long and then fail, until there are enough again: for example 20s, or 0s to fail at
    /// once; up to 1h [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    pub suspend_io: Option<u64>,
}

/// When scrubs begin by themselves, and what they do.
#[derive(Args, Debug, Clone, Copy)]
pub struct ScrubArgs {
    /// Compare all replicas every so often, when all are in sync: for example 7d, or off [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms_or_off)]
    pub scrub_interval: Option<u64>,
    /// What such a scrub writes anew: what is proven to be right, by checksums or because more than half of the replicas agree; nothing; or all, and
    /// where nothing is proven, as with two replicas without checksums, what the primary holds [default: proven]
    #[arg(long, value_name = "WHAT", value_parser = scrub_repair())]
    pub scrub_repair: Option<ScrubRepair>,
    /// Read no more than this per second, of each replica; 0 for as fast as clients are not slowed down [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_none)]
    pub scrub_rate: Option<u64>,
}

impl ScrubArgs {
    pub fn schedule(self) -> ScrubSchedule {
        ScrubSchedule { interval_ms: self.scrub_interval, repair: self.scrub_repair, rate: self.scrub_rate }
    }
}

/// `RESOURCE@SNAPSHOT`.
fn parse_origin(text: &str) -> Result<OriginView, String> {
    let (resource, snapshot) = text.split_once('@').unwrap_or((text, ""));
    if resource.is_empty() || snapshot.is_empty() {
        return Err("name a resource and one of its snapshots, for example db@before-upgrade".into());
    }
    Ok(OriginView { resource: resource.into(), snapshot: snapshot.into() })
}

fn scrub_repair() -> impl TypedValueParser<Value = ScrubRepair> {
    PossibleValuesParser::new(["proven", "off", "all"]).map(|name| match name.as_str() {
        "off" => ScrubRepair::Off,
        "all" => ScrubRepair::All,
        _ => ScrubRepair::Proven,
    })
}

/// Long work goes on in the cluster; the command follows it to its end unless told otherwise.
#[derive(Args, Debug, Clone, Copy)]
pub struct WaitArgs {
    /// Return as soon as the change is recorded.
    #[arg(long)]
    pub no_wait: bool,
    /// Give up waiting after this many seconds; the work goes on.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub wait_s: u64,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Keep what all volumes of a resource hold at one moment, the same on every replica, while it is used. Waits until every replica
    /// that is in sync has it.
    Create {
        name: String,
        /// 1 to 32 characters out of a-z, 0-9 and the dash.
        snapshot: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// List the snapshots of a resource.
    List { name: String },
    /// Show one snapshot, where its files are on this node, and what they take of its pool. Reads the map of their extents.
    Show { name: String, snapshot: String },
    /// Make all volumes hold again what a snapshot holds, on every replica at the same place of the log. What they hold until then is kept
    /// as a snapshot, so that this can be undone in the same way. Nobody may use the devices meanwhile.
    Rollback {
        name: String,
        snapshot: String,
        /// Name of the snapshot that keeps the present state. Default: before-rollback-N.
        #[arg(long, value_name = "SNAPSHOT")]
        keep: Option<String>,
        /// Do not keep the present state: it is lost.
        #[arg(long, conflicts_with = "keep")]
        discard: bool,
        /// Stop the service on the resource for this, and start it again.
        #[arg(long)]
        restart_service: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Delete a snapshot on all nodes.
    Delete {
        name: String,
        snapshot: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Copy the volumes as they are in a snapshot to a directory of this node, to be mounted, written and thrown away. At once and
    /// without space of its own if the directory is on the file system of the node's pool.
    Clone {
        name: String,
        snapshot: String,
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
}

#[derive(Subcommand, Debug)]
pub enum ResourceCommand {
    /// Create a resource and wait until all its replicas are in sync.
    Create(CreateArgs),
    /// List the resources.
    List,
    /// Show one resource with its replicas.
    Status { name: String },
    /// Make a further replica on a node and wait until it is in sync.
    AddReplica {
        name: String,
        node: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Remove the replica on a node, with its data, and wait until it is gone.
    RemoveReplica {
        name: String,
        node: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Make a replica on another node, and remove this one when that is in sync. A primary hands over first.
    MoveReplica {
        name: String,
        node: String,
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Make a volume larger while it is in use. Volumes do not shrink.
    Resize {
        name: String,
        /// The new size, for example 8GiB. GiB and G are powers of 1024, GB of 1000.
        #[arg(value_parser = size::parse_blocks)]
        size: u64,
        /// Which volume, counted from 0.
        #[arg(long, default_value_t = 0)]
        volume: u16,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Choose when writes are acknowledged, while the resource is used. C (as resources are made): when the journals of all replicas that
    /// are in sync have them. B: when all of these have them in memory; a flush waits for the journals. A: when the primary's own journal has them; the others follow, and what they lack is lost if an
    /// operator has to go on without the primary.
    SetMode {
        name: String,
        #[arg(value_parser = ["a", "b", "c", "A", "B", "C"])]
        mode: String,
        /// Mode A: writes wait for a follower that lacks more than this; half the journal at most [default: 64M, or half the journal]
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        lag_bytes: Option<u64>,
        /// Mode A: writes wait for a follower that lacks something older than this many seconds [default: 10]
        #[arg(long, value_name = "SECONDS")]
        lag_s: Option<u64>,
        /// Mode A: when the primary is lost, a follower that lacks no more than that takes over by itself. What it lacks is lost.
        #[arg(long)]
        takeover: bool,
    },
    /// Choose how many replicas that are in sync must have a write before it is acknowledged, while the resource is used. With fewer, requests wait,
    /// and fail after a while. With 2 of three replicas no write rests on one machine alone; with 1 (as resources are made) the last one goes on.
    SetMinCopies {
        name: String,
        /// The primary's included.
        #[arg(value_name = "N")]
        copies: u32,
        #[command(flatten)]
        suspend: SuspendArgs,
    },
    /// Go on from a replica that may lack acknowledged writes, because nobody who has them all comes back. Says what that costs, and
    /// does it only with --accept-loss.
    ForcePromote {
        name: String,
        node: String,
        /// Do it: what is said to be lost is lost.
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Compare all replicas, block by block, while they are used, and wait for the end. Each extent is compared at one entry of the log.
    /// Exits with 5 if replicas differ, or not all could be compared.
    Scrub {
        name: String,
        /// Write anew what differs: what more than half of the replicas hold; otherwise, as with two, what the primary does
        #[arg(long, conflicts_with_all = ["report", "stop"])]
        repair: bool,
        /// Read no more than this per second, of each replica [default: as fast as clients are not slowed down]
        #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["report", "stop"])]
        rate: Option<u64>,
        /// Do not wait for the end
        #[arg(long, conflicts_with_all = ["report", "stop"])]
        no_wait: bool,
        /// Only say how far it is, or how the last one ended
        #[arg(long, conflicts_with = "stop")]
        report: bool,
        /// End the one that is under way
        #[arg(long)]
        stop: bool,
    },
    /// Choose when scrubs begin by themselves, and what they do, while the resource is used. What is not named stays as it is.
    SetScrub {
        name: String,
        #[command(flatten)]
        scrub: ScrubArgs,
    },
    /// Give a node without a replica the devices of a resource, instead of its primary, and wait until they are there. When the primary fails
    /// their requests wait for the next one. One node at a time has them, and only it can write. Not together with a service.
    Attach {
        name: String,
        node: String,
        /// A request that has waited for a primary for so long fails, and the devices with it: for example 90s, 10m or 1h; 1s to 1h
        /// [default: 60s]
        #[arg(long = "wait", value_name = "TIME", value_parser = duration::parse_ms)]
        wait_ms: Option<u64>,
        /// Even if another node has them, whose requests fail from then on.
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Give the devices back to the primary. Requests that are not answered fail.
    Detach {
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Delete a resource and its data on all nodes. Refused while its devices are in use. On a terminal it asks for the name once
    /// more; elsewhere it needs --yes.
    Delete {
        name: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
}

#[derive(Subcommand, Debug)]
pub enum ServiceCommand {
    /// Create or change a service from a TOML file and wait until it runs; `-` reads standard input.
    Apply {
        file: PathBuf,
        /// Say what would change, field by field, and whether the service would be started again. Change nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// List the services.
    List,
    /// Show one service.
    Status { name: String },
    /// Move a service to another node.
    Move {
        name: String,
        /// The node that is to run it.
        #[arg(value_name = "NODE", required_unless_present = "to", conflicts_with = "to")]
        node: Option<String>,
        /// The same as NODE.
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
        /// Move the service even if other processes or mounts hold its file system. The file system is flushed to the device first.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Stop a service and forget it; its resource stays.
    Delete {
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
}

#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Let fio write and read. What a device or a file holds is LOST, so one that is not empty is refused.
    Fio {
        /// Block devices, files, directories (a file is made there and removed), or resource:NAME for the first volume
        /// of a resource whose primary is this node. The first is the baseline of the others.
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<String>,
        /// How much of each is used.
        #[arg(long, default_value = "1GiB", value_parser = size::parse, value_name = "SIZE")]
        size: u64,
        /// Overwrite what is on devices and in files.
        #[arg(long)]
        overwrite: bool,
        /// How fio submits, in all cases. Devices that cannot refuse to wait cost io_uring a hand-over to a worker thread for
        /// each request, which libaio does not need.
        #[arg(long, value_name = "ENGINE", value_parser = ["io_uring", "libaio"])]
        engine: Option<String>,
        #[command(flatten)]
        run: BenchArgs,
    },
    /// Start a MariaDB of its own in each directory, for example where a volume is mounted, and let sysbench load it. Both
    /// are removed. Needs root.
    Sysbench {
        /// The first is the baseline of the others.
        #[arg(required = true, value_name = "DIR")]
        directories: Vec<PathBuf>,
        #[command(flatten)]
        run: BenchArgs,
    },
    /// List the cases.
    List,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Only these cases; `rw4k-j8-*` means all that begin so.
    #[arg(long, value_delimiter = ',', value_name = "CASES")]
    pub only: Vec<String>,
    /// How often each case is run on each target.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long each run is measured.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "SECONDS")]
    pub seconds: u32,
    /// Write report.md, report.json and plots there as well; goes on with what an interrupted run has left.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Only events after this one.
    #[arg(long, default_value_t = 0, value_name = "INDEX")]
    pub after: u64,
    /// Go on and print events as they happen. With --json one object per line.
    #[arg(long, short)]
    pub follow: bool,
    /// Only the newest N.
    #[arg(long, short = 'n', value_name = "N")]
    pub lines: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_can_be_switched_off() {
        let polls = |words: &[&str]| {
            let line = ["mainstay", "engine"].iter().chain(words);
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Engine(args)) => !args.no_poll,
                other => panic!("{other:?}"),
            }
        };
        // Whoever runs this may have switched it off for all.
        let here = std::env::var_os("MAINSTAY_NO_POLL").is_none();
        assert_eq!((polls(&[]), polls(&["--no-poll"])), (here, false));
    }

    /// With some of them clients would get in without TLS where the operator thinks that they do not.
    #[test]
    fn certificates_are_named_all_three_and_with_an_address() {
        let named = |without: &str| {
            let options = [
                ("--nbd-listen", "0.0.0.0:10809"),
                ("--nbd-certificate", "cert.pem"),
                ("--nbd-key", "key.pem"),
                ("--nbd-client-ca", "ca.pem"),
            ];
            let words =
                options.iter().filter(|(name, _)| *name != without).flat_map(|(name, value)| [name, value]);
            let line = ["mainstay", "engine", "--device", "nbd"].into_iter().chain(words.copied());
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Engine(args)) => Ok(args.nbd_tls.files()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        assert!(matches!(named(""), Ok(Some(_))));
        for without in ["--nbd-listen", "--nbd-certificate", "--nbd-key", "--nbd-client-ca"] {
            let refusal = named(without).expect_err("one is missing");
            assert!(refusal.contains(without), "{refusal}");
        }
    }
}
