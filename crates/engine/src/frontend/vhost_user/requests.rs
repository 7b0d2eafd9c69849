//! Requests of a guest's driver: descriptor chains in, requests of the exchange out, and back.
//!
//! A request is a header of 16 bytes that the device reads, data, and a byte of status at the end
//! of what the device writes, however the driver has cut that into descriptors.
//!
//! Guarantee: header and payload are copied out of the guest's memory once, before
//! anything is decided by them. Every head that was taken is put back once, with a status, unless
//! the machine is cut off, the ring is broken, or the ring was stopped before the request began.

use super::inflight::Inflight;
use super::memory::{Memory, Outside};
use super::queue::{Held, Incoming, Queue};
use super::vring::{Chain, Fault, bytes_of, copy_in, copy_out};
use crate::buffer::{BufferPool, Stretch};
use crate::frontend::exchange::{Admission, Client, Exchange, ExchangeAnswer, Reply, part_of_write};
use crate::frontend::slab::Slab;
use mainstay_codec::nbd::{Command, NbdError, PAYLOAD_BYTES_MAX, Request};
use mainstay_codec::virtio_blk::{
    HEADER_BYTES, Header, ID_BYTES, Kind, RANGE_BYTES, Range, SECTOR_BYTES, Status,
};
use std::rc::Rc;

/// Longest discard and write-zeroes, in bytes: long enough for mkfs, short enough for one entry of
/// the log.
pub const ZEROES_BYTES_MAX: u32 = 64 << 20;
/// Steps that a queue is served for in one go; a request takes two.
const TURN_MAX: usize = 1024;
/// Chains that are kept to be filled again.
const SPARE_MAX: usize = 64;

/// A request that was taken.
struct Work {
    queue: u16,
    head: u16,
    /// Memory of the guest, as it was shared when the request was taken.
    memory: Rc<Memory>,
    chain: Chain,
    /// Where a read begins in the volume, and its length, both in bytes.
    start: u64,
    data_bytes: u64,
}

/// Next step for a chain.
enum Ask {
    Exchange(Request),
    /// The answer is known, with the bytes of data that were written.
    Answer(Status, u64),
}

/// The requests of one machine.
pub struct Requests {
    payloads: Stretch,
    client: Client,
    name: [u8; ID_BYTES],
    works: Slab<Work>,
    spare: Vec<Chain>,
    jobs: usize,
    charged: u64,
    /// Rises with every head that is noted.
    counter: u64,
    /// Everything is refused: the machine is of the past.
    pub is_stale: bool,
    /// The volume is no longer served here: the machine is cut off, and is to connect and ask
    /// again.
    pub is_unserved: bool,
}

/// Parts with which a queue is served.
pub struct Serving<'a> {
    pub exchange: &'a mut Exchange,
    pub memory: &'a Rc<Memory>,
    pub inflight: Option<&'a Inflight>,
    /// No more heads are taken.
    pub stopping: bool,
}

impl Requests {
    pub fn new(client: Client, name: [u8; ID_BYTES], pool: BufferPool) -> Self {
        Self {
            payloads: Stretch::new(pool),
            client,
            name,
            works: Slab::new(),
            spare: Vec::new(),
            jobs: 0,
            charged: 0,
            counter: 0,
            is_stale: false,
            is_unserved: false,
        }
    }

    pub fn client(&self) -> Client {
        self.client
    }

    /// Forgets everything; the exchange has forgotten the client.
    pub fn clear(&mut self) {
        self.works = Slab::new();
    }

