//! Messages of vhost-user: from a virtual machine monitor (the *front-end*) to the engine that
//! serves one of its disks (the *back-end*).
//!
//! Layouts and numbers are those of QEMU's document `docs/interop/vhost-user.rst`, for machines of
//! the same byte order, which both ends of a unix socket are. Supported is everything that a block
//! device on split rings needs, with the protocol features of [`protocol`]. Logging for live
//! migration, postcopy, an IOMMU and requests of the back-end are not supported.
//!
//! No message of a front-end makes this panic, or allocate more than a small multiple of its length
//! (R25). File descriptors travel beside the bytes; the caller that receives them checks their
//! number.

use crate::DecodeError;
use crate::wire::Reader;

/// Length of a message without its body.
pub const HEADER_BYTES: usize = 12;
/// Longest body that is taken, in bytes. The longest that is sent is a device configuration.
pub const BODY_BYTES_MAX: usize = 512;
/// Most regions of memory in one table.
pub const REGIONS_MAX: usize = 8;
/// Longest device configuration, in bytes.
pub const CONFIG_BYTES_MAX: u32 = 256;

/// The one request whose answer comes later, by the number that the answer repeats.
pub const GET_RING_BASE: u32 = 11;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 0b11;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;
const RING_INDEX_MASK: u64 = 0xff;
const RING_NO_FILE: u64 = 1 << 8;

/// Offered with the device's features: [`protocol`] can be haggled over.
pub const FEATURE_PROTOCOL: u64 = 1 << 30;

/// Bits of the protocol's own features.
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT: u64 = 1 << 12;

    /// Protocol features that this back-end supports.
    pub const SPOKEN: u64 = MQ | REPLY_ACK | CONFIG | INFLIGHT;
}

/// A part of the virtual machine's memory, in a file that comes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRegion {
    /// Where the guest sees it.
    pub guest: u64,
    pub bytes: u64,
    /// Where the front-end sees it; rings are stated in these addresses.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// Where the parts of a ring lie, in the front-end's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RingAddresses {
    pub descriptors: u64,
    pub used: u64,
    pub available: u64,
}

/// The shared memory in which the back-end notes the requests that it has taken and not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InflightArea {
    pub bytes: u64,
    pub offset: u64,
    pub queues: u16,
    pub queue_size: u16,
}

/// Message of a front-end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    /// No longer used by front-ends that follow the document.
    ResetOwner,
    SetMemTable(Vec<MemoryRegion>),
    SetRingSize {
        ring: u32,
        size: u32,
    },
    SetRingAddresses {
        ring: u32,
        addresses: RingAddresses,
    },
    SetRingBase {
        ring: u32,
        base: u32,
    },
    /// Stops the ring, and asks how far it was taken.
    GetRingBase {
        ring: u32,
    },
    /// A file comes with it unless `file` is false; so with the next two.
    SetRingKick {
        ring: u32,
        file: bool,
    },
    SetRingCall {
        ring: u32,
        file: bool,
    },
    SetRingError {
        ring: u32,
        file: bool,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueCount,
    EnableRing {
        ring: u32,
        enable: bool,
    },
    GetConfig {
        offset: u32,
        len: u32,
    },
    SetConfig {
        offset: u32,
        bytes: Vec<u8>,
    },
    GetInflight(InflightArea),
    SetInflight(InflightArea),
    /// A request that this back-end does not support.
    Unknown,
}

/// Header of a message; the body follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub request: u32,
    /// The front-end waits for an acknowledgement where there is no other answer.
    pub need_reply: bool,
    /// Length of the body, in bytes; at most [`BODY_BYTES_MAX`].
    pub len: usize,
}

const WHAT: &str = "vhost-user message";

fn impossible(field: &'static str, value: u64) -> DecodeError {
    DecodeError::Field { what: WHAT, field, value }
}

impl Header {
    /// # Errors
    /// When this is no request of this protocol, or its body is longer than any request needs.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(WHAT, bytes);
        let (request, flags, len) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if flags & VERSION_MASK != VERSION || flags & FLAG_REPLY != 0 {
            return Err(impossible("flags", flags.into()));
        }
        if len as usize > BODY_BYTES_MAX {
            return Err(impossible("size", len.into()));
        }
        Ok(Self { request, need_reply: flags & FLAG_NEED_REPLY != 0, len: len as usize })
    }

    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let flags = VERSION | if self.need_reply { FLAG_NEED_REPLY } else { 0 };
        header(self.request, flags, self.len)
    }
}

