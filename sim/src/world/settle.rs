//! The end of a run: faults stop, everything heals, and the cluster must come to rest in bounded
//! time (L1 to L7). Then the world looks at everything once more.
//!
//! In some runs only a majority of the nodes heals at first. These nodes must do everything that is
//! possible without the others.

use super::progress::Copies;
use super::{ClientRequest, World, resource_id};
use crate::plan::{ClientOp, DiskFault, ServiceFault};
use crate::trace::Part;
use crate::words;
use mainstay_types::{Mode, NodeId, ResourceId};

/// Time that a healed cluster may take to be whole, in true microseconds. In that time a replica
/// that lost its disk is copied. A service that failed everywhere has backed off and stopped. A
/// mount that hangs has timed out (120 s).
pub(super) const SETTLE_US: u64 = 180_000_000;
/// Time that a request may take after that.
pub(super) const ANSWER_US: u64 = 30_000_000;
/// Number of services in a thousand that are beyond repair when faults stop.
const DEAD_SERVICES: u64 = 100;
/// Time that the cluster stays whole before the last look.
const REST_US: u64 = 3_000_000;

impl World {
    /// Stops all faults. Machines get power, cuts heal, and disks that are damaged beyond repair
    /// are replaced. Only the nodes that stay away are switched off, or cut off.
    pub fn heal(&mut self) {
        self.healed = true;
        self.away = self.plan.shape.away.nodes.iter().copied().map(NodeId).collect();
        // A removed node is switched off in the end: its agent ends when it is told.
        let removed: Vec<NodeId> =
            self.machines.keys().copied().filter(|node| self.state().is_removed(*node)).collect();
        self.away
            .extend(removed.iter().filter(|node| !self.away.contains(node)).copied().collect::<Vec<_>>());
        self.oracle.ha.healed();
        self.consensus.set_loss(0);
        let shape = &mut self.plan.shape;
        (shape.datagram_loss, shape.datagram_duplicate, shape.datagram_late) = (0, 0, 0);
        self.note(None, Part::Fault, &[60], || "faults stop, everything is healed".into());
        self.heal_network();
        self.traps.clear();
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
            let machine = self.machine(node);
            let (engine, agent) =
                (machine.engine_process.paused_until_us, machine.agent_process.paused_until_us);
            if engine > 0 {
                self.resume_engine(node, engine);
            }
            if agent > 0 {
                self.resume_agent(node, agent);
            }
            let machine = self.machine(node);
            for pace in machine.paces.values_mut() {
                *pace = super::Pace::default();
            }
            machine.late.clear();
            if let Some(agent) = &mut machine.agent {
                agent.put_back();
            }
            for disk in machine.disks.values_mut() {
                disk.heal();
            }
            if self.away.contains(&node) && !self.plan.shape.away.cut {
                self.power_cut(node);
            }
            self.start(node);
        }
        if self.plan.shape.away.cut {
            for node in self.away.clone() {
                self.isolate(node);
            }
        }
        for number in 0..self.plan.shape.resources.len() {
            self.heal_service(number);
            self.operate(number);
        }
        self.links_changed();
        self.repair();
    }

    fn start(&mut self, node: NodeId) {
        self.power_on(node);
        self.start_engine(node);
        self.start_agent(node);
    }

    /// Brings the nodes back that were away, and heals the network.
    fn come_back(&mut self) {
        self.note(None, Part::Fault, &[61], || "nodes that were away come back".into());
        let removed = |node: &NodeId| self.consensus.state().is_removed(*node);
        let (stay, back): (Vec<_>, Vec<_>) = std::mem::take(&mut self.away).into_iter().partition(removed);
        self.away = stay;
        for node in back {
            self.start(node);
        }
        self.heal_network();
        self.links_changed();
        self.repair();
    }

    /// Ends the faults of most services. A few never start again anywhere, and must stop for a
    /// stated reason (R21).
    fn heal_service(&mut self, number: usize) {
        let name = Self::service_name(resource_id(number));
        let dead = self.plan.shape.resources[number].service && self.chance.permille(DEAD_SERVICES);
        if dead {
            self.trace.count("F62 service never starts again");
        }
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
            self.machine(node).services.inject(&name, ServiceFault::Well);
            if dead {
                self.machine(node).services.inject(&name, ServiceFault::FailStart);
                self.machine(node).services.inject(&name, ServiceFault::Dies);
                let boot = self.machines[&node].boot;
                self.process_exited(node, boot, name.clone());
            }
        }
    }

    /// Does what an operator does about replicas that have stopped for good. An engine that gave a
    /// store up is started again. A replica that cannot be opened gets a new disk, or has its files
    /// removed, if another one is whole. Nodes that are away are left alone.
    fn repair(&mut self) {
        let present = |node: &NodeId| !self.away.contains(node);
        for node in self.machines.keys().copied().filter(present).collect::<Vec<_>>() {
            let machine = &self.machines[&node];
            let failed = machine
                .engine
                .as_ref()
                .is_some_and(|engine| engine.hosts.values().any(|hosted| hosted.host.failed().is_some()));
            let broken: Vec<ResourceId> = machine.broken.keys().copied().collect();
            for resource in broken {
                if self.others_whole(node, resource) {
                    let remedies = [DiskFault::Replace, DiskFault::Remove];
                    let remedy = remedies[self.files.below(2) as usize];
                    self.disk_fault(node, resource, remedy);
                }
            }
            if failed && self.machines[&node].engine.is_some() {
                self.kill_engine(node);
                self.start_engine(node);
            }
        }
        self.client_touches_all();
        for resource in 0..self.plan.shape.resources.len() {
            self.operate_once(resource);
        }
    }

    fn others_whole(&self, node: NodeId, resource: ResourceId) -> bool {
        self.state().resources.get(&resource).is_some_and(|known| {
            known.record.iss.iter().any(|member| {
                let machine = &self.machines[&member.node];
                member.node != node
                    && !self.away.contains(&member.node)
                    && machine.disks.contains_key(&resource)
                    && !machine.broken.contains_key(&resource)
            })
        })
    }

    /// Writes to each resource, so that an idle one finds out what it lacks.
    fn client_touches_all(&mut self) {
        for resource in 0..self.plan.shape.resources.len() {
            self.client(resource, ClientOp::Write { volume: 0, block: 0, blocks: 1 });
        }
    }

    /// Heals, and waits until everything is whole or has stopped for a stated reason. Reports what
    /// is not. If some nodes stay away, first waits for everything that is possible without them.
    pub fn settle(&mut self) {
        self.heal();
        if !self.away.is_empty() {
            self.trace.count("faults stop, a core heals");
            self.converge();
            if self.violation().is_some() {
                return;
            }
            self.come_back();
        }
        self.converge();
        if self.violation().is_none() {
            self.last_look();
        }
    }

    fn converge(&mut self) {
        let deadline = self.now_us + SETTLE_US;
        let mut whole_since: Option<u64> = None;
        let mut copies = Copies::default();
        while self.violation().is_none() && self.now_us < deadline {
            self.run_until(self.now_us + 500_000);
            self.watch_copies(&mut copies);
            if self.now_us % 2_000_000 < 500_000 {
                self.repair();
            }
            match (self.unwell(), whole_since) {
                (Some(_), _) => whole_since = None,
                (None, None) => whole_since = Some(self.now_us),
                (None, Some(since)) if self.now_us - since >= REST_US => break,
                (None, Some(_)) => {}
            }
        }
        if self.violation().is_some() {
            return;
        }
        if let Some((id, text)) = self.unwell() {
            return self.wrong(id, text);
        }
        self.count_ends();
    }

    /// A follower that lacks something although nothing is written.
    fn lagging(&self) -> Option<String> {
        (0..self.plan.shape.resources.len()).find_map(|number| {
            let id = resource_id(number);
            let record = &self.state().resources.get(&id)?.record;
            let hosted = self.machines[&record.primary?].engine.as_ref()?.hosts.get(&id)?;
            let peers = hosted.host.replica().status().peers;
            let late =
                peers.into_iter().find(|peer| record.policy.mode() == Mode::A && peer.lag.entries > 0)?;
            Some(format!("a follower of r{number} lacks something, and nothing is written: {late:?}"))
        })
    }

    /// Time by which a request must have ended. When a resource has no serving primary, a client's
    /// request ends after its own waiting time. Seeds 1524705, 1563614.
    pub(super) fn answer_due_us(&self, asked: &ClientRequest) -> u64 {
        let resource = resource_id(asked.resource);
        let waits = asked.client && self.leads(resource).is_none();
        let record = self.state().resources.get(&resource).map(|known| &known.record);
        let attached = record.and_then(|record| record.attached).filter(|_| waits);
        let waits_ms = attached.map_or(0, |attached| attached.wait_ms);
        let due_us = asked.at_us + ANSWER_US.max(waits_ms * 1000 + 1_000_000);
        due_us.max(self.left_until_us(asked).unwrap_or(0))
    }

    /// S1, S13: every block reads as it must, and all replicas hold the same.
    fn last_look(&mut self) {
        self.quiet = true;
        self.run_until(self.now_us + REST_US);
        self.scrubs_come_when_due();
        self.rot_and_scrub();
        self.run_until(self.now_us + REST_US);
        // Not earlier: a secondary applies the last repairs later than the primary (seed 783765).
        self.scrubbed.clear();
        for number in 0..self.plan.shape.resources.len() {
            let Some(node) = self.devices(number).first().copied() else { continue };
            // A client's device is there without a primary, and waits for one.
            if self.leads(resource_id(number)).is_none() {
                continue;
            }
            let Some(log) = self.oracle.logs.get(&resource_id(number)) else { continue };
            let written: Vec<_> = log.content(log.highest_committed()).into_keys().collect();
            for (volume, block) in written {
                self.ask(node, number, ClientOp::Read { volume: volume.0, block, blocks: 1 });
            }
        }
        // A disk that stood still may answer late.
        let due_us = self.asked.values().map(|asked| self.answer_due_us(asked)).max();
        let patience_us = due_us.unwrap_or(0).max(self.now_us + ANSWER_US);
        while !self.asked.is_empty() && self.now_us < patience_us && self.violation().is_none() {
            self.run_until(self.now_us + 1_000_000);
        }
        if self.violation().is_some() {
            return;
        }
        if let Some((request, asked)) = self.asked.iter().next() {
            let text = format!(
                "#{request} asked at {} ms on {} has no answer at the end",
                asked.at_us / 1000,
                asked.node
            );
            return self.wrong("L5", text);
        }
        let patience_us = self.now_us + ANSWER_US;
        while self.lagging().is_some() && self.now_us < patience_us && self.violation().is_none() {
            self.run_until(self.now_us + 1_000_000);
        }
        if let Some(text) = self.lagging() {
            return self.wrong("L2", text);
        }
        while self.congested().is_some() && self.now_us < patience_us && self.violation().is_none() {
            self.run_until(self.now_us + 1_000_000);
        }
        if let Some(text) = self.congested() {
            return self.wrong("L3", text);
        }
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
            for number in 0..self.plan.shape.resources.len() {
                self.compare_sizes(node, resource_id(number));
                self.inspect(node, resource_id(number), true);
            }
        }
    }

    /// R17: in the end every member's volumes are as large as the control plane says.
    fn compare_sizes(&mut self, node: NodeId, resource: ResourceId) {
        let Some(known) = self.state().resources.get(&resource) else { return };
        let Some(member) = known.record.iss_member(node).filter(|_| !known.deleting) else { return };
        let hosted = self.machines[&node].engine.as_ref().and_then(|engine| engine.hosts.get(&resource));
        let Some(hosted) = hosted.filter(|hosted| hosted.host.failed().is_none()) else { return };
        let store = hosted.host.store().config();
        // An empty replica in its place, which the record does not name, has the size that it was
        // made with. Seed 929999.
        if store.incarnation != member.incarnation {
            return;
        }
        let found = &store.volumes;
        // A growth that was decided only now is on its way. Seed 241926.
        if *found != known.spec.volumes && known.growing.is_empty() {
            let text = format!(
                "the volumes of {} on {node} have {found:?} bytes and not {:?}",
                words::resource(resource),
                known.spec.volumes
            );
            self.wrong("S16", text);
        }
    }
}
