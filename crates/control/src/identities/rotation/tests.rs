//! Stories of rotations, with nodes that are off, behind, or restarted, and a model of them.

use super::*;
use crate::era::Anew;
use crate::identities::Admission;
use crate::state::{Entry, Settings};
use mainstay_types::{Fingerprint, HexBytes};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NOW_MS: u64 = 1_800_000_000_000;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

fn print(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

fn key_of(node: NodeId) -> Fingerprint {
    print(100 + node.0 as u8)
}

/// An authority. `maker` tells the ones of two agents apart.
fn authority(number: u32, phase: Phase, maker: u8) -> Authority {
    let bytes = |byte: u8| HexBytes(vec![byte; 300]);
    let fingerprint = print(number as u8 * 16 + maker);
    Authority { number, phase, certificate: bytes(maker), fingerprint, sealed_key: bytes(maker) }
}

fn given(node: NodeId, authority: u32) -> Command {
    let (key, fingerprint) = (key_of(node), print(authority as u8));
    Command::GiveCertificate { node, key, fingerprint, authority, until_ms: NOW_MS + 30 * DAY_MS }
}

/// Content of a node's disk, as its agent keeps it.
struct Peer {
    /// Entries of the log that it has applied.
    applied: usize,
    /// Number of entries that it had when it became a member.
    first: usize,
    record: State,
    /// Number of the authority that gave the certificate that it shows.
    shows: u32,
    /// An announced authority that it believes and can issue by.
    holds: Option<u32>,
    is_on: bool,
}

impl Peer {
    /// Whether it takes a certificate of this authority for good.
    fn believes(&self, number: u32) -> bool {
        let ahead = |of: u32| of == number && of > self.record.identities.last_number();
        self.record.identities.authorities.contains_key(&number)
            || ahead(self.shows)
            || self.holds.is_some_and(ahead)
    }
}

struct Cluster {
    log: Vec<Entry>,
    /// The state after the whole log.
    record: State,
    peers: BTreeMap<NodeId, Peer>,
}

impl Cluster {
    /// Members a, b, c and so on, with certificates of authority 1.
    fn new(members: u32) -> Self {
        let mut cluster = Self { log: Vec::new(), record: State::default(), peers: BTreeMap::new() };
        cluster.done(Command::InitCluster { id: 1, name: "prod".into(), settings: Settings::default() });
        for n in 1..=members {
            cluster.done(Command::AddNode {
                name: char::from(b'a' + n as u8 - 1).into(),
                agent_addr: format!("10.0.0.{n}:7400"),
                engine_addr: format!("10.0.0.{n}:7401"),
                voter: true,
                witness: false,
                nonce: n.into(),
            });
            cluster.voters_seen();
            cluster.done(Command::NodeLevel { node: NodeId(n), level: 2 });
        }
        cluster.done(Command::RaiseLevel { level: 2 });
        cluster.done(Command::SetAuthority { authority: authority(1, Phase::Issues, 1) });
        for n in 1..=members {
            cluster.done(given(NodeId(n), 1));
            cluster.add_peer(NodeId(n));
        }
        cluster
    }

    fn add_peer(&mut self, node: NodeId) {
        let shows = self.record.identities.issuing().unwrap().number;
        let (record, first) = (self.record.clone(), self.log.len());
        self.peers.insert(node, Peer { applied: first, first, record, shows, holds: None, is_on: true });
    }

    fn voters_seen(&mut self) {
        let voters_version = self.record.voters_version;
        for node in self.record.nodes.keys().copied().collect::<Vec<_>>() {
            if self.record.alive(node) {
                self.commit(Command::VotersSeen { node, voters_version });
            }
        }
    }

    fn commit(&mut self, command: Command) -> Outcome {
        let entry = Entry { at_ms: NOW_MS, command };
        self.log.push(entry.clone());
        let before = self.record.clone();
        let outcome = self.record.apply(entry);
        if !outcome.is_ok() {
            assert_eq!(self.record, before, "a refusal changes nothing");
        }
        self.record.check().expect("its invariants hold");
        outcome
    }

    fn done(&mut self, command: Command) {
        let outcome = self.commit(command.clone());
        assert!(outcome.is_ok(), "{command:?}: {outcome:?}");
    }

    fn refused(&mut self, command: Command) -> (Code, String) {
        match self.commit(command.clone()) {
            Outcome::Refused(problem) => (problem.code, problem.message),
            other => panic!("{command:?}: {other:?}"),
        }
    }

    /// The node applies the next entries of the log.
    fn learn(&mut self, node: NodeId, entries: usize) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.is_on) else { return };
        for entry in self.log.iter().skip(peer.applied).take(entries) {
            peer.record.apply(entry.clone());
            peer.applied += 1;
        }
    }

    /// The node starts anew, and knows of the last entries only that they are in its log.
    fn restart(&mut self, node: NodeId, entries: usize) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.is_on) else { return };
        peer.applied = peer.applied.saturating_sub(entries).max(peer.first);
        peer.record = State::default();
        for entry in &self.log[..peer.applied] {
            peer.record.apply(entry.clone());
        }
    }

    /// The agent of a node makes an authority and asks for its announcement.
    fn rotate(&mut self, node: NodeId) -> Outcome {
        let number = self.peers[&node].record.identities.next_number();
        let outcome = self.commit(Command::AnnounceAuthority {
            authority: authority(number, Phase::Announced, node.0 as u8),
        });
        if outcome.is_ok() {
            self.peers.get_mut(&node).unwrap().holds = Some(number);
        }
        outcome
    }

    /// The agent of a node does its part of a rotation by its own record: one thing after the
    /// other.
    fn act(&mut self, node: NodeId) {
        let of_others: BTreeSet<u32> = self
            .peers
            .iter()
            .filter(|(other, peer)| peer.is_on && self.record.identities.members.contains_key(other))
            .flat_map(|(_, peer)| peer.holds.into_iter().chain([peer.shows]))
            .collect();
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.is_on) else { return };
        let known = &peer.record.identities;
        let Some((rotation, new)) = known.rotates() else { return };
        let (to, phase) = (rotation.to, new.phase);
        if peer.holds.is_none_or(|holds| holds < to) && peer.shows < to {
            // A member gives it the means to issue, and it keeps them.
            if of_others.contains(&to) {
                peer.holds = Some(to);
            }
        } else if !rotation.believed_by.contains(&node) {
            self.commit(Command::ConfirmAuthority { node, authority: to, certified: false });
        } else if phase == Phase::Issues && peer.shows < to {
            peer.shows = to;
        } else if phase == Phase::Issues && known.members[&node].certificate.unwrap().authority != to {
            self.commit(given(node, to));
        } else if phase == Phase::Issues && !rotation.certified.contains(&node) {
            self.commit(Command::ConfirmAuthority { node, authority: to, certified: true });
        }
    }

    /// A member gives `node` a certificate and notes that. The answer is lost.
    fn issue_in_vain(&mut self, by: NodeId, node: NodeId) {
        let number = self.peers[&by].record.identities.issuing().unwrap().number;
        self.commit(given(node, number));
    }

    /// The leader of the log does its duty, by its own record.
    fn lead(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.is_on) else { return };
        if let Some(step) = peer.record.next_rotation_step() {
            self.commit(step);
        }
    }

    fn off(&mut self, node: NodeId) {
        let generation = self.record.nodes[&node].generation;
        self.peers.get_mut(&node).unwrap().is_on = false;
        self.commit(Command::NodeDead { node, generation });
    }

    fn back(&mut self, node: NodeId) {
        let generation = self.record.nodes[&node].generation;
        self.peers.get_mut(&node).unwrap().is_on = true;
        self.commit(Command::NodeRejoin { node, generation });
    }

    fn remove(&mut self, node: NodeId) -> Outcome {
        let outcome = self.commit(Command::RemoveNode { node, lost: BTreeSet::new() });
        if outcome.is_ok() {
            self.peers.remove(&node);
            self.voters_seen();
        }
        outcome
    }

    /// Everything that can happen by itself happens.
    fn settle(&mut self) {
        for _ in 0..40 {
            for node in self.peers.keys().copied().collect::<Vec<_>>() {
                self.learn(node, usize::MAX);
                self.act(node);
                self.lead(node);
            }
            self.believe_each_other();
        }
    }

    /// Members that do not believe each other cannot send each other the log.
    fn believe_each_other(&self) {
        let is_member = |node: &&NodeId| self.record.identities.members.contains_key(node);
        let members: Vec<&NodeId> = self.peers.keys().filter(is_member).collect();
        for one in &members {
            for other in &members {
                let shown = self.peers[*other].shows;
                assert!(
                    self.peers[*one].believes(shown),
                    "{one} does not believe authority {shown} of {other}"
                );
            }
        }
    }

    fn phase(&self) -> Option<Phase> {
        self.record.identities.rotates().map(|(_, authority)| authority.phase)
    }

    fn numbers(&self) -> Vec<u32> {
        self.record.identities.authorities.keys().copied().collect()
    }

    fn waits_for(&self) -> Vec<NodeId> {
        self.record.rotation_waits_for().into_iter().collect()
    }
}

