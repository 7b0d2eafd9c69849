//! Faults that wait for their moment. Each brings about a situation between two steps of a
//! protocol, and strikes in the middle of it. A fault at a random time hits such a moment once in
//! thousands of runs.

use super::victim;
use crate::plan::{
    Action, ClientOp, Deed, DiskFault, DiskOp, Fault, Moment, Operator, Proposed, Side, Target,
};
use crate::random::Random;
use crate::swarm::{Draw, spread};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, NodeId};

const EXTENT_BLOCKS: u64 = EXTENT_BYTES / BLOCK_BYTES;

fn trap(draw: &mut Draw, at: u64, resource: usize, moment: Moment, deed: Deed) {
    trap_after(draw, at, resource, moment, 0, deed);
}

fn trap_after(draw: &mut Draw, at: u64, resource: usize, moment: Moment, skip: u64, deed: Deed) {
    draw.fault(at, Fault::Trap { resource, moment, skip, deed });
}

fn some_resource(draw: &Draw, random: &mut Random) -> usize {
    random.below(draw.shape.resources.len() as u64) as usize
}

/// A resource that is copied when its victim gets a new disk, and the victim.
fn copied(draw: &Draw, random: &mut Random) -> Option<(NodeId, usize)> {
    victim(draw, random)
}

/// R4: a member is proposed, and the proposal is under way for seconds. Meanwhile the joiner goes.
/// The primary must remember that it may still be recorded, and its removal must make the old
/// proposal void.
pub(super) fn join_in_doubt(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let ms = random.between(800, 8000);
    trap(draw, at, resource, Moment::Grow, Deed::Late { ms });
    let gone_ms = random.between(ms / 2, ms + 2000);
    let deed = match random.below(3) {
        0 => Deed::PowerCut { whom: Side::Peer, on_after_ms: gone_ms },
        _ => Deed::KillEngine { whom: Side::Peer, restart_after_ms: gone_ms },
    };
    trap(draw, at, resource, Moment::Grow, deed);
    // A secondary loses its engine, so that a member leaves and joins again.
    let target = Target::Secondary(resource, random.below(4));
    draw.fault(at + 1, Fault::KillEngine { target, restart_after_ms: random.between(600, 2000) });
}

/// F46, F47: a change of a record is late. Or its proposer, the node that it names, or the leader
/// goes away in the middle of it.
pub(super) fn change_in_doubt(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let moment = [Moment::Grow, Moment::Shrink, Moment::Promote, Moment::StepDown][random.below(4) as usize];
    for _ in 0..random.between(1, 2) {
        let whom = if random.coin() { Side::Actor } else { Side::Peer };
        let deed = match random.below(5) {
            0 | 1 => Deed::Late { ms: spread(random, 100, 8000) },
            2 => Deed::LeaderChange,
            3 => Deed::KillEngine { whom, restart_after_ms: spread(random, 1, 8000) },
            _ => Deed::PowerCut { whom, on_after_ms: spread(random, 1, 8000) },
        };
        trap_after(draw, at, resource, moment, random.below(3), deed);
    }
}

/// F46, F47: as `change_in_doubt`, at any other command that a node or an operator proposes.
pub(super) fn proposal_in_doubt(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let Some(&what) = random.pick(&Proposed::ALL) else { return };
    for _ in 0..random.between(1, 3) {
        let whom = if random.coin() { Side::Actor } else { Side::Peer };
        let deed = match random.below(6) {
            0 | 1 => Deed::Late { ms: spread(random, 100, 8000) },
            2 => Deed::LeaderChange,
            3 => Deed::KillAgent { whom, restart_after_ms: spread(random, 1, 8000) },
            4 => Deed::KillEngine { whom, restart_after_ms: spread(random, 1, 8000) },
            _ => Deed::PowerCut { whom, on_after_ms: spread(random, 1, 8000) },
        };
        trap_after(draw, at, resource, Moment::Propose(what), random.below(3), deed);
    }
}

