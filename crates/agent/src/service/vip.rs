//! Floating addresses.
//!
//! The agent probes an address before it takes it (R22), with the questions of RFC 5227 but short
//! waits. The lease already says that no node of the cluster has it. The probe finds other hosts,
//! and nodes that failed to let go. The agent announces the address several times afterwards.
//! Everything goes to the kernel through netlink and packet sockets. This version carries only IPv4
//! addresses.
//!
//! A node of the cluster may stand still as a whole, and so fail to let go of its old address. It
//! then goes on answering for that address. The new holder takes the address over, and announces it
//! again and again until the old holder is silent.
//!
//! Guarantees
//! - Only an address that Mainstay has added is removed ([`mainstay_types::address`]). An address
//!   that is here and that Mainstay did not add is not taken.
//! - To remove an address removes no other. The kernel makes the second address of a network on an
//!   interface depend on the first one. So an address is added with a prefix of 32 bits, and is a
//!   network of its own. If the interface has no address in the network that the service names, a
//!   route with the address as its source leads there. The route goes with the address.

use super::hindrances::Part;
use crate::sys::{ARP_PROTOCOL, arp_address};
use crate::threads::spawn;
use futures_util::stream::TryStreamExt;
use mainstay_control::stalls::Hindrance;
use mainstay_control::state::Links;
use mainstay_types::{
    ADDRESS_PROTOCOL, AddressHere, FoundAddress, MacAddress, WholeNetwork, address_here, address_label,
    addresses_to_remove, same_network, whole_network,
};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteProtocol, RouteScope};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Questions before an address is taken, and the time to answer each.
const PROBES: u32 = 3;
const PROBE_WAIT: Duration = Duration::from_millis(50);
/// When the address is announced, counted from when it was added. Switches and neighbours may miss
/// some.
const ANNOUNCE_AT: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];
/// Rounds without another holder after which the address counts as uncontested.
const QUIET_ROUNDS: u32 = 4;
/// Pause between two probes for other hosts with the address: while one has answered lately, and
/// later.
const CONTESTED_PAUSE: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_secs(5);
const ETHERNET_HEADER_BYTES: usize = 14;
const ARP_BYTES: usize = 28;
const BROADCAST: [u8; 6] = [0xff; 6];
/// Metric of the route to the network of the address whose host bits are 0. The kernel's own routes
/// have 0 and come first.
const ROUTE_METRIC: u32 = 1 << 24;

#[derive(Debug, thiserror::Error)]
pub enum VipError {
    #[error("{0} is not an IPv4 address with a prefix length, such as 10.0.0.7/24")]
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
        "{vip} is on {interface} already and Mainstay did not add it; \
         remove it there with `ip address del {}/{prefix} dev {interface}`, or give the service another address",
        vip.address
    )]
    Foreign { vip: Vip, interface: String, prefix: u8 },
    #[error(
        "this kernel cannot mark {vip} on {interface} as Mainstay's, so it could not be removed safely; \
         use Linux 5.18 or newer, or an interface whose name has 10 characters at most"
    )]
    Unmarked { vip: Vip, interface: String },
    #[error("the kernel refused: {0}")]
    Netlink(String),
    #[error("cannot send or receive ARP on {interface}: {source}")]
    Arp {
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
        same_network(self.address.into(), other.into(), self.prefix)
    }

    fn ip(self) -> IpAddr {
        self.address.into()
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
            let IpAddr::V4(address) = found.ip else { return None };
            // A prefix of 32 bits contains no other address. Then the subnet of the node's own
            // address decides.
            let near = address != vip.address
                && !found.is_ours()
                && !address.is_loopback()
                && (vip.subnet_contains(address) || (found.prefix < 32 && found.network_contains(vip.ip())));
            near.then_some(found.interface)
        });
        let link = index.and_then(|index| links.iter().find(|link| link.header.index == index));
        Ok(link.map(interface_of).ok_or(VipError::NoInterface(vip)))
    })?
}

