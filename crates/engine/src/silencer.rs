//! The silencer: a small process that outlives engine and agent, and silences this node when the
//! lease ends (R19).
//!
//! ```text
//!   engine                                    silencer, a process of its own
//!   lease_file.rs: lease, when it was silenced ─▶ looked at before the lease ends
//!   users.json: what to silence                ─▶ read at each look; the last list that could be read counts
//!   LOCK_FILE, held                            ─▶ is there an engine?
//! ```
//!
//! Guarantees
//! - It needs neither the memory nor a descriptor of engine or agent. Everything that it needs is
//!   noted before it counts: the list before a step of a service begins
//!   ([`mainstay_devices::users`]), the lease before the guard knows it.
//! - It does what the guard does, in the same order and with the same code, and only when the guard
//!   has not: see [`mainstay_silence::silencer_does`].
//! - After an attempt it tries the rest again, and only the rest, for as long as the lease is not
//!   renewed. Lease, list and process id are read again before each attempt.
//! - Its clock is the boot-time clock, so a suspend does not make it late.
//! - An engine that starts has a silencer of its own. The earlier silencer ends as soon as the new
//!   one looks out. An engine that starts during the first attempt waits for its end, and knows
//!   afterwards that this node was silenced.
//! - It has a session of its own, and, as soon as there is something to silence, a cgroup of its
//!   own beside those of the services. So the end of the engine's unit does not end it.
//!
//! Not guaranteed: anything when it is killed together with engine and agent, or when
//! the machine stands still as a whole.

// Sessions, signals and names of processes are system calls.
#![allow(unsafe_code)]

use crate::addresses::{AddressThread, Wanted};
use crate::guard::{self, GuardTarget, LogThread};
use crate::lease_file::LeaseFile;
use crate::mount_table;
use crate::ring::now;
use mainstay_devices::users::Users;
use mainstay_silence::{SilencerDoes, SilencerSees, silencer_does, silencing_pause_ms};
use mainstay_types::Time;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Held by the engine for as long as it lives, and by a silencer while it acts.
const LOCK_FILE: &str = "engine.lock";
/// The silencer that looks out, by its process id.
const PID_FILE: &str = "silencer.pid";
/// Below the cgroup of the services. No service has a name with a dot.
const CGROUP: &str = "mainstay.silencer";
/// How long an engine that starts waits for a silencer that acts.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long file systems that are detached may take to write what they hold.
const DETACH_WAIT: Duration = Duration::from_secs(4);
const _: () = assert!(DETACH_WAIT.as_secs() < LOCK_WAIT.as_secs());
/// A silencer that was ended by others is started again after this time.
const RESTART: Duration = Duration::from_secs(1);

/// The command of the binary that runs [`run`].
pub const COMMAND: &str = "silencer";

/// Lock by which the silencer knows that an engine runs. Dropping it means that none does.
#[derive(Debug)]
pub struct EnginePresence {
    _lock: File,
}

