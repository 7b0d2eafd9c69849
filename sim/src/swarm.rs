//! Plans from seeds, by swarm testing (Groce et al., 2012). Every run turns features and kinds of
//! faults on and off, and draws how often each comes, over orders of magnitude. So some runs have
//! one kind of fault in a storm and nothing else, which a mixture of everything never has.
//!
//! Sizes are tiny, so that wrap-around, overlap and full conditions are the rule. A journal has 32
//! to 96 blocks, a volume a few extents. There are 8 to 32 hot blocks, some of them at the edge of
//! an extent.
//!
//! Plans stay within the budget of `budget.rs`. Each kind draws from a stream of its own, so a new
//! kind leaves the other kinds of a seed as they were.

use crate::plan::{
    Action, Away, ClientOp, DiskFault, Fault, Operator, Plan, ResourceShape, ServiceFault, Shape, Step,
    Target,
};
use crate::random::Random;
use crate::storm;
use mainstay_types::{BLOCK_BYTES, BackgroundLimits, EXTENT_BYTES, NodeId, SlowLimits};

/// Clients go on for this long after faults have ended, so that progress under load can be seen
/// (L1, L6).
pub const CLIENTS_AFTER_HEAL_MS: u64 = 10_000;
/// Number of runs in a thousand that last for minutes, as pauses in them do (F24).
const LONG_RUNS: u64 = 20;
/// Factor by which everything else comes less often in these long runs, so that one costs about as
/// much as any other run.
const LONG_CALM: u64 = 6;
/// Time in which the cluster comes up. In most runs no step comes before its end.
const QUIET_MS: u64 = 3000;
const EXTENT_BLOCKS: u64 = EXTENT_BYTES / BLOCK_BYTES;
/// Largest request with a payload, in blocks: a quarter of the smallest journal.
const PAYLOAD_BLOCKS_MAX: u64 = 8;
/// Number of resources in a thousand, among those that need not survive, whose replicas all rot at
/// the same blocks. Some of these replicas are copied anew then.
const DAMAGE_COPIED: u64 = 300;

/// A run that must be survived.
#[must_use]
pub fn plan(seed: u64) -> Plan {
    let (mut draw, mut random) = Draw::new(seed, "survivable");
    // Some runs have no fault at all: their findings are found easily.
    if !random.permille(30) {
        draw.storm(&mut random);
    }
    draw.finish(false)
}

/// A run in which all replicas of a resource are damaged, in ways that the store notices: the only
/// right end is correct data or a clear stop.
#[must_use]
pub fn unsurvivable_plan(seed: u64) -> Plan {
    let (mut draw, mut random) = Draw::new(seed, "unsurvivable");
    if random.coin() {
        draw.storm(&mut random);
    }
    for resource in 0..draw.shape.resources.len() {
        let mut copied = Random::new(seed).stream(&format!("damage that is copied {resource}"));
        let ruined = resource == 0 || random.coin();
        if copied.permille(DAMAGE_COPIED) && draw.shape.resources[resource].replicas.len() > 1 {
            storm::rot_and_copy(&mut draw, &mut copied, resource);
        } else if ruined {
            storm::ruin(&mut draw, &mut random, resource);
        }
    }
    draw.finish(true)
}

/// A run with disks that lie, which today's store does not promise to notice (`budget.rs`). A
/// violation of such a run describes the present state, and is not a defect.
#[must_use]
pub fn beyond_plan(seed: u64) -> Plan {
    let (mut draw, mut random) = Draw::new(seed, "beyond");
    if random.coin() {
        draw.storm(&mut random);
    }
    storm::lie(&mut draw, &mut random);
    draw.finish(true)
}

/// A plan that is being made.
pub struct Draw {
    seed: u64,
    pub shape: Shape,
    pub from_ms: u64,
    /// When the healing begins.
    pub end_ms: u64,
    /// The run lasts for minutes.
    long: bool,
    /// The replica of each resource whose disk may be damaged; `None` if it is the only one, or if
    /// replicas move.
    pub victims: Vec<Option<NodeId>>,
    steps: Vec<Step>,
}

