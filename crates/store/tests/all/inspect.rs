//! An inspection tells of a replica's media what recovery makes of them, and changes nothing.

use crate::lab::{BLOCK, Lab, Log, write};
use crate::lab::{Disk, config};
use bytes::Bytes;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::superblock::SUPERBLOCK_BYTES;
use mainstay_codec::{EntryKind, NewEntry, Superblock};
use mainstay_store::{Area, Media, MediaError, RecoverError, inspect};
use mainstay_types::{Epoch, Extent, Index, Range, VolumeId};

/// A replica with a checkpoint after two entries, and three more after that.
fn replica() -> (Lab, Log) {
    let mut lab = Lab::new();
    let mut log = Log::default();
    for n in 0..2 {
        lab.store.append(log.seal(1, Index(0), vec![write(n, 1, n as u8)]));
        lab.settle();
    }
    lab.store.commit(Index(2));
    lab.store.destage_now();
    lab.settle();
    lab.store.append(log.seal(3, Index(2), vec![write(5, 2, 7), write(9, 1, 8)]));
    lab.settle();
    lab.store.append(log.seal(3, Index(4), vec![write(5, 1, 9)]));
    lab.settle();
    (lab, log)
}

#[test]
fn an_inspection_reports_what_recovery_finds_and_changes_nothing() {
    let (lab, log) = replica();
    let mut disk = lab.disk.clone();
    let found = inspect(&mut disk).expect("a replica");
    assert_eq!(disk.areas, lab.disk.areas);
    assert!(found.copies.iter().all(|copy| *copy == Some(found.superblock.sequence)));
    assert_eq!(found.superblock.checkpoint.at.index, Index(2));
    assert_eq!(found.epochs, [(Epoch(1), Index(2)), (Epoch(3), Index(5))]);
    assert_eq!(found.batches.iter().map(|batch| batch.first).collect::<Vec<_>>(), [Index(3), Index(5)]);
    let [first, second] = &found.batches[..] else { panic!("two batches") };
    assert_eq!((first.entries[0].kind, first.entries[0].range.len), (EntryKind::Write, 2 * BLOCK as u64));
    assert_eq!(second.offset, first.offset + first.len);
    assert_eq!(second.durable_before, Index(4));
    for (batch, sealed) in found.batches.iter().zip(&log.batches[2..]) {
        assert_eq!((batch.epoch, batch.commit, batch.chain), (sealed.epoch, sealed.commit, sealed.chain));
        assert_eq!(batch.generation, found.superblock.generation);
        assert_eq!(batch.len, sealed.journal_len());
        for (entry, written) in batch.entries.iter().zip(&sealed.entries) {
            let found = entry.offset.map(|offset| disk.slice(Area::Journal, offset, entry.range.len));
            assert_eq!(found.unwrap_or_default(), &written.payload[..]);
            assert_eq!(entry.crc, written.payload_crc);
        }
    }
    assert_eq!(found.end_offset, second.offset + second.len);
    assert_eq!(found.versions.expect("a version table"), [(VolumeId(0), Extent(0), Index(2))]);

    let (end, commit) = (found.end, found.commit);
    let mut recovered = Lab::new();
    recovered.recover_from(disk).expect("nothing is damaged");
    let state = recovered.store.log_state();
    assert_eq!((end, commit), (state.end, state.commit));
}

#[test]
fn damage_is_told_where_recovery_refuses() {
    let (lab, _) = replica();
    let found = inspect(&mut lab.disk.clone()).expect("a replica");
    let mut disk = lab.disk.clone();
    disk.areas.get_mut(&Area::Journal).expect("exists")[found.batches[0].offset as usize + 20] ^= 1;
    disk.areas.get_mut(&Area::Meta).expect("exists")[20] ^= 1;
    let damaged = inspect(&mut disk).expect("it is still a replica");
    assert_eq!(damaged.copies.iter().filter(|copy| copy.is_none()).count(), 1);
    assert!(damaged.batches.is_empty());
    assert_eq!((damaged.end.index, damaged.known_durable), (Index(2), Index(4)));
}

