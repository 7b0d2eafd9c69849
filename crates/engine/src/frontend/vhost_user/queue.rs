//! One queue with the files by which driver and device wake each other.
//!
//! ```text
//! Idle ── listened to ──▶ Polling ── kicked ──▶ Reading ──▶ Idle
//! ```
//! A poll on the shard's ring sees a kick. A read on the ring empties the counter of the eventfd,
//! because a process that shares the file could make a direct read wait. The guest's ring is looked
//! at after both, so that a kick that comes in between is not lost. A call is a write on the
//! shard's ring, for the same reason.

use super::vring::Vring;
use crate::buffer::{BufMut, BufferPool};
use crate::ring::{Fd, Op, OpHandle, Owner, Ring, STREAM_OFFSET};
use bytes::Bytes;
use mainstay_codec::vhost_user::RingAddresses;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

const COUNTER_BYTES: usize = 8;
static ONE: [u8; COUNTER_BYTES] = 1u64.to_ne_bytes();

/// Settings of a ring from the front-end, until the ring is started.
#[derive(Clone, Copy, Default, Debug)]
pub struct Setup {
    pub size: u16,
    pub addresses: RingAddresses,
    pub base: u16,
}

/// A head that was taken and has no request in the exchange yet.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub work: u64,
    pub ask: mainstay_codec::nbd::Request,
}

/// The payload of a write that is being handed over.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    pub work: u64,
    pub job: u64,
    /// Where the rest goes in the volume, where it begins in the driver's data, and how long it is.
    pub offset: u64,
    pub from: u64,
    pub left: u64,
}

/// Tags of a queue's operations on the ring.
#[derive(Clone, Copy, Debug)]
pub struct QueueTags {
    pub kick: u64,
    pub call: u64,
}

/// See the top of this file.
#[derive(Default)]
pub struct Queue {
    pub setup: Setup,
    /// While it runs.
    pub vring: Option<Vring>,
    pub enabled: bool,
    /// Heads that an engine before this one, or this one before the ring was stopped, has taken and
    /// not answered.
    pub again: VecDeque<u16>,
    pub held: Option<Held>,
    pub incoming: Option<Incoming>,
    /// Requests in the exchange.
    pub jobs: usize,
    /// There may be something to take.
    pub due: bool,
    /// There was more than is taken in one go.
    pub pressed: bool,
    /// Something was put back since the driver was called.
    pub answered: bool,
    /// The queue's driver broke the rules: the queue is not used until it is started anew.
    pub broken: bool,
    /// Position in the available ring that the front-end was told when it stopped the ring.
    pub told_base: u16,
    kick: Option<Fd>,
    call: Option<Fd>,
    kick_op: Option<OpHandle>,
    call_op: Option<OpHandle>,
    back_op: Option<OpHandle>,
    /// The driver must be called.
    owed: bool,
    counter: Option<BufMut>,
}

impl Queue {
    pub fn set_kick(&mut self, ring: &mut Ring, file: Option<OwnedFd>) {
        for op in self.kick_op.take().into_iter().chain(self.back_op.take()) {
            ring.cancel(op);
        }
        self.kick = file.map(Fd::new);
    }

    pub fn set_call(&mut self, ring: &mut Ring, file: Option<OwnedFd>) {
        if let Some(op) = self.call_op.take() {
            ring.cancel(op);
            // Once too often does no harm.
            self.owed = true;
        }
        self.call = file.map(Fd::new);
    }

    /// Waits for a kick, if it does not; the number of operations that this makes.
    pub fn listen(&mut self, ring: &mut Ring, tags: QueueTags) -> usize {
        match &self.kick {
            Some(fd) if self.kick_op.is_none() && !self.broken => {
                let op = Op::Readable { fd: Arc::clone(fd) };
                self.kick_op = Some(ring.submit(Owner::Frontend, tags.kick, op));
                1
            }
            _ => 0,
        }
    }

    /// An operation on a kick file has ended; the number of operations that follow.
    pub fn kicked(&mut self, ring: &mut Ring, tags: QueueTags, pool: &BufferPool, op: Op) -> usize {
        let fd = match &op {
            Op::Readable { fd } | Op::Read { fd, .. } => Arc::clone(fd),
            op => unreachable!("no {op:?} is made for a kick"),
        };
        if let Op::Read { buffer, .. } = op {
            self.counter = Some(buffer);
            if self.is_kick(&fd) {
                self.kick_op = None;
                self.due = true;
            }
            return 0;
        }
        if !self.is_kick(&fd) {
            return 0;
        }
        self.due = true;
        let buffer = self.counter.take().unwrap_or_else(|| pool.get(COUNTER_BYTES));
        let op = Op::Read { fd, offset: STREAM_OFFSET, buffer, at: 0, len: COUNTER_BYTES };
        self.kick_op = Some(ring.submit(Owner::Frontend, tags.kick, op));
        1
    }

    fn is_kick(&self, fd: &Fd) -> bool {
        self.kick.as_ref().is_some_and(|kick| Arc::ptr_eq(kick, fd))
    }

    /// The driver must be called.
    pub fn owe(&mut self) {
        self.owed = true;
    }

    /// Calls the driver, if it must be and can be; the number of operations that this makes.
    pub fn call(&mut self, ring: &mut Ring, tags: QueueTags) -> usize {
        match &self.call {
            Some(fd) if self.owed && self.call_op.is_none() => {
                self.owed = false;
                self.call_op = Some(ring.submit(Owner::Frontend, tags.call, add_one(fd)));
                1
            }
            _ => 0,
        }
    }

    /// Comes back to this queue after the others, as if it had been kicked; the number of
    /// operations that this makes.
    pub fn come_back(&mut self, ring: &mut Ring, tags: QueueTags) -> usize {
        match &self.kick {
            Some(fd) if self.back_op.is_none() => {
                self.back_op = Some(ring.submit(Owner::Frontend, tags.call, add_one(fd)));
                1
            }
            _ => 0,
        }
    }

    /// A call has been made, or a kick of our own.
    pub fn called(&mut self, op: &Op) {
        let Op::Write { fd, .. } = op else { unreachable!("no {op:?} is made for a call") };
        if self.call.as_ref().is_some_and(|call| Arc::ptr_eq(call, fd)) {
            self.call_op = None;
        } else if self.is_kick(fd) {
            self.back_op = None;
        }
    }

    /// Lets go of the files; what is under way on the ring ends soon.
    pub fn close(&mut self, ring: &mut Ring) {
        self.set_kick(ring, None);
        self.set_call(ring, None);
        self.vring = None;
        self.held = None;
        self.incoming = None;
        self.again.clear();
    }
}

fn add_one(fd: &Fd) -> Op {
    let pieces = VecDeque::from([Bytes::from_static(&ONE)]);
    Op::Write { fd: Arc::clone(fd), offset: STREAM_OFFSET, pieces, durable: false }
}

/// Whether a file is an eventfd: of others a read or a write could do anything.
pub fn is_eventfd(file: &OwnedFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}
