//! Changes of a resource's record that its primary asks for.
//!
//! The replica proposes them, engine and agent hand them on, the log of the control plane records
//! them, and the control plane decides. A change counts only for the version of the record that it
//! was based on.

use crate::{ConfigVersion, Epoch, Instance, Member, Position, ShrinkReason};
use serde::{Deserialize, Serialize};

/// A compare-and-set on the record, to be sent to the control plane. Its result arrives as a
/// record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// The version of the record that the proposal is based on.
    pub version: ConfigVersion,
    /// The epoch in which the proposer is primary.
    pub epoch: Epoch,
    pub change: ProposedChange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ProposedChange {
    /// The primary cannot go on in this epoch: another one is to be named.
    StepDown { reason: StepDownReason },
    #[serde(untagged)]
    Iss(IssChange),
}

/// Change of what the record says of one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum IssChange {
    /// Remove a member that does not answer, or is too slow, from the in-sync set (R3). If `remove`
    /// is not in the set the change still counts and raises the version: it makes sure that an
    /// earlier `Grow` can no longer happen (R4).
    Shrink {
        remove: Member,
        #[serde(default)]
        why: ShrinkReason,
    },
    /// Add a replica that has caught up to the in-sync set (R4).
    Grow { add: Member },
    /// The primary has seen the log of an unverified replica: it is the beginning of its own (R11).
    Trust { member: Member },
    /// In mode A with takeover: this follower lacks no more than the limits allow, and writes wait
    /// for it.
    #[serde(rename = "near")]
    FailoverReady { member: Member },
    /// Writes are not to wait for it any more. Raises the version also if the follower was not
    /// failover-ready: an earlier `FailoverReady` can no longer happen.
    #[serde(rename = "far")]
    NotFailoverReady { member: Member },
    /// In mode B: what this member has in memory counts from now on, in this instance, or in none
    /// any more.
    Memory {
        member: Member,
        #[serde(rename = "opening")]
        instance: Option<Instance>,
    },
    /// An unverified replica holds what the history has not, or may: what follows `common`, up to
    /// `end` (R11). It is to go and to begin anew.
    Part { member: Member, common: Position, end: Position },
}

impl IssChange {
    /// The member that it is about.
    #[must_use]
    pub fn member(&self) -> Member {
        let (Self::Shrink { remove: member, .. }
        | Self::Grow { add: member }
        | Self::Trust { member }
        | Self::FailoverReady { member }
        | Self::NotFailoverReady { member }
        | Self::Memory { member, .. }
        | Self::Part { member, .. }) = self;
        *member
    }
}

/// Why a primary gives up its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepDownReason {
    /// Another member should be promoted; this one leaves the in-sync set (R13).
    StoreFailed,
    /// The process was restarted in its epoch. Positions it gave away before may be unknown to it,
    /// so it needs a new epoch; it may be the one that is promoted.
    Restarted,
    /// Its data is inconsistent or of another incarnation; it must not be promoted (R9, R16).
    NotEligible,
    /// Another member knows entries to be committed that it lacks: its files are an older copy
    /// (R12).
    #[serde(rename = "older-copy")]
    Older,
}
