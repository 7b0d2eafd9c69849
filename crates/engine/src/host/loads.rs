//! Reading batches back from the journal to feed a replica that lags.

use super::{Host, Shared};
use crate::disk::DiskTag;
use bytes::Bytes;
use mainstay_codec::Batch;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_replica::Event;
use mainstay_store::{Area, IoFailure, LogSource};
use mainstay_types::{Index, NodeId};
use std::sync::Arc;

/// Batches that are being read for one peer, in log order.
pub(super) struct LogLoad {
    peer: NodeId,
    from: Index,
    max_bytes: u64,
    pieces: Vec<Piece>,
    outstanding: usize,
}

struct Piece {
    first: Index,
    token: u64,
    batch: Option<Arc<Batch>>,
}

impl LogLoad {
    pub(super) fn wants(&self, token: u64) -> bool {
        self.pieces.iter().any(|piece| piece.token == token)
    }
}

impl Host {
    pub(super) fn load_log(&mut self, shared: &mut Shared<'_>, peer: NodeId, from: Index, max_bytes: u64) {
        let Ok(plan) = self.store.log_plan(from, max_bytes) else {
            return self.log_loaded(shared, peer, from, None);
        };
        let mut load = LogLoad { peer, from, max_bytes, pieces: Vec::new(), outstanding: 0 };
        for piece in plan {
            let (token, batch) = match piece.source {
                LogSource::Memory(batch) => (0, Some(batch)),
                LogSource::Journal { offset } => {
                    let token = self.token();
                    self.disk.read(shared.ring, DiskTag::Shard(token), Area::Journal, offset, piece.len);
                    load.outstanding += 1;
                    (token, None)
                }
            };
            load.pieces.push(Piece { first: piece.first, token, batch });
        }
        if load.outstanding == 0 {
            let batches = load.pieces.into_iter().filter_map(|piece| piece.batch).collect();
            return self.log_loaded(shared, peer, from, Some(batches));
        }
        let id = self.token();
        self.log_loads.insert(id, load);
    }

    pub(super) fn log_read(&mut self, shared: &mut Shared<'_>, token: u64, result: Result<Bytes, IoFailure>) {
        let Some((&id, load)) = self.log_loads.iter_mut().find(|(_, load)| load.wants(token)) else { return };
        let piece = load.pieces.iter_mut().find(|piece| piece.token == token).expect("it wants the token");
        // What was overwritten meanwhile does not decode, or is another batch.
        let decoded = result.map(|bytes| {
            let split = HEADER_BLOCK_BYTES.min(bytes.len());
            Batch::decode(&bytes[..split], &bytes.slice(split..))
                .ok()
                .filter(|batch| batch.first == piece.first)
        });
        let first = piece.first;
        load.outstanding -= 1;
        match decoded {
            Ok(Some(batch)) => piece.batch = Some(Arc::new(batch)),
            Ok(None) if self.store.retains(first) => {
                self.log_loads.remove(&id);
                return self.fail(shared, format!("the journal's batch of entry {first} is damaged"));
            }
            Ok(None) => {}
            Err(error) => {
                self.log_loads.remove(&id);
                return self.fail(shared, format!("reading the journal failed: {error}"));
            }
        }
        if load.outstanding > 0 {
            return;
        }
        let load = self.log_loads.remove(&id).expect("found above");
        let count = load.pieces.len();
        let batches: Vec<_> = load.pieces.into_iter().map_while(|piece| piece.batch).collect();
        if batches.len() == count {
            self.log_loaded(shared, load.peer, load.from, Some(batches));
        } else {
            // The oldest were overwritten: ask the store again, which says so or has a new plan.
            self.load_log(shared, load.peer, load.from, load.max_bytes);
        }
    }

    fn log_loaded(
        &mut self,
        shared: &mut Shared<'_>,
        peer: NodeId,
        from: Index,
        batches: Option<Vec<Arc<Batch>>>,
    ) {
        self.replica.handle(shared.now, Event::LogLoaded { peer, from, batches });
    }
}
