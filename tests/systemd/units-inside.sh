#!/usr/bin/env bash
# The part of units.sh that runs in the machine, as root. Nothing here may depend on how fast the machine is.
. /root/inside.sh
drop_in=/run/systemd/system/app.service.d/zz-mainstay.conf
cgroup=/sys/fs/cgroup/mainstay.slice/mainstay-db.slice/app.service

show_state() {
    mainstay service status db || true
    mainstay events || true
    systemctl --no-pager --full status app mainstay-engine mainstay-agent
}
property() { systemctl show --property "$1" --value "${2:-app}"; }
running() { mainstay service status db && [ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != 0 ]; }
gone() { [ ! -e "$drop_in" ] && [ "$(property ActiveState)" = inactive ] && ! grep -qs 'populated 1' "$cgroup/cgroup.events"; }
another() { running && [ "$(property MainPID)" != "$1" ]; }
unit() { # LINES-OF-SERVICE [LINES-OF-UNIT]: makes app.service anew
    mkdir -p /usr/local/lib/systemd/system
    printf '[Unit]\n%s\n[Service]\nRestart=always\nRestartSec=0\nExecStart=/root/app\n%s\n[Install]\nWantedBy=multi-user.target\n' \
        "${2:-}" "$1" >/usr/local/lib/systemd/system/app.service
    systemctl daemon-reload
}
service() { # LINES: the file of the service, with these lines in its process
    cat >/root/db.toml <<END
name = "db"
resource = "db"
[mount]
path = "/srv/db"
fstype = "ext4"
mkfs = true
[[process]]
name = "app"
unit = "app.service"
stop_timeout_s = 3
$1
[policy]
restart_limit = 100
END
}

cat >/root/app <<'END'
#!/bin/bash
trap 'echo stopped >>/srv/db/log; exit 0' TERM
[ ! -e /root/stubborn ] || trap '' TERM
echo started >>/srv/db/log
echo "hello of $$"
sleep 1000000 &
while :; do sleep 0.2; done
END
chmod +x /root/app
unit ""
service ""

step "a cluster of this machine"
cluster_of_this_machine u
mainstay resource create db --size 64MiB --journal 32MiB --replicas n1

step "refused with a remedy: unknown, masked, enabled, running already"
refused() { # WORD
    ! mainstay service check /root/db.toml >/root/said 2>&1 || fail "the check takes it, and not: $1"
    grep -q -- "$1" /root/said || { cat /root/said >&2; fail "the check does not say: $1"; }
    ! mainstay service apply /root/db.toml >/root/said 2>&1 || fail "it is applied, and not refused: $1"
}
sed -i 's/app.service/nope.service/' /root/db.toml
refused "no unit nope.service"
service ""
systemctl mask --runtime app >/dev/null 2>&1
refused "systemctl unmask app.service"
systemctl unmask --runtime app >/dev/null 2>&1
systemctl enable app >/dev/null 2>&1
refused "systemctl disable app.service"
systemctl disable app >/dev/null 2>&1
mkdir -p /srv/db
systemctl start app
foreign=$(property MainPID)
refused "systemctl stop app.service"
[ "$(property MainPID)" = "$foreign" ] || fail "somebody else's unit was touched"
[ ! -e "$drop_in" ] || fail "a refused unit has a drop-in"
systemctl stop app
rm -rf /srv/db

step "refused with a remedy: units that would start it without the lease"
units=/usr/local/lib/systemd/system
printf '[Socket]\nListenStream=/run/app.sock\n[Install]\nWantedBy=sockets.target\n' >$units/app.socket
printf '[Timer]\nOnCalendar=yearly\n[Install]\nWantedBy=timers.target\n' >$units/app.timer
printf '[Path]\nPathExists=/nowhere\n' >$units/app.path
printf '[Unit]\nWants=app.service\n[Service]\nExecStart=/bin/sleep 1000000\n[Install]\nWantedBy=multi-user.target\n' >$units/other.service
systemctl daemon-reload
mainstay service check /root/db.toml || fail "a unit is refused for starters that are disabled"
for starter in app.socket app.timer; do
    systemctl enable --now $starter >/dev/null 2>&1
    refused "systemctl disable --now $starter"
    systemctl disable --now $starter >/dev/null 2>&1
done
systemctl start app.path
refused "systemctl mask --now app.path"
systemctl stop app.path
systemctl enable other >/dev/null 2>&1
refused "systemctl disable other.service"
systemctl disable other >/dev/null 2>&1
unit "" "Wants=app.socket"
refused "systemctl edit --full app.service"
unit ""
names=/usr/local/share/dbus-1/system-services
mkdir -p $names
printf '[D-BUS Service]\nName=org.example.App\nExec=/bin/false\nUser=root\nSystemdService=app.service\n' >$names/org.example.App.service
refused "org.example.App"
sed -i '/^SystemdService=/d' $names/org.example.App.service
[ "$(property ActiveState)" = inactive ] || fail "a starter has started it"
rm $names/org.example.App.service $units/app.socket $units/app.timer $units/app.path $units/other.service
systemctl daemon-reload
mainstay service check /root/db.toml || fail "a unit without starters is refused"

