//! Processes of services, and service files.

use super::Trouble;
use crate::cluster::{LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{ServiceApplied, ServiceEffect, ServicePhase};
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;
use std::time::{Duration, Instant};

pub const TROUBLES: &[(&str, Trouble)] = &[
    ("troubles_processes_whose_names_meet_live_and_die_alone", names_meet),
    ("troubles_applying_a_service_restarts_it_only_if_it_must", applied_again),
    ("troubles_a_file_that_cannot_run_stops_nothing", cannot_run),
    ("troubles_a_service_that_writes_without_end_fills_no_disk", writes_without_end),
    ("troubles_a_failed_step_is_told_by_apply_itself", told_by_apply),
    ("troubles_a_process_that_does_not_answer_is_started_again", does_not_answer),
    ("troubles_a_resource_agent_is_checked_watched_and_moved", resource_agent),
    ("troubles_a_frozen_file_system_of_a_running_service_is_told", frozen_file_system),
];

/// Command line of a program that shows up under this name in a node, and never ends.
fn sleeper(name: &str) -> String {
    format!("command = ['bash', '-c', 'exec -a {name} sleep 100000']")
}

/// Process ids, inside the node, of the processes called `name`.
fn pids(lab: &Lab, node: &str, name: &str) -> Result<Vec<String>> {
    let script = format!(
        "for d in /proc/[0-9]*; do [ \"$(tr '\\0' ' ' <$d/cmdline 2>/dev/null)\" = '{name} 100000 ' ] && echo ${{d#/proc/}}; done; true"
    );
    Ok(lab.shell(node, &script)?.split_whitespace().map(str::to_owned).collect())
}

/// Removes a service and its resource.
fn remove(lab: &Lab, name: &str) -> Result<()> {
    lab.cli(&["service", "delete", name])?;
    lab.cli(&["resource", "delete", name, "--yes"]).map(drop)
}

/// Here `a-ready` is a process. Its name was once the place of the readiness test of `a`.
fn names_meet(lab: &Lab) -> Result<()> {
    lab.create_resource("meet", "64MiB", &NODES, &[])?;
    let names = ["a", "a-ready", "a-prepare"];
    let mut toml = "name = 'meet'\nresource = 'meet'\n".to_owned();
    for name in names {
        toml += &format!("[[process]]\nname = '{name}'\n{}\n", sleeper(&format!("meet-{name}")));
    }
    let toml = toml.replacen(
        "[[process]]\nname = 'a'\n",
        "[[process]]\nname = 'a'\nprepare = ['true']\nready = { command = ['true'] }\n",
        1,
    );
    lab.apply_service("meet", &toml)?;
    let node = lab.wait_running("meet", LIMIT)?;
    let all = || -> Result<Vec<String>> {
        let mut found = Vec::new();
        for name in names {
            let here = pids(lab, &node, &format!("meet-{name}"))?;
            ensure!(here.len() == 1, "{name} runs as {here:?}");
            found.extend(here);
        }
        Ok(found)
    };
    let before = all()?;
    // A restart of the last process touches neither of the others. A restart of the first one is
    // followed by all of them.
    lab.shell(&node, &format!("kill -9 {}", before[2]))?;
    wait_for("a restart of the last process alone", LIMIT, || {
        let now = all()?;
        ensure!(now[2] != before[2], "it was not started again");
        ensure!(now[..2] == before[..2], "others were restarted with it: {before:?}, then {now:?}");
        Ok(())
    })?;
    // Two processes end at once: the second one ends while the first is being started again.
    let before = all()?;
    lab.shell(&node, &format!("kill -9 {}; sleep 0.3; kill -9 {}", before[2], before[0]))?;
    wait_for("a restart of all processes", LIMIT, || {
        let now = all()?;
        ensure!(now.iter().all(|pid| !before.contains(pid)), "{before:?}, then {now:?}");
        Ok(())
    })?;
    lab.wait_running("meet", LIMIT)?;
    // A restarted agent finds all processes.
    let before = all()?;
    lab.restart_agent(&node)?;
    lab.wait_running("meet", LIMIT)?;
    ensure!(all()? == before, "the restarted agent did not find them");
    remove(lab, "meet")
}

/// An agent of Debian's resource-agents, as it is.
fn resource_agent(lab: &Lab) -> Result<()> {
    const PROGRAM: &str = "/bin/sleep";
    lab.create_resource("ocf", "64MiB", &NODES, &[])?;
    let toml = |more: &str| {
        format!(
            "name = 'ocf'\nresource = 'ocf'\n[[process]]\nname = 'p'\nstop_timeout_s = 10\n\
             ocf = {{ agent = 'ocf:heartbeat:anything', params = {{ binfile = '{PROGRAM}', \
             cmdline_options = '100000', pidfile = '/run/troubles-ocf.pid'{more} }} }}\n"
        )
    };
    let path = lab.dir().join("ocf.toml");
    std::fs::write(&path, toml(", colour = 'red'"))?;
    let refused = lab.try_cli(&["service", "apply", &path.to_string_lossy()])?;
    ensure!(refused.code() != 0 && refused.stderr.contains("no parameter colour"), "{}", refused.stderr);
    lab.apply_service("ocf", &toml(""))?;
    let node = lab.wait_running("ocf", LIMIT)?;
    let one = |node: &str| -> Result<String> {
        let found = pids(lab, node, PROGRAM)?;
        ensure!(found.len() == 1, "it runs as {found:?} on {node}");
        Ok(found[0].clone())
    };
    let before = one(&node)?;
    lab.shell(&node, &format!("kill -9 {before}"))?;
    wait_for("a restart of what the agent runs", LIMIT, || {
        ensure!(one(&node)? != before, "it was not started again");
        Ok(())
    })?;
    lab.wait_running("ocf", LIMIT)?;
    let target = NODES.into_iter().find(|other| *other != node).context("another node")?;
    lab.cli(&["service", "move", "ocf", "--to", target])?;
    ensure!(pids(lab, &node, PROGRAM)?.is_empty(), "it still runs on {node}");
    one(target)?;
    remove(lab, "ocf")?;
    ensure!(pids(lab, target, PROGRAM)?.is_empty(), "it still runs on {target}");
    Ok(())
}

fn does_not_answer(lab: &Lab) -> Result<()> {
    lab.create_resource("sick", "64MiB", &NODES, &[])?;
    let sick = lab.dir().join("sick");
    let ask =
        format!("test ! -e {0} && exit 0; cat {0}; grep -q recovers {0} && exit 75; exit 1", sick.display());
    let toml = format!(
        "name = 'sick'\nresource = 'sick'\n[[process]]\nname = 'p'\n{}\nprobe = {{ command = ['sh', '-c', '{ask}'] }}\n\
         probe_interval_s = 1\n",
        sleeper("sick-p")
    );
    apply(lab, &toml, &[])?;
    let node = lab.wait_running("sick", LIMIT)?;
    let pid = || pids(lab, &node, "sick-p");
    let before = pid()?;
    let status = || lab.cli(&["service", "status", "sick"]);
    let told = |words: &str| {
        wait_for(&format!("the status tells that {words:?}"), LIMIT, || {
            let status = status()?;
            ensure!(status.contains(words), "{status}");
            Ok(())
        })
    };
    // A process that recovers is told of, and left alone.
    std::fs::write(&sick, "it recovers\n")?;
    told("process p recovers: it recovers")?;
    std::thread::sleep(Duration::from_secs(6));
    ensure!(pid()? == before, "a process that recovers was restarted");
    std::fs::remove_file(&sick)?;
    wait_for("a status without words", LIMIT, || {
        let status = status()?;
        ensure!(!status.contains("recovers"), "{status}");
        Ok(())
    })?;
    std::fs::write(&sick, "too many connections\n")?;
    wait_for("another process", LIMIT, || {
        let now = pid()?;
        ensure!(now.len() == 1 && now != before, "{now:?}");
        Ok(())
    })
    .map_err(|error| error.context(status().unwrap_or_default()))?;
    std::fs::remove_file(&sick)?;
    ensure!(lab.wait_running("sick", LIMIT)? == node, "it moved");
    let events = lab.cli(&["events"])?;
    let said = "process p does not answer: too many connections (3 probes in a row failed)";
    ensure!(events.contains(said), "no event tells why:\n{events}");
    remove(lab, "sick")
}

fn apply(lab: &Lab, toml: &str, more: &[&str]) -> Result<ServiceApplied> {
    let path = lab.dir().join("applied.toml");
    std::fs::write(&path, toml)?;
    lab.cli_json(&[&["service", "apply", &path.to_string_lossy()][..], more].concat())
}

fn applied_again(lab: &Lab) -> Result<()> {
    lab.create_resource("again", "64MiB", &NODES, &[])?;
    let toml = format!(
        "name = 'again'\nresource = 'again'\n[[process]]\nname = 'p'\n{}\nready = {{ delay_s = 1 }}\n[policy]\nrestart_limit = 3\n",
        sleeper("again-p")
    );
    let first = apply(lab, &toml, &[])?;
    ensure!(
        first.effect == ServiceEffect::Created && first.service.phase == ServicePhase::Running,
        "{first:?}"
    );
    let node = lab.wait_running("again", LIMIT)?;
    let process = pids(lab, &node, "again-p")?;
    ensure!(process.len() == 1, "{process:?}");

    let start = Instant::now();
    let same = apply(lab, &toml, &[])?;
    ensure!(same.effect == ServiceEffect::Unchanged && same.changes.is_empty(), "{same:?}");
    ensure!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());

    let in_place = toml
        .replace("restart_limit = 3", &format!("restart_limit = 5\npreferred = '{node}'\nfailback = true"))
        .replace("delay_s = 1", "delay_s = 2")
        .replace("name = 'p'", "name = 'p'\nstop_timeout_s = 7\nstop_signal = 'SIGINT'");
    let dry = apply(lab, &in_place, &["--dry-run"])?;
    ensure!(dry.effect == ServiceEffect::ChangedInPlace && dry.dry_run, "{dry:?}");
    let fields: Vec<_> = dry.changes.iter().map(|change| change.field.as_str()).collect();
    let expected = [
        "process[0].stop_timeout_s",
        "process[0].stop_signal",
        "process[0].ready",
        "policy.restart_limit",
        "policy.preferred",
        "policy.failback",
    ];
    ensure!(fields == expected, "{fields:?}");
    ensure!(apply(lab, &toml, &[])?.effect == ServiceEffect::Unchanged, "the dry run changed something");
    let done = apply(lab, &in_place, &[])?;
    ensure!(
        done.effect == ServiceEffect::ChangedInPlace && done.service.phase == ServicePhase::Running,
        "{done:?}"
    );
    ensure!(pids(lab, &node, "again-p")? == process, "the process was started again");
    // The next attempt follows the change, and a restarted agent knows it.
    lab.restart_agent(&node)?;
    lab.wait_running("again", LIMIT)?;
    ensure!(apply(lab, &in_place, &[])?.effect == ServiceEffect::Unchanged, "it was forgotten");
    ensure!(pids(lab, &node, "again-p")? == process, "the process was started again");

    let restart = in_place.replace("[policy]", "env = { A = 'b' }\n[policy]");
    let said = lab.try_cli(&["service", "apply", "--dry-run", &write(lab, &restart)?])?;
    ensure!(said.code() == 0, "{said:?}");
    for words in ["RESTARTED", "process[0].env.A", "nothing was changed"] {
        ensure!(said.stdout.contains(words), "no `{words}` in {}", said.stdout);
    }
    ensure!(pids(lab, &node, "again-p")? == process, "the dry run did something");
    let done = apply(lab, &restart, &[])?;
    ensure!(done.effect == ServiceEffect::Restarted, "{done:?}");
    let now = pids(lab, &lab.wait_running("again", LIMIT)?, "again-p")?;
    ensure!(now.len() == 1 && now != process, "{process:?}, then {now:?}");
    lab.cli(&["service", "move", "again", &node])?;
    remove(lab, "again")
}

