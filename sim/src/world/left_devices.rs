//! Devices that the kernel keeps when their engine dies, with everything that is asked of them.
//! Mirrors `devices/src/device_recovery.rs` and `agent/src/engine_absence.rs`;
//! `mainstay_silence::fate` and its neighbours decide what becomes of them.
//!
//! In half of the runs a device ends with its engine instead, and its service finds that out by
//! itself: so ends a device of FUSE whose descriptor no agent holds.
//!
//! Not simulated: devices of clients stay nowhere. A process or a mount on a left device can be
//! stopped. Of what was asked of a device, flushes are not asked again, nor a write over which
//! another one was asked for: a repetition would put back what the later one had replaced.

use super::{ClientRequest, What, World, resource_id};
use crate::engine::{Engine, EngineIn};
use crate::trace::Part;
use mainstay_host::AnswerError;
use mainstay_replica::Op;
use mainstay_silence::{Fate, LEFT_MS_MAX, fate, may_take_over};
use mainstay_types::{Epoch, NodeId, Range, ResourceId, Time};
use std::collections::BTreeSet;

/// A device of a replica, as its engine has noted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftDevice {
    /// The last epoch in which this node was primary, as far as no other primary has been since the
    /// device was served.
    served: Epoch,
    /// Turn of the resource in which the device was made: the truth about what was noted.
    turn: u64,
    /// True time since which it waits for this engine, or for one at all.
    since_us: u64,
    /// Epoch in which the engine served it.
    made: Epoch,
    /// The device itself: a number that it keeps when another engine takes it over.
    pub(super) identity: u64,
    /// When an engine had answered everything and left it on purpose, on the node's clock.
    pub(super) handed_at: Option<Time>,
}

impl World {
    /// This node has the devices of the resource from now on, or is about to have them. Returns how
    /// often they went to another node.
    pub(super) fn takes_turn(&mut self, node: NodeId, resource: ResourceId) -> u64 {
        let (last, turn) = self.turns.entry(resource).or_insert((node, 0));
        if *last != node {
            (*last, *turn) = (node, *turn + 1);
        }
        *turn
    }

    /// An engine makes a device, or takes over the one that was left.
    pub(super) fn device_made(&mut self, node: NodeId, resource: ResourceId, turn: u64) {
        let machine = self.machine(node);
        let hosted = machine.engine.as_ref().and_then(|engine| engine.hosts.get(&resource));
        let Some(served) = hosted.map(|hosted| hosted.host.replica().epoch()) else { return };
        let left = machine.left.get(&resource).copied();
        // A service that was silenced since then has lost its file system.
        let taken = machine.handed.is_some_and(|handed| handed.taken);
        let stands =
            |left: &LeftDevice| left.handed_at.is_none_or(|at| taken && machine.silencer.silenced < at);
        let goes_on = left.filter(|left| may_take_over(left.served, served) && stands(left));
        self.made += 1;
        let identity = goes_on.map_or(self.made, |left| left.identity);
        let noted = LeftDevice { served, turn, since_us: 0, made: served, identity, handed_at: None };
        let machine = self.machine(node);
        machine.noted.insert(resource, noted);
        let hosted = machine.engine.as_mut().and_then(|engine| engine.hosts.get_mut(&resource));
        if let Some(hosted) = hosted {
            let on_purpose = goes_on.filter(|left| left.handed_at.is_some());
            hosted.continues = on_purpose.map(|left| left.made);
        }
        match left {
            Some(left) if goes_on.is_some() => {
                self.trace.count("R5 a left device is taken over");
                if left.handed_at.is_some() {
                    self.trace.count("S560 an engine goes on with the devices of the one before");
                }
                if left.turn != turn {
                    let text = format!(
                        "the device of {resource} that an engine left on {node} is taken over, and another node had the devices since"
                    );
                    self.wrong("H12", text);
                }
            }
            Some(_) => self.give_up_left(node, resource),
            None => {}
        }
    }

