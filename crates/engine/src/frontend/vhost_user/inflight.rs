//! Notes of the requests that were taken from a machine's queues and not answered. They outlive the
//! engine: they are in a file in memory that the machine's monitor keeps. The monitor hands the
//! file to the next engine that it connects to.
//!
//! ```text
//! header      of this engine's own: whose disk, and in which run it was served last
//! per queue   features 8, version 2, size 2, last batch 2, used 2; then for each head: in flight 1, padding 5, next 2, counter 8
//! ```
//! The part per queue is that of the vhost-user document ("Inflight I/O tracking", split rings),
//! with batches of one. A head is noted when it is taken, with a counter for the order. When it is
//! put back, the notes are written around the step that the driver sees, so that an engine that
//! dies between any two of them leaves enough to tell whether that step was made:
//!
//! ```text
//! last batch := head ── used ring: entry, index ──▶ head not in flight ── used := index
//! ```
//! Guarantee: after any death of the engine, it asks again for every head that was taken
//! and not put back. It does so once, in the order in which they were taken, and for no other head.
//!
//! **Why asking again is right.** A request that is asked again was never answered. A write of it
//! may have been committed. To commit it again writes the same bytes, unless another node wrote in
//! between. Whether another node can have written is told by runs ([`super::runs`]): the header
//! names the run in which the disk was served last. If the present run is another one, the machine
//! is of the past. Its requests then fail (R19), as its caches are of the past as well.
//!
//! The monitor can write to the whole area. By that it can harm only its own machine, whose disk it
//! may write anyway. So nothing here is believed beyond its bounds.

use super::runs::Run;
use mainstay_codec::vhost_user::InflightArea;
use mainstay_types::{ResourceId, VolumeId};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use thiserror::Error;
use vm_memory::{
    AtomicAccess, Bytes, FileOffset, GuestAddress, GuestMemory, GuestMemoryMmap, GuestRegionMmap,
};

/// "MSinflt1", so that an area of something else is recognised.
const MAGIC: u64 = 0x3174_6c66_6e69_534d;
const HEADER_BYTES: u64 = 64;
const QUEUE_HEADER_BYTES: u64 = 16;
const HEAD_BYTES: u64 = 16;
/// Version of the part per queue, as the vhost-user document numbers it.
const VERSION: u16 = 1;

/// Why an area cannot be used.
#[derive(Debug, Error)]
pub enum InflightError {
    #[error("it is of something else, or of another disk")]
    Foreign,
    #[error("its size is not that of its queues")]
    Size,
    #[error("its file could become shorter")]
    NotSealed,
    #[error("it cannot be made or mapped")]
    System(#[from] io::Error),
}

/// Volume that an area belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    pub resource: ResourceId,
    pub volume: VolumeId,
}

/// See the top of this file.
pub struct Inflight {
    /// At address zero: what vm-memory gives is bounds-checked and atomic.
    memory: GuestMemoryMmap<()>,
    queues: u16,
    size: u16,
}

fn queue_bytes(size: u16) -> u64 {
    (QUEUE_HEADER_BYTES + HEAD_BYTES * u64::from(size)).next_multiple_of(64)
}

fn area_bytes(queues: u16, size: u16) -> u64 {
    HEADER_BYTES + queue_bytes(size) * u64::from(queues)
}

