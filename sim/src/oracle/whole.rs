//! Oracle of whole writes (R26): a write of several blocks is whole or absent. Neither the content
//! of a replica nor the answer to a read shows a mix that no order of whole writes explains.
//!
//! Every write has a value of its own, which all of its blocks hold. So content says of each block
//! which write it is from, and the oracle asks whether one order of these writes leads to it:
//!
//! - If a block shows write *u*, and write *v*, which covers that block too, is shown elsewhere,
//!   then *v* has happened, and it came before *u*.
//! - If *v* had its place in the log before *u* was asked for, *v* came before *u*. A write has its
//!   place when it was answered, or when its outcome became unknown (see `register.rs`).
//!
//! A mix breaks R26 if these rules make a circle. It also breaks R26 if *v* is shown, and a block
//! that it covers shows what was there before all writes: zeroes, or content to which the resource
//! was rolled back.
//!
//! The oracle knows what clients asked for and nothing of the log. So it also sees a request that
//! became two entries, of which every replica has the first one only.
//!
//! Zeroes have no value of their own. A block of zeroes says nothing if any discard or write-zeroes
//! can have come after *v*.

use super::register::VolumeKey;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[cfg(test)]
mod tests;

/// Order of calls; 0 is before the run.
type Moment = u64;
const NEVER: Moment = u64::MAX;

/// Every write of a run.
#[derive(Debug, Default)]
pub struct WholeWrites {
    /// By request.
    writes: BTreeMap<u64, Write>,
    /// Requests by the value that they wrote.
    values: BTreeMap<u64, u64>,
    /// Requests that made zeroes, by volume.
    zeroes: BTreeMap<VolumeKey, Vec<u64>>,
    /// Requests without a place in the log.
    open: BTreeSet<u64>,
    /// Requests that got their place, in the order in which they did.
    placed: Vec<(Moment, u64)>,
    /// Content to which volumes were rolled back; zeroes in all others.
    bases: BTreeMap<VolumeKey, Vec<u64>>,
    /// When a resource was last rolled back.
    rolled_back: BTreeMap<usize, Moment>,
}

#[derive(Debug)]
struct Write {
    volume: VolumeKey,
    blocks: Range<u64>,
    start: Moment,
    /// When it can no longer be given a place in the log.
    placed: Moment,
}

/// Why one write came before another.
#[derive(Clone, Copy, Debug)]
enum Because {
    /// This block, which both cover, shows the other one.
    Shown(u64),
    /// A client asked for the other one when this one had its place.
    Asked,
}

impl WholeWrites {
    /// A client asks for a write. `value` 0 stands for zeroes.
    pub fn asked(&mut self, request: u64, now: Moment, volume: VolumeKey, blocks: Range<u64>, value: u64) {
        if value == 0 {
            self.zeroes.entry(volume).or_default().push(request);
        } else {
            self.values.insert(value, request);
        }
        self.open.insert(request);
        self.writes.insert(request, Write { volume, blocks, start: now, placed: NEVER });
    }

    /// The write was answered, or its outcome became unknown.
    pub fn placed(&mut self, request: u64, now: Moment) {
        if !self.open.remove(&request) {
            return;
        }
        if let Some(write) = self.writes.get_mut(&request) {
            write.placed = now;
            self.placed.push((now, request));
        }
    }

    /// The write was answered and is lost, so its place counts no more. It may be found again.
    pub fn lost(&mut self, request: u64, now: Moment) {
        if let Some(write) = self.writes.get_mut(&request) {
            write.placed = now;
            self.placed.push((now, request));
        }
    }

    /// The write has not happened and never will.
    pub fn refused(&mut self, request: u64) {
        self.open.remove(&request);
        self.writes.remove(&request);
        self.values.retain(|_, of| *of != request);
        for zeroes in self.zeroes.values_mut() {
            zeroes.retain(|of| *of != request);
        }
    }

    /// The volume holds this content from now on, as if nothing had been written before.
    pub fn rolled_back(&mut self, volume: VolumeKey, now: Moment, content: Vec<u64>) {
        self.rolled_back.insert(volume.0, now);
        self.bases.insert(volume, content);
    }

    /// Whether nothing changed these blocks since `start`, so that a read of them from `start` on
    /// shows one moment.
    #[must_use]
    pub fn is_quiet(&self, volume: VolumeKey, blocks: &Range<u64>, start: Moment) -> bool {
        let meets = |request: &u64| {
            self.writes.get(request).is_some_and(|write| {
                write.volume == volume && write.blocks.start < blocks.end && blocks.start < write.blocks.end
            })
        };
        let lately = self.placed.iter().rev().take_while(|(at, _)| *at >= start);
        self.rolled_back.get(&volume.0).is_none_or(|at| *at < start)
            && !self.open.iter().any(meets)
            && !lately.map(|(_, request)| request).any(meets)
    }

