//! Volumes as ublk devices, `/dev/ublkbN`: the kernel's block layer on one side, the shard's ring
//! on the other, and nothing between them.
//!
//! Every volume has a device with one queue, because one shard serves it. For each tag of the queue
//! a command waits in the kernel. It completes when a request has come; answering the request gives
//! the tag back and waits for the next one, in the same command (`COMMIT_AND_FETCH_REQ`). A tag is
//! always in one of these states:
//!
//! ```text
//!   Fetching ── request ──▶ Outstanding ── complete, fail_all ──▶ Fetching        (refused requests go back at once)
//!      └──── device stopped ────▶ Ended ◀──── device stopped ─────┘  (seen when the commit comes back)
//! ```
//!
//! Guarantees:
//! - Every request gets one answer; what leaves here lies in its volume, in whole blocks.
//! - The payload of a write is copied out of the kernel once, into an engine-owned buffer of its
//!   own size, before the request leaves here. What a caller does to its memory afterwards changes
//!   nothing.
//! - An engine that dies answers nothing. The kernel keeps the device with all its requests,
//!   answered ones excepted, and the next engine of this node either takes them over or fails them:
//!   see [`mainstay_devices::ublk_device`].
//!
//! Payloads go by read and write on the queue's file (`UBLK_F_USER_COPY`) and not through a buffer
//! per tag, into which the kernel would copy by itself. That costs a system call per request that
//! has a payload. It saves memory of the largest request's size for each tag, a second copy of
//! small writes (which must not keep such a buffer while the journal holds them), and a second copy
//! of every read.

use super::{
    Errno, Frontend, FrontendId, FrontendOp, FrontendParts, FrontendRequest, FrontendResult, Opened, kind_of,
    ring_tag,
};
use crate::buffer::Stretch;
use crate::devices::Attachment;
use crate::ring::{Completion, Fd, Op, Owner, Ring};
use bytes::Bytes;
use mainstay_devices::ublk::Channel;
use mainstay_devices::ublk::abi::{self, Descriptor};
use mainstay_devices::ublk_device::UblkPlan;
use mainstay_types::{BLOCK_BYTES, Epoch, REQUEST_BYTES_MAX, ResourceId, VOLUMES_MAX, VolumeId};
use std::sync::Arc;

/// Requests that the kernel has outstanding on one volume at most.
pub const DEPTH: u16 = super::BACKGROUND_MAX;
const _: () = assert!(DEPTH <= abi::QUEUE_DEPTH_MAX);

/// The kind of a ring tag is the number of the volume.
const _: () = assert!(VOLUMES_MAX <= 1 << super::TAG_KIND_BITS);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tag {
    Fetching,
    /// `bytes`: how many bytes the answer reports as moved.
    Outstanding {
        bytes: u32,
        read: bool,
    },
    Ended,
}

/// One volume.
struct Line {
    bytes: u64,
    /// `None` before the device thread has opened it, and after the last command has come back.
    channel: Option<Channel>,
    tags: Vec<Tag>,
}

/// The devices of one resource.
pub struct UblkFrontend {
    id: FrontendId,
    resource: ResourceId,
    epoch: Epoch,
    lines: Vec<Line>,
    payloads: Stretch,
    fenced: Option<Errno>,
    detached: bool,
}

impl UblkFrontend {
    #[must_use]
    pub fn new(parts: &FrontendParts<'_>) -> Self {
        let line = |bytes: &u64| Line { bytes: *bytes, channel: None, tags: Vec::new() };
        Self {
            id: parts.id,
            resource: parts.resource,
            // Devices that a client leaves are given up before the next client opens, and by every
            // record of an epoch.
            epoch: parts.epoch.unwrap_or_default(),
            lines: parts.volumes.iter().map(line).collect(),
            payloads: Stretch::new(parts.pool.clone()),
            fenced: None,
            detached: false,
        }
    }

    fn submit(&self, ring: &mut Ring, volume: usize, fd: Fd, code: u32, tag: u16, result: i32) {
        let op = Op::Command { fd, code, bytes: abi::io_command(0, tag, result) };
        ring.submit(Owner::Frontend, ring_tag(self.id, volume as u8), op);
    }

    /// Answers a request and waits for the next one of its tag.
    fn commit(&mut self, ring: &mut Ring, volume: usize, tag: u16, result: i32) {
        let line = &mut self.lines[volume];
        let Some(channel) = &line.channel else { return };
        let fd = Arc::clone(&channel.fd);
        line.tags[usize::from(tag)] = Tag::Fetching;
        self.submit(ring, volume, fd, abi::COMMIT_AND_FETCH_REQ, tag, result);
    }