/// `list`: the addresses of this node.
fn refuse_no_host(vip: Vip, list: &[FoundAddress]) -> Result<(), VipError> {
    match whole_network(list, vip.ip()) {
        Some((FoundAddress { ip: IpAddr::V4(address), prefix, .. }, what)) => {
            Err(VipError::NoHost { vip, there: Vip { address, prefix }, what })
        }
        _ => Ok(()),
    }
}

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
                        return Err(VipError::InUse { vip, by: MacAddress(by) });
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
/// [`VipError::Foreign`] when it is here and Mainstay did not add it; when the kernel refuses.
pub fn add(vip: Vip, interface: &Interface) -> Result<(), VipError> {
    match whose(vip)? {
        AddressHere::Ours(there) if there.interface == interface.index => return Ok(()),
        AddressHere::Foreign(there) => return Err(foreign(vip, there)),
        // The address is on another interface than the service names now.
        AddressHere::Ours(_) => remove(vip)?,
        AddressHere::No => {}
    }
    let label = address_label(&interface.name);
    with_netlink(async |handle| {
        let mut request = handle.address().add(interface.index, vip.ip(), 32);
        let attributes = &mut request.message_mut().attributes;
        attributes.push(AddressAttribute::Protocol(ADDRESS_PROTOCOL.into()));
        attributes.extend(label.clone().map(AddressAttribute::Label));
        request.execute().await
    })?;
    let list = addresses()?;
    let there = list.iter().find(|found| found.interface == interface.index && found.ip == vip.ip());
    if let Some(there) = there.filter(|there| !there.is_ours()) {
        delete(&[*there])?;
        return Err(VipError::Unmarked { vip, interface: interface.name.clone() });
    }
    ensure_route(vip, interface, &list)
}

/// Makes sure that the network of the address is reached through `interface`, by an address that is
/// there already or by the address itself. `list`: the addresses of this node.
fn ensure_route(vip: Vip, interface: &Interface, list: &[FoundAddress]) -> Result<(), VipError> {
    let reached = list.iter().any(|found| {
        found.interface == interface.index && !found.is_ours() && found.network_contains(vip.ip())
    });
    if vip.prefix < 32 && !reached { add_route(vip, interface) } else { Ok(()) }
}

/// Adds a route to the neighbours in the network of the address, through `interface` and from the
/// address. The kernel takes the route away with the address.
fn add_route(vip: Vip, interface: &Interface) -> Result<(), VipError> {
    let bits = vip.address.to_bits();
    let hosts = u32::MAX.checked_shr(vip.prefix.into()).unwrap_or(0);
    // Each address of the network has a route of its own.
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(Ipv4Addr::from_bits(bits & !hosts), vip.prefix)
        .output_interface(interface.index)
        .pref_source(vip.address)
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
    let ours: Vec<FoundAddress> = addresses_to_remove(&list, vip.ip()).copied().collect();
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
    Ok(address_here(&addresses()?, vip.ip()))
}

