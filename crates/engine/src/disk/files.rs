//! The files of a replica: `meta`, `journal` and `vol0`, `vol1`, … in a directory of their own.
//!
//! What this file guarantees: a directory of that name appears whole or not at all; all space is allocated
//! before it appears, so that a later write cannot run out of it; meta and journal are filled with zeroes,
//! so that a durable overwrite changes no metadata of the file system; one process at a time has the files
//! open.
//!
//! Everything here blocks and belongs on a thread that may block (formatting a journal takes seconds). What
//! is made here can be sent to the shard.

// fallocate, statx and statvfs have no safe form in the standard library.
#![allow(unsafe_code)]

use crate::buffer::{BUFFER_BYTES_MAX, BufferPool};
use crate::ring::Fd;
use bytes::Bytes;
use mainstay_store::{Area, Media, MediaError, StoreConfig};
use mainstay_types::{BLOCK_BYTES, VOLUMES_MAX};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// How much is zero-filled or copied at once, in bytes.
const CHUNK_BYTES: usize = 4 << 20;
/// Space that a new replica leaves free in the pool, in bytes: for the directory, and for the file system's
/// own sake.
const SPARE_BYTES: u64 = 16 << 20;

const _: () = assert!(CHUNK_BYTES <= BUFFER_BYTES_MAX);

/// Why the files of a replica cannot be made or used.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("there is no replica in {}", path.display())]
    Missing { path: PathBuf },
    #[error("{} is in use by another process", path.display())]
    InUse { path: PathBuf },
    #[error("the pool that holds {} has {free} bytes free where {need} are needed", path.display())]
    NoSpace { path: PathBuf, need: u64, free: u64 },
    #[error("the file system of {} cannot do direct I/O in blocks of {BLOCK_BYTES} bytes", path.display())]
    NoDirect { path: PathBuf },
    #[error("{} has {found} bytes where {expected} are expected", path.display())]
    Size { path: PathBuf, found: u64, expected: u64 },
    #[error("{what} {}", path.display())]
    System {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Names a failed step on a path.
fn failed<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, DiskError> {
    result.map_err(|source| DiskError::System { what, path: path.to_owned(), source })
}

/// How large the files of a replica are, in bytes; all whole blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    pub meta_bytes: u64,
    pub journal_bytes: u64,
    pub volumes: Vec<u64>,
}

impl Layout {
    /// The layout that a store with this configuration needs; `meta_bytes` from `Store::meta_bytes`.
    #[must_use]
    pub fn new(config: &StoreConfig, meta_bytes: u64) -> Self {
        let meta_bytes = meta_bytes.next_multiple_of(BLOCK_BYTES);
        Self { meta_bytes, journal_bytes: config.journal_bytes, volumes: config.volumes.clone() }
    }

    fn files(&self) -> impl Iterator<Item = (Area, u64)> {
        let volumes = self.volumes.iter().zip(0u16..);
        [(Area::Meta, self.meta_bytes), (Area::Journal, self.journal_bytes)]
            .into_iter()
            .chain(volumes.map(|(bytes, number)| (Area::Volume(mainstay_types::VolumeId(number)), *bytes)))
    }
}

fn name(area: Area) -> String {
    match area {
        Area::Meta => "meta".to_owned(),
        Area::Journal => "journal".to_owned(),
        Area::Volume(volume) => format!("vol{}", volume.0),
    }
}

/// One open file of a replica.
#[derive(Clone, Debug)]
pub(super) struct AreaFile {
    pub(super) file: Fd,
    pub(super) bytes: u64,
    /// What the device asks of the addresses of memory, in bytes.
    pub(super) mem_align: usize,
}

/// The open files of a replica.
#[derive(Debug)]
pub struct ReplicaFiles {
    path: PathBuf,
    meta: AreaFile,
    journal: AreaFile,
    volumes: Vec<AreaFile>,
}

