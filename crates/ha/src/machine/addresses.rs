//! The floating addresses of a service: what follows when some of them cannot be taken (R22).
//!
//! All addresses are probed beside the first steps and taken in the last one. An address that
//! cannot be taken now is *held*: another host has it, or its interface is not here yet.
//!
//! | some other address | the reason | what follows |
//! |---|---|---|
//! | is free or here | any | the service runs with it, says what it waits for, and asks again |
//! | none | another host | the service waits with everything else started, and asks again |
//! | none | no interface, in this start never one | the same, for [`INTERFACE_MS`]; then a failure |
//! | none | no interface any more | a failure at once: another node may have one |
//!
//! Invariants
//! - No address is taken before it was probed in this start.
//! - An address that is held counts no failure while another one serves.
//! - The service asks again every [`HELD_ADDRESS_MS`], and takes an address as soon as it is free.
//!
//! While processes are restarted in place, the addresses stay on the node (*kept*). A client is
//! then refused at once and finds the service as soon as it is ready. An address that were away
//! would leave it without an answer, and TCP asks again only after a second.
//!
//! Invariants
//! - Addresses are kept only while the machine restarts processes on this node. Any other way down
//!   begins with them.
//! - Addresses that were lost while they were kept are probed before they are taken again (R22).

use super::{Machine, Mode, Probe, Then};
use crate::steps::{HELD_ADDRESS_MS, PROBE_TIMEOUT_MS, Step};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Time, reach};

/// How long a start waits for an interface, in milliseconds. Networks may come later than the
/// agent when a node boots.
const INTERFACE_MS: u64 = 30_000;

/// Addresses of a service that cannot be taken now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldAddresses {
    /// Which, and why, in words for the operator.
    pub why: String,
    /// Addresses of the service that may be taken, or that it has here already.
    pub free: usize,
    /// Whether all of them lack their interface on this node.
    pub without_interface: bool,
}

impl Machine {
    pub(super) fn on_probe_done(&mut self, result: Result<(), String>, now: Time) {
        if self.mode == Mode::Running && self.address_held.is_some() {
            match result {
                Ok(()) => self.take_free(now),
                Err(why) => self.ask_later(why, now),
            }
            return;
        }
        let Mode::Forward { at } = self.mode else {
            reach!("ha: a probe ends when nothing is being started");
            self.probe = if result.is_ok() { Probe::Free } else { Probe::NotAsked };
            return;
        };
        match result {
            Ok(()) => {
                self.probe = Probe::Free;
                self.address_held = None;
                if self.is_last(at) && self.awaited.is_none() {
                    reach!("ha: the last step waited for the probe");
                    self.forward(at, now);
                }
            }
            Err(why) => {
                reach!("ha: another node answers for the address");
                self.probe = Probe::NotAsked;
                self.passes = true;
                self.fail(at, 0, format!("the address cannot be taken: {why}"), now);
            }
        }
    }

    /// Whether a way down to `floor` leaves the addresses where they are.
    fn is_in_place(&self, floor: usize, then: &Then) -> bool {
        let of_process = matches!(self.steps[floor], Step::Prepare { .. } | Step::StartProcess { .. });
        of_process && matches!(then, Then::Retry | Then::Restart)
    }

    /// Whether the undo of `steps[at]` is left out, because the addresses stay.
    pub(super) fn keeps(&mut self, at: usize, floor: usize, then: &Then) -> bool {
        let keeps = self.is_last(at) && self.is_in_place(floor, then);
        if keeps {
            reach!("ha: an address stays while a process is restarted");
            self.kept = true;
        }
        keeps
    }

    /// Where a way down begins that was to begin at `steps[at]`: with the addresses, if they were
    /// kept and do not stay any longer.
    pub(super) fn top_with_kept(&mut self, at: usize, floor: usize, then: &Then) -> usize {
        if !self.kept || self.is_in_place(floor, then) {
            return at;
        }
        self.kept = false;
        if planted(Bug::KeptAddressForgotten) {
            return at;
        }
        reach!("ha: a kept address is removed");
        self.steps.len().saturating_sub(1)
    }

