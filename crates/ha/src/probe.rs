//! The description of a probe: a real look at whether a program answers, as the operator writes it
//! in TOML.
//!
//! Guarantees
//! - A probe has exactly one kind. Unknown fields are refused: a mistyped name must not silently
//!   become a default.
//! - A probe holds no secret. A password is in a file that the probe names.
//! - A probe that has passed [`Probe::validate`] can be carried out without further checks of its
//!   fields.
//!
//! `mainstay-probe` carries probes out.

use crate::spec::{SpecError, command_field};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Time that a probe has if nothing else is said, in seconds.
pub const PROBE_TIMEOUT_S: u64 = 5;
/// Port of PostgreSQL if nothing else is said.
const POSTGRESQL_PORT: u16 = 5432;
/// Longest statement, in bytes.
const STATEMENT_BYTES_MAX: usize = 4096;
/// Longest name of a user or a database, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Longest part of the name of a table, in bytes: PostgreSQL cuts longer ones.
const TABLE_BYTES_MAX: usize = 63;
/// Longest path of a socket, in bytes: `sun_path` of unix(7) without its final zero.
const SOCKET_BYTES_MAX: usize = 107;
/// Longest text that an answer is compared with, in bytes.
const EXPECT_BYTES_MAX: usize = 1024;
/// Longest path of a file and longest URL, in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// A look at whether a program answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// Logs in to a MariaDB server, runs a statement and logs out.
    Mariadb(MysqlProbe),
    /// Logs in to a MySQL server, runs a statement and logs out. The protocol is the one of
    /// MariaDB.
    Mysql(MysqlProbe),
    /// Logs in to a PostgreSQL server, runs a statement and logs out.
    Postgresql(PostgresqlProbe),
    /// Opens a connection and closes it.
    #[serde(deserialize_with = "text_or_table")]
    Tcp(TcpProbe),
    /// Asks for a page.
    #[serde(deserialize_with = "text_or_table")]
    Http(HttpProbe),
    /// Runs a program, which exits with 0 if all is well. No shell is involved.
    Command(Vec<String>),
}

/// A login to MariaDB or MySQL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MysqlProbe {
    /// Path of the server's socket. Either this or `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// `host:port` of the server. After an outage of the server that makes 100 logins of one host
    /// fail, the server refuses that host (`max_connect_errors`); a socket has no such limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Account of the database; the user that the probe runs as, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Absolute path of a file that holds the password and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// One statement; its rows are not looked at.
    #[serde(default = "default_statement")]
    pub statement: String,
    /// `database.table` for a row that each probe replaces. The probe makes the table in a database
    /// that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_table: Option<String>,
    /// Log in through TLS 1.3 only. Needs `address`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tls: bool,
    /// Absolute path of a file with the certificates of the authority that the server's certificate
    /// has to be of, in PEM. Without it any certificate is taken. Needs `tls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}

/// A login to PostgreSQL.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresqlProbe {
    /// Directory of the server's socket. Either this or `address`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// `host:port` of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Port that names the socket in its directory; 5432 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Role of the database; the user that the probe runs as, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Absolute path of a file that holds the password and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    #[serde(default = "default_database")]
    pub database: String,
    /// One statement; its rows are not looked at.
    #[serde(default = "default_statement")]
    pub statement: String,
    /// `schema.table` for a row that each probe replaces, written as PostgreSQL keeps the names.
    /// The probe makes the table in a schema that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_table: Option<String>,
    /// Log in through TLS 1.3 only. Needs `address`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tls: bool,
    /// Absolute path of a file with the certificates of the server's authority, in PEM; see
    /// [`MysqlProbe::ca_file`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}

/// A connection. The kernel takes connections on behalf of a process that stands still, so without
/// `expect` this probe only shows that something listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpProbe {
    /// `host:port`.
    pub address: String,
    /// First bytes that the server sends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
}

