//! A client and its primary, with a faultless connection between them.

use super::{AttachedClients, Client, ClientConfig, ClientEffect, ClientEvent};
use crate::{Op, RequestError, RequestId};
use bytes::Bytes;
use mainstay_codec::{Envelope, Message, Pieces};
use mainstay_types::{
    Attachment, BLOCK_BYTES, ClientMark, ConfigVersion, Incarnation, Instance, NodeId, Range, ResourceId,
    ResourceRecord, SessionId, Time, VolumeId,
};

const PRIMARY: NodeId = NodeId(1);
const CLIENT: NodeId = NodeId(2);
const BLOCK: Range = Range { volume: VolumeId(0), offset: 0, len: BLOCK_BYTES };

struct Pair {
    record: ResourceRecord,
    sessions: AttachedClients,
    client: Client,
    completed: Vec<(RequestId, Result<Pieces, RequestError>)>,
}

impl Pair {
    fn new() -> Self {
        Self::with(ClientConfig::new(ResourceId(1), CLIENT, Instance(7)))
    }

    fn with(config: ClientConfig) -> Self {
        let instance = config.instance;
        let mut record = ResourceRecord::new(ResourceId(1));
        record.version = ConfigVersion(4);
        record.primary = Some(PRIMARY);
        let session = SessionId(4);
        record.attached = Some(Attachment { node: CLIENT, session, instance: Some(instance), wait_ms: 1000 });
        let client = Client::new(config);
        let mut pair = Self {
            record: record.clone(),
            sessions: AttachedClients::default(),
            client,
            completed: Vec::new(),
        };
        pair.sessions.record(&record);
        pair.sessions.serve(ClientMark::default(), vec![BLOCK_BYTES]);
        pair.handle(ClientEvent::Record(Box::new(record)));
        pair.handle(ClientEvent::PeerUp { node: PRIMARY });
        pair
    }

    fn ask(&mut self, id: u64, op: Op) {
        self.handle(ClientEvent::Request { id: RequestId(id), op });
    }

    /// The client asks again for requests that were not answered.
    fn later(&mut self) {
        let due = self.client.next_deadline().expect("it waits");
        self.client.handle(due, ClientEvent::Tick);
        self.settle();
    }

    /// All that follows, until the core would have to answer.
    fn handle(&mut self, event: ClientEvent) {
        self.client.handle(Time(1), event);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            if let Some(effect) = self.client.poll() {
                match effect {
                    ClientEffect::Send { envelope, .. } => {
                        let Message::ClientAsk(ask) = envelope.message else { panic!("only asks") };
                        self.sessions.ask(CLIENT, ask);
                    }
                    ClientEffect::Complete { id, result } => self.completed.push((id, result)),
                    ClientEffect::Ready { .. } => {}
                    ClientEffect::Over(why) => panic!("over: {why:?}"),
                }
            } else if let Some((_, answer)) = self.sessions.poll() {
                let envelope = Envelope {
                    resource: ResourceId(1),
                    epoch: self.record.epoch,
                    version: self.record.version,
                    incarnation: Incarnation(0),
                    message: Message::ClientAnswer(answer),
                };
                self.client.handle(Time(1), ClientEvent::Message { from: PRIMARY, envelope });
            } else {
                return;
            }
        }
    }
}

#[test]
fn a_read_that_no_replica_can_answer_fails_and_the_session_goes_on() {
    let mut pair = Pair::new();
    pair.ask(1, Op::Read { range: BLOCK });
    pair.ask(2, Op::Write { range: BLOCK, payload: Bytes::from(vec![1; BLOCK_BYTES as usize]) });
    let (read, write) = (pair.sessions.admit(), pair.sessions.admit());
    pair.sessions.unreadable(read);
    pair.settle();
    assert_eq!(pair.completed, [(RequestId(1), Err(RequestError::Unreadable))]);
    pair.sessions.completed(write, Some(Pieces::new()));
    pair.settle();
    assert_eq!(pair.completed[1..], [(RequestId(2), Ok(Pieces::new()))]);
    pair.ask(3, Op::Read { range: BLOCK });
    let read = pair.sessions.admit();
    let block = Bytes::from(vec![1; BLOCK_BYTES as usize]);
    pair.sessions.completed(read, Some([block.clone()].into()));
    pair.settle();
    assert_eq!(pair.completed[2..], [(RequestId(3), Ok([block].into()))]);
}

#[test]
fn a_write_is_never_said_to_be_unreadable() {
    let mut pair = Pair::new();
    pair.ask(1, Op::Write { range: BLOCK, payload: Bytes::from(vec![1; BLOCK_BYTES as usize]) });
    let write = pair.sessions.admit();
    pair.sessions.unreadable(write);
    pair.settle();
    assert_eq!(pair.completed, []);
}

/// Want of copies: it is asked for again once the log has told, which has it or not.
#[test]
fn a_change_that_failed_is_done_only_if_the_log_has_it() {
    for in_log in [false, true] {
        let mut pair = Pair::new();
        pair.ask(1, Op::Write { range: BLOCK, payload: Bytes::from(vec![1; BLOCK_BYTES as usize]) });
        let (_, mark) = pair.sessions.next().expect("it was asked for");
        let write = pair.sessions.admit();
        assert!(!pair.sessions.waits_for_log());
        pair.sessions.completed(write, None);
        pair.settle();
        assert!(pair.sessions.waits_for_log() && pair.sessions.next().is_none(), "no stream is open");
        let known = if in_log { mark } else { ClientMark::default() };
        pair.sessions.serve(known, vec![BLOCK_BYTES]);
        pair.later();
        assert!(!pair.sessions.waits_for_log());
        if !in_log {
            assert_eq!(pair.completed, [], "it is not done");
            assert_eq!(pair.sessions.next().map(|(_, mark)| mark), Some(mark), "and is asked for again");
            let write = pair.sessions.admit();
            pair.sessions.completed(write, Some(Pieces::new()));
            pair.settle();
        }
        assert_eq!(pair.completed, [(RequestId(1), Ok(Pieces::new()))]);
    }
}

/// The limit is the frontend's, which has asked for less at once.
#[test]
fn a_client_takes_as_many_requests_as_it_is_told_and_refuses_more() {
    let write = || Op::Write { range: BLOCK, payload: Bytes::from(vec![1; BLOCK_BYTES as usize]) };
    for (requests_max, blocks_max, taken) in [(3, 100, 3), (100, 2, 2)] {
        let limits = ClientConfig {
            requests_max,
            request_bytes_max: blocks_max * BLOCK_BYTES,
            ..ClientConfig::new(ResourceId(1), CLIENT, Instance(7))
        };
        let mut pair = Pair::with(limits);
        for id in 0..taken + 1 {
            assert_eq!(pair.completed, []);
            pair.ask(id, write());
        }
        assert_eq!(pair.completed, [(RequestId(taken), Err(RequestError::Busy))]);
        let first = pair.sessions.admit();
        pair.sessions.completed(first, Some(Pieces::new()));
        pair.settle();
        pair.ask(9, write());
        assert_eq!(pair.completed[1..], [(RequestId(0), Ok(Pieces::new()))], "there is room again");
    }
}
