//! Questions to the neighbours of an interface about an address, and announcements of it.
//!
//! | | IPv4 | IPv6 |
//! |---|---|---|
//! | question | ARP probe (RFC 5227) | neighbour solicitation without a source (RFC 4862) |
//! | another holder | answers it, or asks the same | the same |
//! | announcement | ARP request for itself | unsolicited neighbour advertisement (RFC 4861) |
//!
//! The waits are shorter than those of the RFCs: a failover waits for them. Frames of other hosts
//! are decoded with their lengths checked (R25). A filter in the kernel keeps all other traffic of
//! IPv6 away from the socket.

use super::{Interface, Vip, VipError};
use crate::sys::{ARP_PROTOCOL, IPV6_PROTOCOL, link_address};
use mainstay_types::MacAddress;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Questions before an address is taken, and the time to answer each.
const PROBES: u32 = 3;
const PROBE_WAIT: Duration = Duration::from_millis(50);
const ETHERNET_HEADER_BYTES: usize = 14;
const ARP_BYTES: usize = 28;
const IPV6_HEADER_BYTES: usize = 40;
/// Type, code, checksum, flags and target of a solicitation or advertisement.
const NEIGHBOUR_BYTES: usize = 24;
const BROADCAST: [u8; 6] = [0xff; 6];
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Only a neighbour can send a packet that arrives with this.
const HOPS: u8 = 255;
/// Flag of an advertisement: it replaces what the neighbours know.
const OVERRIDE: u8 = 0x20;
/// Option of an advertisement: the hardware address of its target, with its length in 8 bytes.
const TARGET_LINK: [u8; 2] = [2, 1];

/// Asks whether another host has the address. Takes 150 ms.
///
/// # Errors
/// [`VipError::InUse`] when another host has it; another error when the question could not be
/// asked.
pub fn probe(vip: Vip, interface: &Interface) -> Result<(), VipError> {
    if interface.mac == [0; 6] {
        // A loopback interface has no neighbours.
        return Ok(());
    }
    let failed = |source| VipError::Neighbours { interface: interface.name.clone(), source };
    let mut socket = open_socket(vip, interface).map_err(failed)?;
    let (question, to) = match vip.address {
        IpAddr::V4(ip) => (arp_frame(interface.mac, Ipv4Addr::UNSPECIFIED, ip), BROADCAST),
        IpAddr::V6(ip) => (solicitation(interface.mac, ip), group_mac(solicited(ip))),
    };
    let to = link_address(interface.index, to, protocol(vip));
    for _ in 0..PROBES {
        socket.send_to(&question, &to).map_err(failed)?;
        if let Some(by) =
            read_until(&mut socket, vip, interface, Instant::now() + PROBE_WAIT).map_err(failed)?
        {
            return Err(VipError::InUse { vip, by: MacAddress(by) });
        }
    }
    Ok(())
}

/// Waits for as long as `pause`, and not longer than until another host claims the address. Returns
/// the hardware address of that host.
pub(super) fn hear(vip: Vip, interface: &Interface, pause: Duration) -> Option<MacAddress> {
    let deadline = Instant::now() + pause;
    let heard = open_socket(vip, interface)
        .and_then(|mut socket| read_until(&mut socket, vip, interface, deadline))
        .ok()
        .flatten();
    if heard.is_none() {
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    }
    heard.map(MacAddress)
}

/// Reads until another host claims the address; `None` if none has until `deadline`.
fn read_until(
    socket: &mut Socket,
    vip: Vip,
    interface: &Interface,
    deadline: Instant,
) -> io::Result<Option<[u8; 6]>> {
    while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        let mut buffer = [0; 128];
        match socket.read(&mut buffer) {
            Ok(length) => {
                if let Some(by) = conflict(&buffer[..length], vip.address, interface.mac) {
                    return Ok(Some(by));
                }
            }
            Err(error) if would_wait(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

pub(super) fn announce(vip: Vip, interface: &Interface) {
    let (frame, to) = match vip.address {
        IpAddr::V4(ip) => (arp_frame(interface.mac, ip, ip), BROADCAST),
        IpAddr::V6(ip) => (advertisement(interface.mac, ip), group_mac(ALL_NODES)),
    };
    let to = link_address(interface.index, to, protocol(vip));
    if let Err(error) = open_socket(vip, interface).and_then(|socket| socket.send_to(&frame, &to)) {
        tracing::warn!(%vip, interface = interface.name, %error, "could not announce an address; it is tried again");
    }
}

fn protocol(vip: Vip) -> u16 {
    if vip.address.is_ipv4() { ARP_PROTOCOL } else { IPV6_PROTOCOL }
}

fn open_socket(vip: Vip, interface: &Interface) -> io::Result<Socket> {
    let number = protocol(vip);
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(number.to_be()))))?;
    if vip.address.is_ipv6() {
        socket.attach_filter(&neighbours_only())?;
    }
    socket.bind(&link_address(interface.index, [0; 6], number))?;
    Ok(socket)
}

