//! An address that a service has: announced, looked at, and defended, for as long as it is wanted.
//!
//! A thread for each address announces it at [`ANNOUNCE_AT`], and again whenever another host
//! claims it. In between it looks every [`LOOK_PAUSE`] whether the address is still there and
//! listens for other hosts meanwhile.

use super::neighbours::{announce, hear, probe};
use super::{Interface, Vip, VipError, addresses, ensure_route, flags_of, links_now};
use crate::service::hindrances::Part;
use crate::threads::spawn;
use mainstay_control::stalls::Hindrance;
use mainstay_types::{AddressHere, FoundAddress, MacAddress, address_here};
use rtnetlink::packet_route::address::AddressFlags;
use rtnetlink::packet_route::link::LinkFlags;
use std::time::{Duration, Instant};

/// When the address is announced, counted from when it was added. Switches and neighbours may miss
/// some.
const ANNOUNCE_AT: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
];
/// Rounds without another holder after which the address counts as uncontested.
const QUIET_ROUNDS: u32 = 4;
/// Pause between two looks: while another host has claimed the address lately, and later. Two hosts
/// that defend the same address announce it no more often than that.
const CONTESTED_PAUSE: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_secs(4);

/// Why an address that was added does not answer any more; none while it does. `flags`: those of
/// the interface, and those of the address, if the kernel tells just now.
fn lost(
    vip: Vip,
    interface: &Interface,
    list: &[FoundAddress],
    flags: (Option<LinkFlags>, Option<AddressFlags>),
) -> Option<String> {
    match address_here(list, vip.address) {
        AddressHere::Ours(_) => {}
        AddressHere::No => return Some(format!("{vip} was taken off {}", interface.name)),
        AddressHere::Foreign(_) => {
            return Some(format!("{vip} was added by another program or operator too"));
        }
    }
    if flags.1.is_some_and(|flags| flags.contains(AddressFlags::Dadfailed)) {
        return Some(format!("the kernel does not use {vip} any more, because another host has it"));
    }
    flags
        .0
        .is_some_and(|flags| !flags.contains(LinkFlags::Up))
        .then(|| format!("the interface {} is down or gone", interface.name))
}

/// Flags of an interface; none are set if it is gone. `None` if the kernel does not tell just now.
fn link_flags(interface: &Interface) -> Option<LinkFlags> {
    let found = links_now().ok()?.into_iter().find(|link| link.header.index == interface.index);
    Some(found.map_or_else(LinkFlags::empty, |link| link.header.flags))
}

/// Callbacks of the thread that keeps an address.
pub struct Keeper {
    /// Whether the address is still wanted. It stops being wanted before it is taken away.
    pub wanted: Box<dyn Fn() -> bool + Send>,
    /// Hears why the address does not answer any more, at every look.
    pub tell: Box<dyn Fn(String) + Send>,
    /// Hears what else hinders the address, or that nothing does.
    pub hinder: Box<dyn Fn(Part, Option<Hindrance>) + Send>,
}

/// Result of one look.
enum Look {
    NotWanted,
    /// The address does not answer, or the kernel does not tell.
    NotHere,
    Here {
        list: Vec<FoundAddress>,
        without_carrier: bool,
    },
}

impl Keeper {
    fn look(&self, vip: Vip, interface: &Interface) -> Look {
        let (list, flags) = (addresses().ok(), link_flags(interface));
        let own = vip.address.is_ipv6().then(|| flags_of(vip).ok()).flatten();
        let why = list.as_ref().and_then(|list| lost(vip, interface, list, (flags, own)));
        // Another report tells of an interface that is down.
        let without_carrier = why.is_none() && flags.is_some_and(|flags| !flags.contains(LinkFlags::LowerUp));
        let wanted = (self.wanted)();
        let no_carrier =
            || Hindrance::NoCarrier { interface: interface.name.clone(), address: vip.to_string() };
        (self.hinder)(Part::Interface(vip.address), (without_carrier && wanted).then(no_carrier));
        if !wanted {
            (self.hinder)(Part::Address(vip.address), None);
            return Look::NotWanted;
        }
        match (list, why) {
            (Some(list), None) => Look::Here { list, without_carrier },
            (_, Some(why)) => {
                (self.tell)(why);
                Look::NotHere
            }
            (None, None) => Look::NotHere,
        }
    }
}

