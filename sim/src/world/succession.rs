//! A planned replacement of an engine under the services of its node (ADR 43). Mirrors
//! `engine/src/shard/successor.rs`, `engine/src/left_devices.rs` and
//! `devices/src/descriptor_holder.rs`.
//!
//! ```text
//!   serves ── to be replaced ──▶ leaving ── all is answered ──▶ handed over ── the next engine ──▶ taken: served again, or given up
//!                                  └── not in time, or not possible: killed    └── none came: users are killed, then the devices fail
//! ```
//!
//! Not simulated: an engine that could not leave silences its services before it ends. Here it is
//! killed, which is harder.

use super::{What, World};
use crate::agent;
use crate::trace::Part;
use mainstay_ha::Report;
use mainstay_silence::guard_acts_at;
use mainstay_types::{NodeId, ResourceId, ServicePhase, Time};

/// How long an engine that is to leave may take to answer what it has read.
const LEAVE_US: u64 = 1_500_000;

/// An engine that reads no more from its devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// The next engine starts so long after this one has ended.
    gap_ms: u64,
}

/// Devices that the agent holds for the next engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handed {
    /// When everything was answered, on the node's clock.
    pub(super) at: Time,
    /// Until when the next engine may take them, likewise.
    until: Time,
    /// The next engine has taken them.
    pub(super) taken: bool,
}

impl World {
    /// The engine of a node is to be replaced under its services, if that is possible now.
    pub(super) fn replace_engine(&mut self, node: NodeId, gap_ms: u64) {
        let now = self.node_time(node);
        let machine = self.machine(node);
        let stands_still =
            machine.engine_process.paused_until_us > 0 || machine.agent_process.paused_until_us > 0;
        if machine.leaving.is_some() || stands_still || !machine.connected {
            return;
        }
        let (Some(engine), Some(agent)) = (&machine.engine, &machine.agent) else { return };
        let waits = machine.left.values().any(|left| left.handed_at.is_some());
        if waits || !engine.can_leave(now) || !agent.services_stay() {
            self.trace.count("S562 an engine cannot be replaced in place");
            return;
        }
        machine.leaving = Some(Leaving { gap_ms });
        let (boot, agent_boot) = (machine.engine_process.boot, machine.agent_process.boot);
        self.note(Some(node), Part::Fault, &[22], || "engine is to leave its devices to the next one".into());
        self.to_agent(node, agent_boot, agent::In::Succession);
        self.after(LEAVE_US, What::LeaveOver { node, boot });
        self.leaves(node);
    }

    /// Has an engine end that is to leave, if it can or if it never will.
    pub(super) fn leaves(&mut self, node: NodeId) {
        let now = self.node_time(node);
        let machine = self.machine(node);
        let (Some(leaving), Some(engine)) = (machine.leaving, &machine.engine) else { return };
        if !engine.can_leave(now) {
            return self.could_not_leave(node, leaving);
        }
        if !engine.is_quiet() {
            return;
        }
        let until = guard_acts_at(engine.lease_until);
        machine.leaving = None;
        machine.handed = Some(Handed { at: now, until, taken: false });
        self.trace.count("S560 an engine leaves its devices to the next one");
        self.kill_engine(node);
        let machine = self.machine(node);
        let (boot, until_us) = (machine.engine_process.boot, machine.clock.true_time(until));
        self.after(leaving.gap_ms * 1000, What::StartEngine { node });
        self.at(until_us.max(self.now_us + 1), What::HandedOver { node, boot });
    }

    pub(super) fn leave_over(&mut self, node: NodeId, boot: u64) {
        let machine = self.machine(node);
        if let Some(leaving) = machine.leaving.filter(|_| machine.engine_process.boot == boot) {
            self.could_not_leave(node, leaving);
        }
    }

    fn could_not_leave(&mut self, node: NodeId, leaving: Leaving) {
        self.trace.count("S562 an engine could not leave its devices in time");
        self.machine(node).leaving = None;
        self.kill_engine(node);
        self.after(leaving.gap_ms * 1000, What::StartEngine { node });
    }

    /// The agent lets devices fail that no successor has taken, once their users are killed.
    pub(super) fn handed_over(&mut self, node: NodeId, boot: u64) {
        let machine = self.machine(node);
        let waits = machine.handed.is_some_and(|handed| !handed.taken);
        if machine.engine_process.boot != boot || !waits {
            return;
        }
        let paused_until_us = machine.agent_process.paused_until_us;
        if paused_until_us > 0 {
            let again_us = paused_until_us.max(self.now_us) + 1;
            return self.at(again_us, What::HandedOver { node, boot });
        }
        machine.handed = None;
        self.trace.count("S561 no engine came for the devices");
        self.give_up_handed(node);
    }

    fn handed_devices(&self, node: NodeId) -> Vec<ResourceId> {
        let left = self.machines[&node].left.iter();
        left.filter(|(_, left)| left.handed_at.is_some()).map(|(resource, _)| *resource).collect()
    }

    /// Kills the users of what an engine has left on purpose, and lets it fail then.
    pub(super) fn give_up_handed(&mut self, node: NodeId) {
        for resource in self.handed_devices(node) {
            self.give_up_left(node, resource);
        }
    }

    /// An engine takes what the one before has left for it, if an agent answers that has it.
    pub(super) fn takes_handed(&mut self, node: NodeId) {
        let now = self.node_time(node);
        let machine = self.machine(node);
        let answers = machine.agent.is_some() && machine.agent_process.paused_until_us == 0;
        if let Some(handed) = machine.handed.as_mut().filter(|handed| answers && now < handed.until) {
            handed.taken = true;
        }
    }

    /// The agent has died. What it alone held is gone, as if it had died together with the engine.
    pub(super) fn holder_died(&mut self, node: NodeId) {
        if self.machines[&node].handed.is_none_or(|handed| handed.taken) {
            return;
        }
        self.machine(node).handed = None;
        for resource in self.handed_devices(node) {
            self.machine(node).left.remove(&resource);
            self.forget_requests(node, |_, asked| super::resource_id(asked.resource) != resource);
            self.device_lost(node, resource);
        }
    }

    /// H17: a service that runs goes on in a later epoch only on the devices on which it began.
    pub(super) fn judge_goes_on(&mut self, node: NodeId, resource: ResourceId, report: &Report) {
        if report.phase != ServicePhase::Running {
            self.runs_on.remove(&(node, resource));
            return;
        }
        let machine = &self.machines[&node];
        let device = machine.noted.get(&resource).or_else(|| machine.left.get(&resource));
        // An engine that has died since then has left nothing to compare.
        let Some(device) = device.map(|device| device.identity) else { return };
        match self.runs_on.get(&(node, resource)).copied() {
            Some((epoch, began)) if epoch < report.epoch => {
                self.trace.count("S560 a service goes on in a later epoch");
                self.runs_on.insert((node, resource), (report.epoch, device));
                if began != device {
                    let text = format!(
                        "the service of {} goes on in {:?} on {node}, and not on the device on which it began",
                        Self::resource_name(resource),
                        report.epoch
                    );
                    self.wrong("H17", text);
                }
            }
            Some(_) => {}
            None => {
                self.runs_on.insert((node, resource), (report.epoch, device));
            }
        }
    }
}
