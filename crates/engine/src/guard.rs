//! The guard: silences this node's services before its lease ends (R19).
//!
//! What this file guarantees: when the lease is not renewed, the guard silences this node
//! [`GUARD_MARGIN_MS`] before its end. It removes the addresses, then kills the cgroups, then tells the
//! shard to fail the devices, in this order, and each with a bounded wait. It needs neither the
//! agent nor the shard for that, nor memory of either: it has a thread of its own, and was told in
//! advance what to do. Its clock is the boot-time clock, by a timer that also fires after a
//! suspend.
//!
//! What it does not guarantee: anything when the machine stops running altogether and goes on
//! later. Then the guard acts late; only a watchdog would have acted in time.
//!
//! From the moment at which it begins until the lease is renewed no process of a service begins:
//! that is noted before the kill ([`LeaseFile::note_barred`]), and a process that starts looks
//! there after it has entered its cgroup.
//!
//! A lease that is renewed arms it again. What it could not do it tries again until the lease is
//! renewed.
//!
//! Each lease is noted for the silencer ([`crate::silencer`]) before the guard knows it, and is not
//! extended when that fails. The guard notes that it has acted, and notes that this node is silent
//! only when nothing is left to do. The notes are stores to memory: they wait for no disk if the
//! run directory has none ([`crate::lease_file`]).
//!
//! A guard that starts takes over what was noted for the one before it: the lease, and what to
//! silence.
//!
//! When the engine is told to end, the guard does all of that within the lease. It then waits until
//! file systems have written what they hold: the devices answer until the process ends.
//!
//! When the shard is about to fail the devices of one resource within the lease, the guard kills
//! the services on that resource. [`crate::users`] has the reason.

// Timers are system calls with pointers.
#![allow(unsafe_code)]

use crate::addresses::{AddressThread, Wanted};
use crate::lease_file::LeaseFile;
use crate::mount_table::{self, DeviceId};
use crate::ring::now;
use crate::users::kill_cgroup;
use mainstay_api::engine::GuardEntry;
use mainstay_silence::{GUARD_MARGIN_MS, SILENCER_MARGIN_MS, guard_acts_at, silencing_pause_ms};
use mainstay_types::{ResourceId, Time};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, mem};
use thiserror::Error;

/// How long killed processes are waited for before the devices fail regardless: a process that
/// waits for a device dies only when that answers.
const KILL_WAIT_MS: u64 = 150;
const KILL_POLL: Duration = Duration::from_millis(2);
/// How long the kernel may take to remove addresses before the kill goes on without.
const ADDRESSES_WAIT_MS: u64 = 150;
/// How long file systems may take to write what they hold, when the engine ends within its lease.
const DETACH_WAIT: Duration = Duration::from_secs(5);

/// How long an engine that ends tries again what it could not do.
const END_ATTEMPTS: Duration = Duration::from_secs(2);

const _: () = assert!(KILL_WAIT_MS < GUARD_MARGIN_MS / 2);
const _: () = assert!(ADDRESSES_WAIT_MS + KILL_WAIT_MS < GUARD_MARGIN_MS);
const _: () = assert!(ADDRESSES_WAIT_MS < SILENCER_MARGIN_MS);

/// Why a [`GuardEntry`] was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GuardError {
    #[error("{0:?} is not an address with a prefix length")]
    Address(String),
    #[error("{0:?} is not an absolute path")]
    Path(String),
}

/// A checked [`GuardEntry`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuardTarget {
    pub resource: ResourceId,
    pub cgroups: Vec<PathBuf>,
    /// Floating addresses. They are looked for on every interface.
    pub addresses: Vec<IpAddr>,
    pub mounts: Vec<PathBuf>,
    /// Links to devices of the resource; only what is mounted of them is detached.
    pub devices: Vec<PathBuf>,
}

impl TryFrom<&GuardEntry> for GuardTarget {
    type Error = GuardError;

    fn try_from(entry: &GuardEntry) -> Result<Self, GuardError> {
        let paths = |names: &[String]| -> Result<Vec<PathBuf>, GuardError> {
            let checked = names.iter().map(|name| {
                let path = PathBuf::from(name);
                if path.is_absolute() { Ok(path) } else { Err(GuardError::Path(name.clone())) }
            });
            checked.collect()
        };
        let addresses = entry
            .addresses
            .iter()
            .map(|given| parse_address(&given.address).ok_or(GuardError::Address(given.address.clone())));
        Ok(Self {
            resource: entry.resource,
            cgroups: paths(&entry.cgroups)?,
            addresses: addresses.collect::<Result<_, _>>()?,
            mounts: paths(&entry.mounts)?,
            devices: paths(&entry.devices)?,
        })
    }
}

impl GuardTarget {
    /// Parts of an entry that can be silenced. The function adds the other parts to `problems`, in
    /// words.
    pub(crate) fn usable(entry: &GuardEntry, problems: &mut Vec<String>) -> Self {
        let mut target = Self::nothing_of(entry.resource);
        for (names, paths) in [
            (&entry.cgroups, &mut target.cgroups),
            (&entry.mounts, &mut target.mounts),
            (&entry.devices, &mut target.devices),
        ] {
            for name in names {
                match PathBuf::from(name) {
                    path if path.is_absolute() => paths.push(path),
                    _ => problems.push(GuardError::Path(name.clone()).to_string()),
                }
            }
        }
        for given in &entry.addresses {
            match parse_address(&given.address) {
                Some(address) => target.addresses.push(address),
                None => problems.push(GuardError::Address(given.address.clone()).to_string()),
            }
        }
        target
    }

    pub(crate) fn nothing_of(resource: ResourceId) -> Self {
        Self { resource, cgroups: vec![], addresses: vec![], mounts: vec![], devices: vec![] }
    }
}

