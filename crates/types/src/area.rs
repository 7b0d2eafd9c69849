//! Areas of a replica.

use crate::VolumeId;
use std::fmt;

/// One of the areas in which a replica keeps its bytes. Each starts at offset 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Area {
    /// Superblock copies and version tables.
    Meta,
    /// The ring of batches.
    Journal,
    /// The backing store of one volume.
    Volume(VolumeId),
    /// The sums of the blocks of one volume, if the replica has sums. As large as the largest
    /// volume asks for.
    Sums(VolumeId),
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta => write!(f, "the metadata"),
            Self::Journal => write!(f, "the journal"),
            Self::Volume(volume) => write!(f, "volume {}", volume.0),
            Self::Sums(volume) => write!(f, "the checksums of volume {}", volume.0),
        }
    }
}
