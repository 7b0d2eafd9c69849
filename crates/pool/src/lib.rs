//! Pools: where a node keeps its replicas. Agent and engine ask a pool for a replica and for the
//! parts of one; neither knows the name of a file.
//!
//! Guarantees
//! - A replica is in its place as a whole, with its label, or not at all. It gets its name when
//!   parts and label are durable, and loses it before any of them is removed.
//! - Only what the making or the removing of a replica has left is removed. Mainstay neither
//!   uses, writes nor removes what others have put into the pool, or under the name of a replica.
//! - A journal elsewhere exists only while a replica in the pool names it ([`journals`]).
//!
//! A kind of pool is a file of this crate with both traits, and a line in [`KINDS`]. Its replicas
//! have places below that of the pool: paths that agent and engine tell each other, whether there
//! are directories at them or not. A part of a replica has a path too, of a file or of a block
//! device.
//!
//! Everything here blocks.

mod directory;
pub mod durable;
pub mod journals;
mod part;

pub use part::{Entry, LayerKind, LayerPart, Part};

use mainstay_api::engine::FileId;
use mainstay_types::label::{Found, Label, Look, directory_name};
use mainstay_types::{EXTENT_BYTES, ResourceId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a pool that are never promised to a replica: metadata of the file system and the
/// cluster state.
const HEADROOM_BYTES: u64 = 64 << 20;

/// A pool with less does not count as one that has space again.
pub const ROOM_BYTES_MIN: u64 = 16 << 20;

/// Kind of a pool.
struct Kind {
    /// Whether the pool in this place is of the kind.
    is_at: fn(&Path) -> bool,
    open: fn(&Path) -> Arc<dyn Pool>,
}

/// All kinds. The first counts that takes a place for its own, and the last takes all.
const KINDS: &[Kind] =
    &[Kind { is_at: |_| true, open: |place| Arc::new(directory::DirectoryPool::at(place.to_owned())) }];

/// Returns the place of a node's pool.
#[must_use]
pub fn place(state_dir: &Path) -> PathBuf {
    state_dir.join("pools/default")
}

/// Returns the pool in a place, whether it is there or not.
#[must_use]
pub fn at(place: &Path) -> Arc<dyn Pool> {
    let kind = KINDS.iter().find(|kind| (kind.is_at)(place)).expect("the last kind takes all places");
    (kind.open)(place)
}

/// Returns the pool of a node.
#[must_use]
pub fn of_node(state_dir: &Path) -> Arc<dyn Pool> {
    at(&place(state_dir))
}

/// Returns the replica in a place, whether it is there or not.
#[must_use]
pub fn replica_at(place: &Path) -> Arc<dyn Replica> {
    let pool = place.parent().filter(|pool| !pool.as_os_str().is_empty()).unwrap_or(Path::new("."));
    at(pool).replica(place)
}

/// Where a part of a replica is, by its path; `None` if it is not named as one.
#[must_use]
pub fn part_at(path: &Path) -> Option<(Arc<dyn Replica>, Part)> {
    let replica = replica_at(path.parent()?);
    let part = replica.part_named(path)?;
    Some((replica, part))
}

/// Space of the storage that a pool is on, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub size: u64,
    /// Bytes that any user may take.
    pub available: u64,
}

impl Space {
    /// Bytes that new replicas may take.
    #[must_use]
    pub fn for_replicas(self) -> u64 {
        self.available.saturating_sub(HEADROOM_BYTES)
    }
}

/// Bytes that a replica takes at most: volumes, journal, and the store's own areas.
#[must_use]
pub fn replica_bytes(volumes: &[u64], journal_bytes: u64) -> u64 {
    // The version tables are two slots of 8 bytes for each extent, with room for as much again;
    // then the superblocks.
    let sum = |sum: u64, bytes: &u64| {
        let table = bytes.div_ceil(EXTENT_BYTES).saturating_mul(32);
        sum.saturating_add(*bytes).saturating_add(table)
    };
    volumes.iter().fold(journal_bytes.saturating_add(1 << 20), sum)
}

/// A step on a path that failed.
#[derive(Debug)]
pub struct Failed {
    /// The step, as words to which the path is added.
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

/// A pool of this node.
pub trait Pool: fmt::Debug + Send + Sync {
    /// Where it is.
    fn place(&self) -> &Path;

    /// Makes the pool, unless it is there.
    ///
    /// # Errors
    /// When it cannot be made.
    fn make(&self) -> io::Result<()>;

    /// The replica in a place below that of the pool.
    fn replica(&self, place: &Path) -> Arc<dyn Replica>;

    /// The replica of a resource.
    fn replica_of(&self, resource: ResourceId, name: &str) -> Arc<dyn Replica> {
        self.replica(&self.place().join(directory_name(resource, name)))
    }

    /// Names of the places that are replicas, were replicas, or are named as such, in order.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn scan(&self) -> io::Result<Vec<(String, Found)>>;

    /// Removes what crashes left of replicas that were being made or removed. If the journal of one
    /// cannot be removed, both are left for the next attempt.
    ///
    /// # Errors
    /// When the pool cannot be read or something in it not removed.
    fn clear(&self) -> io::Result<()>;

    /// Looks for the files that the engine has open, by the names of their parts, in the replica's
    /// own place and, if they are not there, in the others of the pool.
    fn look(&self, label: &Label, open: &BTreeMap<String, FileId>) -> Look;

    /// Number of the storage that the pool is on: another one has another number.
    fn storage(&self) -> Option<u64>;

