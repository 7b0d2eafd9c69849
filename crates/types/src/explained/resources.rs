//! Errors about resources, their replicas, settings, snapshots and devices.

use super::{Chapter, chapter};

pub const CHAPTER: Chapter = chapter! {
    "resources" "Errors: resources, replicas, settings and snapshots"
    "For operators of a command about a resource that was refused or failed."

    Ambiguous
        "several replicas of db keep what they held before they were copied to"
        "Each of them keeps a state of its own under the name `before-copy`, and these states may differ."
        "Name one of their nodes with `--replicas`. `mainstay snapshot list db` shows the nodes.";
    Attached
        "resource db is attached to n4"
        "While a node without a replica has the devices, the resource gets no service, and is neither rolled back nor deleted."
        "Run `mainstay resource detach db` first.";
    AttachedElsewhere
        "resource db is attached to n4"
        "One node at a time has the devices of a resource."
        "Detach it there, or take it over: `mainstay resource attach db n5 --take-over`. Requests on n4 fail from then on.";
    BadMinCopies
        "the resource has fewer replicas than copies are wanted"
        "`min-copies` is larger than the number of replicas, or the mode does not wait for a second copy."
        "Add a replica, or choose a smaller `min-copies`. In mode A it must be 1.";
    BadMode
        "the mode does not fit the other settings"
        "Mode A acknowledges alone, so it does not fit `min-copies` above 1. Its lag limit must fit the journal."
        "Change both in one command: `mainstay resource set db mode=a min-copies=1`.";
    BadName
        "'My DB' is not a valid name"
        "Names have 1 to 32 characters out of a-z, 0-9 and the dash. `before-copy` is no name of a snapshot."
        "Choose another name.";
    BadResource
        "the volumes or the nodes of the resource are not possible"
        "A size, a number of volumes or a node does not fit. A resource from a snapshot needs volumes at least as large."
        "Follow the message: it names the value.";
    BadSettings
        "lag-time: the value is not possible"
        "The setting is unknown, was given twice, or does not take this value."
        "`mainstay resource set --help` and the page on settings list the names, units and limits.";
    BadSize
        "a volume of 1000 bytes"
        "The size of a volume is outside the limits, or not a multiple of 4096 bytes."
        "Give a size such as `20GiB`.";
    BadWait
        "requests cannot wait for 500 ms"
        "The wait of attached devices is outside its limits."
        "Use 1 second to 1 hour.";
    BeingCloned
        "resource copy is being made of it"
        "Another resource is being filled from this snapshot, so the snapshot must stay."
        "Wait until that is done, or delete the other resource.";
    BeingMade
        "resource copy is being made of a snapshot itself"
        "A resource that is not whole yet cannot be the source of another one."
        "Wait until that is done.";
    BeingRemoved
        "an earlier replica of resource db is still being removed from n3"
        "The node has not removed the files of its earlier replica yet."
        "Try again when `mainstay resource status db` does not show it any more. If the node is dead, bring it back.";
    Changed
        "snapshot s1 has just changed or gone, or the service was changed by another operator"
        "What you looked at is not what is there now. Nothing was changed."
        "Look again, and repeat your change.";
    Clone
        "cannot copy the files of the snapshot"
        "The system refused to read a file of the snapshot, or to write the copy."
        "Follow the advice of the message. Remove the unfinished files and repeat the command.";
    Conflict
        "the state changed meanwhile"
        "Between your question and your command, something else changed what you had seen. Nothing was done."
        "Look at the present state and repeat the command.";
    CreationUnfinished
        "the resource is recorded, but is not being served yet"
        "A node has not made its replica yet: it is dead, or its disk is slow or full."
        "Nothing has to be repeated: creation goes on by itself. `mainstay status` says what it waits for.";
    Deleted
        "snapshot s1 was deleted meanwhile"
        "Another command deleted what this one waited for."
        "See `mainstay events`. To make it, run the command again.";
    DeviceInUse
        "on n1 it is used by mysqld (1234)"
        "Programs, mounts or clients still use the devices of the resource, and would lose them."
        "End what uses it, or unmount or disconnect it there. Where the message offers `--force`, that does not wait for them.";
    Exists
        "resource db has a snapshot s1"
        "Names of snapshots are unique in their resource."
        "Choose another name, or delete the snapshot.";
    HasPrimary
        "n1 is primary, and has every acknowledged write"
        "A forced promotion would lose writes, and is not needed."
        "Move the service instead: that loses nothing.";
    HasReplica
        "resource db has a replica on n2 already"
        "A node holds one replica of a resource at most, and does not attach a resource of which it has a replica."
        "Choose another node.";
    InMaintenance
        "service db is in maintenance, and nothing is moved there"
        "An operator has put the service, the node or the cluster into maintenance."
        "End the maintenance with the command in the message.";
    IsPrimary
        "n3 is the primary of resource db"
        "The primary serves the data, so its replica cannot be removed."
        "Move the service first, or move the replica: `mainstay resource move-replica db n3 --to n4`.";
    IsWitness
        "n3 is a witness and holds no data"
        "A witness only votes."
        "Choose another node.";
    LastCopy
        "no other living node has every acknowledged write of resource db"
        "What you asked for would lose acknowledged writes."
        "Wait until another replica is in sync. If the copy is lost for good, read how to go on without it.";
    LastReplica
        "the replica on n1 is the only one of resource db"
        "Without it the data would be gone."
        "Add a replica on another node first, or delete the resource.";
    LossNotAccepted
        "the message says which writes may be lost"
        "A forced promotion, or going on after a loss, was asked for without `--accept-loss`. Nothing was done."
        "Read the cost. If you accept it, repeat the command with `--accept-loss`.";
    MovingAlready
        "the replica on n2 is a part of another move"
        "A replica moves once at a time."
        "Wait for its end. To end it at once, remove the replica at the new place.";
    NameTaken
        "there is a resource db already, or one of that name is being deleted"
        "Names are unique. A resource that is being deleted has its name until it is gone."
        "Choose another name. To change what is there, use the commands in the message.";
    NoDevice
        "the devices could not be made on the node"
        "The engine there could not make the devices of the attached resource."
        "Look at the log of that node's engine. `mainstay doctor` says which kinds of devices it can make.";
    NoPrimary
        "resource db has no primary"
        "The command needs a primary or a node where the service runs, and there is none."
        "`mainstay status` says why there is none. Try again when there is one.";
    NoReplicaHere
        "resource db has no replica on n4"
        "The command names a node that holds no replica of the resource."
        "`mainstay resource status db` shows the nodes.";
    NoScrub
        "the replicas of resource db were not compared since n1 opened its replica"
        "There is no report: nothing was compared, or another node is primary now."
        "Run `mainstay resource scrub db`.";
    NoScrubRuns
        "the replicas of resource db are not being compared"
        "There is no comparison to stop."
        "`mainstay resource scrub db --report` says how the last one ended.";
    NotCalled
        "writes do not wait for n2 in mode A"
        "In mode A a replica becomes in sync only for a move. You see this in logs only."
        "Change the mode, or move the service there.";
    NotEligible
        "node n2 is not alive and in sync"
        "The node could not serve, or not without loss: it is dead, not in sync, cordoned, in maintenance, or lacks a program."
        "The message has the reason. `mainstay explain db` shows the reason for each node.";
    NotForOneCopy
        "suspend-io has no effect while min-copies is 1"
        "One copy is enough, so no write ever waits for a second one."
        "Set `min-copies` to 2 or more in the same command, or leave `suspend-io` out.";
    NotForThisMode
        "lag-bytes has an effect in mode a only"
        "The setting does nothing in the mode of this resource."
        "Leave it out, or set `mode=a` in the same command.";
    NotHeld
        "none of these nodes has a replica of db that is in sync and holds snapshot s1"
        "The snapshot is not on the nodes that you named, or not on the primary."
        "`mainstay snapshot list db` shows where it is. Name one of these nodes as well.";
    NotHere
        "this node does not hold snapshot s1"
        "A clone is made of files, so the command must run on a node that has them."
        "Run it on the node that the message names.";
    NotNeeded
        "n2 has every acknowledged write and can be primary"
        "A forced promotion would lose writes without need."
        "Wait until that node is primary.";
    NotPrimary
        "the resource is not primary on this node"
        "The primary changed while the command was under way."
        "Look at `mainstay status`, and try again.";
    NotReady
        "not every living node has made its replica yet, or the resource was never served, or the node still answers"
        "What you asked for needs a state that is not reached yet."
        "Wait for the nodes, or bring them up. The message names what is missing.";
    NotRolledBack
        "resource db was not rolled back"
        "The snapshot, or that of the present state, could not be kept on the primary. Nothing was changed."
        "See `mainstay events` and the log of the primary's engine.";
    NotTaken
        "no node could take snapshot s1"
        "Every replica failed to keep the state, mostly for lack of space."
        "Make room in the pools, delete the snapshot, and take it again. The logs of the engines say why.";
    NothingToChange
        "no setting to change is given"
        "The command was run without an option that changes anything."
        "Give an option. `--help` lists them.";
    PoolTooSmall
        "the pool of n2 has 10 GiB free, and 20 GiB may be needed there"
        "The replica would not fit when its volumes are full."
        "Choose another node, make the resource smaller, or make room in the pool.";
    ReplicaBroken
        "the replica of n2 counts as broken"
        "The node has said that it cannot use its replica. You see this in logs only."
        "Do what `mainstay status` says for that replica.";
    ResourceFailed
        "the message has the reason"
        "The cluster could not make or serve the resource."
        "Do what the advice says. `mainstay resource status NAME` repeats it.";
    ResourceInUse
        "service db runs on resource db"
        "A resource with a service is not deleted, attached, rolled back or moved without it, and has no second service."
        "Stop, move or delete the service, as the message says.";
    RollingBack
        "resource db is being rolled back already"
        "A rollback is under way, and needs its snapshots."
        "Wait until that is done.";
    ScrubInterrupted
        "resource db got another primary before all replicas were compared"
        "Only a primary compares. What was repaired stays repaired."
        "Run `mainstay resource scrub db` again.";
    ScrubRunning
        "the replicas are being compared already"
        "One comparison of a resource runs at a time."
        "`mainstay resource scrub db --report` says how far it is, and `--stop` ends it.";
    Shrink
        "a volume cannot be made smaller"
        "What lies at its end would be lost."
        "Make a smaller resource and copy the data. To give unused space back, use `fstrim`.";
    TooFewNodes
        "3 replicas are wanted, and 2 nodes that may hold data answer"
        "Not enough nodes live that are no witnesses and answer."
        "Bring nodes up, or ask for fewer replicas.";
    TooFewReplicas
        "2 copies of resource db are wanted (min-copies)"
        "Without this replica there would be fewer than `min-copies`."
        "Add a replica on another node first, or lower `min-copies`.";
    TooMany
        "resource db has as many snapshots as it can have"
        "The number of snapshots of a resource is limited. A rollback takes one or two of them."
        "Delete one that is not needed.";
    TooManyReplicas
        "resource db has 32 replicas, which is the most"
        "The number of replicas of a resource is limited."
        "Remove one first.";
    TooManyResources
        "the cluster has as many resources as it can hold"
        "The number of resources is limited."
        "Delete one that is not needed, or give a resource several volumes.";
    UnknownResource
        "there is no resource db"
        "No resource has this name, or it was deleted."
        "`mainstay resource list` shows the names.";
    UnknownSnapshot
        "resource db has no snapshot s1"
        "No snapshot has this name, or it is being deleted."
        "`mainstay snapshot list db` shows the names.";
    UnknownVolume
        "there is no volume 2 in resource db, which has 2 of them"
        "Volumes are counted from 0."
        "Give a smaller number.";
    UsersUnknown
        "it cannot be found out what uses the devices on n1"
        "A process there hangs in the kernel, so the node cannot look at its files and mounts."
        "Look for a process in state D with `ps -eo pid,stat,comm` on that node. Try again when it has ended.";
};
