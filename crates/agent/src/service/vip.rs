//! Floating addresses.
//!
//! The agent probes an address before it takes it (R22): `neighbours` has the questions. The lease
//! already says that no node of the cluster has it. The probe finds other hosts, and nodes that
//! failed to let go. The agent announces the address several times afterwards, and keeps it:
//! `keep`. Everything goes to the kernel through netlink and packet sockets.
//!
//! A node of the cluster may stand still as a whole, and so fail to let go of its old address. It
//! then goes on answering for that address. The new holder takes the address over, and announces it
//! again and again until the old holder is silent.
//!
//! Guarantees
//! - Only an address that Mainstay has added is removed ([`mainstay_types::address`]). An address
//!   that is here and that Mainstay did not add is not taken.
//! - To remove an address removes no other. The kernel makes the second address of a network on an
//!   interface depend on the first one. So an address is added with a prefix of 32 bits, or of 128
//!   for IPv6, and is a network of its own. If the interface has no address in the network that the
//!   service names, a route with the IPv4 address as its source leads there. The route goes with
//!   the address. IPv6 has no route that goes with its address, so none is added.
//! - The kernel itself asks for the holder of an IPv6 address too (RFC 4862) before it uses it. An
//!   address that it finds in use is taken away again. Only an address of a node that has lost its
//!   right is added without that question.
//! - No connection of the node itself goes out from an IPv6 address of a service: it is added as
//!   deprecated. The prefix of 32 bits does the same for IPv4.

mod keep;
mod neighbours;

pub use self::keep::{Keeper, keep};
pub use self::neighbours::probe;

use futures_util::stream::TryStreamExt;
use mainstay_control::state::Links;
use mainstay_types::{
    ADDRESS_PROTOCOL, AddressHere, FoundAddress, MacAddress, WholeNetwork, address_here, address_label,
    addresses_to_remove, same_network, whole_network,
};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteProtocol, RouteScope};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Metric of the route to the network of the address whose host bits are 0. The kernel's own routes
/// have 0 and come first.
const ROUTE_METRIC: u32 = 1 << 24;
/// How long the kernel may take for its own question about an IPv6 address. Usual are one to two
/// seconds. Without a carrier it does not ask until there is one.
const DAD_PATIENCE: Duration = Duration::from_secs(3);
const DAD_POLL: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum VipError {
    #[error("{0} is not an IP address with a prefix length, such as 10.0.0.7/24 or fd00::7/64")]
    Malformed(String),
    #[error(
        "no interface of this node has an address in the subnet of {0}; name the interface in the service file"
    )]
    NoInterface(Vip),
    #[error("{vip} is the {} of a network that this node has as {there}", part(*.what))]
    NoHost { vip: Vip, there: Vip, what: WholeNetwork },
    #[error("this node has no interface {0}")]
    UnknownInterface(String),
    #[error(
        "{vip} is in use by a host with the hardware address {by}; take it away there, or give the service another address"
    )]
    InUse { vip: Vip, by: MacAddress },
    #[error(
        "{vip} is in use by another host: the kernel asked for it on {interface} and got an answer; take it away there, or give \
         the service another address"
    )]
    Duplicate { vip: Vip, interface: String },
    #[error(
        "{vip} is on {interface} already and Mainstay did not add it; \
         remove it there with `ip address del {}/{prefix} dev {interface}`, or give the service another address",
        vip.address
    )]
    Foreign { vip: Vip, interface: String, prefix: u8 },
    #[error(
        "this kernel cannot mark {vip} on {interface} as Mainstay's, so it could not be removed safely; \
         use Linux 5.18 or newer, or for IPv4 an interface whose name has 10 characters at most"
    )]
    Unmarked { vip: Vip, interface: String },
    #[error("the kernel refused: {0}")]
    Netlink(String),
    #[error("cannot ask the neighbours on {interface}: {source}")]
    Neighbours {
        interface: String,
        #[source]
        source: io::Error,
    },
}

fn part(what: WholeNetwork) -> &'static str {
    match what {
        WholeNetwork::Network => "address",
        WholeNetwork::Broadcast => "address of all hosts (broadcast)",
    }
}

