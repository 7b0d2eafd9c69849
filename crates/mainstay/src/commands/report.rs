//! `mainstay report`: the load of an interval, as the agent reports it.
//!
//! Reading order: `report/text.rs`, `report/page.rs` and `report/plot.rs` (how it is shown),
//! `report/baselines.rs`.

pub(super) mod baselines;
mod page;
mod plot;
#[cfg(test)]
mod tests;
mod text;

use crate::cli::{Compared, ReportArgs, ReportCommand};
use crate::connect::checked_name;
use crate::failure::{Code, Context, Failure, Outcome};
use crate::moment;
use crate::output::{self, Output};
use mainstay_api::rest::Report;
use mainstay_client::Client;
use mainstay_types::clock::clock;
use mainstay_types::duration;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long the agent may take: it asks all nodes up to four times, with a shorter time for each.
const REPORT_WITHIN: Duration = Duration::from_secs(40);

pub fn run(args: &ReportArgs, client: &Client, output: Output) -> Outcome<u8> {
    let client = client.clone().with_timeout(REPORT_WITHIN);
    if let Some(ReportCommand::Baseline(command)) = &args.command {
        return baselines::run(command, &client, output);
    }
    let report: Report = client.get(&path(args, moment::now_ms())?)?;
    match &args.output {
        None => output.result(&report, |report| text::words(report, output::columns()))?,
        Some(path) => {
            write_new(path, &page::html(&report))?;
            output.note(&format!("the report is in {}", path.display()));
        }
    }
    Ok(0)
}

/// The path of the report that is asked for.
fn path(args: &ReportArgs, now_ms: u64) -> Outcome<String> {
    let (from_ms, to_ms) = args.span.interval(now_ms);
    let mut path = match &args.baseline {
        Some(name) => format!("/v1/report?baseline={}", checked_name(name)?),
        None => format!("/v1/report?from_ms={from_ms}&to_ms={to_ms}"),
    };
    let before_ms = from_ms.saturating_sub(to_ms.saturating_sub(from_ms));
    match &args.compare {
        None => {}
        Some(Some(Compared::Baseline(name))) => {
            path += &format!("&compare_baseline={}", checked_name(name)?);
        }
        Some(Some(Compared::From(from_ms))) => path += &format!("&compare_from_ms={from_ms}"),
        Some(None) if args.baseline.is_some() => {
            return Err(Failure::new(
                Code::OptionWithoutEffect,
                "no interval is before a baseline",
                "Name one: `--compare FROM` or `--compare NAME`.",
            ));
        }
        Some(None) => path += &format!("&compare_from_ms={before_ms}"),
    }
    if let Some(name) = &args.resource {
        path += &format!("&resource={}", checked_name(name)?);
    }
    Ok(path)
}

fn write_new(path: &Path, text: &str) -> Outcome<()> {
    // `-o` is the form of a list elsewhere.
    if ["table", "wide", "json", "csv", "name", "html", "text"].map(Path::new).contains(&path) {
        return Err(Failure::new(
            Code::OptionWithoutEffect,
            format!("a report has no form `{}`: -o names the file for its page", path.display()),
            "Write for example `-o report.html`, or use `--json`.",
        ));
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .or_fail(Code::Io, || format!("write the report to {}", path.display()))
}

/// Begin, end and length of an interval.
fn title(from_ms: u64, to_ms: u64) -> String {
    let short = |at| clock(at).get(..16).unwrap_or_default().to_owned();
    let length = to_ms.saturating_sub(from_ms) / 60_000 * 60_000;
    format!("{} to {} UTC ({})", short(from_ms), short(to_ms), duration::typed(length))
}

/// The time that a report is about, with the names of its resource and of a baseline.
fn title_of(report: &Report) -> String {
    let baseline = report.baseline.as_ref().map(|name| format!("baseline {name}, ")).unwrap_or_default();
    let resource = report.resource.as_ref().map(|name| format!("resource {name}, ")).unwrap_or_default();
    format!("{resource}{baseline}{}", title(report.from_ms, report.to_ms))
}
