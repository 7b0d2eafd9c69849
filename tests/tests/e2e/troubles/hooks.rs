//! Hooks of operators: the one before a start, and those for addresses.

use super::Trouble;
use crate::cluster::LIMIT;
use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;
use std::fs::{Permissions, create_dir_all, remove_dir_all, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub const TROUBLES: &[(&str, Trouble)] =
    &[("troubles_hooks_refuse_a_start_and_are_told_of_addresses", refuse_and_are_told)];

const NAME: &str = "hooked";
const WITHIN: &str = "/run/hooks.log";

fn hook(directory: &Path, stage: &str, script: &str) -> Result<()> {
    let file = directory.join(stage);
    write(&file, format!("#!/bin/sh\n{script}\n"))?;
    Ok(set_permissions(&file, Permissions::from_mode(0o755))?)
}

/// The agents of the shared lab have no hooks, so this test has a lab of its own.
fn refuse_and_are_told(_: &Lab) -> Result<()> {
    let name = std::env::var("MAINSTAY_E2E_LAB").unwrap_or_else(|_| "e2e".into()) + "-hooks";
    let directory = std::env::temp_dir().join(&name);
    create_dir_all(&directory)?;
    hook(
        &directory,
        "service-starting",
        &format!(
            "echo \"$MAINSTAY_STAGE $MAINSTAY_SERVICE $MAINSTAY_TO $MAINSTAY_CAUSE\" >>{WITHIN}\n\
             test ! -e /run/hang || exec sleep 7654321\n\
             test ! -e /run/refuse || {{ echo no licence here; exit 3; }}\necho welcome here"
        ),
    )?;
    for stage in ["address-added", "address-removed"] {
        let told = "$MAINSTAY_STAGE $MAINSTAY_ADDRESS $MAINSTAY_INTERFACE $MAINSTAY_SERVICE $MAINSTAY_NODE $MAINSTAY_CAUSE";
        hook(&directory, stage, &format!("echo \"{told}\" >>{WITHIN}"))?;
    }
    hook(&directory, "all", "echo \"$MAINSTAY_STAGE\" >>/run/all.log; exit 1")?;
    let lab = Lab::new(&name)?;
    lab.down()?;
    let mut up = lab.command(&["lab", "--name", &name, "up", "--nodes", "3"]);
    ensure!(up.env("MAINSTAY_HOOKS", &directory).status()?.success(), "no lab");
    let result = in_lab(&lab);
    if std::env::var_os("MAINSTAY_E2E_KEEP").is_none() {
        lab.down()?;
        remove_dir_all(&directory)?;
    }
    result
}

fn log(lab: &Lab, node: &str) -> Result<String> {
    lab.shell(node, &format!("cat {WITHIN} 2>/dev/null || true"))
}

/// Waits until the last line of the log of a node begins so.
fn told(lab: &Lab, node: &str, line: &str) -> Result<()> {
    wait_for(&format!("'{line}' on {node}"), LIMIT, || {
        let log = log(lab, node)?;
        ensure!(log.lines().last().is_some_and(|last| last == line), "{log}");
        Ok(())
    })
}

fn in_lab(lab: &Lab) -> Result<()> {
    let own = lab.address("n1")?;
    let (network, _) = own.rsplit_once('.').context("an address of IPv4")?;
    let address = format!("{network}.61/24");
    let found = lab.shell("n1", &format!("ip -o address show | grep -w {own}"))?;
    let interface = found.split_whitespace().nth(1).context("an interface")?.to_owned();
    lab.create_resource(NAME, "16MiB", &["n1", "n2"], &["--journal", "16MiB", "--preferred", "n1"])?;
    let file = format!(
        "name = '{NAME}'\nresource = '{NAME}'\n[policy]\nrestart_limit = 1\n[[process]]\nname = 'p'\n\
         command = ['sh', '-c', 'touch /run/began; exec sleep 1234567']\n[vip]\naddress = '{address}'\n"
    );
    lab.apply_service(NAME, &file)?;
    ensure!(lab.wait_running(NAME, LIMIT)? == "n1", "it is not on the preferred node");
    let added = |node: &str, cause: &str| {
        told(lab, node, &format!("address-added {address} {interface} {NAME} {node} {cause}"))
    };
    added("n1", "first")?;
    ensure!(
        log(lab, "n1")?.starts_with(&format!("service-starting {NAME} n1 first\n")),
        "{}",
        log(lab, "n1")?
    );

    // A hook that refuses the start keeps everything of the service from the node.
    lab.shell("n2", "touch /run/refuse")?;
    let refused = lab.try_cli(&["service", "move", NAME, "--to", "n2"])?;
    ensure!(refused.code() != 0 && refused.stderr.contains("no licence here"), "{refused:?}");
    ensure!(refused.stderr.contains("exit code 3"), "{refused:?}");
    lab.shell("n2", "test ! -e /run/began")?;
    ensure!(lab.wait_running(NAME, LIMIT)? == "n1", "it is not back");
    wait_for("the hooks of the address on n1", LIMIT, || {
        let log = log(lab, "n1")?;
        let removed = format!("address-removed {address} {interface} {NAME} n1 operator");
        ensure!(log.lines().any(|line| line == removed), "{log}");
        ensure!(log.lines().filter(|line| line.starts_with("address-added")).count() == 2, "{log}");
        Ok(())
    })?;
    ensure!(!log(lab, "n2")?.contains("address"), "an address was on n2: {}", log(lab, "n2")?);

    // A restarted agent tells nothing anew.
    let before = log(lab, "n1")?;
    lab.restart_agent("n1")?;
    lab.wait_running(NAME, LIMIT)?;
    lab.cli(&["service", "restart", NAME, "--process", "p"])?;
    let restarted = log(lab, "n1")?;
    let lines = restarted.strip_prefix(&before).context("the log goes on")?;
    ensure!(!lines.contains("service-starting"), "the hook ran without a start: {lines}");

    lab.shell("n2", "rm /run/refuse")?;
    lab.cli(&["service", "move", NAME, "--to", "n2"])?;
    added("n2", "operator")?;
    let events = lab.cli(&["events"])?;
    ensure!(events.contains("hook service-starting: welcome here"), "{events}");

    // A stop, and the end of the lease, wait for no hook.
    let hangs = |node: &str| -> Result<bool> {
        Ok(!lab.shell(node, "pgrep -f '^sleep 7654321' || true")?.trim().is_empty())
    };
    let hung = |node: &str, yes: bool| {
        wait_for(&format!("the hook on {node}: {yes}"), LIMIT, || {
            ensure!(hangs(node)? == yes, "not yet");
            Ok(())
        })
    };
    lab.shell("n1", "touch /run/hang")?;
    lab.cli(&["service", "move", NAME, "--to", "n1", "--no-wait"])?;
    hung("n1", true)?;
    lab.cli(&["service", "stop", NAME])?;
    ensure!(!hangs("n1")?, "the hook outlives the stop");
    lab.cli(&["service", "start", NAME, "--no-wait"])?;
    hung("n1", true)?;
    lab.lab(&["isolate", "n1"])?;
    hung("n1", false)?;
    lab.shell("n1", "rm /run/hang")?;
    lab.lab(&["heal"])?;
    lab.wait_running(NAME, LIMIT)?;
    // The file for all stages fails always, and keeps nothing from starting.
    let all = lab.shell("n2", "cat /run/all.log")?;
    ensure!(all.contains("address-added") && !all.contains("service-starting"), "{all}");
    Ok(())
}
