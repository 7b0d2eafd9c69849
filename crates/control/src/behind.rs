//! The lag of a replica that is not in sync, in words for the operator whose move is refused
//! because of it.

use crate::maintenance::span;
use mainstay_types::{PeerState, size_words};

/// How the primary sees a replica that is not in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Behind {
    pub state: PeerState,
    /// Bytes of the log that it lacks.
    pub bytes: u64,
    /// The bytes are only a lower bound.
    pub at_least: bool,
    /// Progress of a copy in thousandths.
    pub copied_permille: u16,
    /// Milliseconds that the copy takes at the rate of late, and that rate in bytes per second.
    pub copy_left: Option<(u64, u64)>,
    /// Milliseconds until a replica that left because it was slow may return.
    pub returns_in_ms: Option<u64>,
}

impl Behind {
    /// Says how much is missing and how long that takes, and what the operator can do. `node` and
    /// `primary` are names.
    #[must_use]
    pub fn words(&self, resource: &str, node: &str, primary: &str) -> (String, String) {
        let wait = format!(
            "Wait until {node} is in sync: `mainstay resource status {resource}` shows how far it is."
        );
        let least = if self.at_least { "at least " } else { "" };
        let lacks = match self.bytes {
            0 if self.at_least => "it lacks an unknown part of the log".to_owned(),
            0 => "it lacks nothing of the log".to_owned(),
            bytes => format!("it lacks {least}{} of the log", size_words(bytes)),
        };
        match self.state {
            PeerState::Disconnected => (
                format!("{lacks}, and the engine of {primary} has no connection to it"),
                format!("See that the engine of {node} runs and that {primary} reaches it. {wait}"),
            ),
            PeerState::Failed => (
                format!("it refuses what {primary} sends"),
                format!("See why: `mainstay resource status {resource}`."),
            ),
            PeerState::Copying => {
                let percent = self.copied_permille.min(1000) / 10;
                let left = match self.copy_left {
                    Some((ms, rate)) => {
                        let bytes = ms.saturating_mul(rate) / 1000;
                        format!(
                            "about {} are left, which take about {} at {}/s",
                            size_words(bytes),
                            span(ms),
                            size_words(rate)
                        )
                    }
                    None => "how long the rest takes is not known yet".to_owned(),
                };
                (format!("it is being copied to: {percent} % are done, and {left}"), wait)
            }
            _ => match self.returns_in_ms {
                Some(0) => (
                    format!("{lacks}; it is out because it was slow, and returns when it has caught up"),
                    wait,
                ),
                Some(ms) => (
                    format!(
                        "{lacks}; it is out because it was slow, and returns in {} at the earliest",
                        span(ms)
                    ),
                    wait,
                ),
                None => (format!("{lacks}, and catches up now"), wait),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(behind: Behind) -> (String, String) {
        behind.words("db", "n2", "n1")
    }

    #[test]
    fn the_lag_of_a_target_is_said_with_the_time_that_it_takes_and_what_to_do() {
        let lag = Behind { state: PeerState::CatchingUp, bytes: 3 << 20, ..Behind::default() };
        let (what, remedy) = said(lag);
        assert_eq!(what, "it lacks 3 MiB of the log, and catches up now");
        assert_eq!(remedy, "Wait until n2 is in sync: `mainstay resource status db` shows how far it is.");
        let slow = Behind { returns_in_ms: Some(20_000), ..lag };
        assert!(
            said(slow).0.ends_with("it was slow, and returns in 20 s at the earliest"),
            "{:?}",
            said(slow)
        );
        let copy = Behind {
            state: PeerState::Copying,
            copied_permille: 255,
            copy_left: Some((180_000, 10 << 20)),
            ..lag
        };
        let words = "it is being copied to: 25 % are done, and about 1.8 GiB are left, which take about 3 min at 10 MiB/s";
        assert_eq!(said(copy).0, words);
        let unknown = Behind { copy_left: None, ..copy };
        assert!(said(unknown).0.ends_with("not known yet"), "{:?}", said(unknown));
        let gone = Behind { state: PeerState::Disconnected, at_least: true, ..lag };
        let (what, remedy) = said(gone);
        assert_eq!(what, "it lacks at least 3 MiB of the log, and the engine of n1 has no connection to it");
        assert!(remedy.starts_with("See that the engine of n2 runs and that n1 reaches it."), "{remedy}");
    }
}