    /// A command has come back with a request.
    fn arrived(&mut self, volume: usize, tag: u16) -> Result<FrontendRequest, Errno> {
        let line = &mut self.lines[volume];
        let channel = line.channel.as_ref().ok_or(libc::EIO)?;
        let descriptor = channel.request(tag);
        if let Some(errno) = self.fenced {
            return Err(errno);
        }
        let form = Form::of(&descriptor, line.bytes)?;
        let (op, bytes) = match form {
            Form::Read { offset, len } => (FrontendOp::Read { offset, len }, len),
            Form::Write { offset, len } => {
                let mut buffer = self.payloads.get(len as usize);
                channel.read_payload(tag, &mut buffer.as_mut_slice()[..len as usize]).map_err(|error| {
                    // The device was stopped at this moment; its user does not get the answer.
                    tracing::warn!(resource = %self.resource, volume, tag, %error, "cannot copy a payload");
                    libc::EIO
                })?;
                (FrontendOp::Write { offset, payload: buffer.freeze(len as usize) }, len)
            }
            Form::Discard { offset, len } => (FrontendOp::Discard { offset, len }, 0),
            Form::WriteZeroes { offset, len } => (FrontendOp::WriteZeroes { offset, len }, 0),
            Form::Flush => (FrontendOp::Flush, 0),
        };
        let read = matches!(op, FrontendOp::Read { .. });
        line.tags[usize::from(tag)] = Tag::Outstanding { bytes: bytes as u32, read };
        Ok(FrontendRequest { tag: request_tag(volume, tag), volume: VolumeId(volume as u16), op })
    }

    /// A command has come back for good.
    fn ended(&mut self, volume: usize, tag: u16) {
        let line = &mut self.lines[volume];
        line.tags[usize::from(tag)] = Tag::Ended;
        if line.tags.iter().all(|tag| *tag == Tag::Ended) {
            line.channel = None;
        }
    }
}

/// The tag of a [`FrontendRequest`].
fn request_tag(volume: usize, tag: u16) -> u64 {
    (volume as u64) << 16 | u64::from(tag)
}

/// A request as it may leave here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Read { offset: u64, len: u64 },
    Write { offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64 },
    Flush,
}

impl Form {
    /// Decodes the request of a descriptor, for a volume of `volume_bytes` bytes.
    ///
    /// # Errors
    /// The error number for a request that is refused.
    fn of(descriptor: &Descriptor, volume_bytes: u64) -> Result<Self, Errno> {
        if descriptor.op == abi::OP_FLUSH {
            return Ok(Self::Flush);
        }
        let len = u64::from(descriptor.sectors) * abi::SECTOR_BYTES;
        let offset = descriptor.start_sector.checked_mul(abi::SECTOR_BYTES).ok_or(libc::EINVAL)?;
        let end = offset.checked_add(len).ok_or(libc::EINVAL)?;
        let whole = offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES);
        if len == 0 || !whole || end > volume_bytes {
            return Err(libc::EINVAL);
        }
        let short = if len <= REQUEST_BYTES_MAX { Ok(()) } else { Err(libc::EINVAL) };
        // Four GiB less a sector are the most that a descriptor can state, so the others need no
        // limit of their own.
        match descriptor.op {
            abi::OP_READ => short.map(|()| Self::Read { offset, len }),
            abi::OP_WRITE => short.map(|()| Self::Write { offset, len }),
            // Zeroes that need not keep their space are a discard: that reads as zeroes here (R15).
            abi::OP_WRITE_ZEROES if descriptor.keep => Ok(Self::WriteZeroes { offset, len }),
            abi::OP_DISCARD | abi::OP_WRITE_ZEROES => Ok(Self::Discard { offset, len }),
            _ => Err(libc::EOPNOTSUPP),
        }
    }
}

/// Copies what a read has found into the kernel; the number of bytes, or an error number.
fn give(channel: &Channel, tag: u16, bytes: u32, pieces: &[Bytes]) -> i32 {
    let found: usize = pieces.iter().map(Bytes::len).sum();
    assert!(found == bytes as usize, "{found} bytes for a read of {bytes}");
    let mut at = 0;
    for piece in pieces {
        if let Err(error) = channel.write_payload(tag, at, piece) {
            tracing::warn!(tag, %error, "cannot copy what was read");
            return -libc::EIO;
        }
        at += piece.len() as u64;
    }
    bytes as i32
}

impl Frontend for UblkFrontend {
    fn id(&self) -> FrontendId {
        self.id
    }

    /// The device thread comes first: it makes the queue that requests come from.
    fn start(&mut self, _ring: &mut Ring) {}

    fn attachment(&self, volume: VolumeId) -> Attachment {
        let bytes = self.lines[usize::from(volume.0)].bytes;
        Attachment::Ublk(UblkPlan { resource: self.resource, volume, bytes, epoch: self.epoch, depth: DEPTH })
    }

    fn opened(&mut self, ring: &mut Ring, volume: VolumeId, opened: Opened) {
        let Opened::Ublk(channel) = opened;
        let volume = usize::from(volume.0);
        let (fd, depth) = (Arc::clone(&channel.fd), channel.depth);
        let line = &mut self.lines[volume];
        line.tags = vec![Tag::Fetching; usize::from(depth)];
        line.channel = Some(channel);
        for tag in 0..depth {
            self.submit(ring, volume, Arc::clone(&fd), abi::FETCH_REQ, tag, 0);
        }
    }

