#!/usr/bin/env bash
# Builds the Debian package of a built `mainstay`: scripts/deb.sh BINARY DIRECTORY. Prints the path of the package.
# VERSION is the package's version if it is not the program's. Needs dpkg-deb and binutils, no debhelper: contrib/debian has the
# four scripts that debhelper would write.
set -euo pipefail

binary=$(realpath "${1:?name the built program}")
out=${2:?name a directory for the package}
root=$(cd "$(dirname "$0")/.." && pwd)
version=${VERSION:-$("$binary" --version | awk '{print $2}')}
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$out" "$tree/DEBIAN"
umask 022

DESTDIR=$tree PREFIX=/usr "$root/scripts/install.sh" "$binary"
doc=$tree/usr/share/doc/mainstay
install -D -m 644 "$root/contrib/debian/copyright" "$doc/copyright"
# Pages lead to each other by their names.
for page in "$root"/docs/*.md "$root/README.md"; do
    install -m 644 "$page" "$doc/$(basename "$page")"
done
install -m 644 -t "$doc" "$root/docs/alerts.yml" "$root/docs/grafana.json"
install -D -m 644 -t "$doc/images" "$root"/docs/images/*.png
for page in "$root"/docs/errors/*.md "$root"/docs/spec/*.md; do
    folder=$(basename "$(dirname "$page")")
    install -D -m 644 "$page" "$doc/$folder/$(basename "$page")"
done
{
    echo "mainstay ($version) unstable; urgency=medium"
    echo
    echo "  * Built from the sources of this version; their history says what has changed."
    echo
    echo " -- Mainstay <maintainers@mainstay.invalid>  $(date -R --date="@${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}")"
} >"$work/changelog"
gzip -9n "$work/changelog"
install -m 644 "$work/changelog.gz" "$doc/changelog.gz"

# The oldest C library that has what the program uses.
libc=$(objdump -T "$tree/usr/bin/mainstay" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
cat >"$tree/DEBIAN/control" <<END
Package: mainstay
Version: $version
Architecture: $architecture
Maintainer: Mainstay <maintainers@mainstay.invalid>
Installed-Size: $(du -k -s --exclude=DEBIAN "$tree" | cut -f1)
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1, init-system-helpers (>= 1.54), kmod
Recommends: xfsprogs
Suggests: fuse3, nbd-client, resource-agents
Section: admin
Priority: optional
Description: replicated block devices with failover of services
 Mainstay keeps a database running when the machine under it dies. It replicates
 block devices synchronously between nodes, decides by quorum which node may
 write, and starts the database, its file system and its floating address there.
 .
 It runs in user space and needs no kernel module of its own and no other
 cluster manager.
END
(cd "$tree" && find etc -type f -printf '/%p\n' | sort) >"$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "$root/contrib/debian/$script" "$tree/DEBIAN/$script"
done
(cd "$tree" && find . -path ./DEBIAN -prune -o -path ./etc -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
package=$out/mainstay_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$tree" "$package" >/dev/null
echo "$package"
