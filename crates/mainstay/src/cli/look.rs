//! Options of the commands that look at a cluster: `top`, `check`, `explain`, `support-bundle`, and
//! `--watch` of the others.

use clap::{Args, Subcommand};
use mainstay_types::duration;
use std::path::PathBuf;

/// Least interval of `top`, in milliseconds. The agent makes a page of metrics at most every half a
/// second.
const INTERVAL_MS_MIN: u64 = 1000;
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
    /// Time from one table to the next, at least 1s. The numbers are of this time.
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
pub struct CheckArgs {
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
    if ms < INTERVAL_MS_MIN {
        return Err(format!("write at least {} s, for example 2s", INTERVAL_MS_MIN / 1000));
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
