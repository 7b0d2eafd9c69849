//! Cost of an agent whose record holds 1,000 resources, and of the history of a node with 100 busy
//! resources. `make bench-api` runs this with optimised code and prints a table;
//! bench/RESULTS.md has the last ones. Nothing here fails for being slow: a benchmark is no test.
//!
//! The agents are processes of their own on one machine, three of them, with a replicated record on
//! its disk. Only the engines are pretended, by threads of the test: they say of each replica what
//! an engine would say, and hold no data.

use crate::support::TestNode;
use crate::{create, eventually, one_node, three_nodes};
use mainstay_agent::history::files::Writer;
use mainstay_agent::history::{directory, files::BYTES_MAX};
use mainstay_api::rest::{LoadPage, ResourceView};
use mainstay_history::{Minute, NodeUse, Peer, READ, Stage, WRITE, Work};
use mainstay_types::{NodeId, ResourceId};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

const RESOURCES: usize = 1000;
/// Requests at once while resources are made.
const MAKERS: usize = 8;
/// Length of a measurement.
const MEASURED: Duration = Duration::from_secs(10);
/// Length of the measurement of an idle stream, which costs little.
const WATCHED: Duration = Duration::from_secs(60);
const BUSY: u64 = 100;
const MINUTE_MS: u64 = 60_000;
const KEPT_MS: u64 = 8 * 24 * 60 * MINUTE_MS;

/// One connection that asks again and again, as a console or a program does.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn to(node: &TestNode) -> Self {
        let stream = UnixStream::connect(node.run_dir().join("agent.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(BufReader::new(stream))
    }

    /// The body of an answer.
    fn get(&mut self, path: &str) -> Vec<u8> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{path}: {line}");
        let mut length = None;
        while line.trim() != "" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            let named = line.to_lowercase();
            length = named.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().ok());
        }
        let mut body = vec![0; length.expect("an answer with its length")];
        self.0.read_exact(&mut body).unwrap();
        body
    }
}

/// Processor time of a process so far.
fn processor_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    // utime and stime, in hundredths of a second.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// A line of /proc/PID/status, in KiB.
fn memory_kib(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").trim().parse().unwrap()
}

/// Asks for a path again and again. Returns the number of answers, the bytes of one, the median of
/// the times in milliseconds, and the processor time of the asked agent.
fn asked(node: &TestNode, path: &str) -> (usize, usize, f64, Duration) {
    let mut connection = Connection::to(node);
    let bytes = connection.get(path).len();
    let (began, before) = (Instant::now(), processor_time(node.agent_pid()));
    let mut times = Vec::new();
    while began.elapsed() < MEASURED {
        let asked = Instant::now();
        connection.get(path);
        times.push(asked.elapsed());
    }
    let cost = processor_time(node.agent_pid()) - before;
    times.sort();
    (times.len(), bytes, times[times.len() / 2].as_secs_f64() * 1000.0, cost)
}

fn table_of_requests(node: &TestNode, resources: usize) {
    println!("\n{resources} resources\n");
    println!(
        "| request | answer, KiB | median, ms | processor of the agent, ms | requests a second on one processor |"
    );
    println!("|---|---|---|---|---|");
    for path in [
        "/v1/resources",
        "/v1/status",
        "/v1/resources/r0",
        "/v1/resources/r0/settings",
        "/v1/cluster",
        "/metrics",
    ] {
        let (count, bytes, median_ms, cost) = asked(node, path);
        let each_ms = cost.as_secs_f64() * 1000.0 / count as f64;
        let kib = bytes as f64 / 1024.0;
        println!("| `GET {path}` | {kib:.1} | {median_ms:.2} | {each_ms:.3} | {:.0} |", 1000.0 / each_ms);
    }
}

/// Processor time of the agent in a minute, as a share of one processor.
fn share(node: &TestNode) -> f64 {
    let before = processor_time(node.agent_pid());
    std::thread::sleep(WATCHED);
    (processor_time(node.agent_pid()) - before).as_secs_f64() / WATCHED.as_secs_f64() * 100.0
}

/// Measures the cost of a reader of the stream while nothing changes. The console reads again only
/// after a change that the stream tells, so this is the cost of an idle page of it.
fn cost_of_a_stream(node: &TestNode, resources: usize) {
    let without = share(node);
    let mut stream = UnixStream::connect(node.run_dir().join("agent.sock")).unwrap();
    stream.write_all(b"GET /v1/stream HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut seen = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        drop(seen.read_to_end(&mut text));
        String::from_utf8_lossy(&text).matches("event: change").count()
    });
    std::thread::sleep(Duration::from_secs(5));
    let with = share(node);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    let changes = reader.join().unwrap();
    println!(
        "{resources} resources: an idle agent takes {without:.2} % of a processor, and {with:.2} % with a stream: {:.2} % for it; {changes} changes told",
        with - without
    );
}

