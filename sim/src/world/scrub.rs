//! L4: a scrub finds the blocks that disks have damaged, and repairs them.
//!
//! During the storm of faults operators scrub too, and then there is nothing to find. In some runs
//! blocks of volumes rot when the cluster is well again. Each of them rots on fewer replicas than
//! hold it well. Scrubs run while clients write, and the last look checks that every block is
//! right.
//!
//! Where all replicas have checksums, blocks may rot on the primary, and on two replicas. Clients
//! read such blocks: they get the right content, and the replica goes on (ADR 14).

use super::settle::{ANSWER_US, SETTLE_US};
use super::{What, World, resource_id};
use crate::engine::EngineIn;
use crate::plan::{ClientOp, Plan};
use crate::random::Random;
use crate::trace::Part;
use crate::words;
use mainstay_replica::{PeerStatus, ScrubOrder, ScrubReport};
use mainstay_types::{
    DataState, Mode, NodeId, ResourceId, Role, ScrubFinding, ScrubRepair, ScrubState, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Number of runs in a thousand that end with a scrub of rotten blocks.
const ROTTEN: u64 = 300;
/// Number of attempts at a whole scrub. A scrub may make followers so slow that they leave the
/// in-sync set and are not compared.
const TRIES: usize = 5;
const STEP_US: u64 = 20_000;

/// Which replicas of a resource have checksums of their blocks.
#[derive(Clone, Copy)]
pub(super) enum Sums {
    None,
    /// Replicas on the nodes whose bits are set here have checksums.
    Some(u64),
}

impl Sums {
    pub fn on(self, node: NodeId) -> bool {
        match self {
            Self::None => false,
            Self::Some(nodes) => nodes >> (node.0 % 64) & 1 == 1,
        }
    }
}

/// Resources whose replicas do not all have checksums. A read there does not notice damage, so no
/// volume is damaged there before the end.
pub(super) fn sums_of(plan: &Plan, random: &mut Random) -> BTreeMap<ResourceId, Sums> {
    let mut sums = BTreeMap::new();
    for number in 0..plan.shape.resources.len() {
        let (pick, nodes) = (random.between(0, 9), random.next());
        if plan.unsurvivable || plan.hurts_volumes() {
            continue;
        }
        match pick {
            0..=2 => _ = sums.insert(resource_id(number), Sums::None),
            3 => _ = sums.insert(resource_id(number), Sums::Some(nodes)),
            _ => {}
        }
    }
    for (number, shape) in plan.shape.resources.iter().enumerate() {
        // A replica that is made of a snapshot has the sums of that or none.
        if let Some(source) = shape.origin {
            let of = sums.get(&resource_id(source)).copied();
            sums.remove(&resource_id(number));
            sums.extend(of.map(|of| (resource_id(number), of)));
        }
    }
    sums
}

impl World {
    /// An operator scrubs: the present primary begins.
    pub(super) fn scrub(&mut self, resource: ResourceId, repair: bool, rate: u64) {
        self.trace.count("F51 operator scrubs");
        let repair = if repair { ScrubRepair::All } else { ScrubRepair::Off };
        self.tell_primary(resource, Some(ScrubOrder { repair, rate }));
    }

    pub(super) fn stop_scrub(&mut self, resource: ResourceId) {
        self.trace.count("F51 operator ends a scrub");
        self.tell_primary(resource, None);
    }

    fn tell_primary(&mut self, resource: ResourceId, order: Option<ScrubOrder>) {
        let known = self.state().resources.get(&resource);
        let Some(node) = known.and_then(|known| known.record.primary) else { return };
        let what = if order.is_some() { "scrubs" } else { "ends the scrub of" };
        self.note(None, Part::Control, &[70, resource.0, u64::from(order.is_some())], || {
            format!("operator {what} {}", words::resource(resource))
        });
        let boot = self.machines[&node].engine_process.boot;
        self.after(0, What::ToEngine { node, boot, input: EngineIn::Scrub(resource, order) });
    }

    /// Returns the report of the engine on `node` on its last scrub of the resource.
    fn scrub_of(&self, node: NodeId, resource: ResourceId) -> Option<&ScrubReport> {
        let hosted = self.machines[&node].engine.as_ref()?.hosts.get(&resource)?;
        hosted.host.replica().scrub_report()
    }

    /// Replicas that are whole, open and undamaged.
    fn sound(&self, resource: ResourceId) -> Vec<NodeId> {
        let Some(known) = self.state().resources.get(&resource).filter(|known| !known.deleting) else {
            return Vec::new();
        };
        let sound = |node: &NodeId| {
            let machine = &self.machines[node];
            let hosted = machine.engine.as_ref().and_then(|engine| engine.hosts.get(&resource));
            let whole = hosted.is_some_and(|hosted| {
                let host = &hosted.host;
                host.failed().is_none() && host.store().log_state().data == DataState::Consistent
            });
            whole && !machine.damaged.contains_key(&resource)
        };
        known.record.replicas.iter().map(|member| member.node).filter(sound).collect()
    }

    fn serving(&self, resource: ResourceId) -> Option<NodeId> {
        let node = self.state().resources.get(&resource)?.record.primary?;
        let hosted = self.machines[&node].engine.as_ref()?.hosts.get(&resource)?;
        (hosted.role == Role::Primary).then_some(node)
    }

    /// L4, in some runs. Where a replica has no checksums clients do not read meanwhile: until a
    /// scrub finds a rotten block, a read returns it as it is.
    pub(super) fn rot_and_scrub(&mut self) {
        if !self.scrubs.permille(ROTTEN) {
            return;
        }
        for number in 0..self.plan.shape.resources.len() {
            let resource = resource_id(number);
            // In mode A followers are not compared, except for a moment those that a move brings in
            // sync (seed 2256051).
            if self.state().resources.get(&resource).is_none_or(|known| known.record.policy.mode() == Mode::A)
            {
                continue;
            }
            // A read that a client asked for earlier would see the rotten block: seed 802904.
            if !self.rests(number, &self.sound(resource)) {
                continue;
            }
            let sound = self.sound(resource);
            let Some(primary) = self.serving(resource).filter(|node| sound.contains(node)) else { continue };
            if sound.len() < 2 {
                continue;
            }
            let summed = !self.sums.contains_key(&resource);
            self.scrubbed.insert(resource);
            let rotten = self.rot_some(resource, primary, &sound, summed);
            if summed && self.scrubs.coin() {
                self.read_rotten_areas(number, &rotten);
            }
            if self.violation().is_some() {
                return;
            }
            self.scrub_until_whole(number, &sound, &rotten);
            if self.violation().is_some() {
                return;
            }
        }
    }

    /// Waits until a primary serves, clients are answered, no scrub runs, and all sound followers
    /// are in sync and have everything. A lagging replica is not compared, and a disk may stall for
    /// longer than the cluster takes to be well (seeds 803657, 804948, 1607652). A scrub that is
    /// already past the rotten block does not see it (seed 3850934). If a resource never comes to
    /// rest, other checks report it.
    fn rests(&mut self, number: usize, sound: &[NodeId]) -> bool {
        let waits = |world: &Self| {
            world.asked.values().any(|asked| asked.resource == number)
                || world.lags(resource_id(number), sound)
        };
        let until = self.now_us + SETTLE_US;
        while waits(self) && self.now_us < until && self.violation().is_none() {
            self.run_until(self.now_us + STEP_US);
        }
        !waits(self) && self.violation().is_none()
    }

    fn lags(&self, resource: ResourceId, sound: &[NodeId]) -> bool {
        let Some(primary) = self.serving(resource) else { return true };
        let hosted = self.machines[&primary].engine.as_ref().and_then(|engine| engine.hosts.get(&resource));
        let known = self.state().resources.get(&resource);
        let in_sync = |node| known.is_some_and(|known| known.record.iss_member(node).is_some());
        let behind = |peer: &PeerStatus| {
            let lags = peer.lag.entries > 0 || peer.copy.is_some() || !in_sync(peer.member.node);
            lags && sound.contains(&peer.member.node)
        };
        hosted.is_some_and(|hosted| {
            let replica = hosted.host.replica();
            replica.scrubs() || replica.status().peers.iter().any(behind)
        })
    }

    /// Lets some blocks rot, each on one replica at most. Of two replicas without checksums the
    /// primary's is spared, because its content counts in a repair.
    fn rot_some(
        &mut self,
        resource: ResourceId,
        primary: NodeId,
        sound: &[NodeId],
        summed: bool,
    ) -> BTreeSet<(VolumeId, u64)> {
        let mut rotten: BTreeSet<(VolumeId, u64)> = BTreeSet::new();
        for _ in 0..self.scrubs.between(1, 6) {
            let nodes: Vec<NodeId> =
                sound.iter().copied().filter(|node| summed || sound.len() > 2 || *node != primary).collect();
            let Some(&node) = self.scrubs.pick(&nodes) else { continue };
            let pick = self.scrubs.next();
            let rotted = &self.rotted;
            let disk = self.machines.get_mut(&node).and_then(|machine| machine.disks.get_mut(&resource));
            let hit = disk.and_then(|disk| {
                disk.rot_volume(pick, |volume, block| {
                    // A block that every replica lost earlier cannot be read or repaired (ADR 15).
                    !rotten.contains(&(volume, block)) && !rotted.contains(&(resource, volume, block))
                })
            });
            let Some((volume, block)) = hit else { continue };
            rotten.insert((volume, block));
            self.trace.count("F5 volume rot before a scrub");
            self.note(Some(node), Part::Fault, &[71, resource.0, block], || {
                format!("block {block} of {} {volume} rots", words::resource(resource))
            });
        }
        if let Some(log) = self.oracle.logs.get_mut(&resource) {
            log.rotten();
        }
        rotten
    }

    /// Clients read and write there. The replica of the primary serves on.
    fn read_rotten_areas(&mut self, number: usize, rotten: &BTreeSet<(VolumeId, u64)>) {
        let resource = resource_id(number);
        let Some(primary) = self.serving(resource) else { return };
        let counted = |world: &Self| {
            let hosted = world.machines[&primary].engine.as_ref()?.hosts.get(&resource)?;
            let host = &hosted.host;
            Some((host.damage_counts(), host.replica().scrub_totals().mended, host.failed().is_some()))
        };
        let Some((before, mended, _)) = counted(self) else { return };
        for &(volume, block) in rotten {
            if self.scrubs.permille(200) {
                self.client(number, ClientOp::Write { volume: volume.0, block, blocks: 1 });
            }
            self.client(number, ClientOp::Read { volume: volume.0, block, blocks: 1 });
            if self.scrubs.coin() {
                self.run_until(self.now_us + STEP_US);
            }
        }
        let until = self.now_us + ANSWER_US;
        while !self.asked.is_empty() && self.now_us < until && self.violation().is_none() {
            self.run_until(self.now_us + STEP_US);
        }
        let Some((after, mended_now, failed)) = counted(self) else { return };
        if after.found > before.found {
            self.trace.count("L4 clients read what has rotted");
        }
        if mended_now > mended {
            self.trace.count("L4 blocks mended in passing");
        }
        if failed || after.unreadable > before.unreadable {
            let text = format!(
                "{primary} cannot read what other replicas of {} have: {after:?}",
                words::resource(resource)
            );
            self.wrong("L4", text);
        }
    }

    fn scrub_until_whole(&mut self, number: usize, sound: &[NodeId], rotten: &BTreeSet<(VolumeId, u64)>) {
        let resource = resource_id(number);
        let mut last = None;
        for _ in 0..TRIES {
            // A service that cannot start makes another node primary (seed 1614187).
            if !self.rests(number, sound) {
                break;
            }
            let Some(primary) = self.serving(resource) else { break };
            self.scrub(resource, true, 0);
            let (until, began) = (self.now_us + ANSWER_US, self.node_time(primary));
            let mut ended: Option<ScrubReport> = None;
            while ended.is_none() && self.now_us < until && self.violation().is_none() {
                self.run_until(self.now_us + STEP_US);
                self.write_beside(number, rotten);
                let report = self.scrub_of(primary, resource);
                // The scrub must be ours: begun after the request, and with repair. One of the
                // schedule that has just ended repairs nothing (seed 1634196).
                let ours = |report: &&ScrubReport| {
                    report.repair == ScrubRepair::All && report.began >= began && report.ended.is_some()
                };
                ended = report.filter(ours).cloned();
            }
            let Some(report) = ended else { continue };
            let all = sound.iter().all(|node| report.compared.get(node) == Some(&report.done));
            last = Some(report.clone());
            if report.state == ScrubState::Done && all {
                self.trace.count("L4 scrub of what has rotted");
                if report.repaired > 0 {
                    self.trace.count("L4 blocks repaired");
                }
                if report.overwritten > 0 {
                    self.trace.count("L4 clients were faster than a repair");
                }
                if report.unrepaired() > self.lost_before(resource, &report) {
                    let text = format!("a scrub of {} left damage: {report:?}", words::resource(resource));
                    self.wrong("L4", text);
                }
                return;
            }
        }
        if self.violation().is_none() {
            let name = words::resource(resource);
            let text = format!("no scrub of {name} compares all of {sound:?}: {last:?}");
            self.wrong("L4", text);
        }
    }

    /// Number of blocks that a scrub found damaged on every replica, and that had rotted before.
    /// There is nothing to repair them with (ADR 15).
    fn lost_before(&self, resource: ResourceId, report: &ScrubReport) -> u64 {
        let lost = |found: &&ScrubFinding| {
            let mut blocks = found.block..found.block + found.blocks;
            found.damaged.len() == report.compared.len()
                && blocks.all(|block| self.rotted.contains(&(resource, found.volume, block)))
        };
        report.findings.iter().filter(lost).map(|found| found.blocks).sum()
    }

    /// Clients write to rotten blocks, and elsewhere.
    fn write_beside(&mut self, number: usize, rotten: &BTreeSet<(VolumeId, u64)>) {
        if !self.scrubs.permille(300) {
            return;
        }
        let rotten: Vec<_> = rotten.iter().copied().collect();
        let Some(&(volume, block)) = self.scrubs.pick(&rotten) else { return };
        self.client(number, ClientOp::Write { volume: volume.0, block, blocks: 1 });
    }
}
