//! Failures of the command line: a stable code, the cause, the remedy, and the exit code that goes
//! with it.

use mainstay_api::rest::Problem;
pub use mainstay_api::rest::{Code, exit};
use mainstay_client::ClientError;
use std::error::Error;
use std::{fmt, io};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub problem: Problem,
    pub exit: u8,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Failure with the exit code that belongs to `code`.
    pub fn new(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let message = plain(&without_numbers(&message.into()));
        Self { exit: code.exit(), problem: Problem::new(code, message, remedy) }
    }

    #[must_use]
    pub fn with_exit(self, exit: u8) -> Self {
        Self { exit, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.problem)?;
        if !self.problem.remedy.is_empty() {
            write!(f, "\n  what to do: {}", self.problem.remedy)?;
        }
        if let Some(entry) = self.problem.code.entry() {
            write!(f, "\n  more: {entry}")?;
        }
        Ok(())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let Problem { code, message, remedy } = error.problem();
        let failure = Self::new(code, message, remedy);
        // That exit code is the agent's own, for its supervisor.
        if failure.exit == exit::STATE_LOST { failure.with_exit(exit::FAILED) } else { failure }
    }
}

/// Adds to an error what the command was doing when the system refused it.
pub trait Context<T> {
    fn or_fail(self, code: Code, doing: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: Error + 'static> Context<T> for Result<T, E> {
    fn or_fail(self, code: Code, doing: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| {
            let remedy = remedy_of(&error);
            Failure::new(code, format!("cannot {}: {error}", doing()), remedy)
        })
    }
}

/// Returns a remedy for an error of the system, as far as the kind of the error tells one.
pub fn remedy_of(error: &(dyn Error + 'static)) -> &'static str {
    use io::ErrorKind as Kind;
    let mut cause = Some(error);
    let mut kind = None;
    while let (Some(next), None) = (cause, kind) {
        let errno = || next.downcast_ref::<nix::errno::Errno>().map(|errno| io::Error::from(*errno).kind());
        kind = next.downcast_ref::<io::Error>().map(io::Error::kind).or_else(errno);
        cause = next.source();
    }
    match kind {
        Some(Kind::NotFound) => "Check the path for mistakes, and that what it names is there.",
        Some(Kind::PermissionDenied) => {
            "Run the command as root, or name a place where this user may read and write."
        }
        Some(Kind::AlreadyExists | Kind::DirectoryNotEmpty) => "Name another place, or remove what is there.",
        Some(Kind::NotADirectory) => "Name a path whose directories are directories.",
        Some(Kind::IsADirectory) => "Name a file, and not a directory.",
        Some(Kind::StorageFull | Kind::QuotaExceeded) => {
            "Make room on that file system, or name a place on another one, and repeat the command."
        }
        Some(Kind::ReadOnlyFilesystem) => "Name a place on a file system that can be written.",
        Some(Kind::ResourceBusy | Kind::AddrInUse) => {
            "End what uses it, or wait for its end, and repeat the command."
        }
        Some(Kind::FileTooLarge) => "Ask for less: the file system can hold no file of this size.",
        Some(Kind::InvalidFilename) => "Name a shorter path.",
        _ => "Repeat the command. If it fails again, look at the kernel's messages with `dmesg`.",
    }
}

/// Longest message, in characters.
const MESSAGE_MAX: usize = 4000;

/// The text with control characters written as in programs, so that no name or file plays with the
/// terminal. Cut after `MESSAGE_MAX` characters.
fn plain(text: &str) -> String {
    let written = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' { c.escape_default().to_string() } else { c.to_string() }
    };
    let mut plain: String = text.chars().take(MESSAGE_MAX).map(written).collect();
    if text.chars().nth(MESSAGE_MAX).is_some() {
        plain.push('…');
    }
    plain
}

/// The text without the numbers of the system's errors: `File exists (os error 17)` says no more
/// than `File exists`.
fn without_numbers(text: &str) -> String {
    const HEAD: &str = " (os error ";
    let mut parts = text.split(HEAD);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
                plain += rest
            }
            _ => plain += &format!("{HEAD}{part}"),
        }
    }
    plain
}

/// An error and everything that caused it, each cause once: many errors name their cause
/// themselves.
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

/// Whether the system refused something to this user.
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
    use std::time::Duration;

    #[test]
    fn an_error_of_the_system_has_words_and_a_remedy() {
        let failed = |number| Err::<(), _>(io::Error::from_raw_os_error(number));
        for (number, words) in
            [(2, "Check the path"), (13, "as root"), (17, "remove what is there"), (28, "Make room")]
        {
            let failure =
                failed(number).or_fail(Code::Clone, || "copy a to b".into()).expect_err("it failed");
            assert!(failure.problem.message.starts_with("cannot copy a to b: "), "{failure}");
            assert!(!failure.to_string().contains("os error"), "{failure}");
            assert!(failure.problem.remedy.contains(words), "{failure}");
        }
        let failure = Err::<(), _>(nix::errno::Errno::EBUSY)
            .or_fail(Code::LabState, || "x".into())
            .expect_err("it failed");
        assert!(failure.problem.remedy.contains("uses it"), "{failure}");
        assert_eq!(without_numbers("a (os error x) b (os error 5): c (os error 2)"), "a (os error x) b: c");
    }

    #[test]
    fn an_error_names_its_entry_in_the_manual_if_its_code_is_known() {
        let said = |code| Failure::new(code, "it is so", "Do so.").to_string();
        let entry =
            "error: it is so [bad-mode]\n  what to do: Do so.\n  more: docs/errors/resources.md#bad-mode";
        assert_eq!(said(Code::BadMode), entry);
        let newer = Code::from("of-a-newer-node".to_owned());
        assert_eq!(said(newer), "error: it is so [of-a-newer-node]\n  what to do: Do so.");
    }

    #[test]
    fn an_answer_of_the_agent_has_the_exit_code_of_its_code() {
        let exit_of = |code: &str| {
            let problem = Problem::new(code.to_owned().into(), "it is so", "do so");
            Failure::from(ClientError::Refused { status: 422, problem }).exit
        };
        for (code, exit) in [
            ("unknown-resource", exit::FAILED),
            ("of-a-newer-node", exit::FAILED),
            ("state-lost", exit::FAILED),
            ("result-unknown", exit::UNREACHABLE),
            ("no-majority", exit::UNREACHABLE),
        ] {
            assert_eq!(exit_of(code), exit, "{code}");
        }
        let source = || io::Error::from_raw_os_error(13);
        let unreachable = ClientError::Unreachable { path: "/x".into(), source: source() };
        let silent = ClientError::Timeout { path: "/x".into(), within: Duration::from_secs(1) };
        for error in [unreachable, silent] {
            assert_eq!(Failure::from(error).exit, exit::UNREACHABLE);
        }
        assert_eq!(Failure::from(ClientError::Transport("half".into())).exit, exit::FAILED);
    }

    #[test]
    fn a_message_is_bounded_and_plays_with_no_terminal() {
        let failure = Failure::new(
            Code::BadName,
            format!("`\u{1b}[2J{}` is not a name\nindeed", "ä".repeat(9000)),
            "x",
        );
        assert!(failure.problem.message.starts_with("`\\u{1b}[2Jä"), "{failure}");
        assert!(failure.problem.message.chars().count() < 4020, "{failure}");
        assert_eq!(plain("a\nb\r"), "a\nb\\r");
    }

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
