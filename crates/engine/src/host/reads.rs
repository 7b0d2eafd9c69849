//! Reading committed content: for a device, for a copy to another replica, for a digest.
//!
//! The store says where each part of a range is; parts in memory are taken, the others are read from journal
//! or volume. A part that was read from the journal counts only if the journal still holds its batch
//! afterwards: its place may have been used again meanwhile, and then the whole read is done anew.

use super::{Answer, Host, Pending, Shared, refusal};
use crate::disk::DiskTag;
use bytes::Bytes;
use mainstay_api::engine::{DigestReport, Reply, VolumeDigest};
use mainstay_codec::crc64;
use mainstay_replica::{Event, RequestId};
use mainstay_store::{Area, IoFailure, Source};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Index, NodeId, Range, VolumeId};

/// What a read is for.
pub(super) enum Purpose {
    Request(RequestId),
    Extent { peer: NodeId, volume: VolumeId, extent: u32, version: Index, at: Index },
    Digest { extent: u32 },
}

struct Part {
    len: u64,
    token: u64,
    data: Option<Bytes>,
}

pub(super) struct ReadJob {
    purpose: Purpose,
    range: Range,
    parts: Vec<Part>,
    outstanding: usize,
    /// Batches whose journal bytes are being read.
    journal: Vec<Index>,
}

/// Digests in the making. The content of a volume is digested extent by extent, in order; extents of zeroes
/// are left out, so that it does not matter whether one was written with zeroes or never.
pub(super) struct Digest {
    answer: Answer,
    index: Index,
    extents: Vec<(VolumeId, u32)>,
    next: usize,
    sums: Vec<u64>,
}

/// What zeroes are answered with.
static ZEROES: [u8; EXTENT_BYTES as usize] = [0; EXTENT_BYTES as usize];

impl Host {
    pub(super) fn start_read(&mut self, shared: &mut Shared<'_>, purpose: Purpose, range: Range) {
        let mut job = ReadJob { purpose, range, parts: Vec::new(), outstanding: 0, journal: Vec::new() };
        let id = self.token();
        for segment in self.store.read(range) {
            let mut part = Part { len: segment.len, token: 0, data: None };
            match segment.source {
                Source::Memory(bytes) => part.data = Some(bytes),
                Source::Zero => part.data = Some(Bytes::from_static(&ZEROES[..segment.len as usize])),
                Source::Journal { offset, index } => {
                    part.token = self.token();
                    job.journal.push(index);
                    self.disk.read(
                        shared.ring,
                        DiskTag::Shard(part.token),
                        Area::Journal,
                        offset,
                        segment.len,
                    );
                }
                Source::Volume => {
                    part.token = self.token();
                    let area = Area::Volume(range.volume);
                    self.disk.read(
                        shared.ring,
                        DiskTag::Shard(part.token),
                        area,
                        segment.offset,
                        segment.len,
                    );
                }
            }
            job.outstanding += usize::from(part.data.is_none());
            job.parts.push(part);
        }
        if job.outstanding == 0 {
            self.read_done(shared, job);
        } else {
            self.reads.insert(id, job);
        }
    }

    pub(super) fn piece_read(
        &mut self,
        shared: &mut Shared<'_>,
        token: u64,
        result: Result<Bytes, IoFailure>,
    ) {
        let found = self
            .reads
            .iter_mut()
            .find_map(|(id, job)| job.parts.iter().position(|part| part.token == token).map(|at| (*id, at)));
        let Some((id, at)) = found else { return };
        let job = self.reads.get_mut(&id).expect("found above");
        match result {
            Ok(bytes) if bytes.len() as u64 == job.parts[at].len => {
                job.parts[at].data = Some(bytes);
                job.outstanding -= 1;
                if job.outstanding > 0 {
                    return;
                }
                let job = self.reads.remove(&id).expect("found above");
                if job.journal.iter().all(|index| self.store.retains(*index)) {
                    self.read_done(shared, job);
                } else {
                    self.start_read(shared, job.purpose, job.range);
                }
            }
            other => {
                let job = self.reads.remove(&id).expect("found above");
                let detail = other.map_or_else(|error| error.to_string(), |_| "too few bytes".into());
                self.read_failed(shared, job, &detail);
            }
        }
    }

    fn read_done(&mut self, shared: &mut Shared<'_>, job: ReadJob) {
        let pieces = job.parts.into_iter().filter_map(|part| part.data);
        match job.purpose {
            Purpose::Request(id) => {
                // R10: what was read counts only if the lease still holds now that the read completes.
                let lease = shared.now < shared.lease_until && !shared.fenced;
                let Some(Pending { frontend, tag }) = self.pending.remove(&id) else { return };
                let result = if lease { Ok(pieces.collect()) } else { Err(libc::EIO) };
                self.answer(shared, frontend, tag, result);
            }
            Purpose::Extent { peer, volume, extent, version, at } => {
                let data = without_zeroes(join(shared, pieces.collect()));
                self.replica
                    .handle(shared.now, Event::ExtentLoaded { peer, volume, extent, version, at, data });
            }
            Purpose::Digest { extent } => {
                let data = without_zeroes(join(shared, pieces.collect()));
                self.digest_extent(shared, job.range.volume, extent, &data);
            }
        }
    }

