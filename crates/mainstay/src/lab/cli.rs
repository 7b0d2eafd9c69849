//! The command line of the lab.

use crate::members::lab_name;
use clap::{Args, Subcommand};
use mainstay_types::size;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct LabCommand {
    /// Name of the lab; several can be up at once [default: lab]
    #[arg(long, global = true, env = "MAINSTAY_LAB", value_parser = lab_name)]
    pub name: Option<String>,
    /// Directory that holds the labs: state, disks, logs [default: /var/tmp/mainstay-lab]
    #[arg(long, global = true, env = "MAINSTAY_LAB_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(subcommand)]
    pub verb: LabVerb,
}

#[derive(Subcommand, Debug)]
pub enum LabVerb {
    /// Make a lab and form a cluster of its nodes.
    Up(UpArgs),
    /// Remove a lab, its disks included. Works on remains as well.
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
    /// Disks that are directories of the machine's own file system: no loop device is in the way of
    /// what a node writes, and a power cut takes nothing that a program has written. For
    /// measurements.
    #[arg(long, conflicts_with_all = ["disk", "no_reflink"])]
    pub directories: bool,
    /// Nodes that vote and hold no data: each runs an agent and no engine, and joins as a witness.
    /// Not n1, which makes the cluster.
    #[arg(long, value_delimiter = ',', value_name = "NODE", conflicts_with = "plain")]
    pub witness: Vec<String>,
    /// Start neither engine nor agent; form no cluster.
    #[arg(long)]
    pub plain: bool,
    /// Lease of the cluster, in milliseconds [default: 2000]
    #[arg(long, value_name = "MS", value_parser = mainstay_types::duration::parse_bare_ms)]
    pub lease_ms: Option<u64>,
    /// Leave everything as it is if this fails, to look at it.
    #[arg(long)]
    pub keep: bool,
}

#[derive(Args, Debug)]
pub struct LogsArgs {
    /// Name of the node.
    pub node: String,
    /// Only this program [default: all]
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
pub struct LabNodeArgs {
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
