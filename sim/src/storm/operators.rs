//! Acts of operators during the storm of faults.

use crate::plan::{Deed, Fault, Moment, Operator, Proposed, Rests, ServiceFault, Side, Target, Tie};
use crate::random::Random;
use crate::swarm::{Draw, spread};
use mainstay_types::ScrubRepair;

fn with_service(draw: &Draw, random: &mut Random) -> Option<usize> {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    draw.shape.resources[resource].service.then_some(resource)
}

/// Moves a service, or the primary of a resource that has none.
pub(super) fn move_service(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let pick = if draw.shape.resources[resource].service { random.below(4) } else { at % 4 };
    draw.operator(at, Operator::Move { resource, pick });
}

pub(super) fn apply_service(draw: &mut Draw, random: &mut Random, at: u64) {
    if let Some(resource) = with_service(draw, random) {
        let prefer = random.coin().then(|| random.below(4));
        draw.operator(at, Operator::ApplyService { resource, prefer });
    }
}

/// Deletes a service, and applies it again after a while in most cases.
pub(super) fn delete_service(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some(resource) = with_service(draw, random) else { return };
    draw.operator(at, Operator::DeleteService { resource });
    if random.permille(700) {
        let again = at + spread(random, 1, 16_000);
        draw.operator(again, Operator::ApplyService { resource, prefer: None });
    }
}

/// Stops a service, and starts it after a while in most cases. Now and then one of these comes
/// late, or a process dies at that moment.
pub(super) fn stop_service(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some(resource) = with_service(draw, random) else { return };
    draw.operator(at, Operator::StopService { resource });
    let again = at + spread(random, 1, 16_000);
    if random.permille(700) {
        draw.operator(again, Operator::StartService { resource });
    }
    if random.permille(300) {
        let (at, what) = match random.coin() {
            true => (at, Proposed::StopService),
            false => (again, Proposed::StartService),
        };
        draw.fault(at, at_proposal(random, resource, what));
    }
}

/// Begins a maintenance, and ends it after a while in most cases. An agent or a process of the
/// service dies meanwhile, or the operator moves the service.
pub(super) fn maintain(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some(resource) = with_service(draw, random) else { return };
    let rests = [Rests::Service, Rests::Node, Rests::Cluster][random.below(3) as usize];
    let for_ms = if random.coin() { spread(random, 1000, 16_000) } else { 0 };
    draw.operator(at, Operator::Maintain { resource, rests, for_ms });
    let during = at + spread(random, 1, 4000);
    match random.below(4) {
        0 => draw.fault(during, at_proposal(random, resource, Proposed::SetMaintenance)),
        1 => draw.operator(during, Operator::Move { resource, pick: random.below(4) }),
        2 => {
            let target = Target::Primary(resource);
            draw.fault(during, Fault::Service { target, resource, fault: ServiceFault::Dies });
        }
        _ => {
            let target = Target::Primary(resource);
            draw.fault(during, Fault::KillAgent { target, restart_after_ms: spread(random, 1, 4000) });
        }
    }
    if for_ms == 0 && random.permille(800) {
        draw.operator(at + spread(random, 1000, 20_000), Operator::EndMaintenance { resource });
    }
}

/// Cordons or drains a node, and opens it after a while.
pub(super) fn cordon(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    draw.operator(at, Operator::Cordon { resource, drain: random.coin() });
    draw.operator(at + spread(random, 500, 16_000), Operator::Uncordon { resource });
}

/// Ties a service to another one, and has it applied without that later.
pub(super) fn tie(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some(resource) = with_service(draw, random) else { return };
    let Some(other) = with_service(draw, random).filter(|other| *other != resource) else { return };
    let tie = [Tie::After, Tie::With, Tie::Apart][random.below(3) as usize];
    draw.operator(at, Operator::Tie { resource, other, tie });
    if random.permille(600) {
        let again = at + spread(random, 1000, 20_000);
        draw.operator(again, Operator::ApplyService { resource, prefer: None });
    }
}

/// Restarts a service, at times twice in a row. Now and then a process dies at that moment.
pub(super) fn restart_service(draw: &mut Draw, random: &mut Random, at: u64) {
    let Some(resource) = with_service(draw, random) else { return };
    draw.operator(at, Operator::RestartService { resource, last: random.coin() });
    if random.permille(300) {
        let again = at + spread(random, 1, 4000);
        draw.operator(again, Operator::RestartService { resource, last: random.coin() });
    }
    if random.permille(400) {
        let what = if random.coin() { Proposed::RestartService } else { Proposed::ServiceRestarted };
        draw.fault(at, at_proposal(random, resource, what));
    }
}

