//! `mainstay probe`: one look at whether a program answers.
//!
//! Its command line is one of its own, because `--socket` is the server's here, and the agent's in
//! all other commands.

use crate::output::{self, Output};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use mainstay_ha::{HttpProbe, MysqlProbe, PROBE_TIMEOUT_S, PostgresqlProbe, Probe, TcpProbe};
use mainstay_types::duration;
use std::ffi::OsString;
use std::time::Duration;

const EXIT_CODES: &str = "Output: one line with the reason.

Exit codes:
  0   healthy
  1   unhealthy
  2   wrong command line; no probe was made
  75  recovering: the server says that it is starting up or recovering from a crash";

const MYSQL_EXAMPLES: &str = "Examples:
  mainstay probe mariadb --socket /run/mysqld/mysqld.sock --user mysql
  mainstay probe mysql --address 10.0.0.7:3306 --user probe --password-file /etc/mainstay/probe.password

An account for it, which needs no rights:
  MariaDB, by the user of the operating system:
    CREATE USER mysql@localhost IDENTIFIED VIA unix_socket;
  MySQL, by the user of the operating system:
    CREATE USER mysql@localhost IDENTIFIED WITH auth_socket;
  By a password:
    CREATE USER probe@'10.0.0.%' IDENTIFIED BY '...';
For --write-table mainstay.probe in addition:
    CREATE DATABASE mainstay;
    GRANT CREATE, INSERT, DELETE ON mainstay.probe TO mysql@localhost;

Logins by unix_socket, auth_socket, mysql_native_password and caching_sha2_password work; that by
ed25519, parsec, PAM or with TLS does not yet. Over a network, caching_sha2_password works only while
the server has the password in its cache; use a socket.";

const POSTGRESQL_EXAMPLES: &str = "Examples:
  mainstay probe postgresql --socket /run/postgresql --user postgres
  mainstay probe postgresql --address 10.0.0.7:5432 --user probe --password-file /etc/mainstay/probe.password

An account for it, which needs no rights: CREATE ROLE probe LOGIN PASSWORD '...';
For --write-table mainstay.probe in addition: CREATE SCHEMA mainstay AUTHORIZATION probe;

Logins by trust, peer, scram-sha-256 and md5 work, and by password through a socket; that by GSSAPI,
certificate or with TLS does not yet.";

const TCP_HELP: &str = "The kernel accepts connections on behalf of a process that stands still. So without --expect this \
     probe only shows that something listens. For a database, use the probe of its kind.";

/// Look once whether a program answers.
///
/// A probe of a database logs in, runs a statement and logs out in an orderly way, so it never
/// counts as a broken connection.
#[derive(Parser, Debug)]
#[command(
    name = "mainstay probe",
    bin_name = "mainstay probe",
    after_help = EXIT_CODES,
    arg_required_else_help = true
)]
pub struct ProbeArgs {
    /// Time for the whole probe, in seconds. After it the program counts as unhealthy.
    #[arg(long, global = true, default_value_t = PROBE_TIMEOUT_S, value_name = "SECONDS", value_parser = timeout)]
    timeout_s: u64,
    /// Print the result as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// The probe of a service file as JSON, in the place of a kind. The agent gives this.
    #[arg(long, hide = true, value_name = "JSON")]
    spec: Option<String>,
    #[command(subcommand)]
    kind: Option<Kind>,
}

#[derive(Subcommand, Debug)]
enum Kind {
    /// Log in to MariaDB, run a statement and log out.
    #[command(after_help = MYSQL_EXAMPLES)]
    Mariadb(MysqlArgs),
    /// Log in to MySQL, run a statement and log out.
    #[command(after_help = MYSQL_EXAMPLES)]
    Mysql(MysqlArgs),
    /// Log in to PostgreSQL, run a statement and log out.
    #[command(after_help = POSTGRESQL_EXAMPLES)]
    Postgresql(PostgresqlArgs),
    /// Open a connection and close it.
    #[command(after_help = TCP_HELP)]
    Tcp {
        /// Where the program listens, for example 127.0.0.1:22.
        #[arg(value_name = "HOST:PORT")]
        address: String,
        /// First bytes that the program sends by itself, for example SSH-.
        #[arg(long, value_name = "TEXT")]
        expect: Option<String>,
    },
    /// Ask for a page, with TLS if its URL begins with https. Redirects are not followed.
    Http {
        /// The page, for example http://127.0.0.1:8080/health.
        url: String,
        /// A status or a range of them that counts as healthy.
        #[arg(long, default_value = "200-399", value_name = "STATUS")]
        status: String,
        /// Text that the first 64 KiB of the page contain.
        #[arg(long, value_name = "TEXT")]
        expect: Option<String>,
        /// File with the certificates of an authority, in PEM. The server's certificate must come
        /// from it and name the host of the URL [default: any certificate is taken]
        #[arg(long, value_name = "FILE")]
        ca_file: Option<String>,
    },
    /// Run a program without a shell. Exit code 0 is healthy, and every other one is unhealthy.
    Command {
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
        command: Vec<String>,
    },
}

