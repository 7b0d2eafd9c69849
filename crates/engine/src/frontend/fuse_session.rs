//! One FUSE connection as a state machine: messages of the kernel in, replies and requests out.
//!
//! Guarantees:
//! - Every request of the kernel that expects an answer gets exactly one.
//! - A request that leaves here lies within its volume, in whole blocks.
//! - Whatever the kernel sends, it neither panics nor allocates more than one reply (R25).
//!
//! The file system is one directory with the files `0`, `1`, … of fixed sizes; no file can be
//! created, removed or resized.
//!
//! It does no I/O of its own: [`super::fuse`] does.

use super::fuse_abi as abi;
use super::fuse_abi::{Attr, FallocateIn, InHeader, InitIn, InitOut, Reply, TransferIn};
use super::{Errno, FrontendOp, FrontendRequest, FrontendResult};
use crate::buffer::{BufMut, BufferPool, Stretch};
use bytes::{Bytes, BytesMut};
use mainstay_types::{BLOCK_BYTES, REQUEST_BYTES_MAX, VolumeId};
use std::collections::{BTreeMap, VecDeque};

/// Where the payload of a WRITE lands in a read buffer: at a block, so that it can go to disk as it
/// is.
pub const PAYLOAD_AT: usize = BLOCK_BYTES as usize;
/// Where a message starts in a read buffer.
pub const MESSAGE_AT: usize = PAYLOAD_AT - abi::WRITE_PREFIX_BYTES;
/// Longest message: a WRITE of the largest payload. The kernel insists on room for exactly that.
pub const MESSAGE_BYTES_MAX: usize = abi::WRITE_PREFIX_BYTES + REQUEST_BYTES_MAX as usize;

/// A payload of at least this length is handed on where it was received, and the next message comes
/// behind it. A shorter one is copied out, because a payload that stays in memory keeps everything
/// that was received into the same [`LANDING_BYTES`].
pub const COPY_BREAK_BYTES: usize = 64 << 10;
/// How much memory is taken at once to receive into. The loop device divides long writes into
/// payloads of 448 KiB, of which seven lie there one behind the other.
pub const LANDING_BYTES: usize = 4 << 20;
const _: () = assert!(LANDING_BYTES >= 2 * (MESSAGE_AT + MESSAGE_BYTES_MAX));

/// Requests that the kernel may have in the background (direct I/O of the loop device is) at once.
const MAX_BACKGROUND: u16 = super::BACKGROUND_MAX;
/// Attributes never change, so the kernel may remember them for an hour.
const VALID_S: u64 = 3600;
/// How much memory for the heads of replies is taken at once.
const SPACE_BYTES: usize = 4 << 10;
const DISCARD_BYTES_MAX: u64 = (u32::MAX as u64 + 1) - BLOCK_BYTES;

/// Result of one message of the kernel.
#[derive(Debug)]
pub enum Outcome {
    /// The message expects no answer.
    Silent,
    /// A reply, to be written to the connection as one write.
    Reply(VecDeque<Bytes>),
    /// A request, to be answered later through [`Session::complete`].
    Request(FrontendRequest),
}

#[derive(Clone, Copy, Debug)]
enum Outstanding {
    Read {
        len: u64,
    },
    Write {
        len: u32,
    },
    /// Discard, write-zeroes, flush: the reply has no body.
    Other,
}

/// Treatment of flushes. After each commit of a database a flush costs a round trip through the
/// kernel, two wake-ups and a turn of the shard. Where every answered write is durable, a flush
/// adds nothing: then the first flush after a write is answered with ENOSYS. The kernel takes that
/// for success, and never asks this connection again. (The loop driver flushes when it is attached:
/// nothing has been written by then.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flushes {
    /// No flush was refused yet. The next one after a write will be.
    NotNeeded,
    /// Flushes are requests to the resource.
    Needed,
    /// A flush was refused, so the kernel sends no more.
    Refused,
}

pub struct Session {
    /// Bytes of each volume.
    volumes: Vec<u64>,
    payloads: Stretch,
    outstanding: BTreeMap<u64, Outstanding>,
    /// Set for good by [`fail_all`](Self::fail_all).
    fenced: Option<Errno>,
    flushes: Flushes,
    /// Something was written since the beginning.
    written: bool,
    /// Memory for replies, used again when what was in it has left; and lists of pieces that are
    /// not in use.
    space: BytesMut,
    lists: Vec<VecDeque<Bytes>>,
}