    /// The device is there. The kernel asks again what was asked of the engine before.
    pub(super) fn device_attached(&mut self, node: NodeId, boot: u64, resource: ResourceId, generation: u64) {
        self.to_engine(node, boot, EngineIn::Attached { resource, generation });
        let machine = self.machine(node);
        if machine.engine_process.boot != boot || machine.left.remove(&resource).is_none() {
            return;
        }
        for request in self.in_device(node, resource) {
            let Some(asked) = self.asked.get_mut(&request) else { continue };
            asked.at_us = self.now_us;
            let op = asked.op.clone();
            self.note(Some(node), Part::Client, &[3, request], || format!("#{request} is asked again"));
            self.to_engine(node, boot, EngineIn::Request { resource, request, op });
        }
    }

    /// Requests that are in the device of a replica, in their order.
    fn in_device(&self, node: NodeId, resource: ResourceId) -> Vec<u64> {
        let inside = |asked: &ClientRequest| {
            asked.node == node && resource_id(asked.resource) == resource && !asked.client
        };
        self.asked.iter().filter(|(_, asked)| inside(asked)).map(|(request, _)| *request).collect()
    }

    /// The engine of a node has died. The kernel keeps its devices, or they are gone.
    pub(super) fn leave_devices(&mut self, node: NodeId, engine: &Engine) {
        let (stay, now_us) = (self.plan.shape.devices_stay, self.now_us);
        let handed = self.machine(node).handed;
        // Devices that the engine before has left on purpose end with the engine that took them.
        if handed.is_some_and(|handed| handed.taken) {
            self.machine(node).handed = None;
            self.give_up_handed(node);
        }
        let handed_at = handed.filter(|handed| !handed.taken).map(|handed| handed.at);
        let machine = self.machine(node);
        machine.leaving = None;
        let noted = std::mem::take(&mut machine.noted);
        for (resource, device) in noted.into_iter().filter(|_| stay || handed_at.is_some()) {
            if engine.hosts.get(&resource).is_some_and(|hosted| hosted.device.is_offered()) {
                machine.left.insert(resource, LeftDevice { handed_at, ..device });
            }
        }
        machine.left.values_mut().for_each(|left| left.since_us = now_us);
        let left: BTreeSet<ResourceId> = machine.left.keys().copied().collect();
        let kept = match handed_at {
            // The kernel still has all of them, because the engine has read none.
            Some(_) => self.asked_of(node, &left),
            None => self.kept_requests(node, &left),
        };
        self.forget_requests(node, |request, _| kept.contains(&request));
        for resource in (0..self.plan.shape.resources.len()).map(resource_id) {
            if left.contains(&resource) {
                self.trace.count("R20 an engine leaves a device");
            } else {
                self.device_lost(node, resource);
            }
        }
    }

    fn asked_of(&self, node: NodeId, left: &BTreeSet<ResourceId>) -> BTreeSet<u64> {
        left.iter().flat_map(|resource| self.in_device(node, *resource)).collect()
    }

    fn kept_requests(&self, node: NodeId, left: &BTreeSet<ResourceId>) -> BTreeSet<u64> {
        let (mut kept, mut writes): (BTreeSet<u64>, Vec<(usize, Range)>) = Default::default();
        let over = |a: &Range, b: &Range| a.volume == b.volume && a.offset < b.end() && b.offset < a.end();
        // From the last one on, so that each write is compared with all later ones.
        for (request, asked) in self.asked.iter().rev().filter(|(_, asked)| asked.node == node) {
            if asked.client || !left.contains(&resource_id(asked.resource)) {
                continue;
            }
            let keeps = match &asked.op {
                Op::Write { range, .. } | Op::Discard { range } | Op::WriteZeroes { range } => {
                    let later = writes.iter().any(|(of, other)| *of == asked.resource && over(other, range));
                    writes.push((asked.resource, *range));
                    !later
                }
                Op::Read { .. } => true,
                _ => false,
            };
            if keeps {
                kept.insert(*request);
            }
        }
        kept
    }

