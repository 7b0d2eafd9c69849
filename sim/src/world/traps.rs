//! Traps of the plan: what breaks at a moment, and not at a time. They are set in order and spring in order; several may
//! spring at once. Healing takes those away that nothing came by.

use super::{What, World};
use crate::network::End;
use crate::plan::{Deed, DiskFault, Moment, Side};
use crate::prose;
use crate::trace::Part;
use mainstay_codec::{Envelope, Message};
use mainstay_control::state::{Command, IssChange};
use mainstay_types::{NodeId, ResourceId};

/// One that is set.
pub(crate) struct Trap {
    resource: ResourceId,
    moment: Moment,
    /// Moments that it lets pass.
    skip: u64,
    deed: Deed,
}

/// Traps that are set at once. The oldest goes: what it waits for hardly comes.
const TRAPS_MAX: usize = 32;

impl World {
    pub(super) fn set_trap(&mut self, resource: ResourceId, moment: Moment, skip: u64, deed: Deed) {
        if self.traps.len() == TRAPS_MAX {
            self.traps.remove(0);
        }
        self.traps.push(Trap { resource, moment, skip, deed });
    }

    /// A node is about to propose this.
    pub(super) fn spring_at_proposal(&mut self, command: &Command) {
        if self.traps.is_empty() {
            return;
        }
        let primary = |resource: &ResourceId| self.state().resources.get(resource)?.record.primary;
        let (resource, moment, actor, peer) = match command {
            Command::ChangeIss { resource, change: IssChange::Grow { add }, .. } => {
                (*resource, Moment::Grow, primary(resource), add.node)
            }
            Command::ChangeIss { resource, change: IssChange::Shrink { remove, .. }, .. } => {
                (*resource, Moment::Shrink, primary(resource), remove.node)
            }
            Command::Promote { resource, by, to, .. } => (*resource, Moment::Promote, Some(*by), *to),
            Command::StepDown { resource, node, .. } => (*resource, Moment::StepDown, Some(*node), *node),
            _ => return,
        };
        self.spring(resource, moment, (actor.unwrap_or(peer), peer));
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
        self.spring(envelope.resource, moment, (from, to));
    }

    fn spring(&mut self, resource: ResourceId, moment: Moment, sides: (NodeId, NodeId)) {
        for mut trap in std::mem::take(&mut self.traps) {
            if (trap.resource, trap.moment) != (resource, moment) {
                self.traps.push(trap);
            } else if trap.skip > 0 {
                trap.skip -= 1;
                self.traps.push(trap);
            } else if let Deed::Late { ms } = trap.deed {
                self.trace.count("F47 proposal late");
                self.note(None, Part::Fault, &[51, resource.0, ms], || prose::deed(trap.deed));
                self.consensus.delay_next(ms * 1000);
            } else {
                // Not now: who acts is in the middle of it.
                self.after(0, What::Deed { resource, sides, deed: trap.deed });
            }
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
