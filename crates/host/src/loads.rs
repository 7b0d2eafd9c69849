//! Reading batches back from the journal to feed a replica that lags.

use crate::{Host, Platform};
use bytes::Bytes;
use mainstay_codec::Batch;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_replica::Event;
use mainstay_store::{Area, IoFailure, LogSource};
use mainstay_types::{Chain, Index, NodeId, Range};
use std::sync::Arc;

/// Batches that are being read for one peer, in log order. The token of a part is the load's number
/// plus its place.
pub(crate) struct LogLoad {
    peer: NodeId,
    from: Index,
    max_bytes: u64,
    pieces: Vec<Piece>,
    /// Each read: the number of its piece, and the bytes once they are here.
    parts: Vec<(usize, Option<Bytes>)>,
    outstanding: usize,
}

struct Piece {
    first: Index,
    chain: Chain,
    /// The payload is in the volumes.
    in_volume: bool,
    /// How many of its parts are not here yet.
    missing: usize,
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
        let mut reads: Vec<(usize, Area, u64, u64)> = Vec::new();
        let mut pieces = Vec::with_capacity(plan.len());
        for (n, piece) in plan.into_iter().enumerate() {
            let before = reads.len();
            let (batch, in_volume) = match piece.source {
                LogSource::Memory(batch) => (Some(batch), false),
                LogSource::Journal { offset } => {
                    reads.push((n, Area::Journal, offset, piece.len));
                    (None, false)
                }
                LogSource::Volume { offset, ranges } => {
                    reads.push((n, Area::Journal, offset, HEADER_BLOCK_BYTES as u64));
                    let part = |range: &Range| (n, Area::Volume(range.volume), range.offset, range.len);
                    reads.extend(ranges.iter().map(part));
                    (None, true)
                }
            };
            let missing = reads.len() - before;
            pieces.push(Piece { first: piece.first, chain: piece.chain, in_volume, missing, batch });
        }
        let number = self.tokens(reads.len());
        let parts = reads.iter().map(|(n, ..)| (*n, None)).collect();
        let load = LogLoad { peer, from, max_bytes, pieces, parts, outstanding: reads.len() };
        for (token, (_, area, offset, len)) in (number..).zip(reads) {
            platform.read(token, area, offset, len, false);
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
        load.parts.get((token - number) as usize).filter(|(_, bytes)| bytes.is_none()).map(|_| number)
    }

    pub(crate) fn log_read(
        &mut self,
        platform: &mut impl Platform,
        number: u64,
        token: u64,
        result: Result<Bytes, IoFailure>,
    ) {
        let Some(load) = self.log_loads.get_mut(&number) else { return };
        let (n, place) = &mut load.parts[(token - number) as usize];
        let n = *n;
        load.outstanding -= 1;
        let (first, in_volume) = (load.pieces[n].first, load.pieces[n].in_volume);
        match result {
            Ok(bytes) => *place = Some(bytes),
            // A volume that cannot be read behind the checkpoint is no fault of the log.
            Err(_) if in_volume && !self.store.filled_gone(first) => *place = Some(Bytes::new()),
            Err(error) => {
                self.log_loads.remove(&number);
                return self.fail(platform, format!("reading the journal failed: {error}"));
            }
        }
        let piece = &mut load.pieces[n];
        piece.missing -= 1;
        if piece.missing == 0 {
            let parts = load.parts.iter_mut().filter(|(of, _)| *of == n);
            // A part that is taken leaves no bytes behind, and has still come.
            let parts: Vec<_> = parts.filter_map(|(_, bytes)| bytes.as_mut().map(std::mem::take)).collect();
            let bytes = if parts.len() == 1 { parts[0].clone() } else { Bytes::from(parts.concat()) };
            let chain = piece.chain;
            // A batch that was overwritten meanwhile does not decode, or is another one. The same
            // goes for a disk that has lost a write, or that reads what was there before: it may
            // give a batch with the same first entry that was cut.
            let split = HEADER_BLOCK_BYTES.min(bytes.len());
            let batch = Batch::decode(&bytes[..split], &bytes.slice(split..));
            piece.batch =
                batch.ok().filter(|batch| (batch.first, batch.chain) == (first, chain)).map(Arc::new);
            let damaged = piece.batch.is_none()
                && if in_volume { self.store.filled_gone(first) } else { self.store.retains(first) };
            if damaged {
                self.log_loads.remove(&number);
                return self.fail(platform, format!("the journal's batch of entry {} is damaged", first.0));
            }
        }
        let Some(load) = self.log_loads.get(&number) else { return };
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
