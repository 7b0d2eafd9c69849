//! Options of the commands that show what has happened: `events`, `history` and `audit`.

use clap::Args;

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
