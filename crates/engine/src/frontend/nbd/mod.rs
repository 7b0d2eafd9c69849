//! Volumes as exports of an NBD server: for virtual machines, for other machines, and for this
//! machine's kernel.
//!
//! ```text
//! clients ──unix socket, TCP──▶ server: handshake ──▶ ┐
//! this kernel's nbd driver ──socket pair────────────▶ ├ connections ──▶ exchange ──▶ the resource
//! ```
//! [`server`] takes connections for all resources of a shard and speaks the handshake; it hands the
//! connection to the frontend of the resource whose export was chosen. Here are the connections of
//! one resource. The [exchange](super::exchange) makes requests of whole blocks of the clients'
//! requests. [`landing`] receives payloads where they stay; [`connection`] and [`outbox`] are one
//! client. [`bridge`] puts TLS under a client of the network, and [`tls`] says with which
//! certificates.
//!
//! Guarantees beyond those of a frontend:
//! - One client cannot take what another one needs, see the limits in [the
//!   exchange](super::exchange) and [`CLIENTS_MAX`].
//! - When the devices are withdrawn, clients are cut off without an answer to their requests in
//!   progress. They do not know whether these were done, which is true. Clients that can reconnect
//!   find the next primary and ask again; an error would have reached their users.
//! - This machine's kernel gets the error instead, because its users are to notice (R19).

mod bridge;
mod connection;
mod landing;
mod outbox;
pub mod server;
mod tls;

use super::exchange::{Client, Exchange};
use super::slab::Slab;
use super::{
    Errno, Extent, Frontend, FrontendId, FrontendParts, FrontendRequest, FrontendResult, TAG_KIND_BITS,
    kind_of, nbd_socket, ring_tag,
};
use crate::buffer::BufferPool;
use crate::devices::Attachment;
use crate::ring::{Completion, Fd, Ring};
use connection::{Connection, Tags};
use mainstay_api::engine::DeviceUser;
use mainstay_codec::nbd::{Export, Negotiated};
use mainstay_devices::nbd_device::NbdPlan;
use mainstay_types::{Epoch, ResourceId, VolumeId};
use socket2::{Domain, Socket, Type};
use std::cell::RefCell;
use std::path::PathBuf;

pub use server::{Arrived, NbdServer, NetworkOptions, ServerError};
pub use tls::{TlsError, TlsFiles};

/// Most clients of one resource. Each may hold some megabytes (R18).
pub const CLIENTS_MAX: usize = 32;

const KIND_RECEIVE: u8 = 0;
const KIND_SEND: u8 = 1;
/// Above the kind and the frontend's id, a tag has the connection's place.
const TAG_PLACE_SHIFT: u32 = TAG_KIND_BITS + 32;
const _: () = assert!(CLIENTS_MAX < 1 << (64 - TAG_PLACE_SHIFT));

/// Server for the clients of one resource.
pub struct NbdFrontend {
    id: FrontendId,
    resource: ResourceId,
    epoch: Epoch,
    /// The resource's.
    name: String,
    volumes: Vec<u64>,
    socket: PathBuf,
    pool: BufferPool,
    connections: Slab<Connection>,
    /// Ends of connections for this machine's kernel, until they are asked for.
    kernel: RefCell<Vec<Option<Fd>>>,
    exchange: Exchange,
    /// Which place has the first turn.
    first: u32,
    /// No client is taken any more.
    withdrawn: bool,
    detached: bool,
}

impl NbdFrontend {
    #[must_use]
    pub fn new(parts: &FrontendParts<'_>) -> Self {
        Self {
            id: parts.id,
            resource: parts.resource,
            // Devices that a client leaves are given up before the next client opens, and by every
            // record of an epoch.
            epoch: parts.epoch.unwrap_or_default(),
            name: parts.name.to_owned(),
            volumes: parts.volumes.to_vec(),
            socket: nbd_socket(parts.run_dir),
            exchange: Exchange::new(parts.pool.clone()),
            pool: parts.pool.clone(),
            connections: Slab::new(),
            kernel: RefCell::default(),
            first: 0,
            withdrawn: false,
            detached: false,
        }
    }

    fn tags(&self, number: u64) -> Tags {
        let place = u64::from(number as u32) << TAG_PLACE_SHIFT;
        let tag = |kind| place | ring_tag(self.id, kind);
        Tags { receive: tag(KIND_RECEIVE), send: tag(KIND_SEND) }
    }

    /// `user`: `None` for this machine's kernel.
    fn add(&mut self, mut client: Client, socket: Fd, user: Option<DeviceUser>, early: &[u8]) {
        client.number = 0;
        let connection = Connection::new(client, socket, user, early, self.pool.clone());
        let number = self.connections.insert(connection);
        if let Some(connection) = self.connections.get_mut(number) {
            connection.set_number(number);
        }
    }

    fn deliver(&mut self) {
        for answer in self.exchange.answers().drain(..) {
            if let Some(connection) = self.connections.get_mut(answer.client) {
                connection.answer(answer);
            }
        }
    }

    /// Closes the connections that `which` says.
    fn close(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in self.connections.values_mut().filter(|connection| which(connection)) {
            connection.close(&mut self.exchange);
        }
    }
}

impl Frontend for NbdFrontend {
    fn id(&self) -> FrontendId {
        self.id
    }

