//! The devices of a resource on this node: offered when they are wanted, withdrawn when they are
//! not. They are wanted on a client, and on a primary that serves unless the resource is attached
//! elsewhere.

use crate::devices::{Device, DeviceJob, DeviceOutcome};
use crate::frontend::nbd::Arrived;
use crate::frontend::{
    self, Errno, Extent, Frontend, FrontendId, FrontendParts, FrontendRequest, FrontendResult, LeftFuse,
    Quiet,
};
use crate::left_devices::{Taken, give_up_left};
use crate::open_replica::ShardParts;
use crate::ring::{Completion, Ring};
use mainstay_api::engine::DeviceStatus;
use mainstay_codec::nbd::Export;
use mainstay_devices::succession::LeftResource;
use mainstay_silence::{Devices, Free, HeldErrors, Wanted};
use mainstay_types::{Epoch, FrontendKind, ResourceId, VolumeId};

/// Resource whose devices are offered.
#[derive(Clone, Debug)]
pub struct Offered {
    pub resource: ResourceId,
    /// The resource's.
    pub name: String,
    /// The devices answer with errors when the node's lease has ended (R19).
    pub leased: bool,
}

/// Something that was read from a device is not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotQuiet;

/// An answer that waits.
struct Held {
    frontend: FrontendId,
    tag: u64,
    errno: Errno,
}

/// Frontend and devices of one resource: all that stands between the resource and the kernel.
pub struct ResourceDevices {
    of: Offered,
    wanted: Wanted,
    /// Epoch in which this node is primary; `None` if it is a client.
    epoch: Option<Epoch>,
    /// Writes may be answered before they are durable, so users must flush.
    flushes_needed: bool,
    /// Bytes of each volume.
    sizes: Vec<u64>,
    /// Something has changed of which the agent is to be told.
    changed: bool,
    /// Why there are no devices although they are wanted; not said yet, and said last.
    failures: Vec<String>,
    failure: Option<String>,
    frontend: Option<Box<dyn Frontend>>,
    /// The frontend is there unless this is [`Devices::None`].
    state: Devices,
    devices: Vec<(VolumeId, Device)>,
    /// Epoch in which an engine before this one served these devices, if it has left them.
    continues: Option<Epoch>,
    /// Sizes that the devices were made with, or were told since, in bytes.
    told_sizes: Vec<u64>,
    /// Answers with errors and withdrawals that wait until no service can see the devices fail.
    held_errors: HeldErrors<Held>,
    /// Frontends that the kernel has not let go of yet.
    closing: Vec<Box<dyn Frontend>>,
    /// Kept to be filled again.
    requests: Vec<FrontendRequest>,
}