fn header(request: u32, flags: u32, len: usize) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..4].copy_from_slice(&request.to_le_bytes());
    out[4..8].copy_from_slice(&flags.to_le_bytes());
    out[8..].copy_from_slice(&(len as u32).to_le_bytes());
    out
}

/// The answer to a request, with its header.
#[must_use]
pub fn reply(request: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(&header(request, VERSION | FLAG_REPLY, body.len()));
    out.extend_from_slice(body);
    out
}

/// The body of an answer to [`Message::GetRingBase`].
#[must_use]
pub fn ring_base(ring: u32, base: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&ring.to_le_bytes());
    out[4..].copy_from_slice(&base.to_le_bytes());
    out
}

/// The body of an answer to [`Message::GetConfig`]; with no bytes it says that this cannot be asked
/// for.
#[must_use]
pub fn config(offset: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(12 + bytes.len());
    for word in [offset, bytes.len() as u32, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    out
}

impl InflightArea {
    const BYTES: usize = 20;

    /// The body of an answer to [`Message::GetInflight`], as long as the question's: some send what
    /// their compiler has put behind the last field.
    #[must_use]
    pub fn encode(&self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len.max(Self::BYTES));
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.queues.to_le_bytes());
        out.extend_from_slice(&self.queue_size.to_le_bytes());
        out.resize(len.max(Self::BYTES), 0);
        out
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bytes, offset) = (reader.u64()?, reader.u64()?);
        Ok(Self { bytes, offset, queues: reader.u16()?, queue_size: reader.u16()? })
    }
}

impl Message {
    /// `body` is as long as the header says. Bytes behind the last field are ignored.
    ///
    /// # Errors
    /// When the body is too short for its request, or states something impossible.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(WHAT, body);
        Ok(match header.request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(reader.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemTable(regions(&mut reader)?),
            8 => Self::SetRingSize { ring: reader.u32()?, size: reader.u32()? },
            9 => {
                let ring = reader.u32()?;
                reader.u32()?;
                let (descriptors, used, available) = (reader.u64()?, reader.u64()?, reader.u64()?);
                Self::SetRingAddresses { ring, addresses: RingAddresses { descriptors, used, available } }
            }
            10 => Self::SetRingBase { ring: reader.u32()?, base: reader.u32()? },
            GET_RING_BASE => Self::GetRingBase { ring: reader.u32()? },
            12..=14 => {
                let word = reader.u64()?;
                let (ring, file) = ((word & RING_INDEX_MASK) as u32, word & RING_NO_FILE == 0);
                match header.request {
                    12 => Self::SetRingKick { ring, file },
                    13 => Self::SetRingCall { ring, file },
                    _ => Self::SetRingError { ring, file },
                }
            }
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(reader.u64()?),
            17 => Self::GetQueueCount,
            18 => Self::EnableRing { ring: reader.u32()?, enable: reader.u32()? != 0 },
            24 => {
                let (offset, len) = (reader.u32()?, reader.u32()?);
                if len > CONFIG_BYTES_MAX {
                    return Err(impossible("config size", len.into()));
                }
                Self::GetConfig { offset, len }
            }
            25 => {
                let (offset, len, _flags) = (reader.u32()?, reader.u32()?, reader.u32()?);
                if len > CONFIG_BYTES_MAX {
                    return Err(impossible("config size", len.into()));
                }
                Self::SetConfig { offset, bytes: reader.take(len as usize)?.to_vec() }
            }
            31 => Self::GetInflight(InflightArea::decode(&mut reader)?),
            32 => Self::SetInflight(InflightArea::decode(&mut reader)?),
            _ => Self::Unknown,
        })
    }

    /// Encodes the header and the body of a request, for tests that play the front-end. `None` for
    /// [`Self::Unknown`].
    #[must_use]
    pub fn encode(&self, need_reply: bool) -> Option<Vec<u8>> {
        let pair = |a: u32, b: u32| ring_base(a, b).to_vec();
        let file = |ring: u32, file: bool| {
            (u64::from(ring) | if file { 0 } else { RING_NO_FILE }).to_le_bytes().to_vec()
        };
        let (request, body) = match self {
            Self::GetFeatures => (1, Vec::new()),
            Self::SetFeatures(bits) => (2, bits.to_le_bytes().to_vec()),
            Self::SetOwner => (3, Vec::new()),
            Self::ResetOwner => (4, Vec::new()),
            Self::SetMemTable(regions) => {
                let mut body = pair(regions.len() as u32, 0);
                for region in regions {
                    for word in [region.guest, region.bytes, region.user, region.offset] {
                        body.extend_from_slice(&word.to_le_bytes());
                    }
                }
                (5, body)
            }
            Self::SetRingSize { ring, size } => (8, pair(*ring, *size)),
            Self::SetRingAddresses { ring, addresses } => {
                let mut body = pair(*ring, 0);
                for word in [addresses.descriptors, addresses.used, addresses.available, 0] {
                    body.extend_from_slice(&word.to_le_bytes());
                }
                (9, body)
            }
            Self::SetRingBase { ring, base } => (10, pair(*ring, *base)),
            Self::GetRingBase { ring } => (GET_RING_BASE, pair(*ring, 0)),
            Self::SetRingKick { ring, file: is } => (12, file(*ring, *is)),
            Self::SetRingCall { ring, file: is } => (13, file(*ring, *is)),
            Self::SetRingError { ring, file: is } => (14, file(*ring, *is)),
            Self::GetProtocolFeatures => (15, Vec::new()),
            Self::SetProtocolFeatures(bits) => (16, bits.to_le_bytes().to_vec()),
            Self::GetQueueCount => (17, Vec::new()),
            Self::EnableRing { ring, enable } => (18, pair(*ring, u32::from(*enable))),
            Self::GetConfig { offset, len } => (24, config(*offset, &vec![0; *len as usize])),
            Self::SetConfig { offset, bytes } => (25, config(*offset, bytes)),
            Self::GetInflight(area) => (31, area.encode(0)),
            Self::SetInflight(area) => (32, area.encode(0)),
            Self::Unknown => return None,
        };
        let mut out = Header { request, need_reply, len: body.len() }.encode().to_vec();
        out.extend_from_slice(&body);
        Some(out)
    }
}

