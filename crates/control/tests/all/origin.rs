//! A resource that is made of a snapshot of another one (R17), as the control plane sees it.

use crate::common::*;
use mainstay_control::actions::{Action, plan};
use mainstay_control::advice::{Observations, advice};
use mainstay_control::origin::{CONTENT, SnapshotOf};
use mainstay_control::state::{Command, Outcome, ResourceSpec};
use mainstay_ha::ServiceSpec;
use mainstay_types::{
    Choices, Code, Incarnation, Index, IssChange, NodeId, ResourceId, Role, ShrinkReason, SnapshotId,
    SnapshotOn, SnapshotState,
};

const COPY: ResourceId = ResourceId(2);
const SNAPSHOT: SnapshotOf = SnapshotOf { resource: R, snapshot: SnapshotId(1) };

/// A resource with a service on A and B, and a snapshot of it on both.
fn with_snapshot() -> Nodes {
    let mut nodes = running();
    assert!(apply(&mut nodes.state, Command::TakeSnapshot { resource: R, name: "s".into() }).is_ok());
    nodes.settle();
    nodes
}

fn make(name: &str, of: SnapshotOf, volumes: Vec<u64>, replicas: &[NodeId]) -> Command {
    let spec = ResourceSpec {
        volumes,
        journal_bytes: 16 << 20,
        replicas: replicas.to_vec(),
        preferred: replicas[..1].to_vec(),
    };
    Command::CreateResource { name: name.into(), spec, choices: Choices::default(), origin: Some(of) }
}

