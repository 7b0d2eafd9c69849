//! `mainstay service …`.

use super::WaitArgs;
use clap::Subcommand;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum ServiceCommand {
    /// Create or change a service from a TOML file, and wait until it runs. `-` reads standard
    /// input.
    Apply {
        /// Path of the TOML file, or `-`.
        file: PathBuf,
        /// Say what would change, field by field, and whether the service would restart. Change
        /// nothing.
        #[arg(long)]
        dry_run: bool,
        /// Restart the service even if other processes or mounts hold its file system. The file
        /// system is flushed to the device first.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// List the services.
    List,
    /// Show one service.
    Status {
        /// Name of the service.
        name: String,
    },
    /// Move a service to another node.
    Move {
        /// Name of the service.
        name: String,
        /// Node that is to run the service.
        #[arg(value_name = "NODE", required_unless_present = "to", conflicts_with = "to")]
        node: Option<String>,
        /// Another way to give NODE.
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
        /// Move the service even if other processes or mounts hold its file system. The file system
        /// is flushed to the device first.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Stop and delete a service. Its resource stays.
    Delete {
        /// Name of the service.
        name: String,
        /// Delete the service even if other processes or mounts hold its file system. The file
        /// system is flushed to the device first.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
}
