# Runs inside the machine: both ends of the kernel's DRBD and both replicas of a Mainstay resource, on disks of one kind, under
# the same loads in turn. bench/vm/run.sh says what they are in /terms, and takes the report from between the marks.
. /node.sh
. /terms

# drbd_end MINOR DISK OWN_PORT PEER_PORT: as a distribution's defaults have it, with what matters here spelled out.
drbd_end() {
    drbdmeta --force "$1" v08 "$2" internal create-md || return 1
    drbdsetup-84 new-resource "r$1" || return 1
    drbdsetup-84 new-minor "r$1" "$1" 0 || return 1
    drbdsetup-84 attach "$1" "$2" "$2" internal --disk-barrier=no --disk-flushes=yes --md-flushes=yes || return 1
    drbdsetup-84 connect "r$1" "ipv4:127.0.0.1:$3" "ipv4:127.0.0.1:$4" --protocol=C
}

# drbd_is FIELD VALUE: of the primary's line in /proc/drbd.
drbd_is() {
    grep -q "^ 0:.* $1:$2 " /proc/drbd
}

start_drbd() { # DISK DISK
    step "DRBD: $(head -n 1 /proc/drbd)"
    # The module would call a program of the host's for every change of state.
    echo /bin/true >/sys/module/drbd/parameters/usermode_helper
    mkdir -p /var/lock /var/run/drbd /var/lib/drbd
    drbd_end 0 "$1" 7001 7002 >/tmp/drbd.log 2>&1 || fail "no first end of DRBD"
    drbd_end 1 "$2" 7002 7001 >/tmp/drbd.log 2>&1 || fail "no second end of DRBD"
    wait_for 30 drbd_is cs Connected
    # Both disks are empty, so nothing need be copied.
    drbdsetup-84 new-current-uuid 0 --clear-bitmap=yes >/tmp/drbd.log 2>&1 || fail "DRBD wants a copy"
    wait_for 30 drbd_is ds UpToDate/UpToDate
    drbdsetup-84 primary 0 >/tmp/drbd.log 2>&1 || fail "DRBD has no primary"
}

# start_member NAME ADDRESS DISK: engine and agent of a node, with a disk of its own.
start_member() {
    mkdir -p "/var/lib/$1" "/run/$1"
    mkfs.xfs -q "$3" && mount -t xfs "$3" "/var/lib/$1" || fail "no disk for the pool of $1"
    mainstay engine --run-dir "/run/$1" --state-dir "/var/lib/$1" --device ublk --listen "$2:7401" 2>"/tmp/engine-$1.log" &
    echo $! >"/tmp/engine-$1.pid"
    mainstay agent --run-dir "/run/$1" --state-dir "/var/lib/$1" --listen "$2:7400" --cgroup-root "/sys/fs/cgroup/$1" \
        2>"/tmp/agent-$1.log" &
    wait_for 60 test -S "/run/$1/agent.sock"
}

serves() {
    mainstay --json resource status db | grep -Eq '"role": ?"primary"' && [ -b "$(readlink -f /run/n1/dev/db/0)" ]
}

start_mainstay() { # DISK DISK
    step "Mainstay: $(mainstay --version)"
    export MAINSTAY_LOG=info MAINSTAY_SOCKET=/run/n1/agent.sock
    mkdir -p /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir -p /sys/fs/cgroup/n1 /sys/fs/cgroup/n2
    start_member n1 127.0.0.1 "$1"
    start_member n2 127.0.0.2 "$2"
    # Everything is slow here, and leases are not what this looks at.
    mainstay cluster init --name vm --as n1 --address 127.0.0.1 --lease-ms 20000 --heartbeat-ms 2000 || fail "no cluster"
    token=$(mainstay --json cluster token create n2 | sed -n 's/.*"token": *"\(mst_join_[^"]*\)".*/\1/p')
    mainstay --socket /run/n2/agent.sock cluster join --peer 127.0.0.1:7400 --as n2 --address 127.0.0.2 --token "$token" || fail "no second node"
    mainstay resource create db --size "${MIB}MiB" --journal 16MiB --replicas n1,n2 --preferred n1 --wait-s 120 || fail "no resource"
    wait_for 60 serves
}

# What is under load is not copied any more, and both replicas of it are the same.
both_in_sync() {
    drbd_is cs Connected && drbd_is ds UpToDate/UpToDate && grep -q 'oos:0$' /proc/drbd || fail "DRBD is not in sync: $(cat /proc/drbd)"
    mainstay resource scrub db || fail "the replicas differ"
}

show() { # MARK FILE
    echo "---- $1"
    cat "$2"
    echo "---- end of $1"
}

step "Linux $(uname -r)"
if [ "$DISKS" = ram ]; then
    # As large as the others; loaded before with a size of its own.
    rmmod brd && insmod /modules/brd.ko rd_nr=5 rd_size=1048576 || fail "no disks of memory"
    set -- /dev/ram0 /dev/ram1 /dev/ram2 /dev/ram3 /dev/ram4
else
    set -- /dev/vda /dev/vdb /dev/vdc /dev/vdd /dev/vde
fi
plain=$5
start_drbd "$1" "$2"
start_mainstay "$3" "$4"
cat /proc/drbd
drbdsetup-84 show
step "measuring"
# The first is what the ratios are to. DRBD's device cannot tell io_uring that a request would wait.
mainstay bench fio /dev/drbd0 "$plain" resource:db --overwrite --engine libaio --size "${MIB}MiB" --only "$CASES" \
    --rounds "$ROUNDS" --seconds "$SECONDS_EACH" --out /tmp/bench || fail "no figures"
both_in_sync
show report.md /tmp/bench/report.md
show samples.jsonl /tmp/bench/samples.jsonl
[ -z "$PROFILE" ] || . /profile.sh
dmesg | grep -iE 'i/o error|blocked for more|kernel bug|call trace' && fail "the kernel has complained"
step "done"
exit 0
