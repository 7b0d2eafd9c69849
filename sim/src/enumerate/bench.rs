//! A store on a disk of which every crash image is known, one action at a time.

use super::image::{BLOCK, Block, Image, Layout, Slot, mixed};
use super::model::{Copy, Expectation, Flat, PossibleLog, VOLUME};
use super::{Action, Lie, Op, Setup};
use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind, NewEntry, Superblock};
use mainstay_store::{Area, OpId, Output, Store, StoreConfig, Tuning};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, DataState, Epoch, Extent, Incarnation, Index, Position, Range, ResourceId,
};
use std::collections::VecDeque;
use std::sync::Arc;

const RESOURCE: ResourceId = ResourceId(7);
pub const VOLUME_BLOCKS: u64 = 3;

pub fn config(setup: &Setup) -> StoreConfig {
    StoreConfig {
        resource: RESOURCE,
        incarnation: Incarnation(99),
        volumes: vec![VOLUME_BLOCKS * BLOCK_BYTES],
        sums: false,
        journal_bytes: setup.journal_blocks * BLOCK_BYTES,
    }
}

/// No memory for payloads, so that destaging and reads go through the journal.
pub fn tuning() -> Tuning {
    Tuning { memory_bytes_max: 0, reserve_bytes: 0, ..Tuning::default() }
}

/// See the top of this file.
pub struct Bench {
    setup: Setup,
    store: Store,
    pub layout: Layout,
    pub slots: Vec<Slot>,
    pub doing: Vec<(OpId, Doing)>,
    pub issued: Vec<Op>,
    life: Life,
}

/// An operation in flight.
#[derive(Clone, Debug)]
pub enum Doing {
    Write {
        first: usize,
        blocks: Vec<Block>,
        durable: bool,
    },
    Read {
        offset: u64,
        len: u64,
    },
    /// The first place of the volume, and for each of its blocks how many volatile versions are
    /// covered.
    Flush {
        first: usize,
        covers: Vec<usize>,
    },
}

/// Knowledge of the caller of the store.
struct Life {
    expected: Expectation,
    commit: Index,
    epoch: Epoch,
    promising: bool,
    /// Batches made so far: each has a payload of its own.
    made: u8,
    /// Committed batches that the store dropped before they were in its journal. They are sent
    /// again.
    resend: VecDeque<Arc<Batch>>,
    /// Restarted, and the extent was not handed over yet.
    to_install: bool,
}

fn zeroes(blocks: u64) -> Flat {
    (0..blocks).map(|_| Bytes::from(vec![0; BLOCK])).collect()
}

/// A batch that differs from every batch that was appended before.
pub fn next_batch(world: &PossibleLog, epoch: Epoch, commit: Index) -> Arc<Batch> {
    let range = Range { volume: VOLUME, offset: BLOCK_BYTES, len: BLOCK_BYTES };
    let payload = Bytes::from(vec![0xff; BLOCK]);
    let entry = NewEntry { kind: EntryKind::Write, range, payload, session: 1, request: 1 };
    let (next, chain) = (world.end().index.next(), world.end_chain());
    Arc::new(Batch::seal(RESOURCE, epoch, next, chain, commit, vec![entry]))
}

/// A formatted replica, never used.
pub fn formatted(setup: &Setup) -> Image {
    let config = config(setup);
    let layout = Layout::new(&config);
    let zero = Block::new(Bytes::from(vec![0; BLOCK]));
    let mut image = Image::new(layout.clone(), vec![zero; layout.blocks()]);
    Store::format(&mut image, &config).expect("an image does not fail");
    image
}

impl Bench {
    pub fn new(setup: &Setup, formatted: &Image) -> Self {
        let mut image = formatted.clone();
        let store = Store::recover(&mut image, tuning()).expect("just formatted");
        let slots = image.blocks.into_iter().map(|durable| Slot { durable, later: Vec::new() }).collect();
        let world = PossibleLog {
            start: Position::default(),
            chain: Chain(0),
            content: zeroes(VOLUME_BLOCKS),
            batches: Vec::new(),
            submitted: Index(0),
            told: Index(0),
            awaited: false,
            copy: None,
        };
        let life = Life {
            expected: Expectation { worlds: vec![world], promised: Epoch(0) },
            commit: Index(0),
            epoch: Epoch(1),
            promising: false,
            made: 0,
            resend: VecDeque::new(),
            to_install: false,
        };
        let setup = setup.clone();
        Self { setup, store, layout: image.layout, slots, doing: Vec::new(), issued: Vec::new(), life }
    }

    /// Returns the epoch of the next batch.
    pub fn epoch(&self) -> Epoch {
        self.life.epoch
    }

    pub fn expected(&self) -> &Expectation {
        &self.life.expected
    }

