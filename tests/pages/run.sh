#!/usr/bin/env bash
# Power cuts of a MariaDB that writes each page once: no page is torn (S730), and no write of a page begins or ends in one (S731).
# Three copies, ext4 with clusters of a page, `innodb_doublewrite=OFF`, tables several times as large as the buffer pool, and a load
# that flushes all the time. Beside it files are written in MiBs to where nothing was, as a restore writes them: these go straight to
# the volume (S753), and those that were durable are whole after the cut. Root.
# Arguments: the directory with the built programs, the number of power cuts, and words:
# - `mysql`: the database is a MySQL with `innodb_doublewrite=DETECT_ONLY`. It notes which pages it writes, and looks at these when it
#   recovers. A torn one ends the server with an error. So does a new page whose first write never came; see `noted.py`.
# - `untruth` plants a torn page. In MySQL nothing but the server itself looks for it.
# - `scattered` lays the files out in pieces of 8 KiB, so that power cuts tear pages.
# The last two have to end with a fault. SEED=N repeats the moments of the cuts. A run that finds a fault leaves its lab as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."
built=$(realpath "${1:?name the directory with the built programs}")
rounds=${2:-100}
mode='' engine=mariadb programs=''
for word in "${@:3}"; do
    case $word in
    mysql) engine=mysql ;;
    untruth | scattered) mode=$word ;;
    *) echo "what is $word? The words are mysql, untruth and scattered" >&2 && exit 2 ;;
    esac
done
[ $engine = mariadb ] || programs=$(scripts/mysql.sh)
seed=${SEED:-$(($(date +%s) % 30000))}
lab=${MAINSTAY_LAB:-pages}
root=/srv/pages
address=10.213.0.100
here=$PWD/tests/pages
labs=${MAINSTAY_LAB_DIR:-/var/tmp/mainstay-lab}
export MAINSTAY_LAB_DIR=$labs
export PATH="$built:$PATH:/usr/sbin:/sbin"
work=$(mktemp -d /var/tmp/mainstay-pages.XXXXXX)
tables=4
rows=50000
# Of the buffer pool, in bytes: under load, and while CHECK TABLE looks from index to index.
small=$((16 << 20))
large=$((256 << 20))
keep=
background=()
cuts=0 all_files=0 all_filled=0 all_pages=0 all_noted=0 all_absent=0 torn=0 bad_tables=0 lost=0 all_writes=0 off_page=0 flushed_pages=0

# shellcheck disable=SC2329
end() {
    for process in "${background[@]}"; do kill "$process" 2>/dev/null || true; done
    if [ -z "$keep" ]; then
        mainstay lab down --name "$lab" >/dev/null 2>&1 || true
        rm -rf "$work"
    fi
}
trap end EXIT
trap 'summary; exit 130' INT TERM
step() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
summary() {
    echo "$cuts power cuts, $all_pages pages looked at after them ($flushed_pages were flushed before), $torn torn;" \
        "$all_writes writes of data files in the journals, $off_page off a page; $bad_tables tables with errors;" \
        "$lost acknowledged rows lost; $all_files durable files of a restore compared, and $all_filled entries of the journals whose payload is in the volume; SEED=$seed$([ $engine = mariadb ] || echo "; MySQL itself looked at $all_noted pages, and $all_absent new ones were never written")"
}
# A fault: the lab stays, with all replicas.
fault() {
    keep=1
    touch "$work/stop"
    mainstay snapshot create pages "fault-$(date +%s)" --lab "$lab" >/dev/null 2>&1 || true
    summary
    fail "$*; the lab $lab stays up, and $work has what was kept. Remove them with: mainstay lab down --name $lab; rm -rf $work"
}

