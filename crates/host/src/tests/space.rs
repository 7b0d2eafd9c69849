//! A pool without space (R13, R20, S25).

use super::lab::{Lab, THERE, lazy, record};
use crate::{FULL_MS_MAX, Happened};
use mainstay_store::Tuning;
use mainstay_types::{BLOCK_BYTES, Role};

fn eager() -> Tuning {
    Tuning { destage_start_bytes: 0, ..lazy() }
}

fn told(lab: &Lab) -> usize {
    lab.world.happened.iter().filter(|happened| matches!(happened, Happened::NoSpace { .. })).count()
}

/// The time of the next deadline comes.
fn tick(lab: &mut Lab) {
    let next = lab.host.next_deadline().expect("it is tried again");
    lab.world.now = lab.world.now.max(next);
    lab.host.tick(lab.world.now);
}

#[test]
fn a_lack_of_space_is_told_once_and_destaging_tried_until_there_is_space() {
    let mut lab = Lab::primary(eager());
    let write = lab.write(0, 1);
    lab.settle_without_space();
    assert!(lab.is_answered(write), "its journal has it");
    assert_eq!((lab.host.no_space(), told(&lab)), (Some("the pool is full"), 1));
    for _ in 0..3 {
        tick(&mut lab);
        lab.settle_without_space();
    }
    assert_eq!((told(&lab), lab.failures(), lab.host.role()), (1, 0, Role::Primary));
    tick(&mut lab);
    lab.settle();
    assert_eq!(lab.host.no_space(), None);
    assert_eq!(lab.host.next_deadline(), None, "nothing is timed any more");
    let read = lab.read(0, 1);
    lab.answer_reads();
    assert_eq!(lab.content(read), super::filled(&[1]));
    // Another time it is told again.
    lab.write(1, 1);
    lab.settle_without_space();
    assert_eq!(told(&lab), 2);
}

/// Fills the journal of a replica whose volume takes nothing.
fn filled_up() -> Lab {
    let mut lab = Lab::primary(eager());
    for block in 0.. {
        lab.write(block, 1);
        lab.settle_without_space();
        if lab.host.store().is_full() {
            return lab;
        }
        assert!(block < 100);
    }
    unreachable!()
}

#[test]
fn a_primary_that_can_take_nothing_more_gives_up_in_bounded_time() {
    let mut lab = filled_up();
    let since = lab.world.now;
    while lab.host.failed().is_none() {
        assert!(lab.world.now.ms_since(since) <= FULL_MS_MAX + 1000, "it goes on for ever");
        tick(&mut lab);
        lab.settle_without_space();
    }
    assert!(lab.world.now.ms_since(since) >= FULL_MS_MAX);
    assert_eq!((lab.failures(), lab.host.no_space()), (1, None));
    assert!(lab.host.failed().is_some_and(|reason| reason.contains("the pool is full")));
}

#[test]
fn a_secondary_waits_for_space_as_long_as_it_takes() {
    let mut lab = filled_up();
    lab.host.record(lab.world.now, record(2, 2, THERE.node));
    lab.settle_without_space();
    assert_eq!(lab.host.role(), Role::Secondary);
    for _ in 0..100 {
        tick(&mut lab);
        lab.settle_without_space();
    }
    assert_eq!(lab.host.failed(), None);
    tick(&mut lab);
    lab.settle();
    assert_eq!(lab.host.no_space(), None);
    assert!(lab.host.store().room() > 8 * BLOCK_BYTES);
}
