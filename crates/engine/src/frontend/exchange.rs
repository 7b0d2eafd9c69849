//! Translation of requests of clients into requests of whole blocks, and of their answers back.
//!
//! A request of a client is a *job*. A job makes the resource do one or more *tasks*. Each task has
//! one request in progress at a time:
//!
//! ```text
//! read          one task, which reads part after part of at most REQUEST_BYTES_MAX
//! write         a task for each part as its payload comes in
//! write-zeroes  one task for the whole blocks, and one for each block at its ends that it covers in part
//! trim          one task, for the whole blocks inside
//! flush, block status: one task
//! ```
//! A task that changes a block only in part is a *merge*: it reads the blocks at its ends, lays the
//! payload over them and writes the whole. If a client wrote into the other part of such a block
//! meanwhile, its write would be lost. So a merge has its blocks to itself. It waits until no
//! change of them is under way, and later changes wait for it, in their order. While requests are
//! of whole blocks, no merge is noted and none is searched for.
//!
//! A write that touches at most `REQUEST_BYTES_MAX` of blocks is one part, and so one entry of the
//! log (R26). A longer one is cut where the volume has a multiple of that length, and nowhere else:
//! a page of a database, whose place is a multiple of its length, is never cut.
//!
//! Guarantee: every job is answered exactly once, or forgotten with its client. Every
//! request that leaves here lies within its volume and is made of whole blocks. A client has at
//! most [`JOBS_MAX`] jobs and, one long request aside, [`WINDOW_BYTES`] of payload in progress. All
//! clients together have [`TASKS_MAX`] tasks (R18). A client that must wait gets
//! [`Admission::Wait`] and asks again. Pure: it neither waits nor moves bytes on its own.
//!
//! Two frontends have clients that need this: [`nbd`](super::nbd), and
//! [`vhost_user`](super::vhost_user), whose requests are a part of what NBD has and are put in its
//! words.

mod tasks;

use super::slab::Slab;
use crate::buffer::{BufMut, BufferPool};
use crate::frontend::{Errno, FrontendOp, FrontendRequest, NOT_SERVED};
use mainstay_codec::Pieces;
use mainstay_codec::nbd::{Command, NbdError, PAYLOAD_BYTES_MAX, Request};
use mainstay_types::{BLOCK_BYTES, REQUEST_BYTES_MAX, Range, VolumeId};
use std::collections::VecDeque;
use tasks::{Step, Task};

/// Most requests of one client in progress. The kernel's client has 128.
pub const JOBS_MAX: usize = 128;
/// Payload of one client in progress, in bytes, above which it gets no more; one request may exceed
/// it.
pub const WINDOW_BYTES: u64 = 8 << 20;
/// Most requests to the resource in progress.
pub const TASKS_MAX: usize = 256;
/// Tasks that one request may need at once.
const TASKS_PER_JOB: usize = 3;

/// One client: the place of its connection and what was agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub number: u64,
    pub volume: VolumeId,
    /// Size of the volume.
    pub bytes: u64,
    /// May be answered with more than one chunk.
    pub structured: bool,
    /// May ask for what is allocated.
    pub allocation: bool,
}

/// Decision on a request of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// The request is not taken: the client asks again after the answer to an earlier request.
    Wait,
    /// The request is taken, and occupies this many bytes of the client's window until its answer.
    Taken(u64),
    /// The payload is to be given to [`Exchange::part`] under this number.
    Payload(u64),
    /// The payload is to be thrown away, and answered with the error when it has come.
    Refused(NbdError, &'static str),
    /// The client broke the protocol: it cannot be served any longer.
    Hostile(&'static str),
}

/// Content of an answer to a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Failed(NbdError, &'static str),
    /// Content from `offset` on. `last`: all of it has been sent with this.
    Data {
        offset: u64,
        pieces: Pieces,
        last: bool,
    },
    /// Lengths and state bits.
    Status(Vec<(u32, u32)>),
}

