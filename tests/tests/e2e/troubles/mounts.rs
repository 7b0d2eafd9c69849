//! Mounts and file systems of services.

use super::Trouble;

pub const TROUBLES: &[(&str, Trouble)] = &[];
