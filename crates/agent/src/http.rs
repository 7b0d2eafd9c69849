//! The HTTP API on `<run>/agent.sock` and over TLS ([`crate::https`]). See `mainstay_api::rest` for
//! its routes.
//!
//! Handlers run on a thread pool for blocking work: they wait for the control plane and for other
//! nodes. Lease, log and reconciler have threads of their own and are not delayed by any request.

mod advising;
mod api_tokens;
mod audit;
mod baselines;
mod clients;
pub mod destinations;
mod existing;
pub(crate) mod extract;
mod fencing;
mod force;
mod history;
pub(crate) mod idempotency;
mod identities;
mod load;
mod nodes;
pub(crate) mod operations;
mod pages;
mod placement;
mod report;
mod resources;
pub mod routes;
mod scrubs;
mod service_check;
mod service_looks;
mod service_orders;
mod services;
mod settings;
mod snapshots;
pub mod stream;
mod users;

use crate::agent::{Agent, PROPOSE_TIMEOUT, READ_PATIENCE};
use crate::clock::boot_now;
use crate::error::settle;
use crate::health;
use crate::identity::Identity;
use crate::member::Member;
use crate::messages::random_u64;
use crate::metrics::listener;
use crate::raft::{ConsensusLog, View};
use crate::views;
use advising::advise;
use axum::extract::{Request, State as AppState};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use axum::{Json, Router};
use extract::{JsonRequest, Path, Query};
pub(crate) use history::newest as changes;
use mainstay_api::rest::{
    AGE_HEADER, Accepted, ClusterInit, ClusterJoin, ClusterView, CodeView, EVENTS_WAIT_MS_MAX, EngineView,
    EventsPage, NODE_HEADER, NodeView, OPERATIONS, ProblemDocument, REQUEST_ID_HEADER, ServiceMove,
    ServiceView, StatusView,
};
use mainstay_api::routes::OPENAPI;
use mainstay_control::advice::Advice;
use mainstay_control::causes::causes;
use mainstay_control::stalls::{STALL_MS, Stall, Stalled};
use mainstay_control::state::{Command, Resource, State};
use mainstay_ha::ServiceSpec;
use mainstay_types::{Code, NodeId, Problem, ServicePhase};
use pages::{Paged, Paging};
pub(crate) use resources::nearest;
use resources::{find_node, find_resource, unknown_resource, with_advice, words};
use routes::Routes;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Attempts of a scrub to find the primary.
const SCRUB_ATTEMPTS: usize = 5;
/// How often a change is asked for again because the record has changed meanwhile.
const CONFLICTS_MAX: usize = 20;
const CONFLICT_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a scrub looks for the primary again.
const SCRUB_PAUSE: Duration = Duration::from_millis(200);
const SCRUB_TIMEOUT: Duration = Duration::from_secs(10);

/// A refusal on its way out.
pub struct Refused(Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status());
        let status = status.unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
        let mut response = (status, Json(ProblemDocument::new(&self.0, None))).into_response();
        // For the audit log, and for the number of the request.
        response.extensions_mut().insert(self.0);
        let kind = header::HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

type ApiResult<T> = Result<Json<T>, Refused>;
type App = AppState<Arc<Agent>>;

/// All routes, without the numbers of requests ([`numbered`]).
pub fn router(agent: Arc<Agent>) -> Router {
    routes()
        .into_router()
        .fallback(async || {
            Refused(Problem::new(Code::NotFound, "there is no such route", "See the API's description."))
        })
        .method_not_allowed_fallback(async |method: Method| {
            let message = format!("{method} is no method of this path");
            Refused(Problem::new(
                Code::MethodNotAllowed,
                message,
                "Use one of the methods in the header `Allow`.",
            ))
        })
        .layer(middleware::from_fn_with_state(agent.clone(), tell_age))
        .layer(middleware::from_fn_with_state(agent.clone(), routes::identify))
        .with_state(agent)
}

