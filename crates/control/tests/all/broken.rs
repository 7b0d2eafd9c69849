//! Replicas that their nodes cannot use (R12): never promoted, never counted as a member that
//! remains, and said in words.

use crate::common::{A, B, R, W as C, apply, cluster, die, members, primary, promote, rejoin};
use mainstay_control::actions::{Action, Observed, ReplicaObserved, ServiceObserved, Unusable, plan};
use mainstay_control::advice::{Advice, Observations, advice};
use mainstay_control::state::{Command, Outcome, ResourceSpec, State};
use mainstay_ha::ServiceSpec;
use mainstay_types::{
    Choices, Code, ConfigVersion, Epoch, Incarnation, Index, IssChange, Member, NodeId, Role, ServicePhase,
    Severity,
};

const REASON: &str = "version table page 3 is damaged";

/// Three nodes, the first `replicas` of which hold a replica that is not registered yet.
fn unready(replicas: u32) -> State {
    let mut state = cluster();
    let replicas = (1..=replicas).map(NodeId).collect();
    let spec = ResourceSpec { volumes: vec![1 << 20], journal_bytes: 16 << 20, replicas, preferred: vec![A] };
    assert!(
        apply(
            &mut state,
            Command::CreateResource { name: "db".into(), spec, choices: Choices::default(), origin: None }
        )
        .is_ok()
    );
    state
}

fn incarnation(node: NodeId) -> Incarnation {
    Incarnation(u64::from(node.0))
}

fn make(state: &mut State, node: NodeId, incarnation: Incarnation) -> Outcome {
    let version = state.resources[&R].record.version;
    apply(state, Command::ReplicaReady { resource: R, version, node, incarnation })
}

/// The first `replicas` nodes are in sync, A is primary.
fn ready(replicas: u32) -> State {
    let mut state = unready(replicas);
    for node in (1..=replicas).map(NodeId) {
        assert!(make(&mut state, node, incarnation(node)).is_ok());
    }
    assert!(promote(&mut state, A, A).is_ok());
    state
}

fn version(state: &State) -> ConfigVersion {
    state.resources[&R].record.version
}

fn breaks(state: &State, node: NodeId) -> Command {
    Command::ReplicaBroken {
        resource: R,
        version: version(state),
        node,
        incarnation: incarnation(node),
        reason: REASON.into(),
        code: Code::default(),
    }
}

fn broken(state: &mut State, node: NodeId) -> Outcome {
    let command = breaks(state, node);
    apply(state, command)
}

fn opened(state: &mut State, node: NodeId) -> Outcome {
    apply(state, Command::ReplicaOpened { resource: R, node, incarnation: incarnation(node) })
}

fn advice_about_the_replica(state: &State) -> Advice {
    let list = advice(state, &Default::default());
    let found = list.iter().find(|advice| advice.what.contains("cannot be used: ")).cloned();
    found.unwrap_or_else(|| panic!("{list:?}"))
}

#[test]
fn a_broken_primary_is_replaced_by_a_whole_member() {
    let mut state = ready(2);
    let epoch = state.resources[&R].record.epoch;
    assert!(broken(&mut state, A).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![B]));
    assert_eq!(state.resources[&R].record.epoch, epoch.next());
    let said = advice_about_the_replica(&state);
    assert!(said.what.contains("replica of db on a") && said.what.contains(REASON), "{said:?}");
    assert!(said.remedy.contains("copied again from b"), "{said:?}");
    assert_eq!(said.severity, Severity::Warning);
}

/// The broken one lives, the whole one dies: the whole one must stay in sync and must not be
/// replaced.
#[test]
fn a_broken_secondary_leaves_and_is_not_promoted_when_the_primary_dies() {
    let mut state = ready(2);
    assert!(broken(&mut state, B).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(A), vec![A]), "the primary goes on alone");
    die(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (None, vec![A]));
    assert_eq!(state.target(R), None);
    assert!(!promote(&mut state, B, B).is_ok());
    let said = advice_about_the_replica(&state);
    assert!(said.remedy.starts_with("bring a back"), "{said:?}");
    assert_eq!(said.severity, Severity::Critical);
    rejoin(&mut state, A);
    assert_eq!(state.target(R), Some(A));
    assert!(promote(&mut state, A, A).is_ok());
}

