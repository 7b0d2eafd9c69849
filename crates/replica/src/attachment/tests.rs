//! Both machines against a model of everything between them: logs that lose their tails, primaries
//! that come and go, connections that break and deliver late. Clients die, move and hear of it
//! late. The results that users saw are compared with the order of the last log.
//!
//! To repeat one: `SEED=17 cargo test -p mainstay-replica one_seed_of_clients -- --nocapture`.

use super::{AttachedClients, Client, ClientConfig, ClientEffect, ClientEvent};
use crate::{Op, RequestError, RequestId};
use bytes::Bytes;
use mainstay_codec::{Ask, Envelope, Message, Pieces, Refusal};
use mainstay_types::simulation::{Bug, plant};
use mainstay_types::{
    Attachment, BLOCK_BYTES, ClientMark, ClientOver, Epoch, Incarnation, Instance, NodeId, Range, ResourceId,
    ResourceRecord, SessionId, Time, VolumeId,
};
use std::collections::{BTreeMap, VecDeque};

const BLOCKS: u64 = 3;
const PRIMARIES: u32 = 3;
/// Nodes of clients.
const X: u32 = 11;
const Y: u32 = 12;
const WAIT_MS: u64 = 6_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    mark: ClientMark,
    block: u64,
    value: u64,
}

/// A node that may be primary: its log and its side of the conversation.
#[derive(Default)]
struct Server {
    sessions: AttachedClients,
    record: Option<ResourceRecord>,
    epoch: Epoch,
    serving: bool,
    log: Vec<Entry>,
    committed: usize,
    /// Changes by the length of the log with them; reads and flushes by what must be committed
    /// before.
    pending: Vec<(usize, RequestId, Option<u64>)>,
}

/// Request of one user, and its outcome.
#[derive(Clone, Debug)]
struct UserRequest {
    block: u64,
    /// Written, or read.
    write: bool,
    value: u64,
    start: u64,
    end: Option<u64>,
    ok: bool,
}

/// Connection of a client to a server. A broken one may still deliver to the server.
struct Connection {
    client: u32,
    server: u32,
    up: bool,
    there: VecDeque<Envelope>,
    back: VecDeque<Envelope>,
}

impl Connection {
    fn breaks(&mut self) {
        self.up = false;
        self.back.clear();
    }

    fn joins(&self, client: u32, server: u32) -> bool {
        (self.client, self.server) == (client, server)
    }
}

#[derive(Default)]
struct Lab {
    random: Option<Random>,
    now_ms: u64,
    /// Counts events, for the order of the results that users see.
    moment: u64,
    record: Option<ResourceRecord>,
    servers: BTreeMap<u32, Server>,
    clients: BTreeMap<u32, (Client, Time)>,
    instances: u64,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    asked: Vec<UserRequest>,
    by_request: BTreeMap<RequestId, usize>,
    /// The highest change of each session that was answered, and what was found at its end.
    answered: BTreeMap<SessionId, u64>,
    number_of: BTreeMap<u64, ClientMark>,
    last_value: u64,
    overs: Vec<ClientOver>,
    lossy: bool,
    lost: bool,
    retried: u64,
    wrong: Option<String>,
}

impl Lab {
    fn new(seed: u64) -> Self {
        let mut lab = Self {
            random: Some(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)),
            lossy: seed % 4 == 3,
            ..Self::default()
        };
        let mut record = ResourceRecord::new(ResourceId(1));
        record.primary = Some(NodeId(1));
        record.epoch = Epoch(1);
        lab.record = Some(record);
        for node in 1..=PRIMARIES {
            lab.servers.insert(node, Server::default());
        }
        lab.told(1);
        lab
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.as_mut().expect("set at the start").below(n)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn change(&mut self, change: impl FnOnce(&mut ResourceRecord)) {
        let record = self.record.as_mut().expect("set at the start");
        record.version = record.version.next();
        change(record);
    }

