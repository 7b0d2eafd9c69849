//! Journals that do not lie in their replica's directory, on a disk and in memory: which replica
//! owns them, what is refused, what a failed making leaves. tmpfs stands in for persistent memory.

#[path = "support/disk.rs"]
mod support;

use mainstay_codec::{JournalLabel, LocalHeader};
use mainstay_engine::disk::{DiskError, Layout, NewJournal, NewReplica, ReplicaFiles};
use mainstay_engine::inspect::{InspectError, inspect};
use mainstay_store::{Area, Media, Output, Store, StoreConfig};
use mainstay_types::{Incarnation, Index, ResourceId};
use std::path::Path;
use std::sync::Arc;
use support::{Bench, Dir, batch, pattern, pool};

fn config(incarnation: u64) -> StoreConfig {
    StoreConfig {
        resource: ResourceId(7),
        incarnation: Incarnation(incarnation),
        volumes: vec![8 << 20],
        journal_bytes: 16 << 20,
        sums: true,
    }
}

fn journal(directory: &Path, of: &StoreConfig, volatile: bool) -> NewJournal {
    let path = directory.join(format!("r-7.{:016x}.journal", of.incarnation.0));
    let (resource, incarnation, journal_bytes) = (of.resource, of.incarnation, of.journal_bytes);
    NewJournal { path, label: JournalLabel { resource, incarnation, journal_bytes, volatile } }
}

fn create(dir: &Path, config: &StoreConfig, journal: Option<&NewJournal>) -> Result<NewReplica, DiskError> {
    let layout = Layout::new(config, Store::meta_bytes(config));
    let new = NewReplica::create(dir, &layout, journal, &pool())?;
    Store::format(&mut new.media(&pool()), config).expect("writable");
    Ok(new)
}

fn made(dir: &Path, config: &StoreConfig, journal: &NewJournal) {
    create(dir, config, Some(journal)).expect("space for a replica").publish().expect("a name");
}

/// Opens a replica's files as an engine does before recovery.
fn open(dir: &Path) -> Result<ReplicaFiles, DiskError> {
    let mut files = ReplicaFiles::open(dir)?;
    let config = Store::config_on(&mut files.media(&pool())).expect("a superblock");
    files.check(&Layout::new(&config, Store::meta_bytes(&config)))?;
    files.prepare(&config, &pool())?;
    Ok(files)
}

