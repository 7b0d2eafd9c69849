//! Entries of the primary that are sealed and not committed, and what their requests were told.
//!
//! Two queues in the order of the log: first the entries that are in the memory of every required
//! replica (mode B), then all others. What the request of an entry was told is one value:
//!
//! | request | of an entry that is sealed | of an entry that is in memory |
//! |---|---|---|
//! | waits | it counts against the limits | its user takes it for done only when it is durable |
//! | done | a repair that ended while copies are wanted (`copies.rs`) | it is acknowledged |
//! | failed | it counts no more, though the entry may still be committed | it had failed before |
//!
//! | event | what it changes |
//! |---|---|
//! | an entry is sealed | it is the last one, and its request waits |
//! | the first sealed entry comes into memory | a request that waits and may be lost is done |
//! | requests fail | every request that waits has failed, except repairs |
//! | a repair ends before its turn | its request is done |
//! | the first entry of all is committed | it is gone; a request that waits is told now |
//!
//! Invariants:
//! - A request is told once, at the latest when its entry is committed. The order is that of the
//!   log, except for repairs.
//! - Each count is a sum over a queue. It changes where the queue or the request changes, and
//!   nowhere else.

use crate::RequestId;
use crate::sequence::Ticket;
use mainstay_codec::EntryKind;
use mainstay_types::{BLOCK_BYTES, Index, Range};
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Waits,
    Done,
    Failed,
}

#[derive(Debug)]
pub(crate) struct InFlight {
    pub id: RequestId,
    pub ticket: Ticket,
    pub index: Index,
    pub kind: EntryKind,
    pub range: Range,
    /// Length of its payload.
    bytes: u64,
    request: Request,
}

impl InFlight {
    /// Whether the request may be acknowledged before it is durable. Users of a device flush what
    /// must last. An operator who asks for a size or a snapshot does not, and takes it for done.
    fn may_be_lost(&self) -> bool {
        let of_device = !matches!(
            self.kind,
            EntryKind::Resize
                | EntryKind::Snapshot
                | EntryKind::DropSnapshot
                | EntryKind::Scrub
                | EntryKind::Rollback
        );
        of_device && self.id != RequestId::REPAIR
    }

    /// The request, if it was told nothing yet.
    pub fn waiting(&self) -> Option<RequestId> {
        (self.request == Request::Waits).then_some(self.id)
    }
}

/// A part of the log, with its sums.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<InFlight>,
    /// Payload bytes.
    bytes: u64,
    /// Number of requests that have failed.
    failed: usize,
}

impl Queue {
    fn push(&mut self, entry: InFlight) {
        self.bytes += entry.bytes;
        self.failed += usize::from(entry.request == Request::Failed);
        self.entries.push_back(entry);
    }

    /// Takes the first entry, unless it is after `to`.
    fn pop(&mut self, to: Index) -> Option<InFlight> {
        self.entries.front().filter(|entry| entry.index <= to)?;
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.bytes;
        self.failed -= usize::from(entry.request == Request::Failed);
        Some(entry)
    }

    /// Fails the requests that wait, except repairs, and adds them to `failed`.
    fn fail(&mut self, failed: &mut Vec<RequestId>) {
        for entry in &mut self.entries {
            if let Some(id) = entry.waiting().filter(|id| *id != RequestId::REPAIR) {
                entry.request = Request::Failed;
                self.failed += 1;
                failed.push(id);
            }
        }
    }
}

/// The entries that are sealed and not committed. See the top of this file.
#[derive(Debug, Default)]
pub(crate) struct EntriesInFlight {
    in_memory: Queue,
    sealed: Queue,
}

impl EntriesInFlight {
    /// Requests that are held.
    pub fn requests(&self) -> usize {
        self.sealed.entries.len() - self.sealed.failed
    }

    /// Payload bytes of the entries that are not acknowledged from memory.
    pub fn bytes(&self) -> u64 {
        self.sealed.bytes
    }

    /// Payload bytes of the entries that are acknowledged from memory, with a block more for each.
    pub fn cached_bytes(&self) -> u64 {
        self.in_memory.bytes + self.in_memory.entries.len() as u64 * BLOCK_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.in_memory.entries.is_empty() && self.sealed.entries.is_empty()
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.in_memory.entries.iter().chain(&self.sealed.entries)
    }

    pub fn last(&self) -> Option<&InFlight> {
        self.sealed.entries.back().or_else(|| self.last_in_memory())
    }

    /// The last entry that is acknowledged and not committed.
    pub fn last_in_memory(&self) -> Option<&InFlight> {
        self.in_memory.entries.back()
    }

    /// An entry with a payload of `bytes` is sealed.
    pub fn push(
        &mut self,
        (id, ticket): (RequestId, Ticket),
        index: Index,
        (kind, range): (EntryKind, Range),
        bytes: u64,
    ) {
        self.sealed.push(InFlight { id, ticket, index, kind, range, bytes, request: Request::Waits });
    }

    /// Takes the next entry up to `to` that is not acknowledged; it counts as acknowledged from now
    /// on. Returns it without its request if that was told before, or is told only when the entry
    /// is committed.
    pub fn answer(&mut self, to: Index) -> Option<Option<RequestId>> {
        let mut entry = self.sealed.pop(to)?;
        let told = entry.waiting().filter(|_| entry.may_be_lost());
        if told.is_some() {
            entry.request = Request::Done;
        }
        self.in_memory.push(entry);
        Some(told)
    }

