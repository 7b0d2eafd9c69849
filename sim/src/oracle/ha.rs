//! Services in true time: the rules that hold for them, under the ids of `faults.md`.
//!
//! - H1: two nodes never have a mount or a process of one service at the same time, not for a
//!   microsecond.
//! - H2: two nodes never have its address at the same time. A node takes the address only after a
//!   probe in the same epoch has found it free. The probe must come after the node last gave the
//!   address up (R22). Any process may have sent the probe, and the engine may have restarted
//!   since: the result stays true.
//! - H3: a step of a start begins only on the last node that served as primary, in the epoch in
//!   which it serves. That is after its own epoch start, and before the epoch start of another
//!   node. The step does not begin again in an epoch in which the guard silenced the service there.
//!   This binds an agent that was stopped or absent at that moment as well. A service that was
//!   deleted without a rest, and is made anew, counts as another one: nothing that was begun for
//!   the old one is under way (R19).
//! - H4: a stop goes in the reverse order of the start. Each step is proven gone before the next is
//!   undone. When everything is killed at once, no step needs to wait, and then only the order of
//!   the commands counts. The address stays while the machine restarts processes in place.
//! - H5: no step of a start begins while anything of the service is left on another node, whichever
//!   lease has ended.
//! - H6: after faults have stopped, no service is started more than [`STARTS_MAX`] times within
//!   [`WINDOW_US`]. When an operator clears its failures later, the count begins anew.
//! - H8: an address that an administrator has set on a node stays there until the administrator
//!   takes it away (R22). The world checks this rule.
//! - H14: a service that an operator has stopped is started by an operator alone (R21).
//!   `answers.rs` checks that at every entry of the log, and the world at the end.
//! - H15: a service begins only where its constraints hold, by the state of its node: apart from
//!   others, with another, on no node that it avoids, and after others. The world checks this rule.
//! - H16: in maintenance nothing is moved or begun, unless an operator has ordered it. `answers.rs`
//!   checks the moves at every entry of the log, and the world each step of a start.
//! - H17: a service that runs goes on in a later epoch only on the devices on which it began. The
//!   world checks this rule.
//! - H11: no process of a service sees its device fail, because it is killed before (R19). A device
//!   that ends with its engine is the one exception. The world checks this rule.
//!
//! A machine that is stopped as a whole (VM pause, suspend) runs nothing and answers nothing. What
//! is on it does not count meanwhile. When it goes on, its guard needs a moment, [`WAKE_US`], which
//! only a watchdog could take away. This is the one overlap that is allowed, and `guard.rs` names
//! it as not guaranteed.

use super::Violation;
use crate::service::Presence;
use mainstay_ha::{Effect, Step};
use mainstay_types::{Epoch, NodeId, ResourceId, ServicePhase};
use std::collections::{BTreeMap, VecDeque};

/// Most starts of one service within [`WINDOW_US`], all nodes together.
pub const STARTS_MAX: usize = 24;
pub const WINDOW_US: u64 = 60_000_000;
/// How long a machine that was stopped as a whole may take to silence what ran on it.
pub const WAKE_US: u64 = 700_000;

