//! `mainstay events`.

use crate::cli::EventsArgs;
use crate::failure::{Code, Context, Outcome};
use crate::output::{self, Output};
use mainstay_api::rest::{EventView, EventsPage, Severity};
use mainstay_client::{ANSWER_WITHIN, Client};
use mainstay_types::clock::clock;
use std::time::Duration;

/// How long one request of `--follow` waits for news.
const FOLLOW_WAIT_MS: u64 = 30_000;

pub fn run(args: &EventsArgs, client: &Client, output: Output) -> Outcome<u8> {
    let mut page: EventsPage = client.get(&format!("/v1/events?after={}", args.after))?;
    if let Some(lines) = args.lines {
        page.events.drain(..page.events.len().saturating_sub(lines));
    }
    if !args.follow {
        output.newest(args.lines.unwrap_or(usize::MAX), &page, |page| {
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
                output::for_people(&words(event), output::columns())
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
