//! Model of the services of one node: a mount, processes, an address. The model has physics only:
//! `mainstay_ha` decides the order of steps, and the agent carries them out. The state of the model
//! outlives both, and dies with the machine.
//!
//! A part counts as present while it may be present (R19): from the moment at which something
//! begins to make it, until something has truly ended it. How long steps take, and how they fail,
//! follows `crates/agent/src/service`.
//!
//! Not simulated: a step whose agent was killed in the middle goes on to its end. A mount or an
//! address that was under way when the guard acted does not come about afterwards.

use crate::oracle::Violation;
use crate::plan::ServiceFault;
use crate::random::Random;
use mainstay_ha::{AtPath, Effect, Finding, Step, Unmount};
use mainstay_types::{
    ADDRESS_PROTOCOL, AddressHere, FoundAddress, NodeId, address_here, addresses_to_remove,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

const MS: u64 = 1_000;
/// Three questions with 50 ms for each answer; finding the interface comes on top.
const PROBE_US: u64 = 150 * MS;
/// Time that the runner still has to kill after the stop signal's time limit, out of the time that
/// the machine gives it.
const KILL_RESERVE_US: u64 = 10_000 * MS;
/// How long the runner waits for a killed process to vanish before it says that it cannot be
/// killed.
const STOP_KILL_PATIENCE_US: u64 = 5_000 * MS;
const KILL_PATIENCE_US: u64 = 8_000 * MS;
/// The runner gives a busy mount up this much earlier than the machine does.
const BUSY_GIVE_UP_US: u64 = 50 * MS;
/// How often an agent looks at the mount of a service that runs.
pub const WATCH_US: u64 = 1_000 * MS;
/// A process finds its device gone after this time at the latest, if it looks at all.
const DEVICE_LOST_US_MAX: u64 = 2_000 * MS;
/// Share of processes that do not notice a lost device: they go on from their cache until they are
/// killed.
const ZOMBIE_PERMILLE: u64 = 350;

/// How long a probe of a process takes that answers.
const PROCESS_PROBE_US: u64 = 2 * MS;
/// Probes in a row that have to fail before a process is restarted, by default.
const PROBES_MIN: u32 = 3;

/// Interfaces: of the node itself, and one that came late.
const FIRST: u32 = 1;
const LATE: u32 = 2;
/// Address of every service. They may all have the same one, because addresses of two services are
/// never compared.
const SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 1));
const NODE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
const BARRED: &str = "no process may begin while this node is silenced";
const FOREIGN: &str = "10.2.0.1/24 is on eth0 already and Mainstay did not add it";

/// Parts of a service that are, or may be, on a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Presence {
    pub mounted: bool,
    pub running: bool,
    pub address: bool,
}

impl Presence {
    /// Tells whether no part of the service is left.
    #[must_use]
    pub fn is_silent(self) -> bool {
        self == Self::default()
    }
}

/// The answer to a `Run`, `Undo` or `Kill`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepResult {
    pub service: String,
    pub ticket: u64,
    pub result: Result<(), String>,
}

/// The answer to a `Probe`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeResult {
    pub service: String,
    pub ticket: u64,
    pub process: usize,
    pub finding: Finding,
}

/// Circumstances in which a step begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footing {
    /// The resource's devices exist and answer on this node.
    pub device_ok: bool,
    /// No process of a service may begin.
    pub barred: bool,
}

/// Result of a silencing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silenced {
    /// A process was ended, of which the agent hears as of one that ended by itself.
    pub ended: bool,
    /// Processes that were to begin after the kill.
    pub began_late: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MountState {
    /// Being mounted, or an attempt that failed and was not cleared away.
    Unsure,
    Mounted,
    /// The device went away below it: everything on it fails, and nothing can be mounted over it.
    Dead,
}

#[derive(Clone, Copy, Debug)]
struct Mount {
    /// The `Run` that made it, by its id; an older undo does not end it.
    since: u64,
    state: MountState,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    since: u64,
    /// Started, and not merely tried.
    started: bool,
    /// Its start is under way.
    begins: bool,
    /// Ends by itself as soon as [`Services::exits`] is called.
    doomed: bool,
    /// The process has files open that are not, or no longer, on the mounted file system of the
    /// volume.
    astray: bool,
    /// The process stands still: it neither answers nor stops.
    hung: bool,
    /// The process answers that it recovers from a crash.
    recovers: bool,
    /// The process was started with its arguments for whole pages.
    relies: bool,
    /// A check has since said that pages can tear. What it said stays until the process is started
    /// again.
    outdated: bool,
}