/// A page.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpProbe {
    /// `http://host:port/path` or `https://host:port/path`. Redirects are not followed.
    pub url: String,
    /// A status, such as `200`, or a range of them, such as `200-399`.
    #[serde(default = "default_status")]
    pub status: String,
    /// Text somewhere in the first 64 KiB of the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// Absolute path of a file with the certificates of the server's authority, in PEM, for a URL
    /// that begins with `https:`; see [`MysqlProbe::ca_file`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}

/// Exit codes of `mainstay probe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeExit {
    Healthy = 0,
    Unhealthy = 1,
    /// The command line is wrong: no probe was made.
    WrongUse = 2,
    /// The server is starting up or recovering from a crash: 75 is `EX_TEMPFAIL` of sysexits(3).
    Recovering = 75,
}

/// The parts of a URL that a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HttpTarget<'a> {
    /// Host and port as they are written, for the request's `Host`.
    pub authority: &'a str,
    /// Without the brackets of an IPv6 address.
    pub host: &'a str,
    pub port: u16,
    /// Path and query, which begin with `/`.
    pub path: &'a str,
    pub tls: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn default_statement() -> String {
    "SELECT 1".into()
}
fn default_database() -> String {
    "postgres".into()
}
fn default_status() -> String {
    "200-399".into()
}

impl Default for MysqlProbe {
    fn default() -> Self {
        Self {
            socket: None,
            address: None,
            user: None,
            password_file: None,
            statement: default_statement(),
            write_table: None,
            tls: false,
            ca_file: None,
        }
    }
}

impl Default for PostgresqlProbe {
    fn default() -> Self {
        Self {
            socket: None,
            address: None,
            port: None,
            user: None,
            password_file: None,
            database: default_database(),
            statement: default_statement(),
            write_table: None,
            tls: false,
            ca_file: None,
        }
    }
}

impl From<&str> for TcpProbe {
    fn from(address: &str) -> Self {
        Self { address: address.into(), expect: None }
    }
}

impl From<&str> for HttpProbe {
    fn from(url: &str) -> Self {
        Self { url: url.into(), status: default_status(), expect: None, ca_file: None }
    }
}

/// Reads the short form of a kind, a string, or the long one, a table.
fn text_or_table<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + for<'a> From<&'a str>,
{
    struct Either<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de> + for<'a> From<&'a str>> Visitor<'de> for Either<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or a table")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            Ok(T::from(text))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(Either(PhantomData))
}

/// The host, without the brackets of an IPv6 address, and the port of `host:port`.
#[must_use]
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let strange = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '[' | ']' | '/' | '@');
    (!host.is_empty() && host.len() <= PATH_BYTES_MAX && !host.contains(strange)).then_some((host, port))
}

