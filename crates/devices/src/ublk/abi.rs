//! The kernel's ublk interface: numbers and layouts of `include/uapi/linux/ublk_cmd.h`, read in
//! Debian's linux-libc-dev 6.12 and 7.3. Only commands encoded as ioctls are used
//! (`UBLK_F_CMD_IOCTL_ENCODE`); the older plain numbers can be compiled out of a kernel.
//!
//! Structures are written and read field by field, in the machine's byte order.

use mainstay_types::{BLOCK_BYTES, REQUEST_BYTES_MAX};

pub const CONTROL_NODE: &str = "/dev/ublk-control";
pub const SECTOR_BYTES: u64 = 512;

const IOC_WRITE: u32 = 1;
const IOC_READ: u32 = 2;
const CONTROL_BYTES: u32 = 32;
const IO_BYTES: u32 = 16;

const fn ioctl(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

// Control commands, for `/dev/ublk-control`.
pub const GET_DEV_INFO: u32 = ioctl(IOC_READ, 0x02, CONTROL_BYTES);
pub const ADD_DEV: u32 = ioctl(IOC_READ | IOC_WRITE, 0x04, CONTROL_BYTES);
pub const DEL_DEV: u32 = ioctl(IOC_READ | IOC_WRITE, 0x05, CONTROL_BYTES);
pub const START_DEV: u32 = ioctl(IOC_READ | IOC_WRITE, 0x06, CONTROL_BYTES);
pub const STOP_DEV: u32 = ioctl(IOC_READ | IOC_WRITE, 0x07, CONTROL_BYTES);
pub const SET_PARAMS: u32 = ioctl(IOC_READ | IOC_WRITE, 0x08, CONTROL_BYTES);
pub const GET_PARAMS: u32 = ioctl(IOC_READ, 0x09, CONTROL_BYTES);
pub const START_USER_RECOVERY: u32 = ioctl(IOC_READ | IOC_WRITE, 0x10, CONTROL_BYTES);
pub const END_USER_RECOVERY: u32 = ioctl(IOC_READ | IOC_WRITE, 0x11, CONTROL_BYTES);
pub const GET_FEATURES: u32 = ioctl(IOC_READ, 0x13, CONTROL_BYTES);
pub const DEL_DEV_ASYNC: u32 = ioctl(IOC_READ, 0x14, CONTROL_BYTES);
pub const UPDATE_SIZE: u32 = ioctl(IOC_READ | IOC_WRITE, 0x15, CONTROL_BYTES);

// Commands of a queue, for `/dev/ublkcN`.
pub const FETCH_REQ: u32 = ioctl(IOC_READ | IOC_WRITE, 0x20, IO_BYTES);
pub const COMMIT_AND_FETCH_REQ: u32 = ioctl(IOC_READ | IOC_WRITE, 0x21, IO_BYTES);

/// A command ended with this: its device was stopped, nothing more will come.
pub const RES_ABORT: i32 = libc::ENODEV;

// Features.
pub const F_USER_RECOVERY: u64 = 1 << 3;
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub const F_USER_COPY: u64 = 1 << 7;
/// The kernel has [`UPDATE_SIZE`].
pub const UPDATE_SIZE_OFFERED: u64 = 1 << 10;
/// Without these the frontend is not used; nothing else is assumed.
pub const NEEDED: [(u64, &str); 4] = [
    (F_CMD_IOCTL_ENCODE, "commands encoded as ioctls"),
    (F_USER_COPY, "copying by read and write"),
    (F_USER_RECOVERY, "recovery"),
    (F_USER_RECOVERY_REISSUE, "reissuing requests at a recovery"),
];

// States of a device.
pub const STATE_LIVE: u16 = 1;

// Operations of a request.
pub const OP_READ: u8 = 0;
pub const OP_WRITE: u8 = 1;
pub const OP_FLUSH: u8 = 2;
pub const OP_DISCARD: u8 = 3;
pub const OP_WRITE_ZEROES: u8 = 5;
const IO_F_NOUNMAP: u32 = 1 << 15;

/// Most requests that one queue can have; the mappings of queues lie this many descriptors apart.
pub const QUEUE_DEPTH_MAX: u16 = 4096;
pub const DESCRIPTOR_BYTES: usize = 24;
const PAGE_BYTES: usize = 4096;
/// Position of the first byte of the first request's payload in `/dev/ublkcN`.
const PAYLOAD_AT: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = TAG_SHIFT + 16;

/// Bytes of the mapping with the descriptors of one queue.
pub const fn descriptors_bytes(depth: u16) -> usize {
    (depth as usize * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Where the payload of a request is read from and written to.
pub const fn payload_position(queue: u16, tag: u16) -> u64 {
    PAYLOAD_AT + ((queue as u64) << QUEUE_SHIFT) + ((tag as u64) << TAG_SHIFT)
}

/// `struct ublksrv_ctrl_cmd` as it lies in an SQE of 128 bytes. `buffer` is an address and a
/// length.
pub fn control(device: u32, buffer: (u64, u16), data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&device.to_ne_bytes());
    // Not for one queue.
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    bytes[6..8].copy_from_slice(&buffer.1.to_ne_bytes());
    bytes[8..16].copy_from_slice(&buffer.0.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// `struct ublksrv_io_cmd`. The address stays zero: payloads are copied by read and write.
pub fn io_command(queue: u16, tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes
}

/// The tag in a [`io_command`].
pub fn io_command_tag(bytes: &[u8; 16]) -> u16 {
    u16::from_ne_bytes([bytes[2], bytes[3]])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// `struct ublksrv_ctrl_dev_info`, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub device: u32,
    /// Process that serves the device.
    pub pid: i32,
    pub flags: u64,
    /// The server's own; the kernel keeps it.
    pub cookie: u64,
}

pub const DEVICE_INFO_BYTES: usize = 64;

impl DeviceInfo {
    pub fn encode(&self) -> [u8; DEVICE_INFO_BYTES] {
        let mut bytes = [0; DEVICE_INFO_BYTES];
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&(REQUEST_BYTES_MAX as u32).to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.device.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.cookie.to_ne_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; DEVICE_INFO_BYTES]) -> Self {
        Self {
            queues: u16_at(bytes, 0),
            depth: u16_at(bytes, 2),
            state: u16_at(bytes, 4),
            device: u32_at(bytes, 12),
            pid: u32_at(bytes, 16) as i32,
            flags: u64_at(bytes, 24),
            cookie: u64_at(bytes, 32),
        }
    }
}

pub const PARAMS_BYTES: usize = 64;
/// Physical block and smallest request that are stated, in bytes: a page of MariaDB and MySQL. The
/// kernel cuts a request that is too long at a multiple of it, and so never through a page. Blocks
/// of 4096 bytes can be read and written all the same.
const PHYSICAL_BYTES: u64 = 16 << 10;
const PARAM_BASIC: u32 = 1 << 0;
const PARAM_DISCARD: u32 = 1 << 1;
/// Largest discard that arrives as one request: large enough for mkfs, small enough for a log
/// entry.
const DISCARD_BYTES_MAX: u64 = 64 << 20;

/// `struct ublk_params` of a volume of `volume_bytes` bytes: basic and discard parameters.
///
/// No volatile cache is stated, so the kernel sends neither flush nor FUA: a write that was
/// answered is durable on all in-sync replicas, in mode B as in C
/// ([`FrontendKind::caches`](mainstay_types::FrontendKind::caches)).
pub fn params(volume_bytes: u64) -> [u8; PARAMS_BYTES] {
    let [logical, physical] = [BLOCK_BYTES, PHYSICAL_BYTES].map(|bytes| bytes.trailing_zeros() as u8);
    let sectors = |bytes: u64| ((bytes / SECTOR_BYTES) as u32).to_ne_bytes();
    let mut bytes = [0; PARAMS_BYTES];
    // The four bytes that the compiler adds at the end are not a part of what is stated.
    bytes[0..4].copy_from_slice(&(PARAMS_BYTES as u32 - 4).to_ne_bytes());
    bytes[4..8].copy_from_slice(&(PARAM_BASIC | PARAM_DISCARD).to_ne_bytes());
    // Logical and physical block, best and smallest request: equal ones tell mkfs of no stripes.
    bytes[12..16].copy_from_slice(&[logical, physical, physical, physical]);
    bytes[16..20].copy_from_slice(&sectors(REQUEST_BYTES_MAX));
    bytes[24..32].copy_from_slice(&(volume_bytes / SECTOR_BYTES).to_ne_bytes());
    bytes[44..48].copy_from_slice(&(BLOCK_BYTES as u32).to_ne_bytes());
    bytes[48..52].copy_from_slice(&sectors(DISCARD_BYTES_MAX));
    bytes[52..56].copy_from_slice(&sectors(DISCARD_BYTES_MAX));
    bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
    bytes
}

/// Bytes of the volume that these parameters state.
pub fn params_volume_bytes(bytes: &[u8; PARAMS_BYTES]) -> u64 {
    u64_at(bytes, 24).saturating_mul(SECTOR_BYTES)
}

/// `struct ublksrv_io_desc`: one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    pub op: u8,
    /// For a write-zeroes: the space of the range must stay (`UBLK_IO_F_NOUNMAP`).
    pub keep: bool,
    pub sectors: u32,
    pub start_sector: u64,
}

impl Descriptor {
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        Self {
            // The other flags beside it ask for nothing that a write does not give anyway.
            op: u32_at(bytes, 0) as u8,
            keep: u32_at(bytes, 0) & IO_F_NOUNMAP != 0,
            sectors: u32_at(bytes, 4),
            start_sector: u64_at(bytes, 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those that a C compiler makes of the header (checked with 6.12 and 7.3).
    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!(GET_FEATURES, 0x8020_7513);
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
        assert_eq!(descriptors_bytes(64), 4096);
        assert_eq!(descriptors_bytes(QUEUE_DEPTH_MAX), 98304);
        assert_eq!(payload_position(1, 2), 0x8000_0000 + (1 << 41) + (2 << 25));
    }

    /// S713: the kernel cuts at multiples of the physical block, and requests are of whole ones.
    #[test]
    fn pages_of_16_kib_are_stated_as_physical_blocks() {
        let params = params(1 << 30);
        assert_eq!(params[12..16], [12, 14, 14, 14]);
        assert!(
            REQUEST_BYTES_MAX.is_multiple_of(PHYSICAL_BYTES) && PHYSICAL_BYTES.is_multiple_of(BLOCK_BYTES)
        );
        assert_eq!(u32_at(&params, 16), (REQUEST_BYTES_MAX / SECTOR_BYTES) as u32);
    }

    #[test]
    fn device_info_round_trips() {
        let info = DeviceInfo { queues: 1, depth: 64, state: 0, device: 7, pid: 0, flags: 0x5a, cookie: 99 };
        assert_eq!(DeviceInfo::decode(&info.encode()), info);
        assert_eq!(params_volume_bytes(&params(1 << 30)), 1 << 30);
    }
}
