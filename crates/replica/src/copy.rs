//! Extent copy (R16): how a replica becomes whole when the journal no longer reaches back to it.
//!
//! The source fixes its commit position C, and from then on streams every entry after C. Beside the
//! stream it sends each extent that changed since the target's `base`, with the committed content
//! that the extent has when it is read. Content that is newer than C is harmless: the entries that
//! made it are in the target's log and give the same bytes again. The target is whole once its log
//! is committed up to the newest content that it was sent (P42).
//!
//! A target that once had the volumes is asked first for the sums of its blocks of an extent. It
//! gets only the blocks that differ (`compare.rs`).
//!
//! A block that no replica holds whole is sent as damaged. A target that has checksums holds it as
//! damaged too ([ADR 15](../../../docs/adr/0015-damage-is-copied.md)).

use crate::compare::{Comparing, kept_blocks, without};
use crate::peer::Link;
use crate::progress::Progress;
use crate::sizes::extent_bytes;
use crate::{Effect, Replica};
use bytes::Bytes;
use mainstay_codec::{BlockSums, Message, Reject};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Extent, Index, NodeId, Position, Time, VolumeId, reach};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

type ExtentId = (VolumeId, Extent);

/// A copy, at its source.
#[derive(Debug)]
pub(crate) struct CopySource {
    /// Where the target's log was restarted. Content older than this is useless, because the
    /// entries up to here are not streamed.
    at: Position,
    /// Sizes of the volumes at that position. Content beyond them is in the log after it, as a
    /// whole.
    volumes: Vec<u64>,
    /// Extents not asked for yet; `None` until they are listed.
    todo: Option<VecDeque<ExtentId>>,
    /// Extents whose sums the target was asked for.
    asked: BTreeSet<ExtentId>,
    /// Extents asked of the store, with the target's sums if the target has sent them.
    loading: BTreeMap<ExtentId, BlockSums>,
    /// Sent, not installed yet.
    sending: BTreeSet<ExtentId>,
    pub progress: Progress,
    /// Newest commit index among the content sent.
    need: Index,
    /// `CopyEnd` was sent.
    ending: bool,
    /// The target can hold a block as damaged.
    holds_damage: bool,
    /// Whether it pays to ask the target for its sums. `None`: the target holds nothing.
    comparing: Option<Comparing>,
}

impl CopySource {
    /// `base`: as of which index the target had the volumes.
    fn new(at: Position, volumes: Vec<u64>, holds_damage: bool, base: Index, now: Time) -> Self {
        Self {
            at,
            volumes,
            todo: None,
            asked: BTreeSet::new(),
            loading: BTreeMap::new(),
            sending: BTreeSet::new(),
            progress: Progress::begin(0, now),
            need: at.index,
            ending: false,
            holds_damage,
            comparing: (base > Index(0)).then(Comparing::default),
        }
    }

    /// Extents asked for and not installed yet.
    pub fn under_way(&self) -> usize {
        self.asked.len() + self.loading.len() + self.sending.len()
    }
}

/// A copy, at its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyTarget {
    Copying,
    /// `CopyEnd` has come; the store finishes.
    Ending,
}

impl Replica {
    /// Begins a copy to a stale peer, unless commits wait for it: such a peer must leave the ISS
    /// first, because a target is not promotable until it is whole.
    pub(crate) fn begin_copy(&mut self, node: NodeId) {
        let now = self.now;
        // Before the epoch start is committed the chain at the commit index may not be known.
        let begin = if planted(Bug::CopyFromEnd) {
            Some((self.log.end, self.log.chain))
        } else {
            self.log.commit_mark()
        };
        let Some(mark) = begin.filter(|_| self.serving()) else { return };
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.required() || !matches!(peer.link, Link::Stale) {
            reach!("replica: a copy must wait until its target is not required");
            return;
        }
        reach!("replica: a copy begins");
        let (at, chain) = mark;
        let volumes = self.log.sizes.committed().to_vec();
        peer.durable = Index(0);
        peer.set_link(Link::Beginning { at, volumes: volumes.clone() }, now);
        let snapshots = self.log.snapshots.committed();
        let client = self.log.clients.committed();
        self.send_as_primary(node, Message::CopyBegin { at, chain, volumes, snapshots, client });
    }