/// The two parts of `database.table` or `schema.table`. They are safe between quotes.
fn table_parts(table: &str) -> Option<(&str, &str)> {
    let good = |part: &str| {
        (1..=TABLE_BYTES_MAX).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    table.split_once('.').filter(|(one, other)| good(one) && good(other))
}

impl MysqlProbe {
    /// Database and table of the written row; they are safe between backquotes.
    #[must_use]
    pub fn write_parts(&self) -> Option<(&str, &str)> {
        table_parts(self.write_table.as_ref()?)
    }

    fn validate(&self, field: &str) -> Result<(), SpecError> {
        match (&self.socket, &self.address) {
            (Some(socket), None) => socket_field(&format!("{field}.socket"), socket)?,
            (None, Some(address)) => address_field(&format!("{field}.address"), address, 3306)?,
            _ => {
                return Err(SpecError::new(
                    field,
                    "either socket or address has to be there, and not both",
                    "name the server's socket, for example `socket = \"/run/mysqld/mysqld.sock\"`",
                ));
            }
        }
        login_fields(field, self.user.as_ref(), self.password_file.as_ref(), &self.statement)?;
        tls_fields(field, self.tls, self.ca_file.as_ref(), self.address.is_some())?;
        table_field(field, self.write_table.as_ref(), "mainstay.probe")
    }
}

impl PostgresqlProbe {
    /// Path of the socket, if there is one.
    #[must_use]
    pub fn socket_path(&self) -> Option<String> {
        let port = self.port.unwrap_or(POSTGRESQL_PORT);
        Some(format!("{}/.s.PGSQL.{port}", self.socket.as_ref()?.trim_end_matches('/')))
    }

    /// Schema and table of the written row; they are safe between double quotes.
    #[must_use]
    pub fn write_parts(&self) -> Option<(&str, &str)> {
        table_parts(self.write_table.as_ref()?)
    }

    fn validate(&self, field: &str) -> Result<(), SpecError> {
        match (self.socket_path(), &self.address) {
            (Some(path), None) => socket_field(&format!("{field}.socket"), &path)?,
            (None, Some(address)) => address_field(&format!("{field}.address"), address, POSTGRESQL_PORT)?,
            _ => {
                return Err(SpecError::new(
                    field,
                    "either socket or address has to be there, and not both",
                    "name the directory of the server's socket, for example `socket = \"/run/postgresql\"`",
                ));
            }
        }
        if self.port == Some(0) {
            return Err(SpecError::new(format!("{field}.port"), "0 is no port", "use 1 to 65535"));
        }
        if self.port.is_some() && self.address.is_some() {
            return Err(SpecError::new(
                format!("{field}.port"),
                "port names the socket in its directory, and there is no socket",
                "write the port in address, for example `address = \"10.0.0.7:5432\"`",
            ));
        }
        login_fields(field, self.user.as_ref(), self.password_file.as_ref(), &self.statement)?;
        tls_fields(field, self.tls, self.ca_file.as_ref(), self.address.is_some())?;
        name_field(&format!("{field}.database"), &self.database, "postgres")?;
        table_field(field, self.write_table.as_ref(), "public.mainstay_probe")
    }
}

impl TcpProbe {
    fn validate(&self, field: &str) -> Result<(), SpecError> {
        address_field(&format!("{field}.address"), &self.address, 3306)?;
        expect_field(field, self.expect.as_ref())
    }
}

impl HttpProbe {
    /// The parts of `url`, if it is one that a probe can ask.
    #[must_use]
    pub fn target(&self) -> Option<HttpTarget<'_>> {
        let secured = self.url.strip_prefix("https://");
        let tls = secured.is_some();
        let rest = secured.or_else(|| self.url.strip_prefix("http://"))?;
        let plain = |b: u8| b.is_ascii_graphic() && b != b'#';
        if self.url.len() > PATH_BYTES_MAX || !rest.bytes().all(plain) {
            return None;
        }
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let (host, port) = if has_port {
            host_and_port(authority)?
        } else {
            let bare = authority.strip_prefix('[').map_or(Some(authority), |host| host.strip_suffix(']'))?;
            (bare, if tls { 443 } else { 80 })
        };
        let strange = |c: char| matches!(c, '[' | ']' | '@' | '?' | '\\');
        (!host.is_empty() && !host.contains(strange)).then_some(HttpTarget {
            authority,
            host,
            port,
            path,
            tls,
        })
    }

    /// Statuses that count as healthy.
    #[must_use]
    pub fn statuses(&self) -> Option<RangeInclusive<u16>> {
        let (first, last) = self.status.split_once('-').unwrap_or((&self.status, &self.status));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first >= 100 && first <= last && last <= 599).then_some(first..=last)
    }

    fn validate(&self, field: &str) -> Result<(), SpecError> {
        if self.target().is_none() {
            let remedy = "write it like \"http://127.0.0.1:8080/health\", without user, password and '#'";
            let problem = format!("{:?} is not a URL that a probe can ask", self.url);
            return Err(SpecError::new(format!("{field}.url"), problem, remedy));
        }
        if self.statuses().is_none() {
            return Err(SpecError::new(
                format!("{field}.status"),
                format!("{:?} is neither a status nor a range of them", self.status),
                "write it like \"200\" or \"200-399\"",
            ));
        }
        let secured = self.target().is_some_and(|target| target.tls);
        tls_fields(field, secured, self.ca_file.as_ref(), true)?;
        expect_field(field, self.expect.as_ref())
    }
}

