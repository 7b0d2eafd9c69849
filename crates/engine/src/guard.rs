//! The guard: silences this node before its lease ends (R19). What it does when is decided by
//! [`mainstay_silence::Guard`], and its head says what follows; this file has the thread, the timer
//! and the notes.
//!
//! Guarantee: the guard needs neither the agent nor the shard, nor memory of
//! either: it has a thread of its own, and was told in advance what to do. Its clock is the
//! boot-time clock, by a timer that also fires after a suspend. Each of its steps has a bounded
//! wait.
//!
//! Not guaranteed: anything when the machine stops running altogether and goes on
//! later. Then the guard acts late; only a watchdog would have acted in time.
//!
//! That no process of a service begins is noted before the kill ([`LeaseFile::note_barred`]), and a
//! process that starts looks there after it has entered its cgroup.
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
//! the services on that resource. [`mainstay_devices::users`] has the reason.

// Timers are system calls with pointers.
#![allow(unsafe_code)]

mod log_thread;
mod silencing;
mod target;

pub(crate) use log_thread::LogThread;
pub use silencing::Silenced;
pub(crate) use silencing::{detach_mounts, detached, guarded_mounts, report, silence};
pub use target::{GuardError, GuardTarget};

use crate::addresses::{AddressThread, Wanted};
use crate::lease_file::LeaseFile;
use crate::ring::now;
use mainstay_devices::users::kill_cgroup;
use mainstay_silence::{Effect, EngineEnds, Silencing, Step, WatchdogSees, Why, silencing_pause_ms};
use mainstay_types::{ResourceId, Time};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long file systems may take to write what they hold, when the engine ends within its lease.
const DETACH_WAIT: Duration = Duration::from_secs(5);

/// How long an engine that ends tries again what it could not do.
const END_ATTEMPTS: Duration = Duration::from_secs(2);

/// A message of the guard, given on the guard's own thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GuardNotice {
    /// The lease was not renewed: the guard has silenced this node.
    Silenced(Silenced),
    /// The guard has sent SIGKILL to the services of a resource, as [`Guard::kill_users`] asked.
    Killed(ResourceId),
    /// The engine is about to end: this node is being silenced.
    Ends,
}

struct State {
    guard: mainstay_silence::Guard<GuardTarget>,
    /// Set by a renewal: what is still being tried is to stay.
    withdrawn: Arc<AtomicBool>,
    stopping: bool,
}

struct GuardShared {
    state: Mutex<State>,
    /// Copies of what `state` holds, for readers that must not wait.
    lease_until_us: AtomicU64,
    fenced: AtomicBool,
    /// The guard's thread runs.
    watches: AtomicBool,
    timer: OwnedFd,
    /// For the silencer; `None` without one.
    noted: Option<LeaseFile>,
    changed: Condvar,
}

impl State {
    /// For one end of the lease.
    fn wanted(&self) -> Wanted {
        let withdrawn = Arc::clone(&self.withdrawn);
        Arc::new(move || !withdrawn.load(Ordering::SeqCst))
    }
}

fn cgroups_of(targets: &[GuardTarget], resource: ResourceId) -> impl Iterator<Item = &PathBuf> {
    targets.iter().filter(move |target| target.resource == resource).flat_map(|target| &target.cgroups)
}

impl GuardShared {
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
        state.guard.silenced_at(now()).max(noted.unwrap_or_default())
    }

    /// Carries out the effects of an event. Returns the first error of a note.
    fn carry_out(&self, state: &mut State) -> io::Result<()> {
        let mut noted = Ok(());
        while let Some(effect) = state.guard.poll() {
            match effect {
                Effect::WakeAt(at) => self.arm(at),
                Effect::Bar(at) => self.bar(at),
                Effect::Unbar => self.bar(Time(0)),
                Effect::Fence => self.fenced.store(true, Ordering::Release),
                Effect::Unfence => self.fenced.store(false, Ordering::Release),
                Effect::GiveUp => state.withdrawn.store(true, Ordering::SeqCst),
                Effect::NoteSilenced(at) => noted = noted.and(self.note(LeaseFile::note_silenced, at)),
                Effect::NoteSilent(at) => noted = noted.and(self.note(LeaseFile::note_silent, at)),
                Effect::NoteNoLease => noted = noted.and(self.note(LeaseFile::note_lease, Time(0))),
            }
        }
        noted
    }
}

