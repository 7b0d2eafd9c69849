//! `mainstay engine` and `mainstay agent`: their options, which are also the keys of the
//! configuration file.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mainstay_agent::https::CertificateFiles;
use mainstay_api::engine::WatchdogChoice;
use mainstay_engine::DeviceOption;
use mainstay_engine::frontend::nbd::TlsFiles;
use std::path::PathBuf;

/// Paths that engine and agent share.
#[derive(Args, Debug, Clone)]
pub struct PathArgs {
    /// Durable state of the node.
    #[arg(long, default_value = "/var/lib/mainstay", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Sockets, devices and mounts; empty after a restart of the machine.
    #[arg(long, default_value = "/run/mainstay", value_name = "DIR")]
    pub run_dir: PathBuf,
}

/// Options that engine and agent share besides their paths.
#[derive(Args, Debug, Clone)]
pub struct ConfigArgs {
    /// File with options of engine and agent: `mainstay config default` prints one. Without this
    /// option the file need not be there.
    #[arg(long, env = "MAINSTAY_CONFIG", default_value = crate::config::PATH, value_name = "FILE")]
    pub config: PathBuf,
    /// Messages that go to the log: error, warn, info, debug or trace, also for parts of the
    /// program, for example info,mainstay_engine=debug.
    #[arg(long, env = "MAINSTAY_LOG", default_value = "info", value_name = "LEVEL", value_parser = log_filter)]
    pub log: String,
}

/// A filter of the log, in the syntax of `tracing`.
pub fn log_filter(text: &str) -> Result<String, String> {
    let filter = tracing_subscriber::EnvFilter::builder().parse(text);
    filter.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[derive(Args, Debug, Clone)]
pub struct SilencerArgs {
    /// The run directory of the engine.
    #[arg(long, default_value = "/run/mainstay", value_name = "DIR")]
    pub run_dir: PathBuf,
}

#[derive(Args, Debug, Clone)]
pub struct EngineArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Address and port for other engines.
    #[arg(long, default_value = "0.0.0.0:7401", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// How volumes become devices. auto: the best way that this kernel offers; `mainstay status`
    /// says which one it is, and why.
    #[arg(long, env = "MAINSTAY_DEVICE", default_value = "auto", value_name = "FRONTEND", value_parser = device_option())]
    pub device: DeviceOption,
    /// Address and port for NBD clients on other machines, with --device nbd. Without
    /// --nbd-certificate there is no authentication and no encryption: use it only in a network
    /// that you trust. Default: off.
    #[arg(long, env = "MAINSTAY_NBD_LISTEN", value_name = "ADDRESS:PORT")]
    pub nbd_listen: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pub nbd_tls: NbdTlsArgs,
    /// Allocate all space of a new volume at once, and keep the space of discarded blocks. Writes
    /// to such a volume never run out of space. Without this option a volume takes only the space
    /// of what is written to it, and gives back what is discarded.
    #[arg(long, env = "MAINSTAY_PREALLOCATE")]
    pub preallocate: bool,
    /// Whether a watchdog resets this machine if the engine or the kernel stands still while the
    /// node serves. off: no. automatic: if there is one that can be used. required: the node does
    /// not become primary without one.
    #[arg(long, env = "MAINSTAY_WATCHDOG", default_value = "off", value_name = "CHOICE", value_parser = watchdog_choice())]
    pub watchdog: WatchdogChoice,
    /// The device of the watchdog.
    #[arg(long, env = "MAINSTAY_WATCHDOG_DEVICE", default_value = mainstay_engine::watchdog::DEVICE, value_name = "FILE")]
    pub watchdog_device: PathBuf,
    /// Never poll. Without this option the engine polls for up to 200 us before it sleeps, as long
    /// as enough processors are idle. Polling saves wake-ups and costs idle processor time.
    #[arg(long, env = "MAINSTAY_NO_POLL", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub no_poll: bool,
}