impl Session {
    pub fn new(volumes: Vec<u64>, pool: BufferPool) -> Self {
        Self {
            volumes,
            payloads: Stretch::new(pool),
            outstanding: BTreeMap::new(),
            fenced: None,
            flushes: Flushes::NotNeeded,
            written: false,
            space: BytesMut::new(),
            lists: Vec::new(),
        }
    }

    /// Goes on with the connection of a session that has answered everything. `flushes_refused`:
    /// the kernel sends no flushes any more.
    pub fn going_on(volumes: Vec<u64>, pool: BufferPool, flushes_refused: bool) -> Self {
        let flushes = if flushes_refused { Flushes::Refused } else { Flushes::NotNeeded };
        Self { flushes, written: true, ..Self::new(volumes, pool) }
    }

    /// Whether the kernel sends no flushes any more.
    pub fn flushes_refused(&self) -> bool {
        self.flushes == Flushes::Refused
    }

    /// A volume has this size from now on.
    pub fn resized(&mut self, volume: VolumeId, bytes: u64) {
        if let Some(size) = self.volumes.get_mut(usize::from(volume.0)) {
            *size = bytes;
        }
    }

    /// See [`Frontend::flushes`](super::Frontend::flushes).
    pub fn flushes(&mut self, needed: bool) -> bool {
        if needed && self.flushes == Flushes::NotNeeded {
            self.flushes = Flushes::Needed;
        }
        self.flushes == Flushes::Needed
    }

    /// Requests that are not answered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Takes the message of `len` bytes at [`MESSAGE_AT`] in `buffer`. Gives the buffer back, or
    /// what is left of it after a payload that went into the request. `None`: the next message
    /// might not fit.
    pub fn received(&mut self, buffer: BufMut, len: usize) -> (Option<BufMut>, Outcome) {
        let end = MESSAGE_AT.saturating_add(len);
        let Some(message) = buffer.as_slice().get(MESSAGE_AT..end) else {
            return (Some(buffer), Outcome::Silent);
        };
        let Some(header) = InHeader::decode(message) else {
            tracing::error!(len, "the kernel sent a FUSE message without a header");
            return (Some(buffer), Outcome::Silent);
        };
        if header.len as usize != message.len() {
            tracing::error!(
                len,
                header.len,
                header.opcode,
                "the kernel sent a FUSE message of another length"
            );
            return (Some(buffer), error(header.unique, libc::EIO));
        }
        let body = &message[abi::IN_HEADER_BYTES..];
        if header.opcode != abi::WRITE {
            let outcome = self.message(&header, body);
            return (Some(buffer), outcome);
        }
        match self.write(&header, body) {
            Err(errno) => (Some(buffer), error(header.unique, errno)),
            Ok((volume, offset, size)) => {
                self.outstanding.insert(header.unique, Outstanding::Write { len: size as u32 });
                self.written = true;
                let (buffer, payload) = if size >= COPY_BREAK_BYTES {
                    // Whole blocks, as `write` has seen.
                    let (front, rest) = buffer.split_front(PAYLOAD_AT + size);
                    let rest = rest.filter(|rest| rest.capacity() >= MESSAGE_AT + MESSAGE_BYTES_MAX);
                    (rest, front.slice(PAYLOAD_AT..))
                } else {
                    let payload = self.payloads.copy_of(&buffer.as_slice()[PAYLOAD_AT..PAYLOAD_AT + size]);
                    (Some(buffer), payload)
                };
                let op = FrontendOp::Write { offset, payload };
                (buffer, Outcome::Request(FrontendRequest { tag: header.unique, volume, op }))
            }
        }
    }

