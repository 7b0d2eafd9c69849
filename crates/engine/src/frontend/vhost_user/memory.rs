//! The memory of a virtual machine, as far as its monitor shares it.
//!
//! Guarantees:
//! - Whatever a guest states as an address, only memory that was shared is read and written.
//! - Every access copies, so the content does not change while it is read.
//! - Memory is taken only from files that live in memory themselves (memfd, tmpfs, hugetlbfs). A
//!   file of another kind could make the shard wait for a disk, or for a process that serves the
//!   file and answers when it likes.
//! - Zeroes replace memory that is taken away again under the mapping, see [`crate::fault`].
//!   [`Memory::is_lost`] says so.

use crate::fault::Guarded;
use mainstay_codec::vhost_user::MemoryRegion;
use rustix::fs::{FileType, FsWord, SealFlags, fcntl_get_seals, fstat, fstatfs};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use thiserror::Error;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemory, GuestMemoryMmap, GuestRegionMmap, MmapRegion, Permissions,
};

const TMPFS_MAGIC: FsWord = 0x0102_1994;
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;
/// A machine of x86-64 or ARM has no physical addresses beyond.
const ADDRESS_MAX: u64 = 1 << 52;

/// Why memory was not taken.
#[derive(Debug, Error)]
pub enum MemoryError {
    #[error("a region came without its file, or with one too many")]
    Files,
    #[error("a region has no bytes, or lies beyond every address")]
    Extent,
    #[error("a region reaches beyond the end of its file")]
    Short,
    #[error("a region's file is none that lives in memory (memfd, tmpfs, hugetlbfs)")]
    Kind,
    #[error("regions overlap")]
    Overlap,
    #[error("cannot map a region")]
    Map(#[source] io::Error),
}

/// An address that is not of shared memory, or one that is not aligned as what lies there must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outside;

/// Where the monitor sees a region and where the guest does.
struct Window {
    user: u64,
    guest: u64,
    bytes: u64,
}

/// See the top of this file.
pub struct Memory {
    /// Before the mappings, so that it is dropped before them.
    guarded: Vec<Guarded>,
    guest: GuestMemoryMmap<()>,
    windows: Vec<Window>,
}

impl Memory {
    /// Maps the regions, each with the file of the same place.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn map(regions: &[MemoryRegion], files: Vec<OwnedFd>) -> Result<Self, MemoryError> {
        if regions.len() != files.len() {
            return Err(MemoryError::Files);
        }
        let mut mapped = Vec::with_capacity(regions.len());
        let mut windows = Vec::with_capacity(regions.len());
        let mut guarded = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            let end = |start: u64| start.checked_add(region.bytes).filter(|_| region.bytes > 0);
            if end(region.user).is_none() || end(region.guest).is_none_or(|end| end > ADDRESS_MAX) {
                return Err(MemoryError::Extent);
            }
            let end = end(region.offset).ok_or(MemoryError::Extent)?;
            let shrinks = check(&file, end)?;
            let size = usize::try_from(region.bytes).map_err(|_| MemoryError::Extent)?;
            let mapping = MmapRegion::from_file(FileOffset::new(File::from(file), region.offset), size)
                .map_err(|error| MemoryError::Map(io::Error::other(error)))?;
            if shrinks {
                let guard = Guarded::new(mapping.as_ptr(), size).ok_or(MemoryError::Map(
                    io::Error::other("too much memory of virtual machines that could be taken away"),
                ))?;
                guarded.push(guard);
            }
            let base = GuestAddress(region.guest);
            mapped.push(GuestRegionMmap::new(mapping, base).ok_or(MemoryError::Extent)?);
            windows.push(Window { user: region.user, guest: region.guest, bytes: region.bytes });
        }
        mapped.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(region).0);
        let guest = GuestMemoryMmap::from_regions(mapped).map_err(|_| MemoryError::Overlap)?;
        Ok(Self { guarded, guest, windows })
    }

    /// The guest's address of `len` bytes of which the monitor's is given.
    pub fn guest_address(&self, user: u64, len: u64) -> Option<u64> {
        self.windows.iter().find_map(|window| {
            let at = user.checked_sub(window.user)?;
            at.checked_add(len).filter(|end| *end <= window.bytes)?;
            Some(window.guest + at)
        })
    }

    /// Whether all of this is there.
    pub fn holds(&self, address: u64, len: u64) -> bool {
        usize::try_from(len)
            .is_ok_and(|len| self.guest.check_range(GuestAddress(address), len, Permissions::ReadWrite))
    }

    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Outside> {
        self.guest.read_slice(into, GuestAddress(address)).map_err(|_| Outside)
    }

    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Outside> {
        self.guest.write_slice(from, GuestAddress(address)).map_err(|_| Outside)
    }

    pub fn load(&self, address: u64, order: Ordering) -> Result<u16, Outside> {
        self.guest.load(GuestAddress(address), order).map(u16::from_le).map_err(|_| Outside)
    }

    pub fn store(&self, address: u64, value: u16, order: Ordering) -> Result<(), Outside> {
        self.guest.store(value.to_le(), GuestAddress(address), order).map_err(|_| Outside)
    }

    /// A part of the memory was taken away under the mapping: what was read there since are zeroes.
    pub fn is_lost(&self) -> bool {
        self.guarded.iter().any(Guarded::is_lost)
    }
}

