//! The pace of background traffic, against clients whose writes take longer the more is under way.

use crate::background::{Background, Filling};
use mainstay_types::{BackgroundLimits, EXTENT_BYTES, Time};
use std::collections::VecDeque;

const WINDOW_MAX: usize = 16;
/// Time for which an extent is under way.
const EXTENT_MS: u64 = 4;
/// Extents that an always full window moves in a second.
const FULL: u64 = WINDOW_MAX as u64 * 1000 / EXTENT_MS;

struct Machine {
    now: Time,
    background: Background,
    under_way: VecDeque<Time>,
    /// When each extent was begun.
    begun: Vec<Time>,
}

impl Machine {
    fn new(limits: BackgroundLimits) -> Self {
        let (now, mut background) = (Time(5_000_000), Background::new(WINDOW_MAX));
        background.set_limits(limits);
        Self { now, background, under_way: VecDeque::new(), begun: Vec::new() }
    }

    /// Copies for `ms` milliseconds while clients write. A write of theirs is committed every 2 ms.
    /// With n extents under way it took `client_us(n)`, which the journal's latency does not show.
    fn copy_beside(&mut self, ms: u64, client_us: impl Fn(usize) -> u64) -> u64 {
        let mut done = 0;
        for _ in 0..ms / 2 {
            done += self.copy(2, |_| 400);
            let took = client_us(self.under_way.len());
            self.background.committed(Time(self.now.0 - took), self.now);
        }
        done
    }

    /// Copies for `ms` milliseconds. With n extents under way a write takes `write_us(n)`. Returns
    /// how many extents were begun.
    fn copy(&mut self, ms: u64, write_us: impl Fn(usize) -> u64) -> u64 {
        self.copy_while(ms, write_us, None)
    }

    /// The same, while one waits since then.
    fn copy_while(&mut self, ms: u64, write_us: impl Fn(usize) -> u64, waits: Option<Time>) -> u64 {
        let before = self.begun.len();
        for _ in 0..ms {
            self.now = self.now.plus_ms(1);
            while self.under_way.front().is_some_and(|end| *end <= self.now) {
                self.under_way.pop_front();
            }
            loop {
                let under_way = self.under_way.len();
                let filling = Filling { copying: true, copied: under_way, fed: 0 };
                self.background.judge(self.now, write_us(under_way), waits, filling);
                if under_way >= self.background.share(self.now, 1) {
                    break;
                }
                self.background.spend(self.now, EXTENT_BYTES, false);
                self.under_way.push_back(self.now.plus_ms(EXTENT_MS));
                self.begun.push(self.now);
            }
            if self.background.share(self.now, 1) == 0 && self.under_way.is_empty() {
                let next = self.background.next_at(self.now).expect("what waits for nothing else has a time");
                assert!(next > self.now && next <= self.now.plus_ms(5_000), "{next:?} at {:?}", self.now);
            }
        }
        (self.begun.len() - before) as u64
    }
}

#[test]
fn while_no_client_writes_all_of_the_window_is_used() {
    let mut machine = Machine::new(BackgroundLimits::default());
    let done = machine.copy(1_000, |_| 0);
    assert!(done >= FULL - WINDOW_MAX as u64, "{done} of {FULL}");
}

/// The background rests for a twentieth of the time to learn what is usual, and begins carefully.
#[test]
fn clients_that_are_not_harmed_cost_a_copy_little() {
    let mut machine = Machine::new(BackgroundLimits::default());
    machine.copy(3_000, |_| 400);
    let done = machine.copy(10_000, |_| 400);
    assert!(done * 10 >= FULL * 10 * 9, "{done} of {}", FULL * 10);
}

/// With each extent a write takes half as long again: one is at the edge, two are too many.
#[test]
fn a_copy_yields_to_clients_that_it_harms_and_goes_on() {
    let limits = BackgroundLimits::default();
    let mut machine = Machine::new(limits);
    let write_us = |under_way: usize| 400 + 300 * under_way as u64;
    machine.copy(2_000, write_us);
    let (from, done) = (machine.begun.len(), machine.copy(20_000, write_us));
    assert!(done * EXTENT_BYTES >= limits.min_rate * 20 * 9 / 10, "{done} extents are less than c-min-rate");
    assert!(done * 4 < FULL * 20, "{done} of {}", FULL * 20);
    let pauses = machine.begun[from..].windows(2).map(|pair| pair[1].ms_since(pair[0]));
    assert!(pauses.max().is_some_and(|ms| ms <= 700), "it goes on all the time");
}

/// Clients wait as under a load for which the journal has no room: the disk that the copy reads is
/// the one that makes room.
#[test]
fn waits_of_clients_before_the_journal_count_as_harm() {
    let limits = BackgroundLimits::default();
    let mut machine = Machine::new(limits);
    let client_us = |under_way: usize| 2_000 + 1_500 * under_way as u64;
    machine.copy_beside(2_000, client_us);
    let done = machine.copy_beside(20_000, client_us);
    assert!(done * EXTENT_BYTES >= limits.min_rate * 20 * 9 / 10, "{done} extents are less than c-min-rate");
    assert!(done * 4 < FULL * 20, "{done} of {}", FULL * 20);
    let mut machine = Machine::new(limits);
    machine.copy_beside(3_000, |_| 2_000);
    let done = machine.copy_beside(10_000, |_| 2_000);
    assert!(done * 10 >= FULL * 10 * 9, "{done} of {} though no client is harmed", FULL * 10);
}

