//! When a ring polls for what comes before it sleeps, and for how long.
//!
//! A processor that sleeps wakes up tens of microseconds after the event that it waits for. One
//! that polls sees the event at once, and does nothing else meanwhile. So a ring polls only where a
//! processor is left over, and only for events that have come soon of late:
//!
//! - *How long* is found as KVM finds it for halted guests (halt polling). A wait that ended soon
//!   after the window doubles the window, up to [`WINDOW_MAX`]; a long wait closes it.
//! - *Whether* is decided for the whole machine every [`LOOK_EVERY`]: enough of it has to be idle,
//!   the polling itself not counted as idle ([`enough`]). A database that needs the processors
//!   takes them from idleness first, and the polling ends within that time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Longest window. A longer wait is not worth a processor.
const WINDOW_MAX: Duration = Duration::from_micros(200);
/// First window after one that was closed.
const WINDOW_MIN: Duration = Duration::from_micros(25);
/// How often the machine's idle time is read while there is something to poll for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longest time between two looks at the idle time. Idle time over a longer one says nothing about
/// the present.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Fewest processors for polling. On fewer, no processor is ever left over for that long.
const PROCESSORS_MIN: usize = 4;

/// See the top of this file.
pub struct Spin {
    room: Room,
    window: Duration,
    polled: Duration,
}

enum Room {
    Never,
    #[cfg(test)]
    Always,
    #[cfg(test)]
    Fixed(Duration),
    Idle(Look),
}

/// The machine's idle time, looked at again and again.
struct Look {
    stat: File,
    processors: f64,
    share_min: f64,
    /// When it was read, and how many processor seconds the machine had been idle since it was
    /// started.
    last: Option<(Instant, f64)>,
    enough: bool,
}

/// Whether a process that may use `may_use` of a machine's processors can ever have one left over.
fn left_over(may_use: usize, processors: usize) -> bool {
    processors >= PROCESSORS_MIN && may_use >= processors
}

/// Whether `idle` of all processors are enough to take one for polling: at least two, and the share
/// `share_min`.
fn enough(idle: f64, processors: f64, share_min: f64) -> bool {
    idle >= 2.0 && idle >= share_min * processors
}

/// Idle time of the machine, in processor seconds, from the first line of /proc/stat. Waits for a
/// disk count as idle: they are most of the time that is left over here.
fn idle_seconds(text: &str) -> Option<f64> {
    const PER_SECOND: f64 = 100.0;
    let mut fields = text.strip_prefix("cpu ")?.split_whitespace().skip(3);
    let (idle, waiting): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((idle + waiting) / PER_SECOND)
}

impl Look {
    /// `None` where there are too few processors, or this process may not use all of them. The idle
    /// ones may then be reserved for others.
    fn new(may_use: usize) -> Option<Self> {
        // SAFETY: takes no pointers.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let processors = usize::try_from(processors).unwrap_or(usize::MAX);
        if !left_over(may_use, processors) {
            return None;
        }
        // Two processors of a core share it: half of them idle may be every second one.
        let smt = std::fs::read_to_string("/sys/devices/system/cpu/smt/active");
        let smt = smt.is_ok_and(|active| active.trim() == "1");
        let share_min = if smt { 0.55 } else { 0.25 };
        let stat = File::open("/proc/stat").ok()?;
        Some(Self { stat, processors: processors as f64, share_min, last: None, enough: false })
    }

    fn read(&self) -> Option<f64> {
        let mut text = [0; 256];
        let len = self.stat.read_at(&mut text, 0).ok()?;
        idle_seconds(std::str::from_utf8(&text[..len]).ok()?)
    }

    fn enough(&mut self, now: Instant) -> bool {
        match self.last {
            Some((at, _)) if now.duration_since(at) < LOOK_EVERY => return self.enough,
            Some((at, before)) if now.duration_since(at) < LOOK_MAX => {
                let idle = self.read();
                let elapsed = now.duration_since(at).as_secs_f64();
                let share = |idle: f64| (idle - before) / elapsed;
                self.enough = idle.is_some_and(|idle| enough(share(idle), self.processors, self.share_min));
                self.last = idle.map(|idle| (now, idle));
            }
            _ => {
                self.enough = false;
                self.last = self.read().map(|idle| (now, idle));
            }
        }
        self.enough
    }
}

impl Spin {
    /// Never polls.
    #[must_use]
    pub fn never() -> Self {
        Self::with(Room::Never)
    }

    /// Polls while processors are left over; never where there are too few, where this process may
    /// not use all of them (a set of processors, a container's quota), or where the kernel does not
    /// say how many are idle.
    #[must_use]
    pub fn while_idle() -> Self {
        let may_use = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with(Look::new(may_use).map_or(Room::Never, Room::Idle))
    }

    #[cfg(test)]
    pub fn always() -> Self {
        Self::with(Room::Always)
    }