impl Probe {
    /// The kind as it is written in TOML and on the command line.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mariadb(_) => "mariadb",
            Self::Mysql(_) => "mysql",
            Self::Postgresql(_) => "postgresql",
            Self::Tcp(_) => "tcp",
            Self::Http(_) => "http",
            Self::Command(_) => "command",
        }
    }

    /// The file that holds the password, if there is one.
    #[must_use]
    pub fn password_file(&self) -> Option<&str> {
        match self {
            Self::Mariadb(probe) | Self::Mysql(probe) => probe.password_file.as_deref(),
            Self::Postgresql(probe) => probe.password_file.as_deref(),
            Self::Tcp(_) | Self::Http(_) | Self::Command(_) => None,
        }
    }

    /// Checks everything that can be checked without a node. `field`: the probe's own path, for
    /// errors.
    pub fn validate(&self, field: &str) -> Result<(), SpecError> {
        let field = format!("{field}.{}", self.kind());
        match self {
            Self::Mariadb(probe) | Self::Mysql(probe) => probe.validate(&field),
            Self::Postgresql(probe) => probe.validate(&field),
            Self::Tcp(probe) => probe.validate(&field),
            Self::Http(probe) => probe.validate(&field),
            Self::Command(command) => command_field(&field, command),
        }
    }
}

fn is_plain(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && !text.contains(char::is_control)
}

fn socket_field(field: &str, path: &str) -> Result<(), SpecError> {
    if path.starts_with('/') && is_plain(path, SOCKET_BYTES_MAX) {
        return Ok(());
    }
    Err(SpecError::new(
        field,
        format!("{path:?} is not an absolute path of at most {SOCKET_BYTES_MAX} bytes"),
        "write the path as the server has it in its own configuration",
    ))
}

fn address_field(field: &str, address: &str, port: u16) -> Result<(), SpecError> {
    if host_and_port(address).is_some() {
        return Ok(());
    }
    let problem = format!("{address:?} is not host:port");
    Err(SpecError::new(field, problem, format!("write it like \"127.0.0.1:{port}\"")))
}

fn name_field(field: &str, name: &str, example: &str) -> Result<(), SpecError> {
    if is_plain(name, NAME_BYTES_MAX) {
        return Ok(());
    }
    let problem = format!("{name:?} is not a name of 1 to {NAME_BYTES_MAX} bytes");
    Err(SpecError::new(field, problem, format!("write it like \"{example}\"")))
}

/// `can_have`: the probe connects in a way that may be secured.
fn tls_fields(field: &str, tls: bool, ca_file: Option<&String>, can_have: bool) -> Result<(), SpecError> {
    if tls && !can_have {
        return Err(SpecError::new(
            format!("{field}.tls"),
            "the probe uses a socket, which no other machine can see",
            "leave tls out, or name the address of the server in the place of its socket",
        ));
    }
    let Some(path) = ca_file else { return Ok(()) };
    let field = format!("{field}.ca_file");
    if !tls {
        let problem = "certificates are compared with TLS only";
        return Err(SpecError::new(
            field,
            problem,
            "write `tls = true` too, or a URL that begins with https://",
        ));
    }
    if !path.starts_with('/') || !is_plain(path, PATH_BYTES_MAX) {
        let problem = format!("{path:?} is not an absolute path");
        return Err(SpecError::new(field, problem, "write it like \"/etc/mainstay/database-ca.pem\""));
    }
    Ok(())
}

fn login_fields(
    field: &str,
    user: Option<&String>,
    password_file: Option<&String>,
    statement: &str,
) -> Result<(), SpecError> {
    if let Some(user) = user {
        name_field(&format!("{field}.user"), user, "probe")?;
    }
    if let Some(path) = password_file.filter(|path| !path.starts_with('/') || !is_plain(path, PATH_BYTES_MAX))
    {
        return Err(SpecError::new(
            format!("{field}.password_file"),
            format!("{path:?} is not an absolute path"),
            "write it like \"/etc/mainstay/probe.password\"; the file holds the password and nothing else",
        ));
    }
    if statement.trim().is_empty() || statement.len() > STATEMENT_BYTES_MAX || statement.contains('\0') {
        return Err(SpecError::new(
            format!("{field}.statement"),
            format!("not a statement of 1 to {STATEMENT_BYTES_MAX} bytes"),
            "write one statement, for example \"SELECT 1\"",
        ));
    }
    Ok(())
}

