//! The kinds of faults that `swarm.rs` puts into a plan, each with its sequel: power comes back,
//! cuts heal, a damaged disk is replaced. The healing at the end mends everything that is still
//! broken.

mod ambush;
mod disks;
mod operators;

use crate::plan::{DiskFault, Fault, ServiceFault, Target};
use crate::random::Random;
use crate::swarm::{Draw, spread};
use mainstay_types::NodeId;

/// A kind of fault.
pub struct Kind {
    /// Names its random stream: a new name is a new plan for every seed that has this kind.
    pub name: &'static str,
    /// Number of runs in a thousand that have this kind of fault.
    pub runs: u64,
    /// The mean time between two of them is drawn from here once per run.
    pub gap_ms: (u64, u64),
    pub add: fn(&mut Draw, &mut Random, u64),
}

/// Every kind, in an order that does not matter.
pub const KINDS: &[Kind] = &[
    Kind { name: "power cut", runs: 400, gap_ms: (2000, 60_000), add: power_cut },
    Kind { name: "power cut of all", runs: 400, gap_ms: (5000, 60_000), add: power_cut_of_all },
    Kind { name: "staggered power cut", runs: 400, gap_ms: (8000, 60_000), add: staggered_power_cut },
    Kind { name: "reboot loop", runs: 400, gap_ms: (8000, 60_000), add: reboot_loop },
    Kind { name: "engine killed", runs: 400, gap_ms: (1000, 60_000), add: kill_engine },
    Kind { name: "engine replaced", runs: 250, gap_ms: (2000, 40_000), add: replace_engine },
    Kind { name: "agent killed", runs: 400, gap_ms: (1000, 60_000), add: kill_agent },
    Kind { name: "machine paused", runs: 400, gap_ms: (1000, 60_000), add: pause_machine },
    Kind { name: "engine paused", runs: 400, gap_ms: (1000, 60_000), add: pause_engine },
    Kind { name: "agent paused", runs: 400, gap_ms: (1000, 60_000), add: pause_agent },
    Kind { name: "cut", runs: 400, gap_ms: (1000, 60_000), add: cut },
    Kind { name: "cut of agents", runs: 400, gap_ms: (1000, 60_000), add: cut_agents },
    Kind { name: "cut of engines", runs: 400, gap_ms: (1000, 60_000), add: cut_engines },
    Kind { name: "one-way cut", runs: 400, gap_ms: (1000, 60_000), add: cut_one_way },
    Kind { name: "isolation", runs: 400, gap_ms: (2000, 60_000), add: isolate },
    Kind { name: "partition", runs: 400, gap_ms: (2000, 60_000), add: partition },
    Kind { name: "flapping", runs: 400, gap_ms: (4000, 60_000), add: flap },
    Kind { name: "slow link", runs: 400, gap_ms: (2000, 60_000), add: slow_link },
    Kind { name: "reset", runs: 400, gap_ms: (200, 30_000), add: reset },
    Kind { name: "corrupt frame", runs: 400, gap_ms: (200, 30_000), add: corrupt_frame },
    Kind { name: "slow disk", runs: 400, gap_ms: (1000, 60_000), add: disks::slow_disk },
    Kind { name: "stalled disk", runs: 400, gap_ms: (500, 60_000), add: disks::stall_disk },
    Kind { name: "superblock copy rots", runs: 400, gap_ms: (1000, 60_000), add: disks::rot_superblock },
    Kind { name: "disk error", runs: 400, gap_ms: (2000, 60_000), add: disks::disk_error },
    Kind { name: "disk vanishes", runs: 400, gap_ms: (8000, 60_000), add: disks::vanish },
    Kind { name: "disk rots", runs: 400, gap_ms: (4000, 60_000), add: disks::rot },
    Kind { name: "disk replaced", runs: 400, gap_ms: (8000, 60_000), add: disks::replace },
    Kind { name: "files removed", runs: 200, gap_ms: (8000, 60_000), add: disks::remove_files },
    Kind { name: "files copied", runs: 150, gap_ms: (2000, 30_000), add: disks::copy_file },
    Kind { name: "copies interrupted", runs: 400, gap_ms: (12_000, 60_000), add: disks::interrupt_copies },
    Kind { name: "disk replaced unseen", runs: 400, gap_ms: (8000, 60_000), add: disks::replace_unseen },
    Kind { name: "burst", runs: 400, gap_ms: (2000, 30_000), add: burst },
    Kind { name: "reads across a pause", runs: 400, gap_ms: (4000, 60_000), add: reads_across_a_pause },
    Kind { name: "slowest clock isolated", runs: 400, gap_ms: (3000, 30_000), add: isolate_slowest },
    Kind { name: "unguarded end", runs: 400, gap_ms: (3000, 20_000), add: unguarded_end },
    Kind { name: "leader change", runs: 400, gap_ms: (200, 30_000), add: leader_change },
    Kind { name: "proposals lost", runs: 400, gap_ms: (200, 30_000), add: lose_proposals },
    Kind { name: "snapshot", runs: 400, gap_ms: (500, 60_000), add: snapshot },
    Kind { name: "service fault", runs: 400, gap_ms: (1000, 60_000), add: service_fault },
    Kind { name: "move", runs: 400, gap_ms: (2000, 60_000), add: operators::move_service },
    Kind { name: "disk full", runs: 150, gap_ms: (8000, 60_000), add: disks::disk_full },
    Kind { name: "pool full", runs: 250, gap_ms: (4000, 60_000), add: disks::pool_full },
    Kind { name: "narrow link", runs: 250, gap_ms: (2000, 60_000), add: narrow_link },
    Kind { name: "slow member", runs: 300, gap_ms: (6000, 60_000), add: slow_member },
    Kind { name: "quorum lost for long", runs: 150, gap_ms: (15_000, 60_000), add: lose_quorum },
    Kind { name: "absent at first", runs: 100, gap_ms: (30_000, 60_000), add: absent_at_first },
    Kind { name: "engine restart loop", runs: 100, gap_ms: (20_000, 60_000), add: restart_loop },
    Kind { name: "late operations", runs: 400, gap_ms: (200, 20_000), add: ambush::late_operations },
    Kind { name: "join in doubt", runs: 300, gap_ms: (4000, 30_000), add: ambush::join_in_doubt },
    Kind { name: "promotion in doubt", runs: 150, gap_ms: (15_000, 60_000), add: ambush::promotion_in_doubt },
    Kind { name: "change in doubt", runs: 300, gap_ms: (1000, 30_000), add: ambush::change_in_doubt },
    Kind { name: "copy in disorder", runs: 300, gap_ms: (8000, 40_000), add: ambush::copy_in_disorder },
    Kind { name: "copy over again", runs: 200, gap_ms: (8000, 40_000), add: ambush::copy_over_again },
    Kind { name: "cut and gone", runs: 250, gap_ms: (10_000, 40_000), add: ambush::cut_and_gone },
    Kind { name: "journal fills", runs: 250, gap_ms: (4000, 30_000), add: ambush::journal_fills },
    Kind { name: "reads overtaken", runs: 250, gap_ms: (4000, 30_000), add: ambush::reads_overtaken },
    Kind { name: "service applied", runs: 200, gap_ms: (5000, 60_000), add: operators::apply_service },
    Kind { name: "service stopped", runs: 200, gap_ms: (5000, 60_000), add: operators::stop_service },
    Kind { name: "maintenance", runs: 100, gap_ms: (5000, 40_000), add: operators::maintain },
    Kind { name: "node cordoned", runs: 70, gap_ms: (5000, 40_000), add: operators::cordon },
    Kind { name: "services tied", runs: 120, gap_ms: (3000, 40_000), add: operators::tie },
    Kind { name: "service restarted", runs: 150, gap_ms: (2000, 60_000), add: operators::restart_service },
    Kind { name: "service deleted", runs: 150, gap_ms: (8000, 60_000), add: operators::delete_service },
    Kind { name: "resource deleted", runs: 150, gap_ms: (10_000, 60_000), add: operators::delete_resource },
    Kind { name: "replicas compared", runs: 100, gap_ms: (10_000, 60_000), add: operators::digest },
    Kind { name: "replicas move", runs: 700, gap_ms: (1000, 30_000), add: operators::move_replicas },
    Kind { name: "volumes grow", runs: 700, gap_ms: (2000, 30_000), add: operators::grow },
    Kind { name: "snapshots", runs: 300, gap_ms: (1000, 20_000), add: operators::snapshots },
    Kind { name: "modes change", runs: 800, gap_ms: (1000, 30_000), add: operators::change_mode },
    Kind { name: "primary given up", runs: 600, gap_ms: (8000, 30_000), add: ambush::primary_given_up },
    Kind { name: "memory lost", runs: 700, gap_ms: (4000, 20_000), add: ambush::memory_lost },
    Kind { name: "journal lies", runs: 400, gap_ms: (1000, 30_000), add: disks::journal_lies },
    Kind { name: "version table lies", runs: 250, gap_ms: (2000, 60_000), add: disks::versions_lie },
    Kind { name: "volume rots", runs: 300, gap_ms: (1000, 30_000), add: disks::volume_rots },
    Kind { name: "superblock copy lost", runs: 300, gap_ms: (1000, 60_000), add: disks::lose_superblock },
    Kind { name: "proposal in doubt", runs: 400, gap_ms: (300, 10_000), add: ambush::proposal_in_doubt },
    Kind { name: "wall clock steps", runs: 200, gap_ms: (500, 30_000), add: step_clock },
    Kind { name: "rolled back", runs: 250, gap_ms: (2000, 30_000), add: operators::roll_back },
    Kind { name: "replicas scrubbed", runs: 300, gap_ms: (3000, 60_000), add: operators::scrub },
    Kind { name: "scrub overtaken", runs: 300, gap_ms: (3000, 30_000), add: ambush::scrub_overtaken },
    Kind { name: "clients", runs: 700, gap_ms: (2000, 20_000), add: operators::attach },
    Kind { name: "scrubs scheduled", runs: 250, gap_ms: (3000, 30_000), add: operators::schedule_scrubs },
    Kind { name: "copies wanted", runs: 300, gap_ms: (2000, 30_000), add: operators::want_copies },
    Kind { name: "service forgotten", runs: 150, gap_ms: (3000, 60_000), add: operators::forget_the_service },
    Kind { name: "pages tear", runs: 150, gap_ms: (2000, 40_000), add: pages_tear },
    Kind { name: "node joins again", runs: 50, gap_ms: (10_000, 60_000), add: operators::join_again },
];