/// Three members: the broken one is passed over.
#[test]
fn a_broken_member_is_passed_over() {
    let mut state = ready(3);
    assert!(broken(&mut state, B).is_ok());
    assert_eq!(members(&state), vec![A, C]);
    die(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (Some(C), vec![C]));
}

/// R11: the replica that holds everything stays recorded, broken or not. It goes on when it is
/// whole again.
#[test]
fn the_last_member_stays_recorded_and_goes_on_when_it_was_opened_after_all() {
    let mut state = ready(2);
    die(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![B]));
    assert!(broken(&mut state, B).is_ok());
    assert_eq!((primary(&state), members(&state)), (None, vec![B]));
    let failure = state.resources[&R].failure.clone().unwrap();
    assert!(
        failure.contains(REASON) && failure.contains("only b has") && failure.contains("cannot be used"),
        "{failure}"
    );
    rejoin(&mut state, A);
    assert_eq!(state.target(R), None, "it lacks what was acknowledged without it");
    let said = advice_about_the_replica(&state);
    assert!(said.remedy.starts_with("keep its files"), "{said:?}");
    assert!(matches!(make(&mut state, B, Incarnation(77)), Outcome::Refused(_)), "the last copy (R11)");
    assert!(opened(&mut state, B).is_ok());
    assert_eq!(state.target(R), Some(B));
    assert!(promote(&mut state, B, B).is_ok());
    assert_eq!(opened(&mut state, B), Outcome::Unchanged);
}

/// A resource that was never written: a broken empty replica gives way to a whole empty one,
/// whichever comes first.
#[test]
fn a_broken_member_leaves_as_soon_as_a_whole_one_lives() {
    let mut state = unready(3);
    make(&mut state, A, incarnation(A));
    assert!(broken(&mut state, A).is_ok());
    assert_eq!(members(&state), vec![A]);
    die(&mut state, B);
    make(&mut state, B, incarnation(B));
    assert_eq!(members(&state), vec![A, B], "neither can serve");
    rejoin(&mut state, B);
    assert_eq!(members(&state), vec![B]);
}

#[test]
fn a_report_counts_once_for_the_record_and_the_disk_that_it_names() {
    let mut state = ready(3);
    let late = breaks(&state, B);
    die(&mut state, C);
    assert!(
        matches!(apply(&mut state, late), Outcome::Conflict { .. }),
        "B may serve in the newer record (R19)"
    );
    let other = Command::ReplicaBroken {
        resource: R,
        version: version(&state),
        node: B,
        incarnation: Incarnation(77),
        reason: REASON.into(),
        code: Code::default(),
    };
    assert!(matches!(apply(&mut state, other), Outcome::Conflict { .. }), "another disk (R9)");
    assert!(state.resources[&R].broken.is_empty());
    assert!(broken(&mut state, B).is_ok());
    let before = state.clone();
    assert_eq!(broken(&mut state, B), Outcome::Unchanged);
    let of_another_disk = Command::ReplicaOpened { resource: R, node: B, incarnation: Incarnation(77) };
    assert_eq!(apply(&mut state, of_another_disk), Outcome::Unchanged);
    assert_eq!(state, before);
}

#[test]
fn a_broken_replica_does_not_join_and_a_new_disk_does() {
    let mut state = ready(2);
    assert!(broken(&mut state, B).is_ok());
    let grow = |state: &State, incarnation| {
        let record = &state.resources[&R].record;
        let change = IssChange::Grow { add: Member { node: B, incarnation } };
        Command::ChangeIss { resource: R, version: record.version, epoch: record.epoch, change }
    };
    let command = grow(&state, incarnation(B));
    let Outcome::Refused(why) = apply(&mut state, command) else { panic!("it joined") };
    assert_eq!(why.code, Code::ReplicaBroken);
    assert!(make(&mut state, B, Incarnation(77)).is_ok());
    assert!(state.resources[&R].broken.is_empty(), "what was said of the old disk is void");
    let command = grow(&state, Incarnation(77));
    assert!(apply(&mut state, command).is_ok());
    assert_eq!(members(&state), vec![A, B]);
}

