//! Traps of the plan: faults that come at a moment of the protocol, and not at a time. They are set
//! in order and spring in order, and several may spring at once. Healing removes the traps that are
//! left.

use super::{What, World};
use crate::network::End;
use crate::plan::{Deed, DiskFault, Moment, Proposed, Side};
use crate::prose;
use crate::trace::Part;
use mainstay_codec::{Envelope, Message};
use mainstay_control::state::Command;
use mainstay_types::{IssChange, Key, NodeId, ResourceId};

/// Trap that is set.
pub(crate) struct Trap {
    resource: ResourceId,
    moment: Moment,
    /// Moments that it lets pass.
    skip: u64,
    deed: Deed,
}

/// Number of traps that may be set at once. The oldest goes, because its moment hardly comes any
/// more.
const TRAPS_MAX: usize = 32;

impl World {
    pub(super) fn set_trap(&mut self, resource: ResourceId, moment: Moment, skip: u64, deed: Deed) {
        if self.traps.len() == TRAPS_MAX {
            self.traps.remove(0);
        }
        self.traps.push(Trap { resource, moment, skip, deed });
    }

    /// A node is about to propose this, for itself or for an operator.
    pub(super) fn spring_at_proposal(&mut self, by: NodeId, command: &Command) {
        if self.traps.is_empty() {
            return;
        }
        let Some((moment, resource, peer)) = self.moment_of(command) else { return };
        let primary = resource.and_then(|resource| self.state().resources.get(&resource)?.record.primary);
        let sides = match moment {
            Moment::Grow | Moment::Shrink => {
                let peer = peer.unwrap_or(by);
                (primary.unwrap_or(peer), peer)
            }
            _ => (by, peer.or(primary).unwrap_or(by)),
        };
        self.spring(resource, moment, sides);
    }

