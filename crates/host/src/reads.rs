//! Reading committed content: for a device, for a copy to or from another replica, for a digest,
//! for a scrub.
//!
//! The store says where each part of a range is. Parts in memory are taken; the others are read
//! from journal or volume. For a part in the journal the payload of its entry is read whole. It
//! counts only if the journal still holds it afterwards: its place may have been used again
//! meanwhile, and then the whole read is done anew. If it is still held and its checksum is wrong,
//! the journal is damaged and the replica stops (R12, R13).
//!
//! Content of a volume is compared with the sums of its blocks, if the replica has sums; pages of
//! sums that are not in memory are read with it. A block that does not fit is read anew if a write
//! to the volume came between, and is damage otherwise: `damage.rs`.
//!
//! A part may be one block of a payload of a MiB, and each part of a read one of another payload.
//! So only some payloads are read at once for one read ([`PAYLOADS_READ_BYTES_MAX`]), and of each
//! only the part is kept (R18).

use crate::rollback::Waiting;
use crate::{AnswerError, Host, Platform};
use bytes::Bytes;
use mainstay_codec::Pieces;
use mainstay_replica::{AttachedClients, Event, RequestError, RequestId};
use mainstay_store::{
    Area, Checked, IoFailure, PAYLOADS_READ_BYTES_MAX, Payload, Segment, Segments, Source, Store,
};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BLOCK_BYTES, EXTENT_BYTES, Extent, Index, NodeId, Position, REQUEST_BYTES_MAX, Range, VolumeId, reach,
};
use smallvec::SmallVec;

/// Purpose of a read.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Request(RequestId),
    Extent {
        peer: NodeId,
        volume: VolumeId,
        extent: Extent,
        version: Index,
        at: Index,
    },
    Digest {
        extent: Extent,
    },
    /// The range of a scrub's entry, as of that entry. `None`: the log began anew, and the result
    /// is of no use.
    Scrub {
        at: Option<Index>,
    },
    /// An extent that is to be copied to this replica in the copy that began at `at`.
    Held {
        extent: Extent,
        at: Position,
    },
    /// Blocks for the repair of a replica; a damaged block is of no use for it.
    Blocks,
    /// Look whether a block that no replica had is well again.
    Look,
}

impl Purpose {
    /// Whether a device of this node waits for it.
    fn is_device(self) -> bool {
        matches!(self, Self::Request(id) if !AttachedClients::owns(id))
    }
}

struct Part {
    len: u64,
    origin: Origin,
    data: Option<Bytes>,
}

/// Where a part comes from.
#[derive(Clone, Copy)]
enum Origin {
    Memory,
    /// Where in the journal, and in which payload there.
    Journal(u64, Payload),
    /// From this block on.
    Volume(u64),
    /// A page of sums, and no part of the content.
    Sums(u64),
}

/// A read under way. The token of a part is the job's number plus its place.
pub(crate) struct ReadJob {
    pub purpose: Purpose,
    pub range: Range,
    /// How often it was done before, and found damage.
    pub rounds: u64,
    parts: SmallVec<[Part; 1]>,
    /// Parts that are not here yet.
    outstanding: usize,
    /// Parts in the journal from this one on are not being read yet.
    next: usize,
    /// Payloads that are being read, in bytes.
    reading_bytes: u64,
    /// A payload was no longer there when it had been read.
    stale: bool,
    /// [`Store::volume_stamp`](mainstay_store::Store::volume_stamp) from before.
    stamp: u64,
}

impl ReadJob {
    /// Reads payloads, as many as may be read at once. `number`: of this job.
    fn read_payloads(&mut self, platform: &mut impl Platform, number: u64) {
        while let Some(part) = self.parts.get(self.next) {
            if let Origin::Journal(_, payload) = part.origin {
                if self.reading_bytes > 0 && self.reading_bytes + payload.len > PAYLOADS_READ_BYTES_MAX {
                    reach!("host: a read waits for payloads before it reads more");
                    return;
                }
                self.reading_bytes += payload.len;
                let token = number + self.next as u64;
                platform.read(token, Area::Journal, payload.offset, payload.len, false);
            }
            self.next += 1;
        }
    }

