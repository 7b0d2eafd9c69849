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
mkdir -p corpus/{frame,batch,superblock,versions,service,nbd,vhost_user,session,proofs}
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
# A monitor that asks for features, sets memory of one region, and a ring.
{
    printf '\1\0\0\0\1\0\0\0\0\0\0\0'
    printf '\5\0\0\0\11\0\0\0\50\0\0\0\1\0\0\0\0\0\0\0'
    head -c 32 /dev/zero
    printf '\10\0\0\0\1\0\0\0\10\0\0\0\0\0\0\0\200\0\0\0'
    printf '\31\0\0\0\1\0\0\0\15\0\0\0\40\0\0\0\1\0\0\0\0\0\0\0\1'
    printf '\37\0\0\0\1\0\0\0\24\0\0\0'
    head -c 20 /dev/zero
} >corpus/vhost_user/start
# An NBD client that asks what there is, agrees on structured replies and goes to an export. The target takes from the first
# byte whether TLS is to come first.
nbd_client() { # FIRST_BYTE STARTTLS
    printf '%b\0\0\0\3%b' "$1" "$2"
    printf 'IHAVEOPT\0\0\0\3\0\0\0\0IHAVEOPT\0\0\0\10\0\0\0\0'
    printf 'IHAVEOPT\0\0\0\12\0\0\0\37\0\0\0\4db/0\0\0\0\1\0\0\0\17base:allocation'
    printf 'IHAVEOPT\0\0\0\7\0\0\0\14\0\0\0\4db/0\0\1\0\3'
}
nbd_client '\0' '' >corpus/nbd/go
nbd_client '\1' 'IHAVEOPT\0\0\0\5\0\0\0\0' >corpus/nbd/tls
# The first byte of a session says who speaks and what is allowed, the second how bytes are cut; then come changes on the way.
printf '\4\377' >corpus/session/members
printf '\7\0' >corpus/session/clear
printf '\4\7\2\0\20\1' >corpus/session/changed
printf '\0\377\26\3\1\0\5\1\0\0\1\3' >corpus/session/stranger
printf 'mainstay://0000000000c0ffee/node/3' >corpus/proofs/name
printf 'mst_join_0123456789abcdef_' >corpus/proofs/token
printf 'mst_api_0123456789abcdef_' >corpus/proofs/api
