//! The kernel's nbd driver as the client of a volume: `/dev/nbdN` over a socket pair, made, given a
//! new socket and taken away by netlink. On the device thread.
//!
//! Guarantee: a device is told what the volume is (blocks of 4096 bytes, its size,
//! trim, write-zeroes, no volatile cache: a write that is answered is durable). It asks for no more
//! than one request of the log at once. It never gives up on a request while its connection lives:
//! the engine bounds the time of requests (R20).
//!
//! When the engine dies its end of the connection closes. The driver then holds new requests, and
//! keeps those that it had sent and that were not answered. When such a device goes on, and when it
//! fails, is the same for all frontends: see [`crate::device_recovery`]. If neither engine nor
//! agent is there to decide, the driver lets what it holds fail after [`DEAD_CONNECTION_S`].
//!
//! An engine takes a left device over by giving it a new socket (`RECONFIGURE`). The device must be
//! the one of the note, which the driver itself compares, and must have the volume's size. The
//! driver sends the requests that it held at once, and those that it had sent before after
//! [`ASK_AGAIN_MS`]. It takes a new socket only when it has seen the end of the old one, so no
//! request is on two at once. The old engine is dead then. It held a lock in the run directory for
//! as long as it lived, and only the holder of that lock takes or ends a device.
//!
//! Attributes and numbers are those of `linux/nbd-netlink.h`. What the driver does was read in its
//! source, from Linux 5.10 on.

use crate::Fd;
use crate::block_queue;
use crate::device_recovery::{DEATH_WAIT, LeavesDevices, Left, LeftDevices, RETRY_PAUSE, new_cookie, noted};
use crate::netlink::{Attributes, Message, Netlink};
use mainstay_codec::nbd::flags;
use mainstay_silence::{LEFT_MS_MAX, may_take_over};
use mainstay_types::{BLOCK_BYTES, Epoch, REQUEST_BYTES_MAX, ResourceId, VolumeId};
use std::fs::{File, TryLockError};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;
use std::{fmt, fs, io, thread};
use thiserror::Error;

/// After which the driver lets fail what it holds for a new connection, in seconds.
pub const DEAD_CONNECTION_S: u64 = 60;
// The engine or the agent decides about a left device before the driver does.
const _: () = assert!(DEAD_CONNECTION_S * 1000 > LEFT_MS_MAX + 2 * DEATH_WAIT.as_millis() as u64);
/// After which the driver looks whether the connection on which it has asked for something is still
/// the one it has, in milliseconds, and asks on the new one if not. It notes in the kernel's log
/// that it has looked.
const ASK_AGAIN_MS: u64 = 2000;

/// Below the run directory: the notes of the devices that were made.
const DIRECTORY: &str = "nbd";
/// Below the run directory: held by the engine for as long as it lives.
const LOCK: &str = "nbd.lock";
const SYS_BLOCK: &str = "/sys/block";

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCK_ITEM: u16 = 1;
const SOCK_FD: u16 = 1;
/// The driver makes a device for us, and removes it after the disconnect.
const DESTROY_ON_DISCONNECT: u64 = 1 << 0;

