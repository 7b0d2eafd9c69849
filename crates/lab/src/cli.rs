//! The command line of the lab and of the benchmark.

use crate::members::lab_name;
use clap::{Args, Parser, Subcommand};
use mainstay_cli::connect::Target;
use mainstay_types::{duration, size};
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes:
  0    done
  1    refused or failed; the message names a code, the cause and what to do
  2    wrong command line
  3    `bench`: no agent answered
  125  `exec`: the command could not be started (otherwise its own code)
  130  interrupted; the message says what goes on without the command";

/// A whole cluster on this machine, for trying out and testing. Needs root.
#[derive(Parser, Debug)]
#[command(name = "mainstay-lab", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub lab: LabArgs,
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Debug)]
pub struct LabArgs {
    /// Name of the lab; several can be up at once [default: lab]
    #[arg(long, global = true, env = "MAINSTAY_LAB", value_parser = lab_name)]
    pub name: Option<String>,
    /// Directory that holds the labs: state, disks, logs [default: /var/tmp/mainstay-lab]
    #[arg(long, global = true, env = "MAINSTAY_LAB_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(flatten)]
    Lab(LabVerb),
    /// Measure devices, files and databases under fio and sysbench.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Run as the first process of a node. `up` and `start` start this.
    #[command(hide = true)]
    Node(NodeArgs),
    /// End FUSE connections that outlived their node. `kill` starts this.
    #[command(hide = true)]
    FuseAbort { connections: Vec<u32> },
}

