//! Shared parts of the fuzz targets. They make checksums right again, so that coverage reaches the
//! code behind them, and limit what a decoder may allocate (R25).

use mainstay_codec::{FRAME_HEADER_BYTES, crc32c, crc64};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Notes the largest single allocation of each thread.
struct Watching;

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

/// Runs `decode` and asserts that each of its allocations is at most a small multiple of the input.
pub fn bounded<T>(given: usize, decode: impl FnOnce() -> T) -> T {
    LARGEST.with(|largest| largest.set(0));
    let out = decode();
    let largest = LARGEST.with(Cell::get);
    assert!(largest <= 4 * given + 1024, "{largest} bytes allocated for {given} bytes of input");
    out
}

/// Kind of the frame that carries a batch. Its meta has the batch's checksums, and none of its own.
const APPEND: u16 = 8;

/// Makes the checksums of a frame right again.
pub fn mend_frame(frame: &mut [u8]) {
    if frame.len() < FRAME_HEADER_BYTES {
        return;
    }
    let crc = crc32c(&frame[..FRAME_HEADER_BYTES - 4]);
    frame[FRAME_HEADER_BYTES - 4..FRAME_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    let kind = u16::from_le_bytes([frame[6], frame[7]]);
    let meta_len = u32::from_le_bytes([frame[40], frame[41], frame[42], frame[43]]) as usize;
    let rest = &mut frame[FRAME_HEADER_BYTES..];
    if meta_len > rest.len() {
        return;
    }
    let (meta, payload) = rest.split_at_mut(meta_len);
    if kind == APPEND {
        mend_batch(meta, payload);
    } else if let Some(split) = meta.len().checked_sub(4) {
        let crc = crc32c(&meta[..split]);
        meta[split..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Makes the checksums of the entries' payloads, the header and the chain of a batch right again.
pub fn mend_batch(header: &mut [u8], payload: &[u8]) {
    if header.len() < 128 {
        return;
    }
    let entries = usize::from(u16::from_le_bytes([header[6], header[7]]));
    let used = (128 + 40 * entries).min(header.len());
    let header = &mut header[..used];
    mend_payload(header, payload);
    let chain = crc64(&[&header[32..40], &header[..40], &header[48..120], &header[128..]]);
    header[40..48].copy_from_slice(&chain.to_le_bytes());
    header[120..124].fill(0);
    let crc = crc32c(header);
    header[120..124].copy_from_slice(&crc.to_le_bytes());
}

/// The payload checksum of each write whose payload lies within `payload`.
fn mend_payload(header: &mut [u8], payload: &[u8]) {
    let mut rest = payload;
    for descriptor in header[128..].chunks_exact_mut(40) {
        if descriptor[0] != 1 {
            continue;
        }
        let len = u32::from_le_bytes([descriptor[4], descriptor[5], descriptor[6], descriptor[7]]) as usize;
        let Some((this, after)) = rest.split_at_checked(len) else { return };
        descriptor[16..20].copy_from_slice(&crc32c(this).to_le_bytes());
        rest = after;
    }
}

/// Writes the checksum of `block` without its own place `at` into that place; `at` is taken as
/// zero, or left out when it is the end.
pub fn mend_block(block: &mut [u8], at: usize) {
    let crc = if at + 4 == block.len() {
        crc32c(&block[..at])
    } else {
        block[at..at + 4].fill(0);
        crc32c(block)
    };
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}
