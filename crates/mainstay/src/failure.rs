//! What the command line says when something goes wrong: a stable code, the cause, the remedy, and
//! the exit code that goes with it.

use mainstay_api::client::ClientError;
use mainstay_api::rest::ErrorBody;
use std::error::Error;
use std::{fmt, io};

/// Exit codes; the help text of the command documents the same list.
pub mod exit {
    /// The request was refused or failed.
    pub const FAILED: u8 = 1;
    /// The command line is wrong. Clap uses the same number.
    pub const USAGE: u8 = 2;
    /// No agent answered, or not in time.
    pub const UNREACHABLE: u8 = 3;
    /// `status` found something that needs attention.
    pub const ATTENTION: u8 = 4;
    /// `resource scrub` found replicas that differ.
    pub const UNEQUAL: u8 = 5;
    /// `lab exec` could not start the command; otherwise it passes the command's own code.
    pub const EXEC: u8 = 125;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub body: ErrorBody,
    pub exit: u8,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let body = ErrorBody { code: code.into(), message: message.into(), remedy: remedy.into() };
        Self { body, exit: exit::FAILED }
    }

    pub fn usage(code: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit: exit::USAGE, ..Self::new(code, message, remedy) }
    }

    #[must_use]
    pub fn with_exit(self, exit: u8) -> Self {
        Self { exit, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {} [{}]", self.body.message, self.body.code)?;
        if !self.body.remedy.is_empty() {
            write!(f, "\n  what to do: {}", self.body.remedy)?;
        }
        Ok(())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::Unreachable { .. } | ClientError::Timeout { .. } => exit::UNREACHABLE,
            ClientError::Refused { .. } | ClientError::Transport(_) => exit::FAILED,
        };
        Self { body: error.body(), exit }
    }
}

/// Names what was being done when the system refused it.
pub trait Context<T> {
    fn or_fail(self, code: &str, doing: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn or_fail(self, code: &str, doing: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| Failure::new(code, format!("cannot {}: {error}", doing()), ""))
    }
}

/// An error and everything that caused it, each said once: many errors name their cause themselves.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = next.source();
    }
    text
}

/// Whether the system did not allow something to this user.
pub fn is_forbidden(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(next) = cause {
        let kind = next.downcast_ref::<io::Error>().map(io::Error::kind);
        if kind == Some(io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = next.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_agent::error::AgentError;

    #[test]
    fn a_cause_that_an_error_names_itself_is_not_said_twice() {
        let denied = || io::Error::from_raw_os_error(13);
        let error = AgentError::File { path: "/var/lib/mainstay".into(), source: denied() };
        assert_eq!(chain(&error).matches("Permission denied").count(), 1, "{}", chain(&error));
        assert!(is_forbidden(&error));
        let outer = io::Error::other(error);
        assert_eq!(chain(&outer).matches("Permission denied").count(), 1, "{}", chain(&outer));
        assert!(!is_forbidden(&io::Error::from_raw_os_error(2)));
    }
}