    /// Whether `step` takes addresses that are here from before.
    pub(super) fn is_kept(&self, step: Step) -> bool {
        self.kept && step == Step::AddAddress && self.begun(step).is_none()
    }

    /// A kept address is gone. It is probed before it is taken again.
    pub(super) fn lose_kept(&mut self) {
        reach!("ha: a kept address is lost");
        self.kept = false;
        self.probe = Probe::NotAsked;
        self.persist();
    }

    /// Answer to a probe of the addresses, or to the step that takes them.
    pub(super) fn on_address_held(&mut self, ticket: u64, held: HeldAddresses, now: Time) {
        let HeldAddresses { why, free, without_interface } = held;
        if self.probe == (Probe::Running { ticket }) {
            self.probe = if free > 0 { Probe::Free } else { Probe::NotAsked };
            match self.mode {
                Mode::Running if free > self.taken => self.take_free(now),
                Mode::Running => self.ask_later(why, now),
                Mode::Forward { at } if self.is_last(at) && self.awaited.is_none() => {
                    self.address_held = Some(why);
                    if free > 0 {
                        self.forward(at, now);
                    } else {
                        self.wait_for_address(at, without_interface, now);
                    }
                }
                Mode::Forward { .. } => self.address_held = Some(why),
                _ => self.probe = Probe::NotAsked,
            }
        } else if self.awaited == Some(ticket)
            && let Mode::Forward { at } = self.mode
            && self.is_last(at)
        {
            self.awaited = None;
            self.address_held = Some(why);
            self.taken = free;
            if free > 0 {
                reach!("ha: a service runs with some of its addresses");
                self.waits_since = None;
                self.forward(at + 1, now);
            } else {
                reach!("ha: another host turns up as the address is taken");
                self.probe = Probe::NotAsked;
                self.wait_for_address(at, without_interface, now);
            }
        }
    }

    /// All addresses are here.
    pub(super) fn all_taken(&mut self) {
        self.taken = self.spec.vips.len();
        self.address_held = None;
        self.waits_since = None;
    }

    /// Everything else is started. No other node could take an address of another host either, and
    /// the programs are not at fault.
    fn wait_for_address(&mut self, at: usize, without_interface: bool, now: Time) {
        let since = *self.waits_since.get_or_insert(now);
        // It was here in this start, or has had its time.
        if without_interface && (self.taken > 0 || now.ms_since(since) >= INTERFACE_MS) {
            reach!("ha: an interface does not come");
            self.waits_since = None;
            self.passes = true;
            let why = self.address_held.take().unwrap_or_default();
            return self.fail(at, 0, format!("the address cannot be taken: {why}"), now);
        }
        self.deadline = Some(now.plus_ms(HELD_ADDRESS_MS));
        self.report();
    }

    /// Goes on running with the addresses that are here.
    fn ask_later(&mut self, why: String, now: Time) {
        self.probe = Probe::NotAsked;
        self.deadline = Some(now.plus_ms(HELD_ADDRESS_MS));
        if self.address_held.as_ref() != Some(&why) {
            self.address_held = Some(why);
            self.report();
        }
    }

    /// Takes what is free now, beside the addresses that are here.
    fn take_free(&mut self, now: Time) {
        reach!("ha: an address comes later than the others");
        self.probe = Probe::Free;
        if let Some(at) = self.steps.iter().position(|step| *step == Step::AddAddress) {
            self.forward(at, now);
        }
    }

    /// Asks again for what a service that runs still waits for.
    pub(super) fn ask_held_again(&mut self, now: Time) {
        if self.address_held.is_none() {
            return;
        }
        self.persist();
        self.ask_probe();
        self.deadline = Some(now.plus_ms(PROBE_TIMEOUT_MS));
    }

    /// Whether `steps[at]` takes the addresses.
    pub(super) fn is_last(&self, at: usize) -> bool {
        self.steps.get(at) == Some(&Step::AddAddress)
    }

    /// Addresses that the service waits for, in words for the operator.
    pub(super) fn held_words(&self) -> Option<String> {
        let why = self.address_held.as_ref()?;
        Some(format!("waits for its address, and asks for it again: {why}"))
    }
}
