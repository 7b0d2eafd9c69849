//! PostgreSQL: a login, a statement, a written row, and an orderly end.
//!
//! The protocol: <https://www.postgresql.org/docs/current/protocol.html>.

mod md5;
mod message;
mod scram;

use crate::connection::Connection;
use crate::login::Login;
use crate::reader::Reader;
use crate::stage::Stage;
use crate::tls::Tls;
use crate::words::quoted;
use crate::{Outcome, Probed};
use mainstay_ha::PostgresqlProbe;
use message::{Message, Messages, ServerError};
use scram::Scram;
use std::time::Instant;

/// A message that asks for the end of the connection.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];
/// Most messages of a login, the server's parameters among them.
const LOGIN_MESSAGES_MAX: usize = 256;

const INSUFFICIENT_PRIVILEGE: &str = "42501";
const INVALID_CATALOG_NAME: &str = "3D000";
const INVALID_SCHEMA_NAME: &str = "3F000";
const READ_ONLY_SQL_TRANSACTION: &str = "25006";
const TOO_MANY_CONNECTIONS: &str = "53300";
const UNDEFINED_TABLE: &str = "42P01";
/// The server stops all sessions, because one process of it died. A recovery follows.
const CRASH_SHUTDOWN: &str = "57P02";
/// The server starts up, recovers or shuts down.
const CANNOT_CONNECT_NOW: &str = "57P03";
/// Class of refused logins, by account or by pg_hba.conf.
const INVALID_AUTHORIZATION: &str = "28";

pub async fn probe(probe: &PostgresqlProbe, stage: &Stage) -> Probed<String> {
    let began = Instant::now();
    stage.reach("the name of the user and the password file could not be read");
    let login = Login::read(probe.user.as_ref(), probe.password_file.as_ref()).await?;
    let tls = if probe.tls { Some(Tls::read(probe.ca_file.as_ref()).await?) } else { None };
    let connection = Connection::open(probe.socket_path(), probe.address.as_deref(), stage).await?;
    let mut session = Session {
        place: connection.place.clone(),
        messages: Messages::new(connection),
        probe,
        login: &login,
        stage,
    };
    if let Some(tls) = &tls {
        session.secure(tls).await?;
    }
    let version = session.log_in().await?;
    let done = session.statements().await;
    session.messages.connection.part(&TERMINATE).await;
    done.map(|done| {
        format!("postgresql {version} at {}: {done} in {} ms", session.place, began.elapsed().as_millis())
    })
}

struct Session<'a> {
    place: String,
    messages: Messages,
    probe: &'a PostgresqlProbe,
    login: &'a Login,
    stage: &'a Stage,
}

/// Result of a statement.
type Said = Result<(), ServerError>;

