//! Work of the threads of one service: single steps, undos and the kill.
//!
//! Guarantees
//! - An undo or a kill succeeds only when nothing of its part is left. Work that began before
//!   cannot bring any of it back: see [`super::lane`].
//! - Nothing here makes the reconciler wait.

mod address;
mod file_system;
mod hook;
mod pages;
mod probes;
mod processes;
#[cfg(test)]
mod tests;

pub(super) use self::address::NoAddress;
use self::address::{EarlyProbe, Free};
use self::pages::PageChecks;
pub(super) use self::pages::Reliance;
pub(super) use self::processes::KILL_PATIENCE;

use super::command::{Role, ServiceDirs};
use super::footing;
use super::instance::{Done, Neighbours, OnDone, Places, StateFile, Volumes};
use super::lane::{Haste, Lane};
use super::mount::Place;
use super::output::Outputs;
use super::runners::Note;
use crate::private;
use crate::threads::lock;
use mainstay_ha::{Event, Saved, ServiceSpec, Step};
use mainstay_types::ResourceId;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the mount of a service that runs is looked at.
const WATCH: Duration = Duration::from_secs(1);

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
    /// The processes that were started and not stopped, as their runners know them.
    running: Mutex<BTreeMap<usize, Note>>,
    /// The place that the service has mounted, or may have. Noted before the mount is made, and
    /// until it is gone.
    mounted: Mutex<Option<Place>>,
    /// Why a mount was left here, and whether that is still to be told.
    left: Mutex<Option<(String, bool)>>,
    /// The service was killed because the lease ended. An unmount then does not wait for data on
    /// its device.
    killed: AtomicBool,
    /// Where the output of each process goes, once one was started.
    outputs: Outputs,
    /// The three things that are taken away without waiting for one another (R19).
    address: Arc<Lane>,
    /// The addresses that the last probe found free or here.
    free_addresses: Mutex<BTreeMap<IpAddr, Free>>,
    /// The probe that was begun when the last process was started.
    early_probe: Mutex<Option<EarlyProbe>>,
    /// The addresses that were taken last, in words.
    taken_addresses: Mutex<Vec<String>>,
    /// The addresses that hooks were told to be here, each with its interface.
    told_addresses: Mutex<BTreeMap<String, String>>,
    /// The last line of the hook before the start.
    hook_said: Mutex<String>,
    /// The processes whose arguments depend on whether pages can tear.
    pages: PageChecks,
    pub processes: Lane,
    mount: Arc<Lane>,
    neighbours: Neighbours,
}

impl Work {
    pub fn new(
        spec: ServiceSpec,
        (revision, edition, resource): (u64, u64, ResourceId),
        dirs: ServiceDirs,
        places: &Places,
        volumes: Arc<dyn Volumes>,
        file: PathBuf,
        (running, mounted): (BTreeMap<usize, Note>, Option<Place>),
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
            free_addresses: Mutex::default(),
            early_probe: Mutex::default(),
            taken_addresses: Mutex::default(),
            told_addresses: Mutex::default(),
            hook_said: Mutex::default(),
            pages: PageChecks::default(),
            neighbours: places.neighbours.clone(),
            outputs: Outputs::default(),
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
            addresses: lock(&self.told_addresses).clone(),
            writers: self.outputs.writers(),
            pages: self.pages.known(),
        };
        // The run directory does not outlive a reboot, and neither do the processes: a rename is
        // enough.
        let write = || -> std::io::Result<()> {
            if let Some(directory) = self.file.parent() {
                private::directory(directory)?;
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
            Step::StartHook | Step::Prepare { .. } | Step::StartProcess { .. } | Step::CheckReady { .. } => {
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
            Step::StartHook => self.hook_said(),
            Step::Mount => spec.mount.as_ref().map(|mount| format!("mounted {}", mount.path)),
            Step::StartProcess { process } => {
                Some(format!("started process {}{}", name(process), self.pages_words(process)))
            }
            Step::CheckReady { process } => Some(format!("process {} is ready", name(process))),
            Step::AddAddress => self.addresses_answer(),
        }
    }

    /// `number` is the step's on its [`Work::lane`].
    pub fn run(self: &Arc<Self>, step: Step, number: Option<u64>, on_done: &OnDone) -> Result<(), String> {
        let number = number.unwrap_or_default();
        match step {
            // Their answers are richer: see [`super::instance`].
            Step::ProbeAddress | Step::AddAddress => Err("it has a way of its own".into()),
            Step::StartHook => self.run_start_hook(number),
            Step::Mount => {
                self.mount(number, on_done)?;
                self.watch(number, on_done);
                Ok(())
            }
            Step::Prepare { process } => self.prepare(process, number, on_done),
            Step::StartProcess { process } => self.start_process(process, number, on_done),
            Step::CheckReady { process } => self.check_ready(process, number, on_done),
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
            Step::StartHook => self.end_start_hook(number, patience),
            Step::Mount => self.undo_mount(number, haste, patience),
            Step::Prepare { process } => self
                .processes
                .undo(number, Haste::AtOnce, patience, || self.kill_role(process, Role::Prepare)),
            Step::CheckReady { process } => {
                self.processes.undo(number, Haste::AtOnce, patience, || self.kill_role(process, Role::Ready))
            }
            Step::StartProcess { process } => self.processes.undo(number, haste, patience, || {
                self.stop_process(process, haste).map_err(|why| self.unless_frozen(why))
            }),
            Step::AddAddress => self.undo_addresses(number, patience),
        }
    }

    /// Notes whether the lease has ended. Then the devices may fail at any moment, and no undo
    /// waits for data on them.
    pub fn lease_ended(&self, ended: bool) {
        self.killed.store(ended, Ordering::Release);
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
