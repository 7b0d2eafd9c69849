//! Damage at rest (F5, F16): bytes that change while they lie on the disk.

use super::region::Block;
use super::{Disk, region_of};
use crate::random::Random;
use mainstay_codec::batch::{BATCH_MAGIC, BatchHead, HEADER_BLOCK_BYTES, LOCAL_BYTES, LOCAL_OFFSET};
use mainstay_codec::{Batch, LocalHeader, PayloadPlace, Superblock};
use mainstay_store::{Area, SUPERBLOCK_COPIES, table_blocks};
use mainstay_types::{BLOCK_BYTES, Index, VolumeId};
use std::collections::BTreeSet;

/// A batch that lies in the journal, as far as its header block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub first: Index,
    pub last: Index,
    pub offset: u64,
    pub len: u64,
    pub generation: u64,
}

impl Disk {
    /// F5: changes a byte of a block, in every version of it. False if there is nothing but zeroes.
    pub fn rot(&mut self, area: Area, block: u64, pick: u64) -> bool {
        let region = &mut self.regions[region_of(area)];
        if region.now.get(block as usize).is_none_or(Block::is_zero) {
            return false;
        }
        let bit = Random::new(pick).below(BLOCK_BYTES * 8);
        region.flip(block, (bit / 8) as usize, (bit % 8) as u8);
        true
    }

    /// The records in the journal whose headers can be read, by their offset: live ones, old ones,
    /// void ones.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let blocks = self.regions[1].now.iter().enumerate();
        blocks.filter_map(|(block, content)| record(block as u64 * BLOCK_BYTES, content)).collect()
    }

    /// F5: changes a byte that matters in a record that `may` rot. In most cases it is a `live`
    /// one, if there is one: a read or the next start will come across it. Returns `false` if no
    /// record may rot.
    pub fn rot_record(
        &mut self,
        pick: u64,
        may: impl Fn(&Record) -> bool,
        live: impl Fn(&Record) -> bool,
    ) -> bool {
        let mut random = Random::new(pick);
        let mut records = self.records();
        records.retain(may);
        if random.permille(750) && records.iter().any(&live) {
            records.retain(live);
        }
        let Some(record) = random.pick(&records) else { return false };
        let header_len = {
            let block = self.regions[1].now[(record.offset / BLOCK_BYTES) as usize].slice();
            BatchHead::decode(block).map_or(HEADER_BLOCK_BYTES, |head| head.header_len())
        };
        let skip = match random.below(4) {
            0 | 1 if record.len > HEADER_BLOCK_BYTES as u64 => {
                random.between(HEADER_BLOCK_BYTES as u64, record.len - 1)
            }
            2 => LOCAL_OFFSET as u64 + random.below(LOCAL_BYTES as u64),
            _ => random.below(header_len as u64),
        };
        let (at, bit) = (record.offset + skip, random.below(8) as u8);
        self.regions[1].flip(at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize, bit);
        true
    }

    /// F5: changes a byte of a block of a volume, and returns the block. It holds more than zeroes
    /// and is `needed`.
    pub fn rot_volume(
        &mut self,
        pick: u64,
        needed: impl Fn(VolumeId, u64) -> bool,
    ) -> Option<(VolumeId, u64)> {
        let mut candidates = Vec::new();
        let filled = self.filled();
        for (n, region) in self.regions[2..].iter().step_by(2).enumerate() {
            let volume = VolumeId(n as u16);
            let blocks = region.now.iter().enumerate().filter(|(_, content)| !content.is_zero());
            let blocks = blocks.map(|(block, _)| block as u64).filter(|&block| needed(volume, block));
            let blocks = blocks.filter(|&block| !filled.contains(&(region_of(Area::Volume(volume)), block)));
            candidates.extend(blocks.map(|block| (volume, block)));
        }
        let mut random = Random::new(pick);
        let &(volume, block) = random.pick(&candidates)?;
        self.rot(Area::Volume(volume), block, random.next()).then_some((volume, block))
    }

    /// The blocks of volumes, as region and block, that are the payload of a record of the journal
    /// and that no checkpoint covers. Damage there is damage to the journal's newest records, which
    /// nothing need notice if no later record says that they were durable.
    pub(super) fn filled(&self) -> BTreeSet<(usize, u64)> {
        let checkpoint =
            self.newest_superblock().map_or(Index(0), |superblock| superblock.checkpoint.at.index);
        let ranges = self.regions[1].now.iter().filter_map(|content| {
            let block = content.bytes.as_deref()?;
            let head = BatchHead::decode(block).ok().filter(|head| head.last() > checkpoint)?;
            let local = LocalHeader::decode(block, head.chain).ok()?;
            let in_volume = local.payload == PayloadPlace::Volume;
            Batch::written_ranges(block).ok().filter(|_| in_volume)
        });
        let blocks = ranges.flatten().flat_map(|range| {
            let region = region_of(Area::Volume(range.volume));
            (range.first_block()..range.end_block()).map(move |block| (region, block))
        });
        blocks.collect()
    }

    fn newest_superblock(&self) -> Option<Superblock> {
        let copies = self.regions[0].now[..SUPERBLOCK_COPIES].iter();
        copies
            .filter_map(|copy| Superblock::decode(copy.slice()).ok())
            .max_by_key(|superblock| superblock.sequence)
    }

    /// F5: changes a byte of the slot of the version table that the superblock names.
    pub(super) fn rot_versions(&mut self, pick: u64) -> bool {
        let mut random = Random::new(pick);
        let Some(&block) = random.pick(&self.table_pages()) else { return false };
        self.rot(Area::Meta, block, random.next())
    }

    /// The blocks of the version table that the newest superblock names.
    pub(super) fn table_pages(&self) -> Vec<u64> {
        self.newest_superblock().as_ref().map(table_blocks).unwrap_or_default()
    }
}

fn record(offset: u64, content: &Block) -> Option<Record> {
    let block = content.bytes.as_deref()?;
    if !block.starts_with(&BATCH_MAGIC.to_le_bytes()) {
        return None;
    }
    let head = BatchHead::decode(block).ok()?;
    let local = LocalHeader::decode(block, head.chain).ok()?;
    let payload_len = if local.payload == PayloadPlace::Volume { 0 } else { head.payload_len };
    let len = HEADER_BLOCK_BYTES as u64 + payload_len;
    Some(Record { first: head.first, last: head.last(), offset, len, generation: local.generation })
}
