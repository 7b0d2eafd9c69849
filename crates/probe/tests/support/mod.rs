//! Real database servers in temporary directories, for as long as a test lasts.

#![allow(dead_code)]

use mainstay_ha::Probe;
use mainstay_probe::{Outcome, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, User, chown};
use std::fs::{self, File, Permissions};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take to start, on a machine that has other work.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Limit of probes that have to succeed.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Limit of probes that have to run into it.
pub const SHORT: Duration = Duration::from_secs(1);
/// How much later than its limit a probe may end, on a machine that has other work.
pub const SLACK: Duration = Duration::from_secs(5);

/// How long a server may take to end, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A server, ended with the test.
pub struct Server {
    child: Child,
    end: Signal,
    pub directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The data is thrown away, so the server need not end in order.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(self.end);
            self.signal(Signal::SIGCONT);
        }
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < END_LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal);
    }

    /// A file with a password that only the probe's user may read.
    pub fn password_file(&self, name: &str, password: &str) -> String {
        let path = self.path(name);
        fs::write(&path, format!("{password}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Waits until a probe gives what is asked for.
    pub fn wait_for(&mut self, probe: &str, wanted: &str) -> Outcome {
        let began = Instant::now();
        loop {
            let outcome = look(probe);
            if outcome.name() == wanted {
                return outcome;
            }
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || began.elapsed() > START_LIMIT {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                panic!("the server is not {wanted}: {outcome:?} {ended:?}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Makes the probe that the JSON describes.
pub fn look(probe: &str) -> Outcome {
    look_within(probe, LIMIT)
}

pub fn look_within(probe: &str, limit: Duration) -> Outcome {
    let probe: Probe = serde_json::from_str(probe).unwrap_or_else(|error| panic!("{probe}: {error}"));
    probe.validate("probe").unwrap();
    let began = Instant::now();
    let outcome = run(&probe, limit);
    assert!(began.elapsed() < limit + SLACK, "{outcome:?} took {:?}", began.elapsed());
    assert!(!outcome.words().contains('\n'), "{outcome:?}");
    outcome
}

pub fn healthy(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Healthy(_)), "{outcome:?}");
}

/// Checks that the outcome is unhealthy and says all of this.
pub fn unhealthy(outcome: &Outcome, says: &[&str]) {
    assert!(matches!(outcome, Outcome::Unhealthy(_)), "{outcome:?}");
    for part in says {
        assert!(outcome.words().contains(part), "{part:?} is missing in {outcome:?}");
    }
}

/// An authority, and a certificate of it for 127.0.0.1, in a directory of their own. Every user may
/// read them.
pub struct Certificates {
    directory: TempDir,
}

impl Certificates {
    pub fn make() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let made = Self { directory };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        for authority in ["ca", "other-ca"] {
            let (cert, file) = (format!("{authority}.pem"), format!("{authority}.key"));
            made.openssl(
                &[&["req", "-x509", "-subj", "/CN=authority", "-keyout", &file, "-out", &cert], &key[..]]
                    .concat(),
            );
        }
        made.openssl(
            &[&["req", "-subj", "/CN=server", "-keyout", "key.pem", "-out", "server.csr"], &key[..]].concat(),
        );
        fs::write(made.directory.path().join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
        made.openssl(&[
            "x509",
            "-req",
            "-in",
            "server.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "names",
            "-out",
            "cert.pem",
        ]);
        made
    }

    fn openssl(&self, arguments: &[&str]) {
        let mut command = Command::new("openssl");
        must(command.current_dir(self.directory.path()).args(arguments));
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The certificate and the key of the server, for every user to read.
    pub fn for_server(&self) -> (String, String) {
        let key = self.path("key.pem");
        fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        (self.path("cert.pem"), key)
    }
}

/// Name of the user that runs the tests.
pub fn me() -> String {
    User::from_uid(Uid::effective()).unwrap().unwrap().name
}

/// An address of this machine that is not a loopback one. `None`, with a message, if it has none.
pub fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent: the kernel only chooses the address from which it would be.
    let chosen = socket.connect("198.51.100.1:9").and_then(|()| socket.local_addr());
    let address = chosen.ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback());
    if address.is_none() {
        eprintln!("skipped: this machine has no network");
    }
    address.map(|ip| ip.to_string())
}

/// A port that was free a moment ago.
pub fn free_port(host: &str) -> u16 {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port()
}

/// The program in the search path or in one of the directories.
fn program(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = directories.to_vec();
    all.extend(std::env::split_paths(&path));
    all.into_iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}

fn must(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
}

/// A MariaDB server with its socket at `sock`, which has run these statements. `None`, with a
/// message, where there is no MariaDB.
pub fn mariadb(sql: &str, options: &[String]) -> Option<Server> {
    let directories = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/libexec")];
    let (Some(server), Some(install)) =
        (program("mariadbd", &directories), program("mariadb-install-db", &[]))
    else {
        eprintln!("skipped: MariaDB is not installed");
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let me = me();
    let first =
        format!("FLUSH PRIVILEGES;\nCREATE OR REPLACE USER '{me}'@localhost IDENTIFIED VIA unix_socket;\n");
    let grant = format!("GRANT ALL ON *.* TO '{me}'@localhost WITH GRANT OPTION;\n");
    fs::write(at("initial.sql"), first + &grant + sql).unwrap();
    let mut installing = Command::new(install);
    installing.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
    installing.arg(format!("--user={me}")).arg(format!("--datadir={}", at("data")));
    installing.arg(format!("--extra-file={}", at("initial.sql"))).env("TMPDIR", directory.path());
    must(&mut installing);
    let mut running = Command::new(server);
    running.args([
        "--no-defaults",
        &format!("--user={me}"),
        "--innodb-buffer-pool-size=16M",
        "--skip-log-bin",
    ]);
    running.arg(format!("--datadir={}", at("data"))).arg(format!("--socket={}", at("sock")));
    running.arg(format!("--pid-file={}", at("pid"))).arg(format!("--tmpdir={}", directory.path().display()));
    running.args(options).stdin(Stdio::null()).stdout(Stdio::null());
    let child = running.stderr(File::create(at("log")).unwrap()).spawn().unwrap();
    let mut server = Server { child, end: Signal::SIGKILL, directory };
    let probe = format!(r#"{{"mariadb":{{"socket":"{}"}}}}"#, server.path("sock"));
    server.wait_for(&probe, "healthy");
    Some(server)
}

/// A MySQL server with its socket at `sock`, which has run these statements, of the programs in the
/// directory that MAINSTAY_MYSQL names (`scripts/mysql.sh`).
pub fn mysql(sql: &str, options: &[String]) -> Server {
    let programs = std::env::var_os("MAINSTAY_MYSQL").map(PathBuf::from);
    let program = programs.expect("MAINSTAY_MYSQL, as `make mysql-test` sets it").join("mysqld");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let me = me();
    let first = format!(
        "INSTALL PLUGIN auth_socket SONAME 'auth_socket.so';\nDROP USER IF EXISTS '{me}'@localhost;\n\
         CREATE USER '{me}'@localhost IDENTIFIED WITH auth_socket;\nGRANT ALL ON *.* TO '{me}'@localhost;\n"
    );
    fs::write(at("initial.sql"), first + sql).unwrap();
    let common = ["--no-defaults".into(), format!("--user={me}"), format!("--datadir={}", at("data"))];
    let mut making = Command::new(&program);
    making.args(&common).arg("--initialize-insecure").arg(format!("--init-file={}", at("initial.sql")));
    must(&mut making);
    let mut running = Command::new(&program);
    running.args(common).args(["--secure-file-priv=NULL", "--mysqlx=OFF", "--disable-log-bin"]);
    running.arg(format!("--socket={}", at("sock"))).arg(format!("--pid-file={}", at("pid")));
    running.args(options).stdin(Stdio::null()).stdout(Stdio::null());
    let child = running.stderr(File::create(at("log")).unwrap()).spawn().unwrap();
    let mut server = Server { child, end: Signal::SIGKILL, directory };
    let probe = format!(r#"{{"mysql":{{"socket":"{}"}}}}"#, server.path("sock"));
    server.wait_for(&probe, "healthy");
    server
}

/// The user that PostgreSQL runs as: it refuses root.
fn postgres_user() -> Option<(Uid, Gid)> {
    if !Uid::effective().is_root() {
        return Some((Uid::effective(), Gid::effective()));
    }
    User::from_name("postgres").ok().flatten().map(|user| (user.uid, user.gid))
}

/// Access rules of the test's server: this user by its name, others by passwords.
const RULES: &str = "local all clear password
local all old md5
local all ME peer
local all all scram-sha-256
host all all 127.0.0.1/32 scram-sha-256
";

/// A data directory, and the command that runs a server on it.
pub struct PostgresqlData {
    directory: TempDir,
    program: PathBuf,
    user: (Uid, Gid),
}

impl PostgresqlData {
    /// `None`, with a message, where there is no PostgreSQL.
    pub fn make() -> Option<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let directories: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
        let found = (program("initdb", &directories), program("postgres", &directories), postgres_user());
        let (Some(initdb), Some(program), Some(user)) = found else {
            eprintln!("skipped: PostgreSQL is not installed, or has no user");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(user.0), Some(user.1)).unwrap();
        // The probe's user may be another one.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let data = Self { directory, program, user };
        let mut making = data.as_user(&initdb);
        making.args(["--no-sync", "--locale=C", "--auth=scram-sha-256", "--username", &me()]);
        // A password is wanted, whether it is used or not.
        let password = data.path("initial");
        fs::write(&password, "initial").unwrap();
        must(making.arg("--pwfile").arg(&password).arg("--pgdata").arg(data.path("data")));
        fs::write(data.path("data/pg_hba.conf"), RULES.replace("ME", &me())).unwrap();
        Some(data)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn as_user(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory.path());
        if Uid::effective().is_root() {
            command.uid(self.user.0.as_raw()).gid(self.user.1.as_raw());
        }
        command
    }

    /// Makes a file in the data directory.
    pub fn write(&self, name: &str, content: &str) {
        let path = self.path("data").join(name);
        fs::write(&path, content).unwrap();
        chown(&path, Some(self.user.0), Some(self.user.1)).unwrap();
    }

    /// Starts the server, with its socket in the directory and at 127.0.0.1. Waits until a probe
    /// gives what is asked for.
    pub fn start(self, port: u16, options: &[&str], wanted: &str) -> Server {
        let mut running = self.as_user(&self.program);
        running.arg("-D").arg(self.path("data")).arg("-k").arg(self.directory.path());
        running.args(["-F", "-h", "127.0.0.1", "-p", &port.to_string()]);
        running.args(options.iter().flat_map(|option| ["-c", option]));
        let log = File::create(self.path("log")).unwrap();
        let child = running.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        // Killed, it would leave its children and its shared memory behind.
        let mut server = Server { child, end: Signal::SIGQUIT, directory: self.directory };
        let socket = server.directory.path().display().to_string();
        server.wait_for(&format!(r#"{{"postgresql":{{"socket":"{socket}","port":{port}}}}}"#), wanted);
        server
    }
}
