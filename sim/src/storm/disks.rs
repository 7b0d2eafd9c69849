//! Disks that are slow, fail, rot, lie in ways that are noticed, or are replaced.

use super::{any_replica, off_and_on, victim};
use crate::plan::{DiskFault, Fault, Target};
use crate::random::Random;
use crate::swarm::{Draw, spread};
use mainstay_types::NodeId;

pub(super) fn slow_disk(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = any_replica(draw, random);
    draw.disk(at, node, resource, DiskFault::Slow { factor: spread(random, 2, 1000) });
    draw.disk(at + spread(random, 50, 12_000), node, resource, DiskFault::Slow { factor: 1 });
}

pub(super) fn stall_disk(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = any_replica(draw, random);
    draw.disk(at, node, resource, DiskFault::Stall { ms: spread(random, 10, 20_000) });
}

/// Always the same copy of a replica.
pub(super) fn rot_superblock(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = any_replica(draw, random);
    let copy = copy_at_risk(node, resource);
    draw.disk(at, node, resource, DiskFault::RotSuperblock { copy });
    if random.permille(200) {
        off_and_on(draw, random, at + 1, node);
    }
}

/// Adds a lie of the disk about a record of the journal: a lost, misdirected or stale one. As with
/// rot of the journal, the damage shows when the journal is read again.
pub(super) fn journal_lies(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    // There must be something that is still needed.
    draw.writes(at.saturating_sub(100), 100, resource, random.between(4, 24), random.between(1, 4), random);
    let pick = random.next();
    let fault = match random.below(3) {
        0 => DiskFault::LostRecord { pick },
        1 => DiskFault::MisdirectedRecord { pick },
        _ => DiskFault::StaleRecord { pick },
    };
    draw.disk(at, node, resource, fault);
    if random.permille(600) {
        let (target, shows) = (Target::Node(node), at + 1 + random.below(500));
        match random.below(3) {
            0 => draw.fault(shows, Fault::KillEngine { target, restart_after_ms: random.below(1000) }),
            _ => off_and_on(draw, random, shows, node),
        }
    }
    if random.coin() {
        draw.disk(at + spread(random, 500, 16_000), node, resource, DiskFault::Replace);
    }
}

/// Adds a lie of the disk about a page of the version table. The page must have been written not
/// long ago, because the disk remembers the older content of such pages only.
pub(super) fn versions_lie(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.writes(at.saturating_sub(100), 100, resource, random.between(4, 24), random.between(1, 4), random);
    let pick = random.next();
    let fault = match random.below(3) {
        0 => DiskFault::LostVersions { pick },
        1 => DiskFault::MisdirectedVersions { pick },
        _ => DiskFault::StaleVersions { pick },
    };
    draw.disk(at, node, resource, fault);
    // The replica does not read the page before it is opened again.
    if random.permille(800) {
        let (target, shows) = (Target::Node(node), at + 1 + random.below(50));
        match random.below(3) {
            0 => draw.fault(shows, Fault::KillEngine { target, restart_after_ms: random.below(1000) }),
            _ => off_and_on(draw, random, shows, node),
        }
    }
    if random.coin() {
        draw.disk(at + spread(random, 500, 16_000), node, resource, DiskFault::Replace);
    }
}

/// Adds rot or a lost write of a block of a volume. The damage shows when the block is read: by a
/// client, by a copy from this replica, or by a comparison of replicas.
pub(super) fn volume_rots(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.writes(at.saturating_sub(100), 100, resource, random.between(4, 24), random.between(1, 4), random);
    let pick = random.next();
    let fault = if random.coin() { DiskFault::RotVolume { pick } } else { DiskFault::LostBlock { pick } };
    draw.disk(at, node, resource, fault);
    if random.permille(300) {
        let off = at + 1 + random.below(50);
        off_and_on(draw, random, off, node);
    }
    if random.coin() {
        draw.disk(at + spread(random, 500, 16_000), node, resource, DiskFault::Replace);
    }
}

/// The same copy of a replica as the one that rots.
pub(super) fn lose_superblock(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = any_replica(draw, random);
    draw.disk(at, node, resource, DiskFault::LostSuperblock { copy: copy_at_risk(node, resource) });
    if random.permille(400) {
        let off = at + 1 + random.below(50);
        off_and_on(draw, random, off, node);
    }
}

/// The copy of the superblock of a replica that may be damaged.
fn copy_at_risk(node: NodeId, resource: usize) -> u64 {
    (u64::from(node.0) * 7 + resource as u64 * 3) % 4
}

