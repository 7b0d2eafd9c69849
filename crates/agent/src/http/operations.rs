//! Changes that are carried out while their sender asks for other things (`Prefer: respond-async`,
//! RFC 7240), and work that goes on after a change was answered.
//!
//! Guarantees
//! - A change that is refused at once is answered with the refusal, and makes no operation.
//! - An operation ends as succeeded only when the work is done, and not when it is recorded.
//! - An operation goes on when its sender goes away. What it is about goes on when the agent ends:
//!   only the operation is forgotten then, because operations are in memory.
//! - Work that goes on after the answer to its sender is an operation too, and the answer names it.
//! - A request for work that is under way on this node makes no second operation: its answer names
//!   the first one.
//! - At most [`RUNNING_MAX`] operations run, and the last [`KEPT_MAX`] are kept. Half of the places
//!   are left to senders that ask for an operation.

mod work;

use super::extract::{JsonRequest, Path, Query};
use super::pages::{self, Paged, Paging};
use super::{ApiResult, App, Refused, audit, blocking, identities, placement, scrubs};
use crate::access::Caller;
use crate::agent::Agent;
use crate::clock::wall_ms;
use crate::messages::random_u64;
use crate::raft::ConsensusLog;
use crate::threads::lock;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State as AppState};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainstay_api::rest::{
    Accepted, CordonSet, OPERATION_HEADER, OPERATIONS, OperationState, OperationView, PREFER_APPLIED_HEADER,
    PREFER_HEADER, ProblemDocument, RESPOND_ASYNC,
};
use mainstay_api::routes::Route;
use mainstay_types::{Access, Code, Problem};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
pub(super) use work::Look;
use work::Work;

/// Operations that run at once.
const RUNNING_MAX: usize = 64;
/// Operations that run at once when one more begins for a sender that has not asked for it.
const NAMED_MAX: usize = RUNNING_MAX / 2;
/// Operations that are kept, those that run included.
const KEPT_MAX: usize = 256;
const _: () = assert!(RUNNING_MAX < KEPT_MAX);
/// Time for which a refusal is waited for before the answer is an operation.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);
/// Pause between two looks at the work.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Largest answer of a change, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// An operation, by what is known of it.
struct Operation {
    view: OperationView,
    /// `None` while the change is not recorded yet.
    work: Option<Work>,
}

#[derive(Default)]
struct Known {
    /// By number.
    all: BTreeMap<u32, Operation>,
    last: u32,
}

/// The operations of this node.
pub struct Operations {
    /// Tells the operations of this run of the agent from those of others.
    run: u32,
    known: Mutex<Known>,
}

impl Default for Operations {
    fn default() -> Self {
        Self { run: (random_u64() >> 32) as u32, known: Mutex::default() }
    }
}

impl Operations {
    fn id(&self, number: u32) -> String {
        format!("{:08x}{number:08x}", self.run)
    }

    fn number(&self, id: &str) -> Option<u32> {
        let number = u32::from_str_radix(id.strip_prefix(&format!("{:08x}", self.run))?, 16).ok()?;
        (self.id(number) == id).then_some(number)
    }

    /// Begins an operation that its sender has asked for.
    ///
    /// # Errors
    /// When too many run.
    fn begin(&self, who: &str, action: String) -> Result<u32, Problem> {
        self.begin_below(RUNNING_MAX, who, action, wall_ms()).ok_or_else(|| {
            Problem::new(
                Code::TooManyOperations,
                format!("nothing is changed: {RUNNING_MAX} operations run on this node already"),
                "Wait until some of them end, or send the request without `Prefer: respond-async`.",
            )
        })
    }

