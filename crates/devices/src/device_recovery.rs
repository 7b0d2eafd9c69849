//! Devices that an engine leaves behind when it dies: what is noted of them, and how they are given
//! up. One place for all frontends whose kernel driver can keep a device without an engine. What
//! may be done with them is decided by `left_devices.rs` of [`mainstay_silence`], whose head says
//! why.
//!
//! The engine gives a device up (R19, R20), after its users were killed ([`crate::users`]):
//! - when an epoch has another primary or is missing;
//! - when the resource is attached;
//! - when a service runs on it: the agent stops services after an engine's death, and this one
//!   could not stop while its device hangs;
//! - when this engine uses another frontend;
//! - at the latest after [`LEFT_MS_MAX`].
//!
//! Guarantee: a device is known by a note in the run directory, which is there
//! before the device can be used, and by a random number, the *cookie*, which the kernel keeps with
//! the device. So an old note never names a new device. A request that is asked again is harmless:
//! the caller never got an answer, and no other node wrote.

use crate::users::Users;
use mainstay_silence::{Fate, LEFT_MS_MAX, fate};
use mainstay_types::{Epoch, ResourceId, VolumeId};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How long the kernel may take to notice that the engine before has ended.
pub const DEATH_WAIT: Duration = Duration::from_secs(10);
/// Between two looks whether it has.
pub const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A device that was made. `D`: how the kernel's driver names it, the cookie included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left<D> {
    pub device: D,
    /// The last one in which this node was primary, as far as no other primary has been since the
    /// device was served.
    pub epoch: Epoch,
    note: PathBuf,
}

impl<D: Display> Left<D> {
    /// Written under another name first: an engine may die at any time.
    fn write(&self) -> io::Result<()> {
        if let Some(directory) = self.note.parent() {
            fs::create_dir_all(directory)?;
        }
        let fresh = self.note.with_extension("new");
        fs::write(&fresh, format!("{} {}\n", self.device, self.epoch.0))?;
        fs::rename(fresh, &self.note)
    }

    /// The device is gone.
    pub fn forget(&self) {
        // Should it stay, it names a device that is gone, or another one with another cookie.
        let _ = fs::remove_file(&self.note);
    }
}

/// The devices of one frontend that an engine before this one has left.
pub struct LeftDevices<D> {
    directory: PathBuf,
    left: BTreeMap<(ResourceId, VolumeId), Left<D>>,
    users: Users,
    /// When they are given up.
    until: Instant,
}

impl<D: Display + FromStr> LeftDevices<D> {
    /// Looks what is noted in a directory of the frontend's own, below the run directory.
    #[must_use]
    pub fn new(run_dir: &Path, name: &str) -> Self {
        let directory = run_dir.join(name);
        let left = read_notes(&directory);
        let until = Instant::now() + Duration::from_millis(LEFT_MS_MAX);
        Self { directory, left, users: Users::new(run_dir), until }
    }

    /// Notes a device that is to be made, or was made and cannot be used yet.
    ///
    /// # Errors
    /// When it cannot be written: then the device must not be used.
    pub fn note(
        &self,
        (resource, volume): (ResourceId, VolumeId),
        device: D,
        epoch: Epoch,
    ) -> io::Result<Left<D>> {
        let note = self.directory.join(format!("{}.{}", resource.0, volume.0));
        let left = Left { device, epoch, note };
        left.write()?;
        Ok(left)
    }

    /// Takes the left device of a volume out of the list. From now on the caller takes it over or
    /// ends it.
    pub fn take(&mut self, resource: ResourceId, volume: VolumeId) -> Option<Left<D>> {
        self.left.remove(&(resource, volume))
    }

    /// Takes the control plane's record of a resource. `own`: this node is primary, and the
    /// resource is attached nowhere. Returns whether the left devices of the resource are of the
    /// past from now on.
    fn record(&mut self, resource: ResourceId, epoch: Epoch, own: bool) -> bool {
        let of_resource = self.left.iter_mut().filter(|((owner, _), _)| *owner == resource);
        let mut past = false;
        for (_, left) in of_resource {
            match fate(left.epoch, epoch, own) {
                Fate::Waits => {}
                Fate::Past => past = true,
                Fate::Follows => {
                    left.epoch = epoch;
                    // Should it not be written, the next engine finds an epoch missing and gives
                    // the device up.
                    if let Err(error) = left.write() {
                        tracing::warn!(device = %left.device, %error, "cannot note the epoch of a left device");
                    }
                }
            }
        }
        past
    }

