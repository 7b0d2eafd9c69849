//! Devices of the replicas of an engine. Mirrors `engine/src/resource_devices.rs`;
//! [`mainstay_silence::Devices`] has their states.

use super::{Engine, EngineOut};
use crate::world::service_resource;
use mainstay_host::AnswerError;
use mainstay_silence::{Devices, Free, Guard, guard_acts_at};
use mainstay_types::{ResourceId, Time};

/// Error that waits until no service can see it.
pub(super) struct HeldError {
    pub(super) request: u64,
    pub(super) error: AnswerError,
}

/// Whether no service can see a device of the resource fail. If one could, the guard is asked to
/// kill it.
pub(super) fn unseen(guard: &mut Guard<String>, fenced: bool, resource: ResourceId) -> bool {
    // The guard has killed all of them (R19).
    fenced || guard.devices_fail(resource, |service| service_resource(service) == resource)
}

/// Has a device of a client answer errors from now on. Returns whether it is to be detached now: no
/// service runs on such a device here.
pub(super) fn goes(device: &mut Devices) -> bool {
    device.withdraw() && device.fail() && device.detach()
}

impl Engine {
    /// Whether the devices can be left to a successor at this moment.
    #[must_use]
    pub fn can_leave(&self, now: Time) -> bool {
        let there = |device: &Devices| device.is_none() || device.is_offered();
        !self.fenced
            && now < guard_acts_at(self.lease_until)
            && self.clients.is_empty()
            && self.hosts.values().all(|hosted| there(&hosted.device) && !hosted.closes())
    }

    /// Whether everything that was asked of the devices is answered.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.hosts.values().all(|hosted| hosted.pending.is_empty())
    }

    pub(super) fn offer(&mut self, resource: ResourceId) {
        let fenced = self.fenced;
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        if hosted.device.offer(hosted.wanted(), fenced) {
            hosted.device.made(1);
            hosted.generation += 1;
            self.outs.push(EngineOut::Attach { resource, generation: hosted.generation });
        }
    }

    /// The device goes, once no service can see it. No user can hold this up (R20).
    pub(super) fn withdraw(&mut self, resource: ResourceId) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        if !hosted.device.withdraw() {
            return;
        }
        let free = hosted.held_errors.withdraw(|| unseen(&mut self.guard, self.fenced, resource));
        self.fail(resource, free);
    }

    /// Answers errors that have waited. If the device goes, requests that are still in it are
    /// answered with errors, too.
    pub(super) fn fail(&mut self, resource: ResourceId, free: Free<HeldError>) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        let fails = |(request, error)| EngineOut::Complete { request, answer: Err(error), soft: None };
        self.outs.extend(free.answers.into_iter().map(|held| fails((held.request, held.error))));
        if !free.withdraw || !hosted.device.fail() {
            return;
        }
        let pending = std::mem::take(&mut hosted.pending).into_iter();
        self.outs.extend(pending.map(|request| fails((request, AnswerError::NoLease))));
        if hosted.device.detach() {
            self.outs.push(EngineOut::Detach { resource, generation: hosted.generation });
        }
    }

    /// The guard has killed the services on the resource.
    pub(super) fn killed(&mut self, resource: ResourceId) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        let free = hosted.held_errors.killed();
        self.fail(resource, free);
        self.touched.insert(resource);
    }

    /// The guard has silenced this node, so no service can see its device fail.
    pub(super) fn silenced_for(&mut self, resource: ResourceId) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        let free = hosted.held_errors.unseen();
        self.fail(resource, free);
        self.withdraw(resource);
        self.touched.insert(resource);
    }

    pub(super) fn attached(&mut self, resource: ResourceId, generation: u64) {
        let fenced = self.fenced;
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        if hosted.generation != generation || !hosted.device.attached() {
            return;
        }
        self.touched.insert(resource);
        if hosted.device.is_to_go(hosted.wanted(), fenced) {
            self.withdraw(resource);
        }
    }

    pub(super) fn detached(&mut self, resource: ResourceId, generation: u64) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        if hosted.generation != generation || hosted.device != Devices::Detaching {
            return;
        }
        hosted.device.detached();
        self.touched.insert(resource);
        self.offer(resource);
    }
}
