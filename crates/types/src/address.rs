//! IP addresses on the interfaces of one node: which of them Mainstay has added.
//!
//! Guarantees (R22)
//! - An address is Mainstay's only if it carries Mainstay's mark. An undo, a kill, a sweep and the
//!   guard remove no other address. No other address is taken for a service's.
//! - The mark is in the kernel, beside the address. So it outlives both daemons, goes with an
//!   interface that gets another name, and ends with the address.
//!
//! The mark has two parts, and either of them counts. One is the address's protocol (`IFA_PROTO`,
//! kept by Linux from 5.18 on). The other is the end of its label. Every kernel keeps the label,
//! but only IPv4 has one, and only an interface name of up to 10 bytes leaves room for the mark.

use crate::simulation::{Bug, planted};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// `IFA_PROTO` of addresses that Mainstay has added. The kernel's own values are 0 to 3.
pub const ADDRESS_PROTOCOL: u8 = 77;
/// End of the label of addresses that Mainstay has added, for example `eth0:mnst`.
pub const ADDRESS_LABEL: &str = ":mnst";
/// Longest label of an address, in bytes (`IFNAMSIZ` without its zero).
const LABEL_BYTES_MAX: usize = 15;

/// The label that an address on `interface` gets; `None` if there is no room for one.
#[must_use]
pub fn address_label(interface: &str) -> Option<String> {
    let label = format!("{interface}{ADDRESS_LABEL}");
    (label.len() <= LABEL_BYTES_MAX).then_some(label)
}

/// An address as the kernel lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundAddress {
    /// Index of its interface.
    pub interface: u32,
    pub ip: IpAddr,
    /// Bits of its prefix.
    pub prefix: u8,
    marked: bool,
}

impl FoundAddress {
    /// `protocol` and `label` as the kernel says; 0 and empty if it says nothing.
    #[must_use]
    pub fn new(interface: u32, ip: IpAddr, prefix: u8, protocol: u8, label: &[u8]) -> Self {
        let marked = protocol == ADDRESS_PROTOCOL || label.ends_with(ADDRESS_LABEL.as_bytes());
        Self { interface, ip, prefix, marked }
    }

    /// Whether Mainstay has added it, and may remove it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.marked || planted(Bug::FoundAddressTaken)
    }

    /// Whether its prefix contains `ip`.
    #[must_use]
    pub fn network_contains(&self, ip: IpAddr) -> bool {
        same_network(self.ip, ip, self.prefix)
    }
}

/// Hardware address of an interface, as ARP has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Whether two addresses agree in their first `prefix` bits.
#[must_use]
pub fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let (a, b, bits) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    (a ^ b).checked_shr(bits - u32::from(prefix).min(bits)).unwrap_or(0) == 0
}

/// Whether this node has an address, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressHere {
    No,
    /// Mainstay has added it.
    Ours(FoundAddress),
    /// The address was on this interface before, and Mainstay did not add it.
    Foreign(FoundAddress),
}

/// Meaning of an address that no host of a network may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WholeNetwork {
    /// All host bits are 0.
    Network,
    /// All host bits are 1.
    Broadcast,
}

/// The first of the networks of a node in which no host may have the address `ip`, and why.
/// `prefix` of the address itself plays no part. Networks of 31 and 32 bits have hosts only (RFC
/// 3021), and IPv6 has no broadcast.
#[must_use]
pub fn whole_network(found: &[FoundAddress], ip: IpAddr) -> Option<(FoundAddress, WholeNetwork)> {
    let IpAddr::V4(address) = ip else { return None };
    let networks = found.iter().filter(|one| one.prefix < 31 && !one.is_ours() && one.network_contains(ip));
    networks.into_iter().find_map(|one| {
        let hosts = u32::MAX.checked_shr(one.prefix.into()).unwrap_or(0);
        match address.to_bits() & hosts {
            0 => Some((*one, WholeNetwork::Network)),
            own if own == hosts => Some((*one, WholeNetwork::Broadcast)),
            _ => None,
        }
    })
}

