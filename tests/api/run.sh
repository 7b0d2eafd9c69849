#!/usr/bin/env bash
# Programs of others look at the HTTP API: oasdiff compares its description with the published one, and schemathesis asks a lab
# whether its answers are as the description says, for good and for bad requests. Root. Arguments: the program to try, a directory
# that keeps the tools for the next run, and `short` for few examples of each request.
set -euo pipefail
cd "$(dirname "$0")/../.."
mainstay=$(realpath "$1")
mkdir -p "$2"
tools=$(realpath "$2")
lab=api
work=$(mktemp -d /var/tmp/mainstay-api.XXXXXX)
seed=${SEED:-1}
address=10.213.0.1:7404
schemathesis_version=4.32.5
# The generator of schemathesis needs this one.
hypothesis_version=6.149.1
oasdiff_version=v1.38.0

end() {
    "$mainstay" lab down --name $lab >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
step() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

case ${3:-} in
    short) examples=1 phases=examples,coverage ;;
    *) examples=20 phases=examples,coverage,fuzzing,stateful ;;
esac

schemathesis=$tools/schemathesis-$schemathesis_version/bin/schemathesis
if [ ! -x "$schemathesis" ]; then
    venv=$tools/schemathesis-$schemathesis_version
    python3 -c 'import ensurepip' 2>/dev/null ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv >/dev/null
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" --quiet install "schemathesis==$schemathesis_version" "hypothesis==$hypothesis_version" || {
        rm -rf "$venv"
        # Where packages of Python cannot be had, the other tests of the API still count.
        [ "${3:-}" != short ] || { echo "NOT RUN: schemathesis cannot be installed here"; exit 0; }
        fail "schemathesis cannot be installed; the first run needs the network"
    }
fi

# oasdiff needs a newer Go than some systems have. A test of `make unit` compares the same two files, with rules of its own.
oasdiff=$tools/oasdiff/oasdiff
if [ ! -x "$oasdiff" ] && command -v go >/dev/null; then
    GOBIN=$tools/oasdiff GOTOOLCHAIN=auto GOFLAGS= go install "github.com/oasdiff/oasdiff@$oasdiff_version" || true
fi
if [ -x "$oasdiff" ]; then
    step "oasdiff: no change breaks clients of the published API"
    "$oasdiff" breaking docs/openapi-published.json docs/openapi.json --fail-on WARN
    sed 's/"revision": {/"version": {/' docs/openapi.json >"$work/broken.json"
    ! "$oasdiff" breaking docs/openapi-published.json "$work/broken.json" --fail-on WARN >"$work/broken.txt" ||
        fail "oasdiff does not see that a field of answers is gone"
    echo "without a field of answers it names $(grep -c revision "$work/broken.txt") places"
else
    step "oasdiff: not here, because there is no Go that can build it; the test of make unit has compared"
fi

step "a lab of three nodes with a resource, a service and a token"
"$mainstay" lab up --directories --name $lab >/dev/null
"$mainstay" resource create db --lab $lab --size 64MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
"$mainstay" snapshot create db first --lab $lab >/dev/null
cat >"$work/db.toml" <<'TOML'
name = "db"
resource = "db"
[[process]]
name = "main"
command = ["/bin/sleep", "infinity"]
TOML
"$mainstay" service apply "$work/db.toml" --lab $lab >/dev/null
(umask 077; "$mainstay" token create api --scope admin --days 1 --lab $lab >"$work/token")

# The description as it is asked: names of objects that exist beside made up ones, no stream, which never ends, and no long waits.
python3 - docs/openapi.json "$work/openapi.json" <<'PY'
import json, sys
api = json.load(open(sys.argv[1]))
api.pop("security")
api["components"].pop("securitySchemes")
del api["paths"]["/v1/stream"]
for path, operations in api["paths"].items():
    names = {"name": "n3" if path.startswith("/v1/nodes/") else "db", "node": "n3", "snapshot": "first", "volume": 0}
    for operation in operations.values():
        parameters = operation.get("parameters", [])
        parameters[:] = [one for one in parameters if one["name"] != "wait_ms"]
        for one in parameters:
            if one["in"] == "path" and one["name"] in names:
                one["example"] = names[one["name"]]
