//! Forming a cluster, the command line, and the output of the status.

use super::Trouble;
use crate::cluster::LIMIT;
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{
    Accepted, EngineSuccessor, EventsPage, Health, NodeStatus, ServicePhase, StatusView, TokenMade,
};
use mainstay_tests::command::{self, Finished};
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_a_node_with_a_wrong_address_harms_no_cluster", wrong_addresses),
    ("troubles_options_act_on_the_named_object_or_are_refused", idle_options),
    ("troubles_an_interrupted_creation_is_told_and_repeated", interrupted_creation),
    ("troubles_an_agent_or_an_engine_that_is_stopped_is_told", stopped_programs),
    ("troubles_a_cut_link_is_told_by_the_third_node", cut_link),
    ("troubles_a_disk_that_hangs_is_told", hanging_disk),
    ("troubles_a_stuck_service_is_silent_before_it_runs_elsewhere", stuck_service),
    ("troubles_a_voter_that_receives_no_entries_is_told", voter_without_entries),
    ("troubles_a_node_starts_its_programs_anew_while_its_service_runs_elsewhere", upgraded_node),
    ("troubles_an_engine_is_replaced_under_a_service_that_writes", engine_replaced),
    ("troubles_a_service_is_silent_in_time_when_the_next_engine_never_comes", engine_never_comes),
];

const NAME: &str = "scratch";
/// Longest time for a command that is refused.
const QUICK: Duration = Duration::from_secs(60);
const USAGE: i32 = 2;
const REFUSED: i32 = 1;
const UNREACHABLE: i32 = 3;
const ATTENTION: i32 = 4;
const INTERRUPTED: i32 = 130;

fn refused(finished: &Finished, exit: i32, code: &str) -> Result<()> {
    ensure!(
        finished.code() == exit && finished.stderr.contains(&format!("[{code}]")),
        "{code}: {finished:?}"
    );
    Ok(())
}

/// Runs `mainstay` inside a node, on that node's own agent.
fn on(lab: &Lab, node: &str, words: &[&str]) -> Result<Finished> {
    Ok(command::finish(&mut lab.inside(node, &[&["mainstay"][..], words].concat()), QUICK)?)
}

/// The first process ids of a program of ours, to be stopped and continued.
fn signal(lab: &Lab, node: &str, program: &str, signal: &str) -> Result<()> {
    let pids = lab.pids(node, program)?;
    ensure!(!pids.is_empty(), "no {program} runs on {node}");
    let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
    lab.shell(node, &format!("kill -{signal} {}", pids.join(" "))).map(drop)
}

/// The same command with a terminal as its standard output.
fn on_a_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut shown = Command::new("script");
    shown.args(["-qec", &words.join(" "), "/dev/null"]);
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shown.env(name, value);
        }
    }
    shown
}

fn status_of(lab: &Lab, node: &str) -> Result<StatusView> {
    Ok(lab.agent(node)?.get("/v1/status")?)
}

/// R29: two machines without a cluster. The second one states wrong addresses: the first one's
/// cluster goes on each time, and the right address joins afterwards.
fn wrong_addresses(shared: &Lab) -> Result<()> {
    let lab = Lab::new(&format!("{}-joins", shared.name))?;
    lab.up_with(2, &["--plain"])?;
    let (mut programs, nodes) = (Vec::new(), ["n1", "n2"]);
    for node in nodes {
        let address = lab.address(node)?;
        for (program, port) in [("engine", 7401), ("agent", 7400)] {
            let listen = format!("{address}:{port}");
            let words = ["mainstay", program, "--listen", &listen];
            programs.push(lab.spawn(node, &words, &format!("{node}-{program}.log"))?);
        }
    }
    let result = join_with_wrong_addresses(&lab);
    // These processes end with the lab.
    lab.down()?;
    for mut program in programs {
        program.wait()?;
    }
    result
}