    /// The moment of the command, its resource, and the node that the command is about.
    fn moment_of(&self, command: &Command) -> Option<(Moment, Option<ResourceId>, Option<NodeId>)> {
        let named = |name: &str| self.state().resource_by_name(name).map(|known| known.id);
        let on = |name: &str| named(&self.state().services.get(name)?.spec.resource);
        let (what, resource, peer) = match command {
            Command::InitCluster { .. }
            | Command::AuditBegun { .. }
            | Command::AuditEnded { .. }
            | Command::AdmitNode { .. }
            | Command::SetAuthority { .. }
            | Command::GiveCertificate { .. }
            | Command::CreateToken { .. }
            | Command::RevokeToken { .. }
            | Command::AnnounceAuthority { .. }
            | Command::ConfirmAuthority { .. }
            | Command::AdvanceRotation { .. }
            | Command::CancelRotation { .. }
            | Command::LeaveOut { .. }
            | Command::CreateApiToken { .. }
            | Command::RevokeApiToken { .. }
            | Command::ApiTokenUsed { .. }
            | Command::SeatNode { .. }
            | Command::WithdrawNode { .. }
            | Command::RemoveNode { .. }
            | Command::ReplaceNode { .. }
            | Command::SetVote { .. }
            | Command::SetAddress { .. }
            | Command::VotersSeen { .. }
            | Command::NodeLinks { .. }
            | Command::NodeFitness { .. }
            | Command::NodeLevel { .. }
            | Command::RaiseLevel { .. }
            | Command::Fenced { .. }
            | Command::ConfirmOff { .. }
            | Command::RetryService { .. }
            | Command::MakeFileSystem { .. }
            | Command::Note { .. } => return None,
            Command::ChangeIss { resource, change, .. } => {
                let moment = match change {
                    IssChange::Grow { .. } => Moment::Grow,
                    IssChange::Shrink { .. } => Moment::Shrink,
                    IssChange::Trust { .. } => Moment::Propose(Proposed::Trust),
                    IssChange::FailoverReady { .. } => Moment::Propose(Proposed::FailoverReady),
                    IssChange::NotFailoverReady { .. } => Moment::Propose(Proposed::NotFailoverReady),
                    IssChange::Memory { .. } => Moment::Propose(Proposed::Memory),
                    IssChange::Part { .. } => Moment::Propose(Proposed::Part),
                };
                return Some((moment, Some(*resource), Some(change.member().node)));
            }
            Command::Promote { resource, to, .. } => {
                return Some((Moment::Promote, Some(*resource), Some(*to)));
            }
            Command::StepDown { resource, node, .. } => {
                return Some((Moment::StepDown, Some(*resource), Some(*node)));
            }
            Command::AddNode { .. } => (Proposed::AddNode, None, None),
            Command::NodeDead { node, .. } => (Proposed::NodeDead, None, Some(*node)),
            Command::NodeRejoin { node, .. } => (Proposed::NodeRejoin, None, Some(*node)),
            // A resource has a number only once it exists.
            Command::CreateResource { .. } => (Proposed::CreateResource, None, None),
            Command::DeleteResource { resource } => (Proposed::DeleteResource, Some(*resource), None),
            Command::ReplicaReady { resource, node, .. } => {
                (Proposed::ReplicaReady, Some(*resource), Some(*node))
            }
            Command::ReplicaBroken { resource, node, .. } => {
                (Proposed::ReplicaBroken, Some(*resource), Some(*node))
            }
            Command::ReplicaOpened { resource, node, .. } => {
                (Proposed::ReplicaOpened, Some(*resource), Some(*node))
            }
            Command::ReplicaReopened { resource, node, .. } => {
                (Proposed::ReplicaReopened, Some(*resource), Some(*node))
            }
            Command::ReplicaGone { resource, node } => (Proposed::ReplicaGone, Some(*resource), Some(*node)),
            Command::AddReplica { resource, node } => (Proposed::AddReplica, Some(*resource), Some(*node)),
            Command::RemoveReplica { resource, node } => {
                (Proposed::RemoveReplica, Some(*resource), Some(*node))
            }
            Command::MoveReplica { resource, to, .. } => (Proposed::MoveReplica, Some(*resource), Some(*to)),
            Command::MovePrimary { resource, to } => (Proposed::MovePrimary, Some(*resource), Some(*to)),
            Command::FinishMove { resource, to, .. } => (Proposed::FinishMove, Some(*resource), Some(*to)),
            Command::GrowVolume { resource, .. } => (Proposed::GrowVolume, Some(*resource), None),
            Command::VolumeGrown { resource, .. } => (Proposed::VolumeGrown, Some(*resource), None),
            Command::TakeSnapshot { resource, .. } => (Proposed::TakeSnapshot, Some(*resource), None),
            Command::DropSnapshot { resource, .. } => (Proposed::DropSnapshot, Some(*resource), None),
            Command::RollBack { resource, .. } => (Proposed::RollBack, Some(*resource), None),
            Command::SnapshotsSeen { resource, node, .. } => {
                (Proposed::SnapshotsSeen, Some(*resource), Some(*node))
            }
            Command::AttachResource { resource, node, .. } => {
                (Proposed::AttachResource, Some(*resource), Some(*node))
            }
            Command::DetachResource { resource } => (Proposed::DetachResource, Some(*resource), None),
            Command::ClaimAttachment { resource, node, .. } => {
                (Proposed::ClaimAttachment, Some(*resource), Some(*node))
            }
            Command::ChangeSettings { resource, changes, .. } => {
                let proposed = if changes.contains_key(&Key::Mode) {
                    Proposed::SetMode
                } else if changes.contains_key(&Key::MinCopies) {
                    Proposed::SetMinCopies
                } else {
                    Proposed::SetScrub
                };
                (proposed, *resource, None)
            }
            Command::BeginScrub { resource, .. } => (Proposed::BeginScrub, Some(*resource), None),
            Command::ScrubEnded { resource, node, .. } => {
                (Proposed::ScrubEnded, Some(*resource), Some(*node))
            }
            Command::ForcePromote { resource, to, .. } => {
                (Proposed::ForcePromote, Some(*resource), Some(to.node))
            }
            Command::ApplyService { spec } => (Proposed::ApplyService, named(&spec.resource), None),
            Command::DeleteService { name } => (Proposed::DeleteService, on(name), None),
            Command::ServiceGone { name } => (Proposed::ServiceGone, on(name), None),
            Command::MoveService { name, to } => (Proposed::MoveService, on(name), Some(*to)),
            Command::SetMaintenance { .. } => (Proposed::SetMaintenance, None, None),
            Command::MaintenanceCounted { .. } => (Proposed::MaintenanceCounted, None, None),
            Command::SetCordon { node, .. } => (Proposed::SetCordon, None, Some(*node)),
            Command::StopService { name } => (Proposed::StopService, on(name), None),
            Command::StartService { name } => (Proposed::StartService, on(name), None),
            Command::RestartService { name, .. } => (Proposed::RestartService, on(name), None),
            Command::ServiceRestarted { name, .. } => (Proposed::ServiceRestarted, on(name), None),
            Command::ServiceStatus { name, node, .. } => (Proposed::ServiceStatus, on(name), Some(*node)),
        };
        Some((Moment::Propose(what), resource, peer))
    }

    /// An engine is about to send this.
    pub(super) fn spring_at_message(&mut self, from: NodeId, to: NodeId, envelope: &Envelope) {
        if self.traps.is_empty() {
            return;
        }
        let moment = match envelope.message {
            Message::CopyBegin { .. } => Moment::CopyBegin,
            Message::CopyBeginReply { .. } => Moment::CopyBegun,
            Message::CopyExtent { .. } => Moment::CopyExtent,
            Message::CopyEnd { .. } => Moment::CopyEnd,
            Message::Cut { .. } => Moment::Cut,
            Message::CutReply { .. } => Moment::CutReply,
            _ => return,
        };
        self.spring(Some(envelope.resource), moment, (from, to));
    }

