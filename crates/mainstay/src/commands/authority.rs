//! `mainstay cluster authority …`.

use super::checked_name;
use super::identities::{now_ms, shortened, span_words};
use crate::cli::AuthorityCommand;
use crate::failure::{Code, Failure, Outcome, exit};
use crate::output::Output;
use mainstay_api::rest::{Accepted, AuthorityPhase, AuthorityView, CertificatesView, LeaveOut, RotationView};
use mainstay_client::Client;
use std::io::IsTerminal;

const PATH: &str = "/v1/cluster/rotation";

pub fn run(command: AuthorityCommand, client: &Client, output: Output) -> Outcome<()> {
    let accepted: Accepted = match command {
        AuthorityCommand::Show => {
            let view: CertificatesView = client.get("/v1/cluster/certificates")?;
            return output.result(&view, |view| lines(view, now_ms()).join("\n"));
        }
        AuthorityCommand::Rotate => client.post(PATH, &())?,
        AuthorityCommand::Cancel => client.delete(PATH)?,
        AuthorityCommand::LeaveOut { nodes, yes } => {
            nodes.iter().try_for_each(|node| checked_name(node).map(drop))?;
            if !yes {
                confirm(&nodes)?;
            }
            client.post(&format!("{PATH}/left-out"), &LeaveOut { nodes })?
        }
    };
    output
        .result(&accepted, |accepted| format!("{}\nsee `mainstay cluster authority show`", accepted.message))
}

/// Has the operator type the names of nodes that have to join anew.
fn confirm(nodes: &[String]) -> Outcome<()> {
    let names = nodes.join(" ");
    let remedy = format!(
        "To leave them out without a question, run `mainstay cluster authority leave-out {names} --yes`."
    );
    if !std::io::stdin().is_terminal() {
        let message = format!("{names} would have to join anew, and there is no terminal to ask on");
        return Err(Failure::new(Code::NotConfirmed, message, remedy));
    }
    eprint!("No node will believe {names} any more: they have to join anew. Type the names to go on: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && answer.split_whitespace().eq(nodes.iter().map(String::as_str)) {
        return Ok(());
    }
    let message = format!("{names} are not left out");
    Err(Failure::new(Code::NotConfirmed, message, remedy).with_exit(exit::FAILED))
}

/// The authorities, and how far a rotation is.
pub(super) fn lines(view: &CertificatesView, now_ms: u64) -> Vec<String> {
    let mut lines: Vec<String> = view.authorities.iter().map(line).collect();
    lines.extend(view.rotation.iter().flat_map(|rotation| rotation_lines(rotation, now_ms)));
    lines
}

fn line(authority: &AuthorityView) -> String {
    let use_now = match authority.phase {
        Some(AuthorityPhase::Announced) => "is announced",
        _ if authority.issues => "gives certificates",
        _ => "is believed",
    };
    format!("authority {} {use_now}: {}", authority.number, shortened(&authority.fingerprint))
}

fn rotation_lines(rotation: &RotationView, now_ms: u64) -> Vec<String> {
    let RotationView { to, phase, since_ms, waits_for, dead } = rotation;
    let (step, part) = match phase {
        AuthorityPhase::Announced => (1, "nodes that have not learnt of it"),
        _ => (2, "nodes without a certificate of it"),
    };
    let age = span_words(now_ms.saturating_sub(*since_ms));
    let waits = if waits_for.is_empty() { "none".to_owned() } else { waits_for.join(", ") };
    let mut lines = vec![
        format!("authority {to} replaces the others: step {step} of 2, for {age}"),
        format!("  {part}: {waits}"),
    ];
    if !dead.is_empty() {
        lines.push(format!("  dead: {}; `mainstay status` says what to do", dead.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_is_shown_with_its_step_and_the_nodes_that_it_waits_for() {
        let authority = |number, issues, phase| AuthorityView {
            number,
            issues,
            phase,
            fingerprint: "00c0ffee00c0ffee00c0ffee".into(),
        };
        let rotation = RotationView {
            to: 2,
            phase: AuthorityPhase::Announced,
            since_ms: 0,
            waits_for: vec!["n2".into(), "n3".into()],
            dead: vec!["n3".into()],
        };
        let announced = Some(AuthorityPhase::Announced);
        let authorities = vec![authority(1, true, None), authority(2, false, announced)];
        let view = CertificatesView { authorities, nodes: Vec::new(), rotation: Some(rotation) };
        let shown = lines(&view, 3 * 60 * 60_000);
        assert_eq!(shown[0], "authority 1 gives certificates: 00c0ffee00c0ffee…");
        assert_eq!(shown[1], "authority 2 is announced: 00c0ffee00c0ffee…");
        assert_eq!(shown[2], "authority 2 replaces the others: step 1 of 2, for 3 h");
        assert_eq!(shown[3], "  nodes that have not learnt of it: n2, n3");
        assert_eq!(shown[4], "  dead: n3; `mainstay status` says what to do");
        let old = r#"{"authorities":[{"number":1,"issues":true,"fingerprint":"00"}],"nodes":[]}"#;
        let view: CertificatesView = serde_json::from_str(old).unwrap();
        assert_eq!(lines(&view, 0), ["authority 1 gives certificates: 00…"]);
    }
}