/// Why there is no device.
#[derive(Debug, Error)]
pub enum NbdDeviceError {
    #[error("cannot talk to the kernel's nbd driver")]
    Netlink(#[source] io::Error),
    #[error("the kernel's nbd driver does not connect {identity}")]
    Connect {
        identity: String,
        #[source]
        source: io::Error,
    },
    #[error("the kernel's nbd driver did not say which device it made")]
    Nameless,
    #[error("cannot disconnect nbd{index}")]
    Disconnect {
        index: u32,
        #[source]
        source: io::Error,
    },
    #[error("a left nbd device {0}")]
    Unfit(&'static str),
    #[error("cannot give nbd{index} a new connection")]
    Reconnect {
        index: u32,
        #[source]
        source: io::Error,
    },
    #[error("cannot make nbd{index} as large as its volume")]
    Resize {
        index: u32,
        #[source]
        source: io::Error,
    },
    #[error("cannot note a device in {directory}")]
    Note {
        directory: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another engine holds {path}, or the one before has not ended yet")]
    Locked {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Parts from which a volume's device is made.
#[derive(Debug)]
pub struct NbdPlan {
    pub resource: ResourceId,
    pub volume: VolumeId,
    /// Epoch in which the resource is served here.
    pub epoch: Epoch,
    /// The kernel's end.
    pub socket: Fd,
    pub bytes: u64,
    /// Name of the volume, for humans.
    pub name: String,
    /// Where the volume is found if the kernel has no nbd.
    pub uri: String,
}

/// Random number by which a device is found. The driver keeps it as the end of the identifier of
/// the server behind the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NbdId(u64);

impl fmt::Display for NbdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for NbdId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// A connected device.
#[derive(Debug)]
pub struct NbdDevice {
    index: u32,
    path: PathBuf,
    noted: Left<NbdId>,
}

impl NbdDevice {
    /// Number of the device, as in `/dev/nbd0`.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// For example `/dev/nbd0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether the kernel has the driver, and the number of its family.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn driver(netlink: &Netlink) -> io::Result<Option<u16>> {
    match netlink.family(FAMILY) {
        Ok(family) => Ok(Some(family)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A way to the driver.
struct Driver {
    netlink: Netlink,
    family: u16,
}

impl Driver {
    /// Unless the kernel has none.
    fn open() -> Result<Option<Self>, NbdDeviceError> {
        let netlink = Netlink::new().map_err(NbdDeviceError::Netlink)?;
        let family = driver(&netlink).map_err(NbdDeviceError::Netlink)?;
        Ok(family.map(|family| Self { netlink, family }))
    }

    fn ask(&self, message: impl FnOnce(u16) -> Message) -> io::Result<Attributes> {
        self.netlink.ask(message(self.family))
    }

    fn disconnect(&self, index: u32) -> Result<(), NbdDeviceError> {
        match self.ask(|family| disconnect(family, index)) {
            Ok(_) => Ok(()),
            Err(source) => Err(NbdDeviceError::Disconnect { index, source }),
        }
    }
}

/// Everything that the device thread knows of the driver's devices.
pub struct NbdAdmin {
    left: LeftDevices<NbdId>,
    lock_path: PathBuf,
    /// Held from the first device on, which is to be made, taken over or ended.
    lock: Option<File>,
}

impl NbdAdmin {
    /// Looks what engines before this one have left in `run_dir`.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        let left = LeftDevices::new(run_dir, DIRECTORY);
        Self { left, lock_path: run_dir.join(LOCK), lock: None }
    }

    /// Connects a volume's device, or gives the one that is left a new connection; none if the
    /// kernel has no driver.
    ///
    /// # Errors
    /// When the driver refuses, or another engine lives in this run directory.
    pub fn attach(&mut self, plan: &NbdPlan) -> Result<Option<NbdDevice>, NbdDeviceError> {
        let Some(driver) = Driver::open()? else { return Ok(None) };
        self.lock()?;
        if let Some(left) = self.left.take(plan.resource, plan.volume) {
            match take_over(&driver, plan, &left) {
                Ok(device) => {
                    tracing::info!(device = %device.path.display(), "nbd device goes on");
                    return Ok(Some(device));
                }
                Err(error) => {
                    tracing::warn!(device = %left.device, %error, "a left nbd device cannot be taken over; it is ended");
                    self.fail(plan.resource, &left);
                }
            }
        }
        let id = NbdId(new_cookie());
        let noted = self.left.note((plan.resource, plan.volume), id, plan.epoch);
        let noted = noted.map_err(|source| NbdDeviceError::Note { directory: DIRECTORY.into(), source })?;
        match make(&driver, plan, id) {
            Ok((index, path)) => {
                tracing::info!(device = %path.display(), volume = plan.name, "nbd device connected");
                Ok(Some(NbdDevice { index, path, noted }))
            }
            Err(error) => {
                self.end(&noted);
                Err(error)
            }
        }
    }

    /// Makes a device as large as its volume, which has grown.
    ///
    /// # Errors
    /// When the driver refuses, or the device is gone.
    pub fn resize(&mut self, index: u32, bytes: u64) -> Result<(), NbdDeviceError> {
        let Some(driver) = Driver::open()? else { return Ok(()) };
        let Some(identity) = identity(Path::new(SYS_BLOCK), index) else {
            return Err(NbdDeviceError::Unfit("is gone"));
        };
        let asked = driver.ask(|family| resize(family, index, &identity, bytes));
        asked.map(drop).map_err(|source| NbdDeviceError::Resize { index, source })
    }

    /// Disconnects a device. Its users get errors from then on.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn detach(&mut self, device: NbdDevice) -> Result<(), NbdDeviceError> {
        if let Some(driver) = Driver::open()? {
            driver.disconnect(device.index)?;
        }
        device.noted.forget();
        tracing::info!(device = %device.path.display(), "nbd device disconnected");
        Ok(())
    }

    fn lock(&mut self) -> Result<(), NbdDeviceError> {
        if self.lock.is_none() {
            self.lock = Some(lock(&self.lock_path)?);
        }
        Ok(())
    }
}

impl LeavesDevices for NbdAdmin {
    type Device = NbdId;
    type Error = NbdDeviceError;

    fn left(&mut self) -> &mut LeftDevices<NbdId> {
        &mut self.left
    }

    fn await_death(&mut self, _: &Left<NbdId>) -> Result<(), NbdDeviceError> {
        self.lock()
    }

    fn end(&mut self, left: &Left<NbdId>) {
        let result =
            Driver::open().and_then(|driver| match (driver, find(Path::new(SYS_BLOCK), left.device)) {
                (Some(driver), Some((index, _))) => driver.disconnect(index),
                // Gone already, as after a restart of the machine that kept the run directory.
                _ => Ok(()),
            });
        match result {
            Ok(()) => left.forget(),
            Err(error) => tracing::error!(device = %left.device, %error, "cannot end an nbd device"),
        }
    }
}

/// Waits for an engine that is ending. The lock ends with the process that holds it.
fn lock(path: &Path) -> Result<File, NbdDeviceError> {
    let fail = |source| NbdDeviceError::Locked { path: path.to_owned(), source };
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(fail)?;
    let end = Instant::now() + DEATH_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(RETRY_PAUSE),
            Err(error) => return Err(fail(error.into())),
        }
    }
}

fn make(driver: &Driver, plan: &NbdPlan, id: NbdId) -> Result<(u32, PathBuf), NbdDeviceError> {
    let identity = format!("mainstay {} {id}", plan.name);
    let answer = driver
        .ask(|family| connect(family, plan, &identity))
        .map_err(|source| NbdDeviceError::Connect { identity, source })?;
    let index = answer.get(INDEX).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
    let index = index.ok_or(NbdDeviceError::Nameless)?;
    let path = path(index);
    if let Some(numbers) = numbers(index) {
        block_queue::ensure_node(&path, numbers);
    }
    block_queue::tune(&path);
    // The server keeps whole what it can, whatever comes: see the top of the engine's exchange.
    if let Err(why) = block_queue::limit_requests(&path, REQUEST_BYTES_MAX) {
        tracing::debug!(device = %path.display(), why, "requests are cut by the server");
    }
    block_queue::set(&path, "io_timeout", &ASK_AGAIN_MS.to_string());
    Ok((index, path))
}

fn take_over(driver: &Driver, plan: &NbdPlan, left: &Left<NbdId>) -> Result<NbdDevice, NbdDeviceError> {
    if !may_take_over(left.epoch, plan.epoch) {
        return Err(NbdDeviceError::Unfit(
            "was served in another epoch, and another node may have written since",
        ));
    }
    let sys_block = Path::new(SYS_BLOCK);
    let Some((index, identity)) = find(sys_block, left.device) else {
        return Err(NbdDeviceError::Unfit("is gone"));
    };
    if volume_bytes(sys_block, index).is_none_or(|bytes| bytes > plan.bytes) {
        return Err(NbdDeviceError::Unfit("has another size"));
    }
    let end = Instant::now() + DEATH_WAIT;
    loop {
        match driver.ask(|family| reconnect(family, index, &identity, plan.socket.as_raw_fd())) {
            Err(error) if error.raw_os_error() == Some(TAKEN) => break,
            Err(source) => return Err(NbdDeviceError::Reconnect { index, source }),
            Ok(_) if Instant::now() >= end => return Err(NbdDeviceError::Unfit("is being served")),
            // It has not seen the end of the old connection yet.
            Ok(_) => thread::sleep(RETRY_PAUSE),
        }
    }
    // The engine before may have ended between the volume's growth and the device's.
    if volume_bytes(sys_block, index).is_some_and(|bytes| bytes < plan.bytes)
        && let Err(error) = driver.ask(|family| resize(family, index, &identity, plan.bytes))
    {
        tracing::warn!(index, %error, "a left nbd device keeps its size until it is attached again");
    }
    Ok(NbdDevice { index, path: path(index), noted: left.clone() })
}

fn path(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{index}"))
}

fn connect(family: u16, plan: &NbdPlan, identity: &str) -> Message {
    // No cache: the driver need not send flushes, as they would be answered at once.
    let server_flags = flags::HAS_FLAGS | flags::SEND_TRIM | flags::SEND_WRITE_ZEROES | flags::CAN_MULTI_CONN;
    let number = |number: u64| number.to_ne_bytes();
    Message::new(family, CONNECT, VERSION)
        .attribute(SIZE_BYTES, &number(plan.bytes))
        .attribute(BLOCK_SIZE_BYTES, &number(BLOCK_BYTES))
        // None: the driver waits for answers as long as the connection lives.
        .attribute(TIMEOUT, &number(0))
        .attribute(DEAD_CONN_TIMEOUT, &number(DEAD_CONNECTION_S))
        .attribute(SERVER_FLAGS, &number(server_flags.into()))
        .attribute(CLIENT_FLAGS, &number(DESTROY_ON_DISCONNECT))
        .nested(SOCKETS, |list| socket(list, plan.socket.as_raw_fd()))
        .attribute(BACKEND_IDENTIFIER, &[identity.as_bytes(), b"\0"].concat())
}

fn socket(list: Message, fd: i32) -> Message {
    list.nested(SOCK_ITEM, |item| item.attribute(SOCK_FD, &fd.to_ne_bytes()))
}

/// The driver's answer to [`reconnect`] when it has taken the socket.
const TAKEN: i32 = libc::EBADF;

/// Offers a socket in place of the one that has ended. If none has ended, the driver answers with
/// success and takes none. After it has taken a socket it goes on to the next one of the list. So
/// the list has a second entry that is no socket: the driver's error about it proves that it took
/// the first.
fn reconnect(family: u16, index: u32, identity: &str, fd: i32) -> Message {
    Message::new(family, RECONFIGURE, VERSION)
        .attribute(INDEX, &index.to_ne_bytes())
        .nested(SOCKETS, |list| socket(socket(list, fd), -1))
        .attribute(BACKEND_IDENTIFIER, &[identity.as_bytes(), b"\0"].concat())
}

/// Another size. Only together with the identifier: the driver compares it.
fn resize(family: u16, index: u32, identity: &str, bytes: u64) -> Message {
    Message::new(family, RECONFIGURE, VERSION)
        .attribute(INDEX, &index.to_ne_bytes())
        .attribute(SIZE_BYTES, &bytes.to_ne_bytes())
        .attribute(BACKEND_IDENTIFIER, &[identity.as_bytes(), b"\0"].concat())
}

fn disconnect(family: u16, index: u32) -> Message {
    Message::new(family, DISCONNECT, VERSION).attribute(INDEX, &index.to_ne_bytes())
}

/// The device that was connected under an identifier that ends with `id`, and the whole identifier,
/// as the driver shows them in sysfs (Linux 5.14 and later).
fn find(sys_block: &Path, id: NbdId) -> Option<(u32, String)> {
    let suffix = format!(" {id}");
    fs::read_dir(sys_block).ok()?.flatten().find_map(|entry| {
        let index = entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok()?;
        let backend = identity(sys_block, index)?;
        backend.ends_with(&suffix).then_some((index, backend))
    })
}

/// Whether an engine with this run directory has connected the device with this number.
#[must_use]
pub fn is_noted(run_dir: &Path, index: u32) -> bool {
    is_noted_in(run_dir, Path::new(SYS_BLOCK), index)
}

fn is_noted_in(run_dir: &Path, sys_block: &Path, index: u32) -> bool {
    let noted: Vec<NbdId> = noted(run_dir, DIRECTORY);
    noted.into_iter().any(|id| find(sys_block, id).is_some_and(|(found, _)| found == index))
}

/// Identifier of the server under which a device was connected.
fn identity(sys_block: &Path, index: u32) -> Option<String> {
    let backend = fs::read_to_string(sys_block.join(format!("nbd{index}")).join("backend")).ok()?;
    Some(backend.trim_end().to_owned())
}

fn volume_bytes(sys_block: &Path, index: u32) -> Option<u64> {
    let sectors = fs::read_to_string(sys_block.join(format!("nbd{index}")).join("size")).ok()?;
    sectors.trim().parse::<u64>().ok()?.checked_mul(512)
}

/// Major and minor number of a device, as the driver says.
fn numbers(index: u32) -> Option<libc::dev_t> {
    let numbers = fs::read_to_string(format!("/sys/block/nbd{index}/dev")).ok()?;
    let (major, minor) = numbers.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> NbdPlan {
        NbdPlan {
            resource: ResourceId(7),
            volume: VolumeId(0),
            epoch: Epoch(4),
            socket: Fd::new(File::open("/dev/null").expect("a descriptor").into()),
            bytes: 1 << 30,
            name: "db/0".into(),
            uri: String::new(),
        }
    }

    #[test]
    fn the_nbd_driver_is_told_size_and_flags_of_the_volume() {
        let plan = plan();
        let fd = plan.socket.as_raw_fd();
        #[rustfmt::skip]
        let attributes: Vec<u8> = [
            &12u16.to_ne_bytes()[..], &2u16.to_ne_bytes(), &(1u64 << 30).to_ne_bytes(),
            &12u16.to_ne_bytes(), &3u16.to_ne_bytes(), &4096u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &4u16.to_ne_bytes(), &0u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &8u16.to_ne_bytes(), &60u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &5u16.to_ne_bytes(), &0x161u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &6u16.to_ne_bytes(), &1u64.to_ne_bytes(),
            &16u16.to_ne_bytes(), &0x8007u16.to_ne_bytes(), &12u16.to_ne_bytes(), &0x8001u16.to_ne_bytes(),
            &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &fd.to_ne_bytes(),
            &18u16.to_ne_bytes(), &10u16.to_ne_bytes(), b"mainstay db/0\0", &[0, 0],
        ].concat();
        let message = connect(0x1b, &plan, "mainstay db/0").finish();
        assert_eq!(message[4..6], 0x1bu16.to_ne_bytes());
        assert_eq!(message[16..20], [1, 1, 0, 0]);
        assert_eq!(message[20..], attributes);
        let message = disconnect(0x1b, 3).finish();
        assert_eq!(message[16..20], [2, 1, 0, 0]);
        assert_eq!(
            message[20..],
            [&8u16.to_ne_bytes()[..], &1u16.to_ne_bytes(), &3u32.to_ne_bytes()].concat()
        );
    }

    #[test]
    fn a_left_device_is_offered_one_socket_and_a_mark_behind_it() {
        #[rustfmt::skip]
        let attributes: Vec<u8> = [
            &8u16.to_ne_bytes()[..], &1u16.to_ne_bytes(), &3u32.to_ne_bytes(),
            &28u16.to_ne_bytes(), &0x8007u16.to_ne_bytes(),
            &12u16.to_ne_bytes(), &0x8001u16.to_ne_bytes(), &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &9i32.to_ne_bytes(),
            &12u16.to_ne_bytes(), &0x8001u16.to_ne_bytes(), &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &(-1i32).to_ne_bytes(),
            &6u16.to_ne_bytes(), &10u16.to_ne_bytes(), b"m\0", &[0, 0],
        ].concat();
        let message = reconnect(0x1b, 3, "m", 9).finish();
        assert_eq!(message[16..20], [3, 1, 0, 0]);
        assert_eq!(message[20..], attributes);
    }

    #[test]
    fn a_left_nbd_device_is_known_by_its_identity() {
        let dir = std::env::temp_dir().join(format!("mainstay-nbd-left-{}", std::process::id()));
        let id = NbdId(0xabc);
        assert_eq!(id.to_string().parse(), Ok(id));
        for (name, backend) in [
            ("nbd0", "mainstay db/0 1000000000000abc"),
            ("nbd12", "mainstay db/0 0000000000000abc"),
            ("nbdx", "mainstay db/0 0000000000000abc"),
            ("sda", "0000000000000abc"),
        ] {
            fs::create_dir_all(dir.join(name)).expect("a directory");
            fs::write(dir.join(name).join("backend"), format!("{backend}\n")).expect("written");
        }
        fs::write(dir.join("nbd12/size"), "2048\n").expect("written");
        assert_eq!(find(&dir, id), Some((12, "mainstay db/0 0000000000000abc".to_owned())));
        assert_eq!((volume_bytes(&dir, 12), volume_bytes(&dir, 0)), (Some(1 << 20), None));
        assert!(!is_noted_in(&dir, &dir, 12), "no engine has noted it");
        let notes = LeftDevices::new(&dir, DIRECTORY);
        notes.note((ResourceId(7), VolumeId(0)), id, Epoch(4)).expect("noted");
        assert!(is_noted_in(&dir, &dir, 12) && !is_noted_in(&dir, &dir, 0));
        fs::remove_dir_all(&dir).expect("removed");
    }

    /// The devices of a living engine are locked against every other process.
    #[test]
    fn the_devices_of_an_engine_are_its_own_while_it_lives() {
        let dir = std::env::temp_dir().join(format!("mainstay-nbd-lock-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let mut engine = NbdAdmin::new(&dir);
        engine.lock().expect("no process has it");
        let second = File::options().write(true).open(dir.join(LOCK)).expect("it is there");
        assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
        drop(engine);
        assert!(second.try_lock().is_ok());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