    /// Fails the requests that wait, in the order of the log. Repairs stay.
    pub fn fail(&mut self) -> Vec<RequestId> {
        let mut failed = Vec::new();
        self.in_memory.fail(&mut failed);
        self.sealed.fail(&mut failed);
        failed
    }

    /// Whether a repair up to `commit` has yet to be counted as ended; it is from now on.
    pub fn next_repair(&mut self, commit: Index) -> bool {
        let mut entries = self.in_memory.entries.iter_mut().chain(&mut self.sealed.entries);
        let repair = entries
            .by_ref()
            .take_while(|entry| entry.index <= commit)
            .find(|entry| entry.waiting() == Some(RequestId::REPAIR));
        repair.map(|entry| entry.request = Request::Done).is_some()
    }

    /// Takes the next entry that is committed.
    pub fn pop_committed(&mut self, commit: Index) -> Option<InFlight> {
        let first = if self.in_memory.entries.is_empty() { &mut self.sealed } else { &mut self.in_memory };
        first.pop(commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::VolumeId;
    use std::collections::BTreeSet;

    const EVENTS: [&str; 7] = ["write", "snapshot", "repair", "in memory", "fail", "repair ends", "commit"];

    /// The entries, and what was told.
    #[derive(Default)]
    struct Lab {
        entries: EntriesInFlight,
        last: u64,
        commit: u64,
        told: BTreeSet<RequestId>,
        repairs: usize,
    }

    impl Lab {
        fn tell(&mut self, id: RequestId) {
            assert!(id == RequestId::REPAIR || self.told.insert(id), "{id:?} is told again");
            self.repairs -= usize::from(id == RequestId::REPAIR);
        }

        fn seal(&mut self, kind: EntryKind, repair: bool) {
            self.last += 1;
            self.repairs += usize::from(repair);
            let id = if repair { RequestId::REPAIR } else { RequestId(self.last) };
            let range = Range { volume: VolumeId(0), offset: 0, len: BLOCK_BYTES };
            self.entries.push((id, self.last), Index(self.last), (kind, range), self.last);
        }

        fn happens(&mut self, event: &str) {
            match event {
                "write" => self.seal(EntryKind::Write, false),
                "snapshot" => self.seal(EntryKind::Snapshot, false),
                "repair" => self.seal(EntryKind::Write, true),
                "in memory" => {
                    let kept = self.entries.sealed.entries.front().is_some_and(|entry| !entry.may_be_lost());
                    if let Some(Some(id)) = self.entries.answer(Index(self.last)) {
                        assert!(!kept, "told before it is durable");
                        self.tell(id);
                    }
                }
                "fail" => self.entries.fail().into_iter().for_each(|id| self.tell(id)),
                "repair ends" => {
                    if self.entries.next_repair(Index(self.last)) {
                        self.tell(RequestId::REPAIR);
                    }
                }
                _ => {
                    self.commit = self.last.min(self.commit + 1);
                    if let Some(entry) = self.entries.pop_committed(Index(self.commit)) {
                        assert_eq!(entry.index, Index(self.commit), "an entry is left out");
                        entry.waiting().into_iter().for_each(|id| self.tell(id));
                    }
                }
            }
            self.count();
        }

        /// Counts anew, entry by entry.
        fn count(&self) {
            let EntriesInFlight { in_memory, sealed } = &self.entries;
            let bytes = |queue: &Queue| queue.entries.iter().map(|entry| entry.bytes).sum::<u64>();
            let held = sealed.entries.iter().filter(|entry| entry.request != Request::Failed).count();
            assert_eq!((self.entries.requests(), self.entries.bytes()), (held, bytes(sealed)));
            let blocks = in_memory.entries.len() as u64;
            assert_eq!(self.entries.cached_bytes(), bytes(in_memory) + blocks * BLOCK_BYTES);
            let indexes: Vec<_> = self.entries.iter().map(|entry| entry.index.0).collect();
            assert_eq!(indexes, (self.commit + 1..=self.last).collect::<Vec<_>>());
            assert_eq!(self.entries.is_empty(), indexes.is_empty());
            assert_eq!(self.entries.last().map(|entry| entry.index.0), indexes.last().copied());
            let waiting = self.entries.iter().filter_map(InFlight::waiting).filter(|id| id.is_of_client());
            assert!(waiting.into_iter().all(|id| !self.told.contains(&id)));
        }
    }

    #[test]
    fn every_request_is_told_once_and_the_counts_are_right_after_any_events() {
        let length = 6;
        for number in 0..EVENTS.len().pow(length) {
            let mut lab = Lab::default();
            let events = (0..length).map(|place| EVENTS[number / EVENTS.len().pow(place) % EVENTS.len()]);
            events.for_each(|event| lab.happens(event));
            let clients = lab.entries.iter().filter_map(InFlight::waiting).filter(|id| id.is_of_client());
            let (waiting, told) = (clients.count(), lab.told.len());
            while lab.commit < lab.last {
                lab.happens("commit");
            }
            assert_eq!(lab.told.len(), told + waiting);
            assert_eq!((lab.repairs, lab.entries.requests(), lab.entries.bytes()), (0, 0, 0));
            assert!(lab.entries.is_empty());
        }
    }
}
