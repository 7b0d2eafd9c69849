//! Requests and replies, once an export has been chosen.

use super::{Fields, STRING_BYTES_MAX};

/// Length of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a chunk's header.
pub const CHUNK_BYTES: usize = 20;
/// Length of a data chunk before the data.
pub const DATA_CHUNK_BYTES: usize = CHUNK_BYTES + 8;
/// Most extents in one status chunk; the document's own advice is 2^20.
pub const EXTENTS_MAX: usize = 4096;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

const FLAG_FUA: u16 = 1 << 0;
const FLAG_NO_HOLE: u16 = 1 << 1;
const FLAG_DF: u16 = 1 << 2;
const FLAG_REQ_ONE: u16 = 1 << 3;
const FLAG_FAST_ZERO: u16 = 1 << 4;

const DONE: u16 = 1 << 0;
const TYPE_NONE: u16 = 0;
const TYPE_OFFSET_DATA: u16 = 1;
const TYPE_BLOCK_STATUS: u16 = 5;
const TYPE_ERROR: u16 = 1 << 15 | 1;

/// Bits of an extent in `base:allocation`: nothing is stored there, and it reads as zeroes.
pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;

/// The errors that the protocol knows, with their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum NbdError {
    Permission = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    /// Only for a read that must not be fragmented and is too long for that.
    Overflow = 75,
    NotSupported = 95,
    Shutdown = 108,
}

/// Request of a client, without its range. Flags that change nothing here are left out: every
/// completed write is durable, so FUA is always obeyed, and zeroes are always fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `whole`: in one chunk (DF).
    Read {
        whole: bool,
    },
    /// The payload follows the request, whatever comes of it.
    Write,
    /// The client will send no more.
    Disconnect,
    Flush,
    Trim,
    /// `keep`: the space stays allocated (NO_HOLE).
    WriteZeroes {
        keep: bool,
    },
    /// `one`: one extent at most, not beyond the end of the request.
    BlockStatus {
        one: bool,
    },
    /// A command or a flag that is not known, to be refused. Has no payload.
    Unknown,
}

/// A request as it was sent; only its form was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub command: Command,
    /// Repeated in the reply.
    pub cookie: u64,
    /// In bytes, of any alignment.
    pub offset: u64,
    pub len: u32,
    /// A flag that does not go with the command was set: to be refused, after its payload has been
    /// taken.
    pub bad_flags: bool,
}

impl Request {
    /// `None` when it does not begin like a request: there is no way to find the next one then.
    #[must_use]
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        let (flags, number) = (fields.u16()?, fields.u16()?);
        let (cookie, offset, len) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let has = |flag| flags & flag != 0;
        // FUA is allowed with every command.
        let (command, known) = match number {
            0 => (Command::Read { whole: has(FLAG_DF) }, FLAG_DF),
            1 => (Command::Write, 0),
            2 => (Command::Disconnect, 0),
            3 => (Command::Flush, 0),
            4 => (Command::Trim, 0),
            6 => (Command::WriteZeroes { keep: has(FLAG_NO_HOLE) }, FLAG_NO_HOLE | FLAG_FAST_ZERO),
            7 => (Command::BlockStatus { one: has(FLAG_REQ_ONE) }, FLAG_REQ_ONE),
            _ => (Command::Unknown, 0),
        };
        Some(Self { command, cookie, offset, len, bad_flags: flags & !(known | FLAG_FUA) != 0 })
    }

    /// The same as a client would send it, without flags that [`Command`] does not keep; for tests
    /// and for clients.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (number, flags): (u16, u16) = match self.command {
            Command::Read { whole } => (0, if whole { FLAG_DF } else { 0 }),
            Command::Write => (1, 0),
            Command::Disconnect => (2, 0),
            Command::Flush => (3, 0),
            Command::Trim => (4, 0),
            Command::WriteZeroes { keep } => (6, if keep { FLAG_NO_HOLE } else { 0 }),
            Command::BlockStatus { one } => (7, if one { FLAG_REQ_ONE } else { 0 }),
            Command::Unknown => (u16::MAX, 0),
        };
        let flags = if self.bad_flags { flags | 1 << 15 } else { flags };
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&number.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// A simple reply; the payload of a read follows it.
#[must_use]
pub fn simple_reply(cookie: u64, error: Option<NbdError>) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut out = [0; SIMPLE_REPLY_BYTES];
    out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.map_or(0, |error| error as u32).to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