    /// Always for this long.
    #[cfg(test)]
    pub fn fixed(window: Duration) -> Self {
        Self::with(Room::Fixed(window))
    }

    fn with(room: Room) -> Self {
        Self { room, window: Duration::ZERO, polled: Duration::ZERO }
    }

    /// Whether it may ever poll.
    #[must_use]
    pub fn polls(&self) -> bool {
        !matches!(self.room, Room::Never)
    }

    /// Whether a processor is left over to poll on.
    pub fn is_possible(&mut self) -> bool {
        match &mut self.room {
            Room::Never => false,
            #[cfg(test)]
            Room::Always | Room::Fixed(_) => true,
            Room::Idle(look) => look.enough(Instant::now()),
        }
    }

    /// How long to poll for what is waited for now; zero: not at all.
    pub fn window(&mut self, now: Instant) -> Duration {
        let room = match &mut self.room {
            Room::Never => return Duration::ZERO,
            #[cfg(test)]
            Room::Always => true,
            #[cfg(test)]
            Room::Fixed(window) => return *window,
            // Not looked at while nothing comes soon anyway.
            Room::Idle(look) => !self.window.is_zero() && look.enough(now),
        };
        if room { self.window } else { Duration::ZERO }
    }

    /// Notes a wait of `waited`, of which `polled` was polled. `came`: it ended with what was
    /// waited for, and not at a deadline.
    pub fn waited(&mut self, waited: Duration, polled: Duration, came: bool) {
        self.polled += polled;
        if waited > WINDOW_MAX {
            self.window = Duration::ZERO;
        } else if came && waited > self.window {
            self.window = (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
        }
    }

    /// How long all polling has taken.
    #[must_use]
    pub fn polled(&self) -> Duration {
        self.polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn the_window_grows_with_short_waits_and_closes_with_a_long_one() {
        let mut spin = Spin::always();
        let now = Instant::now();
        assert_eq!(spin.window(now), Duration::ZERO, "nothing has come soon yet");
        let mut windows = Vec::new();
        for waited in [90, 90, 90, 90, 10, 180, 180, 190] {
            spin.waited(us(waited), us(5), true);
            windows.push(spin.window(now).as_micros());
        }
        assert_eq!(windows, [25, 50, 100, 100, 100, 200, 200, 200]);
        spin.waited(us(199), us(5), false);
        assert_eq!(spin.window(now), us(200), "a deadline says little");
        spin.waited(us(201), us(195), false);
        assert_eq!((spin.window(now), spin.polled()), (Duration::ZERO, us(240)));
    }

    #[test]
    fn a_ring_that_may_not_poll_never_polls() {
        let mut spin = Spin::never();
        (0..9).for_each(|_| spin.waited(us(20), Duration::ZERO, true));
        assert_eq!((spin.window(Instant::now()), spin.polls()), (Duration::ZERO, false));
    }

    #[test]
    fn two_idle_processors_and_a_share_of_all_are_enough() {
        assert!(enough(2.0, 4.0, 0.25) && enough(4.1, 16.0, 0.25) && enough(9.0, 16.0, 0.55));
        assert!(!enough(1.9, 4.0, 0.25) && !enough(3.9, 16.0, 0.25) && !enough(8.0, 16.0, 0.55));
    }

    #[test]
    fn the_kernel_says_how_long_it_was_idle() {
        let text = "cpu  10132153 290696 3084719 46828483 16683 0 25195 0 175628 0\ncpu0 1393280 32966";
        assert_eq!(idle_seconds(text), Some(468_451.66));
        assert_eq!((idle_seconds("cpu  1 2 3 4"), idle_seconds("")), (None, None));
    }

    #[test]
    fn of_few_or_restricted_processors_none_is_left_over() {
        assert!(left_over(4, 4) && left_over(64, 64));
        assert!(!left_over(2, 2) && !left_over(3, 3) && !left_over(4, 64) && !left_over(63, 64));
    }

    /// Looks at this machine's /proc/stat, and checks the conclusions as time goes by.
    #[test]
    fn idleness_is_that_of_the_time_between_two_looks() {
        let stat = File::open("/proc/stat").expect("a kernel that tells");
        let mut look = Look { stat, processors: 4.0, share_min: 0.25, last: None, enough: true };
        let start = Instant::now();
        assert!(!look.enough(start), "one look says nothing");
        let (_, idle) = look.last.expect("read");
        // As if the machine had been idle for `idle_since` seconds since.
        let mut after = |ms: u64, idle_since: f64| {
            look.last = Some((start, idle - idle_since));
            look.enough(start + Duration::from_millis(ms))
        };
        // Other processors add to it while this runs: the bounds are wide.
        assert!(after(200, 0.5), "2.5 processors");
        assert!(after(50, 0.0), "it is not looked at so often");
        assert!(!after(499, -10.0), "none");
        assert!(!after(501, 100.0), "too long ago");
    }
}
