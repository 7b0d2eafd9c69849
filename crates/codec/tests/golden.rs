//! The bytes of every message and record, as files. A change of them is a change of the protocol or of
//! what lies on users' disks, so it must be meant: raise the version, keep the old decoder, and run
//! `MAINSTAY_BLESS=1 cargo test -p mainstay-codec --test golden` to write the files anew.

#![allow(clippy::disallowed_methods, reason = "the golden bytes are files")]

mod support;

use bytes::Bytes;
use mainstay_codec::superblock::{Checkpoint, DataState, Superblock, Void};
use mainstay_codec::versions::{decode_page, encode_page};
use mainstay_codec::{
    Batch, EntryKind, Envelope, JournalLabel, LocalHeader, LogState, Message, NewEntry, Reject, ReplicaData,
};
use mainstay_types::{
    Chain, ConfigVersion, Epoch, Incarnation, Index, NodeId, Position, Range, ResourceId, VolumeId,
};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use support::{pattern, receive, wire};

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

/// Compares with the file, and returns the file's bytes so that decoding is tested on what is checked in.
fn golden(name: &str, bytes: &[u8]) -> Bytes {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(&path, hex(bytes)).expect("the golden directory is writable");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(text, hex(bytes), "the bytes of {name} changed; see the head of this file");
    unhex(&text)
}

fn sample_batch() -> Batch {
    let entry = |kind, volume, offset, len, session| NewEntry {
        kind,
        range: Range { volume: VolumeId(volume), offset, len },
        payload: if kind == EntryKind::Write { pattern(session, len as usize) } else { Bytes::new() },
        session,
        request: session * 2,
    };
    Batch::seal(
        ResourceId(7),
        Epoch(3),
        Index(41),
        Chain(0x0123_4567_89ab_cdef),
        Index(40),
        vec![
            entry(EntryKind::EpochStart, 0, 0, 0, 0),
            entry(EntryKind::Write, 1, 8192, 4096, 5),
            entry(EntryKind::Discard, 0, 1 << 20, 1 << 21, 6),
            entry(EntryKind::WriteZeroes, 2, 4096, 4096, 9),
        ],
    )
}

fn messages() -> Vec<(&'static str, Message)> {
    let at = Position::new(3, 40);
    let log_state = LogState {
        data: ReplicaData::Inconsistent,
        end: at,
        chain: Chain(99),
        commit: Index(39),
        base: Index(12),
        epochs: vec![(Epoch(1), Index(20)), (Epoch(3), Index(40))],
    };
    vec![
        ("hello", Message::Hello { cluster: 0xfeed, node: NodeId(1), to: NodeId(2) }),
        ("ping", Message::Ping),
        ("pong", Message::Pong),
        ("attach", Message::Attach),
        ("attach_reply", Message::AttachReply(log_state)),
        ("cut", Message::Cut { to: at, chain: Some(Chain(5)) }),
        ("cut_no_chain", Message::Cut { to: at, chain: None }),
        ("cut_reply", Message::CutReply { end: at }),
        ("append", Message::Append(Arc::new(sample_batch()))),
        ("ack", Message::Ack { durable: Index(44) }),
        ("commit", Message::Commit { commit: Index(44) }),
        ("copy_begin", Message::CopyBegin { at, chain: Chain(6) }),
        ("copy_begin_reply", Message::CopyBeginReply { at }),
        (
            "copy_extent",
            Message::CopyExtent {
                volume: VolumeId(1),
                extent: 9,
                version: Index(30),
                at: Index(44),
                data: pattern(4, 4096),
            },
        ),
        ("copy_extent_ack", Message::CopyExtentAck { volume: VolumeId(1), extent: 9 }),
        ("copy_end", Message::CopyEnd { need: Index(44) }),
        ("copy_end_reply", Message::CopyEndReply),
        ("rejected_epoch", Message::Rejected(Reject::Epoch(Epoch(4)))),
        ("rejected_unknown", Message::Rejected(Reject::Unknown)),
        ("rejected_gap", Message::Rejected(Reject::Gap(at))),
        ("rejected_chain", Message::Rejected(Reject::Chain)),
        ("rejected_failed", Message::Rejected(Reject::Failed)),
    ]
}

#[test]
fn frames_keep_their_bytes() {
    for (name, message) in messages() {
        let envelope = Envelope {
            resource: ResourceId(7),
            epoch: Epoch(3),
            version: ConfigVersion(11),
            incarnation: Incarnation(0xd15c),
            message,
        };
        let file = golden(&format!("frame_{name}"), &wire(&envelope));
        let decoded = receive(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(wire(&decoded), file, "{name}");
    }
}

#[test]
fn journal_records_keep_their_bytes() {
    let batch = sample_batch();
    let local = LocalHeader { generation: 17, durable_before: Index(38) };
    let file = golden("journal_header_block", &batch.header_block(local));
    let payload = batch.payload.concat();
    let decoded = Batch::decode(&file, &payload.into()).expect("the checked-in record");
    assert_eq!(decoded.entries, batch.entries);
    assert_eq!(LocalHeader::decode(&file, decoded.chain), Ok(local));
}

#[test]
fn a_replicas_metadata_keeps_its_bytes() {
    let superblock = Superblock {
        sequence: 9,
        resource: ResourceId(7),
        incarnation: Incarnation(0xd15c),
        volumes: vec![1 << 30, 1 << 20],
        journal_bytes: 1 << 26,
        promised: Epoch(4),
        generation: 17,
        voids: vec![Void { generation: 16, end: Index(30) }],
        checkpoint: Checkpoint { at: Position::new(3, 36), chain: Chain(77), offset: 8192 },
        commit: Index(40),
        data: DataState::Inconsistent { base: Index(12) },
        epochs: vec![(Epoch(1), Index(20)), (Epoch(3), Index(36))],
        versions_slot: 1,
    };
    let file = golden("superblock", &superblock.encode());
    assert_eq!(Superblock::decode(&file), Ok(superblock));

    let label = JournalLabel {
        resource: ResourceId(7),
        incarnation: Incarnation(0xd15c),
        journal_bytes: 1 << 26,
        volatile: true,
    };
    let file = golden("journal_label", &label.encode());
    assert_eq!(JournalLabel::decode(&file), Ok(label));

    let versions = [Index(3), Index(0), Index(36)];
    let mut page = Vec::new();
    encode_page(&mut page, 2, &versions);
    let file = golden("versions_page", &page);
    let mut found = [Index(0); 3];
    assert_eq!(decode_page(&file, 2, &mut found), Ok(()));
    assert_eq!(found, versions);
}

#[test]
fn every_golden_file_has_a_test() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut known: Vec<String> = messages().iter().map(|(name, _)| format!("frame_{name}.hex")).collect();
    let records = ["journal_header_block", "journal_label", "superblock", "versions_page"];
    known.extend(records.map(|name| format!("{name}.hex")));
    for file in std::fs::read_dir(dir).expect("the golden directory") {
        let name = file.expect("an entry").file_name().into_string().expect("an ASCII name");
        assert!(known.contains(&name), "{name} is compared with nothing");
    }
}