    /// A node hears of the record as it is now. A server that is named primary for the first time
    /// takes the log over.
    fn told(&mut self, node: u32) {
        let record = self.record.clone().expect("set at the start");
        if let Some((client, _)) = self.clients.get_mut(&node) {
            client.handle(Time(self.now_ms * 1000), ClientEvent::Record(Box::new(record)));
            self.run_client(node);
        } else if let Some(server) = self.servers.get_mut(&node) {
            let leads = record.primary == Some(NodeId(node));
            server.sessions.record(&record);
            if server.serving && (!leads || record.epoch > server.epoch) {
                server.serving = false;
                server.pending.clear();
                server.sessions.stop();
            }
            if leads && record.epoch > server.epoch {
                server.epoch = record.epoch;
                server.serving = true;
                let mark = server.log.last().map_or(ClientMark::default(), |entry| entry.mark);
                server.sessions.serve(mark, vec![BLOCKS * BLOCK_BYTES]);
            }
            server.record = Some(record);
            self.run_server(node);
        }
    }

    /// Another server is to lead. It has all committed changes, and some that are not committed.
    fn promote(&mut self) {
        let record = self.record.clone().expect("set at the start");
        let old = record.primary.expect("always one").0;
        let to = 1 + (old + self.below(u64::from(PRIMARIES) - 1) as u32) % PRIMARIES;
        let source = &self.servers[&old];
        let (log, committed) = (source.log.clone(), source.committed);
        let mut keep = committed + self.below((log.len() - committed + 1) as u64) as usize;
        if self.lossy && self.one_in(3) {
            keep = self.below(keep as u64 + 1) as usize;
            self.lost |= keep < committed;
        }
        let server = self.servers.get_mut(&to).expect("known");
        // One that led before was fenced by the one in between, before its log was changed.
        if std::mem::take(&mut server.serving) {
            server.pending.clear();
            server.sessions.stop();
        }
        server.log = log[..keep].to_vec();
        server.committed = keep;
        // From now on the old one answers nothing: its lease is over.
        let old = self.servers.get_mut(&old).expect("known");
        old.pending.clear();
        self.change(|record| {
            record.epoch = record.epoch.next();
            record.primary = Some(NodeId(to));
        });
    }

    fn leads(&self, node: u32) -> bool {
        let record = self.record.as_ref().expect("set at the start");
        record.primary == Some(NodeId(node)) && self.servers[&node].epoch == record.epoch
    }

    fn attach(&mut self, node: Option<u32>) {
        self.change(|record| {
            record.attached = node.map(|node| Attachment {
                node: NodeId(node),
                session: SessionId(record.version.0),
                instance: None,
                wait_ms: WAIT_MS,
            });
        });
    }

    /// The agent of a client's node, which has the newest record.
    fn agent(&mut self, node: u32) {
        let record = self.record.clone().expect("set at the start");
        let mine = record.attached.filter(|attached| attached.node == NodeId(node));
        let over = self.clients.get(&node).is_some_and(|(client, _)| client.over().is_some());
        if over || (mine.is_none() && self.clients.contains_key(&node)) {
            self.told(node);
            self.close_client(node);
        }
        let Some(attached) = mine else { return };
        if !self.clients.contains_key(&node) {
            self.instances += 1;
            let config = ClientConfig::new(ResourceId(1), NodeId(node), Instance(self.instances));
            self.clients.insert(node, (Client::new(config), Time(u64::MAX)));
            for server in 1..=PRIMARIES {
                self.connect(node, server);
            }
        }
        let instance = self.clients[&node].0.instance();
        if attached.instance != Some(instance) {
            self.change(|record| {
                let version = record.version;
                let attached = record.attached.as_mut().expect("seen above");
                (attached.instance, attached.session) = (Some(instance), SessionId(version.0));
            });
        }
        self.told(node);
    }

    /// The process ends, or its device is taken away. Requests that still wait end with an error.
    fn close_client(&mut self, node: u32) {
        if self.clients.remove(&node).is_none() {
            return;
        }
        for connection in self.connections.values_mut().filter(|connection| connection.client == node) {
            connection.breaks();
        }
        self.moment += 1;
        let moment = self.moment;
        for (id, at) in std::mem::take(&mut self.by_request) {
            if id.0 >> 32 == u64::from(node) {
                self.asked[at].end = Some(moment);
            } else {
                self.by_request.insert(id, at);
            }
        }
    }

    fn connect(&mut self, client: u32, server: u32) {
        let up = self.connections.values_mut().find(|one| one.joins(client, server) && one.up);
        if let Some(connection) = up {
            connection.breaks();
            let node = NodeId(server);
            let now = Time(self.now_ms * 1000);
            if let Some((client, _)) = self.clients.get_mut(&client) {
                client.handle(now, ClientEvent::PeerDown { node });
            }
        }
        self.last_connection += 1;
        let (there, back) = (VecDeque::new(), VecDeque::new());
        let connection = Connection { client, server, up: true, there, back };
        self.connections.insert(self.last_connection, connection);
        let now = Time(self.now_ms * 1000);
        if let Some((machine, _)) = self.clients.get_mut(&client) {
            machine.handle(now, ClientEvent::PeerUp { node: NodeId(server) });
        }
        self.run_client(client);
    }

