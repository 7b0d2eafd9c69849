//! Groups: contiguous writes to a volume that are gathered from memory and from the journal. What is read from the
//! journal is checked against the checksum of its entry; damage is the end of the store (R12, R13).
//!
//! No two groups in flight overlap, because disks may execute them in any order.

use crate::read::Part;
use crate::{Op, OpId, Output, PAYLOADS_READ_BYTES_MAX, Store};
use bytes::Bytes;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, VolumeId, reach};
use smallvec::SmallVec;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);

/// Who wants a group written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    Pass,
    Install { extent: u32 },
}

/// A part of a group's bytes.
#[derive(Clone, Debug)]
pub enum Piece {
    Here(Bytes),
    InJournal(Part),
}

pub type Pieces = SmallVec<[Piece; 1]>;

#[derive(Debug)]
pub struct Group {
    pub owner: Owner,
    pub volume: VolumeId,
    /// First block, and one past the last.
    pub first: u64,
    pub end: u64,
    pieces: Pieces,
    /// From this piece on nothing was read yet.
    next: usize,
    /// Payloads that are being read, in bytes.
    reading_bytes: u64,
}

impl Store {
    /// Whether blocks of the range are being written.
    pub(crate) fn conflicts(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        self.groups.values().any(|g| g.volume == volume && g.first < end && first < g.end)
    }

    pub(crate) fn groups_of_pass(&self) -> usize {
        self.groups.values().filter(|group| group.owner == Owner::Pass).count()
    }

    /// Starts writing `blocks` blocks; no pieces means zeroes.
    pub(crate) fn write_group(
        &mut self,
        owner: Owner,
        volume: VolumeId,
        first: u64,
        blocks: u64,
        pieces: Pieces,
    ) {
        let id = GroupId(self.next_op);
        self.next_op += 1;
        let zero = pieces.is_empty();
        let end = first + blocks;
        self.groups.insert(id, Group { owner, volume, first, end, pieces, next: 0, reading_bytes: 0 });
        if zero {
            reach!("store: a range of a volume is zeroed");
            let op = self.start(Op::Volume(id));
            let blocks = if planted(Bug::ZeroesTooShort) && blocks > 1 { blocks - 1 } else { blocks };
            let (offset, len) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
            self.outputs.push_back(Output::VolumeZero { op, volume, offset, len });
        } else {
            self.gather_group(id);
        }
    }

    /// Reads what is in the journal, as much as may be read at once, and submits the group when all of it is here.
    fn gather_group(&mut self, id: GroupId) {
        while let Some(group) = self.groups.get_mut(&id) {
            let piece = group.next;
            match group.pieces.get(piece) {
                Some(Piece::Here(_)) => group.next += 1,
                Some(Piece::InJournal(Part { payload, .. })) => {
                    let (offset, len) = (payload.offset, payload.len);
                    if group.reading_bytes > 0 && group.reading_bytes + len > PAYLOADS_READ_BYTES_MAX {
                        reach!("store: a group waits for payloads before it reads more");
                        return;
                    }
                    group.next += 1;
                    group.reading_bytes += len;
                    let op = self.start(Op::Piece { group: id, piece, len });
                    self.outputs.push_back(Output::JournalRead { op, offset, len });
                }
                None if group.reading_bytes == 0 => return self.submit_group(id),
                None => return,
            }
        }
    }

    pub(crate) fn piece_read(&mut self, id: GroupId, piece: usize, bytes: Bytes) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Piece::InJournal(Part { payload, offset, len }) = group.pieces[piece] else { return };
        // No need to ask whether the ring still holds it: what a pass writes is not behind the checkpoint.
        match payload.part(&bytes, offset, len) {
            Ok(part) => {
                group.pieces[piece] = Piece::Here(part);
                group.reading_bytes -= payload.len;
                self.gather_group(id);
            }
            Err(damaged) => self.fail(damaged.to_string()),
        }
    }

    fn submit_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (volume, offset) = (group.volume, group.first * BLOCK_BYTES);
        let pieces = std::mem::take(&mut group.pieces);
        let data = pieces
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Here(bytes) => Some(bytes),
                Piece::InJournal(_) => None,
            })
            .collect();
        let op: OpId = self.start(Op::Volume(id));
        self.outputs.push_back(Output::VolumeWrite { op, volume, offset, data });
    }

    pub(crate) fn group_written(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.touched.insert(group.volume);
        match group.owner {
            Owner::Pass => self.destaged(&group),
            Owner::Install { extent } => self.install_part_written(group.volume, extent),
        }
    }
}
