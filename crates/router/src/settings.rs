//! Settings of a router, from the command line or a file, and their checks.

use crate::agents;
use crate::switch::Followed;
use mainstay_types::duration;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;

/// Port for sessions to the primary: MySQL Router's.
pub const PRIMARY_PORT: u16 = 6446;
const AGENTS_MAX: usize = 16;
const ROUTES_MAX: usize = 256;
/// Threads that copy, if nothing is said: more are of use only for more than one network card.
const THREADS_USUAL: usize = 4;
const THREADS_MAX: usize = 64;

/// A fault in what the operator said.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Fault {
    pub what: String,
    pub remedy: String,
}

fn fault(what: impl Into<String>, remedy: impl Into<String>) -> Fault {
    Fault { what: what.into(), remedy: remedy.into() }
}

/// A time as people write it, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ms(pub u64);

impl<'de> Deserialize<'de> for Ms {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        duration::parse_with_unit(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// All of a router. The fields are those of its file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Addresses of agents, with or without a port, or paths of their sockets.
    pub agents: Vec<String>,
    /// Address and port for `/health`, `/primary` and `/metrics`; none if nothing is said.
    #[serde(default)]
    pub status_listen: Option<SocketAddr>,
    /// Addresses of nodes for clients, by the names of the nodes. A node that is not named is
    /// reached where the cluster has it.
    #[serde(default)]
    pub nodes: BTreeMap<String, String>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(rename = "route", default)]
    pub routes: Vec<RouteSettings>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub drain: Ms,
    pub max_age: Ms,
    pub connect_timeout: Ms,
    /// Silence after which the kernel asks whether a peer is there; 0 for never.
    pub keepalive: Ms,
    /// Time for which sent data may be unacknowledged or not taken; 0 for the kernel's own.
    pub user_timeout: Ms,
    /// Connections that the kernel completes before the router takes them.
    pub backlog: u32,
    /// Threads that copy; one per processor, at most four, if nothing is said.
    pub threads: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            drain: Ms(10_000),
            max_age: Ms(60_000),
            connect_timeout: Ms(3_000),
            keepalive: Ms(30_000),
            user_timeout: Ms(120_000),
            backlog: 1024,
            threads: None,
        }
    }
}

impl Limits {
    /// Number of threads that copy.
    #[must_use]
    pub fn threads(&self) -> usize {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(processors.min(THREADS_USUAL))
    }
}

/// One service or resource and its ports.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    #[serde(default)]
    pub service: Option<String>,
    /// A resource without a service.
    #[serde(default)]
    pub resource: Option<String>,
    /// Port of the database on its node.
    pub port: u16,
    #[serde(default = "listen_usual")]
    pub listen: SocketAddr,
    /// The port after that of `listen` if nothing is said.
    #[serde(default)]
    pub readers_listen: Option<SocketAddr>,
    /// Sessions that each of the two ports may have.
    #[serde(default = "sessions_usual")]
    pub max_sessions: u32,
    #[serde(default)]
    pub proxy_protocol: bool,
}

#[must_use]
pub fn listen_usual() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PRIMARY_PORT)
}

#[must_use]
pub fn sessions_usual() -> u32 {
    2000
}

impl RouteSettings {
    /// Where readers connect. The checks see to it that there is a port after that of `listen`.
    #[must_use]
    pub fn readers(&self) -> SocketAddr {
        let next = SocketAddr::new(self.listen.ip(), self.listen.port().saturating_add(1));
        self.readers_listen.unwrap_or(next)
    }

    /// Object of the cluster that this is about; the checks see to it that there is one.
    #[must_use]
    pub fn followed(&self) -> Followed {
        match (&self.service, &self.resource) {
            (Some(service), _) => Followed::Service(service.clone()),
            (None, resource) => Followed::Resource(resource.clone().unwrap_or_default()),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.service.as_deref().or(self.resource.as_deref()).unwrap_or_default()
    }
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or has a fault.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            fault(
                format!("the router's file {shown} cannot be read: {error}"),
                "Check the path, and that the router's user may read it.",
            )
        })?;
        parse(&text).map_err(|why| {
            fault(format!("the router's file {shown} has a fault: {why}"), "docs/router.md lists all keys.")
        })
    }

    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), Fault> {
        if self.agents.is_empty() || self.agents.len() > AGENTS_MAX {
            return Err(fault(
                format!(
                    "the router has {} agents to ask, and 1 to {AGENTS_MAX} are possible",
                    self.agents.len()
                ),
                "Name the agent of each node, for example `--agent 10.0.0.1 --agent 10.0.0.2`.",
            ));
        }
        for agent in &self.agents {
            check_agent(agent)?;
        }
        if self.routes.is_empty() || self.routes.len() > ROUTES_MAX {
            return Err(fault(
                format!("the router has {} routes, and 1 to {ROUTES_MAX} are possible", self.routes.len()),
                "Name a service and the port of its database, for example `--service db --port 3306`.",
            ));
        }
        for route in &self.routes {
            check_route(route)?;
        }
        let mut taken = BTreeMap::new();
        let ports = self.routes.iter().flat_map(|route| [(route.listen, route), (route.readers(), route)]);
        for (address, route) in ports {
            let other = taken.insert(address, route.name());
            if let Some(other) = other {
                return Err(fault(
                    format!("{address} would be a port of {other} and of {}", route.name()),
                    "Give each route a `listen` of its own; its readers have the next port, or `readers_listen`.",
                ));
            }
        }
        let limits = &self.limits;
        if limits.connect_timeout.0 == 0 || limits.max_age.0 == 0 || limits.backlog == 0 {
            return Err(fault(
                "connect-timeout, max-age and backlog cannot be 0",
                "Give a longer time, or leave the option out.",
            ));
        }
        if limits.keepalive.0 != 0 && limits.keepalive.0 < 1000 {
            return Err(fault("a keepalive under 1s is not possible", "Give 1s or more, or 0s for none."));
        }
        if !(1..=THREADS_MAX).contains(&limits.threads()) {
            return Err(fault(
                format!("{} threads are not possible", limits.threads()),
                format!("Give 1 to {THREADS_MAX}."),
            ));
        }
        Ok(())
    }

    /// Descriptors that all sessions together may need, and some more.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        let sessions = self.routes.iter().map(|route| u64::from(route.max_sessions));
        sessions.sum::<u64>() * 4 + 256
    }
}