    fn run_client(&mut self, node: u32) {
        let Some((client, wake)) = self.clients.get_mut(&node) else { return };
        let mut effects = Vec::new();
        while let Some(effect) = client.poll() {
            effects.push(effect);
        }
        *wake = client.next_deadline().unwrap_or(Time(u64::MAX));
        for effect in effects {
            match effect {
                ClientEffect::Send { to, envelope } => {
                    let Message::ClientAsk(ask) = &envelope.message else { continue };
                    if let Ask::Write { payload, .. } = &ask.ask {
                        let value = u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"));
                        let mark = ClientMark { session: ask.session, number: ask.number };
                        self.retried += u64::from(self.number_of.insert(value, mark).is_some());
                    }
                    let up = self.connections.values_mut().find(|one| one.joins(node, to.0) && one.up);
                    if let Some(connection) = up {
                        connection.there.push_back(envelope);
                    }
                }
                ClientEffect::Complete { id, result } => self.completed(id, result),
                ClientEffect::Ready { volumes } => assert_eq!(volumes, [BLOCKS * BLOCK_BYTES]),
                ClientEffect::Over(over) => self.overs.push(over),
            }
        }
    }

    fn completed(&mut self, id: RequestId, result: Result<Pieces, RequestError>) {
        self.moment += 1;
        let Some(at) = self.by_request.remove(&id) else { return };
        let asked = &mut self.asked[at];
        asked.end = Some(self.moment);
        asked.ok = result.is_ok();
        if let Ok(pieces) = result {
            if asked.write {
                let mark = self.number_of[&asked.value];
                let known = self.answered.entry(mark.session).or_default();
                *known = mark.number.max(*known);
            } else {
                asked.value = u64::from_le_bytes(pieces[0][..8].try_into().expect("eight bytes"));
            }
        }
    }

