//! Every crash of every small workload: the store on a disk, exhaustively.
//!
//! The enumeration is exhaustive for a given depth (number of operations), journal size and set of
//! operations. It tries:
//! - Every sequence of up to `depth` operations out of [`Op`] that a caller who keeps to the rules
//!   may issue.
//! - Every moment at which each of them is issued, relative to every completion of an operation in
//!   flight, and every order of the completions. Each state on the way is a crash point.
//! - At each crash point, every image that a power cut can leave. Sectors of 512 bytes may not be
//!   durable, from writes in flight and from writes that were not flushed. Each such sector has its
//!   durable content, or the content of any of the writes, independently of all others.
//! - A crash during the recovery from each such image: every subset of the sectors of each of its
//!   writes, and then a second recovery. Also a crash right after a recovery that ended well, which
//!   must change nothing.
//! - From there life goes on in one way. A lost batch, or a new one, is appended, and a crash
//!   follows. Then the batch is committed, destaged, and is in the volume.
//! - A recovery after the end of the process alone. If this recovery does not flush the journal, it
//!   relies on writes that were in flight. A later power cut then loses them.
//!
//! `model` has the conditions on each recovery:
//! - The log is a prefix of a log that may be found, at least up to the last entry told durable
//!   (S4).
//! - The promised epoch (R1) and the durable commit index are there.
//! - The volume and the journal together hold the content of the flat model at that commit index.
//! - Every uncommitted entry is still there, and no entry that was cut.
//! - The version table is not older than the content (S12).
//! - A copy target is inconsistent, with its base, until it is whole (R16).
//!
//! The bounds:
//! - One volume of three blocks in one extent; batches of one entry; payloads of which only the
//!   first and the last sector are not zero, so that few sectors differ;
//!   [`Tuning`](mainstay_store::Tuning) as in `bench`.
//! - Two histories of the same operations count as one when four things are the same: the disk, the
//!   operations in flight, the reports to the caller, and the store's view of its log.
//!   `Setup::merge` turns that off; a test compares.
//! - At most one crash during a recovery, and no other operations after it. Power cuts only: the
//!   simulator covers the other faults of a disk.
//! - All superblock copies that do not decode count as the same, because recovery looks at them
//!   through `Superblock::decode` only. Images that are then equal, under equal expectations, are
//!   tried once.

mod after;
mod bench;
mod image;
mod model;

use crate::enumerate::bench::{Bench, Doing, formatted, tuning};
use image::{Block, Image, Outcomes, mixed, outcomes, placed};
use mainstay_codec::Superblock;
use mainstay_store::{SUPERBLOCK_COPIES, Store};
use mainstay_types::{Epoch, Index};
use model::Expectation;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Operation of a workload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Op {
    /// Appends a write of block 0.
    Write0,
    /// Appends a write of block 1.
    Write1,
    /// Appends a write of blocks 0 and 1.
    WriteBoth,
    /// Appends a discard of blocks 1 and 2.
    Discard,
    /// Everything that was appended is committed.
    Commit,
    /// Destages what is committed, and makes a checkpoint.
    Destage,
    /// Promises the next epoch.
    Promise,
    /// Cuts what is not committed.
    Cut,
    /// Restarts the log further on; the extent is installed at some later moment, and the copy
    /// ended.
    Copy,
}

/// All of them.
pub const OPS: [Op; 9] = [
    Op::Write0,
    Op::Write1,
    Op::WriteBoth,
    Op::Discard,
    Op::Commit,
    Op::Destage,
    Op::Promise,
    Op::Cut,
    Op::Copy,
];

/// A step of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Issue(Op),
    /// The operation at this place among those in flight ends.
    Complete(usize),
    /// The extent of a copy is handed over.
    Install,
}

/// A disk that breaks a promise which the store relies on, to prove that the enumeration would
/// notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Journal writes are acknowledged before they are durable.
    Journal,
    /// Superblocks and version tables are.
    Meta,
    /// Flushes of volumes do nothing.
    Flush,
}

/// Bounds of one enumeration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Most operations of a workload.
    pub depth: usize,
    pub journal_blocks: u64,
    pub ops: Vec<Op>,
    /// Whether equal states are taken for one.
    pub merge: bool,
    pub lie: Option<Lie>,
}

impl Setup {
    /// A journal in which no workload of four operations goes round.
    #[must_use]
    pub fn wide(depth: usize) -> Self {
        Self { depth, journal_blocks: 12, ops: OPS.to_vec(), merge: true, lie: None }
    }

    /// A journal that two small batches nearly fill: appends wait for checkpoints and go round.
    #[must_use]
    pub fn narrow(depth: usize) -> Self {
        Self { journal_blocks: 5, ..Self::wide(depth) }
    }
}