fn join_with_wrong_addresses(lab: &Lab) -> Result<()> {
    for node in ["n1", "n2"] {
        wait_for("an agent with an engine", LIMIT, || {
            ensure!(status_of(lab, node)?.engine.connected, "no engine on {node}");
            Ok(())
        })?;
    }
    let init = |address: &str| {
        on(lab, "n1", &["cluster", "init", "--name", "c", "--as", "n1", "--address", address])
    };
    for wrong in [
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "10.213.0.2",
        "10.213.0.1:0",
        "10.213.0.1:7401",
        "not an address",
    ] {
        let finished = init(wrong)?;
        ensure!(finished.code() == REFUSED, "{wrong}: {finished:?}");
        ensure!(status_of(lab, "n1")?.cluster.is_none(), "{wrong}: a member is left");
    }
    let made = init("10.213.0.1")?;
    ensure!(made.code() == 0, "{made:?}");
    ensure!(init("10.213.0.1")?.code() == 0, "the same again is no failure");
    let made = on(lab, "n1", &["--json", "cluster", "token", "create", "n2"])?;
    let made: TokenMade = serde_json::from_str(&made.stdout)?;
    let join = |more: &[&str]| {
        let words = ["cluster", "join", "--peer", "10.213.0.1", "--as", "n2", "--token", &made.token];
        on(lab, "n2", &[&words[..], more].concat())
    };
    let wrong: &[&[&str]] = &[
        &["--address", "127.0.0.1"],
        &["--address", "0.0.0.0"],
        &["--address", "224.0.0.1"],
        &["--address", "10.213.0.254"],
        &["--address", "10.213.0.1"],
        &["--address", "10.213.0.2:0"],
        &["--address", "10.213.0.2:7401"],
        &["--address", "10.213.0.2:7499"],
        &["--address", "not an address"],
        &["--engine-address", "10.213.0.254"],
        &["--engine-address", "10.213.0.2:7400"],
        &["--engine-address", "10.213.0.2:7499"],
    ];
    for words in wrong {
        let finished = join(words)?;
        ensure!(
            finished.code() == REFUSED && finished.stderr.contains("what to do"),
            "{words:?}: {finished:?}"
        );
        ensure!(status_of(lab, "n2")?.cluster.is_none(), "{words:?}: n2 has become a member");
        let status = status_of(lab, "n1")?;
        let cluster = status.cluster.context("a cluster")?;
        ensure!(cluster.nodes.len() == 1 && cluster.leader.is_some(), "{words:?}: {cluster:?}");
        ensure!(status.lease_left_ms > 0, "{words:?}: n1 has lost its lease");
        lab.shell("n2", "cd /var/lib/mainstay; ! ls identity.json agent.redb join-nonce 2>/dev/null")
            .with_context(|| format!("{words:?} has left files"))?;
    }
    let joined = join(&[])?;
    ensure!(joined.code() == 0 && joined.stdout.contains("2 of 2 nodes alive"), "{joined:?}");
    ensure!(join(&[])?.code() == 0, "the same again is no failure");
    Ok(())
}