    /// Judges content of a volume: blocks, each with its value. Blocks whose value is not known are
    /// left out.
    ///
    /// # Errors
    /// Why no order of whole writes leads to it.
    pub fn check(&self, volume: VolumeKey, content: &[(u64, u64)]) -> Result<(), String> {
        let base = self.bases.get(&volume);
        let base = |block: u64| base.and_then(|base| base.get(block as usize)).copied().unwrap_or(0);
        let mut shown: BTreeMap<u64, &Write> = BTreeMap::new();
        for (block, value) in content.iter().filter(|(block, value)| *value != base(*block)) {
            let write = self.values.get(value).and_then(|request| self.writes.get(request));
            if let Some(write) = write.filter(|write| write.volume == volume && write.blocks.contains(block))
            {
                shown.insert(*value, write);
            }
        }
        let mut order = Order::new(shown.keys().copied().collect());
        for (value, write) in shown.iter().filter(|(_, write)| write.blocks.end - write.blocks.start > 1) {
            let covered = content.iter().filter(|(block, _)| write.blocks.contains(block));
            for (block, found) in covered.filter(|(_, found)| found != value) {
                if *found != base(*block) && shown.contains_key(found) {
                    order.before(*value, *found, Because::Shown(*block));
                } else if (*found == base(*block) || *found == 0)
                    && (*found != 0 || !self.zeroed_after(volume, *block, write))
                {
                    let first = content.iter().find(|(_, found)| found == value).map_or(0, |(at, _)| *at);
                    return Err(format!(
                        "block {first} is from write {value}, and block {block}, which it covers as well, holds {found}, older than that write"
                    ));
                }
            }
        }
        for (earlier, write) in &shown {
            for (later, _) in shown.iter().filter(|(_, later)| write.placed < later.start) {
                order.before(*earlier, *later, Because::Asked);
            }
        }
        order.circle().map_or(Ok(()), Err)
    }

    /// Whether zeroes of this block can have been made after the write.
    fn zeroed_after(&self, volume: VolumeKey, block: u64, write: &Write) -> bool {
        let zeroes = self.zeroes.get(&volume).into_iter().flatten();
        let mut zeroes = zeroes.filter_map(|request| self.writes.get(request));
        zeroes.any(|zero| zero.blocks.contains(&block) && zero.placed >= write.start)
    }
}

/// Which of some writes must come before which.
struct Order {
    values: Vec<u64>,
    /// By place in `values`: what comes before, and why.
    before: Vec<BTreeMap<usize, Because>>,
}

impl Order {
    fn new(values: Vec<u64>) -> Self {
        let before = values.iter().map(|_| BTreeMap::new()).collect();
        Self { values, before }
    }

    fn before(&mut self, earlier: u64, later: u64, because: Because) {
        let place = |value| self.values.binary_search(&value).ok();
        if let (Some(earlier), Some(later)) = (place(earlier), place(later)) {
            self.before[later].entry(earlier).or_insert(because);
        }
    }

    /// A circle, in words: then no order fits.
    fn circle(&self) -> Option<String> {
        let mut left: BTreeSet<usize> = (0..self.values.len()).collect();
        loop {
            let free: Vec<usize> = left
                .iter()
                .copied()
                .filter(|of| self.before[*of].keys().all(|earlier| !left.contains(earlier)))
                .collect();
            if free.is_empty() {
                break;
            }
            left.retain(|of| !free.contains(of));
        }
        // Each that is left has one before it that is left, too. So going back ends in a circle.
        let mut at = *left.first()?;
        let mut path = vec![at];
        loop {
            at = *self.before[at].keys().find(|earlier| left.contains(earlier))?;
            if let Some(begin) = path.iter().position(|of| *of == at) {
                path.drain(..begin);
                break;
            }
            path.push(at);
        }
        let words: Vec<String> = path
            .iter()
            .zip(path.iter().cycle().skip(1))
            .filter_map(|(later, earlier)| Some((later, earlier, self.before[*later].get(earlier)?)))
            .map(|(later, earlier, because)| {
                let (later, earlier) = (self.values[*later], self.values[*earlier]);
                match because {
                    Because::Shown(block) => {
                        format!("{earlier} comes before {later}, which block {block} shows")
                    }
                    Because::Asked => format!("{earlier} had its place when {later} was asked for"),
                }
            })
            .collect();
        Some(format!("no order of whole writes leads to this: {}", words.join("; ")))
    }
}
