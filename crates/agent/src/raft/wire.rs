//! Messages of other agents' Raft cores: looked at before they are decoded (ADR 25).
//!
//! RUSTSEC-2024-0437 says of every `protobuf` before 3.7.2 that unknown groups in groups overflow
//! its stack. Version 2.28, which raft 0.7 needs, answers them with an error, but has no release
//! any more in which a fault would be mended. So bytes of a peer reach its decoder only if they
//! consist of the fields in `eraftpb.proto` of raft 0.7, each with its own wire type. That file has
//! no groups, and its messages nest four levels deep.

use protobuf::Message as _;
use raft::eraftpb::{EntryType, Message};

/// Shape of a field.
enum Shape {
    /// A varint: integers, booleans and enumerations.
    Number,
    /// Varints, one by one or packed.
    Numbers,
    Bytes,
    Of(&'static [(u32, Shape)]),
}

use Shape::{Bytes, Number, Numbers, Of};

const ENTRY: &[(u32, Shape)] = &[(1, Number), (2, Number), (3, Number), (4, Bytes), (5, Number), (6, Bytes)];
const CONF_STATE: &[(u32, Shape)] = &[(1, Numbers), (2, Numbers), (3, Numbers), (4, Numbers), (5, Number)];
const SNAPSHOT_METADATA: &[(u32, Shape)] = &[(1, Of(CONF_STATE)), (2, Number), (3, Number)];
const SNAPSHOT: &[(u32, Shape)] = &[(1, Bytes), (2, Of(SNAPSHOT_METADATA))];
const MESSAGE: &[(u32, Shape)] = &[
    (1, Number),
    (2, Number),
    (3, Number),
    (4, Number),
    (5, Number),
    (6, Number),
    (7, Of(ENTRY)),
    (8, Number),
    (9, Of(SNAPSHOT)),
    (10, Number),
    (11, Number),
    (12, Bytes),
    (13, Number),
    (14, Number),
    (15, Number),
    (16, Number),
];
const CONF_CHANGE: &[(u32, Shape)] = &[(1, Number), (2, Number), (3, Number), (4, Bytes)];
const CONF_CHANGE_SINGLE: &[(u32, Shape)] = &[(1, Number), (2, Number)];
const CONF_CHANGE_V2: &[(u32, Shape)] = &[(1, Number), (2, Of(CONF_CHANGE_SINGLE)), (3, Bytes)];

/// Why bytes are no message of a Raft core.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("a message of the Raft core ends in the middle of a field")]
    Short,
    #[error(
        "a message of the Raft core has a field {field} with wire type {wire_type}, which is not one of its fields"
    )]
    Field { field: u64, wire_type: u64 },
    #[error("a message of the Raft core cannot be decoded: {0}")]
    Decoder(#[from] protobuf::ProtobufError),
}

/// Decodes what a peer sent.
///
/// # Errors
/// When it is not a message of a Raft core.
pub(super) fn decode(bytes: &[u8]) -> Result<Message, WireError> {
    check(bytes, MESSAGE)?;
    let mut message = Message::default();
    message.merge_from_bytes(bytes)?;
    for entry in &message.entries {
        // The core decodes these itself when they are proposed, and the driver when they are
        // applied.
        match entry.get_entry_type() {
            EntryType::EntryNormal => {}
            EntryType::EntryConfChange => check(&entry.data, CONF_CHANGE)?,
            EntryType::EntryConfChangeV2 => check(&entry.data, CONF_CHANGE_V2)?,
        }
    }
    Ok(message)
}

/// Recurses once for each level of the schema, not of the bytes.
fn check(mut bytes: &[u8], fields: &[(u32, Shape)]) -> Result<(), WireError> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let (field, wire_type) = (tag >> 3, tag & 7);
        let shape = fields.iter().find(|(number, _)| u64::from(*number) == field).map(|(_, shape)| shape);
        match (shape, wire_type) {
            (Some(Number | Numbers), 0) => drop(varint(&mut bytes)?),
            (Some(Bytes), 2) => drop(block(&mut bytes)?),
            (Some(Numbers), 2) => {
                let mut packed = block(&mut bytes)?;
                while !packed.is_empty() {
                    varint(&mut packed)?;
                }
            }
            (Some(Of(inner)), 2) => check(block(&mut bytes)?, inner)?,
            _ => return Err(WireError::Field { field, wire_type }),
        }
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(WireError::Short)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(WireError::Short)
}

