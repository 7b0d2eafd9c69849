//! Life goes on after a recovery: the next batch, another crash, and a checkpoint of everything.

use super::bench::{VOLUME_BLOCKS, next_batch};
use super::image::{Block, Image};
use super::model::{PossibleLog, VOLUME};
use bytes::Bytes;
use mainstay_codec::Superblock;
use mainstay_store::{Area, Output, Store};
use mainstay_types::{BLOCK_BYTES, DataState, Epoch, Index};

/// Appends the batch that was lost, byte for byte as a peer would send it again, or a new one if
/// none was lost. Crashes when that batch is durable, and then commits and destages it. Batches
/// behind a lost one must not come back with it.
pub fn live_on(mut store: Store, mut image: Image, world: &PossibleLog, epoch: Epoch) -> Result<(), String> {
    let state = store.log_state();
    if state.data == DataState::Inconsistent {
        // Waits for another restart; that is an operation like others.
        return Ok(());
    }
    let mut world = world.clone();
    let lost = world.batches.iter().find(|batch| batch.first > state.end.index).cloned();
    world.truncate(state.end.index);
    let next = lost.unwrap_or_else(|| next_batch(&world, epoch, state.commit));
    let end = next.end();
    world.batches.push(next.clone());
    store.append(next);
    let mut durable = drive(&mut store, &mut image)?;
    if durable == Some(end.index) {
        let mut crashed = image.clone();
        let again = Store::recover(&mut crashed, super::bench::tuning())
            .map_err(|error| format!("after the next batch recovery refuses: {error}"))?;
        if again.log_state().end != end {
            return Err(format!("after a batch that ended at {end}, {} was found", again.log_state().end));
        }
    }
    store.commit(end.index);
    store.destage_now();
    durable = drive(&mut store, &mut image)?.or(durable);
    if durable != Some(end.index) || store.log_state().commit != end.index {
        return Err(format!("stuck before {end}, at {:?}", store.log_state()));
    }
    let at_end = |superblock: Superblock| superblock.checkpoint.at.index == end.index;
    if !image.newest_superblock().is_some_and(at_end) {
        store.destage_now();
        drive(&mut store, &mut image)?;
    }
    let model = world.content_at(end.index);
    for block in 0..VOLUME_BLOCKS {
        let bytes = image.slice(Area::Volume(VOLUME), block * BLOCK_BYTES, BLOCK_BYTES);
        if bytes != model[block as usize] {
            return Err(format!("block {block} of the volume after everything was destaged"));
        }
    }
    Ok(())
}

/// Carries out every wish of the store at once. Returns the last index that the store has told
/// durable.
fn drive(store: &mut Store, image: &mut Image) -> Result<Option<Index>, String> {
    let mut durable = None;
    while let Some(output) = store.poll() {
        let mut read = None;
        let (op, area, offset, bytes) = match output {
            Output::JournalWrite { op, offset, parts } => {
                let mut bytes = Vec::new();
                for (local, batch) in &parts {
                    bytes.extend_from_slice(&batch.header_block(*local));
                    batch.payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
                }
                (op, Area::Journal, offset, Bytes::from(bytes))
            }
            Output::MetaWrite { op, offset, data } => (op, Area::Meta, offset, data),
            Output::VolumeWrite { op, volume, offset, data, .. } => {
                (op, Area::Volume(volume), offset, data.concat().into())
            }
            Output::VolumeZero { op, volume, offset, len, .. } => {
                (op, Area::Volume(volume), offset, vec![0; len as usize].into())
            }
            Output::VolumeFlush { op, volume } => (op, Area::Volume(volume), 0, Bytes::new()),
            Output::JournalRead { op, offset, len } => {
                read = Some(image.slice(Area::Journal, offset, len));
                (op, Area::Journal, offset, Bytes::new())
            }
            Output::Durable { index } => {
                durable = Some(index);
                continue;
            }
            Output::SnapshotTake { op, .. } | Output::SnapshotDrop { op, .. } => {
                store.complete(op, Ok(None));
                continue;
            }
            Output::SnapshotsChanged => continue,
            other => return Err(format!("the store said {other:?}")),
        };
        let first = image.layout.place(area, offset);
        for (n, block) in Block::split(&bytes).enumerate() {
            image.blocks[first + n] = block;
        }
        store.complete(op, Ok(read));
    }
    Ok(durable)
}