fn make_copy(nodes: &mut Nodes, replicas: &[NodeId]) {
    let made = apply(&mut nodes.state, make("copy", SNAPSHOT, vec![1 << 20], replicas));
    assert_eq!(made, Outcome::ResourceCreated { resource: COPY });
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

fn drop_it(nodes: &mut Nodes) -> Outcome {
    apply(&mut nodes.state, Command::DropSnapshot { resource: R, name: "s".into() })
}

/// Advice about the copy, as text.
fn said(nodes: &Nodes) -> String {
    said_of(nodes, "resource copy")
}

fn said_of(nodes: &Nodes, subject: &str) -> String {
    let list = advice(&nodes.state, &Observations { has_leader: true, ..Observations::default() });
    let of_copy = list.into_iter().filter(|advice| advice.subject == subject);
    of_copy.map(|advice| format!("{}; {}\n", advice.what, advice.remedy)).collect()
}

#[test]
fn a_clone_is_not_used_before_it_holds_the_snapshot() {
    let mut nodes = with_snapshot();
    make_copy(&mut nodes, &[A, B, W]);
    let spec = ServiceSpec::parse("name='copy'\nresource='copy'\n[mount]\npath='/srv/copy'\n").unwrap();
    assert!(apply(&mut nodes.state, Command::ApplyService { spec }).is_ok());
    assert!(said(&nodes).contains("is being made of snapshot s of db; it waits for the replicas of a, b"));
    for _ in 0..40 {
        for node in [A, B, W] {
            let Some(action) = plan(node, &nodes.state, &nodes.observed[&node]).into_iter().next() else {
                continue;
            };
            let holds = nodes.state.resources[&COPY].origin.is_none();
            match &action {
                Action::StartService { name, .. } => assert!(name != "copy" || holds, "it is used too early"),
                Action::CreateReplica { of, .. } => {
                    assert_eq!(of.is_none(), holds, "{node} makes it of {of:?}")
                }
                _ => {}
            }
            nodes.act(node, action);
        }
    }
    nodes.settle();
    let copy = &nodes.state.resources[&COPY];
    assert_eq!((nodes.rollbacks, copy.rollback.is_none(), copy.record.primary), (1, true, Some(A)));
    assert!(copy.snapshots.is_empty(), "it was asked for a resource, not for a snapshot");
    assert!(nodes.observed[&A].replicas[&COPY].snapshots.is_empty());
    assert_eq!(nodes.made_of.len(), 2, "the third one is filled");
    assert!(nodes.observed[&A].services["copy"].resource == COPY);
    let told = nodes.state.events.iter().any(|event| event.text.contains("holds what snapshot s of db held"));
    assert!(told, "{:?}", nodes.state.events);
    // Its snapshots are its own.
    assert!(apply(&mut nodes.state, Command::TakeSnapshot { resource: COPY, name: "s".into() }).is_ok());
    nodes.settle();
    let taken: Vec<_> = nodes.state.resources[&COPY].snapshots.keys().copied().collect();
    assert_eq!(taken, [SnapshotId(3)]);
}

/// A replica that lags may have another history than the in-sync replicas, after a forced
/// promotion.
#[test]
fn replicas_are_made_only_of_those_in_sync() {
    let mut nodes = with_snapshot();
    let record = nodes.state.resources[&R].record.clone();
    let change =
        IssChange::Shrink { remove: record.replica(B).expect("it has one"), why: ShrinkReason::default() };
    let (version, epoch) = (record.version, record.epoch);
    assert!(apply(&mut nodes.state, Command::ChangeIss { resource: R, version, epoch, change }).is_ok());
    make_copy(&mut nodes, &[A, B]);
    nodes.settle();
    assert!(nodes.made_of.contains(&(A, COPY)) && !nodes.made_of.contains(&(B, COPY)));
    let record = &nodes.state.resources[&COPY].record;
    assert!(record.primary == Some(A) && record.replica(B).is_some(), "B is filled by A");
    assert_eq!(record.iss.iter().map(|member| member.node).collect::<Vec<_>>(), [A]);
}

#[test]
fn the_snapshot_and_its_resource_stay_until_the_clone_is_made() {
    let mut nodes = with_snapshot();
    let delete = Command::DeleteService { name: "db".into() };
    assert!(apply(&mut nodes.state, delete).is_ok());
    nodes.settle();
    make_copy(&mut nodes, &[A, B]);
    assert_eq!(code(drop_it(&mut nodes)), Code::BeingCloned);
    let delete = Command::DeleteResource { resource: R };
    assert_eq!(code(apply(&mut nodes.state, delete.clone())), Code::BeingCloned);
    let content = Command::DropSnapshot { resource: COPY, name: "s".into() };
    assert_eq!(code(apply(&mut nodes.state, content)), Code::RollingBack);
    nodes.settle();
    assert!(drop_it(&mut nodes).is_ok());
    nodes.settle();
    assert!(apply(&mut nodes.state, delete).is_ok());
    nodes.settle();
    assert!(!nodes.state.resources.contains_key(&R) && nodes.state.resources.contains_key(&COPY));
}

/// A resource that is deleted before it is made frees its snapshot.
#[test]
fn a_clone_can_be_deleted_before_it_is_made() {
    let mut nodes = with_snapshot();
    make_copy(&mut nodes, &[A, B]);
    assert!(apply(&mut nodes.state, Command::DeleteResource { resource: COPY }).is_ok());
    assert!(drop_it(&mut nodes).is_ok());
    nodes.settle();
    assert!(!nodes.state.resources.contains_key(&COPY));
}

#[test]
fn an_impossible_clone_is_refused() {
    let mut nodes = with_snapshot();
    let mut refuse = |of: SnapshotOf, volumes: Vec<u64>, replicas: &[NodeId]| {
        code(apply(&mut nodes.state, make("copy", of, volumes, replicas)))
    };
    assert_eq!(refuse(SNAPSHOT, vec![1 << 20], &[W]), Code::NotHeld);
    assert_eq!(refuse(SNAPSHOT, vec![1 << 19], &[A]), Code::BadResource);
    assert_eq!(refuse(SNAPSHOT, vec![1 << 20; 2], &[A]), Code::BadResource);
    let gone = SnapshotOf { snapshot: SnapshotId(9), ..SNAPSHOT };
    assert_eq!(refuse(gone, vec![1 << 20], &[A]), Code::UnknownSnapshot);
    let unknown = SnapshotOf { resource: ResourceId(9), ..SNAPSHOT };
    assert_eq!(refuse(unknown, vec![1 << 20], &[A]), Code::UnknownResource);
    make_copy(&mut nodes, &[A]);
    let of_copy = SnapshotOf { resource: COPY, snapshot: CONTENT };
    let again = apply(&mut nodes.state, make("more", of_copy, vec![1 << 20], &[A]));
    assert_eq!(code(again), Code::BeingMade);
    assert!(!drop_it(&mut nodes).is_ok(), "it is needed");
    nodes.settle();
    assert!(drop_it(&mut nodes).is_ok());
    assert_eq!(
        code(apply(&mut nodes.state, make("more", SNAPSHOT, vec![1 << 20], &[A]))),
        Code::UnknownSnapshot
    );
}

/// The disk that held it is replaced before the replica is made.
#[test]
fn a_clone_of_a_snapshot_that_no_replica_holds_any_more_is_reported() {
    let mut nodes = with_snapshot();
    make_copy(&mut nodes, &[B]);
    let version = nodes.state.resources[&R].record.version;
    let new = Command::ReplicaReady { resource: R, version, node: B, incarnation: Incarnation(77) };
    assert!(apply(&mut nodes.state, new).is_ok());
    let waits = plan(B, &nodes.state, &nodes.observed[&B]);
    let makes = |action: &Action| matches!(action, Action::CreateReplica { resource: COPY, of: None });
    assert!(!waits.iter().any(makes), "it would be empty");
    let said = said(&nodes);
    assert!(said.contains("cannot be made: none of its nodes holds snapshot s of db any more"), "{said}");
    assert!(said.contains("mainstay resource delete copy"), "{said}");
}

/// A snapshot that was never taken would be empty if it were taken now.
#[test]
fn a_snapshot_that_the_primary_of_a_clone_has_lost_is_not_taken_anew() {
    let mut nodes = with_snapshot();
    make_copy(&mut nodes, &[A]);
    while nodes.observed[&A].replicas.get(&COPY).is_none_or(|copy| copy.role != Role::Primary) {
        let action = plan(A, &nodes.state, &nodes.observed[&A]).into_iter().next().expect("it is not done");
        nodes.act(A, action);
    }
    let lose = |nodes: &mut Nodes| {
        let copy = nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&COPY).unwrap();
        std::mem::take(&mut copy.snapshots)
    };
    let lost = lose(&mut nodes);
    nodes.settle();
    assert!(nodes.observed[&A].replicas[&COPY].snapshots.is_empty() && nodes.rollbacks == 0);
    assert!(said(&nodes).contains("the primary has lost its files"), "{}", said(&nodes));
    assert!(nodes.state.resources[&COPY].origin.is_some());
    nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&COPY).unwrap().snapshots = lost;
    nodes.settle();
    assert!(nodes.state.resources[&COPY].origin.is_none() && nodes.rollbacks == 1);
}