/// A service on one node.
#[derive(Clone, Copy, Debug, Default)]
struct OnNode {
    presence: Presence,
    /// Since the last undo: a start is under way here or was completed.
    starting: bool,
    /// Since the last step of a start: all processes were ordered to be killed, the address to be
    /// removed.
    kill_ordered: bool,
    removal_ordered: bool,
    /// The machine says that it restarts processes and keeps the address meanwhile.
    kept: bool,
    /// Ticket of the probe of the address that is under way.
    probe: Option<u64>,
    /// Epoch in which the last probe found the address free, if it did.
    probed: Option<Epoch>,
    /// Epoch in which the guard silenced the service here. No step may continue it in this epoch
    /// (R19).
    ///
    /// A service that was being stopped, and has come to rest by that stop, is not continued. Every
    /// step of it was undone in order, so a later start is another one, which needs the guard anew.
    spent: Option<Epoch>,
    /// The last report of the node says that the service is being stopped in order.
    stopping: bool,
    /// Epoch that this report names.
    epoch: Option<Epoch>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    nodes: BTreeMap<NodeId, OnNode>,
    /// Node that served last as primary of the resource, and the epoch.
    served: Option<(NodeId, Epoch)>,
    /// The last starts, oldest first.
    starts: VecDeque<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awake {
    /// Stopped as a whole.
    Frozen,
    /// The machine goes on, and has until then to silence its services.
    Until(u64),
}

/// See the top of this file. A service is named by its resource: there is one at most.
#[derive(Clone, Debug, Default)]
pub struct HaOracle {
    services: BTreeMap<ResourceId, Known>,
    /// Nodes that were stopped; empty nearly always.
    awake: BTreeMap<NodeId, Awake>,
    healed: bool,
}

impl HaOracle {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks overlaps whose time is up. To be called now and then, and after [`WAKE_US`].
    ///
    /// # Errors
    /// H1 or H2.
    pub fn at(&mut self, at_us: u64) -> Result<(), Violation> {
        if self.awake.is_empty() {
            return Ok(());
        }
        let before = self.awake.len();
        self.awake.retain(|_, awake| !matches!(awake, Awake::Until(until_us) if at_us >= *until_us));
        if self.awake.len() == before {
            return Ok(());
        }
        let services: Vec<ResourceId> = self.services.keys().copied().collect();
        services.into_iter().try_for_each(|service| self.check_overlap(at_us, service))
    }

    /// Notes which parts of the service are on the node. The world calls this after a change, or
    /// again without one.
    ///
    /// # Errors
    /// H1 or H2.
    pub fn observe(
        &mut self,
        at_us: u64,
        node: NodeId,
        service: ResourceId,
        presence: Presence,
    ) -> Result<(), Violation> {
        self.at(at_us)?;
        let on_node = self.services.entry(service).or_default().nodes.entry(node).or_default();
        if on_node.presence == presence {
            return Ok(());
        }
        if on_node.presence.address && !presence.address {
            on_node.probed = None;
        }
        on_node.presence = presence;
        self.check_overlap(at_us, service)
    }

    /// The engine on `node` serves as primary of `resource`, in this epoch, or no longer does.
    pub fn role(&mut self, _at_us: u64, node: NodeId, resource: ResourceId, epoch: Epoch, serving: bool) {
        let known = self.services.entry(resource).or_default();
        if serving && known.served.is_none_or(|(_, last)| epoch >= last) {
            known.served = Some((node, epoch));
        }
    }

    /// The agent on `node` orders this. To be called before [`Self::observe`] is told of the
    /// result. Reports may be passed too: they name the epoch of a start.
    ///
    /// # Errors
    /// H1 to H6.
    pub fn step(
        &mut self,
        at_us: u64,
        node: NodeId,
        service: ResourceId,
        effect: &Effect,
    ) -> Result<(), Violation> {
        self.at(at_us)?;
        match effect {
            // A probe leaves nothing behind. It looks for what other nodes have left.
            Effect::Run { step: Step::ProbeAddress, ticket, .. } => {
                let on_node = self.services.entry(service).or_default().nodes.entry(node).or_default();
                (on_node.probe, on_node.probed) = (Some(*ticket), None);
                Ok(())
            }
            Effect::Persist(_) | Effect::Probe { .. } => Ok(()),
            Effect::Run { step, .. } => self.begins(at_us, node, service, *step),
            Effect::Undo { step, force, .. } => self.undoes(at_us, node, service, *step, *force),
            Effect::Kill { .. } => {
                let on_node = self.services.entry(service).or_default().nodes.entry(node).or_default();
                on_node.kill_ordered = true;
                on_node.starting = false;
                let address_stays = on_node.presence.address && !on_node.removal_ordered;
                if address_stays {
                    let why = "processes are killed before the address was ordered away";
                    return Err(order_violation(at_us, node, service, why));
                }
                Ok(())
            }
            Effect::Report(report) => {
                let on_node = self.services.entry(service).or_default().nodes.entry(node).or_default();
                let at_rest = matches!(report.phase, ServicePhase::Stopped | ServicePhase::Failed);
                if at_rest && on_node.stopping {
                    on_node.spent = None;
                }
                on_node.stopping = report.phase == ServicePhase::Stopping;
                on_node.epoch = Some(report.epoch);
                Ok(())
            }
        }
    }

