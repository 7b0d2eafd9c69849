//! Devices that the engine before this one has left for it, until their resources are served again.
//!
//! ```text
//!   left ── the resource is served here, no epoch is missing ──▶ served again
//!     └──── given up: another primary, silenced, 30 s ─────────▶ users are killed, then the device fails
//! ```
//!
//! Guarantees
//! - Devices go on only if no other node can have been primary since they were served
//!   ([`mainstay_silence::fate`]), and only if nothing was silenced on this node since then.
//!   Otherwise a file system on them would belong to the past.
//! - The pause is bounded (R20): devices that are not served after [`LEFT_MS_MAX`] are given up.

use crate::devices::{DeviceAdmin, DeviceJob};
use crate::frontend::{LeftFuse, fuse_dir};
use crate::ring::Fd;
use mainstay_devices::succession::{LeftResource, Succession};
use mainstay_silence::{Fate, LEFT_MS_MAX, fate, may_take_over};
use mainstay_types::{Epoch, ResourceId, Time};
use std::collections::BTreeMap;
use std::path::Path;

struct Waiting {
    name: String,
    /// Epoch in which the devices were served.
    served: Epoch,
    /// Last epoch in which this node was primary, as far as no other primary has been.
    followed: Epoch,
    sizes: Vec<u64>,
    left: LeftFuse,
}

/// See the top of this file.
#[derive(Default)]
pub struct LeftDevices {
    /// When the engine before this one had answered everything.
    at: Time,
    waiting: BTreeMap<ResourceId, Waiting>,
    deadline: Option<Time>,
}

/// What becomes of left devices when their resource is served.
pub enum Taken {
    GoesOn { served: Epoch, left: LeftFuse },
    Past(LeftFuse),
}

impl LeftDevices {
    /// `files`: what the holder was given, for each resource the connection and then the devices.
    #[must_use]
    pub fn new(now: Time, noted: Succession, mut files: BTreeMap<ResourceId, Vec<Fd>>) -> Self {
        let waiting = noted.resources.into_iter().filter_map(|left| {
            let LeftResource { resource, name, served, sizes, flushes_refused } = left;
            let mut files = files.remove(&resource)?.into_iter();
            let left = LeftFuse { connection: files.next()?, devices: files.collect(), flushes_refused };
            Some((resource, Waiting { name, served, followed: served, sizes, left }))
        });
        Self { at: noted.at, waiting: waiting.collect(), deadline: Some(now.plus_ms(LEFT_MS_MAX)) }
    }

    /// Names of the resources, whose mounts are not stale.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.waiting.values().map(|waiting| waiting.name.as_str())
    }

    /// When what waits is to be given up.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline.filter(|_| !self.waiting.is_empty())
    }

    /// The control plane's record has come.
    pub fn record(
        &mut self,
        devices: &DeviceAdmin,
        run_dir: &Path,
        resource: ResourceId,
        epoch: Epoch,
        own: bool,
    ) {
        let Some(waiting) = self.waiting.get_mut(&resource) else { return };
        match fate(waiting.followed, epoch, own) {
            Fate::Waits => {}
            Fate::Follows => waiting.followed = epoch,
            Fate::Past => self.give_up(devices, run_dir, resource),
        }
    }

    /// The resource is served in this epoch, with volumes of these sizes. `silenced`: when
    /// something on this node was silenced last.
    pub fn take(
        &mut self,
        resource: ResourceId,
        epoch: Option<Epoch>,
        sizes: &[u64],
        silenced: Time,
    ) -> Option<Taken> {
        let Waiting { served, followed, sizes: told, left, .. } = self.waiting.remove(&resource)?;
        let follows = epoch.is_some_and(|epoch| may_take_over(followed, epoch));
        let same = told == sizes && left.devices.len() == sizes.len();
        if follows && same && silenced < self.at {
            return Some(Taken::GoesOn { served, left });
        }
        tracing::warn!(%resource, follows, same, "devices that the engine before has left cannot go on");
        Some(Taken::Past(left))
    }

    fn give_up(&mut self, devices: &DeviceAdmin, run_dir: &Path, resource: ResourceId) {
        if let Some(Waiting { name, left, .. }) = self.waiting.remove(&resource) {
            give_up_left(devices, run_dir, resource, &name, left);
        }
    }

    /// Gives everything up that waits.
    pub fn give_up_all(&mut self, devices: &DeviceAdmin, run_dir: &Path) {
        while let Some((&resource, _)) = self.waiting.first_key_value() {
            self.give_up(devices, run_dir, resource);
        }
    }
}

/// Has devices fail once their users are killed.
pub fn give_up_left(devices: &DeviceAdmin, run_dir: &Path, resource: ResourceId, name: &str, left: LeftFuse) {
    devices.submit(DeviceJob::GiveUpLeft { resource, dir: fuse_dir(run_dir, name), left });
}
