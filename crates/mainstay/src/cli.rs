//! The command line as data: every noun, verb and option, from which help and errors come.

mod past;
mod roles;
mod service;
mod token;

pub use self::past::{AuditArgs, EventsArgs, HistoryArgs, ReportArgs};
pub use self::roles::{AgentArgs, EngineArgs, PathArgs, SilencerArgs, log_filter};
pub use self::service::{ServiceCommand, ServiceCreateArgs, ServiceImportArgs, TemplateName};
pub use self::token::ApiTokenCommand;
use crate::connect::Target;
use crate::doctor::DoctorArgs;
use crate::front::FrontArgs;
use crate::output::fold;
use crate::router::RouterArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use mainstay_api::rest::{OriginView, ScrubRepair};
use mainstay_types::settings::{SETTINGS, parse_change};
use mainstay_types::{Key, Scope};
use mainstay_types::{duration, size};
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0    done
  1    refused or failed; the message names a code, the cause and what to do
  2    wrong command line
  3    no agent answered, no majority of the nodes can be reached, or the
       command did not end in time
  4    `status`, `inspect`, `doctor`: something needs attention
       `service check`: the service could not run on some node
  5    `resource scrub`: replicas differ, or were not all compared
  6    `agent`: files of its state directory are lost or damaged, or its node was
       removed; a restart does not help
  75   `probe`: the server is starting up or recovering from a crash
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

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the data plane of this node in the foreground.
    Engine(EngineArgs),
    /// Run the control plane of this node in the foreground.
    Agent(AgentArgs),
    /// Route clients to the node where a service runs, in the foreground. For networks in which no
    /// floating address can move; needs no engine and no agent on its machine.
    Router(RouterArgs),
    /// Make, join and look at a cluster.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Look at the nodes, and empty them for work on them.
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
    /// Say on which node a service runs, and why not on each other one.
    Explain {
        /// Name of the service.
        name: String,
    },
    /// Show what happened in the cluster.
    Events(EventsArgs),
    /// Show how resources changed their primaries: when, why, who decided, and how long it took.
    History(HistoryArgs),
    /// Report the load of an interval: throughput, latencies, what requests waited for, changes of
    /// primaries, events and space, and what stands out.
    Report(ReportArgs),
    /// Show who asked for which change: when, on which node, and with what result.
    Audit(AuditArgs),
    /// Make, list and revoke tokens by which people and programs use the cluster from other
    /// machines.
    #[command(subcommand)]
    Token(ApiTokenCommand),
    /// Say what is wrong and what to do next. Exits with 4 if anything needs attention.
    Status,
    /// Print the metrics of the node that answers, in the text format of Prometheus.
    Metrics,
    /// Show what the journal and the metadata of a replica hold. The directory must not be in use
    /// by an engine: use a copy, or stop the engine first.
    Inspect(InspectArgs),
    /// Check whether this machine can be a node: kernel, disk, ports, clock, programs. Changes
    /// nothing. Exits with 4 if there are warnings and with 1 if something is missing.
    Doctor(DoctorArgs),
    /// Print and check the configuration file of this node.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look once whether a database or another program answers.
    #[command(disable_help_flag = true)]
    Probe(FrontArgs),
    /// Measure devices, files and databases under fio and sysbench.
    #[command(disable_help_flag = true)]
    Bench(FrontArgs),
    /// A whole cluster on this machine, for trying out and testing. Needs root.
    #[command(disable_help_flag = true)]
    Lab(FrontArgs),
    /// Write manual pages and completions, for packages.
    #[command(hide = true, subcommand)]
    Generate(GenerateCommand),
    /// Write the output of a service's process to its log. The agent starts this.
    #[command(hide = true)]
    LogWriter(LogWriterArgs),
    /// Say by the exit status whether services may start on this node: 0 if they may. Units of
    /// systemd ask this just before they start.
    #[command(hide = true)]
    MayStart(MayStartArgs),
    /// Silence this node when its lease ends and its engine and agent are dead. The engine starts
    /// this.
    #[command(hide = true)]
    Silencer(SilencerArgs),
}

#[derive(Subcommand, Debug)]
pub enum GenerateCommand {
    /// Write a manual page for each command to a directory.
    Man {
        /// Directory that exists.
        directory: PathBuf,
    },
    /// Write the completions of the shells to a directory: mainstay.bash, _mainstay, mainstay.fish.
    Completions {
        /// Directory that exists.
        directory: PathBuf,
    },
}