/// Takes the engine's lock in this run directory. Waits for a silencer that acts.
///
/// # Errors
/// When the file cannot be made.
pub fn engine_is_here(run_dir: &Path) -> io::Result<EnginePresence> {
    let lock = File::options().write(true).create(true).truncate(false).open(run_dir.join(LOCK_FILE))?;
    let deadline = Instant::now() + LOCK_WAIT;
    while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if Instant::now() >= deadline {
            tracing::warn!(%error, "another engine, or its silencer, uses the run directory; this one goes on all the same");
            // Both descriptors are of one open file, so the lock is this engine's as soon as the
            // thread has it.
            let waits = lock.try_clone()?;
            thread::Builder::new()
                .name("engine-lock".into())
                .spawn(move || flock(&waits, FlockOperation::LockExclusive))?;
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(EnginePresence { _lock: lock })
}

/// Keeps a silencer running for as long as this process lives.
///
/// # Errors
/// When there is no thread for it.
pub fn keep(run_dir: PathBuf) -> io::Result<()> {
    thread::Builder::new().name("silencer".into()).spawn(move || {
        loop {
            let started = Command::new("/proc/self/exe")
                .arg0("mainstay")
                .arg(COMMAND)
                .arg("--run-dir")
                .arg(&run_dir)
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            match started.and_then(|mut child| child.wait()) {
                Ok(status) => tracing::warn!(%status, "the silencer has ended; it is started again"),
                Err(error) => {
                    tracing::error!(%error, "no silencer: if engine and agent die, services go on after the lease; it is tried again");
                }
            }
            thread::sleep(RESTART);
        }
    })?;
    Ok(())
}

/// Runs a silencer until there is nothing more to do for it.
///
/// # Errors
/// When the run directory or the kernel's interfaces cannot be used.
pub fn run(run_dir: &Path) -> io::Result<()> {
    stand_alone();
    let mut lookout = Lookout::new(run_dir, AddressThread::start()?)?;
    while let Some(until) = lookout.look() {
        sleep_until(until);
    }
    Ok(())
}

/// Sleeps on the boot-time clock, which goes on during a suspend.
fn sleep_until(at: Time) {
    let spec = libc::timespec {
        tv_sec: i64::try_from(at.0 / 1_000_000).unwrap_or(i64::MAX),
        tv_nsec: (at.0 % 1_000_000 * 1000) as i64,
    };
    // SAFETY: `spec` is valid for the call. A signal makes it return early, which only means one
    // more look.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_BOOTTIME,
            libc::TIMER_ABSTIME,
            &raw const spec,
            std::ptr::null_mut(),
        )
    };
}

/// A silencer between two looks.
struct Lookout {
    run_dir: PathBuf,
    /// This process, as [`PID_FILE`] says it.
    own: String,
    file: Arc<LeaseFile>,
    users: Users,
    lock: File,
    addresses: AddressThread,
    log: LogThread,
    /// The last lease that could be read.
    lease_until: Time,
    /// The last list that could be read.
    list: Vec<GuardTarget>,
    /// Why the list is not the newest, or not whole, in words; empty if it is.
    list_problems: Vec<String>,
    /// The silencer has tried to move to a cgroup of its own.
    apart: bool,
    attempts: Option<Attempts>,
    detaching: Vec<JoinHandle<()>>,
}

/// Attempts to silence this node at the end of one lease.
struct Attempts {
    lease_until: Time,
    made: u32,
    /// The list that was read for the last one.
    list: Vec<GuardTarget>,
    left: Vec<GuardTarget>,
    next: Time,
}

impl Lookout {
    fn new(run_dir: &Path, addresses: AddressThread) -> io::Result<Self> {
        let file = Arc::new(LeaseFile::open(run_dir)?);
        let lock = File::options().write(true).create(true).truncate(false).open(run_dir.join(LOCK_FILE))?;
        let own = std::process::id().to_string();
        let fresh = run_dir.join(format!("{PID_FILE}.{own}"));
        fs::write(&fresh, &own)?;
        fs::rename(&fresh, run_dir.join(PID_FILE))?;
        Ok(Self {
            run_dir: run_dir.into(),
            own,
            lease_until: file.lease_until()?,
            file,
            users: Users::new(run_dir),
            lock,
            addresses,
            log: LogThread::start(),
            list: Vec::new(),
            list_problems: Vec::new(),
            apart: false,
            attempts: None,
            detaching: Vec::new(),
        })
    }

    /// Looks at everything, and silences this node if it is time. Returns when it looks again;
    /// `None` when it ends.
    fn look(&mut self) -> Option<Time> {
        // A run directory that was cleared does not say that there is another silencer.
        if fs::read_to_string(self.run_dir.join(PID_FILE)).is_ok_and(|newest| newest != self.own) {
            return None;
        }
        self.read_list();
        self.lease_until = self.file.lease_until().unwrap_or(self.lease_until);
        self.attempts.take_if(|attempts| attempts.lease_until != self.lease_until);
        let alone = flock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        let sees = SilencerSees {
            lease_until: self.lease_until,
            silenced: self.file.silent().unwrap_or_default(),
            engine: !alone,
            guarded: !self.list.is_empty(),
        };
        let looks_again = match silencer_does(now(), sees) {
            SilencerDoes::Ends => None,
            SilencerDoes::Sleeps(until) => Some(until),
            SilencerDoes::Silences => Some(self.silence()),
        };
        let _ = flock(&self.lock, FlockOperation::Unlock);
        looks_again
    }

