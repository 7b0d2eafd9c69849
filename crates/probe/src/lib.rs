//! Probes: a real look at whether a database or another program answers.
//!
//! Guarantees
//! - A probe ends within its limit, whatever the other side does or leaves undone.
//! - A probe of a database is a complete login and ends in the protocol's own way. Servers count
//!   broken logins and refuse hosts that have too many: MariaDB after 100 (`max_connect_errors`).
//! - Bytes from outside never panic and never take more memory than a few limits say (R25).
//! - Secrets come from files and appear in no text (R24).
//! - The result has one line of words: what failed, why, and what to do.
//!
//! MariaDB, MySQL and PostgreSQL are spoken by code of this crate, because a probe needs less than
//! a client: a login, statements without parameters, and an end.

mod command;
mod connection;
mod http;
mod login;
mod mysql;
mod postgresql;
mod reader;
mod stage;
mod tcp;
mod tls;
mod words;

use mainstay_ha::{Probe, ProbeExit};
use stage::Stage;
use std::time::Duration;
use words::one_line;

/// Result of a probe, with its reason in one line of words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Healthy(String),
    /// The server says that it is starting up or recovering from a crash.
    Recovering(String),
    Unhealthy(String),
}

/// Answer of a part of a probe, or the outcome that ends the probe.
type Probed<T> = Result<T, Outcome>;

impl Outcome {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Healthy(_) => "healthy",
            Self::Recovering(_) => "recovering",
            Self::Unhealthy(_) => "unhealthy",
        }
    }

    /// The reason.
    #[must_use]
    pub fn words(&self) -> &str {
        let (Self::Healthy(words) | Self::Recovering(words) | Self::Unhealthy(words)) = self;
        words
    }

    fn on_one_line(self) -> Self {
        match self {
            Self::Healthy(words) => Self::Healthy(one_line(&words)),
            Self::Recovering(words) => Self::Recovering(one_line(&words)),
            Self::Unhealthy(words) => Self::Unhealthy(one_line(&words)),
        }
    }

    /// Exit code of `mainstay probe`.
    #[must_use]
    pub fn exit(&self) -> ProbeExit {
        match self {
            Self::Healthy(_) => ProbeExit::Healthy,
            Self::Recovering(_) => ProbeExit::Recovering,
            Self::Unhealthy(_) => ProbeExit::Unhealthy,
        }
    }
}

/// Makes one probe, which has passed [`Probe::validate`], within `limit`.
///
/// The call blocks. A look-up of a name or a read of a file that hangs in the kernel stays behind
/// as a thread of this process.
#[must_use]
pub fn run(probe: &Probe, limit: Duration) -> Outcome {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => return Outcome::Unhealthy(format!("the probe cannot start: {error}")),
    };
    let stage = Stage::default();
    let probed = runtime.block_on(async { tokio::time::timeout(limit, made(probe, &stage)).await });
    let outcome = match probed {
        Ok(Ok(words)) => Outcome::Healthy(words),
        Ok(Err(outcome)) => outcome,
        Err(_) => {
            let seconds = limit.as_secs_f64();
            Outcome::Unhealthy(format!("the probe was not done after {seconds} s: {}", stage.words()))
        }
    };
    runtime.shutdown_background();
    outcome.on_one_line()
}

async fn made(probe: &Probe, stage: &Stage) -> Probed<String> {
    match probe {
        Probe::Mariadb(asked) | Probe::Mysql(asked) => mysql::probe(probe.kind(), asked, stage).await,
        Probe::Postgresql(asked) => postgresql::probe(asked, stage).await,
        Probe::Tcp(asked) => tcp::probe(asked, stage).await,
        Probe::Http(asked) => http::probe(asked, stage).await,
        Probe::Command(command) => command::probe(command, stage).await,
    }
}
