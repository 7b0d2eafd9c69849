//! When a node's watchdog is armed, fed and disarmed (R19). A watchdog is a device that resets the
//! machine when it has not been fed for a while. It acts where nothing else can: the engine stands
//! still, or the kernel hangs.
//!
//! Guarantees
//! - The watchdog is armed only while the node may serve: there is something to silence, a lease
//!   that was not silenced, and the guard lives.
//! - It is fed only if it would then fire before the end of the lease. So a node that has stopped
//!   feeding it is reset before another node may serve, whatever has become of engine and kernel.
//! - It is disarmed when nothing is left to silence, and fires if the guard does not get so far
//!   before the lease ends.
//! - A watchdog that cannot be stopped once it runs is fed instead while the node serves nothing.
//!
//! ```text
//!            may serve, and the lease is longer than the shortest time
//!   Rests ─────────────────────────────────────────────────────────────▶ Armed(seconds)
//!     ▲                                                                  │ fed while it would fire
//!     └────────────────────── nothing is left to silence ────────────────┘ within the lease
//! ```

use crate::guard_acts_at;
use mainstay_types::Time;
use mainstay_types::simulation::{Bug, planted};

/// Pause between two looks. A feed may be this late.
pub const WATCHDOG_LOOKS_MS: u64 = 100;
/// Room between the lease that is left and the time of the watchdog when it is armed: for a renewal
/// that comes late, and for the looks.
const ROOM_MS: u64 = 300;
/// Longest time that is asked for, in seconds. Some devices take no more.
const SECONDS_MAX: u64 = 60;

/// What counts at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchdogSees {
    /// End of the lease; 0 for none.
    pub lease_until: Time,
    /// There is something to silence when the lease ends.
    pub serves: bool,
    /// When nothing was left to silence; 0 for never.
    pub silent: Time,
    /// The guard does its work: it does not owe a silencing that is due for long.
    pub guarded: bool,
    /// The engine was told to end, and its node is silent.
    pub ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchdogDoes {
    Nothing,
    /// Starts it, or goes on with another time. It fires so many seconds later.
    Arm {
        seconds: u32,
    },
    Feed,
    Disarm,
}

/// What the device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchdogCan {
    /// It can be stopped again.
    pub stop: bool,
    /// Shortest and longest time, in seconds.
    pub seconds: (u32, u32),
}

impl WatchdogCan {
    /// A device that takes every time and can be stopped.
    pub const ALL: Self = Self { stop: true, seconds: (1, u32::MAX) };
}

/// See the top of this file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watchdog {
    can: WatchdogCan,
    armed: Option<u32>,
    /// It is running and cannot be stopped.
    runs: bool,
    fed: Time,
    lease_until: Time,
}

impl Watchdog {
    /// The watchdog of a device that was just opened. `runs`: it could not be stopped.
    #[must_use]
    pub fn new(can: WatchdogCan, runs: bool) -> Self {
        Self { can, armed: None, runs, fed: Time(0), lease_until: Time(0) }
    }

    /// When it fires unless it is fed; `None` while it is not armed.
    #[must_use]
    pub fn fires_at(&self) -> Option<Time> {
        self.armed.map(|seconds| self.fed.plus_ms(u64::from(seconds) * 1000))
    }

    /// The time with which it is armed, in seconds.
    #[must_use]
    pub fn armed(&self) -> Option<u32> {
        self.armed
    }

    /// Whether a lease of this length is too short for the device.
    #[must_use]
    pub fn is_too_slow(&self, lease_ms: u64) -> bool {
        self.seconds(lease_ms).is_none()
    }

