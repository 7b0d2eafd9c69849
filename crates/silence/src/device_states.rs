//! The devices of a resource on a node.
//!
//! ```text
//!           offered              all were made
//!    None ──────────▶ Attaching ──────────────▶ Offered
//!     ▲                   │ fail                   │ fail
//!     │                   ▼      all were made     ▼
//!     │                Failed ──────────────▶ Detaching
//!     └────────────────────────── gone ────────────┘
//! ```
//!
//! Guarantees
//! - Devices are made only when there are none, and while none may be there they are not made: not
//!   when the node is fenced (R19), and not once the owner ends.
//! - Devices that answer errors do so for good. They go as soon as none of them is being made.
//! - Before they fail, no service can see it: see [`HeldErrors`](crate::HeldErrors).

/// State of the devices of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Devices {
    #[default]
    None,
    /// Devices are being made.
    Attaching {
        /// How many of them are not there yet.
        missing: usize,
    },
    /// All are there.
    Offered,
    /// The devices answer errors, and are detached when none is missing.
    Failed { missing: usize },
    /// The devices are being taken away. Devices that are wanted again come as soon as these are
    /// gone.
    Detaching,
}

/// Whether there are to be devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Wanted {
    #[default]
    No,
    Yes,
    /// The owner ends: no devices any more.
    Never,
}

impl Wanted {
    /// Changes the wish, unless it is the last one.
    pub fn set(&mut self, wanted: bool) {
        if *self != Self::Never {
            *self = if wanted { Self::Yes } else { Self::No };
        }
    }
}

impl Devices {
    /// Devices are to be there. Returns whether they are to be made now: [`made`](Self::made)
    /// follows.
    #[must_use]
    pub fn offer(self, wanted: Wanted, fenced: bool) -> bool {
        self == Self::None && wanted == Wanted::Yes && !fenced
    }

    /// Notes that this number of devices is being made.
    pub fn made(&mut self, devices: usize) {
        *self = if devices == 0 { Self::Offered } else { Self::Attaching { missing: devices } };
    }

    /// A device is there, or could not be made. Returns whether it was the last one that was
    /// missing.
    pub fn attached(&mut self) -> bool {
        let (Self::Attaching { missing } | Self::Failed { missing }) = self else { return false };
        *missing = missing.saturating_sub(1);
        let complete = *missing == 0;
        if complete && matches!(self, Self::Attaching { .. }) {
            *self = Self::Offered;
        }
        complete
    }

    /// The devices are to go. Returns whether there are any that are not going yet.
    #[must_use]
    pub fn withdraw(self) -> bool {
        !matches!(self, Self::None | Self::Detaching)
    }

    /// No service can see the devices fail. Returns whether they are to answer errors from now on.
    pub fn fail(&mut self) -> bool {
        match self {
            Self::None | Self::Detaching => return false,
            Self::Attaching { missing } => *self = Self::Failed { missing: *missing },
            Self::Offered => *self = Self::Failed { missing: 0 },
            Self::Failed { .. } => {}
        }
        true
    }

    /// Returns whether failed devices are to be taken away now.
    pub fn detach(&mut self) -> bool {
        let due = *self == Self::Failed { missing: 0 };
        if due {
            *self = Self::Detaching;
        }
        due
    }

    /// The devices are gone. To be [offered](Self::offer) again if they are wanted.
    pub fn detached(&mut self) {
        *self = Self::None;
    }

    /// Whether devices that are there, or are being made, are to be withdrawn.
    #[must_use]
    pub fn is_to_go(self, wanted: Wanted, fenced: bool) -> bool {
        matches!(self, Self::Failed { .. }) || wanted != Wanted::Yes || fenced
    }

    /// Whether there are none, and none is on its way or in its going.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::None
    }

    /// Whether all are there, and answer.
    #[must_use]
    pub fn is_offered(self) -> bool {
        self == Self::Offered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(devices: usize) -> Devices {
        let mut state = Devices::None;
        assert!(state.offer(Wanted::Yes, false), "there are none");
        state.made(devices);
        for missing in (0..devices).rev() {
            assert!(!state.is_offered());
            assert_eq!(state.attached(), missing == 0);
        }
        assert!(state.is_offered());
        state
    }

    #[test]
    fn devices_are_made_once_and_only_where_they_may_be() {
        assert!(!offered(2).offer(Wanted::Yes, false), "they are there");
        assert!(!Devices::None.offer(Wanted::Yes, true), "the node is fenced");
        assert!(!Devices::None.offer(Wanted::No, false) && !Devices::None.offer(Wanted::Never, false));
        let mut wanted = Wanted::Never;
        wanted.set(true);
        assert_eq!(wanted, Wanted::Never);
    }

    #[test]
    fn devices_that_fail_while_they_are_made_go_when_the_last_one_is_there() {
        let mut state = Devices::None;
        state.made(2);
        assert!(state.withdraw() && state.fail());
        assert!(!state.detach(), "two are missing");
        assert!(!state.offer(Wanted::Yes, false), "they answer errors for good");
        assert!(!state.attached() && !state.detach());
        assert!(state.attached() && !state.is_offered() && state.detach());
        state.detached();
        assert!(state.is_none());
    }

    #[test]
    fn devices_that_are_wanted_while_they_go_come_again_when_they_are_gone() {
        let mut state = offered(1);
        assert!(state.withdraw() && state.fail() && state.detach());
        assert!(!state.fail() && !state.withdraw(), "once");
        assert!(!state.offer(Wanted::Yes, false), "they are still there");
        state.detached();
        assert!(state.offer(Wanted::Yes, false));
    }
}
