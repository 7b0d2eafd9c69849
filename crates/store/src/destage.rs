//! Destaging (R7, R14, R18). A *pass* brings the backing store up to one position of the log, in
//! these steps:
//!
//! 1. It makes the commit index durable. So after a crash no volume is newer than the known commit
//!    index, except for blocks that were filled (`fill.rs`), and a cut never reaches below it.
//! 2. It writes the newest version of every block that was last changed at or before the position,
//!    in the order of the volume and merged.
//! 3. It flushes every volume that it has written to.
//! 4. It writes the sums of blocks that have changed.
//! 5. It writes the version table to the slot that is not in use.
//! 6. It writes the superblock. Then the journal up to the position is free.
//!
//! A pass goes no further than a part of the journal ([`crate::Tuning::pass_parts`]), oldest
//! entries first. So a client that waits for room waits for one pass. And a block that is written
//! again and again is not old enough to be written to the volume.
//!
//! A pass that ends at a snapshot has it taken after the sums (`snapshots.rs`).
//!
//! Blocks that changed again after the position stay in the overlay and are not written. Their
//! newer version is committed, and durable in the journal behind the checkpoint. The superblock's
//! commit index covers it, so that recovery lays it over the volume again.

use crate::overlay::{Content, Run};
use crate::read::Found;
use crate::recovery::table_offset;
use crate::sums::{PageAt, ZEROES_BLOCKS_MAX};
use crate::superblock::Job;
use crate::versions::{PageId, first_page, placed};
use crate::volume_op::{Filling, Group, Owner, Piece, Pieces};
use crate::{Op, Output, Store};
use bytes::Bytes;
use mainstay_codec::TablePlace;
use mainstay_codec::versions::VERSIONS_PAGE_BYTES;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, Chain, Index, Position, SnapshotId, VolumeId, reach};
use smallvec::{SmallVec, smallvec};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The commit index must be durable first.
    Announce {
        submitted: bool,
    },
    /// From here on there may be blocks to write.
    Writes {
        cursor: (VolumeId, u64),
    },
    Flushes {
        left: usize,
    },
    /// Sums of blocks that have changed, from this page on.
    Sums {
        from: PageAt,
    },
    /// The volumes hold the content of a snapshot, and the snapshot is being taken.
    Snapshot,
    /// From this page on the version table is still to be written.
    Table {
        from: PageId,
        in_flight: usize,
    },
    Superblock {
        submitted: bool,
    },
}

/// Runs of one write. Mostly one, where writes are scattered.
type Runs = SmallVec<[Run; 4]>;

/// Most runs of zeroes that become one operation.
const ZEROES_RUNS_MAX: usize = 1024;

/// The largest urgency of a pass.
const URGENCY_MAX: u64 = 1 << 10;

const FIRST_WRITES: Stage = Stage::Writes { cursor: (VolumeId(0), 0) };
const FIRST_PAGE: Stage = Stage::Table { from: PageId { volume: 0, page: 0 }, in_flight: 0 };
/// Most writes of version tables in flight: there is at least one for each volume.
const TABLE_WRITES_MAX: usize = 8;

#[derive(Debug)]
pub struct Pass {
    to: Position,
    chain: Chain,
    /// The end of an extent copy: the replica is consistent when this pass is durable.
    finish: bool,
    /// Whether something waits for its end: a forced checkpoint, a restart, a copy or a snapshot.
    awaited: bool,
    /// Sizes of the volumes that it records, and where their version tables are to lie.
    volumes: Vec<u64>,
    tables: Vec<TablePlace>,
    /// Snapshot at whose entry the pass ends.
    snapshot: Option<SnapshotId>,
    /// Snapshots that were dropped, from when its superblock is submitted.
    doomed: Vec<SnapshotId>,
    stage: Stage,
}

impl Store {
    /// Wants a checkpoint of everything committed, however little it is.
    pub fn destage_now(&mut self) {
        self.destage_forced = true;
    }

    /// Takes the pass as far as it goes now.
    pub(crate) fn destage(&mut self) {
        if self.pass.is_none() {
            self.pass = self.next_pass();
        }
        while let Some(stage) = self.pass.as_ref().map(|pass| pass.stage) {
            let next = match stage {
                Stage::Writes { cursor } => self.issue_destage(cursor),
                Stage::Flushes { left: 0 } => Some(Stage::Sums { from: (VolumeId(0), 0) }),
                Stage::Sums { from } => self.issue_sums(from),
                Stage::Table { from, in_flight } => self.issue_version_table(from, in_flight),
                Stage::Announce { submitted: false } | Stage::Superblock { submitted: false } => {
                    return self.issue_superblock();
                }
                Stage::Announce { .. }
                | Stage::Flushes { .. }
                | Stage::Snapshot
                | Stage::Superblock { .. } => None,
            };
            match (next, &mut self.pass) {
                (Some(next), Some(pass)) => pass.stage = next,
                _ => return,
            }
        }
    }

