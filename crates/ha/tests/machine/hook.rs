//! The hook before a start.

use super::{Node, STEPS, runs};
use mainstay_ha::{Event, Step};
use mainstay_types::{Epoch, ServicePhase};

const FIRST: Step = Step::StartProcess { process: 0 };

fn hooked() -> Node {
    let mut node = Node::new();
    node.machine.run_hook(true);
    node
}

fn begun(node: &Node) -> usize {
    runs(&node.log).iter().filter(|step| **step == Step::StartHook).count()
}

#[test]
fn nothing_of_a_service_begins_before_its_hook_has_ended_well() {
    let mut node = hooked();
    node.hung.insert(Step::StartHook);
    node.start(1);
    assert_eq!((runs(&node.log), node.phase()), (vec![Step::StartHook], ServicePhase::Starting));
    let mut node = hooked();
    node.start(1);
    assert_eq!(runs(&node.log), [&[Step::StartHook][..], &STEPS].concat());
    assert_eq!(node.phase(), ServicePhase::Running);
    node.give(Event::Stop);
    assert_eq!((node.phase(), node.undone().last()), (ServicePhase::Stopped, Some(&Step::StartHook)));
}

#[test]
fn a_hook_that_fails_or_hangs_is_a_failed_start_and_is_tried_again() {
    for hangs in [false, true] {
        let mut node = hooked();
        if hangs {
            node.hung.insert(Step::StartHook)
        } else {
            node.broken.insert(Step::StartHook)
        };
        node.start(1);
        node.pass(29_000);
        assert!(runs(&node.log).iter().all(|step| *step == Step::StartHook), "{:?}", node.log);
        let mut later = hooked();
        later.broken.insert(Step::StartHook);
        later.start(1);
        later.broken.clear();
        later.pass(3_000);
        assert_eq!(later.phase(), ServicePhase::Running, "the next attempt is let through");
        node.pass(20 * 60_000);
        assert_eq!((node.phase(), begun(&node)), (ServicePhase::Failed, 3), "hangs: {hangs}");
        let last = node.reports.last().unwrap();
        assert!(last.passes, "no program of the service is at fault");
        let word = if hangs { "did not finish within 30 s" } else { "failed: broken" };
        assert!(last.detail.contains("the hook before the start") && last.detail.contains(word), "{last:?}");
    }
}

#[test]
fn a_lease_that_ends_during_the_hook_silences_at_once() {
    let mut node = hooked();
    node.hung.insert(Step::StartHook);
    node.start(1);
    node.give(Event::LeaseLost);
    assert_eq!(node.phase(), ServicePhase::Stopped, "the kill waits for no hook");
    assert_eq!(node.machine.spent_epoch(), Some(Epoch(1)));
}

#[test]
fn what_is_made_anew_in_place_runs_no_hook() {
    let mut node = hooked();
    node.start(1);
    node.give(Event::Restart { number: 1, process: None });
    node.exit(1);
    node.pass(60_000);
    node.exit(0);
    node.pass(60_000);
    assert_eq!((node.phase(), begun(&node)), (ServicePhase::Running, 1));
    // A restarted agent walks over the steps of what runs, and one that ended in a start goes on.
    node.restart();
    node.machine.run_hook(true);
    assert_eq!((node.phase(), begun(&node)), (ServicePhase::Running, 1));
    let mut node = hooked();
    node.hung.insert(FIRST);
    node.start(1);
    node.hung.clear();
    node.restart();
    assert_eq!((node.phase(), begun(&node)), (ServicePhase::Running, 1));
}

#[test]
fn an_agent_that_gets_hooks_later_runs_them_from_the_next_start_on() {
    let mut node = Node::new();
    node.start(1);
    node.restart();
    node.machine.run_hook(true);
    assert_eq!((node.phase(), begun(&node)), (ServicePhase::Running, 0));
    node.give(Event::Stop);
    assert!(!node.undone().contains(&Step::StartHook), "this start had none");
    node.start(2);
    assert_eq!((node.phase(), begun(&node)), (ServicePhase::Running, 1));
    // An agent without hooks ends what has begun with one.
    node.restart();
    node.machine.run_hook(false);
    node.give(Event::Stop);
    node.start(3);
    assert_eq!((node.phase(), begun(&node)), (ServicePhase::Running, 1));
}
