//! The replicas whose files are on this node, and the jobs that make, open and remove them.
//!
//! Guarantees
//! - A replica counts as stored only after its files are complete and its label is durable. What a crash left
//!   without a label was never announced to anybody and is made anew.
//! - One job per replica at a time, on a thread of its own: formatting and recovery take as long as they take.

use crate::engine_link::{EngineCallError, EngineLink};
use crate::identity::write_durable;
use crate::messages::random_u64;
use crate::pool;
use crate::threads::lock;
use mainstay_api::engine::{EngineError, Reply, Request};
use mainstay_control::state::Resource;
use mainstay_types::{Incarnation, ResourceId, ResourceRecord};
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
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
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

    /// Makes the files of a new incarnation. What a failed attempt left is removed.
    ///
    /// # Errors
    /// What the engine or the file system said; also kept in [`Replicas::failures`].
    pub fn create(&self, resource: &Resource) -> Result<(), EngineError> {
        let directory = pool::replica_directory(&self.state_dir, resource.id, &resource.name);
        let label = Label {
            resource: resource.id,
            name: resource.name.clone(),
            incarnation: Incarnation(random_u64()),
        };
        let result = self.try_create(resource, &label, &directory);
        match &result {
            Ok(()) => {
                lock(&self.failures).remove(&resource.id);
                lock(&self.stored).insert(resource.id, (label, directory));
            }
            Err(error) => {
                drop(std::fs::remove_dir_all(&directory));
                lock(&self.failures).insert(resource.id, error.clone());
            }
        }
        result
    }

    fn try_create(&self, resource: &Resource, label: &Label, directory: &Path) -> Result<(), EngineError> {
        remove(directory).map_err(|error| file_error(directory, &error))?;
        let request = Request::Create {
            resource: resource.id,
            name: resource.name.clone(),
            volumes: resource.spec.volumes.clone(),
            journal_bytes: resource.spec.journal_bytes,
            incarnation: label.incarnation,
            dir: directory.to_string_lossy().into_owned(),
        };
        self.engine.request(request, JOB_TIMEOUT).map_err(EngineCallError::into_engine_error)?;
        serde_json::to_vec(label)
            .map_err(io::Error::other)
            .and_then(|bytes| write_durable(&directory.join(LABEL), &bytes))
            .map_err(|error| file_error(directory, &error))
    }

    /// Opens what is stored.
    ///
    /// # Errors
    /// What the engine said.
    pub fn open_replica(&self, resource: ResourceId) -> Result<(), EngineError> {
        let Some((label, directory)) = lock(&self.stored).get(&resource).cloned() else { return Ok(()) };
        if was_removed(&directory) {
            tracing::warn!(%resource, directory = %directory.display(), "the files of a replica were removed; it is made anew");
            lock(&self.stored).remove(&resource);
            return Ok(());
        }
        let request =
            Request::Open { resource, name: label.name, dir: directory.to_string_lossy().into_owned() };
        match self.engine.request(request, JOB_TIMEOUT) {
            Ok(Reply::Opened { incarnation }) if incarnation != label.incarnation => Err(EngineError {
                code: "wrong-disk".into(),
                message: format!(
                    "{} holds incarnation {incarnation}, and its label says {}",
                    directory.display(),
                    label.incarnation
                ),
                remedy: "Put the right disk back, or remove the directory to have the replica copied again."
                    .into(),
            }),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into_engine_error()),
        }
    }

    /// Closes a replica and removes its files.
    ///
    /// # Errors
    /// What the engine or the file system said.
    pub fn drop_replica(&self, resource: ResourceId) -> Result<(), EngineError> {
        match self.engine.request(Request::Drop { resource }, REQUEST_TIMEOUT) {
            Ok(_) => {}
            Err(EngineCallError::Refused(error)) if error.code == "unknown-resource" => {}
            Err(error) => return Err(error.into_engine_error()),
        }
        let stored = lock(&self.stored).get(&resource).cloned();
        if let Some((_, directory)) = stored {
            // The label goes first: without it the rest is nothing.
            let gone = match std::fs::remove_file(directory.join(LABEL)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => remove(&directory),
            };
            gone.map_err(|error| file_error(&directory, &error))?;
        }
        lock(&self.stored).remove(&resource);
        lock(&self.failures).remove(&resource);
        self.engine.forget(resource);
        Ok(())
    }

    /// # Errors
    /// What the engine said.
    pub fn give_record(&self, record: ResourceRecord) -> Result<(), EngineError> {
        self.simple(Request::Record { record })
    }

    /// # Errors
    /// What the engine said.
    pub fn demote(&self, resource: ResourceId) -> Result<(), EngineError> {
        self.simple(Request::Demote { resource })
    }

    fn simple(&self, request: Request) -> Result<(), EngineError> {
        self.engine.request(request, REQUEST_TIMEOUT).map(|_| ()).map_err(EngineCallError::into_engine_error)
    }
}

/// Whether an error of [`Replicas::open_replica`] is about what is on the disk, or about the disk (R12, R13), and not about
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