fn write(lab: &Lab, toml: &str) -> Result<String> {
    let path = lab.dir().join("applied.toml");
    std::fs::write(&path, toml)?;
    Ok(path.to_string_lossy().into_owned())
}

/// A specification that no node can run is refused, one that some nodes cannot run brings a
/// warning, and the running service goes on.
fn cannot_run(lab: &Lab) -> Result<()> {
    lab.create_resource("fit", "64MiB", &NODES, &[])?;
    let toml = format!(
        "name = 'fit'\nresource = 'fit'\n[mount]\npath = '/srv/fit'\nfstype = 'ext4'\nmkfs = true\noptions = 'defaults,nofail,_netdev,noatime,x-systemd.requires=network.target'\n[[process]]\nname = 'p'\n{}\n",
        sleeper("fit-p")
    );
    let applied = apply(lab, &toml, &[])?;
    ensure!(applied.service.phase == ServicePhase::Running && applied.warnings.is_empty(), "{applied:?}");
    let node = lab.wait_running("fit", LIMIT)?;
    let process = pids(lab, &node, "fit-p")?;
    for (from, to, field) in [
        ("noatime", "noatime,users", "mount.options"),
        ("noatime", "noatime,bind", "mount.options"),
        ("noatime", "noatime,data=nonsense", "mount.options"),
        ("'ext4'", "'nosuchfs'", "mount.fstype"),
        ("name = 'p'", "name = 'p'\nuser = 'nobody-has-this'", "process[0].user"),
        ("name = 'p'", "name = 'p'\nuser = \"ro\\u0000ot\"", "process[0].user"),
        ("name = 'p'", "name = 'p'\nenv = { A = \"b\\u0000\" }", "process[0].env.A"),
        ("name = 'p'", "name = 'p'\nprepare = ['/nonexistent/init']", "process[0].prepare"),
        ("name = 'p'", "name = 'p'\nready = { command = ['/etc/passwd'] }", "process[0].ready"),
        ("['bash'", "['no-such-program'", "process[0].command"),
        (
            "[[process]]",
            "[vip]\naddress = '10.213.0.99/24'\ninterface = 'none0'\n[[process]]",
            "vip.interface",
        ),
    ] {
        let text = toml.replacen(from, to, 1);
        ensure!(text != toml, "{from} is not in the file");
        let words = ["service", "apply", &write(lab, &text)?];
        let said = lab.try_cli(&words)?;
        ensure!(said.code() == 1, "{to}: exit code {}: {}{}", said.code(), said.stdout, said.stderr);
        ensure!(said.stderr.contains(field) && said.stderr.contains("what to do"), "{to}: {}", said.stderr);
    }
    ensure!(pids(lab, &node, "fit-p")? == process, "a file that cannot run stopped it");
    // Only other nodes have the program. The service goes on, and the apply and the status both say
    // which node lacks it.
    let other = NODES.iter().find(|name| **name != node).context("another node")?;
    let program = "/run/mainstay/only-there";
    let has = |node: &str| lab.shell(node, &format!("cp /bin/sleep {program}; chmod +x {program}"));
    let text =
        toml.replacen("['bash', '-c', 'exec -a fit-p sleep 100000']", &format!("['{program}', '100000']"), 1);
    ensure!(text != toml, "the command is not in the file");
    has(other)?;
    let said = lab.try_cli(&["service", "apply", &write(lab, &text)?])?;
    ensure!(said.code() == 1 && said.stderr.contains("could not start again"), "{said:?}");
    ensure!(pids(lab, &node, "fit-p")? == process, "it was stopped where it cannot start again");
    has(&node)?;
    let applied = apply(lab, &text, &[])?;
    ensure!(applied.warnings.iter().any(|line| line.contains("process[0].command")), "{applied:?}");
    let third = NODES.iter().find(|name| *name != other && **name != node).context("a third node")?;
    wait_for("status that names the node", LIMIT, || {
        let advice = lab.status()?.advice;
        let named =
            |line: &String| line.contains(&format!("cannot run on {third}")) && line.contains(program);
        ensure!(advice.iter().any(named), "{advice:?}");
        Ok(())
    })?;
    remove(lab, "fit")
}