/// An answer and the client that gets it.
#[derive(Debug, PartialEq, Eq)]
pub struct ExchangeAnswer {
    pub client: u64,
    pub cookie: u64,
    pub reply: Reply,
    /// The job has ended, and gives back this much of its client's window.
    pub ended: Option<u64>,
}

#[derive(Debug)]
struct Job {
    client: Client,
    cookie: u64,
    /// Bytes of the client's window that the job occupies.
    charged: u64,
    /// Tasks in progress.
    tasks: usize,
    /// More payload will come.
    open: bool,
    error: Option<Errno>,
    kind: JobKind,
}

#[derive(Debug)]
enum JobKind {
    /// A read of `start..end`. `whole`: its content is sent together, and `pieces` are what has
    /// been read so far.
    Read {
        start: u64,
        end: u64,
        whole: bool,
        pieces: Pieces,
    },
    /// A request for block status: the lengths and state bits that have been found so far.
    Status(Vec<(u32, u32)>),
    Other,
}

/// See the top of this file.
pub struct Exchange {
    pool: BufferPool,
    jobs: Slab<Job>,
    tasks: Slab<Task>,
    /// Changes that must not begin yet, in order.
    waiting: VecDeque<u64>,
    /// Merges in progress, started or not.
    merges: usize,
    /// Every request is answered with it.
    fenced: Option<Errno>,
    requests: Vec<FrontendRequest>,
    answers: Vec<ExchangeAnswer>,
}

/// Where in its buffer the next part of a write at `offset` begins, and how long it is. `left`:
/// bytes that are still to come with it.
pub fn part_of_write(offset: u64, left: u64) -> (usize, usize) {
    let at = offset % BLOCK_BYTES;
    let len =
        if at + left <= REQUEST_BYTES_MAX { left } else { REQUEST_BYTES_MAX - offset % REQUEST_BYTES_MAX };
    (at as usize, len as usize)
}

