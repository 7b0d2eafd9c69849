//! Errors and withdrawals of the devices of a living engine, which wait until no service can see
//! them.
//!
//! ```text
//!   whole ── an error, or withdrawn: the guard is asked ──▶ waiting ── SIGKILL was sent ──▶ whole, or the devices go
//! ```
//!
//! Guarantees:
//! - No error that a device answers, and no withdrawal, leaves here before the guard has sent
//!   SIGKILL to the services on the resource, or has said that there are none: a file system whose
//!   device fails may say that something is on the device which is not. When the lease has ended
//!   the guard has done so already (R19): then nothing waits.
//! - The guard is asked once for all that waits. A later error asks again: a service may have been
//!   started again on devices that have only answered an error.
//!
//! The wait lasts for a few system calls of another thread. Requests that wait count as
//! outstanding, which the frontends bound (R18).

use mainstay_types::simulation::{Bug, planted};

/// See the top of this file. `A` is an answer that waits, in the words of the caller.
#[derive(Debug)]
pub struct HeldErrors<A> {
    /// Something waits.
    waiting: bool,
    /// Questions that the guard has not answered.
    asked: u32,
    held: Vec<A>,
    /// The devices are to be withdrawn.
    withdraw: bool,
}

/// Answers and withdrawal that may happen now, in this order.
#[derive(PartialEq, Eq, Debug)]
pub struct Free<A> {
    pub answers: Vec<A>,
    pub withdraw: bool,
}

impl<A> Default for HeldErrors<A> {
    fn default() -> Self {
        Self { waiting: false, asked: 0, held: Vec::new(), withdraw: false }
    }
}

impl<A> Default for Free<A> {
    fn default() -> Self {
        Self { answers: Vec::new(), withdraw: false }
    }
}

impl<A> HeldErrors<A> {
    /// Holds an answer that is an error. `unseen` asks the guard, and returns whether no service
    /// could see the error.
    pub fn answer(&mut self, held: A, unseen: impl FnOnce() -> bool) -> Free<A> {
        self.held.push(held);
        self.ask(unseen)
    }

    /// The devices are to go.
    pub fn withdraw(&mut self, unseen: impl FnOnce() -> bool) -> Free<A> {
        self.withdraw = true;
        self.ask(unseen)
    }

    fn ask(&mut self, unseen: impl FnOnce() -> bool) -> Free<A> {
        if std::mem::replace(&mut self.waiting, true) {
            return Free::default();
        }
        if unseen() || planted(Bug::ErrorsNotHeld) {
            return self.unseen();
        }
        self.asked += 1;
        Free::default()
    }

    /// Takes the guard's answer that it has sent SIGKILL to the services. Only the answer to the
    /// last question counts: since an earlier question a service may have been started again.
    pub fn killed(&mut self) -> Free<A> {
        self.asked = self.asked.saturating_sub(1);
        if self.asked == 0 { self.unseen() } else { Free::default() }
    }

    /// Lets everything happen that waits. The caller knows, also without an answer of the guard,
    /// that no service can see it.
    pub fn unseen(&mut self) -> Free<A> {
        self.waiting = false;
        Free { answers: std::mem::take(&mut self.held), withdraw: std::mem::take(&mut self.withdraw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_user() -> bool {
        true
    }

    #[test]
    fn no_device_fails_before_its_users_are_killed() {
        let mut held = HeldErrors::<u64>::default();
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            false
        };
        assert_eq!(held.answer(1, &mut ask), Free::default());
        assert_eq!(held.withdraw(&mut ask), Free::default());
        assert_eq!(held.answer(2, &mut ask), Free::default());
        assert_eq!(held.killed(), Free { answers: vec![1, 2], withdraw: true });
        assert_eq!(held.killed(), Free::default(), "said twice");
        assert_eq!(asked, 1, "once for all");
    }

    #[test]
    fn a_service_that_was_started_again_is_killed_again() {
        let mut held = HeldErrors::<u64>::default();
        assert_eq!(held.answer(1, || false), Free::default());
        assert_eq!(held.killed().answers, [1]);
        assert_eq!(held.answer(2, || false), Free::default());
        assert_eq!(held.killed().answers, [2]);
    }

    #[test]
    fn without_a_service_nothing_waits() {
        let mut held = HeldErrors::<u64>::default();
        assert_eq!(held.answer(1, no_user).answers, [1]);
        assert_eq!(held.withdraw(no_user), Free { answers: vec![], withdraw: true });
    }

    #[test]
    fn when_the_lease_ends_nothing_waits_and_a_late_answer_does_not_count() {
        let mut held = HeldErrors::<u64>::default();
        assert_eq!(held.withdraw(|| false), Free::default());
        assert_eq!(held.unseen(), Free { answers: vec![], withdraw: true });
        // The lease is back, and so are devices and services.
        assert_eq!(held.answer(1, || false), Free::default());
        assert_eq!(held.killed(), Free::default(), "that was the answer of before");
        assert_eq!(held.killed().answers, [1]);
    }
}
