//! The part of the kernel's FUSE protocol that a directory of fixed-size files needs.
//!
//! Layouts and numbers are those of `include/uapi/linux/fuse.h`, version 7.31 and later; integers
//! are in the machine's own byte order. Decoding is length-checked and never panics (R25), whatever
//! the kernel sends.

use bytes::{Bytes, BytesMut};

/// Version of the protocol that is spoken here. 7.31 (Linux 5.4) has all that is used.
pub const KERNEL_VERSION: u32 = 7;
pub const MINOR_MIN: u32 = 31;
/// Announced to the kernel: flags of later versions than 7.31 are only used where the kernel offers
/// them.
pub const MINOR: u32 = 38;

pub const ROOT_NODE: u64 = 1;

pub const IN_HEADER_BYTES: usize = 40;
pub const OUT_HEADER_BYTES: usize = 16;
/// Longest reply to a transfer without the bytes that are read.
pub const OUT_PREFIX_BYTES_MAX: usize = OUT_HEADER_BYTES + 8;
/// Header and fixed part of a WRITE: the payload follows immediately.
pub const WRITE_PREFIX_BYTES: usize = IN_HEADER_BYTES + 40;

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const FLUSH: u32 = 25;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const BATCH_FORGET: u32 = 42;
pub const FALLOCATE: u32 = 43;

pub const INIT_ASYNC_READ: u32 = 1 << 0;
pub const INIT_BIG_WRITES: u32 = 1 << 5;
pub const INIT_ASYNC_DIO: u32 = 1 << 15;
pub const INIT_PARALLEL_DIROPS: u32 = 1 << 18;
pub const INIT_ABORT_ERROR: u32 = 1 << 21;
pub const INIT_MAX_PAGES: u32 = 1 << 22;

/// Requests go past the page cache.
pub const OPEN_DIRECT_IO: u32 = 1 << 0;
/// Closing needs no request.
pub const OPEN_NOFLUSH: u32 = 1 << 5;
/// Several writes to one file at once: without it loop would write one request at a time.
pub const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

pub const SETATTR_SIZE: u32 = 1 << 3;

/// Reads integers from the front of a slice; `None` where the slice ends.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
}

/// Header at the beginning of every request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InHeader {
    /// Length of the whole request.
    pub len: u32,
    pub opcode: u32,
    /// Repeated in the reply.
    pub unique: u64,
    pub node: u64,
}

impl InHeader {
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..IN_HEADER_BYTES)?);
        Some(Self { len: fields.u32()?, opcode: fields.u32()?, unique: fields.u64()?, node: fields.u64()? })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

impl InitIn {
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (major, minor) = (fields.u32()?, fields.u32()?);
        // A kernel of another major version sends nothing that could be relied on after the
        // version.
        let (max_readahead, flags) =
            if major == KERNEL_VERSION { (fields.u32()?, fields.u32()?) } else { (0, 0) };
        Some(Self { major, minor, max_readahead, flags })
    }
}

/// READ and WRITE begin alike; READDIR is the same as READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferIn {
    pub offset: u64,
    pub size: u32,
}

impl TransferIn {
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body.get(..WRITE_PREFIX_BYTES - IN_HEADER_BYTES)?);
        let _file_handle = fields.u64()?;
        Some(Self { offset: fields.u64()?, size: fields.u32()? })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FallocateIn {
    pub offset: u64,
    pub len: u64,
    pub mode: u32,
}

impl FallocateIn {
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let _file_handle = fields.u64()?;
        Some(Self { offset: fields.u64()?, len: fields.u64()?, mode: fields.u32()? })
    }
}

/// The new size that a SETATTR asks for, if it is about the size at all.
pub fn decode_setattr_size(body: &[u8]) -> Option<Option<u64>> {
    let mut fields = Fields(body);
    let valid = fields.u32()?;
    let _padding = fields.u32()?;
    let _file_handle = fields.u64()?;
    let size = fields.u64()?;
    Some((valid & SETATTR_SIZE != 0).then_some(size))
}

/// A name as LOOKUP has it: terminated by a zero byte.
pub fn decode_name(body: &[u8]) -> Option<&str> {
    let end = body.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&body[..end]).ok()
}

/// Collects the integers of a reply; the header comes first.
pub struct Reply(BytesMut);

impl Reply {
    /// A reply without error to the request `unique`.
    pub fn new(unique: u64) -> Self {
        Self::with_error(unique, 0)
    }

