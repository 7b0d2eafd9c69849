//! The authority of a cluster is replaced: with a node that is off, and without one.

use super::{certificates, join};
use crate::support::TestNode;
use crate::{eventually, join_as, three_nodes};
use mainstay_api::rest::{
    Accepted, AuthorityPhase, CertificatesView, ClusterJoin, ClusterView, LeaveOut, NodeStatus, StatusView,
};
use mainstay_types::Code;
use std::time::Duration;

const PATH: &str = "/v1/cluster/rotation";

fn rotate(node: &TestNode) -> Result<Accepted, Code> {
    node.client().post(PATH, &()).map_err(|error| error.problem().code)
}

fn leave_out(node: &TestNode, name: &str) -> Result<Accepted, Code> {
    let request = LeaveOut { nodes: vec![name.into()] };
    node.client().post(&format!("{PATH}/left-out"), &request).map_err(|error| error.problem().code)
}

fn numbers(view: &CertificatesView) -> Vec<u32> {
    view.authorities.iter().map(|authority| authority.number).collect()
}

/// Phase of the rotation and the nodes that it waits for.
fn waits(node: &TestNode) -> Option<(AuthorityPhase, Vec<String>)> {
    certificates(node).rotation.map(|rotation| (rotation.phase, rotation.waits_for))
}

fn is_over(node: &TestNode, number: u32) -> bool {
    let view = certificates(node);
    let of_it = view.nodes.iter().all(|node| node.authority == Some(number));
    view.rotation.is_none() && numbers(&view) == [number] && of_it
}

fn is_dead(asked: &TestNode, name: &str) -> bool {
    let view: ClusterView = asked.client().get("/v1/cluster").unwrap();
    view.nodes.iter().any(|node| node.name == name && node.status == NodeStatus::Dead)
}

fn advice(node: &TestNode) -> String {
    node.client().get::<StatusView>("/v1/status").unwrap().advice.join("\n")
}

/// Content of a member's file of keys.
fn kept(node: &TestNode) -> serde_json::Value {
    let text = std::fs::read(node.state_dir().join("trust.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["membership"].clone()
}

#[test]
fn the_authority_is_replaced_while_a_node_is_off_and_its_return_ends_that() {
    let mut nodes = three_nodes(45);
    let mut fourth = TestNode::new(45, 4);
    fourth.start();
    let joins = join_as(&nodes[0], "n4", &fourth.address(), None);
    let first_seal = kept(&nodes[0])["seal"].clone();
    let first_file = std::fs::read(nodes[1].state_dir().join("trust.json")).unwrap();
    nodes[2].kill_agent();
    eventually("death of n3", || is_dead(&nodes[0], "n3"));
    let accepted = rotate(&nodes[1]).unwrap();
    assert!(accepted.message.contains("waits for n3"), "{}", accepted.message);
    assert_eq!(rotate(&nodes[0]).unwrap_err(), Code::RotationRuns);
    let waits_for_n3 = |node: &TestNode| waits(node) == Some((AuthorityPhase::Announced, vec!["n3".into()]));
    eventually("the wait for n3", || waits_for_n3(&nodes[0]));
    eventually("advice about it", || {
        let advice = advice(&nodes[0]);
        advice.contains("has waited for n3") && advice.contains("`mainstay cluster authority leave-out n3`")
    });
    assert_eq!(kept(&nodes[0])["next"]["seal"], kept(&nodes[1])["next"]["seal"], "both have the new seal");
    assert!(certificates(&nodes[0]).nodes.iter().all(|node| node.authority == Some(1)));
    // The agents start anew in the middle: the record has the step.
    for index in [0, 1] {
        nodes[index].kill_agent();
        nodes[index].start_agent();
    }
    eventually("the wait for n3 after a restart", || {
        nodes[0].lease_left_ms() > 0 && waits_for_n3(&nodes[0]) && waits_for_n3(&nodes[1])
    });
    nodes[2].start_agent();
    eventually("the end of the rotation", || nodes.iter().all(|node| is_over(node, 2)));
    eventually("leases of all", || nodes.iter().all(|node| node.lease_left_ms() > 0));
    for node in &nodes {
        let kept = kept(node);
        assert_eq!((&kept["authority"], &kept["next"]), (&2.into(), &serde_json::Value::Null));
        assert!(kept["seal"] == self::kept(&nodes[0])["seal"] && kept["seal"] != first_seal);
    }
    // A token of the old authority leads to nobody, and a new one to the cluster.
    let (code, message) = join(&fourth, &joins).unwrap_err();
    assert_eq!(code, Code::PeerUnproven, "{message}");
    let again = join_as(&nodes[0], "n4", &fourth.address(), None);
    join(&fourth, &again).unwrap();
    eventually("the certificate of n4", || is_over(&nodes[0], 2) && certificates(&nodes[0]).nodes.len() == 4);
    // A node with what it had before is believed by none.
    nodes[1].kill_agent();
    eventually("death of n2", || is_dead(&nodes[0], "n2"));
    let path = nodes[1].state_dir().join("trust.json");
    let file = std::fs::read(&path).unwrap();
    std::fs::write(&path, first_file).unwrap();
    nodes[1].start_agent();
    std::thread::sleep(Duration::from_secs(4));
    assert!(nodes[1].lease_left_ms() == 0 && is_dead(&nodes[0], "n2"));
    nodes[1].kill_agent();
    std::fs::write(&path, file).unwrap();
    nodes[1].start_agent();
    eventually("return of n2", || nodes[1].lease_left_ms() > 0);
    fourth.kill();
    nodes.iter_mut().for_each(TestNode::kill);
}

#[test]
fn a_node_that_was_left_out_of_a_rotation_is_believed_no_more_and_joins_anew() {
    let mut nodes = three_nodes(46);
    nodes[2].kill();
    eventually("death of n3", || is_dead(&nodes[0], "n3"));
    assert_eq!(leave_out(&nodes[0], "n3").unwrap_err(), Code::RotationState);
    // One that is cancelled leaves nothing.
    rotate(&nodes[0]).unwrap();
    let _: Accepted = nodes[1].client().delete(PATH).unwrap();
    let view = certificates(&nodes[0]);
    assert_eq!((numbers(&view), view.rotation), (vec![1], None));
    rotate(&nodes[1]).unwrap();
    assert_eq!(leave_out(&nodes[0], "n2").unwrap_err(), Code::NodeAlive);
    assert_eq!(leave_out(&nodes[0], "n9").unwrap_err(), Code::UnknownNode);
    leave_out(&nodes[0], "n3").unwrap();
    eventually("the end of the rotation", || is_over(&nodes[0], 3));
    let told = advice(&nodes[0]);
    assert!(told.contains("was left out when the authority was replaced"), "{told}");
    assert!(!told.contains("rejoins by itself"), "{told}");
    // The node returns with all that it had.
    nodes[2].start();
    std::thread::sleep(Duration::from_secs(4));
    assert!(nodes[2].lease_left_ms() == 0 && is_dead(&nodes[0], "n3"));
    nodes[2].kill();
    let mut again = TestNode::new(46, 3);
    again.start();
    let joins = ClusterJoin { replace: true, ..join_as(&nodes[0], "n3", &again.address(), None) };
    join(&again, &joins).unwrap();
    eventually("a lease of the new n3", || again.lease_left_ms() > 0);
    eventually("three certificates", || is_over(&again, 3) && certificates(&again).nodes.len() == 3);
    assert!(!advice(&nodes[0]).contains("left out"));
    again.kill();
    nodes.iter_mut().for_each(TestNode::kill);
}
