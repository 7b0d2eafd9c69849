//! One service on this node: the threads that carry out the steps of its `mainstay_ha` machine,
//! which is the reconciler's.
//!
//! Guarantees
//! - The state that the machine wants persisted is in `<run>/services/<name>.json` before its next
//!   effect is carried out.
//! - Every step, undo and kill runs on a thread of its own and answers exactly once, through
//!   [`Done`]. Carrying out an effect waits for none of them.
//! - Effects get their turns in the order in which the machine gave them, however late their
//!   threads are (see [`super::lane`]).

use super::cgroup;
use super::command::{Identified, ServiceDirs};
use super::hindrances::Hindrances;
use super::holders::{self, Held, NotKnown, Search};
use super::left_mounts::{self, MountLanes};
use super::make::Volume;
use super::mount::Place;
use super::mount_table::DeviceId;
use super::output::Outputs;
use super::place;
use super::runners::{self, Note};
use super::vip::{self, Vip};
use super::work::{KILL_PATIENCE, NoAddress, Reliance, Work};
use crate::hooks::Hooks;
use crate::threads::{lock, spawn};
use mainstay_api::engine::{DeviceUser, GuardAddress, GuardEntry};
use mainstay_control::State;
use mainstay_control::reconciler::Adopted;
use mainstay_ha::{AtPath, Effect, Event, Saved, ServiceSpec, Step};
use mainstay_types::ResourceId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);

/// News from a service's threads for the reconciler.
#[derive(Debug)]
pub struct Done {
    pub service: String,
    pub event: Event,
}

/// Called on the services' threads.
pub type OnDone = Arc<dyn Fn(Done) + Send + Sync>;

/// Where a node keeps its services.
#[derive(Clone, Debug)]
pub struct Places {
    /// cgroup below which every service gets its own.
    pub cgroup_root: PathBuf,
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    /// Where the journals of new replicas go, if not in the pool.
    pub journal_dir: Option<PathBuf>,
    /// See [`ServiceDirs::log_writer`].
    pub log_writer: Vec<String>,
    pub neighbours: Neighbours,
    pub hindrances: Hindrances,
    pub disregarded: Disregarded,
    pub mount_lanes: MountLanes,
    /// The hooks of this node, if it has any.
    pub hooks: Option<Hooks>,
}

/// Services whose next stop on this node does not wait for holders of their file systems, because
/// an operator has said so.
#[derive(Clone, Debug, Default)]
pub struct Disregarded(Arc<Mutex<BTreeSet<String>>>);

impl Disregarded {
    pub fn set(&self, service: &str) {
        lock(&self.0).insert(service.to_owned());
    }

    #[must_use]
    pub fn has(&self, service: &str) -> bool {
        lock(&self.0).contains(service)
    }

    pub fn clear(&self, service: &str) {
        lock(&self.0).remove(service);
    }
}

/// The cluster as this node knows it, for steps that have to tell a node from a stranger.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(Arc<Mutex<Arc<State>>>);

impl Neighbours {
    pub fn set(&self, state: &Arc<State>) {
        *lock(&self.0) = Arc::clone(state);
    }

    #[must_use]
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&lock(&self.0))
    }
}

impl Places {
    /// Where the processes of a service live.
    pub(crate) fn dirs(&self, service: &str) -> ServiceDirs {
        ServiceDirs {
            cgroup: self.cgroup_root.join(service),
            logs: self.state_dir.join("services").join(service),
            log_writer: self.log_writer.clone(),
        }
    }

    /// Returns the mounts of all services but this one on this node, as agents have noted them.
    /// Some may not be there.
    #[must_use]
    pub fn mounted(&self, but: &str) -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(self.run_dir.join("services")).into_iter().flatten().flatten();
        let files = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "json"));
        let noted = files.filter_map(|path| noted(&path)).filter(|file| file.spec.name != but);
        noted.filter_map(|file| Some((file.spec.name, file.mounted?.path))).collect()
    }
}

