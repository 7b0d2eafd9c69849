//! Output of the processes of services, and its way into their logs.
//!
//! Guarantees
//! - All output of one process, of its preparations and of its readiness tests goes through one
//!   pipe to one writer. The writer is a process of its own, which outlives the agent as they do.
//!   So the disk is bounded even while there is no agent: at most [`PARTS`] files of
//!   [`PART_BYTES_MAX`] for each process of a service.
//! - Writing never waits for the disk. The writer leaves out output that it cannot get rid of, or
//!   that comes faster than [`RATE_BYTES_PER_S`] for long. The log says how much.
//! - The agent replaces a writer that ends, and keeps the pipe open meanwhile, so no process sees
//!   an error. Processes see a closed pipe only if a writer is killed while there is no agent.
//! - The writer ends when the last process ends that can write to it. It is in a cgroup of its own,
//!   so silencing a service does not wait for it.

use super::command::{Identified, ProcessError, ServiceDirs, log_path};
use super::footing::Footing;
use crate::sys;
use crate::threads::{lock, spawn};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files of each process: the one that is being written, and the one before it.
pub const PARTS: u64 = 2;
/// Largest size of each, in bytes.
pub const PART_BYTES_MAX: u64 = 16 << 20;
/// How fast a log grows in the long run, in bytes per second: a process that writes all the time
/// shares the disk with the pool.
pub const RATE_BYTES_PER_S: u64 = 1 << 20;
/// How much may come at once, in bytes.
const BURST_BYTES: u64 = 8 << 20;
/// Limit of output that waits in the writer's memory for the disk, in bytes.
const WAITING_BYTES_MAX: usize = 1 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// How often a writer that an earlier agent started is looked at, and the pause before one that
/// ended is replaced.
const WATCH: Duration = Duration::from_millis(200);
/// Time after a process's end in which its last words may still arrive.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(60);
/// The longest last words that are told, in characters.
const LAST_WORDS_MAX: usize = 200;
/// Beginning of the line by which a log tells that a process starts.
const START_NOTE: &str = "mainstay: start of ";
/// Name of the writers' cgroup, below that of all services. No service can have this name.
const CGROUP: &str = ".output";

const _: () = assert!(PIECE_BYTES < WAITING_BYTES_MAX && (WAITING_BYTES_MAX as u64) < BURST_BYTES);
const _: () = assert!(BURST_BYTES < PART_BYTES_MAX);

/// The outputs of the processes of one service, by their places in its specification.
#[derive(Debug, Default)]
pub struct Outputs(Mutex<BTreeMap<usize, Arc<Output>>>);

impl Outputs {
    /// Returns the output of a process, whose writer is started if there is none. `None` if
    /// processes write their logs themselves.
    ///
    /// # Errors
    /// When the writer cannot be started.
    pub fn of(
        &self,
        index: usize,
        process: &str,
        dirs: &ServiceDirs,
    ) -> Result<Option<Arc<Output>>, ProcessError> {
        if dirs.log_writer.is_empty() {
            return Ok(None);
        }
        let mut outputs = lock(&self.0);
        if let Some(output) = outputs.get(&index) {
            return Ok(Some(output.clone()));
        }
        let output = Arc::new(Output::open(dirs, process)?);
        outputs.insert(index, output.clone());
        Ok(Some(output))
    }

    /// Goes on with the writer of a log that an earlier agent started.
    pub fn adopt(&self, index: usize, process: &str, dirs: &ServiceDirs, writer: &Identified) {
        if let Some(output) = Output::adopt(dirs, process, writer) {
            lock(&self.0).insert(index, Arc::new(output));
        }
    }

    /// Returns the processes that write the logs now.
    #[must_use]
    pub fn writers(&self) -> BTreeMap<usize, Identified> {
        lock(&self.0).iter().map(|(index, output)| (*index, output.writer())).collect()
    }
}

/// Where the output of one process goes.
#[derive(Debug)]
pub struct Output {
    end: OwnedFd,
    writer: Arc<Mutex<Identified>>,
    closed: Arc<AtomicBool>,
}