/// A command acts on the node or lab that its options name, and refuses an option that has no
/// effect.
fn idle_options(lab: &Lab) -> Result<()> {
    let run = |words: &[&str]| command::finish(&mut lab.command(words), QUICK);
    let name = lab.name.as_str();
    refused(&run(&["--lab", name, "lab", "--name", "another", "kill", "n1"])?, USAGE, "lab-twice")?;
    let shown = run(&["--lab", name, "lab", "status"])?;
    ensure!(shown.code() == 0 && shown.stdout.contains(name), "{shown:?}");
    for words in [
        &["--lab", name, "--node", "n1", "snapshot", "clone", "a", "b", "/tmp/none"][..],
        &["--lab", name, "inspect", "/tmp/none"],
        &["--lab", name, "agent"],
        &["agent", "--socket", "/tmp/none"],
        &["engine", "--socket", "/tmp/none"],
        &["doctor", "--server", "https://n1"],
        &["--server", "https://n1", "--socket", "/tmp/none", "status"],
        &["--server", "https://n1", "snapshot", "clone", "a", "b", "/tmp/none"],
        &["--socket", "/tmp/none", "--lab", name, "status"],
    ] {
        refused(&run(words)?, USAGE, "option-without-effect")?;
    }
    let wrong_size = run(&["--lab", name, "resource", "create", NAME, "--size", "4GB"])?;
    ensure!(wrong_size.code() == USAGE && wrong_size.stderr.contains("4000000000"), "{wrong_size:?}");
    let create = ["resource", "create", NAME, "--size", "64MiB", "--replicas", "n1,n2", "--journal", "16MiB"];
    let idle = lab.try_cli(&[&create[..], &["--suspend-io", "5s"]].concat())?;
    refused(&idle, REFUSED, "not-for-one-copy")?;
    lab.cli(&create)?;
    ensure!(lab.cli(&create).is_ok(), "the same again is no failure");
    let other = lab.try_cli(&["resource", "create", NAME, "--size", "128MiB", "--journal", "16MiB"])?;
    refused(&other, REFUSED, "name-taken")?;
    for words in [&["c", "--lag-bytes", "4MiB"][..], &["b", "--lag-s", "3"], &["c", "--takeover"]] {
        let finished = lab.try_cli(&[&["resource", "set-mode", NAME][..], words].concat())?;
        refused(&finished, REFUSED, "not-for-this-mode")?;
    }
    let stop = lab.try_cli(&["resource", "scrub", NAME, "--stop"])?;
    refused(&stop, REFUSED, "no-scrub-runs")?;
    for columns in ["60", "80"] {
        for words in [
            &["status"][..],
            &["node", "list"],
            &["events"],
            &["resource", "status", NAME],
            &["resource", "list"],
        ] {
            let mut command = on_a_terminal(&lab.command(&[&["--lab", name][..], words].concat()));
            let shown = command::finish(command.env("COLUMNS", columns), QUICK)?;
            ensure!(shown.stdout.lines().count() > 1, "{words:?}: {shown:?}");
            let limit: usize = columns.parse()?;
            let wide = shown
                .stdout
                .lines()
                .map(|line| line.trim_end_matches('\r'))
                // A command or a path is copied, so neither is broken.
                .filter(|line| !line.contains('`') && line.split_whitespace().count() > 1)
                .find(|line| line.chars().count() > limit);
            ensure!(wide.is_none(), "{words:?} at {columns} columns: {wide:?}");
        }
    }
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// An engine is stopped, so a creation waits. Its command is ended by Ctrl-C, and repeated.
fn interrupted_creation(lab: &Lab) -> Result<()> {
    signal(lab, "n2", "engine", "STOP")?;
    let words = [
        "--lab",
        &lab.name,
        "resource",
        "create",
        NAME,
        "--size",
        "64MiB",
        "--replicas",
        "n1,n2",
        "--journal",
        "16MiB",
    ];
    let mut creating = lab.command(&words);
    let child = creating.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let there = wait_for("the resource to be recorded", LIMIT, || lab.resource(NAME).map(drop));
    command::output(Command::new("kill").args(["-INT", &child.id().to_string()]), QUICK)?;
    let ended = child.wait_with_output()?;
    signal(lab, "n2", "engine", "CONT")?;
    there?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(INTERRUPTED), "{ended:?}");
    for part in ["goes on in the cluster", " resource status scratch`", " resource delete scratch`"] {
        ensure!(said.contains(part), "{part} is not in: {said}");
    }
    lab.cli(&words[2..])?;
    ensure!(lab.resource(NAME)?.health == Health::Ok, "it is not in order");
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// Number of events that contain a text, as n2 has them: the log of a node whose disk hangs stands
/// still.
fn events_with(lab: &Lab, text: &str) -> Result<usize> {
    let page: EventsPage = lab.agent("n2")?.get("/v1/events")?;
    Ok(page.events.iter().filter(|event| event.text.contains(text)).count())
}

/// Waits until the status that `node` gives has an advice with this text.
fn wait_advice(lab: &Lab, node: &str, text: &str) -> Result<()> {
    wait_for(&format!("advice with `{text}`"), LIMIT, || {
        let status = status_of(lab, node)?;
        ensure!(status.advice.iter().any(|line| line.contains(text)), "{:?}", status.advice);
        Ok(())
    })
}

fn wait_well(lab: &Lab, node: &str) -> Result<()> {
    wait_for("a status without advice", LIMIT, || {
        let status = status_of(lab, node)?;
        ensure!(status.advice.is_empty(), "{:?}", status.advice);
        Ok(())
    })
}

fn make(lab: &Lab, replicas: &[&str]) -> Result<()> {
    lab.create_resource(NAME, "64MiB", replicas, &["--journal", "16MiB", "--preferred", replicas[0]])?;
    wait_for("the primary on the first of them", LIMIT, || {
        ensure!(lab.primary(NAME)? == replicas[0], "it is another one");
        Ok(())
    })
}

fn stopped_programs(lab: &Lab) -> Result<()> {
    signal(lab, "n3", "agent", "STOP")?;
    let finished = on(lab, "n3", &["status"]);
    signal(lab, "n3", "agent", "CONT")?;
    let finished = finished?;
    refused(&finished, UNREACHABLE, "agent-timeout")?;
    make(lab, &["n1", "n2"])?;
    let process = "[[process]]\nname = 'w'\ncommand = ['sleep', '100000']\n";
    lab.apply_service(NAME, &format!("name = '{NAME}'\nresource = '{NAME}'\n{process}"))?;
    ensure!(lab.wait_running(NAME, LIMIT)? == "n1", "it does not run where it was to");
    let before = events_with(lab, "its engine has not answered")?;
    let by_itself = events_with(lab, "process w ended by itself")?;
    signal(lab, "n1", "engine", "STOP")?;
    let told = (|| {
        wait_advice(lab, "n1", "its engine has not answered for")?;
        wait_advice(lab, "n3", "its engine has not answered for")?;
        let shown = on(lab, "n3", &["status"])?;
        ensure!(shown.code() == ATTENTION && !shown.stdout.contains("all is well"), "{shown:?}");
        wait_for("an event", LIMIT, || {
            ensure!(events_with(lab, "its engine has not answered")? > before, "none yet");
            Ok(())
        })?;
        // The node gives its lease up, its service is silent, and the other one takes over, all
        // while the engine still stands still.
        wait_for("the service on the other node", LIMIT, || {
            let node = lab.wait_running(NAME, LIMIT)?;
            ensure!(node == "n2", "it runs on {node}");
            Ok(())
        })?;
        ensure!(events_with(lab, "gives its lease up")? > 0, "the cause is not told");
        ensure!(events_with(lab, "process w ended by itself")? == by_itself, "that is untrue");
        ensure!(lab.shell("n1", "pgrep -x sleep || true")?.trim().is_empty(), "it runs on n1, too");
        Ok(())
    })();
    signal(lab, "n1", "engine", "CONT")?;
    told?;
    wait_for("the event of its end", LIMIT, || {
        ensure!(events_with(lab, "no longer the case: its engine")? > 0, "none yet");
        Ok(())
    })?;
    lab.wait_in_sync(NAME, LIMIT)?;
    lab.cli(&["service", "delete", NAME])?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, "n3")
}

