//! The history of the work of a node: one record for each minute, and what reports compute from it.
//!
//! Guarantees
//! - A record is a difference of counters, so records add up: the sum of minutes is what a counter
//!   says that ran over all of them. A counter that began anew within a minute counts from 0.
//! - Damaged bytes cost the records that they lie in. Nothing panics, no record is made up (each
//!   has a CRC-32C), and memory grows only with bytes that are there (R25).
//! - A series is bounded in cells, however long its interval is (R18).
//!
//! Reading order: `minute.rs` (what a record holds), `reading.rs` (how it is made), `encoding.rs`,
//! `buckets.rs` (percentiles), `waits.rs` (what requests waited for), `series.rs`, `kept.rs`
//! (baselines).

mod buckets;
mod encoding;
mod kept;
mod minute;
mod reading;
mod series;
mod waits;

pub use buckets::{BUCKETS, Buckets, percentile};
pub use encoding::{RECORD_BYTES_MAX, Records, SEGMENT_HEADER, encode, thin};
pub use kept::Kept;
pub use minute::{
    DISCARD, FLUSH, KINDS, Minute, NodeUse, Peer, READ, Requests, Stage, WRITE, WRITE_ZEROES, Work,
};
pub use reading::{Reading, ReplicaReading};
pub use series::{Point, Series};
pub use waits::{Wait, Waits, waits};
