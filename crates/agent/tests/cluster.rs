//! Three agents in one process, each with a pretended engine. That is enough to see the control
//! plane make a cluster, keep its state, elect, and fail over.

mod access;
mod description;
mod figures;
mod health;
mod history;
mod https;
mod identities;
mod levels;
mod nodes;
mod operations;
mod stream;
mod support;

use mainstay_agent::error::AgentError;
use mainstay_agent::own_state;
use mainstay_api::rest::{
    Accepted, ClusterInit, ClusterJoin, ClusterView, CordonSet, DestinationsPage, EventsPage, NodePlace,
    NodeStatus, ResourceCreate, ResourceView, ServiceApply, ServicePhase, ServiceView, Severity, StatusView,
    TokenCreate, TokenMade,
};
use mainstay_client::Client;
use mainstay_trust::Token;
use mainstay_types::{Code, Fingerprint, Role};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::TestNode;

const PATIENCE: Duration = Duration::from_secs(30);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the node the first member of a cluster.
fn init(node: &TestNode) -> ClusterView {
    let init = ClusterInit {
        name: "test".into(),
        node: "n1".into(),
        address: node.address(),
        engine_address: None,
        lease_ms: None,
        heartbeat_ms: None,
    };
    node.client().post("/v1/cluster/init", &init).unwrap()
}

fn three_nodes(net: u8) -> Vec<TestNode> {
    let mut nodes: Vec<TestNode> = (1..=3).map(|host| TestNode::new(net, host)).collect();
    for node in &mut nodes {
        node.start();
    }
    let view = init(&nodes[0]);
    assert_eq!(view.leader.as_deref(), Some("n1"));
    for index in [1, 2] {
        let join = ClusterJoin {
            // The other node finds its own address.
            address: (index == 1).then(|| nodes[index].address()),
            ..join_as(&nodes[0], &format!("n{}", index + 1), "", None)
        };
        let view: ClusterView = nodes[index].client().post("/v1/cluster/join", &join).unwrap();
        assert_eq!(view.nodes.len(), index + 1);
    }
    nodes
}

fn create(node: &TestNode, name: &str) -> ResourceView {
    node.client().post("/v1/resources", &two_replicas(name)).unwrap()
}

fn two_replicas(name: &str) -> ResourceCreate {
    ResourceCreate {
        name: name.into(),
        volumes: vec![64 << 20],
        journal_bytes: Some(16 << 20),
        replicas: vec!["n1".into(), "n2".into()],
        replica_count: None,
        preferred: vec!["n1".into()],
        settings: BTreeMap::new(),
        from: None,
    }
}

fn resource(node: &TestNode, name: &str) -> Option<ResourceView> {
    node.client().get(&format!("/v1/resources/{name}")).ok()
}

#[test]
fn a_cluster_keeps_its_state_through_the_loss_of_its_leader_and_a_restart_of_all() {
    let mut nodes = three_nodes(1);
    let created = create(&nodes[1], "db");
    assert_eq!((created.primary.as_deref(), created.epoch), (Some("n1"), 1));
    assert!(created.replicas.iter().all(|replica| replica.in_sync));

    // The agent and the engine of the leader and primary are gone.
    nodes[0].kill();
    eventually("promotion of n2", || {
        resource(&nodes[2], "db").is_some_and(|db| db.primary.as_deref() == Some("n2") && db.epoch == 2)
    });
    let view: ClusterView = nodes[2].client().get("/v1/cluster").unwrap();
    assert!(view.leader.is_some_and(|leader| leader != "n1"));
    let dead = view.nodes.iter().find(|node| node.name == "n1").unwrap();
    assert_eq!(dead.status, NodeStatus::Dead);

    // The node comes back as a living secondary, in a new generation.
    nodes[0].start();
    eventually("return of n1", || {
        let view: Option<ClusterView> = nodes[0].client().get("/v1/cluster").ok();
        view.is_some_and(|view| {
            view.nodes
                .iter()
                .any(|node| node.name == "n1" && node.status == NodeStatus::Alive && node.generation > 1)
        })
    });

    for node in &mut nodes {
        node.kill();
    }
    for node in &mut nodes {
        node.start();
    }
    eventually("service of db after the restart of all", || {
        let served = nodes.iter().any(|node| node.engine_role() == Some(Role::Primary));
        served && resource(&nodes[1], "db").is_some_and(|db| db.epoch >= 2 && db.primary.is_some())
    });
    let page: EventsPage = nodes[1].client().get("/v1/events").unwrap();
    assert!(page.events.iter().any(|event| event.subject == "resource/db" && event.text.contains("primary")));
    for node in &mut nodes {
        node.kill();
    }
}