    /// The machine on `node` restarts processes and keeps the address meanwhile, or does not.
    pub fn address_stays(&mut self, node: NodeId, service: ResourceId, stays: bool) {
        self.services.entry(service).or_default().nodes.entry(node).or_default().kept = stays;
    }

    /// A step on `node` has ended.
    pub fn answered(&mut self, node: NodeId, service: ResourceId, ticket: u64, well: bool) {
        let known = self.services.entry(service).or_default();
        let epoch = known.served.map(|(_, epoch)| epoch);
        let on_node = known.nodes.entry(node).or_default();
        if on_node.probe == Some(ticket) {
            (on_node.probe, on_node.probed) = (None, epoch.filter(|_| well));
        }
    }

    /// The guard on `node` is about to silence the service.
    pub fn silenced(&mut self, node: NodeId, service: ResourceId) {
        let known = self.services.entry(service).or_default();
        let served = known.served;
        let on_node = known.nodes.entry(node).or_default();
        if !on_node.presence.is_silent()
            && let Some((_, epoch)) = served.filter(|(last, _)| *last == node)
        {
            on_node.spent = Some(epoch);
        }
    }

    /// The service was deleted and is silent everywhere. The next one of its name is another one,
    /// which the guard has not silenced.
    pub fn forgotten(&mut self, service: ResourceId) {
        for on_node in self.services.entry(service).or_default().nodes.values_mut() {
            on_node.spent = None;
        }
    }

    /// An operator has said that it is to be tried anew: every node begins to count again.
    pub fn cleared(&mut self, service: ResourceId) {
        self.services.entry(service).or_default().starts.clear();
    }

    /// The machine is stopped as a whole: nothing on it runs or answers.
    pub fn frozen(&mut self, node: NodeId) {
        self.awake.insert(node, Awake::Frozen);
    }

    /// The machine goes on. The caller sees to it that [`Self::at`] is called after [`WAKE_US`].
    pub fn thawed(&mut self, at_us: u64, node: NodeId) {
        if self.awake.remove(&node).is_some() {
            self.awake.insert(node, Awake::Until(at_us + WAKE_US));
        }
    }

    /// The machine lost its power. [`Self::observe`] tells which parts are left on it.
    pub fn stopped(&mut self, node: NodeId) {
        self.awake.remove(&node);
        for known in self.services.values_mut() {
            if let Some(on_node) = known.nodes.get_mut(&node) {
                on_node.starting = false;
                (on_node.probed, on_node.spent) = (None, None);
            }
        }
    }

    /// Faults have stopped: starts are counted from now on (H6).
    pub fn healed(&mut self) {
        self.healed = true;
    }

    /// A step of a start begins.
    fn begins(&mut self, at_us: u64, node: NodeId, service: ResourceId, step: Step) -> Result<(), Violation> {
        let excused = |other: NodeId| self.awake.contains_key(&other);
        let known = self.services.entry(service).or_default();
        for (other, there) in &known.nodes {
            let left = there.presence;
            if *other == node || left.is_silent() || excused(*other) || excused(node) {
                continue;
            }
            let id = match step {
                Step::AddAddress if left.address => "H2",
                Step::Mount | Step::Prepare { .. } | Step::StartProcess { .. } | Step::CheckReady { .. }
                    if left.mounted || left.running =>
                {
                    "H1"
                }
                _ => "H5",
            };
            let text = format!(
                "{step:?} of {} begins on {node} at {at_us} us while {other} still has {}",
                name(service),
                presence_words(left)
            );
            return Err(Violation { id, text });
        }
        if known.served.is_none_or(|(last, _)| last != node) {
            let text = format!(
                "{step:?} of {} begins on {node} at {at_us} us, but {}",
                name(service),
                served_words(known.served)
            );
            return Err(Violation { id: "H3", text });
        }
        let epoch = known.served.map(|(_, epoch)| epoch);
        let on_node = known.nodes.entry(node).or_default();
        if on_node.epoch.is_some() && on_node.epoch != epoch {
            let text = format!(
                "{step:?} of {} begins on {node} at {at_us} us in {:?}, but {}",
                name(service),
                on_node.epoch,
                served_words(known.served)
            );
            return Err(Violation { id: "H3", text });
        }
        if on_node.spent.is_some() && on_node.spent == epoch {
            let text = format!(
                "{step:?} of the service of {service} begins on {node} at {at_us} us in the epoch in which it was silenced"
            );
            return Err(Violation { id: "H3", text });
        }
        if step == Step::AddAddress && on_node.probed != epoch && !on_node.presence.address {
            let text = format!(
                "the address of the service of {service} is taken on {node} at {at_us} us without a probe"
            );
            return Err(Violation { id: "H2", text });
        }
        on_node.kill_ordered = false;
        on_node.removal_ordered = false;
        if std::mem::replace(&mut on_node.starting, true) || !self.healed {
            return Ok(());
        }
        known.starts.push_back(at_us);
        while known.starts.front().is_some_and(|first| at_us - first >= WINDOW_US) {
            known.starts.pop_front();
        }
        if known.starts.len() > STARTS_MAX {
            let text = format!(
                "{} is started for the {}th time within {} s, now on {node} at {at_us} us",
                name(service),
                known.starts.len(),
                WINDOW_US / 1_000_000
            );
            return Err(Violation { id: "H6", text });
        }
        Ok(())
    }

