//! The client's side: requests of its devices. The client keeps each until it is answered, and
//! sends it to the present primary.
//!
//! ```text
//! Idle ─▶ Attaching ─▶ Attached      to the primary that the record names, over a connection that stands
//!   ▲         │            │
//!   └─────────┴────────────┘         another primary, a broken connection, a refusal; silence opens the next stream
//! any ─▶ over                        another session, a loss, a request that waited too long; for ever
//! ```
//!
//! Guarantees
//! - Requests get ascending numbers. Each stream carries all unanswered requests in that order
//!   (S18).
//! - While the session goes on, a request fails only in two cases: it is refused before it has a
//!   number, or it reads content that no replica has.
//! - A request that has waited for the time that the record states ends the session (R20).
//! - Requests that are sent and not answered are bounded, and so are those that wait (R18).

use crate::{Op, RequestError, RequestId};
use mainstay_codec::{Answered, Ask, ClientAsk, Envelope, Message, Pieces, Refusal};
use mainstay_types::{
    CLIENT_BYTES_MAX, CLIENT_REQUESTS_MAX, ClientOver, Incarnation, Instance, NodeId, REQUEST_BYTES_MAX,
    ResourceId, ResourceRecord, SessionId, Time, reach,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A question that was not answered is asked again after this time.
const ASK_AGAIN_MS: u64 = 250;
/// Time without any answer after which the client opens a new stream.
const SILENT_MS: u64 = 2_000;
const ZERO_BYTES_MAX: u64 = u32::MAX as u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    pub resource: ResourceId,
    pub node: NodeId,
    /// New whenever a client is opened.
    pub instance: Instance,
    /// Most requests that are not answered, and bytes of payload that they ask for or bring.
    /// Further requests are [`RequestError::Busy`]; a single request may exceed the bytes.
    pub requests_max: usize,
    pub request_bytes_max: u64,
}

impl ClientConfig {
    /// With the limits of [`crate::ReplicaConfig::new`].
    #[must_use]
    pub fn new(resource: ResourceId, node: NodeId, instance: Instance) -> Self {
        Self { resource, node, instance, requests_max: 1024, request_bytes_max: 8 << 20 }
    }
}

/// Events that a client handles. As with replicas, no event of an old connection comes after its
/// `PeerDown`.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    Record(Box<ResourceRecord>),
    /// The connection that this node opened to `node` stands.
    PeerUp {
        node: NodeId,
    },
    PeerDown {
        node: NodeId,
    },
    Message {
        from: NodeId,
        envelope: Envelope,
    },
    Request {
        id: RequestId,
        op: Op,
    },
    /// The time of [`Client::next_deadline`] has come.
    Tick,
}

#[derive(Clone, Debug)]
pub enum ClientEffect {
    /// On the connection that this node opened.
    Send { to: NodeId, envelope: Envelope },
    /// A request has ended. The result of a read is its content, in pieces; other results are
    /// empty.
    Complete { id: RequestId, result: Result<Pieces, RequestError> },
    /// Volumes of these sizes can be offered; said again when one has grown.
    Ready { volumes: Vec<u64> },
    /// Everything that waited was answered with an error; the client is of no use any more.
    Over(ClientOver),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Idle,
    Attaching { to: NodeId, asked_at: Time },
    Attached { to: NodeId, heard_at: Time },
}

/// A request that is not answered.
#[derive(Debug)]
struct Request {
    id: RequestId,
    ask: Ask,
    since: Time,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    now: Time,
    record: Option<ResourceRecord>,
    session: Option<SessionId>,
    connected: BTreeSet<NodeId>,
    link: Link,
    /// Number of the newest stream.
    stream: u64,
    /// By number.
    requests: BTreeMap<u64, Request>,
    bytes: u64,
    /// Number up to which everything was sent on the present stream. `sent` of these requests, with
    /// `sent_bytes` bytes, are not answered.
    sent_to: u64,
    sent: usize,
    sent_bytes: u64,
    last_number: u64,
    /// The highest of a change that was answered.
    acknowledged: u64,
    volumes: Vec<u64>,
    over: Option<ClientOver>,
    /// Streams that were opened.
    streams: u64,
    effects: VecDeque<ClientEffect>,
}