fn make(node: &TestNode, from: usize, to: usize) {
    std::thread::scope(|scope| {
        for maker in 0..MAKERS {
            scope.spawn(move || {
                (from..to)
                    .filter(|at| at % MAKERS == maker)
                    .for_each(|at| drop(create(node, &format!("r{at}"))));
            });
        }
    });
    let is_served = |view: &ResourceView| view.primary.is_some();
    eventually("primaries of all resources", || {
        let all: Vec<ResourceView> = node.client().get("/v1/resources").unwrap();
        all.len() == to && all.iter().all(is_served)
    });
}

#[test]
#[ignore = "a benchmark: make bench-api"]
fn requests_and_a_stream_with_a_thousand_resources() {
    let nodes = three_nodes(120);
    make(&nodes[0], 0, 10);
    table_of_requests(&nodes[0], 10);
    cost_of_a_stream(&nodes[0], 10);
    let began = Instant::now();
    make(&nodes[0], 10, RESOURCES);
    println!("\n{} resources were made in {:.0} s", RESOURCES - 10, began.elapsed().as_secs_f64());
    table_of_requests(&nodes[0], RESOURCES);
    cost_of_a_stream(&nodes[0], RESOURCES);
    let kib = memory_kib(nodes[0].agent_pid(), "VmRSS");
    println!("memory of the agent: {:.0} MiB", kib as f64 / 1024.0);
}

/// A replica whose device does 2,000 requests a second, with two peers: its work of a minute.
fn busy(seed: u64) -> Work {
    let mut work = Work {
        name: format!("r{seed}"),
        primary_ms: MINUTE_MS,
        journal_permille: 300 + seed,
        disk_written_bytes: 2_000_000_000 + seed,
        disk_read_bytes: 900_000_000 + seed,
        ..Work::default()
    };
    for kind in [READ, WRITE] {
        let requests = &mut work.requests[kind];
        (requests.bytes, requests.time_us) = (60_000 * 16_384 + seed, 60_000 * 700 + seed);
        let buckets = requests.buckets.0[5..17].iter_mut().enumerate();
        buckets.for_each(|(at, count)| *count = 9000 / (1 + at as u64) + seed);
    }
    let stage = Stage { count: 40_000 + seed, time_us: 40_000 * 300 + seed };
    (work.journal, work.commit, work.read) = (stage, stage, stage);
    for node in [2, 3] {
        let peer = Peer { acknowledged: stage, sent_bytes: 1_000_000_000 + seed, ..Peer::default() };
        work.peers.insert(NodeId(node), peer);
    }
    work
}

#[test]
#[ignore = "a benchmark: make bench-api"]
fn the_history_of_a_hundred_busy_resources() {
    let mut node = one_node(121);
    node.kill_agent();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let place = directory(&node.state_dir());
    let mut writer = Writer::new(place.clone());
    let resources: std::collections::BTreeMap<_, _> =
        (1..=BUSY).map(|at| (ResourceId(at), busy(at))).collect();
    let began = Instant::now();
    let mut end_ms = now - KEPT_MS;
    while end_ms < now {
        end_ms += MINUTE_MS;
        let minute =
            Minute { end_ms, span_ms: MINUTE_MS, node: NodeUse::default(), resources: resources.clone() };
        writer.append(&minute).unwrap();
    }
    let files = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "8 days of {BUSY} busy primaries take {:.1} MiB of disk, {:.0} MiB at most; written in {:.0} s",
        mib(files.sum()),
        mib(BYTES_MAX),
        began.elapsed().as_secs_f64()
    );
    node.start_agent();
    let pid = node.agent_pid();
    let before = memory_kib(pid, "VmRSS");
    println!("memory of the agent before the first question: {:.1} MiB", before as f64 / 1024.0);
    for (words, from_ms, step_ms) in [
        ("the last hour, one part", now - 60 * MINUTE_MS, 0),
        ("8 days, one part", now - KEPT_MS, 0),
        ("8 days by the hour", now - KEPT_MS, 60 * MINUTE_MS),
    ] {
        // The highest amount so far is forgotten.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        let (began, cpu) = (Instant::now(), processor_time(pid));
        let path = format!("/v1/load?from_ms={from_ms}&to_ms={now}&step_ms={step_ms}");
        let page: LoadPage = node.client().get(&path).unwrap();
        let cells: usize = page.points.iter().map(|point| point.resources.len()).sum();
        let more = memory_kib(pid, "VmHWM").saturating_sub(before);
        println!(
            "{words}: {:.0} ms, {:.0} ms of the processor, {} points, {cells} cells, at most {:.1} MiB more memory",
            began.elapsed().as_secs_f64() * 1000.0,
            (processor_time(pid) - cpu).as_secs_f64() * 1000.0,
            page.points.len(),
            more as f64 / 1024.0
        );
    }
}
