//! Processes of services, and service files.

use super::Trouble;

pub const TROUBLES: &[(&str, Trouble)] = &[];