    /// An engine that starts finds the devices that were left.
    pub(super) fn finds_left(&mut self, node: NodeId) {
        self.takes_handed(node);
        let now_us = self.now_us;
        let machine = self.machine(node);
        if machine.left.is_empty() {
            return;
        }
        machine.left.values_mut().for_each(|left| left.since_us = now_us);
        let boot = machine.engine_process.boot;
        self.after(LEFT_MS_MAX * 1000, What::LeftForLong { node, boot });
    }

    pub(super) fn left_for_long(&mut self, node: NodeId, boot: u64) {
        let process = &self.machines[&node].engine_process;
        if process.boot != boot {
            return;
        }
        // An engine that stands still does it when it goes on.
        if process.paused_until_us > 0 {
            let again_us = process.paused_until_us.max(self.now_us) + 1;
            return self.at(again_us, What::LeftForLong { node, boot });
        }
        self.give_up_all_left(node);
    }

    /// The engine takes the control plane's record of a resource.
    pub(super) fn left_hears(&mut self, node: NodeId, resource: ResourceId, epoch: Epoch, own: bool) {
        let Some(left) = self.machine(node).left.get_mut(&resource) else { return };
        match fate(left.served, epoch, own) {
            Fate::Waits => {}
            Fate::Follows => left.served = epoch,
            Fate::Past => self.give_up_left(node, resource),
        }
    }

    /// The agent does that for an engine that is gone for too long. Of what an engine has left on
    /// purpose it knows itself how long it lasts.
    pub(super) fn fail_left(&mut self, node: NodeId) {
        for (resource, left) in self.machines[&node].left.clone() {
            if left.handed_at.is_none() {
                self.give_up_left(node, resource);
            }
        }
    }

    /// The agent stops what ran on a device that died with its engine.
    pub(super) fn give_up_guarded(&mut self, node: NodeId, resource: ResourceId) {
        if self.machines[&node].left.get(&resource).is_some_and(|left| left.handed_at.is_none()) {
            self.give_up_left(node, resource);
        }
    }

    pub(super) fn give_up_all_left(&mut self, node: NodeId) {
        for resource in self.machines[&node].left.keys().copied().collect::<Vec<_>>() {
            self.give_up_left(node, resource);
        }
    }

    /// Kills the services on a left device, as far as they were noted. Then everything in the
    /// device fails, and the device is gone.
    pub(super) fn give_up_left(&mut self, node: NodeId, resource: ResourceId) {
        if self.machine(node).left.remove(&resource).is_none() {
            return;
        }
        self.trace.count("R20 a left device is given up");
        self.note(Some(node), Part::Engine, &[15, resource.0], || {
            format!("the left device of {} is given up", Self::resource_name(resource))
        });
        if self.machines[&node].silencer.services.contains(&Self::service_name(resource)) {
            self.kill_users(node, resource);
        }
        for request in self.in_device(node, resource) {
            self.complete(request, Err(AnswerError::NoLease), None);
        }
        self.unseen(node, resource);
        self.device_lost(node, resource);
    }

    /// Nodes on which something can be asked of the devices of a resource.
    pub(super) fn asked_nodes(&self, resource: usize) -> Vec<NodeId> {
        let offered = self.devices(resource);
        let left = |node: &NodeId| self.machines[node].left.contains_key(&resource_id(resource));
        let asked = |node: &NodeId| offered.contains(node) || left(node);
        self.machines.keys().copied().filter(asked).collect()
    }

    /// True time at which a left device of a healed cluster must have been taken over or given up.
    pub(super) fn left_until_us(&self, asked: &ClientRequest) -> Option<u64> {
        let left = self.machines[&asked.node].left.get(&resource_id(asked.resource))?;
        (!asked.client).then_some(left.since_us + (LEFT_MS_MAX + 5_000) * 1000)
    }
}