/// Whether the file may become shorter than it is.
fn check(file: &OwnedFd, end: u64) -> Result<bool, MemoryError> {
    let stat = fstat(file).map_err(|error| MemoryError::Map(error.into()))?;
    let system = fstatfs(file).map_err(|error| MemoryError::Map(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&system.f_type)
    {
        return Err(MemoryError::Kind);
    }
    if u64::try_from(stat.st_size).is_ok_and(|size| size < end) {
        return Err(MemoryError::Short);
    }
    Ok(!fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    /// A file in memory of `bytes` bytes.
    pub fn memfd(bytes: u64, sealed: bool) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&file, bytes).expect("memory");
        if sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK).expect("sealed");
        }
        file
    }

    fn region(guest: u64, bytes: u64) -> MemoryRegion {
        MemoryRegion { guest, bytes, user: guest.wrapping_add(1 << 40), offset: 0 }
    }

    #[test]
    fn only_shared_guest_memory_is_reached() {
        let regions = [region(1 << 20, 8192), region(0, 4096)];
        let memory = Memory::map(&regions, vec![memfd(8192, true), memfd(4096, true)]).expect("mapped");
        assert_eq!(memory.guest_address((1 << 40) + (1 << 20) + 4096, 4096), Some((1 << 20) + 4096));
        assert_eq!(memory.guest_address((1 << 40) + (1 << 20) + 4097, 4096), None);
        assert_eq!(memory.guest_address(u64::MAX, u64::MAX), None);
        assert_eq!(memory.write(4095, b"x"), Ok(()));
        assert_eq!(memory.write(4095, b"xy"), Err(Outside), "into the hole");
        let mut byte = [0];
        assert_eq!((memory.read(4095, &mut byte), byte), (Ok(()), *b"x"));
        assert_eq!(memory.read(u64::MAX, &mut byte), Err(Outside));
        assert!(memory.holds(1 << 20, 8192) && !memory.holds(1 << 20, 8193) && !memory.holds(1, u64::MAX));
        assert_eq!(memory.load(1, Ordering::Relaxed), Err(Outside), "not aligned");
        assert_eq!(memory.store(4094, 7, Ordering::Relaxed), Ok(()));
        assert_eq!(memory.load(4094, Ordering::Relaxed), Ok(7));
        assert_eq!(memory.load(4096, Ordering::Relaxed), Err(Outside));
    }

    #[test]
    fn impossible_memory_is_refused() {
        let try_it = |regions: &[MemoryRegion], files| Memory::map(regions, files).err();
        let file = || memfd(8192, false);
        assert!(matches!(try_it(&[region(0, 4096)], vec![]), Some(MemoryError::Files)));
        assert!(matches!(try_it(&[region(0, 0)], vec![file()]), Some(MemoryError::Extent)));
        assert!(matches!(try_it(&[region(u64::MAX - 1, 4096)], vec![file()]), Some(MemoryError::Extent)));
        let far = MemoryRegion { offset: u64::MAX, ..region(0, 4096) };
        assert!(matches!(try_it(&[far], vec![file()]), Some(MemoryError::Extent)));
        let beyond = MemoryRegion { offset: 4096, ..region(0, 8192) };
        assert!(matches!(try_it(&[beyond], vec![file()]), Some(MemoryError::Short)));
        let crooked = MemoryRegion { offset: 1, ..region(0, 4096) };
        assert!(matches!(try_it(&[crooked], vec![file()]), Some(MemoryError::Map(_))));
        let both = [region(0, 8192), region(4096, 8192)];
        assert!(matches!(try_it(&both, vec![file(), file()]), Some(MemoryError::Overlap)));
        let null = File::options().read(true).write(true).open("/dev/zero").expect("a device");
        assert!(matches!(try_it(&[region(0, 4096)], vec![null.into()]), Some(MemoryError::Kind)));
    }

    #[test]
    fn memory_that_is_taken_away_reads_as_zeroes() {
        let file = memfd(1 << 20, false);
        let again = file.try_clone().expect("a copy");
        let memory = Memory::map(&[region(0, 1 << 20)], vec![file]).expect("mapped");
        memory.write(8192, b"content").expect("written");
        assert!(!memory.is_lost());
        ftruncate(&again, 4096).expect("shorter");
        let mut found = [1; 7];
        assert_eq!((memory.read(8192, &mut found), found), (Ok(()), [0; 7]));
        assert!(memory.is_lost());
        assert_eq!(memory.write(8192, b"content"), Ok(()), "nowhere");
        let sealed = Memory::map(&[region(0, 4096)], vec![memfd(4096, true)]).expect("mapped");
        assert!(sealed.guarded.is_empty() && !sealed.is_lost());
    }
}