/// The primary and a secondary do not reach each other, and the operator asks on the third node.
fn cut_link(lab: &Lab) -> Result<()> {
    make(lab, &["n1", "n2"])?;
    lab.lab(&["cut", "n1", "n2"])?;
    let told = (|| {
        wait_advice(lab, "n3", "node n1: it has had no connection to n2 for")?;
        wait_advice(lab, "n3", "there is no connection between n1 and n2")?;
        let advice = status_of(lab, "n3")?.advice;
        let untrue = advice.iter().find(|line| line.contains("by itself"));
        ensure!(untrue.is_none(), "{advice:?}");
        Ok(())
    })();
    lab.lab(&["heal"])?;
    told?;
    lab.wait_in_sync(NAME, LIMIT)?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, "n3")
}

/// The state directory of the primary is frozen, and later something writes to its device. It hands
/// over, although its disk reports no error.
fn hanging_disk(lab: &Lab) -> Result<()> {
    make(lab, &["n1", "n2"])?;
    let device = "/run/mainstay/dev/scratch/0";
    wait_for("a device", LIMIT, || lab.shell("n1", &format!("test -e {device}")).map(drop))?;
    lab.shell("n1", "fsfreeze --freeze /var/lib/mainstay")?;
    let primary = || -> Result<Option<String>> {
        let status = lab.agent("n2")?.get::<StatusView>("/v1/status")?;
        Ok(status.resources.into_iter().find(|one| one.name == NAME).and_then(|one| one.primary))
    };
    let mut writing = None;
    // Something is to be written to the log of n1, too. It may lead, so this may fail.
    let setting = on(lab, "n2", &["cluster", "set", "slow-for=2100ms"]);
    let told = (|| {
        setting?;
        wait_advice(lab, "n2", "has not completed a write")?;
        // The node itself answers as well, although its state directory is on that disk.
        wait_advice(lab, "n1", "has not completed a write")?;
        // One cause gives one line of advice, and the network counts as whole.
        for node in ["n1", "n2"] {
            let advice = status_of(lab, node)?.advice;
            let untrue = ["received no entries", "no majority of the voters", "the journal of the primary"];
            let found = advice.iter().find(|line| untrue.iter().any(|words| line.contains(words)));
            ensure!(found.is_none(), "asked on {node}: {advice:?}");
        }
        // No write waits, so nothing is lost by staying.
        ensure!(primary()?.as_deref() == Some("n1"), "it moved although nothing waits");
        let of = format!("of={device}");
        let words = ["dd", "if=/dev/zero", &of, "bs=4k", "count=16", "oflag=direct"];
        writing = Some(lab.spawn("n1", &words, "dd.log")?);
        wait_for("another primary", LIMIT, || {
            ensure!(primary()?.as_deref() == Some("n2"), "{:?}", primary()?);
            Ok(())
        })?;
        ensure!(events_with(lab, "gives its lease up")? > 0, "the cause is not told");
        // The write fails, instead of waiting for the disk.
        let writing = writing.as_mut().context("a write")?;
        ensure!(command::wait(writing, LIMIT)?.is_some(), "the write does not end");
        lab.shell("n2", &format!("dd if=/dev/zero of={device} bs=4k count=16 oflag=direct")).map(drop)
    })();
    lab.shell("n1", "fsfreeze --unfreeze /var/lib/mainstay")?;
    if let Some(mut writing) = writing {
        let _ = command::wait(&mut writing, LIMIT);
    }
    told?;
    lab.wait_in_sync(NAME, LIMIT)?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, "n2")
}

