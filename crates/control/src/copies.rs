//! How many copies there have to be (`min-copies`): per resource, chosen when it is made and
//! changed while it is used.
//!
//! The primary enforces it ([ADR 18](../../../docs/adr/0018-min-copies.md)). This file holds the
//! rules for the record: the values that it takes, and the members that stay in sync for them.
//!
//! Guaranteed after every command (`State::check` asserts it in tests): no resource wants
//! more copies than it is to have replicas. In mode A it wants no more than one.

use crate::state::{Resource, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{MinCopies, Mode, NodeId, duration};

impl State {
    /// Whether a dead member on `node` stays in sync because too few members would remain. It lacks
    /// no acknowledged write, and may be the first to return.
    pub(crate) fn stays_for_copies(resource: &Resource, node: NodeId) -> bool {
        let record = &resource.record;
        let stays = record.primary.is_some_and(|primary| primary != node) && record.needs_every_member();
        stays && !planted(Bug::AbsentAlwaysLeaves)
    }

    /// Returns problem and remedy if a resource has a primary and fewer copies than are wanted.
    pub(crate) fn advise_copies(&self, resource: &Resource) -> Option<(String, String)> {
        let record = &resource.record;
        let wanted = record.copies_wanted();
        let members = record.iss.iter().map(|member| member.node);
        let (there, gone): (Vec<_>, Vec<_>) = members.partition(|node| self.lives_whole(resource, *node));
        if there.len() >= wanted {
            return None;
        }
        let names = |nodes: &[NodeId]| {
            nodes.iter().map(|node| self.node_name(*node)).collect::<Vec<_>>().join(" or ")
        };
        let others: Vec<_> = resource
            .spec
            .replicas
            .iter()
            .copied()
            .filter(|node| record.iss_member(*node).is_none() && !self.alive(*node))
            .collect();
        let away: Vec<_> = gone.into_iter().chain(others).collect();
        let first = if away.is_empty() {
            "it goes on by itself when another replica is in sync".to_owned()
        } else {
            format!("bring {} back", names(&away))
        };
        Some((
            format!(
                "{wanted} copies are wanted and {} is there: writes wait {}, and then fail",
                there.len(),
                duration::typed(record.policy.min_copies.suspend_ms)
            ),
            format!(
                "{first}; or go on with fewer: `mainstay resource set-min-copies {} {}`",
                resource.name,
                there.len().max(1)
            ),
        ))
    }

    /// For [`State::check`].
    pub(crate) fn check_copies(resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        match check(record.policy.min_copies, resource.lasting_replicas(), record.policy.mode()) {
            Ok(()) => Ok(()),
            Err(_) => Err("more copies are wanted than there can be"),
        }
    }
}

impl Resource {
    /// How many replicas there are to be when all moves are over.
    #[must_use]
    pub(crate) fn lasting_replicas(&self) -> usize {
        self.spec.replicas.len() - self.moving.len()
    }
}

/// Whether this number of copies can be kept with this number of replicas; else the problem and the
/// remedy.
pub(crate) fn check(wanted: MinCopies, replicas: usize, mode: Mode) -> Result<(), (String, String)> {
    if wanted.copies == 0 || wanted.copies as usize > replicas {
        return Err((
            format!(
                "min-copies: {} copies are wanted, and the resource is to have {replicas} replicas",
                wanted.copies
            ),
            format!("choose at most {replicas} for min-copies, or add replicas first"),
        ));
    }
    if wanted.copies > 1 && mode == Mode::A {
        return Err((
            format!(
                "min-copies: {} copies are wanted, and in mode A the primary alone acknowledges writes",
                wanted.copies
            ),
            "choose 1 for min-copies, or choose another mode first".into(),
        ));
    }
    Ok(())
}