pub(super) fn disk_error(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    let fault =
        [DiskFault::WriteError, DiskFault::FlushError, DiskFault::ReadError][random.below(3) as usize];
    draw.disk(at, node, resource, fault);
    if random.coin() {
        draw.disk(at + spread(random, 500, 16_000), node, resource, DiskFault::Replace);
    }
}

pub(super) fn vanish(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.disk(at, node, resource, DiskFault::Vanish);
    if random.permille(700) {
        draw.disk(at + spread(random, 100, 16_000), node, resource, DiskFault::Replace);
    }
}

pub(super) fn disk_full(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.disk(at, node, resource, DiskFault::ReadOnly);
    if random.permille(700) {
        draw.disk(at + spread(random, 100, 16_000), node, resource, DiskFault::Replace);
    }
}

/// Fills the pool for a while. At times this lasts until a journal is full, or until a primary
/// gives up.
pub(super) fn pool_full(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.disk(at, node, resource, DiskFault::Full);
    draw.disk(at + spread(random, 500, 20_000), node, resource, DiskFault::Room);
}

pub(super) fn rot(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    let pick = random.next();
    let fault = match random.below(4) {
        0 => DiskFault::RotSuperblocks,
        1 => DiskFault::RotVersions { pick },
        _ => DiskFault::RotJournal { pick },
    };
    draw.disk(at, node, resource, fault);
    // The damage shows when the disk is read again.
    if random.permille(700) {
        let target = Target::Node(node);
        match random.below(3) {
            0 => draw.fault(at + 1, Fault::KillEngine { target, restart_after_ms: random.below(1000) }),
            _ => off_and_on(draw, random, at + 1, node),
        }
    }
    if random.coin() {
        draw.disk(at + spread(random, 500, 16_000), node, resource, DiskFault::Replace);
    }
}

pub(super) fn replace(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.disk(at, node, resource, DiskFault::Replace);
}

pub(super) fn remove_files(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.disk(at, node, resource, DiskFault::Remove);
}

/// Replaces a file by a copy of it, under load, or while clients do not write.
pub(super) fn copy_file(draw: &mut Draw, random: &mut Random, at: u64) {
    let (node, resource) = any_replica(draw, random);
    draw.disk(at, node, resource, DiskFault::Copied);
    if random.coin() {
        draw.writes(at, 1_000, resource, random.between(4, 40), random.between(1, 4), random);
    }
}

/// The victim is copied to from the beginning, on slow disks, and the copy is cut short several
/// times.
pub(super) fn interrupt_copies(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    let (target, primary) = (Target::Node(node), Target::Primary(resource));
    draw.disk(at, node, resource, DiskFault::Replace);
    let mut at = at + random.between(200, 2000);
    let end = at + spread(random, 2000, 16_000);
    let gap = spread(random, 20, 2000);
    // Faults of the pace belong to the disk, so they come after the new disk.
    for replica in draw.shape.resources[resource].replicas.clone() {
        if random.coin() {
            let factor = spread(random, 2, 100);
            draw.disk(at, NodeId(replica), resource, DiskFault::Slow { factor });
            draw.disk(end, NodeId(replica), resource, DiskFault::Slow { factor: 1 });
        }
    }
    let kinds: Vec<u64> = (0..random.between(1, 3)).map(|_| random.below(5)).collect();
    while at < end {
        match random.pick(&kinds).copied().unwrap_or_default() {
            0 => draw.fault(at, Fault::Reset(primary, target)),
            1 => draw.fault(at, Fault::CorruptFrame(primary, target)),
            2 => draw.fault(at, Fault::KillEngine { target, restart_after_ms: 0 }),
            3 => {
                draw.fault(at, Fault::PowerCut(target));
                draw.fault(at + 1, Fault::PowerOn(target));
            }
            _ => draw.fault(at, Fault::KillEngine { target: primary, restart_after_ms: 0 }),
        }
        at += random.around(gap).max(1);
    }
}

/// R9: the node comes back with an empty disk, and cannot tell the control plane for a while.
pub(super) fn replace_unseen(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some((node, resource)) = victim(draw, random) else { return };
    draw.disk(at, node, resource, DiskFault::Replace);
    let cut_at = at + random.below(100);
    for other in (1..=draw.shape.nodes).map(NodeId).filter(|other| *other != node) {
        draw.fault(cut_at, Fault::CutAgents(Target::Node(node), Target::Node(other)));
    }
    draw.fault(cut_at + spread(random, 500, 8000), Fault::Heal);
}
