//! Replicas on disk: made, opened. Formatting and recovery read and write for as long as they need,
//! so they happen on a thread of their own and never hold up the shard.

use crate::buffer::BufferPool;
use crate::disk::{Content, DiskError, Layout, NewJournal, NewReplica, ReplicaFiles};
use crate::ipc::Client;
use crate::open_replica::AgentReply;
use mainstay_api::engine::Reply;
use mainstay_store::{Area, MediaError, RecoverError, Store, StoreConfig, Tuning};
use mainstay_types::{
    BLOCK_BYTES, Code, Incarnation, Index, JOURNAL_BYTES_MIN, ResourceId, VOLUME_BYTES_MAX, VOLUMES_MAX,
    is_volume_size, size_words,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use thiserror::Error;

/// Why a replica could not be made or opened.
#[derive(Debug, Error)]
pub enum LifecycleError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("formatting {dir} failed")]
    Format {
        dir: PathBuf,
        #[source]
        source: MediaError,
    },
    #[error("the replica in {dir} cannot be recovered")]
    Recover {
        dir: PathBuf,
        #[source]
        source: RecoverError,
    },
    #[error(
        "{dir} holds the files of another replica: resource number {}, incarnation {:016x}", resource.0, incarnation.0
    )]
    Occupied { dir: PathBuf, resource: ResourceId, incarnation: Incarnation },
    #[error(
        "the files in {dir} and the label there, replica.json, are not of the same replica: the files are of resource number {}, incarnation {:016x}", resource.0, incarnation.0
    )]
    Other { dir: PathBuf, resource: ResourceId, incarnation: Incarnation },
    #[error("impossible size: {what}")]
    Size { what: String },
}

impl LifecycleError {
    /// For the agent: a stable code, the chain of causes, a remedy.
    #[must_use]
    pub fn to_reply(&self) -> Reply {
        let (code, remedy) = match self {
            Self::Disk(DiskError::NoSpace { .. } | DiskError::PoolTooSmall { .. }) => {
                (Code::NoSpace, "free space in the pool, or choose a smaller volume or journal")
            }
            Self::Disk(error) if error.is_no_space() => (Code::NoSpace, "free space in the pool"),
            // Passes by itself: the process that an engine replaces has not quite ended.
            Self::Disk(DiskError::InUse { .. }) => {
                (Code::InUse, "end the process that uses the replica's files")
            }
            Self::Disk(DiskError::JournalMissing { .. }) => (
                Code::JournalMissing,
                "mount the device that holds it, or let the link `journal` in the replica's directory lead to where it is; if it is \
                 lost, remove the replica's directory, and the replica is copied again",
            ),
            Self::Disk(DiskError::WrongJournal { .. }) => (
                Code::WrongJournal,
                "mount the right device, or let the link `journal` in the replica's directory lead to the right file; if it is \
                 lost, remove the replica's directory, and the replica is copied again",
            ),
            Self::Disk(DiskError::Foreign { .. }) => (
                Code::WrongDisk,
                "put the file back that the replica had, or move the directory out of the pool: the replica is then copied again \
                 from the others",
            ),
            Self::Disk(DiskError::VolatileJournal { .. }) => (
                Code::VolatileJournal,
                "name a directory on a disk or on persistent memory (--journal-dir), or start the agent with \
                 --volatile-journals if a power cut may cost the replica",
            ),
            Self::Disk(DiskError::JournalDirectory { .. }) => {
                (Code::JournalDirectory, "mount its device, and make the directory there")
            }
            Self::Disk(DiskError::JournalMountPoint { .. }) => {
                (Code::JournalDirectory, "make a directory below it, and name that")
            }
            Self::Disk(_) | Self::Format { .. } => {
                (Code::Disk, "look at the kernel's log for the device of the pool")
            }
            Self::Recover {
                source:
                    RecoverError::Corrupt { .. }
                    | RecoverError::VersionTable { .. }
                    | RecoverError::OlderVersionTable,
                ..
            } => (
                Code::Corrupt,
                "the replica must be rebuilt from the others: remove its directory, it joins empty",
            ),
            Self::Recover { source: RecoverError::Older { .. }, .. } => (
                Code::OlderCopy,
                "Put the newest files back. Or move the directory out of the pool: the replica is then copied again from the others.",
            ),
            Self::Other { .. } => (
                Code::WrongDisk,
                "put the right files back, or move the directory away, and the replica is copied again",
            ),
            Self::Recover { .. } => {
                (Code::Recover, "remove the directory if the replica is to be rebuilt from the others")
            }
            Self::Occupied { .. } => (Code::Occupied, "remove the directory if its content is not needed"),
            Self::Size { .. } => (Code::Size, "choose another size"),
        };
        let mut message = self.to_string();
        let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(self);
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Reply::refused(code, message, remedy)
    }
}

