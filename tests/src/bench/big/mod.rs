//! Databases ten times as large as their buffer pool: MariaDB with and without its doublewrite
//! buffer, and PostgreSQL; their loads, and the bytes that these write and send.

pub mod tables;

use crate::bench::mainstay::create;
use crate::bench::ready::{BigNeeds, Held, Program, Ready};
use crate::bench::{ADDRESSES, FIRST, NODES};
use crate::lab::{CLIENT, Lab};
use crate::local::{self, DISK, FileSystem, Server, setpriv};
use crate::{mariadb, sysbench, wait_for};
use anyhow::{Context, Result, ensure};
use mainstay_bench::bytes::{self, Counters};
use mainstay_bench::{Figures, big, command};
use std::process::Command;
use std::time::{Duration, Instant};
pub use tables::Engine;

/// Size of a volume with a big database: about 640 MiB of tables, the log, and what grows.
pub const MIB: u64 = 1280;
/// Load before a run is measured, in seconds.
const WARM_UP_S: u64 = 3;
/// Longest time for a database to be copied and to answer.
const LIMIT: Duration = Duration::from_secs(300);
/// A disk is quiet when it writes less than this in such a time.
const QUIET_BYTES: u64 = 1 << 20;
const QUIET_TIME: Duration = Duration::from_millis(500);
/// Longest wait for a quiet disk. A machine with other work never has one.
const QUIET_LIMIT: Duration = Duration::from_secs(20);

/// Addresses of the databases of a set-up, each as `address:port`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Addresses {
    mariadb: Option<String>,
    postgresql: Option<String>,
    /// How MariaDB was told to keep its pages whole.
    pages: Option<Pages>,
}

impl Addresses {
    #[must_use]
    pub fn bears(&self, load: big::Load) -> bool {
        self.of(load).is_some()
    }

    fn of(&self, load: big::Load) -> Option<&str> {
        let address = if load == big::Load::Pgbench { &self.postgresql } else { &self.mariadb };
        address.as_deref()
    }

    fn set(&mut self, engine: Engine, address: String, pages: Pages) {
        match engine {
            Engine::MariaDb => (self.mariadb, self.pages) = (Some(address), Some(pages)),
            Engine::PostgreSql => self.postgresql = Some(address),
        }
    }
}

/// How the pages of MariaDB are kept whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Each is written twice: the doublewrite buffer.
    Twice,
    /// Each is written once, into one cluster of the file system.
    Once,
}

impl Pages {
    #[must_use]
    pub fn file_system(self) -> FileSystem {
        match self {
            Self::Twice => FileSystem::Xfs,
            Self::Once => FileSystem::Ext4InClusters,
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::Twice => "--innodb-doublewrite=ON",
            Self::Once => "--innodb-doublewrite=OFF",
        }
    }
}

/// Options of MariaDB beyond the common ones.
#[must_use]
pub fn options(pages: Pages) -> Vec<&'static str> {
    [big::MARIADB, &[pages.option()]].concat()
}

/// Databases on the first node's own disk, each on a file system of its own.
///
/// # Errors
/// When they cannot be built.
pub fn plain(ready: &mut Ready<'_>, lab: &Lab, needs: BigNeeds, pages: Pages) -> Result<()> {
    for engine in needs.engines(pages) {
        let root = format!("{DISK}/{}-{}", ready.name, engine.name());
        local::file_system_of(pages.file_system(), lab, FIRST, &root, MIB)?;
        let port = match (engine, pages) {
            (Engine::MariaDb, Pages::Twice) => 3308,
            (Engine::MariaDb, Pages::Once) => 3309,
            (Engine::PostgreSql, _) => 5433,
        };
        // The image was written whole when it was made.
        serve_from(ready, engine, &root, port, pages, false)?;
    }
    Ok(())
}

