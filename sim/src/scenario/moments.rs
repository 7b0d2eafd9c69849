//! Tools for a story that has to act at the right place at the right moment.

use super::{Scenario, n};
use crate::plan::{Action, Away, Deed, Fault, Moment, Operator};
use mainstay_silence::guard_acts_at;
use mainstay_types::{NodeId, ServicePhase};

impl Scenario {
    /// The kernel keeps the devices of engines that die from here on.
    pub fn keep_devices(&mut self) {
        self.world.plan.shape.devices_stay = true;
    }

    /// Does this at the next such moment of the resource.
    pub fn trap(&mut self, moment: Moment, deed: Deed) {
        self.trap_at(0, moment, 0, deed);
    }

    /// Like [`Self::trap`], for the resource with this number, and after `skip` such moments.
    pub fn trap_at(&mut self, resource: usize, moment: Moment, skip: u64, deed: Deed) {
        self.fault(Fault::Trap { resource, moment, skip, deed });
    }

    /// Injects damage, from now on, that no cluster could survive. Otherwise such damage is left
    /// out.
    pub fn dare(&mut self) {
        self.world.plan.unsurvivable = true;
    }

    /// When faults stop these stay switched off, or cut off, until the others have converged.
    pub fn stay_away(&mut self, nodes: &[u32], cut: bool) {
        self.world.plan.shape.away = Away { nodes: nodes.to_vec(), cut };
    }

    pub fn operator(&mut self, operator: Operator) {
        self.world.act(Action::Operator(operator));
    }

    pub fn pause_agent(&mut self, node: u32, ms: u64) {
        self.fault(Fault::PauseAgent { target: n(node), ms });
    }

    pub fn pause_engine(&mut self, node: u32, ms: u64) {
        self.fault(Fault::PauseEngine { target: n(node), ms });
    }

    /// Whether the agent of the node counts a lease at this moment.
    #[must_use]
    pub fn lease_lasts(&self, node: u32) -> bool {
        let machine = &self.world.machines[&NodeId(node)];
        let now = machine.clock.node_time(self.world.now_us());
        machine.agent.as_ref().is_some_and(|agent| agent.lease_until() > now)
    }

    /// Waits until something like this happens on the node.
    pub fn until_seen(&mut self, node: u32, text: &str, ms: u64) {
        let before = self.world.trace().lines().len();
        self.until(&format!("n{node}: {text}"), ms, |world| {
            let lines = &world.trace().lines()[before..];
            lines.iter().any(|line| line.node == Some(NodeId(node)) && line.text.contains(text))
        });
    }

    /// Runs until the guard of the node is to act in so many milliseconds, if the lease that its
    /// engine has now is not renewed.
    ///
    /// # Panics
    /// When there is no engine, or the guard acts earlier.
    pub fn until_guard_acts_in_ms(&mut self, node: u32, ms: u64) {
        let machine = &self.world.machines[&NodeId(node)];
        let lease_until = machine.engine.as_ref().expect("an engine runs").lease_until;
        let at_us = machine.clock.true_time(guard_acts_at(lease_until));
        let wait_us = at_us.checked_sub(self.world.now_us() + ms * 1000);
        self.run_us(wait_us.expect("the guard acts later than that"));
    }

    /// Number of requests that were answered with an error.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.world.refused
    }

    /// Waits until the control plane has no primary.
    pub fn until_no_primary(&mut self, ms: u64) {
        self.until("no node is primary", ms, |world| super::record(world).primary.is_none());
    }

    /// Waits until the agent of `node` has come so far with the service.
    pub fn until_phase(&mut self, node: u32, phase: ServicePhase, ms: u64) {
        self.until(&format!("n{node}: the service is {phase:?}"), ms, |world| {
            let agent = world.machines[&NodeId(node)].agent.as_ref();
            agent.is_some_and(|agent| agent.service_phase("s0") == Some(phase))
        });
    }
}
