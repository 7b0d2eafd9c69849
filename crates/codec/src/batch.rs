//! The batch: one or more consecutive log entries of one epoch, the unit of journal writes, of
//! replication and of acknowledgement. A batch is sealed once, by the primary, and is then the same
//! bytes in every journal and on every connection.
//!
//! First comes a header block: 4096 bytes in a journal, only the used front of it on the wire. Then
//! the payloads follow in entry order, each a whole number of blocks. `docs/internals/formats.md`
//! has the layout, which a test compares with the encoded bytes.

use crate::sums::{KeptSums, payload_sums};
use crate::wire::{DecodeError, Reader};
use crate::{crc32c, crc64};
use bytes::Bytes;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, BLOCK_BYTES, Chain, ClientMark, EXTENT_BYTES, EntryKind, Epoch,
    Index, Position, REQUEST_BYTES_MAX, Range, ResourceId, SessionId, SnapshotId, VOLUME_BYTES_MAX,
    VOLUMES_MAX, VolumeId, reach,
};
use smallvec::SmallVec;
use std::sync::Arc;

pub const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"MSJB");
pub const BATCH_VERSION: u16 = 1;
/// Bytes of the header before the descriptors.
pub const BATCH_FIXED_BYTES: usize = 128;
pub const DESC_BYTES: usize = 40;
/// Bytes of the header block in a journal.
pub const HEADER_BLOCK_BYTES: usize = BLOCK_BYTES as usize;
/// Where the local area starts in the header block.
pub const LOCAL_OFFSET: usize = HEADER_BLOCK_BYTES - LOCAL_BYTES;
pub const LOCAL_BYTES: usize = 64;
/// Headers up to this length lie within their batch: those of three entries at most.
const HEADER_INLINE_BYTES: usize = 256;
const CRC_OFFSET: usize = 120;
const CHAIN_OFFSET: usize = 40;
const LOCAL_MAGIC: u32 = u32::from_le_bytes(*b"MSJL");

const _: () = assert!(BATCH_FIXED_BYTES + BATCH_ENTRIES_MAX * DESC_BYTES <= LOCAL_OFFSET);

/// Number of a kind of entry in a batch.
const fn kind_number(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Write => 1,
        EntryKind::Discard => 2,
        EntryKind::WriteZeroes => 3,
        EntryKind::EpochStart => 4,
        EntryKind::Resize => 5,
        EntryKind::Snapshot => 6,
        EntryKind::DropSnapshot => 7,
        EntryKind::Scrub => 8,
        EntryKind::Rollback => 9,
    }
}

const fn kind_of(number: u8) -> Option<EntryKind> {
    Some(match number {
        1 => EntryKind::Write,
        2 => EntryKind::Discard,
        3 => EntryKind::WriteZeroes,
        4 => EntryKind::EpochStart,
        5 => EntryKind::Resize,
        6 => EntryKind::Snapshot,
        7 => EntryKind::DropSnapshot,
        8 => EntryKind::Scrub,
        9 => EntryKind::Rollback,
        _ => return None,
    })
}

/// An entry that has no position yet.
#[derive(Clone, Debug)]
pub struct NewEntry {
    pub kind: EntryKind,
    /// Its parts depend on the kind:
    ///
    /// - an [`EntryKind::EpochStart`] has volume 0, offset 0, length 0;
    /// - an [`EntryKind::Resize`] has the new size as offset, and length 0;
    /// - snapshots have volume 0, their number as offset, and length 0 ([`snapshot_range`]);
    /// - an [`EntryKind::Scrub`] has an extent. The last one of a volume may be shorter;
    /// - an [`EntryKind::Rollback`] has its [`rollback_range`].
    pub range: Range,
    /// Exactly `range.len` bytes for a write, empty otherwise.
    pub payload: Bytes,
    /// Idempotence key of the client that asked; 0 for local frontends.
    pub session: u64,
    pub request: u64,
}

/// The range of an entry that takes or drops a snapshot.
#[must_use]
pub const fn snapshot_range(id: SnapshotId) -> Range {
    Range { volume: VolumeId(0), offset: id.0 as u64, len: 0 }
}

/// The range of an entry that rolls back: volume 0, length 0. The offset has the number of the
/// snapshot that it rolls back to and, in the upper half, that of the snapshot that it takes.
#[must_use]
pub const fn rollback_range(to: SnapshotId, mark: SnapshotId) -> Range {
    Range { volume: VolumeId(0), offset: to.0 as u64 | (mark.0 as u64) << 32, len: 0 }
}

