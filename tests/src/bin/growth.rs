//! `growth [--replicas 1,2,3] [--out DIR] COUNT…`: how much many resources cost. It measures them
//! while no client writes, and while a tenth of them is written to. It also measures how long the
//! other nodes take to replace a node that serves its share of them.
//!
//! Each number of replicas gets a lab of as many nodes, at least three. The counts run in it in
//! ascending order. Prints a row of Markdown for each; with `--out` it also writes them into a
//! directory, with plots.
//!
//! Each replica takes 17 MiB of disk. Ctrl-C and failures remove the lab. Needs root and fio.

use anyhow::{Context, Result, bail, ensure};
use mainstay_api::rest::{EventsPage, ResourceView, StatusView};
use mainstay_bench::stats::Spread;
use mainstay_bench::svg::{Bar, on_one_scale};
use mainstay_tests::lab::Lab;
use mainstay_tests::measured::in_lab;
use mainstay_tests::metrics::Scrape;
use mainstay_tests::wait_for;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const NODES_MIN: usize = 3;
/// Enough for more than a thousand replicas, each with its file system.
const DISK: &str = "32GiB";
const LIMIT: Duration = Duration::from_secs(300);
/// Pause between a change of the load and the next measurement.
const REST: Duration = Duration::from_secs(5);
const WATCHED: Duration = Duration::from_secs(20);
/// Share of the resources that are written to: one in this many, one at least.
const BUSY_EVERY: usize = 10;
/// Writes of 4 KiB per second and busy resource.
const BUSY_RATE: u32 = 10;
/// The kernel counts processor time in these, in milliseconds.
const TICK_MS: f64 = 10.0;
const PROGRAMS: [&str; 2] = ["engine", "agent"];

struct Wanted {
    replicas: Vec<usize>,
    counts: Vec<usize>,
    out: Option<PathBuf>,
}

/// Cost of one program, in the mean of the nodes.
#[derive(Clone, Copy)]
struct Cost {
    resident_mib: f64,
    /// Milliseconds of processor time for each second.
    busy: f64,
    /// Voluntary context switches for each second.
    wakeups: f64,
}

struct Loss {
    primaries: Duration,
    devices: Duration,
    served: usize,
    /// Entries of the control plane that made the new primaries.
    entries: usize,
}

struct Row {
    replicas: usize,
    count: usize,
    /// Costs of engine and agent without load.
    idle: [Cost; 2],
    /// Costs of engine and agent while a tenth of the resources is written to. `None` if the load
    /// did not come to half of its rate, so that the costs say nothing.
    busy: Option<[Cost; 2]>,
    /// None where there is no other replica.
    loss: Option<Loss>,
}

fn main() -> Result<()> {
    let wanted = wanted(std::env::args().skip(1))?;
    in_lab("growth", |lab| measure(lab, &wanted))
}

fn wanted(words: impl Iterator<Item = String>) -> Result<Wanted> {
    let number = |word: &str| word.parse().with_context(|| format!("`{word}` is no number"));
    let mut wanted = Wanted { replicas: vec![3], counts: Vec::new(), out: None };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--replicas" => wanted.replicas = value()?.split(',').map(number).collect::<Result<_>>()?,
            "--out" => wanted.out = Some(value()?.into()),
            count => wanted.counts.push(number(count)?),
        }
    }
    wanted.counts.sort_unstable();
    let usage = "usage: growth [--replicas 1,2,3] [--out DIR] COUNT…, for example growth 1 10 100";
    ensure!(wanted.counts.first().is_some_and(|count| *count > 0), usage);
    ensure!(wanted.replicas.iter().all(|replicas| (1..=32).contains(replicas)), "1 to 32 replicas; {usage}");
    Ok(wanted)
}

