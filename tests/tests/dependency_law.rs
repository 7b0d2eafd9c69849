//! The dependency law: types ◁ codec ◁ {replica, store} ◁ host; types ◁ silence ◁ ha ◁ control;
//! only engine, agent, devices, pool and probe touch the operating system. A list names the crates
//! that a pure crate may use; every other crate needs an argument. The other half is `clippy.toml`
//! in each pure crate: it limits the calls of the standard library.
//!
//! And the product is built without the parts that only the simulator needs: planted bugs and
//! coverage marks.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Each crate of ours and the crates of ours it may depend on, directly.
const OURS: &[(&str, &[&str])] = &[
    ("mainstay-types", &[]),
    ("mainstay-codec", &["mainstay-types"]),
    ("mainstay-replica", &["mainstay-types", "mainstay-codec"]),
    ("mainstay-store", &["mainstay-types", "mainstay-codec"]),
    ("mainstay-host", &["mainstay-types", "mainstay-codec", "mainstay-replica", "mainstay-store"]),
    ("mainstay-silence", &["mainstay-types"]),
    ("mainstay-control", &["mainstay-types", "mainstay-silence", "mainstay-ha"]),
    ("mainstay-ha", &["mainstay-types", "mainstay-silence"]),
    ("mainstay-history", &["mainstay-types"]),
    ("mainstay-api", &["mainstay-types"]),
    ("mainstay-client", &["mainstay-types", "mainstay-api", "mainstay-trust"]),
    ("mainstay-cli", &["mainstay-types", "mainstay-api", "mainstay-client"]),
    ("mainstay-pool", &["mainstay-types", "mainstay-api"]),
    ("mainstay-probe", &["mainstay-ha"]),
    ("mainstay-trust", &["mainstay-types"]),
    ("mainstay-devices", &["mainstay-types", "mainstay-codec", "mainstay-silence", "mainstay-api"]),
    ("mainstay-router", &["mainstay-types", "mainstay-api", "mainstay-client"]),
    (
        "mainstay-engine",
        &[
            "mainstay-types",
            "mainstay-codec",
            "mainstay-replica",
            "mainstay-store",
            "mainstay-host",
            "mainstay-silence",
            "mainstay-api",
            "mainstay-pool",
            "mainstay-devices",
            "mainstay-trust",
        ],
    ),
    (
        "mainstay-agent",
        &[
            "mainstay-types",
            "mainstay-silence",
            "mainstay-control",
            "mainstay-ha",
            "mainstay-history",
            "mainstay-api",
            "mainstay-pool",
            "mainstay-devices",
            "mainstay-trust",
        ],
    ),
    (
        "mainstay",
        &[
            "mainstay-types",
            "mainstay-api",
            "mainstay-client",
            "mainstay-cli",
            "mainstay-agent",
            "mainstay-engine",
            "mainstay-ha",
            "mainstay-history",
            "mainstay-pool",
            "mainstay-probe",
            "mainstay-devices",
            "mainstay-router",
        ],
    ),
    (
        "mainstay-lab",
        &[
            "mainstay-types",
            "mainstay-api",
            "mainstay-client",
            "mainstay-cli",
            "mainstay-agent",
            "mainstay-bench",
        ],
    ),
    ("mainstay-tests", &["mainstay-types", "mainstay-api", "mainstay-client", "mainstay-bench"]),
    // It measures from outside, whatever it measures.
    ("mainstay-bench", &[]),
    (
        "mainstay-sim",
        &[
            "mainstay-types",
            "mainstay-codec",
            "mainstay-replica",
            "mainstay-store",
            "mainstay-host",
            "mainstay-silence",
            "mainstay-control",
            "mainstay-ha",
        ],
    ),
    // A specification that used the code would repeat its mistakes.
    ("mainstay-spec", &[]),
];

