//! The last change that a client asked for is a part of what a replica is (S18).

use crate::lab::{Lab, Log, Random, write};
use mainstay_codec::NewEntry;
use mainstay_types::{ClientMark, Index, SessionId};

fn mark(session: u64, number: u64) -> ClientMark {
    ClientMark { session: SessionId(session), number }
}

fn change(session: u64, request: u64) -> NewEntry {
    NewEntry { session, request, ..write(request % 4, 1, 7) }
}

#[test]
fn the_mark_of_a_client_is_found_in_journal_and_superblock_after_any_crash() {
    // More than there are operations.
    for completed in 0..16 {
        let mut random = Random(completed);
        let (mut lab, mut log) = (Lab::new(), Log::default());
        lab.append(&mut log, vec![change(4, 1), change(4, 2), write(3, 1, 9)]);
        lab.settle();
        let committed = log.end().index;
        lab.store.commit(committed);
        let batch = log.seal(1, committed, vec![change(6, 1)]);
        lab.store.append(batch);
        lab.settle();
        assert_eq!(lab.store.client(), mark(4, 2));
        let ahead: Vec<_> = lab.store.clients_ahead().collect();
        assert_eq!(ahead, [(Index(committed.0 + 1), mark(6, 1))], "not applied yet");
        lab.store.destage_now();
        lab.pump();
        lab.complete_some(completed);
        lab.crash(&mut random).expect("nothing is damaged");
        let ahead = lab.store.clients_ahead().last().map(|(_, mark)| mark);
        assert_eq!(ahead.unwrap_or(lab.store.client()), mark(6, 1), "after {completed} operations");
        // The mark of trimmed entries is known from the superblock.
        lab.store.commit(log.end().index);
        lab.store.destage_now();
        lab.settle();
        let disk = std::mem::take(&mut lab.disk);
        lab.recover_from(disk).expect("nothing is damaged");
        assert_eq!(lab.store.clients_ahead().count(), 0);
        assert_eq!(lab.store.client(), mark(6, 1), "after {completed} operations");
    }
}

#[test]
fn the_target_of_a_copy_takes_over_a_lower_mark_as_well() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![change(9, 9)]);
    lab.settle();
    lab.store.commit(log.end().index);
    lab.settle();
    log.seal(2, log.end().index, vec![change(4, 3)]);
    let volumes = lab.config.volumes.clone();
    lab.store.restart(log.end(), log.chain(), &volumes, &[], mark(4, 3));
    lab.settle();
    assert_eq!(lab.store.client(), mark(4, 3));
    lab.crash(&mut Random(1)).expect("nothing is damaged");
    assert_eq!(lab.store.client(), mark(4, 3));
}
