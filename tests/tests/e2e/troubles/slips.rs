//! Slips of the hand: each is refused with field, cause and remedy, before anything is changed.

use super::Trouble;
use crate::cluster::NODES;
use anyhow::{Result, ensure};
use mainstay_tests::command::{self, Finished};
use mainstay_tests::lab::Lab;
use std::time::Duration;

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_a_slip_of_the_hand_is_refused_before_anything_changes", slips),
    ("troubles_a_waiting_command_names_its_reason", waits),
];

const NAME: &str = "slips";
const QUICK: Duration = Duration::from_secs(60);
const USAGE: i32 = 2;
const REFUSED: i32 = 1;

/// Checks that the command was refused with this exit code, with these words, and with a remedy.
fn refused(finished: &Finished, exit: i32, words: &[&str]) -> Result<()> {
    ensure!(finished.code() == exit, "exit code {} and not {exit}: {finished:?}", finished.code());
    for word in words {
        ensure!(finished.stderr.contains(word), "'{word}' is not said: {}", finished.stderr);
    }
    ensure!(finished.stderr.contains("what to do: "), "no remedy: {}", finished.stderr);
    let raw = ["os error", "panicked"].into_iter().find(|raw| finished.stderr.contains(raw));
    ensure!(raw.is_none(), "{raw:?} is said: {}", finished.stderr);
    Ok(())
}

/// `mainstay` on a node, which asks that node's own agent.
fn on(lab: &Lab, node: &str, words: &[&str]) -> Result<Finished> {
    let binary = lab.binary().to_string_lossy().into_owned();
    Ok(command::finish(&mut lab.inside(node, &[&[binary.as_str()][..], words].concat()), QUICK)?)
}

fn apply(lab: &Lab, toml: &str) -> Result<Finished> {
    let file = lab.dir().join("slips.toml");
    std::fs::write(&file, toml)?;
    lab.try_cli(&["service", "apply", &file.to_string_lossy()])
}

