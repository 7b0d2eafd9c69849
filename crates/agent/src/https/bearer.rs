//! The token of a request, and the caller behind it.
//!
//! Guarantees
//! - A request has a caller only if its token is in the record, by hash, and is good by the clock
//!   of this node. Every other request is refused before its body is read.
//! - The record is no older than what a majority had when the request came, so a token that was
//!   revoked is refused at once on every node. A node without contact to a majority goes on with
//!   what it knew for [`RECORD_AGE_MAX_MS`], and then judges no token any more.
//! - The text of a token is written nowhere.

use super::{Remote, Server};
use crate::access::Caller;
use crate::agent::{Agent, READ_PATIENCE};
use crate::clock::wall_ms;
use crate::http::Refused;
use crate::raft::ConsensusLog;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainstay_control::api_tokens::{ApiToken, Shut};
use mainstay_control::state::Command;
use mainstay_trust::ApiToken as SentToken;
use mainstay_types::{Access, Code, Fingerprint, Problem};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for which a node without contact to a majority goes on to judge tokens.
const RECORD_AGE_MAX_MS: u64 = 5 * 60 * 1000;
/// Largest body of a request, in bytes, and the time for it.
const BODY_BYTES_MAX: usize = 2 << 20;
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Answer to a request without a token, and to one with a wrong one (RFC 6750, 3).
const CHALLENGE: &str = "Bearer realm=\"mainstay\"";
const CHALLENGE_WRONG: &str = "Bearer realm=\"mainstay\", error=\"invalid_token\"";
const REMEDY: &str = "Send `Authorization: Bearer TOKEN`. On a node, root makes a token with `mainstay token create NAME --scope read`.";

/// A token that was good when the request came, without its secret.
#[derive(Clone, Debug)]
pub struct Held {
    id: u64,
    hash: Fingerprint,
    until_ms: u64,
}

impl Held {
    /// Public half of the token.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the token still gives this right, as far as this node knows without asking others.
    #[must_use]
    pub fn may(&self, agent: &Agent, access: Access) -> bool {
        let Ok(member) = agent.member() else { return false };
        let state = member.log.view().state;
        let known = state.api_token(self.id).filter(|(_, known)| known.hash == self.hash);
        let is_good = |known: &ApiToken| known.is_shut(wall_ms()).is_none() && known.access >= access;
        known.is_some_and(|(_, known)| is_good(known)) && is_fresh(member.log.age_ms())
    }

    /// Time until the end of the token.
    #[must_use]
    pub fn ends_in(&self) -> Duration {
        Duration::from_millis(self.until_ms.saturating_sub(wall_ms()))
    }
}

/// Why a request has no caller.
#[derive(Debug)]
enum Denied {
    /// The request has no token.
    NoToken,
    Wrong(String),
    /// This node cannot judge.
    CannotJudge(String),
}

/// Finds the caller of each request that comes over TLS, and refuses all others.
pub(super) async fn authenticate(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(remote) = request.extensions().get::<Remote>().cloned() else {
        let message = "a request has come by a way on which no address is known";
        return internal(message.to_owned());
    };
    let from = remote.from;
    if let Some(wait) = server.attempts.refused_for(from, Instant::now()) {
        return too_many(
            from,
            wait,
            "requests without a good token",
            "Find the program there that sends the wrong token.",
        );
    }
    let caller = match token_in(request.headers()) {
        Err(denied) => Err(denied),
        Ok(token) => {
            let agent = server.agent.clone();
            let found = tokio::task::spawn_blocking(move || caller_by(&agent, &token, from)).await;
            match found {
                Ok(found) => found,
                Err(error) => return internal(error.to_string()),
            }
        }
    };
    let (caller, held) = match caller {
        Ok(found) => found,
        Err(Denied::CannotJudge(message)) => {
            let remedy = "Ask another node. On this node, root may use the socket.";
            return closing(
                Refused::from(Problem::new(Code::ApiUnavailable, message, remedy)).into_response(),
            );
        }
        Err(denied) => {
            server.attempts.failed(from, Instant::now());
            return unauthenticated(from, denied);
        }
    };
    let _answering = remote.place.proven();
    // The token has done its part, and no later code is to see it.
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(held);
    match with_body(request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => closing(Refused::from(problem).into_response()),
    }
}

/// The request with all of its body.
async fn with_body(request: Request) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    let refuse =
        |why: String| Problem::new(Code::BadRequest, why, "Send the whole request, and a smaller one.");
    match tokio::time::timeout(BODY_WITHIN, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => Ok(Request::from_parts(parts, Body::from(body))),
        Ok(Err(_)) => {
            Err(refuse(format!("the request ended early, or has more than {BODY_BYTES_MAX} bytes")))
        }
        Err(_) => Err(refuse(format!("the request has not come within {} s", BODY_WITHIN.as_secs()))),
    }
}

/// The token of a request. There is one header, and no other way to send one.
fn token_in(headers: &HeaderMap) -> Result<SentToken, Denied> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let value = all.next().ok_or(Denied::NoToken)?;
    if all.next().is_some() {
        return Err(Denied::Wrong("the request has more than one token".to_owned()));
    }
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(Denied::NoToken)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Denied::NoToken);
    }
    SentToken::read(token).map_err(|error| Denied::Wrong(error.to_string()))
}

