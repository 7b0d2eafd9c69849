//! A pool without space. A sparse volume needs some when a block is destaged for the first time,
//! and then there may be none.
//!
//! Nothing is lost by that: the content is in the journal, and stays there (`Store::retry`). The
//! store tries again every [`RETRY_MS`], until there is space. Meanwhile the journal is not
//! emptied. When it is full
//! - a secondary acknowledges nothing more, leaves the in-sync set like an absent replica (S25),
//!   and returns by itself;
//! - a primary can admit nothing more. After [`FULL_MS_MAX`] of that it gives up its store (R13,
//!   R20), and another member is promoted. Its node opens it again when there is room
//!   ([`Host::failed_full`]).

use crate::{Happened, Host, Platform};
use mainstay_types::{Role, Time, reach};

/// How often what found no space is tried anew, in milliseconds.
const RETRY_MS: u64 = 1000;
/// How long a primary without space waits with a full journal, in milliseconds.
pub const FULL_MS_MAX: u64 = 10_000;

/// Since the pool has no space.
pub(crate) struct Space {
    reason: String,
    told: bool,
    retry_at: Time,
    /// Since when the journal takes nothing more, or nothing can be read.
    full_since: Option<Time>,
}

impl Space {
    pub fn retry_at(&self) -> Time {
        self.retry_at
    }
}

impl Host {
    /// Why nothing can be written to a volume, if the pool has no space for it.
    #[must_use]
    pub fn no_space(&self) -> Option<&str> {
        self.space.as_ref().map(|space| space.reason.as_str())
    }

    /// A write of the store found none.
    pub(crate) fn found_no_space(&mut self, reason: String) {
        if self.failed.is_some() {
            return;
        }
        reach!("host: the pool has no space");
        let new = Space { reason, told: false, retry_at: Time(0), full_since: None };
        self.space.get_or_insert(new);
    }

    /// Sees whether there is space again, and whether the journal is full without it. Called often,
    /// and nearly always there is space.
    pub(crate) fn judge_space(&mut self, platform: &mut impl Platform) {
        let Some(space) = &mut self.space else { return };
        let now = platform.now();
        if !self.store.is_stalled() {
            reach!("host: the pool has space again");
            self.space = None;
            self.short = false;
            return;
        }
        if !std::mem::replace(&mut space.told, true) {
            space.retry_at = now.plus_ms(RETRY_MS);
            platform.happened(Happened::NoSpace { reason: space.reason.clone() });
        }
        let leads = matches!(self.role, Role::Primary | Role::Promoting);
        // Reads wait for a rollback, too.
        let full = leads && (self.store.is_full() || self.store.rolling_back());
        space.full_since = if full { space.full_since.or(Some(now)) } else { None };
        if space.full_since.is_some_and(|since| since.plus_ms(FULL_MS_MAX) <= now) {
            reach!("host: a primary without space gives up its store");
            let reason = space.reason.clone();
            self.fail(platform, reason);
        }
    }

    pub(crate) fn retry_for_space(&mut self, now: Time) {
        if let Some(space) = &mut self.space
            && space.told
            && space.retry_at <= now
        {
            space.retry_at = now.plus_ms(RETRY_MS);
            self.store.retry();
        }
    }
}
