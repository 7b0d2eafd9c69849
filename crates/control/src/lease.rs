//! Leases without a leader (R10): when a node may act, and when it is proven that it may not.
//!
//! Every node sends heartbeats to all voters. A voter acknowledges a heartbeat iff it knows the
//! node as alive in that generation and has suspected neither it nor a later one. The *holder's*
//! lease ends `lease_ms` after it **sent** the newest heartbeat that a majority of voters
//! acknowledged. A *voter* suspects a generation when it has not heard it for `lease_ms +
//! margin_ms`, from then on never acknowledges it, and says so only after the suspicion is durable.
//! When a majority of voters suspects a generation, its death may be proposed.
//!
//! A node may reach the voters and yet hear none of them, or hear them too late. It has no lease
//! and does nothing, so the cluster must replace it all the same. Therefore heartbeats say whether
//! their sender holds a lease.
//!
//! A voter adds up how long a node was without a lease, and takes off how long it held one. So the
//! voter also finds a node that holds a lease less than half of the time. When the sum exceeds
//! `lease_ms + margin_ms`, the voter *gives the node up*: it stops acknowledging the node's
//! heartbeats. It resumes only when other voters' acknowledgements have brought the sum back to
//! half. So it comes to suspect the node `lease_ms + margin_ms` after its last acknowledgement, as
//! above.
//!
//! A node may give its lease up by itself, because it stands still ([`crate::standstill`]). It goes
//! on to send heartbeats, which carry its suspicions of others, and says in them that it gives its
//! lease up. A voter does not acknowledge such a heartbeat and does not count it as heard. So the
//! lease ends by itself, and the node is suspected as if it were silent. An acknowledgement that is
//! under way may still prolong the lease; that is as safe as any other.
//!
//! A voter that holds no lease itself begins its sums anew: then the majority is missing, and no
//! single node is to blame.
//!
//! Why that is safe: let a majority have acknowledged a heartbeat sent at s, and a majority suspect
//! the generation. Some voter v did both. v is not the holder, which never suspects itself. v heard
//! the heartbeat at r >= s, and suspected it at t with t - r > lease_ms + margin_ms on its clock.
//! With clocks off by at most 1 % either way and margin_ms >= lease_ms / 40, the holder's clock has
//! passed s + lease_ms by then.
//!
//! v's suspicion survives its restart. After a restart v counts every node as heard at its start,
//! which is only later. Giving up only withholds acknowledgements, which is always safe. A new
//! generation starts with "heard now", after v acknowledged the old one for the last time. Voters
//! are changed one at a time ([`crate::state::Command::VotersSeen`]), so majorities of different
//! nodes' views intersect as well.

use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{NodeId, Time, reach};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One generation of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Suspect {
    pub node: NodeId,
    pub generation: u64,
}

/// Sent to every voter every `heartbeat_ms`; unordered, unreliable delivery is enough.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    pub generation: u64,
    /// Random per start of the sender's agent: an answer to an earlier process must not count.
    pub session: u64,
    pub seq: u64,
    /// The sender holds a lease. Older versions do not say it, and are taken at their best.
    #[serde(default = "holds_by_default")]
    pub holds: bool,
    /// The sender gives its lease up: it is not to be acknowledged.
    #[serde(default)]
    pub gives_up: bool,
    /// Durable suspicions of the sender.
    pub suspects: Vec<Suspect>,
}

fn holds_by_default() -> bool {
    true
}

/// A voter's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ack {
    pub generation: u64,
    pub session: u64,
    pub seq: u64,
}

