//! The control record: the two-replicas-and-a-witness table, random commands against invariants,
//! and whole nodes that follow `actions::plan` over a simulated engine.

use crate::common::*;
use mainstay_control::actions::{Action, Observed, ServiceObserved, asks_for_relief, plan};
use mainstay_control::advice::Observations;
use mainstay_control::facts::Cause;
use mainstay_control::stalls::{Stall, Stalled};
use mainstay_control::state::{Command, Entry, Links, Outcome, ResourceSpec, State};
use mainstay_ha::ServiceSpec;
use mainstay_types::{
    Choices, Code, ConfigVersion, Epoch, Incarnation, IssChange, MacAddress, Member, NodeId, Role,
    ServicePhase, Severity, ShrinkReason,
};
use proptest::prelude::*;

#[test]
fn a_request_for_relief_ends_with_its_record() {
    let version = ConfigVersion;
    for role in [Role::Secondary, Role::Fenced] {
        assert!(asks_for_relief(version(7), version(6), role), "it acts on an older record than that");
        assert!(asks_for_relief(version(7), version(7), role));
        assert!(!asks_for_relief(version(7), version(8), role), "it says so again if it still must");
    }
    assert!(!asks_for_relief(version(7), version(7), Role::Primary));
}

/// R19: a restarted agent may see a state first that is older than what its node did.
#[test]
fn an_epoch_in_which_a_service_was_silenced_is_not_forgotten_before_a_later_one() {
    let mut state = with_resource();
    apply(&mut state, Command::ApplyService { spec: db_service() });
    let seen = ServiceObserved {
        phase: ServicePhase::Stopped,
        epoch: Epoch(1),
        spent_epoch: Some(Epoch(1)),
        revision: state.services["db"].revision,
        edition: state.services["db"].edition,
        resource: R,
        ..ServiceObserved::default()
    };
    let forgets = |state: &State| {
        let services = [("db".to_owned(), seen.clone())].into();
        let observed = Observed { lease_valid: true, services, ..Observed::default() };
        let forget = Action::ForgetService { name: "db".into() };
        plan(A, state, &observed).contains(&forget)
    };
    let record = |state: &mut State, epoch| {
        let resource = state.resources.values_mut().next().unwrap();
        (resource.record.epoch, resource.record.primary) = (Epoch(epoch), None);
    };
    record(&mut state, 0);
    assert!(!forgets(&state), "no node was primary yet");
    record(&mut state, 1);
    assert!(!forgets(&state));
    record(&mut state, 2);
    assert!(forgets(&state));
    // Not through `apply`: a record that was written by hand is not a valid one.
    assert!(state.apply(Entry { at_ms: 0, command: Command::DeleteService { name: "db".into() } }).is_ok());
    record(&mut state, 1);
    assert!(forgets(&state), "what is deleted does not start again");
    let mut state = with_resource();
    record(&mut state, 1);
    assert!(!forgets(&state), "it may be one that is not made yet");
    record(&mut state, 2);
    assert!(forgets(&state));
}

#[test]
fn when_the_primary_dies_the_secondary_takes_over_alone() {
    let mut state = ready();
    let epoch = state.resources[&R].record.epoch;
    assert!(die(&mut state, A).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![B]));
    assert_eq!(state.resources[&R].record.epoch, epoch.next());
    assert!(matches!(die(&mut state, A), Outcome::Conflict { .. }));
    rejoin(&mut state, A);
    assert_eq!(members(&state), vec![B], "it is in sync only after it caught up");
}

#[test]
fn a_death_counts_for_one_generation_only() {
    let mut state = ready();
    let generation = state.nodes[&A].generation;
    assert!(die(&mut state, A).is_ok());
    rejoin(&mut state, A);
    assert_eq!(state.nodes[&A].generation, generation + 1, "what was said of the dead one is void (R10)");
    // The same report again, late.
    let late = Command::NodeDead { node: A, generation };
    assert_eq!(apply(&mut state, late), Outcome::Conflict { record: None });
    assert!(state.alive(A));
}

#[test]
fn when_the_secondary_or_the_witness_dies_the_primary_stays() {
    let mut state = ready();
    die(&mut state, W);
    assert_eq!((primary(&state), members(&state)), (Some(A), vec![A, B]));
    rejoin(&mut state, W);
    die(&mut state, B);
    assert_eq!((primary(&state), members(&state)), (Some(A), vec![A]));
}

/// B dies, A writes on, A dies, B returns: stop, B lacks acknowledged writes.
#[test]
fn a_node_outside_the_in_sync_set_is_never_promoted() {
    let mut state = ready();
    die(&mut state, B);
    die(&mut state, A);
    rejoin(&mut state, B);
    assert_eq!((primary(&state), members(&state)), (None, vec![A]));
    assert!(matches!(promote(&mut state, B, B), Outcome::Refused(_)));
    assert_eq!(state.target(R), None);
    let last = state.events.iter().rev().find(|event| event.severity == Severity::Critical).unwrap();
    assert!(last.text.contains("only a has"), "{}", last.text);
    let advice = mainstay_control::advice::advice(&state, &Default::default());
    assert!(advice.iter().any(|advice| advice.remedy.contains("bring a back")), "{advice:?}");
    rejoin(&mut state, A);
    assert_eq!(state.target(R), Some(A));
    assert!(promote(&mut state, A, A).is_ok());
}

