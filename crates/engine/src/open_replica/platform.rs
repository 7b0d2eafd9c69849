//! The world of a replica: starts what its cores want on the shard's ring and transport, or tells
//! it to devices and agent.

use super::{Pending, ReplicaParts, ShardParts};
use crate::disk::DiskTag;
use crate::frontend::NOT_SERVED;
use crate::requests::errno;
use crate::transport::Channel;
use bytes::Bytes;
use mainstay_api::engine::{DigestReport, EngineEvent, ProposalEvent, Reply, VolumeDigest};
use mainstay_codec::Envelope;
use mainstay_codec::Pieces;
use mainstay_host::{AnswerError, CoreMessage, Digest, DigestError, Happened, Platform};
use mainstay_replica::{Effect, RequestId};
use mainstay_store::{Area, Output};
use mainstay_types::{
    Code, IssChange, NodeId, Proposal, ProposedChange, Role, ShrinkReason, SnapshotId, Time, VolumeId,
};

/// A replica's own parts and those of its shard, together for as long as its cores are driven.
pub(super) struct HostPlatform<'a, 's> {
    pub around: &'a mut ReplicaParts,
    pub shared: &'a mut ShardParts<'s>,
}

impl Platform for HostPlatform<'_, '_> {
    fn now(&self) -> Time {
        self.shared.now
    }

    fn may_answer(&self) -> bool {
        self.shared.now < self.shared.lease_until && !self.shared.fenced
    }

    fn store_operation(&mut self, output: Output) {
        let Some(rest) = self.around.disk.submit(self.shared.ring, output) else { return };
        let (resource, volumes) = (self.around.resource, self.around.volumes.len());
        if let Output::SnapshotDrop { snapshot: SnapshotId::BEFORE_COPY, .. } = rest {
            tracing::info!(%resource, "what this replica held before it was copied to is removed");
        }
        let job = self.around.disk.snapshot_job(resource, volumes, rest);
        (self.shared.snapshots)(job.expect("what is not for the ring is for a thread"));
    }

    fn read(&mut self, token: u64, area: Area, offset: u64, len: u64, passes: bool) {
        self.around.counts.reads(area, len);
        self.around.disk.read(self.shared.ring, DiskTag::Shard(token), area, offset, len, passes);
    }

    fn is_hole(&mut self, volume: VolumeId, offset: u64, len: u64) -> bool {
        self.around.disk.is_hole(volume, offset, len)
    }

    fn join(&mut self, pieces: Pieces) -> Bytes {
        let len = pieces.iter().map(Bytes::len).sum();
        let mut buffer = self.shared.pool.get(len);
        let mut at = 0;
        for piece in pieces {
            buffer.as_mut_slice()[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        buffer.freeze(len)
    }

    fn send(&mut self, to: NodeId, answer: bool, envelope: Envelope) {
        let channel = Channel { peer: to, initiated_by_us: !answer };
        // A channel that is down or overflows reports so as an event of its own.
        let _ = self.shared.transport.send(channel, &envelope);
    }

    fn complete(&mut self, id: RequestId, answer: mainstay_host::DeviceAnswer) {
        if let Some(watch) = &mut self.around.watch {
            watch.answered(id, answer.as_deref().ok());
        }
        let Some(Pending { frontend, tag, asked }) = self.around.pending.take(id) else { return };
        self.around.counts.answered(self.shared.now, &asked, answer.is_ok());
        let result = answer.map_err(|error| match error {
            AnswerError::Request(error) => errno(error),
            AnswerError::NoLease => NOT_SERVED,
            AnswerError::Disk => libc::EIO,
        });
        self.around.resource_devices.answer(self.shared, frontend, tag, result);
    }

    fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::RoleChanged(role) => self.around.role_changed(self.shared, role),
            Happened::Proposed(proposal) => self.around.propose(self.shared, proposal),
            Happened::Paused { .. } => {
                for answer in self.around.pause_answers.drain(..) {
                    answer(Reply::Ok);
                }
            }
            Happened::Resized { volume, bytes } => {
                if let Some(size) = self.around.volumes.get_mut(usize::from(volume.0)) {
                    *size = bytes;
                }
                self.around.resource_devices.resized(self.shared, volume, bytes);
            }
            Happened::SnapshotsChanged => self.around.dirty = true,
            Happened::Demoted => {
                self.around.dirty = true;
                self.around.resource_devices.withdraw(self.shared);
            }
            Happened::Failed { reason } => {
                let resource = self.around.resource;
                tracing::error!(%resource, reason, "the replica stops using its store");
                self.around.dirty = true;
                self.shared.events.push(EngineEvent::Failed { resource, reason });
            }
            Happened::NoSpace { reason } => {
                let resource = self.around.resource;
                tracing::warn!(%resource, reason, "the pool has no space; it is tried again every second, and the journal fills meanwhile");
                self.around.dirty = true;
            }
            Happened::Damaged(damaged) => {
                let (resource, volume) = (self.around.resource, damaged.volume.0);
                tracing::warn!(%resource, volume, block = damaged.block, "a block on this node's disk does not fit its checksum; if this is the primary, it is read from another replica and written anew");
            }
            Happened::Unreadable(damaged) => {
                let (resource, volume) = (self.around.resource, damaged.volume.0);
                tracing::error!(%resource, volume, block = damaged.block, "no replica in sync has this block whole: reading it is an error until it is written anew");
            }
            Happened::DamageCopied { to, volume, extent, blocks } => {
                let (resource, volume) = (self.around.resource, volume.0);
                tracing::error!(%resource, to = to.0, volume, %extent, blocks, "no replica has these blocks whole: they are copied as damaged");
            }
            Happened::Digested(result) => self.around.digested(result),
        }
    }

