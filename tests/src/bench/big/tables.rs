//! The tables that every set-up of a big case begins with. They are made once, by servers of this
//! machine outside of any lab, and copied into each set-up: a copy takes seconds, the making a
//! minute or more, and all set-ups begin with the same pages.

use crate::bench::ready::BigNeeds;
use crate::local::setpriv;
use crate::{command, interrupt, mariadb, wait_for};
use anyhow::{Context, Result, ensure};
use mainstay_bench::big;
use mainstay_bench::sysbench::Server;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where they lie meanwhile.
const DIR: &str = "/var/tmp/mainstay-bench-tables";
/// Longest time for filling the tables, and for a server to end.
const LIMIT: Duration = Duration::from_secs(900);
/// Longest time for a server to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A program that serves tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    MariaDb,
    PostgreSql,
}

impl Engine {
    /// A short name without spaces, for directories and devices.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::PostgreSql => "postgresql",
        }
    }

    fn dir(self) -> String {
        format!("{DIR}/{}", self.name())
    }

    /// A script that copies the tables into `<root>/data`, unless they are there. With `fill`, the
    /// whole file system was written before, so that no later write has to find space first.
    #[must_use]
    pub fn copy_script(self, root: &str, fill: bool) -> String {
        let fill = if fill {
            format!(
                "dd if=/dev/zero of={root}/fill bs=4M oflag=direct status=none || true; rm -f {root}/fill"
            )
        } else {
            String::new()
        };
        let user = match self {
            Self::MariaDb => "mysql",
            Self::PostgreSql => "postgres",
        };
        format!(
            "set -e
install -d -m 1777 {root}/tmp
install -d -o {user} {root}/run
rm -f {root}/data/postmaster.pid
test -d {root}/data && exit 0
rm -rf {root}/data.new
{fill}
cp -a --sparse=never {}/data {root}/data.new
sync -f {root}
mv {root}/data.new {root}/data
sync -f {root}
",
            self.dir()
        )
    }
}

/// Directory with the rows to be loaded.
#[must_use]
pub fn rows_dir() -> String {
    format!("{}/rows", Engine::MariaDb.dir())
}

/// The tables; dropped, they are removed.
pub struct Tables;

impl Drop for Tables {
    fn drop(&mut self) {
        if let Err(error) = remove() {
            eprintln!("{error:#}");
        }
    }
}

/// Removes them; succeeds when there are none.
///
/// # Errors
/// When something remains.
pub fn remove() -> Result<()> {
    match std::fs::remove_dir_all(DIR) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(format!("remove {DIR}"))
        }
        _ => Ok(()),
    }
}

/// Makes what the cases need.
///
/// # Errors
/// When a program is missing or fails.
pub fn make(needs: BigNeeds) -> Result<Option<Tables>> {
    if !needs.any() {
        return Ok(None);
    }
    remove()?;
    interrupt::also_remove(DIR.into());
    let tables = Tables;
    if needs.mariadb {
        println!("making the tables of MariaDB");
        make_mariadb()?;
    }
    if needs.postgresql {
        println!("making the tables of PostgreSQL");
        make_postgresql()?;
    }
    Ok(Some(tables))
}

fn shell(script: &str) -> Result<String> {
    Ok(command::output(Command::new("sh").args(["-ec", script]), LIMIT)?)
}

/// A server that ends with this program in any case.
struct Running(Child);

impl Running {
    fn start(words: &[String], log: &Path) -> Result<Self> {
        let file = std::fs::File::create(log).with_context(|| log.display().to_string())?;
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=KILL").args(words).stdin(Stdio::null());
        command.stdout(file.try_clone().context("log of a server")?).stderr(file);
        Ok(Self(command.spawn().with_context(|| format!("start {}", words.join(" ")))?))
    }