#[test]
fn the_old_authority_goes_when_every_node_shows_a_certificate_of_the_new_one() {
    let mut cluster = Cluster::new(3);
    cluster.rotate(B);
    assert_eq!((cluster.phase(), cluster.numbers()), (Some(Phase::Announced), vec![1, 2]));
    assert_eq!(cluster.record.identities.issuing().unwrap().number, 1);
    assert_eq!(cluster.waits_for(), [A, B, C]);
    for node in [A, B, C] {
        cluster.done(Command::ConfirmAuthority { node, authority: 2, certified: false });
    }
    let step = cluster.record.next_rotation_step().unwrap();
    cluster.done(step.clone());
    assert_eq!(cluster.commit(step), Outcome::Unchanged, "the leader has said it twice");
    assert_eq!(
        (cluster.phase(), cluster.record.identities.issuing().unwrap().number),
        (Some(Phase::Issues), 2)
    );
    assert_eq!(cluster.record.identities.authorities[&1].phase, Phase::Believed);
    for node in [A, B, C] {
        assert_eq!(cluster.record.next_rotation_step(), None, "{:?}", cluster.waits_for());
        cluster.done(given(node, 2));
        cluster.done(Command::ConfirmAuthority { node, authority: 2, certified: true });
    }
    cluster.done(cluster.record.next_rotation_step().unwrap());
    assert_eq!((cluster.phase(), cluster.numbers()), (None, vec![2]));
    assert_eq!(cluster.record.next_rotation_step(), None);
    let (code, _) = cluster.refused(given(A, 1));
    assert_eq!(code, Code::CertificateRefused, "nobody takes a certificate of the old one");
}

