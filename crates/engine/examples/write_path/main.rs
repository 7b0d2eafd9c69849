//! Cost of a write on the shards of a primary and of its secondaries: three whole engines in this
//! process, one volume, writes at random places through its device. Prints a table for each depth.
//! Run with `--release`, as root. Arguments: writes to measure, bytes of each, then depths; 20000
//! 4096 1 32 if there are none.
//!
//! Afterwards the same is written to devices behind which only the system calls of a write are done
//! (see `floor.rs`), in turn with the engines, unless the writes are longer than one request. The
//! processor time of all is compared.
//!
//! Counts hardly depend on what else the machine does; times do. docs/internals/write-path.md
//! explains the rows.
//!
//! `read` before the numbers: reads of what was written instead, once it is in the volume.
//!
//! `floor MIB SECONDARIES` serves one such device, prints its path, and ends when its standard
//! input ends: for a file system and a database on the floor.

#[path = "../../tests/support/mod.rs"]
mod support;

mod cpu;
mod floor;
mod perf;
mod writer;

use floor::{Floor, Sizes};
use mainstay_api::engine::Request;
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::ring::{Fd, Ring};
use perf::Counter;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use support::counting::{self, Counting};
use support::{Engine, RESOURCE, fresh_dir, record};
use writer::{Direction, Span, transfer};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VOLUME_BYTES: u64 = 64 << 20;
const JOURNAL_BYTES: u64 = 64 << 20;
const WARM_UP: u64 = 4000;
/// Longest request that a loop device does not cut. The floor takes none that is shorter than what
/// it destages at once.
const WHOLE_BYTES_MAX: u64 = 448 << 10;

/// Rows of the table: what is counted by tracepoints. `-` where the kernel does not let us.
const TRACEPOINTS: [(&str, &str); 5] = [
    ("system calls", "raw_syscalls/sys_enter"),
    ("operations given to the ring", "io_uring/io_uring_submit_req"),
    ("of these, left to a worker thread", "io_uring/io_uring_queue_async_work"),
    ("of these, waiting for readiness", "io_uring/io_uring_poll_arm"),
    ("wake-ups of other threads", "sched/sched_waking"),
];

/// A thread that is watched.
struct Shard {
    tid: i32,
    place: usize,
    counters: Vec<Option<Counter>>,
}

/// Everything counted of a shard so far, in the order of [`ROWS`].
type Sample = Vec<Option<f64>>;

const ROWS: [&str; 5] =
    ["sleeps (voluntary context switches)", "preemptions", "page faults", "allocations", "CPU, µs"];

/// Number of parts of a measurement. For processor time the best tenth of them counts: other work
/// on the machine makes it longer and never shorter.
const PARTS: usize = 50;

impl Shard {
    fn new(tid: i32, place: usize) -> Self {
        let counters = TRACEPOINTS.iter().map(|(_, point)| Counter::new(tid, point).ok()).collect();
        Self { tid, place, counters }
    }

    fn sample(&self) -> Sample {
        let task = |file: &str| {
            std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.tid)).expect("the shard lives")
        };
        let status = task("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<f64>().ok())
        };
        // The tenth field; the second one is a name in parentheses, which may hold spaces.
        let faults =
            task("stat").rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok());
        let cpu_ns = task("schedstat").split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
        let mut sample: Sample =
            self.counters.iter().map(|counter| counter.as_ref().map(|c| c.read() as f64)).collect();
        sample.push(field("voluntary_ctxt_switches:"));
        sample.push(field("nonvoluntary_ctxt_switches:"));
        sample.push(faults);
        sample.push(Some(counting::count(self.place) as f64));
        sample.push(cpu_ns.map(|ns| ns / 1000.0));
        sample
    }
}

/// `samples`: of every shard, before the first part and after each.
fn print(word: &str, depth: u64, count: u64, seconds: f64, took: &mut [f64], samples: &[Vec<Sample>]) {
    took.sort_by(f64::total_cmp);
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    println!(
        "\n## depth {depth}: {count} {word}s, {:.0} per second, median {:.0} µs, 99 in 100 within {:.0} µs\n",
        count as f64 / seconds,
        at(0.5),
        at(0.99)
    );
    println!("| per {word} | primary | secondary |\n|---|---|---|");
    for (row, name) in TRACEPOINTS.iter().map(|(name, _)| name).chain(&ROWS).enumerate() {
        let of = |shard: usize| {
            let all: Option<Vec<f64>> = samples.iter().map(|sample| sample[shard][row]).collect();
            let all = all?;
            if *name != "CPU, µs" {
                return Some((all[PARTS] - all[0]) / count as f64);
            }
            let part = count as f64 / PARTS as f64;
            let mut parts: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]) / part).collect();
            parts.sort_by(f64::total_cmp);
            Some(parts[PARTS / 10])
        };
        let show = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        let secondary = of(1).zip(of(2)).map(|(one, other)| (one + other) / 2.0);
        println!("| {name} | {} | {} |", show(of(0)), show(secondary));
    }
}

/// How often the engines and their floors are measured in turn.
const ROUNDS: usize = 5;