/// Largest size of both parts of a log, and a little.
const LOG_BYTES_MAX: u64 = 33 << 20;

fn writes_without_end(lab: &Lab) -> Result<()> {
    lab.create_resource("yes", "64MiB", &NODES, &[])?;
    let toml = "name = 'yes'\nresource = 'yes'\n[[process]]\nname = 'p'\ncommand = ['bash', '-c', 'exec -a yes-p yes']\n[[process]]\nname = 'q'\ncommand = ['bash', '-c', 'echo ready; exec -a yes-q sleep 100000']\n";
    lab.apply_service("yes", toml)?;
    let node = lab.wait_running("yes", LIMIT)?;
    let number = |script: &str| -> Result<u64> { Ok(lab.shell(&node, script)?.trim().parse()?) };
    let bytes = || number("cat /var/lib/mainstay/services/yes/p.log* | wc -c");
    // Its output in one second is more than the whole log may hold.
    let grown = |limit: u64| {
        let most = bytes()?;
        ensure!(most <= limit, "the log has {most} bytes");
        anyhow::Ok(most)
    };
    let talker = "pgrep -f '^yes-p'";
    let process = lab.shell(&node, talker)?;
    for _ in 0..6 {
        grown(LOG_BYTES_MAX)?;
        std::thread::sleep(Duration::from_millis(300));
    }
    ensure!(grown(LOG_BYTES_MAX)? > 0, "nothing was written");
    // The same holds without an agent, and the next agent goes on with the same writer.
    lab.kill_program(&node, "agent")?;
    let writers = "pgrep -fc '^/proc/self/exe log-writer' || true";
    let alone = number(writers)?;
    grown(LOG_BYTES_MAX)?;
    lab.wait_agent(&node)?;
    lab.wait_running("yes", LIMIT)?;
    ensure!(alone == 2 && number(writers)? == 2, "{alone} writers, then {}", number(writers)?);
    // A writer that is killed is replaced, and the processes that write do not notice.
    lab.shell(&node, "kill -9 $(pgrep -f '^/proc/self/exe log-writer')")?;
    wait_for("other writers", LIMIT, || {
        let now = number(writers)?;
        ensure!(now == 2, "{now} writers");
        Ok(())
    })?;
    grown(LOG_BYTES_MAX)?;
    ensure!(lab.shell(&node, talker)? == process, "it was started again");
    ensure!(lab.service("yes")?.failures.is_empty(), "it failed meanwhile");
    remove(lab, "yes")?;
    wait_for("the end of the writers", LIMIT, || {
        let now = number(writers)?;
        ensure!(now == 0, "{now} writers");
        Ok(())
    })
}

