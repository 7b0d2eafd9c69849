//! Repairs: blocks that are written anew because replicas differ on them, or know theirs to be
//! damaged. A repair is an ordinary write. Its content was right as of the entry of the log at
//! which the replicas were compared, see [`crate::scrub`].
//!
//! A replica that has the content may be away for a moment. Or it is back and does not know yet
//! what is committed. So a scrub asks all of them again, in [`ROUNDS`] rounds, [`AGAIN_MS`] apart.
//! It waits no longer than [`WAIT_MS`] for one of them to be connected. A mend looks at the extent
//! anew instead.

use crate::findings::Difference;
use crate::peer::{Link, Peer};
use crate::scrub::{Flight, WAIT_MS};
use crate::{Effect, Mended, Replica, RequestId};
use bytes::Bytes;
use mainstay_codec::{EntryKind, Message, block_sum};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, ClientMark, DataState, Index, NodeId, Range, ScrubOutcome, Time, reach};
use std::collections::VecDeque;

/// Most reads for others at a time.
const READS_MAX: usize = 16;
/// Number of rounds in which all replicas that have the content are asked.
const ROUNDS: u8 = 3;
/// Pause before the next round, once no replica is left to ask.
const AGAIN_MS: u64 = 1_000;

/// Blocks of a flight that are to be written anew.
#[derive(Debug)]
pub(crate) struct Repair {
    range: Range,
    /// Sums of the right content, one for each block.
    sums: Vec<u64>,
    /// Replicas that hold the right content, in reverse order of asking.
    right: Vec<NodeId>,
    /// Replicas that are still to be asked in this round, in the same order.
    sources: Vec<NodeId>,
    asked: Option<(NodeId, Time)>,
    rounds: u8,
    /// Since when no replica is left to ask.
    lacks_since: Option<Time>,
    /// Its place among the findings, if it was kept.
    finding: Option<usize>,
}

/// How far writes of repairs are, and reads for them. They end in the order in which they were
/// admitted.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    admitted: u64,
    ended: u64,
    /// Reads for a primary that this secondary has not answered yet.
    reads: usize,
}

impl Repairs {
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Whether the first `admitted` repairs are all committed.
    pub fn ended(&self, admitted: u64) -> bool {
        self.ended >= admitted
    }
}

impl Repair {
    /// Builds the repair of a difference that was found in a flight. `None` if no replica of the
    /// group `right` holds the content.
    pub fn of(
        flight: &Flight,
        difference: Difference,
        right: usize,
        own: NodeId,
        finding: Option<usize>,
    ) -> Option<Self> {
        let range = difference.range(flight.range);
        let mut right = difference.groups.into_iter().nth(right)?;
        let sums = flight.sums.get(right.first()?)?;
        let sums = sums[difference.blocks].iter().copied().collect::<Option<_>>()?;
        // Itself first.
        right.sort_by_key(|node| *node == own);
        let sources = right.clone();
        Some(Self { range, sums, right, sources, asked: None, rounds: 1, lacks_since: None, finding })
    }

    /// When there is something to do for it though nothing happens.
    pub fn due(&self, now: Time) -> Option<Time> {
        let asked = self.asked.map(|(_, at)| at.plus_ms(WAIT_MS));
        let again = |since: Time| {
            let again = since.plus_ms(AGAIN_MS);
            if again > now { again } else { since.plus_ms(WAIT_MS) }
        };
        asked.or(self.lacks_since.map(again))
    }

    /// Notes that no replica is left to ask, and returns whether that may change. Once one of them
    /// can be asked again, the next round begins.
    fn waits(&mut self, now: Time, streams: impl Fn(&NodeId) -> bool) -> bool {
        self.asked = None;
        let since = *self.lacks_since.get_or_insert(now);
        if self.rounds >= ROUNDS || since.plus_ms(WAIT_MS) <= now {
            return false;
        }
        if since.plus_ms(AGAIN_MS) <= now && self.right.iter().any(streams) {
            reach!("replica: the replica with the content for a repair is asked again");
            (self.rounds, self.lacks_since) = (self.rounds + 1, None);
            self.sources.clone_from(&self.right);
        }
        true
    }

    fn place(&self, flight: Range) -> std::ops::Range<usize> {
        let first = (self.range.first_block() - flight.first_block()) as usize;
        first..first + self.sums.len()
    }
}

