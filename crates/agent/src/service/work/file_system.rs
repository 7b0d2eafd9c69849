//! The file system of a service: the mount, its undo, and the watch over it.
//!
//! Guarantees
//! - The mount is noted before it is there, and until it is gone (R27).
//! - No process of the service begins unless its file system was found in place just before (R28).
//! - A mount that is not what it was is told at every look until it is taken away.

use super::{KILL_PATIENCE, WATCH, Work, tell_loss, words};
use crate::service::bounded::Bounded;
use crate::service::cgroup;
use crate::service::filesystem;
use crate::service::footing::Footing;
use crate::service::freeze::FreezeWatch;
use crate::service::hindrances::Part;
use crate::service::instance::OnDone;
use crate::service::lane::Haste;
use crate::service::left_mounts;
use crate::service::make::Volume;
use crate::service::mount::{self, MountError, MountPlan, Place};
use crate::service::mount_table::{DeviceId, MountTable};
use crate::service::place;
use crate::service::runners;
use crate::threads::{lock, spawn};
use mainstay_control::stalls::Hindrance;
use mainstay_ha::{AtPath, Event, MountWatch, Room, Step};
use mainstay_types::Time;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a file system may take to answer a look.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

static LOOKS: Bounded = Bounded::new();

/// Looks at a mount and at its room; `None` without an answer in time. A file system that hangs
/// keeps one thread, however often it is looked at.
fn look_at(place: &Place) -> Option<(Result<AtPath, MountError>, Option<Room>)> {
    let looks = place.clone();
    LOOKS.ask(&place.path, Instant::now() + LOOK_PATIENCE, move || {
        let at = looks.look_inside();
        // Another file system at the path says nothing of this one.
        let ours = matches!(at, Ok(AtPath::Ours | AtPath::Holds(_)));
        (at, ours.then(|| filesystem::room(&looks.path)).flatten())
    })
}

/// Part of the time of an unmount for finding out which processes hold the mount.
pub(super) const SEARCH: Duration = Duration::from_secs(5);

impl Work {
    pub(super) fn mount(&self, number: u64, on_done: &OnDone) -> Result<(), String> {
        let spec = self.spec();
        let Some(mount) = &spec.mount else { return Ok(()) };
        self.places.disregarded.clear(&self.name);
        // After a restart of the agent they may run without their file system. They are ended
        // first.
        let runs =
            || runners::cgroups(&self.spec(), &self.dirs).iter().any(|cgroup| cgroup::is_populated(cgroup));
        let failed = |error: MountError| {
            // Another attempt here would find the same, and another node may have the place.
            if error.is_of_the_place() && !runs() && self.mount.is_newest(number) {
                self.lost(error.to_string(), false, on_done);
            }
            words(error)
        };
        let Some((place, device)) = self.place().map_err(failed)? else { return Ok(()) };
        if let Some(why) = place::refusal(&place.path, &self.places, &self.places.mounted(self.service())) {
            return Err(failed(MountError::Place { path: place.path, why }));
        }
        let plan = MountPlan {
            device,
            place,
            fstype: mount.fstype.clone(),
            options: mount.options.clone(),
            mkfs: mount.mkfs.then(|| mount.mkfs_options.clone()),
            hide_files: mount.hide_files,
        };
        let wanted = || self.mount.is_newest(number);
        let volume: Box<dyn Volume> = self.volumes.volume(self.resource, mount.volume);
        self.mount.make(
            number,
            || {
                // Noted before it is there, so that the next agent knows what to take away.
                self.mounts(plan.place.clone()).map_err(failed)?;
                mount::ensure_mounted(&plan, runs(), &*volume, &wanted).map_err(failed)?;
                self.note(plan.place.as_mounted().map_err(words)?)?;
                self.fill(&plan.place.path, &plan.device, 0);
                Ok(())
            },
            || {
                if let Err(error) = plan.place.detach(KILL_PATIENCE) {
                    tracing::warn!(%error, "a mount that is not wanted any more is still there");
                }
            },
        )
    }