    /// Two histories with equal keys are taken for one.
    pub fn key(&self) -> u128 {
        let mut hash = self.life.expected.hash();
        for &op in &self.issued {
            hash = mixed(hash, op as u128);
        }
        for slot in &self.slots {
            for block in std::iter::once(&slot.durable).chain(&slot.later) {
                hash = mixed(hash, block.hash);
            }
            hash = mixed(hash, slot.later.len() as u128);
        }
        let mut in_flight: Vec<u128> = self.doing.iter().map(|(_, doing)| doing.hash()).collect();
        in_flight.sort_unstable();
        for doing in in_flight {
            hash = mixed(hash, doing);
        }
        let state = self.store.log_state();
        let life = &self.life;
        for number in [
            state.end.index.0,
            state.commit.0,
            u64::from(state.data == DataState::Consistent),
            self.store.promised().0,
            life.commit.0,
            life.epoch.0,
            u64::from(life.promising),
            u64::from(life.to_install),
            life.resend.len() as u64,
        ] {
            hash = mixed(hash, u128::from(number));
        }
        hash
    }

    /// Returns the actions that can come next.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions: Vec<Action> = (0..self.doing.len()).map(Action::Complete).collect();
        if self.life.to_install {
            actions.push(Action::Install);
        }
        if self.issued.len() < self.setup.depth {
            let possible = self.setup.ops.iter().copied().filter(|&op| self.possible(op));
            actions.extend(possible.map(Action::Issue));
        }
        actions
    }

    fn world(&self) -> &PossibleLog {
        self.life.expected.worlds.last().expect("there is always one")
    }

    fn world_mut(&mut self) -> &mut PossibleLog {
        self.life.expected.worlds.last_mut().expect("there is always one")
    }

    /// Tells whether a caller that keeps to the rules may ask for this operation now.
    fn possible(&self, op: Op) -> bool {
        let world = self.world();
        let restarting = world.copy.is_some() && world.awaited;
        match op {
            Op::Write0 | Op::Write1 | Op::WriteBoth | Op::Discard => !self.life.promising,
            Op::Commit => self.life.commit < world.end().index,
            Op::Destage | Op::Promise => !self.life.promising,
            Op::Cut => self.life.commit < world.end().index && !restarting && !self.life.promising,
            Op::Copy => !restarting && !self.life.promising,
        }
    }

    pub fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Complete(at) => self.complete(at)?,
            Action::Issue(op) => {
                self.issued.push(op);
                self.issue(op);
            }
            Action::Install => {
                self.life.to_install = false;
                let world = self.world();
                let (version, data) = (world.start.index, Bytes::from(world.content.concat()));
                self.store.install_extent(VOLUME, Extent(0), version, data, Vec::new(), Vec::new());
            }
        }
        self.pump()
    }

    fn issue(&mut self, op: Op) {
        match op {
            Op::Write0 => self.append(EntryKind::Write, 0, 1),
            Op::Write1 => self.append(EntryKind::Write, 1, 1),
            Op::WriteBoth => self.append(EntryKind::Write, 0, 2),
            Op::Discard => self.append(EntryKind::Discard, 1, 2),
            Op::Commit => {
                self.life.commit = self.world().end().index;
                self.store.commit(self.life.commit);
            }
            Op::Destage => self.store.destage_now(),
            Op::Promise => {
                self.life.epoch.0 += 1;
                self.life.promising = true;
                self.store.promise(self.life.epoch);
            }
            Op::Cut => self.cut(),
            Op::Copy => self.restart(),
        }
    }

    fn append(&mut self, kind: EntryKind, first: u64, blocks: u64) {
        let batch = self.life.resend.pop_front().unwrap_or_else(|| {
            self.life.made += 1;
            let len = blocks * BLOCK_BYTES;
            let payload = if kind == EntryKind::Write {
                // The first sector and the last one; the others are zero, so that few sectors
                // differ.
                let mut payload = vec![0; len as usize];
                payload[3] = self.life.made;
                payload[len as usize - 3] = self.life.made;
                payload.into()
            } else {
                Bytes::new()
            };
            let range = Range { volume: VOLUME, offset: first * BLOCK_BYTES, len };
            let entry = NewEntry { kind, range, payload, session: 0, request: 0 };
            let world = self.world();
            let (next, chain) = (world.end().index.next(), world.end_chain());
            Arc::new(Batch::seal(RESOURCE, self.life.epoch, next, chain, self.life.commit, vec![entry]))
        });
        self.world_mut().batches.push(batch.clone());
        self.store.append(batch);
    }

    /// Cuts everything that is not committed.
    fn cut(&mut self) {
        let mut world = self.world().clone();
        let dropped: Vec<_> =
            world.batches.iter().filter(|batch| batch.last() <= self.life.commit).cloned().collect();
        let to = dropped.last().map_or(world.start, |batch| batch.end());
        self.store.cut(to);
        // What was not submitted goes in any case; the committed part of it comes again.
        let end = world.submitted.min(to.index);
        self.life.resend.extend(dropped.into_iter().filter(|batch| batch.last() > end));
        world.truncate(end);
        world.told = world.told.min(end);
        world.submitted = world.submitted.min(end);
        world.awaited = true;
        self.life.epoch.0 += 1;
        self.life.expected.worlds.push(world);
    }

    /// Begins the copy of the extents of a primary that is ahead by a few entries.
    fn restart(&mut self) {
        let state = self.store.log_state();
        let history = self.life.expected.hash();
        let old = self.world().clone();
        self.life.made += 1;
        let made = self.life.made;
        let mut content = zeroes(VOLUME_BLOCKS);
        let mark = |at: usize| {
            let mut block = vec![0; BLOCK];
            block[at] = made;
            Bytes::from(block)
        };
        content[0] = mark(3);
        content[2] = mark(BLOCK - 3);
        let start =
            Position { epoch: self.life.epoch, index: Index(old.end().index.0.max(self.life.commit.0) + 3) };
        let unfinished = old.copy.as_ref().filter(|copy| !copy.finished);
        let mut may = unfinished.map_or_else(Vec::new, |copy| copy.may.clone());
        if unfinished.is_some() {
            may.push(old.content.clone());
            let ends: Vec<Index> = old.batches.iter().map(|batch| batch.last()).collect();
            may.extend(ends.into_iter().map(|end| old.content_at(end)));
        } else {
            may.push(old.content_at(state.base));
        }
        let copy = Copy {
            base: state.base,
            or_within: unfinished.map(|_| (old.start.index, old.end().index)),
            may,
            history,
            finished: false,
        };
        let chain = Chain(0x5eed_0000 + u64::from(made));
        self.store.restart(start, chain, &[VOLUME_BLOCKS * BLOCK_BYTES], &[], ClientMark::default());
        self.life.resend.clear();
        self.life.commit = start.index;
        self.life.to_install = false;
        self.life.expected.worlds.push(PossibleLog {
            start,
            chain,
            content,
            batches: Vec::new(),
            submitted: start.index,
            told: start.index,
            awaited: true,
            copy: Some(copy),
        });
    }

    fn complete(&mut self, at: usize) -> Result<(), String> {
        let (op, doing) = self.doing.remove(at);
        let mut bytes = None;
        match doing {
            Doing::Write { first, blocks, durable } => {
                for (n, block) in blocks.into_iter().enumerate() {
                    let slot = &mut self.slots[first + n];
                    if durable {
                        *slot = Slot { durable: block, later: Vec::new() };
                    } else {
                        slot.later.push(block);
                    }
                }
            }
            Doing::Read { offset, len } => bytes = Some(self.now().slice(Area::Journal, offset, len)),
            Doing::Flush { first, covers } => {
                for (n, covered) in covers.into_iter().enumerate() {
                    let slot = &mut self.slots[first + n];
                    if let Some(newest) = slot.later.drain(..covered).next_back() {
                        slot.durable = newest;
                    }
                }
            }
        }
        self.store.complete(op, Ok(bytes));
        Ok(())
    }

    fn now(&self) -> Image {
        Image::new(self.layout.clone(), self.slots.iter().map(|slot| slot.now().clone()).collect())
    }

    fn pump(&mut self) -> Result<(), String> {
        while let Some(output) = self.store.poll() {
            let (op, doing) = match output {
                Output::JournalWrite { op, offset, parts } => {
                    let mut bytes = Vec::new();
                    for (local, batch) in &parts {
                        bytes.extend_from_slice(&batch.header_block(*local));
                        batch.payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
                        self.submitted(batch)?;
                    }
                    (op, self.write(Area::Journal, offset, &bytes.into(), true))
                }
                Output::MetaWrite { op, offset, data } => {
                    if let Ok(superblock) = Superblock::decode(&data[..BLOCK]) {
                        let most = self.life.commit;
                        if superblock.commit > most {
                            return Err(format!("commit index {} written, {most} known", superblock.commit));
                        }
                    }
                    (op, self.write(Area::Meta, offset, &data, true))
                }
                Output::VolumeWrite { op, volume, offset, data, durable } => {
                    (op, self.write(Area::Volume(volume), offset, &data.concat().into(), durable))
                }
                Output::VolumeZero { op, volume, offset, len, .. } => {
                    let zeroes = Bytes::from(vec![0; len as usize]);
                    (op, self.write(Area::Volume(volume), offset, &zeroes, false))
                }
                Output::VolumeFlush { op, volume } => {
                    let first = self.layout.place(Area::Volume(volume), 0);
                    let slots = &self.slots[first..first + VOLUME_BLOCKS as usize];
                    let covers = slots
                        .iter()
                        .map(|slot| if self.setup.lie == Some(Lie::Flush) { 0 } else { slot.later.len() });
                    (op, Doing::Flush { first, covers: covers.collect() })
                }
                Output::JournalRead { op, offset, len } => (op, Doing::Read { offset, len }),
                told => {
                    self.told(&told)?;
                    continue;
                }
            };
            self.doing.push((op, doing));
        }
        Ok(())
    }

    fn write(&self, area: Area, offset: u64, bytes: &Bytes, durable: bool) -> Doing {
        let lied = match self.setup.lie {
            Some(Lie::Journal) => area == Area::Journal,
            Some(Lie::Meta) => area == Area::Meta,
            Some(Lie::Flush) | None => false,
        };
        let (first, blocks) = (self.layout.place(area, offset), Block::split(bytes).collect());
        Doing::Write { first, blocks, durable: durable && !lied }
    }

    fn submitted(&mut self, batch: &Batch) -> Result<(), String> {
        let world = self.world_mut();
        let known = world.batches.iter().any(|other| other.chain == batch.chain);
        if !known {
            return Err(format!("entry {} is written after it was cut", batch.first));
        }
        world.submitted = world.submitted.max(batch.last());
        Ok(())
    }

    fn told(&mut self, told: &Output) -> Result<(), String> {
        match told {
            Output::Durable { index } => {
                let end = self.world().end();
                if *index > end.index {
                    return Err(format!("{index} told durable, the log ends at {end}"));
                }
                // While a cut is not durable, the report holds for the log before it, too.
                let worlds = self.life.expected.worlds.iter_mut();
                for world in worlds.filter(|world| (world.start.index..=world.end().index).contains(index)) {
                    world.told = world.told.max(*index);
                }
            }
            Output::Promised { epoch } => {
                self.life.promising = false;
                let promised = &mut self.life.expected.promised;
                *promised = (*epoch).max(*promised);
                let (end, commit) = (self.store.log_state().end.index, self.life.commit);
                if self.world().copy.is_none() || !self.world().awaited {
                    let world = self.world_mut();
                    let dropped = world.batches.iter().filter(|batch| batch.last() > end);
                    let again: Vec<_> = dropped.filter(|batch| batch.last() <= commit).cloned().collect();
                    world.truncate(end);
                    self.life.resend.extend(again);
                }
            }
            Output::CutDone { end, chain } => {
                let world = self.settle_world();
                let start = world.batches.iter().any(|batch| (batch.end(), batch.chain) == (*end, *chain));
                if !start && (world.start, world.chain) != (*end, *chain) {
                    return Err(format!("the cut ended at {end}, not within its log"));
                }
            }
            Output::Restarted { .. } => {
                self.settle_world();
                self.life.to_install = true;
            }
            Output::ExtentInstalled { .. } => {
                let world = self.world();
                let need = world.start.index;
                // An extent of a copy that is to start over says nothing of the new copy.
                if !world.awaited {
                    self.store.finish_copy(need);
                }
            }
            Output::CopyFinished => {
                let worlds = self.life.expected.worlds.iter_mut();
                // A restart that waits for its turn may hear the end of the copy before it.
                for copy in worlds.filter(|world| !world.awaited).filter_map(|world| world.copy.as_mut()) {
                    copy.finished = true;
                }
            }
            // The files that keep a copy target's earlier content are cloned and removed at once.
            // Superblocks that name them are among the images; the files themselves are not.
            Output::SnapshotTake { op, .. } | Output::SnapshotDrop { op, .. } => {
                self.store.complete(*op, Ok(None))
            }
            Output::SnapshotsChanged => {}
            other => return Err(format!("the store said {other:?}")),
        }
        Ok(())
    }

    /// The oldest awaited change of the log is durable: the logs before it are gone.
    fn settle_world(&mut self) -> &PossibleLog {
        let worlds = &mut self.life.expected.worlds;
        let at = worlds.iter().position(|world| world.awaited).expect("only what was asked for is answered");
        worlds.drain(..at);
        worlds[0].awaited = false;
        &worlds[0]
    }
}

impl Doing {
    fn hash(&self) -> u128 {
        match self {
            Self::Write { first, blocks, durable } => {
                let start = (*first as u128) << 1 | u128::from(*durable);
                blocks.iter().fold(start, |hash, block| mixed(hash, block.hash))
            }
            Self::Read { offset, len } => u128::from(*offset) << 64 | u128::from(*len) << 2 | 1,
            Self::Flush { first, covers } => {
                covers.iter().fold(*first as u128, |hash, &covered| mixed(hash, covered as u128))
            }
        }
    }
}
