//! Crash test of the Raft store: everything that it has acknowledged is there after a crash.
//!
//! The test starts itself as a child that appends entries and votes, and says after each that it is
//! durable. The child is killed at a random moment. Then every entry that it acknowledged must be
//! in the store with its content, and the vote must not be older than the acknowledged one.

use mainstay_agent::raft::store::{ENTRIES_RETAINED, RaftStore};
use raft::eraftpb::{ConfState, Entry, HardState};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const STORE_VARIABLE: &str = "MAINSTAY_CRASH_TEST_STORE";
const FIRST: u64 = 2;

fn content(index: u64) -> Vec<u8> {
    (0..200 + index % 3000).map(|byte| (byte ^ index) as u8).collect()
}

fn entries(from: u64, count: u64, term: u64) -> Vec<Entry> {
    (from..from + count)
        .map(|index| Entry { index, term, data: content(index).into(), ..Entry::default() })
        .collect()
}

fn last_index(store: &RaftStore) -> u64 {
    raft::Storage::last_index(store).unwrap()
}

/// Part of the child process, and no test of its own: it does nothing unless the parent asks for
/// it.
#[test]
fn child() {
    let Ok(path) = std::env::var(STORE_VARIABLE) else {
        return;
    };
    let mut store = RaftStore::open(Path::new(&path)).unwrap();
    if !store.is_initialized() {
        store.bootstrap(1, b"{}".to_vec()).unwrap();
    }
    let mut term = store.hard_state().term;
    let mut out = std::io::stdout().lock();
    for round in 0_u64.. {
        term += 1;
        let hard_state = HardState { term, vote: 1, commit: last_index(&store), ..HardState::default() };
        let (from, count) = (last_index(&store) + 1, 1 + round % 7);
        store.persist(&entries(from, count, term), Some(&hard_state), None).unwrap();
        writeln!(out, "durable {} {term}", from + count - 1).unwrap();
        out.flush().unwrap();
        if round % 40 == 39 {
            let at = last_index(&store);
            store
                .save_snapshot(at, ConfState { voters: vec![1], ..ConfState::default() }, b"{}".to_vec())
                .unwrap();
        }
    }
}

fn start_child(store: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(STORE_VARIABLE, store)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills the child after `time`. Returns the last acknowledged index and term. In a power cut,
/// words after its beginning do not count: no other program would have heard them. A flush that
/// XFS's shutdown overtakes can succeed, because its data is no longer in the log when it looks. So
/// the child may go on for an entry or two.
fn crash(child: &mut Child, time: Duration, power_cut: Option<&Disk>) -> (u64, u64) {
    let out = child.stdout.take().unwrap();
    let last = Arc::new(Mutex::new((0, 0)));
    let heard = Arc::clone(&last);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { break };
            // A torn last line is no acknowledgement; every complete one has the marker at its
            // start or behind what the test harness wrote.
            let Some((_, numbers)) = line.split_once("durable ") else { continue };
            if let Some((index, term)) = numbers.split_once(' ')
                && let (Ok(index), Ok(term)) = (index.parse(), term.parse())
            {
                *heard.lock().unwrap() = (index, term);
            }
        }
    });
    std::thread::sleep(time);
    let before = *last.lock().unwrap();
    if let Some(disk) = power_cut {
        disk.cut_power();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    if power_cut.is_some() { before } else { *last.lock().unwrap() }
}

fn verify(path: &Path, (index, term): (u64, u64)) -> u64 {
    let store = RaftStore::open(path).unwrap();
    assert!(
        last_index(&store) >= index,
        "entry {index} was acknowledged, {} is the last",
        last_index(&store)
    );
    assert!(store.hard_state().term >= term, "the vote in term {term} was acknowledged");
    let log: Vec<&Entry> = store.log().collect();
    let expected_first = store.newest_snapshot().get_metadata().index.saturating_sub(ENTRIES_RETAINED) + 1;
    assert_eq!(log.first().map_or(FIRST, |entry| entry.index), expected_first.max(FIRST));
    for entry in log {
        assert_eq!(entry.data, content(entry.index), "content of entry {}", entry.index);
    }
    last_index(&store)
}

#[test]
fn acknowledged_entries_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.redb");
    let mut reached = 0;
    for round in 0..8_u64 {
        let acknowledged = crash(&mut start_child(&path), Duration::from_millis(120 + round * 37), None);
        let last = verify(&path, acknowledged);
        assert!(last >= reached);
        reached = last;
    }
    assert!(reached > 20, "the child wrote next to nothing");
}

/// A file system on a loop device whose power can be cut.
struct Disk {
    mount: PathBuf,
    image: PathBuf,
}

impl Disk {
    fn new(dir: &Path) -> Option<Self> {
        let disk = Self { mount: dir.join("mnt"), image: dir.join("image") };
        std::fs::create_dir(&disk.mount).ok()?;
        std::fs::File::create(&disk.image).ok()?.set_len(320 << 20).ok()?;
        let made = run("mkfs.xfs", &["-q", disk.image.to_str()?]);
        (made && disk.mount()).then_some(disk)
    }

    fn mount(&self) -> bool {
        run("mount", &["-o", "loop", self.image.to_str().unwrap(), self.mount.to_str().unwrap()])
    }

    /// Everything that the file system has not made durable is lost, its own log included.
    fn cut_power(&self) {
        assert!(run("xfs_io", &["-x", "-c", "shutdown", self.mount.to_str().unwrap()]));
    }

    fn unmount(&self) -> bool {
        run("umount", &[self.mount.to_str().unwrap()])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn acknowledged_entries_survive_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::new(dir.path()) else {
        eprintln!("skipped: needs the right to mount, mkfs.xfs and xfs_io");
        return;
    };
    let path = disk.mount.join("agent.redb");
    let mut reached = 0;
    for round in 0..5_u64 {
        let acknowledged =
            crash(&mut start_child(&path), Duration::from_millis(300 + round * 53), Some(&disk));
        assert!(disk.unmount() && disk.mount());
        let last = verify(&path, acknowledged);
        assert!(last >= reached);
        reached = last;
    }
    assert!(reached > 10, "the child wrote next to nothing");
}