impl Draw {
    fn new(seed: u64, name: &str) -> (Self, Random) {
        let root = Random::new(seed).stream(name);
        let mut random = root.stream("times");
        let mut end_ms = random.between(20_000, 60_000);
        let mut minutes = root.stream("minutes");
        let long = minutes.permille(LONG_RUNS) && name == "survivable";
        if long {
            end_ms = minutes.between(180_000, 300_000);
        }
        let from_ms = if random.permille(150) { 0 } else { QUIET_MS };
        let mut shape = shape(&root);
        above_chance(&mut shape);
        let mut random = root.stream("replicas that move");
        for resource in &mut shape.resources {
            resource.moves = random.permille(200) && shape.nodes > 1;
        }
        let mut random = root.stream("modes");
        for resource in &mut shape.resources {
            resource.modes = random.permille(300) && name == "survivable";
        }
        if name == "survivable" {
            shape.away = away(shape.nodes, &mut root.stream("away when faults stop"));
        }
        let mut random = root.stream("victims");
        let victims = shape
            .resources
            .iter()
            .map(|resource| {
                let victim = random.pick(&resource.replicas).map(|node| NodeId(*node));
                victim.filter(|_| resource.replicas.len() > 1 && !resource.moves && !resource.modes)
            })
            .collect();
        let mut draw = Self { seed, shape, from_ms, end_ms, long, victims, steps: Vec::new() };
        draw.come_late(&mut root.stream("late resource"));
        if name == "survivable" {
            draw.come_of_another(&mut root.stream("origin"));
        }
        for resource in 0..draw.shape.resources.len() {
            draw.clients(resource, &mut root.stream(&format!("clients of {resource}")));
        }
        (draw, root.stream("storm"))
    }

    /// The last of several resources may be made while the others are in use.
    fn come_late(&mut self, random: &mut Random) {
        let last = self.shape.resources.len() - 1;
        if last > 0 && random.permille(200) {
            self.shape.resources[last].late = true;
            let at_ms = random.between(500, self.end_ms / 2);
            self.operator(at_ms, Operator::CreateResource { resource: last });
        }
    }

    /// Lets the last resource be made of a snapshot of another one, in most plans that allow it. No
    /// disk of that other one may be damaged, because the damage would make both resources useless.
    fn come_of_another(&mut self, random: &mut Random) {
        let last = self.shape.resources.len() - 1;
        let sound: Vec<usize> = (0..last).filter(|source| self.victims[*source].is_none()).collect();
        let Some(&source) = random.pick(&sound) else { return };
        if !self.shape.resources[last].late || !random.permille(800) {
            return;
        }
        let origin = self.shape.resources[source].clone();
        let clone = &mut self.shape.resources[last];
        // The clone is as large as its origin may grow.
        (clone.volumes, clone.grown) = (origin.grown.clone(), origin.grown);
        clone.replicas = origin.replicas;
        clone.origin = Some(source);
        (clone.moves, clone.modes) = (false, false);
        self.victims[last] = None;
        if random.coin() {
            let at_ms = random.between(300, self.end_ms / 2);
            self.operator(at_ms, Operator::Snapshot { resource: source, drop: None });
        }
    }

    /// Adds a step; one that would come after the healing has begun is left out, as healing ends
    /// everything.
    pub fn add(&mut self, at_ms: u64, action: Action) {
        if at_ms < self.end_ms {
            self.steps.push(Step { at_ms, action });
        }
    }

    pub fn fault(&mut self, at_ms: u64, fault: Fault) {
        self.add(at_ms, Action::Fault(fault));
    }

    pub fn disk(&mut self, at_ms: u64, node: NodeId, resource: usize, fault: DiskFault) {
        self.fault(at_ms, Fault::Disk { target: Target::Node(node), resource, fault });
    }

    pub fn service(&mut self, at_ms: u64, target: Target, resource: usize, fault: ServiceFault) {
        self.fault(at_ms, Fault::Service { target, resource, fault });
    }

    pub fn operator(&mut self, at_ms: u64, operator: Operator) {
        self.add(at_ms, Action::Operator(operator));
    }

