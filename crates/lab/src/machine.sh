# shellcheck shell=bash
# The root of a machine that is made of namespaces and whose first process is systemd. The machines of tests/systemd/machine.sh
# and those of `mainstay lab up --systemd` are both made by this. It is sourced, by a process that is alone in new mount, process,
# host name, IPC and cgroup namespaces and in the machine's network namespace; the caller has mounted the root, an overlay.

# Makes an overlay of this machine's root one that was installed and never used. Once in the life of a machine.
fresh_root() { # NAME ROOT
    local root=$2 line
    rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/*.requires "$root/var/log/journal" \
        "$root/usr/sbin/policy-rc.d" "$root"/etc/rc?.d/S*
    for line in systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service \
        systemd-udev-settle.service console-getty.service container-getty@.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$line"
    done
    tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
    rm -f "$root/etc/hostname" "$root/etc/hosts" "$root/etc/fstab"
    echo "$1" >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$1" >"$root/etc/hosts"
    : >"$root/etc/fstab"
}

# Mounts what a machine has besides its root. What lies in its directories /run, /tmp and /dev is lost with its power.
mount_root() { # ROOT
    local root=$1 path
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t fusectl fusectl "$root/sys/fs/fuse/connections" 2>/dev/null || true
    mount -t tmpfs -o mode=755,nosuid tmpfs "$root/run"
    mount -t tmpfs -o mode=1777,nosuid tmpfs "$root/tmp"
    make_devices "$root/dev"
    # Settings of the kernel are everybody's; those of the network are the machine's.
    mount --bind "$root/proc/sys" "$root/proc/sys"
    for path in net kernel/hostname kernel/domainname; do
        mount --bind "$root/proc/sys/$path" "$root/proc/sys/$path"
    done
    mount -o remount,bind,ro "$root/proc/sys"
    mount --bind "$root/dev/null" "$root/proc/sysrq-trigger" 2>/dev/null || true
}

# Becomes the first process of the machine.
start_systemd() { # NAME ROOT
    local root=$2
    ip link set lo up
    hostname "$1"
    cd "$root"
    mkdir -p "$root/mnt"
    pivot_root . mnt
    cd /
    umount -l /mnt
    # As systemd does it where it is the first process of a whole machine: mounts of a unit with a mount namespace of its own
    # are not seen outside, and those of the machine are seen in it.
    mount --make-rshared /
    exec setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-syslog \
        env -i container=lxc PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 /sbin/init </dev/null
}

make_devices() { # DIRECTORY
    local dev=$1 row number
    mount -t tmpfs -o mode=755,nosuid tmpfs "$dev"
    for row in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "console 1 3" "fuse 10 229" \
        "loop-control 10 237"; do
        # shellcheck disable=SC2086
        set -- $row
        mknod -m 666 "$dev/$1" c "$2" "$3"
    done
    for number in $(seq 0 127); do
        mknod -m 660 "$dev/loop$number" b 7 "$number"
    done
    mkdir "$dev/net" "$dev/pts" "$dev/shm" "$dev/mqueue"
    mknod -m 666 "$dev/net/tun" c 10 200
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$dev/pts"
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$dev/shm"
    ln -s pts/ptmx "$dev/ptmx"
    ln -s /proc/self/fd "$dev/fd"
    ln -s /proc/self/fd/0 "$dev/stdin"
    ln -s /proc/self/fd/1 "$dev/stdout"
    ln -s /proc/self/fd/2 "$dev/stderr"
}
