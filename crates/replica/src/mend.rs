//! Mending in passing ([ADR 14](../../../docs/adr/0014-mending.md)): a read of the primary has found a block that does not fit its checksum. The
//! extent is compared as in a scrub ([`crate::scrub`]), at an entry of its own, and what is damaged and known to be right elsewhere is written anew. The
//! read waits, and is done again.
//!
//! ```text
//! wanted ─▶ a flight ─▶ judged ─▶ its repairs are admitted ─▶ they are committed ─▶ read again
//!    ▲         ▲  │        │
//!    │         └──┘        ├─▶ nothing is damaged (any more) ─▶ read again
//!    │  sums are lacking   ├─▶ everybody whose copy counts was heard, and nobody has a good one ─▶ an error for who reads
//!    └─────────────────────┴─▶ somebody was not heard, or could not give it; at last ─▶ this replica fails: others may have it
//! ```
//!
//! - A block counts as good by its own checksum or, without one, by those that agree; the primary's is damaged, so it has no vote.
//! - Only blocks are written that somebody knows to be damaged. What differs otherwise is for a scrub to tell.
//! - It begins when all who count are connected: who is away is on its way back, or out of the in-sync set, before anything is committed.
//! - It is foreground work: somebody waits. There is a bound on how much is under way (R18), and no rate; it takes room in the journal as writes do.
//! - Where writes are held up, the read waits as they do: the entry must be committed.

use crate::findings::compare;
use crate::peer::{Link, Peer};
use crate::repair::Repair;
use crate::scrub::{Flight, TRIES};
use crate::{Effect, Replica};
use mainstay_types::{EXTENT_BYTES, Range, VolumeId, reach};
use std::collections::VecDeque;

/// Most extents under way to be mended. With those of a scrub no more than a store has pins for.
const MENDS_MAX: usize = 4;

/// How mending an extent has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// It is to be read again.
    Again,
    /// No replica that must hold it has it: an error, never data.
    Nowhere,
    /// Not everybody could be asked who may have it.
    Unknown,
}

#[derive(Debug, Default)]
pub(crate) struct Mends {
    /// To be begun, and how often they were.
    wanted: VecDeque<(Range, u8)>,
    /// Told when so many repairs have ended.
    written: VecDeque<(Range, u64, Mended)>,
}

impl Mends {
    pub fn none(&self) -> bool {
        self.wanted.is_empty() && self.written.is_empty()
    }

    pub fn clear(&mut self) {
        self.wanted.clear();
        self.written.clear();
    }

    pub fn again(&mut self, range: Range, tries: u8) {
        self.wanted.push_back((range, tries));
    }

    /// All repairs of a flight are admitted: `admitted` in all, but for what could not be had.
    pub fn written(&mut self, flight: &Flight, admitted: u64) {
        if flight.given_up && flight.tries < TRIES {
            reach!("replica: content to mend with could not be had, and is looked for again");
            return self.again(flight.range, flight.tries + 1);
        }
        let mended = if flight.given_up { Mended::Unknown } else { Mended::Again };
        self.written.push_back((flight.range, admitted, mended));
    }
}

impl Replica {
    /// A read of this primary has found damage in the extent. [`Effect::Mended`] follows, unless this ceases to be primary before.
    pub(crate) fn on_mend(&mut self, volume: VolumeId, extent: u32) {
        let offset = u64::from(extent) * EXTENT_BYTES;
        let bytes = self.log.sizes.committed().get(usize::from(volume.0)).copied().unwrap_or(0);
        let range = Range { volume, offset, len: EXTENT_BYTES.min(bytes.saturating_sub(offset)) };
        if !self.serving() || range.len == 0 {
            reach!("replica: what does not serve mends nothing");
            return self.tell_mended(range, Mended::Unknown);
        }
        reach!("replica: damage is to be mended");
        self.scrub.mends.again(range, 1);
    }

    fn tell_mended(&mut self, range: Range, mended: Mended) {
        let extent = (range.offset / EXTENT_BYTES) as u32;
        self.effects.push_back(Effect::Mended { volume: range.volume, extent, mended });
    }

    /// Tells what has ended, and begins what may be begun.
    pub(crate) fn continue_mends(&mut self) {
        while let Some(&(range, admitted, mended)) = self.scrub.mends.written.front()
            && self.scrub.repairs.ended(admitted)
        {
            reach!("replica: damage is mended");
            self.scrub.mends.written.pop_front();
            self.tell_mended(range, mended);
        }
        let connected = |peer: &Peer| !peer.required() || matches!(peer.link, Link::Streaming(_));
        while !self.scrub.mends.wanted.is_empty()
            && self.scrub.flights.iter().filter(|flight| flight.mends).count() < MENDS_MAX
            && !self.scrub_blocked()
            && self.peers.values().all(connected)
            && let Some((range, tries)) = self.scrub.mends.wanted.pop_front()
        {
            self.begin_flight(range, tries, true);
        }
    }

    /// All have said what they hold who will.
    pub(crate) fn judge_mend(&mut self, place: usize) {
        let own = self.config.node;
        let flight = &mut self.scrub.flights[place];
        let heard = |node| flight.sums.contains_key(&node);
        let all = self.peers.values().all(|peer| !peer.required() || heard(peer.member.node));
        let mut repairs = VecDeque::new();
        let mut nowhere = false;
        // Nobody has asked to believe the primary.
        for difference in compare(&flight.sums, own, false) {
            if difference.damaged.is_empty() {
                reach!("replica: replicas differ where nobody knows of damage");
                continue;
            }
            if let Some(right) = difference.right {
                repairs.extend(Repair::of(flight, difference, right, own, None));
            } else {
                nowhere = true;
            }
        }
        if !repairs.is_empty() {
            flight.repairs = Some(repairs);
            return;
        }
        let (range, tries) = (flight.range, flight.tries);
        self.scrub.flights.remove(place);
        let mended = match (nowhere, all) {
            (false, _) => {
                reach!("replica: nothing is damaged any more");
                Mended::Again
            }
            (true, true) => {
                reach!("replica: nobody has what is damaged");
                Mended::Nowhere
            }
            (true, false) if tries < TRIES => {
                reach!("replica: somebody who must have what is damaged is asked again");
                return self.scrub.mends.again(range, tries + 1);
            }
            (true, false) => {
                reach!("replica: somebody may have what is damaged");
                Mended::Unknown
            }
        };
        self.tell_mended(range, mended);
    }
}
