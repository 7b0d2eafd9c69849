//! `GET /metrics` over TCP, for Prometheus, which reads no Unix sockets, and the questions of load
//! balancers ([`health`]). Nothing else is served there. `mainstay metrics` and the socket of the
//! API have the same answers, also while the port cannot be served.

use super::text::Format;
use super::{Names, scrape};
use crate::agent::Agent;
use crate::health;
use crate::http::Refused;
use crate::http::extract::Query;
use crate::ports::{self, Port};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mainstay_types::Code;
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;

/// Most connections at once. Load balancers open one for each look.
pub const CONNECTIONS_MAX: usize = 64;

/// Serves the page at this address for as long as the process lives.
pub async fn serve(agent: Arc<Agent>, address: SocketAddr) {
    let port = Port {
        serves: "metrics",
        option: "--metrics-listen",
        without: "`mainstay metrics` works without",
        code: Code::MetricsAddress,
        places: CONNECTIONS_MAX,
    };
    let routes = Router::new()
        .route("/metrics", get(answer))
        .merge(health::routes())
        .fallback(async || (StatusCode::NOT_FOUND, "There are only metrics and health here.\n"))
        .with_state(agent);
    ports::serve(port, address, routes).await;
}

/// Parameters of a scrape. A proxy may add others.
#[derive(Deserialize)]
pub struct Wanted {
    #[serde(default)]
    names: Names,
}

/// Also a route of the API.
pub async fn answer(
    State(agent): State<Arc<Agent>>,
    Query(Wanted { names }): Query<Wanted>,
    headers: HeaderMap,
) -> Response {
    let format = Format::wanted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    match scrape(agent, names, format).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text.to_string()).into_response(),
        Err(error) => Refused::from(error).into_response(),
    }
}
