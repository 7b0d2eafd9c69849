//! `mainstay events`.

use crate::cli::EventsArgs;
use crate::failure::{Code, Context, Outcome};
use crate::output::{self, Output};
use mainstay_api::rest::{EventView, EventsPage, Severity};
use mainstay_client::{ANSWER_WITHIN, Client};
use std::time::Duration;

/// How long one request of `--follow` waits for news.
const FOLLOW_WAIT_MS: u64 = 30_000;

pub fn run(args: &EventsArgs, client: &Client, output: Output) -> Outcome<u8> {
    let mut page: EventsPage = client.get(&format!("/v1/events?after={}", args.after))?;
    if let Some(lines) = args.lines {
        page.events.drain(..page.events.len().saturating_sub(lines));
    }
    if !args.follow {
        output.result(&page, |page| {
            let lines: Vec<_> = page.events.iter().map(words).collect();
            if lines.is_empty() { "no events".into() } else { lines.join("\n") }
        })?;
        return Ok(0);
    }
    let client = client.clone().with_timeout(Duration::from_millis(FOLLOW_WAIT_MS) + ANSWER_WITHIN);
    loop {
        if page.gap {
            eprintln!("some events were dropped before they could be shown");
        }
        for event in &page.events {
            let text = if output.json {
                serde_json::to_string(event).or_fail(Code::Output, || "write an event as JSON".into())?
            } else {
                words(event)
            };
            output::line(&text);
        }
        page = client.get(&format!("/v1/events?after={}&wait_ms={FOLLOW_WAIT_MS}", page.last))?;
    }
}

pub(super) fn words(event: &EventView) -> String {
    let severity = match event.severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "ERROR",
    };
    let (index, at) = (event.index, clock(event.at_ms));
    let head = format!("{index:>6}  {at}  {severity:7}  {:16}", event.subject);
    let line = format!("{head}  {}", event.text);
    match output::columns() {
        // The text has lines of its own where it would have no room.
        Some(columns) if columns < line.chars().count() => {
            format!(
                "{}\n{}",
                head.trim_end(),
                output::fold(&format!("        {}", event.text), Some(columns))
            )
        }
        _ => line,
    }
}

/// Date and time of day in UTC of a point in milliseconds since 1970. The date is computed with the
/// days-to-civil algorithm of Howard Hinnant's date library.
pub fn clock(at_ms: u64) -> String {
    let days = at_ms / 86_400_000;
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let ms = at_ms % 86_400_000;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}Z",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1000 % 60,
        ms % 1000
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_knows_leap_days() {
        assert_eq!(super::clock(0), "1970-01-01 00:00:00.000Z");
        assert_eq!(super::clock(951_782_400_000), "2000-02-29 00:00:00.000Z");
        assert_eq!(super::clock(1_767_225_599_999), "2025-12-31 23:59:59.999Z");
    }
}
