//! Aligned memory for direct I/O, recycled through a pool.
//!
//! Guarantees:
//! - Every buffer is aligned to [`BUFFER_ALIGN`] and holds initialised memory.
//! - A buffer goes back to the pool when its last reference goes, on whichever thread that happens.
//! - Memory that lies idle in the pool never exceeds the bound given at its creation (R18). The
//!   pool returns the excess to the operating system at once. It takes it from the sizes of which
//!   most lies idle, because the size that has just come back is likely to be asked for next.
//!
//! Large buffers are made of huge pages where the kernel has some ([`HUGE_BYTES`]): to pin one page
//! costs less than to pin 256, and a disk takes a few hundred pieces of memory in one request at
//! most. The gain is in bench/RESULTS.md (comparing all replicas). A *sparse* buffer is of small
//! pages. A caller that waits for data of unknown size uses it: it takes memory only for what
//! comes, not for all that might. The two kinds are kept apart.
//!
//! Small buffers may be pieces of larger ones ([`Stretch`]), which saves requests an allocation
//! each. A *landing* is memory for content that comes one piece after the other, each of a length
//! that is not known before: each keeps what it has filled, and the next one comes behind it
//! ([`BufferPool::get_landing`], [`BufMut::split_front`]).
//!
//! Not guaranteed: a bound on memory *in use*. Each user of the pool bounds the
//! buffers that it holds (windows, queues, the overlay); [`BufferPool::in_use_bytes`] tells the
//! sum.

// The kernel needs memory with an alignment and a lifetime that no safe container offers.
#![allow(unsafe_code)]

mod stretch;

use self::stretch::{Begun, Piece};
pub use self::stretch::{PIECE_BYTES_MAX, STRETCH_BYTES, Stretch};
use bytes::Bytes;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every buffer, in bytes; what direct I/O asks of memory at most.
pub const BUFFER_ALIGN: usize = 4096;
/// Smallest size class, in bytes.
pub const BUFFER_BYTES_MIN: usize = 4096;
/// Largest size class, in bytes: a whole batch with its header block fits.
pub const BUFFER_BYTES_MAX: usize = 8 << 20;
/// From this size on a class keeps at most [`LARGE_IDLE_MAX`] idle buffers.
const LARGE_BYTES: usize = 1 << 20;
const LARGE_IDLE_MAX: usize = 8;
/// Size of a huge page on machines with pages of 4 KiB, in bytes. Two of the smallest large buffers
/// share one.
const HUGE_BYTES: usize = 2 << 20;
const _: () = assert!(HUGE_BYTES == 2 * LARGE_BYTES);

const CLASSES: usize = (BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).trailing_zeros() as usize + 1;
const _: () = assert!(BUFFER_BYTES_MIN.is_power_of_two() && BUFFER_BYTES_MAX.is_power_of_two());
const _: () =
    assert!(BUFFER_BYTES_MAX as u64 >= mainstay_types::BATCH_BYTES_MAX + mainstay_types::BLOCK_BYTES);

const fn class_of(len: usize) -> usize {
    let len = if len < BUFFER_BYTES_MIN { BUFFER_BYTES_MIN } else { len.next_power_of_two() };
    (len / BUFFER_BYTES_MIN).trailing_zeros() as usize
}

const fn class_bytes(class: usize) -> usize {
    BUFFER_BYTES_MIN << class
}

const fn slot(class: usize, sparse: bool) -> usize {
    if sparse { class + CLASSES } else { class }
}

/// Lists of idle memory: one for each class, and one more for the sparse memory of each class.
const SLOTS: usize = 2 * CLASSES;

