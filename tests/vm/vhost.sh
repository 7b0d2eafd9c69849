# Runs inside the machine: the disk named db-0 is a volume that an engine of the host serves. The host kills the engine during the load.
#
# The shell prefers its own applets: a program that has one of the same name is called by its path.
. /node.sh

no_errors() {
    dmesg | grep -iE 'i/o error|blocked for more|kernel bug|call trace' && fail "the kernel has complained"
    return 0
}

# is WHAT EXPECTED FOUND
is() {
    [ "$2" = "$3" ] || fail "$1 is $3, not $2"
}

step "the disk of an engine, on Linux $(uname -r)"
# Which of the disks it is depends on the machine.
for block in /sys/block/vd*; do
    [ "$(cat "$block/serial" 2>/dev/null)" != db-0 ] || disk=/dev/$(basename "$block")
done
[ -n "${disk:-}" ] || fail "no disk is named db-0"
block=/sys/block/$(basename "$disk")
queue=$block/queue
is "the size" $((320 << 20)) "$(blockdev --getsize64 "$disk")"
is "the logical block size" 512 "$(cat $queue/logical_block_size)"
is "the physical block size" 4096 "$(cat $queue/physical_block_size)"
is "the cache in mode C" "write through" "$(cat $queue/write_cache)"
is "the granularity of discards" 4096 "$(cat $queue/discard_granularity)"

step "fio writes and verifies, blocks and parts of blocks"
fio --name=verify --filename=$disk --rw=randwrite --bsrange=512-64k --blockalign=512 --size=8m --ioengine=libaio \
    --direct=1 --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/fio.log || fail "fio"

step "discard and write-zeroes"
dd if=/dev/urandom of=/tmp/noise bs=4096 count=16 2>/dev/null
dd if=/tmp/noise of=$disk bs=4096 seek=100 oflag=direct 2>/dev/null || fail "write"
/usr/bin/blkdiscard -f --offset $((100 * 4096)) --length $((2 * 4096)) $disk || fail "discard"
/usr/bin/blkdiscard -f --zeroout --offset $((104 * 4096)) --length 8192 $disk || fail "write-zeroes"
dd if=$disk bs=4096 skip=100 count=16 iflag=direct of=/tmp/found 2>/dev/null
{
    head -c 8192 /dev/zero
    dd if=/tmp/noise bs=4096 skip=2 count=2 2>/dev/null
    head -c 8192 /dev/zero
    dd if=/tmp/noise bs=4096 skip=6 2>/dev/null
} >/tmp/expected
cmp /tmp/expected /tmp/found || fail "zeroes are where they do not belong, or missing"

step "flushes, with a cache that the driver only thinks there is"
echo "write back" >"$block/cache_type"
is "the cache" "write back" "$(cat $queue/write_cache)"
dd if=/tmp/noise of=$disk bs=4096 seek=200 conv=fsync 2>/dev/null || fail "write and flush"
echo "write through" >"$block/cache_type"
is "the cache" "write through" "$(cat $queue/write_cache)"

step "a file system"
mkfs.xfs -q -f $disk && mkdir -p /mnt && mount -t xfs $disk /mnt || fail "no file system"
step "the load begins"
# Every block once, slowly enough to be killed in the midst of it on any machine, then everything is read and verified.
fio --name=load --directory=/mnt --rw=randwrite --bs=4k --size=24m --rate_iops=,150 --ioengine=libaio --direct=1 --iodepth=16 \
    --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/load.log 2>&1 ||
    fail "the load saw an error: $(cat /tmp/load.log)"
step "the load has ended"
no_errors
sha256sum /mnt/load.0.0 >/tmp/sum
umount /mnt && mount -t xfs $disk /mnt || fail "cannot mount again"
sha256sum -c /tmp/sum || fail "the file is another one"
umount /mnt || fail "cannot unmount"
no_errors
step "done"
exit 0
