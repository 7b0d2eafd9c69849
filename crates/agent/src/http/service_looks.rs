//! Looks at a service: its file, the output of its processes, its history.

use super::extract::{Path, Query, Tagged};
use super::pages::{self, LINES, Paged};
use super::{ApiResult, App, Refused, blocking, find_node, unknown_service};
use crate::agent::{Agent, READ_PATIENCE};
use crate::messages::{Call, CallReply};
use crate::raft::{ConsensusLog, View};
use crate::service::logs::Wanted;
use crate::views;
use axum::Json;
use axum::extract::State as AppState;
use axum::http::Uri;
use mainstay_api::rest::{EventView, ServiceFile, ServiceHistory, ServiceLog, ServiceLogs};
use mainstay_control::state::Service;
use mainstay_types::{Code, Problem};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// How long a node may take to read a log.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

fn known<'a>(view: &'a View, name: &str) -> Result<&'a Service, Problem> {
    view.state.services.get(name).ok_or_else(|| unknown_service(&view.state, name))
}

pub async fn file(AppState(agent): App, Path(name): Path<String>) -> Result<Tagged<ServiceFile>, Refused> {
    let Json(file) = blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        let service = known(&view, &name)?;
        let toml = service.spec.to_toml().map_err(|error| {
            Problem::new(Code::AgentInternal, error.to_string(), "Look at the agent's log.")
        })?;
        Ok(ServiceFile { toml, edition: service.edition, name })
    })
    .await?;
    Ok(Tagged(file.edition.to_string(), file))
}

#[derive(Deserialize)]
pub struct HistoryQuery {
    #[serde(default)]
    lines: Option<usize>,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    after: Option<String>,
}

pub async fn history(
    AppState(agent): App,
    Path(name): Path<String>,
    Query(HistoryQuery { lines, limit, after }): Query<HistoryQuery>,
    uri: Uri,
) -> Result<Paged<ServiceHistory>, Refused> {
    let part = pages::part(lines, limit, after)?;
    let path = uri.path().to_owned();
    let Json((history, next)) = blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        known(&view, &name)?;
        let all = view.state.history(&name).map(views::event).collect();
        let (events, next) = part.of(&path, all, |event: &EventView| event.index)?;
        Ok((ServiceHistory { events, since_ms: view.state.events_since_ms(), name }, next))
    })
    .await?;
    Ok(Paged::new(history, &uri, next))
}

#[derive(Deserialize)]
pub struct LogsQuery {
    #[serde(default)]
    process: Option<String>,
    /// Name of the node whose logs are read; the node where the service runs, or ran last, if none.
    #[serde(default)]
    node: Option<String>,
    #[serde(default)]
    lines: Option<usize>,
    #[serde(default)]
    after: Option<String>,
}

pub async fn logs(
    AppState(agent): App,
    Path(name): Path<String>,
    Query(query): Query<LogsQuery>,
) -> ApiResult<ServiceLogs> {
    blocking(move || read_logs(&agent, &name, query)).await
}

fn read_logs(agent: &Arc<Agent>, name: &str, query: LogsQuery) -> Result<ServiceLogs, Problem> {
    let member = agent.member()?;
    let view = member.log.confirmed_view(READ_PATIENCE);
    let service = known(&view, name)?;
    let names: Vec<&String> = service.spec.processes.iter().map(|process| &process.name).collect();
    let processes = match &query.process {
        None => names,
        Some(process) if names.contains(&process) => vec![process],
        Some(process) => {
            let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
            return Err(Problem::new(
                Code::UnknownProcess,
                format!("service {name} has no process {process}"),
                format!("Name one of its processes: {}.", names.join(", ")),
            ));
        }
    };
    if processes.is_empty() {
        return Err(Problem::new(
            Code::UnknownProcess,
            format!("service {name} has no processes, and so no output"),
            format!("See `mainstay service show {name}`."),
        ));
    }
    let wanted = match &query.after {
        None => Wanted::Lines(query.lines.unwrap_or(LINES)),
        Some(after) => Wanted::After(after.parse().map_err(|()| {
            Problem::new(
                Code::BadRequest,
                format!("after: '{after}' is no place in a log"),
                "Pass the `next` of an earlier answer about this process.",
            )
        })?),
    };
    let shown = views::service(&view.state, name, service);
    let Some(node) = query.node.or(shown.phase_node).or(shown.node) else {
        return Err(Problem::new(
            Code::NoPrimary,
            format!("service {name} runs nowhere, and no node has reported it"),
            format!("See `mainstay service status {name}`, or name a node."),
        ));
    };
    let id = find_node(&view, &node)?;
    let mut logs = Vec::new();
    for process in processes {
        let question = Call::Log { service: name.to_owned(), process: process.clone(), wanted };
        let piece = match agent.ask(&member, id, question, LOG_TIMEOUT)? {
            CallReply::Log(piece) => piece,
            CallReply::Error(problem) => return Err(problem),
            _ => {
                return Err(Problem::new(
                    Code::NodeUnreachable,
                    format!("{node} does not say what process {process} has written"),
                    format!("Look at services/{name} in the state directory on {node}."),
                ));
            }
        };
        let (next, process) = (piece.next.to_string(), process.clone());
        logs.push(ServiceLog { process, text: piece.text, next, cut: piece.cut, notice: piece.notice });
    }
    Ok(ServiceLogs { node, logs })
}
