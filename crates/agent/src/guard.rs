//! What this node knows about what its engine silences when the lease ends (R19).
//!
//! Guarantees
//! - A list counts as confirmed only if the engine confirmed it on its present connection and nothing else was asked since.
//!   What was confirmed is forgotten before something else is asked: a request that nobody answered may take effect later.
//! - Requests reach the engine in the order of their numbers. Then the newest one's confirmation says that none of the
//!   others comes after it; an answer to any other says nothing.

use mainstay_api::engine::GuardEntry;
use mainstay_types::Time;

/// A list that was not confirmed is asked for again after this time.
pub const REPEAT_GUARD_MS: u64 = 500;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct Guard {
    confirmed: bool,
    /// The newest request, if it was made for the present connection.
    asked: Option<Asked>,
    last_number: u64,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    entries: Vec<GuardEntry>,
    at: Time,
}

/// What has to be done to have something guarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// It is.
    Confirmed,
    /// The engine has to be asked.
    Ask { number: u64, entries: Vec<GuardEntry> },
    /// It was asked a moment ago.
    Wait,
}

impl Guard {
    /// The connection to the engine is another one: its engine may know nothing.
    pub fn forget(&mut self) {
        self.confirmed = false;
        self.asked = None;
    }

    /// `entries`, and nothing else, has to be guarded.
    pub fn want(&mut self, now: Time, entries: Vec<GuardEntry>) -> Wanted {
        if let Some(asked) = self.asked.as_ref().filter(|asked| asked.entries == entries) {
            if self.confirmed {
                return Wanted::Confirmed;
            }
            if now.ms_since(asked.at) < REPEAT_GUARD_MS {
                return Wanted::Wait;
            }
        }
        self.confirmed = false;
        self.last_number += 1;
        let number = self.last_number;
        self.asked = Some(Asked { number, entries: entries.clone(), at: now });
        Wanted::Ask { number, entries }
    }

    /// The engine has confirmed request `number`, or has not.
    pub fn answered(&mut self, number: u64, confirmed: bool) {
        if self.asked.as_ref().is_some_and(|asked| asked.number == number) {
            self.confirmed = confirmed;
        }
    }

    /// When the engine is to be asked again.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.asked.as_ref().filter(|_| !self.confirmed).map(|asked| asked.at.plus_ms(REPEAT_GUARD_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::ResourceId;

    const NOW: Time = Time(7_000_000);

    fn list(resources: &[u64]) -> Vec<GuardEntry> {
        resources
            .iter()
            .map(|&resource| GuardEntry { resource: ResourceId(resource), ..GuardEntry::default() })
            .collect()
    }

    fn ask(guard: &mut Guard, now: Time, resources: &[u64]) -> u64 {
        match guard.want(now, list(resources)) {
            Wanted::Ask { number, .. } => number,
            other => panic!("{other:?}"),
        }
    }

    /// The engine hangs when the service has stopped, and carries out later what it was asked meanwhile.
    #[test]
    fn a_list_that_may_be_replaced_later_is_not_confirmed() {
        let mut guard = Guard::default();
        let first = ask(&mut guard, NOW, &[1]);
        guard.answered(first, true);
        assert_eq!(guard.want(NOW, list(&[1])), Wanted::Confirmed);
        let empty = ask(&mut guard, NOW, &[]);
        guard.answered(empty, false);
        // To start again it needs a new confirmation, which comes after the empty list took effect.
        let again = ask(&mut guard, NOW, &[1]);
        guard.answered(empty, true);
        assert_eq!(guard.want(NOW, list(&[1])), Wanted::Wait);
        guard.answered(first, true);
        assert_eq!(guard.want(NOW, list(&[1])), Wanted::Wait);
        guard.answered(again, true);
        assert_eq!(guard.want(NOW, list(&[1])), Wanted::Confirmed);
    }

    #[test]
    fn another_connection_has_confirmed_nothing() {
        let mut guard = Guard::default();
        let first = ask(&mut guard, NOW, &[1]);
        guard.answered(first, true);
        guard.forget();
        let second = ask(&mut guard, NOW, &[1]);
        guard.forget();
        // The answer was on its way when the connection broke.
        guard.answered(second, true);
        let third = ask(&mut guard, NOW, &[1]);
        guard.answered(second, true);
        assert_eq!(guard.want(NOW, list(&[1])), Wanted::Wait);
        guard.answered(third, true);
        assert_eq!(guard.want(NOW, list(&[1])), Wanted::Confirmed);
    }

    #[test]
    fn what_is_not_confirmed_is_asked_again_after_a_while() {
        let mut guard = Guard::default();
        let first = ask(&mut guard, NOW, &[1]);
        assert_eq!(guard.next_deadline(), Some(NOW.plus_ms(REPEAT_GUARD_MS)));
        guard.answered(first, false);
        assert_eq!(guard.want(NOW.plus_ms(REPEAT_GUARD_MS - 1), list(&[1])), Wanted::Wait);
        let second = ask(&mut guard, NOW.plus_ms(REPEAT_GUARD_MS), &[1]);
        // Late, but the second one says the same and is still to come.
        guard.answered(first, true);
        assert_eq!(guard.want(NOW.plus_ms(REPEAT_GUARD_MS), list(&[1])), Wanted::Wait);
        guard.answered(second, true);
        assert_eq!(guard.next_deadline(), None);
    }
}
