#!/usr/bin/env bash
# The console in Chromium against a real cluster: ui/tests/lab.sh DIRECTORY. The directory has the built programs `mainstay` and
# `mainstay-lab`. Needs root. SHOTS=DIR takes pictures.
set -euo pipefail
built=$(realpath "${1:?name the directory of the built programs}")
cd "$(dirname "$0")/.."
export BUILT=$built LAB=${MAINSTAY_UI_LAB:-ui-$$} SHOTS=${SHOTS:-}
work=$(mktemp -d)
ended() {
    status=$?
    trap - EXIT
    "$built/mainstay-lab" --name "$LAB" down >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap ended EXIT
trap 'exit 130' INT TERM

"$built/mainstay-lab" --name "$LAB" up --nodes 3
TOKEN=$("$built/mainstay" --lab "$LAB" token create console --scope admin 2>/dev/null | grep -o 'mst_api_[A-Za-z0-9_-]*')
# The browser is in the network of the lab's clients; nothing of the lab is reachable from this machine otherwise.
export TOKEN BROWSER=$work/chromium
cat >"$BROWSER" <<END
#!/bin/sh
exec "$built/mainstay-lab" --name "$LAB" exec client -- ${CHROMIUM:-/usr/bin/chromium} "\$@"
END
chmod 755 "$BROWSER"
node tests/lab.mjs
