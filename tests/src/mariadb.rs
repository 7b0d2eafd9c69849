//! MariaDB as the tests and the demo run it: Debian's server, the same settings wherever it runs.

use crate::lab::{CLIENT, Lab, built};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

pub const USER: &str = "mainstay";
pub const PASSWORD: &str = "mainstay";

/// Durable commits, direct I/O, and a buffer pool that holds the data set. Everything else is the
/// server's own default; the binary log is off.
pub const SETTINGS: &[&str] = &[
    "--no-defaults",
    "--user=mysql",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-buffer-pool-size=256M",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--max-connections=200",
];

/// The whole command of a server whose data lies in `<root>/data`. It listens on all addresses of its
/// node, so that it need not know which one floats.
#[must_use]
pub fn command(root: &str, port: u16) -> Vec<String> {
    let data = format!("{root}/data");
    let own = [
        format!("--datadir={data}"),
        format!("--socket={data}/mariadb.sock"),
        format!("--pid-file={data}/mariadb.pid"),
        format!("--port={port}"),
    ];
    let fixed = SETTINGS.iter().map(|setting| (*setting).to_owned());
    std::iter::once("/usr/sbin/mariadbd".to_owned()).chain(fixed).chain(own).collect()
}

/// The script that makes an empty data directory with the tests' user and tables, unless there is one.
/// A data directory appears under its name only when it is whole and on disk.
#[must_use]
pub fn prepare_script(root: &str, sql: &Path) -> String {
    format!(
        "test -d {root}/data && exit 0\n\
         rm -rf {root}/data.new\n\
         mariadb-install-db --no-defaults --user=mysql --datadir={root}/data.new --skip-test-db \
         --skip-name-resolve --auth-root-authentication-method=normal --extra-file={sql} >/dev/null\n\
         sync -f {root}\n\
         mv {root}/data.new {root}/data\n\
         sync -f {root}\n",
        sql = sql.display()
    )
}

/// Files that every node reads from the lab's directory.
pub struct Files {
    pub sql: PathBuf,
}

impl Files {
    /// # Errors
    /// When the lab's directory cannot be written.
    pub fn write(lab: &Lab) -> Result<Self> {
        let sql = lab.dir().join("initial.sql");
        let text = format!(
            "FLUSH PRIVILEGES;\n\
             CREATE DATABASE sbtest;\n\
             CREATE DATABASE ledger;\n\
             CREATE TABLE {} (number BIGINT UNSIGNED PRIMARY KEY, content CHAR(64) NOT NULL) ENGINE=InnoDB;\n\
             CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n\
             GRANT ALL ON *.* TO '{USER}'@'%';\n",
            crate::ledger::TABLE
        );
        std::fs::write(&sql, text).with_context(|| sql.display().to_string())?;
        Ok(Self { sql })
    }

    /// The script of [`prepare_script`] as a file that takes no arguments.
    ///
    /// # Errors
    /// When the lab's directory cannot be written.
    pub fn prepare(&self, lab: &Lab, name: &str, root: &str) -> Result<PathBuf> {
        let path = lab.dir().join(format!("prepare-{name}.sh"));
        let text = format!("set -e\n{}", prepare_script(root, &self.sql));
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// A database on a resource, with a floating address.
pub struct Service<'a> {
    pub name: &'a str,
    pub resource: &'a str,
    pub vip: &'a str,
    pub port: u16,
}

impl Service<'_> {
    #[must_use]
    pub fn root(&self) -> String {
        format!("/srv/{}", self.name)
    }

    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.vip, self.port)
    }

    /// The service file.
    #[must_use]
    pub fn toml(&self, prepare: &Path) -> String {
        let root = self.root();
        let words = |words: &[String]| {
            let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("[{}]", quoted.join(", "))
        };
        let prepare = ["sh".to_owned(), prepare.display().to_string()];
        format!(
            "name = \"{name}\"\n\
             resource = \"{resource}\"\n\
             \n\
             [mount]\n\
             volume = 0\n\
             path = \"{root}\"\n\
             fstype = \"xfs\"\n\
             mkfs = true\n\
             \n\
             [[process]]\n\
             name = \"mariadb\"\n\
             prepare = {prepare}\n\
             command = {command}\n\
             ready = {{ tcp = \"127.0.0.1:{port}\" }}\n\
             start_timeout_s = 60\n\
             stop_timeout_s = 30\n\
             \n\
             [vip]\n\
             address = \"{vip}/24\"\n",
            name = self.name,
            resource = self.resource,
            prepare = words(&prepare),
            command = words(&command(&root, self.port)),
            port = self.port,
            vip = self.vip,
        )
    }

    /// Writes the service file and applies it.
    ///
    /// # Errors
    /// When the service is refused.
    pub fn apply(&self, lab: &Lab, files: &Files) -> Result<()> {
        let prepare = files.prepare(lab, self.name, &self.root())?;
        lab.apply_service(self.name, &self.toml(&prepare))
    }
}

/// A client program of the tests, run to its end in the lab's client network.
///
/// # Errors
/// When it fails.
pub fn client(lab: &Lab, words: &[&str]) -> Result<String> {
    let ledger = built("ledger")?;
    let program = ledger.to_string_lossy();
    lab.exec(CLIENT, &[&[&*program][..], words].concat())
}