on() { mainstay lab exec --name "$lab" "$@" </dev/null; }
client() { mainstay lab exec --name "$lab" client -- "$@" </dev/null; }
sql() {
    client mariadb --no-defaults --host=$address --user=mainstay --password=mainstay --connect-timeout=1 \
        --skip-column-names --batch --execute="$1"
}
field() { python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }
status() { mainstay resource status pages --lab "$lab" --json; }
flushed() { sql "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_flushed'" | cut -f2; }
seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

# Waits until a command succeeds.
until_true() { # SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt "$end" ] || fault "$what"
        sleep 0.2
    done
}
in_sync() { [ "$(status | field health)" = ok ]; }

# The device, the file system and every data file are asked.
atomic() { # WHEN
    local node
    node=$(status | field primary)
    if on "$node" -- mainstay check atomic $root/data >"$work/atomic"; then
        [ "$mode" != scattered ] || fault "$1: mainstay check atomic says yes on $node"
    else
        [ "$mode" = scattered ] || fault "$1: mainstay check atomic does not say yes on $node: $(cat "$work/atomic")"
    fi
    echo "$1: $(head -1 "$work/atomic")"
}

# Writes files of 8 MiB, 25 at most, and says of each when it is durable.
restore() { # NODE ROUND
    # shellcheck disable=SC2016
    on "$1" -- bash -ec '
        mkdir -p "$0/restored"
        for file in $(seq 25); do
            yes "file $file of round $1" | head -c 8M |
                dd of="$0/restored/$file" bs=1M iflag=fullblock oflag=direct conv=fsync status=none
            sync "$0/restored"
            echo "$file"
            sleep 0.1
        done' $root "$2"
}
# Those that were durable are there. Their places are given back, so that the next ones may be filled too.
restored() { # NODE ROUND
    # shellcheck disable=SC2016,SC2046
    on "$1" -- bash -ec '
        root=$0 round=$1
        shift
        for file; do yes "file $file of round $round" | head -c 8M | cmp - "$root/restored/$file"; done
        rm -rf "$root/restored"
        fstrim "$root"' $root "$2" $(cat "$work/restored") >"$work/compared" 2>&1 ||
        fault "round $2: a file of a restore that was durable is not whole: $(cat "$work/compared")"
    files=$(wc -l <"$work/restored")
    all_files=$((all_files + files))
}

# sysbench oltp_write_only in odd rounds, updates of an indexed column in even ones; beside it rows that are noted when they are
# acknowledged.
load() { # ROUND NODE
    local kind=oltp_write_only
    [ $(($1 % 2)) = 1 ] || kind=oltp_update_index
    rm -f "$work/stop"
    client timeout 120 sysbench "$kind" "${bench[@]}" --threads=8 --time=120 run >"$work/sysbench.log" 2>&1 &
    sysbench=$!
    client ledger run $address:3306 "$work/notes" "$work/stop" 2 5 >"$work/ledger.log" 2>&1 &
    ledger=$!
    restore "$2" "$1" >"$work/restored" 2>/dev/null &
    restore=$!
    background=("$sysbench" "$ledger" "$restore")
}
unload() {
    touch "$work/stop"
    kill $sysbench 2>/dev/null || true
    wait $sysbench $ledger $restore 2>/dev/null || true
    background=()
}
bench=(--db-driver=mysql --mysql-host="$address" --mysql-user=mainstay --mysql-password=mainstay --tables="$tables"
    --table-size="$rows" --rand-type=uniform)

# MySQL has found a torn page itself, or a torn note of its pages.
told() { # NODES THAT LIVE
    local node
    [ $engine = mysql ] || return 0
    for node in $1; do
        if on "$node" -- grep -ih corrupt /var/lib/mainstay/services/pages/mysql.log >"$work/told" 2>/dev/null; then
            torn=$((torn + 1))
            on "$node" -- cat $root/planted 2>/dev/null | sed 's/^/planted: /' || true
            cat "$work/told"
            fault "round $round: MySQL tells of a torn page on $node"
        fi
    done
}