fn parse_address(text: &str) -> Option<IpAddr> {
    let (ip, prefix) = text.split_once('/')?;
    let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    (prefix <= longest).then_some(ip)
}

/// Result of a silencing by the guard. The shard gets it and then fails the devices of all
/// resources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silenced {
    /// End of the lease that was not renewed.
    pub until: Time,
    pub began: Time,
    pub addresses_gone: Time,
    pub processes_gone: Time,
    /// Steps that failed, in words.
    pub problems: Vec<String>,
    /// Targets that are not wholly silent, each reduced to its parts that are still there.
    pub left: Vec<GuardTarget>,
    /// Something of `left` has not even SIGKILL pending.
    pub failed: bool,
}

/// A message of the guard, given on the guard's own thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The lease was not renewed: the guard has silenced this node.
    Silenced(Silenced),
    /// The guard has sent SIGKILL to the services of a resource, as [`Guard::kill_users`] asked.
    Killed(ResourceId),
    /// The engine is about to end: this node is being silenced.
    Ends,
}

#[derive(Default)]
struct State {
    lease_until: Option<Time>,
    targets: Vec<GuardTarget>,
    /// Resources whose services are to be killed.
    doomed: Vec<ResourceId>,
    /// Acted and not renewed since.
    fenced: bool,
    /// Targets were named after the guard had acted: they are to be silenced too.
    late_targets: bool,
    /// The lease was renewed too late: the guard still has to silence this node for the end of the
    /// lease.
    overdue: bool,
    /// The guard is silencing this node at the moment.
    acting: bool,
    /// When the guard last finished silencing.
    silenced_at: Time,
    /// Parts of targets that the guard has tried to silence and could not.
    left: Vec<GuardTarget>,
    /// How often the guard has tried since the lease ended.
    attempts: u32,
    /// Set by a renewal: the parts in `left` are to stay.
    withdrawn: Arc<AtomicBool>,
    stopping: bool,
    /// The engine was told to end, and the guard has not begun with that.
    ending: bool,
    /// The engine was told to end: nothing may begin any more.
    ends: bool,
    /// All is silent for that.
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Copies of what `state` holds, for readers that must not wait.
    lease_until_us: AtomicU64,
    fenced: AtomicBool,
    timer: OwnedFd,
    /// For the silencer; `None` without one.
    noted: Option<LeaseFile>,
    changed: Condvar,
}

impl State {
    /// Time up to which everything that had begun here was silenced. While the guard acts this is
    /// now, as no step can be known to begin after the silencing.
    fn silenced(&self) -> Time {
        if self.acting { now() } else { self.silenced_at }
    }

    /// Gives up further attempts after a renewal of the lease. The agent deals with the parts that
    /// were not silenced: it is told that they should have been.
    fn withdraw(&mut self) {
        self.withdrawn.store(true, Ordering::SeqCst);
        self.left.clear();
    }

    /// For one end of the lease.
    fn wanted(&mut self) -> Wanted {
        let withdrawn = Arc::clone(&self.withdrawn);
        Arc::new(move || !withdrawn.load(Ordering::SeqCst))
    }

    fn begin(&mut self) {
        self.fenced = true;
        self.acting = true;
        self.attempts = 1;
        self.left.clear();
        self.withdrawn = Arc::new(AtomicBool::new(false));
    }