impl Drop for Output {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

impl Output {
    /// Starts a writer for the log of `process`.
    ///
    /// # Errors
    /// When it cannot be started.
    fn open(dirs: &ServiceDirs, process: &str) -> Result<Self, ProcessError> {
        let start = Start::of(dirs, process);
        let failed = |source| ProcessError::Log { path: start.log.clone(), source };
        let (read, write) = io::pipe().map_err(failed)?;
        let read = OwnedFd::from(read);
        let child = start.run(&read).map_err(failed)?;
        let writer = Arc::new(Mutex::new(Identified::of(&child)));
        let output = Self { end: write.into(), writer, closed: Arc::default() };
        output.keep(start, read, Some(child));
        Ok(output)
    }

    /// The output of a process that an earlier agent started, if its writer still runs.
    fn adopt(dirs: &ServiceDirs, process: &str, writer: &Identified) -> Option<Self> {
        let pipe = format!("/proc/{}/fd/0", writer.pid);
        let read = OpenOptions::new().read(true).open(&pipe).ok()?;
        let end = OpenOptions::new().write(true).open(&pipe).ok()?;
        // The id may have been another one's, if the writer ended just now.
        if !writer.is_alive() {
            return None;
        }
        let start = Start::of(dirs, process);
        let writer = Arc::new(Mutex::new(writer.clone()));
        let output = Self { end: end.into(), writer, closed: Arc::default() };
        output.keep(start, read.into(), None);
        Some(output)
    }

    /// A further way in, for a process that starts.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn end(&self) -> io::Result<File> {
        self.end.try_clone().map(File::from)
    }

    /// Notes in the log that a process starts, so that its words are told from those of earlier
    /// ones. Does not wait: the note is left out while the pipe is full.
    pub fn note_start(&self, process: &str, role: &str) {
        let pipe = format!("/proc/self/fd/{}", self.end.as_raw_fd());
        let open = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe);
        let note = format!("{START_NOTE}{role} of {process}\n");
        // A short write to a pipe is whole or not at all.
        if let Err(error) = open.and_then(|mut pipe| pipe.write(note.as_bytes())) {
            tracing::debug!(process, role, %error, "the start of a process is not noted in its log");
        }
    }

    /// The process that writes the log now.
    fn writer(&self) -> Identified {
        lock(&self.writer).clone()
    }

    /// Replaces the writer whenever it ends before the output does.
    fn keep(&self, start: Start, read: OwnedFd, mut child: Option<Child>) {
        let (writer, closed) = (self.writer.clone(), self.closed.clone());
        spawn("agent-output", move || {
            loop {
                let ended = match &mut child {
                    Some(child) => child.wait().is_ok_and(|status| status.success()),
                    None => {
                        while lock(&writer).is_alive() {
                            std::thread::sleep(WATCH);
                        }
                        false
                    }
                };
                if ended || closed.load(Ordering::SeqCst) {
                    return;
                }
                tracing::warn!(log = %start.log.display(), "the writer of a service's log ended, and is started again");
                std::thread::sleep(WATCH);
                match start.run(&read) {
                    Ok(fresh) => {
                        *lock(&writer) = Identified::of(&fresh);
                        child = Some(fresh);
                    }
                    Err(error) => {
                        tracing::error!(log = %start.log.display(), %error, "the writer of a service's log cannot be started");
                    }
                }
            }
        });
    }
}

/// How a writer is started.
struct Start {
    program: Vec<String>,
    log: PathBuf,
    cgroup: PathBuf,
}

impl Start {
    fn of(dirs: &ServiceDirs, process: &str) -> Self {
        let (program, cgroup) = (dirs.log_writer.clone(), dirs.cgroup.with_file_name(CGROUP));
        Self { program, log: log_path(dirs, process), cgroup }
    }

