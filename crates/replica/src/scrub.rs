//! Scrubbing (R17, [ADR 11](../../../docs/adr/0011-scrub.md)): the primary compares its replicas
//! extent by extent, and repairs what differs.
//!
//! ```text
//!            ┌────────────── sums are lacking: again, a few times ──────────────┐
//!            ▼                                                                  │
//! admitted ─▶ sealed ─▶ committed: who applies it sums each block ─▶ all have answered ─▶ judged ─▶ done
//!                                                                                            │       ▲
//!                                              differences, with repair: the right content ◀─┘       │
//!                                              is read and compared with its sums ─▶ written anew ───┘
//! ```
//!
//! - All sums are as of one entry, so a difference is a fault of a disk or of this program, never
//!   of timing.
//! - A repair is an ordinary write of the content that was right as of the entry. It must not come
//!   after anything newer. So the primary notes which blocks clients change from the admission of
//!   the entry on, and leaves these blocks out. After a rollback it leaves out all blocks. Requests
//!   are sequenced in the order of their admission, so no change is missed.
//! - Content from any replica counts only if its sums are the right ones.
//! - The extents under way are a share of the background's window, as those of a copy are, and so
//!   yield to clients. They also have a limit of their own. Everything is bounded (R18): extents
//!   under way, findings, blocks that are read for another replica.
//! - A scrub does not wait for a replica that lags or is the target of a copy: it counts as not
//!   compared. It waits for no replica longer than [`WAIT_MS`].
//! - A scrub ends with the role of its primary. Its repairs stay. The other extents were not looked
//!   at.
//!
//! For the repairs themselves see `repair.rs`. Extents in which a read has found damage go the same
//! way: `mend.rs`.

use crate::findings::{Difference, FINDINGS_MAX, Held, ScrubReport, compare};
use crate::mend::{Mended, Mends};
use crate::peer::{Link, Peer};
use crate::progress::Progress;
use crate::repair::{Repair, Repairs};
use crate::{Replica, RequestId};
use bytes::Bytes;
use mainstay_codec::{Batch, BlockSums, EntryKind, Message};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BLOCK_BYTES, ClientMark, EXTENT_BYTES, Extent, Index, NodeId, Range, Role, ScrubFinding, ScrubOutcome,
    ScrubRepair, ScrubState, Time, VolumeId, reach,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most extents under way, of which a host reads a few at a time. When half of as many as may be
/// are, others follow together: their entries are one batch, which every journal writes and flushes
/// once.
const UNDER_WAY_MAX: usize = 16;
/// Longest wait for other replicas after the primary has read an extent.
pub(crate) const WAIT_MS: u64 = 10_000;
/// Number of times that an extent is scrubbed whose sums are not all there.
pub(crate) const TRIES: u8 = 3;
/// Journal bytes that are left to clients.
const ROOM_MIN: u64 = 16 * BLOCK_BYTES;
const EXTENT_BLOCKS: usize = (EXTENT_BYTES / BLOCK_BYTES) as usize;

/// Order for a scrub: what to repair, and how fast to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubOrder {
    pub repair: ScrubRepair,
    /// Bytes per second and replica; 0: no limit but the background's.
    pub rate: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Scrub {
    run: Option<Run>,
    /// Extents under way: those of the run and those that are mended.
    pub flights: Vec<Flight>,
    pub mends: Mends,
    pub repairs: Repairs,
    pub report: Option<ScrubReport>,
    /// Runs that were begun.
    begun: u64,
    pub totals: ScrubTotals,
}

/// Totals of all scrubs and mends of this replica as primary. `extents` counts extents, the other
/// fields blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubTotals {
    pub extents: u64,
    pub different: u64,
    pub repaired: u64,
    pub overwritten: u64,
    /// Blocks that were written anew because a read had found damage.
    pub mended: u64,
}

#[derive(Debug)]
struct Run {
    order: ScrubOrder,
    /// The next extent; none when all were begun.
    next: Option<(VolumeId, Extent)>,
    again: VecDeque<(Range, u8)>,
    progress: Progress,
    /// Before this time the limit allows nothing more.
    paid_until: Time,
    /// Number of admitted repairs. The run is done when as many have ended.
    written: u64,
}