    /// The pages of sums that were read with it.
    fn pages(&self) -> Vec<(u64, Bytes)> {
        let page = |part: &Part| match (part.origin, &part.data) {
            (Origin::Sums(page), Some(bytes)) => Some((page, bytes.clone())),
            _ => None,
        };
        self.parts.iter().filter_map(page).collect()
    }

    /// Blocks of a pinned extent that do not fit their sums, by their place in it.
    pub(crate) fn damaged(&self, store: &Store) -> Vec<u32> {
        let pages = self.pages();
        let volumes = self.parts.iter().filter_map(|part| match (part.origin, &part.data) {
            (Origin::Volume(first), Some(bytes)) => Some((first, bytes)),
            _ => None,
        });
        let damaged = volumes
            .flat_map(|(first, bytes)| store.damaged_blocks((self.range.volume, first), bytes, &pages));
        damaged.map(|block| self.place(block)).collect()
    }

    /// The place in the range of a block of the volume.
    fn place(&self, block: u64) -> u32 {
        (block - self.range.first_block()) as u32
    }

    pub(crate) fn into_pieces(self) -> Pieces {
        let asked = self.parts.into_iter().filter(|part| !matches!(part.origin, Origin::Sums(_)));
        asked.filter_map(|part| part.data).collect()
    }
}

/// Returns the ranges of those segments that lie in the volume.
fn of_volume(volume: VolumeId, segments: &[Segment]) -> impl Iterator<Item = Range> {
    let here = segments.iter().filter(|segment| segment.source == Source::Volume);
    here.map(move |segment| Range { volume, offset: segment.offset, len: segment.len })
}

/// Zeroes that answer reads of zeroed ranges. No read at once is longer.
static ZEROES: [u8; REQUEST_BYTES_MAX as usize] = [0; REQUEST_BYTES_MAX as usize];

const _: () = assert!(EXTENT_BYTES <= REQUEST_BYTES_MAX);

impl Host {
    pub(crate) fn start_read(&mut self, platform: &mut impl Platform, purpose: Purpose, range: Range) {
        self.read_again(platform, purpose, range, 0);
    }

    /// Starts a read after `rounds` rounds in which damage was found.
    pub(crate) fn read_again(
        &mut self,
        platform: &mut impl Platform,
        purpose: Purpose,
        range: Range,
        rounds: u64,
    ) {
        let waits = match purpose {
            Purpose::Request(id) => self.must_wait(Waiting::Request(id, range)),
            Purpose::Extent { peer, volume, extent, .. } => {
                self.must_wait(Waiting::Extent(peer, volume, extent))
            }
            Purpose::Blocks => self.must_wait(Waiting::Blocks(range)),
            Purpose::Digest { .. } => self.digest_rolled_back(platform),
            Purpose::Scrub { .. } | Purpose::Held { .. } => false,
            Purpose::Look => self.store.rolling_back(),
        };
        if waits {
            return;
        }
        let segments = self.store.read(range);
        if let Some(job) = self.gather_segments(platform, purpose, range, segments, rounds) {
            self.read_complete(platform, job);
        }
    }

    /// Begins a read, and gives it back if that was all because everything is in memory and well.
    pub(crate) fn gather(
        &mut self,
        platform: &mut impl Platform,
        purpose: Purpose,
        range: Range,
    ) -> Option<ReadJob> {
        let segments = self.store.read(range);
        self.gather_segments(platform, purpose, range, segments, 0)
    }

