//! Facts of events: what programs learn without reading a text.

use crate::common::{A, B, R, W, apply_at, die, promote, ready};
use mainstay_control::facts::{Cause, DecidedBy, Fact};
use mainstay_control::hooks::{AddressChange, STAGES, due, of_address, starting};
use mainstay_control::state::{Command, State};
use mainstay_ha::ServiceSpec;
use mainstay_types::{Epoch, NodeId, ServicePhase};

fn with_service() -> State {
    let mut state = ready();
    let spec = ServiceSpec::parse("name='web'\nresource='db'\n[vip]\naddress='10.9.0.7/24'\n").unwrap();
    assert!(apply_at(&mut state, 0, Command::ApplyService { spec }).is_ok());
    report(&mut state, 1_000, A, ServicePhase::Running);
    state
}

fn report(state: &mut State, at_ms: u64, node: NodeId, phase: ServicePhase) {
    let record = &state.resources[&R].record;
    let command = Command::ServiceStatus {
        name: "web".into(),
        node,
        phase,
        epoch: record.epoch,
        round: 1,
        detail: "its reason".into(),
        failures: u32::from(phase == ServicePhase::Failed),
        passes: false,
        last_failure: String::new(),
    };
    assert!(apply_at(state, at_ms, command).is_ok());
}

/// The facts since an event, with the nodes that run hooks for them.
fn facts_since(state: &State, index: u64) -> Vec<(&Fact, Option<NodeId>)> {
    let newer = state.events.iter().filter(|event| event.index > index);
    newer.filter_map(|event| Some((event.fact.as_ref()?, event.on))).collect()
}

fn cause_of_last(state: &State) -> Cause {
    state.primary_changes().last().expect("a change").cause
}

#[test]
fn a_death_is_told_with_the_change_that_follows_and_its_hooks_run_on_living_nodes() {
    let mut state = with_service();
    let (before, epoch) = (state.last_event, state.resources[&R].record.epoch);
    let next = Epoch(epoch.0 + 1);
    let generation = state.nodes[&A].generation;
    apply_at(&mut state, 5_000, Command::NodeDead { node: A, generation });
    report(&mut state, 6_500, B, ServicePhase::Running);
    let facts = facts_since(&state, before);
    let lost = Fact::NodeLost { node: "a".into() };
    let changed = Fact::PrimaryChanged {
        resource: "db".into(),
        from: Some("a".into()),
        to: "b".into(),
        epoch: next,
        cause: Cause::NodeDead,
    };
    let started =
        Fact::ServiceStarted { service: "web".into(), resource: "db".into(), node: "b".into(), epoch: next };
    assert_eq!(facts, [(&lost, Some(B)), (&changed, Some(B)), (&started, Some(B))]);
    let changes = state.primary_changes();
    let last = changes.last().unwrap();
    assert_eq!((last.from, last.to, last.service), (Some("a"), Some("b"), Some("web")));
    assert_eq!((last.at_ms, last.running_ms, last.epoch), (5_000, Some(6_500), next));
    assert_eq!(last.cause.decided_by(), DecidedBy::Cluster);
    assert_eq!(state.primary_change("db", next), Some((Some("a"), Cause::NodeDead, 5_000)));
    // The service stops later: that is no stage of the change.
    let stages = last.stages.len();
    report(&mut state, 9_000, B, ServicePhase::Stopped);
    assert_eq!(state.primary_changes().last().unwrap().stages.len(), stages);
}

