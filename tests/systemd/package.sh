#!/usr/bin/env bash
# The package's life on a machine that systemd runs: tests/systemd/package.sh BINARY.
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=$(realpath "${1:?name the built program}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
first=$(VERSION=0.0.1 scripts/deb.sh "$binary" "$work")
second=$(VERSION=0.0.2 scripts/deb.sh "$binary" "$work")
if command -v lintian >/dev/null; then
    lintian --fail-on error --suppress-tags unstripped-binary-or-object "$second"
fi
exec_name=package-$$
tests/systemd/machine.sh run --name "$exec_name" --disk /var/lib/mainstay --copy tests/systemd/inside.sh=/root/inside.sh --copy "$first=/root/first.deb" \
    --copy "$second=/root/second.deb" tests/systemd/package-inside.sh
