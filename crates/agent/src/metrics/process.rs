//! Metrics of a process, from the kernel.

/// Clock ticks of `/proc` in a second: the same on every architecture that Linux runs on.
const TICKS_PER_S: u64 = 100;

/// Resources of one process, from `/proc/<pid>`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessSeen {
    pub cpu_us: u64,
    pub resident_bytes: u64,
    pub open_fds: u64,
    pub threads: u64,
}

/// Reads the resources of a process. `None` when there is no such process, or when the kernel's
/// text is not understood.
#[must_use]
pub fn look(pid: u32) -> Option<ProcessSeen> {
    let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let open_fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |fds| fds.count() as u64);
    parse(&read("stat")?, &read("status")?, open_fds)
}

fn parse(stat: &str, status: &str, open_fds: u64) -> Option<ProcessSeen> {
    // Behind the name, which may hold anything, come fields 3 and following of proc_pid_stat(5).
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(14 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()?.checked_add(ticks()?)?;
    let line = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Some(ProcessSeen {
        cpu_us: ticks.checked_mul(1_000_000 / TICKS_PER_S)?,
        resident_bytes: line("VmRSS")?.checked_mul(1024)?,
        open_fds,
        threads: line("Threads")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\ta) 1\nVmRSS:\t  300 kB\nVmRSSx:\t7 kB\nThreads:\t9\n";

    #[test]
    fn a_name_of_any_kind_does_not_move_the_fields() {
        let stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14";
        let seen = parse(stat, STATUS, 5).expect("understood");
        let expected = ProcessSeen { cpu_us: 2_000_000, resident_bytes: 300 * 1024, open_fds: 5, threads: 9 };
        assert_eq!(seen, expected);
        assert_eq!(parse("42 (a) S 1 2", STATUS, 0), None);
        assert_eq!(parse("", STATUS, 0), None);
        // A process that has ended and was not waited for.
        assert_eq!(parse(stat, "Threads:\t1\n", 0), None);
    }

    #[test]
    fn this_process_can_be_seen() {
        let seen = look(std::process::id()).expect("this process");
        assert!(seen.resident_bytes > 100_000 && seen.open_fds >= 3 && seen.threads >= 1, "{seen:?}");
        assert_eq!(look(u32::MAX), None);
    }
}
