//! `mainstay cluster …`: its verbs and their options.

use super::{MaintenanceArgs, SettingArg, StateArgs, WatchArgs, parse_setting, settings_help};
use clap::Subcommand;
use mainstay_cli::list::form_arg;
use mainstay_types::duration;
use std::path::PathBuf;

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
    Status(WatchArgs),
    /// Choose settings for all resources that have no choice of their own. The value `default`
    /// takes a choice back.
    #[command(after_help = settings_help(true))]
    Set {
        /// Settings and their values.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
        settings: Vec<SettingArg>,
    },
    /// Show the settings that resources without a choice of their own have.
    #[command(arg = form_arg())]
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
    #[command(arg = form_arg())]
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