    fn read_list(&mut self) {
        let problems = match targets_of(&self.users) {
            // The file goes only with the run directory; what was on it may still be there.
            Ok((targets, problems)) => {
                if !(targets.is_empty() && self.run_dir_is_gone()) {
                    self.list = targets;
                }
                problems
            }
            Err(error) => vec![format!("cannot read it: {error}")],
        };
        if problems != self.list_problems {
            self.list_problems.clone_from(&problems);
            for problem in problems {
                self.log.tell(move || {
                    tracing::error!(
                        problem,
                        "the silencer does not know all of what to silence; it looks again"
                    );
                });
            }
        }
        if !self.apart
            && let Some(target) = self.list.first()
        {
            self.apart = true;
            if let Err(error) = leave_the_unit(target) {
                self.log.tell(move || {
                    tracing::warn!(%error, "the silencer has no cgroup of its own: the end of the engine's unit may end it");
                });
            }
        }
    }

    fn run_dir_is_gone(&self) -> bool {
        !self.run_dir.join(PID_FILE).exists()
    }

    /// Makes the next attempt, if it is time for one. Returns when to look again.
    fn silence(&mut self) -> Time {
        let made = self.attempts.as_ref().map_or(0, |attempts| attempts.made);
        let targets = match &self.attempts {
            Some(attempts) if now() < attempts.next => return attempts.next,
            Some(attempts) => still_left(attempts, &self.list),
            None => self.list.clone(),
        };
        // An engine that has a lease again either sees this note, or its lease is seen here.
        let _ = self.file.note_silenced(now());
        let (file, lease_until) = (Arc::clone(&self.file), self.lease_until);
        let wanted: Wanted = Arc::new(move || file.lease_until().unwrap_or(lease_until) == lease_until);
        if !wanted() {
            return now();
        }
        // Before the kill, so that a process whose start is under way does not come after it.
        let _ = self.file.note_barred(now());
        let mut silenced = guard::silence(lease_until, &targets, &mut self.addresses, &wanted);
        self.detach(&targets, &wanted, if made == 0 { DETACH_WAIT } else { Duration::ZERO });
        for target in &targets {
            let mounts = mounts_left(target);
            let there = mounts.iter().map(|mount| format!("{} is still mounted", mount.display()));
            silenced.problems.extend(there);
            if !mounts.is_empty() {
                let devices = target.devices.clone();
                silenced.left.push(GuardTarget {
                    mounts,
                    devices,
                    ..GuardTarget::nothing_of(target.resource)
                });
            }
        }
        // A process with SIGKILL pending does nothing any more, even if it does not end (R19).
        let at = now();
        let _ = self.file.note_silenced(at);
        if silenced.left.is_empty() {
            let _ = self.file.note_silent(at);
        }
        let next = at.plus_ms(silencing_pause_ms(made + 1));
        let (list, left) = (self.list.clone(), silenced.left.clone());
        self.attempts = Some(Attempts { lease_until, made: made + 1, list, left, next });
        if made == 0 || silenced.left.is_empty() {
            self.log.tell(move || {
                guard::report(&silenced, &targets, "the engine cannot silence this node any more")
            });
        }
        next
    }

    fn detach(&mut self, targets: &[GuardTarget], wanted: &Wanted, patience: Duration) {
        self.detaching.retain(|thread| !thread.is_finished());
        if self.detaching.is_empty() {
            self.detaching = guard::detach_mounts(guard::guarded_mounts(targets), wanted);
            guard::detached(&self.detaching, patience);
        }
    }
}

/// Targets to silence, as noted in a run directory, and the entries that are not understood, in
/// words.
pub(crate) fn targets_of(users: &Users) -> io::Result<(Vec<GuardTarget>, Vec<String>)> {
    let mut problems = Vec::new();
    let targets = users.entries()?.iter().map(|entry| GuardTarget::usable(entry, &mut problems)).collect();
    Ok((targets, problems))
}