/// Part of [`crate::State`] that the machine needs; see [`View::of`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    pub voters: BTreeSet<NodeId>,
    /// Generation, and whether it is alive.
    pub nodes: BTreeMap<NodeId, (u64, bool)>,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    pub margin_ms: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A newer state was applied. Given before [`crate::state::Command::VotersSeen`] is proposed
    /// for it.
    View(View),
    Heartbeat {
        from: NodeId,
        heartbeat: Heartbeat,
    },
    Ack {
        from: NodeId,
        ack: Ack,
    },
    /// Answer to [`Effect::PersistSuspect`].
    SuspectPersisted(Suspect),
    /// Whether this node gives its lease up, because it stands still.
    GivesUp(bool),
    Tick,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    SendHeartbeat {
        to: NodeId,
        heartbeat: Heartbeat,
    },
    SendAck {
        to: NodeId,
        ack: Ack,
    },
    /// Make durable, then answer.
    PersistSuspect(Suspect),
    /// The lease of this node ends at this point, on its own boot-time clock. Given whenever it
    /// changes.
    LeaseUntil(Time),
    /// A majority suspects this generation. Repeated until the state says so; the leader proposes
    /// it.
    ProposeDead(Suspect),
    /// Some voter has stopped to acknowledge this node's generation although it lives: it should
    /// get a new one by [`crate::state::Command::NodeRejoin`]. Not given while the node is dead:
    /// [`crate::actions::plan`] does that.
    ProposeRejoin {
        generation: u64,
    },
}

/// How long a node that is heard was without a lease, less how long it held one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lack {
    sum_us: u64,
    /// Its last heartbeat.
    at: Time,
    given_up: bool,
}

impl Lack {
    fn none(now: Time) -> Self {
        Self { sum_us: 0, at: now, given_up: false }
    }

