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

/// Fate of left devices when their resource is served.
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

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_devices::descriptor_holder::DescriptorHolder;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::sync::Arc;

    const R: ResourceId = ResourceId(7);
    const AT: Time = Time(5_000_000);
    const SIZE: u64 = 1 << 20;

    struct Lab {
        left: LeftDevices,
        admin: DeviceAdmin,
        dir: PathBuf,
        /// Ends with the last descriptor of the device.
        device: std::io::PipeReader,
    }

    /// One volume, left in epoch 3.
    fn lab(name: &str) -> Lab {
        let dir = std::env::temp_dir().join(format!("mainstay-left-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let (device, writer) = std::io::pipe().expect("a pipe");
        let writer: Fd = Arc::new(OwnedFd::from(writer));
        let of_volume = LeftResource {
            resource: R,
            name: "db".into(),
            served: Epoch(3),
            sizes: vec![SIZE],
            flushes_refused: false,
        };
        let noted = Succession { at: AT, until: AT.plus_ms(1000), resources: vec![of_volume] };
        let files = BTreeMap::from([(R, vec![Arc::clone(&writer), writer])]);
        let left = LeftDevices::new(AT, noted, files);
        let holder = DescriptorHolder::new(&dir);
        let admin = DeviceAdmin::start(None, &dir, holder, |_| ()).expect("a thread");
        Lab { left, admin, dir, device }
    }

    impl Lab {
        fn record(&mut self, epoch: u64, own: bool) {
            self.left.record(&self.admin, &self.dir, R, Epoch(epoch), own);
        }

        fn goes_on(&mut self, epoch: u64, size: u64, silenced: Time) -> Option<Epoch> {
            match self.left.take(R, Some(Epoch(epoch)), &[size], silenced)? {
                Taken::GoesOn { served, .. } => Some(served),
                Taken::Past(_) => None,
            }
        }

        /// Returns when the device has ended.
        fn end(mut self) {
            self.device.read_to_end(&mut Vec::new()).expect("the end");
            drop(self.admin);
            std::fs::remove_dir_all(&self.dir).expect("removed");
        }
    }

    #[test]
    fn left_devices_go_on_while_no_epoch_is_missing() {
        let mut lab = lab("follows");
        lab.record(4, true);
        lab.record(5, true);
        assert_eq!(lab.goes_on(5, SIZE, Time(0)), Some(Epoch(3)), "the epoch in which they were served");
        assert_eq!(lab.goes_on(5, SIZE, Time(0)), None, "once");
        lab.end();
    }

    #[test]
    fn left_devices_do_not_go_on_after_another_primary_a_silencing_or_with_other_sizes() {
        for (records, epoch, size, silenced) in [
            (&[(4, false)][..], 5, SIZE, Time(0)),
            (&[(5, true)], 5, SIZE, Time(0)),
            (&[], 4, SIZE, Time(0)),
            (&[(4, true)], 4, 2 * SIZE, Time(0)),
            (&[(4, true)], 4, SIZE, AT),
        ] {
            let mut lab = lab("past");
            records.iter().for_each(|(epoch, own)| lab.record(*epoch, *own));
            assert_eq!(lab.goes_on(epoch, size, silenced), None, "{records:?} {epoch} {size} {silenced:?}");
            lab.end();
        }
    }

    /// R20
    #[test]
    fn left_devices_that_are_not_served_are_given_up_after_a_while() {
        let mut lab = lab("late");
        assert_eq!(lab.left.deadline(), Some(AT.plus_ms(LEFT_MS_MAX)));
        lab.left.give_up_all(&lab.admin, &lab.dir);
        assert_eq!(lab.left.deadline(), None);
        lab.end();
    }
}
