//! Admission, the open batch, sealing, and reads that wait.
//!
//! Guarantees:
//! - Requests complete in the order of the log.
//! - A read is executed only when no uncommitted entry that was admitted before it overlaps it
//!   (P30).
//! - Everything held is bounded in count and bytes (R18).
//!
//! A request that changes something is *open* from its admission until a batch takes it. Then its
//! entry is *in flight* until it is committed (`in_flight.rs` has the states). A read or a flush
//! waits for an entry, or is *parked* until the replica serves.
//!
//! Batches form by themselves, without a timer: requests that are admitted while the journal is
//! busy go into the next batch. That batch begins when the journal is free. It begins earlier if
//! enough has gathered to be worth a write beside those that are under way.

use crate::in_flight::{EntriesInFlight, InFlight};
use crate::sealed::Sealed;
use crate::{Effect, Op, Replica, RequestError, RequestId};
use bytes::Bytes;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Batch, EntryKind, Message, NewEntry, rollback_range, snapshot_range};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, BLOCK_BYTES, ClientMark, Index, REQUEST_BYTES_MAX, Range, Role,
    SessionId, SnapshotId, Time, VolumeId, is_volume_size, reach,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Longest discard or write-zeroes, in bytes; the wire carries 32 bits and whole blocks.
const ZERO_BYTES_MAX: u64 = (1 << 32) - BLOCK_BYTES;

/// Longest sum of the waits of open requests for a journal write, in microseconds. From this sum on
/// they get a write beside it. A batch costs a header block and a turn of every replica, so a fast
/// disk gains less than that: eight requests wait for a write of 125 µs. If a write takes a
/// millisecond, no request waits.
const WAITED_US_MAX: u64 = 1_000;

/// Order of admission; writes commit in this order.
pub(crate) type Ticket = u64;

/// The primary's requests.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Admitted, not sealed.
    open: VecDeque<Open>,
    /// Payload bytes of those.
    open_bytes: u64,
    /// Sealed, not committed; or committed and not acknowledged, see `copies.rs`.
    pub in_flight: EntriesInFlight,
    /// Ranges in `open` and `in_flight`: (volume, offset, ticket) to end.
    uncommitted: BTreeMap<(VolumeId, u64, Ticket), u64>,
    /// At least the longest range in `uncommitted`.
    longest: u64,
    /// Reads, and flushes without a range, that wait for the entry with this ticket.
    reads: BTreeMap<(Ticket, RequestId), Option<Range>>,
    /// Reads and flushes that came before the replica served.
    parked: VecDeque<(RequestId, Option<Range>)>,
    next_ticket: Ticket,
    /// A client's change that is timed until it is committed.
    watched: Option<Watched>,
    pub demoting: bool,
    pub sealed: Sealed,
    /// Empty between batches; kept to be filled again.
    sealing: Vec<NewEntry>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    ticket: Ticket,
    since: Time,
    /// Once it is sealed.
    index: Option<Index>,
}

#[derive(Debug)]
struct Open {
    id: RequestId,
    ticket: Ticket,
    kind: EntryKind,
    range: Range,
    payload: Bytes,
    /// Mark of the client's change; the default if no client asked.
    mark: ClientMark,
}

impl Sequence {
    /// Requests that are held.
    pub fn len(&self) -> usize {
        self.open.len() + self.in_flight.requests() + self.reads.len() + self.parked.len()
    }

    /// Payload bytes of the requests that are not acknowledged.
    fn bytes(&self) -> u64 {
        self.open_bytes + self.in_flight.bytes()
    }

    /// Whether nothing is open or on its way.
    pub fn changes_nothing(&self) -> bool {
        self.open.is_empty() && self.in_flight.is_empty()
    }