/// Gives each request to these routes a number: the outermost layer of everything that serves the
/// API.
pub fn numbered(routes: Router) -> Router {
    routes.layer(middleware::from_fn(number_and_log))
}

/// Each route of the table with its handler.
#[must_use]
pub fn routes() -> Routes {
    Routes::default()
        .on(Method::GET, "/v1/alive", get(async || Json(true)))
        .on(Method::GET, "/v1/status", get(status))
        .on(Method::GET, "/v1/cluster", get(cluster))
        .on(Method::POST, "/v1/cluster/init", post(init))
        .on(Method::POST, "/v1/cluster/join", post(join))
        .on(Method::GET, "/v1/cluster/settings", get(settings::of_cluster))
        .on(Method::PATCH, "/v1/cluster/settings", patch(settings::change_of_cluster))
        .on(Method::GET, "/v1/cluster/backup", get(nodes::backup))
        .on(Method::GET, "/v1/cluster/certificates", get(identities::certificates))
        .on(Method::POST, "/v1/cluster/rotation", post(identities::rotate))
        .on(Method::DELETE, "/v1/cluster/rotation", delete(identities::cancel_rotation))
        .on(Method::POST, "/v1/cluster/rotation/left-out", post(identities::leave_out))
        .on(Method::GET, "/v1/cluster/tokens", get(identities::tokens))
        .on(Method::POST, "/v1/cluster/tokens", post(identities::create_token))
        .on(Method::DELETE, "/v1/cluster/tokens/{id}", delete(identities::revoke_token))
        .on(Method::GET, "/v1/authorities", get(api_tokens::authorities))
        .on(Method::GET, "/v1/tokens", get(api_tokens::list))
        .on(Method::POST, "/v1/tokens", post(api_tokens::create))
        .on(Method::DELETE, "/v1/tokens/{name}", delete(api_tokens::revoke))
        .on(Method::GET, "/v1/nodes", get(all_nodes))
        .on(Method::GET, "/v1/nodes/{name}/removal", get(nodes::removal))
        .on(Method::POST, "/v1/nodes/{name}/removal", post(nodes::remove))
        .on(Method::POST, "/v1/nodes/{name}/replacement", post(nodes::replace))
        .on(Method::PUT, "/v1/nodes/{name}/address", put(nodes::set_address))
        .on(Method::POST, "/v1/nodes/{name}/confirm-off", post(fencing::confirm_off))
        .on(Method::GET, "/v1/resources", get(resources::list))
        .on(Method::POST, "/v1/resources", post(resources::create))
        .on(Method::GET, "/v1/resources/{name}", get(resources::show))
        .on(Method::DELETE, "/v1/resources/{name}", delete(resources::delete))
        .on(Method::GET, "/v1/resources/{name}/scrub", get(scrubs::report))
        .on(Method::POST, "/v1/resources/{name}/scrub", post(scrubs::start))
        .on(Method::DELETE, "/v1/resources/{name}/scrub", delete(scrubs::stop))
        .on(Method::GET, "/v1/resources/{name}/settings", get(settings::of_resource))
        .on(Method::PATCH, "/v1/resources/{name}/settings", patch(settings::change_of_resource))
        .on(Method::PUT, "/v1/resources/{name}/attachment", put(clients::attach))
        .on(Method::DELETE, "/v1/resources/{name}/attachment", delete(clients::detach))
        .on(Method::GET, "/v1/resources/{name}/failover", get(placement::failover))
        .on(Method::GET, "/v1/resources/{name}/force/{node}", get(force::force_cost))
        .on(Method::POST, "/v1/resources/{name}/force/{node}", post(force::force_promote))
        .on(Method::POST, "/v1/resources/{name}/move", post(resources::move_primary))
        .on(Method::POST, "/v1/resources/{name}/replicas", post(resources::add_replica))
        .on(Method::DELETE, "/v1/resources/{name}/replicas/{node}", delete(resources::remove_replica))
        .on(Method::POST, "/v1/resources/{name}/replicas/{node}/move", post(resources::move_replica))
        .on(Method::POST, "/v1/resources/{name}/volumes/{volume}/resize", post(resources::resize))
        .on(Method::POST, "/v1/resources/{name}/snapshots", post(snapshots::take))
        .on(Method::GET, "/v1/resources/{name}/snapshots/{snapshot}", get(snapshots::files))
        .on(Method::DELETE, "/v1/resources/{name}/snapshots/{snapshot}", delete(snapshots::delete))
        .on(Method::POST, "/v1/resources/{name}/snapshots/{snapshot}/rollback", post(snapshots::roll_back))
        .on(Method::GET, "/v1/services", get(list_services))
        .on(Method::PUT, "/v1/services", put(services::apply))
        .on(Method::GET, "/v1/services/{name}", get(service))
        .on(Method::DELETE, "/v1/services/{name}", delete(delete_service))
        .on(Method::POST, "/v1/services/{name}/move", post(move_service))
        .on(Method::GET, "/v1/services/{name}/explain", get(placement::explain))
        .on(Method::PUT, "/v1/services/{name}/maintenance", put(placement::maintain_service))
        .on(Method::PUT, "/v1/nodes/{name}/maintenance", put(placement::maintain_node))
        .on(Method::PUT, "/v1/nodes/{name}/cordon", put(placement::cordon))
        .on(Method::PUT, "/v1/cluster/maintenance", put(placement::maintain_cluster))
        .on(Method::PUT, "/v1/services/{name}/wanted", put(service_orders::set_wanted))
        .on(Method::POST, "/v1/services/{name}/restart", post(service_orders::restart))
        .on(Method::GET, "/v1/services/{name}/file", get(service_looks::file))
        .on(Method::GET, "/v1/services/{name}/logs", get(service_looks::logs))
        .on(Method::GET, "/v1/services/{name}/history", get(service_looks::history))
        .on(Method::POST, "/v1/service-check", post(service_check::check))
        .on(Method::GET, OPERATIONS, get(operations::list))
        .on(Method::GET, "/v1/operations/{id}", get(operations::show))
        .on(Method::DELETE, "/v1/operations/{id}", delete(operations::cancel))
        .on(Method::GET, "/v1/events", get(events))
        .on(Method::GET, stream::PATH, get(stream::answer))
        .on(Method::GET, "/v1/history", get(history::history))
        .on(Method::GET, "/v1/load", get(load::load))
        .on(Method::GET, "/v1/report", get(report::answer))
        .on(Method::GET, "/v1/baselines", get(baselines::list))
        .on(Method::PUT, "/v1/baselines/{name}", put(baselines::save))
        .on(Method::DELETE, "/v1/baselines/{name}", delete(baselines::delete))
        .on(Method::GET, "/v1/audit", get(audit::page))
        .on(Method::GET, "/v1/programs", get(nodes::programs))
        .on(Method::GET, "/v1/engine/successor", get(nodes::in_place))
        .on(Method::POST, "/v1/engine/successor", post(nodes::successor))
        .on(Method::GET, destinations::PATH, get(destinations::answer))
        .on(Method::GET, "/metrics", get(listener::answer))
        .on(Method::GET, "/livez", get(health::live))
        .on(Method::GET, "/readyz", get(health::ready))
        .on(Method::GET, "/primary/{name}", get(health::primary))
        .on(Method::GET, "/replica/{name}", get(health::replica))
        .on(Method::GET, "/health/{name}", get(health::health))
        .on(Method::GET, "/errors/{code}", get(explanation))
        .on(Method::GET, "/openapi.json", get(description))
}

