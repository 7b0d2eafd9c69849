//! `GET /v1/stream`: the events of the cluster and the changes of its state as they happen, in the
//! form of server-sent events (WHATWG HTML, 9.2).
//!
//! Guarantees
//! - A reader gets each event once, in order, with its index as id. One that names the last event
//!   it has seen gets all later ones. If the cluster no longer keeps them, the reader gets one
//!   `resync` instead.
//! - A change is told after it can be read, and at most once in [`CHANGE_PAUSE`].
//! - A stream holds no thread, and no events that its reader has not taken: it reads them from the
//!   record. It ends when its reader takes nothing for [`TAKEN_WITHIN`] (R18).
//! - There are at most [`STREAMS_MAX`] streams, and [`STREAMS_OF_CALLER_MAX`] of one caller.
//! - A stream ends when its caller loses the right to read (R24).

use super::extract::Query;
use super::{App, Refused};
use crate::access::{Caller, Peer};
use crate::agent::{Agent, READ_PATIENCE};
use crate::https::Remote;
use crate::https::bearer::Held;
use crate::member::Member;
use crate::picture::Pictures;
use crate::raft::ConsensusLog;
use crate::threads::lock;
use crate::views;
use axum::Extension;
use axum::extract::{ConnectInfo, State as AppState};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use mainstay_api::rest::{StreamChange, StreamResync};
use mainstay_control::State;
use mainstay_types::{Access, Code, Problem};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

pub const PATH: &str = "/v1/stream";
/// Streams at once, in all and of one user or token.
const STREAMS_MAX: usize = 64;
const STREAMS_OF_CALLER_MAX: usize = 16;
/// Seconds after which a refused reader may ask again.
const RETRY_AFTER_S: u64 = 10;
/// Time after which a reader that has lost its connection asks again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Shortest time between two changes that are told.
const CHANGE_PAUSE: Duration = Duration::from_millis(300);
/// Silence after which a comment says that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time after which a stream ends whose reader takes nothing.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);
/// Events that are read from the record at once.
const EVENTS_AT_ONCE: usize = 64;
/// How often a stream looks whether its caller still has its right, while nothing happens.
const CHECK_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
pub struct StreamQuery {
    after: Option<u64>,
}

/// Streams that are open, by caller.
#[derive(Default)]
pub struct Streams(Mutex<BTreeMap<String, usize>>);

/// The place of one stream, until it is dropped.
struct Place {
    agent: Arc<Agent>,
    who: String,
}

impl Streams {
    fn take(&self, who: &str) -> Result<(), Problem> {
        let mut open = lock(&self.0);
        let of_caller = open.get(who).copied().unwrap_or_default();
        let message = if open.values().sum::<usize>() >= STREAMS_MAX {
            format!("{STREAMS_MAX} readers have a stream of events from this node already")
        } else if of_caller >= STREAMS_OF_CALLER_MAX {
            format!("{who} has {STREAMS_OF_CALLER_MAX} streams of events from this node already")
        } else {
            open.insert(who.to_owned(), of_caller + 1);
            return Ok(());
        };
        let remedy =
            "Close consoles and programs that are not needed, or ask another node: all have the same events.";
        Err(Problem::new(Code::TooManyStreams, message, remedy))
    }

    fn give_back(&self, who: &str) {
        let mut open = lock(&self.0);
        if let Some(of_caller) = open.get_mut(who) {
            *of_caller -= 1;
        }
        open.retain(|_, of_caller| *of_caller > 0);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.agent.streams.give_back(&self.who);
    }
}

/// The proof by which a caller may read, which is judged again while the stream runs.
enum Standing {
    User(Peer),
    Token(Held),
}

impl Standing {
    async fn is_good(&self, agent: &Arc<Agent>) -> bool {
        match self {
            Self::User(peer) if peer.is_root() => true,
            Self::User(peer) => {
                let (asked, peer) = (agent.clone(), *peer);
                // The answer is remembered for a while, so that nearly all of these take no time.
                let caller = tokio::task::spawn_blocking(move || asked.callers.caller(&peer)).await;
                caller.is_ok_and(|caller| caller.access.is_some_and(|access| access >= Access::Read))
            }
            Self::Token(held) => held.may(agent, Access::Read),
        }
    }
}

