//! One area of a disk: what reads see, and what a power cut could make of it.

use bytes::Bytes;
use mainstay_types::BLOCK_BYTES;
use std::collections::BTreeMap;

/// Bytes of a sector. After a power cut a write of it is there whole or not at all.
pub const SECTOR_BYTES: usize = 512;
pub const BLOCK: usize = BLOCK_BYTES as usize;
const SECTORS: usize = BLOCK / SECTOR_BYTES;
/// Content of blocks that were never written.
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];

/// Content of a block; no bytes means zeroes.
#[derive(Clone, Default, Debug)]
pub struct Block {
    pub bytes: Option<Bytes>,
    /// A fault made this content.
    pub bad: bool,
}

/// One area.
#[derive(Clone, Debug)]
pub struct Region {
    /// Blocks as reads see them.
    pub now: Vec<Block>,
    /// Blocks that a power cut may change.
    pub unflushed: BTreeMap<u64, History>,
}

/// A block that was written and not flushed.
#[derive(Clone, Debug)]
pub struct History {
    pub durable: Block,
    /// Oldest first, each with the stamp of its write; the last one is what reads see.
    pub later: Vec<(u64, Block)>,
}

/// Fates of the pieces that were written and not durable when a crash came.
#[derive(Clone, Copy, Default, Debug)]
pub struct Fates {
    pub kept: bool,
    pub lost: bool,
}

impl Fates {
    pub fn note(&mut self, kept: bool, lost: bool) {
        self.kept |= kept;
        self.lost |= lost;
    }

    /// Whether one part of the pieces is there and another part is not.
    pub fn is_torn(self) -> bool {
        self.kept && self.lost
    }
}

#[derive(Debug)]
pub enum Blocks {
    Zero(u64),
    Data(Vec<Bytes>),
}

impl Blocks {
    /// Adds the blocks of `piece` to `data`. A piece holds one or more whole blocks.
    pub fn push(data: &mut Vec<Bytes>, piece: &Bytes) {
        assert!(piece.len().is_multiple_of(BLOCK), "a piece of {} bytes", piece.len());
        data.extend((0..piece.len()).step_by(BLOCK).map(|at| piece.slice(at..at + BLOCK)));
    }

    pub fn len(&self) -> u64 {
        match self {
            Self::Zero(count) => *count,
            Self::Data(blocks) => blocks.len() as u64,
        }
    }

    pub fn get(&self, at: u64) -> Block {
        let bytes = match self {
            Self::Zero(_) => None,
            Self::Data(blocks) => blocks.get(at as usize).cloned(),
        };
        Block { bytes, bad: false }
    }
}

impl Block {
    pub fn slice(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or(&ZEROES[..BLOCK])
    }

    pub fn is_zero(&self) -> bool {
        self.slice() == &ZEROES[..BLOCK]
    }

    /// Sector by sector out of `versions`, as `choose` says.
    pub fn mix(versions: &[&Self], mut choose: impl FnMut() -> usize) -> Self {
        let choices: [usize; SECTORS] = std::array::from_fn(|_| choose());
        if choices.iter().all(|&choice| choice == choices[0]) {
            return versions[choices[0]].clone();
        }
        let mut bytes = Vec::with_capacity(BLOCK);
        for (sector, &choice) in choices.iter().enumerate() {
            let at = sector * SECTOR_BYTES;
            bytes.extend_from_slice(&versions[choice].slice()[at..at + SECTOR_BYTES]);
        }
        let bad = choices.iter().any(|&choice| versions[choice].bad);
        Self { bytes: Some(bytes.into()), bad }
    }
}

impl Region {
    pub fn new(bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(BLOCK_BYTES), "an area of {bytes} bytes");
        Self { now: vec![Block::default(); (bytes / BLOCK_BYTES) as usize], unflushed: BTreeMap::new() }
    }

    pub fn len(&self) -> u64 {
        self.now.len() as u64
    }

    /// Grows to this many blocks, if it had fewer.
    pub fn grow(&mut self, blocks: u64) {
        let blocks = self.now.len().max(blocks as usize);
        self.now.resize(blocks, Block::default());
    }

    pub fn put_durable(&mut self, block: u64, content: Block) {
        self.now[block as usize] = content;
        if !self.unflushed.is_empty() {
            self.unflushed.remove(&block);
        }
    }

    pub fn put_volatile(&mut self, block: u64, content: Block, stamp: u64) {
        let older = std::mem::replace(&mut self.now[block as usize], content.clone());
        let history = self.unflushed.entry(block);
        let history = history.or_insert_with(|| History { durable: older, later: Vec::with_capacity(1) });
        history.later.push((stamp, content));
    }

    /// Makes writes with stamps up to `stamp` durable.
    pub fn settle(&mut self, stamp: u64) {
        self.unflushed.retain(|_, history| {
            let covered = history.later.partition_point(|&(at, _)| at <= stamp);
            if let Some((_, newest)) = history.later.drain(..covered).next_back() {
                history.durable = newest;
            }
            !history.later.is_empty()
        });
    }

    pub fn flip(&mut self, block: u64, byte: usize, bit: u8) {
        // Not `^=`: a second flip of the same bit would mend the block, and bring old content back.
        // Seed 718939.
        let flip = |content: &mut Block| {
            let mut bytes = content.slice().to_vec();
            bytes[byte] = bytes[byte].wrapping_add(1 | 1 << bit);
            *content = Block { bytes: Some(bytes.into()), bad: true };
        };
        flip(&mut self.now[block as usize]);
        if let Some(history) = self.unflushed.get_mut(&block) {
            flip(&mut history.durable);
            history.later.iter_mut().for_each(|(_, content)| flip(content));
        }
    }

    pub fn read(&self, offset: u64, len: u64) -> Bytes {
        let (start, end) = (offset as usize, (offset + len) as usize);
        let blocks = &self.now[start / BLOCK..end.div_ceil(BLOCK)];
        if len as usize <= ZEROES.len() && blocks.iter().all(|block| block.bytes.is_none()) {
            return Bytes::from_static(&ZEROES[..len as usize]);
        }
        if let ([Block { bytes: Some(bytes), .. }], skip) = (blocks, start % BLOCK) {
            return bytes.slice(skip..skip + len as usize);
        }
        let mut out = Vec::with_capacity(blocks.len() * BLOCK);
        for block in blocks {
            out.extend_from_slice(block.slice());
        }
        let skip = start % BLOCK;
        Bytes::from(out).slice(skip..skip + len as usize)
    }
}
