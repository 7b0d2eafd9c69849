#!/usr/bin/env bash
# A machine with systemd as its first process, made of namespaces: for tests of units, packages and whatever speaks to systemd.
# It has the root file system of this machine with changes of its own, the rest is empty. Needs root on Debian 12 or newer with
# the packages systemd, systemd-sysv, dbus, util-linux and iproute2; this machine's own first process may be anything.
#
#   machine.sh run [OPTION]... SCRIPT [ARGUMENT]...   starts a machine, runs the script in it, ends the machine; the exit
#                                                     status is the script's, or 70 if the machine did not start
#   machine.sh up NAME [OPTION]...                    starts a machine and leaves it running
#   machine.sh in NAME COMMAND [ARGUMENT]...          runs a command in it
#   machine.sh down NAME                              ends it at once, like a power cut, and removes everything of it
#       --bind SOURCE[=PATH]   a file or directory of this machine, writable, at PATH (the same path if not given)
#       --copy SOURCE=PATH     a copy of a file
#       --disk PATH            an empty directory on this machine's disk: everything else that is written is in memory
#       --name NAME            host name and name of the machine (run only; `machine-PID` if not given)
#       --net FILE             an existing network namespace, for example /run/netns/n1; without it the machine has an
#                              empty one with nothing but `lo`
#
# What the machine has and has not: process, mount, network, host name, IPC and cgroup namespaces of its own; control groups
# of version 2 only, below a group of its own; journald, D-Bus and logind; /run, /tmp and /dev of its own, with loop devices,
# FUSE and TUN. No unit of this machine is enabled in it. It cannot load modules, set the clock, or change settings of the
# kernel outside the network. Files of this machine below /tmp, /run, /dev and other mounts are not in it: bind or copy them.
#
# Its processes are killed through the first one, which the kernel lets none of them survive. Nothing is left but loop
# devices that a program in it attached to files without `autoclear`: a script detaches what it attached.
set -euo pipefail

PATH="$PATH:/usr/sbin:/sbin"
# shellcheck source=crates/lab/src/machine.sh
. "$(dirname "$(realpath "$0")")/../../crates/lab/src/machine.sh"
machines=/run/mainstay-machines
# How long systemd may take to start, on a busy machine.
boot_seconds=${MACHINE_BOOT_SECONDS:-120}

die() {
    echo "machine: $*" >&2
    exit 70
}

usage() {
    sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"
    exit "$1"
}

cgroup_root() {
    local root
    root=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)
    [ -n "$root" ] || die "no control groups of version 2 are mounted. Mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    echo "$root"
}

# In the new namespaces, as the process that becomes systemd. Host paths are still there.
become_machine() { # NAME
    local dir="$machines/$1" root="$machines/$1/root" line source path
    # /proc is still that of the outside, so this is the number by which the outside knows this process.
    read -r line _ </proc/self/stat
    echo "$line" >"$dir/pid"
    mount --make-rprivate /
    mount -t tmpfs -o mode=755 machine "$dir/memory"
    mkdir "$dir/memory/upper" "$dir/memory/work"
    mount -t overlay -o "lowerdir=/,upperdir=$dir/memory/upper,workdir=$dir/memory/work" overlay "$root"

    fresh_root "$1" "$root"
    mount_root "$root"

    while IFS=$'\t' read -r line source path; do
        mkdir -p "$root$(dirname "$path")"
        case "$line" in
            bind)
                if [ -d "$source" ]; then mkdir -p "$root$path"; else : >>"$root$path"; fi
                mount --bind "$source" "$root$path"
                ;;
            copy) cp -L "$source" "$root$path" ;;
        esac
    done <"$dir/content"

    start_systemd "$1" "$root"
}

# Options of `up` and `run`, as lines of the file `content`; leaves the number of words that they were in `taken`.
read_options() { # NAME-OR-EMPTY OPTION...
    name=$1
    shift
    content=() net="" taken=0
    while [ $# -gt 1 ]; do
        case "$1" in
            --bind) content+=("bind"$'\t'"$(realpath "${2%%=*}")"$'\t'"${2#*=}") ;;
            --copy) content+=("copy"$'\t'"$(realpath "${2%%=*}")"$'\t'"${2#*=}") ;;
            --disk) content+=("disk"$'\t'-$'\t'"$2") ;;
            --name) name=$2 ;;
            --net) net=$2 ;;
            *) break ;;
        esac
        shift 2
        taken=$((taken + 2))
    done
}