/// A trap at a proposal: it comes late, or a process or a node dies.
fn at_proposal(random: &mut Random, resource: usize, what: Proposed) -> Fault {
    let whom = if random.coin() { Side::Actor } else { Side::Peer };
    let deed = match random.below(4) {
        0 => Deed::Late { ms: spread(random, 100, 5000) },
        1 => Deed::KillAgent { whom, restart_after_ms: spread(random, 1, 3000) },
        2 => Deed::KillEngine { whom, restart_after_ms: spread(random, 1, 3000) },
        _ => Deed::PowerCut { whom, on_after_ms: spread(random, 1, 5000) },
    };
    Fault::Trap { resource, moment: Moment::Propose(what), skip: 0, deed }
}

/// Deletes a resource. It is never the first one, so that there is something to look at until the
/// end.
pub(super) fn delete_resource(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    if resource > 0 && !draw.shape.resources[resource].late {
        draw.operator(at, Operator::DeleteResource { resource });
    }
}

pub(super) fn digest(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let hold_ms = spread(random, 10, 20_000);
    draw.operator(at, Operator::Digest { resource, hold_ms });
}

/// Scrubs, at times slowly, at times ended early, at times with a fault on the way.
pub(super) fn scrub(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let rate = if random.coin() { 0 } else { spread(random, 64 << 10, 8 << 20) };
    draw.operator(at, Operator::Scrub { resource, repair: random.coin(), rate });
    match random.below(4) {
        0 => draw.operator(at + spread(random, 1, 2000), Operator::StopScrub { resource }),
        1 => {
            let target = Target::Primary(resource);
            let restart_after_ms = random.below(1000);
            draw.fault(at + spread(random, 1, 500), Fault::KillEngine { target, restart_after_ms });
        }
        _ => draw.writes(at, 300, resource, random.between(4, 40), random.between(1, 4), random),
    }
}

/// Schedules scrubs so often that some are due in the run. Then a process dies, or a proposal is
/// late, just as a scrub begins or ends.
pub(super) fn schedule_scrubs(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let interval_ms = if random.permille(100) { 0 } else { spread(random, 1000, 20_000) };
    let repair = [ScrubRepair::Off, ScrubRepair::Proven, ScrubRepair::All][random.below(3) as usize];
    draw.operator(at, Operator::SetScrub { resource, interval_ms, repair });
    for _ in 0..random.below(3) {
        let whom = if random.coin() { Side::Actor } else { Side::Peer };
        let deed = match random.below(5) {
            0 | 1 => Deed::Late { ms: spread(random, 100, 5000) },
            2 => Deed::KillAgent { whom, restart_after_ms: spread(random, 1, 3000) },
            3 => Deed::KillEngine { whom, restart_after_ms: spread(random, 1, 3000) },
            _ => Deed::PowerCut { whom, on_after_ms: spread(random, 1, 5000) },
        };
        let moment = Moment::Propose(match random.below(8) {
            0 => Proposed::SetScrub,
            1..=4 => Proposed::BeginScrub,
            _ => Proposed::ScrubEnded,
        });
        draw.fault(at, Fault::Trap { resource, moment, skip: random.below(3), deed });
    }
}

/// Asks for more than one copy, or for one again. Now and then that comes late, or a process dies
/// at that moment.
pub(super) fn want_copies(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let replicas = draw.shape.resources[resource].replicas.len() as u64;
    let copies = if random.permille(200) { 1 } else { random.between(1, replicas.min(3)) as u32 };
    let suspend_ms = [0, spread(random, 100, 5_000), 20_000][random.below(3) as usize];
    draw.operator(at, Operator::MinCopies { resource, copies, suspend_ms });
    if random.permille(300) {
        let whom = if random.coin() { Side::Actor } else { Side::Peer };
        let deed = match random.below(3) {
            0 => Deed::Late { ms: spread(random, 100, 5000) },
            1 => Deed::KillAgent { whom, restart_after_ms: spread(random, 1, 3000) },
            _ => Deed::PowerCut { whom, on_after_ms: spread(random, 1, 5000) },
        };
        let moment = Moment::Propose(Proposed::SetMinCopies);
        draw.fault(at, Fault::Trap { resource, moment, skip: 0, deed });
    }
}

pub(super) fn join_again(draw: &mut Draw, random: &mut Random, at: u64) {
    draw.operator(at, Operator::JoinAgain { pick: random.below(64) });
}

/// Replicas come, go and move, some before the last change is through.
pub(super) fn move_replicas(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    if !draw.shape.resources[resource].moves {
        return;
    }
    let mut at = at;
    for _ in 0..random.between(1, 3) {
        let operator = match random.below(4) {
            0 => Operator::AddReplica { resource, pick: random.below(64) },
            1 => Operator::RemoveReplica { resource, pick: random.below(64) },
            _ => Operator::MoveReplica { resource, from: random.below(64), to: random.below(64) },
        };
        draw.operator(at, operator);
        at += spread(random, 1, 8000);
    }
}