#[test]
fn a_node_that_says_nothing_is_not_all_well() {
    let state = ready();
    let advice = |observations| mainstay_control::advice::advice(&state, &observations);
    let whole = Observations { has_leader: true, ..Default::default() };
    assert_eq!(advice(whole.clone()), vec![]);
    let silent = advice(Observations { silent: [A].into(), ..whole.clone() });
    assert!(silent.iter().any(|advice| advice.subject == "node a"), "{silent:?}");
    let both = advice(Observations { silent: [A].into(), unreachable: [A].into(), ..whole });
    assert_eq!(both.len(), 1, "the same is not said twice: {both:?}");
}

#[test]
fn a_pool_without_space_is_reported_with_its_remedy() {
    let state = ready();
    let full = [(R, [B].into())].into();
    let list = mainstay_control::advice::advice(
        &state,
        &Observations { has_leader: true, full, ..Default::default() },
    );
    let [advice] = &list[..] else { panic!("{list:?}") };
    assert!(advice.what.contains("the pool of b has no space") && !advice.remedy.is_empty(), "{advice:?}");
}

/// A full pool keeps its replica out, holds writes up and leaves one copy: that is one advice, with
/// what follows.
#[test]
fn the_consequences_of_a_full_pool_are_no_advice_of_their_own() {
    let mut state = ready();
    let record = state.resources[&R].record.clone();
    let change = IssChange::Shrink { remove: record.iss_member(B).unwrap(), why: ShrinkReason::Slow };
    let (version, epoch) = (record.version, record.epoch);
    let shrink = Command::ChangeIss { resource: R, version, epoch, change };
    assert!(apply(&mut state, shrink).is_ok());
    let stalls = vec![Stall { what: Stalled::Replica(R, B), ms: 9000 }];
    let full = [(R, [B].into())].into();
    let seen = Observations { has_leader: true, full, stalls, ..Default::default() };
    let list = mainstay_control::advice::advice(&state, &seen);
    let [advice] = &list[..] else { panic!("{list:?}") };
    assert!(advice.is_about_resource("db") && !advice.is_about_resource("d"), "{advice:?}");
    for says in ["the pool of b has no space", "not in sync: b", "no failover is possible"] {
        assert!(advice.what.contains(says), "{says}: {advice:?}");
    }
    // Without the full pool each of them is told.
    let list = mainstay_control::advice::advice(&state, &Observations { full: Default::default(), ..seen });
    assert_eq!(list.len(), 2, "{list:?}");
}

/// A node that is cut off from the others cannot have learnt of deaths, so it must not count
/// voters.
#[test]
fn without_a_leader_a_node_does_not_count_living_voters() {
    let mut state = ready();
    die(&mut state, W);
    for (has_leader, counted) in [(true, true), (false, false)] {
        let list =
            mainstay_control::advice::advice(&state, &Observations { has_leader, ..Default::default() });
        assert_eq!(list.iter().any(|advice| advice.what.contains("2 of 3 voters")), counted, "{list:?}");
    }
}

/// The node would lose the cluster with its address.
#[test]
fn a_service_gets_no_address_of_a_node_and_a_node_none_of_a_service() {
    let mut state = ready();
    let service = |address: &str| {
        let text = format!("name='db'\nresource='db'\n[vip]\naddress='{address}'\n");
        Command::ApplyService { spec: ServiceSpec::parse(&text).unwrap() }
    };
    let node = state.nodes[&B].clone();
    let (host, _) = node.agent_addr.rsplit_once(':').unwrap();
    for prefix in [24, 32] {
        let outcome = apply(&mut state, service(&format!("{host}/{prefix}")));
        let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
        assert_eq!(refusal.code, Code::AddressOfANode);
        assert!(refusal.message.contains(host) && refusal.message.contains(&node.name), "{refusal:?}");
    }
    assert!(apply(&mut state, service("10.99.0.7/24")).is_ok());
    let newcomer = |agent_addr: &str| Command::AddNode {
        name: "late".into(),
        agent_addr: agent_addr.into(),
        engine_addr: "10.99.0.8:7401".into(),
        voter: false,
        witness: false,
        nonce: 99,
    };
    let outcome = apply(&mut state, newcomer("10.99.0.7:7400"));
    assert!(matches!(outcome, Outcome::Refused(refusal) if refusal.code == Code::AddressOfAService));
    assert!(apply(&mut state, newcomer("10.99.0.8:7400")).is_ok());
}

#[test]
fn a_service_takes_no_resource_path_or_address_of_another_and_prefers_no_stranger() {
    let mut state = ready();
    let spec = ResourceSpec {
        volumes: vec![1 << 20],
        journal_bytes: 16 << 20,
        replicas: vec![A, B],
        preferred: vec![],
    };
    assert!(
        apply(
            &mut state,
            Command::CreateResource { name: "web".into(), spec, choices: Choices::default(), origin: None }
        )
        .is_ok()
    );
    let service = |resource: &str, path: &str, address: &str, preferred: &str| {
        let text = format!(
            "name='{resource}'\nresource='{resource}'\n[mount]\npath='{path}'\n[vip]\naddress='{address}'\n\
             [policy]\npreferred='{preferred}'\n"
        );
        Command::ApplyService { spec: ServiceSpec::parse(&text).unwrap() }
    };
    assert!(apply(&mut state, service("db", "/srv/db", "10.0.0.7/24", "a")).is_ok());
    for (command, code) in [
        (service("web", "/srv/web", "10.0.0.7/16", "a"), Code::AddressInUse),
        (service("web", "/srv/db", "10.0.0.8/24", "a"), Code::PathInUse),
        (service("web", "/srv/db/web", "10.0.0.8/24", "a"), Code::PathInUse),
        (service("web", "/srv", "10.0.0.8/24", "a"), Code::PathInUse),
        (service("web", "/srv/web", "10.0.0.8/24", "w"), Code::BadPreferred),
        (service("web", "/srv/web", "10.0.0.8/24", "nobody"), Code::BadPreferred),
    ] {
        let Outcome::Refused(refusal) = apply(&mut state, command) else { panic!("{code}: not refused") };
        assert_eq!(refusal.code, code);
    }
    assert!(apply(&mut state, service("web", "/srv/web", "10.0.0.8/24", "b")).is_ok());
    assert!(apply(&mut state, service("db", "/srv/db", "10.0.0.7/24", "b")).is_ok(), "its own are its own");
}