/// Says that an address that was found may not be taken.
pub fn foreign(vip: Vip, there: FoundAddress) -> VipError {
    let links = with_netlink(async |handle| {
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
        Ok(links)
    });
    let name = links.ok().and_then(|links| {
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

/// All addresses of this node.
fn addresses() -> Result<Vec<FoundAddress>, VipError> {
    with_netlink(async |handle| {
        let messages: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
        Ok(messages.iter().filter_map(found).collect())
    })
}

/// Flags of an interface; none are set if it is gone. `None` if the kernel does not tell just now.
fn flags(interface: &Interface) -> Option<LinkFlags> {
    let links = with_netlink(async |handle| {
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
        Ok(links)
    });
    let found = links.ok()?.into_iter().find(|link| link.header.index == interface.index);
    Some(found.map_or_else(LinkFlags::empty, |link| link.header.flags))
}

/// Why an address that was added does not answer any more; none while it does. `flags`: those of
/// the interface, if the kernel tells just now.
fn lost(vip: Vip, interface: &Interface, list: &[FoundAddress], flags: Option<LinkFlags>) -> Option<String> {
    match address_here(list, vip.ip()) {
        AddressHere::Ours(_) => {}
        AddressHere::No => return Some(format!("{vip} was taken off {}", interface.name)),
        AddressHere::Foreign(_) => {
            return Some(format!("{vip} was added by another program or operator too"));
        }
    }
    flags
        .is_some_and(|flags| !flags.contains(LinkFlags::Up))
        .then(|| format!("the interface {} is down or gone", interface.name))
}

/// Tells the neighbours, and keeps the address reachable in the background, for as long as `wanted`
/// says so. `tell` hears why the address does not answer any more, at every look. `hinder` hears
/// what else hinders it, or that nothing does.
pub fn keep(
    vip: Vip,
    interface: &Interface,
    wanted: impl Fn() -> bool + Send + 'static,
    tell: impl Fn(String) + Send + 'static,
    hinder: impl Fn(Part, Option<Hindrance>) + Send + Sync + 'static,
) {
    let interface = interface.clone();
    let hinder = Arc::new(hinder);
    let told = Arc::clone(&hinder);
    // Returns all addresses of this node, if it has this one, and whether the address is wanted. An
    // address stops being wanted before it is taken away.
    let look = move |interface: &Interface| {
        let (list, flags) = (addresses().ok(), flags(interface));
        let why = list.as_ref().and_then(|list| lost(vip, interface, list, flags));
        // Another report tells of an interface that is down.
        let without_carrier = why.is_none() && flags.is_some_and(|flags| !flags.contains(LinkFlags::LowerUp));
        let (here, wanted) = (list.filter(|_| why.is_none()), wanted());
        let no_carrier =
            || Hindrance::NoCarrier { interface: interface.name.clone(), address: vip.to_string() };
        told(Part::Interface, (without_carrier && wanted).then(no_carrier));
        if !wanted {
            told(Part::Address, None);
        }
        if let Some(why) = why.filter(|_| wanted) {
            tell(why);
        }
        (here.map(|list| (list, without_carrier)), wanted)
    };
    spawn("agent-address", move || {
        let start = Instant::now();
        for at in ANNOUNCE_AT {
            std::thread::sleep(at.saturating_sub(start.elapsed()));
            match look(&interface) {
                (_, false) => return,
                (Some(_), true) => announce(vip, &interface),
                (None, true) => {}
            }
        }
        // Rounds without an answer of another host for the address, since the last such answer.
        let mut quiet = 0;
        let mut was_without_carrier = false;
        loop {
            let soon = quiet < QUIET_ROUNDS || was_without_carrier;
            std::thread::sleep(if soon { CONTESTED_PAUSE } else { LOOK_PAUSE });
            let (list, without_carrier) = match look(&interface) {
                (_, false) => return,
                (None, true) => continue,
                (Some(found), true) => found,
            };
            // Behind a carrier that comes back there may be another switch.
            if std::mem::replace(&mut was_without_carrier, without_carrier) && !without_carrier {
                announce(vip, &interface);
            }
            if without_carrier {
                continue;
            }
            // An interface that was down for a moment has lost its routes.
            if let Err(error) = ensure_route(vip, &interface, &list) {
                tracing::debug!(%vip, %error, "the network of an address is not reached");
            }
            match probe(vip, &interface) {
                Ok(()) => {
                    quiet = (quiet + 1).min(QUIET_ROUNDS);
                    if quiet == QUIET_ROUNDS {
                        hinder(Part::Address, None);
                    }
                }
                Err(VipError::InUse { by, .. }) => {
                    if quiet >= QUIET_ROUNDS {
                        tracing::warn!(%vip, %by, "another host answers for an address; it is announced until that one is silent");
                    }
                    quiet = 0;
                    hinder(Part::Address, Some(Hindrance::Contested { address: vip.to_string(), by }));
                    announce(vip, &interface);
                }
                Err(error) => tracing::debug!(%vip, %error, "cannot ask which host has an address"),
            }
        }
    });
}

fn announce(vip: Vip, interface: &Interface) {
    let to = arp_address(interface.index, BROADCAST);
    let frame = arp_frame(interface.mac, vip.address, vip.address);
    if let Err(error) = open_socket(interface).and_then(|socket| socket.send_to(&frame, &to)) {
        tracing::warn!(%vip, interface = interface.name, %error, "could not announce an address; it is tried again");
    }
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
    let links = with_netlink(async |handle| {
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
        Ok(links)
    })?;
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

/// Returns the hardware address of another host that claims `address` in this frame, as its owner
/// or as a prober.
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
        assert_eq!(vip, Vip { address: Ipv4Addr::new(10, 0, 0, 7), prefix: 24 });
        assert_eq!("10.0.0.7".parse::<Vip>().unwrap().prefix, 32);
        assert!("10.0.0.7/33".parse::<Vip>().is_err() && "fd00::1/64".parse::<Vip>().is_err());
        assert!(vip.subnet_contains(Ipv4Addr::new(10, 0, 0, 200)));
        assert!(!vip.subnet_contains(Ipv4Addr::new(10, 0, 1, 200)));
        assert!(Vip { prefix: 0, ..vip }.subnet_contains(Ipv4Addr::new(1, 1, 1, 1)));
        assert!(!Vip { prefix: 32, ..vip }.subnet_contains(Ipv4Addr::new(10, 0, 0, 8)));
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

    #[test]
    fn owners_and_other_probers_are_conflicts() {
        let (mine, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let vip = Ipv4Addr::new(10, 0, 0, 7);
        let neighbour = Ipv4Addr::new(10, 0, 0, 8);
        assert_eq!(conflict(&arp_frame(other, vip, vip), vip, mine), Some(other));
        assert_eq!(conflict(&arp_frame(other, vip, neighbour), vip, mine), Some(other));
        assert_eq!(conflict(&arp_frame(other, Ipv4Addr::UNSPECIFIED, vip), vip, mine), Some(other));
        // A host that merely looks for the address does not have it.
        assert_eq!(conflict(&arp_frame(other, neighbour, vip), vip, mine), None);
        assert_eq!(conflict(&arp_frame(mine, Ipv4Addr::UNSPECIFIED, vip), vip, mine), None);
        for length in 0..ETHERNET_HEADER_BYTES + ARP_BYTES {
            assert_eq!(conflict(&arp_frame(other, vip, vip)[..length], vip, mine), None);
        }
    }
}