#[test]
fn a_deleted_resource_has_no_broken_replicas() {
    let mut state = ready(2);
    assert!(broken(&mut state, B).is_ok());
    assert!(apply(&mut state, Command::DeleteResource { resource: R }).is_ok());
    assert!(state.resources[&R].broken.is_empty());
    assert!(matches!(broken(&mut state, B), Outcome::Conflict { .. }));
}

#[test]
fn a_state_of_an_earlier_build_is_read() {
    let state = ready(2);
    let mut json = serde_json::to_value(&state).unwrap();
    assert!(json["resources"]["1"].as_object_mut().unwrap().remove("broken").is_some());
    assert_eq!(serde_json::from_value::<State>(json).unwrap(), state);
}

fn unusable(node: NodeId) -> Observed {
    Observed {
        lease_valid: true,
        engine: true,
        stored: [(R, incarnation(node))].into(),
        unusable: [(R, Unusable { reason: REASON.into(), code: Code::default() })].into(),
        ..Observed::default()
    }
}

/// A service runs on the replica of A.
fn with_service(state: &mut State) -> Observed {
    let spec = ServiceSpec::parse("name='db'\nresource='db'\n[mount]\npath='/srv/db'\n").unwrap();
    apply(state, Command::ApplyService { spec });
    let mut observed = unusable(A);
    let seen = ServiceObserved {
        phase: ServicePhase::Running,
        revision: state.services["db"].revision,
        edition: state.services["db"].edition,
        resource: R,
        ..ServiceObserved::default()
    };
    observed.services.insert("db".into(), seen);
    observed
}

#[test]
fn a_service_stops_when_its_replica_is_removed() {
    let mut state = ready(2);
    let mut observed = with_service(&mut state);
    observed.stored.clear();
    let actions = plan(A, &state, &observed);
    assert!(
        matches!(actions[..], [Action::StopService { .. }, Action::CreateReplica { .. }]),
        "seed 278138: an adopted one went on in its epoch: {actions:?}"
    );
}

#[test]
fn a_node_reports_a_broken_replica_when_its_services_are_silent_and_takes_it_back() {
    let mut state = ready(2);
    let mut observed = with_service(&mut state);
    let actions = plan(A, &state, &observed);
    assert!(
        matches!(actions[..], [Action::StopService { .. }, Action::OpenReplica { .. }]),
        "its services go first (R19): {actions:?}"
    );
    observed.services.get_mut("db").unwrap().phase = ServicePhase::Stopped;
    let actions = plan(A, &state, &observed);
    let report = Action::Propose(breaks(&state, A));
    assert!(actions.contains(&report), "{actions:?}");
    assert!(actions.contains(&Action::OpenReplica { resource: R }), "it is tried again: {actions:?}");
    assert!(broken(&mut state, A).is_ok());
    assert_eq!(primary(&state), Some(B));
    let actions = plan(A, &state, &observed);
    assert!(
        !actions.iter().any(|action| matches!(action, Action::Propose(_))),
        "once is enough: {actions:?}"
    );

    observed.unusable.clear();
    observed
        .replicas
        .insert(R, ReplicaObserved { incarnation: incarnation(A), ..ReplicaObserved::default() });
    let actions = plan(A, &state, &observed);
    let back = Command::ReplicaOpened { resource: R, node: A, incarnation: incarnation(A) };
    assert!(actions.contains(&Action::Propose(back)), "{actions:?}");
    assert!(opened(&mut state, A).is_ok());
    let actions = plan(A, &state, &observed);
    assert!(!actions.iter().any(|action| matches!(action, Action::Propose(_))), "{actions:?}");
}

/// A node reports neither an error that passes by itself, nor a disk that the cluster does not
/// know.
#[test]
fn a_node_reports_neither_unregistered_disks_nor_passing_errors() {
    let mut state = unready(2);
    let not_registered = plan(A, &state, &unusable(A));
    assert_eq!(not_registered, vec![Action::OpenReplica { resource: R }]);
    make(&mut state, A, incarnation(A));
    let passes = Observed { unusable: Default::default(), ..unusable(A) };
    assert_eq!(plan(A, &state, &passes), vec![Action::OpenReplica { resource: R }]);
}

