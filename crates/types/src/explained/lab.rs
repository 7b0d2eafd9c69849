//! Errors of the lab and the benchmarks.

use super::{Chapter, chapter};

pub const CHAPTER: Chapter = chapter! {
    "lab" "Errors: lab and benchmarks"
    "For users of `mainstay lab` and `mainstay bench`. No server needs either."

    BenchCase
        "none of these is a case of fio"
        "The name of a case is wrong, or belongs to another program."
        "`mainstay bench list` shows all cases.";
    BenchFailed
        "a step of the benchmark failed"
        "The message has the step and its cause."
        "Mend the cause, and run the command again. With `--out` it goes on where it ended.";
    BenchOccupied
        "the target holds data"
        "The benchmark would overwrite it."
        "Give another target, or `--overwrite` if all of it may be lost.";
    BenchOut
        "the directory for results cannot be used"
        "It cannot be made, or holds samples of another run."
        "Give another directory, or remove its `samples.jsonl`.";
    BenchResource
        "the primary of db is not on this node"
        "The benchmark measures the device of the primary."
        "Run it on the node of the primary.";
    BenchSize
        "fio needs 64 MiB at least"
        "`--size` is too small."
        "Give `--size 64MiB` or more.";
    BenchSystem
        "the system refused a step, or a program is not installed"
        "The message has the step."
        "Install the program: fio, sysbench and mariadb-server are packages of their own.";
    BenchTarget
        "the target cannot be measured"
        "It is no block device, file or directory that may be written."
        "Name one of this machine.";
    LabBusy
        "another command is changing lab `lab`"
        "One command at a time changes a lab."
        "Wait until it has ended, and try again.";
    LabCgroup
        "a control group of the lab cannot be made or used"
        "The machine has no control groups of version 2, or the lab's groups are gone."
        "Follow the advice of the message. `mainstay lab down` removes what is left.";
    LabCluster
        "the cluster of the lab was not made in time"
        "A node of the lab did not start or did not join."
        "Run the command again with `--keep`, and look at `mainstay lab logs NODE`.";
    LabCut
        "a port cannot be cut from itself"
        "The same node was named twice."
        "Name two nodes.";
    LabDirForeign
        "the directory holds files that no lab has made"
        "The lab would have to remove files of others."
        "Give another `--name` or `--dir`.";
    LabDisk
        "a disk of the lab cannot be made or opened"
        "The file system is full, or loop devices are not available."
        "Make room, or run `modprobe loop`.";
    LabDiskBusy
        "the disk of n1 is still in use"
        "A process or a mount outside the lab holds it."
        "Try again in a moment. If it stays so, look for the holder with `lsof`.";
    LabDiskSmall
        "the disk is too small"
        "`--disk` is smaller than a node needs."
        "Give at least the size in the message.";
    LabDown
        "no node of lab `lab` runs"
        "All nodes are without power, or paused."
        "`mainstay lab status` shows them. Start or resume one.";
    LabExec
        "the command could not be started in the node"
        "The program is missing, or the node's namespaces cannot be entered."
        "Check the name of the program, and that the node runs.";
    LabFuse
        "connections of file systems could not be ended"
        "The control file system of FUSE is not there."
        "Follow the advice of the message, and repeat the command.";
    LabIsUp
        "lab `lab` exists already and is up"
        "A lab of this name runs."
        "Use it, or end it with `mainstay lab down`.";
    LabNeedsRoot
        "a lab makes namespaces, mounts and loop devices, and only root may do that"
        "You are not root."
        "Run the command as root.";
    LabNetwork
        "network namespaces cannot be listed"
        "The system refused it, with the cause in the message."
        "Follow the advice of the message.";
    LabNoLog
        "n1 has no log yet"
        "The node was never started, or its program does not run there."
        "Start it with `mainstay lab start n1`, or leave `--program` out.";
    LabNode
        "a step of starting a node failed"
        "The system refused it, with the cause in the message."
        "Follow the advice of the message.";
    LabNodeDown
        "n1 has no power"
        "The node was killed or not started."
        "Run `mainstay lab start n1`.";
    LabNodePaused
        "n1 is paused and would not answer"
        "All processes of the node are stopped, or the node was already in the state that you asked for."
        "Run `mainstay lab resume n1`, or look at `mainstay lab status`.";
    LabNodeRuns
        "n1 runs already"
        "The node has power."
        "Look at `mainstay lab status`.";
    LabNodeStart
        "n1 did not start"
        "A program of the node ended. The message has its last line."
        "Look at the log that the message names.";
    LabNodeUnknown
        "lab `lab` has no `n9`"
        "No node of the lab has this name."
        "The message lists the names.";
    LabProcessStuck
        "processes do not die"
        "They wait for a device in the kernel."
        "`dmesg` may say which device. Try again when they have ended.";
    LabProgramMissing
        "`mainstay-lab` runs this command, and is neither beside `mainstay` nor in PATH"
        "The two programs belong together."
        "Put both into one directory. `make build` makes both.";
    LabRemains
        "an earlier lab `lab` was not taken down"
        "Mounts, namespaces or files of it are still there."
        "Run `mainstay lab down`.";
    LabState
        "a file of the lab cannot be made or read"
        "The system refused it, with the cause in the message."
        "Follow the advice of the message.";
    LabStateUnreadable
        "the description of the lab is not readable"
        "The file is damaged, or of another release."
        "Run `mainstay lab down`, and make the lab anew.";
    LabSysctl
        "a setting of the machine could not be put back"
        "The lab changes one setting of XFS while it runs."
        "Follow the advice of the message.";
    LabToolFailed
        "`ip link add` failed"
        "A program that the lab uses failed."
        "Mend what it complains of, run `mainstay lab down`, and repeat the command.";
    LabToolMissing
        "the lab needs mkfs.xfs, which this machine does not have"
        "A program that the lab uses is not installed."
        "Install the packages in the message.";
    LabTwice
        "two labs are named"
        "`--lab` and `--name`, or the variable MAINSTAY_LAB, name different labs."
        "Name one.";
    LabUnknown
        "there is no lab `lab`"
        "No lab of this name is in this place."
        "Make one with `mainstay lab up`, or give `--name` or `--dir`.";
    LabWitness
        "n1 cannot be a witness"
        "The first node makes the cluster and holds data."
        "Name another node.";
};