/// Files for TLS 1.3 with NBD clients on other machines. Give all three or none. With them, only
/// clients with a certificate of their own can connect. The engine reads the files again for every
/// client.
#[derive(Args, Debug, Clone)]
pub struct NbdTlsArgs {
    /// Certificate for NBD clients on other machines, PEM, followed by its intermediate
    /// certificates.
    #[arg(
        long,
        env = "MAINSTAY_NBD_CERTIFICATE",
        value_name = "FILE",
        requires_all = ["nbd_listen", "nbd_key", "nbd_client_ca"]
    )]
    pub nbd_certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM, without a password. The file must not be readable by
    /// others.
    #[arg(long, env = "MAINSTAY_NBD_KEY", value_name = "FILE", requires = "nbd_certificate")]
    pub nbd_key: Option<PathBuf>,
    /// Certificates of the authorities for NBD clients, PEM. Every client with a certificate of
    /// such an authority reads and writes all exports, so use an authority that serves nothing
    /// else.
    #[arg(long, env = "MAINSTAY_NBD_CLIENT_CA", value_name = "FILE", requires = "nbd_certificate")]
    pub nbd_client_ca: Option<PathBuf>,
}

impl NbdTlsArgs {
    /// `None` unless all are there, which the command line sees to.
    pub fn files(self) -> Option<TlsFiles> {
        let (certificate, key, client_ca) = (self.nbd_certificate?, self.nbd_key?, self.nbd_client_ca?);
        Some(TlsFiles { certificate, key, client_ca })
    }
}

/// A certificate of your own for --api-listen. Give both files or none: without them the cluster's
/// authority gives the node a certificate. The agent reads replaced files again within seconds.
#[derive(Args, Debug, Clone)]
pub struct ApiTlsArgs {
    /// Certificate for --api-listen, PEM, followed by its intermediate certificates. The agent
    /// reads it again within seconds after you have replaced it. Default: one that the cluster's
    /// authority gives.
    #[arg(long, env = "MAINSTAY_API_CERTIFICATE", value_name = "FILE", requires_all = ["api_listen", "api_key"])]
    pub api_certificate: Option<PathBuf>,
    /// Private key of that certificate, PEM, without a password. The file must not be readable by
    /// others.
    #[arg(long, env = "MAINSTAY_API_KEY", value_name = "FILE", requires = "api_certificate")]
    pub api_key: Option<PathBuf>,
}

impl ApiTlsArgs {
    /// `None` unless both are there, which the command line sees to.
    pub fn files(self) -> Option<CertificateFiles> {
        Some(CertificateFiles { certificate: self.api_certificate?, key: self.api_key? })
    }
}

fn device_option() -> impl TypedValueParser<Value = DeviceOption> {
    PossibleValuesParser::new(DeviceOption::NAMES).try_map(|name| name.parse::<DeviceOption>())
}

fn watchdog_choice() -> impl TypedValueParser<Value = WatchdogChoice> {
    PossibleValuesParser::new(["off", "automatic", "required"]).map(|name| match name.as_str() {
        "automatic" => WatchdogChoice::Automatic,
        "required" => WatchdogChoice::Required,
        _ => WatchdogChoice::Off,
    })
}