fn slips(lab: &Lab) -> Result<()> {
    lab.create_resource(NAME, "64MiB", &NODES, &["--journal", "16MiB"])?;
    let node = lab.primary(NAME)?;
    lab.cli(&["snapshot", "create", NAME, "kept"])?;
    service_files(lab, &node)?;
    directories(lab, &node)?;
    names_that_are_taken(lab)?;
    ensure!(lab.status()?.services.is_empty(), "a service was made");
    // Not the revision of the record, because what a test before this one ended may be told later.
    let files = |lab: &Lab| lab.shell(&node, "ls -A /etc");
    let before = files(lab)?;
    refused(
        &on(lab, &node, &["agent", "--state-dir", "/etc"])?,
        USAGE,
        &["--state-dir: /etc", "system needs"],
    )?;
    ensure!(files(lab)? == before, "an agent that was refused changed its state directory");
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

fn service_files(lab: &Lab, node: &str) -> Result<()> {
    let head = format!("name = \"{NAME}\"\nresource = \"{NAME}\"\n");
    let mount = |path: &str| format!("{head}[mount]\npath = \"{path}\"\nhide_files = true\n");
    for path in ["/usr/lib/systemd", "/etc/ssh", "/usr/share", "/var/lib/dpkg", "/boot/grub", "/run/systemd"]
    {
        refused(&apply(lab, &mount(path))?, REFUSED, &["mount.path", path, "system needs"])?;
    }
    // All nodes of all labs on this machine share /mnt.
    let link = format!("/mnt/{}-link", lab.name);
    lab.shell(node, &format!("ln -sfn /usr/share {link}"))?;
    refused(&apply(lab, &mount(&format!("{link}/doc")))?, REFUSED, &["mount.path", "/usr/share/doc"])?;
    lab.shell(node, &format!("rm {link}"))?;
    let process = "[[process]]\nname = \"p\"\ncommand = [\"sleep\", \"9\"]\n";
    refused(
        &apply(lab, &format!("{head}{process}restart = 3\n"))?,
        REFUSED,
        &["process[0].restart (line 6)", "did you mean"],
    )?;
    let finished = apply(lab, &format!("{head}{process}stop_timeout_s = \"5s\"\n"))?;
    refused(
        &finished,
        REFUSED,
        &["process[0].stop_timeout_s (line 6)", "\"5s\"", "number of seconds", "stop_timeout_s = 30"],
    )
}

/// The same holds when standard error is no terminal, as in a script.
fn waits(lab: &Lab) -> Result<()> {
    lab.create_resource(NAME, "64MiB", &NODES, &["--journal", "16MiB"])?;
    let process =
        "[[process]]\nname = \"p\"\ncommand = [\"sleep\", \"1000\"]\nprepare = [\"sleep\", \"3\"]\n";
    let applied = apply(lab, &format!("name = \"{NAME}\"\nresource = \"{NAME}\"\n{process}"))?;
    ensure!(applied.code() == 0, "{applied:?}");
    ensure!(
        applied.stderr.contains(&format!("service {NAME}: starting on ")),
        "the wait is silent: {applied:?}"
    );
    let deleted = lab.try_cli(&["service", "delete", NAME])?;
    ensure!(deleted.stdout.contains("is stopped and deleted"), "{deleted:?}");
    let deleted = lab.try_cli(&["resource", "delete", NAME, "--yes"])?;
    ensure!(deleted.stdout.contains("is deleted"), "{deleted:?}");
    Ok(())
}

/// A name that is taken is refused. The refusal tells each field as it is, and as the operator
/// asked for it.
fn names_that_are_taken(lab: &Lab) -> Result<()> {
    let create = |more: &[&str]| {
        lab.try_cli(&[&["resource", "create", NAME, "--replicas", "n1,n2,n3"][..], more].concat())
    };
    let larger = create(&["--size", "128MiB", "--journal", "16MiB"])?;
    refused(
        &larger,
        REFUSED,
        &["[name-taken]", "64MiB there, 128MiB asked for", " resource resize slips 128MiB"],
    )?;
    let journal = create(&["--size", "64MiB", "--journal", "32MiB"])?;
    refused(&journal, REFUSED, &["journal: 16MiB there, 32MiB asked for", "another name"])?;
    refused(
        &lab.try_cli(&["snapshot", "create", NAME, "kept"])?,
        REFUSED,
        &["of another moment", "snapshot delete slips kept"],
    )
}

/// Directories that a copy of a snapshot cannot go to.
fn directories(lab: &Lab, node: &str) -> Result<()> {
    let pool = "/var/lib/mainstay/pools/default";
    let replica = lab.shell(node, &format!("ls -d {pool}/{NAME}-*"))?.trim().to_owned();
    let clone = |directory: &str| on(lab, node, &["snapshot", "clone", NAME, "kept", directory]);
    lab.shell(
        node,
        "mkdir -p /var/lib/mainstay/pools/default/full && touch /var/lib/mainstay/pools/default/full/notes",
    )?;
    let (inside, full, file) =
        (format!("{replica}/copy"), format!("{pool}/full"), format!("{pool}/full/notes"));
    for (directory, words) in [
        ("/etc/slips", ["/etc/slips", "system needs"]),
        ("/usr/share/slips", ["/usr/share/slips", "system needs"]),
        (pool, [pool, "Mainstay's own"]),
        ("/run/mainstay/copy", ["/run/mainstay/copy", "Mainstay's own"]),
        (replica.as_str(), [replica.as_str(), "directory of a replica"]),
        (inside.as_str(), [inside.as_str(), "directory of a replica"]),
        (full.as_str(), [full.as_str(), "notes is there"]),
        (file.as_str(), [file.as_str(), "not a directory"]),
    ] {
        refused(&clone(directory)?, REFUSED, &words)?;
    }
    lab.shell(node, &format!("rm -r {full} && test ! -e {inside}"))?;
    let copy = format!("{pool}/clones/slips");
    ensure!(clone(&copy)?.code() == 0, "a new directory in the pool is one");
    refused(&clone(&copy)?, REFUSED, &["not empty", "vol0 is there"])?;
    lab.shell(node, &format!("rm -r {pool}/clones")).map(drop)
}
