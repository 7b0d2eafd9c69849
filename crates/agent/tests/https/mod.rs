//! The API over TLS: tokens and their scopes, wrong tokens, limits, and strangers (R24).

use super::{eventually, init, support::TestNode, three_nodes};
use mainstay_agent::http::routes;
use mainstay_api::rest::{
    Accepted, ApiTokenCreate, ApiTokenMade, ApiTokenView, AuditPage, AuthoritiesView, CordonSet, StatusView,
};
use mainstay_client::{Client, ClientError, Knows, Server};
use mainstay_trust::https::{Believed, client};
use mainstay_trust::{ApiToken, Token};
use mainstay_types::{Access, Code, Fingerprint};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub const HOUR_MS: u64 = 60 * 60 * 1000;

/// Makes a token on a node, as soon as the cluster can.
pub fn token(node: &TestNode, name: &str, access: Access, life_ms: u64) -> ApiTokenMade {
    let request = ApiTokenCreate { name: name.into(), access, life_ms };
    let mut made = None;
    eventually("a token", || {
        made = node.client().post("/v1/tokens", &request).ok();
        made.is_some()
    });
    made.unwrap()
}

fn authority(node: &TestNode) -> String {
    node.client().get::<AuthoritiesView>("/v1/authorities").unwrap().fingerprint
}

/// A client of a node over TLS.
fn over_tls(node: &TestNode, token: &str) -> Client {
    let address = format!("https://{}", node.api_address());
    let server = Server::new(&address, Knows::Fingerprint(authority(node)), token).unwrap();
    Client::of_server(server).with_timeout(Duration::from_secs(60))
}

fn code(error: ClientError) -> Code {
    error.problem().code
}

/// Waits until a node serves the API over TLS.
pub fn served(node: &TestNode) {
    eventually("the port", || TcpStream::connect(node.api_address()).is_ok());
}

fn connect_from(own: &str, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&own.parse::<SocketAddr>().unwrap().into())?;
    socket.connect(&address.into())?;
    let stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(Duration::from_secs(40)))?;
    Ok(stream)
}

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A connection over TLS from an address.
pub fn tls_from(own: &str, node: &TestNode) -> io::Result<Tls> {
    let believed = Believed::Fingerprint(authority(node).parse().unwrap());
    let name = ServerName::try_from(node.api_address().ip().to_string()).unwrap();
    let tls = ClientConnection::new(client(believed).unwrap(), name).unwrap();
    Ok(StreamOwned::new(tls, connect_from(own, node.api_address())?))
}

/// The answer to a request on a connection of its own: everything that came. A node whose
/// authority was replaced meanwhile is asked again, because the certificate was not the one that
/// was believed.
fn answer_from(own: &str, node: &TestNode, request: &str) -> String {
    loop {
        let believed = authority(node);
        let answer = attempt_from(own, node, request);
        if status(&answer) != "closed" || authority(node) == believed {
            return answer;
        }
    }
}

fn attempt_from(own: &str, node: &TestNode, request: &str) -> String {
    let Ok(mut stream) = tls_from(own, node) else { return "closed".into() };
    if stream.write_all(request.as_bytes()).is_err() {
        return "closed".into();
    }
    let mut answer = String::new();
    // The stream of events has no end.
    if request.contains(" /v1/stream") {
        drop(BufReader::new(stream).read_line(&mut answer));
        return answer;
    }
    // The other end may end the connection without a word of TLS.
    drop(stream.read_to_string(&mut answer));
    answer
}

fn request(method: &str, path: &str, token: Option<&str>) -> String {
    let proof = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{proof}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    )
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("closed")
}

const HERE: &str = "127.0.0.1:0";