    pub fn nothing_open(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether the open requests together would wait long enough to be worth a batch of their own,
    /// beside those that are sealed already. A write of the journal takes at least `journal_us`.
    pub fn worth_another_batch(&self, journal_us: u64) -> bool {
        self.open.len() as u64 * journal_us >= WAITED_US_MAX
    }

    /// Whether a journal that is durable up to `durable` would write the open requests at once. It
    /// writes at most `batches_max` batches and `bytes_max` bytes at a time. A batch that waits
    /// does not become larger any more.
    pub fn written_at_once(&self, durable: Index, (batches_max, bytes_max): (usize, u64)) -> bool {
        let payloads = self.open.iter().take(BATCH_ENTRIES_MAX).map(|open| open.payload.len() as u64);
        let bytes = HEADER_BLOCK_BYTES as u64 + payloads.sum::<u64>().min(BATCH_BYTES_MAX);
        let under_way = self.sealed.since(durable, batches_max.saturating_sub(1));
        under_way.is_some_and(|under_way| under_way + bytes <= bytes_max)
    }

    /// Whether every admitted request is finished, and every acknowledged entry committed.
    pub fn finished(&self) -> bool {
        self.len() == 0 && self.in_flight.is_empty()
    }

    /// Forgets everything and returns the requests that were held, oldest writes first.
    pub fn abandon(&mut self) -> Vec<RequestId> {
        let old = std::mem::take(self);
        let open = old.open.into_iter().map(|entry| entry.id);
        let reads = old.reads.into_keys().map(|(_, id)| id);
        old.in_flight
            .iter()
            .filter_map(InFlight::waiting)
            .chain(open)
            .chain(reads)
            .chain(old.parked.into_iter().map(|(id, _)| id))
            .collect()
    }

    /// Fails the requests that clients wait for and that are not acknowledged: in the order of
    /// admission, reads last. Sealed entries stay, and may be committed. Others are forgotten.
    pub fn fail_held(&mut self) -> Vec<RequestId> {
        let mut failed = self.in_flight.fail();
        // The timed request is forgotten, or no longer waited for.
        self.watched = None;
        let mut kept = VecDeque::new();
        for open in std::mem::take(&mut self.open) {
            if open.id == RequestId::REPAIR || open.kind == EntryKind::Scrub {
                kept.push_back(open);
                continue;
            }
            self.open_bytes -= open.payload.len() as u64;
            self.uncommitted.remove(&(open.range.volume, open.range.offset, open.ticket));
            failed.push(open.id);
        }
        self.open = kept;
        failed.extend(std::mem::take(&mut self.reads).into_keys().map(|(_, id)| id));
        failed
    }

    /// The newest uncommitted entry that overlaps `range`.
    fn blocker(&self, range: Range) -> Option<Ticket> {
        let from = (range.volume, range.offset.saturating_sub(self.longest), 0);
        let to = (range.volume, range.end(), 0);
        self.uncommitted
            .range(from..to)
            .filter(|(_, end)| **end > range.offset)
            .map(|((_, _, ticket), _)| *ticket)
            .max()
    }

    /// Times the request that is admitted next, unless one is timed already.
    fn watch_next(&mut self, now: Time) {
        let ticket = self.next_ticket;
        self.watched.get_or_insert(Watched { ticket, since: now, index: None });
    }

    /// Since when the timed request has waited.
    pub fn watched_since(&self) -> Option<Time> {
        self.watched.map(|watched| watched.since)
    }

    /// Since when it has, if it is committed; nothing is timed any more then.
    pub fn take_watched(&mut self, commit: Index) -> Option<Time> {
        let watched = self.watched.take_if(|watched| watched.index.is_some_and(|index| index <= commit));
        watched.map(|watched| watched.since)
    }

    fn admit(&mut self, id: RequestId, kind: EntryKind, range: Range, payload: Bytes, mark: ClientMark) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.open_bytes += payload.len() as u64;
        // A scrub changes nothing that a read could wait for.
        if kind != EntryKind::Scrub {
            self.longest = self.longest.max(range.len);
            self.uncommitted.insert((range.volume, range.offset, ticket), range.end());
        }
        self.open.push_back(Open { id, ticket, kind, range, payload, mark });
    }

