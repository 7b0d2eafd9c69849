//! One client's connection, from the choice of an export to the end.
//!
//! ```text
//! Open ──DISC──▶ Leaving ──all answered and sent──▶ Closed
//!  └──the client is gone, or lies; the devices are taken away──▶ Closed
//! ```
//! Guarantees:
//! - Bytes that are no request end the connection, and only it.
//! - A client that is slow to read its answers, or asks for more than its window, is read no
//!   further (R18).
//! - A closed connection stays until its last operation on the ring has ended.

use super::landing::{Landing, Payload};
use super::outbox::Outbox;
use crate::buffer::BufferPool;
use crate::frontend::exchange::{Admission, Client, Exchange, ExchangeAnswer, Reply, part_of_write};
use crate::ring::{Completion, Fd, Op, Owner, Ring};
use mainstay_api::engine::DeviceUser;
use mainstay_codec::nbd::handshake::ALLOCATION_ID;
use mainstay_codec::nbd::{Command, NbdError, REQUEST_BYTES, Request};
use mainstay_types::VolumeId;
use socket2::SockRef;
use std::io;
use std::net::Shutdown;

/// See the top of this file.
pub struct Connection {
    client: Client,
    socket: Fd,
    /// `None` if the other end is this machine's kernel, which is told of errors instead of being
    /// cut off.
    user: Option<DeviceUser>,
    state: State,
    landing: Landing,
    stage: Stage,
    header: [u8; REQUEST_BYTES],
    /// How much of it has come.
    have: usize,
    /// In progress, and the payload with them.
    jobs: usize,
    charged: u64,
    outbox: Outbox,
    receiving: bool,
    /// Waits for answers before it goes on.
    stalled: bool,
    /// The volume is no longer served here: the client is cut off, and is to connect and ask again.
    unserved: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Leaving,
    Closed,
}

/// Meaning of the next bytes that come.
enum Stage {
    Request,
    /// This one has come, and was not admitted yet.
    Admit(Request),
    /// Payload of the write at `offset`, of which `left` bytes were not handed over. `part`: place
    /// in its buffer, and length, of the payload that comes now. This part is on the ring while
    /// `payload` is `None`.
    Payload {
        job: u64,
        offset: u64,
        left: u64,
        part: Option<(usize, usize)>,
        payload: Option<Payload>,
    },
    /// The payload of a write that is answered with the error.
    Refused {
        left: usize,
        cookie: u64,
        error: NbdError,
        words: &'static str,
    },
}

/// Tags of a connection's operations on the ring.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    pub receive: u64,
    pub send: u64,
}

impl Connection {
    /// `early`: bytes that came right behind the handshake.
    pub fn new(client: Client, socket: Fd, user: Option<DeviceUser>, early: &[u8], pool: BufferPool) -> Self {
        let mut landing = Landing::new(pool);
        if !early.is_empty() {
            landing.preload(early);
        }
        Self {
            client,
            socket,
            user,
            state: State::Open,
            landing,
            stage: Stage::Request,
            header: [0; REQUEST_BYTES],
            have: 0,
            jobs: 0,
            charged: 0,
            outbox: Outbox::new(),
            receiving: false,
            stalled: true,
            unserved: false,
        }
    }

    /// User at the other end; `None` if that is this machine's kernel.
    pub fn user(&self) -> Option<&DeviceUser> {
        self.user.as_ref()
    }

    pub fn volume(&self) -> VolumeId {
        self.client.volume
    }

    /// A volume has this size now.
    pub fn resized(&mut self, volume: VolumeId, bytes: u64) {
        if self.client.volume == volume {
            self.client.bytes = bytes;
        }
    }

    /// Under which number the exchange knows it.
    pub fn set_number(&mut self, number: u64) {
        self.client.number = number;
    }

    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether the ring knows nothing of it any more.
    pub fn is_gone(&self) -> bool {
        self.is_closed() && !self.receiving && !self.outbox.is_sending()
    }

    /// Ends it: what is under way on the ring ends soon.
    pub fn close(&mut self, exchange: &mut Exchange) {
        if self.state != State::Closed {
            self.state = State::Closed;
            exchange.forget(self.client.number);
            self.outbox.abandon();
            self.stage = Stage::Request;
            // Fails only when the other side has closed it already.
            let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
        }
    }

    fn refuse(&mut self, exchange: &mut Exchange, why: &str) {
        tracing::warn!(volume = %self.client.volume, why, "an NBD client was cut off");
        self.close(exchange);
    }

    /// An operation on the ring has ended.
    pub fn completed(&mut self, exchange: &mut Exchange, completion: Completion) {
        match completion.op {
            Op::Scatter { staging, places, .. } => {
                self.receiving = false;
                if self.state == State::Closed {
                    return;
                }
                let bytes = match completion.result {
                    Ok(0) => return self.close(exchange),
                    Ok(bytes) => bytes as usize,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                    Err(error) => {
                        tracing::debug!(%error, "an NBD client's connection broke");
                        return self.close(exchange);
                    }
                };
                let rest = match &self.stage {
                    Stage::Payload { part, payload: None, .. } => *part,
                    _ => None,
                };
                let landed = self.landing.landed(staging, places, bytes, rest);
                if let (Stage::Payload { payload, .. }, Some(landed)) = (&mut self.stage, landed) {
                    *payload = Some(landed);
                }
                self.go_on(exchange);
            }
            Op::Send { pieces, .. } => match completion.result {
                _ if self.state == State::Closed => self.outbox.ended(),
                Ok(sent) => self.outbox.sent(pieces, sent as usize),
                Err(_) => {
                    self.outbox.ended();
                    self.close(exchange);
                }
            },
            op => unreachable!("an NBD connection submits no {op:?}"),
        }
    }

