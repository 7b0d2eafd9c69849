//! Why a request was refused or failed, as every part of Mainstay says it.

use crate::Code;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a request was refused or failed, in words for the operator. The API, the socket of the
/// engine and the answers of the control plane carry it with these fields.
///
/// It is displayed as the message with the code; the alternate form (`{:#}`) has the remedy on a
/// line of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    pub code: Code,
    pub message: String,
    /// Advice for the operator, in words; empty when there is none.
    pub remedy: String,
}

impl Problem {
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.code)?;
        if f.alternate() && !self.remedy.is_empty() {
            write!(f, "\n{}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}
