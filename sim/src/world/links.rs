//! Connections between engines: made, broken, noticed.

use super::{What, World};
use crate::engine::EngineIn;
use crate::network::{
    Arrival, BYTES_PER_S, End, Flight, Frame, Pair, RETRY_US_MAX, RETRY_US_MIN, SILENCE_US,
};
use crate::trace::Part;
use crate::words;
use mainstay_codec::Envelope;
use mainstay_types::NodeId;
use std::collections::BTreeMap;

impl World {
    /// A node's engine wants connections to all others.
    pub(super) fn connect_all(&mut self, node: NodeId) {
        let others: Vec<NodeId> = self.machines.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            self.start_connecting((node, other));
        }
    }

    fn start_connecting(&mut self, pair: Pair) {
        if self.connecting.insert(pair) {
            let pause_us = RETRY_US_MIN;
            let jitter = self.chance.below(pause_us);
            self.after(pause_us / 2 + jitter, What::Connect { pair, pause_us });
        }
    }

    pub(super) fn try_connect(&mut self, pair: Pair, pause_us: u64) {
        let (from, to) = pair;
        let initiator = &self.machines[&from];
        if initiator.engine.is_none() || !initiator.met {
            self.connecting.remove(&pair);
            return;
        }
        let acceptor = &self.machines[&to];
        let possible = initiator.engine_process.paused_until_us == 0
            && acceptor.engine.is_some()
            && acceptor.met
            && acceptor.engine_process.paused_until_us == 0
            && self.network.engines_open(from, to)
            && self.network.engines_open(to, from);
        if !possible {
            let pause_us = (pause_us * 2).min(RETRY_US_MAX);
            let jitter = self.chance.below(pause_us / 2);
            return self.after(pause_us / 2 + jitter, What::Connect { pair, pause_us });
        }
        self.connecting.remove(&pair);
        // The acceptor may still believe in an old one.
        if self.network.close(pair, End::Acceptor) {
            self.tell_down(pair, End::Acceptor);
        }
        self.network.open(self.now_us, pair);
        self.note(Some(from), Part::Network, &[1, u64::from(to.0)], || format!("connected to {to}"));
        let boot = self.machines[&from].engine_process.boot;
        let delay = self.network.delay(to, from);
        self.after(delay, What::ToEngine { node: from, boot, input: EngineIn::Peer { node: to, up: true } });
    }

    /// Sends a host's message to another engine.
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, answer: bool, envelope: &Envelope) {
        if self.trace.shows_messages() {
            let text = words::message(to, envelope);
            self.trace.remark(self.now_us, Some(from), Part::Message, text);
        }
        self.spring_at_message(from, to, envelope);
        let (pair, end) = if answer { ((to, from), End::Acceptor) } else { ((from, to), End::Initiator) };
        if let Some(flight) = self.network.send(self.now_us, pair, end, Frame::encode(envelope)) {
            if flight.late {
                self.watch_silence(pair, end.other());
            }
            self.at(flight.arrives_us, What::Frame { pair, sender: end, flight });
        }
    }

    pub(super) fn frame_arrives(&mut self, pair: Pair, sender: End, flight: Flight) {
        let receiver = sender.other();
        if !self.network.is_up(pair, receiver, flight.connection) {
            return;
        }
        let (from, to) = (sender.node(pair), receiver.node(pair));
        if !self.network.engines_open(from, to) {
            return self.network.hold(pair, sender, flight);
        }
        let frame = match self.network.arrive(pair, sender, flight) {
            Arrival::Now(frame) => frame,
            Arrival::Later(flight) => {
                return self.at(flight.arrives_us, What::Frame { pair, sender, flight });
            }
            Arrival::Never => return,
        };
        let Some(envelope) = frame.decode() else {
            self.note(Some(to), Part::Network, &[2, u64::from(from.0)], || {
                format!("damaged bytes from {from}: hangs up")
            });
            return self.close(pair, receiver);
        };
        let boot = self.machines[&to].engine_process.boot;
        let input = EngineIn::Message { from, initiated_by_us: receiver == End::Initiator, envelope };
        self.to_engine(to, boot, input);
    }

    /// A side gives a connection up, and the other one hears of it if it can.
    pub(super) fn close(&mut self, pair: Pair, end: End) {
        let Some(connection) = self.network.id(pair) else { return };
        if !self.network.close(pair, end) {
            return;
        }
        self.tell_down(pair, end);
        self.say_reset(pair, end.other(), connection);
    }

    /// If the other side still believes in the connection, a reset tells it, now or when it next
    /// sends.
    fn say_reset(&mut self, pair: Pair, end: End, connection: u64) {
        if !self.network.is_up(pair, end, connection) {
            return;
        }
        let (from, to) = (end.other().node(pair), end.node(pair));
        let open = self.network.engines_open(from, to) && self.machines[&from].powered;
        let delay = if open { self.network.delay(from, to) } else { u64::MAX };
        if delay <= SILENCE_US {
            self.after(delay, What::Reset { pair, end, connection });
        } else {
            self.watch_silence(pair, end);
        }
    }

    fn tell_down(&mut self, pair: Pair, end: End) {
        let (node, other) = (end.node(pair), end.other().node(pair));
        self.note(Some(node), Part::Network, &[3, u64::from(other.0), end as u64], || {
            format!("connection {} {other} is down", if end == End::Initiator { "to" } else { "of" })
        });
        let boot = self.machines[&node].engine_process.boot;
        let input = match end {
            End::Initiator => EngineIn::Peer { node: other, up: false },
            End::Acceptor => EngineIn::AcceptedDown { from: other },
        };
        self.to_engine(node, boot, input);
        if end == End::Initiator && self.machines[&node].engine.is_some() {
            self.start_connecting(pair);
        }
    }

    pub(super) fn reset_arrives(&mut self, pair: Pair, end: End, connection: u64) {
        if self.network.is_up(pair, end, connection) {
            self.network.close(pair, end);
            self.tell_down(pair, end);
        }
    }

    /// `end` hears nothing from now on: when that lasts, it gives up.
    pub(super) fn watch_silence(&mut self, pair: Pair, end: End) {
        if let Some(connection) = self.network.id(pair)
            && self.network.is_up(pair, end, connection)
        {
            let jitter = self.chance.below(250_000);
            let since_us = self.now_us;
            self.after(SILENCE_US + jitter, What::Silence { pair, end, connection, since_us });
        }
    }

    pub(super) fn silence(&mut self, pair: Pair, end: End, connection: u64, since_us: u64) {
        if !self.network.is_up(pair, end, connection) {
            return;
        }
        let (from, to) = (end.other().node(pair), end.node(pair));
        let speaker = &self.machines[&from];
        let gone = !self.network.is_up(pair, end.other(), connection);
        let blocked = self.network.blocked_since(from, to).is_some_and(|since| since <= since_us);
        let stopped =
            speaker.engine_process.paused_until_us > 0 && speaker.engine_process.paused_since_us <= since_us;
        // Probes may be on their way until then.
        let late = self.network.is_late(pair, end.other(), since_us);
        if gone || blocked || stopped || late {
            self.note(Some(to), Part::Network, &[4, u64::from(from.0)], || {
                format!("nothing heard of {from} for a second")
            });
            self.close(pair, end);
        }
    }

    /// Blocks messages from `from` to `to`. A side that hears nothing any more will notice.
    pub(super) fn cut_engines(&mut self, from: NodeId, to: NodeId) {
        if !self.network.engines_open(from, to) {
            return;
        }
        self.network.cut_engines(from, to, self.now_us);
        self.watch_silence((from, to), End::Acceptor);
        self.watch_silence((to, from), End::Initiator);
    }

    pub(super) fn heal_network(&mut self) {
        self.widen();
        for (pair, sender, flight) in self.network.heal(self.now_us) {
            self.at(flight.arrives_us, What::Frame { pair, sender, flight });
        }
        self.find_half_open();
    }

    /// Lets the frames that are queued before a narrow link go through at full pace from now on.
    fn widen(&mut self) {
        let narrowed = self.network.narrowed().into_iter();
        let mut arrived: BTreeMap<Pair, u64> = narrowed.map(|nodes| (nodes, self.now_us)).collect();
        if arrived.is_empty() {
            return;
        }
        self.queue.reschedule(|at_us, what| {
            let What::Frame { pair, sender, flight } = what else { return at_us };
            let nodes = (sender.node(*pair), sender.other().node(*pair));
            let Some(before_us) = arrived.get_mut(&nodes) else { return at_us };
            *before_us += flight.frame.len() * 1_000_000 / BYTES_PER_S + 1;
            at_us.min(*before_us)
        });
        for ((from, to), at_us) in arrived {
            self.network.arrived_by(from, to, at_us);
        }
    }

    /// Tells the sides whose peers have given up meanwhile.
    pub(super) fn find_half_open(&mut self) {
        for pair in self.network.pairs().collect::<Vec<_>>() {
            let Some(connection) = self.network.id(pair) else { continue };
            for end in [End::Initiator, End::Acceptor] {
                if self.network.is_up(pair, end, connection)
                    && !self.network.is_up(pair, end.other(), connection)
                {
                    self.say_reset(pair, end, connection);
                }
            }
        }
    }

    /// The engine of `node` is gone: all its ends are closed, silently if the machine is gone too.
    pub(super) fn drop_connections(&mut self, node: NodeId) {
        for pair in self.network.pairs().collect::<Vec<_>>() {
            let Some(connection) = self.network.id(pair) else { continue };
            for end in [End::Initiator, End::Acceptor] {
                if end.node(pair) == node && self.network.close(pair, end) {
                    self.say_reset(pair, end.other(), connection);
                }
            }
        }
    }

    /// The engine of `node` stops to answer; its peers will notice.
    pub(super) fn stops_answering(&mut self, node: NodeId) {
        for pair in self.network.pairs().collect::<Vec<_>>() {
            for end in [End::Initiator, End::Acceptor] {
                if end.node(pair) != node && end.other().node(pair) == node {
                    self.watch_silence(pair, end);
                }
            }
        }
    }
}
