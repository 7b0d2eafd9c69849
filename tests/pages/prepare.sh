#!/usr/bin/env bash
# Runs on a node before each start of the database, with its file system mounted. Makes the database the first time. Afterwards it
# looks at every page of every data file as the power cut has left it, before the database mends anything. A page whose checksum
# does not hold is kept in /run/pages with its number, and the database is not started. Arguments: the file system's directory, and
# the directory with MySQL's programs. Without the second one, the database is MariaDB.
set -euo pipefail
root=$1
programs=${2:-}
here=$(dirname "$0")
data=$root/data
found=/run/pages
page=16384
# MySQL's own, because MariaDB's need not know its files.
checksum=${programs:+$programs/}innochecksum

make_data() {
    rm -rf "$data.new"
    install -d -m 1777 "$root/tmp"
    cat >"$root/initial.sql" <<'SQL'
FLUSH PRIVILEGES;
CREATE DATABASE sbtest;
CREATE DATABASE ledger;
CREATE TABLE ledger.entries (number BIGINT UNSIGNED PRIMARY KEY, content CHAR(64) NOT NULL) ENGINE=InnoDB;
CREATE USER 'mainstay'@'%' IDENTIFIED BY 'mainstay';
GRANT ALL ON *.* TO 'mainstay'@'%';
SQL
    if [ -n "$programs" ]; then
        "$programs/mysqld" --no-defaults --initialize-insecure --user=mysql --datadir="$data.new" --tmpdir="$root/tmp" \
            --init-file="$root/initial.sql"
    else
        TMPDIR=$root/tmp mariadb-install-db --no-defaults --user=mysql --datadir="$data.new" --innodb-undo-tablespaces=3 \
            --skip-test-db --skip-name-resolve --auth-root-authentication-method=normal --extra-file="$root/initial.sql" >/dev/null
    fi
    sync -f "$root"
    mv "$data.new" "$data"
    sync -f "$root"
}

# For `untruth`. In MariaDB 4 KiB in the middle of a page become those of the page before, as in a page that was written in part. In
# MySQL that happens to a page that the server looks at itself, and the server is left to find it.
plant() {
    mv "$root/plant" "$root/planted"
    if [ -n "$programs" ]; then
        python3 "$here/noted.py" look "$data"
        python3 "$here/noted.py" tear "$data" >"$root/planted"
        cat "$root/planted"
    else
        dd if="$data/sbtest/sbtest1.ibd" of="$data/sbtest/sbtest1.ibd" bs=4096 skip=397 seek=401 count=1 conv=notrunc,fsync \
            status=none
    fi
}

if [ ! -d "$data" ]; then
    make_data
    exit 0
fi
[ ! -e "$root/plant" ] || plant
[ -z "$programs" ] || [ ! -e "$root/planted" ] || exit 0

rm -rf "$found.new" "$found"
mkdir "$found.new"
find "$data" -type f \( -name '*.ibd' -o -name 'ibdata*' -o -name 'undo*' \) | sort >"$found.new/files"
# Where the files lie, in blocks of 4 KiB, for the comparison with the journal.
xargs -a "$found.new/files" filefrag -v -b4096 >"$found.new/extents"
pages=0 torn=0 noted=0
[ -z "$programs" ] || noted=$(python3 "$here/noted.py" look "$data")
while read -r file; do
    pages=$((pages + $(stat -c %s "$file") / page))
    if ! said=$("$checksum" "$file" 2>&1); then
        torn=$((torn + 1))
        number=$(grep -oiE 'page[ :]*[0-9]+' <<<"$said" | grep -oE '[0-9]+' | head -1)
        printf '%s: %s\n' "$file" "$said" >>"$found.new/torn"
        dd if="$file" of="$found.new/$(basename "$file").${number:-0}" bs=$page skip="${number:-0}" count=1 status=none
    fi
done <"$found.new/files"
echo "$pages $torn $noted" >"$found.new/counted"
mv "$found.new" "$found"
[ "$torn" = 0 ]
