//! The router's own state over HTTP: `/health` and `/primary` with status codes that load balancers
//! understand, and `/metrics` for Prometheus. Nothing can be changed there.

use crate::router::{Input, words};
use crate::switch::{Door, Refusal, RouteView, Why};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::ErrorKind;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// Counts of one route since the router was started.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    pub sessions: u64,
    pub refused: BTreeMap<Refusal, u64>,
    /// Sessions whose destination could not be reached.
    pub failures: u64,
    pub resets: BTreeMap<Why, u64>,
    pub from_clients: u64,
    pub from_servers: u64,
    /// The last failure, until a session is connected.
    pub trouble: Option<ErrorKind>,
}

/// How an agent is reached.
#[derive(Clone, Debug)]
pub struct AgentState {
    pub address: String,
    pub answers: bool,
    /// Why it does not.
    pub trouble: Option<String>,
}

/// State of the router at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whether new sessions may rest on the news.
    pub current: bool,
    pub ending: bool,
    pub age_ms: Option<u64>,
    pub routes: Vec<(RouteView, Counts)>,
    pub agents: Vec<AgentState>,
}

impl Snapshot {
    /// Why the router is of no use, if it is not.
    fn illness(&self) -> Option<&'static str> {
        match (self.ending, self.current, self.age_ms) {
            (true, _, _) => Some("the router ends\n"),
            (_, false, None) => Some("no agent has answered yet\n"),
            (_, false, Some(_)) => Some("no agent answers: new sessions are refused\n"),
            (_, true, _) => None,
        }
    }

    /// Whether the primaries of all routes, or of those with this name, can be reached, and a line
    /// for each of them. Nothing if there is no such route.
    fn primaries(&self, name: Option<&str>) -> Option<(bool, String)> {
        let of_name = |route: &&RouteView| name.is_none_or(|name| words(&route.followed).1 == name);
        let routes = self.routes.iter().map(|(route, _)| route).filter(|route| route.door == Door::Primary);
        let routes: Vec<&RouteView> = routes.filter(of_name).collect();
        let mut text = String::new();
        for route in &routes {
            let name = words(&route.followed).1;
            let _ = match route.places.first().filter(|_| route.listening) {
                Some(place) => writeln!(
                    text,
                    "{name}: {} in epoch {}, {} sessions",
                    place.node, place.epoch, route.sessions
                ),
                None => writeln!(text, "{name}: no destination, {} sessions", route.sessions),
            };
        }
        (!routes.is_empty()).then(|| (routes.iter().all(|route| route.listening), text))
    }

    /// The page for Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut page = Page::default();
        let up = |truth: bool| if truth { 1.0 } else { 0.0 };
        page.family("news_current", "gauge", "1 while new sessions may rest on what agents have told.");
        page.sample("", up(self.current));
        if let Some(age_ms) = self.age_ms {
            page.family("news_age_seconds", "gauge", "Time since the news are known to have been true.");
            page.sample("", age_ms as f64 / 1000.0);
        }
        page.family("agent_up", "gauge", "1 while this agent answers.");
        for agent in &self.agents {
            page.sample(&format!("agent=\"{}\"", agent.address), up(agent.answers));
        }
        page.of_routes(self, "listening", "gauge", "1 while clients can connect.", |(route, _)| {
            up(route.listening)
        });
        page.of_routes(self, "sessions", "gauge", "Sessions that there are.", |(route, _)| {
            f64::from(route.sessions)
        });
        page.of_routes(self, "sessions_total", "counter", "Sessions that began.", |(_, counts)| {
            counts.sessions as f64
        });
        let failures = "Sessions whose destination could not be reached.";
        page.of_routes(self, "connect_failures_total", "counter", failures, |(_, counts)| {
            counts.failures as f64
        });
        page.family("bytes_total", "counter", "Bytes that were read from one side, for the other.");
        for (route, counts) in &self.routes {
            for (from, bytes) in [("client", counts.from_clients), ("server", counts.from_servers)] {
                page.sample(&format!("{},from=\"{from}\"", labels(route)), bytes as f64);
            }
        }
        page.family("refused_total", "counter", "Clients that were refused.");
        for (route, counts) in &self.routes {
            for (refusal, count) in &counts.refused {
                let reason = match refusal {
                    Refusal::Full => "max-sessions",
                    Refusal::NoDestination => "no-destination",
                };
                page.sample(&format!("{},reason=\"{reason}\"", labels(route)), *count as f64);
            }
        }
        page.family("resets_total", "counter", "Sessions that the router has reset.");
        for (route, counts) in &self.routes {
            for (why, count) in &counts.resets {
                let reason = match why {
                    Why::Moved => "moved",
                    Why::Gone => "gone",
                    Why::Idle => "idle",
                    Why::DrainOver => "drain-over",
                    Why::Ending => "ending",
                };
                page.sample(&format!("{},reason=\"{reason}\"", labels(route)), *count as f64);
            }
        }
        page.text
    }
}

