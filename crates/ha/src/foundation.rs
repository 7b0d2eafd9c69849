//! The file system under a service: whether a process may begin on it, and whether it may be taken
//! away (R27, R28).
//!
//! Before the agent carries out a step, it looks at the mount point and asks here what follows.

use crate::steps::Step;
use mainstay_types::reach;
use mainstay_types::simulation::{Bug, planted};
use serde::{Deserialize, Serialize};

/// A mount point of a service, as it is at this moment. Mounts are told apart by their devices, not
/// by names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtPath {
    /// No file system is mounted there.
    Nothing,
    /// The file system of the service's volume.
    Ours,
    /// The file system of the service's volume, and in it another mount, in words.
    Holds(String),
    /// The file system of the service's volume, which takes no writes any more, and why.
    Dead(String),
    /// The file system of the service's volume, out of sight under another mount, in words.
    Covered(String),
    /// A mount that is not of the service's volume, in words.
    Foreign(String),
}

/// Consequence of [`AtPath`] for an unmount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unmount {
    /// The path has no mount of the service. Any other mount there stays.
    Nothing,
    /// The topmost mount is the service's, and nothing else goes with it.
    Topmost,
    /// The service's mount cannot go without another one, in words.
    Waits(String),
}

impl AtPath {
    /// Whether `step` may begin on it.
    ///
    /// # Errors
    /// The reason, in words for the operator.
    pub fn may_begin(&self, step: Step) -> Result<(), String> {
        let stands_on_it =
            matches!(step, Step::Prepare { .. } | Step::StartProcess { .. } | Step::CheckReady { .. });
        if !stands_on_it || planted(Bug::MountNotChecked) {
            return Ok(());
        }
        let why = match self {
            Self::Ours | Self::Holds(_) => return Ok(()),
            Self::Nothing => "the file system is not mounted any more".to_owned(),
            Self::Dead(why) => format!("the file system takes no writes any more: {why}"),
            Self::Covered(what) => format!("another mount lies over the file system: {what}"),
            Self::Foreign(what) => format!("another mount is in the place of the file system: {what}"),
        };
        reach!("ha: a process does not begin without its mount");
        Err(why)
    }

    /// Whether the file system is to be mounted: `false` where it is mounted already. `runs`:
    /// processes of the service run.
    ///
    /// # Errors
    /// The reason why it cannot be mounted, in words for the operator.
    pub fn to_mount(&self, runs: bool) -> Result<bool, String> {
        match self {
            Self::Ours | Self::Holds(_) => Ok(false),
            // The open files and the directories of these processes would stay those below the
            // mount.
            Self::Nothing if runs && !planted(Bug::MountNotChecked) => {
                reach!("ha: nothing is mounted under running processes");
                Err("processes of the service run, and their file system is not mounted any more".into())
            }
            Self::Nothing => Ok(true),
            Self::Dead(why) => Err(format!("the file system takes no writes any more: {why}")),
            Self::Covered(what) => Err(format!("another mount lies over the file system: {what}")),
            Self::Foreign(what) => Err(format!("something else is mounted there: {what}")),
        }
    }

    /// Whether the service has lost its file system: a later step would not begin on it.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.may_begin(Step::StartProcess { process: 0 }).err()
    }

    /// Whether a new attempt on this node may help. If the file system has died, another node is
    /// the better place.
    #[must_use]
    pub fn is_mendable(&self) -> bool {
        !matches!(self, Self::Dead(_))
    }

    /// Returns what an unmount has to do.
    #[must_use]
    pub fn unmount(&self) -> Unmount {
        match self {
            Self::Nothing => Unmount::Nothing,
            Self::Ours | Self::Dead(_) => Unmount::Topmost,
            Self::Foreign(_) if planted(Bug::ForeignMountTaken) => Unmount::Topmost,
            Self::Foreign(_) => {
                reach!("ha: a mount of others is left");
                Unmount::Nothing
            }
            Self::Holds(what) => Unmount::Waits(format!("{what} is mounted in it")),
            Self::Covered(what) => Unmount::Waits(format!("{what} is mounted over it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Step = Step::StartProcess { process: 0 };

    fn all() -> [AtPath; 6] {
        let what = || "tmpfs".to_owned();
        [
            AtPath::Nothing,
            AtPath::Ours,
            AtPath::Holds(what()),
            AtPath::Dead(what()),
            AtPath::Covered(what()),
            AtPath::Foreign(what()),
        ]
    }

    #[test]
    fn a_process_begins_only_on_the_file_system_of_its_volume() {
        for step in [START, Step::Prepare { process: 0 }, Step::CheckReady { process: 0 }] {
            let may: Vec<bool> = all().iter().map(|at| at.may_begin(step).is_ok()).collect();
            assert_eq!(may, [false, true, true, false, false, false], "{step:?}");
        }
        for step in [Step::Mount, Step::AddAddress, Step::ProbeAddress] {
            assert!(all().iter().all(|at| at.may_begin(step).is_ok()), "{step:?} needs no file system");
        }
    }

    #[test]
    fn a_file_system_is_mounted_where_nothing_is_and_never_under_processes() {
        let mounts = |runs| all().map(|at| at.to_mount(runs).ok());
        assert_eq!(mounts(false), [Some(true), Some(false), Some(false), None, None, None]);
        assert_eq!(mounts(true), [None, Some(false), Some(false), None, None, None]);
    }

    #[test]
    fn only_the_mount_of_the_volume_is_taken_away_and_no_other_goes_with_it() {
        let topmost: Vec<bool> = all().iter().map(|at| at.unmount() == Unmount::Topmost).collect();
        assert_eq!(topmost, [false, true, false, true, false, false]);
        let waits: Vec<bool> = all().iter().map(|at| matches!(at.unmount(), Unmount::Waits(_))).collect();
        assert_eq!(waits, [false, false, true, false, true, false]);
    }
}
