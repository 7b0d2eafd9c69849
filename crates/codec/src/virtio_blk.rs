//! The block device of virtio: what a guest's driver learns of the disk, and its requests to the
//! disk.
//!
//! Layouts and numbers are those of section 5.2 of the virtio specification, version 1.2. No
//! request of a guest makes this panic or allocate (R25).

/// Unit of offsets and lengths, in bytes; also the logical block size, which firmware wants to boot
/// from.
pub const SECTOR_BYTES: u64 = 512;
/// Length of a request's header, which comes before its data.
pub const HEADER_BYTES: usize = 16;
/// Length of one range of a discard or write-zeroes.
pub const RANGE_BYTES: usize = 16;
/// Longest name of a disk, in bytes.
pub const ID_BYTES: usize = 20;
/// The device's configuration, as far as it is used here.
pub const CONFIG_BYTES: usize = 60;
/// Where in it the driver sets whether it wants a volatile cache.
pub const CONFIG_WRITEBACK_AT: usize = 32;

/// Feature bits.
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver is told whether there is a volatile cache.
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Features of rings, as opposed to those of block devices.
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    In,
    Out,
    Flush,
    GetId,
    Discard,
    WriteZeroes,
    Unknown(u32),
}

/// Header of a request: its kind and where it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    pub sector: u64,
}

impl Header {
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let kind = match u32::from_le_bytes(part(bytes, 0)) {
            0 => Kind::In,
            1 => Kind::Out,
            4 => Kind::Flush,
            8 => Kind::GetId,
            11 => Kind::Discard,
            13 => Kind::WriteZeroes,
            other => Kind::Unknown(other),
        };
        Self { kind, sector: u64::from_le_bytes(part(bytes, 8)) }
    }

    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            Kind::In => 0u32,
            Kind::Out => 1,
            Kind::Flush => 4,
            Kind::GetId => 8,
            Kind::Discard => 11,
            Kind::WriteZeroes => 13,
            Kind::Unknown(other) => other,
        };
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[8..].copy_from_slice(&self.sector.to_le_bytes());
        out
    }
}

/// Range to discard or to zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub sector: u64,
    pub sectors: u32,
    /// The space may be given back; only for zeroes.
    pub unmap: bool,
    /// A flag that has no meaning, or has none here.
    pub unknown_flags: bool,
}

impl Range {
    #[must_use]
    pub fn decode(bytes: &[u8; RANGE_BYTES]) -> Self {
        let flags = u32::from_le_bytes(part(bytes, 12));
        Self {
            sector: u64::from_le_bytes(part(bytes, 0)),
            sectors: u32::from_le_bytes(part(bytes, 8)),
            unmap: flags & 1 != 0,
            unknown_flags: flags & !1 != 0,
        }
    }

    #[must_use]
    pub fn encode(&self) -> [u8; RANGE_BYTES] {
        let mut out = [0; RANGE_BYTES];
        out[..8].copy_from_slice(&self.sector.to_le_bytes());
        out[8..12].copy_from_slice(&self.sectors.to_le_bytes());
        out[12] = u8::from(self.unmap) | u8::from(self.unknown_flags) << 1;
        out
    }
}

fn part<const N: usize>(bytes: &[u8; 16], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Properties of a disk, as the driver reads them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    pub bytes: u64,
    /// Longest piece of a request, in bytes, and most of them.
    pub piece_bytes_max: u32,
    pub pieces_max: u32,
    /// Requests should be whole blocks of this many bytes: a power of two, at least a sector.
    pub block_bytes: u32,
    /// There is a volatile cache, so that the driver has to flush.
    pub writeback: bool,
    pub queues: u16,
    /// Longest discard and write-zeroes, in bytes.
    pub zeroes_bytes_max: u32,
}

impl Config {
    #[must_use]
    pub fn encode(&self) -> [u8; CONFIG_BYTES] {
        let sector = SECTOR_BYTES as u32;
        let mut out = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &self.piece_bytes_max.to_le_bytes());
        put(12, &self.pieces_max.to_le_bytes());
        put(20, &sector.to_le_bytes());
        let per_block = self.block_bytes / sector;
        put(24, &[per_block.trailing_zeros() as u8, 0]);
        put(26, &(per_block as u16).to_le_bytes());
        put(CONFIG_WRITEBACK_AT, &[u8::from(self.writeback)]);
        put(34, &self.queues.to_le_bytes());
        let zeroes = (self.zeroes_bytes_max / sector).to_le_bytes();
        // One range each, discards in whole blocks, zeroes that may give space back.
        put(36, &zeroes);
        put(40, &1u32.to_le_bytes());
        put(44, &per_block.to_le_bytes());
        put(48, &zeroes);
        put(52, &1u32.to_le_bytes());
        put(56, &[1]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive() {
        for kind in [
            Kind::In,
            Kind::Out,
            Kind::Flush,
            Kind::GetId,
            Kind::Discard,
            Kind::WriteZeroes,
            Kind::Unknown(7),
        ] {
            let header = Header { kind, sector: u64::MAX - 1 };
            assert_eq!(Header::decode(&header.encode()), header);
        }
        for (unmap, unknown_flags) in [(false, false), (true, false), (false, true), (true, true)] {
            let range = Range { sector: 1 << 40, sectors: u32::MAX, unmap, unknown_flags };
            assert_eq!(Range::decode(&range.encode()), range);
        }
    }

    /// Offsets as in `struct virtio_blk_config` of `linux/virtio_blk.h`.
    #[test]
    fn the_configuration_keeps_its_bytes() {
        let config = Config {
            bytes: 3 << 40,
            piece_bytes_max: 0x40000,
            pieces_max: 126,
            block_bytes: 4096,
            writeback: true,
            queues: 16,
            zeroes_bytes_max: 64 << 20,
        };
        let bytes = config.encode();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(u64::from(word(4)) << 32 | u64::from(word(0)), (3 << 40) / 512);
        assert_eq!((word(8), word(12), word(16), word(20)), (0x40000, 126, 0, 512));
        assert_eq!((bytes[24], bytes[25], bytes[26], bytes[27]), (3, 0, 8, 0));
        assert_eq!((bytes[32], bytes[34], bytes[35]), (1, 16, 0));
        assert_eq!((word(36), word(40), word(44)), (131_072, 1, 8));
        assert_eq!((word(48), word(52), bytes[56]), (131_072, 1, 1));
    }
}
