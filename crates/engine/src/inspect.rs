//! A look at the files of a replica that no engine has open. Nothing is written, not even a lock is
//! left.

use crate::disk::check_owner;
use bytes::Bytes;
use mainstay_api::inspect::{
    BatchView, EntryView, ExtentView, LogPosition, ReplicaFilesView, UnfinishedCopyView, VoidView,
};
use mainstay_codec::{EntryKind, JOURNAL_LABEL_BYTES, JournalLabel, Superblock};
use mainstay_pool::{Part, Replica, replica_at};
use mainstay_store::{Area, FoundBatch, FoundEntry, Inspection, Media, MediaError, RecoverError};
use mainstay_types::{DataState, Extent, Index, Position, VolumeId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why nothing can be said of a replica's files.
#[derive(Debug, Error)]
pub enum InspectError {
    #[error("cannot open {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is in use by an engine", path.display())]
    InUse { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: RecoverError,
    },
}

/// Files of a replica, for reading. Buffered, so that they may lie on any file system.
struct Files<'a> {
    replica: &'a dyn Replica,
    meta: File,
    journal: File,
    /// Opened when a payload is in one of them.
    volumes: BTreeMap<VolumeId, File>,
}

impl Media for Files<'_> {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        let file = match area {
            Area::Meta => &self.meta,
            Area::Journal => &self.journal,
            Area::Volume(volume) => match self.volumes.entry(volume) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(place) => {
                    let path = self.replica.part(Part::Area(area));
                    let file = File::open(&path)
                        .map_err(|error| MediaError { detail: format!("{}: {error}", path.display()) })?;
                    place.insert(file)
                }
            },
            Area::Sums(_) => return Err(MediaError { detail: "sums are not looked at".into() }),
        };
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset).map_err(|error| MediaError {
            detail: format!("reading {} at {offset}: {error}", Part::Area(area)),
        })?;
        Ok(bytes.into())
    }

    fn write_durable(&mut self, _: Area, _: u64, _: &[u8]) -> Result<(), MediaError> {
        Err(MediaError { detail: "opened for reading only".into() })
    }

    fn flush(&mut self, _: Area) -> Result<(), MediaError> {
        Ok(())
    }
}

/// Reads journal and metadata of the replica in `path` and returns their content.
///
/// `journal`: a file to read instead of the journal, or the link to it, in the directory.
///
/// # Errors
/// When the replica is in use, cannot be read, or `path` holds no replica.
pub fn inspect(path: &Path, journal: Option<&Path>) -> Result<ReplicaFilesView, InspectError> {
    let open = |path: PathBuf| File::open(&path).map_err(|source| InspectError::Open { path, source });
    let replica = replica_at(path);
    let elsewhere = journal.map(Path::to_owned).or_else(|| replica.journal_elsewhere());
    let at = elsewhere.clone().unwrap_or_else(|| replica.part(Part::Area(Area::Journal)));
    let meta = open(replica.part(Part::Area(Area::Meta)))?;
    let mut files = Files { replica: &*replica, meta, journal: open(at.clone())?, volumes: BTreeMap::new() };
    for (file, path) in [(&files.meta, path), (&files.journal, at.as_path())] {
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => return Err(InspectError::InUse { path: path.to_owned() }),
            // A file system without locks has no engine on it either.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
    }
    let found = mainstay_store::inspect(&mut files)
        .map_err(|source| InspectError::Unreadable { path: path.to_owned(), source })?;
    // A named journal may be a copy of the one in the directory, which has no label.
    let is_linked = replica.journal_elsewhere().is_some();
    let unlabelled = label_fault(&files.journal, &found.superblock, is_linked);
    let mut view = view(path, &found);
    view.journal = elsewhere.map(|path| path.display().to_string());
    view.faults.extend(
        unlabelled.map(|what| format!("{} is not the journal of this replica: {what}", at.display())),
    );
    Ok(view)
}

/// Fault of a journal's label, in words. A journal that no link of the directory leads to may lack
/// a label.
fn label_fault(journal: &File, superblock: &Superblock, is_linked: bool) -> Option<String> {
    let mut block = vec![0; JOURNAL_LABEL_BYTES];
    let label = match journal.read_exact_at(&mut block, superblock.journal_bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !is_linked => return None,
        Err(error) => return Some(format!("no label can be read: {error}")),
        Ok(()) => JournalLabel::decode(&block).map_err(|error| error.to_string()),
    };
    label
        .and_then(|label| {
            check_owner(&label, superblock.resource, superblock.incarnation, superblock.journal_bytes)
        })
        .err()
}

