//! `mainstay resource scrub …`.

use super::{
    POLL,
    resource::{duration, path},
};
use crate::failure::{Failure, Outcome, exit};
use crate::output::{Output, Progress, table};
use mainstay_api::client::Client;
use mainstay_api::engine::{ScrubOutcome, ScrubState};
use mainstay_api::rest::{Accepted, ScrubFinding, ScrubReport, ScrubStart};

/// Begins one, and waits for its end unless that is not wanted.
pub fn run(name: &str, start: ScrubStart, no_wait: bool, client: &Client, output: Output) -> Outcome<u8> {
    let at = format!("{}/scrub", path(name)?);
    let accepted: Accepted = client.post(&at, &start)?;
    if no_wait {
        output.result(&accepted, |accepted| accepted.message.clone())?;
        return Ok(0);
    }
    let mut progress = Progress::new();
    let report = loop {
        let report: ScrubReport = match client.get(&at).map_err(Failure::from) {
            Err(failure) if failure.body.code == "no-scrub" => return Err(interrupted(name)),
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

/// Says how far it is, or how the last one ended.
pub fn report(name: &str, client: &Client, output: Output) -> Outcome<u8> {
    let report: ScrubReport = client.get(&format!("{}/scrub", path(name)?))?;
    verdict(&report, output)
}

pub fn stop(name: &str, client: &Client, output: Output) -> Outcome<()> {
    let accepted: Accepted = client.delete(&format!("{}/scrub", path(name)?))?;
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn interrupted(name: &str) -> Failure {
    Failure::new(
        "scrub-interrupted",
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
    format!("comparing replicas of {}: {percent} %{left}{found}", report.resource)
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
    if report.state == ScrubState::Done && report.unrepaired > 0 && !report.repair {
        parts.push("  → `mainstay resource scrub NAME --repair` writes anew what is whole on other replicas: by the blocks' checksums, else what most hold, or with two the primary".into());
    }
    parts.join("\n")
}

fn row(found: &ScrubFinding) -> Vec<String> {
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
        ScrubOutcome::Failed => "NOT REPAIRED: nobody could give it",
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
