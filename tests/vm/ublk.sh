# Runs inside the machine: a node with a ublk device, whose engine is killed under load again and again.
#
# The shell prefers its own applets: a program that has one of the same name is called by its path.
. /node.sh

start_node auto
device=$(readlink -f /run/mainstay/dev/db/0)
case "$device" in
    /dev/ublkb*) ;;
    *) fail "the device is $device" ;;
esac
mainstay status | grep 'devices of this node: ublk (auto: ' || fail "status does not say what auto chose"
[ "$(blockdev --getss "$device")" = 4096 ] || fail "blocks of $(blockdev --getss "$device") bytes"
[ "$(blockdev --getsize64 "$device")" = $((320 << 20)) ] || fail "a device of $(blockdev --getsize64 "$device") bytes"
queue=/sys/block/$(basename "$device")/queue
[ "$(cat "$queue/write_cache")" = "write through" ] || fail "a volatile cache in mode C"
for setting in physical_block_size minimum_io_size optimal_io_size; do
    [ "$(cat "$queue/$setting")" = 16384 ] || fail "$setting is $(cat "$queue/$setting")"
done
[ "$(cat "$queue/max_sectors_kb")" = 1024 ] || fail "requests of $(cat "$queue/max_sectors_kb") KiB"
mainstay resource status db | grep 'a write of up to 1 MiB is whole or absent' || fail "whole writes are not shown"

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

grows "$device"
killed_under_load ublk "$device"
fails_if_an_epoch_is_missing ublk "$device"
service_starts_again
wait_for 60 serves
gives_up_for_another_frontend "$(readlink -f /run/mainstay/dev/db/0)"

step "resource deleted, then several engines, promotion and handing over"
mainstay resource delete db --yes || fail "cannot delete"
wait_for 30 test ! -e /run/mainstay/dev/db/0
touch /tmp/stay-away
kill_engine
TMPDIR=/var/lib/mainstay cluster --exact --nocapture a_resource_is_written_handed_over_and_equal_everywhere ||
    fail "several engines"
ls /dev/ublkb* 2>/dev/null && fail "a device is left"
step "done"
exit 0
