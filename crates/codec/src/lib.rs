//! Wire messages and on-disk records: encode, decode, checksum. No I/O.
//!
//! Everything that comes from a disk or a socket passes through here. Decoding is by length-checked
//! fixed layouts: it never panics and never allocates more than it was given (R25). All integers
//! but those of [`nbd`] are little-endian.
//!
//! - [`batch`] is the unit of the log, the same bytes in every journal and on every connection.
//! - [`message`] has the messages between engines, and [`frame`] carries them.
//! - [`superblock`], [`versions`], [`journal_label`] and [`old_map`] are a replica's own metadata.
//! - [`nbd`] is the protocol of the clients of volumes, [`vhost_user`] and [`virtio_blk`] those of
//!   virtual machines.

pub mod batch;
pub mod client;
pub mod frame;
pub mod journal_label;
pub mod message;
pub mod nbd;
pub mod old_map;
pub mod sums;
pub mod superblock;
pub mod versions;
pub mod vhost_user;
pub mod virtio_blk;
mod wire;

pub use batch::{Batch, EntryDesc, LocalHeader, NewEntry, PayloadPlace, rollback_range, snapshot_range};
pub use client::{Answered, Ask, ClientAnswer, ClientAsk, Refusal};
pub use frame::{FRAME_HEADER_BYTES, FrameHeader, META_BYTES_MAX, PAYLOAD_BYTES_MAX};
pub use journal_label::{JOURNAL_LABEL_BYTES, JournalLabel};
pub use mainstay_types::EntryKind;
pub use message::{BlockSums, Envelope, LogState, Message, Reject};
pub use superblock::{Checkpoint, SnapshotRecord, Superblock, TablePlace, UnfinishedCopy, Void};
pub use wire::DecodeError;

/// Content of a read, as pieces in order. A read of a few blocks is usually one piece and needs no
/// list.
pub type Pieces = smallvec::SmallVec<[bytes::Bytes; 1]>;

/// CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-64/NVME over `parts`, as if they were one slice.
#[must_use]
pub fn crc64(parts: &[&[u8]]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

/// Checksum by which replicas compare a block of `BLOCK_BYTES`: its CRC-64/NVME.
#[must_use]
pub fn block_sum(block: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, block)
}
