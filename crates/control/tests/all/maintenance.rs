//! Maintenance and cordons: Mainstay keeps its hands off, and an operator's orders count.

use crate::common::*;
use mainstay_control::actions::{Action, plan};
use mainstay_control::maintenance::{COUNT_MS, Scope};
use mainstay_control::reconciler::{Event, NodeSeen, Reconciler, ReconcilerTask};
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Code, NodeId, ServicePhase, Time};
use std::collections::BTreeMap;

const NOBODY: [u64; 0] = [];

fn maintenance(scope: Scope, on: bool, for_ms: Option<u64>) -> Command {
    Command::SetMaintenance { scope, on, for_ms }
}

fn db() -> Scope {
    Scope::Service { name: "db".into() }
}

fn begin(nodes: &mut Nodes, scope: Scope) {
    assert_eq!(apply_at(&mut nodes.state, 77, maintenance(scope, true, None)), Outcome::Done);
    nodes.tell();
}

fn end(nodes: &mut Nodes, scope: Scope) {
    assert_eq!(apply(&mut nodes.state, maintenance(scope, false, None)), Outcome::Done);
    nodes.tell();
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

fn dies(nodes: &mut Nodes, node: NodeId) {
    nodes.power_cut(node);
    assert!(die(&mut nodes.state, node).is_ok());
    nodes.tell();
}

fn returns(nodes: &mut Nodes, node: NodeId) {
    nodes.up.insert(node, true);
    rejoin(&mut nodes.state, node);
    nodes.tell();
}

fn scopes() -> [Scope; 3] {
    [Scope::Cluster, Scope::Node { node: A }, db()]
}

#[test]
fn nothing_fails_over_in_maintenance_and_the_primary_leads_again_where_it_was() {
    for scope in scopes() {
        let mut nodes = running();
        nodes.tell();
        begin(&mut nodes, scope.clone());
        dies(&mut nodes, A);
        assert_eq!((primary(&nodes.state), members(&nodes.state)), (None, vec![A, B]), "{scope:?}");
        assert!(nodes.runs_on().is_empty());
        let failure = nodes.state.resources[&R].failure.clone().unwrap();
        assert!(failure.contains(&format!("waits for a, or `{}`", scope.off(&nodes.state))), "{failure}");
        returns(&mut nodes, A);
        assert_eq!((primary(&nodes.state), members(&nodes.state)), (Some(A), vec![A, B]), "{scope:?}");
        assert!(nodes.runs_on().is_empty(), "{scope:?}: the service is not started");
        end(&mut nodes, scope.clone());
        assert_eq!(nodes.runs_on(), vec![A], "{scope:?}");
    }
}

#[test]
fn another_node_takes_over_when_the_maintenance_of_a_dead_node_ends() {
    for scope in scopes() {
        let mut nodes = running();
        nodes.tell();
        begin(&mut nodes, scope.clone());
        dies(&mut nodes, A);
        end(&mut nodes, scope);
        assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(B), vec![B]));
    }
}

#[test]
fn a_promotion_that_comes_late_does_not_move_what_is_in_maintenance() {
    let mut nodes = running();
    nodes.tell();
    begin(&mut nodes, db());
    assert_eq!(code(promote(&mut nodes.state, A, B)), Code::InMaintenance);
    assert!(promote(&mut nodes.state, A, A).is_ok(), "the primary itself may lead again");
}

#[test]
fn an_operator_moves_stops_and_starts_a_service_in_maintenance() {
    let mut nodes = running();
    nodes.tell();
    begin(&mut nodes, db());
    assert!(apply(&mut nodes.state, Command::MoveService { name: "db".into(), to: B }).is_ok());
    nodes.tell();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(B), vec![B]));
    assert_eq!(members(&nodes.state), [A, B], "what steps down by an order stays in sync");
    assert!(nodes.state.order_waits("db").contains("mainstay service maintenance db --off"));

    assert!(apply(&mut nodes.state, Command::StopService { name: "db".into() }).is_ok());
    nodes.tell();
    assert!(nodes.runs_on().is_empty());
    assert!(apply(&mut nodes.state, Command::StartService { name: "db".into() }).is_ok());
    nodes.tell();
    assert_eq!(nodes.runs_on(), vec![B]);
    // The order counts once: what has ended since is not started.
    nodes.observed.get_mut(&B).unwrap().services.get_mut("db").unwrap().phase = ServicePhase::Stopped;
    nodes.tell();
    assert!(nodes.runs_on().is_empty());
    end(&mut nodes, db());
    assert_eq!(nodes.runs_on(), vec![B]);
}

#[test]
fn the_end_of_the_lease_silences_a_service_in_maintenance() {
    let mut nodes = running();
    begin(&mut nodes, Scope::Cluster);
    nodes.observed.get_mut(&A).unwrap().lease_valid = false;
    let actions = plan(A, &nodes.state, &nodes.observed[&A]);
    assert!(actions.contains(&Action::KillService { name: "db".into() }), "{actions:?}");
    nodes.settle();
    nodes.observed.get_mut(&A).unwrap().lease_valid = true;
    nodes.tell();
    assert!(nodes.runs_on().is_empty(), "{:?}", nodes.observed[&A].services);
    end(&mut nodes, Scope::Cluster);
    assert_eq!(nodes.runs_on(), vec![A]);
}