/// The explanation of a code.
async fn explanation(Path(code): Path<String>) -> ApiResult<CodeView> {
    let view = CodeView::of(&Code::from(code.clone()));
    view.map(Json).ok_or_else(|| {
        let message = format!("this release has no error code `{code}`");
        Refused(Problem::new(Code::NotFound, message, "docs/errors.md lists all codes."))
    })
}

/// The description of the API.
async fn description() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// Number of a request. Its answer has it, and so have its records in the audit log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RequestId(u64);

impl RequestId {
    /// The number as headers and the audit log show it.
    fn in_words(self) -> String {
        format!("{:016x}", self.0)
    }
}

/// Gives each request its number, and logs it at the level `debug`, with its status and how long
/// its answer took.
async fn number_and_log(mut request: Request, next: middleware::Next) -> Response {
    let id = RequestId(random_u64());
    request.extensions_mut().insert(id);
    let named = id.in_words();
    let asked = tracing::enabled!(tracing::Level::DEBUG)
        .then(|| (request.method().clone(), request.uri().path().to_owned()));
    let began = std::time::Instant::now();
    let mut response = next.run(request).await;
    if let Some((method, path)) = asked {
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::debug!(%method, path, id = named, status = response.status().as_u16(), ms, "answered a request");
    }
    if let Some(problem) = response.extensions().get::<Problem>() {
        let document = ProblemDocument::new(problem, Some(named.clone()));
        *response.body_mut() = Json(document).into_response().into_body();
    }
    if let Ok(value) = header::HeaderValue::from_str(&named) {
        response.headers_mut().insert(REQUEST_ID_HEADER, value);
    }
    response
}

