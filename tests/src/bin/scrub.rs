//! `scrub [ROUNDS]`: how fast a scrub compares the replicas of a volume, and how much it slows
//! writes.
//!
//! The volume has 4 GiB and is full of data that does not compress. The yardstick is reading the
//! files of all three replicas at once, before and after, in the same block size and past the
//! cache. The replicas of this lab share one disk and its processors, and a scrub reads all of them
//! at once too. No client writes meanwhile.
//!
//! Then blocks are written at random places: alone, beside a scrub, and alone again.
//!
//! Prints a row of Markdown for each round of both. Ctrl-C and failures remove the lab. Needs root
//! and 14 GiB of disk.

use anyhow::{Context, Result, anyhow, ensure};
use mainstay_tests::lab::Lab;
use mainstay_tests::measured::{Writes, in_rounds, random_writes};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

const NAME: &str = "scrub";
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const VOLUME_MIB: u64 = 4096;
/// Duration of the writes, alone and beside a scrub, in seconds.
const SECONDS: u32 = 5;
const POOL: &str = "/var/lib/mainstay/pools/default";

fn main() -> Result<()> {
    in_rounds(NAME, measure)
}

fn measure(lab: &Lab, rounds: u32) -> Result<()> {
    lab.up(3)?;
    // No scheduled scrub begins meanwhile.
    let more = ["--journal", "64MiB", "--scrub-interval", "off"];
    lab.create_resource(NAME, &format!("{VOLUME_MIB}MiB"), &NODES, &more)?;
    let primary = lab.primary(NAME)?;
    let view = lab.resource(NAME)?;
    let live = view.replicas.iter().find(|replica| replica.node == primary).and_then(|one| one.live.as_ref());
    let device = live.and_then(|live| live.devices.first()).context("the primary has a device")?.path.clone();
    let fill = format!("dd if=/dev/urandom of={device} bs=1M count={VOLUME_MIB} oflag=direct status=none");
    lab.shell(&primary, &fill)?;
    println!("| compared MiB of each | in s | MiB/s | three readers MiB/s each | of it |");
    println!("|---|---|---|---|---|");
    for _ in 0..rounds {
        let before = read(lab)?;
        let report = lab.scrub(NAME)?;
        ensure!(report.equal, "the replicas differ: {report:?}");
        let after = read(lab)?;
        let took = report.took_ms as f64 / 1000.0;
        let (rate, readers) = (VOLUME_MIB as f64 / took, (before + after) / 2.0);
        println!("| {VOLUME_MIB} | {took:.1} | {rate:.0} | {readers:.0} | {:.2} |", rate / readers);
    }
    println!(
        "\n| IOPS alone | beside a scrub | of it | mean µs alone | beside it | 99.9 % µs alone | beside it | scrub in s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for round in 0..rounds {
        let write = |seed| random_writes(lab, &primary, &device, SECONDS, 3 * round + seed);
        let before = write(0)?;
        let (beside, report) = thread::scope(|scope| {
            let scrub = scope.spawn(|| lab.scrub(NAME));
            thread::sleep(Duration::from_millis(500));
            let beside = write(1);
            (beside, scrub.join())
        });
        let (beside, after) = (beside?, write(2)?);
        let report = report.map_err(|_| anyhow!("the scrub panicked"))??;
        ensure!(report.equal, "the replicas differ: {report:?}");
        let took = report.took_ms as f64 / 1000.0;
        ensure!(took > f64::from(SECONDS) + 0.5, "the scrub had ended before what was written beside it");
        let mean = |of: fn(&Writes) -> f64| (of(&before) + of(&after)) / 2.0;
        let (iops, us, most) = (mean(|of| of.iops), mean(|of| of.mean_us), mean(|of| of.most_us));
        let Writes { iops: iops_beside, mean_us, most_us, .. } = beside;
        let of_it = iops_beside / iops;
        println!(
            "| {iops:.0} | {iops_beside:.0} | {of_it:.2} | {us:.0} | {mean_us:.0} | {most:.0} | {most_us:.0} | {took:.1} |"
        );
    }
    Ok(())
}

/// Throughput of each of three readers of the volume's files that run at once, in MiB per second,
/// until the last has ended.
fn read(lab: &Lab) -> Result<f64> {
    let script = format!(
        "date +%s%N; dd if=$(echo {POOL}/{NAME}-*/vol0) of=/dev/null bs=1M iflag=direct status=none; date +%s%N"
    );
    let readers = NODES.map(|node| lab.inside(node, &["sh", "-ec", &script]).stdout(Stdio::piped()).spawn());
    let mut times: Vec<u64> = Vec::new();
    for reader in readers {
        let ended = reader.context("a reader")?.wait_with_output()?;
        ensure!(ended.status.success(), "a reader failed");
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        times.extend(said.split_whitespace().filter_map(|word| word.parse::<u64>().ok()));
    }
    let (began, ended) =
        (times.iter().min().context("when they began")?, times.iter().max().context("when they ended")?);
    Ok(VOLUME_MIB as f64 * 1e9 / (ended - began) as f64)
}
