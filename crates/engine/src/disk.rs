//! A replica's disk: what the store wants done, as operations on the ring.
//!
//! Guarantees:
//! - An operation is reported complete only when every byte of it was moved. A durable operation is
//!   on stable storage then.
//! - A short transfer is continued. If it ended inside a block it fails with a stated reason.
//! - A failure is never retried (R13).
//! - Memory that direct I/O cannot take is copied into memory that it can.
//!
//! Durable writes are direct writes with RWF_DSYNC over blocks that were written when the replica
//! was made. So the file system has nothing of its own to make durable; on a device with FUA that
//! is one command.
//!
//! An area that is persistent memory is written by stores and read by loads, which have ended when
//! the operation is started. Their results are kept until [`Disk::ended`] is asked, so the call
//! that starts an operation never reports its end.
//! [journals.md](../../../docs/internals/journals.md) says why the assumptions of recovery hold for
//! such memory.

mod cow;
mod create;
mod error;
mod files;
mod freeing;
mod journal;
mod keeping;
mod marks;
mod memory;
mod snapshots;

pub use cow::copy_out;
pub use create::NewReplica;
pub use error::DiskError;
pub use files::{FileMedia, Layout, ReplicaFiles};
pub use journal::{NewJournal, check_owner};
pub use snapshots::{Content, SnapshotAction, SnapshotDone, SnapshotJob};

use crate::buffer::BufferPool;
use crate::ring::{Completion, Fd, Op, Owner, Ring, advance};
use bytes::Bytes;
use keeping::{Keeping, Part};
use mainstay_codec::Batch;
use mainstay_codec::batch::{HEADER_BLOCK_BYTES, LocalHeader};
use mainstay_store::{Area, IoFailure, IoResult, OpId, Output};
use mainstay_types::{BLOCK_BYTES, ResourceId, VolumeId};
use memory::Fault;
use snapshots::Clones;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Most unused lists of pieces that are kept.
const LISTS_MAX: usize = 16;
/// How much is zeroed at once where the file system cannot do it, in bytes.
const ZERO_CHUNK_BYTES: u64 = 1 << 20;

/// Owner of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskTag {
    /// The store's; goes to `Store::complete`.
    Store(OpId),
    /// The shard's own, with a number of its choice.
    Shard(u64),
}

/// The end of an operation.
#[derive(Debug)]
pub struct DiskDone {
    pub tag: DiskTag,
    /// Bytes for a read, nothing otherwise.
    pub result: IoResult,
}

/// How a range is made to read as zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Zeroing {
    /// Frees the blocks.
    Hole,
    /// Allocates the blocks, so that later writes cannot run out of space.
    Range,
    /// Writes zeroes, for file systems that do not know the others.
    Write,
}

impl Zeroing {
    const fn mode(self) -> i32 {
        match self {
            Self::Range => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            Self::Hole | Self::Write => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        }
    }

    /// Next way to zero for a file system that lacks this one.
    const fn next(self) -> Self {
        match self {
            Self::Hole => Self::Range,
            Self::Range | Self::Write => Self::Write,
        }
    }
}

enum Work {
    Read {
        len: usize,
    },
    /// `offset` moves on with what has been written.
    Write {
        offset: u64,
        durable: bool,
    },
    Zero {
        zeroing: Zeroing,
    },
    Flush,
    /// Operations that are still to be done after this one, and the sizes of two areas, in bytes,
    /// after all of them.
    Grow {
        left: VecDeque<Op>,
        sizes: [(Area, u64); 2],
    },
}

/// Part of the engine that an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Caller(DiskTag),
    /// Something of a volume is put aside, see `keeping.rs`.
    CopyBeforeWrite(VolumeId, Part),
}

struct Pending {
    whose: Whose,
    area: Area,
    work: Work,
}

