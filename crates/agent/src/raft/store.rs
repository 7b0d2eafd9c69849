//! The durable half of the Raft log: votes, entries and snapshots in one redb file.
//!
//! Guarantees
//! - When [`RaftStore::persist`], [`RaftStore::save_snapshot`] or [`RaftStore::bootstrap`] return,
//!   their arguments survive a power cut. Every transaction is committed with immediate durability,
//!   and the directory that holds the file was synced when the file was made.
//! - One call is one transaction: entries, vote and snapshot of one `Ready` appear together or not
//!   at all.
//! - After an error nothing is known about the file. The caller stops the agent (R13), and a
//!   restart reads what is really there.
//!
//! Entries from the truncation point on are also kept in memory: the control plane's log is small,
//! and the Raft core may then read it without touching the disk. The number is bounded by
//! [`ENTRIES_KEPT_MAX`].

use crate::private;
use crate::reserve::Reserve;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A snapshot is taken when this many entries were applied since the last one.
pub const SNAPSHOT_EVERY_ENTRIES: u64 = 1024;
/// Applied entries that stay in the log after a snapshot, so that a briefly absent follower needs
/// none.
pub const ENTRIES_RETAINED: u64 = 512;
/// Most entries in the log and in memory: those retained, those between two snapshots, and those
/// that one leader may have in flight.
pub const ENTRIES_KEPT_MAX: u64 = ENTRIES_RETAINED + SNAPSHOT_EVERY_ENTRIES + 4096;
/// Largest snapshot; it must fit into one frame between agents.
pub const SNAPSHOT_BYTES_MAX: usize = 15 << 20;

/// Entries and terms that are left out when the log begins anew.
const LEFT_OUT: u64 = 1 << 20;

/// Least number of bytes that are reserved for the growth of the log's file. A snapshot of the
/// largest state and the longest log take less.
const RESERVE_BYTES_MIN: u64 = 32 << 20;

const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("raft_log");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("raft_meta");
const FORMAT: &[u8] = b"mainstay raft store 1";

#[derive(Debug, thiserror::Error)]
pub enum RaftStoreError {
    #[error("the file {path} of the control plane cannot be used: {source}")]
    Database {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    #[error("the control plane's log {path} holds what this version cannot read: {what}")]
    Format { path: PathBuf, what: String },
    #[error("cannot open {path} to reserve space on its disk: {source}")]
    Reserve {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make {path} durable: {source}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("entry {index} of the control plane's log cannot be read by this version: {what}")]
    Entry { index: u64, what: String },
    #[error("the build of this node has feature level {own}, and its cluster uses feature level {cluster}")]
    TooOld { own: u32, cluster: u32 },
    #[error("the Raft core cannot go on: {source}")]
    Core {
        #[source]
        source: Box<raft::Error>,
    },
    #[error("{path} cannot be read: it is damaged")]
    Unreadable { path: PathBuf },
    #[error(
        "the control plane's log {path} ends at entry {last}, and this node had confirmed entry {confirmed}: it has lost entries"
    )]
    Lost { path: PathBuf, confirmed: u64, last: u64 },
    #[error("the cluster state of {bytes} bytes is larger than a snapshot may be")]
    SnapshotTooLarge { bytes: usize },
}

/// See the module's description.
pub struct RaftStore {
    path: PathBuf,
    db: Database,
    reserve: Reserve,
    hard_state: HardState,
    /// The newest snapshot; its data is the serialized state machine.
    snapshot: Snapshot,
    /// Index and term of the entry before `entries[0]`.
    truncated: (u64, u64),
    entries: VecDeque<Entry>,
    /// The Raft core asked for a snapshot that names a member which the stored one does not know
    /// yet.
    snapshot_wanted: Cell<bool>,
    /// Called after the first transaction, before any other node hears of its content.
    on_begin: Option<OnBegin>,
}

type OnBegin = Box<dyn FnOnce() -> io::Result<()> + Send>;

impl RaftStore {
    /// Opens the file, or makes an empty one.
    ///
    /// # Errors
    /// When the file cannot be opened, is damaged, or is of another format.
    pub fn open(path: &Path) -> Result<Self, RaftStoreError> {
        // The library panics at some kinds of damage.
        catch_unwind(AssertUnwindSafe(|| Self::read(path)))
            .unwrap_or_else(|_| Err(RaftStoreError::Unreadable { path: path.to_path_buf() }))
    }

    fn read(path: &Path) -> Result<Self, RaftStoreError> {
        let (db, reserve) = open_database(path, RESERVE_BYTES_MIN)?;
        let mut store = Self {
            path: path.to_path_buf(),
            db,
            reserve,
            hard_state: HardState::default(),
            snapshot: Snapshot::default(),
            truncated: (0, 0),
            entries: VecDeque::new(),
            snapshot_wanted: Cell::new(false),
            on_begin: None,
        };
        store.load()?;
        Ok(store)
    }

