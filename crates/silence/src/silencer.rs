//! When the silencer of a node acts. The silencer is the small process that outlives engine and
//! agent (R19).
//!
//! Guarantees
//! - The silencer silences a node whose engine cannot act any more before its lease ends. Such an
//!   engine is dead or stands still. This holds also when engine and agent are both dead.
//! - While the engine's guard acts in time the silencer does nothing.
//! - It ends when there is no engine and nothing to silence.
//! - It tries again to silence the rest for as long as the lease is not renewed, at first often and
//!   then at leisure.

use crate::guard_acts_at;
use mainstay_types::Time;
use mainstay_types::simulation::{Bug, planted};

/// How long before the end of the lease the silencer acts, if the engine's guard has not. The guard
/// has begun 200 ms earlier.
pub const SILENCER_MARGIN_MS: u64 = 200;
/// Longest time between two looks of the silencer at everything, in milliseconds.
pub const SILENCER_LOOKS_MS: u64 = 1_000;

/// Observations on which a silencer decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SilencerSees {
    /// When the lease ends that the engine was told last; 0 for none.
    pub lease_until: Time,
    /// When nothing was left to silence, for the guard or for a silencer; 0 for never.
    pub silenced: Time,
    /// There is an engine, dead or alive in its decisions.
    pub engine: bool,
    /// There is something that the engine was told to silence.
    pub guarded: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SilencerDoes {
    /// Looks again then, at the latest.
    Sleeps(Time),
    /// Silences this node now.
    Silences,
    Ends,
}

/// Decides the next action of the silencer at the point `now` of the boot-time clock.
#[must_use]
pub fn silencer_does(now: Time, sees: SilencerSees) -> SilencerDoes {
    // If all was silenced after the moment at which the guard acts, it was silenced for this lease.
    let done = sees.silenced >= guard_acts_at(sees.lease_until);
    let acts_at = Time(sees.lease_until.0.saturating_sub(SILENCER_MARGIN_MS * 1000));
    let later = now.plus_ms(SILENCER_LOOKS_MS);
    if planted(Bug::NobodyOutlivesBoth) {
        return SilencerDoes::Sleeps(later);
    }
    match (sees.guarded && !done, sees.engine) {
        (false, false) => SilencerDoes::Ends,
        (false, true) => SilencerDoes::Sleeps(later),
        (true, _) if now < acts_at => SilencerDoes::Sleeps(acts_at.min(later)),
        (true, _) => SilencerDoes::Silences,
    }
}

/// Attempts that follow each other quickly.
const QUICK_ATTEMPTS: u32 = 25;
const QUICK_PAUSE_MS: u64 = 200;

/// Time between an attempt to silence something, counted from 1, and the next, in milliseconds.
#[must_use]
pub const fn silencing_pause_ms(attempt: u32) -> u64 {
    if attempt < QUICK_ATTEMPTS { QUICK_PAUSE_MS } else { SILENCER_LOOKS_MS }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1000)
    }

    fn sees(lease_until_ms: u64, silenced_ms: u64, engine: bool, guarded: bool) -> SilencerSees {
        SilencerSees { lease_until: at(lease_until_ms), silenced: at(silenced_ms), engine, guarded }
    }

    fn does(now_ms: u64, sees: SilencerSees) -> SilencerDoes {
        silencer_does(at(now_ms), sees)
    }

    #[test]
    fn the_silencer_acts_before_the_lease_ends_when_the_guard_has_not() {
        for engine in [false, true] {
            let seen = sees(10_000, 0, engine, true);
            assert_eq!(does(5_000, seen), SilencerDoes::Sleeps(at(6_000)));
            assert_eq!(does(9_700, seen), SilencerDoes::Sleeps(at(9_800)));
            assert_eq!(does(9_800, seen), SilencerDoes::Silences);
            assert_eq!(does(20_000, seen), SilencerDoes::Silences, "it stood still");
        }
    }

    #[test]
    fn the_guard_comes_first() {
        assert_eq!(does(9_900, sees(10_000, 9_650, true, true)), SilencerDoes::Sleeps(at(10_900)));
        assert_eq!(does(9_900, sees(10_000, 9_650, false, true)), SilencerDoes::Ends);
        assert_eq!(does(9_900, sees(10_000, 9_500, false, true)), SilencerDoes::Silences, "an earlier lease");
    }

    #[test]
    fn attempts_slow_down_and_never_end() {
        assert_eq!([1, 24, 25, u32::MAX].map(silencing_pause_ms), [200, 200, 1_000, 1_000]);
    }

    #[test]
    fn the_silencer_ends_when_nothing_is_left_to_do() {
        assert_eq!(does(5_000, sees(10_000, 0, false, false)), SilencerDoes::Ends);
        assert_eq!(does(5_000, sees(10_000, 0, true, false)), SilencerDoes::Sleeps(at(6_000)));
        // The next engine that is told a lease has its own.
        assert_eq!(does(5_000, sees(0, 0, false, true)), SilencerDoes::Ends);
    }
}
