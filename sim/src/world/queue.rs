//! Queue of events, in the order of true time. Events at one time come in the order in which they
//! were asked for.

use super::What;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Only the times are sorted. The events stay in place, because they are too large to move about a
/// heap.
#[derive(Default)]
pub(super) struct Queue {
    /// Time in microseconds, number of the request, and the slot of what happens then.
    times: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<What>>,
    free: Vec<usize>,
    requests: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at_us: u64, what: What) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(what);
        self.requests += 1;
        self.times.push(Reverse((at_us, self.requests, slot)));
    }

    /// Moves events to other times. `when` is asked in the order of the present times.
    pub(super) fn reschedule(&mut self, mut when: impl FnMut(u64, &What) -> u64) {
        let times = std::mem::take(&mut self.times).into_sorted_vec();
        let moved = times.into_iter().rev().map(|Reverse((at_us, request, slot))| {
            let at_us = self.slots[slot].as_ref().map_or(at_us, |what| when(at_us, what));
            Reverse((at_us, request, slot))
        });
        self.times = moved.collect();
    }

    /// Takes the first thing, if it is due by then, with its time.
    pub(super) fn pop(&mut self, until_us: u64) -> Option<(u64, What)> {
        let Reverse((at_us, _, slot)) =
            *self.times.peek().filter(|Reverse((at_us, ..))| *at_us <= until_us)?;
        self.times.pop();
        self.free.push(slot);
        let what = self.slots[slot].take();
        Some((at_us, what.unwrap_or_else(|| unreachable!("slot {slot} is empty, and a time names it"))))
    }
}
