#!/usr/bin/env bash
# `make bench-vm`: the kernel's DRBD 8.4 beside Mainstay on ublk, both ends of both in one emulated machine. Wants mainstay built
# for release. Everything there is bound by the instructions that the one emulated processor executes, so only ratios count.
#
#   bench/vm/run.sh [--rounds N] [--seconds N] [--mib N] [--only CASES] [--kernel 6.12|newest] [--disks ram|virtio]
#                   [--timed] [--profile] [--out DIR]
#
# Disks are the machine's memory, which needs no flush, or with `virtio` emulated ones with a volatile cache. The machine's clock
# ticks by instructions, 2 ns each, so that other load of the host is not in the figures; with --timed by the host's time.
# --profile shows where the time of a write goes, after the measurement.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PATH:/usr/sbin:/sbin:/usr/lib/drbd:/lib/drbd"
mainstay="${CARGO_TARGET_DIR:-target}/release/mainstay"

die() {
    echo "bench-vm: $*" >&2
    exit 2
}

rounds=3 seconds=2 mib=128 kernel=6.12 disks=ram clock=counted cases=rw4k-qd1,rw4k-qd32,rw4k-fdatasync profile=""
out="${CARGO_TARGET_DIR:-target}/bench-vm/$(date -u +%Y-%m-%dT%H-%M-%S)"
# Without the string instructions of newer processors, which copy by the byte here: one emulated step for each.
machine=(--qemu -cpu --qemu max,-erms,-fsrm)
while [ $# -gt 0 ]; do
    case "$1" in
        --timed) clock=timed && shift && continue ;;
        --profile) profile=yes && shift && continue ;;
    esac
    [ $# -ge 2 ] || die "$1 needs a value, or is no option; see the top of bench/vm/run.sh"
    case "$1" in
        --rounds) rounds=$2 ;;
        --seconds) seconds=$2 ;;
        --mib) mib=$2 ;;
        --only) cases=$2 ;;
        --kernel) kernel=$2 ;;
        --disks) disks=$2 ;;
        --out) out=$2 ;;
        *) die "there is no option $1; see the top of bench/vm/run.sh" ;;
    esac
    shift 2
done
command -v drbdsetup-84 >/dev/null || die "DRBD's programs are missing: scripts/deps.sh bench-vm"
for program in "$mainstay" "$mainstay-lab"; do [ -x "$program" ] || die "there is no $program"; done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/terms" <<END
ROUNDS=$rounds SECONDS_EACH=$seconds MIB=$mib CASES=$cases DISKS=$disks PROFILE=$profile
END
[ "$clock" = timed ] || machine+=(--qemu -icount --qemu shift=1)
case "$disks" in
    virtio) for _ in 1 2 3 4 5; do machine+=(--disk 1024); done ;;
    ram) machine+=(--module brd) ;;
    *) die "disks are virtio or ram" ;;
esac
[ -z "$profile" ] || machine+=(--binary perf --file bench/vm/profile.sh=/profile.sh)
mkdir -p "$out"
status=0
scripts/vm.sh run --kernel "$kernel" --script bench/vm/guest.sh --memory 3072 --seconds 3000 \
    --module virtio_pci --module virtio_blk --module xfs --module ublk_drv --module drbd \
    --binary "$mainstay" --binary "$mainstay-lab" --binary fio --binary mkfs.xfs --binary drbdsetup-84 --binary drbdmeta \
    --file tests/vm/node.sh=/node.sh --file "$work/terms=/terms" "${machine[@]}" | tee "$out/console" || status=$?
# What the machine has shown of its files.
for file in report.md samples.jsonl; do
    tr -d '\r' <"$out/console" | sed -n "/^---- $file\$/,/^---- end of $file\$/p" | sed '1d;$d' >"$out/$file"
done
[ "$status" -eq 0 ] || exit "$status"
echo "results: $out"
