# shellcheck shell=bash
# Shared by the tests that work with several machines from outside: sourced, after `test_name` is set.
began=$(date +%s)
stage="the beginning"

step() {
    stage=$*
    echo "── $(($(date +%s) - began)) s: $*"
}
fail() {
    echo "$test_name: $*" >&2
    exit 1
}
within() { # SECONDS WHAT COMMAND...
    local until=$(($(date +%s) + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$until" ] || fail "not in time: $what"
        sleep 0.2
    done
}
