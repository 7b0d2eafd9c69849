# What the scripts of several machines need: a node whose engine is started again whenever it ends.
set -u

fail() {
    echo "FAIL: $*"
    for log in /tmp/*.log; do
        echo "--- $log"
        tail -n 30 "$log"
    done
    dmesg | tail -n 30
    exit 1
}

step() {
    echo "== $(cut -d' ' -f1 /proc/uptime) s: $*"
}

# wait_for SECONDS COMMAND...
wait_for() {
    left=$(($1 * 10))
    shift
    until "$@" >/tmp/wait.log 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "waited in vain for: $*"
        sleep 0.1
    done
}

# The engine is started again whenever it ends, as a supervisor does it, unless /tmp/stay-away is there.
supervise() {
    while true; do
        if [ ! -e /tmp/stay-away ]; then
            mainstay engine --device "$(cat /tmp/device)" --listen 127.0.0.1:7401 2>>/tmp/engine.log &
            echo $! >/tmp/engine.pid
            wait $!
        fi
        sleep 0.2
    done
}

kill_engine() {
    old=$(cat /tmp/engine.pid)
    kill -9 "$old" || fail "there is no engine to kill"
}

# The device of resource db is there.
serves() {
    mainstay --json resource status db | grep -Eq "\"role\": ?\"primary\"" && [ -b "$(readlink -f /run/mainstay/dev/db/0)" ]
}

# start_node FRONTEND: a cluster of this machine alone, with the resource db.
start_node() {
    step "the node starts on Linux $(uname -r)"
    export MAINSTAY_LOG=info
    mkdir -p /var/lib/mainstay /mnt /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkfs.xfs -q /dev/vda && mount -t xfs /dev/vda /var/lib/mainstay || fail "no disk for the pool"
    echo "$1" >/tmp/device
    supervise &
    mainstay agent --listen 127.0.0.1:7400 2>/tmp/agent.log &
    wait_for 30 test -S /run/mainstay/agent.sock
    # Everything is slow here, and leases are not what this looks at.
    mainstay cluster init --name vm --as n1 --address 127.0.0.1 --lease-ms 20000 --heartbeat-ms 1000 || fail "no cluster"
    mainstay resource create db --size 320MiB --journal 64MiB --replica-count 1 --wait-s 60 || fail "no resource"
    wait_for 30 serves
}
