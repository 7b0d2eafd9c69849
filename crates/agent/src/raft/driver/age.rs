//! Age of the state that a node has applied, when no majority confirms it.
//!
//! Guarantees
//! - The state of a node that hears its leader is as old as the last word of the leader, unless the
//!   leader has told of entries that have not come here. Then it is as old as the last confirmed
//!   read, or the last entry that was applied, whichever is later.
//! - Before a node has heard a leader since its start, the age of its state is unknown.

use mainstay_types::Time;

#[derive(Default)]
pub(super) struct Age {
    /// When this node led, or heard its leader, last.
    heard: Option<Time>,
    /// When the state was confirmed, or an entry was applied, last.
    current: Option<Time>,
    /// Last entry that a leader has told is committed.
    told: u64,
    /// Last entry that was applied here.
    applied: u64,
}

impl Age {
    /// This node leads, or hears its leader.
    pub(super) fn heard(&mut self, now: Time) {
        self.heard = Some(now);
    }

    /// A leader has told that the log is committed up to `index`.
    pub(super) fn told(&mut self, index: u64) {
        self.told = self.told.max(index);
    }

    /// The log is applied up to `index`. What a node applies before it has heard a leader is of an
    /// unknown time.
    pub(super) fn applied(&mut self, index: u64, now: Time) {
        if index > self.applied && self.heard.is_some() {
            self.current = Some(now);
        }
        self.applied = self.applied.max(index);
    }

    /// A majority has confirmed the state.
    pub(super) fn confirmed(&mut self, now: Time) {
        self.current = Some(now);
    }

    /// Milliseconds for which the state has not been confirmed, at least 1; `None` if they are
    /// unknown.
    pub(super) fn ms(&self, now: Time) -> Option<u64> {
        let since = if self.told > self.applied { self.current } else { self.heard.max(self.current) };
        since.map(|since| now.ms_since(since).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time(s * 1_000_000)
    }

    #[test]
    fn the_state_of_a_node_that_has_heard_no_leader_since_its_start_is_of_unknown_age() {
        let mut age = Age::default();
        age.applied(40, at(5000));
        assert_eq!(age.ms(at(5001)), None, "it is not as old as the machine has been up");
        age.heard(at(5002));
        assert_eq!(age.ms(at(5010)), Some(8000));
    }

    #[test]
    fn heartbeats_do_not_make_a_state_young_that_lacks_entries() {
        let mut age = Age::default();
        age.heard(at(10));
        age.applied(40, at(10));
        age.confirmed(at(20));
        age.told(41);
        age.heard(at(200));
        assert_eq!(age.ms(at(200)), Some(180_000), "it has confirmed nothing for three minutes");
        age.applied(41, at(210));
        assert_eq!(age.ms(at(210)), Some(1));
        age.heard(at(230));
        assert_eq!(age.ms(at(231)), Some(1000));
    }
}
