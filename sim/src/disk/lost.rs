//! Writes that never happened or landed elsewhere, and reads of older content (F2, F3, F4): in the
//! journal, in the version table and in one copy of the superblock.
//!
//! The disk loses a write only after later writes have followed it. A lost write leaves the older
//! content in its place, and no reader can tell when that came about.

use super::region::Block;
use super::{Disk, Record};
use crate::plan::DiskFault;
use crate::random::Random;
use bytes::Bytes;
use mainstay_codec::Superblock;
use mainstay_store::SUPERBLOCK_COPIES;
use mainstay_types::BLOCK_BYTES;

const META: usize = 0;
const JOURNAL: usize = 1;

/// A read of a block of the journal or of the version table that waits to get older content.
#[derive(Debug)]
pub(super) struct Stale {
    fault: DiskFault,
    region: usize,
    block: u64,
    older: Block,
}

/// A place in the journal: offset and length.
pub type Place = (u64, u64);

impl Disk {
    /// F2: the record's write was lost, whole or in part. Returns `false` if the disk remembers no
    /// older content for any record.
    pub fn lose_record(&mut self, pick: u64, needed: &[Place], live: impl Fn(&Record) -> bool) -> bool {
        let mut random = Random::new(pick);
        let Some(record) = self.record_with_past(&mut random, needed, live) else { return false };
        let whole = random.coin();
        let blocks: Vec<u64> = blocks(&record).filter(|_| whole || random.coin()).collect();
        let first = record.offset / BLOCK_BYTES;
        for block in if blocks.is_empty() { vec![first] } else { blocks } {
            self.put_back(JOURNAL, block);
        }
        true
    }

    /// F3: the record's write landed elsewhere in the journal, but not on the `newest` records.
    pub fn misdirect_record(
        &mut self,
        pick: u64,
        needed: &[Place],
        newest: &[Place],
        live: impl Fn(&Record) -> bool,
    ) -> bool {
        let mut random = Random::new(pick);
        let Some(record) = self.record_with_past(&mut random, needed, live) else { return false };
        let free = |at: &u64| {
            let apart = |(offset, len): (u64, u64)| *at + record.len <= offset || offset + len <= *at;
            apart((record.offset, record.len)) && newest.iter().copied().all(apart)
        };
        let end = self.regions[JOURNAL].len() * BLOCK_BYTES - record.len;
        let targets: Vec<u64> = (0..=end).step_by(BLOCK_BYTES as usize).filter(free).collect();
        let Some(&target) = random.pick(&targets) else { return false };
        for (n, block) in (0..).zip(blocks(&record)) {
            let content = Block { bad: true, ..self.regions[JOURNAL].now[block as usize].clone() };
            self.regions[JOURNAL].put_durable(target / BLOCK_BYTES + n, content);
            self.put_back(JOURNAL, block);
        }
        true
    }

    /// F4: the next read of one block of the record gets its older content, unless the block is
    /// written first.
    pub fn stale_record(&mut self, pick: u64, needed: &[Place], live: impl Fn(&Record) -> bool) -> bool {
        let mut random = Random::new(pick);
        let Some(record) = self.record_with_past(&mut random, needed, live) else { return false };
        let blocks: Vec<u64> = blocks(&record).collect();
        let block = random.pick(&blocks).copied().unwrap_or(record.offset / BLOCK_BYTES);
        let Some(older) = self.before(JOURNAL, block).map(|at| self.remembered[at].2.clone()) else {
            return false;
        };
        self.stale = Some(Stale { fault: DiskFault::StaleRecord { pick: 0 }, region: JOURNAL, block, older });
        true
    }

    /// F2: the last write of a block of a volume was lost. Returns `false` if the disk remembers no
    /// older content for any block.
    pub(super) fn lose_block(&mut self, pick: u64) -> bool {
        let volume = |region: usize| region > JOURNAL && region.is_multiple_of(2);
        let mut blocks: Vec<(usize, u64)> = self.remembered.iter().map(|(of, at, _)| (*of, *at)).collect();
        let filled = self.filled();
        blocks.retain(|&(of, at)| volume(of) && self.before(of, at).is_some() && !filled.contains(&(of, at)));
        let Some(&(region, block)) = Random::new(pick).pick(&blocks) else { return false };
        self.put_back(region, block);
        true
    }

    /// F2: the last write of a page of the version table that counts was lost. Returns `false` if
    /// the disk remembers no older content for one.
    pub(super) fn lose_versions(&mut self, pick: u64) -> bool {
        let Some(page) = self.table_page_with_past(pick) else { return false };
        self.put_back(META, page);
        true
    }

