//! Devices and file systems on a node's own disk, without any replication. They are the yardstick,
//! and peers build on them.

use crate::lab::Lab;
use crate::mariadb;
use anyhow::{Context, Result};
use std::process::Child;

/// Where a lab mounts the node's disk.
pub const DISK: &str = "/var/lib/mainstay";

/// A script that makes an image on the node's disk and attaches it as `$device`. The image is fully
/// written beforehand, so no later write has to find space first.
fn attach_script(image: &str, mib: u64) -> String {
    format!(
        "mkdir -p $(dirname {image})
         {}
         device=$(losetup --find --show --direct-io=on --sector-size 4096 {image})\n",
        write_script(image, mib)
    )
}

fn write_script(image: &str, mib: u64) -> String {
    format!("dd if=/dev/zero of={image} bs=4M count={} oflag=direct status=none", mib.div_ceil(4))
}

/// Makes a fully written image on the node's disk.
///
/// # Errors
/// When the disk has no room.
pub fn image(lab: &Lab, node: &str, image: &str, mib: u64) -> Result<()> {
    let script = format!("mkdir -p $(dirname {image})\n{}", write_script(image, mib));
    lab.shell(node, &script).with_context(|| format!("make {image} on {node}")).map(drop)
}

/// A loop device that stays attached as long as this exists, and never longer than its node runs.
pub struct Device {
    pub path: String,
    holder: Child,
}

impl Device {
    /// Attaches the file `file` of the node as a device.
    ///
    /// # Errors
    /// When it cannot be attached.
    pub fn attach(lab: &Lab, node: &str, file: &str, log: &str) -> Result<Self> {
        let script = format!("losetup --find --show --direct-io=on --sector-size 4096 {file}");
        let path = lab.shell(node, &script).with_context(|| format!("attach {file}"))?.trim().to_owned();
        // A detached device that is open goes when it is closed. So it goes with its node in any
        // case.
        let hold = format!("exec 3<>{path}; losetup --detach {path}; exec sleep infinity");
        let holder = lab.spawn(node, &["sh", "-ec", &hold], log)?;
        Ok(Self { path, holder })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The words before a command that make it run as this user.
#[must_use]
pub fn setpriv(user: &str) -> [String; 4] {
    let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
    ["setpriv".into(), uid, gid, "--init-groups".into()]
}

/// A kind of file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    Xfs,
    /// Space comes in clusters of 16 KiB, as large as a page of MariaDB.
    Ext4InClusters,
}

impl FileSystem {
    fn mkfs(self) -> &'static str {
        match self {
            Self::Xfs => "mkfs.xfs -q",
            Self::Ext4InClusters => "mkfs.ext4 -q -O bigalloc -C 16384",
        }
    }
}

/// Makes an XFS on a loop device over an image, both called after `root`, and mounts it there.
///
/// # Errors
/// When one of the programs fails.
pub fn file_system(lab: &Lab, node: &str, root: &str, mib: u64) -> Result<()> {
    file_system_of(FileSystem::Xfs, lab, node, root, mib)
}

/// The same with a file system of this kind.
///
/// # Errors
/// When one of the programs fails.
pub fn file_system_of(kind: FileSystem, lab: &Lab, node: &str, root: &str, mib: u64) -> Result<()> {
    let script = format!("{}{}", attach_script(&format!("{root}.img"), mib), mount_script(kind, root));
    lab.shell(node, &script).with_context(|| format!("make the file system {root} on {node}")).map(drop)
}

/// Attaches what lies at `file`, makes an XFS on it and mounts it.
///
/// # Errors
/// When one of the programs fails.
pub fn file_system_on(lab: &Lab, node: &str, file: &str, root: &str) -> Result<()> {
    let attach = format!("device=$(losetup --find --show --direct-io=on --sector-size 4096 {file})\n");
    let script = format!("{attach}{}", mount_script(FileSystem::Xfs, root));
    lab.shell(node, &script).with_context(|| format!("make a file system on {file}")).map(drop)
}

/// A detached device that is mounted goes with the mount.
fn mount_script(kind: FileSystem, root: &str) -> String {
    format!(
        "mkdir -p {root}
         {mkfs} $device
         mount -o {options} $device {root}
         losetup --detach $device",
        mkfs = kind.mkfs(),
        options = mariadb::MOUNT_OPTIONS
    )
}

/// A database server on a node, with its data in `<root>/data`.
pub struct Server<'a> {
    lab: &'a Lab,
    node: String,
    root: String,
    port: u16,
    /// Options beyond the common ones.
    more: Vec<String>,
    process: Option<Child>,
}

impl<'a> Server<'a> {
    /// Makes an empty database unless there is one.
    ///
    /// # Errors
    /// When that fails.
    pub fn prepare(lab: &'a Lab, node: &str, root: &str, port: u16, more: &[&str]) -> Result<Self> {
        lab.shell(node, &mariadb::prepare_script(root))
            .with_context(|| format!("prepare {root} on {node}"))?;
        let more = more.iter().map(|&word| word.to_owned()).collect();
        Ok(Self { lab, node: node.into(), root: root.into(), port, more, process: None })
    }

    /// Starts the server with options for this start alone, and does not wait until it is ready.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(&mut self, once: &[&str]) -> Result<()> {
        let mut words = mariadb::command(&self.root, self.port);
        words.extend_from_slice(&self.more);
        words.extend(once.iter().map(|&word| word.to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let name = self.root.rsplit('/').next().unwrap_or("data");
        self.process =
            Some(self.lab.spawn(&self.node, &words, &format!("{name}-{}-mariadb.log", self.node))?);
        Ok(())
    }

    /// Runs statements on the server's own socket.
    ///
    /// # Errors
    /// When it refuses or does not answer.
    pub fn sql(&self, statements: &str) -> Result<String> {
        let socket = format!("--socket={}/data/mariadb.sock", self.root);
        let (user, password) =
            (format!("--user={}", mariadb::USER), format!("--password={}", mariadb::PASSWORD));
        let words = ["mariadb", "--no-defaults", &socket, &user, &password, "--batch", "--skip-column-names"];
        self.lab.exec(&self.node, &[&words[..], &["--execute", statements]].concat())
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        let Some(process) = &mut self.process else { return Ok(true) };
        Ok(process.try_wait().context("ask for the server's end")?.is_some())
    }

    /// Ends it with a signal (`TERM`, `KILL`) and waits until it has ended.
    ///
    /// # Errors
    /// When it does not run.
    pub fn end(&mut self, signal: &str) -> Result<()> {
        let kill = format!("kill -{signal} $(cat {}/data/mariadb.pid)", self.root);
        self.lab.shell(&self.node, &kill)?;
        if let Some(mut process) = self.process.take() {
            process.wait().context("wait for the server to end")?;
        }
        Ok(())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // `lab down` ends what is left of it.
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
