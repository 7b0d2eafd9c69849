//! `mainstay lab` and `mainstay bench` become the program `mainstay-lab`, whose part other programs
//! play here: one that prints its arguments, and one that fails.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const PRINTS: &str = "/bin/echo";
const FAILS: &str = "/bin/false";

/// A directory with `mainstay` and, beside it, a program that plays `mainstay-lab`.
fn with(program: Option<&str>) -> TempDir {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_mainstay"), place.path().join("mainstay")).unwrap();
    if let Some(program) = program {
        symlink(program, place.path().join("mainstay-lab")).unwrap();
    }
    place
}

fn run(place: &TempDir, path: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(place.path().join("mainstay"));
    command.args(words).env("PATH", path).output().unwrap()
}

#[test]
fn a_front_hands_all_its_arguments_over() {
    let place = with(Some(PRINTS));
    for (words, said) in [
        (&["lab", "up"][..], "up"),
        (&["lab", "kill", "n1", "--help"], "kill n1 --help"),
        (&["lab", "-h", "--unknown=1"], "-h --unknown=1"),
        (&["lab", "--name", "x", "logs", "n1", "-n", "5"], "--name x logs n1 -n 5"),
        (
            &["lab", "--name=x", "exec", "n1", "--", "sh", "-c", "a --json"],
            "--name=x exec n1 -- sh -c a --json",
        ),
        (&["--json", "--lab", "x", "lab", "kill", "n1"], "--json --lab x kill n1"),
        (&["lab", "--json", "status"], "--json status"),
        (&["lab", "status", "--json", "--lab", "x"], "status --json --lab x"),
        (&["--socket", "/s", "bench", "fio", "resource:db"], "--socket /s bench fio resource:db"),
        (
            &["--server", "https://n1", "--token-file", "/t", "--ca", "/c", "bench", "list"],
            "--server https://n1 --token-file /t --ca /c bench list",
        ),
        (&["bench", "fio", "/dev/x", "--overwrite"], "bench fio /dev/x --overwrite"),
        (&["help", "lab", "up"], "help up"),
        (&["help", "bench"], "help bench"),
    ] {
        let output = run(&place, place.path(), words);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), said, "{words:?}");
    }
}

#[test]
fn the_program_beside_comes_before_one_in_the_search_path() {
    let (fails, prints, alone) = (with(Some(FAILS)), with(Some(PRINTS)), with(None));
    let beside = run(&fails, prints.path(), &["lab", "status"]);
    assert_eq!(beside.status.code(), Some(1));
    assert!(
        beside.stdout.is_empty() && beside.stderr.is_empty(),
        "the exit code is the program's: {beside:?}"
    );
    let found = run(&alone, prints.path(), &["lab", "status"]);
    assert_eq!(String::from_utf8_lossy(&found.stdout), "status\n");
}

#[test]
fn without_the_program_a_front_says_what_to_do() {
    let alone = with(None);
    for (words, exit) in [
        (&["lab", "up"][..], 1),
        (&["bench", "list"], 1),
        (&["help", "lab"], 1),
        (&["--json", "lab", "up"], 1),
        // Every other exit code is that of the command inside the node.
        (&["lab", "exec", "n1", "--", "true"], 125),
    ] {
        let output = run(&alone, alone.path(), words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{words:?}: {said}");
        for part in ["lab-program-missing", "neither beside `mainstay` nor in PATH", "`make build`"] {
            assert!(said.contains(part), "{words:?}: {said}");
        }
    }
}
