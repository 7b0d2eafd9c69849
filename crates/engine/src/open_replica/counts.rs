//! Counts of a replica while it works, for `GET /metrics` of the agent.
//!
//! Guarantees: counting allocates nothing once the lists have their lengths, takes no lock and
//! reads no clock. The shard owns the numbers, and the time is that of its turn. The cores do not
//! know of the counts: their effects pass by here ([`Counts::observe`]). The cores themselves count
//! only how long a peer took to acknowledge (`slow.rs`), as no other part can know it. A read of
//! the numbers is a copy of them.

use mainstay_api::metrics::{PeerCounts, PromotionStep, ReplicaCounts, RequestKind, VolumeCounts};
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Batch, EntryKind, Message};
use mainstay_host::{CoreMessage, Host};
use mainstay_replica::Effect;
use mainstay_store::{Area, OpId, Output};
use mainstay_types::{Index, NodeId, Role, Time, VolumeId};
use std::collections::VecDeque;

/// A request of a device that is under way.
pub(super) struct DeviceRequest {
    pub kind: RequestKind,
    pub volume: VolumeId,
    pub bytes: u64,
    pub since: Time,
    /// Since when it may be executed, for a read.
    pub reads_since: Option<Time>,
}

/// A promotion under way.
struct Promotion {
    /// When its last step ended.
    since: Time,
    /// By [`PromotionStep::ALL`].
    ended: [bool; 4],
}

/// See the top of this file.
pub(super) struct Counts {
    all: ReplicaCounts,
    /// The writes of the journal that are in flight.
    journal: Vec<(OpId, Time)>,
    /// Batches of a primary that are not committed: their last entries, and when they were sealed.
    /// Each one holds a request that is not answered, so there are few.
    sealed: VecDeque<(Index, Time)>,
    leads: bool,
    promotion: Option<Promotion>,
}

impl Counts {
    pub fn new(volumes: usize) -> Self {
        let all =
            ReplicaCounts { volumes: vec![VolumeCounts::default(); volumes], ..ReplicaCounts::default() };
        Self { all, journal: Vec::new(), sealed: VecDeque::new(), leads: false, promotion: None }
    }

    /// The numbers as they are now.
    pub fn taken(&self, host: &Host) -> ReplicaCounts {
        let replica = host.replica();
        let mut all = self.all.clone();
        all.filling_slowed = replica.filling_slowed();
        all.cached_bytes = replica.cached_bytes();
        all.scrubs = super::scrub::counts(replica);
        all.damage = super::scrub::damage(host);
        let (copies, wanted) = replica.copies().unwrap_or_default();
        (all.copies, all.min_copies) = (copies as u64, wanted as u64);
        all.required = u64::from(self.leads);
        for counts in replica.peer_counts() {
            all.required += u64::from(counts.required);
            let peer = peer(&mut all.peers, counts.node);
            peer.acknowledged_us = counts.acknowledged_us.clone();
            peer.times_slow = counts.times_slow;
        }
        // They were met in any order.
        all.peers.sort_by_key(|peer| peer.node);
        all
    }

    /// Counts an effect or an output that passes between the cores.
    pub fn observe(&mut self, now: Time, seen: CoreMessage<'_>) {
        match seen {
            CoreMessage::Effect(Effect::Append(batch)) if self.leads => self.appended(now, batch),
            CoreMessage::Effect(Effect::Commit(index)) => self.committed(now, *index),
            CoreMessage::Effect(Effect::Send { to, envelope }) => self.sent(*to, &envelope.message),
            CoreMessage::Effect(Effect::InstallExtent { data, .. }) => {
                self.all.copied_extents += 1;
                self.all.copied_bytes += data.len() as u64;
            }
            CoreMessage::Effect(_) => {}
            CoreMessage::Output(output) => self.output(now, output),
        }
    }

    fn appended(&mut self, now: Time, batch: &Batch) {
        if batch.entries.first().is_some_and(|entry| entry.kind == EntryKind::EpochStart) {
            return self.promoted(now, PromotionStep::Begin);
        }
        self.all.batch_entries.note(batch.entries.len() as u64);
        self.sealed.push_back((batch.last(), now));
    }

    fn committed(&mut self, now: Time, index: Index) {
        while let Some(&(last, since)) = self.sealed.front()
            && last <= index
        {
            self.sealed.pop_front();
            self.all.commit_us.note(now.us_since(since));
        }
    }

    fn sent(&mut self, to: NodeId, message: &Message) {
        match message {
            Message::Append(batch) => {
                let peer = peer(&mut self.all.peers, to);
                peer.sent_batches += 1;
                peer.sent_bytes += batch.journal_len();
            }
            Message::CopyExtent { data, .. } => {
                let peer = peer(&mut self.all.peers, to);
                peer.copied_extents += 1;
                peer.copied_bytes += data.len() as u64;
            }
            _ => {}
        }
    }

