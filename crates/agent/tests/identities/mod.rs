//! Tokens, certificates and their renewal, and strangers (R23).

mod rotation;

use super::{eventually, init, join_as, support::TestNode, three_nodes, token_of};
use mainstay_agent::error::AgentError;
use mainstay_api::rest::{
    Accepted, CertificatesView, ClusterJoin, ClusterView, TokenCreate, TokenMade, TokenStatus, TokenView,
};
use mainstay_types::Code;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn join(node: &TestNode, request: &ClusterJoin) -> Result<ClusterView, (Code, String)> {
    node.client().post("/v1/cluster/join", request).map_err(|error: mainstay_client::ClientError| {
        let problem = error.problem();
        (problem.code.clone(), problem.message.clone())
    })
}

fn tokens(node: &TestNode) -> Vec<TokenView> {
    node.client().get("/v1/cluster/tokens").unwrap()
}

fn certificates(node: &TestNode) -> CertificatesView {
    node.client().get("/v1/cluster/certificates").unwrap()
}

#[test]
fn each_wrong_token_is_refused_with_words_and_the_right_one_lets_the_node_in_once() {
    let mut nodes: Vec<TestNode> = (1..=4).map(|host| TestNode::new(40, host)).collect();
    nodes.iter_mut().for_each(TestNode::start);
    let [first, second, third, other] = &nodes[..] else { panic!("four nodes") };
    init(first);
    init(other);
    let fresh = second.state_files();
    let with =
        |token: &str| ClusterJoin { token: token.into(), ..join_as(first, "n2", &second.address(), None) };
    let refused = |token: &str, code: Code, words: &str| {
        let (found, message) = join(second, &with(token)).unwrap_err();
        assert_eq!(found, code, "{message}");
        assert!(message.contains(words), "{message}");
        assert_eq!(second.state_files(), fresh, "{message}");
    };
    let good = token_of(first, "n2");
    refused("", Code::BadToken, "begins with mst_join_");
    refused(&good[..good.len() - 1], Code::BadToken, "checksum");
    refused(&token_of(first, "n3"), Code::TokenRefused, "for a node named n3, and not for n2");
    // The other cluster does not prove that it has the authority of the token, and the first one
    // does not have that of the other.
    refused(&token_of(other, "n2"), Code::PeerUnproven, "no authority of this cluster");
    let revoked: TokenMade = {
        let request = TokenCreate { node: "n2".into(), life_ms: 60_000 };
        first.client().post("/v1/cluster/tokens", &request).unwrap()
    };
    let revoke =
        || -> Accepted { first.client().delete(&format!("/v1/cluster/tokens/{}", revoked.id)).unwrap() };
    assert_eq!(revoke().message, format!("token {} is revoked", revoked.id));
    let again = format!("nothing is changed: token {} was revoked already", revoked.id);
    assert_eq!(revoke().message, again);
    refused(&revoked.token, Code::TokenRefused, "revoked");
    let ended: TokenMade = {
        let request = TokenCreate { node: "n2".into(), life_ms: 1500 };
        first.client().post("/v1/cluster/tokens", &request).unwrap()
    };
    std::thread::sleep(Duration::from_millis(2000));
    refused(&ended.token, Code::TokenRefused, "this token ended");
    join(second, &with(&good)).unwrap();
    let replayed = ClusterJoin { token: good, ..join_as(first, "n2", &third.address(), None) };
    let (code, message) = join(third, &replayed).unwrap_err();
    assert!(code == Code::NameTaken || code == Code::TokenRefused, "{message}");
    let state_of = |id: &str| tokens(first).into_iter().find(|token| token.id == id).unwrap().status;
    assert_eq!(state_of(&revoked.id), TokenStatus::Revoked);
    assert_eq!(state_of(&ended.id), TokenStatus::Ended);
    assert!(tokens(first).iter().any(|token| token.status == TokenStatus::Used && token.node == "n2"));
    let life = |life_ms| {
        let request = TokenCreate { node: "n9".into(), life_ms };
        let made = first.client().post::<_, TokenMade>("/v1/cluster/tokens", &request);
        made.map_err(|error| error.problem().code.clone())
    };
    assert_eq!(life(25 * 60 * 60 * 1000).unwrap_err(), Code::BadTokenLife);
    nodes.iter_mut().for_each(TestNode::kill);
}

#[test]
fn all_nodes_have_certificates_and_no_secret_is_in_the_record_or_its_backup() {
    let mut nodes = three_nodes(41);
    eventually("three certificates", || {
        certificates(&nodes[2]).nodes.iter().filter(|node| node.until_ms.is_some()).count() == 3
    });
    let view = certificates(&nodes[0]);
    assert_eq!((view.authorities.len(), view.nodes.len()), (1, 3));
    let backup: serde_json::Value = nodes[0].client().get("/v1/cluster/backup").unwrap();
    let backup = backup.to_string();
    for node in &nodes {
        let path = node.state_dir().join("trust.json");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for secret in [&kept["key"], &kept["membership"]["seal"]] {
            let secret = secret.as_str().unwrap();
            assert!(secret.len() >= 64 && !backup.contains(secret));
        }
    }
    assert!(!backup.contains("mst_join_"));
    nodes.iter_mut().for_each(TestNode::kill);
}

