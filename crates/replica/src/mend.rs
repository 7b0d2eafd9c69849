//! Mending in passing ([ADR 14](../../../docs/adr/0014-mending.md)): a read of the primary has
//! found a block that does not fit its checksum. The replicas compare the extent as in a scrub
//! ([`crate::scrub`]), at an entry of its own. A damaged block whose right content another replica
//! holds is written anew. The read waits, and is done again.
//!
//! ```text
//! wanted ─▶ a flight ─▶ judged ─▶ its repairs are admitted ─▶ they are committed ─▶ read again
//!    ▲         ▲  │        │
//!    │         └──┘        ├─▶ nothing is damaged (any more) ─▶ read again
//!    │  sums are lacking   ├─▶ every replica was heard, or is out of sync and away for long, and none has a good one ─▶ the read fails
//!    └─────────────────────┴─▶ a replica was not heard, or could not give it; at last ─▶ this replica fails if an in-sync one may have it
//! ```
//!
//! - A block counts as good by its own checksum. Without one it counts as good if most replicas
//!   agree on it. The primary's block is damaged, so the primary has no vote.
//! - Only blocks that a replica knows to be damaged are written. Other differences are left to a
//!   scrub.
//! - A mend begins when all required replicas are connected. An absent one is either on its way
//!   back, or leaves the in-sync set before anything is committed.
//! - A replica that is not in sync may have the content too. In mode A no other replica is in sync.
//!   At first such a replica is asked only if it has everything, later also if it lags. One that
//!   went away shortly before is waited for, [`WAIT_MS`] in all.
//! - A mend is foreground work, because a client waits for it. It has no rate, but a bound on the
//!   number under way (R18). It takes room in the journal as writes do.
//! - While writes are held up, the read waits as they do, because the entry must be committed.
//!   Where writes fail for want of copies, the read fails too.

use crate::findings::compare;
use crate::peer::{Link, Peer};
use crate::repair::Repair;
use crate::scrub::{Flight, TRIES, WAIT_MS};
use crate::{Effect, Replica};
use mainstay_types::{EXTENT_BYTES, Extent, Range, Time, VolumeId, reach};
use std::collections::VecDeque;

/// Most extents under way to be mended. With those of a scrub no more than a store has pins for.
const MENDS_MAX: usize = 4;

/// How mending an extent has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// The read is to be done again: the damage was repaired, or is gone.
    Again,
    /// No replica that must hold it has it, nor any other that could be asked: an error, never
    /// data.
    Nowhere,
    /// A replica that must hold the content could not be asked or did not give it, or this replica
    /// does not serve.
    Unknown,
    /// There are too few copies ([`crate::copies`]), so a repair could not be committed. Only the
    /// read that found the damage fails.
    NotNow,
}

#[derive(Debug, Default)]
pub(crate) struct Mends {
    /// To be begun.
    wanted: VecDeque<Wanted>,
    /// Mends whose outcome is told when that number of repairs has ended.
    written: VecDeque<(Range, u64, Mended)>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    range: Range,
    tries: u8,
    since: Time,
}

impl Wanted {
    /// Whether the mend waits for this peer to come back, though commits do not. On the first try
    /// it does not.
    fn waits_for(&self, peer: &Peer, now: Time) -> bool {
        self.tries > 1 && left_lately(peer, self.since, now)
    }
}

/// Whether it is worth waiting for this absent peer, which may have the content: it went away
/// shortly before `since`, when the read began to wait.
fn left_lately(peer: &Peer, since: Time, now: Time) -> bool {
    let away = !matches!(peer.link, Link::Streaming(_));
    away && peer.since.plus_ms(WAIT_MS) > since && since.plus_ms(WAIT_MS) > now
}

impl Mends {
    pub fn none(&self) -> bool {
        self.wanted.is_empty() && self.written.is_empty()
    }

    pub fn clear(&mut self) {
        self.wanted.clear();
        self.written.clear();
    }

    /// Once more, for the read that waits since then.
    pub fn again(&mut self, range: Range, tries: u8, since: Time) {
        self.wanted.push_back(Wanted { range, tries: tries + 1, since });
    }

    /// Time at which a mend stops waiting for absent peers.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let waits = |wanted: &Wanted| Some(wanted.since.plus_ms(WAIT_MS)).filter(|at| *at > now);
        self.wanted.iter().filter(|wanted| wanted.tries > 1).filter_map(waits).min()
    }

    /// Notes that all repairs of a flight are admitted, except those whose content could not be
    /// had. `admitted` counts all repairs so far.
    pub fn written(&mut self, flight: &Flight, since: Time, admitted: u64) {
        if flight.given_up.is_some() && flight.tries < TRIES {
            reach!("replica: content to mend with could not be had, and is looked for again");
            return self.again(flight.range, flight.tries, since);
        }
        self.written.push_back((flight.range, admitted, flight.given_up.unwrap_or(Mended::Again)));
    }
}