    /// The same from segments that the store has named before.
    pub(crate) fn gather_segments(
        &mut self,
        platform: &mut impl Platform,
        purpose: Purpose,
        range: Range,
        segments: Segments,
        rounds: u64,
    ) -> Option<ReadJob> {
        let sums = self.sums_of(range.volume, &segments);
        let held = match purpose {
            Purpose::Scrub { .. } | Purpose::Held { .. } => self.sums_held(range.volume, &segments),
            _ => Vec::new(),
        };
        let number = self.tokens(segments.len() + sums.len());
        let parts = SmallVec::with_capacity(segments.len() + sums.len());
        let stamp = self.store.volume_stamp();
        let mut job = ReadJob {
            purpose,
            range,
            rounds,
            parts,
            outstanding: 0,
            next: 0,
            reading_bytes: 0,
            stale: false,
            stamp,
        };
        let sums_from = number + segments.len() as u64;
        for (token, segment) in (number..).zip(segments) {
            let mut origin = Origin::Memory;
            let data = match segment.source {
                Source::Memory(bytes) => Some(bytes),
                Source::Zero => Some(Bytes::from_static(&ZEROES[..segment.len as usize])),
                Source::Journal { offset, payload } => {
                    origin = Origin::Journal(offset, payload);
                    None
                }
                // A volume that was discarded may have terabytes of holes.
                Source::Volume
                    if !matches!(purpose, Purpose::Request(_))
                        && platform.is_hole(range.volume, segment.offset, segment.len) =>
                {
                    reach!("host: a hole is not read");
                    origin = Origin::Volume(segment.offset / BLOCK_BYTES);
                    Some(Bytes::from_static(&ZEROES[..segment.len as usize]))
                }
                Source::Volume => {
                    origin = Origin::Volume(segment.offset / BLOCK_BYTES);
                    let (area, passes) = (Area::Volume(range.volume), purpose.is_device());
                    platform.read(token, area, segment.offset, segment.len, passes);
                    None
                }
            };
            job.outstanding += usize::from(data.is_none());
            job.parts.push(Part { len: segment.len, origin, data });
        }
        for (token, page) in (sums_from..).zip(sums) {
            reach!("host: sums are read");
            platform.read(token, Area::Sums(range.volume), page * BLOCK_BYTES, BLOCK_BYTES, false);
            job.outstanding += 1;
            job.parts.push(Part { len: BLOCK_BYTES, origin: Origin::Sums(page), data: None });
        }
        for (page, bytes) in held {
            job.parts.push(Part { len: BLOCK_BYTES, origin: Origin::Sums(page), data: Some(bytes) });
        }
        if job.outstanding == 0 {
            // Nothing came between.
            return match self.checked(&job) {
                Checked::Well | Checked::Again => Some(job),
                Checked::Damaged(damaged) => {
                    self.found_damage(platform, job, damaged);
                    None
                }
            };
        }
        job.read_payloads(platform, number);
        self.reads.insert(number, job);
        None
    }

    /// Pages of sums that a read of these segments needs and that are not in memory, ascending.
    fn sums_of(&self, volume: VolumeId, segments: &[Segment]) -> Vec<u64> {
        let ranges = of_volume(volume, segments);
        let mut pages: Vec<_> = ranges.flat_map(|range| self.store.sums_to_read(range)).collect();
        pages.dedup();
        pages
    }

    /// The others.
    fn sums_held(&self, volume: VolumeId, segments: &[Segment]) -> Vec<(u64, Bytes)> {
        let ranges = of_volume(volume, segments);
        let mut pages: Vec<_> = ranges.flat_map(|range| self.store.sums_in_memory(range)).collect();
        pages.dedup_by_key(|(page, _)| *page);
        pages
    }

