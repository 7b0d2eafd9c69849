//! Scrubbing (R17, [ADR 11](../../../docs/adr/0011-scrub.md)): the primary compares its replicas extent by extent, and repairs what differs.
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
//! - All sums are as of one entry, so a difference is a fault of a disk or of this program, never of timing.
//! - A repair is an ordinary write of what was right as of the entry. It must not come after anything newer: from the admission of the entry
//!   on it is noted which blocks clients change, and those are left out. Requests are sequenced in the order of their admission, so nothing is missed.
//! - Content counts only if its sums are the right ones, whoever it comes from.
//! - The extents under way are a share of the background's window, as a copy's are, and so yield to clients; they also have a limit of
//!   their own. Everything is bounded (R18): extents under way, findings, blocks that are read for another.
//! - Who lags, or is copied to, is not waited for: it is counted as not compared. Nobody is waited for longer than [`WAIT_MS`].
//! - A scrub ends with the role of its primary. What it has repaired stays; the rest was not looked at.

use crate::findings::{FINDINGS_MAX, Finding, Outcome, ScrubReport, ScrubState, compare};
use crate::peer::{Link, Peer};
use crate::progress::Progress;
use crate::{Effect, Replica, RequestId, Role};
use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind, Message, ReplicaData, block_sum};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Index, NodeId, Range, Time, VolumeId, reach};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most extents under way.
const UNDER_WAY_MAX: usize = 4;
/// So long others may take after the primary has read an extent.
const WAIT_MS: u64 = 10_000;
/// So often an extent is scrubbed whose sums are not all there.
const TRIES: u8 = 3;
/// Most reads for others at a time.
const READS_MAX: usize = 16;
/// Journal bytes that are left to clients.
const ROOM_MIN: u64 = 16 * BLOCK_BYTES;
const EXTENT_BLOCKS: usize = (EXTENT_BYTES / BLOCK_BYTES) as usize;

/// What is asked of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubOrder {
    /// Write anew what differs and is known to be right; where no more than half agree, what the primary has.
    pub repair: bool,
    /// Bytes per second and replica; 0: no limit but the background's.
    pub rate: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Scrub {
    run: Option<Run>,
    report: Option<ScrubReport>,
    totals: ScrubTotals,
    /// As a secondary: reads for a primary that are not answered.
    reads: usize,
}

/// What all scrubs of this replica as primary did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubTotals {
    pub extents: u64,
    pub different: u64,
    pub repaired: u64,
    pub overwritten: u64,
}

#[derive(Debug)]
struct Run {
    order: ScrubOrder,
    /// The next extent; none when all were begun.
    next: Option<(VolumeId, u32)>,
    again: VecDeque<(Range, u8)>,
    flights: Vec<Flight>,
    progress: Progress,
    /// Before this time the limit allows nothing more.
    paid_until: Time,
    /// Repairs that are admitted and not committed.
    writing: usize,
}

/// One extent under way.
#[derive(Debug)]
struct Flight {
    range: Range,
    tries: u8,
    /// Its entry, once it is sealed.
    at: Option<Index>,
    /// When its own sums came.
    since: Option<Time>,
    /// Blocks that were changed since its entry was admitted.
    touched: [bool; EXTENT_BLOCKS],
    /// Who has not answered yet.
    waits: BTreeSet<NodeId>,
    sums: BTreeMap<NodeId, Vec<u64>>,
    /// Somebody should have said what it holds, and did not.
    lacking: bool,
    /// None before it is judged.
    repairs: Option<VecDeque<Repair>>,
}

/// Blocks of a flight that are to be written anew.
#[derive(Debug)]
struct Repair {
    range: Range,
    /// What their content sums to.
    sums: Vec<u64>,
    /// Whom to ask for it, the last first.
    sources: Vec<NodeId>,
    asked: Option<(NodeId, Time)>,
    /// Its place among the findings, if it was kept.
    finding: Option<usize>,
}

impl Scrub {
    pub fn runs(&self) -> bool {
        self.run.is_some()
    }