/// Passes solicitations and advertisements: the next header is ICMPv6, and its type one of the two.
fn neighbours_only() -> [SockFilter; 7] {
    const BYTE_AT: u16 = 0x30;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let next_header = ETHERNET_HEADER_BYTES as u32 + 6;
    let kind = (ETHERNET_HEADER_BYTES + IPV6_HEADER_BYTES) as u32;
    [
        SockFilter::new(BYTE_AT, 0, 0, next_header),
        SockFilter::new(IF_EQUAL, 0, 4, ICMPV6.into()),
        SockFilter::new(BYTE_AT, 0, 0, kind),
        SockFilter::new(IF_EQUAL, 1, 0, SOLICITATION.into()),
        SockFilter::new(IF_EQUAL, 0, 1, ADVERTISEMENT.into()),
        SockFilter::new(RETURN, 0, 0, 0xffff),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
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

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group that the holder of an address listens to.
fn solicited(ip: Ipv6Addr) -> Ipv6Addr {
    let base = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(base | (ip.to_bits() & 0x00ff_ffff))
}

/// The hardware address of a group.
fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// A question for the holder of `target`, from a host that has no address yet.
fn solicitation(mac: [u8; 6], target: Ipv6Addr) -> Vec<u8> {
    neighbour_frame(mac, (Ipv6Addr::UNSPECIFIED, solicited(target)), SOLICITATION, 0, target, &[])
}

/// Tells all neighbours that `target` is here now.
fn advertisement(mac: [u8; 6], target: Ipv6Addr) -> Vec<u8> {
    let link = [&TARGET_LINK[..], &mac].concat();
    neighbour_frame(mac, (target, ALL_NODES), ADVERTISEMENT, OVERRIDE, target, &link)
}

fn neighbour_frame(
    mac: [u8; 6],
    (from, to): (Ipv6Addr, Ipv6Addr),
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: &[u8],
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend_from_slice(&target.octets());
    message.extend_from_slice(option);
    let length = u16::try_from(message.len()).expect("a message is a few bytes");
    let sum = checksum(from, to, &message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let mut frame = Vec::with_capacity(ETHERNET_HEADER_BYTES + IPV6_HEADER_BYTES + message.len());
    frame.extend_from_slice(&group_mac(to));
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&IPV6_PROTOCOL.to_be_bytes());
    frame.extend_from_slice(&[0x60, 0, 0, 0]);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[ICMPV6, HOPS]);
    frame.extend_from_slice(&from.octets());
    frame.extend_from_slice(&to.octets());
    frame.extend_from_slice(&message);
    frame
}

/// Checksum of an ICMPv6 message of an even length, as RFC 4443 has it.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks_exact(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
    };
    let mut sum = words(&from.octets()) + words(&to.octets()) + words(message);
    sum += message.len() as u64 + u64::from(ICMPV6);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Returns the hardware address of another host that claims `address` in this frame, as its owner
/// or as a prober.
fn conflict(frame: &[u8], address: IpAddr, own: [u8; 6]) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(address) => conflict_v4(frame, address, own),
        IpAddr::V6(address) => conflict_v6(frame, address, own),
    }
}

