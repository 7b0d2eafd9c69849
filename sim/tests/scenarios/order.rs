//! Several volumes have one write order: a database and its log may lie on two volumes of one
//! resource.

use mainstay_sim::plan::{ClientOp, Fault};
use mainstay_sim::random::Random;
use mainstay_sim::scenario::Scenario;
use mainstay_types::NodeId;

const BLOCK: u64 = 11;
/// Number of power cuts while dependent writes are under way.
const CUTS: u64 = 1_000;
const CUTS_OF_A_CLUSTER: u64 = 20;

/// Writes to the two volumes in turn for `us` microseconds, each time after the write before was
/// acknowledged. Returns the writes in their order, and how many of them were acknowledged.
fn depend(sim: &mut Scenario, primary: u32, us: u64) -> (Vec<u64>, usize) {
    let (mut writes, mut acknowledged) = (Vec::new(), 0);
    let end = sim.world.now_us() + us;
    while sim.world.now_us() < end {
        let volume = (writes.len() % 2) as u16;
        let before = sim.world.acknowledged();
        writes.push(sim.world.ask(NodeId(primary), 0, ClientOp::Write { volume, block: BLOCK, blocks: 1 }));
        while sim.world.acknowledged() == before && sim.world.now_us() < end {
            sim.run_us(10);
        }
        acknowledged += usize::from(sim.world.acknowledged() > before);
    }
    (writes, acknowledged)
}

/// The power of the primary, or of all nodes, is cut between dependent writes to two volumes. Then
/// the volumes hold a prefix of the writes, with all that were acknowledged.
#[test]
fn dependent_writes_to_two_volumes_keep_their_order_through_a_thousand_power_cuts() {
    let mut unacknowledged = [0, 0];
    for seed in 0..CUTS / CUTS_OF_A_CLUSTER {
        let mut random = Random::new(seed);
        let mut sim = Scenario::three();
        for _ in 0..CUTS_OF_A_CLUSTER {
            let primary = sim.primary().expect("a node serves");
            let us = 500 + random.below(12_000);
            let before = [sim.read_volume(0, BLOCK), sim.read_volume(1, BLOCK)];
            let (writes, acknowledged) = depend(&mut sim, primary, us);
            if random.below(3) == 0 {
                sim.fault(Fault::PowerCutAll);
                sim.run_ms(100);
                sim.fault(Fault::PowerOnAll);
            } else {
                sim.power_cut(primary);
                sim.until_primary_is_not(primary, 10_000);
            }
            let found = [sim.read_volume(0, BLOCK), sim.read_volume(1, BLOCK)];
            let whole = (acknowledged..=writes.len()).position(|count| {
                let last = |volume: usize| {
                    writes[..count]
                        .iter()
                        .skip(volume)
                        .step_by(2)
                        .next_back()
                        .copied()
                        .unwrap_or(before[volume])
                };
                found == [last(0), last(1)]
            });
            let Some(beyond) = whole else {
                panic!("seed {seed}: {found:?} of {writes:?}, {acknowledged} acknowledged, {before:?} before")
            };
            unacknowledged[beyond] += 1;
            sim.power_on(primary);
            sim.expect_iss_within_ms(&[1, 2, 3], 30_000);
            sim.until("a node serves", 10_000, |world| !world.devices(0).is_empty());
        }
        sim.settle();
    }
    // Some of the cuts strike between the acknowledgements, and some writes survive without one.
    assert!(unacknowledged.iter().all(|&count| count > 50), "{unacknowledged:?}");
}
