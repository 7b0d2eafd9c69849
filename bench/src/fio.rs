//! The loads of fio, its command line, and its output.

use crate::case::{Figures, Latency, Measure};
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::PathBuf;

/// A load with fixed parameters; only the target, the time and the seed differ.
#[derive(PartialEq, Eq, Debug)]
pub struct Load {
    pub name: &'static str,
    pub title: &'static str,
    pub measure: Measure,
    engine: &'static str,
    options: &'static [&'static str],
    /// A second job beside the first, by its options. The figures are those of the job called
    /// `read`.
    beside: Option<&'static [&'static str]>,
}

impl Load {
    /// Each write is followed by a sync, and then by the next one.
    fn syncs(&self) -> bool {
        self.options.contains(&"--fdatasync=1")
    }
}

const fn load(name: &'static str, title: &'static str, options: &'static [&'static str]) -> Load {
    Load { name, title, measure: Measure::Iops, engine: "io_uring", options, beside: None }
}

/// With the parameters that published comparisons use.
const fn published(name: &'static str, title: &'static str, options: &'static [&'static str]) -> Load {
    Load { engine: "libaio", ..load(name, title, options) }
}

const RW: &str = "--rw=randwrite";
const BLOCK: &str = "--bs=4k";

/// All loads, in the order of running.
pub static LOADS: &[Load] = &[
    load("rw4k-qd1", "random writes of 4 KiB, depth 1", &[RW, BLOCK, "--iodepth=1"]),
    load("rw4k-qd8", "random writes of 4 KiB, depth 8", &[RW, BLOCK, "--iodepth=8"]),
    load("rw4k-qd32", "random writes of 4 KiB, depth 32", &[RW, BLOCK, "--iodepth=32"]),
    published(
        "rw4k-j8-qd1",
        "random writes of 4 KiB, 8 jobs of depth 1, libaio",
        &[RW, BLOCK, "--iodepth=1", "--numjobs=8"],
    ),
    published(
        "rw4k-j8-qd8",
        "random writes of 4 KiB, 8 jobs of depth 8, libaio",
        &[RW, BLOCK, "--iodepth=8", "--numjobs=8"],
    ),
    published(
        "rw4k-j8-qd32",
        "random writes of 4 KiB, 8 jobs of depth 32, libaio",
        &[RW, BLOCK, "--iodepth=32", "--numjobs=8"],
    ),
    load(
        "rw4k-fdatasync",
        "random writes of 4 KiB, depth 1, an fdatasync after each",
        &[RW, BLOCK, "--iodepth=1", "--fdatasync=1"],
    ),
    load(
        "mix4k-qd32",
        "70 % random reads, 30 % random writes of 4 KiB, depth 32",
        &["--rw=randrw", "--rwmixread=70", BLOCK, "--iodepth=32"],
    ),
    Load {
        measure: Measure::MibPerSecond,
        ..load("seq1m", "sequential writes of 1 MiB, depth 4", &["--rw=write", "--bs=1m", "--iodepth=4"])
    },
    Load {
        measure: Measure::ReadMaxMs,
        beside: Some(&[
            "--name=burst",
            RW,
            "--bs=64k",
            "--iodepth=32",
            "--thinktime=200ms",
            "--thinktime_blocks=256",
        ]),
        ..load(
            "read-burst",
            "one random read of 4 KiB after the other, beside bursts of 16 MiB of writes at depth 32",
            &["--rw=randread", BLOCK, "--iodepth=1"],
        )
    },
];

/// Place that fio writes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A block device or a file.
    Path(PathBuf),
    /// An NBD server, by its URI; fio is the client.
    Nbd(String),
    /// An image of Ceph's; fio is the client.
    Rbd { pool: String, image: String },
}

/// Options of one run: the target, its size, the duration, and the seed of the places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub target: Target,
    pub mib: u64,
    pub seconds: u64,
    /// The same seed gives the same places in the same order.
    pub seed: u64,
    /// For devices, instead of the engine that the load names: `io_uring` or `libaio`.
    pub engine: Option<String>,
}

impl Run {
    /// The whole command.
    #[must_use]
    pub fn words(&self, load: &Load) -> Vec<String> {
        let mut words = self.common(self.engine.as_deref().unwrap_or(load.engine));
        words.extend(["--time_based".into(), format!("--runtime={}", self.seconds)]);
        if let Some(beside) = load.beside {
            words.extend(beside.iter().map(|&word| word.to_owned()));
        }
        words.push(format!("--name={}", if load.beside.is_some() { "read" } else { load.name }));
        words.extend(load.options.iter().map(|&word| self.suited(word)));
        if load.beside.is_none() {
            words.push("--group_reporting".into());
        }
        words
    }

