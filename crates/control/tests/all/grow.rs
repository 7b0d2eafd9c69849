//! Volumes that grow (R17), as the control plane sees it.

use crate::common::*;
use mainstay_control::actions::{Action, plan};
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Code, ResourceId, VolumeId};

const V: VolumeId = VolumeId(0);

fn grow(nodes: &mut Nodes, bytes: u64) -> Outcome {
    apply(&mut nodes.state, Command::GrowVolume { resource: R, volume: V, bytes })
}

fn size(nodes: &Nodes) -> u64 {
    nodes.state.resources[&R].spec.volumes[0]
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

#[test]
fn a_volume_grows_when_its_primary_has_made_it_larger() {
    let mut nodes = running();
    let old = size(&nodes);
    assert!(grow(&mut nodes, 2 * old).is_ok());
    assert_eq!(size(&nodes), old, "replicas that are made now begin with the old size and meet the entry");
    nodes.settle();
    assert_eq!(size(&nodes), 2 * old);
    assert!(nodes.state.resources[&R].growing.is_empty());
    assert_eq!(
        nodes.state.resources[&R].first_sizes(),
        [old],
        "what is made now meets the entry too, or is copied"
    );
    assert_eq!(nodes.runs_on(), [A], "under its service");
    assert_eq!(grow(&mut nodes, 2 * old), Outcome::Unchanged);
}

#[test]
fn the_next_primary_carries_out_the_order() {
    let mut nodes = running();
    let old = size(&nodes);
    assert!(grow(&mut nodes, 2 * old).is_ok());
    // A larger wish takes the place of the one that is open.
    assert!(grow(&mut nodes, 3 * old).is_ok());
    nodes.power_cut(A);
    let generation = nodes.state.nodes[&A].generation;
    assert!(apply(&mut nodes.state, Command::NodeDead { node: A, generation }).is_ok());
    nodes.settle();
    assert_eq!((primary(&nodes.state), size(&nodes)), (Some(B), 3 * old));
}

/// A growth was under way while a promotion was forced, and the new log does not have it.
/// Seed 3240830.
#[test]
fn a_growth_of_an_earlier_epoch_does_not_fulfil_the_order() {
    let mut nodes = running();
    let old = size(&nodes);
    let epoch = nodes.state.resources[&R].record.epoch;
    nodes.power_cut(A);
    let generation = nodes.state.nodes[&A].generation;
    assert!(apply(&mut nodes.state, Command::NodeDead { node: A, generation }).is_ok());
    nodes.settle();
    assert_eq!(primary(&nodes.state), Some(B));
    assert!(grow(&mut nodes, 2 * old).is_ok());
    let late = Command::VolumeGrown { resource: R, epoch, volume: V, bytes: 2 * old };
    assert_eq!(apply(&mut nodes.state, late), Outcome::Unchanged);
    assert_eq!((size(&nodes), nodes.state.resources[&R].growing.len()), (old, 1), "it is still wished for");
    nodes.settle();
    assert_eq!(size(&nodes), 2 * old);
}

/// Its engine has not heard of the promotion yet, and its sizes are those of the log before. Seed
/// 3240830.
#[test]
fn a_primary_of_an_earlier_epoch_reports_no_growth() {
    let mut nodes = running();
    let old = size(&nodes);
    assert!(grow(&mut nodes, 2 * old).is_ok());
    let says = |nodes: &Nodes| {
        let plan = plan(A, &nodes.state, &nodes.observed[&A]);
        plan.iter().any(|action| matches!(action, Action::Propose(Command::VolumeGrown { .. })))
    };
    nodes.observed.get_mut(&A).and_then(|seen| seen.replicas.get_mut(&R)).expect("open").volumes =
        vec![2 * old];
    assert!(says(&nodes));
    let record = &mut nodes.state.resources.get_mut(&R).expect("there").record;
    record.epoch = record.epoch.next();
    assert!(!says(&nodes));
}

#[test]
fn an_impossible_volume_size_is_refused() {
    let mut nodes = running();
    let old = size(&nodes);
    assert_eq!(code(grow(&mut nodes, old - 4096)), Code::Shrink);
    assert_eq!(code(grow(&mut nodes, old + 1)), Code::BadSize);
    assert_eq!(code(grow(&mut nodes, 1 << 50)), Code::BadSize);
    let strange = Command::GrowVolume { resource: R, volume: VolumeId(9), bytes: 2 * old };
    assert_eq!(code(apply(&mut nodes.state, strange)), Code::UnknownVolume);
    let nowhere = Command::GrowVolume { resource: ResourceId(99), volume: V, bytes: 2 * old };
    assert_eq!(code(apply(&mut nodes.state, nowhere)), Code::UnknownResource);
    assert!(grow(&mut nodes, 3 * old).is_ok());
    assert_eq!(code(grow(&mut nodes, 2 * old)), Code::Shrink, "it may have that size already");
}
