//! Marks that no legal run reaches, each with the reason. `mainstay-sim coverage` lists them apart.
//! If a run reaches one after all, its reason is wrong, and the report names it. All of them are
//! guards, because a core does not trust its surroundings. Tests of the cores reach most of them.

/// The mark, and why.
pub(super) const NEVER: &[(&str, &str)] = &[
    (
        "control: a grow by what is in sync or has another disk",
        "a change of the set and a new disk raise the version, so that the grow is a conflict before it is this",
    ),
    (
        "control: a promotion against a living primary",
        "only a primary proposes while there is one, and a node that becomes primary raises the version",
    ),
    ("control: a shrink of the primary", "a primary has no peer that is itself"),
    (
        "control: a primary does not hold what its resource is made of",
        "all that are in sync by then were made of it, and disks lose no files of snapshots by themselves",
    ),
    (
        "control: a resource is smaller than the snapshot it is to be made of",
        "the operator asks for one that is as large as the other may come to be",
    ),
    (
        "control: a resource is to be made of one that is not made yet",
        "of several resources only the last is made of another one",
    ),
    (
        "control: a resource is to be made of a kept state that no target of a copy has",
        "not yet: the operator makes resources of snapshots only (S257)",
    ),
    ("control: a resource is to be made of what several targets of copies held", "as above"),
    (
        "ha: a start in an epoch whose lease was lost",
        "the reconciler sees the spent epoch before it starts anything, and asks for another one",
    ),
    (
        "ha: a start in another epoch",
        "the reconciler gives a new epoch to the engine only when the service is silent",
    ),
    ("ha: a start of what failed", "the reconciler starts what failed only in a later round"),
    ("ha: a start waits until all is undone", "the reconciler starts only what it sees stopped"),
    ("ha: the start that waited", "as above: none waits"),
    (
        "host: a read waits for payloads before it reads more",
        "the journals of the simulator hold less than is read at once (2 MiB)",
    ),
    (
        "host: what is held of an extent cannot be said",
        "a primary asks only for extents of the sizes that the copy began with, which are its target's; that began after every rollback, and takes none in",
    ),
    (
        "store: a pass has as many bytes in flight as it may",
        "it has four writes of four blocks at most there, which are fewer bytes",
    ),
    (
        "store: a group waits for payloads before it reads more",
        "the journals of the simulator hold less than is read at once (2 MiB)",
    ),
    (
        "replica: a batch beyond the volumes",
        "a correct primary admits no such request, and a changed byte shows in the checksum",
    ),
    ("replica: a batch of another history", "two histories of one position need a disk that lies (S6)"),
    ("replica: a peer finds another history", "two histories of one position need a disk that lies (S6)"),
    ("replica: a peer's log differs at its end", "two histories of one position need a disk that lies (S6)"),
    (
        "replica: what is left after a cut is another history",
        "two histories of one position need a disk that lies (S6)",
    ),
    (
        "replica: a cut below the commit index is refused",
        "a primary that lacks a committed entry needs a disk that lies (S8)",
    ),
    ("replica: a cut comes too early", "a primary cuts only what has just said where it ends, at rest"),
    ("replica: there is nothing to cut", "a primary cuts only what reaches beyond the common end"),
    (
        "replica: an extent that does not fit here",
        "a primary sends whole extents of the copy that the target has begun, on a connection that keeps the order",
    ),
    ("replica: a list of extents for an earlier copy", "the host answers with the list at once"),
    (
        "replica: a load of what was cut since",
        "the host forgets its loads when the role ends, and a primary cuts nothing",
    ),
    ("replica: a read waits for the epoch start", "there is a device only while the replica serves"),
    (
        "replica: an acknowledgement that says nothing new",
        "a replica acknowledges when more is durable, on a connection that keeps the order",
    ),
    ("replica: another speaks as primary of the own epoch", "an epoch has one primary (S7)"),
    (
        "replica: named but not eligible",
        "the agent gives a record only to the disk that it names, and a member is whole (S8)",
    ),
    (
        "store: a batch waits for space in the ring",
        "a replica appends only what the store has said that it has room for, and what there is room for has a place",
    ),
    (
        "store: a snapshot is there already, or one too many",
        "a primary admits none that its log has, nor more than there may be",
    ),
    (
        "store: the number of a snapshot was used before",
        "the control plane gives each number once, and a replica that has applied an entry that a forced promotion took back is made anew",
    ),
    (
        "store: a rollback that cannot be is left out",
        "a primary admits no rollback to what its log does not have, nor without room for the mark",
    ),
    ("store: what was kept is lost", "disks lose no files of snapshots by themselves"),
    (
        "store: a replica without the snapshot cannot be rolled back",
        "a replica takes no such entry into its log, and is copied to (snapshots.rs); so it is with one that is being copied to",
    ),
    (
        "store: a snapshot is lost before it was rolled back to",
        "as above: what the replica says that it holds is held, and only an operator takes its files away",
    ),
    (
        "replica: sessions: a stream without order or limits",
        "a client numbers its requests, and keeps to the limits itself, on a connection that keeps the order",
    ),
    (
        "replica: what does not serve mends nothing",
        "a host asks only in the role of a primary, which it is told of at once, and reads within the volumes",
    ),
    (
        "replica: a request of a client that is not attached",
        "the device of a primary goes with the record that names a client, and clients' requests are held back by their session",
    ),
    (
        "host: clients are served again after a change has failed",
        "changes fail for want of copies only, and not while a client of their session is attached (ADR 18)",
    ),
    (
        "replica: sessions: no client asks again for a change that has failed",
        "as above: the failed change is of a session that is over, or another one is served without it",
    ),
    (
        "host: damage comes back",
        "a block would have to rot anew each time that it was mended, while it is read",
    ),
    ("store: a journal write ends after it was cut", "a replica cuts and restarts its log only at rest"),
    (
        "store: a queued batch is taken back",
        "a replica cuts its log only at rest, when all that it has appended is durable",
    ),
    (
        "store: entries are committed before they are durable here",
        "a replica commits only what is durable in its own journal",
    ),
    (
        "replica: replicas differ where none knows of damage",
        "where not all replicas have checksums, what rots is not read before a scrub has found it (world/scrub.rs)",
    ),
    (
        "control: an instance that cannot count",
        "every change of the mode, the in-sync set and the instances makes a new version, which is compared before (in_sync_set.rs)",
    ),
    (
        "control: a judgement of an unverified replica is based on an older record",
        "the record names the unverified replicas, and its version is compared before (in_sync_set.rs)",
    ),
    (
        "control: a grow by an unverified replica",
        "the record names the unverified replicas, and its version is compared before; a primary asks to trust it instead (membership.rs)",
    ),
    (
        "control: a grow by a replica that does not join for a move in mode A",
        "a change of the replicas that join for a move makes a new version (mode.rs), which is compared before",
    ),
    (
        "replica: a copy of other volumes is refused",
        "the number of a resource's volumes never changes, and every replica is made from it",
    ),
    (
        "replica: a receipt of what was not sent",
        "an attach is answered at rest, on a connection that keeps the order, so what a replica has ends before what is sent next",
    ),
    (
        "ha: a process ended by itself while an operator restarts another one",
        "a service of the simulator has one process; the tests of the machine have two (crates/ha/tests/machine/restart.rs)",
    ),
];
