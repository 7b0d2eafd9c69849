//! State of a lab: its state file, and the names of everything that belongs to it.

use crate::failure::{Code, Context, Failure, Outcome};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Port of the client namespace on the switch.
pub const CLIENT: &str = "client";
/// Where a node mounts its disk.
pub const STATE_DIR: &str = "/var/lib/mainstay";
pub const STATE_FILE: &str = "lab.json";
pub const LOCK_FILE: &str = "lock";
pub const RUN_DIR: &str = "/run/mainstay";
/// Every lab has a switch of its own, so all labs use the same addresses.
const SUBNET: &str = "10.213.0";
const CLIENT_HOST: u8 = 254;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// `lab up` has not finished. After `lab up` has ended, this phase means that it left remains.
    Creating,
    Up,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lab {
    pub name: String,
    /// The directory of this lab, below the one that holds all labs.
    pub dir: PathBuf,
    pub phase: Phase,
    pub plain: bool,
    /// Size of each disk image, in bytes. A disk that is a directory has the room of the machine's
    /// file system.
    pub disk_bytes: u64,
    /// Disks are directories, not images.
    #[serde(default)]
    pub directories: bool,
    pub nodes: Vec<Node>,
    /// Pairs of ports between which no packet passes.
    pub cuts: BTreeSet<(String, String)>,
    pub isolated: BTreeSet<String>,
    /// Setting of the machine before the first of its labs, see [`super::disk::xfs_push`]. The last
    /// lab puts it back at its end.
    #[serde(default)]
    pub xfs_push_before: Option<String>,
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

/// A plug of the switch.
pub struct Port {
    pub name: String,
    pub address: String,
    pub number: u8,
}

/// The directory that holds all labs.
pub fn base_dir(given: Option<&Path>) -> PathBuf {
    let from_env = || std::env::var_os("MAINSTAY_LAB_DIR").map(PathBuf::from);
    let dir =
        given.map(Path::to_path_buf).or_else(from_env).unwrap_or_else(|| "/var/tmp/mainstay-lab".into());
    // The kernel names the files behind loop devices by their real paths, and they are compared.
    std::fs::canonicalize(&dir).unwrap_or(dir)
}

/// The labs of `base` except the one with this name. Leaves out labs whose state cannot be read.
pub fn others(base: &Path, name: &str) -> impl Iterator<Item = Lab> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let other = move |entry: &std::fs::DirEntry| entry.file_name() != name;
    entries.filter(other).filter_map(|entry| Lab::read(&entry.path()).ok())
}

impl Lab {
    pub fn plan(base: &Path, name: &str, nodes: u8, disk_bytes: u64, plain: bool) -> Self {
        let node = |number: u8| Node {
            name: node_name(number),
            number,
            address: format!("{SUBNET}.{number}"),
            init: None,
            witness: false,
            fuse: vec![],
        };
        Self {
            name: name.into(),
            dir: base.join(name),
            phase: Phase::Creating,
            plain,
            disk_bytes,
            directories: false,
            nodes: (1..=nodes).map(node).collect(),
            cuts: BTreeSet::new(),
            isolated: BTreeSet::new(),
            xfs_push_before: others(base, name)
                .find_map(|lab| lab.xfs_push_before)
                .or_else(super::disk::xfs_push),
        }
    }

    pub fn load(base: &Path, name: &str) -> Outcome<Self> {
        Self::read(&base.join(name))
    }

    /// Reads the state file in a lab's own directory.
    pub fn read(dir: &Path) -> Outcome<Self> {
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

    /// Replaces the state file in one step.
    pub fn save(&self) -> Outcome<()> {
        let (path, fresh) = (self.dir.join(STATE_FILE), self.dir.join("lab.json.new"));
        serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::other)
            .and_then(|text| std::fs::write(&fresh, text))
            .and_then(|()| std::fs::rename(&fresh, &path))
            .or_fail(Code::LabState, || format!("write {}", path.display()))
    }