/// A job for the thread.
pub enum Job {
    /// Make a replica in `dir`. `journal`: place of the journal, if not in `dir`. `content`:
    /// snapshot of another replica that the new one is to hold, too. If the connection of `client`,
    /// who asked for it, is gone by the end, the thread removes the new replica again. An agent
    /// that has restarted meanwhile has removed what it found, and does not know of this replica.
    Create {
        dir: PathBuf,
        config: StoreConfig,
        journal: Option<NewJournal>,
        content: Option<Content>,
        client: Client,
        answer: AgentReply,
    },
    Open {
        resource: ResourceId,
        name: String,
        dir: PathBuf,
        expected: Expected,
        answer: AgentReply,
    },
}

/// Identity that a replica in a directory must have to be opened.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub resource: ResourceId,
    /// `None`: every incarnation is accepted.
    pub incarnation: Option<Incarnation>,
    /// See [`Store::recover_known`].
    pub held: Index,
}

/// A replica that has been recovered, or not; for the shard.
pub struct Opened {
    pub resource: ResourceId,
    pub name: String,
    pub answer: AgentReply,
    pub result: Result<(Store, ReplicaFiles), LifecycleError>,
}

/// The thread. It ends when this is dropped.
pub struct Lifecycle {
    jobs: mpsc::Sender<Job>,
}

impl Lifecycle {
    /// `preallocate`: see [`Layout`]. `opened` is called on the thread and must not block on the
    /// shard.
    pub fn start(
        pool: BufferPool,
        preallocate: bool,
        mut opened: impl FnMut(Opened) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        thread::Builder::new().name("lifecycle".into()).spawn(move || {
            for job in queue {
                match job {
                    Job::Create { dir, config, journal, content, client, answer } => {
                        let incarnation = config.incarnation;
                        let made =
                            create(&dir, config, (journal.as_ref(), content.as_ref()), preallocate, &pool);
                        if matches!(made, Ok(Made::Now)) && client.is_gone() {
                            take_back(&dir, journal.as_ref());
                        }
                        answer(match made {
                            Ok(_) => Reply::Created { incarnation },
                            Err(error) => error.to_reply(),
                        });
                    }
                    Job::Open { resource, name, dir, expected, answer } => {
                        let result = open(&dir, Some(expected), &pool);
                        opened(Opened { resource, name, answer, result });
                    }
                }
            }
        })?;
        Ok(Self { jobs })
    }

    pub fn submit(&self, job: Job) {
        // Fails only when the thread has panicked, which the panic itself has reported.
        let _ = self.jobs.send(job);
    }
}

enum Made {
    Now,
    Before,
}

fn take_back(dir: &Path, journal: Option<&NewJournal>) {
    tracing::info!(dir = %dir.display(), "no agent waits for the replica that was made; it is removed again");
    // The journal goes before the link that names it.
    let removed = journal.map_or(Ok(()), NewJournal::remove).and_then(|()| ReplicaFiles::remove(dir));
    if let Err(error) = removed {
        tracing::warn!(dir = %dir.display(), %error, "it stays until the agent starts again");
    }
}

fn create(
    dir: &Path,
    mut config: StoreConfig,
    (journal, content): (Option<&NewJournal>, Option<&Content>),
    preallocate: bool,
    pool: &BufferPool,
) -> Result<Made, LifecycleError> {
    check_sizes(&config)?;
    if mainstay_pool::replica_at(dir).is_there() {
        let (store, _) = open(dir, None, pool)?;
        let found = store.config();
        if found.resource == config.resource && found.incarnation == config.incarnation {
            return Ok(Made::Before);
        }
        return Err(LifecycleError::Occupied {
            dir: dir.to_owned(),
            resource: found.resource,
            incarnation: found.incarnation,
        });
    }
    if let Some(content) = content {
        // Without sums of the snapshot the replica could not tell which of its blocks are as they
        // were.
        config.sums &= content.has_sums();
    }
    let layout = Layout { preallocate, ..Layout::new(&config, Store::meta_bytes(&config)) };
    let new = NewReplica::create(dir, &layout, journal, pool)?;
    let mut held = Vec::new();
    if let Some(content) = content {
        new.adopt(content)?;
        held.push(content.name);
    }
    Store::format_holding(&mut new.media(pool), &config, &held)
        .map_err(|source| LifecycleError::Format { dir: dir.to_owned(), source })?;
    new.publish()?;
    Ok(Made::Now)
}

