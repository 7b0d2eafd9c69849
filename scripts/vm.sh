#!/usr/bin/env bash
# A virtual machine for one test, emulated in software: a Debian kernel, an initramfs made of what the test names, a scratch
# disk, and a script that runs as the only program. Its exit status becomes this one's.
#
#   scripts/vm.sh kernel NAME                       fetches a kernel, prints its version and directory
#   scripts/vm.sh run --kernel NAME --script FILE   boots it
#       [--module NAME]...       loaded before the script starts, with what they need, in this order
#       [--binary PATH[=NAME]]...  programs, with their libraries; found on the PATH if without a slash
#       [--file PATH=GUEST_PATH]...
#       [--disk MIB]...          scratch disks /dev/vda, /dev/vdb, ... that are empty; one of 1024 MiB if none is named
#       [--memory MIB] [--seconds LIMIT] [--qemu ARGUMENT]...
#
# Kernels come from Debian's archive, by the suite that has them, through lists of apt's own in the cache: the machine's
# sources are not touched, and nothing is installed. The cache is VM_DIR, target/vm if that is not set.
set -euo pipefail

cd "$(dirname "$0")/.."
cache=${VM_DIR:-${CARGO_TARGET_DIR:-target}/vm}
mkdir -p "$cache"
cache=$(realpath "$cache")
PATH="$PATH:/usr/sbin:/sbin"

die() {
    echo "vm: $*" >&2
    exit 1
}

# shellcheck source=scripts/suite.sh
. scripts/suite.sh

# Which suite has a kernel. Each suite keeps its series, and the archive keeps the newest of it only.
suite_of() {
    case "$1" in
        6.12) echo trixie ;;
        newest) echo trixie-backports ;;
        *) die "unknown kernel $1; known are 6.12 and newest" ;;
    esac
}

depends_of() { # PACKAGE PATTERN: what it depends on, without versions and alternatives
    apt-cache depends --no-recommends --no-suggests "$1" | sed -n "s/^ *|*Depends: \($2\)$/\1/p" | sort -u
}

# Leaves $cache/kernel-NAME/{version,vmlinuz,lib/modules/VERSION}; the last thing made is `version`.
fetch_kernel() { # NAME
    local name=$1 dir="$cache/kernel-$1" image packages
    [ -e "$dir/version" ] && return
    # Two tests at once need the same kernel once.
    exec 9>"$cache/kernel-$name.lock"
    flock 9
    [ -e "$dir/version" ] && return
    echo "vm: fetching kernel $name" >&2
    (
        prepare_apt "$(suite_of "$name")"
        image=$(depends_of linux-image-amd64 'linux-image-[0-9].*' | tail -n 1)
        [ -n "$image" ] || die "$(suite_of "$name") has no kernel"
        packages="$image $(depends_of "$image" 'linux-\(base\|binary\|modules\)-[0-9].*' | tr '\n' ' ')"
        rm -rf "$dir" "$dir.new"
        mkdir -p "$dir.new/debs" "$dir.new/root"
        cd "$dir.new/debs"
        # shellcheck disable=SC2086
        unpack ../root $packages
        cd ..
        rm -r debs
        # Newer packages have everything below /usr.
        mkdir -p lib
        if [ -d root/usr/lib/modules ]; then mv root/usr/lib/modules lib/; else mv root/lib/modules lib/; fi
        version=$(basename lib/modules/*)
        mv "$(find root/boot lib/modules root/usr -name 'vmlinuz*' -type f 2>/dev/null | head -n 1)" vmlinuz
        rm -r root
        depmod -b . "$version"
        cd ..
        mv "$dir.new" "$dir"
        echo "$version" >"$dir/version"
    )
}

add_file() { # SOURCE GUEST_PATH
    [ -e "$1" ] || die "$1 does not exist"
    mkdir -p "$root$(dirname "$2")"
    cp -L "$1" "$root$2"
}

# A program and its libraries, each where the loader looks for it; debug information stays here.
add_binary() { # PATH[=NAME]
    local path=${1%%=*} name
    [[ "$path" == */* ]] || path=$(command -v "$path") || die "there is no program ${1%%=*}"
    name=$(basename "$path")
    [[ "$1" == *=* ]] && name=${1#*=}
    add_file "$path" "/usr/bin/$name"
    strip --strip-debug "$root/usr/bin/$name" 2>/dev/null || true
    add_libraries "$path"
}

add_libraries() { # PATH; nothing for a static one
    local library
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | sort -u); do
        [ -e "$root$library" ] || add_file "$library" "$library"
    done
}

