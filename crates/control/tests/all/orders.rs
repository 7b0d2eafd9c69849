//! Orders of an operator about a service: stop, start, restart.

use crate::common::*;
use mainstay_control::State;
use mainstay_control::actions::{Action, plan};
use mainstay_control::advice::{Observations, advice};
use mainstay_control::state::{Command, Outcome};
use mainstay_ha::ServiceSpec;
use mainstay_types::{Code, NodeId, ServicePhase, Severity};

fn stop() -> Command {
    Command::StopService { name: "db".into() }
}

fn start() -> Command {
    Command::StartService { name: "db".into() }
}

fn restart(process: Option<&str>) -> Command {
    Command::RestartService { name: "db".into(), process: process.map(Into::into) }
}

fn report(nodes: &mut Nodes, node: NodeId, phase: ServicePhase, failures: u32) {
    let service = nodes.observed.get_mut(&node).unwrap().services.get_mut("db").unwrap();
    service.phase = phase;
    let (epoch, round) = (service.epoch, service.round);
    let command = Command::ServiceStatus {
        name: "db".into(),
        node,
        phase,
        epoch,
        round,
        detail: "exit 1".into(),
        failures,
        passes: false,
        last_failure: String::new(),
    };
    apply(&mut nodes.state, command);
}

fn stopped() -> Nodes {
    let mut nodes = running();
    assert_eq!(apply_at(&mut nodes.state, 77, stop()), Outcome::Done);
    nodes.settle();
    assert!(nodes.runs_on().is_empty());
    nodes
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

#[test]
fn a_stopped_service_stays_stopped_and_its_resource_stays_primary() {
    let mut nodes = stopped();
    let epoch = nodes.state.resources[&R].record.epoch;
    assert_eq!(primary(&nodes.state), Some(A));
    assert_eq!(nodes.state.services["db"].stopped.map(|stopped| stopped.at_ms), Some(77));
    assert_eq!(apply_at(&mut nodes.state, 99, stop()), Outcome::Unchanged, "it is stopped already");
    assert_eq!(nodes.state.services["db"].stopped.map(|stopped| stopped.at_ms), Some(77));
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.state.resources[&R].record.epoch), (Some(A), epoch));

    assert_eq!(apply(&mut nodes.state, start()), Outcome::Done);
    assert_eq!(apply(&mut nodes.state, start()), Outcome::Unchanged);
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![A]);
}

#[test]
fn the_resource_of_a_stopped_service_fails_over_and_the_service_stays_stopped() {
    let mut nodes = stopped();
    nodes.power_cut(A);
    assert!(die(&mut nodes.state, A).is_ok());
    nodes.settle();
    assert_eq!(primary(&nodes.state), Some(B), "as a volume");
    assert!(nodes.runs_on().is_empty());
    rejoin(&mut nodes.state, A);
    nodes.settle();
    assert!(nodes.runs_on().is_empty(), "nor does the return of a node start it");
    apply(&mut nodes.state, start());
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![B]);
}

#[test]
fn neither_a_changed_file_nor_a_move_starts_a_stopped_service() {
    let mut nodes = stopped();
    let mut spec = db_service();
    spec.mount.as_mut().unwrap().options = "noatime".into();
    assert!(apply(&mut nodes.state, Command::ApplyService { spec }).is_ok());
    nodes.settle();
    assert!(nodes.runs_on().is_empty());
    assert!(nodes.state.events.iter().any(|event| event.text.contains("stays stopped")));
    assert!(apply(&mut nodes.state, Command::MoveService { name: "db".into(), to: B }).is_ok());
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(B), vec![]), "its resource moves");
    apply(&mut nodes.state, start());
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![B]);
}

#[test]
fn a_stopped_service_does_not_go_back_to_its_preferred_node() {
    let mut nodes = running();
    let mut spec = db_service();
    (spec.policy.preferred, spec.policy.failback) = (vec!["b".into()], true);
    apply(&mut nodes.state, stop());
    apply(&mut nodes.state, Command::ApplyService { spec });
    nodes.settle();
    assert_eq!(primary(&nodes.state), Some(A));
    apply(&mut nodes.state, start());
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(B), vec![B]));
}

