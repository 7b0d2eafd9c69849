//! A short fuzz run with fixed seeds. Its inputs are random bytes, and valid frames and records
//! with a few bytes changed. The checksums of the latter are mended, so that the change reaches the
//! decoders behind them. No decoder may panic, or allocate more than a small multiple of its input
//! (R25).
//!
//! `MAINSTAY_FUZZ_SEED=<n>` repeats one round, `MAINSTAY_FUZZ_ROUNDS=<n>` runs more of them.

#![allow(clippy::disallowed_methods, reason = "the seed comes from the environment")]

mod support;

use bytes::Bytes;
use mainstay_codec::batch::{BatchHead, HEADER_BLOCK_BYTES};
use mainstay_codec::nbd::{REQUEST_BYTES, Request, Tls};
use mainstay_codec::old_map::{OLD_MAP_WORDS, OldMapHeader, decode_old_sector, encode_old_sector};
use mainstay_codec::superblock::{SUPERBLOCK_BYTES, Superblock};
use mainstay_codec::versions::{VERSIONS_PER_PAGE, decode_page, encode_page};
use mainstay_codec::{
    Batch, FRAME_HEADER_BYTES, FrameHeader, JOURNAL_LABEL_BYTES, JournalLabel, LocalHeader, PayloadPlace,
    crc32c, frame,
};
use mainstay_codec::{vhost_user, virtio_blk};
use mainstay_types::{BLOCK_BYTES, Chain, Incarnation, Index, ResourceId, SnapshotId, VolumeId};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::nbd::{nbd_conversation, nbd_handshake};
use support::{batch, envelope, receive, superblock, wire};

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Notes the largest single allocation of each thread.
struct Watching;

#[allow(unsafe_code, reason = "an allocator that measures cannot be written without it")]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no cell any more; its allocations are not the decoders'.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Runs `decode` and asserts that each allocation in it is bounded by the input. Decoded forms may
/// be larger than their bytes (a 40-byte descriptor becomes an `EntryDesc`).
fn bounded<T>(given: usize, decode: impl FnOnce() -> T) -> T {
    LARGEST.with(|largest| largest.set(0));
    let out = decode();
    let largest = LARGEST.with(Cell::get);
    assert!(largest <= 4 * given + 1024, "{largest} bytes allocated for {given} bytes of input");
    out
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn decode_all(bytes: &Bytes) {
    let given = bytes.len();
    let _ = bounded(given, || FrameHeader::decode(&bytes[..given.min(FRAME_HEADER_BYTES)]));
    let _ = bounded(given, || receive(bytes));
    let _ = bounded(given, || BatchHead::decode(bytes));
    let _ = bounded(given, || LocalHeader::decode(bytes, Chain(0)));
    let _ = bounded(given, || Superblock::decode(bytes));
    let _ = bounded(given, || decode_page(bytes, 0, &mut [Index(0); VERSIONS_PER_PAGE]));
    for split in [0, given.min(168), given.min(HEADER_BLOCK_BYTES), given] {
        let _ = bounded(given, || Batch::decode(&bytes[..split], &bytes.slice(split..)));
    }
}

/// Changes one to four places: a bit, a byte to an extreme, a field to an extreme.
fn mutate(random: &mut Random, bytes: &mut [u8]) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => bytes[at] = random.next() as u8,
            _ => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill([0, 0xff][random.below(2)]);
            }
        }
    }
}

