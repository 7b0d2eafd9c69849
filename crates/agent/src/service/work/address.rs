//! The floating addresses of a service.

use super::{Work, tell_loss, words};
use crate::service::instance::OnDone;
use crate::service::lane::{Haste, Lane};
use crate::service::vip::{self, Interface, Keeper, Vip, VipError};
use crate::threads::lock;
use mainstay_ha::{Event, HeldAddresses, Step};
use mainstay_types::AddressHere;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why not all addresses are taken.
pub(in crate::service) enum NoAddress {
    /// Waiting may help.
    Held(HeldAddresses),
    Failed(String),
}

/// Result of the last probe of an address that may be taken.
#[derive(Clone, Debug)]
pub(super) struct Free {
    interface: Interface,
    /// A node that has lost its right still answers for it.
    contested: bool,
}

/// How long it counts that a probe has found no other host with an address.
const PROBE_COUNTS: Duration = Duration::from_secs(2);

/// The addresses of a service, each with the interface that the operator has named.
type Named = Vec<(Vip, Option<String>)>;

/// A probe under way beside the start of a process: that usually takes longer than the probe, and
/// the address is added after both.
#[derive(Debug)]
pub(super) struct EarlyProbe {
    vips: Named,
    /// Gives the time of the answer, and what is free: nothing unless all addresses are, and
    /// nobody had to be overruled.
    asked: JoinHandle<Option<(Instant, BTreeMap<IpAddr, Free>)>>,
}

impl EarlyProbe {
    /// Waits for the answer. `None` if it says nothing about these addresses now.
    fn free(self, vips: &Named) -> Option<BTreeMap<IpAddr, Free>> {
        let (at, free) = self.asked.join().ok()??;
        (self.vips == *vips && at.elapsed() <= PROBE_COUNTS).then_some(free)
    }
}

/// Why one address is not taken.
enum Not {
    /// Another host has it.
    Held(VipError),
    /// This node has no interface for it.
    NoInterface(VipError),
    Failed(String),
}

impl From<VipError> for Not {
    fn from(error: VipError) -> Self {
        match error {
            VipError::InUse { .. } | VipError::Duplicate { .. } => Self::Held(error),
            VipError::NoInterface(_) | VipError::UnknownInterface(_) => Self::NoInterface(error),
            other => Self::Failed(words(other)),
        }
    }
}

/// Puts together what was found for each address.
fn together(found: Vec<Result<(), Not>>) -> Result<(), NoAddress> {
    let free = found.iter().filter(|found| found.is_ok()).count();
    let wrong: Vec<Not> = found.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let without_interface = wrong.iter().all(|not| matches!(not, Not::NoInterface(_)));
    let failed = free == 0 && wrong.iter().any(|not| matches!(not, Not::Failed(_)));
    let why = wrong.into_iter().map(|not| match not {
        Not::Held(error) | Not::NoInterface(error) => words(error),
        Not::Failed(why) => why,
    });
    let why = why.collect::<Vec<_>>().join("; ");
    Err(if failed {
        NoAddress::Failed(why)
    } else {
        NoAddress::Held(HeldAddresses { why, free, without_interface })
    })
}

impl Work {
    /// Asks whether other hosts have the addresses. If such a host is a node of the cluster, its
    /// right to the address has ended, and the address may be taken.
    pub(in crate::service) fn probe(&self) -> Result<(), NoAddress> {
        let vips = self.vips().map_err(NoAddress::Failed)?;
        let early = lock(&self.early_probe).take();
        if let Some(free) = early.and_then(|early| early.free(&vips)) {
            *lock(&self.free_addresses) = free;
            return Ok(());
        }
        let found = self.ask(&vips);
        let mut free = BTreeMap::new();
        let told = vips
            .iter()
            .zip(found)
            .map(|((vip, _), found)| found.map(|found| drop(free.insert(vip.address, found))));
        let told = told.collect();
        *lock(&self.free_addresses) = free;
        together(told)
    }

