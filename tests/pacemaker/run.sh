#!/usr/bin/env bash
# The OCF agent under ocf-tester and under Debian's Pacemaker: tests/pacemaker/run.sh DIRECTORY.
# The directory has the built programs `mainstay` and `mainstay-lab`. Needs root and the packages of
# `scripts/deps.sh pacemaker`.
#
# Three nodes of a lab, each with an agent and an engine of Mainstay, corosync and Pacemaker, and a
# file system on the resource that Pacemaker mounts where it promoted it. All processes and networks
# are inside the lab. PACEMAKER_KEEP=1 leaves it up after a failure; MAINSTAY_LAB names it.
set -euo pipefail
cd "$(dirname "$0")/../.."
programs=$(realpath "${1:?name the directory of the built programs}")
export MAINSTAY_LAB=${MAINSTAY_LAB:-pacemaker}
lab="$programs/mainstay-lab"
work=$(mktemp -d /var/tmp/pacemaker-test.XXXXXX)
# ocf-tester reads the agent as another user, too.
chmod 755 "$work"
agent=$work/resource
install -m 755 contrib/ocf/resource "$agent"
nodes="n1 n2 n3"
began=$(date +%s)

for program in ocf-tester xmllint corosync pacemakerd cibadmin crm_resource crm_mon; do
    PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || {
        echo "there is no $program: scripts/deps.sh pacemaker" >&2
        exit 1
    }
done

ended() {
    status=$?
    trap - EXIT
    [ -z "$fence" ] || kill "$fence" 2>/dev/null || true
    if [ "$status" -ne 0 ]; then
        echo "pacemaker test: failed in: ${stage:-the beginning}" >&2
        for node in $nodes; do
            echo "--- $node" >&2
            in_node "$node" "crm_mon -1A; grep -E 'resource\(|Result of|Filesystem\(' /run/pacemaker-test/pacemaker.log | cut -c 1-200 | tail -n 15" >&2 || true
        done
        mainstay status >&2 || true
        [ -z "${PACEMAKER_KEEP:-}" ] || exit "$status"
    fi
    "$lab" down >/dev/null 2>&1 || true
    rm -rf "$work"
    exit "$status"
}
trap ended EXIT
fence=""

# Cuts the power of nodes that Pacemaker fences: tests/pacemaker/fence_lab.
fence_nodes() {
    local request
    while sleep 0.2; do
        for request in "$work"/fence-*; do
            [ -e "$request" ] || continue
            "$lab" kill "${request##*/fence-}" >/dev/null 2>&1 || true
            echo "fenced ${request##*/fence-}" >>"$work/fenced"
            rm -f "$request"
        done
    done
}

mainstay() { # of any node that runs
    "$programs/mainstay" --lab "$MAINSTAY_LAB" "$@"
}

in_node() { # NODE SCRIPT
    "$lab" exec "$1" -- sh -c "$2"
}

stage() {
    stage=$*
    echo "$(($(date +%s) - began)) s: $*"
}

fail() {
    echo "pacemaker test: $*" >&2
    exit 1
}

# Runs one action of the agent by hand, outside Pacemaker, and compares its exit status.
action() { # NODE RESOURCE ACTION STATUS
    local status=0
    in_node "$1" "env OCF_ROOT=/usr/lib/ocf OCF_RESOURCE_INSTANCE=by-hand-$2 OCF_RESKEY_resource=$2 \
        OCF_RESKEY_CRM_meta_timeout=30000 OCF_RESKEY_binary=$programs/mainstay $agent $3" >"$work/action" 2>&1 || status=$?
    [ "$status" = "$4" ] || { cat "$work/action" >&2; fail "$3 of $2 on $1 ended with $status, not with $4"; }
}