fn view(path: &Path, found: &Inspection) -> ReplicaFilesView {
    let superblock = &found.superblock;
    let mut faults = Vec::new();
    let damaged = found.copies.iter().filter(|copy| copy.is_none()).count();
    if damaged > 0 {
        faults.push(format!("{damaged} of {} copies of the superblock are damaged", found.copies.len()));
    }
    if found.known_durable > found.end.index {
        faults.push(format!(
            "the journal is damaged at {}: entries up to {} were durable, and entry {} is not there",
            found.end_offset,
            found.known_durable.0,
            found.end.index.next().0
        ));
    }
    if let Err(why) = &found.versions {
        faults.push(why.clone());
    }
    let unfinished = superblock.unfinished;
    let data = if unfinished.is_none() { DataState::Consistent } else { DataState::Inconsistent };
    ReplicaFilesView {
        path: path.display().to_string(),
        resource: superblock.resource.0,
        incarnation: format!("{:016x}", superblock.incarnation.0),
        volumes: superblock.volumes.clone(),
        journal_bytes: superblock.journal_bytes,
        journal: None,
        superblock_copies: found.copies.clone(),
        generation: superblock.generation,
        promised_epoch: superblock.promised.0,
        data,
        unfinished_copy: unfinished.map(|copy| UnfinishedCopyView { base: copy.base.0, kept: copy.kept }),
        checkpoint: position(superblock.checkpoint.at),
        checkpoint_offset: superblock.checkpoint.offset,
        end: position(found.end),
        end_offset: found.end_offset,
        commit: found.commit.0,
        known_durable: found.known_durable.0,
        epochs: found
            .epochs
            .iter()
            .map(|(epoch, index)| LogPosition { epoch: epoch.0, index: index.0 })
            .collect(),
        voids: superblock
            .voids
            .iter()
            .map(|void| VoidView { generation: void.generation, end: void.end.0 })
            .collect(),
        batches: found.batches.iter().map(batch).collect(),
        extents: found.versions.as_ref().ok().map(|versions| {
            let extent = |&(volume, extent, version): &(VolumeId, Extent, Index)| ExtentView {
                volume: volume.0,
                extent: extent.0,
                version: version.0,
            };
            versions.iter().map(extent).collect()
        }),
        faults,
    }
}

fn position(at: Position) -> LogPosition {
    LogPosition { epoch: at.epoch.0, index: at.index.0 }
}

fn batch(found: &FoundBatch) -> BatchView {
    let entries = (found.first.0..).zip(&found.entries).map(|(index, found)| entry(index, found));
    BatchView {
        epoch: found.epoch.0,
        first: found.first.0,
        offset: found.offset,
        len: found.len,
        generation: found.generation,
        durable_before: found.durable_before.0,
        commit: found.commit.0,
        chain: format!("{:016x}", found.chain.0),
        entries: entries.collect(),
    }
}