    /// Begins a probe of the addresses beside the start of a process. It only saves time: whatever
    /// it does not find free is asked for again.
    pub(super) fn probe_early(self: &Arc<Self>) {
        let vips = self.vips().unwrap_or_default();
        if vips.is_empty() {
            return;
        }
        let (work, asked) = (Arc::clone(self), vips.clone());
        let ask = move || {
            // An address that is here is not asked for, and may be off this node in a moment.
            let is_away = |(vip, _): &(Vip, Option<String>)| matches!(vip::whose(*vip), Ok(AddressHere::No));
            if !asked.iter().all(is_away) {
                return None;
            }
            let found = work.ask(&asked);
            let at = Instant::now();
            let free = asked.iter().zip(found).map(|((vip, _), found)| Some((vip.address, found.ok()?)));
            let free: BTreeMap<_, _> = free.collect::<Option<_>>()?;
            free.values().all(|free| !free.contested).then_some((at, free))
        };
        let asked = std::thread::Builder::new().name("agent-probe".into()).spawn(ask);
        *lock(&self.early_probe) = asked.ok().map(|asked| EarlyProbe { vips, asked });
    }

    /// Asks for all addresses at the same time.
    fn ask(&self, vips: &Named) -> Vec<Result<Free, Not>> {
        std::thread::scope(|scope| {
            let asked: Vec<_> = vips
                .iter()
                .map(|(vip, interface)| scope.spawn(|| self.probe_one(*vip, interface.as_deref())))
                .collect();
            let gone = || Err(Not::Failed("its probe has ended".into()));
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| gone())).collect()
        })
    }

    fn probe_one(&self, vip: Vip, interface: Option<&str>) -> Result<Free, Not> {
        let interface = vip::find_interface(vip, interface)?;
        match vip::whose(vip)? {
            AddressHere::Ours(_) => return Ok(Free { interface, contested: false }),
            AddressHere::Foreign(there) => return Err(vip::foreign(vip, there).into()),
            AddressHere::No => {}
        }
        match vip::probe(vip, &interface) {
            Ok(()) => Ok(Free { interface, contested: false }),
            Err(VipError::InUse { vip, by }) => {
                let state = self.neighbours.state();
                let Some(node) = state.has_lost_right(vip.address, by) else {
                    return Err(VipError::InUse { vip, by }.into());
                };
                tracing::warn!(%vip, node = node.name, "a node whose lease has ended still answers for an address; it is taken over");
                Ok(Free { interface, contested: true })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the addresses that were free when they were probed, and keeps them announced until they
    /// are taken away.
    pub(in crate::service) fn add_addresses(&self, number: u64, on_done: &OnDone) -> Result<(), NoAddress> {
        let vips = self.vips().map_err(NoAddress::Failed)?;
        let free = lock(&self.free_addresses).clone();
        let add = || Ok(self.add_free(&vips, &free, number, on_done));
        let found = self.address.make(number, add, || remove_all(&vips));
        let found = found.map_err(NoAddress::Failed)?;
        let taken = vips.iter().zip(&found).filter(|(_, found)| found.is_ok());
        *lock(&self.taken_addresses) = taken.map(|((vip, _), _)| vip.to_string()).collect();
        together(found)
    }

    fn add_free(
        &self,
        vips: &[(Vip, Option<String>)],
        free: &BTreeMap<IpAddr, Free>,
        number: u64,
        on_done: &OnDone,
    ) -> Vec<Result<(), Not>> {
        let is_wanted = || self.address.is_newest(number);
        let add = |(vip, named): &(Vip, Option<String>)| -> Result<Interface, Not> {
            let Some(Free { interface, contested }) = free.get(&vip.address) else {
                // The last probe has said why.
                return Err(match vip::find_interface(*vip, named.as_deref()) {
                    Ok(_) => Not::Failed(format!("{vip} was not free when it was asked for")),
                    Err(error) => error.into(),
                });
            };
            vip::add(*vip, interface, *contested)?;
            if vip.address.is_ipv4() {
                self.keep(*vip, interface, number, on_done);
            }
            Ok(interface.clone())
        };
        let added: Vec<_> = vips.iter().map(add).collect();
        // The kernel asks for all addresses of IPv6 at the same time.
        let settle = |((vip, _), added): (&(Vip, Option<String>), Result<Interface, Not>)| {
            let interface = added?;
            vip::settled(*vip, &interface, &is_wanted)?;
            if vip.address.is_ipv6() {
                self.keep(*vip, &interface, number, on_done);
            }
            self.address_added(&vip.to_string(), &interface.name);
            Ok(())
        };
        vips.iter().zip(added).map(settle).collect()
    }

    fn keep(&self, vip: Vip, interface: &Interface, number: u64, on_done: &OnDone) {
        let lane: Arc<Lane> = Arc::clone(&self.address);
        let (name, on_done) = (self.name.clone(), on_done.clone());
        let run_dir = self.places.run_dir.clone();
        let tell = move |why| {
            let event = Event::Lost { step: Step::AddAddress, why, mendable: true };
            tell_loss(&run_dir, &name, event, &on_done);
        };
        let (name, hindrances) = (self.name.clone(), self.places.hindrances.clone());
        let hinder = move |part, found| hindrances.note(&name, part, found, Instant::now());
        let wanted = move || lane.is_newest(number);
        let keeper = Keeper { wanted: Box::new(wanted), tell: Box::new(tell), hinder: Box::new(hinder) };
        vip::keep(vip, interface, keeper);
    }

    /// Takes the addresses away that Mainstay has added.
    pub(super) fn undo_addresses(&self, number: u64, patience: Duration) -> Result<(), String> {
        let vips = self.vips()?;
        // An answer from before the address went off this node says nothing any more (S86).
        *lock(&self.early_probe) = None;
        self.address.undo(number, Haste::AtOnce, patience, || {
            // Each is removed before a hook is told of any.
            let removed: Vec<_> = vips.iter().map(|(vip, _)| vip::remove(*vip)).collect();
            for ((vip, _), _) in vips.iter().zip(&removed).filter(|(_, removed)| removed.is_ok()) {
                self.address_removed(&vip.to_string());
            }
            removed.into_iter().try_for_each(|removed| removed.map_err(words))
        })
    }

    /// Tells which addresses answer, as an event for the operator.
    pub(in crate::service) fn addresses_answer(&self) -> Option<String> {
        let taken = lock(&self.taken_addresses);
        match &taken[..] {
            [] => None,
            [one] => Some(format!("address {one} answers")),
            several => Some(format!("addresses {} answer", several.join(", "))),
        }
    }

    /// The addresses of the service, each with the interface that the operator has named.
    fn vips(&self) -> Result<Named, String> {
        let spec = self.spec();
        let parsed = spec.vips.iter().map(|vip| {
            let address = vip.address.parse().map_err(words::<VipError>)?;
            Ok((address, vip.interface.clone()))
        });
        parsed.collect()
    }
}

fn remove_all(vips: &[(Vip, Option<String>)]) {
    for (vip, _) in vips {
        if let Err(error) = vip::remove(*vip) {
            tracing::warn!(%vip, %error, "an address that is not wanted any more is still there");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vip() -> Vip {
        "10.0.0.7/24".parse().expect("an address")
    }

    /// An answer counts for the same addresses, and for a short time.
    #[test]
    fn an_early_probe_counts_while_it_is_fresh_and_of_the_same_addresses() {
        let vips = vec![(vip(), None)];
        let now = Instant::now();
        let early = |answer: Option<Instant>| {
            let asked = std::thread::spawn(move || Some((answer?, BTreeMap::new())));
            EarlyProbe { vips: vips.clone(), asked }
        };
        assert!(early(Some(now)).free(&vips).is_some());
        assert!(early(None).free(&vips).is_none(), "an address was not free");
        assert!(early(now.checked_sub(PROBE_COUNTS)).free(&vips).is_none(), "it is too old");
        let others = vec![(vip(), Some("eth1".to_owned()))];
        assert!(early(Some(now)).free(&others).is_none(), "the operator has named another interface");
        let broken = EarlyProbe { vips: vips.clone(), asked: std::thread::spawn(|| panic!("broken")) };
        assert!(broken.free(&vips).is_none());
    }

    fn held() -> Result<(), Not> {
        Err(VipError::Duplicate { vip: vip(), interface: "eth0".into() }.into())
    }

    fn without() -> Result<(), Not> {
        Err(VipError::UnknownInterface("eth7".into()).into())
    }

    fn failed() -> Result<(), Not> {
        Err(Not::Failed("no memory".into()))
    }

    #[test]
    fn an_address_that_can_be_taken_makes_the_others_a_matter_of_waiting() {
        assert!(together(vec![Ok(()), Ok(())]).is_ok());
        for (found, free, lacks) in [
            (vec![Ok(()), held()], 1, false),
            (vec![Ok(()), failed(), Ok(())], 2, false),
            (vec![held(), held()], 0, false),
            (vec![without(), held()], 0, false),
            (vec![without()], 0, true),
        ] {
            let Err(NoAddress::Held(held)) = together(found) else { panic!("it is waited for") };
            assert_eq!((held.free, held.without_interface), (free, lacks), "{}", held.why);
        }
        let Err(NoAddress::Failed(why)) = together(vec![without(), failed()]) else {
            panic!("nothing is free, and waiting does not help")
        };
        assert!(why.contains("eth7") && why.contains("no memory"), "{why}");
    }
}
