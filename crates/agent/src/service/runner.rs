//! One service on this node: its `mainstay_ha` machine, and the threads that carry out its steps.
//!
//! Guarantees
//! - What the machine wants persisted is in `<run>/services/<name>.json` before its next effect is carried out.
//! - Every step, undo and kill runs on a thread of its own and answers exactly once, through [`Done`].
//! - An undo first ends the step that it undoes, if that still runs.

use super::mount::{self, MountPlan};
use super::process::{self, ProcessPlan, Running, ServiceDirs};
use super::vip::{self, Vip};
use crate::clock::boot_now;
use crate::threads::{lock, spawn};
use mainstay_api::engine::{GuardAddress, GuardEntry};
use mainstay_ha::{Effect, Event, Machine, Ready, Report, Saved, ServiceSpec, Step};
use mainstay_types::{ResourceId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);
/// Longest run of one readiness test, after which it counts as failed and is repeated.
const READY_TEST_MAX: Duration = Duration::from_secs(10);
const KILL_PATIENCE: Duration = Duration::from_secs(8);

/// What a service's threads tell the reconciler.
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
}

/// What has to be known again after a restart of the agent.
#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    resource: ResourceId,
    revision: u64,
    spec: ServiceSpec,
    saved: Saved,
    running: BTreeMap<usize, Running>,
}

pub struct Runner {
    machine: Machine,
    resource: ResourceId,
    /// Of the specification, as the control plane counts it.
    revision: u64,
    file: PathBuf,
    saved: Option<Saved>,
    work: Arc<Work>,
    on_done: OnDone,
    /// Set to end a step that is being run.
    cancels: BTreeMap<Step, Arc<AtomicBool>>,
    guard: GuardEntry,
    reports: Vec<Report>,
    /// Steps that are being run, by ticket.
    steps: BTreeMap<u64, Step>,
    /// Steps that succeeded since they were last asked for, in words.
    stages: Vec<String>,
}

/// What the threads of one service share.
struct Work {
    spec: ServiceSpec,
    dirs: ServiceDirs,
    device_dir: PathBuf,
    running: Mutex<BTreeMap<usize, Running>>,
    /// Mounting and unmounting take their turns.
    mounting: Mutex<()>,
}

impl Runner {
    /// A service of which nothing runs here.
    #[must_use]
    pub fn new(
        spec: &ServiceSpec,
        revision: u64,
        resource: ResourceId,
        places: &Places,
        on_done: OnDone,
    ) -> Self {
        let machine = Machine::new(spec.clone());
        Self::with(machine, spec.clone(), (revision, resource), BTreeMap::new(), places, on_done)
    }

    fn with(
        machine: Machine,
        spec: ServiceSpec,
        (revision, resource): (u64, ResourceId),
        running: BTreeMap<usize, Running>,
        places: &Places,
        on_done: OnDone,
    ) -> Self {
        let dirs = ServiceDirs {
            cgroup: places.cgroup_root.join(&spec.name),
            logs: places.state_dir.join("services").join(&spec.name),
        };
        let guard = guard_of(&spec, resource, &dirs);
        Self {
            machine,
            resource,
            revision,
            file: state_file(places, &spec.name),
            saved: None,
            work: Arc::new(Work {
                device_dir: places.run_dir.join("dev").join(&spec.resource),
                spec,
                dirs,
                running: Mutex::new(running),
                mounting: Mutex::new(()),
            }),
            on_done,
            cancels: BTreeMap::new(),
            guard,
            reports: Vec::new(),
            steps: BTreeMap::new(),
            stages: Vec::new(),
        }
    }

