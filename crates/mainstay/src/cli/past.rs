//! Options of the commands that show what has happened: `events`, `history`, `audit` and `report`.

use crate::moment;
use clap::{Args, Subcommand};
use mainstay_cli::list::form_arg;
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
#[command(args_conflicts_with_subcommands = true)]
pub struct ReportArgs {
    #[command(flatten)]
    pub span: SpanArgs,
    /// Report the kept figures of this baseline, in the place of an interval.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["from", "to", "last"])]
    pub baseline: Option<String>,
    /// Report only this resource, with its nodes, its service and their events.
    #[arg(long, value_name = "NAME")]
    pub resource: Option<String>,
    /// Compare with an interval of the same length that begins at this point in time, or with the
    /// baseline of this name; with the interval before, if nothing is named.
    #[arg(long, value_name = "FROM|NAME", value_parser = compared, num_args = 0..=1)]
    pub compare: Option<Option<Compared>>,
    /// Write the report as one HTML page into this file, which must not exist. The page has plots,
    /// and needs no other file.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<ReportCommand>,
}

/// The interval of a report or of a baseline.
#[derive(Args, Clone, Debug)]
pub struct SpanArgs {
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
}

impl SpanArgs {
    /// Begin and end, in milliseconds since 1970.
    pub fn interval(&self, now_ms: u64) -> (u64, u64) {
        let to_ms = self.to.unwrap_or(now_ms);
        (self.from.unwrap_or_else(|| to_ms.saturating_sub(self.last)), to_ms)
    }
}

/// Another time, for a comparison with that of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The interval that begins then, in milliseconds since 1970.
    From(u64),
    Baseline(String),
}

/// Parses a point in time, or the name of a baseline, which begins with a letter.
fn compared(text: &str) -> Result<Compared, String> {
    if text.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(Compared::Baseline(text.to_owned()));
    }
    moment::parse_now(text).map(Compared::From)
}

#[derive(Subcommand, Debug)]
pub enum ReportCommand {
    /// Keep the figures of intervals under names, to compare with them later.
    #[command(subcommand)]
    Baseline(BaselineCommand),
}

#[derive(Subcommand, Debug)]
pub enum BaselineCommand {
    /// Keep the figures of an interval. Each node keeps its own part, until you delete it.
    Save {
        /// Name of the baseline: 1 to 32 of a-z, 0-9 and the dash, beginning with a letter.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        span: SpanArgs,
    },
    /// List the baselines.
    #[command(arg = form_arg())]
    List,
    /// Delete a baseline on all nodes.
    Delete {
        /// Name of the baseline.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parsed(words: &[&str]) -> Option<ReportArgs> {
        let line = ["mainstay", "report"].iter().chain(words);
        match Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(Command::Report(args)) => Some(args),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }

    #[test]
    fn a_report_is_compared_with_a_time_or_with_a_baseline() {
        let compare = |words: &[&str]| parsed(words).and_then(|args| args.compare);
        assert_eq!(compare(&["--compare"]), Some(None));
        assert_eq!(compare(&["--compare", "1970-01-02"]), Some(Some(Compared::From(86_400_000))));
        let friday = Some(Some(Compared::Baseline("friday".into())));
        assert_eq!(compare(&["--compare", "friday", "--last", "1d"]), friday);
        assert!(parsed(&["--compare", "14:77"]).is_none());
        assert!(parsed(&["--baseline", "friday", "--last", "1d"]).is_none());
        assert_eq!(parsed(&["--baseline", "friday"]).unwrap().baseline.as_deref(), Some("friday"));
    }

    #[test]
    fn a_baseline_is_saved_of_an_interval_and_the_options_of_a_report_do_not_mix_with_it() {
        let saved = parsed(&["baseline", "save", "friday", "--from", "1970-01-02", "--to", "1970-01-03"]);
        let Some(ReportCommand::Baseline(BaselineCommand::Save { name, span })) = saved.unwrap().command
        else {
            panic!("another command");
        };
        assert_eq!((name.as_str(), span.interval(0)), ("friday", (86_400_000, 2 * 86_400_000)));
        assert!(parsed(&["--last", "1d", "baseline", "list"]).is_none());
        assert!(parsed(&["baseline", "delete"]).is_none());
        assert!(parsed(&["baseline", "list"]).is_some());
    }
}
