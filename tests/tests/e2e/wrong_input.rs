//! Every mistake of an operator gets an answer with its cause, under a stable code, and changes
//! nothing.

use crate::cluster::{Cluster, DB};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::Problem;
use mainstay_tests::command::{self, Finished};
use std::time::Duration;

/// The command line itself is wrong.
const USAGE: i32 = 2;
/// The request is refused.
const REFUSED: i32 = 1;

fn clear(finished: &Finished, words: &[&str], expected: i32, says: &str) -> Result<()> {
    let said = format!("{}{}", finished.stdout, finished.stderr);
    ensure!(finished.code() == expected, "{words:?}: exit code {}, not {expected}: {said}", finished.code());
    ensure!(!said.contains("panicked"), "{words:?} panicked: {said}");
    ensure!(said.to_lowercase().contains(says), "{words:?} does not say `{says}`: {said}");
    Ok(())
}

pub fn command_line(cluster: &Cluster) -> Result<()> {
    let before = cluster.lab.status()?.cluster.context("a cluster")?.revision;
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], USAGE, "usage"),
        (&["frobnicate"], USAGE, "frobnicate"),
        (&["cluster", "init"], USAGE, "--name"),
        (&["cluster", "init", "--name", "x", "--as", "n9", "--address", "10.213.0.9"], REFUSED, "member"),
        (&["cluster", "join", "--peer", "10.213.0.1", "--as", "n9"], USAGE, "--token"),
        (&["cluster", "join", "--peer", "10.213.0.1", "--as", "n9", "--token", "x"], REFUSED, "member"),
        (&["cluster", "token", "create", "Not a name"], REFUSED, "name"),
        (&["cluster", "token", "create", "n9", "--ttl", "25h"], USAGE, "24 h"),
        (&["cluster", "token", "revoke", "x"], REFUSED, "public half"),
        (&["cluster", "status", "extra"], USAGE, "extra"),
        (&["node", "lost"], USAGE, "lost"),
        (&["resource", "create"], USAGE, "--size"),
        (&["resource", "create", "x", "--size", "12parsecs"], USAGE, "size"),
        (&["resource", "create", "x", "--size", "0"], USAGE, "size"),
        (&["resource", "create", "Not a name", "--size", "1GiB"], REFUSED, "name"),
        (&["resource", "create", "db", "--size", "1GiB"], REFUSED, "name-taken"),
        (&["resource", "create", "x", "--size", "1GiB", "--replicas", "n1,n9"], REFUSED, "n9"),
        (&["resource", "create", "x", "--size", "1GiB", "--replica-count", "7"], REFUSED, "node"),
        (&["resource", "create", "x", "--size", "1GiB", "--journal", "4KiB"], REFUSED, "journal"),
        (&["resource", "status", "nope"], REFUSED, "nope"),
        (&["resource", "delete", "nope", "--yes"], REFUSED, "nope"),
        (&["resource", "delete", "db", "--yes"], REFUSED, "service"),
        (&["resource", "resize", "nope", "2GiB"], REFUSED, "nope"),
        (&["resource", "resize", "db"], USAGE, "size"),
        (&["resource", "resize", "db", "512MiB"], REFUSED, "smaller"),
        (&["resource", "resize", "db", "2GiB", "--volume", "7"], REFUSED, "volume"),
        (&["resource", "resize", "db", "5TiB"], REFUSED, "free"),
        (&["resource", "scrub", "nope"], REFUSED, "nope"),
        (&["service", "status", "nope"], REFUSED, "nope"),
        (&["service", "delete", "nope"], REFUSED, "nope"),
        (&["service", "move", "nope", "--to", "n1"], REFUSED, "nope"),
        (&["service", "move", "db", "--to", "n9"], REFUSED, "n9"),
        (&["service", "move", "db"], USAGE, "<node>"),
        (&["service", "apply", "/nonexistent.toml"], REFUSED, "nonexistent"),
        (&["inspect"], USAGE, "directory"),
        (&["inspect", "/nonexistent"], USAGE, "option-without-effect"),
        (&["events", "--after", "soon"], USAGE, "soon"),
        (&["status", "--verbosity"], USAGE, "verbosity"),
    ];
    for (words, expected, says) in cases {
        clear(&cluster.lab.try_cli(words)?, words, *expected, says)?;
    }
    let lab_cases: &[(&[&str], i32, &str)] = &[
        (&["kill", "n9"], USAGE, "n9"),
        (&["start", "n1"], REFUSED, "n1"),
        (&["cut", "n1", "n1"], USAGE, "itself"),
        (&["up", "--nodes", "3"], REFUSED, "exists"),
        (&["up", "--nodes", "0"], USAGE, "0"),
        (&["up", "--nodes", "3", "--witness", "n1"], USAGE, "n2, n3"),
        (&["up", "--nodes", "3", "--witness", "n2,n4"], USAGE, "n4 cannot be a witness"),
        (&["up", "--nodes", "3", "--witness", "n3", "--plain"], USAGE, "--plain"),
        (&["exec", "n9", "--", "true"], 125, "n9"),
        (&["explode"], USAGE, "explode"),
    ];
    for (words, expected, says) in lab_cases {
        let all = [&["lab", "--name", &cluster.lab.name][..], words].concat();
        let finished = command::finish(&mut cluster.lab.command(&all), Duration::from_secs(60))?;
        clear(&finished, words, *expected, says)?;
    }

    let words = ["inspect", "/nonexistent"];
    let finished = command::finish(&mut cluster.lab.command(&words), Duration::from_secs(60))?;
    clear(&finished, &words, REFUSED, "meta")?;

    // With --json the refusal is an object with a stable code.
    let refused = cluster.lab.try_cli(&["--json", "resource", "status", "nope"])?;
    let problem: Problem = serde_json::from_str(refused.stderr.trim())
        .or_else(|_| serde_json::from_str(refused.stdout.trim()))
        .with_context(|| format!("a refusal as JSON: {refused:?}"))?;
    ensure!(!problem.code.as_str().is_empty() && problem.message.contains("nope"), "{problem:?}");

    let nobody = command::finish(
        &mut cluster.lab.command(&["--socket", "/nonexistent.sock", "status"]),
        Duration::from_secs(60),
    )?;
    clear(&nobody, &["--socket", "/nonexistent.sock", "status"], 3, "nonexistent")?;
    let after = cluster.lab.status()?.cluster.context("a cluster")?.revision;
    let names: Vec<_> = cluster.lab.status()?.resources.into_iter().map(|view| view.name).collect();
    ensure!(names == [DB.resource], "wrong input made something: {names:?}, revision {before} to {after}");
    Ok(())
}

