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
            # shellcheck disable=SC2046
            mainstay engine --device "$(cat /tmp/device)" --listen 127.0.0.1:7401 $(cat /tmp/engine-options 2>/dev/null) \
                2>>/tmp/engine.log &
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

# What the agent is started with besides: $agent_options.
agent_options=""

run_agent() {
    rm -f /run/mainstay/agent.sock
    # shellcheck disable=SC2086
    mainstay agent --listen 127.0.0.1:7400 $agent_options 2>>/tmp/agent.log &
    echo $! >/tmp/agent.pid
    wait_for 30 test -S /run/mainstay/agent.sock
}

# start_agent FRONTEND: a cluster of this machine alone.
start_agent() {
    step "the node starts on Linux $(uname -r)"
    export MAINSTAY_LOG=info
    mkdir -p /var/lib/mainstay /mnt /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkfs.xfs -q /dev/vda && mount -t xfs /dev/vda /var/lib/mainstay || fail "no disk for the pool"
    echo "$1" >/tmp/device
    supervise &
    run_agent
    # Everything is slow here, and leases are not what this looks at.
    mainstay cluster init --name vm --as n1 --address 127.0.0.1 --lease-ms 20000 --heartbeat-ms 1000 || fail "no cluster"
}

make_resource() {
    mainstay resource create db --size 320MiB --journal 64MiB --replica-count 1 --wait-s 60 || fail "no resource"
    wait_for 30 serves
}

# start_node FRONTEND: the same with the resource db.
start_node() {
    start_agent "$1"
    make_resource
}

# A new engine serves the same device, for the COUNTth time: goes_on FRONTEND COUNT
goes_on() {
    [ "$(cat /tmp/engine.pid)" != "$old" ] && [ "$(grep -c "$1 device goes on" /tmp/engine.log)" = "$2" ]
}

no_errors() {
    dmesg | grep -iE 'i/o error|ublk.*warn|blocked for more|kernel bug|call trace' && fail "the kernel has complained"
    return 0
}

# killed_under_load FRONTEND DEVICE: no user of a device sees more than a pause when its engine is killed.
killed_under_load() {
    step "a file system, and the engine killed under load"
    mkfs.xfs -q -f "$2" && mount -t xfs "$2" /mnt || fail "no file system"
    # Every block once, slowly enough to be killed in the midst of it on any machine, then everything is read and verified.
    fio --name=load --directory=/mnt --rw=randwrite --bs=4k --size=16m --rate_iops=,300 --ioengine=libaio --direct=1 --iodepth=16 \
        --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/load.log 2>&1 &
    load=$!
    for round in 1 2 3; do
        sleep 2
        kill -0 "$load" 2>/dev/null || fail "the load has ended before kill $round: $(cat /tmp/load.log)"
        kill_engine
        wait_for 60 goes_on "$1" "$round"
        step "the engine was killed and goes on, round $round"
    done
    wait "$load" || fail "the load saw an error: $(cat /tmp/load.log)"
    [ "$(readlink -f /run/mainstay/dev/db/0)" = "$2" ] || fail "the device has another name now"
    sha256sum /mnt/load.0.0 >/tmp/sum
    no_errors

    step "killed while idle, then mounted again"
    kill_engine
    wait_for 60 goes_on "$1" 4
    umount /mnt && mount -t xfs "$2" /mnt || fail "cannot mount again"
    sha256sum -c /tmp/sum || fail "the file is another one"
    umount /mnt || fail "cannot unmount"
    no_errors
}

# grows DEVICE: the volume and its device get larger while the device is open. A device that cannot keeps its size, and that is said.
grows() {
    step "the volume grows while its device is open"
    new=$((336 << 20))
    exec 9<"$1"
    mainstay resource resize db "$new" --wait-s 60 || fail "cannot grow"
    grown() {
        [ "$(blockdev --getsize64 "$1")" = "$new" ]
    }
    case "$1 $(uname -r)" in
        /dev/ublkb*\ 6.12.*)
            wait_for 10 grep "keeps its size until it is attached again" /tmp/engine.log
            grown "$1" && fail "this kernel can make a ublk device larger after all"
            ;;
        *)
            wait_for 10 grown "$1"
            dd if=/dev/urandom of=/tmp/end bs=4096 count=1 2>/dev/null
            dd if=/tmp/end of="$1" bs=4096 seek=$((new / 4096 - 1)) oflag=direct 2>/dev/null || fail "write at the new end"
            dd if="$1" bs=4096 skip=$((new / 4096 - 1)) count=1 iflag=direct 2>/dev/null | cmp - /tmp/end || fail "read at the new end"
            ;;
    esac
    exec 9<&-
    mainstay resource resize db 320MiB && fail "a volume must not shrink"
    no_errors
}

read_block() { # NUMBER
    dd if="$(readlink -f /run/mainstay/dev/db/0)" bs=4096 skip="$1" count=1 iflag=direct 2>/dev/null
}

