//! The state of the model. It is small and flat, because a run keeps millions of states. States
//! whose differences can no longer matter are made equal: see [`State::settle`].

use crate::log::Log;
use std::hash::{Hash, Hasher};

pub const NODES: usize = 3;
/// Epochs are 1 to this.
pub const EPOCHS: usize = 5;
/// Most versions of the record within an epoch.
pub const VERSIONS: usize = 8;
/// Stands for "no primary".
pub const NOBODY: u8 = 3;

/// A set of nodes.
pub type Nodes = u8;

#[must_use]
pub fn has(nodes: Nodes, node: u8) -> bool {
    nodes >> node & 1 == 1
}

#[must_use]
pub fn with(nodes: Nodes, node: u8) -> Nodes {
    nodes | 1 << node
}

#[must_use]
pub fn without(nodes: Nodes, node: u8) -> Nodes {
    nodes & !(1 << node)
}

/// The record as the control plane has it now: an atomic register. The model does not count its
/// version. A proposal on an older version can no longer happen, so it is forgotten when the
/// version moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub epoch: u8,
    pub primary: u8,
    pub iss: Nodes,
    /// Nodes whose registered incarnation is the second one.
    pub second: Nodes,
    /// Proposals on this version that may still happen, or never.
    pub shrink: Nodes,
    pub grow: Nodes,
    /// Nodes that ever were in the ISS; kept for one mutation only.
    pub once: Nodes,
}

/// The versions of the record within one epoch that its primary may still learn. While it leads,
/// the first of them is the one that it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Era {
    pub node: u8,
    pub count: u8,
    /// ISS in the low, second incarnations in the high nibble.
    pub versions: [u8; VERSIONS],
    /// Entries that the primary has sequenced or found: the content of every message of the epoch.
    pub log: Log,
}

/// A replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The replica refuses epochs below this one. The next field has the durable part.
    pub promised: u8,
    pub promised_durably: u8,
    pub log: Log,
    pub durable: u8,
    /// Its disk is a second one.
    pub second: bool,
    /// The replica is not the target of an unfinished copy (R16).
    pub whole: bool,
    /// The epoch whose primary has attached it; 0 for none.
    pub session: u8,
    /// Epoch that the replica leads; 0 for none. The fields below are of use only while it leads.
    pub leads: u8,
    pub serves: bool,
    pub commit: u8,
    pub in_iss: Nodes,
    pub joining: Nodes,
    /// Joiners whose entry was proposed on the version that is known.
    pub proposed: Nodes,
    pub copying: Nodes,
}

/// State of a peer, as the primary of an epoch sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Link {
    #[default]
    Down,
    Attaching,
    Cutting,
    Streaming,
    Stale,
}

/// Message that is under way from a primary to a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Out {
    #[default]
    Nothing,
    Attach,
    Cut(u8),
    /// Every entry of the epoch's log that the replica does not have.
    Entries,
}

/// Message that is under way from a replica back to a primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Back {
    #[default]
    Nothing,
    AttachReply {
        common: u8,
        end: u8,
        whole: bool,
    },
    CutReply(u8),
    Ack(u8),
}

/// The connection between the primary of one epoch and one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Talk {
    pub link: Link,
    /// While streaming: the last index that is durable there. While cutting: the index to cut to.
    pub at: u8,
    pub out: Out,
    pub back: Back,
}

/// Steps of each limited kind that a run may still take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    pub writes: u8,
    pub crashes: u8,
    pub changes: u8,
    pub disks: u8,
    pub copies: u8,
}

/// Violation of a promise, which must never happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Violation {
    /// Two different entries are committed at one index.
    Agreement,
    /// A position of an epoch is given away twice.
    Sequencer,
    /// A recorded member lacks an entry that was acknowledged.
    Soundness,
    /// A primary acknowledged, although a later epoch had acknowledged something else before.
    Fence,
    /// A primary cuts an entry from a log that was acknowledged in its epoch or before.
    Cut,
    /// The ISS is empty.
    Empty,
    /// The newest primary lacks an acknowledged entry.
    Promotion,
    /// The newest primary serves and does not know all that was acknowledged.
    Serving,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    pub record: Record,
    pub eras: [Era; EPOCHS],
    pub nodes: [Node; NODES],
    pub talks: [[Talk; NODES]; EPOCHS],
    /// Everything that any replica has committed, hence everything that was acknowledged to a
    /// client.
    pub done: Log,
    /// Epoch in which each of these entries was committed first.
    pub done_in: Log,
    pub budget: Budget,
    pub violated: Option<Violation>,
}

