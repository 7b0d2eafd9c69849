//! The disk of a replica on real files: what was written comes back, nothing half-made stays,
//! faults are stated.

#[path = "support/disk.rs"]
mod support;

use mainstay_codec::LocalHeader;
use mainstay_engine::disk::{DiskError, Layout, NewReplica, ReplicaFiles};
use mainstay_engine::inspect::{InspectError, inspect};
use mainstay_store::{Area, Media, Output, Store, StoreConfig};
use mainstay_types::{Incarnation, Index, ResourceId, VolumeId};
use std::path::PathBuf;
use std::sync::Arc;
use support::{Bench, Dir, batch, layout, pattern, pool};

#[test]
fn a_journal_write_of_several_batches_is_contiguous_and_comes_back() {
    let dir = Dir::new("journal");
    let mut bench = Bench::new(&dir);
    // Odd slices of a larger piece of memory: addresses that direct I/O refuses.
    let crooked = pattern(20_000, 1);
    let batches = [
        batch(1, vec![pattern(4096, 2), crooked.slice(3..3 + 8192)]),
        batch(3, vec![pattern(65536, 3), pattern(4096, 4)]),
    ];
    let local = LocalHeader { generation: 5, durable_before: Index(0), ..LocalHeader::default() };
    let parts: Vec<_> = batches.iter().map(|batch| (local, Arc::clone(batch))).collect();
    let mut expected = Vec::new();
    for (local, batch) in &parts {
        expected.extend_from_slice(&batch.header_block(*local));
        expected.extend(batch.payload.concat());
    }
    let done = bench.run(|op| Output::JournalWrite { op, offset: 8192, parts: parts.into() });
    assert_eq!(done.result, Ok(None));
    let len = expected.len() as u64;
    let read = bench.run(|op| Output::JournalRead { op, offset: 8192, len }).result.expect("readable");
    assert!(read.expect("bytes") == expected);
    assert!(
        bench.read(Area::Journal, 0, 8192).iter().all(|byte| *byte == 0),
        "what was never written is zero"
    );
    // The same through the files, after the disk is closed.
    drop(bench);
    let files = ReplicaFiles::open(&dir.replica()).expect("a replica");
    files.check(&layout()).expect("sizes as made");
    assert!(files.media(&pool()).read(Area::Journal, 8192, expected.len()).expect("readable") == expected);
}

#[test]
fn more_pieces_than_the_kernel_takes_at_once_are_all_written() {
    let dir = Dir::new("pieces");
    let mut bench = Bench::new(&dir);
    let whole = pattern(1500 * 4096, 9);
    let data: Vec<_> = (0..1500).map(|n| whole.slice(n * 4096..(n + 1) * 4096)).collect();
    let done = bench.run(|op| Output::VolumeWrite {
        op,
        volume: VolumeId(0),
        offset: 4096,
        data: data.into(),
        durable: false,
    });
    assert_eq!(done.result, Ok(None));
    assert!(bench.read(Area::Volume(VolumeId(0)), 4096, 1500 * 4096) == whole);
}

#[test]
fn pieces_with_block_borders_inside_are_written_too() {
    let dir = Dir::new("borders");
    let mut bench = Bench::new(&dir);
    let whole = pattern(8192, 9);
    let data = vec![whole.slice(..5000), whole.slice(5000..)];
    let done = bench.run(|op| Output::VolumeWrite {
        op,
        volume: VolumeId(1),
        offset: 0,
        data: data.into(),
        durable: false,
    });
    assert_eq!(done.result, Ok(None));
    assert!(bench.read(Area::Volume(VolumeId(1)), 0, 8192) == whole);
}

/// Bytes that the file of a volume takes of its file system.
fn allocated(dir: &Dir, volume: VolumeId) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(dir.replica().join(format!("vol{}", volume.0))).expect("a file").blocks() * 512
}

/// Writes 3 MiB, zeroes two and a block of it, and looks at what is there afterwards.
fn zeroed(bench: &mut Bench, free: bool) {
    let volume = VolumeId(0);
    let written = pattern(3 << 20, 5);
    let data = vec![written.clone()];
    bench
        .run(|op| Output::VolumeWrite { op, volume, offset: 0, data: data.into(), durable: false })
        .result
        .expect("written");
    let len = (2 << 20) + 4096;
    let done = bench.run(|op| Output::VolumeZero { op, volume, offset: 4096, len, free });
    assert_eq!(done.result, Ok(None));
    bench.run(|op| Output::VolumeFlush { op, volume }).result.expect("flushed");
    let mut expected = written.to_vec();
    expected[4096..(2 << 20) + 8192].fill(0);
    assert!(bench.read(Area::Volume(volume), 0, 3 << 20) == expected);
}

