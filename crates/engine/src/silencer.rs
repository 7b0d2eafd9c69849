//! The silencer: a small process that outlives engine and agent, and silences this node when the lease ends (R19).
//!
//! ```text
//!   engine                                    silencer, a process of its own
//!   LEASE_FILE: lease, when it was silenced ─▶ looked at before the lease ends
//!   users.json: what to silence             ─▶ read when it acts
//!   LOCK_FILE, held                         ─▶ is there an engine?
//! ```
//!
//! Guarantees
//! - It needs neither the memory nor a descriptor of engine or agent. What it needs is noted before it counts: the list before a
//!   step of a service begins ([`crate::users`]), the lease before the guard knows it.
//! - It does what the guard does, in the same order and with the same code, and only when the guard has not: see
//!   [`mainstay_types::silencer_does`].
//! - An engine that starts has one of its own. The one before it ends as soon as the new one looks out. An engine that starts while
//!   one acts waits for it, and knows afterwards that this node was silenced.
//! - It has a session of its own, and, as soon as there is something to silence, a cgroup of its own beside those of the services.
//!   So the end of the engine's unit does not end it.
//!
//! What it does not guarantee: anything when somebody kills it together with both others, or when the machine stands still as a
//! whole.

// Sessions, signals and names of processes are system calls.
#![allow(unsafe_code)]

use crate::addresses::AddressRemover;
use crate::guard::{self, GUARD_MARGIN_MS, GuardTarget};
use crate::ring::now;
use crate::users::Users;
use mainstay_types::{SilencerDoes, SilencerSees, Time, silencer_does};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LEASE_FILE: &str = "lease";
/// Held by the engine for as long as it lives, and by a silencer while it acts.
const LOCK_FILE: &str = "engine.lock";
/// The silencer that looks out, by its process id.
const PID_FILE: &str = "silencer.pid";
/// Below the cgroup of the services. No service has a name with a dot.
const CGROUP: &str = "mainstay.silencer";
/// How long an engine that starts waits for a silencer that acts.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How often what could not be silenced is tried again, and after which time.
const ATTEMPTS_MAX: u32 = 25;
const AGAIN: Duration = Duration::from_millis(200);
/// How long file systems that are detached may take to write what they hold.
const DETACH_WAIT: Duration = Duration::from_secs(5);
/// A silencer that was ended by others is started again after this time.
const RESTART: Duration = Duration::from_secs(1);

/// The command of the binary that runs [`run`].
pub const COMMAND: &str = "silencer";

/// What engine and silencer tell each other: two points of the boot-time clock, and the boot that they are of.
#[derive(Debug)]
pub struct LeaseFile {
    file: File,
}

impl LeaseFile {
    const LEASE_AT: u64 = 0;
    const SILENCED_AT: u64 = 8;
    const BOOT_AT: u64 = 16;

    /// Opens the file in a run directory. What is of an earlier boot is forgotten.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(run_dir.join(LEASE_FILE))?;
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut found = vec![0; boot.len()];
        let same = file.read_exact_at(&mut found, Self::BOOT_AT).is_ok() && found == boot;
        if !same {
            file.write_all_at(&[0; 16], 0)?;
            file.write_all_at(&boot, Self::BOOT_AT)?;
        }
        Ok(Self { file })
    }

    fn read(&self, offset: u64) -> io::Result<Time> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(Time(u64::from_le_bytes(bytes)))
    }

    /// When the lease ends that an engine was told last; 0 for none.
    pub fn lease_until(&self) -> io::Result<Time> {
        self.read(Self::LEASE_AT)
    }

    /// When this node was silenced last; 0 for never.
    pub fn silenced(&self) -> io::Result<Time> {
        self.read(Self::SILENCED_AT)
    }

    /// # Errors
    /// When it cannot be written: then no step of a service may begin within this lease.
    pub fn note_lease(&self, until: Time) -> io::Result<()> {
        self.file.write_all_at(&until.0.to_le_bytes(), Self::LEASE_AT)
    }

    /// # Errors
    /// When it cannot be written.
    pub fn note_silenced(&self, at: Time) -> io::Result<()> {
        self.file.write_all_at(&at.0.to_le_bytes(), Self::SILENCED_AT)
    }
}

/// What says that there is an engine. Dropping it says that there is none.
#[derive(Debug)]
pub struct Presence {
    _lock: File,
}

