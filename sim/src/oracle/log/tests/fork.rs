//! Promotions that were forced one after the other, between replicas that hold different histories.

use super::*;
use mainstay_codec::{rollback_range, snapshot_range};
use mainstay_control::state::Forced;
use mainstay_types::SnapshotId;

/// A batch of this one entry, which has no content.
fn marks(before: &Batch, kind: EntryKind, range: Range) -> Arc<Batch> {
    let entry = NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 };
    let (epoch, first) = (before.epoch, before.last().next());
    Arc::new(Batch::seal(RESOURCE, epoch, first, before.chain, Index(0), vec![entry]))
}

impl LogOracle {
    fn goes_on_from(&mut self, node: NodeId, version: u64, epoch: u64, without: NodeId) {
        self.forced(&Forced {
            epoch: Epoch(epoch),
            to: node,
            lost_with: vec![member(without)],
            told: Some((Index(0), Index(0))),
            at_ms: 0,
            loss: None,
        });
        self.record(&record(version, epoch, node, &[node])).expect("it was forced");
    }

    fn alone(&mut self, node: NodeId, batch: &Arc<Batch>) {
        self.holds(node, batch);
        self.committed(node, D, batch.last()).expect("it is alone");
    }
}

#[test]
fn registers_follow_to_the_end_of_a_history_with_a_rollback() {
    let (mut oracle, batches) = running();
    oracle.record(&record(2, 1, A, &[A])).expect("lawful");
    let (snapshot, mark) = (SnapshotId(1), SnapshotId(2));
    let taken = marks(&batches[2], EntryKind::Snapshot, snapshot_range(snapshot));
    let changed = batch(Some(&taken), 1, &[(0, 14)]);
    let rolled = marks(&changed, EntryKind::Rollback, rollback_range(snapshot, mark));
    let after = batch(Some(&rolled), 1, &[(0, 15)]);
    for batch in [&taken, &changed, &rolled] {
        oracle.alone(A, batch);
    }
    assert_eq!(oracle.take_rolled_back(), Some(rolled.last()));
    assert_eq!(oracle.value_at(VolumeId(0), 0, rolled.last()), 13, "what the snapshot holds");
    oracle.alone(A, &after);

    oracle.goes_on_from(B, 3, 2, A);
    oracle.alone(B, &batch(Some(&batches[2]), 2, &[]));
    assert_eq!((oracle.take_fork(), oracle.take_rolled_back()), (Some(Index(4)), None));

    oracle.goes_on_from(A, 4, 3, B);
    oracle.alone(A, &batch(Some(&after), 3, &[]));
    assert_eq!((oracle.take_fork(), oracle.take_rolled_back()), (Some(after.last()), None));
    assert_eq!(oracle.value_at(VolumeId(0), 0, after.last()), 15);
}
