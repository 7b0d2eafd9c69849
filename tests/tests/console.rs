//! The console that is checked in is the one of its sources. No Node is needed to see that: the
//! build writes the sums of both beside the bundle.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn ui() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ui")
}

/// Files below a folder, as paths from `ui`.
fn files(folder: &str, out: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(ui().join(folder)).expect("a readable folder").flatten() {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files(&path, out);
        } else {
            out.insert(path);
        }
    }
}

#[test]
fn the_console_is_what_its_sources_give() {
    let list = ui().join("dist/SHA256SUMS");
    let text = std::fs::read_to_string(&list).expect("the list of sums");
    let named: BTreeSet<String> =
        text.lines().filter_map(|line| Some(line.split_once("  ")?.1.to_owned())).collect();
    let mut there = BTreeSet::new();
    files("src", &mut there);
    files("dist", &mut there);
    there.remove("dist/SHA256SUMS");
    let tools = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json", "types.mjs"];
    there.extend(tools.map(str::to_owned));
    assert_eq!(named, there, "run `make ui`, and commit ui/dist");
    let mut sums = Command::new("sha256sum");
    sums.args(["--check", "--strict", "--quiet", "dist/SHA256SUMS"]).current_dir(ui());
    let output = sums.output().expect("sha256sum is a part of every Debian");
    let faults = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "run `make ui`, and commit ui/dist:\n{faults}");
}
