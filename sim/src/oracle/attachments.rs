//! S18: a change that a client asks for is in a log once, and writers follow each other as the
//! record says.
//!
//! The oracle judges every batch when it first sees it, by the content of the log before it. It
//! knows a log by its chain.

use super::Violation;
use mainstay_codec::Batch;
use mainstay_types::{Chain, ClientMark, ConfigVersion, Epoch, ResourceRecord, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Oracle of the writers of one resource (S18). It knows which session may write from which version
/// of the record on, and where each log ends.
#[derive(Debug, Default)]
pub struct AttachmentsOracle {
    /// Session 0 is the primary's own device.
    owners: BTreeMap<ConfigVersion, SessionId>,
    logs: BTreeMap<Chain, End>,
    /// Changes that are entries of some log, and the highest of each session that the client was
    /// told is done.
    changes: BTreeSet<ClientMark>,
    told: BTreeMap<SessionId, (u64, Epoch)>,
}

/// End of a log, as far as it is known: its last change by a client.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    mark: ClientMark,
    /// First version under which the last change may have been admitted.
    version: ConfigVersion,
}

impl AttachmentsOracle {
    /// The control plane has this record now.
    pub fn record(&mut self, record: &ResourceRecord) {
        let owner = record.attached.map_or(SessionId(0), |attached| attached.session);
        let last = self.owners.last_key_value().map(|(_, owner)| *owner);
        if last != Some(owner) {
            self.owners.insert(record.version, owner);
        }
    }

    /// The primary of an epoch tells a client that a request is done.
    pub fn told(&mut self, session: SessionId, number: u64, epoch: Epoch) {
        // A flush has no entry.
        if self.changes.contains(&ClientMark { session, number }) {
            let known = self.told.entry(session).or_default();
            *known = (number.max(known.0), epoch.max(known.1));
        }
    }

