//! Work of the threads of one service: single steps, undos and the kill.
//!
//! Guarantees
//! - An undo or a kill succeeds only when nothing of its part is left. Work that began before
//!   cannot bring any of it back: see [`super::lane`].
//! - Nothing here makes the reconciler wait.

use super::filesystem;
use super::footing::{self, Footing};
use super::freeze::FreezeWatch;
use super::hindrances::Part;
use super::instance::{Done, Neighbours, OnDone, Places, StateFile, Volumes};
use super::lane::{CALLED_OFF, Haste, Lane};
use super::left;
use super::make::Volume;
use super::mount::{self, MountError, MountPlan, Place};
use super::mount_table::{DeviceId, MountTable};
use super::output::Output;
use super::place;
use super::process::{self, Identified, ProcessError, ProcessPlan, Role, Running, ServiceDirs};
use super::vip::{self, Vip};
use crate::threads::{lock, spawn};
use mainstay_control::stalls::Hindrance;
use mainstay_ha::{Event, Ready, Saved, ServiceSpec, Step};
use mainstay_types::{AddressHere, ResourceId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);
/// How often the mount of a service that runs is looked at.
const WATCH: Duration = Duration::from_secs(1);
/// Part of the time of an unmount for finding out which processes hold the mount.
const SEARCH: Duration = Duration::from_secs(5);
/// Longest run of one readiness test, after which it counts as failed and is repeated.
const READY_TEST_MAX: Duration = Duration::from_secs(10);
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(8);

/// State that the threads of one service share.
pub(super) struct Work {
    name: String,
    /// The specification that counts now, and its edition.
    spec: Mutex<(Arc<ServiceSpec>, u64)>,
    /// Revision of the specification, as the control plane counts it.
    pub revision: u64,
    pub resource: ResourceId,
    pub dirs: ServiceDirs,
    places: Places,
    volumes: Arc<dyn Volumes>,
    /// The file with the state that an agent needs again after its restart.
    file: PathBuf,
    /// The state that the machine wants to be noted; `None` before it has said so. Locked while the
    /// file is written.
    saved: Mutex<Option<Saved>>,
    running: Mutex<BTreeMap<usize, Running>>,
    /// The place that the service has mounted, or may have. Noted before the mount is made, and
    /// until it is gone.
    mounted: Mutex<Option<Place>>,
    /// Why a mount was left here, and whether that is still to be told.
    left: Mutex<Option<(String, bool)>>,
    /// The service was killed because the lease ended. An unmount then does not wait for data on
    /// its device.
    killed: AtomicBool,
    /// Where the output of each process goes, once one was started.
    outputs: Mutex<BTreeMap<usize, Arc<Output>>>,
    /// The three things that are taken away without waiting for one another (R19).
    address: Arc<Lane>,
    pub processes: Lane,
    mount: Arc<Lane>,
    neighbours: Neighbours,
}

/// Why an address is not taken.
pub(super) enum NoAddress {
    /// Another host has it.
    Held(String),
    Failed(String),
}

impl Work {
    pub fn new(
        spec: ServiceSpec,
        (revision, edition, resource): (u64, u64, ResourceId),
        dirs: ServiceDirs,
        places: &Places,
        volumes: Arc<dyn Volumes>,
        file: PathBuf,
        (running, mounted): (BTreeMap<usize, Running>, Option<Place>),
    ) -> Self {
        let mount = places.mount_lanes.of(&spec.name);
        Self {
            name: spec.name.clone(),
            spec: Mutex::new((Arc::new(spec), edition)),
            revision,
            resource,
            dirs,
            places: places.clone(),
            volumes,
            file,
            saved: Mutex::new(None),
            running: Mutex::new(running),
            mounted: Mutex::new(mounted),
            left: Mutex::default(),
            killed: AtomicBool::new(false),
            address: Arc::default(),
            neighbours: places.neighbours.clone(),
            outputs: Mutex::default(),
            processes: Lane::default(),
            mount,
        }
    }

