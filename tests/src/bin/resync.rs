//! `resync [ROUNDS]`: how fast a returning replica is copied again, and how much data moves. The
//! yardstick is one stream of as many bytes between the same two nodes and disks.
//!
//! The volume has 4 GiB and is full of data that does not compress. While one of its two replicas
//! is away, a tenth of its extents is written. The second time, pages of a database are written all
//! over it. Both are more than the journal keeps. No client writes during the copies.
//!
//! Prints two rows of Markdown for each round. Ctrl-C and failures remove the lab. Needs root,
//! socat, fio and 10 GiB of disk.

use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{PeerView, ResourceView};
use mainstay_tests::lab::Lab;
use mainstay_tests::measured::in_rounds;
use mainstay_tests::wait_for;
use std::process::Stdio;
use std::time::{Duration, Instant};

const NAME: &str = "resync";
const VOLUME_MIB: u64 = 4096;
/// Size of the changes, and of the stream, in MiB.
const CHANGED: u64 = VOLUME_MIB / 10;
/// Smaller than the changes, so that the journal cannot replace the copy.
const JOURNAL: &str = "64MiB";

/// Writes made while a replica is away, in no order.
struct Writes {
    what: &'static str,
    kib: u64,
    count: u64,
}

const WHOLE: Writes = Writes { what: "whole extents", kib: 1024, count: CHANGED };
/// On average two of each extent.
const PAGES: Writes = Writes { what: "pages of 16 KiB", kib: 16, count: 2 * VOLUME_MIB };
const LIMIT: Duration = Duration::from_secs(300);
const POOL: &str = "/var/lib/mainstay/pools/default";
const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    in_rounds(NAME, measure)
}

fn measure(lab: &Lab, rounds: u32) -> Result<()> {
    lab.up(3)?;
    lab.create_resource(NAME, &format!("{VOLUME_MIB}MiB"), &["n1", "n2"], &["--journal", JOURNAL])?;
    let source = lab.primary(NAME)?;
    let target = if source == "n1" { "n2" } else { "n1" };
    let view = lab.resource(NAME)?;
    let live = view.replicas.iter().find(|replica| replica.node == source).and_then(|one| one.live.as_ref());
    let device = live.and_then(|live| live.devices.first()).context("the primary has a device")?.path.clone();
    let fill = format!("dd if=/dev/urandom of={device} bs=1M count={VOLUME_MIB} oflag=direct status=none");
    lab.shell(&source, &fill)?;
    println!("| written | MiB | moved MiB | of written | copied in s | MiB/s | one stream MiB/s | of it |");
    println!("|---|---|---|---|---|---|---|---|");
    for (round, writes) in (0..rounds).flat_map(|round| [(round, WHOLE), (round, PAGES)]) {
        let before = stream(lab, &source, target)?;
        lab.kill(target)?;
        change(lab, &source, &device, round, &writes)?;
        let sent = sent(lab, &source)?;
        lab.start(target)?;
        let took = copied(lab, &source, target)?;
        let moved = self::sent(lab, &source)? - sent;
        let after = stream(lab, &source, target)?;
        let written = writes.kib * writes.count / 1024;
        let (rate, stream) = (written as f64 / took.as_secs_f64(), (before + after) / 2.0);
        println!(
            "| {} | {written} | {} | {:.2} | {:.2} | {rate:.0} | {stream:.0} | {:.2} |",
            writes.what,
            moved / MIB,
            moved as f64 / (written * MIB) as f64,
            took.as_secs_f64(),
            rate / stream
        );
    }
    ensure!(lab.scrub(NAME)?.equal, "the replicas differ");
    Ok(())
}

/// Writes no place twice.
fn change(lab: &Lab, source: &str, device: &str, round: u32, writes: &Writes) -> Result<()> {
    let (file, seed) = (format!("--filename={device}"), format!("--randseed={round}"));
    let (size, count) = (format!("--bs={}k", writes.kib), format!("--number_ios={}", writes.count));
    let job = ["fio", "--name=change", &file, "--rw=randwrite", &size, "--direct=1", &count, &seed];
    let more = ["--ioengine=io_uring", "--iodepth=4", "--refill_buffers", "--output-format=terse"];
    lab.exec(source, &[&job[..], &more].concat()).map(drop)
}

/// Duration of the copy, from the moment when its extents are known until the last one is
/// installed.
fn copied(lab: &Lab, source: &str, target: &str) -> Result<Duration> {
    let agent = lab.agent(source)?;
    let peer = || -> Result<PeerView> {
        let view: ResourceView = agent.get(&format!("/v1/resources/{NAME}"))?;
        let live = view.replicas.into_iter().filter_map(|replica| replica.live);
        live.flat_map(|live| live.peers)
            .find(|peer| peer.node == target)
            .context("the primary knows its peer")
    };
    let deadline = Instant::now() + LIMIT;
    let until = |wanted: bool| -> Result<Instant> {
        loop {
            ensure!(Instant::now() < deadline, "the copy took longer than {LIMIT:?}");
            if peer()?.progress_percent.is_some() == wanted {
                return Ok(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let began = until(true)?;
    let took = until(false)? - began;
    wait_for("all in sync", LIMIT, || {
        ensure!(lab.resource(NAME)?.replicas.iter().all(|replica| replica.in_sync), "not yet");
        Ok(())
    })?;
    Ok(took)
}

/// Bytes that a node has sent so far.
fn sent(lab: &Lab, node: &str) -> Result<u64> {
    let table = lab.exec(node, &["cat", "/proc/net/dev"])?;
    let rows = table.lines().filter_map(|line| line.split_once(':'));
    let of = |(name, numbers): (&str, &str)| {
        (name.trim() != "lo").then(|| numbers.split_whitespace().nth(8)?.parse::<u64>().ok()).flatten()
    };
    Ok(rows.filter_map(of).sum())
}

/// MiB per second of one stream: read from the source's copy of the volume, sent, and written
/// durably beside the target's.
fn stream(lab: &Lab, source: &str, target: &str) -> Result<f64> {
    let address = lab.address(target)?;
    // The nodes share one clock. The scripts read it themselves, so the time to start a command in
    // a node does not count.
    let receive = format!(
        "socat -u -b 1048576 TCP-LISTEN:7999,reuseaddr STDOUT \
         | dd of={POOL}/stream bs=1M iflag=fullblock oflag=direct conv=fdatasync status=none; date +%s%N; rm {POOL}/stream"
    );
    let mut receiver = lab.inside(target, &["sh", "-ec", &receive]);
    let receiver = receiver.stdout(Stdio::piped()).spawn().context("a receiver")?;
    std::thread::sleep(Duration::from_millis(500));
    let send = format!(
        "date +%s%N; dd if=$(echo {POOL}/{NAME}-*/vol0) bs=1M count={CHANGED} iflag=direct status=none \
         | socat -u -b 1048576 STDIN TCP:{address}:7999"
    );
    let began: u64 = lab.shell(source, &send)?.trim().parse().context("when it began")?;
    let ended = receiver.wait_with_output()?;
    ensure!(ended.status.success(), "the receiver of the stream failed");
    let ended: u64 = String::from_utf8_lossy(&ended.stdout).trim().parse().context("when it ended")?;
    Ok(CHANGED as f64 * 1e9 / (ended - began) as f64)
}
