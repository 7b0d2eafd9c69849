//! `GET /metrics`: what a scrape of this node says.
//!
//! Guarantees
//! - A scrape is answered within [`PAGE_PATIENCE`], whatever hangs. If the engine is silent for
//!   [`ENGINE_SILENCE`], the page says `mainstay_engine_up 0`, and nothing more about the engine.
//!   No other part of the agent waits for a scrape: leases, log and reconciler have threads of
//!   their own.
//! - One page is made at a time, and it serves all scrapes within [`PAGE_KEPT`]. So any number of
//!   scrapers cost as much as one. While [`WAITING_MAX`] scrapes wait, the next is refused.
//! - A scrape changes nothing. [`listener`] serves the page over TCP and nothing else.
//!
//! Reading order: `families.rs` (every metric), `cluster.rs`, `replicas.rs` and `clients.rs` (where
//! its value is from), `drbd.rs` (the same under names of DRBD), `text.rs`, `noted.rs` (what only
//! the agent can count), `listener.rs`.

mod clients;
mod cluster;
mod drbd;
pub mod families;
pub mod listener;
mod noted;
mod process;
mod replicas;
pub mod text;

use crate::agent::Agent;
use crate::clock::{boot_now, wall_ms};
use crate::raft::{ConsensusLog, View};
use crate::threads::lock;
use mainstay_api::engine::{ClientStatus, ReplicaStatus, Reply, Request};
use mainstay_api::metrics::{LinkCounts, ReplicaMetrics};
use mainstay_types::{Code, FrontendKind, NodeId, Problem, ServicePhase, Time};
use noted::Noted;
use process::ProcessSeen;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use text::{Format, Page};
use tokio::sync::Semaphore;

/// How long the engine may take for one of its pages, and for all of them.
pub const ENGINE_SILENCE: Duration = Duration::from_secs(1);
pub const ENGINE_PATIENCE: Duration = Duration::from_secs(3);
/// How long a page may take; less than Prometheus waits unless told otherwise, which is ten
/// seconds.
pub const PAGE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a page serves later scrapes.
pub const PAGE_KEPT: Duration = Duration::from_millis(500);
/// Scrapes that wait at once.
pub const WAITING_MAX: usize = 8;

/// Data that was gathered for one page.
#[derive(Default)]
pub(crate) struct Gathered {
    pub took_us: u64,
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    pub member: Option<MemberSeen>,
    /// Names of the nodes.
    pub names: BTreeMap<NodeId, String>,
    /// `None` when the engine did not answer.
    pub engine: Option<EngineSeen>,
    pub frontend: Option<FrontendKind>,
    /// Size and what is free, in bytes.
    pub pool: Option<(u64, u64)>,
    pub processes: Vec<(&'static str, ProcessSeen)>,
    pub noted: Noted,
}

/// Knowledge of a node that is a member of a cluster.
pub(crate) struct MemberSeen {
    pub node: NodeId,
    pub name: String,
    pub cluster: String,
    pub view: View,
    pub lease_left_us: u64,
    /// Nodes to whose agents there is a connection.
    pub connected: BTreeSet<NodeId>,
}

/// All pages of the engine.
#[derive(Default)]
pub(crate) struct EngineSeen {
    pub now: Time,
    pub fenced: bool,
    pub turns: u64,
    pub polled_us: u64,
    pub links: Vec<LinkCounts>,
    pub replicas: Vec<ReplicaMetrics>,
    pub clients: Vec<ClientStatus>,
}

/// Names under which a page tells its metrics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    #[default]
    Mainstay,
    /// Names that drbd-reactor gives to metrics of DRBD.
    Drbd,
}

/// Data of one look, and the pages that were made of it.
struct Kept {
    made: Instant,
    seen: Gathered,
    texts: BTreeMap<(Names, Format), Arc<str>>,
}

impl Kept {
    fn of(seen: Gathered) -> Self {
        Self { made: Instant::now(), seen, texts: BTreeMap::new() }
    }

    fn text(&mut self, names: Names, format: Format) -> Arc<str> {
        let made = || render(&self.seen, names, format).into();
        self.texts.entry((names, format)).or_insert_with(made).clone()
    }
}

/// State that is kept between scrapes.
pub struct Metrics {
    noted: Mutex<Noted>,
    /// Held while a page is made.
    kept: Mutex<Option<Kept>>,
    waiting: Arc<Semaphore>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            noted: Mutex::new(Noted::new(boot_now())),
            kept: Mutex::new(None),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }
}

impl Metrics {
    /// The state of the cluster has changed. Does not wait.
    pub fn view(&self, own: NodeId, view: &View) {
        lock(&self.noted).state(own, &view.state);
    }

    /// The engine says this of a replica on this node. Does not wait.
    pub fn replica(&self, status: &ReplicaStatus) {
        lock(&self.noted).replica(status);
    }