    fn take_first(&mut self, of: Option<ResourceId>) -> Option<((ResourceId, VolumeId), Left<D>)> {
        let key = *self.left.keys().find(|(owner, _)| of.is_none_or(|resource| resource == *owner))?;
        self.left.remove(&key).map(|left| (key, left))
    }
}

/// Duties of a frontend's driver for left devices.
pub trait LeavesDevices {
    type Device: Display + FromStr;
    type Error: Error;

    fn left(&mut self) -> &mut LeftDevices<Self::Device>;

    /// Waits until the kernel has noticed that no engine serves a device any more.
    ///
    /// # Errors
    /// When an engine still serves the device, and so keeps it.
    fn await_death(&mut self, left: &Left<Self::Device>) -> Result<(), Self::Error>;

    /// Makes everything in a device fail and takes the device away, if it is still the one that was
    /// noted. For a device that may have been in use, see [`fail`](Self::fail).
    fn end(&mut self, left: &Left<Self::Device>);

    /// [`end`](Self::end)s a device of a dead engine, when none of its users can see it fail.
    fn fail(&mut self, resource: ResourceId, left: &Left<Self::Device>) {
        self.left().users.kill(resource);
        self.end(left);
    }

    /// When [`give_up_all`](Self::give_up_all) is due, if at all.
    fn deadline(&mut self) -> Option<Instant> {
        let left = self.left();
        (!left.left.is_empty()).then_some(left.until)
    }

    /// The control plane's record of a resource: its epoch, and whether the devices are this node's
    /// own.
    fn record(&mut self, resource: ResourceId, epoch: Epoch, own: bool) {
        if self.left().record(resource, epoch, own) {
            self.give_up(resource);
        }
    }

    /// Fails what is left of a resource.
    fn give_up(&mut self, resource: ResourceId) {
        self.give_up_of(Some(resource));
    }

    /// Fails everything that is left.
    fn give_up_all(&mut self) {
        self.give_up_of(None);
    }

    #[doc(hidden)]
    fn give_up_of(&mut self, of: Option<ResourceId>) {
        while let Some(((resource, volume), left)) = self.left().take_first(of) {
            let device = &left.device;
            tracing::warn!(%resource, %volume, %device, "a left device is given up");
            match self.await_death(&left) {
                Ok(()) => self.fail(resource, &left),
                Err(error) => tracing::error!(%device, %error, "a left device is not given up"),
            }
        }
    }
}

/// Devices of one frontend that are noted in `run_dir`: those of a living engine, and those that a
/// dead one has left. `name`: the frontend's directory there.
#[must_use]
pub fn noted<D: Display + FromStr>(run_dir: &Path, name: &str) -> Vec<D> {
    read_notes(&run_dir.join(name)).into_values().map(|left| left.device).collect()
}

/// A number that no other device has.
#[must_use]
pub fn new_cookie() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn read_notes<D: FromStr>(directory: &Path) -> BTreeMap<(ResourceId, VolumeId), Left<D>> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| read_note(&entry.path())).collect()
}