const BEFORE_COPY: SnapshotOf = SnapshotOf { resource: R, snapshot: SnapshotId::BEFORE_COPY };

/// B lacks something, is copied to by A, and keeps what it held before.
fn copied_to() -> Nodes {
    let mut nodes = running();
    let record = nodes.state.resources[&R].record.clone();
    let remove = record.replica(B).expect("it has one");
    let change = IssChange::Shrink { remove, why: ShrinkReason::default() };
    let (version, epoch) = (record.version, record.epoch);
    assert!(apply(&mut nodes.state, Command::ChangeIss { resource: R, version, epoch, change }).is_ok());
    let on = SnapshotOn { at: Index(41), state: SnapshotState::Held };
    kept(&mut nodes).push((SnapshotId::BEFORE_COPY, on));
    nodes.settle();
    nodes
}

fn kept(nodes: &mut Nodes) -> &mut Vec<(SnapshotId, SnapshotOn)> {
    &mut nodes.observed.get_mut(&B).unwrap().replicas.get_mut(&R).unwrap().snapshots
}

#[test]
fn the_state_kept_before_a_copy_is_known_and_a_resource_is_made_of_it() {
    let mut nodes = copied_to();
    let known: Vec<_> =
        nodes.state.resources[&R].before_copy.iter().map(|(node, on)| (*node, on.at)).collect();
    assert_eq!(known, [(B, Index(41))]);
    assert!(nodes.state.resources[&R].snapshots.is_empty(), "no operator asked for it");
    let named = Command::TakeSnapshot { resource: R, name: "before-copy".into() };
    assert_eq!(code(apply(&mut nodes.state, named)), Code::BadName);
    let (keep, last) = (None, nodes.state.resources[&R].last_snapshot);
    let back = Command::RollBack { resource: R, last, name: "before-copy".into(), keep, restart: true };
    let Outcome::Refused(refusal) = apply(&mut nodes.state, back) else { panic!("it is of one replica") };
    assert!(
        refusal.message.contains("goes by itself") && refusal.remedy.contains("--from db@before-copy"),
        "{refusal:?}"
    );

    let made = apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[A, W]));
    let Outcome::Refused(refusal) = made else { panic!("{made:?}") };
    assert!(refusal.code == Code::NotHeld && refusal.remedy.contains("name b as well"), "{refusal:?}");
    let made = apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[A, B]));
    assert_eq!(made, Outcome::ResourceCreated { resource: COPY });
    assert!(said(&nodes).contains("made of snapshot before-copy of db; it waits for the replicas of b"));
    nodes.settle();
    let copy = &nodes.state.resources[&COPY];
    assert!(copy.origin.is_none() && copy.record.primary == Some(B), "{copy:?}");
    assert!(nodes.made_of.contains(&(B, COPY)) && !nodes.made_of.contains(&(A, COPY)), "{:?}", nodes.made_of);

    // The copy has ended.
    kept(&mut nodes).clear();
    nodes.settle();
    assert!(nodes.state.resources[&R].before_copy.is_empty());
    let made = apply(&mut nodes.state, make("more", BEFORE_COPY, vec![1 << 20], &[B]));
    assert_eq!(code(made), Code::UnknownSnapshot);
}