#[test]
fn an_agent_without_a_majority_has_no_lease_and_changes_nothing() {
    let mut nodes = three_nodes(2);
    nodes[1].kill();
    nodes[2].kill();
    eventually("end of the lease of n1", || nodes[0].lease_left_ms() == 0);
    let request = ResourceCreate {
        name: "lost".into(),
        volumes: vec![64 << 20],
        journal_bytes: Some(16 << 20),
        replicas: vec!["n1".into()],
        replica_count: None,
        preferred: vec![],
        settings: BTreeMap::new(),
        from: None,
    };
    let error = nodes[0].client().post::<_, ResourceView>("/v1/resources", &request).unwrap_err();
    // Nothing can be recorded in the audit log (R24), so nothing was even tried.
    let problem = error.problem();
    assert_eq!(problem.code, Code::NoMajority);
    assert!(problem.message.starts_with("nothing is changed"), "{problem:?}");
    nodes[0].kill();
}

#[test]
fn a_creation_that_fails_on_one_node_is_undone_everywhere() {
    let mut nodes = three_nodes(3);
    nodes[1].engine_refuses_to_create();
    let request = ResourceCreate {
        name: "db".into(),
        volumes: vec![64 << 20],
        journal_bytes: Some(16 << 20),
        replicas: vec!["n1".into(), "n2".into()],
        replica_count: None,
        preferred: vec![],
        settings: BTreeMap::new(),
        from: None,
    };
    let error = nodes[0].client().post::<_, ResourceView>("/v1/resources", &request).unwrap_err();
    assert_eq!(error.problem().code, Code::NoSpace);
    eventually("removal of the resource", || resource(&nodes[0], "db").is_none());
    assert!(nodes.iter().all(|node| node.pool_is_empty()));
    for node in &mut nodes {
        node.kill();
    }
}

#[test]
fn a_service_survives_its_agent_and_ends_when_it_is_deleted() {
    let mut nodes = three_nodes(5);
    if !nodes[0].has_cgroups() {
        eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
        return;
    }
    create(&nodes[0], "db");
    let toml =
        "name = 'web'\nresource = 'db'\n[[process]]\nname = 'sleeper'\ncommand = ['/bin/sleep', '1000']\n";
    let _: ServiceView = nodes[2]
        .client()
        .put("/v1/services", &ServiceApply { toml: toml.into(), ..ServiceApply::default() })
        .unwrap();
    let phase =
        |node: &TestNode| node.client().get::<ServiceView>("/v1/services/web").map(|view| view.phase).ok();
    eventually("start of the service", || phase(&nodes[2]) == Some(ServicePhase::Running));
    let pids = nodes[0].pids("web", "sleeper");
    assert_eq!(pids.len(), 1);

    nodes[0].kill_agent();
    nodes[0].start_agent();
    eventually("return of the agent", || nodes[0].lease_left_ms() > 0);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(nodes[0].pids("web", "sleeper"), pids, "the process goes on");
    eventually("report that the service runs", || phase(&nodes[2]) == Some(ServicePhase::Running));
    assert_eq!(nodes[0].pids("web", "sleeper"), pids, "it is still the same process");

    let page: EventsPage = nodes[1].client().get("/v1/events").unwrap();
    for text in ["started process sleeper on n1", "devices attached on n1", "runs on n1"] {
        assert!(page.events.iter().any(|event| event.text == text), "{text} is not among the events");
    }
    // A process that ends by itself is started again.
    let pid = pids[0].parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    eventually("restart of the process", || {
        let now = nodes[0].pids("web", "sleeper");
        now.len() == 1 && now != pids && phase(&nodes[2]) == Some(ServicePhase::Running)
    });

    let _: Accepted = nodes[1].client().delete("/v1/services/web").unwrap();
    eventually("end of the service", || {
        phase(&nodes[1]).is_none() && nodes[0].pids("web", "sleeper").is_empty()
    });
    for node in &mut nodes {
        node.kill();
    }
}

