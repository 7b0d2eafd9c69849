//! Devices that an engine leaves behind when it dies, and what may be done with them. The next
//! engine of the node decides, and the agent while there is none.
//!
//! The kernel holds everything that is asked of such a *left* device, and no user sees an error.
//!
//! ```text
//!   live ── engine dies ──▶ left ── the resource is served here again ──▶ live    what was not answered is asked again
//!                            └──── given up ───────────────────────────▶ gone     everything in it fails
//! ```
//!
//! Guarantees
//! - A device is taken over only while every epoch since it was last served has named this node
//!   primary, and the resource was attached nowhere. Epochs rise by one, so a missing one shows,
//!   and no client is admitted before its record has come here. Otherwise another node may have
//!   written. The requests in the device, or a file system mounted on it, then belong to the past.
//! - The pause is bounded (R20): an engine gives a device up after [`LEFT_MS_MAX`], and without an
//!   engine the agent does so after the same time.
//! - While a service runs, the agent waits for [`IN_USE_MS_MAX`] only: the service is stopped after
//!   the death of its engine, and cannot stop while its device hangs (R19).

use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Epoch, Time};

/// How long a device of a dead engine keeps what is asked of it, in milliseconds.
pub const LEFT_MS_MAX: u64 = 30_000;
/// The same while a service runs and there is no engine. Longer than it takes to connect to an
/// engine that lives, as an agent must that has just started.
pub const IN_USE_MS_MAX: u64 = 1_000;

/// Consequence of a record of the control plane for a left device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The device waits.
    Waits,
    /// The device waits. This node is primary in the next epoch, too: that is to be noted.
    Follows,
    /// The device is of the past, and is given up.
    Past,
}

/// Decides about a left device. `served`: the last epoch in which this node was primary, as far as
/// no other primary has been since the device was served. `epoch` is that of the record, and `own`
/// says that this node is primary and the resource attached nowhere.
#[must_use]
pub fn fate(served: Epoch, epoch: Epoch, own: bool) -> Fate {
    match (own, epoch > served) {
        (true, true) if no_other_primary(served, epoch) || planted(Bug::MissingEpochIgnored) => Fate::Follows,
        (false, false) if planted(Bug::OtherPrimaryIgnored) => Fate::Waits,
        (false, true) if planted(Bug::OtherPrimaryIgnored) => Fate::Follows,
        (_, true) => Fate::Past,
        (false, false) if epoch == served => Fate::Past,
        (_, false) => Fate::Waits,
    }
}

/// Whether a left device may be taken over by a primary of `epoch`.
#[must_use]
pub fn may_take_over(served: Epoch, epoch: Epoch) -> bool {
    served == epoch
}

/// Whether no other node can have been primary between two epochs of this node.
#[must_use]
pub fn no_other_primary(earlier: Epoch, later: Epoch) -> bool {
    earlier == later || earlier.0.checked_add(1) == Some(later.0)
}

/// Absence of the engine, as its agent sees it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Absence {
    since: Option<Time>,
    /// The devices that the engine had left were made to fail.
    failed: bool,
}

impl Absence {
    /// Returns whether what the engine has left is to fail now: once for each absence. To be called
    /// now and then, and when the engine comes or goes. `in_use`: a service runs that is not
    /// silent.
    pub fn is_due(&mut self, now: Time, connected: bool, in_use: bool) -> bool {
        if connected {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let limit_ms = if in_use { IN_USE_MS_MAX } else { LEFT_MS_MAX };
        let due = !self.failed && now >= since.plus_ms(limit_ms);
        self.failed |= due;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_epoch_or_another_primary_ends_the_wait_of_a_left_device() {
        let fate = |epoch, own| fate(Epoch(4), Epoch(epoch), own);
        assert_eq!(fate(4, true), Fate::Waits, "nothing has happened yet");
        assert_eq!(fate(4, false), Fate::Past, "a client writes");
        assert_eq!([fate(3, false), fate(3, true)], [Fate::Waits; 2], "a record of the past");
        assert_eq!(fate(5, true), Fate::Follows);
        assert_eq!(fate(5, false), Fate::Past, "another primary");
        assert_eq!(fate(6, true), Fate::Past, "another node may have been primary in 5");
        assert_eq!(super::fate(Epoch(u64::MAX), Epoch(0), true), Fate::Waits);
    }

    #[test]
    fn a_device_is_taken_over_only_in_the_epoch_in_which_it_was_served_last() {
        assert!(may_take_over(Epoch(4), Epoch(4)));
        assert!(!may_take_over(Epoch(4), Epoch(5)), "another node may have written in between");
        assert!(!may_take_over(Epoch(5), Epoch(4)), "a record of the past");
    }

    #[test]
    fn the_pause_is_bounded_and_short_under_a_service() {
        let mut absence = Absence::default();
        let at = |ms| Time(7_000_000).plus_ms(ms);
        assert!(!absence.is_due(at(0), true, true), "an engine that is there keeps its devices");
        assert!(!absence.is_due(at(0), false, false));
        assert!(!absence.is_due(at(LEFT_MS_MAX / 2), false, false));
        assert!(absence.is_due(at(LEFT_MS_MAX), false, false));
        assert!(!absence.is_due(at(2 * LEFT_MS_MAX), false, true), "once for each absence");
        assert!(!absence.is_due(at(2 * LEFT_MS_MAX), true, true));
        assert!(!absence.is_due(at(3 * LEFT_MS_MAX), false, true), "it may only have lost its connection");
        assert!(absence.is_due(at(3 * LEFT_MS_MAX + IN_USE_MS_MAX), false, true));
    }
}