/// Starts a database on the first node with a copy of the tables below `root`.
///
/// # Errors
/// When it does not answer in time.
pub fn serve_from(
    ready: &mut Ready<'_>,
    engine: Engine,
    root: &str,
    port: u16,
    pages: Pages,
    fill: bool,
) -> Result<()> {
    let lab = ready.lab;
    copy(lab, FIRST, engine, root, fill)?;
    match engine {
        Engine::MariaDb => {
            let mut server = Server::prepare(lab, FIRST, root, port, &options(pages))?;
            server.launch(&[])?;
            ready.hold(Held::Server(server));
        }
        Engine::PostgreSql => {
            let words = postgresql(root, port)?;
            let words: Vec<&str> = setpriv_words(&words);
            let child = lab.spawn(FIRST, &words, &format!("{}-postgresql.log", ready.name))?;
            ready.hold(Held::Program(Program(child)));
        }
    }
    serve(ready, engine, format!("{}:{port}", ADDRESSES[0]), pages)
}

/// Copies the tables below a root on a node.
///
/// # Errors
/// When there is no room.
pub fn copy(lab: &Lab, node: &str, engine: Engine, root: &str, fill: bool) -> Result<()> {
    let script = engine.copy_script(root, fill);
    lab.shell(node, &script).with_context(|| format!("copy the tables to {root} on {node}")).map(drop)
}

/// Waits for a database at this address, and makes sure that it writes pages as it should.
///
/// # Errors
/// When it does not.
pub fn serve(ready: &mut Ready<'_>, engine: Engine, address: String, pages: Pages) -> Result<()> {
    let lab = ready.lab;
    wait_for(&format!("{} of {}", engine.name(), ready.name), LIMIT, || match engine {
        Engine::MariaDb => sysbench::sql(lab, &address, "SELECT 1").map(drop),
        Engine::PostgreSql => psql(lab, &address, "SELECT 1"),
    })?;
    if engine == Engine::MariaDb {
        as_told(lab, &address, pages)?;
    }
    ready.big.set(engine, address, pages);
    Ok(())
}

/// Fails when a MariaDB keeps its pages whole in another way, or has another buffer pool.
fn as_told(lab: &Lab, address: &str, pages: Pages) -> Result<()> {
    let asked = "SELECT @@innodb_doublewrite, @@innodb_buffer_pool_size >> 20";
    let said = sysbench::sql(lab, address, asked)?;
    let wanted = format!("{}\t{}", u8::from(pages == Pages::Twice), big::POOL_MIB);
    let said = said.trim();
    ensure!(said == wanted, "{address}: doublewrite and MiB of buffer pool are {said} and not {wanted}");
    Ok(())
}

/// The whole command of a PostgreSQL whose data lies in `<root>/data`.
fn postgresql(root: &str, port: u16) -> Result<Vec<String>> {
    let program = tables::postgresql_programs()?.join("postgres").display().to_string();
    let own = [format!("unix_socket_directories={root}/run"), format!("port={port}")];
    let settings = big::POSTGRESQL.iter().map(|&word| word.to_owned()).chain(own);
    let settings = settings.flat_map(|setting| ["-c".to_owned(), setting]);
    Ok([program, "-D".into(), format!("{root}/data")].into_iter().chain(settings).collect())
}

fn setpriv_words(words: &[String]) -> Vec<&str> {
    // The strings of `setpriv` live as long as the program, so that both can be borrowed.
    static FRONT: std::sync::LazyLock<[String; 4]> = std::sync::LazyLock::new(|| setpriv("postgres"));
    FRONT.iter().chain(words).map(String::as_str).collect()
}

/// Databases on resources of Mainstay, as services.
pub struct Services<'a> {
    /// Name of the set-up.
    pub name: &'a str,
    pub copies: &'a crate::bench::mainstay::Copies,
    /// Place of the set-up among all, from 1, for addresses and ports.
    pub place: usize,
    pub pages: Pages,
}

