//! Volumes that get larger while they are in use (R17).
//!
//! ```text
//! GrowVolume ─▶ growing ─▶ the primary's engine logs it ─▶ its device is larger ─▶ VolumeGrown ─▶ in the specification
//! ```
//!
//! - The specification follows the log. A replica is made with the sizes that volumes have where
//!   the log begins, whenever that is. It meets each growth as an entry of its log, or is told the
//!   sizes when a copy begins.
//! - So a size belongs to a place of the log and to nothing else. A growth that a forced promotion
//!   loses is gone from every replica, also from those that were made in between.
//! - The wish stays until it is fulfilled. The primary, whichever node it is, repeats it to its
//!   engine. An engine that has grown the volume ignores it.
//! - A report of growth counts only in the epoch that it is about. The next primary reports the
//!   growth again.
//! - A volume never gets smaller: the data beyond the new end would be lost, and no mounted file
//!   system allows it.

use crate::state::{Command, Outcome, Resource, State, refused};
use mainstay_types::{Code, Epoch, ResourceId, Severity, VolumeId, is_volume_size, reach, size_words};

/// Remedy for sizes that no volume can have.
pub(crate) const SIZE_REMEDY: &str = "use a multiple of 4096 bytes up to 4 TiB";

impl State {
    pub(crate) fn grow_volume(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        volume: VolumeId,
        bytes: u64,
    ) -> Outcome {
        let found = self.resources.get_mut(&id).filter(|resource| !resource.deleting);
        let Some(resource) = found else {
            return refused(
                Code::UnknownResource,
                format!("there is no resource {id}"),
                "see `mainstay resource list`",
            );
        };
        let Some(&size) = resource.spec.volumes.get(usize::from(volume.0)) else {
            return refused(
                Code::UnknownVolume,
                format!(
                    "there is no volume {} in resource {}, which has {} of them",
                    volume.0,
                    resource.name,
                    resource.spec.volumes.len()
                ),
                format!(
                    "volumes are counted from 0: name one of 0 to {}",
                    resource.spec.volumes.len().saturating_sub(1)
                ),
            );
        };
        if !is_volume_size(bytes) {
            return refused(Code::BadSize, format!("a volume of {bytes} bytes"), SIZE_REMEDY);
        }
        let wanted = resource.growing.get(&volume).copied().unwrap_or(size);
        if bytes == wanted {
            return Outcome::Unchanged;
        }
        if bytes < wanted {
            reach!("control: a volume does not shrink");
            return refused(
                Code::Shrink,
                format!(
                    "the volume has {wanted} bytes, and a volume cannot be made smaller: what lies beyond {bytes} bytes would be lost"
                ),
                "make a smaller resource and copy the data, or give the space back with `fstrim`",
            );
        }
        reach!("control: a volume is to grow");
        resource.growing.insert(volume, bytes);
        let subject = format!("resource {}", resource.name);
        self.note(
            at_ms,
            Severity::Info,
            subject,
            format!("volume {} is to grow to {}", volume.0, size_words(bytes)),
        );
        Outcome::Done
    }

    /// The device of the primary of this epoch has this size, and its log says so.
    pub(crate) fn volume_grown(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        epoch: Epoch,
        volume: VolumeId,
        bytes: u64,
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        let Some(&size) = resource.spec.volumes.get(usize::from(volume.0)) else {
            return Outcome::Unchanged;
        };
        if resource.record.epoch != epoch {
            // A promotion may have been forced since, and the log of its primary need not have the
            // growth. Seed 3240830.
            reach!("control: a volume has grown in an earlier epoch");
            return Outcome::Unchanged;
        }
        let wished = resource.growing.get(&volume).is_some_and(|wanted| *wanted <= bytes);
        if size >= bytes && !wished {
            return Outcome::Unchanged;
        }
        reach!("control: a volume has grown");
        if resource.first_sizes.is_empty() {
            resource.first_sizes.clone_from(&resource.spec.volumes);
        }
        if let Some(size) = resource.spec.volumes.get_mut(usize::from(volume.0)) {
            *size = bytes.max(*size);
        }
        resource.growing.retain(|of, wanted| *of != volume || *wanted > bytes);
        let subject = format!("resource {}", resource.name);
        self.note(
            at_ms,
            Severity::Info,
            subject,
            format!("volume {} has {} now", volume.0, size_words(bytes)),
        );
        Outcome::Done
    }
}

impl Resource {
    /// Returns the sizes that new replicas are made with: those of the volumes where the log
    /// begins, in bytes.
    pub fn first_sizes(&self) -> &[u64] {
        if self.first_sizes.is_empty() { &self.spec.volumes } else { &self.first_sizes }
    }

    /// Returns the growth that the primary still has to order from its engine, and the reports of
    /// growth that is complete. `sizes` are the sizes of the volumes on the primary, in bytes.
    pub(crate) fn growth(&self, sizes: &[u64]) -> (Vec<(VolumeId, u64)>, Vec<Command>) {
        let size = |volume: VolumeId| sizes.get(usize::from(volume.0)).copied().unwrap_or(0);
        let (done, open): (Vec<_>, Vec<_>) = self
            .growing
            .iter()
            .map(|(volume, bytes)| (*volume, *bytes))
            .partition(|(v, bytes)| size(*v) >= *bytes);
        let report = |(volume, _): (VolumeId, u64)| Command::VolumeGrown {
            resource: self.id,
            epoch: self.record.epoch,
            volume,
            bytes: size(volume),
        };
        (open, done.into_iter().map(report).collect())
    }
}
