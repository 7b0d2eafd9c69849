//! `snapshots [ROUNDS]`: what a snapshot costs whoever writes afterwards, where the pool clones files and where it cannot (ADR 20). One copy
//! of a volume of 4 GiB that is full; blocks are written at random places before the snapshot, after it, and once more: the first write to each chunk of
//! 16 KiB is the expensive one. Prints three rows of Markdown for each round and kind of pool. Ctrl-C and failures remove the lab. Needs root, fio and 12 GiB of
//! disk.

use anyhow::{Context, Result};
use mainstay_tests::lab::Lab;
use mainstay_tests::measured::in_rounds;
use mainstay_tests::metrics::Scrape;
use serde_json::Value;

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
            let (iops, mean, most, longest) = write(lab, &device, round * 3 + step as u32)?;
            let mib = (put_aside(lab)? - before) / f64::from(1 << 20);
            println!("| {pool} | {what} | {iops:.0} | {mean:.0} | {most:.0} | {longest:.0} | {mib:.0} |");
        }
        lab.cli(&["snapshot", "delete", NAME, &name])?;
    }
    lab.cli(&["resource", "delete", NAME]).map(drop)
}

/// IOPS; mean, 99.9th percentile in microseconds, and the longest in milliseconds.
fn write(lab: &Lab, device: &str, seed: u32) -> Result<(f64, f64, f64, f64)> {
    let (file, seed) = (format!("--filename={device}"), format!("--randseed={seed}"));
    let runtime = format!("--runtime={SECONDS}");
    let job = ["fio", "--name=write", &file, "--rw=randwrite", "--bs=4k", "--direct=1", &seed, &runtime];
    let more = ["--time_based", "--ioengine=libaio", "--iodepth=32", "--output-format=json"];
    let said = lab.exec(NODE, &[&job[..], &more].concat())?;
    let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let number = |path: &str| {
        let found = said.pointer(&format!("/jobs/0/write/{path}")).and_then(Value::as_f64);
        found.with_context(|| format!("fio does not tell {path}"))
    };
    let us = |path: &str| number(path).map(|ns| ns / 1000.0);
    Ok((
        number("iops")?,
        us("clat_ns/mean")?,
        us("clat_ns/percentile/99.900000")?,
        us("clat_ns/max")? / 1000.0,
    ))
}

/// Bytes so far.
fn put_aside(lab: &Lab) -> Result<f64> {
    let sample = format!("mainstay_disk_written_bytes_total{{resource=\"{NAME}\",area=\"snapshot\"}}");
    Scrape::of(lab, NODE)?.get(&sample).with_context(|| format!("{NODE} does not tell {sample}"))
}
