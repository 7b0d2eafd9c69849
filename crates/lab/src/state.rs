//! State of a lab: its state file, and the names of everything that belongs to it.

use crate::failure::{Code, Context, Failure, Outcome};
use crate::members;
pub use crate::members::{Members, Node, RUN_DIR, STATE_FILE, base_dir, cgroup_name};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

/// Port of the client namespace on the switch.
pub const CLIENT: &str = "client";
/// Where a node mounts its disk.
pub const STATE_DIR: &str = "/var/lib/mainstay";
pub const LOCK_FILE: &str = "lock";
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

/// The state file. Its part about the nodes is [`Members`], which other commands read as well.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lab {
    #[serde(flatten)]
    pub members: Members,
    pub phase: Phase,
    pub plain: bool,
    /// Size of each disk image, in bytes. A disk that is a directory has the room of the machine's
    /// file system.
    pub disk_bytes: u64,
    /// Disks are directories, not images.
    #[serde(default)]
    pub directories: bool,
    /// The first process of each node is systemd.
    #[serde(default)]
    pub systemd: bool,
    /// Pairs of ports between which no packet passes.
    pub cuts: BTreeSet<(String, String)>,
    pub isolated: BTreeSet<String>,
    /// Setting of the machine before the first of its labs, see [`super::disk::xfs_push`]. The last
    /// lab puts it back at its end.
    #[serde(default)]
    pub xfs_push_before: Option<String>,
}

impl Deref for Lab {
    type Target = Members;

    fn deref(&self) -> &Members {
        &self.members
    }
}

impl DerefMut for Lab {
    fn deref_mut(&mut self) -> &mut Members {
        &mut self.members
    }
}

/// A plug of the switch.
pub struct Port {
    pub name: String,
    pub address: String,
    pub number: u8,
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
        let nodes = (1..=nodes).map(node).collect();
        Self {
            members: Members { name: name.into(), dir: base.join(name), nodes },
            phase: Phase::Creating,
            plain,
            disk_bytes,
            directories: false,
            systemd: false,
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
        members::read(dir)
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

    pub fn node_mut(&mut self, name: &str) -> Outcome<&mut Node> {
        let unknown = self.unknown(name, "");
        self.nodes.iter_mut().find(|node| node.name == name).ok_or(unknown)
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
}

/// Nodes are named by their numbers.
pub fn node_name(number: u8) -> String {
    format!("n{number}")
}

pub fn netns_prefix(lab: &str) -> String {
    format!("mainstay-{lab}.")
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