fn regions(reader: &mut Reader<'_>) -> Result<Vec<MemoryRegion>, DecodeError> {
    let count = reader.u32()?;
    reader.u32()?;
    if count == 0 || count as usize > REGIONS_MAX {
        return Err(impossible("regions", count.into()));
    }
    let region = |_| {
        let (guest, bytes) = (reader.u64()?, reader.u64()?);
        Ok(MemoryRegion { guest, bytes, user: reader.u64()?, offset: reader.u64()? })
    };
    (0..count).map(region).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(message: &Message) -> Message {
        let bytes = message.encode(true).expect("a request");
        let (head, body) = bytes.split_first_chunk().expect("a header");
        let header = Header::decode(head).expect("made here");
        assert!(header.need_reply && header.len == body.len());
        Message::decode(&header, body).expect("made here")
    }

    #[test]
    fn every_request_survives() {
        let region = MemoryRegion { guest: 1 << 32, bytes: 1 << 20, user: 0x7f00_0000_0000, offset: 4096 };
        let area = InflightArea { bytes: 4096, offset: 0, queues: 2, queue_size: 128 };
        let addresses = RingAddresses { descriptors: 1, used: 2, available: 3 };
        let messages = [
            Message::GetFeatures,
            Message::SetFeatures(FEATURE_PROTOCOL),
            Message::SetOwner,
            Message::ResetOwner,
            Message::SetMemTable(vec![region; REGIONS_MAX]),
            Message::SetRingSize { ring: 1, size: 128 },
            Message::SetRingAddresses { ring: 1, addresses },
            Message::SetRingBase { ring: 1, base: 7 },
            Message::GetRingBase { ring: 3 },
            Message::SetRingKick { ring: 255, file: true },
            Message::SetRingCall { ring: 0, file: false },
            Message::SetRingError { ring: 2, file: true },
            Message::GetProtocolFeatures,
            Message::SetProtocolFeatures(protocol::SPOKEN),
            Message::GetQueueCount,
            Message::EnableRing { ring: 9, enable: true },
            Message::GetConfig { offset: 0, len: 60 },
            Message::SetConfig { offset: 32, bytes: vec![1] },
            Message::GetInflight(area),
            Message::SetInflight(area),
        ];
        for message in messages {
            assert_eq!(again(&message), message);
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        let good = Header { request: 1, need_reply: false, len: 0 }.encode();
        for (at, value) in [(4, 0), (4, 2), (4, 5), (9, 0xff)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Header::decode(&bytes).is_err(), "{at} {value}");
        }
        let header = Header { request: 5, need_reply: false, len: 8 };
        for count in [0, 9, u32::MAX] {
            assert!(Message::decode(&header, &ring_base(count, 0)).is_err());
        }
        assert!(Message::decode(&header, &ring_base(1, 0)).is_err(), "no region");
        let config = Header { request: 25, need_reply: false, len: 12 };
        assert!(Message::decode(&config, &super::config(0, &[])[..11]).is_err());
        assert_eq!(Message::decode(&Header { request: 99, ..header }, &[]), Ok(Message::Unknown));
    }
}
