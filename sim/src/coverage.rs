//! Places of the cores that a campaign has reached. The marks are `reach!` in the sources of the
//! cores. This module reads the list of all marks from these sources, so it also knows the marks
//! that no run reached.

#![allow(clippy::disallowed_methods, reason = "a report about the sources; no run depends on it")]

mod never;
mod told;

use never::NEVER;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use told::{BUGS_TOLD, TOLD};

/// Crates whose sources hold marks.
const CRATES: [&str; 6] = ["codec", "control", "ha", "host", "replica", "store"];
/// How a mark begins in the sources.
const MARK: &str = "reach!(\"";

/// Every mark in the sources, sorted. Empty where the sources are not at hand: the binary may run
/// elsewhere.
#[must_use]
pub fn known() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut marks = BTreeSet::new();
    for name in CRATES {
        for file in sources(&crates.join(name).join("src")) {
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            marks.extend(marks_in(&text).map(str::to_owned));
        }
    }
    marks.into_iter().collect()
}

/// The marks that nothing in this process has reached yet, sorted.
#[must_use]
pub fn unreached() -> Vec<String> {
    let reached = mainstay_types::simulation::reached();
    known().into_iter().filter(|mark| !reached.contains_key(mark.as_str())).collect()
}

/// Every mark, sorted into lists by whether and how it can be reached. Each list is sorted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Covered {
    /// Marks that this process reached, each with the number of times.
    pub reached: Vec<(String, u64)>,
    /// Marks that this process did not reach, and that a story in `sim/tests/reached.rs` reaches.
    pub told: Vec<String>,
    /// Marks that this process did not reach, and that no legal run can reach.
    pub never: Vec<String>,
    /// Marks that this process did not reach, and that no list explains.
    pub missed: Vec<String>,
}

impl Covered {
    #[must_use]
    pub fn marks(&self) -> usize {
        self.reached.len() + self.told.len() + self.never.len() + self.missed.len()
    }

    /// Marks that no legal run reaches, and that this process has reached all the same.
    #[must_use]
    pub fn not_as_explained(&self) -> Vec<&str> {
        let reached = self.reached.iter().map(|(mark, _)| mark.as_str());
        reached.filter(|mark| why_never(mark).is_some()).collect()
    }
}

/// Returns the marks that this process has reached until now, and the marks that it has not.
#[must_use]
pub fn covered() -> Covered {
    let reached = mainstay_types::simulation::reached();
    let reached = reached.into_iter().map(|(mark, count)| (mark.to_owned(), count)).collect();
    sorted(reached, unreached())
}

fn sorted(reached: Vec<(String, u64)>, unreached: Vec<String>) -> Covered {
    let mut covered = Covered { reached, ..Covered::default() };
    for mark in unreached {
        let list = if why_never(&mark).is_some() {
            &mut covered.never
        } else if told_by(&mark).is_some() {
            &mut covered.told
        } else {
            &mut covered.missed
        };
        list.push(mark);
    }
    covered
}

/// Why no legal run reaches this mark. `None` if a run may reach it.
#[must_use]
pub fn why_never(mark: &str) -> Option<&'static str> {
    NEVER.iter().find(|(known, _)| *known == mark).map(|(_, why)| *why)
}

/// Marks that a story reaches, each with the story. Seeds reach them too seldom to rely on.
#[must_use]
pub fn stories() -> &'static [(&'static str, &'static str)] {
    TOLD
}

/// The story that catches this planted bug, where plans do not bring its situation about.
#[must_use]
pub fn bug_told_by(bug: &str) -> Option<&'static str> {
    BUGS_TOLD.iter().find(|(known, _)| *known == bug).map(|(_, story)| *story)
}

/// The story that comes to this mark, if there is one.
#[must_use]
pub fn told_by(mark: &str) -> Option<&'static str> {
    TOLD.iter().find(|(known, _)| *known == mark).map(|(_, story)| *story)
}

/// The marks of one file, in order. A mark in a comment does not count.
fn marks_in(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .filter_map(|line| line.split_once(MARK)?.1.split('"').next())
}