/// Handle of the guard's thread. Dropping it stops the guard without silencing anything.
pub struct Guard {
    shared: Arc<GuardShared>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts the guard, in the network namespace of the calling thread. It is idle until the first
    /// lease.
    ///
    /// `tell` is called on the guard's thread each time it has acted; it must not block. The
    /// devices are to fail then.
    pub fn start(tell: impl FnMut(GuardNotice) + Send + 'static) -> io::Result<Self> {
        Self::start_noting(None, Vec::new(), tell)
    }

    /// The same, with a silencer that reads `noted`. `known` is what an engine before this one was
    /// told to silence; it is to be silenced when the lease ends that was noted, unless it was.
    pub fn start_noting(
        noted: Option<LeaseFile>,
        known: Vec<GuardTarget>,
        tell: impl FnMut(GuardNotice) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(noted, known, AddressThread::start()?, tell)
    }

    fn start_with(
        noted: Option<LeaseFile>,
        known: Vec<GuardTarget>,
        mut addresses: AddressThread,
        mut tell: impl FnMut(GuardNotice) + Send + 'static,
    ) -> io::Result<Self> {
        let guard = match &noted {
            Some(file) => mainstay_silence::Guard::taking_over(file.lease_until()?, file.silent()?, known),
            None => mainstay_silence::Guard::new(known),
        };
        // SAFETY: timerfd_create takes no pointers.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC) };
        if timer < 0 {
            return Err(io::Error::last_os_error());
        }
        let shared = Arc::new(GuardShared {
            state: Mutex::new(State { guard, withdrawn: Arc::default(), stopping: false }),
            lease_until_us: AtomicU64::new(0),
            fenced: AtomicBool::new(false),
            watches: AtomicBool::new(true),
            // SAFETY: the descriptor was just made and has no other owner.
            timer: unsafe { OwnedFd::from_raw_fd(timer) },
            noted,
            changed: Condvar::new(),
        });
        shared.carry_out(&mut shared.state())?;
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("guard".into()).spawn(move || {
            let _ends = Watches(&worker);
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
        if state.guard.takes_lease().is_err() {
            return Err(io::Error::other("the engine was told to end, and its node is silent"));
        }
        // Before the silencer's note is read: it reads the lease after it has written that note.
        self.shared.note(LeaseFile::note_lease, until)?;
        self.shared.lease_until_us.store(until.0, Ordering::Release);
        state.guard.lease(now(), until);
        self.shared.carry_out(&mut state)?;
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
        state.guard.set_targets(targets).map_err(|EngineEnds| {
            io::Error::other("the engine was told to end, and its node is being silenced")
        })?;
        self.shared.carry_out(&mut state)
    }

    /// Called before devices of a resource fail. Returns true, so that they may fail, if no service
    /// of the resource is known here. Otherwise all processes of its services are killed, and
    /// [`GuardNotice::Killed`] says when.
    pub fn kill_users(&self, resource: ResourceId) -> bool {
        let mut state = self.shared.state();
        let uses = |target: &GuardTarget| target.resource == resource && !target.cgroups.is_empty();
        let unused = state.guard.devices_fail(resource, uses);
        // An effect of this event is no note, so none can fail.
        let _ = self.shared.carry_out(&mut state);
        unused
    }

    /// End of the lease, 0 before the first. Does not wait.
    #[must_use]
    pub fn lease_until(&self) -> Time {
        Time(self.shared.lease_until_us.load(Ordering::Acquire))
    }

    /// For the watchdog.
    #[must_use]
    pub fn view(&self) -> GuardView {
        GuardView { shared: Arc::clone(&self.shared) }
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

/// Says that the guard's thread has ended, also by a panic.
struct Watches<'a>(&'a GuardShared);

impl Drop for Watches<'_> {
    fn drop(&mut self) {
        self.0.watches.store(false, Ordering::Release);
    }
}

/// What the guard knows, for the watchdog.
pub struct GuardView {
    shared: Arc<GuardShared>,
}

impl GuardView {
    /// What counts for the watchdog at this moment.
    #[must_use]
    pub fn sees(&self, at: Time) -> WatchdogSees {
        let state = self.shared.state();
        let guard = &state.guard;
        let noted = self.shared.noted.as_ref().and_then(|file| file.silent().ok()).unwrap_or_default();
        let done = guard.is_fenced() && !guard.acts() && guard.left().is_empty();
        let silent = if done { noted.max(guard.silenced_at(at)) } else { noted };
        WatchdogSees {
            lease_until: Time(self.shared.lease_until_us.load(Ordering::Acquire)),
            serves: !guard.targets().is_empty(),
            silent,
            guarded: self.shared.watches.load(Ordering::Acquire),
            ended: guard.has_ended(),
        }
    }
}

/// Silences this node because its engine ends.
pub struct GuardEnder {
    shared: Arc<GuardShared>,
}

impl GuardEnder {
    /// Returns when nothing of any service is left, or after `patience`.
    pub fn end(&self, patience: Duration) {
        let mut state = self.shared.state();
        state.guard.end(now());
        let _ = self.shared.carry_out(&mut state);
        let waited =
            self.shared.changed.wait_timeout_while(state, patience, |state| !state.guard.has_ended());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.guard.has_ended() {
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

fn watch(shared: &GuardShared, addresses: &mut AddressThread, tell: &mut dyn FnMut(GuardNotice)) {
    let log = LogThread::start();
    loop {
        shared.wait();
        kill_doomed(shared, tell);
        let (silencing, wanted) = {
            let mut state = shared.state();
            if state.stopping {
                return;
            }
            let silencing = state.guard.woken(now());
            if silencing.as_ref().is_some_and(|silencing| silencing.why != Why::SomethingLeft) {
                state.withdrawn = Arc::default();
            }
            let _ = shared.carry_out(&mut state);
            let Some(silencing) = silencing else { continue };
            (silencing, state.wanted())
        };
        let ends = silencing.why == Why::EngineEnds;
        let (silenced, detaching) = take_steps(&silencing, addresses, &wanted, tell);
        let detached = ends && detached(&detaching, DETACH_WAIT);
        let noted = {
            let mut state = shared.state();
            if ends {
                state.guard.ended(now(), silenced.left.is_empty() && detached);
            } else {
                state.guard.silenced(now(), silenced.failed.then(|| silenced.left.clone()));
            }
            shared.carry_out(&mut state)
        };
        if ends {
            shared.changed.notify_all();
            if let Err(error) = noted {
                tracing::error!(%error, "cannot note that this node is silent: the silencer silences it when the lease ends");
            }
            report(&silenced, &silencing.targets, "the engine was told to end");
            continue;
        }
        if silencing.why == Why::SomethingLeft && silenced.failed {
            continue;
        }
        // Only now, and on another thread: a log without a reader must not hold up what has to be
        // done.
        log.tell(move || {
            if let Err(error) = noted {
                tracing::error!(%error, "cannot note that this node is silent: the silencer silences it again");
            }
            report(&silenced, &silencing.targets, "the lease was not renewed");
        });
    }
}

/// Takes the steps of a silencing. Returns its result, and the threads that detach mounts.
fn take_steps(
    silencing: &Silencing<GuardTarget>,
    addresses: &mut AddressThread,
    wanted: &Wanted,
    tell: &mut dyn FnMut(GuardNotice),
) -> (Silenced, Vec<JoinHandle<()>>) {
    let targets = &silencing.targets;
    let mut silenced = Silenced::begins(silencing.until);
    let (mut mounts, mut detaching) = (None, Vec::new());
    for step in silencing.steps {
        match step {
            Step::Agent => tell(GuardNotice::Ends),
            Step::Addresses => silenced.remove_addresses(targets, addresses, wanted),
            Step::Processes => silenced.kill_processes(targets),
            Step::Rest => {
                let deadline = Instant::now() + END_ATTEMPTS;
                while silenced.failed && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(silencing_pause_ms(1)));
                    silenced = silence(silencing.until, &silenced.left, addresses, wanted);
                }
            }
            Step::Devices => {
                // Before the devices fail, because with them their links may go.
                mounts = Some(guarded_mounts(targets));
                tell(GuardNotice::Silenced(silenced.clone()));
            }
            Step::Mounts => {
                detaching = detach_mounts(mounts.take().unwrap_or_else(|| guarded_mounts(targets)), wanted);
            }
        }
    }
    (silenced, detaching)
}

/// Kills the services on resources whose devices are about to fail. It does not wait for their end:
/// see [`mainstay_devices::users`].
fn kill_doomed(shared: &GuardShared, tell: &mut dyn FnMut(GuardNotice)) {
    let doomed = shared.state().guard.take_doomed();
    for resource in doomed {
        let cgroups: Vec<PathBuf> = cgroups_of(shared.state().guard.targets(), resource).cloned().collect();
        let results: Vec<_> = cgroups.iter().map(|cgroup| kill_cgroup(cgroup)).collect();
        tell(GuardNotice::Killed(resource));
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

#[cfg(test)]
mod tests;
