//! Small buffers that are pieces of larger ones, with one count of references for all of them.
//!
//! A request with a buffer of its own costs a visit to the pool, and an allocation for the count of
//! references. A piece of a stretch that is a block long costs a sixteenth of both. The price: the
//! memory of a stretch returns to the pool with its last piece. So a piece that stays keeps the
//! places of those that have gone. Therefore pieces of one stretch must end together, more or less.
//! Such are pieces that pass soon ([`BufferPool::get_passing`]), and the payloads of one device
//! ([`Stretch`]), whose batches leave memory in the order in which they came. Content longer than
//! [`PIECE_BYTES_MAX`] gets a buffer of its own.
//!
//! The worst case keeps 64 KiB in place of 4: for each operation on a disk that hangs, and for each
//! answer out of memory that a client without a disk does not take. Their numbers are bounded (a
//! device's requests, a client's).

use super::{BUFFER_ALIGN, BufMut, BufferPool, PoolShared};
use bytes::Bytes;
use std::ptr::NonNull;
use std::sync::Arc;

/// Longest piece, in bytes. With pieces of twice the length, up to half of a stretch would be left
/// over where the next one does not fit.
pub const PIECE_BYTES_MAX: usize = 16 << 10;
/// Size of the buffer that pieces are cut from, in bytes; a size class of the pool.
pub const STRETCH_BYTES: usize = 64 << 10;
const _: () = assert!(STRETCH_BYTES.is_power_of_two() && STRETCH_BYTES >= 4 * PIECE_BYTES_MAX);

/// A place in a stretch that belongs to this piece alone.
pub(super) struct Piece {
    start: NonNull<u8>,
    bytes: usize,
    /// The same place as bytes that can be shared. They have no reader while the piece can be
    /// written.
    shared: Bytes,
}

// SAFETY: the place belongs to this piece alone, wherever in the process that is; `shared` keeps
// its memory.
unsafe impl Send for Piece {}
// SAFETY: through a shared reference the place is only read.
unsafe impl Sync for Piece {}

impl Piece {
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of a buffer, as a piece that can be divided.
    pub(super) fn of_all(mut buffer: BufMut) -> Self {
        let bytes = buffer.capacity();
        // The pointer comes from the mapping itself: `shared` must not be written through.
        let start = NonNull::new(buffer.as_mut_ptr()).expect("a mapping is never at address zero");
        Self { start, bytes, shared: buffer.freeze(bytes) }
    }

    pub(super) fn freeze(self, len: usize) -> Bytes {
        let mut shared = self.shared;
        shared.truncate(len);
        shared
    }

    /// The first `len` bytes, which nobody writes to any more, and what is left after them.
    pub(super) fn split_front(self, len: usize) -> (Bytes, Option<Self>) {
        let Self { start, bytes, mut shared } = self;
        let front = shared.split_to(len);
        if len == bytes {
            return (front, None);
        }
        // SAFETY: within the mapping: `split_to` has seen that `len` is at most `bytes`.
        let start = unsafe { start.add(len) };
        (front, Some(Self { start, bytes: bytes - len, shared }))
    }
}

/// A stretch of which something is left.
pub(super) struct Begun {
    start: NonNull<u8>,
    used: usize,
    all: Bytes,
}

// SAFETY: as for a piece: what is left belongs to this alone.
unsafe impl Send for Begun {}

impl Begun {
    fn new(shared: &Arc<PoolShared>) -> Self {
        let memory = shared.take(super::class_of(STRETCH_BYTES), false);
        let mut buffer = BufMut::whole(memory, Arc::clone(shared));
        // The pointer comes from the mapping itself: `all` must not be written through.
        let start = NonNull::new(buffer.as_mut_ptr()).expect("a mapping is never at address zero");
        Self { start, used: 0, all: buffer.freeze(STRETCH_BYTES) }
    }

    fn cut(&mut self, bytes: usize) -> Option<BufMut> {
        let end = self.used.checked_add(bytes).filter(|end| *end <= STRETCH_BYTES)?;
        let shared = self.all.slice(self.used..end);
        // SAFETY: within the mapping, as was seen two lines above.
        let start = unsafe { self.start.add(self.used) };
        self.used = end;
        Some(BufMut::piece(Piece { start, bytes, shared }))
    }
}

/// A piece of at least `len` bytes, at most [`PIECE_BYTES_MAX`], of what is begun, or else of a new
/// stretch.
pub(super) fn cut(begun: &mut Option<Begun>, len: usize, shared: &Arc<PoolShared>) -> BufMut {
    debug_assert!(len <= PIECE_BYTES_MAX);
    let bytes = len.next_multiple_of(BUFFER_ALIGN).max(BUFFER_ALIGN);
    if let Some(piece) = begun.as_mut().and_then(|begun| begun.cut(bytes)) {
        return piece;
    }
    // The old one first: if all its pieces are back, its memory is the next one's.
    *begun = None;
    begun.insert(Begun::new(shared)).cut(bytes).expect("a piece is shorter than a stretch")
}

