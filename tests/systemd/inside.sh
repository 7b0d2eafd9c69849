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
within() { # SECONDS COMMAND...: tries until it succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "not within its time: $*"
        sleep 0.2
    done
}
