//! Processor time of this process and of the kernel's threads, which write for others and serve
//! loop devices.

use std::fs;

/// Flag in a process's `stat` that marks a thread of the kernel.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Microseconds so far. Kernel threads also work for other programs on the machine, and that time
/// is in it.
pub fn used_us() -> f64 {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spec` is a valid place for the result.
    #[allow(unsafe_code)]
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut spec) };
    assert_eq!(result, 0, "every Linux has that clock");
    let own = spec.tv_sec as f64 * 1e6 + spec.tv_nsec as f64 / 1e3;
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    own + processes.filter_map(|entry| kernel_thread_us(&entry.path())).sum::<f64>()
}

fn kernel_thread_us(process: &std::path::Path) -> Option<f64> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // The ninth field; the second one is a name in parentheses.
    let flags: u64 = stat.rsplit(')').next()?.split_whitespace().nth(6)?.parse().ok()?;
    if flags & PF_KTHREAD == 0 {
        return None;
    }
    let times = fs::read_to_string(process.join("schedstat")).ok()?;
    times.split_whitespace().next()?.parse::<f64>().ok().map(|ns| ns / 1000.0)
}
