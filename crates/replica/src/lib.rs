//! The replication core: one replica of one resource, in whatever role. Pure: events in, effects
//! out, time is a parameter.
//!
//! # What it guarantees
//!
//! - R1  A replica persists its promise of an epoch before it answers in it, and refuses lower
//!   epochs forever. Acknowledgements of an earlier disk content never count. (`secondary.rs`,
//!   `commit.rs`)
//! - R2  A write is acknowledged when the primary and its whole required set hold it durably
//!   (`commit.rs`), in mode B in memory (`mode_b.rs`).
//! - R3, R4  The required set changes so that every recorded in-sync set holds all acknowledged
//!   writes, whenever the control plane decides and however late its answer comes.
//!   (`membership.rs`)
//! - R5, R6  A replica becomes primary because the record says so, in an epoch that it never
//!   served. It serves after its epoch start is committed. (`promote.rs`)
//! - R7  A tail that the primary's log does not hold is cut, never below a known commit index.
//!   (`catch_up.rs`)
//! - R8  Only a replica with data sequences entries. This core is the only code that does.
//! - R9  A replica answers for one incarnation only.
//! - R11 After a forced promotion the primary takes nothing from a replica that may hold entries
//!   outside the history. (`catch_up.rs`)
//! - R16 The target of an extent copy is inconsistent until it is whole. Until then it is neither
//!   required nor promotable. (`copy.rs`)
//! - R20 Requests wait for copies for a bounded time. (`copies.rs`)
//! - R18 Requests, windows, loads and copies are bounded, and copies yield to clients
//!   (`background.rs`). An entry is appended only if the journal has room for it, and a promotion
//!   makes room for its epoch start. (`commit.rs`)
//! - S18 A change of a client is in a log once, and only if the record names the client's session.
//!   (`attachment/`)
//!
//! It does not guarantee that reads are fresh: that is the lease's task (R10), checked by the
//! runtime.
//!
//! # Roles
//!
//! ```text
//! Secondary ─▶ Promoting ─▶ Primary     by the record (R5) and the commit of the epoch start (R6)
//!     ▲            │           │
//!     ├────────────┴───────────┤        the record names another, or a higher epoch attaches
//!     │            │           ▼
//!     └──────────  └──────▶ Fenced      a higher epoch is known, demoted, restarted, or the store failed
//! ```
//!
//! Files, in the order in which to read them: `interface.rs` (events and effects), `log.rs`
//! (knowledge of a replica about its log), `sizes.rs`, `snapshots.rs`, `sequence.rs`,
//! `in_flight.rs`, `sealed.rs`, `commit.rs`, `secondary.rs`, `promote.rs`, `peer.rs`,
//! `catch_up.rs`, `membership.rs`, `copies.rs`, `slow.rs`, `mode_a.rs` (mode A), `mode_b.rs` (mode
//! B), `copy.rs`, `background.rs`, `scrub.rs` with `findings.rs`; `attachment/` (nodes that have
//! the devices and no replica).

mod attachment;
mod background;
mod catch_up;
mod commit;
mod compare;
mod copies;
mod copy;
mod findings;
mod in_flight;
mod interface;
mod log;
mod membership;
mod mend;
mod mode_a;
mod mode_b;
mod peer;
mod progress;
mod promote;
mod repair;
mod scrub;
mod sealed;
mod secondary;
mod sequence;
mod sizes;
mod slow;
mod snapshots;
mod status;
#[cfg(test)]
mod tests;

pub use attachment::{AttachedClients, Client, ClientConfig, ClientEffect, ClientEvent};
pub use copies::Short;
pub use findings::{FINDINGS_MAX, ScrubReport};
pub use interface::{Effect, Event, Op, ReplicaConfig, RequestError, RequestId};
pub use mend::Mended;
pub use scrub::{ScrubOrder, ScrubTotals};
pub use sealed::Lag;
pub use status::{PeerCounts, PeerStatus, Status};