    fn cgroups_of(&self, resource: ResourceId) -> impl Iterator<Item = &PathBuf> {
        self.targets
            .iter()
            .filter(move |target| target.resource == resource)
            .flat_map(|target| &target.cgroups)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the timer; the point 0 of the clock would disarm it, so 1 is the earliest.
    fn arm(&self, at: Time) {
        let us = at.0.max(1);
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: i64::try_from(us / 1_000_000).unwrap_or(i64::MAX),
                tv_nsec: (us % 1_000_000 * 1000) as i64,
            },
        };
        // SAFETY: `spec` is valid for the call and the descriptor is open as long as `self`.
        let result = unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const spec,
                std::ptr::null_mut(),
            )
        };
        assert!(result == 0, "a valid time for a valid timer");
    }

    /// Blocks until the timer has fired.
    fn wait(&self) {
        let mut count = 0u64;
        // SAFETY: the eight bytes are a valid place for the result. An interrupted read returns
        // early, which only means that the caller looks at the clock once more.
        unsafe { libc::read(self.timer.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// From `at` on no process of a service begins; 0 ends that. The kill that follows is owed also
    /// where it cannot be noted.
    fn bar(&self, at: Time) {
        if let Err(error) = self.note(LeaseFile::note_barred, at) {
            tracing::error!(%error, "cannot note that no process may begin on this node");
        }
    }

    fn note(&self, write: fn(&LeaseFile, Time) -> io::Result<()>, at: Time) -> io::Result<()> {
        self.noted.as_ref().map_or(Ok(()), |file| write(file, at))
    }

    /// Time up to which everything that had begun here was silenced, by the guard or by a silencer.
    /// 0 if neither ever acted.
    fn silenced(&self, state: &State) -> Time {
        let noted = self.noted.as_ref().and_then(|file| file.silenced().ok());
        state.silenced().max(noted.unwrap_or_default())
    }

    /// Sets the timer for the end of the lease. If a resource's services are still to be killed,
    /// sets it for now, so that they are not forgotten.
    fn arm_for(&self, until: Time, state: &State) {
        self.arm(if state.doomed.is_empty() { guard_acts_at(until) } else { Time(1) });
    }
}

/// Handle of the guard's thread. Dropping it stops the guard without silencing anything.
pub struct Guard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts the guard, in the network namespace of the calling thread. It is idle until the first
    /// lease.
    ///
    /// `tell` is called on the guard's thread each time it has acted; it must not block. The
    /// devices are to fail then.
    pub fn start(tell: impl FnMut(Told) + Send + 'static) -> io::Result<Self> {
        Self::start_noting(None, Vec::new(), tell)
    }

    /// The same, with a silencer that reads `noted`. `known` is what an engine before this one was
    /// told to silence; it is to be silenced when the lease ends that was noted, unless it was.
    pub fn start_noting(
        noted: Option<LeaseFile>,
        known: Vec<GuardTarget>,
        tell: impl FnMut(Told) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(noted, known, AddressThread::start()?, tell)
    }

    fn start_with(
        noted: Option<LeaseFile>,
        known: Vec<GuardTarget>,
        mut addresses: AddressThread,
        mut tell: impl FnMut(Told) + Send + 'static,
    ) -> io::Result<Self> {
        let mut lease_until = None;
        if let Some(file) = &noted {
            let (until, silent) = (file.lease_until()?, file.silent()?);
            let done = silent >= guard_acts_at(until);
            lease_until = (!done && !known.is_empty()).then_some(until);
        }
        // SAFETY: timerfd_create takes no pointers.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC) };
        if timer < 0 {
            return Err(io::Error::last_os_error());
        }
        let shared = Arc::new(Shared {
            state: Mutex::new(State { lease_until, targets: known, ..State::default() }),
            lease_until_us: AtomicU64::new(0),
            fenced: AtomicBool::new(false),
            // SAFETY: the descriptor was just made and has no other owner.
            timer: unsafe { OwnedFd::from_raw_fd(timer) },
            noted,
            changed: Condvar::new(),
        });
        if let Some(until) = lease_until {
            shared.arm(guard_acts_at(until));
        }
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("guard".into()).spawn(move || {
            prefer_this_thread();
            watch(&worker, &mut addresses, &mut tell);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The lease now ends at `until`. This replaces the end that was said before, whether later or
    /// earlier. Returns [`Self::silenced`] as it was when the lease took effect: if that is the
    /// same the next time, nothing was silenced in between.
    ///
    /// # Errors
    /// When the lease cannot be noted for the silencer, or the engine is about to end. The lease
    /// before counts then.
    pub fn set_lease(&self, until: Time) -> io::Result<Time> {
        let mut state = self.shared.state();
        if state.ended {
            return Err(io::Error::other("the engine was told to end, and its node is silent"));
        }
        // Before the silencer's note is read: it reads the lease after it has written that note.
        self.shared.note(LeaseFile::note_lease, until)?;
        let now = now();
        let late = state.overdue || state.lease_until.is_some_and(|until| now >= guard_acts_at(until));
        state.lease_until = Some(until);
        self.shared.lease_until_us.store(until.0, Ordering::Release);
        if state.ends {
            // The devices answer for longer, and nothing else: this node is being silenced.
            return Ok(self.shared.silenced(&state));
        }
        if late && !state.fenced {
            // This process stood still. Services of another node may run by now, whatever lease
            // this one has again.
            state.overdue = true;
            self.shared.arm(Time(1));
            return Ok(self.shared.silenced(&state));
        }
        if now < guard_acts_at(until) {
            state.fenced = false;
            state.late_targets = false;
            if !state.acting {
                state.withdraw();
                self.shared.bar(Time(0));
            }
            self.shared.fenced.store(false, Ordering::Release);
        }
        if !state.fenced {
            self.shared.arm_for(until, &state);
        }
        Ok(self.shared.silenced(&state))
    }

    /// When the guard last finished silencing, on the boot-time clock: now while it is silencing, 0
    /// if it never did. Everything that began before this time was silenced.
    #[must_use]
    pub fn silenced(&self) -> Time {
        self.shared.silenced(&self.shared.state())
    }

    /// Sets the targets to silence, in place of those set before. If the guard has already acted,
    /// it silences the new targets at once.
    ///
    /// # Errors
    /// When the engine was told to end: the guard takes no more targets, so no step of a service
    /// may begin.
    pub fn set_targets(&self, targets: Vec<GuardTarget>) -> io::Result<()> {
        let mut state = self.shared.state();
        if state.ends {
            return Err(io::Error::other("the engine was told to end, and its node is being silenced"));
        }
        if state.fenced && state.targets != targets {
            state.late_targets = true;
            self.shared.arm(Time(1));
        }
        state.targets = targets;
        Ok(())
    }

    /// Called before devices of a resource fail. Returns true, so that they may fail, if no service
    /// of the resource is known here. Otherwise all processes of its services are killed, and
    /// [`Told::Killed`] says when.
    pub fn kill_users(&self, resource: ResourceId) -> bool {
        let mut state = self.shared.state();
        if state.cgroups_of(resource).next().is_none() {
            return true;
        }
        state.doomed.push(resource);
        self.shared.arm(Time(1));
        false
    }

    /// End of the lease, 0 before the first. Does not wait.
    #[must_use]
    pub fn lease_until(&self) -> Time {
        Time(self.shared.lease_until_us.load(Ordering::Acquire))
    }

    /// For the thread that is told to end the engine.
    #[must_use]
    pub fn ender(&self) -> GuardEnder {
        GuardEnder { shared: Arc::clone(&self.shared) }
    }

    /// Whether the guard has acted and the lease was not renewed since. Does not wait.
    #[must_use]
    pub fn fenced(&self) -> bool {
        self.shared.fenced.load(Ordering::Acquire)
    }
}

/// Silences this node because its engine ends.
pub struct GuardEnder {
    shared: Arc<Shared>,
}

impl GuardEnder {
    /// Returns when nothing of any service is left, or after `patience`.
    pub fn end(&self, patience: Duration) {
        let mut state = self.shared.state();
        state.ending = true;
        state.ends = true;
        self.shared.bar(now());
        self.shared.arm(Time(1));
        let waited = self.shared.changed.wait_timeout_while(state, patience, |state| !state.ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.ended {
            tracing::error!("the engine ends, and services of this node are not known to be silent");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.shared.arm(Time(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The guard does little and must not come late: it asks for a place before ordinary threads. Where
/// that is not permitted it runs as an ordinary thread. The thread that detaches mounts does not
/// inherit it.
pub(crate) fn prefer_this_thread() {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameters` is valid for the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "the guard runs without real-time priority");
    }
}

fn watch(shared: &Shared, addresses: &mut AddressThread, tell: &mut dyn FnMut(Told)) {
    let log = LogThread::start();
    loop {
        shared.wait();
        kill_doomed(shared, tell);
        let (until, targets, wanted, again) = {
            let mut state = shared.state();
            if state.stopping {
                return;
            }
            if mem::take(&mut state.ending) {
                state.begin();
                let (targets, wanted) = (state.targets.clone(), state.wanted());
                drop(state);
                end(shared, &targets, addresses, &wanted, tell);
                continue;
            }
            let Some(until) = state.lease_until else { continue };
            let again = state.fenced && !mem::take(&mut state.late_targets);
            if again {
                if state.left.is_empty() {
                    continue;
                }
                state.acting = true;
                state.attempts += 1;
            } else if !state.fenced && !mem::take(&mut state.overdue) && now() < guard_acts_at(until) {
                shared.arm_for(until, &state);
                continue;
            } else {
                state.begin();
                shared.bar(now());
                shared.fenced.store(true, Ordering::Release);
            }
            let targets = if again { state.left.clone() } else { state.targets.clone() };
            (until, targets, state.wanted(), again)
        };
        let silenced = silence(until, &targets, addresses, &wanted);
        if !again {
            // Before the devices fail, because with them their links may go.
            let mounts = guarded_mounts(&targets);
            tell(Told::Silenced(silenced.clone()));
            drop(detach_mounts(mounts, &wanted));
        }
        let noted = {
            let mut state = shared.state();
            state.acting = false;
            state.silenced_at = now();
            let mut noted = shared.note(LeaseFile::note_silenced, state.silenced_at);
            if !state.fenced {
                state.withdraw();
                shared.bar(Time(0));
            } else if silenced.failed {
                state.left.clone_from(&silenced.left);
                shared.arm(state.silenced_at.plus_ms(silencing_pause_ms(state.attempts)));
            } else {
                state.left.clear();
                noted = noted.and(shared.note(LeaseFile::note_silent, state.silenced_at));
            }
            noted
        };
        if again && silenced.failed {
            continue;
        }
        // Only now, and on another thread: a log without a reader must not hold up what has to be
        // done.
        log.tell(move || {
            if let Err(error) = noted {
                tracing::error!(%error, "cannot note that this node is silent: the silencer silences it again");
            }
            report(&silenced, &targets, "the lease was not renewed");
        });
    }
}

/// The engine ends. The lease goes on, so the devices answer until file systems have written what
/// they hold.
fn end(
    shared: &Shared,
    targets: &[GuardTarget],
    addresses: &mut AddressThread,
    wanted: &Wanted,
    tell: &mut dyn FnMut(Told),
) {
    // The agent first: what it sees end now it must not start again.
    tell(Told::Ends);
    let until = shared.state().lease_until.unwrap_or_default();
    let mut silenced = silence(until, targets, addresses, wanted);
    let deadline = Instant::now() + END_ATTEMPTS;
    while silenced.failed && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(silencing_pause_ms(1)));
        silenced = silence(until, &silenced.left, addresses, wanted);
    }
    let detached = detached(&detach_mounts(guarded_mounts(targets), wanted), DETACH_WAIT);
    let noted = {
        let mut state = shared.state();
        state.acting = false;
        state.silenced_at = now();
        state.ended = true;
        let mut noted = shared.note(LeaseFile::note_silenced, state.silenced_at);
        if silenced.left.is_empty() && detached {
            // Nothing is left for the silencer, which ends when it sees that there is no lease.
            noted = noted
                .and(shared.note(LeaseFile::note_silent, state.silenced_at))
                .and(shared.note(LeaseFile::note_lease, Time(0)));
        }
        noted
    };
    shared.changed.notify_all();
    if let Err(error) = noted {
        tracing::error!(%error, "cannot note that this node is silent: the silencer silences it when the lease ends");
    }
    report(&silenced, targets, "the engine was told to end");
}

/// Waits until threads have detached what they were given; returns whether they have.
pub(crate) fn detached(threads: &[JoinHandle<()>], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let ended = threads.iter().all(JoinHandle::is_finished);
        if ended || Instant::now() >= deadline {
            return ended;
        }
        thread::sleep(KILL_POLL);
    }
}

/// Writes to the log on a thread of its own: the reader of the log may be slow, or may have
/// stopped.
pub(crate) struct LogThread {
    lines: Option<SyncSender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    /// Most reports that wait. Those beyond are not written.
    const WAITING_MAX: usize = 16;
    /// How long the reports that wait may take when the owner ends.
    const PATIENCE: Duration = Duration::from_millis(500);

    pub(crate) fn start() -> Self {
        let (lines, waiting) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(Self::WAITING_MAX);
        let started = thread::Builder::new()
            .name("guard-log".into())
            .spawn(move || waiting.iter().for_each(|line| line()));
        Self { lines: Some(lines), thread: started.ok() }
    }

    pub(crate) fn tell(&self, line: impl FnOnce() + Send + 'static) {
        // The queue is full when the log has no reader.
        let _ = self.lines.as_ref().map(|lines| lines.try_send(Box::new(line)));
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.lines = None;
        detached(self.thread.as_slice(), Self::PATIENCE);
    }
}

/// Kills the services on resources whose devices are about to fail. It does not wait for their end:
/// see [`crate::users`].
fn kill_doomed(shared: &Shared, tell: &mut dyn FnMut(Told)) {
    let doomed = mem::take(&mut shared.state().doomed);
    for resource in doomed {
        let cgroups: Vec<PathBuf> = shared.state().cgroups_of(resource).cloned().collect();
        let results: Vec<_> = cgroups.iter().map(|cgroup| kill_cgroup(cgroup)).collect();
        tell(Told::Killed(resource));
        for (cgroup, result) in cgroups.iter().zip(results) {
            let cgroup = cgroup.display();
            match result {
                Ok(()) => tracing::warn!(%resource, %cgroup, "its device fails from now on: killed"),
                Err(error) => {
                    tracing::error!(%resource, %cgroup, %error, "its device fails, and it could not be killed")
                }
            }
        }
    }
}

pub(crate) fn silence(
    until: Time,
    targets: &[GuardTarget],
    addresses: &mut AddressThread,
    wanted: &Wanted,
) -> Silenced {
    let began = now();
    let mut left = Vec::new();
    let all = targets.iter().flat_map(|target| target.addresses.clone()).collect();
    let mut problems = addresses.remove(all, wanted, Duration::from_millis(ADDRESSES_WAIT_MS));
    let mut failed = !problems.is_empty();
    if failed {
        let with_addresses = targets.iter().filter(|target| !target.addresses.is_empty());
        left.extend(with_addresses.map(|target| GuardTarget {
            addresses: target.addresses.clone(),
            ..GuardTarget::nothing_of(target.resource)
        }));
    }
    let addresses_gone = now();
    let of = |target: &GuardTarget| {
        let resource = target.resource;
        target.cgroups.clone().into_iter().map(move |cgroup| (resource, cgroup))
    };
    let cgroups: Vec<(ResourceId, PathBuf)> = targets.iter().flat_map(of).collect();
    let mut there = BTreeSet::new();
    for (resource, cgroup) in &cgroups {
        if let Err(error) = kill_cgroup(cgroup) {
            problems.push(format!("cgroup {}: {error}", cgroup.display()));
            failed = true;
            there.insert((resource, cgroup));
        }
    }
    let end = addresses_gone.plus_ms(KILL_WAIT_MS);
    for (resource, cgroup) in &cgroups {
        while populated(cgroup) {
            if now() >= end {
                problems.push(format!("cgroup {} still has processes", cgroup.display()));
                there.insert((resource, cgroup));
                break;
            }
            thread::sleep(KILL_POLL);
        }
    }
    left.extend(there.into_iter().map(|(resource, cgroup)| GuardTarget {
        cgroups: vec![cgroup.clone()],
        ..GuardTarget::nothing_of(*resource)
    }));
    Silenced { until, began, addresses_gone, processes_gone: now(), problems, left, failed }
}

/// Whether a cgroup, nested ones included, has live processes.
fn populated(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

/// A mount point, and the device that a mount there must be on to be a service's own (R27).
pub(crate) type GuardedMount = (PathBuf, DeviceId);

pub(crate) fn guarded_mounts(targets: &[GuardTarget]) -> Vec<GuardedMount> {
    let of_target = |target: &GuardTarget| {
        let devices: Vec<DeviceId> =
            target.devices.iter().filter_map(|link| DeviceId::of(link).ok()).collect();
        let mounts = target.mounts.clone();
        mounts
            .into_iter()
            .flat_map(move |mount| devices.clone().into_iter().map(move |device| (mount.clone(), device)))
    };
    targets.iter().flat_map(|target| of_target(target).collect::<Vec<_>>()).collect()
}

/// Detaches mounts, each on a thread of its own: the last reference to a mount flushes it, and that
/// may take as long as the device does not answer. Mounts of others at the same place, in it or
/// over it, stay.
pub(crate) fn detach_mounts(mounts: Vec<GuardedMount>, wanted: &Wanted) -> Vec<JoinHandle<()>> {
    let start = |(mount, device): GuardedMount| {
        let wanted = Arc::clone(wanted);
        let started = thread::Builder::new().name("guard-unmount".into()).spawn(move || {
            if wanted()
                && let Err(error) = detach(&mount, device)
            {
                tracing::warn!(mount = %mount.display(), %error, "the guard could not detach a mount");
            }
        });
        started.inspect_err(|error| tracing::warn!(%error, "the guard could not detach a mount")).ok()
    };
    mounts.into_iter().filter_map(start).collect()
}

fn detach(mount: &Path, device: DeviceId) -> io::Result<()> {
    if !mount_table::is_own(mount, device)? {
        return Ok(());
    }
    let name = CString::new(mount.as_os_str().as_bytes())?;
    // SAFETY: the pointer is to a zero-terminated string that outlives the call.
    let result = unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    let error = io::Error::last_os_error();
    if result != 0 && !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) {
        return Err(error);
    }
    Ok(())
}

pub(crate) fn report(silenced: &Silenced, targets: &[GuardTarget], why: &str) {
    let left_ms = silenced.until.ms_since(silenced.processes_gone);
    let resources: Vec<String> = targets.iter().map(|target| target.resource.to_string()).collect();
    tracing::error!(
        lease_until_us = silenced.until.0,
        began_us = silenced.began.0,
        addresses_gone_us = silenced.addresses_gone.0,
        processes_gone_us = silenced.processes_gone.0,
        left_ms,
        resources = resources.join(" "),
        "{why}: addresses removed, processes killed, file systems detached"
    );
    for problem in &silenced.problems {
        tracing::error!(problem, "the guard could not silence everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::GuardAddress;
    use std::process::{Child, Command};

    fn entry(address: &str) -> GuardEntry {
        GuardEntry {
            resource: ResourceId(1),
            cgroups: vec![],
            addresses: vec![GuardAddress { interface: "lo".into(), address: address.into() }],
            mounts: vec![],
            devices: vec![],
        }
    }

    #[test]
    fn entries_are_checked() {
        for bad in ["10.0.0.1", "10.0.0.1/33", "x/24", "::1/129", "10.0.0.1/"] {
            assert_eq!(GuardTarget::try_from(&entry(bad)), Err(GuardError::Address(bad.into())));
        }
        let target = GuardTarget::try_from(&entry("fd00::7/64")).expect("well formed");
        assert_eq!(target.addresses, ["fd00::7".parse::<IpAddr>().expect("an address")]);
        let relative = GuardEntry { cgroups: vec!["x/y".into()], ..GuardEntry::default() };
        assert_eq!(GuardTarget::try_from(&relative), Err(GuardError::Path("x/y".into())));
    }

    fn told_by(tell: mpsc::Sender<Silenced>) -> impl FnMut(Told) + Send + 'static {
        move |told| match told {
            Told::Silenced(silenced) => tell.send(silenced).expect("heard"),
            other => panic!("nobody has asked for {other:?}"),
        }
    }

    #[test]
    fn it_acts_once_before_the_end_and_again_after_a_renewal() {
        let (tell, told) = mpsc::channel();
        let guard = Guard::start(told_by(tell)).expect("a guard");
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "no lease, no end of it");
        for _ in 0..2 {
            let until = now().plus_ms(1_500);
            let before = guard.silenced();
            assert_eq!(guard.set_lease(until).expect("taken"), before);
            assert!(!guard.fenced() && guard.lease_until() == until);
            assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "not yet");
            let silenced = told.recv_timeout(Duration::from_secs(5)).expect("acted");
            assert_eq!(silenced.until, until);
            assert!(silenced.began >= guard_acts_at(until) && guard.fenced());
            assert!(guard.silenced() >= silenced.processes_gone && guard.silenced() > before);
            assert!(told.recv_timeout(Duration::from_millis(400)).is_err(), "once");
        }
        // Renewals in time keep it quiet. All of this has a second to spare: machines stand still.
        for _ in 0..5 {
            guard.set_lease(now().plus_ms(1_500)).expect("taken");
            assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
        }
        // A lease that has ended already is acted upon at once.
        guard.set_lease(Time(1)).expect("taken");
        told.recv_timeout(Duration::from_secs(5)).expect("acted");
        guard
            .set_targets(vec![GuardTarget::try_from(&entry("10.213.250.9/24")).expect("well formed")])
            .expect("taken");
        told.recv_timeout(Duration::from_secs(5)).expect("what comes late is silenced too");
    }

    /// The whole process stood still when the lease ended, and what comes first afterwards is the
    /// next lease.
    #[test]
    fn a_lease_that_comes_too_late_does_not_keep_it_from_acting() {
        let (tell, told) = mpsc::channel();
        let guard = Guard::start(told_by(tell)).expect("a guard");
        guard.set_lease(now().plus_ms(60_000)).expect("taken");
        // As if its thread had not run since that lease ended.
        guard.shared.state().lease_until = Some(Time(1));
        guard.set_lease(now().plus_ms(60_000)).expect("taken");
        // It may have acted by now; then this is a lease like another.
        let acted = guard.set_lease(now().plus_ms(60_000)).expect("taken") > Time(0);
        told.recv_timeout(Duration::from_secs(5)).expect("acted");
        assert!((guard.fenced() || acted) && guard.silenced() > Time(0));
        guard.set_lease(now().plus_ms(60_000)).expect("taken");
        assert!(!guard.fenced());
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "once");
    }

    /// A guard whose lease is about to end, with a directory in the place of a cgroup.
    struct Ending {
        dir: PathBuf,
        /// Answers to each attempt to remove addresses.
        answers: mpsc::Sender<Vec<String>>,
        file: LeaseFile,
        guard: Guard,
        told: mpsc::Receiver<Told>,
    }

    impl Ending {
        fn new(name: &str, lease: Time) -> Self {
            let dir = std::env::temp_dir().join(format!("mainstay-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("cgroup")).expect("a directory");
            let file = LeaseFile::open(&dir).expect("a file");
            file.note_lease(lease).expect("noted");
            let (answers, asked) = mpsc::channel::<Vec<String>>();
            let addresses = AddressThread::start_with(move |_, _| asked.recv().unwrap_or_default());
            let known = GuardTarget {
                cgroups: vec![dir.join("cgroup")],
                addresses: vec![[10, 213, 250, 9].into()],
                ..GuardTarget::nothing_of(ResourceId(1))
            };
            let (tell, told) = mpsc::channel();
            let noted = LeaseFile::open(&dir).expect("the same file");
            let tell = move |what| drop(tell.send(what));
            let guard = Guard::start_with(Some(noted), vec![known], addresses.expect("a thread"), tell);
            Self { answers, file, guard: guard.expect("a guard"), told, dir }
        }

        fn silenced(&self) -> Silenced {
            match self.told.recv_timeout(Duration::from_secs(5)) {
                Ok(Told::Silenced(silenced)) => silenced,
                other => panic!("{other:?}"),
            }
        }

        fn killed(&self) -> bool {
            fs::remove_file(self.dir.join("cgroup/cgroup.kill")).is_ok()
        }

        fn silent(&self) -> Time {
            self.file.silent().expect("read")
        }

        fn wait_for(&self, what: &str, until: impl Fn(&Self) -> bool) {
            let end = now().plus_ms(10_000);
            while !until(self) {
                assert!(now() < end, "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn a_kernel_that_holds_up_addresses_does_not_hold_up_the_kill_and_they_are_tried_until_they_are_gone() {
        let lease = now().plus_ms(1_000);
        let ending = Ending::new("guard-addresses", lease);
        let silenced = ending.silenced();
        assert!(silenced.failed && ending.killed(), "{silenced:?}");
        assert!(ending.file.silenced().expect("read") <= now() && ending.silent() == Time(0));
        // The list changes under the kernel's hands, twice.
        for _ in 0..2 {
            ending.answers.send(vec!["the kernel does not list its addresses".into()]).expect("asked");
        }
        ending.answers.send(vec![]).expect("asked");
        ending.wait_for("it notes that all is silent", |ending| ending.silent() > Time(0));
        assert!(!ending.killed(), "only what is left is tried again");
        assert!(ending.guard.silenced() >= ending.silent());
    }

    #[test]
    fn nothing_is_tried_again_once_the_lease_is_renewed() {
        let ending = Ending::new("guard-renewed", now());
        ending.answers.send(vec!["the kernel does not list its addresses".into()]).expect("asked");
        assert!(ending.silenced().failed);
        ending.wait_for("it has acted", |ending| !ending.guard.shared.state().acting);
        ending.guard.set_lease(now().plus_ms(60_000)).expect("taken");
        assert!(!ending.guard.fenced());
        ending.wait_for("the rest is the agent's", |ending| {
            let state = ending.guard.shared.state();
            !state.acting && state.left.is_empty()
        });
        assert_eq!(ending.silent(), Time(0));
    }

    #[test]
    fn what_a_silencer_did_while_the_engine_started_is_told() {
        let ending = Ending::new("guard-told", now().plus_ms(60_000));
        assert_eq!(ending.guard.set_lease(now().plus_ms(60_000)).expect("taken"), Time(0));
        ending.file.note_silenced(Time(7)).expect("noted");
        assert_eq!(ending.guard.silenced(), Time(7));
        assert_eq!(ending.guard.set_lease(now().plus_ms(60_000)).expect("taken"), Time(7));
    }

    #[test]
    fn a_lease_that_ended_while_there_was_no_engine_is_acted_upon() {
        let lease = Time(now().0 - 1);
        let ending = Ending::new("guard-before", lease);
        ending.answers.send(vec![]).expect("asked");
        assert_eq!(ending.silenced().until, lease);
        assert!(ending.killed());
        ending.wait_for("it notes that all is silent", |ending| ending.silent() > Time(0));
    }

    #[test]
    fn a_lease_that_cannot_be_noted_is_not_taken() {
        let ending = Ending::new("guard-note", now().plus_ms(60_000));
        let until = now().plus_ms(60_000);
        ending.guard.set_lease(until).expect("taken");
        let cut = fs::File::options().write(true).open(ending.dir.join("lease"));
        cut.and_then(|file| file.set_len(0)).expect("cut off");
        ending.guard.set_lease(until.plus_ms(1)).expect_err("the silencer would not know");
        assert_eq!(ending.guard.lease_until(), until);
    }

    #[test]
    fn an_orderly_end_leaves_nothing_for_the_silencer() {
        let ending = Ending::new("guard-ends", now().plus_ms(60_000));
        ending.answers.send(vec![]).expect("asked");
        ending.guard.ender().end(Duration::from_secs(10));
        assert_eq!(ending.file.lease_until().expect("read"), Time(0));
        assert!(ending.silent() > Time(0) && ending.killed());
        ending.guard.set_lease(now().plus_ms(60_000)).expect_err("it ends");
        assert_eq!(ending.file.lease_until().expect("read"), Time(0));
    }

    /// A cgroup with a process in it; taken away at the end.
    struct Victim {
        cgroup: PathBuf,
        process: Child,
    }

    impl Victim {
        fn new(name: &str) -> Option<Self> {
            let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
            let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
            let cgroup = Path::new(mount).join(format!("mainstay-test-{name}-{}", std::process::id()));
            fs::create_dir(&cgroup).ok()?;
            let process = Command::new("sleep").arg("1000").spawn().expect("sleep");
            fs::write(cgroup.join("cgroup.procs"), process.id().to_string()).expect("moved");
            Some(Self { cgroup, process })
        }
    }

    impl Drop for Victim {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
            let _ = fs::remove_dir(&self.cgroup);
        }
    }

    fn ip(arguments: &[&str]) -> String {
        let output = Command::new("ip").args(arguments).output().expect("iproute2");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn users_are_killed_when_their_device_is_to_fail_and_that_is_told_afterwards() {
        let Some(mut victim) = Victim::new("users") else {
            eprintln!("skipped: needs a writable cgroup version 2 hierarchy");
            return;
        };
        let (tell, told) = mpsc::channel();
        let guard = Guard::start(move |what| tell.send(what).expect("heard"));
        let guard = guard.expect("a guard");
        assert!(guard.kill_users(ResourceId(1)), "nobody is known");
        let cgroups = vec![victim.cgroup.to_str().expect("text").into()];
        let entry = GuardEntry { resource: ResourceId(1), cgroups, ..GuardEntry::default() };
        guard.set_targets(vec![GuardTarget::try_from(&entry).expect("well formed")]).expect("taken");
        assert!(guard.kill_users(ResourceId(2)), "another resource");
        assert!(populated(&victim.cgroup));
        assert!(!guard.kill_users(ResourceId(1)));
        // To set the timer anew does not make the guard forget.
        for _ in 0..100 {
            guard.set_lease(now().plus_ms(60_000)).expect("taken");
        }
        let what = told.recv_timeout(Duration::from_secs(5)).expect("told");
        assert_eq!(what, Told::Killed(ResourceId(1)));
        assert!(!victim.process.wait().expect("our child").success(), "killed");
        assert!(!guard.fenced() && guard.silenced() == Time(0), "the lease goes on");
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "once");
    }

    #[test]
    fn no_process_begins_from_the_silencing_on_until_the_lease_is_renewed_and_none_on_an_engine_that_ends() {
        let dir = std::env::temp_dir().join(format!("mainstay-barred-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let noted = || LeaseFile::open(&dir).expect("a file");
        let is_barred = || noted().barred().expect("read") != Time(0);
        let target = GuardTarget::nothing_of(ResourceId(1));
        let (tell, told) = mpsc::channel();
        let tell = move |what| tell.send(what).expect("heard");
        let guard = Guard::start_noting(Some(noted()), Vec::new(), tell).expect("a guard");
        guard.set_lease(now().plus_ms(60_000)).expect("taken");
        assert!(!is_barred());
        // The lease ends.
        guard.set_lease(Time(1)).expect("taken");
        told.recv_timeout(Duration::from_secs(5)).expect("acted");
        assert!(is_barred());
        let renewed = now().plus_ms(60_000);
        guard.set_lease(renewed).expect("taken");
        let end = now().plus_ms(5_000);
        while is_barred() {
            assert!(now() < end, "it has a lease, and has done what it had to do");
            thread::sleep(Duration::from_millis(2));
        }
        guard.set_targets(vec![target.clone()]).expect("it guards");
        // The engine ends: a renewal lets the devices answer, and nothing begins.
        guard.ender().end(Duration::from_secs(20));
        assert!(is_barred());
        assert!(guard.set_targets(vec![target.clone(), target]).is_err());
        assert!(guard.set_lease(renewed).is_err() && is_barred());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [Told::Ends], "it silences once");
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn addresses_go_first_then_processes_and_all_before_the_lease_ends() {
        // SAFETY: the thread that the test runs on gets a network of its own, which ends with it.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            eprintln!("skipped: needs the right to make a network namespace");
            return;
        }
        let Some(mut victim) = Victim::new("guard") else {
            eprintln!("skipped: needs a writable cgroup version 2 hierarchy");
            return;
        };
        ip(&["link", "add", "guarded", "type", "veth", "peer", "name", "other"]);
        ip(&["addr", "add", "10.213.250.1/24", "dev", "guarded"]);
        ip(&["addr", "add", "10.213.250.9/32", "dev", "guarded", "label", "guarded:mnst"]);
        // An administrator's, although a service has the same.
        ip(&["addr", "add", "10.213.250.8/24", "dev", "guarded"]);
        let mut entry = entry("10.213.250.9/24");
        entry.addresses[0].interface = "guarded".into();
        for address in ["10.213.250.7/24", "10.213.250.8/24", "10.213.250.77/24", "fd00:213::9/64"] {
            entry.addresses.push(GuardAddress { interface: String::new(), address: address.into() });
        }
        let directory = std::env::temp_dir().join(format!("mainstay-guard-{}", std::process::id()));
        let [mount, others] = ["own", "others"].map(|name| directory.join(name));
        for point in [&mount, &others] {
            fs::create_dir_all(point).expect("a directory");
        }
        let device = mounted_device(&directory.join("file"), &mount);
        command("mount", &["-t", "tmpfs", "others", others.to_str().expect("text")]);
        let path = |path: &Path| path.to_str().expect("text").to_owned();
        entry.mounts = vec![path(&mount), path(&others), "/no/such/mount".into()];
        entry.devices = vec![device.clone(), "/no/such/device".into()];
        entry.cgroups =
            vec![victim.cgroup.to_str().expect("text").into(), "/sys/fs/cgroup/no-such-group".into()];
        let (tell, told) = mpsc::channel();
        let guard = Guard::start(told_by(tell)).expect("a guard");
        guard.set_targets(vec![GuardTarget::try_from(&entry).expect("well formed")]).expect("taken");
        let until = now().plus_ms(1_000);
        guard.set_lease(until).expect("taken");
        // An interface that comes after the list, and one that gets another name.
        ip(&["link", "add", "late", "type", "veth", "peer", "name", "late-peer"]);
        ip(&["addr", "add", "10.213.250.7/32", "dev", "late", "label", "late:mnst"]);
        ip(&["link", "set", "guarded", "name", "renamed"]);
        let silenced = told.recv_timeout(Duration::from_secs(5)).expect("acted");
        assert_eq!(silenced.problems, Vec::<String>::new());
        assert!(
            silenced.began <= silenced.addresses_gone && silenced.addresses_gone <= silenced.processes_gone
        );
        assert!(silenced.processes_gone < until, "{silenced:?}");
        let left = ip(&["-o", "addr", "show"]);
        assert!(left.contains("10.213.250.1/24") && left.contains("10.213.250.8/24"), "{left}");
        assert!(!left.contains("10.213.250.9") && !left.contains("10.213.250.7"), "{left}");
        assert!(!populated(&victim.cgroup));
        assert!(victim.process.try_wait().expect("our child").is_some(), "killed");
        let end = now().plus_ms(5000);
        while fs::remove_dir(&mount).is_err() {
            assert!(now() < end, "the mount is detached, and its directory empty");
            thread::sleep(Duration::from_millis(5));
        }
        let stays = fs::remove_dir(&others).is_err();
        command("umount", &[&path(&others)]);
        command("losetup", &["--detach", &device]);
        fs::remove_dir_all(&directory).expect("removed");
        assert!(stays, "a mount that is not on a device of the resource is not the guard's");
    }

    fn command(program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).output().expect("it is installed");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A loop device on a file, with a file system that is mounted.
    fn mounted_device(file: &Path, point: &Path) -> String {
        fs::File::create(file).and_then(|file| file.set_len(16 << 20)).expect("a file");
        let device = command("losetup", &["--find", "--show", file.to_str().expect("text")]);
        command("mkfs.ext4", &["-q", &device]);
        command("mount", &[&device, point.to_str().expect("text")]);
        device
    }
}
