//! The yardstick: the same MariaDB on the same node's own disk, by way of a loop device and XFS as on a
//! replicated volume, with no Mainstay in between.

use crate::lab::Lab;
use crate::{mariadb, now_us};
use anyhow::{Context, Result};
use std::process::Child;

/// On the node's own disk.
const ROOT: &str = "/var/lib/mainstay/plain";

pub struct Plain<'a> {
    lab: &'a Lab,
    node: String,
    address: String,
    port: u16,
    server: Option<Child>,
}

impl<'a> Plain<'a> {
    /// Makes the device and its file system, fully written beforehand so that the yardstick does not pay
    /// for finding space, and starts the server.
    ///
    /// # Errors
    /// When one of the programs fails.
    pub fn start(lab: &'a Lab, node: &str, address: &str, port: u16, gib: u32) -> Result<Self> {
        let script = format!(
            "mkdir -p {ROOT}
             dd if=/dev/zero of={ROOT}.img bs=4M count={count} oflag=direct status=none
             device=$(losetup --find --show --direct-io=on --sector-size 4096 {ROOT}.img)
             mkfs.xfs -q $device
             mount -o {options} $device {ROOT}
             losetup --detach $device",
            count = gib * 256,
            options = mariadb::MOUNT_OPTIONS
        );
        // Detaching a device that is mounted makes it go with the mount, whatever becomes of the node.
        lab.shell(node, &script).context("make the plain device")?;
        lab.shell(node, &mariadb::prepare_script(ROOT)).context("prepare the plain database")?;
        let mut plain =
            Self { lab, node: node.into(), address: format!("{address}:{port}"), port, server: None };
        plain.launch()?;
        Ok(plain)
    }

    /// Where the client reaches it, as `address:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    fn launch(&mut self) -> Result<()> {
        let words = mariadb::command(ROOT, self.port);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.server = Some(self.lab.spawn(&self.node, &words, "plain-mariadb.log")?);
        Ok(())
    }

    /// Kills the server with SIGKILL and starts it again; returns when it was started.
    ///
    /// # Errors
    /// When it does not run or cannot be started.
    pub fn crash_and_restart(&mut self) -> Result<u64> {
        self.lab.shell(&self.node, &format!("kill -9 $(cat {ROOT}/data/mariadb.pid)"))?;
        if let Some(mut server) = self.server.take() {
            server.wait().context("wait for the killed server")?;
        }
        let at_us = now_us();
        self.launch()?;
        Ok(at_us)
    }

    /// Stops the server and removes the device.
    ///
    /// # Errors
    /// When something remains.
    pub fn stop(mut self) -> Result<()> {
        self.lab.shell(&self.node, &format!("kill $(cat {ROOT}/data/mariadb.pid)"))?;
        if let Some(mut server) = self.server.take() {
            server.wait().context("wait for the stopped server")?;
        }
        self.lab.shell(&self.node, &format!("umount {ROOT}; rm -rf {ROOT} {ROOT}.img")).map(drop)
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        // Only after a failure; `lab down` removes the node with everything in it.
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