/// Targets of the next attempt: the rest of the last one that is still on the list, and targets
/// that were added later.
fn still_left(attempts: &Attempts, list: &[GuardTarget]) -> Vec<GuardTarget> {
    let listed = |left: &&GuardTarget| {
        list.iter().any(|target| {
            target.resource == left.resource
                && left.cgroups.iter().all(|cgroup| target.cgroups.contains(cgroup))
                && left.addresses.iter().all(|address| target.addresses.contains(address))
                && left.mounts.iter().all(|mount| target.mounts.contains(mount))
        })
    };
    let came_later = list.iter().filter(|target| !attempts.list.contains(target));
    attempts.left.iter().filter(listed).chain(came_later).cloned().collect()
}

fn mounts_left(target: &GuardTarget) -> Vec<PathBuf> {
    let mut left: Vec<PathBuf> = guard::guarded_mounts(std::slice::from_ref(target))
        .into_iter()
        // A mount that cannot be examined may be there.
        .filter(|(mount, device)| mount_table::is_own(mount, *device).unwrap_or(true))
        .map(|(mount, _)| mount)
        .collect();
    left.dedup();
    left
}

/// Makes this process independent of its terminal and of the process that started it, so that their
/// end does not end it.
fn stand_alone() {
    // SAFETY: none of these takes a pointer but the name, which is zero-terminated. To ignore a
    // signal runs no code of ours.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"mainstay".as_ptr());
    }
    // The kernel kills it only when the machine lacks memory for everything. Without the right to
    // ask for that, it is a process like others.
    let _ = fs::write("/proc/self/oom_score_adj", "-999");
}

