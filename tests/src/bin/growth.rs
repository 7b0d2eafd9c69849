//! `growth COUNT…`: what many resources on three nodes cost while nobody writes, and how long a node with a third of them takes to be
//! replaced. Prints a row of Markdown for each count, in ascending order. Each replica takes 17 MiB of disk. Ctrl-C and
//! failures remove the lab. Needs root.

use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::Lab;
use mainstay_tests::{interrupt, wait_for};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const LIMIT: Duration = Duration::from_secs(120);
/// Nothing happens before it is measured, and while.
const REST: Duration = Duration::from_secs(5);
const WATCHED: Duration = Duration::from_secs(20);
/// The kernel counts processor time in these, in milliseconds.
const TICK_MS: f64 = 10.0;

fn main() -> Result<()> {
    let counts =
        std::env::args().skip(1).map(|word| word.parse().with_context(|| format!("`{word}` is no number")));
    let mut counts = counts.collect::<Result<Vec<usize>>>()?;
    ensure!(!counts.is_empty(), "usage: growth COUNT…, for example growth 1 10 100");
    counts.sort_unstable();
    let lab = Arc::new(Lab::new("growth")?);
    interrupt::remove(vec![lab.clone()], "mainstay lab --name growth down")?;
    let end = grow(&lab, &counts);
    interrupt::give_way();
    lab.down()?;
    end
}

fn grow(lab: &Lab, counts: &[usize]) -> Result<()> {
    lab.up(NODES.len() as u8)?;
    println!(
        "| resources | engine MiB | engine ms/s | engine wake-ups/s | agent MiB | agent ms/s | agent wake-ups/s | all primaries, s | all devices, s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut made = 0;
    for &count in counts {
        while made < count {
            lab.create_resource(&format!("r{made}"), "1MiB", &NODES, &["--journal", "16MiB"])?;
            made += 1;
        }
        wait_whole(lab)?;
        std::thread::sleep(REST);
        let before = all(lab)?;
        std::thread::sleep(WATCHED);
        let after = all(lab)?;
        let [engine, agent] = [0, 1].map(|program| mean(&before, &after, program));
        let (primaries, devices) = lose_a_node(lab)?;
        println!(
            "| {count} | {engine} | {agent} | {:.2} | {:.2} |",
            primaries.as_secs_f64(),
            devices.as_secs_f64()
        );
    }
    Ok(())
}

/// Every resource is served and has all its replicas in sync.
fn wait_whole(lab: &Lab) -> Result<()> {
    wait_for("every replica in sync", LIMIT, || {
        let resources = lab.status()?.resources;
        let poor = resources.iter().filter(|resource| {
            resource.primary.is_none() || !resource.replicas.iter().all(|replica| replica.in_sync)
        });
        let poor = poor.count();
        ensure!(poor == 0, "{poor} of {} resources are not whole", resources.len());
        Ok(())
    })
}

/// What the kernel has counted for a process.
struct Counted {
    resident_kib: u64,
    ticks: u64,
    wakeups: u64,
}

/// Of engine and agent of each node.
fn all(lab: &Lab) -> Result<Vec<[Counted; 2]>> {
    let of = |node: &str, program: &str| {
        let pid =
            *lab.pids(node, program)?.first().with_context(|| format!("no {program} runs on {node}"))?;
        let script = format!(
            "cd /proc/{pid}; sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\).*/\\1/p' status; sed 's/.*) //' stat | cut -d' ' -f12,13 | tr ' ' '\\n'; \
             sed -n 's/^voluntary_ctxt_switches:[^0-9]*//p' task/*/status"
        );
        let numbers = lab.shell(node, &script)?;
        let numbers = numbers.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [resident_kib, user, system, wakeups @ ..] = &numbers[..] else {
            anyhow::bail!("{program} on {node} ended while it was looked at")
        };
        Ok(Counted { resident_kib: *resident_kib, ticks: user + system, wakeups: wakeups.iter().sum() })
    };
    NODES.iter().map(|node| Ok([of(node, "engine")?, of(node, "agent")?])).collect()
}

/// Memory, processor time and wake-ups of a program, in the mean of the nodes.
fn mean(before: &[[Counted; 2]], after: &[[Counted; 2]], program: usize) -> String {
    let nodes = before.len() as f64;
    let mean = |of: &dyn Fn(&Counted, &Counted) -> f64| {
        before.iter().zip(after).map(|(before, after)| of(&before[program], &after[program])).sum::<f64>()
            / nodes
    };
    let memory = mean(&|_, after| after.resident_kib as f64 / 1024.0);
    let busy = mean(&|before, after| (after.ticks - before.ticks) as f64 * TICK_MS) / WATCHED.as_secs_f64();
    // A thread that has ended took its count with it.
    let wakeups =
        mean(&|before, after| after.wakeups.saturating_sub(before.wakeups) as f64) / WATCHED.as_secs_f64();
    format!("{memory:.1} | {busy:.1} | {wakeups:.0}")
}

/// Cuts the power of the node that serves most. How long until all that it served have another primary, and until those have their
/// devices.
fn lose_a_node(lab: &Lab) -> Result<(Duration, Duration)> {
    let resources = lab.status()?.resources;
    let served =
        |node: &str| resources.iter().filter(|resource| resource.primary.as_deref() == Some(node)).count();
    let lost = NODES.into_iter().max_by_key(|node| served(node)).context("there are nodes")?;
    let asked = NODES.into_iter().find(|node| *node != lost).context("there are others")?;
    let start = Instant::now();
    lab.kill(lost)?;
    let agent = lab.agent(asked)?;
    let mut primaries = None;
    let devices = wait_for("every device elsewhere", LIMIT, || {
        let status: mainstay_api::rest::StatusView = agent.get("/v1/status")?;
        let living = |primary: &Option<String>| primary.as_deref().is_some_and(|primary| primary != lost);
        ensure!(status.resources.iter().all(|resource| living(&resource.primary)), "not all have a primary");
        primaries.get_or_insert_with(|| start.elapsed());
        let without = status.resources.iter().filter(|resource| {
            !resource.replicas.iter().any(|replica| {
                Some(&replica.node) == resource.primary.as_ref()
                    && replica.live.as_ref().is_some_and(|live| !live.devices.is_empty())
            })
        });
        let without = without.count();
        ensure!(without == 0, "{without} have no device");
        Ok(start.elapsed())
    })?;
    lab.start(lost)?;
    Ok((primaries.context("was measured before")?, devices))
}
