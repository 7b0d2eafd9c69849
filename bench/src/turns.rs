//! Running the cases in turns, each set-up between two runs of the baseline. Every finished turn is
//! written down.
//!
//! Samples are lines of JSON in one file. An interrupted run loses only the turn that it was in,
//! and the same command goes on from there.

use crate::bytes::{Bytes, Counters};
use crate::case::{Case, Figures};
use crate::cpu::{Process, Snapshot, Usage};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pause between two runs, so that a run does not pay for the work that the last one left
/// (destaging, write-back, purging).
const PAUSE: Duration = Duration::from_millis(500);
/// Time to start a program and to warm up, for the estimate, in seconds.
const OVERHEAD_S: f64 = 2.0;
/// The same of a big case, which also waits until nothing is written any more.
const BIG_OVERHEAD_S: f64 = 8.0;

/// Something that bears loads.
pub trait SetUp {
    /// Short and without spaces.
    fn name(&self) -> &str;

    fn bears(&self, case: &Case) -> bool;

    /// Load that does not count. Returns the number of its operations, as far as bytes are counted.
    ///
    /// # Errors
    /// When the load fails.
    fn warm_up(&self, _case: &Case) -> Result<u64> {
        Ok(0)
    }

    /// Waits until earlier runs have no consequences any more, for cases whose bytes are counted.
    ///
    /// # Errors
    /// When the set-up cannot be brought to rest.
    fn settle(&self, _case: &Case) -> Result<()> {
        Ok(())
    }

    /// Counters of bytes, for cases whose bytes are counted.
    fn counters(&self, _case: &Case) -> Option<Counters> {
        None
    }

    /// Runs a case for `seconds`; the same seed asks for the same places.
    ///
    /// # Errors
    /// When the load fails.
    fn run(&self, case: &Case, seconds: u64, seed: u64) -> Result<Figures>;

    /// Name of a process in the tables, if it has to do with the set-up.
    fn role(&self, process: &Process) -> Option<String>;
}

/// How much is run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub cases: Vec<Case>,
    pub rounds: usize,
    pub seconds: u64,
}

impl Plan {
    /// About how long these set-ups take, in seconds. The first is the baseline.
    #[must_use]
    pub fn estimate_s(&self, set_ups: usize) -> f64 {
        let runs = if set_ups > 1 { 2 * (set_ups - 1) + 1 } else { 1 };
        let overhead = |case: &Case| if case.family() == "big" { BIG_OVERHEAD_S } else { OVERHEAD_S };
        let run = |case| self.seconds as f64 + overhead(case) + PAUSE.as_secs_f64();
        (self.rounds * runs) as f64 * self.cases.iter().map(run).sum::<f64>()
    }
}

/// One run of one case on one set-up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub set_up: String,
    pub case: String,
    /// From 1.
    pub round: usize,
    /// Seconds since 1970.
    pub at_s: u64,
    pub seconds: u64,
    pub figures: Figures,
    pub usage: Usage,
    /// Figures of the baseline just before and just after; `None` for the baseline itself.
    pub around: Option<[Figures; 2]>,
    /// Bytes to disk and wire, of cases that count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

/// A run that gave no figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub set_up: String,
    pub case: String,
    pub round: usize,
    pub why: String,
}

/// Terms that all samples of a file have in common.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Terms {
    pub seconds: u64,
    /// Size of the region that fio writes to, in MiB.
    pub mib: u64,
    /// Version of the program that was measured.
    pub version: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Terms(Terms),
    Sample(Box<Sample>),
    Failure(Failure),
}

/// The file of samples.
pub struct Log {
    path: PathBuf,
    file: File,
    pub terms: Terms,
    pub samples: Vec<Sample>,
    pub failures: Vec<Failure>,
}

impl Log {
    /// Opens the file to go on with it, or makes it.
    ///
    /// # Errors
    /// [`Error::Samples`] when its samples were taken on other terms.
    pub fn open(path: &Path, terms: Terms) -> Result<Self> {
        let doing = || format!("write {}", path.display());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::system(format!("read {}", path.display()))(error)),
        };
        // A line that was cut off in the middle is dropped.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let unreadable = |why: String| Error::Samples { path: path.display().to_string(), why };
        let file = File::options().create(true).write(true).truncate(false).open(path);
        let file = file.map_err(Error::system(doing()))?;
        let mut log =
            Self { path: path.into(), file, terms: terms.clone(), samples: vec![], failures: vec![] };
        for line in text[..whole].lines() {
            match serde_json::from_str(line).map_err(|error| unreadable(error.to_string()))? {
                Line::Sample(sample) => log.samples.push(*sample),
                Line::Failure(failure) => log.failures.push(failure),
                Line::Terms(found) if found == terms => {}
                Line::Terms(found) => {
                    return Err(unreadable(format!("it was made with {found:?}, and now it is {terms:?}")));
                }
            }
        }
        log.file.set_len(whole as u64).map_err(Error::system(doing()))?;
        use std::io::Seek;
        log.file.seek(std::io::SeekFrom::End(0)).map_err(Error::system(doing()))?;
        if whole == 0 {
            log.write(&[Line::Terms(terms)])?;
        }
        Ok(log)
    }

    fn write(&mut self, lines: &[Line]) -> Result<()> {
        let mut text = String::new();
        for line in lines {
            text += &serde_json::to_string(line).expect("a line has only text and numbers");
            text.push('\n');
        }
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(Error::system(format!("write {}", self.path.display())))
    }

    fn add(&mut self, samples: Vec<Sample>, failures: Vec<Failure>) -> Result<()> {
        let lines = samples.iter().map(|sample| Line::Sample(Box::new(sample.clone())));
        let lines = lines.chain(failures.iter().cloned().map(Line::Failure)).collect::<Vec<_>>();
        self.write(&lines)?;
        self.samples.extend(samples);
        self.failures.extend(failures);
        Ok(())
    }

    /// Whether every one of these set-ups has had this turn.
    fn has(&self, set_ups: &[&dyn SetUp], case: &str, round: usize) -> bool {
        let had = |name: &str| {
            let sample = |s: &Sample| s.set_up == name && s.case == case && s.round == round;
            let failure = |f: &Failure| f.set_up == name && f.case == case && f.round == round;
            self.samples.iter().any(sample) || self.failures.iter().any(failure)
        };
        set_ups.iter().all(|set_up| had(set_up.name()))
    }
}