    fn load(&mut self) -> Result<(), RaftStoreError> {
        let (meta, entries) = read_all(&self.db).map_err(|source| self.database(source))?;
        let Some(format) = meta.format else {
            let mut transaction = Changes::default();
            transaction.meta.push(("format", FORMAT.to_vec()));
            return self.commit(transaction);
        };
        if format != FORMAT {
            return Err(self.format(format!("format {:?}", String::from_utf8_lossy(&format))));
        }
        self.hard_state = self.decode(meta.hard_state.as_deref(), "the vote")?;
        self.snapshot = self.decode(meta.snapshot.as_deref(), "the snapshot")?;
        if let Some(bytes) = meta.truncated {
            let pair: [u8; 16] =
                bytes.try_into().map_err(|_| self.format("the truncation point".to_owned()))?;
            let index = u64::from_le_bytes(pair[..8].try_into().expect("8 of 16 bytes"));
            let term = u64::from_le_bytes(pair[8..].try_into().expect("8 of 16 bytes"));
            self.truncated = (index, term);
        }
        for (index, bytes) in entries {
            let entry: Entry = self.decode(Some(&bytes), "an entry")?;
            if entry.index != index || index != self.last() + 1 {
                return Err(self.format(format!("entry {index} after {}", self.last())));
            }
            self.entries.push_back(entry);
        }
        if self.snapshot.get_metadata().index > self.last() {
            return Err(self.format("a snapshot beyond the end of the log".to_owned()));
        }
        if self.hard_state.commit > self.last() {
            return Err(self.lost(self.hard_state.commit));
        }
        Ok(())
    }

    /// Has `on_begin` called when something has become durable here, before [`RaftStore::persist`]
    /// returns.
    pub fn on_begin(&mut self, on_begin: impl FnOnce() -> io::Result<()> + Send + 'static) {
        self.on_begin = Some(Box::new(on_begin));
    }

    /// The error of a node that `confirmed` an entry and has it no more.
    #[must_use]
    pub fn lost(&self, confirmed: u64) -> RaftStoreError {
        RaftStoreError::Lost { path: self.path.clone(), confirmed, last: self.last() }
    }