#[test]
fn a_change_of_another_version_or_epoch_is_a_conflict() {
    let mut state = ready();
    let record = state.resources[&R].record.clone();
    let remove = record.iss_member(B).unwrap();
    let shrink = |version, epoch| Command::ChangeIss {
        resource: R,
        version,
        epoch,
        change: IssChange::Shrink { remove, why: ShrinkReason::Absent },
    };
    for command in [
        shrink(ConfigVersion(record.version.0 - 1), record.epoch),
        shrink(record.version.next(), record.epoch),
        shrink(record.version, record.epoch.next()),
    ] {
        let outcome = apply(&mut state, command);
        assert_eq!(outcome, Outcome::Conflict { record: Some(record.clone()) });
    }
    assert!(apply(&mut state, shrink(record.version, record.epoch)).is_ok());
    // The same request again, as after a lost answer.
    assert!(matches!(apply(&mut state, shrink(record.version, record.epoch)), Outcome::Conflict { .. }));
    assert_eq!(members(&state), vec![A]);
}

#[test]
fn no_replica_takes_over_from_a_living_primary() {
    let mut state = ready();
    assert!(matches!(promote(&mut state, B, B), Outcome::Refused(_)));
    assert!(promote(&mut state, A, B).is_ok(), "but it may hand over");
    assert_eq!(members(&state), vec![A, B]);
}

#[test]
fn a_new_disk_starts_empty_and_the_last_copy_is_not_given_away() {
    let mut state = ready();
    let new = |state: &State, node, incarnation| Command::ReplicaReady {
        resource: R,
        version: state.resources[&R].record.version,
        node,
        incarnation: Incarnation(incarnation),
    };
    let late = new(&state, B, 76);
    let report = new(&state, B, 77);
    assert!(apply(&mut state, report).is_ok());
    assert_eq!(members(&state), vec![A]);
    assert!(matches!(apply(&mut state, late), Outcome::Conflict { .. }), "that disk was replaced since");
    let report = new(&state, A, 78);
    assert!(matches!(apply(&mut state, report), Outcome::Refused(_)));
    assert_eq!(members(&state), vec![A]);
    let record = state.resources[&R].record.clone();
    let old = Member { node: B, incarnation: Incarnation(2) };
    let grow = |add| Command::ChangeIss {
        resource: R,
        version: record.version,
        epoch: record.epoch,
        change: IssChange::Grow { add },
    };
    assert!(!apply(&mut state, grow(old)).is_ok(), "the old disk is gone (R9)");
    assert!(apply(&mut state, grow(Member { node: B, incarnation: Incarnation(77) })).is_ok());
}

/// Otherwise the node would ask for ever, several times a second. Seed 760382.
#[test]
fn a_new_disk_that_is_refused_is_reported_once() {
    let mut nodes = running();
    nodes.power_cut(B);
    let record = nodes.state.resources[&R].record.clone();
    let remove = record.replica(B).expect("a replica");
    let change = IssChange::Shrink { remove, why: ShrinkReason::Absent };
    let command = Command::ChangeIss { resource: R, version: record.version, epoch: record.epoch, change };
    assert!(apply(&mut nodes.state, command).is_ok());
    nodes.power_cut(A);
    nodes.up.insert(A, true);
    nodes.observed.get_mut(&A).expect("known").stored.insert(R, Incarnation(99));
    nodes.settle();
    assert_eq!(members(&nodes.state), [A]);
    assert!(nodes.state.resources[&R].failure.as_ref().is_some_and(|text| text.contains("new disk")));
    // When the record has changed it is asked again.
    let resource = nodes.state.resources.get_mut(&R).expect("there");
    resource.record.version = resource.record.version.next();
    assert!(!plan(A, &nodes.state, &nodes.observed[&A]).is_empty());
}

/// Majorities of any two views in use must intersect, so voters are added one by one.
#[test]
fn a_voter_is_added_only_when_every_voter_knows_the_last_one() {
    let mut state = cluster();
    let add = |name: &str, n: u64| Command::AddNode {
        name: name.into(),
        agent_addr: format!("x{n}"),
        engine_addr: format!("y{n}"),
        voter: true,
        witness: false,
        nonce: n,
    };
    let added = apply(&mut state, add("d", 10));
    assert!(added.is_ok(), "{added:?}");
    assert_eq!(apply(&mut state, add("d", 10)), added, "the repetition gets the same node");
    let Outcome::Refused(why) = apply(&mut state, add("e", 11)) else { panic!("added too early") };
    assert_eq!(why.code, Code::MembershipSettling);
    for node in [A, B] {
        apply(&mut state, Command::VotersSeen { node, voters_version: 4 });
    }
    assert!(!apply(&mut state, add("e", 11)).is_ok(), "one has not yet seen it");
    apply(&mut state, Command::VotersSeen { node: W, voters_version: 4 });
    assert!(apply(&mut state, add("e", 11)).is_ok());
}

