//! The replicas whose files are on this node: where they are, and how the steps of a job are done to them and to the
//! engine. Which steps, and in which order, is for `mainstay_control::reconciler::job` to say.
//!
//! Guarantees
//! - A label that was written is durable. Files without one are what a crash left of a replica that was being made or
//!   removed; they go when the agent starts.
//! - A job runs on a thread of its own: formatting and recovery take as long as they take.

use crate::engine_link::EngineLink;
use crate::identity::write_durable;
use crate::messages::random_u64;
use crate::pool;
use crate::threads::lock;
use mainstay_api::engine::{EngineError, Reply, Request};
use mainstay_control::reconciler::job::{Answer, Ended, Job, Order, Step, Trouble};
use mainstay_control::state::Resource;
use mainstay_types::{Incarnation, ResourceId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

const LABEL: &str = "replica.json";
/// Formatting allocates the journal; recovery reads it.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// The other requests of the engine that are answered after little work.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Label {
    resource: ResourceId,
    name: String,
    incarnation: Incarnation,
}

/// What is stored, shared between the reconciler and the jobs.
pub struct Replicas {
    state_dir: PathBuf,
    engine: EngineLink,
    stored: Mutex<BTreeMap<ResourceId, (Label, PathBuf)>>,
    /// Why the last attempt to make a replica failed.
    failures: Mutex<BTreeMap<ResourceId, EngineError>>,
}

impl Replicas {
    /// Finds what is stored.
    ///
    /// # Errors
    /// When the pool cannot be read.
    pub fn open(state_dir: &Path, engine: EngineLink) -> io::Result<Self> {
        let mut stored = BTreeMap::new();
        let pool = pool::directory(state_dir);
        std::fs::create_dir_all(&pool)?;
        for entry in std::fs::read_dir(&pool)? {
            let directory = entry?.path();
            match std::fs::read(directory.join(LABEL)) {
                Ok(bytes) => {
                    let label: Label = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
                    stored.insert(label.resource, (label, directory));
                }
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if pool::is_replica_directory(&directory)? {
                        tracing::warn!(directory = %directory.display(), "removing what a crash left of a replica that has no label");
                        remove(&directory)?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            state_dir: state_dir.to_path_buf(),
            engine,
            stored: Mutex::new(stored),
            failures: Mutex::new(BTreeMap::new()),
        })
    }

    #[must_use]
    pub fn stored(&self) -> BTreeMap<ResourceId, Incarnation> {
        lock(&self.stored).iter().map(|(&resource, (label, _))| (resource, label.incarnation)).collect()
    }

    /// Why replicas could not be made here.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<ResourceId, EngineError> {
        lock(&self.failures).clone()
    }

    /// Carries a job out; `wanted` is the resource as the cluster knows it.
    ///
    /// # Errors
    /// What the engine or the file system said; why a replica could not be made is also kept in [`Replicas::failures`].
    pub fn carry_out(
        &self,
        resource: ResourceId,
        wanted: Option<&Resource>,
        order: Order,
    ) -> Result<Ended, EngineError> {
        let makes = order == Order::Make;
        let Some(place) = self.place(resource, wanted) else { return Err(unknown(resource)) };
        let mut job = Job::new(order, || Incarnation(random_u64()));
        let end = loop {
            match job.step() {
                Some(step) => {
                    let result = self.step(&place, wanted, step);
                    job = job.answered(result);
                }
                None => match job.end() {
                    Ok(end) => break end,
                    Err(unfinished) => job = unfinished,
                },
            }
        };
        let end = end.map_err(|trouble| match trouble {
            Trouble::Step(error) => error,
            Trouble::OtherDisk { found, label } => other_disk(&place.directory, found, label),
        });
        self.keep(place, makes, &end);
        end
    }

    /// Where the files of a replica are, or are to be.
    fn place(&self, resource: ResourceId, wanted: Option<&Resource>) -> Option<Place> {
        let stored = lock(&self.stored).get(&resource).cloned();
        let place = |name: String, directory| Place { resource, name, directory };
        match (stored, wanted) {
            (Some((label, directory)), _) => Some(place(label.name, directory)),
            (None, Some(wanted)) => {
                let directory = pool::replica_directory(&self.state_dir, resource, &wanted.name);
                Some(place(wanted.name.clone(), directory))
            }
            (None, None) => None,
        }
    }

    /// Remembers what a job came to.
    fn keep(&self, place: Place, makes: bool, end: &Result<Ended, EngineError>) {
        let Place { resource, name, directory } = place;
        match end {
            Ok(Ended::Made(incarnation)) => {
                let label = Label { resource, name, incarnation: *incarnation };
                lock(&self.failures).remove(&resource);
                lock(&self.stored).insert(resource, (label, directory));
            }
            Ok(Ended::Gone) => {
                tracing::warn!(%resource, directory = %directory.display(), "the files of a replica were removed; it is made anew");
                lock(&self.stored).remove(&resource);
            }
            Ok(Ended::Dropped) => {
                lock(&self.stored).remove(&resource);
                lock(&self.failures).remove(&resource);
                self.engine.forget(resource);
            }
            Ok(Ended::Opened | Ended::Told) => {}
            Err(error) if makes => {
                lock(&self.failures).insert(resource, error.clone());
            }
            Err(_) => {}
        }
    }

