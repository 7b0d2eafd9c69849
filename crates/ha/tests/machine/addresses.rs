//! Addresses that cannot be taken, beside others that can.

use super::{Node, runs};
use mainstay_ha::{Event, Step};
use mainstay_types::{Epoch, ServicePhase};

const ADD: Step = Step::AddAddress;

/// A service with several addresses of which `free` can be taken.
fn held(free: usize, without_interface: bool) -> Node {
    let mut node = Node::new();
    node.stranger = true;
    node.free = free;
    node.without_interface = without_interface;
    node.start(1);
    node
}

#[test]
fn a_service_runs_with_the_addresses_that_are_free_and_takes_the_others_later() {
    let mut node = held(1, false);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(node.there.contains(&ADD));
    let says = |node: &Node| node.reports.last().unwrap().detail.clone();
    assert!(says(&node).contains("waits for its address") && says(&node).contains("in use"));
    let (reports, added) = (node.reports.len(), runs(&node.log).iter().filter(|step| **step == ADD).count());
    node.pass(60_000);
    assert_eq!(node.reports.len(), reports, "the same is not told again");
    let again = runs(&node.log).iter().filter(|step| **step == ADD).count();
    assert_eq!((again, node.phase()), (added, ServicePhase::Running), "nothing is taken again");
    // One more is free, then the last one.
    node.free = 2;
    node.pass(2_000);
    assert_eq!(runs(&node.log).iter().filter(|step| **step == ADD).count(), added + 1);
    assert!(says(&node).contains("in use"));
    node.stranger = false;
    node.pass(2_000);
    assert_eq!((node.phase(), says(&node).as_str()), (ServicePhase::Running, ""));
    let log = node.log.len();
    node.pass(60_000);
    assert_eq!(node.log.len(), log, "nothing is asked any more");
    assert_eq!(node.reports.last().unwrap().failures, 0);
    node.give(Event::Stop);
    assert!(node.phase() == ServicePhase::Stopped && node.there.is_empty());
}

#[test]
fn a_start_waits_for_an_interface_and_not_for_ever() {
    let mut node = held(0, true);
    node.pass(20_000);
    let last = node.reports.last().unwrap();
    assert_eq!((node.phase(), last.failures), (ServicePhase::BackingOff, 0), "{last:?}");
    assert!(last.detail.contains("waits for its address"), "{last:?}");
    let mut late = held(0, true);
    late.pass(20_000);
    late.stranger = false;
    late.pass(3_000);
    assert_eq!((late.phase(), late.reports.last().unwrap().failures), (ServicePhase::Running, 0));
    node.pass(12_000);
    let last = node.reports.last().unwrap();
    assert!(last.failures > 0 && last.last_failure.contains("the address cannot be taken"), "{last:?}");
}

#[test]
fn a_service_whose_interface_is_gone_does_not_wait_for_it() {
    let mut node = Node::new();
    node.start(1);
    assert_eq!(node.phase(), ServicePhase::Running);
    node.stranger = true;
    node.without_interface = true;
    node.give(Event::Lost { step: ADD, why: "eth1 is gone".into(), mendable: true });
    node.pass(5_000);
    let failures = node.reports.last().unwrap().failures;
    assert!(failures > 1, "another node may have one: {failures}");
}

/// The kernel finds a second holder of an IPv6 address when it is added.
#[test]
fn another_host_that_turns_up_as_the_address_is_taken_is_waited_for() {
    let mut node = Node::new();
    node.hung.insert(ADD);
    node.start(1);
    let ticket = *node.unanswered.last().unwrap();
    node.stranger = true;
    let held = node.held();
    node.give(Event::AddressHeld { ticket, held });
    node.pass(10_000);
    let last = node.reports.last().unwrap();
    assert_eq!((node.phase(), last.failures), (ServicePhase::BackingOff, 0), "{last:?}");
    node.hung.clear();
    node.stranger = false;
    node.pass(4_000);
    assert_eq!(node.phase(), ServicePhase::Running);
}

/// A service whose second process has ended, and waits for its next attempt with its address kept.
fn kept() -> Node {
    let mut node = Node::new();
    node.start(1);
    let exits = |node: &mut Node| {
        node.give(Event::ProcessExited { process: 1, status: "signal 11".into() });
    };
    exits(&mut node);
    assert_eq!(node.phase(), ServicePhase::Running, "the first restart comes at once");
    exits(&mut node);
    assert_eq!(node.phase(), ServicePhase::Starting, "the second one waits");
    assert!(node.there.contains(&ADD));
    node.log.clear();
    node
}

#[test]
fn an_address_that_was_kept_goes_first_when_the_service_is_stopped() {
    for restarted in [false, true] {
        let mut node = kept();
        if restarted {
            node.restart();
        }
        node.log.clear();
        node.give(Event::Stop);
        assert_eq!(node.undone().first(), Some(&ADD), "agent restarted: {restarted}");
        assert!(node.phase() == ServicePhase::Stopped && node.there.is_empty());
    }
}

#[test]
fn an_address_that_was_kept_goes_when_a_stop_comes_in_the_midst_of_an_undo() {
    let mut node = Node::new();
    node.start(1);
    node.stubborn = true;
    node.log.clear();
    node.give(Event::Restart { number: 1, process: None });
    assert_eq!(node.phase(), ServicePhase::Stopping);
    node.give(Event::Stop);
    node.stubborn = false;
    node.pass(60_000);
    assert!(node.phase() == ServicePhase::Stopped && node.there.is_empty(), "{:?}", node.there);
    let undone = node.undone();
    let removed = undone.iter().position(|step| *step == ADD).unwrap();
    assert!(removed < undone.iter().position(|step| *step == Step::Mount).unwrap(), "{undone:?}");
}

#[test]
fn an_address_that_was_kept_goes_when_the_restart_fails_or_the_lease_ends() {
    let mut node = kept();
    node.broken.insert(Step::StartProcess { process: 1 });
    node.pass(3_000);
    assert_eq!(node.phase(), ServicePhase::Failed);
    assert!(node.there.is_empty() && node.undone().contains(&ADD));
    let mut node = kept();
    node.give(Event::LeaseLost);
    node.pass(1_000);
    assert!(node.phase() == ServicePhase::Stopped && node.there.is_empty());
    node.start(2);
    assert_eq!((node.phase(), node.machine.epoch()), (ServicePhase::Running, Epoch(2)));
}

/// R22: the address was off the node, so another host may have it by now.
#[test]
fn an_address_that_is_lost_while_it_is_kept_is_probed_before_it_is_taken_again() {
    let mut node = kept();
    node.hung.insert(Step::StartProcess { process: 1 });
    node.pass(3_000);
    let probes = |node: &Node| runs(&node.log).iter().filter(|step| **step == Step::ProbeAddress).count();
    assert_eq!(
        (node.phase(), probes(&node)),
        (ServicePhase::Starting, 1),
        "it is asked for with the restart"
    );
    node.there.remove(&ADD);
    node.give(Event::Lost { step: ADD, why: "it is gone".into(), mendable: true });
    assert_eq!(node.phase(), ServicePhase::Starting, "the restart goes on");
    let ticket = *node.unanswered.last().unwrap();
    node.hung.clear();
    node.give(Event::StepDone { ticket, result: Ok(()) });
    assert_eq!((node.phase(), probes(&node)), (ServicePhase::Running, 2));
    assert!(node.there.contains(&ADD));
}