/// Gives buffers for the payloads of one device. Holds up to [`STRETCH_BYTES`] once there was one
/// that is short.
pub struct Stretch {
    pool: BufferPool,
    begun: Option<Begun>,
}

impl Stretch {
    #[must_use]
    pub fn new(pool: BufferPool) -> Self {
        Self { pool, begun: None }
    }

    /// A buffer of at least `len` bytes. Its content is initialised but arbitrary.
    ///
    /// # Panics
    /// As [`BufferPool::get`].
    #[must_use]
    pub fn get(&mut self, len: usize) -> BufMut {
        if len > PIECE_BYTES_MAX {
            return self.pool.get(len);
        }
        cut(&mut self.begun, len, &self.pool.shared)
    }

    /// An aligned copy of `bytes`.
    #[must_use]
    pub fn copy_of(&mut self, bytes: &[u8]) -> Bytes {
        super::copied(self.get(bytes.len()), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BUFFER_ALIGN;

    #[test]
    fn pieces_are_neighbours_and_do_not_overlap() {
        let pool = BufferPool::new(1 << 20);
        let mut stretch = Stretch::new(pool.clone());
        let mut pieces: Vec<_> = (0..STRETCH_BYTES / BLOCK).map(|_| stretch.get(100)).collect();
        let first = pieces[0].as_mut_ptr() as usize;
        for (place, piece) in pieces.iter_mut().enumerate() {
            assert_eq!((piece.as_mut_ptr() as usize, piece.capacity()), (first + place * BLOCK, BLOCK));
            piece.as_mut_slice().fill(place as u8);
        }
        assert_eq!(pool.in_use_bytes(), STRETCH_BYTES, "all of one stretch");
        let mut next = stretch.get(BLOCK + 1);
        assert_eq!((next.capacity(), pool.in_use_bytes()), (2 * BLOCK, 2 * STRETCH_BYTES));
        next.as_mut_slice().fill(99);
        let frozen: Vec<_> = pieces.into_iter().map(|piece| piece.freeze(100)).collect();
        for (place, bytes) in frozen.iter().enumerate() {
            assert!(bytes.len() == 100 && bytes.iter().all(|byte| *byte == place as u8), "{place}");
        }
    }

    #[test]
    fn a_stretch_returns_with_its_last_piece_on_any_thread() {
        let pool = BufferPool::new(1 << 20);
        let mut stretch = Stretch::new(pool.clone());
        let kept = stretch.get(BLOCK).freeze(BLOCK);
        drop((0..STRETCH_BYTES / BLOCK).map(|_| stretch.get(BLOCK)).collect::<Vec<_>>());
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (2 * STRETCH_BYTES, 0), "one waits for a piece");
        std::thread::spawn(move || drop(kept)).join().expect("dropped on another thread");
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (STRETCH_BYTES, STRETCH_BYTES));
        drop(stretch);
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (0, 2 * STRETCH_BYTES));
    }

    /// Short-lived buffers are cut from the same memory again and again.
    #[test]
    fn short_lived_buffers_are_reused_beside_long_lived_ones() {
        let pool = BufferPool::new(1 << 20);
        let mut stretch = Stretch::new(pool.clone());
        let stays: Vec<_> = (0..40)
            .map(|_| {
                drop(pool.get_passing(BLOCK));
                stretch.get(BLOCK).freeze(BLOCK)
            })
            .collect();
        let of_those_that_stay = stays.len().div_ceil(STRETCH_BYTES / BLOCK) * STRETCH_BYTES;
        assert_eq!(pool.in_use_bytes(), of_those_that_stay + STRETCH_BYTES);
        assert_eq!(pool.idle_bytes(), 0, "one stretch was enough for what has passed");
        pool.end_passing();
        assert_eq!(pool.in_use_bytes(), of_those_that_stay);
    }

    #[test]
    fn a_long_piece_is_a_buffer_of_its_own() {
        let pool = BufferPool::new(1 << 20);
        let mut stretch = Stretch::new(pool.clone());
        drop((stretch.get(PIECE_BYTES_MAX + 1), pool.get_passing(PIECE_BYTES_MAX + 1)));
        assert_eq!((pool.in_use_bytes(), pool.idle_bytes()), (0, 4 * PIECE_BYTES_MAX));
        let piece = stretch.get(PIECE_BYTES_MAX);
        assert_eq!((piece.capacity(), pool.in_use_bytes()), (PIECE_BYTES_MAX, STRETCH_BYTES));
        assert_eq!(stretch.copy_of(&[7; 5000])[..], [7; 5000]);
    }

    #[test]
    fn a_pool_that_goes_takes_its_stretch_with_it() {
        let pool = BufferPool::new(1 << 20);
        let shared = Arc::downgrade(&pool.shared);
        let piece = pool.get_passing(BLOCK).freeze(1);
        drop(pool);
        assert!(shared.upgrade().is_some(), "a piece keeps its memory");
        drop(piece);
        assert!(shared.upgrade().is_none());
    }
}
