//! The requests that jobs are made of, and how merges keep out of each other's way.

use super::{Exchange, JobKind, Reply, part_of_read};
use crate::buffer::BufMut;
use crate::frontend::{Errno, Extent, FrontendOp, FrontendRequest, FrontendResult};
use bytes::Bytes;
use mainstay_codec::Pieces;
use mainstay_codec::nbd::transmission::{EXTENTS_MAX, STATE_HOLE, STATE_ZERO};
use mainstay_types::{BLOCK_BYTES, Range, VolumeId};

#[derive(Debug)]
pub(super) struct Task {
    job: u64,
    step: Step,
    /// Blocks that the task changes; `None` if it changes none.
    range: Option<Range>,
    started: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    /// This part is being read.
    Read {
        offset: u64,
        len: u64,
    },
    /// Taken when it is asked for.
    Plain(Option<FrontendOp>),
    Merge(Merge),
    Status {
        offset: u64,
        len: u64,
        one: bool,
    },
    /// The whole of a merge is being written.
    Merged,
}

/// Bytes to be laid over blocks that they do not wholly cover.
#[derive(Debug)]
pub(super) struct Merge {
    buffer: BufMut,
    /// Where the bytes lie in the buffer.
    at: usize,
    end: usize,
    /// Used length of the buffer, in bytes: whole blocks.
    bytes: usize,
    /// Whether the first and the last block are still to be read; the latter only where they are
    /// two.
    first: bool,
    last: bool,
}

impl Merge {
    /// Where in the buffer the block is that is read next.
    fn block(&self) -> Option<usize> {
        match (self.first, self.last) {
            (true, _) => Some(0),
            (false, true) => Some(self.bytes - BLOCK_BYTES as usize),
            (false, false) => None,
        }
    }

    /// Takes what is on the volume around the bytes in the block that was read.
    fn fill(&mut self, pieces: &[Bytes]) {
        let Some(block) = self.block() else { return };
        let mut here = block;
        for piece in pieces {
            let before = here..(here + piece.len()).min(self.at).max(here);
            let after = self.end.clamp(here, here + piece.len())..here + piece.len();
            let target = self.buffer.as_mut_slice();
            target[before.clone()].copy_from_slice(&piece[..before.len()]);
            target[after.clone()].copy_from_slice(&piece[piece.len() - after.len()..]);
            here += piece.len();
        }
        if self.first {
            self.first = false;
        } else {
            self.last = false;
        }
    }
}

impl Task {
    /// Has its range to itself.
    fn is_alone(&self) -> bool {
        matches!(self.step, Step::Merge(_) | Step::Merged)
    }
}

impl Exchange {
    /// Starts a task that writes `len` bytes, which lie at `at` in the buffer, to `offset`.
    pub(super) fn change(
        &mut self,
        job: u64,
        volume: VolumeId,
        offset: u64,
        buffer: BufMut,
        at: usize,
        len: usize,
    ) {
        let (end, block) = (at + len, BLOCK_BYTES as usize);
        let bytes = end.next_multiple_of(block);
        let range = Range { volume, offset: offset - at as u64, len: bytes as u64 };
        let step = if at == 0 && end == bytes {
            Step::Plain(Some(FrontendOp::Write { offset, payload: buffer.freeze(bytes) }))
        } else {
            let first = at > 0 || bytes == block;
            Step::Merge(Merge { buffer, at, end, bytes, first, last: end < bytes && bytes > block })
        };
        self.start(job, step, Some(range));
    }

    pub(super) fn start(&mut self, job: u64, step: Step, range: Option<Range>) {
        if let Some(found) = self.jobs.get_mut(job) {
            found.tasks += 1;
        }
        let mut task = Task { job, step, range, started: true };
        self.merges += usize::from(task.is_alone());
        let waits = self.merges > 0 && self.must_wait(&task, None);
        task.started = !waits;
        let number = self.tasks.insert(task);
        if waits {
            self.waiting.push_back(number);
        } else {
            self.go(number);
        }
    }

    /// Whether a change meets one that is under way, or one that waits (before `number`, if it
    /// waits itself), such that one of the two is a merge.
    fn must_wait(&self, task: &Task, number: Option<u64>) -> bool {
        let Some(range) = task.range else { return false };
        let meets = |other: &Task| {
            (task.is_alone() || other.is_alone()) && other.range.is_some_and(|other| other.overlaps(range))
        };
        self.tasks.values().any(|other| other.started && meets(other))
            || self
                .waiting
                .iter()
                .take_while(|other| Some(**other) != number)
                .any(|other| self.tasks.get(*other).is_some_and(meets))
    }

