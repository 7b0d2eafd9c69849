#!/usr/bin/env bash
# promtool of Prometheus looks at the alert rules, tries each of them, and reads the pages of metrics of a lab, under both kinds of
# names. Root. Argument: the program to try.
set -euo pipefail
cd "$(dirname "$0")/../.."
mainstay=$(realpath "$1")
lab=prometheus
work=$(mktemp -d /var/tmp/mainstay-prometheus.XXXXXX)

end() {
    "$mainstay" lab down --name $lab >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
step() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

# Of the package alone: its server needs not be installed.
promtool=$(command -v promtool || true)
if [ -z "$promtool" ]; then
    (cd "$work" && apt-get download prometheus >/dev/null && dpkg-deb -x prometheus_*.deb tree)
    promtool=$work/tree/usr/bin/promtool
fi
"$promtool" --version 2>&1 | head -1

step "the rules"
"$promtool" check rules docs/alerts.yml
step "each alert fires for its cause, and not before"
"$promtool" test rules tests/prometheus/alerts.yml
# A rule that is not as its case says has to be seen.
mkdir -p "$work/docs" "$work/tests/prometheus"
sed 's/mainstay_control_leader_known == 0/mainstay_control_leader_known == 2/' docs/alerts.yml >"$work/docs/alerts.yml"
cp tests/prometheus/alerts.yml "$work/tests/prometheus/"
! "$promtool" test rules "$work/tests/prometheus/alerts.yml" >/dev/null 2>&1 || fail "a broken rule passes its case"

step "a lab of three nodes with a resource, and what promtool says to their metrics"
"$mainstay" lab up --directories --name $lab >/dev/null
"$mainstay" resource create db --lab $lab --size 64MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
for node in 1 2 3; do
    for names in mainstay drbd; do
        page=$work/$node-$names
        "$mainstay" lab exec --name $lab client -- curl --silent --fail "http://10.213.0.$node:7402/metrics?names=$names" >"$page"
        said=$("$promtool" check metrics <"$page" 2>&1) || fail "the page of n$node, names=$names: $said"
        [ -z "$said" ] || fail "the page of n$node, names=$names: $said"
        echo "n$node, names=$names: $(grep -c "^# TYPE" "$page") families, $(grep -vc "^#" "$page") samples"
    done
    grep -q "^mainstay_node_info{" "$work/$node-mainstay" || fail "the page of n$node has no mainstay_node_info"
    grep -q '^drbd_device_state{name="db",volume="0",drbd_device_state="UpToDate"} 1$' "$work/$node-drbd" ||
        fail "the replica of n$node is not UpToDate: $(grep drbd_device_state "$work/$node-drbd")"
done
grep -q '^drbd_resource_role{name="db",drbd_resource_role="Primary"} 1$' "$work/1-drbd" || fail "n1 is not Primary"
[ "$(grep -c '^drbd_connection_state{name="db",.*"Connected"} 1$' "$work/1-drbd")" = 2 ] ||
    fail "n1 is not connected to both: $(grep drbd_connection_state "$work/1-drbd")"
status=$("$mainstay" lab exec --name $lab client -- curl --silent --output /dev/null --write-out '%{http_code}' \
    "http://10.213.0.1:7402/metrics?names=zfs")
[ "$status" = 422 ] || fail "unknown names are answered with $status"
echo "passed"
