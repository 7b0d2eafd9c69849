//! Nodes that leave, are replaced and return, a lost majority, and a backup.

use super::{PATIENCE, create, eventually, init, join_as, resource, support::TestNode, three_nodes};
use mainstay_agent::{own_state, recovery};
use mainstay_api::rest::{
    Accepted, ClusterBackup, ClusterJoin, ClusterView, NodeAddress, NodeRemove, NodeStatus, NodeView,
    ResourceCreate, ResourceView,
};
use mainstay_types::Code;
use std::time::Duration;

fn view(node: &TestNode) -> ClusterView {
    node.client().get("/v1/cluster").unwrap()
}

fn node_named(view: &ClusterView, name: &str) -> Option<NodeView> {
    view.nodes.iter().find(|node| node.name == name).cloned()
}

fn is_dead(asked: &TestNode, name: &str) -> bool {
    node_named(&view(asked), name).is_some_and(|node| node.status == NodeStatus::Dead)
}

fn voters(asked: &TestNode) -> Vec<String> {
    view(asked).nodes.into_iter().filter(|node| node.voter).map(|node| node.name).collect()
}

fn remove(asked: &TestNode, name: &str) -> Result<Accepted, Code> {
    let path = format!("/v1/nodes/{name}/removal");
    let answer = asked.client().post(&path, &NodeRemove::default());
    answer.map_err(|error| error.problem().code)
}

/// The node was told that it is no member, and has noted it.
fn is_told(node: &TestNode) -> bool {
    own_state::load(&node.state_dir()).is_err_and(|error| error.problem().code == Code::NodeRemoved)
}

#[test]
fn a_dead_node_is_replaced_under_its_name_and_is_told_so_when_it_returns() {
    let mut nodes = three_nodes(30);
    create(&nodes[0], "db");
    nodes[1].kill();
    eventually("death of n2", || is_dead(&nodes[0], "n2"));
    assert_eq!(remove(&nodes[0], "n1"), Err(Code::IsPrimary));
    assert_eq!(remove(&nodes[0], "n3"), Err(Code::VoteNeeded));
    let mut fourth = TestNode::new(30, 4);
    fourth.start();
    let join = |replace| ClusterJoin { replace, ..join_as(&nodes[0], "n2", &fourth.address(), None) };
    let refused = fourth.client().post::<_, ClusterView>("/v1/cluster/join", &join(false)).unwrap_err();
    assert_eq!(refused.problem().code, Code::NameTaken);
    let _: ClusterView = fourth.client().post("/v1/cluster/join", &join(true)).unwrap();
    eventually("the vote of the new n2", || voters(&nodes[0]) == ["n1", "n2", "n3"]);
    // The pretended engine copies nothing, so the replica does not come in sync here.
    eventually("the replica of the new n2", || {
        resource(&nodes[0], "db").is_some_and(|db| db.replicas.iter().any(|on| on.node == "n2"))
    });
    let leader = view(&nodes[0]).leader;
    assert!(!nodes[1].agent_lives_for(PATIENCE), "the old n2 runs");
    assert!(is_told(&nodes[1]));
    assert!(!nodes[1].agent_lives_for(PATIENCE), "the old n2 runs once more");
    assert_eq!(view(&nodes[0]).leader, leader, "it has disturbed the others");
    assert!(nodes[0].lease_left_ms() > 0);
    // The new n2 counts: without n3 there still is a majority.
    nodes[2].kill();
    eventually("death of n3", || is_dead(&fourth, "n3"));
    remove(&fourth, "n3").unwrap();
    eventually("two voters", || voters(&fourth) == ["n1", "n2"]);
    nodes[0].kill();
    fourth.kill();
}