#[test]
fn a_start_clears_the_failures_of_a_service_that_failed_everywhere() {
    let mut nodes = running();
    for node in [A, B] {
        report(&mut nodes, node, ServicePhase::Failed, 4);
        nodes.settle();
    }
    assert!(nodes.state.services["db"].halted.is_some());
    assert_eq!(apply(&mut nodes.state, start()), Outcome::Done);
    nodes.settle();
    assert_eq!(nodes.runs_on().len(), 1);
    assert_eq!(apply(&mut nodes.state, start()), Outcome::Unchanged, "there is nothing to clear");
}

#[test]
fn a_service_that_fails_while_it_is_being_stopped_is_neither_moved_nor_tried_again() {
    let mut nodes = running();
    apply(&mut nodes.state, stop());
    report(&mut nodes, A, ServicePhase::Failed, 4);
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(A), vec![]));
    assert!(nodes.state.services["db"].halted.is_none());
    let round = nodes.state.services["db"].round;
    let generation = nodes.state.nodes[&B].generation;
    apply_at(&mut nodes.state, 120_000, Command::NodeDead { node: B, generation });
    assert_eq!(nodes.state.services["db"].round, round);
}

fn restarts(state: &State, nodes: &Nodes, node: NodeId) -> Vec<Option<usize>> {
    let actions = plan(node, state, &nodes.observed[&node]).into_iter();
    actions
        .filter_map(|action| match action {
            Action::RestartService { process, .. } => Some(process),
            _ => None,
        })
        .collect()
}

#[test]
fn an_operators_restart_is_done_once_where_the_service_runs() {
    let mut nodes = running();
    let text = "name='db'\nresource='db'\n[[process]]\nname='one'\ncommand=['/bin/one']\n[[process]]\nname='two'\ncommand=['/bin/two']\n";
    apply(&mut nodes.state, Command::ApplyService { spec: ServiceSpec::parse(text).unwrap() });
    nodes.settle();
    report(&mut nodes, A, ServicePhase::Running, 0);
    assert_eq!(apply(&mut nodes.state, restart(Some("two"))), Outcome::Done);
    assert_eq!(restarts(&nodes.state, &nodes, A), [Some(1)]);
    assert!(restarts(&nodes.state, &nodes, B).is_empty());
    let number = nodes.state.services["db"].restart.as_ref().unwrap().number;
    nodes.settle();
    assert_eq!(nodes.observed[&A].services["db"].restarted, number);
    assert!(nodes.state.services["db"].restart.is_none(), "the node says that it is done");
    assert!(restarts(&nodes.state, &nodes, A).is_empty());
    assert_eq!(nodes.state.services["db"].failures_on(A), 0);
    assert_eq!(primary(&nodes.state), Some(A));
    // The next one has a higher number, or the node would take it for the one that it has done.
    apply(&mut nodes.state, restart(None));
    assert_eq!(restarts(&nodes.state, &nodes, A), [None]);
    assert!(nodes.state.services["db"].restart.as_ref().unwrap().number > number);
    let late = Command::ServiceRestarted { name: "db".into(), number };
    assert_eq!(apply(&mut nodes.state, late), Outcome::Unchanged);
}

#[test]
fn a_restart_ends_with_the_epoch_in_which_it_was_asked_for() {
    let mut nodes = running();
    report(&mut nodes, A, ServicePhase::Running, 0);
    apply(&mut nodes.state, restart(None));
    nodes.power_cut(A);
    die(&mut nodes.state, A);
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![B]);
    assert!(nodes.state.services["db"].restart.is_none(), "it was started anew on b");
    report(&mut nodes, B, ServicePhase::Running, 0);
    apply(&mut nodes.state, restart(None));
    apply(&mut nodes.state, stop());
    assert!(nodes.state.services["db"].restart.is_none());
}