    pub fn service(&self) -> &str {
        &self.name
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    fn spec(&self) -> Arc<ServiceSpec> {
        Arc::clone(&lock(&self.spec).0)
    }

    /// Makes work that begins from now on go by `spec`. Work under way goes on.
    pub fn amend(&self, spec: ServiceSpec, edition: u64) {
        *lock(&self.spec) = (Arc::new(spec), edition);
    }

    /// Notes what the service does; `saved` if the machine has news.
    pub fn save(&self, saved: Option<Saved>) {
        let mut newest = lock(&self.saved);
        if saved.is_some() {
            *newest = saved;
        }
        let Some(saved) = newest.clone() else { return };
        let (spec, edition) = lock(&self.spec).clone();
        let file = StateFile {
            resource: self.resource,
            revision: self.revision,
            edition,
            spec: ServiceSpec::clone(&spec),
            saved,
            running: lock(&self.running).clone(),
            mounted: lock(&self.mounted).clone(),
            writers: lock(&self.outputs).iter().map(|(index, output)| (*index, output.writer())).collect(),
        };
        // The run directory does not outlive a reboot, and neither do the processes: a rename is
        // enough.
        let write = || -> std::io::Result<()> {
            if let Some(directory) = self.file.parent() {
                std::fs::create_dir_all(directory)?;
            }
            let fresh = self.file.with_extension("new");
            std::fs::write(&fresh, serde_json::to_vec(&file)?)?;
            std::fs::rename(&fresh, &self.file)
        };
        if let Err(error) = write() {
            tracing::error!(path = %self.file.display(), %error, "cannot note what a service does; a restarted agent would start it over");
        }
    }

    /// Removes the note: an agent needs to know nothing of this service any more.
    pub fn forget(&self) {
        let mut saved = lock(&self.saved);
        *saved = None;
        self.places.disregarded.clear(&self.name);
        drop(std::fs::remove_file(&self.file));
    }

    /// Returns the lane of what `step` makes; `None` for a step that leaves nothing behind.
    pub fn lane(&self, step: Step) -> Option<&Lane> {
        match step {
            Step::ProbeAddress => None,
            Step::AddAddress => Some(self.address.as_ref()),
            Step::Mount => Some(self.mount.as_ref()),
            Step::Prepare { .. } | Step::StartProcess { .. } | Step::CheckReady { .. } => {
                Some(&self.processes)
            }
        }
    }

    /// Tells a finished step as an event for the operator; `None` for a step that no operator waits
    /// for.
    pub fn stage(&self, step: Step) -> Option<String> {
        let spec = self.spec();
        let name = |process: usize| spec.processes.get(process).map_or("", |process| &process.name);
        match step {
            Step::ProbeAddress | Step::Prepare { .. } => None,
            Step::Mount => spec.mount.as_ref().map(|mount| format!("mounted {}", mount.path)),
            Step::StartProcess { process } => Some(format!("started process {}", name(process))),
            Step::CheckReady { process } => Some(format!("process {} is ready", name(process))),
            Step::AddAddress => spec.vip.as_ref().map(|vip| format!("address {} answers", vip.address)),
        }
    }

    /// `number` is the step's on its [`Work::lane`].
    pub fn run(self: &Arc<Self>, step: Step, number: Option<u64>, on_done: &OnDone) -> Result<(), String> {
        let number = number.unwrap_or_default();
        match step {
            Step::ProbeAddress => self.probe().map_err(|(NoAddress::Held(why) | NoAddress::Failed(why))| why),
            Step::Mount => {
                self.mount(number, on_done)?;
                self.watch(number, on_done);
                Ok(())
            }
            Step::Prepare { process } => {
                let spec = self.process(process)?;
                if spec.prepare.is_empty() {
                    return Ok(());
                }
                let plan = ProcessPlan { command: spec.prepare.clone(), ..self.plan(process)? };
                let limit = Duration::from_secs(spec.start_timeout_s);
                self.command(process, &plan, Role::Prepare, number, limit, on_done)
            }
            Step::StartProcess { process } => self.start_process(process, number, on_done),
            Step::CheckReady { process } => self.check_ready(process, number, on_done),
            Step::AddAddress => {
                let (vip, interface) = self.address()?;
                let add = || vip::add(vip, &interface).map_err(words);
                self.address.make(number, add, || {
                    if let Err(error) = vip::remove(vip) {
                        tracing::warn!(%vip, %error, "an address that is not wanted any more is still there");
                    }
                })?;
                let lane = Arc::clone(&self.address);
                let (name, on_done) = (self.name.clone(), on_done.clone());
                let run_dir = self.places.run_dir.clone();
                let tell = move |why| {
                    let event = Event::Lost { step: Step::AddAddress, why, mendable: true };
                    tell_loss(&run_dir, &name, event, &on_done);
                };
                let (name, hindrances) = (self.name.clone(), self.places.hindrances.clone());
                let hinder = move |part, found| hindrances.note(&name, part, found, Instant::now());
                vip::keep(vip, &interface, move || lane.is_newest(number), tell, hinder);
                Ok(())
            }
        }
    }

    /// Takes away what `step` made. `number` is the undo's on the step's [`Work::lane`].
    pub fn undo(
        &self,
        step: Step,
        number: Option<u64>,
        force: bool,
        patience: Duration,
    ) -> Result<(), String> {
        let number = number.unwrap_or_default();
        let haste = if force { Haste::AtOnce } else { Haste::Orderly };
        match step {
            Step::ProbeAddress => Ok(()),
            Step::Mount => {
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
                        Err(why @ MountError::Waits { .. }) if self.may_leave() => {
                            self.leave(place, &why, patience)
                        }
                        detached => {
                            detached.map_err(words)?;
                            self.has_gone();
                            Ok(())
                        }
                    }
                })
            }
            Step::Prepare { process } => self
                .processes
                .undo(number, Haste::AtOnce, patience, || self.kill_role(process, Role::Prepare)),
            Step::CheckReady { process } => {
                self.processes.undo(number, Haste::AtOnce, patience, || self.kill_role(process, Role::Ready))
            }
            Step::StartProcess { process } => self.processes.undo(number, haste, patience, || {
                self.stop_process(process, force).map_err(|why| self.unless_frozen(why))
            }),
            Step::AddAddress => {
                let Some(vip) = self.vip() else { return Ok(()) };
                let vip = vip?;
                self.address.undo(number, Haste::AtOnce, patience, || vip::remove(vip).map_err(words))
            }
        }
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
        left::note(&self.places, &self.name, &place);
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
        left::forget(&self.places, &self.name);
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
    fn unless_frozen(&self, why: String) -> String {
        match lock(&self.mounted).clone().filter(Place::is_frozen) {
            Some(place) => format!("{why}; {}", MountError::Frozen { path: place.path }),
            None => why,
        }
    }

    /// Notes whether the lease has ended. Then the devices may fail at any moment, and no undo
    /// waits for data on them.
    pub fn lease_ended(&self, ended: bool) {
        self.killed.store(ended, Ordering::Release);
    }

    /// Ends every process of the service. `number` is the kill's on [`Work::processes`].
    pub fn kill(&self, number: u64) -> Result<(), String> {
        self.processes.undo(number, Haste::AtOnce, KILL_PATIENCE, || {
            process::kill_cgroup(&self.dirs.cgroup, KILL_PATIENCE)
                .map_err(|error| self.unless_frozen(words(error)))?;
            lock(&self.running).clear();
            Ok(())
        })
    }

    fn stop_process(&self, process: usize, force: bool) -> Result<(), String> {
        let spec = self.process(process)?;
        let running = lock(&self.running).get(&process).cloned();
        let patience = if force { Duration::ZERO } else { Duration::from_secs(spec.stop_timeout_s) };
        match running {
            Some(running) => {
                let signal = if force { "SIGKILL" } else { &spec.stop_signal };
                process::stop(&self.dirs, &running, signal, patience).map_err(words)?;
            }
            None => self.kill_process(process)?,
        }
        // A readiness test ends with the process that it tests.
        self.kill_role(process, Role::Ready)?;
        lock(&self.running).remove(&process);
        Ok(())
    }

    /// Ends all that belongs to a process, also what an earlier agent started.
    fn kill_process(&self, process: usize) -> Result<(), String> {
        let cgroup = self.dirs.process(&self.process(process)?.name);
        process::kill_cgroup(&cgroup, KILL_PATIENCE).map_err(words)
    }

    fn kill_role(&self, process: usize, role: Role) -> Result<(), String> {
        let name = self.process(process)?.name;
        process::kill_cgroup(&self.dirs.role(&name, role), KILL_PATIENCE).map_err(words)?;
        // An older agent may have used this other cgroup, which may belong to a process of today.
        let former = format!("{name}-{}", role.name());
        if self.spec().processes.iter().any(|other| other.name == former) {
            return Ok(());
        }
        process::kill_cgroup(&self.dirs.process(&former), KILL_PATIENCE).map_err(words)
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
        lock(&self.mounted).clone().or_else(|| left::of(&self.places, &self.name))
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

    fn mount(&self, number: u64, on_done: &OnDone) -> Result<(), String> {
        let spec = self.spec();
        let Some(mount) = &spec.mount else { return Ok(()) };
        self.places.disregarded.clear(&self.name);
        // After a restart of the agent they may run without their file system. They are ended
        // first.
        let runs = || process::is_populated(&self.dirs.cgroup);
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
            mkfs: mount.mkfs,
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

    /// Notes the mount from now on. An earlier mount elsewhere goes first, or stays noted.
    fn note(&self, place: Place) -> Result<(), String> {
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
        left::forget(&self.places, &self.name);
        *lock(&self.mounted) = Some(place);
        self.save(None);
        Ok(())
    }

    /// R28: a process begins only on its file system. If that has died, the agent asks for another
    /// node at once. The maker calls this on its lane, so no undo takes the mount away between this
    /// check and the beginning.
    fn stands(&self, step: Step, on_done: &OnDone) -> Result<(), String> {
        if self.spec().mount.is_none() {
            return Ok(());
        }
        let Some(place) = lock(&self.mounted).clone() else {
            return mainstay_ha::AtPath::Nothing.may_begin(step);
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
    fn footing(&self) -> Result<Footing, String> {
        let place = lock(&self.mounted).clone().filter(|_| self.spec().mount.is_some());
        Footing::of(&self.places.run_dir, place.as_ref()).map_err(words)
    }

    fn lost(&self, why: String, mendable: bool, on_done: &OnDone) {
        let event = Event::Lost { step: Step::Mount, why, mendable };
        tell_loss(&self.places.run_dir, &self.name, event, on_done);
    }

    /// Looks at the mount until the mount is to be taken away. Tells at every look that the mount
    /// is not what it was: the machine may not have listened the first time. `number` is the
    /// mount's on its lane.
    fn watch(self: &Arc<Self>, number: u64, on_done: &OnDone) {
        let Some(place) = lock(&self.mounted).clone() else { return };
        self.watch_freezes(number, place.clone());
        let (work, on_done) = (Arc::clone(self), on_done.clone());
        spawn("agent-mount", move || {
            while work.mount.is_newest(number) {
                match place.look_inside() {
                    Ok(at) => {
                        if let Some(why) = at.lost() {
                            work.lost(why, at.is_mendable(), &on_done);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "a mount cannot be looked at"),
                }
                std::thread::sleep(WATCH);
            }
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

    fn start_process(self: &Arc<Self>, process: usize, number: u64, on_done: &OnDone) -> Result<(), String> {
        let start = || {
            if lock(&self.running).get(&process).is_some_and(Running::is_alive) {
                return Ok(());
            }
            // A forgotten instance may have left processes that are in the way of a new one (R19).
            self.kill_process(process)?;
            self.stands(Step::StartProcess { process }, on_done)?;
            let plan = self.plan(process)?;
            let (running, mut child) = process::start(&self.dirs, &plan, self.footing()?).map_err(words)?;
            lock(&self.running).insert(process, running.clone());
            // The state file has to name the process before this agent may end and forget it.
            self.save(None);
            let (work, on_done) = (Arc::clone(self), on_done.clone());
            spawn("agent-child", move || {
                let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                work.ended(process, &running, &status, &on_done);
            });
            Ok(())
        };
        let revoke = || self.warn_of_left(self.kill_process(process));
        self.processes.make(number, start, revoke)
    }

    /// Takes in the end of a process. A process that was stopped or killed has not ended by itself,
    /// and the machine does not wait for it. Its end is told before the answer to the stop, or not
    /// at all.
    pub fn ended(&self, process: usize, ended: &Running, status: &str, on_done: &OnDone) {
        let log = process::log_path(&self.dirs, &ended.name);
        let status = format!("{status}{}; see {}", process::said(&log), log.display());
        let running = lock(&self.running);
        if running.get(&process) == Some(ended) {
            let event = Event::ProcessExited { process, status };
            tell_loss(&self.places.run_dir, &self.name, event, on_done);
        }
    }

    /// Watches a process that an earlier agent started.
    pub fn watch_process(self: &Arc<Self>, process: usize, running: &Running, on_done: &OnDone) {
        let (work, running, on_done) = (Arc::clone(self), running.clone(), on_done.clone());
        spawn("agent-adopted", move || {
            while running.is_alive() {
                std::thread::sleep(POLL);
            }
            let status = "its exit status is not known, because the agent was restarted meanwhile";
            work.ended(process, &running, status, &on_done);
        });
    }

    /// Runs a command of a process to its end.
    fn command(
        &self,
        process: usize,
        plan: &ProcessPlan,
        role: Role,
        number: u64,
        timeout: Duration,
        on_done: &OnDone,
    ) -> Result<(), String> {
        let step = match role {
            Role::Ready => Step::CheckReady { process },
            _ => Step::Prepare { process },
        };
        let begin = || {
            // A command that an earlier agent began may still run. Only the answer of this one
            // counts.
            self.kill_role(process, role)?;
            self.stands(step, on_done)?;
            process::begin(&self.dirs, plan, role, self.footing()?).map_err(words)
        };
        let revoke = || self.warn_of_left(self.kill_role(process, role));
        let started = self.processes.make(number, begin, revoke)?;
        let wanted = || self.processes.is_newest(number);
        process::finish(&self.dirs, plan, started, timeout, &wanted).map_err(|error| {
            // A readiness test is repeated, and may fail often.
            let tells = role == Role::Prepare && matches!(error, ProcessError::Failed { .. });
            let log = process::log_path(&self.dirs, &plan.name);
            format!("{error}{}", if tells { process::said(&log) } else { String::new() })
        })
    }

    fn warn_of_left(&self, result: Result<(), String>) {
        if let Err(error) = result {
            tracing::warn!(service = self.name, error, "a process that is not wanted any more still runs");
        }
    }

    fn check_ready(&self, process: usize, number: u64, on_done: &OnDone) -> Result<(), String> {
        let start = Instant::now();
        // The machine's own time limit ends this, through an undo of the process.
        while self.processes.is_newest(number) {
            // An operator may mend the test while it is repeated.
            let Some(ready) = self.process(process)?.ready else { return Ok(()) };
            let is_ready = match &ready {
                Ready::Command(command) => {
                    let plan = ProcessPlan { command: command.clone(), ..self.plan(process)? };
                    self.command(process, &plan, Role::Ready, number, READY_TEST_MAX, on_done).is_ok()
                }
                Ready::Tcp(address) => process::tcp_answers(address),
                Ready::DelayS(seconds) => start.elapsed() >= Duration::from_secs(*seconds),
            };
            if is_ready {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        Err(CALLED_OFF.into())
    }

    /// Asks whether another host has the address. If that host is a node of the cluster, its right
    /// to the address has ended, and the address may be taken.
    pub(super) fn probe(&self) -> Result<(), NoAddress> {
        let failed = |error| NoAddress::Failed(words::<vip::VipError>(error));
        let (vip, interface) = self.address().map_err(NoAddress::Failed)?;
        match vip::whose(vip).map_err(failed)? {
            AddressHere::Ours(_) => return Ok(()),
            AddressHere::Foreign(there) => return Err(failed(vip::foreign(vip, there))),
            AddressHere::No => {}
        }
        match vip::probe(vip, &interface) {
            Err(vip::VipError::InUse { vip, by }) => {
                let state = self.neighbours.state();
                let Some(node) = state.has_lost_right(vip.address.into(), by) else {
                    return Err(NoAddress::Held(words(vip::VipError::InUse { vip, by })));
                };
                tracing::warn!(%vip, node = node.name, "a node whose lease has ended still answers for an address; it is taken over");
                Ok(())
            }
            other => other.map_err(failed),
        }
    }

    fn vip(&self) -> Option<Result<Vip, String>> {
        self.spec().vip.as_ref().map(|vip| vip.address.parse().map_err(words::<vip::VipError>))
    }

    fn address(&self) -> Result<(Vip, vip::Interface), String> {
        let vip = self.vip().unwrap_or_else(|| Err("the service has no address".into()))?;
        let name = self.spec().vip.as_ref().and_then(|vip| vip.interface.clone());
        let interface = vip::find_interface(vip, name.as_deref()).map_err(words)?;
        Ok((vip, interface))
    }

    fn process(&self, index: usize) -> Result<mainstay_ha::Process, String> {
        let found = self.spec().processes.get(index).cloned();
        found.ok_or_else(|| format!("the service has no process {index}"))
    }

    /// Where the output of a process goes; a writer is started if there is none.
    fn output(&self, index: usize, name: &str) -> Result<Option<Arc<Output>>, String> {
        if self.dirs.log_writer.is_empty() {
            return Ok(None);
        }
        let mut outputs = lock(&self.outputs);
        if let Some(output) = outputs.get(&index) {
            return Ok(Some(output.clone()));
        }
        let output = Output::open(&self.dirs, name, &self.dirs.log_writer).map_err(words)?;
        let output = Arc::new(output);
        outputs.insert(index, output.clone());
        Ok(Some(output))
    }

    /// Goes on with the writer of a log that an earlier agent started.
    pub fn adopt_output(&self, index: usize, writer: &Identified) {
        let Ok(process) = self.process(index) else { return };
        if let Some(output) = Output::adopt(&self.dirs, &process.name, &self.dirs.log_writer, writer) {
            lock(&self.outputs).insert(index, Arc::new(output));
        }
    }

    fn plan(&self, index: usize) -> Result<ProcessPlan, String> {
        let spec = self.process(index)?;
        let output = self.output(index, &spec.name)?;
        let mainstay_ha::Process { name, command, user, env, .. } = spec;
        Ok(ProcessPlan { name, command, user, env, output })
    }
}

/// Tells that a service has lost a part. If Mainstay itself has silenced this node meanwhile, that
/// is told first, so that the loss never counts as a failure of the service.
fn tell_loss(run_dir: &Path, service: &str, loss: Event, on_done: &OnDone) {
    let silenced = footing::silenced_at(run_dir).map(|at| Event::Silenced { at });
    for event in silenced.into_iter().chain([loss]) {
        on_done(Done { service: service.to_owned(), event });
    }
}

/// An error with its causes, for operators.
#[allow(clippy::needless_pass_by_value)]
fn words<E: std::error::Error>(error: E) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::instance::Disregarded;
    use super::*;
    use mainstay_api::engine;
    use mainstay_types::Time;
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc::channel;

    struct NoVolumes;

    impl Volumes for NoVolumes {
        fn volume(&self, _: ResourceId, _: u16) -> Box<dyn Volume> {
            unreachable!("the service has no file system")
        }
    }

    fn made(dir: &Path, spec: &ServiceSpec, dirs: ServiceDirs) -> Work {
        let places = Places {
            cgroup_root: dir.join("cgroups"),
            state_dir: dir.join("state"),
            run_dir: dir.join("run"),
            journal_dir: None,
            neighbours: Neighbours::default(),
            hindrances: Default::default(),
            disregarded: Disregarded::default(),
            mount_lanes: left::MountLanes::default(),
            log_writer: Vec::new(),
        };
        let (file, left) = (dir.join("s.json"), (BTreeMap::new(), None));
        let about = (1, 1, ResourceId(1));
        Work::new(spec.clone(), about, dirs, &places, Arc::new(NoVolumes), file, left)
    }

    fn work(dir: &Path) -> Work {
        // No program listens on this port of this address.
        let spec = ServiceSpec::parse(
            "name='s'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\nready={tcp='127.254.254.254:9'}\n",
        );
        let dirs = ServiceDirs { cgroup: dir.join("cgroup"), logs: dir.join("logs"), log_writer: Vec::new() };
        made(dir, &spec.unwrap(), dirs)
    }

    /// A work with a file system in memory at a path of its own, which counts as on its device;
    /// gone when dropped.
    struct OnMount {
        dir: tempfile::TempDir,
        work: Arc<Work>,
        place: Place,
    }

    impl OnMount {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().canonicalize().unwrap().join("above/mounted");
            std::fs::create_dir_all(&path).unwrap();
            let spec = format!(
                "name='s'\nresource='db'\n[mount]\npath='{}'\n[[process]]\nname='p'\ncommand=['/bin/true']\nready={{tcp='127.254.254.254:9'}}\n",
                path.display()
            );
            let dirs = ServiceDirs {
                cgroup: dir.path().join("cgroup"),
                logs: dir.path().join("logs"),
                log_writer: Vec::new(),
            };
            let work = Arc::new(made(dir.path(), &ServiceSpec::parse(&spec).unwrap(), dirs));
            cover(&path);
            let device = DeviceId::from_number(std::fs::metadata(&path).unwrap().dev());
            let place = Place { path, device, read_only: false, number: None };
            work.note(place.clone()).unwrap();
            Self { dir, work, place }
        }
    }

    impl Drop for OnMount {
        fn drop(&mut self) {
            while uncover(&self.place.path) {}
        }
    }

    fn cover(path: &Path) {
        let no = None::<&str>;
        nix::mount::mount(Some("others"), path, Some("tmpfs"), nix::mount::MsFlags::empty(), no).unwrap();
    }

    fn uncover(path: &Path) -> bool {
        nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).is_ok()
    }

    #[test]
    fn a_mount_that_is_lost_is_told_again_until_it_is_taken_away() {
        let on = OnMount::new();
        let (told, tells) = channel();
        let on_done: OnDone = Arc::new(move |done: Done| told.send(done.event).unwrap_or_default());
        on.work.watch(on.work.mount.number(), &on_done);
        cover(&on.place.path);
        for _ in 0..2 {
            let event = tells.recv_timeout(Duration::from_secs(20)).expect("it is told");
            assert!(matches!(event, Event::Lost { step: Step::Mount, .. }), "{event:?}");
        }
        drop(on_done);
        on.work.mount.number();
        while tells.recv_timeout(Duration::from_secs(20)).is_ok() {}
        assert_eq!(
            tells.try_recv().unwrap_err(),
            std::sync::mpsc::TryRecvError::Disconnected,
            "it has ended"
        );
    }

    /// The silencer kills while the engine stands still, so the notes are all that tells of it.
    #[test]
    fn a_process_that_the_silencer_killed_is_told_as_silenced_and_not_as_ended_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(dir.path());
        let running = Running { name: "p".into(), pid: i32::MAX, start_ticks: 1 };
        lock(&work.running).insert(0, running.clone());
        let (told, tells) = channel();
        let on_done: OnDone = Arc::new(move |done: Done| told.send(done.event).unwrap_or_default());
        let ended = || {
            work.ended(0, &running, "signal: 9 (SIGKILL)", &on_done);
            tells.try_iter().collect::<Vec<_>>()
        };
        let exited = |event: &Event| matches!(event, Event::ProcessExited { process: 0, .. });
        let notes = |silenced: u64, barred: u64| {
            let mut notes = vec![0; 4096];
            notes[engine::SILENCED_AT..][..8].copy_from_slice(&silenced.to_le_bytes());
            notes[engine::STARTS_BARRED_AT..][..8].copy_from_slice(&barred.to_le_bytes());
            std::fs::create_dir_all(&work.places.run_dir).unwrap();
            std::fs::write(work.places.run_dir.join(engine::LEASE_FILE), notes).unwrap();
        };
        let alone = ended();
        assert!(matches!(&alone[..], [event] if exited(event)), "no engine was here: {alone:?}");
        notes(0, 0);
        let alone = ended();
        assert!(matches!(&alone[..], [event] if exited(event)), "nothing was silenced: {alone:?}");
        for (silenced, barred) in [(7, 0), (3, 7), (0, 7)] {
            notes(silenced, barred);
            let both = ended();
            let right = matches!(&both[..], [Event::Silenced { at: Time(7) }, event] if exited(event));
            assert!(right, "{both:?}");
        }
    }

    #[test]
    fn a_mount_that_cannot_go_stays_noted() {
        let on = OnMount::new();
        let inner = on.place.path.join("inner");
        std::fs::create_dir(&inner).unwrap();
        cover(&inner);
        let next = Place { path: on.dir.path().join("next"), ..on.place.clone() };
        let why = on.work.note(next.clone()).expect_err("another mount is in it");
        assert!(why.contains("inner"), "{why}");
        assert_eq!(*lock(&on.work.mounted), Some(on.place.clone()));
        assert!(uncover(&inner));
        assert_eq!(on.work.note(next.clone()), Ok(()));
        assert_eq!(*lock(&on.work.mounted), Some(next));
    }

    #[test]
    fn a_mount_with_another_in_it_or_over_it_is_left_and_named_once_its_courtesy_is_over_or_the_lease() {
        let on = OnMount::new();
        let inner = on.place.path.join("inner");
        std::fs::create_dir(&inner).unwrap();
        let undo = |force| {
            let patience = SEARCH + Duration::from_millis(200);
            on.work.undo(Step::Mount, Some(on.work.mount.number()), force, patience)
        };
        for (point, killed) in [(&inner, false), (&on.place.path, true)] {
            cover(point);
            on.work.lease_ended(killed);
            assert!(undo(false).is_err_and(|why| why.contains("unmount that first")), "it may go by itself");
            assert_eq!(undo(true), Ok(()));
            let left = on.work.left().expect("it is told");
            assert!(left.contains(&format!("others (tmpfs) at {}", point.display())), "{left}");
            assert_eq!((undo(true), on.work.left()), (Ok(()), None), "it is told once");
            assert_eq!(*lock(&on.work.mounted), Some(on.place.clone()), "it is still noted");
            assert!(uncover(point));
        }
        assert_eq!((undo(true), on.place.look().unwrap()), (Ok(()), mainstay_ha::AtPath::Nothing));
    }

    #[test]
    fn a_mount_that_was_left_is_taken_away_once_the_other_one_has_gone_unless_it_is_used_again() {
        let on = OnMount::new();
        let inner = on.place.path.join("inner");
        std::fs::create_dir(&inner).unwrap();
        cover(&inner);
        let number = on.work.mount.number();
        assert_eq!(on.work.undo(Step::Mount, Some(number), true, KILL_PATIENCE), Ok(()));
        on.work.forget();
        let places = &on.work.places;
        left::tidy(places, "s", number);
        std::thread::sleep(WATCH + POLL * 4);
        assert!(matches!(on.place.look().unwrap(), mainstay_ha::AtPath::Holds(_)), "the other one is there");
        assert!(uncover(&inner));
        let began = Instant::now();
        while left::of(places, "s").is_some() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(POLL);
        }
        assert_eq!((on.place.look().unwrap(), left::of(places, "s")), (mainstay_ha::AtPath::Nothing, None));

        let again = OnMount::new();
        let places = &again.work.places;
        left::note(places, "s", &again.place);
        // The agent starts anew, and the service comes again.
        left::tidy_all(places);
        places.mount_lanes.of("s").number();
        std::thread::sleep(WATCH * 2);
        assert_eq!(again.place.look().unwrap(), mainstay_ha::AtPath::Ours);
    }

    /// An operator has told the stop to wait for no holder, before the stop or while it waits.
    #[test]
    fn a_stop_waits_for_no_holder_that_an_operator_disregards() {
        for before in [true, false] {
            let on = OnMount::new();
            let mut holder =
                std::process::Command::new("sleep").arg("60").current_dir(&on.place.path).spawn().unwrap();
            let (began, disregarded) = (Instant::now(), on.work.places.disregarded.clone());
            if before {
                disregarded.set("s");
            } else {
                spawn("test", move || {
                    std::thread::sleep(POLL * 10);
                    disregarded.set("s");
                });
            }
            let number = on.work.mount.number();
            let undone = on.work.undo(Step::Mount, Some(number), false, Duration::from_secs(60));
            let took = began.elapsed();
            holder.kill().and_then(|()| holder.wait()).unwrap();
            assert_eq!((undone, on.place.look().unwrap()), (Ok(()), mainstay_ha::AtPath::Nothing));
            assert!(took < Duration::from_secs(20), "{took:?}");
        }
    }

    #[test]
    fn an_undo_of_a_mount_that_was_moved_elsewhere_is_no_success() {
        let on = OnMount::new();
        let (above, moved) = (on.dir.path().join("above"), on.dir.path().join("moved"));
        std::fs::rename(&above, &moved).unwrap();
        let undo = || {
            on.work.undo(
                Step::Mount,
                Some(on.work.mount.number()),
                false,
                SEARCH + Duration::from_millis(200),
            )
        };
        let undone = undo();
        std::fs::rename(&moved, &above).unwrap();
        assert!(undone.as_ref().is_err_and(|why| why.contains("moved/mounted now")), "{undone:?}");
        assert_eq!(undo(), Ok(()));
        assert_eq!(on.place.look().unwrap(), mainstay_ha::AtPath::Nothing);
    }

    /// The maker waits for its turn. The mount that it needs goes meanwhile.
    #[test]
    fn a_process_whose_mount_went_before_its_turn_does_not_begin() {
        let on = OnMount::new();
        let (entered, inside) = channel();
        let (release, released) = channel::<()>();
        let work = on.work.clone();
        let undoing = work.processes.number();
        let other = work.clone();
        let undo = std::thread::spawn(move || {
            other.processes.undo(undoing, Haste::AtOnce, Duration::from_secs(20), || {
                let _ = entered.send(());
                let _ = released.recv();
                Ok(())
            })
        });
        inside.recv().unwrap();
        let number = work.processes.number();
        let maker = std::thread::spawn(move || {
            let nobody: OnDone = Arc::new(|_| ());
            work.run(Step::StartProcess { process: 0 }, Some(number), &nobody)
        });
        // Longer than it takes to look at the mount.
        std::thread::sleep(POLL * 4);
        assert!(uncover(&on.place.path));
        drop(release);
        assert_eq!(undo.join().unwrap(), Ok(()));
        let began = maker.join().unwrap();
        assert!(began.as_ref().is_err_and(|why| why.contains("not mounted any more")), "{began:?}");
    }

    #[test]
    fn a_readiness_test_does_not_wait_for_a_device() {
        let on = OnMount::new();
        let Ok(fuse) = std::fs::File::options().read(true).write(true).open("/dev/fuse") else {
            return eprintln!("skipped: no FUSE here");
        };
        let path = on.dir.path().canonicalize().unwrap().join("hangs");
        std::fs::create_dir(&path).unwrap();
        let data =
            format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&fuse));
        let flags = nix::mount::MsFlags::empty();
        // Its server answers nothing.
        nix::mount::mount(Some("test"), &path, Some("fuse"), flags, Some(&*data)).unwrap();
        let table = MountTable::read().unwrap();
        let device = table.at(&path).expect("it is mounted").device();
        on.work.note(Place { path: path.clone(), device, ..on.place.clone() }).unwrap();
        let nobody: OnDone = Arc::new(|_| ());
        let began = Instant::now();
        for _ in 0..10 {
            assert_eq!(on.work.stands(Step::CheckReady { process: 0 }, &nobody), Ok(()));
        }
        let took = began.elapsed();
        drop(fuse);
        assert!(uncover(&path));
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[test]
    fn a_service_whose_place_hangs_keeps_neither_its_maker_nor_the_guard_waiting() {
        let Ok(fuse) = std::fs::File::options().read(true).write(true).open("/dev/fuse") else {
            return eprintln!("skipped: no FUSE here");
        };
        let dir = tempfile::tempdir().unwrap();
        let data =
            format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&fuse));
        let flags = nix::mount::MsFlags::empty();
        // Its server answers nothing.
        nix::mount::mount(Some("test"), dir.path(), Some("fuse"), flags, Some(&*data)).unwrap();
        let path = dir.path().join("db");
        let spec = format!("name='s'\nresource='db'\n[mount]\npath='{}'\n", path.display());
        let spec = ServiceSpec::parse(&spec).unwrap();
        let places = Places {
            cgroup_root: dir.path().join("cgroups"),
            state_dir: dir.path().join("state"),
            run_dir: dir.path().join("run"),
            journal_dir: None,
            neighbours: Neighbours::default(),
            hindrances: Default::default(),
            disregarded: Disregarded::default(),
            mount_lanes: left::MountLanes::default(),
            log_writer: Vec::new(),
        };
        let (answer, answers) = channel();
        let asked = path.clone();
        spawn("test", move || {
            let volumes: Arc<dyn Volumes> = Arc::new(NoVolumes);
            let instance = super::super::instance::Instance::new(
                &spec,
                (1, 1),
                ResourceId(1),
                &places,
                &volumes,
                Arc::new(|_| ()),
            );
            let _ = answer.send((instance.guard().mounts.clone(), place::resolve_soon(&asked)));
        });
        let answered = answers.recv_timeout(Duration::from_secs(5));
        drop(fuse);
        assert!(uncover(dir.path()));
        let (guarded, resolved) = answered.expect("it is answered");
        assert_eq!(guarded, [path.to_string_lossy()]);
        assert_eq!(resolved, path);
    }

    /// The machine does not undo a readiness test: it ends with the process that it tests.
    #[test]
    fn a_readiness_test_ends_with_its_process() {
        for kill in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let work = Arc::new(work(dir.path()));
            let (step, number) = (Step::CheckReady { process: 0 }, work.processes.number());
            let (ended, end) = channel();
            let tester = work.clone();
            spawn("test", move || {
                let nobody: OnDone = Arc::new(|_| ());
                drop(ended.send(tester.run(step, Some(number), &nobody)));
            });
            assert!(end.recv_timeout(POLL * 3).is_err(), "nobody answers");
            let number = work.processes.number();
            if kill {
                work.kill(number).unwrap();
            } else {
                let start = Step::StartProcess { process: 0 };
                work.undo(start, Some(number), false, Duration::from_secs(1)).unwrap();
            }
            assert_eq!(end.recv_timeout(Duration::from_secs(20)).unwrap(), Err(CALLED_OFF.into()));
        }
    }

    #[test]
    fn a_preparation_that_an_earlier_agent_left_is_ended_before_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = format!("mainstay-test-{}-left", std::process::id());
        let Some(root) = mount::cgroup2_mount().map(|mount| mount.join(root)) else { return };
        if std::fs::create_dir_all(&root).is_err() {
            eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
            return;
        }
        let dirs =
            ServiceDirs { cgroup: root.join("s"), logs: dir.path().join("logs"), log_writer: Vec::new() };
        let plan = ProcessPlan {
            name: "p".into(),
            command: vec!["sleep".into(), "1000".into()],
            user: None,
            env: BTreeMap::new(),
            output: None,
        };
        let left = process::begin(&dirs, &plan, Role::Prepare, Footing::default()).unwrap();
        let spec = ServiceSpec::parse(
            "name='s'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\nprepare=['/bin/true']\n",
        );
        let cgroup = dirs.cgroup.clone();
        let work = made(dir.path(), &spec.unwrap(), dirs.clone());
        let (work, nobody): (_, OnDone) = (Arc::new(work), Arc::new(|_| ()));
        let number = work.processes.number();
        assert_eq!(work.run(Step::Prepare { process: 0 }, Some(number), &nobody), Ok(()));
        let ended = process::finish(&dirs, &plan, left, Duration::from_secs(20), &|| true);
        assert!(matches!(ended, Err(ProcessError::Failed { .. })), "{ended:?}");
        process::remove_cgroups(&cgroup);
        process::remove_cgroups(&root);
    }

    #[test]
    fn a_process_whose_start_was_called_off_is_not_started() {
        let dir = tempfile::tempdir().unwrap();
        let work = Arc::new(work(dir.path()));
        let late = work.processes.number();
        work.kill(work.processes.number()).unwrap();
        let nobody: OnDone = Arc::new(|_| panic!("nothing was started"));
        let start = Step::StartProcess { process: 0 };
        assert_eq!(work.run(start, Some(late), &nobody), Err(CALLED_OFF.into()));
        assert!(lock(&work.running).is_empty());
    }
}
