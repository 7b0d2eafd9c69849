//! The bugs that can be planted, each under the rule that it leaves out.
//!
//! Rules that small models found to lose data when left out, and the bugs that stand for them:
//!
//! | left out | planted as |
//! |---|---|
//! | shrink only after the change is known | `ShrinkBeforeKnown` |
//! | promote only members of the ISS | `OutsiderPromoted` |
//! | record a member only when it has everything; require it before | `GrowBeforeCaughtUp`, `GrowBeforeRequired` |
//! | keep a join whose outcome is open | `GiveUpJoin`, and on the other side `OldChangeApplied` |
//! | epochs are checked at replicas | `NoEpochCheck` |
//! | what was acknowledged from memory does not keep a crashed member in sync | `AckOnReceipt`, `InstanceNotChecked` |
//! | four rules of write quorums below the ISS | they do not apply: every member acknowledges (R2) |
//!
//! The four are: recover before serving, seal before reading, compare epochs and not only lengths,
//! begin with an epoch start. The last one holds here too, for another reason, and its bug is
//! `ServeAtOnce`.
//!
//! R23 to R25 are not the simulator's. Of R29 it has the decisions, and no network on which nodes
//! join.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])* $name:ident($rule:literal),)*) => {
        /// A rule that is left out. The texts say what goes wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Bug {
            $($(#[doc = $doc])* $name,)*
        }

        /// All of them, in the order of the rules.
        pub const BUGS: &[BugInfo] = &[
            $(BugInfo { bug: Bug::$name, name: stringify!($name), rule: $rule, what: concat!($($doc),*) },)*
        ];
    };
}

/// Row of a table of bugs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BugInfo {
    pub bug: Bug,
    pub name: &'static str,
    /// The rule of DESIGN.md, such as `R4`.
    pub rule: &'static str,
    pub what: &'static str,
}