/// Tells the neighbours, and keeps the address reachable in the background.
pub fn keep(vip: Vip, interface: &Interface, keeper: Keeper) {
    let interface = interface.clone();
    spawn("agent-address", move || {
        let start = Instant::now();
        let mut announcements = ANNOUNCE_AT.into_iter().peekable();
        // Rounds without another host that claims the address, since the last such claim.
        let mut quiet = 0;
        // A claim was just answered. Two hosts that answer each other at once would not end.
        let mut defended = false;
        let mut was_without_carrier = false;
        loop {
            let due = announcements.peek().map(|at| at.saturating_sub(start.elapsed()));
            let soon = quiet < QUIET_ROUNDS || was_without_carrier;
            let pause = if soon { CONTESTED_PAUSE } else { LOOK_PAUSE };
            let pause = due.map_or(pause, |due| due.min(pause));
            let heard = if std::mem::take(&mut defended) {
                std::thread::sleep(CONTESTED_PAUSE);
                None
            } else {
                hear(vip, &interface, pause)
            };
            let (list, without_carrier) = match keeper.look(vip, &interface) {
                Look::NotWanted => return,
                Look::NotHere => {
                    // A loss is told at every look, and not more often.
                    std::thread::sleep(CONTESTED_PAUSE);
                    continue;
                }
                Look::Here { list, without_carrier } => (list, without_carrier),
            };
            let is_due = announcements.next_if(|at| start.elapsed() >= *at).is_some();
            // Behind a carrier that comes back there may be another switch.
            let carrier_came =
                std::mem::replace(&mut was_without_carrier, without_carrier) && !without_carrier;
            if is_due || carrier_came {
                announce(vip, &interface);
            }
            if without_carrier {
                continue;
            }
            let mut contested = |by: MacAddress| {
                if quiet >= QUIET_ROUNDS {
                    tracing::warn!(%vip, %by, "another host answers for an address; it is announced until that one is silent");
                }
                (quiet, defended) = (0, true);
                (keeper.hinder)(
                    Part::Address(vip.address),
                    Some(Hindrance::Contested { address: vip.to_string(), by }),
                );
                announce(vip, &interface);
            };
            if let Some(by) = heard {
                contested(by);
                continue;
            }
            if is_due && start.elapsed() < CONTESTED_PAUSE {
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
                        (keeper.hinder)(Part::Address(vip.address), None);
                    }
                }
                Err(VipError::InUse { by, .. }) => contested(by),
                Err(error) => tracing::debug!(%vip, %error, "cannot ask which host has an address"),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::ADDRESS_PROTOCOL;

    #[test]
    fn an_address_is_lost_when_it_is_gone_foreign_refused_by_the_kernel_or_its_interface_is_down() {
        let vip: Vip = "fd00::7/64".parse().unwrap();
        let interface = Interface { name: "eth0".into(), index: 2, mac: [2; 6] };
        let ours = FoundAddress::new(2, vip.address, 128, ADDRESS_PROTOCOL, b"");
        let theirs = FoundAddress::new(2, vip.address, 64, 0, b"");
        let (up, fine) = (Some(LinkFlags::Up), Some(AddressFlags::Permanent));
        let lost = |list: &[FoundAddress], link, address| lost(vip, &interface, list, (link, address));
        assert_eq!(lost(&[ours], up, fine), None);
        assert_eq!(lost(&[ours], None, None), None, "the kernel does not tell");
        assert_eq!(lost(&[ours], up, Some(AddressFlags::Tentative)), None, "the kernel still asks");
        let says = |why: Option<String>, words: &str| {
            assert!(why.as_ref().is_some_and(|why| why.contains(words)), "{why:?}")
        };
        says(lost(&[], up, None), "was taken off eth0");
        says(lost(&[ours, theirs], up, fine), "another program");
        says(lost(&[ours], up, Some(AddressFlags::Dadfailed)), "another host has it");
        says(lost(&[ours], Some(LinkFlags::empty()), fine), "down or gone");
    }
}