#[derive(Clone, Debug, Default)]
struct Service {
    mount: Option<Mount>,
    processes: BTreeMap<usize, Process>,
    /// `prepare` commands that run, with the `Run` that started each.
    preparing: BTreeMap<usize, u64>,
    /// The `Run` that added the address.
    address: Option<u64>,
    /// An administrator has set the same address on this node by hand.
    by_hand: bool,
    /// An address that was set by hand is gone, and the world has not been told yet.
    robbed: bool,
    /// The service has a file system: its mount was begun once on this node.
    has_mount: bool,
    /// A mount of others is at its mount point.
    others: bool,
    faults: Faults,
    probes: BTreeMap<usize, Probes>,
}

/// The probes of a process, as H13 counts them.
#[derive(Clone, Copy, Debug, Default)]
struct Probes {
    /// Begun since the last one that found the process healthy or recovering.
    in_row: u32,
    /// A stop of the process was tried with its signal.
    stop_tried: bool,
}

impl Service {
    fn at_path(&self, device_ok: bool) -> AtPath {
        match self.mount.map(|mount| mount.state) {
            _ if self.others => AtPath::Foreign("a file system of others".into()),
            Some(MountState::Mounted) if device_ok => AtPath::Ours,
            Some(MountState::Mounted | MountState::Dead) => AtPath::Dead("input/output error".into()),
            Some(MountState::Unsure) | None => AtPath::Nothing,
        }
    }

    /// A check finds now that pages can tear. Processes with arguments for whole pages are told of.
    fn pages_tear(&mut self) {
        self.faults.pages_tear = true;
        for process in self.processes.values_mut() {
            process.outdated |= process.started && process.relies;
        }
    }

    fn is_hung(&self, process: usize) -> bool {
        self.processes.get(&process).is_some_and(|process| process.hung)
    }

    fn runs(&self) -> bool {
        self.processes.values().any(|process| process.started)
    }

    /// Takes away the mount at the mount point, if the cores decide that. Returns whether it was of
    /// others.
    fn unmount(&mut self) -> bool {
        let taken = self.others && self.at_path(true).unmount() == Unmount::Topmost;
        self.others &= !taken;
        taken
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    ignores_stop: bool,
    fails_start: bool,
    hangs_next: bool,
    keeps_address: bool,
    /// The interface of the address came after the processes of Mainstay had started.
    late_interface: bool,
    /// The next probe fails, although the process answers.
    fails_probe: bool,
    /// Pages of its files can tear on this node, as a check before a start finds.
    pages_tear: bool,
}

impl Service {
    /// The addresses of the node, as far as this service is concerned.
    fn addresses(&self) -> Vec<FoundAddress> {
        let interface = if self.faults.late_interface { LATE } else { FIRST };
        let mut found = vec![FoundAddress::new(FIRST, NODE_IP, 24, 0, b"eth0")];
        found.extend(self.by_hand.then(|| FoundAddress::new(FIRST, SERVICE_IP, 24, 0, b"eth0")));
        let ours = FoundAddress::new(interface, SERVICE_IP, 32, ADDRESS_PROTOCOL, b"");
        found.extend(self.address.map(|_| ours));
        found
    }

    /// Removes the service's address, and any address that is taken for it.
    fn remove_address(&mut self) {
        let found = self.addresses();
        for removed in addresses_to_remove(&found, SERVICE_IP) {
            if removed.prefix == 32 {
                self.address = None;
            } else {
                self.by_hand = false;
                self.robbed = true;
            }
        }
    }

    /// Returns why the address cannot be taken here.
    fn is_foreign(&self) -> bool {
        matches!(address_here(&self.addresses(), SERVICE_IP), AddressHere::Foreign(_))
    }
}

/// Effect of a step under way when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Run(Step),
    Undo(Step),
    Kill,
}

/// A step that is under way.
#[derive(Clone, Debug)]
struct Job {
    service: String,
    ticket: u64,
    act: Act,
    /// Decided when it began: how it will fail.
    fails: Option<&'static str>,
    /// An undo ended it; it can only answer with an error.
    called_off: bool,
    /// The step never ends by itself.
    hung: bool,
}

/// The services of one node.
#[derive(Clone, Debug)]
pub struct Services {
    node: NodeId,
    random: Random,
    services: BTreeMap<String, Service>,
    jobs: BTreeMap<u64, Job>,
    /// Probes that are under way, each with the answer that it will give.
    probes: BTreeMap<u64, ProbeResult>,
    next_id: u64,
    /// Violations of H9, H10 and H13 that [`Self::violation`] has not handed out yet.
    violations: Vec<Violation>,
}

