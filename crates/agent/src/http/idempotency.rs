//! Keys of changes, by which a change that is sent twice is made once
//! (draft-ietf-httpapi-idempotency-key-header).
//!
//! Guarantees, while this node keeps a key:
//! - the change of the key is made once, and each further request with the key gets its answer, or
//!   is refused;
//! - a key is of one caller and of one request: method, path, query, `If-Match` and body;
//! - a change with a key goes on when its sender goes away, so the answer is there when the sender
//!   comes again.
//!
//! A key is not kept if the answer says that nothing was done and that the same request may be made
//! later. Keys are in memory: another node, and this one after a restart of its agent, makes the
//! change again. Rights are judged before, for each request.

use super::{Refused, RequestId, audit, operations};
use crate::access::Caller;
use crate::agent::Agent;
use crate::https::bearer::Held;
use crate::threads::lock;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainstay_api::rest::{IDEMPOTENCY_HEADER, ProblemDocument, REPLAYED_HEADER};
use mainstay_trust::fingerprint_of;
use mainstay_types::{Access, Code, Fingerprint, Problem};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Time for which an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);
/// Keys of all callers and of one, and bytes of all answers.
const KEYS_MAX: usize = 512;
const KEYS_OF_ONE_MAX: usize = 128;
const BYTES_MAX: usize = 16 << 20;
const _: () = assert!(KEYS_OF_ONE_MAX * 2 <= KEYS_MAX);
/// Most characters of a key.
const KEY_LENGTH_MAX: usize = 255;

/// A key, and the caller who chose it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Name {
    /// User or token, with the public half of the token.
    caller: (String, Option<u64>),
    key: String,
}

/// An answer that can be given again.
#[derive(Clone, Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
        response
    }
}

/// State of a key.
#[derive(Debug)]
struct Entry {
    /// Hash of the request.
    request: Fingerprint,
    /// Rises from entry to entry.
    number: u64,
    /// The answer and its time; `None` while the change is under way.
    answer: Option<(Instant, Answer)>,
}

#[derive(Default, Debug)]
struct Known {
    entries: HashMap<Name, Entry>,
    last: u64,
}

/// The keys that this node keeps.
#[derive(Clone, Default, Debug)]
pub struct Keys(Arc<Mutex<Known>>);

/// Result of a look for a key.
#[derive(Debug)]
enum Met {
    /// The key is new.
    New(Open),
    Answered(Answer),
}

impl Keys {
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.0)
    }

    /// # Errors
    /// When the key is of another request, or its change is under way, or the caller has too many
    /// changes under way.
    fn meet(&self, name: Name, request: Fingerprint, now: Instant) -> Result<Met, Problem> {
        let mut known = self.known();
        known.forget_old(now);
        if let Some(entry) = known.entries.get(&name) {
            return match &entry.answer {
                _ if entry.request != request => Err(reused(&name.key)),
                None => Err(in_use(&name.key)),
                Some((_, answer)) => Ok(Met::Answered(answer.clone())),
            };
        }
        known.make_room(&name)?;
        known.last += 1;
        let number = known.last;
        known.entries.insert(name.clone(), Entry { request, number, answer: None });
        Ok(Met::New(Open { keys: self.clone(), name: Some(name) }))
    }
}

impl Known {
    fn forget_old(&mut self, now: Instant) {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= KEPT_FOR;
        self.entries.retain(|_, entry| !entry.answer.as_ref().is_some_and(|(at, _)| is_old(at)));
    }