/// The two numbers in the offset of an entry that rolls back.
const fn rolled_back(offset: u64) -> (SnapshotId, SnapshotId) {
    (SnapshotId(offset as u32), SnapshotId((offset >> 32) as u32))
}

impl EntryDesc {
    /// The sums of the blocks of the payload from `first` on. `None` if the payload is not here.
    #[must_use]
    pub fn kept_sums(&self, first: u32) -> Option<KeptSums> {
        KeptSums::of_payload(self.payload.len() as u64, self.payload_crc, self.block_sums.as_ref(), first)
    }

    /// The entry without the bytes of its payload.
    #[must_use]
    pub fn without_payload(&self) -> Self {
        Self { payload: Bytes::new(), block_sums: None, ..*self }
    }

    /// The snapshot that this entry takes or drops.
    #[must_use]
    pub fn snapshot(&self) -> Option<SnapshotId> {
        if let Some((_, mark)) = self.rollback() {
            return Some(mark);
        }
        let of_snapshot = matches!(self.kind, EntryKind::Snapshot | EntryKind::DropSnapshot);
        // The number fits: `violation` has seen to it.
        of_snapshot.then_some(SnapshotId(self.range.offset as u32))
    }

    /// The snapshot that this entry rolls back to, and the one that it takes of that.
    #[must_use]
    pub fn rollback(&self) -> Option<(SnapshotId, SnapshotId)> {
        (self.kind == EntryKind::Rollback).then(|| rolled_back(self.range.offset))
    }
}

/// A decoded entry of a batch. Its index is the batch's first index plus its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryDesc {
    pub kind: EntryKind,
    pub range: Range,
    /// Where the payload starts within the batch's payload area, in bytes.
    pub payload_at: u64,
    /// A reference into the batch's payload; empty unless a write.
    pub payload: Bytes,
    /// CRC-32C of the payload; 0 unless a write.
    pub payload_crc: u32,
    /// Sums of the blocks of the payload, if it has several and is here. They come from the pass
    /// over its bytes that made or checked `payload_crc`, and are neither sent nor in the journal.
    pub block_sums: Option<Arc<[u32]>>,
    pub session: u64,
    pub request: u64,
}

/// A sealed batch. Cheap to share behind an `Arc`; never changed after it was made. One of a single
/// entry, as a lone writer causes, takes no memory beyond itself and the payload.
#[derive(Clone, Debug)]
pub struct Batch {
    pub resource: ResourceId,
    pub epoch: Epoch,
    pub first: Index,
    pub prev_chain: Chain,
    pub chain: Chain,
    /// The primary's commit index when it sealed the batch.
    pub commit: Index,
    pub entries: SmallVec<[EntryDesc; 1]>,
    /// The used front of the header block.
    pub header: SmallVec<[u8; HEADER_INLINE_BYTES]>,
    /// The payload area as one or more pieces, in order.
    pub payload: SmallVec<[Bytes; 1]>,
    /// Sum of the lengths of `payload`; a multiple of the block size.
    pub payload_len: u64,
}