/// Damages all replicas of a resource within a short time, in ways that the store notices.
pub fn ruin(draw: &mut Draw, random: &mut Random, resource: usize) {
    let start = random.between(draw.from_ms.min(draw.end_ms - 2000), draw.end_ms - 2000);
    let within = spread(random, 1, 1000);
    let same = random.coin();
    let first = damage(random);
    for node in draw.shape.resources[resource].replicas.clone() {
        let fault = if same { first } else { damage(random) };
        draw.disk(start + random.below(within), NodeId(node), resource, fault);
    }
    // Most damage at rest shows when the replica is read again.
    let at = start + within;
    if random.coin() {
        draw.fault(at, Fault::PowerCutAll);
        draw.fault(at + random.between(1, 500), Fault::PowerOnAll);
    } else {
        for node in 1..=draw.shape.nodes {
            let target = Target::Node(NodeId(node));
            draw.fault(
                at + random.below(500),
                Fault::KillEngine { target, restart_after_ms: random.below(500) },
            );
        }
    }
}

/// The same blocks rot on all replicas, and then some of these are copied from others.
pub fn rot_and_copy(draw: &mut Draw, random: &mut Random, resource: usize) {
    let at = random.between(draw.from_ms.min(draw.end_ms - 2000), draw.end_ms - 2000);
    let replicas = draw.shape.resources[resource].replicas.clone();
    draw.writes(at.saturating_sub(100), 100, resource, random.between(8, 48), random.between(1, 4), random);
    // By then most written blocks are in the volumes.
    let rots_at = at + spread(random, 1, 1500);
    for _ in 0..random.between(1, 6) {
        let pick = random.next();
        for node in &replicas {
            draw.disk(rots_at, NodeId(*node), resource, DiskFault::RotVolume { pick });
        }
    }
    for _ in 0..random.between(1, 3) {
        let node = NodeId(random.pick(&replicas).copied().unwrap_or_default());
        draw.disk(rots_at + spread(random, 1, 16_000), node, resource, DiskFault::Replace);
    }
}