    fn observe(&mut self, seen: CoreMessage<'_>) {
        let now = self.shared.now;
        if let CoreMessage::Effect(Effect::Read { id, .. }) = seen {
            // A read may be executed now.
            if let Some(pending) = self.around.pending.get_mut(*id) {
                pending.asked.reads_since = Some(now);
            }
        }
        self.around.counts.observe(now, seen);
        if let Some(watch) = &mut self.around.watch {
            watch.observe(seen);
        }
    }
}

impl ReplicaParts {
    fn propose(&mut self, shared: &mut ShardParts<'_>, proposal: Proposal) {
        if let ProposedChange::Iss(IssChange::Shrink { remove, why }) = proposal.change {
            self.tell_slow(remove.node, why);
        }
        let event = ProposalEvent { resource: self.resource, proposal };
        self.proposal = Some(event);
        self.dirty = true;
        shared.events.push(EngineEvent::Proposal(event));
    }

    fn tell_slow(&self, peer: NodeId, why: ShrinkReason) {
        if why == ShrinkReason::Slow {
            let resource = self.resource;
            tracing::warn!(%resource, %peer, "a member is too slow; asking for its removal from the in-sync set, and feeding it in the background");
        }
    }

    fn role_changed(&mut self, shared: &mut ShardParts<'_>, role: Role) {
        self.role = role;
        self.dirty = true;
        self.counts.role_changed(shared.now, role);
        tracing::info!(resource = %self.resource, ?role, "role changed");
        self.settle_devices(shared);
        if role != Role::Primary {
            for answer in self.pause_answers.drain(..) {
                answer(Reply::refused(
                    Code::NotPrimary,
                    "the resource is no longer primary here",
                    "Look at `mainstay status`, and try again.",
                ));
            }
        }
    }

    pub(super) fn digested(&mut self, result: Result<Digest, DigestError>) {
        let Some(answer) = self.digest_answer.take() else { return };
        answer(match result {
            Ok(digest) => {
                let volumes = self.volumes.iter().zip(&digest.volumes);
                let volumes = volumes
                    .map(|(bytes, sum)| VolumeDigest { bytes: *bytes, digest: format!("{sum:016x}") })
                    .collect();
                Reply::Digest(DigestReport { resource: self.resource, index: digest.index, volumes })
            }
            Err(error @ DigestError::Busy) => {
                self.refuse(Code::Busy, &error.to_string(), "try again in a moment")
            }
            Err(error @ DigestError::Moved) => {
                self.refuse(Code::Busy, &error.to_string(), "pause the resource first")
            }
            Err(error @ DigestError::Incomplete) => {
                self.refuse(Code::Busy, &error.to_string(), "try again when the copy has ended")
            }
            Err(DigestError::Disk(reason)) => Reply::refused(Code::Io, reason, "replace the disk"),
        });
    }
}
