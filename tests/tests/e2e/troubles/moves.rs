//! Moves of primaries and services that an operator asks for, and their refusals.

use super::Trouble;
use crate::cluster::{LIMIT, NODES};
use anyhow::{Result, ensure};
use mainstay_tests::command::Finished;
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_a_primary_without_a_service_is_moved", a_primary_without_a_service_is_moved),
    ("troubles_a_refused_move_says_what_its_target_lacks", a_refused_move_says_what_its_target_lacks),
];

/// Checks that the command was refused and gave these words.
fn refused(finished: &Finished, words: &[&str]) -> Result<()> {
    ensure!(finished.code() != 0, "it is not refused: {finished:?}");
    for word in words {
        ensure!(finished.stderr.contains(word), "'{word}' is not said: {}", finished.stderr);
    }
    Ok(())
}

fn remove(lab: &Lab, name: &str) -> Result<()> {
    lab.cli(&["service", "delete", name])?;
    lab.cli(&["resource", "delete", name, "--yes"])?;
    let gone = format!("test ! -e /run/mainstay/dev/{name}/0");
    wait_for("the links to its devices to go", LIMIT, || {
        NODES.into_iter().try_for_each(|node| lab.shell(node, &gone).map(drop))
    })
}

fn other(node: &str) -> &'static str {
    if node == "n1" { "n2" } else { "n1" }
}

/// The data go with the primary, and nothing that uses the devices loses them.
fn a_primary_without_a_service_is_moved(lab: &Lab) -> Result<()> {
    const NAME: &str = "bare";
    lab.create_resource(NAME, "64MiB", &["n1", "n2"], &["--journal", "16MiB"])?;
    let (from, device) = (lab.primary(NAME)?, format!("/run/mainstay/dev/{NAME}/0"));
    let to = other(&from);
    let go = |to: &str| lab.try_cli(&["resource", "move", NAME, "--to", to]);
    lab.shell(&from, &format!("mkfs.ext4 -q {device} && mkdir -p /mnt/{NAME} && mount {device} /mnt/{NAME} && echo rows >/mnt/{NAME}/file"))?;
    refused(&go(to)?, &["device-in-use", &from, &format!("/mnt/{NAME}")])?;
    ensure!(lab.primary(NAME)? == from, "it moved under a mount");
    lab.shell(&from, &format!("umount /mnt/{NAME}"))?;
    refused(
        &go("n3")?,
        &["not-eligible", "it holds no replica of resource bare", &format!("possible now: {to}")],
    )?;
    lab.cli(&["node", "cordon", to])?;
    refused(&go(to)?, &["not-eligible", "it is cordoned", "possible now: none"])?;
    refused(&lab.try_cli(&["resource", "move", NAME])?, &["not-eligible", to, "it is cordoned"])?;
    lab.cli(&["node", "uncordon", to])?;

    let before = lab.resource(NAME)?.epoch;
    let said = lab.cli(&["resource", "move", NAME])?;
    ensure!(said.contains(&format!("the primary of resource {NAME} is on {to}")), "{said}");
    let now = lab.resource(NAME)?;
    ensure!(now.primary.as_deref() == Some(to) && now.epoch == before + 1, "{now:?}");
    ensure!(now.replicas.iter().all(|replica| replica.in_sync), "a replica left the in-sync set: {now:?}");
    lab.shell(to, &format!("mkdir -p /mnt/{NAME} && mount {device} /mnt/{NAME} && grep -q rows /mnt/{NAME}/file && umount /mnt/{NAME}"))?;
    let again = lab.cli(&["resource", "move", NAME, "--to", to])?;
    ensure!(again.contains("is on"), "{again}");
    let history = lab.cli(&["history", NAME])?;
    ensure!(history.contains("operator"), "{history}");

    // A service takes its resource along, and nothing else moves it.
    sleeping_service(lab, NAME)?;
    refused(&go(&from)?, &["resource-in-use", NAME, &format!(" service move {NAME} --to {from}`")])?;
    remove(lab, NAME)
}

/// A replica is filled so slowly that it is not in sync for long.
fn a_refused_move_says_what_its_target_lacks(lab: &Lab) -> Result<()> {
    const NAME: &str = "behind";
    lab.create_resource(NAME, "128MiB", &["n1", "n2"], &["--journal", "16MiB"])?;
    let from = lab.primary(NAME)?;
    let to = other(&from);
    let fill = format!(
        "head -c 96M /dev/urandom | dd of=/run/mainstay/dev/{NAME}/0 bs=1M iflag=fullblock oflag=direct status=none"
    );
    lab.shell(&from, &fill)?;
    lab.cli(&["resource", "remove-replica", NAME, to])?;
    lab.cli(&["cluster", "set", "c-max-rate=1MiB"])?;
    lab.cli(&["resource", "add-replica", NAME, to, "--no-wait"])?;
    let says = |finished: &Finished| {
        refused(
            finished,
            &["not-eligible", &format!("{to}: it is being copied to"), "are left, which take about"],
        )?;
        refused(
            finished,
            &[&format!("Wait until {to} is in sync: `mainstay "), &format!(" resource status {NAME}`")],
        )
    };
    wait_for("a refusal with the time of the copy", LIMIT, || {
        says(&lab.try_cli(&["resource", "move", NAME, "--to", to])?)
    })?;
    sleeping_service(lab, NAME)?;
    says(&lab.try_cli(&["service", "move", NAME, "--to", to])?)?;
    ensure!(lab.wait_running(NAME, LIMIT)? == from, "the service left {from}");
    lab.cli(&["cluster", "set", "c-max-rate=default"])?;
    lab.wait_in_sync(NAME, LIMIT)?;
    let said = lab.cli(&["service", "move", NAME, "--to", to])?;
    ensure!(said.contains(&format!("runs on {to}")), "{said}");
    remove(lab, NAME)
}

/// A service of the resource's name on it, which runs and does nothing.
fn sleeping_service(lab: &Lab, name: &str) -> Result<()> {
    let process = "[[process]]\nname = 'p'\ncommand = ['sleep', '1000']\n";
    lab.apply_service(name, &format!("name = '{name}'\nresource = '{name}'\n{process}"))?;
    lab.wait_running(name, LIMIT).map(drop)
}