fn measure(lab: &Lab, wanted: &Wanted) -> Result<()> {
    let mut rows = Vec::new();
    let mut table = head();
    print!("{table}");
    for &replicas in &wanted.replicas {
        let nodes: Vec<String> = (1..=replicas.max(NODES_MIN)).map(|number| format!("n{number}")).collect();
        let count = u8::try_from(nodes.len()).context("so many nodes")?;
        lab.up_with(count, &["--disk", DISK])?;
        let mut made = 0;
        for &count in &wanted.counts {
            while made < count {
                create(lab, made, &nodes, replicas)?;
                made += 1;
            }
            let row = row(lab, &nodes, replicas, count)?;
            let line = line(&row);
            print!("{line}");
            table += &line;
            rows.push(row);
        }
    }
    if let Some(dir) = &wanted.out {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let write = |file: &str, text: &str| {
            let path = dir.join(file);
            std::fs::write(&path, text).with_context(|| path.display().to_string())
        };
        write("growth.md", &table)?;
        for (file, text) in plots(&rows) {
            write(file, &text)?;
        }
    }
    Ok(())
}

/// The nodes take turns, so that each has its share of replicas and of primaries.
fn create(lab: &Lab, number: usize, nodes: &[String], replicas: usize) -> Result<()> {
    let chosen: Vec<&str> =
        (0..replicas).map(|replica| nodes[(number + replica) % nodes.len()].as_str()).collect();
    let more = ["--journal", "16MiB", "--scrub-interval", "off", "--preferred", chosen[0]];
    lab.create_resource(&format!("r{number}"), "1MiB", &chosen, &more)
}

fn row(lab: &Lab, nodes: &[String], replicas: usize, count: usize) -> Result<Row> {
    wait_whole(lab)?;
    std::thread::sleep(REST);
    let idle = watch(lab, nodes)?;
    let load = Load::start(lab, nodes)?;
    std::thread::sleep(REST);
    let before = writes(lab, nodes)?;
    let busy = watch(lab, nodes)?;
    let made = writes(lab, nodes)? - before;
    load.end()?;
    let wanted = count.div_ceil(BUSY_EVERY) as f64 * f64::from(BUSY_RATE) * WATCHED.as_secs_f64();
    let busy = (made >= wanted / 2.0).then_some(busy);
    let loss = if replicas > 1 { Some(lose_a_node(lab, nodes)?) } else { None };
    Ok(Row { replicas, count, idle, busy, loss })
}

/// Writes that the devices of all nodes have answered.
fn writes(lab: &Lab, nodes: &[String]) -> Result<f64> {
    let of = |node: &String| Ok(Scrape::from_cli(lab, node)?.sum("mainstay_requests_total", "op=\"write\""));
    nodes.iter().map(of).sum()
}

/// Waits until every resource is served and has all its replicas in sync.
fn wait_whole(lab: &Lab) -> Result<()> {
    wait_for("every replica in sync", LIMIT, || {
        let resources = lab.status()?.resources;
        let poor = resources.iter().filter(|resource| {
            device(resource).is_none() || !resource.replicas.iter().all(|replica| replica.in_sync)
        });
        let poor = poor.count();
        ensure!(poor == 0, "{poor} of {} resources are not whole", resources.len());
        Ok(())
    })
}

/// The node that serves a resource, and the device there.
fn device(resource: &ResourceView) -> Option<(String, String)> {
    let primary = resource.primary.clone()?;
    let live = resource.replicas.iter().find(|replica| replica.node == primary)?.live.as_ref()?;
    Some((primary, live.devices.first()?.path.clone()))
}

/// Writes to a tenth of the resources until the load is ended.
struct Load(Vec<std::process::Child>);

