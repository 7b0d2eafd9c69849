# Runs inside the machine: a node whose journals are on an emulated NVDIMM, through a file system that maps the memory itself
# (DAX). The engine is killed under load, and the journal is taken away and brought back.
#
# The shell prefers its own applets: a program that has one of the same name is called by its path.
. /node.sh

# A new engine has recovered the replica. Which journal it wrote as memory stands in its log.
goes_on() {
    [ "$(cat /tmp/engine.pid)" != "$old" ] && [ "$(opened)" -ge "$1" ] && serves
}

# What could not be made is deleted, and has its name until then.
is_removed() {
    ! mainstay resource status db >/dev/null 2>&1
}

opened() {
    grep -c 'written as persistent memory' /tmp/engine.log
}

no_errors() {
    dmesg | grep -iE 'i/o error|memory failure|blocked for more|kernel bug|call trace' && fail "the kernel has complained"
    return 0
}

step "an NVDIMM for a file system that maps it"
# What ndctl does: the raw namespace becomes one with pages, which DAX needs.
wait_for 30 test -e /sys/bus/nd/devices/namespace0.0
echo namespace0.0 >/sys/bus/nd/drivers/nd_pmem/unbind
seed=/sys/bus/nd/devices/$(cat /sys/bus/nd/devices/region0/pfn_seed)
echo ram >"$seed/mode"
cat /proc/sys/kernel/random/uuid >"$seed/uuid"
echo namespace0.0 >"$seed/namespace"
basename "$seed" >/sys/bus/nd/drivers/nd_pmem/bind || fail "no namespace with pages"
wait_for 10 test -b /dev/pmem0
mkfs.xfs -q -f -m reflink=0 /dev/pmem0 && mkdir /fast && mount -t xfs -o dax=always /dev/pmem0 /fast || fail "no DAX"

step "a mount point is no place for journals"
agent_options="--journal-dir /fast"
start_agent auto
mainstay resource create db --size 320MiB --journal 64MiB --replica-count 1 --wait-s 60 >/tmp/refused.log 2>&1 &&
    fail "a journal was made in a mount point"
grep -q '/fast, where journals are to be, is a mount point' /tmp/refused.log || fail "refused for another reason"
[ -z "$(ls /fast)" ] || fail "something was made in the mount point"
kill "$(cat /tmp/agent.pid)" && wait "$(cat /tmp/agent.pid)"

step "the node starts with journals on the NVDIMM"
mkdir /fast/journals
agent_options="--journal-dir /fast/journals"
run_agent
wait_for 30 is_removed
make_resource
[ "$(opened)" = 1 ] || fail "the journal is not written as memory: $(tail -n 5 /tmp/engine.log)"
replica=$(echo /var/lib/mainstay/pools/default/db-*)
journal=$(readlink "$replica/journal") || fail "no link to a journal in $replica"
case "$journal" in
    /fast/journals/db-*.journal) ;;
    *) fail "the journal is $journal" ;;
esac
device=$(readlink -f /run/mainstay/dev/db/0)

step "fio writes and verifies"
fio --name=verify --filename="$device" --rw=randwrite --bsrange=4k-64k --blockalign=4k --size=24m --ioengine=libaio --direct=1 \
    --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/fio.log || fail "fio"

step "a file system, and the engine killed under load"
mkfs.xfs -q -f "$device" && mount -t xfs "$device" /mnt || fail "no file system"
# Every block once, slowly enough to be killed in the midst of it on any machine, then everything is read and verified.
fio --name=load --directory=/mnt --rw=randwrite --bs=4k --size=16m --rate_iops=,300 --ioengine=libaio --direct=1 --iodepth=16 \
    --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse >/tmp/load.log 2>&1 &
load=$!
for round in 2 3 4; do
    sleep 2
    kill -0 "$load" 2>/dev/null || fail "the load has ended before it was to be killed: $(cat /tmp/load.log)"
    kill_engine
    wait_for 60 goes_on "$round"
    step "the engine was killed and goes on with what was in the NVDIMM"
done
wait "$load" || fail "the load saw an error: $(cat /tmp/load.log)"
sha256sum /mnt/load.0.0 >/tmp/sum
umount /mnt && mount -t xfs "$device" /mnt || fail "cannot mount again"
sha256sum -c /tmp/sum || fail "the file is another one"
umount /mnt || fail "cannot unmount"
no_errors

step "the NVDIMM is not mounted"
touch /tmp/stay-away
kill_engine
wait_for 30 umount /fast
rm /tmp/stay-away
wait_for 60 grep -q 'is at /fast/journals/db-.*which is not there' /tmp/engine.log
[ -z "$(ls /fast)" ] || fail "something was made where the NVDIMM was"
mkdir /elsewhere
mount -t xfs -o dax=always /dev/pmem0 /elsewhere || fail "cannot mount the NVDIMM again"
found=/elsewhere/journals/$(basename "$journal")
mainstay inspect "$replica" --journal "$found" >/tmp/inspect.log || fail "inspect: $(cat /tmp/inspect.log)"
grep -q "journal .* at $found" /tmp/inspect.log || fail "inspect does not say where the journal is: $(cat /tmp/inspect.log)"
umount /elsewhere
step "it is mounted, and the replica is opened without being asked for"
mount -t xfs -o dax=always /dev/pmem0 /fast || fail "cannot mount the NVDIMM again"
wait_for 90 goes_on 5
mount -t xfs "$(readlink -f /run/mainstay/dev/db/0)" /mnt || fail "cannot mount the volume again"
sha256sum -c /tmp/sum || fail "the file is another one"
umount /mnt || fail "cannot unmount"

step "deleted, with its journal"
mainstay resource delete db --yes || fail "cannot delete"
[ -z "$(ls /fast/journals)" ] || fail "left: $(ls /fast/journals)"
no_errors
watchdog_resets
