//! The description of the API is true of the answers: each is compared with the schema that the
//! description has for it, and each status with those that it lists.

use crate::support::TestNode;
use crate::{create, three_nodes};
use mainstay_api::rest::{AuditPage, CodeView, ProblemDocument};
use mainstay_api::routes::{Answer, OPENAPI, ROUTES, Route};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A service that needs nothing but its resource.
const SERVICE: &str =
    "name = \"db\"\nresource = \"db\"\n[[process]]\nname = \"main\"\ncommand = [\"/bin/true\"]\n";

struct Got {
    status: u16,
    kind: String,
    body: String,
}

/// An answer on the socket, by HTTP 1.0, where a body has no parts with lengths.
fn ask(node: &TestNode, method: &str, path: &str, kind: &str, body: &str) -> Got {
    let mut stream = UnixStream::connect(node.run_dir().join("agent.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    // In one piece: an agent may answer and close before it has read the body.
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let kind =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-type: ").map(str::to_owned));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Got { status, kind: kind.unwrap_or_default(), body: body.to_owned() }
}

/// The path with names of objects that there are.
fn filled(route: &Route) -> String {
    let name = if route.path.starts_with("/v1/nodes/") { "n2" } else { "db" };
    [
        ("{name}", name),
        ("{node}", "n2"),
        ("{volume}", "0"),
        ("{snapshot}", "first"),
        ("{id}", "0011223344556677"),
        ("{code}", "unknown-node"),
    ]
    .into_iter()
    .fold(route.path.to_owned(), |path, (part, value)| path.replace(part, value))
}

/// Faults of a value, each with its place. A property that the schema does not name is one.
fn faults(all: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return faults(all, all.pointer(&reference[1..]).expect("a schema"), value, place);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let of_each: Vec<Vec<String>> = any.iter().map(|one| faults(all, one, value, place)).collect();
        let fits = of_each.iter().any(Vec::is_empty);
        return if fits { Vec::new() } else { of_each.into_iter().flatten().collect() };
    }
    let mut found = Vec::new();
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.is_empty() && !kinds.contains(&kind) {
        return vec![format!("{place}: {kind} instead of {kinds:?}")];
    }
    if let (Some(words), false) = (schema["enum"].as_array(), value.is_null())
        && !words.contains(value)
    {
        found.push(format!("{place}: {value} is none of {words:?}"));
    }
    if let Some(items) = value.as_array() {
        for (index, item) in items.iter().enumerate() {
            let of_item = schema["prefixItems"].get(index).unwrap_or(&schema["items"]);
            found.extend(faults(all, of_item, item, &format!("{place}[{index}]")));
        }
    }
    if let Some(fields) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(
            required
                .filter(|name| !fields.contains_key(*name))
                .map(|name| format!("{place}.{name} is missing")),
        );
        for (name, field) in fields {
            let place = format!("{place}.{name}");
            match schema["properties"].get(name) {
                Some(of_field) => found.extend(faults(all, of_field, field, &place)),
                None if schema["additionalProperties"].is_object() => {
                    found.extend(faults(all, &schema["additionalProperties"], field, &place));
                }
                None if schema["properties"].is_object() => found.push(format!("{place} is not described")),
                None => {}
            }
        }
    }
    found
}

/// Faults of an answer by the description of its route.
fn faults_of(all: &Value, route: &Route, got: &Got) -> Vec<String> {
    let Got { status, kind, body } = got;
    let responses = &all["paths"][route.path][route.method.to_lowercase()]["responses"];
    let mut response = &responses[status.to_string()];
    if let Some(reference) = response["$ref"].as_str() {
        response = all.pointer(&reference[1..]).expect("a response");
    }
    let place = format!("{} {} {status}", route.method, route.path);
    let kind = kind.split(';').next().unwrap_or_default();
    let Some(content) = response["content"].get(kind) else {
        return vec![format!("{place}: `{kind}` is not described: {body}")];
    };
    match serde_json::from_str(body) {
        Ok(value) if kind.ends_with("json") => faults(all, &content["schema"], &value, &place),
        Err(error) if kind.ends_with("json") => vec![format!("{place}: {error}")],
        _ => Vec::new(),
    }
}