/// Questions whose answers carry their age themselves, or have none.
const OWN_AGE: [&str; 8] = [
    "/v1/alive",
    "/v1/status",
    "/v1/cluster",
    "/v1/nodes",
    "/v1/load",
    "/v1/programs",
    destinations::PATH,
    stream::PATH,
];

/// Adds its age to an answer that no majority of the voters has confirmed (S264). The majority is
/// asked first, so that what the answer is made of is no older. Notes the end of a change.
async fn tell_age(AppState(agent): App, request: Request, next: middleware::Next) -> Response {
    let path = request.uri().path();
    let is_question = request.method() == Method::GET && path.starts_with("/v1/") && !OWN_AGE.contains(&path);
    let changes = !request.method().is_safe();
    let at_end = agent.clone();
    let asked = if is_question {
        let age = move || {
            let member = agent.member().ok()?;
            let age_ms = member.log.confirmed_view(READ_PATIENCE).age_ms;
            (age_ms != Some(0)).then(|| (member.identity.name.clone(), age_ms))
        };
        tokio::task::spawn_blocking(age).await.ok().flatten()
    } else {
        None
    };
    let mut response = next.run(request).await;
    if changes {
        at_end.note_change();
    }
    if let Some((node, age_ms)) = asked {
        let age = age_ms.map_or_else(|| "unknown".to_owned(), |ms| ms.to_string());
        for (name, value) in [(AGE_HEADER, age), (NODE_HEADER, node)] {
            if let Ok(value) = header::HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
    }
    response
}

/// Runs what waits, off the threads that serve connections.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> ApiResult<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(Json(result?)),
        Err(error) => {
            Err(Refused(Problem::new(Code::AgentInternal, error.to_string(), "Look at the agent's log.")))
        }
    }
}

async fn init(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<ClusterInit>,
) -> ApiResult<ClusterView> {
    blocking(move || agent.init(&request)).await
}

async fn join(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<ClusterJoin>,
) -> ApiResult<ClusterView> {
    blocking(move || agent.join(&request)).await
}

/// The cluster for a reader, who does not decide by it.
fn cluster_view(agent: &Arc<Agent>, member: &Member) -> ClusterView {
    let view = member.log.confirmed_view(READ_PATIENCE);
    let live = agent.asked_lately(member, &view);
    agent.cluster_view_of(member, &view, &live)
}

async fn cluster(AppState(agent): App) -> ApiResult<ClusterView> {
    blocking(move || Ok(cluster_view(&agent, &*agent.member()?))).await
}