impl Load {
    fn start(lab: &Lab, nodes: &[String]) -> Result<Self> {
        let mut load = Self(Vec::new());
        let devices: Vec<_> = lab.status()?.resources.iter().step_by(BUSY_EVERY).filter_map(device).collect();
        for node in nodes {
            let here: Vec<&str> =
                devices.iter().filter(|(on, _)| on == node).map(|(_, path)| &**path).collect();
            if here.is_empty() {
                continue;
            }
            let rate = format!("--rate_iops={BUSY_RATE}");
            let runtime = format!("--runtime={}", (2 * REST + 2 * WATCHED).as_secs());
            let common = [
                "fio",
                "--rw=randwrite",
                "--bs=4k",
                "--direct=1",
                "--ioengine=psync",
                "--thread",
                "--time_based",
                &rate,
                &runtime,
            ];
            let mut words: Vec<String> = common.map(str::to_owned).to_vec();
            for (number, path) in here.iter().enumerate() {
                words.extend([format!("--name=w{number}"), format!("--filename={path}")]);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            load.0.push(lab.spawn(node, &words, &format!("fio-{node}.log"))?);
        }
        Ok(load)
    }

    /// Fails if a writer has ended by itself: a writer does that only when it cannot write.
    fn end(mut self) -> Result<()> {
        for fio in &mut self.0 {
            if let Some(status) = fio.try_wait()? {
                bail!("fio has ended with {status}; what it said is beside the state of the lab");
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for fio in &mut self.0 {
            // It may have ended already. This is the command that entered the node; fio ends with
            // it, or by itself soon after.
            let _ = fio.kill();
            let _ = fio.wait();
        }
    }
}

/// Counts of the kernel for one process.
struct Counted {
    resident_kib: u64,
    ticks: u64,
    wakeups: u64,
}

fn watch(lab: &Lab, nodes: &[String]) -> Result<[Cost; 2]> {
    let before = all(lab, nodes)?;
    let began = Instant::now();
    std::thread::sleep(WATCHED);
    let after = all(lab, nodes)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok([0, 1].map(|program| mean(&before, &after, program, seconds)))
}

/// Returns the counts of engine and agent of each node.
fn all(lab: &Lab, nodes: &[String]) -> Result<Vec<[Counted; 2]>> {
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
            bail!("{program} on {node} ended while it was looked at")
        };
        Ok(Counted { resident_kib: *resident_kib, ticks: user + system, wakeups: wakeups.iter().sum() })
    };
    nodes.iter().map(|node| Ok([of(node, PROGRAMS[0])?, of(node, PROGRAMS[1])?])).collect()
}

fn mean(before: &[[Counted; 2]], after: &[[Counted; 2]], program: usize, seconds: f64) -> Cost {
    let mean = |of: &dyn Fn(&Counted, &Counted) -> f64| {
        let pairs = before.iter().zip(after);
        pairs.map(|(before, after)| of(&before[program], &after[program])).sum::<f64>() / before.len() as f64
    };
    Cost {
        resident_mib: mean(&|_, after| after.resident_kib as f64 / 1024.0),
        busy: mean(&|before, after| after.ticks.saturating_sub(before.ticks) as f64 * TICK_MS) / seconds,
        // A thread that has ended took its count with it.
        wakeups: mean(&|before, after| after.wakeups.saturating_sub(before.wakeups) as f64) / seconds,
    }
}

/// Cuts the power of the node that serves most resources. Measures how long it takes until all of
/// them have another primary, and until they have their devices.
fn lose_a_node(lab: &Lab, nodes: &[String]) -> Result<Loss> {
    let resources = lab.status()?.resources;
    let of = |node: &str| resources.iter().filter(|of| of.primary.as_deref() == Some(node)).count();
    let lost = nodes.iter().max_by_key(|node| of(node)).context("there are nodes")?;
    let served = of(lost);
    let asked = nodes.iter().find(|node| *node != lost).context("there are others")?;
    let agent = lab.agent(asked)?;
    let events: EventsPage = agent.get("/v1/events?after=0&wait_ms=0")?;
    let start = Instant::now();
    lab.kill(lost)?;
    let mut primaries = None;
    let devices = wait_for("every device elsewhere", LIMIT, || {
        let status: StatusView = agent.get("/v1/status")?;
        let elsewhere =
            |of: &ResourceView| of.primary.as_deref().is_some_and(|primary| primary != lost.as_str());
        ensure!(status.resources.iter().all(elsewhere), "not all have a primary");
        primaries.get_or_insert_with(|| start.elapsed());
        let without = status.resources.iter().filter(|resource| device(resource).is_none()).count();
        ensure!(without == 0, "{without} have no device");
        Ok(start.elapsed())
    })?;
    let page: EventsPage = agent.get(&format!("/v1/events?after={}&wait_ms=0", events.last))?;
    // All changes by one entry have one time.
    let because = format!(": {lost} is dead");
    let made = page.events.iter().filter(|event| event.text.ends_with(&because)).map(|event| event.at_ms);
    let entries = made.collect::<BTreeSet<_>>().len();
    lab.start(lost)?;
    // The control plane's work after the loss must not count in the next row.
    wait_for("the node is back", LIMIT, || {
        let alive = Scrape::from_cli(lab, asked)?.get(&format!("mainstay_node_alive{{peer=\"{lost}\"}}"));
        ensure!(alive == Some(1.0), "{lost} is not alive yet");
        Ok(())
    })?;
    Ok(Loss { primaries: primaries.context("was measured before")?, devices, served, entries })
}

fn head() -> String {
    let columns = [
        "replicas",
        "resources",
        "engine MiB",
        "agent MiB",
        "engine ms/s idle",
        "busy",
        "engine wake-ups/s idle",
        "busy",
        "agent ms/s idle",
        "busy",
        "agent wake-ups/s idle",
        "busy",
        "served by the lost node",
        "their primaries, s",
        "their devices, s",
        "control entries",
    ];
    format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()))
}

