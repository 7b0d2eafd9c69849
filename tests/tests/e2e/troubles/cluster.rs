//! Forming a cluster, the command line, and what the status says.

use super::Trouble;

pub const TROUBLES: &[(&str, Trouble)] = &[];