/// Says in this run directory that there is an engine. Waits for a silencer that acts.
///
/// # Errors
/// When the file cannot be made.
pub fn engine_is_here(run_dir: &Path) -> io::Result<Presence> {
    let lock = File::options().write(true).create(true).truncate(false).open(run_dir.join(LOCK_FILE))?;
    let deadline = Instant::now() + LOCK_WAIT;
    while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if Instant::now() >= deadline {
            tracing::warn!(%error, "another engine, or its silencer, uses the run directory; this one goes on all the same");
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(Presence { _lock: lock })
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
    let mut addresses = AddressRemover::new()?;
    let file = LeaseFile::open(run_dir)?;
    let users = Users::new(run_dir);
    let lock = File::options().write(true).create(true).truncate(false).open(run_dir.join(LOCK_FILE))?;
    let own = std::process::id().to_string();
    let fresh = run_dir.join(format!("{PID_FILE}.{own}"));
    fs::write(&fresh, &own)?;
    fs::rename(&fresh, run_dir.join(PID_FILE))?;
    let mut apart = false;
    while fs::read_to_string(run_dir.join(PID_FILE)).is_ok_and(|newest| newest == own) {
        let targets = targets(&users);
        if !apart && let Some(target) = targets.first() {
            apart = true;
            if let Err(error) = leave_the_unit(target) {
                tracing::warn!(%error, "the silencer has no cgroup of its own: the end of the engine's unit may end it");
            }
        }
        let alone = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        let sees = SilencerSees {
            lease_until: file.lease_until()?,
            silenced: file.silenced()?,
            engine: !alone,
            guarded: !targets.is_empty(),
        };
        match silencer_does(now(), sees, GUARD_MARGIN_MS) {
            SilencerDoes::Ends => return Ok(()),
            SilencerDoes::Sleeps(until) => {
                let _ = flock(&lock, FlockOperation::Unlock);
                thread::sleep(Duration::from_millis(until.ms_since(now()).max(1)));
            }
            // A lock that is held keeps an engine from starting until this is done.
            SilencerDoes::Silences => {
                silence(sees.lease_until, &targets, &mut addresses, &file)?;
                let _ = flock(&lock, FlockOperation::Unlock);
            }
        }
    }
    Ok(())
}

fn targets(users: &Users) -> Vec<GuardTarget> {
    let entries = users.entries().unwrap_or_else(|error| {
        tracing::error!(%error, "the silencer cannot read what to silence");
        Vec::new()
    });
    entries.iter().filter_map(|entry| GuardTarget::try_from(entry).ok()).collect()
}

fn silence(
    until: Time,
    targets: &[GuardTarget],
    addresses: &mut AddressRemover,
    file: &LeaseFile,
) -> io::Result<()> {
    for attempt in 1..=ATTEMPTS_MAX {
        let silenced = guard::silence(until, targets, addresses);
        guard::detached(guard::detach_mounts(guard::guarded_mounts(targets)), DETACH_WAIT);
        // What has SIGKILL pending does nothing any more, also if it does not end (R19).
        file.note_silenced(now())?;
        if attempt == 1 || silenced.problems.is_empty() {
            guard::report(&silenced, targets, "the engine cannot silence this node any more");
        }
        if silenced.problems.is_empty() {
            return Ok(());
        }
        thread::sleep(AGAIN);
    }
    Ok(())
}

/// Nothing that ends a terminal, or the process that has started this one, ends it, too.
fn stand_alone() {
    // SAFETY: none of these takes a pointer but the name, which is zero-terminated. To ignore a signal runs no code of ours.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"mainstay".as_ptr());
    }
    // Only a machine that lacks memory for everything ends it; without the right to say so it is one like others.
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

    #[test]
    fn what_is_noted_is_read_by_another_and_forgotten_with_the_boot() {
        let dir = std::env::temp_dir().join(format!("mainstay-silencer-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let engine = LeaseFile::open(&dir).expect("a file");
        assert_eq!(engine.lease_until().expect("read"), Time(0));
        engine.note_lease(Time(7)).expect("written");
        let silencer = LeaseFile::open(&dir).expect("the same file");
        assert_eq!(silencer.lease_until().expect("read"), Time(7));
        silencer.note_silenced(Time(6)).expect("written");
        assert_eq!(engine.silenced().expect("read"), Time(6));
        engine.file.write_all_at(b"another boot", LeaseFile::BOOT_AT).expect("written");
        let later = LeaseFile::open(&dir).expect("the same file");
        assert_eq!((later.lease_until().expect("read"), later.silenced().expect("read")), (Time(0), Time(0)));
        fs::remove_dir_all(&dir).expect("removed");
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
