# For scripts that compare two labs, and are not run themselves: the caller sets `mainstay`, `mib`, `labs` (two names) and `work` (a
# directory that is removed).

end() {
    umount "$work"/bench-* 2>/dev/null || true
    for lab in "${labs[@]}"; do "$mainstay" lab down --name "$lab" >/dev/null || true; done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

devices=() places=()

# A resource with three replicas in lab $1; its device is added to `devices`.
make_device() {
    "$mainstay" resource create db --lab "$1" --size ${mib}MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
    local device=''
    for _ in $(seq 50); do
        device=$("$mainstay" resource status db --lab "$1" | sed -n 's|^volume 0 is \(/dev/[^ ;]*\).*|\1|p') || true
        [ -n "$device" ] && break
        sleep 0.2
    done
    devices+=("${device:?no device of the resource}")
    mkdir "$work/$1"
    places+=("$work/$1")
}

# Cases $1 of fio on both devices, then cases $2 of sysbench on file systems on them, in turns. $3: rounds; $4: seconds of each run.
compare() {
    "$mainstay" bench fio "${devices[@]}" --overwrite --size ${mib}MiB --only "$1" --rounds "$3" --seconds "$4"
    for which in 0 1; do
        mkfs.xfs -q -K -f "${devices[$which]}"
        mount "${devices[$which]}" "${places[$which]}"
    done
    "$mainstay" bench sysbench "${places[@]}" --only "$2" --rounds "$3" --seconds "$4"
}