    /// All services that an earlier agent process left, with the processes that still run.
    #[must_use]
    pub fn load_all(places: &Places, on_done: &OnDone) -> BTreeMap<String, Self> {
        let mut found = BTreeMap::new();
        let Ok(entries) = std::fs::read_dir(places.run_dir.join("services")) else {
            return found;
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
            let machine = Machine::restore(file.spec.clone(), file.saved, boot_now());
            for (&index, running) in &file.running {
                watch_adopted(&name, index, running, on_done.clone());
            }
            let about = (file.revision, file.resource);
            let runner = Self::with(machine, file.spec, about, file.running, places, on_done.clone());
            found.insert(name, runner);
        }
        found
    }

    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    #[must_use]
    pub fn resource(&self) -> ResourceId {
        self.resource
    }

    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.machine.next_deadline()
    }

    /// What the engine silences when the lease ends.
    #[must_use]
    pub fn guard(&self) -> &GuardEntry {
        &self.guard
    }

    pub fn handle(&mut self, now: Time, event: Event) {
        if let Event::StepDone { ticket, result } = &event
            && let Some(step) = self.steps.remove(ticket)
            && result.is_ok()
        {
            self.stages.extend(self.work.stage(step));
        }
        self.machine.handle(now, event);
    }

    /// Reports since the last call, oldest first.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// What was reached since the last call, oldest first.
    pub fn take_stages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.stages)
    }

    /// Carries out what the machine wants. The guard has been told to the engine before.
    pub fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll() {
            match effect {
                Effect::Persist(saved) => {
                    self.saved = Some(saved);
                    self.save();
                }
                Effect::Run { ticket, step, .. } => self.run(ticket, step),
                Effect::Undo { ticket, step, force, timeout_ms } => {
                    self.steps.retain(|_, running| *running != step);
                    if let Some(cancel) = self.cancels.remove(&step) {
                        cancel.store(true, Ordering::SeqCst);
                    }
                    let timeout = Duration::from_millis(timeout_ms);
                    self.thread(ticket, move |work, _| work.undo(step, force, timeout));
                }
                Effect::Kill { ticket } => self.thread(ticket, |work, _| work.kill()),
                Effect::Report(report) => self.reports.push(report),
            }
        }
    }

    /// Silences whatever an instance that nobody remembers may have left (R19): its address, its processes, its mount.
    pub fn sweep(spec: &ServiceSpec, places: &Places) {
        if let Some(Ok(vip)) = spec.vip.as_ref().map(|vip| vip.address.parse::<Vip>())
            && let Err(error) = vip::remove(vip)
        {
            tracing::warn!(service = spec.name, %error, "cannot make sure that an address is off");
        }
        if let Err(error) = process::kill_cgroup(&places.cgroup_root.join(&spec.name), KILL_PATIENCE) {
            tracing::warn!(service = spec.name, %error, "cannot make sure that no process is left");
        }
        if let Some(mount) = &spec.mount {
            mount::detach(Path::new(&mount.path));
        }
    }

    /// Removes what the service left behind on this node.
    pub fn forget(self) {
        drop(std::fs::remove_file(&self.file));
        process::remove_cgroups(&self.work.dirs.cgroup);
    }

    fn run(&mut self, ticket: u64, step: Step) {
        let cancel = Arc::new(AtomicBool::new(false));
        self.cancels.insert(step, cancel.clone());
        self.steps.insert(ticket, step);
        if let Step::StartProcess { process } = step {
            // The process belongs into the state file before anybody may forget it.
            let result = self.work.start_process(process, &self.on_done);
            self.save();
            self.thread(ticket, move |_, _| result);
        } else {
            self.thread(ticket, move |work, _| work.run(step, &cancel));
        }
    }

    fn thread(&self, ticket: u64, body: impl FnOnce(&Work, &OnDone) -> Result<(), String> + Send + 'static) {
        let (work, on_done) = (self.work.clone(), self.on_done.clone());
        spawn("agent-step", move || {
            let result = body(&work, &on_done);
            on_done(Done { service: work.spec.name.clone(), event: Event::StepDone { ticket, result } });
        });
    }

    fn save(&self) {
        let Some(saved) = &self.saved else { return };
        let file = StateFile {
            resource: self.resource,
            revision: self.revision,
            spec: self.work.spec.clone(),
            saved: saved.clone(),
            running: lock(&self.work.running).clone(),
        };
        // The run directory does not outlive a reboot, and neither do the processes: a rename is enough.
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
}

