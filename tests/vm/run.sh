#!/usr/bin/env bash
# Boots the machines of `make vm`, one after the other: run.sh [NAME]. Wants mainstay built, and a list of its tests in TESTS: make vm.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PATH:/usr/sbin:/sbin"
target=${CARGO_TARGET_DIR:-target}
profile=${VM_PROFILE:-debug}

# A test of the engine, as a program. TESTS is the list of `make tests-built`.
engine_test() { # NAME
    scripts/built-test.sh engine "$1"
}

ublk() {
    local cluster kernel
    cluster=$(engine_test cluster)
    [ -n "$cluster" ] || { echo "vm: cannot build the test of several engines" >&2; exit 1; }
    for kernel in ${VM_KERNELS:-6.12 newest}; do
        echo "== ublk, kernel $kernel"
        scripts/vm.sh run --kernel "$kernel" --script tests/vm/ublk.sh --seconds 600 --memory 1536 \
            --module virtio_pci --module virtio_blk --module xfs --module ublk_drv --module fuse --module loop \
            --binary "$target/$profile/mainstay" --binary "$cluster=cluster" \
            --binary fio --binary mkfs.xfs --binary blkdiscard --file tests/vm/node.sh=/node.sh
    done
}

# Two nodes in one machine, of which one holds the data and the other one has the device.
client() {
    local kernel
    for kernel in ${VM_KERNELS:-6.12}; do
        echo "== client, kernel $kernel"
        scripts/vm.sh run --kernel "$kernel" --script tests/vm/client.sh --seconds 600 --memory 1536 \
            --module virtio_pci --module virtio_blk --module xfs --module ublk_drv \
            --binary "$target/$profile/mainstay" --binary fio --binary mkfs.xfs --binary blkdiscard --binary sha256sum --file tests/vm/node.sh=/node.sh
    done
}

nbd() {
    local test kernel
    test=$(engine_test nbd)
    [ -n "$test" ] || { echo "vm: cannot build the test of NBD" >&2; exit 1; }
    for kernel in ${VM_KERNELS:-6.12}; do
        echo "== nbd, kernel $kernel"
        scripts/vm.sh run --kernel "$kernel" --script tests/vm/nbd.sh --seconds 900 --memory 1536 \
            --module virtio_pci --module virtio_blk --module xfs --module nbd --module fuse --module loop \
            --binary "$target/$profile/mainstay" --binary "$test=nbd" --binary nbd-client --binary fio --binary mkfs.xfs --binary blkdiscard --file tests/vm/node.sh=/node.sh
    done
}

# The node is on this machine, in a network namespace of its own; its volume is the emulated machine's. Then two nodes, of which the one
# without the data has the disk; what they look at is not the kernel's: one is enough.
vhost() {
    local kernel
    for kernel in ${VM_KERNELS:-6.12}; do
        vhost_of primary "$kernel"
    done
    for kernel in ${VM_KERNELS:-6.12}; do
        vhost_of client "$kernel"
    done
}

vhost_of() { # primary | client, KERNEL
    echo "== vhost, the disk of the $1, kernel $2"
    scripts/vm.sh kernel "$2" >/dev/null
    unshare --net tests/vm/vhost-host.sh "$2" "$(realpath "$target/$profile/mainstay")" "$1"
}

# Journals on an NVDIMM, which is a file of this machine.
dax() {
    local kernel nvdimm bytes=$((512 << 20))
    nvdimm=$(mktemp "${TMPDIR:-/tmp}/mainstay-nvdimm.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -f $nvdimm" EXIT
    # What it looks at is not the kernel's: one is enough.
    for kernel in ${VM_KERNELS:-6.12}; do
        echo "== dax, kernel $kernel"
        truncate -s 0 "$nvdimm"
        truncate -s "$bytes" "$nvdimm"
        scripts/vm.sh run --kernel "$kernel" --script tests/vm/dax.sh --seconds 600 --memory 1536 \
            --module virtio_pci --module virtio_blk --module xfs --module nfit --module nd_pmem \
            --module ublk_drv --module fuse --module loop \
            --binary "$target/$profile/mainstay" --binary fio --binary mkfs.xfs --file tests/vm/node.sh=/node.sh \
            --qemu -machine --qemu pc,nvdimm=on --qemu -m --qemu slots=2,maxmem=4G \
            --qemu -object --qemu "memory-backend-file,id=nvdimm,share=on,mem-path=$nvdimm,size=$bytes" \
            --qemu -device --qemu nvdimm,memdev=nvdimm
    done
}

# Machines that are reset at the end by their watchdog: the kernel's own, and a device of the machine (Intel 6300ESB). Not one of
# those that run by default.
watchdog() {
    local kernel
    for kernel in ${VM_KERNELS:-6.12}; do
        watchdog_of softdog "$kernel"
        watchdog_of i6300esb "$kernel" --qemu -device --qemu i6300esb
    done
}

watchdog_of() { # MODULE KERNEL [ARGUMENT OF vm.sh]...
    local module=$1 kernel=$2
    shift 2
    echo "== watchdog $module, kernel $kernel"
    scripts/vm.sh run --kernel "$kernel" --script tests/vm/watchdog.sh --seconds 600 --memory 1536 \
        --module virtio_pci --module virtio_blk --module xfs --module fuse --module loop --module "$module" \
        --binary "$target/$profile/mainstay" --binary mkfs.xfs --file tests/vm/node.sh=/node.sh "$@"
}

tests=${*:-ublk client nbd vhost dax}
for test in $tests; do
    case "$test" in
        ublk) ublk ;;
        client) client ;;
        nbd) nbd ;;
        vhost) vhost ;;
        dax) dax ;;
        watchdog) watchdog ;;
        *)
            echo "vm: there is no test $test; there are: ublk, client, nbd, vhost, dax, watchdog" >&2
            exit 2
            ;;
    esac
done