    /// Moves to `entries` of the open entries what fits into one batch and into `room` journal
    /// bytes.
    fn take_batch(&mut self, room: u64, first: Index, entries: &mut Vec<NewEntry>) {
        let mut bytes = 0;
        let bytes_max = BATCH_BYTES_MAX.min(room.saturating_sub(HEADER_BLOCK_BYTES as u64));
        if room < HEADER_BLOCK_BYTES as u64 {
            return;
        }
        while entries.len() < BATCH_ENTRIES_MAX {
            let fits = self.open.front().is_some_and(|entry| bytes + entry.payload.len() as u64 <= bytes_max);
            let alone = self.open.front().is_some_and(|entry| entry.kind == EntryKind::Rollback);
            if (alone || planted(Bug::WriteCut)) && !entries.is_empty() {
                break;
            }
            let Some(entry) = fits.then(|| self.open.pop_front()).flatten() else { break };
            let len = entry.payload.len() as u64;
            bytes += len;
            let index = Index(first.0 + entries.len() as u64);
            if let Some(watched) = self.watched.as_mut().filter(|watched| watched.ticket == entry.ticket) {
                watched.index = Some(index);
            }
            self.open_bytes -= len;
            self.in_flight.push((entry.id, entry.ticket), index, (entry.kind, entry.range), len);
            let last = matches!(entry.kind, EntryKind::Snapshot | EntryKind::Rollback);
            entries.push(NewEntry {
                kind: entry.kind,
                range: entry.range,
                payload: entry.payload,
                session: entry.mark.session.0,
                request: entry.mark.number,
            });
            if last {
                reach!("replica: a batch ends with a snapshot");
                return;
            }
        }
    }

    /// Whether the open requests wait: a rollback waits for everything before it, and everything
    /// after it waits for the rollback. So every reader of the log can tell what came before the
    /// rollback.
    fn waits_for_rollback(&self) -> bool {
        let next = self.open.front().is_some_and(|open| open.kind == EntryKind::Rollback);
        let sealed = self.in_flight.last().is_some_and(|entry| entry.kind == EntryKind::Rollback);
        sealed || next && !self.in_flight.is_empty()
    }

    /// The place in the log of a request that is sealed and not committed.
    pub fn index_of(&self, id: RequestId) -> Option<Index> {
        self.in_flight.iter().find(|entry| entry.id == id).map(|entry| entry.index)
    }

    /// Takes the next entry that is committed; without its request, if that was answered before.
    fn pop_committed(&mut self, commit: Index) -> Option<(Option<RequestId>, Ticket)> {
        let entry = self.in_flight.pop_committed(commit)?;
        self.uncommitted.remove(&(entry.range.volume, entry.range.offset, entry.ticket));
        if self.uncommitted.is_empty() {
            self.longest = 0;
        }
        Some((entry.waiting(), entry.ticket))
    }

    /// Whether a change that a client has asked for is not committed yet.
    pub fn clients_wait(&self) -> bool {
        let (mut in_flight, mut open) = (self.in_flight.iter(), self.open.iter());
        in_flight.any(|entry| entry.id.is_of_client()) || open.any(|open| open.id.is_of_client())
    }

    /// Takes the next read, or flush, that waits for nothing newer than `ticket`.
    fn pop_read(&mut self, ticket: Ticket) -> Option<(RequestId, Option<Range>)> {
        let first = self.reads.first_entry()?;
        if first.key().0 > ticket {
            return None;
        }
        let ((_, id), range) = first.remove_entry();
        Some((id, range))
    }
}

impl Replica {
    pub(crate) fn on_request(&mut self, id: RequestId, op: Op, mark: ClientMark) {
        let refused = self.refusal(&op, mark.session);
        if let Some(error) = refused {
            reach!("replica: a request is refused");
            self.effects.push_back(Effect::Complete { id, result: Err(error) });
            return;
        }
        match op {
            Op::Write { range, payload } if planted(Bug::WriteCut) && range.len > BLOCK_BYTES => {
                self.admit_in_two(id, range, payload, mark);
            }
            Op::Write { range, payload } => self.admit(id, EntryKind::Write, range, payload, mark),
            Op::Discard { range } => self.admit(id, EntryKind::Discard, range, Bytes::new(), mark),
            Op::WriteZeroes { range } => self.admit(id, EntryKind::WriteZeroes, range, Bytes::new(), mark),
            Op::Resize { volume, bytes } => {
                reach!("replica: a resize is admitted");
                let range = Range { volume, offset: bytes, len: 0 };
                self.admit(id, EntryKind::Resize, range, Bytes::new(), mark);
            }
            Op::Snapshot { id: snapshot } => {
                reach!("replica: a snapshot is admitted");
                self.admit(id, EntryKind::Snapshot, snapshot_range(snapshot), Bytes::new(), mark);
            }
            Op::DropSnapshot { id: snapshot } => {
                reach!("replica: the end of a snapshot is admitted");
                self.admit(id, EntryKind::DropSnapshot, snapshot_range(snapshot), Bytes::new(), mark);
            }
            Op::Rollback { to, mark } => {
                reach!("replica: a rollback is admitted");
                let range = rollback_range(to, mark);
                self.admit(id, EntryKind::Rollback, range, Bytes::new(), ClientMark::default());
            }
            Op::Read { range } => self.read_or_park(id, Some(range)),
            Op::Flush => self.read_or_park(id, None),
        }
    }

