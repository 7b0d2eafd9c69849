#!/usr/bin/env bash
# The part of units.sh that runs Debian's own units of MariaDB and PostgreSQL, with their data on volumes of Mainstay, as
# docs/services.md has it. In a machine of its own, as root. Nothing here may depend on how fast the machine is.
. /root/inside.sh
stop_seconds=30
version=$(ls /etc/postgresql | head -n 1)
postgres_unit=postgresql@$version-main.service

show_state() {
    mainstay service status || true
    mainstay events || true
    systemctl --no-pager --full status mariadb "$postgres_unit" mainstay-engine mainstay-agent
    tail -n 20 "/var/log/postgresql/postgresql-$version-main.log"
}
property() { systemctl show --property "$2" --value "$1"; }
running() { mainstay service status "$1" && [ "$(property "$2" ActiveState)" = active ]; }
another() { running "$1" "$2" && [ "$(property "$2" MainPID)" != "$3" ]; }
gone() {
    [ ! -e "/run/systemd/system/$1.d" ] && [ "$(property "$1" ActiveState)" = inactive ] &&
        ! grep -qs 'populated 1' /sys/fs/cgroup/mainstay.slice/*/"$1"/cgroup.events
}
service() { # NAME [LINES-OF-PROCESS]: the file of a service with a volume at /srv/NAME
    printf 'name = "%s"\nresource = "%s"\n[mount]\npath = "/srv/%s"\nfstype = "ext4"\nmkfs = true\n' "$1" "$1" "$1" >"/root/$1.toml"
    [ -z "${2:-}" ] || printf '[[process]]\n%s\nstop_timeout_s = %s\nstart_timeout_s = 120\n' "$2" "$stop_seconds" >>"/root/$1.toml"
}
refused() { # NAME WORD
    ! mainstay service check "/root/$1.toml" >/root/said 2>&1 || fail "the check takes $1, and not: $2"
    tr -s ' \n' ' ' </root/said | grep -qF -- "$2" || { cat /root/said >&2; fail "the check of $1 does not say: $2"; }
}
maria() { mariadb --batch --skip-column-names -e "$1"; }
postgres() { psql --no-psqlrc --tuples-only --no-align --dbname postgres --command "$1"; }
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }

step "a cluster of this machine, with a volume for each database"
cluster_of_this_machine u
for name in my pg; do
    mainstay resource create "$name" --size 512MiB --journal 64MiB --replicas n1
    service "$name"
    mainstay service apply "/root/$name.toml" || fail "a volume without a process is refused"
    within 60 mainstay service status "$name"
done

step "as the packages leave them, the units are refused with a remedy"
# The machine has lost half of the links of System V that the package makes, and `systemctl enable` needs them all.
update-rc.d mariadb remove >/dev/null 2>&1
update-rc.d mariadb defaults >/dev/null 2>&1
systemctl enable mariadb >/dev/null 2>&1
service my 'name = "mariadb"
unit = "mariadb.service"
probe = { mariadb = { socket = "/run/mysqld/mysqld.sock" } }'
service pg "name = \"postgresql\"
unit = \"$postgres_unit\"
probe = { postgresql = { socket = \"/run/postgresql\" } }"
refused my "systemctl disable mariadb.service"
systemctl disable --now mariadb >/dev/null 2>&1
refused pg "write \`manual\` into /etc/postgresql/$version/main/start.conf"
echo manual >"/etc/postgresql/$version/main/start.conf"
systemctl daemon-reload

step "MariaDB: the data move to the volume, and the unit starts under Mainstay"
cp -a /var/lib/mysql /srv/my/mysql
printf '[mariadbd]\ndatadir = /srv/my/mysql\n' >/etc/mysql/mariadb.conf.d/99-mainstay.cnf
mainstay service check /root/my.toml || fail "a disabled unit is refused"
mainstay service apply /root/my.toml
within 120 running my mariadb.service
[ "$(maria 'SELECT @@datadir')" = /srv/my/mysql/ ] || fail "the data are not on the volume"
[ "$(property mariadb.service Restart)" = no ] || fail "systemd would start it again by itself"
maria 'CREATE DATABASE d; CREATE TABLE d.t (i INT PRIMARY KEY); INSERT INTO d.t VALUES (1)'

step "PostgreSQL: the same, after the role with which its probe logs in"
systemctl start "$postgres_unit"
as_postgres createuser root
systemctl stop "$postgres_unit"
cp -a "/var/lib/postgresql/$version/main" /srv/pg/main
pg_conftool "$version" main set data_directory /srv/pg/main
mainstay service check /root/pg.toml || fail "a unit that does not start by itself is refused"
mainstay service apply /root/pg.toml
within 120 running pg "$postgres_unit"
[ "$(as_postgres psql --no-psqlrc --tuples-only --no-align --command 'SHOW data_directory')" = /srv/pg/main ] || fail "the data are not on the volume"
as_postgres psql --no-psqlrc --quiet --command 'CREATE TABLE t AS SELECT 1 AS i; GRANT SELECT ON t TO root'

killed() { mainstay service history "$1" >/root/history && grep -q "ended by signal 9" /root/history; }
kept() { # NAME
    case "$1" in
        my) [ "$(maria 'SELECT i FROM d.t')" = 1 ] ;;
        pg) [ "$(postgres 'SELECT i FROM t')" = 1 ] ;;
    esac
}
for pair in my:mariadb.service "pg:$postgres_unit"; do
    name=${pair%%:*} unit=${pair#*:}
    step "$unit: kill -9 of the main process is found and mended"
    pid=$(property "$unit" MainPID)
    kill -9 "$pid"
    within 120 another "$name" "$unit" "$pid"
    within 60 killed "$name"
    within 60 kept "$name"

    step "$unit: a stop is orderly and inside its time, and takes the drop-in away"
    began=$SECONDS
    mainstay service stop "$name" || fail "$unit does not stop"
    within 60 gone "$unit"
    [ $((SECONDS - began)) -lt "$stop_seconds" ] || fail "$unit was not stopped in its time"
    ! grep -q " /srv/$name " /proc/mounts || fail "the volume is still mounted"
    mainstay service start "$name"
    within 120 running "$name" "$unit"
    within 60 kept "$name"
done
journalctl -u mariadb -o cat >/root/journal
grep -q "Shutdown complete" /root/journal || fail "MariaDB was not shut down in order"
grep -q "database system is shut down" "/var/log/postgresql/postgresql-$version-main.log" || fail "PostgreSQL was not shut down in order"
mainstay service logs my >/root/logged
grep -q "ready for connections" /root/logged || fail "the log of the service has not what the unit writes"
[ "$(property mariadb.service Restart)" = no ] || fail "the drop-in is not there after a second start"
for name in my pg; do
    mainstay service stop "$name"
done
within 60 gone mariadb.service
within 60 gone "$postgres_unit"
[ "$(property mariadb.service Restart)" = on-abnormal ] || fail "the drop-in still counts"
echo "the units of databases are right"