fn line(row: &Row) -> String {
    let mut out = format!("| {} | {} |", row.replicas, row.count);
    for program in 0..PROGRAMS.len() {
        let last = row.busy.unwrap_or(row.idle);
        let _ = write!(out, " {:.1} |", last[program].resident_mib);
    }
    for program in 0..PROGRAMS.len() {
        let idle = row.idle[program];
        let busy = row.busy.map(|busy| busy[program]);
        let of = |of: fn(&Cost) -> f64, digits: usize| {
            busy.map_or("no load".to_owned(), |busy| format!("{:.digits$}", of(&busy)))
        };
        let _ = write!(
            out,
            " {:.1} | {} | {:.0} | {} |",
            idle.busy,
            of(|cost| cost.busy, 1),
            idle.wakeups,
            of(|cost| cost.wakeups, 0)
        );
    }
    match &row.loss {
        Some(loss) => {
            let (primaries, devices) = (loss.primaries.as_secs_f64(), loss.devices.as_secs_f64());
            let _ = write!(out, " {} | {primaries:.2} | {devices:.2} | {} |", loss.served, loss.entries);
        }
        None => out += " | none is elsewhere | | |",
    }
    out + "\n"
}

/// The plots, by file name: the figures that grow with the number of resources, and of replicas.
fn plots(rows: &[Row]) -> Vec<(&'static str, String)> {
    let names: Vec<String> =
        rows.iter().map(|row| format!("{} resources, {} replicas", row.count, row.replicas)).collect();
    let one = |value: f64| Spread { median: value, min: value, max: value, count: 1 };
    let plot = |title: &str, values: &dyn Fn(&Row) -> Vec<(&'static str, f64)>| {
        let bars: Vec<Bar<'_>> = rows
            .iter()
            .zip(&names)
            .flat_map(|(row, case)| {
                values(row).into_iter().map(move |(set_up, value)| Bar { case, set_up, value: one(value) })
            })
            .collect();
        on_one_scale(title, &bars)
    };
    let both = |of: fn(&Cost) -> f64| {
        move |row: &Row| {
            let mut bars = vec![("engine, idle", of(&row.idle[0])), ("agent, idle", of(&row.idle[1]))];
            if let Some(busy) = &row.busy {
                bars.extend([("engine, a tenth busy", of(&busy[0])), ("agent, a tenth busy", of(&busy[1]))]);
            }
            bars
        }
    };
    let lost = |row: &Row| match &row.loss {
        Some(loss) => {
            vec![("primaries", loss.primaries.as_secs_f64()), ("devices", loss.devices.as_secs_f64())]
        }
        None => Vec::new(),
    };
    vec![
        ("memory.svg", plot("resident MiB of a node", &both(|cost| cost.resident_mib))),
        (
            "processor.svg",
            plot("milliseconds of processor time for each second, of a node", &both(|cost| cost.busy)),
        ),
        ("wakeups.svg", plot("wake-ups for each second, of a node", &both(|cost| cost.wakeups))),
        (
            "failover.svg",
            plot("seconds from a power cut until all that the node served is served elsewhere", &lost),
        ),
    ]
}
