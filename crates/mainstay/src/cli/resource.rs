//! `mainstay resource …` and `mainstay snapshot …`: their verbs and options.

use super::{SettingArg, WaitArgs, WatchArgs, parse_setting, settings_help};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use mainstay_api::rest::{OriginView, ScrubRepair};
use mainstay_cli::list::form_arg;
use mainstay_types::{Key, duration, size};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum ResourceCommand {
    /// Create a resource and wait until all its replicas are in sync.
    Create(CreateArgs),
    /// List the resources.
    #[command(arg = form_arg())]
    List(WatchArgs),
    /// Show one resource with its replicas.
    Status {
        /// Name of the resource.
        name: String,
        #[command(flatten)]
        watch: WatchArgs,
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
    #[command(arg = form_arg())]
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
    #[command(arg = form_arg())]
    List {
        /// Name of the resource.
        name: String,
        #[command(flatten)]
        watch: WatchArgs,
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