    /// `errno` is positive, or 0 for success.
    pub fn with_error(unique: u64, errno: i32) -> Self {
        Self::within(BytesMut::with_capacity(OUT_HEADER_BYTES), unique, errno)
    }

    /// In memory that is there and empty.
    pub fn within(mut bytes: BytesMut, unique: u64, errno: i32) -> Self {
        bytes.extend_from_slice(&(OUT_HEADER_BYTES as u32).to_ne_bytes());
        bytes.extend_from_slice(&errno.saturating_neg().to_ne_bytes());
        bytes.extend_from_slice(&unique.to_ne_bytes());
        Self(bytes)
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn zeroes(mut self, len: usize) -> Self {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    /// Appends `fuse_attr`: 88 bytes.
    pub fn attr(self, attr: &Attr) -> Self {
        self.u64(attr.node)
            .u64(attr.size)
            .u64(attr.size / 512)
            .zeroes(36) // Times: a device has none.
            .u32(attr.mode)
            .u32(attr.links)
            .zeroes(12) // Owner, group, device number.
            .u32(attr.block_bytes)
            .zeroes(4)
    }

    /// Appends `fuse_init_out`: 64 bytes.
    pub fn init(self, init: &InitOut) -> Self {
        self.u32(KERNEL_VERSION)
            .u32(MINOR)
            .u32(init.max_readahead)
            .u32(init.flags)
            .u16(init.max_background)
            .u16(init.congestion_threshold)
            .u32(init.max_write)
            .u32(1) // Granularity of times, in nanoseconds.
            .u16(init.max_pages)
            .zeroes(34)
    }

    /// Appends one directory entry, padded to 8 bytes. `next` is the offset of the entry after it.
    pub fn dirent(self, node: u64, next: u64, kind: u32, name: &str) -> Self {
        let padding = name.len().next_multiple_of(8) - name.len();
        self.u64(node).u64(next).u32(name.len() as u32).u32(kind).bytes(name.as_bytes()).zeroes(padding)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Ends the reply; `payload_len` bytes will follow it.
    pub fn finish(self, payload_len: usize) -> Bytes {
        self.split(payload_len).0
    }

    /// The same; gives the memory behind the reply back.
    pub fn split(mut self, payload_len: usize) -> (Bytes, BytesMut) {
        let len = u32::try_from(self.0.len() + payload_len).expect("replies are bounded by max_read");
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        (self.0.split().freeze(), self.0)
    }
}

/// Bytes of a directory entry with this name.
pub const fn dirent_bytes(name_len: usize) -> usize {
    24 + name_len.next_multiple_of(8)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub node: u64,
    pub size: u64,
    pub mode: u32,
    pub links: u32,
    pub block_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitOut {
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub max_pages: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_kernels_sizes() {
        let attr = Attr { node: 1, size: 4096, mode: 0, links: 1, block_bytes: 4096 };
        assert_eq!(Reply::new(1).attr(&attr).len(), OUT_HEADER_BYTES + 88);
        let init = InitOut {
            max_readahead: 0,
            flags: 0,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 1 << 20,
            max_pages: 256,
        };
        assert_eq!(Reply::new(1).init(&init).len(), OUT_HEADER_BYTES + 64);
        for name in ["a", "12345678", "123456789"] {
            assert_eq!(
                Reply::new(1).dirent(1, 2, 8, name).len(),
                OUT_HEADER_BYTES + dirent_bytes(name.len())
            );
        }
        let bytes = Reply::with_error(7, libc::EIO).finish(100);
        assert_eq!(bytes[..4], 116u32.to_ne_bytes());
        assert_eq!(bytes[4..8], (-libc::EIO).to_ne_bytes());
        assert_eq!(bytes[8..], 7u64.to_ne_bytes());
    }

    #[test]
    fn short_requests_are_refused() {
        let bytes = [0xffu8; 128];
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            assert_eq!(InHeader::decode(cut).is_some(), len >= IN_HEADER_BYTES);
            assert_eq!(TransferIn::decode(cut).is_some(), len >= 40);
            assert_eq!(FallocateIn::decode(cut).is_some(), len >= 28);
            assert_eq!(decode_setattr_size(cut).is_some(), len >= 24);
            assert_eq!(InitIn::decode(cut).is_some(), len >= 8);
            assert!(decode_name(cut).is_none());
        }
        assert_eq!(decode_name(b"12\0rest"), Some("12"));
        assert_eq!(decode_name(b"\xff\0"), None);
    }
}