pub(super) async fn answer(
    AppState(agent): App,
    Query(StreamQuery { after }): Query<StreamQuery>,
    Extension(caller): Extension<Caller>,
    peer: Option<Extension<ConnectInfo<Peer>>>,
    held: Option<Extension<Held>>,
    remote: Option<Extension<Remote>>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let after = match last_seen(&headers)? {
        None => after,
        seen => seen,
    };
    let standing = match (held, peer) {
        (Some(Extension(held)), _) => Standing::Token(held),
        (None, Some(Extension(ConnectInfo(peer)))) => Standing::User(peer),
        (None, None) => {
            let message = "a request has come by a way on which nobody looks who asks";
            return Err(
                Problem::new(Code::AgentInternal, message, "Report this with the agent's log.").into()
            );
        }
    };
    let member = agent.member()?;
    if let Err(problem) = agent.streams.take(&caller.who) {
        let mut response = Refused::from(problem).into_response();
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        return Ok(response);
    }
    let place = Place { agent: agent.clone(), who: caller.who };
    // A reader of another node may have seen what this one has not received yet.
    let log = member.log.clone();
    let confirmed = tokio::task::spawn_blocking(move || log.confirmed_view(READ_PATIENCE)).await;
    let newest = confirmed.map_or(0, |view| view.state.last_event);
    let (sender, receiver) = mpsc::channel(1);
    let reader = Reader { sender, remote: remote.map(|Extension(remote)| remote) };
    let writer = Writer { member, place, standing, reader, after: after.unwrap_or(newest) };
    tokio::spawn(writer.run());
    Ok(response(receiver))
}

/// The index that a reader has seen last, as it says when it comes again.
fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let index = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let refuse = || {
        let message = "the header Last-Event-ID is no index of an event";
        Problem::new(
            Code::BadRequest,
            message,
            "Send the id that came last on the stream, or no such header.",
        )
    };
    index.map(Some).ok_or_else(refuse)
}