/// One extent under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub range: Range,
    /// Since when a read waits for it; none if it is of the run.
    pub mends: Option<Time>,
    pub tries: u8,
    /// Its entry, once it is sealed.
    pub at: Option<Index>,
    /// When its own sums came.
    since: Option<Time>,
    /// Blocks that were changed since its entry was admitted.
    pub touched: [bool; EXTENT_BLOCKS],
    /// Replicas that have not answered yet.
    waits: BTreeSet<NodeId>,
    pub sums: BTreeMap<NodeId, Held>,
    /// Whether a replica owed its sums and did not send them.
    lacking: bool,
    /// None before it is judged.
    pub repairs: Option<VecDeque<Repair>>,
    /// Outcome for the read that waits, if the content for a repair could not be had.
    pub given_up: Option<Mended>,
}

impl Scrub {
    pub fn runs(&self) -> bool {
        self.run.is_some()
    }

    /// Extents of the run that are under way.
    pub fn under_way(&self) -> usize {
        self.flights.iter().filter(|flight| flight.mends.is_none()).count()
    }

    /// Whether there is anything to do as primary.
    pub fn busy(&self) -> bool {
        self.run.is_some() || !self.flights.is_empty() || !self.mends.none()
    }

    /// Notes that a client changes `range`: its new content is newer than all scrub entries that
    /// were admitted before.
    pub fn changed(&mut self, kind: EntryKind, range: Range) {
        if self.flights.is_empty() {
            return;
        }
        match kind {
            EntryKind::Write | EntryKind::Discard | EntryKind::WriteZeroes => {}
            EntryKind::Rollback => {
                reach!("replica: a rollback makes all that a scrub found old");
                return self.flights.iter_mut().for_each(|flight| flight.touched.fill(true));
            }
            EntryKind::EpochStart
            | EntryKind::Resize
            | EntryKind::Snapshot
            | EntryKind::DropSnapshot
            | EntryKind::Scrub => return,
        }
        for flight in self.flights.iter_mut().filter(|flight| flight.range.overlaps(range)) {
            let first = flight.range.first_block();
            let from = range.first_block().saturating_sub(first) as usize;
            let to = (range.end_block() - first).min(EXTENT_BLOCKS as u64) as usize;
            flight.touched[from..to].fill(true);
        }
    }

    /// A batch of this primary has its place in the log.
    pub fn sealed(&mut self, batch: &Batch) {
        if self.flights.is_empty() {
            return;
        }
        for (index, entry) in (batch.first.0..).map(Index).zip(&batch.entries) {
            if entry.kind != EntryKind::Scrub {
                continue;
            }
            let mut waiting = self.flights.iter_mut().filter(|flight| flight.at.is_none());
            if let Some(flight) = waiting.find(|flight| flight.range == entry.range) {
                flight.at = Some(index);
            }
        }
    }

    /// The newest committed entry for which a replica still owes its sums.
    pub fn awaited(&self, commit: Index) -> Option<Index> {
        let owed = self.flights.iter().filter(|flight| !flight.waits.is_empty());
        owed.filter_map(|flight| flight.at.filter(|at| *at <= commit)).max()
    }

    fn end(&mut self, state: ScrubState, now: Time) {
        self.flights.retain(|flight| flight.mends.is_some());
        let (Some(_), Some(report)) = (self.run.take(), &mut self.report) else { return };
        for finding in report.findings.iter_mut().filter(|finding| finding.outcome == ScrubOutcome::Repairing)
        {
            finding.outcome = ScrubOutcome::Failed;
        }
        (report.state, report.ended, report.left_ms) = (state, Some(now), None);
    }
}

impl Replica {
    /// The last scrub of this replica as primary, or the one that is under way.
    #[must_use]
    pub fn scrub_report(&self) -> Option<&ScrubReport> {
        self.scrub.report.as_ref()
    }

    /// Returns the totals of scrubs and mends since this replica was opened.
    #[must_use]
    pub fn scrub_totals(&self) -> ScrubTotals {
        self.scrub.totals
    }