    /// Lets those go on that waited for a change that has ended.
    fn wake(&mut self) {
        let mut at = 0;
        while let Some(&number) = self.waiting.get(at) {
            let waits = self.tasks.get(number).is_some_and(|task| self.must_wait(task, Some(number)));
            if waits {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            if let Some(task) = self.tasks.get_mut(number) {
                task.started = true;
                self.go(number);
            }
        }
    }

    /// Asks the resource for what the task needs next.
    fn go(&mut self, number: u64) {
        let Some(task) = self.tasks.get_mut(number) else { return };
        let volume = match (task.range, self.jobs.get(task.job)) {
            (Some(range), _) => range.volume,
            (None, Some(job)) => job.client.volume,
            // Its client has gone, and it has changed nothing yet.
            (None, None) => {
                self.tasks.remove(number);
                return;
            }
        };
        let op = match std::mem::replace(&mut task.step, Step::Merged) {
            Step::Merge(merge) => match (merge.block(), task.range) {
                (Some(block), Some(range)) => {
                    task.step = Step::Merge(merge);
                    FrontendOp::Read { offset: range.offset + block as u64, len: BLOCK_BYTES }
                }
                (None, Some(range)) => {
                    FrontendOp::Write { offset: range.offset, payload: merge.buffer.freeze(merge.bytes) }
                }
                (_, None) => unreachable!("a merge changes something"),
            },
            Step::Plain(Some(op)) => {
                task.step = Step::Plain(None);
                op
            }
            Step::Read { offset, len } => {
                task.step = Step::Read { offset, len };
                let (offset, len) = blocks_of(offset, len);
                FrontendOp::Read { offset, len }
            }
            Step::Status { offset, len, one } => {
                task.step = Step::Status { offset, len, one };
                let (offset, len) = blocks_of(offset, len);
                FrontendOp::Extents { offset, len }
            }
            Step::Plain(None) | Step::Merged => unreachable!("asked for once"),
        };
        self.requests.push(FrontendRequest { tag: number, volume, op });
    }

    /// Ends a request of a task. The end of a request that was given up is ignored.
    pub fn complete(&mut self, number: u64, result: FrontendResult) {
        let Some(task) = self.tasks.get_mut(number) else { return };
        match (&mut task.step, result) {
            (_, Err(errno)) => self.task_done(number, Err(errno)),
            (Step::Read { offset, len }, Ok(pieces)) => {
                let (offset, len) = (*offset, *len);
                self.read(number, offset, len, pieces);
            }
            (Step::Merge(merge), Ok(pieces)) => {
                merge.fill(&pieces);
                self.go(number);
            }
            (Step::Plain(_) | Step::Merged, Ok(_)) => self.task_done(number, Ok(())),
            (Step::Status { .. }, Ok(_)) => unreachable!("answered by extents"),
        }
    }

    /// A part has been read.
    fn read(&mut self, number: u64, offset: u64, len: u64, pieces: Pieces) {
        let Some(task) = self.tasks.get_mut(number) else { return };
        let Some(job) = self.jobs.get_mut(task.job) else { return self.task_done(number, Ok(())) };
        let pieces = cut(pieces, offset % BLOCK_BYTES, len);
        let JobKind::Read { end, whole, pieces: kept, .. } = &mut job.kind else {
            unreachable!("only reads read")
        };
        let at = offset + len;
        let last = at == *end;
        if *whole {
            // Mostly there is one part, and nothing to append to.
            if kept.is_empty() {
                *kept = pieces;
            } else {
                kept.extend(pieces);
            }
        } else {
            let (client, cookie, charged) = (job.client.number, job.cookie, job.charged);
            let reply = Reply::Data { offset, pieces, last };
            if last {
                self.jobs.remove(task.job);
            }
            self.answer(client, cookie, reply, last.then_some(charged));
        }
        if last {
            return self.task_done(number, Ok(()));
        }
        if let Some(task) = self.tasks.get_mut(number)
            && let Some(JobKind::Read { end, .. }) = self.jobs.get(task.job).map(|job| &job.kind)
        {
            task.step = Step::Read { offset: at, len: part_of_read(at, end - at) };
            self.go(number);
        }
    }

    /// The answer to a status request; extents from the block on that holds its first byte.
    pub fn extents(&mut self, number: u64, extents: &[Extent]) {
        let Some(task) = self.tasks.get(number) else { return };
        let Step::Status { offset, len, one } = task.step else { return };
        if let Some(job) = self.jobs.get_mut(task.job) {
            job.kind = JobKind::Status(status(offset, len, one, extents));
        }
        self.task_done(number, Ok(()));
    }

    fn task_done(&mut self, number: u64, result: Result<(), Errno>) {
        let Some(task) = self.tasks.remove(number) else { return };
        self.merges -= usize::from(task.is_alone());
        if let Some(job) = self.jobs.get_mut(task.job) {
            job.tasks -= 1;
            job.error = job.error.or(result.err());
            if job.tasks == 0 && !job.open {
                self.job_done(task.job);
            }
        }
        if task.range.is_some() && !self.waiting.is_empty() {
            self.wake();
        }
    }
}

/// The whole blocks that a range touches.
fn blocks_of(offset: u64, len: u64) -> (u64, u64) {
    let first = offset / BLOCK_BYTES * BLOCK_BYTES;
    (first, (offset + len).next_multiple_of(BLOCK_BYTES) - first)
}

/// `len` bytes of the pieces, after the first `skip`.
fn cut(mut pieces: Pieces, mut skip: u64, mut len: u64) -> Pieces {
    pieces.retain_mut(|piece| {
        let from = skip.min(piece.len() as u64);
        skip -= from;
        let here = len.min(piece.len() as u64 - from);
        len -= here;
        if from > 0 || here < piece.len() as u64 {
            *piece = piece.slice(from as usize..(from + here) as usize);
        }
        !piece.is_empty()
    });
    assert!(len == 0, "a read is answered with as many bytes as were asked for");
    pieces
}

/// Extents as the protocol wants them: from `offset` on, the last one ending with the request.
fn status(offset: u64, len: u64, one: bool, extents: &[Extent]) -> Vec<(u32, u32)> {
    let mut skip = offset % BLOCK_BYTES;
    let mut left = len;
    let mut out: Vec<(u32, u32)> = Vec::new();
    for extent in extents {
        let from = skip.min(extent.len);
        skip -= from;
        // A request is shorter than 4 GiB, so the lengths fit.
        let here = (extent.len - from).min(left) as u32;
        left -= u64::from(here);
        let state = if extent.written { 0 } else { STATE_HOLE | STATE_ZERO };
        let full = one || out.len() == EXTENTS_MAX;
        match out.last_mut() {
            _ if here == 0 => {}
            Some((len, before)) if *before == state => *len += here,
            Some(_) if full => break,
            _ => out.push((here, state)),
        }
    }
    out
}