/// R5: a promotion is under way for seconds, and its proposer dies meanwhile, after it had been
/// dead before. The death of a lone replica's node changes nothing in the record. So only the node
/// being dead stands against the promotion.
pub(super) fn promotion_in_doubt(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let replicas = draw.shape.resources[resource].replicas.clone();
    let dead_ms = 2 * draw.shape.lease_ms + 2000;
    let back = at + dead_ms + random.below(1000);
    for replica in replicas {
        let target = Target::Node(NodeId(replica));
        draw.fault(at + random.below(100), Fault::PowerCut(target));
        draw.fault(back + random.below(500), Fault::PowerOn(target));
    }
    let ms = dead_ms + random.between(0, 4000);
    trap(draw, back - 1, resource, Moment::Promote, Deed::Late { ms });
    let on_after_ms = random.between(dead_ms, 2 * dead_ms);
    trap(draw, back - 1, resource, Moment::Promote, Deed::PowerCut { whom: Side::Actor, on_after_ms });
}

/// R16: a copy under load in which one operation is so late that everything else overtakes it.
pub(super) fn copy_in_disorder(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = copied(draw, random) else { return };
    let (whose, what) = match random.below(4) {
        // The content of an extent is old when it comes, because later writes have overtaken it.
        0 => (Side::Peer, DiskOp::Read),
        // The log of the target is shorter than the entries that it was sent.
        1 => (Side::Peer, DiskOp::JournalWrite),
        // An extent is being written while newer entries are destaged, or the other way round.
        _ => (Side::Peer, DiskOp::VolumeWrite),
    };
    let ms = spread(random, 50, 4000);
    let moment = match what {
        DiskOp::VolumeWrite => Moment::CopyExtent,
        DiskOp::Read => Moment::CopyBegun,
        _ => Moment::CopyBegin,
    };
    for _ in 0..random.between(1, 3) {
        let skip = if moment == Moment::CopyExtent { random.below(4) } else { 0 };
        trap_after(draw, at, resource, moment, skip, Deed::LateDisk { whose, what, ms });
    }
    draw.disk(at + 1, node, resource, DiskFault::Replace);
    // A few writes at a time for the whole copy, because a copy holds no uncommitted write.
    let blocks = random.between(1, 4);
    let count = random.between(40, 160);
    draw.writes(at + 100, ms + 3000, resource, count, blocks, random);
}

/// R16: a copy starts over while an extent is still being read for the earlier copy. Both want the
/// same extent.
pub(super) fn copy_over_again(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = copied(draw, random) else { return };
    let first_ms = random.between(400, 1200);
    // Clients read too, and an extent is read in several parts. There are enough late reads for all
    // of them.
    for _ in 0..random.between(2, 6) {
        for (skip, ms) in [(0, first_ms), (1, first_ms + random.between(300, 1500))] {
            let late = Deed::LateDisk { whose: Side::Peer, what: DiskOp::Read, ms };
            trap_after(draw, at, resource, Moment::CopyBegun, skip, late);
        }
    }
    trap(draw, at, resource, Moment::CopyExtent, Deed::Reset);
    draw.disk(at + 1, node, resource, DiskFault::Replace);
    let primary = Target::Primary(resource);
    // If all extents are late, none is sent. Then one of these resets makes the copy start over.
    let pause = random.between(50, first_ms / 2);
    for n in 1..8 {
        draw.fault(at + 200 + n * pause, Fault::Reset(primary, Target::Node(node)));
    }
    // The first extents are the first to be copied.
    let last = draw.shape.resources[resource].volumes[0].min(EXTENT_BLOCKS) - 1;
    for _ in 0..random.between(20, 120) {
        let op = ClientOp::Write { volume: 0, block: random.between(0, last), blocks: 1 };
        draw.add(at + 100 + random.below(3000), Action::Client { resource, op });
    }
}

