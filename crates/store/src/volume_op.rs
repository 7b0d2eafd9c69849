//! Groups: contiguous writes to a volume that are gathered from memory and from the journal.
//! Content that is read from the journal is checked against the checksum of its entry. Damage ends
//! the use of the store (R12, R13).
//!
//! No two groups in flight overlap, because disks may execute them in any order.

use crate::read::Part;
use crate::{Op, OpId, Output, PAYLOADS_READ_BYTES_MAX, Store};
use bytes::Bytes;
use mainstay_codec::sums::{DAMAGED_BLOCK, KeptSums};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, Extent, VolumeId, reach};
use smallvec::SmallVec;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);

/// Origin of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    Pass,
    Install {
        extent: Extent,
    },
    /// Zeroes for what was filled and cut.
    Undo,
}

/// A part of a group's bytes.
#[derive(Clone, Debug)]
pub enum Piece {
    Here {
        bytes: Bytes,
        /// Sums of its blocks, if the payload that it comes from has them.
        sums: Option<KeptSums>,
    },
    InJournal(Part),
}

pub type Pieces = SmallVec<[Piece; 1]>;

/// Content that a group gives to its blocks.
#[derive(Clone, Debug)]
pub enum Filling {
    Zeroes {
        free: bool,
    },
    Data(Pieces),
    /// No replica has the content of the blocks: reading them is an error from now on.
    Damaged,
}

#[derive(Debug)]
pub struct Group {
    pub owner: Owner,
    pub volume: VolumeId,
    /// First block, and one past the last.
    pub first: u64,
    pub end: u64,
    pieces: Pieces,
    /// Its operation, from its submission until it succeeds: without space in the pool it is
    /// submitted anew.
    pub operation: Option<Filling>,
    /// Pages of sums that must be read before.
    sums_missing: usize,
    /// There was no space for it, and whether it waits to be tried anew.
    stalled: bool,
    waits: bool,
    /// From this piece on nothing was read yet.
    next: usize,
    /// Payloads that are being read, in bytes.
    reading_bytes: u64,
}

/// Leaves out what is behind the first `bytes` bytes.
fn keep_first(data: &mut SmallVec<[Bytes; 1]>, mut bytes: u64) {
    data.retain(|piece| {
        let here = bytes.min(piece.len() as u64);
        piece.truncate(here as usize);
        bytes -= here;
        here > 0
    });
}

impl Store {
    /// Whether blocks of the range are being written.
    pub(crate) fn conflicts(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        self.groups.values().any(|g| g.volume == volume && g.first < end && first < g.end)
            || self.fills.touches(volume, first, end)
    }

    /// A long stretch of zeroes counts as one large write.
    pub(crate) fn group_bytes(&self, blocks: u64) -> u64 {
        (blocks * BLOCK_BYTES).min(self.tuning.destage_write_bytes_max)
    }

    /// Starts writing `blocks` blocks.
    pub(crate) fn write_group(
        &mut self,
        owner: Owner,
        volume: VolumeId,
        first: u64,
        blocks: u64,
        filling: Filling,
    ) {
        let id = GroupId(self.next_op);
        self.next_op += 1;
        let end = first + blocks;
        let (pieces, operation) = match filling {
            Filling::Data(pieces) => (pieces, None),
            zeroes @ Filling::Zeroes { .. } => {
                reach!("store: a range of a volume is zeroed");
                (Pieces::new(), Some(zeroes))
            }
            Filling::Damaged => {
                reach!("store: blocks are held as damaged");
                (Pieces::new(), Some(Filling::Damaged))
            }
        };
        let whole = operation.is_some();
        let sums_missing = self.hold_sums(id, volume, first, end);
        let group = Group {
            owner,
            volume,
            first,
            end,
            pieces,
            operation,
            sums_missing,
            stalled: false,
            waits: false,
            next: 0,
            reading_bytes: 0,
        };
        if owner == Owner::Pass {
            self.of_pass.0 += 1;
            self.of_pass.1 += self.group_bytes(blocks);
        }
        self.groups.insert(id, group);
        if whole { self.submit_whole(id) } else { self.gather_group(id) }
    }

    /// Reads from the journal, as much as may be read at once. Submits the group when all of it is
    /// here.
    fn gather_group(&mut self, id: GroupId) {
        while let Some(group) = self.groups.get_mut(&id) {
            let piece = group.next;
            match group.pieces.get(piece) {
                Some(Piece::Here { .. }) => group.next += 1,
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
                None if group.reading_bytes == 0 => {
                    group.operation = Some(Filling::Data(std::mem::take(&mut group.pieces)));
                    return self.submit_whole(id);
                }
                None => return,
            }
        }
    }