impl Services {
    #[must_use]
    pub fn new(node: NodeId, random: Random) -> Self {
        Self {
            node,
            random,
            services: BTreeMap::new(),
            jobs: BTreeMap::new(),
            probes: BTreeMap::new(),
            next_id: 1,
            violations: Vec::new(),
        }
    }

    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Begins the step of a `Run`, `Undo`, `Kill` or `Probe`.
    ///
    /// Returns the microseconds after which [`Self::finish`] is to be called with the id, or
    /// [`Self::finish_probe`] for a probe. `None`:
    /// the step never ends by itself, and only an undo ends it.
    pub fn start(&mut self, service: &str, effect: &Effect, footing: Footing) -> (Option<u64>, u64) {
        let id = self.next_id;
        self.next_id += 1;
        let (ticket, act, force, timeout_us) = match *effect {
            Effect::Run { ticket, step, timeout_ms } => (ticket, Act::Run(step), false, timeout_ms * MS),
            Effect::Undo { ticket, step, force, timeout_ms } => {
                (ticket, Act::Undo(step), force, timeout_ms * MS)
            }
            Effect::Kill { ticket } => (ticket, Act::Kill, true, KILL_PATIENCE_US),
            Effect::Probe { ticket, process, timeout_ms } => {
                let (delay, finding) = self.asks(service, process, timeout_ms * MS);
                let service = service.to_owned();
                self.probes.insert(id, ProbeResult { service, ticket, process, finding });
                return (Some(delay), id);
            }
            Effect::Persist(_) | Effect::Report(_) => return (None, id),
        };
        if let Act::Undo(Step::StartProcess { process }) = act {
            self.stops(service, process, force);
        }
        self.call_off(service, act, force);
        let blocked = self.is_blocked(service, act, force);
        let known = entry(&mut self.services, service);
        // Only a step without force can hang: SIGKILL and a lazy detach wait for no other process.
        let hangs = !force && std::mem::take(&mut known.faults.hangs_next);
        let (delay, fails) = match act {
            Act::Run(step) => {
                begin_run(known, &mut self.random, id, step, footing, hangs.then_some(timeout_us))
            }
            Act::Undo(_) if blocked => (None, None),
            Act::Undo(step) => begin_undo(known, &mut self.random, step, force, timeout_us, hangs),
            Act::Kill => (Some(self.random.around(5 * MS)), None),
        };
        let begun = matches!(act, Act::Run(Step::StartProcess { .. })) && fails.is_none();
        if begun && known.begins_astray() {
            let text = format!("a process of {service} begins on {} without its file system", self.node);
            self.violations.push(Violation { id: "H9", text });
        }
        self.jobs.insert(
            id,
            Job { service: service.to_owned(), ticket, act, fails, called_off: false, hung: delay.is_none() },
        );
        (delay, id)
    }

    /// Begins a probe. Returns the microseconds after which it ends, and what it finds.
    fn asks(&mut self, service: &str, process: usize, timeout_us: u64) -> (u64, Finding) {
        let known = entry(&mut self.services, service);
        known.probes.entry(process).or_default().in_row += 1;
        let fails = std::mem::take(&mut known.faults.fails_probe);
        match known.processes.get(&process).filter(|process| process.started) {
            None => (PROCESS_PROBE_US, Finding::NotAsked("it was called off".into())),
            Some(_) if fails => (PROCESS_PROBE_US, Finding::Unhealthy("too many connections".into())),
            Some(process) if process.hung => (timeout_us, Finding::Unhealthy("there was no answer".into())),
            Some(process) if process.recovers => {
                (PROCESS_PROBE_US, Finding::Recovering("the database is starting up".into()))
            }
            Some(_) => (PROCESS_PROBE_US, Finding::Healthy),
        }
    }

    /// Ends the probe that was begun under `id`. `None` if `id` is not a probe's.
    pub fn finish_probe(&mut self, id: u64) -> Option<ProbeResult> {
        let probe = self.probes.remove(&id)?;
        if matches!(probe.finding, Finding::Healthy | Finding::Recovering(_)) {
            let known = entry(&mut self.services, &probe.service);
            known.probes.entry(probe.process).or_default().in_row = 0;
        }
        Some(probe)
    }