    fn step(&self, place: &Place, wanted: Option<&Resource>, step: Step) -> Result<Answer, EngineError> {
        let Place { resource, name, directory } = place;
        let resource = *resource;
        let dir = || directory.to_string_lossy().into_owned();
        let files = |result: io::Result<()>| {
            result.map(|()| Answer::Done).map_err(|error| file_error(directory, &error))
        };
        match step {
            Step::RemoveFiles => files(remove(directory)),
            Step::MakeFiles(incarnation) => {
                let spec = &wanted.ok_or_else(|| unknown(resource))?.spec;
                let request = Request::Create {
                    resource,
                    name: name.clone(),
                    volumes: spec.volumes.clone(),
                    journal_bytes: spec.journal_bytes,
                    incarnation,
                    dir: dir(),
                };
                self.ask(request, JOB_TIMEOUT)
            }
            Step::WriteLabel(incarnation) => {
                let label = Label { resource, name: name.clone(), incarnation };
                let bytes = serde_json::to_vec(&label).map_err(io::Error::other);
                files(bytes.and_then(|bytes| write_durable(&directory.join(LABEL), &bytes)))
            }
            Step::RemoveLabel => files(match std::fs::remove_file(directory.join(LABEL)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }),
            Step::Look => Ok(if was_removed(directory) { Answer::Gone } else { Answer::Done }),
            Step::Open => {
                let request = Request::Open { resource, name: name.clone(), dir: dir() };
                self.ask(request, JOB_TIMEOUT)
            }
            Step::Close => match self.ask(Request::Drop { resource }, REQUEST_TIMEOUT) {
                Err(error) if error.code == "unknown-resource" => Ok(Answer::Done),
                result => result,
            },
            Step::Tell(record) => self.ask(Request::Record { record }, REQUEST_TIMEOUT),
            Step::Demote => self.ask(Request::Demote { resource }, REQUEST_TIMEOUT),
        }
    }

    fn ask(&self, request: Request, timeout: Duration) -> Result<Answer, EngineError> {
        match self.engine.request(request, timeout) {
            Ok(Reply::Opened { incarnation }) => Ok(Answer::Opened(incarnation)),
            Ok(_) => Ok(Answer::Done),
            Err(error) => Err(error.into_engine_error()),
        }
    }
}

/// Where the files of one replica are.
struct Place {
    resource: ResourceId,
    name: String,
    directory: PathBuf,
}

fn unknown(resource: ResourceId) -> EngineError {
    EngineError {
        code: "unknown-resource".into(),
        message: format!("there is no resource {resource} any more"),
        remedy: String::new(),
    }
}

fn other_disk(directory: &Path, found: Incarnation, label: Incarnation) -> EngineError {
    EngineError {
        code: "wrong-disk".into(),
        message: format!("{} holds incarnation {found}, and its label says {label}", directory.display()),
        remedy: "Put the right disk back, or remove the directory to have the replica copied again.".into(),
    }
}

/// Whether an error of [`Replicas::carry_out`] is about what is on the disk, or about the disk (R12, R13), and not about
/// an engine that is not ready or does not answer. Only the former is told to the cluster: another member takes over.
#[must_use]
pub fn stays_unusable(error: &EngineError) -> bool {
    matches!(error.code.as_str(), "corrupt" | "recover" | "disk" | "wrong-disk" | "other-resource")
}

/// An operator has removed the directory to have the replica copied again. A pool that is not there was not emptied.
fn was_removed(directory: &Path) -> bool {
    matches!(directory.try_exists(), Ok(false)) && directory.parent().is_some_and(Path::is_dir)
}

fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn file_error(path: &Path, error: &io::Error) -> EngineError {
    EngineError {
        code: "pool-files".into(),
        message: format!("{}: {error}", path.display()),
        remedy: "Look at the pool's file system.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that is not ready, or does not answer, says nothing about a disk.
    #[test]
    fn only_what_is_about_the_disk_is_told_to_the_cluster() {
        let stays = |code: &str| {
            stays_unusable(&EngineError { code: code.into(), message: String::new(), remedy: String::new() })
        };
        assert!(["corrupt", "recover", "disk", "wrong-disk", "other-resource"].into_iter().all(stays));
        let passes = ["no-hello", "in-use", "engine-unreachable", "engine-timeout", "unknown-resource"];
        assert!(!passes.into_iter().any(stays));
    }

    #[test]
    fn what_a_crash_left_without_a_label_goes_at_the_start() {
        let root = tempfile::tempdir().unwrap();
        let pool = pool::directory(root.path());
        let [labelled, half, creating, foreign] =
            ["db-1", "db-2", "db-3.creating", "db-2024"].map(|name| pool.join(name));
        for directory in [&labelled, &half, &creating, &foreign] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(half.join("journal"), b"").unwrap();
        std::fs::write(foreign.join("notes"), b"").unwrap();
        let label = Label { resource: ResourceId(1), name: "db".into(), incarnation: Incarnation(9) };
        std::fs::write(labelled.join(LABEL), serde_json::to_vec(&label).unwrap()).unwrap();
        let engine = EngineLink::start(&root.path().join("engine.sock"), |_| ());
        let replicas = Replicas::open(root.path(), engine).unwrap();
        assert_eq!(replicas.stored(), BTreeMap::from([(ResourceId(1), Incarnation(9))]));
        assert!(labelled.exists() && creating.exists() && foreign.exists());
        assert!(!half.exists());
    }

    #[test]
    fn only_a_directory_that_is_gone_from_a_pool_that_is_there_was_removed() {
        let root = tempfile::tempdir().unwrap();
        let replica = root.path().join("pool/db-1");
        assert!(!was_removed(&replica), "the pool is not mounted");
        std::fs::create_dir_all(&replica).unwrap();
        assert!(!was_removed(&replica));
        std::fs::remove_dir(&replica).unwrap();
        assert!(was_removed(&replica));
    }
}
