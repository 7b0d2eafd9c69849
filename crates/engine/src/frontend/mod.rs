//! How a volume becomes a device.
//!
//! A frontend translates between a kernel protocol and requests to a resource. It never decides: it
//! neither orders, retries, splits nor delays requests, and it knows nothing of roles, epochs or
//! leases. What it does check is form: a request that leaves the frontend lies within its volume,
//! consists of whole blocks and is not longer than the limits of the log. Clients of NBD and
//! virtual machines need not keep to that form, so those frontends make it.
//!
//! A frontend runs on the shard's thread and does its I/O on the shard's ring. The shard passes
//! every completion whose owner is [`Owner::Frontend`](crate::ring::Owner) to the frontend that
//! [`frontend_of`] names.

mod choice;
mod exchange;
mod fuse;
mod fuse_abi;
mod fuse_session;
pub mod nbd;
mod slab;
pub mod ublk;
pub mod vhost_user;

pub use choice::{AUTO_ORDER, Choice, ChoiceError, DeviceOption, Offer, UnknownDevice, choose, probe};
pub use exchange::TASKS_MAX;
pub use fuse::{FuseError, FuseFrontend, LeftFuse, unmount_stale};

use crate::buffer::BufferPool;
use crate::devices::Attachment;
use crate::ring::{Completion, Ring};
use bytes::Bytes;
use mainstay_api::engine::DeviceUser;
use mainstay_codec::Pieces;
use mainstay_codec::nbd::Export;
use mainstay_devices::ublk::Channel;
use mainstay_types::{Epoch, FrontendKind, ResourceId, VolumeId};
use nbd::{Arrived, NbdFrontend};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Most requests that the kernel keeps outstanding on one frontend without waiting itself. With
/// requests of the largest size this also bounds the memory of what is in flight (R18).
pub const BACKGROUND_MAX: u16 = 64;

/// An error number of the kernel's, positive (`libc::EIO`).
pub type Errno = i32;

/// The answer to a request that is no longer served here: the node is not primary any more, or its
/// lease has run out. Users of devices see an error; clients that can ask again, here or elsewhere,
/// are cut off instead (R19).
pub const NOT_SERVED: Errno = libc::ESHUTDOWN;

/// Identifies a frontend on its shard; chosen by the shard, not used again while completions of an
/// earlier frontend may still come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrontendId(pub u32);

/// A request that waits for [`Frontend::complete`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontendRequest {
    /// Unique among the outstanding requests of its frontend.
    pub tag: u64,
    pub volume: VolumeId,
    pub op: FrontendOp,
}

/// Operation that a device is asked for. Offsets and lengths are in bytes, whole blocks, inside the
/// volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FrontendOp {
    /// At most [`REQUEST_BYTES_MAX`](mainstay_types::REQUEST_BYTES_MAX) bytes.
    Read { offset: u64, len: u64 },
    /// The payload is aligned to a block in memory and belongs to the engine alone; at most
    /// [`REQUEST_BYTES_MAX`](mainstay_types::REQUEST_BYTES_MAX) bytes.
    Write { offset: u64, payload: Bytes },
    /// Less than 4 GiB. The range reads as zeroes afterwards (R15).
    Discard { offset: u64, len: u64 },
    /// Less than 4 GiB.
    WriteZeroes { offset: u64, len: u64 },
    /// Everything that was completed before is to be durable.
    Flush,
    /// Where something was ever written. Answered by [`Frontend::complete_extents`], or with an
    /// error.
    Extents { offset: u64, len: u64 },
}

/// A stretch of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// In bytes.
    pub len: u64,
    /// Something may have been written here. Else it reads as zeroes.
    pub written: bool,
}

/// How a request ended: for a read the pieces of exactly as many bytes as were asked for, for all
/// others nothing; or the error that the caller shall see.
pub type FrontendResult = Result<Pieces, Errno>;

/// A frontend that has answered everything, and reads nothing more: a successor may go on with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quiet {
    /// Its users send no flushes any more.
    pub flushes_refused: bool,
}

/// The devices of one resource.
pub trait Frontend {
    fn id(&self) -> FrontendId;

    /// Begins to take requests from the kernel. Called once.
    fn start(&mut self, ring: &mut Ring);

    /// Instructions for the device thread, by which this volume becomes a block device. Asked once
    /// per volume, after [`start`](Self::start).
    fn attachment(&self, volume: VolumeId) -> Attachment;

    /// Takes the completion of an operation that this frontend has submitted; appends the requests
    /// that have arrived with it to `requests`.
    fn completed(&mut self, ring: &mut Ring, completion: Completion, requests: &mut Vec<FrontendRequest>);

    /// The device thread has opened the way by which requests of a volume come, and waits for the
    /// frontend to take it. Comes at most once per volume, and only to frontends whose
    /// [`attachment`](Self::attachment) leads to it.
    fn opened(&mut self, ring: &mut Ring, volume: VolumeId, opened: Opened) {
        let _ = (ring, volume, opened);
    }

    /// Answers a request. A tag that is not outstanding is ignored: its request was answered by
    /// [`fail_all`](Self::fail_all), or its device is gone.
    fn complete(&mut self, ring: &mut Ring, tag: u64, result: FrontendResult);

    /// Answers [`FrontendOp::Extents`]: stretches that follow each other from the offset on and end
    /// with the range.
    fn complete_extents(&mut self, _ring: &mut Ring, _tag: u64, _extents: &[Extent]) {}

