//! The programs that run on the asked node.

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramsView {
    pub agent: Option<ProgramView>,
    /// `None` if no engine runs there.
    pub engine: Option<ProgramView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramView {
    /// Process id, as the asked node counts.
    pub pid: u32,
    /// Path from which it was started.
    pub path: String,
    /// Whether another file is at that path since then.
    pub replaced: bool,
    /// Version of the running program; only for one that was replaced, and only if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
    /// Version of the file that is there now, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<String>,
}

/// Announces that the engine of the asked node is replaced, and its services stay: the end of the
/// engine that comes within this time leaves the devices to the next engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineSuccessor {
    /// Milliseconds, at most 60000. 0 takes an announcement back.
    pub within_ms: u64,
}

/// Longest time for which the successor of an engine may be announced, in milliseconds.
pub const SUCCESSOR_MS_MAX: u64 = 60_000;
