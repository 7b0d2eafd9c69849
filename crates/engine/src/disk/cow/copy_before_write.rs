//! Copy-before-write of a volume: puts content aside before it is overwritten, for a snapshot in a
//! pool that cannot clone files.
//!
//! ```text
//! a write waits ─▶ copy the chunks that it changes ─▶ flush the copies ─▶ write the map ─▶ the write goes on
//! ```
//!
//! Guarantee: a write goes on only when all chunks of the volume that it touches are
//! covered. A chunk is covered when its content at the time of the snapshot is durable elsewhere,
//! and the map durably says so. A power cut may leave any part of the write. The snapshot then
//! reads each chunk from its copy if the map has it, and from the volume otherwise. Either way it
//! finds the same content.
//!
//! Writes that come together are served by one round of copies, one flush and one write of each
//! page of the map. A chunk that is a hole costs only its bit. Zeroes where a hole is change
//! nothing. No I/O happens here: the caller does what a [`Todo`] says, and reports how it ended.

use super::chunks::ChunkSet;
use mainstay_codec::old_map::OLD_CHUNK_BYTES;
use std::collections::{BTreeSet, VecDeque};

/// Most chunks of a round (R18): 4 MiB.
const ROUND_CHUNKS: usize = 256;
/// Most neighbours that are copied at once: 1 MiB.
const RUN_CHUNKS: u64 = 64;

/// Step that the caller is to do now. Steps that are given together may be done in any order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Todo {
    /// Copy `chunks` chunks of the volume, from `first` on, to their place in the layer's file.
    Copy { first: u64, chunks: u64 },
    /// Flush the layer's file.
    Flush,
    /// Write this page of the map, durably.
    Map(u64),
}

/// Next steps for the caller, and the writes that are decided.
#[derive(Debug)]
pub struct Turn<W> {
    pub todo: Vec<Todo>,
    /// Writes that may go on.
    pub free: Vec<W>,
    /// Writes whose old content could not be kept: they must not happen.
    pub failed: Vec<W>,
}