# The database serves again, or a page is torn.
served() { # NODES THAT LIVE
    local end=$((SECONDS + 90)) node
    until sql 'SELECT 1' >/dev/null 2>&1; do
        told "$1"
        for node in $1; do
            if on "$node" -- test -s /run/pages/torn 2>/dev/null; then
                torn=$((torn + $(on "$node" -- cat /run/pages/counted | cut -d' ' -f2)))
                on "$node" -- cp -r /run/pages "$work/torn-on-$node"
                cat "$work/torn-on-$node/torn"
                fault "round $round: files with a torn page on $node"
            fi
        done
        [ $SECONDS -lt $end ] || fault "round $round: the database does not serve 90 s after the power cut"
        sleep 0.2
    done
    told "$1"
}

# CHECK TABLE of every table, each line as a table, a kind and a text.
check_tables() {
    if [ $engine = mysql ]; then
        sql "CHECK TABLE $(seq -f 'sbtest.sbtest%.0f,' "$tables" | tr '\n' ' ') ledger.entries EXTENDED" | python3 -c '
import json, sys
print(json.dumps([[said[0], *said[2:]] for said in (line.rstrip("\n").split("\t") for line in sys.stdin)]))'
    else
        client ledger check $address:3306
    fi
}

# Compares the journal of the node that lost its power with the places of the data files. The node's disk is not changed: a copy is
# mounted, because what the file system has in its own log alone has to be recovered first. It is mounted in a namespace of its own: a
# copy of the mount in another one would keep the disk in use.
journal() { # NODE SERVING PAGE
    mkdir -p "$work/disk"
    rm -f "$work/entries.json" "$work/extents"
    cp --sparse=always "$labs/$lab/$1/disk.img" "$work/disk.img" || return
    # shellcheck disable=SC2016
    unshare --mount --propagation private sh -ec '
        mount -o nouuid,loop "$0" "$1"
        mainstay inspect "$1"/pools/default/pages-* --entries --json >"$2" || [ $? = 4 ]
        umount "$1"' "$work/disk.img" "$work/disk" "$work/entries.json" || return
    rm "$work/disk.img"
    on "$2" -- cat /run/pages/extents >"$work/extents" || return
    python3 "$here/journal.py" "$work/entries.json" "$work/extents" "$3" 2>"$work/off-page"
}

