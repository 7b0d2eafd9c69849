//! The note of an engine for its successor, when it is replaced on purpose.
//!
//! An engine that leaves in an orderly way has answered everything that it had read from its
//! devices. The descriptors are with the agent ([`crate::descriptor_holder`]); this note says what
//! they are of.
//!
//! Guarantees
//! - A note is read once. An engine that starts for another reason finds none.
//! - A note whose time is over says nothing: the agent gives the descriptors to no engine any more.

use mainstay_types::{Epoch, ResourceId, Time};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

/// Below the run directory.
const FILE: &str = "successor.json";

/// The note.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Succession {
    /// When the engine had answered everything, on the boot-time clock.
    pub at: Time,
    /// Until when a successor may take the devices.
    pub until: Time,
    pub resources: Vec<LeftResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftResource {
    pub resource: ResourceId,
    /// The resource's.
    pub name: String,
    /// Epoch in which the devices were served.
    pub served: Epoch,
    /// Bytes of each volume, as the kernel knows them.
    pub sizes: Vec<u64>,
    /// The kernel sends no flushes any more.
    pub flushes_refused: bool,
}

impl Succession {
    /// Notes it in a run directory.
    ///
    /// # Errors
    /// When it cannot be written: then the devices cannot be left.
    pub fn note(&self, run_dir: &Path) -> io::Result<()> {
        let file = run_dir.join(FILE);
        let fresh = file.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(self)?)?;
        fs::rename(fresh, file)
    }

    /// Takes the note out of a run directory. `None` if there is none, or its time is over.
    #[must_use]
    pub fn take(run_dir: &Path, now: Time) -> Option<Self> {
        let file = run_dir.join(FILE);
        let bytes = fs::read(&file).ok()?;
        if let Err(error) = fs::remove_file(&file) {
            tracing::error!(file = %file.display(), %error, "cannot remove the note of the engine before: its devices are not taken");
            return None;
        }
        let noted: Self = serde_json::from_slice(&bytes).ok()?;
        (now < noted.until).then_some(noted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_once_and_only_in_its_time() {
        let dir = std::env::temp_dir().join(format!("mainstay-succession-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let left = LeftResource {
            resource: ResourceId(7),
            name: "db".into(),
            served: Epoch(3),
            sizes: vec![4096],
            flushes_refused: true,
        };
        let noted = Succession { at: Time(5), until: Time(10), resources: vec![left] };
        noted.note(&dir).expect("noted");
        assert_eq!(Succession::take(&dir, Time(9)), Some(noted.clone()));
        assert_eq!(Succession::take(&dir, Time(9)), None);
        noted.note(&dir).expect("noted");
        assert_eq!(Succession::take(&dir, Time(10)), None, "too late");
        fs::remove_dir_all(&dir).expect("removed");
    }
}
