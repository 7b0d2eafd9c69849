//! The state of a machine that outlives its agent.

use super::Mode;
use mainstay_types::{Epoch, Time};
use serde::{Deserialize, Serialize};

/// The persisted part of a machine. Opaque to others; serialisable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub(super) mode: Mode,
    pub(super) epoch: Epoch,
    pub(super) round: u64,
    pub(super) spent_epoch: Option<Epoch>,
    /// Boot-time points of failures within the window.
    pub(super) failures: Vec<Time>,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) last_failure: String,
    pub(super) next_ticket: u64,
    /// Boot-time point of the last start. A state that an older version saved counts as silenced by
    /// whatever the guard did.
    #[serde(default)]
    pub(super) began: Time,
    /// See [`super::Report::passes`].
    #[serde(default)]
    pub(super) passes: bool,
    /// See [`super::Machine::restarted`].
    #[serde(default)]
    pub(super) restarted: u64,
    /// See [`super::Machine::rest`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) rests: bool,
    /// The steps begin with the hook, so that the numbers of `mode` count it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) hooked: bool,
    /// Addresses were left on the node while processes were restarted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) kept: bool,
}

impl Saved {
    /// Whether nothing of the service was left on the node then: see
    /// [`mainstay_types::ServicePhase::is_silent`].
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self.mode, Mode::Stopped | Mode::Failed)
    }

    /// Whether the service was in maintenance then.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Whether addresses stayed on the node then, while processes were restarted.
    #[must_use]
    pub fn keeps_address(&self) -> bool {
        self.kept
    }
}