fn chunk(done: bool, kind: u16, cookie: u64, payload_len: u32) -> [u8; CHUNK_BYTES] {
    let mut out = [0; CHUNK_BYTES];
    out[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&(if done { DONE } else { 0 }).to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..].copy_from_slice(&payload_len.to_be_bytes());
    out
}

/// The last chunk of a request that has no content, or whose content has been sent.
#[must_use]
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_BYTES] {
    chunk(true, TYPE_NONE, cookie, 0)
}

/// Announces `len` bytes of content, which follow, of the volume at `offset`.
///
/// # Panics
/// When the length does not fit into the chunk's own (beyond [`super::PAYLOAD_BYTES_MAX`] it is
/// never asked for).
#[must_use]
pub fn data_chunk(cookie: u64, offset: u64, len: u32, done: bool) -> [u8; DATA_CHUNK_BYTES] {
    let payload_len = len.checked_add(8).expect("no chunk is that long");
    let mut out = [0; DATA_CHUNK_BYTES];
    out[..CHUNK_BYTES].copy_from_slice(&chunk(done, TYPE_OFFSET_DATA, cookie, payload_len));
    out[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    out
}

/// Appends the last chunk of a request that failed, with words for a human (cut at the protocol's
/// limit).
pub fn error_chunk(out: &mut impl Extend<u8>, cookie: u64, error: NbdError, words: &str) {
    let words = &words.as_bytes()[..words.len().min(STRING_BYTES_MAX)];
    // At most the limit plus six.
    out.extend(chunk(true, TYPE_ERROR, cookie, words.len() as u32 + 6));
    out.extend((error as u32).to_be_bytes());
    out.extend((words.len() as u16).to_be_bytes());
    out.extend(words.iter().copied());
}

/// Appends the last chunk of a status request: lengths in bytes and `STATE_` bits, one after the
/// other from the offset of the request. At least one, at most [`EXTENTS_MAX`]; further ones are
/// left out.
pub fn status_chunk(out: &mut impl Extend<u8>, cookie: u64, context: u32, extents: &[(u32, u32)]) {
    let extents = &extents[..extents.len().min(EXTENTS_MAX)];
    out.extend(chunk(true, TYPE_BLOCK_STATUS, cookie, 4 + 8 * extents.len() as u32));
    out.extend(context.to_be_bytes());
    for (len, state) in extents {
        out.extend(len.to_be_bytes());
        out.extend(state.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let request = Request {
            command: Command::WriteZeroes { keep: true },
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            len: 0x2000,
            bad_flags: false,
        };
        let bytes = request.encode();
        assert_eq!(
            bytes,
            [
                0x25, 0x60, 0x95, 0x13, 0, 2, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0,
                0x20, 0
            ]
        );
        assert_eq!(Request::decode(&bytes), Some(request));
        assert_eq!(
            simple_reply(0x0102_0304_0506_0708, Some(NbdError::NoSpace)),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]
        );
        assert_eq!(
            data_chunk(1, 0x1000, 512, true),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0,
                0x10, 0
            ]
        );
        let mut out = Vec::new();
        error_chunk(&mut out, 1, NbdError::Invalid, "no");
        assert_eq!(
            out[4..],
            [0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 22, 0, 2, b'n', b'o']
        );
        let mut out = Vec::new();
        status_chunk(&mut out, 7, 9, &[(4096, STATE_HOLE | STATE_ZERO)]);
        assert_eq!(
            out[4..],
            [0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 12, 0, 0, 0, 9, 0, 0, 0x10, 0, 0, 0, 0, 3]
        );
    }

    #[test]
    fn flags_that_do_not_belong_are_noticed() {
        let request =
            Request { command: Command::Write, cookie: 1, offset: 0, len: 0, bad_flags: false }.encode();
        let with = |flags: u16, number: u16| {
            let mut bytes = request;
            bytes[4..6].copy_from_slice(&flags.to_be_bytes());
            bytes[6..8].copy_from_slice(&number.to_be_bytes());
            Request::decode(&bytes).expect("the magic number is right")
        };
        for number in 0..8 {
            assert!(!with(FLAG_FUA, number).bad_flags, "{number}");
            assert!(with(1 << 15, number).bad_flags, "{number}");
        }
        assert!(with(FLAG_DF, 1).bad_flags && !with(FLAG_DF, 0).bad_flags);
        assert!(with(FLAG_NO_HOLE, 4).bad_flags && !with(FLAG_NO_HOLE | FLAG_FAST_ZERO, 6).bad_flags);
        assert_eq!(with(0, 5).command, Command::Unknown);
        let mut bad = request;
        bad[0] ^= 1;
        assert_eq!(Request::decode(&bad), None);
    }
}