/// Disks that lie (`budget.rs`), each kind on some runs, on any replica.
pub fn lie(draw: &mut Draw, random: &mut Random) {
    let mut any = false;
    for kind in 0..6 {
        let mut random = random.stream(&format!("lie {kind}"));
        if !random.permille(300) && (any || kind < 5) {
            continue;
        }
        any = true;
        for _ in 0..spread(&mut random, 1, 16) {
            let at = random.between(draw.from_ms, draw.end_ms - 1);
            let (node, resource) = any_replica(draw, &mut random);
            let pick = random.next();
            match kind {
                0 => draw.disk(at, node, resource, DiskFault::RotVolume { pick }),
                1 => draw.disk(at, node, resource, DiskFault::LostWrite),
                2 => draw.disk(at, node, resource, DiskFault::Misdirect),
                3 => draw.disk(at, node, resource, DiskFault::StaleRead),
                4 => {
                    draw.disk(at, node, resource, DiskFault::LyingFlush);
                    off_and_on(draw, &mut random, at + pick % 5000, node);
                }
                _ => {
                    let old = at + 1 + pick % 10_000;
                    draw.disk(at, node, resource, DiskFault::KeepImage);
                    draw.disk(old, node, resource, DiskFault::OldImage);
                    off_and_on(draw, &mut random, old + 1, node);
                }
            }
        }
    }
}

