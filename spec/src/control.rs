//! The control plane: an atomic register that changes by compare-and-set. Nodes learn its changes
//! later (R3, R4, R5, R9, R11). Code: `control/src/{iss,failover,promote}.rs`; the code that asks
//! for changes: `control/src/actions.rs`.

use crate::model::Spec;
use crate::rules::Mutation;
use crate::state::{Era, NOBODY, Node, Nodes, Out, State, VERSIONS, has, with, without};

impl Spec {
    /// `NodeDead` of the primary, and `StepDown`: R5, one step from the old primary to a member of
    /// the ISS. Possible at any time, because leases and suspicions are not modelled: a node that
    /// is declared dead may be well and not know it.
    pub(crate) fn fail_over(&self, state: &State, to: u8) -> Option<State> {
        let r = state.record;
        if r.primary == NOBODY || r.epoch >= self.bounds.epochs || to == r.primary {
            return None;
        }
        let outside = self.planted(Mutation::PromoteOutside);
        let stale = self.planted(Mutation::PromoteWithoutVersion) && has(r.once, to);
        if !has(r.iss, to) && !outside && !stale {
            return None;
        }
        Some(self.promoted(state, to, with(without(r.iss, r.primary), to)))
    }

    /// `NodeDead` of the primary while no other member is alive: it stays in the ISS, and there is
    /// no primary.
    pub(crate) fn vacate(&self, state: &State) -> Option<State> {
        if state.record.primary == NOBODY || state.record.epoch >= self.bounds.epochs {
            return None;
        }
        let mut next = *state;
        next.record.primary = NOBODY;
        next.record.shrink = 0;
        next.record.grow = 0;
        Some(next)
    }

    /// `Promote` where there is no primary.
    pub(crate) fn promote_idle(&self, state: &State, to: u8) -> Option<State> {
        let r = state.record;
        if r.primary != NOBODY || r.epoch >= self.bounds.epochs || !has(r.iss, to) {
            return None;
        }
        Some(self.promoted(state, to, r.iss))
    }

    /// `Promote` by the primary itself when it no longer serves its epoch: it was restarted, or
    /// demoted for a planned move. It stays in the ISS.
    pub(crate) fn hand_over(&self, state: &State, to: u8) -> Option<State> {
        let r = state.record;
        if r.primary == NOBODY || r.epoch >= self.bounds.epochs || !has(r.iss, to) {
            return None;
        }
        let primary = state.node(r.primary);
        let registered = primary.second == has(r.second, r.primary);
        if primary.leads == r.epoch || primary.promised < r.epoch || !registered {
            return None;
        }
        Some(self.promoted(state, to, r.iss))
    }

    /// `NodeDead` of another member, if a member remains.
    pub(crate) fn drop_member(&self, state: &State, node: u8) -> Option<State> {
        let r = state.record;
        let rest = without(r.iss, node);
        if node == r.primary || !has(r.iss, node) || rest == 0 || state.budget.changes == 0 {
            return None;
        }
        let mut next = *state;
        next.budget.changes -= 1;
        self.changed(&mut next, rest);
        Some(next)
    }

    /// A proposed `Shrink` happens. For a joiner that is not recorded it only raises the version,
    /// so that an earlier `Grow` cannot happen any more. It makes no difference to safety whether
    /// such a shrink counts or is refused.
    pub(crate) fn land_shrink(&self, state: &State, node: u8) -> Option<State> {
        if !has(state.record.shrink, node) || state.budget.changes == 0 {
            return None;
        }
        let mut next = *state;
        next.budget.changes -= 1;
        let rest = without(state.record.iss, node);
        self.changed(&mut next, rest);
        Some(next)
    }

    /// A proposed `Grow` happens.
    pub(crate) fn land_grow(&self, state: &State, node: u8) -> Option<State> {
        if !has(state.record.grow, node) || state.budget.changes == 0 {
            return None;
        }
        let mut next = *state;
        next.budget.changes -= 1;
        let more = with(state.record.iss, node);
        self.changed(&mut next, more);
        Some(next)
    }

    /// `ReplicaReady` with a new incarnation: out of the ISS, unless that would lose the last
    /// complete copy (R9, R11).
    pub(crate) fn register(&self, state: &State, node: u8) -> Option<State> {
        let r = state.record;
        let replica = state.node(node);
        if !replica.second || has(r.second, node) || self.planted(Mutation::IgnoreIncarnation) {
            return None;
        }
        let rest = without(r.iss, node);
        if rest == 0 {
            return None;
        }
        let mut next = *state;
        next.record.second = with(r.second, node);
        if r.primary != node {
            self.changed(&mut next, rest);
            return Some(next);
        }
        next.record.iss = rest;
        // The lowest member. `fail_over` has a free choice.
        let to = rest.trailing_zeros() as u8;
        if r.epoch >= self.bounds.epochs {
            next.record.primary = NOBODY;
            next.record.shrink = 0;
            next.record.grow = 0;
            return Some(next);
        }
        Some(self.promoted(&next, to, rest))
    }

    /// Loses everything that was not durable; messages that were sent may still arrive.
    pub(crate) fn crash(&self, state: &State, node: u8) -> Option<State> {
        if state.budget.crashes == 0 {
            return None;
        }
        let mut next = *state;
        next.budget.crashes -= 1;
        let replica = next.node_mut(node);
        // A replica that keeps nothing in memory loses nothing: its crash is a lost connection.
        replica.log = replica.durable_log();
        replica.promised = replica.promised_durably;
        replica.session = 0;
        replica.step_back();
        Some(next)
    }

    /// The disk is replaced by an empty one: a new incarnation (R9).
    pub(crate) fn lose_disk(&self, state: &State, node: u8) -> Option<State> {
        if state.budget.disks == 0 || state.node(node).second {
            return None;
        }
        let mut next = *state;
        next.budget.disks -= 1;
        // Without incarnations the control plane cannot tell the new disk from the old one.
        let second = !self.planted(Mutation::IgnoreIncarnation);
        *next.node_mut(node) = Node { second, ..Node::new() };
        for talks in &mut next.talks {
            talks[usize::from(node)].out = Out::Nothing;
        }
        Some(next)
    }

    /// A new version within the epoch.
    fn changed(&self, next: &mut State, iss: Nodes) {
        let r = &mut next.record;
        if self.planted(Mutation::PromoteWithoutVersion) {
            r.once |= r.iss;
        }
        r.iss = iss;
        r.shrink = 0;
        r.grow = 0;
        let r = *r;
        if r.primary != NOBODY {
            let era = next.era_mut(r.epoch);
            assert!(usize::from(era.count) < VERSIONS);
            era.node = r.primary;
            era.versions[usize::from(era.count)] = r.iss | r.second << 4;
            era.count += 1;
        }
    }

    fn promoted(&self, state: &State, to: u8, iss: Nodes) -> State {
        let mut next = *state;
        let r = &mut next.record;
        if self.planted(Mutation::PromoteWithoutVersion) {
            r.once |= r.iss;
        }
        r.epoch += 1;
        r.primary = to;
        r.iss = iss;
        r.shrink = 0;
        r.grow = 0;
        let r = *r;
        let era = next.era_mut(r.epoch);
        *era = Era { node: to, count: 1, ..Era::default() };
        era.versions[0] = r.iss | r.second << 4;
        next
    }
}
