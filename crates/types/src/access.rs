//! Rights of people and programs that ask an agent.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Right to ask an agent, from the least to the greatest. Each contains those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Read metrics, and nothing else. Only tokens have it: a user who may ask may also look.
    Metrics,
    /// Look at the state of the cluster, its events and its metrics.
    Read,
    /// Move, stop and start services, drain nodes, take snapshots: nothing that loses data or runs
    /// a program of the caller's choice. Read logs of services and the audit log.
    Operate,
    /// Everything.
    Admin,
}

impl Access {
    pub const ALL: [Self; 4] = [Self::Metrics, Self::Read, Self::Operate, Self::Admin];

    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}
