//! End of the log that a process finds when it starts. All that an earlier process had applied was
//! committed, so it was in this log and stays there. Once the log is applied up to this end, the
//! state is no older than any that an earlier process has seen.

/// The last entry of those that were found and that no leader has replaced.
#[derive(Debug)]
pub struct Replay {
    found: u64,
}

impl Replay {
    /// `last`: of the log, 0 if it is empty.
    pub fn new(last: u64) -> Self {
        Self { found: last }
    }

    /// A leader has entries written from `first` on. The entries that were there were never
    /// committed.
    pub fn replaced_from(&mut self, first: u64) {
        self.found = self.found.min(first.saturating_sub(1));
    }

    /// Everything that was found has been applied, if it was not replaced.
    pub fn is_over(&self, applied: u64) -> bool {
        applied >= self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_ends_when_every_entry_found_in_the_log_is_applied() {
        assert!(Replay::new(0).is_over(0), "there was nothing");
        let mut replay = Replay::new(7);
        assert!(!replay.is_over(6) && replay.is_over(7));
        // The entries after the last one were not found.
        replay.replaced_from(8);
        assert!(!replay.is_over(6) && replay.is_over(7));
    }

    /// Otherwise the node would wait for entries that no node has.
    #[test]
    fn the_replay_does_not_wait_for_entries_that_a_leader_replaces() {
        let mut replay = Replay::new(7);
        replay.replaced_from(6);
        assert!(!replay.is_over(4) && replay.is_over(5));
        // The log goes on, and is never again what was found.
        replay.replaced_from(9);
        assert!(replay.is_over(5));
        // A snapshot in the place of everything that is here.
        replay.replaced_from(1);
        assert!(replay.is_over(0));
    }
}
