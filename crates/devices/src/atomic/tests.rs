//! The checker on real file systems, on loop devices of this machine. Such a device is none of
//! Mainstay's, so each test that is about the file system takes it for one.

use super::verdict::{Finding, Owner, Trouble};
use super::*;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

const PAGE: u64 = 16384;
const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new("timeout").arg("60").arg(program).args(words).output().expect("started");
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn may_run() -> bool {
    let is_root = fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("\nUid:\t0\t"));
    if !is_root || !Path::new("/dev/loop-control").exists() {
        eprintln!("skipped: needs root and /dev/loop-control");
        return false;
    }
    true
}

/// A file system on a loop device over a sparse file; gone when dropped.
struct Mounted {
    _directory: tempfile::TempDir,
    device: String,
    path: PathBuf,
}

impl Mounted {
    fn new(bytes: u64, mkfs: &[&str]) -> Self {
        Self::with(bytes, mkfs, &[], "")
    }

    fn with(bytes: u64, mkfs: &[&str], losetup: &[&str], options: &str) -> Self {
        Self::within(&std::env::temp_dir(), bytes, mkfs, losetup, options)
    }

    fn within(above: &Path, bytes: u64, mkfs: &[&str], losetup: &[&str], options: &str) -> Self {
        let directory = tempfile::tempdir_in(above).expect("a directory");
        let image = directory.path().join("image");
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("a file");
        let words = [losetup, &["--find", "--show", image.to_str().expect("text")]].concat();
        let device = run("losetup", &words);
        let path = directory.path().join("mounted");
        fs::create_dir(&path).expect("a directory");
        let mounted = Self { _directory: directory, device, path };
        run(mkfs[0], &[&mkfs[1..], &[&mounted.device]].concat());
        let path = mounted.path.to_str().expect("text");
        let options = if options.is_empty() { "noatime" } else { options };
        run("mount", &["-o", options, &mounted.device, path]);
        mounted
    }

    fn file(&self, name: &str) -> File {
        File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(self.path.join(name))
            .expect("made")
    }

    fn reserved(&self, name: &str, bytes: u64) -> File {
        let file = self.file(name);
        fallocate(&file, FallocateFlags::empty(), 0, bytes).expect("reserved");
        file
    }

    fn question(&self) -> Question {
        Question {
            path: self.path.clone(),
            page: PAGE,
            writes: Writes::Direct,
            files: Vec::new(),
            run_dir: "/nonexistent".into(),
        }
    }

    /// The reasons for no.
    fn codes(&self) -> Vec<&'static str> {
        codes(&check(&self.question()).expect("it can be looked at"))
    }

    /// The answer if the device were one of Mainstay.
    fn as_ours(&self, change: impl FnOnce(&mut Question)) -> Answer {
        let mut question = self.question();
        change(&mut question);
        let mut facts = facts(&question, &|| true).expect("it can be looked at");
        // A child of another test has all open files between its fork and its program.
        for _ in 0..20 {
            if !facts.files.troubles.contains_key(&Trouble::OpenBuffered) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            facts = super::facts(&question, &|| true).expect("it can be looked at");
        }
        facts.device.owner = Owner::Ublk;
        facts.device.limits.request = Some(1 << 20);
        facts.device.limits.segments = Some(65535);
        judge(&facts)
    }

    fn codes_as_ours(&self) -> Vec<&'static str> {
        codes(&self.as_ours(|_| {}))
    }

    /// Leaves free space in holes of `hole` bytes only: as a file system that has grown old.
    fn age(&self, hole: u64) {
        let filler = self.file("filler");
        let mut bytes = 0;
        for step in [16 * MIB, MIB, 64 * KIB, 16 * KIB] {
            while fallocate(&filler, FallocateFlags::empty(), bytes, step).is_ok() {
                bytes += step;
            }
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for at in (0..bytes - hole).step_by(usize::try_from(4 * hole).expect("a size")).take(4000) {
            fallocate(&filler, punch, at, hole).expect("a hole");
        }
        // XFS gives freed space back when its log is written.
        run("sync", &["-f", self.path.to_str().expect("text")]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let quiet = |program: &str, words: &[&str]| {
            let _ = Command::new(program).args(words).stderr(Stdio::null()).status();
        };
        quiet("umount", &["--lazy", &self.path.to_string_lossy()]);
        quiet("losetup", &["--detach", &self.device]);
    }
}

fn codes(answer: &Answer) -> Vec<&'static str> {
    answer.findings.iter().map(|finding: &Finding| finding.code).collect()
}

