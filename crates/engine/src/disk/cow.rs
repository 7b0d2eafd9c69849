//! Snapshots in pools that cannot clone files
//! ([ADR 20](../../../../docs/adr/0020-copy-before-write.md)): the engine puts the content of a
//! chunk aside before it overwrites the chunk.

mod chunks;
mod content;
mod files;
mod io;
mod keeper;

pub use chunks::ChunkSet;
pub use content::copy_out;
pub(super) use content::restore;
pub(super) use files::{Layer, Standing, is_here, tidy};
pub(super) use io::{copy_sparse, next_data, punch};
pub(super) use keeper::{Keeper, Todo, Turn};
