//! A log as the model sees it: which epoch each index was sequenced in. With one sequencer per
//! epoch (S7) that is the whole identity of an entry, so contents need not be modelled.

use std::fmt;

/// Most entries that a log holds.
pub const LOG_MAX: u8 = 8;

/// Epochs of the entries at index 1, 2, …, one nibble each; 0 is "no entry".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Log(u32);

impl Log {
    /// All of it as one number.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    #[must_use]
    pub fn end(self) -> u8 {
        (32 - self.0.leading_zeros()).div_ceil(4) as u8
    }

    /// Epoch of the entry at `index`; 0 beyond the end and at index 0.
    #[must_use]
    pub fn epoch_at(self, index: u8) -> u8 {
        if index == 0 || index > LOG_MAX { 0 } else { (self.0 >> (4 * (index - 1)) & 15) as u8 }
    }

    #[must_use]
    pub fn last_epoch(self) -> u8 {
        self.epoch_at(self.end())
    }

    /// Appends an entry. The bounds of a run keep the log within [`LOG_MAX`].
    pub fn push(&mut self, epoch: u8) {
        let end = self.end();
        assert!(end < LOG_MAX && (1..16).contains(&epoch));
        self.0 |= u32::from(epoch) << (4 * end);
    }

    #[must_use]
    pub fn prefix(self, end: u8) -> Log {
        if end >= LOG_MAX { self } else { Log(self.0 & ((1 << (4 * end)) - 1)) }
    }

    #[must_use]
    pub fn starts_with(self, other: Log) -> bool {
        self.prefix(other.end()) == other
    }

    /// How many entries both have in common from the beginning.
    #[must_use]
    pub fn shared(self, other: Log) -> u8 {
        let differ = (self.0 ^ other.0).trailing_zeros() / 4;
        (differ as u8).min(self.end()).min(other.end())
    }

    /// Last index that was sequenced in `epoch`; 0 if there is none.
    fn last_of(self, epoch: u8) -> u8 {
        (1..=self.end()).rev().find(|index| self.epoch_at(*index) == epoch).unwrap_or(0)
    }

    /// First index that was sequenced in `epoch`; 0 if there is none.
    #[must_use]
    pub fn first_of(self, epoch: u8) -> u8 {
        (1..=self.end()).find(|index| self.epoch_at(*index) == epoch).unwrap_or(0)
    }

    /// The last common index as the primary computes it from the lists of epochs alone
    /// (`Log::last_common` of the replication core). It lies in the newest epoch that both logs
    /// have, where the shorter one leaves that epoch.
    #[must_use]
    pub fn last_common(self, other: Log) -> u8 {
        let mut epoch = other.last_epoch();
        while epoch > 0 {
            let (own, theirs) = (self.last_of(epoch), other.last_of(epoch));
            if own > 0 && theirs > 0 {
                return own.min(theirs);
            }
            epoch -= 1;
        }
        0
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for index in 1..=self.end() {
            write!(f, "{}{}", if index == 1 { "" } else { " " }, self.epoch_at(index))?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(epochs: &[u8]) -> Log {
        let mut log = Log::default();
        for epoch in epochs {
            log.push(*epoch);
        }
        log
    }

    #[test]
    fn a_log_is_its_epochs() {
        let full = log(&[1, 1, 2, 3, 3, 3, 4, 5]);
        assert_eq!((full.end(), full.last_epoch(), full.epoch_at(3), full.epoch_at(9)), (8, 5, 2, 0));
        assert_eq!(full.prefix(3), log(&[1, 1, 2]));
        assert_eq!(full.prefix(8), full);
        assert!(full.starts_with(log(&[1, 1])) && !full.starts_with(log(&[1, 2])));
        assert_eq!(Log::default().end(), 0);
        assert_eq!(full.first_of(3), 4);
    }

    #[test]
    fn the_last_common_index_is_found_by_epochs() {
        assert_eq!(log(&[1, 1, 3]).last_common(log(&[1, 1, 1, 1])), 2);
        assert_eq!(log(&[1, 1, 3]).last_common(log(&[1, 2, 2])), 1);
        assert_eq!(log(&[1, 1, 3]).last_common(log(&[])), 0);
        assert_eq!(log(&[1, 1, 3]).shared(log(&[1, 1, 1])), 2);
        assert_eq!(log(&[1, 1]).shared(log(&[1, 1])), 2);
    }
}