impl Services<'_> {
    /// Makes the resources and the services.
    ///
    /// # Errors
    /// When the cluster refuses or a database does not answer.
    pub fn start(&self, ready: &mut Ready<'_>, needs: BigNeeds) -> Result<()> {
        let lab = ready.lab;
        for engine in needs.engines(self.pages) {
            let name = format!("{}-{}", engine.name(), self.name);
            create(self.copies, lab, &name, &format!("{MIB}MiB"))?;
            let (vip, port) = match engine {
                Engine::MariaDb => (format!("10.213.0.{}", 120 + self.place), 3340 + self.place as u16),
                Engine::PostgreSql => (format!("10.213.0.{}", 140 + self.place), 5440 + self.place as u16),
            };
            let fill = needs.fill && engine == Engine::MariaDb;
            lab.apply_service(&name, &self.toml(engine, &name, &vip, port, fill)?)?;
            let node = lab.wait_running(&name, LIMIT)?;
            ensure!(
                node == FIRST,
                "{name} runs on {node}: all databases have to run on {FIRST} to be compared"
            );
            serve(ready, engine, format!("{vip}:{port}"), self.pages)?;
        }
        Ok(())
    }

    /// The service file. Without doublewrite it is `pages` that turns it off, after the check that
    /// no page can tear.
    fn toml(&self, engine: Engine, name: &str, vip: &str, port: u16, fill: bool) -> Result<String> {
        let root = format!("/srv/{name}");
        let quoted = |words: &[String]| {
            let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("[{}]", words.join(", "))
        };
        let (kind, mkfs) = match self.pages.file_system() {
            FileSystem::Xfs => ("xfs", ""),
            FileSystem::Ext4InClusters => {
                ("ext4", "mkfs_options = [\"-O\", \"bigalloc\", \"-C\", \"16384\"]\n")
            }
        };
        let process = match engine {
            Engine::MariaDb => {
                let more = options(Pages::Twice).into_iter().map(str::to_owned);
                let words: Vec<String> = mariadb::command(&root, port).into_iter().chain(more).collect();
                let pages = match self.pages {
                    Pages::Twice => String::new(),
                    Pages::Once => format!(
                        "pages = {{ size = 16384, path = \"{root}/data\", arguments = [{:?}] }}\n",
                        Pages::Once.option()
                    ),
                };
                format!(
                    "command = {}\n{pages}probe = {{ mariadb = {{ socket = \"{root}/data/mariadb.sock\" }} }}\n",
                    quoted(&words)
                )
            }
            Engine::PostgreSql => format!(
                "user = \"postgres\"\nprepare_user = \"root\"\ncommand = {}\n\
                 probe = {{ postgresql = {{ socket = \"{root}/run\", port = {port} }} }}\nstop_signal = \"SIGINT\"\n",
                quoted(&postgresql(&root, port)?)
            ),
        };
        Ok(format!(
            "name = \"{name}\"\n\
             resource = \"{name}\"\n\
             \n\
             [mount]\n\
             volume = 0\n\
             path = \"{root}\"\n\
             fstype = \"{kind}\"\n\
             options = \"{options}\"\n\
             mkfs = true\n\
             {mkfs}\
             \n\
             [[process]]\n\
             name = \"{engine}\"\n\
             prepare = [\"sh\", \"-c\", '''\n{script}''']\n\
             {process}\
             start_timeout_s = 600\n\
             stop_timeout_s = 60\n\
             \n\
             [vip]\n\
             address = \"{vip}/24\"\n",
            options = mariadb::MOUNT_OPTIONS,
            engine = engine.name(),
            script = engine.copy_script(&root, fill),
        ))
    }
}

/// Load that does not count; returns its operations.
///
/// # Errors
/// When the load fails, or an agent has started MariaDB again with its doublewrite buffer because a
/// page could tear.
pub fn warm_up(lab: &Lab, at: &Addresses, load: big::Load) -> Result<u64> {
    if let (Some(address), Some(pages)) = (&at.mariadb, at.pages) {
        as_told(lab, address, pages)?;
    }
    if load == big::Load::Table {
        sysbench::sql(lab, at.of(load).context("no database")?, &big::before_load())?;
        return Ok(0);
    }
    Ok(run(lab, at, load, WARM_UP_S)?.operations)
}

