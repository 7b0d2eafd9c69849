//! Scrubbing (R17): the content of the blocks of one extent at one entry of the log.
//!
//! When the entry is applied, [`Output::Scrub`] says where the content of each block is. From then
//! on the extent is *pinned* until [`Store::scrub_ended`]: nothing newer is written to it. So the
//! content in the volume stays there. A pass that is under way writes only entries that were
//! applied before, and the content of their blocks is in memory or in the journal. A pinned extent
//! holds up a pass only for a few reads: its own and those that began before. Other extents are
//! written meanwhile.
//!
//! - The target of a copy has no content as of an entry. So it answers without segments.
//! - A store with [`PINS_MAX`] extents pinned answers without segments too. So a replica that is
//!   fed many of these entries at once is not compared (R18).
//! - A place in the journal may be used again before it was read. The reader asks [`Store::holds`],
//!   as for any read. If the place is gone, the replica has no answer.
//! - Entries that recovery applies again are not scrubbed, because no replica waits for them.
//! - No volume is rolled back while an extent is pinned. While a rollback is under way, entries of
//!   scrubs wait (`rollback.rs`).

use crate::{Output, Segments, Store};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, Range, VolumeId, reach};

/// Most extents that are pinned at a time.
pub(crate) const PINS_MAX: usize = 24;

/// An extent to which nothing newer than this entry is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    at: Index,
    range: Range,
}

impl Store {
    /// Ends the scrub of the entry `at`: the caller has read what [`Output::Scrub`] told, or does
    /// not want it any more. Returns whether the extent was still pinned. If it was not, the log
    /// has begun anew, and the read content is not what the log says there.
    pub fn scrub_ended(&mut self, at: Index) -> bool {
        let before = self.pins.len();
        self.pins.retain(|pin| pin.at != at);
        self.pins.len() < before
    }

    /// An entry of a scrub is applied.
    pub(crate) fn scrub(&mut self, at: Index, range: Range) {
        let whole = self.unfinished.is_none();
        let segments = if !whole {
            reach!("store: the target of a copy is not scrubbed");
            Segments::new()
        } else if self.pins.len() >= PINS_MAX {
            reach!("store: too many extents are pinned");
            Segments::new()
        } else {
            reach!("store: an extent is pinned");
            if self.pass.is_some() {
                reach!("store: an extent is pinned during a pass");
            }
            self.pins.push(Pin { at, range });
            self.read(range)
        };
        self.outputs.push_back(Output::Scrub { at, range, segments });
    }

    /// Whether blocks of the range must stay as they are.
    pub(crate) fn pinned(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        let touches = |pin: &Pin| {
            pin.range.volume == volume && pin.range.first_block() < end && first < pin.range.end_block()
        };
        // Mostly there is none.
        !self.pins.is_empty() && self.pins.iter().any(touches) && !planted(Bug::ScrubSeesLater)
    }

    /// Whether anything must stay as it is.
    pub(crate) fn any_pinned(&self) -> bool {
        !self.pins.is_empty() && !planted(Bug::ScrubSeesLater)
    }

    /// The log begins anew, or was applied by recovery.
    pub(crate) fn forget_scrubs(&mut self) {
        if !self.pins.is_empty() {
            reach!("store: pinned extents are forgotten");
        }
        self.pins.clear();
        self.outputs.retain(|output| !matches!(output, Output::Scrub { .. }));
    }
}
