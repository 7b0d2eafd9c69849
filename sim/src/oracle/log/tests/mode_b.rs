//! Mode B: which entries are soft, when they may be lost, and that no other entry may.

use super::*;

const O: Instance = Instance(9);

/// Returns the oracle of [`running`] in mode B, with the memory of all members counted, and two
/// batches. The first returned batch is acknowledged: all have it in memory, and A alone has it in
/// its journal. The second one is the batch before it.
fn acknowledged_from_memory() -> (LogOracle, Arc<Batch>, Arc<Batch>) {
    let (mut oracle, batches) = running();
    let mut counted = record(2, 1, A, &[A, B, C]);
    counted.instances = [A, B, C].into_iter().map(|node| (node, O)).collect();
    oracle.record(&counted).expect("lawful");
    let soft = batch(Some(&batches[2]), 1, &[(0, 21)]);
    for node in [A, B, C] {
        oracle.opened(node, D, O);
        oracle.appended(node, D, &soft).expect("lawful");
    }
    oracle.durable(A, D, soft.last()).expect("it is");
    oracle.acknowledged_up_to(A, D, (Epoch(1), false), soft.last()).expect("all have it");
    (oracle, soft, batches[2].clone())
}

/// Another record of the same members.
fn counting(version: u64, epoch: u64, primary: NodeId, iss: &[NodeId], counted: &[NodeId]) -> ResourceRecord {
    let instances = counted.iter().map(|node| (*node, O)).collect();
    ResourceRecord { instances, ..record(version, epoch, primary, iss) }
}

#[test]
fn a_flush_waits_until_soft_entries_are_committed() {
    let (mut oracle, soft, _) = acknowledged_from_memory();
    assert_eq!(oracle.soft_end(), Some(soft.last()));
    assert_eq!(id(oracle.flushed(A, soft.last())), "S5");
    for node in [B, C] {
        oracle.durable(node, D, soft.last()).expect("it is");
    }
    oracle.committed(A, D, soft.last()).expect("durable everywhere");
    oracle.flushed(A, soft.last()).expect("it is committed");
    assert_eq!((oracle.soft_end(), oracle.take_lost()), (None, None));
}

#[test]
fn entries_that_a_member_still_has_must_not_be_lost() {
    let (mut oracle, soft, before) = acknowledged_from_memory();
    oracle.memory_gone(B);
    oracle.memory_gone(C);
    assert_eq!((oracle.soft_end(), oracle.take_lost()), (Some(soft.last()), None), "the journal of A has it");
    oracle.recovered(B, D, Epoch(1), &state(Some(&before), 3)).expect("what was durable");
    oracle.opened(B, D, Instance(10));
    oracle.record(&counting(3, 2, B, &[A, B, C], &[A, B, C])).expect("B is a member");
    oracle.promises(B, Epoch(2));
    assert_eq!(id(oracle.appended(B, D, &batch(Some(&before), 2, &[]))), "S1");
}

#[test]
fn entries_that_no_member_has_may_be_lost() {
    let (mut oracle, soft, _) = acknowledged_from_memory();
    oracle.memory_gone(B);
    oracle.memory_gone(C);
    oracle.record(&counting(3, 1, A, &[B, C], &[B, C])).expect("lawful");
    assert_eq!(oracle.soft_end(), None);
    assert_eq!(oracle.take_lost(), Some(Index(soft.first.0 - 1)));
}

#[test]
fn a_promotable_member_holds_every_soft_entry() {
    let (mut oracle, ..) = acknowledged_from_memory();
    // It is not durable on B, and the record does not say in which instance B has it.
    assert_eq!(id(oracle.record(&counting(3, 1, A, &[A, B, C], &[A, C]))), "S8");
    let (mut oracle, ..) = acknowledged_from_memory();
    oracle.opened(B, D, Instance(10));
    oracle.record(&counting(3, 1, A, &[A, B, C], &[A, B, C])).expect("B knows that it is not to lead");
}

#[test]
fn nothing_is_acknowledged_that_is_not_in_the_log() {
    let (mut oracle, soft, _) = acknowledged_from_memory();
    assert_eq!(id(oracle.acknowledged_up_to(A, D, (Epoch(1), false), soft.last().next())), "S8");
}
