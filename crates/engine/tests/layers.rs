//! Snapshots in a directory whose file system cannot clone files
//! (docs/adr/0020-copy-before-write.md), against arrays of bytes. Where the directory of the tests
//! can, the same is tested of clones.

#[path = "support/disk.rs"]
mod support;

use bytes::Bytes;
use mainstay_engine::disk::{
    Disk, DiskDone, DiskTag, Layout, NewReplica, ReplicaFiles, SnapshotDone, copy_out,
};
use mainstay_engine::ring::Ring;
use mainstay_pool::Part;
use mainstay_store::{Area, OpId, Output};
use mainstay_types::{BLOCK_BYTES, ResourceId, SnapshotId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use support::{Dir, pool};

const BLOCK: usize = BLOCK_BYTES as usize;
const CHUNK_BLOCKS: usize = 4;
/// Neither is whole chunks.
const SIZES: [u64; 2] = [(4 << 20) + 5 * BLOCK_BYTES, (2 << 20) - BLOCK_BYTES];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Byte with which each block of each volume is filled.
type Content = Vec<Vec<u8>>;

struct Lab {
    dir: Dir,
    ring: Ring,
    disk: Option<Disk>,
    next: u64,
    volumes: Content,
    snapshots: BTreeMap<SnapshotId, Content>,
    last: u32,
}

fn open(dir: &Path, held: &BTreeSet<SnapshotId>) -> (Disk, Vec<SnapshotId>) {
    let mut files = ReplicaFiles::open(&dir.join("replica")).expect("a replica");
    let lost = files.sweep_snapshots(held, SIZES.len()).expect("swept");
    (Disk::new(3, files, pool()), lost)
}

impl Lab {
    fn new(name: &str, sums: bool) -> Self {
        Self::at(Dir::new(&format!("layers-{name}")), sums)
    }

    fn at(dir: Dir, sums: bool) -> Self {
        let layout = Layout { volumes: SIZES.to_vec(), sums, ..support::layout() };
        let new = NewReplica::create(&dir.replica(), &layout, None, &pool()).expect("space for a replica");
        drop(new.publish().expect("a name"));
        let (disk, _) = open(&dir.0, &BTreeSet::new());
        let volumes = SIZES.iter().map(|bytes| vec![0; (bytes / BLOCK_BYTES) as usize]).collect();
        let ring = Ring::new().expect("a ring");
        Self { dir, ring, disk: Some(disk), next: 0, volumes, snapshots: BTreeMap::new(), last: 0 }
    }

    fn op(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    fn submit(&mut self, output: Output) {
        assert!(self.disk.as_mut().expect("open").submit(&mut self.ring, output).is_none());
    }

    fn wait(&mut self) -> Vec<DiskDone> {
        let done = self.wait_for_any();
        assert!(done.iter().all(|one| one.result.is_ok()), "{done:?}");
        done
    }

    fn wait_for_any(&mut self) -> Vec<DiskDone> {
        let disk = self.disk.as_mut().expect("open");
        let mut completions = Vec::new();
        let mut done = Vec::new();
        while disk.in_flight() > 0 {
            done.extend(std::iter::from_fn(|| disk.ended()));
            if disk.in_flight() == 0 {
                break;
            }
            self.ring.turn(None, &mut completions).expect("a turn");
            for completion in completions.drain(..) {
                done.extend(disk.handle_completion(&mut self.ring, completion));
            }
        }
        done
    }

    fn write(&mut self, volume: usize, first: usize, blocks: usize, fill: u8) {
        let (op, number, offset) = (self.op(), VolumeId(volume as u16), first as u64 * BLOCK_BYTES);
        let data: Bytes = vec![fill; blocks * BLOCK].into();
        self.submit(Output::VolumeWrite {
            op,
            volume: number,
            offset,
            data: [data].into_iter().collect(),
            durable: false,
        });
        self.volumes[volume][first..first + blocks].fill(fill);
    }

    fn zero(&mut self, volume: usize, first: usize, blocks: usize, free: bool) {
        let (op, number, offset) = (self.op(), VolumeId(volume as u16), first as u64 * BLOCK_BYTES);
        let len = blocks as u64 * BLOCK_BYTES;
        self.submit(Output::VolumeZero { op, volume: number, offset, len, free });
        self.volumes[volume][first..first + blocks].fill(0);
    }

    fn sizes(&self) -> Vec<u64> {
        self.volumes.iter().map(|volume| volume.len() as u64 * BLOCK_BYTES).collect()
    }

    fn grow(&mut self, volume: usize, blocks: usize) {
        let blocks = self.volumes[volume].len() + blocks;
        let (op, bytes) = (self.op(), blocks as u64 * BLOCK_BYTES);
        self.submit(Output::VolumeGrow { op, volume: VolumeId(volume as u16), bytes, meta_bytes: 0 });
        self.wait();
        self.volumes[volume].resize(blocks, 0);
    }

    /// Runs one job on a thread and waits for its end.
    fn job(&mut self, output: Output) -> SnapshotDone {
        self.jobs(vec![output]).remove(0)
    }

    /// Runs several jobs at once, each on a thread, and waits for their ends.
    fn jobs(&mut self, outputs: Vec<Output>) -> Vec<SnapshotDone> {
        let disk = self.disk.as_mut().expect("open");
        let (tell, told) = mpsc::channel();
        let job = |output| disk.snapshot_job(ResourceId(1), SIZES.len(), output).expect("it is for a thread");
        let jobs: Vec<_> = outputs.into_iter().map(job).collect();
        for job in jobs {
            let tell = tell.clone();
            job.start(move |done| tell.send(done).expect("a caller waits"));
        }
        drop(tell);
        let mut all: Vec<SnapshotDone> = told.iter().collect();
        all.iter_mut().for_each(|done| disk.snapshot_done(done));
        all
    }

    fn take(&mut self) -> SnapshotId {
        self.last += 1;
        let (op, snapshot, volumes) = (self.op(), SnapshotId(self.last), self.sizes());
        self.job(Output::SnapshotTake { op, snapshot, volumes }).result.expect("taken");
        self.snapshots.insert(snapshot, self.volumes.clone());
        snapshot
    }

    fn remove(&mut self, snapshot: SnapshotId) {
        let op = self.op();
        self.snapshots.remove(&snapshot);
        self.job(Output::SnapshotDrop { op, snapshot }).result.expect("removed");
    }

    /// Files of the replica that this process has open and that were removed.
    fn open_without_a_name(&self) -> Vec<String> {
        let open = fs::read_dir("/proc/self/fd").expect("there is proc").flatten();
        let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        let here = self.file("").to_string_lossy().into_owned();
        let targets = targets.map(|target| target.to_string_lossy().into_owned());
        targets.filter(|target| target.starts_with(&here) && target.ends_with(" (deleted)")).collect()
    }

    fn restore(&mut self, from: SnapshotId) {
        self.last += 1;
        let (op, snapshot, volumes) = (self.op(), SnapshotId(self.last), self.sizes());
        self.job(Output::SnapshotRestore { op, snapshot, from, volumes }).result.expect("rolled back");
        self.restored(snapshot, from);
    }

    fn restored(&mut self, snapshot: SnapshotId, from: SnapshotId) {
        for (volume, held) in self.volumes.iter_mut().zip(&self.snapshots[&from]) {
            volume.fill(0);
            volume[..held.len()].copy_from_slice(held);
        }
        self.snapshots.insert(snapshot, self.volumes.clone());
    }

    fn held(&self) -> BTreeSet<SnapshotId> {
        self.snapshots.keys().copied().collect()
    }

    fn reopen(&mut self) -> Vec<SnapshotId> {
        let held = self.held();
        // The lock goes with the files.
        drop(self.disk.take());
        let (disk, lost) = open(&self.dir.0, &held);
        self.disk = Some(disk);
        lost
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.replica().join(name)
    }

    /// Files of layers and clones.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.replica()).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
        let mut names: Vec<_> = names.filter(|name| name.contains('-')).collect();
        names.sort();
        names
    }

    fn check_volumes(&mut self) {
        for volume in 0..SIZES.len() {
            let len = self.volumes[volume].len() as u64 * BLOCK_BYTES;
            let (area, disk) = (Area::Volume(VolumeId(volume as u16)), self.disk.as_mut().expect("open"));
            disk.read(&mut self.ring, DiskTag::Shard(1), area, 0, len, false);
            let done = self.wait().remove(0);
            let found = done.result.expect("readable").expect("bytes");
            assert!(fills(&found) == self.volumes[volume], "volume {volume}");
        }
    }

    fn check(&self, snapshot: SnapshotId) {
        for (n, expected) in self.snapshots[&snapshot].iter().enumerate() {
            let found = content(&self.dir.replica(), snapshot, VolumeId(n as u16));
            let differs = found.iter().zip(expected).position(|(a, b)| a != b);
            assert!(found == *expected, "{snapshot}, volume {n}: {} blocks, block {differs:?}", found.len());
        }
    }

    fn check_all(&mut self) {
        self.check_volumes();
        self.snapshots.keys().for_each(|snapshot| self.check(*snapshot));
    }
}

fn fills(bytes: &[u8]) -> Vec<u8> {
    let fill = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a mixed block");
        block[0]
    };
    bytes.chunks(BLOCK).map(fill).collect()
}

