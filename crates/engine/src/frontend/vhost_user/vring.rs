//! One queue of a virtual machine: a split ring, section 2.7 of the virtio specification, version
//! 1.2.
//!
//! The driver puts heads of descriptor chains into the *available* ring, the device takes them and
//! puts them into the *used* ring when they are done. Both can tell the other one how far they want
//! to be left alone: with EVENT_IDX by a position, without it by a flag.
//!
//! Guarantee: every field is read once. Whatever the driver has written, nothing is
//! touched outside of shared memory, and a chain is followed for a bounded time. [`Fault`] has the
//! ways to break the rules that no answer could mend.

use super::memory::{Memory, Outside};
use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};

/// Most heads of a ring, of the 32768 that the specification allows.
pub const SIZE_MAX: u16 = 1024;
/// Most descriptors of a chain, in an indirect table too, which may be longer than the ring.
const DESCRIPTORS_MAX: u16 = 1024;
const DESCRIPTOR_BYTES: u64 = 16;
const USED_BYTES: u64 = 8;

const FLAG_NEXT: u16 = 1 << 0;
const FLAG_WRITE: u16 = 1 << 1;
const FLAG_INDIRECT: u16 = 1 << 2;
/// In the available ring: the device need not call.
const NO_INTERRUPT: u16 = 1;

/// Breach of the rules by a driver, in words. The ring is used no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault(pub &'static str);

impl From<Outside> for Fault {
    fn from(_: Outside) -> Self {
        Self("a part of the ring is not in shared memory")
    }
}

/// Guest addresses of the parts of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// A stretch of guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub address: u64,
    pub bytes: u64,
}

/// The buffers of a request: what the device reads, then what it writes.
#[derive(Default, Debug)]
pub struct Chain {
    pub readable: Vec<Piece>,
    pub writable: Vec<Piece>,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Vring {
    size: u16,
    parts: Parts,
    event_idx: bool,
    /// Position in the available ring of the head that is taken next.
    available: Wrapping<u16>,
    /// Position in the used ring where the next head is put back.
    used: Wrapping<u16>,
    /// Up to where the driver was called; `None` before the first time.
    called: Option<Wrapping<u16>>,
}

impl Vring {
    /// A ring of which everything before `available` was taken. `None` keeps the device's own
    /// position in the used ring, which is the driver's to read, where it is.
    pub fn new(
        memory: &Memory,
        size: u16,
        parts: Parts,
        event_idx: bool,
        available: u16,
    ) -> Result<Self, Fault> {
        if !size.is_power_of_two() || size > SIZE_MAX {
            return Err(Fault("its size is no power of two, or more than 1024"));
        }
        let entries = u64::from(size);
        let lie = memory.holds(parts.descriptors, DESCRIPTOR_BYTES * entries)
            && memory.holds(parts.available, 6 + 2 * entries)
            && memory.holds(parts.used, 6 + USED_BYTES * entries);
        let aligned = parts.descriptors.is_multiple_of(16)
            && parts.available.is_multiple_of(2)
            && parts.used.is_multiple_of(4);
        if !lie || !aligned {
            return Err(Fault("a part of the ring is not in shared memory, or not aligned"));
        }
        let used = Wrapping(memory.load(parts.used + 2, Ordering::Acquire)?);
        Ok(Self { size, parts, event_idx, available: Wrapping(available), used, called: None })
    }

    /// Up to where heads were taken.
    pub fn available(&self) -> u16 {
        self.available.0
    }

    /// Up to where they were put back.
    pub fn used(&self) -> u16 {
        self.used.0
    }

    /// Goes to another place: everything before it was taken.
    pub fn set_available(&mut self, available: u16) {
        self.available = Wrapping(available);
    }

    /// Takes the next head, if there is one.
    pub fn take(&mut self, memory: &Memory) -> Result<Option<u16>, Fault> {
        let ahead = Wrapping(memory.load(self.parts.available + 2, Ordering::Acquire)?) - self.available;
        if ahead.0 == 0 {
            return Ok(None);
        }
        if ahead.0 > self.size {
            return Err(Fault("it offers more than it has places"));
        }
        let place = u64::from(self.available.0 % self.size);
        let head = memory.load(self.parts.available + 4 + 2 * place, Ordering::Relaxed)?;
        if head >= self.size {
            return Err(Fault("it offers a descriptor that it does not have"));
        }
        self.available += 1;
        Ok(Some(head))
    }

    /// Wants a kick for what comes next; whether there is something already.
    pub fn listen(&mut self, memory: &Memory) -> Result<bool, Fault> {
        if self.event_idx {
            let event = self.parts.used + 4 + USED_BYTES * u64::from(self.size);
            memory.store(event, self.available.0, Ordering::Relaxed)?;
        } else {
            memory.store(self.parts.used, 0, Ordering::Relaxed)?;
        }
        fence(Ordering::SeqCst);
        let index = memory.load(self.parts.available + 2, Ordering::Acquire)?;
        Ok(index != self.available.0)
    }

    /// Puts a head back, with the number of bytes that were written into its buffers.
    pub fn put(&mut self, memory: &Memory, head: u16, written: u32) -> Result<(), Fault> {
        let place = self.parts.used + 4 + USED_BYTES * u64::from(self.used.0 % self.size);
        let mut entry = [0; USED_BYTES as usize];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(place, &entry)?;
        self.used += 1;
        memory.store(self.parts.used + 2, self.used.0, Ordering::Release)?;
        Ok(())
    }