impl ResourceDevices {
    #[must_use]
    pub fn new(of: Offered) -> Self {
        Self {
            of,
            wanted: Wanted::No,
            epoch: None,
            flushes_needed: false,
            sizes: Vec::new(),
            changed: false,
            failures: Vec::new(),
            failure: None,
            frontend: None,
            state: Devices::None,
            devices: Vec::new(),
            continues: None,
            told_sizes: Vec::new(),
            held_errors: HeldErrors::default(),
            closing: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Whether there are to be devices. Nothing is done about it before [`offer`](Self::offer) or
    /// [`withdraw`](Self::withdraw).
    pub fn want(&mut self, wanted: bool, epoch: Option<Epoch>) {
        self.wanted.set(wanted);
        self.epoch = epoch;
    }

    /// Whether flushes are needed. Returns whether all of them will come, if there are devices; see
    /// [`Frontend::flushes`].
    pub fn need_flushes(&mut self, needed: bool) -> Option<bool> {
        self.flushes_needed = needed;
        self.flushes()
    }

    /// Whether all flushes will come, if there are devices.
    pub fn flushes(&mut self) -> Option<bool> {
        let needed = self.flushes_needed;
        self.frontend.as_mut().map(|frontend| frontend.flushes(needed))
    }

    /// Bytes of each volume. To be said before devices are offered; later see
    /// [`resized`](Self::resized).
    pub fn set_sizes(&mut self, sizes: &[u64]) {
        self.sizes = sizes.to_vec();
    }

    /// Whether something has changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Takes the failures since the last call, in words.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// Why there are no devices.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn fenced(&self, shared: &ShardParts<'_>) -> bool {
        self.of.leased && shared.fenced
    }

    fn failed(&mut self, reason: String) {
        tracing::error!(resource = %self.of.resource, reason);
        self.changed = true;
        self.failure = Some(reason.clone());
        self.failures.push(reason);
    }

    /// Makes the devices, unless they are there.
    pub fn offer(&mut self, shared: &mut ShardParts<'_>) {
        if !self.state.offer(self.wanted, self.fenced(shared)) {
            return;
        }
        let id = FrontendId(*shared.next_frontend);
        *shared.next_frontend += 1;
        let left = shared.left.take(self.of.resource, self.epoch, &self.sizes, shared.guard.silenced());
        self.continues = match left {
            Some(Taken::GoesOn { served, .. }) => Some(served),
            _ => None,
        };
        let left = match left {
            Some(Taken::GoesOn { left, .. }) => Some(left),
            Some(Taken::Past(left)) => {
                give_up_left(shared.devices, shared.run_dir, self.of.resource, &self.of.name, left);
                None
            }
            None => None,
        };
        let mut frontend = match self.make(shared, id, left) {
            Ok(frontend) => frontend,
            Err(reason) => return self.failed(reason),
        };
        self.failure = None;
        // Before the first request.
        frontend.flushes(self.flushes_needed);
        frontend.start(shared.ring);
        let resource = self.of.resource;
        shared.frontends.insert(id, resource);
        for volume in (0..self.sizes.len()).map(|volume| VolumeId(volume as u16)) {
            let attachment = frontend.attachment(volume);
            shared.devices.submit(DeviceJob::Attach { resource, volume, attachment });
        }
        self.frontend = Some(frontend);
        self.told_sizes.clone_from(&self.sizes);
        self.state.made(self.sizes.len());
    }

    /// A volume has this size now. Its device follows as soon as it is there.
    pub fn resized(&mut self, shared: &mut ShardParts<'_>, volume: VolumeId, bytes: u64) {
        let Some(size) = self.sizes.get_mut(usize::from(volume.0)) else { return };
        *size = bytes;
        self.changed = true;
        tracing::info!(resource = %self.of.resource, %volume, bytes, "a volume has another size");
        if let Some(frontend) = &mut self.frontend {
            frontend.resized(volume, bytes);
            self.resize_device(shared, volume);
        }
    }

    fn resize_device(&mut self, shared: &mut ShardParts<'_>, volume: VolumeId) {
        let place = usize::from(volume.0);
        let devices = &self.devices;
        let Some((_, device)) = devices.iter().find(|(of, _)| *of == volume) else { return };
        let Some(told) = self.told_sizes.get_mut(place).filter(|told| **told != self.sizes[place]) else {
            return;
        };
        *told = self.sizes[place];
        match device.resizing() {
            Ok(Some(resizing)) => {
                let path = device.path().to_owned();
                shared.devices.submit(DeviceJob::Resize { path, resizing, bytes: *told });
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(resource = %self.of.resource, %volume, %error, "the device keeps its size")
            }
        }
    }

    fn make(
        &self,
        shared: &ShardParts<'_>,
        id: FrontendId,
        left: Option<LeftFuse>,
    ) -> Result<Box<dyn Frontend>, String> {
        let kind = shared.choice.kind.ok_or_else(|| format!("no device: {}", shared.choice.reason))?;
        let parts = FrontendParts {
            id,
            resource: self.of.resource,
            name: &self.of.name,
            epoch: self.epoch,
            run_dir: shared.run_dir,
            volumes: &self.sizes,
            pool: shared.pool,
            left,
        };
        frontend::make(kind, parts).map_err(|error| format!("cannot make a device: {}", chain(&error)))
    }

    /// Epoch in which an engine before this one served these devices, if they are the same ones.
    #[must_use]
    pub fn continues(&self) -> Option<Epoch> {
        self.continues.filter(|_| self.state.is_offered())
    }

    /// Whether the devices can be left to a successor as they are now: all are there, of a kind
    /// that can be left, or none is there.
    #[must_use]
    pub fn can_be_left(&self, kind: Option<FrontendKind>) -> bool {
        let here = self.state.is_offered() && kind == Some(FrontendKind::Fuse);
        (here || self.state.is_none()) && self.closing.is_empty()
    }

    /// Reads no request any more, or reads them again.
    pub fn quiesce(&mut self, ring: &mut Ring, quiet: bool) {
        let Some(frontend) = &mut self.frontend else { return };
        if quiet { frontend.quiesce(ring) } else { frontend.go_on(ring) }
    }

    /// The note for a successor, once everything that was read is answered.
    ///
    /// # Errors
    /// While something is not answered yet.
    pub fn to_leave(&self) -> Result<Option<LeftResource>, NotQuiet> {
        let Some(frontend) = &self.frontend else { return Ok(None) };
        let quiet = frontend.is_quiet().filter(|_| self.state.is_offered());
        let (Some(Quiet { flushes_refused }), Some(served)) = (quiet, self.epoch) else {
            return Err(NotQuiet);
        };
        let (resource, name, sizes) = (self.of.resource, self.of.name.clone(), self.told_sizes.clone());
        Ok(Some(LeftResource { resource, name, served, sizes, flushes_refused }))
    }

    /// Takes the devices away, once no service can see it. The core or the frontend answers
    /// requests that are still in them with errors, so no user can hold this up (R20).
    pub fn withdraw(&mut self, shared: &mut ShardParts<'_>) {
        if !self.state.withdraw() {
            return;
        }
        self.continues = None;
        let free = self.held_errors.withdraw(|| unseen(shared, self.of.resource));
        self.fail(shared, free);
    }

    fn fail(&mut self, shared: &mut ShardParts<'_>, free: Free<Held>) {
        for Held { frontend, tag, errno } in free.answers {
            self.complete(shared, frontend, tag, Err(errno));
        }
        if !free.withdraw || !self.state.fail() {
            return;
        }
        if let Some(frontend) = &mut self.frontend {
            frontend.fail_all(shared.ring, libc::EIO);
        }
        self.changed = true;
        if self.state.detach() {
            self.detach(shared);
        }
    }

    fn detach(&mut self, shared: &mut ShardParts<'_>) {
        let devices = self.devices.drain(..).map(|(_, device)| device).collect();
        shared.devices.submit(DeviceJob::Detach { resource: self.of.resource, devices });
    }

    /// A device job of this resource has ended. Whether that was the last one that was missing.
    pub fn device_outcome(&mut self, shared: &mut ShardParts<'_>, outcome: DeviceOutcome) -> bool {
        let mut complete = false;
        self.changed = true;
        match outcome {
            DeviceOutcome::Attached { volume, device, .. } => {
                complete = self.state.attached();
                self.devices.push((volume, device));
                self.devices.sort_by_key(|(volume, _)| *volume);
                self.resize_device(shared, volume);
            }
            DeviceOutcome::Opened { volume, opened, .. } => {
                // It is there: it stays until its attachments have ended.
                if let Some(frontend) = &mut self.frontend {
                    frontend.opened(shared.ring, volume, opened);
                }
            }
            DeviceOutcome::AttachFailed { volume, error, .. } => {
                self.state.attached();
                self.failed(format!("volume {} got no device: {error}", volume.0));
            }
            DeviceOutcome::Detached { errors, .. } => {
                for error in errors {
                    tracing::warn!(resource = %self.of.resource, %error, "a device was left to its last user");
                }
                self.state.detached();
                if let Some(mut frontend) = self.frontend.take() {
                    frontend.detach();
                    self.closing.push(frontend);
                }
                self.sweep(shared);
                self.offer(shared);
            }
        }
        if self.state.is_to_go(self.wanted, self.fenced(shared)) {
            self.withdraw(shared);
        }
        complete
    }

    /// A completion of one of the frontends.
    pub fn frontend_completed(
        &mut self,
        shared: &mut ShardParts<'_>,
        id: FrontendId,
        completion: Completion,
        requests: &mut Vec<FrontendRequest>,
    ) {
        let current = self.frontend.iter_mut();
        if let Some(frontend) = current.chain(&mut self.closing).find(|frontend| frontend.id() == id) {
            frontend.completed(shared.ring, completion, requests);
        }
        self.sweep(shared);
    }

    fn sweep(&mut self, shared: &mut ShardParts<'_>) {
        self.closing.retain(|frontend| {
            let closed = frontend.is_closed();
            if closed {
                shared.frontends.remove(&frontend.id());
            }
            !closed
        });
    }

    /// Answers a request. An error waits until no service can see it.
    pub fn answer(&mut self, shared: &mut ShardParts<'_>, id: FrontendId, tag: u64, result: FrontendResult) {
        match result {
            // The request is wrong then, and not the device.
            Ok(_) | Err(libc::EINVAL) => self.complete(shared, id, tag, result),
            Err(errno) => {
                let held = Held { frontend: id, tag, errno };
                let free = self.held_errors.answer(held, || unseen(shared, self.of.resource));
                self.fail(shared, free);
            }
        }
    }

    fn complete(&mut self, shared: &mut ShardParts<'_>, id: FrontendId, tag: u64, result: FrontendResult) {
        let current = self.frontend.iter_mut();
        if let Some(frontend) = current.chain(&mut self.closing).find(|frontend| frontend.id() == id) {
            frontend.complete(shared.ring, tag, result);
        }
    }

    /// Answers a request for [`Extent`]s.
    pub fn answer_extents(
        &mut self,
        shared: &mut ShardParts<'_>,
        id: FrontendId,
        tag: u64,
        extents: &[Extent],
    ) {
        if let Some(frontend) = self.frontend.as_mut().filter(|frontend| frontend.id() == id) {
            frontend.complete_extents(shared.ring, tag, extents);
        }
    }

    /// Fails the devices that are to fail: the guard has silenced this node, so no service can see
    /// it (R19).
    pub fn silenced(&mut self, shared: &mut ShardParts<'_>) {
        let free = self.held_errors.unseen();
        self.fail(shared, free);
    }

    /// Fails the devices that waited for SIGKILL: the guard has sent it to all services on the
    /// resource.
    pub fn killed(&mut self, shared: &mut ShardParts<'_>) {
        let free = self.held_errors.killed();
        self.fail(shared, free);
    }

    /// Exports that clients of the NBD server may choose.
    #[must_use]
    pub fn exports(&self) -> Vec<Export> {
        match &self.frontend {
            Some(frontend) if self.wanted == Wanted::Yes => frontend.exports(),
            _ => Vec::new(),
        }
    }

    /// Takes over a client of the NBD server that has chosen one of the exports.
    pub fn adopt(&mut self, shared: &mut ShardParts<'_>, arrived: Arrived) {
        self.changed = true;
        if let Some(frontend) = &mut self.frontend {
            frontend.adopt(shared.ring, arrived);
        }
    }

    /// Takes what the frontends have to say after answers: requests of this one.
    /// [`polled`](Self::polled) follows.
    pub fn poll(&mut self, shared: &mut ShardParts<'_>) -> Option<(FrontendId, Vec<FrontendRequest>)> {
        for frontend in &mut self.closing {
            // It makes no requests any more, but may have answers to send.
            frontend.poll(shared.ring, &mut Vec::new());
        }
        let Some(frontend) = &mut self.frontend else {
            self.sweep(shared);
            return None;
        };
        let mut requests = std::mem::take(&mut self.requests);
        frontend.poll(shared.ring, &mut requests);
        Some((frontend.id(), requests))
    }

    /// Gives the list back, which is empty again.
    pub fn polled(&mut self, shared: &mut ShardParts<'_>, requests: Vec<FrontendRequest>) {
        self.requests = requests;
        self.sweep(shared);
    }

    /// Gives up everything that the kernel knows, because the owner is to be dropped.
    pub fn close(&mut self, shared: &mut ShardParts<'_>) {
        self.wanted = Wanted::Never;
        self.withdraw(shared);
    }

    /// Whether the kernel knows nothing any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state.is_none() && self.closing.is_empty()
    }

    /// Whether there are no devices that anyone could use.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.state.is_none()
    }

    /// One for each volume, once all are there.
    #[must_use]
    pub fn device_list(&self) -> Vec<DeviceStatus> {
        if !self.state.is_offered() || self.wanted != Wanted::Yes {
            return Vec::new();
        }
        let users =
            |volume| self.frontend.as_ref().map(|frontend| frontend.users(volume)).unwrap_or_default();
        let status = |(volume, device): &(VolumeId, Device)| {
            let atomic = device.atomic_write_max();
            DeviceStatus {
                volume: *volume,
                path: device.path().display().to_string(),
                users: users(*volume),
                atomic_write_max: *atomic.as_ref().unwrap_or(&0),
                not_atomic: atomic.err(),
            }
        };
        self.devices.iter().map(status).collect()
    }
}

/// Whether no service can see a device of the resource fail. If one could, the guard is asked to
/// kill it.
fn unseen(shared: &ShardParts<'_>, resource: ResourceId) -> bool {
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