    #[must_use]
    pub fn scrubs(&self) -> bool {
        self.scrub.runs()
    }

    /// Begins a scrub, or ends the one that is under way. It begins none if this is not a primary
    /// that serves, or if a scrub is under way already.
    pub(crate) fn on_scrub(&mut self, order: Option<ScrubOrder>) {
        let Some(order) = order else {
            reach!("replica: a scrub is stopped");
            return self.scrub.end(ScrubState::Stopped, self.now);
        };
        if !self.serving() || self.scrub.runs() {
            return;
        }
        reach!("replica: a scrub begins");
        let sizes = self.log.sizes.committed();
        let extents = sizes.iter().map(|bytes| bytes.div_ceil(EXTENT_BYTES)).sum();
        self.scrub.begun += 1;
        self.scrub.report = Some(ScrubReport {
            epoch: self.epoch(),
            ordinal: self.scrub.begun,
            state: ScrubState::Running,
            repair: order.repair,
            rate: order.rate,
            began: self.now,
            ended: None,
            extents,
            done: 0,
            compared: BTreeMap::new(),
            uncompared: 0,
            different: 0,
            repaired: 0,
            overwritten: 0,
            findings: Vec::new(),
            from: Index(0),
            to: Index(0),
            left_ms: None,
        });
        self.scrub.run = Some(Run {
            order,
            next: Some((VolumeId(0), Extent(0))),
            again: VecDeque::new(),
            progress: Progress::begin(extents, self.now),
            paid_until: self.now,
            written: 0,
        });
    }

    /// A replica that does not lead any more does not compare.
    pub(crate) fn interrupt_scrub(&mut self) {
        if self.scrub.runs() {
            reach!("replica: a scrub ends with the role");
            self.scrub.end(ScrubState::Interrupted, self.now);
        }
        self.scrub.flights.clear();
        self.scrub.mends.clear();
    }

    /// Goes on with the scrub and the mends, as far as possible now.
    pub(crate) fn continue_scrub(&mut self) {
        if !self.scrub.busy() || self.role != Role::Primary {
            return;
        }
        self.forget_silent();
        self.judge_flights();
        self.pump_repairs();
        self.continue_mends();
        let mut follows = false;
        while let Some((range, tries)) = self.next_to_scrub(follows) {
            self.begin_flight(range, tries, None);
            follows = true;
        }
        let Some(run) = &self.scrub.run else { return };
        let begun_all = run.next.is_none() && run.again.is_empty();
        if begun_all && self.scrub.under_way() == 0 && self.scrub.repairs.ended(run.written) {
            reach!("replica: a scrub is done");
            self.scrub.end(ScrubState::Done, self.now);
        }
    }

    /// When [`continue_scrub`](Self::continue_scrub) has something to do though nothing happens.
    pub(crate) fn scrub_deadline(&self) -> Option<Time> {
        let waits = |flight: &Flight| {
            let repairs = flight.repairs.iter().flatten().filter_map(|repair| repair.due(self.now));
            let since = flight.since.filter(|_| !flight.waits.is_empty());
            since.map(|at| at.plus_ms(WAIT_MS)).into_iter().chain(repairs).min()
        };
        let paid = |run: &Run| {
            let more = run.next.is_some() || !run.again.is_empty();
            Some(run.paid_until).filter(|at| more && *at > self.now)
        };
        let mends = self.scrub.mends.deadline(self.now);
        let flights = self.scrub.flights.iter().filter_map(waits);
        flights.chain(self.scrub.run.as_ref().and_then(paid)).chain(mends).min()
    }

