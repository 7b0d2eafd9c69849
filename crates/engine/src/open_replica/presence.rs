//! The devices of a primary: offered when it begins to serve, withdrawn when it stops.

use super::failing::{Failing, Free, Held};
use super::{Around, OpenReplica, Shared};
use crate::devices::{Device, DeviceJob, DeviceOutcome};
use crate::frontend::nbd::Arrived;
use crate::frontend::{self, Extent, Frontend, FrontendId, FrontendParts, FrontendRequest, FrontendResult};
use crate::ring::Completion;
use mainstay_api::engine::{DeviceStatus, EngineEvent};
use mainstay_codec::nbd::Export;
use mainstay_replica::Role;
use mainstay_types::{ResourceId, VolumeId};

/// What stands between the resource and the kernel.
#[derive(Default)]
pub(super) struct Presence {
    frontend: Option<Box<dyn Frontend>>,
    devices: Vec<(VolumeId, Device)>,
    /// Sizes that the devices were made with, or were told since, in bytes.
    told_sizes: Vec<u64>,
    /// What is to fail, and waits until nobody sees it.
    failing: Failing,
    /// Attach jobs that have not ended.
    attaching: usize,
    /// The frontend answers with errors for good, so its devices go as soon as none is being attached.
    withdrawn: bool,
    /// The devices are being detached; the frontend goes after them.
    detaching: bool,
    /// Frontends that the kernel has not let go of yet.
    closing: Vec<Box<dyn Frontend>>,
    /// Becomes true when the devices are to be offered again once the old ones are gone.
    again: bool,
    /// The replica is to be dropped: no devices any more.
    ended: bool,
    /// Kept to be filled again.
    requests: Vec<FrontendRequest>,
}

/// Whether something of the devices is still there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    Done,
    Waiting,
}

impl Around {
    /// Makes the devices, unless they are there.
    pub(super) fn offer(&mut self, shared: &mut Shared<'_>) {
        if self.presence.frontend.is_some() {
            self.presence.again = self.presence.detaching;
            return;
        }
        if shared.fenced || self.presence.ended || self.role != Role::Primary {
            return;
        }
        let id = FrontendId(*shared.next_frontend);
        *shared.next_frontend += 1;
        let mut frontend = match self.make(shared, id) {
            Ok(frontend) => frontend,
            Err(reason) => {
                tracing::error!(resource = %self.resource, reason);
                shared.events.push(EngineEvent::Failed { resource: self.resource, reason });
                return;
            }
        };
        frontend.start(shared.ring);
        shared.frontends.insert(id, self.resource);
        for volume in (0..self.volumes.len()).map(|volume| VolumeId(volume as u16)) {
            let attachment = frontend.attachment(volume);
            shared.devices.submit(DeviceJob::Attach { resource: self.resource, volume, attachment });
            self.presence.attaching += 1;
        }
        self.presence.frontend = Some(frontend);
        self.presence.told_sizes.clone_from(&self.volumes);
        self.presence.withdrawn = false;
    }

    /// A volume has this size now. Its device follows as soon as it is there.
    pub(super) fn resized(&mut self, shared: &mut Shared<'_>, volume: VolumeId, bytes: u64) {
        let Some(size) = self.volumes.get_mut(usize::from(volume.0)) else { return };
        *size = bytes;
        self.dirty = true;
        tracing::info!(resource = %self.resource, %volume, bytes, "a volume has another size");
        if let Some(frontend) = &mut self.presence.frontend {
            frontend.resized(volume, bytes);
            self.resize_device(shared, volume);
        }
    }

    fn resize_device(&mut self, shared: &mut Shared<'_>, volume: VolumeId) {
        let place = usize::from(volume.0);
        let devices = &self.presence.devices;
        let Some((_, device)) = devices.iter().find(|(of, _)| *of == volume) else { return };
        let Some(told) = self.presence.told_sizes.get_mut(place).filter(|told| **told != self.volumes[place])
        else {
            return;
        };
        *told = self.volumes[place];
        match device.resizing() {
            Ok(Some(resizing)) => {
                let path = device.path().to_owned();
                shared.devices.submit(DeviceJob::Resize { path, resizing, bytes: *told });
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(resource = %self.resource, %volume, %error, "the device keeps its size")
            }
        }
    }

    fn make(&self, shared: &Shared<'_>, id: FrontendId) -> Result<Box<dyn Frontend>, String> {
        let kind = shared.choice.kind.ok_or_else(|| format!("no device: {}", shared.choice.reason))?;
        let parts = FrontendParts {
            id,
            resource: self.resource,
            name: &self.name,
            epoch: self.epoch,
            run_dir: shared.run_dir,
            volumes: &self.volumes,
            pool: shared.pool,
        };
        frontend::make(kind, &parts).map_err(|error| format!("cannot make a device: {}", chain(&error)))
    }

