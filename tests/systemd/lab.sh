#!/usr/bin/env bash
# A lab of machines that systemd runs, with the Debian package installed in each: tests/systemd/lab.sh DIRECTORY.
# The directory has the built programs `mainstay` and `mainstay-lab`. Needs root and what machine.sh needs. LAB_KEEP=1 leaves
# the lab up after a failure; MAINSTAY_LAB names it.
set -euo pipefail
cd "$(dirname "$0")/../.."
test_name="lab test"
. tests/systemd/outside.sh
programs=$(realpath "${1:?name the directory of the built programs}")
export MAINSTAY_LAB=${MAINSTAY_LAB:-systemd-$$}
work=$(mktemp -d /var/tmp/mainstay-lab-test.XXXXXX)
export MAINSTAY_LAB_DIR=$work/labs

lab() {
    "$programs/mainstay-lab" "$@"
}
mainstay() { # of any node that runs
    "$programs/mainstay" --lab "$MAINSTAY_LAB" "$@"
}
in_node() { # NODE SCRIPT
    lab exec "$1" -- sh -ec "$2"
}
# What is left of the lab on this machine: groups, processes in them, networks, mounts, loop devices.
nothing_is_left() {
    local group left
    for group in $(findmnt -n -o TARGET -t cgroup2); do
        [ ! -e "$group/mainstay-lab-$MAINSTAY_LAB" ] || fail "$1 leaves the control group of the lab"
    done
    left=$(ls /run/netns 2>/dev/null | grep "^mainstay-$MAINSTAY_LAB\." || true)
    [ -z "$left" ] || fail "$1 leaves networks: $left"
    left=$(cat /proc/[0-9]*/mountinfo 2>/dev/null | grep -F "$work" | head -n 3 || true)
    [ -z "$left" ] || fail "$1 leaves mounts: $left"
    left=$(losetup -n -O NAME,BACK-FILE | grep -F "$work" || true)
    [ -z "$left" ] || fail "$1 leaves loop devices: $left"
    [ ! -e "$MAINSTAY_LAB_DIR" ] || fail "$1 leaves files: $(find "$MAINSTAY_LAB_DIR" | head -n 3)"
}
ended() {
    status=$?
    trap - EXIT
    if [ "$status" -ne 0 ]; then
        echo "lab test: failed in: $stage" >&2
        for node in n1 n2 n3; do
            echo "--- $node" >&2
            tail -n 5 "$MAINSTAY_LAB_DIR/$MAINSTAY_LAB/$node/log/init.log" >&2 2>/dev/null || true
            lab logs "$node" -n 15 >&2 2>/dev/null || true
        done
        [ -z "${LAB_KEEP:-}" ] || exit "$status"
    fi
    lab down >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap ended EXIT
trap 'exit 130' INT TERM

package=$(scripts/deb.sh "$programs/mainstay" "$work")

step "an interrupted making leaves nothing"
# In the background a shell has its commands ignore Ctrl-C.
env --default-signal=INT "$programs/mainstay-lab" up --systemd --package "$package" >"$work/said" 2>&1 &
making=$!
booting() {
    lab status | grep -q 'n3 .*running'
}
within 60 "three nodes that boot" booting
kill -INT "$making"
! wait "$making" || fail "the making was not interrupted"
grep -q 'interrupted; what was made of the lab is removed again' "$work/said" || fail "it does not say so: $(cat "$work/said")"
nothing_is_left "an interrupted making"

step "three machines with the package"
lab up --systemd --package "$package"
for node in n1 n2 n3; do
    in_node "$node" 'test "$(cat /proc/1/comm)" = systemd; test "$(hostname)" = '$node'
        systemctl is-active --quiet mainstay-agent mainstay-engine; dpkg -s mainstay >/dev/null
        test "$(command -v mainstay)" = /usr/bin/mainstay; getent hosts n1 n2 n3 >/dev/null'
done
[ "$(lab exec n1 -- sh -c 'exit 7'; echo $?)" = 7 ] || fail "the exit status of a command is lost"
reach='timeout 5 bash -c ": </dev/tcp/10.213.0.$0/7400"'
lab exec client -- sh -c "$reach" 1 || fail "the client does not reach a machine"
mainstay resource create db --size 256MiB --replicas n1,n2,n3
lab logs n1 -n 200 | grep -q 'mainstay' || fail "the logs of a node are empty"

step "a pause, and a cut"
lab pause n3
! lab exec n3 -- true 2>/dev/null || fail "a paused machine answers"
lab resume n3
in_node n3 true
lab cut n1 n2
! lab exec n1 -- sh -c "$reach" 2 2>/dev/null || fail "a packet passes a cut"
lab heal
lab exec n1 -- sh -c "$reach" 2 || fail "no packet passes a cut that has healed"

step "a power cut"
in_node n2 'echo kept >/root/kept; sync -f /root/kept; echo lost >/root/lost'
lab kill n2
! lab exec n2 -- true 2>/dev/null || fail "a machine without power answers"
lab start n2
in_node n2 'test "$(cat /root/kept)" = kept; test ! -s /root/lost; test ! -e /run/lost
    dpkg -s mainstay >/dev/null; systemctl is-active --quiet mainstay-agent mainstay-engine'
within 120 "a cluster in which all is well" mainstay status

step "the end"
lab down
nothing_is_left "lab down"

step "machines without the package"
lab up --systemd --nodes 1
in_node n1 'test "$(cat /proc/1/comm)" = systemd; ! systemctl cat mainstay-agent >/dev/null 2>&1'
# As after a command that was killed: the state file is all that is known.
init=$(lab --json status | sed -n 's/.*"init": *\([0-9][0-9]*\).*/\1/p' | head -n 1)
kill -KILL "$init"
lab down
nothing_is_left "lab down after the death of the first process"
echo "A lab of machines works. The whole test took $(($(date +%s) - began)) s."
