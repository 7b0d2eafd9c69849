//! Takes addresses off the interfaces of this node through rtnetlink.
//!
//! Guarantees
//! - Only addresses that Mainstay has added are removed ([`mainstay_types::address`]).
//! - Their interfaces are looked up at the moment of the removal: an interface may have come later,
//!   or may have another name now.
//! - The socket and the memory for its answers are made in advance: when they are needed there may
//!   be none.
//! - A list is whole, or an error. After an error the next request has a socket of its own, so no
//!   answer to an earlier request disturbs it.
//! - [`AddressThread::remove`] returns within a time limit, also when the kernel holds the request
//!   up.
//!
//! Layouts are those of `linux/rtnetlink.h` and `linux/if_addr.h`; integers are in the machine's
//! own byte order. What the kernel sends is decoded with its lengths checked (R25).

use crate::guard::prefer_this_thread;
use mainstay_types::{FoundAddress, addresses_to_remove};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

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
        Ok(Self { socket: socket()?, sequence: 0, buffer: vec![0; ANSWER_BYTES_MAX] })
    }

    /// Removes those of `addresses` that are on this node and that Mainstay has added, for as long
    /// as they are `wanted` gone. `problems` gets what could not be done, in words.
    pub fn remove(&mut self, addresses: &[IpAddr], wanted: &dyn Fn() -> bool, problems: &mut Vec<String>) {
        if addresses.is_empty() || !wanted() {
            return;
        }
        let list = match self.list() {
            Ok(list) => list,
            Err(error) => {
                self.begin_anew();
                return problems.push(format!("the kernel does not list its addresses: {error}"));
            }
        };
        for found in addresses.iter().flat_map(|address| addresses_to_remove(&list, *address)) {
            if !wanted() {
                return;
            }
            if let Err(error) = self.delete(found) {
                self.begin_anew();
                let FoundAddress { interface, ip, prefix, .. } = found;
                problems.push(format!("address {ip}/{prefix} on interface {interface}: {error}"));
            }
        }
    }

    /// Answers to earlier requests may still come, and the kernel may still write a list for one. A
    /// fresh socket has neither.
    fn begin_anew(&mut self) {
        if let Ok(socket) = socket() {
            self.socket = socket;
        }
    }

    fn list(&mut self) -> io::Result<Vec<FoundAddress>> {
        for _ in 0..LISTS_MAX {
            let mut found = Vec::new();
            let sequence = self.ask(&request(RTM_GETADDR, DUMP, libc::AF_UNSPEC, 0, 0, None))?;
            let mut list = List { sequence, whole: true, found: &mut found };
            loop {
                let length = (&self.socket).read(&mut self.buffer)?;
                if list.take(&self.buffer[..length])? {
                    break;
                }
            }
            if list.whole {
                return Ok(found);
            }
        }
        Err(io::Error::other("they changed each time while it wrote the list"))
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

fn socket() -> io::Result<Socket> {
    let protocol = Protocol::from(libc::NETLINK_ROUTE);
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW.cloexec(), Some(protocol))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Says whether what is to be silenced is still to be: the lease may have been renewed.
pub(crate) type Wanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// Addresses to remove, for as long as they are wanted gone.
#[derive(Clone)]
struct Removal {
    number: u64,
    addresses: Vec<IpAddr>,
    wanted: Wanted,
}

/// Removes addresses on a thread of its own: the kernel holds a request up while another process
/// changes the network of this node.
pub struct AddressThread {
    removals: Sender<Removal>,
    done: Receiver<(u64, Vec<String>)>,
    number: u64,
    /// The thread has not answered this removal yet.
    open: Option<Removal>,
}

impl AddressThread {
    /// Starts the thread, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no socket or no thread.
    pub fn start() -> io::Result<Self> {
        let mut remover = AddressRemover::new()?;
        Self::start_with(move |addresses, wanted| {
            let mut problems = Vec::new();
            remover.remove(addresses, wanted, &mut problems);
            problems
        })
    }

    /// The same, with something else that removes addresses and returns its problems.
    pub(crate) fn start_with(
        mut remove: impl FnMut(&[IpAddr], &dyn Fn() -> bool) -> Vec<String> + Send + 'static,
    ) -> io::Result<Self> {
        let (removals, todo) = mpsc::channel::<Removal>();
        let (tell, done) = mpsc::channel();
        thread::Builder::new().name("guard-addresses".into()).spawn(move || {
            prefer_this_thread();
            for Removal { number, addresses, wanted } in todo {
                // Fails only while the owner of this thread ends.
                let _ = tell.send((number, remove(&addresses, &*wanted)));
            }
        })?;
        Ok(Self { removals, done, number: 0, open: None })
    }

    /// Removes addresses; returns after `patience` at the latest. The result says in words what
    /// failed. A removal that takes longer goes on while it is `wanted`, and the next call for the
    /// same addresses waits for it.
    pub(crate) fn remove(
        &mut self,
        addresses: Vec<IpAddr>,
        wanted: &Wanted,
        patience: Duration,
    ) -> Vec<String> {
        let deadline = Instant::now() + patience;
        if addresses.is_empty() {
            return Vec::new();
        }
        while let Ok((number, problems)) = self.done.try_recv() {
            let late = self.open.take_if(|open| open.number == number);
            if late.is_some_and(|open| open.addresses == addresses && (open.wanted)()) {
                return problems;
            }
        }
        if self.open.as_ref().is_none_or(|open| open.addresses != addresses || !(open.wanted)()) {
            self.number += 1;
            let removal = Removal { number: self.number, addresses, wanted: Arc::clone(wanted) };
            self.open = Some(removal.clone());
            if self.removals.send(removal).is_err() {
                return vec!["the thread that removes addresses has ended".into()];
            }
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((number, problems)) = self.done.recv_timeout(left) else {
                return vec![format!("the kernel has not removed addresses within {patience:?}")];
            };
            if self.open.take_if(|open| open.number == number).is_some() {
                return problems;
            }
        }
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

/// A list of addresses while its datagrams come.
struct List<'a> {
    sequence: u32,
    /// Whether the list is unbroken so far: the kernel has not reported a change while it wrote the
    /// list.
    whole: bool,
    found: &'a mut Vec<FoundAddress>,
}

impl List<'_> {
    /// Takes the messages of one datagram; returns whether the list has ended. A list that changed
    /// is read to its end all the same: until then the kernel refuses the next request on the same
    /// socket.
    fn take(&mut self, mut rest: &[u8]) -> io::Result<bool> {
        while let Some(Header { length, kind, flags, sequence }) = header(rest) {
            let Some(body) = rest.get(HEADER_BYTES..length) else { break };
            // The answer to an earlier request that came after its time limit.
            if sequence == self.sequence {
                self.whole &= flags & DUMP_INTERRUPTED == 0;
                match kind {
                    RTM_NEWADDR => self.found.extend(address(body)),
                    NLMSG_DONE => return Ok(true),
                    NLMSG_ERROR => {
                        let errno =
                            body.first_chunk().map_or(libc::EPROTO, |errno| -i32::from_ne_bytes(*errno));
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    _ => {}
                }
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(false)
    }
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
    use std::sync::atomic::{AtomicBool, Ordering};

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
        remover.remove(&[loopback], &|| true, &mut problems);
        assert_eq!(problems, Vec::<String>::new());
        assert!(remover.list().expect("a list").contains(found), "no program has removed it");
    }

    #[test]
    fn a_list_that_changed_is_read_to_its_end_and_is_not_whole() {
        let message = |kind: u16, flags: u16| {
            let mut message = request(kind, 0, libc::AF_INET, 24, 1, Some([10, 0, 0, 7].into()));
            message[6..8].copy_from_slice(&flags.to_ne_bytes());
            message
        };
        let mut found = Vec::new();
        let mut list = List { sequence: 0, whole: true, found: &mut found };
        assert!(
            !list.take(&message(RTM_NEWADDR, DUMP_INTERRUPTED)).expect("no error"),
            "the kernel writes on"
        );
        assert!(!list.take(&message(RTM_NEWADDR, 0)).expect("no error"));
        assert!(list.take(&message(NLMSG_DONE, 0)).expect("no error") && !list.whole);
        assert_eq!(found.len(), 2);
        let mut list = List { sequence: 0, whole: true, found: &mut found };
        assert!(list.take(&message(NLMSG_DONE, 0)).expect("no error") && list.whole);
    }

    #[test]
    fn the_answer_to_an_abandoned_request_does_not_disturb_the_next_list() {
        let mut remover = AddressRemover::new().expect("a socket");
        // The kernel's answer to this is never read.
        remover.ask(&request(RTM_GETADDR, DUMP, libc::AF_UNSPEC, 0, 0, None)).expect("sent");
        remover.begin_anew();
        remover.socket.set_nonblocking(true).expect("set");
        let error =
            (&remover.socket).read(&mut remover.buffer).expect_err("nothing was asked of this socket");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_kernel_that_holds_a_removal_up_is_waited_for_within_bounds_and_not_asked_twice() {
        let (enter, entered) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let started = AddressThread::start_with(move |_, wanted| {
            enter.send(()).expect("heard");
            gate.recv().expect("released");
            vec![format!("wanted: {}", wanted())]
        });
        let mut thread = started.expect("a thread");
        let patience = Duration::from_millis(50);
        let renewed = Arc::new(AtomicBool::new(false));
        let first: Wanted = {
            let renewed = Arc::clone(&renewed);
            Arc::new(move || !renewed.load(Ordering::SeqCst))
        };
        let address: IpAddr = [10, 0, 0, 7].into();
        for _ in 0..3 {
            let problems = thread.remove(vec![address], &first, patience);
            assert_eq!(problems, ["the kernel has not removed addresses within 50ms"]);
        }
        // The lease is renewed, and ends again. Removals for the first end do not count for the
        // second.
        renewed.store(true, Ordering::SeqCst);
        let second: Wanted = Arc::new(|| true);
        assert_eq!(thread.remove(vec![address], &second, patience).len(), 1);
        go.send(()).expect("heard");
        go.send(()).expect("heard");
        let problems = thread.remove(vec![address], &second, Duration::from_secs(10));
        assert_eq!((problems, entered.try_iter().count()), (vec!["wanted: true".to_owned()], 2));
    }

    proptest! {
        #[test]
        fn noise_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), sequence in any::<u32>()) {
            let _ = List { sequence, whole: true, found: &mut Vec::new() }.take(&bytes);
            let _ = (address(&bytes), acknowledged(&bytes, sequence));
        }

        #[test]
        fn a_list_with_noise_in_it_is_survived(noise in proptest::collection::vec(any::<u8>(), 0..100), length in any::<u32>()) {
            let mut message = request(RTM_NEWADDR, 0, libc::AF_INET, 24, 1, None);
            message.extend(noise);
            message[..4].copy_from_slice(&length.to_ne_bytes());
            let _ = List { sequence: 0, whole: true, found: &mut Vec::new() }.take(&message);
        }
    }
}