    fn run(&self, read: &OwnedFd) -> io::Result<Child> {
        let (program, arguments) =
            self.program.split_first().ok_or_else(|| io::Error::other("no program writes logs"))?;
        fs::create_dir_all(&self.cgroup)?;
        let procs = OpenOptions::new().write(true).open(self.cgroup.join("cgroup.procs"))?;
        let mut command = Command::new(program);
        command.args(arguments).arg(&self.log).stdin(Stdio::from(read.try_clone()?));
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").env_clear();
        sys::isolate(&mut command, procs, None, Footing::default());
        command.spawn()
    }
}

/// The writer's whole life: writes what comes on standard input to `log`, until its end.
///
/// # Errors
/// When there is no thread for the disk.
pub fn write_log(log: &Path) -> io::Result<()> {
    sys::ignore_signals();
    // The writer holds a service's only way to report, and next to no memory.
    drop(fs::write("/proc/self/oom_score_adj", "-1000"));
    copy(io::stdin().lock(), log, &Limits::default())
}

/// How much is written.
#[derive(Clone, Copy, Debug)]
struct Limits {
    part_bytes_max: u64,
    rate_bytes_per_s: u64,
    burst_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { part_bytes_max: PART_BYTES_MAX, rate_bytes_per_s: RATE_BYTES_PER_S, burst_bytes: BURST_BYTES }
    }
}

/// Output between the thread that reads the pipe and the thread that writes the disk.
#[derive(Default)]
struct Waiting {
    state: Mutex<Pieces>,
    changed: Condvar,
}

#[derive(Default)]
struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Left out since the last piece.
    left_out: u64,
    ended: bool,
}

fn copy(mut input: impl Read, log: &Path, limits: &Limits) -> io::Result<()> {
    let mut parts = Parts::new(log, limits.part_bytes_max);
    let waiting = Arc::new(Waiting::default());
    let theirs = waiting.clone();
    let disk = std::thread::Builder::new().name("log-disk".into());
    let disk = disk.spawn(move || {
        loop {
            let (pieces, left_out, ended) = {
                let nothing = |state: &mut Pieces| state.pieces.is_empty() && !state.ended;
                let mut state = theirs
                    .changed
                    .wait_while(lock(&theirs.state), nothing)
                    .unwrap_or_else(PoisonError::into_inner);
                state.bytes = 0;
                (std::mem::take(&mut state.pieces), std::mem::take(&mut state.left_out), state.ended)
            };
            for piece in pieces {
                parts.write(&piece);
            }
            parts.leave_out(left_out);
            if ended {
                return;
            }
        }
    })?;
    let mut allowance = Allowance { bytes: limits.burst_bytes, at: Instant::now(), limits: *limits };
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let bytes = match input.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut state = lock(&waiting.state);
        if state.bytes + bytes > WAITING_BYTES_MAX || !allowance.take(bytes as u64) {
            state.left_out += bytes as u64;
        } else {
            state.bytes += bytes;
            state.pieces.push_back(piece[..bytes].to_vec());
        }
        waiting.changed.notify_one();
    }
    lock(&waiting.state).ended = true;
    waiting.changed.notify_one();
    drop(disk.join());
    Ok(())
}

/// How much may be written now.
struct Allowance {
    bytes: u64,
    at: Instant,
    limits: Limits,
}

impl Allowance {
    fn take(&mut self, bytes: u64) -> bool {
        let now = Instant::now();
        let earned =
            now.duration_since(self.at).as_micros() * u128::from(self.limits.rate_bytes_per_s) / 1_000_000;
        if earned > 0 {
            self.bytes = self
                .bytes
                .saturating_add(u64::try_from(earned).unwrap_or(u64::MAX))
                .min(self.limits.burst_bytes);
            self.at = now;
        }
        let enough = self.bytes >= bytes;
        if enough {
            self.bytes -= bytes;
        }
        enough
    }
}

/// The file that is being written, and the one before it. All of it is done by the thread that may
/// wait for the disk.
struct Parts {
    path: PathBuf,
    /// The file and its length, once it could be opened.
    open: Option<(File, u64)>,
    bytes_max: u64,
    left_out: u64,
}

