//! Silence of a node that may have been replaced: when its guard and its silencer act, and what may
//! be done with its devices (R19, R20).
//!
//! Pure: events in, effects out, time as a parameter. The engine carries the effects out with
//! timers, netlink and kill; the simulator runs the same code.

mod silencer;

pub use silencer::{
    SILENCER_LOOKS_MS, SILENCER_MARGIN_MS, SilencerDoes, SilencerSees, silencer_does, silencing_pause_ms,
};