    fn undoes(
        &mut self,
        at_us: u64,
        node: NodeId,
        service: ResourceId,
        step: Step,
        force: bool,
    ) -> Result<(), Violation> {
        let on_node = self.services.entry(service).or_default().nodes.entry(node).or_default();
        on_node.starting = false;
        let there = on_node.presence;
        // A stop by kill waits for nothing, but its commands come in order.
        let address_gone = !there.address || (force && on_node.kill_ordered && on_node.removal_ordered);
        let processes_gone = !there.running || (force && on_node.kill_ordered);
        let why = match step {
            Step::AddAddress => {
                on_node.removal_ordered = true;
                None
            }
            Step::StartProcess { .. } | Step::Prepare { .. } if !address_gone && !on_node.kept => {
                Some("a process is stopped while the address is there")
            }
            Step::Mount if !address_gone => Some("it is unmounted while the address is there"),
            Step::Mount if !processes_gone => Some("it is unmounted while a process is there"),
            _ => None,
        };
        why.map_or(Ok(()), |why| Err(order_violation(at_us, node, service, why)))
    }

    fn check_overlap(&self, at_us: u64, service: ResourceId) -> Result<(), Violation> {
        let Some(known) = self.services.get(&service) else { return Ok(()) };
        // A node that is excused cannot be one of two.
        let mut counted = known.nodes.iter().filter(|(node, _)| !self.awake.contains_key(node));
        let (mut exclusive, mut address) = (None, None);
        counted.try_for_each(|(node, there)| {
            let there = there.presence;
            if (there.mounted || there.running)
                && let Some(other) = exclusive.replace(*node)
            {
                return Err(overlap_violation("H1", "a mount or a process", at_us, service, [other, *node]));
            }
            if there.address
                && let Some(other) = address.replace(*node)
            {
                return Err(overlap_violation("H2", "the address", at_us, service, [other, *node]));
            }
            Ok(())
        })
    }
}

fn overlap_violation(
    id: &'static str,
    what: &str,
    at_us: u64,
    service: ResourceId,
    on: [NodeId; 2],
) -> Violation {
    let text = format!("{what} of {} is on {} and on {} at {at_us} us", name(service), on[0], on[1]);
    Violation { id, text }
}

/// The service on a resource: s0 on r0.
fn name(service: ResourceId) -> String {
    format!("s{}", service.0.saturating_sub(1))
}

fn order_violation(at_us: u64, node: NodeId, service: ResourceId, why: &str) -> Violation {
    Violation {
        id: "H4",
        text: format!("{} stops in the wrong order on {node} at {at_us} us: {why}", name(service)),
    }
}

fn served_words(served: Option<(NodeId, Epoch)>) -> String {
    served.map_or("no node has served yet".into(), |(node, epoch)| {
        format!("the last to serve is {node} in epoch {}", epoch.0)
    })
}

fn presence_words(presence: Presence) -> String {
    let parts =
        [(presence.mounted, "the mount"), (presence.running, "a process"), (presence.address, "the address")];
    let there: Vec<&str> = parts.iter().filter(|(there, _)| *there).map(|(_, part)| *part).collect();
    there.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: ResourceId = ResourceId(1);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const START: Step = Step::StartProcess { process: 0 };
    const NOTHING: Presence = Presence { mounted: false, running: false, address: false };
    const MOUNTED: Presence = Presence { mounted: true, ..NOTHING };
    const RUNNING: Presence = Presence { running: true, ..MOUNTED };
    const ALL: Presence = Presence { address: true, ..RUNNING };

    fn run(step: Step) -> Effect {
        Effect::Run { ticket: 1, step, timeout_ms: 1 }
    }

    fn report(phase: ServicePhase, epoch: u64) -> Effect {
        let detail = String::new();
        Effect::Report(mainstay_ha::Report {
            phase,
            epoch: Epoch(epoch),
            round: 1,
            detail,
            failures: 0,
            passes: false,
            last_failure: String::new(),
        })
    }

    fn undo(step: Step, force: bool) -> Effect {
        Effect::Undo { ticket: 1, step, force, timeout_ms: 1 }
    }

    /// A serves in epoch 1.
    fn oracle() -> HaOracle {
        let mut oracle = HaOracle::new();
        oracle.role(0, A, S, Epoch(1), true);
        oracle
    }

    fn id(result: Result<(), Violation>) -> &'static str {
        result.map_or_else(|violation| violation.id, |()| "")
    }