    /// Forgets the oldest answers until there is room for one more key of this caller.
    fn make_room(&mut self, name: &Name) -> Result<(), Problem> {
        while self.entries.keys().filter(|known| known.caller == name.caller).count() >= KEYS_OF_ONE_MAX {
            self.forget_oldest(|known| known.caller == name.caller)?;
        }
        while self.entries.len() >= KEYS_MAX || self.bytes() > BYTES_MAX {
            self.forget_oldest(|_| true)?;
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.entries.values().filter_map(|entry| Some(entry.answer.as_ref()?.1.body.len())).sum()
    }

    fn forget_oldest(&mut self, of: impl Fn(&Name) -> bool) -> Result<(), Problem> {
        let answered = self.entries.iter().filter(|(name, entry)| of(name) && entry.answer.is_some());
        let oldest = answered.min_by_key(|(_, entry)| entry.number).map(|(name, _)| name.clone());
        let oldest = oldest.ok_or_else(|| {
            Problem::new(
                Code::ControlPlaneBusy,
                "nothing is changed: too many changes with an Idempotency-Key are under way",
                "Wait until some of them are answered, and send the request again.",
            )
        })?;
        self.entries.remove(&oldest);
        Ok(())
    }
}

/// A key whose change is under way. The key is forgotten with it unless there is an answer.
#[derive(Debug)]
struct Open {
    keys: Keys,
    name: Option<Name>,
}

impl Open {
    /// Keeps the answer.
    fn answered(mut self, answer: Answer, now: Instant) {
        let Some(name) = self.name.take() else { return };
        if let Some(entry) = self.keys.known().entries.get_mut(&name) {
            entry.answer = Some((now, answer));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.keys.known().entries.remove(&name);
        }
    }
}

fn reused(key: &str) -> Problem {
    Problem::new(
        Code::IdempotencyKeyReused,
        format!("nothing is changed: the Idempotency-Key `{key}` was sent with another request before"),
        "Send each change with a key of its own. Use a key again only to repeat the same request.",
    )
}

fn in_use(key: &str) -> Problem {
    Problem::new(
        Code::IdempotencyKeyInUse,
        format!("the change with the Idempotency-Key `{key}` is under way"),
        "Wait, and send the same request with the same key again: it gets the answer of the first one.",
    )
}

/// The key of a request: a string as RFC 8941 writes it, or the same without quotes.
fn key_in(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut all = headers.get_all(IDEMPOTENCY_HEADER).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    let key = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let is_good = |byte: u8| byte.is_ascii_graphic() && !b"\"\\,;".contains(&byte);
    if all.next().is_none() && (1..=KEY_LENGTH_MAX).contains(&key.len()) && key.bytes().all(is_good) {
        return Ok(Some(key.to_owned()));
    }
    let remedy = format!(
        "Send one key in quotes, for example a random UUID: 1 to {KEY_LENGTH_MAX} characters of ASCII, without spaces, quotes, backslashes, commas and semicolons."
    );
    Err(Problem::new(Code::BadRequest, "Idempotency-Key: this is not one key", remedy))
}

/// Hash of everything that makes a request this one.
fn hash_of(request: &axum::http::request::Parts, body: &Bytes) -> Fingerprint {
    let condition = request.headers.get(header::IF_MATCH).map_or(&b""[..], HeaderValue::as_bytes);
    let target = request.uri.path_and_query().map_or("", |target| target.as_str());
    let head = [request.method.as_str().as_bytes(), target.as_bytes(), condition];
    let mut text = Vec::with_capacity(body.len() + target.len() + condition.len() + 64);
    for part in head {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part);
    }
    text.extend_from_slice(body);
    fingerprint_of(&text)
}

/// Whether the same request may be made later, because nothing was done.
fn may_be_repeated(code: &Code) -> bool {
    matches!(code, Code::ControlPlaneBusy | Code::AuditUnwritten | Code::NoMajority)
}