    /// Whether the store belongs to a member: it has a snapshot or a vote.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        self.snapshot.get_metadata().index > 0 || self.hard_state != HardState::default()
    }

    /// Writes the first snapshot of a new cluster, whose only voter is `voter`.
    ///
    /// # Errors
    /// When the snapshot cannot be written durably.
    pub fn bootstrap(&mut self, voter: u64, data: Vec<u8>) -> Result<(), RaftStoreError> {
        assert!(!self.is_initialized(), "a cluster is made once");
        let conf_state = ConfState { voters: vec![voter], ..ConfState::default() };
        let snapshot = make_snapshot(1, 1, conf_state, data);
        let hard_state = HardState { term: 1, commit: 1, ..HardState::default() };
        self.persist(&[], Some(&hard_state), Some(&snapshot))
    }

    /// Begins the log anew with one voter and this state, beyond every entry that an earlier member
    /// may have.
    ///
    /// # Errors
    /// When the snapshot cannot be written durably.
    pub fn begin_anew(&mut self, voter: u64, data: Vec<u8>) -> Result<(), RaftStoreError> {
        let (index, term) = (self.last() + LEFT_OUT, self.hard_state.term + LEFT_OUT);
        let conf_state = ConfState { voters: vec![voter], ..ConfState::default() };
        let snapshot = make_snapshot(index, term, conf_state, data);
        let hard_state = HardState { term, commit: index, ..HardState::default() };
        self.persist(&[], Some(&hard_state), Some(&snapshot))
    }

    /// Makes the parts of one `Ready` durable, in one transaction: a received snapshot (which
    /// replaces the log), entries (which replace everything from the first one's index on), and the
    /// vote.
    ///
    /// # Errors
    /// When the transaction did not become durable; nothing may be answered then.
    pub fn persist(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
        snapshot: Option<&Snapshot>,
    ) -> Result<(), RaftStoreError> {
        let mut changes = Changes::default();
        if let Some(hard_state) = hard_state {
            self.hard_state = hard_state.clone();
        }
        if let Some(snapshot) = snapshot {
            let metadata = snapshot.get_metadata();
            self.truncated = (metadata.index, metadata.term);
            self.hard_state.commit = self.hard_state.commit.max(metadata.index);
            self.hard_state.term = self.hard_state.term.max(metadata.term);
            self.entries.clear();
            self.snapshot = snapshot.clone();
            changes.replace_log = true;
            changes.meta.push(("snapshot", encode(snapshot)));
            changes.meta.push(("truncated", self.truncated_bytes()));
        }
        if let Some(first) = entries.first() {
            assert!(
                first.index > self.truncated.0 && first.index <= self.last() + 1,
                "entries continue the log"
            );
            let keep = first.index - self.truncated.0 - 1;
            self.entries.truncate(usize::try_from(keep).expect("the log is in memory"));
            self.entries.extend(entries.iter().cloned());
            changes.remove_from = Some(first.index);
            changes.entries = entries.iter().map(|entry| (entry.index, encode(entry))).collect();
        }
        changes.meta.push(("hard_state", encode(&self.hard_state)));
        self.commit(changes)?;
        if let Some(on_begin) = self.on_begin.take() {
            let directory = self.path.parent().unwrap_or(Path::new("/")).to_path_buf();
            on_begin().map_err(|source| RaftStoreError::Directory { path: directory, source })?;
        }
        Ok(())
    }

    /// Notes a vote, term and commit index, which the next transaction makes durable.
    pub fn note_hard_state(&mut self, hard_state: &HardState) {
        self.hard_state = hard_state.clone();
    }

    /// Notes a higher commit index. It becomes durable with the next transaction: losing it only
    /// means that the node learns it again.
    pub fn note_commit(&mut self, commit: u64) {
        self.hard_state.commit = self.hard_state.commit.max(commit);
    }

    /// Replaces the snapshot by one of the state machine at `index` and drops the log before it,
    /// but for [`ENTRIES_RETAINED`].
    ///
    /// # Errors
    /// When the state is too large or the transaction failed.
    pub fn save_snapshot(
        &mut self,
        index: u64,
        conf_state: ConfState,
        data: Vec<u8>,
    ) -> Result<(), RaftStoreError> {
        if data.len() > SNAPSHOT_BYTES_MAX {
            return Err(RaftStoreError::SnapshotTooLarge { bytes: data.len() });
        }
        let term = self.term_of(index).ok_or_else(|| self.format(format!("no entry {index} to snapshot")))?;
        self.snapshot = make_snapshot(index, term, conf_state, data);
        self.snapshot_wanted.set(false);
        let cut = index.saturating_sub(ENTRIES_RETAINED).max(self.truncated.0);
        let cut_term =
            self.term_of(cut).expect("the cut lies between the truncation point and a known entry");
        self.truncated = (cut, cut_term);
        while self.entries.front().is_some_and(|entry| entry.index <= cut) {
            self.entries.pop_front();
        }
        let changes = Changes {
            meta: vec![
                ("snapshot", encode(&self.snapshot)),
                ("truncated", self.truncated_bytes()),
                ("hard_state", encode(&self.hard_state)),
            ],
            remove_to: Some(cut),
            ..Changes::default()
        };
        self.commit(changes)
    }

    /// The newest durable snapshot.
    #[must_use]
    pub fn newest_snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether the Raft core waits for a newer snapshot.
    #[must_use]
    pub fn snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.get()
    }

    #[must_use]
    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    /// All entries that are in the log now, oldest first.
    pub fn log(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The index of the last entry, 0 if there is none yet.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.truncated.0 + self.entries.len() as u64
    }

    fn entry(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.truncated.0 + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        if index == self.snapshot.get_metadata().index {
            return Some(self.snapshot.get_metadata().term);
        }
        self.entry(index).map(|entry| entry.term)
    }

    fn truncated_bytes(&self) -> Vec<u8> {
        [self.truncated.0.to_le_bytes(), self.truncated.1.to_le_bytes()].concat()
    }

    fn commit(&self, changes: Changes) -> Result<(), RaftStoreError> {
        write_all(&self.db, &changes).map_err(|source| self.database(source))?;
        self.reserve.keep();
        Ok(())
    }

    fn database(&self, source: redb::Error) -> RaftStoreError {
        RaftStoreError::Database { path: self.path.clone(), source: Box::new(source) }
    }

    fn format(&self, what: String) -> RaftStoreError {
        RaftStoreError::Format { path: self.path.clone(), what }
    }

    fn decode<M: protobuf::Message + Default>(
        &self,
        bytes: Option<&[u8]>,
        what: &str,
    ) -> Result<M, RaftStoreError> {
        let mut message = M::default();
        if let Some(bytes) = bytes {
            message.merge_from_bytes(bytes).map_err(|error| self.format(format!("{what}: {error}")))?;
        }
        Ok(message)
    }
}

