//! File systems that are being made on volumes.
//!
//! Guarantees
//! - The cluster knows of a file system from before its first byte is written until its last byte
//!   is durable. So every node that may be primary afterwards knows of an interrupted attempt.
//! - Only the primary of the present epoch begins and ends an attempt. A former primary that was
//!   cut off cannot end its successor's attempt.
//! - A rollback puts other content there, and ends the attempt.

use crate::snapshots::unknown_resource;
use crate::state::{Outcome, State, refused};
use mainstay_types::{Code, Epoch, ResourceId, Severity, VolumeId};

impl State {
    /// `uuid`: identity of the file system that is being made from now on; `None`: none is any
    /// more.
    pub(crate) fn make_file_system(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        epoch: Epoch,
        volume: VolumeId,
        uuid: Option<[u8; 16]>,
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return unknown_resource(id) };
        if resource.record.epoch != epoch || resource.deleting {
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        if usize::from(volume.0) >= resource.spec.volumes.len() {
            return refused(
                Code::UnknownVolume,
                format!("resource {} has no volume {}", resource.name, volume.0),
                "volumes are counted from 0",
            );
        }
        let before = resource.unfinished.get(&volume).copied();
        if before == uuid {
            return Outcome::Unchanged;
        }
        let subject = format!("resource {}", resource.name);
        match uuid {
            Some(uuid) => {
                resource.unfinished.insert(volume, uuid);
                let text = format!("a file system is being made on volume {}", volume.0);
                self.note(at_ms, Severity::Info, subject, text);
            }
            None => {
                resource.unfinished.remove(&volume);
            }
        }
        Outcome::Done
    }
}
