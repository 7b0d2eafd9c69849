use super::*;
use mainstay_api::routes::ROUTES;
use mainstay_control::state::{Command, Entry, Outcome, ResourceSpec, ServiceOnNode, Settings};
use mainstay_ha::ServiceSpec;
use mainstay_types::{Choices, Epoch, Incarnation, ResourceId, SnapshotOn};
use serde_json::json;

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const DB: ResourceId = ResourceId(1);

fn apply(state: &mut State, command: Command) {
    let outcome = state.apply(Entry { at_ms: 0, command });
    assert!(!matches!(outcome, Outcome::Refused(_) | Outcome::Conflict { .. }), "{outcome:?}");
}

fn promote(state: &mut State, to: NodeId) {
    let (expect_version, primary) =
        (state.resources[&DB].record.version, state.resources[&DB].record.primary);
    let by = primary.unwrap_or(to);
    apply(state, Command::Promote { resource: DB, expect_version, by, to, reason: "test".into() });
}

/// Two nodes with a replica each, the first with the primary, and a service.
fn cluster() -> State {
    let mut state = State::default();
    apply(&mut state, Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
    for (nonce, name) in [(1, "n1"), (2, "n2")] {
        let (agent_addr, engine_addr) = (format!("{name}:7400"), format!("{name}:7401"));
        let name = name.into();
        apply(
            &mut state,
            Command::AddNode { name, agent_addr, engine_addr, voter: true, witness: false, nonce },
        );
        for node in state.nodes.keys().copied().collect::<Vec<_>>() {
            let voters_version = state.voters_version;
            apply(&mut state, Command::VotersSeen { node, voters_version });
        }
    }
    let (volumes, replicas) = (vec![1 << 30], vec![N1, N2]);
    let spec = ResourceSpec { volumes, journal_bytes: 64 << 20, replicas, preferred: vec![N1] };
    let name = "db".into();
    apply(&mut state, Command::CreateResource { name, spec, choices: Choices::default(), origin: None });
    for node in [N1, N2] {
        let version = state.resources[&DB].record.version;
        let incarnation = Incarnation(100 + u64::from(node.0));
        apply(&mut state, Command::ReplicaReady { resource: DB, version, node, incarnation });
    }
    if state.resources[&DB].record.primary != Some(N1) {
        promote(&mut state, N1);
    }
    state
}

fn runs(work: &Work, state: &State) -> bool {
    matches!(work.look(state), Some(Look::Runs(_)))
}

fn is_done(work: &Work, state: &State) -> bool {
    matches!(work.look(state), Some(Look::Done(_)))
}

fn failure(work: &Work, state: &State) -> Code {
    match work.look(state) {
        Some(Look::Failed(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}

/// The report of a node on a service.
fn reported(phase: ServicePhase) -> ServiceOnNode {
    ServiceOnNode {
        phase,
        epoch: Epoch(2),
        round: 1,
        detail: String::new(),
        failures: 0,
        last_failure: String::new(),
        last_failure_ms: 0,
        failed_round: None,
        passes: false,
        at_ms: 0,
    }
}

fn db(state: &mut State) -> &mut Resource {
    state.resources.get_mut(&DB).unwrap()
}

#[test]
fn every_long_route_has_work_that_is_followed() {
    let (state, body) =
        (cluster(), json!({ "on": true, "drain": true, "to": "n2", "node": "n2", "name": "s" }));
    let long: Vec<_> = ROUTES.iter().filter(|route| route.is_long).collect();
    assert!(long.len() > 10, "{long:?}");
    for route in long {
        let path = route.path.replace("{name}", "db").replace("{node}", "n1").replace("{volume}", "0");
        let work = Work::of(route.method, &path, &body, &body, &state);
        // The answer comes when a new resource has its devices.
        let is_made = (route.method, route.path) == ("POST", "/v1/resources");
        assert_eq!(work == Work::Answered, is_made, "{route:?}");
    }
    let cordon = json!({ "on": true });
    assert_eq!(Work::of("PUT", "/v1/nodes/n1/cordon", &cordon, &body, &state), Work::Answered);
}

#[test]
fn work_ends_with_what_the_record_tells() {
    let mut state = cluster();
    // The primary of a resource.
    let moved = Work::MovePrimary { resource: "db".into(), to: "n2".into() };
    assert_eq!(failure(&moved, &state), Code::NotEligible);
    apply(&mut state, Command::MovePrimary { resource: DB, to: N2 });
    assert!(runs(&moved, &state));
    promote(&mut state, N2);
    assert!(is_done(&moved, &state));
    let nowhere = Work::MovePrimary { resource: "db".into(), to: "n9".into() };
    assert_eq!(failure(&nowhere, &state), Code::NotEligible);

    // All primaries of a node.
    let drain = Work::Drain { node: "n2".into() };
    assert!(matches!(drain.look(&state), Some(Look::Cancelled(_))));
    apply(&mut state, Command::SetCordon { node: N2, on: true, drain: true });
    let Some(Look::Runs(message)) = drain.look(&state) else { panic!("it does not run") };
    assert!(message.ends_with("still there: db"), "{message}");
    promote(&mut state, N1);
    assert!(is_done(&drain, &state));
    apply(&mut state, Command::SetCordon { node: N2, on: false, drain: false });

    // A service.
    let spec = ServiceSpec::parse("name='db'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\n");
    apply(&mut state, Command::ApplyService { spec: spec.unwrap() });
    let moved = Work::MoveService { service: "db".into(), to: "n2".into() };
    apply(&mut state, Command::MoveService { name: "db".into(), to: N2 });
    assert!(runs(&moved, &state));
    promote(&mut state, N2);
    let service = |state: &mut State, phase, stopped: bool| {
        let known = state.services.get_mut("db").unwrap();
        known.nodes.insert(N2, reported(phase));
        known.stopped = stopped.then_some(mainstay_control::orders::Stopped { at_ms: 0 });
    };
    service(&mut state, ServicePhase::Starting, false);
    assert!(runs(&moved, &state), "the primary is there, and the service is not yet");
    service(&mut state, ServicePhase::Running, false);
    assert!(is_done(&moved, &state));
    service(&mut state, ServicePhase::Failed, false);
    assert_eq!(failure(&moved, &state), Code::ServiceFailed);
    service(&mut state, ServicePhase::Stopped, true);
    assert!(is_done(&moved, &state));
    let deleted = Work::DeleteService { service: "db".into() };
    state.services.get_mut("db").unwrap().deleting = true;
    assert!(runs(&deleted, &state));
    state.services.clear();
    assert!(is_done(&deleted, &state));
    assert_eq!(failure(&moved, &state), Code::Deleted);
}

#[test]
fn work_on_a_resource_ends_with_what_the_record_tells() {
    let mut state = cluster();
    let (resource, n1, n2) = ("db".to_owned(), "n1".to_owned(), "n2".to_owned());
    let added = Work::AddReplica { resource: resource.clone(), node: n2.clone() };
    assert!(is_done(&added, &state));
    let iss = db(&mut state).record.iss.clone();
    db(&mut state).record.iss.retain(|member| member.node == N1);
    assert!(runs(&added, &state));
    let removed = Work::RemoveReplica { resource: resource.clone(), node: n2.clone() };
    let moved = Work::MoveReplica { resource: resource.clone(), from: n1.clone(), to: n2.clone() };
    assert!(runs(&removed, &state));
    db(&mut state).moving.insert(N1, N2);
    assert!(runs(&moved, &state));
    db(&mut state).moving.clear();
    assert_eq!(failure(&moved, &state), Code::NotEligible);
    db(&mut state).spec.replicas = vec![N2];
    assert!(is_done(&moved, &state));
    db(&mut state).spec.replicas = vec![N1];
    assert_eq!(failure(&added, &state), Code::NotEligible);
    db(&mut state).leaving.insert(N2, Incarnation(1));
    assert!(runs(&removed, &state));
    db(&mut state).leaving.clear();
    assert!(is_done(&removed, &state));
    db(&mut state).spec.replicas = vec![N1, N2];
    db(&mut state).record.iss = iss;

    let grown = Work::Resize { resource: resource.clone(), volume: 0 };
    db(&mut state).growing.insert(VolumeId(0), 2 << 30);
    assert!(runs(&grown, &state));
    db(&mut state).growing.clear();
    assert!(is_done(&grown, &state));

    let taken = Work::TakeSnapshot { resource: resource.clone(), snapshot: "s".into() };
    assert_eq!(failure(&taken, &state), Code::Deleted);
    apply(&mut state, Command::TakeSnapshot { resource: DB, name: "s".into() });
    assert!(runs(&taken, &state));
    let on = |state: &mut State, node, of| {
        let snapshot = db(state).snapshots.values_mut().next().unwrap();
        snapshot.nodes.insert(node, SnapshotOn { at: mainstay_types::Index(1), state: of });
    };
    on(&mut state, N1, SnapshotState::Missing);
    on(&mut state, N2, SnapshotState::Taking);
    assert!(runs(&taken, &state));
    on(&mut state, N2, SnapshotState::Missing);
    assert_eq!(failure(&taken, &state), Code::NotTaken);
    on(&mut state, N2, SnapshotState::Held);
    assert!(is_done(&taken, &state));
    on(&mut state, N1, SnapshotState::Held);

    let back = Work::RollBack { resource: resource.clone(), snapshot: "s".into() };
    assert_eq!(failure(&back, &state), Code::NotRolledBack);
    let last = db(&mut state).last_snapshot;
    let (name, keep, restart) = ("s".into(), Some("kept".into()), false);
    apply(&mut state, Command::RollBack { resource: DB, last, name, keep, restart });
    assert!(runs(&back, &state));

    let deleted = Work::DeleteResource { resource };
    db(&mut state).deleting = true;
    assert!(runs(&deleted, &state));
    assert_eq!(failure(&grown, &state), Code::Deleted);
    state.resources.clear();
    assert!(is_done(&deleted, &state));
}

#[test]
fn a_rotation_ends_with_the_authority_that_issues() {
    let state = cluster();
    let work = Work::Rotate { to: 2 };
    assert_eq!(failure(&work, &state), Code::NotEligible);
    assert_eq!(work.cancel_needs(), Some(Access::Admin));
}
