//! Options of the commands that show what has happened: `events`, `history`, `audit` and `report`.

use crate::moment;
use clap::Args;
use mainstay_types::duration;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct HistoryArgs {
    /// Show only changes of this resource, or of this service.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Show only the newest N changes.
    #[arg(long, short = 'n', default_value_t = 20, value_name = "N")]
    pub lines: usize,
    /// Show one line for each change, without its stages.
    #[arg(long)]
    pub brief: bool,
}

#[derive(Args, Debug)]
pub struct AuditArgs {
    /// Show only records after this number.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub after: u64,
    /// Show only the newest N records; at most 1000 are kept.
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N")]
    pub lines: usize,
    /// Print one JSON object for each record and line, for other programs.
    #[arg(long)]
    pub json_lines: bool,
}

#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Show only events after this index.
    #[arg(long, default_value_t = 0, value_name = "INDEX")]
    pub after: u64,
    /// Print events as they happen, until you end the command. With --json one object per line.
    #[arg(long, short)]
    pub follow: bool,
    /// Show only the newest N events.
    #[arg(long, short = 'n', value_name = "N")]
    pub lines: Option<usize>,
}

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Begin, in UTC: `2026-11-29T14:00`, `2026-11-29`, or `14:00` for the last time that a clock
    /// showed that.
    #[arg(long, value_name = "TIME", value_parser = moment::parse_now, conflicts_with = "last")]
    pub from: Option<u64>,
    /// End, in UTC [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment::parse_now)]
    pub to: Option<u64>,
    /// Length of the interval, which ends with `--to`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_ms, default_value = "1h")]
    pub last: u64,
    /// Compare with an interval of the same length that begins at FROM; with the one before, if no
    /// FROM is given.
    #[arg(long, value_name = "FROM", value_parser = moment::parse_now, num_args = 0..=1)]
    pub compare: Option<Option<u64>>,
    /// Write the report as one HTML page into this file, which must not exist. The page has plots,
    /// and needs no other file.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
