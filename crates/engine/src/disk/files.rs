//! The files of a replica: metadata, journal, volumes and the sums of their blocks. The pool knows
//! where each is. The journal may be elsewhere, see `journal.rs`.
//!
//! Guarantee: one process at a time has the files open. A process that finds them
//! taken waits for a moment.
//!
//! Everything here blocks and belongs on a thread that may block (formatting a journal takes
//! seconds). The files can be sent to the shard afterwards.

// statx has no safe form in the standard library.
#![allow(unsafe_code)]

use super::cow::Standing;
use super::error::{DiskError, failed};
use super::memory::Memory;
use crate::buffer::{BUFFER_BYTES_MAX, BufferPool};
use crate::ring::Fd;
use bytes::Bytes;
use mainstay_api::engine::FileId;
use mainstay_codec::JOURNAL_LABEL_BYTES;
use mainstay_codec::sums::sums_bytes;
use mainstay_pool::{Part, Replica, replica_at};
use mainstay_store::{Area, Media, MediaError, StoreConfig};
use mainstay_types::{BLOCK_BYTES, SnapshotId, VOLUME_BYTES_MAX, VOLUMES_MAX, VolumeId};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How much is zero-filled or copied at once, in bytes.
pub(super) const CHUNK_BYTES: usize = 4 << 20;
const _: () = assert!(CHUNK_BYTES <= BUFFER_BYTES_MAX);

/// Size of each file of sums: what the largest volume needs, so that it does not grow with its
/// volume. It is sparse.
pub(super) const SUMS_BYTES: u64 = sums_bytes(VOLUME_BYTES_MAX);

/// How large the files of a replica are, in bytes; all whole blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    pub meta_bytes: u64,
    pub journal_bytes: u64,
    pub volumes: Vec<u64>,
    /// Each volume has a file of sums.
    pub sums: bool,
    /// Files of volumes are made with all their space. Otherwise they are sparse, and take what is
    /// written.
    pub preallocate: bool,
}

impl Layout {
    /// The layout that a store with this configuration needs; `meta_bytes` from
    /// `Store::meta_bytes`.
    #[must_use]
    pub fn new(config: &StoreConfig, meta_bytes: u64) -> Self {
        let meta_bytes = meta_bytes.next_multiple_of(BLOCK_BYTES);
        let volumes = config.volumes.clone();
        Self {
            meta_bytes,
            journal_bytes: config.journal_bytes,
            volumes,
            sums: config.sums,
            preallocate: false,
        }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (Area, u64)> {
        let volumes = self.volumes.iter().zip(0u16..);
        let sums = (0u16..).take(if self.sums { self.volumes.len() } else { 0 });
        [(Area::Meta, self.meta_bytes), (Area::Journal, self.journal_bytes)]
            .into_iter()
            .chain(volumes.map(|(bytes, number)| (Area::Volume(VolumeId(number)), *bytes)))
            .chain(sums.map(|number| (Area::Sums(VolumeId(number)), SUMS_BYTES)))
    }
}

/// One open file of a replica.
#[derive(Debug)]
pub(super) struct AreaFile {
    pub(super) file: Fd,
    /// Its size; that of a journal elsewhere includes its label.
    pub(super) bytes: u64,
    /// Alignment of memory addresses that the device needs, in bytes.
    pub(super) mem_align: usize,
    /// Whether it was opened for direct I/O.
    pub(super) direct: bool,
    /// Written and read through this, if it is persistent memory.
    pub(super) memory: Option<Memory>,
}

/// The open files of a replica.
#[derive(Debug)]
pub struct ReplicaFiles {
    pub(super) at: Arc<dyn Replica>,
    meta: AreaFile,
    journal: AreaFile,
    volumes: Vec<AreaFile>,
    /// None, or one of each volume.
    sums: Vec<AreaFile>,
    /// Snapshots that are kept without clones, and how that stands.
    pub(super) layers: (BTreeSet<SnapshotId>, Standing),
}

impl ReplicaFiles {
    /// Opens the files of the replica in `path`. Their sizes are to be compared with what the
    /// superblock says, see [`check`](Self::check).
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        Self::open_at(replica_at(path))
    }