    pub(crate) fn piece_read(&mut self, id: GroupId, piece: usize, bytes: Bytes) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Piece::InJournal(Part { payload, offset, len }) = group.pieces[piece] else { return };
        // The ring still holds it for certain: a pass writes only entries that are not behind the
        // checkpoint.
        match payload.part_and_sums(&bytes, offset, len) {
            Ok((bytes, sums)) => {
                group.pieces[piece] = Piece::Here { bytes, sums };
                group.reading_bytes -= payload.len;
                self.gather_group(id);
            }
            Err(damaged) => self.fail(damaged.to_string()),
        }
    }

    pub(crate) fn page_of_group_read(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.sums_missing -= 1;
            self.submit_whole(id);
        }
    }

    /// Submits a group for which everything is here.
    fn submit_whole(&mut self, id: GroupId) {
        let whole = |group: &Group| group.operation.is_some() && group.sums_missing == 0;
        if self.groups.get(&id).is_some_and(whole) {
            self.submit_group(id);
        }
    }

    fn submit_group(&mut self, id: GroupId) {
        self.volume_changes();
        let op: OpId = self.start(Op::Volume(id));
        let Some(group) = self.groups.get(&id) else { return };
        let (volume, offset, blocks) = (group.volume, group.first * BLOCK_BYTES, group.end - group.first);
        self.outputs.push_back(match &group.operation {
            Some(Filling::Zeroes { free }) => {
                let blocks = if planted(Bug::ZeroesTooShort) && blocks > 1 { blocks - 1 } else { blocks };
                Output::VolumeZero { op, volume, offset, len: blocks * BLOCK_BYTES, free: *free }
            }
            Some(Filling::Damaged) => {
                let lost = Bytes::from_static(&DAMAGED_BLOCK);
                let data = (0..blocks).map(|_| lost.clone()).collect();
                Output::VolumeWrite { op, volume, offset, data, durable: false }
            }
            Some(Filling::Data(pieces)) => {
                let here = |piece: &Piece| match piece {
                    Piece::Here { bytes, .. } => Some(bytes.clone()),
                    Piece::InJournal(_) => None,
                };
                let mut data: SmallVec<[Bytes; 1]> = pieces.iter().filter_map(here).collect();
                if planted(Bug::DestagedInPart) && group.owner == Owner::Pass && blocks > 1 {
                    keep_first(&mut data, blocks / 2 * BLOCK_BYTES);
                }
                Output::VolumeWrite { op, volume, offset, data, durable: false }
            }
            None => unreachable!("what is not gathered is not submitted"),
        });
    }

    pub(crate) fn group_written(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        if group.owner == Owner::Pass {
            self.of_pass.0 -= 1;
            self.of_pass.1 -= self.group_bytes(group.end - group.first);
        }
        self.touched.insert(group.volume);
        self.note_sums(&group);
        match group.owner {
            Owner::Pass => self.destaged(&group),
            Owner::Install { extent } => self.install_part_written(group.volume, extent),
            Owner::Undo => self.part_undone(),
        }
    }

    /// The pool has no space for a group. Its content is in the journal, or comes from another
    /// replica. So only the blocks of the group are in doubt, and they are written whole when there
    /// is space again.
    pub(crate) fn group_stalled(&mut self, id: GroupId) {
        reach!("store: a write waits for space in the pool");
        if let Some(group) = self.groups.get_mut(&id) {
            (group.stalled, group.waits) = (true, true);
        }
        self.give_up_kept();
    }

    /// Whether something waits for space in the pool, or is being tried anew. Meanwhile journal
    /// space is not freed, and so [`Store::room`] ends.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        !self.grow_stalled.is_empty()
            || self.restore_stalled
            || self.sums.stalled
            || self.groups.values().any(|group| group.stalled)
    }

    /// Tries anew what found no space in the pool.
    pub fn retry(&mut self) {
        self.retry_grows();
        self.retry_restore();
        self.sums.stalled = false;
        let waiting =
            self.groups.iter_mut().filter_map(|(id, group)| std::mem::take(&mut group.waits).then_some(*id));
        let ids: SmallVec<[GroupId; 8]> = waiting.collect();
        for id in ids {
            self.submit_group(id);
        }
    }
}