async fn all_nodes(
    AppState(agent): App,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Paged<Vec<NodeView>>, Refused> {
    let all = move || Ok(cluster_view(&agent, &*agent.member()?).nodes);
    pages::listed(uri, paging, |node: &NodeView| node.id, all).await
}

async fn status(AppState(agent): App) -> ApiResult<StatusView> {
    blocking(move || Ok(status_view(&agent))).await
}

/// The answer to `GET /v1/status`. Waits for other nodes.
pub(crate) fn status_view(agent: &Arc<Agent>) -> StatusView {
    let silent_ms = agent.engine.silent_ms(boot_now());
    let answers = silent_ms < STALL_MS;
    let engine = EngineView {
        connected: agent.engine.is_connected() && answers,
        message: match (agent.engine.is_connected(), answers) {
            (true, true) => "connected".to_owned(),
            (_, false) => format!("it has not answered for {} s", silent_ms / 1000),
            (false, true) => "the engine of this node does not answer".to_owned(),
        },
        frontend: agent.engine.frontend(),
        watchdog: agent.engine.watchdog(),
    };
    let Ok(member) = agent.member() else {
        return StatusView {
            cluster: None,
            engine,
            lease_left_ms: 0,
            resources: Vec::new(),
            services: Vec::new(),
            advice: vec![match agent.joins_by() {
                Some(peer) => format!("This node is asking {peer} to join its cluster: wait for the end of that."),
                None => "Run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS` or `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN` on this node.".to_owned(),
            }],
        };
    };
    let view = member.log.confirmed_view(READ_PATIENCE);
    let live = agent.asked_lately(&member, &view);
    let advice = advise(agent, &member, &view, &live);
    let mut lines: Vec<String> = advice.iter().map(words).collect();
    if let Some(time) = member.waits_for_state() {
        lines = vec![waits_for_state(&member.identity, time)];
    }
    let witness = view.state.nodes.get(&member.identity.node).is_some_and(|node| node.witness);
    if !engine.connected && !witness {
        let what =
            if answers { "start it" } else { "it hangs; look at its process and its log, or restart it" };
        lines.insert(0, format!("the engine of this node does not answer: {what}"));
    }
    StatusView {
        cluster: Some(agent.cluster_view_of(&member, &view, &live)),
        engine,
        lease_left_ms: agent.lease_left_ms(),
        resources: with_advice(views::resources(&view.state, &live), &advice),
        services: {
            let mut services = views::services(&view.state);
            let stalls = live.stalls();
            for service in &mut services {
                service.hindrances = hindrances(agent, &member, &view, &service.name, &stalls);
            }
            services
        },
        advice: lines,
    }
}

/// Returns the only advice about a cluster whose state has not been received.
fn waits_for_state(identity: &Identity, time: Duration) -> String {
    let members: Vec<&str> = identity.first_members.values().map(String::as_str).collect();
    format!(
        "this node has been joining the cluster {} as {} for {} s and has not received its state: check that large packets from {} \
         reach this node",
        identity.cluster_name,
        identity.name,
        time.as_secs(),
        members.join(" and ")
    )
}

async fn list_services(
    AppState(agent): App,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Paged<Vec<ServiceView>>, Refused> {
    let all = move || Ok(views::services(&agent.member()?.log.confirmed_view(READ_PATIENCE).state));
    pages::listed(uri, paging, |service: &ServiceView| service.name.clone(), all).await
}

async fn service(AppState(agent): App, Path(name): Path<String>) -> ApiResult<ServiceView> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        let mut shown = service_view(&view, &name)?;
        let live = agent.asked_lately(&member, &view);
        shown.hindrances = hindrances(&agent, &member, &view, &name, &live.stalls());
        Ok(shown)
    })
    .await
}