#[derive(Args, Debug)]
struct LoginArgs {
    /// Account of the database [default: the user that runs this command]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File that holds the password and nothing else. It must not be readable by others. Without
    /// it no password is sent.
    #[arg(long, value_name = "FILE")]
    password_file: Option<String>,
    /// Log in through TLS 1.3 only.
    #[arg(long, requires = "address")]
    tls: bool,
    /// File with the certificates of an authority, in PEM. The server's certificate must come from
    /// it and name the host of the address [default: any certificate is taken]
    #[arg(long, requires = "tls", value_name = "FILE")]
    ca_file: Option<String>,
    /// One statement to run. Its rows are not looked at.
    #[arg(long, default_value = "SELECT 1", value_name = "SQL")]
    statement: String,
}

#[derive(Args, Debug)]
struct MysqlArgs {
    /// Socket of the server. Either this or --address.
    #[arg(long, value_name = "PATH", required_unless_present = "address", conflicts_with = "address")]
    socket: Option<String>,
    /// Where the server listens.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    #[command(flatten)]
    login: LoginArgs,
    /// Table for a row that the probe replaces, to see that the server can write. The probe makes
    /// the table; the database must exist. A lock of the whole server, as backups take it, makes
    /// this probe fail. [default: nothing is written]
    #[arg(long, value_name = "DATABASE.TABLE")]
    write_table: Option<String>,
}

#[derive(Args, Debug)]
struct PostgresqlArgs {
    /// Directory of the server's socket. Either this or --address.
    #[arg(long, value_name = "DIR", required_unless_present = "address", conflicts_with = "address")]
    socket: Option<String>,
    /// Where the server listens.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Port that names the socket in its directory [default: 5432]
    #[arg(long, value_name = "PORT", conflicts_with = "address")]
    port: Option<u16>,
    #[command(flatten)]
    login: LoginArgs,
    /// Database to log in to.
    #[arg(long, default_value = "postgres", value_name = "NAME")]
    database: String,
    /// Table for a row that the probe replaces, to see that the server can write. The probe makes
    /// the table; the schema must exist. [default: nothing is written]
    #[arg(long, value_name = "SCHEMA.TABLE")]
    write_table: Option<String>,
}

/// At most as long as any step of a service.
fn timeout(text: &str) -> Result<u64, String> {
    let seconds = duration::parse_s(text)?;
    if (1..=3600).contains(&seconds) { Ok(seconds) } else { Err("use 1 to 3600 seconds".into()) }
}

impl From<MysqlArgs> for MysqlProbe {
    fn from(args: MysqlArgs) -> Self {
        let MysqlArgs { socket, address, login, write_table } = args;
        let LoginArgs { user, password_file, tls, ca_file, statement } = login;
        Self { socket, address, user, password_file, statement, write_table, tls, ca_file }
    }
}

impl From<PostgresqlArgs> for PostgresqlProbe {
    fn from(args: PostgresqlArgs) -> Self {
        let PostgresqlArgs { socket, address, port, login, database, write_table } = args;
        let LoginArgs { user, password_file, tls, ca_file, statement } = login;
        Self { socket, address, port, user, password_file, database, statement, write_table, tls, ca_file }
    }
}

impl From<Kind> for Probe {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Mariadb(args) => Self::Mariadb(args.into()),
            Kind::Mysql(args) => Self::Mysql(args.into()),
            Kind::Postgresql(args) => Self::Postgresql(args.into()),
            Kind::Tcp { address, expect } => Self::Tcp(TcpProbe { address, expect }),
            Kind::Http { url, status, expect, ca_file } => {
                Self::Http(HttpProbe { url, status, expect, ca_file })
            }
            Kind::Command { command } => Self::Command(command),
        }
    }
}

/// A probe from the command line, its time, and how the result is printed.
#[derive(Debug)]
pub struct Chosen {
    probe: Probe,
    limit: Duration,
    json: bool,
    /// The agent asked, which reads the outcome from the exit code: the reason alone.
    bare: bool,
}

