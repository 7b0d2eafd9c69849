//! Record of this node's replicas outside their directories: which ones it made, and how far their
//! logs reached.
//!
//! Guarantees
//! - A replica that an operator put back as it was earlier is not opened (R12). Its log ends before
//!   an entry that the node knows it to have held, durable and committed. The node knows that from
//!   [`UPDATE_MS`] after the entry was committed here. The path of a write does not get longer for
//!   it.
//! - Only a replica that is on record here is removed (R27).
//! - A disk that hangs holds up threads that save, but no thread that asks.
//!
//! The file is in the state directory, beside the pool. Without the file nothing is known, and
//! every replica that is found counts as it is. From the first start on there is a file, if only an
//! empty one. So no replica that comes later counts as made here (R27). A file that cannot be read
//! is kept under another name, and the status tells of it as long as it is there.

use crate::identity::write_durable;
use crate::threads::lock;
use mainstay_control::labels::Notice;
use mainstay_types::{Incarnation, Index, ResourceId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How often what is known is brought up to date, at most.
pub const UPDATE_MS: u64 = 1000;
const FILE: &str = "held.json";
/// Name of a file that could not be read.
const BAD: &str = "held.json.bad";
/// Most incarnations of a replica that are remembered.
const INCARNATIONS_MAX: usize = 4;

/// One replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    pub incarnation: Incarnation,
    /// The last entry that it held, durable and committed.
    pub index: Index,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    known: Mutex<Known>,
    /// Held while the file is written; `known` is not.
    writes: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// Number of changes of the marks.
    changes: u64,

    /// The last incarnations of each resource that were here, the one noted last at the end.
    marks: BTreeMap<ResourceId, Vec<Mark>>,
    /// The file has the same content.
    saved: bool,
    /// There was a file.
    found: bool,
    /// The last attempt to save failed, and the log says so.
    failed: bool,
}

impl Held {
    /// Loads the record from its file. It is empty if there is no file, or if the file cannot be
    /// read.
    #[must_use]
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let read =
            std::fs::read(&path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other));
        let known = match read {
            Ok(marks) => Known { marks, saved: true, found: true, ..Known::default() },
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let kept = state_dir.join(BAD);
                    let renamed = std::fs::rename(&path, &kept);
                    tracing::error!(
                        path = %path.display(), kept = %kept.display(), is_kept = renamed.is_ok(), %error,
                        "cannot read how far the replicas on this node reached; an older copy of a replica that is put back is not refused"
                    );
                }
                Known::default()
            }
        };
        Self { path, known: Mutex::new(known), writes: Mutex::default() }
    }

    /// The incarnation of each replica that was here last.
    #[must_use]
    pub fn incarnations(&self) -> BTreeMap<ResourceId, Incarnation> {
        let last =
            |(resource, marks): (&ResourceId, &Vec<Mark>)| Some((*resource, marks.last()?.incarnation));
        lock(&self.known).marks.iter().filter_map(last).collect()
    }

    /// Whether this node had this incarnation of a replica.
    #[must_use]
    pub fn has(&self, resource: ResourceId, incarnation: Incarnation) -> bool {
        let known = lock(&self.known);
        let mut marks = known.marks.get(&resource).into_iter().flatten();
        marks.any(|mark| mark.incarnation == incarnation)
    }

    /// How far the log of this incarnation reached, as far as that is known.
    #[must_use]
    pub fn index(&self, resource: ResourceId, incarnation: Incarnation) -> Index {
        let known = lock(&self.known);
        let mut marks = known.marks.get(&resource).into_iter().flatten();
        marks.find(|mark| mark.incarnation == incarnation).map_or(Index(0), |mark| mark.index)
    }

    /// Takes the replicas in the pool on record, if there was no record: an earlier release served
    /// the node.
    pub fn adopt(&self, found: impl Iterator<Item = (ResourceId, Incarnation)>) {
        let mut known = lock(&self.known);
        if !known.found {
            let mark = |incarnation| vec![Mark { incarnation, index: Index(0) }];
            known.marks = found.map(|(resource, incarnation)| (resource, mark(incarnation))).collect();
            // Records also that there is no replica yet. A replica that comes later without being
            // made here is not of this node.
            known.change();
        }
    }

    /// A replica that is there now, and how far its log reaches.
    pub fn note(&self, resource: ResourceId, incarnation: Incarnation, index: Index) {
        let mut known = lock(&self.known);
        let marks = known.marks.entry(resource).or_default();
        let before = marks.clone();
        let place = marks.iter().position(|mark| mark.incarnation == incarnation);
        let index = place.map_or(index, |place| marks.remove(place).index.max(index));
        marks.push(Mark { incarnation, index });
        marks.drain(..marks.len().saturating_sub(INCARNATIONS_MAX));
        if *marks != before {
            known.change();
        }
    }

    /// There is no such replica any more.
    pub fn forget(&self, resource: ResourceId) {
        let mut known = lock(&self.known);
        if known.marks.remove(&resource).is_some() {
            known.change();
        }
    }

    /// Makes what is known durable, unless it is. A failure is said once, and tried again with the
    /// next call.
    pub fn save(&self) -> io::Result<()> {
        self.save_by(write_durable)
    }

    fn save_by(&self, write: impl FnOnce(&Path, &[u8]) -> io::Result<()>) -> io::Result<()> {
        // One writer at a time: the last file that is written is then the newest.
        let _one = lock(&self.writes);
        let (changes, bytes) = {
            let known = lock(&self.known);
            if known.saved {
                return Ok(());
            }
            (known.changes, serde_json::to_vec(&known.marks).map_err(io::Error::other)?)
        };
        let result = write(&self.path, &bytes);
        let mut known = lock(&self.known);
        match &result {
            Ok(()) => (known.saved, known.found, known.failed) = (known.changes == changes, true, false),
            Err(error) => {
                if !std::mem::replace(&mut known.failed, true) {
                    tracing::warn!(path = %self.path.display(), %error, "cannot save how far the replicas on this node reach");
                }
            }
        }
        result
    }
}

