//! Copy-before-write on a disk that loses what was not flushed: after every step some power cuts
//! are tried, and the snapshot must read as it was.

use super::*;
use mainstay_codec::old_map::{OLD_MAP_SECTOR_BYTES, OLD_MAP_WORDS};
use std::collections::BTreeMap;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Content of a chunk; 0 is a hole.
type Content = u8;

/// A place of a disk: what is durable, and then what was written since, of which a power cut leaves
/// any.
#[derive(Clone, Default)]
struct Cell {
    values: Vec<Content>,
}

impl Cell {
    fn now(&self) -> Content {
        self.values.last().copied().unwrap_or_default()
    }

    fn flush(&mut self) {
        self.values = vec![self.now()];
    }

    fn after_crash(&self, random: &mut Random) -> Content {
        if self.values.is_empty() { 0 } else { random.pick(&self.values) }
    }
}

/// Chunks of a page of the map.
const PER_PAGE: u64 = 8 * OLD_MAP_WORDS as u64 * 64;
/// At the borders of words, sectors and pages.
const HOT: [u64; 9] = [0, 1, 63, 64, 4031, 4032, PER_PAGE - 1, PER_PAGE, PER_PAGE + 1];
const BYTES: u64 = (PER_PAGE + 2) * OLD_CHUNK_BYTES;

/// A write to a run of chunks, with its content.
#[derive(Clone, Copy, Debug)]
struct Write {
    first: u64,
    end: u64,
    content: Content,
}

struct CopyLab {
    random: Random,
    copier: CopyBeforeWrite<Write>,
    /// When the snapshot was taken.
    original: BTreeMap<u64, Content>,
    volume: BTreeMap<u64, Cell>,
    old: BTreeMap<u64, Cell>,
    /// Each page as it is on disk, and as it may be instead: sector by sector.
    map: BTreeMap<u64, Vec<Vec<u8>>>,
    todo: Vec<Todo>,
    released: usize,
    asked: usize,
    failed: usize,
}