    /// Begins an operation if fewer than `running_max` run.
    fn begin_below(&self, running_max: usize, who: &str, action: String, since_ms: u64) -> Option<u32> {
        let mut known = lock(&self.known);
        let runs = |operation: &&Operation| operation.view.state == OperationState::Running;
        if known.all.values().filter(runs).count() >= running_max {
            return None;
        }
        if known.all.len() >= KEPT_MAX {
            let ended = known.all.iter().find(|(_, one)| one.view.state != OperationState::Running);
            if let Some(oldest) = ended.map(|(number, _)| *number) {
                known.all.remove(&oldest);
            }
        }
        known.last += 1;
        let number = known.last;
        let view = OperationView {
            id: self.id(number),
            message: format!("{action} is under way"),
            action,
            who: who.to_owned(),
            state: OperationState::Running,
            since_ms,
            ended_ms: None,
            progress_percent: None,
            cancel_needs: None,
            problem: None,
        };
        known.all.insert(number, Operation { view, work: None });
        Some(number)
    }

    fn forget(&self, number: u32) {
        lock(&self.known).all.remove(&number);
    }

    /// Changes an operation that runs. Returns whether it still runs then.
    fn note(&self, number: u32, change: impl FnOnce(&mut Operation)) -> bool {
        let mut known = lock(&self.known);
        let running = known.all.get_mut(&number).filter(|one| one.view.state == OperationState::Running);
        let Some(operation) = running else { return false };
        change(operation);
        let view = &mut operation.view;
        if view.state == OperationState::Running {
            return true;
        }
        (view.ended_ms, view.cancel_needs) = (Some(wall_ms()), None);
        false
    }

    /// The first operation before this one that runs and does the same work.
    fn same_before(&self, number: u32, work: &Work) -> Option<u32> {
        let known = lock(&self.known);
        let runs = |one: &Operation| one.view.state == OperationState::Running;
        let same = |one: &Operation| one.work.as_ref().is_some_and(|other| work.is_same_as(other));
        known.all.range(..number).find(|(_, one)| runs(one) && same(one)).map(|(first, _)| *first)
    }

    fn fail(&self, number: u32, problem: &Problem) -> bool {
        self.note(number, |operation| {
            operation.view.state = OperationState::Failed;
            operation.view.message.clone_from(&problem.message);
            operation.view.problem = Some(ProblemDocument::new(problem, None));
        })
    }

    /// The request of an operation and its sender, in words.
    pub(super) fn about(&self, id: &str) -> Option<String> {
        let (view, _) = self.find(id).ok()?;
        Some(format!("{}, which {} asked for", view.action, view.who))
    }

    fn find(&self, id: &str) -> Result<(OperationView, Option<Work>), Problem> {
        let known = lock(&self.known);
        let found = self.number(id).and_then(|number| known.all.get(&number));
        found.map(|found| (found.view.clone(), found.work.clone())).ok_or_else(|| {
            Problem::new(
                Code::UnknownOperation,
                format!("this node knows no operation {id}"),
                format!(
                    "Ask the node that began it. A node keeps the last {KEPT_MAX} operations until its agent ends: `mainstay status` and `mainstay audit` tell what became of the work."
                ),
            )
        })
    }
}

/// Whether a request prefers an answer before the work is done.
fn wants_no_wait(headers: &HeaderMap) -> bool {
    let values = headers.get_all(PREFER_HEADER).iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    preferences
        .any(|one| one.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(RESPOND_ASYNC))
}

