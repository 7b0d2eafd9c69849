//! The superblock: the state that a replica must know before it can read its own journal. It is one
//! block. Several copies are kept, and the valid one with the highest sequence counts (R14).
//!
//! `docs/internals/formats.md` has the layout, which a test compares with the encoded bytes.

use crate::crc32c;
use crate::frame::EPOCHS_MAX;
use crate::wire::{DecodeError, Put, Reader};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, EXTENT_BYTES, Epoch, Incarnation, Index, Position, ResourceId,
    SNAPSHOTS_MAX, SessionId, SnapshotId, VOLUME_BYTES_MAX, VOLUMES_MAX, is_volume_size,
};

pub const SUPERBLOCK_BYTES: usize = BLOCK_BYTES as usize;
pub const SUPERBLOCK_MAGIC: u32 = u32::from_le_bytes(*b"MSSB");
pub const SUPERBLOCK_VERSION: u16 = 6;
/// Version of a superblock with [`Superblock::filled`]. Builds that know nothing of such payloads
/// refuse it, instead of taking their records for torn ones.
pub const SUPERBLOCK_FILLED_VERSION: u16 = 7;
/// Flag: blocks have sums.
const FLAG_SUMS: u16 = 1;
/// Bound of [`TablePlace::first_page`], in pages (64 GiB).
pub const TABLE_PAGES_MAX: u32 = 1 << 24;
/// Most voids that are kept.
pub const VOIDS_MAX: usize = 32;

/// Where the last change by a client is: at the end.
pub const CLIENT_OFFSET: usize = SUPERBLOCK_BYTES - 4 - 16;

const _: () =
    assert!(160 + VOLUMES_MAX * 16 + VOIDS_MAX * 16 + EPOCHS_MAX * 16 + SNAPSHOTS_MAX * 16 <= CLIENT_OFFSET);

/// Journal records of an older generation than `generation` that lie beyond `end` are void: a cut
/// or a recovery ended the log there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Void {
    pub generation: u64,
    pub end: Index,
}

/// How far the backing store is complete, and where the journal goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    pub at: Position,
    /// Chain after `at`.
    pub chain: Chain,
    /// Where the batch after `at` is, or would be unless it had to go to the start of the ring.
    pub offset: u64,
}

/// Extent copy to this replica that has not ended (R16): its data is inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnfinishedCopy {
    /// Every extent is at least as new as this entry.
    pub base: Index,
    /// Whether the last whole content of the volumes, that at `base`, is kept in the files of
    /// [`SnapshotId::BEFORE_COPY`].
    pub kept: bool,
}

/// Where the version table of a volume lies, in both slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TablePlace {
    /// First page of slot 0, in pages after the superblocks. Slot 1 follows behind the room of slot
    /// 0.
    pub first_page: u32,
    /// Extents that it tells of. Those of the volume beyond were changed by nothing before the
    /// checkpoint.
    pub extents: u32,
}

/// A snapshot that the log has at the checkpoint (R17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotRecord {
    pub id: SnapshotId,
    /// Whether its files are here, whole and durable. Otherwise it could not be taken here, or
    /// before this replica was copied.
    pub held: bool,
    /// The entry that it is as of.
    pub at: Index,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Rises with every update.
    pub sequence: u64,
    pub resource: ResourceId,
    pub incarnation: Incarnation,
    /// Bytes of each volume at the checkpoint. Its file is at least as large.
    pub volumes: Vec<u64>,
    /// Where the version table of each volume lies.
    pub tables: Vec<TablePlace>,
    pub journal_bytes: u64,
    /// Each volume has a file of sums, see [`crate::sums`].
    pub sums: bool,
    /// Records after the checkpoint may have their payloads in the volumes, see
    /// [`crate::PayloadPlace`].
    pub filled: bool,
    /// R1.
    pub promised: Epoch,
    /// Goes into the local area of every journal record; rises with every recovery, cut and
    /// restart.
    pub generation: u64,
    /// Ascending in both fields.
    pub voids: Vec<Void>,
    pub checkpoint: Checkpoint,
    /// Highest index that was known to be committed, and was durable here.
    pub commit: Index,
    /// `None`: journal and volumes together are a prefix of the log.
    pub unfinished: Option<UnfinishedCopy>,
    /// Epochs up to the checkpoint with their last index, ascending; the newest 64.
    pub epochs: Vec<(Epoch, Index)>,
    pub versions_slot: u8,
    /// Root of the pages of that slot, see [`crate::versions::versions_root`].
    pub versions_root: u64,
    /// Ascending; at the checkpoint.
    pub snapshots: Vec<SnapshotRecord>,
    /// The last change that a client asked for, as of the applied entries.
    pub client: ClientMark,
}