    /// Takes the devices away, once nobody sees it. Requests that are still in them are answered with errors by the core or by the
    /// frontend, so nobody can hold this up (R20).
    pub(super) fn withdraw(&mut self, shared: &mut Shared<'_>) {
        self.presence.again = false;
        if self.presence.frontend.is_none() || self.presence.detaching {
            return;
        }
        let free = self.presence.failing.withdraw(|| unseen(shared, self.resource));
        self.fail(shared, free);
    }

    fn fail(&mut self, shared: &mut Shared<'_>, free: Free) {
        for Held { frontend, tag, errno } in free.answers {
            self.complete(shared, frontend, tag, Err(errno));
        }
        if !free.withdraw || self.presence.detaching {
            return;
        }
        let Some(frontend) = &mut self.presence.frontend else { return };
        frontend.fail_all(shared.ring, libc::EIO);
        self.presence.withdrawn = true;
        self.dirty = true;
        if self.presence.attaching == 0 {
            self.detach(shared);
        }
    }

    fn detach(&mut self, shared: &mut Shared<'_>) {
        self.presence.detaching = true;
        let devices = self.presence.devices.drain(..).map(|(_, device)| device).collect();
        shared.devices.submit(DeviceJob::Detach { resource: self.resource, devices });
    }

    fn device_outcome(&mut self, shared: &mut Shared<'_>, outcome: DeviceOutcome) {
        self.dirty = true;
        match outcome {
            DeviceOutcome::Attached { volume, device, .. } => {
                self.presence.attaching -= 1;
                self.presence.devices.push((volume, device));
                self.presence.devices.sort_by_key(|(volume, _)| *volume);
                self.resize_device(shared, volume);
                if self.presence.attaching == 0 {
                    self.counts.attached(shared.now);
                }
            }
            DeviceOutcome::Opened { volume, opened, .. } => {
                // It is there: it stays until its attachments have ended.
                if let Some(frontend) = &mut self.presence.frontend {
                    frontend.opened(shared.ring, volume, opened);
                }
            }
            DeviceOutcome::AttachFailed { volume, error, .. } => {
                self.presence.attaching -= 1;
                let reason = format!("volume {volume} got no device: {error}");
                tracing::error!(resource = %self.resource, reason);
                shared.events.push(EngineEvent::Failed { resource: self.resource, reason });
            }
            DeviceOutcome::Detached { errors, .. } => {
                for error in errors {
                    tracing::warn!(resource = %self.resource, %error, "a device was left to its last user");
                }
                self.presence.detaching = false;
                if let Some(mut frontend) = self.presence.frontend.take() {
                    frontend.detach();
                    self.presence.closing.push(frontend);
                }
                self.sweep(shared);
                if std::mem::take(&mut self.presence.again) || self.role == Role::Primary {
                    self.offer(shared);
                }
            }
        }
        if self.presence.withdrawn || self.role != Role::Primary || shared.fenced {
            self.withdraw(shared);
        }
    }

    fn frontend_completed(
        &mut self,
        shared: &mut Shared<'_>,
        id: FrontendId,
        completion: Completion,
        requests: &mut Vec<FrontendRequest>,
    ) {
        let current = self.presence.frontend.iter_mut();
        if let Some(frontend) = current.chain(&mut self.presence.closing).find(|frontend| frontend.id() == id)
        {
            frontend.completed(shared.ring, completion, requests);
        }
        self.sweep(shared);
    }

    fn sweep(&mut self, shared: &mut Shared<'_>) {
        self.presence.closing.retain(|frontend| {
            let closed = frontend.is_closed();
            if closed {
                shared.frontends.remove(&frontend.id());
            }
            !closed
        });
    }

    pub(super) fn answer(
        &mut self,
        shared: &mut Shared<'_>,
        id: FrontendId,
        tag: u64,
        result: FrontendResult,
    ) {
        match result {
            // What is wrong with the request, and not with the device.
            Ok(_) | Err(libc::EINVAL) => self.complete(shared, id, tag, result),
            Err(errno) => {
                let held = Held { frontend: id, tag, errno };
                let free = self.presence.failing.answer(held, || unseen(shared, self.resource));
                self.fail(shared, free);
            }
        }
    }

    fn complete(&mut self, shared: &mut Shared<'_>, id: FrontendId, tag: u64, result: FrontendResult) {
        let current = self.presence.frontend.iter_mut();
        if let Some(frontend) = current.chain(&mut self.presence.closing).find(|frontend| frontend.id() == id)
        {
            frontend.complete(shared.ring, tag, result);
        }
    }

