#!/usr/bin/env bash
# What readahead of the kernel does on a volume: one scan through the page cache, and random reads of 16 KiB through it, with no page in
# memory at the start of either; how many bytes the volume was asked for, beside those that the reader wanted. Root.
# Arguments: the directory with the built programs, rounds, MiB, and settings of read_ahead_kb, taken in turn. SCANS=1 leaves the random
# reads out.
set -euo pipefail
[ $# -ge 4 ] || { echo "usage: bench/readahead.sh DIRECTORY ROUNDS MIB KIB..." >&2; exit 2; }
program=$(realpath "$1/mainstay") rounds=$2 mib=$3
shift 3
lab=readahead
result=$(mktemp)
trap 'rm -f "$result"' EXIT

"$program" lab up --name $lab --directories >/dev/null
trap 'rm -f "$result"; "$program" lab down --name $lab >/dev/null 2>&1 || true' EXIT
"$program" resource create db --lab $lab --size "${mib}MiB" --replicas n1,n2,n3 --preferred n1 >/dev/null
device=''
for _ in $(seq 80); do
    device=$({ "$program" resource status db --lab $lab || true; } | sed -n 's|^volume 0 is \(/dev/[^ ;]*\).*|\1|p')
    [ -n "$device" ] && break
    sleep 0.25
done
fio --name=written --filename="${device:?no device}" --rw=write --bs=1m --iodepth=4 --ioengine=io_uring --direct=1 \
    --size="${mib}M" --output-format=json >/dev/null
# All of it is in the volumes by then: it was written in MiBs to where nothing was.
sleep 5
queue=/sys/block/$(basename "$device")
echo "the volume's setting is $(cat "$queue/queue/read_ahead_kb") KiB"

# Sectors that the volume was asked for.
asked() { awk '{ print $3 }' "$queue/stat"; }

reads() { # READ_AHEAD_KB NAME OPTIONS...
    local kib=$1 name=$2 before after
    shift 2
    echo "$kib" >"$queue/queue/read_ahead_kb"
    sync
    echo 3 >/proc/sys/vm/drop_caches
    before=$(asked)
    fio --name="$name" --filename="$device" --direct=0 --ioengine=psync --invalidate=1 "$@" --output-format=json >"$result"
    after=$(asked)
    python3 - "$result" "$kib" "$name" $((after - before)) <<'PY'
import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]["read"]
wanted = job["io_bytes"]
print(f"{sys.argv[3]}, readahead of {sys.argv[2]} KiB: {job['bw_bytes'] / 2**20:.0f} MiB/s, {job['iops']:.0f} reads/s, "
      f"99 in 100 within {job['clat_ns']['percentile']['99.000000'] / 1000:.0f} µs, {int(sys.argv[4]) * 512 / wanted:.2f} bytes asked for each")
PY
}

for _ in $(seq "$rounds"); do
    for kib in "$@"; do reads "$kib" scan --rw=read --bs=64k --size="${mib}M"; done
    # A tenth of the volume at most, so that hardly any page is wanted twice.
    [ -n "${SCANS:-}" ] || for kib in "$@"; do reads "$kib" random --rw=randread --bs=16k --io_size="$((mib / 10))M" --size="${mib}M" --norandommap=0; done
done
