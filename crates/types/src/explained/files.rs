//! Errors about files, disks and journals of replicas.

use super::{Chapter, chapter};

pub const CHAPTER: Chapter = chapter! {
    "files" "Errors: files and disks of replicas"
    "For operators of a replica that cannot be made or opened. `mainstay status` names the replica and repeats the message."

    Busy
        "the engine cannot do this now"
        "The replica is being closed or copied, or another check of it runs."
        "Try again in a moment, or when the copy has ended.";
    Corrupt
        "the replica in /var/lib/mainstay/pools/default/db-1 cannot be recovered"
        "Its metadata or its journal is damaged."
        "If another replica is in sync, move the directory out of the pool: the replica is copied again.";
    DirectoryGone
        "its directory is gone from the pool (moved or deleted)"
        "The directory was moved, renamed or deleted, or its file system is not mounted."
        "Put it back with the command in the message. The node notices it without a restart.";
    Disk
        "the system refused to read or write a file of the replica"
        "The disk of the pool reports errors, or a file has another form than expected."
        "Look at the kernel's messages with `dmesg`. If the disk is broken, replace it: the replica is copied again.";
    EarlierReplica
        "its directory holds files that this node had earlier, and not those that the cluster knows"
        "The cluster made a newer replica on this node, and older files are in its place."
        "Put the newest files back. If another replica is in sync, move the directory out of the pool instead.";
    InUse
        "a file of the replica is in use by another process"
        "The engine before this one has not quite ended, or a second engine runs."
        "End the process that uses the files. The first case passes by itself.";
    InspectInUse
        "an engine uses the replica"
        "`mainstay inspect` reads only files that no engine writes."
        "Copy `meta` and `journal` elsewhere and look at the copy, or stop the engine.";
    InspectOpen
        "the files of the replica cannot be opened"
        "The directory is not that of one replica, or you are not root."
        "Name the directory of one replica, with `--journal FILE` if its journal is elsewhere, and run it as root.";
    InspectUnreadable
        "the files are not those of a replica, or are damaged"
        "Nothing in them can be read."
        "If another replica is in sync, move the directory out of the pool: the replica is copied again.";
    JournalDirectory
        "the directory for journals is missing or is a mount point"
        "The device of the directory is not mounted, or the directory itself is the mount point."
        "Mount the device, and name a directory below the mount point with `--journal-dir`.";
    JournalMissing
        "the journal of the replica is missing"
        "The device that holds it is not mounted, or the link `journal` leads nowhere."
        "Mount the device, or mend the link. If the journal is lost and another replica is in sync, remove the directory.";
    LedAsOlderCopy
        "the replica was primary as an older copy of itself"
        "An older copy of its files was put in place, became primary, and stepped down when another replica proved to know more."
        "Stop the engine of the node, put the newest files back, and start it. Or go on from the other replica.";
    NoLabel
        "replica.json is missing, cannot be read, or is of another replica"
        "The label says which replica the directory holds. Without it the directory is not used."
        "Follow one of the ways in the message. The agent notices it without a restart.";
    NoSpace
        "the pool has too little space"
        "The volume and its journal do not fit into the file system of the pool."
        "Make room in the pool, or choose a smaller volume.";
    Occupied
        "the directory holds the files of another replica"
        "A new replica was to be made where another one lies."
        "Move the directory out of the pool. Remove it only if you do not need what is in it.";
    OlderCopy
        "the replica is older than the node's record"
        "An older copy was put in the place of the replica. It lacks writes that the replica had."
        "Put the newest files back. Or move the directory out of the pool: the replica is then copied again.";
    OtherResource
        "the directory holds resource 7"
        "The directory is that of another resource, for example after a rename."
        "Put the directory back that belongs there.";
    PoolFiles
        "the pool is on another file system than when the agent started, or cannot be read"
        "The file system of the pool is not mounted any more, or its disk fails."
        "Mount it again. If this file system is the pool now, restart the agent.";
    Recover
        "the replica cannot be recovered"
        "Its files do not fit each other."
        "If another replica is in sync, move the directory out of the pool: the replica is copied again.";
    Size
        "impossible size"
        "A volume or a journal has a size that no replica can have."
        "Choose another size.";
    VolatileJournal
        "the journal would lie in memory"
        "The directory for journals is on a file system that a power cut empties."
        "Name a directory on a disk or on persistent memory. To accept the loss, start the agent with `--volatile-journals`.";
    WrongDisk
        "the files and the label are not of the same replica"
        "Files of another replica, of a backup or of another disk lie in the directory."
        "Put the right files back. Or move the directory out of the pool: the replica is then copied again.";
    WrongJournal
        "the journal is not that of this replica"
        "Another device is mounted where the journal was, or the link leads to another file."
        "Mount the right device, or mend the link. If the journal is lost and another replica is in sync, remove the directory.";
};