    /// The next extent, if one may be begun now. `follows`: another has been begun just now.
    fn next_to_scrub(&mut self, follows: bool) -> Option<(Range, u8)> {
        let run = self.scrub.run.as_ref()?;
        let more = run.next.is_some() || !run.again.is_empty();
        // A journal with little room is left to clients. If they want nothing, the scrub goes on,
        // because nothing else would make room.
        let little = self.room < ROOM_MIN && !self.sequence.nothing_open();
        let blocked = self.scrub_blocked() || run.paid_until > self.now || little;
        let under_way = self.scrub.under_way();
        if !more || blocked || under_way >= UNDER_WAY_MAX {
            return None;
        }
        let share = self.copy_share().min(UNDER_WAY_MAX);
        if under_way >= (if follows { share } else { share.min(share / 2 + 1) }) {
            return None;
        }
        let sizes = self.log.sizes.committed();
        let run = self.scrub.run.as_mut()?;
        if let Some(again) = run.again.pop_front() {
            return Some(again);
        }
        let (mut volume, mut extent) = run.next?;
        while let Some(&bytes) = sizes.get(usize::from(volume.0)) {
            let offset = extent.offset();
            if offset < bytes {
                let range = Range { volume, offset, len: EXTENT_BYTES.min(bytes - offset) };
                run.next = Some((volume, extent.next()));
                return Some((range, 1));
            }
            (volume, extent) = (VolumeId(volume.0 + 1), Extent(0));
        }
        run.next = None;
        None
    }

    /// Whether no extent may be begun now.
    pub(crate) fn scrub_blocked(&self) -> bool {
        self.paused || self.sequence.demoting
    }

    pub(crate) fn begin_flight(&mut self, range: Range, tries: u8, mends: Option<Time>) {
        let end = self.log.end.index.next();
        let asked = |peer: &&Peer| match &peer.link {
            // A replica that lags would hold everything up. A mend that tries again asks it all the
            // same: it may be the only one that has the content.
            Link::Streaming(stream) => {
                let awaited = peer.required() || (mends.is_some() && tries > 1);
                stream.copy.is_none() && (awaited || (stream.next == end && stream.loading.is_none()))
            }
            _ => false,
        };
        let mut waits: BTreeSet<NodeId> =
            self.peers.values().filter(asked).map(|peer| peer.member.node).collect();
        waits.insert(self.config.node);
        self.admit(RequestId::NOBODY, EntryKind::Scrub, range, Bytes::new(), ClientMark::default());
        let now = self.now;
        if let Some(run) = self.scrub.run.as_mut().filter(|_| mends.is_none()) {
            self.background.spend(now, range.len, false);
            if let Some(us) = range.len.saturating_mul(1_000_000).checked_div(run.order.rate) {
                run.paid_until = Time(run.paid_until.0.max(now.0.saturating_sub(us)).saturating_add(us));
            }
        }
        self.scrub.flights.push(Flight {
            range,
            mends,
            tries,
            at: None,
            since: None,
            touched: [false; EXTENT_BLOCKS],
            waits,
            sums: BTreeMap::new(),
            lacking: false,
            repairs: None,
            given_up: None,
        });
    }

    /// The own store has read the blocks of the scrub entry `at`. No sums: it cannot say.
    pub(crate) fn on_scrubbed(&mut self, at: Index, held: BlockSums) {
        if self.leading() {
            self.on_sums(self.config.node, at, held);
        } else if self.session.as_ref().is_some_and(|session| session.attached) {
            self.answer(Message::ScrubSums { at, held });
        }
    }

    pub(crate) fn on_sums(&mut self, from: NodeId, at: Index, held: BlockSums) {
        let (own, now) = (from == self.config.node, self.now);
        let Some(flight) = self.scrub.flights.iter_mut().find(|flight| flight.at == Some(at)) else { return };
        if !flight.waits.remove(&from) {
            reach!("replica: sums that come too late");
            return;
        }
        if own {
            flight.since = Some(now);
        }
        if held.sums.len() as u64 == flight.range.len / BLOCK_BYTES {
            let mut sums: Held = held.sums.into_iter().map(Some).collect();
            for block in held.damaged {
                reach!("replica: a replica knows that a block of it is damaged");
                // Beyond the range: a peer that lies tells nothing by it.
                if let Some(sum) = sums.get_mut(block as usize).filter(|_| !planted(Bug::DamagedVotes)) {
                    *sum = None;
                }
            }
            flight.sums.insert(from, sums);
        } else {
            reach!("replica: a replica cannot say what it holds");
            flight.lacking = true;
        }
    }