/// R7, R12: the power goes when a tail has just been cut, before anything was written in its place.
pub(super) fn cut_and_gone(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let deed = |random: &mut Random| {
        if random.coin() {
            Deed::PowerCut { whom: Side::Actor, on_after_ms: random.between(1, 1000) }
        } else {
            Deed::KillEngine { whom: Side::Actor, restart_after_ms: random.between(0, 1000) }
        }
    };
    let first = deed(random);
    trap(draw, at, resource, Moment::CutReply, first);
    if random.coin() {
        let second = deed(random);
        trap_after(draw, at, resource, Moment::CutReply, 1, second);
    }
    // A primary without connections makes writes that no secondary receives, and dies.
    let target = Target::Primary(resource);
    draw.writes(at, 300, resource, random.between(8, 24), random.between(1, 4), random);
    for other in 0..4 {
        draw.fault(at + 100, Fault::CutEngines(target, Target::Secondary(resource, other)));
    }
    draw.fault(at + random.between(110, 300), Fault::PowerCut(target));
    let on = at + random.between(4000, 9000);
    draw.fault(on, Fault::Heal);
    draw.fault(on, Fault::PowerOnAll);
}

/// R18: a replica takes entries as fast as before, and does not get them out of its journal.
pub(super) fn journal_fills(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let what = if random.coin() { DiskOp::VolumeWrite } else { DiskOp::MetaWrite };
    let ms = spread(random, 100, 3000);
    for replica in draw.shape.resources[resource].replicas.clone() {
        if random.coin() {
            draw.disk(at, NodeId(replica), resource, DiskFault::Late { what, ms });
            draw.disk(at, NodeId(replica), resource, DiskFault::Late { what: DiskOp::VolumeWrite, ms });
        }
    }
    let blocks = random.between(1, 4);
    let room = draw.shape.resources[resource].journal_blocks * 2 / blocks;
    draw.writes(at, ms, resource, room, blocks, random);
    if random.coin() {
        let target = Target::Primary(resource);
        draw.fault(at + ms / 2, Fault::KillEngine { target, restart_after_ms: random.below(500) });
    }
}

/// R14: reads of payloads from the journal take until later writes have reused their places.
pub(super) fn reads_overtaken(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let shape = &draw.shape.resources[resource];
    let (room, size) = (shape.journal_blocks * 2, shape.volumes[0]);
    let first = random.below(size.saturating_sub(8).max(1));
    let ms = spread(random, 200, 4000);
    let target = Target::Primary(resource);
    for n in 0..8 {
        let block = (first + n).min(size - 1);
        let write = ClientOp::Write { volume: 0, block, blocks: 1 };
        draw.add(at, Action::Client { resource, op: write });
        let late = DiskFault::Late { what: DiskOp::Read, ms };
        let read_at = at + random.between(5, 60);
        draw.fault(read_at, Fault::Disk { target, resource, fault: late });
        let read = ClientOp::Read { volume: 0, block, blocks: 1 };
        draw.add(read_at, Action::Client { resource, op: read });
    }
    draw.writes(at + 60, ms, resource, room, 1, random);
}

/// An extent is read late for a scrub. Meanwhile clients write enough that its blocks are to be
/// destaged.
pub(super) fn scrub_overtaken(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    let room = draw.shape.resources[resource].journal_blocks * 2;
    let ms = spread(random, 200, 3000);
    let target = match random.coin() {
        true => Target::Primary(resource),
        false => Target::Secondary(resource, random.next()),
    };
    draw.operator(at, Operator::Scrub { resource, repair: random.coin(), rate: 0 });
    for _ in 0..random.between(2, 8) {
        let late = DiskFault::Late { what: DiskOp::Read, ms };
        draw.fault(at, Fault::Disk { target, resource, fault: late });
    }
    draw.writes(at + random.below(20), ms, resource, room, 1, random);
}

