//! The stage that a probe has reached, which says in words where it hung.

use std::cell::RefCell;

#[derive(Debug, Default)]
pub struct Stage(RefCell<String>);

impl Stage {
    /// Notes where the probe hangs if it goes no further, as a clause.
    pub fn reach(&self, words: impl Into<String>) {
        self.0.replace(words.into());
    }

    pub fn words(&self) -> String {
        self.0.borrow().clone()
    }
}
