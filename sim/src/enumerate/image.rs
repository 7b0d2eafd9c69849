//! Blocks, and the disk of the enumeration: its durable content, its volatile content, and every
//! image that a crash could leave.

use crate::disk::SECTOR_BYTES;
use bytes::Bytes;
use mainstay_codec::Superblock;
use mainstay_store::{Area, Media, MediaError, SUPERBLOCK_COPIES, Store, StoreConfig};
use mainstay_types::BLOCK_BYTES;

pub const BLOCK: usize = BLOCK_BYTES as usize;

/// A block's content and its fingerprint.
#[derive(Clone, Debug)]
pub struct Block {
    pub bytes: Bytes,
    pub hash: u128,
}

impl Block {
    pub fn new(bytes: Bytes) -> Self {
        assert_eq!(bytes.len(), BLOCK);
        let hash = fingerprint(&bytes);
        Self { bytes, hash }
    }

    pub fn split(bytes: &Bytes) -> impl Iterator<Item = Self> + '_ {
        (0..bytes.len()).step_by(BLOCK).map(|at| Self::new(bytes.slice(at..at + BLOCK)))
    }

    fn sector(&self, n: usize) -> &[u8] {
        &self.bytes[n * SECTOR_BYTES..(n + 1) * SECTOR_BYTES]
    }
}

fn fingerprint(bytes: &[u8]) -> u128 {
    let (mut low, mut high) = (0x243f_6a88_85a3_08d3_u64, 0x1319_8a2e_0370_7344_u64);
    for (n, word) in bytes.chunks_exact(8).enumerate() {
        let word = word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        if word != 0 {
            low = scramble(low ^ word.wrapping_add(n as u64));
            high = scramble(high.wrapping_add(word) ^ (n as u64) << 32);
        }
    }
    u128::from(low) << 64 | u128::from(high)
}

fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes `more` into a fingerprint; the order counts.
pub fn mixed(hash: u128, more: u128) -> u128 {
    let low = scramble((hash as u64) ^ (more as u64).rotate_left(17));
    let high = scramble(((hash >> 64) as u64).wrapping_add((more >> 64) as u64).wrapping_add(low));
    u128::from(high) << 64 | u128::from(low)
}

/// A fingerprint of a block at its place. The fingerprints of an image are added up, so that they
/// can be changed one by one.
pub fn placed(place: usize, hash: u128) -> u128 {
    mixed(hash, place as u128 + 1)
}

/// Where the areas lie in one row of blocks.
#[derive(Clone, Debug)]
pub struct Layout {
    starts: Vec<usize>,
}

impl Layout {
    pub fn new(config: &StoreConfig) -> Self {
        let mut starts = vec![0];
        let sizes = [Store::meta_bytes(config), config.journal_bytes];
        for bytes in sizes.into_iter().chain(config.volumes.iter().copied()) {
            starts.push(starts.last().copied().unwrap_or(0) + (bytes / BLOCK_BYTES) as usize);
        }
        Self { starts }
    }

    pub fn blocks(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    pub fn place(&self, area: Area, offset: u64) -> usize {
        assert!(offset.is_multiple_of(BLOCK_BYTES), "{offset} is within a block");
        let number = match area {
            Area::Meta => 0,
            Area::Journal => 1,
            Area::Volume(volume) => 2 + usize::from(volume.0),
            Area::Sums(_) => unreachable!("a replica without sums"),
        };
        let place = self.starts[number] + (offset / BLOCK_BYTES) as usize;
        assert!(place < self.starts[number + 1], "{offset} lies beyond {area:?}");
        place
    }

    pub fn journal(&self) -> std::ops::Range<usize> {
        self.starts[1]..self.starts[2]
    }
}

/// Disk at rest, as a recovery finds it.
#[derive(Clone, Debug)]
pub struct Image {
    pub layout: Layout,
    pub blocks: Vec<Block>,
    /// Blocks that each write through [`Media`] wrote, with their places, oldest write first.
    pub written: Vec<Vec<(usize, Block)>>,
    /// Whether the journal was flushed before anything was written.
    pub journal_flushed: bool,
}

impl Image {
    pub fn new(layout: Layout, blocks: Vec<Block>) -> Self {
        Self { layout, blocks, written: Vec::new(), journal_flushed: false }
    }