fn response(receiver: mpsc::Receiver<Event>) -> Response {
    let messages = stream::unfold(receiver, async |mut receiver| {
        let message = receiver.recv().await?;
        Some((Ok::<_, Infallible>(message), receiver))
    });
    let mut response = Sse::new(messages).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy that gathers answers would hold messages back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The end of a stream at which messages are put in.
struct Reader {
    sender: mpsc::Sender<Event>,
    /// `None` on the socket.
    remote: Option<Remote>,
}

impl Reader {
    /// Whether the reader has taken the messages before this one in time.
    async fn put(&self, message: Event) -> bool {
        let is_put = matches!(timeout(TAKEN_WITHIN, self.sender.send(message)).await, Ok(Ok(())));
        if let (true, Some(remote)) = (is_put, &self.remote) {
            remote.is_used();
        }
        is_put
    }
}

struct Writer {
    member: Arc<Member>,
    place: Place,
    standing: Standing,
    reader: Reader,
    /// Index of the last event that was put in.
    after: u64,
}

impl Writer {
    /// Puts messages in, as long as the reader takes them and may have them.
    async fn run(mut self) {
        // Before the first look, so that nothing is missed between the two.
        let mut revision = self.member.revision.clone();
        let mut picture = Pictures::subscribe(&self.place.agent);
        if !self.reader.put(Event::default().retry(RECONNECT_AFTER)).await {
            return;
        }
        let (mut is_changed, mut changed_at) = (true, None::<Instant>);
        let mut put_at = Instant::now();
        while self.standing.is_good(&self.place.agent).await {
            revision.mark_unchanged();
            picture.mark_unchanged();
            let state = self.member.log.view().state;
            let (news, after) = news(&state, self.after);
            let has_more = after < state.last_event;
            let mut messages = news;
            let pause = changed_at.map_or(Duration::ZERO, |at| CHANGE_PAUSE.saturating_sub(at.elapsed()));
            if is_changed && pause.is_zero() {
                messages.extend(message("change", None, &StreamChange { revision: state.revision }));
                (is_changed, changed_at) = (false, Some(Instant::now()));
            }
            drop(state);
            if messages.is_empty() && put_at.elapsed() >= KEEP_ALIVE {
                messages.push(Event::default().comment(""));
            }
            self.after = after;
            for message in messages {
                if !self.reader.put(message).await {
                    return;
                }
                put_at = Instant::now();
            }
            if has_more {
                continue;
            }
            let pause = changed_at.map_or(Duration::ZERO, |at| CHANGE_PAUSE.saturating_sub(at.elapsed()));
            let wait = if is_changed { pause } else { KEEP_ALIVE.saturating_sub(put_at.elapsed()) };
            let is_over = tokio::select! {
                () = self.reader.sender.closed() => true,
                changed = revision.changed() => { is_changed = true; changed.is_err() }
                changed = picture.changed() => { is_changed = true; changed.is_err() }
                () = sleep(wait.min(self.check_within())) => false,
            };
            if is_over {
                return;
            }
        }
    }

    /// Time after which the standing of the caller is to be looked at again.
    fn check_within(&self) -> Duration {
        match &self.standing {
            Standing::User(_) => CHECK_EVERY,
            Standing::Token(held) => CHECK_EVERY.min(held.ends_in()),
        }
    }
}

/// Messages on the next events after an index, and the index up to which they tell.
fn news(state: &State, after: u64) -> (Vec<Event>, u64) {
    let page = views::events_of(state, after, EVENTS_AT_ONCE);
    if page.gap || after > page.last {
        let resync = StreamResync { last: page.last, revision: state.revision };
        return (message("resync", Some(page.last), &resync).into_iter().collect(), page.last);
    }
    let told = page.events.last().map_or(after, |event| event.index);
    (page.events.iter().filter_map(|event| message("event", Some(event.index), event)).collect(), told)
}

/// `None` if the data cannot be written as JSON, which does not happen.
fn message(kind: &str, id: Option<u64>, data: &impl Serialize) -> Option<Event> {
    let event = Event::default().event(kind).json_data(data).ok()?;
    Some(match id {
        Some(id) => event.id(id.to_string()),
        None => event,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_control::state::EventRecord;
    use mainstay_types::Severity;

    fn kept(indices: std::ops::RangeInclusive<u64>) -> State {
        let mut state = State { last_event: *indices.end(), revision: 40, ..State::default() };
        state.events.extend(indices.map(|index| EventRecord {
            index,
            at_ms: 1,
            severity: Severity::Info,
            subject: "node n1".into(),
            text: format!("line {index}"),
            fact: None,
            on: None,
        }));
        state
    }

    #[test]
    fn a_reader_gets_what_it_lacks_a_part_at_a_time_or_learns_that_it_is_gone() {
        let state = kept(101..=300);
        let (messages, mut after) = news(&state, 299);
        assert_eq!((messages.len(), after), (1, 300));
        (_, after) = news(&state, 300);
        assert_eq!(after, 300, "nothing is new");
        let mut parts = Vec::new();
        after = 100;
        while after < 300 {
            let (messages, told) = news(&state, after);
            parts.push(messages.len());
            after = told;
        }
        assert_eq!(parts, [64, 64, 64, 8]);
        for lost in [99, 0, 301] {
            let (messages, told) = news(&state, lost);
            assert_eq!((messages.len(), told), (1, 300), "one resync for a reader at {lost}");
        }
    }

    #[test]
    fn streams_of_one_caller_leave_places_for_others() {
        let streams = Streams::default();
        let taken = |who: &str| (0..100).filter(|_| streams.take(who).is_ok()).count();
        assert_eq!((taken("root"), taken("token ci")), (STREAMS_OF_CALLER_MAX, STREAMS_OF_CALLER_MAX));
        let refusal = streams.take("root").unwrap_err();
        assert_eq!((refusal.code, refusal.message.contains("root has 16")), (Code::TooManyStreams, true));
        let others: usize = (0..9).map(|user| taken(&format!("user{user}"))).sum();
        assert_eq!(others + 2 * STREAMS_OF_CALLER_MAX, STREAMS_MAX);
        streams.give_back("root");
        assert!(streams.take("root").is_ok() && streams.take("user9").is_err());
    }

    #[test]
    fn the_id_that_a_reader_names_is_an_index() {
        let seen = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", value.parse().unwrap());
            last_seen(&headers)
        };
        assert_eq!(last_seen(&HeaderMap::new()), Ok(None));
        assert_eq!(seen("17"), Ok(Some(17)));
        for wrong in ["", "-1", "1f", "99999999999999999999"] {
            assert_eq!(seen(wrong).unwrap_err().code, Code::BadRequest, "{wrong}");
        }
    }
}