/// The Rust files below `folder`, sorted, so that every run reads them in the same order.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn marks_are_found_where_code_is() {
        let text = "    reach!(\"store: a\");\n    // reach!(\"store: b\");\n    x => reach!(\"store: c\"),\nfn f() {}\n";
        assert_eq!(marks_in(text).collect::<Vec<_>>(), ["store: a", "store: c"]);
    }

    /// A name that is used twice, or that does not name its crate, would make the report lie.
    #[test]
    fn every_mark_has_a_name_of_its_own() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for name in CRATES {
            for file in sources(&crates.join(name).join("src")) {
                let text = std::fs::read_to_string(&file).expect("a source file");
                for mark in marks_in(&text) {
                    assert!(mark.starts_with(&format!("{name}: ")), "{mark} in {}", file.display());
                    *places.entry(mark.to_owned()).or_default() += 1;
                }
            }
        }
        let twice: Vec<_> = places.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "used twice: {twice:?}");
        assert!(places.len() >= 120, "only {} marks", places.len());
        assert_eq!(known(), places.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn every_explained_mark_exists_once() {
        let known = known();
        let mut marks: Vec<_> = NEVER.iter().chain(TOLD).map(|(mark, _)| *mark).collect();
        assert!(marks.iter().all(|mark| known.iter().any(|other| other == mark)), "{marks:?}");
        let before = marks.len();
        marks.sort_unstable();
        marks.dedup();
        assert_eq!(marks.len(), before);
    }

    #[test]
    fn each_mark_is_in_one_list() {
        let (never, told) = (NEVER[0].0, TOLD[0].0);
        let unreached = ["x: y", told, never].map(str::to_owned).to_vec();
        let covered = sorted(vec![("x: z".into(), 3), (NEVER[1].0.into(), 1)], unreached);
        assert_eq!(
            (covered.told.as_slice(), covered.never.as_slice()),
            ([told.to_owned()].as_slice(), [never.to_owned()].as_slice())
        );
        assert_eq!((covered.missed.as_slice(), covered.marks()), (["x: y".to_owned()].as_slice(), 5));
        assert_eq!(covered.not_as_explained(), [NEVER[1].0]);
    }

    /// A mark that a core reaches leaves the list of unreached marks. Other tests of this process
    /// may have reached it before, so the test looks at the list only afterwards.
    #[test]
    fn a_reached_mark_is_not_listed() {
        let mark = "store: a replica is recovered";
        assert!(known().iter().any(|known| known == mark));
        let config = mainstay_store::StoreConfig {
            resource: mainstay_types::ResourceId(1),
            incarnation: mainstay_types::Incarnation(1),
            volumes: vec![4096],
            journal_bytes: 1 << 20,
            sums: true,
        };
        let mut memory = Memory::default();
        mainstay_store::Store::format(&mut memory, &config).expect("memory does not fail");
        mainstay_store::Store::recover(&mut memory, mainstay_store::Tuning::default()).expect("a replica");
        assert!(!unreached().iter().any(|unreached| unreached == mark));
    }

    #[derive(Default)]
    struct Memory(BTreeMap<mainstay_store::Area, Vec<u8>>);

    impl mainstay_store::Media for Memory {
        fn read(
            &mut self,
            area: mainstay_store::Area,
            offset: u64,
            len: usize,
        ) -> Result<bytes::Bytes, mainstay_store::MediaError> {
            let at = offset as usize;
            let bytes = self.0.entry(area).or_default();
            bytes.resize(bytes.len().max(at + len), 0);
            Ok(bytes::Bytes::copy_from_slice(&bytes[at..at + len]))
        }

        fn flush(&mut self, _area: mainstay_store::Area) -> Result<(), mainstay_store::MediaError> {
            Ok(())
        }

        fn write_durable(
            &mut self,
            area: mainstay_store::Area,
            offset: u64,
            data: &[u8],
        ) -> Result<(), mainstay_store::MediaError> {
            let at = offset as usize;
            let bytes = self.0.entry(area).or_default();
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(data);
            Ok(())
        }
    }
}
