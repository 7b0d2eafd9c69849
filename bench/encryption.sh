#!/bin/bash
# Three engines that encrypt what they say to each other, and three that do not, on one machine, in turns: fio on their devices,
# then a database. Root. Arguments: rounds, seconds of each run, cases of fio, cases of sysbench.
set -euo pipefail
rounds=${1:-5} seconds=${2:-5} fio=${3:-rw4k-qd1,rw4k-qd32} sysbench=${4:-oltp-rw-t10}
mainstay=$(realpath "${BUILT:-target/release}/mainstay")
mib=1536
labs=(bench-clear bench-sealed)
work=$(mktemp -d /var/tmp/mainstay-encryption.XXXXXX)

end() {
    umount "$work"/bench-* 2>/dev/null || true
    for lab in "${labs[@]}"; do "$mainstay" lab down --name "$lab" >/dev/null || true; done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

devices=() places=()
for lab in "${labs[@]}"; do
    "$mainstay" lab up --directories --name "$lab" >/dev/null
    if [ "$lab" = bench-clear ]; then
        "$mainstay" cluster set data-encryption=off --lab "$lab" >/dev/null
        # Connections are made anew: what is open stays encrypted.
        for pair in "n1 n2" "n1 n3" "n2 n3"; do "$mainstay" lab cut $pair --name "$lab" >/dev/null; done
        sleep 1.5
        "$mainstay" lab heal --name "$lab" >/dev/null
    fi
    "$mainstay" resource create db --lab "$lab" --size ${mib}MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
    device=''
    for _ in $(seq 100); do
        device=$("$mainstay" resource status db --lab "$lab" | sed -n 's/^volume 0 is //p') || true
        [ -n "$device" ] && break
        sleep 0.2
    done
    devices+=("${device:?no device of the resource}")
    mkdir "$work/$lab"
    places+=("$work/$lab")
done
for which in 0 1; do
    echo "${labs[$which]}: $("$mainstay" status --lab "${labs[$which]}" | grep -c 'not encrypted') notice that data is not encrypted"
done
"$mainstay" bench fio "${devices[@]}" --overwrite --size ${mib}MiB --only "$fio" --rounds "$rounds" --seconds "$seconds"
for which in 0 1; do
    mkfs.xfs -q -K -f "${devices[$which]}"
    mount "${devices[$which]}" "${places[$which]}"
done
"$mainstay" bench sysbench "${places[@]}" --only "$sysbench" --rounds "$rounds" --seconds "$seconds"
