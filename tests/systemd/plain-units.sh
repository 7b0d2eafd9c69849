#!/usr/bin/env bash
# Plain units on a resource, on a machine that systemd runs: tests/systemd/plain-units.sh BINARY.
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=$(realpath "${1:?name the built program}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$(scripts/deb.sh "$binary" "$work")
tests/systemd/machine.sh run --name "units-$$" --disk /var/lib/mainstay --copy tests/systemd/inside.sh=/root/inside.sh --copy "$package=/root/mainstay.deb" \
    tests/systemd/plain-units-inside.sh
