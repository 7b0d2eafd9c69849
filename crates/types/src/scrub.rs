//! What a scrub does about what it finds.

use serde::{Deserialize, Serialize};

/// Which of the blocks that replicas hold differently are written anew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubRepair {
    /// None: they are told.
    Off,
    /// Those of which it is proven what is right: by the blocks' checksums, or because more than half of the replicas agree.
    #[default]
    Proven,
    /// Those, too, of which it is not: what the primary holds counts, because that is what clients read.
    All,
}
