//! MariaDB as the benchmarks, the tests and the demo run it, and a temporary server in any
//! directory.

use crate::error::{Error, Result};
use crate::sysbench::Server;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Durable commits, direct I/O, and a buffer pool that holds the data set. Everything else is the
/// server's own default; the binary log is off.
pub const SETTINGS: &[&str] = &[
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-buffer-pool-size=256M",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--max-connections=200",
];

const START_LIMIT: Duration = Duration::from_secs(60);
const INSTALL_LIMIT: Duration = Duration::from_secs(120);
/// Longest path of a socket, from sockaddr_un.
const SOCKET_PATH_MAX: usize = 107;

/// A server that is reachable only from here, with its data in a directory made for it. Both are
/// gone when this is dropped.
pub struct Temporary {
    dir: PathBuf,
    server: Option<Child>,
}

impl Temporary {
    /// Makes a database below `parent` and starts its server.
    ///
    /// # Errors
    /// When it cannot be made, or does not answer in time.
    pub fn start(parent: &Path) -> Result<Self> {
        let parent =
            std::fs::canonicalize(parent).map_err(Error::system(format!("find {}", parent.display())))?;
        let dir = parent.join(format!("mainstay-bench.{}", std::process::id()));
        let mut temporary = Self { dir: dir.clone(), server: None };
        if temporary.socket().len() > SOCKET_PATH_MAX {
            let why = "its path is too long for a socket in it".into();
            return Err(Error::Unusable { path: parent.display().to_string(), why });
        }
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        if let Err(error) = made {
            // Another program made this directory, so it is not removed.
            temporary.dir = PathBuf::new();
            return Err(Error::system(format!("make {}", dir.display()))(error));
        }
        temporary.install()?;
        temporary.launch()?;
        Ok(temporary)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn socket(&self) -> String {
        self.path("sock")
    }

    fn install(&self) -> Result<()> {
        let (file, doing) = (self.path("initial.sql"), format!("write {}", self.path("initial.sql")));
        std::fs::write(&file, "CREATE DATABASE sbtest;\n").map_err(Error::system(doing))?;
        let mut command = Command::new("mariadb-install-db");
        command.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
        command.args(["--auth-root-authentication-method=normal", "--user=root"]);
        command.arg(format!("--datadir={}", self.path("data"))).arg(format!("--extra-file={file}"));
        command.env("TMPDIR", &self.dir);
        crate::command::output(&mut command, INSTALL_LIMIT).map(drop)
    }

    fn launch(&mut self) -> Result<()> {
        let log = std::fs::File::create(self.path("log"));
        let log = log.map_err(Error::system(format!("make {}", self.path("log"))))?;
        // Debian has the program in a directory that is not in a user's search path.
        let program =
            ["/usr/sbin/mariadbd", "/usr/libexec/mariadbd"].iter().find(|path| Path::new(path).exists());
        let mut command = Command::new(program.unwrap_or(&"mariadbd"));
        command.args(["--no-defaults", "--user=root", "--skip-networking"]).args(SETTINGS);
        command
            .arg(format!("--datadir={}", self.path("data")))
            .arg(format!("--tmpdir={}", self.dir.display()));
        command.arg(format!("--socket={}", self.socket())).arg(format!("--pid-file={}", self.path("pid")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.server = Some(command.spawn().map_err(Error::system("start mariadbd"))?);
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            if ended.is_some() || start.elapsed() > START_LIMIT {
                let said = std::fs::read_to_string(self.path("log")).unwrap_or_default();
                return Err(Error::SetUp(format!(
                    "mariadbd in {} does not answer:\n{said}",
                    self.dir.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// How sysbench reaches it.
    #[must_use]
    pub fn server(&self) -> Server {
        Server::Socket { path: self.socket(), user: "root".into() }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // The data is thrown away, so the server need not end in order.
            let _ = server.kill();
            let _ = server.wait();
        }
        if !self.dir.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