#[test]
fn the_state_survives_json() {
    let mut state = ready();
    apply(&mut state, Command::ApplyService { spec: db_service() });
    die(&mut state, A);
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random commands, right and wrong ones. `State::check` holds after each. Epoch and version
    /// never fall, and the epoch rises by at most one. Every change of the record raises the
    /// version. A dead node is never made primary. A replica becomes primary or stays in sync only
    /// if it was a member before, or the primary's Grow admits it.
    #[test]
    fn the_record_keeps_its_invariants(steps in prop::collection::vec((0u8..16, 1u32..4, 1u32..4, 0u64..4), 1..120)) {
        let mut state = with_resource();
        for (kind, x, y, back) in steps {
            let (x, y) = (NodeId(x), NodeId(y));
            let before = state.resources[&R].record.clone();
            let version = ConfigVersion(before.version.0.saturating_sub(back / 3));
            let member = Member { node: y, incarnation: Incarnation(u64::from(y.0) + 10 * (back / 3)) };
            let command = match kind {
                0 => Command::NodeDead { node: x, generation: state.nodes[&x].generation },
                1 => Command::NodeRejoin { node: x, generation: state.nodes[&x].generation },
                2 => Command::ReplicaReady { resource: R, version, node: y, incarnation: member.incarnation },
                3 => Command::ChangeIss { resource: R, version, epoch: before.epoch, change: IssChange::Shrink { remove: member, why: ShrinkReason::Slow } },
                4 => Command::ChangeIss { resource: R, version, epoch: before.epoch, change: IssChange::Grow { add: member } },
                5 | 6 => Command::Promote { resource: R, expect_version: version, by: x, to: y, reason: String::new() },
                9 => Command::ReplicaBroken { resource: R, version, node: y, incarnation: member.incarnation, reason: String::new(), code: Code::default() },
                10 => Command::ReplicaOpened { resource: R, node: y, incarnation: member.incarnation },
                11 => Command::AddReplica { resource: R, node: y },
                12 => Command::RemoveReplica { resource: R, node: y },
                13 => Command::MoveReplica { resource: R, from: x, to: y },
                14 => Command::FinishMove { resource: R, from: x, to: y },
                15 => Command::ReplicaGone { resource: R, node: y },
                7 => Command::StepDown { resource: R, version, node: x, reason: String::new() },
                _ => Command::ChangeIss { resource: R, version, epoch: before.epoch.next(), change: IssChange::Shrink { remove: member, why: ShrinkReason::Slow } },
            };
            let mut twin = state.clone();
            let outcome = apply(&mut state, command.clone());
            prop_assert_eq!(&twin.apply(Entry { at_ms: 0, command: command.clone() }), &outcome);
            prop_assert_eq!(&twin, &state);
            let after = &state.resources[&R].record;
            prop_assert!(after.epoch >= before.epoch && after.epoch.0 <= before.epoch.0 + 1);
            prop_assert!(after.version >= before.version);
            prop_assert_eq!(*after == before, after.version == before.version);
            if !outcome.is_ok() {
                prop_assert_eq!(after, &before);
            }
            if version != before.version && (3..=9).contains(&kind) {
                prop_assert!(!outcome.is_ok());
            }
            if after.epoch > before.epoch {
                prop_assert!(before.iss_member(after.primary.unwrap()).is_some());
                prop_assert!(state.resources[&R].broken(after.primary.unwrap()).is_none());
            }
            if after.iss.len() < before.iss.len() && (11..=15).contains(&kind) && after.epoch.0 > 0 {
                let whole = |node| state.alive(node) && state.resources[&R].broken(node).is_none();
                prop_assert!(after.iss.iter().any(|member| whole(member.node)), "R11");
            }
            let grew = after.iss.iter().any(|member| !before.iss.contains(member));
            let may_grow = kind == 4 || (kind == 2 && before.epoch.0 == 0);
            prop_assert!(!grew || may_grow);
        }
    }
}

#[test]
fn plans_move_a_service_and_hand_the_primary_over() {
    let mut nodes = running();
    assert!(apply(&mut nodes.state, Command::MoveService { name: "db".into(), to: B }).is_ok());
    nodes.settle();
    assert_eq!((nodes.runs_on(), primary(&nodes.state)), (vec![B], Some(B)));
    assert_eq!(members(&nodes.state), vec![A, B]);
    assert_eq!(nodes.state.services["db"].desired_node, None);
}