use crate::attachment::Marks;
use crate::background::Background;
use crate::copies::Shortage;
use crate::log::Log;
use crate::peer::{Link, Peer};
use crate::scrub::Scrub;
use crate::secondary::Session;
use crate::sequence::Sequence;
use crate::sizes::Sizes;
use crate::slow::OwnPace;
use crate::snapshots::Snapshots;
use mainstay_codec::{Envelope, LogState, Message};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Chain, ClientMark, Epoch, Incarnation, Index, NodeId, Position, ResourceRecord, Role, SlowLimits,
    SnapshotId, Time, reach,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Work of the store on the own log, besides appending.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Busy {
    Cut,
    Restart { at: Position, chain: Chain, volumes: Vec<u64>, snapshots: Vec<SnapshotId>, client: ClientMark },
}

/// Why a replica is [`Role::Fenced`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fence {
    StoreFailed,
    /// Named primary in an epoch in which it may have sequenced before this process began.
    Restarted,
    /// Named primary without being a whole member of the ISS.
    NotEligible,
    /// This replica led, and another member knows entries to be committed that this one lacks.
    Older,
    /// Named primary, but the record counts on its memory of before it was opened (mode B).
    Unproven,
    /// A higher epoch exists. The record will tell the role of this replica in it.
    Outlived,
    /// The lease of its node ended while it led.
    LeaseEnded,
    Demoted,
}

/// One replica of one resource, in whatever role.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    now: Time,
    log: Log,
    /// Bytes that the journal takes now, the reserve not counted, and counted.
    room: u64,
    room_with_reserve: u64,
    busy: Option<Busy>,
    /// Extents given to the store and not installed yet.
    installing: u32,
    /// The highest epoch whose promise is durable, and the highest one asked of the store.
    promised: Epoch,
    promise_wanted: Epoch,
    /// Epoch that this process has promised before it had a primary. The process has sequenced
    /// nothing in it.
    promise_ahead: Option<Epoch>,
    record: Option<ResourceRecord>,
    connected: BTreeSet<NodeId>,
    role: Role,
    fence: Option<Fence>,
    /// Whether this replica led although another member knows entries to be committed that it
    /// lacks. It does not lead again until the primary of a later epoch has attached it.
    older: bool,
    failed: bool,
    /// Whether this replica is about to be closed. It follows no primary any more.
    closed: bool,
    /// When the control plane was last asked to relieve this replica, on which version.
    relief_asked: Option<(mainstay_types::ConfigVersion, Time)>,
    /// The same for the instance in which its memory counts.
    own_memory_asked: Option<(mainstay_types::ConfigVersion, Time)>,
    /// Users of the devices know that they have to flush.
    cached: bool,
    /// Index up to which this replica, as a primary, has acknowledged entries from memory.
    answered: Index,
    /// Session with the primary, on a secondary.
    session: Option<Session>,
    /// Epoch that this replica leads as a primary. The next fields belong to it: the index of its
    /// epoch start once the epoch has begun, the others, the requests.
    epoch: Epoch,
    epoch_start: Option<Index>,
    peers: BTreeMap<NodeId, Peer>,
    /// How long the own journal takes.
    own: OwnPace,
    /// Limits of the record for slow members.
    slow_limits: SlowLimits,
    sequence: Sequence,
    copies: Shortage,
    background: Background,
    scrub: Scrub,
    /// Since when a peer has not been told the commit index.
    commit_owed: Option<Time>,
    paused: bool,
    pause_wanted: bool,
    effects: VecDeque<Effect>,
    /// Scratch list of the nodes that are about to be told something. Empty between events, kept
    /// for its capacity.
    told: Vec<NodeId>,
}

