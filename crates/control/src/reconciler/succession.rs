//! Services that run on while the engine of their node is replaced.
//!
//! The engine was told that its successor comes, and leaves its devices to it. The services on them
//! wait for the devices meanwhile. They are stopped by nothing that only says that the engine is
//! another one.
//!
//! ```text
//!          the engine leaves                     the same devices, a later epoch of this node
//!   Runs ─────────────────────▶ Kept ─────────────────────────────────────────────▶ Runs
//!                                │
//!                                └── silenced, ended, or not served again in time ──▶ as after any other start of an engine
//! ```
//!
//! Guarantees
//! - A service goes on only on devices that were left by the engine before, in the epoch in which
//!   the service began, and only if no other node can have been primary since then (the engine says
//!   so). Otherwise it is stopped and started anew.
//! - The role stays on this node meanwhile, or the service is stopped first (R19).
//! - Kept is over after [`KEPT_MS_MAX`] (R20).
//! - What silences the node does so here as well: guard, silencer, and the end of the lease.

use crate::actions::ServiceObserved;
use crate::state::State;
use mainstay_silence::LEFT_MS_MAX;
use mainstay_types::{Epoch, Mode, NodeId, ResourceId, ServicePhase, Time};
use std::collections::BTreeMap;

/// How long services are kept, from the moment when the successor is announced.
pub const KEPT_MS_MAX: u64 = LEFT_MS_MAX - 5000;

/// Whether the services of a node can stay while its engine is replaced, by the state of the
/// cluster. The engine says the same of its devices.
///
/// # Errors
/// The reason why one of them cannot, in words.
pub fn services_stay(state: &State, node: NodeId) -> Result<(), String> {
    for resource in state.resources.values().filter(|resource| resource.record.primary == Some(node)) {
        let name = &resource.name;
        if resource.record.policy.mode() == Mode::B {
            return Err(format!("resource {name} is in mode B: what is only in memory would be lost"));
        }
        if resource.record.attached.is_some() {
            return Err(format!("resource {name} is attached to a node without a replica"));
        }
        let Some((service, on)) = state.service_of(resource.id) else { continue };
        let phase = on.nodes.get(&node).map(|on| on.phase);
        if phase.is_some_and(|phase| phase != ServicePhase::Running && !phase.is_silent()) {
            return Err(format!("service {service} does not run steadily here"));
        }
    }
    Ok(())
}

/// See the top of this file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Succession {
    until: Time,
    /// Resources with the epoch in which their services run.
    kept: BTreeMap<ResourceId, Epoch>,
}

impl Succession {
    /// The engine is about to leave its devices.
    pub fn begins(
        &mut self,
        now: Time,
        state: &State,
        node: NodeId,
        services: &BTreeMap<String, ServiceObserved>,
    ) {
        let runs = services.values().filter(|seen| seen.phase == ServicePhase::Running);
        let own = runs.filter(|seen| {
            let record = state.resources.get(&seen.resource).map(|resource| &resource.record);
            // In mode B a new instance lacks what the one before had in memory.
            record.is_some_and(|record| {
                record.primary == Some(node) && record.epoch == seen.epoch && record.instances.is_empty()
            })
        });
        self.kept = own.map(|seen| (seen.resource, seen.epoch)).collect();
        self.until = now.plus_ms(KEPT_MS_MAX);
    }

    /// Looks at what runs now. A service that has gone on in a later epoch is kept no more, nor is
    /// one that has been silenced or has ended.
    pub fn look(&mut self, now: Time, services: &BTreeMap<String, ServiceObserved>) {
        if now >= self.until {
            self.kept.clear();
        }
        self.kept.retain(|resource, epoch| {
            services.values().any(|seen| {
                seen.resource == *resource && seen.phase == ServicePhase::Running && seen.epoch == *epoch
            })
        });
    }

    /// Resources whose services are kept.
    pub fn kept(&self) -> impl Iterator<Item = ResourceId> {
        self.kept.keys().copied()
    }
}
