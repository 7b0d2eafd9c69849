//! Loads on data ten times the buffer pool of their database, so that pages are written all the
//! time and not only at checkpoints. Every row is as likely as every other: sysbench's own default
//! would touch few of them.

use crate::case::{Figures, Latency, Measure};
use crate::error::{Error, Result};
use crate::sysbench::{Server, Tables, Workload};
use std::time::Duration;

/// Size of the buffer pool, in MiB, of MariaDB and of PostgreSQL.
pub const POOL_MIB: u64 = 64;
/// About 640 MiB with the secondary index.
pub const TABLES: Tables = Tables { database: "sbtest", count: 10, rows: 270_000 };
/// Scale of pgbench; about 15 MiB each.
pub const SCALE: u32 = 42;
/// Number of threads and clients, each with one connection.
pub const THREADS: u32 = 16;
/// Database of the table that is loaded.
const LOADED: &str = "sbload";
/// Database that pgbench works on.
pub const PGBENCH: &str = "pgbench";
/// Rows of each table that are loaded into another one: about 130 MiB of all tables together.
const LOADED_ROWS: u64 = 60_000;

/// Settings of MariaDB beyond the common ones. The server would choose by itself whether to write
/// neighbours of a page with it, by what a device says of itself, which differs between set-ups.
pub const MARIADB: &[&str] = &[
    "--innodb-buffer-pool-size=64M",
    "--innodb-io-capacity=2000",
    "--innodb-io-capacity-max=4000",
    "--innodb-flush-neighbors=0",
];

/// Settings of PostgreSQL. Pages of 8 KiB can tear on blocks of 4 KiB, so whole pages stay in its
/// log.
pub const POSTGRESQL: &[&str] = &[
    "shared_buffers=64MB",
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "wal_compression=on",
    "max_wal_size=512MB",
    "checkpoint_completion_target=0.9",
    "listen_addresses=*",
];

/// One load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    Sysbench(Workload),
    /// A table that is filled as from a dump.
    Table,
    Pgbench,
}

/// All loads, in the order of running.
pub const LOADS: [Load; 5] = [
    Load::Sysbench(Workload::ReadWrite),
    Load::Sysbench(Workload::WriteOnly),
    Load::Sysbench(Workload::UpdateIndex),
    Load::Table,
    Load::Pgbench,
];

impl Load {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sysbench(Workload::ReadWrite) => "big-oltp-rw",
            Self::Sysbench(Workload::WriteOnly) => "big-oltp-wo",
            Self::Sysbench(Workload::UpdateIndex) => "big-oltp-ui",
            Self::Table => "big-load",
            Self::Pgbench => "big-pgbench",
        }
    }

    #[must_use]
    pub fn title(self) -> String {
        let data = format!("data ten times the buffer pool of {POOL_MIB} MiB");
        match self {
            Self::Sysbench(workload) => format!("{}, {THREADS} threads, {data}", workload.script()),
            Self::Table => {
                "load of a table: inserts of many rows in the order of the key, then an index".into()
            }
            Self::Pgbench => format!("pgbench (TPC-B), {THREADS} clients, {data}"),
        }
    }

    #[must_use]
    pub fn measure(self) -> Measure {
        if self == Self::Table { Measure::RowsPerSecond } else { Measure::Tps }
    }
}

/// The command that makes and fills the tables.
#[must_use]
pub fn prepare(server: &Server) -> Vec<String> {
    server.command_on(&TABLES, Workload::ReadWrite, &["--threads=2".into()], "prepare")
}

/// The command of a run of `seconds`.
#[must_use]
pub fn run(server: &Server, workload: Workload, seconds: u64) -> Vec<String> {
    let more = ["--rand-type=uniform".into(), format!("--threads={THREADS}"), format!("--time={seconds}")];
    server.command_on(&TABLES, workload, &more, "run")
}

/// Statements that write the rows to be loaded into files of this directory, one of each table.
#[must_use]
pub fn export(dir: &str) -> String {
    let one = |table: u32| {
        let first = u64::from(table - 1) * TABLES.rows;
        format!(
            "SELECT id + {first}, k, c, pad FROM {}.sbtest{table} ORDER BY id LIMIT {LOADED_ROWS} INTO OUTFILE '{dir}/rows{table}';\n",
            TABLES.database
        )
    };
    (1..=TABLES.count).map(one).collect()
}

/// Statements that make an empty database for [`load`].
#[must_use]
pub fn before_load() -> String {
    format!("DROP DATABASE IF EXISTS {LOADED}; CREATE DATABASE {LOADED}")
}

/// Statements that load these files into one table, each in a transaction, and then make an index.
/// The client does nothing but read them, so that the server and its disk are what is measured.
#[must_use]
pub fn load(dir: &str) -> String {
    let one =
        |table: u32| format!("LOAD DATA LOCAL INFILE '{dir}/rows{table}' INTO TABLE {LOADED}.loaded;\n");
    let files: String = (1..=TABLES.count).map(one).collect();
    format!(
        "CREATE TABLE {LOADED}.loaded LIKE {}.sbtest1;
ALTER TABLE {LOADED}.loaded DROP INDEX k_1;
{files}CREATE INDEX k_1 ON {LOADED}.loaded (k);
",
        TABLES.database
    )
}