    fn output(&mut self, now: Time, output: &Output) {
        let disk = &mut self.all.disk;
        match output {
            Output::JournalWrite { op, parts, .. } => {
                self.journal.push((*op, now));
                // The header block alone, if a large write goes straight to its place.
                let payloads = parts.iter().flat_map(|(_, batch)| &batch.payload);
                let payload = payloads.map(|piece| piece.len() as u64).sum::<u64>();
                disk.journal_written += (parts.len() * HEADER_BLOCK_BYTES) as u64 + payload;
            }
            Output::JournalRead { len, .. } => disk.journal_read += len,
            Output::VolumeWrite { data, .. } => {
                disk.volume_written += data.iter().map(|piece| piece.len() as u64).sum::<u64>();
            }
            Output::VolumeZero { len, .. } => disk.zeroed += len,
            Output::MetaWrite { data, .. } => disk.metadata_written += data.len() as u64,
            Output::Promised { .. } => self.promoted(now, PromotionStep::Promise),
            _ => {}
        }
    }

    /// An operation of the store has ended.
    pub fn store_done(&mut self, now: Time, op: OpId) {
        if let Some(at) = self.journal.iter().position(|(written, _)| *written == op) {
            let (_, since) = self.journal.swap_remove(at);
            self.all.journal_us.note(now.us_since(since));
        }
    }

    /// Something is read back, but for the store.
    pub fn reads(&mut self, area: Area, len: u64) {
        match area {
            Area::Journal => self.all.disk.journal_read += len,
            Area::Volume(_) => self.all.disk.volume_read += len,
            Area::Meta | Area::Sums(_) => {}
        }
    }

    /// A request of a device gets its answer.
    pub fn answered(&mut self, now: Time, asked: &DeviceRequest, well: bool) {
        let kind = asked.kind as usize;
        if let Some(volume) = self.all.volumes.get_mut(usize::from(asked.volume.0)) {
            let done = &mut volume.requests[kind];
            done.count += 1;
            done.bytes += asked.bytes;
            done.errors += u64::from(!well);
        }
        self.all.requests_us[kind].note(now.us_since(asked.since));
        if let Some(since) = asked.reads_since {
            self.all.read_us.note(now.us_since(since));
        }
    }

    pub fn role_changed(&mut self, now: Time, role: Role) {
        self.leads = matches!(role, Role::Promoting | Role::Primary);
        match role {
            Role::Promoting => self.promotion = Some(Promotion { since: now, ended: [false; 4] }),
            Role::Primary => self.promoted(now, PromotionStep::Serve),
            Role::Secondary | Role::Fenced => {
                self.promotion = None;
                self.sealed.clear();
            }
        }
    }

    /// All devices are there.
    pub fn attached(&mut self, now: Time) {
        self.promoted(now, PromotionStep::Device);
        self.promotion = None;
    }

    /// A step of a promotion has ended; each counts once.
    fn promoted(&mut self, now: Time, step: PromotionStep) {
        let Some(promotion) = &mut self.promotion else { return };
        if !std::mem::replace(&mut promotion.ended[step as usize], true) {
            let since = std::mem::replace(&mut promotion.since, now);
            self.all.promotions[step as usize].note(now.us_since(since));
        }
    }
}