bugs! {
    /// A replica accepts a lower epoch than it has promised.
    NoEpochCheck("R1"),
    /// A replica answers and sequences in an epoch before its promise is durable.
    PromiseNotAwaited("R1"),
    /// A primary goes on in its session with a replica that was closed and opened anew, and hears
    /// nothing.
    SessionOutlivesReplica("R1"),
    /// A promise is kept in memory only.
    PromiseNotPersisted("R1"),
    /// An entry counts as committed when the primary alone holds it.
    CommitAlone("R2"),
    /// Commits do not wait for a member that is disconnected.
    CommitWithoutDisconnected("R2"),
    /// An acknowledgement counts before its entries are durable at the replica that sends it.
    AckOnReceipt("R2"),
    /// In mode B an entry that a member has in memory counts as durable.
    ReceivedCountsAsCommitted("R2"),
    /// In mode B a flush is answered before everything acknowledged from memory is durable
    /// everywhere.
    FlushNotAwaited("R2"),
    /// A write is acknowledged although fewer copies are recorded than are wanted.
    CopiesNotAwaited("R2"),
    /// A member stops counting when its removal is proposed, not when it is known.
    ShrinkBeforeKnown("R3"),
    /// When the mode is not B any more, members may be promoted in any instance before everything
    /// that was acknowledged is durable.
    SettledTooEarly("R3"),
    /// A follower that may take over stops counting when its removal is proposed, not when it is
    /// known.
    UnreadyBeforeKnown("R3"),
    /// A member leaves for its slowness although too few copies remain.
    MinCopiesIgnored("R3"),
    /// A member that does not answer leaves although fewer copies remain than are wanted.
    AbsentAlwaysLeaves("R3"),
    /// A replica that left for its slowness returns at once.
    SlowReturnsAtOnce("R4"),
    /// A joiner is recorded before commits wait for it.
    GrowBeforeRequired("R4"),
    /// A joiner is recorded before it holds everything that was acknowledged.
    GrowBeforeCaughtUp("R4"),
    /// Entries in a member's memory count before the record names the instance in which they do.
    MemoryCountedTooEarly("R4"),
    /// A join is given up although its proposal may still happen.
    GiveUpJoin("R4"),
    /// A change of the ISS counts although the record has moved on since it was proposed.
    OldChangeApplied("R4"),
    /// A restarted primary goes on in the epoch that it may have served before.
    SameEpochTwice("R5"),
    /// A primary goes on although the record names another.
    KeepsServing("R5"),
    /// A replica outside the ISS is promoted and takes a place in it.
    OutsiderPromoted("R5"),
    /// A member that has lost its memory is promoted although what it had acknowledged may have
    /// been only there.
    InstanceNotChecked("R5"),
    /// When all have lost their memory, the first goes on, and not the one whose log reaches
    /// furthest.
    ShorterLogGoesOn("R5"),
    /// A promotion does not raise the epoch.
    EpochNotRaised("R5"),
    /// A device that an engine left is taken over although another node may have been primary
    /// since.
    MissingEpochIgnored("R5"),
    /// A device that an engine left goes on waiting although another node has become primary.
    OtherPrimaryIgnored("R5"),
    /// A service goes on in a later epoch, on other devices than those on which it began.
    OtherDevicesGoOn("R5"),
    /// A write that failed with the epoch is sequenced in the next one.
    FailedWriteKept("R5"),
    /// A new primary serves before its epoch start is committed.
    ServeAtOnce("R6"),
    /// A new primary serves when it alone holds its epoch start.
    EpochStartAlone("R6"),
    /// A service is started before the primary serves.
    ServiceBeforeEpochStart("R6"),
    /// A journal write that ends makes durable what is still being written before it.
    EarlierWritesNotAwaited("R7"),
    /// A tail of another epoch is not cut.
    NoCut("R7"),
    /// A secondary takes for committed whatever it holds.
    DurableIsCommitted("R7"),
    /// Reads and backing stores see entries that are durable but not committed.
    UncommittedApplied("R7"),
    /// A peer that refused is never asked again, so it stays behind for ever.
    AskOnce("R7"),
    /// A large write that is cut leaves in the volume what it had filled there.
    CutLeavesFilled("R7"),
    /// Recovery leaves in the volume what a write that was not finished had filled.
    RecoveryLeavesFilled("R7"),
    /// A read sees what a large write has filled before its entry is committed.
    FilledReadEarly("R7"),
    /// The payload of a large write goes to the volume before the journal says so.
    FilledBeforeHeader("R7"),
    /// An older entry that recovery applies once more stays over what a large write has filled.
    FilledUnderOlder("R7"),
    /// Sums of what was filled are durable before its commit index, so that recovery does not find
    /// the blocks blank after a crash during a cut.
    SumsBeforeCommit("R7"),
    /// A node without data is named primary when no member can be.
    WitnessPromoted("R8"),
    /// An operator is told that the primary's replica is being removed, which is refused.
    RefusalNotTold("R8"),
    /// A replica answers for another disk content, and is promoted with it.
    DiskNotChecked("R9"),
    /// A member with a new, empty disk stays in the ISS.
    NewDiskStaysInSync("R9"),
    /// A replica has its label before its files are complete.
    LabelledTooEarly("R9"),
    /// The files of a replica are used although they are not what its label says.
    LabelNotCompared("R9"),
    /// A copy of a replica's directory in the pool is taken for the replica.
    CopyTakenForReplica("R9"),
    /// A replica that is removed keeps its label.
    LabelKept("R9"),
    /// A replica goes on although its directory is gone from the pool.
    MovedDirectoryStays("R9"),
    /// A lease counts from when the acknowledgement came, not from when the heartbeat was sent.
    LeaseFromReceipt("R10"),
    /// A voter waits only for the length of a lease, without the margin for clock rates.
    MarginLeftOut("R10"),
    /// A voter suspects a node before its lease can have ended.
    SuspectsTooEarly("R10"),
    /// A voter acknowledges a generation that it suspected.
    SuspectAcknowledged("R10"),
    /// A voter tells a suspicion that a restart makes it forget.
    SuspicionNotPersisted("R10"),
    /// A node counts as dead when one voter suspects it.
    OneSuspicionKills("R10"),
    /// A node that rejoins keeps its generation, so what was said of the dead one still counts.
    GenerationReused("R10"),
    /// A late report of an earlier generation's death kills the present one.
    OldDeathCounts("R10"),
    /// A read is answered although the lease has ended by the time it completes.
    LeaseNotAsked("R10"),
    /// A replica that led when the lease ended leads on when there is another lease.
    LeadsOnAfterLease("R10"),
    /// A write is acknowledged although the lease has ended by the time it completes.
    LeaseNotAskedOfWrites("R10"),
    /// A replica that is removed keeps its place in the ISS.
    RemovedStaysInSync("R9"),
    /// A replica that moves is removed before the one at the new place is in sync.
    MoveEndsEarly("R11"),
    /// After a forced promotion a replica is trusted although it holds what the history has not any
    /// more.
    DoubtForgotten("R11"),
    /// In mode A a follower is promoted without anybody's word when the primary dies.
    FollowerPromoted("R11"),
    /// An empty replica is made in the place of one that the cluster counts on and whose directory
    /// is gone.
    MissedMadeAnew("R11"),
    /// The last living member leaves the ISS, and no replica can be promoted any more.
    IssEmptied("R11"),
    /// A damaged record that was durable is cut like a torn tail.
    CorruptionTruncated("R12"),
    /// Files whose log ends before what the replica is known to have held are used.
    OlderCopyBelieved("R12"),
    /// A torn tail is taken for damage when something behind it is whole.
    TornTakenForDamaged("R12"),
    /// A record calls durable what is being written at the same time.
    InFlightCalledDurable("R12"),
    /// Records that were cut count again after a restart.
    VoidIgnored("R12"),
    /// The payload of an entry is taken from journal and network without looking at its checksum.
    PayloadNotChecked("R12"),
    /// Blocks that are read from a volume are not compared with their sums.
    BlockSumsNotChecked("R12"),
    /// The target of a copy writes the placeholder of a lost block with a checksum that fits it.
    DamageCopiedAsContent("R12"),
    /// A copied extent is taken from the network without looking at its checksum.
    ExtentNotChecked("R12"),
    /// A large write is filled although no superblock says that such records are in the journal.
    FilledUnannounced("R12"),
    /// Blocks that a large write has filled become zeroes before the cut of it is durable.
    UndoneBeforeCut("R12"),
    /// A large write counts as durable before its payload in the volume is.
    FilledNotFlushed("R12"),
    /// Recovery counts on what it finds filled although it may be in the cache of the device alone.
    FoundFillsNotFlushed("R12"),
    /// Destaging overwrites what a large write has filled before a checkpoint covers it.
    FilledOverwritten("R12"),
    /// A write that failed counts as done.
    FailedWriteIgnored("R13"),
    /// A flush that failed counts as done.
    FailedFlushIgnored("R13"),
    /// The superblock is written before the volumes are flushed.
    FlushSkipped("R14"),
    /// The journal is reused before the checkpoint is durable.
    TrimTooEarly("R14"),
    /// Bytes read from the journal are used although their place was given to other entries
    /// meanwhile.
    ReusedPlaceRead("R14"),
    /// Only the first pair of superblock copies is written.
    OnePairWritten("R14"),
    /// Entries do not raise the versions of their extents.
    VersionsTooOld("R14"),
    /// The superblock goes on naming the older version table.
    SlotNotTurned("R14"),
    /// The checkpoint does not wait for the sums of blocks.
    SumsNotAwaited("R14"),
    /// Pages of the version table are taken as they are found, however old they are.
    OlderVersionsBelieved("R14"),
    /// Destaging a block forgets the newer entry over it.
    DestageForgetsNewer("R14"),
    /// A discard is logged and never done.
    DiscardForgotten("R15"),
    /// The last block of a zeroed range keeps its content in the backing store.
    ZeroesTooShort("R15"),
    /// The target of a copy is not marked inconsistent on its disk.
    CopyNotMarked("R16"),
    /// A copied extent keeps its old version, so that the next copy from here leaves it out.
    CopyVersionForgotten("R16"),
    /// The target of a copy joins the ISS before it is whole.
    JoinWhileCopied("R16"),
    /// A copy target calls itself whole before it is.
    CopyEndsEarly("R16"),
    /// A copy target is whole although newer content was sent than its log reaches to.
    CopyNeedsNothing("R16"),
    /// Only extents that changed since the copy began are copied.
    CopyListsNothing("R16"),
    /// A copy begins after what is not committed yet.
    CopyFromEnd("R16"),
    /// A copy that starts over asks only for what changed since the first one began.
    CopyForgetsBase("R16"),
    /// Content of a replica that is half copied to is kept as its content before the copy.
    KeptHalf("R16"),
    /// A copy begins before the content of its target is kept.
    KeptTooLate("R16"),
    /// The kept content of a copy's target stays when the target is whole.
    KeptForEver("R16"),
    /// An extent that is copied late overwrites what was destaged since.
    CopyOverwritesNewer("R16"),
    /// A copy waits at a block that no replica has whole.
    DamageHoldsUpCopies("R16"),
    /// Destaging and copying write the same block at the same time.
    WritesOverlap("R16"),
    /// Content that was read for an earlier copy is used in a later one.
    StaleExtent("R16"),
    /// A copy leaves out blocks of an extent although the target's sums of them differ.
    KeptUnequal("R16"),
    /// A digest is told although entries were committed while it was made.
    DigestOfMoving("R17"),
    /// A checkpoint does not record that a volume has grown.
    GrowthNotRecorded("R17"),
    /// The target of a copy keeps the sizes that its volumes had.
    GrowthNotCopied("R17"),
    /// Blocks that have changed again since are left out of a snapshot, and so are as they were
    /// long before it.
    SnapshotLeavesOut("R17"),
    /// The target of a copy takes a snapshot of what it has of its volumes.
    SnapshotOfHalf("R17"),
    /// A checkpoint does not record that a snapshot was taken.
    SnapshotNotRecorded("R17"),
    /// The target of a copy keeps the snapshots that it had.
    SnapshotsNotCopied("R17"),
    /// A command to take a snapshot that is repeated takes another one of the same name.
    SnapshotTakenAgain("R17"),
    /// A replica that does not hold the snapshot that is rolled back to goes on with what it has.
    RollbackLeftOut("R17"),
    /// Extents that a rollback changed keep their versions.
    RollbackNotInVersions("R17"),
    /// A read during a rollback is answered with the content before it.
    RollbackReadTooEarly("R17"),
    /// Sums of blocks that are in memory outlast a rollback.
    SumsOutlastRollback("R17"),
    /// A replica of a resource that is made of a snapshot is made where that is not at hand, and
    /// empty; and what is not there is taken.
    CloneMadeEmpty("R17"),
    /// A snapshot may be deleted, and its resource, while another one is made of it.
    OriginNotKept("R17"),
    /// A scrub takes content that is written while it reads an extent for the content at its entry.
    ScrubSeesLater("R17"),
    /// A repair takes back what clients have written since the scrub.
    RepairOverwritesNewer("R17"),
    /// When replicas differ, the smaller group counts as right.
    MinorityWins("R17"),
    /// A replica that knows its block to be damaged has a vote on what is right.
    DamagedVotes("R17"),
    /// Scrubs of the schedule begin beside others on the same nodes.
    ScrubsTogether("R17"),
    /// A scrub of the schedule is taken to go on when its primary is another.
    ScrubOutlivesPrimary("R17"),
    /// A page of sums that is read while the volumes are rolled back stays in memory.
    SumsReadAcrossRollback("R17"),
    /// A large write is filled beside a snapshot that is to hold what came before.
    FilledBesideSnapshot("R17"),
    /// In mode A writes do not wait for a follower that lags too far.
    LagUnbounded("R18"),
    /// The journal's reserve for epoch starts is given to writes.
    ReserveSpent("R18"),
    /// The primary's role ends and is handed over while its service still runs.
    HandedOverTooEarly("R19"),
    /// A node that has given its role up, and does not know whether that counts, starts its service
    /// on the same record.
    GivenUpServes("R19"),
    /// A service that waits for the next engine stays although the role is to go to another node.
    KeptServiceStays("R19"),
    /// A step that could not be undone counts as undone.
    FailedUndoCounts("R19"),
    /// A service that could not be killed counts as silent.
    FailedKillCounts("R19"),
    /// When the lease ends the address is ordered away once, whatever becomes of that.
    AddressOrderedOnce("R19"),
    /// An address that was kept while a process was restarted stays when the service is stopped.
    KeptAddressForgotten("R19"),
    /// A service starts again in the epoch in which its lease ended.
    SpentEpochRuns("R19"),
    /// The epoch in which a service was silenced is forgotten with its machine.
    SpentEpochForgotten("R19"),
    /// A restarted agent goes on with a service that the guard silenced meanwhile.
    GuardForgotten("R19"),
    /// The guard looks for an address on the interface that it knew first, and on no other.
    OneInterfaceSearched("R19"),
    /// The guard acts when the lease has ended, and not before.
    GuardActsLate("R19"),
    /// A guard that has acted does not act again at the end of a later lease.
    GuardActsOnce("R19"),
    /// An error of a device is answered within the lease before the services on it are killed.
    ErrorsNotHeld("R19"),
    /// A process that begins while the guard silences its node is not kept from it.
    StartsNotBarred("R19"),
    /// No process silences a node when its lease ends and its engine and its agent are both dead.
    NobodyOutlivesBoth("R19"),
    /// A node takes over although the operator wants the former primary switched off first.
    FenceNotAwaited("R19"),
    /// A watchdog is fed although it would fire after the end of the lease.
    WatchdogOutlastsLease("R19"),
    /// A node whose engine or journal stands still keeps its lease.
    StandstillKept("R19"),
    /// A node that stands still gives its lease up although no other node could take over.
    StandstillAlone("R19"),
    /// Services begin on a confirmation although the engine has since silenced its node or ended.
    OldConfirmationCounts("R19"),
    /// A primary waits for ever for a member that is disconnected.
    WaitForever("R20"),
    /// Requests that wait for copies wait without end.
    SuspendedWithoutEnd("R20"),
    /// A stop undoes only the last step.
    UndoneHalfway("R21"),
    /// A late answer to an earlier step counts for the present one.
    AnyAnswerCounts("R21"),
    /// A restarted agent forgets what it had started.
    RestartForgets("R21"),
    /// A service that fails is tried again without end.
    AttemptsUnlimited("R21"),
    /// A service that fails is tried again without end and without a pause.
    TriedAgainAtOnce("R21"),
    /// A service that failed on one node is neither moved nor halted.
    FailureForgotten("R21"),
    /// A failover starts a service that an operator has stopped.
    FailoverStartsStopped("R21"),
    /// A loss of a service in maintenance is mended all the same.
    MaintenanceMends("R21"),
    /// A process in maintenance is started again because its arguments do not hold any more.
    OutdatedInMaintenance("R21"),
    /// A restarted agent starts what has died in maintenance.
    MaintenanceForgotten("R21"),
    /// The death of a node moves a service that is in maintenance.
    MaintenanceFailsOver("R21"),
    /// Services that are to be apart start on one node.
    ApartIgnored("R21"),
    /// An address is taken without asking whether another node has it.
    AddressNotProbed("R22"),
    /// An address that was on the node before is taken for the service's, and removed with it.
    FoundAddressTaken("R22"),
    /// A write of several blocks becomes two entries.
    WriteCut("R26"),
    /// Destaging writes half of what it forgets.
    DestagedInPart("R26"),
    /// The target of a copy leaves the second half of an extent as it was.
    CopiedInPart("R26"),
    /// A process goes on with arguments for whole pages although a check has found that pages can
    /// tear.
    OutdatedGoesOn("R26"),
    /// A mount of others in the place of a service's file system is taken away.
    ForeignMountTaken("R27"),
    /// A process is started although its file system is not mounted.
    MountNotChecked("R28"),
    /// A process that does not answer its probes is told of and left as it is.
    ProbesOnlyTell("R28"),
    /// A process is restarted after one probe without an answer.
    OneProbeDecides("R28"),
    /// A process that says that it recovers from a crash counts as one that does not answer.
    RecoveryIsUnhealthy("R28"),
    /// A node votes before it has proven itself at its addresses.
    VotesUnproven("R29"),
    /// A node is removed although no other living node has all that was acknowledged.
    RemovedWithLastCopy("R29"),
    /// A node is removed although the living nodes are no majority without its vote.
    RemovalBreaksMajority("R29"),
    /// Two machines have the identity of one node, and the machine that was heard first counts as
    /// the node.
    FirstHeardIsNode("R29"),
    /// A machine that does not have the recorded address of a node runs as that node.
    CopyElsewhereRuns("R29"),
    /// A change that a client asks for again is applied again.
    RetryApplied("S18"),
    /// An older session is admitted, and the primary's own device beside a client.
    OldSessionAdmitted("S18"),
    /// A client that was opened anew goes on in the session of the one before.
    SessionKept("S18"),
    /// A session goes on after the log has lost changes that its client was told are done.
    LossNotSeen("S18"),
}