    /// Whether the driver wants to be called for what was put since it was asked last.
    pub fn must_call(&mut self, memory: &Memory) -> Result<bool, Fault> {
        fence(Ordering::SeqCst);
        let before = self.called.replace(self.used);
        if !self.event_idx {
            return Ok(memory.load(self.parts.available, Ordering::Relaxed)? & NO_INTERRUPT == 0);
        }
        let at = self.parts.available + 4 + 2 * u64::from(self.size);
        let event = Wrapping(memory.load(at, Ordering::Relaxed)?);
        // The driver waits for the entry at `event`: was it among those that were put?
        Ok(before.is_none_or(|before| self.used - event - Wrapping(1) < self.used - before))
    }

    /// Follows the chain that begins at `head`, and leaves its pieces in `chain`, empty ones left
    /// out.
    pub fn follow(&self, memory: &Memory, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        chain.readable.clear();
        chain.writable.clear();
        let (mut table, mut entries, mut index) = (self.parts.descriptors, self.size, head);
        let mut is_indirect = false;
        for _ in 0..=DESCRIPTORS_MAX {
            if index >= entries {
                return Err(Fault("a chain leads to a descriptor that is not there"));
            }
            let descriptor = Descriptor::read(memory, table + DESCRIPTOR_BYTES * u64::from(index))?;
            if descriptor.flags & FLAG_INDIRECT != 0 {
                (table, entries) = descriptor.table(is_indirect)?;
                if !memory.holds(table, DESCRIPTOR_BYTES * u64::from(entries)) {
                    return Err(Fault("an indirect table is not in shared memory"));
                }
                (index, is_indirect) = (0, true);
                continue;
            }
            chain.push(memory, descriptor)?;
            if descriptor.flags & FLAG_NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(Fault("a chain has no end"))
    }
}

#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &Memory, at: u64) -> Result<Self, Fault> {
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        memory.read(at, &mut bytes)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Ok(Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            bytes: u32::from_le_bytes([i, j, k, l]),
            flags: u16::from_le_bytes([m, n]),
            next: u16::from_le_bytes([o, p]),
        })
    }

    /// The table that an indirect descriptor leads to, and the number of its descriptors.
    fn table(self, is_indirect: bool) -> Result<(u64, u16), Fault> {
        let entries = u64::from(self.bytes) / DESCRIPTOR_BYTES;
        let fits = entries > 0 && entries <= DESCRIPTORS_MAX.into();
        if is_indirect || self.flags & FLAG_NEXT != 0 || !fits || !self.bytes.is_multiple_of(16) {
            return Err(Fault("an indirect descriptor is in the wrong place, or has an impossible length"));
        }
        Ok((self.address, entries as u16))
    }
}

impl Chain {
    fn push(&mut self, memory: &Memory, descriptor: Descriptor) -> Result<(), Fault> {
        let piece = Piece { address: descriptor.address, bytes: descriptor.bytes.into() };
        let writes = descriptor.flags & FLAG_WRITE != 0;
        if !writes && !self.writable.is_empty() {
            return Err(Fault("a chain has something to read behind what is to be written"));
        }
        if piece.bytes == 0 {
            return Ok(());
        }
        if !memory.holds(piece.address, piece.bytes) {
            return Err(Fault("a buffer is not in shared memory"));
        }
        let pieces = if writes { &mut self.writable } else { &mut self.readable };
        pieces.push(piece);
        Ok(())
    }
}

/// Bytes of all pieces.
pub fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes).sum()
}

/// The parts of the pieces that hold `len` bytes from the one at `from` on, with how many bytes
/// come before each of them.
fn parts_of(pieces: &[Piece], from: u64, len: u64) -> impl Iterator<Item = (usize, Piece)> + '_ {
    let (mut skip, mut done) = (from, 0);
    pieces.iter().filter_map(move |piece| {
        let before = skip.min(piece.bytes);
        skip -= before;
        let bytes = (piece.bytes - before).min(len - done);
        let at = done;
        done += bytes;
        (bytes > 0).then_some((at as usize, Piece { address: piece.address + before, bytes }))
    })
}

/// Copies out of the pieces, from the byte at `from` on; they must hold as many.
pub fn copy_out(memory: &Memory, pieces: &[Piece], from: u64, into: &mut [u8]) -> Result<(), Outside> {
    let len = into.len() as u64;
    assert!(from + len <= bytes_of(pieces), "checked against the length of the chain");
    for (at, piece) in parts_of(pieces, from, len) {
        memory.read(piece.address, &mut into[at..at + piece.bytes as usize])?;
    }
    Ok(())
}

/// Copies into the pieces, from the byte at `to` on; they must hold as many.
pub fn copy_in(memory: &Memory, pieces: &[Piece], to: u64, from: &[u8]) -> Result<(), Outside> {
    let len = from.len() as u64;
    assert!(to + len <= bytes_of(pieces), "checked against the length of the chain");
    for (at, piece) in parts_of(pieces, to, len) {
        memory.write(piece.address, &from[at..at + piece.bytes as usize])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