impl<W> Default for Turn<W> {
    fn default() -> Self {
        Self { todo: Vec::new(), free: Vec::new(), failed: Vec::new() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Copying { left: usize },
    Flushing,
    Mapping { left: usize },
}

#[derive(Debug)]
struct Waiting<W> {
    /// Chunks from here on have not been looked at.
    next: u64,
    end: u64,
    zeroes: bool,
    write: W,
}

/// Copy-before-write of one volume. `W`: a write that it may hold.
#[derive(Debug)]
pub struct CopyBeforeWrite<W> {
    /// Size of the volume when the present file was begun, in bytes. Content beyond belongs to no
    /// snapshot.
    bytes: u64,
    /// Chunks that need not be kept any more: this or an older file has the content that the newest
    /// snapshot held there.
    covered: ChunkSet,
    /// Chunks that the present file has, or that are being copied there.
    own: ChunkSet,
    stage: Stage,
    round: BTreeSet<u64>,
    failed: bool,
    waiting: VecDeque<Waiting<W>>,
}

impl<W> CopyBeforeWrite<W> {
    /// `bytes`: size of the volume when the present file was begun. `own`: chunks that this file
    /// has. `covered`: chunks that other files have.
    #[must_use]
    pub fn new(bytes: u64, own: ChunkSet, covered: &ChunkSet) -> Self {
        let mut all = own.clone();
        all.add(covered);
        let (waiting, round) = Default::default();
        Self { bytes, covered: all, own, stage: Stage::Idle, round, failed: false, waiting }
    }

    /// Other files have these as well.
    pub fn cover(&mut self, covered: &ChunkSet) {
        let mut all = self.own.clone();
        for chunk in &self.round {
            // Not yet: the map that names this chunk is not durable.
            all.remove(*chunk);
        }
        all.add(covered);
        self.covered = all;
    }

    /// A write of `len` bytes at `offset` is to happen. Gives it back if it may happen at once;
    /// otherwise it waits, and [`begin`](Self::begin) is to be called.
    pub fn hold(&mut self, (offset, len): (u64, u64), zeroes: bool, write: W) -> Option<W> {
        let end = offset.saturating_add(len).min(self.bytes);
        if end <= offset {
            return Some(write);
        }
        let (first, end) = (offset / OLD_CHUNK_BYTES, end.div_ceil(OLD_CHUNK_BYTES));
        let Some(next) = self.covered.next_missing(first, end) else { return Some(write) };
        self.waiting.push_back(Waiting { next, end, zeroes, write });
        None
    }

    /// Writes that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle && self.waiting.is_empty()
    }

    /// Where chunks lie, and how much of them is kept, in bytes.
    #[must_use]
    pub fn place(&self, first: u64, chunks: u64) -> (u64, u64) {
        let offset = first * OLD_CHUNK_BYTES;
        (offset, (chunks * OLD_CHUNK_BYTES).min(self.bytes - offset))
    }

    /// A page of the map as it is to be.
    #[must_use]
    pub fn page(&self, page: u64) -> Vec<u8> {
        self.own.page(page)
    }

    /// Begins a round if none is under way and a write waits. `data` returns the first offset, from
    /// one offset on and before another, at which the volume has something else than a hole.
    pub fn begin(&mut self, data: impl Fn(u64, u64) -> Option<u64>) -> Turn<W> {
        let mut turn = Turn::default();
        while self.stage == Stage::Idle && !self.waiting.is_empty() {
            let copies = self.gather(&data);
            if self.round.is_empty() {
                // Zeroes where nothing is.
                self.release(&mut turn);
                continue;
            }
            let runs = copies.chunk_by(|one, next| one + 1 == *next);
            let runs = runs.flat_map(|run| run.chunks(RUN_CHUNKS as usize));
            turn.todo = runs.map(|run| Todo::Copy { first: run[0], chunks: run.len() as u64 }).collect();
            self.stage = Stage::Copying { left: turn.todo.len() };
            if turn.todo.is_empty() {
                turn.todo = self.map();
            }
        }
        turn
    }

    /// Chooses the chunks of a round; those among them that have content, in ascending order.
    fn gather(&mut self, data: &impl Fn(u64, u64) -> Option<u64>) -> Vec<u64> {
        let mut copies = Vec::new();
        for one in &mut self.waiting {
            while one.next < one.end && self.round.len() < ROUND_CHUNKS {
                let Some(chunk) = self.covered.next_missing(one.next, one.end) else {
                    one.next = one.end;
                    break;
                };
                one.next = chunk + 1;
                if self.round.contains(&chunk) {
                    continue;
                }
                let offset = chunk * OLD_CHUNK_BYTES;
                let chunk_end = (offset + OLD_CHUNK_BYTES).min(self.bytes);
                let has_data = match data(offset, if one.zeroes { self.bytes } else { chunk_end }) {
                    Some(at) if at < chunk_end => true,
                    // Neither here nor up to there.
                    at if one.zeroes => {
                        one.next = at.map_or(one.end, |at| (at / OLD_CHUNK_BYTES).min(one.end));
                        continue;
                    }
                    _ => false,
                };
                self.round.insert(chunk);
                if has_data {
                    copies.push(chunk);
                }
            }
        }
        copies.sort_unstable();
        copies
    }

    /// Something was done, or could not be.
    ///
    /// # Panics
    /// When nothing of the kind was to be done.
    pub fn done(&mut self, ok: bool) -> Turn<W> {
        let mut turn = Turn::default();
        self.failed |= !ok;
        let left = |left: usize| left.checked_sub(1).expect("no more ends than beginnings");
        match self.stage {
            Stage::Idle => panic!("nothing was to be done"),
            Stage::Copying { left: before } => {
                let left = left(before);
                self.stage = Stage::Copying { left };
                if left == 0 && self.failed {
                    self.end(&mut turn);
                } else if left == 0 {
                    self.stage = Stage::Flushing;
                    turn.todo.push(Todo::Flush);
                }
            }
            Stage::Flushing if self.failed => self.end(&mut turn),
            Stage::Flushing => turn.todo = self.map(),
            Stage::Mapping { left: before } => {
                let left = left(before);
                self.stage = Stage::Mapping { left };
                if left == 0 {
                    self.end(&mut turn);
                }
            }
        }
        turn
    }

    fn map(&mut self) -> Vec<Todo> {
        for chunk in &self.round {
            self.own.insert(*chunk);
        }
        let pages: BTreeSet<u64> = self.round.iter().map(|chunk| ChunkSet::page_of(*chunk)).collect();
        self.stage = Stage::Mapping { left: pages.len() };
        pages.into_iter().map(Todo::Map).collect()
    }

    fn end(&mut self, turn: &mut Turn<W>) {
        self.stage = Stage::Idle;
        let round = std::mem::take(&mut self.round);
        if std::mem::take(&mut self.failed) {
            // If the map on disk has these chunks it is right, but it is not known whether it has
            // them.
            round.iter().for_each(|chunk| self.own.remove(*chunk));
            // Later rounds would meet the same failure. Each of their writes fails now, and its
            // writer tries again.
            turn.failed.extend(self.waiting.drain(..).map(|one| one.write));
            return;
        }
        for chunk in round {
            self.covered.insert(chunk);
        }
        self.release(turn);
    }

    fn release(&mut self, turn: &mut Turn<W>) {
        for one in std::mem::take(&mut self.waiting) {
            if self.covered.next_missing(one.next, one.end).is_none() {
                turn.free.push(one.write);
            } else {
                self.waiting.push_back(one);
            }
        }
    }
}

#[cfg(test)]
mod tests;
