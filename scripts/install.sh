#!/usr/bin/env bash
# Installs a built `mainstay` with its units, manual pages, completions and configuration: `make install`, and the package.
#
#   scripts/install.sh BINARY
#       DESTDIR   put before every path; empty for this machine
#       PREFIX    /usr/local, or /usr for a package
#       UNITDIR   directory of systemd's units
#
# An existing configuration stays. With a DESTDIR nothing of this machine changes.
set -euo pipefail

binary=${1:?name the built program}
destdir=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
if [ "$prefix" = /usr ]; then usual=/lib/systemd/system; else usual=/etc/systemd/system; fi
unitdir=${UNITDIR:-$usual}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

put() { # MODE SOURCE PATH
    install -D -m "$1" "$2" "$destdir$3"
}

put 755 "$binary" "$prefix/bin/mainstay"
strip --strip-unneeded "$destdir$prefix/bin/mainstay"

mkdir "$work/man" "$work/completions"
"$binary" generate man "$work/man"
"$binary" generate completions "$work/completions"
for page in "$work/man"/*.1; do
    gzip -9n "$page"
    put 644 "$page.gz" "$prefix/share/man/man1/$(basename "$page").gz"
done
put 644 "$work/completions/mainstay.bash" "$prefix/share/bash-completion/completions/mainstay"
put 644 "$work/completions/_mainstay" "$prefix/share/zsh/vendor-completions/_mainstay"
put 644 "$work/completions/mainstay.fish" "$prefix/share/fish/vendor_completions.d/mainstay.fish"

for unit in mainstay-engine mainstay-agent; do
    sed "s|/usr/bin/mainstay|$prefix/bin/mainstay|" "$root/contrib/systemd/$unit.service" >"$work/$unit.service"
    put 644 "$work/$unit.service" "$unitdir/$unit.service"
done
# For those who keep Pacemaker or plain units: docs/pacemaker.md.
put 755 "$root/contrib/ocf/resource" /usr/lib/ocf/resource.d/mainstay/resource
put 755 "$root/contrib/systemd/mainstay-units" "$prefix/lib/mainstay/mainstay-units"
sed "s|/usr/lib/mainstay|$prefix/lib/mainstay|" "$root/contrib/systemd/mainstay-resource@.service" >"$work/watcher"
put 644 "$work/watcher" "$unitdir/mainstay-resource@.service"
put 644 "$root/contrib/systemd/mainstay-resource@.target" "$unitdir/mainstay-resource@.target"
[ -e "$destdir/etc/mainstay/mainstay.toml" ] || put 644 "$root/contrib/mainstay.toml" /etc/mainstay/mainstay.toml
put 644 "$root/contrib/needrestart.conf" /etc/needrestart/conf.d/50-mainstay.conf

if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    echo "installed below $prefix. To start Mainstay: systemctl enable --now mainstay-engine mainstay-agent"
fi
