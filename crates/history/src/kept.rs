//! The records of an interval in a bounded number of bytes, for baselines.
//!
//! Guarantees
//! - The kept records add up to all records of the interval.
//! - Memory and result stay near the bound, however many records there are (R18). When the bound is
//!   reached, records of neighbouring steps become one, and the step is doubled.

use crate::encoding::{SEGMENT_HEADER, encode, thin_from};
use crate::minute::Minute;
use mainstay_types::ResourceId;
use std::collections::BTreeSet;

/// Gathers the records of an interval.
pub struct Kept {
    from_ms: u64,
    length_ms: u64,
    step_ms: u64,
    bytes_max: usize,
    segment: Vec<u8>,
    /// Replicas whose names are in the segment.
    named: BTreeSet<ResourceId>,
    /// Records of the step that is not complete.
    sum: Option<Minute>,
}

impl Kept {
    /// Begins with records of `step_ms`. A bound below the size of one record is not kept.
    #[must_use]
    pub fn new(from_ms: u64, to_ms: u64, step_ms: u64, bytes_max: usize) -> Self {
        Self {
            from_ms,
            length_ms: to_ms.saturating_sub(from_ms),
            step_ms: step_ms.max(1),
            bytes_max,
            segment: SEGMENT_HEADER.to_vec(),
            named: BTreeSet::new(),
            sum: None,
        }
    }

    /// Adds a record of the interval. Records come with the oldest first.
    pub fn add(&mut self, minute: &Minute) {
        match &mut self.sum {
            Some(sum)
                if step_of(self.from_ms, self.step_ms, sum)
                    == step_of(self.from_ms, self.step_ms, minute) =>
            {
                sum.add(minute);
            }
            _ => {
                self.end_step();
                self.sum = Some(minute.clone());
            }
        }
    }

    fn end_step(&mut self) {
        let Some(sum) = self.sum.take() else { return };
        self.segment.extend(encode(&sum, &mut self.named).unwrap_or_default());
        while self.segment.len() > self.bytes_max && self.step_ms < self.length_ms {
            self.step_ms = self.step_ms.saturating_mul(2);
            if let Some(thinned) = thin_from(&self.segment, self.from_ms, self.step_ms) {
                self.segment = thinned;
            }
        }
    }

    /// Returns the length of a step and the records as a segment; `None` without any record.
    #[must_use]
    pub fn finish(mut self) -> Option<(u64, Vec<u8>)> {
        self.end_step();
        (self.segment.len() > SEGMENT_HEADER.len()).then_some((self.step_ms, self.segment))
    }
}

/// Number of the step in which a record ends.
pub(crate) fn step_of(from_ms: u64, step_ms: u64, minute: &Minute) -> u64 {
    minute.end_ms.saturating_sub(1).saturating_sub(from_ms) / step_ms.max(1)
}