/// Runs the plan on these set-ups, the first of which is the baseline, and adds the missing samples
/// to the log. It tells `told` of every run.
///
/// # Errors
/// When the baseline cannot be run, or the log not be written. The failure of another set-up is
/// noted and the rest goes on.
pub fn run(plan: &Plan, set_ups: &[&dyn SetUp], log: &mut Log, told: &mut dyn FnMut(&str)) -> Result<()> {
    for round in 1..=plan.rounds {
        for case in &plan.cases {
            let bearing: Vec<&dyn SetUp> = set_ups.iter().copied().filter(|s| s.bears(case)).collect();
            // Ratios need the baseline, so a set-up without it is left out.
            let Some((baseline, others)) = bearing.split_first() else { continue };
            let alone = others.is_empty();
            let waited_for = if alone { &bearing[..] } else { others };
            let useless = baseline.name() != set_ups[0].name() || (alone && set_ups.len() > 1);
            if useless || log.has(waited_for, &case.name(), round) {
                continue;
            }
            let (samples, failures) = turn(plan, baseline.to_owned(), others, case, round, told)?;
            log.add(samples, failures)?;
        }
    }
    Ok(())
}

fn turn(
    plan: &Plan,
    baseline: &dyn SetUp,
    others: &[&dyn SetUp],
    case: &Case,
    round: usize,
    told: &mut dyn FnMut(&str),
) -> Result<(Vec<Sample>, Vec<Failure>)> {
    let (mut samples, mut failures) = (Vec::new(), Vec::new());
    let mut one = |set_up: &dyn SetUp| {
        let sample = once(plan, set_up, case, round);
        match &sample {
            Ok(sample) => told(&line(sample, case)),
            Err(error) => told(&format!("{:<16} {:<14} {error}", case.name(), set_up.name())),
        }
        sample
    };
    let mut before = one(baseline)?;
    for set_up in others {
        let sample = one(*set_up);
        let after = one(baseline)?;
        match sample {
            Ok(sample) => {
                let around = Some([before.figures, after.figures]);
                samples.push(Sample { around, ..sample });
            }
            Err(error) => failures.push(Failure {
                set_up: set_up.name().into(),
                case: case.name(),
                round,
                why: error.to_string(),
            }),
        }
        samples.push(std::mem::replace(&mut before, after));
    }
    samples.push(before);
    Ok((samples, failures))
}

fn once(plan: &Plan, set_up: &dyn SetUp, case: &Case, round: usize) -> Result<Sample> {
    set_up.settle(case)?;
    let began = set_up.counters(case);
    let warmed = set_up.warm_up(case)?;
    std::thread::sleep(PAUSE);
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let before = Snapshot::take();
    let figures = set_up.run(case, plan.seconds, round as u64)?;
    let usage = before.until_now(&|process| set_up.role(process));
    let bytes = match (began, set_up.counters(case)) {
        (Some(began), Some(ended)) => {
            set_up.settle(case)?;
            let operations = warmed + figures.operations;
            set_up.counters(case).map(|quiet| Bytes::between(began, ended, quiet, operations))
        }
        _ => None,
    };
    Ok(Sample {
        set_up: set_up.name().into(),
        case: case.name(),
        round,
        at_s,
        seconds: plan.seconds,
        figures,
        usage,
        around: None,
        bytes,
    })
}

