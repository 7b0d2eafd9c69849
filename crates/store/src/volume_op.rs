//! Groups: contiguous writes to a volume that are gathered from memory and from the journal.
//!
//! No two groups in flight overlap, because disks may execute them in any order.

use crate::{Op, OpId, Output, Store};
use bytes::Bytes;
use mainstay_types::{BLOCK_BYTES, VolumeId};

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
    /// At this offset of the journal.
    InJournal {
        offset: u64,
        len: u64,
    },
}

#[derive(Debug)]
pub struct Group {
    pub owner: Owner,
    pub volume: VolumeId,
    /// First block, and one past the last.
    pub first: u64,
    pub end: u64,
    pieces: Vec<Piece>,
    reads_left: usize,
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
        pieces: Vec<Piece>,
    ) {
        let id = GroupId(self.next_op);
        self.next_op += 1;
        let mut reads_left = 0;
        for (piece, what) in pieces.iter().enumerate() {
            if let &Piece::InJournal { offset, len } = what {
                reads_left += 1;
                let op = self.start(Op::Piece { group: id, piece, len });
                self.outputs.push_back(Output::JournalRead { op, offset, len });
            }
        }
        let zero = pieces.is_empty();
        self.groups.insert(id, Group { owner, volume, first, end: first + blocks, pieces, reads_left });
        if zero {
            let op = self.start(Op::Volume(id));
            let (offset, len) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
            self.outputs.push_back(Output::VolumeZero { op, volume, offset, len });
        } else if reads_left == 0 {
            self.submit_group(id);
        }
    }

    pub(crate) fn piece_read(&mut self, id: GroupId, piece: usize, bytes: Bytes) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.pieces[piece] = Piece::Here(bytes);
        group.reads_left -= 1;
        if group.reads_left == 0 {
            self.submit_group(id);
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
                Piece::InJournal { .. } => None,
            })
            .collect::<Vec<_>>();
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
