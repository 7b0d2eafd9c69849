//! Generic netlink, as far as the kernel's nbd driver needs it: one question, one answer.
//!
//! Layouts are those of `linux/netlink.h` and `linux/genetlink.h`; integers are in the machine's
//! own byte order. What the kernel sends is decoded with its lengths checked (R25).

use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::time::Duration;

const NETLINK_GENERIC: i32 = 16;
/// The family that knows the others.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// The answer that an ACK asks for: an error number, zero for success.
const ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;
const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
/// Longer than any answer that is asked for here.
const ANSWER_BYTES_MAX: usize = 32 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// A message that is being written.
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// `family` as [`Netlink::family`] says; asks for an acknowledgement.
    #[must_use]
    pub fn new(family: u16, command: u8, version: u8) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | ACK).to_ne_bytes());
        bytes.extend([command, version, 0, 0]);
        Self { bytes }
    }

    /// Adds an attribute.
    ///
    /// # Panics
    /// When it is longer than 64 KiB.
    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value);
        self
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).expect("attributes are short");
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Adds an attribute that consists of attributes.
    #[must_use]
    pub fn nested(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let inner = inner(Self { bytes: Vec::new() }).bytes;
        self.push(kind | NESTED, &inner);
        self
    }

    /// Completes the message and returns its bytes, to be sent.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }
}

/// The attributes of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// The value of the first attribute of a kind.
    #[must_use]
    pub fn get(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = &self.0[..];
        loop {
            let (head, _) = rest.split_first_chunk::<4>()?;
            let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let found = u16::from_ne_bytes([head[2], head[3]]) & !NESTED;
            let value = rest.get(4..len)?;
            if found == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }
}

/// A socket to the kernel.
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// # Errors
    /// When the kernel has no generic netlink, or this process may not use it.
    pub fn new() -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let socket = Socket::new(domain, Type::RAW.cloexec(), Some(Protocol::from(NETLINK_GENERIC)))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// The number of a family. Asking for it may load the module that has it.
    ///
    /// # Errors
    /// `ENOENT` when the kernel does not have it.
    pub fn family(&self, name: &str) -> io::Result<u16> {
        let question =
            Message::new(CONTROL, GET_FAMILY, 1).attribute(FAMILY_NAME, &[name.as_bytes(), b"\0"].concat());
        let answer = self.ask(question)?;
        let id = answer.get(FAMILY_ID).and_then(|value| value.try_into().ok());
        id.map(u16::from_ne_bytes).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Sends a message, waits until the kernel has done what it says, and returns the rest of the
    /// answer.
    ///
    /// # Errors
    /// The error that the kernel reports, or that it does not answer.
    pub fn ask(&self, message: Message) -> io::Result<Attributes> {
        let mut socket = &self.socket;
        socket.write_all(&message.finish())?;
        let mut found = Attributes::default();
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        loop {
            let len = socket.read(&mut bytes)?;
            if let Some(end) = take(&bytes[..len], &mut found) {
                return end.map(|()| found);
            }
        }
    }
}

/// Takes the messages of one datagram; the end of the answer, if it is among them.
fn take(mut rest: &[u8], found: &mut Attributes) -> Option<io::Result<()>> {
    while let Some((head, _)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let body = rest.get(HEADER_BYTES..len)?;
        if u16::from_ne_bytes([head[4], head[5]]) == ERROR {
            let error = body.first_chunk().map_or(-libc::EPROTO, |error| i32::from_ne_bytes(*error));
            return Some(if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) });
        }
        if let Some(attributes) = body.get(GENERIC_HEADER_BYTES..) {
            *found = Attributes(attributes.to_vec());
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_the_headers() {
        let message = Message::new(0x1a, 1, 1)
            .attribute(2, &7u64.to_ne_bytes())
            .nested(7, |list| list.nested(1, |item| item.attribute(1, &9u32.to_ne_bytes())))
            .attribute(10, b"abc\0");
        #[rustfmt::skip]
        let expected: Vec<u8> = [
            &56u32.to_ne_bytes()[..], &0x1au16.to_ne_bytes(), &5u16.to_ne_bytes(), &[0; 8], &[1, 1, 0, 0],
            &12u16.to_ne_bytes(), &2u16.to_ne_bytes(), &7u64.to_ne_bytes(),
            &16u16.to_ne_bytes(), &0x8007u16.to_ne_bytes(),
            &12u16.to_ne_bytes(), &0x8001u16.to_ne_bytes(),
            &8u16.to_ne_bytes(), &1u16.to_ne_bytes(), &9u32.to_ne_bytes(),
            &8u16.to_ne_bytes(), &10u16.to_ne_bytes(), b"abc\0",
        ].concat();
        assert_eq!(message.finish(), expected);
    }

    #[test]
    fn the_kernel_knows_its_own_family_and_refuses_others() {
        let netlink = Netlink::new().expect("generic netlink");
        assert_eq!(netlink.family("nlctrl").expect("the family of families"), CONTROL);
        let error = netlink.family("mainstay-none").expect_err("there is none");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    proptest! {
        #[test]
        fn noise_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in any::<u16>()) {
            let mut found = Attributes::default();
            let _ = take(&bytes, &mut found);
            let _ = Attributes(bytes).get(kind);
        }
    }
}
