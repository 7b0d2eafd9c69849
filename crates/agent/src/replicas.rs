//! The replicas whose files are on this node: where they are, and how the steps of a job are done to them and to the
//! engine. Which steps, and in which order, is for `mainstay_control::reconciler::job` to say.
//!
//! Guarantees
//! - A directory named as a replica holds a whole one with its label. It gets that name when both are durable, and loses it
//!   before anything in it is removed, so what a crash leaves of the making and the removing has names of its own
//!   ([`pool::rest_of`]); only by these names are files removed when the agent starts.
//! - A journal that lies elsewhere is there only while a directory in the pool names it, and goes before that
//!   ([`journals`]).
//! - A replica's directory without a label was not left by this program. It is neither used nor written nor removed.
//! - A job runs on a thread of its own: formatting and recovery take as long as they take.

use crate::engine_link::EngineLink;
use crate::identity::write_durable;
use crate::journals::{self, Journals};
use crate::messages::random_u64;
use crate::pool;
use crate::threads::lock;
use mainstay_api::engine::{ContentSource, EngineError, Reply, Request};
use mainstay_control::origin::{CONTENT, SnapshotOf};
use mainstay_control::reconciler::job::{Answer, Ended, Job, Order, Step, Trouble};
use mainstay_control::scrubs::ScrubTask;
use mainstay_control::snapshots::Keep;
use mainstay_control::state::Resource;
use mainstay_types::{Incarnation, Opening, ResourceId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

const LABEL: &str = pool::LABEL;
const NO_LABEL: &str = "this directory is named like a replica and has lost its label, replica.json";
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
    journals: Journals,
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
    pub fn open(state_dir: &Path, journals: Journals, engine: EngineLink) -> io::Result<Self> {
        let mut stored = BTreeMap::new();
        let pool = pool::directory(state_dir);
        std::fs::create_dir_all(&pool)?;
        for entry in std::fs::read_dir(&pool)? {
            let directory = entry?.path();
            match std::fs::read(directory.join(LABEL)) {
                _ if pool::is_rest(&directory) => {}
                Ok(bytes) => {
                    let label: Label = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
                    stored.insert(label.resource, (label, directory));
                }
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if pool::is_replica_directory(&directory)? {
                        tracing::warn!(directory = %directory.display(), "{NO_LABEL}; it is not used");
                    }
                }
                Err(error) => return Err(error),
            }
        }
        for rest in pool::rests(&pool)? {
            tracing::info!(directory = %rest.display(), "removing what is left of a replica that was being made or removed");
            match journals::remove_of(&rest) {
                Ok(()) => remove(&rest)?,
                // The next start, or the next job of the replica, tries again.
                Err(error) => {
                    tracing::error!(directory = %rest.display(), %error, "it stays until the next attempt")
                }
            }
        }
        journals.look(&pool);
        Ok(Self {
            state_dir: state_dir.to_path_buf(),
            journals,
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
        let makes = matches!(order, Order::Make { .. });
        let place = match order {
            Order::Attach(_) | Order::Detach => Some(Self::of_client(resource, wanted)),
            _ => self.place(resource, wanted),
        };
        let Some(place) = place else { return Err(unknown(resource)) };
        let mut job = Job::new(order, || Incarnation(random_u64()));
        let end = loop {
            match job.step() {
                Some(step) => {
                    let result = self.step(&place, wanted, step);
                    job = job.answered(result);
                }
                None => match job.end() {
                    Ok(end) => break end,
                    Err(unfinished) => job = *unfinished,
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

    /// Of a client, which has no files, and may be of a resource that is gone.
    fn of_client(resource: ResourceId, wanted: Option<&Resource>) -> Place {
        let name = wanted.map(|wanted| wanted.name.clone()).unwrap_or_default();
        Place { resource, name, directory: PathBuf::new() }
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
            Step::RemoveFiles => files(pool::rest_of(directory).iter().try_for_each(|rest| remove(rest))),
            Step::MakeFiles(..) if directory.exists() => Err(no_label(directory)),
            Step::MakeFiles(incarnation, of) => {
                let content = of.map(|of| self.content(of)).transpose()?;
                let wanted = wanted.ok_or_else(|| unknown(resource))?;
                let request = Request::Create {
                    resource,
                    name: name.clone(),
                    volumes: wanted.first_sizes().to_vec(),
                    journal_bytes: wanted.spec.journal_bytes,
                    incarnation,
                    dir: pool::making(directory).to_string_lossy().into_owned(),
                    journal: self.journals.place(directory, incarnation),
                    content,
                };
                self.ask(request, JOB_TIMEOUT)
            }
            Step::WriteLabel(incarnation) => {
                let label = Label { resource, name: name.clone(), incarnation };
                files(publish(directory, &label))
            }
            Step::RemoveLabel => files(withdraw(directory)),
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
            Step::Grow(volumes) => self.ask(Request::Grow { resource, volumes }, REQUEST_TIMEOUT),
            Step::Snapshots(Keep { snapshots: wanted, mark, to }) => {
                self.ask(Request::Snapshots { resource, wanted, mark, to }, REQUEST_TIMEOUT)
            }
            Step::Scrub(ScrubTask { repair, rate, after }) => {
                self.ask(Request::Scrub { resource, repair, rate, after: Some(after) }, REQUEST_TIMEOUT)
            }
            Step::Attach(record) => {
                let opening = Opening(random_u64().max(1));
                self.ask(
                    Request::AttachClient { name: name.clone(), record: Box::new(record), opening },
                    REQUEST_TIMEOUT,
                )
            }
            Step::Detach => self.ask(Request::DetachClient { resource }, REQUEST_TIMEOUT),
        }
    }

    /// Where the files are of which a replica is to be made.
    fn content(&self, of: SnapshotOf) -> Result<ContentSource, EngineError> {
        let stored = lock(&self.stored);
        let (_, directory) = stored.get(&of.resource).ok_or_else(|| unknown(of.resource))?;
        let dir = directory.to_string_lossy().into_owned();
        Ok(ContentSource { dir, snapshot: of.snapshot, name: CONTENT })
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
    let disk = ["corrupt", "recover", "disk", "wrong-disk", "other-resource"];
    let journal = ["journal-missing", "wrong-journal", "volatile-journal"];
    disk.iter().chain(&journal).any(|code| *code == error.code)
}

/// Gives a replica that was made its label and its name, durably.
fn publish(directory: &Path, label: &Label) -> io::Result<()> {
    let making = pool::making(directory);
    let bytes = serde_json::to_vec(label).map_err(io::Error::other)?;
    write_durable(&making.join(LABEL), &bytes)?;
    std::fs::rename(&making, directory)?;
    sync_parent(directory)
}

/// Takes a replica's name from it, durably. One that has it no more is success.
fn withdraw(directory: &Path) -> io::Result<()> {
    let removed = pool::removed(directory);
    remove(&removed)?;
    match std::fs::rename(directory, &removed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_parent(directory),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| std::fs::File::open(parent)?.sync_all())
}

fn no_label(directory: &Path) -> EngineError {
    EngineError {
        code: "no-label".into(),
        message: format!("{}: {NO_LABEL}", directory.display()),
        remedy: "Put replica.json back and restart the agent. If these data are not needed, move the directory away: the replica is then made anew."
            .into(),
    }
}

/// An operator has removed the directory to have the replica copied again. A pool that is not there was not emptied.
fn was_removed(directory: &Path) -> bool {
    matches!(directory.try_exists(), Ok(false)) && directory.parent().is_some_and(Path::is_dir)
}

fn remove(directory: &Path) -> io::Result<()> {
    journals::remove_of(directory)?;
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
        assert!(["journal-missing", "wrong-journal", "volatile-journal"].into_iter().all(stays));
        let passes = ["no-hello", "in-use", "engine-unreachable", "engine-timeout", "unknown-resource"];
        assert!(!passes.into_iter().any(stays));
    }

    const R: ResourceId = ResourceId(1);
    const LABELLED: Label = Label { resource: R, name: String::new(), incarnation: Incarnation(9) };

    fn opened(root: &Path) -> Replicas {
        let engine = EngineLink::start(&root.join("engine.sock"), |_| ());
        Replicas::open(root, Journals::default(), engine).unwrap()
    }

    /// A replica's directory as it is between the engine's answer and the label.
    fn made(directory: &Path) {
        let making = pool::making(directory);
        std::fs::create_dir_all(&making).unwrap();
        std::fs::write(making.join("journal"), b"").unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Before and after each of the two renames, what is there counts as a whole replica or as none, and what is left of
    /// one goes at the next start.
    #[test]
    fn a_replica_is_there_from_its_label_on_until_it_is_withdrawn() {
        let root = tempfile::tempdir().unwrap();
        let pool = pool::directory(root.path());
        let directory = pool.join("db-1");
        std::fs::create_dir_all(pool.join("db-1.making.creating")).unwrap();
        made(&directory);
        assert!(opened(root.path()).stored().is_empty());
        assert_eq!(names(&pool), [""; 0]);

        made(&directory);
        write_durable(&pool::making(&directory).join(LABEL), &serde_json::to_vec(&LABELLED).unwrap())
            .unwrap();
        assert!(opened(root.path()).stored().is_empty());
        assert_eq!(names(&pool), [""; 0]);

        made(&directory);
        publish(&directory, &LABELLED).unwrap();
        assert_eq!(opened(root.path()).stored(), BTreeMap::from([(R, Incarnation(9))]));
        assert_eq!(names(&pool), ["db-1"]);

        std::fs::create_dir_all(pool.join("db-1.removed")).unwrap();
        withdraw(&directory).unwrap();
        withdraw(&directory).unwrap();
        assert_eq!(
            names(&pool),
            [""; 0],
            "the second time there is nothing, and what the first one left is gone"
        );
        publish_again_and_crash(&directory);
        assert!(opened(root.path()).stored().is_empty());
        assert_eq!(names(&pool), [""; 0]);
    }

    fn publish_again_and_crash(directory: &Path) {
        made(directory);
        publish(directory, &LABELLED).unwrap();
        withdraw(directory).unwrap();
        assert_eq!(names(directory.parent().unwrap()), ["db-1.removed"]);
    }

    /// A directory of the pool whose journal is elsewhere, with that or with a link that leads nowhere.
    fn linked(directory: &Path, journal: &Path, exists: bool) {
        std::fs::create_dir_all(directory).unwrap();
        std::os::unix::fs::symlink(journal, directory.join("journal")).unwrap();
        if exists {
            std::fs::write(journal, b"journal").unwrap();
        }
    }

    /// Every step of docs/internals/journals.md, and what the next start makes of a crash after it.
    #[test]
    fn a_journal_elsewhere_comes_and_goes_with_its_replica() {
        let root = tempfile::tempdir().unwrap();
        let (pool, fast) = (pool::directory(root.path()), root.path().join("fast"));
        std::fs::create_dir_all(&fast).unwrap();
        let directory = pool.join("db-1");
        let journal = fast.join("db-1.0000000000000009.journal");
        let state = || {
            let stored = opened(root.path()).stored().len();
            (stored, names(&pool), names(&fast))
        };
        let nothing = || (0, vec![], vec![]);
        let whole = || (1, vec!["db-1".to_owned()], vec!["db-1.0000000000000009.journal".to_owned()]);
        for (rest, exists) in [
            ("db-1.making.creating", false),
            ("db-1.making.creating", true),
            ("db-1.making", true),
            ("db-1.removed", true),
            ("db-1.removed", false),
        ] {
            linked(&pool.join(rest), &journal, exists);
            assert_eq!(state(), nothing(), "{rest}, its journal there: {exists}");
        }
        linked(&pool::making(&directory), &journal, true);
        publish(&directory, &LABELLED).unwrap();
        assert_eq!(state(), whole());

        // Its device is not mounted while it is removed, and is mounted again.
        let away = root.path().join("away");
        std::fs::rename(&fast, &away).unwrap();
        withdraw(&directory).unwrap();
        assert_eq!(opened(root.path()).stored().len(), 0);
        assert_eq!(names(&pool), ["db-1.removed"]);
        let place = Place { resource: R, name: "db".into(), directory: directory.clone() };
        let replicas = opened(root.path());
        let refused = replicas.step(&place, None, Step::RemoveFiles).unwrap_err();
        assert!(refused.message.contains("mount its device"), "{refused:?}");
        std::fs::rename(&away, &fast).unwrap();
        assert_eq!(replicas.step(&place, None, Step::RemoveFiles), Ok(Answer::Done));
        assert_eq!(state(), nothing());
    }

    /// Only what this program names is removed, and a replica whose label is lost is not made anew over its data.
    #[test]
    fn files_that_this_program_did_not_leave_stay() {
        let root = tempfile::tempdir().unwrap();
        let pool = pool::directory(root.path());
        let foreign = ["db-1", "db-2024", "notes.removed", "old-7.removed"].map(|name| pool.join(name));
        for directory in &foreign {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(foreign[0].join("journal"), b"data").unwrap();
        std::fs::write(foreign[3].join("dump.sql"), b"data").unwrap();
        let replicas = opened(root.path());
        assert!(replicas.stored().is_empty());
        assert!(foreign.iter().all(|directory| directory.exists()));

        let place = Place { resource: R, name: "db".into(), directory: foreign[0].clone() };
        assert_eq!(replicas.step(&place, None, Step::RemoveFiles), Ok(Answer::Done));
        let refused = replicas.step(&place, None, Step::MakeFiles(Incarnation(3), None)).unwrap_err();
        assert_eq!(refused.code, "no-label");
        assert_eq!(std::fs::read(foreign[0].join("journal")).unwrap(), b"data");
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