#[test]
fn a_node_that_is_off_holds_each_phase_up_until_it_is_back() {
    let mut cluster = Cluster::new(3);
    cluster.off(C);
    cluster.rotate(A);
    cluster.settle();
    assert_eq!((cluster.phase(), cluster.waits_for()), (Some(Phase::Announced), vec![C]));
    assert!(cluster.peers.values().all(|peer| peer.shows == 1), "c could not believe another one");
    cluster.back(C);
    for _ in 0..3 {
        cluster.learn(C, usize::MAX);
        cluster.act(C);
    }
    cluster.off(C);
    cluster.settle();
    assert_eq!((cluster.phase(), cluster.waits_for()), (Some(Phase::Issues), vec![C]));
    let words = cluster.record.rotation_words().unwrap();
    assert_eq!(words, "authority 2 issues, and c must get a certificate of it");
    assert_eq!(cluster.numbers(), [1, 2], "c shows one of the old authority when it is back");
    cluster.back(C);
    cluster.settle();
    assert_eq!((cluster.phase(), cluster.numbers()), (None, vec![2]));
    assert!(cluster.peers.values().all(|peer| peer.shows == 2));
}

#[test]
fn a_certificate_that_never_reached_its_node_does_not_end_the_rotation() {
    let mut cluster = Cluster::new(3);
    cluster.rotate(A);
    while cluster.phase() == Some(Phase::Announced) {
        for node in [A, B, C] {
            cluster.learn(node, usize::MAX);
            cluster.act(node);
        }
        cluster.lead(A);
    }
    // The agent of c ends before it has the answer. The member that gave it has noted it.
    cluster.off(C);
    cluster.learn(A, usize::MAX);
    cluster.issue_in_vain(A, C);
    cluster.settle();
    assert_eq!(cluster.record.identities.members[&C].certificate.unwrap().authority, 2);
    assert_eq!((cluster.phase(), cluster.waits_for()), (Some(Phase::Issues), vec![C]));
    cluster.back(C);
    cluster.settle();
    assert_eq!(cluster.phase(), None);
}

