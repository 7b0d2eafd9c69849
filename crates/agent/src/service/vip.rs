//! Floating addresses.
//!
//! An address is probed before it is taken (R22), with the questions of RFC 5227 but short waits, because
//! the lease already says that no node of the cluster has it: the probe finds strangers and nodes that
//! failed to let go. It is announced several times afterwards. Everything goes to the kernel through netlink and
//! packet sockets; only IPv4 addresses are carried in this version.

use crate::sys::{ARP_PROTOCOL, arp_address};
use crate::threads::spawn;
use futures_util::stream::{StreamExt, TryStreamExt};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Questions before an address is taken, and the time to answer each.
const PROBES: u32 = 3;
const PROBE_WAIT: Duration = Duration::from_millis(50);
/// When the address is announced, counted from when it was added. Switches and neighbours may miss some.
const ANNOUNCE_AT: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];
const ETHERNET_HEADER_BYTES: usize = 14;
const ARP_BYTES: usize = 28;
const BROADCAST: [u8; 6] = [0xff; 6];

#[derive(Debug, thiserror::Error)]
pub enum VipError {
    #[error("{0} is not an IPv4 address with a prefix length, such as 10.0.0.7/24")]
    Malformed(String),
    #[error(
        "no interface of this node has an address in the subnet of {0}; name the interface in the service file"
    )]
    NoInterface(Vip),
    #[error("this node has no interface {0}")]
    UnknownInterface(String),
    #[error("{vip} is in use by {}", MacText(.by))]
    InUse { vip: Vip, by: [u8; 6] },
    #[error("the kernel refused: {0}")]
    Netlink(String),
    #[error("cannot send or receive ARP on {interface}: {source}")]
    Arp {
        interface: String,
        #[source]
        source: io::Error,
    },
}

/// An address with the length of its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vip {
    pub address: Ipv4Addr,
    pub prefix: u8,
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Vip {
    type Err = VipError;

    fn from_str(text: &str) -> Result<Self, VipError> {
        let malformed = || VipError::Malformed(text.to_owned());
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address = address.parse().map_err(|_| malformed())?;
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or_else(malformed)?;
        Ok(Self { address, prefix })
    }
}

impl Vip {
    fn subnet_contains(self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        u32::from(self.address) & mask == u32::from(other) & mask
    }
}

/// An interface of this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub name: String,
    index: u32,
    mac: [u8; 6],
}

struct MacText<'a>(&'a [u8; 6]);

impl fmt::Display for MacText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The interface that is named, or else the one with another address in the same subnet.
///
/// # Errors
/// When there is none.
pub fn find_interface(vip: Vip, name: Option<&str>) -> Result<Interface, VipError> {
    with_netlink(async |handle| {
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
        if let Some(name) = name {
            let found = links.iter().map(interface_of).find(|interface| interface.name == name);
            return Ok(found.ok_or_else(|| VipError::UnknownInterface(name.to_owned())));
        }
        let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        let index = addresses.iter().find_map(|message| {
            let address = address_of(message)?;
            // A /32 contains nobody else; then the subnet of the node's own address decides.
            let own = Vip { address, prefix: message.header.prefix_len };
            let near = address != vip.address
                && !address.is_loopback()
                && (vip.subnet_contains(address) || (own.prefix < 32 && own.subnet_contains(vip.address)));
            near.then_some(message.header.index)
        });
        let link = index.and_then(|index| links.iter().find(|link| link.header.index == index));
        Ok(link.map(interface_of).ok_or(VipError::NoInterface(vip)))
    })?
}

/// Asks whether anybody has the address. Takes 150 ms.
///
/// # Errors
/// [`VipError::InUse`] when somebody has, or when the question could not be asked.
pub fn probe(vip: Vip, interface: &Interface) -> Result<(), VipError> {
    if interface.mac == [0; 6] {
        // A loopback interface has no neighbours.
        return Ok(());
    }
    let arp = |source| VipError::Arp { interface: interface.name.clone(), source };
    let mut socket = open_socket(interface).map_err(arp)?;
    let question = arp_frame(interface.mac, Ipv4Addr::UNSPECIFIED, vip.address);
    let to = arp_address(interface.index, BROADCAST);
    for _ in 0..PROBES {
        socket.send_to(&question, &to).map_err(arp)?;
        let deadline = Instant::now() + PROBE_WAIT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left)).map_err(arp)?;
            let mut buffer = [0; 128];
            match socket.read(&mut buffer) {
                Ok(length) => {
                    if let Some(by) = conflict(&buffer[..length], vip.address, interface.mac) {
                        return Err(VipError::InUse { vip, by });
                    }
                }
                Err(error) if would_wait(&error) => {}
                Err(error) => return Err(arp(error)),
            }
        }
    }
    Ok(())
}

/// Takes the address. Taking it again is a success.
///
/// # Errors
/// When the kernel refuses.
pub fn add(vip: Vip, interface: &Interface) -> Result<(), VipError> {
    with_netlink(async |handle| {
        handle.address().add(interface.index, IpAddr::V4(vip.address), vip.prefix).replace().execute().await
    })
}

/// Gives the address up, wherever it is. What is not there is a success.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(vip: Vip) -> Result<(), VipError> {
    with_netlink(async |handle| {
        let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        for message in addresses.into_iter().filter(|message| address_of(message) == Some(vip.address)) {
            match handle.address().del(message).execute().await {
                Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EADDRNOTAVAIL => {}
                other => other?,
            }
        }
        Ok(())
    })
}

