//! Answers for load balancers and supervisors, which look at the status of an answer alone: 200 is
//! yes, and 503 is no.
//!
//! Guarantees
//! - `/primary/NAME` is answered with 200 only by a node that is the primary of the resource and
//!   has a lease. So no two nodes say yes at one time, as long as their leases do not overlap
//!   (R19).
//! - An answer waits for no other node and no disk. What the node knows of the cluster counts for
//!   [`AGE_MAX_MS`] without the word of a majority.

use crate::agent::Agent;
use crate::clock::boot_now;
use crate::http::extract::Path;
use crate::member::Member;
use crate::raft::ConsensusLog;
use axum::Router;
use axum::extract::State as AppState;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mainstay_control::State;
use mainstay_control::stalls::STALL_MS;
use mainstay_control::state::{Resource, Service};
use mainstay_types::{NodeId, ResourceId, Role, ServicePhase};
use std::sync::Arc;

/// Age up to which the node's record of the cluster counts, in milliseconds.
const AGE_MAX_MS: u64 = 10_000;

/// An answer with its reason, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Yes(String),
    No(String),
    /// There is neither a service nor a resource of this name.
    Unknown(String),
}

impl IntoResponse for Verdict {
    fn into_response(self) -> Response {
        let (status, words) = match self {
            Self::Yes(words) => (StatusCode::OK, words),
            Self::No(words) => (StatusCode::SERVICE_UNAVAILABLE, words),
            Self::Unknown(words) => (StatusCode::NOT_FOUND, words),
        };
        let mut response = (status, format!("{words}\n")).into_response();
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

type App = AppState<Arc<Agent>>;

/// All routes, for the port without tokens. HAProxy asks by OPTIONS unless told otherwise.
pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route("/livez", get(live).options(live))
        .route("/readyz", get(ready).options(ready))
        .route("/primary/{name}", get(primary).options(primary))
        .route("/replica/{name}", get(replica).options(replica))
        .route("/health/{name}", get(health).options(health))
}

/// Whether the agent runs at all.
pub async fn live() -> Verdict {
    Verdict::Yes("the agent runs".to_owned())
}

/// Whether the node can do its work in the cluster.
pub async fn ready(AppState(agent): App) -> Verdict {
    let Ok(member) = agent.member() else { return no_member() };
    if member.is_joining() {
        return Verdict::No("this node is joining its cluster".to_owned());
    }
    let here = Here::of(&agent, &member);
    let state = member.log.view().state;
    let is_witness = state.nodes.get(&here.node).is_some_and(|node| node.witness);
    match here.lack(is_witness) {
        Some(lack) => Verdict::No(lack),
        None => Verdict::Yes(format!("{} is ready", state.node_name(here.node))),
    }
}

/// Whether the node is the primary of a resource, and a service, if it is asked for, runs there.
pub async fn primary(AppState(agent): App, Path(name): Path<String>) -> Verdict {
    judged(&agent, &name, is_primary)
}

/// Whether the node has a replica of a resource that is in sync and not the primary.
pub async fn replica(AppState(agent): App, Path(name): Path<String>) -> Verdict {
    judged(&agent, &name, is_replica)
}

/// Whether the node has the primary or a replica in sync.
pub async fn health(AppState(agent): App, Path(name): Path<String>) -> Verdict {
    judged(&agent, &name, |here, asked| match is_replica(here, asked) {
        Verdict::Yes(words) => Verdict::Yes(words),
        _ if asked.is_primary(here) => is_primary(here, asked),
        verdict => verdict,
    })
}

fn no_member() -> Verdict {
    Verdict::No("this node is not a member of a cluster".to_owned())
}

/// The node that is asked.
struct Here {
    node: NodeId,
    has_lease: bool,
    /// A majority has confirmed the record not long ago.
    is_current: bool,
    has_engine: bool,
    role: Option<Role>,
}

impl Here {
    fn of(agent: &Agent, member: &Member) -> Self {
        Self {
            node: member.identity.node,
            has_lease: agent.lease_left_ms() > 0,
            is_current: member.log.age_ms().is_some_and(|age_ms| age_ms <= AGE_MAX_MS),
            has_engine: agent.engine.is_connected() && agent.engine.silent_ms(boot_now()) < STALL_MS,
            role: None,
        }
    }

