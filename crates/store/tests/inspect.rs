//! What is told of a replica's media is what recovery makes of them, and telling it changes nothing.

mod lab;

use lab::{BLOCK, Lab, Log, write};
use mainstay_codec::EntryKind;
use mainstay_store::{Area, inspect};
use mainstay_types::{Epoch, Index, VolumeId};

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
fn it_tells_what_recovery_finds_and_changes_nothing() {
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
        for (entry, written) in batch.entries.iter().zip(&sealed.entries) {
            assert_eq!(disk.slice(Area::Journal, entry.offset, entry.range.len), &written.payload[..]);
            assert_eq!(entry.crc, written.payload_crc);
        }
    }
    assert_eq!(found.versions.expect("a version table"), [(VolumeId(0), 0, Index(2))]);

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
