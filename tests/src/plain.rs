//! The yardstick: the same MariaDB on the same node's own disk, by way of a loop device and XFS as
//! on a replicated volume, with no Mainstay in between.

use crate::lab::Lab;
use crate::local::{self, DISK, Server};
use crate::now_us;
use anyhow::Result;

pub struct Plain<'a> {
    lab: &'a Lab,
    node: String,
    address: String,
    server: Server<'a>,
}

fn root() -> String {
    format!("{DISK}/plain")
}

impl<'a> Plain<'a> {
    /// Makes the device and its file system, and starts the server.
    ///
    /// # Errors
    /// When one of the programs fails.
    pub fn start(lab: &'a Lab, node: &str, address: &str, port: u16, mib: u64) -> Result<Self> {
        local::file_system(lab, node, &root(), mib)?;
        let mut server = Server::prepare(lab, node, &root(), port, &[])?;
        server.launch(&[])?;
        Ok(Self { lab, node: node.into(), address: format!("{address}:{port}"), server })
    }

    /// Where the client reaches it, as `address:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Kills the server with SIGKILL and starts it again; returns when it was started.
    ///
    /// # Errors
    /// When it does not run or cannot be started.
    pub fn crash_and_restart(&mut self) -> Result<u64> {
        self.server.end("KILL")?;
        let at_us = now_us();
        self.server.launch(&[])?;
        Ok(at_us)
    }

    /// Stops the server in order and starts it again.
    ///
    /// # Errors
    /// When it does not run or cannot be started.
    pub fn restart(&mut self) -> Result<()> {
        self.server.end("TERM")?;
        self.server.launch(&[])
    }

    /// Stops the server and removes the device.
    ///
    /// # Errors
    /// When something remains.
    pub fn stop(mut self) -> Result<()> {
        self.server.end("TERM")?;
        let root = root();
        self.lab.shell(&self.node, &format!("umount {root}; rm -rf {root} {root}.img")).map(drop)
    }
}