    /// Looks at the mount until the mount is to be taken away. Tells at every look that the mount
    /// is not what it was: the machine may not have listened the first time. `number` is the
    /// mount's on its lane.
    pub(super) fn watch(self: &Arc<Self>, number: u64, on_done: &OnDone) {
        let Some(place) = lock(&self.mounted).clone() else { return };
        self.watch_freezes(number, place.clone());
        let (work, on_done) = (Arc::clone(self), on_done.clone());
        spawn("agent-mount", move || {
            let (start, mut watch) = (Instant::now(), MountWatch::default());
            let path = place.path.to_string_lossy().into_owned();
            let volume = work.spec().mount.as_ref().map_or(0, |mount| mount.volume);
            let note = |part, found| work.places.hindrances.note(&work.name, part, found, Instant::now());
            while work.mount.is_newest(number) {
                let now = Time(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
                let looked = look_at(&place);
                let news = watch.look(now, looked.as_ref().map(|(_, room)| *room));
                match looked {
                    Some((Ok(at), _)) => {
                        if let Some(why) = at.lost() {
                            work.lost(why, at.is_mendable(), &on_done);
                        }
                    }
                    Some((Err(error), _)) => tracing::warn!(%error, "a mount cannot be looked at"),
                    None => {}
                }
                if let Some(ms) = news.given_up {
                    let why = format!("the file system at {path} has not answered for {} s", ms / 1000);
                    work.lost(why, false, &on_done);
                }
                note(Part::Room, news.full.then(|| Hindrance::Full { path: path.clone(), volume }));
                note(Part::Answers, news.silent.then(|| Hindrance::Silent { path: path.clone() }));
                std::thread::sleep(WATCH);
            }
            note(Part::Room, None);
            note(Part::Answers, None);
        });
    }

    /// Watches for freezes of the file system. A thread of its own touches nothing on the file
    /// system's device, which may hang.
    fn watch_freezes(self: &Arc<Self>, number: u64, place: Place) {
        let work = Arc::clone(self);
        spawn("agent-freeze", move || {
            let path = place.path.to_string_lossy().into_owned();
            let mut freezes = FreezeWatch::new(place.path);
            let note =
                |found| work.places.hindrances.note(&work.name, Part::FileSystem, found, Instant::now());
            while work.mount.is_newest(number) {
                note(freezes.is_frozen().then(|| Hindrance::Frozen { path: path.clone() }));
                std::thread::sleep(WATCH);
            }
            note(None);
        });
    }

    /// Takes the mount away. Waits for processes that hold it, unless it is to go at once.
    pub(super) fn undo_mount(&self, number: u64, haste: Haste, patience: Duration) -> Result<(), String> {
        let force = haste == Haste::AtOnce;
        let deadline = Instant::now() + patience.saturating_sub(SEARCH);
        self.mount.undo(number, haste, patience, || {
            let Some(place) = self.place_left()? else { return Ok(()) };
            let gone = self.is_gone(&place);
            let hasty = || self.places.disregarded.has(&self.name);
            if !(force || gone || hasty()) {
                let wanted = || self.mount.is_newest(number) && !hasty();
                match place.ensure_unmounted(deadline, &wanted) {
                    Err(MountError::CalledOff) if hasty() && self.mount.is_newest(number) => {}
                    unmounted => {
                        unmounted.map_err(words)?;
                        self.has_gone();
                        return Ok(());
                    }
                }
            }
            let killed = self.killed.load(Ordering::Acquire);
            let patience = if killed || gone { Duration::ZERO } else { patience };
            match place.detach(patience) {
                Err(why @ MountError::Waits { .. }) if self.may_leave() => self.leave(place, &why, patience),
                detached => {
                    detached.map_err(words)?;
                    self.has_gone();
                    Ok(())
                }
            }
        })
    }

    /// Whether the device under a mount is not the one that this node serves now. Then the mount is
    /// cut off from its volume.
    fn is_gone(&self, place: &Place) -> bool {
        let spec = self.spec();
        let link = spec.mount.as_ref().map(|mount| self.device_link(mount));
        link.is_some_and(|link| DeviceId::of(&link).is_ok_and(|device| device != place.device))
    }

    /// Whether a mount that others keep here may stay. A rollback puts other content on its device
    /// and has to wait; nothing else does.
    fn may_leave(&self) -> bool {
        let state = self.neighbours.state();
        state.resources.get(&self.resource).is_none_or(|resource| resource.rollback.is_none())
    }

    /// Leaves a mount to the users that have mounted something in it or over it (R27). No process
    /// of the service runs on it, and all written data is on its device. The device fails as soon
    /// as this node does not serve it any more (R19). So the service may go on elsewhere.
    fn leave(&self, place: Place, why: &MountError, patience: Duration) -> Result<(), String> {
        place.flush_all(patience).map_err(words)?;
        left_mounts::note(&self.places, &self.name, &place);
        *lock(&self.mounted) = Some(place);
        self.save(None);
        let left = format!("does not wait for its mount: {why}");
        // The news is told once, however often the mount is given up.
        let mut told = lock(&self.left);
        let is_new = told.as_ref().is_none_or(|(before, _)| *before != left);
        if is_new {
            tracing::warn!(service = self.name, "{left}");
            *told = Some((left, true));
        }
        Ok(())
    }

    /// Notes that the service's mount is not there any more.
    fn has_gone(&self) {
        *lock(&self.left) = None;
        *lock(&self.mounted) = None;
        left_mounts::forget(&self.places, &self.name);
        self.save(None);
    }

    /// News of a mount that was left here, once.
    pub fn left(&self) -> Option<String> {
        let mut left = lock(&self.left);
        let (why, new) = left.as_mut()?;
        std::mem::take(new).then(|| why.clone())
    }

    /// Adds to an error that the file system is frozen: a process that waits for the thaw does not
    /// end even when it is killed.
    pub(super) fn unless_frozen(&self, why: String) -> String {
        match lock(&self.mounted).clone().filter(Place::is_frozen) {
            Some(place) => format!("{why}; {}", MountError::Frozen { path: place.path }),
            None => why,
        }
    }

    fn device_link(&self, mount: &mainstay_ha::Mount) -> PathBuf {
        self.places.run_dir.join("dev").join(&self.spec().resource).join(mount.volume.to_string())
    }

    /// Where its file system is to be on this node, and on what device.
    fn place(&self) -> Result<Option<(Place, PathBuf)>, MountError> {
        let spec = self.spec();
        let Some(mount) = &spec.mount else { return Ok(None) };
        let link = self.device_link(mount);
        let no_device = |source| MountError::NoDevice { link: link.clone(), source };
        let device = std::fs::canonicalize(&link).map_err(no_device)?;
        let path = PathBuf::from(&mount.path);
        let resolved = place::resolve(&path);
        let path = resolved.map_err(|source| MountError::MountPoint { path, source })?;
        let read_only = mount::is_read_only(&mount.options);
        let place =
            Place { path, device: DeviceId::of(&device).map_err(no_device)?, read_only, number: None };
        Ok(Some((place, device)))
    }

    /// Mount that the service has made, or left here the last time.
    fn noted(&self) -> Option<Place> {
        lock(&self.mounted).clone().or_else(|| left_mounts::of(&self.places, &self.name))
    }

    /// Returns the place that the service may have mounted: as noted, or as a mount would be made
    /// now if an older agent has noted nothing.
    fn place_left(&self) -> Result<Option<Place>, String> {
        if let Some(place) = self.noted() {
            place.refuse_elsewhere().map_err(words)?;
            return Ok(Some(place));
        }
        match self.place() {
            Ok(found) => Ok(found.map(|(place, _)| place)),
            // If its device or its path is gone, a mount at the path that the service names may be
            // its own.
            Err(error) => {
                let spec = self.spec();
                let Some(mount) = &spec.mount else { return Ok(None) };
                let table = MountTable::read().map_err(|error| words(MountError::Table(error)))?;
                let left = table.iter().find(|mounted| {
                    mounted.point == Path::new(&mount.path)
                        && mounted.fstype == mount.fstype
                        && mounted.source.starts_with("/dev/")
                });
                left.map_or(Ok(None), |left| {
                    Err(format!("it is not known whether {} is the service's: {error}", left.words()))
                })
            }
        }
    }

    /// Notes the mount from now on. An earlier mount elsewhere goes first, or stays noted.
    pub(super) fn note(&self, place: Place) -> Result<(), String> {
        self.mounts(place).map_err(words)
    }

    fn mounts(&self, place: Place) -> Result<(), MountError> {
        let left = self.noted().filter(|left| !left.is_same(&place));
        if let Some(left) = left {
            // A mount that was left to others is on a device that is gone. There is no data to wait
            // for.
            let patience = if self.is_gone(&left) { Duration::ZERO } else { KILL_PATIENCE };
            left.detach(patience)?;
        }
        // The mount is used again, or was just taken away.
        left_mounts::forget(&self.places, &self.name);
        *lock(&self.mounted) = Some(place);
        self.save(None);
        Ok(())
    }

    /// R28: a process begins only on its file system. If that has died, the agent asks for another
    /// node at once. The maker calls this on its lane, so no undo takes the mount away between this
    /// check and the beginning.
    pub(super) fn stands(&self, step: Step, on_done: &OnDone) -> Result<(), String> {
        if self.spec().mount.is_none() {
            return Ok(());
        }
        let Some(place) = lock(&self.mounted).clone() else {
            return AtPath::Nothing.may_begin(step);
        };
        // A readiness test is repeated many times a second. It would keep the device busy to flush
        // all data to it each time.
        let closely = !matches!(step, Step::CheckReady { .. });
        let at = if closely { place.look_closely() } else { place.look() };
        let at = at.map_err(words)?;
        let may = at.may_begin(step);
        if let (Err(why), false) = (&may, at.is_mendable()) {
            self.lost(why.clone(), false, on_done);
        }
        may
    }

    /// For the last look of a process itself, after this one.
    pub(super) fn footing(&self) -> Result<Footing, String> {
        let place = lock(&self.mounted).clone().filter(|_| self.spec().mount.is_some());
        Footing::of(&self.places.run_dir, place.as_ref()).map_err(words)
    }

    fn lost(&self, why: String, mendable: bool, on_done: &OnDone) {
        let event = Event::Lost { step: Step::Mount, why, mendable };
        tell_loss(&self.places.run_dir, &self.name, event, on_done);
    }

    /// The volumes of the resource have these sizes now.
    pub fn volumes_grew(&self, volumes: &[u64]) {
        let spec = self.spec();
        let Some(mount) = &spec.mount else { return };
        let Some(&bytes) = volumes.get(usize::from(mount.volume)) else { return };
        let Ok(Some((place, device))) = self.place() else { return };
        // A file system that is not mounted now is looked at when it is.
        if place.look().is_ok_and(|at| at.lost().is_none()) {
            self.fill(&place.path, &device, bytes);
        }
    }

    /// Fills the device with the file system. If the file system stays small, the service runs all
    /// the same.
    fn fill(&self, path: &Path, device: &Path, bytes: u64) {
        if !self.spec().mount.as_ref().is_some_and(|mount| mount.grow) {
            return;
        }
        let (service, path_shown) = (&self.name, path.display());
        match filesystem::fill(path, device, bytes) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                tracing::info!(service, path = %path_shown, bytes, "the file system is as large as its volume")
            }
            // No operator waits for this unless the volume has grown.
            Err(error) if bytes == 0 => {
                tracing::debug!(service, path = %path_shown, error = words(error), "a file system keeps its size")
            }
            Err(error) => {
                tracing::warn!(service, path = %path_shown, error = words(error), "the file system keeps its size")
            }
        }
    }
}
