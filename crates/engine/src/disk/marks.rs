//! Marks by which the files of sums of a replica are known as the ones that it wrote last.
//!
//! A volume has no room for a label of its own, and its file of sums says whether what is read from
//! it is right. So a volume and its sums that were put back together, from a snapshot, a backup or
//! another replica, would fit each other. Each file of sums therefore ends with a mark: whose it
//! is, and a random stamp. The file `marks` of the replica's directory knows the stamp. Each
//! opening of the replica makes a new one:
//!
//! | step | `marks` has | sums have |
//! |---|---|---|
//! | before | A | A |
//! | the next stamp is announced | A, next B | A |
//! | the sums are marked | A, next B | A or B |
//! | the stamp counts | B | B |
//!
//! After a crash both stamps count as long as both are in `marks`, and the next opening goes on
//! with B. Clones of sums that snapshots have end before the mark, so they have none.
//!
//! A copy of the directory as a whole keeps its stamps. If only `marks` is lost the files are taken
//! as they are: so do replicas of earlier versions, and so may an operator who knows better.

use super::error::{DiskError, failed};
use super::files::{ReplicaFiles, SUMS_BYTES};
use crate::buffer::BufferPool;
use mainstay_pool::Part;
use mainstay_store::{Area, Media};
use mainstay_types::{BLOCK_BYTES, ResourceId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A mark is a line of text within one sector of a disk, which is written whole or not at all.
const MARK_BYTES_MAX: usize = 512;

/// Content of the file `marks`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Marks {
    /// Stamp with which the files of sums are marked.
    stamp: u64,
    /// Stamp with which they may be marked instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    /// Inode of this file: where it is another one now the directory was copied, and `sums` says
    /// nothing.
    inode: u64,
    /// Inodes of the files of sums, by volume.
    sums: Vec<u64>,
}

/// Mark at the end of a file of sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Mark {
    resource: ResourceId,
    volume: VolumeId,
    stamp: u64,
}

impl Mark {
    /// The whole block.
    fn encode(self) -> Vec<u8> {
        let mut block = serde_json::to_vec(&self).expect("numbers are encoded");
        block.push(b'\n');
        debug_assert!(block.len() <= MARK_BYTES_MAX);
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    fn decode(block: &[u8]) -> Option<Self> {
        let end = block.iter().take(MARK_BYTES_MAX).position(|byte| *byte == b'\n')?;
        serde_json::from_slice(&block[..end]).ok()
    }
}

impl ReplicaFiles {
    /// Compares the files of sums with what the replica has written last, and marks them anew. In a
    /// pool without space they keep their marks.
    ///
    /// # Errors
    /// If one is another file, or an older one: nothing has been written then. If a file cannot be
    /// read or written.
    pub fn confirm_marks(&mut self, resource: ResourceId, pool: &BufferPool) -> Result<(), DiskError> {
        if !self.has_sums() {
            return Ok(());
        }
        let known = self.marks()?;
        if let Some(known) = &known {
            self.compare(known, resource, pool)?;
        }
        match self.mark(known, resource, pool) {
            Err(error) if error.is_no_space() => {
                tracing::info!(path = %self.path().display(), "the pool has no space for new marks; the old ones stay");
                Ok(())
            }
            marked => marked,
        }
    }

    fn marks(&self) -> Result<Option<Marks>, DiskError> {
        let path = self.at.part(Part::Marks);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => failed("cannot read", &path, text)?,
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| DiskError::Foreign { path, what: format!("its content is damaged ({error})") })
    }

