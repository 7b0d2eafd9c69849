//! The engines' connections: they deliver in order, or break. Mirrors `engine/src/transport`.
//!
//! Each node opens one connection to each other node. A peer counts as down when nothing has come
//! from it for a second. Frames in flight on a dead connection are lost.
//!
//! The model sends no pings. An open direction counts as heard, and a blocked direction as silent
//! since it was blocked.

use crate::random::Random;
use bytes::Bytes;
use mainstay_codec::frame::{self, FRAME_HEADER_BYTES};
use mainstay_codec::{Envelope, FrameHeader};
use mainstay_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Silence after which an engine gives a connection up, in microseconds; the same as in the
/// engine's transport.
pub const SILENCE_US: u64 = 1_000_000;
pub const RETRY_US_MIN: u64 = 50_000;
pub const RETRY_US_MAX: u64 = 1_000_000;

/// Bytes per second that a connection carries, unless a fault says otherwise.
pub const BYTES_PER_S: u64 = 1_000_000_000;

/// Node that opened a connection, and node that it was opened to.
pub type Pair = (NodeId, NodeId);

/// One side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    Initiator,
    Acceptor,
}

impl End {
    #[must_use]
    pub fn other(self) -> Self {
        if self == Self::Initiator { Self::Acceptor } else { Self::Initiator }
    }

    fn at(self) -> usize {
        usize::from(self == Self::Acceptor)
    }

    #[must_use]
    pub fn node(self, pair: Pair) -> NodeId {
        if self == Self::Initiator { pair.0 } else { pair.1 }
    }
}

/// A message as bytes on their way.
#[derive(Clone, Debug)]
pub struct Frame(Vec<Bytes>);

impl Frame {
    #[must_use]
    pub fn encode(envelope: &Envelope) -> Self {
        Self(frame::encode(envelope))
    }

    /// F37: one bit is wrong.
    pub fn corrupt(&mut self, random: &mut Random) {
        let piece = random.below(self.0.len() as u64) as usize;
        let mut bytes = self.0[piece].to_vec();
        let bit = random.below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.0[piece] = bytes.into();
    }