impl Exchange {
    pub fn new(pool: BufferPool) -> Self {
        Self {
            pool,
            jobs: Slab::new(),
            tasks: Slab::new(),
            waiting: VecDeque::new(),
            merges: 0,
            fenced: None,
            requests: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Requests that the resource is to serve. The caller empties the list after every call.
    pub fn requests(&mut self) -> &mut Vec<FrontendRequest> {
        &mut self.requests
    }

    /// Answers that clients are to get. The caller empties the list after every call.
    pub fn answers(&mut self) -> &mut Vec<ExchangeAnswer> {
        &mut self.answers
    }

    /// Whether another request can be taken.
    pub fn has_room(&self) -> bool {
        self.tasks.len() + TASKS_PER_JOB <= TASKS_MAX
    }

    /// A request of a client that has `jobs` in progress and `charged` bytes of payload with them.
    pub fn request(&mut self, client: Client, request: &Request, jobs: usize, charged: u64) -> Admission {
        let len = u64::from(request.len);
        let is_write = request.command == Command::Write;
        let transfers = is_write || matches!(request.command, Command::Read { .. });
        if is_write && request.len > PAYLOAD_BYTES_MAX {
            return Admission::Hostile("it sent a payload that is too long");
        }
        let charge = if transfers { len } else { 0 };
        if !self.has_room() || jobs >= JOBS_MAX || (charged > 0 && charged + charge > WINDOW_BYTES) {
            return Admission::Wait;
        }
        if let Err((error, words)) = self.check(client, request) {
            return if is_write {
                Admission::Refused(error, words)
            } else {
                self.answer(client.number, request.cookie, Reply::Failed(error, words), Some(0));
                Admission::Taken(0)
            };
        }
        if len == 0 && request.command != Command::Flush {
            self.answer(client.number, request.cookie, Reply::Done, Some(0));
            return Admission::Taken(0);
        }
        let job = Job {
            client,
            cookie: request.cookie,
            charged: charge,
            tasks: 0,
            open: is_write,
            error: None,
            kind: match request.command {
                Command::Read { whole } => JobKind::Read {
                    start: request.offset,
                    end: request.offset + len,
                    whole: whole || !client.structured,
                    pieces: Pieces::new(),
                },
                _ => JobKind::Other,
            },
        };
        let job = self.jobs.insert(job);
        if is_write {
            return Admission::Payload(job);
        }
        self.begin(job, client.volume, request);
        Admission::Taken(charge)
    }

    fn check(&self, client: Client, request: &Request) -> Result<(), (NbdError, &'static str)> {
        if let Some(errno) = self.fenced {
            return Err(explain(errno));
        }
        if request.bad_flags {
            return Err((NbdError::Invalid, "this command does not have this flag"));
        }
        let beyond = request.offset.checked_add(request.len.into()).is_none_or(|end| end > client.bytes);
        match request.command {
            Command::Unknown => Err((NbdError::Invalid, "this command is not known here")),
            Command::BlockStatus { .. } if !client.allocation => {
                Err((NbdError::Invalid, "base:allocation was not agreed on"))
            }
            Command::Write | Command::WriteZeroes { .. } if beyond => {
                Err((NbdError::NoSpace, "this is beyond the end of the volume"))
            }
            Command::Flush | Command::Disconnect => Ok(()),
            _ if beyond => Err((NbdError::Invalid, "this is beyond the end of the volume")),
            Command::BlockStatus { .. } if request.len == 0 => {
                Err((NbdError::Invalid, "a status needs a length"))
            }
            Command::Read { .. } if request.len > PAYLOAD_BYTES_MAX => {
                Err((NbdError::Invalid, "a read is at most 32 MiB long"))
            }
            Command::Read { whole: true } if u64::from(request.len) > REQUEST_BYTES_MAX => {
                Err((NbdError::Overflow, "an unfragmented read is at most 1 MiB long"))
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, job: u64, volume: VolumeId, request: &Request) {
        let (offset, len) = (request.offset, u64::from(request.len));
        let end = offset + len;
        // The whole blocks inside.
        let first = offset.next_multiple_of(BLOCK_BYTES);
        let last = end / BLOCK_BYTES * BLOCK_BYTES;
        match request.command {
            Command::Read { .. } => {
                let len = part_of_read(offset, len);
                self.start(job, Step::Read { offset, len }, None);
            }
            Command::Flush => self.start(job, Step::Plain(Some(FrontendOp::Flush)), None),
            Command::Trim if first >= last => self.job_done(job),
            Command::Trim => {
                let op = FrontendOp::Discard { offset: first, len: last - first };
                self.start(
                    job,
                    Step::Plain(Some(op)),
                    Some(Range { volume, offset: first, len: last - first }),
                );
            }
            Command::WriteZeroes { keep } => self.begin_zeroes(job, volume, offset, end, keep),
            Command::BlockStatus { one } => self.start(job, Step::Status { offset, len, one }, None),
            Command::Write | Command::Disconnect | Command::Unknown => unreachable!("not for here"),
        }
    }

    fn begin_zeroes(&mut self, job: u64, volume: VolumeId, offset: u64, end: u64, keep: bool) {
        let first = offset.next_multiple_of(BLOCK_BYTES);
        let last = end / BLOCK_BYTES * BLOCK_BYTES;
        if let Some(job) = self.jobs.get_mut(job) {
            // Not done before all tasks have been started.
            job.open = true;
        }
        if offset < first {
            self.merge_zeroes(job, volume, offset, end.min(first));
        }
        if first < last {
            let (range, len) = (Range { volume, offset: first, len: last - first }, last - first);
            let op = if keep {
                FrontendOp::WriteZeroes { offset: first, len }
            } else {
                FrontendOp::Discard { offset: first, len }
            };
            self.start(job, Step::Plain(Some(op)), Some(range));
        }
        // The last block, unless it is the first one as well.
        if last < end && last >= first {
            self.merge_zeroes(job, volume, last, end);
        }
        self.close(job);
    }

    fn merge_zeroes(&mut self, job: u64, volume: VolumeId, offset: u64, end: u64) {
        let (at, len) = ((offset % BLOCK_BYTES) as usize, (end - offset) as usize);
        let mut buffer = self.pool.get(BLOCK_BYTES as usize);
        buffer.as_mut_slice()[at..at + len].fill(0);
        self.change(job, volume, offset, buffer, at, len);
    }

    /// A part of a write's payload, of the length and at the place in its buffer that
    /// [`part_of_write`] says. `last`: nothing follows.
    pub fn part(&mut self, job: u64, offset: u64, buffer: BufMut, at: usize, len: usize, last: bool) {
        // A job may have ended while its payload was still coming: its devices are gone.
        let Some(found) = self.jobs.get(job) else { return };
        let volume = found.client.volume;
        self.change(job, volume, offset, buffer, at, len);
        if last {
            self.close(job);
        }
    }

    /// No more tasks of this job will be started.
    fn close(&mut self, job: u64) {
        if let Some(found) = self.jobs.get_mut(job) {
            found.open = false;
            if found.tasks == 0 {
                self.job_done(job);
            }
        }
    }

    fn job_done(&mut self, number: u64) {
        let Some(job) = self.jobs.remove(number) else { return };
        let reply = match (job.error, job.kind) {
            (Some(errno), _) => {
                let (error, words) = explain(errno);
                Reply::Failed(error, words)
            }
            (None, JobKind::Read { start, whole: true, pieces, .. }) => {
                Reply::Data { offset: start, pieces, last: true }
            }
            (None, JobKind::Status(extents)) => Reply::Status(extents),
            // Parts that were read were sent as they came, the last one with the end.
            (None, JobKind::Read { whole: false, .. } | JobKind::Other) => Reply::Done,
        };
        self.answer(job.client.number, job.cookie, reply, Some(job.charged));
    }

    fn answer(&mut self, client: u64, cookie: u64, reply: Reply, ended: Option<u64>) {
        self.answers.push(ExchangeAnswer { client, cookie, reply, ended });
    }

    /// Forgets the jobs of a client that has gone. Tasks in progress go on, without an answer.
    pub fn forget(&mut self, client: u64) {
        let gone: Vec<_> = self.jobs.keys().filter(|job| self.job_of(*job, client)).collect();
        for job in gone {
            self.jobs.remove(job);
        }
    }

    fn job_of(&self, job: u64, client: u64) -> bool {
        self.jobs.get(job).is_some_and(|job| job.client.number == client)
    }

    /// Answers everything that is in progress, and from now on every request at once, with `errno`
    /// (R19).
    pub fn fail_all(&mut self, errno: Errno) {
        self.fenced = Some(errno);
        for number in self.jobs.keys().collect::<Vec<_>>() {
            if let Some(job) = self.jobs.get_mut(number) {
                job.error = Some(errno);
                self.job_done(number);
            }
        }
        self.tasks = Slab::new();
        self.waiting.clear();
        self.merges = 0;
    }
}

fn part_of_read(offset: u64, left: u64) -> u64 {
    left.min(REQUEST_BYTES_MAX - offset % BLOCK_BYTES)
}

/// The protocol's word for an error, and one for humans.
fn explain(errno: Errno) -> (NbdError, &'static str) {
    match errno {
        libc::EINVAL => (NbdError::Invalid, "the resource refused this request"),
        libc::EPERM => (NbdError::Permission, "the volume may not be changed"),
        libc::ENOSPC => (NbdError::NoSpace, "there is no room"),
        NOT_SERVED => (NbdError::Shutdown, "the resource is no longer primary here"),
        _ => (
            NbdError::Io,
            "the resource cannot serve this now: it is not primary here, or its disk has failed",
        ),
    }
}

#[cfg(test)]
mod tests;