/// Makes a change: as an operation if the request wants that and the route can take long.
pub(super) async fn made(agent: Arc<Agent>, by: (Caller, Access), request: Request, next: Next) -> Response {
    let is_long = request.extensions().get::<&'static Route>().is_some_and(|route| route.is_long);
    if !is_long {
        return audit::recorded(agent, by, request, next).await;
    }
    if !wants_no_wait(request.headers()) {
        return answered(agent, by, request, next).await;
    }
    let (parts, body) = request.into_parts();
    let body = match audit::whole(body).await {
        Ok(body) => body,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let number = match agent.operations.begin(&by.0.who, format!("{method} {path}")) {
        Ok(number) => number,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let request = Request::from_parts(parts, Body::from(body));
    let (early, answered) = oneshot::channel();
    let maker = agent.clone();
    tokio::spawn(async move {
        // A task of its own: an operation also ends if its change panics.
        let change = tokio::spawn(audit::recorded(maker.clone(), by, request, next));
        let response = change.await.unwrap_or_else(|error| {
            let remedy = "Look at the agent's log, and at the state before you repeat the request.";
            Refused::from(Problem::new(Code::AgentInternal, error.to_string(), remedy)).into_response()
        });
        if let Some(problem) = response.extensions().get::<Problem>().cloned() {
            maker.operations.fail(number, &problem);
            drop(early.send(Early::Refused(response)));
            return;
        }
        let answer = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.unwrap_or_default();
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let work = work_of(&maker, (&method, &path), (&asked, &answer));
        let first = work.and_then(|work| recorded(&maker, number, work, &answer));
        drop(early.send(first.map_or(Early::Recorded, Early::UnderWay)));
        watch(&maker, number).await;
    });
    match tokio::time::timeout(REFUSED_WITHIN, answered).await {
        Ok(Ok(Early::Refused(response))) => {
            agent.operations.forget(number);
            response
        }
        Ok(Ok(Early::UnderWay(first))) => {
            agent.operations.forget(number);
            begun(&agent, first)
        }
        // A sender that has waited long enough gets its own operation, whatever comes of it.
        Ok(Ok(Early::Recorded) | Err(_)) | Err(_) => begun(&agent, number),
    }
}

/// Outcome of a change that its sender hears of in the first answer.
enum Early {
    Refused(Response),
    Recorded,
    /// The operation with this number does the same work already.
    UnderWay(u32),
}

/// Makes a change whose sender waits until it is recorded. The answer names the operation of the
/// work that goes on then, if there is any.
async fn answered(agent: Arc<Agent>, by: (Caller, Access), request: Request, next: Next) -> Response {
    let came_ms = wall_ms();
    let (parts, body) = request.into_parts();
    let body = match audit::whole(body).await {
        Ok(body) => body,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let (method, path, who) = (parts.method.to_string(), parts.uri.path().to_owned(), by.0.who.clone());
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let request = Request::from_parts(parts, Body::from(body));
    let response = audit::recorded(agent.clone(), by, request, next).await;
    if !response.status().is_success() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let body = match to_bytes(body, ANSWER_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => {
            let remedy = "The change is made: look at the state before you repeat the request.";
            let problem = Problem::new(Code::AgentInternal, error.to_string(), remedy);
            return Refused::from(problem).into_response();
        }
    };
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let work = work_of(&agent, (&method, &path), (&asked, &answer)).filter(|work| *work != Work::Answered);
    let Some(work) = work else { return Response::from_parts(head, Body::from(body)) };
    let begun = agent.operations.begin_below(NAMED_MAX, &who, format!("{method} {path}"), came_ms);
    let first = match begun {
        Some(number) => recorded(&agent, number, work, &answer),
        None => agent.operations.same_before(u32::MAX, &work),
    };
    if let Some(number) = first.or(begun)
        && let Ok(id) = HeaderValue::from_str(&agent.operations.id(number))
    {
        head.headers.insert(OPERATION_HEADER, id);
    }
    match (begun, first) {
        (Some(number), Some(_)) => agent.operations.forget(number),
        (Some(number), None) => drop(tokio::spawn(async move { watch(&agent, number).await })),
        (None, _) => {}
    }
    Response::from_parts(head, Body::from(body))
}

/// The answer to the sender of an operation.
fn begun(agent: &Agent, number: u32) -> Response {
    let id = agent.operations.id(number);
    let view = match agent.operations.find(&id) {
        Ok((view, _)) => view,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let mut response = (StatusCode::ACCEPTED, Json(view)).into_response();
    if let Ok(place) = HeaderValue::from_str(&format!("{OPERATIONS}/{id}")) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response.headers_mut().insert(PREFER_APPLIED_HEADER, HeaderValue::from_static(RESPOND_ASYNC));
    response
}

/// The work of a change that was recorded.
fn work_of(agent: &Agent, (method, path): (&str, &str), (asked, answer): (&Value, &Value)) -> Option<Work> {
    let member = agent.member().ok()?;
    Some(Work::of(method, path, asked, answer, &member.log.view().state))
}

/// Notes that a change was recorded, and what the nodes do now. Returns the first operation that
/// does the same work, if there is one before this.
fn recorded(agent: &Agent, number: u32, work: Work, answer: &Value) -> Option<u32> {
    let noted = work.clone();
    agent.operations.note(number, |operation| {
        if let Some(message) = answer["message"].as_str() {
            message.clone_into(&mut operation.view.message);
        }
        operation.view.cancel_needs = noted.cancel_needs();
        operation.work = Some(noted);
    });
    agent.operations.same_before(number, &work)
}

/// Looks at the work of an operation until it ends.
async fn watch(agent: &Arc<Agent>, number: u32) {
    let mut failed_before = false;
    loop {
        let (looker, id) = (agent.clone(), agent.operations.id(number));
        let look = tokio::task::spawn_blocking(move || {
            let work = looker.operations.find(&id).ok()?.1?;
            look_at(&looker, &work)
        });
        let goes_on = match look.await.ok().flatten() {
            None => agent.operations.note(number, |_| ()),
            Some((Look::Runs(message), percent)) => agent.operations.note(number, |operation| {
                operation.view.message = message;
                operation.view.progress_percent = percent;
            }),
            Some((Look::Done(message), _)) => agent.operations.note(number, |operation| {
                operation.view.state = OperationState::Succeeded;
                operation.view.message = message;
                operation.view.progress_percent = Some(100);
            }),
            Some((Look::Cancelled(message), _)) => agent.operations.note(number, |operation| {
                operation.view.state = OperationState::Cancelled;
                operation.view.message = message;
            }),
            // The record may be between two steps.
            Some((Look::Failed(problem), _)) if failed_before => agent.operations.fail(number, &problem),
            Some((Look::Failed(_), _)) => {
                failed_before = true;
                agent.operations.note(number, |_| ())
            }
        };
        if !goes_on {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How far work is, with the share that is done. `None` if that cannot be found out now.
fn look_at(agent: &Arc<Agent>, work: &Work) -> Option<(Look, Option<u8>)> {
    match work {
        Work::Scrub { resource, by } => scrubs::look(agent, resource, *by),
        work => Some((work.look(&agent.member().ok()?.log.view().state)?, None)),
    }
}

pub(super) async fn list(
    AppState(agent): App,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Paged<Vec<OperationView>>, Refused> {
    let all = move || {
        let known: Vec<_> = lock(&agent.operations.known)
            .all
            .values()
            .map(|one| (one.view.clone(), one.work.clone()))
            .collect();
        Ok(known.into_iter().map(|(view, work)| with_progress(&agent, view, work)).collect())
    };
    pages::listed(uri, paging, |operation: &OperationView| operation.id.clone(), all).await
}

pub(super) async fn show(AppState(agent): App, Path(id): Path<String>) -> ApiResult<OperationView> {
    blocking(move || {
        let (view, work) = agent.operations.find(&id)?;
        Ok(with_progress(&agent, view, work))
    })
    .await
}

/// The view of an operation, with the share of a replica that is being filled.
fn with_progress(agent: &Arc<Agent>, mut view: OperationView, work: Option<Work>) -> OperationView {
    let is_filled = matches!(work, Some(Work::AddReplica { .. } | Work::MoveReplica { .. }));
    if let (OperationState::Running, Some(work), true) = (view.state, work, is_filled) {
        view.progress_percent = filled(agent, &work);
    }
    view
}

/// Share of a new replica that its primary has copied.
fn filled(agent: &Arc<Agent>, work: &Work) -> Option<u8> {
    let (Work::AddReplica { resource, node } | Work::MoveReplica { resource, to: node, .. }) = work else {
        return None;
    };
    let view = agent.member().ok()?.log.view();
    let (resource, node) = (view.state.resource_by_name(resource)?, view.state.node_by_name(node)?);
    let live = agent.asked_lately(&*agent.member().ok()?, &view);
    let shown = crate::views::resource(&view.state, resource, &live);
    let mut peers = shown.replicas.iter().filter_map(|one| one.live.as_ref()).flat_map(|live| &live.peers);
    peers.find(|peer| peer.node == node.name).and_then(|peer| peer.progress_percent)
}

pub(super) async fn cancel(
    AppState(agent): App,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
) -> ApiResult<OperationView> {
    let (view, work) = agent.operations.find(&id)?;
    let work = may_cancel(&view, work, &caller)?;
    let Json(Accepted { message, .. }) = match work {
        Work::Scrub { resource, .. } => scrubs::stop(AppState(agent.clone()), Path(resource)).await?,
        Work::Rotate { .. } => identities::cancel_rotation(AppState(agent.clone())).await?,
        Work::Drain { node } => {
            let stay = JsonRequest(CordonSet { on: true, drain: false });
            let mut answer = placement::cordon(AppState(agent.clone()), Path(node.clone()), stay).await?;
            answer.message = drain_is_cancelled(&node);
            answer
        }
        other => return Err(not_cancelled(&id, "it cannot be undone midway", other.instead()).into()),
    };
    if let Some(number) = agent.operations.number(&id) {
        agent.operations.note(number, |operation| {
            operation.view.state = OperationState::Cancelled;
            operation.view.message = message;
        });
    }
    Ok(Json(agent.operations.find(&id)?.0))
}

fn drain_is_cancelled(node: &str) -> String {
    format!(
        "the drain of {node} is cancelled: what is leaving goes on to leave, and the rest stays; {node} stays cordoned until `mainstay node uncordon {node}`"
    )
}

/// The work of an operation that this caller may cancel.
fn may_cancel(view: &OperationView, work: Option<Work>, caller: &Caller) -> Result<Work, Problem> {
    let id = &view.id;
    if view.state != OperationState::Running {
        let remedy = format!("See how with `mainstay operation show {id}`.");
        return Err(not_cancelled(id, "it has ended", remedy));
    }
    let Some(work) = work else {
        return Err(not_cancelled(
            id,
            "the cluster is recording it",
            "Wait a moment, and look again.".to_owned(),
        ));
    };
    let Some(needed) = work.cancel_needs() else {
        return Err(not_cancelled(id, "it cannot be undone midway", work.instead()));
    };
    if caller.access.is_none_or(|access| access < needed) {
        let message =
            format!("{} may not cancel operation {id}, which needs the right `{needed}`", caller.who);
        let remedy = format!("Ask as a user, or with a token, that has the right `{needed}`.");
        return Err(Problem::new(Code::Forbidden, message, remedy));
    }
    Ok(work)
}

fn not_cancelled(id: &str, why: &str, remedy: String) -> Problem {
    Problem::new(Code::NotCancelled, format!("operation {id} is not cancelled: {why}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_prefers_an_operation_by_one_word_among_others() {
        let wants = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PREFER_HEADER, value.parse().unwrap());
            }
            wants_no_wait(&headers)
        };
        for yes in [&["respond-async"][..], &["wait=10, Respond-Async"], &["x", "respond-async;y=1"]] {
            assert!(wants(yes), "{yes:?}");
        }
        for no in [&[][..], &["wait=10"], &["respond-async-please"], &["x=respond-async"]] {
            assert!(!wants(no), "{no:?}");
        }
    }

    #[test]
    fn operations_are_few_and_those_that_run_are_kept() {
        let operations = Operations::default();
        let begin = || operations.begin("root", "POST /v1/services/db/move".into());
        let first = begin().unwrap();
        let id = operations.id(first);
        for _ in 1..RUNNING_MAX {
            begin().unwrap();
        }
        let refused = begin().unwrap_err();
        assert_eq!(refused.code, Code::TooManyOperations);
        assert!(refused.remedy.contains("without `Prefer: respond-async`"), "{refused:?}");
        for number in 2..=RUNNING_MAX as u32 {
            assert!(!operations.fail(number, &refused));
        }
        for _ in 0..KEPT_MAX * 2 {
            let number = begin().unwrap();
            operations.note(number, |one| one.view.state = OperationState::Succeeded);
        }
        assert_eq!(lock(&operations.known).all.len(), KEPT_MAX);
        assert_eq!(operations.find(&id).unwrap().0.state, OperationState::Running);
        // Those of another run of the agent are others.
        let other = Operations { run: operations.run ^ 1, known: Mutex::default() };
        for id in [other.id(first).as_str(), "", "x", &id[1..], &format!("{id}0"), &id.to_uppercase()] {
            let same = *id == operations.id(first);
            assert!(same || operations.find(id).unwrap_err().code == Code::UnknownOperation, "{id}");
        }
    }

    #[test]
    fn a_second_request_for_the_same_work_joins_the_first_operation_that_runs() {
        let operations = Operations::default();
        let begin = |work: &Work| {
            let number = operations.begin("root", "POST /v1/resources/db/replicas".into()).unwrap();
            operations.note(number, |one| one.work = Some(work.clone()));
            number
        };
        let on = |node: &str| Work::AddReplica { resource: "db".into(), node: node.into() };
        let first = begin(&on("n2"));
        assert_eq!(operations.same_before(first, &on("n2")), None, "it is the first one");
        let other = begin(&on("n3"));
        assert_eq!(operations.same_before(other, &on("n3")), None, "that is other work");
        let second = begin(&on("n2"));
        assert_eq!(operations.same_before(second, &on("n2")), Some(first));
        operations.note(first, |one| one.view.state = OperationState::Failed);
        assert_eq!(operations.same_before(second, &on("n2")), None, "the first one has ended");
        // Two sizes of a volume are not the same wish, and a change that is done is no work.
        for work in [Work::Resize { resource: "db".into(), volume: 0 }, Work::Answered] {
            begin(&work);
            assert_eq!(operations.same_before(begin(&work), &work), None, "{work:?}");
        }
    }

    #[test]
    fn half_of_the_places_are_left_to_senders_that_ask_for_an_operation() {
        let operations = Operations::default();
        let named = || operations.begin_below(NAMED_MAX, "root", "PUT /v1/nodes/n1/cordon".into(), 7);
        for _ in 0..NAMED_MAX {
            assert!(named().is_some());
        }
        assert_eq!(named(), None);
        let asked = operations.begin("root", "PUT /v1/nodes/n1/cordon".into()).unwrap();
        assert_eq!(operations.find(&operations.id(1)).unwrap().0.since_ms, 7);
        for number in 1..=asked {
            operations.note(number, |one| one.view.state = OperationState::Succeeded);
        }
        assert!(named().is_some(), "an operation that has ended takes no place");
    }

    #[test]
    fn only_work_that_can_end_midway_is_cancelled_by_a_caller_with_its_right() {
        let operations = Operations::default();
        let number = operations.begin("root", "POST /v1/cluster/rotation".into()).unwrap();
        let view = || operations.find(&operations.id(number)).unwrap().0;
        let caller = |access| Caller { who: "bob".into(), login: None, from: None, access: Some(access) };
        let ask = |work, access| may_cancel(&view(), work, &caller(access)).map_err(|problem| problem.code);
        let rotation = Work::Rotate { to: 2 };
        assert_eq!(ask(None, Access::Admin), Err(Code::NotCancelled));
        assert_eq!(ask(Some(rotation.clone()), Access::Operate), Err(Code::Forbidden));
        assert_eq!(ask(Some(rotation.clone()), Access::Admin), Ok(rotation.clone()));
        let drain = Work::Drain { node: "n1".into() };
        assert_eq!(ask(Some(drain.clone()), Access::Operate), Ok(drain));
        let moved = Work::MoveService { service: "db".into(), to: "n2".into() };
        assert_eq!(ask(Some(moved), Access::Admin), Err(Code::NotCancelled));
        operations.note(number, |one| one.view.state = OperationState::Succeeded);
        assert!(view().ended_ms.is_some());
        assert_eq!(ask(Some(rotation), Access::Admin), Err(Code::NotCancelled));
    }
}