impl Replica {
    /// A replica as its store found it.
    #[must_use]
    pub fn new(config: ReplicaConfig, promised: Epoch, log: LogState) -> Self {
        let sizes = Sizes::new(config.volumes.clone(), config.resizes_ahead.clone());
        let snapshots = Snapshots::new(config.snapshots.clone(), config.snapshots_ahead.clone());
        let clients = Marks::new(config.client, config.clients_ahead.clone());
        let background = Background::new(config.copy_extents_max);
        Self {
            config,
            now: Time(0),
            log: Log::new(log, sizes, snapshots, clients),
            room: 0,
            room_with_reserve: 0,
            busy: None,
            installing: 0,
            promised,
            promise_wanted: promised,
            promise_ahead: None,
            record: None,
            connected: BTreeSet::new(),
            role: Role::Secondary,
            fence: None,
            older: false,
            failed: false,
            closed: false,
            relief_asked: None,
            own_memory_asked: None,
            cached: false,
            answered: Index(0),
            session: None,
            epoch: Epoch(0),
            epoch_start: None,
            peers: BTreeMap::new(),
            own: OwnPace::default(),
            slow_limits: SlowLimits::default(),
            sequence: Sequence::default(),
            copies: Shortage::default(),
            background,
            scrub: Scrub::default(),
            commit_owed: None,
            paused: false,
            pause_wanted: false,
            effects: VecDeque::new(),
            told: Vec::new(),
        }
    }

    /// Takes in what happened at `now`.
    pub fn handle(&mut self, now: Time, event: Event) {
        self.now = self.now.max(now);
        match event {
            Event::Record(record) => self.on_record(*record),
            Event::PeerUp { node } => self.on_peer_up(node),
            Event::PeerDown { node } => self.on_peer_down(node),
            Event::Message { from, envelope } => self.on_message(from, envelope),
            Event::Request { id, op } => self.on_request(id, op, ClientMark::default()),
            Event::ClientRequest { id, op, mark } => self.on_request(id, op, mark),
            Event::StoreFailed => self.on_store_failed(),
            Event::Demote => self.on_demote(),
            Event::LeaseEnded => self.on_lease_ended(),
            Event::Pause => {
                reach!("replica: pause");
                self.paused = self.leading();
                self.pause_wanted = self.paused;
            }
            Event::Resume => {
                reach!("replica: resume");
                self.paused = false;
                self.pause_wanted = false;
            }
            Event::Close => self.on_close(),
            Event::Tick => {}
            Event::Cached(cached) => self.cached = cached,
            Event::SnapshotsHeld(held) => self.log.snapshots.set_held(held),
            Event::BackgroundRate { bytes_per_s } => self.background.set_max_rate(bytes_per_s),
            // R13: answers of a failed store do not count.
            _ if self.failed => {}
            Event::Room { bytes, with_reserve } => {
                self.room = bytes;
                self.room_with_reserve = with_reserve;
                self.append_held();
            }
            Event::Durable { index, began, next } => self.on_durable(index, began, next),
            Event::Promised { epoch } => self.promised = self.promised.max(epoch),
            Event::CutDone { end, chain } => self.on_cut_done(end, chain),
            Event::Restarted { at } => self.on_restarted(at),
            Event::ExtentSummed { volume, extent, at, held } => {
                self.on_extent_summed((volume, extent), at, held);
            }
            Event::ExtentInstalled { volume, extent } => self.on_extent_installed(volume, extent),
            Event::Scrub(order) => self.on_scrub(order),
            Event::Scrubbed { at, held } => self.on_scrubbed(at, held),
            Event::Mend { volume, extent } => self.on_mend(volume, extent),
            Event::BlocksLoaded { range, data } => self.on_blocks_loaded(range, data),
            Event::CopyFinished => self.on_copy_finished(),
            Event::LogLoaded { peer, from, batches } => self.on_log_loaded(peer, from, batches),
            Event::ExtentList { peer, extents } => self.on_extent_list(peer, extents),
            Event::ExtentLoaded { peer, volume, extent, version, at, data, damaged } => {
                self.on_extent_loaded(peer, (volume, extent), version, at, (data, damaged));
            }
        }
        self.settle();
    }