/// Knowledge of the cluster about volumes.
pub trait Volumes: Send + Sync {
    /// Returns one volume as it is at this moment.
    fn volume(&self, resource: ResourceId, volume: u16) -> Box<dyn Volume>;
}

/// State of a service that an agent needs again after its restart.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StateFile {
    pub resource: ResourceId,
    pub revision: u64,
    /// See `mainstay_control::state::Service`; 0 of an older agent.
    #[serde(default)]
    pub edition: u64,
    pub spec: ServiceSpec,
    pub saved: Saved,
    /// The processes that were started and not stopped.
    pub running: BTreeMap<usize, Note>,
    /// The place that the service has mounted, or may have.
    #[serde(default)]
    pub mounted: Option<Place>,
    /// The addresses that hooks were told to be here, each with its interface.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, String>,
    /// The writers of the logs of its processes.
    #[serde(default)]
    pub writers: BTreeMap<usize, Identified>,
    /// Starts of processes whose arguments depend on whether pages can tear.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pages: BTreeMap<usize, Reliance>,
}

pub struct Instance {
    work: Arc<Work>,
    on_done: OnDone,
    guard: GuardEntry,
    /// Steps that are being run, by ticket.
    steps: BTreeMap<u64, Step>,
}

impl Instance {
    /// A service of which nothing runs here.
    #[must_use]
    pub fn new(
        spec: &ServiceSpec,
        (revision, edition): (u64, u64),
        resource: ResourceId,
        places: &Places,
        volumes: &Arc<dyn Volumes>,
        on_done: OnDone,
    ) -> Self {
        Self::with(
            spec.clone(),
            (revision, edition, resource),
            (BTreeMap::new(), None),
            places,
            volumes,
            on_done,
        )
    }

    fn with(
        spec: ServiceSpec,
        about: (u64, u64, ResourceId),
        left: (BTreeMap<usize, Note>, Option<Place>),
        places: &Places,
        volumes: &Arc<dyn Volumes>,
        on_done: OnDone,
    ) -> Self {
        let dirs = places.dirs(&spec.name);
        let guard = guard_of(&spec, about.2, &dirs, places, left.1.as_ref());
        let file = state_file(places, &spec.name);
        Self {
            work: Arc::new(Work::new(spec, about, dirs, places, Arc::clone(volumes), file, left)),
            on_done,
            guard,
            steps: BTreeMap::new(),
        }
    }

    /// All services that an earlier agent process left, with the processes that still run.
    #[must_use]
    pub fn load_all(
        places: &Places,
        volumes: &Arc<dyn Volumes>,
        on_done: &OnDone,
    ) -> (BTreeMap<String, Self>, BTreeMap<String, Adopted>) {
        let (mut found, mut adopted) = (BTreeMap::new(), BTreeMap::new());
        left_mounts::tidy_all(places);
        let Ok(entries) = std::fs::read_dir(places.run_dir.join("services")) else {
            return (found, adopted);
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let file: StateFile = match std::fs::read(&path).map(|bytes| serde_json::from_slice(&bytes)) {
                Ok(Ok(file)) => file,
                error => {
                    tracing::error!(path = %path.display(), ?error, "cannot read what a service was doing; its cgroup is killed when the service is next decided on");
                    continue;
                }
            };
            let name = file.spec.name.clone();
            let (revision, edition, resource) = (file.revision, file.edition, file.resource);
            let left = Adopted { spec: file.spec.clone(), revision, edition, resource, saved: file.saved };
            adopted.insert(name.clone(), left);
            let about = (revision, edition, resource);
            let left = (file.running.clone(), file.mounted);
            let instance = Self::with(file.spec, about, left, places, volumes, on_done.clone());
            instance.work.adopt_addresses(file.addresses);
            instance.work.adopt_pages(file.pages);
            for (&index, writer) in &file.writers {
                instance.work.adopt_output(index, writer);
            }
            for (index, note) in file.running {
                instance.work.adopt_process(index, note, on_done);
            }
            found.insert(name, instance);
        }
        (found, adopted)
    }