/// Looks for `ip` among the addresses of a node. An address that Mainstay did not add counts first.
#[must_use]
pub fn address_here(found: &[FoundAddress], ip: IpAddr) -> AddressHere {
    let mut those = found.iter().filter(|address| address.ip == ip);
    let foreign = those.clone().find(|address| !address.is_ours());
    match (foreign, those.next()) {
        (Some(foreign), _) => AddressHere::Foreign(*foreign),
        (None, Some(ours)) => AddressHere::Ours(*ours),
        (None, None) => AddressHere::No,
    }
}

/// Returns the addresses of a node that are removed when `ip` is: all with this IP address that
/// Mainstay has added, on any interface.
pub fn addresses_to_remove(found: &[FoundAddress], ip: IpAddr) -> impl Iterator<Item = &FoundAddress> {
    let remembered = found.first().map(|first| first.interface);
    found.iter().filter(move |address| {
        let searched = !planted(Bug::OneInterfaceSearched) || Some(address.interface) == remembered;
        address.ip == ip && address.is_ours() && searched
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn found(interface: u32, last: u8, protocol: u8, label: &str) -> FoundAddress {
        FoundAddress::new(interface, ip(last), 24, protocol, label.as_bytes())
    }

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn only_a_marked_address_is_mainstays() {
        for (protocol, label, ours) in [
            (0, "eth0", false),
            (2, "eth0", false),
            (0, "eth0:1", false),
            (0, "", false),
            (ADDRESS_PROTOCOL, "eth0", true),
            (0, "eth0:mnst", true),
            (ADDRESS_PROTOCOL, "", true),
        ] {
            assert_eq!(found(1, 7, protocol, label).is_ours(), ours, "{protocol} {label}");
        }
        assert_eq!(address_label("eth0").as_deref(), Some("eth0:mnst"));
        assert_eq!(address_label("enp0s31f61").as_deref(), Some("enp0s31f61:mnst"));
        assert_eq!(address_label("enx001122334455"), None);
    }

    #[test]
    fn an_address_that_was_there_before_counts_first() {
        let (foreign, ours) = (found(1, 7, 0, "eth0"), found(2, 7, ADDRESS_PROTOCOL, "eth1"));
        let other = found(1, 8, ADDRESS_PROTOCOL, "eth0");
        assert_eq!(address_here(&[other], ip(7)), AddressHere::No);
        assert_eq!(address_here(&[other, ours], ip(7)), AddressHere::Ours(ours));
        assert_eq!(address_here(&[ours, foreign], ip(7)), AddressHere::Foreign(foreign));
        assert_eq!(address_here(&[foreign], ip(7)), AddressHere::Foreign(foreign));
        let all = [other, foreign, ours];
        let removed: Vec<_> = addresses_to_remove(&all, ip(7)).collect();
        assert_eq!(removed, [&ours]);
    }

    #[test]
    fn the_ends_of_a_network_that_a_node_has_are_no_hosts() {
        let eth0 = found(1, 2, 0, "eth0");
        let pair = FoundAddress::new(2, Ipv4Addr::new(10, 9, 0, 0).into(), 31, 0, b"eth1");
        let here = [eth0, pair];
        assert_eq!(whole_network(&here, ip(255)), Some((eth0, WholeNetwork::Broadcast)));
        assert_eq!(whole_network(&here, ip(0)), Some((eth0, WholeNetwork::Network)));
        assert_eq!(whole_network(&here, ip(7)), None);
        for host in [Ipv4Addr::new(10, 9, 0, 0), Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 1, 0, 255)] {
            assert_eq!(whole_network(&here, host.into()), None, "{host}");
        }
        // A floating address is no network that the node has.
        assert_eq!(whole_network(&[found(1, 7, ADDRESS_PROTOCOL, "eth0:mnst")], ip(255)), None);
    }

    #[test]
    fn networks_are_compared_by_their_prefix() {
        assert!(same_network(ip(1), ip(200), 24) && !same_network(ip(1), ip(200), 25));
        assert!(same_network(ip(1), ip(1), 32) && !same_network(ip(1), ip(2), 32));
        assert!(same_network(ip(1), Ipv4Addr::new(192, 0, 2, 1).into(), 0));
        let v6: IpAddr = "fd00::1".parse().unwrap();
        assert!(!same_network(ip(1), v6, 0));
        assert!(same_network(v6, "fd00::2".parse().unwrap(), 64));
        assert!(same_network(v6, "fe80::2".parse().unwrap(), 0));
    }
}
