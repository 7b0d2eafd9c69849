# Runs inside the machine after the measurement, when `--profile` was given: where the time of a write goes, by samples of the
# whole machine, and how often it enters the kernel, switches between threads, wakes one, and asks a disk for something.
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
EVENTS=raw_syscalls:sys_enter,sched:sched_switch,sched:sched_waking,workqueue:workqueue_execute_start,irq:irq_handler_entry
EVENTS=$EVENTS,block:block_rq_issue,io_uring:io_uring_queue_async_work,net:net_dev_queue

# The words of a load; its terse line goes to /tmp/load.
load() { # DEVICE DEPTH SECONDS
    echo fio --name=load "--filename=$1" --rw=randwrite --bs=4k "--iodepth=$2" --ioengine=libaio --direct=1 "--size=${MIB}m" \
        --time_based "--runtime=$3" --output-format=terse --terse-version=3 --output=/tmp/load
}

field() {
    awk -F';' -v field="$1" '/^3;/ { print $field }' /tmp/load
}

idle_ticks() {
    awk '/^cpu / { print $5 + $6 }' /proc/stat
}

for device in /dev/drbd0 "$(readlink -f /run/n1/dev/db/0)"; do
    for depth in 1 32; do
        idle=$(idle_ticks)
        perf stat -a -x , -e "$EVENTS" -o /tmp/stat -- $(load "$device" "$depth" 1) || fail "no counts"
        step "$device, depth $depth: $(field 49) writes/s, idle for $(($(idle_ticks) - idle)) ticks of 10 ms"
        awk -F, -v writes=$(($(field 47) / 4)) '$1 ~ /^[0-9]+$/ { printf "%8.2f %s for each write\n", $1 / writes, $3 }' /tmp/stat
        perf record -q -a -F 997 -e cpu-clock -o /tmp/perf.data -- $(load "$device" "$depth" 2) 2>/tmp/perf.log || fail "no samples"
        echo "with samples: $(field 49) writes/s"
        for by in comm comm,dso comm,dso,sym; do
            perf report -i /tmp/perf.data --stdio -q --sort "$by" --percent-limit 0.2 2>/tmp/perf.log | grep -v '^$'
        done
    done
done