fn node(draw: &Draw, random: &mut Random) -> NodeId {
    NodeId(random.between(1, u64::from(draw.shape.nodes)) as u32)
}

fn resource(draw: &Draw, random: &mut Random) -> usize {
    random.below(draw.shape.resources.len() as u64) as usize
}

/// A node by number, or by its role.
fn target(draw: &Draw, random: &mut Random) -> Target {
    match random.below(6) {
        0 | 1 => Target::Primary(resource(draw, random)),
        2 => Target::Secondary(resource(draw, random), random.below(4)),
        3 => Target::Leader,
        _ => Target::Node(node(draw, random)),
    }
}

/// Two targets that differ, as far as their names tell.
fn pair(draw: &Draw, random: &mut Random) -> (Target, Target) {
    let of = resource(draw, random);
    match random.below(4) {
        0 => (Target::Primary(of), Target::Secondary(of, random.below(4))),
        1 => (Target::Secondary(of, random.below(4)), Target::Primary(of)),
        2 => (Target::Leader, Target::Node(node(draw, random))),
        _ => {
            let a = node(draw, random);
            let others = u64::from(draw.shape.nodes).saturating_sub(1).max(1);
            let b = NodeId(1 + (a.0 - 1 + random.between(1, others) as u32) % draw.shape.nodes);
            (Target::Node(a), Target::Node(b))
        }
    }
}

fn any_replica(draw: &Draw, random: &mut Random) -> (NodeId, usize) {
    let resource = resource(draw, random);
    let replicas = &draw.shape.resources[resource].replicas;
    (NodeId(replicas[random.below(replicas.len() as u64) as usize]), resource)
}

/// The replica of some resource that may be damaged.
fn victim(draw: &Draw, random: &mut Random) -> Option<(NodeId, usize)> {
    let resource = resource(draw, random);
    draw.victims[resource].map(|node| (node, resource))
}

/// Damage that the store notices, now or when it reads again.
fn damage(random: &mut Random) -> DiskFault {
    match random.below(5) {
        0 => DiskFault::Vanish,
        1 => DiskFault::RotSuperblocks,
        2 => DiskFault::RotJournal { pick: random.next() },
        3 => DiskFault::RotVersions { pick: random.next() },
        _ => DiskFault::Replace,
    }
}

fn off_and_on(draw: &mut Draw, random: &mut Random, at: u64, node: NodeId) {
    draw.fault(at, Fault::PowerCut(Target::Node(node)));
    draw.fault(at + spread(random, 1, 8000), Fault::PowerOn(Target::Node(node)));
}

fn power_cut(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    let on = at + spread(random, 1, 16_000);
    draw.fault(at, Fault::PowerCut(target));
    if let Target::Node(_) = target {
        draw.fault(on, Fault::PowerOn(target));
    } else {
        // By then the target may name another node, so all nodes get power.
        draw.fault(on, Fault::PowerOnAll);
    }
}