#[test]
fn a_node_that_restarts_with_an_older_record_believes_what_it_has_confirmed() {
    let mut cluster = Cluster::new(3);
    cluster.rotate(A);
    for _ in 0..8 {
        for node in [A, B, C] {
            cluster.learn(node, usize::MAX);
            cluster.act(node);
            cluster.lead(A);
        }
        let entries = cluster.log.len();
        cluster.restart(C, entries / 2);
        cluster.believe_each_other();
    }
    cluster.settle();
    assert_eq!(cluster.phase(), None);
}

#[test]
fn another_leader_goes_on_where_the_last_one_stopped() {
    let mut cluster = Cluster::new(3);
    cluster.rotate(A);
    for _ in 0..3 {
        for node in [A, B, C] {
            cluster.learn(node, usize::MAX);
            cluster.act(node);
        }
    }
    // The leader proposes its step, and another one takes over and proposes it, too.
    [A, B].into_iter().for_each(|node| cluster.learn(node, usize::MAX));
    cluster.lead(A);
    cluster.lead(B);
    assert_eq!(cluster.phase(), Some(Phase::Issues));
    cluster.off(A);
    cluster.settle();
    assert_eq!(cluster.waits_for(), [A]);
    // A leader that was behind cannot lead the cluster back or end the rotation early.
    cluster.done(Command::AdvanceRotation { authority: 2, from: Phase::Announced });
    assert!(!cluster.commit(Command::AdvanceRotation { authority: 2, from: Phase::Issues }).is_ok());
    assert_eq!(cluster.phase(), Some(Phase::Issues));
    cluster.back(A);
    cluster.settle();
    assert_eq!(cluster.numbers(), [2]);
}

#[test]
fn of_two_rotations_at_once_one_takes_place() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.rotate(A), Outcome::Done);
    let first = cluster.record.identities.authorities[&2].clone();
    let (code, message) =
        cluster.refused(Command::AnnounceAuthority { authority: authority(2, Phase::Announced, 2) });
    assert_eq!(code, Code::RotationRuns);
    assert!(message.contains("authority 2 is announced, and a, b, c must learn of it"), "{message}");
    // The answer to the first request was lost, and it comes once more.
    assert_eq!(cluster.commit(Command::AnnounceAuthority { authority: first.clone() }), Outcome::Unchanged);
    assert_eq!(cluster.record.identities.authorities[&2], first);
    cluster.settle();
    assert_eq!(cluster.numbers(), [2]);
    assert_eq!(cluster.commit(Command::AnnounceAuthority { authority: first }), Outcome::Unchanged);
    // A node that has not heard of the first rotation asks for one with the number of that.
    let late = Command::AnnounceAuthority { authority: authority(1, Phase::Announced, 3) };
    assert_eq!(cluster.commit(late), Outcome::Conflict { record: None });
    cluster.rotate(C);
    cluster.settle();
    assert_eq!(cluster.numbers(), [3]);
}