fn table_field(field: &str, table: Option<&String>, example: &str) -> Result<(), SpecError> {
    let Some(table) = table.filter(|table| table_parts(table).is_none()) else {
        return Ok(());
    };
    Err(SpecError::new(
        format!("{field}.write_table"),
        format!("{table:?} is not two names of a-z, A-Z, 0-9, '_' and '-' with a dot between them"),
        format!("write it like \"{example}\""),
    ))
}

fn expect_field(field: &str, expect: Option<&String>) -> Result<(), SpecError> {
    if expect.is_none_or(|text| (1..=EXPECT_BYTES_MAX).contains(&text.len())) {
        return Ok(());
    }
    Err(SpecError::new(
        format!("{field}.expect"),
        format!("not a text of 1 to {EXPECT_BYTES_MAX} bytes"),
        "write a short part of the answer, or leave the field out",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Holder {
        probe: Probe,
    }

    fn read(text: &str) -> Result<Probe, String> {
        toml::from_str(&format!("probe = {text}"))
            .map(|holder: Holder| holder.probe)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn every_kind_of_probe_is_read_from_toml_and_survives_json() {
        for text in [
            "{ mariadb = { socket = '/run/db/mysqld.sock' } }",
            "{ mysql = { address = '[::1]:3306', user = 'probe', password_file = '/etc/p', statement = 'SELECT 2', write_table = 'a.b' } }",
            "{ postgresql = { socket = '/run/postgresql', port = 5433, database = 'app', write_table = 'public.p' } }",
            "{ postgresql = { address = 'db.example:5432' } }",
            "{ tcp = '127.0.0.1:22' }",
            "{ tcp = { address = '127.0.0.1:22', expect = 'SSH-' } }",
            "{ http = 'http://127.0.0.1:8080/health' }",
            "{ http = { url = 'http://[::1]/', status = '204', expect = 'ok' } }",
            "{ http = { url = 'https://db.example/', ca_file = '/etc/ca.pem' } }",
            "{ mariadb = { address = 'a:1', tls = true } }",
            "{ postgresql = { address = 'a:1', tls = true, ca_file = '/etc/ca.pem' } }",
            "{ command = ['/bin/true'] }",
        ] {
            let probe = read(text).unwrap();
            assert_eq!(probe.validate("probe"), Ok(()), "{text}");
            let json = serde_json::to_string(&probe).unwrap();
            assert_eq!(serde_json::from_str::<Probe>(&json).unwrap(), probe, "{json}");
        }
    }

    #[test]
    fn a_probe_with_two_kinds_none_or_an_unknown_field_is_refused() {
        for text in [
            "{}",
            "{ tcp = '127.0.0.1:22', command = ['/bin/true'] }",
            "{ oracle = { socket = '/s' } }",
            "{ mariadb = { socket = '/s', pasword_file = '/p' } }",
            "{ mariadb = { socket = '/s', password = 'secret' } }",
            "{ postgresql = { socket = '/s', db = 'x' } }",
            "{ tcp = { address = '127.0.0.1:22', expects = 'SSH' } }",
            "{ tcp = 22 }",
            "{ http = { status = '200' } }",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_fault_of_a_probe_is_refused_with_its_field_and_a_remedy() {
        for (text, field) in [
            ("{ mariadb = {} }", "probe.mariadb"),
            ("{ mariadb = { socket = '/s', address = 'a:1' } }", "probe.mariadb"),
            ("{ mariadb = { socket = 's' } }", "probe.mariadb.socket"),
            ("{ mariadb = { address = '127.0.0.1' } }", "probe.mariadb.address"),
            ("{ mariadb = { address = '127.0.0.1:0' } }", "probe.mariadb.address"),
            ("{ mariadb = { address = ':3306' } }", "probe.mariadb.address"),
            ("{ mysql = { socket = '/s', user = '' } }", "probe.mysql.user"),
            ("{ mysql = { socket = '/s', user = \"a\\u0000b\" } }", "probe.mysql.user"),
            ("{ mysql = { socket = '/s', password_file = 'p' } }", "probe.mysql.password_file"),
            ("{ mysql = { socket = '/s', statement = ' ' } }", "probe.mysql.statement"),
            ("{ mysql = { socket = '/s', write_table = 'probe' } }", "probe.mysql.write_table"),
            ("{ mysql = { socket = '/s', write_table = 'a.b`; DROP' } }", "probe.mysql.write_table"),
            ("{ mysql = { socket = '/s', write_table = 'a.b.c' } }", "probe.mysql.write_table"),
            ("{ postgresql = { socket = '/s', port = 0 } }", "probe.postgresql.port"),
            ("{ postgresql = { address = 'a:1', port = 5432 } }", "probe.postgresql.port"),
            ("{ postgresql = { socket = '/s', database = '' } }", "probe.postgresql.database"),
            ("{ tcp = '22' }", "probe.tcp.address"),
            ("{ tcp = { address = 'a:1', expect = '' } }", "probe.tcp.expect"),
            ("{ mysql = { socket = '/s', tls = true } }", "probe.mysql.tls"),
            ("{ mysql = { address = 'a:1', ca_file = '/p' } }", "probe.mysql.ca_file"),
            ("{ mysql = { address = 'a:1', tls = true, ca_file = 'p' } }", "probe.mysql.ca_file"),
            ("{ postgresql = { socket = '/s', tls = true } }", "probe.postgresql.tls"),
            ("{ postgresql = { address = 'a:1', ca_file = '/p' } }", "probe.postgresql.ca_file"),
            ("{ http = { url = 'http://a/', ca_file = '/p' } }", "probe.http.ca_file"),
            ("{ http = 'https:///' }", "probe.http.url"),
            ("{ http = 'http://' }", "probe.http.url"),
            ("{ http = 'http://a:0/' }", "probe.http.url"),
            ("{ http = 'http://user:secret@a/' }", "probe.http.url"),
            ("{ http = \"http://a/\\r\\nX: y\" }", "probe.http.url"),
            ("{ http = { url = 'http://a/', status = '99' } }", "probe.http.status"),
            ("{ http = { url = 'http://a/', status = '399-200' } }", "probe.http.status"),
            ("{ command = [] }", "probe.command"),
        ] {
            let error = read(text).unwrap().validate("probe").unwrap_err();
            assert_eq!(error.field, field, "{text}: {error}");
            assert!(!error.remedy.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_url_has_a_host_a_port_and_a_path() {
        let target = |url: &str| {
            HttpProbe::from(url)
                .target()
                .map(|target| (target.host.to_owned(), target.port, target.path.to_owned()))
        };
        assert_eq!(target("http://a"), Some(("a".into(), 80, "/".into())));
        assert_eq!(target("http://a:8080/x?y=1"), Some(("a".into(), 8080, "/x?y=1".into())));
        assert_eq!(target("http://[::1]/"), Some(("::1".into(), 80, "/".into())));
        assert_eq!(target("http://[::1]:81"), Some(("::1".into(), 81, "/".into())));
        assert_eq!(target("https://a/x"), Some(("a".into(), 443, "/x".into())));
        assert_eq!(target("https://a:8443/"), Some(("a".into(), 8443, "/".into())));
        for bad in ["http://[::1", "http://a:x/", "http://a?b", "ftp://a/", "a", "http://a/#b"] {
            assert_eq!(target(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_socket_of_postgresql_is_named_by_its_port() {
        let probe = PostgresqlProbe { socket: Some("/run/postgresql/".into()), ..PostgresqlProbe::default() };
        assert_eq!(probe.socket_path().unwrap(), "/run/postgresql/.s.PGSQL.5432");
        let probe = PostgresqlProbe { port: Some(5433), ..probe };
        assert_eq!(probe.socket_path().unwrap(), "/run/postgresql/.s.PGSQL.5433");
    }
}