    fn up(oracle: &mut HaOracle, at_us: u64, node: NodeId) -> Result<(), Violation> {
        oracle.step(at_us, node, S, &run(Step::ProbeAddress))?;
        oracle.answered(node, S, 1, true);
        for (step, presence) in [(Step::Mount, MOUNTED), (START, RUNNING), (Step::AddAddress, ALL)] {
            oracle.step(at_us, node, S, &run(step))?;
            oracle.observe(at_us, node, S, presence)?;
        }
        Ok(())
    }

    fn down(oracle: &mut HaOracle, at_us: u64, node: NodeId) -> Result<(), Violation> {
        for (step, presence) in [(Step::AddAddress, RUNNING), (START, MOUNTED), (Step::Mount, NOTHING)] {
            oracle.step(at_us, node, S, &undo(step, false))?;
            oracle.observe(at_us, node, S, presence)?;
        }
        Ok(())
    }

    #[test]
    fn a_service_that_moves_in_order_breaks_nothing() {
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        down(&mut oracle, 2, A).unwrap();
        oracle.role(2, A, S, Epoch(1), false);
        oracle.role(3, B, S, Epoch(2), true);
        oracle.step(3, B, S, &report(ServicePhase::Starting, 2)).unwrap();
        up(&mut oracle, 3, B).unwrap();
        oracle.stopped(B);
        oracle.observe(3, B, S, NOTHING).unwrap();
        oracle.role(3, A, S, Epoch(3), true);
        up(&mut oracle, 3, A).unwrap();
    }

    #[test]
    fn h1_two_nodes_with_a_mount_or_a_process() {
        let mut oracle = oracle();
        oracle.observe(1, A, S, MOUNTED).unwrap();
        oracle.observe(1, B, ResourceId(2), ALL).unwrap();
        let process = Presence { running: true, ..NOTHING };
        assert_eq!(id(oracle.observe(1, B, S, process)), "H1");
        let mut oracle = self::oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.role(2, B, S, Epoch(2), true);
        assert_eq!(id(oracle.step(2, B, S, &run(Step::Mount))), "H1");
    }

    #[test]
    fn h2_two_nodes_with_the_address() {
        let mut oracle = oracle();
        let address = Presence { address: true, ..NOTHING };
        oracle.observe(1, A, S, address).unwrap();
        assert_eq!(id(oracle.observe(1, B, S, address)), "H2");
        oracle.observe(2, B, S, NOTHING).unwrap();
        oracle.role(2, B, S, Epoch(2), true);
        assert_eq!(id(oracle.step(2, B, S, &run(Step::AddAddress))), "H2");
    }

