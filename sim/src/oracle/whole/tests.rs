//! Content that whole writes make in any order is never refused, and content of half a write is.

use super::*;
use crate::random::Random;

const V: VolumeKey = (0, 0);

/// Writes of one volume of 8 blocks.
#[derive(Default)]
struct Script {
    writes: WholeWrites,
    now: Moment,
}

impl Script {
    fn ask(&mut self, request: u64, blocks: Range<u64>) {
        self.now += 1;
        self.writes.asked(request, self.now, V, blocks, request);
    }

    fn zero(&mut self, request: u64, blocks: Range<u64>) {
        self.now += 1;
        self.writes.asked(request, self.now, V, blocks, 0);
    }

    fn place(&mut self, request: u64) {
        self.now += 1;
        self.writes.placed(request, self.now);
    }

    fn write(&mut self, request: u64, blocks: Range<u64>) {
        self.ask(request, blocks);
        self.place(request);
    }

    /// Judges the volume, which holds these values from block 0 on.
    fn holds(&self, values: &[u64]) -> Result<(), String> {
        let content: Vec<_> = (0..).zip(values.iter().copied()).collect();
        self.writes.check(V, &content)
    }
}

#[test]
fn half_a_write_over_zeroes_is_refused() {
    let mut s = Script::default();
    s.ask(1, 0..4);
    assert_eq!(s.holds(&[0, 0, 0, 0]), Ok(()));
    assert_eq!(s.holds(&[1, 1, 1, 1]), Ok(()));
    let why = s.holds(&[1, 1, 0, 1]).expect_err("a block is missing");
    assert!(why.contains("block 2"), "{why}");
}

#[test]
fn half_a_write_over_an_older_one_is_refused() {
    let mut s = Script::default();
    s.write(1, 0..4);
    s.ask(2, 0..4);
    assert_eq!(s.holds(&[2, 2, 2, 2]), Ok(()));
    assert_eq!(s.holds(&[1, 1, 1, 1]), Ok(()));
    s.holds(&[2, 2, 1, 1]).expect_err("each came before the other");
}

#[test]
fn half_a_write_over_an_older_one_of_other_length_is_refused_by_the_order_in_time() {
    let mut s = Script::default();
    s.write(1, 2..4);
    s.ask(2, 0..4);
    s.holds(&[2, 2, 1, 1]).expect_err("write 1 had its place when write 2 was asked for");
    let mut s = Script::default();
    s.ask(1, 2..4);
    s.ask(2, 0..4);
    assert_eq!(s.holds(&[2, 2, 1, 1]), Ok(()), "write 1 may have come later");
}

#[test]
fn writes_at_the_same_time_leave_any_order_and_no_mix() {
    let mut s = Script::default();
    s.ask(1, 0..3);
    s.ask(2, 1..4);
    s.ask(3, 3..5);
    for fine in [[1, 2, 2, 2, 3], [1, 1, 1, 2, 3], [1, 1, 1, 3, 3], [0, 2, 2, 3, 3]] {
        assert_eq!(s.holds(&fine), Ok(()), "{fine:?}");
    }
    for torn in [[1, 2, 1, 2, 3], [1, 0, 0, 0, 0], [1, 1, 1, 0, 3]] {
        s.holds(&torn).expect_err("torn");
    }
}

#[test]
fn a_write_inside_another_one_comes_before_it_or_after_it() {
    let mut s = Script::default();
    s.ask(1, 0..2);
    s.ask(2, 1..3);
    s.ask(3, 0..3);
    assert_eq!(s.holds(&[3, 2, 2]), Ok(()));
    let why = s.holds(&[3, 1, 2]).expect_err("writes 1 and 3 each come before the other");
    assert!(why.contains("no order"), "{why}");
}

#[test]
fn zeroes_count_only_where_no_write_of_zeroes_can_have_made_them() {
    let mut s = Script::default();
    s.zero(1, 2..4);
    s.place(1);
    s.ask(2, 0..4);
    s.holds(&[2, 2, 0, 0]).expect_err("the zeroes are older");
    s.zero(3, 3..4);
    assert_eq!(s.holds(&[2, 2, 2, 0]), Ok(()));
    s.holds(&[2, 2, 0, 0]).expect_err("nothing made block 2 zero");
}

#[test]
fn a_rollback_is_a_write_of_everything() {
    let mut s = Script::default();
    s.write(1, 0..4);
    s.write(2, 2..4);
    s.now += 1;
    s.writes.rolled_back(V, s.now, vec![1, 1, 2, 2]);
    assert_eq!(s.holds(&[1, 1, 2, 2]), Ok(()), "as it was");
    s.ask(3, 1..3);
    assert_eq!(s.holds(&[1, 3, 3, 2]), Ok(()));
    s.holds(&[1, 3, 2, 2]).expect_err("half of write 3");
}

#[test]
fn a_read_beside_a_write_is_not_quiet() {
    let mut s = Script::default();
    let start = s.now;
    assert!(s.writes.is_quiet(V, &(0..4), start));
    s.ask(1, 3..5);
    assert!(!s.writes.is_quiet(V, &(0..4), start));
    assert!(s.writes.is_quiet(V, &(0..3), start) && s.writes.is_quiet((0, 1), &(0..4), start));
    s.place(1);
    assert!(!s.writes.is_quiet(V, &(0..4), start));
    s.now += 1;
    assert!(s.writes.is_quiet(V, &(0..4), s.now));
}

/// Whole writes in an order that keeps to the order in time are never refused. If a block of the
/// last one is as it was before, the content is refused.
#[test]
fn random_histories_of_whole_writes_are_accepted_and_torn_ones_refused() {
    let mut refused = 0;
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let mut s = Script::default();
        let mut model = [0_u64; 8];
        let mut last = (0, 0..0, model);
        for request in 1..=random.between(1, 12) {
            let first = random.below(7);
            let blocks = first..first + random.between(1, 8 - first);
            let zeroes = random.below(5) == 0;
            if zeroes {
                s.zero(request, blocks.clone());
            } else {
                s.ask(request, blocks.clone());
            }
            last = (request, blocks.clone(), model);
            for block in blocks {
                model[block as usize] = if zeroes { 0 } else { request };
            }
            // Writes get their places in this order. Some never become known.
            if random.below(3) > 0 {
                s.place(request);
            }
            assert_eq!(s.holds(&model), Ok(()), "seed {seed}");
        }
        let (request, blocks, before) = last;
        let torn = random.between(blocks.start, blocks.end - 1) as usize;
        let known = before[torn] == 0 || s.writes.writes[&before[torn]].placed != NEVER;
        if model[torn] != request || blocks.end - blocks.start == 1 || before[torn] == 0 || !known {
            continue;
        }
        model[torn] = before[torn];
        refused += 1;
        s.holds(&model).expect_err("one block of the last write is missing");
    }
    assert!(refused > 200, "{refused} torn histories");
}