impl Replica {
    /// A read of this primary has found damage in the extent. [`Effect::Mended`] follows, unless
    /// this ceases to be primary before.
    pub(crate) fn on_mend(&mut self, volume: VolumeId, extent: Extent) {
        let offset = extent.offset();
        let bytes = self.log.sizes.committed().get(usize::from(volume.0)).copied().unwrap_or(0);
        let range = Range { volume, offset, len: EXTENT_BYTES.min(bytes.saturating_sub(offset)) };
        if !self.serving() || range.len == 0 {
            reach!("replica: what does not serve mends nothing");
            return self.tell_mended(range, Mended::Unknown, Vec::new());
        }
        if self.mends_wait_for_copies() {
            reach!("replica: nothing is mended for want of copies");
            return self.tell_mended(range, Mended::NotNow, Vec::new());
        }
        reach!("replica: damage is to be mended");
        self.scrub.mends.wanted.push_back(Wanted { range, tries: 1, since: self.now });
    }

    fn tell_mended(&mut self, range: Range, mended: Mended, lost: Vec<u32>) {
        let extent = Extent::of(range.offset);
        self.effects.push_back(Effect::Mended { volume: range.volume, extent, mended, lost });
    }

    /// Whether repairs are not committed now, for want of copies, and requests fail at once. While
    /// every required peer answers, repairs are committed: a copy may need the block, and without
    /// that copy there will never be enough.
    fn mends_wait_for_copies(&self) -> bool {
        let waits = |peer: &Peer| peer.required() && !matches!(peer.link, Link::Streaming(_));
        self.refuses_for_copies() && self.peers.values().any(waits)
    }

    /// Ends all mends with [`Mended::NotNow`] while a repair could not be committed for want of
    /// copies.
    pub(crate) fn give_up_mends(&mut self) {
        if !self.mends_wait_for_copies() {
            return;
        }
        let mends = &mut self.scrub.mends;
        let mut ranges: Vec<_> = mends.wanted.drain(..).map(|wanted| wanted.range).collect();
        ranges.extend(mends.written.drain(..).map(|(range, ..)| range));
        let flights = self.scrub.flights.extract_if(.., |flight| flight.mends.is_some());
        ranges.extend(flights.map(|flight| flight.range));
        for range in ranges {
            reach!("replica: what is mended is given up for want of copies");
            self.tell_mended(range, Mended::NotNow, Vec::new());
        }
    }

    /// Tells the mends that have ended, and begins those that may begin.
    pub(crate) fn continue_mends(&mut self) {
        while let Some(&(range, admitted, mended)) = self.scrub.mends.written.front()
            && self.scrub.repairs.ended(admitted)
        {
            reach!("replica: damage is mended");
            self.scrub.mends.written.pop_front();
            self.tell_mended(range, mended, Vec::new());
        }
        while self.scrub.flights.iter().filter(|flight| flight.mends.is_some()).count() < MENDS_MAX
            && !self.scrub_blocked()
            && let Some(place) = self.next_to_mend()
            && let Some(Wanted { range, tries, since }) = self.scrub.mends.wanted.remove(place)
        {
            self.begin_flight(range, tries, Some(since));
        }
    }

    /// Its place among those that are wanted.
    fn next_to_mend(&self) -> Option<usize> {
        let now = self.now;
        let ready = |wanted: &Wanted| {
            self.peers.values().all(|peer| match &peer.link {
                Link::Streaming(_) => true,
                _ => !peer.required() && !wanted.waits_for(peer, now),
            })
        };
        self.scrub.mends.wanted.iter().position(ready)
    }

    /// Judges a mend. Every replica that is going to answer has told what it holds.
    pub(crate) fn judge_mend(&mut self, place: usize, since: Time) {
        let (own, now) = (self.config.node, self.now);
        let flight = &mut self.scrub.flights[place];
        let heard = |peer: &&Peer| flight.sums.contains_key(&peer.member.node);
        let all = self.peers.values().filter(|peer| peer.required()).all(|peer| heard(&peer));
        let more = self.peers.values().filter(|peer| !heard(peer)).any(|peer| match &peer.link {
            Link::Streaming(stream) => stream.copy.is_none(),
            _ => left_lately(peer, since, now),
        });
        let mut repairs = VecDeque::new();
        let mut lost = Vec::new();
        // `false`: no operator has asked to believe the primary.
        for difference in compare(&flight.sums, own, false) {
            if difference.damaged.is_empty() {
                reach!("replica: replicas differ where none knows of damage");
                continue;
            }
            if let Some(right) = difference.right {
                repairs.extend(Repair::of(flight, difference, right, own, None));
            } else {
                lost.extend(difference.blocks.map(|block| block as u32));
            }
        }
        if !repairs.is_empty() {
            flight.repairs = Some(repairs);
            return;
        }
        let (range, tries) = (flight.range, flight.tries);
        self.scrub.flights.remove(place);
        let mended = match (!lost.is_empty(), all) {
            (false, _) => {
                reach!("replica: nothing is damaged any more");
                Mended::Again
            }
            (true, true) if more && tries < TRIES => {
                reach!("replica: a replica out of sync may have the damaged block, and is asked");
                return self.scrub.mends.again(range, tries, since);
            }
            (true, true) => {
                reach!("replica: no replica has the damaged block");
                Mended::Nowhere
            }
            (true, false) if tries < TRIES => {
                reach!("replica: a replica that must have the damaged block is asked again");
                return self.scrub.mends.again(range, tries, since);
            }
            (true, false) => {
                reach!("replica: another replica may have the damaged block");
                Mended::Unknown
            }
        };
        self.tell_mended(range, mended, lost);
    }
}
