//! Snapshots in pools that cannot clone files
//! ([ADR 20](../../../../docs/adr/0020-copy-before-write.md)): the engine puts the content of a
//! chunk aside before it overwrites the chunk.

mod chunks;
mod content;
mod copy_before_write;
mod files;
mod io;

pub use chunks::ChunkSet;
pub use content::copy_out;
pub(super) use content::restore;
pub(super) use copy_before_write::{CopyBeforeWrite, Todo, Turn};
pub(super) use files::{Layer, Standing, is_here, tidy};
pub(super) use io::{copy_sparse, next_data, punch};