impl Work {
    /// A finished step as an event for the operator; `None` for what nobody waits for.
    fn stage(&self, step: Step) -> Option<String> {
        let name = |process: usize| self.process(process).map_or("", |process| process.name.as_str());
        match step {
            Step::ProbeAddress | Step::Prepare { .. } => None,
            Step::Mount => self.spec.mount.as_ref().map(|mount| format!("mounted {}", mount.path)),
            Step::StartProcess { process } => Some(format!("started process {}", name(process))),
            Step::CheckReady { process } => Some(format!("process {} is ready", name(process))),
            Step::AddAddress => self.spec.vip.as_ref().map(|vip| format!("address {} answers", vip.address)),
        }
    }

    fn run(&self, step: Step, cancel: &AtomicBool) -> Result<(), String> {
        match step {
            Step::ProbeAddress => self.probe(),
            Step::Mount => {
                let _turn = lock(&self.mounting);
                if cancel.load(Ordering::SeqCst) {
                    return Err("it was called off".into());
                }
                self.mount()
            }
            Step::Prepare { process } => {
                let spec = self.process(process)?;
                if spec.prepare.is_empty() {
                    return Ok(());
                }
                let plan = ProcessPlan { command: spec.prepare.clone(), ..self.plan(process)? };
                process::run(&self.dirs, &plan, "prepare", Duration::from_secs(spec.start_timeout_s))
                    .map_err(words)
            }
            // Carried out where the state file is written.
            Step::StartProcess { .. } => Ok(()),
            Step::CheckReady { process } => self.check_ready(process, cancel),
            Step::AddAddress => {
                let (vip, interface) = self.address()?;
                vip::add(vip, &interface).map_err(words)?;
                vip::announce(vip, &interface);
                Ok(())
            }
        }
    }

    fn undo(&self, step: Step, force: bool, timeout: Duration) -> Result<(), String> {
        match step {
            Step::ProbeAddress => Ok(()),
            Step::Mount => {
                let Some(mount) = &self.spec.mount else { return Ok(()) };
                let path = Path::new(&mount.path);
                if force {
                    // Without its turn: a mount that hangs must not delay the way out.
                    mount::detach(path);
                    return Ok(());
                }
                let _turn = lock(&self.mounting);
                mount::ensure_unmounted(path, timeout.saturating_sub(POLL)).map_err(words)
            }
            Step::Prepare { process } => self.kill_leaf(process, "-prepare"),
            Step::CheckReady { process } => self.kill_leaf(process, "-ready"),
            Step::StartProcess { process } => {
                let spec = self.process(process)?;
                let running = lock(&self.running).get(&process).cloned();
                let patience = if force { Duration::ZERO } else { Duration::from_secs(spec.stop_timeout_s) };
                match running {
                    Some(running) => {
                        let signal = if force { "SIGKILL" } else { &spec.stop_signal };
                        process::stop(&self.dirs, &running, signal, patience).map_err(words)?;
                    }
                    None => self.kill_leaf(process, "")?,
                }
                lock(&self.running).remove(&process);
                Ok(())
            }
            Step::AddAddress => {
                let Some(vip) = self.vip() else { return Ok(()) };
                vip::remove(vip?).map_err(words)
            }
        }
    }

    fn kill(&self) -> Result<(), String> {
        process::kill_cgroup(&self.dirs.cgroup, KILL_PATIENCE).map_err(words)?;
        lock(&self.running).clear();
        Ok(())
    }

    fn kill_leaf(&self, process: usize, suffix: &str) -> Result<(), String> {
        let leaf = format!("{}{suffix}", self.process(process)?.name);
        process::kill_cgroup(&self.dirs.cgroup.join(leaf), KILL_PATIENCE).map_err(words)
    }

    fn mount(&self) -> Result<(), String> {
        let Some(mount) = &self.spec.mount else { return Ok(()) };
        let link = self.device_dir.join(mount.volume.to_string());
        let device = std::fs::canonicalize(&link)
            .map_err(|error| format!("no device at {}: {error}", link.display()))?;
        let plan = MountPlan {
            device,
            path: PathBuf::from(&mount.path),
            fstype: mount.fstype.clone(),
            options: mount.options.clone(),
            mkfs: mount.mkfs,
        };
        mount::ensure_mounted(&plan).map_err(words)
    }