#[test]
fn plans_move_a_primary_without_a_service_and_it_stays_there() {
    let mut nodes = Nodes::new(ready());
    nodes.settle();
    let epoch = nodes.state.resources[&R].record.epoch;
    let go = |nodes: &mut Nodes, to| apply(&mut nodes.state, Command::MovePrimary { resource: R, to });
    assert_eq!(go(&mut nodes, B), Outcome::Done);
    assert_eq!(go(&mut nodes, B), Outcome::Unchanged);
    nodes.settle();
    let resource = &nodes.state.resources[&R];
    assert_eq!((resource.record.primary, members(&nodes.state)), (Some(B), vec![A, B]));
    assert_eq!((resource.record.epoch, resource.desired_node), (epoch.next(), None));
    let (from, cause, _) = nodes.state.primary_change("db", epoch.next()).unwrap();
    assert_eq!((from, cause), (Some("a"), Cause::Operator));
    assert_eq!(go(&mut nodes, B), Outcome::Unchanged);
    // The best node is the preferred one.
    assert_eq!(nodes.state.best_move(&nodes.state.resources[&R]), Ok(A));
}

#[test]
fn a_move_of_a_primary_is_refused_with_the_reason() {
    let mut state = ready();
    let go = |state: &mut State, to| match apply(state, Command::MovePrimary { resource: R, to }) {
        Outcome::Refused(problem) => (problem.code, problem.message, problem.remedy),
        other => panic!("{other:?}"),
    };
    let (code, message, remedy) = go(&mut state, W);
    assert_eq!((code, remedy.as_str()), (Code::NotEligible, "possible now: b"));
    assert_eq!(message, "resource db is not moved to w: it holds no replica of resource db");
    state.nodes.get_mut(&W).unwrap().witness = true;
    assert!(go(&mut state, W).1.contains("it is a witness"), "{:?}", go(&mut state, W));
    for (drain, word) in [(false, "it is cordoned"), (true, "it is drained")] {
        apply(&mut state, Command::SetCordon { node: B, on: true, drain });
        let (code, message, remedy) = go(&mut state, B);
        assert_eq!((code, remedy.as_str()), (Code::NotEligible, "possible now: none"));
        assert!(message.contains(word), "{message}");
    }
    apply(&mut state, Command::SetCordon { node: B, on: false, drain: false });
    // A service moves its resource, and nothing else does.
    assert!(apply(&mut state, Command::MovePrimary { resource: R, to: B }).is_ok());
    assert!(apply(&mut state, Command::ApplyService { spec: db_service() }).is_ok());
    assert_eq!(state.resources[&R].desired_node, None, "the service decides now");
    assert!(apply(&mut state, Command::StopService { name: "db".into() }).is_ok());
    let (code, message, remedy) = go(&mut state, B);
    assert_eq!(
        (code, message.as_str()),
        (Code::ResourceInUse, "resource db is not moved: service db uses it")
    );
    assert!(remedy.contains("mainstay service move db --to b"), "{remedy}");
    // A replica that is not in sync cannot lead.
    let mut state = ready();
    die(&mut state, B);
    assert!(go(&mut state, B).1.ends_with("it is dead"), "{:?}", go(&mut state, B));
    rejoin(&mut state, B);
    assert!(go(&mut state, B).1.contains("not in sync"), "{:?}", go(&mut state, B));
    let nowhere = state.best_move(&state.resources[&R]).unwrap_err();
    assert!(nowhere.message.contains("no other node can lead: b: not in sync"), "{nowhere:?}");
    die(&mut state, A);
    assert_eq!(go(&mut state, B).0, Code::NotReady, "there is no primary");
}

#[test]
fn a_move_of_a_primary_to_a_node_that_dies_or_is_closed_is_given_up() {
    let mut state = ready();
    let go = |state: &mut State| assert!(apply(state, Command::MovePrimary { resource: R, to: B }).is_ok());
    go(&mut state);
    apply(&mut state, Command::SetCordon { node: B, on: true, drain: false });
    assert_eq!(state.resources[&R].desired_node, None);
    let said = |state: &State| state.events.back().map(|event| event.text.clone()).unwrap();
    assert!(
        said(&state).contains("the move of its primary to b is given up: it is cordoned"),
        "{}",
        said(&state)
    );
    apply(&mut state, Command::SetCordon { node: B, on: false, drain: false });
    go(&mut state);
    die(&mut state, B);
    assert_eq!((state.resources[&R].desired_node, primary(&state)), (None, Some(A)));
    assert!(state.events.iter().any(|event| event.text.contains("it is not alive and in sync any more")));
}

#[test]
fn a_service_waits_until_its_primary_serves() {
    let mut nodes = running();
    nodes.power_cut(A);
    die(&mut nodes.state, A);
    let record = nodes.state.resources[&R].record.clone();
    nodes.act(B, Action::GiveRecord(record));
    let start = |nodes: &Nodes| {
        let actions = plan(B, &nodes.state, &nodes.observed[&B]);
        actions.iter().any(|action| matches!(action, Action::StartService { .. }))
    };
    let role = |nodes: &mut Nodes, role| {
        nodes.observed.get_mut(&B).unwrap().replicas.get_mut(&R).unwrap().role = role;
    };
    role(&mut nodes, Role::Promoting);
    assert!(!start(&nodes), "its epoch start is not committed (R6)");
    role(&mut nodes, Role::Primary);
    assert!(start(&nodes));
}

#[test]
fn plans_fail_over_and_do_not_go_back() {
    let mut nodes = running();
    nodes.power_cut(A);
    die(&mut nodes.state, A);
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![B]);
    nodes.up.insert(A, true);
    nodes.settle();
    assert!(nodes.state.alive(A));
    assert_eq!(nodes.runs_on(), vec![B]);
}

