//! Volumes as files of a FUSE mount, one mount per resource; [`crate::devices`] makes block devices
//! of them.
//!
//! The classic protocol over `/dev/fuse`, on the shard's ring: one read or a few are kept
//! outstanding per mount, replies are gathered writes of the pieces they consist of. Measured, this
//! is as fast as FUSE over io_uring when the reader runs on the same core, and works on every
//! kernel since 5.4.
//!
//! The connection lives as long as any descriptor of it does, so the agent is given one before the
//! first device is made: see [`mainstay_devices::descriptor_holder`].
//!
//! The descriptor is in blocking mode, because io_uring waits for readiness by itself only then. It
//! issues the read after it has seen that a message is there; a message that the kernel withdraws
//! between the two (its sender was killed in that instant) would make the shard wait for the next
//! one. The loop driver's requests, which are all that a mount normally sees, cannot be killed.

// Mounting goes through system calls that take pointers to strings.
#![allow(unsafe_code)]

use super::fuse_session::{LANDING_BYTES, MESSAGE_AT, MESSAGE_BYTES_MAX, Outcome, Session};
use super::{Errno, Frontend, FrontendId, FrontendRequest, FrontendResult, Quiet, kind_of, ring_tag};
use crate::buffer::{BufMut, BufferPool};
use crate::devices::Attachment;
use crate::ring::{Completion, Fd, Op, OpHandle, Owner, Ring, STREAM_OFFSET};
use bytes::Bytes;
use mainstay_types::{REQUEST_BYTES_MAX, VolumeId};
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};
use thiserror::Error;

/// Most reads that wait for messages at once. Each message wakes all of them, so one is best where
/// requests come one after the other; where many are outstanding they come in bursts, and every
/// read saves a turn.
const READS_MAX: usize = 8;
/// How many outstanding requests call for another read.
const REQUESTS_PER_READ: usize = 4;
const KIND_REPLY: u8 = 0;
/// Kind of the first read; the others follow.
const KIND_READ: u8 = 1;

const _: () = assert!(READS_MAX < 1 << 7, "each read has a kind of its own");

/// A path can be mounted over more than once; more often than this it was not us.
const STALE_MOUNTS_MAX: usize = 64;

