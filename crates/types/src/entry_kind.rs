//! Kinds of the entries of a log.

use serde::{Deserialize, Serialize};

/// Effect of an entry on the volumes, or on the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// Payload replaces the range.
    Write,
    /// The range reads as zeroes afterwards; space may be freed (R15).
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
    /// First entry of an epoch; touches no block (R6).
    EpochStart,
    /// The volume has as many bytes as the range's offset says, if it had fewer (R17). The new ones
    /// read as zeroes.
    Resize,
    /// All volumes keep their content at this entry as the snapshot whose number the range's offset
    /// gives (R17). Always the last entry of its batch.
    Snapshot,
    /// The snapshot with the number that the range's offset says is kept no longer.
    DropSnapshot,
    /// Every replica that applies this entry reports the content of the range, which is one extent,
    /// as of this entry (R17). The entry changes nothing.
    Scrub,
    /// All volumes hold from here on the content of the snapshot `to`, which is kept as the
    /// snapshot `mark` as well. Both numbers are in the range's offset.
    Rollback,
}

impl EntryKind {
    /// Whether it changes blocks of its range.
    #[must_use]
    pub const fn changes_blocks(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

#[cfg(test)]
mod tests {
    use super::EntryKind::*;

    #[test]
    fn a_kind_of_entry_has_one_name_in_json_and_in_tables() {
        let kinds =
            [Write, Discard, WriteZeroes, EpochStart, Resize, Snapshot, DropSnapshot, Scrub, Rollback];
        assert_eq!(
            kinds.map(|kind| kind.to_string()),
            [
                "write",
                "discard",
                "write-zeroes",
                "epoch-start",
                "resize",
                "snapshot",
                "drop-snapshot",
                "scrub",
                "rollback"
            ]
        );
    }
}
