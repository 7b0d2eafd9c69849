#!/bin/bash
# Three engines that poll while processors are idle, and three that never do, on one machine, in turns: fio on their devices, then a
# database. Root, four processors or more (on fewer no engine polls). Arguments: rounds, seconds of each run, cases of fio, cases of sysbench.
set -euo pipefail
rounds=${1:-3} seconds=${2:-5} fio=${3:-rw4k-qd1,rw4k-qd32} sysbench=${4:-oltp-rw-t10,oltp-wo-t10}
mainstay=$(realpath "${BUILT:-target/release}/mainstay")
mib=1536
labs=(bench-polls bench-never)
if [ "$(nproc)" -lt 4 ]; then
    echo "no engine polls on fewer than four processors, and this machine has $(nproc)" >&2
    exit 1
fi
work=$(mktemp -d /var/tmp/mainstay-polling.XXXXXX)

end() {
    umount "$work"/bench-* 2>/dev/null || true
    for lab in "${labs[@]}"; do "$mainstay" lab down --name "$lab" >/dev/null || true; done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

devices=() places=()
for lab in "${labs[@]}"; do
    export MAINSTAY_LAB=$lab
    [ "$lab" = bench-polls ] || export MAINSTAY_NO_POLL=1
    "$mainstay" lab up --directories >/dev/null
    "$mainstay" resource create db --lab "$lab" --size ${mib}MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
    device=''
    for _ in $(seq 50); do
        device=$("$mainstay" resource status db --lab "$lab" | sed -n 's/^volume 0 is //p') || true
        [ -n "$device" ] && break
        sleep 0.2
    done
    devices+=("${device:?no device of the resource}")
    mkdir "$work/$lab"
    places+=("$work/$lab")
done
# What the engines say of themselves.
for lab in "${labs[@]}"; do
    echo "$lab: $("$mainstay" lab logs n1 --program engine --lines 1000 --name "$lab" | grep -o 'polls=[a-z]*' | head -n 1)"
done
"$mainstay" bench fio "${devices[@]}" --overwrite --size ${mib}MiB --only "$fio" --rounds "$rounds" --seconds "$seconds"
for which in 0 1; do
    mkfs.xfs -q -K -f "${devices[$which]}"
    mount "${devices[$which]}" "${places[$which]}"
done
"$mainstay" bench sysbench "${places[@]}" --only "$sysbench" --rounds "$rounds" --seconds "$seconds"
for lab in "${labs[@]}"; do
    echo "$lab: polled for $("$mainstay" metrics --lab "$lab" --node n1 | sed -n 's/^mainstay_engine_polled_seconds_total //p') s"
done