/// An address with the length of its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vip {
    pub address: IpAddr,
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
        let (address, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(whole), |prefix| prefix.parse().ok());
        let prefix = prefix.filter(|prefix| *prefix <= whole).ok_or_else(malformed)?;
        Ok(Self { address, prefix })
    }
}

impl Vip {
    fn subnet_contains(self, other: IpAddr) -> bool {
        same_network(self.address, other, self.prefix)
    }

    /// Bits of the prefix with which an address is a network of its own.
    fn whole(self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }
}

/// An interface of this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub name: String,
    index: u32,
    mac: [u8; 6],
}

/// The interface that is named, or else the one with another address in the same subnet. Addresses
/// that Mainstay has added do not count.
///
/// # Errors
/// When there is none, or when the networks of this node allow no host to have the address.
pub fn find_interface(vip: Vip, name: Option<&str>) -> Result<Interface, VipError> {
    refuse_no_host(vip, &addresses()?)?;
    with_netlink(async |handle| {
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
        if let Some(name) = name {
            let found = links.iter().map(interface_of).find(|interface| interface.name == name);
            return Ok(found.ok_or_else(|| VipError::UnknownInterface(name.to_owned())));
        }
        let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        let index = addresses.iter().filter_map(found).find_map(|found| {
            // A prefix of 32 or 128 bits contains no other address. Then the subnet of the node's
            // own address decides.
            let near = found.ip != vip.address
                && !found.is_ours()
                && !found.ip.is_loopback()
                && (vip.subnet_contains(found.ip)
                    || (found.prefix < vip.whole() && found.network_contains(vip.address)));
            near.then_some(found.interface)
        });
        let link = index.and_then(|index| links.iter().find(|link| link.header.index == index));
        Ok(link.map(interface_of).ok_or(VipError::NoInterface(vip)))
    })?
}

/// `list`: the addresses of this node.
fn refuse_no_host(vip: Vip, list: &[FoundAddress]) -> Result<(), VipError> {
    match whole_network(list, vip.address) {
        Some((FoundAddress { ip: address, prefix, .. }, what)) => {
            Err(VipError::NoHost { vip, there: Vip { address, prefix }, what })
        }
        None => Ok(()),
    }
}

/// Takes the address. Taking it again is a success. The kernel does not use an IPv6 address yet:
/// see [`settled`]. `contested`: the kernel does not ask for another holder first.
///
/// # Errors
/// [`VipError::Foreign`] when it is here and Mainstay did not add it; when the kernel refuses.
pub fn add(vip: Vip, interface: &Interface, contested: bool) -> Result<(), VipError> {
    match whose(vip)? {
        AddressHere::Ours(there) if there.interface == interface.index => return Ok(()),
        AddressHere::Foreign(there) => return Err(foreign(vip, there)),
        // The address is on another interface than the service names now.
        AddressHere::Ours(_) => remove(vip)?,
        AddressHere::No => {}
    }
    let label = address_label(&interface.name);
    with_netlink(async |handle| {
        let mut request = handle.address().add(interface.index, vip.address, vip.whole());
        let attributes = &mut request.message_mut().attributes;
        attributes.push(AddressAttribute::Protocol(ADDRESS_PROTOCOL.into()));
        if vip.address.is_ipv4() {
            attributes.extend(label.clone().map(AddressAttribute::Label));
        } else {
            let mut lifetime = CacheInfo::default();
            (lifetime.ifa_preferred, lifetime.ifa_valid) = (0, u32::MAX);
            attributes.push(AddressAttribute::CacheInfo(lifetime));
            if contested {
                attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            }
        }
        request.execute().await
    })?;
    let list = addresses()?;
    let there = list.iter().find(|found| found.interface == interface.index && found.ip == vip.address);
    if let Some(there) = there.filter(|there| !there.is_ours()) {
        delete(&[*there])?;
        return Err(VipError::Unmarked { vip, interface: interface.name.clone() });
    }
    ensure_route(vip, interface, &list)
}