    /// Returns the next effect to carry out, in order. Call it until it returns `None`.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Event::Tick`] is wanted; `None` when nothing is timed: an idle resource costs no
    /// wake-ups.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadline()
    }

    /// Takes the steps that the event made possible.
    fn settle(&mut self) {
        self.continue_attach();
        self.continue_promotion();
        self.review();
        if self.leading() {
            self.watch_copies();
            self.answer_from_memory();
            self.continue_scrub();
            self.seal();
            self.tell_commit();
            self.report_pause();
            self.continue_demotion();
            self.continue_background();
        }
    }

    fn on_message(&mut self, from: NodeId, envelope: Envelope) {
        if envelope.resource != self.config.resource {
            return;
        }
        match &envelope.message {
            // The program that runs this replica handles these: the connections of nodes, and
            // clients.
            Message::Hello { .. }
            | Message::Ping
            | Message::Pong
            | Message::ClientAsk(_)
            | Message::ClientAnswer(_) => {}
            Message::Attach
            | Message::Cut { .. }
            | Message::Append(_)
            | Message::Commit { .. }
            | Message::CopyBegin { .. }
            | Message::CopyAsk { .. }
            | Message::CopyExtent { .. }
            | Message::CopyEnd { .. }
            | Message::ReadBlocks { .. } => self.on_primary_message(from, envelope),
            Message::Rejected(reject) => {
                if self.leading() && envelope.epoch == self.epoch {
                    self.on_rejected(from, *reject);
                }
            }
            _ => self.on_reply(from, envelope),
        }
    }

    /// A replica answers. Counts only in this epoch and from the disk content that was meant (R1,
    /// R9).
    fn on_reply(&mut self, from: NodeId, envelope: Envelope) {
        let expected = self.peers.get(&from).map(|peer| peer.member.incarnation);
        let same_disk = expected == Some(envelope.incarnation) || planted(Bug::DiskNotChecked);
        if !self.leading() || envelope.epoch != self.epoch || !same_disk {
            reach!("replica: an answer does not count any more");
            return;
        }
        match envelope.message {
            Message::AttachReply(state) => self.on_attach_reply(from, &state),
            Message::CutReply { end } => self.on_cut_reply(from, end),
            Message::Ack { durable } => self.on_ack(from, durable),
            Message::Received { instance, index } => self.on_received(from, instance, index),
            Message::CopyBeginReply { at, sums } => self.on_copy_begin_reply(from, at, sums),
            Message::CopyHeld { at, volume, extent, held } => {
                self.on_copy_held(from, at, (volume, extent), held);
            }
            Message::CopyExtentAck { volume, extent } => self.on_copy_extent_ack(from, (volume, extent)),
            Message::CopyEndReply => self.on_copy_end_reply(from),
            Message::ScrubSums { at, held } => self.on_sums(from, at, held),
            Message::BlocksRead { range, data } => self.on_blocks_read(from, range, &data),
            _ => {}
        }
    }

    fn on_peer_up(&mut self, node: NodeId) {
        if !self.connected.insert(node) {
            reach!("replica: a peer that is up connects again");
            self.on_peer_down(node);
            self.connected.insert(node);
        }
        self.attach_connected();
    }

    fn on_peer_down(&mut self, node: NodeId) {
        self.connected.remove(&node);
        if let Some(peer) = self.peers.get_mut(&node)
            && !matches!(peer.link, Link::Down)
        {
            reach!("replica: a peer's connection is lost");
            peer.forget_held();
            peer.diverged = None;
            peer.slow.disconnected();
            peer.set_link(Link::Down, self.now);
        }
    }

    /// Whether this replica is, or is about to be, the primary of `self.epoch`.
    fn leading(&self) -> bool {
        matches!(self.role, Role::Promoting | Role::Primary)
    }

    /// Whether the epoch start is committed.
    fn serving(&self) -> bool {
        self.role == Role::Primary
    }

    fn set_role(&mut self, role: Role) {
        if self.role != role {
            if role != Role::Primary {
                self.interrupt_scrub();
            }
            self.role = role;
            self.effects.push_back(Effect::RoleChanged(role));
        }
    }

    /// Speaks as primary, to the disk content that the record names.
    fn send_as_primary(&mut self, to: NodeId, message: Message) {
        let Some(peer) = self.peers.get(&to) else { return };
        let incarnation = peer.member.incarnation;
        self.send(to, self.epoch, incarnation, message);
    }

    fn send(&mut self, to: NodeId, epoch: Epoch, incarnation: Incarnation, message: Message) {
        let (resource, version) = (self.config.resource, self.version());
        let envelope = Envelope { resource, epoch, version, incarnation, message };
        self.effects.push_back(Effect::Send { to, envelope });
    }
}
