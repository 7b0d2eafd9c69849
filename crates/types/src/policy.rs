//! Policy of a resource: everything that an operator chooses about it while it is used. The table
//! of the settings that make it up is in `settings.rs`.

use crate::ScrubRepair;
use serde::{Deserialize, Serialize};

/// When a write is acknowledged. DRBD's names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// When the primary's own journal has it. The others follow, within [`LagLimits`].
    A,
    /// When every required replica has it in memory. A flush waits for their journals.
    B,
    /// When the journal of every required replica has it.
    #[default]
    C,
}

/// Whether a primary that died is switched off by a program before another node takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fencing {
    #[default]
    Off,
    /// The program is run, and another node takes over at once.
    BestEffort,
    /// Another node takes over when the program has succeeded.
    Required,
}

/// How far a follower may be behind in mode A before writes wait for it. A follower that is gone or
/// stands still does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LagLimits {
    /// Bytes in the journal that it has not made durable.
    pub bytes: u64,
    /// Age of the oldest entry that it has not made durable, in milliseconds.
    pub ms: u64,
}

impl Default for LagLimits {
    fn default() -> Self {
        Self { bytes: 64 << 20, ms: 10_000 }
    }
}

/// A mode, with what belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModePolicy {
    A {
        lag: LagLimits,
        /// A failover-ready follower takes over by itself when the primary is lost. The writes that
        /// it lacks are then lost; `lag` bounds them.
        takeover: bool,
    },
    B,
    #[default]
    C,
}

impl From<Mode> for ModePolicy {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::A => Self::A { lag: LagLimits::default(), takeover: false },
            Mode::B => Self::B,
            Mode::C => Self::C,
        }
    }
}

/// Number of copies that a write needs, and the fate of requests while fewer are there. Has no
/// effect in mode A.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MinCopies {
    /// Replicas in sync, the primary's included, that must have a write before the primary
    /// acknowledges it; at least 1.
    pub copies: u32,
    /// Time for which requests wait while fewer copies are there, in milliseconds; then they fail.
    /// 0: they fail at once.
    pub suspend_ms: u64,
}

impl Default for MinCopies {
    fn default() -> Self {
        Self { copies: 1, suspend_ms: 20_000 }
    }
}

/// Limits for a replica in the in-sync set that makes writes wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowLimits {
    /// A member whose acknowledgements take longer than this is over its limit, if they also take
    /// `factor` times as long as those of the others. 0: no member leaves for being slow.
    pub ack_ms: u64,
    /// How many times as long as the others.
    pub factor: u64,
    /// Time after which a member that is over its limit leaves.
    pub for_ms: u64,
    /// Number of copies, the primary's included, that stay in sync however slow they are.
    pub min_copies: u32,
    /// How long a replica that left must have kept up before it is asked to return; doubled each
    /// time it leaves again.
    pub quiet_ms: u64,
    /// Longest quiet period. A member that has stayed for this time is forgiven one doubling.
    pub quiet_max_ms: u64,
}

impl Default for SlowLimits {
    fn default() -> Self {
        Self { ack_ms: 10, factor: 10, for_ms: 500, min_copies: 2, quiet_ms: 10_000, quiet_max_ms: 600_000 }
    }
}

/// Limits for filling replicas that are not in sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackgroundLimits {
    /// Bytes per second that a node fills, all its resources together. 0: no limit.
    pub max_rate: u64,
    /// Rate below which copies are not slowed down for clients, in bytes per second. 0: clients
    /// never slow them down.
    pub min_rate: u64,
    /// How much longer than usual a client's write may take for the sake of filling, in percent; at
    /// least 1.
    pub slowdown_percent: u64,
}

impl Default for BackgroundLimits {
    fn default() -> Self {
        Self { max_rate: 0, min_rate: 8 << 20, slowdown_percent: 50 }
    }
}

/// When the replicas of a resource are compared, and what is done about what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubPolicy {
    /// From one scrub to the next, in milliseconds; 0: none begins by itself.
    pub interval_ms: u64,
    pub repair: ScrubRepair,
    /// Bytes per second and replica; 0: no limit but the background's.
    pub rate: u64,
}

impl Default for ScrubPolicy {
    /// Every 30 days, as distributions set up ZFS and md. With the weekly interval of Ceph, scrubs
    /// alone would take half of the traffic that a disk of 10 TB is made to bear in a year. Data
    /// that clients read is compared with its checksum anyway.
    fn default() -> Self {
        Self { interval_ms: 30 * 24 * 3_600_000, repair: ScrubRepair::default(), rate: 0 }
    }
}

/// Everything that an operator chooses about a resource while it is used. Serialised field by
/// field, without a level of its own; a field that is missing has its default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Fields", into = "Fields")]
pub struct Policy {
    pub mode: ModePolicy,
    pub min_copies: MinCopies,
    pub slow: SlowLimits,
    pub background: BackgroundLimits,
    pub scrub: ScrubPolicy,
    pub fencing: Fencing,
    /// Payloads go from node to node without encryption. The same for all resources.
    pub clear: bool,
}

impl Policy {
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.mode {
            ModePolicy::A { .. } => Mode::A,
            ModePolicy::B => Mode::B,
            ModePolicy::C => Mode::C,
        }
    }

    /// Limits of the lag; those of a new mode A in another mode.
    #[must_use]
    pub fn lag(&self) -> LagLimits {
        match self.mode {
            ModePolicy::A { lag, .. } => lag,
            ModePolicy::B | ModePolicy::C => LagLimits::default(),
        }
    }

    /// Whether a follower may take over by itself: only in mode A.
    #[must_use]
    pub fn takeover(&self) -> bool {
        matches!(self.mode, ModePolicy::A { takeover: true, .. })
    }
}

/// A [`Policy`] as it is serialised.
#[derive(Serialize, Deserialize)]
struct Fields {
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    lag: LagLimits,
    #[serde(default)]
    takeover: bool,
    #[serde(default)]
    min_copies: MinCopies,
    #[serde(default)]
    slow: SlowLimits,
    #[serde(default)]
    background: BackgroundLimits,
    #[serde(default)]
    scrub: ScrubPolicy,
    #[serde(default)]
    fencing: Fencing,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    clear: bool,
}

impl From<Policy> for Fields {
    fn from(policy: Policy) -> Self {
        Self {
            mode: policy.mode(),
            lag: policy.lag(),
            takeover: policy.takeover(),
            min_copies: policy.min_copies,
            slow: policy.slow,
            background: policy.background,
            scrub: policy.scrub,
            fencing: policy.fencing,
            clear: policy.clear,
        }
    }
}

impl From<Fields> for Policy {
    fn from(fields: Fields) -> Self {
        let mode = match fields.mode {
            Mode::A => ModePolicy::A { lag: fields.lag, takeover: fields.takeover },
            other => other.into(),
        };
        Self {
            mode,
            min_copies: fields.min_copies,
            slow: fields.slow,
            background: fields.background,
            scrub: fields.scrub,
            fencing: fields.fencing,
            clear: fields.clear,
        }
    }
}