impl Superblock {
    /// The whole block.
    ///
    /// # Panics
    /// On more volumes, voids, epochs or snapshots than the block has room for.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(!self.volumes.is_empty() && self.volumes.len() <= VOLUMES_MAX);
        assert!(self.volumes.len() == self.tables.len());
        assert!(self.voids.len() <= VOIDS_MAX && self.epochs.len() <= EPOCHS_MAX);
        assert!(self.snapshots.len() <= SNAPSHOTS_MAX);
        let mut out = Vec::with_capacity(SUPERBLOCK_BYTES);
        out.put_u32(SUPERBLOCK_MAGIC);
        out.put_u16(if self.filled { SUPERBLOCK_FILLED_VERSION } else { SUPERBLOCK_VERSION });
        out.put_u16(if self.sums { FLAG_SUMS } else { 0 });
        out.put_u64(self.sequence);
        out.put_u64(self.resource.0);
        out.put_u64(self.incarnation.0);
        out.put_u64(self.journal_bytes);
        out.put_u64(self.promised.0);
        out.put_u64(self.generation);
        out.put_u64(self.checkpoint.at.epoch.0);
        out.put_u64(self.checkpoint.at.index.0);
        out.put_u64(self.checkpoint.chain.0);
        out.put_u64(self.checkpoint.offset);
        out.put_u64(self.commit.0);
        let (state, base) = match self.unfinished {
            None => (0, 0),
            Some(copy) => (1 + u64::from(copy.kept), copy.base.0),
        };
        out.put_u64(state);
        out.put_u64(base);
        out.put_u64(self.versions_slot.into());
        out.put_u64(self.versions_root);
        out.put_u64(self.snapshots.len() as u64);
        out.put_u64(self.volumes.len() as u64);
        out.put_u64(self.voids.len() as u64);
        out.put_u64(self.epochs.len() as u64);
        for (&volume, table) in self.volumes.iter().zip(&self.tables) {
            out.put_u64(volume);
            out.put_u32(table.first_page);
            out.put_u32(table.extents);
        }
        for void in &self.voids {
            out.put_u64(void.generation);
            out.put_u64(void.end.0);
        }
        for (epoch, last) in &self.epochs {
            out.put_u64(epoch.0);
            out.put_u64(last.0);
        }
        for snapshot in &self.snapshots {
            out.put_u32(snapshot.id.0);
            out.put_u32(snapshot.held.into());
            out.put_u64(snapshot.at.0);
        }
        out.resize(CLIENT_OFFSET, 0);
        out.put_u64(self.client.session.0);
        out.put_u64(self.client.number);
        let crc = crc32c(&out);
        out.put_u32(crc);
        out
    }

    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let what = "superblock";
        if block.len() != SUPERBLOCK_BYTES {
            return Err(DecodeError::Short { what, need: SUPERBLOCK_BYTES, have: block.len() });
        }
        let (body, crc) = block.split_at(SUPERBLOCK_BYTES - 4);
        let mut r = Reader::new(what, body);
        let magic = r.u32()?;
        if magic != SUPERBLOCK_MAGIC {
            return Err(DecodeError::Magic { what, found: magic });
        }
        if crc32c(body).to_le_bytes() != crc {
            return Err(DecodeError::Checksum { what });
        }
        let version = r.u16()?;
        if ![SUPERBLOCK_VERSION, SUPERBLOCK_FILLED_VERSION].contains(&version) {
            return Err(DecodeError::Version { what, found: version, known: SUPERBLOCK_FILLED_VERSION });
        }
        let sums = match r.u16()? {
            flags @ (0 | FLAG_SUMS) => flags == FLAG_SUMS,
            other => return Err(r.field("flags", other.into())),
        };
        let filled = version == SUPERBLOCK_FILLED_VERSION;
        let sequence = r.u64()?;
        let resource = ResourceId(r.u64()?);
        let incarnation = Incarnation(r.u64()?);
        let journal_bytes = r.u64()?;
        let promised = Epoch(r.u64()?);
        let generation = r.u64()?;
        let checkpoint = Checkpoint {
            at: Position { epoch: Epoch(r.u64()?), index: Index(r.u64()?) },
            chain: Chain(r.u64()?),
            offset: r.u64()?,
        };
        let commit = Index(r.u64()?);
        let state = r.u64()?;
        let base = Index(r.u64()?);
        let unfinished = match (state, base.0) {
            (0, 0) => None,
            (1 | 2, _) => Some(UnfinishedCopy { base, kept: state == 2 }),
            _ => return Err(r.field("data state", state)),
        };
        let versions_slot = match r.u64()? {
            slot @ (0 | 1) => slot as u8,
            other => return Err(r.field("version table slot", other)),
        };
        let versions_root = r.u64()?;
        let snapshot_count = bounded(&mut r, "snapshots", SNAPSHOTS_MAX)?;
        let volume_count = bounded(&mut r, "volumes", VOLUMES_MAX)?;
        let void_count = bounded(&mut r, "voids", VOIDS_MAX)?;
        let epoch_count = bounded(&mut r, "epochs", EPOCHS_MAX)?;
        if volume_count == 0 {
            return Err(r.field("volumes", 0));
        }
        let mut volumes = Vec::with_capacity(volume_count);
        let mut tables = Vec::with_capacity(volume_count);
        for _ in 0..volume_count {
            let bytes = r.u64()?;
            if !is_volume_size(bytes) {
                return Err(r.field("volume bytes", bytes));
            }
            let table = TablePlace { first_page: r.u32()?, extents: r.u32()? };
            if table.first_page > TABLE_PAGES_MAX
                || u64::from(table.extents) > VOLUME_BYTES_MAX / EXTENT_BYTES
            {
                return Err(r.field("version table", table.first_page.into()));
            }
            volumes.push(bytes);
            tables.push(table);
        }
        let mut voids = Vec::with_capacity(void_count);
        for _ in 0..void_count {
            voids.push(Void { generation: r.u64()?, end: Index(r.u64()?) });
        }
        let mut epochs = Vec::with_capacity(epoch_count);
        for _ in 0..epoch_count {
            epochs.push((Epoch(r.u64()?), Index(r.u64()?)));
        }
        let mut snapshots: Vec<SnapshotRecord> = Vec::with_capacity(snapshot_count);
        for _ in 0..snapshot_count {
            let id = SnapshotId(r.u32()?);
            if snapshots.last().map_or(SnapshotId(0), |before| before.id) >= id {
                return Err(r.field("snapshot", id.0.into()));
            }
            let held = match r.u32()? {
                held @ (0 | 1) => held == 1,
                other => return Err(r.field("snapshot state", other.into())),
            };
            snapshots.push(SnapshotRecord { id, held, at: Index(r.u64()?) });
        }
        if !journal_bytes.is_multiple_of(BLOCK_BYTES)
            || checkpoint.offset > journal_bytes
            || !checkpoint.offset.is_multiple_of(BLOCK_BYTES)
        {
            return Err(r.field("journal offset", checkpoint.offset));
        }
        let rest = r.remaining().saturating_sub(SUPERBLOCK_BYTES - 4 - CLIENT_OFFSET);
        r.zeroes(rest)?;
        let client = ClientMark { session: SessionId(r.u64()?), number: r.u64()? };
        r.finish()?;
        Ok(Self {
            sequence,
            resource,
            incarnation,
            volumes,
            tables,
            journal_bytes,
            sums,
            filled,
            promised,
            generation,
            voids,
            checkpoint,
            commit,
            unfinished,
            epochs,
            versions_slot,
            versions_root,
            snapshots,
            client,
        })
    }
}