    fn start(&mut self, ring: &mut Ring) {
        for volume in 0..self.volumes.len() {
            let ends = Socket::pair(Domain::UNIX, Type::STREAM.cloexec(), None);
            let kernel = match ends {
                Ok((ours, kernels)) => {
                    let client = Client {
                        number: 0,
                        volume: VolumeId(volume as u16),
                        bytes: self.volumes[volume],
                        structured: false,
                        allocation: false,
                    };
                    self.add(client, Fd::new(ours.into()), None, &[]);
                    Some(Fd::new(kernels.into()))
                }
                Err(error) => {
                    tracing::error!(%error, "no socket for the kernel's nbd driver");
                    None
                }
            };
            self.kernel.get_mut().push(kernel);
        }
        self.poll(ring, &mut Vec::new());
    }

    fn attachment(&self, volume: VolumeId) -> Attachment {
        let place = usize::from(volume.0);
        let name = format!("{}/{place}", self.name);
        let uri = format!("nbd+unix:///{name}?socket={}", self.socket.display());
        match self.kernel.borrow_mut().get_mut(place).and_then(Option::take) {
            Some(socket) => Attachment::Nbd(NbdPlan {
                resource: self.resource,
                volume,
                epoch: self.epoch,
                socket,
                bytes: self.volumes[place],
                name,
                uri,
            }),
            None => Attachment::Export { uri },
        }
    }

    fn exports(&self) -> Vec<Export> {
        if self.withdrawn {
            return Vec::new();
        }
        let export = |(volume, bytes): (usize, &u64)| {
            let description = format!("volume {volume} of resource {}", self.name);
            Export::volume(format!("{}/{volume}", self.name), description, *bytes)
        };
        self.volumes.iter().enumerate().map(export).collect()
    }

    fn adopt(&mut self, ring: &mut Ring, arrived: Arrived) {
        let Arrived { socket, negotiated, user, early } = arrived;
        let Negotiated { export, structured, allocation } = negotiated;
        let volume = self.exports().iter().position(|offered| offered.name == export);
        let Some(volume) = volume.filter(|_| self.connections.len() < CLIENTS_MAX) else {
            tracing::warn!(export, "an NBD client was cut off: there are too many, or the devices are gone");
            return;
        };
        tracing::info!(export, structured, "an NBD client has come");
        let client = Client {
            number: 0,
            // Bounded by the number of volumes.
            volume: VolumeId(volume as u16),
            bytes: self.volumes[volume],
            structured,
            allocation,
        };
        self.add(client, socket, Some(user), &early);
        self.poll(ring, &mut Vec::new());
    }

    fn users(&self, volume: VolumeId) -> Vec<DeviceUser> {
        let open = self.connections.values().filter(|connection| !connection.is_closed());
        open.filter(|connection| connection.volume() == volume)
            .filter_map(|connection| connection.user().cloned())
            .collect()
    }

    fn completed(&mut self, _ring: &mut Ring, completion: Completion, requests: &mut Vec<FrontendRequest>) {
        debug_assert!(matches!(kind_of(completion.tag), KIND_RECEIVE | KIND_SEND));
        let place = (completion.tag >> TAG_PLACE_SHIFT) as u32;
        let Some(number) = self.connections.number_at(place) else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.completed(&mut self.exchange, completion);
        if connection.is_gone() {
            self.connections.remove(number);
        }
        requests.append(self.exchange.requests());
        self.deliver();
    }

    fn complete(&mut self, _ring: &mut Ring, tag: u64, result: FrontendResult) {
        self.exchange.complete(tag, result);
        self.deliver();
    }

    fn complete_extents(&mut self, _ring: &mut Ring, tag: u64, extents: &[Extent]) {
        self.exchange.extents(tag, extents);
        self.deliver();
    }

    fn poll(&mut self, ring: &mut Ring, requests: &mut Vec<FrontendRequest>) {
        // Begins with another client each time, so that all of them get places that have become
        // free.
        let places = self.connections.places();
        self.first = self.first.wrapping_add(1);
        let first = self.first;
        for place in (0..places).map(|place| (first % places + place) % places) {
            let Some(number) = self.connections.number_at(place) else { continue };
            let tags = self.tags(number);
            if let Some(connection) = self.connections.get_mut(number) {
                connection.resume(&mut self.exchange);
            }
            // Requests that can be answered at once are answered with the rest.
            self.deliver();
            if let Some(connection) = self.connections.get_mut(number) {
                connection.submit(ring, tags, &mut self.exchange);
                if connection.is_gone() {
                    self.connections.remove(number);
                }
            }
        }
        requests.append(self.exchange.requests());
    }

    fn fail_all(&mut self, _ring: &mut Ring, errno: Errno) {
        self.withdrawn = true;
        self.close(|connection| connection.user().is_some());
        self.exchange.fail_all(errno);
        self.deliver();
    }

    fn resized(&mut self, volume: VolumeId, bytes: u64) {
        if let Some(size) = self.volumes.get_mut(usize::from(volume.0)) {
            *size = bytes;
        }
        // Clients that are here learn of it only if they are the kernel's driver; the others when
        // they come again.
        for connection in self.connections.values_mut() {
            connection.resized(volume, bytes);
        }
    }

    fn detach(&mut self) {
        self.withdrawn = true;
        self.detached = true;
        self.close(|_| true);
        let gone: Vec<_> = self
            .connections
            .keys()
            .filter(|number| self.connections.get(*number).is_some_and(Connection::is_gone))
            .collect();
        for number in gone {
            self.connections.remove(number);
        }
    }

    fn is_closed(&self) -> bool {
        self.detached && self.connections.len() == 0
    }
}
