//! The command line as data: every noun, verb and option, from which help and errors come.

mod cluster;
mod look;
mod operation;
mod past;
mod resource;
mod roles;
mod service;
mod token;

pub use self::cluster::{AuthorityCommand, ClusterCommand, TokenCommand};
pub use self::look::{
    AtomicArgs, BundleArgs, CheckArgs, CheckCommand, ExplainArgs, ExplainCommand, TopArgs, WatchArgs,
};
pub use self::operation::OperationCommand;
pub use self::past::{
    AuditArgs, BaselineCommand, Compared, EventsArgs, HistoryArgs, ReportArgs, ReportCommand,
};
pub use self::resource::{CreateArgs, ResourceCommand, SnapshotCommand};
pub use self::roles::{AgentArgs, EngineArgs, PathArgs, SilencerArgs, log_filter};
pub use self::service::{ServiceCommand, ServiceCreateArgs, ServiceImportArgs, TemplateName};
pub use self::token::ApiTokenCommand;
use crate::connect::Target;
use crate::doctor::DoctorArgs;
use crate::front::FrontArgs;
use crate::output::fold;
use crate::router::RouterArgs;
use clap::{ArgGroup, Args, Parser, Subcommand};
use mainstay_cli::list::form_arg;
use mainstay_types::settings::{SETTINGS, parse_change};
use mainstay_types::{Scope, duration};
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
  0-3  `check`: OK, WARNING, CRITICAL, UNKNOWN, as Nagios and Icinga have it
       `check atomic`: 0 no page can tear, 1 a page can, 3 it could not be
       looked at
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
    /// List, look at and cancel long work that goes on in the cluster.
    #[command(subcommand)]
    Operation(OperationCommand),
    /// Say on which node a service runs, and why not on each other one.
    Explain(ExplainArgs),
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
    Status(WatchArgs),
    /// Show what the resources of one node do now, as a table that is renewed: requests, bytes,
    /// latency by stage, lag and journal. The last line names the device, link or replica for which
    /// requests wait most.
    Top(TopArgs),
    /// Say in one line whether all is well, with the exit codes and the performance data of Nagios
    /// and Icinga. Exits with 0 for OK, 1 for WARNING, 2 for CRITICAL and 3 for UNKNOWN.
    Check(CheckArgs),
    /// Gather what people who help you need to know into one file, without secrets.
    SupportBundle(BundleArgs),
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
    #[command(arg = form_arg())]
    List(WatchArgs),
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
