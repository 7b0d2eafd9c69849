//! Takes addresses off the interfaces of this node through rtnetlink.
//!
//! Guarantees
//! - Only addresses that Mainstay has added are removed ([`mainstay_types::address`]).
//! - They are looked for at the moment at which they are removed, on every interface: it may have come later, or have another
//!   name now.
//! - The socket and the memory for its answers are made in advance: when they are needed there may be none.
//!
//! Layouts are those of `linux/rtnetlink.h` and `linux/if_addr.h`; integers are in the machine's own byte order. What the kernel
//! sends is decoded with its lengths checked (R25).

use mainstay_types::{FoundAddress, addresses_to_remove};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(50);
/// The kernel's answers to a list are no longer than this each.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// A list that changed while the kernel wrote it is asked for again.
const LISTS_MAX: u32 = 4;

const HEADER_BYTES: usize = 16;
const ADDRESS_HEADER_BYTES: usize = 8;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP_INTERRUPTED: u16 = 0x10;
const DUMP: u16 = 0x300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_PROTO: u16 = 11;

/// See the top of this file.
pub struct AddressRemover {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl AddressRemover {
    /// For the network namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no socket.
    pub fn new() -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW.cloexec(), Some(protocol))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; ANSWER_BYTES_MAX] })
    }

    /// Removes those of `addresses` that are on this node and that Mainstay has added. `problems` gets what could not be done, in
    /// words.
    pub fn remove<'a>(
        &mut self,
        addresses: impl Iterator<Item = &'a IpAddr> + Clone,
        problems: &mut Vec<String>,
    ) {
        if addresses.clone().next().is_none() {
            return;
        }
        let list = match self.list() {
            Ok(list) => list,
            Err(error) => return problems.push(format!("the kernel does not list its addresses: {error}")),
        };
        for found in addresses.flat_map(|address| addresses_to_remove(&list, *address)) {
            if let Err(error) = self.delete(found) {
                let FoundAddress { interface, ip, prefix, .. } = found;
                problems.push(format!("address {ip}/{prefix} on interface {interface}: {error}"));
            }
        }
    }

    fn list(&mut self) -> io::Result<Vec<FoundAddress>> {
        let mut found = Vec::new();
        for _ in 0..LISTS_MAX {
            found.clear();
            let sequence = self.ask(&request(RTM_GETADDR, DUMP, libc::AF_UNSPEC, 0, 0, None))?;
            let whole = loop {
                let length = (&self.socket).read(&mut self.buffer)?;
                if let Some(whole) = take_list(&self.buffer[..length], sequence, &mut found)? {
                    break whole;
                }
            };
            if whole {
                break;
            }
        }
        Ok(found)
    }

    /// An address or interface that is not there is success.
    fn delete(&mut self, found: &FoundAddress) -> io::Result<()> {
        let family = if found.ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let message = request(RTM_DELADDR, ACK, family, found.prefix, found.interface, Some(found.ip));
        let sequence = self.ask(&message)?;
        loop {
            let length = (&self.socket).read(&mut self.buffer)?;
            match acknowledged(&self.buffer[..length], sequence) {
                // The answer to an earlier request that came after its time limit.
                None => {}
                Some(0 | libc::EADDRNOTAVAIL | libc::ENODEV) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Sends a request, and returns the number that its answers have.
    fn ask(&mut self, message: &[u8]) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = message.to_vec();
        message[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        (&self.socket).write_all(&message)?;
        Ok(self.sequence)
    }
}

fn request(kind: u16, flags: u16, family: i32, prefix: u8, interface: u32, ip: Option<IpAddr>) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&[family as u8, prefix, 0, 0]);
    message.extend_from_slice(&interface.to_ne_bytes());
    if let Some(ip) = ip {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        for attribute in [IFA_LOCAL, IFA_ADDRESS] {
            message.extend_from_slice(&(4 + octets.len() as u16).to_ne_bytes());
            message.extend_from_slice(&attribute.to_ne_bytes());
            message.extend_from_slice(&octets);
        }
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

struct Header {
    length: usize,
    kind: u16,
    flags: u16,
    sequence: u32,
}

fn header(bytes: &[u8]) -> Option<Header> {
    Some(Header {
        length: u32::from_ne_bytes(*bytes.first_chunk()?) as usize,
        kind: u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
        flags: u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?),
        sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
    })
}

/// Takes the messages of one datagram. At the end of the list: whether the list is whole.
fn take_list(mut rest: &[u8], sequence: u32, found: &mut Vec<FoundAddress>) -> io::Result<Option<bool>> {
    while let Some(Header { length, kind, flags, sequence: of }) = header(rest) {
        let Some(body) = rest.get(HEADER_BYTES..length) else { break };
        // The answer to an earlier request that came after its time limit.
        if of == sequence {
            let interrupted = flags & DUMP_INTERRUPTED != 0;
            match kind {
                RTM_NEWADDR => found.extend(address(body)),
                NLMSG_DONE => return Ok(Some(!interrupted)),
                NLMSG_ERROR => {
                    let errno = body.first_chunk().map_or(libc::EPROTO, |errno| -i32::from_ne_bytes(*errno));
                    return Err(io::Error::from_raw_os_error(errno));
                }
                _ => {}
            }
            if interrupted {
                return Ok(Some(false));
            }
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

fn address(body: &[u8]) -> Option<FoundAddress> {
    let prefix = *body.get(1)?;
    let interface = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let (mut ip, mut local, mut protocol, mut label) = (None, None, 0, &[][..]);
    let mut rest = body.get(ADDRESS_HEADER_BYTES..)?;
    while let Some((head, _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(value) = rest.get(4..length) else { break };
        match u16::from_ne_bytes([head[2], head[3]]) {
            IFA_ADDRESS => ip = ip_of(value),
            IFA_LOCAL => local = ip_of(value),
            IFA_LABEL => label = value.strip_suffix(b"\0").unwrap_or(value),
            IFA_PROTO => protocol = value.first().copied().unwrap_or_default(),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(FoundAddress::new(interface, local.or(ip)?, prefix, protocol, label))
}

fn ip_of(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(IpAddr::from(*value.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*value.first_chunk::<16>()?)),
        _ => None,
    }
}

/// The error number (0 for success) in the kernel's answer to `sequence`.
fn acknowledged(answer: &[u8], sequence: u32) -> Option<i32> {
    let head = header(answer)?;
    let errno = i32::from_ne_bytes(*answer.get(HEADER_BYTES..)?.first_chunk()?);
    (head.kind == NLMSG_ERROR && head.sequence == sequence).then_some(errno.saturating_neg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_loopback_address_is_listed_and_is_not_mainstays() {
        let mut remover = AddressRemover::new().expect("a socket");
        let loopback: IpAddr = "127.0.0.1".parse().expect("an address");
        let list = remover.list().expect("a list");
        let Some(found) = list.iter().find(|found| found.ip == loopback) else {
            eprintln!("skipped: the loopback interface is down here");
            return;
        };
        assert!(found.prefix == 8 && !found.is_ours());
        let mut problems = Vec::new();
        remover.remove([loopback].iter(), &mut problems);
        assert_eq!(problems, Vec::<String>::new());
        assert!(remover.list().expect("a list").contains(found), "nobody has removed it");
    }

    proptest! {
        #[test]
        fn noise_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), sequence in any::<u32>()) {
            let mut found = Vec::new();
            let _ = take_list(&bytes, sequence, &mut found);
            let _ = (address(&bytes), acknowledged(&bytes, sequence));
        }

        #[test]
        fn a_list_with_noise_in_it_is_survived(noise in proptest::collection::vec(any::<u8>(), 0..100), length in any::<u32>()) {
            let mut message = request(RTM_NEWADDR, 0, libc::AF_INET, 24, 1, None);
            message.extend(noise);
            message[..4].copy_from_slice(&length.to_ne_bytes());
            let _ = take_list(&message, 0, &mut Vec::new());
        }
    }
}
