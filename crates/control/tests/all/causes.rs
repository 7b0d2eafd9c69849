//! Advice names one cause once, the way on is true, and every command in it can be pasted.

use crate::common::*;
use mainstay_control::advice::{Advice, Feed, Observations, advice};
use mainstay_control::stalls::{Stall, Stalled};
use mainstay_control::state::{Command, Outcome, State};
use mainstay_types::{IssChange, NodeId, ServicePhase, ShrinkReason};

fn seen(own: NodeId) -> Observations {
    Observations { own: Some(own), has_leader: true, ..Default::default() }
}

fn stall(what: Stalled) -> Stall {
    Stall { what, ms: 20_000 }
}

fn lines(list: &[Advice]) -> Vec<String> {
    list.iter().map(|one| format!("{}: {}; {}", one.subject, one.what, one.remedy)).collect()
}

/// The resource with B out of the in-sync set, alive.
fn behind() -> State {
    let mut state = ready();
    let record = state.resources[&R].record.clone();
    let change = IssChange::Shrink { remove: record.iss_member(B).unwrap(), why: ShrinkReason::Slow };
    let (version, epoch) = (record.version, record.epoch);
    assert!(apply(&mut state, Command::ChangeIss { resource: R, version, epoch, change }).is_ok());
    state
}

#[test]
fn a_node_whose_disk_hangs_reports_one_cause() {
    let state = ready();
    let hung = Observations {
        has_leader: false,
        stalls: vec![stall(Stalled::LogDisk(A)), stall(Stalled::Voter(A)), stall(Stalled::Journal(R, A))],
        silent: [A].into(),
        ..seen(A)
    };
    let list = advice(&state, &hung);
    let [one] = &list[..] else { panic!("{:?}", lines(&list)) };
    assert!(one.what.contains("its disk has not completed a write"), "{one:?}");
    assert!(one.what.contains("all writes to db wait"), "{one:?}");
    let cut_off = Observations { has_leader: false, unreachable: [B, W].into(), ..seen(A) };
    let list = lines(&advice(&state, &cut_off));
    let no_majority = list.iter().find(|line| line.contains("no majority")).expect("it is told");
    assert!(no_majority.contains("bring b or w back"), "{no_majority}");
    let whole = Observations { has_leader: false, ..seen(A) };
    let list = lines(&advice(&state, &whole));
    assert!(!list.iter().any(|line| line.contains("no majority")), "its peers answer: {list:?}");
}

#[test]
fn an_engine_that_hangs_is_told_once() {
    let state = ready();
    let hung = Observations {
        stalls: vec![stall(Stalled::Engine(B)), stall(Stalled::Replica(R, B))],
        silent: [B].into(),
        ..seen(A)
    };
    let list = advice(&state, &hung);
    let [one] = &list[..] else { panic!("{:?}", lines(&list)) };
    assert!(one.what.contains("its engine has not answered") && one.what.contains("writes to db wait"));
}

#[test]
fn a_link_that_is_broken_between_two_nodes_is_told_by_the_third() {
    let state = behind();
    let stalls = vec![stall(Stalled::Unheard(A, B)), stall(Stalled::Unheard(B, A))];
    let list = lines(&advice(&state, &Observations { stalls, ..seen(W) }));
    let link = list.iter().filter(|line| line.contains("no connection to")).collect::<Vec<_>>();
    assert_eq!(link.len(), 1, "{list:?}");
    assert!(link[0].contains("node a: it has had no connection to b for 20 s"), "{list:?}");
    assert!(!list.iter().any(|line| line.contains("by itself")), "{list:?}");
}

#[test]
fn a_replica_that_does_not_move_is_not_said_to_catch_up_by_itself() {
    let state = behind();
    let of = |feed: Option<Feed>| {
        let feeds = feed.into_iter().map(|feed| ((R, B), feed)).collect();
        let list = lines(&advice(&state, &Observations { feeds, ..seen(W) }));
        let mut found = list.iter().filter(|line| line.contains("is degraded")).cloned();
        found.next().expect("it is told")
    };
    assert!(of(Some(Feed::Moves)).contains("b catches up by itself"));
    for (feed, says) in [
        (Some(Feed::Stands(9000)), "b has acknowledged nothing that a sent for 9 s"),
        (Some(Feed::Unconnected), "the engine of a has no connection to the engine of b"),
        (Some(Feed::Refused), "b refuses what a sends"),
        (None, "the engine of a does not say how far b is"),
    ] {
        let line = of(feed);
        assert!(line.contains(says), "{line}");
        assert!(!line.contains("by itself") && !line.contains("resource status"), "{line}");
    }
    assert!(of(Some(Feed::Stands(9000))).contains("`ping -M do -c 3 -s 1472 10.0.0.1`"));
}

#[test]
fn a_dead_node_is_named_once_and_no_command_has_a_gap() {
    let mut state = behind();
    assert!(die(&mut state, B).is_ok());
    let list = lines(&advice(&state, &seen(A)));
    assert!(list.iter().any(|line| line.contains("node b: is dead")), "{list:?}");
    assert_eq!(list.iter().filter(|line| line.contains("bring the dead")).count(), 0, "{list:?}");
    // W holds no replica, so one can be put there.
    assert!(
        list.iter().any(|line| line.contains("`mainstay resource move-replica db b --to w`")),
        "{list:?}"
    );
    assert!(die(&mut state, A).is_ok());
    rejoin(&mut state, B);
    let list = lines(&advice(&state, &seen(W)));
    assert!(list.iter().any(|line| line.contains("`mainstay resource force-promote db b`")), "{list:?}");
    assert!(!list.iter().any(|line| line.contains("NODE")), "{list:?}");
    let refusal = state.cannot_force(R, W).expect("it is refused");
    assert!(refusal.message.contains("w has no replica of resource db"), "{refusal:?}");
}

/// The node says so of the service.
fn report(state: &mut State, node: NodeId, phase: ServicePhase, failures: u32) -> Outcome {
    let epoch = state.resources[&R].record.epoch;
    let round = state.services["db"].round;
    let why = if failures > 0 { "no mount" } else { "" };
    let report = Command::ServiceStatus {
        name: "db".into(),
        node,
        phase,
        epoch,
        round,
        detail: why.into(),
        failures,
        passes: false,
        last_failure: why.into(),
    };
    apply(state, report)
}

#[test]
fn the_end_of_a_service_on_a_node_has_a_reason() {
    let mut state = running().state;
    report(&mut state, A, ServicePhase::Running, 0);
    assert!(apply(&mut state, Command::DeleteService { name: "db".into() }).is_ok());
    assert!(report(&mut state, A, ServicePhase::Stopped, 0).is_ok());
    let last = &state.events.back().unwrap().text;
    assert_eq!(last, "stopped on a, because it is being deleted");
}

#[test]
fn failures_are_cleared_where_the_service_runs() {
    let mut state = running().state;
    report(&mut state, A, ServicePhase::Running, 0);
    assert!(report(&mut state, B, ServicePhase::Failed, 1).is_ok());
    let list = lines(&advice(&state, &seen(A)));
    let line = list.iter().find(|line| line.contains("is not tried on b")).expect("it is told");
    assert!(line.contains("`mainstay service move db a`") && line.contains("interrupts nothing"), "{line}");
}