/// R12: without the report, the cluster would not learn that the registered disk is gone until the
/// new one can be opened. The registered disk may be the last complete copy, for which all nodes
/// wait.
#[test]
fn a_node_says_so_when_its_new_disk_cannot_be_used_either() {
    let mut state = ready(2);
    die(&mut state, B);
    let mut observed = unusable(A);
    observed.stored = [(R, Incarnation(99))].into();
    let actions = plan(A, &state, &observed);
    let Some(Action::Propose(report @ Command::ReplicaBroken { incarnation: of, .. })) = actions.first()
    else {
        panic!("{actions:?}")
    };
    assert_eq!(*of, incarnation(A), "what is told is about the registered disk (R9)");
    assert!(apply(&mut state, report.clone()).is_ok());
    let failure = state.resources[&R].failure.clone().unwrap_or_default();
    assert!(failure.contains("its disk is a new one"), "{failure}");
    assert!(
        !plan(A, &state, &observed).iter().any(|action| matches!(action, Action::Propose(_))),
        "once is enough"
    );
}

/// The remedy that goes with what is said of the resource.
fn remedy(state: &State) -> String {
    let failure = state.resources[&R].failure.clone().unwrap_or_default();
    let list = advice(state, &Default::default());
    let said = |advice: &Advice| advice.what == failure && advice.severity == Severity::Critical;
    list.iter().find(|advice| said(advice)).unwrap_or_else(|| panic!("{failure}: {list:?}")).remedy.clone()
}

/// B lives and is not in sync. A, the primary, has a new disk; only its old disk had everything.
fn with_the_last_copy_gone() -> State {
    let mut state = ready(2);
    die(&mut state, B);
    rejoin(&mut state, B);
    assert!(matches!(make(&mut state, A, Incarnation(99)), Outcome::Refused(_)));
    state
}

/// Another replica that cannot be used must not hide the loss: the operator would not look for the
/// old disk. Seed 3232789.
#[test]
fn the_loss_of_the_last_copy_is_still_said_when_another_reason_comes() {
    let mut state = with_the_last_copy_gone();
    let old_disk = "bring the old disk of a back";
    assert!(remedy(&state).starts_with(old_disk), "{}: while it is primary", remedy(&state));
    die(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (None, vec![A]));
    assert!(remedy(&state).starts_with(old_disk), "{}: in a later version", remedy(&state));
    assert!(broken(&mut state, B).is_ok());
    let failure = state.resources[&R].failure.clone().unwrap_or_default();
    assert!(failure.contains(REASON) && failure.contains("the old disk of a had everything"), "{failure}");
    assert!(remedy(&state).starts_with(old_disk), "{}", remedy(&state));
    rejoin(&mut state, A);
    assert!(remedy(&state).starts_with(old_disk), "{}", remedy(&state));
}

#[test]
fn an_old_disk_that_is_back_is_not_asked_for_any_more() {
    let mut state = with_the_last_copy_gone();
    die(&mut state, A);
    rejoin(&mut state, A);
    assert_eq!(state.target(R), None, "the new disk is empty");
    let mut observed = unusable(A);
    observed.unusable.clear();
    let replica = ReplicaObserved {
        incarnation: incarnation(A),
        version: ConfigVersion(99),
        ..ReplicaObserved::default()
    };
    observed.replicas.insert(R, replica);
    let back = Command::ReplicaOpened { resource: R, node: A, incarnation: incarnation(A) };
    assert_eq!(plan(A, &state, &observed)[0], Action::Propose(back.clone()), "it is opened after all");
    assert!(apply(&mut state, back).is_ok());
    assert!(promote(&mut state, A, A).is_ok());
    assert!(!state.resources[&R].lost_the_last_copy(A) && state.resources[&R].failure.is_none());
    let mut state = with_the_last_copy_gone();
    assert!(broken(&mut state, A).is_ok());
    assert!(!state.resources[&R].lost_the_last_copy(A));
    assert!(remedy(&state).starts_with("mend the disk of a"), "{}", remedy(&state));
}

