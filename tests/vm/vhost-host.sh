#!/usr/bin/env bash
# A node of this machine whose volume is the disk of an emulated one (vhost.sh runs in it), and whose engine is killed while
# the disk is under load: vhost-host.sh KERNEL MAINSTAY primary. With `client` instead of `primary` the disk is that of a second node, which
# has no replica (ADR 13), and the engine of the first one is killed, which has it.
# To be called in a network namespace of its own, with the kernel fetched.
set -euo pipefail
cd "$(dirname "$0")/../.."
kernel=$1
mainstay=$2
disk_of=$3
PATH="$PATH:/usr/sbin:/sbin"

work=$(mktemp -d /tmp/mainstay-vhost.XXXXXX)
export MAINSTAY_SOCKET="$work/n1/run/agent.sock" MAINSTAY_LOG=info
started=() machine=""

# Only what was started here, by its number.
end() {
    [ -z "$1" ] || kill "$1" 2>/dev/null || true
}

clean_up() {
    local status=$?
    end "$machine"
    local one
    for one in "${started[@]}"; do end "$one"; done
    for one in "$work"/*/engine.pid; do
        [ ! -e "$one" ] || kill -9 "$(cat "$one")" 2>/dev/null || true
    done
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$work"/*/engine.log "$work"/*/agent.log >&2 || true
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
supervise() { # NODE ADDRESS
    while true; do
        "$mainstay" engine --run-dir "$work/$1/run" --state-dir "$work/$1/state" --device vhost-user \
            --listen "$2:7401" 2>>"$work/$1/engine.log" &
        echo $! >"$work/$1/engine.pid"
        wait $! || true
        sleep 0.2
    done
}

start() { # NODE ADDRESS
    mkdir "$work/$1"
    supervise "$1" "$2" &
    started+=($!)
    "$mainstay" agent --run-dir "$work/$1/run" --state-dir "$work/$1/state" --listen "$2:7400" \
        --cgroup-root "$work/$1/cgroup" 2>"$work/$1/agent.log" &
    started+=($!)
    wait_for 30 test -S "$work/$1/run/agent.sock"
}

said() { # COUNT WORDS: the log of the engine that has the disk has them so often
    [ "$(grep -c "$2" "$work/$node/engine.log")" -ge "$1" ]
}

console_says() {
    grep -q "$1" "$work/console"
}

serves() {
    "$mainstay" --json resource status db | grep -q '"path": *"'"$socket"'"'
}

# The primary has another engine than when it was killed, and serves, and whoever has the disk knows that.
goes_on() {
    [ "$(cat "$work/n1/engine.pid")" != "$killed" ] && "$mainstay" --json resource status db | grep -Eq '"role": *"primary"' || return 1
    [ "$disk_of" = primary ] || "$mainstay" resource status db | grep 'attached to n2' | grep -qv 'attached to n2 ('
}

ip link set lo up
start n1 127.0.0.1
"$mainstay" cluster init --name vm --as n1 --address 127.0.0.1 --lease-ms 20000 --heartbeat-ms 1000
"$mainstay" resource create db --size 320MiB --journal 64MiB --replica-count 1 --wait-s 60
case "$disk_of" in
    primary) node=n1 ;;
    client)
        node=n2
        start n2 127.0.0.2
        token=$("$mainstay" --json cluster token create n2 | sed -n 's/.*"token": *"\(mst_join_[^"]*\)".*/\1/p')
        "$mainstay" --socket "$work/n2/run/agent.sock" cluster join --peer 127.0.0.1 --as n2 --address 127.0.0.2 --token "$token"
        "$mainstay" resource attach db n2 --wait 5m
        ;;
    *) fail "whose disk: primary or client, not $disk_of" ;;
esac
socket="$work/$node/run/vhost-user/db/0.sock"
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
    killed=$(cat "$work/n1/engine.pid")
    kill -9 "$killed"
    wait_for 60 goes_on
    [ "$disk_of" = client ] || wait_for 60 said $((round + 1)) 'a virtual machine has connected'
    echo "== the engine was killed and goes on, round $round"
done
wait "$machine" || { machine=""; fail "the machine"; }
machine=""
if [ "$disk_of" = primary ]; then
    # Depends on the moment of the kill; the engine's own test holds requests in flight and looks at each.
    again=$(grep -c 'what was in flight is asked for again' "$work/n1/engine.log" || true)
    echo "== requests were in flight, and asked for again, after $again of 3 kills"
else
    [ "$(grep -c 'a virtual machine has connected' "$work/n2/engine.log")" = 1 ] || fail "the machine was cut off"
fi
! said 1 'is of the past' || fail "the machine was taken for one of the past"
serves || fail "the volume is not served any more"
