//! The disk of the pool: whether it keeps what it is told to keep, how fast, and how much.

use super::Row;
use mainstay_engine::lease_file::is_in_memory;
use mainstay_types::size_words;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Durable writes that are measured, and how long that may take.
const WRITES: usize = 50;
const LIMIT: Duration = Duration::from_secs(3);
/// A durable write that takes longer makes a database slow.
const SLOW: Duration = Duration::from_millis(10);
/// Free space below which hardly any replica fits.
const SCARCE: u64 = 10 << 30;

pub fn rows(state_dir: &Path) -> Vec<Row> {
    // Nothing is made: the file goes to where the directory would be made.
    let Some(there) = state_dir.ancestors().find(|path| path.is_dir()) else {
        return vec![Row::fails(
            "disk",
            format!("{} cannot be made", state_dir.display()),
            "the node cannot start",
            "Name another directory with --state-dir.",
        )];
    };
    vec![place(state_dir, there), space(there), writes(there), reflinks(there)]
}

fn place(state_dir: &Path, there: &Path) -> Row {
    if is_in_memory(there) {
        return Row::fails(
            "disk",
            format!("{} is in memory", state_dir.display()),
            "a restart of the machine LOSES all replicas of this node",
            "Mount a disk there, or name another directory with the key state_dir of the configuration.",
        );
    }
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    if device(there) == device(Path::new("/")) {
        return Row::warning(
            "disk",
            format!("{} is on the disk of the system", state_dir.display()),
            "replicas and the system take each other's space and speed",
            format!("Mount a file system of its own at {}, best XFS.", state_dir.display()),
        );
    }
    Row::ok("disk", format!("{} is on a disk of its own", state_dir.display()))
}

fn space(there: &Path) -> Row {
    match rustix::fs::statvfs(there) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let text = format!("{} are free", size_words(free >> 20 << 20));
            if free < SCARCE {
                return Row::warning(
                    "space",
                    text,
                    "only small volumes fit",
                    "Mount a larger disk for the replicas.",
                );
            }
            Row::ok("space", text)
        }
        Err(error) => {
            Row::warning("space", format!("cannot be found out: {error}"), "replicas may not fit", "Ask df.")
        }
    }
}

/// A file that goes with this value.
struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn new(there: &Path, end: &str) -> io::Result<Self> {
        let path = there.join(format!(".mainstay-doctor-{}{end}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

fn writes(there: &Path) -> Row {
    let costs = "each commit of a database waits for such a write";
    let measured = Scratch::new(there, "").and_then(|scratch| measure(&scratch.file));
    match measured {
        Ok((median, slowest)) => {
            let text = format!("a durable write of 4 KiB takes {} (slowest {})", ms(median), ms(slowest));
            if median > SLOW {
                let remedy =
                    "Use an SSD with power loss protection, or put journals on one: docs/journal-devices.md.";
                return Row::warning("writes", text, costs, remedy);
            }
            Row::ok("writes", text)
        }
        Err(error) => Row::fails(
            "writes",
            format!("the disk cannot be written: {error}"),
            "the node cannot keep replicas",
            format!("Make {} writable.", there.display()),
        ),
    }
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// Median and maximum.
fn measure(file: &File) -> io::Result<(Duration, Duration)> {
    let block = [0x6d; 4096];
    // Afterwards only content changes, as in a journal.
    for number in 0..WRITES as u64 {
        file.write_all_at(&block, number * 4096)?;
    }
    file.sync_all()?;
    let begin = Instant::now();
    let mut times = Vec::new();
    for number in 0..WRITES as u64 {
        let start = Instant::now();
        file.write_all_at(&block, number * 4096)?;
        file.sync_data()?;
        times.push(start.elapsed());
        if begin.elapsed() > LIMIT {
            break;
        }
    }
    times.sort();
    let last = times.last().copied().unwrap_or_default();
    Ok((times.get(times.len() / 2).copied().unwrap_or(last), last))
}

fn reflinks(there: &Path) -> Row {
    let clone = || -> io::Result<()> {
        let (from, to) = (Scratch::new(there, ".from")?, Scratch::new(there, ".to")?);
        (&from.file).write_all(&[1; 4096])?;
        from.file.sync_all()?;
        rustix::fs::ioctl_ficlone(&to.file, &from.file)?;
        Ok(())
    };
    match clone() {
        Ok(()) => Row::ok("reflinks", "the file system shares blocks between files"),
        Err(_) => Row::warning(
            "reflinks",
            "the file system does not share blocks between files",
            "while a snapshot exists, the first write to each extent also copies it; a clone of a snapshot is a full copy",
            "Make the file system for the replicas with: mkfs.xfs -m reflink=1",
        ),
    }
}