/// R11: a forced promotion has to be possible from a replica that is there, and the empty new disk
/// has nothing.
#[test]
fn a_primary_with_a_new_disk_does_not_count_as_one_that_has_everything() {
    let mut state = with_the_last_copy_gone();
    let mut observed = unusable(A);
    observed.unusable.clear();
    observed.stored = [(R, Incarnation(99))].into();
    let replica = ReplicaObserved { incarnation: Incarnation(99), ..ReplicaObserved::default() };
    observed.replicas.insert(R, replica);
    let actions = plan(A, &state, &observed);
    let [Action::Propose(step_down @ Command::StepDown { .. })] = &actions[..] else { panic!("{actions:?}") };
    assert!(apply(&mut state, step_down.clone()).is_ok());
    assert_eq!((primary(&state), members(&state)), (None, vec![A]));
    assert!(state.candidates(&state.resources[&R]).is_empty(), "the resource is down");
    let refusal = state.cannot_force(R, A).expect("an empty disk is no way out");
    assert!(refusal.message.contains("holds no replica that can be used"), "{refusal:?}");
    assert_eq!(state.cannot_force(R, B), None);
    assert!(remedy(&state).contains("force-promote"), "{}", remedy(&state));
}

fn gone(node: NodeId) -> Observed {
    let replica = ReplicaObserved {
        incarnation: incarnation(node),
        version: ConfigVersion(99),
        epoch: Epoch(1),
        failed: Some(REASON.into()),
        gone: Some(REASON.into()),
        ..ReplicaObserved::default()
    };
    Observed { unusable: Default::default(), replicas: [(R, replica)].into(), ..unusable(node) }
}

fn propose_all(state: &mut State, actions: &[Action]) {
    for action in actions {
        if let Action::Propose(command) = action {
            apply(state, command.clone());
        }
    }
}

/// An operator moves or deletes the directory of a running replica. The next start of the engine
/// would not find what the replica acknowledges.
#[test]
fn a_replica_whose_directory_is_gone_leaves_and_is_made_anew() {
    let mut state = ready(2);
    let actions = plan(A, &state, &gone(A));
    assert!(matches!(actions[..], [Action::Propose(Command::StepDown { .. })]), "{actions:?}");
    propose_all(&mut state, &actions);
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![B]), "the primary hands over");
    let actions = plan(A, &state, &gone(A));
    propose_all(&mut state, &actions);
    let said = advice_about_the_replica(&state);
    assert!(said.remedy.contains("copied again from b by itself"), "{said:?}");
    let actions = plan(A, &state, &gone(A));
    assert_eq!(actions, vec![Action::ReplaceReplica { resource: R }]);
}

/// R11: as long as no other replica has everything, the files that the engine has open are all
/// there is.
#[test]
fn the_only_complete_replica_stays_open_until_its_directory_is_put_back() {
    let mut state = ready(1);
    for _ in 0..3 {
        let actions = plan(A, &state, &gone(A));
        assert!(!actions.contains(&Action::ReplaceReplica { resource: R }), "{actions:?}");
        propose_all(&mut state, &actions);
    }
    assert_eq!((primary(&state), members(&state), state.target(R)), (None, vec![A], None));
    let said = advice_about_the_replica(&state);
    assert!(said.remedy.contains("put its directory back on a"), "{said:?}");
    let mut back = gone(A);
    let replica = back.replicas.get_mut(&R).unwrap();
    (replica.failed, replica.gone) = (None, None);
    let actions = plan(A, &state, &back);
    propose_all(&mut state, &actions);
    assert_eq!(state.target(R), Some(A));
}

/// A node that finds no directory at its start makes no empty one in its place as long as the
/// cluster counts on what was there.
#[test]
fn a_node_makes_no_new_replica_while_the_cluster_counts_on_the_old_one() {
    let mut state = ready(2);
    let counts = |state: &State| {
        let member = state.resources[&R].counts_on(|made| made == incarnation(A));
        member.map(|member| member.node)
    };
    assert_eq!(counts(&state), Some(A));
    assert!(broken(&mut state, A).is_ok());
    assert_eq!((members(&state), counts(&state)), (vec![B], None), "another one has everything");
    assert_eq!(unready(2).resources[&R].counts_on(|_| true), None, "nothing was ever written");
}

