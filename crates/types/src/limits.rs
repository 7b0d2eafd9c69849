//! Limits that several crates must agree on (R18). Relations between them are asserted at compile
//! time.

/// Smallest unit of a volume, and its logical and physical block size, in bytes. Everything in the
/// log is a whole number of blocks.
pub const BLOCK_BYTES: u64 = 4096;

/// Sizes of a database's page, in bytes, of which it can be asked whether a power cut may tear one.
pub const DATABASE_PAGE_BYTES: [u64; 5] = [4096, 8192, 16384, 32768, 65536];

/// Largest payload of one request, in bytes. Frontends advertise this as maximum. NBD and virtual
/// machines may ask for more, which is cut at multiples of this length of the volume (R26).
pub const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Granularity of the version table and of extent copies, in bytes. Small in the simulator and in
/// tests of the cores, so that a few blocks are many extents and a copy is cheap.
pub const EXTENT_BYTES: u64 = if cfg!(feature = "simulation") { 64 << 10 } else { 1 << 20 };

/// Most entries in one batch; their descriptors fit into one header block.
pub const BATCH_ENTRIES_MAX: usize = 96;

/// Most payload bytes in one batch.
pub const BATCH_BYTES_MAX: u64 = 4 << 20;

/// Most volumes of a resource.
pub const VOLUMES_MAX: usize = 64;

/// Largest volume, in bytes (the version table of one volume is then 32 MiB).
pub const VOLUME_BYTES_MAX: u64 = 4 << 40;

/// Whether a volume may have this size in bytes.
#[must_use]
pub const fn is_volume_size(bytes: u64) -> bool {
    bytes > 0 && bytes <= VOLUME_BYTES_MAX && bytes.is_multiple_of(BLOCK_BYTES)
}

/// Most snapshots of a resource.
pub const SNAPSHOTS_MAX: usize = 64;

/// Most requests that a client has sent and that are not answered, and most bytes of them, read or
/// written.
pub const CLIENT_REQUESTS_MAX: usize = 128;
pub const CLIENT_BYTES_MAX: u64 = 4 << 20;

/// Most data replicas of a resource.
pub const REPLICAS_MAX: usize = 32;

/// Smallest journal, in bytes: two of the largest batches and the reserve.
pub const JOURNAL_BYTES_MIN: u64 = 16 << 20;

/// Most writes to the journal of one replica in flight. It is small, because no record yet calls
/// the newest writes in flight durable. If one of them decays, it looks like a torn tail.
pub const JOURNAL_WRITES_MAX: usize = 4;

/// Most bytes of them together, unless one batch is larger.
pub const JOURNAL_WRITE_BYTES_MAX: u64 = 8 << 20;

/// Part of the journal that only epoch starts may use, so that a full journal can still fail over
/// (R18).
pub const JOURNAL_RESERVE_BYTES: u64 = 1 << 20;

const _: () = assert!(REQUEST_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(EXTENT_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(EXTENT_BYTES <= REQUEST_BYTES_MAX);
const _: () = assert!(BATCH_BYTES_MAX >= REQUEST_BYTES_MAX);
const _: () = assert!(CLIENT_BYTES_MAX >= REQUEST_BYTES_MAX);
const _: () = assert!(JOURNAL_BYTES_MIN >= 2 * (BATCH_BYTES_MAX + BLOCK_BYTES) + JOURNAL_RESERVE_BYTES);