#[test]
fn strangers_and_second_memberships_are_refused() {
    let mut nodes: Vec<TestNode> = (1..=2).map(|host| TestNode::new(4, host)).collect();
    for node in &mut nodes {
        node.start();
    }
    let code = |error: mainstay_client::ClientError| error.problem().code;
    let client = nodes[0].client();
    assert_eq!(code(client.get::<ClusterView>("/v1/cluster").unwrap_err()), Code::NotAMember);
    // The peer belongs to no cluster, so it cannot prove that it belongs to that of the token.
    let join = join_as(&nodes[1], "n1", &nodes[0].address(), None);
    assert_eq!(
        code(client.post::<_, ClusterView>("/v1/cluster/join", &join).unwrap_err()),
        Code::PeerUnproven
    );
    nodes.iter().for_each(|node| drop(init(node)));
    assert_eq!(
        code(client.post::<_, ClusterView>("/v1/cluster/join", &join).unwrap_err()),
        Code::AlreadyAMember
    );
    assert_eq!(code(client.get::<ClusterView>("/v1/nonsense").unwrap_err()), Code::NotFound);
    for node in &mut nodes {
        node.kill();
    }
}

/// A node that is a cluster of its own.
fn one_node(net: u8) -> TestNode {
    let mut node = TestNode::new(net, 1);
    node.start();
    init(&node);
    node
}

/// S696
#[test]
fn a_view_after_a_change_is_made_of_new_answers() {
    let node = one_node(67);
    let request = ResourceCreate { replicas: vec!["n1".into()], ..two_replicas("x") };
    let _: ResourceView = node.client().post("/v1/resources", &request).unwrap();
    let commit = || {
        let live = resource(&node, "x")?.replicas.first()?.live.clone()?;
        Some(live.commit)
    };
    for index in 1..20 {
        // The answers of the engine are kept for a moment, and it has others now.
        eventually("the replica", || commit().is_some());
        node.engine_commits(index);
        let cordon = CordonSet { on: index % 2 == 0, drain: false };
        let _: Accepted = node.client().put("/v1/nodes/n1/cordon", &cordon).unwrap();
        assert_eq!(commit(), Some(index));
    }
}