    pub fn flush(&mut self, at_ms: u64, resource: usize) {
        self.add(at_ms, Action::Client { resource, op: ClientOp::Flush });
    }

    /// Some reads of anything.
    pub fn reads(&mut self, at_ms: u64, within_ms: u64, resource: usize, count: u64, random: &mut Random) {
        let volumes = self.shape.resources[resource].volumes.clone();
        for _ in 0..count {
            let (volume, block) = hot_block(&volumes, random);
            let op = ClientOp::Read { volume, block, blocks: 1 };
            self.add(at_ms + random.below(within_ms), Action::Client { resource, op });
        }
    }

    /// Many writes to anywhere.
    pub fn writes(
        &mut self,
        at_ms: u64,
        within_ms: u64,
        resource: usize,
        count: u64,
        blocks: u64,
        random: &mut Random,
    ) {
        let volumes = self.shape.resources[resource].volumes.clone();
        for _ in 0..count {
            let (volume, block) = any_block(&volumes, random);
            let blocks = blocks.min(volumes[usize::from(volume)] - block);
            let op = ClientOp::Write { volume, block, blocks };
            self.add(at_ms + random.below(within_ms), Action::Client { resource, op });
        }
    }

    /// Every kind of fault, each in its share of the runs.
    fn storm(&mut self, random: &mut Random) {
        let calm = [1, 2, 4, 10][random.below(4) as usize] * if self.long { LONG_CALM } else { 1 };
        if self.long {
            storm::pause_for_minutes(self, &mut random.stream("paused for minutes"));
        }
        for kind in storm::KINDS {
            let mut random = random.stream(kind.name);
            if !random.permille(kind.runs) {
                continue;
            }
            let mean = spread(&mut random, kind.gap_ms.0, kind.gap_ms.1) * calm;
            let mut at = self.from_ms + random.around(mean);
            while at < self.end_ms {
                (kind.add)(self, &mut random, at);
                at += random.around(mean).max(1);
            }
        }
    }

    fn clients(&mut self, resource: usize, random: &mut Random) {
        let volumes = self.shape.resources[resource].grown.clone();
        let hot: Vec<(u16, u64)> = (0..random.between(8, 32)).map(|_| hot_block(&volumes, random)).collect();
        let weights: [u64; 5] = [
            random.between(1, 10),
            random.between(0, 10),
            random.between(0, 2),
            random.between(0, 2),
            random.between(0, 2),
        ];
        let cold_permille = if random.coin() { 30 } else { 0 };
        // Requests come in groups: what comes together overlaps and forms batches.
        let group_max: u64 = [1, 1, 4, 16][random.below(4) as usize];
        // `around` gives about three quarters of what it is asked for.
        let gap = 1333 * group_max.div_ceil(2) / random.between(2, 40);
        let gap = if self.long { gap * LONG_CALM } else { gap };
        let after = if random.coin() { 1 } else { 10 };
        let mut at = random.between(200, 2000);
        while at < self.end_ms + CLIENTS_AFTER_HEAL_MS {
            for _ in 0..random.between(1, group_max) {
                let cold = random.permille(cold_permille);
                let place = if cold {
                    any_block(&volumes, random)
                } else {
                    hot[random.below(hot.len() as u64) as usize]
                };
                let op = client_op(&volumes, place, &weights, random);
                self.steps.push(Step { at_ms: at, action: Action::Client { resource, op } });
            }
            at += random.around(gap).max(1) * if at > self.end_ms { after } else { 1 };
        }
    }

    fn finish(mut self, unsurvivable: bool) -> Plan {
        // A stable sort: steps that were added together keep their order.
        self.steps.sort_by_key(|step| step.at_ms);
        Plan { seed: self.seed, shape: self.shape, steps: self.steps, heal_at_ms: self.end_ms, unsurvivable }
    }
}

/// From `from` to `to`, as likely in each doubling.
pub fn spread(random: &mut Random, from: u64, to: u64) -> u64 {
    let doublings = u64::from((to / from.max(1)).max(1).ilog2());
    let low = from << random.below(doublings + 1);
    random.between(low, (low * 2).min(to).max(low))
}