fn entry(index: u64, found: &FoundEntry) -> EntryView {
    EntryView {
        index,
        kind: found.kind,
        volume: found.range.volume.0,
        offset: found.range.offset,
        len: found.range.len,
        payload: (found.kind == EntryKind::Write).then(|| (found.offset, format!("{:08x}", found.crc))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_codec::{Checkpoint, Superblock, UnfinishedCopy, Void};
    use mainstay_types::{Chain, Epoch, Incarnation, Range, ResourceId};

    fn superblock(unfinished: Option<UnfinishedCopy>) -> Superblock {
        Superblock {
            sequence: 12,
            resource: ResourceId(7),
            incarnation: Incarnation(0xabc),
            volumes: vec![8 << 20],
            tables: vec![mainstay_codec::TablePlace { first_page: 0, extents: 8 }],
            journal_bytes: 16 << 20,
            promised: Epoch(6),
            generation: 9,
            voids: vec![Void { generation: 8, end: Index(30) }],
            checkpoint: Checkpoint { at: Position::new(3, 20), chain: Chain(1), offset: 4096 },
            commit: Index(20),
            unfinished,
            epochs: vec![],
            sums: false,
            filled: false,
            versions_slot: 1,
            versions_root: 0,
            snapshots: vec![],
            client: Default::default(),
        }
    }

    fn found_entry(kind: EntryKind, block: u64) -> FoundEntry {
        let range = Range { volume: VolumeId(2), offset: block * 4096, len: 4096 };
        let offset = (kind == EntryKind::Write).then_some(40_960 + block);
        FoundEntry { kind, range, offset, crc: 0xbeef }
    }

    fn inspection(unfinished: Option<UnfinishedCopy>) -> Inspection {
        let kinds = [EntryKind::EpochStart, EntryKind::Write, EntryKind::Discard, EntryKind::WriteZeroes];
        Inspection {
            copies: vec![Some(12), None, Some(12), Some(11)],
            superblock: superblock(unfinished),
            batches: vec![FoundBatch {
                offset: 4096,
                len: 8192,
                generation: 9,
                durable_before: Index(19),
                commit: Index(18),
                epoch: Epoch(5),
                first: Index(21),
                chain: Chain(0xcafe),
                entries: kinds.into_iter().zip(0..).map(|(kind, block)| found_entry(kind, block)).collect(),
            }],
            end: Position::new(5, 24),
            end_offset: 12_288,
            commit: Index(22),
            epochs: vec![(Epoch(3), Index(20)), (Epoch(5), Index(24))],
            known_durable: Index(24),
            versions: Ok(vec![(VolumeId(1), Extent(3), Index(17))]),
        }
    }

    #[test]
    fn an_inspection_tells_all_that_was_found() {
        let told = view(Path::new("/pool/db-7"), &inspection(None));
        let entry = |index, kind: EntryKind, block: u64| EntryView {
            index,
            kind,
            volume: 2,
            offset: block * 4096,
            len: 4096,
            payload: (kind == EntryKind::Write).then(|| (Some(40_960 + block), "0000beef".to_owned())),
        };
        let batch = BatchView {
            epoch: 5,
            first: 21,
            offset: 4096,
            len: 8192,
            generation: 9,
            durable_before: 19,
            commit: 18,
            chain: "000000000000cafe".into(),
            entries: vec![
                entry(21, EntryKind::EpochStart, 0),
                entry(22, EntryKind::Write, 1),
                entry(23, EntryKind::Discard, 2),
                entry(24, EntryKind::WriteZeroes, 3),
            ],
        };
        let at = |epoch, index| LogPosition { epoch, index };
        let expected = ReplicaFilesView {
            path: "/pool/db-7".into(),
            resource: 7,
            incarnation: "0000000000000abc".into(),
            volumes: vec![8 << 20],
            journal_bytes: 16 << 20,
            journal: None,
            superblock_copies: vec![Some(12), None, Some(12), Some(11)],
            generation: 9,
            promised_epoch: 6,
            data: DataState::Consistent,
            unfinished_copy: None,
            checkpoint: at(3, 20),
            checkpoint_offset: 4096,
            end: at(5, 24),
            end_offset: 12_288,
            commit: 22,
            known_durable: 24,
            epochs: vec![at(3, 20), at(5, 24)],
            voids: vec![VoidView { generation: 8, end: 30 }],
            batches: vec![batch],
            extents: Some(vec![ExtentView { volume: 1, extent: 3, version: 17 }]),
            faults: vec!["1 of 4 copies of the superblock are damaged".into()],
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn damage_and_a_copy_that_did_not_end_are_told() {
        let mut found = inspection(Some(UnfinishedCopy { base: Index(5), kept: true }));
        found.copies = vec![Some(12); 4];
        found.known_durable = Index(25);
        found.versions = Err("page 3 is damaged".into());
        let told = view(Path::new("/pool/db-7"), &found);
        assert_eq!(told.data, DataState::Inconsistent);
        assert!(told.unfinished_copy.is_some_and(|copy| copy.kept), "{told:?}");
        assert_eq!((told.known_durable, told.extents), (25, None));
        let [journal, table] = &told.faults[..] else { panic!("two faults: {:?}", told.faults) };
        assert!(journal.contains("up to 25") && journal.contains("entry 25"), "{journal}");
        assert_eq!(table, "page 3 is damaged");
    }
}