fn conflict_v4(frame: &[u8], address: Ipv4Addr, own: [u8; 6]) -> Option<[u8; 6]> {
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

fn conflict_v6(frame: &[u8], address: Ipv6Addr, own: [u8; 6]) -> Option<[u8; 6]> {
    let sender: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    let ip = frame.get(ETHERNET_HEADER_BYTES..ETHERNET_HEADER_BYTES + IPV6_HEADER_BYTES)?;
    let message = frame.get(ETHERNET_HEADER_BYTES + IPV6_HEADER_BYTES..)?;
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(message.get(8..NEIGHBOUR_BYTES)?).ok()?);
    let from = Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(8..24)?).ok()?);
    if ip[0] >> 4 != 6 || ip[6..8] != [ICMPV6, HOPS] || message[1] != 0 || target != address {
        return None;
    }
    let mac = match message[0] {
        ADVERTISEMENT => {
            let option = message.get(NEIGHBOUR_BYTES..NEIGHBOUR_BYTES + 8);
            let link = option.filter(|option| option[..2] == TARGET_LINK);
            link.and_then(|option| option[2..].try_into().ok()).unwrap_or(sender)
        }
        // A host that merely looks for the address has a source.
        SOLICITATION if from.is_unspecified() => sender,
        _ => return None,
    };
    (mac != own && sender != own).then_some(mac)
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    #[test]
    fn owners_and_other_probers_are_conflicts() {
        let vip = Ipv4Addr::new(10, 0, 0, 7);
        let neighbour = Ipv4Addr::new(10, 0, 0, 8);
        let conflict = |frame: &[u8]| conflict(frame, vip.into(), MINE);
        assert_eq!(conflict(&arp_frame(OTHER, vip, vip)), Some(OTHER));
        assert_eq!(conflict(&arp_frame(OTHER, vip, neighbour)), Some(OTHER));
        assert_eq!(conflict(&arp_frame(OTHER, Ipv4Addr::UNSPECIFIED, vip)), Some(OTHER));
        // A host that merely looks for the address does not have it.
        assert_eq!(conflict(&arp_frame(OTHER, neighbour, vip)), None);
        assert_eq!(conflict(&arp_frame(MINE, Ipv4Addr::UNSPECIFIED, vip)), None);
        for length in 0..ETHERNET_HEADER_BYTES + ARP_BYTES {
            assert_eq!(conflict(&arp_frame(OTHER, vip, vip)[..length]), None);
        }
    }

    #[test]
    fn holders_and_other_probers_of_an_ipv6_address_are_conflicts() {
        let vip: Ipv6Addr = "fd00::a:7".parse().unwrap();
        let near: Ipv6Addr = "fd00::1:a:7".parse().unwrap();
        let conflict = |frame: &[u8]| conflict(frame, vip.into(), MINE);
        let whole = advertisement(OTHER, vip);
        assert_eq!(conflict(&whole), Some(OTHER));
        assert_eq!(conflict(&solicitation(OTHER, vip)), Some(OTHER));
        assert_eq!(conflict(&advertisement(MINE, vip)), None);
        assert_eq!(conflict(&solicitation(MINE, vip)), None);
        assert_eq!(solicited(vip), solicited(near), "the group of both");
        assert_eq!(
            (conflict(&advertisement(OTHER, near)), conflict(&solicitation(OTHER, near))),
            (None, None)
        );
        // A neighbour looks for it.
        let looks = neighbour_frame(OTHER, (near, solicited(vip)), SOLICITATION, 0, vip, &[]);
        assert_eq!(conflict(&looks), None);
        // Not from a neighbour, and no message of neighbours.
        for (at, value) in [(14, 0x40), (20, 17), (21, 254), (54, 128), (55, 1)] {
            let mut frame = whole.clone();
            frame[at] = value;
            assert_eq!(conflict(&frame), None, "{at}");
        }
        let least = ETHERNET_HEADER_BYTES + IPV6_HEADER_BYTES + NEIGHBOUR_BYTES;
        for length in 0..whole.len() {
            assert_eq!(conflict(&whole[..length]), (length >= least).then_some(OTHER), "{length}");
        }
    }

    /// The frames as another implementation writes them: hosts drop messages with a wrong checksum.
    #[test]
    fn the_checksum_covers_addresses_length_and_message() {
        let ip: Ipv6Addr = "fe80::1".parse().unwrap();
        let frame = advertisement([0, 1, 2, 3, 4, 5], ip);
        let (from, to) = (&frame[22..38], &frame[38..54]);
        let sum: u64 = [from, to, &frame[54..]]
            .iter()
            .flat_map(|part| part.chunks_exact(2))
            .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1]))
            .sum::<u64>()
            + 32
            + 58;
        let folded = (sum & 0xffff) + (sum >> 16);
        assert_eq!((folded & 0xffff) + (folded >> 16), 0xffff);
        assert_eq!(frame[18..20], [0, 32]);
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
    }
}
