//! Maintenance: the machine watches, says what it sees, and mends nothing.

use super::{Node, STEPS, runs};
use mainstay_ha::{Event, Step};
use mainstay_types::{Epoch, ServicePhase};

const FIRST: Step = Step::StartProcess { process: 0 };
const SECOND: Step = Step::StartProcess { process: 1 };

fn resting() -> Node {
    let mut node = Node::new();
    node.start(1);
    rest(&mut node, true);
    node.log.clear();
    node
}

fn rest(node: &mut Node, rests: bool) {
    node.machine.rest(rests, node.now);
    node.settle();
}

fn exit(node: &mut Node, process: usize) {
    node.dead.insert(process);
    node.give(Event::ProcessExited { process, status: "exit status: 1".into() });
}

fn detail(node: &Node) -> &str {
    &node.reports.last().unwrap().detail
}

#[test]
fn a_process_that_ends_in_maintenance_is_told_and_restarted_afterwards() {
    let mut node = resting();
    exit(&mut node, 1);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(detail(&node).contains("process two ended by itself: exit status: 1"), "{}", detail(&node));
    node.pass(3_600_000);
    assert!(runs(&node.log).is_empty() && node.undone().is_empty(), "{:?}", node.log);
    rest(&mut node, false);
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(runs(&node.log).contains(&SECOND) && !runs(&node.log).contains(&FIRST), "{:?}", node.log);
    assert_eq!((detail(&node), node.reports.last().unwrap().failures), ("", 1));
}

/// Seed 560: the first restart of a start comes at once, but not in maintenance.
#[test]
fn a_process_that_ends_in_a_start_waits_for_the_end_of_the_maintenance() {
    let mut node = Node::new();
    node.hung.insert(Step::CheckReady { process: 0 });
    node.start(1);
    rest(&mut node, true);
    node.log.clear();
    node.hung.clear();
    node.exit(0);
    node.pass(3_600_000);
    assert!(runs(&node.log).is_empty(), "{:?}", node.log);
    assert!(detail(&node).contains("waits for the end of the maintenance"), "{}", detail(&node));
    rest(&mut node, false);
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
}

#[test]
fn all_that_stands_on_what_was_lost_is_made_anew_after_the_maintenance() {
    let mut node = resting();
    exit(&mut node, 1);
    node.give(Event::Lost { step: Step::Mount, why: "it is gone".into(), mendable: true });
    assert!(
        detail(&node).starts_with("'mount /srv/db' does not hold any more: it is gone; "),
        "{}",
        detail(&node)
    );
    assert!(node.undone().is_empty());
    rest(&mut node, false);
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(runs(&node.log).contains(&Step::Mount) && runs(&node.log).contains(&SECOND), "{:?}", node.log);
}

#[test]
fn the_end_of_the_lease_silences_a_service_in_maintenance() {
    let mut node = resting();
    node.give(Event::LeaseLost);
    assert_eq!(node.phase(), ServicePhase::Stopped);
    assert!(node.there.is_empty(), "{:?}", node.there);
}

#[test]
fn an_operator_stops_and_restarts_a_service_in_maintenance() {
    let mut node = resting();
    node.give(Event::Restart { number: 1, process: Some(1) });
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(runs(&node.log).contains(&SECOND));
    node.give(Event::Stop);
    assert_eq!(node.phase(), ServicePhase::Stopped);
    node.give(Event::Start { epoch: Epoch(2), round: 2 });
    assert_eq!(node.phase(), ServicePhase::Running);
}

#[test]
fn an_agent_that_is_restarted_in_maintenance_starts_nothing_that_has_died() {
    let mut node = resting();
    node.dead.insert(0);
    node.restart();
    node.pass(60_000);
    assert!(runs(&node.log).is_empty() && node.undone().is_empty(), "{:?}", node.log);
    assert_eq!(node.phase(), ServicePhase::Running);
    node.give(Event::ProcessExited { process: 0, status: "signal: 9".into() });
    assert!(detail(&node).contains("process one ended"), "{}", detail(&node));
    node.dead.clear();
    rest(&mut node, false);
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(runs(&node.log).contains(&STEPS[1]), "each step is walked over: {:?}", node.log);
}

#[test]
fn a_service_between_two_attempts_makes_no_further_attempt_in_maintenance() {
    let mut node = Node::new();
    node.start(1);
    exit(&mut node, 0);
    exit(&mut node, 0);
    assert_eq!(node.phase(), ServicePhase::Starting, "it waits with a part undone");
    rest(&mut node, true);
    node.log.clear();
    node.pass(600_000);
    assert!(runs(&node.log).is_empty(), "{:?}", node.log);
    assert!(
        detail(&node).ends_with("the next attempt waits for the end of the maintenance"),
        "{}",
        detail(&node)
    );
    rest(&mut node, false);
    node.pass(60_000);
    assert_eq!(node.phase(), ServicePhase::Running);
}

#[test]
fn a_process_that_ends_between_two_attempts_is_restarted_after_the_maintenance() {
    let mut node = Node::new();
    node.start(1);
    exit(&mut node, 1);
    exit(&mut node, 1);
    assert_eq!(node.phase(), ServicePhase::Starting);
    rest(&mut node, true);
    exit(&mut node, 0);
    node.log.clear();
    rest(&mut node, false);
    node.pass(60_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(runs(&node.log).contains(&FIRST) && node.dead.is_empty(), "{:?}", node.log);
}

#[test]
fn what_an_operator_restarts_in_maintenance_is_not_restarted_again_afterwards() {
    let mut node = resting();
    exit(&mut node, 1);
    node.give(Event::Restart { number: 1, process: None });
    assert_eq!((node.phase(), detail(&node)), (ServicePhase::Running, ""));
    node.log.clear();
    rest(&mut node, false);
    node.pass(5_000);
    assert!(runs(&node.log).is_empty(), "{:?}", node.log);
}