/// R24
#[test]
fn a_token_reaches_the_routes_of_its_scope_and_nothing_else() {
    let mut node = TestNode::new(70, 1);
    node.start();
    init(&node);
    let made: Vec<ApiTokenMade> =
        Access::ALL.into_iter().map(|access| token(&node, access.word(), access, HOUR_MS)).collect();
    served(&node);
    let filled = |path: &str| {
        ["{name}", "{node}", "{volume}", "{snapshot}", "{id}", "{code}"]
            .into_iter()
            .fold(path.to_owned(), |path, part| path.replace(part, "1"))
    };
    let mut changes = 0;
    for ApiTokenMade { token, access, .. } in &made {
        for route in routes().table {
            let asked = request(route.method, &filled(route.path), Some(token));
            let answer = answer_from(HERE, &node, &asked);
            let may = *access >= route.access;
            let found = status(&answer);
            assert!(!["closed", "401", "429"].contains(&found), "{route:?}: {answer}");
            assert_eq!(found != "403", may, "{} {} for {access}: {answer}", route.method, route.path);
            changes += usize::from(may && route.changes);
        }
    }
    // Few routes are of the scope for metrics.
    let of_metrics: Vec<&str> = routes()
        .table
        .iter()
        .filter(|route| route.access == Access::Metrics)
        .map(|route| route.path)
        .collect();
    assert_eq!(
        of_metrics,
        [
            "/metrics",
            "/livez",
            "/readyz",
            "/primary/{name}",
            "/replica/{name}",
            "/health/{name}",
            "/errors/{code}",
            "/openapi.json"
        ]
    );
    let by_tokens = |page: &AuditPage| page.records.iter().filter(|record| record.from.is_some()).count();
    let mut page: Option<AuditPage> = None;
    eventually("the records", || {
        page = node.client().get("/v1/audit?lines=1000").ok();
        page.as_ref().is_some_and(|page| by_tokens(page) == changes)
    });
    let page = page.unwrap();
    let of = |who: &str| page.records.iter().filter(|record| record.who == who).count();
    assert!(of("token operate") > 5 && of("token admin") > 20, "{page:#?}");
    assert_eq!((of("token read"), of("token metrics")), (0, 0));
    assert!(page.records.iter().flat_map(|record| &record.from).all(|from| from == "127.0.0.1"));
}

#[test]
fn a_token_that_was_made_on_one_node_is_good_on_all_until_it_is_revoked_on_any() {
    let mut nodes = three_nodes(71);
    let made = token(&nodes[0], "ci", Access::Operate, HOUR_MS);
    for node in &nodes {
        served(node);
        let status: StatusView = over_tls(node, &made.token).get("/v1/status").unwrap();
        assert!(status.cluster.is_some_and(|cluster| cluster.nodes.len() == 3));
    }
    let cordon = CordonSet { on: true, drain: false };
    let _: Accepted = over_tls(&nodes[2], &made.token).put("/v1/nodes/n2/cordon", &cordon).unwrap();
    let forbidden = over_tls(&nodes[1], &made.token).delete::<Accepted>("/v1/tokens/ci").unwrap_err();
    assert_eq!(code(forbidden), Code::Forbidden);
    let page: AuditPage = nodes[0].client().get("/v1/audit").unwrap();
    let record = page.records.iter().find(|record| record.action == "PUT /v1/nodes/n2/cordon").unwrap();
    assert_eq!((record.who.as_str(), record.node.as_str()), ("token ci", "n3"));
    assert_eq!((record.from.as_deref(), record.access), (Some("127.0.0.1"), Access::Operate));
    eventually("note of its use", || {
        let tokens: Vec<ApiTokenView> = nodes[1].client().get("/v1/tokens").unwrap();
        assert_eq!((tokens.len(), tokens[0].name.as_str()), (1, "ci"));
        tokens[0].used_ms.is_some()
    });
    let _: Accepted = nodes[1].client().delete("/v1/tokens/ci").unwrap();
    for node in &nodes {
        let refused = over_tls(node, &made.token).get::<StatusView>("/v1/status").unwrap_err();
        assert_eq!(code(refused), Code::Unauthenticated, "at once, on every node");
    }
    // The name is free again, and the old token stays useless.
    let next = token(&nodes[2], "ci", Access::Read, HOUR_MS);
    assert!(over_tls(&nodes[0], &next.token).get::<StatusView>("/v1/status").is_ok());
    assert!(over_tls(&nodes[0], &made.token).get::<StatusView>("/v1/status").is_err());
    nodes.iter_mut().for_each(TestNode::kill);
}

