//! The end of a run: faults stop, everything heals, and the cluster must come to rest in bounded time (L1 to L7). Then
//! everything is looked at once more.

use super::operator::Unfinished;
use super::{World, resource_id};
use crate::plan::{ClientOp, DiskFault, ServiceFault};
use crate::trace::Part;
use mainstay_control::snapshots::SnapshotState;
use mainstay_control::state::{Resource, ServicePhase};
use mainstay_replica::{PeerState, PeerStatus, Role};
use mainstay_store::Store;
use mainstay_types::{Member, Mode, NodeId, ResourceId};

/// How long a healed cluster may take to be whole, in true microseconds. A replica that lost its disk is copied in that
/// time, a service that failed everywhere has backed off and stopped, a mount that hangs has timed out (120 s).
const SETTLE_US: u64 = 180_000_000;
/// How long a request may take after that.
const ANSWER_US: u64 = 30_000_000;
/// Of a thousand services that many are beyond repair when faults stop.
const DEAD_SERVICES: u64 = 100;
/// How long it stays whole before the last look.
const REST_US: u64 = 3_000_000;

impl World {
    /// All faults stop: what is off is on, what is cut is whole, what is damaged beyond repair is replaced.
    pub fn heal(&mut self) {
        self.healed = true;
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
            for disk in machine.disks.values_mut() {
                disk.heal();
            }
            self.power_on(node);
            self.start_engine(node);
            self.start_agent(node);
        }
        for number in 0..self.plan.shape.resources.len() {
            self.heal_service(number);
        }
        self.links_changed();
        self.repair();
    }

    /// Most services are well again; a few will never start again anywhere, and then must stop for a stated reason (R21).
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

    /// What an operator does about replicas that have stopped for good: an engine that gave a store up is started again, a
    /// replica that cannot be opened gets a new disk, if another one is whole.
    fn repair(&mut self) {
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
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
                    && machine.disks.contains_key(&resource)
                    && !machine.broken.contains_key(&resource)
            })
        })
    }

    /// A write to each resource: what is idle finds out what it lacks.
    fn client_touches_all(&mut self) {
        for resource in 0..self.plan.shape.resources.len() {
            self.client(resource, ClientOp::Write { volume: 0, block: 0, blocks: 1 });
        }
    }

    /// Heals and waits until everything is whole, or says what is not.
    pub fn settle(&mut self) {
        self.heal();
        let deadline = self.now_us + SETTLE_US;
        let mut whole_since: Option<u64> = None;
        while self.violation().is_none() && self.now_us < deadline {
            self.run_until(self.now_us + 500_000);
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
        if self.violation().is_some() || self.plan.unsurvivable {
            return;
        }
        if let Some((id, text)) = self.unwell() {
            return self.wrong(id, text);
        }
        self.last_look();
    }

    /// What keeps the cluster from being whole.
    fn unwell(&self) -> Option<(&'static str, String)> {
        for number in 0..self.plan.shape.resources.len() {
            let id = resource_id(number);
            let name = format!("r{number}");
            match self.unfinished(number) {
                Unfinished::No => {}
                Unfinished::Gone => continue,
                Unfinished::Yes(text) => return Some(("L1", text)),
            }
            let Some(known) = self.state().resources.get(&id) else {
                return Some(("L1", format!("{name} does not exist")));
            };
            let record = &known.record;
            // Nothing that anybody could do: every disk that holds everything is damaged or gone.
            if record.epoch.0 > 0
                && record.iss.iter().all(|member| self.machines[&member.node].damaged.contains_key(&id))
            {
                continue;
            }
            let Some(primary) = record.primary else {
                return Some((
                    "L1",
                    format!("{name} has no primary: {}", known.failure.clone().unwrap_or_default()),
                ));
            };
            let Some(hosted) =
                self.machines[&primary].engine.as_ref().and_then(|engine| engine.hosts.get(&id))
            else {
                return Some((
                    "L1",
                    format!(
                        "the primary {primary} of {name} is not open: {:?}",
                        self.machines[&primary].broken
                    ),
                ));
            };
            if hosted.role != Role::Primary || !self.devices(number).contains(&primary) {
                let waiting = hosted.host.replica().status().waiting_for;
                return Some((
                    "L1",
                    format!(
                        "{primary} does not serve {name}: {:?}, device {:?}, {waiting:?}",
                        hosted.role, hosted.device
                    ),
                ));
            }
            if let Some((volume, bytes)) = known.growing.iter().next() {
                return Some(("L1", format!("{volume} of {name} does not grow to {bytes} bytes")));
            }
            if let Some(text) = self.snapshots_unsettled(known, hosted.host.store()) {
                return Some(("L1", text));
            }
            let shape = &self.plan.shape.resources[number];
            let in_a = record.mode == Mode::A;
            let whole = match in_a {
                true => {
                    let fed = |peer: &PeerStatus| {
                        matches!(peer.state, PeerState::Following | PeerState::InSync | PeerState::Joining)
                    };
                    record.replicas.len() == known.spec.replicas.len()
                        && record.doubtful.is_empty()
                        && hosted.host.replica().status().peers.iter().all(fed)
                }
                false => record.iss.len() == known.spec.replicas.len(),
            };
            // In mode B what all have in memory counts, and in the others everything is durable by and by.
            let counted = if record.mode == Mode::B { record.iss.len() } else { 0 };
            if !whole || record.openings.len() != counted {
                let status = hosted.host.replica().status();
                return Some(("L2", format!("{name} is not whole: {record:?}; peers {:?}", status.peers)));
            }
            if let Some((request, asked)) = self
                .asked
                .iter()
                .find(|(_, asked)| asked.resource == number && self.now_us - asked.at_us > ANSWER_US)
            {
                let waiting = hosted.host.replica().status().waiting_for;
                return Some((
                    "L5",
                    format!(
                        "#{request} asked at {} ms on {} has no answer: {waiting:?}",
                        asked.at_us / 1000,
                        asked.node
                    ),
                ));
            }
            if shape.service && self.wants_service(number) {
                let name = Self::service_name(id);
                let Some(service) = self.state().services.get(&name) else {
                    return Some(("L7", format!("{name} is unknown")));
                };
                let running = service.nodes.get(&primary).is_some_and(|on| on.phase == ServicePhase::Running);
                let presence = self.machines[&primary].services.presence(&name);
                let stated = service.halted.is_some() || service.failed_on(primary);
                if !(stated || running && presence.running && presence.address) {
                    return Some((
                        "L7",
                        format!(
                            "{name} is neither running on {primary} nor stopped for a stated reason: {:?}",
                            service.nodes
                        ),
                    ));
                }
            }
        }
        None
    }

    /// A follower that lacks something although nothing is written.
    fn lagging(&self) -> Option<String> {
        (0..self.plan.shape.resources.len()).find_map(|number| {
            let id = resource_id(number);
            let record = &self.state().resources.get(&id)?.record;
            let hosted = self.machines[&record.primary?].engine.as_ref()?.hosts.get(&id)?;
            let peers = hosted.host.replica().status().peers;
            let late = peers.into_iter().find(|peer| record.mode == Mode::A && peer.lag.entries > 0)?;
            Some(format!("a follower of r{number} lacks something, and nothing is written: {late:?}"))
        })
    }

    /// S1, S13: every block reads as it must, and all replicas hold the same.
    fn last_look(&mut self) {
        self.quiet = true;
        self.run_until(self.now_us + REST_US);
        for number in 0..self.plan.shape.resources.len() {
            let Some(node) = self.devices(number).first().copied() else { continue };
            let Some(log) = self.oracle.logs.get(&resource_id(number)) else { continue };
            let written: Vec<_> = log.content(log.highest_committed()).into_keys().collect();
            for (volume, block) in written {
                self.ask(node, number, ClientOp::Read { volume: volume.0, block, blocks: 1 });
            }
        }
        // A disk that stood still may answer late.
        let patience_us = self.now_us + ANSWER_US;
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
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
            for number in 0..self.plan.shape.resources.len() {
                self.compare_sizes(node, resource_id(number));
                self.inspect(node, resource_id(number), true);
            }
        }
    }

    /// R17: what was wished for is in the log of the primary, and every replica has it or cannot, and has said so.
    fn snapshots_unsettled(&self, known: &Resource, primary: &Store) -> Option<String> {
        let name = &known.name;
        for (id, snapshot) in &known.snapshots {
            if snapshot.dropping {
                return Some(format!("snapshot {id} of {name} is not deleted"));
            }
            let told = |member: &Member| {
                let on = snapshot.nodes.get(&member.node);
                on.is_some_and(|on| on.state != SnapshotState::Taking)
            };
            if let Some(member) = known.record.iss.iter().find(|member| !told(member)) {
                return Some(format!("{} does not say what it has of snapshot {id} of {name}", member.node));
            }
        }
        let strange = primary.snapshots().find(|(id, _)| !known.snapshots.contains_key(id));
        strange.map(|(id, _)| format!("{id} of {name} is in the log, and nobody wants it"))
    }

    /// R17: in the end every member's volumes are as large as the control plane says.
    fn compare_sizes(&mut self, node: NodeId, resource: ResourceId) {
        let Some(known) = self.state().resources.get(&resource) else { return };
        if known.record.iss_member(node).is_none() || known.deleting {
            return;
        }
        let hosted = self.machines[&node].engine.as_ref().and_then(|engine| engine.hosts.get(&resource));
        let Some(hosted) = hosted.filter(|hosted| hosted.host.failed().is_none()) else { return };
        let found = &hosted.host.store().config().volumes;
        // A wish that was decided only now is on its way. Seed 241926.
        if *found != known.spec.volumes && known.growing.is_empty() {
            let text = format!(
                "the volumes of {resource} on {node} have {found:?} bytes and not {:?}",
                known.spec.volumes
            );
            self.wrong("S16", text);
        }
    }
}
