//! File systems that are being made on volumes, as the control plane knows them.

use crate::common::*;
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Epoch, VolumeId};

const V: VolumeId = VolumeId(0);
const UUID: [u8; 16] = [7; 16];

fn make(nodes: &mut Nodes, epoch: Epoch, uuid: Option<[u8; 16]>) -> Outcome {
    apply(&mut nodes.state, Command::MakeFileSystem { resource: R, epoch, volume: V, uuid })
}

#[test]
fn an_attempt_is_known_until_it_is_whole() {
    let mut nodes = running();
    let epoch = nodes.state.resources[&R].record.epoch;
    assert!(make(&mut nodes, epoch, Some(UUID)).is_ok());
    assert_eq!(make(&mut nodes, epoch, Some(UUID)), Outcome::Unchanged);
    assert_eq!(nodes.state.resources[&R].unfinished.get(&V), Some(&UUID));
    assert!(make(&mut nodes, epoch, None).is_ok());
    assert!(nodes.state.resources[&R].unfinished.is_empty());
}

#[test]
fn a_primary_that_was_cut_off_does_not_end_the_attempt_of_its_successor() {
    let mut nodes = running();
    let epoch = nodes.state.resources[&R].record.epoch;
    assert!(make(&mut nodes, epoch, Some(UUID)).is_ok());
    let earlier = Epoch(epoch.0 - 1);
    for uuid in [None, Some([9; 16])] {
        let outcome = make(&mut nodes, earlier, uuid);
        assert!(matches!(outcome, Outcome::Conflict { .. }), "{outcome:?}");
    }
    assert_eq!(nodes.state.resources[&R].unfinished.get(&V), Some(&UUID));
}

#[test]
fn there_is_no_file_system_on_a_volume_that_is_not_there() {
    let mut nodes = running();
    let epoch = nodes.state.resources[&R].record.epoch;
    let strange = Command::MakeFileSystem { resource: R, epoch, volume: VolumeId(9), uuid: Some(UUID) };
    assert!(matches!(apply(&mut nodes.state, strange), Outcome::Refused(_)));
}
