#!/usr/bin/env bash
# Sequential writes of 1 MiB to a device that nothing was written to, as a load or a restore writes, with one copy and with three, on
# several builds in turn, and the processor time of all engines for each MiB. Root.
# Arguments: rounds, MiB, and for each build the directory with its programs.
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: bench/first-writes.sh ROUNDS MIB DIRECTORY..." >&2; exit 2; }
rounds=$1 mib=$2
shift 2
lab=first-writes
up=''
end() { if [ -n "$up" ]; then "$up" lab down --name $lab >/dev/null 2>&1 || true; fi; }
trap end EXIT

# Processor time of the engines of this lab so far, in milliseconds.
engines() {
    local sum=0 stat process
    for process in $(pgrep -x mainstay); do
        tr '\0' ' ' <"/proc/$process/cmdline" 2>/dev/null | grep -q ' engine ' || continue
        stat=$(awk '{ print $14 + $15 }' "/proc/$process/stat")
        sum=$((sum + stat * 1000 / $(getconf CLK_TCK)))
    done
    echo "$sum"
}

run() { # DIRECTORY NODES
    local program device='' before after rate
    program=$(realpath "$1/mainstay")
    "$program" lab up --name $lab --directories >/dev/null
    up=$program
    "$program" resource create db --lab $lab --size $((mib + 256))MiB --replicas "$2" --preferred n1 >/dev/null
    for _ in $(seq 80); do
        device=$({ "$program" resource status db --lab $lab || true; } | sed -n 's|^volume 0 is \(/dev/[^ ;]*\).*|\1|p')
        [ -n "$device" ] && break
        sleep 0.25
    done
    sleep 2
    before=$(engines)
    rate=$(fio --name=first --filename="${device:?no device}" --rw=write --bs=1m --iodepth=4 --ioengine=io_uring --direct=1 \
        --size="${mib}M" --output-format=json | python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["write"]["bw_bytes"] >> 20)')
    # What is destaged later is a part of it.
    sleep 4
    after=$(engines)
    awk -v name="$1" -v nodes="$2" -v rate="$rate" -v ms=$((after - before)) -v mib="$mib" \
        'BEGIN { printf "%s, copies on %s: %d MiB/s, %.2f ms of processor time for a MiB\n", name, nodes, rate, ms / mib }'
    "$program" lab down --name $lab >/dev/null
    up=''
}

for _ in $(seq "$rounds"); do
    for nodes in n1 n1,n2,n3; do
        for built in "$@"; do run "$built" "$nodes"; done
    done
done