/// One anonymous mapping. With mappings, unlike with the allocator, freed memory is really given
/// back, and fresh memory is zero without being touched.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    sparse: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `Memory` is its only owner.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference the mapping is only read.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(bytes: usize) -> Self {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            std::alloc::handle_alloc_error(
                std::alloc::Layout::from_size_align(bytes, BUFFER_ALIGN).expect("a size class and a page"),
            );
        }
        let start = NonNull::new(start.cast()).expect("a mapping is never at address zero");
        Self { start, bytes, sparse: false }
    }

    /// Maps memory of small pages, whatever the kernel does with other memory.
    fn map_sparse(bytes: usize) -> Self {
        let mut memory = Self::map(bytes);
        memory.sparse = true;
        // SAFETY: as for huge ones. A kernel without them refuses this.
        let _ = unsafe { libc::madvise(memory.start.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
        memory
    }

    /// Maps `bytes` bytes of huge pages, or of small pages where the kernel has no huge ones.
    /// `bytes` is a multiple of [`HUGE_BYTES`].
    fn map_huge(bytes: usize) -> Self {
        debug_assert!(bytes.is_multiple_of(HUGE_BYTES));
        let (_, aligned) = {
            let all = Self::map(bytes + HUGE_BYTES);
            let before = all.start.as_ptr().align_offset(HUGE_BYTES);
            all.split(before)
        };
        let (aligned, _) = aligned.split(bytes);
        // A kernel without huge pages refuses this, and nothing is lost.
        // SAFETY: the range is a mapping of our own; the advice changes nothing that is seen of it.
        let _ = unsafe { libc::madvise(aligned.start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        aligned
    }

    fn slot(&self) -> usize {
        slot(class_of(self.bytes), self.sparse)
    }

    /// The first `at` bytes, whole pages, and the rest, each a mapping of its own from now on.
    /// Either may be empty.
    fn split(self, at: usize) -> (Self, Self) {
        let (start, bytes, sparse) = (self.start, self.bytes, self.sparse);
        assert!(at <= bytes && at.is_multiple_of(BUFFER_ALIGN));
        std::mem::forget(self);
        // SAFETY: `at` is within the mapping, or its end.
        let rest = unsafe { start.add(at) };
        (Self { start, bytes: at, sparse }, Self { start: rest, bytes: bytes - at, sparse })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: `start` and `bytes` are pages that were mapped for this alone, and no other
        // pointer into it is left: the owner of a buffer hands its pointer to the kernel only
        // together with the buffer itself.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

struct PoolShared {
    idle: [Mutex<Vec<Memory>>; SLOTS],
    idle_bytes: AtomicUsize,
    idle_bytes_max: usize,
    in_use_bytes: AtomicUsize,
}

impl PoolShared {
    fn take(&self, class: usize, sparse: bool) -> Memory {
        let bytes = class_bytes(class);
        let idle = self.idle(slot(class, sparse)).pop();
        self.in_use_bytes.fetch_add(bytes, Ordering::Relaxed);
        match idle {
            Some(memory) => {
                self.idle_bytes.fetch_sub(bytes, Ordering::Relaxed);
                memory
            }
            None if sparse => Memory::map_sparse(bytes),
            None if bytes >= HUGE_BYTES => Memory::map_huge(bytes),
            None if bytes == LARGE_BYTES => {
                let (memory, other) = Memory::map_huge(HUGE_BYTES).split(LARGE_BYTES);
                self.keep(other);
                memory
            }
            None => Memory::map(bytes),
        }
    }

    fn give_back(&self, memory: Memory) {
        self.in_use_bytes.fetch_sub(memory.bytes, Ordering::Relaxed);
        self.keep(memory);
    }

    /// Keeps unused memory, if there is not too much of it.
    fn keep(&self, memory: Memory) {
        let bytes = memory.bytes;
        // Reserved before it is kept, so that threads cannot exceed the bound together.
        let mut idle_bytes = self.idle_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // One that is not kept in any case costs no other its place.
        while idle_bytes > self.idle_bytes_max && bytes <= self.idle_bytes_max {
            let Some(freed) = self.free_one(memory.slot()) else { break };
            idle_bytes = self.idle_bytes.fetch_sub(freed, Ordering::Relaxed) - freed;
        }
        if idle_bytes <= self.idle_bytes_max {
            let mut idle = self.idle(memory.slot());
            if bytes < LARGE_BYTES || idle.len() < LARGE_IDLE_MAX {
                idle.push(memory);
                return;
            }
        }
        self.idle_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn idle(&self, slot: usize) -> MutexGuard<'_, Vec<Memory>> {
        self.idle[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a buffer of the slot with the most idle bytes, and returns how many bytes that were;
    /// none if that slot is `but`.
    fn free_one(&self, but: usize) -> Option<usize> {
        let most = (0..SLOTS).max_by_key(|&slot| self.idle(slot).len() * class_bytes(slot % CLASSES))?;
        if most == but {
            return None;
        }
        let freed = self.idle(most).pop()?;
        Some(freed.bytes)
    }
}

/// A pool of aligned buffers in size classes that are powers of two. Clones share the pool.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<PoolShared>,
    /// Memory that short-lived buffers are cut from, see [`Self::get_passing`]. Kept outside of
    /// `shared`: it is itself a buffer, and buffers refer to `shared`.
    passing: Arc<Mutex<Option<Begun>>>,
}

impl BufferPool {
    /// A pool that keeps at most `idle_bytes_max` bytes of unused memory.
    #[must_use]
    pub fn new(idle_bytes_max: usize) -> Self {
        Self {
            shared: Arc::new(PoolShared {
                idle: [const { Mutex::new(Vec::new()) }; SLOTS],
                idle_bytes: AtomicUsize::new(0),
                idle_bytes_max,
                in_use_bytes: AtomicUsize::new(0),
            }),
            passing: Arc::default(),
        }
    }

    /// A buffer of at least `len` bytes. Its content is initialised but arbitrary.
    ///
    /// # Panics
    /// When `len` exceeds [`BUFFER_BYTES_MAX`]: every length was checked against a limit before.
    #[must_use]
    pub fn get(&self, len: usize) -> BufMut {
        self.take(len, false)
    }

    /// The same for data that may come and mostly is much shorter: memory is taken as it is
    /// written.
    ///
    /// # Panics
    /// As [`Self::get`].
    #[must_use]
    pub fn get_sparse(&self, len: usize) -> BufMut {
        self.take(len, class_bytes(class_of(len)) >= LARGE_BYTES)
    }

    /// A buffer of at least `len` bytes whose front can be given away ([`BufMut::split_front`])
    /// again and again. Its memory returns to the pool with the last of these fronts and the rest.
    /// `sparse`: as from [`Self::get_sparse`].
    ///
    /// # Panics
    /// As [`Self::get`].
    #[must_use]
    pub fn get_landing(&self, len: usize, sparse: bool) -> BufMut {
        let buffer = if sparse { self.get_sparse(len) } else { self.get(len) };
        BufMut::piece(Piece::of_all(buffer))
    }

    fn take(&self, len: usize, sparse: bool) -> BufMut {
        assert!(len <= BUFFER_BYTES_MAX, "a buffer of {len} bytes");
        let memory = self.shared.take(class_of(len), sparse);
        BufMut::whole(memory, Arc::clone(&self.shared))
    }

    /// A buffer as from [`Self::get`] for content that is needed only until an operation or two
    /// have ended. A short one ([`PIECE_BYTES_MAX`]) shares one count of references with other
    /// short-lived buffers.
    ///
    /// # Panics
    /// As [`Self::get`].
    #[must_use]
    pub fn get_passing(&self, len: usize) -> BufMut {
        if len > PIECE_BYTES_MAX {
            return self.get(len);
        }
        stretch::cut(&mut self.passing(), len, &self.shared)
    }

    fn passing(&self) -> MutexGuard<'_, Option<Begun>> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back the unused rest of the memory that short-lived buffers are cut from.
    pub fn end_passing(&self) {
        *self.passing() = None;
    }

    /// An aligned copy of `bytes`.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Bytes {
        copied(self.get(bytes.len()), bytes)
    }

    /// Bytes of memory that lie unused in the pool.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.shared.idle_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory that are held outside the pool, stretches of which pieces are cut included.
    #[must_use]
    pub fn in_use_bytes(&self) -> usize {
        self.shared.in_use_bytes.load(Ordering::Relaxed)
    }
}

fn copied(mut buffer: BufMut, bytes: &[u8]) -> Bytes {
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    buffer.freeze(bytes.len())
}

/// An exclusive, writable, aligned buffer.
pub struct BufMut(Kind);

enum Kind {
    Whole(Whole),
    Piece(Piece),
}

/// A mapping that returns to its pool.
struct Whole {
    /// `None` only while it is being dropped.
    memory: Option<Memory>,
    shared: Arc<PoolShared>,
}

impl Whole {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("present until the drop")
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.shared.give_back(memory);
        }
    }
}

impl BufMut {
    fn whole(memory: Memory, shared: Arc<PoolShared>) -> Self {
        Self(Kind::Whole(Whole { memory: Some(memory), shared }))
    }

    fn piece(piece: Piece) -> Self {
        Self(Kind::Piece(piece))
    }

    /// Where it is, and how many bytes it has.
    fn place(&self) -> (NonNull<u8>, usize) {
        match &self.0 {
            Kind::Whole(whole) => (whole.memory().start, whole.memory().bytes),
            Kind::Piece(piece) => (piece.start(), piece.bytes()),
        }
    }

    /// Bytes that the buffer can hold; at least what was asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.place().1
    }

    /// Where the kernel may write. Valid as long as the buffer lives, also when it is moved.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.place().0.as_ptr()
    }

    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let (start, bytes) = self.place();
        // SAFETY: the place holds `bytes` initialised bytes, which do not change while `self` is
        // borrowed: an operation of the kernel owns its buffer until it has completed.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) }
    }

    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let (start, bytes) = self.place();
        // SAFETY: as for `as_slice`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }
    }

    /// The first `len` bytes as shared, read-only bytes, and the rest to be written to. Only a
    /// landing ([`BufferPool::get_landing`]) has a rest.
    ///
    /// # Panics
    /// When `len` exceeds the capacity, or is no multiple of [`BUFFER_ALIGN`].
    #[must_use]
    pub fn split_front(self, len: usize) -> (Bytes, Option<Self>) {
        assert!(len.is_multiple_of(BUFFER_ALIGN), "the rest would not be aligned after {len} bytes");
        match self.0 {
            Kind::Whole(_) => (self.freeze(len), None),
            Kind::Piece(piece) => {
                let (front, rest) = piece.split_front(len);
                (front, rest.map(Self::piece))
            }
        }
    }

    /// The first `len` bytes as shared, read-only bytes; the memory returns to the pool with the
    /// last of them.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    #[must_use]
    pub fn freeze(self, len: usize) -> Bytes {
        assert!(len <= self.capacity(), "{len} bytes of a buffer of {}", self.capacity());
        match self.0 {
            Kind::Whole(whole) => Bytes::from_owner(Frozen { whole, len }),
            Kind::Piece(piece) => piece.freeze(len),
        }
    }
}

