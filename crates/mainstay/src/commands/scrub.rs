//! `mainstay resource scrub …`.

use super::pace::at_rate;
use super::{
    POLL,
    resource::{duration, path},
};
use crate::failure::{Code, Failure, Outcome, exit};
use crate::interrupt::GoesOn;
use crate::output::{Output, Progress, table};
use mainstay_api::rest::{
    Accepted, ResourceView, ScrubEnd, ScrubFindingView, ScrubOutcome, ScrubRepair, ScrubReport, ScrubStart,
    ScrubState, ScrubbedView, ScrubsView,
};
use mainstay_client::Client;
use mainstay_types::limits::EXTENT_BYTES;

/// Begins a scrub. Waits for its end, unless `no_wait`.
pub fn run(name: &str, start: ScrubStart, no_wait: bool, client: &Client, output: Output) -> Outcome<u8> {
    let at = format!("{}/scrub", path(name)?);
    let accepted: Accepted = client.post(&at, &start)?;
    if no_wait {
        output.result(&accepted, |accepted| accepted.message.clone())?;
        return Ok(0);
    }
    let _told = GoesOn::work(
        &format!("comparing the replicas of {name}"),
        &format!("mainstay resource scrub {name} --report"),
        &format!("mainstay resource scrub {name} --stop"),
    );
    let mut progress = Progress::new();
    let report = loop {
        let report: ScrubReport = match client.get(&at).map_err(Failure::from) {
            Err(failure) if failure.problem.code == Code::NoScrub => return Err(interrupted(name)),
            report => report?,
        };
        if report.state != ScrubState::Running {
            break report;
        }
        progress.show(&so_far(&report));
        std::thread::sleep(POLL);
    };
    drop(progress);
    if report.state == ScrubState::Interrupted {
        return Err(interrupted(name));
    }
    verdict(&report, output)
}

/// Says how far the scrub is, or how the last one ended.
pub fn report(name: &str, client: &Client, output: Output) -> Outcome<u8> {
    let report: ScrubReport = client.get(&format!("{}/scrub", path(name)?))?;
    verdict(&report, output)
}

pub fn stop(name: &str, client: &Client, output: Output) -> Outcome<()> {
    let accepted: Accepted = client.delete(&format!("{}/scrub", path(name)?))?;
    output.result(&accepted, |accepted| accepted.message.clone())
}

/// When the last scrub was, what came of it, and when the next one is due.
pub fn details(scrubs: &ScrubsView) -> String {
    let ago = |at_ms: u64| format!("{} ago", duration(scrubs.now_ms.saturating_sub(at_ms)));
    let mut text = match &scrubs.whole {
        None => "\nreplicas were never compared as a whole".to_owned(),
        Some(last) => {
            let took = duration(last.took_ms);
            format!("\nreplicas were compared {}, in {took}: {}", ago(last.at_ms), found(last))
        }
    };
    if let Some(last) = &scrubs.failed {
        let why = why_not_whole(last);
        let found = if last.different > 0 { format!(": {}", found(last)) } else { String::new() };
        text += &format!("\n{why}, {}{found}", ago(last.at_ms));
    }
    let next = next(scrubs);
    if scrubs.interval_ms == 0 {
        return text + &format!("\n{next}");
    }
    text + &format!("\n{next}, one every {}", duration(scrubs.interval_ms))
}

/// The same in one line of its own.
pub fn line(resource: &ResourceView) -> String {
    let scrubs = &resource.scrubs;
    let last = match (&scrubs.whole, resource.epoch) {
        // The resource is new.
        (None, 0) => return String::new(),
        (None, _) => match &scrubs.failed {
            None => "never yet".to_owned(),
            Some(last) => format!(
                "never all of them; {}, {} ago",
                why_not_whole(last),
                duration(scrubs.now_ms.saturating_sub(last.at_ms))
            ),
        },
        (Some(last), _) => {
            format!("{} ago, {}", duration(scrubs.now_ms.saturating_sub(last.at_ms)), found(last))
        }
    };
    format!("\n  replicas compared: {last}; {}", next(scrubs))
}

/// How a scrub ended that did not compare all replicas.
fn why_not_whole(last: &ScrubbedView) -> String {
    match last.end {
        ScrubEnd::Stopped => "an operator ended the last scrub".to_owned(),
        ScrubEnd::Interrupted => "the last scrub ended with its primary".to_owned(),
        ScrubEnd::Whole | ScrubEnd::Partial => {
            format!("the last scrub did not compare all of {}", last.lacking.join(" "))
        }
    }
}

fn found(last: &ScrubbedView) -> String {
    match (last.different, last.unrepaired) {
        (0, _) => "all were equal".to_owned(),
        (different, 0) => format!("{different} blocks differed, and do no more"),
        (different, left) => format!("{different} blocks differed, {left} STILL DO"),
    }
}

fn next(scrubs: &ScrubsView) -> String {
    if scrubs.running {
        return "one is under way, as it was due".to_owned();
    }
    let Some(due_ms) = scrubs.due_ms else { return "none begins by itself".to_owned() };
    let waits = scrubs.waits_for.as_ref().map_or(String::new(), |why| format!(": {why}"));
    match (due_ms.checked_sub(scrubs.now_ms).filter(|left| *left > 0), scrubs.late_ms) {
        (_, Some(late)) => format!("THE NEXT IS LATE by {}{waits}", duration(late)),
        (Some(left), None) => format!("the next is due in {}", duration(left)),
        (None, None) => format!("the next is due now{waits}"),
    }
}

fn interrupted(name: &str) -> Failure {
    Failure::new(
        Code::ScrubInterrupted,
        format!("resource {name} got another primary before all replicas were compared"),
        "What was repaired stays so. Compare them again.",
    )
}

