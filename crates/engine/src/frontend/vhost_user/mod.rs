//! Volumes as disks of virtual machines: vhost-user-blk, for QEMU, cloud-hypervisor and other
//! monitors that speak it.
//!
//! ```text
//! monitor ──unix socket: features, memory, files──▶ session ┐
//! guest's driver ──rings in shared memory───────▶ queues ───┼─ requests ──▶ exchange ──▶ the resource
//!                └─eventfds: kick, call─────────▶ ──────────┘
//! ```
//! Every volume has a socket of its own, `RUN_DIR/vhost-user/RESOURCE/VOLUME.sock`, and one monitor
//! at a time. The monitor hands over the guest's memory and the files by which driver and device
//! wake each other ([`session`], [`channel`], [`memory`]); from then on the guest's driver puts its
//! requests into rings ([`queue`], [`vring`]), which are turned into requests of whole blocks like
//! those of NBD clients ([`requests`], [`super::exchange`]). There is no thread of its own: the
//! socket and the kicks are polled, and the calls written, by the shard's ring.
//!
//! Guarantees beyond those of a frontend
//! - Everything that a machine says, its monitor or its guest, is length-checked. None of it makes
//!   the engine panic, wait, or touch memory that was not shared (R25). A payload is copied once
//!   and then checksummed; nothing reads it again.
//! - A guest has at most [`JOBS_MAX`](super::exchange::JOBS_MAX) requests and some megabytes of
//!   payload in progress (R18).
//! - When the devices are withdrawn, machines are cut off without an answer to their requests in
//!   progress, like clients of NBD. These requests are noted in memory that the monitor keeps
//!   ([`inflight`]). They are done when the volume is served here again. They fail if another node
//!   may have written meanwhile ([`runs`]). The same happens when an engine dies.

mod channel;
mod inflight;
mod memory;
mod queue;
mod requests;
pub mod runs;
mod session;
mod vring;

use super::exchange::{Client, Exchange};
use super::nbd::server::{listen_unix, process_of};
use super::{
    Errno, Frontend, FrontendError, FrontendId, FrontendParts, FrontendRequest, FrontendResult,
    TAG_KIND_BITS, kind_of, ring_tag,
};
use crate::buffer::BufferPool;
use crate::devices::Attachment;
use crate::ring::{Completion, Fd, Op, Owner, Ring};
use inflight::Disk;
use mainstay_api::engine::DeviceUser;
use mainstay_codec::virtio_blk::ID_BYTES;
use mainstay_types::{VOLUMES_MAX, VolumeId};
use queue::QueueTags;
use session::{QUEUES_MAX, Served, Session, Tags};
use socket2::SockRef;
use std::io;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const KIND_ACCEPT: u8 = 0;
const KIND_MESSAGE: u8 = 1;
const KIND_KICK: u8 = 2;
const KIND_CALL: u8 = 3;
/// Above the kind and the frontend's id, a tag has the queue, and above that the volume.
const TAG_QUEUE_SHIFT: u32 = TAG_KIND_BITS + 32;
const TAG_VOLUME_SHIFT: u32 = TAG_QUEUE_SHIFT + 8;
const _: () = assert!(QUEUES_MAX <= 1 << 8 && VOLUMES_MAX <= 1 << (64 - TAG_VOLUME_SHIFT));
/// Pause after a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where the sockets of all resources are.
#[must_use]
pub fn directory(run_dir: &Path) -> PathBuf {
    run_dir.join("vhost-user")
}

/// One volume.
struct Line {
    served: Served,
    path: PathBuf,
    /// `None` once no monitor may connect any more.
    listener: Option<Fd>,
    accepting: bool,
    refused_at: Option<Instant>,
    session: Option<Session>,
    /// Process of the monitor that connected last.
    process: Option<u32>,
}

/// The disks of one resource.
pub struct VhostUserFrontend {
    id: FrontendId,
    pool: BufferPool,
    lines: Vec<Line>,
    exchange: Exchange,
    /// Number of the next client.
    next: u64,
    /// Which volume has the first turn.
    first: usize,
    detached: bool,
}