impl Replica {
    /// Asks a replica for the content of each repair that has asked none yet, or did not get it.
    pub(crate) fn pump_repairs(&mut self) {
        let (now, own) = (self.now, self.config.node);
        let mut ask = Vec::new();
        let mut given_up = Vec::new();
        for flight in &mut self.scrub.flights {
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
                if flight.mends.is_none() && repair.waits(now, streams) {
                    if repair.sources.is_empty() {
                        break;
                    }
                    continue;
                }
                reach!("replica: no replica has the content for a repair");
                // Commits do not wait for a replica that is not in sync. So no acknowledged write
                // is lost if its content is gone, and no replica fails for it.
                let counts = |node: &NodeId| *node == own || self.peers.get(node).is_some_and(Peer::required);
                if repair.right.iter().any(counts) {
                    flight.given_up = Some(Mended::Unknown);
                } else {
                    flight.given_up.get_or_insert(Mended::Nowhere);
                }
                given_up.push(repair.finding);
                repairs.pop_front();
            }
        }
        self.drop_repaired();
        for finding in given_up {
            self.note_outcome(finding, ScrubOutcome::Failed);
        }
        for (node, range, at) in ask {
            if node == own {
                self.effects.push_back(Effect::LoadBlocks { range });
            } else {
                self.send_as_primary(node, Message::ReadBlocks { range, at });
            }
        }
    }

    /// Flights that have nothing left to repair are over.
    fn drop_repaired(&mut self) {
        let over = |flight: &mut Flight| flight.repairs.as_ref().is_some_and(VecDeque::is_empty);
        let admitted = self.scrub.repairs.admitted;
        let scrub = &mut self.scrub;
        for flight in scrub.flights.extract_if(.., over) {
            if let Some(since) = flight.mends {
                scrub.mends.written(&flight, since, admitted);
            }
        }
    }

    fn note_outcome(&mut self, finding: Option<usize>, outcome: ScrubOutcome) {
        let findings = self.scrub.report.as_mut().map(|report| &mut report.findings);
        if let Some(finding) = findings.and_then(|findings| findings.get_mut(finding?)) {
            finding.outcome = outcome;
        }
    }

    /// The own store has read blocks: for a repair, or for the primary.
    pub(crate) fn on_blocks_loaded(&mut self, range: Range, data: Bytes) {
        // Reads for the own repairs were not counted, and a replica that begins to lead has other
        // reads left. A count that is too low does no harm.
        self.scrub.repairs.reads = self.scrub.repairs.reads.saturating_sub(1);
        if self.leading() {
            return self.on_blocks_read(self.config.node, range, &data);
        }
        if self.session.as_ref().is_some_and(|session| session.attached) {
            self.answer(Message::BlocksRead { range, data });
        }
    }

    /// A primary asks for the committed content of blocks here, as of `at` or later.
    pub(crate) fn on_read_blocks(&mut self, range: Range, at: Index) {
        let here = self.log.commit >= at
            && self.log.data == DataState::Consistent
            && self.log.sizes.fits(range)
            && self.scrub.repairs.reads < READS_MAX;
        if here {
            reach!("replica: blocks are read for a primary");
            self.scrub.repairs.reads += 1;
            self.effects.push_back(Effect::LoadBlocks { range });
        } else {
            reach!("replica: blocks cannot be read for a primary");
            self.answer(Message::BlocksRead { range, data: Bytes::new() });
        }
    }

    /// Takes in blocks that were asked for to repair others. `data` is empty if `from` could not
    /// read them.
    pub(crate) fn on_blocks_read(&mut self, from: NodeId, range: Range, data: &Bytes) {
        let asked = |flight: &&mut Flight| {
            let first = flight.repairs.as_ref().and_then(|repairs| repairs.front());
            first.is_some_and(|repair| {
                repair.range == range && repair.asked.is_some_and(|(node, _)| node == from)
            })
        };
        let Some(flight) = self.scrub.flights.iter_mut().find(asked) else { return };
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
        let (finding, mends) = (repair.finding, flight.mends);
        flight.repairs.as_mut().map(VecDeque::pop_front);
        let repaired = self.write_anew(range, data, &wanted);
        // Not earlier: a read that waits for the repair waits for these writes.
        self.drop_repaired();
        let overwritten = wanted.len() as u64 - repaired;
        if overwritten > 0 {
            reach!("replica: a repair leaves out what clients have written since");
        }
        let totals = &mut self.scrub.totals;
        if mends.is_some() {
            totals.mended += repaired;
            return;
        }
        (totals.repaired, totals.overwritten) =
            (totals.repaired + repaired, totals.overwritten + overwritten);
        if let Some(report) = &mut self.scrub.report {
            (report.repaired, report.overwritten) =
                (report.repaired + repaired, report.overwritten + overwritten);
        }
        self.run_writes();
        self.note_outcome(
            finding,
            if repaired > 0 { ScrubOutcome::Repaired } else { ScrubOutcome::Overwritten },
        );
    }

    /// Sequences the wanted blocks of `data`. Returns their number.
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
                let data = data.slice(bytes);
                self.admit(RequestId::REPAIR, EntryKind::Write, part, data, ClientMark::REPAIR);
                written += (end - at) as u64;
                self.scrub.repairs.admitted += 1;
            }
            at = end;
        }
        written
    }

    /// A repair is committed, or has failed with the epoch.
    pub(crate) fn repair_ended(&mut self) {
        self.scrub.repairs.ended += 1;
    }
}