    /// F3: the write of a page landed on another page, of either slot.
    pub(super) fn misdirect_versions(&mut self, pick: u64) -> bool {
        let Some(page) = self.table_page_with_past(pick) else { return false };
        let others: Vec<u64> =
            (SUPERBLOCK_COPIES as u64..self.regions[META].len()).filter(|&other| other != page).collect();
        let Some(&target) = Random::new(pick).stream("target").pick(&others) else { return false };
        let content = Block { bad: true, ..self.regions[META].now[page as usize].clone() };
        self.regions[META].put_durable(target, content);
        self.put_back(META, page);
        true
    }

    /// F4: the next read of a page gets its older content, unless the page is written first.
    pub(super) fn stale_versions(&mut self, pick: u64) -> bool {
        let Some(page) = self.table_page_with_past(pick) else { return false };
        let Some(older) = self.before(META, page).map(|at| self.remembered[at].2.clone()) else {
            return false;
        };
        let fault = DiskFault::StaleVersions { pick: 0 };
        self.stale = Some(Stale { fault, region: META, block: page, older });
        true
    }

    /// A block of the version table that the newest superblock names, and whose older content the
    /// disk remembers.
    fn table_page_with_past(&self, pick: u64) -> Option<u64> {
        let mut pages = self.table_pages();
        pages.retain(|&page| self.before(META, page).is_some());
        Random::new(pick).pick(&pages).copied()
    }

    /// F2: the last write of this copy of the superblock was lost. The fault does nothing if the
    /// other copy of its pair is damaged. Then this copy could become the newest whole one, and the
    /// store would believe it.
    pub(super) fn lose_superblock(&mut self, copy: u64) -> bool {
        let place = &self.regions[META].now;
        let [own, partner] = [copy, copy ^ 1].map(|copy| place[copy as usize].slice());
        let safe = own == partner && Superblock::decode(partner).is_ok() && self.before(META, copy).is_some();
        if safe {
            self.put_back(META, copy);
        }
        safe
    }

    /// Returns the bytes that a read gets while a stale read waits (F4). If the read covers the
    /// block that this fault hits, it gets an older content of that block, once.
    pub(super) fn make_stale(&mut self, region: usize, offset: u64, bytes: Bytes) -> Bytes {
        let Some(stale) = &self.stale else { return bytes };
        let at = stale.block * BLOCK_BYTES;
        let end = offset + bytes.len() as u64;
        if region != stale.region || at < offset || at + BLOCK_BYTES > end {
            return bytes;
        }
        let mut whole = bytes.to_vec();
        let at = (at - offset) as usize;
        whole[at..at + BLOCK_BYTES as usize].copy_from_slice(stale.older.slice());
        self.fired.push(stale.fault);
        self.stale = None;
        whole.into()
    }

    /// The block is written, so the disk forgets its older content.
    pub(super) fn written(&mut self, region: usize, block: u64) {
        if self.stale.as_ref().is_some_and(|stale| (stale.region, stale.block) == (region, block)) {
            self.stale = None;
        }
    }

    /// One of the `needed` records, with older content remembered for each block. In most cases one
    /// that is `live`.
    fn record_with_past(
        &self,
        random: &mut Random,
        needed: &[Place],
        live: impl Fn(&Record) -> bool,
    ) -> Option<Record> {
        let mut records = self.records();
        records.retain(|record| {
            needed.contains(&(record.offset, record.len))
                && blocks(record).all(|block| self.before(JOURNAL, block).is_some())
        });
        if random.permille(750) && records.iter().any(&live) {
            records.retain(live);
        }
        random.pick(&records).copied()
    }

    /// Place in `remembered` of the block's content before its present one.
    fn before(&self, region: usize, block: u64) -> Option<usize> {
        let now = self.regions[region].now[block as usize].slice();
        let at = self.remembered.iter().rposition(|(of, at, _)| (*of, *at) == (region, block))?;
        (self.remembered[at].2.slice() != now).then_some(at)
    }

    fn put_back(&mut self, region: usize, block: u64) {
        let older = self.before(region, block).and_then(|at| self.remembered.remove(at));
        if let Some((.., older)) = older {
            self.regions[region].put_durable(block, Block { bad: true, ..older });
            self.written(region, block);
        }
    }
}

fn blocks(record: &Record) -> impl Iterator<Item = u64> {
    let first = record.offset / BLOCK_BYTES;
    first..first + record.len / BLOCK_BYTES
}