    /// Takes what has come as far as it goes.
    fn go_on(&mut self, exchange: &mut Exchange) {
        self.stalled = false;
        while self.state == State::Open {
            match &mut self.stage {
                Stage::Request => {
                    self.have += self.landing.copy(&mut self.header[self.have..]);
                    if self.have < REQUEST_BYTES {
                        return;
                    }
                    self.have = 0;
                    match Request::decode(&self.header) {
                        None => return self.refuse(exchange, "it sent something else than a request"),
                        Some(Request { command: Command::Disconnect, .. }) => self.state = State::Leaving,
                        Some(request) => self.stage = Stage::Admit(request),
                    }
                }
                Stage::Admit(request) => {
                    let request = *request;
                    if !self.admit(exchange, request) {
                        return;
                    }
                }
                Stage::Payload { .. } => {
                    if !self.payload(exchange) {
                        return;
                    }
                }
                Stage::Refused { left, cookie, error, words } => {
                    *left -= self.landing.skip(*left);
                    if *left > 0 {
                        return;
                    }
                    let reply = Reply::Failed(*error, words);
                    self.outbox.reply(self.client.structured, ALLOCATION_ID, *cookie, reply);
                    self.stage = Stage::Request;
                }
            }
        }
    }

    /// Whether to go on.
    fn admit(&mut self, exchange: &mut Exchange, request: Request) -> bool {
        // Answers that were not sent yet take memory as well.
        let charged = self.charged + self.outbox.bytes() as u64;
        let len = u64::from(request.len);
        self.stage = match exchange.request(self.client, &request, self.jobs, charged) {
            Admission::Wait => {
                self.stalled = true;
                return false;
            }
            Admission::Taken(charge) => {
                self.jobs += 1;
                self.charged += charge;
                if !matches!(request.command, Command::Write) {
                    self.landing.no_payload();
                }
                Stage::Request
            }
            Admission::Payload(job) => {
                self.jobs += 1;
                self.charged += len;
                Stage::Payload { job, offset: request.offset, left: len, part: None, payload: None }
            }
            Admission::Refused(error, words) => {
                Stage::Refused { left: request.len as usize, cookie: request.cookie, error, words }
            }
            Admission::Hostile(why) => {
                self.refuse(exchange, why);
                return false;
            }
        };
        true
    }

    /// Hands over the parts of a payload that have come; whether to go on.
    fn payload(&mut self, exchange: &mut Exchange) -> bool {
        let Stage::Payload { job, offset, left, part, payload } = &mut self.stage else { return true };
        let (at, len) = *part.get_or_insert_with(|| part_of_write(*offset, *left));
        let found = match payload.take() {
            Some(found) => found,
            None => self.landing.payload(at, len),
        };
        let whole = found.have == len;
        if !whole || !exchange.has_room() {
            self.stalled = whole;
            *payload = Some(found);
            return false;
        }
        let (number, from) = (*job, *offset);
        *offset += len as u64;
        *left -= len as u64;
        let last = *left == 0;
        if last {
            self.stage = Stage::Request;
        } else {
            *part = None;
        }
        exchange.part(number, from, found.buffer, at, len, last);
        true
    }

    /// An answer of the exchange.
    pub fn answer(&mut self, answer: ExchangeAnswer) {
        if let Some(charged) = answer.ended {
            self.jobs -= 1;
            self.charged -= charged;
        }
        // R19: the users of this kernel's devices are to notice.
        if matches!(answer.reply, Reply::Failed(NbdError::Shutdown, _)) && self.user.is_some() {
            self.unserved = true;
        } else if self.state != State::Closed {
            self.outbox.reply(self.client.structured, ALLOCATION_ID, answer.cookie, answer.reply);
        }
    }

    /// Goes on where it had to wait, if it may.
    pub fn resume(&mut self, exchange: &mut Exchange) {
        if self.stalled && self.state == State::Open {
            self.go_on(exchange);
        }
    }

    /// Hands to the ring what can be sent and received now.
    pub fn submit(&mut self, ring: &mut Ring, tags: Tags, exchange: &mut Exchange) {
        if self.state == State::Closed {
            return;
        }
        if self.unserved {
            return self.close(exchange);
        }
        if let Some(pieces) = self.outbox.take() {
            ring.submit(Owner::Frontend, tags.send, Op::Send { socket: Fd::clone(&self.socket), pieces });
        }
        if self.state == State::Leaving && self.jobs == 0 && !self.outbox.is_sending() {
            return self.close(exchange);
        }
        if self.state == State::Open && !self.receiving && !self.stalled {
            let rest = match &mut self.stage {
                Stage::Payload { payload, .. } => payload.take(),
                _ => None,
            };
            let whole = rest.is_some();
            let (staging, places) = self.landing.plan(rest, REQUEST_BYTES - self.have);
            let whole = whole && places.len() == 1;
            let op = Op::Scatter { socket: Fd::clone(&self.socket), staging, places, whole };
            ring.submit(Owner::Frontend, tags.receive, op);
            self.receiving = true;
        }
    }
}