impl Batch {
    /// Seals `entries` into a batch.
    ///
    /// # Panics
    /// On entries that violate the limits: they were checked when they were admitted, so this is a
    /// programmer's error.
    #[must_use]
    pub fn seal(
        resource: ResourceId,
        epoch: Epoch,
        first: Index,
        prev_chain: Chain,
        commit: Index,
        entries: impl IntoIterator<Item = NewEntry, IntoIter: ExactSizeIterator>,
    ) -> Self {
        let entries = entries.into_iter();
        let count = entries.len();
        assert!(count > 0 && count <= BATCH_ENTRIES_MAX, "batch of {count} entries");
        let mut header = SmallVec::with_capacity(BATCH_FIXED_BYTES + count * DESC_BYTES);
        let mut descs = SmallVec::with_capacity(count);
        let mut payload = SmallVec::with_capacity(count);
        let mut payload_len = 0;
        // The real ones come last: some of it is known when all entries are.
        header.extend_from_slice(&[0; BATCH_FIXED_BYTES]);
        for entry in entries {
            let desc = described(entry, payload_len);
            header.extend_from_slice(&desc_bytes(&desc));
            payload_len += desc.payload.len() as u64;
            if !desc.payload.is_empty() {
                payload.push(desc.payload.clone());
            }
            descs.push(desc);
        }
        assert!(payload_len <= BATCH_BYTES_MAX && payload_len.is_multiple_of(BLOCK_BYTES));
        assert!(!snapshot_within(&descs), "a snapshot within a batch");
        let fixed = &mut header[..BATCH_FIXED_BYTES];
        fixed[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        fixed[4..6].copy_from_slice(&BATCH_VERSION.to_le_bytes());
        fixed[6..8].copy_from_slice(&(count as u16).to_le_bytes());
        fixed[8..16].copy_from_slice(&resource.0.to_le_bytes());
        fixed[16..24].copy_from_slice(&epoch.0.to_le_bytes());
        fixed[24..32].copy_from_slice(&first.0.to_le_bytes());
        fixed[32..40].copy_from_slice(&prev_chain.0.to_le_bytes());
        fixed[48..56].copy_from_slice(&commit.0.to_le_bytes());
        fixed[56..64].copy_from_slice(&payload_len.to_le_bytes());
        let chain = chain_of(prev_chain, &header);
        header[CHAIN_OFFSET..CHAIN_OFFSET + 8].copy_from_slice(&chain.0.to_le_bytes());
        let crc = crc32c(&header);
        header[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
        Self {
            resource,
            epoch,
            first,
            prev_chain,
            chain,
            commit,
            entries: descs,
            header,
            payload,
            payload_len,
        }
    }

    /// Decodes and verifies a whole batch: `header` is the used front (or a whole header block),
    /// `payload` exactly the payload area.
    pub fn decode(header: &[u8], payload: &Bytes) -> Result<Self, DecodeError> {
        let head = BatchHead::decode(header)?;
        if payload.len() as u64 != head.payload_len {
            return Err(DecodeError::Short {
                what: "batch payload",
                need: head.payload_len as usize,
                have: payload.len(),
            });
        }
        let used = &header[..head.header_len()];
        let mut reader = Reader::new("batch", &used[BATCH_FIXED_BYTES..]);
        let mut entries = SmallVec::with_capacity(usize::from(head.count));
        let mut at = 0u64;
        for _ in 0..head.count {
            let desc = decode_desc(&mut reader, at)?;
            let bytes = if desc.kind == EntryKind::Write { desc.range.len } else { 0 };
            let end = at + bytes;
            if end > head.payload_len {
                return Err(reader.field("payload length", end));
            }
            let slice = payload.slice(at as usize..end as usize);
            let (crc, block_sums) = if bytes > 0 { payload_sums(&slice) } else { (0, None) };
            if crc != desc.payload_crc && !planted(Bug::PayloadNotChecked) {
                reach!("codec: the payload of an entry is damaged");
                return Err(DecodeError::Checksum { what: "entry payload" });
            }
            entries.push(EntryDesc { payload: slice, payload_crc: crc, block_sums, ..desc });
            at = end;
        }
        if at != head.payload_len {
            return Err(reader.field("payload length", at));
        }
        if snapshot_within(&entries) {
            return Err(reader.field("entries after a snapshot", head.count.into()));
        }
        Ok(Self {
            resource: head.resource,
            epoch: head.epoch,
            first: head.first,
            prev_chain: head.prev_chain,
            chain: head.chain,
            commit: head.commit,
            entries,
            header: SmallVec::from_slice(used),
            payload: Some(payload).filter(|payload| !payload.is_empty()).cloned().into_iter().collect(),
            payload_len: head.payload_len,
        })
    }

    /// Returns the ranges of the entries with a payload, in the order of the payload area, out of a
    /// header whose checksum has been verified ([`BatchHead::decode`]).
    ///
    /// # Errors
    /// When the header is not that of a batch.
    pub fn written_ranges(header: &[u8]) -> Result<SmallVec<[Range; 1]>, DecodeError> {
        let head = BatchHead::decode(header)?;
        let mut reader = Reader::new("batch", &header[BATCH_FIXED_BYTES..head.header_len()]);
        let mut ranges = SmallVec::new();
        for _ in 0..head.count {
            let desc = decode_desc(&mut reader, 0)?;
            if desc.kind == EntryKind::Write {
                ranges.push(desc.range);
            }
        }
        Ok(ranges)
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last(&self) -> Index {
        Index(self.first.0 + self.entries.len() as u64 - 1)
    }

    /// Position of the last entry.
    #[must_use]
    pub fn end(&self) -> Position {
        Position { epoch: self.epoch, index: self.last() }
    }

    /// The last entry that a client asked for.
    #[must_use]
    pub fn last_of_client(&self) -> Option<(Index, ClientMark)> {
        let at = self.entries.iter().rposition(|entry| entry.session > 0)?;
        let entry = &self.entries[at];
        let mark = ClientMark { session: SessionId(entry.session), number: entry.request };
        Some((Index(self.first.0 + at as u64), mark))
    }

    /// Bytes that the batch occupies in a journal: header block and payload area.
    #[must_use]
    pub fn journal_len(&self) -> u64 {
        HEADER_BLOCK_BYTES as u64 + self.payload_len
    }

    /// The header block as it goes to a journal: shared front, zeroes, local area.
    #[must_use]
    pub fn header_block(&self, local: LocalHeader) -> [u8; HEADER_BLOCK_BYTES] {
        let mut block = [0; HEADER_BLOCK_BYTES];
        self.put_header_block(local, &mut block);
        block
    }

    /// The same where it is to be: every byte of `block` is set, whatever was there.
    pub fn put_header_block(&self, local: LocalHeader, block: &mut [u8; HEADER_BLOCK_BYTES]) {
        let used = self.header.len();
        block[..used].copy_from_slice(&self.header);
        block[used..LOCAL_OFFSET].fill(0);
        block[LOCAL_OFFSET..].copy_from_slice(&local.encode(self.chain));
    }
}

/// The fixed part of a batch header, verified by its checksum; what a journal scan looks at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHead {
    pub count: u16,
    pub resource: ResourceId,
    pub epoch: Epoch,
    pub first: Index,
    pub prev_chain: Chain,
    pub chain: Chain,
    pub commit: Index,
    pub payload_len: u64,
}

impl BatchHead {
    /// Decodes the header and verifies its checksum and chain; does not look at payloads.
    pub fn decode(header: &[u8]) -> Result<Self, DecodeError> {
        let what = "batch header";
        let mut reader = Reader::new(what, header);
        let magic = reader.u32()?;
        if magic != BATCH_MAGIC {
            return Err(DecodeError::Magic { what, found: magic });
        }
        let version = reader.u16()?;
        if version != BATCH_VERSION {
            return Err(DecodeError::Version { what, found: version, known: BATCH_VERSION });
        }
        let count = reader.u16()?;
        if count == 0 || usize::from(count) > BATCH_ENTRIES_MAX {
            return Err(reader.field("entries", count.into()));
        }
        let head = Self {
            count,
            resource: ResourceId(reader.u64()?),
            epoch: Epoch(reader.u64()?),
            first: Index(reader.u64()?),
            prev_chain: Chain(reader.u64()?),
            chain: Chain(reader.u64()?),
            commit: Index(reader.u64()?),
            payload_len: reader.u64()?,
        };
        reader.zeroes(CRC_OFFSET - 64)?;
        reader.u32()?;
        reader.zeroes(4)?;
        if head.payload_len > BATCH_BYTES_MAX || !head.payload_len.is_multiple_of(BLOCK_BYTES) {
            return Err(reader.field("payload length", head.payload_len));
        }
        if head.first.0 == 0 || head.first.0.checked_add(u64::from(count)).is_none() {
            return Err(reader.field("first index", head.first.0));
        }
        let len = head.header_len();
        if header.len() < len {
            return Err(DecodeError::Short { what, need: len, have: header.len() });
        }
        let used = &header[..len];
        let mut crc_bytes = [0; 4];
        crc_bytes.copy_from_slice(&used[CRC_OFFSET..CRC_OFFSET + 4]);
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&used[..CRC_OFFSET]);
        digest.update(&[0; 4]);
        digest.update(&used[CRC_OFFSET + 4..]);
        if digest.finalize() as u32 != u32::from_le_bytes(crc_bytes) {
            reach!("codec: the header of a batch is damaged");
            return Err(DecodeError::Checksum { what });
        }
        if chain_of(head.prev_chain, used) != head.chain {
            return Err(DecodeError::Checksum { what: "batch chain" });
        }
        Ok(head)
    }

    /// Bytes of the header that are in use.
    #[must_use]
    pub fn header_len(&self) -> usize {
        BATCH_FIXED_BYTES + usize::from(self.count) * DESC_BYTES
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last(&self) -> Index {
        Index(self.first.0 + u64::from(self.count) - 1)
    }
}

/// An entry whose payload starts at `payload_at`.
///
/// # Panics
/// When it violates a limit.
fn described(entry: NewEntry, payload_at: u64) -> EntryDesc {
    let NewEntry { kind, range, payload, session, request } = entry;
    let broken = violation(kind, range);
    assert!(broken.is_none(), "entry admitted beyond a limit: {broken:?}");
    let (payload_crc, block_sums) = if kind == EntryKind::Write {
        assert!(payload.len() as u64 == range.len, "payload does not fill its range");
        payload_sums(&payload)
    } else {
        assert!(payload.is_empty(), "payload on an entry that has none");
        (0, None)
    };
    EntryDesc { kind, range, payload_at, payload, payload_crc, block_sums, session, request }
}

fn desc_bytes(desc: &EntryDesc) -> [u8; DESC_BYTES] {
    let mut out = [0; DESC_BYTES];
    out[0] = kind_number(desc.kind);
    out[2..4].copy_from_slice(&desc.range.volume.0.to_le_bytes());
    // Lengths of every kind fit: `described` has seen to it.
    out[4..8].copy_from_slice(&(desc.range.len as u32).to_le_bytes());
    out[8..16].copy_from_slice(&desc.range.offset.to_le_bytes());
    out[16..20].copy_from_slice(&desc.payload_crc.to_le_bytes());
    out[24..32].copy_from_slice(&desc.session.to_le_bytes());
    out[32..40].copy_from_slice(&desc.request.to_le_bytes());
    out
}

fn decode_desc(reader: &mut Reader<'_>, payload_at: u64) -> Result<EntryDesc, DecodeError> {
    let kind = reader.u8()?;
    let flags = reader.u8()?;
    let volume = reader.u16()?;
    let len = u64::from(reader.u32()?);
    let offset = reader.u64()?;
    let crc = reader.u32()?;
    let zero = reader.u32()?;
    let session = reader.u64()?;
    let request = reader.u64()?;
    let kind = kind_of(kind).ok_or_else(|| reader.field("kind", kind.into()))?;
    if flags != 0 {
        return Err(reader.field("flags", flags.into()));
    }
    if zero != 0 {
        return Err(reader.field("reserved bytes", zero.into()));
    }
    if kind != EntryKind::Write && crc != 0 {
        return Err(reader.field("payload checksum", crc.into()));
    }
    let range = Range { volume: VolumeId(volume), offset, len };
    if let Some((field, value)) = violation(kind, range) {
        return Err(reader.field(field, value));
    }
    let (payload, block_sums) = (Bytes::new(), None);
    Ok(EntryDesc { kind, range, payload_at, payload, payload_crc: crc, block_sums, session, request })
}

/// Whether a snapshot is not the last entry of its batch. Snapshots hold whole batches.
fn snapshot_within(entries: &[EntryDesc]) -> bool {
    let before_last = entries.split_last().map_or(&[][..], |(_, before)| before);
    before_last.iter().any(|entry| matches!(entry.kind, EntryKind::Snapshot | EntryKind::Rollback))
}

/// The limit that a range breaks for an entry of this kind, as the field's name and its value.
/// Sealing asserts what decoding checks, so that nothing is sealed that a peer would refuse.
fn violation(kind: EntryKind, range: Range) -> Option<(&'static str, u64)> {
    let Range { volume: VolumeId(volume), offset, len } = range;
    if usize::from(volume) >= VOLUMES_MAX {
        return Some(("volume", volume.into()));
    }
    let len_bad = match kind {
        EntryKind::EpochStart => len != 0 || offset != 0 || volume != 0,
        EntryKind::Resize => len != 0,
        EntryKind::Snapshot | EntryKind::DropSnapshot => {
            if offset == 0 || offset >= u64::from(SnapshotId::BEFORE_COPY.0) {
                return Some(("snapshot", offset));
            }
            return (len != 0 || volume != 0).then_some(("length", len));
        }
        EntryKind::Rollback => {
            let (to, mark) = rolled_back(offset);
            let numbers = 1..SnapshotId::BEFORE_COPY.0;
            if !numbers.contains(&to.0) || !numbers.contains(&mark.0) || to == mark {
                return Some(("snapshot", offset));
            }
            return (len != 0 || volume != 0).then_some(("length", len));
        }
        EntryKind::Write => len == 0 || len > REQUEST_BYTES_MAX,
        EntryKind::Scrub => len == 0 || len > EXTENT_BYTES,
        EntryKind::Discard | EntryKind::WriteZeroes => len == 0 || len > u64::from(u32::MAX),
    };
    if len_bad || !len.is_multiple_of(BLOCK_BYTES) {
        return Some(("length", len));
    }
    let nothing_left = kind == EntryKind::Resize && offset == 0;
    let within_extent = kind == EntryKind::Scrub && !offset.is_multiple_of(EXTENT_BYTES);
    if nothing_left || within_extent || !offset.is_multiple_of(BLOCK_BYTES) || offset > VOLUME_BYTES_MAX - len
    {
        return Some(("offset", offset));
    }
    None
}

/// The chain after a batch whose used header front is `header`.
fn chain_of(prev: Chain, header: &[u8]) -> Chain {
    Chain(crc64(&[
        &prev.0.to_le_bytes(),
        &header[..CHAIN_OFFSET],
        &header[CHAIN_OFFSET + 8..CRC_OFFSET],
        &header[BATCH_FIXED_BYTES..],
    ]))
}

/// Facts about a batch that only this replica's own journal holds. The replica writes them together
/// with the batch, in the last 64 bytes of the header block, and never sends them.
///
/// These facts tell a torn tail from corruption (R12). A bad record at or below `durable_before` of
/// any later record was durable once, so it is corruption. `generation` rises with every start and
/// every cut. So records that a cut made void are never taken for successors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LocalHeader {
    pub generation: u64,
    /// Every entry up to here was durable in this journal when this write was submitted.
    pub durable_before: Index,
    pub payload: PayloadPlace,
}

/// Where this replica keeps the payload of a batch in its journal (docs/adr/0057-large-writes.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PayloadPlace {
    /// Behind the header block.
    #[default]
    Journal,
    /// In the volumes, where its entries belong. What is behind the header block means nothing.
    Volume,
    /// Behind the header block, after the attempt to put it into the volumes has failed: something
    /// of it may be there.
    JournalAfterVolume,
}

