//! The audit log of requests that change something; see `mainstay_control::audit`.

use super::extract::Query;
use super::pages::{self, Paged};
use super::{App, Refused, RequestId, identities, require_majority};
use crate::access::Caller;
use crate::agent::{Agent, PROPOSE_TIMEOUT, READ_PATIENCE};
use crate::clock::wall_ms;
use crate::error::settle;
use crate::messages::random_u64;
use crate::raft::ConsensusLog;
use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State as AppState};
use axum::http::Uri;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainstay_api::rest::{AuditPage, AuditView};
use mainstay_api::routes::Route;
use mainstay_control::State;
use mainstay_control::audit::{Asked, AuditRecord, AuditResult};
use mainstay_control::state::Command;
use mainstay_types::{Access, Code, NodeId, Problem};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;

/// Largest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 2 << 20;
/// Fields whose values may be secrets, or texts of any length: the audit log says that they are
/// there.
const LEFT_OUT: [&str; 6] = ["env", "environment", "password", "token", "content", "state"];
/// Field with a service file, which may contain secrets in its environment. The log has the name of
/// the service.
const SERVICE_FILE: &str = "toml";
/// Stands for the value of such a field.
const OMITTED: &str = "(left out)";
const RECORDS: usize = 100;
/// Routes of changes whose path has an id and no name.
const OPERATION: &str = "/v1/operations/{id}";
const JOIN_TOKEN: &str = "/v1/cluster/tokens/{id}";

/// Runs a request that changes something, with its two entries in the audit log.
pub(super) async fn recorded(
    agent: Arc<Agent>,
    (caller, access): (Caller, Access),
    request: Request,
    next: Next,
) -> Response {
    let number = request.extensions().get::<RequestId>().map_or_else(random_u64, |id| id.0);
    let (parts, body) = request.into_parts();
    let body = match whole(body).await {
        Ok(body) => body,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let target = parts.uri.path_and_query().map_or(parts.uri.path(), |target| target.as_str());
    let route = parts.extensions.get::<&'static Route>();
    let about = route.and_then(|route| about(&agent, route, parts.uri.path()));
    let asked = Asked {
        id: number,
        at_ms: wall_ms(),
        who: caller.who,
        from: caller.from,
        login: caller.login,
        access,
        on: NodeId(0),
        action: format!("{} {target}", parts.method),
        body: with_about(without_secrets(&body), about),
    };
    let came = Instant::now();
    let (of, begun) = (agent.clone(), asked.clone());
    let has_begun = match tokio::task::spawn_blocking(move || begin(&of, begun)).await {
        Ok(Ok(has_begun)) => has_begun,
        Ok(Err(problem)) => return Refused::from(problem).into_response(),
        Err(error) => {
            let problem = Problem::new(Code::AgentInternal, error.to_string(), "Look at the agent's log.");
            return Refused::from(problem).into_response();
        }
    };
    let response = next.run(axum::http::Request::from_parts(parts, Body::from(body))).await;
    let status = response.status().as_u16();
    let code = response.extensions().get::<Problem>().map(|problem| problem.code.clone());
    let took_ms = u64::try_from(came.elapsed().as_millis()).unwrap_or(u64::MAX);
    let result = AuditResult { took_ms, status, code };
    let login = asked.login.clone().unwrap_or_default();
    let from = asked.from.clone().unwrap_or_default();
    tracing::info!(who = asked.who, login, from, action = asked.action, status, "a change was asked for");
    // The answer does not wait for the second entry.
    tokio::task::spawn_blocking(move || end(&agent, asked, has_begun, result));
    response
}

/// Meaning of the id in the path of a change, in words. `None` if this node does not know it, or if
/// the path has a name.
fn about(agent: &Agent, route: &Route, path: &str) -> Option<String> {
    let id = path.rsplit('/').next()?;
    match route.path {
        OPERATION => agent.operations.about(id),
        JOIN_TOKEN => identities::about_token(&agent.member().ok()?.log.view().state, id),
        _ => None,
    }
}

/// The body of a request as the log has it, with what the request is about.
fn with_about(body: String, about: Option<String>) -> String {
    match (about, serde_json::from_str::<Value>(&body)) {
        (None, _) => body,
        (Some(about), Err(_)) => serde_json::json!({ "about": about }).to_string(),
        (Some(about), Ok(body)) => serde_json::json!({ "about": about, "body": body }).to_string(),
    }
}

/// The whole body of a request.
pub(super) async fn whole(body: Body) -> Result<Bytes, Problem> {
    to_bytes(body, BODY_BYTES_MAX).await.map_err(|error| {
        let remedy = format!("A request has at most {BODY_BYTES_MAX} bytes.");
        Problem::new(Code::BadRequest, error.to_string(), remedy)
    })
}

/// Writes the first entry. Returns false if this node has no cluster whose log could hold it, or
/// does not take part in one yet.
fn begin(agent: &Agent, mut asked: Asked) -> Result<bool, Problem> {
    let Ok(member) = agent.member() else { return Ok(false) };
    if member.is_joining() {
        return Ok(false);
    }
    require_majority(agent, "nothing is changed, because each change is in the audit log")?;
    asked.on = member.identity.node;
    settle(member.log.propose(Command::AuditBegun { asked }, PROPOSE_TIMEOUT)).map_err(|problem| {
        let message = format!(
            "nothing is changed: the request cannot be written into the audit log: {}",
            problem.message
        );
        Problem::new(Code::AuditUnwritten, message, problem.remedy)
    })?;
    Ok(true)
}

/// Writes the second entry, and the first one of a request that made this node a member.
fn end(agent: &Agent, mut asked: Asked, has_begun: bool, result: AuditResult) {
    let Ok(member) = agent.member() else { return };
    let (id, action, status) = (asked.id, asked.action.clone(), result.status);
    asked.on = member.identity.node;
    let mut commands = vec![Command::AuditEnded { id, result }];
    if !has_begun {
        commands.insert(0, Command::AuditBegun { asked });
    }
    for command in commands {
        if let Err(problem) = settle(member.log.propose(command, PROPOSE_TIMEOUT)) {
            let why = problem.message;
            tracing::warn!(action, status, why, "the audit log has no result of a request");
            return;
        }
    }
}

/// The JSON of a request without values that may be secrets. Empty if the body is empty or no
/// JSON.
fn without_secrets(body: &Bytes) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else { return String::new() };
    omit(&mut value);
    if value.is_null() { String::new() } else { value.to_string() }
}