fn shape(root: &Random) -> Shape {
    let mut random = root.stream("shape");
    // Nodes, and the replicas of the first resource.
    let (nodes, replicas) = match random.below(100) {
        0..8 => (1, 1),
        8..14 => (2, 2),
        14..34 => (3, 2),
        34..72 => (3, 3),
        72..80 => (5, 5),
        _ => (5, random.between(1, 5)),
    };
    let lease_ms = [1000, 1000, 1500, 2000, random.between(1000, 2500)][random.below(5) as usize];
    let margin_min = lease_ms.div_ceil(40);
    let resources = [1, 1, 1, 2, 3][random.below(5) as usize];
    let resources = (0..resources)
        .map(|number| {
            let mut random = root.stream(&format!("resource {number}"));
            let replicas = if number == 0 { replicas } else { random.between(1, u64::from(nodes)) };
            resource(&mut random, nodes, replicas)
        })
        .collect();
    let mut clocks = root.stream("clocks");
    // Tight leases: the end of one lease and the beginning of the next are so close that only the
    // margin is between them (R10).
    let tight = clocks.permille(60);
    let drift = if tight { 3 } else { clocks.below(3) };
    let slow = 1 + clocks.below(u64::from(nodes));
    let clock_ppm = (0..nodes)
        .map(|node| match drift {
            3 if u64::from(node) + 1 == slow => -10_000,
            3 => 10_000,
            0 => 0,
            1 => [-10_000, 0, 10_000][clocks.below(3) as usize],
            _ => clocks.between(0, 20_000) as i64 - 10_000,
        })
        .collect();
    let mut network = root.stream("network");
    let mut share = |permille: u64, max: u64| {
        let some = network.permille(permille);
        if some { spread(&mut network, 1, max) } else { 0 }
    };
    Shape {
        nodes,
        resources,
        clock_ppm,
        lease_ms,
        heartbeat_ms: if tight { lease_ms / 40 } else { random.between(lease_ms / 10, lease_ms / 4) },
        margin_ms: if tight || random.coin() { margin_min } else { random.between(margin_min, lease_ms / 4) },
        datagram_loss: share(400, 300),
        datagram_duplicate: share(400, 500),
        datagram_late: share(400, 300),
        proposal_loss: share(400, 200),
        away: Away::default(),
        devices_stay: root.stream("devices that stay").coin(),
        latency_us: spread(&mut random, 50, if tight { 500 } else { 20_000 }),
        disk_us: spread(&mut random, 20, if tight { 500 } else { 20_000 }),
    }
}

/// In some runs only a core heals at first: a majority of the nodes.
fn away(nodes: u32, random: &mut Random) -> Away {
    let most = u64::from(nodes.saturating_sub(1) / 2);
    if most == 0 || !random.permille(250) {
        return Away::default();
    }
    let mut all: Vec<u32> = (1..=nodes).collect();
    let mut chosen: Vec<u32> =
        (0..random.between(1, most)).map(|_| all.remove(random.below(all.len() as u64) as usize)).collect();
    chosen.sort_unstable();
    Away { nodes: chosen, cut: random.coin() }
}

fn resource(random: &mut Random, nodes: u32, replicas: u64) -> ResourceShape {
    let mut free: Vec<u32> = (1..=nodes).collect();
    let mut chosen = Vec::new();
    for _ in 0..replicas {
        chosen.push(free.remove(random.below(free.len() as u64) as usize));
    }
    let volumes: Vec<u64> = (0..[1, 1, 2, 3][random.below(4) as usize])
        .map(|_| {
            let extents = random.between(1, 8) * EXTENT_BLOCKS;
            // The last extent of a volume need not be whole.
            if random.permille(250) { extents - random.between(1, EXTENT_BLOCKS / 2) } else { extents }
        })
        .collect();
    let journal_blocks = random.between(32, 96);
    let mut shape = ResourceShape {
        replicas: chosen,
        grown: grown(&volumes, &mut random.stream("growth")),
        volumes,
        journal_blocks,
        service: random.coin(),
        destage_start_blocks: spread(random, 1, journal_blocks / 2),
        memory_blocks: spread(random, 2, journal_blocks),
        window_blocks: spread(random, 16, 128),
        slow: slow_limits(&mut random.stream("slow members")),
        background: background_limits(&mut random.stream("background")),
        late: false,
        origin: None,
        moves: false,
        modes: false,
    };
    // Nothing is kept in memory: every read and every destage comes from the journal.
    if random.permille(150) {
        shape.memory_blocks = 0;
    }
    shape
}

