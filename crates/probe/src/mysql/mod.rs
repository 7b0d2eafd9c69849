//! MariaDB and MySQL: a login, a statement, a written row, and an orderly end.
//!
//! The protocol is the same for both: <https://mariadb.com/kb/en/clientserver-protocol/>.

mod auth;
mod packet;

use crate::connection::Connection;
use crate::login::Login;
use crate::stage::Stage;
use crate::tls::Tls;
use crate::words::quoted;
use crate::{Outcome, Probed};
use auth::Reply;
use mainstay_ha::MysqlProbe;
use packet::{Greeting, Packets, ServerError};
use std::time::Instant;

const COM_QUERY: u8 = 3;
/// A packet that asks for the end of the connection, with its header.
const COM_QUIT: [u8; 5] = [1, 0, 0, 0, 1];
/// Answer to a plugin that is not known. MariaDB counts one of another length than the plugin's as
/// broken off; an answer by ed25519 has 64 bytes.
const NO_ANSWER: [u8; 64] = [0; 64];
/// Most packets of a login.
const LOGIN_PACKETS_MAX: usize = 8;

const ER_DBACCESS_DENIED: u16 = 1044;
const ER_ACCESS_DENIED: u16 = 1045;
const ER_CON_COUNT: u16 = 1040;
const ER_BAD_DB: u16 = 1049;
const ER_HOST_IS_BLOCKED: u16 = 1129;
const ER_HOST_NOT_PRIVILEGED: u16 = 1130;
const ER_TABLEACCESS_DENIED: u16 = 1142;
const ER_NO_SUCH_TABLE: u16 = 1146;
const ER_OPTION_PREVENTS_STATEMENT: u16 = 1290;
const ER_ACCESS_DENIED_NO_PASSWORD: u16 = 1698;
const ER_SECURE_TRANSPORT_REQUIRED: u16 = 3159;
/// MySQL's "Server isn't available", while it starts.
const ER_SERVER_ISNT_AVAILABLE: u16 = 3168;

pub async fn probe(kind: &str, probe: &MysqlProbe, stage: &Stage) -> Probed<String> {
    let began = Instant::now();
    stage.reach("the name of the user and the password file could not be read");
    let login = Login::read(probe.user.as_ref(), probe.password_file.as_ref()).await?;
    let tls = if probe.tls { Some(Tls::read(probe.ca_file.as_ref()).await?) } else { None };
    let connection = Connection::open(probe.socket.clone(), probe.address.as_deref(), stage).await?;
    let mut session = Session {
        kind,
        place: connection.place.clone(),
        packets: Packets::new(connection),
        probe,
        login: &login,
        tls: tls.as_ref(),
        stage,
    };
    let version = session.log_in().await?;
    let done = session.statements().await;
    session.packets.connection.part(&COM_QUIT).await;
    done.map(|done| {
        format!("{kind} {version} at {}: {done} in {} ms", session.place, began.elapsed().as_millis())
    })
}

struct Session<'a> {
    kind: &'a str,
    place: String,
    packets: Packets,
    probe: &'a MysqlProbe,
    login: &'a Login,
    tls: Option<&'a Tls>,
    stage: &'a Stage,
}

/// Result of a statement.
type Said = Result<(), ServerError>;

