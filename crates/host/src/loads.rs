//! Reading batches back from the journal to feed a replica that lags.

use crate::{Host, Platform};
use bytes::Bytes;
use mainstay_codec::Batch;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_replica::Event;
use mainstay_store::{Area, IoFailure, LogSource};
use mainstay_types::{Chain, Index, NodeId};
use std::sync::Arc;

/// Batches that are being read for one peer, in log order. The token of a piece is the load's
/// number plus its place.
pub(crate) struct LogLoad {
    peer: NodeId,
    from: Index,
    max_bytes: u64,
    pieces: Vec<Piece>,
    outstanding: usize,
}

struct Piece {
    first: Index,
    chain: Chain,
    batch: Option<Arc<Batch>>,
}

impl Host {
    pub(crate) fn load_log(
        &mut self,
        platform: &mut impl Platform,
        peer: NodeId,
        from: Index,
        max_bytes: u64,
    ) {
        let Ok(plan) = self.store.log_plan(from, max_bytes) else {
            return self.log_loaded(platform, peer, from, None);
        };
        let number = self.tokens(plan.len());
        let pieces = Vec::with_capacity(plan.len());
        let mut load = LogLoad { peer, from, max_bytes, pieces, outstanding: 0 };
        for (token, piece) in (number..).zip(plan) {
            let batch = match piece.source {
                LogSource::Memory(batch) => Some(batch),
                LogSource::Journal { offset } => {
                    platform.read(token, Area::Journal, offset, piece.len, false);
                    load.outstanding += 1;
                    None
                }
            };
            load.pieces.push(Piece { first: piece.first, chain: piece.chain, batch });
        }
        if load.outstanding == 0 {
            let batches = load.pieces.into_iter().filter_map(|piece| piece.batch).collect();
            return self.log_loaded(platform, peer, from, Some(batches));
        }
        self.log_loads.insert(number, load);
    }

    /// The number of the load that waits for this token.
    pub(crate) fn load_of(&self, token: u64) -> Option<u64> {
        let (&number, load) = self.log_loads.range(..=token).next_back()?;
        load.pieces.get((token - number) as usize).filter(|piece| piece.batch.is_none()).map(|_| number)
    }

    pub(crate) fn log_read(
        &mut self,
        platform: &mut impl Platform,
        number: u64,
        token: u64,
        result: Result<Bytes, IoFailure>,
    ) {
        let Some(load) = self.log_loads.get_mut(&number) else { return };
        let piece = &mut load.pieces[(token - number) as usize];
        // A batch that was overwritten meanwhile does not decode, or is another one. The same goes
        // for a disk that has lost a write, or that reads what was there before: it may give a
        // batch with the same first entry that was cut.
        let decoded = result.map(|bytes| {
            let split = HEADER_BLOCK_BYTES.min(bytes.len());
            Batch::decode(&bytes[..split], &bytes.slice(split..))
                .ok()
                .filter(|batch| (batch.first, batch.chain) == (piece.first, piece.chain))
        });
        let first = piece.first;
        load.outstanding -= 1;
        match decoded {
            Ok(Some(batch)) => piece.batch = Some(Arc::new(batch)),
            Ok(None) if self.store.retains(first) => {
                self.log_loads.remove(&number);
                return self.fail(platform, format!("the journal's batch of entry {} is damaged", first.0));
            }
            Ok(None) => {}
            Err(error) => {
                self.log_loads.remove(&number);
                return self.fail(platform, format!("reading the journal failed: {error}"));
            }
        }
        if load.outstanding > 0 {
            return;
        }
        let Some(load) = self.log_loads.remove(&number) else { return };
        let count = load.pieces.len();
        let batches: Vec<_> = load.pieces.into_iter().map_while(|piece| piece.batch).collect();
        if batches.len() == count {
            self.log_loaded(platform, load.peer, load.from, Some(batches));
        } else {
            // The oldest were overwritten: ask the store again, which says so or has a new plan.
            self.load_log(platform, load.peer, load.from, load.max_bytes);
        }
    }

    fn log_loaded(
        &mut self,
        platform: &mut impl Platform,
        peer: NodeId,
        from: Index,
        batches: Option<Vec<Arc<Batch>>>,
    ) {
        self.replica.handle(platform.now(), Event::LogLoaded { peer, from, batches });
    }
}