    #[test]
    fn h2_an_address_that_was_off_is_probed_again() {
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        // Walked over again while it is there.
        oracle.step(2, A, S, &run(Step::AddAddress)).unwrap();
        oracle.step(2, A, S, &undo(Step::AddAddress, false)).unwrap();
        oracle.observe(2, A, S, RUNNING).unwrap();
        let mut asked = oracle.clone();
        assert_eq!(id(oracle.step(3, A, S, &run(Step::AddAddress))), "H2");
        asked.step(3, A, S, &run(Step::ProbeAddress)).unwrap();
        asked.answered(A, S, 1, true);
        asked.step(3, A, S, &run(Step::AddAddress)).unwrap();
    }

    #[test]
    fn h3_not_again_in_the_epoch_in_which_the_guard_acted() {
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.silenced(A, S);
        oracle.observe(2, A, S, NOTHING).unwrap();
        assert_eq!(id(oracle.clone().step(3, A, S, &run(Step::Mount))), "H3");
        let mut anew = oracle.clone();
        anew.forgotten(S);
        up(&mut anew, 4, A).unwrap();
        oracle.role(4, A, S, Epoch(2), true);
        up(&mut oracle, 4, A).unwrap();
    }

    #[test]
    fn h3_only_the_last_to_serve_starts() {
        let mut oracle = HaOracle::new();
        assert_eq!(id(oracle.step(1, A, S, &run(Step::Mount))), "H3", "no node has an epoch start yet");
        oracle.step(1, A, S, &run(Step::ProbeAddress)).unwrap();
        oracle.role(1, A, S, Epoch(1), false);
        assert_eq!(id(oracle.step(1, A, S, &run(Step::Mount))), "H3");
        oracle.role(2, A, S, Epoch(1), true);
        oracle.step(2, A, S, &run(Step::Mount)).unwrap();
        oracle.role(3, B, S, Epoch(2), true);
        assert_eq!(id(oracle.step(3, A, S, &run(START))), "H3");
        // Word of an old epoch comes late and changes nothing.
        oracle.role(3, A, S, Epoch(1), true);
        assert_eq!(id(oracle.step(3, A, S, &run(START))), "H3");
    }

    #[test]
    fn h3_only_in_the_epoch_that_serves() {
        for (epoch, broken) in [(1, ""), (2, "H3")] {
            let mut oracle = oracle();
            oracle.step(1, A, S, &report(ServicePhase::Starting, epoch)).unwrap();
            assert_eq!(id(oracle.step(1, A, S, &run(Step::Mount))), broken);
        }
    }

    /// A service that the guard has silenced does not go on in that epoch. The only exception is
    /// one that came to rest by a stop in order.
    #[test]
    fn h3_a_silenced_service_does_not_go_on_in_its_epoch() {
        use ServicePhase::{Failed, Killing, Starting, Stopped, Stopping};
        let cases: [(&[ServicePhase], &str); 5] = [
            (&[], "H3"),
            (&[Starting], "H3"),
            (&[Killing, Stopped, Starting], "H3"),
            (&[Stopping, Stopped, Starting], ""),
            (&[Stopping, Failed, Starting], ""),
        ];
        for (phases, broken) in cases {
            let mut oracle = oracle();
            up(&mut oracle, 1, A).unwrap();
            oracle.silenced(A, S);
            for phase in phases {
                oracle.step(2, A, S, &report(*phase, 1)).unwrap();
            }
            assert_eq!(id(oracle.step(3, A, S, &run(Step::Mount))), broken, "{phases:?}");
        }
    }

    #[test]
    fn h4_a_stop_goes_in_reverse_and_waits_for_proof() {
        for (there, step) in [(ALL, START), (ALL, Step::Mount), (RUNNING, Step::Mount)] {
            for force in [false, true] {
                let mut oracle = oracle();
                oracle.observe(1, A, S, there).unwrap();
                assert_eq!(id(oracle.step(1, A, S, &undo(step, force))), "H4", "{there:?} {step:?}");
            }
        }
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.step(2, A, S, &undo(Step::AddAddress, false)).unwrap();
        assert_eq!(id(oracle.step(2, A, S, &undo(START, false))), "H4", "its removal is not proven");
    }