    fn read_failed(&mut self, shared: &mut Shared<'_>, job: ReadJob, detail: &str) {
        let reason = format!(
            "reading volume {} at {} ({} bytes) failed: {detail}",
            job.range.volume, job.range.offset, job.range.len
        );
        match job.purpose {
            Purpose::Request(id) => {
                if let Some(Pending { frontend, tag }) = self.pending.remove(&id) {
                    self.answer(shared, frontend, tag, Err(libc::EIO));
                }
            }
            Purpose::Digest { .. } => {
                self.end_digest(Reply::Error(refusal("io", &reason, "replace the disk")))
            }
            Purpose::Extent { .. } => {}
        }
        self.fail(shared, reason);
    }

    /// Reads one extent for a replica that is being copied to, as of the commit index of now.
    pub(super) fn load_extent(
        &mut self,
        shared: &mut Shared<'_>,
        peer: NodeId,
        volume: VolumeId,
        extent: u32,
    ) {
        let version = self.store.version(volume, extent);
        let at = self.store.log_state().commit;
        let Some(range) = self.extent_range(volume, extent) else { return };
        self.start_read(shared, Purpose::Extent { peer, volume, extent, version, at }, range);
    }

    fn extent_range(&self, volume: VolumeId, extent: u32) -> Option<Range> {
        let bytes = *self.store.config().volumes.get(usize::from(volume.0))?;
        let offset = u64::from(extent) * EXTENT_BYTES;
        (offset < bytes).then(|| Range { volume, offset, len: EXTENT_BYTES.min(bytes - offset) })
    }

    /// Digests everything as of the commit index of now; refuses when that moves meanwhile, so the caller
    /// pauses writes first.
    pub fn start_digest(&mut self, shared: &mut Shared<'_>, answer: Answer) {
        if self.digest.is_some() {
            return answer(self.refuse("busy", "a digest is being made", "try again in a moment"));
        }
        let volumes = self.store.config().volumes.len();
        self.digest = Some(Digest {
            answer,
            index: self.store.log_state().commit,
            extents: self.store.extents_newer_than(Index(0)),
            next: 0,
            sums: vec![0; volumes],
        });
        self.next_digest_extent(shared);
    }

    fn next_digest_extent(&mut self, shared: &mut Shared<'_>) {
        let Some(digest) = &mut self.digest else { return };
        if let Some(&(volume, extent)) = digest.extents.get(digest.next) {
            digest.next += 1;
            if let Some(range) = self.extent_range(volume, extent) {
                self.start_read(shared, Purpose::Digest { extent }, range);
            }
            return;
        }
        let index = digest.index;
        if self.store.log_state().commit != index {
            let moved =
                self.refuse("busy", "the log moved while the digest was made", "pause the resource first");
            return self.end_digest(moved);
        }
        let sizes = self.store.config().volumes.iter();
        let volumes = sizes
            .zip(&digest.sums)
            .map(|(bytes, sum)| VolumeDigest { bytes: *bytes, digest: format!("{sum:016x}") })
            .collect();
        let report = DigestReport { resource: self.resource, index, volumes };
        self.end_digest(Reply::Digest(report));
    }

    fn digest_extent(&mut self, shared: &mut Shared<'_>, volume: VolumeId, extent: u32, data: &[u8]) {
        if let Some(digest) = &mut self.digest
            && !data.is_empty()
        {
            let sum = &mut digest.sums[usize::from(volume.0)];
            *sum = crc64(&[&sum.to_le_bytes(), &extent.to_le_bytes(), data]);
        }
        self.next_digest_extent(shared);
    }

    fn end_digest(&mut self, reply: Reply) {
        if let Some(digest) = self.digest.take() {
            (digest.answer)(reply);
        }
    }
}

/// One piece of several, aligned for direct I/O.
fn join(shared: &Shared<'_>, mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.swap_remove(0);
    }
    let len = pieces.iter().map(Bytes::len).sum();
    let mut buffer = shared.pool.get(len);
    let mut at = 0;
    for piece in pieces {
        buffer.as_mut_slice()[at..at + piece.len()].copy_from_slice(&piece);
        at += piece.len();
    }
    buffer.freeze(len)
}

/// Empty if there are only zeroes.
fn without_zeroes(data: Bytes) -> Bytes {
    let zero = data.chunks(BLOCK_BYTES as usize).all(|block| block == &ZEROES[..block.len()]);
    if zero { Bytes::new() } else { data }
}
