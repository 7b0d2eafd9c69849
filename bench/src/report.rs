//! Samples put together: one row for each case and set-up.

use crate::bytes::Bytes;
use crate::case::{Case, Measure};
use crate::machine::Machine;
use crate::stats::Spread;
use crate::turns::{Failure, Log, Sample, Terms};
use crate::{markdown, svg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A set-up in words that let it be built again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    pub text: String,
}

/// Medians over the rounds, each with its spread.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub set_up: String,
    pub measure: Measure,
    pub value: Spread,
    /// Ratio of the value to the mean of the baseline's before and after it; `None` for the
    /// baseline.
    pub ratio: Option<Spread>,
    /// Ratio of the mean latency, likewise.
    pub latency_ratio: Option<Spread>,
    pub latency_mean_us: Spread,
    pub latency_p95_us: Option<Spread>,
    pub latency_p99_us: Option<Spread>,
    /// Over all rounds.
    pub latency_max_us: f64,
    /// Processor time of the set-up for each operation, without the client.
    pub cpu_us: Spread,
    /// The same of the client: fio or sysbench.
    pub client_cpu_us: Spread,
    /// The medians of each process and each family of kernel threads.
    pub cpu_by_process_us: BTreeMap<String, f64>,
    /// Processor time of other programs meanwhile, for each operation. It makes figures doubtful.
    pub other_cpu_us: Spread,
    /// Bytes of each operation, of cases that count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<RowBytes>,
}

/// Bytes of each operation, and their ratio to those of the same set-up with a doublewrite buffer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RowBytes {
    /// Written to the disk, all copies together.
    pub disk: Spread,
    /// The part of it that was written after the run.
    pub disk_later: Spread,
    /// Sent from nodes to nodes.
    pub wire: Spread,
    /// Ratio of `disk`, round by round. `None` for a set-up with a doublewrite buffer.
    pub disk_ratio: Option<Spread>,
    /// Ratio of `wire`, likewise. `None` also where there is no replication.
    pub wire_ratio: Option<Spread>,
}

/// End of the name of a set-up whose database has no doublewrite buffer: it writes each page once.
/// The rest is the name of the same set-up with it.
pub const ONCE: &str = "-once";
/// Bytes of each operation below which no ratio is made of them: heartbeats and the like.
const BYTES_MIN: f64 = 1024.0;

/// Everything about a run of the benchmark.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The command that repeats it.
    pub command: String,
    pub terms: Terms,
    pub machine: Machine,
    pub set_ups: Vec<Description>,
    pub rows: Vec<Row>,
    pub failures: Vec<Failure>,
    pub samples: Vec<Sample>,
}

impl Report {
    #[must_use]
    pub fn new(command: String, machine: Machine, set_ups: Vec<Description>, log: &Log) -> Self {
        let (terms, samples, failures) = (log.terms.clone(), log.samples.clone(), log.failures.clone());
        Self { command, terms, machine, rows: rows(&samples), set_ups, failures, samples }
    }

    /// Writes `report.json`, `report.md` and the plots into a directory.
    ///
    /// # Errors
    /// When one of the files cannot be written.
    pub fn write(&self, dir: &Path) -> crate::Result<()> {
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(crate::Error::system(format!("write {}", path.display())))
        };
        let json = serde_json::to_string_pretty(self).expect("a report has only text and numbers");
        put("report.json", &json)?;
        put("report.md", &markdown::of(self))?;
        for plot in svg::plots(self) {
            put(plot.file, &plot.text)?;
        }
        Ok(())
    }
}

/// In the order of the cases, and of the set-ups' first samples.
pub(crate) fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut set_ups: Vec<&str> = Vec::new();
    for sample in samples {
        if !set_ups.contains(&sample.set_up.as_str()) {
            set_ups.push(&sample.set_up);
        }
    }
    // Samples of the baseline are written after the samples between them.
    set_ups.sort_by_key(|name| samples.iter().any(|s| s.set_up == *name && s.around.is_some()));
    let of = |case: &Case, set_up: &str| {
        let name = case.name();
        let wanted = samples.iter().filter(|sample| sample.case == name && sample.set_up == set_up);
        let twice = set_up.strip_suffix(ONCE).unwrap_or_default();
        let twice = samples.iter().filter(|sample| sample.case == name && sample.set_up == twice);
        let wanted = wanted.collect::<Vec<_>>();
        let bytes = bytes(&wanted, &twice.collect::<Vec<_>>());
        Some(Row { bytes, ..row(case, set_up, &wanted)? })
    };
    Case::all()
        .flat_map(|case| set_ups.iter().filter_map(|name| of(&case, name)).collect::<Vec<_>>())
        .collect()
}