impl CopyLab {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let original: BTreeMap<u64, Content> =
            HOT.iter().map(|chunk| (*chunk, random.below(3) as Content)).collect();
        let volume =
            original.iter().map(|(chunk, content)| (*chunk, Cell { values: vec![*content] })).collect();
        let empty = ChunkSet::of(BYTES);
        let map = (0..empty.pages()).map(|page| (page, vec![empty.page(page)])).collect();
        let copier = CopyBeforeWrite::new(BYTES, empty.clone(), &empty);
        let (old, todo) = Default::default();
        Self { random, copier, original, volume, old, map, todo, released: 0, asked: 0, failed: 0 }
    }

    fn take(&mut self, turn: Turn<Write>) {
        self.todo.extend(turn.todo);
        for write in turn.free {
            self.released += 1;
            self.write(write);
        }
        self.failed += turn.failed.len();
    }

    fn write(&mut self, Write { first, end, content }: Write) {
        for (_, cell) in self.volume.range_mut(first..end) {
            cell.values.push(content);
        }
    }

    fn begin(&mut self) {
        let volume = &self.volume;
        let turn = self.copier.begin(|from, end| {
            let chunks = volume.range(from / OLD_CHUNK_BYTES..end.div_ceil(OLD_CHUNK_BYTES));
            chunks.filter(|(_, cell)| cell.now() != 0).map(|(chunk, _)| chunk * OLD_CHUNK_BYTES).next()
        });
        self.take(turn);
    }

    /// A write; of others in the same chunk it changes other blocks.
    fn ask(&mut self) {
        let first = self.random.pick(&HOT);
        let end = (first + 1 + self.random.below(2) as u64).min(PER_PAGE + 2);
        self.asked += 1;
        let content = self.random.below(4) as Content;
        let write = Write { first, end, content };
        let range = (first * OLD_CHUNK_BYTES, (end - first) * OLD_CHUNK_BYTES);
        match self.copier.hold(range, content == 0, write) {
            Some(write) => {
                self.released += 1;
                self.write(write);
            }
            None => self.begin(),
        }
    }

    /// Something that is to be done is done, or fails.
    fn work(&mut self, failing: bool) {
        if self.todo.is_empty() {
            return;
        }
        let at = self.random.below(self.todo.len());
        let todo = self.todo.swap_remove(at);
        let ok = !(failing && self.random.below(12) == 0);
        match todo {
            Todo::Copy { first, chunks } => {
                for chunk in first..first + chunks {
                    let content = self.volume.get(&chunk).map_or(0, Cell::now);
                    let cell = self.old.entry(chunk).or_default();
                    // Half of it, over what may be there.
                    cell.values.push(if ok || cell.now() == content { content } else { 99 });
                }
            }
            Todo::Flush if ok => self.old.values_mut().for_each(Cell::flush),
            Todo::Flush => {}
            Todo::Map(page) => {
                let bytes = self.copier.page(page);
                let known = self.map.get_mut(&page).expect("a page");
                if ok { *known = vec![bytes] } else { known.push(bytes) }
            }
        }
        let turn = self.copier.done(ok);
        self.take(turn);
        self.begin();
    }

    /// The map as a power cut leaves it, also in the midst of a write of one of its pages.
    fn map_after_crash(&mut self) -> ChunkSet {
        let mut pages = Vec::new();
        for (page, known) in &self.map {
            let mut known = known.clone();
            if self.todo.contains(&Todo::Map(*page)) {
                known.push(self.copier.page(*page));
            }
            for sector in 0..8 {
                let bytes = sector * OLD_MAP_SECTOR_BYTES..(sector + 1) * OLD_MAP_SECTOR_BYTES;
                pages.extend_from_slice(&known[self.random.below(known.len())][bytes]);
            }
        }
        ChunkSet::decode(&pages, BYTES).expect("each sector is whole")
    }

    fn check(&mut self, seed: u64) {
        let map = self.map_after_crash();
        for (chunk, content) in &self.original.clone() {
            let cell = if map.contains(*chunk) { self.old.get(chunk) } else { self.volume.get(chunk) };
            let found = cell.map_or(0, |cell| cell.after_crash(&mut self.random));
            assert_eq!(found, *content, "chunk {chunk}, seed {seed}, mapped: {}", map.contains(*chunk));
        }
    }
}

fn run(seed: u64, failing: bool) -> CopyLab {
    let mut world = CopyLab::new(seed);
    for _ in 0..200 {
        match world.random.below(8) {
            0..3 => world.ask(),
            3..7 => world.work(failing),
            _ => world.volume.values_mut().for_each(Cell::flush),
        }
        world.check(seed);
    }
    while !world.todo.is_empty() {
        world.work(false);
        world.check(seed);
    }
    assert!(world.copier.is_idle(), "seed {seed}: {:?}", world.copier);
    assert_eq!(world.released + world.failed, world.asked, "seed {seed}");
    world
}

#[test]
fn a_snapshot_reads_as_it_was_wherever_the_power_fails() {
    let mut kept = 0;
    for seed in 0..300 {
        let world = run(seed, false);
        assert_eq!(world.failed, 0);
        kept += world.old.len();
    }
    assert!(kept > 1000, "{kept}");
}

#[test]
fn content_that_cannot_be_put_aside_is_not_written_over() {
    let failed: usize = (0..300).map(|seed| run(seed, true).failed).sum();
    assert!(failed > 100, "{failed}");
}

const CHUNK: u64 = OLD_CHUNK_BYTES;

const fn copy(first: u64, chunks: u64) -> Todo {
    Todo::Copy { first, chunks }
}