    /// The volumes of its resource have these sizes now. What follows happens on a thread of its
    /// own.
    pub fn volumes_grew(&self, volumes: Vec<u64>) {
        let work = Arc::clone(&self.work);
        spawn("agent-grow", move || work.volumes_grew(&volumes));
    }

    /// Goes by another specification from now on, which needs no restart. It is noted with what the
    /// machine wants noted next.
    pub fn amend(&self, spec: ServiceSpec, edition: u64) {
        self.work.amend(spec, edition);
    }

    /// Returns the entry for the engine's guard: what it silences when the lease ends.
    #[must_use]
    pub fn guard(&self) -> &GuardEntry {
        &self.guard
    }

    /// Returns the stage that the service reached with this event, in words for the operator.
    pub fn stage(&mut self, event: &Event) -> Option<String> {
        if let Event::AddressHeld { ticket, held } = event {
            let step = self.steps.remove(ticket).filter(|_| held.free > 0);
            return step.filter(|step| *step == Step::AddAddress).and_then(|step| self.work.stage(step));
        }
        let Event::StepDone { ticket, result } = event else { return None };
        let step = self.steps.remove(ticket);
        let reached = step.filter(|_| result.is_ok()).and_then(|step| self.work.stage(step));
        reached.or_else(|| self.work.left())
    }

    /// Carries out what the machine wants.
    pub fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Persist(saved) => self.work.save(Some(saved)),
            Effect::Run { ticket, step, .. } => {
                self.work.lease_ended(false);
                self.steps.insert(ticket, step);
                let number = self.work.lane(step).map(|lane| lane.number());
                match step {
                    Step::ProbeAddress => return self.addresses(ticket, |work, _| work.probe()),
                    Step::AddAddress => {
                        let number = number.unwrap_or_default();
                        return self
                            .addresses(ticket, move |work, on_done| work.add_addresses(number, on_done));
                    }
                    _ => {}
                }
                self.thread(ticket, move |work, on_done| work.run(step, number, on_done));
            }
            Effect::Undo { ticket, step, force, timeout_ms } => {
                self.steps.retain(|_, running| *running != step);
                let number = self.work.lane(step).map(|lane| lane.number());
                let patience = Duration::from_millis(timeout_ms).saturating_sub(POLL);
                self.thread(ticket, move |work, _| {
                    let undone = work.undo(step, number, force, patience);
                    if step == Step::Mount && undone.is_ok() {
                        left_mounts::tidy(work.places(), work.service(), number.unwrap_or_default());
                    }
                    undone
                });
            }
            Effect::Kill { ticket } => {
                self.work.lease_ended(true);
                let number = self.work.processes.number();
                self.thread(ticket, move |work, _| work.kill(number));
            }
            Effect::Probe { ticket, process, timeout_ms } => self.ask(ticket, process, timeout_ms),
            // The reconciler handles reports.
            Effect::Report(_) => {}
        }
    }

    /// Silences what an instance that no agent remembers may have left (R19): its addresses, its
    /// processes, its mount.
    pub fn sweep(spec: &ServiceSpec, places: &Places) {
        for vip in spec.vips.iter().filter_map(|vip| vip.address.parse::<Vip>().ok()) {
            if let Err(error) = vip::remove(vip) {
                tracing::warn!(service = spec.name, %error, "cannot make sure that an address is off");
            }
        }
        let dirs = places.dirs(&spec.name);
        if let Err(error) = runners::kill(spec, &dirs, &Outputs::default(), KILL_PATIENCE) {
            tracing::warn!(service = spec.name, %error, "cannot make sure that no process is left");
        }
        // A mount there is the service's only if it is on the device of its volume.
        let Some(mount) = &spec.mount else { return };
        let (Ok(path), Ok(device)) =
            (place::resolve(Path::new(&mount.path)), DeviceId::of(&device_link(spec, places)))
        else {
            return;
        };
        let left = Place { path, device, read_only: false, number: None };
        if let Err(error) = left.detach(Duration::ZERO) {
            tracing::warn!(service = spec.name, %error, "cannot make sure that nothing is mounted");
        }
    }

    /// Removes what the service left behind on this node.
    pub fn forget(self) {
        self.work.forget();
        cgroup::remove(&self.work.dirs.cgroup);
    }

    /// Runs a step about the addresses.
    fn addresses(
        &self,
        ticket: u64,
        body: impl FnOnce(&Arc<Work>, &OnDone) -> Result<(), NoAddress> + Send + 'static,
    ) {
        let (work, on_done) = (self.work.clone(), self.on_done.clone());
        spawn("agent-step", move || {
            let event = match body(&work, &on_done) {
                Ok(()) => Event::StepDone { ticket, result: Ok(()) },
                Err(NoAddress::Failed(why)) => Event::StepDone { ticket, result: Err(why) },
                Err(NoAddress::Held(held)) => Event::AddressHeld { ticket, held },
            };
            on_done(Done { service: work.service().to_owned(), event });
        });
    }

    fn ask(&self, ticket: u64, process: usize, timeout_ms: u64) {
        let (work, on_done) = (self.work.clone(), self.on_done.clone());
        spawn("agent-probe", move || {
            let finding = work.ask_process(process, Duration::from_millis(timeout_ms));
            let event = Event::Probed { ticket, process, finding };
            on_done(Done { service: work.service().to_owned(), event });
        });
    }

    fn thread(
        &self,
        ticket: u64,
        body: impl FnOnce(&Arc<Work>, &OnDone) -> Result<(), String> + Send + 'static,
    ) {
        let (work, on_done) = (self.work.clone(), self.on_done.clone());
        spawn("agent-step", move || {
            let result = body(&work, &on_done);
            on_done(Done { service: work.service().to_owned(), event: Event::StepDone { ticket, result } });
        });
    }
}

