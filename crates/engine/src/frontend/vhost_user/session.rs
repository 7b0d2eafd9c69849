//! One virtual machine monitor's connection, and the queues of the disk that it drives.
//!
//! ```text
//! queue:    stopped ── kick file ──▶ running ── GET_VRING_BASE ──▶ draining ── nothing in progress ──▶ stopped, answered
//!              ▲                        └── the driver breaks the rules ──▶ broken ── GET_VRING_BASE ──▶ stopped
//!              └──────── connection: open ── the monitor is gone, or lies; the devices are taken away ──▶ closed
//! ```
//! Guarantees:
//! - Messages that make no sense end the connection, and only it.
//! - A driver that breaks the rules loses its queue, and only it, until the monitor starts it anew.
//! - While a queue drains, its monitor is told nothing else.
//! - A closed connection stays until its last operation on the ring has ended.

mod messages;

use super::channel::{Channel, ChannelError};
use super::inflight::{Disk, Inflight, InflightError};
use super::memory::{Memory, MemoryError};
use super::queue::{Queue, QueueTags};
use super::requests::{Requests, Serving, ZEROES_BYTES_MAX};
use super::runs::Run;
use super::vring::{Fault, Vring};
use crate::buffer::BufferPool;
use crate::frontend::exchange::{Client, Exchange, ExchangeAnswer};
use crate::ring::{Completion, Fd, Op, OpHandle, Owner, Ring};
use mainstay_codec::vhost_user::{FEATURE_PROTOCOL, GET_RING_BASE, reply, ring_base};
use mainstay_codec::virtio_blk::{Config, ID_BYTES, feature};
use mainstay_types::BLOCK_BYTES;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// Most queues of a machine's disk; a monitor wants one for each of its processors.
pub const QUEUES_MAX: usize = 64;
/// Most pieces of a request. Two more descriptors are its header and its status, and rings have 128
/// places mostly.
const PIECES_MAX: u32 = 126;
/// Longest piece of a request, in bytes: requests are then as long as the exchange takes them.
const PIECE_BYTES_MAX: u32 = 256 << 10;
const _: () = assert!(PIECE_BYTES_MAX * PIECES_MAX <= mainstay_codec::nbd::PAYLOAD_BYTES_MAX);

/// Features that drivers are offered.
const FEATURES: u64 = feature::SIZE_MAX
    | feature::SEG_MAX
    | feature::BLK_SIZE
    | feature::FLUSH
    | feature::TOPOLOGY
    | feature::CONFIG_WCE
    | feature::MQ
    | feature::DISCARD
    | feature::WRITE_ZEROES
    | feature::INDIRECT
    | feature::EVENT_IDX
    | feature::VERSION_1
    | FEATURE_PROTOCOL;

/// Why a connection was ended.
#[derive(Debug, Error)]
pub enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("its memory cannot be used")]
    Memory(#[from] MemoryError),
    #[error("its notes of what is in flight cannot be used")]
    Inflight(#[from] InflightError),
    #[error("{0}")]
    Refused(&'static str),
}

/// The disk, and when it is served.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub disk: Disk,
    /// Size of the volume, in bytes.
    pub bytes: u64,
    pub name: [u8; ID_BYTES],
    /// Run in which the disk is served.
    pub run: Run,
}

/// Tags of a connection's operations on the ring.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    pub message: u64,
    /// Tags of the first queue. Each further queue has its own by adding `step`.
    pub first: QueueTags,
    pub step: u64,
}

impl Tags {
    fn queue(self, number: usize) -> QueueTags {
        let add = self.step * number as u64;
        QueueTags { kick: self.first.kick + add, call: self.first.call + add }
    }
}

/// See the top of this file.
pub struct Session {
    channel: Channel,
    served: Served,
    tags: Tags,
    pool: BufferPool,
    config: Config,
    features: u64,
    memory: Option<Rc<Memory>>,
    inflight: Option<Inflight>,
    queues: Vec<Queue>,
    requests: Requests,
    /// This queue is to stop when nothing is in progress any more.
    draining: Option<u16>,
    closed: bool,
    listening: Option<OpHandle>,
    /// Operations on the ring.
    operations: usize,
}

impl Session {
    pub fn new(socket: Fd, client: Client, served: Served, tags: Tags, pool: BufferPool) -> Self {
        Self {
            channel: Channel::new(socket),
            served,
            tags,
            config: Config {
                bytes: served.bytes,
                piece_bytes_max: PIECE_BYTES_MAX,
                pieces_max: PIECES_MAX,
                block_bytes: BLOCK_BYTES as u32,
                writeback: false,
                queues: QUEUES_MAX as u16,
                zeroes_bytes_max: ZEROES_BYTES_MAX,
            },
            features: 0,
            memory: None,
            inflight: None,
            queues: Vec::new(),
            requests: Requests::new(client, served.name, pool.clone()),
            pool,
            draining: None,
            closed: false,
            listening: None,
            operations: 0,
        }
    }

    pub fn client(&self) -> Client {
        self.requests.client()
    }

    fn name(&self) -> &str {
        std::str::from_utf8(&self.served.name).unwrap_or_default().trim_end_matches('\0')
    }

