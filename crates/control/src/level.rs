//! Feature levels: what every node of a cluster understands.
//!
//! A build has one level, [`LEVEL`]. Each node tells the level of its build
//! ([`Command::NodeLevel`]), and the cluster has a level of its own, [`State::level`]. New
//! functions wait for the level of the cluster, so nodes of two builds can run side by side for as
//! long as the operator likes.
//!
//! | level | what it brought |
//! |---|---|
//! | 0 | builds that know nothing of levels, and nodes that have not told theirs |
//! | 1 | levels; a living node that is one of two voters can be removed |
//! | 2 | the authority can be replaced: `rotation` with `since_ms` and `believed_by`, the phases `Announced` and `Superseded`, `certified`, `left_out` and `last_authority`; the setting `data-encryption`, `clear` in policies; tokens of the API: [`State::api_tokens`] with `id`, `hash`, `access`, `made_ms`, `until_ms` and `used_ms`, the right `Metrics`, and in the audit log `from`; changes of the cluster's settings that name the choices they are based on; in service files `mkfs_options`, and `pages` with `size`, `arguments`, `path`, `buffered`, `interval_s` and `timeout_s` |
//!
//! Guarantees, after every command:
//! - the level of the cluster never falls;
//! - it is no higher than the level of any node: it rises when every node has told the higher one,
//!   also a dead node and one that joins. A node that was removed does not count;
//! - a command that needs a higher level than that of the cluster changes nothing and is refused.
//!   The answer depends on the record alone, so all nodes give the same one.
//!
//! Rules for changes of this crate:
//! - a new variant of [`Command`], a new field of a command or of the state, and a changed effect
//!   of a command all need a level that no node of an older build has. [`Command::level`] names it,
//!   or the code that has the new effect asks [`State::level`] first;
//! - a new field has a default that means "as before", and keeps it below its level. An older build
//!   ends when it meets content that it does not know;
//! - `tests/shape.txt` lists everything that commands and the state consist of, with its level.
//!
//! An agent proposes nothing that the level of the cluster does not allow, and its build ends
//! before it reads an entry beyond its own level: the entry that raises the level comes first.

use crate::advice::Advice;
use crate::state::{Command, Node, Outcome, State};
use mainstay_types::{Code, Key, NodeId, Problem, Severity};

/// Feature level of this build.
pub const LEVEL: u32 = 2;

/// Level from which a living node that is one of two voters can be removed.
pub(crate) const ONE_OF_TWO_GOES: u32 = 1;
/// Level from which the authority of the cluster can be replaced.
pub(crate) const AUTHORITY_ROTATES: u32 = 2;

/// Level from which data between nodes can be sent without encryption.
pub(crate) const CLEAR_DATA: u32 = 2;

/// Level from which a change of the cluster's settings may name the choices that it is based on.
pub(crate) const BASED_ON_CHOICES: u32 = 2;

/// Level from which a service file has options for making a file system, and arguments that count
/// only while pages cannot tear.
const PAGES: u32 = 2;

/// Level from which there are tokens of the API. No request has a right by a token below it, so
/// the audit log has no address of one either.
pub const API_TOKENS: u32 = 2;