impl Storage for RaftStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        // The members as of the snapshot: the Raft core applies the later changes again, because it
        // is started with the snapshot's index as the last applied one.
        Ok(RaftState::new(self.hard_state.clone(), self.snapshot.get_metadata().get_conf_state().clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.truncated.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let mut entries: Vec<Entry> = (low..high).filter_map(|index| self.entry(index).cloned()).collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.term_of(index).ok_or_else(|| {
            let error =
                if index <= self.truncated.0 { StorageError::Compacted } else { StorageError::Unavailable };
            raft::Error::Store(error)
        })
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let metadata = self.snapshot.get_metadata();
        let members = metadata.get_conf_state();
        // A node refuses a snapshot whose members do not include it, so a joiner needs a newer one.
        let known = members.voters.contains(&to) || members.learners.contains(&to);
        if metadata.index == 0 || metadata.index < request_index || !known {
            self.snapshot_wanted.set(true);
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.snapshot.clone())
    }
}

impl RaftStoreError {
    /// The file, if its content is lost: it is damaged, or lacks what was in it.
    #[must_use]
    pub fn lost_file(&self) -> Option<&Path> {
        let damaged = |source: &redb::Error| match source {
            redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) | redb::Error::RepairAborted => true,
            redb::Error::Io(error) => {
                matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
            }
            _ => false,
        };
        match self {
            Self::Unreadable { path } | Self::Lost { path, .. } | Self::Format { path, .. } => Some(path),
            Self::Database { path, source } if damaged(source) => Some(path),
            _ => None,
        }
    }
}

/// Changes of one transaction.
#[derive(Default)]
struct Changes {
    meta: Vec<(&'static str, Vec<u8>)>,
    replace_log: bool,
    remove_from: Option<u64>,
    remove_to: Option<u64>,
    entries: Vec<(u64, Vec<u8>)>,
}

#[derive(Default)]
struct Meta {
    format: Option<Vec<u8>>,
    hard_state: Option<Vec<u8>>,
    snapshot: Option<Vec<u8>>,
    truncated: Option<Vec<u8>>,
}

/// Opens or makes a redb file such that its name in the directory is durable too, and reserves
/// space for its growth: `reserve_bytes_min` at least.
pub(crate) fn open_database(
    path: &Path,
    reserve_bytes_min: u64,
) -> Result<(Database, Reserve), RaftStoreError> {
    let refused =
        |source: redb::Error| RaftStoreError::Database { path: path.to_path_buf(), source: Box::new(source) };
    private::file(path).map_err(|error| refused(redb::StorageError::Io(error).into()))?;
    let database = Database::create(path).map_err(|source| refused(source.into()))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| RaftStoreError::Directory { path: directory.to_path_buf(), source })?;
    let reserve = Reserve::of(path, reserve_bytes_min)
        .map_err(|source| RaftStoreError::Reserve { path: path.to_path_buf(), source })?;
    Ok((database, reserve))
}

type Entries = Vec<(u64, Vec<u8>)>;

fn read_all(db: &Database) -> Result<(Meta, Entries), redb::Error> {
    let read = db.begin_read()?;
    let table = match read.open_table(META) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((Meta::default(), Entries::new())),
        Err(error) => return Err(error.into()),
    };
    let get = |key: &str| -> Result<Option<Vec<u8>>, redb::Error> {
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    };
    let meta = Meta {
        format: get("format")?,
        hard_state: get("hard_state")?,
        snapshot: get("snapshot")?,
        truncated: get("truncated")?,
    };
    let mut entries = Entries::new();
    for item in read.open_table(LOG)?.iter()? {
        let (index, bytes) = item?;
        entries.push((index.value(), bytes.value().to_vec()));
    }
    Ok((meta, entries))
}

fn write_all(db: &Database, changes: &Changes) -> Result<(), redb::Error> {
    let mut write = db.begin_write()?;
    write.set_durability(Durability::Immediate)?;
    {
        let mut log = write.open_table(LOG)?;
        if changes.replace_log {
            log.retain(|_, _| false)?;
        }
        if let Some(from) = changes.remove_from {
            log.retain_in(from.., |_, _| false)?;
        }
        if let Some(to) = changes.remove_to {
            log.retain_in(..=to, |_, _| false)?;
        }
        for (index, bytes) in &changes.entries {
            log.insert(index, bytes.as_slice())?;
        }
        let mut meta = write.open_table(META)?;
        for (key, bytes) in &changes.meta {
            meta.insert(key, bytes.as_slice())?;
        }
    }
    write.commit()?;
    Ok(())
}

fn make_snapshot(index: u64, term: u64, conf_state: ConfState, data: Vec<u8>) -> Snapshot {
    let mut metadata = SnapshotMetadata { index, term, ..SnapshotMetadata::default() };
    metadata.set_conf_state(conf_state);
    let mut snapshot = Snapshot { data: data.into(), ..Snapshot::default() };
    snapshot.set_metadata(metadata);
    snapshot
}

fn encode(message: &impl protobuf::Message) -> Vec<u8> {
    message.write_to_bytes().expect("all fields of these messages are optional, so encoding cannot fail")
}