    /// Space of that storage.
    ///
    /// # Errors
    /// When there is no pool, or it cannot be asked.
    fn space(&self) -> io::Result<Space>;

    /// Journals elsewhere that replicas in the pool, or what is left of some, name.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn journals(&self) -> io::Result<BTreeSet<PathBuf>>;
}

/// The place of one replica in a pool, and what is there.
pub trait Replica: fmt::Debug + Send + Sync {
    /// Where it is.
    fn place(&self) -> &Path;

    /// Whether something is there.
    fn is_there(&self) -> bool;

    /// Whether an operator has removed it to have the replica copied again. A pool that is not
    /// there was not emptied.
    fn was_removed(&self) -> bool;

    /// Whether a replica, or what was left of one, is in the place or may come there.
    fn is_taken(&self) -> bool;

    /// Whether it was left by the making or the removing of a replica.
    fn is_left(&self) -> bool;

    /// The label, as far as it can be read.
    fn label(&self) -> Found;

    /// Where the label is, for an operator.
    fn label_place(&self) -> PathBuf;

    /// Writes a label again that was lost, durably.
    ///
    /// # Errors
    /// When it was not written.
    fn relabel(&self, label: &Label) -> io::Result<()>;

    /// Where the engine makes the replica, until it is complete and has its label.
    fn making(&self) -> PathBuf;

    /// Gives a replica that was made its label and its name, durably.
    ///
    /// # Errors
    /// When label and name may not survive a power cut.
    fn publish(&self, label: &Label) -> io::Result<()>;

    /// Ends a replica, durably: first its label says that it is being removed, then it loses its
    /// name. A replica that is not there is success.
    ///
    /// # Errors
    /// When it may be a replica after a power cut.
    fn withdraw(&self) -> io::Result<()>;

    /// Makes durable whether a replica is in the place.
    ///
    /// # Errors
    /// When a power cut may change that.
    fn settle(&self) -> io::Result<()>;

    /// Removes the remains of making or removing a replica. Files of others stay.
    ///
    /// # Errors
    /// When something could not be removed.
    fn remove_rests(&self) -> io::Result<()>;

    /// Begins to make a replica, and returns the place in which its parts are made. Removes the
    /// remains of an earlier attempt. If these name a journal elsewhere, the caller removes the
    /// journal before.
    ///
    /// # Errors
    /// When it cannot begin.
    fn begin(&self) -> Result<Arc<dyn Replica>, Failed>;

    /// Removes what was begun. Nothing there is success.
    ///
    /// # Errors
    /// When something could not be removed.
    fn cancel(&self) -> Result<(), Failed>;

    /// Gives the replica that was begun, whose parts it makes durable, its name.
    /// [`settle`](Self::settle) makes the name durable.
    ///
    /// # Errors
    /// When it has not got its name.
    fn finish(&self) -> Result<(), Failed>;

    /// Removes all parts; their name is free at once, whatever happens meanwhile. A journal
    /// elsewhere stays, and no replica there is success.
    ///
    /// # Errors
    /// When something could not be removed.
    fn discard(&self) -> Result<(), Failed>;

    /// Space of the storage that it is on.
    ///
    /// # Errors
    /// When the storage cannot be asked.
    fn space(&self) -> io::Result<Space>;

    /// Path of a part.
    fn part(&self, part: Part) -> PathBuf;

    /// Path of a part while it is being written, beside one that may be there.
    fn half(&self, part: Part) -> PathBuf;

    /// Whether the part is there.
    fn has(&self, part: Part) -> bool {
        self.part(part).exists()
    }

    /// The part that has this path.
    fn part_named(&self, path: &Path) -> Option<Part>;

    /// All parts that are there.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn parts(&self) -> io::Result<Vec<Entry>>;

    /// Makes a part of `bytes` bytes that must not be there yet, with all its space if it is
    /// `reserved`, and returns where it is. Its content is zeroes.
    ///
    /// # Errors
    /// When it cannot be made.
    fn make(&self, part: Part, bytes: u64, reserved: bool) -> Result<PathBuf, Failed>;

    /// Lets a part that was written take the place of one that is there.
    ///
    /// # Errors
    /// When it has not taken it.
    fn complete(&self, part: Part) -> Result<(), Failed>;

    /// Gives a part the name of another one. A part that is not there is success.
    ///
    /// # Errors
    /// When it has its old name.
    fn rename(&self, from: Part, to: Part) -> Result<(), Failed>;

    /// Makes durable which parts there are.
    ///
    /// # Errors
    /// When a power cut may change that.
    fn flush(&self) -> Result<(), Failed>;

    /// Makes a new part at a path of [`half`](Self::half) or [`part`](Self::part) that shares its
    /// space with an open one. `None`: this pool cannot.
    ///
    /// # Errors
    /// When it could have, and did not.
    fn clone_to(&self, path: &Path, source: BorrowedFd<'_>) -> Result<Option<File>, Failed>;

    /// Lets the open part `target` hold what `source` holds, and share its space with that.
    ///
    /// # Errors
    /// When it does not.
    fn clone_over(&self, target: BorrowedFd<'_>, source: BorrowedFd<'_>) -> io::Result<()>;

    /// Lets a replica in the making name its journal elsewhere, durably: before that exists.
    ///
    /// # Errors
    /// When it may not name it after a power cut.
    fn link_journal(&self, journal: &Path) -> Result<(), Failed>;

    /// Where the journal is, if that is elsewhere.
    fn journal_elsewhere(&self) -> Option<PathBuf>;
}