fn block<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], WireError> {
    let length = usize::try_from(varint(bytes)?).map_err(|_| WireError::Short)?;
    let (block, rest) = bytes.split_at_checked(length).ok_or(WireError::Short)?;
    *bytes = rest;
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::{
        ConfChange, ConfChangeSingle, ConfChangeV2, ConfState, Entry, MessageType, Snapshot, SnapshotMetadata,
    };

    /// A message with every field of the schema, each different from its default.
    fn full() -> Message {
        let conf_state = ConfState {
            voters: vec![1, 2],
            learners: vec![300],
            voters_outgoing: vec![4],
            learners_next: vec![5],
            auto_leave: true,
            ..ConfState::default()
        };
        let mut metadata = SnapshotMetadata { index: 6, term: 7, ..SnapshotMetadata::default() };
        metadata.set_conf_state(conf_state);
        let mut snapshot = Snapshot { data: vec![8; 200].into(), ..Snapshot::default() };
        snapshot.set_metadata(metadata);
        let single = ConfChangeSingle { node_id: 9, ..ConfChangeSingle::default() };
        let change = ConfChange { id: 10, node_id: 11, context: vec![12].into(), ..ConfChange::default() };
        let change_v2 = ConfChangeV2 {
            changes: vec![single].into(),
            context: vec![13].into(),
            ..ConfChangeV2::default()
        };
        let entries = [
            (EntryType::EntryNormal, vec![14]),
            (EntryType::EntryConfChange, change.write_to_bytes().unwrap()),
            (EntryType::EntryConfChangeV2, change_v2.write_to_bytes().unwrap()),
        ];
        let entry = |(entry_type, data): (EntryType, Vec<u8>)| Entry {
            entry_type,
            term: 15,
            index: u64::MAX,
            data: data.into(),
            context: vec![16].into(),
            sync_log: true,
            ..Entry::default()
        };
        let mut message = Message {
            to: 17,
            from: 18,
            term: 19,
            log_term: 20,
            index: 21,
            entries: entries.map(entry).to_vec().into(),
            commit: 22,
            commit_term: 23,
            request_snapshot: 24,
            reject: true,
            reject_hint: 25,
            context: vec![26].into(),
            deprecated_priority: 27,
            priority: -28,
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgAppend);
        message.set_snapshot(snapshot);
        message
    }

    #[test]
    fn a_message_with_every_field_is_decoded_as_it_was() {
        let message = full();
        let bytes = message.write_to_bytes().unwrap();
        assert_eq!(decode(&bytes).unwrap(), message);
        assert_eq!(decode(&[]).unwrap(), Message::default());
    }

    /// Groups in groups, at each place where bytes of a peer reach the decoder.
    #[test]
    fn groups_are_refused_at_every_level() {
        let of = |field: u8, body: &[u8]| {
            let mut bytes = vec![field << 3 | 2];
            let mut length = body.len();
            while length > 0x7f {
                bytes.push((length & 0x7f) as u8 | 0x80);
                length >>= 7;
            }
            bytes.push(length as u8);
            bytes.extend_from_slice(body);
            bytes
        };
        for depth in [1, 500_000] {
            // Field 100, which no message has.
            let groups = [0xa3, 0x06].repeat(depth);
            let entry = |kind: u8| of(7, &[&[1 << 3, kind][..], &of(4, &groups)].concat());
            for (place, bytes) in [
                ("message", groups.clone()),
                ("entry", of(7, &groups)),
                ("snapshot", of(9, &groups)),
                ("metadata", of(9, &of(2, &groups))),
                ("configuration", of(9, &of(2, &of(1, &groups)))),
                ("change of members", entry(1)),
                ("change of several members", entry(2)),
            ] {
                let error = decode(&bytes).unwrap_err();
                assert!(matches!(error, WireError::Field { field: 100, wire_type: 3 }), "{place}: {error}");
            }
            decode(&entry(0)).unwrap();
        }
    }

    #[test]
    fn damaged_messages_are_errors_and_nothing_else() {
        let whole = full().write_to_bytes().unwrap();
        for length in 0..whole.len() {
            drop(decode(&whole[..length]));
        }
        for position in 0..whole.len() {
            for value in 0..=u8::MAX {
                let mut bytes = whole.clone();
                bytes[position] = value;
                drop(decode(&bytes));
            }
        }
        for bytes in
            [&[0x80; 11][..], &[0xff; 10], &[7 << 3 | 2, 5, 1], &[2 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0]]
        {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