#[test]
fn each_wrong_token_is_refused_with_words_and_many_of_them_are_not_judged() {
    let mut node = TestNode::new(72, 1);
    node.start();
    init(&node);
    let good = token(&node, "good", Access::Read, HOUR_MS).token;
    let ended = token(&node, "ended", Access::Read, 1500).token;
    let revoked = token(&node, "revoked", Access::Read, HOUR_MS).token;
    let _: Accepted = node.client().delete("/v1/tokens/revoked").unwrap();
    served(&node);
    std::thread::sleep(Duration::from_millis(1600));
    let unknown = ApiToken::make().unwrap().text();
    // The public half is that of a good token, and the checksum is right.
    let forged = ApiToken::forged(ApiToken::read(&good).unwrap().id()).unwrap().text();
    let to_join = Token::make(Fingerprint([7; 32])).unwrap().text();
    // From another address each, so that none is refused for the ones before it.
    let mut host = 10;
    let mut ask = |header: &str| {
        host += 1;
        let asked = format!("GET /v1/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n");
        answer_from(&format!("127.66.72.{host}:0"), &node, &asked)
    };
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    assert_eq!(status(&ask(&bearer(&good))), "200");
    for (header, words) in [
        (String::new(), "the request has no token"),
        ("Authorization: Basic cm9vdDpyb290\r\n".to_owned(), "the request has no token"),
        (bearer("root"), "begins with mst_api_"),
        (bearer(&to_join), "begins with mst_api_"),
        (bearer(&good[..good.len() - 1]), "checksum"),
        (bearer(&unknown), "does not know this token"),
        (bearer(&forged), "does not know this token"),
        (bearer(&revoked), "does not know this token"),
        (bearer(&ended), "the token ended has ended"),
        (bearer(&good) + &bearer(&good), "more than one token"),
    ] {
        let answer = ask(&header);
        assert_eq!(status(&answer), "401", "{header}: {answer}");
        let lower = answer.to_lowercase();
        assert!(lower.contains("www-authenticate: bearer realm=\"mainstay\""), "{answer}");
        assert_eq!(lower.contains("invalid_token"), words != "the request has no token", "{answer}");
        assert!(answer.contains(words) && answer.contains("\"unauthenticated\""), "{answer}");
        let number = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap();
        assert!(answer.contains(&format!("\"request\":\"{number}\"")), "{answer}");
        assert!(answer.contains("\"type\":\"/errors/unauthenticated\""), "{answer}");
    }
    // A token in the address is none.
    let in_query = format!("GET /v1/status?access_token={good} HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(status(&answer_from("127.66.72.90:0", &node, &in_query)), "401");
    let own = "127.66.72.99:0";
    let seen: Vec<String> = (0..12)
        .map(|_| status(&answer_from(own, &node, &request("GET", "/metrics", Some("x")))).to_owned())
        .collect();
    assert_eq!((seen[0].as_str(), seen[11].as_str()), ("401", "429"), "{seen:?}");
    // The answer tells nobody whether a token is good.
    let answer = answer_from(own, &node, &request("GET", "/metrics", Some(&good)));
    let lower = answer.to_lowercase();
    let wait = lower.split("retry-after: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let wait: u64 = wait.unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
    assert!(status(&answer) == "429" && (1..=7).contains(&wait), "{answer}");
    assert_eq!(
        status(&answer_from("127.66.72.98:0", &node, &request("GET", "/metrics", Some(&good)))),
        "200"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    while status(&answer_from(own, &node, &request("GET", "/metrics", Some(&good)))) != "200" {
        assert!(Instant::now() < deadline, "it is refused for too long");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A greeting of TLS 1.2 (RFC 5246), as OpenSSL 1.0 would say it.
fn hello_of_1_2() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    let extensions = [0, 10, 0, 6, 0, 4, 0, 23, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let mut record = vec![22, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    record.extend(body);
    record
}

#[test]
fn the_port_speaks_tls_1_3_only() {
    let mut node = TestNode::new(73, 1);
    node.start();
    assert!(TcpStream::connect(node.api_address()).is_err(), "a node of no cluster serves nobody");
    init(&node);
    let good = token(&node, "good", Access::Admin, HOUR_MS).token;
    served(&node);
    let plain = request("GET", "/v1/status", Some(&good));
    for text in [plain.as_bytes(), &hello_of_1_2(), &[0; 999], &[22, 3, 1, 255, 255], b"\r\n\r\n"] {
        let mut stream = connect_from(HERE, node.api_address()).unwrap();
        stream.write_all(text).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The other end may reset the connection.
        drop(stream.read_to_end(&mut answer));
        assert!(answer.len() < 16 && answer.first().is_none_or(|kind| *kind == 21), "{answer:?}");
        if text == hello_of_1_2() {
            // A fatal alert: protocol version (RFC 8446, 6.2).
            assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70]);
        }
    }
    // A client that does not know the server sends it nothing.
    let address = format!("https://{}", node.api_address());
    for knows in [Knows::Fingerprint("ab".repeat(32)), Knows::Machine] {
        let Ok(server) = Server::new(&address, knows, &good) else { continue };
        let refused = Client::of_server(server).get::<StatusView>("/v1/status").unwrap_err();
        assert_eq!(code(refused), Code::ServerUnproven);
    }
    // The certificate is for the node's own names, and the name that is asked for counts.
    let port = node.api_address().port();
    let pem = node.client().get::<AuthoritiesView>("/v1/authorities").unwrap().certificates.concat();
    let by_pem = |host: &str| {
        let server =
            Server::new(&format!("https://{host}:{port}"), Knows::Authorities(pem.clone().into()), &good);
        Client::of_server(server.unwrap()).get::<StatusView>("/v1/status")
    };
    assert!(by_pem(&node.api_address().ip().to_string()).is_ok());
}

#[test]
fn senders_that_prove_nothing_and_requests_without_bounds_harm_nobody() {
    let mut node = TestNode::new(74, 1);
    node.start();
    init(&node);
    let good = token(&node, "good", Access::Admin, HOUR_MS).token;
    served(&node);
    let crowd = "127.66.74.99:0";
    let began = Instant::now();
    // Some say nothing, some say a part of a greeting, some a part of a request.
    let silent: Vec<TcpStream> =
        (0..6).filter_map(|_| connect_from(crowd, node.api_address()).ok()).collect();
    let mut slow: Vec<Tls> = (0..6)
        .filter_map(|_| {
            let mut stream = tls_from(crowd, &node).ok()?;
            stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n").ok()?;
            Some(stream)
        })
        .collect();
    let more: Vec<TcpStream> = (0..40).filter_map(|_| connect_from(crowd, node.api_address()).ok()).collect();
    assert_eq!((silent.len(), slow.len(), more.len()), (6, 6, 40));
    // Others are served, and so is the socket.
    assert_eq!(status(&answer_from(HERE, &node, &request("GET", "/metrics", Some(&good)))), "200");
    assert!(node.client().get::<StatusView>("/v1/status").is_ok());
    assert!(UnixStream::connect(node.run_dir().join("agent.sock")).is_ok());
    assert_eq!(status(&answer_from(crowd, &node, &request("GET", "/metrics", Some(&good)))), "closed");
    // Each header line that comes in time changes nothing.
    for stream in &mut slow {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            drop(stream.write_all(b"X-A: b\r\n"));
        }
    }
    for stream in &mut slow {
        drop(stream.read_to_end(&mut Vec::new()));
    }
    for mut stream in silent {
        drop(stream.read_to_end(&mut Vec::new()));
    }
    let lasted = began.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_secs(25)).contains(&lasted), "{lasted:?}");
    eventually("places", || {
        status(&answer_from(crowd, &node, &request("GET", "/metrics", Some(&good)))) == "200"
    });
    drop(more);
    // Headers and bodies are bounded, also for a good token.
    let proof = format!("Authorization: Bearer {good}\r\n");
    let long = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{proof}X-A: {}\r\n\r\n", "a".repeat(64 << 10));
    assert!(["431", "closed"].contains(&status(&answer_from(HERE, &node, &long))));
    let many = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{proof}{}\r\n", "X-A: b\r\n".repeat(100));
    assert_eq!(status(&answer_from(HERE, &node, &many)), "431");
    let large = format!(
        "PUT /v1/services HTTP/1.1\r\nHost: a\r\n{proof}Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{}",
        " ".repeat(3_000_000)
    );
    assert!(["422", "closed"].contains(&status(&answer_from(HERE, &node, &large))));
    assert_eq!(status(&answer_from(HERE, &node, &request("GET", "/metrics", Some(&good)))), "200");
}

/// The secret of a token is with its holder alone.
#[test]
fn a_token_is_in_no_log_no_file_and_no_answer() {
    let mut node = TestNode::new(75, 1);
    node.log_everything();
    node.start();
    init(&node);
    let made = token(&node, "ci", Access::Admin, HOUR_MS);
    served(&node);
    let client = over_tls(&node, &made.token);
    let _: Accepted = client.put("/v1/nodes/n1/cordon", &CordonSet { on: false, drain: false }).unwrap();
    let mangled = format!("{}x", made.token);
    assert_eq!(status(&answer_from(HERE, &node, &request("GET", "/v1/status", Some(&mangled)))), "401");
    let mut texts = vec![node.log()];
    for path in ["/v1/audit", "/v1/tokens", "/v1/events", "/v1/cluster/backup", "/v1/status", "/metrics"] {
        texts.push(node.client().get_text(path).unwrap());
    }
    assert!(texts[0].contains("the API is served over TLS") && texts[1].contains("token ci"), "{}", texts[0]);
    let mut files = 0;
    for name in node.state_files() {
        let path = node.state_dir().join(name);
        if path.is_file() {
            files += 1;
            texts.push(String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
        }
    }
    assert!(files > 2);
    let secret = made.token.splitn(4, '_').nth(3).unwrap();
    // No part of it either: each of these has 96 bits.
    for part in [&secret[..16], &secret[16..32]] {
        assert!(texts.iter().all(|text| !text.contains(part)));
    }
}

/// A question for the head of a file: the file itself is compressed.
fn head(path: &str) -> String {
    format!("HEAD {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

/// R24
#[test]
fn the_console_needs_no_token_and_shows_nothing_without_one() {
    let mut node = TestNode::new(76, 1);
    node.start();
    init(&node);
    let good = token(&node, "good", Access::Read, HOUR_MS).token;
    served(&node);
    let own = "127.66.76.20:0";
    for (path, kind) in [
        ("/console/", "text/html"),
        ("/console/console.js", "text/javascript"),
        ("/console/console.css", "text/css"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let answer = answer_from(own, &node, &head(path)).to_lowercase();
        assert_eq!(status(&answer), "200", "{path}: {answer}");
        for line in [
            &format!("content-type: {kind}"),
            "content-encoding: gzip",
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
            "etag: ",
        ] {
            assert!(answer.contains(line), "{path}: {line} is not in {answer}");
        }
    }
    for (path, place) in
        [("/", "/console/"), ("/console", "/console/"), ("/favicon.ico", "/console/icon.svg")]
    {
        let answer = answer_from(own, &node, &head(path)).to_lowercase();
        assert!(status(&answer) == "308" && answer.contains(&format!("location: {place}\r\n")), "{answer}");
    }
    // Neither a missing file nor a wrong method counts as a wrong token.
    for asked in [head("/console/../v1/status"), head("/console/x"), request("POST", "/console/", None)] {
        assert_eq!(status(&answer_from(own, &node, &asked)), "404", "{asked}");
    }
    (0..20).for_each(|_| drop(answer_from(own, &node, &head("/console/"))));
    assert_eq!(status(&answer_from(own, &node, &request("GET", "/metrics", Some(&good)))), "200");
    for path in ["/v1/status", "/metrics", "/v1/alive", "/consolex", "/other"] {
        assert_eq!(status(&answer_from(own, &node, &request("GET", path, None))), "401", "{path}");
    }
    // A source that asks for too many files is refused, and only that one.
    let many = "127.66.76.30:0";
    let ask = request("GET", "/console/", None);
    let refused = (0..200).map(|_| answer_from(many, &node, &ask)).find(|answer| status(answer) == "429");
    assert!(refused.is_some_and(|answer| answer.contains("files of the console")));
    assert_eq!(status(&answer_from(many, &node, &request("GET", "/metrics", Some(&good)))), "200");
    assert_eq!(status(&answer_from(own, &node, &head("/console/"))), "200");
    // A file proves nothing: the connection ends as that of any stranger.
    let began = Instant::now();
    let mut silent = tls_from(own, &node).unwrap();
    silent.write_all(b"HEAD /console/ HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    drop(silent.read_to_end(&mut Vec::new()));
    let lasted = began.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_secs(25)).contains(&lasted), "{lasted:?}");
}

#[test]
fn an_agent_without_the_console_serves_none() {
    let mut node = TestNode::new(77, 1);
    node.without_console();
    node.start();
    init(&node);
    let good = token(&node, "good", Access::Read, HOUR_MS).token;
    served(&node);
    for path in ["/console/", "/console/console.js"] {
        assert_eq!(status(&answer_from(HERE, &node, &head(path))), "401", "{path}");
        assert_eq!(status(&answer_from(HERE, &node, &request("GET", path, Some(&good)))), "404", "{path}");
    }
}