    /// Extents under way.
    pub fn under_way(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.flights.len())
    }

    /// What clients change from here on is newer than the scrub's entries that were admitted before.
    pub fn changed(&mut self, kind: EntryKind, range: Range) {
        let Some(run) = &mut self.run else { return };
        match kind {
            EntryKind::Write | EntryKind::Discard | EntryKind::WriteZeroes => {}
            EntryKind::EpochStart
            | EntryKind::Resize
            | EntryKind::Snapshot
            | EntryKind::DropSnapshot
            | EntryKind::Scrub => return,
        }
        for flight in run.flights.iter_mut().filter(|flight| flight.range.overlaps(range)) {
            let first = flight.range.first_block();
            let from = range.first_block().saturating_sub(first) as usize;
            let to = (range.end_block() - first).min(EXTENT_BLOCKS as u64) as usize;
            flight.touched[from..to].fill(true);
        }
    }

    /// A batch of this primary has its place in the log.
    pub fn sealed(&mut self, batch: &Batch) {
        let Some(run) = &mut self.run else { return };
        for (index, entry) in (batch.first.0..).map(Index).zip(&batch.entries) {
            if entry.kind != EntryKind::Scrub {
                continue;
            }
            let mut waiting = run.flights.iter_mut().filter(|flight| flight.at.is_none());
            if let Some(flight) = waiting.find(|flight| flight.range == entry.range) {
                flight.at = Some(index);
            }
        }
    }

    /// The newest entry that is committed and whose sums somebody still owes.
    pub fn awaited(&self, commit: Index) -> Option<Index> {
        let flights = &self.run.as_ref()?.flights;
        let owed = flights.iter().filter(|flight| !flight.waits.is_empty());
        owed.filter_map(|flight| flight.at.filter(|at| *at <= commit)).max()
    }

    fn end(&mut self, state: ScrubState, now: Time) {
        let (Some(_), Some(report)) = (self.run.take(), &mut self.report) else { return };
        for finding in report.findings.iter_mut().filter(|finding| finding.outcome == Outcome::Repairing) {
            finding.outcome = Outcome::Failed;
        }
        (report.state, report.ended, report.left_ms) = (state, Some(now), None);
    }
}

impl Repair {
    fn place(&self, flight: Range) -> std::ops::Range<usize> {
        let first = (self.range.first_block() - flight.first_block()) as usize;
        first..first + self.sums.len()
    }
}

impl Replica {
    /// The last scrub of this replica as primary, or the one that is under way.
    #[must_use]
    pub fn scrub_report(&self) -> Option<&ScrubReport> {
        self.scrub.report.as_ref()
    }

    /// What was counted since this replica was opened.
    #[must_use]
    pub fn scrub_totals(&self) -> ScrubTotals {
        self.scrub.totals
    }

    #[must_use]
    pub fn scrubs(&self) -> bool {
        self.scrub.runs()
    }