impl VhostUserFrontend {
    /// Listens for the machines of the resource's volumes.
    ///
    /// # Errors
    /// When a socket or the note of the run cannot be made.
    pub fn new(parts: &FrontendParts<'_>) -> Result<Self, FrontendError> {
        let directory = directory(parts.run_dir);
        let place = directory.join(parts.name);
        let at = |dir: &Path| {
            let dir = dir.to_owned();
            move |source| FrontendError::Directory { dir, source }
        };
        std::fs::create_dir_all(&place).map_err(at(&place))?;
        let run = runs::current(&directory, parts.resource, parts.epoch).map_err(at(&directory))?;
        let line = |(volume, bytes): (usize, &u64)| {
            // Bounded by the number of volumes.
            let volume = VolumeId(volume as u16);
            let path = place.join(format!("{}.sock", volume.0));
            let listener =
                listen_unix(&path).map_err(|source| FrontendError::Socket { path: path.clone(), source })?;
            let served = Served {
                disk: Disk { resource: parts.resource, volume },
                bytes: *bytes,
                name: name_of(parts.name, volume),
                run,
            };
            Ok(Line {
                served,
                path,
                listener: Some(listener),
                accepting: false,
                refused_at: None,
                session: None,
                process: None,
            })
        };
        let lines = parts.volumes.iter().enumerate().map(line).collect::<Result<_, FrontendError>>()?;
        Ok(Self {
            id: parts.id,
            pool: parts.pool.clone(),
            lines,
            exchange: Exchange::new(parts.pool.clone()),
            next: 0,
            first: 0,
            detached: false,
        })
    }

    fn tag(&self, volume: usize, queue: usize, kind: u8) -> u64 {
        (volume as u64) << TAG_VOLUME_SHIFT | (queue as u64) << TAG_QUEUE_SHIFT | ring_tag(self.id, kind)
    }

    fn accept(&mut self, ring: &mut Ring, volume: usize) {
        let tag = self.tag(volume, 0, KIND_ACCEPT);
        let line = &mut self.lines[volume];
        let soon = line.refused_at.is_some_and(|at| at.elapsed() < ACCEPT_PAUSE);
        if let Some(listener) =
            line.listener.as_ref().filter(|_| !line.accepting && !soon && line.session.is_none())
        {
            let op = Op::Accept { listener: Fd::clone(listener), accepted: None };
            ring.submit(Owner::Frontend, tag, op);
            line.accepting = true;
        }
    }

    fn accepted(&mut self, volume: usize, result: io::Result<u32>, accepted: Option<Fd>) {
        let tag = |kind| self.tag(volume, 0, kind);
        let tags = Tags {
            message: tag(KIND_MESSAGE),
            first: QueueTags { kick: tag(KIND_KICK), call: tag(KIND_CALL) },
            step: 1 << TAG_QUEUE_SHIFT,
        };
        let line = &mut self.lines[volume];
        line.accepting = false;
        let Some(socket) = accepted else {
            if let (Err(error), true) = (result, line.listener.is_some()) {
                tracing::warn!(path = %line.path.display(), %error, "cannot accept virtual machines");
                line.refused_at = Some(Instant::now());
            }
            return;
        };
        if line.listener.is_none() {
            return;
        }
        line.refused_at = None;
        line.process = process_of(&*socket);
        tracing::info!(path = %line.path.display(), "a virtual machine has connected");
        let client = Client {
            number: self.next,
            volume: line.served.disk.volume,
            bytes: line.served.bytes,
            // Content that is read goes into the guest's memory as it comes.
            structured: true,
            allocation: false,
        };
        self.next += 1;
        line.session = Some(Session::new(socket, client, line.served, tags, self.pool.clone()));
    }

    fn deliver(&mut self) {
        for answer in self.exchange.answers().drain(..) {
            let mut sessions = self.lines.iter_mut().filter_map(|line| line.session.as_mut());
            if let Some(session) = sessions.find(|session| session.client().number == answer.client) {
                session.answer(answer);
            }
        }
    }
}