fn row(case: &Case, set_up: &str, samples: &[&Sample]) -> Option<Row> {
    let measure = case.measure();
    let spread = |of: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().filter_map(|s| of(s)));
    let each = |us: u64, sample: &Sample| us as f64 / sample.figures.operations.max(1) as f64;
    let to_baseline = |of: &dyn Fn(&crate::Figures) -> f64, sample: &Sample| {
        let [before, after] = sample.around?;
        let middle = f64::midpoint(of(&before), of(&after));
        (middle > 0.0).then(|| of(&sample.figures) / middle)
    };
    Some(Row {
        case: case.name(),
        set_up: set_up.into(),
        measure,
        value: spread(&|s| Some(s.figures.value(measure)))?,
        ratio: spread(&|s| to_baseline(&|figures| figures.value(measure), s)),
        latency_ratio: spread(&|s| to_baseline(&|figures| figures.latency_us.mean, s)),
        latency_mean_us: spread(&|s| Some(s.figures.latency_us.mean))?,
        latency_p95_us: spread(&|s| s.figures.latency_us.p95),
        latency_p99_us: spread(&|s| s.figures.latency_us.p99),
        latency_max_us: samples.iter().map(|s| s.figures.latency_us.max).fold(0.0, f64::max),
        cpu_us: spread(&|s| Some(each(s.usage.set_up_us(), s)))?,
        client_cpu_us: spread(&|s| Some(each(s.usage.client_us, s)))?,
        cpu_by_process_us: by_process(samples),
        other_cpu_us: spread(&|s| Some(each(s.usage.other_us, s)))?,
        bytes: None,
    })
}

/// `twice`: samples of the same set-up with a doublewrite buffer. A round may have several of them,
/// of which the mean counts.
fn bytes(samples: &[&Sample], twice: &[&Sample]) -> Option<RowBytes> {
    type Each<'a> = &'a dyn Fn(&Bytes) -> u64;
    let each = |of: Each<'_>, sample: &Sample| sample.bytes.map(|bytes| bytes.each(of(&bytes)));
    let spread = |of: Each<'_>| Spread::of(samples.iter().filter_map(|sample| each(of, sample)));
    let ratio = |of: Each<'_>| {
        let of_round = |sample: &Sample| {
            let same = twice.iter().filter(|other| other.round == sample.round);
            let same: Vec<f64> = same.filter_map(|other| each(of, other)).collect();
            let mean = same.iter().sum::<f64>() / same.len() as f64;
            // No number when there is none of them.
            (mean >= BYTES_MIN).then(|| each(of, sample).map(|own| own / mean)).flatten()
        };
        Spread::of(samples.iter().filter_map(|sample| of_round(sample)))
    };
    Some(RowBytes {
        disk: spread(&|bytes| bytes.disk)?,
        disk_later: spread(&|bytes| bytes.disk_later)?,
        wire: spread(&|bytes| bytes.wire)?,
        disk_ratio: ratio(&|bytes| bytes.disk),
        wire_ratio: ratio(&|bytes| bytes.wire),
    })
}