    /// Begins a scrub, or ends the one that is under way. Nothing if this is not a primary that serves, or if there is one already.
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
        self.scrub.report = Some(ScrubReport {
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
            next: Some((VolumeId(0), 0)),
            again: VecDeque::new(),
            flights: Vec::new(),
            progress: Progress::begin(extents, self.now),
            paid_until: self.now,
            writing: 0,
        });
    }

    /// A replica that does not lead any more does not compare.
    pub(crate) fn interrupt_scrub(&mut self) {
        if self.scrub.runs() {
            reach!("replica: a scrub ends with the role");
            self.scrub.end(ScrubState::Interrupted, self.now);
        }
    }

    /// Takes a scrub as far as it goes now.
    pub(crate) fn continue_scrub(&mut self) {
        if !self.scrub.runs() || self.role != Role::Primary {
            return;
        }
        self.forget_silent();
        self.judge_flights();
        self.pump_repairs();
        while let Some((range, tries)) = self.next_to_scrub() {
            self.begin_flight(range, tries);
        }
        let Some(run) = &self.scrub.run else { return };
        if run.next.is_none() && run.again.is_empty() && run.flights.is_empty() && run.writing == 0 {
            reach!("replica: a scrub is done");
            self.scrub.end(ScrubState::Done, self.now);
        }
    }

    /// When [`continue_scrub`](Self::continue_scrub) has something to do though nothing happens.
    pub(crate) fn scrub_deadline(&self) -> Option<Time> {
        let run = self.scrub.run.as_ref()?;
        let waits = |flight: &Flight| {
            let asked = flight.repairs.iter().flatten().filter_map(|repair| repair.asked).map(|(_, at)| at);
            let since = flight.since.filter(|_| !flight.waits.is_empty());
            since.into_iter().chain(asked).map(|at| at.plus_ms(WAIT_MS)).min()
        };
        let more = run.next.is_some() || !run.again.is_empty();
        let paid = Some(run.paid_until).filter(|at| more && *at > self.now);
        run.flights.iter().filter_map(waits).chain(paid).min()
    }

    /// The next extent, if one may be begun now.
    fn next_to_scrub(&mut self) -> Option<(Range, u8)> {
        let run = self.scrub.run.as_ref()?;
        let more = run.next.is_some() || !run.again.is_empty();
        let blocked = self.paused
            || self.sequence.demoting
            || run.paid_until > self.now
            // The journal is for clients when there is little of it.
            || self.room < ROOM_MIN;
        let under_way = run.flights.len();
        if !more || blocked || under_way >= UNDER_WAY_MAX || under_way >= self.copy_share() {
            return None;
        }
        let sizes = self.log.sizes.committed();
        let run = self.scrub.run.as_mut()?;
        if let Some(again) = run.again.pop_front() {
            return Some(again);
        }
        let (mut volume, mut extent) = run.next?;
        while let Some(&bytes) = sizes.get(usize::from(volume.0)) {
            let offset = u64::from(extent) * EXTENT_BYTES;
            if offset < bytes {
                let range = Range { volume, offset, len: EXTENT_BYTES.min(bytes - offset) };
                run.next = Some((volume, extent + 1));
                return Some((range, 1));
            }
            (volume, extent) = (VolumeId(volume.0 + 1), 0);
        }
        run.next = None;
        None
    }

    fn begin_flight(&mut self, range: Range, tries: u8) {
        let end = self.log.end.index.next();
        let asked = |peer: &&Peer| match &peer.link {
            // Who lags would hold everything up.
            Link::Streaming(stream) => {
                stream.copy.is_none() && (peer.required() || (stream.next == end && stream.loading.is_none()))
            }
            _ => false,
        };
        let mut waits: BTreeSet<NodeId> =
            self.peers.values().filter(asked).map(|peer| peer.member.node).collect();
        waits.insert(self.config.node);
        self.admit(RequestId::NOBODY, EntryKind::Scrub, range, Bytes::new());
        self.background.spend(self.now, range.len, false);
        let now = self.now;
        let Some(run) = &mut self.scrub.run else { return };
        if let Some(us) = range.len.saturating_mul(1_000_000).checked_div(run.order.rate) {
            run.paid_until = Time(run.paid_until.0.max(now.0.saturating_sub(us)).saturating_add(us));
        }
        run.flights.push(Flight {
            range,
            tries,
            at: None,
            since: None,
            touched: [false; EXTENT_BLOCKS],
            waits,
            sums: BTreeMap::new(),
            lacking: false,
            repairs: None,
        });
    }

    /// The own store has read what was scrubbed at this entry. No sums: it cannot say.
    pub(crate) fn on_scrubbed(&mut self, at: Index, sums: Vec<u64>) {
        if self.leading() {
            self.on_sums(self.config.node, at, sums);
        } else if self.session.as_ref().is_some_and(|session| session.attached) {
            self.answer(Message::ScrubSums { at, sums });
        }
    }

    pub(crate) fn on_sums(&mut self, from: NodeId, at: Index, sums: Vec<u64>) {
        let (own, now) = (from == self.config.node, self.now);
        let Some(run) = &mut self.scrub.run else { return };
        let Some(flight) = run.flights.iter_mut().find(|flight| flight.at == Some(at)) else { return };
        if !flight.waits.remove(&from) {
            reach!("replica: sums that come too late");
            return;
        }
        if own {
            flight.since = Some(now);
        }
        if sums.len() as u64 == flight.range.len / BLOCK_BYTES {
            flight.sums.insert(from, sums);
        } else {
            reach!("replica: a replica cannot say what it holds");
            flight.lacking = true;
        }
    }

    /// Those who left, or take too long, are not waited for.
    fn forget_silent(&mut self) {
        let (now, own) = (self.now, self.config.node);
        let Some(run) = &mut self.scrub.run else { return };
        for flight in &mut run.flights {
            let over = flight.since.is_some_and(|since| since.plus_ms(WAIT_MS) <= now);
            let peers = &self.peers;
            let before = flight.waits.len();
            flight.waits.retain(|node| {
                let streams =
                    |peer: &Peer| matches!(&peer.link, Link::Streaming(stream) if stream.copy.is_none());
                *node == own || (!over && peers.get(node).is_some_and(streams))
            });
            if flight.waits.len() < before {
                reach!("replica: a scrub does not wait for a replica any more");
                flight.lacking = true;
            }
        }
    }

    fn judge_flights(&mut self) {
        while let Some(run) = &mut self.scrub.run {
            let complete = |flight: &Flight| flight.repairs.is_none() && flight.waits.is_empty();
            let Some(place) = run.flights.iter().position(complete) else { return };
            let flight = &mut run.flights[place];
            if flight.lacking && flight.tries < TRIES {
                reach!("replica: an extent is scrubbed again");
                let again = (flight.range, flight.tries + 1);
                run.again.push_back(again);
                run.flights.remove(place);
                continue;
            }
            self.judge_flight(place);
        }
    }

    fn judge_flight(&mut self, place: usize) {
        let (own, now) = (self.config.node, self.now);
        let (Some(run), Some(report)) = (&mut self.scrub.run, &mut self.scrub.report) else { return };
        let flight = &mut run.flights[place];
        let at = flight.at.unwrap_or_default();
        run.progress.step(now);
        report.done += 1;
        report.left_ms = run.progress.left_ms(now);
        report.from = if report.done == 1 { at } else { report.from };
        report.to = report.to.max(at);
        self.scrub.totals.extents += 1;
        if flight.sums.len() < 2 {
            reach!("replica: an extent that nobody can be compared with");
            report.uncompared += 1;
        }
        for node in flight.sums.keys() {
            *report.compared.entry(*node).or_default() += 1;
        }
        let mut repairs = VecDeque::new();
        for difference in compare(&flight.sums, own, run.order.repair) {
            reach!("replica: replicas differ");
            let blocks = difference.blocks.len() as u64;
            let range = Range {
                volume: flight.range.volume,
                offset: flight.range.offset + difference.blocks.start as u64 * BLOCK_BYTES,
                len: blocks * BLOCK_BYTES,
            };
            report.different += blocks;
            self.scrub.totals.different += blocks;
            let right = difference.right.filter(|_| run.order.repair);
            let finding = (report.findings.len() < FINDINGS_MAX).then_some(report.findings.len());
            if finding.is_some() {
                report.findings.push(Finding {
                    volume: range.volume,
                    block: range.first_block(),
                    blocks,
                    at,
                    groups: difference.groups.clone(),
                    right: difference.right,
                    proven: difference.proven,
                    outcome: if right.is_some() { Outcome::Repairing } else { Outcome::Found },
                });
            }
            let Some(right) = right else { continue };
            if !difference.proven {
                reach!("replica: the primary is right though not proven");
            }
            let mut sources = difference.groups[right].clone();
            let Some(sums) = flight.sums.get(&sources[0]) else { continue };
            let sums = sums[difference.blocks].to_vec();
            // Itself first.
            sources.sort_by_key(|node| *node == own);
            repairs.push_back(Repair { range, sums, sources, asked: None, finding });
        }
        if repairs.is_empty() {
            run.flights.remove(place);
        } else {
            flight.repairs = Some(repairs);
        }
    }

    /// Asks for content that nobody was asked for yet, or that did not come.
    fn pump_repairs(&mut self) {
        let (now, own) = (self.now, self.config.node);
        let Some(run) = &mut self.scrub.run else { return };
        let mut ask = Vec::new();
        let mut given_up = Vec::new();
        for flight in &mut run.flights {
            let at = flight.at.unwrap_or_default();
            let Some(repairs) = &mut flight.repairs else { continue };
            // One at a time: there are few, and neighbours are one.
            while let Some(repair) = repairs.front_mut() {
                let streams = |node: &NodeId| {
                    let link = self.peers.get(node).map(|peer| &peer.link);
                    *node == own || link.is_some_and(|link| matches!(link, Link::Streaming(_)))
                };
                if repair.asked.is_some_and(|(node, since)| streams(&node) && since.plus_ms(WAIT_MS) > now) {
                    break;
                }
                let next = std::iter::from_fn(|| repair.sources.pop()).find(streams);
                if let Some(node) = next {
                    repair.asked = Some((node, now));
                    ask.push((node, repair.range, at));
                    break;
                }
                reach!("replica: nobody has the content for a repair");
                given_up.push(repair.finding);
                repairs.pop_front();
            }
        }
        run.flights.retain(|flight| flight.repairs.as_ref().is_none_or(|repairs| !repairs.is_empty()));
        for finding in given_up {
            self.note_outcome(finding, Outcome::Failed);
        }
        for (node, range, at) in ask {
            if node == own {
                self.effects.push_back(Effect::LoadBlocks { range });
            } else {
                self.send_as_primary(node, Message::ReadBlocks { range, at });
            }
        }
    }

    fn note_outcome(&mut self, finding: Option<usize>, outcome: Outcome) {
        let findings = self.scrub.report.as_mut().map(|report| &mut report.findings);
        if let Some(finding) = findings.and_then(|findings| findings.get_mut(finding?)) {
            finding.outcome = outcome;
        }
    }

    /// The own store has read blocks: for a repair, or for the primary.
    pub(crate) fn on_blocks_loaded(&mut self, range: Range, data: Bytes) {
        // Those for the own repairs were not counted, and whoever begins to lead has others' left: too few is no harm.
        self.scrub.reads = self.scrub.reads.saturating_sub(1);
        if self.leading() {
            return self.on_blocks_read(self.config.node, range, &data);
        }
        if self.session.as_ref().is_some_and(|session| session.attached) {
            self.answer(Message::BlocksRead { range, data });
        }
    }

    /// A primary asks for what is committed here, as of `at` or later.
    pub(crate) fn on_read_blocks(&mut self, range: Range, at: Index) {
        let here = self.log.commit >= at
            && self.log.data == ReplicaData::Consistent
            && self.log.sizes.fits(range)
            && self.scrub.reads < READS_MAX;
        if here {
            reach!("replica: blocks are read for a primary");
            self.scrub.reads += 1;
            self.effects.push_back(Effect::LoadBlocks { range });
        } else {
            reach!("replica: blocks cannot be read for a primary");
            self.answer(Message::BlocksRead { range, data: Bytes::new() });
        }
    }

    /// What was asked for to repair others.
    pub(crate) fn on_blocks_read(&mut self, from: NodeId, range: Range, data: &Bytes) {
        let Some(run) = &mut self.scrub.run else { return };
        let asked = |flight: &&mut Flight| {
            let first = flight.repairs.as_ref().and_then(|repairs| repairs.front());
            first.is_some_and(|repair| {
                repair.range == range && repair.asked.is_some_and(|(node, _)| node == from)
            })
        };
        let Some(flight) = run.flights.iter_mut().find(asked) else { return };
        let Some(repair) = flight.repairs.as_mut().and_then(VecDeque::front_mut) else { return };
        let is_block = |(n, sum): (usize, &u64)| {
            let at = n * BLOCK_BYTES as usize;
            data.get(at..at + BLOCK_BYTES as usize).is_some_and(|block| block_sum(block) == *sum)
        };
        let place = repair.place(flight.range);
        let wanted: Vec<bool> = flight.touched[place]
            .iter()
            .map(|touched| !touched || planted(Bug::RepairOverwritesNewer))
            .collect();
        let right = (repair.sums.iter().enumerate()).all(|(n, sum)| !wanted[n] || is_block((n, sum)));
        if !right {
            // It was overwritten in the meantime, is damaged since, or this replica lies.
            reach!("replica: what is to repair others is not what it was");
            repair.asked = None;
            return;
        }
        let finding = repair.finding;
        flight.repairs.as_mut().map(VecDeque::pop_front);
        run.flights.retain(|flight| flight.repairs.as_ref().is_none_or(|repairs| !repairs.is_empty()));
        let repaired = self.write_anew(range, data, &wanted);
        let overwritten = wanted.len() as u64 - repaired;
        if overwritten > 0 {
            reach!("replica: a repair leaves out what clients have written since");
        }
        if let Some(report) = &mut self.scrub.report {
            (report.repaired, report.overwritten) =
                (report.repaired + repaired, report.overwritten + overwritten);
        }
        let totals = &mut self.scrub.totals;
        (totals.repaired, totals.overwritten) =
            (totals.repaired + repaired, totals.overwritten + overwritten);
        self.note_outcome(finding, if repaired > 0 { Outcome::Repaired } else { Outcome::Overwritten });
    }

    /// Sequences the wanted blocks of what was read; returns how many they are.
    fn write_anew(&mut self, range: Range, data: &Bytes, wanted: &[bool]) -> u64 {
        let mut written = 0;
        let mut at = 0;
        while at < wanted.len() {
            let end = (at..wanted.len()).find(|&n| wanted[n] != wanted[at]).unwrap_or(wanted.len());
            if wanted[at] {
                reach!("replica: blocks are repaired");
                let bytes = at * BLOCK_BYTES as usize..end * BLOCK_BYTES as usize;
                let (offset, len) = (range.offset + bytes.start as u64, bytes.len() as u64);
                let part = Range { volume: range.volume, offset, len };
                self.admit(RequestId::REPAIR, EntryKind::Write, part, data.slice(bytes));
                written += (end - at) as u64;
                if let Some(run) = &mut self.scrub.run {
                    run.writing += 1;
                }
            }
            at = end;
        }
        written
    }

    /// A repair is committed, or has failed with the epoch.
    pub(crate) fn repair_ended(&mut self) {
        if let Some(run) = &mut self.scrub.run {
            run.writing = run.writing.saturating_sub(1);
        }
    }
}