#[test]
fn a_node_that_is_removed_midway_is_not_waited_for_and_one_that_joins_is() {
    let mut cluster = Cluster::new(4);
    cluster.off(C);
    cluster.rotate(A);
    cluster.settle();
    assert_eq!(cluster.waits_for(), [C]);
    assert!(cluster.remove(C).is_ok());
    let until_ms = NOW_MS + DAY_MS;
    cluster.done(Command::CreateToken { id: 7, hash: print(7), node: "e".into(), until_ms });
    cluster.done(Command::AdmitNode {
        name: "e".into(),
        agent_addr: "10.0.0.9:7400".into(),
        engine_addr: "10.0.0.9:7401".into(),
        witness: false,
        nonce: 9,
        replace: false,
        level: 2,
        by: Some(Admission { token: 7, hash: print(7), key: key_of(NodeId(5)) }),
    });
    let joins = NodeId(5);
    for node in [A, B, NodeId(4)] {
        cluster.learn(node, usize::MAX);
        cluster.act(node);
    }
    assert!(cluster.waits_for().contains(&joins));
    cluster.done(given(joins, 1));
    cluster.add_peer(joins);
    cluster.settle();
    assert_eq!((cluster.phase(), cluster.numbers()), (None, vec![2]));
    assert_eq!(cluster.peers[&joins].shows, 2);
}

#[test]
fn a_restore_in_the_middle_has_one_authority_that_issues_and_no_rotation() {
    for phases in 0..2 {
        let mut cluster = Cluster::new(3);
        cluster.rotate(A);
        while phases == 1 && cluster.phase() == Some(Phase::Announced) {
            for node in [A, B, C] {
                cluster.learn(node, usize::MAX);
                cluster.act(node);
            }
            cluster.lead(B);
        }
        let mut state = cluster.record.clone();
        state.begin_anew(NOW_MS, B, 77, Anew::Restored);
        let number = state.identities.next_number();
        assert_eq!(number, 3);
        let own = Command::GiveCertificate {
            node: B,
            key: print(200),
            fingerprint: print(3),
            authority: number,
            until_ms: NOW_MS,
        };
        state.found_anew(NOW_MS, B, authority(number, Phase::Issues, 9), own);
        state.check().unwrap();
        assert_eq!(state.identities.issuing().unwrap().number, 3);
        assert_eq!((state.identities.rotates(), state.next_rotation_step()), (None, None));
        assert_eq!(state.identities.members[&B].key, print(200));
        assert_eq!(state.cannot_rotate(), None);
        // Later all authorities that the restore has left go with the next rotation.
        assert_eq!(state.identities.next_number(), 4);
    }
}

#[test]
fn a_rotation_is_cancelled_until_the_new_authority_issues() {
    let mut cluster = Cluster::new(2);
    let (code, _) = cluster.refused(Command::CancelRotation { authority: 2 });
    assert_eq!(code, Code::RotationState);
    cluster.rotate(A);
    cluster.done(Command::CancelRotation { authority: 2 });
    assert_eq!((cluster.phase(), cluster.numbers()), (None, vec![1]));
    assert!(!cluster.commit(Command::ConfirmAuthority { node: A, authority: 2, certified: false }).is_ok());
    // Its number is not used again: a node may have kept what belongs to it.
    cluster.learn(B, usize::MAX);
    cluster.rotate(B);
    assert_eq!(cluster.numbers(), [1, 3]);
    while cluster.phase() == Some(Phase::Announced) {
        for node in [A, B] {
            cluster.learn(node, usize::MAX);
            cluster.act(node);
        }
        cluster.lead(A);
    }
    let (code, message) = cluster.refused(Command::CancelRotation { authority: 3 });
    assert_eq!(
        (code, message.as_str()),
        (Code::RotationState, "authority 3 issues already, so there is no way back")
    );
    cluster.settle();
    assert_eq!(cluster.numbers(), [3]);
}

