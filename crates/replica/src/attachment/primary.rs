//! The primary's side of a client: its streams, the order of admission, and the answers.
//!
//! Guarantees
//! - A stream is opened for the session that the record names, and closed when it names another
//!   one.
//! - Changes are given to the core in ascending numbers, each once in a log. A change that is not
//!   above the mark is in the log already, and is answered when it is committed.
//! - A change that was given to the core is remembered until it is answered. The changes that wait
//!   to be given to it are one window at most (R18).
//! - A change that failed here may be in the log or not. No stream of its session is opened until
//!   the log has told. So a change that the client asks for again is never wrongly taken for done.
//! - A stream that was closed is never opened again: its later requests may have a gap before them.
//!
//! The caller asks the core for room before [`AttachedClients::admit`]. It sends the output of
//! [`AttachedClients::poll`] only under the lease (R10).

use crate::{Op, RequestId};
use mainstay_codec::{Answered, Ask, ClientAnswer, ClientAsk, Pieces, Refusal};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Attachment, CLIENT_BYTES_MAX, CLIENT_REQUESTS_MAX, ClientMark, ConfigVersion, NodeId, ResourceRecord,
    SessionId, reach,
};
use std::collections::{BTreeMap, VecDeque};

/// Numbers of requests from here on are of clients.
const FIRST_ID: u64 = 1 << 62;

/// See the top of this file.
#[derive(Debug, Default)]
pub struct AttachedClients {
    version: ConfigVersion,
    attached: Option<Attachment>,
    serving: bool,
    /// A change of this session has failed since it serves, so [`mark`](Self::mark) says nothing of
    /// it.
    unknown: Option<SessionId>,
    /// The highest change that is in the log, or was given to the core to be.
    mark: ClientMark,
    volumes: Vec<u64>,
    stream: Option<Stream>,
    /// The newest stream that was ever opened.
    newest: (SessionId, u64),
    /// The last question that could not be answered yet.
    asked: Option<(NodeId, ClientAsk)>,
    waiting: VecDeque<ClientAsk>,
    waiting_bytes: u64,
    pending: BTreeMap<RequestId, Pending>,
    next_id: u64,
    out: VecDeque<(NodeId, ClientAnswer)>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    node: NodeId,
    session: SessionId,
    stream: u64,
    /// The highest number that came on it.
    last: u64,
}

/// A request that the core has.
#[derive(Clone, Copy, Debug)]
struct Pending {
    mark: ClientMark,
    /// The stream that waits for the answer.
    stream: u64,
    change: bool,
}

impl AttachedClients {
    /// Whether a request of the core is of a client.
    #[must_use]
    pub fn owns(id: RequestId) -> bool {
        (FIRST_ID..RequestId::REPAIR.0).contains(&id.0)
    }