impl Parts {
    fn new(path: &Path, bytes_max: u64) -> Self {
        Self { path: path.to_path_buf(), open: None, bytes_max, left_out: 0 }
    }

    fn open(&self) -> io::Result<(File, u64)> {
        if let Some(directory) = self.path.parent() {
            crate::private::directory(directory)?;
        }
        // A log of an agent before this bound may be of any size.
        let (path, old) = (&self.path, old_path(&self.path));
        if fs::metadata(&old).is_ok_and(|metadata| metadata.len() > self.bytes_max) {
            keep_end(&old, &old, self.bytes_max)?;
        }
        if fs::metadata(path).is_ok_and(|metadata| metadata.len() > self.bytes_max) {
            keep_end(path, &old, self.bytes_max)?;
            fs::remove_file(path)?;
        }
        self.create()
    }

    fn create(&self) -> io::Result<(File, u64)> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }

    fn write(&mut self, piece: &[u8]) {
        if self.left_out > 0 {
            let said = format!("\n[mainstay: {} bytes of output were left out here]\n", self.left_out);
            if self.put(said.as_bytes()).is_ok_and(|whole| whole) {
                self.left_out = 0;
            }
        }
        if !self.put(piece).is_ok_and(|whole| whole) {
            self.left_out += piece.len() as u64;
        }
    }

    fn leave_out(&mut self, bytes: u64) {
        self.left_out += bytes;
    }

    /// `false` if the disk does not take all of it: it may be full.
    fn put(&mut self, piece: &[u8]) -> io::Result<bool> {
        let mut opened = match self.open.take() {
            Some(opened) => opened,
            None => self.open()?,
        };
        if opened.1 + piece.len() as u64 > self.bytes_max {
            fs::rename(&self.path, old_path(&self.path))?;
            opened = self.create()?;
        }
        let (file, bytes) = self.open.insert(opened);
        let written = file.write(piece)?;
        *bytes += written as u64;
        Ok(written == piece.len())
    }
}

/// The log of a process, and the file with its earlier output.
pub fn paths(dirs: &ServiceDirs, process: &str) -> (PathBuf, PathBuf) {
    let path = log_path(dirs, process);
    let old = old_path(&path);
    (path, old)
}

fn old_path(path: &Path) -> PathBuf {
    path.with_extension("log.old")
}

/// Makes `to` the last bytes of `from`.
fn keep_end(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::open(from)?;
    file.seek(SeekFrom::End(-i64::try_from(bytes).unwrap_or(i64::MAX)))?;
    let fresh = to.with_extension("new");
    io::copy(&mut file.take(bytes), &mut File::create(&fresh)?)?;
    fs::rename(fresh, to)
}