    /// Why the node cannot serve now. A witness needs neither engine nor lease.
    fn lack(&self, is_witness: bool) -> Option<String> {
        let words = if !self.is_current {
            "this node has no contact with a majority of the voters"
        } else if !is_witness && !self.has_engine {
            "the engine of this node does not answer"
        } else if !is_witness && !self.has_lease {
            "this node has no lease"
        } else {
            return None;
        };
        Some(words.to_owned())
    }
}

/// The resource that is asked for, with the service if its name was given.
struct Asked<'a> {
    state: &'a State,
    resource: &'a Resource,
    service: Option<(&'a str, &'a Service)>,
}

impl<'a> Asked<'a> {
    /// A service counts before a resource of the same name.
    fn find(state: &'a State, name: &str) -> Option<Self> {
        if let Some((name, service)) = state.services.get_key_value(name)
            && let Some(resource) = state.resource_of(service)
        {
            return Some(Self { state, resource, service: Some((name, service)) });
        }
        let resource = state.resource_by_name(name)?;
        Some(Self { state, resource, service: None })
    }

    fn is_primary(&self, here: &Here) -> bool {
        self.resource.record.primary == Some(here.node)
    }
}

fn judged(agent: &Agent, name: &str, judge: impl Fn(&Here, &Asked<'_>) -> Verdict) -> Verdict {
    let Ok(member) = agent.member() else { return no_member() };
    let state = member.log.view().state;
    let Some(asked) = Asked::find(&state, name) else {
        return Verdict::Unknown(format!("there is no service and no resource {name}"));
    };
    let here = Here { role: role_of(agent, asked.resource.id), ..Here::of(agent, &member) };
    judge(&here, &asked)
}

fn role_of(agent: &Agent, resource: ResourceId) -> Option<Role> {
    agent.engine.replicas(|replica| replica.role).remove(&resource)
}

fn is_primary(here: &Here, asked: &Asked<'_>) -> Verdict {
    let Asked { state, resource, service } = asked;
    let (own, name) = (state.node_name(here.node), &resource.name);
    match resource.record.primary {
        None => return Verdict::No(format!("{name} has no primary")),
        Some(other) if other != here.node => {
            return Verdict::No(format!("{} is the primary of {name}", state.node_name(other)));
        }
        Some(_) => {}
    }
    // The record may be old while the node has a lease: no other node is primary before that ends.
    if !here.has_lease {
        return Verdict::No(format!("{own} has no lease"));
    }
    if !here.has_engine || here.role != Some(Role::Primary) {
        return Verdict::No(format!("{own} is not ready as the primary of {name}"));
    }
    let Some((service, known)) = service else {
        return Verdict::Yes(format!("{own} is the primary of {name}"));
    };
    let on = known.nodes.get(&here.node).filter(|on| on.epoch == resource.record.epoch);
    match on.map_or(ServicePhase::Stopped, |on| on.phase) {
        ServicePhase::Running => Verdict::Yes(format!("service {service} runs on {own}")),
        phase => Verdict::No(format!("service {service} is {phase} on {own}")),
    }
}

fn is_replica(here: &Here, asked: &Asked<'_>) -> Verdict {
    let (own, name) = (asked.state.node_name(here.node), &asked.resource.name);
    if asked.is_primary(here) {
        return Verdict::No(format!("{own} is the primary of {name}"));
    }
    if let Some(lack) = here.lack(false) {
        return Verdict::No(lack);
    }
    let is_in_sync = asked.resource.record.iss_member(here.node).is_some();
    if is_in_sync && here.role == Some(Role::Secondary) {
        return Verdict::Yes(format!("{own} has a replica of {name} in sync"));
    }
    Verdict::No(format!("{own} has no replica of {name} in sync"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Here =
        Here { node: NodeId(1), has_lease: true, is_current: true, has_engine: true, role: None };

    #[test]
    fn a_node_is_ready_if_it_lacks_nothing_that_its_part_needs() {
        assert_eq!(HERE.lack(false), None);
        let alone = Here { is_current: false, ..HERE };
        assert!(alone.lack(true).is_some_and(|lack| lack.contains("majority")));
        let without_engine = Here { has_engine: false, has_lease: false, ..HERE };
        assert!(without_engine.lack(false).is_some_and(|lack| lack.contains("engine")));
        assert_eq!(without_engine.lack(true), None, "a witness has none");
        assert!(Here { has_lease: false, ..HERE }.lack(false).is_some_and(|lack| lack.contains("lease")));
    }
}