    pub fn slice(&self, area: Area, offset: u64, len: u64) -> Bytes {
        let first = self.layout.place(area, offset);
        let blocks = &self.blocks[first..first + (len / BLOCK_BYTES) as usize];
        match blocks {
            [block] => block.bytes.clone(),
            blocks => {
                let mut bytes = Vec::with_capacity(blocks.len() * BLOCK);
                blocks.iter().for_each(|block| bytes.extend_from_slice(&block.bytes));
                bytes.into()
            }
        }
    }

    /// The superblock that recovery has to take.
    pub fn newest_superblock(&self) -> Option<Superblock> {
        let copies = self.blocks[..SUPERBLOCK_COPIES].iter();
        let valid = copies.filter_map(|copy| Superblock::decode(&copy.bytes).ok());
        valid.max_by_key(|superblock| superblock.sequence)
    }

    /// Fingerprint of everything, superblock copies that do not decode counted as one and the same.
    pub fn hash(&self) -> u128 {
        let each = self.blocks.iter().enumerate().map(|(place, block)| canonical(place, block));
        each.fold(0, u128::wrapping_add)
    }
}

/// Fingerprint of a block at its place. A superblock copy that does not decode is like any other
/// that does not: recovery sees copies through `Superblock::decode` only.
fn canonical(place: usize, block: &Block) -> u128 {
    let bad = place < SUPERBLOCK_COPIES && Superblock::decode(&block.bytes).is_err();
    placed(place, if bad { 0 } else { block.hash })
}

impl Media for Image {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        Ok(self.slice(area, offset, len as u64))
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        let first = self.layout.place(area, offset);
        let blocks: Vec<Block> = Block::split(&Bytes::copy_from_slice(data)).collect();
        for (n, block) in blocks.iter().enumerate() {
            self.blocks[first + n] = block.clone();
        }
        self.written.push(blocks.into_iter().enumerate().map(|(n, block)| (first + n, block)).collect());
        Ok(())
    }

    fn flush(&mut self, area: Area) -> Result<(), MediaError> {
        self.journal_flushed |= area == Area::Journal && self.written.is_empty();
        Ok(())
    }
}

/// Contents that a block can have after a crash, each with its fingerprint at its place.
pub type Outcomes = Vec<(Block, u128)>;

/// All contents that a block can have when each of its sectors is that of any of the versions. The
/// first version's own content comes first. Contents that recovery cannot tell apart are there
/// once.
pub fn outcomes(place: usize, versions: &[&Block]) -> Outcomes {
    let mut contents: Vec<Vec<&[u8]>> = vec![Vec::new()];
    for sector in 0..BLOCK / SECTOR_BYTES {
        let mut choices: Vec<&[u8]> = Vec::new();
        for version in versions {
            if !choices.contains(&version.sector(sector)) {
                choices.push(version.sector(sector));
            }
        }
        contents = contents
            .into_iter()
            .flat_map(|front| {
                choices.iter().map(move |&choice| [front.as_slice(), &[choice]].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    let mut found: Outcomes = Vec::with_capacity(contents.len());
    for content in contents {
        let block = Block::new(content.concat().into());
        let hash = canonical(place, &block);
        if !found.iter().any(|&(_, other)| other == hash) {
            found.push((block, hash));
        }
    }
    found
}

/// A block of a running disk.
#[derive(Clone, Debug)]
pub struct Slot {
    pub durable: Block,
    /// Written and not flushed, oldest first.
    pub later: Vec<Block>,
}

impl Slot {
    pub fn now(&self) -> &Block {
        self.later.last().unwrap_or(&self.durable)
    }
}