json.dump(api, open(sys.argv[2], "w"))
PY

# ask NAME DESCRIPTION MORE…: runs schemathesis from the client's place in the lab. Without `ignored_auth`, because a source that sends
# ten wrong tokens is refused whatever it sends (docs/access.md), and without what follows from a deletion, which is only recorded when
# it is answered.
ask() {
    local name=$1 description=$2
    shift 2
    MAINSTAY_TOKEN=$(cat "$work/token") "$mainstay" lab exec --name $lab client -- \
        env --chdir="$work" "$schemathesis" --no-color \
        --config-file "$PWD/tests/api/schemathesis.toml" run "$description" --url "https://$address" \
        --checks all --exclude-checks ignored_auth,use_after_free,ensure_resource_availability \
        --phases $phases --max-examples $examples --max-time 75 --seed "$seed" --request-timeout 30 --continue-on-failure \
        --report har --report-har-path "$work/$name.har" "$@" >"$work/$name.txt" 2>&1
}

# asked NAME LEAST: says what was answered. An agent that refuses everything would have no findings, so at least LEAST operations must
# have done what they were asked.
asked() {
    python3 - "$work/openapi.json" "$work/$1.har" "$2" <<'PY'
import collections, json, re, sys, urllib.parse
paths = json.load(open(sys.argv[1]))["paths"]
# A path without a parameter comes before one that it would fit.
templates = sorted(paths, key=lambda path: path.count("{"))
patterns = [(path, re.compile(re.sub(r"\{\w+\}", "[^/]*", path) + "$")) for path in templates]
statuses, done = collections.Counter(), set()
for entry in json.load(open(sys.argv[2]))["log"]["entries"]:
    status, method = entry["response"]["status"], entry["request"]["method"].lower()
    statuses[status] += 1
    path = urllib.parse.urlsplit(entry["request"]["url"]).path
    found = next((path_ for path_, pattern in patterns if pattern.match(path) and method in paths[path_]), None)
    if 200 <= status < 300 and found:
        done.add((method, found))
print(sum(statuses.values()), "requests:", ", ".join(f"{n} answered with {status}" for status, n in sorted(statuses.items())))
print(len(done), "operations have done what they were asked")
sys.exit(len(done) < int(sys.argv[3]))
PY
}

step "schemathesis sees a description that is not true"
python3 - "$work/openapi.json" "$work/untrue.json" <<'PY'
import json, sys
api = json.load(open(sys.argv[1]))
api["components"]["schemas"]["ClusterView"]["properties"]["name"]["type"] = "integer"
json.dump(api, open(sys.argv[2], "w"))
PY
! ask untrue "$work/untrue.json" --include-path /v1/cluster --include-method GET --max-time 600 || fail "nothing was found"
grep -q "ClusterView\|integer" "$work/untrue.txt" || fail "$(cat "$work/untrue.txt")"

for part in reads changes; do
    step "schemathesis: $part"
    if [ $part = reads ]; then which=(--include-method GET) least=30; else which=(--exclude-method GET) least=15; fi
    ask $part "$work/openapi.json" "${which[@]}" ||
        fail "schemathesis has findings; SEED=$seed repeats them: $(cat "$work/$part.txt")"
    asked $part $least || fail "too few operations have done what they were asked"
done

step "the agents are alive, and none of them has panicked"
for node in n1 n2 n3; do
    ! "$mainstay" lab logs $node --name $lab | grep -i "panicked" || fail "a thread of $node has panicked"
done
"$mainstay" status --lab $lab >/dev/null || [ $? -lt 3 ] || fail "$("$mainstay" status --lab $lab)"
echo "passed"
