//! Pages of the version table that are not those which the checkpoint wrote.

use crate::lab::{self, Disk, Lab, Log, write};
use mainstay_codec::{Superblock, superblock::SUPERBLOCK_BYTES, versions::VERSIONS_PAGE_BYTES};
use mainstay_store::{Area, RecoverError, StoreConfig, table_blocks};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Extent, Index, VolumeId};

const PAGE: usize = VERSIONS_PAGE_BYTES;

/// A page for each volume.
fn config() -> StoreConfig {
    StoreConfig { volumes: vec![2 * EXTENT_BYTES; 4], ..lab::config() }
}

fn pages(disk: &Disk) -> Vec<u64> {
    let copies = disk.slice(Area::Meta, 0, 4 * SUPERBLOCK_BYTES as u64).chunks(SUPERBLOCK_BYTES);
    let newest = copies.filter_map(|copy| Superblock::decode(copy).ok()).max_by_key(|copy| copy.sequence);
    table_blocks(&newest.expect("a superblock"))
}

/// Returns the meta area before the first of `count` checkpoints and after each, and the replica
/// after the last. Each checkpoint changes an extent of the first volume.
fn checkpoints(count: u64) -> (Vec<Vec<u8>>, Lab) {
    let mut lab = Lab::with(config(), lab::tuning());
    let mut log = Log::default();
    let mut metas = vec![lab.disk.areas[&Area::Meta].clone()];
    for n in 0..count {
        lab.append(&mut log, vec![write(EXTENT_BYTES / BLOCK_BYTES, 1, n as u8 + 1)]);
        lab.settle();
        lab.store.destage_now();
        lab.settle();
        metas.push(lab.disk.areas[&Area::Meta].clone());
    }
    (metas, lab)
}

fn refused(lab: &mut Lab, disk: Disk, what: &str) {
    let refused = lab.recover_from(disk);
    assert!(matches!(refused, Err(RecoverError::OlderVersionTable)), "{what}: {refused:?}");
}

#[test]
fn a_page_as_it_was_at_any_earlier_checkpoint_is_not_believed() {
    let (metas, mut lab) = checkpoints(6);
    let disk = lab.disk.clone();
    let pages = pages(&disk);
    assert_eq!(pages.len(), 4);
    let mut older = 0;
    for (before, meta) in metas.iter().enumerate() {
        for &page in &pages {
            let at = page as usize * PAGE;
            let mut bad = disk.clone();
            let now = bad.areas.get_mut(&Area::Meta).expect("exists");
            if now[at..at + PAGE] == meta[at..at + PAGE] {
                continue;
            }
            now[at..at + PAGE].copy_from_slice(&meta[at..at + PAGE]);
            let whole = now[at..at + PAGE].iter().any(|&byte| byte != 0);
            if whole {
                older += 1;
                refused(&mut lab, bad, &format!("page {page} as it was at checkpoint {before}"));
            } else {
                let damaged = lab.recover_from(bad);
                assert!(matches!(damaged, Err(RecoverError::VersionTable { .. })), "{damaged:?}");
            }
        }
    }
    assert!(older >= 3, "{older} pages were older ones");
    lab.recover_from(disk).expect("nothing is wrong");
    assert_eq!(lab.store.version(VolumeId(0), Extent(1)), Index(6));
}

#[test]
fn a_superblock_that_names_a_slot_which_was_written_since_is_not_believed() {
    let (metas, mut lab) = checkpoints(4);
    let mut disk = lab.disk.clone();
    let copies = 4 * SUPERBLOCK_BYTES;
    disk.areas.get_mut(&Area::Meta).expect("exists")[..copies].copy_from_slice(&metas[2][..copies]);
    refused(&mut lab, disk, "all copies of the superblock are those of two checkpoints before");
}

#[test]
fn a_replica_of_another_format_says_so() {
    let mut lab = Lab::new();
    let mut disk = lab.disk.clone();
    let meta = disk.areas.get_mut(&Area::Meta).expect("exists");
    for copy in meta[..4 * SUPERBLOCK_BYTES].chunks_mut(SUPERBLOCK_BYTES) {
        copy[4] -= 1;
        let crc = mainstay_codec::crc32c(&copy[..SUPERBLOCK_BYTES - 4]);
        copy[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    assert!(matches!(lab.recover_from(disk), Err(RecoverError::Format(_))));
}
