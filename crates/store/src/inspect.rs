//! Inspection of a replica's media, for people: tells what recovery would find, and changes
//! nothing.

use crate::recovery::{Window, follow, known_durable, read_versions, superblock_copies};
use crate::{Media, RecoverError};
use mainstay_codec::{EntryKind, PayloadPlace, Superblock};
use mainstay_types::{Chain, Epoch, Extent, Index, Position, Range, VolumeId};

/// See the top of this file.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Sequence of each copy of the superblock; `None` for one that is damaged.
    pub copies: Vec<Option<u64>>,
    /// The newest whole copy.
    pub superblock: Superblock,
    /// Batches that the journal holds after the checkpoint, in order.
    pub batches: Vec<FoundBatch>,
    /// The last entry of the log.
    pub end: Position,
    /// Where the log ends in the journal, in bytes.
    pub end_offset: u64,
    /// Known to be committed, as far as the log reaches.
    pub commit: Index,
    /// Epochs of the log with their last index; the newest 64.
    pub epochs: Vec<(Epoch, Index)>,
    /// Something says that entries up to here were durable. More than the end of the log: the
    /// journal is damaged (R12).
    pub known_durable: Index,
    /// Extents that an entry has changed, in order, each with the last one that may have; or why
    /// they cannot be told.
    pub versions: Result<Vec<(VolumeId, Extent, Index)>, String>,
}

/// A batch of the journal.
#[derive(Clone, Debug)]
pub struct FoundBatch {
    /// Offset of its header block in the journal, in bytes.
    pub offset: u64,
    /// Length of header block and payload, in bytes.
    pub len: u64,
    /// The recovery, cut or restart after which it was written here.
    pub generation: u64,
    /// Entries up to here were durable here when it was written.
    pub durable_before: Index,
    /// The primary's commit index when it was sealed.
    pub commit: Index,
    pub epoch: Epoch,
    pub first: Index,
    /// Chain after it.
    pub chain: Chain,
    pub entries: Vec<FoundEntry>,
}

/// An entry of the journal.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    pub kind: EntryKind,
    pub range: Range,
    /// Offset of its payload in the journal, in bytes. `None`: it has none, or the payload is where
    /// the entry belongs in the volume (`fill.rs`).
    pub offset: Option<u64>,
    /// CRC-32C of its payload; 0 unless a write.
    pub crc: u32,
}

/// Looks at a replica that no store has open.
///
/// # Errors
/// If the media cannot be read, or there is no superblock. Damage is no error: the inspection tells
/// it.
pub fn inspect(media: &mut dyn Media) -> Result<Inspection, RecoverError> {
    let copies = superblock_copies(media)?;
    let sequences = copies.iter().map(|copy| copy.as_ref().map(|superblock| superblock.sequence)).collect();
    let newest = copies.into_iter().flatten().max_by_key(|superblock| superblock.sequence);
    let superblock = newest.ok_or(RecoverError::NoSuperblock)?;
    let versions = match read_versions(media, &superblock) {
        Ok(versions) => Ok(versions
            .newer_than(Index(0))
            .into_iter()
            .map(|(volume, extent)| (volume, extent, versions.get(volume, extent)))
            .collect()),
        Err(RecoverError::Media(error)) => return Err(RecoverError::Media(error)),
        Err(error) => Err(error.to_string()),
    };
    let mut batches = Vec::new();
    let mut window = Window::new(media, superblock.journal_bytes);
    let mut log = follow(&mut window, &superblock, &mut |offset, local, batch| {
        let payload = offset + batch.journal_len() - batch.payload_len;
        let entries = batch.entries.iter().map(|entry| FoundEntry {
            kind: entry.kind,
            range: entry.range,
            offset: (entry.kind == EntryKind::Write && local.payload != PayloadPlace::Volume)
                .then_some(payload + entry.payload_at),
            crc: entry.payload_crc,
        });
        batches.push(FoundBatch {
            offset,
            len: batch.journal_len(),
            generation: local.generation,
            durable_before: local.durable_before,
            commit: batch.commit,
            epoch: batch.epoch,
            first: batch.first,
            chain: batch.chain,
            entries: entries.collect(),
        });
    })?;
    let known_durable = known_durable(&mut window, &superblock, log.end.index, &mut log.unfinished)?;
    Ok(Inspection {
        copies: sequences,
        batches,
        end: log.end,
        end_offset: log.offset,
        commit: log.commit.min(log.end.index),
        epochs: log.epochs,
        known_durable,
        versions,
        superblock,
    })
}