    /// The command that writes all of the target once, so that no later write has to find space
    /// first.
    #[must_use]
    pub fn fill_words(&self) -> Vec<String> {
        let mut words = self.common("io_uring");
        words.extend(["--name=fill", "--rw=write", "--bs=1m", "--iodepth=4"].map(str::to_owned));
        words
    }

    fn common(&self, engine: &str) -> Vec<String> {
        let mut words: Vec<String> = ["fio", "--output-format=json", "--direct=1", "--randrepeat=1"]
            .into_iter()
            .map(str::to_owned)
            .collect();
        words.extend(match &self.target {
            Target::Path(path) => {
                vec![format!("--ioengine={engine}"), format!("--filename={}", path.display())]
            }
            Target::Nbd(uri) => vec!["--ioengine=nbd".into(), format!("--uri={uri}")],
            Target::Rbd { pool, image } => vec![
                "--ioengine=rbd".into(),
                "--clientname=admin".into(),
                format!("--pool={pool}"),
                format!("--rbdname={image}"),
            ],
        });
        words.extend([
            format!("--size={}m", self.mib),
            format!("--randseed={}", self.seed),
            "--lat_percentiles=1".into(),
            "--clat_percentiles=0".into(),
            "--percentile_list=50:95:99:99.9".into(),
        ]);
        words
    }

    /// fio's clients of NBD and of Ceph know fsync only; with fdatasync they stop after one
    /// operation.
    fn suited(&self, word: &str) -> String {
        match &self.target {
            Target::Path(_) => word.to_owned(),
            Target::Nbd(_) | Target::Rbd { .. } => word.replace("--fdatasync=", "--fsync="),
        }
    }
}

/// One direction of one job.
struct Part {
    operations: f64,
    iops: f64,
    bytes_per_second: f64,
    latency: Latency,
}

fn part(direction: &Value) -> Option<Part> {
    let operations = direction["total_ios"].as_f64()?;
    let latency = &direction["lat_ns"];
    let percentile = |name: &str| latency["percentile"][name].as_f64().map(|ns| ns / 1000.0);
    Some(Part {
        operations,
        iops: direction["iops"].as_f64()?,
        bytes_per_second: direction["bw_bytes"].as_f64()?,
        latency: Latency {
            mean: latency["mean"].as_f64()? / 1000.0,
            p50: percentile("50.000000"),
            p95: percentile("95.000000"),
            p99: percentile("99.000000"),
            p999: percentile("99.900000"),
            max: latency["max"].as_f64()? / 1000.0,
        },
    })
}