step "start: in the slice of the service, with a drop-in that keeps systemd from restarting it"
mkdir /run/systemd/system/app.service.d
echo "# the operator's" >/run/systemd/system/app.service.d/10-own.conf
mainstay service apply /root/db.toml || fail "it is not applied"
within 60 running
[ "$(property Restart) $(property Slice)" = "no mainstay-db.slice" ] || fail "the drop-in does not count"
[ "$(property ControlGroup)" = "${cgroup#/sys/fs/cgroup}" ] || fail "the cgroup is another one: $(property ControlGroup)"
grep -q started /srv/db/log || fail "the unit does not write to the volume"
mainstay service check /root/db.toml || fail "a unit that runs for its own service is refused"

step "kill -9 of the main process is noticed, and it runs again"
pid=$(property MainPID)
kill -9 "$pid"
within 60 another "$pid"
mainstay events | grep -q "ended by signal 9" || fail "no event says how it ended"

step "a stop by somebody else is told apart, and it runs again"
pid=$(property MainPID)
systemctl stop app
within 60 another "$pid"
mainstay events | grep -q "somebody stopped it" || fail "no event says that it was stopped"

step "the log of the service is what the unit writes to the journal, also while it is followed"
logged() { mainstay service logs db >/root/logged 2>&1 && grep -qF "$1" /root/logged; }
within 60 logged "hello of $(property MainPID)"
grep -q "systemd: Started app.service" /root/logged || fail "what systemd notes is not in the log"
mainstay service logs db --lines 2 >/root/logged
[ "$(wc -l </root/logged)" = 2 ] || fail "it shows another number of lines: $(cat /root/logged)"
mainstay service logs db --follow >/root/followed 2>&1 &
follower=$!
within 60 grep -q "hello of $(property MainPID)" /root/followed
pid=$(property MainPID)
kill -9 "$pid"
within 60 another "$pid"
within 60 grep -q "hello of $(property MainPID)" /root/followed
[ "$(grep -c "hello of $(property MainPID)" /root/followed)" = 1 ] || fail "a line is shown twice"
kill "$follower"
no_child() { ! grep -qsx journalctl /proc/[0-9]*/comm; }
within 20 no_child
mv /run/log/journal /run/log/aside
mainstay service logs db >/root/logged 2>&1 || fail "a node without a journal cannot be asked"
mv /run/log/aside /run/log/journal
grep -q "this node keeps no journal" /root/logged || fail "it does not say that there is no journal: $(cat /root/logged)"

step "a restart of the agent is none of the unit"
pid=$(property MainPID)
systemctl restart mainstay-agent
within 60 running
[ "$(property MainPID)" = "$pid" ] || fail "the unit was restarted with the agent"
kill -9 "$pid"
within 60 another "$pid"

step "stop: in order, nothing is left of what Mainstay made, and all of the operator's"
mainstay service stop db || fail "it does not stop"
within 60 gone
[ -e /run/systemd/system/app.service.d/10-own.conf ] || fail "the operator's drop-in is gone"
[ "$(property Restart)" = always ] || fail "the drop-in still counts"
rm -r /run/systemd/system/app.service.d

step "a unit that ignores SIGTERM is silent within its limit"
touch /root/stubborn
mainstay service start db
within 60 running
mainstay service stop db || fail "it does not stop"
within 60 gone
[ ! -e "${drop_in%/*}" ] || fail "a directory that Mainstay made is still there"
rm /root/stubborn

step "the silencer needs no D-Bus: the unit is killed when engine and agent are dead and D-Bus is"
mainstay service start db
within 60 running
for name in engine agent; do
    mkdir "/run/systemd/system/mainstay-$name.service.d"
    printf '[Service]\nRestart=no\n' >"/run/systemd/system/mainstay-$name.service.d/dead.conf"
done
systemctl daemon-reload
systemctl stop dbus.socket dbus.service
[ -d "$cgroup" ] && grep -q 'populated 1' "$cgroup/cgroup.events" || fail "the unit ended with D-Bus"
kill -9 "$(property MainPID mainstay-engine)" "$(property MainPID mainstay-agent)"
silent() { ! grep -qs 'populated 1' "$cgroup/cgroup.events"; }
within 60 silent
systemctl start dbus.socket dbus.service
rm -r /run/systemd/system/mainstay-*.service.d
systemctl daemon-reload
systemctl reset-failed
systemctl start mainstay-engine mainstay-agent
within 90 running

step "a condition or an assert that does not hold is no start, and is named"
mainstay service stop db
within 60 gone
for line in ConditionPathExists=/nowhere AssertFileNotEmpty=/nothing; do
    unit "" "$line"
    ! timeout 60 mainstay service start db >/root/said 2>&1 || fail "a unit that was not started counts as started"
    why="app.service was not started, because $line does not hold"
    said() { mainstay service status db 2>&1 | tr -s ' \n' ' ' | grep -qF "$why"; }
    within 60 said
    grep -qF "$why" /root/said || fail "the start does not say why: $(cat /root/said)"
    mainstay events | grep -qF "$why" || fail "no event says why"
    ! running || fail "it counts as running"
    mainstay service stop db || true
    within 60 gone
done
echo "units are right"