/// Returns the last line that a process has written since it started: it is mostly why the process
/// ended.
#[must_use]
pub fn last_words(log: &Path) -> Option<String> {
    std::thread::sleep(LAST_WORDS_WAIT);
    let mut file = File::open(log).ok()?;
    let from = file.seek(SeekFrom::End(0)).ok()?.saturating_sub(4 * LAST_WORDS_MAX as u64);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut end = Vec::new();
    file.take(4 * LAST_WORDS_MAX as u64).read_to_end(&mut end).ok()?;
    let text = String::from_utf8_lossy(&end);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    // Behind words without an end of line, too.
    if line.contains(START_NOTE) {
        return None;
    }
    Some(line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LAST_WORDS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives lines without end until this number of bytes was given.
    struct Talker {
        left: usize,
        next: u64,
    }

    impl Read for Talker {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            // Slower than memory: a disk keeps up with this.
            std::thread::sleep(Duration::from_micros(200));
            let line = format!("line {}\n", self.next);
            let bytes = line.len().min(to.len()).min(self.left);
            to[..bytes].copy_from_slice(&line.as_bytes()[..bytes]);
            self.left -= bytes;
            self.next += 1;
            Ok(bytes)
        }
    }

    const LIMITS: Limits =
        Limits { part_bytes_max: 4096, rate_bytes_per_s: u64::MAX >> 40, burst_bytes: 1 << 30 };

    fn bytes_of(path: &Path) -> u64 {
        fs::metadata(path).map_or(0, |metadata| metadata.len())
    }

    /// A process that writes must not wait because a log cannot be opened: its disk is read-only,
    /// or the directory cannot be made.
    #[test]
    fn output_is_taken_while_its_log_cannot_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let in_the_way = dir.path().join("services");
        fs::write(&in_the_way, "").unwrap();
        let log = in_the_way.join("p.log");
        copy(Talker { left: 3000, next: 1 }, &log, &LIMITS).unwrap();
        let mut parts = Parts::new(&log, LIMITS.part_bytes_max);
        parts.write(b"lost");
        fs::remove_file(&in_the_way).unwrap();
        parts.write(b"kept");
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.contains("4 bytes of output were left out") && text.ends_with("kept"), "{text}");
    }

    #[test]
    fn a_log_has_two_parts_and_ends_with_the_newest_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("services/p.log");
        copy(Talker { left: 30_000, next: 1 }, &log, &LIMITS).unwrap();
        let old = old_path(&log);
        assert!(bytes_of(&log) <= 4096 && bytes_of(&old) <= 4096 && bytes_of(&old) > 2048);
        let both = fs::read_to_string(&old).unwrap() + &fs::read_to_string(&log).unwrap();
        // The last line was cut off.
        let mut numbers: Vec<u64> =
            both.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect();
        numbers.pop();
        assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "a line is missing");
        assert!(last_words(&log).unwrap().starts_with("line"));
        // The next writer goes on where this one ended.
        let before = bytes_of(&log);
        copy(&b"more\n"[..], &log, &LIMITS).unwrap();
        assert!(bytes_of(&log) == before + 5 || bytes_of(&log) == 5);
        assert!(last_words(&log).unwrap().ends_with("more"));
    }

    #[test]
    fn a_log_that_an_older_version_left_is_cut_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("p.log");
        fs::write(&log, format!("{}the end\n", "x".repeat(100_000))).unwrap();
        fs::write(old_path(&log), "y".repeat(100_000)).unwrap();
        copy(&b"new\n"[..], &log, &LIMITS).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "new\n");
        let old = fs::read_to_string(old_path(&log)).unwrap();
        assert!(old.len() == 4096 && old.ends_with("the end\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn output_above_the_rate_is_left_out_and_the_log_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("p.log");
        let limits = Limits { part_bytes_max: 1 << 20, rate_bytes_per_s: 1, burst_bytes: 5_000 };
        let mut allowance = Allowance { bytes: 5_000, at: Instant::now(), limits };
        assert!(allowance.take(4_999) && !allowance.take(2_000));
        copy(Talker { left: 50_000, next: 1 }, &log, &limits).unwrap();
        assert!(bytes_of(&log) <= 5_100, "{}", bytes_of(&log));
        let mut parts = Parts::new(&log, 1 << 20);
        parts.leave_out(7);
        parts.write(b"on\n");
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.ends_with("[mainstay: 7 bytes of output were left out here]\non\n"), "{text}");
    }

    #[test]
    fn a_process_that_said_nothing_has_no_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("p.log");
        assert_eq!(last_words(&log), None);
        fs::write(&log, "\n \n").unwrap();
        assert_eq!(last_words(&log), None);
        fs::write(&log, "one\n\u{1b}[31mtwo\n\n").unwrap();
        assert_eq!(last_words(&log).as_deref(), Some(" [31mtwo"));
        // The words of an earlier process are not its own.
        fs::write(&log, format!("one\ntwo{START_NOTE}main of p\n")).unwrap();
        assert_eq!(last_words(&log), None);
        fs::write(&log, format!("one\n{START_NOTE}main of p\nthree")).unwrap();
        assert_eq!(last_words(&log).as_deref(), Some("three"));
    }
}