#[test]
fn a_restarted_engine_gets_a_new_epoch_after_its_service_was_stopped() {
    let mut nodes = running();
    let epoch = nodes.state.resources[&R].record.epoch;
    nodes.engine_restart(A);
    let first = plan(A, &nodes.state, &nodes.observed[&A]);
    assert!(matches!(first[..], [Action::StopService { .. }]), "{first:?}");
    nodes.settle();
    assert_eq!(nodes.state.resources[&R].record.epoch, epoch.next());
    assert_eq!(nodes.observed[&A].services["db"].epoch, epoch.next());
}

#[test]
fn a_lost_lease_kills_and_the_next_start_has_a_new_epoch() {
    let mut nodes = running();
    let epoch = nodes.state.resources[&R].record.epoch;
    nodes.observed.get_mut(&A).unwrap().lease_valid = false;
    nodes.settle();
    assert!(nodes.runs_on().is_empty());
    nodes.observed.get_mut(&A).unwrap().lease_valid = true;
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![A]);
    assert!(nodes.state.resources[&R].record.epoch > epoch);
}

#[test]
fn a_service_that_fails_everywhere_stops_until_it_is_applied_again() {
    let mut nodes = running();
    for node in [A, B] {
        assert_eq!(nodes.runs_on(), vec![node]);
        let service = nodes.observed.get_mut(&node).unwrap().services.get_mut("db").unwrap();
        service.phase = ServicePhase::Failed;
        let (epoch, round) = (service.epoch, service.round);
        let detail = "exit 1".to_string();
        let phase = ServicePhase::Failed;
        apply(
            &mut nodes.state,
            Command::ServiceStatus {
                name: "db".into(),
                node,
                phase,
                epoch,
                round,
                detail,
                failures: 4,
                passes: false,
                last_failure: String::new(),
            },
        );
        nodes.settle();
    }
    assert!(nodes.runs_on().is_empty());
    assert!(nodes.state.services["db"].halted.is_some());
    apply(&mut nodes.state, Command::ApplyService { spec: db_service() });
    nodes.settle();
    assert_eq!(nodes.runs_on().len(), 1);
}

/// The cause may have come or gone with a node, or may have passed by itself. A fault of the
/// program itself stays.
#[test]
fn a_halted_service_is_tried_again_when_its_cause_may_be_over() {
    let halted = |passes: bool| {
        let mut nodes = running();
        for node in [A, B] {
            let service = nodes.observed.get_mut(&node).unwrap().services.get_mut("db").unwrap();
            service.phase = ServicePhase::Failed;
            let (epoch, round, name) = (service.epoch, service.round, "db".to_owned());
            let (phase, detail) = (ServicePhase::Failed, "in use".to_string());
            let report = Command::ServiceStatus {
                name,
                node,
                phase,
                epoch,
                round,
                detail,
                failures: 4,
                passes,
                last_failure: String::new(),
            };
            apply(&mut nodes.state, report);
            nodes.settle();
        }
        assert!(nodes.state.services["db"].halted.is_some());
        nodes.state
    };
    let retry = |round: u64| Command::RetryService { name: "db".into(), round };
    let mut state = halted(true);
    let round = state.services["db"].round;
    assert_eq!(apply(&mut state, retry(round - 1)), Outcome::Unchanged);
    assert_eq!(apply(&mut state, retry(round)), Outcome::Done);
    assert!(state.services["db"].halted.is_none() && state.services["db"].round == round + 1);
    assert_eq!(apply(&mut state, retry(round)), Outcome::Unchanged, "it is said twice");
    let mut state = halted(false);
    assert_eq!(apply(&mut state, retry(round)), Outcome::Unchanged, "a program's own fault");
    let other = state.resources[&R].record.primary.map(|primary| if primary == A { B } else { A }).unwrap();
    let generation = state.nodes[&other].generation;
    let dead = Command::NodeDead { node: other, generation };
    apply(&mut state, dead);
    assert!(state.services["db"].halted.is_some() && state.services["db"].round == round, "not at once");
    assert_eq!(apply(&mut state, retry(round)), Outcome::Done, "it is tried again later");
    assert!(state.services["db"].halted.is_none() && state.services["db"].round == round + 1);
    apply(&mut state, Command::NodeRejoin { node: other, generation });
    assert_eq!(apply(&mut state, retry(round + 1)), Outcome::Unchanged, "nothing failed in this round");
}

/// A node answers for an address that it has no right to any more. An address that an administrator
/// has added is another matter.
#[test]
fn a_node_that_answers_for_a_services_address_has_lost_its_right() {
    let mut state = ready();
    let mac = |last: u8| MacAddress([2, 0, 0, 0, 0, last]);
    let address = "10.99.0.7".parse().unwrap();
    let mut links = Links { macs: [mac(2), mac(3)].into(), addresses: ["10.99.0.2".parse().unwrap()].into() };
    let told = |links: &Links| Command::NodeLinks { node: B, links: links.clone() };
    assert_eq!(apply(&mut state, told(&links)), Outcome::Done);
    assert_eq!(apply(&mut state, told(&links)), Outcome::Unchanged);
    assert_eq!(state.has_lost_right(address, mac(3)).map(|node| node.id), Some(B));
    assert!(state.has_lost_right(address, mac(9)).is_none(), "a stranger");
    links.addresses.insert(address);
    apply(&mut state, told(&links));
    assert!(state.has_lost_right(address, mac(3)).is_none(), "an administrator has set it there");
    let text = "name='db'\nresource='db'\n[vip]\naddress='10.99.0.2/24'\n";
    let outcome = apply(&mut state, Command::ApplyService { spec: ServiceSpec::parse(text).unwrap() });
    assert!(matches!(outcome, Outcome::Refused(refusal) if refusal.code == Code::AddressOfANode));
}

