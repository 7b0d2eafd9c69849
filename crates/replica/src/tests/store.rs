//! The flat model of a store: a log in a vector, blocks in a map. It survives crashes as a real one
//! must and keeps the contract that the replica relies on.

use crate::Event;
use mainstay_codec::{Batch, EntryKind, LogState};
use mainstay_types::{BLOCK_BYTES, Chain, DataState, Epoch, Extent, Index, Position, Range, Time, VolumeId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Content of a block: the number that its writer put into it; 0 is zeroes.
pub type Value = u64;
pub type Image = BTreeMap<(VolumeId, u64), Value>;
/// Journal bytes beyond the capacity that only epoch starts may use.
const RESERVE_BYTES: u64 = 2 * BLOCK_BYTES;
/// Two blocks in each volume: a volume is one extent.
pub const VOLUME_BLOCKS: u64 = 2;

#[derive(Clone, Debug)]
pub struct Store {
    pub promised: Epoch,
    pub data: DataState,
    base: Index,
    /// Batches in the journal, appended in order.
    pub journal: Vec<Arc<Batch>>,
    /// Where the journal begins: everything up to here has been let go.
    start: (Position, Chain),
    /// Durable up to here.
    pub durable: Index,
    /// Batches that are being written: where each ends, and when it came.
    pub writing: VecDeque<(Index, Time)>,
    pub commit: Index,
    epochs: Vec<(Epoch, Index)>,
    /// Everything up to here is in `volume`.
    pub checkpoint: Index,
    pub volume: Image,
    overlay: Image,
    versions: BTreeMap<VolumeId, Index>,
    /// Batches that are kept after a checkpoint.
    pub keep: usize,
    pub capacity: u64,
    pub finish: Option<Index>,
}

impl Store {
    pub fn new(keep: usize, capacity: u64) -> Self {
        Self {
            promised: Epoch(0),
            data: DataState::Consistent,
            base: Index(0),
            journal: Vec::new(),
            start: (Position::default(), Chain(0)),
            durable: Index(0),
            writing: VecDeque::new(),
            commit: Index(0),
            epochs: Vec::new(),
            checkpoint: Index(0),
            volume: Image::new(),
            overlay: Image::new(),
            versions: BTreeMap::new(),
            keep,
            capacity,
            finish: None,
        }
    }

    pub fn end(&self) -> (Position, Chain) {
        self.journal.last().map_or(self.start, |batch| (batch.end(), batch.chain))
    }

    pub fn log_state(&self) -> LogState {
        let (end, chain) = self.end();
        let base = if self.data == DataState::Consistent { self.commit } else { self.base };
        LogState { data: self.data, end, chain, commit: self.commit, base, epochs: self.epochs.clone() }
    }

    pub fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.live_bytes())
    }

    /// The same for epoch starts.
    pub fn room_with_reserve(&self) -> u64 {
        (self.capacity + RESERVE_BYTES).saturating_sub(self.live_bytes())
    }

    fn live_bytes(&self) -> u64 {
        self.journal.iter().filter(|b| b.last() > self.checkpoint).map(|b| b.journal_len()).sum()
    }

    pub fn told_room(&self) -> Event {
        Event::Room { bytes: self.room(), with_reserve: self.room_with_reserve() }
    }

    pub fn append(&mut self, batch: Arc<Batch>) {
        let (end, chain) = self.end();
        assert_eq!(batch.first, end.index.next(), "append must continue the log");
        assert_eq!(batch.prev_chain, chain, "append must continue the chain");
        let reserved = batch.entries.iter().all(|e| e.kind == EntryKind::EpochStart);
        let room = if reserved { self.room_with_reserve() } else { self.room() };
        assert!(batch.journal_len() <= room, "append without room");
        match self.epochs.last_mut() {
            Some((epoch, last)) if *epoch == batch.epoch => *last = batch.last(),
            _ => self.epochs.push((batch.epoch, batch.last())),
        }
        self.journal.push(batch);
    }

    pub fn commit(&mut self, to: Index) {
        assert!(to <= self.durable, "commit beyond what is durable");
        assert!(to >= self.commit, "commit goes backwards");
        let from = self.commit;
        self.commit = to;
        for batch in self.journal.clone() {
            for (place, entry) in batch.entries.iter().enumerate() {
                let index = Index(batch.first.0 + place as u64);
                if index <= from || index > to {
                    continue;
                }
                // Of the content of snapshots nothing is known here, but that all of it counts as
                // changed.
                if entry.kind == EntryKind::Rollback {
                    self.versions.values_mut().for_each(|version| *version = index);
                }
                if !entry.kind.changes_blocks() {
                    continue;
                }
                for (nth, block) in (entry.range.first_block()..entry.range.end_block()).enumerate() {
                    let at = nth * BLOCK_BYTES as usize;
                    let value =
                        if entry.kind == EntryKind::Write { value_of(&entry.payload[at..]) } else { 0 };
                    self.overlay.insert((entry.range.volume, block), value);
                }
                self.versions.insert(entry.range.volume, index);
            }
        }
        if self.room() < self.capacity / 2 {
            self.destage();
        }
    }

    pub fn destage(&mut self) {
        // While extents are awaited nothing is destaged: they would overwrite what is newer. After
        // the last one the journal must empty, or a full one could never reach the end of the copy.
        if self.data == DataState::Inconsistent && self.finish.is_none() {
            return;
        }
        let overlay = std::mem::take(&mut self.overlay);
        self.volume.extend(overlay);
        self.checkpoint = self.commit;
        while self.journal.len() > self.keep && self.journal[0].last() <= self.checkpoint {
            let gone = self.journal.remove(0);
            self.start = (gone.end(), gone.chain);
        }
    }

    /// When the oldest batch came of those that are durable now.
    pub fn written(&mut self, to: Index) -> Option<Time> {
        let began = self.writing.front().map(|(_, began)| *began);
        while self.writing.front().is_some_and(|(last, _)| *last <= to) {
            self.writing.pop_front();
        }
        began
    }

    pub fn cut(&mut self, to: Position) -> (Position, Chain) {
        self.writing.clear();
        assert!(to.index >= self.commit, "cut below the commit index");
        self.journal.retain(|batch| batch.last() <= to.index);
        let (end, chain) = self.end();
        assert_eq!(end, to, "cut at a position that the log does not hold");
        self.durable = self.durable.min(end.index);
        while self.epochs.last().is_some_and(|(epoch, _)| *epoch > to.epoch) {
            self.epochs.pop();
        }
        if let Some((epoch, last)) = self.epochs.last_mut()
            && *epoch == to.epoch
        {
            *last = to.index;
        }
        (end, chain)
    }

    pub fn restart(&mut self, at: Position, chain: Chain) {
        if self.data == DataState::Consistent {
            self.destage();
            self.base = self.commit;
        }
        // Entries that had been committed during an earlier copy are older than the content that
        // this one sends.
        self.overlay.clear();
        self.data = DataState::Inconsistent;
        self.journal.clear();
        self.start = (at, chain);
        self.durable = at.index;
        self.commit = at.index;
        self.checkpoint = at.index;
        self.epochs = vec![(at.epoch, at.index)];
        self.finish = None;
    }

    pub fn install(&mut self, volume: VolumeId, version: Index, data: &[u8], kept: &[u32]) {
        let mut at = 0;
        for block in (0..VOLUME_BLOCKS).filter(|block| !kept.contains(&(*block as u32))) {
            let value = if data.is_empty() { 0 } else { value_of(&data[at..]) };
            at += BLOCK_BYTES as usize;
            self.volume.insert((volume, block), value);
        }
        let known = self.versions.entry(volume).or_default();
        *known = version.max(*known);
    }

    /// Whether a copy that is to be finished is finished now.
    pub fn try_finish(&mut self) -> bool {
        if self.finish.is_none_or(|need| self.commit < need) {
            return false;
        }
        self.finish = None;
        self.data = DataState::Consistent;
        self.destage();
        true
    }

    pub fn newer_than(&self, base: Index) -> Vec<(VolumeId, Extent)> {
        self.versions.iter().filter(|(_, version)| **version > base).map(|(v, _)| (*v, Extent(0))).collect()
    }

    pub fn version(&self, volume: VolumeId) -> Index {
        self.versions.get(&volume).copied().unwrap_or_default()
    }

    pub fn load(&self, from: Index) -> Option<Vec<Arc<Batch>>> {
        let at = self.journal.iter().position(|batch| batch.first == from)?;
        Some(self.journal[at..].iter().take(3).cloned().collect())
    }

    /// All that the journal holds.
    pub fn batches(&self) -> impl Iterator<Item = &Arc<Batch>> {
        self.journal.iter()
    }

    pub fn block(&self, volume: VolumeId, block: u64) -> Value {
        let key = (volume, block);
        self.overlay.get(&key).or_else(|| self.volume.get(&key)).copied().unwrap_or(0)
    }

    /// Returns the content of a block once everything up to `to` is committed.
    pub fn block_at(&self, volume: VolumeId, block: u64, to: Index) -> Value {
        let entries = self.journal.iter().flat_map(|batch| (batch.first.0..).map(Index).zip(&batch.entries));
        let mut value = self.block(volume, block);
        for (_, entry) in entries.filter(|(index, _)| (self.commit.next()..=to).contains(index)) {
            let range = entry.range;
            let within = (range.first_block()..range.end_block()).contains(&block);
            if range.volume != volume || !within || !entry.kind.changes_blocks() {
                continue;
            }
            let at = ((block - range.first_block()) * BLOCK_BYTES) as usize;
            value = if entry.kind == EntryKind::Write { value_of(&entry.payload[at..]) } else { 0 };
        }
        value
    }

    /// The disk damages a block.
    pub fn rot(&mut self, volume: VolumeId, block: u64, value: Value) {
        self.overlay.insert((volume, block), value);
    }

    pub fn read(&self, range: Range) -> Vec<Value> {
        (range.first_block()..range.end_block()).map(|block| self.block(range.volume, block)).collect()
    }

    /// A crash: durable batches stay, and so do the first `survivors` of the appended batches that
    /// were not durable.
    pub fn crash(&mut self, survivors: usize) {
        let durable = self.durable;
        let pending = self.journal.iter().filter(|batch| batch.last() > durable).count();
        let keep = self.journal.len() - pending + survivors.min(pending);
        if keep < self.journal.len() {
            let to = if keep == 0 { self.start.0 } else { self.journal[keep - 1].end() };
            self.cut_at(to);
        }
        self.durable = self.end().0.index;
        self.overlay.clear();
        self.commit = self.checkpoint;
        self.finish = None;
    }

    fn cut_at(&mut self, to: Position) {
        let commit = self.commit;
        self.commit = Index(0);
        self.cut(to);
        self.commit = commit;
    }

    /// Whether the durable log holds this position.
    pub fn holds(&self, position: Position, chain: Chain) -> bool {
        if position.index > self.durable {
            return false;
        }
        if position.index <= self.start.0.index {
            return true;
        }
        self.journal.iter().any(|batch| batch.end() == position && batch.chain == chain)
    }
}

pub fn value_of(bytes: &[u8]) -> Value {
    u64::from_le_bytes(bytes[..8].try_into().expect("a block is longer"))
}