impl ReplicaFiles {
    /// Opens the files of the replica in `path`. Their sizes are to be compared with what the superblock
    /// says, see [`check`](Self::check).
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        if !path.join(name(Area::Meta)).exists() {
            return Err(DiskError::Missing { path: path.to_owned() });
        }
        let meta = open_area(path, Area::Meta)?;
        lock(&meta, path)?;
        let mut volumes = Vec::new();
        for number in 0..VOLUMES_MAX {
            let area = Area::Volume(mainstay_types::VolumeId(number as u16));
            if !path.join(name(area)).exists() {
                break;
            }
            volumes.push(open_area(path, area)?);
        }
        Ok(Self { path: path.to_owned(), meta, journal: open_area(path, Area::Journal)?, volumes })
    }

    /// Whether the files are as large as `layout` says.
    pub fn check(&self, layout: &Layout) -> Result<(), DiskError> {
        for (area, expected) in layout.files() {
            let path = self.path.join(name(area));
            let Some(file) = self.area(area) else { return Err(DiskError::Missing { path }) };
            if file.bytes != expected {
                return Err(DiskError::Size { path, found: file.bytes, expected });
            }
        }
        Ok(())
    }

    /// Where the files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the replica in `path`; its name is free at once, whatever happens meanwhile. It must not be
    /// open.
    pub fn remove(path: &Path) -> Result<(), DiskError> {
        let doomed = beside(path, "deleting");
        remove_all(&doomed)?;
        if path.exists() {
            failed("cannot rename", path, fs::rename(path, &doomed))?;
            sync_parent(path)?;
        }
        remove_all(&doomed)
    }

    pub(super) fn area(&self, area: Area) -> Option<&AreaFile> {
        match area {
            Area::Meta => Some(&self.meta),
            Area::Journal => Some(&self.journal),
            Area::Volume(volume) => self.volumes.get(usize::from(volume.0)),
        }
    }

    /// Synchronous access, for recovery.
    #[must_use]
    pub fn media(&self, pool: &BufferPool) -> FileMedia<'_> {
        FileMedia { files: self, pool: pool.clone() }
    }
}

/// The files of a replica in the making. Dropped without [`publish`](Self::publish) they are removed.
#[derive(Debug)]
pub struct NewReplica {
    path: PathBuf,
    /// `None` once published.
    files: Option<ReplicaFiles>,
}

impl NewReplica {
    /// Allocates all files of a replica that will be in `path`, and fills meta and journal with zeroes.
    /// When this fails nothing is left behind.
    pub fn create(path: &Path, layout: &Layout, pool: &BufferPool) -> Result<Self, DiskError> {
        if path.exists() {
            return Err(DiskError::Exists { path: path.to_owned() });
        }
        let temporary = beside(path, "creating");
        remove_all(&temporary)?;
        failed("cannot make the directory", &temporary, fs::create_dir_all(&temporary))?;
        let result = fill(&temporary, layout, pool);
        match result.and_then(|()| ReplicaFiles::open(&temporary)) {
            Ok(files) => Ok(Self { path: path.to_owned(), files: Some(files) }),
            Err(error) => {
                // The first fault is the one to report; leftovers go with the next attempt.
                let _ = remove_all(&temporary);
                Err(error)
            }
        }
    }

    /// Synchronous access, for formatting.
    #[must_use]
    pub fn media(&self, pool: &BufferPool) -> FileMedia<'_> {
        self.files.as_ref().expect("taken only when published").media(pool)
    }

    /// Gives the replica its name, durably.
    pub fn publish(mut self) -> Result<ReplicaFiles, DiskError> {
        let temporary = beside(&self.path, "creating");
        failed("cannot flush", &temporary, File::open(&temporary).and_then(|dir| dir.sync_all()))?;
        failed("cannot rename", &temporary, fs::rename(&temporary, &self.path))?;
        let mut files = self.files.take().expect("taken only here");
        files.path.clone_from(&self.path);
        sync_parent(&self.path)?;
        Ok(files)
    }
}

impl Drop for NewReplica {
    fn drop(&mut self) {
        if self.files.take().is_some()
            && let Err(error) = remove_all(&beside(&self.path, "creating"))
        {
            tracing::warn!(%error, "a half-made replica is left; the next attempt removes it");
        }
    }
}

/// `<path>.<suffix>`: a place on the same file system.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn remove_all(path: &Path) -> Result<(), DiskError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => failed("cannot remove", path, result),
    }
}

fn sync_parent(path: &Path) -> Result<(), DiskError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    failed("cannot flush", parent, File::open(parent).and_then(|dir| dir.sync_all()))
}