/// A failure that was mended in place is told as well: an address that was taken away, a process
/// that ended.
#[test]
fn a_failure_that_is_mended_in_place_is_an_event() {
    let mut nodes = running();
    let node = nodes.state.resources[&R].record.primary.unwrap();
    let on = nodes.observed[&node].services["db"].clone();
    let report = |failures: u32| Command::ServiceStatus {
        name: "db".into(),
        node,
        phase: ServicePhase::Running,
        epoch: on.epoch,
        round: on.round,
        detail: String::new(),
        failures,
        passes: true,
        last_failure: "its address was taken off eth0".into(),
    };
    let told = |state: &State| {
        state.events.iter().filter(|event| event.text.contains("its address was taken off eth0")).count()
    };
    apply(&mut nodes.state, report(1));
    assert_eq!(told(&nodes.state), 1);
    apply(&mut nodes.state, report(1));
    assert_eq!(told(&nodes.state), 1, "it is the same failure");
    apply(&mut nodes.state, report(2));
    assert_eq!(told(&nodes.state), 2);
}

#[test]
fn a_service_that_is_applied_as_it_is_goes_on() {
    let mut nodes = running();
    let before = nodes.state.clone();
    assert_eq!(apply(&mut nodes.state, Command::ApplyService { spec: db_service() }), Outcome::Unchanged);
    assert_eq!(nodes.state, before);
    // The node hears a change that only counts later, and goes on.
    let mut spec = db_service();
    spec.policy.restart_limit += 1;
    assert!(apply(&mut nodes.state, Command::ApplyService { spec: spec.clone() }).is_ok());
    let changed = nodes.state.services["db"].clone();
    let old = &before.services["db"];
    assert_eq!((changed.revision, changed.edition), (old.revision, old.edition + 1));
    let epoch = nodes.observed[&A].services["db"].epoch;
    nodes.settle();
    let seen = nodes.observed[&A].services["db"].clone();
    assert_eq!(
        (seen.phase, seen.edition, seen.round),
        (ServicePhase::Running, changed.edition, changed.round)
    );
    assert_eq!(seen.epoch, epoch);
    // A change of a setting that the service was started with takes it down first.
    spec.mount.as_mut().unwrap().options = "noatime".into();
    assert!(apply(&mut nodes.state, Command::ApplyService { spec }).is_ok());
    assert_eq!(nodes.state.services["db"].revision, old.revision + 1);
    let actions = plan(A, &nodes.state, &nodes.observed[&A]);
    assert!(actions.iter().any(|action| matches!(action, Action::StopService { .. })), "{actions:?}");
}

#[test]
fn failures_are_cleared_by_applying_a_service_as_it_is() {
    let mut nodes = running();
    let ServiceObserved { phase, epoch, round, .. } = nodes.observed[&A].services["db"];
    let (name, detail) = ("db".to_owned(), String::new());
    let report = Command::ServiceStatus {
        name,
        node: A,
        phase,
        epoch,
        round,
        detail,
        failures: 2,
        last_failure: String::new(),
        passes: false,
    };
    apply(&mut nodes.state, report);
    let before = nodes.state.services["db"].clone();
    assert_eq!(apply(&mut nodes.state, Command::ApplyService { spec: db_service() }), Outcome::Done);
    let after = &nodes.state.services["db"];
    assert_eq!(
        (after.round, after.edition, after.revision),
        (before.round + 1, before.edition, before.revision)
    );
    // Failures that a node counted in an earlier round do not count, also if it never runs the
    // service again.
    assert_eq!((before.failures_on(A), after.failures_on(A)), (2, 0));
    assert!(!after.has_failures());
    assert_eq!(apply(&mut nodes.state, Command::ApplyService { spec: db_service() }), Outcome::Unchanged);
}

#[test]
fn a_failure_that_is_tried_again_after_a_pause_is_one_event() {
    let mut nodes = running();
    let ServiceObserved { epoch, round, .. } = nodes.observed[&A].services["db"];
    let report = |phase, failures| Command::ServiceStatus {
        name: "db".into(),
        node: A,
        phase,
        epoch,
        round,
        detail: "no mount".into(),
        failures,
        passes: false,
        last_failure: "no mount".into(),
    };
    let told = |state: &State| state.events.iter().filter(|event| event.text.contains("no mount")).count();
    apply(&mut nodes.state, report(ServicePhase::Stopping, 1));
    apply(&mut nodes.state, report(ServicePhase::BackingOff, 1));
    assert_eq!(told(&nodes.state), 1);
    apply(&mut nodes.state, report(ServicePhase::Starting, 1));
    apply(&mut nodes.state, report(ServicePhase::BackingOff, 2));
    assert_eq!(told(&nodes.state), 2);
}