    /// H13: a process is killed without a stop signal only after so many probes in a row without an
    /// answer.
    fn stops(&mut self, service: &str, process: usize, force: bool) {
        let known = entry(&mut self.services, service);
        let probes = known.probes.entry(process).or_default();
        if force && !probes.stop_tried && probes.in_row < PROBES_MIN {
            let text = format!(
                "a process of {service} on {} is killed after {} probes in a row",
                self.node, probes.in_row
            );
            self.violations.push(Violation { id: "H13", text });
        }
        *probes = Probes { in_row: 0, stop_tried: true };
    }

    /// Returns the step that was begun under `id` in words, for traces. Empty if it has ended.
    #[must_use]
    pub fn under_way(&self, id: u64) -> String {
        self.jobs.get(&id).map_or_else(String::new, |job| match &job.act {
            Act::Run(step) => run_words(step),
            Act::Undo(step) => undo_words(step),
            Act::Kill => KILL_WORDS.into(),
        })
    }

    /// Ends the step that was begun under `id` and returns its answer. `None` if there is no
    /// answer: the step was lost with the machine, or waits for something that does not come.
    ///
    /// A node of the cluster that still answers for the address has lost its right to it. So the
    /// probe does not ask it.
    pub fn finish(&mut self, id: u64) -> Option<StepResult> {
        let job = self.jobs.remove(&id)?;
        let known = entry(&mut self.services, &job.service);
        let result = match (job.act, job.fails) {
            (Act::Run(_), _) if job.called_off => Err("it was called off".to_owned()),
            (_, Some(why)) => Err(why.to_owned()),
            (Act::Run(step), None) => finish_run(known, step)?,
            (Act::Undo(step), None) => {
                if step == Step::Mount && known.unmount() {
                    self.violations.push(taken(self.node, &job.service));
                }
                finish_undo(known, id, step);
                Ok(())
            }
            (Act::Kill, None) => {
                known.processes.retain(|_, process| process.since > id);
                known.preparing.retain(|_, since| *since > id);
                Ok(())
            }
        };
        Some(StepResult { service: job.service, ticket: job.ticket, result })
    }

    /// The engine's guard: the address is gone, the processes are killed, the mount is detached, at
    /// once (R19). True when a process was ended, of which the agent hears as of one that ended by
    /// itself.
    pub fn silence(&mut self, service: &str) -> bool {
        let Some(known) = self.services.get_mut(service) else { return false };
        let killed = known.processes.values().any(|process| process.started);
        known.remove_address();
        if known.unmount() {
            self.violations.push(taken(self.node, service));
        }
        *known = known.emptied();
        killed
    }

    /// [`Self::silence`] by the guard or the silencer. Each process whose start is under way enters
    /// its cgroup before the kill or after it. One that enters after the kill looks whether starts
    /// are `barred`, before the mount is detached.
    pub fn silence_barred(&mut self, service: &str, barred: bool) -> Silenced {
        let late = self.enter_late(service);
        let ended = self.silence(service);
        for (id, process) in &late {
            if barred {
                if let Some(job) = self.jobs.get_mut(id) {
                    job.fails = Some(BARRED);
                }
                continue;
            }
            let began = Process {
                since: *id,
                started: true,
                begins: false,
                doomed: false,
                astray: false,
                hung: false,
                recovers: false,
                relies: false,
                outdated: false,
            };
            entry(&mut self.services, service).processes.insert(*process, began);
            let text = format!("a process of {service} begins on {} after its node was silenced", self.node);
            self.violations.push(Violation { id: "H3", text });
        }
        Silenced { ended, began_late: late.len() }
    }

    /// Processes that are being started and enter their cgroups late, each with the id of its step.
    fn enter_late(&mut self, service: &str) -> Vec<(u64, usize)> {
        let Some(known) = self.services.get(service) else { return Vec::new() };
        let under_way = |id| self.jobs.get(&id).is_some_and(|job| job.fails.is_none() && !job.called_off);
        let begins = |process: &Process| process.started && process.begins && under_way(process.since);
        let begin = known.processes.iter().filter(|(_, process)| begins(process));
        let begin: Vec<_> = begin.map(|(number, process)| (process.since, *number)).collect();
        begin.into_iter().filter(|_| self.random.coin()).collect()
    }

    /// The engine's guard kills the processes of a service, because its device is about to fail.
    /// True when a process was ended, of which the agent hears as of one that ended by itself.
    pub fn kill(&mut self, service: &str) -> bool {
        let Some(known) = self.services.get_mut(service) else { return false };
        known.preparing.clear();
        std::mem::take(&mut known.processes).values().any(|process| process.started)
    }

