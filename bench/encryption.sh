#!/bin/bash
# Three engines that encrypt what they say to each other, and three that do not, on one machine, in turns: fio on their devices,
# then a database. Root. Arguments: rounds, seconds of each run, cases of fio, cases of sysbench.
set -euo pipefail
rounds=${1:-5} seconds=${2:-5} fio=${3:-rw4k-qd1,rw4k-qd32} sysbench=${4:-oltp-rw-t10}
mainstay=$(realpath "${BUILT:-target/release}/mainstay")
mib=1536
labs=(bench-clear bench-sealed)
work=$(mktemp -d /var/tmp/mainstay-encryption.XXXXXX)
. "$(dirname "$0")/labs.sh"

for lab in "${labs[@]}"; do
    "$mainstay" lab up --directories --name "$lab" >/dev/null
    if [ "$lab" = bench-clear ]; then
        "$mainstay" cluster set data-encryption=off --lab "$lab" >/dev/null
        # Connections are made anew: what is open stays encrypted.
        for pair in "n1 n2" "n1 n3" "n2 n3"; do "$mainstay" lab cut $pair --name "$lab" >/dev/null; done
        sleep 1.5
        "$mainstay" lab heal --name "$lab" >/dev/null
    fi
    make_device "$lab"
    "$mainstay" status --lab "$lab" | grep 'not encrypted' || echo "$lab: data between nodes is encrypted"
done
compare "$fio" "$sysbench" "$rounds" "$seconds"