/// A finding of probes is told once, while the service goes on, and also that it has passed.
#[test]
fn a_running_service_whose_process_does_not_answer_is_told_until_it_answers() {
    let mut nodes = running();
    let ServiceObserved { epoch, round, .. } = nodes.observed[&A].services["db"];
    let report = |detail: &str| Command::ServiceStatus {
        name: "db".into(),
        node: A,
        phase: ServicePhase::Running,
        epoch,
        round,
        detail: detail.into(),
        failures: 0,
        passes: false,
        last_failure: String::new(),
    };
    let advised = |state: &State| {
        let list = mainstay_control::advice::advice(state, &Observations::default());
        list.into_iter().filter(|one| one.what.contains("does not answer")).count()
    };
    let told =
        |state: &State, words: &str| state.events.iter().filter(|event| event.text.contains(words)).count();
    apply(&mut nodes.state, report(""));
    assert_eq!(advised(&nodes.state), 0);
    for why in ["there was no answer within 3 s", "too many connections"] {
        apply(&mut nodes.state, report(&format!("process db does not answer: {why}")));
        assert_eq!((advised(&nodes.state), told(&nodes.state, "does not answer")), (1, 1));
        assert_eq!(told(&nodes.state, "answer again"), 0);
    }
    apply(&mut nodes.state, report(""));
    assert_eq!((advised(&nodes.state), told(&nodes.state, "answer again")), (0, 1));
}

/// Reports that tell no further failure do not move the time of the last one.
#[test]
fn the_time_of_the_last_failure_is_that_of_the_report_that_told_it_first() {
    let mut nodes = running();
    let ServiceObserved { epoch, round, .. } = nodes.observed[&A].services["db"];
    let mut last = |at_ms, phase, failures, why: &str| {
        let (name, detail, last_failure) = ("db".to_owned(), String::new(), why.to_owned());
        let passes = false;
        let command = Command::ServiceStatus {
            name,
            node: A,
            phase,
            epoch,
            round,
            detail,
            failures,
            passes,
            last_failure,
        };
        apply_at(&mut nodes.state, at_ms, command);
        nodes.state.services["db"].nodes[&A].last_failure_ms
    };
    assert_eq!(last(5_000, ServicePhase::Running, 0, ""), 0);
    assert_eq!(last(6_000, ServicePhase::BackingOff, 1, "no mount"), 6_000);
    assert_eq!(last(7_000, ServicePhase::Starting, 1, "no mount"), 6_000);
    assert_eq!(last(8_000, ServicePhase::BackingOff, 2, "no mount"), 8_000);
    // The first one is older than the policy's window.
    assert_eq!(last(9_000, ServicePhase::Running, 1, "no mount"), 8_000);
    assert_eq!(last(10_000, ServicePhase::BackingOff, 1, "no address"), 10_000);
}

/// Advice names a node where the service can run, and none if there is none.
#[test]
fn advice_moves_a_service_only_to_a_node_where_it_can_run() {
    let mut nodes = running();
    let ServiceObserved { epoch, round, .. } = nodes.observed[&A].services["db"];
    let report = Command::ServiceStatus {
        name: "db".into(),
        node: A,
        phase: ServicePhase::BackingOff,
        epoch,
        round,
        detail: "no mount".into(),
        failures: 1,
        passes: false,
        last_failure: "no mount".into(),
    };
    apply(&mut nodes.state, report);
    let remedy = |state: &State| {
        let seen = Observations { has_leader: true, ..Default::default() };
        let list = mainstay_control::advice::advice(state, &seen);
        list.into_iter().find(|one| one.what.contains("no mount")).expect("it is told").remedy
    };
    assert!(
        remedy(&nodes.state).ends_with("or run `mainstay service move db b`"),
        "{}",
        remedy(&nodes.state)
    );
    assert!(die(&mut nodes.state, B).is_ok());
    assert_eq!(remedy(&nodes.state), "mend the cause there");
}

/// A reboot that the cluster did not take for a death: the node has no machine for its service, and
/// counts as running it.
#[test]
fn a_service_that_its_node_has_forgotten_is_reported_and_can_be_deleted() {
    let mut nodes = running();
    let ServiceObserved { phase, epoch, round, .. } = nodes.observed[&A].services["db"];
    let (name, detail) = ("db".to_owned(), String::new());
    apply(
        &mut nodes.state,
        Command::ServiceStatus {
            name,
            node: A,
            phase,
            epoch,
            round,
            detail,
            failures: 0,
            passes: false,
            last_failure: String::new(),
        },
    );
    nodes.observed.get_mut(&A).unwrap().services.clear();
    nodes.observed.get_mut(&A).unwrap().lease_valid = false;
    apply(&mut nodes.state, Command::DeleteService { name: "db".into() });
    assert_eq!(nodes.state.services["db"].nodes[&A].phase, ServicePhase::Running);
    nodes.settle();
    assert!(nodes.state.services.is_empty());
}

#[test]
fn a_failed_store_hands_over_and_a_deleted_service_and_resource_vanish() {
    let mut nodes = running();
    let replica = nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&R).unwrap();
    replica.failed = Some("write error".into());
    replica.role = Role::Fenced;
    nodes.settle();
    assert_eq!((nodes.runs_on(), members(&nodes.state)), (vec![B], vec![B]));
    assert!(!apply(&mut nodes.state, Command::DeleteResource { resource: R }).is_ok());
    apply(&mut nodes.state, Command::DeleteService { name: "db".into() });
    nodes.settle();
    assert!(nodes.state.services.is_empty());
    assert!(apply(&mut nodes.state, Command::DeleteResource { resource: R }).is_ok());
    nodes.settle();
    assert!(nodes.state.resources.is_empty());
    assert!(nodes.observed.values().all(|observed| observed.stored.is_empty()));
}