fn clusters(bytes: u64) -> Mounted {
    Mounted::new(bytes, &["mkfs.ext4", "-q", "-O", "bigalloc", "-C", "16384"])
}

#[test]
fn ext4_with_clusters_of_a_page_keeps_pages_whole_also_when_it_has_grown_old() {
    if !may_run() {
        return;
    }
    let mounted = clusters(128 * MIB);
    assert!(mounted.as_ours(|_| {}).atomic, "before the database has made a file");
    mounted.reserved("t.ibd", 8 * MIB).write_all_at(&vec![1; 16384], 32768).expect("written");
    let answer = mounted.as_ours(|_| {});
    assert_eq!((codes(&answer), answer.files, answer.pages), (vec![], 1, 512));
    assert!(answer.file_system.contains("clusters of 16384"), "{answer:?}");
    let found = check(&mounted.question()).expect("it can be looked at");
    assert!(!found.atomic && codes(&found)[0] == "device-foreign", "{found:?}");
    assert!(found.findings[0].found.contains("loop device on a file of the"), "{found:?}");

    mounted.age(16 * KIB);
    mounted.reserved("u.ibd", 8 * MIB);
    let answer = mounted.as_ours(|_| {});
    assert_eq!((codes(&answer), answer.files, answer.pages), (vec![], 2, 1024));
    let large = mounted.as_ours(|question| question.page = 65536);
    assert_eq!(codes(&large), ["file-system-blocks", "file-cut", "file-mixed"], "its clusters are smaller");
    let buffered = mounted.as_ours(|question| question.writes = Writes::Buffered);
    assert_eq!(codes(&buffered), ["buffered-writes"]);
}

#[test]
fn xfs_is_refused_fresh_and_shows_cut_pages_when_it_has_grown_old() {
    if !may_run() {
        return;
    }
    let mounted = Mounted::new(320 * MIB, &["mkfs.xfs", "-q"]);
    mounted.reserved("t.ibd", 8 * MIB);
    let fresh = mounted.codes_as_ours();
    assert!(fresh.contains(&"file-system-blocks"), "{fresh:?}");
    mounted.age(12 * KIB);
    // More than XFS holds back for itself in one piece.
    mounted.reserved("u.ibd", 24 * MIB);
    let answer = mounted.as_ours(|_| {});
    assert_eq!(codes(&answer), ["file-system-blocks", "file-cut"]);
    let named = &answer.findings[1].examples;
    assert!(named.iter().any(|name| name.contains("u.ibd")), "{named:?}");
    assert!(mounted.codes().contains(&"device-foreign"));
}

#[test]
fn plain_ext4_is_refused() {
    if !may_run() {
        return;
    }
    let mounted = Mounted::new(64 * MIB, &["mkfs.ext4", "-q", "-b", "4096"]);
    assert_eq!(mounted.codes_as_ours(), ["file-system-blocks"]);
    mounted.age(12 * KIB);
    mounted.reserved("t.ibd", 4 * MIB);
    assert_eq!(mounted.codes_as_ours(), ["file-system-blocks", "file-cut"]);
}

/// XFS with blocks of a page needs Linux 6.12.
#[test]
fn xfs_with_blocks_of_a_page_keeps_pages_whole_for_all_kinds_of_writes() {
    let is_new = fs::read_to_string("/proc/sys/kernel/osrelease")
        .is_ok_and(|text| place::release(&text).is_some_and(|release| release >= (6, 12)));
    if !may_run() || !is_new {
        return;
    }
    let mounted = Mounted::new(512 * MIB, &["mkfs.xfs", "-q", "-b", "size=16384"]);
    mounted.age(16 * KIB);
    mounted.reserved("t.ibd", 4 * MIB);
    assert_eq!(mounted.codes_as_ours(), [""; 0]);
    let buffered = mounted.as_ours(|question| {
        (question.writes, question.page) = (Writes::Buffered, 8192);
    });
    assert_eq!(codes(&buffered), [""; 0]);
}