#[test]
fn each_cause_is_told_as_it_was() {
    let mut state = with_service();
    assert_eq!(state.primary_changes()[0].cause, Cause::First);
    promote(&mut state, A, A);
    assert_eq!(cause_of_last(&state), Cause::Restarted);
    assert!(apply_at(&mut state, 0, Command::MoveService { name: "web".into(), to: B }).is_ok());
    promote(&mut state, A, B);
    assert_eq!(cause_of_last(&state), Cause::Operator);
    assert_eq!(cause_of_last(&state).decided_by(), DecidedBy::Operator);
    apply_at(&mut state, 0, Command::SetCordon { node: B, on: true, drain: true });
    promote(&mut state, B, A);
    assert_eq!(cause_of_last(&state), Cause::Drained);
    assert_eq!(cause_of_last(&state).decided_by(), DecidedBy::Operator);
    apply_at(&mut state, 0, Command::SetCordon { node: B, on: false, drain: false });
    promote(&mut state, A, B);
    let version = state.resources[&R].record.version;
    apply_at(&mut state, 0, Command::StepDown { resource: R, version, node: B, reason: "its disk".into() });
    assert_eq!(cause_of_last(&state), Cause::SteppedDown);
    let mut state = with_service();
    report(&mut state, 2_000, A, ServicePhase::Failed);
    promote(&mut state, A, B);
    assert_eq!(cause_of_last(&state), Cause::ServiceFailed);
    let failed = state.events.iter().rev().find_map(|event| match &event.fact {
        Some(Fact::ServiceFailed { why, given_up, node, .. }) => Some((why.clone(), *given_up, node.clone())),
        _ => None,
    });
    assert_eq!(failed, Some(("its reason".into(), true, "a".into())));
}

#[test]
fn a_resource_that_no_node_can_take_over_is_told_as_well() {
    let mut state = with_service();
    die(&mut state, B);
    let before = state.last_event;
    die(&mut state, A);
    let facts = facts_since(&state, before);
    let lost = Fact::PrimaryLost { resource: "db".into(), from: Some("a".into()), cause: Cause::NodeDead };
    assert!(facts.contains(&(&lost, Some(W))), "{facts:?}");
    let changes = state.primary_changes();
    assert_eq!(changes.last().map(|change| (change.to, change.cause)), Some((None, Cause::NodeDead)));
}