impl Client {
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self {
            config,
            now: Time(0),
            record: None,
            session: None,
            connected: BTreeSet::new(),
            link: Link::Idle,
            stream: 0,
            requests: BTreeMap::new(),
            bytes: 0,
            sent_to: 0,
            sent: 0,
            sent_bytes: 0,
            last_number: 0,
            acknowledged: 0,
            volumes: Vec::new(),
            over: None,
            streams: 0,
            effects: VecDeque::new(),
        }
    }

    #[must_use]
    pub fn instance(&self) -> Instance {
        self.config.instance
    }

    #[must_use]
    pub fn record(&self) -> Option<&ResourceRecord> {
        self.record.as_ref()
    }

    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    #[must_use]
    pub fn over(&self) -> Option<ClientOver> {
        self.over
    }

    /// The primary that answers.
    #[must_use]
    pub fn primary(&self) -> Option<NodeId> {
        if let Link::Attached { to, .. } = self.link { Some(to) } else { None }
    }

    /// Requests that are not answered.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// Since when the oldest of them waits.
    #[must_use]
    pub fn waits_since(&self) -> Option<Time> {
        self.requests.values().next().map(|request| request.since)
    }

    /// Streams that were opened: one, and one more after each failover or broken connection.
    #[must_use]
    pub fn streams(&self) -> u64 {
        self.streams
    }

    /// Takes in what happened at `now`.
    pub fn handle(&mut self, now: Time, event: ClientEvent) {
        self.now = self.now.max(now);
        match event {
            ClientEvent::Record(record) => self.on_record(*record),
            ClientEvent::PeerUp { node } => {
                self.drop_link(node);
                self.connected.insert(node);
            }
            ClientEvent::PeerDown { node } => {
                self.connected.remove(&node);
                self.drop_link(node);
            }
            ClientEvent::Message { from, envelope } => self.on_message(from, envelope),
            ClientEvent::Request { id, op } => self.on_request(id, op),
            ClientEvent::Tick => {}
        }
        self.settle();
    }

    /// Returns the next effect to carry out, in order. Call it until it returns `None`.
    pub fn poll(&mut self) -> Option<ClientEffect> {
        self.effects.pop_front()
    }

    /// When [`ClientEvent::Tick`] is wanted; `None` when nothing is timed: an idle client costs no
    /// wake-ups.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        if self.over.is_some() {
            return None;
        }
        let link = match self.link {
            Link::Idle => None,
            Link::Attaching { asked_at, .. } => Some(asked_at.plus_ms(ASK_AGAIN_MS)),
            Link::Attached { heard_at, .. } => (self.sent > 0).then(|| heard_at.plus_ms(SILENT_MS)),
        };
        link.into_iter().chain(self.waits_since().map(|since| since.plus_ms(self.wait_ms()))).min()
    }

    fn wait_ms(&self) -> u64 {
        let attached = self.record.as_ref().and_then(|record| record.attached);
        attached.map_or(0, |attached| attached.wait_ms)
    }

    fn on_record(&mut self, record: ResourceRecord) {
        if self.record.as_ref().is_some_and(|known| known.version >= record.version) {
            return;
        }
        let mine = record.attached.filter(|attached| attached.node == self.config.node);
        let claimed = mine.filter(|attached| attached.instance == Some(self.config.instance));
        match (self.session, claimed) {
            (None, Some(attached)) => {
                reach!("replica: client: a session begins");
                self.session = Some(attached.session);
            }
            // Its agent says so first.
            (None, None) if mine.is_some() => {}
            (Some(session), Some(attached)) if attached.session == session => {}
            _ => return self.end(ClientOver::Detached),
        }
        let to = match self.link {
            Link::Idle => None,
            Link::Attaching { to, .. } | Link::Attached { to, .. } => Some(to),
        };
        if to.is_some() && to != record.primary {
            reach!("replica: client: another primary");
            self.link = Link::Idle;
        }
        self.record = Some(record);
    }

    fn drop_link(&mut self, node: NodeId) {
        if let Link::Attaching { to, .. } | Link::Attached { to, .. } = self.link
            && to == node
        {
            reach!("replica: client: the connection to the primary breaks");
            self.link = Link::Idle;
        }
    }

    fn on_message(&mut self, from: NodeId, envelope: Envelope) {
        let Message::ClientAnswer(answer) = envelope.message else { return };
        let ours = envelope.resource == self.config.resource && Some(answer.session) == self.session;
        if !ours || answer.stream != self.stream {
            reach!("replica: client: an answer of another stream");
            return;
        }
        match (self.link, answer.answer) {
            (Link::Attaching { to, .. } | Link::Attached { to, .. }, Answered::Refused(why))
                if to == from =>
            {
                match why {
                    Refusal::NotServing => self.refused(from),
                    Refusal::Over => self.end(ClientOver::Detached),
                    Refusal::Lost => self.end(ClientOver::Lost),
                }
            }
            (Link::Attaching { to, .. }, Answered::Attached { volumes }) if to == from => {
                self.open(from);
                self.ready(volumes);
            }
            (Link::Attached { to, .. }, answer_) if to == from => {
                self.link = Link::Attached { to, heard_at: self.now };
                match answer_ {
                    Answered::Attached { volumes } => self.ready(volumes),
                    Answered::Done => self.answered(answer.number, Pieces::new()),
                    Answered::Data(pieces) => self.answered(answer.number, pieces),
                    Answered::Unreadable => self.unreadable(answer.number),
                    Answered::Refused(_) => {}
                }
            }
            _ => {}
        }
    }

    /// Handles a primary that does not serve, or does not know this stream. The client asks again
    /// after a while, with the next stream.
    fn refused(&mut self, from: NodeId) {
        reach!("replica: client: a primary that does not serve");
        self.stream += 1;
        self.link = Link::Attaching { to: from, asked_at: self.now };
    }

    fn open(&mut self, to: NodeId) {
        reach!("replica: client: a stream is open");
        self.link = Link::Attached { to, heard_at: self.now };
        self.streams += 1;
        (self.sent_to, self.sent, self.sent_bytes) = (0, 0, 0);
        if !self.requests.is_empty() {
            reach!("replica: client: requests are sent again");
        }
    }

    fn ready(&mut self, volumes: Vec<u64>) {
        if self.volumes != volumes {
            self.volumes.clone_from(&volumes);
            self.effects.push_back(ClientEffect::Ready { volumes });
        }
    }

    fn answered(&mut self, number: u64, pieces: Pieces) {
        let expected = |request: &Request| match request.ask {
            Ask::Read { range } => pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() == range.len,
            _ => pieces.is_empty(),
        };
        if number > self.sent_to || !self.requests.get(&number).is_some_and(expected) {
            return;
        }
        self.complete(number, Ok(pieces));
    }

    fn unreadable(&mut self, number: u64) {
        let is_read = |request: &Request| matches!(request.ask, Ask::Read { .. });
        if number <= self.sent_to && self.requests.get(&number).is_some_and(is_read) {
            reach!("replica: client: no replica has what was to be read");
            self.complete(number, Err(RequestError::Unreadable));
        }
    }

    /// Ends a request that was sent.
    fn complete(&mut self, number: u64, result: Result<Pieces, RequestError>) {
        let Some(request) = self.requests.remove(&number) else { return };
        if request.ask.is_change() {
            self.acknowledged = self.acknowledged.max(number);
        }
        let bytes = request.ask.bytes();
        self.bytes -= bytes;
        self.sent -= 1;
        self.sent_bytes -= bytes;
        self.effects.push_back(ClientEffect::Complete { id: request.id, result });
    }

    fn on_request(&mut self, id: RequestId, op: Op) {
        match self.asked(op) {
            Err(error) => self.effects.push_back(ClientEffect::Complete { id, result: Err(error) }),
            Ok(ask) => {
                self.last_number += 1;
                self.bytes += ask.bytes();
                self.requests.insert(self.last_number, Request { id, ask, since: self.now });
            }
        }
    }

    fn asked(&self, op: Op) -> Result<Ask, RequestError> {
        if self.over.is_some() {
            return Err(RequestError::NotAttached);
        }
        let ask = match op {
            Op::Write { range, payload } if payload.len() as u64 == range.len => {
                Ask::Write { range, payload }
            }
            Op::Discard { range } => Ask::Discard { range },
            Op::WriteZeroes { range } => Ask::WriteZeroes { range },
            Op::Read { range } => Ask::Read { range },
            Op::Flush => Ask::Flush,
            _ => return Err(RequestError::Range),
        };
        if let Some(range) = ask.range() {
            let bytes = self.volumes.get(usize::from(range.volume.0)).copied().unwrap_or(0);
            let len_max = if ask.bytes() > 0 { REQUEST_BYTES_MAX } else { ZERO_BYTES_MAX };
            let whole = range.offset.is_multiple_of(mainstay_types::BLOCK_BYTES)
                && range.len.is_multiple_of(mainstay_types::BLOCK_BYTES);
            if !whole || range.len == 0 || range.len > len_max || range.end() > bytes {
                return Err(RequestError::Range);
            }
        }
        let ClientConfig { requests_max, request_bytes_max, .. } = self.config;
        let full = self.requests.len() >= requests_max
            || (self.bytes > 0 && self.bytes + ask.bytes() > request_bytes_max);
        if full { Err(RequestError::Busy) } else { Ok(ask) }
    }

    /// Takes the steps that the event made possible, and those that are due.
    fn settle(&mut self) {
        if self.over.is_some() {
            return;
        }
        if self.waits_since().is_some_and(|since| since.plus_ms(self.wait_ms()) <= self.now) {
            reach!("replica: client: a request has waited too long");
            return self.end(ClientOver::Waited);
        }
        match self.link {
            Link::Idle => self.attach(),
            Link::Attaching { to, asked_at } if asked_at.plus_ms(ASK_AGAIN_MS) <= self.now => {
                self.link = Link::Attaching { to, asked_at: self.now };
                self.send(to, self.acknowledged, Ask::Attach);
            }
            Link::Attached { heard_at, .. } if self.sent > 0 && heard_at.plus_ms(SILENT_MS) <= self.now => {
                reach!("replica: client: a stream is silent");
                self.attach();
            }
            Link::Attached { to, heard_at } => {
                if self.sent == 0 {
                    // Silence counts from a question on.
                    self.link = Link::Attached { to, heard_at: heard_at.max(self.now) };
                }
                self.send_more(to);
            }
            Link::Attaching { .. } => {}
        }
    }

    /// Opens the next stream to the primary, if there is one, and a connection to it.
    fn attach(&mut self) {
        self.link = Link::Idle;
        let primary = self.record.as_ref().and_then(|record| record.primary);
        let Some(to) = primary.filter(|node| self.session.is_some() && self.connected.contains(node)) else {
            return;
        };
        self.stream += 1;
        self.link = Link::Attaching { to, asked_at: self.now };
        self.send(to, self.acknowledged, Ask::Attach);
    }

    /// Sends as many requests as the window allows, in the order of their numbers.
    fn send_more(&mut self, to: NodeId) {
        loop {
            let next = self.requests.range(self.sent_to + 1..).next();
            let Some((&number, request)) = next else { return };
            let bytes = request.ask.bytes();
            let full = self.sent >= CLIENT_REQUESTS_MAX
                || (self.sent > 0 && self.sent_bytes + bytes > CLIENT_BYTES_MAX);
            if full {
                reach!("replica: client: the window is full");
                return;
            }
            self.sent_to = number;
            self.sent += 1;
            self.sent_bytes += bytes;
            let ask = request.ask.clone();
            self.send(to, number, ask);
        }
    }

    fn send(&mut self, to: NodeId, number: u64, ask: Ask) {
        let (Some(session), Some(record)) = (self.session, self.record.as_ref()) else { return };
        let message = Message::ClientAsk(ClientAsk { session, stream: self.stream, number, ask });
        let envelope = Envelope {
            resource: self.config.resource,
            epoch: record.epoch,
            version: record.version,
            incarnation: Incarnation(0),
            message,
        };
        self.effects.push_back(ClientEffect::Send { to, envelope });
    }

    /// Ends the session because the node needs it no longer. Every request that waits gets an
    /// error.
    pub fn close(&mut self) -> Vec<ClientEffect> {
        self.end(ClientOver::Detached);
        self.effects.drain(..).collect()
    }

    /// Answers everything that waits with an error.
    fn end(&mut self, why: ClientOver) {
        if self.over.is_some() {
            return;
        }
        reach!("replica: client: a session is over");
        self.over = Some(why);
        self.link = Link::Idle;
        for request in std::mem::take(&mut self.requests).into_values() {
            let result = Err(RequestError::NotAttached);
            self.effects.push_back(ClientEffect::Complete { id: request.id, result });
        }
        (self.bytes, self.sent, self.sent_bytes) = (0, 0, 0);
        self.effects.push_back(ClientEffect::Over(why));
    }
}