#[test]
fn a_maintenance_is_begun_and_ended_once_and_keeps_when_it_began() {
    let mut nodes = running();
    begin(&mut nodes, db());
    assert_eq!(apply_at(&mut nodes.state, 99, maintenance(db(), true, None)), Outcome::Unchanged);
    assert_eq!(apply_at(&mut nodes.state, 99, maintenance(db(), true, Some(5_000))), Outcome::Done);
    let known = nodes.state.maintenance_of(&db()).unwrap();
    assert_eq!((known.at_ms, known.left_ms), (77, Some((5_000, 5_000))));
    assert_eq!(code(apply(&mut nodes.state, maintenance(db(), true, Some(1)))), Code::BadSettings);
    end(&mut nodes, db());
    assert_eq!(apply(&mut nodes.state, maintenance(db(), false, None)), Outcome::Unchanged);
    let unknown = Scope::Service { name: "x".into() };
    assert_eq!(code(apply(&mut nodes.state, maintenance(unknown, true, None))), Code::UnknownService);
    let unknown = Scope::Node { node: NodeId(9) };
    assert_eq!(code(apply(&mut nodes.state, maintenance(unknown, true, None))), Code::UnknownNode);
}

/// Returns what the reconciler of a node proposes about maintenances when it looks at everything.
fn counted(reconciler: &mut Reconciler, nodes: &Nodes, now: Time) -> Vec<u64> {
    reconciler.handle(now, &nodes.state, Event::Lease(now.plus_ms(5_000)));
    reconciler.reconcile(now, &nodes.state, &NodeSeen::default());
    let mut told = Vec::new();
    while let Some(task) = reconciler.poll(now, &nodes.state) {
        if let ReconcilerTask::Submit(Command::MaintenanceCounted { left_ms, .. }) = task {
            told.push(left_ms);
        }
    }
    told
}

#[test]
fn a_maintenance_ends_by_the_clock_of_one_node_that_records_how_much_is_left() {
    let mut nodes = running();
    let length = 2 * COUNT_MS + 5_000;
    assert!(apply(&mut nodes.state, maintenance(db(), true, Some(length))).is_ok());
    let number = nodes.state.maintenance_of(&db()).unwrap().number;
    let new = |node| Reconciler::new(node, Time(0), BTreeMap::new(), BTreeMap::new());
    let (mut first, mut second) = (new(A), new(B));
    let at = |s: u64| Time(1_000_000 + s * 1_000_000);
    assert_eq!(counted(&mut first, &nodes, at(0)), NOBODY);
    assert_eq!(counted(&mut first, &nodes, at(59)), NOBODY);
    assert_eq!(counted(&mut first, &nodes, at(60)), [length - 60_000]);
    assert_eq!(counted(&mut second, &nodes, at(60)), NOBODY, "one node counts");
    let left = |ms| Command::MaintenanceCounted { scope: db(), number, left_ms: ms };
    assert_eq!(apply(&mut nodes.state, left(length - 60_000)), Outcome::Done);
    assert_eq!(apply(&mut nodes.state, left(length - 60_000)), Outcome::Unchanged);
    assert_eq!(counted(&mut first, &nodes, at(90)), NOBODY);
    // The node that counts dies: the next one goes on from what was recorded.
    assert!(die(&mut nodes.state, A).is_ok());
    assert_eq!(counted(&mut second, &nodes, at(100)), NOBODY);
    assert_eq!(counted(&mut second, &nodes, at(160)), [5_000]);
    assert_eq!(counted(&mut second, &nodes, at(165)), [0]);
    assert_eq!(apply(&mut nodes.state, left(0)), Outcome::Done);
    assert_eq!(nodes.state.maintenance_of(&db()), None);
    assert_eq!(apply(&mut nodes.state, left(0)), Outcome::Unchanged);
}

fn cordon(node: NodeId, on: bool, drain: bool) -> Command {
    Command::SetCordon { node, on, drain }
}

#[test]
fn nothing_comes_to_a_cordoned_node_and_what_is_there_stays() {
    let mut nodes = running();
    nodes.tell();
    assert_eq!(apply(&mut nodes.state, cordon(A, true, false)), Outcome::Done);
    assert_eq!(apply(&mut nodes.state, cordon(A, true, false)), Outcome::Unchanged);
    nodes.tell();
    assert_eq!(nodes.runs_on(), vec![A]);
    assert!(apply(&mut nodes.state, Command::MoveService { name: "db".into(), to: B }).is_ok());
    nodes.tell();
    assert_eq!(nodes.runs_on(), vec![B]);
    let back = apply(&mut nodes.state, Command::MoveService { name: "db".into(), to: A });
    assert_eq!(code(back), Code::NotEligible);
    dies(&mut nodes, B);
    assert_eq!(primary(&nodes.state), None);
    assert!(apply(&mut nodes.state, cordon(A, false, false)).is_ok());
    nodes.tell();
    assert_eq!(nodes.runs_on(), vec![A]);
}

#[test]
fn a_drained_node_loses_its_primaries_if_they_have_somewhere_to_go() {
    let mut nodes = running();
    nodes.tell();
    assert!(apply(&mut nodes.state, cordon(A, true, true)).is_ok());
    nodes.tell();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(B), vec![B]));
    // The other one is drained too: there is nowhere to go.
    assert!(apply(&mut nodes.state, cordon(B, true, true)).is_ok());
    nodes.tell();
    assert_eq!(nodes.runs_on(), vec![B]);
    let why: Vec<String> =
        nodes.state.explain("db", &BTreeMap::new()).into_iter().map(|fit| fit.why).collect();
    assert!(why[0].starts_with("it is drained (`mainstay node uncordon a`"), "{why:?}");
}
