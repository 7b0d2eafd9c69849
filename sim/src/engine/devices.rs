//! Devices of the replicas of an engine. Mirrors `engine/src/resource_devices.rs`;
//! [`mainstay_silence::Devices`] has their states.

use super::{Engine, EngineOut};
use mainstay_host::AnswerError;
use mainstay_silence::Devices;
use mainstay_types::ResourceId;

/// Has a device answer errors from now on. Returns whether it is to be detached now: no service
/// sees it fail here.
pub(super) fn goes(device: &mut Devices) -> bool {
    device.withdraw() && device.fail() && device.detach()
}

impl Engine {
    pub(super) fn offer(&mut self, resource: ResourceId) {
        let fenced = self.fenced;
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        if hosted.device.offer(hosted.wanted(), fenced) {
            hosted.device.made(1);
            hosted.generation += 1;
            self.outs.push(EngineOut::Attach { resource, generation: hosted.generation });
        }
    }

    /// The device goes; requests that are still in it are answered with errors at once (R20).
    pub(super) fn withdraw(&mut self, resource: ResourceId) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        for request in std::mem::take(&mut hosted.pending) {
            let answer = Err(AnswerError::NoLease);
            self.outs.push(EngineOut::Complete { request, answer, soft: None });
        }
        if goes(&mut hosted.device) {
            self.outs.push(EngineOut::Detach { resource, generation: hosted.generation });
        }
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
