//! Where committed content and log batches are to be found.

use crate::journal::Held;
use crate::overlay::{Content, Overlay, Run};
use crate::{Gone, LogPiece, LogSource, Payload, Segment, Segments, Source, Store};
use bytes::Bytes;
use mainstay_codec::EntryDesc;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::sums::KeptSums;
use mainstay_types::{BLOCK_BYTES, Index, Range, VolumeId, reach};

/// Where the bytes of a run of the overlay are.
pub enum Found<'a> {
    Zero,
    Memory(InMemory<'a>),
    Journal(Part),
}

/// A part of the payload of an entry in memory, in bytes.
pub struct InMemory<'a> {
    entry: &'a EntryDesc,
    skip: usize,
    len: usize,
}

impl InMemory<'_> {
    pub fn bytes(&self) -> Bytes {
        self.entry.payload.slice(self.skip..self.skip + self.len)
    }

    /// Sums of the blocks of this part.
    pub fn sums(&self) -> Option<KeptSums> {
        self.entry.kept_sums((self.skip / BLOCK_BYTES as usize) as u32)
    }
}

/// A part of a payload in the journal.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub payload: Payload,
    /// Offset within the journal, in bytes.
    pub offset: u64,
    pub len: u64,
}

impl Store {
    pub(crate) fn find_content(&self, run: &Run) -> Found<'_> {
        let Content::Data { at } = run.content else { return Found::Zero };
        let len = run.blocks * BLOCK_BYTES;
        let placed = self.journal.find(run.index);
        let Some((placed, Held::Memory(batch))) = placed.map(|placed| (placed, &placed.held)) else {
            let payload = self.journal.payload(run.index, at);
            // Proof: a batch is forgotten only behind the checkpoint, and the overlay names none of
            // these.
            let payload = payload.expect("what the overlay names is in the ring");
            return Found::Journal(Part { payload, offset: at, len });
        };
        let entry = &batch.entries[(run.index.0 - batch.first.0) as usize];
        let skip = (at - placed.offset - HEADER_BLOCK_BYTES as u64 - entry.payload_at) as usize;
        Found::Memory(InMemory { entry, skip, len: len as usize })
    }

    /// The committed content of a range as consecutive segments that cover it.
    ///
    /// A segment in the volume may be read at leisure: blocks that change there meanwhile hold
    /// entries that were committed meanwhile.
    #[must_use]
    pub fn read(&self, range: Range) -> Segments {
        // Beyond the end of the file, while it is being made larger, there is nothing yet.
        let file = self.files.get(usize::from(range.volume.0)).map_or(0, |bytes| bytes / BLOCK_BYTES);
        let mut segments = Segments::new();
        self.look(
            &self.overlay,
            0,
            (range.volume, file),
            (range.first_block(), range.end_block()),
            &mut segments,
        );
        segments
    }

    /// Looks for the blocks `first..end` of a volume in `top`. Blocks that are not there it looks
    /// for below: in the layers except for the newest `seen`, then in the file, which has `file`
    /// blocks.
    fn look(
        &self,
        top: &Overlay,
        seen: usize,
        (volume, file): (VolumeId, u64),
        (first, end): (u64, u64),
        segments: &mut Segments,
    ) {
        let push = |segments: &mut Segments, first: u64, end: u64, source| {
            if first < end {
                let (offset, len) = (first * BLOCK_BYTES, (end - first) * BLOCK_BYTES);
                segments.push(Segment { offset, len, source });
            }
        };
        let under =
            |segments: &mut Segments, first: u64, end: u64| match self.layers.len().checked_sub(seen + 1) {
                _ if first >= end => {}
                Some(next) => {
                    self.look(&self.layers[next].overlay, seen + 1, (volume, file), (first, end), segments);
                }
                None => {
                    for (first, end, filled) in self.fills.split(volume, first, end) {
                        let source = if filled { Source::Zero } else { Source::Volume };
                        push(segments, first, end.min(file), source);
                        push(segments, first.max(file), end, Source::Zero);
                    }
                }
            };
        let mut at = first;
        for (block, run) in top.within(volume, first, end) {
            under(segments, at, block);
            at = block + run.blocks;
            if seen > 0 {
                reach!("store: a read looks under what came after a snapshot");
            }
            let source = match self.find_content(&run) {
                Found::Zero => Source::Zero,
                Found::Memory(found) => Source::Memory(found.bytes()),
                Found::Journal(Part { payload, offset, .. }) => {
                    reach!("store: a read must look into the journal");
                    Source::Journal { offset, payload }
                }
            };
            push(segments, block, at, source);
        }
        under(segments, at, end);
    }

    /// The batches from `from` on, at most `max_bytes` of them but at least one if there is one.
    /// Batches that are not durable here yet are among them. Empty when the log ends right before
    /// `from`.
    pub fn log_plan(&self, from: Index, max_bytes: u64) -> Result<Vec<LogPiece>, Gone> {
        if from == self.end.index.next() {
            return Ok(Vec::new());
        }
        if self.restarting() || from > self.end.index {
            return Err(Gone);
        }
        let mut pieces = Vec::new();
        let mut bytes = 0;
        let placed = self.journal.from(from).map(|placed| LogPiece {
            first: placed.first,
            last: placed.last,
            chain: placed.chain,
            len: placed.len,
            source: match &placed.held {
                Held::Memory(batch) => LogSource::Memory(batch.clone()),
                Held::Ring(_) => {
                    reach!("store: a peer is fed with what left memory");
                    LogSource::Journal { offset: placed.offset }
                }
                Held::Volume(ranges) => {
                    reach!("store: a peer is fed with what was filled");
                    LogSource::Volume { offset: placed.offset, ranges: ranges.clone() }
                }
            },
        });
        let queued = self.queue.iter().filter(|batch| batch.last() >= from).map(|batch| LogPiece {
            first: batch.first,
            last: batch.last(),
            chain: batch.chain,
            len: batch.journal_len(),
            source: LogSource::Memory(batch.clone()),
        });
        for piece in placed.chain(queued) {
            if pieces.is_empty() && piece.first > from {
                reach!("store: the asked entries were overwritten");
                return Err(Gone);
            }
            bytes += piece.len;
            if bytes > max_bytes && !pieces.is_empty() {
                break;
            }
            pieces.push(piece);
        }
        if pieces.is_empty() { Err(Gone) } else { Ok(pieces) }
    }

    /// Whether the ring still holds this payload in its place. If so, a read that does not fit
    /// means damage.
    #[must_use]
    pub fn holds(&self, payload: &Payload) -> bool {
        self.journal.payload(payload.index, payload.offset) == Some(*payload)
    }

    /// The last entry that a checkpoint covers: what it and those before it changed is in the
    /// volumes.
    #[must_use]
    pub fn checkpoint(&self) -> Index {
        self.superblock.checkpoint.at.index
    }

    /// Tells that the payload of the batch with this first entry is not where
    /// [`LogSource::Volume`] said. Returns whether that is damage: behind the checkpoint it may
    /// have changed, and then the journal holds neither it nor what came before any more.
    pub fn filled_gone(&mut self, first: Index) -> bool {
        if self.journal.find(first).is_none() {
            return false;
        }
        self.journal.forget(first);
        let damage = self.journal.find(first).is_some();
        if !damage {
            reach!("store: what a filled batch held has changed behind the checkpoint");
        }
        damage
    }

    /// Whether the ring still holds the batch with this entry, so that a read of it was valid.
    #[must_use]
    pub fn retains(&self, index: Index) -> bool {
        self.journal.find(index).is_some()
    }
}
