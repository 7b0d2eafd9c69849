#!/usr/bin/env bash
# Units of systemd as processes of services, under a real systemd: tests/systemd/units.sh BINARY.
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=$(realpath "${1:?name the built program}")
for inside in units-inside.sh database-units-inside.sh; do
    tests/systemd/machine.sh run --name "units-$$" --disk /var/lib/mainstay --copy tests/systemd/inside.sh=/root/inside.sh \
        --copy "$binary=/usr/bin/mainstay" \
        --copy contrib/systemd/mainstay-engine.service=/etc/systemd/system/mainstay-engine.service \
        --copy contrib/systemd/mainstay-agent.service=/etc/systemd/system/mainstay-agent.service "tests/systemd/$inside"
done