    /// The reply to an outstanding request; `None` when there is no such request.
    ///
    /// # Panics
    /// When a read is not answered with as many bytes as were asked for.
    pub fn complete(&mut self, tag: u64, result: FrontendResult) -> Option<VecDeque<Bytes>> {
        let outstanding = self.outstanding.remove(&tag)?;
        let pieces = match result {
            Ok(pieces) => pieces,
            Err(errno) => return Some(one(Reply::with_error(tag, errno))),
        };
        let mut space = std::mem::take(&mut self.space);
        if space.capacity() < abi::OUT_PREFIX_BYTES_MAX {
            space.reserve(SPACE_BYTES);
        }
        let head = Reply::within(space, tag, 0);
        let (head, found) = match outstanding {
            Outstanding::Read { len } => {
                let found: usize = pieces.iter().map(Bytes::len).sum();
                assert!(found as u64 == len, "{found} bytes for a read of {len}");
                (head, found)
            }
            Outstanding::Write { len } => (head.u32(len).u32(0), 0),
            Outstanding::Other => (head, 0),
        };
        let mut reply = self.lists.pop().unwrap_or_default();
        let (head, space) = head.split(found);
        self.space = space;
        reply.push_back(head);
        reply.extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        Some(reply)
    }

    /// Takes the list of a reply that has been written, to use it again.
    pub fn give_back(&mut self, mut list: VecDeque<Bytes>) {
        if self.lists.len() < usize::from(MAX_BACKGROUND) {
            list.clear();
            self.lists.push(list);
        }
    }

    /// Replies with `errno` to everything outstanding, and from now on to every request at once.
    pub fn fail_all(&mut self, errno: Errno) -> Vec<VecDeque<Bytes>> {
        self.fenced = Some(errno);
        let outstanding = std::mem::take(&mut self.outstanding);
        outstanding.into_keys().map(|tag| one(Reply::with_error(tag, errno))).collect()
    }

    /// Forgets all requests: the connection is gone, and takes no answers any more.
    pub fn forget_all(&mut self) {
        self.outstanding.clear();
    }

    /// Everything but WRITE.
    fn message(&mut self, header: &InHeader, body: &[u8]) -> Outcome {
        let unique = header.unique;
        let answer = match header.opcode {
            // These expect no answer. An interrupt would ask to give up a request; requests are
            // bounded in time as it is (R20), and a write that is under way cannot be taken back.
            abi::FORGET | abi::BATCH_FORGET | abi::INTERRUPT => return Outcome::Silent,
            abi::INIT => init(unique, body),
            abi::LOOKUP => self.lookup(header, body),
            abi::GETATTR => self.attr_reply(unique, header.node),
            abi::SETATTR => self.setattr(header, body),
            abi::OPEN => self.volume_size(header.node).map(|_| {
                let flags = abi::OPEN_DIRECT_IO | abi::OPEN_NOFLUSH | abi::OPEN_PARALLEL_DIRECT_WRITES;
                Reply::new(unique).u64(0).u32(flags).u32(0)
            }),
            abi::OPENDIR if header.node == abi::ROOT_NODE => Ok(Reply::new(unique).u64(0).u32(0).u32(0)),
            abi::OPENDIR => Err(libc::ENOTDIR),
            abi::READDIR => self.readdir(header, body),
            abi::STATFS => Ok(self.statfs(unique)),
            abi::FLUSH | abi::RELEASE | abi::RELEASEDIR | abi::DESTROY => Ok(Reply::new(unique)),
            abi::READ | abi::FSYNC | abi::FALLOCATE => {
                let request = match header.opcode {
                    abi::READ => self.read(header, body),
                    abi::FSYNC => self.flush(header),
                    _ => self.fallocate(header, body),
                };
                return match request {
                    Ok(outcome) => outcome,
                    Err(errno) => error(unique, errno),
                };
            }
            _ => Err(libc::ENOSYS),
        };
        match answer {
            Ok(reply) => Outcome::Reply(one(reply)),
            Err(errno) => error(unique, errno),
        }
    }

    /// The volume behind a node, if new requests may be taken for it.
    fn volume(&self, header: &InHeader) -> Result<(VolumeId, u64), Errno> {
        let found = self.volume_size(header.node)?;
        if let Some(errno) = self.fenced {
            return Err(errno);
        }
        if self.outstanding.contains_key(&header.unique) {
            tracing::error!(header.unique, "the kernel used the number of an outstanding request");
            return Err(libc::EIO);
        }
        Ok(found)
    }

