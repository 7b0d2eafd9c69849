//! Silence of a node that may have been replaced: when its guard and its silencer act, and what may
//! be done with its devices (R19, R20).
//!
//! Pure: events in, effects out, time as a parameter. The engine carries the effects out with
//! timers, netlink and kill; the simulator runs the same code.

mod device_states;
mod guard;
mod held_errors;
mod left_devices;
mod silencer;
mod watchdog;

use mainstay_types::Time;

pub use device_states::{Devices, Wanted};
pub use guard::{Effect, EngineEnds, Guard, Silencing, Step, WHEN_THE_ENGINE_ENDS, WHEN_THE_LEASE_ENDS, Why};
pub use held_errors::{Free, HeldErrors};
pub use left_devices::{Absence, Fate, IN_USE_MS_MAX, LEFT_MS_MAX, fate, may_take_over, no_other_primary};
pub use silencer::{
    SILENCER_LOOKS_MS, SILENCER_MARGIN_MS, SilencerDoes, SilencerSees, silencer_does, silencing_pause_ms,
};
pub use watchdog::{WATCHDOG_LOOKS_MS, Watchdog, WatchdogCan, WatchdogDoes, WatchdogSees};

/// How long before the end of the lease the guard acts. From then on no step of a service begins.
pub const GUARD_MARGIN_MS: u64 = 400;

const _: () = assert!(SILENCER_MARGIN_MS < GUARD_MARGIN_MS, "the guard comes first");

/// When the guard acts for a lease that ends at `lease_until`.
#[must_use]
pub const fn guard_acts_at(lease_until: Time) -> Time {
    Time(lease_until.0.saturating_sub(GUARD_MARGIN_MS * 1000))
}