#[test]
fn an_offset_of_the_device_and_a_device_on_a_file_are_seen() {
    if !may_run() {
        return;
    }
    let mkfs = ["mkfs.ext4", "-q", "-O", "bigalloc", "-C", "16384"];
    let shifted = Mounted::with(64 * MIB, &mkfs, &["--offset", "4096"], "");
    assert_eq!(shifted.codes_as_ours(), ["partition-offset"]);
    let aligned = Mounted::with(64 * MIB, &mkfs, &["--offset", "65536"], "");
    assert_eq!(aligned.codes_as_ours(), [""; 0]);

    let outer = clusters(256 * MIB);
    let inner = Mounted::within(&outer.path, 64 * MIB, &mkfs, &[], "");
    let found = check(&inner.question()).expect("it can be looked at");
    assert!(found.findings[0].found.contains("on a file of the ext4 at"), "{found:?}");
}

/// Set in the process of its own mount namespace in which a test goes on.
const IN_ITS_OWN: &str = "MAINSTAY_TEST_MOUNTS";

#[test]
fn of_two_mounts_of_a_file_system_the_one_is_named_that_a_file_is_on() {
    const NAME: &str = "atomic::tests::of_two_mounts_of_a_file_system_the_one_is_named_that_a_file_is_on";
    if !may_run() {
        return;
    }
    if std::env::var_os(IN_ITS_OWN).is_none() {
        let binary = std::env::current_exe().expect("a path");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).arg(binary).args(["--exact", NAME]);
        let output = command.env(IN_ITS_OWN, "1").output().expect("unshare is installed");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let below = Mounted::new(128 * MIB, &["mkfs.ext4", "-q"]);
    let above = Mounted::within(&below.path, 32 * MIB, &["mkfs.ext4", "-q"], &[], "");
    let elsewhere = tempfile::tempdir().expect("a directory");
    // The later mount of the same file system, at a longer path.
    let other = elsewhere.path().join("a-path-that-is-longer-than-the-first-one-by-far");
    fs::create_dir(&other).expect("a directory");
    run("mount", &["--bind", below.path.to_str().expect("text"), other.to_str().expect("text")]);
    let answer = check(&above.question()).expect("it can be looked at");
    let found = &answer.findings[0].found;
    let place = below.path.canonicalize().expect("it is there");
    assert!(found.contains(&format!("a file of the ext4 at {}", place.display())), "{found}");
    run("umount", &[other.to_str().expect("text")]);
}

#[test]
fn pages_that_are_written_in_part_are_found() {
    if !may_run() {
        return;
    }
    let mounted = clusters(64 * MIB);
    let write = |bytes: &[u8], at: u64| {
        let file = mounted.file("t.ibd");
        file.write_all_at(bytes, at).expect("written");
        file.sync_all().expect("durable");
    };
    mounted.file("t.ibd").set_len(MIB).expect("a hole");
    assert_eq!(mounted.codes_as_ours(), [""; 0], "a hole is no page yet");
    write(&[1; 4096], 0);
    let answer = mounted.as_ours(|_| {});
    assert_eq!(codes(&answer), ["file-mixed"]);
    assert!(answer.findings[0].examples[0].ends_with("t.ibd (1 of 1 pages)"), "{answer:?}");
    write(&[1; 12288], 4096);
    assert_eq!(mounted.codes_as_ours(), [""; 0], "now it is whole");
}

/// ext4 stores at most 32767 blocks as one reserved extent. What is reserved behind that begins
/// within a page, and touches it. The kernel remembers and tells both as one.
#[test]
fn a_page_between_two_stored_extents_of_a_reservation_is_found() {
    if !may_run() {
        return;
    }
    let mounted = clusters(512 * MIB);
    let file = mounted.reserved("t.ibd", 32767 * 4096);
    fallocate(&file, FallocateFlags::empty(), 32767 * 4096, MIB + 4096).expect("reserved");
    drop(file);
    let answer = mounted.as_ours(|_| {});
    assert_eq!(codes(&answer), ["file-cut"], "{answer:?}");
    assert!(answer.findings[0].examples[0].ends_with("(1 of 8256 pages)"), "{answer:?}");
    fs::remove_file(mounted.path.join("t.ibd")).expect("removed");
    mounted.reserved("u.ibd", 192 * MIB);
    assert_eq!(mounted.codes_as_ours(), [""; 0], "one large reservation is stored in whole pages");
}

