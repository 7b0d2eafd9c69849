//! The small process of each machine that outlives engine and agent. It silences the machine when
//! the lease ends (R19). Mirrors `engine/src/silencer.rs`; `mainstay_silence::silencer_does`
//! decides its acts.
//!
//! The silencer stands still together with its engine. Only a watchdog can act on a machine that
//! stands still as a whole.

use super::{What, World};
use crate::engine::{Engine, EngineIn};
use crate::trace::Part;
use mainstay_silence::{SilencerDoes, SilencerSees, silencer_does};
use mainstay_types::{NodeId, Time};

/// Notes of engines for the silencer. They outlive the engines, and end with the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silencer {
    /// End of the lease that an engine was told last, on the node's clock.
    lease_until: Time,
    /// When the node was silenced last.
    pub(super) silenced: Time,
    /// From this time on no process of a service begins; 0 if processes may begin. A process that
    /// begins looks here last.
    pub(super) barred: Time,
    pub(super) services: Vec<String>,
    /// Time at which the silencer looks again, in microseconds of true time; 0 if it does not.
    wakes_us: u64,
}

impl Silencer {
    /// An engine that starts, and goes on with these notes.
    pub(super) fn engine(&self, node: NodeId) -> Engine {
        Engine::new(node, self.lease_until, self.silenced, self.barred, self.services.clone())
    }

    /// Notes what the world tells the engine of its lease and its guard, before the engine acts on
    /// it.
    pub(super) fn note(&mut self, input: &EngineIn) {
        match input {
            EngineIn::Lease(until) => self.lease_until = *until,
            EngineIn::Guard { services, .. } => self.services.clone_from(services),
            _ => {}
        }
    }
}

impl World {
    /// To be called when something was noted, and when it wakes.
    pub(super) fn silencer_looks(&mut self, node: NodeId) {
        let now = self.node_time(node);
        let machine = self.machine(node);
        let silencer = &machine.silencer;
        if !machine.powered || silencer.services.is_empty() || silencer.wakes_us > 0 {
            return;
        }
        let sees = SilencerSees {
            lease_until: silencer.lease_until,
            silenced: silencer.silenced,
            engine: machine.engine.is_some(),
            guarded: true,
        };
        let paused_until_us = machine.engine_process.paused_until_us;
        match silencer_does(now, sees) {
            SilencerDoes::Ends => {}
            _ if paused_until_us > 0 => self.silencer_wakes_at(node, paused_until_us),
            SilencerDoes::Sleeps(until) => {
                let at_us = self.machines[&node].clock.true_time(until).max(self.now_us + 1);
                self.silencer_wakes_at(node, at_us);
            }
            SilencerDoes::Silences => self.silencer_acts(node, now),
        }
    }

    fn silencer_wakes_at(&mut self, node: NodeId, at_us: u64) {
        let machine = self.machine(node);
        machine.silencer.wakes_us = at_us;
        let boot = machine.boot;
        self.at(at_us, What::SilencerWakes { node, boot });
    }

    pub(super) fn silencer_wakes(&mut self, node: NodeId, boot: u64) {
        let machine = self.machine(node);
        if machine.boot == boot {
            machine.silencer.wakes_us = 0;
            self.silencer_looks(node);
        }
    }

    fn silencer_acts(&mut self, node: NodeId, now: Time) {
        let machine = self.machine(node);
        machine.silencer.silenced = now;
        // Before the kill, so that a process whose start is under way does not come after it.
        machine.silencer.barred = now;
        let services = machine.silencer.services.clone();
        self.trace.count("R19 the silencer acted");
        self.note(Some(node), Part::Engine, &[13], || {
            format!("the engine is gone and the lease ends: {} are silenced", services.join(", "))
        });
        self.silence_services(node, services);
    }
}