#[test]
fn a_living_leader_that_is_removed_ends_and_a_node_that_was_cut_off_is_told_when_it_returns() {
    let mut nodes = three_nodes(31);
    nodes[2].kill_agent();
    eventually("death of n3", || is_dead(&nodes[0], "n3"));
    remove(&nodes[0], "n3").unwrap();
    assert_eq!(remove(&nodes[0], "n3"), Err(Code::UnknownNode));
    assert!(!nodes[2].agent_lives_for(PATIENCE) && is_told(&nodes[2]));
    assert_eq!(view(&nodes[0]).leader.as_deref(), Some("n1"));
    // The address of a removed node is free, and so is its name.
    let mut again = TestNode::new(31, 3);
    again.start();
    let join = join_as(&nodes[1], "n3", &again.address(), None);
    let _: ClusterView = again.client().post("/v1/cluster/join", &join).unwrap();
    eventually("the vote of the new n3", || voters(&again) == ["n1", "n2", "n3"]);
    eventually("the removal of n1", || remove(&nodes[1], "n1").is_ok());
    eventually("the end of n1", || is_told(&nodes[0]));
    eventually("another leader", || {
        view(&nodes[1]).leader.is_some_and(|leader| leader == "n2" || leader == "n3")
    });
    assert_eq!(voters(&nodes[1]), ["n2", "n3"]);
    nodes.iter_mut().for_each(TestNode::kill);
    again.kill();
}

/// Makes a resource, which is a decision.
fn create_on(node: &TestNode, name: &str) {
    let request = ResourceCreate {
        name: "db".into(),
        volumes: vec![64 << 20],
        journal_bytes: Some(16 << 20),
        replicas: vec![name.into()],
        replica_count: None,
        preferred: Vec::new(),
        settings: Default::default(),
        from: None,
    };
    let _: ResourceView = node.client().post("/v1/resources", &request).unwrap();
}

/// The leader goes once, and the other node once.
#[test]
fn a_cluster_of_two_becomes_a_cluster_of_one_and_of_two_again() {
    for (net, gone) in [(35, 1), (36, 0)] {
        let mut nodes = [TestNode::new(net, 1), TestNode::new(net, 2)];
        nodes.iter_mut().for_each(TestNode::start);
        init(&nodes[0]);
        let join = join_as(&nodes[0], "n2", &nodes[1].address(), None);
        let _: ClusterView = nodes[1].client().post("/v1/cluster/join", &join).unwrap();
        eventually("two voters", || voters(&nodes[0]) == ["n1", "n2"]);
        let (name, stays) = (format!("n{}", gone + 1), 1 - gone);
        eventually("the removal", || remove(&nodes[stays], &name).is_ok());
        // From the answer on the other machine may be switched off.
        nodes[gone].kill();
        let alone = format!("n{}", stays + 1);
        eventually("a leader alone", || view(&nodes[stays]).leader.as_ref() == Some(&alone));
        assert_eq!(voters(&nodes[stays]), std::slice::from_ref(&alone));
        create_on(&nodes[stays], &alone);
        assert!(nodes[stays].lease_left_ms() > 0);
        assert!(!nodes[gone].agent_lives_for(PATIENCE), "the removed node runs");
        assert!(is_told(&nodes[gone]));
        let mut third = TestNode::new(net, 3);
        third.start();
        let join = join_as(&nodes[stays], &name, &third.address(), None);
        let _: ClusterView = third.client().post("/v1/cluster/join", &join).unwrap();
        eventually("two voters again", || voters(&nodes[stays]).len() == 2);
        nodes.iter_mut().for_each(TestNode::kill);
        third.kill();
    }
}

#[test]
fn a_cluster_that_lost_its_majority_goes_on_with_one_node_and_refuses_those_that_return() {
    let mut nodes = three_nodes(32);
    create(&nodes[0], "db");
    let state = nodes[0].state_dir();
    let all = ["n2".to_owned(), "n3".to_owned()];
    assert_eq!(recovery::recover(&state, &all).unwrap_err().code, Code::AgentRuns);
    nodes[2].kill();
    nodes[0].kill_agent();
    assert_eq!(recovery::recover(&state, &all).unwrap_err().code, Code::NodeAlive, "n2 lives");
    nodes[1].kill();
    let told = recovery::recover(&state, &[]).unwrap();
    assert_eq!((told.refused.as_slice(), told.lacking.len(), told.done), (all.as_slice(), 0, false));
    assert_eq!(recovery::recover(&state, &all[..1]).unwrap_err().code, Code::NodesNotNamed);
    assert!(recovery::recover(&state, &all).unwrap().done);
    nodes[0].start_agent();
    eventually("a lease of n1 alone", || nodes[0].lease_left_ms() > 0);
    assert_eq!(voters(&nodes[0]), ["n1"]);
    eventually("service of db", || {
        resource(&nodes[0], "db").is_some_and(|db| db.primary.as_deref() == Some("n1") && db.epoch > 1000)
    });
    assert!(!nodes[1].agent_lives_for(PATIENCE) && is_told(&nodes[1]), "n2 runs in the earlier era");
    let mut fourth = TestNode::new(32, 4);
    fourth.start();
    let join = ClusterJoin { replace: true, ..join_as(&nodes[0], "n2", &fourth.address(), None) };
    let _: ClusterView = fourth.client().post("/v1/cluster/join", &join).unwrap();
    eventually("two voters", || voters(&nodes[0]) == ["n1", "n2"]);
    nodes.iter_mut().for_each(TestNode::kill);
    fourth.kill();
}