    /// To be called every [`WATCHDOG_LOOKS_MS`]. The device does at once what is returned. If it
    /// cannot, say so with [`Watchdog::failed`].
    pub fn look(&mut self, now: Time, sees: WatchdogSees) -> WatchdogDoes {
        let renewed = sees.lease_until != self.lease_until;
        self.lease_until = sees.lease_until;
        let left_ms = sees.lease_until.ms_since(now);
        // All was silenced for this lease, as the silencer sees it.
        let silent = sees.silent >= guard_acts_at(sees.lease_until);
        let may_serve = sees.serves && sees.lease_until != Time(0) && !silent && !sees.ended;
        let Some(seconds) = self.armed else {
            if may_serve
                && sees.guarded
                && now < guard_acts_at(sees.lease_until)
                && let Some(seconds) = self.seconds(left_ms)
            {
                return self.arm(now, seconds);
            }
            return self.rest(now);
        };
        if !may_serve {
            self.armed = None;
            return if self.can.stop { WatchdogDoes::Disarm } else { self.rest(now) };
        }
        let within = left_ms >= u64::from(seconds) * 1000 || planted(Bug::WatchdogOutlastsLease);
        if !sees.guarded {
            return WatchdogDoes::Nothing;
        }
        if within {
            self.fed = now;
            return WatchdogDoes::Feed;
        }
        // The lease is shorter than it was when the watchdog was armed.
        match self.seconds(left_ms).filter(|_| renewed && now < guard_acts_at(sees.lease_until)) {
            Some(shorter) if shorter < seconds => self.arm(now, shorter),
            _ => WatchdogDoes::Nothing,
        }
    }

    /// The device did not do what was returned: it is as before.
    pub fn failed(&mut self) {
        self.armed = None;
    }

    fn arm(&mut self, now: Time, seconds: u32) -> WatchdogDoes {
        (self.armed, self.fed) = (Some(seconds), now);
        self.runs |= !self.can.stop;
        WatchdogDoes::Arm { seconds }
    }

    /// Nothing is to be guarded.
    fn rest(&mut self, now: Time) -> WatchdogDoes {
        if self.runs && !self.can.stop {
            self.fed = now;
            return WatchdogDoes::Feed;
        }
        WatchdogDoes::Nothing
    }

    /// The longest time of the device, in seconds, that fits into a lease of which so much is left.
    fn seconds(&self, left_ms: u64) -> Option<u32> {
        let (least, most) = self.can.seconds;
        let fits = (left_ms.saturating_sub(ROOM_MS) / 1000).min(SECONDS_MAX);
        let fits = u32::try_from(fits).unwrap_or(u32::MAX).min(most);
        (fits >= least.max(1)).then_some(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1000)
    }

    fn sees(lease_until_ms: u64) -> WatchdogSees {
        WatchdogSees {
            lease_until: at(lease_until_ms),
            serves: true,
            silent: Time(0),
            guarded: true,
            ended: false,
        }
    }

    /// A device, and a node whose lease is renewed every 200 ms for as long as `renews`.
    struct Node {
        now_ms: u64,
        watchdog: Watchdog,
        sees: WatchdogSees,
        lease_ms: u64,
        renews: bool,
        runs: Option<u64>,
        fires_ms: u64,
    }

    impl Node {
        fn new(lease_ms: u64, can: WatchdogCan) -> Self {
            Self {
                now_ms: 10_000,
                watchdog: Watchdog::new(can, false),
                sees: sees(0),
                lease_ms,
                renews: true,
                runs: None,
                fires_ms: u64::MAX,
            }
        }

        fn run(&mut self, ms: u64) {
            for _ in 0..ms / WATCHDOG_LOOKS_MS {
                self.now_ms += WATCHDOG_LOOKS_MS;
                if self.renews && self.now_ms.is_multiple_of(200) {
                    self.sees.lease_until = at(self.now_ms + self.lease_ms - 20);
                }
                assert!(!self.is_reset(), "the machine is reset at {} ms", self.fires_ms);
                match self.watchdog.look(at(self.now_ms), self.sees) {
                    WatchdogDoes::Nothing => {}
                    WatchdogDoes::Arm { seconds } => {
                        self.runs = Some(u64::from(seconds) * 1000);
                        self.fires_ms = self.now_ms + u64::from(seconds) * 1000;
                    }
                    WatchdogDoes::Feed => self.fires_ms = self.now_ms + self.runs.expect("armed"),
                    WatchdogDoes::Disarm => {
                        self.runs = None;
                        self.fires_ms = u64::MAX;
                    }
                }
                let fires_at = self.watchdog.fires_at();
                assert!(self.runs.is_none() || fires_at.is_none_or(|fires| fires == at(self.fires_ms)));
            }
        }

        fn is_reset(&self) -> bool {
            self.now_ms >= self.fires_ms
        }