#[test]
fn a_dead_node_is_left_out_and_is_believed_no_more() {
    let mut cluster = Cluster::new(4);
    let leave = |nodes: &[NodeId]| Command::LeaveOut { authority: 2, nodes: nodes.iter().copied().collect() };
    let (code, _) = cluster.refused(leave(&[C]));
    assert_eq!(code, Code::RotationState);
    cluster.rotate(A);
    let (code, message) = cluster.refused(leave(&[C]));
    assert_eq!(code, Code::NodeAlive, "{message}");
    cluster.off(C);
    let (code, _) = cluster.refused(leave(&[C, B]));
    assert_eq!(code, Code::NodeAlive, "all of them or none");
    cluster.settle();
    assert_eq!(cluster.waits_for(), [C]);
    cluster.done(leave(&[C]));
    assert_eq!(cluster.commit(leave(&[C])), Outcome::Unchanged);
    assert!(!cluster.record.identities.members.contains_key(&C), "its key goes");
    // Nothing that was under way brings it back.
    let (code, message) = cluster.refused(given(C, 1));
    assert_eq!(code, Code::CertificateRefused, "{message}");
    let generation = cluster.record.nodes[&C].generation;
    cluster.refused(Command::NodeRejoin { node: C, generation });
    assert!(!cluster.commit(Command::ConfirmAuthority { node: C, authority: 2, certified: false }).is_ok());
    cluster.settle();
    assert_eq!((cluster.phase(), cluster.numbers()), (None, vec![2]));
    // The machine takes its own place, as another node.
    let until_ms = NOW_MS + DAY_MS;
    cluster.done(Command::CreateToken { id: 7, hash: print(7), node: "c".into(), until_ms });
    cluster.done(Command::AdmitNode {
        name: "c".into(),
        agent_addr: "10.0.0.3:7400".into(),
        engine_addr: "10.0.0.3:7401".into(),
        witness: false,
        nonce: 9,
        replace: true,
        level: 2,
        by: Some(Admission { token: 7, hash: print(7), key: print(99) }),
    });
    cluster.done(Command::SeatNode { node: NodeId(5) });
    assert_eq!(cluster.record.node_by_name("c").unwrap().id, NodeId(5));
    assert!(cluster.record.identities.left_out.is_empty(), "the old one is gone");
}

#[test]
fn tokens_end_with_the_authority_that_they_name() {
    let mut cluster = Cluster::new(2);
    let token = |id: u64| Command::CreateToken {
        id,
        hash: print(id as u8),
        node: "e".into(),
        until_ms: NOW_MS + DAY_MS,
    };
    let admission = |id: u64, nonce: u64| Command::AdmitNode {
        name: "e".into(),
        agent_addr: "10.0.0.9:7400".into(),
        engine_addr: "10.0.0.9:7401".into(),
        witness: false,
        nonce,
        replace: false,
        level: 2,
        by: Some(Admission { token: id, hash: print(id as u8), key: print(99) }),
    };
    [7, 8].into_iter().for_each(|id| cluster.done(token(id)));
    cluster.rotate(A);
    // As long as the old authority issues, its tokens are good.
    cluster.done(admission(7, 9));
    cluster.done(Command::WithdrawNode { nonce: 9 });
    cluster.done(admission(7, 10));
    let joins = NodeId(cluster.record.last_node);
    for node in [A, B, joins] {
        cluster.done(Command::ConfirmAuthority { node, authority: 2, certified: false });
    }
    cluster.done(cluster.record.next_rotation_step().unwrap());
    let state_of = |cluster: &Cluster, id: u64| cluster.record.identities.tokens[&id].state;
    assert_eq!(state_of(&cluster, 7), TokenState::Used(10));
    assert_eq!(state_of(&cluster, 8), TokenState::Superseded);
    cluster.done(Command::WithdrawNode { nonce: 10 });
    assert_eq!(state_of(&cluster, 7), TokenState::Superseded, "it is not good again");
    let (code, message) = cluster.refused(admission(8, 11));
    assert_eq!(
        (code, message.as_str()),
        (Code::TokenRefused, "the cluster has replaced the authority of this token")
    );
    assert_eq!(cluster.commit(Command::RevokeToken { id: 8 }), Outcome::Unchanged);
    cluster.done(token(12));
    cluster.done(admission(12, 13));
}

