//! `mainstay service …`.

use super::{MaintenanceArgs, WaitArgs, WatchArgs};
use clap::{Args, Subcommand, ValueEnum};
use mainstay_cli::list::form_arg;
use mainstay_types::size;
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
    /// Write a commented service file for a program that Mainstay knows, and apply it. The file
    /// stays, for changes. It is removed again if the service is refused.
    Create(ServiceCreateArgs),
    /// Translate a promoter's configuration of drbd-reactor into a service file, say what has no
    /// meaning here, and apply the file. Commands, users and environment of units are taken from
    /// this machine.
    Import(ServiceImportArgs),
    /// List the services.
    #[command(arg = form_arg())]
    List(WatchArgs),
    /// Show one service.
    Status {
        /// Name of the service.
        name: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Say what would fail on which node if this file were applied. Nothing is changed. Exits with
    /// 0 if nothing would fail, with 4 if something would fail on some node or if a node could not
    /// be asked, and with 1 if the service could not run at all.
    Check {
        /// Path of the TOML file, or `-`.
        file: PathBuf,
    },
    /// Show the file of a service as it counts now, with all defaults. Values of environment
    /// variables are hidden.
    Show {
        /// Name of the service.
        name: String,
    },
    /// Edit the file of a service in $VISUAL or $EDITOR, and apply it. The command shows what would
    /// change first, and asks. Values of environment variables that are left as they are shown stay
    /// as they are. A change that is not applied stays in a file that the command names.
    Edit {
        /// Name of the service.
        name: String,
        /// Apply the change without asking.
        #[arg(long)]
        yes: bool,
        /// Restart the service for the change even if other processes or mounts hold its file
        /// system. The file system is flushed to the device first.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Stop a service, and wait until nothing of it runs. It stays stopped, also through failovers
    /// and restarts of nodes, until you start it. Its resource stays in use and primary where it
    /// is.
    Stop {
        /// Name of the service.
        name: String,
        /// Stop the service even if other processes or mounts hold its file system. The file system
        /// is flushed to the device first.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Start a service that was stopped, and wait until it runs. Also clears its failures, so that
    /// a service that was given up is tried again.
    Start {
        /// Name of the service.
        name: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Restart the processes of a service where it runs, and wait until it runs again. Its file
    /// system stays mounted. No failure is counted, and the service stays on its node.
    Restart {
        /// Name of the service.
        name: String,
        /// Restart only this process, and those that are started after it.
        #[arg(long, value_name = "PROCESS")]
        process: Option<String>,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Show the newest output of the processes of a service, from the node where it runs or ran
    /// last.
    Logs {
        /// Name of the service.
        name: String,
        /// Show only the output of this process.
        #[arg(long, value_name = "PROCESS")]
        process: Option<String>,
        /// Show the output on this node.
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
        /// Show the newest N lines of each process, at most 10000 and 256 KiB.
        #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
        lines: usize,
        /// Print output as it comes, until you end the command. With --json one object per piece of
        /// output.
        #[arg(long, short)]
        follow: bool,
    },
    /// Show when a service started, stopped, moved and failed, and what operators asked for. The
    /// history goes back as far as the events of the cluster.
    History {
        /// Name of the service.
        name: String,
        /// Show the newest N events.
        #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
        lines: usize,
    },
    /// Begin or end the maintenance of a service. Mainstay then moves, starts, restarts and stops
    /// it only when you say so, and it DOES NOT FAIL OVER. Mainstay goes on watching it.
    Maintenance {
        /// Name of the service.
        name: String,
        #[command(flatten)]
        set: MaintenanceArgs,
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

/// Programs that `service create` has a template for.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TemplateName {
    /// MariaDB, as Debian packages it.
    Mariadb,
    /// MySQL 8.0.30 or newer.
    Mysql,
    /// PostgreSQL, as Debian packages it.
    Postgresql,
    /// A file system without a program.
    Filesystem,
}

#[derive(Args, Debug)]
pub struct ServiceCreateArgs {
    /// Program that the service runs.
    #[arg(value_enum)]
    pub template: TemplateName,
    /// Resource that the service runs on.
    #[arg(long, value_name = "RESOURCE")]
    pub resource: String,
    /// Name of the service. Default: the name of the resource.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Floating address with its prefix length, for example 10.0.0.7/24.
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    pub vip: Option<String>,
    /// Volume of the resource, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub volume: u16,
    /// Memory of a node that a database may use, for example 8GiB. Default: half the memory of this
    /// machine.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// Major version of PostgreSQL. Default: the newest one that is installed on this machine.
    #[arg(long, value_name = "N")]
    pub release: Option<u32>,
    /// Where to write the file. A file that exists is never overwritten. Default: NAME.toml in this
    /// directory.
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub output: Option<PathBuf>,
    /// Print the file. Write and apply nothing.
    #[arg(long)]
    pub print: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}

#[derive(Args, Debug)]
pub struct ServiceImportArgs {
    /// Path of the promoter's TOML file, or `-`.
    pub file: PathBuf,
    /// Resource of the promoter. Default: the only one in the file.
    #[arg(long, value_name = "RESOURCE")]
    pub promoted: Option<String>,
    /// Resource of Mainstay that the service runs on. Default: that of the same name.
    #[arg(long, value_name = "RESOURCE")]
    pub resource: Option<String>,
    /// Name of the service. Default: the name of the promoter's resource.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where to write the file. A file that exists is never overwritten. Default: NAME.toml in this
    /// directory.
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub output: Option<PathBuf>,
    /// Print the file. Write and apply nothing.
    #[arg(long)]
    pub print: bool,
    #[command(flatten)]
    pub wait: WaitArgs,
}