/// Waits until the kernel uses the address, for as long as it is `wanted` and [`DAD_PATIENCE`]
/// lasts. An address that the kernel still asks for then is left as it is: [`keep`] looks at it.
///
/// # Errors
/// [`VipError::Duplicate`] when the kernel has found another host with the address, which is taken
/// away again then; when the kernel does not tell.
pub fn settled(vip: Vip, interface: &Interface, wanted: &dyn Fn() -> bool) -> Result<(), VipError> {
    if vip.address.is_ipv4() {
        return Ok(());
    }
    let deadline = Instant::now() + DAD_PATIENCE;
    loop {
        let flags = flags_of(vip)?;
        if flags.contains(AddressFlags::Dadfailed) {
            remove(vip)?;
            return Err(VipError::Duplicate { vip, interface: interface.name.clone() });
        }
        if !flags.contains(AddressFlags::Tentative) || !wanted() || Instant::now() >= deadline {
            return Ok(());
        }
        std::thread::sleep(DAD_POLL);
    }
}

/// Flags of an address that Mainstay has added; none are set if it is not here.
fn flags_of(vip: Vip) -> Result<AddressFlags, VipError> {
    with_netlink(async |handle| {
        let messages: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        let ours = messages
            .iter()
            .find(|message| found(message).is_some_and(|found| found.is_ours() && found.ip == vip.address));
        let flags =
            ours.into_iter().flat_map(|message| &message.attributes).find_map(|attribute| match attribute {
                AddressAttribute::Flags(flags) => Some(*flags),
                _ => None,
            });
        Ok(flags.unwrap_or(AddressFlags::empty()))
    })
}

/// Makes sure that the network of the address is reached through `interface`, by an address that is
/// there already or by the address itself. `list`: the addresses of this node.
fn ensure_route(vip: Vip, interface: &Interface, list: &[FoundAddress]) -> Result<(), VipError> {
    let reached = list.iter().any(|found| {
        found.interface == interface.index && !found.is_ours() && found.network_contains(vip.address)
    });
    match vip.address {
        IpAddr::V4(address) if vip.prefix < 32 && !reached => add_route(address, vip.prefix, interface),
        _ => Ok(()),
    }
}

/// Adds a route to the neighbours in the network of the address, through `interface` and from the
/// address. The kernel takes the route away with the address.
fn add_route(address: Ipv4Addr, prefix: u8, interface: &Interface) -> Result<(), VipError> {
    let bits = address.to_bits();
    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    // Each address of the network has a route of its own.
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(Ipv4Addr::from_bits(bits & !hosts), prefix)
        .output_interface(interface.index)
        .pref_source(address)
        .scope(RouteScope::Link)
        .protocol(RouteProtocol::Other(ADDRESS_PROTOCOL))
        .priority(ROUTE_METRIC.saturating_add(bits & hosts))
        .build();
    with_netlink(async |handle| match handle.route().add(route.clone()).execute().await {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EEXIST => Ok(()),
        other => other,
    })
}

/// Gives the address up, wherever it is, if Mainstay has added it. What is not there is a success.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(vip: Vip) -> Result<(), VipError> {
    let list = addresses()?;
    let ours: Vec<FoundAddress> = addresses_to_remove(&list, vip.address).copied().collect();
    delete(&ours)
}

fn delete(those: &[FoundAddress]) -> Result<(), VipError> {
    with_netlink(async |handle| {
        let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        for message in addresses {
            if !found(&message).is_some_and(|found| those.contains(&found)) {
                continue;
            }
            match handle.address().del(message).execute().await {
                Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EADDRNOTAVAIL => {}
                other => other?,
            }
        }
        Ok(())
    })
}

/// Whether this node has the address, and whose it is.
///
/// # Errors
/// When the kernel does not tell; the caller has to assume that it has (R19).
pub fn whose(vip: Vip) -> Result<AddressHere, VipError> {
    Ok(address_here(&addresses()?, vip.address))
}

/// Says that an address that was found may not be taken.
pub fn foreign(vip: Vip, there: FoundAddress) -> VipError {
    let name = links_now().ok().and_then(|links| {
        links.iter().map(interface_of).find(|link| link.index == there.interface).map(|link| link.name)
    });
    let interface = name.unwrap_or_else(|| format!("interface {}", there.interface));
    VipError::Foreign { vip, interface, prefix: there.prefix }
}

