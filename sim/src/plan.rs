//! A run before it happens: the shape of the cluster, and everything that is done to it from
//! outside. A plan is data. `swarm.rs` makes it from a seed, a person may write it, and `shrink.rs`
//! makes it smaller. The same plan gives the same run.

use mainstay_types::{BackgroundLimits, NodeId, ScrubRepair, SlowLimits};

/// See the top of this file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Feeds every random stream of the run that is not in the plan: latencies, which sectors a
    /// crash leaves.
    pub seed: u64,
    pub shape: Shape,
    /// Ordered by time.
    pub steps: Vec<Step>,
    /// True time at which faults stop: everything is healed and must converge (L1 to L7), in
    /// milliseconds.
    pub heal_at_ms: u64,
    /// Damage that no system survives is among the steps: the only right end is a clear stop or
    /// correct data.
    pub unsurvivable: bool,
}

impl Plan {
    /// Whether a disk damages a volume, or lies.
    #[must_use]
    pub fn hurts_volumes(&self) -> bool {
        self.steps.iter().any(|step| match step.action {
            Action::Fault(Fault::Disk { fault, .. }) => {
                matches!(fault, DiskFault::RotVolume { .. } | DiskFault::LostBlock { .. })
                    || crate::budget::harm(fault) == crate::budget::Harm::Lie
            }
            _ => false,
        })
    }
}

/// Make-up of the cluster. Nodes are n1, n2, ...; all are voters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// 1 to 5 (or more, with witnesses).
    pub nodes: u32,
    /// One for each resource.
    pub resources: Vec<ResourceShape>,
    /// Rate of each node's clock, in parts per million of deviation: -10_000 to 10_000.
    pub clock_ppm: Vec<i64>,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    pub margin_ms: u64,
    /// Mean one-way latency of the network, in microseconds.
    pub latency_us: u64,
    /// Mean time of a durable disk write, in microseconds.
    pub disk_us: u64,
    /// Share of agents' datagrams that are lost, duplicated, late beyond order; per mille each.
    pub datagram_loss: u64,
    pub datagram_duplicate: u64,
    pub datagram_late: u64,
    /// Share of proposals to the control plane that are lost before, or whose outcome is delayed;
    /// per mille.
    pub proposal_loss: u64,
    pub away: Away,
    /// The kernel keeps the devices of an engine that dies, and everything that is asked of them.
    /// Otherwise such devices end with their engine.
    pub devices_stay: bool,
}

/// Nodes that stay away when faults stop, until the other nodes have been seen to go on without
/// them. They are a minority of the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Away {
    pub nodes: Vec<u32>,
    /// The nodes that stay away run, each cut off from all others. Otherwise they are switched off.
    pub cut: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceShape {
    /// Nodes that hold a replica, by number from 1.
    pub replicas: Vec<u32>,
    /// Blocks of each volume.
    pub volumes: Vec<u64>,
    /// Blocks that each volume may grow to ([`Operator::Grow`]). Clients ask for all of them once
    /// they are there.
    pub grown: Vec<u64>,
    /// Journal size in blocks; a batch of one block takes two.
    pub journal_blocks: u64,
    /// With a service on top: mount, one process, an address.
    pub service: bool,
    /// Overlay bytes at which destaging starts, in blocks.
    pub destage_start_blocks: u64,
    /// Payload kept in memory, in blocks; beyond it is read from the journal.
    pub memory_blocks: u64,
    /// Largest amount of data that a peer may have unacknowledged, in blocks.
    pub window_blocks: u64,
    /// When a member is too slow to stay.
    pub slow: SlowLimits,
    /// How fast its replicas are filled.
    pub background: BackgroundLimits,
    /// The operator makes the resource while the cluster runs ([`Operator::CreateResource`]), not
    /// before. Only the last one may be made so.
    pub late: bool,
    /// Resource whose snapshot this one is made of. It is made late, and only if that is possible.
    pub origin: Option<usize>,
    /// The replicas are added, removed and moved while the cluster runs. Then none of them is
    /// damaged, because the only complete replica could be the damaged one.
    pub moves: bool,
    /// The mode changes while the resource is used, and a promotion may be forced. Then, too, none
    /// of its replicas is damaged, because the only in-sync replica could be the damaged one.
    pub modes: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// True time since the beginning.
    pub at_ms: u64,
    pub action: Action,
}

