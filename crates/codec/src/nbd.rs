//! The server's side of the NBD protocol, which offers a volume to clients that Mainstay did not
//! write.
//!
//! Layouts and numbers are those of the protocol's document (`doc/proto.md` of the
//! NetworkBlockDevice project). They are big-endian, unlike everything else in this crate.
//! [`handshake`] is the negotiation of options, a state machine: bytes in, bytes out.
//! [`transmission`] has the requests and replies that follow it.
//!
//! Supported: the fixed newstyle handshake with `EXPORT_NAME`, `ABORT`, `LIST`, `STARTTLS`, `INFO`,
//! `GO`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT` and `SET_META_CONTEXT` (`base:allocation`); the
//! commands `READ`, `WRITE`, `DISC`, `FLUSH`, `TRIM`, `WRITE_ZEROES` and `BLOCK_STATUS`. Not
//! supported: the experimental extensions (`RESIZE`, extended headers), `CACHE`, and the oldstyle
//! handshake.
//!
//! Guarantee: no bytes of a client make this panic, or allocate more than a small multiple of their
//! length (R25).

pub mod handshake;
pub mod transmission;

pub use handshake::{End, Export, Handshake, Negotiated, Tls};
pub use transmission::{Command, NbdError, REQUEST_BYTES, Request};

/// The smallest payload limit that a client may rely on without having asked, in bytes. A longer
/// one is taken for an attack.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Longest string of the protocol, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

/// Transmission flags: the abilities of an export, as sent to clients.
pub mod flags {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Only together with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;

    /// Flags of every volume of a primary. A write, with FUA or without, is answered when all
    /// in-sync replicas have it in their journals, on whichever of several connections it came. A
    /// request for zeroes is one entry of the log, whatever its length.
    pub const VOLUME: u16 =
        HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN | SEND_FAST_ZERO;
}

/// Reads big-endian fields from the front of a slice; `None` where the slice ends.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length in 32 bits before it.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
