//! The disk of a replica, alone on a ring, for the tests of disks and journals.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind, NewEntry};
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::disk::{Disk, DiskDone, DiskTag, Layout, NewReplica, ReplicaFiles};
use mainstay_engine::ring::{Owner, Ring};
use mainstay_store::{Area, OpId, Output};
use mainstay_types::{Chain, Epoch, Index, Range, ResourceId, VolumeId};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that goes with the test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub fn replica(&self) -> PathBuf {
        self.0.join("replica")
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn layout() -> Layout {
    Layout {
        meta_bytes: 64 << 10,
        journal_bytes: 16 << 20,
        volumes: vec![8 << 20, 4 << 20],
        sums: false,
        preallocate: false,
    }
}

pub fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len).map(|n| ((n * 31 + n / 4096 + seed) % 251) as u8).collect::<Vec<_>>().into()
}

pub fn pool() -> BufferPool {
    BufferPool::new(16 << 20)
}

/// A disk on a ring of its own.
pub struct Bench {
    pub ring: Ring,
    pub disk: Disk,
    next: u64,
}

impl Bench {
    pub fn new(dir: &Dir) -> Self {
        Self::with(dir, pool())
    }

    pub fn with(dir: &Dir, pool: BufferPool) -> Self {
        let new = NewReplica::create(&dir.replica(), &layout(), None, &pool).expect("space for a replica");
        Self::of(new.publish().expect("a name"), pool)
    }

    pub fn of(files: ReplicaFiles, pool: BufferPool) -> Self {
        Self { ring: Ring::new().expect("a ring"), disk: Disk::new(3, files, pool), next: 0 }
    }

    pub fn op(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    pub fn submit(&mut self, output: Output) {
        assert!(self.disk.submit(&mut self.ring, output).is_none());
    }

    pub fn wait(&mut self) -> DiskDone {
        let mut completions = Vec::new();
        let mut done: Vec<_> = self.disk.ended().into_iter().collect();
        while self.disk.in_flight() > 0 {
            self.ring.turn(None, &mut completions).expect("a turn");
            for completion in completions.drain(..) {
                assert_eq!((completion.owner, Disk::id_of(&completion)), (Owner::Disk, 3));
                done.extend(self.disk.handle_completion(&mut self.ring, completion));
            }
        }
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    pub fn run(&mut self, output: impl FnOnce(OpId) -> Output) -> DiskDone {
        let op = self.op();
        self.submit(output(op));
        let done = self.wait();
        assert_eq!(done.tag, DiskTag::Store(op));
        done
    }

    pub fn read(&mut self, area: Area, offset: u64, len: u64) -> Bytes {
        self.disk.read(&mut self.ring, DiskTag::Shard(77), area, offset, len, true);
        let done = self.wait();
        assert_eq!(done.tag, DiskTag::Shard(77));
        done.result.expect("readable").expect("bytes")
    }
}

pub fn batch(first: u64, payloads: Vec<Bytes>) -> Arc<Batch> {
    let entries: Vec<_> = payloads
        .into_iter()
        .enumerate()
        .map(|(n, payload)| NewEntry {
            kind: EntryKind::Write,
            range: Range { volume: VolumeId(0), offset: n as u64 * 65536, len: payload.len() as u64 },
            payload,
            session: 0,
            request: 0,
        })
        .collect();
    Arc::new(Batch::seal(ResourceId(1), Epoch(1), Index(first), Chain(0), Index(0), entries))
}