    /// Asks it to end in order, and waits.
    fn end(mut self, signal: &str) -> Result<()> {
        shell(&format!("kill -{signal} {}", self.0.id()))?;
        let ended =
            command::wait(&mut self.0, LIMIT)?.context("the server that made the tables does not end")?;
        ensure!(ended.success(), "the server that made the tables ended with {ended}");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the tables of MariaDB. They have to be durable only at the end, and the last shutdown
/// leaves nothing to purge.
fn make_mariadb() -> Result<()> {
    let root = Engine::MariaDb.dir();
    shell(&format!("install -d -o mysql {root}"))?;
    shell(&mariadb::prepare_script(&root)).context("make an empty database")?;
    let mut words = mariadb::command(&root, 0);
    let quick = [
        "--skip-networking",
        "--innodb-buffer-pool-size=1G",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=OFF",
        "--innodb-fast-shutdown=0",
    ];
    words.extend(quick.map(str::to_owned));
    let server = Running::start(&words, &PathBuf::from(format!("{root}/log")))?;
    let path = format!("{root}/data/mariadb.sock");
    let said = || std::fs::read_to_string(format!("{root}/log")).unwrap_or_default();
    wait_for("the server that makes the tables", START_LIMIT, || {
        let connected = std::os::unix::net::UnixStream::connect(&path);
        connected.map(drop).with_context(said)
    })?;
    let words = big::prepare(&Server::Socket { path, user: "root".into() });
    let printed = command::output(Command::new(&words[0]).args(&words[1..]), LIMIT)?;
    ensure!(!printed.contains("FATAL"), "sysbench made no tables: {printed}");
    let dir = rows_dir();
    shell(&format!("install -d -o mysql {dir}"))?;
    let socket = format!("--socket={root}/data/mariadb.sock");
    let words = ["--no-defaults", "--user=root", &socket, "--execute", &big::export(&dir)];
    command::output(Command::new("mariadb").args(words), LIMIT)?;
    server.end("TERM")
}

fn make_postgresql() -> Result<()> {
    let root = Engine::PostgreSql.dir();
    let programs = postgresql_programs()?;
    let programs = programs.display();
    // The lab's network is the only one that such a server can be reached from.
    shell(&format!(
        "install -d -o postgres {root}
cd {root}
{as_postgres} {programs}/initdb --pgdata={root}/data --data-checksums --encoding=UTF8 --locale=C --auth=trust --no-sync >/dev/null
echo 'host all all 0.0.0.0/0 trust' >>{root}/data/pg_hba.conf
",
        as_postgres = setpriv("postgres").join(" ")
    ))?;
    let settings = [
        "fsync=off".into(),
        "listen_addresses=".into(),
        "shared_buffers=256MB".into(),
        // The copies are without a log of the making.
        "wal_level=minimal".into(),
        "max_wal_senders=0".into(),
        "max_wal_size=256MB".into(),
        "min_wal_size=32MB".into(),
        format!("unix_socket_directories={root}"),
    ];
    let mut words = setpriv("postgres").to_vec();
    words.extend([format!("{programs}/postgres"), "-D".into(), format!("{root}/data")]);
    words.extend(settings.into_iter().flat_map(|setting: String| ["-c".into(), setting]));
    let server = Running::start(&words, &PathBuf::from(format!("{root}/log")))?;
    wait_for("the server that makes the tables", START_LIMIT, || {
        shell(&format!("psql --no-psqlrc --host={root} --username=postgres -c 'SELECT 1' 2>&1"))
    })?;
    let database = big::PGBENCH;
    shell(&format!(
        "psql --no-psqlrc --host={root} --username=postgres -c 'CREATE DATABASE {database}' >/dev/null
pgbench --initialize --quiet --scale={} --host={root} --username=postgres {database} 2>&1",
        big::SCALE
    ))?;
    server.end("INT")?;
    shell(&format!("sync -f {root}")).map(drop)
}

/// Where Debian has the programs of PostgreSQL, of the newest version that is there.
///
/// # Errors
/// When there are none.
pub fn postgresql_programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |name: &std::ffi::OsStr| name.to_str()?.parse::<u32>().ok();
    let found = versions.filter_map(|entry| Some((number(&entry.file_name())?, entry.path().join("bin"))));
    let newest = found.filter(|(_, path)| path.join("postgres").exists()).max();
    newest.map(|(_, path)| path).context("big-pgbench needs the package postgresql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_copied_whole_under_another_name_first() {
        let script = Engine::MariaDb.copy_script("/srv/x", false);
        let at = |part: &str| script.find(part).unwrap_or_else(|| panic!("{part} is not in {script}"));
        assert!(at("test -d /srv/x/data && exit 0") < at("cp -a --sparse=never"));
        assert!(at("sync -f /srv/x\nmv") < at("mv /srv/x/data.new /srv/x/data"));
        assert!(
            !script.contains("dd ")
                && Engine::PostgreSql.copy_script("/srv/x", true).contains("of=/srv/x/fill")
        );
    }
}
