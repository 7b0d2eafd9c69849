#!/usr/bin/env bash
# Every block of commands of the manual and of the README runs in a lab of five nodes, or is named here with the test that runs it
# or the reason why nothing does (S538). Wants the programs built, in the directory that is named: make manual-test (root).
#
# A page is a function in pages.sh. It makes what the reader of the page has, and plays the page's blocks with `play`: line by line
# on the node n1, as the page shows them. What differs from the page (sizes, addresses, names that stand for others) is said there.
set -euo pipefail
cd "$(dirname "$0")/../.."
built=$(realpath "${1:?name the directory with the built programs}")
pages=$PWD
work=$(mktemp -d)
export MAINSTAY_LAB_DIR=$work/labs
export PATH="$built:$PATH:/usr/sbin:/sbin"
declare -A seen=()
failures=()
current=
# Where the commands run: empty for the node n1, or a directory of this machine.
here=

die() {
    echo "manual: $*" >&2
    exit 1
}

# shellcheck disable=SC2329
end() {
    local name
    for name in "$MAINSTAY_LAB_DIR"/*/; do
        [ -d "$name" ] && mainstay lab down --name "$(basename "$name")" >/dev/null 2>&1
    done
    rm -rf "$work"
}
trap end EXIT

# Blocks of a page that may be commands: those without a language, and shell. Prints the lines of the one with this number, without
# comments; a line that goes on with `\` is one.
block() { # PAGE NUMBER
    awk -v wanted="$2" '
        /^ *```/ && !inside { inside = 1; is = $0 ~ /^ *```(sh)?$/; number += is; next }
        /^ *```/ { inside = 0; next }
        inside && is && number == wanted { sub(/^ +/, ""); sub(/(^|  +| )# .*$/, ""); print }
    ' "$pages/$1.md" | sed -e ':again' -e '/\\$/{N;s/\\\n */ /;b again' -e '}' | sed '/^ *$/d; s/ *$//'
}

blocks_of() { # PAGE: how many there are
    awk '/^ *```/ && !inside { inside = 1; number += $0 ~ /^ *```(sh)?$/; next } /^ *```/ { inside = 0 } END { print number + 0 }' \
        "$pages/$1.md"
}

# A command of a node, as root, in a directory of its own there.
on() { # NODE COMMAND
    mainstay lab exec --name manual "$1" -- env PATH="$PATH" sh -ec "mkdir -p /run/manual; cd /run/manual; $2" </dev/null
}

# Runs a command of the page, and notes what fails.
line() { # COMMAND [EXPECTED EXIT STATUS]
    local command=$1 expected=${2:-} status=0 run
    # Some commands go on until they are ended.
    case "$command" in *--follow*) command="timeout 3 $command" expected=124 ;; esac
    if [ -n "$here" ]; then run=(sh -ec "cd $here; $command"); else run=(on n1 "$command"); fi
    # They exit with 4 if something needs attention.
    if [ -z "$expected" ]; then
        case "$command" in
            *status* | *explain* | *' check '*) expected='[04]' ;;
            *) expected=0 ;;
        esac
    fi
    echo "  $command"
    "${run[@]}" >"$work/output" 2>&1 </dev/null || status=$?
    # shellcheck disable=SC2254
    case "$status" in
        $expected) ;;
        *)
            failures+=("$current: \`$command\` exits with $status, not with $expected")
            sed 's/^/      /' "$work/output"
            ;;
    esac
}

# play PAGE BLOCK [s/PAGE/LAB/ | NUMBER=COMMAND | NUMBER~REASON | NUMBER!STATUS]...: runs a block. The arguments replace words of
# all lines, replace a line, leave one out, or give the exit status of one.
play() {
    local page=$1 number=$2 words=() at=0 argument command expected
    shift 2
    current="$page.md, block $number"
    seen[$page:$number]=1
    echo "== $current"
    mapfile -t words < <(block "$page" "$number")
    [ ${#words[@]} -gt 0 ] || die "$current is empty"
    for command in "${words[@]}"; do
        at=$((at + 1))
        expected=
        for argument; do
            case "$argument" in
                s[/\|]*) command=$(sed "$argument" <<<"$command") ;;
                "$at="*) command=${argument#*=} ;;
                "$at~"*) command= && echo "  left out: ${words[at - 1]} (${argument#*~})" ;;
                "$at!"*) expected=${argument#*!} ;;
            esac
        done
        [ -z "$command" ] || line "$command" "$expected"
    done
}

# A block that is not run here.
elsewhere() { # PAGE BLOCK WHERE OR WHY
    [ -n "${3:-}" ] || die "no reason for block $2 of $1"
    seen[$1:$2]=1
}

# What pages need.
resource() { # NAME [REPLICAS [JOURNAL]]
    on n1 "mainstay resource create $1 --size 512MiB --journal ${3:-64MiB} --replicas ${2:-n1,n2,n3} --wait-s 60" >/dev/null
}

service() { # NAME [MORE OF THE FILE]: a file system and a process that sleeps
    on n1 "cat >$1.toml <<EOF
name = '$1'
resource = '$1'
[mount]
path = '/srv/$1'
fstype = 'xfs'
mkfs = true
${2:-}
[[process]]
name = 'app'
command = ['sleep', '100000']
EOF
mainstay service apply $1.toml" >/dev/null
}

gone() { # NAME...: services and resources of these names
    local name
    for name; do
        on n1 "mainstay service delete $name" >/dev/null 2>&1 || true
        on n1 "mainstay resource delete $name --yes" >/dev/null 2>&1 || true
        on n1 "rm -f $name.toml"
    done
}

in_sync() { # NAME
    local end=$((SECONDS + 60))
    until on n1 "mainstay resource status $1 --json" | grep -q '"health": *"ok"'; do
        [ $SECONDS -lt $end ] || die "$1 is not in sync: $(on n1 "mainstay resource status $1")"
        sleep 0.3
    done
}

# shellcheck source=tests/manual/pages.sh
. tests/manual/pages.sh

wanted=${2:-}
if [ -n "$wanted" ]; then
    mainstay lab up --name manual --nodes 5 >/dev/null
    "page_$wanted"
else
    mainstay lab up --name manual --nodes 5 >/dev/null
    for page in $(declare -F | sed -n 's/^declare -f \(page_.*\)/\1/p'); do "$page"; done
    mainstay lab down --name manual >/dev/null
    pages_of_other_labs
    for path in README.md docs/*.md; do
        page=${path%.md}
        for number in $(seq "$(blocks_of "$page")"); do
            [ -n "${seen[$page:$number]:-}" ] || failures+=("$page.md, block $number is neither run nor named in tests/manual/pages.sh")
        done
    done
fi
if [ ${#failures[@]} -gt 0 ]; then
    printf 'manual: %s\n' "${failures[@]}" >&2
    exit 1
fi
echo "the commands of the manual do what it says (${#seen[@]} blocks)"