/// A file system may take some blocks for itself.
const OWN: u64 = 64 << 10;

#[test]
fn discarded_ranges_give_their_space_back() {
    let dir = Dir::new("free");
    let mut bench = Bench::new(&dir);
    let volume = VolumeId(0);
    assert!(allocated(&dir, volume) <= OWN, "nothing is written");
    assert!(bench.disk.is_hole(volume, 0, 8 << 20));
    zeroed(&mut bench, true);
    let left = (1 << 20) - 4096;
    assert!((left..=left + OWN).contains(&allocated(&dir, volume)), "{}", allocated(&dir, volume));
    assert_eq!(bench.disk.allocated(2), [allocated(&dir, volume), allocated(&dir, VolumeId(1))]);
    assert!(bench.disk.is_hole(volume, 4096, 2 << 20) && bench.disk.is_hole(volume, 3 << 20, 5 << 20));
    assert!(!bench.disk.is_hole(volume, 0, 8192) && !bench.disk.is_hole(volume, 2 << 20, 2 << 20));
}

#[test]
fn zeroes_that_are_written_keep_their_space() {
    let dir = Dir::new("keep");
    let mut bench = Bench::new(&dir);
    zeroed(&mut bench, false);
    assert!(allocated(&dir, VolumeId(0)) >= 3 << 20, "{}", allocated(&dir, VolumeId(0)));
    // And have some where nothing was.
    let volume = VolumeId(1);
    bench
        .run(|op| Output::VolumeZero { op, volume, offset: 0, len: 1 << 20, free: false })
        .result
        .expect("zeroed");
    assert!(allocated(&dir, volume) >= 1 << 20);
}

#[test]
fn a_preallocated_volume_keeps_its_space_after_discards() {
    let dir = Dir::new("preallocated");
    let layout = Layout { preallocate: true, ..layout() };
    let new = NewReplica::create(&dir.replica(), &layout, None, &pool()).expect("space for a replica");
    let mut bench = Bench::of(new.publish().expect("a name"), pool());
    bench.disk = bench.disk.preallocated();
    assert!(allocated(&dir, VolumeId(0)) >= 8 << 20 && allocated(&dir, VolumeId(1)) >= 4 << 20);
    assert!(
        bench.disk.is_hole(VolumeId(0), 0, 8 << 20),
        "it has space, and reads as zeroes without being read"
    );
    zeroed(&mut bench, true);
    assert!(allocated(&dir, VolumeId(0)) >= 8 << 20);
}

#[test]
fn zeroing_finds_a_way_on_a_file_system_that_knows_less() {
    // A tmpfs has no ZERO_RANGE; elsewhere this is the test above once more.
    let shm = PathBuf::from(format!("/dev/shm/mainstay-disk-{}", std::process::id()));
    if std::fs::create_dir_all(&shm).is_err() {
        return;
    }
    let dir = Dir(shm);
    let mut bench = Bench::new(&dir);
    let (volume, written) = (VolumeId(1), pattern(64 << 10, 5));
    for round in 0..2 {
        let data = vec![written.clone()];
        bench
            .run(|op| Output::VolumeWrite { op, volume, offset: 0, data: data.into(), durable: false })
            .result
            .expect("written");
        let done =
            bench.run(|op| Output::VolumeZero { op, volume, offset: 8192, len: 16384, free: round == 0 });
        assert_eq!(done.result, Ok(None), "round {round}");
        let mut expected = written.to_vec();
        expected[8192..8192 + 16384].fill(0);
        assert!(bench.read(Area::Volume(volume), 0, 64 << 10) == expected);
    }
}

#[test]
fn meta_is_written_durably() {
    let dir = Dir::new("meta");
    let mut bench = Bench::new(&dir);
    let data = pattern(8192, 7);
    let copy = data.clone();
    bench.run(|op| Output::MetaWrite { op, offset: 4096, data: copy }).result.expect("written");
    assert!(bench.read(Area::Meta, 4096, 8192) == data);
    let other = bench.disk.submit(&mut bench.ring, Output::CopyFinished);
    assert!(matches!(other, Some(Output::CopyFinished)), "not for the disk");
}

