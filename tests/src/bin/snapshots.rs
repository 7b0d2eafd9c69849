//! `snapshots [ROUNDS]`: how much a snapshot slows later writes, on a pool that clones files and on
//! one that cannot (ADR 20).
//!
//! One copy of a full volume of 4 GiB. Blocks are written at random places before the snapshot,
//! after it, and once more. The first write to each chunk of 16 KiB is the expensive one.
//!
//! Prints three rows of Markdown for each round and kind of pool. Ctrl-C and failures remove the
//! lab. Needs root, fio and 12 GiB of disk.

use anyhow::{Context, Result};
use mainstay_tests::lab::Lab;
use mainstay_tests::measured::{Writes, in_rounds, random_writes};
use mainstay_tests::metrics::Scrape;

const NAME: &str = "snapshots";
const NODE: &str = "n1";
const VOLUME_MIB: u64 = 4096;
const SECONDS: u32 = 10;

fn main() -> Result<()> {
    in_rounds(NAME, |lab, rounds| {
        println!("| pool | writes | IOPS | mean µs | 99.9 % µs | longest ms | put aside MiB |");
        println!("|---|---|---|---|---|---|---|");
        for (pool, options) in [("clones files", &[][..]), ("does not", &["--no-reflink"])] {
            lab.up_with(1, options)?;
            measure(lab, pool, rounds)?;
        }
        Ok(())
    })
}

fn measure(lab: &Lab, pool: &str, rounds: u32) -> Result<()> {
    lab.create_resource(NAME, &format!("{VOLUME_MIB}MiB"), &[NODE], &["--scrub-interval", "off"])?;
    let view = lab.resource(NAME)?;
    let live = view.replicas.into_iter().find_map(|replica| replica.live).context("the engine answers")?;
    let device = live.devices.into_iter().next().context("the primary has a device")?.path;
    let fill = format!("dd if=/dev/urandom of={device} bs=1M count={VOLUME_MIB} oflag=direct status=none");
    lab.shell(NODE, &fill)?;
    for round in 0..rounds {
        let name = format!("s{round}");
        for (step, what) in ["before", "after", "again"].into_iter().enumerate() {
            if what == "after" {
                lab.cli(&["snapshot", "create", NAME, &name])?;
            }
            let before = put_aside(lab)?;
            let Writes { iops, mean_us, most_us, longest_ms } =
                random_writes(lab, NODE, &device, SECONDS, round * 3 + step as u32)?;
            let mib = (put_aside(lab)? - before) / f64::from(1 << 20);
            println!(
                "| {pool} | {what} | {iops:.0} | {mean_us:.0} | {most_us:.0} | {longest_ms:.0} | {mib:.0} |"
            );
        }
        lab.cli(&["snapshot", "delete", NAME, &name])?;
    }
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// Bytes so far.
fn put_aside(lab: &Lab) -> Result<f64> {
    let sample = format!("mainstay_disk_written_bytes_total{{resource=\"{NAME}\",area=\"snapshot\"}}");
    Scrape::of(lab, NODE)?.get(&sample).with_context(|| format!("{NODE} does not tell {sample}"))
}