fn told_by_apply(lab: &Lab) -> Result<()> {
    lab.create_resource("told", "64MiB", &NODES, &[])?;
    let fails = "name = 'told'\nresource = 'told'\n[[process]]\nname = 'p'\ncommand = ['sh', '-c', 'echo the disk of the moon is full >&2; exit 7']\nready = { delay_s = 5 }\n[policy]\nrestart_limit = 0\n";
    let said = lab.try_cli(&["service", "apply", &write(lab, fails)?])?;
    ensure!(said.code() == 1, "exit code {}: {}{}", said.code(), said.stdout, said.stderr);
    for words in ["exit status: 7", "the disk of the moon is full", "p.log", "on n1", "on n2", "on n3"] {
        ensure!(said.stderr.contains(words), "no `{words}` in {}", said.stderr);
    }
    // The process never gets ready, and the operator does not wait for long.
    let slow = "name = 'told'\nresource = 'told'\n[[process]]\nname = 'p'\ncommand = ['sleep', '100000']\nready = { tcp = '127.0.0.1:1' }\n";
    let said = lab.try_cli(&["service", "apply", &write(lab, slow)?, "--wait-s", "2"])?;
    ensure!(said.code() == 3, "exit code {}: {}{}", said.code(), said.stdout, said.stderr);
    ensure!(said.stderr.contains("starting on n"), "{}", said.stderr);
    let status = lab.cli(&["service", "status", "told"])?;
    ensure!(status.contains("starting on n") && status.contains("now: "), "{status}");
    // A corrected readiness test counts at once.
    let mended = slow.replace("{ tcp = '127.0.0.1:1' }", "{ delay_s = 0 }");
    let applied = apply(lab, &mended, &[])?;
    ensure!(
        applied.effect == ServiceEffect::ChangedInPlace && applied.service.phase == ServicePhase::Running,
        "{applied:?}"
    );
    remove(lab, "told")
}