#[derive(Args, Debug)]
pub struct MayStartArgs {
    /// Run directory of the engine.
    #[arg(long)]
    pub run_dir: PathBuf,
}

#[derive(Args, Debug)]
pub struct LogWriterArgs {
    /// Path of the log.
    pub log: PathBuf,
}

#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print the file with every key, its help and its default.
    Default,
    /// Check a file, and say what is wrong in which line.
    Check {
        /// The file [default: /etc/mainstay/mainstay.toml]
        file: Option<PathBuf>,
    },
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
        /// Address at which other agents reach this one, with or without a port. Without one it is
        /// port 7400.
        #[arg(long)]
        address: String,
        /// Address under which other engines reach this node's engine, with or without a port
        /// [default: the host of --address, port 7401]
        #[arg(long)]
        engine_address: Option<String>,
        /// Time for which a node may serve without hearing from a majority, in milliseconds
        /// [default: 2000]
        #[arg(long, value_name = "MS", value_parser = duration::parse_bare_ms)]
        lease_ms: Option<u64>,
        /// Interval at which nodes renew their lease, in milliseconds [default: 200, or a fifth of
        /// the lease if that is less]
        #[arg(long, value_name = "MS", value_parser = duration::parse_bare_ms)]
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
        /// Address at which other agents reach this one. Default: the address on which this agent
        /// listens, or, if it listens on all, the address from which it reaches the peer.
        #[arg(long)]
        address: Option<String>,
        /// Address under which other engines reach this node's engine, with or without a port
        /// [default: the host of --address, port 7401]
        #[arg(long)]
        engine_address: Option<String>,
        /// Make this node a witness. It votes and holds no data, and it needs no engine.
        #[arg(long)]
        witness: bool,
        /// Take the place of the dead node of this name, also of its replicas: the machine is
        /// another one, or has a new disk. The old one is refused from then on.
        #[arg(long)]
        replace: bool,
        /// Token that `cluster token create NODE` made on a member. With `-` it is read from
        /// standard input.
        #[arg(long)]
        token: String,
    },
    /// Make, list and revoke tokens by which machines may join.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show the certificates of the cluster and of its nodes, with their ends.
    Certificates,
    /// Show and replace the authority that gives the nodes of the cluster their certificates.
    #[command(subcommand)]
    Authority(AuthorityCommand),
    /// Write the record of the cluster to a file: members, resources, services and settings, but no
    /// data of volumes.
    Backup {
        /// The file must not exist.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Begin the cluster anew on this node, because the majority of the nodes is lost for good. The
    /// agent of this node must be stopped. All other nodes are refused from then on; they can join
    /// again as new machines. Without the option it says what may be lost, and changes nothing.
    Recover {
        #[command(flatten)]
        state: StateArgs,
        /// Names of all other nodes, separated by commas: none of them runs, and none will come
        /// back as the node that it was.
        #[arg(long = "i-know-that-these-are-dead", value_delimiter = ',', value_name = "NODES")]
        dead: Vec<String>,
    },
    /// Begin the cluster anew on this machine, from a backup of its record. No node of the cluster
    /// may run, the agent of this machine must be stopped, and it must not be a member.
    Restore {
        /// A file that `cluster backup` wrote.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Name of the node of the backup that this machine is.
        #[arg(long = "as", value_name = "NODE")]
        node: String,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Show the cluster and its nodes.
    Status,
    /// Choose settings for all resources that have no choice of their own. The value `default`
    /// takes a choice back.
    #[command(after_help = settings_help(true))]
    Set {
        /// Settings and their values.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
        settings: Vec<SettingArg>,
    },
    /// Show the settings that resources without a choice of their own have.
    Settings,
    /// Begin or end the maintenance of the whole cluster. Mainstay then moves, starts, restarts and
    /// stops nothing by itself, and NOTHING FAILS OVER. It goes on watching.
    Maintenance {
        #[command(flatten)]
        set: MaintenanceArgs,
    },
}

#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Make a token by which one machine may join under a name, once. It is shown once.
    Create {
        /// Name of the node that is to join.
        #[arg(value_name = "NODE")]
        node: String,
        /// Time for which the token is good, at most 24h.
        #[arg(long, default_value = "24h", value_name = "TIME", value_parser = duration::parse_with_unit)]
        ttl: u64,
    },
    /// List tokens by their public halves. Those that ended more than a day ago are left out.
    List,
    /// Make a token useless that no node has used.
    Revoke {
        /// Public half of the token, as `cluster token list` shows it.
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum AuthorityCommand {
    /// Show the authorities and, while one replaces the other, for which nodes that waits.
    Show,
    /// Replace the authority by a new one with a new key. It goes on by itself: all nodes learn of
    /// the new authority, then each gets a certificate of it, then no node believes the old one.
    /// Services and devices go on. Nodes that are off are waited for.
    Rotate,
    /// Withdraw the new authority. Refused once it gives certificates.
    Cancel,
    /// Wait no longer for nodes that are dead. No node believes them any more: each has to join
    /// anew, with `cluster join --replace`, and its replicas are filled again.
    LeaveOut {
        /// Names of the nodes. The cluster must count them as dead.
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args, Clone, Copy, Debug)]
#[command(group = ArgGroup::new("wish").required(true))]
pub struct MaintenanceArgs {
    /// Begin the maintenance, or change when it ends.
    #[arg(long, group = "wish")]
    pub on: bool,
    /// End the maintenance.
    #[arg(long, group = "wish")]
    pub off: bool,
    /// End the maintenance by itself after this time, for example 2h. Default: it lasts until
    /// --off.
    #[arg(long = "for", requires = "on", value_name = "TIME", value_parser = duration::parse_with_unit)]
    pub for_ms: Option<u64>,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Directory of the replica. Its files `meta` and `journal` are enough.
    pub directory: PathBuf,
    /// Journal of the replica, if the directory has neither the journal nor a link to it.
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
    /// Let no service and no primary come to a node. Those that are there stay.
    Cordon {
        /// Name of the node.
        name: String,
    },
    /// Let services and primaries come to a node again. Also ends a drain.
    Uncordon {
        /// Name of the node.
        name: String,
    },
    /// Move all services and primaries away from a node, one after another, and wait. Nothing comes
    /// back until `mainstay node uncordon NODE`. Exits with 4 if something stays there.
    Drain {
        /// Name of the node.
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Run the installed version on this machine: start agent and engine anew as units of systemd,
    /// and wait until its replicas are in sync. Services stay and wait for the engine where the
    /// devices allow that. Otherwise the node is drained first, and services come again. Does
    /// nothing if both run what is installed. Exits with 4 if something cannot leave the node.
    Upgrade {
        /// Start both anew although they run what is installed.
        #[arg(long)]
        always: bool,
        /// Drain the node although its services could stay.
        #[arg(long, conflicts_with = "interrupt")]
        drain: bool,
        /// Do not drain the node: its services stop while the engine starts anew.
        #[arg(long)]
        interrupt: bool,
        #[command(flatten)]
        wait: UpgradeWait,
    },
    /// Begin or end the maintenance of a node. Mainstay then moves, starts, restarts and stops
    /// nothing there by itself, and what is there DOES NOT FAIL OVER. It goes on watching.
    Maintenance {
        /// Name of the node.
        name: String,
        #[command(flatten)]
        set: MaintenanceArgs,
    },
    /// Say that a node is off, where the fence command cannot. Other nodes then take over what
    /// waits for that. If the node is not off, two nodes may serve at the same time.
    ConfirmOff {
        /// Name of the node. The cluster must count it as dead.
        node: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Remove a node from the cluster, alive or dead, with its vote and its replicas. Mainstay
    /// refuses to remove a primary, a node whose vote the others need, and a node with data that no
    /// other living node has. A removed node is told so, and stops.
    Remove {
        /// Name of the node.
        name: String,
        /// Remove it although it holds the only replica of a resource. That data is lost.
        #[arg(long)]
        force: bool,
    },
    /// Let another member take over the replicas of a dead node, and remove the dead node. For a
    /// new machine under the same name, use `cluster join --replace` on that machine.
    Replace {
        /// Name of the dead node.
        name: String,
        /// Name of a living member.
        #[arg(long, value_name = "NODE")]
        with: String,
    },
    /// Record other addresses of a node.
    SetAddress {
        /// Name of the node.
        name: String,
        /// Address of its agent, with or without a port. Without one it is port 7400.
        #[arg(long)]
        address: String,
        /// Address of its engine, with or without a port [default: the host of --address, port
        /// 7401]
        #[arg(long)]
        engine_address: Option<String>,
        /// Record them although the node does not answer there now.
        #[arg(long)]
        unseen: bool,
    },
}

/// Directory of a node's state, for commands that need the agent stopped.
#[derive(Args, Debug, Clone)]
pub struct StateArgs {
    /// Durable state of the node.
    #[arg(long, default_value = "/var/lib/mainstay", value_name = "DIR")]
    pub state_dir: PathBuf,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("content").required(true).multiple(true))]
pub struct CreateArgs {
    /// Name of the resource: 1 to 32 characters out of a-z, 0-9 and the dash.
    pub name: String,
    /// Size of a volume, for example 4GiB; once per volume. GiB and G are powers of 1024, GB of
    /// 1000. Default with --from: the sizes in the snapshot; larger ones are allowed.
    #[arg(long = "size", group = "content", value_parser = size::parse_blocks, value_name = "SIZE")]
    pub sizes: Vec<u64>,
    /// Start from a snapshot of another resource, for example db@before-upgrade. Replicas on nodes
    /// that hold the snapshot share its space; other replicas are copied from them.
    #[arg(long, group = "content", value_name = "RESOURCE@SNAPSHOT", value_parser = parse_origin)]
    pub from: Option<OriginView>,
    /// Size of the journal [default: 256MiB]
    #[arg(long, value_parser = size::parse_blocks, value_name = "SIZE")]
    pub journal: Option<u64>,
    /// Nodes that get a replica, separated by commas.
    #[arg(long, value_delimiter = ',', conflicts_with = "replica_count", value_name = "NODES")]
    pub replicas: Vec<String>,
    /// Number of replicas. The nodes with the most free space get them; with --from, the nodes that
    /// hold the snapshot come first [default: 2, or 1 if there is one node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub replica_count: Option<u32>,
    /// Nodes that should be primary, best first, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NODES")]
    pub preferred: Vec<String>,
    #[command(flatten)]
    pub scrub: ScrubArgs,
    /// Number of in-sync replicas, the primary's included, that must have a write before it is
    /// acknowledged [default: 1]
    #[arg(long, value_name = "N")]
    pub min_copies: Option<u32>,
    #[command(flatten)]
    pub suspend: SuspendArgs,
    /// A setting of the resource, for example mode=b. Give the option once per setting. `mainstay
    /// resource set --help` lists all of them.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub settings: Vec<SettingArg>,
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Limits for writes while fewer copies exist than are wanted.
#[derive(Args, Debug, Clone, Copy)]
pub struct SuspendArgs {
    /// Time for which writes wait while there are fewer copies than wanted, for example 20s; at
    /// most 1h. After that they fail until there are enough again. 0s: they fail at once [default:
    /// 20s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms)]
    pub suspend_io: Option<u64>,
}

/// Schedule of scrubs, and what they repair.
#[derive(Args, Debug, Clone, Copy)]
pub struct ScrubArgs {
    /// Interval at which all replicas are compared, when all are in sync, for example 7d. off: only
    /// on demand [default of a new resource: 30d]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_ms_or_off)]
    pub scrub_interval: Option<u64>,
    /// Blocks that a scheduled scrub repairs. proven: those whose right content is known by
    /// checksums or by more than half of the replicas. off: none. all: also those where nothing is
    /// proven, such as with two replicas without checksums; they get the content that the primary
    /// has [default of a new resource: proven]
    #[arg(long, value_name = "WHAT", value_parser = scrub_repair())]
    pub scrub_repair: Option<ScrubRepair>,
    /// Limit for reading, in bytes per second and replica. 0: as fast as possible without slowing
    /// down clients [default of a new resource: 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_none)]
    pub scrub_rate: Option<u64>,
}

impl ScrubArgs {
    /// The settings that are given.
    pub fn settings(self) -> impl Iterator<Item = (Key, u64)> {
        let settings = [
            (Key::ScrubInterval, self.scrub_interval),
            (Key::ScrubRepair, self.scrub_repair.map(|repair| repair as u64)),
            (Key::ScrubRate, self.scrub_rate),
        ];
        settings.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }
}

/// A setting and its value; `None` takes the choice back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingArg {
    pub name: String,
    pub value: Option<String>,
}

/// `NAME=VALUE`.
fn parse_setting(text: &str) -> Result<SettingArg, String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("write a setting and its value, for example slow-ack=20ms or slow-ack=default")?;
    let (key, chosen) = parse_change(name, value)?;
    Ok(SettingArg { name: name.to_owned(), value: chosen.map(|value| key.setting().write(value)) })
}

/// Width of help that clap does not fold, without its indentation.
const HELP_COLUMNS: usize = 74;

/// Help on all settings of a resource, and those of the cluster only.
fn settings_help(of_cluster: bool) -> String {
    let mut text = "Settings:".to_owned();
    for setting in SETTINGS.iter().filter(|setting| of_cluster || setting.scope == Scope::Resource) {
        let (default, range) = (setting.write(setting.default_value()), setting.range());
        // Lines after the first are folded to the same indentation.
        let help = fold(&format!("{} Values: {range}.", setting.help), Some(HELP_COLUMNS));
        text += &format!("\n  {}={default}\n    {help}", setting.name);
    }
    text
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

/// Options for waiting. Long work goes on in the cluster, and the command follows it to its end.
#[derive(Args, Debug, Clone, Copy)]
pub struct WaitArgs {
    /// Return as soon as the change is recorded.
    #[arg(long)]
    pub no_wait: bool,
    /// Give up waiting after this many seconds; the work goes on.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = duration::parse_s)]
    pub wait_s: u64,
}

#[derive(Args, Clone, Copy, Debug)]
pub struct UpgradeWait {
    /// Give up waiting for one step after this many seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = duration::parse_s)]
    pub wait_s: u64,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Keep the content of all volumes of a resource at one moment, the same on every replica,
    /// while the resource is in use. The command waits until every in-sync replica has the
    /// snapshot.
    Create {
        /// Name of the resource.
        name: String,
        /// Name of the snapshot: 1 to 32 characters out of a-z, 0-9 and the dash.
        snapshot: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// List the snapshots of a resource.
    List {
        /// Name of the resource.
        name: String,
    },
    /// Show one snapshot, its files on this node, and the space that they take in the pool. The
    /// command reads the files' extent maps.
    Show {
        /// Name of the resource.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
    },
    /// Bring all volumes back to a snapshot, on every replica at the same position of the log. The
    /// present state is kept as a snapshot, so you can undo the rollback. No program may use the
    /// devices meanwhile.
    Rollback {
        /// Name of the resource.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
        /// Name of the snapshot that keeps the present state. Default: before-rollback-N.
        #[arg(long, value_name = "SNAPSHOT")]
        keep: Option<String>,
        /// Do not keep the present state. It is LOST.
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
        /// Name of the resource.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Copy the volumes of a snapshot to a directory of this node, to mount, change and throw away.
    /// If the directory is on the file system of the pool, the copy is made at once and takes no
    /// space of its own.
    Clone {
        /// Name of the resource.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
        /// Directory to make; it must not exist or must be empty.
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
    Status {
        /// Name of the resource.
        name: String,
    },
    /// Make a replica on one more node and wait until it is in sync.
    AddReplica {
        /// Name of the resource.
        name: String,
        /// Node that gets the replica.
        node: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Remove the replica on a node, with its data, and wait until it is gone.
    RemoveReplica {
        /// Name of the resource.
        name: String,
        /// Node whose replica is removed.
        node: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Make a replica on another node, and remove this one when the new one is in sync. A primary
    /// first hands over its role.
    MoveReplica {
        /// Name of the resource.
        name: String,
        /// Node whose replica moves.
        node: String,
        /// Node that gets the new replica.
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Move the primary of a resource that no service uses to another node, and wait until that
    /// node serves. The node gets everything first, and no lease is waited for. Refused while
    /// something uses the devices. A resource with a service moves with it: `mainstay service
    /// move`.
    Move {
        /// Name of the resource.
        name: String,
        /// Node that becomes primary [default: the best one that is in sync]
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Make a volume larger while it is in use. Volumes do not shrink.
    Resize {
        /// Name of the resource.
        name: String,
        /// The new size, for example 8GiB. GiB and G are powers of 1024, GB of 1000.
        #[arg(value_parser = size::parse_blocks)]
        size: u64,
        /// Number of the volume, counted from 0.
        #[arg(long, default_value_t = 0)]
        volume: u16,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Choose settings of a resource, for example `slow-ack=20ms`; the resource stays in use. The
    /// value `default` takes a choice back: the value of the cluster counts again, or else the
    /// default.
    #[command(after_help = settings_help(false))]
    Set {
        /// Name of the resource.
        name: String,
        /// Settings and their values.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
        settings: Vec<SettingArg>,
    },
    /// Show the settings of a resource, and where each value comes from.
    Settings {
        /// Name of the resource.
        name: String,
    },
    /// Choose when writes are acknowledged; the resource stays in use. C (the default): when all
    /// in-sync replicas have the write in their journals. B: when all in-sync replicas have it in
    /// memory; a flush waits for the journals. A: when the primary's own journal has it; the other
    /// replicas follow, and what they lack is lost if an operator goes on without the primary.
    SetMode {
        /// Name of the resource.
        name: String,
        /// The mode.
        #[arg(value_parser = ["a", "b", "c", "A", "B", "C"])]
        mode: String,
        /// Mode A: bytes that a follower may lack. Writes wait for a follower that lacks more. At
        /// most half the journal [default: 64MiB, or half the journal if that is less]
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        lag_bytes: Option<u64>,
        /// Mode A: age of the oldest entry that a follower may lack, in seconds. Writes wait for a
        /// follower that lacks an older one [default: 10]
        #[arg(long, value_name = "SECONDS", value_parser = duration::parse_s)]
        lag_s: Option<u64>,
        /// Mode A: when the primary is lost, a follower within these limits takes over without an
        /// operator. The writes that it lacks are LOST. Without this option the resource's own
        /// choice is taken back.
        #[arg(long)]
        takeover: bool,
    },
    /// Choose how many in-sync replicas must have a write before it is acknowledged; the resource
    /// stays in use. With fewer copies writes wait, and fail after --suspend-io. With 2, no write
    /// rests on one machine. With 1 (the default), the last replica goes on alone.
    SetMinCopies {
        /// Name of the resource.
        name: String,
        /// Number of copies, the primary's included.
        #[arg(value_name = "N")]
        copies: u32,
        #[command(flatten)]
        suspend: SuspendArgs,
    },
    /// Go on from a replica that may lack acknowledged writes, because no replica that has all of
    /// them comes back. Without --accept-loss the command only says what would be lost.
    ForcePromote {
        /// Name of the resource.
        name: String,
        /// Node whose replica becomes primary.
        node: String,
        /// Promote the replica, and accept the loss that the command names.
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Compare all replicas, block by block, while they are in use, and wait for the end. Each
    /// extent is compared at one entry of the log. Exits with 5 if replicas differ, or if not all
    /// could be compared.
    Scrub {
        /// Name of the resource.
        name: String,
        /// Repair blocks that differ. A block that does not fit its checksum is wrong. Of the
        /// others, the content that more than half hold is right. If there is none, the content of
        /// the primary is right, unless more replicas hold another one.
        #[arg(long, conflicts_with_all = ["report", "stop"])]
        repair: bool,
        /// Limit for reading, in bytes per second and replica, for example 50MiB [default: as fast
        /// as possible without slowing down clients]
        #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["report", "stop"])]
        rate: Option<u64>,
        /// Do not wait for the end.
        #[arg(long, conflicts_with_all = ["report", "stop"])]
        no_wait: bool,
        /// Show the progress of the scrub that runs, or the result of the last one.
        #[arg(long, conflicts_with = "stop")]
        report: bool,
        /// End the scrub that runs.
        #[arg(long)]
        stop: bool,
    },
    /// Choose when scrubs start on schedule and what they repair; the resource stays in use.
    /// Options that you leave out keep their values.
    SetScrub {
        /// Name of the resource.
        name: String,
        #[command(flatten)]
        scrub: ScrubArgs,
    },
    /// Give the devices of a resource to a node without a replica, and take them from its primary.
    /// The command waits until the devices are there. When the primary fails, requests wait for the
    /// next primary. One node at a time has the devices, and only that node can write. The resource
    /// must have no service.
    Attach {
        /// Name of the resource.
        name: String,
        /// Node that gets the devices.
        node: String,
        /// Time for which a request waits for a primary; then it fails, and the devices with it.
        /// For example 90s, 10m or 1h; from 1s to 1h [default: 60s]
        #[arg(long = "wait", value_name = "TIME", value_parser = duration::parse_ms)]
        wait_ms: Option<u64>,
        /// Take the devices from another node that has them. Its requests fail from then on.
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Give the devices back to the primary. Requests without an answer fail.
    Detach {
        /// Name of the resource.
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Delete a resource and its data on all nodes. Refused while its devices are in use. On a
    /// terminal it asks for the name once more; elsewhere it needs --yes.
    Delete {
        /// Name of the resource.
        name: String,
        /// Delete without asking for the name.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
}