#[derive(Args, Debug, Clone)]
pub struct AgentArgs {
    #[command(flatten)]
    pub paths: PathArgs,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Address and port for other agents.
    #[arg(long, default_value = "0.0.0.0:7400", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// Address and port for Prometheus, as http://ADDRESS:PORT/metrics: for example 127.0.0.1:7402.
    /// There is no authentication and no encryption. It serves metrics and health checks, and
    /// nothing else. Default: off.
    #[arg(long, env = "MAINSTAY_METRICS_LISTEN", value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<std::net::SocketAddr>,
    /// Address and port for `mainstay router` on other machines: for example 0.0.0.0:7403. There is
    /// no authentication and no encryption. It tells the names of resources and services and the
    /// nodes where they run, and nothing else. Default: off.
    #[arg(long, env = "MAINSTAY_ROUTER_LISTEN", value_name = "ADDRESS:PORT")]
    pub router_listen: Option<std::net::SocketAddr>,
    /// Address and port for people and programs on other machines: for example 0.0.0.0:7404. They
    /// speak TLS 1.3 and prove themselves by tokens (`mainstay token`). Default: off.
    #[arg(long, env = "MAINSTAY_API_LISTEN", value_name = "ADDRESS:PORT")]
    pub api_listen: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pub api_tls: ApiTlsArgs,
    /// Do not serve the console, the pages for browsers, at --api-listen. Without this option,
    /// https://ADDRESS:PORT/console/ has them. They need no token, and show nothing without one.
    #[arg(long, env = "MAINSTAY_NO_CONSOLE", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub no_console: bool,
    /// Program that switches a node off which was primary and died, for resources with the setting
    /// fencing. It is run on the node that leads; MAINSTAY_NODE names the node. Give it to all
    /// agents. Default: none.
    #[arg(long, env = "MAINSTAY_FENCE_COMMAND", value_name = "PROGRAM")]
    pub fence_command: Option<PathBuf>,
    /// Control group (version 2) below which each service gets a group of its own. Default:
    /// mainstay/NODE below the mount point of control groups, usually /sys/fs/cgroup.
    #[arg(long, value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// Directory for the journals of new replicas, on a device of its own. Default: in the pool.
    /// The directory must exist below the mount point of its device, so that it is missing while
    /// the device is not mounted.
    #[arg(long, env = "MAINSTAY_JOURNAL_DIR", value_name = "DIR")]
    pub journal_dir: Option<PathBuf>,
    /// Directory of hooks: executable files that are run at stages of a failover, each with the
    /// name of its stage. Default: none are run.
    #[arg(long, env = "MAINSTAY_HOOKS", value_name = "DIR")]
    pub hooks: Option<PathBuf>,
    /// Group whose members may look at the cluster through the agent's socket, as `status` and
    /// `events` do. Default: root alone.
    #[arg(long, env = "MAINSTAY_READ_GROUP", value_name = "GROUP")]
    pub read_group: Option<String>,
    /// Group whose members may also move, stop and start services, drain nodes, take snapshots, and
    /// read logs of services and the audit log. Default: root alone.
    #[arg(long, env = "MAINSTAY_OPERATE_GROUP", value_name = "GROUP")]
    pub operate_group: Option<String>,
    /// Group whose members may do everything that root may, also run programs as root by applying
    /// a service. Default: root alone.
    #[arg(long, env = "MAINSTAY_ADMIN_GROUP", value_name = "GROUP")]
    pub admin_group: Option<String>,
    /// Allow --journal-dir on tmpfs. A power cut LOSES journals there, and the replicas with them:
    /// use it for tests and measurements only.
    #[arg(long, requires = "journal_dir")]
    pub volatile_journals: bool,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn polling_can_be_switched_off() {
        let polls = |words: &[&str]| {
            let line = ["mainstay", "engine"].iter().chain(words);
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Engine(args)) => !args.no_poll,
                other => panic!("{other:?}"),
            }
        };
        // The environment of this test may have switched polling off.
        let here = std::env::var_os("MAINSTAY_NO_POLL").is_none();
        assert_eq!((polls(&[]), polls(&["--no-poll"])), (here, false));
    }

    #[test]
    fn the_console_can_be_switched_off() {
        let serves = |words: &[&str]| {
            let line = ["mainstay", "agent"].iter().chain(words);
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Agent(args)) => !args.no_console,
                other => panic!("{other:?}"),
            }
        };
        // The environment of this test may have switched it off.
        let here = std::env::var_os("MAINSTAY_NO_CONSOLE").is_none();
        assert_eq!((serves(&[]), serves(&["--no-console"])), (here, false));
    }

    /// With some of them clients would get in without TLS where the operator thinks that they do
    /// not.
    #[test]
    fn certificates_are_named_all_three_and_with_an_address() {
        let named = |without: &str| {
            let options = [
                ("--nbd-listen", "0.0.0.0:10809"),
                ("--nbd-certificate", "cert.pem"),
                ("--nbd-key", "key.pem"),
                ("--nbd-client-ca", "ca.pem"),
            ];
            let words =
                options.iter().filter(|(name, _)| *name != without).flat_map(|(name, value)| [name, value]);
            let line = ["mainstay", "engine", "--device", "nbd"].into_iter().chain(words.copied());
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Engine(args)) => Ok(args.nbd_tls.files()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.to_string()),
            }
        };
        assert!(matches!(named(""), Ok(Some(_))));
        for without in ["--nbd-listen", "--nbd-certificate", "--nbd-key", "--nbd-client-ca"] {
            let refusal = named(without).expect_err("one is missing");
            assert!(refusal.contains(without), "{refusal}");
        }
    }
}