    /// Appends the requests that could not be made while others were under way, and hands what was
    /// answered to the kernel. Called after answers and completions, until there are no more
    /// requests.
    fn poll(&mut self, _ring: &mut Ring, _requests: &mut Vec<FrontendRequest>) {}

    /// Exports that clients of the [NBD server](nbd::server) may choose here.
    fn exports(&self) -> Vec<Export> {
        Vec::new()
    }

    /// Takes over a client that chose one of the exports. Dropping it cuts it off.
    fn adopt(&mut self, _ring: &mut Ring, _arrived: Arrived) {}

    /// Users of a volume that the kernel does not know of.
    fn users(&self, _volume: VolumeId) -> Vec<DeviceUser> {
        Vec::new()
    }

    /// Says whether flushes are needed from now on: without, everything that was answered is
    /// durable. Returns whether every flush of users will come from now on. Once flushes come, they
    /// come for good. Only devices that [cache](FrontendKind::caches) can do without them.
    fn flushes(&mut self, _needed: bool) -> bool {
        true
    }

    /// Reads no request any more; what was read is answered. Only for frontends whose devices can
    /// be left to a successor.
    fn quiesce(&mut self, _ring: &mut Ring) {}

    /// Reads requests again after [`quiesce`](Self::quiesce).
    fn go_on(&mut self, _ring: &mut Ring) {}

    /// Whether everything that was read is answered after [`quiesce`](Self::quiesce). Never where
    /// the devices cannot be left.
    fn is_quiet(&self) -> Option<Quiet> {
        None
    }

    /// Answers every outstanding and every later request with `errno`: the device is fenced (R19).
    /// Cannot be undone; a resource that is served again gets a new frontend.
    fn fail_all(&mut self, ring: &mut Ring, errno: Errno);

    /// A volume has this size now. Requests are taken up to it; devices that can grow while they
    /// are in use are told by the device thread afterwards.
    fn resized(&mut self, volume: VolumeId, bytes: u64);

    /// Takes the devices away, also while they are in use (R20). No request is admitted from then
    /// on.
    fn detach(&mut self);

    /// Whether the kernel has let go, and no completion will come any more, so that the frontend
    /// may be dropped and its id used again.
    fn is_closed(&self) -> bool;
}

/// Handle that the device thread opens for a frontend while it attaches a volume.
#[derive(Debug)]
pub enum Opened {
    Ublk(Channel),
}

/// Why a resource got no frontend.
#[derive(Debug, Error)]
pub enum FrontendError {
    #[error(transparent)]
    Fuse(#[from] FuseError),
    #[error("cannot make {dir}")]
    Directory {
        dir: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot listen for virtual machines at {path}")]
    Socket {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Parts from which a frontend is made.
pub struct FrontendParts<'a> {
    pub id: FrontendId,
    pub resource: ResourceId,
    /// The resource's.
    pub name: &'a str,
    /// Epoch in which this node is primary. `None` if this node is a client: every device left
    /// before is then of the past.
    pub epoch: Option<Epoch>,
    /// Directory for files and sockets of a frontend; gone after a reboot.
    pub run_dir: &'a Path,
    /// Bytes of each volume.
    pub volumes: &'a [u64],
    pub pool: &'a BufferPool,
    /// Devices with which the frontend is to go on, if an engine before this one has left them.
    pub left: Option<LeftFuse>,
}

/// Where the volumes of a resource are mounted with FUSE.
#[must_use]
pub fn fuse_dir(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join("fuse").join(name)
}

/// Makes the devices of one resource, as far as that needs no answers of the shard.
///
/// # Errors
/// When the kernel refuses, or lacks what [`probe`] found when the engine started.
pub fn make(kind: FrontendKind, parts: FrontendParts<'_>) -> Result<Box<dyn Frontend>, FrontendError> {
    match kind {
        FrontendKind::Fuse => {
            let all = parts.run_dir.join("fuse");
            let dir = fuse_dir(parts.run_dir, parts.name);
            if let Some(left) = parts.left {
                let pool = parts.pool.clone();
                return Ok(Box::new(FuseFrontend::going_on(parts.id, &dir, parts.volumes, pool, left)));
            }
            // The files in it are the volumes: only root may reach them beside the devices.
            std::fs::create_dir_all(&dir)
                .and_then(|()| std::fs::set_permissions(&all, Permissions::from_mode(0o700)))
                .map_err(|source| FrontendError::Directory { dir: dir.clone(), source })?;
            Ok(Box::new(FuseFrontend::mount(parts.id, &dir, parts.volumes, parts.pool.clone())?))
        }
        FrontendKind::Ublk => Ok(Box::new(ublk::UblkFrontend::new(&parts))),
        FrontendKind::Nbd => Ok(Box::new(NbdFrontend::new(&parts))),
        FrontendKind::VhostUser => Ok(Box::new(vhost_user::VhostUserFrontend::new(&parts)?)),
    }
}

/// Where NBD clients of this machine connect to.
#[must_use]
pub fn nbd_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("nbd.sock")
}

/// The kinds of operations that a frontend has in flight share its id: the low bits tell them
/// apart.
const TAG_KIND_BITS: u32 = 8;

/// The frontend that submitted an operation with this tag.
#[must_use]
pub fn frontend_of(completion_tag: u64) -> FrontendId {
    FrontendId((completion_tag >> TAG_KIND_BITS) as u32)
}

fn ring_tag(id: FrontendId, kind: u8) -> u64 {
    u64::from(id.0) << TAG_KIND_BITS | u64::from(kind)
}

fn kind_of(completion_tag: u64) -> u8 {
    completion_tag as u8
}