    /// Leaves out R26. The first entry has no request that waits for it.
    fn admit_in_two(&mut self, id: RequestId, range: Range, mut payload: Bytes, mark: ClientMark) {
        let first = payload.split_to((range.len / BLOCK_BYTES / 2 * BLOCK_BYTES) as usize);
        let before = Range { len: first.len() as u64, ..range };
        let rest = Range { offset: before.end(), len: payload.len() as u64, ..range };
        self.admit(RequestId::NOBODY, EntryKind::Write, before, first, ClientMark::default());
        self.admit(id, EntryKind::Write, rest, payload, mark);
    }

    /// Puts a request in its place. Whatever changes blocks goes through here, because a scrub has
    /// to know of it.
    pub(crate) fn admit(
        &mut self,
        id: RequestId,
        kind: EntryKind,
        range: Range,
        payload: Bytes,
        mark: ClientMark,
    ) {
        self.scrub.changed(kind, range);
        if id.is_of_client() {
            self.background.written(self.now);
            if self.background.watches_clients(self.now) {
                self.sequence.watch_next(self.now);
            }
        }
        self.sequence.admit(id, kind, range, payload, mark);
    }

    /// Ends a request: tells its result, or notes that a repair has ended.
    fn complete(&mut self, id: RequestId, result: Result<(), RequestError>) {
        if id == RequestId::REPAIR {
            return self.repair_ended();
        }
        self.effects.push_back(Effect::Complete { id, result });
    }

    /// Why a request of this session is refused now, if it is.
    #[must_use]
    pub fn refusal(&self, op: &Op, session: SessionId) -> Option<RequestError> {
        if self.failed {
            return Some(RequestError::StoreFailed);
        }
        if !self.leading() || self.sequence.demoting {
            reach!("replica: a request to one that is not primary");
            return Some(RequestError::NotPrimary);
        }
        if !self.admits_session(op, session) {
            reach!("replica: a request of a client that is not attached");
            return Some(RequestError::NotAttached);
        }
        // A rollback acknowledges no client's write, and a resource that is made of a snapshot gets
        // further copies only after it. A snapshot acknowledges no write either. It must be
        // sequenced before a rollback that was asked for later, or it would hold the content after
        // that rollback.
        let may_be_alone = matches!(
            op,
            Op::Read { .. } | Op::Flush | Op::Rollback { .. } | Op::Snapshot { .. } | Op::DropSnapshot { .. }
        );
        if self.refuses_for_copies() && !may_be_alone {
            reach!("replica: a write is refused for want of copies");
            return Some(RequestError::Copies);
        }
        let (range, len_max, bytes) = match op {
            Op::Resize { volume, bytes } => {
                return (!self.grows(*volume, *bytes)).then_some(RequestError::Range);
            }
            Op::Snapshot { id } => {
                return (!self.may_snapshot(*id)).then_some(RequestError::Snapshot);
            }
            Op::DropSnapshot { id } => {
                let ends = self.log.snapshots.exists(*id) && !self.is_open(EntryKind::DropSnapshot, *id);
                return (!ends).then_some(RequestError::Snapshot);
            }
            Op::Rollback { to, mark } => {
                let good = self.may_snapshot(*mark)
                    && to != mark
                    && self.log.snapshots.can_roll_back_to(*to)
                    && !self.is_open(EntryKind::DropSnapshot, *to);
                return (!good).then_some(RequestError::Snapshot);
            }
            Op::Write { range, payload } => {
                if payload.len() as u64 != range.len {
                    return Some(RequestError::Range);
                }
                (*range, REQUEST_BYTES_MAX, range.len)
            }
            Op::Discard { range } | Op::WriteZeroes { range } => (*range, ZERO_BYTES_MAX, 0),
            Op::Read { range } => (*range, u64::MAX, 0),
            Op::Flush => (Range { volume: VolumeId(0), offset: 0, len: BLOCK_BYTES }, BLOCK_BYTES, 0),
        };
        if !self.log.sizes.fits(range) || range.len == 0 || range.len > len_max {
            return Some(RequestError::Range);
        }
        let sequence = &self.sequence;
        let full = sequence.len() >= self.config.requests_max
            || (sequence.bytes() > 0 && sequence.bytes() + bytes > self.config.request_bytes_max);
        if full {
            reach!("replica: requests are at their limit");
        }
        full.then_some(RequestError::Busy)
    }