fn power_cut_of_all(draw: &mut Draw, random: &mut Random, at: u64) {
    draw.fault(at, Fault::PowerCutAll);
    if random.coin() {
        draw.fault(at + spread(random, 1, 8000), Fault::PowerOnAll);
        return;
    }
    for node in 1..=draw.shape.nodes {
        draw.fault(at + spread(random, 1, 8000), Fault::PowerOn(Target::Node(NodeId(node))));
    }
}

fn staggered_power_cut(draw: &mut Draw, random: &mut Random, at: u64) {
    let within = spread(random, 1, 4000);
    for node in 1..=draw.shape.nodes {
        let off = at + random.below(within);
        off_and_on(draw, random, off, NodeId(node));
    }
}

fn reboot_loop(draw: &mut Draw, random: &mut Random, at: u64) {
    let node = Target::Node(node(draw, random));
    let mut at = at;
    for _ in 0..random.between(2, 6) {
        draw.fault(at, Fault::PowerCut(node));
        at += spread(random, 1, 500);
        draw.fault(at, Fault::PowerOn(node));
        at += spread(random, 1, 4000);
    }
}

fn kill_engine(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    let restart_after_ms = if random.coin() { 0 } else { spread(random, 1, 8000) };
    draw.fault(at, Fault::KillEngine { target, restart_after_ms });
}

/// Most successors come at once. One in four comes too late, or dies itself.
fn replace_engine(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    match random.below(8) {
        0 => draw.fault(at, Fault::ReplaceEngine { target, gap_ms: spread(random, 500, 10_000) }),
        1 => {
            draw.fault(at, Fault::ReplaceEngine { target, gap_ms: random.below(100) });
            let died = at + spread(random, 20, 500);
            draw.fault(died, Fault::KillEngine { target, restart_after_ms: random.below(500) });
        }
        _ => draw.fault(at, Fault::ReplaceEngine { target, gap_ms: spread(random, 1, 500) }),
    }
}

fn kill_agent(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    let restart_after_ms = if random.coin() { 0 } else { spread(random, 1, 8000) };
    draw.fault(at, Fault::KillAgent { target, restart_after_ms });
}

fn pause_machine(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    draw.fault(at, Fault::PauseMachine { target, ms: spread(random, 1, 32_000) });
}

fn pause_engine(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    draw.fault(at, Fault::PauseEngine { target, ms: spread(random, 1, 16_000) });
}

fn pause_agent(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    draw.fault(at, Fault::PauseAgent { target, ms: spread(random, 1, 16_000) });
}

/// F42: minutes back, hours ahead, and anything between.
fn step_clock(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    let ms = spread(random, 1, 8 * 3_600_000) as i64;
    draw.fault(at, Fault::StepClock { target, by_ms: if random.coin() { ms } else { -ms } });
}

/// F24: a process or a machine stands still for minutes, a few times in a run that is long enough
/// for it.
pub fn pause_for_minutes(draw: &mut Draw, random: &mut Random) {
    for _ in 0..random.between(1, 4) {
        let at = random.between(draw.from_ms, draw.end_ms * 3 / 4);
        let (target, ms) = (target(draw, random), random.between(60_000, 240_000));
        let fault = match random.below(4) {
            0 => Fault::PauseEngine { target, ms },
            1 => Fault::PauseAgent { target, ms },
            _ => Fault::PauseMachine { target, ms },
        };
        draw.fault(at, fault);
    }
}

fn until_healed(draw: &mut Draw, random: &mut Random, at: u64, fault: Fault) {
    draw.fault(at, fault);
    draw.fault(at + spread(random, 50, 12_000), Fault::Heal);
}

fn cut(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    until_healed(draw, random, at, Fault::Cut(a, b));
}

fn cut_agents(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    until_healed(draw, random, at, Fault::CutAgents(a, b));
}

fn cut_engines(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    until_healed(draw, random, at, Fault::CutEngines(a, b));
}

fn cut_one_way(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    until_healed(draw, random, at, Fault::CutOneWay(a, b));
}

fn isolate(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    until_healed(draw, random, at, Fault::Isolate(target));
}

fn partition(draw: &mut Draw, random: &mut Random, at: u64) {
    // At least one node is on each side, where there are two nodes.
    let side = random.between(1, ((1 << draw.shape.nodes) - 2).max(1));
    until_healed(draw, random, at, Fault::Partition(side));
}