/// Sentences on the hindrances of a service, each with its remedy.
fn hindrances(agent: &Agent, member: &Member, view: &View, service: &str, stalls: &[Stall]) -> Vec<String> {
    let state = &view.state;
    let Some(known) = state.services.get(service) else { return Vec::new() };
    let resource = state.resource_of(known);
    let id = resource.map(|resource| resource.id);
    let there = known.nodes.iter().filter(|(_, on)| !on.phase.is_silent()).map(|(node, _)| *node);
    let mut nodes: BTreeSet<NodeId> = there.collect();
    nodes.extend(resource.and_then(|resource| resource.record.primary));
    let causes = causes(state, stalls.to_vec());
    let hung = |node: &NodeId| {
        let of_it = |what: &Stalled| matches!(what, Stalled::Engine(on) | Stalled::LogDisk(on) if on == node);
        causes.iter().any(|stall| of_it(&stall.what))
    };
    for stall in &causes {
        if let Stalled::Journal(of, node) | Stalled::Replica(of, node) = stall.what
            && Some(of) == id
        {
            nodes.insert(node);
        }
    }
    let of_it = |stall: &&Stall| match &stall.what {
        Stalled::Service(name, ..) => name == service,
        Stalled::Journal(of, node) | Stalled::Replica(of, node) => Some(*of) == id && !hung(node),
        Stalled::Copies(of, _) => Some(*of) == id,
        Stalled::Engine(node) | Stalled::LogDisk(node) => nodes.contains(node),
        Stalled::Voter(_) | Stalled::Unheard(..) | Stalled::Cropped(..) => false,
    };
    let told = |stall: &Stall| {
        let Advice { subject, what, remedy, .. } = stall.advice(state);
        let about = if matches!(stall.what, Stalled::Service(..)) { String::new() } else { subject + ": " };
        format!("{about}{what}; {remedy}")
    };
    let mut list: Vec<String> = causes.iter().filter(of_it).map(told).collect();
    let (own, name) = (member.identity.node, &member.identity.name);
    let runs_here = known.nodes.get(&own).is_some_and(|on| on.phase == ServicePhase::Running);
    if runs_here && agent.lease_left_ms() == 0 {
        let text = format!(
            "{name} holds no lease: nothing of the service runs there, and this is what {name} knew last"
        );
        list.insert(0, text);
    }
    list
}

/// # Errors
/// When no majority of the voters confirms what this node knows: then nothing can be changed.
fn require_majority(agent: &Agent, doing: &str) -> Result<(), Problem> {
    let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
    if view.age_ms == Some(0) {
        return Ok(());
    }
    Err(Problem::new(
        Code::NoMajority,
        format!("{doing}: no majority of the voters can be reached"),
        "Bring the other nodes or their network back, and try again; see `mainstay status`.",
    ))
}

fn service_view(view: &View, name: &str) -> Result<ServiceView, Problem> {
    match view.state.services.get(name) {
        Some(service) => Ok(views::service(&view.state, name, service)),
        None => Err(unknown_service(&view.state, name)),
    }
}

fn unknown_service(state: &State, name: &str) -> Problem {
    let remedy = nearest(name, state.services.keys(), "See `mainstay service list`.");
    Problem::new(Code::UnknownService, format!("there is no service {name}"), remedy)
}

#[derive(Deserialize)]
struct ServiceDelete {
    /// Whether it is deleted although something else holds its file system.
    #[serde(default)]
    force: bool,
}

async fn delete_service(
    AppState(agent): App,
    Path(name): Path<String>,
    Query(ServiceDelete { force }): Query<ServiceDelete>,
) -> ApiResult<Accepted> {
    let (asked, service) = (agent.clone(), name.clone());
    let deleted = change(agent.clone(), move |view| {
        if !force {
            let doing = format!("service {name} is not deleted");
            let or = format!("To delete it all the same, run `mainstay service delete {name} --force`.");
            users::refuse_held(&asked, view, &name, &doing, &or)?;
        }
        let message = format!("service {name} is being stopped and deleted");
        Ok((Command::DeleteService { name }, message))
    })
    .await?;
    if force {
        disregard_holders(agent, service).await;
    }
    Ok(deleted)
}

