//! Questions to the kernel about files and file systems for which no crate has a safe form.
#![allow(unsafe_code)]

use super::pages::{Extent, State};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
const EXT4_IOC_CLEAR_ES_CACHE: libc::Ioctl = 0x6628;
const XFS_IOC_FSGEOMETRY: libc::Ioctl = 0x8100_587e;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;

const LAST: u32 = 0x1;
/// The place is not known: the extent is in memory only, or in several places.
const UNPLACED: u32 = 0x2 | 0x4;
/// Encoded, encrypted, not aligned to blocks, or with other data in its blocks.
const ODD: u32 = 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// Extents that one call asks for at most.
const EXTENTS_MAX: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS_MAX],
}

const _: () = assert!(size_of::<RawExtent>() == 56);
const _: () = assert!(size_of::<Fiemap>() == 32 + 56 * EXTENTS_MAX);

/// An extent with what else the kernel says of it.
#[derive(Clone, Copy, Debug)]
pub struct Described {
    pub extent: Extent,
    pub is_shared: bool,
    /// Whether its bytes are not on the device as the file has them.
    pub is_odd: bool,
}

/// Tells `each` extent of a file, in the order of the file. `as_stored`: the file is on an ext4,
/// and its extents are wanted as they are stored. ext4 keeps neighbours in memory as one, and then
/// tells them as one.
///
/// # Errors
/// When the kernel does not tell.
pub fn extents(file: &File, as_stored: bool, each: &mut dyn FnMut(Described)) -> io::Result<()> {
    let mut map = Box::new(Fiemap {
        start: 0,
        length: 0,
        flags: 0,
        mapped: 0,
        count: 0,
        reserved: 0,
        extents: [RawExtent::default(); EXTENTS_MAX],
    });
    let mut start = 0u64;
    loop {
        // Whatever is asked for behind an extent would come from memory again.
        let count = if as_stored { 1 } else { EXTENTS_MAX };
        if as_stored {
            // SAFETY: this ioctl takes no argument; the descriptor is open.
            check(unsafe { libc::ioctl(file.as_raw_fd(), EXT4_IOC_CLEAR_ES_CACHE) })?;
        }
        (map.start, map.length, map.flags, map.mapped) = (start, u64::MAX - start, 0, 0);
        map.count = u32::try_from(count).unwrap_or(1);
        // SAFETY: `map` has the layout of `struct fiemap` with room for `count` extents behind it,
        // and outlives the call; the kernel writes no more than that many.
        check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut *map) })?;
        let mapped = usize::try_from(map.mapped).unwrap_or(0).min(count);
        for raw in &map.extents[..mapped] {
            each(described(raw));
            if raw.flags & LAST != 0 {
                return Ok(());
            }
        }
        let Some(last) = map.extents[..mapped].last() else { return Ok(()) };
        let end = last.logical.saturating_add(last.length);
        if end <= start {
            return Err(io::Error::other("the kernel tells an extent twice"));
        }
        start = end;
    }
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn described(raw: &RawExtent) -> Described {
    let state = match raw.flags {
        flags if flags & UNPLACED != 0 => State::Unplaced,
        flags if flags & UNWRITTEN != 0 => State::Unwritten,
        _ => State::Written,
    };
    let extent = Extent { logical: raw.logical, physical: raw.physical, length: raw.length, state };
    Described { extent, is_shared: raw.flags & SHARED != 0, is_odd: raw.flags & ODD != 0 }
}

/// `struct xfs_fsop_geom`, what of it is used by name.
#[repr(C)]
#[derive(Clone, Copy)]
struct XfsGeometry {
    block_bytes: u32,
    rest: [u32; 63],
}

const _: () = assert!(size_of::<XfsGeometry>() == 256);

/// Bytes of a block of the XFS that has this file.
///
/// # Errors
/// When the kernel does not tell.
pub fn xfs_block_bytes(file: &File) -> io::Result<u64> {
    let mut geometry = XfsGeometry { block_bytes: 0, rest: [0; 63] };
    // SAFETY: XFS_IOC_FSGEOMETRY writes one `xfs_fsop_geom`, which has the size of `XfsGeometry`.
    check(unsafe { libc::ioctl(file.as_raw_fd(), XFS_IOC_FSGEOMETRY, &raw mut geometry) })?;
    Ok(geometry.block_bytes.into())
}

/// Number of the device of the file system that holds the file under a loop device, as `stat` gives
/// it.
///
/// # Errors
/// When it is no loop device, or has no file.
pub fn loop_file_device(device: &File) -> io::Result<u64> {
    // `struct loop_info64`; its first field is that number.
    let mut status = [0u64; 29];
    // SAFETY: LOOP_GET_STATUS64 writes one `loop_info64`, which has 232 bytes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) })?;
    Ok(status[0])
}

/// Alignment that O_DIRECT needs in an open file, in bytes; 0 if the file system writes it through
/// the page cache nevertheless; `None` if the kernel does not tell.
///
/// # Errors
/// When the kernel refuses the question.
pub fn direct_alignment(file: &File) -> io::Result<Option<u32>> {
    // SAFETY: all bit patterns of the numbers in `statx` are valid, zeroes among them.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty string that ends with a zero, so the call is about the
    // descriptor; the kernel writes one `statx`.
    let answer = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut found)
    };
    check(answer)?;
    Ok((found.stx_mask & libc::STATX_DIOALIGN != 0).then_some(found.stx_dio_offset_align))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_words_about_an_extent_are_understood() {
        let raw = |flags| RawExtent { logical: 1, physical: 2, length: 3, flags, ..RawExtent::default() };
        let state = |flags| described(&raw(flags)).extent.state;
        assert_eq!((state(0), state(LAST)), (State::Written, State::Written));
        assert_eq!((state(UNWRITTEN), state(0x4 | 0x2)), (State::Unwritten, State::Unplaced));
        let inline = described(&raw(0x200 | 0x100));
        assert!(inline.is_odd && !inline.is_shared);
        assert!(described(&raw(SHARED)).is_shared);
    }

    #[test]
    fn a_file_without_extents_has_none() {
        let directory = std::env::temp_dir().join(format!("mainstay-extents-{}", std::process::id()));
        std::fs::write(&directory, "").expect("written");
        let file = File::open(&directory).expect("opened");
        let mut seen = 0;
        // A file system in memory refuses the question.
        let asked = extents(&file, false, &mut |_| seen += 1);
        assert!(asked.is_ok() || asked.is_err_and(|error| error.raw_os_error() == Some(libc::EOPNOTSUPP)));
        assert_eq!(seen, 0);
        std::fs::remove_file(&directory).expect("removed");
    }
}
