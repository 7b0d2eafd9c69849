//! The target of an extent copy (R16), against the primary's log as the model.

use crate::lab::{self, Lab, Log, Random, entries, write};
use bytes::Bytes;
use mainstay_store::{Output, Tuning};
use mainstay_types::{ClientMark, DataState, EXTENT_BYTES, Extent, VolumeId};
use proptest::prelude::*;

/// Whether the store told it since the last call.
fn told(lab: &mut Lab, what: impl Fn(&Output) -> bool) -> bool {
    let heard = lab.told.iter().any(what);
    lab.told.clear();
    heard
}

/// Copies everything the target lacks, with a random order of everything. False if it crashed on
/// the way.
fn copy(lab: &mut Lab, log: &mut Log, random: &mut Random, crash_percent: u64) -> bool {
    let base = lab.store.log_state().base;
    let start = log.end();
    let volumes = log.sizes(&lab.config.volumes, start.index);
    lab.store.restart(start, log.chain(), &volumes, &[], ClientMark::default());
    let mut appended = start.index;
    let mut need = start.index;
    let mut to_copy: Option<Vec<(VolumeId, Extent)>> = None;
    let mut in_transit = Vec::new();
    let mut finishing = false;
    for _ in 0..600 {
        if random.chance(crash_percent) {
            return false;
        }
        match random.below(10) {
            // The primary goes on.
            0 | 1 if lab.store.room() > 16 * 4096 && !finishing => {
                let commit = log.end().index;
                let now = log.sizes(&lab.config.volumes, commit);
                log.seal(2, commit, entries(random, &now));
            }
            2 | 3 => {
                let next = log.batches.iter().find(|batch| batch.first > appended).cloned();
                if let Some(batch) = next {
                    appended = batch.last();
                    lab.store.append(batch);
                    if random.chance(70) {
                        lab.store.commit(appended);
                    }
                }
            }
            4 | 5 => match &mut to_copy {
                None => {
                    if told(lab, |told| matches!(told, Output::Restarted { .. })) {
                        let versions = log.versions(log.end().index);
                        let lacking = versions.into_iter().filter(|&(_, version)| version > base);
                        let there = |&(volume, extent): &(VolumeId, Extent)| {
                            extent.offset() < volumes[usize::from(volume.0)]
                        };
                        to_copy = Some(lacking.map(|(extent, _)| extent).filter(there).collect());
                    }
                }
                Some(left) if !left.is_empty() => {
                    let (volume, extent) = left.swap_remove(random.below(left.len()));
                    let at = log.end().index;
                    need = need.max(at);
                    let content = &log.content(&lab.config.volumes, at)[usize::from(volume.0)];
                    let from = extent.index() * EXTENT_BYTES as usize;
                    let to = (volumes[usize::from(volume.0)] as usize).min(from + EXTENT_BYTES as usize);
                    let data = &content[from..to];
                    let zero = data.iter().all(|&byte| byte == 0);
                    let data = if zero { Bytes::new() } else { Bytes::copy_from_slice(data) };
                    let version = log.versions(at)[&(volume, extent)];
                    in_transit.push((volume, extent, version, data));
                }
                Some(_) if !finishing && in_transit.is_empty() => {
                    finishing = true;
                    lab.store.finish_copy(need);
                }
                Some(_) => {}
            },
            // An extent is under way for a while, and the stream overtakes it.
            6 if !in_transit.is_empty() => {
                let at = random.below(in_transit.len());
                let (volume, extent, version, data) = in_transit.swap_remove(at);
                lab.store.install_extent(volume, extent, version, data, Vec::new(), Vec::new());
            }
            6 => lab.store.destage_now(),
            _ => {
                if random.chance(2) {
                    lab.check_kept(log);
                }
                lab.pump();
                if !lab.doing.is_empty() {
                    let at = random.below(lab.doing.len());
                    lab.complete(at);
                }
            }
        }
        if finishing && told(lab, |told| matches!(told, Output::CopyFinished)) {
            assert!(lab.store.log_state().commit >= need);
            assert_eq!(lab.store.log_state().data, DataState::Consistent);
            return true;
        }
    }
    // Whatever is left now happens in order.
    lab.settle();
    for batch in log.batches.iter().filter(|batch| batch.first > appended) {
        lab.store.append(batch.clone());
        lab.store.commit(batch.last());
        lab.settle();
    }
    lab.store.commit(log.end().index);
    lab.settle();
    if finishing {
        assert!(told(lab, |told| matches!(told, Output::CopyFinished)));
    }
    finishing
}