/// Makes the checksums of a frame right again, so that the change is seen by what lies behind them.
fn mend_frame(frame: &mut [u8]) {
    let crc = crc32c(&frame[..FRAME_HEADER_BYTES - 4]);
    frame[FRAME_HEADER_BYTES - 4..FRAME_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    let kind = u16::from_le_bytes([frame[6], frame[7]]);
    let meta_len = u32::from_le_bytes([frame[40], frame[41], frame[42], frame[43]]) as usize;
    let Some(meta) = frame.get_mut(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES.saturating_add(meta_len)) else {
        return;
    };
    if kind == 8 {
        mend_batch(meta);
    } else if let Some(split) = meta.len().checked_sub(4) {
        let crc = crc32c(&meta[..split]);
        meta[split..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The same for the checksum and the chain of a batch header.
fn mend_batch(header: &mut [u8]) {
    if header.len() < 128 {
        return;
    }
    let used = (128 + 40 * usize::from(u16::from_le_bytes([header[6], header[7]]))).min(header.len());
    let header = &mut header[..used];
    let chain = mainstay_codec::crc64(&[&header[32..40], &header[..40], &header[48..120], &header[128..]]);
    header[40..48].copy_from_slice(&chain.to_le_bytes());
    header[120..124].fill(0);
    let crc = crc32c(header);
    header[120..124].copy_from_slice(&crc.to_le_bytes());
}

fn sample<S: Strategy>(random: &mut Random, strategy: &S) -> S::Value {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &{
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&random.next().to_le_bytes());
        seed
    });
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    strategy.new_tree(&mut runner).expect("these strategies reject nothing").current()
}

/// One round; returns how many mutated inputs were still accepted.
fn round(seed: u64) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut accepted = 0;
    for _ in 0..8 {
        let len = random.below(9000);
        let mut bytes = random.bytes(len);
        decode_all(&bytes.clone().into());
        if len >= 8 {
            // The right magic and version, so that the fields behind them are reached.
            bytes[..8].copy_from_slice([b"MSW1\x01\x00\x08\x00", b"MSJB\x01\x00\x01\x00"][random.below(2)]);
            decode_all(&bytes.into());
        }
    }
    let sent = wire(&sample(&mut random, &envelope()));
    for _ in 0..32 {
        let mut bytes = sent.to_vec();
        let reach = bytes.len().min(FRAME_HEADER_BYTES + 256);
        mutate(&mut random, &mut bytes[..reach]);
        if random.below(2) == 0 {
            mend_frame(&mut bytes);
        }
        if random.below(8) == 0 {
            bytes.truncate(random.below(sent.len()));
        }
        let bytes = Bytes::from(bytes);
        decode_all(&bytes);
        if let Ok(envelope) = receive(&bytes) {
            // What is accepted is canonical: it encodes to the bytes that it came from.
            let again: Vec<u8> = frame::encode(&envelope).concat();
            assert_eq!(again, bytes[..again.len()], "seed {seed}");
            accepted += 1;
        }
    }
    let sealed = sample(&mut random, &batch());
    let payload: Bytes = sealed.payload.concat().into();
    for _ in 0..32 {
        let places = [PayloadPlace::Journal, PayloadPlace::Volume, PayloadPlace::JournalAfterVolume];
        let local = LocalHeader {
            generation: random.next(),
            durable_before: Index(random.next()),
            payload: places[(random.next() % 3) as usize],
        };
        let mut block = sealed.header_block(local);
        let reach = sealed.header.len();
        mutate(&mut random, &mut block[..reach]);
        mend_batch(&mut block);
        let given = block.len() + payload.len();
        if let Ok(found) = bounded(given, || Batch::decode(&block, &payload)) {
            assert!(found.last() >= found.first && found.payload_len == payload.len() as u64, "seed {seed}");
            accepted += 1;
        }
    }
    accepted + metadata(&mut random, seed) + nbd(&mut random, seed) + vhost_user(&mut random, seed)
}

/// A virtual machine monitor: messages of every kind, mutated, and what its guest's driver asks
/// for.
fn vhost_user(random: &mut Random, seed: u64) -> usize {
    let mut accepted = 0;
    for _ in 0..32 {
        let header = vhost_user::Header {
            request: random.below(42) as u32,
            need_reply: random.below(2) == 0,
            len: random.below(80),
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&random.bytes(header.len));
        if random.below(2) == 0 {
            // A number of regions, or the length of a configuration, that is possible.
            let at = vhost_user::HEADER_BYTES;
            for (at, small) in [(at, random.below(10)), (at + 4, random.below(20))] {
                if at + 4 <= bytes.len() {
                    bytes[at..at + 4].copy_from_slice(&(small as u32).to_le_bytes());
                }
            }
        }
        if random.below(4) == 0 {
            mutate(random, &mut bytes);
        }
        let Some((head, body)) = bytes.split_first_chunk() else { continue };
        let decoded = bounded(bytes.len(), || {
            vhost_user::Header::decode(head).map(|header| vhost_user::Message::decode(&header, body))
        });
        let Ok(Ok(message)) = decoded else { continue };
        accepted += 1;
        let Some(again) = message.encode(true) else { continue };
        let (head, body) = again.split_first_chunk().expect("a header");
        let header = vhost_user::Header::decode(head).expect("made here");
        assert_eq!(vhost_user::Message::decode(&header, body), Ok(message), "seed {seed}");
    }
    for _ in 0..8 {
        let mut bytes = [0; virtio_blk::HEADER_BYTES];
        bytes.copy_from_slice(&random.bytes(virtio_blk::HEADER_BYTES));
        bounded(0, || virtio_blk::Header::decode(&bytes));
        bounded(0, || virtio_blk::Range::decode(&bytes));
    }
    accepted
}

/// An NBD client: a conversation that is right up to a few bytes, then requests of the same kind.
fn nbd(random: &mut Random, seed: u64) -> usize {
    let name = ["db/0", "db/1", "", "nobody/7"][random.below(4)];
    let newstyle = random.below(2) == 0;
    let tls = [Tls::Absent, Tls::Required, Tls::Up][random.below(3)];
    let mut accepted = 0;
    for _ in 0..8 {
        let mut bytes = nbd_conversation(name, newstyle);
        mutate(random, &mut bytes);
        if nbd_handshake(tls, &bytes, |given, step| bounded(given, step)) {
            accepted += 1;
        }
    }
    for _ in 0..32 {
        let mut bytes = [0; REQUEST_BYTES];
        bytes.copy_from_slice(&random.bytes(REQUEST_BYTES));
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[6..8].copy_from_slice(&(random.below(9) as u16).to_be_bytes());
        if random.below(2) == 0 {
            bytes[4..6].copy_from_slice(&(random.below(32) as u16).to_be_bytes());
        }
        let found = bounded(REQUEST_BYTES, || Request::decode(&bytes)).expect("the magic number is right");
        let again = Request::decode(&found.encode()).expect("encoded here");
        assert_eq!((again.command, again.cookie), (found.command, found.cookie), "seed {seed}");
        assert_eq!((again.offset, again.len, again.bad_flags), (found.offset, found.len, found.bad_flags));
        bytes[random.below(4)] ^= 1 << random.below(8);
        assert_eq!(Request::decode(&bytes), None, "seed {seed}");
    }
    accepted
}

/// The superblock, the label of a journal, the map of a snapshot and a page of the version table,
/// mutated and with their checksums mended.
fn metadata(random: &mut Random, seed: u64) -> usize {
    let mut accepted = 0;
    let good = sample(random, &superblock()).encode();
    let label = JournalLabel {
        resource: ResourceId(random.next()),
        incarnation: Incarnation(random.next()),
        journal_bytes: BLOCK_BYTES * (1 + random.below(1 << 20) as u64),
        volatile: random.below(2) == 1,
    };
    let header = OldMapHeader {
        snapshot: SnapshotId(random.next() as u32),
        volume: VolumeId(random.next() as u16),
        bytes: BLOCK_BYTES * (1 + random.below(1 << 20) as u64),
    };
    let mut sector = Vec::new();
    let words: Vec<u64> = (0..random.below(OLD_MAP_WORDS)).map(|_| random.next()).collect();
    encode_old_sector(&mut sector, 3, &words);
    let mut page = Vec::new();
    let versions: Vec<Index> = (0..random.below(VERSIONS_PER_PAGE)).map(|_| Index(random.next())).collect();
    encode_page(&mut page, 0, &versions);
    for _ in 0..32 {
        let mut block = good.clone();
        let reach = [168, SUPERBLOCK_BYTES - 4][random.below(2)];
        mutate(random, &mut block[..reach]);
        let crc = crc32c(&block[..SUPERBLOCK_BYTES - 4]);
        block[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(found) = bounded(block.len(), || Superblock::decode(&block)) {
            assert_eq!(found.encode(), block, "seed {seed}");
            accepted += 1;
        }

        let mut block = label.encode();
        mutate(random, &mut block[4..32]);
        let crc = crc32c(&block[..JOURNAL_LABEL_BYTES - 4]);
        block[JOURNAL_LABEL_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(found) = bounded(block.len(), || JournalLabel::decode(&block)) {
            assert_eq!(found.encode(), block, "seed {seed}");
            accepted += 1;
        }

        let mut block = header.encode();
        mutate(random, &mut block[4..32]);
        let body = block.len() - 4;
        let crc = crc32c(&block[..body]);
        block[body..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(found) = bounded(block.len(), || OldMapHeader::decode(&block)) {
            assert_eq!(found.encode(), block, "seed {seed}");
            accepted += 1;
        }

        let mut block = sector.clone();
        mutate(random, &mut block);
        let body = block.len() - 4;
        let crc = crc32c(&block[..body]);
        block[body..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(words) = bounded(block.len(), || decode_old_sector(&block, 3)) {
            let mut again = Vec::new();
            encode_old_sector(&mut again, 3, &words);
            assert_eq!(again, block, "seed {seed}");
            accepted += 1;
        }

        let mut block = page.clone();
        mutate(random, &mut block);
        block[8..12].fill(0);
        let crc = crc32c(&block);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        let mut found = vec![Index(0); versions.len()];
        if bounded(block.len(), || decode_page(&block, 0, &mut found)).is_ok() {
            let mut again = Vec::new();
            encode_page(&mut again, 0, &found);
            assert_eq!(again, block, "seed {seed}");
            accepted += 1;
        }
    }
    accepted
}

#[test]
fn decoders_neither_panic_nor_allocate_beyond_their_input() {
    let number = |name| std::env::var(name).ok().map(|v: String| v.parse().expect("a number"));
    if let Some(seed) = number("MAINSTAY_FUZZ_SEED") {
        round(seed);
        return;
    }
    let rounds: u64 = number("MAINSTAY_FUZZ_ROUNDS").unwrap_or(3000);
    let mut accepted = 0;
    for seed in 1..=rounds {
        let result = std::panic::catch_unwind(|| round(seed));
        match result {
            Ok(count) => accepted += count,
            Err(cause) => {
                eprintln!(
                    "repeat with: MAINSTAY_FUZZ_SEED={seed} cargo test -p mainstay-codec --test fuzz_smoke"
                );
                std::panic::resume_unwind(cause);
            }
        }
    }
    // Were everything refused at a checksum, the run would have looked at nothing.
    assert!(accepted as u64 > rounds, "only {accepted} mutated inputs got past the checksums");
}