# A module and what it needs, as one line of the list that /init loads.
add_module() { # KERNEL_DIR VERSION NAME
    local line path target
    modprobe -C /dev/null -d "$1" -S "$2" --show-depends "$3" >"$work/depends" 2>"$work/error" ||
        die "kernel $2 has no module $3: $(cat "$work/error")"
    while read -r line path _; do
        # The others are built in.
        [ "$line" = insmod ] || continue
        target="/modules/$(basename "${path%.xz}")"
        [ -e "$root$target" ] && continue
        case "$path" in
            *.xz) xz -dc "$path" >"$root$target" ;;
            *) cp "$path" "$root$target" ;;
        esac
        echo "$target" >>"$root/modules/list"
    done <"$work/depends"
}

write_init() {
    cat >"$root/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /usr/sbin /sbin
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
hostname vm
ip link set lo up
loaded=0
while read -r module; do
    insmod "$module" || loaded=1
done </modules/list
if [ "$loaded" = 0 ]; then
    cd /
    sh /script
    result=$?
else
    echo "a module cannot be loaded"
    result=1
fi
echo "vm-result: $result"
sync
poweroff -f
EOF
    chmod 755 "$root/init"
}

# Also when this is interrupted.
clean_up() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    rm -rf "$work"
}

run() {
    local kernel="" script="" memory=1024 seconds=240
    local modules=() binaries=() files=() disks=() qemu=()
    while [ $# -gt 0 ]; do
        [ $# -ge 2 ] || die "$1 needs a value"
        case "$1" in
            --kernel) kernel=$2 ;;
            --script) script=$2 ;;
            --module) modules+=("$2") ;;
            --binary) binaries+=("$2") ;;
            --file) files+=("$2") ;;
            --memory) memory=$2 ;;
            --disk) disks+=("$2") ;;
            --seconds) seconds=$2 ;;
            --qemu) qemu+=("$2") ;;
            *) die "unknown option $1" ;;
        esac
        shift 2
    done
    [ -n "$kernel" ] && [ -n "$script" ] || die "--kernel and --script are needed"
    fetch_kernel "$kernel"
    local dir="$cache/kernel-$kernel" version
    version=$(cat "$dir/version")
    work=$(mktemp -d "$cache/run.XXXXXX")
    machine=""
    trap clean_up EXIT
    root="$work/root"
    mkdir -p "$root"/{bin,modules,usr/bin}
    : >"$root/modules/list"
    add_file "$(command -v busybox)" /bin/busybox
    add_libraries "$(command -v busybox)"
    local item
    for item in "${modules[@]}"; do add_module "$dir" "$version" "$item"; done
    for item in "${binaries[@]}"; do add_binary "$item"; done
    for item in "${files[@]}"; do add_file "${item%%=*}" "${item#*=}"; done
    add_file "$script" /script
    write_init
    # Not compressed: the emulated processor unpacks slower than QEMU reads.
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"
    rm -rf "$root"
    local drives=() disk
    for disk in "${disks[@]:-1024}"; do
        item="$work/disk-${#drives[@]}"
        truncate -s "${disk}M" "$item"
        drives+=(-drive "file=$item,format=raw,if=virtio,cache=unsafe")
    done
    echo "vm: Linux $version, initramfs of $(($(stat -c %s "$work/initramfs") >> 20)) MiB" >&2
    local status=0
    : >"$work/console"
    # One processor, emulated: the same everywhere, and there need be no KVM.
    timeout --foreground --kill-after 5 "$seconds" \
        qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 1 -m "$memory" -nodefaults -no-user-config \
        -display none -no-reboot -serial stdio \
        -kernel "$dir/vmlinuz" -initrd "$work/initramfs" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on" \
        "${drives[@]}" "${qemu[@]}" \
        </dev/null >"$work/console" 2>&1 &
    machine=$!
    # Shown as it comes.
    tail -f --pid "$machine" -n +1 "$work/console" &
    local shown=$!
    wait "$machine" || status=$?
    machine=""
    wait "$shown" || true
    [ "$status" -ne 124 ] || die "not finished within $seconds s"
    [ "$status" -eq 0 ] || die "QEMU ended with $status"
    local result
    result=$(sed -n 's/^vm-result: \([0-9]*\)\r*$/\1/p' "$work/console" | tail -n 1)
    [ -n "$result" ] || die "the machine ended without a result"
    [ "$result" -eq 0 ] || die "the script failed with $result on Linux $version"
}

case "${1:-}" in
    kernel)
        [ $# -eq 2 ] || die "which kernel?"
        fetch_kernel "$2"
        echo "$(cat "$cache/kernel-$2/version") $cache/kernel-$2"
        ;;
    run)
        shift
        run "$@"
        ;;
    *) die "usage: scripts/vm.sh kernel NAME | run --kernel NAME --script FILE ...; see the top of this file" ;;
esac