        fn lease_ends_ms(&self) -> u64 {
            self.sees.lease_until.0 / 1000
        }
    }

    #[test]
    fn a_watchdog_fires_before_the_lease_ends_whenever_the_engine_stops() {
        for lease_ms in [2000, 3000, 10_000, 100_000] {
            for stops_ms in (0..1000).step_by(100) {
                let mut node = Node::new(lease_ms, WatchdogCan::ALL);
                node.run(5000 + stops_ms);
                assert!(node.watchdog.armed().is_some());
                assert!(node.fires_ms > node.now_ms && node.fires_ms <= node.lease_ends_ms());
                // The lease ends, because the node is cut off. The engine stops at any moment then.
                node.renews = false;
                let left_ms = node.lease_ends_ms() - node.now_ms - 400;
                node.run(left_ms.min(stops_ms));
                assert!(node.fires_ms <= node.lease_ends_ms(), "lease {lease_ms}, {stops_ms}");
            }
        }
    }

    #[test]
    fn a_watchdog_does_not_fire_if_the_guard_silences_its_node_in_time() {
        let mut node = Node::new(2000, WatchdogCan::ALL);
        node.run(5000);
        node.renews = false;
        let acts_ms = node.lease_ends_ms() - 400;
        node.run(acts_ms + 200 - node.now_ms);
        node.sees.silent = at(node.now_ms);
        node.run(20_000);
        assert_eq!((node.runs, node.watchdog.fires_at()), (None, None));
        node.renews = true;
        node.run(1000);
        assert!(node.watchdog.armed().is_some(), "the next lease");
    }

    #[test]
    fn a_watchdog_fires_if_the_guard_does_not_get_done() {
        let mut node = Node::new(2000, WatchdogCan::ALL);
        node.run(5000);
        node.renews = false;
        while node.now_ms + WATCHDOG_LOOKS_MS < node.fires_ms {
            node.run(WATCHDOG_LOOKS_MS);
        }
        assert!(node.fires_ms <= node.lease_ends_ms());
        let mut node = Node::new(10_000, WatchdogCan::ALL);
        node.run(5000);
        node.sees.guarded = false;
        let before_ms = node.fires_ms;
        node.run(3000);
        assert_eq!(node.fires_ms, before_ms, "nothing is fed for a guard that does nothing");
    }

    #[test]
    fn a_watchdog_rests_while_its_node_serves_nothing() {
        let mut node = Node::new(2000, WatchdogCan::ALL);
        node.sees.serves = false;
        node.run(5000);
        assert_eq!(node.runs, None);
        node.sees.serves = true;
        node.run(200);
        assert_eq!(node.runs, Some(1000));
        node.sees.serves = false;
        node.run(200);
        assert_eq!(node.runs, None);
        (node.sees.serves, node.sees.ended) = (true, true);
        node.run(200);
        assert_eq!(node.runs, None, "the engine has ended in order");
    }

    #[test]
    fn a_watchdog_without_end_is_fed_while_its_node_serves_nothing() {
        let mut node = Node::new(2000, WatchdogCan { stop: false, ..WatchdogCan::ALL });
        node.run(5000);
        node.sees.serves = false;
        node.run(60_000);
        assert!(node.fires_ms > node.now_ms);
    }

    #[test]
    fn a_watchdog_that_is_slower_than_the_lease_is_not_used() {
        let slow = WatchdogCan { seconds: (10, 600), ..WatchdogCan::ALL };
        let mut node = Node::new(2000, slow);
        assert!(node.watchdog.is_too_slow(2000) && !node.watchdog.is_too_slow(12_000));
        node.run(5000);
        assert_eq!(node.runs, None);
        let mut node = Node::new(1000, WatchdogCan::ALL);
        node.run(5000);
        assert_eq!(node.runs, None, "a watchdog counts whole seconds");
    }

    #[test]
    fn a_shorter_lease_shortens_the_time_of_the_watchdog() {
        let mut node = Node::new(10_000, WatchdogCan::ALL);
        node.run(5000);
        assert_eq!(node.runs, Some(9000));
        node.lease_ms = 3000;
        node.run(20_000);
        assert_eq!(node.runs, Some(2000));
        assert!(node.fires_ms <= node.lease_ends_ms());
    }
}