/// Whether this node has the address.
///
/// # Errors
/// When the kernel does not tell; the caller has to assume that it has (R19).
pub fn is_present(vip: Vip) -> Result<bool, VipError> {
    with_netlink(async |handle| {
        let mut addresses = handle.address().get().execute();
        while let Some(message) = addresses.next().await {
            if address_of(&message?) == Some(vip.address) {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Tells the neighbours, several times in the background, for as long as this node has the address.
pub fn announce(vip: Vip, interface: &Interface) {
    let interface = interface.clone();
    spawn("agent-announce", move || {
        let start = Instant::now();
        let to = arp_address(interface.index, BROADCAST);
        let frame = arp_frame(interface.mac, vip.address, vip.address);
        for at in ANNOUNCE_AT {
            std::thread::sleep(at.saturating_sub(start.elapsed()));
            if !is_present(vip).unwrap_or(false) {
                return;
            }
            if let Err(error) = open_socket(&interface).and_then(|socket| socket.send_to(&frame, &to)) {
                tracing::warn!(%vip, interface = interface.name, %error, "could not announce an address; it is tried again");
            }
        }
    });
}

fn open_socket(interface: &Interface) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(ARP_PROTOCOL.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.bind(&arp_address(interface.index, [0; 6]))?;
    Ok(socket)
}

/// An ARP request: a probe when `sender` is unspecified, an announcement when it equals `target`.
fn arp_frame(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET_HEADER_BYTES + ARP_BYTES);
    frame.extend_from_slice(&BROADCAST);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&ARP_PROTOCOL.to_be_bytes());
    // Ethernet, IPv4, the lengths of their addresses, request.
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&sender.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&target.octets());
    frame
}

/// Who claims `address` in this frame, if it is somebody else: its owner as sender, or another prober.
fn conflict(frame: &[u8], address: Ipv4Addr, own: [u8; 6]) -> Option<[u8; 6]> {
    let arp = frame.get(ETHERNET_HEADER_BYTES..ETHERNET_HEADER_BYTES + ARP_BYTES)?;
    if arp[..6] != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let mac: [u8; 6] = arp[8..14].try_into().ok()?;
    let sender = Ipv4Addr::from(<[u8; 4]>::try_from(&arp[14..18]).ok()?);
    let target = Ipv4Addr::from(<[u8; 4]>::try_from(&arp[24..28]).ok()?);
    let probing = sender.is_unspecified() && target == address && arp[6..8] == [0, 1];
    (mac != own && (sender == address || probing)).then_some(mac)
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn interface_of(link: &LinkMessage) -> Interface {
    let mut interface = Interface { name: String::new(), index: link.header.index, mac: [0; 6] };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Address(mac) => {
                interface.mac = mac.as_slice().try_into().unwrap_or_default();
            }
            _ => {}
        }
    }
    interface
}

fn address_of(message: &AddressMessage) -> Option<Ipv4Addr> {
    let find = |wanted: fn(&AddressAttribute) -> Option<&IpAddr>| message.attributes.iter().find_map(wanted);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(address),
        _ => None,
    });
    match local {
        Some(IpAddr::V4(address)) => Some(*address),
        _ => None,
    }
}

fn with_netlink<T>(
    work: impl AsyncFnOnce(rtnetlink::Handle) -> Result<T, rtnetlink::Error>,
) -> Result<T, VipError> {
    let failed = |error: &dyn fmt::Display| VipError::Netlink(error.to_string());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        work(handle).await.map_err(|error| failed(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_prefixes() {
        let vip: Vip = "10.0.0.7/24".parse().unwrap();
        assert_eq!(vip, Vip { address: Ipv4Addr::new(10, 0, 0, 7), prefix: 24 });
        assert_eq!("10.0.0.7".parse::<Vip>().unwrap().prefix, 32);
        assert!("10.0.0.7/33".parse::<Vip>().is_err() && "fd00::1/64".parse::<Vip>().is_err());
        assert!(vip.subnet_contains(Ipv4Addr::new(10, 0, 0, 200)));
        assert!(!vip.subnet_contains(Ipv4Addr::new(10, 0, 1, 200)));
        assert!(Vip { prefix: 0, ..vip }.subnet_contains(Ipv4Addr::new(1, 1, 1, 1)));
        assert!(!Vip { prefix: 32, ..vip }.subnet_contains(Ipv4Addr::new(10, 0, 0, 8)));
    }

    #[test]
    fn owners_and_other_probers_are_conflicts() {
        let (mine, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let vip = Ipv4Addr::new(10, 0, 0, 7);
        let neighbour = Ipv4Addr::new(10, 0, 0, 8);
        assert_eq!(conflict(&arp_frame(other, vip, vip), vip, mine), Some(other));
        assert_eq!(conflict(&arp_frame(other, vip, neighbour), vip, mine), Some(other));
        assert_eq!(conflict(&arp_frame(other, Ipv4Addr::UNSPECIFIED, vip), vip, mine), Some(other));
        // Somebody who merely looks for the address does not have it.
        assert_eq!(conflict(&arp_frame(other, neighbour, vip), vip, mine), None);
        assert_eq!(conflict(&arp_frame(mine, Ipv4Addr::UNSPECIFIED, vip), vip, mine), None);
        for length in 0..ETHERNET_HEADER_BYTES + ARP_BYTES {
            assert_eq!(conflict(&arp_frame(other, vip, vip)[..length], vip, mine), None);
        }
    }
}