/// Name of a disk in its guest, cut to [`ID_BYTES`].
fn name_of(resource: &str, volume: VolumeId) -> [u8; ID_BYTES] {
    let mut name = [0; ID_BYTES];
    let text = format!("{resource}-{}", volume.0);
    let len = text.len().min(ID_BYTES);
    name[..len].copy_from_slice(&text.as_bytes()[..len]);
    name
}

impl Frontend for VhostUserFrontend {
    fn id(&self) -> FrontendId {
        self.id
    }

    fn start(&mut self, ring: &mut Ring) {
        self.poll(ring, &mut Vec::new());
    }

    fn attachment(&self, volume: VolumeId) -> Attachment {
        let path = &self.lines[usize::from(volume.0)].path;
        Attachment::Export { uri: path.display().to_string() }
    }

    fn users(&self, volume: VolumeId) -> Vec<DeviceUser> {
        let line = self.lines.get(usize::from(volume.0));
        let connected = line.filter(|line| line.session.as_ref().is_some_and(|session| !session.is_closed()));
        let user = |line: &Line| DeviceUser {
            what: format!("a virtual machine at {}", line.path.display()),
            process: line.process,
            follows: false,
        };
        connected.map(user).into_iter().collect()
    }

    fn completed(&mut self, ring: &mut Ring, completion: Completion, requests: &mut Vec<FrontendRequest>) {
        let kind = kind_of(completion.tag);
        let volume = (completion.tag >> TAG_VOLUME_SHIFT) as usize;
        let queue = (completion.tag >> TAG_QUEUE_SHIFT & 0xff) as usize;
        if kind == KIND_ACCEPT {
            let Op::Accept { accepted, .. } = completion.op else {
                unreachable!("nothing else has this kind")
            };
            return self.accepted(volume, completion.result, accepted.map(Fd::new));
        }
        let Self { lines, exchange, .. } = self;
        let line = &mut lines[volume];
        let Some(session) = &mut line.session else { return };
        let queue = (kind != KIND_MESSAGE).then_some(queue);
        session.completed(ring, exchange, queue, completion);
        if session.is_gone() {
            line.session = None;
        }
        requests.append(exchange.requests());
    }

    fn complete(&mut self, _ring: &mut Ring, tag: u64, result: FrontendResult) {
        self.exchange.complete(tag, result);
        self.deliver();
    }

    fn poll(&mut self, ring: &mut Ring, requests: &mut Vec<FrontendRequest>) {
        // Begins with another volume each time, so that all of them get places that have become
        // free.
        let volumes = self.lines.len();
        self.first = (self.first + 1) % volumes;
        let first = self.first;
        for volume in (0..volumes).map(|volume| (first + volume) % volumes) {
            if let Some(session) = &mut self.lines[volume].session {
                session.serve(&mut self.exchange);
            }
            // Requests that can be answered at once are put back with the rest.
            self.deliver();
            let Self { lines, exchange, .. } = self;
            let line = &mut lines[volume];
            if let Some(session) = &mut line.session {
                session.submit(ring, exchange);
                if session.is_gone() {
                    line.session = None;
                }
            }
            self.accept(ring, volume);
        }
        requests.append(self.exchange.requests());
    }

    fn fail_all(&mut self, ring: &mut Ring, errno: Errno) {
        for line in &mut self.lines {
            if let Some(listener) = line.listener.take() {
                // The next listener binds its own. Both fail only when another process has done it
                // already.
                let _ = SockRef::from(&*listener).shutdown(Shutdown::Both);
                let _ = std::fs::remove_file(&line.path);
            }
            if let Some(session) = &mut line.session {
                session.close(ring, &mut self.exchange);
                if session.is_gone() {
                    line.session = None;
                }
            }
        }
        self.exchange.fail_all(errno);
        self.exchange.answers().clear();
    }

    fn resized(&mut self, volume: VolumeId, bytes: u64) {
        // A machine that is connected keeps the size that it was told.
        if let Some(line) = self.lines.get_mut(usize::from(volume.0)) {
            line.served.bytes = bytes;
        }
    }

    fn detach(&mut self) {
        self.detached = true;
    }

    fn is_closed(&self) -> bool {
        self.detached && self.lines.iter().all(|line| !line.accepting && line.session.is_none())
    }
}