/// A service that ignores SIGTERM and writes to its device all the time: its engine stands still,
/// its agent stands still, and its whole node sleeps and wakes up. Each time it is silent before it
/// runs elsewhere, and nothing of it goes on where it was.
fn stuck_service(lab: &Lab) -> Result<()> {
    make(lab, &["n1", "n2"])?;
    let script = "trap \"\" TERM; while :; do dd if=/dev/zero of=/run/mainstay/dev/scratch/0 bs=4k count=1 oflag=direct 2>/dev/null; sleep 0.05; done; : stuck-writer";
    let process = format!("[[process]]\nname = 'w'\ncommand = ['sh', '-c', '{script}']\n");
    lab.apply_service(NAME, &format!("name = '{NAME}'\nresource = '{NAME}'\n{process}"))?;
    let mut from = lab.wait_running(NAME, LIMIT)?;
    ensure!(from == "n1", "it does not run where it was to");
    for (what, stop, go_on) in STANDSTILLS {
        stop(lab, &from)?;
        let taken_over = wait_for(&format!("the service elsewhere: {what}"), LIMIT, || {
            // The third node is asked: another one may stand still.
            let status = lab.agent("n3")?.get::<StatusView>("/v1/status")?;
            let view = status.services.into_iter().find(|one| one.name == NAME).context("the service")?;
            let node = view.node.clone().context("a node")?;
            ensure!(node != from && view.phase == ServicePhase::Running, "{view:?}");
            Ok(node)
        });
        // What is stuck in the device of a stopped engine ends when that goes on; it has been
        // killed, and does nothing any more.
        go_on(lab, &from)?;
        let to = taken_over?;
        wait_for(&format!("{from} without the service: {what}"), LIMIT, || {
            let left = lab.shell(&from, "pgrep -f '[s]tuck-writer' || true")?;
            ensure!(left.trim().is_empty(), "{left}");
            Ok(())
        })?;
        lab.wait_in_sync(NAME, LIMIT)?;
        let view = lab.service(NAME)?;
        ensure!(view.node.as_deref() == Some(to.as_str()), "{what}: {view:?}");
        from = to;
    }
    lab.cli(&["service", "delete", NAME])?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

type Act = fn(&Lab, &str) -> Result<()>;

/// Part that stands still, how it is stopped, and how it goes on.
const STANDSTILLS: [(&str, Act, Act); 3] = [
    (
        "its engine",
        |lab, node| signal(lab, node, "engine", "STOP"),
        |lab, node| signal(lab, node, "engine", "CONT"),
    ),
    (
        "its agent",
        |lab, node| signal(lab, node, "agent", "STOP"),
        |lab, node| signal(lab, node, "agent", "CONT"),
    ),
    (
        "its node",
        |lab, node| lab.lab(&["pause", node]).map(drop),
        |lab, node| lab.lab(&["resume", node]).map(drop),
    ),
];

/// Stands for systemd in a node: a program that is ended there is started again.
fn systemctl(lab: &Lab) -> Result<std::path::PathBuf> {
    const SYSTEMCTL: &str =
        "#!/bin/sh\nunit=${2#mainstay-}\nkill $(pgrep -f \"[m]ainstay ${unit%.service} \")\n";
    let directory = lab.dir().join("systemctl");
    std::fs::create_dir_all(&directory)?;
    let script = directory.join("systemctl");
    std::fs::write(&script, SYSTEMCTL)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

fn upgrade(lab: &Lab, node: &str, more: &str) -> Result<Finished> {
    let words = format!("PATH={}:$PATH mainstay node upgrade {more}", systemctl(lab)?.display());
    Ok(command::finish(&mut lab.inside(node, &["sh", "-c", &words]), LIMIT)?)
}

/// `node upgrade --drain` of the node that serves.
fn upgraded_node(lab: &Lab) -> Result<()> {
    make(lab, &["n1", "n2"])?;
    let process = "[[process]]\nname = 'w'\ncommand = ['sleep', '100000']\n";
    lab.apply_service(NAME, &format!("name = '{NAME}'\nresource = '{NAME}'\n{process}"))?;
    ensure!(lab.wait_running(NAME, LIMIT)? == "n1", "it does not run where it was to");
    let nothing = on(lab, "n1", &["node", "upgrade"])?;
    ensure!(nothing.code() == 0 && nothing.stdout.contains("run what is installed"), "{nothing:?}");
    let before = [lab.pids("n1", "engine")?, lab.pids("n1", "agent")?];
    let upgraded = upgrade(lab, "n1", "--always --drain")?;
    ensure!(upgraded.code() == 0 && upgraded.stdout.contains("agent and engine"), "{upgraded:?}");
    let after = [lab.pids("n1", "engine")?, lab.pids("n1", "agent")?];
    ensure!(before[0] != after[0] && before[1] != after[1], "{before:?} {after:?}");
    let view = lab.service(NAME)?;
    ensure!(view.node.as_deref() == Some("n2") && view.phase == ServicePhase::Running, "{view:?}");
    let cluster = status_of(lab, "n1")?.cluster.context("a cluster")?;
    ensure!(cluster.nodes.iter().all(|node| node.cordon.is_none()), "{cluster:?}");
    ensure!(lab.resource(NAME)?.health == Health::Ok, "it is not in order");
    lab.cli(&["service", "delete", NAME])?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, "n3")
}

/// A service that writes to one open file all the time, each write durable. Notes each write that
/// takes long, and ends at the first error.
fn writing_service(lab: &Lab, log: &std::path::Path) -> Result<()> {
    const WRITER: &str = r#"
import os, sys, time
file = os.open("/srv/scratch/file", os.O_RDWR | os.O_CREAT)
log = open(sys.argv[1], "a")
number = 0
while True:
    begun = time.monotonic()
    try:
        os.pwrite(file, (b"%015d\n" % number) * 256, number % 1000 * 4096)
        os.fsync(file)
    except OSError as error:
        print("error", error, file=log, flush=True)
        sys.exit(1)
    print(number, int((time.monotonic() - begun) * 1000), file=log, flush=True)
    number += 1
    time.sleep(0.002)
"#;
    let script = lab.dir().join("writer.py");
    std::fs::write(&script, WRITER)?;
    let (script, log) = (script.display(), log.display());
    let mount = "[mount]\npath = '/srv/scratch'\nfstype = 'ext4'\nmkfs = true\n";
    let process =
        format!("[[process]]\nname = 'w'\ncommand = ['/usr/bin/env', 'python3', '{script}', '{log}']\n");
    lab.apply_service(NAME, &format!("name = '{NAME}'\nresource = '{NAME}'\n{mount}{process}"))?;
    let runs_on = lab.wait_running(NAME, LIMIT)?;
    ensure!(runs_on == "n1", "it runs on {runs_on}");
    Ok(())
}

fn writer_pid(lab: &Lab) -> Result<String> {
    let pids = lab.shell("n1", "pgrep -f '[w]riter.py'")?;
    ensure!(pids.lines().count() == 1, "not one writer: {pids:?}");
    Ok(pids)
}

/// The writes so far, in milliseconds each.
fn writes(log: &std::path::Path) -> Result<Vec<u64>> {
    let text = std::fs::read_to_string(log)?;
    ensure!(!text.contains("error"), "the writer saw an error: {text}");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| Ok(line.split(' ').nth(1).context("a time")?.parse()?)).collect()
}