    pub(crate) fn on_copy_begin_reply(&mut self, from: NodeId, at: Position, sums: bool) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let Link::Beginning { at: asked, volumes } = &mut peer.link else { return };
        if *asked != at {
            return;
        }
        let volumes = std::mem::take(volumes);
        peer.damaged = false;
        let base = peer.base;
        peer.start_stream(at, Some(Box::new(CopySource::new(at, volumes, sums, base, now))), now);
        peer.lists_pending += 1;
        reach!("replica: the target of a copy has restarted its log");
        let newer_than = if planted(Bug::CopyListsNothing) { at.index } else { base };
        self.effects.push_back(Effect::ListExtents { peer: from, newer_than });
        self.pump(from);
    }

    pub(crate) fn on_extent_list(&mut self, node: NodeId, extents: Vec<ExtentId>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.lists_pending = peer.lists_pending.saturating_sub(1);
        if peer.lists_pending > 0 {
            // The answer to an older question: it lacks the extents that changed between that
            // question and the present copy.
            reach!("replica: a list of extents for an earlier copy");
            return;
        }
        let now = self.now;
        let Some(copy) = peer.stream().and_then(|stream| stream.copy.as_mut()) else { return };
        if copy.todo.is_none() {
            let within = |&(volume, extent): &ExtentId| extent_bytes(&copy.volumes, volume, extent) > 0;
            let todo: VecDeque<_> = extents.into_iter().filter(within).collect();
            copy.progress = Progress::begin(todo.len() as u64, now);
            copy.todo = Some(todo);
            self.pump_copy(node);
        }
    }

    /// The target answers with the sums of its blocks of an extent.
    pub(crate) fn on_copy_held(&mut self, from: NodeId, at: Position, id: ExtentId, held: BlockSums) {
        let asked = |copy: &mut CopySource| {
            let counts = copy.at == at && copy.asked.remove(&id);
            if counts {
                copy.loading.insert(id, held);
            }
            counts
        };
        if !self.copy_source(from).is_some_and(asked) {
            reach!("replica: what was held is told of an earlier copy");
            return;
        }
        let (volume, extent) = id;
        self.effects.push_back(Effect::LoadExtent { peer: from, volume, extent });
    }

    pub(crate) fn on_extent_loaded(
        &mut self,
        node: NodeId,
        id: ExtentId,
        version: Index,
        at: Index,
        (mut data, mut damaged): (Bytes, Vec<u32>),
    ) {
        let commit = self.log.commit;
        let Some(copy) = self.copy_source(node) else { return };
        // Content older than the copy was read for an earlier one.
        let old = at < copy.at.index && !planted(Bug::StaleExtent);
        let Some(held) = (!old).then(|| copy.loading.remove(&id)).flatten() else {
            reach!("replica: an extent was read for an earlier copy");
            return;
        };
        copy.sending.insert(id);
        let len = extent_bytes(&copy.volumes, id.0, id.1);
        data.truncate(len as usize);
        damaged.retain(|&block| u64::from(block) < len / BLOCK_BYTES);
        let kept = kept_blocks(&data, &damaged, &held);
        let unsent = if data.is_empty() { EXTENT_BYTES } else { kept.len() as u64 * BLOCK_BYTES };
        self.background.refund(unsent);
        let Some(copy) = self.copy_source(node) else { return };
        if let Some(comparing) = copy.comparing.as_mut().filter(|_| !held.sums.is_empty()) {
            comparing.note(len / BLOCK_BYTES, kept.len() as u64);
        }
        let data = without(data, &kept);
        if !planted(Bug::CopyNeedsNothing) {
            // The content was read at some moment after `at`: it may hold entries that were
            // committed until now.
            copy.need = copy.need.max(at).max(commit);
        }
        let (volume, extent) = id;
        self.send_as_primary(node, Message::CopyExtent { volume, extent, version, at, data, damaged, kept });
    }

    pub(crate) fn on_copy_extent_ack(&mut self, from: NodeId, id: ExtentId) {
        let now = self.now;
        let Some(copy) = self.copy_source(from) else { return };
        if copy.sending.remove(&id) {
            copy.progress.step(now);
            self.pump_copy(from);
        }
    }

    pub(crate) fn on_copy_end_reply(&mut self, from: NodeId) {
        let Some(copy) = self.copy_source(from) else { return };
        if !copy.ending {
            return;
        }
        reach!("replica: a copy is done");
        let need = copy.need;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.base = peer.base.max(need);
        if let Some(stream) = peer.stream() {
            stream.copy = None;
        }
    }

    /// Whether this node is being copied to, and can hold a block as damaged.
    #[must_use]
    pub fn holds_damage(&self, node: NodeId) -> bool {
        let copy = self.peers.get(&node).and_then(|peer| match &peer.link {
            Link::Streaming(stream) => stream.copy.as_deref(),
            _ => None,
        });
        copy.is_some_and(|copy| copy.holds_damage) && !planted(Bug::DamageHoldsUpCopies)
    }

    fn copy_source(&mut self, node: NodeId) -> Option<&mut CopySource> {
        self.peers.get_mut(&node)?.stream()?.copy.as_deref_mut()
    }

    /// Asks for the next extents, as many as clients and limits allow; ends the copy when there are
    /// none.
    pub(crate) fn pump_copy(&mut self, node: NodeId) {
        let more = |copy: &CopySource| copy.todo.as_ref().is_some_and(|todo| !todo.is_empty());
        let (mut load, mut ask) = (Vec::new(), Vec::new());
        while self.copy_source(node).is_some_and(|copy| more(copy)) {
            let (share, now) = (self.copy_share(), self.now);
            let Some(copy) = self.copy_source(node).filter(|copy| copy.under_way() < share) else { break };
            let Some(id) = copy.todo.as_mut().and_then(VecDeque::pop_front) else { break };
            if copy.comparing.as_mut().is_some_and(Comparing::asks) {
                copy.asked.insert(id);
                ask.push((copy.at, id));
            } else {
                copy.loading.insert(id, BlockSums::default());
                load.push(id);
            }
            self.background.spend(now, EXTENT_BYTES, false);
        }
        let Some(copy) = self.copy_source(node).filter(|copy| copy.todo.is_some()) else { return };
        let over = !more(copy) && copy.under_way() == 0 && !copy.ending;
        let need = copy.need;
        copy.ending |= over;
        for (at, (volume, extent)) in ask {
            self.send_as_primary(node, Message::CopyAsk { at, volume, extent });
        }
        for (volume, extent) in load {
            self.effects.push_back(Effect::LoadExtent { peer: node, volume, extent });
        }
        if over {
            reach!("replica: every extent of a copy is sent");
            self.send_as_primary(node, Message::CopyEnd { need });
        }
    }

    // The target.

    pub(crate) fn on_copy_ask(&mut self, (volume, extent): ExtentId, at: Position) {
        let copying = self.session.as_ref().is_some_and(|session| session.copy == Some(CopyTarget::Copying));
        if !copying || self.busy.is_some() {
            return self.reject(Reject::Gap(self.log.end));
        }
        reach!("replica: an extent is summed before it is copied");
        self.effects.push_back(Effect::SumExtent { volume, extent, at });
    }

    pub(crate) fn on_extent_summed(&mut self, (volume, extent): ExtentId, at: Position, held: BlockSums) {
        if self.session.as_ref().is_some_and(|session| session.copy == Some(CopyTarget::Copying)) {
            self.answer(Message::CopyHeld { at, volume, extent, held });
        }
    }

    pub(crate) fn on_copy_extent(
        &mut self,
        id: ExtentId,
        version: Index,
        data: Bytes,
        damaged: Vec<u32>,
        kept: Vec<u32>,
    ) {
        let (volume, extent) = id;
        let len = self.log.sizes.extent_bytes(volume, extent);
        let sent = (len / BLOCK_BYTES).checked_sub(kept.len() as u64).map(|blocks| blocks * BLOCK_BYTES);
        let inside = kept.last().is_none_or(|&last| u64::from(last) < len / BLOCK_BYTES)
            && !kept.iter().any(|block| damaged.binary_search(block).is_ok());
        let whole = len > 0 && inside && (data.is_empty() || Some(data.len() as u64) == sent);
        // A replica without checksums has told its primary so.
        let within =
            damaged.last().is_none_or(|&last| self.config.sums && u64::from(last) < len / BLOCK_BYTES);
        let copying = self.session.as_ref().is_some_and(|session| session.copy == Some(CopyTarget::Copying));
        if !whole || !within || !copying || self.busy.is_some() {
            reach!("replica: an extent that does not fit here");
            self.reject(Reject::Gap(self.log.end));
            return;
        }
        reach!("replica: an extent is installed");
        if !damaged.is_empty() {
            reach!("replica: an extent is installed in which blocks are damaged everywhere");
        }
        if !kept.is_empty() {
            reach!("replica: an extent is installed but for the blocks that are here");
        }
        self.installing += 1;
        self.effects.push_back(Effect::InstallExtent { volume, extent, version, data, damaged, kept });
    }

    pub(crate) fn on_extent_installed(&mut self, volume: VolumeId, extent: Extent) {
        self.installing = self.installing.saturating_sub(1);
        if self.session.as_ref().is_some_and(|session| session.copy.is_some()) {
            self.answer(Message::CopyExtentAck { volume, extent });
        }
    }

    pub(crate) fn on_copy_end(&mut self, need: Index) {
        let Some(session) = self.session.as_mut() else { return };
        if session.copy == Some(CopyTarget::Copying) {
            session.copy = Some(CopyTarget::Ending);
            self.effects.push_back(Effect::FinishCopy { need });
            if planted(Bug::CopyEndsEarly) {
                self.answer(Message::CopyEndReply);
            }
        }
    }

    pub(crate) fn on_copy_finished(&mut self) {
        self.log.data = mainstay_types::DataState::Consistent;
        let Some(session) = self.session.as_mut() else { return };
        if session.copy == Some(CopyTarget::Ending) {
            reach!("replica: the target of a copy is whole");
            session.copy = None;
            self.answer(Message::CopyEndReply);
            self.tell_received();
        }
    }
}
