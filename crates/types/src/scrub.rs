//! Repairs that a scrub makes.

use serde::{Deserialize, Serialize};

/// Which blocks a scrub writes anew when replicas hold them differently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubRepair {
    /// None: the scrub only reports them.
    Off,
    /// Blocks whose right content is proven: by the blocks' checksums, or because more than half of
    /// the replicas agree.
    #[default]
    Proven,
    /// All blocks. Where the right content is not proven, the primary's content counts, because
    /// clients read it.
    All,
}