/// Makes a change, once for each key.
pub(super) async fn once(
    agent: Arc<Agent>,
    (caller, access): (Caller, Access),
    request: Request,
    next: Next,
) -> Response {
    let key = match key_in(request.headers()) {
        Ok(None) => return operations::made(agent, (caller, access), request, next).await,
        Ok(Some(key)) => key,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let token = request.extensions().get::<Held>().map(Held::id);
    let number = request.extensions().get::<RequestId>().map(|id| id.in_words());
    let (parts, body) = request.into_parts();
    let body = match audit::whole(body).await {
        Ok(body) => body,
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let name = Name { caller: (caller.who.clone(), token), key };
    let open = match agent.keys.meet(name, hash_of(&parts, &body), Instant::now()) {
        Ok(Met::New(open)) => open,
        Ok(Met::Answered(answer)) => {
            tracing::info!(who = caller.who, path = parts.uri.path(), "a change is answered again");
            return answer.into_response();
        }
        Err(problem) => return Refused::from(problem).into_response(),
    };
    let request = Request::from_parts(parts, Body::from(body));
    let made = tokio::spawn(async move {
        let response = operations::made(agent, (caller, access), request, next).await;
        keep(open, response, number).await
    });
    made.await.unwrap_or_else(|error| {
        let remedy = "Look at the agent's log, and at the state before you repeat the request.";
        Refused::from(Problem::new(Code::AgentInternal, error.to_string(), remedy)).into_response()
    })
}

/// Keeps an answer, and returns it. A refusal keeps the number of this request.
async fn keep(open: Open, response: Response, number: Option<String>) -> Response {
    let problem = response.extensions().get::<Problem>().cloned();
    if problem.as_ref().is_some_and(|problem| may_be_repeated(&problem.code)) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let body = match &problem {
        Some(problem) => serde_json::to_vec(&ProblemDocument::new(problem, number)).ok().map(Bytes::from),
        None => to_bytes(body, BYTES_MAX).await.ok(),
    };
    let Some(body) = body else {
        let remedy = "Look at the state before you repeat the request.";
        return Refused::from(Problem::new(Code::AgentInternal, "the answer could not be made", remedy))
            .into_response();
    };
    let answer = Answer { status: parts.status, headers: parts.headers.clone(), body: body.clone() };
    open.answered(answer, Instant::now());
    Response::from_parts(parts, Body::from(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(who: &str, key: &str) -> Name {
        Name { caller: (who.into(), None), key: key.into() }
    }

    fn answer(text: &str) -> Answer {
        let (status, headers) = (StatusCode::OK, HeaderMap::new());
        Answer { status, headers, body: Bytes::from(text.to_owned()) }
    }

    fn request(text: &str) -> Fingerprint {
        fingerprint_of(text.as_bytes())
    }

    fn opened(keys: &Keys, name: Name, now: Instant) -> Open {
        match keys.meet(name, request("a"), now) {
            Ok(Met::New(open)) => open,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_key_is_of_one_caller_and_one_request_and_has_one_answer() {
        let (keys, now) = (Keys::default(), Instant::now());
        let open = opened(&keys, name("root", "k"), now);
        let meet = |who: &str, text: &str, now| keys.meet(name(who, "k"), request(text), now);
        assert_eq!(meet("root", "a", now).unwrap_err().code, Code::IdempotencyKeyInUse);
        assert_eq!(meet("root", "b", now).unwrap_err().code, Code::IdempotencyKeyReused);
        // The key of another caller is another one.
        drop(opened(&keys, name("bob", "k"), now));
        let mut by_token = name("root", "k");
        by_token.caller.1 = Some(7);
        drop(opened(&keys, by_token, now));
        open.answered(answer("made"), now);
        for later in [now, now + KEPT_FOR - Duration::from_secs(1)] {
            let Ok(Met::Answered(again)) = meet("root", "a", later) else { panic!("no answer") };
            assert_eq!(again.body, "made");
            assert_eq!(again.into_response().headers()[REPLAYED_HEADER], "true");
            assert_eq!(meet("root", "b", later).unwrap_err().code, Code::IdempotencyKeyReused);
        }
        assert!(matches!(meet("root", "b", now + KEPT_FOR), Ok(Met::New(_))));
    }

    #[test]
    fn a_change_without_an_answer_leaves_its_key_free() {
        let (keys, now) = (Keys::default(), Instant::now());
        drop(opened(&keys, name("root", "k"), now));
        drop(opened(&keys, name("root", "k"), now));
        assert!(keys.known().entries.is_empty());
        let codes = Code::ALL.iter().filter(|code| may_be_repeated(code)).map(Code::as_str);
        assert_eq!(codes.collect::<Vec<_>>(), ["audit-unwritten", "control-plane-busy", "no-majority"]);
    }

    #[test]
    fn keys_are_bounded_and_one_caller_takes_none_of_another() {
        let (keys, now) = (Keys::default(), Instant::now());
        opened(&keys, name("bob", "first"), now).answered(answer("bob's"), now);
        for number in 0..KEYS_OF_ONE_MAX * 2 {
            opened(&keys, name("root", &number.to_string()), now).answered(answer("made"), now);
        }
        let of_root =
            |keys: &Keys| keys.known().entries.keys().filter(|name| name.caller.0 == "root").count();
        assert_eq!(of_root(&keys), KEYS_OF_ONE_MAX);
        assert!(matches!(keys.meet(name("bob", "first"), request("a"), now), Ok(Met::Answered(_))));
        let newest = (KEYS_OF_ONE_MAX * 2 - 1).to_string();
        assert!(matches!(keys.meet(name("root", &newest), request("a"), now), Ok(Met::Answered(_))));
        // Those under way are not forgotten.
        let open: Vec<Open> =
            (0..KEYS_OF_ONE_MAX).map(|number| opened(&keys, name("eve", &number.to_string()), now)).collect();
        let refused = keys.meet(name("eve", "more"), request("a"), now).unwrap_err();
        assert_eq!(refused.code, Code::ControlPlaneBusy);
        drop(open);
        for number in 0..KEYS_MAX * 2 {
            opened(&keys, name(&format!("user{number}"), "k"), now).answered(answer("made"), now);
        }
        assert_eq!(keys.known().entries.len(), KEYS_MAX);
        let large = answer(&"x".repeat(BYTES_MAX / 4));
        for number in 0..8 {
            opened(&keys, name("large", &number.to_string()), now).answered(large.clone(), now);
        }
        assert!(keys.known().bytes() <= BYTES_MAX + BYTES_MAX / 4);
    }

    #[test]
    fn a_key_is_written_in_quotes_or_without() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_HEADER, value.parse().unwrap());
            }
            key_in(&headers)
        };
        assert_eq!(read(&[]), Ok(None));
        let key = "8e03978e-40d5-43e8-bc93-6894a57f9324";
        for text in [key.to_owned(), format!("\"{key}\""), format!(" \"{key}\" ")] {
            assert_eq!(read(&[&text]), Ok(Some(key.to_owned())), "{text}");
        }
        let long = "x".repeat(KEY_LENGTH_MAX + 1);
        for wrong in ["", "\"\"", "\"a\"; b=1", "\"a", "a b", "\"a\", \"b\"", &long] {
            assert_eq!(read(&[wrong]).unwrap_err().code, Code::BadRequest, "{wrong}");
        }
        assert_eq!(read(&["a", "b"]).unwrap_err().code, Code::BadRequest);
    }

    #[test]
    fn each_part_of_a_request_makes_another_one() {
        let hash = |method: &str, target: &str, tag: Option<&str>, body: &'static str| {
            let mut request = axum::http::Request::builder().method(method).uri(target);
            if let Some(tag) = tag {
                request = request.header(header::IF_MATCH, tag);
            }
            hash_of(&request.body(()).unwrap().into_parts().0, &Bytes::from_static(body.as_bytes()))
        };
        let one = hash("PUT", "/v1/services", None, "{}");
        assert_eq!(one, hash("PUT", "/v1/services", None, "{}"));
        for other in [
            hash("POST", "/v1/services", None, "{}"),
            hash("PUT", "/v1/services?force=true", None, "{}"),
            hash("PUT", "/v1/services", Some("\"1\""), "{}"),
            hash("PUT", "/v1/services", None, "{ }"),
            hash("PUT", "/v1/services{", None, "}"),
        ] {
            assert_ne!(one, other);
        }
    }
}