    /// Whether a volume exists and would be larger than it is, and than it is to be.
    fn grows(&self, volume: VolumeId, bytes: u64) -> bool {
        let known = self.log.sizes.at_end(volume);
        let asked = self.sequence.open.iter().filter(|open| open.kind == EntryKind::Resize);
        let asked = asked.filter(|open| open.range.volume == volume).map(|open| open.range.offset).max();
        is_volume_size(bytes) && known > 0 && bytes > known.max(asked.unwrap_or(0))
    }

    /// Whether there is no such snapshot, none is asked for, and there may be one more.
    fn may_snapshot(&self, id: SnapshotId) -> bool {
        let takes = |kind| matches!(kind, EntryKind::Snapshot | EntryKind::Rollback);
        let open = self.sequence.open.iter().any(|open| takes(open.kind));
        // One at a time keeps the count simple.
        !open && id.0 > 0 && !self.log.snapshots.exists(id) && self.log.snapshots.has_room()
    }

    fn is_open(&self, kind: EntryKind, id: SnapshotId) -> bool {
        self.sequence.open.iter().any(|open| open.kind == kind && open.range == snapshot_range(id))
    }

    /// A flush orders only completed writes (P40). Those are durable on every required replica,
    /// except for those that were acknowledged from memory (mode B): the flush waits for these. A
    /// read waits for every uncommitted entry that it overlaps, acknowledged or not. So no client
    /// reads content that can still be lost.
    fn read_or_park(&mut self, id: RequestId, range: Option<Range>) {
        if self.role != Role::Primary {
            reach!("replica: a read waits for the epoch start");
            self.sequence.parked.push_back((id, range));
            return;
        }
        let effect = match range {
            None => match self.sequence.in_flight.last_in_memory().map(|entry| entry.ticket) {
                Some(ticket) if !planted(Bug::FlushNotAwaited) => {
                    if self.refuses_for_copies() {
                        reach!("replica: a flush is refused for want of copies");
                        let result = Err(RequestError::Copies);
                        return self.effects.push_back(Effect::Complete { id, result });
                    }
                    reach!("replica: a flush waits for journals");
                    self.sequence.reads.insert((ticket, id), None);
                    return;
                }
                _ => Effect::Complete { id, result: Ok(()) },
            },
            Some(range) => match self.sequence.blocker(range) {
                Some(_) if self.refuses_for_copies() => {
                    reach!("replica: a read of what is not acknowledged is refused for want of copies");
                    Effect::Complete { id, result: Err(RequestError::Copies) }
                }
                Some(ticket) => {
                    reach!("replica: a read waits for a write");
                    self.sequence.reads.insert((ticket, id), Some(range));
                    return;
                }
                None => Effect::Read { id, range },
            },
        };
        self.effects.push_back(effect);
    }

    /// The replica serves from now on.
    pub(crate) fn unpark(&mut self) {
        for (id, range) in std::mem::take(&mut self.sequence.parked) {
            self.read_or_park(id, range);
        }
    }

    /// Seals the open entries into a batch when the journal is free, and gives the same batch to
    /// the journal and to every peer that has everything before it.
    pub(crate) fn seal(&mut self) {
        while self.seal_batch() {
            self.answer_from_memory();
        }
    }

