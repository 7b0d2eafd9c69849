//! The storage core of one replica.

mod api;

pub use api::{
    Area, Gone, IoFailure, IoResult, LogPiece, LogSource, Media, MediaError, OpId, Output, RecoverError,
    Segment, Source, StoreConfig, Tuning,
};

use bytes::Bytes;
use mainstay_codec::{Batch, LogState};
use mainstay_types::{Chain, Epoch, Index, Position, Range, VolumeId};
use std::sync::Arc;

/// See the top of this crate.
pub struct Store {
    config: StoreConfig,
}

#[allow(unused_variables, clippy::missing_panics_doc)]
impl Store {
    pub fn meta_bytes(config: &StoreConfig) -> u64 { unimplemented!() }
    pub fn format(media: &mut dyn Media, config: &StoreConfig) -> Result<(), MediaError> { unimplemented!() }
    pub fn recover(media: &mut dyn Media, tuning: Tuning) -> Result<Store, RecoverError> { unimplemented!() }
    pub fn config(&self) -> &StoreConfig { &self.config }
    pub fn promised(&self) -> Epoch { unimplemented!() }
    pub fn log_state(&self) -> LogState { unimplemented!() }
    pub fn room(&self) -> u64 { unimplemented!() }
    pub fn version(&self, volume: VolumeId, extent: u32) -> Index { unimplemented!() }
    pub fn extents_newer_than(&self, index: Index) -> Vec<(VolumeId, u32)> { unimplemented!() }
    pub fn append(&mut self, batch: Arc<Batch>) { unimplemented!() }
    pub fn commit(&mut self, index: Index) { unimplemented!() }
    pub fn promise(&mut self, epoch: Epoch) { unimplemented!() }
    pub fn cut(&mut self, to: Position) { unimplemented!() }
    pub fn restart(&mut self, at: Position, chain: Chain) { unimplemented!() }
    pub fn install_extent(&mut self, volume: VolumeId, extent: u32, version: Index, data: Bytes) { unimplemented!() }
    pub fn finish_copy(&mut self, need: Index) { unimplemented!() }
    pub fn destage_now(&mut self) { unimplemented!() }
    pub fn read(&self, range: Range) -> Vec<Segment> { unimplemented!() }
    pub fn log_plan(&self, from: Index, max_bytes: u64) -> Result<Vec<LogPiece>, Gone> { unimplemented!() }
    pub fn retains(&self, index: Index) -> bool { unimplemented!() }
    pub fn complete(&mut self, op: OpId, result: IoResult) { unimplemented!() }
    pub fn poll(&mut self) -> Option<Output> { unimplemented!() }
}
