//! Costs of nodes that nobody uses, in a lab of their own.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Result, ensure};
use mainstay_tests::idle::{self, PROGRAMS, Wakeups};
use mainstay_tests::lab::Lab;
use std::time::Duration;

/// The start of the service and of its lab is over after this time.
const REST: Duration = Duration::from_secs(6);
const WATCHED: Duration = Duration::from_secs(15);
/// Most wake-ups for each second, of agent and engine together. Nearly all of them are heartbeats,
/// acknowledgements and pings, whose number does not depend on the machine.
const WAKEUPS_MAX: f64 = 190.0;
/// Threads that only wait for news, and how often they may wake up for each second.
const WAITING: [(&str, f64); 3] = [("agent-lane", 5.0), ("agent-lacks", 1.0), ("agent-fencer", 0.5)];
/// Most memory of agent and engine together (PSS).
const MEMORY_KIB_MAX: u64 = 40 << 10;

pub fn an_idle_node_wakes_up_seldom_and_takes_little_memory(cluster: &Cluster) -> Result<()> {
    let lab = Lab::new(&format!("{}-idle", cluster.lab.name))?;
    lab.up(3)?;
    idle::set_up(&lab, &NODES, LIMIT)?;
    std::thread::sleep(REST);
    let all = idle::wakeups(&lab, &NODES, WATCHED)?;
    let memory = NODES.iter().map(|node| memory(&lab, node)).collect::<Result<Vec<_>>>()?;
    lab.down()?;
    for ((node, wakeups), kib) in NODES.iter().zip(&all).zip(memory) {
        check(node, wakeups)?;
        ensure!(kib <= MEMORY_KIB_MAX, "agent and engine of {node} take {kib} KiB");
    }
    Ok(())
}

fn check(node: &str, wakeups: &Wakeups) -> Result<()> {
    let sum: f64 = PROGRAMS.iter().map(|program| idle::of_program(wakeups, program)).sum();
    eprintln!("  {node} woke up {sum:.1} times a second");
    ensure!(sum > 10.0, "{node} sends no heartbeats, or its threads were not found: {wakeups:?}");
    ensure!(sum <= WAKEUPS_MAX, "{node} wakes up {sum:.1} times a second: {wakeups:?}");
    for (thread, most) in WAITING {
        let rate = wakeups.get(&("agent", thread.to_owned())).copied().unwrap_or(0.0);
        ensure!(rate <= most, "{thread} of {node} wakes up {rate:.1} times a second");
    }
    Ok(())
}

fn memory(lab: &Lab, node: &str) -> Result<u64> {
    PROGRAMS.iter().map(|program| idle::memory_kib(lab, node, program)).sum()
}