    /// Whether there was a batch.
    fn seal_batch(&mut self) -> bool {
        if self.sequence.nothing_open() {
            return false;
        }
        let blocked = self.role != Role::Primary || self.paused || self.seal_waits();
        if blocked || self.sequence.waits_for_rollback() || self.held_by_lag() {
            return false;
        }
        let first = self.log.end.index.next();
        let mut entries = std::mem::take(&mut self.sequence.sealing);
        self.sequence.take_batch(self.room, first, &mut entries);
        let sealed = !entries.is_empty();
        if sealed {
            reach!("replica: a batch is sealed");
            if self.log.end.index > self.log.durable && self.log.end.index > self.answered() {
                reach!("replica: a batch is sealed while others are written to the journal");
            }
            self.append_own(entries.drain(..));
        } else {
            reach!("replica: the journal has no room for the open batch");
        }
        self.sequence.sealing = entries;
        sealed
    }

    /// Counts the room down until the journal tells its room after this batch.
    pub(crate) fn take_room(&mut self, len: u64) {
        self.room = self.room.saturating_sub(len);
        self.room_with_reserve = self.room_with_reserve.saturating_sub(len);
    }

    /// Appends a batch of this epoch to the own log and sends it.
    pub(crate) fn append_own(&mut self, entries: impl ExactSizeIterator<Item = NewEntry>) {
        let first = self.log.end.index.next();
        let batch = Arc::new(Batch::seal(
            self.config.resource,
            self.epoch,
            first,
            self.log.chain,
            self.log.commit,
            entries,
        ));
        let len = batch.journal_len();
        let before = self.log.end.index;
        self.own.began(self.now);
        self.take_room(len);
        self.log.note(&batch);
        self.log.appended(&batch);
        self.scrub.sealed(&batch);
        self.sequence.sealed.push(batch.last(), len, self.now, self.mode());
        self.effects.push_back(Effect::Append(Arc::clone(&batch)));
        let window = self.config.window_bytes;
        let mut to = std::mem::take(&mut self.told);
        for (node, peer) in &mut self.peers {
            if peer.durable == before {
                peer.progress_at = self.now;
            }
            let Some(stream) = peer.stream() else { continue };
            // A peer that is behind, or that has not acknowledged enough, is fed from the journal
            // later.
            if stream.next == first && stream.loading.is_none() && stream.sent_bytes < window {
                stream.sent(batch.last(), len, self.now);
                peer.told = batch.commit;
                to.push(*node);
            } else {
                reach!("replica: a peer is fed from the journal later");
            }
        }
        for node in to.drain(..) {
            self.send_as_primary(node, Message::Append(Arc::clone(&batch)));
        }
        self.told = to;
    }

    /// Completes the requests up to the commit index, in the order of the log.
    pub(crate) fn complete_committed(&mut self) {
        if self.held_for_copies() {
            reach!("replica: what is committed is held for want of copies");
            // No client waits for a repair. But a copy may wait for it, and without that copy there
            // will never be enough. Seed 3254914.
            while self.sequence.in_flight.next_repair(self.log.commit) {
                reach!("replica: a repair ends while copies are wanted");
                self.complete(RequestId::REPAIR, Ok(()));
            }
            return;
        }
        while let Some((id, ticket)) = self.sequence.pop_committed(self.log.commit) {
            if let Some(id) = id {
                self.complete(id, Ok(()));
            }
            while let Some((id, range)) = self.sequence.pop_read(ticket) {
                self.effects.push_back(match range {
                    Some(range) => {
                        reach!("replica: a read that waited is executed");
                        Effect::Read { id, range }
                    }
                    None => {
                        reach!("replica: a flush that waited is complete");
                        Effect::Complete { id, result: Ok(()) }
                    }
                });
            }
        }
    }

    /// Fails every request that is held.
    pub(crate) fn fail_requests(&mut self, error: RequestError) {
        let kept = if planted(Bug::FailedWriteKept) {
            std::mem::take(&mut self.sequence.open)
        } else {
            VecDeque::new()
        };
        let told: Vec<_> = kept.iter().map(|open| open.id).collect();
        for id in self.sequence.abandon().into_iter().chain(told) {
            reach!("replica: a request fails with the epoch");
            self.complete(id, Err(error));
        }
        for Open { id, kind, range, payload, mark, .. } in kept {
            self.sequence.admit(id, kind, range, payload, mark);
        }
    }