    /// Returns why the mount of a running service is lost, as the agent finds it, and whether
    /// another attempt on this node may mend it. `None` if the mount is in order.
    #[must_use]
    pub fn lost(&self, service: &str) -> Option<(String, bool)> {
        let known = self.services.get(service).filter(|known| known.has_mount)?;
        let at = known.at_path(true);
        Some((at.lost()?, at.is_mendable()))
    }

    /// Returns a process that runs with arguments that do not hold any more, and why they do not.
    /// `None` if there is none.
    #[must_use]
    pub fn outdated(&self, service: &str) -> Option<(usize, String)> {
        let processes = &self.services.get(service)?.processes;
        let (number, _) = processes.iter().find(|(_, process)| process.outdated)?;
        Some((*number, "without --whole-pages, because pages can tear now".into()))
    }

    /// Whether the service runs on the file system of its volume, as far as it has one, no process
    /// of it stands still, and none has arguments that do not hold any more.
    #[must_use]
    pub fn stands(&self, service: &str) -> bool {
        let is_bad = |process: &Process| process.astray || process.hung || process.outdated;
        let bad = |known: &Service| known.processes.values().any(is_bad);
        self.lost(service).is_none() && !self.services.get(service).is_some_and(bad)
    }

    /// Takes the next violation that has happened. Each is handed out once.
    pub fn violation(&mut self) -> Option<Violation> {
        self.violations.pop()
    }

    /// The devices below the service fail from now on. Returns the microseconds after which its
    /// processes notice and [`Self::exits`] is to be called. `None` if there are no processes, or
    /// if they go on until they are killed.
    pub fn device_lost(&mut self, service: &str) -> Option<u64> {
        let known = self.services.get_mut(service)?;
        let Some(mount) = &mut known.mount else { return None };
        if mount.state == MountState::Mounted {
            mount.state = MountState::Dead;
        }
        for job in self.jobs.values_mut() {
            if job.service == service && job.act == Act::Run(Step::Mount) && job.fails.is_none() {
                job.fails = Some("cannot read the device: input/output error");
            }
        }
        if !known.processes.values().any(|process| process.started) || self.random.permille(ZOMBIE_PERMILLE) {
            return None;
        }
        for process in known.processes.values_mut() {
            process.doomed = process.started;
        }
        Some(self.random.between(10 * MS, DEVICE_LOST_US_MAX))
    }

    /// Ends the processes that were to end by themselves. Returns `true` if there was one, so that
    /// the agent has to hear of it. A process that was started after the others were doomed is not
    /// among them.
    pub fn exits(&mut self, service: &str) -> bool {
        let Some(known) = self.services.get_mut(service) else { return false };
        let before = known.processes.len();
        known.processes.retain(|_, process| !process.doomed);
        known.processes.len() < before
    }

    /// Stops the machine. Faults of its services stay.
    pub fn power_cut(&mut self) {
        self.jobs.clear();
        self.probes.clear();
        for known in self.services.values_mut() {
            let faults =
                Faults { hangs_next: false, keeps_address: false, late_interface: false, ..known.faults };
            *known = Service { faults, has_mount: known.has_mount, ..Service::default() };
        }
    }

    /// After [`ServiceFault::Dies`] the caller has to call [`Self::exits`], now or later.
    pub fn inject(&mut self, service: &str, fault: ServiceFault) {
        let known = entry(&mut self.services, service);
        match fault {
            ServiceFault::IgnoreStop => known.faults.ignores_stop = true,
            ServiceFault::Hang => known.faults.hangs_next = true,
            ServiceFault::FailStart => known.faults.fails_start = true,
            ServiceFault::KeepAddress => known.faults.keeps_address = true,
            ServiceFault::LateInterface => known.faults.late_interface = true,
            ServiceFault::AddressByHand => known.by_hand = known.address.is_none(),
            ServiceFault::Dies => {
                for process in known.processes.values_mut() {
                    process.doomed = process.started;
                }
            }
            ServiceFault::StandsStill => {
                known.processes.values_mut().for_each(|process| process.hung = process.started);
            }
            ServiceFault::Recovers => {
                known.processes.values_mut().for_each(|process| process.recovers = process.started);
            }
            ServiceFault::FailProbe => known.faults.fails_probe = true,
            ServiceFault::PagesTear => known.pages_tear(),
            ServiceFault::Unmounted | ServiceFault::Replaced => {
                if known.mount.is_some_and(|mount| mount.state != MountState::Unsure) {
                    known.mount = None;
                    known.processes.values_mut().for_each(|process| process.astray = process.started);
                }
                known.others |= fault == ServiceFault::Replaced;
            }
            // An address that is there stays on the interface that it is on.
            ServiceFault::Well => {
                let late_interface = known.faults.late_interface && known.address.is_some();
                known.faults = Faults { late_interface, ..Faults::default() };
                known.by_hand = false;
                known.others = false;
                for process in known.processes.values_mut() {
                    (process.hung, process.recovers) = (false, false);
                }
            }
        }
    }

