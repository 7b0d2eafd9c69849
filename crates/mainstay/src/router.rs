//! `mainstay router`: its options, and what becomes of them.

use crate::failure::{Code, Failure, Outcome, chain};
use clap::{ArgGroup, Args};
use mainstay_router::RouterError;
use mainstay_router::settings::{Fault, Limits, Ms, RouteSettings, Settings};
use mainstay_types::duration;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where routers and options come from: a file for several services, or options for one.
#[derive(Args, Debug, Clone)]
#[command(group = ArgGroup::new("routed").args(["service", "resource", "config"]).required(true))]
pub struct RouterArgs {
    /// Address of an agent's port for routers (`mainstay agent --router-listen`), or the path of an
    /// agent's socket. Name the agent of each node: once per agent, or separated by commas. Without
    /// a port it is 7403.
    #[arg(long = "agent", value_name = "ADDRESS", value_delimiter = ',', required_unless_present = "config")]
    pub agents: Vec<String>,
    /// Service whose clients are routed to the node where it runs.
    #[arg(long, value_name = "NAME", requires = "port")]
    pub service: Option<String>,
    /// Resource whose clients are routed to its primary, for what runs without a service of
    /// Mainstay.
    #[arg(long, value_name = "NAME", requires = "port")]
    pub resource: Option<String>,
    /// Port of the database on its node.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Address and port for clients that read and write.
    #[arg(long, default_value = "0.0.0.0:6446", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Address and port for clients that only read. Nothing listens there while no copy can be
    /// read. Default: the port after that of --listen.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub readers_listen: Option<SocketAddr>,
    /// Sessions that each of the two ports may have. Further clients are refused.
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_sessions: u32,
    /// Tell the database the address of each client, in a header of the PROXY protocol, version 2.
    /// The database has to expect that header.
    #[arg(long)]
    pub proxy_protocol: bool,
    /// Address at which clients reach a node, where it is not the cluster's. Give the option once
    /// per node.
    #[arg(long = "at", value_name = "NODE=ADDRESS", value_parser = node_address)]
    pub nodes: Vec<(String, String)>,
    /// Address and port for /health, /primary and /metrics, over HTTP. There is no authentication
    /// and no encryption. Default: off.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub status_listen: Option<SocketAddr>,
    /// Longest time for sessions to become idle when a service stops as planned or the router ends.
    /// After that they are reset.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = duration::parse_ms)]
    pub drain: u64,
    /// Time without an answer of an agent after which new clients are refused.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration::parse_ms)]
    pub max_age: u64,
    /// Time for a connection to the database. After that the client is reset.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = duration::parse_ms)]
    pub connect_timeout: u64,
    /// Silence on a connection after which the kernel asks whether its peer is still there; 0s for
    /// never.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration::parse_ms)]
    pub keepalive: u64,
    /// Time for which a peer may neither acknowledge nor take what was sent to it. After that its
    /// session is reset; 0s for the limits of the kernel.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration::parse_ms)]
    pub user_timeout: u64,
    /// Connections that may wait to be taken by the router.
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub backlog: u32,
    /// Threads that copy [default: one per processor, at most 4]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// File with all of this, for several services (TOML; docs/router.md has an example). No other
    /// option may be given with it.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "agents", "port", "listen", "readers_listen", "max_sessions", "proxy_protocol", "nodes",
            "status_listen", "drain", "max_age", "connect_timeout", "keepalive", "user_timeout", "backlog",
            "threads"
        ]
    )]
    pub config: Option<PathBuf>,
}

fn node_address(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((node, address)) if !node.is_empty() && !address.is_empty() => {
            Ok((node.to_owned(), address.to_owned()))
        }
        _ => Err("write NODE=ADDRESS, for example n1=192.0.2.11".into()),
    }
}

impl RouterArgs {
    fn settings(self) -> Result<Settings, Fault> {
        if let Some(file) = &self.config {
            return Settings::read(file);
        }
        Ok(Settings {
            agents: self.agents,
            status_listen: self.status_listen,
            nodes: self.nodes.into_iter().collect(),
            limits: Limits {
                drain: Ms(self.drain),
                max_age: Ms(self.max_age),
                connect_timeout: Ms(self.connect_timeout),
                keepalive: Ms(self.keepalive),
                user_timeout: Ms(self.user_timeout),
                backlog: self.backlog,
                threads: self.threads,
            },
            routes: vec![RouteSettings {
                service: self.service,
                resource: self.resource,
                // The command line needs it with a service and with a resource.
                port: self.port.unwrap_or_default(),
                listen: self.listen,
                readers_listen: self.readers_listen,
                max_sessions: self.max_sessions,
                proxy_protocol: self.proxy_protocol,
            }],
        })
    }
}

/// Runs a router until it is told to end.
pub fn run(args: RouterArgs) -> Outcome<()> {
    let failed = |error: RouterError| {
        let message = chain(&error);
        match error {
            RouterError::Fault(fault) => Failure::new(Code::BadRouter, message, fault.remedy),
            RouterError::Listen { .. } => Failure::new(
                Code::RouterAddress,
                message,
                "Name an address of this machine and a port that no other program has.",
            ),
            RouterError::System { .. } => Failure::new(
                Code::RouterEnded,
                message,
                "Its supervisor starts it again; see the limits of its user and of the machine.",
            ),
        }
    };
    let stops = mainstay_router::stops();
    let stops = stops.map_err(|source| failed(RouterError::System { doing: "take signals", source }))?;
    let settings = args.settings().map_err(|fault| failed(fault.into()))?;
    mainstay_router::run(settings, stops).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parsed(line: &str) -> Result<Settings, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let Command::Router(args) = cli.command else { panic!("{line}") };
        let settings = args.settings().map_err(|fault| fault.what)?;
        settings.check().map_err(|fault| fault.what)?;
        Ok(settings)
    }

    #[test]
    fn the_options_of_a_router_have_the_defaults_of_its_file() {
        let line = "mainstay router --agent 10.0.0.1,10.0.0.2 --service db --port 3306";
        let settings = parsed(line).unwrap();
        assert_eq!(settings.agents, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(format!("{:?}", settings.limits), format!("{:?}", Limits::default()));
        let file = mainstay_router::settings::parse(
            "agents = [\"10.0.0.1\", \"10.0.0.2\"]\n[[route]]\nservice = \"db\"\nport = 3306\n",
        )
        .unwrap();
        assert_eq!(format!("{settings:?}"), format!("{file:?}"));
        assert_eq!(mainstay_router::agents::with_port("10.0.0.1"), "10.0.0.1:7403");
    }

    #[test]
    fn a_router_without_a_service_or_with_a_wrong_option_is_refused() {
        for (line, words) in [
            ("mainstay router --agent 10.0.0.1", "--service"),
            ("mainstay router --agent 10.0.0.1 --service db", "--port"),
            ("mainstay router --service db --port 3306", "--agent"),
            ("mainstay router --config x --agent 10.0.0.1", "cannot be used with"),
            ("mainstay router --agent 10.0.0.1 --service db --port 0", "0"),
            ("mainstay router --agent 10.0.0.1 --service db --port 1 --at n1", "NODE=ADDRESS"),
            ("mainstay router --agent 10.0.0.1 --service DB --port 1", "`DB` is not a name"),
            ("mainstay router --config /nowhere/x.toml", "/nowhere/x.toml"),
        ] {
            let why = parsed(line).unwrap_err();
            assert!(why.contains(words), "{line}: {why}");
        }
    }
}