fn leave_the_unit(target: &GuardTarget) -> io::Result<()> {
    let Some(services) = target.cgroups.first().and_then(|cgroup| cgroup.parent()) else { return Ok(()) };
    let own = services.join(CGROUP);
    match fs::create_dir_all(&own) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(own.join("cgroup.procs"), "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::{GuardAddress, GuardEntry};
    use mainstay_types::ResourceId;

    /// A run directory, and directories in the place of cgroups: what is written there stays to be
    /// seen.
    struct Node {
        dir: PathBuf,
    }

    impl Drop for Node {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    impl Node {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("mainstay-{name}-{}", std::process::id()));
            let node = Self { dir };
            for service in ["a", "b"] {
                fs::create_dir_all(node.cgroup(service)).expect("a directory");
                node.populate(service, false);
            }
            node
        }

        fn cgroup(&self, service: &str) -> PathBuf {
            self.dir.join("services").join(service)
        }

        /// Whether processes of a service survive SIGKILL, as they do while they wait for a disk.
        fn populate(&self, service: &str, stuck: bool) {
            let events = format!("populated {}\n", u8::from(stuck));
            fs::write(self.cgroup(service).join("cgroup.events"), events).expect("written");
        }

        fn tell(&self, services: &[&str]) {
            let entry = |(number, service): (usize, &&str)| GuardEntry {
                resource: ResourceId(number as u64),
                cgroups: vec![self.cgroup(service).to_str().expect("text").into()],
                addresses: vec![GuardAddress { interface: String::new(), address: "10.213.250.9/24".into() }],
                ..GuardEntry::default()
            };
            let entries: Vec<_> = services.iter().enumerate().map(entry).collect();
            Users::new(&self.dir).note(&entries).expect("noted");
        }

        /// Whether a service was killed since this was asked last.
        fn killed(&self, service: &str) -> bool {
            fs::remove_file(self.cgroup(service).join("cgroup.kill")).is_ok()
        }

        fn lookout(&self) -> Lookout {
            let addresses = AddressThread::start_with(|_, _| Vec::new()).expect("a thread");
            Lookout::new(&self.dir, addresses).expect("a run directory")
        }
    }

    fn waits(lookout: &mut Lookout) {
        sleep_until(lookout.attempts.as_ref().expect("it has tried").next);
    }

    #[test]
    fn the_silencer_retries_only_leftovers_and_stops_once_the_lease_is_renewed() {
        let node = Node::new("silencer-repeats");
        node.tell(&["a", "b"]);
        node.populate("a", true);
        let engine = LeaseFile::open(&node.dir).expect("a file");
        engine.note_lease(now()).expect("noted");
        let mut lookout = node.lookout();
        lookout.look().expect("a process is left");
        assert!(node.killed("a") && node.killed("b"));
        assert!(engine.silenced().expect("read") > Time(0) && engine.silent().expect("read") == Time(0));
        let presence = engine_is_here(&node.dir).expect("the lock is free between attempts");
        waits(&mut lookout);
        lookout.look().expect("a process is left");
        assert!(node.killed("a") && !node.killed("b"), "only what is left");
        engine.note_lease(now().plus_ms(60_000)).expect("noted");
        waits(&mut lookout);
        lookout.look().expect("there is an engine");
        assert!(!node.killed("a") && !node.killed("b"), "renewed");
        engine.note_lease(now()).expect("noted");
        lookout.look().expect("there is an engine");
        assert!(node.killed("a") && node.killed("b"), "the next lease has ended");
        node.populate("a", false);
        drop(presence);
        waits(&mut lookout);
        lookout.look().expect("all is silent now");
        assert!(engine.silent().expect("read") > Time(0));
        assert_eq!(lookout.look(), None);
    }

    #[test]
    fn a_service_that_left_the_list_is_not_killed_again() {
        let node = Node::new("silencer-list");
        node.tell(&["a", "b"]);
        node.populate("a", true);
        LeaseFile::open(&node.dir).and_then(|file| file.note_lease(now())).expect("noted");
        let mut lookout = node.lookout();
        lookout.look().expect("a process is left");
        assert!(node.killed("a") && node.killed("b"));
        node.tell(&["b"]);
        waits(&mut lookout);
        lookout.look().expect("the list has changed");
        assert!(!node.killed("a"));
    }

    #[test]
    fn a_list_that_cannot_be_read_leaves_the_one_before_it() {
        let node = Node::new("silencer-unreadable");
        node.tell(&["a"]);
        let engine = LeaseFile::open(&node.dir).expect("a file");
        engine.note_lease(now().plus_ms(60_000)).expect("noted");
        let mut lookout = node.lookout();
        lookout.look().expect("a lease goes on");
        for spoil in [
            |dir: &Path| fs::write(dir.join("users.json"), "[{"),
            |dir: &Path| {
                fs::remove_file(dir.join("users.json")).and_then(|()| fs::remove_file(dir.join(PID_FILE)))
            },
        ] {
            spoil(&node.dir).expect("spoiled");
            engine.note_silent(Time(0)).expect("noted");
            engine.note_lease(now()).expect("noted");
            lookout.look().expect("it has acted");
            assert!(node.killed("a"));
            assert_eq!(lookout.look(), None, "all is silent");
        }
    }

    #[test]
    fn a_wrong_part_of_an_entry_does_not_spare_the_rest_of_it() {
        let mut problems = Vec::new();
        let entry = GuardEntry {
            cgroups: vec!["x/y".into(), "/x/y".into()],
            addresses: vec![GuardAddress { interface: String::new(), address: "10.0.0.1".into() }],
            ..GuardEntry::default()
        };
        assert_eq!(GuardTarget::usable(&entry, &mut problems).cgroups, [Path::new("/x/y")]);
        assert_eq!(problems.len(), 2);
    }

    #[test]
    fn an_engine_that_could_not_get_the_lock_gets_it_later() {
        let node = Node::new("silencer-lock");
        let path = node.dir.join(LOCK_FILE);
        let acting = File::options().write(true).create(true).truncate(false).open(&path).expect("a lock");
        flock(&acting, FlockOperation::LockExclusive).expect("no process has it");
        let engine = engine_is_here(&node.dir).expect("it goes on");
        flock(&acting, FlockOperation::Unlock).expect("it has it");
        let deadline = Instant::now() + Duration::from_secs(10);
        while flock(&acting, FlockOperation::NonBlockingLockExclusive).is_ok() {
            flock(&acting, FlockOperation::Unlock).expect("it has it");
            assert!(Instant::now() < deadline, "the engine waits for the lock");
            thread::sleep(Duration::from_millis(5));
        }
        drop(engine);
    }

    #[test]
    fn an_engine_that_has_ended_is_not_there_any_more() {
        let dir = std::env::temp_dir().join(format!("mainstay-presence-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let engine = engine_is_here(&dir).expect("a lock");
        let lock = File::options().write(true).open(dir.join(LOCK_FILE)).expect("a lock");
        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(engine);
        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