/// No write is committed any more. If none is committed while the background rests either, the
/// background is not the cause.
#[test]
fn a_waiting_write_counts_as_harmed_until_a_rest_does_not_help() {
    let mut machine = Machine::new(BackgroundLimits::default());
    machine.copy_beside(3_000, |_| 2_000);
    let since = machine.now;
    let done = machine.copy_while(1_000, |_| 400, Some(since));
    assert!(done * 2 < FULL, "{done} of {FULL}");
    machine.copy_while(4_000, |_| 400, Some(since));
    let done = machine.copy_while(5_000, |_| 400, Some(since));
    assert!(done * 10 >= FULL * 5 * 7, "{done} of {}: its rests are longer", FULL * 5);
}

/// Latencies differ by chance, and a write may be under way for long when the background looks at
/// the clients.
#[test]
fn writes_that_differ_without_being_harmed_cost_a_copy_little() {
    let mut machine = Machine::new(BackgroundLimits::default());
    let mut random = 1_u64;
    let mut done = 0;
    for ms in 0..20_000_u64 {
        // xorshift64 (Marsaglia 2003); some 5 to 50 ms, one after the other.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let took = 5 + random % 45;
        let since = machine.now;
        let before = machine.begun.len();
        machine.copy_while(took, |_| 400, Some(since));
        if ms % 400 >= 100 {
            done += machine.begun.len() - before;
        }
        machine.background.committed(since, machine.now);
        if machine.now > Time(5_000_000).plus_ms(60_000) {
            break;
        }
    }
    let all = machine.begun.len() as u64;
    assert!(all * 10 >= FULL * 60 * 7, "{all} of {}, {done}", FULL * 60);
}

/// The latency that was usual beside a copy tells nothing about a feed, which may be what clients
/// wait for (mode A).
#[test]
fn waits_of_clients_are_no_harm_done_by_a_feed() {
    let mut machine = Machine::new(BackgroundLimits::default());
    machine.copy_beside(3_000, |_| 2_000);
    let (window, since) = (16 * EXTENT_BYTES, machine.now);
    for ms in 0..5_000 {
        let now = since.plus_ms(ms);
        machine.background.judge(now, 400, Some(since), Filling { copying: false, copied: 0, fed: window });
    }
    assert_eq!(machine.background.feed_bytes(since.plus_ms(5_000), window), window);
}

#[test]
fn a_load_that_grows_by_itself_is_not_taken_for_harm_for_long() {
    let mut machine = Machine::new(BackgroundLimits::default());
    machine.copy(5_000, |_| 400);
    machine.copy(2_500, |_| 1_600);
    let done = machine.copy(10_000, |_| 1_600);
    assert!(done * 10 >= FULL * 10 * 8, "{done} of {}", FULL * 10);
}

#[test]
fn when_clients_stop_all_of_the_window_is_used_at_once() {
    let mut machine = Machine::new(BackgroundLimits::default());
    machine.copy(3_000, |under_way| 400 + 1_000 * under_way as u64);
    let done = machine.copy(1_000, |_| 0);
    assert!(done * 10 >= FULL * 8, "{done} of {FULL}");
}

#[test]
fn a_rate_is_never_exceeded_for_long_and_is_used() {
    for extents_per_s in [1, 10, 400] {
        let limits =
            BackgroundLimits { max_rate: extents_per_s * EXTENT_BYTES, ..BackgroundLimits::default() };
        let mut machine = Machine::new(limits);
        let done = machine.copy(20_000, |_| 0);
        assert!(
            (20 * extents_per_s - 1..=20 * extents_per_s + 1 + extents_per_s / 10).contains(&done),
            "{done}"
        );
        // In no second more than that, what was saved up, and one.
        for (n, begun) in machine.begun.iter().enumerate() {
            let within =
                machine.begun[n..].iter().take_while(|other| other.ms_since(*begun) < 1_000).count() as u64;
            assert!(within <= extents_per_s + extents_per_s / 10 + 1, "{within} in a second");
        }
    }
}

#[test]
fn zeroes_cost_nothing_of_a_rate() {
    let limits = BackgroundLimits { max_rate: EXTENT_BYTES, ..BackgroundLimits::default() };
    let mut background = Background::new(WINDOW_MAX);
    background.set_limits(limits);
    let now = Time(5_000_000);
    for _ in 0..1_000 {
        assert_eq!(background.share(now, 1), WINDOW_MAX);
        background.spend(now, EXTENT_BYTES, false);
        background.refund(EXTENT_BYTES);
    }
}

#[test]
fn without_a_least_rate_a_copy_does_not_yield() {
    let mut machine = Machine::new(BackgroundLimits { min_rate: 0, ..BackgroundLimits::default() });
    let done = machine.copy(2_000, |under_way| 400 + 10_000 * under_way as u64);
    assert!(done >= 2 * FULL - WINDOW_MAX as u64, "{done}");
}

#[test]
fn a_feed_yields_by_its_window_and_never_stops() {
    let mut background = Background::new(WINDOW_MAX);
    let window = 16 * EXTENT_BYTES;
    let mut fed = 0;
    for ms in 0..10_000 {
        // Whatever is under way harms.
        let (now, write_us) = (Time(5_000_000).plus_ms(ms), if fed == 0 { 400 } else { 1_000 });
        background.judge(now, write_us, None, Filling { copying: false, copied: 0, fed });
        fed = background.feed_bytes(now, window);
        assert!(fed >= EXTENT_BYTES, "it stops after {ms} ms");
        assert!(ms != 0 || fed == window, "it begins with all of its window");
    }
    assert_eq!(fed, EXTENT_BYTES);
}