    fn volume_size(&self, node: u64) -> Result<(VolumeId, u64), Errno> {
        let volume = node.checked_sub(abi::ROOT_NODE + 1).ok_or(libc::EISDIR)?;
        let bytes = usize::try_from(volume).ok().and_then(|at| self.volumes.get(at)).ok_or(libc::ENOENT)?;
        // Bounded by the number of volumes, which is far below 65536.
        Ok((VolumeId(volume as u16), *bytes))
    }

    fn write(&self, header: &InHeader, body: &[u8]) -> Result<(VolumeId, u64, usize), Errno> {
        let TransferIn { offset, size } = TransferIn::decode(body).ok_or(libc::EINVAL)?;
        let (volume, bytes) = self.volume(header)?;
        let payload_len = body.len() - (abi::WRITE_PREFIX_BYTES - abi::IN_HEADER_BYTES);
        if size as usize != payload_len || u64::from(size) > REQUEST_BYTES_MAX {
            return Err(libc::EINVAL);
        }
        check_range(offset, size.into(), bytes)?;
        Ok((volume, offset, size as usize))
    }

    fn read(&mut self, header: &InHeader, body: &[u8]) -> Result<Outcome, Errno> {
        let TransferIn { offset, size } = TransferIn::decode(body).ok_or(libc::EINVAL)?;
        let (volume, bytes) = self.volume(header)?;
        // A read at or over the end of a file is shortened; that is not the frontend's opinion but
        // what read(2) promises.
        let len = u64::from(size).min(bytes.saturating_sub(offset));
        if len == 0 {
            return Ok(Outcome::Reply(one(Reply::new(header.unique))));
        }
        if len > REQUEST_BYTES_MAX {
            return Err(libc::EINVAL);
        }
        check_range(offset, len, bytes)?;
        self.outstanding.insert(header.unique, Outstanding::Read { len });
        let op = FrontendOp::Read { offset, len };
        Ok(Outcome::Request(FrontendRequest { tag: header.unique, volume, op }))
    }

    fn flush(&mut self, header: &InHeader) -> Result<Outcome, Errno> {
        let (volume, _) = self.volume(header)?;
        match self.flushes {
            Flushes::Needed => {}
            Flushes::NotNeeded if !self.written => {
                return Ok(Outcome::Reply(one(Reply::new(header.unique))));
            }
            Flushes::NotNeeded | Flushes::Refused => {
                self.flushes = Flushes::Refused;
                return Err(libc::ENOSYS);
            }
        }
        self.outstanding.insert(header.unique, Outstanding::Other);
        Ok(Outcome::Request(FrontendRequest { tag: header.unique, volume, op: FrontendOp::Flush }))
    }

    fn fallocate(&mut self, header: &InHeader, body: &[u8]) -> Result<Outcome, Errno> {
        let FallocateIn { offset, len, mode } = FallocateIn::decode(body).ok_or(libc::EINVAL)?;
        let (volume, bytes) = self.volume(header)?;
        let op = match i32::try_from(mode).map(|mode| mode & !libc::FALLOC_FL_KEEP_SIZE) {
            Ok(libc::FALLOC_FL_PUNCH_HOLE) => FrontendOp::Discard { offset, len },
            Ok(libc::FALLOC_FL_ZERO_RANGE) => FrontendOp::WriteZeroes { offset, len },
            _ => return Err(libc::EOPNOTSUPP),
        };
        check_range(offset, len, bytes)?;
        if len > DISCARD_BYTES_MAX {
            return Err(libc::EINVAL);
        }
        self.written = true;
        self.outstanding.insert(header.unique, Outstanding::Other);
        Ok(Outcome::Request(FrontendRequest { tag: header.unique, volume, op }))
    }

    fn attr(&self, node: u64) -> Result<Attr, Errno> {
        if node == abi::ROOT_NODE {
            let mode = libc::S_IFDIR | 0o500;
            return Ok(Attr { node, size: 0, mode, links: 2, block_bytes: BLOCK_BYTES as u32 });
        }
        let (_, size) = self.volume_size(node)?;
        Ok(Attr { node, size, mode: libc::S_IFREG | 0o600, links: 1, block_bytes: BLOCK_BYTES as u32 })
    }

    fn attr_reply(&self, unique: u64, node: u64) -> Result<Reply, Errno> {
        let attr = self.attr(node)?;
        Ok(Reply::new(unique).u64(VALID_S).u64(0).attr(&attr))
    }

