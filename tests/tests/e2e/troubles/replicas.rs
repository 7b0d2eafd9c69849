//! Directories of replicas in a pool.

use super::Trouble;

pub const TROUBLES: &[(&str, Trouble)] = &[];