/// Processor time for each write to each of these devices, the writer's included: the median of all
/// rounds.
fn compare(depth: u64, count: u64, span: Span, devices: &[(&str, Fd)], ring: &mut Ring, seed: &mut u64) {
    let mut spent = vec![Vec::new(); devices.len()];
    let mut rates = vec![Vec::new(); devices.len()];
    for _ in 0..ROUNDS {
        for (n, (_, device)) in devices.iter().enumerate() {
            transfer(ring, device, span, depth, WARM_UP.min(count), seed);
            let (before, began) = (cpu::used_us(), Instant::now());
            transfer(ring, device, span, depth, count, seed);
            rates[n].push(count as f64 / began.elapsed().as_secs_f64());
            spent[n].push((cpu::used_us() - before) / count as f64);
        }
    }
    println!("\n## depth {depth}: {ROUNDS} rounds of {count} writes to each in turn\n");
    println!(
        "| behind the device | CPU µs per write, kernel threads and writer included | spread | writes per second |"
    );
    println!("|---|---|---|---|");
    for ((name, _), (spent, rates)) in devices.iter().zip(spent.iter_mut().zip(&mut rates)) {
        spent.sort_by(f64::total_cmp);
        rates.sort_by(f64::total_cmp);
        let (low, high) = (spent[0], spent[ROUNDS - 1]);
        println!("| {name} | {:.1} | {low:.1} to {high:.1} | {:.0} |", spent[ROUNDS / 2], rates[ROUNDS / 2]);
    }
}

/// Writes the whole device, and waits until all of it is in the volume.
fn fill(device: &Fd) {
    let mib = BufferPool::new(0).copy_of(&vec![0x5a; 1 << 20]);
    let file = std::fs::File::from(device.try_clone().expect("one more descriptor"));
    for at in (0..VOLUME_BYTES).step_by(mib.len()) {
        file.write_all_at(&mib, at).expect("written");
    }
    file.sync_data().expect("durable");
    // The engines destage all of it while nothing else is to be done.
    std::thread::sleep(Duration::from_secs(3));
}

/// Serves a device of `mib` MiB. Behind it nothing is done but the system calls of a write to
/// `secondaries` secondaries.
fn serve(mib: u64, secondaries: usize) {
    let base = fresh_dir("write-path-floor");
    let sizes = Sizes { volume: mib << 20, journal: JOURNAL_BYTES, unit: 4096 };
    let floor = Floor::start(&base, sizes, Some(secondaries));
    println!("{}", floor.path.display());
    // Nothing is written to it: this waits for its end.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    floor.stop();
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [command, mib, secondaries] = &words[..]
        && command == "floor"
    {
        let secondaries = secondaries.parse().expect("a number of secondaries");
        return serve(mib.parse().expect("a number of MiB"), secondaries);
    }
    let (direction, words) = match words.split_first() {
        Some((first, rest)) if first == "read" => (Direction::Read, rest),
        _ => (Direction::Write, &words[..]),
    };
    let arguments: Vec<u64> = words.iter().map(|word| word.parse().expect("a number")).collect();
    let count = arguments.first().copied().unwrap_or(20_000);
    let request_bytes = arguments.get(1).copied().unwrap_or(4096);
    let depths = if arguments.len() > 2 { arguments[2..].to_vec() } else { vec![1, 32] };
    let span = Span { direction, volume_bytes: VOLUME_BYTES, request_bytes };
    let base = fresh_dir("write-path");
    let (told, shards) = mpsc::channel();
    let mut engines = Vec::new();
    let mut watched = Vec::new();
    for node in 1..=3 {
        let told = told.clone();
        let begin = move || {
            // SAFETY: takes nothing and cannot fail.
            #[allow(unsafe_code)]
            let tid = unsafe { libc::gettid() };
            told.send((tid, counting::place())).expect("awaited");
        };
        engines.push(Engine::start_on(node, &base, |_| {}, begin));
        let (tid, place) = shards.recv_timeout(Duration::from_secs(10)).expect("a shard");
        watched.push(Shard::new(tid, place));
    }
    for (engine, node) in engines.iter_mut().zip(1..) {
        engine.create_with(RESOURCE, &format!("r-n{node}"), vec![VOLUME_BYTES], JOURNAL_BYTES);
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }
    let device: Fd = Arc::new(engines[0].device().into());
    let tids: Vec<String> = watched.iter().map(|shard| shard.tid.to_string()).collect();
    println!("shards: threads {} of process {}", tids.join(", "), std::process::id());

    let listened = support::listen(engines);
    let mut ring = Ring::new().expect("a ring");
    let mut seed = 1;
    if direction == Direction::Read {
        fill(&device);
    }
    for depth in depths.iter().copied() {
        transfer(&mut ring, &device, span, depth, WARM_UP.min(count), &mut seed);
        let sample = || watched.iter().map(Shard::sample).collect::<Vec<_>>();
        let (mut samples, mut took) = (vec![sample()], Vec::new());
        let began = Instant::now();
        for _ in 0..PARTS {
            took.extend(transfer(&mut ring, &device, span, depth, count / PARTS as u64, &mut seed));
            samples.push(sample());
        }
        print(direction.word(), depth, took.len() as u64, began.elapsed().as_secs_f64(), &mut took, &samples);
    }
    if direction == Direction::Write && request_bytes <= WHOLE_BYTES_MAX {
        let sizes = Sizes { volume: VOLUME_BYTES, journal: JOURNAL_BYTES, unit: request_bytes as usize };
        let floors = [None, Some(0), Some(2)].map(|secondaries| Floor::start(&base, sizes, secondaries));
        let names = ["nothing", "one copy, system calls alone", "three copies, system calls alone"];
        let mut devices: Vec<(&str, Fd)> = vec![("three engines", Fd::clone(&device))];
        devices.extend(names.into_iter().zip(floors.iter().map(|floor| Fd::clone(&floor.device))));
        for depth in depths {
            compare(depth, count, span, &devices, &mut ring, &mut seed);
        }
        drop(devices);
        floors.into_iter().for_each(Floor::stop);
    }
    drop(device);
    let mut engines = listened();
    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}