/// F14: single operations are late, and others overtake them.
pub(super) fn late_operations(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = super::any_replica(draw, random);
    let what = [DiskOp::Read, DiskOp::JournalWrite, DiskOp::VolumeWrite, DiskOp::MetaWrite, DiskOp::Flush]
        [random.below(5) as usize];
    for _ in 0..random.between(1, 4) {
        draw.disk(at, node, resource, DiskFault::Late { what, ms: spread(random, 5, 5000) });
    }
    if what == DiskOp::Read {
        draw.reads(at + 1, 100, resource, 8, random);
    }
}

/// R11: in mode A the primary goes away with entries that its followers lack, and an operator goes
/// on without it. It comes back after a power cut, or from a pause in the middle of its work.
pub(super) fn primary_given_up(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    if !draw.shape.resources[resource].modes {
        return;
    }
    let operator = super::operators::mode_a(draw, random, resource);
    draw.operator(at, operator);
    let (primary, gone_at) = (Target::Primary(resource), at + random.between(300, 2000));
    draw.writes(at, 2500, resource, random.between(16, 64), random.between(1, 4), random);
    if random.coin() {
        for other in 0..4 {
            draw.fault(
                gone_at - random.below(200),
                Fault::CutEngines(primary, Target::Secondary(resource, other)),
            );
        }
    }
    let dead_ms = 2 * draw.shape.lease_ms + random.between(1000, 6000);
    if random.permille(700) {
        draw.fault(gone_at, Fault::PowerCut(primary));
    } else {
        let late = DiskFault::Late { what: DiskOp::JournalWrite, ms: random.between(1, 50) };
        draw.fault(gone_at, Fault::Disk { target: primary, resource, fault: late });
        draw.writes(gone_at, 2, resource, 4, 1, random);
        draw.fault(gone_at + 3, Fault::PauseMachine { target: primary, ms: dead_ms });
    }
    draw.operator(gone_at + random.below(dead_ms), Operator::Force { resource, pick: random.below(64) });
    draw.writes(gone_at + 2000, 4000, resource, random.between(4, 32), 1, random);
    let on = gone_at + dead_ms;
    draw.fault(on, Fault::Heal);
    draw.fault(on, Fault::PowerOnAll);
}

/// R5: in mode B members lose what they have only in memory, in the middle of writes and flushes.
/// It hits one, the primary, all, or one after the other, by the end of the engine or of the
/// machine's power. Journals are slow, so that there is something to lose. Now and then the mode
/// changes on the way.
pub(super) fn memory_lost(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = some_resource(draw, random);
    if !draw.shape.resources[resource].modes {
        return;
    }
    draw.operator(at, Operator::ModeB { resource });
    let (gone_at, room) = (at + random.between(400, 2500), random.between(4, 64));
    draw.writes(at, 4000, resource, room, random.between(1, 4), random);
    for _ in 0..random.between(2, 12) {
        draw.flush(at + random.below(4000), resource);
    }
    let primary = Target::Primary(resource);
    let any = |n: u64| if n == 0 { primary } else { Target::Secondary(resource, n - 1) };
    if random.permille(600) {
        for n in 0..random.between(1, 4) {
            let late = DiskFault::Late { what: DiskOp::JournalWrite, ms: random.between(1, 200) };
            let before = gone_at - random.below(50);
            draw.fault(before, Fault::Disk { target: any(n), resource, fault: late });
        }
    }
    if random.permille(200) {
        draw.operator(gone_at - random.below(200), Operator::SetMode { resource, a: None });
    }
    let apart_ms = if random.coin() { 1 } else { spread(random, 1, 2000) };
    let first = random.below(2);
    let mut when = gone_at;
    for n in first..first + random.between(1, 4) {
        let fault = match random.below(3) {
            0 => Fault::PowerCut(any(n)),
            _ => Fault::KillEngine { target: any(n), restart_after_ms: spread(random, 1, 2000) },
        };
        draw.fault(when, fault);
        when += random.below(apart_ms.max(1));
    }
    let on = when + random.between(100, 6000);
    draw.fault(on, Fault::Heal);
    draw.fault(on, Fault::PowerOnAll);
    draw.writes(on, 2000, resource, room, 1, random);
}