# A snapshot in the middle of the load, mounted on a secondary: its pages are whole too.
snapshot() { # SECONDARY
    local counted
    mainstay snapshot create pages middle --lab "$lab" >/dev/null
    # shellcheck disable=SC2016
    counted=$(on "$1" -- env CHECKSUM="${programs:+$programs/}innochecksum" bash -ec '
        clone=/var/lib/mainstay/pools/default/clones/middle
        mainstay snapshot clone pages middle $clone >/dev/null
        mkdir -p /run/clone
        mount -o loop "$(find $clone -type f -size +512M | head -1)" /run/clone
        failed=0 pages=0
        for file in $(find /run/clone/data -name "*.ibd" -o -name "ibdata*" -o -name "undo*"); do
            "$CHECKSUM" "$file" >&2 || failed=$((failed + 1))
            pages=$((pages + $(stat -c %s "$file") / 16384))
        done
        umount /run/clone
        [ $failed != 0 ] || rm -rf $clone
        echo "$pages $failed"') || fault "round $round: the snapshot cannot be looked at on $1"
    read -r snapshot_pages failed <<<"$counted"
    torn=$((torn + failed)) all_pages=$((all_pages + snapshot_pages))
    [ "$failed" = 0 ] || fault "round $round: files with a torn page in the snapshot, kept in the pool of $1 below clones"
    mainstay snapshot delete pages middle --lab "$lab" >/dev/null
}

round() {
    local files filled victim serving others pause began flushed pages found looked absent entries writes off errors verdict noted returned note=
    began=$EPOCHREALTIME
    victim=$(status | field primary)
    others=$(tr ' ' '\n' <<<'n1 n2 n3' | grep -vx "$victim" | tr '\n' ' ')
    flushed=$(flushed)
    load "$round" "$victim"
    pause=$((1000 + RANDOM % 4000))
    sleep "$(printf '%d.%03d' $((pause / 1000)) $((pause % 1000)))"
    if [ $((round % 10)) = 0 ]; then
        snapshot "${others%% *}"
        note="; $snapshot_pages pages of a snapshot on ${others%% *}, $failed torn"
    fi
    flushed=$(($(flushed) - flushed))
    flushed_pages=$((flushed_pages + flushed))
    [ "$mode" != untruth ] || on "$victim" -- sh -c "touch $root/plant; sync -f $root"
    for node in $others; do on "$node" -- rm -rf /run/pages; done
    mainstay lab kill "$victim" --name "$lab" >/dev/null
    cuts=$((cuts + 1))
    local cut=$EPOCHREALTIME
    served "$others"
    cut=$(seconds_since "$cut")
    unload
    serving=$(status | field primary)
    read -r pages found looked absent <<<"$(on "$serving" -- cat /run/pages/counted)"
    all_pages=$((all_pages + pages)) torn=$((torn + found)) all_noted=$((all_noted + looked))
    all_absent=$((all_absent + ${absent:-0}))
    [ $engine = mariadb ] || note="$note; MySQL itself looked at $looked pages, and $absent new ones were never written"
    [ "$found" = 0 ] || fault "round $round: $found files with a torn page"
    read -r entries filled writes off <<<"$(journal "$victim" "$serving" 16384)"
    restored "$serving" "$round"
    all_filled=$((all_filled + filled)) all_writes=$((all_writes + writes)) off_page=$((off_page + off))
    [ "$off" = 0 ] || [ "$mode" = scattered ] ||
        fault "round $round: $off writes of data files begin or end in a page, in $work/entries.json: $(cat "$work/off-page")"
    sql "SET GLOBAL innodb_buffer_pool_size = $large"
    check_tables >"$work/check.json" || fault "round $round: CHECK TABLE ends with an error"
    errors=$(python3 -c 'import json, sys
bad = [said for said in json.load(open(sys.argv[1])) if said[1:] != ["status", "OK"]]
print(len(bad))
print(*bad, sep="\n", file=sys.stderr)' "$work/check.json")
    bad_tables=$((bad_tables + errors))
    [ "$errors" = 0 ] || fault "round $round: CHECK TABLE finds errors"
    sql "SET GLOBAL innodb_buffer_pool_size = $small"
    verdict=$(client ledger verify $address:3306 "$work/notes")
    lost=$((lost + $(field lost_rows <<<"$verdict")))
    noted=$(field acknowledged_rows <<<"$verdict")
    grep -q '"lost_rows":0,.*"wrong_rows":0,"unasked_rows":0' <<<"$verdict" || fault "round $round: $verdict"
    returned=$EPOCHREALTIME
    mainstay lab start "$victim" --name "$lab" >"$work/start.log" 2>&1 || fault "round $round: $(cat "$work/start.log")"
    until_true 120 "round $round: $victim is not in sync again after 120 s" in_sync
    echo "round $round: $victim lost its power after $pause ms and $flushed flushed pages, $serving served after $cut s;" \
        "$pages pages, $found torn; journal of $victim: $entries entries, $filled in the volume, $files files whole, $writes writes of data files, $off off a page;" \
        "$(grep -o "status" "$work/check.json" | wc -l) tables, $errors with errors; $noted rows, $(field lost_rows <<<"$verdict") lost; in sync again after" \
        "$(seconds_since "$returned") s; $(seconds_since "$began") s$note"
}

command -v innochecksum >/dev/null || fail "there is no innochecksum: apt-get install mariadb-server-core"
RANDOM=$seed
step "a lab of three nodes, three copies, $engine without doublewrite; ${mode:-clusters of 16 KiB}; SEED=$seed"
mainstay lab up --name "$lab" --nodes 3 >/dev/null
mainstay resource create pages --lab "$lab" --size 1GiB --journal 512MiB --replicas n1,n2,n3 --preferred n1 --wait-s 60 >/dev/null
device=/run/mainstay/dev/pages/0
if [ "$mode" = scattered ]; then
    on n1 -- sh -ec "mkfs.ext4 -q -E nodiscard $device; mkdir -p $root; mount $device $root
        python3 $here/scatter.py $root; umount $root"
else
    on n1 -- mkfs.ext4 -q -E nodiscard -O bigalloc -C 16384 $device
fi
# The options that both databases have, and those of one.
options=("--no-defaults" "--user=mysql" "--datadir=$root/data" "--tmpdir=$root/tmp" "--socket=$root/data/$engine.sock"
    "--pid-file=$root/data/$engine.pid" "--port=3306" "--skip-name-resolve" "--skip-log-bin" "--performance-schema=OFF"
    "--max-connections=200" "--innodb-flush-method=O_DIRECT" "--innodb-page-size=16k" "--innodb-flush-log-at-trx-commit=1"
    "--innodb-buffer-pool-size=$small" "--innodb-io-capacity=2000" "--innodb-io-capacity-max=4000" "--innodb-flush-neighbors=0")
if [ $engine = mysql ]; then
    doublewrite=DETECT_ONLY
    options=("$programs/mysqld" "${options[@]}" "--innodb-redo-log-capacity=32M" "--mysqlx=OFF" "--secure-file-priv=NULL")
else
    doublewrite=OFF
    options=("/usr/sbin/mariadbd" "${options[@]}" "--innodb-log-file-size=16M" "--innodb-undo-tablespaces=3")
fi
options+=("--innodb-doublewrite=$doublewrite")
cat >"$work/pages.toml" <<TOML
name = "pages"
resource = "pages"
[mount]
path = "$root"
fstype = "ext4"
options = "noatime,lazytime"
[[process]]
name = "$engine"
prepare = ["$here/prepare.sh", "$root"${programs:+, "\"$programs\""}]
command = [$(printf '"%s", ' "${options[@]}")]
probe = { $engine = { socket = "$root/data/$engine.sock" } }
[vip]
address = "$address/24"
TOML
mainstay service apply "$work/pages.toml" --lab "$lab" >/dev/null
until_true 90 "the database does not start" sql 'SELECT 1'
sql "SHOW GLOBAL VARIABLES LIKE 'innodb_doublewrite'" | grep -qx "innodb_doublewrite.$doublewrite" ||
    fail "innodb_doublewrite is not $doublewrite"
status | grep -q '"atomic_write_max": 458752' ||
    fail "the device promises no whole writes: $(mainstay resource status pages --lab "$lab")"
atomic "at the beginning"
client sysbench oltp_write_only "${bench[@]}" --threads=2 prepare >"$work/prepare.log" 2>&1 || fail "$(cat "$work/prepare.log")"
atomic "after the load"

for round in $(seq "$rounds"); do round; done
[ -z "$mode" ] || fault "$mode was not found in $rounds rounds"
[ "$all_writes" -gt 0 ] || fault "no journal has a write of a data file"
[ "$all_files" -gt 0 ] && [ "$all_filled" -gt 0 ] || fault "no file of a restore was durable, or none went straight to the volume"
[ $engine = mariadb ] || [ "$all_noted" -gt 0 ] || fault "MySQL has looked at no page"
# A comparison that finds nothing must be able to find something: no more than every fourth page lies on a multiple of 64 KiB.
read -r _ _ _ off _ <<<"$(python3 "$here/journal.py" "$work/entries.json" "$work/extents" 65536 2>/dev/null)"
[ "$off" -gt 0 ] || fault "the comparison of journal and files does not find writes that are off a page of 64 KiB"
atomic "at the end"
summary
echo "passed"
