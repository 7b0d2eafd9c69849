//! The stream of events: what a reader gets, when it comes again, and when its stream ends.

use crate::https::{HOUR_MS, served, tls_from, token};
use crate::support::TestNode;
use crate::{eventually, init, three_nodes};
use mainstay_api::rest::{Accepted, CordonSet, EventView, EventsPage, StreamChange, StreamResync};
use mainstay_types::Access;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Streams of one caller.
const STREAMS_OF_CALLER: usize = 16;

/// One message, as it comes.
#[derive(Default, Debug)]
struct Message {
    kind: String,
    id: Option<u64>,
    data: String,
    is_comment: bool,
}

impl Message {
    fn event(&self) -> EventView {
        assert_eq!(self.kind, "event", "{self:?}");
        serde_json::from_str(&self.data).unwrap()
    }
}

struct Reader {
    input: BufReader<Box<dyn Read>>,
    head: String,
}

impl Reader {
    /// Asks by HTTP 1.0, where a body has no parts with lengths.
    fn ask(mut stream: impl Read + Write + 'static, query: &str, headers: &str) -> Self {
        write!(stream, "GET /v1/stream{query} HTTP/1.0\r\nHost: a\r\n{headers}\r\n").unwrap();
        let mut input: BufReader<Box<dyn Read>> = BufReader::new(Box::new(stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && input.read_line(&mut head).unwrap() > 0 {}
        Self { input, head: head.to_lowercase() }
    }

    fn on_socket(node: &TestNode, query: &str, headers: &str) -> Self {
        let stream = UnixStream::connect(node.run_dir().join("agent.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        Self::ask(stream, query, headers)
    }

    fn over_tls(node: &TestNode, token: &str) -> Self {
        let stream = tls_from("127.0.0.1:0", node).unwrap();
        Self::ask(stream, "", &format!("Authorization: Bearer {token}\r\n"))
    }

    /// The next message; `None` after the last one.
    fn next(&mut self) -> Option<Message> {
        let mut message = Message::default();
        loop {
            let mut line = String::new();
            if self.input.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            match line.trim_end().split_once(':') {
                None => return Some(message),
                Some(("event", kind)) => message.kind = kind.trim().to_owned(),
                Some(("id", id)) => message.id = Some(id.trim().parse().unwrap()),
                Some(("data", data)) => message.data = data.trim().to_owned(),
                Some(("", _)) => message.is_comment = true,
                Some(("retry", ms)) => assert_eq!(ms.trim(), "1000"),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next message of a kind.
    fn next_of(&mut self, kind: &str) -> Message {
        loop {
            let message = self.next().expect("the stream goes on");
            if message.kind == kind {
                return message;
            }
        }
    }
}

fn cordon(node: &TestNode, on: bool) {
    let set = CordonSet { on, drain: false };
    let _: Accepted = node.client().put("/v1/nodes/n1/cordon", &set).unwrap();
}

fn events(node: &TestNode) -> EventsPage {
    node.client().get("/v1/events?after=0").unwrap()
}

#[test]
fn a_reader_that_comes_again_and_again_gets_every_event_once_and_in_order() {
    let mut node = TestNode::new(90, 1);
    node.start();
    init(&node);
    cordon(&node, true);
    let begun = events(&node).last;
    let is_over = AtomicBool::new(false);
    let got = std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..150 {
                cordon(&node, turn % 2 == 1);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let (mut got, mut last) = (Vec::new(), begun);
        let mut connections = 0;
        while !is_over.load(Ordering::SeqCst) || last < events(&node).last {
            connections += 1;
            // The header wins over the query, which is that of the first connection.
            let query = format!("?after={begun}");
            let mut reader = Reader::on_socket(&node, &query, &format!("Last-Event-ID: {last}\r\n"));
            // The agent may not have noticed yet that earlier connections are gone.
            if reader.head.starts_with("http/1.0 503 ") {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            assert!(reader.head.contains("content-type: text/event-stream"), "{}", reader.head);
            for _ in 0..1 + connections % 3 {
                if last >= events(&node).last {
                    break;
                }
                let message = reader.next_of("event");
                let event = message.event();
                assert_eq!(message.id, Some(event.index));
                last = event.index;
                got.push(event);
            }
        }
        assert!(connections > 20, "{connections} connections");
        got
    });
    let page = events(&node);
    let log: Vec<EventView> = page.events.into_iter().filter(|event| event.index > begun).collect();
    assert!(got.len() > 100, "{} events", got.len());
    assert_eq!(got, log);
}

#[test]
fn a_stream_begins_with_a_change_tells_what_is_gone_once_and_keeps_alive() {
    let mut node = TestNode::new(91, 1);
    node.start();
    init(&node);
    let mut reader = Reader::on_socket(&node, "", "");
    assert!(reader.head.contains("cache-control: no-store\r\n"), "{}", reader.head);
    assert!(reader.head.contains("x-accel-buffering: no\r\n"), "{}", reader.head);
    let first = reader.next_of("change");
    assert_eq!(first.id, None);
    let before: StreamChange = serde_json::from_str(&first.data).unwrap();
    cordon(&node, true);
    assert!(reader.next_of("event").event().subject.starts_with("node/"));
    let after: StreamChange = serde_json::from_str(&reader.next_of("change").data).unwrap();
    assert!(after.revision > before.revision);

    let last = events(&node).last;
    let mut lost = Reader::on_socket(&node, "?after=99999", "");
    let message = lost.next_of("resync");
    let resync: StreamResync = serde_json::from_str(&message.data).unwrap();
    assert_eq!((message.id, resync.last), (Some(last), last));
    cordon(&node, false);
    let next = |reader: &mut Reader| loop {
        let message = reader.next().expect("the stream goes on");
        if message.kind != "change" && !message.is_comment {
            return message;
        }
    };
    let message = next(&mut lost);
    assert_eq!((message.kind.as_str(), message.id), ("event", Some(last + 1)));

    for (query, header) in [("?after=x", ""), ("", "Last-Event-ID: x\r\n")] {
        let refused = Reader::on_socket(&node, query, header);
        assert!(refused.head.starts_with("http/1.0 422 "), "{}", refused.head);
        assert!(refused.head.contains("application/problem+json"), "{}", refused.head);
    }

    // Something comes at least every 15 s, if only a comment.
    let (mut quiet, began) = (Reader::on_socket(&node, "", ""), Instant::now());
    let (mut longest, mut last_at) = (Duration::ZERO, Instant::now());
    while began.elapsed() < Duration::from_secs(35) {
        quiet.next().expect("the stream goes on");
        longest = longest.max(last_at.elapsed());
        last_at = Instant::now();
    }
    assert!(longest < Duration::from_secs(25), "{longest:?}");
}

#[test]
fn a_change_of_the_status_that_no_record_has_is_told() {
    let mut nodes = three_nodes(92);
    let mut reader = Reader::on_socket(&nodes[0], "", "");
    reader.next_of("change");
    // Lets the thread look once, and what still goes on end.
    std::thread::sleep(Duration::from_secs(5));
    nodes[2].stop_engine();
    let began = Instant::now();
    reader.next_of("change");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_stream_over_tls_ends_with_its_token() {
    let mut node = TestNode::new(93, 1);
    node.start();
    init(&node);
    let revoked = token(&node, "revoked", Access::Read, HOUR_MS).token;
    served(&node);
    let mut reader = Reader::over_tls(&node, &revoked);
    assert!(reader.head.starts_with("http/1.0 200 "), "{}", reader.head);
    reader.next_of("change");
    let _: Accepted = node.client().delete("/v1/tokens/revoked").unwrap();
    let began = Instant::now();
    while reader.next().is_some() {}
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());

    let short = token(&node, "short", Access::Operate, 4000).token;
    let began = Instant::now();
    let mut reader = Reader::over_tls(&node, &short);
    reader.next_of("change");
    while reader.next().is_some() {}
    let lasted = began.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(14)).contains(&lasted), "{lasted:?}");
    let metrics = token(&node, "metrics", Access::Metrics, HOUR_MS).token;
    let refused = Reader::over_tls(&node, &metrics);
    assert!(refused.head.starts_with("http/1.0 403 "), "{}", refused.head);
}

/// R18
#[test]
fn streams_are_few_and_a_reader_that_leaves_makes_room() {
    let mut node = TestNode::new(94, 1);
    node.start();
    init(&node);
    let mut readers: Vec<Reader> = (0..STREAMS_OF_CALLER).map(|_| Reader::on_socket(&node, "", "")).collect();
    for reader in &mut readers {
        reader.next_of("change");
    }
    let mut refused = Reader::on_socket(&node, "", "");
    assert!(refused.head.starts_with("http/1.0 503 "), "{}", refused.head);
    assert!(refused.head.contains("retry-after: 10\r\n"), "{}", refused.head);
    let mut body = String::new();
    refused.input.read_to_string(&mut body).unwrap();
    assert!(body.contains("\"too-many-streams\""), "{body}");
    // Other questions are answered meanwhile, and other callers have a stream.
    let token = token(&node, "other", Access::Read, HOUR_MS).token;
    served(&node);
    Reader::over_tls(&node, &token).next_of("change");
    readers.pop();
    eventually("room", || Reader::on_socket(&node, "", "").head.starts_with("http/1.0 200 "));
}
