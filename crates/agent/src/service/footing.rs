//! The last look of a process before it begins: whether its file system is there, and whether its
//! node is being silenced.
//!
//! The agent looks at both before it starts a process. Either may change until the process begins.
//! The engine's guard may kill the cgroup a moment before the process is in it, and then detach the
//! file system.
//!
//! Guarantees
//! - The process looks again itself, after it has entered its cgroup and before its program begins.
//!   The guard bars starts before it kills. So either the process sees the bar, or the kill finds
//!   the process (R19).
//! - A process begins only below the mount that the agent has found to be the one of its service
//!   (R28).
//!
//! Everything that allocates happens before the process is made: between `fork` and `exec` only
//! system calls are made.

use super::mount::{MountError, Place};
use super::mount_table::MountTable;
use mainstay_api::engine::{LEASE_FILE, SILENCED_AT, STARTS_BARRED_AT};
use mainstay_types::Time;
use nix::errno::Errno;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The process found that its node is being silenced.
pub const BARRED: Errno = Errno::ECANCELED;
/// The process found another mount, or none, in the place of its file system.
pub const NO_MOUNT: Errno = Errno::EREMCHG;

/// Returns the point of the boot-time clock at which the engine's guard or its silencer ended the
/// services on this node, or began to. `None` if neither has acted, or if nothing is noted.
///
/// The notes tell it at once, also when the engine stands still.
#[must_use]
pub fn silenced_at(run_dir: &Path) -> Option<Time> {
    let notes = File::open(run_dir.join(LEASE_FILE)).ok()?;
    let read = |at: usize| {
        let mut bytes = [0; 8];
        notes.read_exact_at(&mut bytes, at as u64).map_or(0, |()| u64::from_le_bytes(bytes))
    };
    Some(Time(read(SILENCED_AT).max(read(STARTS_BARRED_AT)))).filter(|at| *at != Time(0))
}

/// The engine's notes and the mount that a process looks at last.
#[derive(Debug, Default)]
pub struct Footing {
    /// The engine's notes; none where there is no engine.
    notes: Option<File>,
    /// Path of the mount, and its identity.
    mount: Option<(CString, u64)>,
    /// Where the engine notes.
    run_dir: PathBuf,
}

impl Footing {
    /// Returns the footing of a process that begins now; `place` is the mount of its service, if it
    /// has a file system.
    ///
    /// # Errors
    /// When the file system is not there any more, or the mount table cannot be read.
    pub fn of(run_dir: &Path, place: Option<&Place>) -> Result<Self, MountError> {
        let find = |place: &Place| {
            let table = MountTable::read().map_err(MountError::Table)?;
            let ours = table.at(&place.path).filter(|found| found.is_on(place.device, place.number));
            let path = CString::new(place.path.as_os_str().as_bytes()).ok();
            ours.zip(path)
                .map(|(ours, path)| (path, ours.id))
                .ok_or_else(|| MountError::Gone { path: place.path.clone() })
        };
        let notes = File::open(run_dir.join(LEASE_FILE)).ok();
        Ok(Self { notes, mount: place.map(find).transpose()?, run_dir: run_dir.to_owned() })
    }

    /// Returns the path of the mount, for a process that another program starts.
    #[must_use]
    pub fn mount_path(&self) -> Option<&Path> {
        self.mount.as_ref().map(|(path, _)| Path::new(OsStr::from_bytes(path.as_bytes())))
    }

