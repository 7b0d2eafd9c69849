//! `mainstay top`: what the resources of one node do now, and what they wait for.
//!
//! Everything comes from two pages of the node's metrics and the time between them, by the clock of
//! the node's engine. Only a primary knows what its other replicas do, so each node tells of its
//! own resources.
//!
//! Reading order: `page.rs`, `reading.rs`, `bottleneck.rs`, `words.rs`.

mod bottleneck;
mod page;
mod reading;
mod words;

use crate::cli::TopArgs;
use crate::failure::{Code, Context, Outcome};
use crate::output::{self, Output};
use bottleneck::Bottleneck;
use mainstay_cli::screen::Screen;
use mainstay_client::Client;
use reading::{Between, PrimaryRow, Reading, SecondaryRow};
use serde::Serialize;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Lines of the terminal that are no resources: heads, empty lines and the bottleneck.
const OTHER_LINES: usize = 12;

/// Everything that one table says. Rates are of the time since the last table.
#[derive(Serialize)]
pub struct Seen {
    pub at_ms: u64,
    pub node: String,
    pub cluster: String,
    /// Time that the rates are of.
    pub seconds: f64,
    pub engine_answers: bool,
    pub primaries: Vec<PrimaryRow>,
    pub secondaries: Vec<SecondaryRow>,
    pub bottleneck: Bottleneck,
}

fn seen(between: Between, at_ms: u64) -> Seen {
    let bottleneck = bottleneck::of(&between);
    Seen {
        at_ms,
        primaries: between.primaries(),
        secondaries: between.secondaries(),
        seconds: between.seconds,
        engine_answers: between.now.engine_up,
        node: between.now.node,
        cluster: between.now.cluster,
        bottleneck,
    }
}

pub fn run(args: &TopArgs, client: &Client, output: Output) -> Outcome<u8> {
    let read = || -> Outcome<(Reading, Instant)> {
        let page = client.get_text("/metrics")?;
        Ok((Reading::of(&page), Instant::now()))
    };
    let mut before = read()?;
    let mut screen = Screen::new();
    if !output.json && !args.once {
        output.note(&format!("the first table comes after {:.1} s", args.interval as f64 / 1e3));
    }
    loop {
        std::thread::sleep(Duration::from_millis(args.interval));
        let now = match read() {
            Err(failure) if !args.once && !output.json => {
                let text = format!(
                    "{failure}\n\nThe agent is asked again every {:.1} s.",
                    args.interval as f64 / 1e3
                );
                screen.draw(&output::for_people(&text, output::columns()));
                continue;
            }
            read => read?,
        };
        let passed_s = now.1.duration_since(before.1).as_secs_f64();
        // A page that was kept for others is of the moment of the last one.
        let Some(between) = Between::of(&before.0, now.0.clone(), passed_s) else { continue };
        before = now;
        let seen = seen(between, wall_ms());
        if args.once {
            output.result(&seen, |seen| words::words(seen, output::columns(), lines(args, seen)))?;
            return Ok(0);
        }
        if output.json {
            let json = serde_json::to_string(&seen);
            output::line(&json.or_fail(Code::Output, || "write the table as JSON".into())?);
        } else {
            let text = words::words(&seen, output::columns(), lines(args, &seen));
            screen.draw(&text);
            screen.part();
        }
    }
}

/// Resources of each table: as many as are wanted, or as fit the terminal.
fn lines(args: &TopArgs, seen: &Seen) -> usize {
    if let Some(lines) = args.lines {
        return lines;
    }
    let tables = usize::from(!seen.primaries.is_empty()) + usize::from(!seen.secondaries.is_empty());
    let fit = |rows: usize| (rows.saturating_sub(OTHER_LINES) / tables.max(1)).max(1);
    match output::rows() {
        Some(rows) if !args.once => fit(rows),
        _ => usize::MAX,
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
