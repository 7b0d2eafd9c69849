//! Space that files take in a file system whose files may share extents (FIEMAP,
//! Documentation/filesystems/fiemap.rst).
#![allow(unsafe_code)]

use mainstay_api::rest::SnapshotSpace;
use mainstay_pool::Replica;
use mainstay_types::SnapshotId;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Extents asked for at once.
const AT_ONCE: usize = 256;
const LAST: u32 = 0x1;
/// The place on the disk is not known, or there is none yet.
const UNKNOWN: u32 = 0x2;
const SHARED: u32 = 0x2000;

/// `struct fiemap` without its extents.
#[repr(C)]
#[derive(Default)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    others: [u32; 3],
}

#[repr(C)]
struct Map {
    head: Head,
    extents: [Extent; AT_ONCE],
}

const _: () = assert!(size_of::<Head>() == 32 && size_of::<Extent>() == 56);
const _: () = assert!(size_of::<Map>() == 32 + AT_ONCE * 56);

mod calls {
    nix::ioctl_readwrite!(fiemap, b'f', 11, super::Head);
}

/// Fills in the extents from `start` on; how many there are.
fn extents_from(file: &File, start: u64, map: &mut Map) -> Result<usize, Errno> {
    map.head = Head { start, length: u64::MAX - start, count: AT_ONCE as u32, ..Head::default() };
    // SAFETY: FS_IOC_FIEMAP reads the head and writes at most `count` extents behind it; `map` has
    // room for them, and its address is taken as a whole.
    unsafe { calls::fiemap(file.as_raw_fd(), (&raw mut *map).cast::<Head>()) }?;
    Ok((map.head.mapped as usize).min(AT_ONCE))
}

/// Adds what a file takes.
fn add(file: &File, space: &mut SnapshotSpace) -> io::Result<()> {
    let mut map = Box::new(Map { head: Head::default(), extents: [Extent::default(); AT_ONCE] });
    let mut start = 0;
    loop {
        let mapped = extents_from(file, start, &mut map)?;
        for extent in &map.extents[..mapped] {
            if extent.flags & UNKNOWN == 0 {
                space.bytes += extent.length;
                space.own_bytes += if extent.flags & SHARED == 0 { extent.length } else { 0 };
            }
        }
        let Some(last) = map.extents[..mapped].last() else { return Ok(()) };
        let end = last.logical.saturating_add(last.length);
        // A file system that does not go on would be asked without end.
        if last.flags & LAST != 0 || end <= start {
            return Ok(());
        }
        start = end;
    }
}

/// Returns the space of the parts of a snapshot of a replica.
///
/// # Errors
/// If a file cannot be read, or its file system does not tell.
pub fn space(replica: &dyn Replica, snapshot: SnapshotId) -> io::Result<SnapshotSpace> {
    let mut space = SnapshotSpace::default();
    for entry in replica.parts()?.iter().filter(|entry| entry.part.snapshot() == Some(snapshot)) {
        add(&File::open(&entry.path)?, &mut space)?;
    }
    Ok(space)
}

#[cfg(test)]
mod tests {
    use super::{SnapshotId, space};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    #[test]
    fn holes_take_no_space_and_written_extents_are_counted_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = File::create(directory.path().join("snap1-vol0")).expect("a file");
        file.set_len(64 * MIB).expect("a size");
        // More pieces than are asked for at once.
        for piece in 0..600 {
            file.write_all_at(&[7; 4096], piece * 65536).expect("a write");
        }
        file.sync_all().expect("a sync");
        std::fs::write(directory.path().join("snap10-vol0"), [7; 4096]).expect("another snapshot");
        let replica = mainstay_pool::replica_at(directory.path());
        let found = match space(&*replica, SnapshotId(1)) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return eprintln!("not tried: the file system of temporary files does not tell");
            }
            found => found.expect("the file system tells"),
        };
        assert!(found.bytes >= 600 * 4096 && found.bytes < 64 * MIB, "{found:?}");
        assert_eq!(found.own_bytes, found.bytes, "no other file shares it");
        assert_eq!(space(&*replica, SnapshotId(2)).expect("there is none").bytes, 0);
    }
}