# fails_if_an_epoch_is_missing FRONTEND DEVICE: what waits in a device must not be done after somebody else may have written.
fails_if_an_epoch_is_missing() {
    step "an epoch is missing, so somebody else may have written: what is left fails"
    dd if=/dev/urandom of=/tmp/before bs=4096 count=1 2>/dev/null
    dd if=/dev/urandom of=/tmp/after bs=4096 count=1 2>/dev/null
    dd if=/tmp/before of="$2" bs=4096 seek=100 oflag=direct 2>/dev/null || fail "write"
    touch /tmp/stay-away
    kill_engine
    # The epoch is the last word of a note.
    note=$(echo /run/mainstay/"$1"/*)
    awk '{ $NF = $NF - 1; print }' "$note" >/tmp/note && cp /tmp/note "$note" || fail "no note of the device"
    dd if=/tmp/after of="$2" bs=4096 seek=100 oflag=direct 2>/dev/null &
    writer=$!
    dd if="$2" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null &
    reader=$!
    sleep 1
    kill -0 "$reader" 2>/dev/null && kill -0 "$writer" 2>/dev/null || fail "a request does not wait for the next engine"
    rm /tmp/stay-away
    wait "$reader" && fail "a device of the past goes on"
    wait "$writer" && fail "a write to a device of the past was taken"
    wait_for 60 serves
    read_block 100 >/tmp/found || fail "no new device"
    cmp /tmp/found /tmp/before || fail "a write of the past was done after all"
}

writes() {
    writer=$(tail -n 1 /srv/db/log) && [ -n "$writer" ] && [ "$writer" != "$before" ]
}

is_running() {
    mainstay service status db | grep -q running
}

service_starts_again() {
    step "a service whose engine is killed stops, though its device hung, and starts again"
    cat >/tmp/service.toml <<'EOF'
name = "db"
resource = "db"
[mount]
path = "/srv/db"
fstype = "xfs"
mkfs = true
[[process]]
name = "writer"
command = ["/bin/sh", "-c", "while echo $$ >>/srv/db/log && sync; do sleep 0.1; done; echo failed >>/tmp/saw-an-error"]
EOF
    mainstay service apply /tmp/service.toml || fail "no service"
    before=""
    wait_for 60 writes
    before=$writer
    kill_engine
    wait_for 60 writes
    wait_for 60 is_running
    [ ! -e /tmp/saw-an-error ] || fail "the device has failed under the service, and not after its end"
    mainstay service delete db || fail "cannot delete the service"
}

# gives_up_for_another_frontend PATH: a device is not left to wait for an engine that does not make such devices. The path is there
# for as long as the device is.
gives_up_for_another_frontend() {
    step "an engine with another frontend gives up what is left"
    echo fuse >/tmp/device
    kill_engine
    wait_for 60 test ! -e "$1"
    wait_for 60 serves
    dd if="$(readlink -f /run/mainstay/dev/db/0)" of=/dev/null bs=1M count=4 2>/dev/null || fail "no device from FUSE"
    mainstay status | grep 'devices of this node: fuse (asked for; ' || fail "status does not say what was asked for"
}

status_says() {
    mainstay status | grep -q "$1"
}

# watchdog_resets: the last step of a machine, because the machine is reset. It needs a watchdog.
watchdog_resets() {
    step "a watchdog that another program has open is left alone, and a node that requires one says so"
    sleep 10000 9>/dev/watchdog &
    holder=$!
    echo "--watchdog required" >/tmp/engine-options
    kill_engine
    wait_for 60 status_says "watchdog of this node: cannot be used: .*(process $holder) has /dev/watchdog open"
    wait_for 60 sh -c "mainstay events | grep -q 'is not to be primary: .*--watchdog required'"
    kill "$holder"
    wait_for 60 status_says "watchdog of this node: ready, not armed"
    step "it is armed while a service runs, and only then"
    mainstay resource create wd --size 64MiB --journal 64MiB --replica-count 1 --wait-s 60 || fail "no resource"
    printf 'name = "wd"\nresource = "wd"\n[[process]]\nname = "p"\ncommand = ["/bin/sleep", "100000"]\n' >/tmp/wd.toml
    mainstay service apply /tmp/wd.toml || fail "no service"
    wait_for 60 status_says "watchdog of this node: armed; it resets the machine 1[89] s after"
    mainstay service stop wd || fail "cannot stop the service"
    wait_for 60 status_says "watchdog of this node: ready, not armed"
    mainstay service start wd || fail "cannot start the service"
    wait_for 60 status_says "watchdog of this node: armed"
    step "the engine stands still: the machine is reset"
    echo "vm-result: 0"
    kill -STOP "$(cat /tmp/engine.pid)"
    sleep 60
    fail "the machine was not reset"
}