    pub(super) fn open_at(at: Arc<dyn Replica>) -> Result<Self, DiskError> {
        let path = at.place();
        if !at.has(Part::Area(Area::Meta)) {
            return Err(DiskError::Missing { path: path.to_owned() });
        }
        let meta = open_area(&*at, Area::Meta, true)?;
        lock(&meta, path)?;
        let (volumes, sums) = (numbered(&*at, Area::Volume)?, numbered(&*at, Area::Sums)?);
        let elsewhere = at.journal_elsewhere();
        if let Some(journal) = elsewhere.as_ref().filter(|journal| !journal.exists()) {
            return Err(DiskError::JournalMissing { path: path.to_owned(), journal: journal.clone() });
        }
        let journal = open_area(&*at, Area::Journal, elsewhere.is_none())?;
        if let Some(path) = elsewhere {
            // A copy of the directory leads to the same journal.
            lock(&journal, &path)?;
        }
        Ok(Self { at, meta, journal, volumes, sums, layers: Default::default() })
    }

    /// Whether the files are as large as `layout` says; a journal elsewhere has its label too. All
    /// files but the journal may be larger: the engine may have ended while they grew.
    pub fn check(&self, layout: &Layout) -> Result<(), DiskError> {
        for (area, expected) in layout.files() {
            let path = self.at.part(Part::Area(area));
            let Some(file) = self.area(area) else { return Err(DiskError::Missing { path }) };
            let label = if area == Area::Journal { JOURNAL_LABEL_BYTES as u64 } else { 0 };
            let larger = area != Area::Journal && file.bytes > expected;
            if !larger && file.bytes != expected && file.bytes != expected + label {
                return Err(DiskError::Size { path, found: file.bytes, expected });
            }
        }
        Ok(())
    }

    /// Where the files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.at.place()
    }

    /// Removes the replica in `path`; its name is free at once, whatever happens meanwhile. It must
    /// not be open, and a journal elsewhere stays.
    pub fn remove(path: &Path) -> Result<(), DiskError> {
        Ok(replica_at(path).discard()?)
    }

    /// Whether each volume has a file of sums.
    pub(super) fn has_sums(&self) -> bool {
        !self.sums.is_empty()
    }

    pub(super) fn area(&self, area: Area) -> Option<&AreaFile> {
        match area {
            Area::Meta => Some(&self.meta),
            Area::Journal => Some(&self.journal),
            Area::Volume(volume) => self.volumes.get(usize::from(volume.0)),
            Area::Sums(volume) => self.sums.get(usize::from(volume.0)),
        }
    }

    pub(super) fn area_mut(&mut self, area: Area) -> Option<&mut AreaFile> {
        match area {
            Area::Meta => Some(&mut self.meta),
            Area::Journal => Some(&mut self.journal),
            Area::Volume(volume) => self.volumes.get_mut(usize::from(volume.0)),
            Area::Sums(volume) => self.sums.get_mut(usize::from(volume.0)),
        }
    }

    /// The file of an area has been made as large as `bytes`, or was larger.
    pub(super) fn grown(&mut self, area: Area, bytes: u64) -> io::Result<()> {
        let Some(file) = self.area_mut(area).filter(|file| file.bytes < bytes) else { return Ok(()) };
        file.bytes = bytes;
        if file.memory.take().is_some() {
            // The only mapping there is, because the old one is gone.
            let mapped = File::from(file.file.try_clone()?);
            file.memory = Memory::map(&mapped, bytes, false)?;
        }
        Ok(())
    }

    /// An area that is persistent memory, as [`prepare`](Self::prepare) found it.
    pub(crate) fn memory(&mut self, area: Area) -> Option<&mut Memory> {
        self.area_mut(area)?.memory.as_mut()
    }

    /// Bytes of the pool that the file of a volume takes; 0 if that cannot be said.
    pub(crate) fn allocated(&self, volume: VolumeId) -> u64 {
        let stat = self.area(Area::Volume(volume)).and_then(|file| rustix::fs::fstat(&file.file).ok());
        stat.map_or(0, |stat| (stat.st_blocks as u64).saturating_mul(512))
    }

    /// Identity of each open file, by its name in the replica's directory.
    pub(crate) fn identity(&self) -> BTreeMap<String, FileId> {
        let volumes = (0u16..).take(self.volumes.len()).map(|number| Area::Volume(VolumeId(number)));
        let sums = (0u16..).take(self.sums.len()).map(|number| Area::Sums(VolumeId(number)));
        let areas = [Area::Meta, Area::Journal].into_iter().chain(volumes).chain(sums);
        let of = |area: Area| {
            let stat = rustix::fs::fstat(&self.area(area)?.file).ok()?;
            Some((Part::Area(area).to_string(), FileId { dev: stat.st_dev, ino: stat.st_ino }))
        };
        areas.filter_map(of).collect()
    }

    /// Whether nothing of the range has space in the file of a volume. The file system answers from
    /// memory: it has the file's extents there while the file is open. False if it does not say.
    pub(crate) fn is_hole(&self, volume: VolumeId, offset: u64, len: u64) -> bool {
        let Some(file) = self.area(Area::Volume(volume)) else { return false };
        match rustix::fs::seek(&file.file, SeekFrom::Data(offset)) {
            Ok(data) => data >= offset.saturating_add(len),
            // Nothing but a hole up to the end.
            Err(error) => error == rustix::io::Errno::NXIO,
        }
    }

    /// Synchronous access, for recovery.
    #[must_use]
    pub fn media(&self, pool: &BufferPool) -> FileMedia<'_> {
        FileMedia { files: self, pool: pool.clone() }
    }
}