/// An operator reads the present reason.
#[test]
fn the_reason_of_a_broken_replica_follows_its_cause() {
    let mut state = ready(2);
    let mut observed = unusable(B);
    for reason in ["it is empty", "it is that of another resource"] {
        observed.unusable = [(R, Unusable { reason: reason.into(), code: Code::NoLabel })].into();
        let actions = plan(B, &state, &observed);
        propose_all(&mut state, &actions);
        assert!(advice_about_the_replica(&state).what.ends_with(reason), "{state:?}");
    }
    let again = plan(B, &state, &observed);
    assert!(!again.iter().any(|action| matches!(action, Action::Propose(_))), "once is enough: {again:?}");
}

/// R9: a replica that the engine has open instead of the registered disk is neither used nor
/// promoted.
#[test]
fn another_disk_in_its_place_does_not_count_as_open() {
    let state = ready(2);
    let mut observed = unusable(A);
    let other = ReplicaObserved { incarnation: Incarnation(99), role: Role::Secondary, ..Default::default() };
    observed.replicas.insert(R, other);
    let actions = plan(A, &state, &observed);
    assert_eq!(actions[0], Action::Propose(breaks(&state, A)));
    assert!(!actions.iter().any(|action| matches!(action, Action::GiveRecord(_))), "{actions:?}");
}

/// R13: a store that has stopped counts as broken, and a primary steps down first.
#[test]
fn a_node_says_that_its_store_has_stopped() {
    let mut state = ready(2);
    let stopped = |node| {
        let replica = ReplicaObserved {
            incarnation: incarnation(node),
            version: ConfigVersion(99),
            failed: Some(REASON.into()),
            store_failed: true,
            ..ReplicaObserved::default()
        };
        Observed { unusable: Default::default(), replicas: [(R, replica)].into(), ..unusable(node) }
    };
    assert_eq!(plan(B, &state, &stopped(B)), vec![Action::Propose(breaks(&state, B))]);
    let actions = plan(A, &state, &stopped(A));
    assert!(matches!(actions[..], [Action::Propose(Command::StepDown { .. })]), "{actions:?}");
    // Both replicas are broken at once: the first one that is whole again goes on.
    let step_down =
        Command::StepDown { resource: R, version: version(&state), node: A, reason: REASON.into() };
    assert!(broken(&mut state, B).is_ok());
    assert!(matches!(apply(&mut state, step_down), Outcome::Conflict { .. }));
    let version = version(&state);
    apply(&mut state, Command::StepDown { resource: R, version, node: A, reason: REASON.into() });
    assert_eq!((primary(&state), members(&state)), (None, vec![A]));
    assert_eq!(plan(A, &state, &stopped(A)), vec![Action::Propose(breaks(&state, A))]);
    assert!(broken(&mut state, A).is_ok());
    assert_eq!(state.target(R), None);
    let mut observed = stopped(A);
    let replica = observed.replicas.get_mut(&R).unwrap();
    (replica.failed, replica.store_failed) = (None, false);
    let back = Command::ReplicaOpened { resource: R, node: A, incarnation: incarnation(A) };
    assert_eq!(plan(A, &state, &observed), vec![Action::Propose(back)]);
    assert!(opened(&mut state, A).is_ok());
    assert_eq!(state.target(R), Some(A));
}

/// R9, R11: an earlier replica that an operator put in the place of the registered one is no new
/// disk. Its history may be over.
#[test]
fn an_earlier_replica_that_is_put_back_is_not_registered() {
    let state = ready(2);
    let mut observed = unusable(A);
    observed.unusable.clear();
    observed.stored = [(R, Incarnation(99))].into();
    let replica = ReplicaObserved { incarnation: Incarnation(99), ..Default::default() };
    observed.replicas.insert(R, replica.clone());
    let actions = plan(A, &state, &observed);
    assert!(matches!(actions[..], [Action::Propose(Command::ReplicaReady { .. })]), "a new one: {actions:?}");
    observed.replicas.insert(R, ReplicaObserved { epoch: Epoch(1), ..replica });
    let actions = plan(A, &state, &observed);
    let [Action::Propose(Command::ReplicaBroken { incarnation: of, reason, .. })] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(*of, incarnation(A));
    assert!(reason.contains("had earlier"), "{reason}");
}