/// Content of a snapshot, as a copy of it has it.
fn content(replica: &Path, snapshot: SnapshotId, volume: VolumeId) -> Vec<u8> {
    let map = replica.join(Part::map(snapshot, volume).to_string());
    if !map.exists() {
        let clone = replica.join(format!("snap{}-vol{}", snapshot.0, volume.0));
        return fills(&fs::read(clone).expect("a clone"));
    }
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let copy = COPIES.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("copy-{}-{copy}", std::process::id()));
    let file = File::create(&path).expect("a file");
    copy_out(&map, &file).expect("copied");
    let found = fills(&fs::read(&path).expect("a copy"));
    fs::remove_file(path).expect("removed");
    found
}

fn has_layers(lab: &Lab) -> bool {
    lab.files().iter().any(|name| name.contains("-map"))
}

/// Everything that a store may ask for, in any order.
fn live(seed: u64, sums: bool) {
    let mut lab = Lab::new(&format!("{seed}"), sums);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for step in 0..120 {
        let volume = random.below(2);
        let blocks = lab.volumes[volume].len();
        let fill = (1 + step % 250) as u8;
        match random.below(20) {
            0..8 => {
                // Several at once, which do not overlap, and often in one chunk.
                let mut at = random.below(blocks);
                for _ in 0..1 + random.below(6) {
                    let len = (1 + random.below(3 * CHUNK_BLOCKS)).min(blocks - at);
                    if len == 0 {
                        break;
                    }
                    lab.write(volume, at, len, fill);
                    at = (at + len + random.below(CHUNK_BLOCKS)).min(blocks);
                }
                lab.wait();
            }
            8..10 => {
                let at = random.below(blocks);
                let len = 1 + random.below(blocks - at);
                lab.zero(volume, at, len, random.below(2) == 0);
                lab.wait();
            }
            10..13 if lab.snapshots.len() < 6 => _ = lab.take(),
            13..16 if !lab.snapshots.is_empty() => {
                let pick = random.below(lab.snapshots.len());
                let snapshot = *lab.snapshots.keys().nth(pick).expect("fewer than that");
                lab.remove(snapshot);
            }
            16 if !lab.snapshots.is_empty() => {
                let pick = random.below(lab.snapshots.len());
                let snapshot = *lab.snapshots.keys().nth(pick).expect("fewer than that");
                lab.restore(snapshot);
            }
            17 if blocks < 1200 => lab.grow(volume, 1 + random.below(2 * CHUNK_BLOCKS)),
            18 => assert_eq!(lab.reopen(), []),
            _ => lab.check_all(),
        }
    }
    lab.check_all();
    for snapshot in lab.held() {
        lab.remove(snapshot);
    }
    assert_eq!(lab.files(), [""; 0], "seed {seed}");
    lab.write(0, 0, 1, 7);
    lab.wait();
    lab.check_volumes();
}