/// Begins the words for a file system that is frozen, in the list of what uses it.
pub const FREEZE: &str = "a freeze of ";

/// Everything on this node that uses the devices of a resource, but for its own service, in words
/// for the operator. `served`: users of which the engine knows, and the kernel does not.
///
/// # Errors
/// When that is not known in time.
pub fn users_of(
    places: &Places,
    resource: &str,
    service: Option<&ServiceSpec>,
    served: &[DeviceUser],
) -> Result<Vec<String>, NotKnown> {
    let cgroups = service.map(|spec| runners::cgroups(spec, &places.dirs(&spec.name))).unwrap_or_default();
    let except: BTreeSet<u32> = cgroups.iter().flat_map(|cgroup| cgroup::pids(cgroup)).collect();
    let links = std::fs::read_dir(places.run_dir.join("dev").join(resource)).into_iter().flatten().flatten();
    let devices: Vec<DeviceId> = links.filter_map(|link| DeviceId::of(&link.path()).ok()).collect();
    // If the service has mounted nothing, another program made the mount at its path. A mount that
    // was left to others belongs to them.
    let noted = service.and_then(|spec| noted(&state_file(places, &spec.name)));
    let mounted = noted.filter(|noted| !noted.saved.is_silent()).and_then(|noted| noted.mounted);
    let mounted = mounted.filter(|place| devices.contains(&place.device));
    let held = |device: DeviceId| {
        let number = mounted.as_ref().filter(|place| place.device == device).and_then(|place| place.number);
        Held { device, number }
    };
    let held = devices.into_iter().map(held).collect();
    let own = mounted.iter().map(|place| place.path.clone()).collect();
    let others = served.iter().filter(|user| user.process.is_none_or(|process| !except.contains(&process)));
    let others: Vec<String> = others.map(holders::served).collect();
    let backing = holders::backing(&places.run_dir.join("fuse").join(resource));
    let mut found = Search { held, except, own, backing }.holders()?;
    found.extend(others);
    if let Some(place) = &mounted
        && let Ok(AtPath::Holds(what) | AtPath::Covered(what)) = place.look()
    {
        found.insert(0, format!("another mount: {what}"));
    }
    if let Some(place) = mounted {
        let is_there = place.look().is_ok_and(|at| !matches!(at, AtPath::Nothing | AtPath::Foreign(_)));
        if is_there && place.is_frozen() {
            let path = place.path.display();
            found.insert(0, format!("{FREEZE}{path} (run `fsfreeze --unfreeze {path}` there)"));
        }
    }
    Ok(found)
}