    /// Whether an address that an administrator had set was taken away since the last call.
    pub fn was_robbed(&mut self) -> bool {
        self.services.values_mut().filter_map(|known| std::mem::take(&mut known.robbed).then_some(())).count()
            > 0
    }

    #[must_use]
    pub fn presence(&self, service: &str) -> Presence {
        self.services.get(service).map_or_else(Presence::default, |known| Presence {
            mounted: known.mount.is_some(),
            running: !known.processes.is_empty() || !known.preparing.is_empty(),
            address: known.address.is_some(),
        })
    }

    /// An undo first ends the step that it undoes.
    fn call_off(&mut self, service: &str, by: Act, force: bool) {
        // A hung step ends here at last. Only a mount that hangs outlasts an undo without force.
        let stays = by == Act::Undo(Step::Mount) && !force;
        self.jobs.retain(|_, job| {
            let about = match (job.act, by) {
                (Act::Run(one) | Act::Undo(one), Act::Undo(other)) => one == other,
                (_, Act::Kill) => ends_with_processes(job.act),
                _ => false,
            };
            !job.hung || job.service != service || !about || stays
        });
        for job in self.jobs.values_mut().filter(|job| job.service == service) {
            let Act::Run(step) = job.act else { continue };
            job.called_off |= match by {
                Act::Undo(undone) => undone == step,
                Act::Kill => ends_with_processes(job.act),
                Act::Run(_) => false,
            };
        }
    }

    /// An unmount without force waits for a mount that hangs.
    fn is_blocked(&self, service: &str, act: Act, force: bool) -> bool {
        let hung = |job: &Job| job.hung && job.service == service && job.act == Act::Run(Step::Mount);
        act == Act::Undo(Step::Mount) && !force && self.jobs.values().any(hung)
    }
}

fn taken(node: NodeId, service: &str) -> Violation {
    let text = format!("a mount of others is taken away on {node} by {service}");
    Violation { id: "H10", text }
}

impl Service {
    /// Whether a process that was begun just now does not stand on the file system of the volume.
    fn begins_astray(&self) -> bool {
        self.processes.values().any(|process| process.started && process.astray)
    }

    /// Returns the service without its mount and its processes. Faults stay, and so does everything
    /// that others have set or mounted.
    fn emptied(&self) -> Self {
        let Self { address, by_hand, robbed, has_mount, others, faults, .. } = *self;
        Self { address, by_hand, robbed, has_mount, others, faults, ..Self::default() }
    }
}

fn ends_with_processes(act: Act) -> bool {
    let (Act::Run(step) | Act::Undo(step)) = act else { return false };
    matches!(step, Step::Prepare { .. } | Step::StartProcess { .. } | Step::CheckReady { .. })
}

fn entry<'a>(services: &'a mut BTreeMap<String, Service>, name: &str) -> &'a mut Service {
    if !services.contains_key(name) {
        services.insert(name.to_owned(), Service::default());
    }
    services.get_mut(name).expect("it was just inserted")
}

