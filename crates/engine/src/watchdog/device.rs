//! A watchdog as the kernel offers it: `/dev/watchdog`, see the kernel's `watchdog-api.rst`.

use mainstay_silence::WatchdogCan;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A device that resets the machine if it is not fed.
pub(super) trait Device: Send {
    /// Starts it with this time, or goes on with it.
    fn arm(&mut self, seconds: u32) -> io::Result<()>;
    fn feed(&mut self) -> io::Result<()>;
    /// Stops it. Not called for a device that cannot be stopped.
    fn disarm(&mut self) -> io::Result<()>;
    /// Says that closing it is meant. Called when it is stopped.
    fn release(&mut self) -> io::Result<()>;
}

/// A device that was just opened.
pub struct Opened<D> {
    pub device: D,
    /// As its driver says it, for example `Software Watchdog`.
    pub identity: String,
    pub can: WatchdogCan,
    /// It runs and could not be stopped.
    pub runs: bool,
}

impl<D> Opened<D> {
    pub(super) fn map<E>(self, change: impl FnOnce(D) -> E) -> Opened<E> {
        let Self { device, identity, can, runs } = self;
        Opened { device: change(device), identity, can, runs }
    }
}

/// The kernel's `struct watchdog_info`.
#[repr(C)]
struct Info {
    options: u32,
    firmware: u32,
    identity: [u8; 32],
}

const GET_SUPPORT: u64 = 0x8028_5700;
const SET_OPTIONS: u64 = 0x8004_5704;
const SET_TIMEOUT: u64 = 0xC004_5706;
const GET_TIMEOUT: u64 = 0x8004_5707;
const STOP: libc::c_int = 1;
const START: libc::c_int = 2;
/// Of `Info::options`.
const HAS_TIMEOUT: u32 = 0x80;
/// Times that are tried to find the shortest one, in seconds.
const SHORTEST: [libc::c_int; 8] = [1, 2, 3, 5, 10, 15, 30, 60];

/// The device of the kernel. Dropping it closes it; one that runs goes on and fires.
pub(super) struct Kernel {
    file: File,
    has_timeout: bool,
}

impl Kernel {
    /// Opens and stops it.
    ///
    /// # Errors
    /// In words for the operator, with the program that has it open.
    pub fn open(path: &Path) -> Result<Opened<Self>, String> {
        let file = File::options().write(true).custom_flags(libc::O_CLOEXEC).open(path);
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                format!("there is no {}; `modprobe softdog` makes one in software", path.display())
            }
            Some(libc::EBUSY) => match holder() {
                Some(holder) => format!("{holder} has {} open", path.display()),
                None => format!("another program has {} open", path.display()),
            },
            _ => format!("cannot open {}: {error}", path.display()),
        })?;
        let mut kernel = Self { file, has_timeout: false };
        let found = kernel.look();
        found
            .map(|(identity, can, runs)| Opened { device: kernel, identity, can, runs })
            .map_err(|error| format!("{} is no watchdog that can be used: {error}", path.display()))
    }

    /// Returns its identity, what it can do, and whether it goes on.
    fn look(&mut self) -> io::Result<(String, WatchdogCan, bool)> {
        let mut info = Info { options: 0, firmware: 0, identity: [0; 32] };
        // SAFETY: the kernel writes a `struct watchdog_info`, which `info` is.
        let got = unsafe { libc::ioctl(self.file.as_raw_fd(), GET_SUPPORT, &raw mut info) };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        let stop = self.number(SET_OPTIONS, STOP).is_ok();
        self.has_timeout = info.options & HAS_TIMEOUT != 0;
        let seconds = if self.has_timeout {
            let taken = SHORTEST.iter().find_map(|seconds| self.number(SET_TIMEOUT, *seconds).ok());
            let least = taken.ok_or_else(|| io::Error::other("it takes no time of a minute or less"))?;
            (u32::try_from(least).unwrap_or(u32::MAX), u32::MAX)
        } else {
            let only = u32::try_from(self.number(GET_TIMEOUT, 0)?).unwrap_or(u32::MAX);
            (only, only)
        };
        let name = info.identity.split(|byte| *byte == 0).next().unwrap_or_default();
        let identity = String::from_utf8_lossy(name).trim().to_owned();
        Ok((identity, WatchdogCan { stop, seconds }, !stop))
    }

    /// A call that takes a number and may change it. Returns the number as it is then.
    fn number(&self, call: u64, number: libc::c_int) -> io::Result<libc::c_int> {
        let mut number = number;
        // SAFETY: all of these calls take a pointer to an `int`.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), call, &raw mut number) };
        if done == 0 { Ok(number) } else { Err(io::Error::last_os_error()) }
    }
}

impl Device for Kernel {
    fn arm(&mut self, seconds: u32) -> io::Result<()> {
        let wanted = libc::c_int::try_from(seconds).unwrap_or(libc::c_int::MAX);
        if self.has_timeout {
            let got = self.number(SET_TIMEOUT, wanted)?;
            if got > wanted {
                return Err(io::Error::other(format!("it takes {got} s, and {wanted} s were asked for")));
            }
        }
        // Fails where it runs already, and cannot be stopped.
        let started = self.number(SET_OPTIONS, START);
        self.feed().and(started.map(drop).or(Ok(())))
    }

    fn feed(&mut self) -> io::Result<()> {
        // A written byte that is no `V` also takes an earlier permission to close back.
        self.file.write_all(&[0])
    }

    fn disarm(&mut self) -> io::Result<()> {
        self.number(SET_OPTIONS, STOP).map(drop)
    }

    fn release(&mut self) -> io::Result<()> {
        self.file.write_all(b"V")
    }
}

/// The program that has a watchdog open, in words.
fn holder() -> Option<String> {
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        let watchdog = |link: &Path| link.to_string_lossy().starts_with("/dev/watchdog");
        if open.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| watchdog(&link))) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let name = name.trim().to_owned();
            let setting =
                if pid == 1 && name == "systemd" { ", by its setting RuntimeWatchdogSec," } else { "" };
            return Some(format!("the program {name} (process {pid}){setting}"));
        }
    }
    None
}
