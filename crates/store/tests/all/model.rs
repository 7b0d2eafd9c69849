//! The store against the flat model, under random work, random completion order and crashes.

use crate::lab::{self, Lab, Log, Random, drop_snapshot, entries, rollback, scrub, snapshot};
use mainstay_store::{Output, Segments, Tuning};
use mainstay_types::{DataState, EXTENT_BYTES, Epoch, Index, Position, Range, SnapshotState};
use proptest::prelude::*;

/// One random life of a store.
struct Life {
    lab: Lab,
    log: Log,
    /// Log as it was before a cut that is not durable yet.
    before_cut: Option<Log>,
    cut_to: Index,
    epoch: u64,
    commit: Index,
    promised: Epoch,
    told_durable: Index,
    random: Random,
    /// Number of the last snapshot.
    snapshots: u32,
    /// Extents that are being read for a scrub.
    scrubs: Vec<(Index, Range, Segments)>,
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            lab: Lab::with(
                lab::config(),
                Tuning {
                    pass_parts: [1, 4, 40][(seed % 3) as usize],
                    ..if seed % 4 < 3 { lab::filling() } else { lab::tuning() }
                },
            ),
            log: Log::default(),
            before_cut: None,
            cut_to: Index(0),
            epoch: 1,
            commit: Index(0),
            promised: Epoch(0),
            told_durable: Index(0),
            random: Random(seed),
            snapshots: 0,
            scrubs: Vec::new(),
        }
    }

    fn hear(&mut self) {
        self.lab.pump();
        for told in std::mem::take(&mut self.lab.told) {
            match told {
                Output::Durable { index } => {
                    assert!(index > self.told_durable, "durability is told in order");
                    self.told_durable = index;
                }
                Output::Promised { epoch } => self.promised = self.promised.max(epoch),
                Output::CutDone { end, chain } => {
                    assert_eq!(end.index, self.cut_to);
                    let batch = self.log.batches.iter().rev().find(|b| b.last() <= end.index);
                    assert_eq!(batch.map_or(Position::default(), |b| b.end()), end);
                    assert_eq!(batch.map_or(0, |b| b.chain.0), chain.0);
                    self.before_cut = None;
                }
                Output::Grown { volume, bytes } => {
                    let area = self.lab.disk.areas[&mainstay_store::Area::Volume(volume)].len() as u64;
                    // The volume may have grown again before the test reads this output.
                    assert!(self.lab.store.config().volumes[usize::from(volume.0)] >= bytes && area >= bytes);
                }
                Output::SnapshotsChanged => {}
                Output::Scrub { at, range, segments } if !segments.is_empty() => {
                    self.scrubs.push((at, range, segments));
                }
                Output::Scrub { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn step(&mut self, kind: u8) {
        match kind {
            0..=29 => {
                let volumes = self.log.sizes(&self.lab.config.volumes, self.log.end().index);
                let mut new = entries(&mut self.random, &volumes);
                let snapshots = self.log.snapshots(self.log.end().index);
                if self.random.chance(10) {
                    self.snapshots += 1;
                    new.push(snapshot(self.snapshots));
                } else if self.random.chance(8)
                    && let Some(id) = snapshots.keys().nth(self.random.below(snapshots.len()))
                {
                    new.push(drop_snapshot(id.0));
                } else if self.random.chance(8)
                    && let Some(id) = snapshots.keys().nth(self.random.below(snapshots.len()))
                {
                    self.snapshots += 1;
                    new.push(rollback(id.0, self.snapshots));
                }
                if self.random.chance(20) {
                    let volume = self.random.below(volumes.len());
                    let extents = volumes[volume].div_ceil(EXTENT_BYTES);
                    let extent = self.random.below(extents as usize) as u64;
                    // Before what may be a snapshot: nothing follows one.
                    new.insert(0, scrub(volume as u16, extent, volumes[volume]));
                }
                let bytes: u64 = new.iter().map(|e| e.payload.len() as u64).sum();
                if bytes + 4096 <= self.lab.store.room() {
                    let batch = self.log.seal(self.epoch, self.commit, new);
                    self.lab.store.append(batch);
                }
            }
            30..=44 => {
                let ends = self.log.ends(self.commit);
                self.commit = ends[self.random.below(ends.len())].index;
                self.lab.store.commit(self.commit);
            }
            45..=84 => {
                self.lab.pump();
                if !self.lab.doing.is_empty() {
                    let at = self.random.below(self.lab.doing.len());
                    self.lab.complete(at);
                }
            }
            85..=87 => self.lab.store.destage_now(),
            88..=89 => self.lab.settle(),
            90..=92 if self.before_cut.is_none() => {
                let ends = self.log.ends(self.commit);
                let to = ends[self.random.below(ends.len())];
                self.before_cut = Some(self.log.clone());
                self.lab.store.cut(to);
                // The store may cut more: batches that it had not submitted. It says how far it
                // went.
                self.log.truncate(to.index);
                let kept =
                    self.lab.store.log_plan(Index(to.index.0 + 1), 1).is_ok_and(|plan| plan.is_empty());
                if !kept {
                    while self
                        .lab
                        .store
                        .log_plan(self.log.end().index.next(), 1)
                        .map_or(true, |p| !p.is_empty())
                    {
                        self.log.batches.pop().expect("some end is the store's");
                    }
                }
                self.cut_to = self.log.end().index;
                self.commit = self.commit.min(self.cut_to);
                self.told_durable = self.told_durable.min(self.cut_to);
                self.epoch += 1;
            }
            93..=94 => self.lab.store.promise(Epoch(self.epoch)),
            95..=99 => self.crash(),
            _ => {}
        }
        self.hear();
    }

    /// An extent was read, however long after its entry: it is as of that, unless the journal has
    /// been written over.
    fn end_scrub(&mut self) {
        let (at, range, segments) = self.scrubs.swap_remove(self.random.below(self.scrubs.len()));
        if let Some(found) = self.lab.gather(range, &segments) {
            let model = self.log.content(&self.lab.config.volumes, at);
            let expected = &model[usize::from(range.volume.0)][range.offset as usize..range.end() as usize];
            assert!(found == expected, "extent at {} of {} as of {at}", range.offset, range.volume);
        }
        assert!(self.lab.store.scrub_ended(at), "nothing restarts here");
    }

    fn crash(&mut self) {
        self.hear();
        self.scrubs.clear();
        self.lab.crash(&mut self.random).expect("only torn tails, no corruption");
        let state = self.lab.store.log_state();
        assert!(
            state.end.index >= self.told_durable,
            "{} told durable, {} found",
            self.told_durable,
            state.end
        );
        assert!(self.lab.store.promised() >= self.promised, "a promise was forgotten (R1)");
        let found = |log: &Log| {
            let batch = log.batches.iter().rev().find(|b| b.last() <= state.end.index);
            batch.map_or((Position::default(), 0), |b| (b.end(), b.chain.0)) == (state.end, state.chain.0)
        };
        if !found(&self.log) {
            self.log = self.before_cut.take().expect("the log that was found is none that was written");
            assert!(found(&self.log), "the log that was found is none that was written");
        }
        self.before_cut = None;
        self.log.truncate(state.end.index);
        assert!(state.commit <= self.commit.max(state.commit));
        self.commit = self.commit.min(state.end.index).max(state.commit);
        self.told_durable = state.end.index;
        let mut epochs: Vec<(Epoch, Index)> = Vec::new();
        for batch in &self.log.batches {
            match epochs.last_mut() {
                Some(last) if last.0 == batch.epoch => last.1 = batch.last(),
                _ => epochs.push((batch.epoch, batch.last())),
            }
        }
        assert_eq!(state.epochs, epochs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// Overlay, destaging, ring, cut, promise and recovery together: whatever the order of
    /// completions and wherever the crash, the store reads as the flat model does and its log is
    /// the model's.
    #[test]
    fn a_store_lives_like_its_model(seed in any::<u64>(), steps in prop::collection::vec(0u8..100, 1..160)) {
        let mut life = Life::new(seed);
        for kind in steps {
            life.step(kind);
            if !life.scrubs.is_empty() && life.random.chance(25) {
                life.end_scrub();
            }
            life.lab.check(&life.log);
        }
        // At the end everything can be committed, destaged and read from the volumes alone.
        life.lab.settle();
        life.hear();
        life.lab.store.commit(life.log.end().index);
        life.hear();
        // An extent that is read holds up changes to it, and these may hold up the next extent.
        loop {
            while !life.scrubs.is_empty() {
                life.end_scrub();
            }
            life.lab.store.destage_now();
            life.lab.settle();
            life.hear();
            if life.scrubs.is_empty() {
                break;
            }
        }
        let end = life.log.end().index;
        let state = life.lab.store.log_state();
        prop_assert_eq!(state.commit, end);
        prop_assert_eq!(state.data, DataState::Consistent);
        life.lab.check_snapshots(&life.log);
        let held: Vec<_> = life.lab.store.snapshots().map(|(id, snapshot)| (id, snapshot.state)).collect();
        prop_assert!(held.iter().all(|(_, state)| *state == SnapshotState::Held), "{:?}", held);
        prop_assert!(life.lab.disk.snapshots.keys().eq(held.iter().map(|(id, _)| id)), "what was dropped is gone");
        for (n, model) in life.log.content(&life.lab.config.volumes, end).iter().enumerate() {
            let area = mainstay_store::Area::Volume(mainstay_types::VolumeId(n as u16));
            prop_assert!(&life.lab.disk.areas[&area][..model.len()] == model);
        }
    }
}
