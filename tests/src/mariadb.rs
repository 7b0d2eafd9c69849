//! MariaDB as the tests and the demo run it: Debian's server, the same settings wherever it runs.

use crate::lab::{CLIENT, Lab, built};
use anyhow::Result;
use mainstay_bench::database::SETTINGS;

pub const USER: &str = "mainstay";
pub const PASSWORD: &str = "mainstay";

/// How every file system under a database is mounted, with or without replication. Without
/// `lazytime` each write of a page logs the time of its file, and the file system's log is what a
/// mount after a power cut has to read.
pub const MOUNT_OPTIONS: &str = "noatime,lazytime";

/// The whole command of a server whose data lies in `<root>/data`. It listens on all addresses of
/// its node, so that it need not know which one floats.
#[must_use]
pub fn command(root: &str, port: u16) -> Vec<String> {
    let data = format!("{root}/data");
    let own = [
        format!("--datadir={data}"),
        // The nodes of a lab share the machine's /tmp, and servers with the same process id there
        // share names.
        format!("--tmpdir={root}/tmp"),
        format!("--socket={data}/mariadb.sock"),
        format!("--pid-file={data}/mariadb.pid"),
        format!("--port={port}"),
    ];
    let first = ["/usr/sbin/mariadbd", "--no-defaults", "--user=mysql"];
    first.iter().chain(SETTINGS).map(|&word| word.to_owned()).chain(own).collect()
}

/// A script that makes an empty data directory with the tests' user and tables, unless there is
/// one. A data directory appears under its name only when it is whole and on disk.
#[must_use]
pub fn prepare_script(root: &str) -> String {
    format!(
        "set -e
test -d {root}/data && exit 0
rm -rf {root}/data.new
install -d -m 1777 {root}/tmp
export TMPDIR={root}/tmp
cat >{root}/initial.sql <<SQL
FLUSH PRIVILEGES;
CREATE DATABASE sbtest;
CREATE DATABASE ledger;
CREATE TABLE {table} (number BIGINT UNSIGNED PRIMARY KEY, content CHAR(64) NOT NULL) ENGINE=InnoDB;
CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'%';
SQL
mariadb-install-db --no-defaults --user=mysql --datadir={root}/data.new --skip-test-db --skip-name-resolve \\
  --auth-root-authentication-method=normal --extra-file={root}/initial.sql >/dev/null
sync -f {root}
mv {root}/data.new {root}/data
sync -f {root}
",
        table = crate::ledger::TABLE
    )
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
    pub fn toml(&self) -> String {
        let root = self.root();
        let words = |words: &[String]| {
            let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("[{}]", quoted.join(", "))
        };
        let script = prepare_script(&root);
        format!(
            "name = \"{name}\"\n\
             resource = \"{resource}\"\n\
             \n\
             [mount]\n\
             volume = 0\n\
             path = \"{root}\"\n\
             fstype = \"xfs\"\n\
             options = \"{MOUNT_OPTIONS}\"\n\
             mkfs = true\n\
             \n\
             [[process]]\n\
             name = \"mariadb\"\n\
             prepare = [\"sh\", \"-c\", '''\n{script}''']\n\
             command = {command}\n\
             probe = {{ mariadb = {{ socket = \"{root}/data/mariadb.sock\" }} }}\n\
             start_timeout_s = 60\n\
             stop_timeout_s = 30\n\
             \n\
             [vip]\n\
             address = \"{vip}/24\"\n",
            name = self.name,
            resource = self.resource,
            command = words(&command(&root, self.port)),
            vip = self.vip,
        )
    }

    /// Writes the service file and applies it.
    ///
    /// # Errors
    /// When the service is refused.
    pub fn apply(&self, lab: &Lab) -> Result<()> {
        lab.apply_service(self.name, &self.toml())
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