    fn completed(&mut self, ring: &mut Ring, completion: Completion, requests: &mut Vec<FrontendRequest>) {
        let Completion { tag, result, op, .. } = completion;
        let volume = usize::from(kind_of(tag));
        let Op::Command { bytes, .. } = op else { unreachable!("nothing else is submitted: {op:?}") };
        let tag = abi::io_command_tag(&bytes);
        match result {
            Ok(0) => match self.arrived(volume, tag) {
                Ok(request) => requests.push(request),
                Err(errno) => self.commit(ring, volume, tag, -errno),
            },
            Ok(code) => {
                tracing::error!(resource = %self.resource, volume, tag, code, "a ublk command asks for something unknown");
                self.ended(volume, tag);
            }
            Err(error) => {
                if error.raw_os_error() != Some(abi::RES_ABORT) {
                    tracing::error!(resource = %self.resource, volume, tag, %error, "a ublk command was refused");
                }
                self.ended(volume, tag);
            }
        }
    }

    fn complete(&mut self, ring: &mut Ring, tag: u64, result: FrontendResult) {
        let (volume, tag) = ((tag >> 16) as usize, tag as u16);
        let Some(line) = self.lines.get(volume) else { return };
        let Some(Tag::Outstanding { bytes, read }) = line.tags.get(usize::from(tag)).copied() else { return };
        let code = match (result, &line.channel) {
            (Ok(pieces), Some(channel)) if read => give(channel, tag, bytes, &pieces),
            (Ok(_), _) => bytes as i32,
            (Err(errno), _) => -errno,
        };
        self.commit(ring, volume, tag, code);
    }

    fn fail_all(&mut self, ring: &mut Ring, errno: Errno) {
        self.fenced = Some(errno);
        for volume in 0..self.lines.len() {
            for tag in 0..self.lines[volume].tags.len() as u16 {
                if matches!(self.lines[volume].tags[usize::from(tag)], Tag::Outstanding { .. }) {
                    self.commit(ring, volume, tag, -errno);
                }
            }
        }
    }

    /// The device thread has stopped the devices before, which ended all commands.
    fn resized(&mut self, volume: VolumeId, bytes: u64) {
        if let Some(line) = self.lines.get_mut(usize::from(volume.0)) {
            line.bytes = bytes;
        }
    }

    fn detach(&mut self) {
        self.detached = true;
    }

    fn is_closed(&self) -> bool {
        self.detached && self.lines.iter().all(|line| line.channel.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: u64 = 64 << 20;

    fn flagged(op: u8, keep: bool, start_sector: u64, sectors: u32) -> Result<Form, Errno> {
        Form::of(&Descriptor { op, keep, sectors, start_sector }, VOLUME)
    }

    fn form(op: u8, start_sector: u64, sectors: u32) -> Result<Form, Errno> {
        flagged(op, false, start_sector, sectors)
    }

    #[test]
    fn ublk_requests_are_decoded_by_their_operation() {
        assert_eq!(form(abi::OP_READ, 8, 16), Ok(Form::Read { offset: 4096, len: 8192 }));
        assert_eq!(form(abi::OP_WRITE, 0, 2048), Ok(Form::Write { offset: 0, len: 1 << 20 }));
        assert_eq!(form(abi::OP_FLUSH, 0, 0), Ok(Form::Flush));
        let all = VOLUME / abi::SECTOR_BYTES;
        assert_eq!(form(abi::OP_DISCARD, 0, all as u32), Ok(Form::Discard { offset: 0, len: VOLUME }));
        let (offset, len) = (VOLUME - 4096, 4096);
        assert_eq!(flagged(abi::OP_WRITE_ZEROES, true, all - 8, 8), Ok(Form::WriteZeroes { offset, len }));
        assert_eq!(flagged(abi::OP_WRITE_ZEROES, false, all - 8, 8), Ok(Form::Discard { offset, len }));
    }

    /// R25: whatever a descriptor says, nothing leaves that is not in the volume, in whole blocks,
    /// within the limits.
    #[test]
    fn impossible_requests_are_refused() {
        let refused = [
            form(abi::OP_READ, 1, 8),
            form(abi::OP_READ, 0, 7),
            form(abi::OP_READ, 0, 0),
            form(abi::OP_WRITE, 0, 2056),
            form(abi::OP_WRITE, VOLUME / abi::SECTOR_BYTES, 8),
            form(abi::OP_DISCARD, u64::MAX / 512, 8),
            form(abi::OP_WRITE_ZEROES, u64::MAX, u32::MAX),
        ];
        assert!(refused.iter().all(|form| *form == Err(libc::EINVAL)), "{refused:?}");
        assert_eq!(form(13, 0, 8), Err(libc::EOPNOTSUPP));
    }
}