    fn compare(&self, known: &Marks, resource: ResourceId, pool: &BufferPool) -> Result<(), DiskError> {
        let in_place = inode(&self.at.part(Part::Marks))? == known.inode;
        for volume in self.sums_of() {
            let path = self.at.part(Part::Area(Area::Sums(volume)));
            let foreign = |what: String| Err(DiskError::Foreign { path: path.clone(), what });
            let here = inode(&path)?;
            if in_place && known.sums.get(usize::from(volume.0)).is_some_and(|inode| *inode != here) {
                return foreign("the replica had another file there when it was last used".into());
            }
            let bytes = self.area(Area::Sums(volume)).map_or(0, |file| file.bytes);
            let block = (bytes >= SUMS_BYTES + BLOCK_BYTES)
                .then(|| self.media(pool).read(Area::Sums(volume), SUMS_BYTES, BLOCK_BYTES as usize));
            let block = block.transpose().map_err(|error| DiskError::System {
                what: "cannot read the mark of",
                path: path.clone(),
                source: io::Error::other(error.detail),
            })?;
            match block.as_deref().and_then(Mark::decode) {
                None => return foreign("it is not marked as this replica's".into()),
                Some(found) if found.resource != resource || found.volume != volume => {
                    return foreign(format!(
                        "it is that of volume {} of resource {}",
                        found.volume.0, found.resource.0
                    ));
                }
                Some(found) if found.stamp != known.stamp && Some(found.stamp) != known.next => {
                    return foreign(
                        "it is older than the last use of the replica, or that of another copy".into(),
                    );
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn mark(
        &mut self,
        known: Option<Marks>,
        resource: ResourceId,
        pool: &BufferPool,
    ) -> Result<(), DiskError> {
        let stamp = match known {
            Some(Marks { next: Some(next), .. }) => next,
            Some(known) => {
                let next = random();
                self.write_marks(&known, Some(next))?;
                next
            }
            None => random(),
        };
        for volume in self.sums_of() {
            let area = Area::Sums(volume);
            let path = self.at.part(Part::Area(area));
            let end = SUMS_BYTES + BLOCK_BYTES;
            let block = pool.copy_of(&Mark { resource, volume, stamp }.encode());
            let Some(file) = self.area(area) else { continue };
            let file = File::from(failed("cannot mark", &path, file.file.try_clone())?);
            if failed("cannot look at", &path, file.metadata())?.len() < end {
                failed("cannot make so large", &path, file.set_len(end))?;
            }
            let written = file.write_all_at(&block, SUMS_BYTES).and_then(|()| file.sync_data());
            failed("cannot mark", &path, written)?;
            failed("cannot mark", &path, self.grown(area, end))?;
        }
        self.write_marks(&Marks { stamp, next: None, inode: 0, sums: Vec::new() }, None)
    }

    /// Writes the stamps durably, with the inodes that the files have now.
    fn write_marks(&self, marks: &Marks, next: Option<u64>) -> Result<(), DiskError> {
        let half = self.at.half(Part::Marks);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = failed("cannot make", &half, options.open(&half))?;
        let sums = self.sums_of().map(|volume| inode(&self.at.part(Part::Area(Area::Sums(volume)))));
        let marks = Marks {
            stamp: marks.stamp,
            next,
            inode: failed("cannot look at", &half, file.metadata())?.ino(),
            sums: sums.collect::<Result<_, _>>()?,
        };
        let text = serde_json::to_string(&marks).expect("numbers are encoded") + "\n";
        failed("cannot write", &half, file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))?;
        self.at.complete(Part::Marks)?;
        Ok(self.at.flush()?)
    }

    fn sums_of(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let count =
            (0u16..).map(VolumeId).take_while(|volume| self.area(Area::Sums(*volume)).is_some()).count();
        (0u16..).take(count).map(VolumeId)
    }
}

fn inode(path: &Path) -> Result<u64, DiskError> {
    Ok(failed("cannot look at", path, fs::metadata(path))?.ino())
}

/// A number that no other opening has; never 0.
fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Layout, NewReplica};
    use mainstay_store::{Store, StoreConfig};
    use mainstay_types::Incarnation;
    use std::path::PathBuf;

    const MARKS: &str = "marks";

    /// A directory with replicas of two volumes that goes with the test.
    struct Lab(PathBuf, BufferPool);

    impl Lab {
        fn new(name: &str) -> Self {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
            let root = root.join(format!("marks-{name}-{}", std::process::id()));
            fs::create_dir_all(&root).expect("a directory");
            let lab = Self(root, BufferPool::new(16 << 20));
            for resource in [1, 2] {
                let config = StoreConfig {
                    resource: ResourceId(resource),
                    incarnation: Incarnation(resource),
                    volumes: vec![1 << 20, 1 << 20],
                    journal_bytes: 16 << 20,
                    sums: true,
                };
                let layout = Layout::new(&config, Store::meta_bytes(&config));
                let new = NewReplica::create(&lab.dir(resource), &layout, None, &lab.1).expect("space");
                Store::format(&mut new.media(&lab.1), &config).expect("writable");
                drop(new.publish().expect("a name"));
            }
            lab
        }

        fn dir(&self, resource: u64) -> PathBuf {
            self.0.join(resource.to_string())
        }

        fn sums(&self, resource: u64, volume: u16) -> PathBuf {
            self.dir(resource).join(format!("sums{volume}"))
        }

        /// Opens a replica and closes it again.
        fn open(&self, resource: u64) -> Result<(), DiskError> {
            ReplicaFiles::open(&self.dir(resource))?.confirm_marks(ResourceId(resource), &self.1)
        }

        fn refuses(&self, resource: u64, why: &str) {
            let before = self.stamps(resource);
            match self.open(resource) {
                Err(DiskError::Foreign { what, .. }) => assert!(what.contains(why), "{what}"),
                other => panic!("{other:?} instead of: {why}"),
            }
            assert_eq!(self.stamps(resource), before, "nothing is written");
        }

        fn stamps(&self, resource: u64) -> String {
            fs::read_to_string(self.dir(resource).join(MARKS)).expect("readable")
        }
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn swap(one: &Path, other: &Path) {
        let away = one.with_extension("away");
        fs::rename(one, &away)
            .and_then(|()| fs::rename(other, one))
            .and_then(|()| fs::rename(&away, other))
            .expect("swapped");
    }

    /// Copies content, as cp(1) does into a file that is there.
    fn put(from: &Path, to: &Path) {
        let (from, to) = (File::open(from).expect("readable"), File::create(to).expect("writable"));
        let len = from.metadata().expect("readable").len();
        crate::disk::cow::copy_sparse(&from, &to, len).and_then(|()| to.set_len(len)).expect("copied");
    }

    #[test]
    fn sums_of_another_volume_or_replica_and_older_ones_are_refused_and_nothing_is_written() {
        let lab = Lab::new("refused");
        lab.open(1).and_then(|()| lab.open(2)).expect("a replica without marks is taken as it is");
        lab.open(1).expect("its own");

        swap(&lab.sums(1, 0), &lab.sums(1, 1));
        lab.refuses(1, "had another file there");
        swap(&lab.sums(1, 0), &lab.sums(1, 1));
        lab.open(1).expect("its own again");

        // The same content in the files that were there.
        let kept = lab.0.join("kept");
        put(&lab.sums(1, 0), &kept);
        put(&lab.sums(1, 1), &lab.sums(1, 0));
        lab.refuses(1, "it is that of volume 1 of resource 1");
        put(&lab.sums(2, 0), &lab.sums(1, 0));
        lab.refuses(1, "it is that of volume 0 of resource 2");
        File::create(lab.sums(1, 0)).and_then(|file| file.set_len(SUMS_BYTES + BLOCK_BYTES)).expect("zeroes");
        lab.refuses(1, "it is not marked");
        File::create(lab.sums(1, 0))
            .and_then(|file| file.set_len(SUMS_BYTES))
            .expect("a clone of a snapshot");
        lab.refuses(1, "it is not marked");
        put(&kept, &lab.sums(1, 0));
        lab.open(1).expect("its own again");
        put(&kept, &lab.sums(1, 0));
        lab.refuses(1, "it is older than the last use");
    }

    #[test]
    fn a_copy_of_the_whole_directory_counts_and_so_does_an_opening_that_was_cut_off_at_any_step() {
        let lab = Lab::new("copied");
        lab.open(1).expect("its own");
        let copy = lab.0.join("copy");
        fs::create_dir(&copy).expect("a directory");
        for file in fs::read_dir(lab.dir(1)).expect("a directory").flatten() {
            put(&file.path(), &copy.join(file.file_name()));
        }
        fs::remove_dir_all(lab.dir(1)).and_then(|()| fs::rename(&copy, lab.dir(1))).expect("moved");
        lab.open(1).expect("all of one copy");

        // The next stamp is announced, and one of two files has it.
        let files = ReplicaFiles::open(&lab.dir(1)).expect("a replica");
        let known = files.marks().expect("readable").expect("there");
        files.write_marks(&known, Some(77)).expect("written");
        let mark = Mark { resource: ResourceId(1), volume: VolumeId(1), stamp: 77 };
        files
            .media(&lab.1)
            .write_durable(Area::Sums(VolumeId(1)), SUMS_BYTES, &mark.encode())
            .expect("written");
        drop(files);
        lab.open(1).expect("it goes on");
        let files = ReplicaFiles::open(&lab.dir(1)).expect("a replica");
        let known = files.marks().expect("readable").expect("there");
        assert_eq!((known.stamp, known.next), (77, None));
        drop(files);

        fs::write(lab.dir(1).join(MARKS), "{").expect("writable");
        lab.refuses(1, "its content is damaged");
        fs::remove_file(lab.dir(1).join(MARKS)).expect("removed");
        lab.open(1).expect("an operator that removes the marks takes the files as they are");
    }
}
