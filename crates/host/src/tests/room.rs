//! Room in the journal, as the replica believes it to be (R18).

use super::lab::{HERE, INSTANCE, Lab, lazy, range, record};
use mainstay_replica::{Op, RequestId};
use mainstay_store::Tuning;
use mainstay_types::{BLOCK_BYTES, Mode, Role};

/// A small generator of its own, so that a case repeats.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// In mode B writes follow each other without waiting for the journal, so several are on their way
/// to it when room is told.
#[test]
fn batches_on_their_way_to_the_journal_are_not_counted_as_room() {
    let tuning = Tuning { destage_start_bytes: 0, ..lazy() };
    for seed in 1..=200u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut lab = Lab::new(tuning);
        lab.host.cached(lab.world.now, true);
        let in_b = |version| {
            let mut record = record(version, 1, HERE.node);
            record.policy.mode = Mode::B.into();
            record.replicas = vec![HERE];
            record.instances.insert(HERE.node, INSTANCE);
            record
        };
        lab.host.record(lab.world.now, in_b(1));
        lab.settle();
        assert_eq!(lab.host.role(), Role::Primary);
        for _ in 0..300 {
            // An engine hands over several requests and completions before it pumps, now and then a
            // burst.
            let burst = if next(&mut random).is_multiple_of(3) { 8 } else { 2 };
            for _ in 0..next(&mut random) % burst {
                lab.next += 1;
                let blocks = 1 + next(&mut random) % 3;
                let payload = vec![1; (blocks * BLOCK_BYTES) as usize].into();
                let range = range(next(&mut random) % 8, blocks);
                lab.host.request(lab.world.now, RequestId(lab.next), Op::Write { range, payload });
            }
            for _ in 0..next(&mut random) % 12 {
                if let Some(output) = lab.world.operations.pop_front() {
                    let (op, bytes) = lab.world.execute(output);
                    lab.host.store_done(op, Ok(bytes));
                }
            }
            lab.host.pump(&mut lab.world);
            let left = lab.host.store().room_with_reserve();
            assert!(left >= tuning.reserve_bytes, "writes of seed {seed} left {left} bytes of the reserve");
        }
        assert!(lab.world.answers.len() > 20, "{}", lab.world.answers.len());
    }
}