    /// Changes of owner, mode or times are ignored: the file is a device's door, not data. Its size
    /// stays.
    fn setattr(&self, header: &InHeader, body: &[u8]) -> Result<Reply, Errno> {
        let size = abi::decode_setattr_size(body).ok_or(libc::EINVAL)?;
        let attr = self.attr(header.node)?;
        if size.is_some_and(|size| size != attr.size) {
            return Err(libc::EPERM);
        }
        self.attr_reply(header.unique, header.node)
    }

    fn lookup(&self, header: &InHeader, body: &[u8]) -> Result<Reply, Errno> {
        if header.node != abi::ROOT_NODE {
            return Err(libc::ENOTDIR);
        }
        let name = abi::decode_name(body).ok_or(libc::ENOENT)?;
        let volume = (0..self.volumes.len()).find(|volume| volume.to_string() == name).ok_or(libc::ENOENT)?;
        let attr = self.attr(abi::ROOT_NODE + 1 + volume as u64)?;
        // Generation 0; how long name and attributes stay valid, in seconds and nanoseconds.
        let reply = Reply::new(header.unique).u64(attr.node).u64(0);
        Ok(reply.u64(VALID_S).u64(VALID_S).u32(0).u32(0).attr(&attr))
    }

    fn readdir(&self, header: &InHeader, body: &[u8]) -> Result<Reply, Errno> {
        let TransferIn { offset, size } = TransferIn::decode(body).ok_or(libc::EINVAL)?;
        if header.node != abi::ROOT_NODE {
            return Err(libc::ENOTDIR);
        }
        let dots = [".", ".."].map(|name| (name.to_owned(), abi::ROOT_NODE, libc::DT_DIR));
        let files = (0..self.volumes.len() as u64)
            .map(|volume| (volume.to_string(), abi::ROOT_NODE + 1 + volume, libc::DT_REG));
        let mut reply = Reply::new(header.unique);
        let room = abi::OUT_HEADER_BYTES + size as usize;
        for (at, (name, node, kind)) in dots.into_iter().chain(files).enumerate() {
            if (at as u64) < offset {
                continue;
            }
            if reply.len() + abi::dirent_bytes(name.len()) > room {
                break;
            }
            reply = reply.dirent(node, at as u64 + 1, kind.into(), &name);
        }
        Ok(reply)
    }

    /// The loop driver takes the granularity of discards from the block size that is stated here.
    fn statfs(&self, unique: u64) -> Reply {
        let blocks = self.volumes.iter().sum::<u64>() / BLOCK_BYTES;
        let reply = Reply::new(unique).u64(blocks).u64(0).u64(0).u64(self.volumes.len() as u64).u64(0);
        reply.u32(BLOCK_BYTES as u32).u32(255).u32(BLOCK_BYTES as u32).zeroes(28)
    }
}

fn init(unique: u64, body: &[u8]) -> Result<Reply, Errno> {
    let kernel = InitIn::decode(body).ok_or(libc::EINVAL)?;
    if kernel.major < abi::KERNEL_VERSION
        || (kernel.major == abi::KERNEL_VERSION && kernel.minor < abi::MINOR_MIN)
    {
        tracing::error!(
            kernel.major,
            kernel.minor,
            "this kernel's FUSE is too old; 7.31 (Linux 5.4) is needed"
        );
        return Err(libc::EPROTO);
    }
    // A newer major version is answered with ours; the kernel then asks again in it.
    let wanted = abi::INIT_ASYNC_READ
        | abi::INIT_BIG_WRITES
        | abi::INIT_ASYNC_DIO
        | abi::INIT_PARALLEL_DIROPS
        | abi::INIT_ABORT_ERROR
        | abi::INIT_MAX_PAGES;
    Ok(Reply::new(unique).init(&InitOut {
        max_readahead: kernel.max_readahead,
        flags: wanted & kernel.flags,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND,
        max_write: REQUEST_BYTES_MAX as u32,
        max_pages: (REQUEST_BYTES_MAX / BLOCK_BYTES) as u16,
    }))
}

fn check_range(offset: u64, len: u64, volume_bytes: u64) -> Result<(), Errno> {
    if len == 0 || !offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES) {
        return Err(libc::EINVAL);
    }
    match offset.checked_add(len) {
        Some(end) if end <= volume_bytes => Ok(()),
        _ => Err(libc::ENOSPC),
    }
}