    fn start_process(&self, process: usize, on_done: &OnDone) -> Result<(), String> {
        if lock(&self.running).get(&process).is_some_and(Running::is_alive) {
            return Ok(());
        }
        // What an instance that nobody remembers has left is in the way of a new one (R19).
        self.kill_leaf(process, "")?;
        let plan = self.plan(process)?;
        let (running, mut child) = process::start(&self.dirs, &plan).map_err(words)?;
        lock(&self.running).insert(process, running);
        let (service, on_done) = (self.spec.name.clone(), on_done.clone());
        spawn("agent-child", move || {
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            on_done(Done { service, event: Event::ProcessExited { process, status } });
        });
        Ok(())
    }

    fn check_ready(&self, process: usize, cancel: &AtomicBool) -> Result<(), String> {
        let Some(ready) = self.process(process)?.ready.clone() else { return Ok(()) };
        let start = Instant::now();
        // The machine's own time limit ends this, through an undo.
        while !cancel.load(Ordering::SeqCst) {
            let is_ready = match &ready {
                Ready::Command(command) => {
                    let plan = ProcessPlan { command: command.clone(), ..self.plan(process)? };
                    process::run(&self.dirs, &plan, "ready", READY_TEST_MAX).is_ok()
                }
                Ready::Tcp(address) => process::tcp_answers(address),
                Ready::DelayS(seconds) => start.elapsed() >= Duration::from_secs(*seconds),
            };
            if is_ready {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        Err("it was called off".into())
    }

    fn probe(&self) -> Result<(), String> {
        let (vip, interface) = self.address()?;
        if vip::is_present(vip).map_err(words)? {
            return Ok(());
        }
        vip::probe(vip, &interface).map_err(words)
    }

    fn vip(&self) -> Option<Result<Vip, String>> {
        self.spec.vip.as_ref().map(|vip| vip.address.parse().map_err(words::<vip::VipError>))
    }

    fn address(&self) -> Result<(Vip, vip::Interface), String> {
        let vip = self.vip().unwrap_or_else(|| Err("the service has no address".into()))?;
        let name = self.spec.vip.as_ref().and_then(|vip| vip.interface.as_deref());
        let interface = vip::find_interface(vip, name).map_err(words)?;
        Ok((vip, interface))
    }

    fn process(&self, index: usize) -> Result<&mainstay_ha::Process, String> {
        self.spec.processes.get(index).ok_or_else(|| format!("the service has no process {index}"))
    }

    fn plan(&self, index: usize) -> Result<ProcessPlan, String> {
        let spec = self.process(index)?;
        Ok(ProcessPlan {
            name: spec.name.clone(),
            command: spec.command.clone(),
            user: spec.user.clone(),
            env: spec.env.clone(),
        })
    }
}

fn watch_adopted(service: &str, process: usize, running: &Running, on_done: OnDone) {
    let (service, running) = (service.to_owned(), running.clone());
    spawn("agent-adopted", move || {
        while running.is_alive() {
            std::thread::sleep(POLL);
        }
        let status = "its exit status is not known, because the agent was restarted meanwhile".to_owned();
        on_done(Done { service, event: Event::ProcessExited { process, status } });
    });
}

fn guard_of(spec: &ServiceSpec, resource: ResourceId, dirs: &ServiceDirs) -> GuardEntry {
    let address = spec.vip.as_ref().and_then(|named| {
        let vip: Vip = named.address.parse().ok()?;
        let interface = vip::find_interface(vip, named.interface.as_deref()).ok()?;
        Some(GuardAddress { interface: interface.name, address: vip.to_string() })
    });
    GuardEntry {
        resource,
        cgroups: vec![dirs.cgroup.to_string_lossy().into_owned()],
        addresses: address.into_iter().collect(),
        mounts: spec.mount.iter().map(|mount| mount.path.clone()).collect(),
    }
}

fn state_file(places: &Places, service: &str) -> PathBuf {
    places.run_dir.join("services").join(format!("{service}.json"))
}

/// An error with its causes, for operators.
#[allow(clippy::needless_pass_by_value)]
fn words<E: std::error::Error>(error: E) -> String {
    error.to_string()
}