#[test]
fn a_backup_of_the_record_is_put_back_on_one_node_and_not_where_it_could_do_harm() {
    let mut nodes = three_nodes(33);
    create(&nodes[0], "db");
    let backup: ClusterBackup = nodes[1].client().get("/v1/cluster/backup").unwrap();
    let text = serde_json::to_string(&backup).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let code = |text: &str, name: &str| recovery::restore(elsewhere.path(), text, name).unwrap_err().code;
    assert_eq!(code(&text, "n2"), Code::NodeAlive);
    assert_eq!(code(&text, "n9"), Code::UnknownNode);
    assert_eq!(code(&text.replace("lease_ms", "lease_mz"), "n2"), Code::BadBackup);
    assert_eq!(code("{}", "n2"), Code::BadBackup);
    nodes.iter_mut().for_each(TestNode::kill);
    let member = nodes[0].state_dir();
    assert_eq!(recovery::restore(&member, &text, "n1").unwrap_err().code, Code::AlreadyAMember);
    let mut new = TestNode::new(33, 1);
    let outcome = recovery::restore(&new.state_dir(), &text, "n1").unwrap();
    assert_eq!((outcome.refused.len(), outcome.lacking), (2, vec!["db".to_owned()]));
    new.start();
    eventually("a lease", || new.lease_left_ms() > 0);
    assert_eq!((voters(&new), view(&new).name), (vec!["n1".to_owned()], "test".to_owned()));
    let db = resource(&new, "db").unwrap();
    assert_eq!(db.primary, None, "n2 may have been primary since");
    new.kill();
}

#[test]
fn a_fourth_node_stands_by_and_a_node_gets_another_address() {
    let mut nodes = three_nodes(34);
    let mut fourth = TestNode::new(34, 4);
    fourth.start();
    let join = join_as(&nodes[0], "n4", &fourth.address(), None);
    let joined: ClusterView = fourth.client().post("/v1/cluster/join", &join).unwrap();
    assert_eq!(node_named(&joined, "n4").map(|node| (node.voter, node.candidate)), Some((false, false)));
    eventually("a lease of n4", || fourth.lease_left_ms() > 0);
    let set = |address: &str, unseen| {
        let request = NodeAddress { address: address.into(), engine_address: None, unseen };
        nodes[0].client().put::<_, Accepted>("/v1/nodes/n4/address", &request)
    };
    let refused = set("127.66.34.9:7400", false).unwrap_err();
    assert_eq!(refused.problem().code, Code::AddressUnreachable);
    fourth.kill();
    eventually("death of n4", || is_dead(&nodes[0], "n4"));
    set("127.66.34.9:7400", true).unwrap();
    // The machine has its new address.
    let mut moved = TestNode::new(34, 9);
    moved.copy_state_of(&fourth);
    moved.start();
    eventually("return of n4", || !is_dead(&nodes[0], "n4") && moved.lease_left_ms() > 0);
    // A voter leaves, and the node that stood by votes in its place.
    remove(&nodes[0], "n3").unwrap();
    eventually("the vote of n4", || voters(&nodes[0]) == ["n1", "n2", "n4"]);
    std::thread::sleep(Duration::from_millis(300));
    eventually("the end of n3", || is_told(&nodes[2]));
    nodes.iter_mut().for_each(TestNode::kill);
    moved.kill();
}