/// Blocks that each volume may grow to. For some resources they are more than it begins with.
fn grown(volumes: &[u64], random: &mut Random) -> Vec<u64> {
    let grows = random.permille(250);
    let mut more = |blocks: &u64| blocks + if grows { spread(random, 1, 3 * EXTENT_BLOCKS) } else { 0 };
    volumes.iter().map(&mut more).collect()
}

/// Raises the limits of slowness above the time that an acknowledgement takes by chance where
/// nothing is slow. That time is two latencies and a write, each of which is at times several times
/// its mean. With a lower limit, the replicas of a resource that is well would leave and return for
/// ever.
fn above_chance(shape: &mut Shape) {
    let usual_us = 2 * shape.latency_us + shape.disk_us;
    for slow in shape.resources.iter_mut().map(|resource| &mut resource.slow).filter(|slow| slow.ack_ms > 0) {
        slow.ack_ms = slow.ack_ms.max(usual_us.div_ceil(125));
    }
}

/// Some resources have no limit for slow members. Others find a slow one quickly, or would rather
/// have one copy than wait.
fn slow_limits(random: &mut Random) -> SlowLimits {
    let quiet_ms = spread(random, 500, 5_000);
    SlowLimits {
        ack_ms: if random.permille(150) { 0 } else { spread(random, 1, 20) },
        factor: random.between(2, 10),
        for_ms: spread(random, 20, 600),
        min_copies: [1, 2, 2, 2, 3][random.below(5) as usize],
        quiet_ms,
        quiet_max_ms: quiet_ms * random.between(1, 4),
    }
}

/// Some replicas are filled at full pace, some fills never yield, and some are held up. Volumes
/// have some 24 extents at most, and filling must end.
fn background_limits(random: &mut Random) -> BackgroundLimits {
    let per_s = |random: &mut Random| random.between(8, 100) * EXTENT_BYTES;
    BackgroundLimits {
        max_rate: if random.permille(250) { per_s(random) } else { 0 },
        min_rate: if random.permille(150) { 0 } else { per_s(random) },
        slowdown_percent: random.between(10, 300),
    }
}

fn any_block(volumes: &[u64], random: &mut Random) -> (u16, u64) {
    let volume = random.below(volumes.len() as u64);
    (volume as u16, random.below(volumes[volume as usize]))
}

/// Any block, or one just before or after the edge of an extent, or one of the first few.
fn hot_block(volumes: &[u64], random: &mut Random) -> (u16, u64) {
    let (volume, block) = any_block(volumes, random);
    let last = volumes[usize::from(volume)] - 1;
    let block = match random.below(4) {
        0 => block,
        1 => random.below(16).min(last),
        _ => {
            let edge = block.next_multiple_of(EXTENT_BLOCKS);
            (edge + random.below(4)).saturating_sub(3).min(last)
        }
    };
    (volume, block)
}