impl Inflight {
    /// A new area in which nothing is in flight, and the file that it is in.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn make(
        disk: Disk,
        run: Run,
        queues: u16,
        size: u16,
    ) -> Result<(InflightArea, OwnedFd), InflightError> {
        let bytes = area_bytes(queues, size);
        let file = memfd_create("mainstay-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(io::Error::from)?;
        // All of it is allocated now: a page that cannot be had later would end the engine.
        fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(io::Error::from)?;
        let area = InflightArea { bytes, offset: 0, queues, queue_size: size };
        let made = Self::map(&area, file.try_clone()?)?;
        let fields = [MAGIC, disk.resource.0, u64::from(disk.volume.0), run.0];
        for (place, value) in fields.into_iter().enumerate() {
            made.put(8 * place as u64, value);
        }
        Ok((area, file))
    }

    /// Takes the area that a monitor has kept, and says in which run it was served last.
    ///
    /// # Errors
    /// When it is not one that was made here, for this disk.
    pub fn open(disk: Disk, area: &InflightArea, file: OwnedFd) -> Result<(Self, Run), InflightError> {
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(InflightError::NotSealed);
        }
        let long = u64::try_from(fstat(&file).map_err(io::Error::from)?.st_size).unwrap_or(0);
        let bytes = area_bytes(area.queues, area.queue_size);
        if area.offset != 0 || area.bytes != bytes || long < bytes || area.queues == 0 || area.queue_size == 0
        {
            return Err(InflightError::Size);
        }
        let opened = Self::map(area, file)?;
        let found: [u64; 3] = [opened.get(0), opened.get(8), opened.get(16)];
        if found != [MAGIC, disk.resource.0, u64::from(disk.volume.0)] {
            return Err(InflightError::Foreign);
        }
        let run = Run(opened.get(24));
        Ok((opened, run))
    }

    fn map(area: &InflightArea, file: OwnedFd) -> io::Result<Self> {
        let bytes = usize::try_from(area.bytes).map_err(io::Error::other)?;
        let file = FileOffset::new(File::from(file), 0);
        let region = GuestRegionMmap::from_range(GuestAddress(0), bytes, Some(file));
        let region = region.map_err(io::Error::other)?;
        let memory = GuestMemoryMmap::from_regions(vec![region]).map_err(io::Error::other)?;
        Ok(Self { memory, queues: area.queues, size: area.queue_size })
    }

    pub fn queues(&self) -> u16 {
        self.queues
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// Whether the queue was never served with this area.
    pub fn is_fresh(&self, queue: u16) -> bool {
        self.get::<u16>(self.queue(queue) + 8) == 0
    }

    /// Begins to note for a queue that was never served with this area. `used`: its position in the
    /// used ring.
    pub fn begin(&self, queue: u16, used: u16) {
        let at = self.queue(queue);
        self.put(at + 10, self.size);
        self.put(at + 14, used);
        self.put(at + 8, VERSION);
    }

    /// The heads that were taken and not put back, in the order in which they were taken. `used`:
    /// the position in the used ring, as the driver sees it.
    pub fn resume(&self, queue: u16, used: u16) -> Vec<u16> {
        let at = self.queue(queue);
        if self.get::<u16>(at + 14) != used {
            // It died between the two: the last one was put back.
            let last = self.get::<u16>(at + 12);
            if last < self.size {
                self.put(self.head(queue, last), 0u8);
            }
            self.put(at + 14, used);
        }
        let heads = (0..self.size).filter(|head| self.get::<u8>(self.head(queue, *head)) == 1);
        let mut found: Vec<(u64, u16)> =
            heads.map(|head| (self.get(self.head(queue, head) + 8), head)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// A head was taken. `counter` rises with every one.
    pub fn take(&self, queue: u16, head: u16, counter: u64) {
        if head < self.size {
            let at = self.head(queue, head);
            self.put(at + 8, counter);
            self.put(at, 1u8);
        }
    }

    /// A head is put back now.
    pub fn putting(&self, queue: u16, head: u16) {
        let at = self.queue(queue) + 12;
        if head < self.size {
            let before: u16 = self.get(at);
            self.put(self.head(queue, head) + 6, before);
            self.put(at, head);
        }
    }

    /// Notes that a head was put back. `used` is the position in the used ring behind it.
    pub fn done(&self, queue: u16, head: u16, used: u16) {
        if head < self.size {
            self.put(self.head(queue, head), 0u8);
            self.put(self.queue(queue) + 14, used);
        }
    }

    fn queue(&self, queue: u16) -> u64 {
        HEADER_BYTES + queue_bytes(self.size) * u64::from(queue)
    }

    fn head(&self, queue: u16, head: u16) -> u64 {
        self.queue(queue) + QUEUE_HEADER_BYTES + HEAD_BYTES * u64::from(head)
    }

    fn get<T: AtomicAccess + Default>(&self, at: u64) -> T {
        debug_assert!(self.memory.check_range(
            GuestAddress(at),
            size_of::<T>(),
            vm_memory::Permissions::Read
        ));
        self.memory.load(GuestAddress(at), Ordering::Acquire).unwrap_or_default()
    }

    /// Stores values in the order of the calls, for the engine that reads them after this one has
    /// ended.
    fn put<T: AtomicAccess>(&self, at: u64, value: T) {
        let stored = self.memory.store(value, GuestAddress(at), Ordering::Release);
        debug_assert!(stored.is_ok(), "within the area, aligned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk { resource: ResourceId(7), volume: VolumeId(1) };

    fn area() -> (Inflight, InflightArea, OwnedFd) {
        let (area, file) = Inflight::make(DISK, Run(4), 2, 8).expect("memory");
        let (inflight, run) =
            Inflight::open(DISK, &area, file.try_clone().expect("a copy")).expect("made here");
        assert_eq!(run, Run(4));
        (inflight, area, file)
    }

    /// The steps of taking and putting back, and what the next engine finds when this one dies
    /// after `death` of them.
    #[test]
    fn a_death_between_any_two_steps_repeats_unanswered_requests() {
        for death in 0..=7 {
            let (inflight, area, file) = area();
            assert!(inflight.is_fresh(1));
            inflight.begin(1, 65535);
            // The position that the driver sees.
            let mut used = 65535u16;
            type Step<'a> = Box<dyn FnMut(&mut u16) + 'a>;
            let mut steps: Vec<Step<'_>> = vec![
                Box::new(|_| inflight.take(1, 5, 1)),
                Box::new(|_| inflight.take(1, 2, 2)),
                Box::new(|_| inflight.take(1, 7, 3)),
                Box::new(|_| inflight.putting(1, 2)),
                Box::new(|used| *used = used.wrapping_add(1)),
                Box::new(|used| inflight.done(1, 2, *used)),
                Box::new(|_| inflight.putting(1, 5)),
            ];
            steps.iter_mut().take(death).for_each(|step| step(&mut used));
            drop(steps);
            let (next, _) = Inflight::open(DISK, &area, file).expect("kept");
            assert!(!next.is_fresh(1) && next.is_fresh(0));
            let expected: &[u16] = match death {
                0 => &[],
                1 => &[5],
                2 => &[5, 2],
                3 | 4 => &[5, 2, 7],
                _ => &[5, 7],
            };
            assert_eq!(next.resume(1, used), expected, "dead after {death} steps");
            assert_eq!(next.resume(1, used), expected, "and once more");
        }
    }

    #[test]
    fn only_an_inflight_area_made_here_for_this_disk_is_taken() {
        let (_, area, file) = area();
        let open = |disk, area: &InflightArea, file: &OwnedFd| {
            Inflight::open(disk, area, file.try_clone().expect("a copy")).err()
        };
        let other = Disk { resource: ResourceId(8), ..DISK };
        assert!(matches!(open(other, &area, &file), Some(InflightError::Foreign)));
        for wrong in [
            InflightArea { queues: 3, ..area },
            InflightArea { queue_size: 0, ..area },
            InflightArea { bytes: u64::MAX, ..area },
            InflightArea { offset: 64, ..area },
            InflightArea { queues: u16::MAX, queue_size: u16::MAX, ..area },
        ] {
            assert!(matches!(open(DISK, &wrong, &file), Some(InflightError::Size)), "{wrong:?}");
        }
        let loose = crate::frontend::vhost_user::memory::tests::memfd(area.bytes, false);
        assert!(matches!(open(DISK, &area, &loose), Some(InflightError::NotSealed)));
        let empty = crate::frontend::vhost_user::memory::tests::memfd(area.bytes, true);
        assert!(matches!(open(DISK, &area, &empty), Some(InflightError::Foreign)));
    }

    #[test]
    fn notes_of_a_liar_stay_within_their_bounds() {
        let (inflight, ..) = area();
        inflight.begin(0, 0);
        inflight.put(inflight.queue(0) + 12, u16::MAX);
        for head in 0..8 {
            inflight.put(inflight.head(0, head), 0xffu8);
        }
        assert!(inflight.resume(0, 9).is_empty());
        inflight.take(0, u16::MAX, 1);
        inflight.putting(0, 8);
        inflight.done(0, 8, 1);
        assert!(inflight.resume(1, 0).is_empty());
    }
}
