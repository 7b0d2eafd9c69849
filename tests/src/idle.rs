//! Costs of a node that nobody uses: how often the threads of its programs wake up, and how much
//! memory these programs take.

use crate::lab::Lab;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The programs that are looked at.
pub const PROGRAMS: [&str; 2] = ["agent", "engine"];

/// A service that does nothing, on the resource `idle`.
pub const SERVICE: &str = "name = \"idle\"\nresource = \"idle\"\n\
    [mount]\npath = \"/srv/idle\"\nfstype = \"ext4\"\nmkfs = true\n\
    [[process]]\nname = \"idle\"\ncommand = [\"/bin/sleep\", \"infinity\"]\n";

/// Wake-ups for each second, by program and name of the threads.
pub type Wakeups = BTreeMap<(&'static str, String), f64>;

/// Voluntary context switches so far, by program, thread id and name.
type Switches = BTreeMap<(&'static str, String, String), u64>;

/// Makes the resource and the service `idle` on three nodes. Returns the primary.
///
/// # Errors
/// When they do not come up within `limit`.
pub fn set_up(lab: &Lab, nodes: &[&str], limit: Duration) -> Result<String> {
    lab.create_resource("idle", "64MiB", nodes, &["--scrub-interval", "off"])?;
    lab.wait_in_sync("idle", limit)?;
    lab.apply_service("idle", SERVICE)?;
    lab.wait_running("idle", limit)
}

/// Counts the wake-ups of each of these nodes over the same `time`.
///
/// # Errors
/// When a program does not run.
pub fn wakeups(lab: &Lab, nodes: &[&str], time: Duration) -> Result<Vec<Wakeups>> {
    let all = || nodes.iter().map(|node| switches(lab, node)).collect::<Result<Vec<_>>>();
    let (before, began) = (all()?, Instant::now());
    std::thread::sleep(time);
    let (after, seconds) = (all()?, began.elapsed().as_secs_f64());
    let rates = |(before, after): (&Switches, &Switches)| {
        let mut rates = Wakeups::new();
        for (thread, count) in after {
            let new = count - before.get(thread).copied().unwrap_or(0).min(*count);
            *rates.entry((thread.0, thread.2.clone())).or_default() += new as f64 / seconds;
        }
        rates
    };
    Ok(before.iter().zip(&after).map(rates).collect())
}

/// Wake-ups for each second of a whole program.
#[must_use]
pub fn of_program(wakeups: &Wakeups, program: &str) -> f64 {
    wakeups.iter().filter(|((of, _), _)| *of == program).map(|(_, rate)| rate).sum()
}

/// Memory of a program on a node, in KiB: its share of what processes share counted in part (PSS).
///
/// # Errors
/// When the program does not run.
pub fn memory_kib(lab: &Lab, node: &str, program: &str) -> Result<u64> {
    let pid = pid(lab, node, program)?;
    let said =
        lab.shell(node, &format!("sed -n 's/^Pss:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/{pid}/smaps_rollup"))?;
    said.trim().parse().with_context(|| format!("`{}` is no number of KiB", said.trim()))
}

fn pid(lab: &Lab, node: &str, program: &str) -> Result<u32> {
    lab.pids(node, program)?.first().copied().with_context(|| format!("no {program} runs on {node}"))
}

fn switches(lab: &Lab, node: &str) -> Result<Switches> {
    let mut found = Switches::new();
    for program in PROGRAMS {
        let pid = pid(lab, node, program)?;
        let fields = "-e ^Name: -e ^voluntary_ctxt_switches:";
        // A thread may end meanwhile.
        let said =
            lab.shell(node, &format!("cd /proc/{pid}/task; grep {fields} */status 2>/dev/null; true"))?;
        let mut names = BTreeMap::new();
        for line in said.lines() {
            let (file, rest) = line.split_once(':').with_context(|| line.to_owned())?;
            let (field, value) = rest.split_once(':').with_context(|| line.to_owned())?;
            if field == "Name" {
                names.insert(file, value.trim());
            } else if let Some(name) = names.get(file) {
                let key = (program, file.to_owned(), (*name).to_owned());
                found.insert(key, value.trim().parse().with_context(|| line.to_owned())?);
            }
        }
        ensure!(!names.is_empty(), "{program} on {node} ended while it was looked at");
    }
    Ok(found)
}
