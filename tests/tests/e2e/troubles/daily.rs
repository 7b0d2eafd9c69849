//! Daily verbs of services: stop, start, restart, show, edit, logs, check, history.

use super::Trouble;
use crate::cluster::{LIMIT, NODES};
use anyhow::{Result, ensure};
use mainstay_api::rest::{ServiceChecked, ServiceFile, ServiceHistory, ServiceLogs, ServicePhase};
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_a_stopped_service_stays_stopped_through_a_failover", stays_stopped),
    ("troubles_a_restart_in_place_keeps_the_node_and_counts_no_failure", restarts_in_place),
    ("troubles_the_output_of_a_process_is_read_from_another_node", reads_logs),
    ("troubles_a_service_is_shown_and_edited_without_its_secrets", shown_and_edited),
    ("troubles_a_file_is_checked_on_every_node_before_anything_runs", checked_before),
];

const SECRET: &str = "hunter2";

/// A service of two processes that say who they are and never end.
fn file(name: &str) -> String {
    let process = |process: &str| {
        format!(
            "[[process]]\nname = '{process}'\ncommand = ['bash', '-c', 'echo {process} speaks; exec -a {name}-{process} sleep 100000']\n"
        )
    };
    let env = format!("env = {{ PASSWORD = '{SECRET}' }}\n");
    format!("name = '{name}'\nresource = '{name}'\n{}{env}{}", process("one"), process("two"))
}

fn make(lab: &Lab, name: &str) -> Result<String> {
    lab.create_resource(name, "64MiB", &NODES, &[])?;
    lab.apply_service(name, &file(name))?;
    lab.wait_running(name, LIMIT)
}

fn remove(lab: &Lab, name: &str) -> Result<()> {
    lab.cli(&["service", "delete", name])?;
    lab.cli(&["resource", "delete", name, "--yes"]).map(drop)
}

/// The process id of a process, inside the node; empty if it does not run.
fn pid(lab: &Lab, node: &str, process: &str) -> Result<String> {
    Ok(lab.shell(node, &format!("pgrep -f '^{process} 100000' || true"))?.trim().to_owned())
}

fn runs_nowhere(lab: &Lab, name: &str) -> Result<()> {
    for node in NODES {
        let found = pid(lab, node, &format!("{name}-one"))?;
        ensure!(found.is_empty(), "process {found} of {name} runs on {node}");
    }
    Ok(())
}

fn stays_stopped(lab: &Lab) -> Result<()> {
    let node = make(lab, "halt")?;
    let said = lab.cli(&["service", "stop", "halt"])?;
    ensure!(said.contains("stays stopped"), "{said}");
    runs_nowhere(lab, "halt")?;
    ensure!(lab.primary("halt")? == node, "its resource left {node}");
    let again = lab.cli(&["service", "stop", "halt"])?;
    ensure!(again.contains("is stopped"), "{again}");
    let status = lab.cli(&["service", "status", "halt"])?;
    ensure!(status.contains("stopped by an operator since"), "{status}");
    let calm = lab.try_cli(&["status"])?;
    ensure!(calm.code() == 0, "a stopped service needs attention: {calm:?}");
    let refused = lab.try_cli(&["service", "restart", "halt"])?;
    ensure!(refused.code() == 1 && refused.stderr.contains("service start halt"), "{refused:?}");

    // Neither a change of its file, nor a restarted agent, nor a failover starts it.
    lab.apply_service("halt", &file("halt").replace("speaks", "talks"))?;
    lab.restart_agent(&node)?;
    runs_nowhere(lab, "halt")?;
    lab.kill(&node)?;
    let next = wait_for("another primary", LIMIT, || {
        let next = lab.primary("halt")?;
        ensure!(next != node, "{node} is primary");
        Ok(next)
    })?;
    lab.start(&node)?;
    lab.wait_in_sync("halt", LIMIT)?;
    runs_nowhere(lab, "halt")?;
    let said = lab.cli(&["service", "start", "halt"])?;
    ensure!(said.contains("runs on"), "{said}");
    ensure!(lab.wait_running("halt", LIMIT)? == next, "it does not run where its resource is");

    let history: ServiceHistory = lab.cli_json(&["service", "history", "halt"])?;
    for part in ["created", "an operator stops it", "is primary in epoch", "an operator starts it"] {
        ensure!(history.events.iter().any(|event| event.text.contains(part)), "no '{part}' in {history:?}");
    }
    let last: ServiceHistory = lab.cli_json(&["service", "history", "halt", "-n", "1"])?;
    ensure!(last.events.len() == 1 && last.events.last() == history.events.last(), "{last:?}");
    remove(lab, "halt")
}

fn restarts_in_place(lab: &Lab) -> Result<()> {
    let node = make(lab, "again")?;
    let both =
        || -> Result<[String; 2]> { Ok([pid(lab, &node, "again-one")?, pid(lab, &node, "again-two")?]) };
    let before = both()?;
    let said = lab.cli(&["service", "restart", "again", "--process", "two"])?;
    ensure!(said.contains("process two of service again is restarted on"), "{said}");
    let one = both()?;
    ensure!(one[0] == before[0] && one[1] != before[1] && !one[1].is_empty(), "{before:?}, then {one:?}");
    lab.cli(&["service", "restart", "again"])?;
    let all = both()?;
    ensure!(all.iter().all(|pid| !pid.is_empty() && !one.contains(pid)), "{one:?}, then {all:?}");
    let view = lab.service("again")?;
    ensure!(view.phase == ServicePhase::Running && view.phase_node.as_deref() == Some(&*node), "{view:?}");
    ensure!(view.failures.is_empty() && !view.restarting, "{view:?}");
    // A restarted agent does not do it once more.
    lab.restart_agent(&node)?;
    lab.wait_running("again", LIMIT)?;
    ensure!(both()? == all, "{all:?}, then {:?}", both()?);
    let refused = lab.try_cli(&["service", "restart", "again", "--process", "three"])?;
    ensure!(refused.code() == 1 && refused.stderr.contains("one, two"), "{refused:?}");
    remove(lab, "again")
}

