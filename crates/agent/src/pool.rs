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

/// Whether a directory in the pool is named as [`replica_directory`] does it, and nothing is in it but what an engine makes there.
///
/// # Errors
/// When it cannot be read.
pub fn is_replica_directory(path: &Path) -> io::Result<bool> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = path.file_name().and_then(|name| name.to_str());
    if !name.and_then(|name| name.rsplit_once('-')).is_some_and(|(_, id)| digits(id)) {
        return Ok(false);
    }
    for entry in std::fs::read_dir(path)? {
        let file = entry?.file_name();
        let known =
            |file: &str| matches!(file, "meta" | "journal") || file.strip_prefix("vol").is_some_and(digits);
        if !file.to_str().is_some_and(known) {
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
    std::fs::create_dir_all(&directory)?;
    let stat = statvfs(&directory)?;
    Ok((stat.blocks_available() * stat.fragment_size()).saturating_sub(HEADROOM_BYTES))
}

/// Bytes that a replica takes at most: volumes, journal, and the store's own areas.
#[must_use]
pub fn replica_bytes(volumes: &[u64], journal_bytes: u64) -> u64 {
    // Two version tables of 8 bytes per extent, and the superblocks.
    let tables: u64 = volumes.iter().map(|bytes| bytes.div_ceil(EXTENT_BYTES) * 16).sum();
    volumes.iter().sum::<u64>().saturating_add(journal_bytes).saturating_add(tables).saturating_add(1 << 20)
}
