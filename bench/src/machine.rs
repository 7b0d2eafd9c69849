//! Description of the machine, without which no figure means anything.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub system: String,
    /// `none`, or that the machine has one.
    pub hypervisor: String,
    pub clock: String,
    /// Where the disks of the set-ups lie: device, file system, options.
    pub disk: String,
    /// Programs that took part, each with the version that it prints.
    pub programs: BTreeMap<String, String>,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line that begins with `name`, after its colon.
fn value(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once([':', '=']).map_or(String::new(), |(_, value)| value.trim().trim_matches('"').to_owned())
}

/// First line that a program prints when it is run with these words. Empty when there is no such
/// program.
fn said(words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let done = crate::command::finish(&mut command, Duration::from_secs(10));
    done.map_or(String::new(), |done| done.stdout.lines().next().unwrap_or_default().trim().to_owned())
}

/// Finds the mount that a path lies on: its device, file system and options.
fn mount_of(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = read("/proc/self/mounts");
    let lies_on = |line: &&str| line.split(' ').nth(1).is_some_and(|point| path.starts_with(point));
    let longest = |line: &&str| line.split(' ').nth(1).map_or(0, str::len);
    let line = mounts.lines().filter(lies_on).max_by_key(longest).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [device, _, kind, options, ..] => format!("{device}, {kind} ({options})"),
        _ => String::new(),
    }
}

impl Machine {
    /// Asks the machine. `disk` is a path where the set-ups keep their disks; `programs` are asked
    /// for their versions with the words given.
    #[must_use]
    pub fn describe(disk: &Path, programs: &[&[&str]]) -> Self {
        let info = read("/proc/cpuinfo");
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let virtual_one = value(&info, "flags").split(' ').any(|flag| flag == "hypervisor");
        let versions = programs.iter().map(|words| (words[0].to_owned(), said(words)));
        Self {
            processor: value(&info, "model name"),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: value(&read("/etc/os-release"), "PRETTY_NAME"),
            hypervisor: if virtual_one { "a virtual machine" } else { "none" }.to_owned(),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource").trim().to_owned(),
            disk: mount_of(disk),
            programs: versions.filter(|(_, version)| !version.is_empty()).collect(),
        }
    }

    /// Lines of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "- processor: {}, {} of them; hypervisor: {}\n- memory: {} MiB; clock: {}\n- system: {}, Linux {}\n- disk: {}\n",
            self.processor,
            self.processors,
            self.hypervisor,
            self.memory_bytes >> 20,
            self.clock,
            self.system,
            self.kernel,
            self.disk
        );
        for (program, version) in &self.programs {
            text += &format!("- `{program}`: {version}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_with_processors_memory_kernel_and_disk() {
        let machine =
            Machine::describe(Path::new("/tmp"), &[&["sh", "-c", "echo 1.2"], &["no-such-program"]]);
        assert!(machine.processors > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
        assert!(!machine.disk.is_empty());
        assert_eq!(machine.programs.get("sh").map(String::as_str), Some("1.2"));
        assert_eq!(machine.programs.len(), 1);
    }
}