fn check_sizes(config: &StoreConfig) -> Result<(), LifecycleError> {
    let size = |what: String| Err(LifecycleError::Size { what });
    if config.volumes.is_empty() || config.volumes.len() > VOLUMES_MAX {
        return size(format!("{} volumes, allowed are 1 to {VOLUMES_MAX}", config.volumes.len()));
    }
    for (number, bytes) in config.volumes.iter().enumerate() {
        if !is_volume_size(*bytes) {
            return size(format!(
                "volume {number} has {bytes} bytes; allowed are multiples of {BLOCK_BYTES} bytes up to {}",
                size_words(VOLUME_BYTES_MAX)
            ));
        }
    }
    if config.journal_bytes < JOURNAL_BYTES_MIN || !config.journal_bytes.is_multiple_of(BLOCK_BYTES) {
        return size(format!(
            "a journal of {} bytes; allowed are multiples of {BLOCK_BYTES} bytes from {} on",
            config.journal_bytes,
            size_words(JOURNAL_BYTES_MIN)
        ));
    }
    Ok(())
}

/// `expected`: nothing else is opened, nor written.
fn open(
    dir: &Path,
    expected: Option<Expected>,
    pool: &BufferPool,
) -> Result<(Store, ReplicaFiles), LifecycleError> {
    let unreadable = |source| LifecycleError::Recover { dir: dir.to_owned(), source };
    let mut files = ReplicaFiles::open(dir)?;
    // Before recovery, which writes, and takes a journal of another replica for one that is empty.
    let config = Store::config_on(&mut files.media(pool)).map_err(unreadable)?;
    let StoreConfig { resource, incarnation, .. } = config;
    let other = |expected: Expected| {
        expected.resource != resource || expected.incarnation.is_some_and(|wanted| wanted != incarnation)
    };
    if expected.is_some_and(other) {
        return Err(LifecycleError::Other { dir: dir.to_owned(), resource, incarnation });
    }
    let meta_bytes = Store::meta_bytes_on(&mut files.media(pool)).map_err(unreadable)?;
    files.check(&Layout::new(&config, meta_bytes))?;
    files.prepare(&config, pool)?;
    files.confirm_marks(resource, pool)?;
    let held = expected.map_or(Index(0), |expected| expected.held);
    let mut tuning = Tuning::default();
    if files.memory(Area::Journal).is_some() {
        // There a payload costs a copy, and not a write to a disk.
        tuning.fill_bytes_min = u64::MAX;
    }
    let mut store = Store::recover_known(&mut files.media(pool), tuning, held).map_err(unreadable)?;
    let recorded = store.snapshots_on_disk().collect();
    for lost in files.sweep_snapshots(&recorded, config.volumes.len())? {
        tracing::warn!(dir = %dir.display(), snapshot = %lost, "the files of a snapshot are gone");
        store.snapshot_lost(lost);
    }
    Ok((store, files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::{IpcMessage, IpcServer};
    use mainstay_api::engine::{Request, RequestLine};
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(10);

    /// An agent that has asked for something, and the engine's end of its connection.
    fn agent(server: &Path, messages: &mpsc::Receiver<IpcMessage>) -> (UnixStream, Client) {
        let mut stream = UnixStream::connect(server).expect("connected");
        let line = RequestLine { id: 1, request: Request::Status };
        writeln!(stream, "{}", serde_json::to_string(&line).expect("encodes")).expect("sent");
        loop {
            if let IpcMessage::Request { client, .. } = messages.recv_timeout(LIMIT).expect("a message") {
                return (stream, client);
            }
        }
    }

    #[test]
    fn a_new_replica_whose_client_has_gone_is_removed_again() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
        let root = root.join(format!("lifecycle-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("a directory");
        let (forward, messages) = mpsc::channel();
        let socket = root.join("engine.sock");
        let server = IpcServer::start(&socket, move |message| drop(forward.send(message))).expect("a server");
        let lifecycle = Lifecycle::start(BufferPool::new(16 << 20), false, |_| ()).expect("a thread");
        let made = |name: &str, client: &Client| {
            let (answered, answers) = mpsc::channel();
            let dir = root.join(name);
            let config = StoreConfig {
                resource: ResourceId(1),
                incarnation: Incarnation(1),
                volumes: vec![1 << 20],
                journal_bytes: JOURNAL_BYTES_MIN,
                sums: true,
            };
            let answer: AgentReply = Box::new(move |reply| drop(answered.send(reply)));
            let (journal, content, client) = (None, None, client.clone());
            lifecycle.submit(Job::Create { dir: dir.clone(), config, journal, content, client, answer });
            assert!(matches!(answers.recv_timeout(LIMIT), Ok(Reply::Created { .. })));
            dir.exists()
        };
        let (stream, client) = agent(&socket, &messages);
        assert!(made("waited-for", &client));
        drop(stream);
        assert!(!made("left", &client), "no agent knows of it");
        assert!(made("waited-for", &client), "what was there before is not the job's to remove");
        drop(server);
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