pub fn service_files(cluster: &Cluster) -> Result<()> {
    let cases: &[(&str, &str, &str)] = &[
        ("empty", "", "name"),
        ("not-toml", "name = [", "line 1"),
        ("unknown-field", "name = \"x\"\nresource = \"db\"\ncolour = \"red\"\n", "colour"),
        ("no-resource", "name = \"x\"\n", "resource"),
        ("bad-name", "name = \"X Y\"\nresource = \"db\"\n[vip]\naddress = \"10.213.0.77/24\"\n", "name"),
        ("nothing-to-run", "name = \"x\"\nresource = \"db\"\n", "nothing"),
        (
            "unknown-resource",
            "name = \"x\"\nresource = \"nope\"\n[vip]\naddress = \"10.213.0.77/24\"\n",
            "nope",
        ),
        ("bad-address", "name = \"x\"\nresource = \"db\"\n[vip]\naddress = \"10.213.0.777\"\n", "address"),
        (
            "relative-mount",
            "name = \"x\"\nresource = \"db\"\n[mount]\nvolume = 0\npath = \"srv\"\nfstype = \"xfs\"\n",
            "path",
        ),
        (
            "no-such-volume",
            "name = \"x\"\nresource = \"db\"\n[mount]\nvolume = 9\npath = \"/srv/x\"\nfstype = \"xfs\"\n",
            "volume",
        ),
        (
            "no-command",
            "name = \"x\"\nresource = \"db\"\n[[process]]\nname = \"a\"\ncommand = []\n",
            "command",
        ),
        (
            "bad-signal",
            "name = \"x\"\nresource = \"db\"\n[[process]]\nname = \"a\"\ncommand = [\"/bin/true\"]\nstop_signal = \"SIGNOPE\"\n",
            "signal",
        ),
    ];
    for (name, text, says) in cases {
        let path = cluster.lab.dir().join(format!("wrong-{name}.toml"));
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        let path = path.to_string_lossy().into_owned();
        let words = ["service", "apply", &path];
        clear(&cluster.lab.try_cli(&words)?, &words, REFUSED, says)?;
    }
    let names: Vec<_> = cluster.lab.status()?.services.into_iter().map(|view| view.name).collect();
    ensure!(names == [DB.name], "a wrong service file was applied: {names:?}");
    Ok(())
}