    /// Whether what came of the volume fits its sums.
    fn checked(&mut self, job: &ReadJob) -> Checked {
        let (volume, pages) = (job.range.volume, job.pages());
        self.store.keep_sums(volume, &pages, job.stamp);
        // All of its damage is told instead: others judge it.
        if matches!(job.purpose, Purpose::Scrub { .. } | Purpose::Held { .. }) {
            return Checked::Well;
        }
        for part in &job.parts {
            let (Origin::Volume(first), Some(bytes)) = (part.origin, &part.data) else { continue };
            let checked = self.store.check_blocks((volume, first), bytes, &pages, job.stamp);
            let Some(lost) = self.damage.copied_as_such(job) else {
                if checked != Checked::Well {
                    return checked;
                }
                continue;
            };
            // Only blocks that the other replicas were asked for, and do not have.
            for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
                match self.store.check_blocks((volume, block), bytes, &pages, job.stamp) {
                    Checked::Damaged(damaged) if lost.contains(&job.place(damaged.block)) => {}
                    Checked::Well => {}
                    other => return other,
                }
            }
        }
        Checked::Well
    }

    /// The number of the read that waits for this token.
    pub(crate) fn job_of(&self, token: u64) -> Option<u64> {
        let (&number, job) = self.reads.range(..=token).next_back()?;
        job.parts.get((token - number) as usize).filter(|part| part.data.is_none()).map(|_| number)
    }

    pub(crate) fn piece_read(
        &mut self,
        platform: &mut impl Platform,
        number: u64,
        token: u64,
        result: Result<Bytes, IoFailure>,
    ) {
        let Some(job) = self.reads.get_mut(&number) else { return };
        let part = &mut job.parts[(token - number) as usize];
        let data = match (result, part.origin) {
            (Err(error), _) => Err(error.to_string()),
            (Ok(bytes), Origin::Volume(_) | Origin::Sums(_)) if bytes.len() as u64 == part.len => Ok(bytes),
            (Ok(bytes), Origin::Journal(offset, payload)) if bytes.len() as u64 == payload.len => {
                job.reading_bytes -= payload.len;
                if self.store.holds(&payload) {
                    payload.part(&bytes, offset, part.len).map_err(|damaged| damaged.to_string())
                } else {
                    reach!("host: the place of a payload was used again while it was read");
                    job.stale = true;
                    Ok(Bytes::new())
                }
            }
            (Ok(_), _) => Err("too few bytes".to_owned()),
        };
        let failure = match data {
            Ok(bytes) => {
                part.data = Some(bytes);
                job.outstanding -= 1;
                if job.outstanding > 0 {
                    return job.read_payloads(platform, number);
                }
                None
            }
            Err(detail) => Some(detail),
        };
        let Some(job) = self.reads.remove(&number) else { return };
        let checked = if failure.is_none() { self.checked(&job) } else { Checked::Well };
        if let Some(detail) = failure {
            self.read_failed(platform, &job, &detail);
        } else if let (true, Purpose::Scrub { at }) = (job.stale, job.purpose) {
            // The content now is not that of the entry any more.
            self.extent_scrubbed(platform, at, None);
        } else if let (true, Purpose::Held { extent, at }) = (job.stale, job.purpose) {
            self.extent_summed(platform, (job.range.volume, extent), at, None);
        } else if let Checked::Damaged(damaged) = checked {
            self.found_damage(platform, job, damaged);
        } else if checked == Checked::Again {
            reach!("host: a read of a volume is done anew");
            self.read_again(platform, job.purpose, job.range, job.rounds);
        } else if job.stale && !planted(Bug::ReusedPlaceRead) {
            self.read_again(platform, job.purpose, job.range, job.rounds);
        } else {
            self.read_complete(platform, job);
        }
    }

    fn read_complete(&mut self, platform: &mut impl Platform, job: ReadJob) {
        if let Purpose::Extent { peer, volume, extent, version, at } = job.purpose
            && self.damage.copied_as_such(&job).is_some()
        {
            let damaged = job.damaged(&self.store);
            let data = without(&job.into_pieces(), &damaged);
            self.damage_copied(platform, peer, (volume, extent), damaged.len() as u64);
            let event = Event::ExtentLoaded { peer, volume, extent, version, at, data, damaged };
            return self.replica.handle(platform.now(), event);
        }
        self.damage.was_read(job.range);
        match job.purpose {
            Purpose::Request(id) => {
                // R10: what was read counts only if the lease still holds now that the read
                // completes.
                let answer = if platform.may_answer() || planted(Bug::LeaseNotAsked) {
                    Ok(job.into_pieces())
                } else {
                    Err(AnswerError::NoLease)
                };
                self.answer(platform, id, answer);
            }
            Purpose::Extent { peer, volume, extent, version, at } => {
                let pieces = job.into_pieces();
                let data = if pieces.iter().all(is_zero) { Bytes::new() } else { join(platform, pieces) };
                let event =
                    Event::ExtentLoaded { peer, volume, extent, version, at, data, damaged: Vec::new() };
                self.replica.handle(platform.now(), event);
            }
            Purpose::Look => {}
            Purpose::Scrub { at } => self.extent_scrubbed(platform, at, Some(job)),
            Purpose::Held { extent, at } => {
                self.extent_summed(platform, (job.range.volume, extent), at, Some(job));
            }
            Purpose::Blocks => {
                let (range, pieces) = (job.range, job.into_pieces());
                let data = join(platform, pieces);
                self.replica.handle(platform.now(), Event::BlocksLoaded { range, data });
            }
            Purpose::Digest { extent } => {
                let volume = job.range.volume;
                self.digest_extent(volume, extent, &job.into_pieces());
                self.continue_digest(platform);
            }
        }
    }

    pub(crate) fn read_failed(&mut self, platform: &mut impl Platform, job: &ReadJob, detail: &str) {
        let reason = format!(
            "reading volume {} at {} ({} bytes) failed: {detail}",
            job.range.volume, job.range.offset, job.range.len
        );
        match job.purpose {
            Purpose::Request(id) => self.answer(platform, id, Err(AnswerError::Disk)),
            Purpose::Digest { .. } => self.digest_failed(platform, &reason),
            Purpose::Extent { .. }
            | Purpose::Scrub { .. }
            | Purpose::Held { .. }
            | Purpose::Blocks
            | Purpose::Look => {}
        }
        self.fail(platform, reason);
    }

    /// R10: another node may be primary from now on. It may write what these reads do not see, even
    /// if the lease of this node goes on.
    pub(crate) fn refuse_reads(&mut self, platform: &mut impl Platform) {
        self.refuse_mended(platform);
        self.refuse_waiting(platform);
        self.reads.retain(|_, job| {
            let Purpose::Request(id) = job.purpose else { return true };
            // Clients ask the next primary.
            if !AttachedClients::owns(id) {
                platform.complete(id, Err(AnswerError::Request(RequestError::NotPrimary)));
            }
            false
        });
    }

    /// Reads one extent for a replica that is being copied to, as of the commit index of now.
    pub(crate) fn load_extent(
        &mut self,
        platform: &mut impl Platform,
        peer: NodeId,
        volume: VolumeId,
        extent: Extent,
    ) {
        if self.must_wait(Waiting::Extent(peer, volume, extent)) {
            return;
        }
        let version = self.store.version(volume, extent);
        let at = self.store.applied();
        let Some(range) = self.extent_range(volume, extent) else { return };
        self.start_read(platform, Purpose::Extent { peer, volume, extent, version, at }, range);
    }

    pub(crate) fn extent_range(&self, volume: VolumeId, extent: Extent) -> Option<Range> {
        let bytes = *self.store.config().volumes.get(usize::from(volume.0))?;
        let offset = extent.offset();
        (offset < bytes).then(|| Range { volume, offset, len: EXTENT_BYTES.min(bytes - offset) })
    }
}

/// Returns the content that was read of an extent, with zeroes for damaged blocks, whose content is
/// sent to no replica. Empty if all of it is zeroes.
fn without(pieces: &Pieces, damaged: &[u32]) -> Bytes {
    let mut bytes = pieces.concat();
    for &block in damaged {
        let from = block as usize * BLOCK_BYTES as usize;
        bytes[from..from + BLOCK_BYTES as usize].fill(0);
    }
    let data = Bytes::from(bytes);
    if is_zero(&data) { Bytes::new() } else { data }
}

fn join(platform: &mut impl Platform, mut pieces: Pieces) -> Bytes {
    if pieces.len() == 1 { pieces.swap_remove(0) } else { platform.join(pieces) }
}

pub(crate) fn is_zero(piece: &Bytes) -> bool {
    std::ptr::eq(piece.as_ptr(), ZEROES.as_ptr())
        || piece.chunks(BLOCK_BYTES as usize).all(|block| block == &ZEROES[..block.len()])
}