fn by_process(samples: &[&Sample]) -> BTreeMap<String, f64> {
    let named = |sample: &Sample| -> BTreeMap<String, u64> {
        let kernel = sample.usage.kernel_us.iter().map(|(name, us)| (format!("kernel {name}"), *us));
        sample.usage.processes_us.clone().into_iter().chain(kernel).collect()
    };
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (place, sample) in samples.iter().enumerate() {
        for (name, us) in named(sample) {
            let values = all.entry(name).or_insert_with(|| vec![0.0; samples.len()]);
            values[place] = us as f64 / sample.figures.operations.max(1) as f64;
        }
    }
    all.into_iter().filter_map(|(name, values)| Some((name, Spread::of(values)?.median))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::case::{Figures, Latency};
    use crate::cpu::Usage;

    pub fn sample(set_up: &str, case: &str, round: usize, rate: f64, baseline: Option<f64>) -> Sample {
        let figures = |rate: f64| Figures {
            rate,
            mib_per_second: Some(rate / 256.0),
            operations: 1000,
            latency_us: Latency {
                mean: 1e6 / rate,
                p99: Some(3e6 / rate),
                max: 1e7 / rate,
                ..Latency::default()
            },
        };
        let processes_us = [("n1 engine".to_owned(), 5000)].into();
        let kernel_us = [("kworker".to_owned(), 2000)].into();
        Sample {
            set_up: set_up.into(),
            case: case.into(),
            round,
            at_s: 0,
            seconds: 1,
            figures: figures(rate),
            usage: Usage { client_us: 1000, processes_us, kernel_us, ..Usage::default() },
            around: baseline.map(|rate| [figures(rate), figures(rate)]),
            bytes: None,
        }
    }

    pub fn report() -> Report {
        let samples = vec![
            sample("three", "rw4k-qd1", 1, 50.0, Some(100.0)),
            sample("plain", "rw4k-qd1", 1, 100.0, None),
            sample("three", "rw4k-qd1", 2, 60.0, Some(100.0)),
            sample("plain", "rw4k-qd1", 2, 120.0, None),
            sample("three", "oltp-rw-t10", 1, 80.0, Some(100.0)),
            sample("plain", "oltp-rw-t10", 1, 100.0, None),
        ];
        Report {
            command: "make bench".into(),
            terms: Terms { seconds: 1, mib: 64, version: "1".into() },
            machine: Machine::default(),
            set_ups: vec![Description { name: "plain".into(), text: "a file".into() }],
            rows: rows(&samples),
            failures: vec![Failure { set_up: "x".into(), case: "seq1m".into(), round: 1, why: "no".into() }],
            samples,
        }
    }

    /// A sample of a big case with so many KiB to disks and to the wire for each operation.
    pub fn counted(set_up: &str, round: usize, disk: u64, wire: u64) -> Sample {
        let baseline = (set_up != "plain").then_some(100.0);
        let each = |kib: u64| kib * 1024 * 10;
        let bytes = Bytes { disk: each(disk), disk_later: each(disk) / 4, wire: each(wire), operations: 10 };
        Sample { bytes: Some(bytes), ..sample(set_up, "big-oltp-wo", round, 80.0, baseline) }
    }

    #[test]
    fn bytes_without_doublewrite_are_compared_with_those_of_the_same_set_up_and_round() {
        let samples = [
            counted("plain-once", 1, 50, 0),
            counted("plain", 1, 90, 0),
            counted("three", 1, 600, 200),
            counted("plain", 1, 110, 0),
            counted("three-once", 1, 300, 100),
            counted("three", 2, 600, 100),
            counted("three-once", 2, 300, 60),
            // In this round there is nothing to compare with.
            counted("three-once", 3, 900, 900),
        ];
        let rows = rows(&samples);
        let of = |name: &str| rows.iter().find(|row| row.set_up == name).unwrap().bytes.clone().unwrap();
        let three = of("three-once");
        assert_eq!(three.wire_ratio.map(|ratio| (ratio.min, ratio.max, ratio.count)), Some((0.5, 0.6, 2)));
        assert_eq!(three.disk_ratio.map(|ratio| ratio.median), Some(0.5));
        assert_eq!((three.disk.median, three.disk_later.median), (300.0 * 1024.0, 75.0 * 1024.0));
        assert_eq!(of("plain-once").disk_ratio.map(|ratio| ratio.median), Some(0.5));
        assert_eq!((of("plain-once").wire_ratio, of("three").wire_ratio), (None, None));
        assert!(rows[0].bytes.is_some() && report().rows.iter().all(|row| row.bytes.is_none()));
    }

    #[test]
    fn ratios_are_to_the_runs_around() {
        let report = report();
        let names: Vec<_> = report.rows.iter().map(|r| (r.case.as_str(), r.set_up.as_str())).collect();
        assert_eq!(
            names,
            [
                ("rw4k-qd1", "plain"),
                ("rw4k-qd1", "three"),
                ("oltp-rw-t10", "plain"),
                ("oltp-rw-t10", "three")
            ]
        );
        let three = &report.rows[1];
        assert_eq!(three.ratio.map(|ratio| (ratio.median, ratio.min, ratio.max)), Some((0.55, 0.5, 0.6)));
        assert_eq!((three.cpu_us.median, three.client_cpu_us.median), (7.0, 1.0));
        assert_eq!(three.cpu_by_process_us["kernel kworker"], 2.0);
        assert_eq!(report.rows[0].ratio, None);
    }
}