const PURE: &[&str] = &[
    "mainstay-types",
    "mainstay-codec",
    "mainstay-replica",
    "mainstay-store",
    "mainstay-host",
    "mainstay-silence",
    "mainstay-control",
    "mainstay-ha",
    "mainstay-history",
];

/// Crates from outside that pure crates may name: data, errors, checksums, a configuration syntax.
const PURE_MAY_USE: &[&str] =
    &["bytes", "crc-fast", "serde", "serde_json", "serde_path_to_error", "smallvec", "thiserror", "toml"];

/// Crates that no pure crate may depend on, however far down.
const NEVER_UNDER_PURE: &[&str] = &[
    "tokio",
    "mio",
    "async-std",
    "smol",
    "futures",
    "libc",
    "nix",
    "rustix",
    "io-uring",
    "socket2",
    "rand",
    "rand_core",
    "getrandom",
    "fastrand",
    "chrono",
    "time",
    "parking_lot",
    "crossbeam-channel",
    "redb",
    "raft",
    "hyper",
    "tracing-subscriber",
];

/// The law is about the product, and the product runs on this target.
const TARGET: &str = "x86_64-unknown-linux-gnu";

struct Graph {
    names: BTreeMap<String, String>,
    /// Normal dependencies only: tests and build scripts may use more.
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn load() -> Self {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let names = list(&metadata["packages"]).iter().map(|p| (text(&p["id"]), text(&p["name"]))).collect();
        let edges = list(&metadata["resolve"]["nodes"])
            .iter()
            .map(|node| {
                let normal = list(&node["deps"])
                    .into_iter()
                    .filter(|dep| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()))
                    .map(|dep| text(&dep["pkg"]))
                    .collect();
                (text(&node["id"]), normal)
            })
            .collect();
        Self { names, edges }
    }

    fn id(&self, name: &str) -> &str {
        let found = self.names.iter().find(|(id, n)| *n == name && id.starts_with("path+"));
        found.unwrap_or_else(|| panic!("{name} is not in the workspace")).0
    }

    fn direct(&self, name: &str) -> BTreeSet<&str> {
        self.edges[self.id(name)].iter().map(|id| self.names[id].as_str()).collect()
    }

    /// Everything below `name`, each with the path that leads to it. Procedural macros run in the
    /// compiler and not in the product, so their dependencies do not count.
    fn below(&self, name: &str) -> BTreeMap<&str, String> {
        let macros = ["serde_derive", "thiserror-impl"];
        let mut found = BTreeMap::new();
        let mut open = vec![(self.id(name), name.to_owned())];
        while let Some((id, path)) = open.pop() {
            for next in &self.edges[id] {
                let next_name = self.names[next].as_str();
                let path = format!("{path} → {next_name}");
                if !macros.contains(&next_name) && found.insert(next_name, path.clone()).is_none() {
                    open.push((next, path));
                }
            }
        }
        found
    }
}

#[test]
fn our_crates_depend_only_downwards() {
    let graph = Graph::load();
    for (name, allowed) in OURS {
        for dep in graph.direct(name) {
            assert!(
                !dep.starts_with("mainstay") || allowed.contains(&dep),
                "{name} must not depend on {dep}: the law allows {allowed:?}"
            );
        }
    }
}

#[test]
fn every_crate_of_the_workspace_is_under_the_law() {
    let graph = Graph::load();
    for (id, name) in &graph.names {
        if id.starts_with("path+") {
            assert!(OURS.iter().any(|(known, _)| known == name), "{name} has no line in the law");
        }
    }
}

#[test]
fn pure_crates_use_only_listed_dependencies() {
    let graph = Graph::load();
    for name in PURE {
        for dep in graph.direct(name) {
            assert!(
                dep.starts_with("mainstay") || PURE_MAY_USE.contains(&dep),
                "{name} is pure and depends on {dep}, which is not on the list"
            );
        }
        let below = graph.below(name);
        for never in NEVER_UNDER_PURE {
            assert!(!below.contains_key(never), "a pure crate reaches the outside: {}", below[never]);
        }
    }
}

