#!/bin/bash
# fio and a database on a plain device, on the floor (what the system calls of a write to three copies cost with nothing around them,
# crates/engine/examples/write_path/floor.rs), and on three engines: in turns, in one node of a lab. Root.
# Arguments: rounds, seconds of each run, cases of sysbench, cases of fio.
set -euo pipefail
rounds=${1:-3} seconds=${2:-5} cases=${3:-oltp-rw-t10,oltp-wo-t10} fio=${4:-rw4k-qd1,rw4k-fdatasync,rw4k-qd32}
built=${BUILT:-target/release}
mainstay=$(realpath "$built/mainstay")
floor=$(realpath "$built/examples/write_path")
mib=1536
export MAINSTAY_LAB=floor
work=$(mktemp -d /var/tmp/mainstay-floor.XXXXXX)
lab='' loop='' served=''

end() {
    # The database ends with the lab, and what it has open with it.
    if [ -n "$lab" ]; then
        "$mainstay" lab exec n1 -- umount "$work/plain" "$work/floor" "$work/three" 2>/dev/null || true
        "$mainstay" lab down >/dev/null || true
    fi
    exec 9>&-
    if [ -n "$served" ]; then wait "$served" || true; fi
    if [ -n "$loop" ]; then losetup -d "$loop" || true; fi
    rm -rf "$work"
}
trap end EXIT

mkdir "$work/plain" "$work/floor" "$work/three"
"$mainstay" lab up --directories >/dev/null
lab=up
"$mainstay" resource create db --lab floor --size ${mib}MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
three=''
for _ in $(seq 50); do
    three=$("$mainstay" resource status db --lab floor | sed -n 's|^volume 0 is \(/dev/[^ ;]*\).*|\1|p') || true
    [ -n "$three" ] && break
    sleep 0.2
done
mkfifo "$work/in"
# On the same file system as the others; it writes its files whole.
TMPDIR=$work "$floor" floor $mib 2 < "$work/in" > "$work/out" &
served=$!
exec 9> "$work/in"
while [ ! -s "$work/out" ]; do
    kill -0 "$served" 2>/dev/null || { echo "the floor has ended" >&2; exit 1; }
    sleep 0.2
done
path=$(cat "$work/out")
dd if=/dev/zero of="$work/plain.img" bs=1M count=$mib status=none
loop=$(losetup --direct-io=on -f --show "$work/plain.img")
dd if=/dev/zero of="${three:?no device of the resource}" bs=1M count=$mib oflag=direct status=none
echo "plain is $loop, the floor is $path, three engines are $three"
"$mainstay" bench fio "$loop" "$path" "$three" --overwrite --size ${mib}MiB --only "$fio" --rounds "$rounds" --seconds "$seconds" 9>&-
for device in "$loop" "$path" "$three"; do mkfs.xfs -q -K -f "$device"; done
# Nobody is to wait for what was prepared.
sync
{
    echo "set -e"
    echo "mount $loop $work/plain; mount $path $work/floor; mount $three $work/three"
    echo "$mainstay bench sysbench $work/plain $work/floor $work/three --only $cases --rounds $rounds --seconds $seconds"
} > "$work/run"
"$mainstay" lab exec n1 -- bash "$work/run" 9>&-
