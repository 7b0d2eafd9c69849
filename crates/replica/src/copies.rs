//! How many copies there have to be (`min-copies`, [ADR 18](../../../docs/adr/0018-min-copies.md)).
//!
//! ```text
//!              fewer members of the recorded set answer than are wanted             suspend_ms later
//!   enough ────────────────────────────────────────────────────────────▶ suspended ─────────────────▶ refusing
//!      ▲                                                                      │                           │
//!      └──────────────────────────────────────────────────────────────────────┴───────────────────────────┘
//!                                      as many answer again
//! ```
//!
//! - Suspended: no change is acknowledged. A request that waits for a member that does not answer
//!   goes on waiting (R2). Some entries are committed because fewer members are recorded: their
//!   acknowledgements are held, and so are reads that overlap them.
//! - Refusing: the held requests have failed. From now on requests that change blocks fail at once
//!   (R20). A write that failed may still have happened, as after a crash. Reads go on. Exceptions
//!   are reads of content that is not acknowledged, and, while a member does not answer, of content
//!   that is damaged here.
//!
//! While a client is attached the state is never *refusing*: the client waits for as long as the
//! record states.
//!
//! If too few members would remain, a member that merely does not answer stays in the recorded set.
//! It lacks no acknowledged write, and may become primary if it is the first to come back. Such a
//! member leaves in these cases:
//!
//! - It says that it cannot go on, needs a copy, or has a new disk.
//! - Another replica is to become primary.
//! - A promotion is under way: a primary that does not serve cannot take a replica back in.
//!
//! Invariant: an acknowledged write lies in the journals of as many recorded members as are wanted.
//! In mode B it lies in their memory, where the memory counts.

use crate::peer::{Link, Peer};
use crate::{Effect, Replica, RequestError};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Copies, ResourceRecord, Time, reach};

#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// Since when fewer are there than are wanted.
    short_since: Option<Time>,
    refusing: bool,
}

/// Fewer copies are there than are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    pub wanted: usize,
    /// Members of the recorded set that answer, this one included.
    pub there: usize,
    pub since: Time,
    /// How long requests wait from then on, in milliseconds, before they fail.
    pub suspend_ms: u64,
}

impl Replica {
    fn copies_wanted(&self) -> usize {
        self.record.as_ref().map_or(1, |record| record.copies_wanted())
    }

    /// Recorded as in sync, this one included.
    pub(crate) fn copies_recorded(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.iss.len())
    }

    /// Returns how many recorded members answer, this one included. A member counts until the
    /// primary takes it for failed.
    fn copies_there(&self) -> usize {
        1 + self.peers.values().filter(|peer| peer.is_member() && !self.fails(peer)).count()
    }

    /// Whether committed requests must not be acknowledged yet.
    pub(crate) fn held_for_copies(&self) -> bool {
        let wanted = self.copies_wanted();
        wanted > 1
            && !self.copies.refusing
            && self.copies_recorded() < wanted
            && !planted(Bug::CopiesNotAwaited)
    }

    /// Whether requests that change something fail for want of copies.
    pub(crate) fn refuses_for_copies(&self) -> bool {
        self.copies.refusing
    }

    /// Whether a member that is in the recorded set, and does not answer, stays in it.
    pub(crate) fn stays_for_copies(&self, peer: &Peer) -> bool {
        let absent =
            matches!(peer.link, Link::Down | Link::Attaching | Link::Cutting { .. } | Link::Streaming(_));
        peer.is_member()
            && absent
            && self.serving()
            && !self.sequence.demoting
            && !self.paused
            && self.record.as_ref().is_some_and(ResourceRecord::needs_every_member)
            && !planted(Bug::AbsentAlwaysLeaves)
    }

    /// Number of copies that stay in sync, however slow they are: the larger of the limit for slow
    /// members and the copies that are wanted.
    pub(crate) fn copies_that_stay(&self) -> usize {
        (self.slow_limits.min_copies as usize).max(self.copies_wanted())
    }

    /// Counts the copies that are there. Acknowledges the requests that were held for lack of
    /// copies, or fails them.
    pub(crate) fn watch_copies(&mut self) {
        let wanted = self.copies_wanted();
        if wanted <= 1 && self.copies.short_since.is_none() || !self.serving() {
            return;
        }
        if self.copies_there() >= wanted {
            self.copies.refusing = false;
            if self.copies.short_since.take().is_some() {
                reach!("replica: there are enough copies again");
            }
        } else if self.attached().is_some() {
            // A client waits for as long as it was told to, and then ends itself (S195).
            self.copies.refusing = false;
            self.copies.short_since.get_or_insert(self.now);
        } else {
            let since = *self.copies.short_since.get_or_insert(self.now);
            // A primary that is to be demoted does not wait for copies (R20).
            let over = self.fails_since(since) <= self.now || self.sequence.demoting;
            if !self.copies.refusing && over {
                reach!("replica: requests fail for want of copies");
                self.copies.refusing = true;
                for id in self.sequence.fail_held() {
                    self.effects.push_back(Effect::Complete { id, result: Err(RequestError::Copies) });
                }
            }
            self.give_up_mends();
        }
        self.complete_committed();
    }

    /// The role has ended.
    pub(crate) fn forget_copies(&mut self) {
        self.copies = Shortage::default();
    }

    fn suspend_ms(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.policy.min_copies.suspend_ms)
    }

    fn fails_since(&self, since: Time) -> Time {
        if planted(Bug::SuspendedWithoutEnd) { Time(u64::MAX) } else { since.plus_ms(self.suspend_ms()) }
    }

    /// When [`watch_copies`](Self::watch_copies) has something to do, if nothing else happens.
    pub(crate) fn copies_deadline(&self) -> Option<Time> {
        let fails = !self.copies.refusing && self.serving() && self.attached().is_none();
        let since = self.copies.short_since.filter(|_| fails)?;
        Some(self.fails_since(since)).filter(|at| *at != Time(u64::MAX))
    }

    /// Whether as many are there as are wanted; as they are, unless it is a primary that serves.
    #[must_use]
    pub fn copies_state(&self) -> Copies {
        match self.short_of_copies() {
            None => Copies::Enough,
            Some(_) if self.copies.refusing => Copies::Refusing,
            Some(_) => Copies::Suspended,
        }
    }

    /// Returns how many members of the recorded set answer, this one included, and how many are
    /// wanted. `None` unless this replica is a primary that serves.
    #[must_use]
    pub fn copies(&self) -> Option<(usize, usize)> {
        self.serving().then(|| (self.copies_there(), self.copies_wanted()))
    }

    /// Fewer copies are there than are wanted, as a primary sees it.
    #[must_use]
    pub fn short_of_copies(&self) -> Option<Short> {
        let since = self.copies.short_since.filter(|_| self.serving())?;
        let (wanted, there) = (self.copies_wanted(), self.copies_there());
        Some(Short { wanted, there, since, suspend_ms: self.suspend_ms() })
    }
}
