//! The control state goes on while other files have filled its disk.

use mainstay_agent::raft::store::RaftStore;
use raft::eraftpb::{ConfState, Entry};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

const SNAPSHOT_BYTES: usize = 1 << 20;

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A file system in a file, mounted on a directory of its own.
struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    fn new(fstype: &str, bytes: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("image");
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("an image");
        let (image, at) = (image.to_string_lossy().into_owned(), directory.path().join("mounted"));
        std::fs::create_dir(&at).expect("a directory");
        run(&format!("mkfs.{fstype}"), &["-q", &image]);
        run("mount", &["-o", "loop", &image, &at.to_string_lossy()]);
        Self { directory }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("mounted")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // When it fails the directory stays busy, which the removal of the directory tells.
        drop(Command::new("umount").arg(self.path()).status());
    }
}

/// Writes until no byte more can be written, as a service's log or a pool may do.
fn fill(directory: &Path) {
    let mut file = File::create(directory.join("filler")).expect("a file");
    for bytes in [1 << 20, 64 << 10, 4 << 10, 512] {
        let piece = vec![7; bytes];
        loop {
            match file.write_all(&piece).and_then(|()| file.sync_data()) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn the_control_plane_goes_on_while_its_disk_is_full() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can mount");
        return;
    }
    for (fstype, bytes) in [("ext4", 96 << 20), ("xfs", 320 << 20)] {
        let disk = Disk::new(fstype, bytes);
        let path = disk.path().join("agent.redb");
        let mut store = RaftStore::open(&path).expect("a store");
        store.bootstrap(1, b"{}".to_vec()).expect("a first snapshot");
        fill(&disk.path());
        for index in 2..1200_u64 {
            let data = vec![index as u8; 2000];
            let entry = Entry { index, term: 1, data: data.into(), ..Entry::default() };
            store.persist(&[entry], None, None).unwrap_or_else(|error| panic!("{fstype}, {index}: {error}"));
            if index % 300 == 0 {
                let members = ConfState { voters: vec![1], ..ConfState::default() };
                store
                    .save_snapshot(index, members, vec![index as u8; SNAPSHOT_BYTES])
                    .unwrap_or_else(|error| panic!("{fstype}, snapshot at {index}: {error}"));
            }
        }
        drop(store);
        let store = RaftStore::open(&path).expect("the store is whole");
        assert_eq!(store.last(), 1199);
        drop(store);
    }
}