#[test]
fn files_in_the_journal_are_refused() {
    if !may_run() {
        return;
    }
    let mkfs = ["mkfs.ext4", "-q", "-O", "bigalloc", "-C", "16384"];
    let mounted = Mounted::with(64 * MIB, &mkfs, &[], "data=journal");
    mounted.file("t.ibd").write_all_at(&vec![1; 65536], 0).expect("written");
    run("sync", &["-f", mounted.path.to_str().expect("text")]);
    let found = mounted.codes_as_ours();
    assert_eq!(found, ["file-system-journals-data", "file-no-direct-io"]);
    let ordered = clusters(64 * MIB);
    ordered.file("t.ibd").write_all_at(&vec![1; 65536], 0).expect("written");
    let changed = Command::new("chattr").arg("+j").arg(ordered.path.join("t.ibd")).status().expect("started");
    // The attribute wants CAP_SYS_RESOURCE, which containers may be without.
    let wanted: &[&str] = if changed.success() { &["file-no-direct-io"] } else { &[] };
    assert_eq!(ordered.codes_as_ours(), wanted);
}

#[test]
fn shared_blocks_and_files_elsewhere_are_found() {
    if !may_run() {
        return;
    }
    let mounted = Mounted::new(320 * MIB, &["mkfs.xfs", "-q", "-m", "reflink=1"]);
    mounted.file("t.ibd").write_all_at(&vec![1; 65536], 0).expect("written");
    let at = |name: &str| mounted.path.join(name).to_string_lossy().into_owned();
    run("sync", &["-f", &at("t.ibd")]);
    run("cp", &["--reflink=always", &at("t.ibd"), &at("copy")]);
    assert!(mounted.codes_as_ours().contains(&"file-shared"));

    let elsewhere = clusters(64 * MIB);
    let (target, unlike) = (mounted.path.join("t.ibd"), mounted.path.join("unlike"));
    std::os::unix::fs::symlink(&target, elsewhere.path.join("t.ibd")).expect("a link");
    assert_eq!(elsewhere.codes_as_ours(), ["file-elsewhere"]);
    fs::remove_file(elsewhere.path.join("t.ibd")).expect("removed");
    fs::write(elsewhere.path.join("t.isl"), format!("{}\n", target.display())).expect("written");
    assert_eq!(elsewhere.codes_as_ours(), ["file-elsewhere"]);
    fs::remove_file(elsewhere.path.join("t.isl")).expect("removed");
    // A directory without data files, and a link that leads nowhere, do not matter.
    fs::create_dir(&unlike).expect("a directory");
    std::os::unix::fs::symlink(&unlike, elsewhere.path.join("logs")).expect("a link");
    std::os::unix::fs::symlink("/nonexistent", elsewhere.path.join("u.ibd")).expect("a link");
    assert_eq!(elsewhere.codes_as_ours(), [""; 0]);
    // A tablespace of PostgreSQL does.
    fs::create_dir(elsewhere.path.join("pg_tblspc")).expect("a directory");
    fs::write(elsewhere.path.join("PG_VERSION"), "16\n").expect("written");
    std::os::unix::fs::symlink(&unlike, elsewhere.path.join("pg_tblspc/16385")).expect("a link");
    assert_eq!(elsewhere.codes_as_ours(), ["file-elsewhere"]);
}

#[test]
fn a_process_that_writes_through_the_page_cache_is_named() {
    if !may_run() {
        return;
    }
    let mounted = clusters(64 * MIB);
    let file = mounted.reserved("t.ibd", MIB);
    assert_eq!(mounted.codes_as_ours(), ["file-open-buffered"]);
    drop(file);
    assert_eq!(mounted.codes_as_ours(), [""; 0]);
}

#[test]
fn other_file_systems_and_missing_places_are_no_yes() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let question = Question {
        path: directory.path().to_owned(),
        page: PAGE,
        writes: Writes::Direct,
        files: vec!["*".into()],
        run_dir: "/nonexistent".into(),
    };
    fs::write(directory.path().join("a"), vec![0; 65536]).expect("written");
    let answer = check(&question).expect("it can be looked at");
    assert!(!answer.atomic);
    assert!(codes(&answer).starts_with(&["device-foreign"]), "{answer:?}");
    assert!(codes(&answer).contains(&"file-system-kind"), "{answer:?}");
    let missing = Question { path: "/nonexistent/x".into(), ..question };
    assert!(matches!(check(&missing), Err(AtomicError::Look { .. })));
}