    /// Decodes the frame as the receiving engine does. `None` ends the connection.
    #[must_use]
    pub fn decode(&self) -> Option<Envelope> {
        let head = self.0.first()?;
        let header = FrameHeader::decode(head.get(..FRAME_HEADER_BYTES)?).ok()?;
        let payload = match &self.0[1..] {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => many.concat().into(),
        };
        frame::decode(&header, &head[FRAME_HEADER_BYTES..], &payload).ok()
    }

    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A frame on its way.
#[derive(Debug)]
pub struct Flight {
    pub connection: u64,
    number: u64,
    pub arrives_us: u64,
    /// The frame stays under way until its receiver gives the connection up.
    pub late: bool,
    pub frame: Frame,
}

/// Fate of a frame that has arrived.
#[derive(Debug)]
pub enum Arrival {
    Now(Frame),
    /// An earlier frame was stopped on its way and arrives later, so this frame has to wait for it.
    Later(Flight),
    /// The frame never arrives: its connection is gone, or an earlier frame of it is lost.
    Never,
}

#[derive(Debug, Default)]
struct Side {
    up: bool,
    /// Lower bound for the arrival of the next frame that this side sends, in microseconds of true
    /// time.
    floor_us: u64,
    /// Number of the next frame that this side sends.
    next: u64,
    /// Number of the next one that arrives.
    arrives: u64,
    /// When the last one arrived.
    arrived_us: u64,
    /// Sent by this side and stopped by a blocked direction, by number.
    held: BTreeMap<u64, Frame>,
}

/// A connection between two engines.
#[derive(Debug)]
pub struct Connection {
    pub id: u64,
    sides: [Side; 2],
}

/// See the top of this file. Time is true time in microseconds.
#[derive(Debug)]
pub struct Network {
    latency_us: u64,
    random: Random,
    connections: BTreeMap<Pair, Connection>,
    next_id: u64,
    /// Blocked directions, and since when.
    engines_cut: BTreeMap<Pair, u64>,
    agents_cut: BTreeSet<Pair>,
    slow: BTreeMap<Pair, u64>,
    /// Bytes per second, where it is not [`BYTES_PER_S`].
    narrow: BTreeMap<Pair, u64>,
    /// Directions whose next frame will be corrupted, each with the least size of that frame in
    /// bytes.
    pub corrupt_next: BTreeMap<Pair, u64>,
}

impl Network {
    #[must_use]
    pub fn new(latency_us: u64, random: Random) -> Self {
        Self {
            latency_us,
            random,
            connections: BTreeMap::new(),
            next_id: 1,
            engines_cut: BTreeMap::new(),
            agents_cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            narrow: BTreeMap::new(),
            corrupt_next: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn engines_open(&self, from: NodeId, to: NodeId) -> bool {
        !self.engines_cut.contains_key(&(from, to))
    }

    #[must_use]
    pub fn agents_open(&self, from: NodeId, to: NodeId) -> bool {
        !self.agents_cut.contains(&(from, to))
    }

    pub fn cut_engines(&mut self, from: NodeId, to: NodeId, at_us: u64) {
        self.engines_cut.entry((from, to)).or_insert(at_us);
    }

    pub fn cut_agents(&mut self, from: NodeId, to: NodeId) {
        self.agents_cut.insert((from, to));
    }

    pub fn slow(&mut self, a: NodeId, b: NodeId, factor: u64) {
        self.slow.insert((a, b), factor);
        self.slow.insert((b, a), factor);
    }

    pub fn narrow(&mut self, a: NodeId, b: NodeId, bytes_per_s: u64) {
        self.narrow.insert((a, b), bytes_per_s);
        self.narrow.insert((b, a), bytes_per_s);
    }

    /// Directions through which little goes.
    pub fn narrowed(&self) -> BTreeSet<Pair> {
        self.narrow.keys().copied().collect()
    }

    /// Tells the network that every frame sent so far from one node to another arrives by `at_us`.
    /// Later frames need not wait any longer.
    pub fn arrived_by(&mut self, from: NodeId, to: NodeId, at_us: u64) {
        for (pair, connection) in &mut self.connections {
            for end in [End::Initiator, End::Acceptor] {
                if (end.node(*pair), end.other().node(*pair)) == (from, to) {
                    let floor_us = &mut connection.sides[end.at()].floor_us;
                    *floor_us = at_us.min(*floor_us);
                }
            }
        }
    }

    /// Opens everything again. Returns the frames that were held and now go on their way.
    pub fn heal(&mut self, at_us: u64) -> Vec<(Pair, End, Flight)> {
        self.engines_cut.clear();
        self.agents_cut.clear();
        self.slow.clear();
        self.narrow.clear();
        let mut out = Vec::new();
        let pairs: Vec<Pair> = self.connections.keys().copied().collect();
        for pair in pairs {
            for end in [End::Initiator, End::Acceptor] {
                let held = self
                    .connections
                    .get_mut(&pair)
                    .map(|connection| std::mem::take(&mut connection.sides[end.at()].held))
                    .unwrap_or_default();
                for (number, frame) in held {
                    out.extend(
                        self.launch(at_us, pair, end, number, frame).map(|flight| (pair, end, flight)),
                    );
                }
            }
        }
        out
    }

    /// One way of a message, in microseconds.
    pub fn delay(&mut self, from: NodeId, to: NodeId) -> u64 {
        self.random.around(self.latency_us) * self.slow.get(&(from, to)).copied().unwrap_or(1)
    }

    #[must_use]
    pub fn id(&self, pair: Pair) -> Option<u64> {
        self.connections.get(&pair).map(|connection| connection.id)
    }

    /// Whether this side believes in the connection with this number.
    #[must_use]
    pub fn is_up(&self, pair: Pair, end: End, id: u64) -> bool {
        self.connections
            .get(&pair)
            .is_some_and(|connection| connection.id == id && connection.sides[end.at()].up)
    }

    #[must_use]
    pub fn has(&self, pair: Pair, end: End) -> bool {
        self.connections.get(&pair).is_some_and(|connection| connection.sides[end.at()].up)
    }

    /// A new connection stands at both ends. The caller has ended the old one.
    pub fn open(&mut self, at_us: u64, pair: Pair) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let side = || Side { up: true, floor_us: at_us, arrived_us: at_us, ..Side::default() };
        self.connections.insert(pair, Connection { id, sides: [side(), side()] });
        id
    }

    /// A side gives the connection up. True if it was up there.
    pub fn close(&mut self, pair: Pair, end: End) -> bool {
        let Some(connection) = self.connections.get_mut(&pair) else { return false };
        let side = &mut connection.sides[end.at()];
        side.held.clear();
        std::mem::take(&mut side.up)
    }

    /// Sends from `end`. `None`: the direction is blocked, or the connection is down.
    pub fn send(&mut self, at_us: u64, pair: Pair, end: End, mut frame: Frame) -> Option<Flight> {
        let (from, to) = (end.node(pair), end.other().node(pair));
        let open = self.engines_open(from, to);
        let connection = self.connections.get_mut(&pair)?;
        let side = &mut connection.sides[end.at()];
        if !side.up {
            return None;
        }
        if self.corrupt_next.get(&(from, to)).is_some_and(|bytes| frame.len() >= *bytes) {
            self.corrupt_next.remove(&(from, to));
            frame.corrupt(&mut self.random);
        }
        let number = side.next;
        side.next += 1;
        if !open || !side.held.is_empty() {
            side.held.insert(number, frame);
            return None;
        }
        self.launch(at_us, pair, end, number, frame)
    }

    fn launch(&mut self, at_us: u64, pair: Pair, end: End, number: u64, frame: Frame) -> Option<Flight> {
        // A copy of extents takes its time as well. On a narrow link later frames wait for earlier
        // ones.
        let nodes = (end.node(pair), end.other().node(pair));
        let narrow = self.narrow.get(&nodes).copied();
        let sending_us = frame.len() * 1_000_000 / narrow.unwrap_or(BYTES_PER_S).max(1);
        let latency_us = self.delay(nodes.0, nodes.1);
        let delay = latency_us + sending_us;
        let connection = self.connections.get_mut(&pair)?;
        let side = &mut connection.sides[end.at()];
        let queued_us = if narrow.is_some() { side.floor_us + sending_us } else { side.floor_us + 1 };
        side.floor_us = (at_us + delay).max(queued_us);
        let late = latency_us > SILENCE_US;
        Some(Flight { connection: connection.id, number, arrives_us: side.floor_us, late, frame })
    }

    /// Whether something of `end` is on its way, and nothing has arrived since then.
    #[must_use]
    pub fn is_late(&self, pair: Pair, end: End, since_us: u64) -> bool {
        let side = self.connections.get(&pair).map(|connection| &connection.sides[end.at()]);
        side.is_some_and(|side| side.next > side.arrives && side.arrived_us <= since_us)
    }

    /// A frame of `end` arrives while its direction is blocked: it waits, in its order.
    pub fn hold(&mut self, pair: Pair, end: End, flight: Flight) {
        if let Some(connection) = self.connections.get_mut(&pair)
            && connection.id == flight.connection
        {
            connection.sides[end.at()].held.insert(flight.number, flight.frame);
        }
    }

    /// A frame of `end` arrives, and its direction is open.
    pub fn arrive(&mut self, pair: Pair, end: End, flight: Flight) -> Arrival {
        let connection = self.connections.get_mut(&pair).filter(|open| open.id == flight.connection);
        let Some(side) = connection.map(|connection| &mut connection.sides[end.at()]) else {
            return Arrival::Never;
        };
        if flight.number == side.arrives {
            side.arrives += 1;
            side.arrived_us = flight.arrives_us;
            Arrival::Now(flight.frame)
        } else if side.up {
            side.floor_us += 1;
            Arrival::Later(Flight { arrives_us: side.floor_us, ..flight })
        } else {
            Arrival::Never
        }
    }

    /// Since when a direction is blocked.
    #[must_use]
    pub fn blocked_since(&self, from: NodeId, to: NodeId) -> Option<u64> {
        self.engines_cut.get(&(from, to)).copied()
    }

    pub fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        self.connections.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Pair = (NodeId(1), NodeId(2));

    fn frame(byte: u8) -> Frame {
        Frame(vec![Bytes::from(vec![byte])])
    }

    /// Two frames on a slow way. The first one meets a cut, which is healed before the second one
    /// is there.
    fn first_held() -> (Network, Flight, Flight) {
        let mut network = Network::new(1000, Random::new(1));
        network.open(0, PAIR);
        network.slow(PAIR.0, PAIR.1, 100);
        let first = network.send(0, PAIR, End::Initiator, frame(1)).expect("the way is open");
        let second = network.send(900_000, PAIR, End::Initiator, frame(2)).expect("the way is open");
        let cut_us = first.arrives_us;
        assert!(cut_us < second.arrives_us);
        network.cut_engines(PAIR.0, PAIR.1, cut_us);
        network.hold(PAIR, End::Initiator, first);
        let mut again = network.heal(cut_us + 1);
        assert_eq!(again.len(), 1);
        let (_, _, first) = again.remove(0);
        assert!(first.arrives_us > second.arrives_us, "what is on its way is there before");
        (network, first, second)
    }

    #[test]
    fn a_frame_stopped_by_a_cut_is_not_overtaken() {
        let (mut network, first, second) = first_held();
        let Arrival::Later(second) = network.arrive(PAIR, End::Initiator, second) else {
            panic!("it overtakes the first");
        };
        assert!(second.arrives_us > first.arrives_us);
        for (flight, byte) in [(first, 1), (second, 2)] {
            let Arrival::Now(frame) = network.arrive(PAIR, End::Initiator, flight) else { panic!("{byte}") };
            assert_eq!(frame.0[0][0], byte);
        }
        let third = network.send(5_000_000, PAIR, End::Initiator, frame(3)).expect("the way is open");
        assert!(matches!(network.arrive(PAIR, End::Initiator, third), Arrival::Now(_)));
    }

    #[test]
    fn no_frame_arrives_after_a_gap() {
        let (mut network, first, second) = first_held();
        drop(first);
        assert!(network.close(PAIR, End::Initiator));
        assert!(matches!(network.arrive(PAIR, End::Initiator, second), Arrival::Never));
        let (mut network, first, _) = first_held();
        network.open(9_000_000, PAIR);
        assert!(matches!(network.arrive(PAIR, End::Initiator, first), Arrival::Never), "another connection");
    }
}
