//! Many seeds of crashes, partitions, promotions, shrinks, grows, catch-up and copies at once.
//!
//! To repeat one: `SEED=17 cargo test -p mainstay-replica one_seed -- --nocapture`.

use super::lab::{Lab, VOLUMES, whole};
use crate::Op;
use mainstay_types::simulation::{Bug, plant};
use mainstay_types::{MinCopies, NodeId, Role, SlowLimits};

const ROUNDS: u64 = 120;

/// A quarter of the seeds knows no slow members. Among the others some are quick to find one, and
/// let the last copy be alone.
fn slow_limits(seed: u64) -> SlowLimits {
    let (ack_ms, for_ms) = [(0, 500), (10, 500), (4, 60), (20, 200)][(seed / 3 % 4) as usize];
    let min_copies = 1 + (seed / 7 % 2) as u32;
    SlowLimits { ack_ms, factor: 3, for_ms, min_copies, quiet_ms: 1_500, quiet_max_ms: 3_000 }
}

/// Plays one seed; returns what was found wrong.
fn play(seed: u64) -> Result<u64, String> {
    let mut lab = Lab::with_slow(2 + (seed % 2) as u32, 3 + (seed % 5) as usize, seed, slow_limits(seed));
    lab.rough = true;
    // On some seeds nothing is to be acknowledged by one replica alone.
    if seed % 3 == 1 {
        lab.record.policy.min_copies =
            MinCopies { copies: 2, suspend_ms: [0, 500, 20_000][(seed / 3 % 3) as usize] };
    }
    for _ in 0..ROUNDS {
        trouble(&mut lab);
        for _ in 0..lab.random.below(6) {
            request(&mut lab);
        }
        let ms = 1 + lab.random.below(250);
        lab.run_ms(ms);
        if let Some(wrong) = lab.wrong.take() {
            return Err(wrong);
        }
    }
    lab.rough = false;
    lab.heal();
    for node in lab.nodes.keys().copied().collect::<Vec<_>>() {
        if lab.nodes[&node].replica.is_none() {
            lab.start(node);
        }
        lab.nodes.get_mut(&node).expect("known").disk_ms = 1;
    }
    for _ in 0..40 {
        lab.run_ms(500);
        // An operator who asked for a demotion promotes a replica afterwards.
        let demoted = lab.record.primary.is_none_or(|node| lab.demoted.remove(&node));
        if demoted && lab.serving().is_none() {
            let first = lab.iss()[0];
            lab.promote(first);
        }
        lab.publish();
    }
    if let Some(wrong) = lab.wrong.take() {
        return Err(wrong);
    }
    let Some(primary) = lab.serving() else {
        let statuses: Vec<_> = lab.nodes.keys().map(|node| lab.status(*node)).collect();
        return Err(format!("no node serves in the end: {:?} {statuses:?}", lab.record));
    };
    let id = lab.write(primary, 0, 0);
    lab.run_ms(3000);
    if !lab.done(id) || lab.iss().len() != lab.nodes.len() {
        return Err(format!("not whole in the end: {:?} {:?}", lab.record, lab.status(primary)));
    }
    lab.wrong.take().map_or(Ok(()), Err)?;
    lab.assert_equal();
    Ok(lab.acks)
}

fn any_node(lab: &mut Lab) -> NodeId {
    let n = lab.nodes.len() as u64;
    NodeId(1 + lab.random.below(n) as u32)
}

fn trouble(lab: &mut Lab) {
    let node = any_node(lab);
    let up = lab.nodes[&node].replica.is_some();
    match lab.random.below(41) {
        40 if up => lab.reopen(node),
        0 | 1 => lab.crash(node),
        2..=5 if !up => lab.start(node),
        6 => {
            let other = any_node(lab);
            if other != node {
                lab.cut(node, other);
            }
        }
        7 => lab.isolate(node),
        8 => {
            lab.aside.insert(node);
        }
        9..=13 => lab.heal(),
        14 | 15 if up && lab.record.iss_member(node).is_some() => lab.promote(node),
        16 => lab.nodes.get_mut(&node).expect("known").disk_ms = 1 + lab.random.below(60),
        17 => lab.nodes.get_mut(&node).expect("known").disk_ms = 1400,
        18..=20 => lab.nodes.get_mut(&node).expect("known").disk_ms = 1,
        21..=23 if up => lab.nodes.get_mut(&node).expect("known").store.destage(),
        24 if lab.random.chance(30) => lab.demote(node),
        25 if lab.random.chance(20) && lab.iss().iter().any(|n| *n != node) => lab.replace_disk(node),
        26..=28 if lab.record.primary.is_none() => {
            let iss = lab.iss();
            let pick = lab.random.below(iss.len() as u64) as usize;
            lab.promote(iss[pick]);
        }
        29..=31 => lab.publish(),
        32 | 33 => lab.scrub(node, true),
        34 | 35 => {
            let volume = lab.random.below(u64::from(VOLUMES)) as u16;
            lab.mend(node, volume);
        }
        _ => {}
    }
}