impl Node {
    #[must_use]
    pub fn new() -> Self {
        Self {
            promised: 0,
            promised_durably: 0,
            log: Log::default(),
            durable: 0,
            second: false,
            whole: true,
            session: 0,
            leads: 0,
            serves: false,
            commit: 0,
            in_iss: 0,
            joining: 0,
            proposed: 0,
            copying: 0,
        }
    }

    /// Ceases to be primary.
    pub fn step_back(&mut self) {
        self.leads = 0;
        self.serves = false;
        self.commit = 0;
        self.in_iss = 0;
        self.joining = 0;
        self.proposed = 0;
        self.copying = 0;
    }

    /// Replicas that its commits wait for, itself left out (R2).
    #[must_use]
    pub fn required(&self) -> Nodes {
        self.in_iss | self.joining
    }

    #[must_use]
    pub fn durable_log(&self) -> Log {
        self.log.prefix(self.durable)
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Returns the state in which all replicas are empty and in sync. The first promotion is
    /// recorded, and no node knows it yet.
    #[must_use]
    pub fn initial(nodes: u8, budget: Budget) -> Self {
        let all = (1 << nodes) - 1;
        let mut eras = [Era::default(); EPOCHS];
        eras[0].count = 1;
        eras[0].versions[0] = all;
        Self {
            record: Record { epoch: 1, primary: 0, iss: all, second: 0, shrink: 0, grow: 0, once: 0 },
            eras,
            nodes: [Node::new(); NODES],
            talks: [[Talk::default(); NODES]; EPOCHS],
            done: Log::default(),
            done_in: Log::default(),
            budget,
            violated: None,
        }
    }

    #[must_use]
    pub fn era(&self, epoch: u8) -> &Era {
        &self.eras[usize::from(epoch - 1)]
    }

    pub fn era_mut(&mut self, epoch: u8) -> &mut Era {
        &mut self.eras[usize::from(epoch - 1)]
    }

    #[must_use]
    pub fn node(&self, node: u8) -> &Node {
        &self.nodes[usize::from(node)]
    }

    pub fn node_mut(&mut self, node: u8) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    #[must_use]
    pub fn talk(&self, epoch: u8, node: u8) -> &Talk {
        &self.talks[usize::from(epoch - 1)][usize::from(node)]
    }

    pub fn talk_mut(&mut self, epoch: u8, node: u8) -> &mut Talk {
        &mut self.talks[usize::from(epoch - 1)][usize::from(node)]
    }

    /// Whether the record has left the primary of this epoch.
    #[must_use]
    pub fn over(&self, epoch: u8) -> bool {
        self.record.epoch != epoch || self.record.primary == NOBODY
    }

    /// Whether the primary of this epoch knows the newest version.
    #[must_use]
    pub fn knows_newest(&self, epoch: u8) -> bool {
        !self.over(epoch) && self.era(epoch).count == 1
    }

    pub fn violate(&mut self, violation: Violation) {
        self.violated = self.violated.or(Some(violation));
    }

    /// Forgets what nothing can depend on any more, so that states that differ in nothing else
    /// become one.
    ///
    /// `deaf`: replicas refuse epochs lower than they promised, so messages of these to them do
    /// nothing. `once`: no replica leads an epoch that it has promised before. Then it has no use
    /// for the records of that epoch that it could still learn.
    pub fn settle(&mut self, deaf: bool, once: bool) {
        for epoch in 1..=EPOCHS as u8 {
            let index = usize::from(epoch - 1);
            let leader = self.eras[index].node;
            let led = self.node(leader).leads == epoch;
            let mut heard = led;
            for node in 0..NODES {
                let replica = self.nodes[node];
                let talk = &mut self.talks[index][node];
                if !led {
                    (talk.link, talk.at, talk.back) = (Link::Down, 0, Back::Nothing);
                }
                let refused = deaf && replica.promised > epoch;
                let unattached = !matches!(talk.out, Out::Attach) && replica.session != epoch;
                if refused || unattached {
                    talk.out = Out::Nothing;
                }
                heard |= talk.out != Out::Nothing;
            }
            let era = &mut self.eras[index];
            if !heard {
                era.log = Log::default();
            }
            if once && !led && self.nodes[usize::from(leader)].promised >= epoch {
                era.count = 0;
                era.versions = [0; VERSIONS];
                if !heard {
                    era.node = 0;
                }
            }
        }
    }

    fn words(&self) -> [u64; 25] {
        let mut words = [0; 25];
        let r = self.record;
        let b = self.budget;
        words[0] = pack(&[
            (r.epoch, 3),
            (r.primary, 2),
            (r.iss, 3),
            (r.second, 3),
            (r.shrink, 3),
            (r.grow, 3),
            (r.once, 3),
            (b.writes, 4),
            (b.crashes, 4),
            (b.changes, 4),
            (b.disks, 2),
            (b.copies, 2),
            (self.violated.map_or(0, |violation| violation as u8 + 1), 4),
        ]);
        words[1] = u64::from(self.done.bits()) << 32 | u64::from(self.done_in.bits());
        for (index, era) in self.eras.iter().enumerate() {
            let versions = era.versions.iter().fold(0, |word, v| word << 6 | u64::from(v & 7 | v >> 1 & 56));
            let head = pack(&[(era.node, 2), (era.count, 4)]);
            words[2 + index] = versions << 8 | head;
            words[7 + index / 2] |= u64::from(era.log.bits()) << (32 * (index % 2));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            words[10 + index] = u64::from(node.log.bits()) << 32
                | pack(&[
                    (node.promised, 3),
                    (node.promised_durably, 3),
                    (node.durable, 4),
                    (u8::from(node.second), 1),
                    (u8::from(node.whole), 1),
                    (node.session, 3),
                    (node.leads, 3),
                    (u8::from(node.serves), 1),
                    (node.commit, 4),
                ]);
            let masks = pack(&[(node.in_iss, 3), (node.joining, 3), (node.proposed, 3), (node.copying, 3)]);
            words[13] |= masks << (16 * index);
        }
        for (index, talk) in self.talks.iter().flatten().enumerate() {
            words[14 + index / 2] |= talk.word() << (32 * (index % 2));
        }
        words
    }

    /// The same state with the nodes renamed.
    #[must_use]
    fn renamed(&self, to: [u8; NODES]) -> State {
        let mask =
            |nodes: Nodes| (0..NODES).filter(|n| has(nodes, *n as u8)).fold(0, |mask, n| with(mask, to[n]));
        let name = |node: u8| if node == NOBODY { NOBODY } else { to[usize::from(node)] };
        let mut new = *self;
        let r = self.record;
        new.record = Record {
            epoch: r.epoch,
            primary: name(r.primary),
            iss: mask(r.iss),
            second: mask(r.second),
            shrink: mask(r.shrink),
            grow: mask(r.grow),
            once: mask(r.once),
        };
        for era in &mut new.eras {
            if era.count > 0 || era.log != Log::default() {
                era.node = name(era.node);
            }
            for version in &mut era.versions {
                *version = mask(*version & 15) | mask(*version >> 4) << 4;
            }
        }
        for (from, to) in to.into_iter().enumerate() {
            let mut node = self.nodes[from];
            for nodes in [&mut node.in_iss, &mut node.joining, &mut node.proposed, &mut node.copying] {
                *nodes = mask(*nodes);
            }
            new.nodes[usize::from(to)] = node;
            for epoch in 0..EPOCHS {
                new.talks[epoch][usize::from(to)] = self.talks[epoch][from];
            }
        }
        new
    }

    /// The first, in order, of all states that differ from this one only in the names of the nodes.
    #[must_use]
    pub fn representative(&self, nodes: u8) -> State {
        const NAMES: [[u8; NODES]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]];
        let names = if nodes == 2 { &NAMES[..2] } else { &NAMES[..] };
        let mut best = *self;
        let mut best_words = self.words();
        for to in &names[1..] {
            let other = self.renamed(*to);
            let words = other.words();
            if words < best_words {
                (best, best_words) = (other, words);
            }
        }
        best
    }
}

impl Talk {
    fn word(&self) -> u64 {
        let (out, out_at) = match self.out {
            Out::Nothing => (0, 0),
            Out::Attach => (1, 0),
            Out::Cut(to) => (2, to),
            Out::Entries => (3, 0),
        };
        let (back, first, second, whole) = match self.back {
            Back::Nothing => (0, 0, 0, false),
            Back::AttachReply { common, end, whole } => (1, common, end, whole),
            Back::CutReply(to) => (2, to, 0, false),
            Back::Ack(durable) => (3, durable, 0, false),
        };
        pack(&[
            (self.link as u8, 3),
            (self.at, 4),
            (out, 2),
            (out_at, 4),
            (back, 2),
            (first, 4),
            (second, 4),
            (u8::from(whole), 1),
        ])
    }
}

/// Fields and their widths in bits, one after the other.
fn pack(fields: &[(u8, u32)]) -> u64 {
    fields.iter().fold(0, |word, (value, bits)| {
        debug_assert!(u32::from(*value) < 1 << bits);
        word << bits | u64::from(*value)
    })
}

impl Hash for State {
    /// A few words instead of some hundred fields: the checker hashes every state that it
    /// generates.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for word in self.words() {
            hasher.write_u64(word);
        }
    }
}