/// The caller whose token this is.
fn caller_by(agent: &Agent, token: &SentToken, from: IpAddr) -> Result<(Caller, Held), Denied> {
    let cannot = |why: &str| Denied::CannotJudge(format!("this node cannot judge tokens now: {why}"));
    let member = agent.member().map_err(|problem| cannot(&problem.message))?;
    let view = member.log.confirmed_view(READ_PATIENCE);
    if view.state.cluster.is_none() || member.waits_for_state().is_some() {
        return Err(cannot("it has not received the record of the cluster"));
    }
    if !is_fresh(view.age_ms) {
        return Err(cannot("it has had no contact with a majority of the voters for too long"));
    }
    // A hash of a secret tells nothing by the time that its comparison takes.
    let known = view.state.api_token(token.id()).filter(|(_, known)| known.hash == token.hash());
    let Some((name, known)) = known else {
        return Err(Denied::Wrong(
            "the cluster does not know this token; it may have been revoked".to_owned(),
        ));
    };
    let now_ms = wall_ms();
    match known.is_shut(now_ms) {
        Some(Shut::Ended) => return Err(Denied::Wrong(format!("the token {name} has ended"))),
        Some(Shut::ClockBehind) => {
            return Err(cannot("its clock is behind the time at which the token was made"));
        }
        None => {}
    }
    if known.notes_use(now_ms) && agent.uses.is_news(token.id(), Instant::now()) {
        member.log.submit(Command::ApiTokenUsed { id: token.id() });
    }
    let who = format!("token {name}");
    let held = Held { id: known.id, hash: known.hash, until_ms: known.until_ms };
    Ok((Caller { who, login: None, from: Some(from.to_string()), access: Some(known.access) }, held))
}

/// Whether a record of this age says enough about tokens. One of an unknown age does not.
fn is_fresh(age_ms: Option<u64>) -> bool {
    age_ms.is_some_and(|age_ms| age_ms <= RECORD_AGE_MAX_MS)
}

/// Uses of tokens that this agent has told of.
#[derive(Debug, Default)]
pub struct Uses(Mutex<BTreeMap<u64, Instant>>);

impl Uses {
    /// Whether this use is to be told. If the record does not get it, another use is told soon.
    fn is_news(&self, id: u64, now: Instant) -> bool {
        const AGAIN: Duration = Duration::from_secs(60);
        let mut told = crate::threads::lock(&self.0);
        told.retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
        let is_news = !told.contains_key(&id);
        told.entry(id).or_insert(now);
        is_news
    }
}

fn internal(message: String) -> Response {
    let problem = Problem::new(Code::AgentInternal, message, "Report this with the agent's log.");
    Refused::from(problem).into_response()
}

/// The connection ends with this answer: the body of the request is not read.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Refuses a source for a while. `what`: requests of which too many came.
pub(super) fn too_many(from: IpAddr, wait: Duration, what: &str, then: &str) -> Response {
    let seconds = wait.as_secs() + 1;
    let message = format!("too many {what} came from {from}");
    let remedy = format!("Wait {seconds} s. {then}");
    let problem = Problem::new(Code::TooManyAttempts, message, remedy);
    let mut response = Refused::from(problem).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    closing(response)
}

fn unauthenticated(from: IpAddr, denied: Denied) -> Response {
    let (message, challenge) = match denied {
        Denied::NoToken => ("the request has no token".to_owned(), CHALLENGE),
        Denied::Wrong(why) | Denied::CannotJudge(why) => (why, CHALLENGE_WRONG),
    };
    tracing::warn!(%from, why = message, "a request over TLS is refused");
    let mut response = Refused::from(Problem::new(Code::Unauthenticated, message, REMEDY)).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    closing(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<u64, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        match token_in(&headers) {
            Ok(token) => Ok(token.id()),
            Err(Denied::NoToken) => Err("none".into()),
            Err(Denied::Wrong(why) | Denied::CannotJudge(why)) => Err(why),
        }
    }

    #[test]
    fn a_token_comes_in_one_header_and_in_one_form() {
        let token = SentToken::make().unwrap();
        let text = token.text();
        for good in [format!("Bearer {}", *text), format!("bearer {}", *text), format!("BEARER  {}", *text)] {
            assert_eq!(read(&[&good]), Ok(token.id()), "{good}");
        }
        for none in ["", "Bearer", &text, "Basic cm9vdDo=", &format!("Token {}", *text)] {
            assert_eq!(read(&[none]), Err("none".into()), "{none}");
        }
        assert_eq!(read(&[]), Err("none".into()));
        let good = format!("Bearer {}", *text);
        assert!(read(&[&good, &good]).unwrap_err().contains("more than one"));
        assert!(read(&[&good[..good.len() - 1]]).unwrap_err().contains("checksum"));
        assert!(read(&["Bearer secret"]).unwrap_err().contains("begins with mst_api_"));
    }

    #[test]
    fn a_record_of_an_unknown_age_and_an_old_one_say_nothing_of_tokens() {
        assert!(is_fresh(Some(0)) && is_fresh(Some(RECORD_AGE_MAX_MS)));
        assert!(!is_fresh(Some(RECORD_AGE_MAX_MS + 1)) && !is_fresh(None));
    }

    #[test]
    fn the_use_of_a_token_is_told_once_a_minute() {
        let (uses, now) = (Uses::default(), Instant::now());
        assert!(uses.is_news(1, now) && !uses.is_news(1, now) && uses.is_news(2, now));
        let later = now + Duration::from_secs(61);
        assert!(uses.is_news(1, later) && crate::threads::lock(&uses.0).len() == 1);
    }
}