    #[test]
    fn h4_a_kept_address_excuses_processes_and_nothing_else() {
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.address_stays(A, S, true);
        oracle.step(2, A, S, &undo(START, false)).unwrap();
        assert_eq!(id(oracle.step(3, A, S, &undo(Step::Mount, false))), "H4");
        oracle.address_stays(A, S, false);
        assert_eq!(id(oracle.step(4, A, S, &undo(START, false))), "H4");
    }

    #[test]
    fn h4_a_kill_waits_for_nothing_but_keeps_the_order() {
        let kill = Effect::Kill { ticket: 1 };
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.step(2, A, S, &undo(Step::AddAddress, true)).unwrap();
        oracle.step(2, A, S, &kill).unwrap();
        oracle.step(2, A, S, &undo(Step::Mount, true)).unwrap();
        let mut oracle = self::oracle();
        up(&mut oracle, 1, A).unwrap();
        assert_eq!(id(oracle.step(2, A, S, &kill)), "H4", "processes before the address");
        let mut oracle = self::oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.step(2, A, S, &undo(Step::AddAddress, true)).unwrap();
        assert_eq!(
            id(oracle.step(2, A, S, &undo(Step::Mount, true))),
            "H4",
            "the mount before the processes"
        );
    }

    #[test]
    fn h5_nothing_is_left_where_the_service_was() {
        let mut oracle = oracle();
        oracle.observe(1, A, S, Presence { address: true, ..NOTHING }).unwrap();
        oracle.role(2, B, S, Epoch(2), true);
        oracle.step(2, B, S, &run(Step::ProbeAddress)).unwrap();
        assert_eq!(id(oracle.step(2, B, S, &run(Step::Mount))), "H5");
        oracle.observe(3, A, S, MOUNTED).unwrap();
        assert_eq!(id(oracle.step(3, B, S, &run(Step::AddAddress))), "H5");
        oracle.observe(4, A, S, NOTHING).unwrap();
        oracle.step(4, B, S, &run(Step::Mount)).unwrap();
    }

    #[test]
    fn h6_starts_are_counted_once_faults_have_stopped() {
        let cycle = |oracle: &mut HaOracle, at_us: u64| {
            up(oracle, at_us, A)?;
            down(oracle, at_us, A)
        };
        let mut oracle = oracle();
        for _ in 0..50 {
            cycle(&mut oracle, 1).unwrap();
        }
        oracle.healed();
        for second in 0..STARTS_MAX as u64 {
            cycle(&mut oracle, second * 1_000_000).unwrap();
        }
        let mut slow = oracle.clone();
        let mut cleared = oracle.clone();
        assert_eq!(id(cycle(&mut oracle, WINDOW_US - 1)), "H6");
        cycle(&mut slow, WINDOW_US).unwrap();
        // Seed 3811995: an operator's wish came late.
        cleared.cleared(S);
        for second in 0..STARTS_MAX as u64 {
            cycle(&mut cleared, 30_000_000 + second * 1_000_000).unwrap();
        }
        assert_eq!(id(cycle(&mut cleared, WINDOW_US)), "H6");
        // A restarted agent goes again through the steps of a running service. That is no start.
        let mut oracle = self::oracle();
        oracle.healed();
        up(&mut oracle, 1, A).unwrap();
        for step in [Step::Mount, START, Step::AddAddress].repeat(50) {
            oracle.step(1, A, S, &run(step)).unwrap();
            oracle.observe(1, A, S, ALL).unwrap();
        }
    }

    #[test]
    fn a_machine_that_stood_still_has_a_moment_to_be_silent() {
        let mut oracle = oracle();
        up(&mut oracle, 1, A).unwrap();
        oracle.frozen(A);
        oracle.role(2, B, S, Epoch(2), true);
        up(&mut oracle, 2, B).unwrap();
        oracle.thawed(10, A);
        assert_eq!(id(oracle.step(11, A, S, &run(START))), "H3", "the moment is for stopping");
        let mut late = oracle.clone();
        oracle.observe(10 + WAKE_US - 1, A, S, NOTHING).unwrap();
        oracle.at(10 + WAKE_US).unwrap();
        late.at(10 + WAKE_US - 1).unwrap();
        assert_eq!(id(late.at(10 + WAKE_US)), "H1");
    }
}
