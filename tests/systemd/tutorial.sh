#!/usr/bin/env bash
# Follows docs/tutorial.md on three machines that systemd runs: tests/systemd/tutorial.sh BINARY.
# The command blocks of the page are run as they stand there, each on the machines that the page names. Then comes what
# docs/upgrade.md says, under load, and the removal of docs/install.md. Needs root, MariaDB and what machine.sh needs.
#
# The machines have a network of their own and disks that outlive a power cut. TUTORIAL_KEEP=1 leaves them up after a failure.
set -euo pipefail
cd "$(dirname "$0")/../.."
test_name="tutorial"
. tests/systemd/outside.sh
binary=$(realpath "${1:?name the built program}")
machine=$PWD/tests/systemd/machine.sh
work=$(mktemp -d /var/tmp/mainstay-tutorial.XXXXXX)
nodes="n1 n2 n3"
vip=10.0.0.100
commands=0
writer=""

in_node() { # NODE COMMAND...
    "$machine" in "$@"
}
in_client() {
    ip netns exec mainstay-tutorial.client "$@"
}

ended() {
    status=$?
    trap - EXIT
    if [ "$status" -ne 0 ]; then
        echo "tutorial: failed in: $stage" >&2
        for node in $nodes; do
            echo "--- $node" >&2
            in_node "$node" journalctl --no-pager -n 25 -u mainstay-engine -u mainstay-agent >&2 2>/dev/null || true
        done
        in_node n1 mainstay status >&2 2>/dev/null || in_node n2 mainstay status >&2 2>/dev/null || true
        [ -z "${TUTORIAL_KEEP:-}" ] || exit "$status"
    fi
    [ -z "$writer" ] || kill "$writer" 2>/dev/null || true
    for node in $nodes; do
        "$machine" down "$node" || true
    done
    for name in $nodes client switch; do
        ip netns del "mainstay-tutorial.$name" 2>/dev/null || true
    done
    for disk in "$work"/disk-*; do
        umount -l "$disk" 2>/dev/null || true
    done
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap ended EXIT
trap 'exit 130' INT TERM

# The page, as one file for each block of commands.
awk -v out="$work/block-" '/^```/ { if (open) { open = 0; close(file) } else { open = ($0 == "```"); text = !open; if (open) file = out (++n); else open = text; skip = text } next }
    open && !skip { print > file }' docs/tutorial.md
[ "$(find "$work" -name 'block-*' | wc -l)" = 7 ] || fail "docs/tutorial.md has another number of command blocks than this test knows"
grep -q 'apt-get install' "$work/block-1" && grep -q 'cluster init' "$work/block-2" && grep -q 'resource create' "$work/block-3" \
    && grep -q 'service create' "$work/block-4" && grep -q '^mariadb --socket' "$work/block-5" && grep -q 'service move' "$work/block-6" \
    && grep -q 'events --follow' "$work/block-7" || fail "the command blocks of docs/tutorial.md are in another order"

block() { # NUMBER NODE: each command of the block, as a reader pastes it
    local line status
    while read -r line; do
        commands=$((commands + 1))
        echo "$2# $line"
        status=0
        in_node "$2" bash -c "cd /root && $line" </dev/null 2>&1 | tee "$work/said" || status=$?
        # Warnings of doctor and of status.
        [ "$status" = 0 ] || { [ "$status" = 4 ] && [ "$line" = "mainstay doctor" ]; } || fail "$line: exit status $status"
    done <"$work/block-$1"
}

boot() { # NODE VERSION: the machine as it is after its installation, with the package beside it and its disk
    mkdir -p "$work/disk-$1"
    "$machine" up "$1" --net "/run/netns/mainstay-tutorial.$1" --bind "$work/disk-$1=/var/lib/mainstay" \
        --copy "$work/$2.deb=/root/mainstay_$2_amd64.deb"
    in_node "$1" sh -c 'for n in 1 2 3; do echo "10.0.0.$n n$n"; done >>/etc/hosts'
}

step "three machines and a client on one network"
for name in $nodes client switch; do
    ip netns del "mainstay-tutorial.$name" 2>/dev/null || true
    ip netns add "mainstay-tutorial.$name"
    ip -n "mainstay-tutorial.$name" link set lo up
done
ip -n mainstay-tutorial.switch link add br0 type bridge
ip -n mainstay-tutorial.switch link set br0 up
number=1
for name in $nodes client; do
    ip -n mainstay-tutorial.switch link add "$name" type veth peer name eth0 netns "mainstay-tutorial.$name"
    ip -n mainstay-tutorial.switch link set "$name" master br0 up
    ip -n "mainstay-tutorial.$name" address add "10.0.0.$number/24" dev eth0
    ip -n "mainstay-tutorial.$name" link set eth0 up
    number=$((number + 1))
done
VERSION=0.0.1 scripts/deb.sh "$binary" "$work/built" >/dev/null
VERSION=0.0.2 scripts/deb.sh "$binary" "$work/built" >/dev/null
for version in 0.0.1 0.0.2; do
    mv "$work/built/"*"_${version}_"*.deb "$work/$version.deb"
done
for node in $nodes; do
    "$machine" down "$node"
    boot "$node" 0.0.1
    # As Debian's package of the server leaves it.
    in_node "$node" sh -c 'rm -f /etc/rc?.d/???mariadb && update-rc.d mariadb defaults && systemctl enable --now mariadb' >"$work/said" 2>&1 \
        || { cat "$work/said" >&2; fail "MariaDB cannot be started as its package does it"; }
done

step "1. prepare each machine"
installed=$(date +%s)
# Nobody is there to answer questions.
sed -i 's/^apt-get install /DEBIAN_FRONTEND=noninteractive apt-get install -y -q /' "$work/block-1"
for node in $nodes; do
    block 1 "$node"
done
# The three commands are the same on each machine.
commands=3

step "2. make the cluster"
block 2 n1
line=$(sed -n 's/^ *\(mainstay cluster join .*\)$/\1/p' "$work/said" | head -n 1)
[ -n "$line" ] || fail "init does not print the line for the next node"
for node in n2 n3; do
    if [ "$node" = n3 ]; then
        in_node n1 mainstay cluster token create n3 >"$work/said"
        line=$(sed -n 's/^ *\(mainstay cluster join .*\)$/\1/p' "$work/said" | head -n 1)
        commands=$((commands + 1))
    fi
    echo "$node# ${line%%--token*}--token ..."
    in_node "$node" bash -c "$line"
    commands=$((commands + 1))
done

step "3. make the replicated volume"
block 3 n1

step "4. start the database"
block 4 n1
commands=$((commands - 1)) # `status` only looks
where() {
    in_node "$1" mainstay --json service status db | sed -n 's/.*"node": *"\(n[0-9]\)".*/\1/p' | head -n 1
}
runs=$(where n1)
[ -n "$runs" ] || fail "the status does not say where the database runs"
in_node "$runs" bash -c "$(cat "$work/block-5")" <<'SQL'
CREATE DATABASE app;
CREATE TABLE app.t (i BIGINT PRIMARY KEY);
CREATE USER app@'%' IDENTIFIED BY 'app';
GRANT ALL ON app.* TO app@'%';
SQL
sql() {
    in_client timeout 20 mariadb --no-defaults --connect-timeout=2 -h $vip -u app -papp -BN app -e "$1"
}
within 20 "a row through the floating address" sql "REPLACE INTO t VALUES (0)"
took=$(($(date +%s) - installed))
echo "From three installed machines to a replicated MariaDB behind $vip: $took s, $commands commands."
[ "$took" -le 600 ] || fail "that took more than ten minutes"
[ "$commands" -le 10 ] || fail "that took more than ten commands"

touch "$work/acknowledged"
# Inserts numbers one after the other, and notes those that the database has acknowledged.
(
    i=0
    while [ ! -e "$work/stop" ]; do
        i=$((i + 1))
        if sql "INSERT INTO t VALUES ($i)" >/dev/null 2>&1; then echo "$i" >>"$work/acknowledged"; fi
        sleep 0.05
    done
) &
writer=$!
rows() { wc -l <"$work/acknowledged"; }
more_rows() {
    [ "$(rows)" -ge "$wanted" ]
}
commits() { # waits for commits that come now
    wanted=$(($(rows) + 5))
    within 60 "commits through the floating address" more_rows
}
in_sync() { # asked of NODE: nothing needs attention
    in_node "$1" mainstay status
}

step "5. see it move"
commits
[ "$runs" != n2 ] || sed -i 's/ n2$/ n1/' "$work/block-6" # it is to move
block 6 n1
to=$(sed -n 's/^mainstay service move db //p' "$work/block-6")
[ "$(where n1)" = "$to" ] || fail "the database did not move to $to"
grep -q "to $to" "$work/said" || fail "history does not tell of the move"
commits
lost=$to
other=n3
[ "$lost" != n3 ] || other=n1
in_node "$other" timeout 120 bash -c "$(cat "$work/block-7")" >"$work/events" 2>&1 &
follower=$!
step "$lost loses its power"
"$machine" down "$lost"
commits
runs=$(where "$other")
[ -n "$runs" ] && [ "$runs" != "$lost" ] || fail "the database does not run on another machine"
kill "$follower" 2>/dev/null || true
grep -q "node/$lost" "$work/events" || fail "events do not tell that $lost is lost"

step "$lost has power again"
boot "$lost" 0.0.1
sed -n 1p "$work/block-1" >"$work/again"
in_node "$lost" bash -c "cd /root && $(cat "$work/again")" >/dev/null 2>&1 || fail "the package cannot be installed again"
within 120 "a cluster in which all is well" in_sync "$other"

step "upgrade under load, one node after the other"
for node in $nodes; do
    "$machine" in "$node" sh -c 'cat >/root/mainstay_0.0.2_amd64.deb' <"$work/0.0.2.deb"
    in_node "$node" bash -c "rm -f /root/mainstay_0.0.1_amd64.deb; cd /root && DEBIAN_FRONTEND=noninteractive apt-get install -y -q ./mainstay_*_amd64.deb" >"$work/said" 2>&1 \
        || { cat "$work/said" >&2; fail "the new package cannot be installed on $node"; }
    in_node "$node" mainstay node upgrade
    within 120 "a cluster in which all is well" in_sync "$node"
    commits
done
touch "$work/stop"
wait "$writer" || true
writer=""

step "no acknowledged row is missing"
sql "SELECT i FROM t" | sort -n >"$work/present"
sort -n "$work/acknowledged" | comm -23 <(sort "$work/acknowledged") <(sort "$work/present") >"$work/missing"
[ ! -s "$work/missing" ] || fail "rows are missing: $(head "$work/missing" | tr '\n' ' ')"
echo "$(rows) acknowledged rows, none missing"

step "clean up: delete and purge"
in_node n1 mainstay service delete db
in_node n1 mainstay resource delete db --yes
for node in $nodes; do
    in_node "$node" bash -c "DEBIAN_FRONTEND=noninteractive apt-get purge -y -q mainstay" >"$work/said" 2>&1 \
        || { cat "$work/said" >&2; fail "the package cannot be purged on $node"; }
    in_node "$node" sh -c '! systemctl cat mainstay-engine && ! pgrep -x mainstay' >/dev/null 2>&1 || fail "something of Mainstay still runs on $node"
done
echo "The tutorial is right. The whole test took $(($(date +%s) - began)) s."