impl Session<'_> {
    fn wrong(&self, why: impl std::fmt::Display) -> Outcome {
        Outcome::Unhealthy(format!("{}: {why}", self.place))
    }

    fn not_understood(&self) -> Outcome {
        self.wrong(format!("the answer is not one of {}: is another program there?", self.kind))
    }

    /// The next packet of the login.
    async fn packet(&mut self) -> Probed<Vec<u8>> {
        self.packets.whole().await
    }

    /// Returns the version of the server.
    async fn log_in(&mut self) -> Probed<String> {
        self.stage.reach(format!(
            "{} took the connection, but sent no greeting: the server stands still, is overloaded or not yet started",
            self.place
        ));
        let first = self.packet().await?;
        if let Some(error) = ServerError::read(&first) {
            return Err(self.refused(&error));
        }
        let greeting = Greeting::read(&first).ok_or_else(|| self.not_understood())?;
        if let Some(tls) = self.tls {
            if !greeting.has_tls {
                return Err(self.wrong("the server offers no TLS: set ssl_cert and ssl_key there"));
            }
            self.packets.send(&packet::begin_login(true)).await?;
            self.packets.connection.secure(tls, self.stage).await?;
        }
        self.stage.reach(format!("{} does not answer the login of {:?}", self.place, self.login.user));
        let is_secret = self.packets.connection.is_secret;
        let mut plugin = greeting.plugin.clone();
        let mut scramble = greeting.scramble;
        let known = auth::reply(&plugin, self.login.password(), &scramble);
        if known.is_none() {
            // The account may have another one, which the server then asks for.
            plugin = auth::NATIVE.into();
        }
        let answer = auth::reply(&plugin, self.login.password(), &scramble).unwrap_or_default();
        self.packets.send(&packet::login(&self.login.user, &answer, &plugin, self.tls.is_some())).await?;
        for _ in 0..LOGIN_PACKETS_MAX {
            let packet = self.packet().await?;
            if let Some(error) = ServerError::read(&packet) {
                return Err(self.refused(&error));
            }
            match auth::next(&packet, &plugin, is_secret) {
                Some(Reply::Done) => return Ok(greeting.version),
                Some(Reply::Wait) => {}
                Some(Reply::Password) => {
                    let mut password = self.login.password().to_vec();
                    password.push(0);
                    self.packets.send(&password).await?;
                }
                Some(Reply::Switch { to, data }) => {
                    scramble = data;
                    let answer = auth::reply(&to, self.login.password(), &scramble);
                    let Some(answer) = answer else {
                        self.decline().await;
                        return Err(self.plugin_unknown(&to));
                    };
                    plugin = to;
                    self.packets.send(&answer).await?;
                }
                Some(Reply::NeedsSecrecy) => {
                    self.decline().await;
                    return Err(self.wrong(format!(
                        "the server wants the password of {:?} itself, which the probe sends only through a socket or to a \
                         server whose certificate is checked: name the server's socket, or set tls and ca_file",
                        self.login.user
                    )));
                }
                None => return Err(self.not_understood()),
            }
        }
        Err(self.not_understood())
    }

    /// Lets a login fail that cannot go on. A server counts a login that breaks off against the
    /// host, and one that it refuses not.
    async fn decline(&mut self) {
        if self.packets.send(&NO_ANSWER).await.is_ok() {
            let _ = self.packet().await;
        }
    }

    fn plugin_unknown(&self, plugin: &str) -> Outcome {
        self.wrong(format!(
            "the account {:?} logs in by {}, which the probe does not know yet: give it {} or mysql_native_password",
            self.login.user,
            quoted(plugin.as_bytes()),
            self.socket_plugin(),
        ))
    }

    /// The plugin that lets a user of the system in without a password.
    fn socket_plugin(&self) -> &'static str {
        if self.kind == "mysql" { "auth_socket" } else { "unix_socket" }
    }

    /// Outcome of a login that the server refuses.
    fn refused(&self, error: &ServerError) -> Outcome {
        let user = &self.login.user;
        let place = &self.place;
        let what_to_do = match error.code {
            ER_ACCESS_DENIED | ER_ACCESS_DENIED_NO_PASSWORD if self.login.password.is_some() => format!(
                "the login as {user:?} {} is refused: compare the password, and whether the account may log in from here",
                self.login.manner()
            ),
            ER_ACCESS_DENIED | ER_ACCESS_DENIED_NO_PASSWORD => {
                let how = if self.kind == "mysql" { "WITH auth_socket" } else { "VIA unix_socket" };
                format!(
                    "the login as {user:?} {} is refused: name a password file, or, if the probe runs as user {user} of \
                     this machine and uses the socket, run CREATE USER {user}@localhost IDENTIFIED {how}",
                    self.login.manner()
                )
            }
            ER_CON_COUNT => "all connections are in use: raise max_connections, or end some".into(),
            ER_HOST_IS_BLOCKED => {
                "the server blocks this host, because too many connections broke off: run FLUSH HOSTS there, raise \
                 max_connect_errors, or name the server's socket instead of an address"
                    .into()
            }
            ER_HOST_NOT_PRIVILEGED => {
                format!("no account may log in from this host: create {user:?} for it, or name the server's socket")
            }
            ER_SECURE_TRANSPORT_REQUIRED => {
                "the server wants TLS: set tls in the probe, or name the server's socket".into()
            }
            ER_SERVER_ISNT_AVAILABLE => {
                return Outcome::Recovering(format!("{place}: the server is starting up ({error})"));
            }
            _ => "the server refuses the connection".into(),
        };
        self.wrong(format!("{what_to_do} ({error})"))
    }

    /// Runs the statement, and writes the row if that is asked for.
    async fn statements(&mut self) -> Probed<String> {
        let statement = self.probe.statement.clone();
        self.stage.reach(format!("{} took the login, but did not answer the statement", self.place));
        if let Err(error) = self.run(&statement).await? {
            if error.code == ER_SERVER_ISNT_AVAILABLE {
                return Err(self.refused(&error));
            }
            return Err(self.wrong(format!("the statement failed: {error}")));
        }
        let Some((database, table)) = self.probe.write_parts() else {
            return Ok("logged in and ran the statement".into());
        };
        let name = format!("`{database}`.`{table}`");
        self.stage.reach(format!(
            "{} answers, but did not write to {database}.{table}: it is locked, or the disk hangs",
            self.place
        ));
        let replace = format!("REPLACE INTO {name} (id, written) VALUES (1, CURRENT_TIMESTAMP(6))");
        let mut written = self.run(&replace).await?;
        if matches!(&written, Err(error) if error.code == ER_NO_SUCH_TABLE) {
            let columns = "id TINYINT UNSIGNED NOT NULL PRIMARY KEY, written TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)";
            written = self.run(&format!("CREATE TABLE IF NOT EXISTS {name} ({columns})")).await?;
            if written.is_ok() {
                written = self.run(&replace).await?;
            }
        }
        if written.is_ok() {
            // A server may have autocommit off.
            written = self.run("COMMIT").await?;
        }
        written.map_err(|error| self.unwritten(database, table, &error))?;
        Ok(format!("logged in, ran the statement and wrote to {database}.{table}"))
    }

    fn unwritten(&self, database: &str, table: &str, error: &ServerError) -> Outcome {
        let user = &self.login.user;
        let what_to_do = match error.code {
            ER_TABLEACCESS_DENIED | ER_DBACCESS_DENIED => {
                format!("run GRANT CREATE, INSERT, DELETE ON {database}.{table} TO the account {user:?}")
            }
            ER_BAD_DB => format!("run CREATE DATABASE {database}"),
            ER_OPTION_PREVENTS_STATEMENT => "the server is read-only".into(),
            _ => "the server cannot write".into(),
        };
        self.wrong(format!("no row was written to {database}.{table}: {what_to_do} ({error})"))
    }

    /// Runs a statement and reads its result to the end.
    async fn run(&mut self, statement: &str) -> Probed<Said> {
        let mut command = vec![COM_QUERY];
        command.extend_from_slice(statement.as_bytes());
        self.packets.begin();
        self.packets.send(&command).await?;
        let head = self.packets.head().await?;
        if let Some(error) = ServerError::read(&head.begin) {
            return Ok(Err(error));
        }
        match head.begin.first() {
            Some(0) => return Ok(Ok(())),
            // A file of this machine is asked for.
            None | Some(0xfb) => return Err(self.not_understood()),
            Some(_) => {}
        }
        // After the columns and after the rows there is a packet that ends them.
        for _ in 0..2 {
            loop {
                let head = self.packets.head().await?;
                if let Some(error) = ServerError::read(&head.begin) {
                    return Ok(Err(error));
                }
                if head.is_end() {
                    break;
                }
            }
        }
        Ok(Ok(()))
    }
}