/// The settings in the text of a file, not checked yet.
///
/// # Errors
/// The place and the kind of the first fault of the text.
pub fn parse(text: &str) -> Result<Settings, String> {
    toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
}

fn check_agent(agent: &str) -> Result<(), Fault> {
    let asked = agents::with_port(agent);
    let host = asked.rsplit_once(':').map_or("", |(host, _)| host);
    let is_host = host.parse::<IpAddr>().is_ok()
        || (host.starts_with('[') && asked.parse::<SocketAddr>().is_ok())
        || !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
    if is_host || agent.starts_with('/') {
        return Ok(());
    }
    Err(fault(
        format!("`{agent}` is not the address of an agent"),
        format!(
            "Give an IP address or a name, with or without a port ({} if none), or the path of its socket.",
            agents::PORT
        ),
    ))
}

fn check_route(route: &RouteSettings) -> Result<(), Fault> {
    if route.service.is_some() == route.resource.is_some() {
        return Err(fault(
            "a route needs a service or a resource, and not both",
            "Name the service; a resource is for what runs without one.",
        ));
    }
    let name = route.name();
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=32).contains(&name.len()) || !name.bytes().all(fits) {
        return Err(fault(
            format!("`{name}` is not a name"),
            "Names have 1 to 32 characters out of a-z, 0-9 and the dash. `mainstay service list` shows them.",
        ));
    }
    if route.port == 0 || route.listen.port() == 0 || route.readers().port() == 0 {
        return Err(fault(format!("{name}: port 0 is not possible"), "Give 1 to 65535."));
    }
    if route.max_sessions == 0 {
        return Err(fault(format!("{name}: 0 sessions are not possible"), "Give 1 or more."));
    }
    if route.readers() == route.listen {
        return Err(fault(
            format!("{name}: readers and others cannot share {}", route.listen),
            "Give readers_listen another port.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "agents = [\"10.0.0.1\"]\n[[route]]\nservice = \"db\"\nport = 3306\n";

    fn read(text: &str) -> Result<Settings, String> {
        let settings = parse(text)?;
        settings.check().map_err(|fault| fault.what)?;
        Ok(settings)
    }

    #[test]
    fn a_short_file_has_the_ports_that_database_administrators_know() {
        let settings = read(SHORT).unwrap();
        let route = &settings.routes[0];
        assert_eq!(route.listen, "0.0.0.0:6446".parse().unwrap());
        assert_eq!(route.readers(), "0.0.0.0:6447".parse().unwrap());
        assert_eq!(route.followed(), Followed::Service("db".into()));
        assert!(!route.proxy_protocol && settings.status_listen.is_none());
    }

    #[test]
    fn the_file_of_the_manual_is_taken() {
        let page = include_str!("../../../docs/router.md");
        let file = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let settings = read(file).unwrap();
        assert!(settings.routes.len() > 1 && !settings.nodes.is_empty());
        // The manual shows every limit with its default.
        assert_eq!(format!("{:?}", settings.limits), format!("{:?}", Limits::default()));
    }

    #[test]
    fn a_fault_in_the_file_is_named() {
        for (text, words) in [
            ("agents = []\n", "0 agents"),
            ("agents = [\"a b\"]\n[[route]]\nservice = \"db\"\nport = 1\n", "`a b`"),
            ("agents = [\"n1\"]\n", "0 routes"),
            (&SHORT.replace("service = \"db\"", "service = \"db\"\nresource = \"db\""), "not both"),
            (&SHORT.replace("service = \"db\"\n", ""), "a service or a resource"),
            (&SHORT.replace("\"db\"", "\"D B\""), "`D B` is not a name"),
            (&SHORT.replace("3306", "0"), "port 0"),
            (&SHORT.replace("3306", "70000"), "70000"),
            (&format!("{SHORT}[[route]]\nservice = \"log\"\nport = 3307\n"), "of db and of log"),
            (&format!("{SHORT}readers_listen = \"0.0.0.0:6446\"\n"), "cannot share"),
            (&format!("{SHORT}max_sessions = 0\n"), "0 sessions"),
            (&format!("{SHORT}poort = 1\n"), "poort"),
            (&format!("{SHORT}[limits]\ndrain = \"ten\"\n"), "ten"),
            (&format!("{SHORT}[limits]\nbacklog = 0\n"), "backlog"),
            (&format!("{SHORT}[limits]\nkeepalive = \"5ms\"\n"), "keepalive"),
            (&format!("{SHORT}[limits]\nthreads = 0\n"), "threads"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(words), "{text}\n{why}");
        }
    }
}
