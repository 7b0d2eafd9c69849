//! The guard: silences this node's services before its lease ends (R19).
//!
//! What this file guarantees: when the lease is not renewed, the guard silences this node
//! [`mainstay_silence::GUARD_MARGIN_MS`] before its end. It removes the addresses, then kills the cgroups, then tells the
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
use crate::users::kill_cgroup;
use mainstay_silence::{guard_acts_at, silencing_pause_ms};
use mainstay_types::{ResourceId, Time};
use std::io;
use std::mem;
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

#[cfg(test)]
mod tests;