#[test]
fn reading_beyond_the_end_fails_and_says_where() {
    let dir = Dir::new("beyond");
    let mut bench = Bench::new(&dir);
    let done = bench.run(|op| Output::JournalRead { op, offset: (16 << 20) - 4096, len: 8192 });
    let failure = done.result.expect_err("beyond the end");
    assert!(failure.detail.contains("reading the journal"), "{failure}");
}

#[test]
fn media_reads_any_range_and_writes_blocks() {
    let dir = Dir::new("media");
    let new = NewReplica::create(&dir.replica(), &layout(), None, &pool()).expect("space for a replica");
    let pool = pool();
    let mut media = new.media(&pool);
    let data = pattern(10 << 20, 3);
    media.write_durable(Area::Journal, 4096, &data).expect("writable");
    assert!(media.read(Area::Journal, 4096, 10 << 20).expect("readable") == data);
    assert!(media.read(Area::Journal, 4096 + 777, 5000).expect("readable") == data[777..5777]);
    assert!(media.write_durable(Area::Meta, 0, &data[..100]).is_err());
    assert!(media.read(Area::Meta, 64 << 10, 1).is_err());
    assert!(media.read(Area::Volume(VolumeId(2)), 0, 1).is_err());
}

#[test]
fn a_replica_appears_whole_or_not_at_all() {
    let dir = Dir::new("whole");
    let huge = Layout { volumes: vec![4096, 1 << 60], ..layout() };
    let error = NewReplica::create(&dir.replica(), &huge, None, &pool()).expect_err("there is no such disk");
    assert!(matches!(error, DiskError::PoolTooSmall { need, .. } if need > 1 << 60), "{error}");
    let huge = Layout { preallocate: true, ..huge };
    let error = NewReplica::create(&dir.replica(), &huge, None, &pool()).expect_err("there is no such disk");
    assert!(matches!(error, DiskError::NoSpace { need, .. } if need > 1 << 60), "{error}");
    assert_eq!(dir.names(), Vec::<String>::new());

    let new = NewReplica::create(&dir.replica(), &layout(), None, &pool()).expect("space for a replica");
    assert_eq!(dir.names(), ["replica.creating"]);
    assert!(matches!(ReplicaFiles::open(&dir.replica()), Err(DiskError::Missing { .. })));
    drop(new);
    assert_eq!(dir.names(), Vec::<String>::new());

    // Leftovers of a crash do not stand in the way.
    std::fs::create_dir_all(dir.0.join("replica.creating")).expect("a directory");
    std::fs::write(dir.0.join("replica.creating/meta"), b"half").expect("a file");
    let new = NewReplica::create(&dir.replica(), &layout(), None, &pool()).expect("space for a replica");
    let files = new.publish().expect("a name");
    assert_eq!((dir.names(), files.path()), (vec!["replica".to_owned()], &*dir.replica()));
    assert!(matches!(
        NewReplica::create(&dir.replica(), &layout(), None, &pool()),
        Err(DiskError::Exists { .. })
    ));

    assert!(matches!(ReplicaFiles::open(&dir.replica()), Err(DiskError::InUse { .. })));
    drop(files);
    let files = ReplicaFiles::open(&dir.replica()).expect("free again");
    let other = Layout { journal_bytes: 32 << 20, ..layout() };
    assert!(matches!(files.check(&other), Err(DiskError::Size { found, .. }) if found == 16 << 20));
    drop(files);
    ReplicaFiles::remove(&dir.replica()).expect("removable");
    assert_eq!(dir.names(), Vec::<String>::new());
    ReplicaFiles::remove(&dir.replica()).expect("removing twice is no fault");
}

