//! Answers of this node: its history, for `GET /v1/load` and reports, and its baselines.

use super::baselines::{BaselineOrder, Baselines, KeptBaseline};
use super::directory;
use super::files::Files;
use crate::agent::Agent;
use crate::member::Member;
use crate::messages::CallReply;
use crate::raft::ConsensusLog;
use mainstay_api::rest::{
    LoadPage, LoadPoint, PeerLoad, RequestLoad, ResourceLoad, StageLoad, WaitClass, WaitLoad,
};
use mainstay_control::State;
use mainstay_history::{
    DISCARD, FLUSH, Peer, Point, READ, Requests, Series, Stage, WRITE, WRITE_ZEROES, Wait, Waits, Work,
    percentile,
};
use mainstay_types::{Code, NodeId, Problem, ResourceId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most cells of an answer: replicas, each counted once for every point. A cell takes some 500
/// bytes, so an answer fits into a message between agents.
pub const CELLS_MAX: usize = 7_000;
/// Most points of an answer.
pub const POINTS_MAX: u64 = 1440;
/// Shortest step.
pub const STEP_MS_MIN: u64 = 60_000;

/// A question about the history of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadQuestion {
    pub from_ms: u64,
    pub to_ms: u64,
    /// 0: one point.
    pub step_ms: u64,
    /// Names; all if empty.
    pub resources: Vec<String>,
}

impl LoadQuestion {
    /// The step that the answer begins with.
    fn step_ms(&self) -> u64 {
        let length = self.to_ms.saturating_sub(self.from_ms);
        match self.step_ms {
            0 => 0,
            step => step.max(STEP_MS_MIN).max(length.div_ceil(POINTS_MAX)),
        }
    }
}

/// Answers with the history of this node.
pub fn answer(agent: &Agent, question: &LoadQuestion) -> CallReply {
    let read = |member: Arc<Member>| {
        let view = member.log.view();
        let node = member.identity.name.clone();
        page(&Files::new(directory(agent.state_dir())), question, node, &view.state)
    };
    agent.member().and_then(read).map_or_else(CallReply::Error, |page| CallReply::Load(page.into()))
}

/// Answers a question about the baselines of this node, or changes them.
pub fn answer_baseline(agent: &Agent, order: BaselineOrder) -> CallReply {
    let baselines = Baselines::of(agent.state_dir());
    let unreadable = |error: std::io::Error| baselines.unreadable(&error);
    let told =
        |found: Result<Vec<KeptBaseline>, Problem>| found.map_or_else(CallReply::Error, CallReply::Baselines);
    match order {
        BaselineOrder::List => told(baselines.list().map_err(unreadable)),
        BaselineOrder::Keep(asked) => {
            let history = Files::new(directory(agent.state_dir()));
            told(baselines.keep(&history, &asked).map(|kept| kept.into_iter().collect()))
        }
        BaselineOrder::Delete { name } => match baselines.delete(&name) {
            Ok(deleted) => CallReply::BaselineDeleted { deleted },
            Err(error) => CallReply::Error(baselines.unreadable(&error)),
        },
        BaselineOrder::Load { name, step_ms } => {
            let read = |member: Arc<Member>| {
                let (state, node) = (&member.log.view().state, member.identity.name.clone());
                let page = baselines.page((&name, step_ms), node, state).map_err(unreadable)?;
                page.ok_or_else(|| {
                    let why = format!("it has no part of the baseline {name}");
                    Problem::new(Code::UnknownBaseline, why, "See `mainstay report baseline list`.")
                })
            };
            agent.member().and_then(read).map_or_else(CallReply::Error, |page| CallReply::Load(page.into()))
        }
    }
}

pub(super) fn page(
    files: &Files,
    question: &LoadQuestion,
    node: String,
    state: &State,
) -> Result<LoadPage, Problem> {
    let LoadQuestion { from_ms, to_ms, resources, .. } = question;
    let mut series = Series::new(*from_ms, *to_ms, question.step_ms(), CELLS_MAX);
    let wanted = |work: &Work| resources.is_empty() || resources.contains(&work.name);
    let since_ms = files.read(*from_ms, *to_ms, |minute| series.add(minute, wanted)).map_err(|error| {
        Problem::new(
            Code::HistoryFiles,
            format!("the history of node {node} cannot be read: {error}"),
            format!("Look at {} on that node.", files.directory().display()),
        )
    })?;
    Ok(page_of(&series, (*from_ms, *to_ms), since_ms, node, state))
}

