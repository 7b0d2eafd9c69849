//! Identifiers, positions, ranges and limits that every other crate shares.
//!
//! Every id is a newtype so that an epoch cannot be passed where an index is meant. Nothing here
//! does I/O, reads a clock or allocates beyond what its arguments hold.

use serde::{Deserialize, Serialize};
use std::fmt;

pub mod access;
pub mod address;
pub mod area;
pub mod clock;
pub mod code;
pub mod duration;
pub mod entry_kind;
pub mod explained;
pub mod fingerprint;
pub mod histogram;
pub mod label;
pub mod limits;
pub mod nearest;
pub mod policy;
pub mod problem;
pub mod proposal;
pub mod record;
pub mod scrub;
pub mod settings;
pub mod simulation;
pub mod size;
pub mod status;
pub use access::*;
pub use address::*;
pub use area::*;
pub use code::*;
pub use entry_kind::*;
pub use fingerprint::*;
pub use histogram::*;
pub use limits::*;
pub use nearest::{distance, nearest};
pub use policy::*;
pub use problem::*;
pub use proposal::*;
pub use record::*;
pub use scrub::*;
pub use settings::{Choices, Key, Scope, Setting};
pub use size::{size_typed, size_words};
pub use status::*;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A node of the cluster; given by the control plane when the node joins, never reused.
    NodeId(u32), "n"
);
id!(
    /// A resource: the unit of replication, failover and write order. Never reused.
    ResourceId(u64), "r"
);
id!(
    /// A volume within a resource, numbered from 0.
    VolumeId(u16), "v"
);
id!(
    /// Rises by one with every promotion (R5). Epoch 0 means: never promoted.
    Epoch(u64), "e"
);
id!(
    /// Position of an entry in the log of a resource. The first entry has index 1; 0 is "before the
    /// first".
    Index(u64), "i"
);
id!(
    /// Version of a resource's record in the control plane; rises with every change of it.
    ConfigVersion(u64), "c"
);
id!(
    /// Identity of one disk content of a replica; random, new for every new disk (R9). Never 0 for
    /// a real replica.
    Incarnation(u64), "d"
);
id!(
    /// One instance of a replica or client: the time for which a process has it open. Random and
    /// new each time, because content that was only in memory is gone with the last instance. 0:
    /// not known, and never counted on.
    Instance(u64), "o"
);
id!(
    /// Running hash over the log up to and including a batch; equal chains mean equal logs.
    Chain(u64), "h"
);

id!(
    /// A snapshot of all volumes of a resource; given by the control plane, from 1 on, never reused
    /// within its resource.
    SnapshotId(u32), "s"
);

id!(
    /// One period for which a client has a resource's devices: the version of the record that began
    /// it, so that later ones are higher. 0: a device of the primary itself.
    SessionId(u64), "a"
);

id!(
    /// Number of an extent within its volume, counted from 0.
    Extent(u32), ""
);

impl Extent {
    /// The extent that holds a byte of the volume.
    #[must_use]
    pub const fn of(offset: u64) -> Self {
        Self((offset / EXTENT_BYTES) as u32)
    }

    /// Its first byte in the volume.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.0 as u64 * EXTENT_BYTES
    }

    /// Its first block in the volume.
    #[must_use]
    pub const fn first_block(self) -> u64 {
        self.offset() / BLOCK_BYTES
    }

    /// The extent that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its place among the extents of its volume.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl SnapshotId {
    /// The last whole content of a replica, kept while the primary copies to it (R16). No snapshot
    /// of a log has this number.
    pub const BEFORE_COPY: Self = Self(u32::MAX);
}

impl Index {
    /// The index that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Epoch {
    /// The epoch of the next promotion.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl ConfigVersion {
    /// The version that the next change of the record gets.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// An entry's full position. Ordered by epoch first; two logs that hold the same position hold the
/// same prefix, because only one node sequences in an epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Position {
    pub epoch: Epoch,
    pub index: Index,
}

impl Position {
    #[must_use]
    pub const fn new(epoch: u64, index: u64) -> Self {
        Self { epoch: Epoch(epoch), index: Index(index) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.epoch, self.index)
    }
}

/// A point on the boot-time clock of one node, in microseconds. It goes on during suspend and never
/// steps. Values of different nodes are not comparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The point `ms` milliseconds later; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1000)))
    }

    /// Microseconds from `earlier` to `self`, 0 if `earlier` is later.
    #[must_use]
    pub const fn us_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Milliseconds from `earlier` to `self`, 0 if `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1000
    }
}

/// A byte range of one volume. Offset and length are multiples of [`BLOCK_BYTES`] once a frontend
/// has accepted them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    pub volume: VolumeId,
    pub offset: u64,
    pub len: u64,
}

impl Range {
    /// One past the last byte; saturates.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// First block of the range.
    #[must_use]
    pub const fn first_block(self) -> u64 {
        self.offset / BLOCK_BYTES
    }

    /// One past the last block of the range.
    #[must_use]
    pub const fn end_block(self) -> u64 {
        self.end().div_ceil(BLOCK_BYTES)
    }

    /// Whether both ranges share a byte.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.volume == other.volume && self.offset < other.end() && other.offset < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_by_epoch_first() {
        assert!(Position::new(2, 1) > Position::new(1, 9));
        assert!(Position::new(2, 2) > Position::new(2, 1));
    }

    #[test]
    fn ranges_overlap_only_within_a_volume() {
        let a = Range { volume: VolumeId(0), offset: 0, len: 4096 };
        let b = Range { volume: VolumeId(0), offset: 4096, len: 4096 };
        let c = Range { volume: VolumeId(1), offset: 0, len: 8192 };
        assert!(!a.overlaps(b));
        assert!(!a.overlaps(c));
        assert!(a.overlaps(Range { len: 8192, ..a }) && b.overlaps(Range { len: 4097, ..a }));
    }

    #[test]
    fn time_saturates() {
        assert_eq!(Time(5).ms_since(Time(5_000_000)), 0);
        assert_eq!(Time(u64::MAX).plus_ms(1), Time(u64::MAX));
        assert_eq!(Time(3_000).ms_since(Time(1_000)), 2);
    }
}