/// Runs a load for `seconds`; a table has so many rows, whatever that takes.
///
/// # Errors
/// When it fails.
pub fn run(lab: &Lab, at: &Addresses, load: big::Load, seconds: u64) -> Result<Figures> {
    let address = at.of(load).context("no database")?;
    match load {
        big::Load::Sysbench(workload) => {
            let printed = sysbench::client(lab, &big::run(&sysbench::server(address)?, workload, seconds))?;
            let summary = mainstay_bench::sysbench::parse_summary(&printed)?;
            ensure!(summary.ignored_errors < summary.transactions, "more errors than transactions");
            Ok(summary.figures())
        }
        big::Load::Table => {
            let start = Instant::now();
            sysbench::sql(lab, address, &big::load(&tables::rows_dir()))?;
            let elapsed = start.elapsed();
            Ok(big::parse_load(&sysbench::sql(lab, address, &big::after_load())?, elapsed)?)
        }
        big::Load::Pgbench => {
            let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
            Ok(big::parse_pgbench(&sysbench::client(lab, &big::pgbench(host, port, seconds))?)?)
        }
    }
}

fn psql(lab: &Lab, address: &str, statement: &str) -> Result<()> {
    let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
    let (host, port) = (format!("--host={host}"), format!("--port={port}"));
    let words = ["psql", "--no-psqlrc", "--quiet", "--username=postgres", &host, &port, "-c", statement];
    lab.exec(CLIENT, &words).map(drop)
}

/// Waits until the disk is quiet. MariaDB writes its changed pages when it is idle. PostgreSQL is
/// asked to.
///
/// # Errors
/// When it refuses.
pub fn settle(lab: &Lab, at: &Addresses, load: big::Load) -> Result<()> {
    if load == big::Load::Pgbench {
        psql(lab, at.of(load).context("no database")?, "CHECKPOINT")?;
    }
    let Some(mut before) = written(lab) else { return Ok(()) };
    let start = Instant::now();
    while start.elapsed() < QUIET_LIMIT {
        std::thread::sleep(QUIET_TIME);
        let now = written(lab).unwrap_or(before);
        if now - before < QUIET_BYTES {
            break;
        }
        before = now;
    }
    Ok(())
}

fn written(lab: &Lab) -> Option<u64> {
    bytes::written(&std::fs::read_to_string(bytes::disk_of(lab.dir())?).ok()?)
}

/// Bytes so far on the disk that the lab lies on, and between its nodes. `None` where one of them
/// cannot be counted.
#[must_use]
pub fn counters(lab: &Lab) -> Option<Counters> {
    let switch = format!("--net=/run/netns/mainstay-{}.switch", lab.name);
    let mut command = Command::new("nsenter");
    let dev = command::output(command.args([&switch, "cat", "/proc/net/dev"]), Duration::from_secs(10));
    Some(Counters { disk: written(lab)?, wire: bytes::between_nodes(&dev.ok()?, &NODES)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::mainstay::ALL;

    #[test]
    fn a_service_turns_doublewrite_off_only_by_its_pages() {
        let of = |pages| {
            let services = Services { name: "x", copies: &ALL[0], place: 1, pages };
            services.toml(Engine::MariaDb, "mariadb-x", "10.213.0.121", 3341, false).unwrap()
        };
        let (twice, once) = (of(Pages::Twice), of(Pages::Once));
        assert!(twice.contains("fstype = \"xfs\"") && !twice.contains("doublewrite=OFF"), "{twice}");
        assert!(once.contains("[\"-O\", \"bigalloc\", \"-C\", \"16384\"]"), "{once}");
        assert!(once.contains("\"--innodb-doublewrite=ON\""), "{once}");
        assert!(once.contains("arguments = [\"--innodb-doublewrite=OFF\"]"), "{once}");
    }
}