#[test]
fn snapshots_keep_their_content_whatever_is_done_afterwards() {
    // Most of the time is spent waiting for the disk.
    std::thread::scope(|scope| {
        for seed in 1..9 {
            scope.spawn(move || live(seed, seed % 2 == 0));
        }
    });
}

#[test]
fn a_snapshot_is_copied_while_the_volume_is_written() {
    let mut lab = Lab::new("copied", false);
    let blocks = lab.volumes[0].len();
    lab.write(0, 0, blocks, 9);
    lab.wait();
    let snapshot = lab.take();
    let replica = lab.dir.replica();
    let over = AtomicBool::new(false);
    let copies = std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let mut copies = 0;
            while !over.load(Ordering::Relaxed) || copies == 0 {
                assert!(content(&replica, snapshot, VolumeId(0)).iter().all(|fill| *fill == 9));
                copies += 1;
            }
            copies
        });
        let mut random = Random(77);
        for step in 0..400 {
            let at = random.below(blocks);
            lab.write(0, at, (1 + random.below(4)).min(blocks - at), 10 + (step % 200) as u8);
            lab.wait();
            if step % 60 == 30 {
                lab.take();
            }
            if step % 60 == 50 {
                let last = SnapshotId(lab.last);
                lab.remove(last);
            }
        }
        over.store(true, Ordering::Relaxed);
        copier.join().expect("each copy is right")
    });
    assert!(copies > 1, "{copies}");
    lab.check_all();
}