#[test]
fn every_answer_is_as_the_description_of_the_api_says() {
    let all: Value = serde_json::from_str(OPENAPI).unwrap();
    let nodes = three_nodes(97);
    let node = &nodes[0];
    create(node, "db");
    let mut found = Vec::new();
    let mut seen = 0;
    let mut look = |route: &Route, got: Got| {
        seen += usize::from(got.status == 200);
        found.extend(faults_of(&all, route, &got));
        got
    };
    let find = |method, path| mainstay_api::routes::find(method, path).unwrap();
    for (method, path, body) in [
        ("PUT", "/v1/services", json!({ "toml": SERVICE })),
        ("PUT", "/v1/services", json!({ "toml": SERVICE, "dry_run": true })),
        ("POST", "/v1/service-check", json!({ "toml": SERVICE })),
        ("PUT", "/v1/services/{name}/wanted", json!({ "run": false })),
        ("POST", "/v1/resources/{name}/snapshots", json!({ "name": "first" })),
        ("PATCH", "/v1/cluster/settings", json!({ "fencing": null })),
        ("PATCH", "/v1/resources/{name}/settings", json!({ "mode": "A" })),
        ("PUT", "/v1/nodes/{name}/cordon", json!({ "on": true })),
        ("PUT", "/v1/cluster/maintenance", json!({ "on": true, "for_ms": 60_000 })),
        ("POST", "/v1/cluster/tokens", json!({ "node": "n4" })),
        ("POST", "/v1/tokens", json!({ "name": "ci", "access": "read" })),
    ] {
        let route = find(method, path);
        let got = look(route, ask(node, method, &filled(route), "application/json", &body.to_string()));
        println!("{method} {path}: {}", got.status);
    }
    // Everything that can be asked, with names that there are and with others.
    for route in ROUTES.iter().filter(|route| route.method == "GET" && route.answer != Answer::Stream) {
        look(route, ask(node, "GET", &filled(route), "text/plain", ""));
        if route.path.contains('{') {
            look(
                route,
                ask(
                    node,
                    "GET",
                    &filled(route).replace("db", "%00").replace("n2", "%C3%A4"),
                    "text/plain",
                    "",
                ),
            );
        }
        for query in route.query.iter().map(|parameter| parameter.name).chain(["unknown"]) {
            look(route, ask(node, "GET", &format!("{}?{query}=x", filled(route)), "text/plain", ""));
        }
    }
    // Bodies that are none, or not those of the route. Nothing of this changes anything.
    for route in ROUTES.iter().filter(|route| route.request.is_some()) {
        for (kind, body) in [
            ("application/json", "{\"surplus\":{\"a\":1}}"),
            ("application/json", "[]"),
            ("application/json", "null"),
            ("application/json", "{"),
            ("application/json", ""),
            ("text/plain", "{}"),
        ] {
            let path = filled(route).replace("db", "none").replace("n2", "none");
            let got = look(route, ask(node, route.method, &path, kind, body));
            assert!([404, 422].contains(&got.status), "{} {path} {body}: {}", route.method, got.body);
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(seen > 30, "{seen} answers that are no refusals");
}

#[test]
fn a_method_that_a_path_does_not_have_is_refused_like_everything_else() {
    let mut node = TestNode::new(98, 1);
    node.start();
    let got = ask(&node, "PATCH", "/v1/status", "application/json", "{}");
    assert_eq!((got.status, got.kind.as_str()), (405, "application/problem+json"), "{}", got.body);
    assert!(got.body.contains("\"method-not-allowed\""), "{}", got.body);
    let got = ask(&node, "GET", "/v1/none", "", "");
    assert_eq!((got.status, got.kind.as_str()), (404, "application/problem+json"), "{}", got.body);
}

/// A refusal names the page of its code and the number of its request, and the page is served.
#[test]
fn a_refusal_has_the_form_of_rfc_9457_and_leads_to_the_explanation_of_its_code() {
    let mut node = TestNode::new(100, 1);
    node.start();
    crate::init(&node);
    for (request, status, code) in [
        ("GET /v1/none", 404, "not-found"),
        ("PATCH /v1/status", 405, "method-not-allowed"),
        ("GET /v1/events?after=x", 422, "bad-request"),
        ("PUT /v1/services", 422, "bad-request"),
        ("GET /v1/resources/none", 404, "unknown-resource"),
        ("DELETE /v1/services/none", 404, "unknown-service"),
        ("GET /errors/none", 404, "not-found"),
    ] {
        let answer = with_head(&node, request, "", "");
        assert_eq!(header(&answer, "content-type"), Some("application/problem+json"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let problem: ProblemDocument = serde_json::from_str(body).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.0 {status} ")), "{answer}");
        assert_eq!((problem.status, problem.code.as_str()), (status, code), "{answer}");
        assert_eq!(problem.request.as_deref(), header(&answer, "x-request-id"), "{answer}");
        assert_eq!(problem.detail, problem.message);
        assert_eq!(problem.kind, format!("/errors/{code}"));
        let explained: CodeView = node.client().get(&problem.kind).unwrap();
        assert_eq!((explained.title, explained.cause), (problem.title, problem.cause));
    }
}

/// The bodies of all pages from a path on.
fn pages(node: &TestNode, first: &str, mut between: impl FnMut()) -> Vec<Value> {
    let (mut path, mut pages) = (first.to_owned(), Vec::new());
    loop {
        let answer = with_head(node, &format!("GET {path}"), "", "");
        assert!(answer.starts_with("HTTP/1.0 200 "), "{path}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        pages.push(serde_json::from_str(body).unwrap());
        let Some(link) = header(&answer, "link") else { return pages };
        path =
            link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")).unwrap().to_owned();
        assert!(pages.len() < 1000, "{first} has no end");
        between();
    }
}

#[test]
fn a_list_has_the_same_entries_in_pages_and_at_once() {
    let nodes = three_nodes(101);
    let node = &nodes[0];
    for name in ["db", "web"] {
        create(node, name);
        let toml = SERVICE.replace("db", name);
        let answer = with_head(node, "PUT /v1/services", "", &json!({ "toml": toml }).to_string());
        assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    }
    for (name, place) in [("b", 1), ("d", 2), ("f", 3)] {
        for (path, body) in [
            ("/v1/tokens", json!({ "name": name, "access": "read" })),
            ("/v1/cluster/tokens", json!({ "node": format!("n{}", place + 3) })),
        ] {
            let answer = with_head(node, &format!("POST {path}"), "", &body.to_string());
            assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
        }
    }
    for (path, list, key) in [
        ("/v1/resources", "", "name"),
        ("/v1/services", "", "name"),
        ("/v1/nodes", "", "name"),
        ("/v1/tokens", "", "name"),
        ("/v1/cluster/tokens", "", "id"),
        ("/v1/events", "/events", "index"),
        ("/v1/audit", "/records", "number"),
        ("/v1/history", "/changes", "at_ms"),
        ("/v1/services/db/history", "/events", "index"),
    ] {
        let keys = |page: &Value| -> Vec<Value> {
            let entries = page.pointer(list).and_then(Value::as_array).unwrap();
            entries.iter().map(|entry| entry[key].clone()).collect()
        };
        let wanted = keys(&pages(node, path, || ())[0]);
        assert!(wanted.len() > 1 || path.ends_with("history"), "{path}: {wanted:?}");
        for limit in [1, 2, wanted.len().max(1), 1000] {
            let pages = pages(node, &format!("{path}?limit={limit}"), || ());
            assert!(pages.iter().all(|page| keys(page).len() <= limit), "{path}: {pages:?}");
            let all: Vec<Value> = pages.iter().flat_map(keys).collect();
            // Events may have come meanwhile.
            assert!(all.starts_with(&wanted), "{path}, {limit} at a time: {all:?}, {wanted:?}");
            assert_eq!(pages.len(), all.len().div_ceil(limit).max(1), "{path}, {limit} at a time");
        }
    }
    // Entries that come between two pages.
    let mut new = ["a", "e"].into_iter();
    let pages = pages(node, "/v1/tokens?limit=1", || {
        let Some(name) = new.next() else { return };
        let body = json!({ "name": name, "access": "read" }).to_string();
        assert!(with_head(node, "POST /v1/tokens", "", &body).starts_with("HTTP/1.0 200 "));
    });
    let names: Vec<&str> = pages.iter().map(|page| page[0]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "d", "e", "f"]);
    for (path, code) in [
        ("/v1/services?after=db", "bad-cursor"),
        ("/v1/services?limit=0", "bad-request"),
        ("/v1/events?limit=0", "bad-request"),
        ("/v1/audit?limit=1&lines=1", "bad-request"),
        ("/v1/history?after=00&lines=1", "bad-request"),
    ] {
        let answer = with_head(node, &format!("GET {path}"), "", "");
        assert!(answer.starts_with("HTTP/1.0 422 ") && answer.contains(code), "{path}: {answer}");
    }
}

/// An answer with its head, for a request with further headers.
pub fn with_head(node: &TestNode, request: &str, headers: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(node.run_dir().join("agent.sock")).unwrap();
    let length = body.len();
    let request = format!(
        "{request} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn a_change_of_what_another_operator_has_changed_meanwhile_is_refused() {
    let nodes = three_nodes(99);
    let node = &nodes[0];
    create(node, "db");
    let body = json!({ "toml": SERVICE }).to_string();
    let first = with_head(node, "PUT /v1/services", "", &body);
    assert!(first.starts_with("HTTP/1.0 200"), "{first}");
    let other = json!({ "toml": SERVICE.replace("true", "false") }).to_string();
    for (read, change, bodies) in [
        ("GET /v1/services/db/file", "PUT /v1/services", [other, body]),
        (
            "GET /v1/resources/db/settings",
            "PATCH /v1/resources/db/settings",
            ["{\"min-copies\":1}".to_owned(), "{\"min-copies\":2}".to_owned()],
        ),
        (
            "GET /v1/cluster/settings",
            "PATCH /v1/cluster/settings",
            ["{\"slow-ack\":\"20ms\"}".to_owned(), "{\"slow-ack\":\"30ms\"}".to_owned()],
        ),
    ] {
        let answer = with_head(node, read, "", "");
        let tag = header(&answer, "etag").unwrap_or_else(|| panic!("{answer}")).to_owned();
        let condition = format!("If-Match: {tag}\r\n");
        let answer = with_head(node, change, &condition, &bodies[0]);
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        let answer = with_head(node, change, &condition, &bodies[1]);
        assert!(answer.starts_with("HTTP/1.0 412") && answer.contains("\"precondition-failed\""), "{answer}");
        for wrong in ["If-Match: 7\r\n", "If-Match: *\r\n", "If-Match: \"1\", \"2\"\r\n"] {
            let answer = with_head(node, change, wrong, &bodies[1]);
            assert!(answer.starts_with("HTTP/1.0 422"), "{wrong}: {answer}");
        }
    }
    let on = "{\"on\":true}";
    let answer = with_head(node, "PUT /v1/nodes/n2/cordon", "If-Match: \"1\"\r\n", on);
    assert!(answer.starts_with("HTTP/1.0 422") && answer.contains("If-Match"), "{answer}");

    // The number of a request is that of its record.
    let answer = with_head(node, "PUT /v1/nodes/n2/cordon", "", on);
    let number = header(&answer, "x-request-id").unwrap_or_else(|| panic!("{answer}"));
    let page: AuditPage = node.client().get("/v1/audit?lines=1").unwrap();
    assert_eq!(page.records[0].request, number);
}

/// Makes a token of the API with a key.
fn make_token(node: &TestNode, name: &str, key: &str) -> String {
    let body = json!({ "name": name, "access": "read" }).to_string();
    with_head(node, "POST /v1/tokens", &format!("Idempotency-Key: {key}\r\n"), &body)
}

pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn a_change_with_a_key_is_made_once_and_answered_again() {
    let mut node = TestNode::new(102, 1);
    node.start();
    crate::init(&node);
    let first = make_token(&node, "ci", "\"one\"");
    assert!(
        first.starts_with("HTTP/1.0 200 ") && header(&first, "idempotency-replayed").is_none(),
        "{first}"
    );
    let again = make_token(&node, "ci", "one");
    assert_eq!((body(&again), header(&again, "idempotency-replayed")), (body(&first), Some("true")));
    assert_ne!(header(&again, "x-request-id"), header(&first, "x-request-id"));
    let other = make_token(&node, "cd", "\"one\"");
    assert!(other.starts_with("HTTP/1.0 422 ") && other.contains("idempotency-key-reused"), "{other}");
    let wrong = make_token(&node, "cd", "a b");
    assert!(wrong.starts_with("HTTP/1.0 422 ") && wrong.contains("bad-request"), "{wrong}");
    // A refusal is an answer, and has the number of the request that it refused.
    let refused = make_token(&node, "ci", "\"two\"");
    assert!(refused.starts_with("HTTP/1.0 4"), "{refused}");
    let again = make_token(&node, "ci", "\"two\"");
    assert_eq!((body(&again), header(&again, "idempotency-replayed")), (body(&refused), Some("true")));
    assert_eq!(header(&again, "content-type"), Some("application/problem+json"));
    let made = |node: &TestNode| {
        let page: AuditPage = node.client().get("/v1/audit").unwrap();
        page.records.iter().filter(|record| record.action == "POST /v1/tokens").count()
    };
    assert_eq!(made(&node), 2);
    // Two at the same time.
    let answers: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| make_token(&node, "cd", "\"three\""))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for answer in &answers {
        let is_same = answer.starts_with("HTTP/1.0 200 ");
        let is_early = answer.starts_with("HTTP/1.0 409 ") && answer.contains("idempotency-key-in-use");
        assert!(is_same || is_early, "{answer}");
    }
    assert_eq!(made(&node), 3);
    // A restart forgets keys, as the manual says.
    node.kill_agent();
    node.start_agent();
    crate::eventually("a majority", || {
        let answer = make_token(&node, "ci", "\"one\"");
        !answer.contains("no-majority")
            && !answer.contains("control-plane-busy")
            && answer.contains("name-taken")
    });
}

#[test]
fn a_change_whose_sender_went_away_is_answered_when_it_comes_again() {
    let mut node = TestNode::new(103, 1);
    node.start();
    crate::init(&node);
    // Without its engine the resource is recorded, and not made.
    node.stop_engine();
    let wanted = json!({ "name": "db", "volumes": [1 << 20], "journal_bytes": 16 << 20, "replicas": ["n1"] });
    let wanted = wanted.to_string();
    let mut stream = UnixStream::connect(node.run_dir().join("agent.sock")).unwrap();
    let request = format!(
        "POST /v1/resources HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nIdempotency-Key: \"k\"\r\nContent-Length: {}\r\n\r\n{wanted}",
        wanted.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    crate::eventually("the change has begun", || {
        let list: Vec<Value> = node.client().get("/v1/resources").unwrap();
        !list.is_empty()
    });
    let ask = || with_head(&node, "POST /v1/resources", "Idempotency-Key: \"k\"\r\n", &wanted);
    let early = ask();
    assert!(early.starts_with("HTTP/1.0 409 ") && early.contains("idempotency-key-in-use"), "{early}");
    drop(stream);
    node.start_engine();
    let mut answer = String::new();
    crate::eventually("the change is answered", || {
        answer = with_head(&node, "POST /v1/resources", "Idempotency-Key: \"k\"\r\n", &wanted);
        answer.starts_with("HTTP/1.0 200 ")
    });
    assert_eq!(header(&answer, "idempotency-replayed"), Some("true"), "{answer}");
}
