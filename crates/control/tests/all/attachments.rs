//! Nodes that have the devices of a resource and no replica of it, as the control plane sees them.

use crate::common::*;
use mainstay_control::actions::{Action, plan};
use mainstay_control::advice::{Observations, advice};
use mainstay_control::attachments::{ClientSeen, WAIT_MS_DEFAULT};
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Attachment, Code, Instance, NodeId, ResourceId};

/// Two nodes without a replica: one more than the cluster of all tests has.
const C: NodeId = NodeId(4);

fn attach(nodes: &mut Nodes, node: NodeId, take_over: bool) -> Outcome {
    let wait_ms = WAIT_MS_DEFAULT;
    apply(&mut nodes.state, Command::AttachResource { resource: R, node, wait_ms, take_over })
}

fn detach(nodes: &mut Nodes) -> Outcome {
    apply(&mut nodes.state, Command::DetachResource { resource: R })
}

fn attached(nodes: &Nodes) -> Option<Attachment> {
    nodes.state.resources[&R].record.attached
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

fn serving() -> Nodes {
    let mut state = with_resource();
    let added = Command::AddNode {
        name: "c".into(),
        agent_addr: "10.0.0.9:7400".into(),
        engine_addr: "10.0.0.9:7401".into(),
        voter: false,
        witness: false,
        nonce: 77,
    };
    assert!(apply(&mut state, added).is_ok());
    let mut nodes = Nodes::new(state);
    nodes.settle();
    nodes
}

#[test]
fn a_session_belongs_to_one_instance_and_each_is_higher() {
    let mut nodes = serving();
    assert!(attach(&mut nodes, W, false).is_ok());
    let first = attached(&nodes).unwrap();
    assert_eq!(first.instance, None, "no client writes before it is open");
    nodes.settle();
    let claimed = attached(&nodes).unwrap();
    assert!(claimed.session > first.session && claimed.instance.is_some());
    assert_eq!(attach(&mut nodes, W, false), Outcome::Unchanged);
    // The engine is started again.
    nodes.observed.get_mut(&W).unwrap().clients.clear();
    nodes.settle();
    let again = attached(&nodes).unwrap();
    assert!(again.session > claimed.session && again.instance != claimed.instance);
    // A claim that comes late.
    let late = Command::ClaimAttachment {
        resource: R,
        session: claimed.session,
        node: W,
        instance: claimed.instance.unwrap(),
    };
    assert!(matches!(apply(&mut nodes.state, late), Outcome::Conflict { .. }));
    assert_eq!(attached(&nodes), Some(again));
}

#[test]
fn one_node_at_a_time_is_attached_and_a_second_only_by_taking_over() {
    let mut nodes = serving();
    assert!(attach(&mut nodes, W, false).is_ok());
    nodes.settle();
    let before = attached(&nodes).unwrap();
    assert_eq!(code(attach(&mut nodes, C, false)), Code::AttachedElsewhere);
    assert_eq!(attached(&nodes), Some(before));
    assert!(attach(&mut nodes, C, true).is_ok());
    assert!(attached(&nodes).unwrap().session > before.session);
    nodes.settle();
    assert!(nodes.observed[&W].clients.is_empty(), "its devices go");
    assert!(detach(&mut nodes).is_ok());
    assert_eq!(detach(&mut nodes), Outcome::Unchanged);
    nodes.settle();
    assert_eq!(attached(&nodes), None);
}

#[test]
fn a_dead_node_keeps_its_attached_resources() {
    let mut nodes = serving();
    assert!(attach(&mut nodes, W, false).is_ok());
    nodes.settle();
    let before = attached(&nodes);
    assert!(die(&mut nodes.state, W).is_ok());
    assert_eq!(attached(&nodes), before);
}

#[test]
fn an_impossible_attachment_is_refused_with_the_reason() {
    let mut nodes = serving();
    assert_eq!(code(attach(&mut nodes, A, false)), Code::HasReplica);
    assert_eq!(code(attach(&mut nodes, NodeId(99), false)), Code::UnknownNode);
    let wait = |wait_ms| Command::AttachResource { resource: R, node: W, wait_ms, take_over: false };
    assert_eq!(code(apply(&mut nodes.state, wait(999))), Code::BadWait);
    assert_eq!(code(apply(&mut nodes.state, wait(3_600_001))), Code::BadWait);
    assert!(apply(&mut nodes.state, Command::ApplyService { spec: db_service() }).is_ok());
    assert_eq!(code(attach(&mut nodes, W, false)), Code::ResourceInUse);
}

#[test]
fn a_resource_that_is_attached_is_left_alone() {
    let mut nodes = serving();
    assert!(attach(&mut nodes, W, false).is_ok());
    nodes.settle();
    let refused = |nodes: &mut Nodes, command| code(apply(&mut nodes.state, command));
    assert_eq!(refused(&mut nodes, Command::ApplyService { spec: db_service() }), Code::Attached);
    assert_eq!(refused(&mut nodes, Command::AddReplica { resource: R, node: W }), Code::Attached);
    assert_eq!(refused(&mut nodes, Command::MoveReplica { resource: R, from: B, to: W }), Code::Attached);
    assert_eq!(refused(&mut nodes, Command::DeleteResource { resource: R }), Code::Attached);
    assert!(apply(&mut nodes.state, Command::AddReplica { resource: R, node: C }).is_ok(), "elsewhere");
}

#[test]
fn clients_of_unknown_resources_are_closed_and_ended_clients_opened_anew() {
    let mut nodes = serving();
    let other = ResourceId(9);
    let observed = nodes.observed.get_mut(&W).unwrap();
    observed.clients.insert(other, ClientSeen { instance: Instance(70), ..ClientSeen::default() });
    let actions = plan(W, &nodes.state, &nodes.observed[&W]);
    assert_eq!(actions, [Action::DetachClient { resource: other }]);
    nodes.settle();
    assert!(attach(&mut nodes, W, false).is_ok());
    nodes.settle();
    let before = attached(&nodes).unwrap();
    nodes.observed.get_mut(&W).unwrap().clients.get_mut(&R).unwrap().over = true;
    nodes.settle();
    let seen = nodes.observed[&W].clients[&R];
    assert!(seen.ready && !seen.over);
    assert!(attached(&nodes).unwrap().session > before.session, "in a new session");
    assert_eq!(attached(&nodes).unwrap().instance, Some(seen.instance));
    // Nothing is due any more.
    assert_eq!(plan(W, &nodes.state, &nodes.observed[&W]), []);
}

#[test]
fn attached_resources_are_not_rolled_back_nor_rolled_back_ones_attached() {
    let mut nodes = serving();
    assert!(apply(&mut nodes.state, Command::TakeSnapshot { resource: R, name: "s".into() }).is_ok());
    assert!(attach(&mut nodes, W, false).is_ok());
    nodes.settle();
    let wish = Command::RollBack { resource: R, last: 1, name: "s".into(), keep: None, restart: true };
    assert_eq!(code(apply(&mut nodes.state, wish.clone())), Code::Attached);
    assert!(detach(&mut nodes).is_ok());
    assert!(apply(&mut nodes.state, wish).is_ok());
    assert_eq!(code(attach(&mut nodes, W, false)), Code::RollingBack);
    nodes.settle();
    assert_eq!(nodes.rollbacks, 1);
    assert!(attach(&mut nodes, W, false).is_ok());
}

#[test]
fn an_attachment_of_a_dead_node_stays_and_is_said() {
    let mut nodes = serving();
    assert!(attach(&mut nodes, W, false).is_ok());
    nodes.settle();
    let seen = Observations { has_leader: true, ..Observations::default() };
    let said = |nodes: &Nodes| {
        let list = advice(&nodes.state, &seen);
        list.into_iter().find(|one| one.what.contains("is attached to")).map(|one| one.remedy)
    };
    assert_eq!(said(&nodes), None);
    assert!(die(&mut nodes.state, W).is_ok());
    assert!(attached(&nodes).is_some_and(|attached| attached.node == W));
    let remedy = said(&nodes).expect("advice");
    assert!(remedy.contains("--take-over") && remedy.contains("resource detach"), "{remedy}");
    assert!(attach(&mut nodes, C, true).is_ok());
    assert_eq!(said(&nodes), None);
}