/// Space is freed by what the maps say, and a rollback writes to maps.
#[test]
fn a_snapshot_is_deleted_while_another_one_is_rolled_back_to() {
    let mut lab = Lab::new("deleted-meanwhile", false);
    let mut random = Random(5);
    let scatter = |lab: &mut Lab, fill: u8, random: &mut Random| {
        for volume in 0..2 {
            let part = lab.volumes[volume].len() / 40;
            for n in 0..40 {
                lab.write(volume, n * part + random.below(part), 1, fill);
            }
        }
        lab.wait();
    };
    for round in 0..5 {
        let mut taken = Vec::new();
        for step in 0..4 {
            taken.push(lab.take());
            scatter(&mut lab, 1 + (round * 4 + step) % 250, &mut random);
        }
        let (doomed, from) = if round % 2 == 0 { (taken[2], taken[0]) } else { (taken[3], taken[1]) };
        lab.last += 1;
        let (drop, restore, mark, volumes) = (lab.op(), lab.op(), SnapshotId(lab.last), lab.sizes());
        let both = vec![
            Output::SnapshotRestore { op: restore, snapshot: mark, from, volumes },
            Output::SnapshotDrop { op: drop, snapshot: doomed },
        ];
        lab.snapshots.remove(&doomed);
        assert!(lab.jobs(both).iter().all(|done| done.result.is_ok()), "round {round}");
        lab.restored(mark, from);
        lab.check_all();
        scatter(&mut lab, 251, &mut random);
        lab.check_all();
        assert_eq!(lab.reopen(), []);
        for snapshot in lab.held() {
            lab.remove(snapshot);
        }
    }
}

/// Content is put aside once, for all snapshots that need it. Its space is given back when none
/// does.
#[test]
fn space_is_taken_once_and_given_back() {
    let mut lab = Lab::new("space", false);
    let blocks = 1024;
    lab.write(0, 0, blocks, 1);
    lab.wait();
    let first = lab.take();
    if !has_layers(&lab) {
        return;
    }
    let kib = |lab: &Lab, name: &str| fs::metadata(lab.file(name)).map_or(0, |file| file.blocks() / 2);
    // Chunks of 16 KiB, and what the file system takes for itself.
    let chunks = |lab: &Lab, name: &str| kib(lab, name) / 16;
    assert_eq!(chunks(&lab, "snap1-old0"), 0, "nothing has changed");
    let put_aside = |lab: &Lab| lab.disk.as_ref().expect("open").put_aside();
    assert_eq!(put_aside(&lab), 0);
    lab.write(0, 1, 1, 2);
    lab.write(0, 3, 1, 2);
    lab.wait();
    assert_eq!(chunks(&lab, "snap1-old0"), 1);
    let second = lab.take();
    lab.write(0, 0, 2 * CHUNK_BLOCKS, 3);
    lab.wait();
    let third = lab.take();
    lab.write(0, 0, 3 * CHUNK_BLOCKS, 4);
    lab.wait();
    assert_eq!(chunks(&lab, "snap1-old0"), 1, "it has that chunk, and the newest the others");
    assert_eq!(chunks(&lab, "snap2-old0"), 2);
    assert_eq!(put_aside(&lab), (1 + 2 + 3) * (16 << 10));
    lab.check_all();
    // The first snapshot still finds the second chunk there, and has the first one itself.
    lab.remove(second);
    assert_eq!((kib(&lab, "snap2-old0"), lab.file("snap2-map0").exists()), (0, false));
    assert_eq!(chunks(&lab, "gone2-old0"), 1);
    lab.check_all();
    assert_eq!(lab.reopen(), []);
    lab.check_all();
    lab.remove(first);
    assert_eq!(lab.files(), ["snap3-map0", "snap3-map1", "snap3-old0", "snap3-old1"]);
    lab.check_all();
    lab.remove(third);
    assert_eq!(lab.files(), [""; 0]);
    assert_eq!(lab.open_without_a_name(), [""; 0], "its space is given back, too");
    lab.write(0, 0, 16, 5);
    lab.wait();
    lab.check_volumes();
}

#[test]
fn zeroes_over_nothing_put_nothing_aside() {
    let mut lab = Lab::new("zeroes", false);
    lab.write(0, 100, 1, 1);
    lab.wait();
    let snapshot = lab.take();
    let blocks = lab.volumes[0].len();
    lab.zero(0, 0, blocks, true);
    lab.wait();
    lab.check_all();
    if has_layers(&lab) {
        let taken = fs::metadata(lab.file("snap1-old0")).expect("a file").blocks() / 2;
        assert!((16..32).contains(&taken), "one chunk: {taken} KiB");
    }
    lab.write(0, 0, 1, 2);
    lab.wait();
    lab.check(snapshot);
}

