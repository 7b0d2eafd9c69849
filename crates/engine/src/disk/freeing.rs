//! Removing files whose space takes long to give back: clones, which share it with others, and layers, which lie in many pieces.
//!
//! A file system does that in one go, and whoever writes to it meanwhile waits for its locks and its log. So the name goes at once, and the
//! space in parts, on a thread of its own that rests after each as long as it took. Nobody waits for that. When the engine ends meanwhile, the
//! file system does the rest by itself: the file has no name any more.
//!
//! Who has such a file open goes on with what it holds: it may be mounted. It is left to the file system, which frees it when they close it. Whether
//! there is anybody is asked once it has no name, when nobody can come any more.
#![allow(unsafe_code)]

use super::cow::{next_data, punch};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// What is given back at a time, in bytes. Measured (bench/RESULTS.md).
const PART_BYTES: u64 = 16 << 20;
const REST_MAX: Duration = Duration::from_secs(1);

/// Removes a file as [`fs::remove_file`] does; the space of a large one comes back by and by.
///
/// # Errors
/// Those of [`fs::remove_file`].
pub fn remove(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    fs::remove_file(path)?;
    if let Ok(file) = file
        && file.metadata().is_ok_and(|of| of.blocks() * 512 > PART_BYTES)
        && open_only_here(&file)
        && let Some(line) = line()
    {
        // If nobody takes it, it is dropped, and the file system frees it in one go.
        let _ = line.send(file);
    }
    Ok(())
}

/// Whether nobody else has it open: only then is there a lease for writing (fcntl(2)). It ends when the file is closed.
fn open_only_here(file: &File) -> bool {
    // SAFETY: the call has no memory of ours.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// To the thread that frees, if there can be one.
fn line() -> Option<&'static mpsc::Sender<File>> {
    static LINE: OnceLock<Option<mpsc::Sender<File>>> = OnceLock::new();
    let begin = || {
        let (give, take) = mpsc::channel();
        let thread = thread::Builder::new().name("freeing".into());
        let began = thread.spawn(move || take.into_iter().for_each(|file: File| free(&file)));
        began.ok().map(|_| give)
    };
    LINE.get_or_init(begin).as_ref()
}

fn free(file: &File) {
    let in_parts = || -> io::Result<()> {
        let (mut at, end) = (0, file.metadata()?.len());
        while let Some(data) = next_data(file, at, end)? {
            let began = Instant::now();
            punch(file, data, PART_BYTES)?;
            at = data + PART_BYTES;
            thread::sleep(began.elapsed().min(REST_MAX));
        }
        Ok(())
    };
    if let Err(error) = in_parts() {
        tracing::warn!(%error, "the space of a removed file cannot be given back in parts, and is given back at once");
    }
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

    #[test]
    fn all_of_its_space_is_given_back() {
        let path = scratch("space");
        let open = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
        fs::remove_file(&path).expect("well");
        assert!(open.metadata().expect("it is open").blocks() * 512 > 2 * PART_BYTES);
        free(&open);
        assert_eq!(open.metadata().expect("it is open").blocks(), 0);
    }

    /// A snapshot is mounted, or being copied, while it is deleted.
    #[test]
    fn who_has_it_open_goes_on_with_what_it_holds() {
        let path = scratch("open");
        let alone = OpenOptions::new().write(true).open(&path).expect("it is there");
        assert!(open_only_here(&alone));
        drop(alone);
        let mut open = File::open(&path).expect("it is there");
        remove(&path).expect("well");
        assert!(!path.exists());
        // What was given to the thread before has been freed when this has.
        let next = scratch("next");
        let watched = OpenOptions::new().write(true).open(&next).expect("it is there");
        line().expect("a thread").send(watched.try_clone().expect("well")).expect("it is taken");
        fs::remove_file(&next).expect("well");
        let began = Instant::now();
        while watched.metadata().expect("it is open").blocks() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "it is not freed");
            thread::sleep(Duration::from_millis(1));
        }
        let mut found = Vec::new();
        open.read_to_end(&mut found).expect("well");
        assert!(found.len() == BYTES && found.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn what_is_not_there_is_an_error_and_small_files_go_as_ever() {
        let path = scratch("small");
        fs::write(&path, "small").expect("well");
        remove(&path).expect("well");
        assert_eq!(remove(&path).expect_err("it is gone").kind(), io::ErrorKind::NotFound);
    }
}
