//! One virtual machine monitor's connection, and the queues of the disk that it drives.
//!
//! ```text
//! queue:    stopped ── kick file ──▶ running ── GET_VRING_BASE ──▶ draining ── nothing in progress ──▶ stopped, answered
//!              ▲                        └── the driver breaks the rules ──▶ broken ── GET_VRING_BASE ──▶ stopped
//!              └──────── connection: open ── the monitor is gone, or lies; the devices are taken away ──▶ closed
//! ```
//! What is guaranteed: messages that make no sense end the connection, and only it; a driver that breaks the rules loses its
//! queue, and only it, until the monitor starts it anew; while a queue drains, its monitor is told nothing else; a closed
//! connection stays until its last operation on the ring has ended.

use super::channel::{Channel, ChannelError, Received};
use super::inflight::{Disk, Inflight, InflightError};
use super::memory::{Memory, MemoryError};
use super::queue::{Queue, QueueTags, Setup, is_eventfd};
use super::requests::{Requests, Serving, ZEROES_BYTES_MAX};
use super::vring::{Fault, Parts, SIZE_MAX, Vring};
use crate::buffer::BufferPool;
use crate::frontend::exchange::{Answer, Client, Exchange};
use crate::ring::{Completion, Fd, Op, OpHandle, Owner, Ring};
use mainstay_codec::vhost_user::{
    CONFIG_BYTES_MAX, FEATURE_PROTOCOL, InflightArea, Message, config, protocol, reply, ring_base,
};
use mainstay_codec::virtio_blk::{CONFIG_WRITEBACK_AT, Config, ID_BYTES, feature};
use mainstay_types::{BLOCK_BYTES, Epoch};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// Most queues of a machine's disk; a monitor wants one for each of its processors.
pub const QUEUES_MAX: usize = 64;
/// Most pieces of a request. Two more descriptors are its header and its status, and rings have 128 places mostly.
const PIECES_MAX: u32 = 126;
/// Longest piece of a request, in bytes: requests are then as long as the exchange takes them.
const PIECE_BYTES_MAX: u32 = 256 << 10;
const _: () = assert!(PIECE_BYTES_MAX * PIECES_MAX <= mainstay_codec::nbd::PAYLOAD_BYTES_MAX);
/// Messages that are taken in one go.
const MESSAGES_MAX: usize = 32;

/// What drivers are offered.
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

/// The disk, and when it was served.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub disk: Disk,
    /// Of the volume.
    pub bytes: u64,
    pub name: [u8; ID_BYTES],
    /// In which it is served now, and since which one no other node was primary.
    pub epoch: Epoch,
    pub since: Epoch,
}