    /// Whether a pass is under way after which the target of a copy is whole.
    pub(crate) fn ends_copy(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.finish)
    }

    /// Whether there is nothing that a pass could be for. Asked at every turn, a read's included.
    fn at_rest(&self) -> bool {
        self.overlay.is_empty()
            && self.layers.is_empty()
            && self.journal.live_bytes() == 0
            && self.queue.is_empty()
            && self.jobs.is_empty()
            && self.superblock_write.is_none()
            && self.finish.is_none()
            && !self.destage_forced
    }

    fn next_pass(&mut self) -> Option<Pass> {
        if self.at_rest() || self.fills.is_undoing() {
            return None;
        }
        if !self.growing.is_empty() || self.grow_due {
            reach!("store: a pass waits for a volume to grow");
            return None;
        }
        let finish = self.finish_ready();
        let restart_waits = self.restarting();
        if restart_waits && self.unfinished.is_some() {
            // The overlay will be dropped: the copy brings everything in it again.
            reach!("store: a restart drops the overlay");
            return None;
        }
        let layer = self.layers.front();
        let due = self.destage_forced
            || restart_waits
            || layer.is_some()
            || self.overlay.data_bytes() + self.fills.laid_bytes() > self.tuning.destage_start_bytes
            // Discarded space goes back to the pool without waiting for a client to write.
            || self.overlay.hole_bytes() > self.tuning.destage_start_bytes
            || self.runs() > self.tuning.runs_max / 2
            || self.journal.live_bytes() > self.config.journal_bytes / 2
            // The free parts of a ring may both be small though it is less than half full.
            || self.journal.live_bytes() > 0 && self.is_full()
            || self.journal_blocked();
        if !(finish || due) {
            return None;
        }
        let checkpoint = self.superblock.checkpoint;
        let snapshot = layer.map(|layer| layer.snapshot);
        let whole = self.destage_forced || restart_waits || finish;
        // The sizes are those at the end of the pass: after a crash the entries behind a snapshot
        // are applied anew, from these sizes on. A pass that frees only a part may record the size
        // of a later resize. That resize is applied again after a crash, and then changes nothing.
        // No snapshot lies between them, because passes end at snapshots.
        let volumes = layer.map_or(&self.config.volumes, |layer| &layer.volumes).clone();
        let wanted = layer.map_or_else(|| self.end_of_part(whole), |layer| layer.to);
        let limit = self.pass_limit(wanted);
        // Another pass follows, which goes further.
        let (snapshot, finish) = (snapshot.filter(|_| limit == wanted), finish && limit == wanted);
        let (to, chain) = self
            .journal
            .end_at(limit)
            .filter(|(to, _)| to.index > checkpoint.at.index)
            .unwrap_or((checkpoint.at, checkpoint.chain));
        let progress = to.index > checkpoint.at.index;
        if !progress {
            self.destage_forced = false;
        }
        if !(finish || progress) {
            return None;
        }
        // A checkpoint of everything is wanted, not one that ends at a snapshot.
        self.destage_forced &= snapshot.is_some() || limit < wanted;
        let announced = self.superblock_write.is_none() && self.superblock.commit >= to.index;
        reach!("store: a pass begins");
        if finish {
            reach!("store: a pass ends a copy");
        }
        if self.journal_blocked() {
            reach!("store: a pass is due because the journal is full");
        }
        if restart_waits {
            reach!("store: a restart waits for a pass");
        }
        if !announced {
            reach!("store: a pass makes the commit index durable");
        }
        let stage = if announced { FIRST_WRITES } else { Stage::Announce { submitted: false } };
        if planted(Bug::TrimTooEarly) {
            self.journal.trim(to.index);
        }
        let tables = placed(&self.superblock.tables, &volumes);
        self.versions.relaid(&self.superblock.tables, &tables);
        let awaited = whole || snapshot.is_some();
        Some(Pass { to, chain, finish, awaited, volumes, tables, snapshot, doomed: Vec::new(), stage })
    }

    /// End of a pass that does not end at a snapshot. Unless it is for everything, it frees only a
    /// part of the journal, so that clients do not wait long for room (R18).
    fn end_of_part(&self, whole: bool) -> Index {
        // Asked at every turn while a pass is due and nothing new is applied.
        if whole || self.applied == self.superblock.checkpoint.at.index {
            return self.applied;
        }
        let journal = self.config.journal_bytes;
        let bytes =
            (journal / self.tuning.pass_parts.max(1)).max(self.tuning.pass_bytes_min.min(journal / 2));
        match self.journal.end_of_part(bytes) {
            Some(end) if end < self.applied => {
                reach!("store: a pass frees a part of the journal");
                end
            }
            _ => self.applied,
        }
    }

    /// How many writes of a pass may be in flight now, and how many bytes of them. Writes to the
    /// journal, and so the clients, wait behind them in the queue of the disk.
    ///
    /// While little more has gathered than a pass begins with, the writes come in small bunches. A
    /// bunch begins when the one before has ended and nothing is being written to the journal. One
    /// by one, each write would cost a notification of the disk and a wake-up. When more has
    /// gathered, more writes are in flight in proportion. So the pass settles where it writes as
    /// fast as clients do, without bursts. While clients wait for room or for the end of the pass,
    /// it has all that the settings allow.
    fn pace(&self) -> (usize, u64) {
        let tuning = &self.tuning;
        let awaited = self.pass.as_ref().is_some_and(|pass| pass.awaited)
            || self.destage_forced
            || self.restarting()
            || !self.layers.is_empty()
            || self.is_full()
            || self.journal_blocked();
        let start = tuning.destage_start_bytes;
        let journal = self.config.journal_bytes;
        let (runs, runs_max) = (self.runs() as u64, tuning.runs_max as u64);
        // For each measure: its present value, the value at which a pass is due, and how far beyond
        // that it may go.
        let urgency = [
            (self.overlay.data_bytes(), start, start),
            (self.overlay.hole_bytes(), start, start),
            (runs, runs_max / 2, runs_max / 4),
            (self.journal.live_bytes(), journal / 2, journal / 4),
        ]
        .map(|(now, from, span)| now.saturating_sub(from).min(span) * URGENCY_MAX / span.max(1));
        let urgency = urgency.into_iter().max().unwrap_or(0);
        let writes_max = tuning.destage_writes_max;
        if awaited || urgency == URGENCY_MAX {
            return (writes_max, tuning.destage_bytes_max);
        }
        reach!("store: a pass takes its time");
        let bunch = tuning.destage_bunch.clamp(1, writes_max.max(1));
        let part = |of: u64| of.saturating_mul(urgency) / URGENCY_MAX;
        let writes = part(writes_max as u64) as usize;
        if writes > bunch {
            return (writes, part(tuning.destage_bytes_max));
        }
        if self.of_pass.0 > 0 {
            return (0, 0);
        }
        if !self.journal_writes.is_empty() {
            reach!("store: a pass waits until nothing is written to the journal");
            return (0, 0);
        }
        (bunch, tuning.destage_bytes_max / writes_max.max(1) as u64 * bunch as u64)
    }

    /// Issues writes until enough are in flight, then waits (`None`); goes on to the flushes when
    /// all are done.
    fn issue_destage(&mut self, mut cursor: (VolumeId, u64)) -> Option<Stage> {
        let to = self.pass.as_ref()?.to.index;
        let (mut in_flight, mut bytes) = self.of_pass;
        if self.restarting() && self.unfinished.is_some() {
            // The overlay will be dropped, and the extents that this pass may wait for do not come
            // any more.
            reach!("store: a restart ends a pass");
            if in_flight == 0 {
                self.pass = None;
                self.issue_superblock();
            }
            return None;
        }
        let (writes_max, bytes_max) = self.pace();
        while in_flight < writes_max && !self.sums_behind() {
            let Some((volume, first, runs)) = self.next_group(cursor, to) else {
                if in_flight > 0 {
                    break;
                }
                return Some(self.issue_flushes());
            };
            let blocks = runs.iter().map(|run| run.blocks).sum::<u64>();
            if in_flight > 0 && bytes + self.group_bytes(blocks) > bytes_max {
                reach!("store: a pass has as many bytes in flight as it may");
                break;
            }
            // Of a pass no two overlap.
            let others = self.groups.len() > in_flight || !self.fills.is_empty();
            let conflicts =
                others && self.conflicts(volume, first, first + blocks) && !planted(Bug::WritesOverlap);
            if conflicts {
                reach!("store: a pass waits for an extent");
                break;
            }
            if self.pinned(volume, first, first + blocks) {
                reach!("store: a pass waits for a scrub");
                break;
            }
            self.note_ahead(volume, first, first + blocks);
            let filling = self.filling(&runs);
            self.write_group(Owner::Pass, volume, first, blocks, filling);
            (in_flight, bytes) = (in_flight + 1, bytes + self.group_bytes(blocks));
            cursor = (volume, first + blocks);
        }
        if let Some(pass) = &mut self.pass {
            pass.stage = Stage::Writes { cursor };
        }
        None
    }

    /// The next stretch of neighbouring runs of one kind, not newer than `to`: data that fits one
    /// write, or zeroes.
    fn next_group(&self, cursor: (VolumeId, u64), to: Index) -> Option<(VolumeId, u64, Runs)> {
        let blocks_max = (self.tuning.destage_write_bytes_max / BLOCK_BYTES).max(1);
        let mut old_enough = self.oldest().from(cursor).filter(|(_, _, run)| run.index <= to);
        let (volume, first, mut run) = old_enough.next()?;
        if !matches!(run.content, Content::Data { .. }) {
            reach!("store: zeroes are destaged");
            if self.config.sums {
                run.blocks = run.blocks.min(ZEROES_BLOCKS_MAX);
            }
            let (mut end, mut blocks) = (first + run.blocks, run.blocks);
            // A file system discards piece by piece, and each hole is a change of the pool's
            // metadata.
            let alike = old_enough.take(ZEROES_RUNS_MAX - 1).take_while(|(v, at, next)| {
                let follows = (*v, *at, next.content) == (volume, end, run.content);
                end += next.blocks;
                blocks += next.blocks;
                follows && (!self.config.sums || blocks <= ZEROES_BLOCKS_MAX)
            });
            let mut runs: Runs = smallvec![run];
            runs.extend(alike.map(|(_, _, run)| run));
            if runs.len() > 1 {
                reach!("store: neighbouring zeroes are destaged together");
            }
            return Some((volume, first, runs));
        }
        run.blocks = run.blocks.min(blocks_max);
        let mut blocks = run.blocks;
        let mut runs: Runs = smallvec![run];
        for (v, at, mut run) in old_enough {
            let data = matches!(run.content, Content::Data { .. });
            if v != volume || at != first + blocks || !data || blocks == blocks_max {
                break;
            }
            run.blocks = run.blocks.min(blocks_max - blocks);
            blocks += run.blocks;
            runs.push(run);
        }
        if runs.len() > 1 {
            reach!("store: neighbouring runs are destaged together");
        }
        Some((volume, first, runs))
    }

    /// Returns the content of runs of one kind, as it is written to the volume.
    fn filling(&self, runs: &[Run]) -> Filling {
        let mut pieces = Pieces::with_capacity(runs.len());
        for run in runs {
            match self.find_content(run) {
                Found::Zero => return Filling::Zeroes { free: run.content == Content::Hole },
                Found::Memory(found) => {
                    pieces.push(Piece::Here { bytes: found.bytes(), sums: found.sums() });
                }
                Found::Journal(part) => {
                    reach!("store: the journal is read to destage");
                    pieces.push(Piece::InJournal(part));
                }
            }
        }
        Filling::Data(pieces)
    }

    /// While extents are being copied: remembers the blocks that are written into extents still to
    /// come.
    fn note_ahead(&mut self, volume: VolumeId, first: u64, end: u64) {
        if self.copying && !self.all_extents_came() {
            reach!("store: entries are destaged beside a copy");
            let installed = &self.installed;
            self.ahead.note(volume, first, end, |extent| installed.contains(&(volume, extent)));
        }
    }

    pub(crate) fn destaged(&mut self, group: &Group) {
        if let Some(pass) = &self.pass {
            let to = if planted(Bug::DestageForgetsNewer) { Index(u64::MAX) } else { pass.to.index };
            self.oldest_mut().forget(group.volume, group.first, group.end, to);
        }
    }

    fn issue_flushes(&mut self) -> Stage {
        let touched = std::mem::take(&mut self.touched);
        let left = if planted(Bug::FlushSkipped) { 0 } else { touched.len() };
        for volume in touched.into_iter().take(left) {
            let op = self.start(Op::Flush);
            self.outputs.push_back(Output::VolumeFlush { op, volume });
        }
        Stage::Flushes { left }
    }

    pub(crate) fn sums_written_up_to(&mut self, at: PageAt) {
        if let Some(Pass { stage: Stage::Sums { from }, .. }) = &mut self.pass {
            *from = at;
        }
    }

    /// The pass goes on no later than at this page, whose write has failed.
    pub(crate) fn sums_again(&mut self, at: PageAt) {
        if let Some(Pass { stage: Stage::Sums { from }, .. }) = &mut self.pass {
            *from = at.min(*from);
        }
    }

    /// Returns the next stage of a pass once the volumes and their sums hold durably what it has
    /// written. `None` while it has to wait.
    pub(crate) fn after_sums(&mut self) -> Option<Stage> {
        let snapshot = self.pass.as_ref().and_then(|pass| pass.snapshot);
        if snapshot.is_some() && self.restore_waits() {
            return None;
        }
        let taken = snapshot.is_some_and(|id| self.issue_snapshot(id));
        Some(if taken { Stage::Snapshot } else { FIRST_PAGE })
    }

    pub(crate) fn snapshot_stage_ended(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.stage = FIRST_PAGE;
        }
    }

    pub(crate) fn volume_flushed(&mut self) {
        if let Some(Pass { stage: Stage::Flushes { left }, .. }) = &mut self.pass {
            *left -= 1;
        }
    }

    /// Issues a write, if one is left and not too many are in flight; goes on when all are done.
    fn issue_version_table(&mut self, from: PageId, in_flight: usize) -> Option<Stage> {
        if in_flight >= TABLE_WRITES_MAX {
            return None;
        }
        let slot = 1 - self.superblock.versions_slot;
        let tables = self.pass.as_ref().map_or(&[][..], |pass| &pass.tables);
        let Some((at, bytes)) = self.versions.next_write(slot, from, tables) else {
            return (in_flight == 0).then_some(Stage::Superblock { submitted: false });
        };
        reach!("store: version pages are written");
        let next = PageId { page: at.page + bytes.len() / VERSIONS_PAGE_BYTES, ..at };
        let offset = table_offset(first_page(tables[at.volume], slot) + at.page);
        let op = self.start(Op::VersionTable);
        self.outputs.push_back(Output::MetaWrite { op, offset, data: Bytes::from(bytes) });
        Some(Stage::Table { from: next, in_flight: in_flight + 1 })
    }

    pub(crate) fn version_table_written(&mut self) {
        if let Some(Pass { stage: Stage::Table { in_flight, .. }, .. }) = &mut self.pass {
            *in_flight -= 1;
        }
    }

    /// Returns the change of the superblock that the pass needs now.
    pub(crate) fn job_of_pass(&self) -> Option<Job> {
        match self.pass.as_ref()?.stage {
            Stage::Announce { submitted: false } => Some(Job::Commit),
            Stage::Superblock { submitted: false } => Some(Job::Checkpoint),
            _ => None,
        }
    }

    pub(crate) fn fill_commit(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.stage = Stage::Announce { submitted: true };
        }
        self.superblock.commit = self.applied;
    }

    pub(crate) fn commit_announced(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.stage = FIRST_WRITES;
        }
    }

    /// The superblock is about to be written on behalf of the pass.
    pub(crate) fn fill_checkpoint(&mut self) {
        let Some(pass) = &mut self.pass else { return };
        pass.stage = Stage::Superblock { submitted: true };
        pass.doomed = std::mem::take(&mut self.doomed);
        let (to, chain, finish) = (pass.to, pass.chain, pass.finish);
        if self.superblock.tables != pass.tables {
            reach!("store: a checkpoint records that a volume has grown");
        }
        if !planted(Bug::GrowthNotRecorded) {
            self.superblock.volumes.clone_from(&pass.volumes);
        }
        self.superblock.tables.clone_from(&pass.tables);
        let offset = if to.index > self.superblock.checkpoint.at.index {
            self.journal.offset_after(to.index)
        } else {
            self.superblock.checkpoint.offset
        };
        self.checkpoint_at(to, chain, offset);
        if !planted(Bug::SlotNotTurned) {
            self.superblock.versions_slot = 1 - self.superblock.versions_slot;
        }
        self.superblock.versions_root =
            self.versions.root(self.superblock.versions_slot, &self.superblock.tables);
        if finish {
            self.superblock.unfinished = None;
        }
        self.superblock.filled &= self.fills_go_on(to.index);
        // The mark is the one of the applied entries, which may be more: they are in the journal,
        // and are never cut.
        self.superblock.client = self.client;
        if !planted(Bug::SnapshotNotRecorded) {
            self.superblock.snapshots = self.snapshot_records(to.index);
        }
    }

    /// The checkpoint is durable: the journal before it may be overwritten.
    pub(crate) fn checkpointed(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        reach!("store: a checkpoint is durable");
        self.journal.trim(pass.to.index);
        self.fills.covered(pass.to.index);
        if let Some(id) = pass.snapshot {
            self.layer_done(id);
        }
        self.remove_snapshots(pass.doomed);
        if pass.finish {
            self.copy_finished();
        }
    }
}