/// Mount that a service has made or left on this node, as agents have noted.
pub(super) fn mounted_by(places: &Places, service: &str) -> Option<Place> {
    let mounted = noted(&state_file(places, service)).and_then(|noted| noted.mounted);
    mounted.or_else(|| left_mounts::of(places, service))
}

/// Reads the note of an agent about a service.
fn noted(file: &Path) -> Option<StateFile> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// The name that the device of the service's volume has on this node, while there is one.
fn device_link(spec: &ServiceSpec, places: &Places) -> PathBuf {
    let volume = spec.mount.as_ref().map_or(0, |mount| mount.volume);
    places.run_dir.join("dev").join(&spec.resource).join(volume.to_string())
}

/// [`crate::engine_feed`] resolves links in the paths of mounts, because that may take for ever.
fn guard_of(
    spec: &ServiceSpec,
    resource: ResourceId,
    dirs: &ServiceDirs,
    places: &Places,
    mounted: Option<&Place>,
) -> GuardEntry {
    let addresses = spec.vips.iter().filter_map(|named| {
        let vip: Vip = named.address.parse().ok()?;
        // The interface may come later, or get another name: the guard looks where the address is
        // when it acts.
        Some(GuardAddress {
            interface: named.interface.clone().unwrap_or_default(),
            address: vip.to_string(),
        })
    });
    let mounts = spec.mount.iter().map(|mount| {
        mounted.map_or_else(|| mount.path.clone(), |place| place.path.to_string_lossy().into_owned())
    });
    GuardEntry {
        resource,
        cgroups: runners::cgroups(spec, dirs)
            .iter()
            .map(|cgroup| cgroup.to_string_lossy().into_owned())
            .collect(),
        addresses: addresses.collect(),
        mounts: mounts.collect(),
        devices: spec
            .mount
            .iter()
            .map(|_| device_link(spec, places).to_string_lossy().into_owned())
            .collect(),
    }
}

fn state_file(places: &Places, service: &str) -> PathBuf {
    places.run_dir.join("services").join(format!("{service}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S295: of a client of the engine the kernel knows nothing.
    #[test]
    fn a_client_that_the_engine_serves_is_a_user_unless_it_is_a_process_of_the_service() {
        let root = tempfile::tempdir().expect("a directory");
        let places = Places {
            cgroup_root: root.path().join("cgroups"),
            state_dir: root.path().join("state"),
            run_dir: root.path().join("run"),
            journal_dir: None,
            neighbours: Neighbours::default(),
            hindrances: Hindrances::default(),
            disregarded: Disregarded::default(),
            mount_lanes: MountLanes::default(),
            log_writer: Vec::new(),
            hooks: None,
        };
        let spec =
            ServiceSpec::parse("name='s'\nresource='db'\n[vip]\naddress='10.0.0.7/24'\n").expect("it is one");
        let cgroup = places.cgroup_root.join("s");
        std::fs::create_dir_all(&cgroup)
            .and_then(|()| std::fs::write(cgroup.join("cgroup.procs"), "4000001\n"))
            .expect("written");
        let machine = |process| DeviceUser {
            what: "a virtual machine at /x".into(),
            process: Some(process),
            follows: false,
        };
        let far = DeviceUser { what: "an NBD client at 10.0.0.9:4000".into(), process: None, follows: true };
        let served = [machine(4_000_001), machine(4_000_002), far];
        let named =
            ["a virtual machine at /x, a process (process 4000002)", "an NBD client at 10.0.0.9:4000"];
        assert_eq!(users_of(&places, "db", Some(&spec), &served).expect("it is known"), named);
    }
}