fn read_note<D: FromStr>(path: &Path) -> Option<((ResourceId, VolumeId), Left<D>)> {
    let (resource, volume) = path.file_name()?.to_str()?.split_once('.')?;
    let text = fs::read_to_string(path).ok()?;
    let (device, epoch) = text.trim_end().rsplit_once(' ')?;
    let left =
        Left { device: device.parse().ok()?, epoch: Epoch(epoch.parse().ok()?), note: path.to_owned() };
    Some(((ResourceId(resource.parse().ok()?), VolumeId(volume.parse().ok()?)), left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::GuardEntry;
    use std::cell::RefCell;

    const KEY: (ResourceId, VolumeId) = (ResourceId(7), VolumeId(0));

    fn fresh_dir(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("mainstay-left-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    /// A driver that does as it is told and notes what that was.
    struct Driver {
        left: LeftDevices<u64>,
        alive: bool,
        ended: RefCell<Vec<u64>>,
        /// Directory in which a killed service leaves a file, as in a cgroup.
        cgroup: PathBuf,
        killed_before: RefCell<Vec<bool>>,
    }

    impl LeavesDevices for Driver {
        type Device = u64;
        type Error = io::Error;

        fn left(&mut self) -> &mut LeftDevices<u64> {
            &mut self.left
        }

        fn await_death(&mut self, _: &Left<u64>) -> Result<(), io::Error> {
            if self.alive { Err(io::Error::other("it lives")) } else { Ok(()) }
        }

        fn end(&mut self, left: &Left<u64>) {
            self.ended.borrow_mut().push(left.device);
            self.killed_before.borrow_mut().push(self.cgroup.join("cgroup.kill").exists());
            left.forget();
        }
    }

    /// One device, left in epoch 4.
    fn driver(directory: &Path) -> Driver {
        let before = LeftDevices::<u64>::new(directory, "left");
        before.note(KEY, 5, Epoch(4)).expect("noted");
        Driver {
            left: LeftDevices::new(directory, "left"),
            alive: false,
            ended: RefCell::default(),
            cgroup: directory.join("cgroup"),
            killed_before: RefCell::default(),
        }
    }

    /// A service on the device.
    fn use_it(driver: &Driver, directory: &Path) {
        fs::create_dir_all(&driver.cgroup).expect("a directory");
        let cgroups = vec![driver.cgroup.to_str().expect("text").into()];
        let entry = GuardEntry { resource: KEY.0, cgroups, ..GuardEntry::default() };
        Users::new(directory).note(&[entry]).expect("noted");
    }

    #[test]
    fn a_left_device_waits_only_while_no_epoch_is_missing() {
        let directory = fresh_dir("epochs");
        let waits = |records: &[(u64, bool)]| {
            let mut driver = driver(&directory);
            for (epoch, primary) in records {
                driver.record(ResourceId(7), Epoch(*epoch), *primary);
                driver.record(ResourceId(8), Epoch(90), false);
            }
            let left = driver.left().take(KEY.0, KEY.1).map(|left| left.epoch.0);
            assert_eq!(left.is_none(), *driver.ended.borrow() == [5], "it waits, or has failed");
            left
        };
        assert_eq!(waits(&[(4, true)]), Some(4), "nothing has happened yet");
        assert_eq!(waits(&[(3, false)]), Some(4), "of the past");
        assert_eq!(waits(&[(5, false)]), None, "another primary");
        assert_eq!(waits(&[(6, true)]), None, "another node may have been primary in 5");
        assert_eq!(waits(&[(5, true), (5, false)]), None);
        assert_eq!(waits(&[(4, true), (5, true), (5, true), (6, true)]), Some(6));
        let noted = read_notes::<u64>(&directory.join("left")).remove(&KEY).map(|left| left.epoch);
        assert_eq!(noted, Some(Epoch(6)), "the next engine has to know");
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn a_left_device_that_is_given_up_fails_unless_an_engine_serves_it() {
        let directory = fresh_dir("given-up");
        let mut first = driver(&directory);
        first.alive = true;
        assert!(first.deadline().is_some());
        first.give_up(ResourceId(8));
        assert!(first.deadline().is_some(), "another resource");
        first.give_up_all();
        assert!(first.ended.borrow().is_empty() && first.deadline().is_none());
        let mut second = driver(&directory);
        second.give_up_all();
        assert_eq!(*second.ended.borrow(), [5]);
        assert!(read_notes::<u64>(&directory.join("left")).is_empty());
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn users_are_killed_before_a_left_device_fails_and_only_then() {
        let directory = fresh_dir("users");
        let ways: [fn(&mut Driver); 3] = [
            |driver| driver.record(KEY.0, Epoch(7), true),
            |driver| driver.give_up(KEY.0),
            LeavesDevices::give_up_all,
        ];
        for give_up in ways {
            let mut driver = driver(&directory);
            use_it(&driver, &directory);
            driver.record(KEY.0, Epoch(5), true);
            assert!(!driver.cgroup.join("cgroup.kill").exists(), "it may go on");
            give_up(&mut driver);
            assert_eq!(*driver.killed_before.borrow(), [true]);
            fs::remove_dir_all(&directory).expect("removed");
        }
        let mut served = driver(&directory);
        use_it(&served, &directory);
        served.alive = true;
        served.give_up_all();
        assert!(!served.cgroup.join("cgroup.kill").exists(), "its engine lives, and so do its users");
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn notes_are_found_again_and_noise_is_not() {
        let directory = fresh_dir("notes");
        let devices = LeftDevices::<u64>::new(&directory, "left");
        let left = devices.note((ResourceId(7), VolumeId(3)), u64::MAX, Epoch(4)).expect("written");
        for (name, text) in [("7.4", "five 6"), ("8.x", "1 2"), ("noise", "1 2"), ("7.5", "1"), ("9.0", "")] {
            fs::write(directory.join("left").join(name), text).expect("written");
        }
        let found = read_notes(&directory.join("left"));
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(found, BTreeMap::from([((ResourceId(7), VolumeId(3)), left)]));
    }
}
