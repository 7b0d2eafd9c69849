//! `idle [SECONDS]`: how often the threads of agent and engine wake up, and how much memory these
//! programs take, on three nodes with one resource and one service that nobody uses.
//!
//! Prints a table of Markdown. Ctrl-C and failures remove the lab. Needs root.

use anyhow::{Context, Result};
use mainstay_tests::idle::{self, PROGRAMS};
use mainstay_tests::measured::in_lab;
use std::collections::BTreeSet;
use std::time::Duration;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const LIMIT: Duration = Duration::from_secs(60);
/// Pause after the start of the service.
const REST: Duration = Duration::from_secs(10);
const SECONDS: u64 = 30;
/// Threads that wake up less often, in times for each second, are left out.
const SELDOM: f64 = 0.05;

fn main() -> Result<()> {
    let seconds = match std::env::args().nth(1) {
        Some(word) => {
            word.parse().with_context(|| format!("usage: idle [SECONDS]; `{word}` is no number"))?
        }
        None => SECONDS,
    };
    in_lab("idle", |lab| {
        lab.up(3)?;
        let primary = idle::set_up(lab, &NODES, LIMIT)?;
        std::thread::sleep(REST);
        let wakeups = idle::wakeups(lab, &NODES, Duration::from_secs(seconds))?;
        let leader = lab.leader()?;
        let role = |node: &str| match (node == leader, node == primary) {
            (true, true) => "leader, primary",
            (true, false) => "leader",
            (false, true) => "primary",
            (false, false) => "neither",
        };
        let row = |cells: &[String]| println!("| {} |", cells.join(" | "));
        let head = NODES.iter().map(|node| format!("{node} ({})", role(node)));
        row(&[vec!["wake-ups for each second".into()], head.collect()].concat());
        println!("|---|---|---|---|");
        let threads: BTreeSet<_> = wakeups.iter().flat_map(|node| node.keys().cloned()).collect();
        for thread in threads {
            let rates: Vec<f64> = wakeups.iter().map(|node| *node.get(&thread).unwrap_or(&0.0)).collect();
            if rates.iter().any(|rate| *rate >= SELDOM) {
                let cells = rates.iter().map(|rate| format!("{rate:.1}"));
                row(&[vec![format!("{} `{}`", thread.0, thread.1)], cells.collect()].concat());
            }
        }
        for program in PROGRAMS {
            let cells = wakeups.iter().map(|node| format!("{:.1}", idle::of_program(node, program)));
            row(&[vec![format!("{program}, all threads")], cells.collect()].concat());
        }
        for program in PROGRAMS {
            let mut cells = vec![format!("{program}, memory (PSS)")];
            for node in NODES {
                cells.push(format!("{:.1} MiB", idle::memory_kib(lab, node, program)? as f64 / 1024.0));
            }
            row(&cells);
        }
        Ok(())
    })
}