#[test]
fn a_rotation_needs_its_level_and_an_earlier_record_is_read() {
    let mut cluster = Cluster::new(2);
    let text = serde_json::to_string(&cluster.record).unwrap();
    for new in ["rotation", "left_out", "last_authority"] {
        assert!(!text.contains(new), "an earlier build would end at {new}");
    }
    let token = r#"{"hash":"0909090909090909090909090909090909090909090909090909090909090909","node":"e","made_ms":1,"until_ms":2,"state":"open"}"#;
    assert_eq!(serde_json::from_str::<crate::identities::JoinToken>(token).unwrap().authority, 1);
    cluster.record.level = 1;
    let (code, _) =
        cluster.refused(Command::AnnounceAuthority { authority: authority(2, Phase::Announced, 1) });
    assert_eq!(code, Code::FeatureLevel);
}

/// One step of the model. Nodes are told by their place among those that are there.
#[derive(Clone, Copy, Debug)]
enum Step {
    Learn(usize, usize),
    Act(usize),
    Lead(usize),
    Restart(usize, usize),
    Off(usize),
    Back(usize),
    Rotate(usize),
    Cancel,
    LeaveOut(usize),
    Remove(usize),
    Issue(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..5_usize;
    prop_oneof![
        6 => (node(), 1..9_usize).prop_map(|(node, entries)| Step::Learn(node, entries)),
        8 => node().prop_map(Step::Act),
        4 => node().prop_map(Step::Lead),
        1 => (node(), 0..30_usize).prop_map(|(node, entries)| Step::Restart(node, entries)),
        1 => node().prop_map(Step::Off),
        2 => node().prop_map(Step::Back),
        2 => node().prop_map(Step::Rotate),
        1 => Just(Step::Cancel),
        1 => node().prop_map(Step::LeaveOut),
        1 => node().prop_map(Step::Remove),
        2 => (node(), node()).prop_map(|(by, node)| Step::Issue(by, node)),
    ]
}

impl Cluster {
    fn take(&mut self, step: Step) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        let at = |place: usize| nodes[place % nodes.len()];
        let is_on = |cluster: &Self, node: NodeId| cluster.peers[&node].is_on;
        let to = self.record.identities.rotation.as_ref().map_or(0, |rotation| rotation.to);
        match step {
            Step::Learn(node, entries) => self.learn(at(node), entries),
            Step::Act(node) => self.act(at(node)),
            Step::Lead(node) => self.lead(at(node)),
            Step::Restart(node, entries) => self.restart(at(node), entries),
            Step::Off(node) if is_on(self, at(node)) => self.off(at(node)),
            Step::Back(node) if !is_on(self, at(node)) => self.back(at(node)),
            Step::Rotate(node) if is_on(self, at(node)) => drop(self.rotate(at(node))),
            Step::Cancel => drop(self.commit(Command::CancelRotation { authority: to })),
            Step::LeaveOut(node) if nodes.len() > 2 => {
                let nodes = BTreeSet::from([at(node)]);
                if self.commit(Command::LeaveOut { authority: to, nodes }).is_ok() {
                    self.peers.remove(&at(node));
                }
            }
            Step::Remove(node) if nodes.len() > 2 => drop(self.remove(at(node))),
            Step::Issue(by, node) if is_on(self, at(by)) => self.issue_in_vain(at(by), at(node)),
            _ => {}
        }
        self.believe_each_other();
    }
}

proptest! {
    #[test]
    fn members_believe_each_other_whatever_happens_and_the_rotation_ends(
        steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut cluster = Cluster::new(5);
        for step in steps {
            cluster.take(step);
        }
        for node in cluster.peers.keys().copied().collect::<Vec<_>>() {
            if !cluster.peers[&node].is_on {
                cluster.back(node);
            }
        }
        cluster.settle();
        // The agent that made an announced authority was lost before another one had the means to
        // issue: an operator cancels that.
        if cluster.phase() == Some(Phase::Announced) {
            let to = cluster.record.identities.rotation.as_ref().unwrap().to;
            prop_assert!(cluster.peers.values().all(|peer| peer.holds != Some(to)));
            cluster.done(Command::CancelRotation { authority: to });
        }
        let numbers = cluster.numbers();
        prop_assert_eq!((cluster.phase(), numbers.len()), (None, 1));
        prop_assert!(cluster.peers.values().all(|peer| peer.shows == numbers[0]));
    }
}