fn connect_from(own: &str, address: &str) -> std::io::Result<TcpStream> {
    let read = |text: &str| socket2::SockAddr::from(text.parse::<SocketAddr>().unwrap());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&read(own))?;
    socket.connect(&read(address))?;
    Ok(socket.into())
}

#[test]
fn a_stranger_reaches_nothing_and_harms_nobody() {
    let mut nodes = three_nodes(42);
    let address = nodes[0].address();
    let greeting = br#"{"cluster":1,"node":2,"lane":"Log"}"#;
    let mut frame = (greeting.len() as u32 + 6).to_le_bytes().to_vec();
    frame.extend([1, 0]);
    frame.extend(greeting);
    for text in [frame.as_slice(), b"GET /v1/status HTTP/1.1\r\n\r\n", &[0; 999], &[22, 3, 1, 255, 255]] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(text).unwrap();
        let mut answer = Vec::new();
        // The other end may reset the connection.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 16 && answer.first().is_none_or(|kind| *kind == 21), "{answer:?}");
    }
    // A crowd that says nothing, from another address than those of the nodes: the nodes go on.
    let crowd: Vec<TcpStream> =
        (0..300).filter_map(|_| connect_from("127.66.42.99:0", &address).ok()).collect();
    assert_eq!(crowd.len(), 300);
    let before: ClusterView = nodes[1].client().get("/v1/cluster").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let after: ClusterView = nodes[1].client().get("/v1/cluster").unwrap();
    let generations = |view: &ClusterView| view.nodes.iter().map(|node| node.generation).collect::<Vec<_>>();
    assert_eq!(generations(&after), generations(&before));
    assert!(nodes[0].lease_left_ms() > 0 && after.nodes.iter().all(|node| node.connected));
    drop(crowd);
    nodes.iter_mut().for_each(TestNode::kill);
}

/// Sets when the certificate of a stopped node ends, as the node knows it.
fn set_end(node: &TestNode, until_ms: u64) {
    let path = node.state_dir().join("trust.json");
    let mut kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    kept["membership"]["until_ms"] = until_ms.into();
    std::fs::write(&path, kept.to_string()).unwrap();
}

fn end_of(node: &TestNode) -> u64 {
    let kept: serde_json::Value =
        serde_json::from_slice(&std::fs::read(node.state_dir().join("trust.json")).unwrap()).unwrap();
    kept["membership"]["until_ms"].as_u64().unwrap()
}

#[test]
fn a_certificate_that_is_due_is_renewed_by_a_member_and_without_one() {
    let mut nodes = three_nodes(43);
    nodes[2].kill_agent();
    set_end(&nodes[2], 1);
    nodes[2].start_agent();
    eventually("renewal by a member", || end_of(&nodes[2]) > 1);
    eventually("lease of n3", || nodes[2].lease_left_ms() > 0);
    eventually("the record of it", || {
        let until_ms = end_of(&nodes[2]);
        certificates(&nodes[0]).nodes.iter().any(|node| node.until_ms == Some(until_ms))
    });
    // No other member is left to ask.
    nodes.iter_mut().for_each(TestNode::kill_agent);
    set_end(&nodes[2], 1);
    nodes[2].start_agent();
    eventually("renewal by itself", || end_of(&nodes[2]) > 1);
    nodes[0].start_agent();
    eventually("a lease of n1 with n3", || nodes[0].lease_left_ms() > 0);
    nodes.iter_mut().for_each(TestNode::kill);
}

#[test]
fn a_member_without_its_keys_does_not_run_and_says_so() {
    let mut nodes = three_nodes(44);
    nodes[2].kill_agent();
    let path = nodes[2].state_dir().join("trust.json");
    let whole = std::fs::read(&path).unwrap();
    for damage in [None, Some("{}")] {
        match damage {
            None => std::fs::remove_file(&path).unwrap(),
            Some(text) => std::fs::write(&path, text).unwrap(),
        }
        assert!(!nodes[2].agent_lives_for(Duration::from_secs(10)), "it runs: {damage:?}");
    }
    std::fs::write(&path, whole).unwrap();
    nodes[2].start_agent();
    eventually("return of n3", || nodes[2].lease_left_ms() > 0);
    let told = AgentError::TrustLost { path, what: "is missing".into() }.problem();
    assert_eq!(told.code, Code::CertificateLost);
    nodes.iter_mut().for_each(TestNode::kill);
}