/// A store of one volume of 8 MiB, as `format` leaves it.
#[test]
fn a_replica_that_no_engine_has_open_can_be_inspected() {
    let dir = Dir::new("inspect");
    assert!(matches!(inspect(&dir.replica(), None), Err(InspectError::Open { .. })));
    let config = StoreConfig {
        resource: ResourceId(7),
        incarnation: Incarnation(0xabc),
        volumes: vec![8 << 20],
        journal_bytes: 16 << 20,
        sums: true,
    };
    let layout = Layout::new(&config, Store::meta_bytes(&config));
    let new = NewReplica::create(&dir.replica(), &layout, None, &pool()).expect("space for a replica");
    Store::format(&mut new.media(&pool()), &config).expect("writable");
    let files = new.publish().expect("a name");
    assert!(matches!(inspect(&dir.replica(), None), Err(InspectError::InUse { .. })));
    drop(files);

    let view = inspect(&dir.replica(), None).expect("a replica");
    assert_eq!(
        (view.resource, view.incarnation.as_str(), view.volumes),
        (7, "0000000000000abc", vec![8 << 20])
    );
    assert_eq!((view.end.index, view.batches.len(), view.extents.map(|all| all.len())), (0, 0, Some(0)));
    assert_eq!(view.faults, Vec::<String>::new());
    // It has left no lock and changed nothing: the engine still opens it.
    drop(ReplicaFiles::open(&dir.replica()).expect("free"));

    // A copy without the volumes, with a damaged copy of the superblock.
    let mut meta = std::fs::read(dir.replica().join("meta")).expect("readable");
    meta[8] ^= 1;
    std::fs::write(dir.0.join("meta"), meta).expect("writable");
    std::fs::copy(dir.replica().join("journal"), dir.0.join("journal")).expect("copied");
    let view = inspect(&dir.0, None).expect("three copies are whole");
    assert_eq!(view.faults, ["1 of 4 copies of the superblock are damaged"]);
    std::fs::write(dir.0.join("meta"), b"no superblock").expect("writable");
    assert!(matches!(inspect(&dir.0, None), Err(InspectError::Unreadable { .. })));
}

#[test]
fn memory_returns_to_the_pool() {
    let dir = Dir::new("pool");
    let pool = pool();
    let mut bench = Bench::with(&dir, pool.clone());
    for round in 0..50 {
        let parts = vec![(LocalHeader::default(), batch(1, vec![pattern(65536, round)]))];
        bench.run(|op| Output::JournalWrite { op, offset: 0, parts: parts.into() }).result.expect("written");
        bench.run(|op| Output::JournalRead { op, offset: 0, len: 65536 }).result.expect("readable");
    }
    pool.end_passing();
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn a_volume_and_its_metadata_grow_and_stay_grown() {
    let dir = Dir::new("grow");
    let mut bench = Bench::new(&dir);
    let volume = VolumeId(1);
    let written = pattern(64 << 10, 5);
    let data = vec![written.clone()];
    let last = (4 << 20) - (64 << 10);
    bench
        .run(|op| Output::VolumeWrite { op, volume, offset: last, data: data.into(), durable: false })
        .result
        .expect("written");
    let grow = |op| Output::VolumeGrow { op, volume, bytes: 12 << 20, meta_bytes: 128 << 10 };
    assert_eq!(bench.run(grow).result, Ok(None));
    assert!(bench.read(Area::Volume(volume), last, 64 << 10) == written, "what was there stays");
    assert!(bench.read(Area::Volume(volume), 4 << 20, 1 << 20).iter().all(|byte| *byte == 0));
    let data = vec![written.clone()];
    let beyond = (12 << 20) - (64 << 10);
    bench
        .run(|op| Output::VolumeWrite { op, volume, offset: beyond, data: data.into(), durable: false })
        .result
        .expect("written");
    let meta = pattern(4096, 6);
    let copy = meta.clone();
    bench.run(|op| Output::MetaWrite { op, offset: 124 << 10, data: copy }).result.expect("written");
    // Again, as after a crash before it was recorded; and less, which changes nothing.
    assert_eq!(bench.run(grow).result, Ok(None));
    let less = |op| Output::VolumeGrow { op, volume, bytes: 4096, meta_bytes: 4096 };
    assert_eq!(bench.run(less).result, Ok(None));
    drop(bench);
    let files = ReplicaFiles::open(&dir.replica()).expect("a replica");
    files.check(&layout()).expect("larger than was recorded is no fault");
    let now = Layout { meta_bytes: 128 << 10, volumes: vec![8 << 20, 12 << 20], ..layout() };
    files.check(&now).expect("as large as was asked for");
    let mut media = files.media(&pool());
    assert!(media.read(Area::Volume(volume), beyond, 64 << 10).expect("readable") == written);
    assert!(media.read(Area::Meta, 124 << 10, 4096).expect("readable") == meta);
    let missing = Layout { volumes: vec![8 << 20, 16 << 20], ..layout() };
    assert!(matches!(files.check(&missing), Err(DiskError::Size { found, .. }) if found == 12 << 20));
}
