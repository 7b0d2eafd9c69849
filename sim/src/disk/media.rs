//! Synchronous access to a disk, as formatting and recovery want it.

use super::region::Blocks;
use super::{Disk, region_of};
use bytes::Bytes;
use mainstay_store::{Area, IoFailure, Media, MediaError};
use mainstay_types::BLOCK_BYTES;

/// See [`Disk::media`].
#[derive(Debug)]
pub struct DiskMedia<'a> {
    disk: &'a mut Disk,
    writes_left: Option<u32>,
    powerless: bool,
}

impl<'a> DiskMedia<'a> {
    pub(super) fn new(disk: &'a mut Disk, writes_left: Option<u32>) -> Self {
        Self { disk, writes_left, powerless: false }
    }

    fn check_power(&self) -> Result<(), MediaError> {
        if self.powerless { Err(MediaError { detail: "the power is gone".to_owned() }) } else { Ok(()) }
    }
}

fn media_error(failure: IoFailure) -> MediaError {
    MediaError { detail: failure.detail }
}

impl Media for DiskMedia<'_> {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        self.check_power()?;
        self.disk.read(region_of(area), offset, len as u64, None).map_err(media_error)
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.check_power()?;
        let (region, first) = (region_of(area), offset / BLOCK_BYTES);
        let blocks = if data.iter().fold(0, |all, byte| all | byte) == 0 {
            Blocks::Zero(data.len() as u64 / BLOCK_BYTES)
        } else {
            let mut blocks = Vec::new();
            Blocks::push(&mut blocks, &Bytes::copy_from_slice(data));
            Blocks::Data(blocks)
        };
        match &mut self.writes_left {
            None => {}
            Some(0) => {
                self.disk.stamp += 1;
                for n in 0..blocks.len() {
                    self.disk.put(region, first + n, blocks.get(n), false);
                }
                self.powerless = true;
                return self.check_power();
            }
            Some(left) => *left -= 1,
        }
        self.disk.write(region, first, &blocks, true).map_err(media_error)
    }

    fn flush(&mut self, area: Area) -> Result<(), MediaError> {
        self.check_power()?;
        let stamp = self.disk.stamp;
        self.disk.flush(region_of(area), stamp).map_err(media_error)
    }
}
