# Shared by the scripts that run in a machine: `. /root/inside.sh`. They define `show_state`, which prints what helps to find
# out why a test failed.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

step() { echo "── $*"; }
fail() {
    echo "FAILED: $*" >&2
    show_state >&2 || true
    journalctl --no-pager -n 80 >&2 || true
    exit 1
}
address_of_this_machine() {
    # A pair, because not every kernel has dummy links.
    ip link add dm0 type veth peer name dm1
    ip address add 192.0.2.11/24 dev dm0
    ip link set dm0 up
    ip link set dm1 up
}
cluster_of_this_machine() { # NAME
    address_of_this_machine
    systemctl daemon-reload
    systemctl start mainstay-engine mainstay-agent
    within 60 mainstay cluster init --name "$1" --as n1 --address 192.0.2.11
}
within() { # SECONDS COMMAND...: tries until it succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "not within its time: $*"
        sleep 0.2
    done
}