#[test]
fn each_chunk_is_kept_once_and_simultaneous_writes_share_a_round() {
    let empty = ChunkSet::of(BYTES);
    let mut copier = CopyBeforeWrite::new(BYTES, empty.clone(), &empty);
    let all = |from: u64, end: u64| (from < end).then_some(from);
    let held =
        |copier: &mut CopyBeforeWrite<u32>, at: u64, len: u64, name| copier.hold((at, len), false, name);
    assert_eq!(held(&mut copier, 4096, 4096, 1), None);
    assert_eq!(copier.begin(all).todo, [copy(0, 1)]);
    for (n, at) in (2..).zip([8192, 5 * CHUNK, CHUNK, 2 * CHUNK - 4096]) {
        assert_eq!(held(&mut copier, at, 8192, n), None);
    }
    assert!(copier.begin(all).todo.is_empty(), "one round at a time");
    assert_eq!(copier.done(true).todo, [Todo::Flush]);
    assert_eq!(copier.done(true).todo, [Todo::Map(0)]);
    let turn = copier.done(true);
    assert_eq!((turn.free, copier.waiting()), (vec![1, 2], 3));
    assert_eq!(copier.begin(all).todo, [copy(1, 2), copy(5, 1)]);
    assert!(copier.done(true).todo.is_empty());
    assert_eq!(copier.done(true).todo, [Todo::Flush]);
    assert_eq!(copier.done(true).todo, [Todo::Map(0)]);
    assert_eq!(copier.done(true).free, [3, 4, 5]);
    assert!(copier.is_idle());
    assert_eq!(held(&mut copier, 0, 3 * CHUNK, 5), Some(5), "nothing more is to be kept of these");
    assert_eq!(held(&mut copier, BYTES, CHUNK, 6), Some(6), "it lies beyond the snapshot");
}

#[test]
fn many_writes_take_several_rounds_and_holes_cost_nothing() {
    let bytes = 1 << 30;
    let empty = ChunkSet::of(bytes);
    let mut copier = CopyBeforeWrite::new(bytes, empty.clone(), &empty);
    // Only chunk 5000 and what follows up to 5600 has content.
    let data = |from: u64, end: u64| {
        let at = from.max(5000 * CHUNK);
        (at < end.min(5600 * CHUNK)).then_some(at)
    };
    assert_eq!(copier.hold((0, bytes), true, "zeroes"), None);
    let (mut copied, mut rounds) = (0, 0);
    let mut turn = copier.begin(data);
    while !turn.todo.is_empty() {
        let mut next = Turn::default();
        for todo in turn.todo {
            if let Todo::Copy { first, chunks } = todo {
                assert!(first >= 5000 && first + chunks <= 5600 && chunks <= RUN_CHUNKS);
                copied += chunks;
            }
            rounds += usize::from(todo == Todo::Flush);
            next = copier.done(true);
        }
        turn = next;
        if turn.todo.is_empty() && turn.free.is_empty() {
            turn = copier.begin(data);
        }
    }
    assert_eq!((turn.free, copied, rounds), (vec!["zeroes"], 600, 3));
    assert_eq!(copier.hold((0, CHUNK), false, "a block where a hole was"), None);
    assert_eq!(copier.begin(data).todo, [Todo::Map(0)], "its bit only");
}

#[test]
fn chunks_of_other_layers_are_not_kept_again_and_undurable_ones_do_not_count() {
    let empty = ChunkSet::of(BYTES);
    let mut others = empty.clone();
    others.insert(7);
    let mut copier = CopyBeforeWrite::new(BYTES, empty.clone(), &others);
    let chunk = |n: u64| (n * CHUNK, CHUNK);
    assert_eq!(copier.hold(chunk(7), false, 1), Some(1));
    assert_eq!(copier.hold(chunk(8), false, 2), None);
    assert_eq!(copier.begin(|from, _| Some(from)).todo, [copy(8, 1)]);
    copier.done(true);
    copier.done(true);
    copier.cover(&empty);
    assert_eq!((copier.hold(chunk(7), false, 3), copier.hold(chunk(8), false, 4)), (None, None));
    assert_eq!(copier.done(true).free, [2, 4]);
    assert_eq!(copier.waiting(), 1);
}