/// HTTP has no part in the path of a write.
#[test]
fn the_engine_is_built_without_the_runtime_of_the_control_plane() {
    let graph = Graph::load();
    let below = graph.below("mainstay-engine");
    for never in ["tokio", "hyper", "axum"] {
        assert!(!below.contains_key(never), "the engine reaches the control plane: {}", below[never]);
    }
}

/// Servers run `mainstay`, and need neither a lab nor a benchmark.
#[test]
fn the_program_that_servers_run_holds_neither_the_lab_nor_the_benchmark() {
    let graph = Graph::load();
    let below = graph.below("mainstay");
    for never in ["mainstay-lab", "mainstay-bench"] {
        assert!(!below.contains_key(never), "{}", below[never]);
    }
    assert!(
        graph.below("mainstay-lab").contains_key("mainstay-bench"),
        "this test does not see it where it is"
    );
}

#[test]
fn pure_crates_have_the_clippy_deny_list() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let list = |name: &str| {
        let dir = name.strip_prefix("mainstay-").expect("pure crates are prefixed");
        let path = root.join("crates").join(dir).join("clippy.toml");
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let first = list(PURE[0]);
    for name in PURE {
        assert_eq!(list(name), first, "the deny-list of {name} differs from that of {}", PURE[0]);
    }
    assert!(first.contains("std::time::Instant::now") && first.contains("std::collections::HashMap"));
}

/// Returns what `cargo tree` prints of these packages, a crate a line.
fn tree(packages: &[&str], more: &[&str]) -> String {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--locked", "--target", TARGET, "--prefix", "none"])
        .args(more)
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo writes text");
    assert!(tree.contains("mainstay-types v"), "{packages:?} do not contain the crate in question:\n{tree}");
    tree
}

/// Returns the tree of crates, with their features, that cargo compiles when it builds these
/// packages together.
fn built_with(packages: &[&str]) -> String {
    tree(packages, &["--edges", "features,no-dev"])
}

/// Packages that the Makefile builds together, programs and tests.
fn shipped() -> Vec<String> {
    let makefile = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../Makefile");
    let text = std::fs::read_to_string(makefile).expect("the Makefile is there");
    let (_, list) =
        text.split_once("\nSHIPPED := -p mainstay $(addprefix -p mainstay-,").expect("the list is there");
    let (names, _) = list.split_once(')').expect("the list ends");
    let parts = names.split_whitespace().map(|name| format!("mainstay-{name}"));
    std::iter::once("mainstay".to_owned()).chain(parts).collect()
}

/// A crate whose features differ between programs and tests is built twice, and all that stands on
/// it: for the agent that took five minutes.
#[test]
fn programs_and_tests_share_one_build_of_every_crate() {
    let packages = shipped();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    let built = |edges: &str| -> BTreeSet<String> {
        let tree = tree(&packages, &["--edges", edges, "--format", "{p} [{f}]"]);
        tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let (programs, tests) = (built("no-dev"), built("normal,build,dev"));
    assert!(programs.len() > 100, "{programs:?}");
    let twice: Vec<&String> = programs.difference(&tests).collect();
    assert!(twice.is_empty(), "tests need other features of {twice:?}; see fastrand in tests/Cargo.toml");
}

#[test]
fn the_product_is_built_without_simulation() {
    let feature = "mainstay-types feature \"simulation\"";
    // Built as the Makefile and any user would. A build of the whole workspace has the simulator in
    // it.
    for packages in [&["mainstay"][..], &["mainstay", "mainstay-lab", "mainstay-tests"]] {
        let tree = built_with(packages);
        assert!(!tree.contains(feature), "{packages:?} can be told to leave a rule out:\n{tree}");
    }
    assert!(
        built_with(&["mainstay-sim"]).contains(feature),
        "this test does not see the feature where it is"
    );
}