/// Resource numbers count from 0, in the order of the shape. Blocks are 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Client { resource: usize, op: ClientOp },
    Fault(Fault),
    Operator(Operator),
}

/// Sent to every device of the resource that exists at that moment; there should be one at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientOp {
    Write { volume: u16, block: u64, blocks: u64 },
    Read { volume: u16, block: u64, blocks: u64 },
    Discard { volume: u16, block: u64, blocks: u64 },
    WriteZeroes { volume: u16, block: u64, blocks: u64 },
    Flush,
}

/// Target of a fault, resolved to a node when the fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Node(NodeId),
    /// The primary of resource number n, as the control plane has it.
    Primary(usize),
    /// Some other replica of resource number n; the second number chooses which.
    Secondary(usize, u64),
    /// The leader of the control plane.
    Leader,
}

/// Ids are those of `faults.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// F25, F1: every process is gone at once; of what was not flushed any subset of sectors stays.
    PowerCut(Target),
    /// The machine runs again.
    PowerOn(Target),
    PowerCutAll,
    PowerOnAll,
    /// F21: kill -9; it is started again at once, or by `StartEngine`.
    KillEngine {
        target: Target,
        restart_after_ms: u64,
    },
    KillAgent {
        target: Target,
        restart_after_ms: u64,
    },
    /// The engine is replaced on purpose: it leaves its devices to the next one, which starts after
    /// this time. If it cannot do so, it is killed.
    ReplaceEngine {
        target: Target,
        gap_ms: u64,
    },
    /// F24: SIGSTOP or a VM pause; clocks go on.
    PauseMachine {
        target: Target,
        ms: u64,
    },
    PauseEngine {
        target: Target,
        ms: u64,
    },
    PauseAgent {
        target: Target,
        ms: u64,
    },
    /// F42: the wall clock of the machine steps. Nothing may depend on it.
    StepClock {
        target: Target,
        by_ms: i64,
    },
    /// F33: both directions, engines and agents.
    Cut(Target, Target),
    /// F33: only agents, or only engines, of both nodes.
    CutAgents(Target, Target),
    CutEngines(Target, Target),
    /// F34: messages of the first to the second do not arrive; the connection stays.
    CutOneWay(Target, Target),
    Isolate(Target),
    /// The nodes whose bit is set (bit 0 is n1) on one side, the rest on the other.
    Partition(u64),
    /// All cuts end.
    Heal,
    /// F36: everything between the two takes this many times longer until `Heal`.
    SlowLink {
        a: Target,
        b: Target,
        factor: u64,
    },
    /// F36: the engines' bytes between the two are limited to this many KiB per second, until
    /// `Heal`.
    NarrowLink {
        a: Target,
        b: Target,
        kib_per_s: u64,
    },
    /// F38: the engines' connection breaks, in the middle of a frame.
    Reset(Target, Target),
    /// F37: one bit of the next frame that the first sends to the second is wrong.
    CorruptFrame(Target, Target),
    Disk {
        target: Target,
        resource: usize,
        fault: DiskFault,
    },
    /// F46: another voter leads, now.
    LeaderChange,
    /// F47: proposals on their way to the control plane's log get lost, or are applied with their
    /// answers lost.
    LoseProposals,
    /// F48: the node's control state is given to it whole, by a snapshot, the next time it lags.
    Snapshot(Target),
    /// A trap: harm at the next such moment of the resource, after `skip` others of its kind.
    /// Faults that come by the clock never hit a moment that lasts for a millisecond in a minute.
    Trap {
        resource: usize,
        moment: Moment,
        skip: u64,
        deed: Deed,
    },
    Service {
        target: Target,
        resource: usize,
        fault: ServiceFault,
    },
}

/// Moment at which a trap springs. Each has an actor, and a peer on which the actor acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The primary proposes to record a member, or to remove one: the peer (R3, R4).
    Grow,
    Shrink,
    /// A node proposes a new primary: the peer (R5).
    Promote,
    /// The primary proposes to be relieved; it is its own peer.
    StepDown,
    /// The primary asks the peer to begin a copy, sends it an extent, says that this was all (R16).
    CopyBegin,
    CopyExtent,
    CopyEnd,
    /// A replica says to the primary, the peer, that its log is empty: the copy has begun.
    CopyBegun,
    /// The primary tells the peer to cut its tail (R7).
    Cut,
    /// A replica says to the primary, the peer, that its tail is cut, durably.
    CutReply,
    /// A node proposes any other command, for itself or for an operator. The peer is the node or
    /// member that the command is about.
    Propose(Proposed),
}

