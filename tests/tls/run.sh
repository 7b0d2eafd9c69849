#!/usr/bin/env bash
# Programs of others look at the ports of agents, engines and the API in a lab: openssl, curl, testssl and sslyze. Root. Argument: the
# program to try.
set -euo pipefail
mainstay=$(realpath "$1")
lab=tls
work=$(mktemp -d /var/tmp/mainstay-tls.XXXXXX)
sslyze=${SSLYZE:-$work/sslyze}

end() {
    "$mainstay" lab down --name $lab >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
step() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
inside() { "$mainstay" lab exec --name $lab n2 -- "$@"; }

if ! command -v testssl >/dev/null || ! command -v curl >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends testssl.sh curl python3-venv >/dev/null
fi

step "a lab of three nodes with a replicated resource"
"$mainstay" lab up --directories --name $lab >/dev/null
"$mainstay" resource create db --lab $lab --size 64MiB --replicas n1,n2,n3 --preferred n1 >/dev/null
agents=10.213.0.1:7400 engines=10.213.0.1:7401 api=10.213.0.1:7404

if [ ! -x "$sslyze" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" --quiet install sslyze==6.3.1
    sslyze=$work/venv/bin/sslyze
fi

for port in $agents $engines $api; do
    step "$port: openssl gets nothing without TLS 1.3, and nothing without a proof"
    for version in tls1 tls1_1 tls1_2; do
        said=$(echo hello | inside timeout 10 openssl s_client -connect $port -$version 2>&1 || true)
        grep -q "no peer certificate available" <<<"$said" || fail "$version is spoken at $port: $said"
    done
    said=$(echo hello | inside timeout 10 openssl s_client -connect $port -tls1_3 -ign_eof 2>&1 || true)
    if [ $port = $api ]; then
        # Clients of the API prove themselves by a token in their request.
        status=$(inside curl --silent --insecure --output /dev/null --write-out '%{http_code}' https://$port/v1/status)
        [ "$status" = 401 ] || fail "a stranger without a token is answered with $status at $port"
    else
        grep -q "alert" <<<"$said" || fail "a stranger without a certificate is not refused at $port: $said"
    fi
    ! grep -q "Secure Renegotiation IS supported\|Compression: zlib" <<<"$said" || fail "renegotiation or compression at $port"

    step "$port: testssl"
    rm -f "$work/testssl.json"
    inside testssl --quiet --color 0 --warnings off --protocols --server-preference --vulnerable --jsonfile "$work/testssl.json" \
        "$port" >"$work/testssl.txt" 2>&1 || true
    python3 - "$work/testssl.json" <<'PY' || fail "testssl has findings at $port: $(cat "$work/testssl.txt")"
import json, sys
found = json.load(open(sys.argv[1]))
known = {one["id"]: one for one in found}
for old in ("SSLv2", "SSLv3", "TLS1", "TLS1_1", "TLS1_2"):
    assert "not offered" in known[old]["finding"], known[old]
assert "offered" in known["TLS1_3"]["finding"] and "not offered" not in known["TLS1_3"]["finding"], known["TLS1_3"]
bad = [one for one in found if one["severity"] in ("MEDIUM", "HIGH", "CRITICAL")]
assert not bad, bad
print(len(found), "findings of testssl, none above LOW")
PY

    step "$port: sslyze"
    inside "$sslyze" --json_out "$work/sslyze.json" --sslv2 --sslv3 --tlsv1 --tlsv1_1 --tlsv1_2 --tlsv1_3 --heartbleed --robot --reneg \
        --compression --early_data "$port" >"$work/sslyze.txt" 2>&1 || true
    python3 - "$work/sslyze.json" <<'PY' || fail "sslyze has findings at $port: $(cat "$work/sslyze.txt")"
import json, sys
(server,) = json.load(open(sys.argv[1]))["server_scan_results"]
scan = server["scan_result"]
for old in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2"):
    result = scan[old + "_cipher_suites"]["result"]
    assert not result["accepted_cipher_suites"], (old, result["accepted_cipher_suites"])
accepted = [suite["cipher_suite"]["name"] for suite in scan["tls_1_3_cipher_suites"]["result"]["accepted_cipher_suites"]]
assert accepted, "TLS 1.3 is not spoken"
print("sslyze: TLS 1.3 with", ", ".join(accepted))
PY
done

step "the cluster is as well as before"
"$mainstay" resource status db --lab $lab | grep -q "n2" || fail "the resource"
within=0
until [ "$("$mainstay" --json status --lab $lab | python3 -c 'import json,sys; print(len(json.load(sys.stdin).get("advice", [])))')" = 0 ]; do
    within=$((within + 1))
    [ $within -lt 20 ] || fail "$("$mainstay" status --lab $lab)"
    sleep 1
done
echo "passed"
