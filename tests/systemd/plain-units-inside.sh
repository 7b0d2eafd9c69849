#!/usr/bin/env bash
# The part of units.sh that runs in the machine, as root, with the package in /root.
. /root/inside.sh
target=mainstay-resource@db.target

show_state() {
    mainstay service status db || true
    systemctl --no-pager --full status "$target" mainstay-resource@db app
}
active() { systemctl is-active --quiet "$1"; }
inactive() { ! systemctl is-active --quiet "$1"; }
mounted() { grep -q ' /srv/db ' /proc/mounts; }

step "a cluster of this machine, a resource, and a unit of its own"
dpkg --install /root/mainstay.deb
[ -x /usr/lib/ocf/resource.d/mainstay/resource ] || fail "the package has no OCF agent"
systemd-analyze verify "$target" mainstay-resource@db.service || fail "the units are not right"
ip link add dm0 type bridge
ip address add 192.0.2.11/24 dev dm0
ip link set dm0 up
mainstay cluster init --name u --as n1 --address 192.0.2.11
mainstay resource create db --size 64MiB --journal 32MiB --replicas n1
cat >/etc/systemd/system/app.service <<END
[Unit]
PartOf=$target
After=$target
[Service]
ExecStart=/bin/sh -c 'echo start >>/srv/db/log; exec sleep 1000000 </srv/db/log'
# At the end of a lease the mount goes before this runs, and a file would be written below it.
ExecStop=/bin/sh -c 'sleep 1; mountpoint -q /srv/db && echo stop >>/srv/db/log && sync /srv/db/log'
Restart=on-failure
[Install]
WantedBy=$target
END
systemctl daemon-reload
systemctl enable app.service
cat >/root/db.toml <<END
name = "db"
resource = "db"
[mount]
path = "/srv/db"
fstype = "ext4"
mkfs = true
[[process]]
name = "units"
command = ["/usr/lib/mainstay/mainstay-units", "run", "db"]
stop_timeout_s = 60
ready = { command = ["/bin/systemctl", "is-active", "--quiet", "$target"] }
END

step "with the service the target and its unit start"
inactive app || fail "the unit runs without the service"
mainstay service apply /root/db.toml
within 30 active "$target"
within 30 active app.service
within 30 grep -q start /srv/db/log

step "a stop of the service waits until the unit has stopped, on a device that is there"
! mainstay service stop db || fail "a stop without --force disregards what holds the file system"
active app.service || fail "a refused stop stops the unit"
mainstay service stop db --force
inactive app.service || fail "the unit outlived the service"
inactive "$target" || fail "the target outlived the service"
within 10 inactive mainstay-resource@db.service
! mounted || fail "the file system is still mounted"
mainstay service start db
within 30 active app.service
[ "$(grep -c stop /srv/db/log)" = 1 ] || fail "what the unit wrote at its stop is lost"

step "a killed helper takes the units with it, and Mainstay starts them again"
before=$(systemctl show --property InvocationID --value app.service)
again() {
    local now
    now=$(systemctl show --property InvocationID --value app.service)
    active app.service && [ -n "$now" ] && [ "$now" != "$before" ]
}
kill -KILL "$(cut -d' ' -f1 /run/mainstay-units/db)"
within 60 again
active "$target" || fail "the target is not active"

step "a target that is stopped by hand is started again"
before=$(systemctl show --property InvocationID --value app.service)
systemctl stop "$target"
within 60 again

step "when the lease ends, the units are stopped"
agent=$(systemctl show --property MainPID --value mainstay-agent)
kill -STOP "$agent"
within 60 inactive "$target"
within 120 inactive app.service
kill -CONT "$agent"
within 120 active "$target"
within 60 active app.service
mainstay service stop db --force
inactive app.service || fail "the unit outlived the service"
echo "plain units follow the resource"