/// How much was tried.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub workloads: u64,
    pub crash_points: u64,
    /// Subsets of sectors, over all crash points.
    pub images: u64,
    /// Recoveries from images that were different.
    pub recoveries: u64,
    /// Images that a crash during a recovery left.
    pub images_of_recovery: u64,
    pub second_recoveries: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} workloads, {} crash points, {} crash images, {} recoveries; {} images of crashes during recovery, {} second recoveries",
            self.workloads,
            self.crash_points,
            self.images,
            self.recoveries,
            self.images_of_recovery,
            self.second_recoveries
        )
    }
}

/// A history, and an image that it can leave, from which recovery is wrong.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub history: Vec<Action>,
    /// State in which the crash left the blocks that were not durable, and result of the recovery.
    pub crash: String,
    pub wrong: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.wrong)?;
        writeln!(f, "history:")?;
        for action in &self.history {
            writeln!(f, "  {action:?}")?;
        }
        write!(f, "crash: {}", self.crash)
    }
}

/// Tries everything.
///
/// # Errors
/// The first thing that is wrong.
pub fn enumerate(setup: &Setup) -> Result<Counts, Box<Counterexample>> {
    let formatted = formatted(setup);
    let mut search = Search::default();
    let mut visited = BTreeSet::new();
    let mut workloads = BTreeSet::new();
    let mut left = vec![Vec::new()];
    while let Some(mut history) = left.pop() {
        let mut bench = Bench::new(setup, &formatted);
        for &action in &history {
            bench.act(action).map_err(|wrong| told_wrong(&history, wrong))?;
        }
        loop {
            if setup.merge && !visited.insert(bench.key()) {
                break;
            }
            workloads.insert(bench.issued.clone());
            search.crash(&bench).map_err(|(crash, wrong)| Counterexample {
                history: history.clone(),
                crash,
                wrong,
            })?;
            let actions = bench.actions();
            let Some((&first, others)) = actions.split_first() else { break };
            for &action in others {
                left.push(history.iter().copied().chain([action]).collect());
            }
            history.push(first);
            bench.act(first).map_err(|wrong| told_wrong(&history, wrong))?;
        }
    }
    search.counts.workloads = workloads.len() as u64;
    Ok(search.counts)
}

fn told_wrong(history: &[Action], wrong: String) -> Box<Counterexample> {
    Box::new(Counterexample { history: history.to_vec(), crash: "none yet".to_owned(), wrong })
}

#[derive(Default)]
struct Search {
    counts: Counts,
    /// Crash points whose images were tried.
    points: BTreeSet<u128>,
    /// Images that were recovered from, superblock copies one by one.
    images: BTreeSet<u128>,
    /// Images that were found right, identified by the parts that recovery reads.
    right: BTreeSet<u128>,
    outcomes: BTreeMap<(usize, Vec<u128>), Outcomes>,
    /// Sequence of each block that was looked at as a superblock copy; `None`: it is not one.
    sequences: BTreeMap<u128, Option<u64>>,
}

/// A block that a crash may change, and all that it can become; the durable content first.
struct Loose {
    place: usize,
    outcomes: Outcomes,
}

impl Search {
    /// All crashes at this point.
    fn crash(&mut self, bench: &Bench) -> Result<(), (String, String)> {
        self.counts.crash_points += 1;
        let expectation = bench.expected().hash();
        let loose = self.loose(bench);
        let base =
            Image::new(bench.layout.clone(), bench.slots.iter().map(|slot| slot.durable.clone()).collect());
        let start = base.hash();
        let mut point = mixed(expectation, start);
        for block in &loose {
            point = mixed(point, block.place as u128);
            point = block.outcomes.iter().fold(point, |point, &(_, hash)| mixed(point, hash));
        }
        let count = loose.iter().map(|block| block.outcomes.len() as u64).product::<u64>();
        self.counts.images += count;
        if !self.points.insert(point) {
            return Ok(());
        }
        let mut chosen = vec![0; loose.len()];
        let mut hash = start;
        loop {
            if self.images.insert(mixed(expectation, hash)) {
                let mut image = base.clone();
                for (block, &choice) in loose.iter().zip(&chosen) {
                    image.blocks[block.place] = block.outcomes[choice].0.clone();
                }
                self.recover(bench, expectation, &base, image).map_err(|wrong| {
                    let choices = loose.iter().zip(&chosen).map(|(block, choice)| {
                        format!("block {} outcome {choice} of {}", block.place, block.outcomes.len())
                    });
                    (choices.collect::<Vec<_>>().join(", "), wrong)
                })?;
            }
            // The next combination, as an odometer.
            let Some(turned) = (0..loose.len()).find(|&n| chosen[n] + 1 < loose[n].outcomes.len()) else {
                return Ok(());
            };
            for n in 0..=turned {
                let next = if n == turned { chosen[n] + 1 } else { 0 };
                let outcomes = &loose[n].outcomes;
                hash = hash.wrapping_sub(outcomes[chosen[n]].1).wrapping_add(outcomes[next].1);
                chosen[n] = next;
            }
        }
    }

