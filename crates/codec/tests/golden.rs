//! The bytes of every message and record, as files. A change of them is a change of the protocol or
//! of what lies on users' disks, so it must be meant: raise the version, keep the old decoder, and
//! run `MAINSTAY_BLESS=1 cargo test -p mainstay-codec --test golden` to write the files anew.

#![allow(clippy::disallowed_methods, reason = "the golden bytes are files")]

mod support;

use bytes::Bytes;
use mainstay_codec::old_map::{OldMapHeader, decode_old_sector, encode_old_sector};
use mainstay_codec::superblock::Superblock;
use mainstay_codec::versions::{decode_page, encode_page};
use mainstay_codec::{Batch, JournalLabel, LocalHeader};
use mainstay_types::Index;
use std::fmt::Write as _;
use std::path::PathBuf;
use support::samples::{
    LOCAL, OLD_MAP_SECTOR, OLD_MAP_SECTOR_WORDS, VERSIONS, VERSIONS_PAGE, envelope, journal_label, messages,
    old_map_header, sample_batch, superblock,
};
use support::{receive, wire};

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(32) {
        for byte in line {
            write!(out, "{byte:02x}").expect("writing to a string");
        }
        out.push('\n');
    }
    out
}

fn unhex(text: &str) -> Bytes {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |digit: u8| (digit as char).to_digit(16).expect("filtered to hex digits") as u8;
    digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

/// Compares with the file, and returns the file's bytes so that decoding is tested on what is
/// checked in.
fn golden(name: &str, bytes: &[u8]) -> Bytes {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(&path, hex(bytes)).expect("the golden directory is writable");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(text, hex(bytes), "the bytes of {name} changed; see the head of this file");
    unhex(&text)
}

#[test]
fn frames_keep_their_bytes() {
    for (name, message) in messages() {
        let envelope = envelope(message);
        let file = golden(&format!("frame_{name}"), &wire(&envelope));
        let decoded = receive(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(wire(&decoded), file, "{name}");
    }
}

#[test]
fn journal_records_keep_their_bytes() {
    let batch = sample_batch();
    let file = golden("journal_header_block", &batch.header_block(LOCAL));
    let payload = batch.payload.concat();
    let decoded = Batch::decode(&file, &payload.into()).expect("the checked-in record");
    assert_eq!(decoded.entries, batch.entries);
    assert_eq!(LocalHeader::decode(&file, decoded.chain), Ok(LOCAL));
}

#[test]
fn a_replicas_metadata_keeps_its_bytes() {
    let superblock = superblock();
    let file = golden("superblock", &superblock.encode());
    assert_eq!(Superblock::decode(&file), Ok(superblock));

    let label = journal_label();
    let file = golden("journal_label", &label.encode());
    assert_eq!(JournalLabel::decode(&file), Ok(label));

    let header = old_map_header();
    let file = golden("old_map_header", &header.encode());
    assert_eq!(OldMapHeader::decode(&file), Ok(header));
    let mut sector = Vec::new();
    encode_old_sector(&mut sector, OLD_MAP_SECTOR, &OLD_MAP_SECTOR_WORDS);
    let file = golden("old_map_sector", &sector);
    let words = decode_old_sector(&file, OLD_MAP_SECTOR).expect("the checked-in sector");
    assert_eq!(words[..2], OLD_MAP_SECTOR_WORDS);

    let mut page = Vec::new();
    let crc = encode_page(&mut page, VERSIONS_PAGE, &VERSIONS);
    let file = golden("versions_page", &page);
    let mut found = [Index(0); 3];
    assert_eq!(decode_page(&file, VERSIONS_PAGE, &mut found), Ok(crc));
    assert_eq!(found, VERSIONS);
}

#[test]
fn every_golden_file_has_a_test() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut known: Vec<String> = messages().iter().map(|(name, _)| format!("frame_{name}.hex")).collect();
    let records = [
        "journal_header_block",
        "journal_label",
        "old_map_header",
        "old_map_sector",
        "superblock",
        "versions_page",
    ];
    known.extend(records.map(|name| format!("{name}.hex")));
    for file in std::fs::read_dir(dir).expect("the golden directory") {
        let name = file.expect("an entry").file_name().into_string().expect("an ASCII name");
        assert!(known.contains(&name), "{name} is compared with nothing");
    }
}