/// Refuses a move to a node that says that it lacks something which the service needs.
fn refuse_lacking(
    agent: &Arc<Agent>,
    view: &View,
    spec: &ServiceSpec,
    to: NodeId,
    doing: &str,
) -> Result<(), Problem> {
    let member = agent.member()?;
    let lacks = agent.ask_lacks(&member, view, &[to], spec);
    let Some(lack) = lacks.get(&to).and_then(|lacks| lacks.first()) else { return Ok(()) };
    let node = view.state.node_name(to);
    let message = format!("{doing}: node {node} lacks what it needs: {}: {}", lack.field, lack.problem);
    let remedy = format!("{} on {node}; `--force` moves it all the same.", lack.remedy);
    Err(Problem::new(Code::NotEligible, message, remedy))
}

async fn move_service(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<ServiceMove>,
) -> ApiResult<Accepted> {
    let (asked, service, force) = (agent.clone(), name.clone(), request.force);
    let target = request.to.clone();
    let moved = change(agent.clone(), move |view| {
        let to = find_node(view, &request.to)?;
        let service = view.state.services.get(&name);
        let resource = service.and_then(|service| view.state.resource_by_name(&service.spec.resource));
        if let Some(resource) = resource.filter(|resource| !resource.spec.replicas.contains(&to)) {
            let holders: Vec<String> =
                resource.spec.replicas.iter().map(|node| view.state.node_name(*node)).collect();
            return Err(Problem::new(
                Code::NotEligible,
                format!("node {} has no replica of resource {}", request.to, resource.name),
                format!("Name a node that has one: {}.", holders.join(", ")),
            ));
        }
        require_majority(&asked, &format!("service {name} is not moved"))?;
        if let Some((service, resource)) = service.zip(resource)
            && resource.record.primary != Some(to)
        {
            users::refuse_place(&asked, view, &service.spec, &[to]).map_err(|mut refusal| {
                refusal.message = format!("service {name} is not moved: {}", refusal.message);
                let free = "Free the place of its file system on";
                refusal.remedy = format!("{free} {}, or move it to another node.", request.to);
                refusal
            })?;
        }
        if let Some(resource) =
            resource.filter(|resource| !request.force && resource.record.primary != Some(to))
        {
            let doing = format!("service {name} is not moved");
            users::refuse_used_to_move(&asked, view, resource, &doing).map_err(|mut refusal| {
                let all_the_same = format!("`mainstay service move {name} --to {} --force`", request.to);
                users::or_by_force(&mut refusal, &format!("To move it all the same, run {all_the_same}."));
                refusal
            })?;
        }
        if let (Some(service), false) = (service, request.force) {
            refuse_lacking(&asked, view, &service.spec, to, &format!("service {name} is not moved"))?;
        }
        let waits = view.state.order_waits(&name);
        let is_there = resource.is_some_and(|resource| resource.record.primary == Some(to));
        let is_stopped = service.is_some_and(|service| service.stopped.is_some());
        let stays = if is_stopped { ", and stays stopped" } else { "" };
        let message = if is_there {
            format!("service {name} is on {} already: its failures are cleared{waits}", request.to)
        } else {
            format!("service {name} moves to {}{stays}{waits}", request.to)
        };
        Ok((Command::MoveService { name, to }, message))
    })
    .await;
    let moved = match moved {
        Err(Refused(refusal)) if refusal.code == Code::NotEligible => {
            return blocking(move || {
                let view = agent.member()?.log.view();
                let resource = view.state.services.get(&service).and_then(|of| view.state.resource_of(of));
                Err(explained(&agent, &view, refusal, resource, &target))
            })
            .await;
        }
        moved => moved?,
    };
    if force {
        disregard_holders(agent, service).await;
    }
    Ok(moved)
}

