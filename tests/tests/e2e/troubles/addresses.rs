//! Floating addresses, and what silences a node.

use super::Trouble;

pub const TROUBLES: &[(&str, Trouble)] = &[];