fn client_op(
    volumes: &[u64],
    (volume, block): (u16, u64),
    weights: &[u64; 5],
    random: &mut Random,
) -> ClientOp {
    let room = volumes[usize::from(volume)] - block;
    let payload = if random.permille(700) { 1 } else { random.between(1, PAYLOAD_BLOCKS_MAX) }.min(room);
    // These have no payload and may be long.
    let plain = if random.permille(900) { payload } else { spread(random, 1, EXTENT_BLOCKS).min(room) };
    let mut at = random.below(weights.iter().sum());
    let mut kind = 0;
    while at >= weights[kind] {
        at -= weights[kind];
        kind += 1;
    }
    match kind {
        0 => ClientOp::Write { volume, block, blocks: payload },
        1 => ClientOp::Read { volume, block, blocks: payload },
        2 => ClientOp::Discard { volume, block, blocks: plain },
        3 => ClientOp::WriteZeroes { volume, block, blocks: plain },
        _ => ClientOp::Flush,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget;
    use crate::plan::{Moment, Proposed};
    use std::collections::{BTreeMap, BTreeSet};

    /// The name of the action, without its numbers.
    fn kind(action: &Action) -> String {
        let text = match action {
            Action::Fault(Fault::Disk { fault, .. }) => format!("{fault:?}"),
            Action::Fault(Fault::Service { fault, .. }) => format!("{fault:?}"),
            Action::Fault(fault) => format!("{fault:?}"),
            Action::Client { op, .. } => format!("{op:?}"),
            Action::Operator(operator) => format!("{operator:?}"),
        };
        text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_owned()
    }

    #[test]
    fn plans_keep_to_the_budget() {
        for seed in 0..2000 {
            for plan in [plan(seed), unsurvivable_plan(seed), beyond_plan(seed)] {
                if let Err(why) = budget::check(&plan) {
                    panic!("seed {seed} (unsurvivable: {}): {why}", plan.unsurvivable);
                }
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        for seed in 0..100 {
            assert_eq!(plan(seed), plan(seed));
            assert_ne!(plan(seed), plan(seed + 1));
        }
    }

    #[test]
    fn settings_are_valid() {
        for seed in 0..2000 {
            let shape = plan(seed).shape;
            let settings = mainstay_control::state::Settings {
                lease_ms: shape.lease_ms,
                heartbeat_ms: shape.heartbeat_ms,
                margin_ms: shape.margin_ms,
            };
            if let Err(why) = settings.validate() {
                panic!("seed {seed}: {why}");
            }
        }
    }

    #[test]
    fn every_shape_and_every_kind_of_fault_comes() {
        let mut shapes: BTreeMap<(u32, usize), u32> = BTreeMap::new();
        let mut kinds = BTreeSet::new();
        let mut lying = BTreeSet::new();
        for seed in 0..1000 {
            let made = plan(seed);
            *shapes.entry((made.shape.nodes, made.shape.resources[0].replicas.len())).or_default() += 1;
            kinds.extend(made.steps.iter().map(|step| kind(&step.action)));
            lying.extend(beyond_plan(seed).steps.iter().map(|s| kind(&s.action)));
        }
        let away: Vec<Away> = (0..1000).map(|seed| plan(seed).shape.away).collect();
        for (nodes, cut) in [(1, false), (1, true), (2, false), (2, true)] {
            let runs = away.iter().filter(|away| (away.nodes.len(), away.cut) == (nodes, cut)).count();
            assert!(runs >= 10, "{nodes} away in {runs} runs, cut off: {cut}");
        }
        for shape in [(1, 1), (2, 2), (3, 2), (3, 3), (5, 1), (5, 3), (5, 5)] {
            assert!(shapes.get(&shape).is_some_and(|n| *n >= 10), "{shape:?} in {shapes:?}");
        }
        for name in [
            "PowerCut",
            "PowerOn",
            "PowerCutAll",
            "PowerOnAll",
            "KillEngine",
            "ReplaceEngine",
            "KillAgent",
            "PauseMachine",
            "PauseEngine",
            "PauseAgent",
            "Cut",
            "CutAgents",
            "CutEngines",
            "CutOneWay",
            "Isolate",
            "Partition",
            "Heal",
            "SlowLink",
            "Reset",
            "CorruptFrame",
            "Slow",
            "Stall",
            "WriteError",
            "FlushError",
            "ReadError",
            "Vanish",
            "RotSuperblock",
            "RotSuperblocks",
            "RotJournal",
            "RotVersions",
            "LostRecord",
            "MisdirectedRecord",
            "StaleRecord",
            "LostVersions",
            "MisdirectedVersions",
            "StaleVersions",
            "RotVolume",
            "LostBlock",
            "LostSuperblock",
            "StepClock",
            "Replace",
            "Remove",
            "Copied",
            "LeaderChange",
            "LoseProposals",
            "Snapshot",
            "Trap",
            "NarrowLink",
            "Late",
            "ReadOnly",
            "Full",
            "Room",
            "ApplyService",
            "DeleteService",
            "StopService",
            "Maintain",
            "EndMaintenance",
            "Cordon",
            "Uncordon",
            "Tie",
            "StartService",
            "RestartService",
            "CreateResource",
            "DeleteResource",
            "Digest",
            "Scrub",
            "StopScrub",
            "SetScrub",
            "JoinAgain",
            "SetMode",
            "MinCopies",
            "ModeB",
            "Force",
            "IgnoreStop",
            "Hang",
            "FailStart",
            "KeepAddress",
            "Dies",
            "PagesTear",
            "Well",
            "Move",
            "Write",
            "Read",
            "Discard",
            "WriteZeroes",
            "Flush",
        ] {
            assert!(kinds.contains(name), "{name} is not in {kinds:?}");
        }
        for name in ["LostWrite", "Misdirect", "StaleRead", "LyingFlush", "KeepImage", "OldImage"] {
            assert!(lying.contains(name), "{name} is not in {lying:?}");
            assert!(!kinds.contains(name), "{name} in a plan that is to be survived");
        }
    }

    #[test]
    fn some_runs_last_for_minutes_and_so_do_their_pauses() {
        let minutes = |step: &Step| match step.action {
            Action::Fault(
                Fault::PauseMachine { ms, .. } | Fault::PauseEngine { ms, .. } | Fault::PauseAgent { ms, .. },
            ) => ms >= 60_000,
            _ => false,
        };
        let plans: Vec<Plan> = (0..2000).map(plan).collect();
        let long: Vec<&Plan> = plans.iter().filter(|plan| plan.heal_at_ms >= 180_000).collect();
        assert!((20..=60).contains(&long.len()), "{}", long.len());
        let most = long.iter().map(|plan| plan.steps.len()).max().unwrap_or_default();
        let usual = plans.iter().map(|plan| plan.steps.len()).max().unwrap_or_default();
        assert!(most <= usual, "{most} steps, and {usual} at most elsewhere");
        assert!(long.iter().filter(|plan| plan.steps.iter().any(minutes)).count() * 10 >= long.len() * 9);
        assert!(plans.iter().all(|plan| plan.heal_at_ms >= 180_000 || !plan.steps.iter().any(minutes)));
    }

    #[test]
    fn every_command_is_a_moment_for_a_trap() {
        let set: BTreeSet<Proposed> = (0..1000)
            .flat_map(|seed| plan(seed).steps)
            .filter_map(|step| match step.action {
                Action::Fault(Fault::Trap { moment: Moment::Propose(what), .. }) => Some(what),
                _ => None,
            })
            .collect();
        let of_clients = [Proposed::AttachResource, Proposed::DetachResource, Proposed::ClaimAttachment];
        let of_scrubs = [Proposed::SetScrub, Proposed::BeginScrub, Proposed::ScrubEnded];
        let of_services = [
            Proposed::StopService,
            Proposed::SetMaintenance,
            Proposed::StartService,
            Proposed::RestartService,
            Proposed::ServiceRestarted,
        ];
        let others = of_clients.into_iter().chain(of_scrubs).chain([Proposed::SetMinCopies]);
        let others = others.chain(of_services);
        assert_eq!(set, Proposed::ALL.into_iter().chain(others).collect());
    }

    #[test]
    fn an_unsurvivable_plan_damages_every_replica_of_a_resource() {
        for seed in 0..500 {
            let made = unsurvivable_plan(seed);
            let mut harmed: BTreeSet<u32> = BTreeSet::new();
            for step in &made.steps {
                if let Action::Fault(Fault::Disk { target: Target::Node(node), resource: 0, fault }) =
                    step.action
                    && budget::harm(fault) == budget::Harm::Replica
                {
                    harmed.insert(node.0);
                }
            }
            let replicas: BTreeSet<u32> = made.shape.resources[0].replicas.iter().copied().collect();
            assert_eq!(harmed, replicas, "seed {seed}");
        }
    }
}
