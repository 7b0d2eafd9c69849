//! The part of a lab's state file that commands need which ask one of its agents: the nodes, and
//! where their sockets are. The lab's own program adds the rest.

use crate::failure::{Code, Context, Failure, Outcome};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub const STATE_FILE: &str = "lab.json";
/// The run directory of a node, as seen inside.
pub const RUN_DIR: &str = "/run/mainstay";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Members {
    /// Name of the lab.
    pub name: String,
    /// The directory of this lab, below the one that holds all labs.
    pub dir: PathBuf,
    pub nodes: Vec<Node>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    /// From 1; the last part of the address.
    pub number: u8,
    pub address: String,
    /// Process id, outside, of the node's first process; `None` while the node has no power.
    pub init: Option<u32>,
    /// Whether the node runs an agent and no engine, and votes without holding data.
    #[serde(default)]
    pub witness: bool,
    /// FUSE connections the node had when its end began; empty once the end is complete.
    #[serde(default)]
    pub fuse: Vec<u32>,
}

/// Parses the name of a lab.
pub fn lab_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=32).contains(&text.len()) && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err("a lab's name has 1 to 32 characters out of a-z, 0-9 and the dash".into())
}

/// The directory that holds all labs.
pub fn base_dir(given: Option<&Path>) -> PathBuf {
    let from_env = || std::env::var_os("MAINSTAY_LAB_DIR").map(PathBuf::from);
    let dir =
        given.map(Path::to_path_buf).or_else(from_env).unwrap_or_else(|| "/var/tmp/mainstay-lab".into());
    // The kernel names the files behind loop devices by their real paths, and they are compared.
    std::fs::canonicalize(&dir).unwrap_or(dir)
}

/// Reads the state file in a lab's own directory.
pub fn read<T: DeserializeOwned>(dir: &Path) -> Outcome<T> {
    let path = dir.join(STATE_FILE);
    let text = std::fs::read(&path).map_err(|error| {
        Failure::new(
            Code::LabUnknown,
            format!("there is no lab in {}: {error}", dir.display()),
            "`mainstay lab up` makes one; give --name or --dir if it has another name or place.",
        )
    })?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::new(
            Code::LabStateUnreadable,
            format!("{} is not readable: {error}", path.display()),
            format!("mainstay lab down --name {}", dir.file_name().unwrap_or_default().display()),
        )
    })
}

impl Members {
    pub fn node(&self, name: &str) -> Outcome<&Node> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| self.unknown(name, ""))
    }

    /// Failure for a name that no node has. `more`: what has a name besides the nodes.
    pub fn unknown(&self, name: &str, more: &str) -> Failure {
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("lab `{}` has no `{name}`", self.name);
        Failure::new(Code::LabNodeUnknown, message, format!("It has {}{more}.", names.join(", ")))
    }

    /// The node's first process, if it runs. The number alone proves nothing after a while, so the
    /// process has to be in the node's control group.
    pub fn init_pid(&self, node: &Node) -> Option<u32> {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", node.init?)).ok()?;
        let group = format!("/{}/{}/", cgroup_name(&self.name), node.name);
        let within = |line: &str| line.starts_with("0::") && format!("{line}/").contains(&group);
        groups.lines().any(within).then_some(node.init?)
    }

    /// The node's first process, or why there is none.
    pub fn running(&self, node: &Node) -> Outcome<u32> {
        self.init_pid(node).ok_or_else(|| {
            Failure::new(
                Code::LabNodeDown,
                format!("{} has no power", node.name),
                format!("mainstay lab start {} --name {}", node.name, self.name),
            )
        })
    }

    /// The control group of a node, under which its services get theirs.
    pub fn cgroup(&self, node: &str) -> Outcome<PathBuf> {
        Ok(cgroup_root()?.join(cgroup_name(&self.name)).join(node))
    }

    /// Fails when the node is paused, because every request to it would wait.
    pub fn awake(&self, name: &str) -> Outcome<()> {
        if !is_frozen(&self.cgroup(name)?) {
            return Ok(());
        }
        Err(Failure::new(
            Code::LabNodePaused,
            format!("{name} is paused and would not answer"),
            format!("mainstay lab resume {name} --name {}", self.name),
        ))
    }

    /// The agent's socket as seen from outside.
    pub fn agent_socket(&self, node: &Node) -> Outcome<PathBuf> {
        Ok(format!("/proc/{}/root{RUN_DIR}/agent.sock", self.running(node)?).into())
    }
}

/// Name of a lab's control group, which holds those of its nodes.
pub fn cgroup_name(lab: &str) -> String {
    format!("mainstay-lab-{lab}")
}

/// Where version 2 of control groups is mounted: `/sys/fs/cgroup`, or a directory below it on
/// machines that still use version 1 as well.
pub fn cgroup_root() -> Outcome<PathBuf> {
    let mounts =
        std::fs::read_to_string("/proc/self/mountinfo").or_fail(Code::LabCgroup, || "read mounts".into())?;
    let found = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (right.split(' ').next() == Some("cgroup2")).then(|| left.split(' ').nth(4))?
    });
    found.map(PathBuf::from).ok_or_else(|| {
        Failure::new(
            Code::LabCgroup,
            "no control groups of version 2 are mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
        )
    })
}

pub fn is_frozen(group: &Path) -> bool {
    std::fs::read_to_string(group.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
}