up() { # with what read_options has set
    local dir="$machines/$name" group row kind source path disk enter_net=(--net) pid state starter deadline
    [[ "$name" =~ ^[a-z0-9][a-z0-9-]{0,30}$ ]] || die "\`$name\` is no name for a machine: use a-z, 0-9 and the dash"
    [ "$(id -u)" -eq 0 ] || die "only root can make a machine"
    [ -x /sbin/init ] && [ -e /lib/systemd/systemd ] || die "install the packages systemd, systemd-sysv and dbus"
    group="$(cgroup_root)/mainstay-machine-$name"
    mkdir -p "$machines"
    mkdir "$dir" 2>/dev/null || die "there is a machine $name, or what an interrupted run has left of it: machine.sh down $name"
    mkdir "$dir/memory" "$dir/root"
    mkdir -p "$group"
    : >"$dir/content"
    for row in "${content[@]}"; do
        IFS=$'\t' read -r kind source path <<<"$row"
        if [ "$kind" = disk ]; then
            disk=$(mktemp -d "/var/tmp/mainstay-machine-$name.XXXXXX")
            echo "$disk" >>"$dir/disks"
            kind=bind source=$disk
        fi
        printf '%s\t%s\t%s\n' "$kind" "$source" "$path" >>"$dir/content"
    done
    [ -z "$net" ] || enter_net=()
    (
        echo 0 >"$group/cgroup.procs" # the namespace begins at the group of the process that makes it
        [ -z "$net" ] || exec nsenter --net="$net" -- "$0" unshare "$name"
        exec "$0" unshare "$name" "${enter_net[@]}"
    ) >"$dir/console" 2>&1 </dev/null &
    starter=$!
    disown
    deadline=$((SECONDS + boot_seconds))
    while true; do
        pid=$(cat "$dir/pid" 2>/dev/null || true)
        if [ -n "$pid" ]; then
            # Before systemd listens the answer is an error.
            state=$(inside "$name" systemctl is-system-running 2>/dev/null || true)
            case "$state" in
                running) return ;;
                degraded)
                    echo "machine: $name runs, and these units have failed:" >&2
                    inside "$name" systemctl --failed --no-legend --plain >&2 || true
                    return
                    ;;
            esac
        fi
        kill -0 "$starter" 2>/dev/null || break
        [ "$SECONDS" -lt "$deadline" ] || break
        sleep 0.1
    done
    echo "machine: systemd did not start in $name (after $((SECONDS - deadline + boot_seconds)) s, state: ${state:-none}); what was written:" >&2
    tail -n 40 "$dir/console" >&2
    down "$name"
    exit 70
}

inside() { # NAME COMMAND...
    local dir="$machines/$1" pid group
    pid=$(cat "$dir/pid" 2>/dev/null) || die "there is no machine $1"
    group="$(cgroup_root)/mainstay-machine-$1/shell"
    shift
    mkdir -p "$group"
    (
        echo 0 >"$group/cgroup.procs"
        exec nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup -- \
            env -i container=lxc HOME=/root USER=root TERM="${TERM:-dumb}" LANG=C.UTF-8 \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    )
}

down() { # NAME
    local dir="$machines/$1" group pid line
    [ -d "$dir" ] || return 0
    group="$(cgroup_root)/mainstay-machine-$1"
    pid=$(cat "$dir/pid" 2>/dev/null || true)
    # The kernel kills everything in a process namespace with its first process.
    [ -z "$pid" ] || ! grep -qsE "/mainstay-machine-$1(/|$)" "/proc/$pid/cgroup" || kill -KILL "$pid" 2>/dev/null || true
    for line in $(find "$group" -name cgroup.kill 2>/dev/null | head -n 1); do
        echo 1 >"$line"
    done
    for _ in $(seq 100); do
        [ -d "$group" ] || break
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ ! -d "$group" ] || sleep 0.1
    done
    [ ! -d "$group" ] || echo "machine: $group is still in use" >&2
    while read -r line; do
        rm -rf --one-file-system "$line"
    done < <(cat "$dir/disks" 2>/dev/null)
    rm -rf --one-file-system "$dir"
    rmdir "$machines" 2>/dev/null || true
}

case "${1:-}" in
    run)
        shift
        read_options "machine-$$" "$@"
        shift "$taken"
        [ $# -ge 1 ] && [ -f "$1" ] || die "name a script that exists: machine.sh run [OPTION]... SCRIPT [ARGUMENT]..."
        content+=("copy"$'\t'"$(realpath "$1")"$'\t'/root/script)
        shift
        trap 'down "$name"' EXIT
        trap 'exit 130' INT TERM
        up
        rc=0
        inside "$name" bash /root/script "$@" || rc=$?
        exit "$rc"
        ;;
    up)
        [ $# -ge 2 ] || usage 2 >&2
        shift
        read_options "$@"
        [ $(($# - 1)) -eq "$taken" ] || die "unknown option ${*:$((taken + 2)):1}"
        up
        ;;
    in)
        [ $# -ge 3 ] || usage 2 >&2
        shift
        inside "$@"
        ;;
    down)
        [ $# -eq 2 ] || usage 2 >&2
        down "$2"
        ;;
    # Steps of `up`, as programs of their own because namespaces are made at a program's start.
    unshare)
        exec unshare --pid --fork --mount --uts --ipc --cgroup "${@:3}" -- "$0" become "$2"
        ;;
    become)
        become_machine "$2"
        ;;
    -h | --help | help) usage 0 ;;
    *) usage 2 >&2 ;;
esac
