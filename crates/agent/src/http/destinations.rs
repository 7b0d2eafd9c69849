//! `GET /v1/destinations`: nodes at which clients find services and resources. Also over TCP, for
//! routers on other machines. Nothing else is served there, and nothing can be changed.
//!
//! A request waits until the answer is another one than that of the revision it names. So a router
//! learns of a failover from every agent that learns of it, and asks no more than once in a while.

use super::extract::Query;
use super::{ApiResult, App, Refused, blocking};
use crate::agent::{Agent, READ_PATIENCE};
use crate::ports::{self, Port};
use crate::raft::ConsensusLog;
use crate::views;
use axum::Router;
use axum::extract::State as AppState;
use axum::routing::get;
use mainstay_api::rest::{DestinationsPage, EVENTS_WAIT_MS_MAX};
use mainstay_types::{Code, Problem};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub const PATH: &str = "/v1/destinations";
/// Most connections of routers at once. Each has one, nearly all the time.
const CONNECTIONS_MAX: usize = 128;

#[derive(Deserialize)]
pub struct DestinationsQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait_ms: u64,
}

pub async fn answer(
    AppState(agent): App,
    Query(query): Query<DestinationsQuery>,
) -> ApiResult<DestinationsPage> {
    let mut changed = agent.member()?.destinations_changed.clone();
    let wait = Duration::from_millis(query.wait_ms.min(EVENTS_WAIT_MS_MAX));
    let newer = changed.wait_for(|revision| *revision > query.after);
    // Without a change in time the answer is the same page, and says that it is still true.
    drop(tokio::time::timeout(wait, newer).await);
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        Ok(DestinationsPage {
            cluster: member.identity.cluster,
            revision: view.state.revision,
            as_of_ms: view.age_ms,
            destinations: views::destinations(&view.state),
        })
    })
    .await
}

/// Serves the destinations at this address for as long as the process lives.
pub async fn serve(agent: Arc<Agent>, address: SocketAddr) {
    let port = Port {
        serves: "destinations for routers",
        option: "--router-listen",
        without: "routers ask other agents meanwhile",
        code: Code::RouterAddress,
        places: CONNECTIONS_MAX,
    };
    let routes = Router::new()
        .route(PATH, get(answer))
        .fallback(async || {
            Refused(Problem::new(
                Code::NotFound,
                format!("there is only {PATH} here"),
                "Use the command line, or the agent's socket.",
            ))
        })
        .with_state(agent);
    ports::serve(port, address, routes).await;
}