/// The refusal of a move with what the record does not know: the lag of the target, and engines and
/// disks that give no answer. `to`: name of the target.
fn explained(
    agent: &Arc<Agent>,
    view: &View,
    mut refusal: Problem,
    resource: Option<&Resource>,
    to: &str,
) -> Problem {
    let Ok(member) = agent.member() else { return refusal };
    let live = agent.ask_all(&member, view);
    let is_hung = |stall: &Stall| matches!(stall.what, Stalled::Engine(_) | Stalled::LogDisk(_));
    for stall in live.stalls().into_iter().filter(is_hung) {
        let Advice { subject, what, .. } = stall.advice(&view.state);
        refusal.message += &format!("; {subject}: {what}");
    }
    let lag = resource.zip(view.state.node_by_name(to).map(|node| node.id));
    if let Some((what, remedy)) = lag.and_then(|(resource, to)| live.behind(&view.state, resource, to)) {
        refusal.message += &format!("; {to}: {what}");
        refusal.remedy = format!("{remedy} Otherwise: {}", refusal.remedy);
    }
    refusal
}

/// Lets the stop of a service that an operator has forced wait for no holder of its file system.
async fn disregard_holders(agent: Arc<Agent>, service: String) {
    let told: ApiResult<()> = blocking(move || {
        users::disregard(&agent, &service);
        Ok(())
    })
    .await;
    drop(told);
}

async fn change(
    agent: Arc<Agent>,
    command: impl FnOnce(&View) -> Result<(Command, String), Problem> + Send + 'static,
) -> ApiResult<Accepted> {
    blocking(move || {
        let member = agent.member()?;
        let (command, message) = command(&member.log.view())?;
        settle(member.log.propose(command, PROPOSE_TIMEOUT))?;
        Ok(Accepted { revision: member.log.view().state.revision, message })
    })
    .await
}

/// Changes what does not depend on a record that the client has read. If the record changes
/// meanwhile, proposes the change again.
async fn change_present_state(
    agent: Arc<Agent>,
    command: impl Fn(&View) -> Result<(Command, String), Problem> + Send + 'static,
) -> ApiResult<Accepted> {
    blocking(move || {
        let member = agent.member()?;
        for _ in 0..CONFLICTS_MAX {
            let (command, message) = command(&member.log.view())?;
            match settle(member.log.propose(command, PROPOSE_TIMEOUT)) {
                Err(error) if error.code == Code::Conflict => std::thread::sleep(CONFLICT_PAUSE),
                settled => {
                    settled?;
                    return Ok(Accepted { revision: member.log.view().state.revision, message });
                }
            }
        }
        Err(Problem::new(
            Code::Conflict,
            "the state changes again and again",
            "Look at `mainstay status` and try again.",
        ))
    })
    .await
}

#[derive(Deserialize)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    limit: Option<usize>,
}

async fn events(
    AppState(agent): App,
    Query(query): Query<EventsQuery>,
    uri: Uri,
) -> Result<Paged<EventsPage>, Refused> {
    let limit = pages::limit(query.limit)?;
    let member = agent.member()?;
    let mut last_event = member.last_event.clone();
    let wait = Duration::from_millis(query.wait_ms.min(EVENTS_WAIT_MS_MAX));
    let newer = last_event.wait_for(|last| *last > query.after);
    // Without newer events in time the answer is an empty page.
    drop(tokio::time::timeout(wait, newer).await);
    let page = views::events_of(&member.log.view().state, query.after, limit.unwrap_or(usize::MAX));
    let (page, next) = cut_at_its_end(page);
    Ok(Paged::new(page, &uri, next))
}

/// A page that does not reach the newest event ends at its own last one. Returns the `after` of the
/// next page with it.
fn cut_at_its_end(mut page: EventsPage) -> (EventsPage, Option<String>) {
    let end = page.events.last().map(|event| event.index).filter(|end| *end < page.last);
    if let Some(end) = end {
        page.last = end;
    }
    (page, end.map(|end| end.to_string()))
}