fn reads_logs(lab: &Lab) -> Result<()> {
    let node = make(lab, "said")?;
    // The agent that is asked is that of the first node. The service is moved to another one.
    let to = if node == NODES[0] { NODES[1] } else { node.as_str() };
    if to != node {
        lab.cli(&["service", "move", "said", to])?;
    }
    let logs: ServiceLogs = lab.cli_json(&["service", "logs", "said"])?;
    ensure!(logs.node == to && logs.logs.len() == 2, "{logs:?}");
    for log in &logs.logs {
        ensure!(log.text.contains(&format!("{} speaks", log.process)), "{log:?}");
        ensure!(log.text.contains("mainstay: start of"), "{log:?}");
    }
    let one = lab.cli(&["service", "logs", "said", "--process", "two", "-n", "1"])?;
    ensure!(one.trim() == "two speaks", "{one}");
    let unknown = lab.try_cli(&["service", "logs", "said", "--process", "three"])?;
    ensure!(unknown.code() == 1 && unknown.stderr.contains("one, two"), "{unknown:?}");
    // Output of a stopped service can be read, too.
    lab.cli(&["service", "stop", "said"])?;
    let stopped = lab.cli(&["service", "logs", "said", "--process", "one"])?;
    ensure!(stopped.contains("one speaks"), "{stopped}");
    remove(lab, "said")
}

fn shown_and_edited(lab: &Lab) -> Result<()> {
    make(lab, "shown")?;
    let shown: ServiceFile = lab.cli_json(&["service", "show", "shown"])?;
    ensure!(!shown.toml.contains(SECRET), "{}", shown.toml);
    for line in ["PASSWORD", "restart_limit = 3  # default", "# user is not set"] {
        ensure!(shown.toml.contains(line), "no '{line}' in {}", shown.toml);
    }
    // To apply the shown file changes nothing: hidden values stay as they are.
    let path = lab.dir().join("shown.toml");
    std::fs::write(&path, &shown.toml)?;
    let said = lab.cli(&["service", "apply", &path.to_string_lossy()])?;
    ensure!(said.contains("unchanged"), "{said}");

    let edit = |script: &str, more: &[&str]| {
        let editor = lab.dir().join("editor.sh");
        std::fs::write(&editor, format!("#!/bin/sh\n{script}\n"))?;
        let words = [&["service", "edit", "shown"][..], more].concat();
        lab.try_cli_with(&words, &[("VISUAL", &format!("sh {}", editor.display()))])
    };
    let none = edit("true", &["--yes"])?;
    ensure!(none.code() == 0 && none.stderr.contains("was not changed"), "{none:?}");
    let done = edit("sed -i 's/restart_limit = 3 .*/restart_limit = 7/' \"$1\"", &["--yes"])?;
    ensure!(done.code() == 0, "{done:?}");
    let now: ServiceFile = lab.cli_json(&["service", "show", "shown"])?;
    ensure!(now.toml.contains("restart_limit = 7\n") && now.edition > shown.edition, "{now:?}");
    // Without a terminal and without --yes nothing is applied, and the change is kept in a file.
    let kept = edit("sed -i 's/restart_limit = 7/restart_limit = 8/' \"$1\"", &[])?;
    ensure!(kept.code() == 2 && kept.stderr.contains("Your change is in"), "{kept:?}");
    let wrong = edit("echo 'restart = 1' >> \"$1\"", &["--yes"])?;
    ensure!(wrong.code() == 1 && wrong.stderr.contains("Your change is in"), "{wrong:?}");
    let after: ServiceFile = lab.cli_json(&["service", "show", "shown"])?;
    ensure!(after == now, "{after:?}");
    lab.wait_running("shown", LIMIT)?;
    remove(lab, "shown")
}

fn checked_before(lab: &Lab) -> Result<()> {
    lab.create_resource("fits", "64MiB", &NODES, &[])?;
    let check = |toml: &str| -> Result<_> {
        let path = lab.dir().join("fits.toml");
        std::fs::write(&path, toml)?;
        lab.try_cli(&["--json", "service", "check", &path.to_string_lossy()])
    };
    let good = check(&file("fits"))?;
    let checked: ServiceChecked = serde_json::from_str(&good.stdout)?;
    ensure!(good.code() == 0 && checked.nodes.len() == NODES.len(), "{good:?}");
    ensure!(lab.service("fits").is_err(), "the check made the service");

    // This directory is another one on each node.
    let program = "/run/mainstay/only-here";
    lab.shell(NODES[1], &format!("cp /bin/sleep {program}; chmod +x {program}"))?;
    let some = check(&file("fits").replacen("'bash'", &format!("'{program}'"), 1))?;
    let checked: ServiceChecked = serde_json::from_str(&some.stdout)?;
    let failing = checked.nodes.iter().filter(|on| !on.problems.is_empty());
    let failing: Vec<&str> = failing.map(|on| on.node.as_str()).collect();
    ensure!(some.code() == 4 && failing.len() == 2 && !failing.contains(&NODES[1]), "{some:?}");

    let none = check(&file("fits").replacen("'bash'", "'/no/such/program'", 1))?;
    ensure!(none.code() == 1 && none.stdout.contains("process[0].command"), "{none:?}");
    let wrong = check("name = 'fits'\n")?;
    ensure!(wrong.code() == 1, "{wrong:?}");
    lab.cli(&["resource", "delete", "fits", "--yes"]).map(drop)
}
