//! Digests: short forms of a replica's content, by which replicas are compared. The content of a
//! volume is digested extent by extent, in order, one at a time.

use crate::reads::{Purpose, is_zero};
use crate::{Digest, DigestError, Happened, Host, Platform};
use bytes::Bytes;
use mainstay_codec::crc64;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{DataState, Extent, Index, VolumeId};

/// A digest in the making.
pub(crate) struct Digesting {
    index: Index,
    extents: Vec<(VolumeId, Extent)>,
    next: usize,
    sums: Vec<u64>,
    /// A copy began: what was read before it is not what is there now.
    copied: bool,
}

impl Host {
    /// Digests everything as of the commit index of now; answered by [`Happened::Digested`],
    /// perhaps before this returns. Fails when that index moves meanwhile, so the caller pauses
    /// writes first.
    ///
    /// # Errors
    /// [`DigestError::Busy`]: one is being made. [`DigestError::Incomplete`]: the content is not
    /// that of any commit index (R16). Nothing else follows then.
    pub fn start_digest(&mut self, platform: &mut impl Platform) -> Result<(), DigestError> {
        if self.digest.is_some() {
            return Err(DigestError::Busy);
        }
        if self.store.log_state().data != DataState::Consistent {
            return Err(DigestError::Incomplete);
        }
        self.digest = Some(Digesting {
            index: self.store.applied(),
            extents: self.store.extents_newer_than(Index(0)),
            next: 0,
            sums: vec![0; self.store.config().volumes.len()],
            copied: false,
        });
        self.continue_digest(platform);
        Ok(())
    }

    /// The log is restarted for a copy, which may end before the digest does.
    pub(crate) fn digest_overtaken(&mut self) {
        if let Some(digest) = &mut self.digest {
            digest.copied = true;
        }
    }

    /// Goes on to the next extent that must be waited for. A loop: all extents may be in memory.
    pub(crate) fn continue_digest(&mut self, platform: &mut impl Platform) {
        if self.digest_rolled_back(platform) {
            return;
        }
        while let Some(digest) = &mut self.digest {
            let Some(&(volume, extent)) = digest.extents.get(digest.next) else {
                return self.end_digest(platform);
            };
            digest.next += 1;
            let Some(range) = self.extent_range(volume, extent) else { continue };
            match self.gather(platform, Purpose::Digest { extent }, range) {
                Some(job) => self.digest_extent(volume, extent, &job.into_pieces()),
                None => return,
            }
        }
    }

    /// Whether the volumes are being rolled back, which ends a digest.
    pub(crate) fn digest_rolled_back(&mut self, platform: &mut impl Platform) -> bool {
        let rolls = self.store.rolling_back();
        if rolls && self.digest.take().is_some() {
            platform.happened(Happened::Digested(Err(DigestError::Moved)));
        }
        rolls
    }

    pub(crate) fn digest_extent(&mut self, volume: VolumeId, extent: Extent, pieces: &[Bytes]) {
        let Some(digest) = &mut self.digest else { return };
        if pieces.iter().all(is_zero) {
            return;
        }
        let sum = &mut digest.sums[usize::from(volume.0)];
        let (before, number) = (sum.to_le_bytes(), extent.0.to_le_bytes());
        let mut parts: Vec<&[u8]> = vec![&before, &number];
        parts.extend(pieces.iter().map(|piece| &**piece));
        *sum = crc64(&parts);
    }

    fn end_digest(&mut self, platform: &mut impl Platform) {
        let Some(digest) = self.digest.take() else { return };
        let moved = self.store.applied() != digest.index && !planted(Bug::DigestOfMoving);
        let result = if !moved && !digest.copied {
            Ok(Digest { index: digest.index, volumes: digest.sums })
        } else {
            Err(DigestError::Moved)
        };
        platform.happened(Happened::Digested(result));
    }

    pub(crate) fn digest_failed(&mut self, platform: &mut impl Platform, reason: &str) {
        if self.digest.take().is_some() {
            platform.happened(Happened::Digested(Err(DigestError::Disk(reason.to_owned()))));
        }
    }
}