/// A map that rotted: the snapshots that need it are lost, and nothing else.
#[test]
fn an_unreadable_map_costs_only_the_snapshots_that_need_it() {
    let mut lab = Lab::new("rot", true);
    lab.write(0, 0, 64, 1);
    lab.wait();
    lab.take();
    if !has_layers(&lab) {
        return;
    }
    for fill in 2..4 {
        lab.write(0, 0, 64, fill);
        lab.wait();
        lab.take();
    }
    let map = File::options().write(true).open(lab.file("snap2-map0")).expect("a map");
    map.write_all_at(&[0xff], BLOCK_BYTES + 600).expect("written");
    assert_eq!(lab.reopen(), [SnapshotId(1), SnapshotId(2)]);
    lab.snapshots.retain(|snapshot, _| *snapshot == SnapshotId(3));
    lab.write(0, 0, 64, 5);
    lab.wait();
    lab.check_all();
    fs::remove_file(lab.file("snap3-sums1")).expect("removed");
    assert_eq!(lab.reopen(), [SnapshotId(3)], "without its sums its right blocks are not known");
    lab.snapshots.clear();
    lab.write(0, 0, 64, 6);
    lab.wait();
    lab.check_all();
    assert_eq!(lab.reopen(), []);
    assert_eq!(lab.files(), [""; 0]);
}

/// The power fails when its files are there, and before a superblock names it.
#[test]
fn a_snapshot_that_no_superblock_names_is_removed_and_taken_again() {
    let mut lab = Lab::new("unnamed", true);
    lab.write(0, 0, 64, 1);
    lab.wait();
    let first = lab.take();
    let second = lab.take();
    let before = lab.snapshots.remove(&second).expect("it was taken");
    assert_eq!(lab.reopen(), []);
    assert!(lab.files().iter().all(|name| name.starts_with("snap1-")), "{:?}", lab.files());
    lab.write(0, 0, 32, 2);
    lab.wait();
    lab.last = second.0 - 1;
    lab.take();
    assert_ne!(lab.snapshots[&second], before);
    lab.write(0, 16, 32, 3);
    lab.wait();
    lab.check_all();
    lab.remove(first);
    lab.check_all();
}

/// The snapshot ends within a chunk, and the volume does not end there any more.
#[test]
fn the_grown_part_of_a_volume_is_zeroes_after_a_rollback() {
    let mut lab = Lab::new("grown", true);
    let end = lab.volumes[0].len();
    lab.write(0, end - 5, 5, 1);
    lab.wait();
    let snapshot = lab.take();
    lab.grow(0, 3 * CHUNK_BLOCKS);
    lab.write(0, end, 2 * CHUNK_BLOCKS, 2);
    lab.wait();
    let grown = lab.take();
    lab.restore(snapshot);
    lab.check_all();
    lab.restore(grown);
    lab.check_all();
}

/// A file system of its own, which ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    /// None without the permission to mount.
    fn tmpfs(path: &Path, size: &str) -> Option<Self> {
        let mut command = std::process::Command::new("mount");
        let command = command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(path);
        command.status().is_ok_and(|status| status.success()).then(|| Self(path.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// F11: what cannot be put aside is not written over, and is told to be for want of space, so that
/// the store tries again.
#[test]
fn a_full_pool_holds_the_write_up_and_costs_no_snapshot() {
    let around = Dir::new("layers-full");
    let dir = around.0.join("pool");
    fs::create_dir(&dir).expect("a directory");
    let Some(_mounted) = Mounted::tmpfs(&dir, "40m") else { return };
    let mut lab = Lab::at(Dir(dir), false);
    lab.write(0, 0, 1024, 1);
    lab.wait();
    lab.take();
    let fill = lab.dir.0.join("fill");
    let mut file = File::create(&fill).expect("a file");
    while file.write_all(&[1; BLOCK]).is_ok() {}
    let before = lab.volumes.clone();
    lab.write(0, 0, 1, 2);
    lab.write(0, 100, 1, 2);
    let done = lab.wait_for_any();
    assert_eq!(done.len(), 2);
    let full = |one: &DiskDone| one.result.as_ref().is_err_and(|failure| failure.no_space);
    assert!(done.iter().all(full), "{done:?}");
    lab.volumes = before;
    lab.check_all();
    drop(file);
    fs::remove_file(fill).expect("removed");
    lab.write(0, 0, 1, 2);
    lab.write(0, 100, 1, 2);
    lab.wait();
    lab.check_all();
    assert_eq!(lab.reopen(), []);
    lab.check_all();
}