    /// Some replica appends it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn appended(&mut self, batch: &Batch) -> Result<(), Violation> {
        if self.logs.contains_key(&batch.chain) {
            return Ok(());
        }
        let mut end = self.logs.get(&batch.prev_chain).copied().unwrap_or_default();
        for (at, entry) in (batch.first.0..).zip(&batch.entries) {
            let mark = ClientMark { session: SessionId(entry.session), number: entry.request };
            if entry.session > 0 {
                if mark <= end.mark {
                    let text =
                        format!("entry {at} is change {mark:?} of a client, and the log has {:?}", end.mark);
                    return Err(Violation { id: "S18", text });
                }
                let held = if end.mark.session == mark.session { end.mark.number } else { 0 };
                let (told, epoch) = self.told.get(&mark.session).copied().unwrap_or_default();
                // A primary that was replaced may still add to its own log, and no client is ever
                // told of that.
                if held < told && batch.epoch >= epoch {
                    let text = format!(
                        "entry {at} is change {mark:?}; the client was told of {told}, which is lost, and its session goes on"
                    );
                    return Err(Violation { id: "S18", text });
                }
                end.mark = mark;
                self.changes.insert(mark);
            }
            // A repair by a scrub belongs to no client, so any client may be the writer.
            if entry.kind.changes_blocks() && mark != ClientMark::REPAIR {
                end.version = self.admitted(at, mark.session, end.version)?;
            }
        }
        self.logs.insert(batch.chain, end);
        Ok(())
    }

    /// The first version, not before `since`, that names this session.
    fn admitted(
        &self,
        at: u64,
        session: SessionId,
        since: ConfigVersion,
    ) -> Result<ConfigVersion, Violation> {
        let present = self.owners.range(..=since).next_back().map_or(SessionId(0), |(_, owner)| *owner);
        if present == session {
            return Ok(since);
        }
        let later = self.owners.range(since.next()..).find(|(_, owner)| **owner == session);
        later.map(|(version, _)| *version).ok_or_else(|| Violation {
            id: "S18",
            text: format!(
                "entry {at} is of session {session}, and what is before it was admitted as of {since} or later"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mainstay_codec::{EntryKind, NewEntry};
    use mainstay_types::{Attachment, Index, NodeId, Range, ResourceId, VolumeId};

    fn owner(oracle: &mut AttachmentsOracle, version: u64, session: u64) {
        let mut record = ResourceRecord::new(ResourceId(1));
        record.version = ConfigVersion(version);
        record.attached = (session > 0).then_some(Attachment {
            node: NodeId(3),
            session: SessionId(session),
            instance: None,
            wait_ms: 1000,
        });
        oracle.record(&record);
    }

    fn batch(prev: Chain, first: u64, marks: &[(u64, u64)]) -> Batch {
        let range = Range { volume: VolumeId(0), offset: 0, len: 4096 };
        let entry = |&(session, request): &(u64, u64)| NewEntry {
            kind: EntryKind::Discard,
            range,
            payload: Bytes::new(),
            session,
            request,
        };
        let entries: Vec<_> = marks.iter().map(entry).collect();
        Batch::seal(ResourceId(1), Epoch(1), Index(first), prev, Index(0), entries)
    }

    fn id(result: Result<(), Violation>) -> &'static str {
        result.expect_err("a violation").id
    }

    #[test]
    fn a_change_is_in_a_log_once_and_in_each_log() {
        let mut oracle = AttachmentsOracle::default();
        owner(&mut oracle, 1, 0);
        owner(&mut oracle, 4, 4);
        let first = batch(Chain(0), 1, &[(0, 0), (4, 1), (4, 2)]);
        oracle.appended(&first).expect("in order");
        oracle.appended(&first).expect("the same on another replica");
        assert_eq!(id(oracle.appended(&batch(first.chain, 4, &[(4, 2)]))), "S18");
        let next = batch(first.chain, 4, &[(4, 3)]);
        oracle.appended(&next).expect("the next one");
        // The tail was cut, and it is asked for again.
        oracle.appended(&batch(first.chain, 4, &[(4, 3), (4, 5)])).expect("another log");
    }

    #[test]
    fn a_session_does_not_go_on_after_an_answered_change_is_lost() {
        let mut oracle = AttachmentsOracle::default();
        owner(&mut oracle, 4, 4);
        let first = batch(Chain(0), 1, &[(4, 1)]);
        oracle.appended(&first).expect("in order");
        oracle.appended(&batch(first.chain, 2, &[(4, 2)])).expect("in order");
        oracle.told(SessionId(4), 9, Epoch(1));
        oracle.appended(&batch(first.chain, 2, &[(4, 2), (4, 4)])).expect("a flush is no entry");
        oracle.told(SessionId(4), 2, Epoch(1));
        assert_eq!(id(oracle.appended(&batch(first.chain, 2, &[(4, 5)]))), "S18");
        oracle
            .appended(&batch(first.chain, 2, &[(0, 0)]))
            .expect_err("nor is the session over for the record");
        owner(&mut oracle, 8, 8);
        oracle.appended(&batch(first.chain, 2, &[(8, 1)])).expect("another session");
    }

    #[test]
    fn writers_follow_each_other_as_the_record_says() {
        let mut oracle = AttachmentsOracle::default();
        for (version, session) in [(1, 0), (4, 4), (7, 7), (9, 0)] {
            owner(&mut oracle, version, session);
        }
        let first = batch(Chain(0), 1, &[(4, 1), (7, 1)]);
        oracle.appended(&first).expect("in order");
        assert_eq!(id(oracle.appended(&batch(first.chain, 3, &[(4, 2)]))), "S18", "an older session");
        assert_eq!(id(oracle.appended(&batch(first.chain, 3, &[(8, 1)]))), "S18", "one that no record knows");
        oracle.appended(&batch(first.chain, 3, &[(0, 1), (7, 2)])).expect("a repair is of no client");
        let last = batch(first.chain, 3, &[(0, 0)]);
        oracle.appended(&last).expect("the primary's own device, after the end of the session");
        assert_eq!(id(oracle.appended(&batch(last.chain, 4, &[(7, 2)]))), "S18");
    }
}
