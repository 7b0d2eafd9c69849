//! Errors of measuring.

use std::time::Duration;
use thiserror::Error;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot {doing}")]
    System {
        doing: String,
        #[source]
        source: std::io::Error,
    },
    #[error("ran longer than {limit:?}: {words}")]
    TooLong { words: String, limit: Duration },
    #[error("exit code {code}: {words}\n{said}")]
    Failed { words: String, code: i32, said: String },
    #[error("{program} printed no {what}:\n{output}")]
    Output { program: &'static str, what: String, output: String },
    #[error("there is no case `{name}`; there are {}", known.join(", "))]
    NoCase { name: String, known: Vec<String> },
    #[error("{path} holds {what}, which the benchmark would overwrite")]
    Occupied { path: String, what: String },
    #[error("{path} cannot be measured: {why}")]
    Unusable { path: String, why: String },
    #[error("{path} cannot be read as samples of this plan: {why}")]
    Samples { path: String, why: String },
    /// A set-up failed to do something. Holds the whole chain of causes.
    #[error("{0}")]
    SetUp(String),
}

impl Error {
    /// For `map_err`.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }
}