/// The counts of a peer. There are few, so a search is cheaper than a tree.
fn peer(peers: &mut Vec<PeerCounts>, node: NodeId) -> &mut PeerCounts {
    let place = peers.iter().position(|peer| peer.node == node).unwrap_or_else(|| {
        peers.push(PeerCounts { node, ..PeerCounts::default() });
        peers.len() - 1
    });
    &mut peers[place]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mainstay_codec::NewEntry;
    use mainstay_types::{Chain, Epoch, Range, ResourceId};
    use std::sync::Arc;

    fn batch(first: u64, kind: EntryKind, entries: usize) -> Arc<Batch> {
        let (len, payload) = match kind {
            EntryKind::Write => (4096, Bytes::from(vec![1; 4096])),
            _ => (0, Bytes::new()),
        };
        let range = Range { volume: VolumeId(0), offset: 0, len };
        let entry = NewEntry { kind, range, payload, session: 0, request: 0 };
        let entries = vec![entry; entries];
        Arc::new(Batch::seal(ResourceId(1), Epoch(1), Index(first), Chain(0), Index(0), entries))
    }

    fn appended(counts: &mut Counts, at: u64, batch: Arc<Batch>) {
        counts.observe(Time(at), CoreMessage::Effect(&Effect::Append(batch)));
    }

    fn committed(counts: &mut Counts, at: u64, index: u64) {
        counts.observe(Time(at), CoreMessage::Effect(&Effect::Commit(Index(index))));
    }

    #[test]
    fn a_promotion_and_its_batches_are_timed() {
        let mut counts = Counts::new(1);
        // The primary times what a secondary appends and commits.
        appended(&mut counts, 1, batch(1, EntryKind::Write, 1));
        committed(&mut counts, 2, 1);
        assert!(counts.all.commit_us.is_empty() && counts.all.batch_entries.is_empty());

        counts.role_changed(Time(100), Role::Promoting);
        counts.observe(Time(110), CoreMessage::Output(&Output::Promised { epoch: Epoch(2) }));
        counts.observe(Time(115), CoreMessage::Output(&Output::Promised { epoch: Epoch(2) }));
        appended(&mut counts, 130, batch(2, EntryKind::EpochStart, 1));
        counts.role_changed(Time(160), Role::Primary);
        counts.attached(Time(200));
        counts.attached(Time(900));
        let took = counts.all.promotions.map(|step| (step.count, step.sum_us));
        assert_eq!(took, [(1, 10), (1, 20), (1, 30), (1, 40)]);

        appended(&mut counts, 1000, batch(3, EntryKind::Write, 3));
        appended(&mut counts, 1010, batch(6, EntryKind::Write, 1));
        committed(&mut counts, 1100, 5);
        assert_eq!((counts.all.commit_us.count(), counts.all.commit_us.sum()), (1, 100));
        committed(&mut counts, 1200, 9);
        assert_eq!((counts.all.commit_us.count(), counts.all.commit_us.sum()), (2, 290));
        assert_eq!((counts.all.batch_entries.count(), counts.all.batch_entries.sum()), (2, 4));

        // A batch in flight when the replica stopped being primary has no commit.
        appended(&mut counts, 2000, batch(7, EntryKind::Write, 1));
        counts.role_changed(Time(2001), Role::Secondary);
        committed(&mut counts, 2100, 9);
        assert_eq!(counts.all.commit_us.count(), 2);
    }

    #[test]
    fn requests_and_disks_are_counted() {
        let mut counts = Counts::new(2);
        let asked = |kind, volume, bytes, reads_since: Option<u64>| DeviceRequest {
            kind,
            volume: VolumeId(volume),
            bytes,
            since: Time(10),
            reads_since: reads_since.map(Time),
        };
        counts.answered(Time(50), &asked(RequestKind::Write, 1, 4096, None), true);
        counts.answered(Time(60), &asked(RequestKind::Read, 1, 8192, Some(40)), true);
        counts.answered(Time(70), &asked(RequestKind::Read, 0, 8192, None), false);
        let [first, second] = &counts.all.volumes[..] else { panic!("two volumes") };
        let of = |volume: &VolumeCounts, kind: RequestKind| {
            let done = volume.requests[kind as usize];
            (done.count, done.bytes, done.errors)
        };
        assert_eq!(of(first, RequestKind::Read), (1, 8192, 1));
        assert_eq!(of(second, RequestKind::Read), (1, 8192, 0));
        assert_eq!(of(second, RequestKind::Write), (1, 4096, 0));
        assert_eq!(counts.all.requests_us[RequestKind::Read as usize].sum(), 50 + 60);
        assert_eq!((counts.all.read_us.count(), counts.all.read_us.sum()), (1, 20));

        let write = |op: u64, at: u64| Output::JournalWrite {
            op: OpId(op),
            offset: 0,
            parts: [(
                mainstay_codec::LocalHeader {
                    generation: 1,
                    durable_before: Index(0),
                    ..mainstay_codec::LocalHeader::default()
                },
                batch(at, EntryKind::Write, 1),
            )]
            .into_iter()
            .collect(),
        };
        counts.observe(Time(100), CoreMessage::Output(&write(7, 1)));
        counts.observe(Time(110), CoreMessage::Output(&write(8, 2)));
        counts.store_done(Time(120), OpId(6));
        counts.store_done(Time(125), OpId(8));
        counts.store_done(Time(130), OpId(7));
        counts.store_done(Time(140), OpId(7));
        assert_eq!((counts.all.journal_us.count(), counts.all.journal_us.sum()), (2, 15 + 30));
        assert_eq!(counts.all.disk.journal_written, 2 * 8192);
        counts.reads(Area::Volume(VolumeId(1)), 4096);
        assert_eq!(counts.all.disk.volume_read, 4096);
    }

    /// The order of the lists is that of the names.
    #[test]
    fn kinds_and_steps_are_their_places() {
        for (place, kind) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
        for (place, step) in PromotionStep::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, place);
        }
    }
}