/// F35.
fn flap(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    let mut at = at;
    for _ in 0..random.between(3, 12) {
        draw.fault(at, Fault::Cut(a, b));
        at += spread(random, 10, 1000);
        draw.fault(at, Fault::Heal);
        at += spread(random, 10, 1000);
    }
}

fn narrow_link(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    let kib_per_s = spread(random, 16, 16_384);
    until_healed(draw, random, at, Fault::NarrowLink { a, b, kib_per_s });
}

/// F14, F36: one replica answers, and takes long; and again, once it is back. Clients write all
/// along.
fn slow_member(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = any_replica(draw, random);
    let mut at = at;
    for _ in 0..random.between(1, 4) {
        let ms = spread(random, 300, 6000);
        if random.coin() {
            draw.disk(at, node, resource, DiskFault::Slow { factor: spread(random, 10, 300) });
            draw.disk(at + ms, node, resource, DiskFault::Slow { factor: 1 });
        } else {
            let (a, b) = (Target::Primary(resource), Target::Node(node));
            draw.fault(at, Fault::SlowLink { a, b, factor: spread(random, 10, 100) });
            draw.fault(at + ms, Fault::SlowLink { a, b, factor: 1 });
        }
        let rest_ms = spread(random, 500, 8000);
        draw.writes(at, ms + rest_ms, resource, (ms + rest_ms) / 10, 1, random);
        at += ms + rest_ms;
    }
}

/// F50: half of the agents or more, and no other processes, are gone for longer than anything
/// waits.
fn lose_quorum(draw: &mut Draw, random: &mut Random, at: u64) {
    let nodes = u64::from(draw.shape.nodes);
    let first = random.below(nodes);
    let ms = random.between(10_000, 40_000);
    for n in 0..nodes.div_ceil(2) {
        let target = Target::Node(NodeId(1 + ((first + n) % nodes) as u32));
        draw.fault(
            at + random.below(500),
            Fault::KillAgent { target, restart_after_ms: ms + random.below(2000) },
        );
    }
}

/// A machine that is off when the cluster begins, and starts later.
fn absent_at_first(draw: &mut Draw, random: &mut Random, _: u64) {
    let target = Target::Node(node(draw, random));
    draw.fault(random.below(200), Fault::PowerCut(target));
    draw.fault(spread(random, 500, 8000), Fault::PowerOn(target));
}

/// Many epochs and recoveries, in a journal that gets no other writes. This is done only to a lone
/// replica, because several replicas would take over from each other.
fn restart_loop(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = resource(draw, random);
    let [only] = draw.shape.resources[resource].replicas[..] else { return };
    let target = Target::Node(NodeId(only));
    let gap = random.between(200, 700);
    for n in 0..random.between(20, 50) {
        draw.fault(at + n * gap, Fault::KillEngine { target, restart_after_ms: 0 });
    }
}

fn slow_link(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    let factor = spread(random, 2, 1000);
    until_healed(draw, random, at, Fault::SlowLink { a, b, factor });
}

fn reset(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    draw.fault(at, Fault::Reset(a, b));
}

fn corrupt_frame(draw: &mut Draw, random: &mut Random, at: u64) {
    let (a, b) = pair(draw, random);
    draw.fault(at, Fault::CorruptFrame(a, b));
}

/// R18: more writes at once than the journal holds, while one member does not keep up, and then a
/// failover.
fn burst(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = resource(draw, random);
    let blocks = random.between(1, 8);
    let room = draw.shape.resources[resource].journal_blocks * 2 / blocks;
    let within = spread(random, 1, 400);
    for replica in draw.shape.resources[resource].replicas.clone() {
        if random.coin() {
            let ms = spread(random, 50, 2000);
            draw.disk(at.saturating_sub(1), NodeId(replica), resource, DiskFault::Stall { ms });
        }
    }
    draw.writes(at, within, resource, room, blocks, random);
    let after = at + spread(random, 1, 1000);
    match random.below(4) {
        0 => {}
        1 => draw.fault(
            after,
            Fault::KillEngine { target: Target::Primary(resource), restart_after_ms: random.below(500) },
        ),
        2 => {
            draw.fault(after, Fault::PowerCut(Target::Primary(resource)));
            draw.fault(after + spread(random, 500, 8000), Fault::PowerOnAll);
        }
        _ => {
            draw.fault(after, Fault::PowerCutAll);
            draw.fault(after + spread(random, 1, 1000), Fault::PowerOnAll);
        }
    }
}