/// R12: the primary, alone in sync, has learned from another replica that its files are an older
/// copy. It is not promoted again and again.
#[test]
fn an_older_copy_that_is_alone_in_sync_makes_way_for_a_forced_promotion() {
    let mut state = ready(2);
    die(&mut state, B);
    rejoin(&mut state, B);
    assert_eq!((primary(&state), members(&state)), (Some(A), vec![A]));
    let replica = ReplicaObserved {
        role: Role::Fenced,
        incarnation: incarnation(A),
        version: ConfigVersion(99),
        epoch: state.resources[&R].record.epoch,
        failed: Some("older-copy".into()),
        older: true,
        ..ReplicaObserved::default()
    };
    let step = |state: &mut State, replica: &ReplicaObserved| {
        let observed =
            Observed { replicas: [(R, replica.clone())].into(), unusable: Default::default(), ..unusable(A) };
        let actions = plan(A, state, &observed);
        for action in &actions {
            if let Action::Propose(command) = action {
                apply(state, command.clone());
            }
        }
        actions.len()
    };
    assert_eq!(step(&mut state, &replica), 1);
    assert_eq!((primary(&state), members(&state)), (None, vec![A]), "it steps down");
    assert_eq!(step(&mut state, &replica), 1);
    assert_eq!((primary(&state), state.target(R)), (None, None));
    assert_eq!(step(&mut state, &replica), 0, "it rests");
    let said = advice_about_the_replica(&state);
    assert!(said.what.contains("older copy") && said.remedy.contains("force-promote db"), "{said:?}");
    assert_eq!(state.cannot_force(R, B), None);
    let record = &state.resources[&R].record;
    let to = record.replica(B).unwrap();
    let (version, end, heard) = (record.version, Index(9), Index(9));
    assert!(apply(&mut state, Command::ForcePromote { resource: R, version, to, end, heard }).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![B]));
    assert_eq!(step(&mut state, &replica), 1);
    assert!(state.resources[&R].broken(A).is_none(), "it is fed like others");
}

/// The advice fits the cause. It names no repair of a disk if the files are only old, or are
/// those of another replica.
#[test]
fn the_advice_for_a_replica_that_cannot_be_used_fits_its_cause() {
    let remedy = |code: &Code, replicas: u32| {
        let mut state = ready(replicas);
        let Command::ReplicaBroken { resource, version, node, incarnation, reason, .. } = breaks(&state, A)
        else {
            unreachable!()
        };
        let code = code.clone();
        apply(&mut state, Command::ReplicaBroken { resource, version, node, incarnation, reason, code });
        advice_about_the_replica(&state).remedy
    };
    for (code, says) in [
        (Code::OlderCopy, "put its newest files back"),
        (Code::NoLabel, "do what is said there"),
        (Code::EarlierReplica, "put the files back"),
        (Code::WrongDisk, "put the files back"),
        (Code::JournalMissing, "mount the device of its journal"),
        (Code::VolatileJournal, "--volatile-journals"),
        (Code::Disk, "mend the disk of a"),
        (Code::default(), "mend the disk of a"),
    ] {
        for replicas in [1, 2] {
            let remedy = remedy(&code, replicas);
            assert!(remedy.contains(says), "{code}: {remedy}");
            assert_eq!(remedy.contains("backup"), replicas == 1, "{code}: {remedy}");
            assert_eq!(remedy.contains("copied again from b"), replicas == 2, "{code}: {remedy}");
            assert_eq!(
                remedy.contains("held.json"),
                code == Code::OlderCopy && replicas == 1,
                "{code}: {remedy}"
            );
        }
    }
}