fn omit(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let (SERVICE_FILE, Some(text)) = (name.as_str(), value.as_str()) {
                    *value = name_in(text).into();
                } else if LEFT_OUT.contains(&name.as_str()) && !value.is_boolean() && !value.is_null() {
                    *value = OMITTED.into();
                } else {
                    omit(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(omit),
        _ => {}
    }
}

/// The line of a service file that names the service.
fn name_in(text: &str) -> String {
    let named = text.lines().find(|line| line.trim_start().starts_with("name"));
    format!("{} {OMITTED}", named.unwrap_or_default().trim()).trim_start().to_owned()
}

#[derive(Deserialize)]
pub struct AuditQuery {
    /// Number of the record after which the page begins.
    #[serde(default)]
    after: u64,
    /// Most records; the newest ones.
    #[serde(default)]
    lines: Option<usize>,
    /// Most records of a page; the oldest ones.
    #[serde(default)]
    limit: Option<usize>,
}

pub(super) async fn page(
    AppState(agent): App,
    Query(AuditQuery { after, lines, limit }): Query<AuditQuery>,
    uri: Uri,
) -> Result<Paged<AuditPage>, Refused> {
    pages::one_order(lines, limit.is_some())?;
    let limit = pages::limit(limit)?;
    let Json((page, next)) = super::blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        Ok(page_of(&view.state, after, lines.unwrap_or(RECORDS), limit))
    })
    .await?;
    Ok(Paged::new(page, &uri, next))
}

/// The oldest records after a number, at most `limit`, or the newest ones, at most `lines`. Returns
/// the `after` of the next page with them, if there is one.
fn page_of(state: &State, after: u64, lines: usize, limit: Option<usize>) -> (AuditPage, Option<String>) {
    let log = &state.audit;
    let first = log.records.front().map_or(log.last + 1, |record| record.number);
    let newer: Vec<&AuditRecord> = log.records.iter().filter(|record| record.number > after).collect();
    let wanted = match limit {
        Some(limit) => &newer[..newer.len().min(limit)],
        None => &newer[newer.len().saturating_sub(lines)..],
    };
    let next = wanted.last().map(|record| record.number).filter(|end| *end < log.last);
    let records = wanted.iter().map(|record| shown(state, record)).collect();
    let page = AuditPage { records, last: log.last, gap: after + 1 < first && after < log.last };
    (page, next.map(|next| next.to_string()))
}

fn shown(state: &State, record: &AuditRecord) -> AuditView {
    let AuditRecord { number, asked, result } = record;
    AuditView {
        number: *number,
        at_ms: asked.at_ms,
        who: asked.who.clone(),
        from: asked.from.clone(),
        login: asked.login.clone(),
        access: asked.access,
        node: state.node_name(asked.on),
        action: asked.action.clone(),
        body: asked.body.clone(),
        request: format!("{:016x}", asked.id),
        took_ms: result.as_ref().map(|result| result.took_ms),
        status: result.as_ref().map(|result| result.status),
        code: result.as_ref().and_then(|result| result.code.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::routes::ROUTES;

    #[test]
    fn the_record_of_each_change_by_an_id_says_what_the_id_stands_for() {
        let by_id = ROUTES.iter().filter(|route| route.changes && route.path.contains("{id}"));
        let paths: Vec<&str> = by_id.map(|route| route.path).collect();
        assert_eq!(paths, [JOIN_TOKEN, OPERATION], "`about` needs an arm for each of these");
        let about = || Some("a drain".to_owned());
        assert_eq!(with_about(String::new(), about()), r#"{"about":"a drain"}"#);
        assert_eq!(with_about("{}".into(), about()), r#"{"about":"a drain","body":{}}"#);
        assert_eq!(with_about("{}".into(), None), "{}");
    }

    #[test]
    fn values_that_may_be_secrets_are_left_out_at_any_depth() {
        let body = r#"{"name":"db","process":[{"env":{"PASSWORD":"hunter2"},"command":["a"]}],"password":"x","token":"hunter2"}"#;
        let text = without_secrets(&Bytes::from(body));
        assert!(!text.contains("hunter2") && !text.contains("\"x\""), "{text}");
        assert!(text.contains("\"command\":[\"a\"]") && text.contains(OMITTED), "{text}");
        let file =
            serde_json::json!({ "toml": "# db\nname = \"db\"\n[[process]]\nenv = { P = \"hunter2\" }" });
        let text = without_secrets(&Bytes::from(file.to_string()));
        assert_eq!(text, r#"{"toml":"name = \"db\" (left out)"}"#);
        assert_eq!(without_secrets(&Bytes::new()), "");
        assert_eq!(without_secrets(&Bytes::from("no JSON")), "");
    }
}