fn verdict(report: &ScrubReport, output: Output) -> Outcome<u8> {
    output.result(report, told)?;
    let fine = report.equal || report.state == ScrubState::Running && report.unrepaired == 0;
    Ok(if fine { 0 } else { exit::UNEQUAL })
}

fn so_far(report: &ScrubReport) -> String {
    let percent = (report.done * 100).checked_div(report.extents).unwrap_or(100);
    let left = report.left_ms.map_or(String::new(), |left| format!(", {} left", duration(left)));
    let found =
        if report.different > 0 { format!(", {} blocks differ", report.different) } else { String::new() };
    let rate = at_rate(report.done * EXTENT_BYTES, report.took_ms);
    format!("comparing replicas of {}: {percent} %{left}{rate}{found}", report.resource)
}

fn told(report: &ScrubReport) -> String {
    let mut parts = Vec::new();
    if !report.findings.is_empty() {
        let rows: Vec<_> = report.findings.iter().map(row).collect();
        parts.push(table(&["VOLUME", "BLOCK", "BLOCKS", "INDEX", "WHO AGREES", "RIGHT", "NOW"], &rows));
        let shown: u64 = report.findings.iter().map(|found| found.blocks).sum();
        if shown < report.different {
            parts.push(format!("… and {} blocks more", report.different - shown));
        }
    }
    let lacking: Vec<_> = report
        .replicas
        .iter()
        .filter(|replica| replica.extents < report.done)
        .map(|replica| format!("{} in {} of {} extents", replica.node, replica.extents, report.done))
        .collect();
    if !lacking.is_empty() {
        parts.push(format!("not all were compared: {}", lacking.join(", ")));
    }
    let blocks = format!(
        "{} blocks differed, {} repaired, {} overwritten by clients since, {} left",
        report.different, report.repaired, report.overwritten, report.unrepaired
    );
    let state = match report.state {
        ScrubState::Running => so_far(report),
        ScrubState::Stopped => format!("stopped after {} of {} extents", report.done, report.extents),
        ScrubState::Interrupted => {
            format!("ended by a change of the primary after {} of {} extents", report.done, report.extents)
        }
        ScrubState::Done if report.equal => "all replicas are equal".to_owned(),
        ScrubState::Done => "REPLICAS ARE NOT PROVEN EQUAL".to_owned(),
    };
    let found = if report.different > 0 { format!("; {blocks}") } else { String::new() };
    let took = duration(report.took_ms);
    parts.push(format!(
        "resource {} from index {} to {}, by {} in {took}: {state}{found}",
        report.resource, report.from, report.index, report.primary
    ));
    if report.state == ScrubState::Done && report.unrepaired > 0 && report.repair != ScrubRepair::All {
        parts.push("  → `mainstay resource scrub NAME --repair` writes anew what is whole on other replicas: by the blocks' checksums, else what most hold, or with two the primary".into());
    }
    parts.join("\n")
}

fn row(found: &ScrubFindingView) -> Vec<String> {
    let mut groups: Vec<String> = found.groups.iter().map(|group| group.join(" ")).collect();
    if !found.damaged.is_empty() {
        groups.push(format!("damaged: {}", found.damaged.join(" ")));
    }
    let right = match (found.right.is_empty(), found.proven) {
        (true, _) => "not known".to_owned(),
        (false, true) => found.right.join(" "),
        (false, false) => format!("{} (not proven)", found.right.join(" ")),
    };
    let now = match found.outcome {
        ScrubOutcome::Found => "as found",
        ScrubOutcome::Repairing => "being repaired",
        ScrubOutcome::Repaired => "repaired",
        ScrubOutcome::Overwritten => "overwritten by clients",
        ScrubOutcome::Failed => "NOT REPAIRED: no replica could give it",
    };
    vec![
        found.volume.to_string(),
        found.block.to_string(),
        found.blocks.to_string(),
        found.index.to_string(),
        groups.join(" | "),
        right,
        now.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_and_the_next_are_told() {
        const HOUR: u64 = 3_600_000;
        let scrubs = ScrubsView {
            now_ms: 1000 * HOUR,
            interval_ms: 720 * HOUR,
            due_ms: Some(1010 * HOUR),
            ..ScrubsView::default()
        };
        let text = details(&scrubs);
        assert!(
            text.contains("never compared")
                && text.contains("the next is due in 10 h 0 min, one every 30 days"),
            "{text}"
        );
        let one = |end, different, unrepaired| ScrubbedView {
            at_ms: 998 * HOUR,
            took_ms: 60_000,
            end,
            different,
            unrepaired,
            ..ScrubbedView::default()
        };
        let whole = ScrubsView { whole: Some(one(ScrubEnd::Whole, 4, 0)), ..scrubs.clone() };
        let text = details(&whole);
        assert!(
            text.contains("compared 2 h 0 min ago, in 60 s: 4 blocks differed, and do no more"),
            "{text}"
        );
        let failed = ScrubsView {
            failed: Some(one(ScrubEnd::Interrupted, 2, 2)),
            due_ms: Some(0),
            late_ms: Some(5 * HOUR),
            waits_for: Some("there is no primary".into()),
            ..whole
        };
        let text = details(&failed);
        assert!(
            text.contains("ended with its primary, 2 h 0 min ago: 2 blocks differed, 2 STILL DO"),
            "{text}"
        );
        assert!(text.contains("THE NEXT IS LATE by 5 h 0 min: there is no primary"), "{text}");
        let off = ScrubsView { interval_ms: 0, due_ms: None, ..scrubs };
        assert!(details(&off).ends_with("none begins by itself"), "{}", details(&off));
    }
}