/// The addresses of this machine, without those that Mainstay has added.
///
/// # Errors
/// When the kernel does not tell.
pub fn own_addresses() -> Result<Vec<IpAddr>, VipError> {
    Ok(addresses()?.iter().filter(|found| !found.is_ours()).map(|found| found.ip).collect())
}

fn links_now() -> Result<Vec<LinkMessage>, VipError> {
    with_netlink(async |handle| {
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
        Ok(links)
    })
}

/// All addresses of this node.
fn addresses() -> Result<Vec<FoundAddress>, VipError> {
    with_netlink(async |handle| {
        let messages: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        Ok(messages.iter().filter_map(found).collect())
    })
}

/// Returns the interfaces of this node, as far as other nodes have to know them.
///
/// # Errors
/// When the kernel does not tell.
pub fn links() -> Result<Links, VipError> {
    let others_reach = |found: &FoundAddress| match found.ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let list: Vec<FoundAddress> = addresses()?.into_iter().filter(others_reach).collect();
    let links = links_now()?;
    let used =
        |link: &Interface| link.mac != [0; 6] && list.iter().any(|found| found.interface == link.index);
    let macs = links.iter().map(interface_of).filter(used).map(|link| MacAddress(link.mac));
    let own = list.iter().filter(|found| !found.is_ours()).map(|found| found.ip);
    let (macs, own): (BTreeSet<MacAddress>, BTreeSet<IpAddr>) = (macs.collect(), own.collect());
    Ok(Links {
        macs: macs.into_iter().take(Links::MAX).collect(),
        addresses: own.into_iter().take(Links::MAX).collect(),
    })
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

fn found(message: &AddressMessage) -> Option<FoundAddress> {
    let (mut ip, mut local, mut protocol, mut label) = (None, None, 0, "");
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(address) => ip = Some(*address),
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Protocol(found) => protocol = u8::from(*found),
            AddressAttribute::Label(found) => label = found,
            _ => {}
        }
    }
    let (interface, prefix) = (message.header.index, message.header.prefix_len);
    Some(FoundAddress::new(interface, local.or(ip)?, prefix, protocol, label.as_bytes()))
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
        let v4 = |a, b, c, d| IpAddr::from([a, b, c, d]);
        assert_eq!(vip, Vip { address: v4(10, 0, 0, 7), prefix: 24 });
        assert_eq!("10.0.0.7".parse::<Vip>().unwrap().prefix, 32);
        assert_eq!("fd00::7".parse::<Vip>().unwrap().prefix, 128);
        assert_eq!("fd00::7/64".parse::<Vip>().unwrap().to_string(), "fd00::7/64");
        assert!("10.0.0.7/33".parse::<Vip>().is_err() && "fd00::1/129".parse::<Vip>().is_err());
        assert!(vip.subnet_contains(v4(10, 0, 0, 200)));
        assert!(!vip.subnet_contains(v4(10, 0, 1, 200)));
        assert!(Vip { prefix: 0, ..vip }.subnet_contains(v4(1, 1, 1, 1)));
        assert!(!Vip { prefix: 32, ..vip }.subnet_contains(v4(10, 0, 0, 8)));
    }

    /// The prefix that the service names says nothing of the network that the interface has.
    #[test]
    fn an_address_that_is_a_whole_network_of_this_node_is_refused() {
        let eth0 = FoundAddress::new(2, Ipv4Addr::new(10, 213, 0, 2).into(), 24, 0, b"eth0");
        for (vip, says) in [
            ("10.213.0.255/16", "10.213.0.255/16 is the address of all hosts (broadcast) of a network"),
            ("10.213.0.255/32", "that this node has as 10.213.0.2/24"),
            ("10.213.0.255/31", "broadcast"),
            ("10.213.0.0/32", "10.213.0.0/32 is the address of a network"),
        ] {
            let refused = refuse_no_host(vip.parse().unwrap(), &[eth0]).unwrap_err().to_string();
            assert!(refused.contains(says), "{vip}: {refused}");
        }
        for vip in ["10.213.0.7/16", "10.213.1.255/16", "10.213.0.7/32"] {
            assert!(refuse_no_host(vip.parse().unwrap(), &[eth0]).is_ok(), "{vip}");
        }
    }
}