/// The larger of two, where both are known.
fn worse(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

/// Latency of a write together with its sync, one pair at a time: the time between two pairs. fio
/// itself measures both, but with asynchronous engines it counts a sync from the beginning of its
/// write (seen with 3.33). It gives percentiles only of each alone.
fn with_syncs(latency: Latency, iops: f64, job: &Value) -> Latency {
    let max = job["sync"]["lat_ns"]["max"].as_f64().map_or(0.0, |ns| ns / 1000.0);
    Latency { mean: 1e6 / iops, max: latency.max.max(max), p50: None, p95: None, p99: None, p999: None }
}

/// Reads the output of fio. For reads and writes together, rates add up and the mean is weighted.
/// Of two percentiles the worse one counts.
///
/// # Errors
/// When a job failed or a figure is missing.
pub fn parse(load: &Load, text: &str) -> Result<Figures> {
    let missing = |what: &str| Error::Output { program: "fio", what: what.into(), output: text.into() };
    // A warning may stand before the object.
    let start = text.find('{').ok_or_else(|| missing("JSON"))?;
    let value: Value = serde_json::from_str(&text[start..]).map_err(|_| missing("JSON"))?;
    let jobs = value["jobs"].as_array().ok_or_else(|| missing("list of jobs"))?;
    if jobs.iter().any(|job| job["error"].as_i64() != Some(0)) {
        return Err(missing("job without an error"));
    }
    let parts_of = |job: &Value| ["read", "write"].map(|direction| part(&job[direction]));
    let done = |job: &Value| parts_of(job).into_iter().flatten().map(|part| part.operations).sum::<f64>();
    let operations = jobs.iter().map(done).sum::<f64>() as u64;
    let wanted = |job: &&Value| load.beside.is_none() || job["jobname"] == "read";
    let job = jobs.iter().find(wanted).ok_or_else(|| missing("job of this name"))?;
    let parts = parts_of(job).into_iter().flatten().filter(|part| part.operations > 0.0);
    let whole = parts.reduce(|one, other| {
        let operations = one.operations + other.operations;
        let (a, b) = (one.latency, other.latency);
        Part {
            operations,
            iops: one.iops + other.iops,
            bytes_per_second: one.bytes_per_second + other.bytes_per_second,
            latency: Latency {
                mean: (a.mean * one.operations + b.mean * other.operations) / operations,
                p50: worse(a.p50, b.p50),
                p95: worse(a.p95, b.p95),
                p99: worse(a.p99, b.p99),
                p999: worse(a.p999, b.p999),
                max: a.max.max(b.max),
            },
        }
    });
    let whole = whole.ok_or_else(|| missing("finished operation"))?;
    let latency_us = if load.syncs() { with_syncs(whole.latency, whole.iops, job) } else { whole.latency };
    let mib_per_second = Some(whole.bytes_per_second / f64::from(1 << 20));
    Ok(Figures { rate: whole.iops, mib_per_second, operations, latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> &'static Load {
        LOADS.iter().find(|load| load.name == name).unwrap()
    }

    fn run(target: Target) -> Run {
        Run { target, mib: 64, seconds: 3, seed: 7, engine: None }
    }

    #[test]
    fn fio_gets_the_options_that_fit_its_target() {
        let words = run(Target::Path("/dev/x".into())).words(of("rw4k-fdatasync"));
        assert!(
            words.contains(&"--fdatasync=1".to_owned()) && words.contains(&"--ioengine=io_uring".to_owned())
        );
        let words = run(Target::Nbd("nbd+unix:///?socket=/s".into())).words(of("rw4k-fdatasync"));
        assert!(words.contains(&"--fsync=1".to_owned()) && words.contains(&"--ioengine=nbd".to_owned()));
        let words = run(Target::Path("/dev/x".into())).words(of("rw4k-j8-qd32"));
        assert!(words.contains(&"--ioengine=libaio".to_owned()) && words.contains(&"--numjobs=8".to_owned()));
        let chosen = Run { engine: Some("libaio".into()), ..run(Target::Path("/dev/x".into())) };
        assert!(chosen.words(of("rw4k-qd1")).contains(&"--ioengine=libaio".to_owned()));
    }

    fn job(name: &str, read: u64, write: u64) -> String {
        let direction = |ios: u64| {
            format!(
                "{{\"total_ios\": {ios}, \"iops\": {ios}, \"bw_bytes\": {}, \"lat_ns\": {{\"mean\": 2000, \"max\": {}, \
                 \"percentile\": {{\"50.000000\": 1000, \"99.000000\": {}}}}}}}",
                ios * 4096,
                ios * 1000,
                ios * 10
            )
        };
        format!(
            "{{\"jobname\": \"{name}\", \"error\": 0, \"read\": {}, \"write\": {}}}",
            direction(read),
            direction(write)
        )
    }

    #[test]
    fn reads_and_writes_are_put_together() {
        let text = format!("note: something\n{{\"jobs\": [{}]}}", job("mix4k-qd32", 700, 300));
        let figures = parse(of("mix4k-qd32"), &text).unwrap();
        assert_eq!((figures.rate, figures.operations, figures.latency_us.max), (1000.0, 1000, 700.0));
        assert_eq!((figures.latency_us.mean, figures.latency_us.p99), (2.0, Some(7.0)));
        assert_eq!(figures.latency_us.p999, None);
    }

    #[test]
    fn the_figures_of_a_burst_are_those_of_the_reader_beside_it() {
        let text = format!("{{\"jobs\": [{}, {}]}}", job("burst", 0, 900), job("read", 100, 0));
        let figures = parse(of("read-burst"), &text).unwrap();
        assert_eq!((figures.rate, figures.operations), (100.0, 1000));
        assert_eq!(figures.value(Measure::ReadMaxMs), 0.1);
    }

    /// The input is as fio 3.33 prints it, which says that there were no syncs.
    #[test]
    fn a_durable_write_includes_its_sync() {
        let sync = "\"sync\": {\"total_ios\": 0, \"lat_ns\": {\"mean\": 30000, \"max\": 900000}}, \"read\"";
        let job = job("rw4k-fdatasync", 0, 5)
            .replacen("\"read\"", sync, 1)
            .replace("\"iops\": 5", "\"iops\": 8000");
        let figures = parse(of("rw4k-fdatasync"), &format!("{{\"jobs\": [{job}]}}")).unwrap();
        let latency = figures.latency_us;
        assert_eq!((latency.mean, latency.max, latency.p99, figures.operations), (125.0, 900.0, None, 5));
        let alone = parse(of("rw4k-qd1"), &format!("{{\"jobs\": [{job}]}}")).unwrap();
        assert_eq!((alone.latency_us.mean, alone.latency_us.max), (2.0, 5.0));
    }

    #[test]
    fn a_failed_job_has_no_figures() {
        let text =
            format!("{{\"jobs\": [{}]}}", job("rw4k-qd1", 0, 5).replace("\"error\": 0", "\"error\": 5"));
        assert!(parse(of("rw4k-qd1"), &text).is_err());
        assert!(parse(of("rw4k-qd1"), "fio: command not found").is_err());
        assert!(parse(of("rw4k-qd1"), &format!("{{\"jobs\": [{}]}}", job("rw4k-qd1", 0, 0))).is_err());
    }
}