/// A backup freezes the file system of a service and forgets to thaw it. The service runs on and
/// cannot write.
fn frozen_file_system(lab: &Lab) -> Result<()> {
    const PATH: &str = "/srv/cold";
    lab.create_resource("cold", "64MiB", &NODES, &["--journal", "16MiB"])?;
    let mount = format!("[mount]\npath = '{PATH}'\nfstype = 'ext4'\nmkfs = true\n");
    lab.apply_service("cold", &format!("name = 'cold'\nresource = 'cold'\n{mount}"))?;
    let node = lab.wait_running("cold", LIMIT)?;
    let says = format!("{PATH} on {node} has been frozen for ");
    let remedy = format!("`fsfreeze --unfreeze {PATH}` on {node}");
    lab.shell(&node, &format!("fsfreeze --freeze {PATH}"))?;
    let told = (|| {
        for question in [&["status"][..], &["service", "status", "cold"]] {
            wait_for("the freeze told with its age and the way out", LIMIT, || {
                let said = lab.try_cli(question)?.stdout;
                ensure!(said.contains(&says) && said.contains(&remedy), "{question:?}: {said}");
                Ok(())
            })?;
        }
        wait_for("an event", LIMIT, || {
            let events = lab.cli(&["events"])?;
            ensure!(events.contains(&says), "{events}");
            Ok(())
        })?;
        ensure!(lab.service("cold")?.phase == ServicePhase::Running, "a freeze alone stops no service");
        Ok(())
    })();
    lab.shell(&node, &format!("fsfreeze --unfreeze {PATH}"))?;
    told?;
    wait_for("all to be well", LIMIT, || {
        let said = lab.cli(&["status"])?;
        ensure!(said.contains("all is well"), "{said}");
        let events = lab.cli(&["events"])?;
        ensure!(events.contains("no longer the case: its file system at /srv/cold"), "{events}");
        Ok(())
    })?;
    remove(lab, "cold")
}
