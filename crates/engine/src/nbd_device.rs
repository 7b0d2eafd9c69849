//! The kernel's nbd driver as the client of a volume: `/dev/nbdN` over a socket pair, made and taken away by netlink.
//!
//! What this file guarantees: a device is told what the volume is (blocks of 4096 bytes, its size, trim, write-zeroes, no
//! volatile cache: what is answered is durable), asks for no more than one request of the log at once, and never gives up on
//! a request by itself: requests are bounded in time by the engine (R20). When the engine dies its devices answer with
//! errors at once, as there is nobody left who could say whether another node is primary; what is left of them is taken away
//! by the next engine that serves the volume.
//!
//! Attributes and numbers are those of `linux/nbd-netlink.h`.

use crate::block_queue;
use crate::netlink::{Message, Netlink};
use crate::ring::Fd;
use mainstay_codec::nbd::flags;
use mainstay_types::BLOCK_BYTES;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::{fs, io};
use thiserror::Error;

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;

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
    #[error("cannot disconnect {path}")]
    Disconnect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What a volume's device is made of.
#[derive(Debug)]
pub struct NbdPlan {
    /// The kernel's end.
    pub socket: Fd,
    pub bytes: u64,
    /// Of the volume on this node, whichever engine serves it.
    pub identity: String,
    /// Where the volume is found if the kernel has no nbd.
    pub uri: String,
}

/// A connected device.
#[derive(Debug)]
pub struct NbdDevice {
    index: u32,
    path: PathBuf,
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

impl NbdDevice {
    /// Connects a device, unless the kernel has no driver for it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn attach(plan: &NbdPlan) -> Result<Option<Self>, NbdDeviceError> {
        let netlink = Netlink::new().map_err(NbdDeviceError::Netlink)?;
        let Some(family) = driver(&netlink).map_err(NbdDeviceError::Netlink)? else { return Ok(None) };
        for index in left(Path::new("/sys/block"), &plan.identity) {
            // One that is going already refuses, and needs nothing: whatever answered it has ended.
            match netlink.ask(disconnect(family, index)) {
                Ok(_) => tracing::warn!(index, plan.identity, "an nbd device of before was taken away"),
                Err(error) => {
                    tracing::warn!(index, plan.identity, %error, "an nbd device of before is left to its users");
                }
            }
        }
        let fail = |source| NbdDeviceError::Connect { identity: plan.identity.clone(), source };
        let answer = netlink.ask(connect(family, plan)).map_err(fail)?;
        let index = answer.get(INDEX).and_then(|value| value.try_into().ok()).map(u32::from_ne_bytes);
        let index = index.ok_or(NbdDeviceError::Nameless)?;
        let path = PathBuf::from(format!("/dev/nbd{index}"));
        if let Some(numbers) = numbers(index) {
            block_queue::ensure_node(&path, numbers);
        }
        block_queue::tune(&path);
        tracing::info!(device = %path.display(), plan.identity, "nbd device connected");
        Ok(Some(Self { index, path }))
    }

    /// For example `/dev/nbd0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Disconnects it. Whoever uses it gets errors from then on.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn detach(self) -> Result<(), NbdDeviceError> {
        let netlink = Netlink::new().map_err(NbdDeviceError::Netlink)?;
        let Some(family) = driver(&netlink).map_err(NbdDeviceError::Netlink)? else { return Ok(()) };
        let gone = netlink.ask(disconnect(family, self.index));
        gone.map_err(|source| NbdDeviceError::Disconnect { path: self.path.clone(), source })?;
        tracing::info!(device = %self.path.display(), "nbd device disconnected");
        Ok(())
    }
}

fn connect(family: u16, plan: &NbdPlan) -> Message {
    // No cache: the driver need not send flushes, as they would be answered at once.
    let server_flags = flags::HAS_FLAGS | flags::SEND_TRIM | flags::SEND_WRITE_ZEROES | flags::CAN_MULTI_CONN;
    let number = |number: u64| number.to_ne_bytes();
    let socket = plan.socket.as_raw_fd().to_ne_bytes();
    Message::new(family, CONNECT, VERSION)
        .attribute(SIZE_BYTES, &number(plan.bytes))
        .attribute(BLOCK_SIZE_BYTES, &number(BLOCK_BYTES))
        // None: the driver waits for answers as long as the connection lives, and no longer.
        .attribute(TIMEOUT, &number(0))
        .attribute(DEAD_CONN_TIMEOUT, &number(0))
        .attribute(SERVER_FLAGS, &number(server_flags.into()))
        .attribute(CLIENT_FLAGS, &number(DESTROY_ON_DISCONNECT))
        .nested(SOCKETS, |list| list.nested(SOCK_ITEM, |item| item.attribute(SOCK_FD, &socket)))
        .attribute(BACKEND_IDENTIFIER, &[plan.identity.as_bytes(), b"\0"].concat())
}

fn disconnect(family: u16, index: u32) -> Message {
    Message::new(family, DISCONNECT, VERSION).attribute(INDEX, &index.to_ne_bytes())
}

/// Devices that were connected under an identity, by what the driver says in sysfs (Linux 5.14 and later).
fn left(sys_block: &Path, identity: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(sys_block) else { return Vec::new() };
    let index = |entry: fs::DirEntry| {
        let index = entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok()?;
        let backend = fs::read_to_string(entry.path().join("backend")).ok()?;
        (backend.trim_end() == identity).then_some(index)
    };
    entries.flatten().filter_map(index).collect()
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

    #[test]
    fn the_driver_is_told_what_the_volume_is() {
        let socket: Fd = Fd::new(fs::File::open("/dev/null").expect("a descriptor").into());
        let fd = socket.as_raw_fd();
        let plan = NbdPlan { socket, bytes: 1 << 30, identity: "mainstay db/0".into(), uri: String::new() };
        #[rustfmt::skip]
        let attributes: Vec<u8> = [
            &12u16.to_ne_bytes()[..], &2u16.to_ne_bytes(), &(1u64 << 30).to_ne_bytes(),
            &12u16.to_ne_bytes(), &3u16.to_ne_bytes(), &4096u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &4u16.to_ne_bytes(), &0u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &8u16.to_ne_bytes(), &0u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &5u16.to_ne_bytes(), &0x161u64.to_ne_bytes(),
            &12u16.to_ne_bytes(), &6u16.to_ne_bytes(), &1u64.to_ne_bytes(),
            &16u16.to_ne_bytes(), &0x8007u16.to_ne_bytes(), &12u16.to_ne_bytes(), &0x8001u16.to_ne_bytes(),
            &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &fd.to_ne_bytes(),
            &18u16.to_ne_bytes(), &10u16.to_ne_bytes(), b"mainstay db/0\0", &[0, 0],
        ].concat();
        let message = connect(0x1b, &plan).finish();
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
    fn what_is_left_is_known_by_its_identity() {
        let dir = std::env::temp_dir().join(format!("mainstay-nbd-left-{}", std::process::id()));
        for (name, backend) in
            [("nbd0", "other"), ("nbd12", "mainstay db/0"), ("nbdx", "mainstay db/0"), ("sda", "x")]
        {
            fs::create_dir_all(dir.join(name)).expect("a directory");
            fs::write(dir.join(name).join("backend"), format!("{backend}\n")).expect("written");
        }
        assert_eq!(left(&dir, "mainstay db/0"), [12]);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
