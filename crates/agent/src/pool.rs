//! The pool of this node: a directory on a file system, `<state>/pools/default`.

use mainstay_types::{EXTENT_BYTES, ResourceId};
use nix::sys::statvfs::statvfs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a pool that are never promised to a replica: metadata of the file system and the cluster state.
const HEADROOM_BYTES: u64 = 64 << 20;

/// Directory of the pool.
#[must_use]
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("pools/default")
}

/// Directory of a replica. The id is part of it because names are used again and ids never are.
#[must_use]
pub fn replica_directory(state_dir: &Path, resource: ResourceId, name: &str) -> PathBuf {
    directory(state_dir).join(format!("{name}-{}", resource.0))
}

/// The label of a replica, in its directory.
pub const LABEL: &str = "replica.json";
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

/// What crashes have left in the pool of replicas that were being made or removed.
///
/// # Errors
/// When the pool cannot be read.
pub fn rests(pool: &Path) -> io::Result<Vec<PathBuf>> {
    let mut rests = Vec::new();
    for entry in std::fs::read_dir(pool)? {
        let path = entry?.path();
        if is_rest(&path) && path.is_dir() && holds_only_ours(&path)? {
            rests.push(path);
        }
    }
    Ok(rests)
}

/// Whether a directory in the pool is named as [`replica_directory`] does it, and nothing is in it but what belongs to a replica.
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

/// Whether a file is named as one of a snapshot, half-made or whole, or of one that was deleted and had put something aside.
fn is_snapshot(file: &str) -> bool {
    let file = file.strip_suffix(".new").unwrap_or(file);
    let rest = file.strip_prefix("snap").or_else(|| file.strip_prefix("gone"));
    let in_layer = |of: &str| ["map", "old"].iter().any(|kind| of.strip_prefix(kind).is_some_and(is_digits));
    let parts = rest.and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(number, of)| is_digits(number) && (is_area(of) || in_layer(of)))
}

fn holds_only_ours(directory: &Path) -> io::Result<bool> {
    let ours = |file: &str| {
        // The last one is a label that is being written.
        matches!(file, "meta" | "journal" | LABEL | "replica.new") || is_area(file) || is_snapshot(file)
    };
    for entry in std::fs::read_dir(directory)? {
        if !entry?.file_name().to_str().is_some_and(ours) {
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
    // Making what is there waits, like any other change, while the file system is frozen.
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
    let stat = statvfs(&directory(state_dir))?;
    let free = (stat.blocks_available() * stat.fragment_size()).saturating_sub(HEADROOM_BYTES);
    Ok((stat.blocks() * stat.fragment_size(), free))
}

/// Bytes that a replica takes at most: volumes, journal, and the store's own areas.
#[must_use]
pub fn replica_bytes(volumes: &[u64], journal_bytes: u64) -> u64 {
    // The version tables are two slots of 8 bytes for each extent, with room for as much again; then the superblocks.
    let tables: u64 = volumes.iter().map(|bytes| bytes.div_ceil(EXTENT_BYTES) * 32).sum();
    volumes.iter().sum::<u64>().saturating_add(journal_bytes).saturating_add(tables).saturating_add(1 << 20)
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
        ];
        let (half, whole) = (make("db-1.making", &ours), make("db-2", &ours));
        make("db-3.making", &["meta", "vol0", "dump.sql"]);
        make("db-4.making", &["snap1-dump"]);
        assert_eq!(rests(pool.path()).expect("it can be read"), [half]);
        assert!(is_replica_directory(&whole).expect("it can be read"));
        assert!(!is_replica_directory(&make("db-5", &["snap-vol0"])).expect("it can be read"));
    }
}