/// The planned step of an upgrade: the writer keeps its process and its open file.
fn engine_replaced(lab: &Lab) -> Result<()> {
    make(lab, &["n1", "n2"])?;
    let log = lab.dir().join("writes.log");
    writing_service(lab, &log)?;
    let (writer, epoch) = (writer_pid(lab)?, lab.resource(NAME)?.epoch);
    // Other tests had a resource of this name.
    let told = lab.cli(&["history", NAME])?.lines().count();
    for round in 1..=3 {
        let engine = lab.pids("n1", "engine")?;
        let done = writes(&log)?.len();
        let upgraded = upgrade(lab, "n1", "--always")?;
        ensure!(upgraded.code() == 0 && !upgraded.stderr.contains("drain"), "{upgraded:?}");
        ensure!(lab.pids("n1", "engine")? != engine, "the engine is the same");
        wait_for("writes after the replacement", LIMIT, || {
            ensure!(writes(&log)?.len() > done + 300, "none yet");
            Ok(())
        })?;
        let pause_ms = writes(&log)?[done..].iter().copied().max().unwrap_or_default();
        eprintln!("  round {round}: the slowest write took {pause_ms} ms");
        ensure!(writer_pid(lab)? == writer, "the writer was started again");
        let view = lab.resource(NAME)?;
        ensure!(view.primary.as_deref() == Some("n1") && view.epoch > epoch, "{view:?}");
    }
    // One node was primary in all these epochs.
    let history = lab.cli(&["history", NAME])?;
    let history: Vec<&str> = history.lines().skip(told).collect();
    let wrong = |line: &&str| line.contains("n2 is primary") || line.contains("failed");
    ensure!(history.len() >= 3 && !history.iter().any(wrong), "{history:#?}");
    let service = lab.service(NAME)?;
    ensure!(service.phase == ServicePhase::Running, "{service:?}");
    ensure!(lab.scrub(NAME)?.equal, "the replicas differ");
    lab.cli(&["service", "delete", NAME])?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, "n3")
}