/// R10: reads are under way on a slow disk when their machine stops for longer than its lease.
fn reads_across_a_pause(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = resource(draw, random);
    let target = Target::Primary(resource);
    let ms = spread(random, 50, 1000);
    draw.fault(at, Fault::Disk { target, resource, fault: DiskFault::Stall { ms } });
    draw.reads(at + 1, ms, resource, 8, random);
    draw.fault(at + ms, Fault::PauseMachine { target, ms: random.between(500, 8000) });
}

/// R10: the node with the slowest clock is cut off, because it believes in its lease for longest.
fn isolate_slowest(draw: &mut Draw, random: &mut Random, at: u64) {
    let slowest = (1..).zip(&draw.shape.clock_ppm).min_by_key(|(_, ppm)| **ppm);
    let target = Target::Node(NodeId(slowest.map_or(1, |(node, _)| node)));
    draw.fault(at, Fault::Isolate(target));
    draw.fault(at + random.between(2000, 6000), Fault::Heal);
}

/// R19: a lease ends while the engine with its guard is not there, and the address cannot be
/// removed at once. This is done only where no other node could take over. Elsewhere the address
/// that is left would be an overlap, which only a watchdog prevents.
fn unguarded_end(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = resource(draw, random);
    let shape = &draw.shape.resources[resource];
    let [only] = shape.replicas[..] else { return };
    if !shape.service {
        return;
    }
    let target = Target::Node(NodeId(only));
    let late = at + random.between(draw.shape.lease_ms / 2, draw.shape.lease_ms * 3 / 4);
    draw.fault(at, Fault::Isolate(target));
    draw.fault(late, Fault::KillEngine { target, restart_after_ms: random.between(1000, 4000) });
    // Several times, because any undo before the end of the lease uses one up.
    for n in 0..8 {
        draw.service(at + draw.shape.lease_ms * (8 + n) / 16, target, resource, ServiceFault::KeepAddress);
    }
    draw.fault(late + random.between(1000, 6000), Fault::Heal);
}

fn leader_change(draw: &mut Draw, _: &mut Random, at: u64) {
    draw.fault(at, Fault::LeaderChange);
}

fn lose_proposals(draw: &mut Draw, _: &mut Random, at: u64) {
    draw.fault(at, Fault::LoseProposals);
}

fn snapshot(draw: &mut Draw, random: &mut Random, at: u64) {
    let target = target(draw, random);
    draw.fault(at, Fault::Snapshot(target));
}

fn service_fault(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = resource(draw, random);
    if !draw.shape.resources[resource].service {
        return;
    }
    let target = if random.coin() {
        Target::Primary(resource)
    } else {
        Target::Node(NodeId(*random.pick(&draw.shape.resources[resource].replicas).unwrap_or(&1)))
    };
    let faults = [
        ServiceFault::IgnoreStop,
        ServiceFault::Hang,
        ServiceFault::FailStart,
        ServiceFault::KeepAddress,
        ServiceFault::Dies,
        ServiceFault::LateInterface,
        ServiceFault::AddressByHand,
        ServiceFault::Unmounted,
        ServiceFault::Replaced,
    ];
    let fault = faults[random.below(faults.len() as u64) as usize];
    draw.service(at, target, resource, fault);
    let well = at + spread(random, 100, 16_000);
    for node in draw.shape.resources[resource].replicas.clone() {
        draw.service(well, Target::Node(NodeId(node)), resource, ServiceFault::Well);
    }
}

/// A check says that pages can tear on the node of the primary, until the files are mended.
fn pages_tear(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = resource(draw, random);
    if !draw.shape.resources[resource].service {
        return;
    }
    draw.service(at, Target::Primary(resource), resource, ServiceFault::PagesTear);
    let well = at + spread(random, 100, 16_000);
    for node in draw.shape.resources[resource].replicas.clone() {
        draw.service(well, Target::Node(NodeId(node)), resource, ServiceFault::Well);
    }
}
