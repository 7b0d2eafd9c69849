#!/usr/bin/env bash
# Gives each fuzz target valid inputs to begin with: the golden bytes of the codec, and the service file of the README.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
golden=../crates/codec/tests/golden
bytes() { # bytes FILE: the bytes that its hexadecimal digits stand for
    local hex
    hex=$(tr -d ' \n\r\t' <"$1")
    printf '%b' "$(sed 's/../\\x&/g' <<<"$hex")"
}
mkdir -p corpus/{frame,batch,superblock,versions,service}
for file in "$golden"/frame_*.hex; do
    bytes "$file" >"corpus/frame/$(basename "$file" .hex)"
done
# A journal record is a header block and its payload, which the golden file does not hold: any bytes do, because the
# target makes the checksums right.
{ bytes "$golden/journal_header_block.hex"; head -c 16384 /dev/zero; } >corpus/batch/record
bytes "$golden/superblock.hex" >corpus/superblock/block
# The target takes the number of versions and of the page from the first three bytes.
{ printf '\x05\x00\x00'; bytes "$golden/versions_page.hex"; } >corpus/versions/page
sed -n '/^```toml/,/^```/p' ../README.md | sed '/^```/d' >corpus/service/readme