    /// `of`: the resource, if the moment is one of a resource.
    fn spring(&mut self, of: Option<ResourceId>, moment: Moment, sides: (NodeId, NodeId)) {
        for mut trap in std::mem::take(&mut self.traps) {
            let resource = trap.resource;
            if trap.moment != moment || of.is_some_and(|of| of != resource) {
                self.traps.push(trap);
            } else if trap.skip > 0 {
                trap.skip -= 1;
                self.traps.push(trap);
            } else if let Deed::Late { ms } = trap.deed {
                self.trace.count("F47 proposal late");
                self.count_sprung(moment);
                self.note(None, Part::Fault, &[51, resource.0, ms], || prose::deed(trap.deed));
                self.consensus.delay_next(ms * 1000);
            } else {
                self.count_sprung(moment);
                // Later, and not now: the acting node is in the middle of this step.
                self.after(0, What::Deed { resource, sides, deed: trap.deed });
            }
        }
    }

    /// Each kind of command under a name of its own.
    fn count_sprung(&mut self, moment: Moment) {
        if let Moment::Propose(what) = moment {
            self.trace.count(sprung(what));
        }
    }

    pub(super) fn do_deed(&mut self, resource: ResourceId, sides: (NodeId, NodeId), deed: Deed) {
        if self.healed {
            return;
        }
        self.note(None, Part::Fault, &[52, resource.0], || {
            format!("{} acts, {} is its peer: {}", sides.0, sides.1, prose::deed(deed))
        });
        let who = |side: Side| if side == Side::Actor { sides.0 } else { sides.1 };
        match deed {
            Deed::Late { .. } => {}
            Deed::LeaderChange => self.fault(crate::plan::Fault::LeaderChange),
            Deed::KillEngine { whom, restart_after_ms } => {
                let node = who(whom);
                self.kill_engine(node);
                self.after(restart_after_ms * 1000, What::StartEngine { node });
            }
            Deed::KillAgent { whom, restart_after_ms } => {
                let node = who(whom);
                self.kill_agent(node);
                self.after(restart_after_ms * 1000, What::StartAgent { node });
            }
            Deed::PowerCut { whom, on_after_ms } => {
                let node = who(whom);
                self.power_cut(node);
                self.after(on_after_ms * 1000, What::PowerOn { node });
            }
            Deed::Reset => {
                self.trace.count("F38 connection reset");
                self.close(sides, End::Initiator);
            }
            Deed::LateDisk { whose, what, ms } => {
                self.disk_fault(who(whose), resource, DiskFault::Late { what, ms });
            }
        }
    }
}

fn sprung(what: Proposed) -> &'static str {
    match what {
        Proposed::AddNode => "trap at AddNode",
        Proposed::NodeDead => "trap at NodeDead",
        Proposed::NodeRejoin => "trap at NodeRejoin",
        Proposed::CreateResource => "trap at CreateResource",
        Proposed::DeleteResource => "trap at DeleteResource",
        Proposed::ReplicaReady => "trap at ReplicaReady",
        Proposed::ReplicaBroken => "trap at ReplicaBroken",
        Proposed::ReplicaOpened => "trap at ReplicaOpened",
        Proposed::ReplicaReopened => "trap at ReplicaReopened",
        Proposed::ReplicaGone => "trap at ReplicaGone",
        Proposed::AddReplica => "trap at AddReplica",
        Proposed::RemoveReplica => "trap at RemoveReplica",
        Proposed::MoveReplica => "trap at MoveReplica",
        Proposed::MovePrimary => "trap at MovePrimary",
        Proposed::FinishMove => "trap at FinishMove",
        Proposed::GrowVolume => "trap at GrowVolume",
        Proposed::VolumeGrown => "trap at VolumeGrown",
        Proposed::TakeSnapshot => "trap at TakeSnapshot",
        Proposed::DropSnapshot => "trap at DropSnapshot",
        Proposed::SnapshotsSeen => "trap at SnapshotsSeen",
        Proposed::RollBack => "trap at RollBack",
        Proposed::AttachResource => "trap at AttachResource",
        Proposed::DetachResource => "trap at DetachResource",
        Proposed::ClaimAttachment => "trap at ClaimAttachment",
        Proposed::SetMode => "trap at SetMode",
        Proposed::SetMinCopies => "trap at SetMinCopies",
        Proposed::SetScrub => "trap at SetScrub",
        Proposed::BeginScrub => "trap at BeginScrub",
        Proposed::ScrubEnded => "trap at ScrubEnded",
        Proposed::ForcePromote => "trap at ForcePromote",
        Proposed::Trust => "trap at Trust",
        Proposed::FailoverReady => "trap at FailoverReady",
        Proposed::NotFailoverReady => "trap at NotFailoverReady",
        Proposed::Memory => "trap at Memory",
        Proposed::Part => "trap at Part",
        Proposed::ApplyService => "trap at ApplyService",
        Proposed::DeleteService => "trap at DeleteService",
        Proposed::ServiceGone => "trap at ServiceGone",
        Proposed::MoveService => "trap at MoveService",
        Proposed::SetMaintenance => "trap at SetMaintenance",
        Proposed::MaintenanceCounted => "trap at MaintenanceCounted",
        Proposed::SetCordon => "trap at SetCordon",
        Proposed::StopService => "trap at StopService",
        Proposed::StartService => "trap at StartService",
        Proposed::RestartService => "trap at RestartService",
        Proposed::ServiceRestarted => "trap at ServiceRestarted",
        Proposed::ServiceStatus => "trap at ServiceStatus",
    }
}