fn bounded(r: &mut Reader<'_>, field: &'static str, max: usize) -> Result<usize, DecodeError> {
    let value = r.u64()?;
    if value > max as u64 {
        return Err(r.field(field, value));
    }
    Ok(value as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Superblock {
        Superblock {
            sequence: 9,
            resource: ResourceId(3),
            incarnation: Incarnation(77),
            volumes: vec![1 << 20, 4096],
            tables: vec![TablePlace { first_page: 0, extents: 1 }, TablePlace { first_page: 6, extents: 1 }],
            journal_bytes: 1 << 24,
            sums: true,
            filled: false,
            promised: Epoch(5),
            generation: 8,
            voids: vec![Void { generation: 7, end: Index(11) }, Void { generation: 8, end: Index(15) }],
            checkpoint: Checkpoint { at: Position::new(4, 12), chain: Chain(99), offset: 8192 },
            commit: Index(14),
            unfinished: Some(UnfinishedCopy { base: Index(2), kept: false }),
            epochs: vec![(Epoch(1), Index(3)), (Epoch(4), Index(12))],
            versions_slot: 1,
            versions_root: 21,
            snapshots: vec![snapshot(3, true), snapshot(5, false)],
            client: ClientMark { session: SessionId(6), number: 71 },
        }
    }

    fn snapshot(id: u32, held: bool) -> SnapshotRecord {
        SnapshotRecord { id: SnapshotId(id), held, at: Index(id.into()) }
    }

    #[test]
    fn records_are_decoded_as_they_were_encoded() {
        let block = example().encode();
        assert_eq!(block.len(), SUPERBLOCK_BYTES);
        assert_eq!(Superblock::decode(&block), Ok(example()));
        let kept =
            Superblock { unfinished: Some(UnfinishedCopy { base: Index(0), kept: true }), ..example() };
        assert_eq!(Superblock::decode(&kept.encode()), Ok(kept));
        let full = Superblock {
            volumes: vec![VOLUME_BYTES_MAX; VOLUMES_MAX],
            tables: vec![TablePlace { first_page: TABLE_PAGES_MAX, extents: 1 }; VOLUMES_MAX],
            voids: vec![Void { generation: 1, end: Index(1) }; VOIDS_MAX],
            epochs: vec![(Epoch(1), Index(1)); EPOCHS_MAX],
            snapshots: (1..=SNAPSHOTS_MAX as u32).map(|id| snapshot(id, true)).collect(),
            unfinished: None,
            ..example()
        };
        assert_eq!(Superblock::decode(&full.encode()), Ok(full));
    }

    #[test]
    fn another_version_is_refused_by_its_name() {
        for version in [1, SUPERBLOCK_VERSION - 1, SUPERBLOCK_FILLED_VERSION + 1] {
            let mut block = example().encode();
            block[4..6].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c(&block[..SUPERBLOCK_BYTES - 4]);
            block[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            let refused =
                DecodeError::Version { what: "superblock", found: version, known: SUPERBLOCK_FILLED_VERSION };
            assert_eq!(Superblock::decode(&block), Err(refused));
        }
    }

    #[test]
    fn no_snapshot_is_there_twice() {
        let mut twice = example();
        twice.snapshots[1].id = SnapshotId(3);
        assert!(matches!(Superblock::decode(&twice.encode()), Err(DecodeError::Field { .. })));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = example().encode();
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(Superblock::decode(&bad).is_err(), "byte {byte}");
        }
        assert!(Superblock::decode(&good[..100]).is_err());
    }

    #[test]
    fn impossible_counts_are_refused_even_with_a_good_checksum() {
        for at in [96, 112, 128, 136, 144, 152, 160] {
            let mut bad = example().encode();
            bad[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            let crc = crc32c(&bad[..SUPERBLOCK_BYTES - 4]);
            bad[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            assert!(matches!(Superblock::decode(&bad), Err(DecodeError::Field { .. })), "offset {at}");
        }
    }
}