    /// Stops waiting for replicas that left, are copied to, or take longer than [`WAIT_MS`].
    fn forget_silent(&mut self) {
        let (now, own) = (self.now, self.config.node);
        for flight in &mut self.scrub.flights {
            let over = flight.since.is_some_and(|since| since.plus_ms(WAIT_MS) <= now);
            let peers = &self.peers;
            let before = flight.waits.len();
            flight
                .waits
                .retain(|node| *node == own || (!over && peers.get(node).is_some_and(Peer::fed_whole)));
            if flight.waits.len() < before {
                reach!("replica: a scrub does not wait for a replica any more");
                flight.lacking = true;
            }
        }
    }

    fn judge_flights(&mut self) {
        let complete = |flight: &Flight| flight.repairs.is_none() && flight.waits.is_empty();
        while let Some(place) = self.scrub.flights.iter().position(complete) {
            let flight = &self.scrub.flights[place];
            let (range, tries, mends) = (flight.range, flight.tries, flight.mends);
            if flight.lacking && tries < TRIES {
                reach!("replica: an extent is scrubbed again");
                self.scrub.flights.remove(place);
                if let Some(since) = mends {
                    self.scrub.mends.again(range, tries, since);
                } else if let Some(run) = &mut self.scrub.run {
                    run.again.push_back((range, tries + 1));
                }
            } else if let Some(since) = mends {
                self.judge_mend(place, since);
            } else {
                self.judge_flight(place);
            }
        }
    }

    fn judge_flight(&mut self, place: usize) {
        let (own, now) = (self.config.node, self.now);
        let (Some(run), Some(report)) = (&mut self.scrub.run, &mut self.scrub.report) else { return };
        let flight = &mut self.scrub.flights[place];
        let at = flight.at.unwrap_or_default();
        run.progress.step(now);
        report.done += 1;
        report.left_ms = run.progress.left_ms(now);
        report.from = if report.done == 1 { at } else { report.from };
        report.to = report.to.max(at);
        self.scrub.totals.extents += 1;
        if flight.sums.len() < 2 {
            reach!("replica: an extent that no replica can be compared with");
            report.uncompared += 1;
        }
        for node in flight.sums.keys() {
            *report.compared.entry(*node).or_default() += 1;
        }
        let mut repairs = VecDeque::new();
        for difference in compare(&flight.sums, own, run.order.repair == ScrubRepair::All) {
            reach!("replica: replicas differ");
            let range = difference.range(flight.range);
            let blocks = range.len / BLOCK_BYTES;
            report.different += blocks;
            self.scrub.totals.different += blocks;
            let right = difference.right.filter(|_| run.order.repair != ScrubRepair::Off);
            let finding = (report.findings.len() < FINDINGS_MAX).then_some(report.findings.len());
            if finding.is_some() {
                report.findings.push(ScrubFinding {
                    volume: range.volume,
                    block: range.first_block(),
                    blocks,
                    at,
                    groups: difference.groups.clone(),
                    damaged: difference.damaged.clone(),
                    right: difference.right,
                    proven: difference.proven,
                    outcome: if right.is_some() { ScrubOutcome::Repairing } else { ScrubOutcome::Found },
                });
            }
            if right.is_some() && !difference.proven {
                reach!("replica: the primary is right though not proven");
            }
            if let Some(right) = right {
                repairs.extend(Repair::of(flight, difference, right, own, finding));
            }
        }
        if repairs.is_empty() {
            self.scrub.flights.remove(place);
        } else {
            flight.repairs = Some(repairs);
        }
    }

    /// A repair of the run was admitted: it ends with it.
    pub(crate) fn run_writes(&mut self) {
        let admitted = self.scrub.repairs.admitted();
        if let Some(run) = &mut self.scrub.run {
            run.written = admitted;
        }
    }
}

impl Difference {
    /// Its blocks, of the extent in which it was found.
    pub fn range(&self, extent: Range) -> Range {
        Range {
            volume: extent.volume,
            offset: extent.offset + self.blocks.start as u64 * BLOCK_BYTES,
            len: self.blocks.len() as u64 * BLOCK_BYTES,
        }
    }
}