/// Returns the answer to a request over TCP, with its head.
fn http(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{request} HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn metrics_are_served_and_say_when_the_engine_does_not_answer() {
    let mut node = one_node(6);
    for name in ["db", "log"] {
        let request = ResourceCreate {
            name: name.into(),
            volumes: vec![64 << 20],
            journal_bytes: Some(16 << 20),
            replicas: vec!["n1".into()],
            replica_count: None,
            preferred: vec![],
            settings: BTreeMap::new(),
            from: None,
        };
        let _: ResourceView = node.client().post("/v1/resources", &request).unwrap();
    }
    let scrape = || {
        let began = Instant::now();
        let page = http(node.metrics_address(), "GET /metrics").unwrap();
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        // The limit is longer than what is promised, because tests share their machine. An engine
        // that hangs would hold the page up for ever.
        assert!(began.elapsed() < PATIENCE / 2, "a page took {:?}", began.elapsed());
        page
    };
    let serves = |page: &str| {
        let role = |name| format!("\nmainstay_replica_role{{resource=\"{name}\",role=\"primary\"}} 1\n");
        page.contains("\nmainstay_engine_up 1\n")
            && ["db", "log"].iter().all(|name| page.contains(&role(name)))
    };
    let silent = |page: &str| {
        page.contains("\nmainstay_engine_up 0\n")
            && !page.contains("mainstay_replica_role")
            && page.contains("\nmainstay_resource_primary{resource=\"db\"} 1\n")
    };
    // The engine that is pretended here gives one replica on each of its pages.
    eventually("a page with both resources", || serves(&scrape()));
    let page = scrape();
    assert!(page.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{page}");
    assert!(page.contains("\nmainstay_promotions_total{resource=\"db\",cause=\"first\"} 1\n"), "{page}");
    assert!(page.contains("\nmainstay_process_threads{process=\"agent\"} "), "{page}");
    let body = node.client().get_text("/metrics").unwrap();
    assert!(serves(&body) && body.starts_with("# HELP "), "{body}");
    let page = http(node.metrics_address(), "GET /metrics?names=drbd").unwrap();
    assert!(page.contains("\ndrbd_resource_role{name=\"db\",drbd_resource_role=\"Primary\"} 1\n"), "{page}");
    let page = http(node.metrics_address(), "GET /metrics?names=zfs").unwrap();
    assert!(page.starts_with("HTTP/1.1 422 ") && page.contains("bad-request"), "{page}");

    node.engine_hangs(true);
    eventually("a page without the engine that hangs", || silent(&scrape()));
    node.engine_hangs(false);
    eventually("a page with the engine again", || serves(&scrape()));

    for (request, status) in
        [("GET /v1/status", "404"), ("POST /metrics", "405"), ("DELETE /v1/resources/db", "404")]
    {
        let answer = http(node.metrics_address(), request).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    node.stop_engine();
    let page = http(node.metrics_address(), "GET /metrics").unwrap();
    if !silent(&page) {
        eventually("a page without the engine", || {
            silent(&http(node.metrics_address(), "GET /metrics").unwrap())
        });
    }
    node.kill();
}

/// Returns the page that a router gets which knows the state up to `after`.
fn destinations(node: &TestNode, after: u64, wait_ms: u64) -> DestinationsPage {
    let client = Client::over_tcp(node.router_address().to_string()).with_timeout(PATIENCE);
    client.get(&format!("/v1/destinations?after={after}&wait_ms={wait_ms}")).unwrap()
}

#[test]
fn routers_are_told_where_a_service_is_and_nothing_else() {
    let mut node = one_node(10);
    let first = destinations(&node, 0, 60_000);
    assert_eq!((first.as_of_ms, first.destinations.len()), (Some(0), 0));
    assert!(destinations(&node, first.revision, 0).revision >= first.revision);

    let asked = Instant::now();
    let waits = std::thread::spawn({
        let client = Client::over_tcp(node.router_address().to_string()).with_timeout(PATIENCE);
        let path = format!("/v1/destinations?after={}&wait_ms=60000", first.revision);
        move || client.get::<DestinationsPage>(&path).unwrap()
    });
    let request = ResourceCreate {
        name: "db".into(),
        volumes: vec![64 << 20],
        journal_bytes: Some(16 << 20),
        replicas: vec!["n1".into()],
        replica_count: None,
        preferred: vec![],
        settings: BTreeMap::new(),
        from: None,
    };
    let _: ResourceView = node.client().post("/v1/resources", &request).unwrap();
    let told = waits.join().unwrap();
    assert!(asked.elapsed() < PATIENCE, "a change was told after {:?}", asked.elapsed());
    assert!(told.revision > first.revision, "{told:?}");
    assert_eq!(told.destinations[0].resource, "db");
    eventually("a primary", || {
        let page = destinations(&node, 0, 0);
        let place = NodePlace { node: "n1".into(), address: node.router_address().ip().to_string() };
        page.destinations[0].primary == Some(place)
    });
    let page = destinations(&node, 0, 0);
    let db = &page.destinations[0];
    assert!(page.destinations.len() == 1 && db.epoch > 0 && db.service.is_none(), "{page:?}");
    assert_eq!((&db.phase, db.readers.len()), (&None, 0));

    for (request, status) in [
        ("GET /v1/status", "404"),
        ("GET /metrics", "404"),
        ("POST /v1/destinations", "405"),
        ("DELETE /v1/resources/db", "404"),
    ] {
        let answer = http(node.router_address(), request).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    node.kill();
}

#[test]
fn a_taken_port_costs_the_metrics_and_not_the_agent() {
    let mut node = TestNode::new(7, 1);
    let taken = TcpListener::bind(node.metrics_address()).unwrap();
    node.start();
    assert!(node.client().get_text("/metrics").unwrap().contains("mainstay_build_info"));
    drop(taken);
    eventually("metrics at the address that is free now", || {
        http(node.metrics_address(), "GET /metrics").is_ok_and(|page| page.contains("mainstay_build_info"))
    });
    node.kill();
}

/// A token that `peer` makes for a node of this name; one of no cluster if it cannot.
fn token_of(peer: &TestNode, name: &str) -> String {
    let request = TokenCreate { node: name.into(), life_ms: 60_000 };
    let made = peer.client().post::<_, TokenMade>("/v1/cluster/tokens", &request);
    made.map_or_else(|_| Token::make(Fingerprint([7; 32])).unwrap().text().to_string(), |made| made.token)
}

fn join_as(peer: &TestNode, name: &str, address: &str, engine: Option<&str>) -> ClusterJoin {
    ClusterJoin {
        peer: peer.address(),
        node: name.into(),
        address: Some(address.into()),
        engine_address: engine.map(Into::into),
        witness: false,
        replace: false,
        token: token_of(peer, name),
    }
}

/// R29: an address that does not lead to the newcomer neither harms the cluster nor leaves a trace.
#[test]
fn a_node_that_states_a_wrong_address_is_refused_and_its_next_attempt_joins() {
    let mut nodes: Vec<TestNode> = (1..=3).map(|host| TestNode::new(8, host)).collect();
    for node in &mut nodes {
        node.start();
    }
    let [first, second, third] = &nodes[..] else { panic!("three nodes") };
    let fresh = second.state_files();
    let init_at = |address: &str| {
        let init = ClusterInit {
            name: "test".into(),
            node: "n1".into(),
            address: address.into(),
            engine_address: None,
            lease_ms: None,
            heartbeat_ms: None,
        };
        first.client().post::<_, ClusterView>("/v1/cluster/init", &init)
    };
    // The third node's address answers, but as another node than the one that is to begin a
    // cluster.
    for wrong in ["127.66.8.3", "127.66.8.1:7401", "192.0.2.1", "0.0.0.0", "127.66.8.1:0", "not an address"] {
        let code = init_at(wrong).expect_err(wrong).problem().code;
        assert!([Code::BadAddress, Code::AddressElsewhere].contains(&code), "{wrong}: {code}");
        assert_eq!(first.state_files(), fresh, "{wrong}");
    }
    init_at(&first.address()).unwrap();
    let wrong = [
        ("127.66.8.3:7400", Some("127.66.8.2:7401"), Code::AddressElsewhere),
        ("127.66.8.1:7400", None, Code::AddressTaken),
        ("127.66.8.2:7999", None, Code::AddressUnreachable),
        ("127.66.8.2:7400", Some("192.0.2.1:7401"), Code::BadAddress),
        ("127.66.8.2:7400", Some("127.66.8.2:7400"), Code::BadAddress),
        ("224.0.0.1", None, Code::BadAddress),
        ("nowhere", None, Code::BadAddress),
    ];
    for (address, engine, code) in wrong {
        let join = join_as(first, "n2", address, engine);
        let error = second.client().post::<_, ClusterView>("/v1/cluster/join", &join).unwrap_err();
        assert_eq!(error.problem().code, code, "{address} {engine:?}: {error}");
        assert_eq!(second.state_files(), fresh, "{address} {engine:?}");
    }
    let view: ClusterView = first.client().get("/v1/cluster").unwrap();
    assert_eq!((view.nodes.len(), view.leader.as_deref()), (1, Some("n1")));
    assert!(first.lease_left_ms() > 0);
    let join = join_as(first, "n2", &second.address(), None);
    let view: ClusterView = second.client().post("/v1/cluster/join", &join).unwrap();
    assert!(view.nodes.iter().all(|node| node.voter && !node.candidate), "{view:?}");
    let join = join_as(second, "n3", &third.address(), None);
    let view: ClusterView = third.client().post("/v1/cluster/join", &join).unwrap();
    assert_eq!(view.nodes.len(), 3);
    for node in &mut nodes {
        node.kill();
    }
}

/// Passes the first connection on to `peer`, by which a node looks whom it asks. Passes the second
/// one on until `is_done`, and keeps what comes then to itself. Closes all others.
fn loses_answers(listener: TcpListener, peer: String, is_done: impl Fn() -> bool) {
    for (number, stream) in listener.incoming().enumerate() {
        let Ok(mut stream) = stream else { continue };
        if number > 1 {
            continue;
        }
        let mut passed = TcpStream::connect(&peer).unwrap();
        let (mut asking, mut asked) = (stream.try_clone().unwrap(), passed.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut asking, &mut asked);
            asked.shutdown(std::net::Shutdown::Both)
        });
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = passed.read(&mut bytes) {
            if number == 1 && is_done() {
                break;
            }
            stream.write_all(&bytes[..length]).unwrap();
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// R29: the request arrived, but neither its answer nor its withdrawal did. When the node tries
/// again, it is the same node.
#[test]
fn a_node_that_lost_the_answer_to_its_request_joins_under_its_name_afterwards() {
    let mut nodes: Vec<TestNode> = (1..=2).map(|host| TestNode::new(12, host)).collect();
    for node in &mut nodes {
        node.start();
    }
    let [first, second] = &nodes[..] else { panic!("two nodes") };
    init(first);
    let listener = TcpListener::bind("127.66.12.7:7400").unwrap();
    let (peer, client) = (first.address(), first.client());
    let is_done = move || {
        let view = client.get::<ClusterView>("/v1/cluster");
        view.is_ok_and(|view| view.nodes.iter().any(|node| node.name == "n2"))
    };
    std::thread::spawn(move || loses_answers(listener, peer, is_done));
    let token = token_of(first, "n2");
    let lossy = ClusterJoin {
        peer: "127.66.12.7:7400".into(),
        token: token.clone(),
        ..join_as(first, "n2", &second.address(), None)
    };
    let error = second.client().post::<_, ClusterView>("/v1/cluster/join", &lossy).unwrap_err();
    assert_eq!(error.problem().code, Code::AgentTransport, "{error}");
    let view: ClusterView = first.client().get("/v1/cluster").unwrap();
    assert!(view.nodes.iter().any(|node| node.name == "n2" && node.candidate), "{view:?}");
    let join = ClusterJoin { token, ..join_as(first, "n2", &second.address(), None) };
    for repeated in [false, true] {
        let view: ClusterView = second.client().post("/v1/cluster/join", &join).unwrap();
        assert_eq!((view.nodes.len(), view.nodes.iter().all(|node| node.voter)), (2, true), "{repeated}");
    }
    let page: EventsPage = first.client().get("/v1/events").unwrap();
    assert!(!page.events.iter().any(|event| event.text.contains("two machines")), "{:?}", page.events);
    for node in &mut nodes {
        node.kill();
    }
}

/// The agent of n3 ended before n3 had received the state of the cluster, and the members are away.
#[test]
fn a_join_that_is_under_way_is_told_and_goes_on_when_it_is_repeated() {
    let mut nodes = three_nodes(15);
    nodes.iter_mut().for_each(TestNode::kill_agent);
    nodes[2].forget_state();
    nodes[2].start_agent();
    let client = nodes[2].client();
    let status: StatusView = client.get("/v1/status").unwrap();
    let cluster = status.cluster.unwrap();
    assert_eq!((cluster.name.as_str(), cluster.this_node.as_str()), ("test", "n3"));
    assert!(cluster.joining_ms.is_some());
    let [advice] = &status.advice[..] else { panic!("{:?}", status.advice) };
    let told = ["joining the cluster test as n3", "has not received its state", &nodes[0].address()];
    assert!(told.iter().all(|part| advice.contains(part)), "{advice}");
    let request = ClusterInit {
        name: "other".into(),
        node: "n3".into(),
        address: nodes[2].address(),
        engine_address: None,
        lease_ms: None,
        heartbeat_ms: None,
    };
    let init =
        || client.post::<_, ClusterView>("/v1/cluster/init", &request).unwrap_err().problem().code.clone();
    assert_eq!(init(), Code::JoinBusy);
    let join = join_as(&nodes[0], "n3", &nodes[2].address(), None);
    let repeating = nodes[2].client();
    let repeated = std::thread::spawn(move || repeating.post::<_, ClusterView>("/v1/cluster/join", &join));
    let asked = Instant::now();
    assert_eq!(init(), Code::JoinBusy);
    assert!(asked.elapsed() < Duration::from_secs(10), "it waits for the join");
    nodes[0].start_agent();
    nodes[1].start_agent();
    let view = repeated.join().unwrap().unwrap();
    assert_eq!((view.nodes.len(), view.joining_ms), (3, None));
    for node in &mut nodes {
        node.kill();
    }
}

/// A copied disk: the node goes on, and its copy does not start.
#[test]
fn a_machine_with_the_identity_of_a_living_node_is_refused_and_the_node_lives_on() {
    let mut nodes = three_nodes(9);
    let mut copy = TestNode::new(9, 9);
    copy.copy_state_of(&nodes[1]);
    let before: ClusterView = nodes[0].client().get("/v1/cluster").unwrap();
    assert!(!copy.agent_lives_for(Duration::from_secs(15)), "the copy runs");
    eventually("the two are named", || {
        let page: EventsPage = nodes[0].client().get("/v1/events").unwrap();
        let told = |text: &str| text.contains("127.66.9.2") && text.contains("127.66.9.9");
        page.events.iter().any(|event| {
            event.subject == "node/n2" && event.severity == Severity::Critical && told(&event.text)
        })
    });
    let after: ClusterView = nodes[0].client().get("/v1/cluster").unwrap();
    let generations =
        |view: &ClusterView| view.nodes.iter().map(|node| (node.status, node.generation)).collect::<Vec<_>>();
    assert_eq!(generations(&after), generations(&before));
    assert!(nodes[1].lease_left_ms() > 0);
    // The node itself may be started anew at any time.
    nodes[1].kill_agent();
    nodes[1].start_agent();
    eventually("return of n2", || nodes[1].lease_left_ms() > 0);
    // While the node is off, no process is heard as it. Still the copy is not the node.
    nodes[1].kill_agent();
    assert!(!copy.agent_lives_for(Duration::from_secs(25)), "the copy runs in the place of the node");
    nodes[1].start_agent();
    eventually("return of n2 after its copy", || nodes[1].lease_left_ms() > 0);
    for node in &mut nodes {
        node.kill();
    }
}

/// A node that has lost a file that makes it a member does not run. It names the file, and leaves
/// all files as they are. When the files are put back, the node runs with them again.
#[test]
fn a_node_whose_files_are_lost_or_damaged_does_not_run_and_names_the_file() {
    let mut nodes = three_nodes(17);
    nodes[2].kill_agent();
    let state = nodes[2].state_dir();
    let files = ["agent.redb", "identity.json", "suspects.redb"];
    for file in files {
        let path = state.join(file);
        let whole = std::fs::read(&path).unwrap();
        let damages =
            [("is missing", None), ("is empty", Some(Vec::new())), ("damaged", Some(vec![7; whole.len()]))];
        for (told, damage) in damages {
            match &damage {
                None => std::fs::remove_file(&path).unwrap(),
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            }
            // The content of this file is read when the member starts.
            let error = if file == "suspects.redb" && told == "damaged" {
                mainstay_agent::lease::prepare(&path).map_err(AgentError::from).unwrap_err()
            } else {
                own_state::load(&state).unwrap_err()
            };
            let problem = error.problem();
            assert_eq!(problem.code, Code::StateLost, "{file} {told}: {problem:?}");
            assert!(problem.message.contains(&path.display().to_string()), "{file} {told}: {problem:?}");
            let says = problem.message.contains(told) || told == "damaged";
            assert!(says && problem.remedy.contains("mv "), "{file} {told}: {problem:?}");
            assert_eq!(std::fs::read(&path).ok(), damage, "{file} {told}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!nodes[2].agent_lives_for(Duration::from_secs(10)), "it runs without {file}");
        std::fs::write(&path, whole).unwrap();
    }
    nodes[2].start_agent();
    eventually("return of n3", || nodes[2].lease_left_ms() > 0);
    for node in &mut nodes {
        node.kill();
    }
}

/// An older log under an identity of an earlier release: the leader knows more of the log than the
/// node has.
#[test]
fn a_voter_that_lost_entries_ends_before_it_votes_again_and_does_not_start_any_more() {
    let mut nodes = three_nodes(18);
    nodes[2].kill_agent();
    let log = nodes[2].state_dir().join("agent.redb");
    let older = std::fs::read(&log).unwrap();
    nodes[2].start_agent();
    eventually("return of n3", || nodes[2].lease_left_ms() > 0);
    create(&nodes[0], "db");
    eventually("the resource on n3", || resource(&nodes[2], "db").is_some());
    std::thread::sleep(Duration::from_millis(300));
    nodes[2].kill_agent();
    std::fs::write(&log, older).unwrap();
    assert!(!nodes[2].agent_lives_for(PATIENCE), "it goes on with an older log");
    let problem = own_state::load(&nodes[2].state_dir()).unwrap_err().problem();
    assert_eq!(problem.code, Code::StateLost, "{problem:?}");
    assert!(problem.message.contains("lacks entries"), "{problem:?}");
    for node in &mut nodes {
        node.kill();
    }
}
