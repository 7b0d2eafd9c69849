# Runs inside the machine: a node without a replica, n2, has the ublk device of what the other node, n1, holds (ADR 13). Both are in this
# machine, each with a loopback address and directories of its own.
#
# The shell prefers its own applets: a program that has one of the same name is called by its path.
. /node.sh

run=/run/n2
state=/var/lib/mainstay/n2

# The client's engine is started again whenever it ends, as that of n1 is.
supervise_client() {
    while true; do
        mainstay engine --device auto --run-dir $run --state-dir $state --listen 127.0.0.2:7401 2>>/tmp/client-engine.log &
        echo $! >/tmp/client.pid
        wait $!
        sleep 0.2
    done
}

start_client() {
    step "a second node joins"
    mkdir -p $run $state
    supervise_client &
    mainstay agent --run-dir $run --state-dir $state --listen 127.0.0.2:7400 --cgroup-root /sys/fs/cgroup/n2 2>>/tmp/client-agent.log &
    wait_for 30 test -S $run/agent.sock
    token=$(mainstay --json cluster token create n2 | sed -n 's/.*"token": *"\(mst_join_[^"]*\)".*/\1/p')
    mainstay --socket $run/agent.sock cluster join --peer 127.0.0.1 --as n2 --address 127.0.0.2 --token "$token" || fail "n2 cannot join"
}

# The client has a device, and a primary that answers.
attached() {
    mainstay resource status db | grep 'attached to n2' | grep -qv 'attached to n2 (' && [ -b "$(readlink -f $run/dev/db/0)" ]
}

# Requests of the device that have ended, by the kernel's count.
ended() {
    awk '{ print $1 + $5 + $12 + $16 }' "/sys/block/$(basename "$device")/stat"
}

more_than() {
    [ "$(ended)" -gt "$1" ]
}

# The primary has no engine, and writes /tmp/after to the last block of $device: that waits, as $writer.
a_write_waits() {
    touch /tmp/stay-away
    kill_engine
    dd if=/tmp/after of="$device" bs=4096 seek=$last oflag=direct 2>/dev/null &
    writer=$!
    sleep 1
    kill -0 "$writer" 2>/dev/null || fail "a write does not wait while the primary has no engine"
}

start_node auto
own=$(readlink -f /run/mainstay/dev/db/0)
start_client
step "the device moves to the node without a replica"
mainstay resource attach db n2 --wait 5m || fail "cannot attach"
wait_for 30 attached
device=$(readlink -f $run/dev/db/0)
case "$device" in
    /dev/ublkb*) ;;
    *) fail "the device is $device" ;;
esac
wait_for 30 test ! -e /run/mainstay/dev/db/0
[ "$device" = "$own" ] || [ ! -e "$own" ] || fail "the primary keeps $own"
[ "$(blockdev --getss "$device")" = 4096 ] || fail "blocks of $(blockdev --getss "$device") bytes"
[ "$(blockdev --getsize64 "$device")" = $((320 << 20)) ] || fail "a device of $(blockdev --getsize64 "$device") bytes"

step "fio writes and verifies"
fio --name=verify --filename="$device" --rw=randwrite --bsrange=4k-64k --blockalign=4k --size=16m --ioengine=libaio --direct=1 \
    --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/fio.log || fail "fio"
/usr/bin/blkdiscard -f --offset 4096 --length 65536 "$device" || fail "discard"
[ -z "$(dd if="$device" bs=4096 skip=1 count=16 2>/dev/null | tr -d '\0' | head -c 1)" ] || fail "discarded blocks are not zero"

step "a file system, and the primary's engine killed under load"
mkfs.xfs -q -f "$device" && mount -t xfs "$device" /mnt || fail "no file system"
fio --name=load --directory=/mnt --rw=randwrite --bs=4k --size=16m --rate_iops=,150 --ioengine=libaio --direct=1 --iodepth=16 \
    --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/load.log 2>&1 &
load=$!
for round in 1 2 3; do
    sleep 2
    kill -0 "$load" 2>/dev/null || fail "the load has ended before kill $round: $(cat /tmp/load.log)"
    touch /tmp/stay-away
    kill_engine
    # What the engine has answered before it died.
    sleep 1
    before=$(ended)
    sleep 2
    [ "$(ended)" = "$before" ] || fail "requests end while nobody serves"
    rm /tmp/stay-away
    wait_for 60 more_than "$before"
    [ "$(cat /tmp/engine.pid)" != "$old" ] || fail "the engine was not started again"
    step "the primary's engine was killed and the client goes on, round $round"
done
wait "$load" || fail "the load saw an error: $(cat /tmp/load.log)"
[ "$(readlink -f $run/dev/db/0)" = "$device" ] || fail "the device has another name now"
sha256sum /mnt/load.0.0 >/tmp/sum
umount /mnt && mount -t xfs "$device" /mnt || fail "cannot mount again"
sha256sum -c /tmp/sum || fail "the file is another one"
umount /mnt || fail "cannot unmount"
no_errors

step "the client's own engine is killed: what waits in its device fails, is not done later, and a new device comes"
dd if=/dev/urandom of=/tmp/before bs=4096 count=1 2>/dev/null
dd if=/dev/urandom of=/tmp/after bs=4096 count=1 2>/dev/null
last=$((320 * 256 - 1))
dd if=/tmp/before of="$device" bs=4096 seek=$last oflag=direct 2>/dev/null || fail "write"
a_write_waits
killed=$(cat /tmp/client.pid)
kill -9 "$killed" || fail "the client has no engine to kill"
wait "$writer" && fail "a write of a session that is over was taken"
rm /tmp/stay-away
wait_for 60 attached
[ "$(cat /tmp/client.pid)" != "$killed" ] || fail "the client's engine was not started again"
dd if="$(readlink -f $run/dev/db/0)" bs=4096 skip=$last count=1 iflag=direct of=/tmp/found 2>/dev/null || fail "read"
cmp /tmp/found /tmp/before || fail "a write of a session that is over was done after all"

step "detached: the device moves back to the primary, with what the client has written"
dmesg -c >/dev/null
mainstay resource detach db || fail "cannot detach"
wait_for 30 test ! -e $run/dev/db/0
wait_for 60 serves
device=$(readlink -f /run/mainstay/dev/db/0)
case "$device" in
    /dev/ublkb*) ;;
    *) fail "the primary's device is $device" ;;
esac
mount -t xfs "$device" /mnt || fail "cannot mount on the primary"
sha256sum -c /tmp/sum || fail "the primary's file is another one"
umount /mnt || fail "cannot unmount"
no_errors

step "attached while the primary's engine is dead: what waits in the device that it left is not done over what the client writes"
dd if=/dev/urandom of=/tmp/of-client bs=4096 count=1 2>/dev/null
a_write_waits
# The waiting write uses the device: whoever takes it over says so.
mainstay resource attach db n2 --no-wait --take-over || fail "cannot attach"
rm /tmp/stay-away
wait_for 60 attached
dd if=/tmp/of-client of="$(readlink -f $run/dev/db/0)" bs=4096 seek=$last oflag=direct 2>/dev/null || fail "the client cannot write"
mainstay resource detach db || fail "cannot detach"
wait "$writer" && fail "a write to a device of the past was taken"
wait_for 60 serves
read_block $last >/tmp/found || fail "read"
cmp /tmp/found /tmp/of-client || fail "a write of the past was done over that of the client"
step "done"
exit 0