type Begun = (Option<u64>, Option<&'static str>);

/// `hangs`: the step hangs, and this is the time that the machine gives it.
fn begin_run(
    service: &mut Service,
    random: &mut Random,
    id: u64,
    step: Step,
    Footing { device_ok, barred }: Footing,
    hangs: Option<u64>,
) -> Begun {
    let barred = barred.then_some(BARRED);
    let fails_start = service.faults.fails_start;
    let (delay, fails) = match step {
        Step::StartHook => (
            10 * MS + random.around(40 * MS),
            (fails_start && random.coin()).then_some("the hook refuses it"),
        ),
        Step::ProbeAddress => (PROBE_US + random.around(50 * MS), None),
        Step::Mount => {
            service.has_mount = true;
            let fails = match service.mount {
                Some(Mount { state: MountState::Dead, .. }) => Some("something else is mounted there"),
                _ if service.at_path(true).to_mount(service.runs()).is_err() => {
                    Some("it cannot be mounted there now")
                }
                _ if !device_ok => Some("no device"),
                // F62: some failures show when mounting, some only in the process.
                _ if fails_start && random.coin() => Some("mounting failed: structure needs cleaning"),
                _ => None,
            };
            let state = match service.mount {
                Some(mount) if mount.state != MountState::Unsure => mount.state,
                _ => MountState::Unsure,
            };
            service.mount = Some(Mount { since: id, state });
            (5 * MS + random.around(15 * MS), fails)
        }
        Step::Prepare { process } => {
            service.preparing.insert(process, id);
            let fails = barred
                .or(without_mount(service, step))
                .or(content_fails(service, device_ok))
                .or(fails_start.then_some("prepare ended with exit status 1"));
            (20 * MS + random.around(60 * MS), fails)
        }
        Step::StartProcess { process } => {
            let running = service.processes.get(&process).is_some_and(|known| known.started);
            if running {
                // The process is adopted as it is. An older undo must not count for this start.
                let fails = without_mount(service, step);
                if let Some(known) = service.processes.get_mut(&process) {
                    known.since = id;
                }
                (MS, fails)
            } else {
                let fails = barred
                    .or(without_mount(service, step))
                    .or(content_fails(service, device_ok))
                    .or(fails_start.then_some("it ended with exit status 1"));
                let started = fails.is_none() && hangs.is_none();
                let astray = service.has_mount && service.at_path(true) != AtPath::Ours;
                let begun = Process {
                    since: id,
                    started,
                    begins: true,
                    doomed: false,
                    astray,
                    hung: false,
                    recovers: false,
                    relies: !service.faults.pages_tear,
                    outdated: false,
                };
                service.processes.insert(process, begun);
                service.probes.insert(process, Probes::default());
                (5 * MS + random.around(30 * MS), fails)
            }
        }
        Step::CheckReady { .. } => (15 * MS + random.around(100 * MS), None),
        Step::AddAddress if service.is_foreign() => (MS + random.around(3 * MS), Some(FOREIGN)),
        Step::AddAddress => {
            service.address = Some(id);
            let nothing_else = service.mount.is_none() && service.processes.is_empty();
            (MS + random.around(3 * MS), (fails_start && nothing_else).then_some("the kernel refused"))
        }
    };
    match (hangs, step) {
        (None, _) => (Some(delay), fails),
        // The only step whose time the runner itself watches.
        (Some(timeout_us), Step::Prepare { .. }) => {
            (Some(timeout_us + random.around(20 * MS)), Some("it did not finish in time"))
        }
        (Some(_), _) => (None, fails),
    }
}

/// The mount is looked at before a process is begun.
fn without_mount(service: &Service, step: Step) -> Option<&'static str> {
    let refused = service.has_mount && service.at_path(true).may_begin(step).is_err();
    refused.then_some("its file system is not mounted")
}

/// Returns the error of a process that needs the file system and finds it dead. `None` if the file
/// system can be used.
fn content_fails(service: &Service, device_ok: bool) -> Option<&'static str> {
    let dead = service.mount.is_some_and(|mount| mount.state == MountState::Dead || !device_ok);
    dead.then_some("it ended with exit status 1: input/output error")
}

fn begin_undo(
    service: &mut Service,
    random: &mut Random,
    step: Step,
    force: bool,
    timeout_us: u64,
    hangs: bool,
) -> Begun {
    let in_use = !service.processes.is_empty() || !service.preparing.is_empty();
    match step {
        Step::ProbeAddress => (Some(random.around(MS)), None),
        Step::StartHook => (Some(random.around(5 * MS)), None),
        Step::Mount if force => (Some(random.around(2 * MS)), None),
        Step::Mount if service.mount.is_some() && (hangs || in_use) => (
            Some(timeout_us.saturating_sub(BUSY_GIVE_UP_US)),
            Some("unmounting failed: device or resource busy"),
        ),
        Step::Mount => (Some(random.around(10 * MS)), None),
        Step::Prepare { .. } | Step::CheckReady { .. } if hangs => {
            (Some(KILL_PATIENCE_US), Some("the processes could not be killed; they count as running"))
        }
        Step::Prepare { .. } | Step::CheckReady { .. } => (Some(random.around(5 * MS)), None),
        Step::StartProcess { .. } if force => (Some(random.around(5 * MS)), None),
        Step::StartProcess { process } => {
            let patience_us = timeout_us.saturating_sub(KILL_RESERVE_US);
            if !service.processes.get(&process).is_some_and(|known| known.started) {
                (Some(random.around(2 * MS)), None)
            } else if hangs {
                // F60: not even SIGKILL ends it, for now.
                let why = "the processes could not be killed; they count as running";
                (Some(patience_us + STOP_KILL_PATIENCE_US), Some(why))
            } else if service.faults.ignores_stop || service.is_hung(process) {
                (Some(patience_us + random.around(5 * MS)), None)
            } else {
                (Some((20 * MS + random.around(80 * MS)).min(patience_us.max(20 * MS))), None)
            }
        }
        Step::AddAddress if hangs => (None, None),
        Step::AddAddress => {
            let keeps = service.address.is_some() && std::mem::take(&mut service.faults.keeps_address);
            (Some(random.around(2 * MS)), keeps.then_some("the kernel refused to remove the address"))
        }
    }
}

