# Runs inside the machine: a node with a ublk device, whose engine is killed under load again and again.
#
# The shell prefers its own applets: a program that has one of the same name is called by its path.
. /node.sh

# A new engine serves the same device.
goes_on() {
    [ "$(cat /tmp/engine.pid)" != "$old" ] && [ "$(grep -c 'ublk device goes on' /tmp/engine.log)" = "$1" ]
}

no_errors() {
    dmesg | grep -iE 'i/o error|ublk.*warn|blocked for more|kernel bug|call trace' && fail "the kernel has complained"
    return 0
}

start_node auto
device=$(readlink -f /run/mainstay/dev/db/0)
case "$device" in
    /dev/ublkb*) ;;
    *) fail "the device is $device" ;;
esac
mainstay status | grep 'devices of this node: ublk (auto: ' || fail "status does not say what auto chose"
[ "$(blockdev --getss "$device")" = 4096 ] || fail "blocks of $(blockdev --getss "$device") bytes"
[ "$(blockdev --getsize64 "$device")" = $((320 << 20)) ] || fail "a device of $(blockdev --getsize64 "$device") bytes"
[ "$(cat "/sys/block/$(basename "$device")/queue/write_cache")" = "write through" ] || fail "a volatile cache in mode C"

step "fio writes and verifies"
fio --name=verify --filename="$device" --rw=randwrite --bsrange=4k-64k --blockalign=4k --size=24m --ioengine=libaio --direct=1 \
    --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/fio.log || fail "fio"
step "discard and write-zeroes"
/usr/bin/blkdiscard -f --offset 4096 --length 65536 "$device" || fail "discard"
[ -z "$(dd if="$device" bs=4096 skip=1 count=16 2>/dev/null | tr -d '\0' | head -c 1)" ] || fail "discarded blocks are not zero"
dd if=/dev/urandom of=/tmp/noise bs=4096 count=4 2>/dev/null
dd if=/tmp/noise of="$device" bs=4096 seek=100 oflag=direct 2>/dev/null || fail "write"
/usr/bin/blkdiscard -f --zeroout --offset 409600 --length 8192 "$device" || fail "write-zeroes"
[ -z "$(dd if="$device" bs=4096 skip=100 count=2 2>/dev/null | tr -d '\0' | head -c 1)" ] || fail "zeroed blocks are not zero"
dd if=/tmp/noise bs=4096 skip=2 of=/tmp/noise-end 2>/dev/null
dd if="$device" bs=4096 skip=102 count=2 iflag=direct of=/tmp/found 2>/dev/null
cmp /tmp/noise-end /tmp/found || fail "write-zeroes reached too far"

step "a file system, and the engine killed under load"
mkfs.xfs -q -f "$device" && mount -t xfs "$device" /mnt || fail "no file system"
# Every block once, slowly enough to be killed in the midst of it on any machine, then everything is read and verified.
fio --name=load --directory=/mnt --rw=randwrite --bs=4k --size=16m --rate_iops=,300 --ioengine=libaio --direct=1 --iodepth=16 \
    --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/load.log 2>&1 &
load=$!
for round in 1 2 3; do
    sleep 2
    kill -0 "$load" 2>/dev/null || fail "the load has ended before kill $round: $(cat /tmp/load.log)"
    kill_engine
    wait_for 60 goes_on "$round"
    step "the engine was killed and goes on, round $round"
done
wait "$load" || fail "the load saw an error: $(cat /tmp/load.log)"
[ "$(readlink -f /run/mainstay/dev/db/0)" = "$device" ] || fail "the device has another name now"
sha256sum /mnt/load.0.0 >/tmp/sum
no_errors

step "killed while idle, then mounted again"
kill_engine
wait_for 60 goes_on 4
umount /mnt && mount -t xfs "$device" /mnt || fail "cannot mount again"
sha256sum -c /tmp/sum || fail "the file is another one"
umount /mnt || fail "cannot unmount"
no_errors

step "an epoch is missing, so somebody else may have written: what is left fails"
touch /tmp/stay-away
kill_engine
note=$(echo /run/mainstay/ublk/*)
awk '{ print $1, $2, $3 - 1 }' "$note" >/tmp/note && cp /tmp/note "$note" || fail "no note of the device"
dd if="$device" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null &
reader=$!
sleep 1
kill -0 "$reader" 2>/dev/null || fail "a request does not wait for the next engine"
rm /tmp/stay-away
wait "$reader" && fail "a device of the past goes on"
wait_for 60 serves
device=$(readlink -f /run/mainstay/dev/db/0)
dd if="$device" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null || fail "no new device"

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
command = ["/bin/sh", "-c", "while echo $$ >>/srv/db/log && sync; do sleep 0.1; done"]
EOF
mainstay service apply /tmp/service.toml || fail "no service"
writes() {
    writer=$(tail -n 1 /srv/db/log) && [ -n "$writer" ] && [ "$writer" != "$before" ]
}
before=""
wait_for 60 writes
before=$writer
kill_engine
wait_for 60 writes
is_running() {
    mainstay service status db | grep -q running
}
wait_for 60 is_running
mainstay service delete db || fail "cannot delete the service"

step "an engine with another frontend gives up what is left"
wait_for 60 serves
device=$(readlink -f /run/mainstay/dev/db/0)
echo fuse >/tmp/device
kill_engine
wait_for 60 test ! -e "$device"
wait_for 60 serves
dd if="$(readlink -f /run/mainstay/dev/db/0)" of=/dev/null bs=1M count=4 2>/dev/null || fail "no device from FUSE"
mainstay status | grep 'devices of this node: fuse (asked for; ' || fail "status does not say what was asked for"

step "resource deleted, then several engines, promotion and handing over"
mainstay resource delete db || fail "cannot delete"
wait_for 30 test ! -e /run/mainstay/dev/db/0
touch /tmp/stay-away
kill_engine
TMPDIR=/var/lib/mainstay cluster --exact --nocapture a_resource_is_written_handed_over_and_equal_everywhere ||
    fail "several engines"
ls /dev/ublkb* 2>/dev/null && fail "a device is left"
step "done"
exit 0