fn fill(path: &Path, layout: &Layout, pool: &BufferPool) -> Result<(), DiskError> {
    // Asked first, so that a full pool is not filled to the brim before the answer is no.
    let need = layout.files().map(|(_, bytes)| bytes).sum::<u64>() + SPARE_BYTES;
    let free = free_bytes(path)?;
    if free < need {
        return Err(DiskError::NoSpace { path: path.to_owned(), need, free });
    }
    let zeroes = {
        let mut buffer = pool.get(CHUNK_BYTES);
        buffer.as_mut_slice().fill(0);
        buffer.freeze(CHUNK_BYTES)
    };
    for (area, bytes) in layout.files() {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "{area:?} of {bytes} bytes");
        let path = path.join(name(area));
        let file = failed("cannot make", &path, options().create_new(true).open(&path)).map_err(no_direct)?;
        // SAFETY: fallocate takes no pointers and the descriptor is open.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) };
        if result != 0 {
            let source = io::Error::last_os_error();
            return Err(if source.raw_os_error() == Some(libc::ENOSPC) {
                DiskError::NoSpace { free: free_bytes(&path)?, path, need: bytes }
            } else {
                DiskError::System { what: "cannot allocate", path, source }
            });
        }
        if !matches!(area, Area::Volume(_)) {
            let mut at = 0;
            while at < bytes {
                let part = (bytes - at).min(CHUNK_BYTES as u64);
                failed("cannot write", &path, file.write_all_at(&zeroes[..part as usize], at))?;
                at += part;
            }
        }
        failed("cannot flush", &path, file.sync_all())?;
    }
    Ok(())
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
    options
}

fn no_direct(error: DiskError) -> DiskError {
    match error {
        DiskError::System { path, source, .. } if source.raw_os_error() == Some(libc::EINVAL) => {
            DiskError::NoDirect { path }
        }
        other => other,
    }
}

fn open_area(path: &Path, area: Area) -> Result<AreaFile, DiskError> {
    let path = path.join(name(area));
    let file = failed("cannot open", &path, options().open(&path)).map_err(no_direct)?;
    let bytes = failed("cannot look at", &path, file.metadata())?.len();
    let mem_align = failed("cannot look at", &path, direct_alignment(&file))?;
    let Some(mem_align) = mem_align else { return Err(DiskError::NoDirect { path }) };
    Ok(AreaFile { file: Fd::new(file.into()), bytes, mem_align })
}

/// What direct I/O on `file` asks of memory addresses; `None` when blocks of [`BLOCK_BYTES`] are not
/// possible.
fn direct_alignment(file: &File) -> io::Result<Option<usize>> {
    // SAFETY: `statx` consists of integers, for which zero is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, which together with AT_EMPTY_PATH means the open descriptor;
    // `stat` is a valid place for the result.
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

fn lock(meta: &AreaFile, path: &Path) -> Result<(), DiskError> {
    // The lock belongs to the open file, so it lasts as long as any duplicate of the descriptor.
    let file = File::from(failed("cannot lock", path, meta.file.try_clone())?);
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(DiskError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => failed("cannot lock", path, Err(source)),
    }
}

fn free_bytes(path: &Path) -> Result<u64, DiskError> {
    let what = "cannot ask for the free space of";
    let c_path = failed(what, path, CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other))?;
    // SAFETY: `statvfs` consists of integers, for which zero is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and `stat` a valid place for the result.
    if unsafe { libc::statvfs(c_path.as_ptr(), &raw mut stat) } != 0 {
        return failed(what, path, Err(io::Error::last_os_error()));
    }
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Synchronous access to a replica's files.
pub struct FileMedia<'a> {
    files: &'a ReplicaFiles,
    pool: BufferPool,
}

impl FileMedia<'_> {
    fn file(&self, area: Area, offset: u64, len: usize) -> Result<File, MediaError> {
        let detail = |text: String| MediaError { detail: format!("{}: {text}", name(area)) };
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
            file.read_exact_at(&mut buffer.as_mut_slice()[..bytes], at)
                .map_err(|error| MediaError { detail: format!("reading {} at {at}: {error}", name(area)) })?;
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
        let failed =
            |detail: String| MediaError { detail: format!("writing {} at {offset}: {detail}", name(area)) };
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
            |error: std::io::Error| MediaError { detail: format!("flushing {}: {error}", name(area)) };
        self.file(area, 0, 0)?.sync_data().map_err(failed)
    }
}
