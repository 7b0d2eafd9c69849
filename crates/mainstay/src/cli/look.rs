//! Options of the commands that look at a cluster: `top`, `check`, `explain`, `support-bundle`, and
//! `--watch` of the others.

use clap::{Args, Subcommand};
use mainstay_types::DATABASE_PAGE_BYTES;
use mainstay_types::{duration, size};
use std::path::PathBuf;

/// Least and greatest interval of `top`, in milliseconds. The agent makes a page of metrics at most
/// every half a second, and the first table comes after one interval.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 1000..=3_600_000;
/// Least and greatest timeout of `check`, in milliseconds.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=600_000;

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct WatchArgs {
    /// Ask again every second until you end the command, and show the answer anew when it has
    /// changed. If the output goes to no terminal, each new answer comes after the one before it;
    /// with --json as one line.
    #[arg(long, short)]
    pub watch: bool,
}

#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Time from one table to the next, from 1s to 1h. The numbers are of this time.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = interval)]
    pub interval: u64,
    /// Show one table, after one interval, and end.
    #[arg(long)]
    pub once: bool,
    /// Number of resources in the table, those with the most requests first. On a terminal as many
    /// as fit [default: all]
    #[arg(long, short = 'n', value_name = "N")]
    pub lines: Option<usize>,
}

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CheckArgs {
    #[command(subcommand)]
    pub what: Option<CheckCommand>,
    /// Check this resource alone.
    #[arg(long, value_name = "NAME", conflicts_with = "service")]
    pub resource: Option<String>,
    /// Check this service and its resource alone.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Time after which the command ends in any case, with CRITICAL. From 100ms to 10m.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = timeout)]
    pub timeout: u64,
}

#[derive(Subcommand, Clone, Debug)]
pub enum CheckCommand {
    /// Say whether a page of a database can be torn by a crash: device, limits of its queue, file
    /// system and every data file. Exits with 0 for no page can, 1 for a page can, and 3 if that
    /// could not be looked at. Needs root, and no agent.
    Atomic(AtomicArgs),
}

#[derive(Args, Clone, Debug)]
pub struct AtomicArgs {
    /// Directory with the data files of the database, or one such file.
    pub path: PathBuf,
    /// Size of a page of the database, in bytes or with a unit: 4096 to 65536.
    #[arg(long, default_value = "16384", value_name = "SIZE", value_parser = page)]
    pub page: u64,
    /// The database writes through the page cache, as PostgreSQL does. Without the option it writes
    /// with O_DIRECT, as MariaDB and MySQL do with innodb_flush_method=O_DIRECT.
    #[arg(long)]
    pub buffered: bool,
    /// Name of data files, with * and ?. Give the option once per name [default: those of InnoDB
    /// and PostgreSQL]
    #[arg(long = "files", value_name = "PATTERN")]
    pub files: Vec<String>,
    /// Directory in which the engine notes its devices [default: that of the configuration]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct BundleArgs {
    /// File to write, a tar archive that is compressed with gzip. It must not exist [default:
    /// mainstay-support-NODE-TIME.tar.gz in this directory]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Age of the oldest lines of the system's journal and of the kernel's log that are gathered.
    #[arg(long, default_value = "6h", value_name = "TIME", value_parser = duration::parse_with_unit)]
    pub since: u64,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ExplainArgs {
    /// Name of the service.
    #[arg(required = true)]
    pub name: Option<String>,
    #[command(subcommand)]
    pub what: Option<ExplainCommand>,
}

#[derive(Subcommand, Debug)]
pub enum ExplainCommand {
    /// Say which node would take over a resource if the node of its primary died now, and why not
    /// each other one. Changes nothing.
    Failover {
        /// Name of the resource.
        #[arg(value_name = "RESOURCE")]
        resource: String,
    },
}

fn interval(text: &str) -> Result<u64, String> {
    let ms = duration::parse_with_unit(text)?;
    if !INTERVAL_MS.contains(&ms) {
        return Err("write 1s to 1h, for example 2s".to_owned());
    }
    Ok(ms)
}

fn timeout(text: &str) -> Result<u64, String> {
    let ms = duration::parse_ms(text)?;
    if !TIMEOUT_MS.contains(&ms) {
        return Err("write 100ms to 10m, for example 10s".to_owned());
    }
    Ok(ms)
}

fn page(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if !DATABASE_PAGE_BYTES.contains(&bytes) {
        return Err("write 4096, 8192, 16384, 32768 or 65536".to_owned());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_top_has_bounds_on_both_sides() {
        for (text, ms) in [("1s", 1000), ("90s", 90_000), ("1h", 3_600_000)] {
            assert_eq!(interval(text), Ok(ms), "{text}");
        }
        for text in ["0s", "999ms", "61m", "2h", "30d"] {
            let refused = interval(text).unwrap_err();
            assert!(refused.contains("1s to 1h"), "{text}: {refused}");
        }
    }
}