within() { # SECONDS WHAT COMMAND...
    local until=$(($(date +%s) + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$(date +%s)" -lt "$until" ] || fail "not in time: $what"
        sleep 1
    done
}

asked=n1 # the node that is asked about Pacemaker

promoted() { # prints the node on which Pacemaker has promoted the resource
    in_node "$asked" "crm_mon -1" 2>/dev/null | sed -n 's/.*Promoted: \[ \(n[0-9]\) \].*/\1/p' | head -n 1
}

serves() { # NODE, or any but the one in $2: the file system is there, with what was written
    local node
    node=$(promoted)
    [ -n "$node" ] && [ "$node" != "${2:-}" ] || return 1
    [ "$1" = any ] || [ "$node" = "$1" ] || return 1
    in_node "$node" "grep -q ' /srv/db xfs ' /proc/mounts && [ \"\$(cat /srv/db/text 2>/dev/null)\" = '$text' ]" || return 1
    where=$node
}

one_primary_mounts() { # no other node has the file system
    local node
    for node in $nodes; do
        [ "$node" = "$where" ] || in_node "$node" "! grep -q ' /srv/db ' /proc/mounts" || return 1
    done
}

unpromoted_again() { # NODE
    in_node "$asked" "crm_mon -1" | grep -q "Unpromoted: \[.* $1 .*\]"
}

in_sync() {
    mainstay resource status db | head -n 1 | grep -q "in sync n1 n2 n3$"
}

write() {
    text=$*
    in_node "$where" "echo '$text' >/srv/db/text && sync /srv/db/text"
}

"$lab" down >/dev/null 2>&1 || true
stage "a lab of three nodes"
"$lab" up --nodes 3 >/dev/null
mainstay resource create db --size 320MiB --replica-count 3 >/dev/null
mainstay resource create other --size 64MiB --nodes n1,n2 >/dev/null 2>&1 ||
    mainstay resource create other --size 64MiB --replica-count 2 >/dev/null

stage "ocf-tester: the agent keeps the rules of OCF"
in_node n1 "env OCF_ROOT=/usr/lib/ocf PATH=\$PATH:/usr/sbin ocf-tester -n db -o resource=db -o binary=$programs/mainstay $agent" \
    >"$work/tester" 2>&1 || { cat "$work/tester" >&2; fail "ocf-tester is not content"; }
tail -n 1 "$work/tester"

stage "a demotion fails while the device is mounted, or open in a program"
action n2 db start 0
action n2 db promote 0
action n2 db monitor 8
in_node n2 "mkfs.xfs -q /run/mainstay/dev/db/0 && mkdir -p /srv/db && mount /run/mainstay/dev/db/0 /srv/db"
action n2 db demote 1
action n2 db stop 1
in_node n2 "umount /srv/db; nohup sleep 300 <\$(readlink -f /run/mainstay/dev/db/0) >/dev/null 2>&1 & echo \$! >/run/holder"
action n2 db demote 1
in_node n2 "kill \$(cat /run/holder)"

stage "a promoted node that lost the primary says so until it is demoted"
mainstay service move pacemaker-db n1 >/dev/null
action n2 db monitor 9
action n2 db demote 0
action n2 db monitor 0
action n2 db stop 0
action n2 db monitor 7

stage "a promotion waits while another node uses the device, and fails in the end"
action n3 db start 0
in_node n1 "mount /run/mainstay/dev/db/0 /srv"
action n3 db promote 1
grep -q "device-in-use" "$work/action" || { cat "$work/action" >&2; fail "the refusal does not name the cause"; }
in_node n1 "umount /srv"
action n3 db promote 0
action n3 db stop 0

stage "a second manager, a missing resource and a node without a replica are refused"
printf 'name = "own"\nresource = "other"\n[[process]]\nname = "p"\ncommand = ["/bin/sleep", "infinity"]\n' |
    mainstay service apply - >/dev/null
holder=$(mainstay resource status other --json | sed -n 's/^  "primary": "\(.*\)",/\1/p')
action "$holder" other start 6
without=$(for node in $nodes; do mainstay resource status other | grep -q "^$node " || echo "$node"; done)
action "$without" other start 5
action n1 missing start 6
mainstay service delete own >/dev/null

stage "Pacemaker on three nodes"
fence_nodes &
fence=$!
{
    printf 'totem {\n version: 2\n cluster_name: test\n transport: knet\n crypto_cipher: none\n crypto_hash: none\n token: 3000\n}\n'
    printf 'quorum {\n provider: corosync_votequorum\n}\n'
    printf 'logging {\n to_stderr: no\n to_syslog: no\n to_logfile: yes\n logfile: /run/corosync.log\n}\nnodelist {\n'
    for id in 1 2 3; do
        printf ' node {\n  ring0_addr: 10.213.0.%s\n  name: n%s\n  nodeid: %s\n }\n' "$id" "$id" "$id"
    done
    printf '}\n'
} >"$work/corosync.conf"
for node in $nodes; do
    "$lab" exec "$node" -- sh tests/pacemaker/node.sh "$work" "$agent"
done
online() { in_node n1 "crm_mon -1" 2>/dev/null | grep -q "Online: \[ n1 n2 n3 \]"; }
within 120 "three nodes of Pacemaker are online" online

scope() { # NAME: that part of the configuration
    local part
    part=$(sed -n "/<$1>/,/<\/$1>/p" tests/pacemaker/configuration.xml | sed "s|@BINARY@|$programs/mainstay|")
    in_node n1 "cibadmin --modify --allow-create --scope $1 --xml-text '$part'"
}
scope crm_config
scope resources
scope constraints
text=""
within 120 "it is promoted and mounted somewhere" serves any
write "from Pacemaker"

stage "Pacemaker moves it"
first=$where
in_node n1 "crm_resource --resource db-clone --ban --promoted --node $first" >/dev/null 2>&1
within 120 "another node serves it" serves any "$first"
one_primary_mounts || fail "two nodes have the file system"
in_node n1 "crm_resource --resource db-clone --clear" >/dev/null
write "after a move"

stage "the power of the promoted node fails"
first=$where
for node in $nodes; do [ "$node" = "$first" ] || asked=$node; done
"$lab" kill "$first" >/dev/null
within 120 "another node serves it" serves any "$first"
write "after a power cut"
"$lab" start "$first" >/dev/null
"$lab" exec "$first" -- sh tests/pacemaker/node.sh "$work" "$agent"
within 180 "the node is back" unpromoted_again "$first"
within 120 "its replica is in sync" in_sync

stage "the lease of the promoted node ends, while Pacemaker there is well"
first=$where
for node in $nodes; do [ "$node" = "$first" ] || asked=$node; done
in_node "$first" "kill -STOP \$(pgrep -f '^$programs/mainstay agent ')"
within 180 "another node serves it" serves any "$first"
one_primary_mounts || fail "two nodes have the file system"
write "after a lease"
in_node "$first" "kill -CONT \$(pgrep -f '^$programs/mainstay agent ')"
within 240 "the node is back" unpromoted_again "$first"
within 120 "its replica is in sync" in_sync

stage "Mainstay moves the primary by an operator's force"
first=$where
for node in $nodes; do [ "$node" = "$first" ] || to=$node; done
mainstay service move pacemaker-db --to "$to" --force >/dev/null
within 180 "another node serves it" serves any "$first"
one_primary_mounts || fail "two nodes have the file system"
within 240 "the node is back" unpromoted_again "$first"
write "after a force"
within 120 "all replicas are in sync" in_sync

stage "a node that cannot demote is fenced by Pacemaker"
first=$where
for node in $nodes; do [ "$node" = "$first" ] || asked=$node; done
: >"$work/fenced"
in_node "$first" "nohup sleep 3000 <\$(readlink -f /run/mainstay/dev/db/0) >/dev/null 2>&1 &"
in_node "$asked" "crm_resource --resource db-clone --ban --promoted --node $first" >/dev/null 2>&1
within 240 "another node serves it" serves any "$first"
grep -q "fenced $first" "$work/fenced" || fail "$first was not fenced"
in_node "$asked" "crm_resource --resource db-clone --clear" >/dev/null
write "after a fencing"
"$lab" start "$first" >/dev/null
"$lab" exec "$first" -- sh tests/pacemaker/node.sh "$work" "$agent"
within 180 "the node is back" unpromoted_again "$first"
within 120 "its replica is in sync" in_sync

stage "with automatic_failover=false only Pacemaker promotes"
in_node "$asked" "crm_resource --resource db --set-parameter automatic_failover --parameter-value false" >/dev/null
maintained() { mainstay service status pacemaker-db | grep -q maintenance; }
within 180 "the handle is in maintenance" maintained
within 180 "it is served" serves any
first=$where
for node in $nodes; do [ "$node" = "$first" ] || asked=$node; done
"$lab" kill "$first" >/dev/null
within 180 "another node serves it" serves any "$first"
newest=$(mainstay history db --brief | tail -n 1)
echo "$newest"
echo "$newest" | grep -q "operator" || fail "Mainstay has moved the primary by itself"

stage "all is well"