    /// A heartbeat has come; more than `limit_us` without a lease are too much, also between two
    /// heartbeats.
    fn heard(&mut self, now: Time, holds: bool, limit_us: u64) {
        let passed_us = now.0.saturating_sub(self.at.0).min(limit_us);
        self.at = now;
        self.sum_us =
            if holds { self.sum_us.saturating_sub(passed_us) } else { self.sum_us.saturating_add(passed_us) };
        if self.sum_us > limit_us {
            self.sum_us = limit_us;
            self.given_up = true;
        } else if self.sum_us <= limit_us / 2 {
            self.given_up = false;
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct LeaseMachine {
    node: NodeId,
    session: u64,
    view: View,
    seq: u64,
    /// Heartbeats that may still be acknowledged: seq -> when sent, and the voters that
    /// acknowledged it.
    sent: BTreeMap<u64, (Time, BTreeSet<NodeId>)>,
    lease_until: Time,
    /// This node gives its lease up: none of its heartbeats is to count.
    gives_up: bool,
    next_heartbeat: Time,
    /// When each node was last heard in its present generation.
    heard: BTreeMap<NodeId, Time>,
    /// How long each node was without a lease lately.
    lacks: BTreeMap<NodeId, Lack>,
    /// Latched; `true` once durable.
    suspected: BTreeMap<Suspect, bool>,
    /// Voters that are known to suspect a node, by suspect.
    reports: BTreeMap<Suspect, BTreeSet<NodeId>>,
    last_tick: Time,
    last_rejoin: Option<Time>,
    last_dead: BTreeMap<Suspect, Time>,
    effects: VecDeque<Effect>,
}

impl View {
    /// Returns the part of `state` that leases need.
    #[must_use]
    pub fn of(state: &crate::State) -> Self {
        Self {
            voters: state.voters(),
            nodes: state
                .nodes
                .values()
                .map(|node| (node.id, (node.generation, state.alive(node.id))))
                .collect(),
            lease_ms: state.settings.lease_ms,
            heartbeat_ms: state.settings.heartbeat_ms,
            margin_ms: state.settings.margin_ms,
        }
    }
}

/// Heartbeats whose acknowledgement is still waited for, at most.
const SENT_MAX: usize = 64;

impl LeaseMachine {
    /// `session` is random per start of the agent; `suspected` is what was ever persisted here.
    #[must_use]
    pub fn new(node: NodeId, session: u64, suspected: impl IntoIterator<Item = Suspect>, now: Time) -> Self {
        Self {
            node,
            session,
            view: View::default(),
            seq: 0,
            sent: BTreeMap::new(),
            lease_until: Time(0),
            gives_up: false,
            next_heartbeat: now,
            heard: BTreeMap::new(),
            lacks: BTreeMap::new(),
            suspected: suspected.into_iter().map(|suspect| (suspect, true)).collect(),
            reports: BTreeMap::new(),
            last_tick: now,
            last_rejoin: None,
            last_dead: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    /// End of this node's lease on its own clock; `Time(0)` if it never had one or is dead.
    #[must_use]
    pub fn lease_until(&self) -> Time {
        self.lease_until
    }

    /// The next effect, in order.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Event::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        self.next_heartbeat
    }

    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::View(view) => self.on_view(now, view),
            Event::Heartbeat { from, heartbeat } => self.on_heartbeat(now, from, heartbeat),
            Event::Ack { from, ack } => self.on_ack(now, from, ack),
            Event::SuspectPersisted(suspect) => self.on_persisted(now, suspect),
            Event::GivesUp(gives_up) => {
                if self.gives_up != gives_up {
                    self.gives_up = gives_up;
                    self.next_heartbeat = now;
                }
            }
            Event::Tick => self.on_tick(now),
        }
    }

    fn is_voter(&self) -> bool {
        self.view.voters.contains(&self.node)
    }

    fn majority(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let count = nodes.intersection(&self.view.voters).count();
        count * 2 > self.view.voters.len()
    }

    /// The generation of `node` if it is alive in this node's view.
    fn alive_generation(&self, node: NodeId) -> Option<u64> {
        self.view.nodes.get(&node).filter(|(_, alive)| *alive).map(|(generation, _)| *generation)
    }

    fn on_view(&mut self, now: Time, view: View) {
        let old = std::mem::replace(&mut self.view, view);
        for (node, (generation, alive)) in &self.view.nodes {
            let known = old.nodes.get(node);
            if known != Some(&(*generation, *alive)) {
                // A new generation counts as heard now. That is later than this node can have heard
                // it.
                self.heard.insert(*node, now);
                self.lacks.insert(*node, Lack::none(now));
            }
        }
        let nodes = &self.view.nodes;
        let current = |suspect: &Suspect| {
            nodes.get(&suspect.node).is_none_or(|(generation, _)| suspect.generation >= *generation)
        };
        self.suspected.retain(|suspect, _| current(suspect));
        self.reports.retain(|suspect, _| current(suspect));
        self.last_dead.retain(|suspect, _| current(suspect));
        self.heard.retain(|node, _| nodes.contains_key(node));
        self.lacks.retain(|node, _| nodes.contains_key(node));
        let durable: Vec<Suspect> = self.durable_suspects();
        for suspect in durable {
            self.reports.entry(suspect).or_default().insert(self.node);
        }
        let was = old.nodes.get(&self.node).copied();
        let is = self.view.nodes.get(&self.node).copied();
        if was != is {
            self.sent.clear();
            self.last_rejoin = None;
        }
        if is.is_none_or(|(_, alive)| !alive) && self.lease_until != Time(0) {
            reach!("control: a dead node gives its lease up");
            self.lease_until = Time(0);
            self.effects.push_back(Effect::LeaseUntil(Time(0)));
        }
        self.propose_dead(now);
    }

    fn durable_suspects(&self) -> Vec<Suspect> {
        self.suspected.iter().filter(|(_, durable)| **durable).map(|(suspect, _)| *suspect).collect()
    }

    fn on_tick(&mut self, now: Time) {
        // If this voter was stopped itself, heartbeats wait unread: silence during a pause proves
        // nothing. Starting the count again is always safe, because it is later.
        let stopped = now.ms_since(self.last_tick) > self.view.lease_ms / 2;
        if stopped {
            reach!("control: a voter was stopped itself");
            for heard in self.heard.values_mut() {
                *heard = now;
            }
        }
        if stopped || !self.holds(now) {
            self.lacks.values_mut().for_each(|lack| *lack = Lack::none(now));
        }
        self.last_tick = now;
        self.suspect_the_silent(now);
        if now >= self.next_heartbeat {
            self.next_heartbeat = now.plus_ms(self.view.heartbeat_ms.max(1));
            self.send_heartbeats(now);
        }
        self.propose_dead(now);
        self.propose_rejoin(now);
    }

    fn suspect_the_silent(&mut self, now: Time) {
        if !self.is_voter() {
            return;
        }
        let silence_ms = if planted(Bug::SuspectsTooEarly) {
            self.view.lease_ms / 2
        } else if planted(Bug::MarginLeftOut) {
            self.view.lease_ms
        } else {
            self.silence_ms()
        };
        for (node, (generation, alive)) in &self.view.nodes {
            let suspect = Suspect { node: *node, generation: *generation };
            if *node == self.node || !alive || self.suspected.contains_key(&suspect) {
                continue;
            }
            let heard = self.heard.get(node).copied().unwrap_or(now);
            if now.ms_since(heard) > silence_ms {
                // Latched at once, reported when durable.
                reach!("control: a node is suspected");
                if planted(Bug::SuspicionNotPersisted) {
                    self.suspected.insert(suspect, true);
                    continue;
                }
                self.suspected.insert(suspect, false);
                self.effects.push_back(Effect::PersistSuspect(suspect));
            }
        }
    }

    /// How long nothing is heard of a generation whose lease has surely ended, in milliseconds.
    fn silence_ms(&self) -> u64 {
        self.view.lease_ms + self.view.margin_ms
    }

    /// Whether this node holds a lease.
    fn holds(&self, now: Time) -> bool {
        now < self.lease_until
    }

    /// Whether `node` was without a lease for too long, and gets no more acknowledgements. Call it
    /// when a heartbeat of the node has come.
    fn gives_up(&mut self, now: Time, node: NodeId, holds: bool) -> bool {
        let limit_us = self.silence_ms() * 1000;
        let Some(lack) = self.lacks.get_mut(&node) else { return false };
        lack.heard(now, holds, limit_us);
        lack.given_up
    }

    fn send_heartbeats(&mut self, now: Time) {
        let Some(generation) = self.view.nodes.get(&self.node).map(|(generation, _)| *generation) else {
            return;
        };
        self.seq += 1;
        let heartbeat = Heartbeat {
            generation,
            session: self.session,
            seq: self.seq,
            holds: self.holds(now),
            gives_up: self.gives_up,
            suspects: self.durable_suspects(),
        };
        for to in self.view.voters.iter().copied().filter(|voter| *voter != self.node) {
            self.effects.push_back(Effect::SendHeartbeat { to, heartbeat: heartbeat.clone() });
        }
        if self.gives_up || self.alive_generation(self.node).is_none() {
            return;
        }
        while self.sent.len() >= SENT_MAX {
            self.sent.pop_first();
        }
        self.sent.insert(self.seq, (now, BTreeSet::new()));
        if self.is_voter() {
            self.count_ack(now, self.node, self.seq);
        }
    }

    fn on_heartbeat(&mut self, now: Time, from: NodeId, heartbeat: Heartbeat) {
        for suspect in heartbeat.suspects.iter().take(crate::state::NODES_MAX) {
            let generation = self.view.nodes.get(&suspect.node).map(|(generation, _)| *generation);
            // Reports about generations that are not known yet come again.
            if generation == Some(suspect.generation) {
                self.reports.entry(*suspect).or_default().insert(from);
            }
        }
        let Heartbeat { generation, session, seq, holds, .. } = heartbeat;
        if heartbeat.gives_up {
            reach!("control: a heartbeat gives its lease up");
            return self.propose_dead(now);
        }
        if self.gives_up(now, from, holds) {
            reach!("control: a node that is heard and holds no lease is given up");
            return self.propose_dead(now);
        }
        // A suspicion holds for that generation and all before it. A voter that restarted may have
        // gone back to a state in which an older generation is alive.
        let suspected =
            self.suspected.keys().any(|suspect| suspect.node == from && suspect.generation >= generation);
        if self.is_voter()
            && self.alive_generation(from) == Some(generation)
            && (!suspected || planted(Bug::SuspectAcknowledged))
        {
            self.heard.insert(from, now);
            self.effects.push_back(Effect::SendAck { to: from, ack: Ack { generation, session, seq } });
        } else {
            reach!("control: a heartbeat is not acknowledged");
        }
        self.propose_dead(now);
    }

    fn on_ack(&mut self, now: Time, from: NodeId, ack: Ack) {
        if ack.session == self.session && self.alive_generation(self.node) == Some(ack.generation) {
            self.count_ack(now, from, ack.seq);
        } else {
            reach!("control: an acknowledgement of an earlier process or generation");
        }
    }

    fn count_ack(&mut self, now: Time, from: NodeId, seq: u64) {
        let Some((sent_at, acked)) = self.sent.get_mut(&seq) else {
            reach!("control: an acknowledgement that is not waited for");
            return;
        };
        acked.insert(from);
        let (sent_at, acked) = (*sent_at, acked.clone());
        if self.majority(&acked) {
            self.sent.retain(|other, _| *other > seq);
            // R10: from when it was sent; the answer may be late.
            let from = if planted(Bug::LeaseFromReceipt) { now } else { sent_at };
            let until = from.plus_ms(self.view.lease_ms);
            if until > self.lease_until {
                if self.lease_until == Time(0) {
                    reach!("control: a lease begins");
                }
                self.lease_until = until;
                self.effects.push_back(Effect::LeaseUntil(until));
            }
        }
    }

    fn on_persisted(&mut self, now: Time, suspect: Suspect) {
        if let Some(durable) = self.suspected.get_mut(&suspect) {
            reach!("control: a suspicion is durable");
            *durable = true;
            self.reports.entry(suspect).or_default().insert(self.node);
            // Sends the suspicion at once, because the other voters' decision waits for it.
            self.next_heartbeat = now;
            self.propose_dead(now);
        }
    }

    fn propose_dead(&mut self, now: Time) {
        let due: Vec<Suspect> = self
            .reports
            .iter()
            .filter(|(suspect, by)| {
                self.alive_generation(suspect.node) == Some(suspect.generation)
                    // A node that leads the log and gives its lease up says so itself: nobody else
                    // may. Otherwise it asks for a new generation.
                    && (suspect.node != self.node || self.gives_up)
                    && (self.majority(by) || planted(Bug::OneSuspicionKills))
                    && self
                        .last_dead
                        .get(suspect)
                        .is_none_or(|last| now.ms_since(*last) >= self.view.heartbeat_ms)
            })
            .map(|(suspect, _)| *suspect)
            .collect();
        for suspect in due {
            reach!("control: a death is proposed");
            self.last_dead.insert(suspect, now);
            self.effects.push_back(Effect::ProposeDead(suspect));
        }
    }

    fn propose_rejoin(&mut self, now: Time) {
        let Some(generation) = self.alive_generation(self.node).filter(|_| !self.gives_up) else { return };
        let suspected =
            self.reports.get(&Suspect { node: self.node, generation }).is_some_and(|by| !by.is_empty());
        let due = self.last_rejoin.is_none_or(|last| now.ms_since(last) >= self.view.lease_ms);
        if suspected && due {
            reach!("control: a suspected node wants a new generation");
            self.last_rejoin = Some(now);
            self.effects.push_back(Effect::ProposeRejoin { generation });
        }
    }
}
