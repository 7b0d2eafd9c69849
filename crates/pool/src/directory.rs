//! The pool of this node: a directory on a file system, `<state>/pools/default`.

use mainstay_types::label::{Found, Label, directory_name};
use mainstay_types::{EXTENT_BYTES, ResourceId};
use rustix::fs::statvfs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a pool that are never promised to a replica: metadata of the file system and the
/// cluster state.
const HEADROOM_BYTES: u64 = 64 << 20;

/// A pool with less does not count as one that has space again.
pub const ROOM_BYTES_MIN: u64 = 16 << 20;

/// Directory of the pool.
#[must_use]
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("pools/default")
}

/// Directory of a replica.
#[must_use]
pub fn replica_directory(state_dir: &Path, resource: ResourceId, name: &str) -> PathBuf {
    directory(state_dir).join(directory_name(resource, name))
}

/// The label of a replica, in its directory.
pub const LABEL: &str = "replica.json";
/// The label of a replica that is being removed.
pub const REMOVED_LABEL: &str = "removed.json";

/// The label of a directory, as far as it can be read.
#[must_use]
pub fn label(directory: &Path) -> Found {
    match std::fs::read(directory.join(LABEL)) {
        Ok(bytes) if bytes.is_empty() => Found::Unreadable("it is empty".into()),
        Ok(bytes) => match serde_json::from_slice::<Label>(&bytes) {
            Ok(label) => Found::Label(label),
            Err(error) => Found::Unreadable(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::NoLabel,
        Err(error) => Found::Unreadable(error.to_string()),
    }
}

/// The directories of a pool that are replicas, were replicas, or are named as such, in order.
///
/// # Errors
/// When the pool cannot be read.
pub fn scan(pool: &Path) -> io::Result<Vec<(String, Found)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(pool)? {
        let path = entry?.path();
        if !path.is_dir() || is_left_by_us(&path) {
            continue;
        }
        let label = label(&path);
        if label == Found::NoLabel && !is_replica_directory(&path).unwrap_or(false) {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push((name, label));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}
const MAKING: &str = ".making";
const REMOVED: &str = ".removed";
/// While the engine makes the files, they are in a directory of its own.
const CREATING: &str = ".making.creating";

fn beside(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Where a replica is until it is complete and has its label.
#[must_use]
pub fn making(directory: &Path) -> PathBuf {
    beside(directory, MAKING)
}

/// Where a replica is from when it is to be removed.
#[must_use]
pub fn removed(directory: &Path) -> PathBuf {
    beside(directory, REMOVED)
}

/// Everything that the making and the removing of a replica may leave in a crash.
#[must_use]
pub fn rest_of(directory: &Path) -> [PathBuf; 3] {
    [CREATING, MAKING, REMOVED].map(|suffix| beside(directory, suffix))
}

/// The name of the replica that a directory is, or is what is left of.
#[must_use]
pub fn replica_name(directory: &Path) -> Option<&str> {
    let name = directory.file_name()?.to_str()?;
    // Longest first: one ends like another.
    let rest = [CREATING, MAKING, REMOVED].iter().find_map(|suffix| name.strip_suffix(suffix));
    Some(rest.unwrap_or(name)).filter(|name| is_replica_name(name))
}

/// Whether a path is named as in [`rest_of`].
#[must_use]
pub fn is_rest(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    [CREATING, MAKING, REMOVED].iter().any(|suffix| name.strip_suffix(suffix).is_some_and(is_replica_name))
}

/// Returns directories that crashes left in the pool, of replicas that were being made or removed.
///
/// # Errors
/// When the pool cannot be read.
pub fn rests(pool: &Path) -> io::Result<Vec<PathBuf>> {
    let mut rests = Vec::new();
    for entry in std::fs::read_dir(pool)? {
        let path = entry?.path();
        if path.is_dir() && is_left_by_us(&path) {
            rests.push(path);
        }
    }
    Ok(rests)
}

/// Whether a directory was left by the making or the removing of a replica: the removal has changed
/// its label, or its name says so and nothing else is in it. A replica that an operator has given
/// such a name still has its label (R27).
#[must_use]
pub fn is_left_by_us(directory: &Path) -> bool {
    let has = |file: &str| directory.join(file).exists();
    let removed = has(REMOVED_LABEL) && !has(LABEL);
    if is_replica_name_of(directory) {
        return removed;
    }
    let named_removed = directory.file_name().is_some_and(|name| name.to_string_lossy().ends_with(REMOVED));
    let whole = named_removed && has(LABEL);
    is_rest(directory) && (removed || !whole && holds_only_ours(directory).unwrap_or(false))
}

/// Removes the files of a replica from its directory, and the directory if nothing else is in it. A
/// directory that does not exist is success.
///
/// # Errors
/// When something could not be removed.
pub fn remove_files(directory: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let mut others = false;
    for entry in entries {
        let entry = entry?;
        match entry.file_name().to_str() {
            // The directory is known by this label until the end.
            Some(REMOVED_LABEL) => {}
            Some(file) if is_ours(file) && !entry.file_type()?.is_dir() => {
                std::fs::remove_file(entry.path())?
            }
            _ => others = true,
        }
    }
    match std::fs::remove_file(directory.join(REMOVED_LABEL)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if others {
        tracing::warn!(directory = %directory.display(), "files of others are in the directory of a replica that was removed; they stay");
        return Ok(());
    }
    std::fs::remove_dir(directory)
}

fn is_replica_name_of(directory: &Path) -> bool {
    directory.file_name().and_then(|name| name.to_str()).is_some_and(is_replica_name)
}

/// Whether a directory in the pool is named as [`replica_directory`] does it, and nothing is in it
/// but what belongs to a replica.
///
/// # Errors
/// When it cannot be read.
pub fn is_replica_directory(path: &Path) -> io::Result<bool> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.is_some_and(is_replica_name) && holds_only_ours(path)?)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_replica_name(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, id)| is_digits(id))
}

/// Whether a file is named as that of a volume or of its sums.
fn is_area(file: &str) -> bool {
    ["vol", "sums"].iter().any(|kind| file.strip_prefix(kind).is_some_and(is_digits))
}

/// Whether a file is named as one of a snapshot, half-made or whole, or of one that was deleted and
/// had put something aside.
fn is_snapshot(file: &str) -> bool {
    let file = file.strip_suffix(".new").unwrap_or(file);
    let rest = file.strip_prefix("snap").or_else(|| file.strip_prefix("gone"));
    let in_layer = |of: &str| ["map", "old"].iter().any(|kind| of.strip_prefix(kind).is_some_and(is_digits));
    let parts = rest.and_then(|rest| rest.split_once('-'));
    let kept = file.strip_prefix("before-copy-").is_some_and(is_area);
    kept || parts.is_some_and(|(number, of)| is_digits(number) && (is_area(of) || in_layer(of)))
}

/// Whether a file is named as one of a replica.
fn is_ours(file: &str) -> bool {
    // A name that ends with `new` is a file that is being written: a label, or the stamps of the
    // sums.
    let one =
        matches!(file, "meta" | "journal" | "marks" | "marks.new" | LABEL | REMOVED_LABEL | "replica.new");
    one || is_area(file) || is_snapshot(file)
}

fn holds_only_ours(directory: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        if !entry?.file_name().to_str().is_some_and(is_ours) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Bytes that new replicas may take.
///
/// # Errors
/// When the directory cannot be made or asked.
pub fn free_bytes(state_dir: &Path) -> io::Result<u64> {
    let directory = directory(state_dir);
    // Even making a directory that exists waits while the file system is frozen, like any other
    // change.
    if !directory.is_dir() {
        std::fs::create_dir_all(directory)?;
    }
    size_bytes(state_dir).map(|(_, free)| free)
}

/// Bytes of the file system that holds the pool, and those that new replicas may take.
///
/// # Errors
/// When there is no pool, or it cannot be asked.
pub fn size_bytes(state_dir: &Path) -> io::Result<(u64, u64)> {
    let stat = statvfs(directory(state_dir))?;
    let free = (stat.f_bavail * stat.f_frsize).saturating_sub(HEADROOM_BYTES);
    Ok((stat.f_blocks * stat.f_frsize, free))
}

/// Bytes of the pool's file system that any user may take.
///
/// # Errors
/// When there is no pool, or it cannot be asked.
pub fn available_bytes(state_dir: &Path) -> io::Result<u64> {
    let stat = statvfs(directory(state_dir))?;
    Ok(stat.f_bavail * stat.f_frsize)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_a_crash_left_is_known_by_its_files() {
        let pool = tempfile::tempdir().expect("a directory");
        let make = |name: &str, files: &[&str]| {
            let directory = pool.path().join(name);
            fs::create_dir(&directory).expect("a directory");
            for file in files {
                fs::write(directory.join(file), "").expect("a file");
            }
            directory
        };
        let ours = [
            "meta",
            "journal",
            "vol0",
            "vol12",
            "sums0",
            "snap1-vol0",
            "snap1-sums0",
            "snap2-vol0.new",
            "snap3-map0",
            "snap3-old0",
            "gone2-map1",
            "gone2-old1",
            "before-copy-vol0",
            "before-copy-sums0.new",
            "marks",
            "marks.new",
        ];
        let (half, whole) = (make("db-1.making", &ours), make("db-2", &ours));
        make("db-3.making", &["meta", "vol0", "dump.sql"]);
        make("db-4.making", &["snap1-dump"]);
        assert_eq!(rests(pool.path()).expect("it can be read"), [half]);
        assert!(is_replica_directory(&whole).expect("it can be read"));
        assert!(!is_replica_directory(&make("db-5", &["snap-vol0"])).expect("it can be read"));
    }
}