/// R19: the engine leaves its devices, and the next one never comes. The service is killed before
/// the lease ends, and its device fails after that; another node takes over.
fn engine_never_comes(lab: &Lab) -> Result<()> {
    make(lab, &["n1", "n2"])?;
    let log = lab.dir().join("lost-writes.log");
    writing_service(lab, &log)?;
    let before = writer_pid(lab)?;
    // The first process of the node starts programs again.
    let init = lab.init("n1")?.to_string();
    let signal_init = |signal: &str| command::output(Command::new("kill").args([signal, &init]), QUICK);
    let agent = lab.agent("n1")?;
    let announce = |within_ms| agent.post("/v1/engine/successor", &EngineSuccessor { within_ms });
    let possible: Accepted = agent.get("/v1/engine/successor")?;
    ensure!(possible.message.contains("in place"), "{possible:?}");
    let too_long = announce(60_001).map(|Accepted { message, .. }| message);
    ensure!(too_long.as_ref().is_err_and(|error| error.to_string().contains("too long")), "{too_long:?}");
    let back: Accepted = announce(0)?;
    ensure!(back.message.contains("any more"), "{back:?}");
    let announced: Accepted = announce(10_000)?;
    ensure!(announced.message.contains("leaves"), "{announced:?}");
    signal_init("-STOP")?;
    let told = (|| {
        let begun = std::time::Instant::now();
        signal(lab, "n1", "engine", "TERM")?;
        wait_for("the writer killed", LIMIT, || {
            ensure!(writer_pid(lab).is_err(), "it lives");
            Ok(())
        })?;
        let silent_ms = begun.elapsed().as_millis();
        let lease_ms = status_of(lab, "n2")?.cluster.context("a cluster")?.lease_ms;
        eprintln!("  the service was silent after {silent_ms} ms, with a lease of {lease_ms} ms");
        ensure!(silent_ms < u128::from(lease_ms), "too late: {silent_ms} ms");
        // The writer was killed while its device hung, and saw no error.
        writes(&log)?;
        wait_for("another node that serves", LIMIT, || {
            let view = lab.service(NAME)?;
            ensure!(view.node.as_deref() == Some("n2") && view.phase == ServicePhase::Running, "{view:?}");
            Ok(())
        })?;
        eprintln!("  it runs on n2 after {} ms", begun.elapsed().as_millis());
        Ok(())
    })();
    signal_init("-CONT")?;
    told?;
    wait_for("n1 in sync again", LIMIT, || {
        let view = lab.resource(NAME)?;
        ensure!(view.replicas.iter().all(|replica| replica.in_sync), "{view:?}");
        Ok(())
    })?;
    ensure!(writer_pid(lab).is_err(), "the writer {before} is back on n1");
    lab.cli(&["service", "delete", NAME])?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, "n3")
}