/// An event of another version: its text is there, its fact is not known.
#[test]
fn a_fact_or_cause_of_a_later_version_is_read_as_unknown() {
    let fact: Fact = serde_json::from_str(r#"{"fact":"moon-rises","node":"a"}"#).unwrap();
    assert_eq!(fact, Fact::Unknown);
    assert_eq!(serde_json::from_str::<Cause>("\"eclipse\"").unwrap(), Cause::Other);
    for cause in [Cause::First, Cause::Operator, Cause::NodeDead, Cause::SteppedDown, Cause::DiskLost] {
        assert_eq!(serde_json::to_string(&cause).unwrap(), format!("\"{}\"", cause.word()));
    }
}

#[test]
fn each_hook_runs_once_on_one_node_with_the_environment_of_its_stage() {
    let mut state = with_service();
    let before = state.last_event;
    let generation = state.nodes[&A].generation;
    apply_at(&mut state, 5_000, Command::NodeDead { node: A, generation });
    report(&mut state, 6_500, B, ServicePhase::Running);
    let stages = |state: &State, node, done| {
        let (hooks, done) = due(state, node, done, 7_000);
        (hooks.iter().map(|hook| hook.stage).collect::<Vec<_>>(), done)
    };
    let all = [
        "node-lost",
        "failover-begin",
        "primary-changed",
        "service-started",
        "service-moved",
        "failover-end",
    ];
    assert_eq!(stages(&state, B, before), (all.to_vec(), state.last_event));
    for other in [A, W] {
        assert_eq!(stages(&state, other, before).0, Vec::<&str>::new(), "another node runs them");
    }
    assert_eq!(stages(&state, B, state.last_event).0, Vec::<&str>::new(), "they have run");
    let (hooks, _) = due(&state, B, before, 7_000);
    let last = hooks.last().unwrap();
    for (name, value) in [
        ("MAINSTAY_STAGE", "failover-end"),
        ("MAINSTAY_CLUSTER", "c"),
        ("MAINSTAY_RESOURCE", "db"),
        ("MAINSTAY_SERVICE", "web"),
        ("MAINSTAY_FROM", "a"),
        ("MAINSTAY_TO", "b"),
        ("MAINSTAY_CAUSE", "node-dead"),
        ("MAINSTAY_DECIDED_BY", "cluster"),
        ("MAINSTAY_ADDRESSES", "10.9.0.7/24"),
        ("MAINSTAY_TIME_MS", "6500"),
    ] {
        assert_eq!(last.environment.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(hooks.iter().all(|hook| STAGES.contains(&hook.stage)));
    // A restart of the service in the same epoch is no failover.
    let done = state.last_event;
    report(&mut state, 8_000, B, ServicePhase::Stopped);
    report(&mut state, 9_000, B, ServicePhase::Running);
    assert_eq!(stages(&state, B, done).0, ["service-stopped", "service-started"]);
    // A node that comes back after a long time does not tell what is history.
    assert_eq!(due(&state, B, before, 5_000_000).0, []);
}

#[test]
fn a_move_by_an_operator_is_no_failover() {
    let mut state = with_service();
    assert!(apply_at(&mut state, 0, Command::MoveService { name: "web".into(), to: B }).is_ok());
    let before = state.last_event;
    promote(&mut state, A, B);
    report(&mut state, 2_000, B, ServicePhase::Running);
    let (hooks, _) = due(&state, B, before, 2_000);
    let stages: Vec<_> = hooks.iter().map(|hook| hook.stage).collect();
    assert_eq!(stages, ["primary-changed", "service-started", "service-moved"]);
    assert_eq!(hooks[0].environment["MAINSTAY_DECIDED_BY"], "operator");
}

#[test]
fn the_hook_before_a_start_knows_the_service_the_node_and_why_it_comes_there() {
    let mut state = with_service();
    let generation = state.nodes[&A].generation;
    apply_at(&mut state, 5_000, Command::NodeDead { node: A, generation });
    let hook = starting(&state, B, "web", 6_000);
    let of = |name| hook.environment.get(name).map_or("", String::as_str);
    assert_eq!((hook.stage, of("MAINSTAY_STAGE")), ("service-starting", "service-starting"));
    assert_eq!((of("MAINSTAY_SERVICE"), of("MAINSTAY_RESOURCE")), ("web", "db"));
    assert_eq!((of("MAINSTAY_FROM"), of("MAINSTAY_TO")), ("a", "b"));
    assert_eq!((of("MAINSTAY_CAUSE"), of("MAINSTAY_DECIDED_BY")), ("node-dead", "cluster"));
    assert_eq!((of("MAINSTAY_ADDRESSES"), of("MAINSTAY_TIME_MS")), ("10.9.0.7/24", "6000"));
    assert_eq!(of("MAINSTAY_TEXT"), "service web is about to start on b");
    assert!(STAGES.contains(&hook.stage));
}

#[test]
fn the_hooks_of_an_address_know_it_with_its_interface_node_and_cause() {
    let mut state = with_service();
    let told = |state: &State, node, added, lease_ended| {
        let (service, address, interface) = ("web", "10.9.0.7/24", "eth1");
        let hook =
            of_address(state, node, AddressChange { service, address, interface, added, lease_ended }, 0);
        assert!(STAGES.contains(&hook.stage));
        let of = |name: &str| hook.environment.get(name).cloned().unwrap_or_default();
        assert_eq!([of("MAINSTAY_ADDRESS"), of("MAINSTAY_INTERFACE")], ["10.9.0.7/24", "eth1"]);
        assert_eq!([of("MAINSTAY_SERVICE"), of("MAINSTAY_STAGE")], ["web", hook.stage]);
        (hook.stage, of("MAINSTAY_FROM"), of("MAINSTAY_TO"), of("MAINSTAY_CAUSE"))
    };
    let expect = |stage, from: &str, to: &str, cause: &str| (stage, from.into(), to.into(), cause.into());
    assert_eq!(told(&state, A, true, false), expect("address-added", "", "a", "first"));
    assert_eq!(told(&state, A, false, false), expect("address-removed", "a", "", "other"));
    assert_eq!(told(&state, A, false, true), expect("address-removed", "a", "", "node-dead"));
    apply_at(&mut state, 0, Command::MoveService { name: "web".into(), to: B });
    assert_eq!(told(&state, A, false, false), expect("address-removed", "a", "b", "operator"));
    assert!(promote(&mut state, A, B).is_ok());
    assert_eq!(told(&state, A, false, false), expect("address-removed", "a", "b", "operator"));
    assert_eq!(told(&state, B, true, false), expect("address-added", "a", "b", "operator"));
    apply_at(&mut state, 0, Command::StopService { name: "web".into() });
    assert_eq!(told(&state, B, false, false), expect("address-removed", "b", "", "operator"));
    apply_at(&mut state, 0, Command::StartService { name: "web".into() });
    apply_at(&mut state, 0, Command::SetCordon { node: B, on: true, drain: true });
    assert_eq!(told(&state, B, false, false), expect("address-removed", "b", "a", "drained"));
}