/// Names come from the settings, which allow no character that would need an escape.
fn labels(route: &RouteView) -> String {
    let (noun, name) = words(&route.followed);
    let door = match route.door {
        Door::Primary => "primary",
        Door::Readers => "readers",
    };
    format!("{noun}=\"{name}\",door=\"{door}\"")
}

#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        // Writing to a string cannot fail.
        let _ =
            write!(self.text, "# HELP mainstay_router_{name} {help}\n# TYPE mainstay_router_{name} {kind}\n");
    }

    fn sample(&mut self, labels: &str, value: f64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "mainstay_router_{}{labels} {value}", self.name);
    }

    fn of_routes(
        &mut self,
        snapshot: &Snapshot,
        name: &'static str,
        kind: &str,
        help: &str,
        value: impl Fn(&(RouteView, Counts)) -> f64,
    ) {
        self.family(name, kind, help);
        for both in &snapshot.routes {
            self.sample(&labels(&both.0), value(both));
        }
    }
}

type Asks = State<UnboundedSender<Input>>;

/// Serves the routes for as long as the process lives.
pub async fn serve(listener: TcpListener, inputs: UnboundedSender<Input>) {
    let routes = Router::new()
        .route("/health", get(health))
        .route("/primary", get(primary))
        .route("/primary/{name}", get(primary_of))
        .route("/metrics", get(metrics))
        .fallback(async || (StatusCode::NOT_FOUND, "There are /health, /primary and /metrics here.\n"))
        .with_state(inputs);
    if let Err(error) = axum::serve(listener, routes).await {
        tracing::error!(%error, "the router's status is no longer served");
    }
}

/// Answers with what is made of the router's state.
async fn answer(inputs: &UnboundedSender<Input>, of: impl FnOnce(Snapshot) -> Response) -> Response {
    let (reply, snapshot) = oneshot::channel();
    drop(inputs.send(Input::Ask(reply)));
    match snapshot.await {
        Ok(snapshot) => of(snapshot),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the router ends\n").into_response(),
    }
}

async fn health(State(inputs): Asks) -> Response {
    let of = |snapshot: Snapshot| match snapshot.illness() {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    };
    answer(&inputs, of).await
}

async fn primary(State(inputs): Asks) -> Response {
    answer(&inputs, |snapshot| of_primaries(snapshot.primaries(None))).await
}

async fn primary_of(State(inputs): Asks, Path(name): Path<String>) -> Response {
    answer(&inputs, |snapshot| of_primaries(snapshot.primaries(Some(&name)))).await
}

fn of_primaries(found: Option<(bool, String)>) -> Response {
    match found {
        Some((true, text)) => text.into_response(),
        Some((false, text)) => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no route of this name\n").into_response(),
    }
}

async fn metrics(State(inputs): Asks) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    answer(&inputs, |snapshot| (kind, snapshot.metrics()).into_response()).await
}