impl Command {
    /// The level that the cluster needs before this may be proposed. Every command is named here,
    /// so that a new one does not get its level by accident.
    #[must_use]
    pub fn level(&self) -> u32 {
        match self {
            Self::InitCluster { .. }
            | Self::AuditBegun { .. }
            | Self::AuditEnded { .. }
            | Self::AddNode { .. }
            | Self::NodeLinks { .. }
            | Self::NodeFitness { .. }
            | Self::Fenced { .. }
            | Self::ConfirmOff { .. }
            | Self::AdmitNode { .. }
            | Self::SeatNode { .. }
            | Self::WithdrawNode { .. }
            | Self::RemoveNode { .. }
            | Self::ReplaceNode { .. }
            | Self::SetVote { .. }
            | Self::SetAddress { .. }
            | Self::VotersSeen { .. }
            | Self::NodeDead { .. }
            | Self::NodeRejoin { .. }
            | Self::CreateResource { .. }
            | Self::ReplicaReady { .. }
            | Self::ReplicaBroken { .. }
            | Self::ReplicaOpened { .. }
            | Self::ReplicaReopened { .. }
            | Self::DeleteResource { .. }
            | Self::AddReplica { .. }
            | Self::RemoveReplica { .. }
            | Self::MoveReplica { .. }
            | Self::MovePrimary { .. }
            | Self::FinishMove { .. }
            | Self::ReplicaGone { .. }
            | Self::GrowVolume { .. }
            | Self::MakeFileSystem { .. }
            | Self::VolumeGrown { .. }
            | Self::TakeSnapshot { .. }
            | Self::DropSnapshot { .. }
            | Self::RollBack { .. }
            | Self::SnapshotsSeen { .. }
            | Self::BeginScrub { .. }
            | Self::ScrubEnded { .. }
            | Self::AttachResource { .. }
            | Self::DetachResource { .. }
            | Self::ClaimAttachment { .. }
            | Self::ForcePromote { .. }
            | Self::ChangeIss { .. }
            | Self::Promote { .. }
            | Self::StepDown { .. }
            | Self::SetMaintenance { .. }
            | Self::MaintenanceCounted { .. }
            | Self::SetCordon { .. }
            | Self::DeleteService { .. }
            | Self::ServiceGone { .. }
            | Self::MoveService { .. }
            | Self::StopService { .. }
            | Self::StartService { .. }
            | Self::RestartService { .. }
            | Self::ServiceRestarted { .. }
            | Self::RetryService { .. }
            | Self::Note { .. }
            | Self::ServiceStatus { .. }
            // Without these two no level would ever rise. An agent proposes the first of them only
            // when every living node has said to it that it knows levels.
            | Self::NodeLevel { .. }
            | Self::RaiseLevel { .. }
            // A build that does not know these has no certificate, so it does not reach a cluster
            // that has an authority.
            | Self::SetAuthority { .. }
            | Self::GiveCertificate { .. }
            | Self::CreateToken { .. }
            | Self::RevokeToken { .. } => 0,
            Self::ApplyService { spec } if spec.uses_level_2() => PAGES,
            Self::ApplyService { .. } => 0,
            Self::ChangeSettings { changes, .. } if changes.contains_key(&Key::DataEncryption) => CLEAR_DATA,
            Self::ChangeSettings { resource: None, version: Some(_), .. } => BASED_ON_CHOICES,
            Self::ChangeSettings { .. } => 0,
            Self::AnnounceAuthority { .. }
            | Self::ConfirmAuthority { .. }
            | Self::AdvanceRotation { .. }
            | Self::CancelRotation { .. }
            | Self::LeaveOut { .. } => AUTHORITY_ROTATES,
            Self::CreateApiToken { .. } | Self::RevokeApiToken { .. } | Self::ApiTokenUsed { .. } => {
                API_TOKENS
            }
        }
    }
}

impl State {
    /// Nodes whose build is below this level, as far as they have told.
    #[must_use]
    pub fn below(&self, level: u32) -> Vec<&Node> {
        self.nodes.values().filter(|node| node.level < level).collect()
    }

    /// The refusal of something that needs a higher level than the cluster has.
    #[must_use]
    pub fn lacks_level(&self, level: u32) -> Option<Problem> {
        (level > self.level).then(|| self.too_low(level))
    }

    fn too_low(&self, level: u32) -> Problem {
        let names: Vec<&str> = self.below(level).iter().map(|node| node.name.as_str()).collect();
        let message =
            format!("this needs feature level {level}, and the cluster has feature level {}", self.level);
        let Some(first) = names.first() else {
            return Problem::new(Code::FeatureLevel, message, "the level rises in a moment; try again then");
        };
        let (verb, rest) = if names.len() == 1 { ("has", "it") } else { ("have", "them") };
        Problem::new(
            Code::FeatureLevel,
            format!("{message}: {} {verb} an older build", names.join(", ")),
            format!(
                "install this release on {rest} and run `mainstay node upgrade` there; remove a node that does not come back: \
                 `mainstay node remove {first}`"
            ),
        )
    }

