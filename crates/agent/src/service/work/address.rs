//! The floating address of a service.

use super::{Work, tell_loss, words};
use crate::service::instance::OnDone;
use crate::service::lane::Haste;
use crate::service::vip::{self, Vip};
use mainstay_ha::{Event, Step};
use mainstay_types::AddressHere;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why an address is not taken.
pub(in crate::service) enum NoAddress {
    /// Another host has it.
    Held(String),
    Failed(String),
}

impl Work {
    /// Asks whether another host has the address. If that host is a node of the cluster, its right
    /// to the address has ended, and the address may be taken.
    pub(in crate::service) fn probe(&self) -> Result<(), NoAddress> {
        let failed = |error| NoAddress::Failed(words::<vip::VipError>(error));
        let (vip, interface) = self.address().map_err(NoAddress::Failed)?;
        match vip::whose(vip).map_err(failed)? {
            AddressHere::Ours(_) => return Ok(()),
            AddressHere::Foreign(there) => return Err(failed(vip::foreign(vip, there))),
            AddressHere::No => {}
        }
        match vip::probe(vip, &interface) {
            Err(vip::VipError::InUse { vip, by }) => {
                let state = self.neighbours.state();
                let Some(node) = state.has_lost_right(vip.address.into(), by) else {
                    return Err(NoAddress::Held(words(vip::VipError::InUse { vip, by })));
                };
                tracing::warn!(%vip, node = node.name, "a node whose lease has ended still answers for an address; it is taken over");
                Ok(())
            }
            other => other.map_err(failed),
        }
    }

    /// Adds the address and keeps it announced until it is taken away.
    pub(super) fn add_address(&self, number: u64, on_done: &OnDone) -> Result<(), String> {
        let (vip, interface) = self.address()?;
        let add = || vip::add(vip, &interface).map_err(words);
        self.address.make(number, add, || {
            if let Err(error) = vip::remove(vip) {
                tracing::warn!(%vip, %error, "an address that is not wanted any more is still there");
            }
        })?;
        let lane = Arc::clone(&self.address);
        let (name, on_done) = (self.name.clone(), on_done.clone());
        let run_dir = self.places.run_dir.clone();
        let tell = move |why| {
            let event = Event::Lost { step: Step::AddAddress, why, mendable: true };
            tell_loss(&run_dir, &name, event, &on_done);
        };
        let (name, hindrances) = (self.name.clone(), self.places.hindrances.clone());
        let hinder = move |part, found| hindrances.note(&name, part, found, Instant::now());
        vip::keep(vip, &interface, move || lane.is_newest(number), tell, hinder);
        Ok(())
    }

    /// Takes the address away, if Mainstay has added it.
    pub(super) fn undo_address(&self, number: u64, patience: Duration) -> Result<(), String> {
        let Some(vip) = self.vip() else { return Ok(()) };
        let vip = vip?;
        self.address.undo(number, Haste::AtOnce, patience, || vip::remove(vip).map_err(words))
    }

    fn vip(&self) -> Option<Result<Vip, String>> {
        self.spec().vip.as_ref().map(|vip| vip.address.parse().map_err(words::<vip::VipError>))
    }

    fn address(&self) -> Result<(Vip, vip::Interface), String> {
        let vip = self.vip().unwrap_or_else(|| Err("the service has no address".into()))?;
        let name = self.spec().vip.as_ref().and_then(|vip| vip.interface.clone());
        let interface = vip::find_interface(vip, name.as_deref()).map_err(words)?;
        Ok((vip, interface))
    }
}
