//! Removing files whose space takes long to give back: clones, which share it with others, and
//! layers, which lie in many pieces.
//!
//! A file system does that in one go, and writers meanwhile wait for its locks and its log. So the
//! engine removes the name at once, and frees the space in parts. It does so on a thread of its own
//! that rests after each part for as long as the part took. No caller waits for that. When the
//! engine ends meanwhile, the file system does the rest by itself: the file has no name any more.
//!
//! A process that has such a file open keeps its content (the file may be mounted), and so does
//! another name of the file. Then the file is left to the file system, which frees it when the last
//! of these goes. Before each part the thread takes a lease. It gets one only if the file is open
//! nowhere else, and the lease keeps others out until the part is done.
//!
//! The files that wait are bounded for each pool (R18); a file beyond that is freed in one go. In a
//! pool that is nearly full the thread does not rest.

// Leases have no safe form in the standard library or in rustix.
#![allow(unsafe_code)]

use super::cow::{next_data, punch};
use crate::ring::Fd;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Space that is given back at a time, in bytes. Measured (bench/RESULTS.md).
const PART_BYTES: u64 = 16 << 20;
const REST_MAX: Duration = Duration::from_secs(1);
/// `linux/fcntl.h`; the libc crate does not have it.
const F_SETSIG: libc::c_int = 10;
/// Most files of a pool that wait to be freed.
const WAITING_MAX: usize = 64;

/// Removes a file as [`fs::remove_file`] does; the space of a large one comes back by and by.
///
/// # Errors
/// Those of [`fs::remove_file`].
pub fn remove(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    fs::remove_file(path)?;
    if let Ok(file) = file {
        free_later(file);
    }
    Ok(())
}

/// Closes a file, whose space comes back by and by if that was the last of it.
pub fn close(file: Fd) {
    // An operation that is under way has it as well, and closes it.
    if let Ok(file) = Arc::try_unwrap(file) {
        free_later(file.into());
    }
}

fn free_later(file: File) {
    let Ok(about) = file.metadata() else { return };
    if about.nlink() == 0 && about.blocks() * 512 > PART_BYTES && Lease::of(&file).is_some() {
        // A file that finds no place is dropped, and the file system frees it in one go.
        let _ = line(about.dev()).map(|line| line.try_send(file));
    }
}

/// To the thread that frees what was on a file system, if there can be one.
fn line(device: u64) -> Option<mpsc::SyncSender<File>> {
    static LINES: Mutex<BTreeMap<u64, mpsc::SyncSender<File>>> = Mutex::new(BTreeMap::new());
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = lines.get(&device) {
        return Some(line.clone());
    }
    let (give, take) = mpsc::sync_channel::<File>(WAITING_MAX);
    let thread = thread::Builder::new().name("freeing".into());
    thread.spawn(move || take.into_iter().for_each(|file| free(&file))).ok()?;
    lines.insert(device, give.clone());
    Some(give)
}

/// Lease on a file: while it lives the file is open nowhere else, and opening it waits (fcntl(2)).
struct Lease<'a>(&'a File);

impl<'a> Lease<'a> {
    fn of(file: &'a File) -> Option<Self> {
        // The kernel signals the holder of a lease for which another process waits. SIGURG does no
        // harm.
        // SAFETY: neither call has memory of ours.
        let had = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        had.then_some(Self(file))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

fn free(file: &File) {
    let in_parts = || -> io::Result<()> {
        let (mut at, end) = (0, file.metadata()?.len());
        while let Some(data) = next_data(file, at, end)? {
            let began = Instant::now();
            let Some(lease) = Lease::of(file) else { return Ok(()) };
            punch(file, data, PART_BYTES)?;
            drop(lease);
            at = data + PART_BYTES;
            if !is_short(file) {
                thread::sleep(began.elapsed().min(REST_MAX));
            }
        }
        Ok(())
    };
    if let Err(error) = in_parts() {
        tracing::warn!(%error, "the space of a removed file cannot be given back in parts, and is given back at once");
    }
}

/// Whether less than a tenth of the file system is free, so that writes may wait for space.
fn is_short(file: &File) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|all| all.f_bavail < all.f_blocks / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::path::PathBuf;

    const BYTES: usize = 2 * PART_BYTES as usize + 4096;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("mainstay-freeing-{}-{name}", std::process::id()));
        fs::write(&path, vec![7; BYTES]).expect("a scratch file");
        path
    }

    fn is_whole(mut file: File) -> bool {
        let mut found = Vec::new();
        file.read_to_end(&mut found).expect("well");
        found.len() == BYTES && found.iter().all(|byte| *byte == 7)
    }

    /// Waits until the thread of this file system has freed all that it was given before.
    fn wait_for_the_thread(name: &str) {
        let path = scratch(&format!("last-{name}"));
        let device = fs::metadata(&path).expect("it is there").dev();
        let watched = File::open(&path).expect("it is there");
        fs::remove_file(&path).expect("well");
        // One more than may wait: the first of them has been taken when the last is.
        let (give, take) = mpsc::channel();
        let line = line(device).expect("a thread");
        thread::spawn(move || {
            for _ in 0..=WAITING_MAX {
                line.send(watched.try_clone().expect("well")).expect("it is taken");
            }
            give.send(()).expect("a caller waits");
        });
        take.recv_timeout(Duration::from_secs(20)).expect("the thread goes on");
    }

    #[test]
    fn all_space_of_a_freed_file_is_given_back() {
        let path = scratch("space");
        let open = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
        fs::remove_file(&path).expect("well");
        assert!(open.metadata().expect("it is open").blocks() * 512 > 2 * PART_BYTES);
        free(&open);
        assert_eq!(open.metadata().expect("it is open").blocks(), 0);
    }

    /// A snapshot is mounted, or being copied, while it is deleted.
    #[test]
    fn a_reader_that_has_a_removed_file_open_keeps_its_content() {
        let path = scratch("open");
        let alone = OpenOptions::new().write(true).open(&path).expect("it is there");
        drop(Lease::of(&alone).expect("no other program has it open"));
        let open = File::open(&path).expect("it is there");
        assert!(Lease::of(&alone).is_none());
        free(&alone);
        drop(alone);
        remove(&path).expect("well");
        assert!(!path.exists());
        wait_for_the_thread("open");
        assert!(is_whole(open));
    }

    #[test]
    fn a_removed_file_with_another_name_keeps_its_content() {
        let (path, other) =
            (scratch("one"), std::env::temp_dir().join(format!("mainstay-{}-other", std::process::id())));
        fs::hard_link(&path, &other).expect("well");
        remove(&path).expect("well");
        wait_for_the_thread("one");
        let file = File::open(&other).expect("it is there");
        fs::remove_file(&other).expect("well");
        assert!(is_whole(file));
        let (path, link) =
            (scratch("target"), std::env::temp_dir().join(format!("mainstay-{}-link", std::process::id())));
        std::os::unix::fs::symlink(&path, &link).expect("well");
        remove(&link).expect("well");
        wait_for_the_thread("link");
        let file = File::open(&path).expect("it is there");
        fs::remove_file(&path).expect("well");
        assert!(is_whole(file));
    }

    #[test]
    fn removal_of_a_missing_file_is_an_error_and_small_files_go_at_once() {
        let path = scratch("small");
        fs::write(&path, "small").expect("well");
        remove(&path).expect("well");
        assert_eq!(remove(&path).expect_err("it is gone").kind(), io::ErrorKind::NotFound);
    }
}