    fn loose(&mut self, bench: &Bench) -> Vec<Loose> {
        let mut versions: BTreeMap<usize, Vec<&Block>> = BTreeMap::new();
        for (place, slot) in bench.slots.iter().enumerate().filter(|(_, slot)| !slot.later.is_empty()) {
            versions.insert(place, std::iter::once(&slot.durable).chain(&slot.later).collect());
        }
        for (_, doing) in &bench.doing {
            let Doing::Write { first, blocks, .. } = doing else { continue };
            for (n, block) in blocks.iter().enumerate() {
                let place = first + n;
                versions.entry(place).or_insert_with(|| vec![&bench.slots[place].durable]).push(block);
            }
        }
        let mut loose = Vec::new();
        for (place, versions) in versions {
            let outcomes = self.outcomes(place, &versions).clone();
            if outcomes.len() > 1 {
                loose.push(Loose { place, outcomes });
            }
        }
        loose
    }

    fn outcomes(&mut self, place: usize, versions: &[&Block]) -> &Outcomes {
        let key = (place, versions.iter().map(|version| version.hash).collect());
        self.outcomes.entry(key).or_insert_with(|| outcomes(place, versions))
    }

    /// Fingerprint of the parts of an image that a recovery looks at. Of the superblock copies only
    /// the newest counts.
    fn hash_as_read(&mut self, image: &Image) -> u128 {
        let (copies, rest) = image.blocks.split_at(SUPERBLOCK_COPIES);
        let mut newest = (None, 0);
        for copy in copies {
            let decode = || Superblock::decode(&copy.bytes).ok().map(|superblock| superblock.sequence);
            let sequence = *self.sequences.entry(copy.hash).or_insert_with(decode);
            if sequence > newest.0 {
                newest = (sequence, copy.hash);
            }
        }
        let rest = rest.iter().enumerate().map(|(n, block)| placed(SUPERBLOCK_COPIES + n, block.hash));
        rest.fold(newest.1, u128::wrapping_add)
    }

    /// Recovers, checks, and does both again for every crash during this recovery.
    fn recover(
        &mut self,
        bench: &Bench,
        expectation: u128,
        durable: &Image,
        image: Image,
    ) -> Result<(), String> {
        self.counts.recoveries += 1;
        let expected = bench.expected();
        let found = image.clone();
        let (store, after) = recover_once(expected, image)?;
        let hash = self.hash_as_read(&found);
        self.right.insert(mixed(expectation, hash));

        let mut before = found.clone();
        for write in &after.written {
            self.crash_of_recovery(expected, expectation, &before, write)?;
            for (place, block) in write {
                before.blocks[*place] = block.clone();
            }
        }

        // The recovery has told its caller the log that it found. From now on no part of it may be
        // lost.
        self.counts.images_of_recovery += 1;
        let mut again = Image::new(after.layout.clone(), after.blocks.clone());
        if !after.journal_flushed {
            for place in again.layout.journal() {
                again.blocks[place] = durable.blocks[place].clone();
            }
        }
        self.counts.second_recoveries += 1;
        let (second, image) = recover_once(expected, again)?;
        let (state, found) = (store.log_state(), second.log_state());
        if (found.end, found.chain, found.data, found.base)
            != (state.end, state.chain, state.data, state.base)
            || second.promised() != store.promised()
        {
            return Err(format!("a second recovery finds {found:?}, the first one told {state:?}"));
        }
        let world = expected.world_of(&found).ok_or("a log that was found is none that may be")?;
        after::live_on(second, image, world, bench.epoch())
    }

    /// Every subset of the sectors of one write of a recovery, on top of the content before it.
    fn crash_of_recovery(
        &mut self,
        expected: &Expectation,
        expectation: u128,
        before: &Image,
        write: &[(usize, Block)],
    ) -> Result<(), String> {
        let torn: Vec<Outcomes> = write
            .iter()
            .map(|(place, block)| self.outcomes(*place, &[&before.blocks[*place], block]).clone())
            .collect();
        let count: usize = torn.iter().map(Vec::len).product();
        for mut number in 0..count {
            let mut image = before.clone();
            for ((place, _), outcomes) in write.iter().zip(&torn) {
                image.blocks[*place] = outcomes[number % outcomes.len()].0.clone();
                number /= outcomes.len();
            }
            self.counts.images_of_recovery += 1;
            let hash = self.hash_as_read(&image);
            if self.right.insert(mixed(expectation, hash)) {
                self.counts.second_recoveries += 1;
                recover_once(expected, image)
                    .map_err(|wrong| format!("after a crash during recovery: {wrong}"))?;
            }
        }
        Ok(())
    }
}

fn recover_once(expected: &Expectation, mut image: Image) -> Result<(Store, Image), String> {
    let before = image.newest_superblock();
    let before = before.map_or((Index(0), Epoch(0)), |superblock| (superblock.commit, superblock.promised));
    let store = Store::recover(&mut image, tuning()).map_err(|error| format!("recovery refuses: {error}"))?;
    expected.check(&store, &image, before)?;
    Ok((store, image))
}