    /// Returns the directory with the notes of the engine.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Called by the process itself. Allocates nothing.
    ///
    /// # Errors
    /// [`BARRED`] or [`NO_MOUNT`].
    pub fn look(&self) -> io::Result<()> {
        let mut barred = [0; 8];
        if let Some(notes) = &self.notes
            // A file of an engine before this version is shorter, or says 0 there.
            && notes.read_exact_at(&mut barred, STARTS_BARRED_AT as u64).is_ok()
            && u64::from_le_bytes(barred) != 0
        {
            return Err(BARRED.into());
        }
        let Some((path, id)) = &self.mount else { return Ok(()) };
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
        match statx(CWD, path.as_c_str(), flags, StatxFlags::MNT_ID) {
            // Kernels before 5.8 do not tell.
            Ok(found) if !StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) => Ok(()),
            Ok(found) if found.stx_mnt_id == *id => Ok(()),
            _ => Err(NO_MOUNT.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cgroup;
    use super::super::command::{self, ProcessError, ProcessPlan, Role, ServiceDirs};
    use super::super::mount_table::DeviceId;
    use super::*;
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    /// A run directory, and a file system in memory that counts as the one of a service; gone when
    /// dropped.
    struct Node {
        dir: tempfile::TempDir,
        place: Place,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().canonicalize().expect("it is there").join("db");
            std::fs::create_dir(&path).expect("a directory");
            cover(&path);
            let device = DeviceId::from_number(std::fs::metadata(&path).expect("it is there").dev());
            let node = Self { dir, place: Place { path, device, read_only: false, number: None } };
            node.bar(0);
            node
        }

        /// Notes the moment from which starts are barred, as the engine does.
        fn bar(&self, at: u64) {
            let mut notes = vec![0; 4096];
            notes[STARTS_BARRED_AT..][..8].copy_from_slice(&at.to_le_bytes());
            std::fs::write(self.dir.path().join(LEASE_FILE), notes).expect("written");
        }

        fn footing(&self) -> Footing {
            Footing::of(self.dir.path(), Some(&self.place)).expect("it is mounted")
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            while umount2(&self.place.path, MntFlags::MNT_DETACH).is_ok() {}
        }
    }

    fn cover(path: &Path) {
        mount(Some("others"), path, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("it is mounted");
    }

    fn code(look: io::Result<()>) -> Option<Errno> {
        look.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw)
    }

    #[test]
    fn a_process_sees_that_its_node_is_silenced_and_that_its_mount_is_another_since_the_agent_has_looked() {
        let node = Node::new();
        let footing = node.footing();
        assert_eq!(code(footing.look()), None);
        node.bar(7);
        assert_eq!(code(footing.look()), Some(BARRED));
        assert_eq!(code(node.footing().look()), Some(BARRED));
        node.bar(0);
        assert_eq!(code(footing.look()), None);
        cover(&node.place.path);
        assert_eq!(code(footing.look()), Some(NO_MOUNT), "another one lies over it");
        umount2(&node.place.path, MntFlags::MNT_DETACH).expect("it goes");
        assert_eq!(code(footing.look()), None);
        umount2(&node.place.path, MntFlags::MNT_DETACH).expect("it goes");
        assert_eq!(code(footing.look()), Some(NO_MOUNT), "the bare directory");
        let gone = Footing::of(node.dir.path(), Some(&node.place));
        assert!(matches!(gone, Err(MountError::Gone { .. })), "{gone:?}");
        assert!(
            Footing::default().look().is_ok(),
            "a service without a file system on a node without an engine"
        );
    }

    /// The guard kills the cgroup and detaches the mount while the process is on its way.
    #[test]
    fn a_process_does_not_begin_on_a_node_that_is_silenced_or_on_a_bare_directory() {
        let root = format!("mainstay-test-{}-footing", std::process::id());
        let Some(root) = super::super::mount::cgroup2_mount().map(|mount| mount.join(root)) else { return };
        if std::fs::create_dir_all(&root).is_err() {
            eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
            return;
        }
        let node = Node::new();
        let mark: PathBuf = node.place.path.join("written");
        let dirs = ServiceDirs {
            cgroup: root.join("s"),
            logs: node.dir.path().join("logs"),
            log_writer: Vec::new(),
        };
        let plan = ProcessPlan {
            name: "p".into(),
            command: vec!["/bin/sh".into(), "-c".into(), format!(": > {}", mark.display())],
            user: None,
            env: BTreeMap::new(),
            output: None,
        };
        let footing = node.footing();
        node.bar(7);
        let barred = command::begin(&dirs, &plan, Role::Main, footing).err();
        assert!(matches!(barred, Some(ProcessError::Barred)), "{barred:?}");
        node.bar(0);
        let footing = node.footing();
        umount2(&node.place.path, MntFlags::MNT_DETACH).expect("it goes");
        let bare = command::begin(&dirs, &plan, Role::Main, footing).err();
        assert!(matches!(bare, Some(ProcessError::NoMount)), "{bare:?}");
        assert!(!mark.exists(), "nothing has begun");
        cover(&node.place.path);
        let started = command::begin(&dirs, &plan, Role::Main, Footing::default()).expect("it begins");
        command::finish(&dirs, &plan, started, Duration::from_secs(20), &|| true).expect("it ends well");
        assert!(mark.exists());
        cgroup::remove(&root);
    }
}
