#!/usr/bin/env bash
# A node of this machine whose volume is the disk of an emulated one (vhost.sh runs in it), and whose engine is killed while
# the disk is under load: vhost-host.sh KERNEL MAINSTAY. To be called in a network namespace of its own, with the kernel fetched.
set -euo pipefail
cd "$(dirname "$0")/../.."
kernel=$1
mainstay=$2
PATH="$PATH:/usr/sbin:/sbin"

work=$(mktemp -d /tmp/mainstay-vhost.XXXXXX)
export MAINSTAY_SOCKET="$work/run/agent.sock" MAINSTAY_LOG=info
supervisor="" agent="" machine=""

# Only what was started here, by its number.
end() {
    [ -z "$1" ] || kill "$1" 2>/dev/null || true
}

clean_up() {
    local status=$?
    end "$machine"
    end "$supervisor"
    end "$agent"
    [ ! -e "$work/engine.pid" ] || kill -9 "$(cat "$work/engine.pid")" 2>/dev/null || true
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$work"/engine.log "$work"/agent.log >&2 || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

wait_for() { # SECONDS COMMAND...
    local left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        [ -z "$machine" ] || kill -0 "$machine" 2>/dev/null || fail "the machine has ended"
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "waited in vain for: $*"
        sleep 0.1
    done
}

# The engine is started again whenever it ends, as a supervisor does it.
supervise() {
    while true; do
        "$mainstay" engine --run-dir "$work/run" --state-dir "$work/state" --device vhost-user \
            --listen 127.0.0.1:7401 2>>"$work/engine.log" &
        echo $! >"$work/engine.pid"
        wait $! || true
        sleep 0.2
    done
}

said() { # COUNT WORDS: the engine's log has them so often
    [ "$(grep -c "$2" "$work/engine.log")" -ge "$1" ]
}

console_says() {
    grep -q "$1" "$work/console"
}

serves() {
    "$mainstay" --json resource status db | grep -q '"path": *"'"$socket"'"'
}

ip link set lo up
supervise &
supervisor=$!
"$mainstay" agent --run-dir "$work/run" --state-dir "$work/state" --listen 127.0.0.1:7400 \
    --cgroup-root "$work/cgroup" 2>"$work/agent.log" &
agent=$!
wait_for 30 test -S "$MAINSTAY_SOCKET"
"$mainstay" cluster init --name vm --as n1 --address 127.0.0.1 --lease-ms 20000 --heartbeat-ms 1000
"$mainstay" resource create db --size 320MiB --journal 64MiB --replica-count 1 --wait-s 60
socket="$work/run/vhost-user/db/0.sock"
wait_for 30 serves
[ "$(stat -c %a "$socket")" = 600 ] || fail "others may connect to $socket"
# One replica needs attention, so its status is not 0.
{ "$mainstay" status || true; } | grep 'devices of this node: vhost-user (asked for; ' || fail "status does not say what was asked for"

memory=1024
: >"$work/console"
scripts/vm.sh run --kernel "$kernel" --script tests/vm/vhost.sh --seconds 400 --memory "$memory" \
    --module virtio_pci --module virtio_blk --module xfs \
    --binary fio --binary mkfs.xfs --binary blkdiscard --binary sha256sum --file tests/vm/node.sh=/node.sh \
    --qemu -object --qemu "memory-backend-memfd,id=memory,size=${memory}M,share=on" \
    --qemu -machine --qemu memory-backend=memory \
    --qemu -chardev --qemu "socket,id=disk,path=$socket,reconnect=1" \
    --qemu -device --qemu vhost-user-blk-pci,chardev=disk,num-queues=2 \
    > >(tee "$work/console") 2>&1 &
machine=$!
wait_for 300 console_says 'the load begins'
for round in 1 2 3; do
    sleep 3
    console_says 'the load has ended' && fail "the load had ended before kill $round"
    kill -9 "$(cat "$work/engine.pid")"
    wait_for 60 said $((round + 1)) 'a virtual machine has connected'
    echo "== the engine was killed and goes on, round $round"
done
wait "$machine" || { machine=""; fail "the machine"; }
machine=""
# Depends on the moment of the kill; the engine's own test holds requests in flight and looks at each.
again=$(grep -c 'what was in flight is asked for again' "$work/engine.log" || true)
echo "== requests were in flight, and asked for again, after $again of 3 kills"
! said 1 'is of the past' || fail "the machine was taken for one of the past"
serves || fail "the volume is not served any more"