/// Reads the words after `mainstay probe`.
pub fn parse(words: &[OsString]) -> Result<Chosen, clap::Error> {
    let name = OsString::from("mainstay probe");
    let args = ProbeArgs::try_parse_from([&name].into_iter().chain(words))?;
    let wrong = |kind, text: String| ProbeArgs::command().error(kind, text);
    let bare = args.spec.is_some();
    let probe: Probe = match (args.spec, args.kind) {
        (Some(json), None) => serde_json::from_str(&json)
            .map_err(|error| wrong(ErrorKind::ValueValidation, format!("--spec is no probe: {error}")))?,
        (None, Some(kind)) => kind.into(),
        (Some(_), Some(_)) => {
            return Err(wrong(
                ErrorKind::ArgumentConflict,
                "--spec has a kind, so leave the other out".into(),
            ));
        }
        (None, None) => {
            return Err(wrong(
                ErrorKind::MissingSubcommand,
                "name a kind of probe, for example mariadb".into(),
            ));
        }
    };
    probe.validate("probe").map_err(|error| {
        let text = format!("{}\n  what to do: {}", error, error.remedy);
        wrong(ErrorKind::ValueValidation, text)
    })?;
    Ok(Chosen { probe, limit: Duration::from_secs(args.timeout_s), json: args.json, bare })
}

/// The words after `mainstay probe` if help on it is asked for by `mainstay help probe`.
pub fn of_help(words: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut words = words.peekable();
    words.next().filter(|word| word == "help")?;
    words.next().filter(|word| word == "probe")?;
    Some(words.chain(["--help".into()]).collect())
}

/// Makes the probe and returns its exit code.
pub fn run(words: &[OsString], output: Output) -> u8 {
    let chosen = parse(words).unwrap_or_else(|error| error.exit());
    let outcome = mainstay_probe::run(&chosen.probe, chosen.limit);
    if chosen.json || output.json {
        let json = serde_json::json!({ "outcome": outcome.name(), "reason": outcome.words() });
        output::line(&json.to_string());
    } else if chosen.bare {
        output::line(outcome.words());
    } else {
        output::line(&format!("{}: {}", outcome.name(), outcome.words()));
    }
    outcome.exit() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(line: &str) -> Result<Chosen, clap::Error> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_and_the_service_file_give_the_same_probe() {
        for (line, json) in [
            ("mariadb --socket /s", r#"{"mariadb":{"socket":"/s"}}"#),
            (
                "mysql --address a:1 --user u --password-file /p --write-table d.t",
                r#"{"mysql":{"address":"a:1","user":"u","password_file":"/p","write_table":"d.t"}}"#,
            ),
            (
                "postgresql --socket /r --port 5433 --database d",
                r#"{"postgresql":{"socket":"/r","port":5433,"database":"d"}}"#,
            ),
            ("tcp a:1 --expect SSH-", r#"{"tcp":{"address":"a:1","expect":"SSH-"}}"#),
            ("http http://a/ --status 204", r#"{"http":{"url":"http://a/","status":"204"}}"#),
            ("command /bin/test -e /x", r#"{"command":["/bin/test","-e","/x"]}"#),
        ] {
            let typed = chosen(line).unwrap();
            let given = parse(&["--spec".into(), json.into()]).unwrap();
            assert_eq!(typed.probe, given.probe, "{line}");
            assert_eq!(typed.limit, Duration::from_secs(PROBE_TIMEOUT_S));
            assert!(given.bare && !typed.bare);
        }
        let late = chosen("tcp a:1 --timeout-s 2 --json").unwrap();
        assert_eq!((late.limit, late.json), (Duration::from_secs(2), true));
    }

    #[test]
    fn wrong_use_of_a_probe_ends_with_exit_code_2() {
        for line in [
            "",
            "oracle",
            "mariadb",
            "mariadb --socket /s --address a:1",
            "mariadb --socket relative",
            "mariadb --socket /s --write-table t",
            "mariadb --socket /s --timeout-s 0",
            "mariadb --socket /s --timeout-s 3601",
            "postgresql --address a:1 --port 5432",
            "tcp 22",
            "http ftp://a/",
            "http http://a/ --ca-file /p",
            "mariadb --socket /s --tls",
            "mariadb --address a:1 --ca-file /p",
            "command",
            "--spec {}",
            "--spec {\"tcp\":\"a:1\"} tcp a:1",
        ] {
            let error = chosen(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }

    #[test]
    fn help_on_a_kind_of_probe_is_found_by_both_ways() {
        let words = |line: &str| of_help(line.split_whitespace().map(OsString::from));
        assert_eq!(words("help probe mariadb"), Some(vec!["mariadb".into(), "--help".into()]));
        assert_eq!(words("help service"), None);
        let help = chosen("mariadb --help").unwrap_err();
        assert!(help.exit_code() == 0 && help.to_string().contains("unix_socket"), "{help}");
    }
}