    pub fn node(&self, name: &str) -> Outcome<&Node> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| self.unknown(name, ""))
    }

    pub fn node_mut(&mut self, name: &str) -> Outcome<&mut Node> {
        let unknown = self.unknown(name, "");
        self.nodes.iter_mut().find(|node| node.name == name).ok_or(unknown)
    }

    fn unknown(&self, name: &str, more: &str) -> Failure {
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("lab `{}` has no `{name}`", self.name);
        Failure::new(Code::LabNodeUnknown, message, format!("It has {}{more}.", names.join(", ")))
    }

    pub fn client(&self) -> Port {
        Port { name: CLIENT.into(), address: format!("{SUBNET}.{CLIENT_HOST}"), number: CLIENT_HOST }
    }

    /// The plug of a node or of the client.
    pub fn port(&self, name: &str) -> Outcome<Port> {
        if name == CLIENT {
            return Ok(self.client());
        }
        match self.node(name) {
            Ok(node) => {
                Ok(Port { name: node.name.clone(), address: node.address.clone(), number: node.number })
            }
            Err(_) => Err(self.unknown(name, " and client")),
        }
    }

    /// Network namespaces of all labs are told apart by a dot, which no name contains.
    pub fn netns(&self, port: &str) -> String {
        format!("{}{port}", netns_prefix(&self.name))
    }

    pub fn node_dir(&self, node: &str) -> PathBuf {
        self.dir.join(node)
    }

    /// The node's first process, if it runs. The number alone proves nothing after a while, so the
    /// process has to be in the node's control group.
    pub fn init_pid(&self, node: &Node) -> Option<u32> {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", node.init?)).ok()?;
        let group = format!("/{}/{}/", cgroup_name(&self.name), node.name);
        groups.lines().any(|line| line.starts_with("0::") && line.contains(&group)).then_some(node.init?)
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

    /// Fails when the node is paused, because every request to it would wait.
    pub fn awake(&self, name: &str) -> Outcome<()> {
        if !super::cgroup::is_frozen(&super::cgroup::of_node(self, name)?) {
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

/// Nodes are named by their numbers.
pub fn node_name(number: u8) -> String {
    format!("n{number}")
}

pub fn netns_prefix(lab: &str) -> String {
    format!("mainstay-{lab}.")
}

pub fn cgroup_name(lab: &str) -> String {
    format!("mainstay-lab-{lab}")
}

/// Only one command at a time changes a lab.
pub struct Lock(#[expect(dead_code, reason = "held, not read")] Flock<File>);

impl Lock {
    /// The lab's directory has to exist; the lock goes away with it.
    pub fn take(base: &Path, name: &str) -> Outcome<Self> {
        let path = base.join(name).join(LOCK_FILE);
        let file = File::create(&path).map_err(|error| {
            let remedy = "`mainstay lab up` makes one; give --name or --dir if it has another name or place.";
            let message = format!("there is no lab in {}: {error}", base.join(name).display());
            Failure::new(Code::LabUnknown, message, remedy)
        })?;
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
            Failure::new(
                Code::LabBusy,
                format!("another command is changing lab `{name}` ({error})"),
                "Wait until it has ended and try again.",
            )
        })?;
        Ok(Self(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_different_labs_never_meet() {
        let base = Path::new("/labs");
        let (a, ab) = (Lab::plan(base, "a", 2, 1, true), Lab::plan(base, "a-b", 2, 1, true));
        assert!(!ab.netns("n1").starts_with(&netns_prefix(&a.name)));
        assert_eq!(a.node("n2").unwrap().address, "10.213.0.2");
        assert!(a.node("n3").is_err() && a.port("client").is_ok() && a.node("client").is_err());
    }

    #[test]
    fn the_state_file_reads_back() {
        let base = tempfile::tempdir().unwrap();
        let mut lab = Lab::plan(base.path(), "x", 3, 1 << 30, false);
        std::fs::create_dir(&lab.dir).unwrap();
        lab.cuts.insert(("n1".into(), "n2".into()));
        lab.save().unwrap();
        assert_eq!(Lab::load(base.path(), "x").unwrap(), lab);
        assert_eq!(Lab::load(base.path(), "y").unwrap_err().problem.code, Code::LabUnknown);
    }
}
