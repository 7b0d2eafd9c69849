//! Operations, and how they are described to the kernel.

use super::{Fd, PIECES_MAX, STREAM_OFFSET, Slot};
use crate::buffer::BufMut;
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

/// An operation together with everything that must live until it has completed.
#[derive(Debug)]
pub enum Op {
    /// Reads into `buffer[at..at + len]`.
    Read {
        fd: Fd,
        offset: u64,
        buffer: BufMut,
        at: usize,
        len: usize,
    },
    /// Writes the pieces one after the other. `durable`: complete only when on stable storage
    /// (RWF_DSYNC).
    Write {
        fd: Fd,
        offset: u64,
        pieces: VecDeque<Bytes>,
        durable: bool,
    },
    /// fdatasync.
    Sync {
        fd: Fd,
    },
    /// fallocate with the given mode bits.
    Allocate {
        fd: Fd,
        mode: i32,
        offset: u64,
        len: u64,
    },
    /// Takes one connection; it is in `accepted` when the operation has succeeded.
    Accept {
        listener: Fd,
        accepted: Option<OwnedFd>,
    },
    Connect {
        socket: Fd,
        to: Box<socket2::SockAddr>,
    },
    /// Receives into `buffer[at..at + len]`. `whole`: complete only when `len` bytes have come, or
    /// the stream ended.
    Receive {
        socket: Fd,
        buffer: BufMut,
        at: usize,
        len: usize,
        whole: bool,
    },
    /// Receives into the places one after the other. `whole` as for [`Op::Receive`].
    Scatter {
        socket: Fd,
        /// Holds the places that have no buffer of their own.
        staging: BufMut,
        places: Vec<Place>,
        whole: bool,
    },
    /// Sends the pieces one after the other. The kernel goes on after a short send, but may still
    /// end short.
    Send {
        socket: Fd,
        pieces: VecDeque<Bytes>,
    },
    /// Completes once the descriptor can be read.
    Readable {
        fd: Fd,
    },
    /// A command that the descriptor's driver understands, with 16 bytes of its own. Not a part of
    /// what a ring needs: the frontend that uses it has asked whether its driver is there.
    Command {
        fd: Fd,
        code: u32,
        bytes: [u8; 16],
    },
}

impl Op {
    /// Whether it ends when something has come, and not when something is done.
    pub(super) fn brings(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::Receive { .. }
            | Self::Scatter { .. }
            | Self::Readable { .. }
            | Self::Command { .. } => true,
            Self::Write { .. }
            | Self::Sync { .. }
            | Self::Allocate { .. }
            | Self::Accept { .. }
            | Self::Connect { .. }
            | Self::Send { .. } => false,
        }
    }

    /// Whether a disk is to write, flush or allocate. No other party begins anything with that, as
    /// a peer does with a message and a device's user with an answer.
    pub(super) fn changes_a_disk(&self) -> bool {
        match self {
            Self::Write { offset, .. } => *offset != STREAM_OFFSET,
            Self::Sync { .. } | Self::Allocate { .. } => true,
            _ => false,
        }
    }
}

/// `len` bytes at `at` of a buffer, or of the staging buffer.
#[derive(Debug)]
pub struct Place {
    pub buffer: Option<BufMut>,
    pub at: usize,
    pub len: usize,
}

impl Slot {
    /// Takes the operation in and describes it to the kernel. All pointers lead to memory that
    /// stays where it is while `self` stays boxed: heap memory of buffers and pieces,
    /// `self.iovecs`, `self.message`.
    pub(super) fn prepare(&mut self, op: Op) -> squeue::Entry {
        let Self { iovecs, message, .. } = self;
        let op = self.op.insert(op);
        match op {
            Op::Read { fd, offset, buffer, at, len } => {
                let start = buffer.as_mut_slice()[*at..].as_mut_ptr();
                opcode::Read::new(raw(fd), start, *len as u32).offset(*offset).build()
            }
            Op::Write { fd, offset, pieces, durable } => {
                gather(iovecs, pieces);
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(raw(fd), iovecs.as_ptr(), iovecs.len() as u32)
                    .offset(*offset)
                    .rw_flags(flags)
                    .build()
            }
            Op::Sync { fd } => opcode::Fsync::new(raw(fd)).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Allocate { fd, mode, offset, len } => {
                opcode::Fallocate::new(raw(fd), *len).offset(*offset).mode(*mode).build()
            }
            Op::Accept { listener, .. } => {
                opcode::Accept::new(raw(listener), std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Op::Connect { socket, to } => {
                opcode::Connect::new(raw(socket), to.as_ptr().cast(), to.len()).build()
            }
            Op::Receive { socket, buffer, at, len, whole } => {
                let start = buffer.as_mut_slice()[*at..].as_mut_ptr();
                let flags = if *whole { libc::MSG_WAITALL } else { 0 };
                opcode::Recv::new(raw(socket), start, *len as u32).flags(flags).build()
            }
            Op::Scatter { socket, staging, places, whole } => {
                iovecs.clear();
                iovecs.extend(places.iter_mut().map(|Place { buffer, at, len }| libc::iovec {
                    iov_base: buffer.as_mut().unwrap_or(staging).as_mut_slice()[*at..].as_mut_ptr().cast(),
                    iov_len: *len,
                }));
                message.msg_iov = iovecs.as_mut_ptr();
                message.msg_iovlen = iovecs.len();
                let flags = if *whole { libc::MSG_WAITALL as u32 } else { 0 };
                opcode::RecvMsg::new(raw(socket), &raw mut *message).flags(flags).build()
            }
            Op::Send { socket, pieces } => {
                gather(iovecs, pieces);
                message.msg_iov = iovecs.as_mut_ptr();
                message.msg_iovlen = iovecs.len();
                let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
                opcode::SendMsg::new(raw(socket), &raw const *message).flags(flags).build()
            }
            Op::Readable { fd } => opcode::PollAdd::new(raw(fd), libc::POLLIN as u32).build(),
            Op::Command { fd, code, bytes } => opcode::UringCmd16::new(raw(fd), *code).cmd(*bytes).build(),
        }
    }
}

fn raw(fd: &Fd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn gather(iovecs: &mut Vec<libc::iovec>, pieces: &VecDeque<Bytes>) {
    iovecs.clear();
    iovecs.extend(pieces.iter().take(PIECES_MAX).map(|piece| libc::iovec {
        // The kernel only reads through this pointer.
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    }));
}

/// Takes the first `bytes` off the front of `pieces`; for an operation that has completed short.
///
/// # Panics
/// When there are fewer.
pub fn advance(pieces: &mut VecDeque<Bytes>, mut bytes: usize) {
    while bytes > 0 {
        let front = pieces.front_mut().expect("the kernel moves no more bytes than it was given");
        if front.len() > bytes {
            let _ = front.split_to(bytes);
            return;
        }
        bytes -= front.len();
        pieces.pop_front();
    }
}