/// Packets to a voter are lost that are larger than heartbeats: entries do not pass, nor does a new
/// connection. Then only those are lost that are larger than both.
fn voter_without_entries(lab: &Lab) -> Result<()> {
    let leader = lab.leader()?;
    let voter = ["n2", "n3"].into_iter().find(|node| *node != leader).context("another node")?;
    lab.shell(
        voter,
        "nft 'add table ip mtu; add chain ip mtu in { type filter hook input priority 0; }; add rule ip mtu in meta length > 350 drop'",
    )?;
    let told = (|| {
        let holders = [
            leader.as_str(),
            ["n1", "n2", "n3"]
                .into_iter()
                .find(|node| *node != leader && *node != voter)
                .context("a third")?,
        ];
        lab.create_resource(NAME, "64MiB", &holders, &["--journal", "16MiB"])?;
        wait_for("a voter that lacks entries", LIMIT, || {
            let status = status_of(lab, &leader)?;
            let cluster = status.cluster.context("a cluster")?;
            let node = cluster.nodes.iter().find(|node| node.name == voter).context("the voter")?;
            ensure!(node.status == NodeStatus::Alive && node.log_lag_ms.is_some(), "{node:?}");
            Ok(())
        })?;
        let others = || ["n1", "n2", "n3"].into_iter().filter(|node| *node != voter);
        for asked in others() {
            wait_advice(lab, asked, &format!("check that large packets reach {voter}"))?;
        }
        // New connections can be made again, and each node says what it sees. An asked node need
        // not be an end of that link.
        lab.shell(voter, "nft flush chain ip mtu in; nft add rule ip mtu in meta length '>' 1400 drop")?;
        for asked in others() {
            wait_advice(lab, asked, &format!("large packets from {leader} have not reached it for"))?;
            let advice = status_of(lab, asked)?.advice;
            let second = advice.iter().find(|line| line.contains("received no entries"));
            ensure!(second.is_none(), "asked on {asked}: {advice:?}");
        }
        Ok(())
    })();
    lab.shell(voter, "nft delete table ip mtu")?;
    told?;
    lab.cli(&["resource", "delete", NAME, "--yes"])?;
    wait_well(lab, &leader)
}