/// The disk of one replica, on the shard's ring. Operations in flight outlive it: the ring keeps
/// their buffers and files. The shard ignores completions for an id that is gone.
pub struct Disk {
    id: u32,
    files: ReplicaFiles,
    pool: BufferPool,
    /// In no order: there are few, and a search through them is cheaper than a tree.
    pending: Vec<(u32, Pending)>,
    next: u32,
    /// Lists of pieces that are not in use, kept to be filled again.
    lists: Vec<VecDeque<Bytes>>,
    preallocated: bool,
    /// How this file system gives space back, and how it makes zeroes that keep theirs.
    freeing: Zeroing,
    zeroing: Zeroing,
    /// Operations that ended when they were started, oldest first.
    ended: VecDeque<DiskDone>,
    /// Where header blocks are made that are stored at once.
    header: Box<[u8; HEADER_BLOCK_BYTES]>,
    keeping: Keeping,
}

impl Disk {
    /// `id` is unique within the shard for as long as operations may be in flight, see
    /// [`Disk::id_of`].
    #[must_use]
    pub fn new(id: u32, mut files: ReplicaFiles, pool: BufferPool) -> Self {
        let keeping = Keeping::new(std::mem::take(&mut files.layers));
        Self {
            id,
            files,
            pool,
            pending: Vec::new(),
            next: 0,
            lists: Vec::new(),
            preallocated: false,
            freeing: Zeroing::Hole,
            zeroing: Zeroing::Range,
            ended: VecDeque::new(),
            header: Box::new([0; HEADER_BLOCK_BYTES]),
            keeping,
        }
    }

    /// Makes volumes keep the space that they once have, also for ranges that are discarded.
    #[must_use]
    pub fn preallocated(self) -> Self {
        Self { freeing: Zeroing::Range, preallocated: true, ..self }
    }

    /// Id of the disk whose [`handle_completion`](Self::handle_completion) gets this completion,
    /// which is one of [`Owner::Disk`].
    #[must_use]
    pub fn id_of(completion: &Completion) -> u32 {
        (completion.tag >> 32) as u32
    }