#[derive(Subcommand, Debug)]
pub enum LabVerb {
    /// Make a lab and form a cluster of its nodes.
    Up(UpArgs),
    /// Remove a lab, its disks included. This also removes what an interrupted command left.
    Down,
    /// Cut a node's power: every process dies at once, unsynced data is gone.
    Kill {
        /// Name of the node.
        node: String,
    },
    /// Return a node after a power cut.
    Start {
        /// Name of the node.
        node: String,
    },
    /// Stop all processes of a node where they stand.
    Pause {
        /// Name of the node.
        node: String,
    },
    /// Let a paused node go on.
    Resume {
        /// Name of the node.
        node: String,
    },
    /// Let nothing pass between two nodes.
    Cut {
        /// Name of a node.
        one: String,
        /// Name of another node.
        other: String,
    },
    /// Cut a node off from everything.
    Isolate {
        /// Name of the node.
        node: String,
    },
    /// End all cuts and isolations.
    Heal,
    /// Run a command inside a node, or inside the network of `client`. Passes its exit code.
    Exec {
        /// Name of the node, or `client`.
        node: String,
        /// Program and arguments, after `--`.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Let programs of this machine reach a port inside the lab, until you interrupt this.
    Forward {
        /// Address and port inside the lab, for example 10.213.0.1:7404, the console of n1.
        to: std::net::SocketAddr,
        /// Address and port on this machine.
        #[arg(long, default_value = "127.0.0.1:7404", value_name = "ADDRESS:PORT")]
        listen: std::net::SocketAddr,
    },
    /// Show the nodes and the state of the network.
    Status,
    /// Show what engine and agent of a node have logged.
    Logs(LogsArgs),
}

#[derive(Args, Debug)]
pub struct UpArgs {
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub nodes: u8,
    /// Size of each node's disk; space is taken only as it is written.
    #[arg(long, default_value = "16GiB", value_parser = size::parse, value_name = "SIZE")]
    pub disk: u64,
    /// Make disks whose file system cannot clone files, as on many machines. Snapshots are kept in
    /// another way there.
    #[arg(long)]
    pub no_reflink: bool,
    /// Use directories of the machine's own file system as disks. Writes then pass no loop device,
    /// and a power cut loses nothing that a program has written. For measurements.
    #[arg(long, conflicts_with_all = ["disk", "no_reflink"])]
    pub directories: bool,
    /// Nodes that join as witnesses, separated by commas: they vote, hold no data, and run an agent
    /// and no engine. n1 cannot be one, because it makes the cluster.
    #[arg(long, value_delimiter = ',', value_name = "NODE", conflicts_with = "plain")]
    pub witness: Vec<String>,
    /// Make nodes that are whole machines: systemd is their first process. Without --package they
    /// have no Mainstay.
    #[arg(long, conflicts_with_all = ["directories", "witness"])]
    pub systemd: bool,
    /// Debian package of Mainstay that is installed on each node: `make deb` builds it.
    #[arg(long, value_name = "FILE", requires = "systemd", conflicts_with = "plain")]
    pub package: Option<PathBuf>,
    /// Start neither engine nor agent, and form no cluster.
    #[arg(long)]
    pub plain: bool,
    /// Lease of the cluster, in milliseconds [default: 2000]
    #[arg(long, value_name = "MS", value_parser = duration::parse_bare_ms)]
    pub lease_ms: Option<u64>,
    /// Leave everything as it is if the command fails, so that you can look at it.
    #[arg(long)]
    pub keep: bool,
}

#[derive(Args, Debug)]
pub struct LogsArgs {
    /// Name of the node.
    pub node: String,
    /// Show only the log of this program [default: all]
    #[arg(long, value_parser = ["engine", "agent", "init"])]
    pub program: Option<String>,
    /// Number of lines from the end of each log.
    #[arg(long, short = 'n', default_value_t = 40)]
    pub lines: usize,
    /// Go on and print lines as they are written.
    #[arg(long, short)]
    pub follow: bool,
}

#[derive(Args, Debug)]
pub struct NodeArgs {
    /// Directory of the lab itself.
    #[arg(long)]
    pub lab_dir: PathBuf,
    #[arg(long = "self")]
    pub node: String,
    /// The node's disk: a loop device, or a directory.
    #[arg(long)]
    pub disk: PathBuf,
    /// Set by the process that has entered the new namespaces.
    #[arg(long)]
    pub inside: bool,
}

#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure with fio. It DESTROYS the content of devices and files, so targets that are not
    /// empty are refused.
    Fio {
        /// Block devices, files, directories (a file is made there and removed), or resource:NAME
        /// for the first volume of a resource whose primary is this node. The first is the baseline
        /// of the others.
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<String>,
        /// Bytes of each target that are used.
        #[arg(long, default_value = "1GiB", value_parser = size::parse, value_name = "SIZE")]
        size: u64,
        /// Overwrite the content of devices and files.
        #[arg(long)]
        overwrite: bool,
        /// I/O engine of fio in all cases, on devices and files [default: as each case says]. On
        /// some devices io_uring hands each request to a worker thread, and libaio does not.
        #[arg(long, value_name = "ENGINE", value_parser = ["io_uring", "libaio"])]
        engine: Option<String>,
        #[command(flatten)]
        run: BenchArgs,
    },
    /// Start a MariaDB of its own in each directory, for example where a volume is mounted, and let
    /// sysbench load it. Both are removed. Needs root.
    Sysbench {
        /// Directories. The first is the baseline of the others.
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
    /// Cases to run, separated by commas; `rw4k-j8-*` means all cases whose names begin like that
    /// [default: all]
    #[arg(long, value_delimiter = ',', value_name = "CASES")]
    pub only: Vec<String>,
    /// Number of runs of each case on each target.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Duration of each run, in seconds.
    #[arg(long, default_value_t = 10, value_parser = bench_seconds, value_name = "SECONDS")]
    pub seconds: u32,
    /// Also write report.md, report.json and plots to this directory. An interrupted benchmark goes
    /// on from there.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Duration of a run of a benchmark.
fn bench_seconds(text: &str) -> Result<u32, String> {
    const MOST: u64 = 3600;
    match duration::parse_s(text)? {
        seconds @ 1..=MOST => Ok(seconds as u32),
        _ => Err(format!("a run takes 1 to {MOST} seconds")),
    }
}