    /// Whether the ring knows nothing of it any more, and it may go.
    pub fn is_gone(&self) -> bool {
        self.closed && self.operations == 0
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends it: what is under way on the ring ends soon. The driver is told nothing.
    pub fn close(&mut self, ring: &mut Ring, exchange: &mut Exchange) {
        if self.closed {
            return;
        }
        self.closed = true;
        exchange.forget(self.client().number);
        self.requests.clear();
        if let Some(listening) = self.listening.take() {
            ring.cancel(listening);
        }
        for queue in &mut self.queues {
            queue.close(ring);
        }
    }

    fn end(&mut self, ring: &mut Ring, exchange: &mut Exchange, error: &SessionError) {
        match error {
            SessionError::Channel(ChannelError::Gone) => {
                tracing::info!(disk = self.name(), "a virtual machine has disconnected");
            }
            error => {
                let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
                let cause = cause.unwrap_or_default();
                tracing::warn!(disk = self.name(), "a virtual machine was cut off: {error}{cause}");
            }
        }
        self.close(ring, exchange);
    }

    /// An operation on the ring has ended. `queue`: whose it was, unless it was the socket's.
    pub fn completed(
        &mut self,
        ring: &mut Ring,
        exchange: &mut Exchange,
        queue: Option<usize>,
        completion: Completion,
    ) {
        self.operations -= 1;
        if self.closed {
            return;
        }
        let Some(number) = queue else {
            self.listening = None;
            if let Err(error) = self.converse(ring) {
                self.end(ring, exchange, &error);
            }
            return;
        };
        let tags = self.tags.queue(number);
        let Some(queue) = self.queues.get_mut(number) else { return };
        let follow = match &completion.op {
            Op::Write { .. } => {
                queue.called(&completion.op);
                0
            }
            _ => queue.kicked(ring, tags, &self.pool, completion.op),
        };
        self.operations += follow;
    }

    /// Takes an answer of the exchange.
    pub fn answer(&mut self, answer: ExchangeAnswer) {
        if let Err((queue, fault)) = self.requests.answer(&mut self.queues, self.inflight.as_ref(), answer) {
            break_queue(&mut self.queues[usize::from(queue)], queue, fault);
        }
    }

    /// Serves the queues of which there is something to take. Answers may follow at once.
    pub fn serve(&mut self, exchange: &mut Exchange) {
        let Some(memory) = self.memory.clone().filter(|_| !self.closed) else { return };
        let negotiated = self.features & FEATURE_PROTOCOL != 0;
        for (number, queue) in self.queues.iter_mut().enumerate() {
            let enabled = queue.enabled || !negotiated;
            let number = number as u16;
            let stopping = self.draining == Some(number) || !enabled || queue.broken;
            if !queue.due || queue.vring.is_none() {
                continue;
            }
            let mut with = Serving {
                exchange: &mut *exchange,
                memory: &memory,
                inflight: self.inflight.as_ref(),
                stopping,
            };
            if let Err(fault) = self.requests.serve(&mut with, number, queue) {
                break_queue(queue, number, fault);
            }
        }
    }

    /// Hands to the ring what it has to do: wakes the driver, listens to it and to the monitor.
    pub fn submit(&mut self, ring: &mut Ring, exchange: &mut Exchange) {
        if self.closed {
            return;
        }
        if self.requests.is_unserved {
            tracing::info!(
                disk = self.name(),
                "a virtual machine was cut off: its volume is no longer served here"
            );
            return self.close(ring, exchange);
        }
        if let Some(memory) = self.memory.clone() {
            if memory.is_lost() {
                let error = SessionError::Refused("a part of its memory was taken away");
                return self.end(ring, exchange, &error);
            }
            self.wake(ring, &memory);
        }
        if let Err(error) = self.drain(ring) {
            return self.end(ring, exchange, &error);
        }
        self.listen(ring);
    }

    /// Calls drivers for what was answered, and waits for their kicks.
    fn wake(&mut self, ring: &mut Ring, memory: &Memory) {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            let tags = self.tags.queue(number);
            if std::mem::take(&mut queue.answered)
                && let Some(vring) = &mut queue.vring
            {
                match vring.must_call(memory) {
                    Ok(true) => queue.owe(),
                    Ok(false) => {}
                    Err(fault) => break_queue(queue, number as u16, fault),
                }
            }
            self.operations += queue.call(ring, tags);
            if std::mem::take(&mut queue.pressed) {
                self.operations += queue.come_back(ring, tags);
            }
            if queue.vring.is_some() {
                self.operations += queue.listen(ring, tags);
            }
        }
    }

    fn listen(&mut self, ring: &mut Ring) {
        if self.listening.is_none() && self.draining.is_none() {
            let op = Op::Readable { fd: Arc::clone(&self.channel.socket) };
            self.listening = Some(ring.submit(Owner::Frontend, self.tags.message, op));
            self.operations += 1;
        }
    }

    /// Stops the queue that drains, once it has.
    fn drain(&mut self, ring: &mut Ring) -> Result<(), SessionError> {
        let Some(number) = self.draining else { return Ok(()) };
        let queue = &mut self.queues[usize::from(number)];
        if queue.jobs > 0 {
            return Ok(());
        }
        self.requests.put_aside(queue, self.inflight.is_some());
        let base = queue.vring.as_ref().map_or(queue.setup.base, Vring::available);
        queue.set_kick(ring, None);
        queue.vring = None;
        queue.again.clear();
        queue.incoming = None;
        queue.broken = false;
        queue.told_base = base;
        self.draining = None;
        self.channel.send(&reply(GET_RING_BASE, &ring_base(number.into(), base.into())), None)?;
        Ok(())
    }
}

fn break_queue(queue: &mut Queue, number: u16, Fault(why): Fault) {
    if !queue.broken {
        tracing::warn!(
            queue = number,
            why,
            "a virtual machine's driver breaks the rules; its queue is served no further"
        );
        queue.broken = true;
    }
}
