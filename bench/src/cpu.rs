//! Where the processor time goes: every process by its role, kernel threads by their family, and
//! the machine as a whole.
//!
//! Times of processes and kernel threads are exact sums that the kernel prints in hundredths of a
//! second. A kernel worker serves every program that has work, so its time cannot be given to one
//! owner. On a machine with other load the kernel's time holds that load's part as well. The report
//! shows the time of other processes, so that a reader can judge.
//!
//! The kernel samples the machine's own times by ticks. They are too low where work comes in pieces
//! shorter than a tick, so they serve as a cross-check only.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A tick of `/proc`, in microseconds. The kernel gives user space 100 ticks per second, at any
/// rate of its own clock.
const TICK_US: u64 = 10_000;
/// Flag of a process that marks a thread of the kernel.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Gives the name of a process in the tables: its role, or `None` when it has nothing to do with
/// the benchmark.
pub type Role<'a> = &'a dyn Fn(&Process) -> Option<String>;

/// A process of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    /// Name, cut by the kernel to 15 bytes.
    pub name: String,
    /// User and system time, in microseconds.
    used_us: u64,
    kernel: bool,
}

impl Process {
    /// The words of its command line, empty once it has ended.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let text = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = text.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        words.filter(|word| !word.is_empty()).collect()
    }

    /// Its control group (version 2), as a path.
    #[must_use]
    pub fn group(&self) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
    }
}

/// Times of the whole machine, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Machine {
    busy: u64,
    steal: u64,
}

/// All times at one moment.
pub struct Snapshot {
    processes: BTreeMap<(u32, u64), Process>,
    children_us: u64,
    machine: Machine,
}

/// Processor time between two snapshots, in microseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Programs that this one started and that have ended: fio, sysbench.
    pub client_us: u64,
    /// By role.
    pub processes_us: BTreeMap<String, u64>,
    /// Kernel threads by family.
    pub kernel_us: BTreeMap<String, u64>,
    /// Everything else that runs on the machine, this program included.
    pub other_us: u64,
    /// The whole machine by its ticks.
    pub machine_us: u64,
    /// Time that the hypervisor gave to other machines meanwhile, in microseconds.
    pub steal_us: u64,
}

impl Usage {
    /// Processor time of the set-up, in microseconds: its processes and the kernel's threads,
    /// without the client.
    #[must_use]
    pub fn set_up_us(&self) -> u64 {
        self.processes_us.values().sum::<u64>() + self.kernel_us.values().sum::<u64>()
    }
}

impl Snapshot {
    #[must_use]
    pub fn take() -> Self {
        Self::of(Path::new("/proc"))
    }

    fn of(proc: &Path) -> Self {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut processes = BTreeMap::new();
        for entry in std::fs::read_dir(proc).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            if let Some(stat) = Stat::parse(&read(&entry.path().join("stat"))) {
                let process = Process {
                    pid,
                    name: stat.name,
                    used_us: stat.used * TICK_US,
                    kernel: stat.flags & PF_KTHREAD != 0,
                };
                processes.insert((pid, stat.started), process);
            }
        }
        let own = Stat::parse(&read(&proc.join("self/stat")));
        Self {
            processes,
            children_us: own.map_or(0, |own| own.children * TICK_US),
            machine: machine(&read(&proc.join("stat"))),
        }
    }

    /// Processor time that was used since this snapshot was taken.
    #[must_use]
    pub fn until_now(&self, role: Role<'_>) -> Usage {
        let now = Self::take();
        let mut usage = Usage {
            client_us: now.children_us.saturating_sub(self.children_us),
            machine_us: now.machine.busy.saturating_sub(self.machine.busy),
            steal_us: now.machine.steal.saturating_sub(self.machine.steal),
            ..Usage::default()
        };
        for (key, process) in &now.processes {
            let before = self.processes.get(key).map_or(0, |before| before.used_us);
            let used = process.used_us.saturating_sub(before);
            if used == 0 {
                continue;
            }
            if process.kernel {
                *usage.kernel_us.entry(family(&process.name)).or_default() += used;
            } else if let Some(role) = role(process) {
                *usage.processes_us.entry(role).or_default() += used;
            } else {
                usage.other_us += used;
            }
        }
        usage
    }
}

/// Kernel threads have names like `kworker/u4:1-loop3`, `ksoftirqd/0`, `xfsaild/loop3`,
/// `jbd2/vda-8`, `loop3`.
fn family(name: &str) -> String {
    match name.split_once(['/', ':']) {
        Some((front, _)) => front.to_owned(),
        None => name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(),
    }
}

struct Stat {
    name: String,
    flags: u64,
    /// Ticks.
    used: u64,
    /// Ticks of children that have ended and were waited for, and of theirs.
    children: u64,
    /// Ticks after the start of the machine; with the number it names the process.
    started: u64,
}

impl Stat {
    /// Reads the line of `/proc/PID/stat`; see proc(5). The name may hold anything, so it ends at
    /// the last `)`.
    fn parse(line: &str) -> Option<Self> {
        let (front, rest) = line.rsplit_once(')')?;
        let name = front.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The first of these is field 3 of the manual.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            name,
            flags: field(9)?,
            used: field(14)? + field(15)?,
            children: field(16)? + field(17)?,
            started: field(22)?,
        })
    }
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, guest,
/// guest_nice, where the last two are counted in the first two already.
fn machine(text: &str) -> Machine {
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
    let at = |place: usize| ticks.get(place).copied().unwrap_or(0);
    Machine { busy: (at(0) + at(1) + at(2) + at(5) + at(6)) * TICK_US, steal: at(7) * TICK_US }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_processes_may_hold_anything() {
        let line = "17 (a) b (c) S 1 17 17 0 -1 4194560 5 6 0 0 11 22 33 44 20 0 1 0 555 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.flags), ("a) b (c", 4_194_560));
        assert_eq!((stat.used, stat.children, stat.started), (33, 77, 555));
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn kernel_threads_belong_to_families() {
        let names = ["kworker/u4:1-loop3", "ksoftirqd/0", "loop12", "jbd2/vda-8", "migration/1"];
        assert_eq!(names.map(family), ["kworker", "ksoftirqd", "loop", "jbd2", "migration"]);
    }

    #[test]
    fn the_machine_is_busy_in_all_but_idle_and_waiting() {
        let times = machine("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 …");
        assert_eq!(times, Machine { busy: 31 * TICK_US, steal: 32 * TICK_US });
    }

    #[test]
    fn work_of_a_child_is_the_clients() {
        let before = Snapshot::take();
        let limit = std::time::Duration::from_secs(60);
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        crate::command::output(std::process::Command::new("sh").args(["-c", script]), limit).unwrap();
        let usage = before.until_now(&|_| None);
        assert!(usage.client_us > 0, "{usage:?}");
    }
}
