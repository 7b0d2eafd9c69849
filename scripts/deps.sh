#!/usr/bin/env bash
# Installs what building, testing and the demo need beyond the Rust toolchain and git. Debian 12 or newer,
# as root. Changes nothing, and needs no network, when everything is there already. `deps.sh bench` also installs
# the peers that `make bench` can measure, `deps.sh bench-vm` DRBD's programs, `deps.sh pacemaker` Pacemaker and
# corosync, `deps.sh ui` Node and Chromium for the console; their services are not started.
set -euo pipefail

packages=()
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}
PATH="$PATH:/usr/sbin:/sbin"
need cc gcc
need make make
need mariadbd mariadb-server
need mariadb mariadb-client
need sysbench sysbench
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || packages+=(postgresql)
[ -e /usr/lib/ocf/lib/heartbeat/ocf-shellfuncs ] || packages+=(resource-agents)
need mkfs.xfs xfsprogs
need ip iproute2
need nft nftables
need fio fio
need losetup util-linux
# NBD clients that others wrote.
need nbdinfo libnbd-bin
[ -n "$(find /usr/lib/python3 -path '*/nbd.py' 2>/dev/null)" ] || packages+=(python3-libnbd)
need qemu-io qemu-utils
need nbdkit nbdkit
need nbd-client nbd-client
# For the emulated machines of `make vm`: their kernels are fetched by scripts/vm.sh.
need qemu-system-x86_64 qemu-system-x86
need cpio cpio
need xz xz-utils
need depmod kmod
# For machines of namespaces: tests/systemd/machine.sh.
need systemctl systemd
[ -x /sbin/init ] || packages+=(systemd-sysv)
need dbus-daemon dbus
need strip binutils
need busybox busybox-static
need valgrind valgrind
if [ "${1:-}" = bench ]; then
    need qemu-storage-daemon qemu-system-common
    need nbdfuse libnbd-bin
    need ceph-mon ceph-mon
    need ceph-mgr ceph-mgr
    need ceph-osd ceph-osd
    need rbd ceph-common
    need glusterd glusterfs-server
    need glusterfs glusterfs-client
    need rsync rsync
    need lsof lsof
    need haproxy haproxy
    for library in /usr/lib/*/qemu/block-rbd.so; do
        [ -e "$library" ] || packages+=(qemu-block-extra)
    done
    [ -e /usr/lib/galera/libgalera_smm.so ] || packages+=(galera-4)
fi
if [ "${1:-}" = ui ]; then
    need node nodejs
    need npm npm
    need chromium chromium
fi
[ "${1:-}" != bench-vm ] || need drbdadm drbd-utils
if [ "${1:-}" = pacemaker ]; then
    need ocf-tester resource-agents
    need xmllint libxml2-utils
    need corosync corosync
    need pacemakerd pacemaker
    need cibadmin pacemaker-cli-utils
fi
if [ ! -e /dev/fuse ] || [ ! -e /dev/loop-control ] || ! grep -qw xfs /proc/filesystems; then
    need modprobe kmod
fi

if [ "${#packages[@]}" -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "deps: these packages are missing and only root can install them: ${packages[*]}" >&2
        exit 1
    fi
    echo "deps: installing ${packages[*]}"
    # The packages must not start a database server of their own: Mainstay's services run it. A policy that
    # says so stands only while apt runs, and never replaces one that is there.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends "${packages[@]}"
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "deps: cargo is not on the PATH; install Rust from https://rustup.rs, then run this again" >&2
    exit 1
fi

# The lab needs these of the kernel. Built-in ones make modprobe fail or succeed, so ask the device nodes
# and the list of file systems, not its exit status.
if [ "$(id -u)" -eq 0 ]; then
    for module in fuse loop xfs veth bridge; do
        modprobe -q "$module" 2>/dev/null || true
    done
fi
missing=()
[ -e /dev/fuse ] || missing+=("/dev/fuse")
[ -e /dev/loop-control ] || missing+=("/dev/loop-control")
grep -qw xfs /proc/filesystems || missing+=("the xfs file system")
if [ "${#missing[@]}" -gt 0 ]; then
    echo "deps: this kernel lacks ${missing[*]}; unit tests run without, the lab does not" >&2
fi