/// The `Run` of `step` has come to its end without a failure of its own.
fn finish_run(service: &mut Service, step: Step) -> Option<Result<(), String>> {
    match step {
        Step::ProbeAddress if service.is_foreign() => return Some(Err(FOREIGN.into())),
        Step::Mount => {
            if let Some(mount) = &mut service.mount
                && mount.state == MountState::Unsure
            {
                mount.state = MountState::Mounted;
            }
        }
        Step::StartProcess { process } => {
            if let Some(known) = service.processes.get_mut(&process) {
                known.begins = false;
            }
        }
        Step::Prepare { process } => {
            // Killed by the guard in the middle.
            if service.preparing.remove(&process).is_none() {
                return Some(Err("prepare was killed".into()));
            }
        }
        // The check repeats for as long as the process does not answer. The end of the process is
        // reported elsewhere.
        Step::CheckReady { process }
            if !service.processes.get(&process).is_some_and(|known| known.started && !known.hung) =>
        {
            return None;
        }
        Step::StartHook | Step::ProbeAddress | Step::CheckReady { .. } | Step::AddAddress => {}
    }
    Some(Ok(()))
}

/// Ends what was begun before the undo `id`.
fn finish_undo(service: &mut Service, id: u64, step: Step) {
    match step {
        Step::Mount => service.mount = service.mount.filter(|mount| mount.since > id),
        Step::Prepare { process } => {
            service.preparing.retain(|known, since| *known != process || *since > id)
        }
        Step::StartProcess { process } => {
            service.processes.retain(|known, state| *known != process || state.since > id);
        }
        Step::AddAddress if service.address.is_none_or(|since| since <= id) => service.remove_address(),
        Step::AddAddress => {}
        Step::StartHook | Step::ProbeAddress | Step::CheckReady { .. } => {}
    }
}

/// An effect in words, for traces.
#[must_use]
pub fn words(effect: &Effect) -> String {
    match effect {
        Effect::Run { step, .. } => run_words(step),
        Effect::Undo { step, force: false, .. } => undo_words(step),
        Effect::Undo { step, force: true, .. } => format!("{} by force", undo_words(step)),
        Effect::Kill { .. } => KILL_WORDS.into(),
        Effect::Probe { process, .. } => format!("ask whether process {process} answers"),
        Effect::Persist(_) => "note the state".into(),
        Effect::Report(report) => {
            format!("{:?} in epoch {}: {}", report.phase, report.epoch.0, report.detail)
        }
    }
}

const KILL_WORDS: &str = "kill all processes";

fn run_words(step: &Step) -> String {
    match step {
        Step::StartHook => "run the hook before the start".into(),
        Step::ProbeAddress => "ask which host has the address".into(),
        Step::Mount => "mount".into(),
        Step::Prepare { process } => format!("prepare process {process}"),
        Step::StartProcess { process } => format!("start process {process}"),
        Step::CheckReady { process } => format!("wait until process {process} is ready"),
        Step::AddAddress => "take the address".into(),
    }
}

fn undo_words(step: &Step) -> String {
    match step {
        Step::StartHook => "end the hook before the start".into(),
        Step::ProbeAddress => "stop asking which host has the address".into(),
        Step::Mount => "unmount".into(),
        Step::Prepare { process } => format!("stop preparing process {process}"),
        Step::StartProcess { process } => format!("stop process {process}"),
        Step::CheckReady { process } => format!("stop waiting for process {process}"),
        Step::AddAddress => "give the address up".into(),
    }
}

#[cfg(test)]
mod tests;