    /// A service has reached this on this node. Does not wait.
    pub fn reached(&self, service: &str, phase: ServicePhase) {
        lock(&self.noted).reached(service, phase, boot_now());
    }

    /// A page of a look that is not older than [`PAGE_KEPT`]. Waits while another scrape looks.
    fn page(&self, agent: &Agent, names: Names, format: Format) -> Arc<str> {
        let mut kept = lock(&self.kept);
        match &mut *kept {
            Some(kept) if kept.made.elapsed() < PAGE_KEPT => kept.text(names, format),
            older => older.insert(Kept::of(gather(agent))).text(names, format),
        }
    }
}

/// The page for one scrape.
///
/// # Errors
/// `metrics-busy`: too many wait. `metrics-timeout`: something hangs that should not.
pub async fn scrape(agent: Arc<Agent>, names: Names, format: Format) -> Result<Arc<str>, Problem> {
    let Ok(place) = agent.metrics.waiting.clone().try_acquire_owned() else {
        return Err(Problem::new(
            Code::MetricsBusy,
            format!("{WAITING_MAX} scrapes wait for their answer already"),
            "Scrape less often, or from fewer places.",
        ));
    };
    let made = tokio::task::spawn_blocking(move || {
        let text = agent.metrics.page(&agent, names, format);
        // The place is free only now. A page that hangs keeps its place, so few pages can hang.
        drop(place);
        text
    });
    match tokio::time::timeout(PAGE_PATIENCE, made).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => {
            Err(Problem::new(Code::AgentInternal, error.to_string(), "Look at the agent's log."))
        }
        Err(_) => Err(Problem::new(
            Code::MetricsTimeout,
            format!(
                "no page within {PAGE_PATIENCE:?}: something in the agent or below its state directory hangs"
            ),
            "Look at the agent's log and at the disk of the state directory.",
        )),
    }
}

/// Gathers everything. The engine is asked for no longer than [`ENGINE_PATIENCE`].
pub(crate) fn gather(agent: &Agent) -> Gathered {
    let began = Instant::now();
    let mut seen = Gathered { engine: ask_engine(agent), ..Gathered::default() };
    seen.frontend = agent.engine.frontend().and_then(|frontend| frontend.kind);
    let space = mainstay_pool::of_node(&agent.options.state_dir).space();
    seen.pool = space.ok().map(|space| (space.size, space.for_replicas()));
    let pids = [("agent", Some(std::process::id())), ("engine", agent.engine.pid())];
    for (name, pid) in pids {
        seen.processes.extend(pid.and_then(process::look).map(|found| (name, found)));
    }
    if let Ok(member) = agent.member() {
        let view = member.log.view();
        let names = view.state.nodes.values().map(|node| (node.id, node.name.clone()));
        seen.names = names.collect();
        let connected = seen.names.keys().copied().filter(|node| agent.is_connected(*node)).collect();
        seen.member = Some(MemberSeen {
            node: member.identity.node,
            name: member.identity.name.clone(),
            cluster: member.identity.cluster_name.clone(),
            view,
            lease_left_us: member.lease.until().us_since(boot_now()),
            connected,
        });
    }
    seen.wall_ms = wall_ms();
    seen.noted = lock(&agent.metrics.noted).clone();
    seen.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    seen
}

/// All pages of the engine, within [`ENGINE_PATIENCE`] altogether.
fn ask_engine(agent: &Agent) -> Option<EngineSeen> {
    let deadline = Instant::now() + ENGINE_PATIENCE;
    let mut seen = EngineSeen::default();
    let mut after = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let connected = agent.engine.is_connected() && !left.is_zero();
        let reply =
            connected.then(|| agent.engine.request(Request::Metrics { after }, left.min(ENGINE_SILENCE)))?;
        let page = match reply {
            Ok(Reply::Metrics(page)) => page,
            other => {
                tracing::debug!(?other, "the engine gives no metrics");
                return None;
            }
        };
        seen.links.extend(page.links);
        seen.replicas.extend(page.replicas);
        seen.clients.extend(page.clients);
        (seen.now, seen.fenced) = (page.now_us, page.fenced);
        (seen.turns, seen.polled_us) = (page.turns, page.polled_us);
        after = page.more_after;
        if after.is_none() {
            return Some(seen);
        }
    }
}

fn render(seen: &Gathered, names: Names, format: Format) -> String {
    let mut page = Page::new(format);
    if names == Names::Drbd {
        drbd::all(&mut page, seen);
        return page.finish();
    }
    cluster::node(&mut page, seen);
    cluster::resources(&mut page, seen);
    replicas::all(&mut page, seen);
    clients::all(&mut page, seen);
    cluster::services(&mut page, seen);
    cluster::processes(&mut page, seen);
    page.finish()
}

#[cfg(test)]
mod tests;