fn one(reply: Reply) -> VecDeque<Bytes> {
    VecDeque::from([reply.finish(0)])
}

fn error(unique: u64, errno: Errno) -> Outcome {
    Outcome::Reply(one(Reply::with_error(unique, errno)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_codec::Pieces;
    use proptest::prelude::*;

    const SIZE: u64 = 8 << 20;

    fn session() -> Session {
        Session::new(vec![SIZE, 4096], BufferPool::new(8 << 20))
    }

    fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&((abi::IN_HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(&unique.to_ne_bytes());
        bytes.extend_from_slice(&node.to_ne_bytes());
        bytes.resize(abi::IN_HEADER_BYTES, 0);
        bytes.extend_from_slice(body);
        bytes
    }

    fn feed(session: &mut Session, bytes: &[u8]) -> (bool, Outcome) {
        let mut buffer = BufferPool::new(0).get_sparse(MESSAGE_AT + MESSAGE_BYTES_MAX);
        buffer.as_mut_slice()[MESSAGE_AT..MESSAGE_AT + bytes.len()].copy_from_slice(bytes);
        let (kept, outcome) = session.received(buffer, bytes.len());
        (kept.is_some(), outcome)
    }

    fn transfer(offset: u64, size: u32) -> Vec<u8> {
        let mut body = vec![0; 40];
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..20].copy_from_slice(&size.to_ne_bytes());
        body
    }

    fn write(unique: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
        let mut body = transfer(offset, payload.len() as u32);
        body.extend_from_slice(payload);
        message(abi::WRITE, unique, 2, &body)
    }

    fn errno(outcome: &Outcome) -> i32 {
        let Outcome::Reply(pieces) = outcome else { panic!("{outcome:?} is not a reply") };
        let raw: [u8; 4] = pieces[0][4..8].try_into().expect("four bytes");
        -i32::from_ne_bytes(raw)
    }

    #[test]
    fn payloads_are_aligned_and_large_ones_stay_where_they_were_received() {
        let mut session = session();
        let pool = BufferPool::new(0);
        let mut kept = Some(pool.get_landing(LANDING_BYTES, true));
        let mut payloads = Vec::new();
        let short = COPY_BREAK_BYTES - 4096;
        let lens = [short, COPY_BREAK_BYTES, 512 << 10, 4096, 512 << 10, 1 << 20, 512 << 10, 512 << 10];
        for (number, len) in lens.into_iter().enumerate() {
            let unique = 2 * number as u64 + 2;
            let content: Vec<u8> = (0..len).map(|at| (at / 7 + number) as u8).collect();
            let bytes = write(unique, 4096, &content);
            let mut buffer = kept.take().expect("there is room for one more message");
            let (start, room) = (buffer.as_mut_ptr() as usize, buffer.capacity());
            buffer.as_mut_slice()[MESSAGE_AT..MESSAGE_AT + bytes.len()].copy_from_slice(&bytes);
            let (left, outcome) = session.received(buffer, bytes.len());
            let Outcome::Request(request) = outcome else { panic!("{outcome:?}") };
            let FrontendOp::Write { offset: 4096, payload } = request.op else { panic!("{:?}", request.op) };
            assert_eq!((request.tag, request.volume), (unique, VolumeId(0)));
            assert!((payload.as_ptr() as usize).is_multiple_of(4096));
            let in_place = payload.as_ptr() as usize == start + PAYLOAD_AT;
            assert_eq!(in_place, len >= COPY_BREAK_BYTES, "{len}");
            let used = if in_place { PAYLOAD_AT + len } else { 0 };
            let left_bytes = left.as_ref().map(BufMut::capacity);
            let fits = room - used >= MESSAGE_AT + MESSAGE_BYTES_MAX;
            assert_eq!(left_bytes, fits.then(|| room - used), "{number}");
            payloads.push((content, payload));
            kept = left;
            let reply = session.complete(unique, Ok(Pieces::new())).expect("outstanding");
            assert_eq!(reply[0][16..20], (len as u32).to_ne_bytes());
            assert!(session.complete(unique, Ok(Pieces::new())).is_none(), "answered once");
        }
        assert!(kept.is_none(), "the next message might not fit");
        for (number, (content, payload)) in payloads.iter().enumerate() {
            assert!(payload == content, "what came later has changed payload {number}");
        }
        drop(payloads);
        drop(session);
        assert_eq!(pool.in_use_bytes(), 0);
    }

    #[test]
    fn requests_outside_of_blocks_and_volumes_are_refused() {
        let mut session = session();
        assert_eq!(errno(&feed(&mut session, &write(2, 512, &[0; 4096])).1), libc::EINVAL);
        assert_eq!(errno(&feed(&mut session, &write(2, 0, &[0; 512])).1), libc::EINVAL);
        assert_eq!(errno(&feed(&mut session, &write(2, 0, &[])).1), libc::EINVAL);
        assert_eq!(errno(&feed(&mut session, &write(2, SIZE, &[0; 4096])).1), libc::ENOSPC);
        assert_eq!(errno(&feed(&mut session, &write(2, !4095, &[0; 8192])).1), libc::ENOSPC);
        let mut lying = transfer(0, 8192);
        lying.resize(40 + 4096, 0);
        assert_eq!(errno(&feed(&mut session, &message(abi::WRITE, 2, 2, &lying)).1), libc::EINVAL);
        assert_eq!(errno(&feed(&mut session, &message(abi::READ, 2, 9, &transfer(0, 4096))).1), libc::ENOENT);
        assert_eq!(errno(&feed(&mut session, &message(abi::READ, 2, 1, &transfer(0, 4096))).1), libc::EISDIR);
        assert_eq!(
            errno(&feed(&mut session, &message(abi::READ, 2, 2, &transfer(0, 2 << 20))).1),
            libc::EINVAL
        );
        assert!(session.outstanding.is_empty());
    }

    #[test]
    fn a_read_ends_at_the_end_of_the_volume() {
        let mut session = session();
        let (_, outcome) = feed(&mut session, &message(abi::READ, 2, 2, &transfer(SIZE - 4096, 65536)));
        let Outcome::Request(request) = outcome else { panic!("{outcome:?}") };
        assert_eq!(request.op, FrontendOp::Read { offset: SIZE - 4096, len: 4096 });
        let pieces = vec![Bytes::from(vec![1; 1000]), Bytes::new(), Bytes::from(vec![2; 3096])];
        let reply = session.complete(2, Ok(pieces.into())).expect("outstanding");
        assert_eq!(reply.len(), 3);
        assert_eq!(reply[0][..4], 4112u32.to_ne_bytes());
        let (_, outcome) = feed(&mut session, &message(abi::READ, 4, 2, &transfer(SIZE, 4096)));
        assert_eq!(errno(&outcome), 0);
    }

    #[test]
    fn a_fenced_device_answers_everything_with_the_error() {
        let mut session = session();
        feed(&mut session, &message(abi::READ, 2, 2, &transfer(0, 4096)));
        feed(&mut session, &write(4, 0, &[0; 4096]));
        let replies = session.fail_all(libc::EIO);
        assert_eq!(replies.len(), 2);
        assert!(replies.iter().all(|reply| reply[0][4..8] == (-libc::EIO).to_ne_bytes()));
        assert!(session.complete(2, Ok(Pieces::new())).is_none());
        assert_eq!(errno(&feed(&mut session, &write(6, 0, &[0; 4096])).1), libc::EIO);
        assert_eq!(errno(&feed(&mut session, &message(abi::FSYNC, 8, 2, &[0; 16])).1), libc::EIO);
        assert_eq!(errno(&feed(&mut session, &message(abi::GETATTR, 10, 2, &[0; 16])).1), 0);
    }

    #[test]
    fn flushes_come_if_they_are_needed_before_one_was_refused() {
        let flush = |session: &mut Session, tag| feed(session, &message(abi::FSYNC, tag, 2, &[0; 16])).1;
        let mut session = session();
        assert!(!session.flushes(false), "no client has asked for them");
        assert!(session.flushes(true));
        let Outcome::Request(request) = flush(&mut session, 2) else { panic!("not asked for") };
        assert_eq!(request.op, FrontendOp::Flush);
        assert!(session.flushes(false), "what was answered before may not be durable yet");
        assert!(matches!(flush(&mut session, 4), Outcome::Request(_)));

        let mut session = super::tests::session();
        assert_eq!(errno(&flush(&mut session, 2)), 0, "nothing was written");
        assert_eq!(session.flushes, Flushes::NotNeeded);
        feed(&mut session, &write(4, 0, &[0; 4096]));
        session.complete(4, Ok(Pieces::new()));
        assert_eq!(errno(&flush(&mut session, 6)), libc::ENOSYS);
        assert!(session.outstanding.is_empty());
        assert!(!session.flushes(true), "the kernel does not ask again");
        assert_eq!(errno(&flush(&mut session, 8)), libc::ENOSYS);
    }

    #[test]
    fn only_zeroing_kinds_of_fallocate_are_taken() {
        let mut session = session();
        let body = |mode: i32, len: u64| {
            let mut body = vec![0; 32];
            body[16..24].copy_from_slice(&len.to_ne_bytes());
            body[24..28].copy_from_slice(&mode.to_ne_bytes());
            body
        };
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let punch = message(abi::FALLOCATE, 2, 2, &body(libc::FALLOC_FL_PUNCH_HOLE | keep, 8192));
        let Outcome::Request(request) = feed(&mut session, &punch).1 else { panic!() };
        assert_eq!(request.op, FrontendOp::Discard { offset: 0, len: 8192 });
        let zero = message(abi::FALLOCATE, 4, 2, &body(libc::FALLOC_FL_ZERO_RANGE | keep, 4096));
        let Outcome::Request(request) = feed(&mut session, &zero).1 else { panic!() };
        assert_eq!(request.op, FrontendOp::WriteZeroes { offset: 0, len: 4096 });
        for mode in [0, keep, libc::FALLOC_FL_COLLAPSE_RANGE, -1] {
            let outcome = feed(&mut session, &message(abi::FALLOCATE, 6, 2, &body(mode, 4096))).1;
            assert_eq!(errno(&outcome), libc::EOPNOTSUPP);
        }
    }

    #[test]
    fn the_directory_lists_and_finds_its_volumes() {
        let mut session = session();
        for (name, expected) in
            [("0", 0), ("1", 0), ("2", libc::ENOENT), ("00", libc::ENOENT), ("", libc::ENOENT)]
        {
            let body = [name.as_bytes(), b"\0"].concat();
            assert_eq!(errno(&feed(&mut session, &message(abi::LOOKUP, 2, 1, &body)).1), expected, "{name}");
        }
        let Outcome::Reply(all) = feed(&mut session, &message(abi::READDIR, 4, 1, &transfer(0, 4096))).1
        else {
            panic!()
        };
        assert_eq!(all[0].len(), 16 + 4 * 32);
        let Outcome::Reply(rest) = feed(&mut session, &message(abi::READDIR, 4, 1, &transfer(3, 40))).1
        else {
            panic!()
        };
        assert_eq!(rest[0].len(), 16 + 32);
    }

    proptest! {
        /// The session answers any message of the kernel at most once, and never panics.
        #[test]
        fn noise_is_survived(
            opcode in prop_oneof![0u32..60, any::<u32>()],
            node in prop_oneof![0u64..5, any::<u64>()],
            body in proptest::collection::vec(any::<u8>(), 0..200),
            lie in prop_oneof![Just(0i64), -100i64..100],
        ) {
            let mut session = session();
            let mut bytes = message(opcode, 2, node, &body);
            let len = (bytes.len() as i64 + lie).max(0) as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            let (_, outcome) = feed(&mut session, &bytes);
            if let Outcome::Request(request) = outcome {
                let volume = [SIZE, 4096][usize::from(request.volume.0)];
                match request.op {
                    FrontendOp::Read { offset, len }
                    | FrontendOp::Discard { offset, len }
                    | FrontendOp::WriteZeroes { offset, len } => prop_assert!(offset + len <= volume && len > 0),
                    FrontendOp::Write { offset, payload } => prop_assert!(offset + payload.len() as u64 <= volume),
                    FrontendOp::Flush => {}
                    FrontendOp::Extents { .. } => prop_assert!(false, "the kernel cannot ask for this"),
                }
                prop_assert_eq!(session.fail_all(libc::EIO).len(), 1);
            }
        }
    }
}
