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

. "$(dirname "$0")/labs.sh"

for lab in "${labs[@]}"; do
    export MAINSTAY_LAB=$lab
    [ "$lab" = bench-polls ] || export MAINSTAY_NO_POLL=1
    "$mainstay" lab up --directories >/dev/null
    make_device "$lab"
done
# What the engines say of themselves.
for lab in "${labs[@]}"; do
    echo "$lab: $("$mainstay" lab logs n1 --program engine --lines 1000 --name "$lab" | grep -o 'polls=[a-z]*' | head -n 1)"
done
compare "$fio" "$sysbench" "$rounds" "$seconds"
for lab in "${labs[@]}"; do
    echo "$lab: polled for $("$mainstay" metrics --lab "$lab" --node n1 | sed -n 's/^mainstay_engine_polled_seconds_total //p') s"
done