/// Opens a file for direct I/O, and says whether it is open so. A file that need not be `direct`,
/// because it may turn out to be memory, is opened without where its file system has none.
pub(super) fn open_file(
    path: &Path,
    direct: bool,
    configure: impl Fn(&mut OpenOptions),
) -> Result<(File, bool), DiskError> {
    let open = |flags: i32| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(flags | libc::O_CLOEXEC);
        configure(&mut options);
        options.open(path)
    };
    match open(libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && direct => {
            Err(DiskError::NoDirect { path: path.to_owned() })
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((failed("cannot open", path, open(0))?, false))
        }
        result => Ok((failed("cannot open", path, result)?, true)),
    }
}

/// The files of an area that each volume has, as many as there are.
fn numbered(at: &dyn Replica, area: fn(VolumeId) -> Area) -> Result<Vec<AreaFile>, DiskError> {
    let areas = (0..VOLUMES_MAX).map(|number| area(VolumeId(number as u16)));
    let there = areas.take_while(|&area| at.has(Part::Area(area)));
    there.map(|area| open_area(at, area, true)).collect()
}

fn open_area(at: &dyn Replica, area: Area, direct: bool) -> Result<AreaFile, DiskError> {
    let path = at.part(Part::Area(area));
    let (file, is_direct) = open_file(&path, direct, |_| {})?;
    let bytes = failed("cannot look at", &path, file.metadata())?.len();
    let mem_align = match failed("cannot look at", &path, direct_alignment(&file))? {
        Some(align) if is_direct => align,
        _ if !is_direct => BLOCK_BYTES as usize,
        _ => return Err(DiskError::NoDirect { path }),
    };
    Ok(AreaFile { file: Fd::new(file.into()), bytes, mem_align, direct: is_direct, memory: None })
}

/// Alignment of memory addresses that direct I/O on `file` needs, in bytes. `None` where blocks of
/// [`BLOCK_BYTES`] are not possible.
fn direct_alignment(file: &File) -> io::Result<Option<usize>> {
    // SAFETY: `statx` consists of integers, for which zero is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, which together with AT_EMPTY_PATH means the open
    // descriptor; `stat` is a valid place for the result.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut stat)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        // The file system does not say; whole blocks always do where O_DIRECT was accepted.
        return Ok(Some(BLOCK_BYTES as usize));
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    let fits = |align: u32| align > 0 && BLOCK_BYTES.is_multiple_of(u64::from(align));
    Ok((fits(memory) && fits(offset)).then_some(memory as usize))
}

/// How long to wait for a lock that is held. A child of this process has all its descriptors,
/// locked ones too, from the fork until it runs its program. An engine that was killed has them
/// until the kernel has ended it.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

fn lock(file: &AreaFile, path: &Path) -> Result<(), DiskError> {
    // The lock belongs to the open file, so it lasts as long as any duplicate of the descriptor.
    let file = File::from(failed("cannot lock", path, file.file.try_clone())?);
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return failed("cannot lock", path, Err(source)),
        }
    }
}