/// A directory on tmpfs.
fn memory(name: &str) -> Dir {
    let path = std::path::PathBuf::from(format!("/dev/shm/mainstay-journals-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a tmpfs at /dev/shm");
    Dir(path)
}

#[test]
fn a_journal_elsewhere_is_found_by_its_link() {
    let (pool_dir, fast) = (Dir::new("found"), Dir::new("found-fast"));
    let config = config(0xabc);
    let place = journal(&fast.0, &config, false);
    made(&pool_dir.replica(), &config, &place);
    assert_eq!(std::fs::read_link(pool_dir.replica().join("journal")).expect("a link"), place.path);
    let files = open(&pool_dir.replica()).expect("a replica");
    assert!(matches!(inspect(&pool_dir.replica(), None), Err(InspectError::InUse { .. })));
    assert!(matches!(ReplicaFiles::open(&pool_dir.replica()), Err(DiskError::InUse { .. })));

    let mut bench = Bench::of(files, pool());
    let parts = vec![(LocalHeader::default(), batch(1, vec![pattern(8192, 3)]))];
    bench.run(|op| Output::JournalWrite { op, offset: 4096, parts: parts.into() }).result.expect("written");
    assert!(bench.read(Area::Journal, 8192, 8192) == pattern(8192, 3));
    drop(bench);

    let view = inspect(&pool_dir.replica(), None).expect("a replica");
    assert_eq!((view.journal, view.faults), (Some(place.path.display().to_string()), vec![]));
    // A copy without links, and one without the journal.
    let copy = Dir::new("found-copy");
    for file in ["meta", "journal"] {
        std::fs::copy(pool_dir.replica().join(file), copy.0.join(file)).expect("copied");
    }
    assert_eq!(inspect(&copy.0, None).expect("a copy").faults, Vec::<String>::new());
    std::fs::remove_file(copy.0.join("journal")).expect("was copied");
    assert!(matches!(inspect(&copy.0, None), Err(InspectError::Open { .. })));
    assert_eq!(inspect(&copy.0, Some(&place.path)).expect("named").faults, Vec::<String>::new());
}

/// A journal that does not continue the log of its replica looks like an empty one, and what was
/// acknowledged would be left out.
#[test]
fn a_journal_that_is_not_the_replicas_is_refused_and_nothing_is_changed() {
    let (dir, fast) = (Dir::new("wrong"), Dir::new("wrong-fast"));
    let (ours, theirs) = (config(1), config(2));
    let (place, other) = (journal(&fast.0, &ours, false), journal(&fast.0, &theirs, false));
    made(&dir.replica(), &ours, &place);
    made(&dir.0.join("other"), &theirs, &other);
    let meta = || std::fs::read(dir.replica().join("meta")).expect("readable");
    let before = meta();

    let away = fast.0.join("away");
    std::fs::rename(&place.path, &away).expect("moved");
    let missing = open(&dir.replica()).expect_err("the link leads nowhere");
    assert!(
        matches!(&missing, DiskError::JournalMissing { journal, .. } if *journal == place.path),
        "{missing}"
    );
    assert!(!place.path.exists(), "no new journal is made");
    assert!(
        matches!(inspect(&dir.replica(), None), Err(InspectError::Open { path, .. }) if path == place.path)
    );

    let refused = |what: &str| {
        let error = open(&dir.replica()).expect_err("not the replica's journal");
        let DiskError::WrongJournal { what: found, .. } = &error else { panic!("{error}") };
        assert!(found.contains(what), "{error}");
    };
    std::fs::copy(&other.path, &place.path).expect("copied");
    refused("it is that of resource number 7, incarnation 0000000000000002");
    let faults = inspect(&dir.replica(), None).expect("a superblock").faults;
    assert!(faults.iter().any(|fault| fault.contains("incarnation 0000000000000002")), "{faults:?}");
    std::fs::write(&place.path, vec![0; (16 << 20) + 4096]).expect("writable");
    refused("bad magic");
    std::fs::write(&place.path, vec![0; 16 << 20]).expect("writable");
    refused("none of them are a label");
    std::fs::write(&place.path, b"").expect("writable");
    assert!(matches!(open(&dir.replica()), Err(DiskError::Size { .. })));
    assert!(meta() == before, "a refused command has written nothing");

    // The link may be set anew, also relative to the directory; and the journal may come back to
    // it.
    std::fs::remove_file(dir.replica().join("journal")).expect("a link");
    let up = Path::new("../..").join(fast.0.file_name().expect("a name")).join("away");
    std::os::unix::fs::symlink(up, dir.replica().join("journal")).expect("linked");
    open(&dir.replica()).expect("the right journal");
    std::fs::remove_file(dir.replica().join("journal")).expect("a link");
    std::fs::copy(&away, dir.replica().join("journal")).expect("copied");
    open(&dir.replica()).expect("the right journal");
}

/// Two directories with the same link are two replicas with one journal.
#[test]
fn a_copy_of_a_directory_does_not_share_the_journal() {
    let (dir, fast) = (Dir::new("shared"), Dir::new("shared-fast"));
    let config = StoreConfig { sums: false, ..config(5) };
    let place = journal(&fast.0, &config, false);
    made(&dir.replica(), &config, &place);
    let copy = dir.0.join("copy");
    std::fs::create_dir(&copy).expect("a directory");
    for file in ["meta", "vol0"] {
        std::fs::copy(dir.replica().join(file), copy.join(file)).expect("copied");
    }
    std::os::unix::fs::symlink(&place.path, copy.join("journal")).expect("linked");
    let files = open(&dir.replica()).expect("a replica");
    assert!(matches!(open(&copy), Err(DiskError::InUse { path }) if path == place.path));
    assert!(matches!(inspect(&copy, None), Err(InspectError::InUse { path }) if path == place.path));
    drop(files);
    open(&copy).expect("no process has it");
}

#[test]
fn no_journal_is_made_where_its_device_may_not_be() {
    let (dir, tmpfs) = (Dir::new("where"), memory("where"));
    let config = config(1);
    let refused = |directory: &Path, volatile| {
        let place = journal(directory, &config, volatile);
        let error = create(&dir.replica(), &config, Some(&place)).expect_err("no place for a journal");
        assert_eq!(dir.names(), Vec::<String>::new(), "nothing is made: {error}");
        assert!(!place.path.exists());
        error
    };
    let absent = dir.0.join("not-mounted");
    assert!(matches!(refused(&absent, true), DiskError::JournalDirectory { path } if path == absent));
    assert!(matches!(refused(Path::new("relative"), true), DiskError::JournalDirectory { .. }));
    assert!(matches!(refused(Path::new("/dev/shm"), true), DiskError::JournalMountPoint { .. }));
    assert!(matches!(refused(&tmpfs.0, false), DiskError::VolatileJournal { .. }));
    let huge = StoreConfig { journal_bytes: 1 << 45, ..config.clone() };
    let place = journal(&tmpfs.0, &huge, true);
    let error = create(&dir.replica(), &huge, Some(&place)).expect_err("more than there is");
    assert!(matches!(&error, DiskError::NoSpace { path, .. } if *path == place.path), "{error}");
    assert_eq!((dir.names(), tmpfs.names()), (vec![], vec![]));
}

#[test]
fn an_unpublished_replica_takes_its_journal_with_it() {
    let (dir, fast) = (Dir::new("unpublished"), Dir::new("unpublished-fast"));
    let config = config(1);
    let place = journal(&fast.0, &config, false);
    let new = create(&dir.replica(), &config, Some(&place)).expect("space for a replica");
    assert_eq!((dir.names(), fast.names().len()), (vec!["replica.creating".to_owned()], 1));
    drop(new);
    assert_eq!((dir.names(), fast.names()), (vec![], vec![]));
    // A journal file that exists is not overwritten.
    std::fs::write(&place.path, b"data").expect("writable");
    assert!(matches!(create(&dir.replica(), &config, Some(&place)), Err(DiskError::Exists { .. })));
    assert_eq!(std::fs::read(&place.path).expect("still there"), b"data");
}

/// The store's operations on a journal in memory: each has ended when it was started, and is heard
/// of when asked for.
#[test]
fn a_journal_in_memory_is_written_at_once() {
    let (dir, tmpfs) = (Dir::new("memory"), memory("memory"));
    let config = config(9);
    let place = journal(&tmpfs.0, &config, true);
    made(&dir.replica(), &config, &place);
    let mut bench = Bench::of(open(&dir.replica()).expect("a replica"), pool());
    let crooked = pattern(20_000, 1);
    let batches =
        [batch(1, vec![pattern(4096, 2), crooked.slice(3..3 + 8192)]), batch(3, vec![pattern(65536, 3)])];
    let local = LocalHeader { generation: 5, durable_before: Index(0), ..LocalHeader::default() };
    let parts: Vec<_> = batches.iter().map(|batch| (local, Arc::clone(batch))).collect();
    let mut expected = Vec::new();
    for (local, batch) in &parts {
        expected.extend_from_slice(&batch.header_block(*local));
        expected.extend(batch.payload.concat());
    }
    let len = expected.len() as u64;
    let op = bench.op();
    bench.submit(Output::JournalWrite { op, offset: 8192, parts: parts.into() });
    assert_eq!((bench.ring.in_flight(), bench.disk.in_flight(), bench.disk.has_ended()), (0, 1, true));
    assert_eq!(bench.wait().result, Ok(None));
    let read = bench.run(|op| Output::JournalRead { op, offset: 8192, len }).result.expect("readable");
    assert!(read.expect("bytes") == expected);
    assert!(bench.read(Area::Journal, 0, 8192).iter().all(|byte| *byte == 0));
    let failure = bench.run(|op| Output::JournalRead { op, offset: 1 << 30, len: 4096 }).result;
    assert!(failure.expect_err("beyond the end").detail.contains("reading the journal"));
    assert_eq!((bench.ring.in_flight(), bench.disk.in_flight()), (0, 0));
    drop(bench);

    // The same bytes are in the file, for the process that opens it next.
    let files = ReplicaFiles::open(&dir.replica()).expect("a replica");
    assert!(files.media(&pool()).read(Area::Journal, 8192, expected.len()).expect("readable") == expected);
}

/// R13: the end of the file is gone, as a bad page would be. The engine lives, the operation fails,
/// and so does every other.
#[test]
fn a_journal_in_memory_that_fails_is_an_error() {
    let (dir, tmpfs) = (Dir::new("fails"), memory("fails"));
    let config = config(9);
    let place = journal(&tmpfs.0, &config, true);
    made(&dir.replica(), &config, &place);
    let mut bench = Bench::of(open(&dir.replica()).expect("a replica"), pool());
    let file = std::fs::File::options().write(true).open(&place.path).expect("a journal");
    file.set_len(1 << 20).expect("shortened");
    for offset in [2 << 20, 0] {
        let parts = vec![(LocalHeader::default(), batch(1, vec![pattern(4096, 3)]))];
        let done = bench.run(|op| Output::JournalWrite { op, offset, parts: parts.into() });
        let failure = done.result.expect_err("the memory is gone");
        assert!(failure.detail.contains("a page is bad, or the file was cut short"), "{failure}");
    }
    assert!(bench.run(|op| Output::JournalRead { op, offset: 0, len: 4096 }).result.is_err());
}

/// A journal that an operator has moved to tmpfs was not made for that.
#[test]
fn a_journal_that_was_moved_to_tmpfs_is_refused() {
    let (dir, fast, tmpfs) = (Dir::new("moved"), Dir::new("moved-fast"), memory("moved"));
    let config = config(3);
    let place = journal(&fast.0, &config, false);
    made(&dir.replica(), &config, &place);
    let moved = tmpfs.0.join("journal");
    std::fs::copy(&place.path, &moved).expect("copied");
    std::fs::remove_file(dir.replica().join("journal")).expect("a link");
    std::os::unix::fs::symlink(&moved, dir.replica().join("journal")).expect("linked");
    assert!(matches!(open(&dir.replica()), Err(DiskError::VolatileJournal { path }) if path == moved));
}