/// While failover is possible, the advice about a replica that cannot be used is the only one.
#[test]
fn a_replica_that_cannot_be_used_is_told_once_unless_no_failover_is_possible() {
    let degraded = |replicas: u32| {
        let mut state = ready(replicas);
        assert!(broken(&mut state, B).is_ok());
        assert!(advice_about_the_replica(&state).remedy.contains("copied again"));
        let all = advice(&state, &Observations::default());
        all.iter().filter(|advice| advice.what.contains("is degraded")).count()
    };
    assert_eq!((degraded(3), degraded(2)), (0, 1));
}

/// A directory without its label is in the place of a replica. No node waits for it to catch up.
#[test]
fn a_node_reports_a_foreign_directory_in_the_place_of_its_replica() {
    let state = ready(2);
    let mut observed = unusable(B);
    observed.stored.clear();
    let actions = plan(B, &state, &observed);
    assert_eq!(actions[0], Action::Propose(breaks(&state, B)));
    assert!(matches!(actions[1], Action::CreateReplica { .. }), "it is tried again: {actions:?}");
}

/// A full pool is no broken disk: its node opens the replica again when there is room, and the
/// advice says no more than that.
#[test]
fn a_replica_that_had_no_space_is_opened_again_when_there_is_room() {
    let mut state = ready(2);
    let version = version(&state);
    apply(&mut state, Command::StepDown { resource: R, version, node: A, reason: REASON.into() });
    let replica = ReplicaObserved {
        incarnation: incarnation(A),
        version: ConfigVersion(99),
        failed: Some(REASON.into()),
        store_failed: true,
        full: true,
        ..ReplicaObserved::default()
    };
    let mut observed =
        Observed { replicas: [(R, replica)].into(), unusable: Default::default(), ..unusable(A) };
    let report = Action::Propose(breaks(&state, A));
    assert_eq!(plan(A, &state, &observed), vec![report]);
    assert!(broken(&mut state, A).is_ok() && broken(&mut state, B).is_ok());
    observed.room = true;
    assert_eq!(plan(A, &state, &observed), vec![Action::ReopenReplica { resource: R }]);
    let full = Observations { full: [(R, [A, B].into())].into(), has_leader: true, ..Default::default() };
    let said: Vec<_> =
        advice(&state, &full).into_iter().filter(|said| said.is_about_resource("db")).collect();
    let [said] = &said[..] else { panic!("one cause is one advice: {said:?}") };
    assert!(said.what.contains("the pool of each of a, b has no space"), "{said:?}");
    assert!(said.what.contains("there is no primary of db"), "{said:?}");
    assert!(said.remedy.contains("make room"), "{said:?}");
    assert!(!said.remedy.contains("force-promote") && !said.remedy.contains("backup"), "{said:?}");
}

/// E: a node that is away does not hold the name of a deleted resource, and removes the files when
/// it is back.
#[test]
fn a_resource_is_deleted_without_the_nodes_that_are_dead() {
    let gone = |state: &State| state.resource_by_name("db").is_none();
    let leaves = |state: &mut State, node| apply(state, Command::ReplicaGone { resource: R, node });
    let delete = Command::DeleteResource { resource: R };

    let mut away = ready(2);
    die(&mut away, B);
    assert!(apply(&mut away, delete.clone()).is_ok() && !gone(&away));
    assert!(leaves(&mut away, A).is_ok() && gone(&away));
    let said = away.events.back().unwrap().text.clone();
    assert!(said.contains("removes the files when it returns"), "{said}");
    rejoin(&mut away, B);
    let observed = Observed { unusable: Default::default(), ..unusable(B) };
    assert!(plan(B, &away, &observed).contains(&Action::DropReplica { resource: R }));

    let mut dies = ready(2);
    assert!(apply(&mut dies, delete.clone()).is_ok() && leaves(&mut dies, A).is_ok() && !gone(&dies));
    die(&mut dies, B);
    assert!(gone(&dies), "it died meanwhile");

    let mut all = ready(2);
    die(&mut all, A);
    die(&mut all, B);
    assert!(apply(&mut all, delete).is_ok() && gone(&all));
}
