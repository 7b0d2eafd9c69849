//! A restart in place that an operator asks for.

use super::{Node, STEPS, runs};
use mainstay_ha::{Event, Step};
use mainstay_types::{Epoch, ServicePhase};

const FIRST: Step = Step::StartProcess { process: 0 };
const SECOND: Step = Step::StartProcess { process: 1 };

fn running() -> Node {
    let mut node = Node::new();
    node.start(1);
    assert_eq!(node.phase(), ServicePhase::Running);
    node.log.clear();
    node
}

fn restart(node: &mut Node, number: u64, process: Option<usize>) {
    node.give(Event::Restart { number, process });
}

#[test]
fn a_restart_by_an_operator_keeps_the_mount_and_counts_no_failure() {
    let mut node = running();
    restart(&mut node, 7, None);
    assert_eq!(node.phase(), ServicePhase::Running, "no pause comes before the start");
    assert_eq!(node.undone(), [SECOND, FIRST, Step::Prepare { process: 0 }], "the address stays");
    let begun = runs(&node.log);
    assert!(begun.ends_with(&STEPS[2..]) && !begun.contains(&Step::Mount), "{begun:?}");
    assert!(begun.contains(&Step::ProbeAddress), "it may have been lost meanwhile (R22): {begun:?}");
    let last = node.reports.last().unwrap();
    assert_eq!((last.failures, last.last_failure.as_str(), last.epoch), (0, "", Epoch(1)));
    assert!(node.reports.iter().any(|report| report.detail.contains("an operator restarts it")));
    assert_eq!(node.machine.restarted(), 7);
}

#[test]
fn a_restart_of_one_process_leaves_the_processes_before_it_alone() {
    let mut node = running();
    restart(&mut node, 1, Some(1));
    assert_eq!(node.phase(), ServicePhase::Running);
    assert_eq!(node.undone(), [SECOND]);
    assert!(!runs(&node.log).contains(&FIRST));
}

#[test]
fn a_restart_is_done_once_even_if_the_agent_is_restarted_in_between() {
    let mut node = running();
    restart(&mut node, 3, Some(1));
    node.log.clear();
    restart(&mut node, 3, Some(1));
    restart(&mut node, 2, None);
    assert!(node.undone().is_empty(), "both were asked for before the last one");
    node.restart();
    restart(&mut node, 3, Some(1));
    assert!(node.undone().is_empty(), "the new agent knows that it was done");
    // The agent ends in the midst of one.
    node.stubborn = true;
    restart(&mut node, 4, None);
    assert_eq!(node.phase(), ServicePhase::Stopping);
    node.restart();
    node.stubborn = false;
    node.pass(30_000);
    assert_eq!((node.phase(), node.machine.restarted()), (ServicePhase::Running, 4));
    assert_eq!(node.reports.last().unwrap().failures, 0);
}

#[test]
fn a_process_that_dies_while_an_operator_restarts_another_one_is_a_failure() {
    let mut node = running();
    node.stubborn = true;
    restart(&mut node, 1, Some(1));
    node.exit(0);
    node.stubborn = false;
    node.pass(30_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(node.dead.is_empty());
    assert_eq!(node.reports.last().unwrap().failures, 1);
}

#[test]
fn a_service_that_is_stopped_in_the_midst_of_a_restart_stays_stopped() {
    let mut node = running();
    node.stubborn = true;
    restart(&mut node, 1, None);
    node.give(Event::Stop);
    node.stubborn = false;
    node.pass(30_000);
    assert_eq!(node.phase(), ServicePhase::Stopped);
    assert!(node.there.is_empty());
    restart(&mut node, 2, None);
    assert_eq!(node.phase(), ServicePhase::Stopped, "what does not run is not restarted");
}

#[test]
fn a_process_whose_arguments_do_not_hold_is_started_again_in_place_and_counts_no_failure() {
    let mut node = running();
    let outdated_of =
        |process, why: &str| Event::Outdated { process, why: why.into(), remedy: String::new() };
    let outdated = || outdated_of(1, "because pages can tear now");
    node.give(outdated());
    assert_eq!(node.phase(), ServicePhase::Running);
    assert_eq!(node.undone(), [SECOND], "the mount, the first process and the address stay");
    let begun = runs(&node.log);
    assert!(begun.contains(&SECOND) && !begun.contains(&FIRST) && !begun.contains(&Step::Mount), "{begun:?}");
    let last = node.reports.last().unwrap();
    assert_eq!((last.failures, last.last_failure.as_str()), (0, ""));
    assert!(
        node.reports
            .iter()
            .any(|report| report.detail.contains("it is started again because pages can tear now"))
    );
    // The preparation of the first process is not repeated.
    node.log.clear();
    node.give(outdated_of(0, "because pages can tear now"));
    assert_eq!(node.undone(), [SECOND, FIRST]);
    assert!(!runs(&node.log).contains(&Step::Prepare { process: 0 }));
    // In maintenance nothing is restarted. The runtime tells it again after that.
    node.log.clear();
    node.machine.rest(true, node.now);
    node.give(outdated());
    assert!(node.undone().is_empty());
    node.machine.rest(false, node.now);
    node.give(outdated());
    assert_eq!(node.undone(), [SECOND]);
    // While it is being stopped it takes no notice, and there may be no such process.
    node.log.clear();
    node.give(outdated_of(9, ""));
    assert!(node.undone().is_empty());
    node.give(Event::Stop);
    node.log.clear();
    node.give(outdated());
    assert_eq!((node.phase(), node.undone().len()), (ServicePhase::Stopped, 0));
}