fn line(sample: &Sample, case: &Case) -> String {
    let (measure, figures) = (case.measure(), &sample.figures);
    let cpu = sample.usage.set_up_us() as f64 / figures.operations.max(1) as f64;
    let bytes = sample.bytes.map_or_else(String::new, |bytes| {
        format!(
            ", {} KiB to disks and {} KiB to the wire",
            crate::stats::number(bytes.each(bytes.disk) / 1024.0),
            crate::stats::number(bytes.each(bytes.wire) / 1024.0)
        )
    });
    let max = match figures.latency_us.max {
        0.0 => String::new(),
        max => format!(", max {} µs", crate::stats::number(max)),
    };
    format!(
        "{:<16} {:<14} {:>8} {}, mean {} µs{max}; {} µs of processor time{bytes} an operation",
        sample.case,
        sample.set_up,
        crate::stats::number(figures.value(measure)),
        measure.unit(),
        crate::stats::number(figures.latency_us.mean),
        crate::stats::number(cpu)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Fake<'a> {
        name: &'static str,
        rate: f64,
        runs: &'a RefCell<Vec<&'static str>>,
    }

    impl SetUp for Fake<'_> {
        fn name(&self) -> &str {
            self.name
        }

        fn bears(&self, case: &Case) -> bool {
            self.name != "database" || case.family() == "sysbench"
        }

        fn run(&self, _case: &Case, _seconds: u64, _seed: u64) -> Result<Figures> {
            self.runs.borrow_mut().push(self.name);
            if self.name == "broken" {
                return Err(Error::SetUp("it does not work".into()));
            }
            Ok(Figures { rate: self.rate, operations: 1, ..Figures::default() })
        }

        fn role(&self, _process: &Process) -> Option<String> {
            None
        }

        fn warm_up(&self, case: &Case) -> Result<u64> {
            Ok(if case.family() == "big" { 4 } else { 0 })
        }

        fn settle(&self, case: &Case) -> Result<()> {
            if case.family() == "big" {
                self.runs.borrow_mut().push("settle");
            }
            Ok(())
        }

        /// Counters that grow with the number of steps.
        fn counters(&self, case: &Case) -> Option<Counters> {
            let steps = self.runs.borrow().len() as u64;
            (case.family() == "big").then_some(Counters { disk: steps * 100, wire: steps * 10 })
        }
    }

    fn terms() -> Terms {
        Terms { seconds: 0, mib: 1, version: "1".into() }
    }

    #[test]
    fn bytes_of_a_big_case_are_counted_from_rest_to_rest_and_divided_by_all_operations() {
        let runs = RefCell::default();
        let plain = Fake { name: "plain", rate: 10.0, runs: &runs };
        let plan = Plan { cases: vec![], rounds: 1, seconds: 0 };
        let case = |word: &str| Case::select(&[word.to_owned()]).unwrap()[0];
        let sample = once(&plan, &plain, &case("big-oltp-wo"), 1).unwrap();
        assert_eq!(*runs.borrow(), ["settle", "plain", "settle"]);
        assert_eq!(sample.bytes, Some(Bytes { disk: 200, disk_later: 100, wire: 20, operations: 5 }));
        let sample = once(&plan, &plain, &case("oltp-wo-t1"), 1).unwrap();
        assert_eq!(sample.bytes, None);
        let text = serde_json::to_string(&sample).unwrap();
        assert!(!text.contains("bytes"), "{text}");
        assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample);
    }

    #[test]
    fn every_set_up_stands_between_two_runs_of_the_baseline_and_a_run_goes_on_where_it_ended() {
        let dir = std::env::temp_dir().join(format!("mainstay-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("samples.jsonl");
        let runs = RefCell::default();
        let fake = |name, rate| Fake { name, rate, runs: &runs };
        let (plain, three) = (fake("plain", 10.0), fake("three", 5.0));
        let (broken, database) = (fake("broken", 1.0), fake("database", 1.0));
        let set_ups: [&dyn SetUp; 4] = [&plain, &three, &broken, &database];
        let cases = Case::select(&["rw4k-qd1".to_owned(), "oltp-rw-t1".to_owned()]).unwrap();
        let plan = Plan { cases, rounds: 1, seconds: 0 };

        let mut log = Log::open(&path, terms()).unwrap();
        run(&plan, &set_ups, &mut log, &mut |_| {}).unwrap();
        let fio = ["plain", "three", "plain", "broken", "plain"];
        let sysbench = ["plain", "three", "plain", "broken", "plain", "database", "plain"];
        assert_eq!(*runs.borrow(), [&fio[..], &sysbench[..]].concat());
        let three = log.samples.iter().find(|sample| sample.set_up == "three").unwrap();
        assert_eq!(three.around.map(|around| around.map(|figures| figures.rate)), Some([10.0, 10.0]));
        assert_eq!(log.failures.len(), 2);

        // A second start does only the missing runs, and ignores a line that was cut off.
        let before = (log.samples.clone(), log.failures.clone());
        drop(log);
        runs.borrow_mut().clear();
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"sample\": {\"set_").unwrap();
        let mut log = Log::open(&path, terms()).unwrap();
        assert_eq!((&log.samples, &log.failures), (&before.0, &before.1));
        run(&plan, &set_ups, &mut log, &mut |_| {}).unwrap();
        assert!(runs.borrow().is_empty());
        run(&Plan { rounds: 2, ..plan }, &set_ups[..2], &mut log, &mut |_| {}).unwrap();
        assert_eq!(runs.borrow().len(), 6);
        drop(log);
        assert!(matches!(Log::open(&path, Terms { mib: 2, ..terms() }), Err(Error::Samples { .. })));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