/// Commands that have no moment of their own. A command about no resource, such as a death, springs
/// the traps of every resource.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Proposed {
    AddNode,
    NodeDead,
    NodeRejoin,
    CreateResource,
    DeleteResource,
    ReplicaReady,
    ReplicaBroken,
    ReplicaOpened,
    ReplicaReopened,
    ReplicaGone,
    AddReplica,
    RemoveReplica,
    MoveReplica,
    MovePrimary,
    FinishMove,
    GrowVolume,
    VolumeGrown,
    TakeSnapshot,
    DropSnapshot,
    SnapshotsSeen,
    RollBack,
    SetMode,
    ForcePromote,
    Trust,
    FailoverReady,
    NotFailoverReady,
    Memory,
    Part,
    ApplyService,
    DeleteService,
    ServiceGone,
    MoveService,
    StopService,
    SetMaintenance,
    MaintenanceCounted,
    SetCordon,
    StartService,
    RestartService,
    ServiceRestarted,
    ServiceStatus,
    AttachResource,
    DetachResource,
    ClaimAttachment,
    SetMinCopies,
    SetScrub,
    BeginScrub,
    ScrubEnded,
}

impl Proposed {
    /// All but those of clients, of scrubs, of copies, of services that are stopped or restarted,
    /// and of primaries that are moved without a service, which have kinds of their own.
    pub const ALL: [Self; 32] = [
        Self::AddNode,
        Self::NodeDead,
        Self::NodeRejoin,
        Self::CreateResource,
        Self::DeleteResource,
        Self::ReplicaReady,
        Self::ReplicaBroken,
        Self::ReplicaOpened,
        Self::ReplicaReopened,
        Self::ReplicaGone,
        Self::AddReplica,
        Self::RemoveReplica,
        Self::MoveReplica,
        Self::FinishMove,
        Self::GrowVolume,
        Self::VolumeGrown,
        Self::TakeSnapshot,
        Self::DropSnapshot,
        Self::SnapshotsSeen,
        Self::RollBack,
        Self::SetMode,
        Self::ForcePromote,
        Self::Trust,
        Self::FailoverReady,
        Self::NotFailoverReady,
        Self::Memory,
        Self::Part,
        Self::ApplyService,
        Self::DeleteService,
        Self::ServiceGone,
        Self::MoveService,
        Self::ServiceStatus,
    ];
}

/// Harm that a trap does at the moment that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// F47: the proposal, if it is one, is under way for this long and is not repeated.
    Late { ms: u64 },
    /// F46.
    LeaderChange,
    /// F21.
    KillEngine { whom: Side, restart_after_ms: u64 },
    /// F21: the agent.
    KillAgent { whom: Side, restart_after_ms: u64 },
    /// F25.
    PowerCut { whom: Side, on_after_ms: u64 },
    /// F38: the connection of both breaks.
    Reset,
    /// F14, as [`DiskFault::Late`].
    LateDisk { whose: Side, what: DiskOp, ms: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Actor,
    Peer,
}