impl PayloadPlace {
    const ALL: [Self; 3] = [Self::Journal, Self::Volume, Self::JournalAfterVolume];

    /// Whether something of the payload may be in the volumes.
    #[must_use]
    pub fn touches_volumes(self) -> bool {
        self != Self::Journal
    }
}

impl LocalHeader {
    /// `chain` binds the local area to its batch.
    #[must_use]
    pub fn encode(self, chain: Chain) -> [u8; LOCAL_BYTES] {
        let mut out = [0; LOCAL_BYTES];
        out[..4].copy_from_slice(&LOCAL_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.durable_before.0.to_le_bytes());
        out[24..32].copy_from_slice(&chain.0.to_le_bytes());
        out[32] = self.payload as u8;
        let crc = crc32c(&out[..LOCAL_BYTES - 4]);
        out[LOCAL_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the local area of a header block; fails when it does not belong to the batch with
    /// `chain`.
    pub fn decode(block: &[u8], chain: Chain) -> Result<Self, DecodeError> {
        let what = "local header";
        let mut whole = Reader::new(what, block);
        whole.take(LOCAL_OFFSET)?;
        let area = whole.take(LOCAL_BYTES)?;
        let mut reader = Reader::new(what, area);
        let magic = reader.u32()?;
        if magic != LOCAL_MAGIC {
            return Err(DecodeError::Magic { what, found: magic });
        }
        reader.zeroes(4)?;
        let generation = reader.u64()?;
        let durable_before = Index(reader.u64()?);
        let bound = reader.u64()?;
        let place = reader.u8()?;
        let payload = PayloadPlace::ALL.get(usize::from(place)).copied();
        let payload = payload.ok_or_else(|| reader.field("place of the payload", place.into()))?;
        reader.zeroes(LOCAL_BYTES - 37)?;
        let mut crc = [0; 4];
        crc.copy_from_slice(&area[LOCAL_BYTES - 4..]);
        if crc32c(&area[..LOCAL_BYTES - 4]) != u32::from_le_bytes(crc) || bound != chain.0 {
            return Err(DecodeError::Checksum { what });
        }
        Ok(Self { generation, durable_before, payload })
    }
}
