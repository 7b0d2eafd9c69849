#!/usr/bin/env bash
# The part of package.sh that runs in the machine, as root, with two versions of the package in /root.
. /root/inside.sh
units="mainstay-engine mainstay-agent"

show_state() {
    systemctl --no-pager --full status $units
}
pid() { systemctl show --property MainPID --value "$1"; }

step "install: both units are enabled and run"
dpkg --install /root/first.deb
for unit in $units; do
    systemctl is-enabled --quiet "$unit" || fail "$unit is not enabled"
    systemctl is-active --quiet "$unit" || fail "$unit does not run"
done
[ "$(systemctl show --property NotifyAccess --value mainstay-engine)" = main ] || fail "the engine says nothing to systemd"
systemd-analyze verify mainstay-engine.service mainstay-agent.service || fail "the units are not right"
mainstay config check
man --pager=cat mainstay-agent | grep -q -- --journal-dir || fail "there is no manual page"
bash -c '. /usr/share/bash-completion/completions/mainstay'

step "least rights: the engine has no more than it needs"
state=/proc/$(pid mainstay-engine)/status
grep -q '^Seccomp:[[:space:]]*2' "$state" || fail "no system call is refused to the engine"
# Bit 16 is SYS_MODULE, 22 SYS_BOOT, 25 SYS_TIME, 21 SYS_ADMIN.
bounds=$((16#$(awk '/^CapBnd:/ { print $2 }' "$state")))
for bit in 16 22 25; do
    [ $((bounds >> bit & 1)) = 0 ] || fail "the engine may have capability $bit"
done
[ $((bounds >> 21 & 1)) = 1 ] || fail "the engine cannot mount"

step "doctor: its rows fit a terminal"
mainstay doctor --json >/root/doctor.json || [ $? -ne 2 ] || fail "doctor"
(mainstay doctor || true) | tee /root/doctor.txt
[ "$(wc -L </root/doctor.txt)" -le 80 ] || fail "doctor is wider than 80 columns"

step "use: a cluster of this machine with a resource and a service"
address_of_this_machine
mainstay cluster init --name p --as n1 --address 192.0.2.11 | tee /root/init.txt
grep -q "mainstay cluster join --peer 192.0.2.11:7400" /root/init.txt || fail "init does not name the next line"
mainstay resource create db --size 64MiB --journal 32MiB --replicas n1
cat >/root/db.toml <<END
name = "db"
resource = "db"
[mount]
path = "/srv/db"
fstype = "ext4"
mkfs = true
[[process]]
name = "app"
command = ["/bin/sh", "-c", "date >>/srv/db/starts; cat /proc/self/oom_score_adj >/srv/db/oom; exec sleep 1000000"]
END
mainstay service apply /root/db.toml
within 20 test -s /srv/db/oom
grep -q ' /srv/db ' /proc/mounts || fail "the host does not see the mount"
[ "$(cat /srv/db/oom)" = 0 ] || fail "the kernel spares the process of a service: $(cat /srv/db/oom)"
starts() { wc -l </srv/db/starts; }

step "reload: the log changes, the rest is named"
sed -i -e 's/^#log = .*/log = "debug"/' -e 's/^#metrics_listen = .*/metrics_listen = "127.0.0.1:7402"/' /etc/mainstay/mainstay.toml
mainstay config check
systemctl reload mainstay-agent
within 10 sh -c 'journalctl -u mainstay-agent | grep -q "agent.metrics_listen"'
within 10 sh -c 'mainstay service status db >/dev/null; journalctl -u mainstay-agent | grep -q "DEBUG.*answered a request"'
echo 'lgo = 1' >>/etc/mainstay/mainstay.toml
! mainstay config check || fail "a mistake is taken"
systemctl reload mainstay-agent
within 10 sh -c 'journalctl -u mainstay-agent | grep -q "the configuration is refused"'
sed -i '$d' /etc/mainstay/mainstay.toml

step "upgrade: engine, agent and service run on, and the configuration stays"
engine=$(pid mainstay-engine) agent=$(pid mainstay-agent)
dpkg --install --force-confdef --force-confold /root/second.deb
[ "$(dpkg-query -W -f '${Version}' mainstay)" = 0.0.2 ] || fail "it was not upgraded"
[ "$(pid mainstay-engine) $(pid mainstay-agent)" = "$engine $agent" ] || fail "the upgrade restarted something"
[ "$(starts)" = 1 ] || fail "the upgrade restarted the service"
grep -q '^log = "debug"' /etc/mainstay/mainstay.toml || fail "the upgrade replaced the configuration"

step "the installed programs run: told, refused without another replica, and done when that is wanted"
mainstay status | tee /root/status.txt || true
grep -q "than the one that the engine runs" /root/status.txt || fail "the status does not say that the engine is an old one"
! mainstay node upgrade --drain >/root/refused.txt || fail "it interrupts the only replica unasked"
grep -q "cannot leave n1" /root/refused.txt || fail "the refusal does not say what stays: $(cat /root/refused.txt)"
[ "$(pid mainstay-engine) $(pid mainstay-agent)" = "$engine $agent" ] || fail "a refused upgrade restarted something"
mainstay node upgrade --interrupt
[ "$(pid mainstay-engine)" != "$engine" ] && [ "$(pid mainstay-agent)" != "$agent" ] || fail "an old program runs on"
within 20 sh -c "[ \"\$(wc -l </srv/db/starts)\" = 2 ]"
! mainstay status | grep "than the one that the" || fail "the status calls the new programs old"
mainstay node upgrade | grep -q "run what is installed" || fail "a second upgrade does something"

step "the engine is replaced under the service"
engine=$(pid mainstay-engine)
mainstay node upgrade --always
[ "$(pid mainstay-engine)" != "$engine" ] || fail "the engine was not started anew"
[ "$(starts)" = 2 ] || fail "the service was started again"
mainstay service status db | grep -q running || fail "the service does not run"

step "a restart of the agent is no failover"
systemctl restart mainstay-agent
within 20 mainstay service status db
[ "$(starts)" = 2 ] || fail "a restart of the agent restarted the service"

step "an engine that stands still is started again"
kill -STOP "$(pid mainstay-engine)"
within 80 sh -c "[ \"\$(systemctl show --property NRestarts --value mainstay-engine)\" -ge 1 ]"
within 30 systemctl is-active --quiet mainstay-engine

step "remove: the node is silent, and the data stay"
dpkg --remove mainstay
! systemctl is-active --quiet mainstay-engine || fail "the engine runs after the removal"
! grep -q ' /srv/db ' /proc/mounts || fail "the file system is still mounted"
[ -e /etc/mainstay/mainstay.toml ] || fail "a removal takes the configuration away"
[ -n "$(find /var/lib/mainstay -type f -print -quit)" ] || fail "a removal takes data away"

step "purge: only the configuration goes"
files=$(find /var/lib/mainstay -type f | sort)
dpkg --purge mainstay
[ ! -e /etc/mainstay ] || fail "the configuration is still there"
[ "$(find /var/lib/mainstay -type f | sort)" = "$files" ] || fail "a purge takes data away"
! systemctl cat mainstay-engine >/dev/null 2>&1 || fail "the unit is still there"
! find /etc/systemd /var/lib/systemd/deb-systemd-helper-enabled -name '*mainstay*' 2>/dev/null | grep . || fail "links are left"

step "it can be installed again, and finds its data"
dpkg --install /root/second.deb
within 30 mainstay service status db
systemctl stop mainstay-agent mainstay-engine
echo "the package is right"