    /// For the order of heads in the notes.
    pub fn next_counter(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Takes from a queue as much as is there and has room, but not so much that other queues wait
    /// for long.
    pub fn serve(&mut self, with: &mut Serving<'_>, number: u16, queue: &mut Queue) -> Result<(), Fault> {
        for _ in 0..TURN_MAX {
            if let Some(incoming) = queue.incoming.take()
                && !self.feed(with.exchange, queue, incoming)?
            {
                return Ok(());
            }
            if with.stopping {
                return Ok(());
            }
            if let Some(held) = queue.held.take() {
                if !self.admit(with, queue, held)? {
                    return Ok(());
                }
                continue;
            }
            if !self.take(with, number, queue)? {
                return Ok(());
            }
        }
        // A driver on a processor of its own may go on like this for ever.
        queue.pressed = true;
        Ok(())
    }

    /// Takes the next head; whether there was one.
    fn take(&mut self, with: &Serving<'_>, number: u16, queue: &mut Queue) -> Result<bool, Fault> {
        let Some(vring) = &mut queue.vring else { return Ok(false) };
        let head = match queue.again.pop_front() {
            // It is noted already.
            Some(head) => head,
            None => {
                let head = match vring.take(with.memory)? {
                    Some(head) => head,
                    None if !vring.listen(with.memory)? => {
                        queue.due = false;
                        return Ok(false);
                    }
                    None => return Ok(true),
                };
                if let Some(inflight) = with.inflight {
                    self.counter += 1;
                    inflight.take(number, head, self.counter);
                }
                head
            }
        };
        let mut chain = self.spare.pop().unwrap_or_default();
        vring.follow(with.memory, head, &mut chain)?;
        let mut work =
            Work { queue: number, head, memory: Rc::clone(with.memory), chain, start: 0, data_bytes: 0 };
        let ask = self.read(&mut work)?;
        let number = self.works.insert(work);
        match ask {
            Ask::Exchange(ask) => {
                queue.held = Some(Held { work: number, ask: Request { cookie: number, ..ask } })
            }
            Ask::Answer(status, bytes) => self.finish(queue, with.inflight, number, status, bytes)?,
        }
        Ok(true)
    }

    /// Reads the request of a chain.
    fn read(&self, work: &mut Work) -> Result<Ask, Fault> {
        let Work { memory, chain, .. } = &*work;
        let readable = bytes_of(&chain.readable);
        let writable = bytes_of(&chain.writable);
        let (Some(payload), Some(room)) =
            (readable.checked_sub(HEADER_BYTES as u64), writable.checked_sub(1))
        else {
            return Err(Fault("a request has no header, or no place for its status"));
        };
        let mut header = [0; HEADER_BYTES];
        copy_out(memory, &chain.readable, 0, &mut header)?;
        let Header { kind, sector } = Header::decode(&header);
        if self.is_stale {
            return Ok(Ask::Answer(Status::IoError, 0));
        }
        let refused = Ok(Ask::Answer(Status::IoError, 0));
        let request = |command, offset, len: u64| {
            // Bounded by the callers.
            Ok(Ask::Exchange(Request { command, cookie: 0, offset, len: len as u32, bad_flags: false }))
        };
        let data = |len: u64| {
            let fits = len.is_multiple_of(SECTOR_BYTES) && len <= PAYLOAD_BYTES_MAX.into();
            sector.checked_mul(SECTOR_BYTES).filter(|_| fits)
        };
        match kind {
            Kind::In => match data(room) {
                Some(offset) => {
                    (work.start, work.data_bytes) = (offset, room);
                    request(Command::Read { whole: false }, offset, room)
                }
                None => refused,
            },
            Kind::Out => match data(payload) {
                Some(offset) => request(Command::Write, offset, payload),
                None => refused,
            },
            Kind::Flush => request(Command::Flush, 0, 0),
            Kind::GetId => {
                let len = room.min(ID_BYTES as u64);
                copy_in(memory, &chain.writable, 0, &self.name[..len as usize])?;
                Ok(Ask::Answer(Status::Ok, len))
            }
            // One range, as the configuration says.
            Kind::Discard | Kind::WriteZeroes if payload != RANGE_BYTES as u64 => refused,
            Kind::Discard | Kind::WriteZeroes => {
                let mut bytes = [0; RANGE_BYTES];
                copy_out(memory, &chain.readable, HEADER_BYTES as u64, &mut bytes)?;
                let Range { sector, sectors, unmap, unknown_flags } = Range::decode(&bytes);
                if unknown_flags || (kind == Kind::Discard && unmap) {
                    return Ok(Ask::Answer(Status::Unsupported, 0));
                }
                let len = u64::from(sectors) * SECTOR_BYTES;
                let (Some(offset), true) = (sector.checked_mul(SECTOR_BYTES), len <= ZEROES_BYTES_MAX.into())
                else {
                    return refused;
                };
                let command =
                    if kind == Kind::Discard { Command::Trim } else { Command::WriteZeroes { keep: !unmap } };
                request(command, offset, len)
            }
            Kind::Unknown(_) => Ok(Ask::Answer(Status::Unsupported, 0)),
        }
    }

    /// Hands a request to the exchange; whether it has room.
    fn admit(&mut self, with: &mut Serving<'_>, queue: &mut Queue, held: Held) -> Result<bool, Fault> {
        let Held { work, ask } = held;
        let len = u64::from(ask.len);
        match with.exchange.request(self.client, &ask, self.jobs, self.charged) {
            Admission::Wait => {
                queue.held = Some(held);
                return Ok(false);
            }
            Admission::Taken(charge) => {
                self.jobs += 1;
                self.charged += charge;
                queue.jobs += 1;
            }
            Admission::Payload(job) => {
                self.jobs += 1;
                self.charged += len;
                queue.jobs += 1;
                let (offset, from) = (ask.offset, HEADER_BYTES as u64);
                queue.incoming = Some(Incoming { work, job, offset, from, left: len });
            }
            Admission::Refused(..) | Admission::Hostile(_) => {
                self.finish(queue, with.inflight, work, Status::IoError, 0)?;
            }
        }
        Ok(true)
    }

    /// Copies a payload out of the guest's memory and hands it over, part by part; whether all of
    /// it had room.
    fn feed(
        &mut self,
        exchange: &mut Exchange,
        queue: &mut Queue,
        mut incoming: Incoming,
    ) -> Result<bool, Fault> {
        let Some(work) = self.works.get(incoming.work) else { return Ok(true) };
        while incoming.left > 0 {
            if !exchange.has_room() {
                queue.incoming = Some(incoming);
                return Ok(false);
            }
            let (at, len) = part_of_write(incoming.offset, incoming.left);
            let mut buffer = self.payloads.get(at + len);
            copy_out(
                &work.memory,
                &work.chain.readable,
                incoming.from,
                &mut buffer.as_mut_slice()[at..at + len],
            )?;
            let last = incoming.left == len as u64;
            exchange.part(incoming.job, incoming.offset, buffer, at, len, last);
            incoming.offset += len as u64;
            incoming.from += len as u64;
            incoming.left -= len as u64;
        }
        Ok(true)
    }

    /// Takes an answer of the exchange.
    pub fn answer(
        &mut self,
        queues: &mut [Queue],
        inflight: Option<&Inflight>,
        answer: ExchangeAnswer,
    ) -> Result<(), (u16, Fault)> {
        if let Some(charged) = answer.ended {
            self.jobs -= 1;
            self.charged -= charged;
        }
        let Some(work) = self.works.get(answer.cookie) else { return Ok(()) };
        let number = work.queue;
        let Some(queue) = queues.get_mut(usize::from(number)) else { return Ok(()) };
        queue.jobs -= usize::from(answer.ended.is_some());
        let (status, bytes) = match answer.reply {
            Reply::Data { offset, pieces, last } => {
                let mut to = offset - work.start;
                for piece in &pieces {
                    copy_in(&work.memory, &work.chain.writable, to, piece)
                        .map_err(|outside: Outside| (number, outside.into()))?;
                    to += piece.len() as u64;
                }
                if !last {
                    return Ok(());
                }
                (Status::Ok, work.data_bytes)
            }
            Reply::Done => (Status::Ok, 0),
            Reply::Failed(NbdError::Shutdown, _) => {
                self.is_unserved = true;
                return Ok(());
            }
            Reply::Failed(NbdError::NotSupported, _) => (Status::Unsupported, 0),
            Reply::Failed(..) => (Status::IoError, 0),
            Reply::Status(_) => unreachable!("no driver has asked for it"),
        };
        self.finish(queue, inflight, answer.cookie, status, bytes).map_err(|fault| (number, fault))
    }

    /// Puts a head back: the status first, then the driver may look.
    fn finish(
        &mut self,
        queue: &mut Queue,
        inflight: Option<&Inflight>,
        number: u64,
        status: Status,
        bytes: u64,
    ) -> Result<(), Fault> {
        let Some(Work { queue: place, head, memory, chain, .. }) = self.works.remove(number) else {
            return Ok(());
        };
        let last = bytes_of(&chain.writable) - 1;
        copy_in(&memory, &chain.writable, last, &[status as u8])?;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(chain);
        }
        let Some(vring) = &mut queue.vring else { return Ok(()) };
        if let Some(inflight) = inflight {
            inflight.putting(place, head);
        }
        // At most 32 MiB and the status.
        vring.put(&memory, head, bytes as u32 + 1)?;
        if let Some(inflight) = inflight {
            inflight.done(place, head, vring.used());
        }
        queue.answered = true;
        Ok(())
    }

    /// A stopped queue's request that has not begun is as if it had not been taken.
    pub fn put_aside(&mut self, queue: &mut Queue, noted: bool) {
        if let Some(held) = queue.held.take() {
            self.works.remove(held.work);
            if let Some(vring) = queue.vring.as_mut().filter(|_| !noted) {
                vring.set_available(vring.available().wrapping_sub(1));
            }
        }
    }
}
