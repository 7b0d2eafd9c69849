//! Looks into replicas while they run: compares their blocks, as their stores would return them,
//! and the versions of their extents with the log.
//!
//! A client sees one replica only, and a block that no client reads shows no damage. So the world
//! inspects each replica when it was recovered or copied, and when it becomes primary. It also
//! inspects all of them in turn during the run, and at the end.

use super::{What, World, resource_id};
use crate::disk::{Disk, Finished};
use crate::engine::EngineIn;
use bytes::Bytes;
use mainstay_codec::Superblock;
use mainstay_codec::sums::DAMAGED_BLOCK;
use mainstay_store::{Area, Checked, SUPERBLOCK_COPIES, Source, Store};
use mainstay_types::{BLOCK_BYTES, Extent, NodeId, Range, ResourceId, SnapshotState, VolumeId};

/// The mean pause between two looks, each at one replica.
const PAUSE_US: u64 = 1_500_000;
/// Time that a request may take, for example while a disk stands still, in true microseconds.
const PATIENCE_US: u64 = 30_000_000;

/// Whether a read of a block of a volume notices that it is damaged. `bytes` are the content on the
/// disk, `None` for zeroes.
fn noticed(store: &Store, disk: &Disk, (volume, block): (VolumeId, u64), bytes: Option<&[u8]>) -> bool {
    let zeroes = [0; BLOCK_BYTES as usize];
    let range = Range { volume, offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
    let page = |page: u64| {
        let sums = disk.peek(Area::Sums(volume), page).unwrap_or(&zeroes);
        (page, Bytes::copy_from_slice(sums))
    };
    let pages: Vec<_> = store.sums_to_read(range).map(page).collect();
    let bytes = bytes.unwrap_or(&zeroes);
    store.check_blocks((volume, block), bytes, &pages, store.volume_stamp()) != Checked::Well
}

impl World {
    /// Schedules the next look that only the time calls for.
    pub(super) fn arm_inspection(&mut self) {
        let pause_us = self.inspections.around(PAUSE_US).max(1);
        self.after(pause_us, What::Inspection);
    }

    pub(super) fn inspection(&mut self) {
        let nodes = self.machines.len() as u64;
        let node = NodeId(1 + self.inspections.below(nodes) as u32);
        let number = self.inspections.below(self.plan.shape.resources.len() as u64) as usize;
        self.inspect(node, resource_id(number), false);
        self.watch_waiting(node, resource_id(number));
        self.arm_inspection();
    }

    /// Inspects the replicas that the oracle was told are whole now.
    pub(super) fn inspect_copied(&mut self) {
        while let Some((resource, node)) = self.oracle.copied.pop() {
            self.inspect(node, resource, false);
        }
    }

    /// S4, S11 to S14: compares the content of a replica with the log, if the replica is open and
    /// its store has not given up. If `whole` is set, it also compares the blocks that no client
    /// ever wrote.
    ///
    /// S16: content of a volume that a fault made wrong is a violation. There are two exceptions:
    /// the store would report the block as damaged if it were read now, or a scrub is to find it.
    ///
    /// A copy takes over a block as damaged only when the block had rotted at its source (ADR 15).
    pub(super) fn inspect(&mut self, node: NodeId, resource: ResourceId, whole: bool) {
        let Self { machines, oracle, scrubbed, rotted, .. } = self;
        let machine = &machines[&node];
        let (Some(hosted), Some(disk)) = (
            machine.engine.as_ref().and_then(|engine| engine.hosts.get(&resource)),
            machine.disks.get(&resource),
        ) else {
            return;
        };
        if let Some(reason) = hosted.host.failed() {
            // A replica that has failed serves no content any more (R13). After faults have ended
            // only damage may lead to that.
            if whole && !machine.damaged.contains_key(&resource) {
                let text = format!("{node} has given {resource} up, and no fault is at work: {reason}");
                self.wrong("L2", text);
            }
            return;
        }
        // The engine stands still, and the report of a failed disk operation waits in its backlog.
        // It answers no request before it reads that report and gives the replica up (R13). Seed
        // 466888.
        let failed = |input: &EngineIn| match input {
            EngineIn::Disk { resource: of, finished: Finished::Store { result, .. } } => {
                *of == resource && result.is_err()
            }
            _ => false,
        };
        if machine.engine_process.backlog.iter().any(failed) {
            self.trace.count("replica that stands still before a failure");
            return;
        }
        let store = hosted.host.store();
        // No client reads a volume while it is rolled back to a snapshot.
        if store.rolling_back() {
            self.trace.count("replica that is being rolled back");
            return;
        }
        let commit = hosted.host.replica().committed();
        let incarnation = store.config().incarnation;
        let mut read = |volume: VolumeId, block: u64| {
            let range = Range { volume, offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
            // Damage shows as a number that no client ever wrote.
            let Some(segment) = store.read(range).into_iter().next() else { return Some(u64::MAX) };
            let (area, at) = match &segment.source {
                Source::Memory(bytes) => return Some(super::outputs::value(bytes).unwrap_or(u64::MAX)),
                Source::Zero => return Some(0),
                Source::Journal { offset, .. } => (Area::Journal, offset / BLOCK_BYTES),
                Source::Volume => (Area::Volume(volume), block),
            };
            // A record of the journal that rots is found when it is used, and used only after it
            // was checked (S9).
            if area == Area::Journal && disk.is_damaged(area, at) {
                return None;
            }
            let bytes = disk.peek(area, at);
            let noticed = noticed(store, disk, (volume, block), bytes);
            let found = scrubbed.contains(&resource) || noticed;
            let copied = area == Area::Volume(volume) && rotted.contains(&(resource, volume, block));
            if disk.is_damaged(area, at) && found || copied && noticed {
                return None;
            }
            Some(bytes.map_or(0, |bytes| super::outputs::value(bytes).unwrap_or(u64::MAX)))
        };
        oracle.check_replica(resource, node, incarnation, commit, whole, &mut read);
        // R17: what a snapshot holds is the log up to its entry.
        let held = store.snapshots().filter(|(_, snapshot)| snapshot.state == SnapshotState::Held);
        // R16: the same holds of the content that a replica kept when it became the target of a
        // copy.
        for (id, snapshot) in held.chain(store.kept()) {
            let mut kept = |volume: VolumeId, block: u64| {
                let bytes = disk.snapshot_block(id, volume, block)?;
                if bytes == Some(&DAMAGED_BLOCK[..]) && rotted.contains(&(resource, volume, block)) {
                    return None;
                }
                Some(bytes.map_or(0, |bytes| super::outputs::value(bytes).unwrap_or(u64::MAX)))
            };
            oracle.check_snapshot(resource, (node, incarnation), (id, snapshot.at), &mut kept);
        }
        let mut version = |volume: VolumeId, extent: Extent| store.version(volume, extent);
        oracle.check_versions(resource, node, incarnation, commit, &mut version);
        // R14: at rest all copies of the superblock are equally new, except rotten ones.
        let process = &machine.engine_process;
        let paused = process.paused_until_us > 0 || !process.backlog.is_empty();
        let copies: Vec<_> = (0..SUPERBLOCK_COPIES as u64)
            .filter(|copy| disk.in_flight() == 0 && !paused && !disk.is_damaged(Area::Meta, *copy))
            .map(|copy| disk.peek(Area::Meta, copy))
            .collect();
        if copies.windows(2).all(|pair| pair[0] == pair[1]) {
            return;
        }
        let copies = copies.into_iter().map(|bytes| bytes.and_then(|bytes| Superblock::decode(bytes).ok()));
        let copies: Vec<_> = copies.map(|copy| copy.map(|superblock| superblock.sequence)).collect();
        if copies.windows(2).any(|pair| pair[0] != pair[1]) {
            self.wrong("S15", format!("the superblocks of {resource} on {node} are {copies:?}"));
        }
    }

    /// R20: a primary does not wait for ever for a member that is gone. It asks for the removal of
    /// the member. If that member is one of the copies that are wanted, it fails the requests that
    /// wait.
    fn watch_waiting(&mut self, node: NodeId, resource: ResourceId) {
        let now = self.node_time(node);
        let machine = &self.machines[&node];
        let Some(engine) = machine.engine.as_ref().filter(|_| machine.engine_process.paused_until_us == 0)
        else {
            return;
        };
        let long = |request: &u64| {
            self.asked.get(request).is_some_and(|asked| self.now_us - asked.at_us > PATIENCE_US)
        };
        let waits = engine.waiting_for_copies(now, resource).find(long);
        if let Some(request) = waits {
            let text = format!("#{request} of {resource} on {node} waits for copies without end");
            return self.wrong("L5", text);
        }
        let Some(waits) = engine.waits(now, resource) else { return };
        self.wrong("L5", format!("{node} waits for {waits}, which is gone, and has not asked to remove it"));
    }
}