#[test]
fn a_restart_of_what_does_not_run_is_refused_with_the_command_that_helps() {
    let mut nodes = running();
    report(&mut nodes, A, ServicePhase::Running, 0);
    assert_eq!(code(apply(&mut nodes.state, restart(Some("other")))), Code::UnknownProcess);
    report(&mut nodes, A, ServicePhase::BackingOff, 1);
    assert_eq!(code(apply(&mut nodes.state, restart(None))), Code::ServiceNotRunning);
    apply(&mut nodes.state, stop());
    assert_eq!(code(apply(&mut nodes.state, restart(None))), Code::ServiceStopped);
    for command in [
        Command::StopService { name: "x".into() },
        Command::StartService { name: "x".into() },
        Command::RestartService { name: "x".into(), process: None },
    ] {
        assert_eq!(code(apply(&mut nodes.state, command)), Code::UnknownService);
    }
    let outcome = apply(&mut nodes.state, Command::StopService { name: "dbb".into() });
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(refusal.remedy.starts_with("did you mean db? see `"), "{refusal:?}");
}

#[test]
fn a_resource_is_rolled_back_without_more_ado_while_its_service_is_stopped() {
    let mut nodes = stopped();
    apply(&mut nodes.state, Command::TakeSnapshot { resource: R, name: "s".into() });
    nodes.settle();
    let last = nodes.state.resources[&R].last_snapshot;
    let wish = Command::RollBack { resource: R, last, name: "s".into(), keep: None, restart: false };
    assert_eq!(apply(&mut nodes.state, wish), Outcome::Done);
    nodes.settle();
    assert!(nodes.runs_on().is_empty());
}

#[test]
fn a_service_that_an_operator_stopped_needs_attention_only_until_it_has_stopped() {
    let mut nodes = running();
    report(&mut nodes, A, ServicePhase::Running, 0);
    apply(&mut nodes.state, stop());
    let told = |nodes: &Nodes| {
        let told = advice(&nodes.state, &Observations::default()).into_iter();
        told.filter(|advice| advice.subject == "service db").collect::<Vec<_>>()
    };
    let first = told(&nodes);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].severity == Severity::Info && first[0].what.contains("an operator"), "{first:?}");
    report(&mut nodes, A, ServicePhase::Stopped, 0);
    assert_eq!(told(&nodes), []);
}

#[test]
fn the_history_of_a_service_tells_orders_failures_and_primaries_and_nothing_else() {
    let mut nodes = running();
    report(&mut nodes, A, ServicePhase::BackingOff, 1);
    apply(&mut nodes.state, stop());
    nodes.settle();
    nodes.power_cut(A);
    die(&mut nodes.state, A);
    nodes.settle();
    apply(&mut nodes.state, start());
    let texts: Vec<&str> = nodes.state.history("db").map(|event| event.text.as_str()).collect();
    for part in ["created", "failed on a, trying again", "an operator stops it", "an operator starts it"] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
    }
    assert!(texts.iter().any(|text| text.contains("b is primary in epoch")), "{texts:?}");
    let subjects = |event: &&mainstay_control::state::EventRecord| event.subject.starts_with("node ");
    assert_eq!(nodes.state.history("db").filter(subjects).count(), 0);
    assert_eq!(nodes.state.events_since_ms(), None);
    for n in 0..1000 {
        let note = |text: String| Command::Note { severity: Severity::Info, subject: "x".into(), text };
        apply_at(&mut nodes.state, 5, note(n.to_string()));
    }
    assert_eq!(nodes.state.events_since_ms(), Some(5), "earlier events are gone");
}

/// A snapshot of the state that an earlier version wrote names neither a stop nor a restart.
#[test]
fn a_state_of_an_earlier_version_has_no_stopped_service() {
    let nodes = running();
    let json = serde_json::to_value(&nodes.state).unwrap();
    let service = json["services"]["db"].as_object().unwrap();
    assert!(!service.contains_key("stopped") && !service.contains_key("restart"));
    assert_eq!(serde_json::from_value::<State>(json).unwrap(), nodes.state);
    let nodes = stopped();
    let json = serde_json::to_value(&nodes.state).unwrap();
    assert_eq!(serde_json::from_value::<State>(json).unwrap(), nodes.state);
}