    /// Number of operations whose end has not been reported.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len() + self.ended.len() + self.keeping.waiting()
    }

    /// Takes the oldest operation that ended when it was started. Call this after operations were
    /// started.
    pub fn ended(&mut self) -> Option<DiskDone> {
        self.ended.pop_front()
    }

    /// Whether [`ended`](Self::ended) has an operation to report.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    #[must_use]
    pub fn files(&self) -> &ReplicaFiles {
        &self.files
    }

    /// Bytes of the pool that each of the first `volumes` volumes takes.
    #[must_use]
    pub fn allocated(&self, volumes: usize) -> Vec<u64> {
        (0..volumes).map(|number| self.files.allocated(VolumeId(number as u16))).collect()
    }

    /// Whether the file system knows that nothing of these whole blocks has space; they then read
    /// as zeroes.
    #[must_use]
    pub fn is_hole(&self, volume: VolumeId, offset: u64, len: u64) -> bool {
        self.files.is_hole(volume, offset, len)
    }

    /// Starts what `output` asks for. Gives it back when it asks for nothing of a disk.
    pub fn submit(&mut self, ring: &mut Ring, output: Output) -> Option<Output> {
        match self.keep_first(ring, output) {
            Some(output) => self.start_output(ring, output),
            None => None,
        }
    }

    fn start_output(&mut self, ring: &mut Ring, output: Output) -> Option<Output> {
        match output {
            Output::JournalWrite { op, offset, parts } if self.files.memory(Area::Journal).is_some() => {
                let result = self.store_batches(offset, &parts);
                self.end(DiskTag::Store(op), "writing", Area::Journal, result.map(|()| None));
            }
            Output::JournalWrite { op, offset, parts } => {
                let pieces = self.journal_pieces(&parts);
                self.write(ring, DiskTag::Store(op), Area::Journal, offset, pieces, true);
            }
            Output::JournalRead { op, offset, len } => {
                self.read(ring, DiskTag::Store(op), Area::Journal, offset, len, false);
            }
            Output::SumsRead { op, volume, offset, len } => {
                self.read(ring, DiskTag::Store(op), Area::Sums(volume), offset, len, false);
            }
            Output::SumsWrite { op, volume, offset, data } => {
                self.write(ring, DiskTag::Store(op), Area::Sums(volume), offset, [data].into(), true);
            }
            Output::VolumeWrite { op, volume, offset, data, durable } => {
                let mut pieces = self.lists.pop().unwrap_or_default();
                pieces.extend(data);
                self.write(ring, DiskTag::Store(op), Area::Volume(volume), offset, pieces, durable);
            }
            Output::VolumeZero { op, volume, offset, len, free } => {
                let zeroing = if free { self.freeing } else { self.zeroing };
                self.zero(ring, DiskTag::Store(op), volume, (offset, len), zeroing);
            }
            Output::VolumeFlush { op, volume } => {
                let area = Area::Volume(volume);
                let whose = Whose::Caller(DiskTag::Store(op));
                self.start(ring, Pending { whose, area, work: Work::Flush }, |fd| Op::Sync { fd });
            }
            Output::VolumeGrow { op, volume, bytes, meta_bytes } => {
                let sizes = [(Area::Volume(volume), bytes), (Area::Meta, meta_bytes)];
                self.grow(ring, DiskTag::Store(op), sizes);
            }
            Output::MetaWrite { op, offset, data } => match self.files.memory(Area::Meta) {
                Some(memory) => {
                    let result = memory.put(offset, &data).and_then(|_| memory.finish());
                    self.end(DiskTag::Store(op), "writing", Area::Meta, result.map(|()| None));
                }
                None => self.write(ring, DiskTag::Store(op), Area::Meta, offset, [data].into(), true),
            },
            other => return Some(other),
        }
        None
    }

    /// Turns an output that [`submit`](Self::submit) has given back into a job for the snapshot
    /// thread. `None`: the output is for something else.
    #[must_use]
    pub fn snapshot_job(
        &mut self,
        resource: ResourceId,
        volumes: usize,
        output: Output,
    ) -> Option<SnapshotJob> {
        let (op, snapshot, action) = match output {
            Output::SnapshotTake { op, snapshot, volumes } => (op, snapshot, SnapshotAction::Take(volumes)),
            Output::SnapshotRestore { op, snapshot, from, volumes } => {
                (op, snapshot, SnapshotAction::Restore { from, volumes })
            }
            Output::SnapshotDrop { op, snapshot } => (op, snapshot, SnapshotAction::Remove),
            _ => return None,
        };
        if action == SnapshotAction::Remove {
            self.keeping.forget(snapshot);
        }
        let clones = Clones::of(&self.files, volumes, &self.keeping.held, &self.keeping.freeing);
        Some(SnapshotJob { resource, disk: self.id, op, snapshot, action, clones })
    }

    /// Id of this disk, as in [`SnapshotJob::disk`].
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Reads whole blocks. `passes`: what was read is not kept for long.
    ///
    /// # Panics
    /// When offset or length are not whole blocks, or the length exceeds what a buffer holds.
    pub fn read(&mut self, ring: &mut Ring, tag: DiskTag, area: Area, offset: u64, len: u64, passes: bool) {
        check_blocks(offset, len);
        let len = len as usize;
        let mut buffer = if passes { self.pool.get_passing(len) } else { self.pool.get(len) };
        if let Some(memory) = self.files.memory(area) {
            let result = memory.get(offset, &mut buffer.as_mut_slice()[..len]);
            return self.end(tag, "reading", area, result.map(|()| Some(buffer.freeze(len))));
        }
        let whose = Whose::Caller(tag);
        self.start(ring, Pending { whose, area, work: Work::Read { len } }, |fd| Op::Read {
            fd,
            offset,
            buffer,
            at: 0,
            len,
        });
    }

    /// Stores header blocks and payloads of consecutive batches.
    fn store_batches(&mut self, offset: u64, parts: &[(LocalHeader, Arc<Batch>)]) -> Result<(), Fault> {
        let Self { files, header, .. } = self;
        let memory = files.memory(Area::Journal).expect("asked before");
        let mut at = offset;
        for (local, batch) in parts {
            batch.put_header_block(*local, header);
            at = memory.put(at, &header[..])?;
            for piece in &batch.payload {
                at = memory.put(at, piece)?;
            }
        }
        memory.finish()
    }

    /// An operation ended when it was started.
    fn end(&mut self, tag: DiskTag, doing: &str, area: Area, result: Result<Option<Bytes>, Fault>) {
        let result = result.map_err(|fault| self.failure(doing, area, &fault));
        self.ended.push_back(DiskDone { tag, result });
    }

    fn failure(&self, doing: &str, area: Area, error: &dyn std::fmt::Display) -> IoFailure {
        IoFailure::new(format!("{doing} {area} in {}: {error}", self.files.path().display()))
    }

    fn write(
        &mut self,
        ring: &mut Ring,
        tag: DiskTag,
        area: Area,
        offset: u64,
        pieces: VecDeque<Bytes>,
        durable: bool,
    ) {
        check_blocks(offset, pieces.iter().map(|piece| piece.len() as u64).sum());
        let pieces = self.aligned(area, pieces);
        let whose = Whose::Caller(tag);
        self.start(ring, Pending { whose, area, work: Work::Write { offset, durable } }, |fd| Op::Write {
            fd,
            offset,
            pieces,
            durable,
        });
    }

    fn zero(
        &mut self,
        ring: &mut Ring,
        tag: DiskTag,
        volume: VolumeId,
        (offset, len): (u64, u64),
        zeroing: Zeroing,
    ) {
        check_blocks(offset, len);
        if zeroing == Zeroing::Write {
            let pieces = self.zeroes(len);
            return self.write(ring, tag, Area::Volume(volume), offset, pieces, false);
        }
        let whose = Whose::Caller(tag);
        let pending = Pending { whose, area: Area::Volume(volume), work: Work::Zero { zeroing } };
        self.start(ring, pending, |fd| Op::Allocate { fd, mode: zeroing.mode(), offset, len });
    }

    /// Makes each file as large as it is to be, durably, one after the other, and allocates what is
    /// missing unless it is sparse.
    fn grow(&mut self, ring: &mut Ring, tag: DiskTag, sizes: [(Area, u64); 2]) {
        let mut left = VecDeque::new();
        for (area, bytes) in sizes {
            let file = self.files.area(area).expect("the store names only files that exist");
            if bytes > file.bytes {
                let fd = || Fd::clone(&file.file);
                // A sparse file gets its size with its last block.
                let sparse = !self.preallocated && matches!(area, Area::Volume(_));
                let offset = if sparse { bytes - BLOCK_BYTES } else { file.bytes };
                let len = bytes - offset;
                left.extend([Op::Allocate { fd: fd(), mode: 0, offset, len }, Op::Sync { fd: fd() }]);
            }
        }
        let (area, _) = sizes[0];
        match left.pop_front() {
            Some(first) => {
                let whose = Whose::Caller(tag);
                self.start(ring, Pending { whose, area, work: Work::Grow { left, sizes } }, |_| first);
            }
            None => self.ended.push_back(DiskDone { tag, result: Ok(None) }),
        }
    }

    fn zeroes(&self, len: u64) -> VecDeque<Bytes> {
        let chunk = len.min(ZERO_CHUNK_BYTES) as usize;
        let mut buffer = self.pool.get(chunk);
        buffer.as_mut_slice()[..chunk].fill(0);
        let zeroes = buffer.freeze(chunk);
        let whole = (len / ZERO_CHUNK_BYTES) as usize;
        let rest = zeroes.slice(..(len % ZERO_CHUNK_BYTES) as usize);
        std::iter::repeat_n(zeroes, whole).chain([rest]).filter(|piece| !piece.is_empty()).collect()
    }

    /// Header blocks and payloads of consecutive batches.
    fn journal_pieces(&mut self, parts: &[(LocalHeader, Arc<Batch>)]) -> VecDeque<Bytes> {
        let mut pieces = self.lists.pop().unwrap_or_default();
        for (local, batch) in parts {
            let mut block = self.pool.get_passing(HEADER_BLOCK_BYTES);
            // Proof: the pool gives at least what is asked for.
            let place = block.as_mut_slice().first_chunk_mut().expect("as long as was asked for");
            batch.put_header_block(*local, place);
            pieces.push_back(block.freeze(HEADER_BLOCK_BYTES));
            pieces.extend(batch.payload.iter().cloned());
        }
        pieces
    }

    /// The same bytes in pieces that direct I/O can take: address and length of each fit.
    fn aligned(&self, area: Area, mut pieces: VecDeque<Bytes>) -> VecDeque<Bytes> {
        let align = self.files.area(area).map_or(BLOCK_BYTES as usize, |file| file.mem_align);
        if pieces.iter().any(|piece| !(piece.len() as u64).is_multiple_of(BLOCK_BYTES)) {
            // Block borders run through pieces: the bytes must move anyway.
            let all: Vec<u8> = Vec::from(pieces).concat();
            return all.chunks(ZERO_CHUNK_BYTES as usize).map(|part| self.pool.copy_of(part)).collect();
        }
        for piece in &mut pieces {
            if !(piece.as_ptr() as usize).is_multiple_of(align) {
                *piece = self.pool.copy_of(piece);
            }
        }
        pieces
    }

    fn start(&mut self, ring: &mut Ring, pending: Pending, op: impl FnOnce(Fd) -> Op) {
        // Which volumes there are was checked against the superblock when the replica was opened.
        let file = self.files.area(pending.area).expect("the store names only files that exist");
        let op = op(Fd::clone(&file.file));
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let older = self.pending.iter().any(|(other, _)| *other == number);
        assert!(!older, "an operation is older than four billion others");
        self.pending.push((number, pending));
        self.go(ring, number, op);
    }

    fn go(&self, ring: &mut Ring, number: u32, op: Op) {
        ring.submit(Owner::Disk, u64::from(self.id) << 32 | u64::from(number), op);
    }

    /// Takes a completion that is this disk's. `None`: the operation goes on.
    ///
    /// # Panics
    /// On a completion that is not this disk's.
    pub fn handle_completion(&mut self, ring: &mut Ring, completion: Completion) -> Option<DiskDone> {
        assert!(Self::id_of(&completion) == self.id, "completion of another disk");
        let number = completion.tag as u32;
        let at = self.pending.iter().position(|(other, _)| *other == number).expect("completes once");
        let (_, mut pending) = self.pending.swap_remove(at);
        let step = match completion.result {
            Ok(moved) => self.step(&mut pending, moved, completion.op),
            Err(error) => self.fall_back(&mut pending, &error, completion.op),
        };
        let result = match step {
            Ok(Step::Go(op)) => {
                self.pending.push((number, pending));
                self.go(ring, number, op);
                return None;
            }
            Ok(Step::Done(bytes)) => Ok(bytes),
            Err(error) => {
                let what = match pending.work {
                    Work::Read { .. } => "reading",
                    Work::Write { .. } => "writing",
                    Work::Zero { .. } => "zeroing",
                    Work::Flush => "flushing",
                    Work::Grow { .. } => "growing",
                };
                // Only files of volumes are sparse. Where space is promised and not there (a
                // copy-on-write file system), the others fail.
                let full = is_full(&error);
                let no_space = matches!(pending.area, Area::Volume(_) | Area::Sums(_)) && full;
                Err(IoFailure { no_space, full, ..self.failure(what, pending.area, &error) })
            }
        };
        match pending.whose {
            Whose::Caller(tag) => Some(DiskDone { tag, result }),
            Whose::CopyBeforeWrite(volume, part) => {
                self.kept(ring, volume, part, result);
                None
            }
        }
    }

    /// Next step of an operation whose last part moved `moved` bytes.
    fn step(&mut self, pending: &mut Pending, moved: u32, op: Op) -> io::Result<Step> {
        let moved = u64::from(moved);
        let whole = |moved: u64| {
            if moved == 0 || !moved.is_multiple_of(BLOCK_BYTES) {
                return Err(io::Error::other(format!("ended short after {moved} bytes")));
            }
            Ok(())
        };
        match (op, &mut pending.work) {
            (Op::Read { buffer, .. }, Work::Read { len }) if moved == *len as u64 => {
                Ok(Step::Done(Some(buffer.freeze(*len))))
            }
            (Op::Read { fd, offset, buffer, at, len: asked }, Work::Read { len }) => {
                whole(moved)?;
                let (at, left) = (at + moved as usize, asked - moved as usize);
                if left == 0 {
                    return Ok(Step::Done(Some(buffer.freeze(*len))));
                }
                Ok(Step::Go(Op::Read { fd, offset: offset + moved, buffer, at, len: left }))
            }
            (Op::Write { fd, mut pieces, .. }, Work::Write { offset, durable }) => {
                whole(moved)?;
                advance(&mut pieces, moved as usize);
                *offset += moved;
                if pieces.is_empty() {
                    if self.lists.len() < LISTS_MAX {
                        self.lists.push(pieces);
                    }
                    return Ok(Step::Done(None));
                }
                Ok(Step::Go(Op::Write { fd, offset: *offset, pieces, durable: *durable }))
            }
            (Op::Sync { .. } | Op::Allocate { .. }, Work::Grow { left, sizes }) => {
                if let Some(next) = left.pop_front() {
                    return Ok(Step::Go(next));
                }
                for (area, bytes) in *sizes {
                    self.files.grown(area, bytes)?;
                }
                Ok(Step::Done(None))
            }
            (Op::Sync { .. }, Work::Flush) | (Op::Allocate { .. }, Work::Zero { .. }) => Ok(Step::Done(None)),
            (op, _) => unreachable!("{op:?} is not what was submitted"),
        }
    }

    /// Next step of an operation after an error: another way to zero, where the file system lacks
    /// the first one. Other errors are returned.
    fn fall_back(&mut self, pending: &mut Pending, error: &io::Error, op: Op) -> io::Result<Step> {
        let lacking = error.raw_os_error() == Some(libc::EOPNOTSUPP);
        let (Op::Allocate { fd, offset, len, .. }, Work::Zero { zeroing }, true) =
            (op, &mut pending.work, lacking)
        else {
            return Err(io::Error::new(error.kind(), error.to_string()));
        };
        let (lacks, next) = (*zeroing, zeroing.next());
        for way in [&mut self.freeing, &mut self.zeroing] {
            if *way == lacks {
                *way = next;
            }
        }
        *zeroing = next;
        if next == Zeroing::Write {
            pending.work = Work::Write { offset, durable: false };
            return Ok(Step::Go(Op::Write { fd, offset, pieces: self.zeroes(len), durable: false }));
        }
        Ok(Step::Go(Op::Allocate { fd, mode: next.mode(), offset, len }))
    }
}

enum Step {
    Go(Op),
    Done(Option<Bytes>),
}

/// The file system has no space, or the owner of the files may use no more of it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn check_blocks(offset: u64, len: u64) {
    assert!(
        len > 0 && offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES),
        "{len} bytes at {offset} are not whole blocks"
    );
}

const _: () = assert!(HEADER_BLOCK_BYTES as u64 == BLOCK_BYTES);
