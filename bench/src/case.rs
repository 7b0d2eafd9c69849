//! The cases, and the figures of one run of a case.

use crate::error::{Error, Result};
use crate::{big, fio, sysbench};
use serde::{Deserialize, Serialize};

/// One load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    Fio(&'static fio::Load),
    Sysbench(sysbench::Load),
    /// On data ten times the buffer pool.
    Big(big::Load),
}

/// Words that select many cases.
const FAMILIES: [&str; 3] = ["fio", "sysbench", "big"];

/// Figure that is compared, and which way is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Operations per second: more is better.
    Iops,
    /// Transactions per second: more is better.
    Tps,
    /// Inserted rows per second: more is better.
    RowsPerSecond,
    /// MiB per second: more is better.
    MibPerSecond,
    /// The longest time that one read took, in milliseconds: less is better.
    ReadMaxMs,
}

impl Measure {
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Tps => "TPS",
            Self::RowsPerSecond => "rows/s",
            Self::MibPerSecond => "MiB/s",
            Self::ReadMaxMs => "ms, longest read (less is better)",
        }
    }
}

/// Times of single operations, in microseconds. `None` where the program does not tell.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub max: f64,
}

/// Figures of one run of a case.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Operations or transactions per second.
    pub rate: f64,
    pub mib_per_second: Option<f64>,
    /// Everything that was done, also what is not in `rate`: the processor time is divided by it.
    pub operations: u64,
    pub latency_us: Latency,
}

impl Figures {
    /// The figure that is compared.
    #[must_use]
    pub fn value(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Iops | Measure::Tps | Measure::RowsPerSecond => self.rate,
            Measure::MibPerSecond => self.mib_per_second.unwrap_or_default(),
            Measure::ReadMaxMs => self.latency_us.max / 1000.0,
        }
    }
}

impl Case {
    /// Every case, in the order of running.
    pub fn all() -> impl Iterator<Item = Self> {
        let big = big::LOADS.into_iter().map(Self::Big);
        fio::LOADS.iter().map(Self::Fio).chain(sysbench::loads().map(Self::Sysbench)).chain(big)
    }

    /// The cases that a list of words selects: names, beginnings of names that end with `*`, `fio`,
    /// `sysbench`, `big`. Without a word all but the big ones, which take longer than all others
    /// together.
    ///
    /// # Errors
    /// [`Error::NoCase`] for a word that selects nothing.
    pub fn select(words: &[String]) -> Result<Vec<Self>> {
        let fits = |case: &Self, word: &str| match word.strip_suffix('*') {
            Some(front) => case.name().starts_with(front),
            None => case.name() == word || case.family() == word,
        };
        for word in words {
            if !Self::all().any(|case| fits(&case, word)) {
                let known = FAMILIES.into_iter().map(str::to_owned);
                let known = known.chain(Self::all().map(|case| case.name())).collect();
                return Err(Error::NoCase { name: word.clone(), known });
            }
        }
        let chosen = |case: &Self| match words {
            [] => !matches!(case, Self::Big(_)),
            words => words.iter().any(|word| fits(case, word)),
        };
        Ok(Self::all().filter(chosen).collect())
    }

    #[must_use]
    pub fn family(&self) -> &'static str {
        match self {
            Self::Fio(_) => "fio",
            Self::Sysbench(_) => "sysbench",
            Self::Big(_) => "big",
        }
    }

    /// A short name without spaces. It selects the case, and samples are filed under it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Fio(load) => load.name.to_owned(),
            Self::Sysbench(load) => load.name(),
            Self::Big(load) => load.name().to_owned(),
        }
    }

    /// Exact description of the case, for people.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Fio(load) => load.title.to_owned(),
            Self::Sysbench(load) => load.title(),
            Self::Big(load) => load.title(),
        }
    }

    #[must_use]
    pub fn measure(&self) -> Measure {
        match self {
            Self::Fio(load) => load.measure,
            Self::Sysbench(_) => Measure::Tps,
            Self::Big(load) => load.measure(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Case::select(&words).unwrap().iter().map(Case::name).collect()
    }

    #[test]
    fn cases_are_selected_by_name_family_and_beginning() {
        let big = names(&["big"]);
        assert_eq!(big, ["big-oltp-rw", "big-oltp-wo", "big-oltp-ui", "big-load", "big-pgbench"]);
        assert_eq!(names(&["big-*"]), big);
        assert_eq!(names(&[]).len(), Case::all().count() - big.len());
        assert_eq!(names(&["fio", "sysbench"]), names(&[]));
        assert_eq!(names(&["rw4k-qd1"]), ["rw4k-qd1"]);
        assert_eq!(names(&["rw4k-j8-*"]).len(), 3);
        let error = Case::select(&["rw4k".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no case `rw4k`") && error.contains("rw4k-qd32"), "{error}");
    }

    #[test]
    fn names_of_cases_are_their_own() {
        let mut all = names(&FAMILIES);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), Case::all().count());
    }
}
