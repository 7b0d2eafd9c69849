//! A cluster whose nodes run builds of different feature levels.

use super::{PATIENCE, eventually, init, join_as, support::TestNode};
use mainstay_agent::own_state;
use mainstay_api::rest::{Accepted, ClusterView, NodeRemove, NodeStatus, StatusView};
use mainstay_types::Code;

fn view(node: &TestNode) -> ClusterView {
    node.client().get("/v1/cluster").unwrap()
}

/// The levels of the nodes in the order of their names.
fn levels(asked: &TestNode) -> Vec<u32> {
    view(asked).nodes.iter().map(|node| node.level).collect()
}

fn advice(asked: &TestNode) -> String {
    asked.client().get::<StatusView>("/v1/status").unwrap().advice.join("\n")
}

/// A cluster of nodes with builds of these levels.
fn cluster(net: u8, builds: &[u32]) -> Vec<TestNode> {
    let mut nodes: Vec<TestNode> = Vec::new();
    for (host, level) in (1..).zip(builds) {
        let mut node = TestNode::new(net, host);
        node.install(*level);
        node.start();
        match nodes.first() {
            None => drop(init(&node)),
            Some(first) => {
                let join = join_as(first, &format!("n{host}"), &node.address(), None);
                let _: ClusterView = node.client().post("/v1/cluster/join", &join).unwrap();
            }
        }
        nodes.push(node);
    }
    nodes
}

/// The agent ends, and the new build of this level runs.
fn upgrade(node: &mut TestNode, level: u32) {
    node.kill_agent();
    node.install(level);
    node.start_agent();
    eventually("a lease", || node.lease_left_ms() > 0);
}

/// Why the agent of a node does not start.
fn refusal(node: &mut TestNode) -> String {
    let output = node.agent_ends(PATIENCE);
    assert!(own_state::load(&node.state_dir()).unwrap().is_some(), "its state is kept");
    output
}

#[test]
fn nodes_of_two_levels_run_together_and_the_level_rises_with_the_last_upgrade() {
    let mut nodes = cluster(50, &[1, 1, 1]);
    assert_eq!((view(&nodes[0]).level, levels(&nodes[0])), (1, vec![1, 1, 1]));
    for index in [1, 2] {
        upgrade(&mut nodes[index], 2);
        eventually("the level of the node", || levels(&nodes[0])[index] == 2);
        assert_eq!(view(&nodes[0]).level, 1);
    }
    assert!(advice(&nodes[1]).contains("n1 runs an older build: functions of feature level 2 wait"));
    // The way back is open as long as the level has not risen.
    upgrade(&mut nodes[2], 1);
    eventually("the way back", || levels(&nodes[0]) == [1, 2, 1]);
    upgrade(&mut nodes[2], 2);
    eventually("the second upgrade", || levels(&nodes[0]) == [1, 2, 2]);
    upgrade(&mut nodes[0], 2);
    eventually("the level", || nodes.iter().all(|node| view(node).level == 2));
    assert!(!advice(&nodes[1]).contains("older build"));
    nodes.iter_mut().for_each(TestNode::kill);
}

#[test]
fn an_agent_below_the_level_of_its_cluster_is_refused_and_keeps_its_state() {
    let mut nodes = cluster(51, &[1, 2, 2]);
    // n3 is off while the level rises, and does not know of it.
    nodes[2].kill_agent();
    let is_dead = |asked: &TestNode| view(asked).nodes.iter().any(|node| node.status == NodeStatus::Dead);
    eventually("death of n3", || is_dead(&nodes[0]));
    upgrade(&mut nodes[0], 2);
    eventually("the level", || view(&nodes[1]).level == 2);
    nodes[2].install(1);
    let words = refusal(&mut nodes[2]);
    assert!(
        words.contains("the build of n3 has feature level 1, and the cluster uses feature level 2"),
        "{words}"
    );
    // The agent has learned of the level, and finds it in its own files.
    upgrade(&mut nodes[2], 2);
    eventually("return of n3", || !is_dead(&nodes[0]) && view(&nodes[2]).level == 2);
    nodes[2].kill_agent();
    nodes[2].install(1);
    let words = refusal(&mut nodes[2]);
    assert!(words.contains("feature level 1"), "{words}");
    upgrade(&mut nodes[2], 2);
    // An older build does not join, and leaves nothing.
    let mut fourth = TestNode::new(51, 4);
    fourth.install(1);
    fourth.start();
    let join = join_as(&nodes[0], "n4", &fourth.address(), None);
    let refused = fourth.client().post::<_, ClusterView>("/v1/cluster/join", &join).unwrap_err();
    assert_eq!(refused.problem().code, Code::BuildTooOld);
    assert_eq!(
        (view(&nodes[0]).nodes.len(), fourth.state_files().contains(&"identity.json".into())),
        (3, false)
    );
    upgrade_stranger(&mut fourth, 2);
    let _: ClusterView = fourth.client().post("/v1/cluster/join", &join).unwrap();
    nodes.iter_mut().for_each(TestNode::kill);
    fourth.kill();
}

fn upgrade_stranger(node: &mut TestNode, level: u32) {
    node.kill_agent();
    node.install(level);
    node.start_agent();
}

/// A dead node of an older build holds the level back until it is removed. A build that knows no
/// levels says none.
#[test]
fn a_cluster_of_builds_without_levels_gets_its_level_when_the_last_of_them_is_gone() {
    let mut nodes = cluster(52, &[0, 0, 0]);
    assert_eq!((view(&nodes[0]).level, levels(&nodes[0])), (0, vec![0, 0, 0]));
    upgrade(&mut nodes[0], 1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(levels(&nodes[0]), [0, 0, 0], "the others could not read that");
    upgrade(&mut nodes[1], 1);
    nodes[2].kill();
    let is_dead = |asked: &TestNode| view(asked).nodes.iter().any(|node| node.status == NodeStatus::Dead);
    eventually("death of n3", || is_dead(&nodes[0]));
    eventually("the levels", || levels(&nodes[0]) == [1, 1, 0]);
    assert_eq!(view(&nodes[0]).level, 0);
    let _: Accepted = nodes[0].client().post("/v1/nodes/n3/removal", &NodeRemove::default()).unwrap();
    eventually("the level", || view(&nodes[1]).level == 1);
    nodes.iter_mut().for_each(TestNode::kill);
}