    /// The level that the cluster can rise to now, if there is one. The leader proposes it.
    #[must_use]
    pub fn next_level(&self) -> Option<u32> {
        let lowest = self.nodes.values().map(|node| node.level).min()?;
        (self.cluster.is_some() && lowest > self.level).then_some(lowest)
    }

    /// Advice about nodes whose build is older than that of another one.
    pub(crate) fn level_advice(&self) -> Option<Advice> {
        let highest = self.nodes.values().map(|node| node.level).max()?;
        let names: Vec<&str> = self.below(highest).iter().map(|node| node.name.as_str()).collect();
        let first = names.first()?;
        let (verb, rest) = if names.len() == 1 { ("runs", "it") } else { ("run", "them") };
        Some(Advice {
            severity: Severity::Info,
            subject: "cluster".into(),
            what: format!(
                "{} {verb} an older build: functions of feature level {highest} wait, and the cluster uses level {}",
                names.join(", "),
                self.level
            ),
            remedy: format!(
                "install the newest release on {rest} and run `mainstay node upgrade` there; remove a node that does not come back: \
                 `mainstay node remove {first}`"
            ),
        })
    }

    /// Whether a level is known of any node, so that every running agent knows levels.
    #[must_use]
    pub fn knows_levels(&self) -> bool {
        self.level > 0 || self.nodes.values().any(|node| node.level > 0)
    }

    /// A node tells the level of its build.
    pub(crate) fn node_level(&mut self, at_ms: u64, id: NodeId, level: u32) -> Outcome {
        let cluster = self.level;
        let Some(node) = self.nodes.get_mut(&id) else { return Outcome::Conflict { record: None } };
        if node.level == level {
            return Outcome::Unchanged;
        }
        if level < cluster {
            return Outcome::Refused(build_too_old(&node.name, level, cluster));
        }
        let fell = level < node.level;
        node.level = level;
        if fell {
            let subject = format!("node {}", node.name);
            self.note(
                at_ms,
                Severity::Warning,
                subject,
                format!("runs an older build, of feature level {level}"),
            );
        }
        Outcome::Done
    }

    /// The level of the cluster rises, if every node has told that it has this level.
    pub(crate) fn raise_level(&mut self, at_ms: u64, level: u32) -> Outcome {
        if level <= self.level {
            return Outcome::Unchanged;
        }
        if !self.below(level).is_empty() {
            return Outcome::Refused(self.too_low(level));
        }
        self.level = level;
        let subject =
            self.cluster.as_ref().map_or_else(String::new, |known| format!("cluster {}", known.name));
        let text = format!("has feature level {level}: every node has it");
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }

    /// For [`State::check`].
    pub(crate) fn check_levels(&self) -> Result<(), String> {
        match self.below(self.level).first() {
            Some(node) => Err(format!(
                "node {} has level {}, and the cluster has level {}",
                node.name, node.level, self.level
            )),
            None => Ok(()),
        }
    }
}

/// Remedy of a node whose build is older than what its cluster uses.
pub const UPGRADE_REMEDY: &str =
    "Install the release of the other nodes on this one, and start its agent anew. Its state is kept.";

/// The refusal of a node whose build is older than what the cluster uses.
#[must_use]
pub fn build_too_old(node: &str, level: u32, cluster: u32) -> Problem {
    Problem::new(
        Code::BuildTooOld,
        format!(
            "the build of {node} has feature level {level}, and the cluster uses feature level {cluster}"
        ),
        UPGRADE_REMEDY,
    )
}

#[cfg(test)]
mod tests;
