//! Other ways to keep copies on several machines, as far as Debian packages them.
//!
//! A driver sets its peer up in a lab of three nodes without Mainstay. Each node has a network,
//! mounts and a disk of its own. The driver says where to write, or which server to ask. `lab down`
//! ends every process, mount and device of the lab, so no driver tears anything down.

mod ceph;
mod galera;
mod gluster;
mod qemu;
mod qemu_fuse;
mod semisync;
mod storage_daemon;

use crate::bench::ready::{Needs, Ready};
use crate::lab::Lab;
use anyhow::{Result, bail};
use std::path::Path;

/// Name of the lab; one peer after the other is in it.
pub const LAB: &str = "bench-peer";

/// A driver.
pub struct Peer {
    pub name: &'static str,
    /// Programs that have to be there, each with its Debian package.
    programs: &'static [(&'static str, &'static str)],
    /// Words that make a program say its version.
    pub version: &'static [&'static str],
    start: for<'a> fn(&'a Lab, Needs) -> Result<Ready<'a>>,
}

pub static ALL: [Peer; 6] = [
    Peer {
        name: "qemu",
        programs: storage_daemon::PROGRAMS,
        version: &["qemu-storage-daemon", "--version"],
        start: qemu::start,
    },
    Peer {
        name: "qemu-fuse",
        programs: storage_daemon::PROGRAMS,
        version: &["qemu-storage-daemon", "--version"],
        start: qemu_fuse::start,
    },
    Peer { name: "ceph", programs: ceph::PROGRAMS, version: &["ceph", "--version"], start: ceph::start },
    Peer {
        name: "gluster",
        programs: &[("glusterd", "glusterfs-server"), ("glusterfs", "glusterfs-client")],
        version: &["glusterfs", "--version"],
        start: gluster::start,
    },
    Peer {
        name: "galera",
        programs: &[("mariadbd", "mariadb-server"), ("rsync", "rsync"), ("lsof", "lsof")],
        version: &["mariadbd", "--version"],
        start: galera::start,
    },
    Peer {
        name: "semisync",
        programs: &[("mariadbd", "mariadb-server")],
        version: &["mariadbd", "--version"],
        start: semisync::start,
    },
];

impl Peer {
    /// The driver of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<&'static Self> {
        let known = || ALL.iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ");
        match ALL.iter().find(|peer| peer.name == name) {
            Some(peer) => Ok(peer),
            None => bail!("there is no peer `{name}`; there are {}", known()),
        }
    }

    /// Sets it up.
    ///
    /// # Errors
    /// When a program is missing, or the peer does not get ready.
    pub fn start<'a>(&self, lab: &'a Lab, needs: Needs) -> Result<Ready<'a>> {
        let absent = |program: &str| {
            !["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
                .iter()
                .any(|dir| Path::new(dir).join(program).exists())
        };
        let missing: Vec<_> = self.programs.iter().filter(|(name, _)| absent(name)).collect();
        if !missing.is_empty() {
            let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
            bail!("{} needs the packages {}: make bench-deps", self.name, packages.join(", "));
        }
        (self.start)(lab, needs)
    }
}