/// Sends a request to a replica that thinks it serves: an old primary must not do harm either.
fn request(lab: &mut Lab) {
    let leaders: Vec<NodeId> = lab
        .nodes
        .iter()
        .filter(|(_, n)| n.replica.as_ref().is_some_and(|r| r.status().role != Role::Secondary))
        .map(|(id, _)| *id)
        .collect();
    if leaders.is_empty() {
        return;
    }
    let pick = lab.random.below(leaders.len() as u64) as usize;
    let volume = lab.random.below(u64::from(VOLUMES)) as u16;
    let block = lab.random.below(2);
    match lab.random.below(10) {
        0..=5 => lab.write(leaders[pick], volume, block),
        6 if lab.random.chance(20) => lab.request(leaders[pick], Op::Discard { range: whole(volume) }),
        7 => lab.request(leaders[pick], Op::Flush),
        _ => lab.read(leaders[pick], volume),
    };
}

/// A number that the person who runs the test gives.
#[allow(clippy::disallowed_methods, reason = "a test is not the core; this is how one repeats a seed")]
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(default: u64) -> u64 {
    given("SEEDS").unwrap_or(default)
}

#[test]
fn nothing_acknowledged_is_lost() {
    /// Says how to repeat, also when an assertion in a replica ended the play.
    struct Repeat(u64);
    impl Drop for Repeat {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("repeat with: SEED={} cargo test -p mainstay-replica one_seed", self.0);
            }
        }
    }
    let mut acks = 0;
    for seed in 0..seeds(400) {
        let _repeat = Repeat(seed);
        acks += play(seed).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    println!("{acks} writes acknowledged");
    assert!(acks > seeds(400) * 5, "only {acks} writes were acknowledged");
}

#[test]
fn one_seed() {
    let Some(seed) = given("SEED") else { return };
    assert!(play(seed).is_ok_and(|acks| acks > 0), "seed {seed}: {:?}", play(seed));
}

/// A bug counts as caught by a fault, by a broken assertion, or by replicas that differ.
fn caught(bug: Bug, seeds: u64) -> Option<(u64, String)> {
    plant(Some(bug));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = (0..seeds).find_map(|seed| match std::panic::catch_unwind(|| play(seed)) {
        Ok(Ok(_)) => None,
        Ok(Err(wrong)) => Some((seed, wrong)),
        Err(_) => Some((seed, "a broken assertion".to_owned())),
    });
    std::panic::set_hook(hook);
    plant(None);
    found
}

#[test]
fn every_planted_bug_is_caught() {
    let bugs = [
        Bug::ShrinkBeforeKnown,
        Bug::GrowBeforeRequired,
        Bug::GiveUpJoin,
        Bug::NoEpochCheck,
        Bug::NoCut,
        Bug::CommitAlone,
        Bug::CopiesNotAwaited,
        Bug::ServeAtOnce,
        Bug::CopyEndsEarly,
        Bug::StaleExtent,
        Bug::AckOnReceipt,
        Bug::PromiseNotAwaited,
        Bug::CommitWithoutDisconnected,
        Bug::GrowBeforeCaughtUp,
        Bug::SameEpochTwice,
        Bug::KeepsServing,
        Bug::EpochStartAlone,
        Bug::DurableIsCommitted,
        Bug::AskOnce,
        Bug::SessionOutlivesReplica,
        Bug::JoinWhileCopied,
        Bug::CopyListsNothing,
        Bug::CopyForgetsBase,
    ];
    let mut missed = Vec::new();
    for bug in bugs {
        match caught(bug, seeds(8000)) {
            Some((seed, wrong)) => println!("{bug:?} is caught by seed {seed}: {wrong:.120}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
