//! Errors about services, their files, their place and routers.

use super::{Chapter, chapter};

pub const CHAPTER: Chapter = chapter! {
    "services" "Errors: services, placement and routers"
    "For operators of a service that was refused, failed or does not start."

    AddressInUse
        "vip.address: service web has 10.0.0.7"
        "Another service has this floating address."
        "Give each service an address of its own.";
    AddressOfANode
        "vip.address: 10.0.0.1 is an address of node n1"
        "A floating address moves, so it must not be an address of a machine."
        "Give the service an address that no host has.";
    AddressOfAService
        "10.0.0.7 is the floating address of service web"
        "A node was to join, or to change its address, with an address that moves."
        "Give an address that stays on this node.";
    BadMountPath
        "mount.path: on n2 /srv/db has files in it"
        "The directory is needed by the system or by Mainstay, has files in it, or something is mounted there."
        "Choose another path, empty the directory, or set `hide_files = true` if its files may be out of sight.";
    BadPlacement
        "placement.with: there is no service db"
        "A name does not exist, services would wait for each other in a circle, or no node can hold what is to be together."
        "Follow the message. Apply the files of the services that are named first.";
    BadPreferred
        "policy.preferred: resource db has no replica on n4"
        "A service runs only where its resource has a replica."
        "Name a node that has one. `mainstay resource status db` shows them.";
    BadRouter
        "the options of the router do not fit"
        "A service, an address or a list of nodes was given wrongly."
        "The message names the option and what it takes.";
    BadService
        "the answers do not make a service file, or the file is of another service"
        "`service create` or `service edit` found a value that does not fit, or no installed version of the database."
        "Follow the message. `mainstay service create --help` lists the options.";
    BadServiceFile
        "process[0].env.TZ: the value is not possible"
        "A field is unknown, missing, of the wrong type, or has an impossible value. The message has the field, and the line if it is known."
        "Correct the field. The page has every field with an example.";
    BeingDeleted
        "service db is being deleted"
        "The service is stopped first, and its name is free when it has stopped."
        "Wait until `mainstay service list` does not show it any more.";
    Editor
        "the editor 'vi' ended with exit status: 1"
        "The editor could not be started, or ended with an error. Nothing was changed."
        "Name an editor in VISUAL or EDITOR, for example `EDITOR=nano`.";
    LackingEverywhere
        "process[0].command: there is no program /usr/sbin/mariadbd on n1, n2, n3"
        "Every node that could run the service lacks something that it needs."
        "Install or make what the message names on these nodes, or correct the file.";
    LackingWhereItRuns
        "process[0].user: there is no user mysql on n1"
        "The change restarts the service, and it could not start again on the node where it runs."
        "Make what is missing there, or move the service first to a node that has it.";
    NotDeleting
        "the service is not being deleted"
        "A node reported the end of a service that is not being deleted. You see this in logs only."
        "Nothing has to be done.";
    PathInUse
        "mount.path: service web mounts at /srv"
        "One file system would lie over the other, or in it."
        "Give each service a path of its own.";
    ResourceChanged
        "resource: service db is on resource db, the file says shop, and a service cannot change its resource"
        "A service stays on its resource."
        "Delete the service and make it anew, or give the new one another name.";
    RouterAddress
        "the router, or the agent's port for routers, cannot listen"
        "Another program has the port, or this machine does not have the address."
        "Name an address of this machine and a port that no other program has.";
    RouterEnded
        "the router cannot go on"
        "The system refused it memory, threads or open files."
        "Its supervisor starts it again. Raise the limits of its user.";
    ServiceExists
        "there is a service db already"
        "`service create` and `service import` never change a service."
        "Give the new one another name with `--name`, or change it with `mainstay service edit db`.";
    ServiceFailed
        "service db failed on every node, or could not start where it was moved"
        "A program, the mount or the address failed. The message has the reason of each node and the last line of the program."
        "Correct the cause. Then run `mainstay service start db`.";
    ServiceFileTooLarge
        "it has more than 1048576 bytes"
        "The file is not a service file."
        "Check the path.";
    ServiceFileUnreadable
        "cannot read the service file db.toml: No such file or directory"
        "The file is not there, may not be read, or is not text in UTF-8."
        "Name a TOML file, or `-` for standard input.";
    ServiceInUse
        "service db is not deleted: the file of service app names it in [placement]"
        "The other service could not know where to run."
        "Remove the name there first: `mainstay service edit app`.";
    ServiceNotRunning
        "service db does not run yet"
        "The command waited until its time was over, or a restart was asked of a service that does not run."
        "`mainstay service status db` says what it waits for, `mainstay service logs db` what its processes write.";
    ServiceStopped
        "service db is not restarted: an operator has stopped it"
        "A stopped service stays stopped."
        "Start it with `mainstay service start db`.";
    TooManyServices
        "the cluster has as many services as it can hold"
        "The number of services is limited."
        "Delete one that is not needed.";
    UnknownProcess
        "service db has no process app"
        "No process of the service has this name."
        "The message lists the names.";
    UnknownService
        "there is no service db"
        "No service has this name, or it was deleted."
        "`mainstay service list` shows the names.";
    VolumeTooSmall
        "mount.fstype: the volume is too small for xfs"
        "Mainstay was to make a file system that needs a larger volume."
        "Grow the volume first, or write `fstype = \"ext4\"`. If there is a file system already, write `mkfs = false`.";
};
