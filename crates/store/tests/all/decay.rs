//! Payload that left memory and decays in the journal.

use crate::lab::{self, BLOCK, Doing, Lab, Log, write};
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_store::{Area, Output, PAYLOADS_READ_BYTES_MAX, StoreConfig, Tuning};
use mainstay_types::{BLOCK_BYTES, Index, REQUEST_BYTES_MAX};

fn forgetful() -> Tuning {
    Tuning { memory_bytes_max: 0, ..lab::tuning() }
}

/// Two entries, the first of three blocks, the second over its middle one; nothing of them in
/// memory.
fn two_entries() -> (Lab, Log) {
    let mut lab = Lab::with(lab::config(), forgetful());
    let mut log = Log::default();
    lab.store.append(log.seal(1, Index(0), vec![write(0, 3, 1), write(1, 1, 2)]));
    lab.settle();
    lab.store.commit(Index(2));
    lab.settle();
    (lab, log)
}

fn destage_with_damage_at(lab: &mut Lab, payload_byte: usize) -> String {
    lab.disk.areas.get_mut(&Area::Journal).expect("exists")[HEADER_BLOCK_BYTES + payload_byte] ^= 1;
    lab.store.destage_now();
    lab.settle();
    let failed = lab.told.iter().find_map(|told| match told {
        Output::Failed { reason } => Some(reason.clone()),
        _ => None,
    });
    let volume = lab.disk.areas.iter().filter(|(area, _)| matches!(area, Area::Volume(_)));
    assert!(volume.flat_map(|(_, bytes)| bytes).all(|byte| *byte == 0), "nothing of it is in a volume");
    failed.expect("a damaged journal is the end of the store")
}

#[test]
fn decayed_journal_content_never_reaches_a_volume() {
    let (mut lab, _) = two_entries();
    assert_eq!(destage_with_damage_at(&mut lab, 100), "the journal record of entry 1 is damaged");
    // Damage in the part that is already overwritten: the checksum covers the whole entry.
    let (mut lab, _) = two_entries();
    assert_eq!(destage_with_damage_at(&mut lab, BLOCK + 100), "the journal record of entry 1 is damaged");
    let (mut lab, _) = two_entries();
    assert_eq!(destage_with_damage_at(&mut lab, 3 * BLOCK), "the journal record of entry 2 is damaged");
}

#[test]
fn entries_found_by_recovery_are_checked_again_when_read_again() {
    let (mut lab, log) = two_entries();
    let disk = lab.disk.clone();
    lab.recover_from(disk).expect("all is well yet");
    lab.store.commit(Index(2));
    lab.check(&log);
    assert_eq!(destage_with_damage_at(&mut lab, 3 * BLOCK), "the journal record of entry 2 is damaged");
}

#[test]
fn parts_of_entries_are_cut_out_of_their_payloads() {
    let (mut lab, log) = two_entries();
    lab.check(&log);
    lab.store.destage_now();
    lab.settle();
    assert_eq!(lab.store.log_state().commit, Index(2));
    lab.check(&log);
}

#[test]
fn payloads_that_are_read_for_one_write_are_bounded() {
    let config =
        StoreConfig { journal_bytes: 16 << 20, volumes: vec![2 * REQUEST_BYTES_MAX], ..lab::config() };
    let mut lab = Lab::with(config, Tuning { destage_start_bytes: u64::MAX, ..forgetful() });
    let mut log = Log::default();
    // Of each but the last one block is left to write.
    for n in 0..4 {
        lab.store.append(log.seal(1, Index(n), vec![write(n, REQUEST_BYTES_MAX / BLOCK_BYTES, n as u8 + 1)]));
        lab.settle();
    }
    lab.store.commit(Index(4));
    lab.store.destage_now();
    lab.pump();
    let mut most = 0;
    while !lab.doing.is_empty() {
        let reading = lab.doing.iter().map(|(_, doing)| match doing {
            Doing::Read { area: Area::Journal, len, .. } => *len,
            _ => 0,
        });
        most = reading.sum::<u64>().max(most);
        lab.complete(0);
    }
    // Several writes, because neighbours are merged up to an extent only; just the first needs many
    // payloads.
    assert!((REQUEST_BYTES_MAX..=2 * PAYLOADS_READ_BYTES_MAX).contains(&most), "{most} bytes");
    lab.check(&log);
}