    /// Says [`Effect::Paused`] once everything sequenced is committed.
    pub(crate) fn report_pause(&mut self) {
        if self.pause_wanted && self.role == Role::Primary && self.log.commit == self.log.end.index {
            reach!("replica: everything is committed while paused");
            self.pause_wanted = false;
            self.effects.push_back(Effect::Paused { at: self.log.end });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change waits for room before it is sealed, and that wait is part of its latency.
    #[test]
    fn the_latency_of_a_change_runs_from_its_admission_to_its_commit() {
        let mut sequence = Sequence::default();
        let admit = |sequence: &mut Sequence, id| {
            let range = Range { volume: VolumeId(0), offset: 0, len: BLOCK_BYTES };
            let payload = Bytes::from_static(&[0; BLOCK_BYTES as usize]);
            sequence.admit(RequestId(id), EntryKind::Write, range, payload, ClientMark::default());
        };
        admit(&mut sequence, 1);
        for (id, now) in [(2, 20), (3, 30)] {
            sequence.watch_next(Time(now));
            admit(&mut sequence, id);
        }
        assert_eq!((sequence.watched_since(), sequence.take_watched(Index(9))), (Some(Time(20)), None));
        sequence.take_batch(1 << 20, Index(1), &mut Vec::new());
        assert_eq!(sequence.take_watched(Index(1)), None);
        assert_eq!((sequence.take_watched(Index(2)), sequence.watched_since()), (Some(Time(20)), None));
        sequence.watch_next(Time(40));
        admit(&mut sequence, 4);
        assert_eq!(sequence.fail_held().len(), 4);
        assert_eq!(sequence.watched_since(), None, "it will never be sealed");
    }

    /// Seed 2446022: the count of failed entries went wrong. So no role ended, and no request was
    /// admitted any more.
    #[test]
    fn an_entry_that_fails_while_in_memory_everywhere_is_counted_once() {
        let mut sequence = Sequence::default();
        let (one, two) = (RequestId(1), RequestId(2));
        let snapshot = snapshot_range(mainstay_types::SnapshotId(1));
        sequence.admit(one, EntryKind::Snapshot, snapshot, Bytes::new(), ClientMark::default());
        sequence.take_batch(1 << 20, Index(1), &mut Vec::new());
        let range = Range { volume: VolumeId(0), offset: 0, len: BLOCK_BYTES };
        sequence.admit(two, EntryKind::Discard, range, Bytes::new(), ClientMark::default());
        sequence.take_batch(1 << 20, Index(2), &mut Vec::new());
        // Mode B: the entry is in the memory of all, and its request is answered when it is
        // committed.
        assert_eq!(sequence.in_flight.answer(Index(1)), Some(None));
        assert_eq!(sequence.fail_held(), [one, two]);
        assert_eq!(sequence.len(), 0);
        for _ in 0..2 {
            assert!(sequence.pop_committed(Index(2)).is_some_and(|(told, _)| told.is_none()));
            assert_eq!(sequence.len(), 0);
        }
        assert!(sequence.finished() && sequence.bytes() == 0 && sequence.uncommitted.is_empty());
    }

    /// Copies are wanted, so the write before it is not acknowledged; then there are enough.
    #[test]
    fn a_repair_ends_once_though_the_write_before_it_is_held() {
        let mut sequence = Sequence::default();
        let range = |block: u64| Range { volume: VolumeId(0), offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
        let one = RequestId(1);
        sequence.admit(one, EntryKind::Discard, range(0), Bytes::new(), ClientMark::default());
        sequence.admit(RequestId::REPAIR, EntryKind::Discard, range(1), Bytes::new(), ClientMark::REPAIR);
        sequence.take_batch(1 << 20, Index(1), &mut Vec::new());
        assert!(!sequence.in_flight.next_repair(Index(1)), "it is not committed");
        assert!(sequence.in_flight.next_repair(Index(2)) && !sequence.in_flight.next_repair(Index(2)));
        // Mode B: both are in the memory of all now.
        assert_eq!(sequence.in_flight.answer(Index(2)), Some(Some(one)));
        assert_eq!(sequence.in_flight.answer(Index(2)), Some(None));
        for _ in 0..2 {
            assert!(sequence.pop_committed(Index(2)).is_some_and(|(told, _)| told.is_none()));
        }
        assert!(sequence.finished() && sequence.bytes() == 0 && sequence.uncommitted.is_empty());
    }
}