/// Grows a volume at once, or in steps.
pub(super) fn grow(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let shape = &draw.shape.resources[resource];
    let volume = random.below(shape.volumes.len() as u64);
    let (first, last) = (shape.volumes[volume as usize], shape.grown[volume as usize]);
    if first < last {
        let blocks = if random.coin() { last } else { random.between(first + 1, last) };
        draw.operator(at, Operator::Grow { resource, volume: volume as u16, blocks });
    }
}

/// Takes a few snapshots in a row, and deletes some of them at once.
pub(super) fn snapshots(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let mut at = at;
    for _ in 0..random.between(1, 4) {
        let drop = random.permille(350).then(|| random.below(8));
        draw.operator(at, Operator::Snapshot { resource, drop });
        at += spread(random, 1, 2000);
    }
}

/// Takes a snapshot and rolls back to it, or to another one, while clients write.
pub(super) fn roll_back(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let mut at = at;
    for _ in 0..random.between(1, 2) {
        draw.operator(at, Operator::Snapshot { resource, drop: None });
    }
    for _ in 0..random.between(1, 3) {
        at += spread(random, 200, 6000);
        draw.operator(
            at,
            Operator::RollBack { resource, pick: random.below(8), keep: random.coin(), restart: true },
        );
        if random.permille(300) {
            draw.operator(
                at + spread(random, 1, 2000),
                Operator::Snapshot { resource, drop: Some(random.below(8)) },
            );
        }
    }
}

/// Adds an act that is refused while a service runs on the resource: a rollback that does not
/// mention the service, or an attachment.
pub(super) fn forget_the_service(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let shape = &draw.shape.resources[resource];
    let attaches = !shape.modes && (shape.replicas.len() as u32) < draw.shape.nodes;
    if !shape.service {
        return;
    }
    if attaches && random.coin() {
        let (pick, take_over) = (random.below(64), random.coin());
        draw.operator(at, Operator::Attach { resource, pick, wait_ms: 5_000, take_over });
        return;
    }
    draw.operator(at, Operator::Snapshot { resource, drop: None });
    let at = at + spread(random, 200, 6000);
    let (pick, keep) = (random.below(8), random.coin());
    draw.operator(at, Operator::RollBack { resource, pick, keep, restart: false });
}

/// A node without a replica has the devices for a while. Then another one has them, or the primary.
/// Now and then that happens just as something is to be recorded.
pub(super) fn attach(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    let shape = &draw.shape.resources[resource];
    // After a forced promotion a client asks again for writes that the promotion has taken back.
    // The registers do not model that.
    if shape.service || shape.modes || shape.replicas.len() as u32 == draw.shape.nodes {
        return;
    }
    let mut at = at;
    for _ in 0..random.between(1, 4) {
        let wait_ms = [1_000, 5_000, 60_000, 60_000][random.below(4) as usize];
        let (pick, take_over) = (random.below(64), random.permille(700));
        draw.operator(at, Operator::Attach { resource, pick, wait_ms, take_over });
        if random.permille(300) {
            let whom = if random.coin() { Side::Actor } else { Side::Peer };
            let deed = match random.below(3) {
                0 => Deed::Late { ms: random.between(100, 5_000) },
                1 => Deed::KillEngine { whom, restart_after_ms: random.below(500) },
                _ => Deed::KillAgent { whom, restart_after_ms: random.below(500) },
            };
            let moment = Moment::Propose(match random.below(6) {
                0 => Proposed::AttachResource,
                1 => Proposed::DetachResource,
                _ => Proposed::ClaimAttachment,
            });
            draw.fault(at, Fault::Trap { resource, moment, skip: random.below(2), deed });
        }
        at += spread(random, 500, 16_000);
        if random.permille(200) {
            draw.operator(at, Operator::Detach { resource });
            at += spread(random, 1, 4_000);
        }
    }
}

/// Followers may lag by half the journal at most.
pub(super) fn mode_a(draw: &Draw, random: &mut Random, resource: usize) -> Operator {
    let blocks = random.between(16, draw.shape.resources[resource].journal_blocks / 2);
    Operator::SetMode { resource, a: Some((blocks, spread(random, 100, 10_000), random.coin())) }
}

/// Changes the mode to any of the three. Now and then a promotion is forced instead: the operator
/// gives up replicas that have everything, although they may come back in a moment.
pub(super) fn change_mode(draw: &mut Draw, random: &mut Random, at: u64) {
    let resource = random.below(draw.shape.resources.len() as u64) as usize;
    if !draw.shape.resources[resource].modes {
        return;
    }
    let operator = match random.below(8) {
        0 | 1 => Operator::SetMode { resource, a: None },
        2 => Operator::Force { resource, pick: random.below(64) },
        3..=5 => Operator::ModeB { resource },
        _ => mode_a(draw, random, resource),
    };
    draw.operator(at, operator);
}
