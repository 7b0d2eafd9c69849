#!/usr/bin/env bash
# Fetches MySQL's server and client, which Debian 12 does not have, with all libraries that they need, and prints a directory with
# `mysqld`, `mysql`, `mysqladmin` and `innochecksum`. Nothing is installed. The cache is VM_DIR, target/vm if that is not set.
set -euo pipefail

cd "$(dirname "$0")/.."
cache=${VM_DIR:-${CARGO_TARGET_DIR:-target}/vm}
mkdir -p "$cache"
cache=$(realpath "$cache")

die() {
    echo "mysql: $*" >&2
    exit 1
}

# shellcheck source=scripts/suite.sh
. scripts/suite.sh

packages_of() { # PACKAGE...: these and what they need that is not there, from a state in which nothing is installed
    apt-get install --no-install-recommends --yes --print-uris "$@" | sed -n "s/^'[^']*' \\([^_]*\\)_.*/\\1/p"
}

directory=$cache/mysql
# A program of that suite runs with the loader and the libraries of that suite, wherever it is called.
program() { # PATH
    local program
    program=$directory/bin/$(basename "$1")
    [ ! -x "$program" ] || return 0
    cat >"$program.new" <<EOF
#!/bin/sh
exec $directory/usr/lib64/ld-linux-x86-64.so.2 --library-path \\
    $directory/usr/lib/x86_64-linux-gnu:$directory/usr/lib/mysql/private $directory/$1 "\$@"
EOF
    chmod +x "$program.new"
    mv "$program.new" "$program"
}

exec 9>"$cache/mysql.lock"
flock 9
if [ ! -e "$directory/version" ]; then
    echo "mysql: fetching MySQL" >&2
    (
        prepare_apt sid
        packages=$(packages_of mysql-server-core mysql-client-core)
        [ -n "$packages" ] || die "the suite has no MySQL"
        rm -rf "$directory.new"
        mkdir -p "$directory.new/debs" "$directory.new/bin"
        cd "$directory.new/debs"
        # shellcheck disable=SC2086
        unpack .. $packages
        cd ..
        rm -r debs
        cd ..
        rm -rf "$directory"
        mv "$directory.new" "$directory"
        program usr/sbin/mysqld
        version=$("$directory/bin/mysqld" --version)
        echo "$version" >"$directory/version"
    ) >&2
fi
for path in usr/sbin/mysqld usr/bin/mysql usr/bin/mysqladmin usr/bin/innochecksum; do program "$path"; done
cat "$directory/version" >&2
echo "$directory/bin"
