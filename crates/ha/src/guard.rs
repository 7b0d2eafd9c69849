//! Knowledge of this node about the guard of its engine (R19): the list that the engine silences
//! when the lease ends, and the lease that the engine has taken.
//!
//! Guarantees
//! - A list counts as confirmed only if the engine confirmed it on its present connection, and no
//!   other list was asked for since. The confirmation is forgotten before another list is asked
//!   for: a request without an answer may take effect later.
//! - Requests reach the engine in the order of their numbers. So the confirmation of the newest one
//!   says that none of the others comes after it. An answer to any other says nothing.
//! - A step of a service may run only while the list is confirmed and the lease that the *engine*
//!   has taken is valid. A lease that this process has counted, and that the engine has not heard
//!   of, may come too late. Then the guard has acted, and the engine's answer says so
//!   ([`crate::Event::Silenced`]).
//!
//! `L` is the list, in the words of the caller.

use mainstay_silence::guard_acts_at;
use mainstay_types::Time;
use mainstay_types::simulation::{Bug, planted};

/// A list that was not confirmed is asked for again after this time.
pub const REPEAT_GUARD_MS: u64 = 500;

/// See the top of this file.
#[derive(Clone, Debug)]
pub struct Guard<L> {
    confirmed: bool,
    /// The newest request, if it was made for the present connection.
    asked: Option<ListRequest<L>>,
    last_number: u64,
    /// The lease that the engine has taken on the present connection, 0 for none.
    lease_until: Time,
}

#[derive(Clone, Debug)]
struct ListRequest<L> {
    number: u64,
    list: L,
    at: Time,
}

/// Answer to a caller that wants a list guarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted<L> {
    /// The engine has confirmed the list.
    Confirmed,
    /// The engine has to be asked.
    Ask { number: u64, list: L },
    /// The engine was asked a moment ago, and has not confirmed the list yet.
    Wait,
}

impl<L> Default for Guard<L> {
    fn default() -> Self {
        Self { confirmed: false, asked: None, last_number: 0, lease_until: Time(0) }
    }
}

impl<L: Clone + PartialEq> Guard<L> {
    /// Forgets what the engine has confirmed. The connection to the engine is gone, or is another
    /// one whose engine may know nothing. Or the engine silences this node.
    pub fn forget(&mut self) {
        if planted(Bug::OldConfirmationCounts) {
            return;
        }
        self.confirmed = false;
        self.asked = None;
        self.lease_until = Time(0);
    }

    /// The engine says that its guard knows a lease until then; 0 if the guard has acted.
    pub fn lease_taken(&mut self, until: Time) {
        self.lease_until = until;
    }

    /// `list`, and nothing else, has to be guarded.
    pub fn want(&mut self, now: Time, list: L) -> Wanted<L> {
        if let Some(asked) = self.asked.as_ref().filter(|asked| asked.list == list) {
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
        self.asked = Some(ListRequest { number, list: list.clone(), at: now });
        Wanted::Ask { number, list }
    }

    /// The engine has confirmed request `number`, or has not.
    pub fn answered(&mut self, number: u64, confirmed: bool) {
        if self.asked.as_ref().is_some_and(|asked| asked.number == number) {
            self.confirmed = confirmed;
        }
    }

    /// Whether steps of the services on the list may run.
    #[must_use]
    pub fn may_run(&self, now: Time) -> bool {
        self.confirmed && now < guard_acts_at(self.lease_until)
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
    use mainstay_silence::GUARD_MARGIN_MS;
    const NOW: Time = Time(7_000_000);

    fn list(services: &[u64]) -> Vec<u64> {
        services.to_vec()
    }

    fn ask(guard: &mut Guard<Vec<u64>>, now: Time, services: &[u64]) -> u64 {
        match guard.want(now, list(services)) {
            Wanted::Ask { number, .. } => number,
            other => panic!("{other:?}"),
        }
    }

    /// The engine hangs when the service has stopped. It carries out the requests of that time
    /// later.
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
    fn an_unconfirmed_list_is_asked_again_after_a_while() {
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

    #[test]
    fn a_step_may_run_within_the_lease_that_the_engine_has_taken() {
        let mut guard = Guard::default();
        let until = NOW.plus_ms(2_000);
        guard.lease_taken(until);
        assert!(!guard.may_run(NOW), "nothing is confirmed");
        let first = ask(&mut guard, NOW, &[1]);
        guard.answered(first, true);
        assert!(guard.may_run(NOW));
        assert!(guard.may_run(Time(until.0 - GUARD_MARGIN_MS * 1000 - 1)));
        assert!(!guard.may_run(Time(until.0 - GUARD_MARGIN_MS * 1000)), "the guard acts");
        let second = ask(&mut guard, NOW, &[1, 2]);
        assert!(!guard.may_run(NOW), "another list is on its way");
        guard.answered(second, true);
        guard.forget();
        assert!(!guard.may_run(NOW), "another engine knows of no lease");
        let third = ask(&mut guard, NOW, &[1, 2]);
        guard.answered(third, true);
        assert!(!guard.may_run(NOW));
        guard.lease_taken(until);
        assert!(guard.may_run(NOW));
    }
}
