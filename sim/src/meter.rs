//! Time of the machine that the simulator runs on.

use std::time::{Duration, Instant};

/// Processor time of this process since it was started.
pub struct Meter {
    wall: Instant,
    ticks: Option<u64>,
}

impl Meter {
    pub fn start() -> Self {
        Self { wall: Instant::now(), ticks: ticks() }
    }

    /// Core seconds since the start. If the kernel does not tell, every thread counts as busy all
    /// the time.
    pub fn core_seconds(&self, threads: usize) -> f64 {
        match (self.ticks, ticks()) {
            // Ticks of /proc are hundredths of a second on every Linux.
            (Some(before), Some(now)) => (now - before) as f64 / 100.0,
            _ => self.wall.elapsed().as_secs_f64() * threads as f64,
        }
    }
}

/// User and system time of this process: fields 14 and 15 of proc(5) stat, counted after the name
/// in brackets.
fn ticks() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit(") ").next()?.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Returns a check of whether `minutes` have passed since this call. Without a limit it is always
/// false.
pub fn deadline(minutes: Option<f64>) -> impl Fn() -> bool + Sync {
    let start = Instant::now();
    let limit = minutes.map(|minutes| Duration::from_secs_f64((minutes * 60.0).clamp(0.0, 1e9)));
    move || limit.is_some_and(|limit| start.elapsed() >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_passes() {
        let meter = Meter::start();
        let mut sum = 0_u64;
        while ticks() < meter.ticks.map(|ticks| ticks + 2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!((0.02..10.0).contains(&meter.core_seconds(1)), "{sum}");
    }
}