/// Statement that counts the loaded rows.
#[must_use]
pub fn after_load() -> String {
    format!("SELECT COUNT(*) FROM {LOADED}.loaded")
}

/// Figures of a load that took `elapsed`, from the answer to [`after_load`]. Single rows have no
/// latency, so it is that of the mean row.
///
/// # Errors
/// When rows are missing.
pub fn parse_load(counted: &str, elapsed: Duration) -> Result<Figures> {
    let operations = u64::from(TABLES.count) * LOADED_ROWS;
    if counted.trim() != operations.to_string() {
        let what = format!("number of {operations} loaded rows");
        return Err(Error::Output { program: "mariadb", what, output: counted.into() });
    }
    let rate = operations as f64 / elapsed.as_secs_f64().max(1e-6);
    let latency_us = Latency { mean: 1e6 / rate, ..Latency::default() };
    Ok(Figures { rate, mib_per_second: None, operations, latency_us })
}

/// The command of pgbench for a run of `seconds`.
#[must_use]
pub fn pgbench(host: &str, port: &str, seconds: u64) -> Vec<String> {
    let fixed = ["pgbench", "--no-vacuum", "--protocol=prepared", "--jobs=2", "--username=postgres"];
    let mut words: Vec<String> = fixed.into_iter().map(str::to_owned).collect();
    words.extend([
        format!("--client={THREADS}"),
        format!("--time={seconds}"),
        format!("--host={host}"),
        format!("--port={port}"),
        PGBENCH.to_owned(),
    ]);
    words
}

/// Reads what pgbench prints at its end. It tells no percentiles and no longest time.
///
/// # Errors
/// When a figure is missing.
pub fn parse_pgbench(text: &str) -> Result<Figures> {
    let missing = |what: &str| Error::Output { program: "pgbench", what: what.into(), output: text.into() };
    let number = |label: &str| -> Result<f64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(label)).ok_or_else(|| missing(label))?;
        let word = rest.split_whitespace().next().unwrap_or_default();
        // Older ones print the number of transactions as `done/planned`.
        let word = word.split('/').next().unwrap_or_default();
        word.parse().map_err(|_| missing(label))
    };
    let operations = number("number of transactions actually processed:")? as u64;
    if operations == 0 {
        return Err(missing("finished transaction"));
    }
    let latency_us = Latency { mean: number("latency average =")? * 1000.0, ..Latency::default() };
    Ok(Figures { rate: number("tps =")?, mib_per_second: None, operations, latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of pgbench 15.14.
    const PRINTED: &str = "\
pgbench (15.14 (Debian 15.14-0+deb12u1))
transaction type: <builtin: TPC-B (sort of)>
scaling factor: 42
query mode: prepared
number of clients: 16
number of threads: 2
maximum number of tries: 1
duration: 2 s
number of transactions actually processed: 2468
number of failed transactions: 0 (0.000%)
latency average = 12.923 ms
initial connection time = 21.012 ms
tps = 1238.143914 (without initial connection time)
";

    #[test]
    fn the_end_of_pgbench_is_read() {
        let figures = parse_pgbench(PRINTED).unwrap();
        assert_eq!((figures.rate, figures.operations), (1_238.143_914, 2468));
        assert_eq!((figures.latency_us.mean, figures.latency_us.p95), (12_923.0, None));
        assert!(parse_pgbench("pgbench: error: connection to server failed").is_err());
        assert!(parse_pgbench(&PRINTED.replace("2468", "0")).is_err());
    }

    #[test]
    fn a_load_is_measured_in_rows_and_has_all_of_them() {
        let figures = parse_load("600000\n", Duration::from_secs(6)).unwrap();
        assert_eq!((figures.rate, figures.operations), (100_000.0, 600_000));
        assert_eq!(figures.latency_us.mean, 10.0);
        assert!(parse_load("599999\n", Duration::from_secs(6)).is_err());
        assert!(parse_load("", Duration::from_secs(6)).is_err());
        // The keys of the files do not overlap, and every file is loaded.
        let (export, load) = (export("/d"), load("/d"));
        assert!(export.contains("SELECT id + 2430000, k, c, pad FROM sbtest.sbtest10 "), "{export}");
        for table in 1..=TABLES.count {
            assert!(export.contains(&format!("OUTFILE '/d/rows{table}';")), "{export}");
            assert!(load.contains(&format!("INFILE '/d/rows{table}' ")), "{load}");
        }
    }

    #[test]
    fn rows_are_chosen_evenly_from_tables_ten_times_the_buffer_pool() {
        let server = Server::Socket { path: "/s".into(), user: "root".into() };
        let words = run(&server, Workload::UpdateIndex, 7);
        for word in
            ["oltp_update_index", "--rand-type=uniform", "--tables=10", "--table-size=270000", "--time=7"]
        {
            assert!(words.iter().any(|found| found == word), "{word} is not in {words:?}");
        }
        assert!(MARIADB.contains(&format!("--innodb-buffer-pool-size={POOL_MIB}M").as_str()));
        assert!(POSTGRESQL.contains(&format!("shared_buffers={POOL_MIB}MB").as_str()));
    }
}