/// Tags of a connection's operations on the ring.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    pub message: u64,
    /// Those of the first queue; each further queue has its own by adding `step`.
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

    /// Takes what the monitor has to say.
    fn converse(&mut self, ring: &mut Ring) -> Result<(), SessionError> {
        for _ in 0..MESSAGES_MAX {
            if self.draining.is_some() {
                return Ok(());
            }
            let Some(received) = self.channel.receive()? else { return Ok(()) };
            let Received { header, message, files } = received;
            let has_answer = matches!(
                message,
                Message::GetFeatures
                    | Message::GetRingBase { .. }
                    | Message::GetProtocolFeatures
                    | Message::GetQueueCount
                    | Message::GetConfig { .. }
                    | Message::GetInflight(_)
            );
            let accepted = self.message(ring, header.request, header.len, message, files)?;
            if header.need_reply && !has_answer {
                self.channel.send(&reply(header.request, &u64::from(!accepted).to_le_bytes()), None)?;
            }
        }
        Ok(())
    }

    /// Does what a message says; whether it could be done.
    fn message(
        &mut self,
        ring: &mut Ring,
        request: u32,
        len: usize,
        message: Message,
        mut files: Vec<OwnedFd>,
    ) -> Result<bool, SessionError> {
        let answer = |body: &[u8]| self.channel.send(&reply(request, body), None);
        match message {
            Message::GetFeatures => answer(&FEATURES.to_le_bytes())?,
            Message::GetProtocolFeatures => answer(&protocol::SPOKEN.to_le_bytes())?,
            Message::GetQueueCount => answer(&(QUEUES_MAX as u64).to_le_bytes())?,
            Message::GetConfig { offset, len } => answer(&self.config_part(offset, len))?,
            Message::SetFeatures(bits) if bits & !FEATURES != 0 => {
                return Err(SessionError::Refused("it takes features that were not offered"));
            }
            Message::SetFeatures(bits) => self.features = bits,
            Message::SetProtocolFeatures(bits) if bits & !protocol::SPOKEN != 0 => {
                return Err(SessionError::Refused("it takes protocol features that were not offered"));
            }
            // Nothing depends on them but what it asks for.
            Message::SetProtocolFeatures(_) | Message::SetOwner | Message::ResetOwner => {}
            Message::SetConfig { offset, bytes } => return Ok(self.set_config(offset, &bytes)),
            Message::SetMemTable(regions) => self.memory = Some(Rc::new(Memory::map(&regions, files)?)),
            Message::GetInflight(area) => {
                let (area, file) = self.make_inflight(&area)?;
                self.channel.send(&reply(request, &area.encode(len)), Some(&file))?;
            }
            Message::SetInflight(area) => {
                let file = files.pop().ok_or(SessionError::Refused("its notes have no file"))?;
                self.set_inflight(&area, file)?;
            }
            Message::SetRingSize { ring, size } => match u16::try_from(size) {
                Ok(size) if size <= SIZE_MAX && size.is_power_of_two() => self.setup(ring)?.size = size,
                _ => return Err(SessionError::Refused("a ring has an impossible size")),
            },
            Message::SetRingAddresses { ring, addresses } => self.setup(ring)?.addresses = addresses,
            Message::SetRingBase { ring, base } => {
                let base = u16::try_from(base);
                self.setup(ring)?.base =
                    base.map_err(|_| SessionError::Refused("a ring has an impossible base"))?;
            }
            Message::SetRingKick { ring: number, file } => {
                let file = eventfd(file, files)?;
                if file.is_none() {
                    return Err(SessionError::Refused("a ring without kicks is not served"));
                }
                self.queue(number)?.set_kick(ring, file);
                self.start(number)?;
            }
            Message::SetRingCall { ring: number, file } => {
                let file = eventfd(file, files)?;
                self.queue(number)?.set_call(ring, file);
            }
            // Errors are logged here; the file is closed.
            Message::SetRingError { ring, .. } => _ = self.queue(ring)?,
            Message::EnableRing { ring, enable } => {
                let queue = self.queue(ring)?;
                queue.enabled = enable;
                queue.due = true;
            }
            Message::GetRingBase { ring } => {
                self.queue(ring)?;
                self.draining = Some(ring as u16);
                // Answered by `drain`.
            }
            Message::Unknown => {
                return Err(SessionError::Refused("it sent a message that is not spoken here"));
            }
        }
        Ok(true)
    }

    fn queue(&mut self, number: u32) -> Result<&mut Queue, SessionError> {
        let place = number as usize;
        if place >= QUEUES_MAX {
            return Err(SessionError::Refused("it has no such ring"));
        }
        if place >= self.queues.len() {
            self.queues.resize_with(place + 1, Queue::default);
        }
        Ok(&mut self.queues[place])
    }

    fn setup(&mut self, number: u32) -> Result<&mut Setup, SessionError> {
        self.queue(number).map(|queue| &mut queue.setup)
    }

    fn config_part(&self, offset: u32, len: u32) -> Vec<u8> {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= CONFIG_BYTES_MAX) else {
            return config(offset, &[]);
        };
        let mut bytes = self.config.encode().to_vec();
        bytes.resize(CONFIG_BYTES_MAX as usize, 0);
        config(offset, &bytes[offset as usize..end as usize])
    }

    /// A driver may say that it wants a volatile cache. It then flushes, which changes nothing.
    fn set_config(&mut self, offset: u32, bytes: &[u8]) -> bool {
        match bytes {
            [writeback] if offset as usize == CONFIG_WRITEBACK_AT => {
                self.config.writeback = *writeback != 0;
                true
            }
            _ => false,
        }
    }

    fn make_inflight(&self, area: &InflightArea) -> Result<(InflightArea, OwnedFd), SessionError> {
        let (queues, size) = (area.queues, area.queue_size);
        if queues == 0 || usize::from(queues) > QUEUES_MAX || size == 0 || size > SIZE_MAX {
            return Err(SessionError::Refused("it wants notes for an impossible number of queues"));
        }
        Ok(Inflight::make(self.served.disk, self.served.epoch, queues, size)?)
    }

    fn set_inflight(&mut self, area: &InflightArea, file: OwnedFd) -> Result<(), SessionError> {
        if self.queues.iter().any(|queue| queue.vring.is_some()) {
            return Err(SessionError::Refused("it changes its notes while they are used"));
        }
        let Served { disk, epoch, since, .. } = self.served;
        let (inflight, last) = Inflight::open(disk, area, file)?;
        self.requests.is_stale = last < since || last > epoch;
        if self.requests.is_stale {
            tracing::warn!(
                resource = %disk.resource, volume = %disk.volume, %last, %since, %epoch,
                "a virtual machine is of the past: another node may have been primary meanwhile, so it gets errors until it is \
                 started again"
            );
        } else {
            inflight.set_epoch(epoch);
        }
        self.inflight = Some(inflight);
        Ok(())
    }

    /// A queue has its kick file: it runs from now on.
    fn start(&mut self, number: u32) -> Result<(), SessionError> {
        let queue = &mut self.queues[number as usize];
        if queue.vring.is_some() {
            return Ok(());
        }
        let memory = self.memory.as_ref().ok_or(SessionError::Refused("it starts a ring without memory"))?;
        let Setup { size, addresses, base } = queue.setup;
        let find = |user, bytes| {
            let found = memory.guest_address(user, bytes);
            found.ok_or(SessionError::Refused("a ring is not in its memory"))
        };
        let parts = Parts {
            descriptors: find(addresses.descriptors, 16)?,
            available: find(addresses.available, 4)?,
            used: find(addresses.used, 4)?,
        };
        let event_idx = self.features & feature::EVENT_IDX != 0;
        let started = Vring::new(memory, size, parts, event_idx, base);
        let mut vring = started.map_err(|Fault(why)| SessionError::Refused(why))?;
        let number = number as u16;
        match &self.inflight {
            Some(inflight) if number >= inflight.queues() || size > inflight.size() => {
                return Err(SessionError::Refused("a ring has no place in its notes"));
            }
            Some(inflight) if inflight.is_fresh(number) => inflight.begin(number, vring.used()),
            Some(inflight) => {
                let heads = inflight.resume(number, vring.used());
                for head in &heads {
                    inflight.take(number, *head, self.requests.next_counter());
                }
                vring.set_available(vring.used().wrapping_add(heads.len() as u16));
                if !heads.is_empty() {
                    tracing::info!(
                        queue = number,
                        requests = heads.len(),
                        "what was in flight is asked for again"
                    );
                }
                queue.again = heads.into();
            }
            None if base != 0 && base != queue.told_base => {
                tracing::warn!(
                    "a virtual machine is in the midst of something and has no notes of what was in flight, so it gets errors \
                     until it is started again"
                );
                self.requests.is_stale = true;
            }
            None => {}
        }
        queue.vring = Some(vring);
        queue.broken = false;
        queue.due = true;
        Ok(())
    }

    /// Takes an answer of the exchange.
    pub fn answer(&mut self, answer: Answer) {
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
        // 11: GET_VRING_BASE.
        self.channel.send(&reply(11, &ring_base(number.into(), base.into())), None)?;
        Ok(())
    }
}

/// The file of a kick or a call.
fn eventfd(has: bool, mut files: Vec<OwnedFd>) -> Result<Option<OwnedFd>, SessionError> {
    match (has, files.pop(), files.is_empty()) {
        (false, None, _) => Ok(None),
        (true, Some(file), true) if is_eventfd(&file) => Ok(Some(file)),
        _ => Err(SessionError::Refused("a ring's file is none, or no eventfd")),
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