/// Two replicas may have kept different states.
#[test]
fn a_resource_is_made_of_the_kept_state_of_one_replica() {
    let mut nodes = copied_to();
    let before_copy = &mut nodes.state.resources.get_mut(&R).unwrap().before_copy;
    let other = before_copy[&B];
    before_copy.insert(A, other);
    let made = apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[A, B]));
    assert_eq!(code(made), Code::Ambiguous);
    assert!(apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[B])).is_ok());
}

/// The copy ends before the files were cloned.
#[test]
fn a_kept_state_that_is_gone_is_reported() {
    let mut nodes = copied_to();
    assert!(apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[B])).is_ok());
    kept(&mut nodes).clear();
    nodes.settle();
    assert!(nodes.made_of.is_empty(), "{:?}", nodes.made_of);
    let said = said(&nodes);
    assert!(
        said.contains("cannot be made: none of its nodes holds snapshot before-copy of db any more"),
        "{said}"
    );
}

#[test]
fn an_operator_without_a_complete_copy_is_told_of_the_kept_state() {
    let mut nodes = copied_to();
    nodes.power_cut(A);
    assert!(die(&mut nodes.state, A).is_ok());
    nodes.settle();
    let said = said_of(&nodes, "resource db");
    assert!(said.contains("up to entry 41"), "{said}");
    assert!(said.contains("mainstay resource create NAME --from db@before-copy --replicas b"), "{said}");
}

/// The space of the kept state may be needed for writes to other resources.
#[test]
fn the_state_kept_before_a_copy_can_be_deleted() {
    let mut nodes = copied_to();
    let delete = || Command::DropSnapshot { resource: R, name: "before-copy".into() };
    let full = [(R, [B].into())].into();
    let full = Observations { has_leader: true, full, ..Observations::default() };
    let said: Vec<_> = advice(&nodes.state, &full).into_iter().map(|one| one.remedy).collect();
    assert!(said.iter().any(|one| one.contains("mainstay snapshot delete db before-copy")), "{said:?}");
    assert!(apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[B])).is_ok());
    assert_eq!(code(apply(&mut nodes.state, delete())), Code::BeingCloned);
    assert!(apply(&mut nodes.state, Command::DeleteResource { resource: COPY }).is_ok());
    nodes.settle();
    assert!(apply(&mut nodes.state, delete()).is_ok());
    assert_eq!(apply(&mut nodes.state, delete()), Outcome::Unchanged);
    assert_eq!(
        code(apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[B]))),
        Code::UnknownSnapshot
    );
    nodes.settle();
    assert!(kept(&mut nodes).is_empty() && nodes.state.resources[&R].before_copy.is_empty());
    assert_eq!(code(apply(&mut nodes.state, delete())), Code::UnknownSnapshot);
}

/// The first copy has ended before the resource is made, and another copy keeps a later state.
#[test]
fn a_resource_is_not_made_of_the_state_that_another_copy_keeps() {
    let mut nodes = copied_to();
    assert!(apply(&mut nodes.state, make("copy", BEFORE_COPY, vec![1 << 20], &[B])).is_ok());
    kept(&mut nodes)[0].1.at = Index(57);
    nodes.settle();
    assert_eq!(nodes.state.resources[&R].before_copy[&B].at, Index(57));
    assert!(nodes.made_of.is_empty(), "{:?}", nodes.made_of);
    assert!(said(&nodes).contains("cannot be made"), "{}", said(&nodes));
}