impl std::fmt::Debug for BufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufMut({})", self.capacity())
    }
}

struct Frozen {
    whole: Whole,
    len: usize,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        let memory = self.whole.memory();
        // SAFETY: the memory is initialised and as long as that, and stays until `self` is dropped.
        // A part of a stretch may be written to later: by the one piece that has that place, before
        // any reader has it.
        unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        for (len, bytes) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (5 << 20, 8 << 20)] {
            assert_eq!(class_bytes(class_of(len)), bytes, "{len}");
        }
        assert_eq!(class_of(BUFFER_BYTES_MAX), CLASSES - 1);
    }

    #[test]
    fn a_buffer_returns_with_the_last_reference() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.get(5000);
        let address = buffer.as_mut_ptr() as usize;
        assert_eq!((address % BUFFER_ALIGN, buffer.capacity()), (0, 8192));
        buffer.as_mut_slice()[..3].copy_from_slice(b"abc");
        let bytes = buffer.freeze(3);
        let tail = bytes.slice(1..);
        drop(bytes);
        assert_eq!((&tail[..], pool.in_use_bytes(), pool.idle_bytes()), (&b"bc"[..], 8192, 0));
        std::thread::spawn(move || drop(tail)).join().expect("dropped on another thread");
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (0, 8192));
        assert_eq!(pool.get(8192).as_mut_ptr() as usize, address, "the same memory is used again");
    }

    #[test]
    fn large_buffers_lie_in_huge_pages() {
        let pool = BufferPool::new(1 << 20);
        let mut first = pool.get(LARGE_BYTES);
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (LARGE_BYTES, LARGE_BYTES));
        let mut second = pool.get(LARGE_BYTES);
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (HUGE_BYTES, 0));
        let (one, other) = (first.as_mut_ptr() as usize, second.as_mut_ptr() as usize);
        assert_eq!((one % HUGE_BYTES, other), (0, one + LARGE_BYTES));
        for buffer in [&mut first, &mut second] {
            buffer.as_mut_slice().fill(7);
        }
        drop(first);
        assert!(second.as_slice().iter().all(|byte| *byte == 7), "each is a mapping of its own");
        let mut larger = pool.get(LARGE_BYTES + 1);
        assert_eq!((larger.as_mut_ptr() as usize % HUGE_BYTES, larger.capacity()), (0, HUGE_BYTES));
        larger.as_mut_slice().fill(8);
        let small = BufferPool::new(0);
        drop((small.get(LARGE_BYTES), small.get(LARGE_BYTES)));
        assert_eq!((small.in_use_bytes(), small.idle_bytes()), (0, 0));
    }

    /// Bytes of a buffer that take memory.
    fn resident(buffer: &mut BufMut) -> usize {
        let mut pages = vec![0; buffer.capacity() / BUFFER_ALIGN];
        // SAFETY: the range is the buffer's mapping, and there is a byte for each page of it.
        let told =
            unsafe { libc::mincore(buffer.as_mut_ptr().cast(), buffer.capacity(), pages.as_mut_ptr()) };
        assert_eq!(told, 0, "mincore");
        pages.iter().filter(|page| **page & 1 == 1).count() * BUFFER_ALIGN
    }

    #[test]
    fn a_sparse_buffer_takes_memory_only_for_written_bytes() {
        let pool = BufferPool::new(64 << 20);
        let mut sparse = pool.get_sparse(LARGE_BYTES + 1);
        let address = sparse.as_mut_ptr() as usize;
        sparse.as_mut_slice()[..5000].fill(7);
        assert_eq!(resident(&mut sparse), 2 * BUFFER_ALIGN);
        drop(sparse);
        let mut whole = pool.get(LARGE_BYTES + 1);
        assert_ne!(whole.as_mut_ptr() as usize, address, "the kinds are kept apart");
        whole.as_mut_slice().fill(8);
        drop(whole);
        let mut again = pool.get_sparse(HUGE_BYTES);
        assert_eq!((again.as_mut_ptr() as usize, resident(&mut again)), (address, 2 * BUFFER_ALIGN));
        assert_eq!(pool.idle_bytes(), HUGE_BYTES);
        // Small sizes have one kind only.
        let small = pool.get_sparse(4096).as_mut_ptr() as usize;
        assert_eq!(pool.get(4096).as_mut_ptr() as usize, small);
    }

    #[test]
    fn what_lands_keeps_its_place_and_the_next_comes_behind_it() {
        let pool = BufferPool::new(1 << 20);
        for sparse in [true, false] {
            let mut landing = pool.get_landing(64 << 10, sparse);
            let start = landing.as_mut_ptr() as usize;
            let mut fronts = Vec::new();
            for (number, len) in [(1u8, 4096usize), (2, 40 << 10), (3, 16 << 10)] {
                landing.as_mut_slice().fill(number);
                let (front, rest) = landing.split_front(len);
                fronts.push((number, len, front));
                let Some(rest) = rest else { panic!("something is left after {number}") };
                landing = rest;
            }
            let mut at = start;
            for (number, len, front) in &fronts {
                assert_eq!((front.as_ptr() as usize, front.len()), (at, *len));
                assert!(front.iter().all(|byte| byte == number), "{number}");
                at += len;
            }
            assert_eq!((landing.as_mut_ptr() as usize, landing.capacity()), (at, 4096));
            let (last, rest) = landing.split_front(4096);
            assert!(rest.is_none() && last.len() == 4096);
            drop((fronts, pool.get(4096)));
            assert_eq!(pool.in_use_bytes(), 64 << 10, "the last one keeps the memory");
            drop(last);
            assert_eq!(pool.in_use_bytes(), 0);
        }
        let (front, rest) = pool.get(8192).split_front(4096);
        assert!(rest.is_none() && front.len() == 4096, "a buffer that is no landing has no rest");
    }

    #[test]
    fn idle_memory_is_bounded() {
        let pool = BufferPool::new(64 << 10);
        drop((0..100).map(|_| pool.get(4096)).collect::<Vec<_>>());
        assert_eq!(pool.idle_bytes(), 64 << 10);
        drop(pool.get(128 << 10));
        assert_eq!((pool.idle_bytes(), pool.in_use_bytes()), (64 << 10, 0));
        let roomy = BufferPool::new(1 << 30);
        drop((0..10).map(|_| roomy.get(4 << 20)).collect::<Vec<_>>());
        assert_eq!(roomy.idle_bytes(), LARGE_IDLE_MAX * (4 << 20), "large buffers are freed early");
    }

    /// A load whose sizes change would otherwise map and fault every buffer anew, beside memory of
    /// sizes that are no longer asked for.
    #[test]
    fn buffers_of_sizes_in_use_stay_and_those_of_earlier_sizes_go() {
        let pool = BufferPool::new(64 << 10);
        drop((0..16).map(|_| pool.get(4096)).collect::<Vec<_>>());
        assert_eq!(pool.idle_bytes(), 64 << 10, "full of small ones");
        let mut first = pool.get(16 << 10);
        let address = first.as_mut_ptr() as usize;
        drop(first);
        assert_eq!(pool.idle_bytes(), 64 << 10);
        assert_eq!(pool.get(16 << 10).as_mut_ptr() as usize, address, "the same memory is used again");
        // The bound also holds for one size alone.
        drop((0..8).map(|_| pool.get(16 << 10)).collect::<Vec<_>>());
        assert!(pool.idle_bytes() <= 64 << 10);
    }

    #[test]
    fn the_bound_holds_between_threads() {
        let pool = BufferPool::new(32 << 10);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let pool = pool.clone();
                std::thread::spawn(move || {
                    for round in 0..2000usize {
                        let held: Vec<_> =
                            (0..round % 7).map(|n| pool.get(4096 << (n % 3)).freeze(1)).collect();
                        drop(held);
                        assert!(pool.idle_bytes() <= (32 << 10) + 4 * (16 << 10));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("the bound held");
        }
        assert!(pool.idle_bytes() <= 32 << 10 && pool.in_use_bytes() == 0);
    }
}