/// A target that is written to in many places before any extent comes, and has few runs of memory
/// (R18).
fn written_ahead_of_extents() -> (Lab, Log) {
    let mut lab = Lab::with(lab::config(), Tuning { runs_max: 4, ..lab::tuning() });
    let mut log = Log::default();
    log.seal(1, log.end().index, vec![write(0, 1, 1)]);
    lab.store.restart(log.end(), log.chain(), &lab.config.volumes.clone(), &[], ClientMark::default());
    lab.settle();
    assert!(told(&mut lab, |told| matches!(told, Output::Restarted { .. })));
    // Blocks apart, so that each is a run of its own.
    for block in (0..16).step_by(2) {
        let batch = log.seal(1, log.end().index, vec![write(block, 1, 2)]);
        lab.store.append(batch.clone());
        lab.settle();
        lab.store.commit(batch.last());
    }
    lab.store.destage_now();
    lab.settle();
    assert_eq!(lab.told_durable(), log.end().index, "nothing waits for extents");
    let volume = &lab.disk.areas[&mainstay_store::Area::Volume(VolumeId(0))];
    assert!((0..16).step_by(2).all(|block| volume[block * 4096] == 2), "and all of it is in the volume");
    (lab, log)
}

#[test]
fn a_copy_starts_over_after_much_was_written_ahead_of_it() {
    let (mut lab, log) = written_ahead_of_extents();
    lab.store.restart(log.end(), log.chain(), &lab.config.volumes.clone(), &[], ClientMark::default());
    lab.settle();
    assert!(
        told(&mut lab, |told| matches!(told, Output::Restarted { .. })),
        "it waits for what does not come"
    );
}

#[test]
fn a_copy_ends_after_much_was_written_ahead_of_it() {
    let (mut lab, log) = written_ahead_of_extents();
    lab.store.finish_copy(log.end().index);
    lab.settle();
    assert!(told(&mut lab, |told| matches!(told, Output::CopyFinished)), "it waits for what does not come");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// The target ends with the primary's content, in every order of stream, extents, destaging and
    /// completions. Until then it is inconsistent with the base it began with, through any crash.
    #[test]
    fn a_copy_ends_with_the_content_of_the_primary(seed in any::<u64>()) {
        let mut random = Random(seed);
        let mut lab = Lab::new();
        let mut log = Log::default();
        for _ in 0..random.below(12) {
            let volumes = log.sizes(&lab.config.volumes, log.end().index);
            let batch = log.seal(1, log.end().index, entries(&mut random, &volumes));
            lab.store.append(batch.clone());
            lab.settle();
            lab.store.commit(batch.last());
        }
        let known = log.end().index;
        lab.settle();
        // A divergent tail that was never committed.
        let mut divergent = log.clone();
        lab.store.append(divergent.seal(1, known, entries(&mut random, &lab.config.volumes)));
        for _ in 0..random.below(30) {
            log.seal(2, log.end().index, entries(&mut random, &lab.config.volumes));
        }
        log.seal(2, log.end().index, entries(&mut random, &lab.config.volumes));
        let mut base = lab.store.log_state().base;
        prop_assert_eq!(base, known);
        let mut tries = 0;
        while !copy(&mut lab, &mut log, &mut random, if tries < 4 { 1 } else { 0 }) {
            lab.crash(&mut random).expect("no corruption");
            lab.check_kept(&log);
            let state = lab.store.log_state();
            if state.data == DataState::Inconsistent {
                prop_assert_eq!(state.base, base);
            } else {
                // Nothing was restarted yet and some of the knowledge of commits was lost, or the
                // copy was complete and not told yet.
                prop_assert!(state.base <= base || state.base > known);
                base = state.base;
            }
            tries += 1;
            prop_assert!(tries < 20);
        }
        lab.check(&log);
        // And so it is after a crash.
        lab.crash(&mut random).expect("no corruption");
        prop_assert!(lab.disk.snapshots.is_empty(), "what was kept stays");
        prop_assert_eq!(lab.store.log_state().data, DataState::Consistent);
        let end = lab.store.log_state().end.index;
        log.truncate(end);
        lab.check(&log);
        lab.store.commit(end);
        lab.check(&log);
    }
}