/// Operations of a disk, by what they are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    Read,
    JournalWrite,
    VolumeWrite,
    MetaWrite,
    Flush,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFault {
    /// F14: every operation takes this many times longer; 1 ends it.
    Slow {
        factor: u64,
    },
    /// F14: operations in flight complete only after this time.
    Stall {
        ms: u64,
    },
    /// F14: the next such operation takes this long, and others overtake it.
    Late {
        what: DiskOp,
        ms: u64,
    },
    /// F7, F8, F6: the next write, flush or read fails.
    WriteError,
    FlushError,
    ReadError,
    /// F12: every operation fails from now on.
    Vanish,
    /// F11, F13: every write and flush fails from now on: there is no space, or the disk has become
    /// read-only.
    ReadOnly,
    /// F11: the pool has no space for blocks of volumes that were never written or were discarded,
    /// and has some again.
    Full,
    Room,
    /// F16: one copy of the superblock is damaged at rest.
    RotSuperblock {
        copy: u64,
    },
    /// F16, unsurvivable for this replica: all copies.
    RotSuperblocks,
    /// F5: a bit of a journal record that is still needed flips at rest; `pick` chooses it.
    RotJournal {
        pick: u64,
    },
    /// F5: a bit of the version table flips at rest.
    RotVersions {
        pick: u64,
    },
    /// F2, F3: the write of a journal record that is still needed was lost, or landed elsewhere in
    /// the journal; `pick` chooses it.
    LostRecord {
        pick: u64,
    },
    MisdirectedRecord {
        pick: u64,
    },
    /// F4: the next read of a part of such a record gets older content.
    StaleRecord {
        pick: u64,
    },
    /// F2, F3: the last write of a page of the version table was lost, or landed on another page;
    /// `pick` chooses it.
    LostVersions {
        pick: u64,
    },
    MisdirectedVersions {
        pick: u64,
    },
    /// F4: the next read of such a page gets older content.
    StaleVersions {
        pick: u64,
    },
    /// F2: the last write of one copy of the superblock was lost.
    LostSuperblock {
        copy: u64,
    },
    /// F2: the last write of a block of a volume was lost; `pick` chooses it.
    LostBlock {
        pick: u64,
    },
    /// F5: a bit of a volume flips at rest.
    RotVolume {
        pick: u64,
    },
    /// F2: the next durable write is acknowledged and never persisted.
    LostWrite,
    /// F3: the next write lands elsewhere.
    Misdirect,
    /// F4: the next read gets the content before the last write.
    StaleRead,
    /// F9: flushes and durable writes are acknowledged from a cache until the next power cut.
    LyingFlush,
    /// F15: at the next start the disk has the content of this moment.
    KeepImage,
    OldImage,
    /// R9: the node is stopped, its disk replaced by an empty one, and started.
    Replace,
    /// An operator removes the files of the replica, to have it copied again. If the engine has
    /// them open, it is started again; the agent goes on.
    Remove,
    /// F15: the files of another replica, whole and empty, are put in the place of these files,
    /// under their label. The engine is started again.
    OtherFiles,
    /// An operator puts a byte copy of a file in its place, while it is open. The agent has the
    /// engine, which goes on, close the replica and open what is there, as soon as the cluster does
    /// not count on it.
    Copied,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceFault {
    /// F59: does not stop on the signal.
    IgnoreStop,
    /// F60: the next step hangs until its time is over.
    Hang,
    /// F62, F65: starting fails on this node until `Well`.
    FailStart,
    /// F63: taking the address away fails once.
    KeepAddress,
    /// F65: the process ends by itself.
    Dies,
    /// The interface of its address came after the processes of Mainstay had started, on this node.
    LateInterface,
    /// An administrator sets its address on this node by hand, if it is not there.
    AddressByHand,
    /// An operator unmounts the file system under the service.
    Unmounted,
    /// An operator unmounts it, if it is mounted, and mounts another file system there, until
    /// `Well`.
    Replaced,
    /// The process stands still, as after SIGSTOP, until it is killed.
    StandsStill,
    /// The next probe of the process fails, although the process is well.
    FailProbe,
    /// The process answers that it recovers from a crash, until `Well`.
    Recovers,
    /// A check finds that pages of the files of the service can tear on this node. So does every
    /// check before a start until `Well`. A process that runs with arguments for whole pages is to
    /// be started again without them.
    PagesTear,
    /// Every fault of the service ends. An address or a file system that an operator has put there
    /// by hand is taken away again.
    Well,
}

/// The scope of a maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rests {
    Service,
    Node,
    Cluster,
}