    /// Whether there is nothing to be told or sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty() && self.unknown.is_none()
    }

    /// The node whose requests are taken at present.
    #[must_use]
    pub fn client(&self) -> Option<NodeId> {
        self.stream.map(|stream| stream.node)
    }

    /// The record that the replica acts on.
    pub fn record(&mut self, record: &ResourceRecord) {
        if record.version <= self.version {
            return;
        }
        self.version = record.version;
        self.attached = record.attached;
        let named = self.session();
        let over = self.stream.is_some_and(|stream| Some(stream.session) != named);
        if over && !planted(Bug::OldSessionAdmitted) {
            reach!("replica: sessions: a session is over");
            self.close(Refusal::Over);
        }
        if self.unknown.is_some_and(|session| Some(session) != named) {
            reach!("replica: sessions: no client asks again for a change that has failed");
            (self.serving, self.unknown) = (true, None);
        }
        self.answer_asked();
    }

    /// The one that the record names.
    fn session(&self) -> Option<SessionId> {
        self.attached.map(|attached| attached.session)
    }

    /// The replica serves: its log ends with `mark`, and everything in it is committed. The volumes
    /// have these sizes, in bytes.
    pub fn serve(&mut self, mark: ClientMark, volumes: Vec<u64>) {
        (self.serving, self.unknown) = (true, None);
        self.mark = mark;
        self.volumes = volumes;
        self.answer_asked();
    }

    /// Whether a change has failed, so that it is to be told once more where the log ends.
    #[must_use]
    pub fn waits_for_log(&self) -> bool {
        self.unknown.is_some()
    }

    /// Ends the stream of the client, because this replica does not serve any more.
    pub fn stop(&mut self) {
        (self.serving, self.unknown) = (false, None);
        self.pending.clear();
        self.close(Refusal::NotServing);
    }

    /// A volume has another size.
    pub fn sizes(&mut self, volumes: Vec<u64>) {
        self.volumes = volumes;
        self.tell_attached();
    }

    /// A client asks.
    pub fn ask(&mut self, from: NodeId, ask: ClientAsk) {
        if ask.ask == Ask::Attach {
            return self.attach(from, ask);
        }
        let open = self
            .stream
            .filter(|open| (open.node, open.session, open.stream) == (from, ask.session, ask.stream));
        let Some(open) = open.filter(|_| self.serving) else {
            reach!("replica: sessions: a request of a stream that is not open");
            let refused = Answered::Refused(Refusal::NotServing);
            return self.answer(from, &ask, refused);
        };
        let full = self.waiting.len() >= CLIENT_REQUESTS_MAX
            || self.waiting_bytes + ask.ask.bytes() > 2 * CLIENT_BYTES_MAX;
        if ask.number <= open.last || full {
            reach!("replica: sessions: a stream without order or limits");
            return self.close(Refusal::NotServing);
        }
        self.stream = Some(Stream { last: ask.number, ..open });
        if ask.ask.is_change() && self.is_known(&ask) {
            return self.asked_again(from, &ask);
        }
        self.waiting_bytes += ask.ask.bytes();
        self.waiting.push_back(ask);
    }

    /// Whether the change is in the log, or on its way there.
    fn is_known(&self, ask: &ClientAsk) -> bool {
        let mark = ClientMark { session: ask.session, number: ask.number };
        mark <= self.mark && !planted(Bug::RetryApplied)
    }

    fn asked_again(&mut self, from: NodeId, ask: &ClientAsk) {
        let mark = ClientMark { session: ask.session, number: ask.number };
        if let Some(pending) = self.pending.values_mut().find(|pending| pending.mark == mark) {
            reach!("replica: sessions: a change is asked for again while it is on its way");
            pending.stream = ask.stream;
        } else {
            reach!("replica: sessions: a change is asked for again that is committed");
            self.answer(from, ask, Answered::Done);
        }
    }

    fn attach(&mut self, from: NodeId, ask: ClientAsk) {
        let this = (ask.session, ask.stream);
        if this <= self.newest {
            if self
                .stream
                .is_some_and(|open| (open.node, open.session, open.stream) == (from, this.0, this.1))
            {
                reach!("replica: sessions: an open stream is asked for again");
                self.tell_attached();
            }
            return;
        }
        let newer = self.asked.as_ref().is_some_and(|(_, known)| (known.session, known.stream) > this);
        if !newer {
            self.asked = Some((from, ask));
            self.answer_asked();
        }
    }

    /// Opens the stream that was asked for last, or refuses it, if that can be said already.
    fn answer_asked(&mut self) {
        if !self.serving {
            return;
        }
        let Some((from, ask)) = self.asked.take() else { return };
        if ask.session.0 > self.version.0 {
            reach!("replica: sessions: a client knows a newer record");
            self.asked = Some((from, ask));
            return;
        }
        let named = self.attached.is_some_and(|named| (named.node, named.session) == (from, ask.session));
        if !named {
            reach!("replica: sessions: an older session asks");
            return self.answer(from, &ask, Answered::Refused(Refusal::Over));
        }
        let held = if self.mark.session == ask.session { self.mark.number } else { 0 };
        if held < ask.number && !planted(Bug::LossNotSeen) {
            reach!("replica: sessions: the log lost what a client was told");
            return self.answer(from, &ask, Answered::Refused(Refusal::Lost));
        }
        reach!("replica: sessions: a stream is opened");
        self.forget_waiting();
        self.newest = (ask.session, ask.stream);
        self.stream = Some(Stream { node: from, session: ask.session, stream: ask.stream, last: 0 });
        self.tell_attached();
    }

    fn tell_attached(&mut self) {
        let Some(Stream { node, session, stream, .. }) = self.stream else { return };
        let answer = Answered::Attached { volumes: self.volumes.clone() };
        self.out.push_back((node, ClientAnswer { session, stream, number: 0, answer }));
    }

    fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// The stream ends; the client is told why.
    pub fn close(&mut self, why: Refusal) {
        self.forget_waiting();
        if let Some(Stream { node, session, stream, .. }) = self.stream.take() {
            let answer = Answered::Refused(why);
            self.out.push_back((node, ClientAnswer { session, stream, number: 0, answer }));
        }
    }

    /// The request that is to be given to the core next, if it has room.
    #[must_use]
    pub fn next(&self) -> Option<(Op, ClientMark)> {
        let ask = self.waiting.front()?;
        let op = match ask.ask.clone() {
            Ask::Write { range, payload } => Op::Write { range, payload },
            Ask::Discard { range } => Op::Discard { range },
            Ask::WriteZeroes { range } => Op::WriteZeroes { range },
            Ask::Read { range } => Op::Read { range },
            Ask::Flush | Ask::Attach => Op::Flush,
        };
        Some((op, ClientMark { session: ask.session, number: ask.number }))
    }

    /// Takes the next waiting request for the core, and returns the number under which the core
    /// gets it.
    ///
    /// # Panics
    /// If no request waits.
    pub fn admit(&mut self) -> RequestId {
        let ask = self.waiting.pop_front().expect("there is a next one");
        self.waiting_bytes -= ask.ask.bytes();
        let mark = ClientMark { session: ask.session, number: ask.number };
        let change = ask.ask.is_change();
        if change {
            self.mark = self.mark.max(mark);
        }
        let id = RequestId(FIRST_ID + self.next_id);
        self.next_id += 1;
        self.pending.insert(id, Pending { mark, stream: ask.stream, change });
        id
    }

    /// The core has answered: with the content of a read, or with nothing. `None`: with an error.
    pub fn completed(&mut self, id: RequestId, answer: Option<Pieces>) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let Some(pieces) = answer else {
            let session = pending.mark.session;
            if pending.change && self.session() == Some(session) {
                // Only the log can tell whether the change is in it, once nothing is on its way to
                // it.
                (self.serving, self.unknown) = (false, Some(session));
            }
            return self.close(Refusal::NotServing);
        };
        self.tell(pending, if pieces.is_empty() { Answered::Done } else { Answered::Data(pieces) });
    }

    /// Answers on the stream that waits for it, if it is open.
    fn tell(&mut self, pending: Pending, answer: Answered) {
        let ClientMark { session, number } = pending.mark;
        let Some(open) = self.stream.filter(|open| (open.session, open.stream) == (session, pending.stream))
        else {
            reach!("replica: sessions: an answer that no stream waits for");
            return;
        };
        self.out.push_back((open.node, ClientAnswer { session, stream: open.stream, number, answer }));
    }

    /// No replica has the content that was to be read.
    pub fn unreadable(&mut self, id: RequestId) {
        if let Some(pending) = self.pending.remove(&id) {
            reach!("replica: sessions: a read that no replica can answer");
            self.tell(pending, Answered::Unreadable);
        }
    }

    /// The core has answered, but no answer may be sent without a lease (R10). The client asks
    /// again.
    pub fn unvouched(&mut self, id: RequestId) {
        self.pending.remove(&id);
        self.close(Refusal::NotServing);
    }

    fn answer(&mut self, to: NodeId, ask: &ClientAsk, answer: Answered) {
        let ClientAsk { session, stream, number, .. } = *ask;
        self.out.push_back((to, ClientAnswer { session, stream, number, answer }));
    }

    /// The next answer to send. One that is [vouched for](Self::vouches) may be sent only under the
    /// lease.
    pub fn poll(&mut self) -> Option<(NodeId, ClientAnswer)> {
        self.out.pop_front()
    }

    /// Whether an answer is true only under the lease of the primary (R10).
    #[must_use]
    pub fn vouches(answer: &ClientAnswer) -> bool {
        matches!(answer.answer, Answered::Done | Answered::Data(_))
    }
}
