//! Sets of a volume's chunks.

use mainstay_codec::DecodeError;
use mainstay_codec::old_map::{
    OLD_CHUNK_BYTES, OLD_MAP_SECTOR_BYTES, OLD_MAP_WORDS, decode_old_sector, encode_old_sector,
};
use mainstay_types::BLOCK_BYTES;

/// Sectors of a page, which is what is written at once.
const PAGE_SECTORS: usize = BLOCK_BYTES as usize / OLD_MAP_SECTOR_BYTES;
const PAGE_WORDS: usize = PAGE_SECTORS * OLD_MAP_WORDS;

/// Chunks by their number in the volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkSet {
    words: Vec<u64>,
    chunks: u64,
}

/// The place of a chunk among the words.
const fn place(chunk: u64) -> (usize, u64) {
    ((chunk / 64) as usize, 1 << (chunk % 64))
}

impl ChunkSet {
    /// An empty set, for a volume of `bytes` bytes.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        let chunks = bytes.div_ceil(OLD_CHUNK_BYTES);
        Self { words: vec![0; chunks.div_ceil(64) as usize], chunks }
    }

    /// How many chunks there are, in the set or not.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    #[must_use]
    pub fn contains(&self, chunk: u64) -> bool {
        let (word, bit) = place(chunk);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// # Panics
    /// When the volume has no such chunk.
    pub fn insert(&mut self, chunk: u64) {
        assert!(chunk < self.chunks, "chunk {chunk} of {}", self.chunks);
        let (word, bit) = place(chunk);
        self.words[word] |= bit;
    }

    pub fn remove(&mut self, chunk: u64) {
        let (word, bit) = place(chunk);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Adds what is in `other`, as far as the volume goes.
    pub fn add(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
        // Leaves out the chunks of `other` that lie beyond the end of this volume.
        if let (Some(last), used @ 1..) = (self.words.last_mut(), self.chunks % 64) {
            *last &= (1 << used) - 1;
        }
    }

    /// Whether all of it is in `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        self.words.iter().zip(others).all(|(word, other)| word & !other == 0)
    }

    /// Chunks that are in both sets, in ascending order.
    pub fn both<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u64> + 'a {
        let words = (0u64..).zip(self.words.iter().zip(&other.words));
        words.filter(|(_, (a, b))| *a & *b != 0).flat_map(|(at, (a, b))| {
            let bits = a & b;
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        })
    }

    /// The first chunk from `from` on and before `end` that is not in the set.
    #[must_use]
    pub fn next_missing(&self, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        while at < end.min(self.chunks) {
            let (word, _) = place(at);
            let free = !self.words[word] >> (at % 64);
            if free != 0 {
                let found = at + u64::from(free.trailing_zeros());
                return (found < end.min(self.chunks)).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Pages that tell of all chunks.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.words.len().div_ceil(PAGE_WORDS) as u64
    }

    /// The page that tells of a chunk.
    #[must_use]
    pub const fn page_of(chunk: u64) -> u64 {
        chunk / (PAGE_WORDS as u64 * 64)
    }

    /// A page as it lies in the file of the map.
    #[must_use]
    pub fn page(&self, page: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_BYTES as usize);
        for n in 0..PAGE_SECTORS {
            let sector = page as usize * PAGE_SECTORS + n;
            let words = self.words.chunks(OLD_MAP_WORDS).nth(sector).unwrap_or_default();
            encode_old_sector(&mut out, sector as u32, words);
        }
        out
    }

    /// Set that the pages of a map describe, for a volume of `bytes` bytes.
    ///
    /// # Errors
    /// When they are not what was written there.
    pub fn decode(pages: &[u8], bytes: u64) -> Result<Self, DecodeError> {
        let mut set = Self::of(bytes);
        let need = set.pages() as usize * BLOCK_BYTES as usize;
        if pages.len() != need {
            return Err(DecodeError::Short { what: "map of a snapshot", need, have: pages.len() });
        }
        let mut words = Vec::with_capacity(set.words.len());
        for (number, sector) in (0u32..).zip(pages.chunks(OLD_MAP_SECTOR_BYTES)) {
            words.extend(decode_old_sector(sector, number)?);
        }
        words.truncate(set.words.len());
        set.words = words;
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = OLD_CHUNK_BYTES;

    fn set(bytes: u64, chunks: &[u64]) -> ChunkSet {
        let mut set = ChunkSet::of(bytes);
        chunks.iter().for_each(|chunk| set.insert(*chunk));
        set
    }

    #[test]
    fn missing_chunks_are_found_whatever_lies_between_them() {
        let mut some = ChunkSet::of(200 * CHUNK);
        assert_eq!((some.chunks(), some.next_missing(0, 500)), (200, Some(0)));
        for chunk in (0..130).chain([199]) {
            some.insert(chunk);
        }
        assert_eq!(some.next_missing(3, 200), Some(130));
        assert_eq!((some.next_missing(3, 130), some.next_missing(3, 131)), (None, Some(130)));
        assert_eq!((some.next_missing(198, 200), some.next_missing(199, 200)), (Some(198), None));
        assert_eq!(some.next_missing(200, 1000), None, "the volume ends");
        assert!(some.contains(129) && !some.contains(130) && some.contains(199) && !some.contains(1 << 40));
    }

    #[test]
    fn sets_of_volumes_of_several_sizes_are_compared() {
        let (small, large) = (set(70 * CHUNK, &[1, 69]), set(300 * CHUNK, &[1, 70, 71, 299]));
        let mut all = small.clone();
        all.add(&large);
        assert_eq!(all, set(70 * CHUNK, &[1, 69]), "it has no chunk 70");
        let mut all = large.clone();
        all.add(&small);
        assert_eq!(all, set(300 * CHUNK, &[1, 69, 70, 71, 299]));
        assert!(small.is_within(&all) && large.is_within(&all) && !large.is_within(&small));
        assert!(ChunkSet::of(CHUNK).is_within(&small) && ChunkSet::of(CHUNK).is_empty() && !small.is_empty());
        assert_eq!(all.both(&large).collect::<Vec<_>>(), [1, 70, 71, 299]);
    }

    #[test]
    fn pages_come_back() {
        // Two pages and a bit.
        let per_page = PAGE_WORDS as u64 * 64;
        let bytes = (2 * per_page + 5) * CHUNK;
        let some = set(bytes, &[0, 63, 64, per_page - 1, per_page, 2 * per_page + 4]);
        assert_eq!((some.pages(), ChunkSet::page_of(per_page - 1), ChunkSet::page_of(per_page)), (3, 0, 1));
        let mut pages: Vec<u8> = (0..3).flat_map(|page| some.page(page)).collect();
        assert_eq!(ChunkSet::decode(&pages, bytes), Ok(some));
        assert!(ChunkSet::decode(&pages[4096..], bytes).is_err());
        pages.swap(4096, 8192);
        assert!(ChunkSet::decode(&pages, bytes).is_err());
    }
}