pub(super) fn page_of(
    series: &Series,
    (from_ms, to_ms): (u64, u64),
    since_ms: Option<u64>,
    node: String,
    state: &State,
) -> LoadPage {
    let names = Names(state);
    let points = series.points().map(|(at_ms, shown)| names.point(at_ms, shown)).collect();
    LoadPage { node, from_ms, to_ms, step_ms: series.step_ms(), since_ms, points }
}

/// The state, which has the present names.
struct Names<'a>(&'a State);

impl Names<'_> {
    /// The name of a resource; the recorded one if the resource is gone.
    fn resource(&self, id: ResourceId, work: &Work) -> String {
        match self.0.resources.get(&id) {
            Some(resource) => resource.name.clone(),
            None if work.name.is_empty() => format!("resource {}", id.0),
            None => work.name.clone(),
        }
    }

    fn node(&self, id: NodeId) -> String {
        self.0.node_name(id)
    }

    fn point(&self, at_ms: u64, point: &Point) -> LoadPoint {
        let (minute, nothing) = (&point.minute, Waits::new());
        let of = |(id, work): (&ResourceId, &Work)| {
            let waits = point.waits.get(id).unwrap_or(&nothing);
            (*work != idle(work)).then(|| self.resource_load(self.resource(*id, work), work, waits))
        };
        let mut resources: Vec<ResourceLoad> = minute.resources.iter().filter_map(of).collect();
        resources.sort_by(|one, other| one.resource.cmp(&other.resource));
        LoadPoint {
            at_ms,
            covered_ms: minute.span_ms,
            agent_cpu_us: minute.node.agent_cpu_us,
            engine_cpu_us: minute.node.engine_cpu_us,
            agent_memory_bytes: minute.node.agent_memory_bytes,
            engine_memory_bytes: minute.node.engine_memory_bytes,
            pool_size_bytes: minute.node.pool_size_bytes,
            pool_free_bytes: minute.node.pool_free_bytes,
            resources,
        }
    }

    fn resource_load(&self, resource: String, work: &Work, waits: &Waits) -> ResourceLoad {
        let requests = |kind: usize| request_load(&work.requests[kind]);
        ResourceLoad {
            resource,
            primary_ms: work.primary_ms,
            reads: requests(READ),
            writes: requests(WRITE),
            discards: requests(DISCARD),
            write_zeroes: requests(WRITE_ZEROES),
            flushes: requests(FLUSH),
            journal: stage_load(work.journal),
            commit: stage_load(work.commit),
            read: stage_load(work.read),
            peers: work.peers.iter().map(|(node, peer)| self.peer_load(*node, peer)).collect(),
            waits: waits.iter().map(|(wait, time_us)| self.wait_load(*wait, *time_us)).collect(),
            disk_written_bytes: work.disk_written_bytes,
            disk_read_bytes: work.disk_read_bytes,
            copied_bytes: work.copied_bytes,
            journal_permille: work.journal_permille,
        }
    }

    fn peer_load(&self, node: NodeId, peer: &Peer) -> PeerLoad {
        PeerLoad {
            node: self.node(node),
            acknowledged: stage_load(peer.acknowledged),
            times_slow: peer.times_slow,
            sent_bytes: peer.sent_bytes,
            copied_bytes: peer.copied_bytes,
            lag_bytes: peer.lag_bytes,
            lag_ms: peer.lag_ms,
        }
    }

    fn wait_load(&self, wait: Wait, time_us: u64) -> WaitLoad {
        let (class, node) = match wait {
            Wait::Read => (WaitClass::Read, None),
            Wait::Overlap => (WaitClass::Overlap, None),
            Wait::Queue => (WaitClass::Queue, None),
            Wait::Journal => (WaitClass::Journal, None),
            Wait::Peer(node) => (WaitClass::Peer, Some(self.node(node))),
            Wait::Commit => (WaitClass::Commit, None),
            Wait::Flush => (WaitClass::Flush, None),
        };
        WaitLoad { class, node, time_us }
    }
}

/// The same replica if it had done nothing.
fn idle(work: &Work) -> Work {
    Work { name: work.name.clone(), journal_permille: work.journal_permille, ..Work::default() }
}

fn stage_load(stage: Stage) -> StageLoad {
    StageLoad { count: stage.count, time_us: stage.time_us }
}

fn request_load(requests: &Requests) -> RequestLoad {
    let buckets = &requests.buckets.0;
    let used = buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    let at = |permille| percentile(buckets, permille).unwrap_or(0);
    RequestLoad {
        count: requests.buckets.count(),
        bytes: requests.bytes,
        errors: requests.errors,
        time_us: requests.time_us,
        p50_us: at(500),
        p95_us: at(950),
        p99_us: at(990),
        histogram: buckets[..used].to_vec(),
    }
}