#[test]
fn an_inspection_tells_kind_and_range_of_each_entry() {
    let mut lab = Lab::new();
    let mut log = Log::default();
    let range = Range { volume: VolumeId(1), offset: BLOCK as u64, len: 3 * BLOCK as u64 };
    let zeroes = |kind| NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 };
    let entries = vec![zeroes(EntryKind::Discard), write(4, 1, 5), zeroes(EntryKind::WriteZeroes)];
    lab.store.append(log.seal(1, Index(0), entries));
    lab.settle();
    let found = inspect(&mut lab.disk.clone()).expect("a replica");
    let [batch] = &found.batches[..] else { panic!("one batch") };
    let kinds: Vec<EntryKind> = batch.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::Discard, EntryKind::Write, EntryKind::WriteZeroes]);
    assert_eq!(batch.entries[0].range, range);
    assert_eq!(batch.entries[1].offset, Some(batch.offset + HEADER_BLOCK_BYTES as u64));
}

/// A replica that is catching up has batches whose commit index is ahead of its journal.
#[test]
fn nothing_is_committed_beyond_the_end_of_the_log() {
    let mut lab = Lab::new();
    let mut log = Log::default();
    lab.store.append(log.seal(1, Index(9), vec![write(0, 1, 1)]));
    lab.settle();
    let found = inspect(&mut lab.disk.clone()).expect("a replica");
    assert_eq!((found.end.index, found.commit), (Index(1), Index(1)));
}

/// A crash between the pairs of copies leaves two of each.
#[test]
fn the_newest_superblock_is_told() {
    let (lab, _) = replica();
    let meta = &lab.disk.areas[&Area::Meta];
    let newest = Superblock::decode(&meta[..SUPERBLOCK_BYTES]).expect("a superblock");
    let older = Superblock { sequence: newest.sequence - 1, promised: Epoch(7), ..newest.clone() }.encode();
    for pair in 0..2 {
        let mut disk = lab.disk.clone();
        let meta = disk.areas.get_mut(&Area::Meta).expect("exists");
        for copy in 0..2 {
            let at = (2 * pair + copy) * SUPERBLOCK_BYTES;
            meta[at..at + SUPERBLOCK_BYTES].copy_from_slice(&older);
        }
        let found = inspect(&mut disk).expect("a replica");
        assert_eq!(found.superblock, newest);
        let mut expected = [Some(newest.sequence); 4];
        expected[2 * pair..2 * pair + 2].fill(Some(newest.sequence - 1));
        assert_eq!(found.copies, expected);
    }
}

/// Disk of which a part of the meta area cannot be read.
struct Unreadable(Disk);

impl Media for Unreadable {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        if area == Area::Meta && offset > 0 {
            return Err(MediaError { detail: "cannot be read".into() });
        }
        self.0.read(area, offset, len)
    }

    fn write_durable(&mut self, _: Area, _: u64, _: &[u8]) -> Result<(), MediaError> {
        panic!("it is only looked at")
    }

    fn flush(&mut self, _: Area) -> Result<(), MediaError> {
        Ok(())
    }
}

/// A page that cannot be read tells nothing about its content. A page that is read and damaged is
/// told as such.
#[test]
fn a_version_table_is_told_to_be_damaged_only_if_it_is() {
    let (lab, _) = replica();
    let error = inspect(&mut Unreadable(lab.disk.clone())).expect_err("nothing can be said");
    assert!(matches!(error, RecoverError::Media(_)));
    let mut disk = lab.disk.clone();
    disk.areas.get_mut(&Area::Meta).expect("exists")[4 * SUPERBLOCK_BYTES..].fill(0xff);
    let found = inspect(&mut disk).expect("a replica");
    assert!(found.versions.is_err());
    assert_eq!(found.superblock.volumes, config().volumes);
}