    pub(super) fn answer_extents(
        &mut self,
        shared: &mut Shared<'_>,
        id: FrontendId,
        tag: u64,
        extents: &[Extent],
    ) {
        if let Some(frontend) = self.presence.frontend.as_mut().filter(|frontend| frontend.id() == id) {
            frontend.complete_extents(shared.ring, tag, extents);
        }
    }

    /// Whether there are no devices that anyone could use.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.presence.frontend.is_none()
    }

    pub(super) fn device_list(&self) -> Vec<DeviceStatus> {
        if self.presence.detaching || self.role != Role::Primary || self.presence.attaching > 0 {
            return Vec::new();
        }
        let path = |(volume, device): &(VolumeId, Device)| DeviceStatus {
            volume: *volume,
            path: device.path().display().to_string(),
        };
        self.presence.devices.iter().map(path).collect()
    }
}

/// Whether no service can see a device of the resource fail. If one could, the guard is asked to kill it.
fn unseen(shared: &Shared<'_>, resource: ResourceId) -> bool {
    // The guard has done it to all of them (R19).
    shared.fenced || shared.guard.kill_users(resource)
}

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

impl OpenReplica {
    /// The lease had ended when the next one came: nobody here leads any more (R10).
    pub fn lease_ended(&mut self, shared: &mut Shared<'_>) {
        self.host.lease_ended(shared.now);
        self.pump(shared);
    }

    /// R19: the devices answer with errors, whatever the cores think; at once, if the guard has silenced this node.
    pub fn fence(&mut self, shared: &mut Shared<'_>) {
        self.around.withdraw(shared);
        if shared.fenced {
            let free = self.around.presence.failing.unseen();
            self.around.fail(shared, free);
        }
        self.report(shared);
    }

    /// The guard has sent SIGKILL to all services on the resource: what waits for that fails now.
    pub fn killed(&mut self, shared: &mut Shared<'_>) {
        let free = self.around.presence.failing.killed();
        self.around.fail(shared, free);
    }

    /// The lease is back. A replica that still leads, because it was renewed before it had ended, offers new devices.
    pub fn unfence(&mut self, shared: &mut Shared<'_>) {
        self.around.offer(shared);
        self.pump(shared);
    }

    /// A device job of this resource has ended.
    pub fn device_outcome(&mut self, shared: &mut Shared<'_>, outcome: DeviceOutcome) {
        self.around.device_outcome(shared, outcome);
    }

    /// A completion of one of this resource's frontends.
    pub fn frontend_completed(
        &mut self,
        shared: &mut Shared<'_>,
        id: FrontendId,
        completion: Completion,
        requests: &mut Vec<FrontendRequest>,
    ) {
        self.around.frontend_completed(shared, id, completion, requests);
    }

    /// What clients of the NBD server may choose.
    #[must_use]
    pub fn exports(&self) -> Vec<Export> {
        let around = &self.around;
        match &around.presence.frontend {
            Some(frontend) if around.role == Role::Primary => frontend.exports(),
            _ => Vec::new(),
        }
    }

    /// A client of the NBD server that has chosen one of them.
    pub fn adopt(&mut self, shared: &mut Shared<'_>, arrived: Arrived) {
        if let Some(frontend) = &mut self.around.presence.frontend {
            frontend.adopt(shared.ring, arrived);
        }
    }

    /// Takes what the frontends have to say after answers; whether there were requests.
    pub(super) fn poll_frontend(&mut self, shared: &mut Shared<'_>) -> bool {
        let presence = &mut self.around.presence;
        for frontend in &mut presence.closing {
            // It makes no requests any more, but may have answers to send.
            frontend.poll(shared.ring, &mut Vec::new());
        }
        let Some(frontend) = &mut presence.frontend else {
            self.around.sweep(shared);
            return false;
        };
        let id = frontend.id();
        let mut requests = std::mem::take(&mut presence.requests);
        frontend.poll(shared.ring, &mut requests);
        let found = !requests.is_empty();
        for request in requests.drain(..) {
            self.request(shared, id, request);
        }
        self.around.presence.requests = requests;
        self.around.sweep(shared);
        found
    }

    /// Gives up everything that the kernel knows of this replica, because it is to be dropped.
    pub fn close(&mut self, shared: &mut Shared<'_>) {
        self.around.presence.ended = true;
        self.around.withdraw(shared);
    }

    #[must_use]
    pub fn closing(&self) -> Closing {
        let presence = &self.around.presence;
        if presence.frontend.is_none() && presence.closing.is_empty() && self.around.disk.in_flight() == 0 {
            Closing::Done
        } else {
            Closing::Waiting
        }
    }
}