/// Synchronous access to a replica's files.
pub struct FileMedia<'a> {
    files: &'a ReplicaFiles,
    pool: BufferPool,
}

impl FileMedia<'_> {
    fn file(&self, area: Area, offset: u64, len: usize) -> Result<File, MediaError> {
        let detail = |text: String| MediaError { detail: format!("{}: {text}", Part::Area(area)) };
        let file = self.files.area(area).ok_or_else(|| detail("no such file".to_owned()))?;
        if offset.checked_add(len as u64).is_none_or(|end| end > file.bytes) {
            return Err(detail(format!("{len} bytes at {offset} of a file of {} bytes", file.bytes)));
        }
        file.file.try_clone().map(File::from).map_err(|error| detail(error.to_string()))
    }
}

impl Media for FileMedia<'_> {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        let file = self.file(area, offset, len)?;
        // Whole blocks around what is asked for.
        let start = offset - offset % BLOCK_BYTES;
        let end = (offset + len as u64).next_multiple_of(BLOCK_BYTES);
        let skip = (offset - start) as usize;
        let read = |at: u64, bytes: usize| {
            let mut buffer = self.pool.get(bytes);
            file.read_exact_at(&mut buffer.as_mut_slice()[..bytes], at).map_err(|error| MediaError {
                detail: format!("reading {} at {at}: {error}", Part::Area(area)),
            })?;
            Ok(buffer.freeze(bytes))
        };
        let whole = (end - start) as usize;
        if whole <= CHUNK_BYTES {
            return Ok(read(start, whole)?.slice(skip..skip + len));
        }
        let mut all = Vec::with_capacity(whole);
        while all.len() < whole {
            let part = (whole - all.len()).min(CHUNK_BYTES);
            all.extend_from_slice(&read(start + all.len() as u64, part)?);
        }
        Ok(Bytes::from(all).slice(skip..skip + len))
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        let file = self.file(area, offset, data.len())?;
        let failed = |detail: String| MediaError {
            detail: format!("writing {} at {offset}: {detail}", Part::Area(area)),
        };
        if !offset.is_multiple_of(BLOCK_BYTES) || !(data.len() as u64).is_multiple_of(BLOCK_BYTES) {
            return Err(failed(format!("{} bytes are not whole blocks", data.len())));
        }
        let mut at = offset;
        for part in data.chunks(CHUNK_BYTES) {
            file.write_all_at(&self.pool.copy_of(part), at).map_err(|error| failed(error.to_string()))?;
            at += part.len() as u64;
        }
        file.sync_data().map_err(|error| failed(error.to_string()))
    }

    fn flush(&mut self, area: Area) -> Result<(), MediaError> {
        let failed =
            |error: std::io::Error| MediaError { detail: format!("flushing {}: {error}", Part::Area(area)) };
        self.file(area, 0, 0)?.sync_data().map_err(failed)
    }

    fn zero(&mut self, volume: VolumeId, offset: u64, len: u64) -> Result<(), MediaError> {
        let area = Area::Volume(volume);
        let file = self.file(area, offset, len as usize)?;
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match fallocate(&file, flags, offset, len) {
            Ok(()) => Ok(()),
            // Some file systems cannot do that.
            Err(_) => self.write_durable(area, offset, &vec![0; len as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::OwnedFd;

    fn area(path: &Path) -> AreaFile {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path).expect("a file");
        AreaFile { file: Fd::new(OwnedFd::from(file)), bytes: 0, mem_align: 1, direct: false, memory: None }
    }

    /// A child has all descriptors of its parent until it runs its program.
    #[test]
    fn a_lock_that_a_child_has_for_a_moment_is_waited_for_and_no_other() {
        let path = std::env::temp_dir().join(format!("mainstay-lock-{}", std::process::id()));
        let first = area(&path);
        lock(&first, &path).expect("no process has it");
        let second = area(&path);
        assert!(matches!(lock(&second, &path), Err(DiskError::InUse { .. })));

        let child = first.file.try_clone().expect("a duplicate");
        drop(first);
        let child = thread::spawn(move || {
            thread::sleep(LOCK_WAIT / 10);
            drop(child);
        });
        lock(&second, &path).expect("the child has its program now");
        child.join().expect("the child");
        fs::remove_file(&path).expect("removed");
    }
}
