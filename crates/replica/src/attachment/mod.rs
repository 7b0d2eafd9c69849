//! Clients: nodes that have the devices of a resource and no replica of it ([ADR
//! 13](../../../../docs/adr/0013-clients.md)).
//!
//! - One writer at a time: the primary admits requests of the session that its record names, or of
//!   its own device if it names none.
//! - A change is in a log once (S18): session and number rise along the log. A change that is not
//!   above the last one is in the log already.
//!
//! This file has what a log knows of clients. `primary.rs` is the primary's side of the
//! conversation, `client.rs` the client's.

mod client;
#[cfg(test)]
mod pair;
mod primary;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientConfig, ClientEffect, ClientEvent};
pub use primary::AttachedClients;

use crate::{Op, Replica};
use mainstay_codec::Batch;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Attachment, ClientMark, Index, SessionId};
use std::collections::VecDeque;

/// The last change that a client asked for, along a log. As with sizes, an entry counts from its
/// place on, and goes with the tail that is cut.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Mark of the last change up to the commit index.
    committed: ClientMark,
    /// Marks after the commit index, one for each batch at most.
    ahead: VecDeque<(Index, ClientMark)>,
}

impl Marks {
    pub fn new(committed: ClientMark, ahead: Vec<(Index, ClientMark)>) -> Self {
        Self { committed, ahead: ahead.into() }
    }

    pub fn committed(&self) -> ClientMark {
        self.committed
    }

    /// Mark at the end of the noted entries.
    pub fn at_end(&self) -> ClientMark {
        self.ahead.back().map_or(self.committed, |(_, mark)| *mark)
    }

    /// A batch comes next in the log.
    pub fn note(&mut self, batch: &Batch) {
        self.ahead.extend(batch.last_of_client());
    }

    pub fn commit_to(&mut self, to: Index) {
        while let Some((_, mark)) = self.ahead.front().filter(|(index, _)| *index <= to) {
            self.committed = *mark;
            self.ahead.pop_front();
        }
    }

    /// The log ends at `end` again.
    pub fn cut(&mut self, end: Index) {
        while self.ahead.back().is_some_and(|(index, _)| *index > end) {
            self.ahead.pop_back();
        }
    }

    /// The log begins anew where this is the last one.
    pub fn restart(&mut self, client: ClientMark) {
        self.ahead.clear();
        self.committed = client;
    }
}

impl Replica {
    /// The last change that a client asked for, in the log.
    #[must_use]
    pub fn client_mark(&self) -> ClientMark {
        self.log.clients.at_end()
    }

    /// The same, from a primary with nothing on its way to the log. A change that a client asked
    /// for is not above this mark, or will never be in the log.
    #[must_use]
    pub fn settled_client_mark(&self) -> Option<ClientMark> {
        let settled = self.serving() && !self.sequence.demoting && self.sequence.changes_nothing();
        (settled && !self.refuses_for_copies()).then(|| self.client_mark())
    }

    /// Where the devices are, as the record says that it acts on.
    #[must_use]
    pub fn attached(&self) -> Option<Attachment> {
        self.record.as_ref()?.attached
    }

    /// Whether the record allows requests of this session. Those of the control plane are always
    /// allowed.
    pub(crate) fn admits_session(&self, op: &Op, session: SessionId) -> bool {
        if matches!(
            op,
            Op::Resize { .. } | Op::Snapshot { .. } | Op::DropSnapshot { .. } | Op::Rollback { .. }
        ) {
            return true;
        }
        let named = self.attached().map_or(SessionId(0), |attached| attached.session);
        session == named || planted(Bug::OldSessionAdmitted)
    }
}

#[cfg(test)]
mod marks {
    use super::*;
    use bytes::Bytes;
    use mainstay_codec::{EntryKind, NewEntry};
    use mainstay_types::{Chain, Epoch, Range, ResourceId, VolumeId};

    fn mark(session: u64, number: u64) -> ClientMark {
        ClientMark { session: SessionId(session), number }
    }

    fn batch(first: u64, marks: &[ClientMark]) -> Batch {
        let range = Range { volume: VolumeId(0), offset: 0, len: 4096 };
        let entry = |mark: &ClientMark| NewEntry {
            kind: EntryKind::Discard,
            range,
            payload: Bytes::new(),
            session: mark.session.0,
            request: mark.number,
        };
        let entries: Vec<_> = marks.iter().map(entry).collect();
        Batch::seal(ResourceId(1), Epoch(1), Index(first), Chain(0), Index(0), entries)
    }

    #[test]
    fn a_mark_counts_from_its_entry_on_goes_with_the_tail_and_with_a_copy() {
        let mut marks = Marks::new(mark(2, 8), Vec::new());
        marks.note(&batch(5, &[mark(2, 9), mark(4, 1), mark(0, 0)]));
        marks.note(&batch(8, &[mark(0, 0)]));
        marks.note(&batch(9, &[mark(4, 2)]));
        assert_eq!((marks.at_end(), marks.committed()), (mark(4, 2), mark(2, 8)));
        marks.cut(Index(8));
        assert_eq!(marks.at_end(), mark(4, 1));
        marks.commit_to(Index(7));
        assert_eq!((marks.at_end(), marks.committed()), (mark(4, 1), mark(4, 1)));
        marks.note(&batch(9, &[mark(4, 2)]));
        marks.restart(mark(3, 3));
        assert_eq!((marks.at_end(), marks.committed()), (mark(3, 3), mark(3, 3)));
    }
}