impl Known {
    fn change(&mut self) {
        self.changes += 1;
        self.saved = false;
    }
}

/// The file that could not be read, if it is still there, with what follows from that.
#[must_use]
pub fn unreadable(state_dir: &Path) -> Option<(String, Notice)> {
    let kept = state_dir.join(BAD);
    let what = "could not be read when the agent started, so an older copy of a replica that was put back before that was not refused";
    let remedy = "delete this file when you are sure that no older copy was put back";
    kept.exists().then(|| (kept.display().to_string(), Notice { what: what.into(), remedy: remedy.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: ResourceId = ResourceId(1);
    const A: Incarnation = Incarnation(9);

    #[test]
    fn a_mark_rises_with_its_incarnation_and_outlives_the_process() {
        let root = tempfile::tempdir().unwrap();
        let held = Held::load(root.path());
        held.note(R, A, Index(7));
        held.note(R, A, Index(5));
        held.save().unwrap();
        let held = Held::load(root.path());
        assert_eq!((held.index(R, A), held.index(R, Incarnation(8))), (Index(7), Index(0)));
        held.note(R, Incarnation(10), Index(0));
        assert_eq!(held.incarnations(), BTreeMap::from([(R, Incarnation(10))]));
        assert_eq!(held.index(R, A), Index(7), "it may be put back");
        (11..14).for_each(|new| held.note(R, Incarnation(new), Index(0)));
        assert!(!held.has(R, A) && held.has(R, Incarnation(10)), "not for ever");
        held.forget(R);
        held.save().unwrap();
        assert_eq!(Held::load(root.path()).incarnations(), BTreeMap::new());
    }

    /// Replicas that an earlier release made are on record from the first start on. Replicas that
    /// come later are not.
    #[test]
    fn replicas_found_at_the_first_start_are_taken_on_record_once() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(FILE), b"").unwrap();
        let held = Held::load(root.path());
        held.adopt([(R, A)].into_iter());
        held.save().unwrap();
        let held = Held::load(root.path());
        held.adopt([(ResourceId(2), A)].into_iter());
        assert_eq!(held.incarnations(), BTreeMap::from([(R, A)]));
    }

    /// R27: a replica that an operator puts into the pool of a node without replicas was not made
    /// by that node.
    #[test]
    fn a_node_without_replicas_adopts_nothing_that_comes_later() {
        let root = tempfile::tempdir().unwrap();
        for later in [vec![], vec![(R, A)]] {
            let held = Held::load(root.path());
            held.adopt(later.into_iter());
            held.save().unwrap();
            assert_eq!(held.incarnations(), BTreeMap::new());
        }
        assert_eq!(unreadable(root.path()), None);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_kept_and_told() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(FILE), b"half a reco").unwrap();
        let held = Held::load(root.path());
        held.adopt(std::iter::empty());
        held.save().unwrap();
        assert_eq!(std::fs::read(root.path().join(BAD)).unwrap(), b"half a reco");
        let (path, Notice { what, remedy }) = unreadable(root.path()).unwrap();
        assert!(path.ends_with(BAD) && what.contains("was not refused"), "{path}: {what}");
        assert!(
            remedy.contains("delete this file") && !remedy.contains("pool"),
            "it is not in the pool: {remedy}"
        );
        drop(Held::load(root.path()));
        assert!(unreadable(root.path()).is_some(), "until it is removed");
    }

    #[test]
    fn a_disk_that_hangs_holds_up_no_question() {
        let root = tempfile::tempdir().unwrap();
        let held = std::sync::Arc::new(Held::load(root.path()));
        held.note(R, A, Index(7));
        let (begun, begins) = std::sync::mpsc::channel();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let saving = held.clone();
        let writer = std::thread::spawn(move || {
            saving.save_by(|path, bytes| {
                begun.send(()).unwrap();
                end.recv().unwrap();
                write_durable(path, bytes)
            })
        });
        begins.recv().unwrap();
        let (answers, answer) = std::sync::mpsc::channel();
        let asked = held.clone();
        std::thread::spawn(move || {
            asked.note(R, A, Index(9));
            let _ = answers.send(asked.index(R, A));
        });
        let index = answer.recv_timeout(std::time::Duration::from_secs(10));
        ends.send(()).unwrap();
        assert_eq!(index, Ok(Index(9)), "a question waits for the disk");
        writer.join().unwrap().unwrap();
        held.save().unwrap();
        assert_eq!(Held::load(root.path()).index(R, A), Index(9), "what came meanwhile is saved next");
    }
}
