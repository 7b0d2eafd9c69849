//! How many copies there have to be (`min-copies`): per resource, chosen when it is made and
//! changed while it is used.
//!
//! The primary enforces it ([ADR 18](../../../docs/adr/0018-min-copies.md)). This file holds the
//! rules for the record: the values that it takes, and the members that stay in sync for them.
//!
//! What is guaranteed, after every command (`State::check` asserts it in tests): no resource wants
//! more copies than it is to have replicas. In mode A it wants no more than one.

use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, ConfigVersion, MinCopies, Mode, NodeId, ResourceId, Severity, reach};

/// The longest that requests wait, in milliseconds.
const SUSPEND_MS_MAX: u64 = 3_600_000;

impl State {
    pub(crate) fn set_min_copies(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        wanted: MinCopies,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return refused(
                Code::UnknownResource,
                format!("there is no resource {id}"),
                "see `mainstay resource list`",
            );
        };
        if let Err((message, remedy)) = check(wanted, resource.lasting_replicas(), resource.record.mode) {
            return refused(Code::BadMinCopies, message, remedy);
        }
        let record = &resource.record;
        if record.min_copies == wanted {
            return Outcome::Unchanged;
        }
        if record.version != version {
            reach!("control: a change of min-copies is based on an older record");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        reach!("control: min-copies is changed");
        let text = match wanted.copies {
            1 => "writes are acknowledged with one copy, if there are no more".to_owned(),
            copies => format!(
                "writes are acknowledged with {copies} copies at least; with fewer they wait {} s, and then fail",
                wanted.suspend_ms / 1000
            ),
        };
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        resource.record.min_copies = wanted;
        resource.record.version = resource.record.version.next();
        self.note_on(at_ms, id, Severity::Info, text);
        Outcome::Done
    }

    /// Whether a dead member on `node` stays in sync because too few members would remain. It lacks
    /// no acknowledged write, and may be the first to return.
    pub(crate) fn stays_for_copies(resource: &Resource, node: NodeId) -> bool {
        let record = &resource.record;
        let stays = record.primary.is_some_and(|primary| primary != node)
            && record.copies_wanted() > 1
            && record.iss.len() <= record.copies_wanted();
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
                "{wanted} copies are wanted and {} is there: writes wait {} s, and then fail",
                there.len(),
                record.min_copies.suspend_ms / 1000
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
        match check(record.min_copies, resource.lasting_replicas(), record.mode) {
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
                "min-copies: {} copies are asked for, of a resource with {replicas} replicas",
                wanted.copies
            ),
            format!("ask for 1 to {replicas}, or add replicas first"),
        ));
    }
    if wanted.copies > 1 && mode == Mode::A {
        return Err((
            format!(
                "min-copies: {} copies are asked for in mode A, in which the primary alone acknowledges writes",
                wanted.copies
            ),
            "ask for 1, or choose another mode first".into(),
        ));
    }
    if wanted.suspend_ms > SUSPEND_MS_MAX {
        return Err((
            format!("suspend-io: requests would wait for {} ms", wanted.suspend_ms),
            format!("let them wait for {} s at most", SUSPEND_MS_MAX / 1000),
        ));
    }
    Ok(())
}