    fn user(&mut self, node: u32) {
        let Some((client, _)) = self.clients.get_mut(&node) else { return };
        if client.primary().is_none() && client.streams() == 0 {
            return;
        }
        self.moment += 1;
        let id = RequestId(u64::from(node) << 32 | self.moment);
        let block = self.below(BLOCKS);
        let range = Range { volume: VolumeId(0), offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
        let write = self.below(2) == 0;
        let (op, value) = if write {
            self.last_value += 1;
            let mut payload = vec![0; BLOCK_BYTES as usize];
            payload[..8].copy_from_slice(&self.last_value.to_le_bytes());
            (Op::Write { range, payload: payload.into() }, self.last_value)
        } else {
            (Op::Read { range }, 0)
        };
        self.by_request.insert(id, self.asked.len());
        self.asked.push(UserRequest { block, write, value, start: self.moment, end: None, ok: false });
        let now = Time(self.now_ms * 1000);
        let (client, _) = self.clients.get_mut(&node).expect("seen above");
        client.handle(now, ClientEvent::Request { id, op });
        self.run_client(node);
    }

    fn run_server(&mut self, node: u32) {
        let leads = self.leads(node);
        let server = self.servers.get_mut(&node).expect("known");
        let mut wrong = None;
        while let Some((op, mark)) = server.sessions.next() {
            // Like the core: it admits only the session that its own record names.
            let named = server.record.as_ref().and_then(|record| record.attached);
            if !server.serving || named.is_none_or(|named| named.session != mark.session) {
                server.sessions.close(Refusal::NotServing);
                break;
            }
            if server.pending.len() >= 8 {
                break;
            }
            let id = server.sessions.admit();
            match op {
                Op::Write { range, payload } => {
                    let value = u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"));
                    if server.log.last().is_some_and(|last| last.mark >= mark) {
                        wrong = Some(format!("{mark:?} after {:?}", server.log.last()));
                    }
                    let held = server.log.iter().filter(|entry| entry.mark.session == mark.session);
                    let held = held.map(|entry| entry.mark.number).max().unwrap_or(0);
                    let known = self.answered.get(&mark.session).copied().unwrap_or(0);
                    if leads && held < known {
                        wrong =
                            Some(format!("{mark:?} is admitted, and {known} was acknowledged and is lost"));
                    }
                    let block = range.first_block();
                    server.log.push(Entry { mark, block, value });
                    server.pending.push((server.log.len(), id, None));
                }
                Op::Read { range } => {
                    let block = range.first_block();
                    let after = server.log.iter().rposition(|entry| entry.block == block);
                    server.pending.push((after.map_or(0, |at| at + 1), id, Some(block)));
                }
                _ => unreachable!("nothing else is asked for"),
            }
        }
        let mut answers = Vec::new();
        while let Some((to, answer)) = server.sessions.poll() {
            answers.push((to, answer));
        }
        for (to, answer) in answers {
            if AttachedClients::vouches(&answer) && !leads {
                // Its lease is over.
                continue;
            }
            let envelope = Envelope {
                resource: ResourceId(1),
                epoch: Epoch(0),
                version: Default::default(),
                incarnation: Incarnation(0),
                message: Message::ClientAnswer(answer),
            };
            let newest = self.connections.values_mut().rfind(|one| one.joins(to.0, node));
            if let Some(connection) = newest.filter(|connection| connection.up) {
                connection.back.push_back(envelope);
            }
        }
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }

    /// The primary commits some of its log.
    fn commit(&mut self, node: u32) {
        if !self.leads(node) {
            return;
        }
        let more = self.below(4) as usize;
        let server = self.servers.get_mut(&node).expect("known");
        server.committed = (server.committed + more).min(server.log.len());
        let committed = server.committed;
        let done: Vec<_> = server.pending.extract_if(.., |(after, ..)| *after <= committed).collect();
        for (_, id, read) in done {
            let data = read.map(|block| {
                let newest = server.log[..committed].iter().rfind(|entry| entry.block == block);
                let mut bytes = vec![0; BLOCK_BYTES as usize];
                bytes[..8].copy_from_slice(&newest.map_or(0, |entry| entry.value).to_le_bytes());
                Bytes::from(bytes)
            });
            server.sessions.completed(id, Some(data.into_iter().collect()));
        }
        self.run_server(node);
    }

    fn deliver(&mut self, number: u64) {
        let to_server = self.below(2) == 0;
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Connection { client, server, up, there, back } = connection;
        let (client, server) = (*client, *server);
        if to_server {
            let Some(envelope) = there.pop_front() else { return };
            let Message::ClientAsk(ask) = envelope.message else { return };
            self.servers.get_mut(&server).expect("known").sessions.ask(NodeId(client), ask);
            self.run_server(server);
        } else if *up {
            let Some(envelope) = back.pop_front() else { return };
            let now = Time(self.now_ms * 1000);
            if let Some((machine, _)) = self.clients.get_mut(&client) {
                machine.handle(now, ClientEvent::Message { from: NodeId(server), envelope });
                self.run_client(client);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let now = Time(self.now_ms * 1000);
        for node in [X, Y] {
            if let Some((client, wake)) = self.clients.get_mut(&node)
                && *wake <= now
            {
                client.handle(now, ClientEvent::Tick);
                self.run_client(node);
            }
        }
        self.connections.retain(|_, one| one.up || !one.there.is_empty());
    }

    fn trouble(&mut self) {
        let client = [X, Y][self.below(2) as usize];
        let server = 1 + self.below(u64::from(PRIMARIES)) as u32;
        match self.below(120) {
            0 | 1 => self.promote(),
            2 if self.one_in(4) => self.attach(Some(client)),
            3 if self.one_in(8) => self.attach(None),
            4 | 5 => self.connect(client, server),
            // The connection loses everything that is under way.
            6 if self.one_in(2) => {
                for connection in self.connections.values_mut().filter(|connection| !connection.up) {
                    connection.there.clear();
                }
            }
            7 if self.one_in(8) => self.close_client(client),
            _ => {}
        }
    }

    fn step(&mut self) {
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        let node = [X, Y][self.below(2) as usize];
        match self.below(12) {
            0..=4 if !numbers.is_empty() => {
                let at = self.below(numbers.len() as u64) as usize;
                self.deliver(numbers[at]);
            }
            5 | 6 => self.user(node),
            7 | 8 => {
                let server = 1 + self.below(u64::from(PRIMARIES)) as u32;
                self.commit(server);
            }
            9 => {
                let server = 1 + self.below(u64::from(PRIMARIES)) as u32;
                self.told(server);
            }
            10 => self.agent(node),
            _ => {
                let ms = self.below(400);
                self.pass(ms);
            }
        }
    }

    /// Compares what users saw with the order of the log.
    fn judge(&mut self) {
        let primary = self.record.as_ref().and_then(|record| record.primary).expect("always one").0;
        let server = &self.servers[&primary];
        let log = server.log[..server.committed].to_vec();
        for pair in log.windows(2) {
            if pair[0].mark >= pair[1].mark {
                return self.fail(format!("{:?} is followed by {:?}", pair[0], pair[1]));
            }
        }
        if self.lost {
            return;
        }
        let place: BTreeMap<u64, usize> =
            log.iter().enumerate().map(|(at, entry)| (entry.value, at + 1)).collect();
        let mut asked = self.asked.clone();
        asked.retain(|asked| asked.write || asked.ok);
        let place_of = |asked: &UserRequest| {
            if asked.value == 0 { Some(0) } else { place.get(&asked.value).copied() }
        };
        for one in &asked {
            let at = place_of(one);
            if one.ok && at.is_none() {
                return self.fail(format!("{one:?} is not in the log"));
            }
            let Some(at) = at else { continue };
            for before in asked.iter().filter(|before| before.block == one.block) {
                // A request that ended before this one began comes before it in the log. If this
                // one is a read, it may also return the earlier request's content.
                if before.end.is_none_or(|end| end >= one.start) {
                    continue;
                }
                let Some(earlier) = place_of(before) else { continue };
                // A write that failed may be missing in a read, but no later write comes before it.
                let counts = before.ok || one.write;
                if counts && (at < earlier || (one.write && at == earlier)) {
                    return self.fail(format!("{one:?} at {at} is older than {before:?} at {earlier}"));
                }
            }
        }
    }
}

/// Plays one seed; returns how many writes were sent again, and which sessions were over, or what
/// is wrong.
fn play(seed: u64) -> Result<(u64, Vec<ClientOver>), String> {
    let mut lab = Lab::new(seed);
    lab.attach(Some(X));
    for _ in 0..4_000 {
        lab.trouble();
        lab.step();
        if let Some(wrong) = lab.wrong.take() {
            return Err(wrong);
        }
    }
    // All is well: everything that was asked for is answered.
    for server in 1..=PRIMARIES {
        for client in [X, Y] {
            lab.connect(client, server);
        }
    }
    for round in 0..400 {
        for node in [1, 2, 3] {
            lab.told(node);
            lab.commit(node);
        }
        lab.agent(X);
        lab.agent(Y);
        for number in lab.connections.keys().copied().collect::<Vec<_>>() {
            for _ in 0..8 {
                lab.deliver(number);
            }
        }
        lab.pass(if round % 10 == 0 { 100 } else { 0 });
    }
    lab.judge();
    if let Some(wrong) = lab.wrong.take() {
        return Err(wrong);
    }
    let open = lab.asked.iter().filter(|asked| asked.end.is_none()).count();
    if open > 0 {
        return Err(format!("{open} requests are not answered in the end"));
    }
    Ok((lab.retried, lab.overs))
}

#[test]
fn reads_and_writes_of_all_clients_follow_one_order() {
    let (mut retried, mut overs) = (0, Vec::new());
    for seed in 0..400 {
        match play(seed) {
            Ok((again, over)) => {
                retried += again;
                overs.extend(over);
            }
            Err(wrong) => panic!("SEED={seed}: {wrong}"),
        }
    }
    assert!(retried > 2_000, "{retried} retries");
    for over in [ClientOver::Detached, ClientOver::Lost, ClientOver::Waited] {
        assert!(overs.contains(&over), "no session was over because of {over:?}");
    }
}

#[test]
fn one_seed_of_clients() {
    #[allow(clippy::disallowed_methods, reason = "which seed to repeat")]
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        println!("{:?}", play(seed));
    }
}

fn caught(bug: Bug) -> bool {
    plant(Some(bug));
    let caught = (0..400).any(|seed| play(seed).is_err());
    plant(None);
    caught
}

#[test]
fn planted_bugs_are_caught() {
    for bug in [Bug::RetryApplied, Bug::LossNotSeen] {
        assert!(caught(bug), "{bug:?}");
    }
}