/// How one service is tied to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tie {
    After,
    With,
    Apart,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// The service of resource number n, or its primary if it has none, is to be on another
    /// replica's node; the number chooses which.
    Move {
        resource: usize,
        pick: u64,
    },
    /// The service's specification is applied again, or anew if it was deleted. With `prefer`: it
    /// is to run on the node of that replica whenever it can, and goes back there.
    ApplyService {
        resource: usize,
        prefer: Option<u64>,
    },
    DeleteService {
        resource: usize,
    },
    /// The service is not to run until the operator starts it.
    StopService {
        resource: usize,
    },
    StartService {
        resource: usize,
    },
    /// A service, the node of its primary, or the cluster is in maintenance until the operator ends
    /// it, or for this time.
    Maintain {
        resource: usize,
        rests: Rests,
        for_ms: u64,
    },
    /// Every maintenance that the service is in ends.
    EndMaintenance {
        resource: usize,
    },
    /// The node of the primary is cordoned or drained.
    Cordon {
        resource: usize,
        drain: bool,
    },
    Uncordon {
        resource: usize,
    },
    /// The service is tied to that of another resource, until it is applied again.
    Tie {
        resource: usize,
        other: usize,
        tie: Tie,
    },
    /// The service is restarted where it runs: its last process, or all.
    RestartService {
        resource: usize,
        last: bool,
    },
    /// The resource is made; see [`ResourceShape::late`].
    CreateResource {
        resource: usize,
    },
    /// The resource goes, for good, and its service before it.
    DeleteResource {
        resource: usize,
    },
    /// The replicas are compared: digests are taken at once, and again while the primary holds new
    /// writes for `hold_ms`.
    Digest {
        resource: usize,
        hold_ms: u64,
    },
    /// The replicas are scrubbed, with repair or without, at `rate` bytes per second (0: no limit).
    Scrub {
        resource: usize,
        repair: bool,
        rate: u64,
    },
    StopScrub {
        resource: usize,
    },
    /// The replicas are scrubbed by themselves at this interval; 0: never.
    SetScrub {
        resource: usize,
        interval_ms: u64,
        repair: ScrubRepair,
    },
    /// A node that holds no replica of the resource gets one; the number chooses which, here and
    /// below.
    AddReplica {
        resource: usize,
        pick: u64,
    },
    RemoveReplica {
        resource: usize,
        pick: u64,
    },
    MoveReplica {
        resource: usize,
        from: u64,
        to: u64,
    },
    /// A volume is to have this many blocks.
    Grow {
        resource: usize,
        volume: u16,
        blocks: u64,
    },
    /// A snapshot is taken, or one of those that there are is deleted.
    Snapshot {
        resource: usize,
        drop: Option<u64>,
    },
    /// The resource is rolled back to one of its snapshots; `pick` chooses which. With `keep`, a
    /// new snapshot keeps the present content. With `restart`, its service is restarted for this;
    /// without it, the operator did not think of the service.
    RollBack {
        resource: usize,
        pick: u64,
        keep: bool,
        restart: bool,
    },
    /// The resource is to have `copies` copies. While it has fewer, requests wait for `suspend_ms`
    /// and then fail.
    MinCopies {
        resource: usize,
        copies: u32,
        suspend_ms: u64,
    },
    /// Mode A with these limits of the lag, in blocks and milliseconds, and perhaps with takeover;
    /// or mode C.
    SetMode {
        resource: usize,
        a: Option<(u64, u64, bool)>,
    },
    ModeB {
        resource: usize,
    },
    /// A promotion outside the in-sync set is forced, when one is possible in the next few seconds;
    /// the number chooses of which replica.
    Force {
        resource: usize,
        pick: u64,
    },
    /// A node without a replica gets the devices, even from another one if it is to take over; the
    /// number chooses which.
    Attach {
        resource: usize,
        pick: u64,
        wait_ms: u64,
        take_over: bool,
    },
    Detach {
        resource: usize,
    },
    /// A node that has joined long ago says so again.
    JoinAgain {
        pick: u64,
    },
}

impl Operator {
    /// The resource that it is about.
    #[must_use]
    pub fn resource(&self) -> Option<usize> {
        let mut copy = *self;
        copy.resource_mut().copied()
    }

    pub fn resource_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Move { resource, .. }
            | Self::ApplyService { resource, .. }
            | Self::DeleteService { resource }
            | Self::StopService { resource }
            | Self::Maintain { resource, .. }
            | Self::EndMaintenance { resource }
            | Self::Cordon { resource, .. }
            | Self::Uncordon { resource }
            | Self::Tie { resource, .. }
            | Self::StartService { resource }
            | Self::RestartService { resource, .. }
            | Self::CreateResource { resource }
            | Self::DeleteResource { resource }
            | Self::AddReplica { resource, .. }
            | Self::RemoveReplica { resource, .. }
            | Self::MoveReplica { resource, .. }
            | Self::Grow { resource, .. }
            | Self::Attach { resource, .. }
            | Self::Detach { resource }
            | Self::Snapshot { resource, .. }
            | Self::RollBack { resource, .. }
            | Self::SetMode { resource, .. }
            | Self::MinCopies { resource, .. }
            | Self::ModeB { resource }
            | Self::Force { resource, .. }
            | Self::Digest { resource, .. }
            | Self::Scrub { resource, .. }
            | Self::SetScrub { resource, .. }
            | Self::StopScrub { resource } => Some(resource),
            Self::JoinAgain { .. } => None,
        }
    }
}
