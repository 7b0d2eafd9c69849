//! Shared by `make bench` and `mainstay bench`: the cases, their runs in turns between two runs of
//! a baseline, the accounting of processor time, and the tables and plots.
//!
//! A **case** is one load (fio or sysbench with fixed parameters). A **set-up** bears it: a plain
//! device, a volume, another product. The first set-up is the baseline. A **turn** runs one case on
//! all set-ups, each between two runs of the baseline. The ratio of a set-up is to the mean of the
//! two runs around it, because machines drift. A **round** is one turn of each case.

pub mod big;
pub mod bytes;
pub mod case;
pub mod command;
pub mod cpu;
pub mod database;
pub mod error;
pub mod fio;
pub mod instructions;
pub mod machine;
pub mod markdown;
pub mod report;
pub mod stats;
pub mod svg;
pub mod sysbench;
pub mod target;
pub mod turns;

pub use case::{Case, Figures, Latency, Measure};
pub use error::{Error, Result};