/// Why the volumes of a resource could not be mounted.
#[derive(Debug, Error)]
pub enum FuseError {
    #[error("cannot open /dev/fuse; is the kernel's fuse module loaded?")]
    Device(#[source] io::Error),
    #[error("cannot make the mount point {dir}")]
    Directory {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot mount the volumes at {dir}")]
    Mount {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Connection and devices that an engine has left for its successor.
#[derive(Debug)]
pub struct LeftFuse {
    pub connection: Fd,
    /// By volume.
    pub devices: Vec<Fd>,
    /// See [`Session::flushes_refused`].
    pub flushes_refused: bool,
}

/// A mounted directory with one file per volume: `0`, `1`, ….
pub struct FuseFrontend {
    id: FrontendId,
    dir: PathBuf,
    fd: Fd,
    session: Session,
    pool: BufferPool,
    /// Reads that wait for messages.
    reads: [Option<OpHandle>; READS_MAX],
    replies: usize,
    /// No message is read any more: this engine leaves.
    quiet: bool,
    /// Devices that an engine before this one has left, by volume.
    left: Vec<Fd>,
    /// The kernel has ended the connection, or we have.
    ended: bool,
    mounted: bool,
}

impl FuseFrontend {
    /// Mounts the volumes, whose sizes in bytes are given, at `dir`. Whatever an earlier engine
    /// left mounted there is taken away first. Nothing is answered before
    /// [`start`](Frontend::start).
    pub fn mount(id: FrontendId, dir: &Path, volumes: &[u64], pool: BufferPool) -> Result<Self, FuseError> {
        let fd = fs::File::options().read(true).write(true).open("/dev/fuse").map_err(FuseError::Device)?;
        let fd: Fd = Arc::new(fd.into());
        unmount_stale(dir);
        let fail = |source| FuseError::Directory { dir: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(fail)?;
        let target = c_path(dir).map_err(fail)?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={REQUEST_BYTES_MAX}",
            fd.as_raw_fd()
        );
        let options = CString::new(options).expect("no zero byte in the format above");
        // SAFETY: all pointers are to zero-terminated strings that outlive the call.
        let result = unsafe {
            libc::mount(
                c"mainstay".as_ptr(),
                target.as_ptr(),
                c"fuse".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
                options.as_ptr().cast(),
            )
        };
        if result != 0 {
            return Err(FuseError::Mount { dir: dir.to_owned(), source: io::Error::last_os_error() });
        }
        tracing::info!(dir = %dir.display(), "volumes mounted");
        let session = Session::new(volumes.to_vec(), pool.clone());
        Ok(Self::over(id, dir, fd, session, pool, Vec::new()))
    }

    /// Goes on with the mount and the devices of an engine before this one, which has answered all
    /// that it had read. Nothing is read before [`start`](Frontend::start).
    #[must_use]
    pub fn going_on(id: FrontendId, dir: &Path, volumes: &[u64], pool: BufferPool, left: LeftFuse) -> Self {
        let LeftFuse { connection, devices, flushes_refused } = left;
        tracing::info!(dir = %dir.display(), "the volumes of the engine before go on");
        let session = Session::going_on(volumes.to_vec(), pool.clone(), flushes_refused);
        Self::over(id, dir, connection, session, pool, devices)
    }

    fn over(id: FrontendId, dir: &Path, fd: Fd, session: Session, pool: BufferPool, left: Vec<Fd>) -> Self {
        let (dir, reads) = (dir.to_owned(), [None; READS_MAX]);
        let (replies, quiet, ended, mounted) = (0, false, false, true);
        Self { id, dir, fd, session, pool, reads, replies, quiet, left, ended, mounted }
    }

    /// Where the file of a volume is.
    #[must_use]
    pub fn file(&self, volume: VolumeId) -> PathBuf {
        self.dir.join(volume.0.to_string())
    }

    fn reads(&self) -> usize {
        self.reads.iter().flatten().count()
    }

    fn submit_read(&mut self, ring: &mut Ring, buffer: BufMut) {
        let Some(free) = self.reads.iter().position(Option::is_none) else { return };
        let op = Op::Read {
            fd: Arc::clone(&self.fd),
            offset: STREAM_OFFSET,
            buffer,
            at: MESSAGE_AT,
            len: MESSAGE_BYTES_MAX,
        };
        let tag = ring_tag(self.id, KIND_READ + free as u8);
        self.reads[free] = Some(ring.submit(Owner::Frontend, tag, op));
    }

    fn submit_reply(&mut self, ring: &mut Ring, pieces: VecDeque<Bytes>) {
        if self.ended {
            return;
        }
        self.replies += 1;
        let op = Op::Write { fd: Arc::clone(&self.fd), offset: STREAM_OFFSET, pieces, durable: false };
        ring.submit(Owner::Frontend, ring_tag(self.id, KIND_REPLY), op);
    }

    fn end(&mut self) {
        self.ended = true;
        self.session.forget_all();
    }

    fn read_completed(
        &mut self,
        ring: &mut Ring,
        result: io::Result<u32>,
        buffer: BufMut,
        requests: &mut Vec<FrontendRequest>,
    ) {
        if self.ended {
            return;
        }
        let buffer = match result {
            Ok(len) => {
                let (buffer, outcome) = self.session.received(buffer, len as usize);
                match outcome {
                    Outcome::Silent => {}
                    Outcome::Reply(pieces) => self.submit_reply(ring, pieces),
                    Outcome::Request(request) => requests.push(request),
                }
                buffer
            }
            // No message is lost with a read that is cancelled: it stays with the kernel.
            Err(error) if self.quiet && error.raw_os_error() != Some(libc::ENODEV) => return,
            // The message was withdrawn before it could be read, or the read was cancelled by
            // `quiesce`.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN | libc::ECANCELED)
                ) =>
            {
                Some(buffer)
            }
            Err(error) => {
                match error.raw_os_error() {
                    Some(libc::ENODEV | libc::ECONNABORTED) => {
                        tracing::info!(dir = %self.dir.display(), "volumes are no longer mounted");
                    }
                    _ => {
                        tracing::error!(dir = %self.dir.display(), %error, "reading from /dev/fuse failed: devices end")
                    }
                }
                self.end();
                return;
            }
        };
        if self.quiet {
            return;
        }
        let wanted = (self.session.outstanding() / REQUESTS_PER_READ).clamp(1, READS_MAX);
        let is_filled = buffer.is_none();
        let mut buffer = buffer;
        while self.reads() < wanted {
            let buffer = buffer.take().unwrap_or_else(|| self.read_buffer(is_filled));
            self.submit_read(ring, buffer);
        }
    }

    /// Memory to receive into. `is_filled`: payloads have just filled the memory before, so that
    /// more are likely to come, and the memory is of huge pages, which the disk's driver pins at
    /// once. Otherwise it is taken as it is filled, which mostly is a page.
    fn read_buffer(&self, is_filled: bool) -> BufMut {
        self.pool.get_landing(LANDING_BYTES, !is_filled)
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.mounted) {
            // MNT_FORCE ends the connection, which fails every request that still waits in the
            // kernel. MNT_DETACH takes the name away even while files are open. Neither asks us
            // anything.
            if let Err(error) = umount(&self.dir, libc::MNT_FORCE | libc::MNT_DETACH) {
                tracing::warn!(dir = %self.dir.display(), %error, "cannot unmount volumes");
            }
            // The directory is ours; that it is gone already, or was used for something else, does
            // not matter.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

impl Frontend for FuseFrontend {
    fn id(&self) -> FrontendId {
        self.id
    }

    fn start(&mut self, ring: &mut Ring) {
        let buffer = self.read_buffer(false);
        self.submit_read(ring, buffer);
    }

    fn attachment(&self, volume: VolumeId) -> Attachment {
        if let Some(device) = self.left.get(usize::from(volume.0)) {
            return Attachment::Left { backing: self.file(volume), device: Arc::clone(device) };
        }
        Attachment::Loop { backing: self.file(volume), connection: Arc::clone(&self.fd) }
    }

    fn completed(&mut self, ring: &mut Ring, completion: Completion, requests: &mut Vec<FrontendRequest>) {
        let Completion { tag, result, op, .. } = completion;
        match (kind_of(tag), op) {
            (read @ KIND_READ.., Op::Read { buffer, .. }) => {
                self.reads[usize::from(read - KIND_READ)] = None;
                self.read_completed(ring, result, buffer, requests);
            }
            (KIND_REPLY, Op::Write { pieces, .. }) => {
                self.replies -= 1;
                self.session.give_back(pieces);
                if let Err(error) = result
                    && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECANCELED))
                    && !self.ended
                {
                    // ENOENT: the request was given up meanwhile. Anything else means that the
                    // kernel did not understand a reply, and waits for it for ever: better an error
                    // than that.
                    tracing::error!(dir = %self.dir.display(), %error, "a FUSE reply was refused: devices end");
                    self.detach();
                }
            }
            (kind, op) => unreachable!("submitted neither as a read nor as a reply: {kind} {op:?}"),
        }
    }

    fn complete(&mut self, ring: &mut Ring, tag: u64, result: FrontendResult) {
        if let Some(pieces) = self.session.complete(tag, result) {
            self.submit_reply(ring, pieces);
        }
    }

    fn flushes(&mut self, needed: bool) -> bool {
        self.session.flushes(needed)
    }

    fn quiesce(&mut self, ring: &mut Ring) {
        self.quiet = true;
        self.reads.iter().flatten().for_each(|read| ring.cancel(*read));
    }

    fn go_on(&mut self, ring: &mut Ring) {
        let was_quiet = std::mem::take(&mut self.quiet);
        // A read whose end has not come yet goes on by itself.
        if was_quiet && !self.ended && self.reads() == 0 {
            self.start(ring);
        }
    }

    fn is_quiet(&self) -> Option<Quiet> {
        let all = self.quiet && !self.ended && self.reads() == 0 && self.replies == 0;
        let flushes_refused = self.session.flushes_refused();
        (all && self.session.outstanding() == 0).then_some(Quiet { flushes_refused })
    }

    fn fail_all(&mut self, ring: &mut Ring, errno: Errno) {
        for pieces in self.session.fail_all(errno) {
            self.submit_reply(ring, pieces);
        }
    }

    fn resized(&mut self, volume: VolumeId, bytes: u64) {
        self.session.resized(volume, bytes);
    }

    fn detach(&mut self) {
        self.unmount();
        self.end();
    }

    fn is_closed(&self) -> bool {
        self.ended && self.reads() == 0 && self.replies == 0
    }
}

impl Drop for FuseFrontend {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Takes away whatever is mounted at `dir`, such as what an engine left behind that was killed.
/// Does nothing when there is nothing.
pub fn unmount_stale(dir: &Path) {
    for _ in 0..STALE_MOUNTS_MAX {
        if umount(dir, libc::MNT_DETACH).is_err() {
            return;
        }
        tracing::warn!(dir = %dir.display(), "unmounted what was left of an earlier engine");
    }
}

fn umount(dir: &Path, flags: i32) -> io::Result<()> {
    let target = c_path(dir)?;
    umount_c(&target, flags | libc::UMOUNT_NOFOLLOW)
}

fn umount_c(target: &CStr, flags: i32) -> io::Result<()> {
    // SAFETY: the pointer is to a zero-terminated string that outlives the call.
    match unsafe { libc::umount2(target.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