impl Session<'_> {
    fn wrong(&self, why: impl std::fmt::Display) -> Outcome {
        Outcome::Unhealthy(format!("{}: {why}", self.place))
    }

    fn not_understood(&self) -> Outcome {
        self.wrong("the answer is not one of PostgreSQL: is another program there?")
    }

    /// Asks for TLS, which a server of this protocol answers with one letter.
    async fn secure(&mut self, tls: &Tls) -> Probed<()> {
        self.stage.reach(format!("{} took the connection, but did not say whether it has TLS", self.place));
        self.messages.send(None, &message::TLS_WANTED).await?;
        match self.messages.letter().await? {
            b'S' => self.messages.connection.secure(tls, self.stage).await,
            b'N' => Err(self.wrong("the server offers no TLS: set ssl = on there, with a certificate")),
            b'E' => Err(self.wrong("the server refuses the connection before a login; its log says why")),
            _ => Err(self.not_understood()),
        }
    }

    /// Returns the version of the server.
    async fn log_in(&mut self) -> Probed<String> {
        let Login { user, .. } = self.login;
        self.stage.reach(format!(
            "{} took the connection, but did not answer the login of {user:?}: the server stands still or is overloaded",
            self.place
        ));
        self.messages.send(None, &message::startup(user, &self.probe.database)).await?;
        let mut version = String::new();
        let mut scram = None;
        let mut is_in = false;
        for _ in 0..LOGIN_MESSAGES_MAX {
            let Message { kind, body } = self.messages.next().await?;
            match kind {
                b'E' => return Err(self.refused(&ServerError::read(&body))),
                b'R' => is_in = self.authenticate(&body, &mut scram).await?,
                b'S' => {
                    let mut reader = Reader(&body);
                    if reader.zero_ended() == Some(b"server_version") {
                        version = reader.zero_ended().map(quoted).unwrap_or_default();
                    }
                }
                b'Z' if is_in => return Ok(version),
                // The key for cancelling, notices, and options of the protocol.
                b'K' | b'N' | b'v' => {}
                _ => return Err(self.not_understood()),
            }
        }
        Err(self.not_understood())
    }

    /// Takes a step of the authentication. Returns whether it is complete.
    async fn authenticate(&mut self, body: &[u8], scram: &mut Option<Scram>) -> Probed<bool> {
        let user = &self.login.user;
        let mut reader = Reader(body);
        let request = reader.u32_be().ok_or_else(|| self.not_understood())?;
        if matches!(request, 3 | 5 | 10) && self.login.password.is_none() {
            return Err(self.wrong(format!(
                "the server wants a password of {user:?}: name a password file, or let pg_hba.conf trust this login (peer)"
            )));
        }
        let password = self.login.password();
        match (request, &scram) {
            // A server that did not prove that it knows the password is not let off.
            (0, Some(scram)) if !scram.is_proven() => {
                return Err(self
                    .wrong("the server did not prove that it knows the password, so it may be another one"));
            }
            (0, _) => return Ok(true),
            (3, _) if self.messages.connection.is_secret => {
                let answer = [password, b"\0"].concat();
                self.messages.send(Some(b'p'), &answer).await?;
            }
            (3, _) => {
                return Err(self.wrong(format!(
                    "the server wants the password of {user:?} itself, which the probe sends only through a socket or to a \
                     server whose certificate is checked: use scram-sha-256 in pg_hba.conf, set tls and ca_file, or name \
                     the socket's directory"
                )));
            }
            (5, _) => {
                let salt = reader.bytes(4).ok_or_else(|| self.not_understood())?;
                self.messages.send(Some(b'p'), &md5::answer(user, password, salt)).await?;
            }
            (10, None) => {
                let offered: Vec<&[u8]> = reader.0.split(|byte| *byte == 0).collect();
                if !offered.contains(&scram::MECHANISM.as_bytes()) {
                    return Err(self.wrong(
                        "the server offers no scram-sha-256, and the probe knows no other of its kind",
                    ));
                }
                let begun = Scram::begin(password);
                let begun = begun.ok_or_else(|| self.wrong("the system gives no random numbers"))?;
                self.messages.send(Some(b'p'), &begun.first_message()).await?;
                *scram = Some(begun);
            }
            (11, Some(begun)) => {
                let (next, answer) = begun.answer(reader.0).map_err(|why| self.wrong(why))?;
                self.messages.send(Some(b'p'), &answer).await?;
                *scram = Some(next);
            }
            (12, Some(begun)) => {
                let proven = begun.proven(reader.0);
                *scram = Some(proven.ok_or_else(|| {
                    self.wrong(
                        "the server did not prove that it knows the password, so it may be another one",
                    )
                })?);
            }
            (7..=9, _) => {
                return Err(self.wrong(format!(
                    "the server wants a login of {user:?} by GSSAPI or SSPI, which the probe does not know yet: let \
                     pg_hba.conf take peer or scram-sha-256 from here"
                )));
            }
            _ => return Err(self.not_understood()),
        }
        Ok(false)
    }

    /// Outcome of a login that the server refuses, or of a session that it ends.
    fn refused(&self, error: &ServerError) -> Outcome {
        let user = &self.login.user;
        let place = &self.place;
        let shuts_down = error.message.contains("shutting down");
        let what_to_do = match error.state.as_str() {
            CANNOT_CONNECT_NOW if !shuts_down => {
                return Outcome::Recovering(format!("{place}: the server is starting up or recovering ({error})"));
            }
            CRASH_SHUTDOWN => {
                return Outcome::Recovering(format!("{place}: the server recovers from a crash of a process ({error})"));
            }
            CANNOT_CONNECT_NOW => "the server is shutting down".into(),
            TOO_MANY_CONNECTIONS => {
                "all connections are in use: raise max_connections, end some, or give the account pg_use_reserved_connections"
                    .into()
            }
            INVALID_CATALOG_NAME => format!("name a database that exists in the place of {:?}", self.probe.database),
            state if state.starts_with(INVALID_AUTHORIZATION) => format!(
                "the login as {user:?} {} is refused: check the role, its password, and pg_hba.conf; for peer the probe has \
                 to run as user {user} of this machine",
                self.login.manner()
            ),
            INSUFFICIENT_PRIVILEGE => format!("run GRANT CONNECT ON DATABASE {:?} TO {user:?}", self.probe.database),
            _ => "the server refuses the connection".into(),
        };
        self.wrong(format!("{what_to_do} ({error})"))
    }

    /// Runs the statement, and writes the row if that is asked for.
    async fn statements(&mut self) -> Probed<String> {
        let statement = self.probe.statement.clone();
        self.stage.reach(format!("{} took the login, but did not answer the statement", self.place));
        self.run(&statement).await?.map_err(|error| self.failed("the statement failed", &error))?;
        let Some((schema, table)) = self.probe.write_parts() else {
            return Ok("logged in and ran the statement".into());
        };
        let name = format!("\"{schema}\".\"{table}\"");
        self.stage.reach(format!(
            "{} answers, but did not write to {schema}.{table}: it is locked, or the disk hangs",
            self.place
        ));
        let upsert = format!(
            "INSERT INTO {name} (id, written) VALUES (1, now()) ON CONFLICT (id) DO UPDATE SET written = excluded.written"
        );
        let mut written = self.run(&upsert).await?;
        if matches!(&written, Err(error) if error.state == UNDEFINED_TABLE) {
            let columns = "id smallint PRIMARY KEY, written timestamptz NOT NULL";
            written = self.run(&format!("CREATE TABLE IF NOT EXISTS {name} ({columns})")).await?;
            if written.is_ok() {
                written = self.run(&upsert).await?;
            }
        }
        written.map_err(|error| self.unwritten(schema, table, &error))?;
        Ok(format!("logged in, ran the statement and wrote to {schema}.{table}"))
    }

    /// Outcome of a statement that failed. A session may end because the server recovers.
    fn failed(&self, what: &str, error: &ServerError) -> Outcome {
        match error.state.as_str() {
            CANNOT_CONNECT_NOW | CRASH_SHUTDOWN => self.refused(error),
            _ => self.wrong(format!("{what} ({error})")),
        }
    }

    fn unwritten(&self, schema: &str, table: &str, error: &ServerError) -> Outcome {
        let user = &self.login.user;
        let what_to_do = match error.state.as_str() {
            INSUFFICIENT_PRIVILEGE => format!(
                "make the account {user:?} the owner of the schema, or run GRANT SELECT, INSERT, UPDATE ON {schema}.{table}"
            ),
            INVALID_SCHEMA_NAME => format!("run CREATE SCHEMA {schema} AUTHORIZATION {user}"),
            READ_ONLY_SQL_TRANSACTION => "the server is read-only".into(),
            _ => "the server cannot write".into(),
        };
        self.failed(&format!("no row was written to {schema}.{table}: {what_to_do}"), error)
    }

    /// Runs a statement and reads its result to the end.
    async fn run(&mut self, statement: &str) -> Probed<Said> {
        self.messages.send(Some(b'Q'), &[statement.as_bytes(), b"\0"].concat()).await?;
        let mut said = Ok(());
        loop {
            let Message { kind, body } = self.messages.next().await?;
            match kind {
                b'E' => {
                    let error = ServerError::read(&body);
                    // The server closes the connection after it.
                    if error.is_fatal {
                        return Ok(Err(error));
                    }
                    said = Err(error);
                }
                b'Z' => return Ok(said),
                b'G' | b'W' => return Err(self.wrong("the statement asks for data: use one that only reads")),
                // Columns, rows, ends, notices, parameters, notifications, and copied data.
                b'T' | b'D' | b'C' | b'I' | b'N' | b'S' | b'A' | b'H' | b'd' | b'c' => {}
                _ => return Err(self.not_understood()),
            }
        }
    }
}
