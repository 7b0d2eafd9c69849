use super::*;
use crate::advice::advice;
use crate::identities::{Authority, Certificate, NodeIdentity, rotation::Rotation};
use crate::removal::tests::Lab;
use mainstay_types::{Fingerprint, HexBytes};
use std::collections::BTreeMap;

const NOW_MS: u64 = 1_800_000_000_000;
const DAY_MS: u64 = 24 * HOUR_MS;

fn print(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

/// Three nodes whose certificates have 25 days left.
fn cluster() -> Lab {
    let mut lab = Lab::new(3);
    let bytes = || HexBytes(vec![1; 9]);
    let authority = |number, phase| Authority {
        number,
        phase,
        certificate: bytes(),
        fingerprint: print(1),
        sealed_key: bytes(),
    };
    lab.state.identities.authorities.insert(1, authority(1, Phase::Issues));
    for node in 1..=3 {
        ends(&mut lab, node, 25 * DAY_MS);
    }
    lab
}

/// The certificate of a node has so much left.
fn ends(lab: &mut Lab, node: u32, left_ms: u64) {
    let certificate = Some(Certificate { fingerprint: print(9), authority: 1, until_ms: NOW_MS + left_ms });
    let known = NodeIdentity { key: print(node as u8), certificate };
    lab.state.identities.members.insert(NodeId(node), known);
}

fn rotates(lab: &mut Lab, phase: Phase, done: &[u32]) {
    let mut new = lab.state.identities.authorities[&1].clone();
    (new.number, new.phase) = (2, phase);
    if phase == Phase::Issues {
        lab.state.identities.authorities.get_mut(&1).unwrap().phase = Phase::Believed;
    }
    lab.state.identities.authorities.insert(2, new);
    let done: BTreeSet<NodeId> = done.iter().copied().map(NodeId).collect();
    let (believed_by, certified) = (done.clone(), done.clone());
    lab.state.identities.rotation = Some(Rotation { to: 2, since_ms: NOW_MS, believed_by, certified });
    for node in done.iter().filter(|_| phase == Phase::Issues) {
        lab.state.identities.members.get_mut(node).unwrap().certificate.as_mut().unwrap().authority = 2;
    }
}

fn seen() -> Observations {
    Observations { own: Some(NodeId(1)), has_leader: true, wall_ms: NOW_MS, ..Observations::default() }
}

fn told(lab: &Lab, seen: &Observations) -> Vec<Advice> {
    lab.state.check().unwrap();
    let all = advice(&lab.state, seen);
    let list = lab.state.identity_advice(seen);
    assert!(list.iter().all(|one| all.contains(one)), "it is part of the whole");
    list
}

#[test]
fn a_certificate_is_told_when_less_than_a_quarter_of_its_life_is_left() {
    let mut lab = cluster();
    assert_eq!(told(&lab, &seen()), []);
    ends(&mut lab, 2, CERTIFICATE_LIFE_MS / 4);
    assert_eq!(told(&lab, &seen()), []);
    ends(&mut lab, 2, CERTIFICATE_LIFE_MS / 4 - 1);
    let list = told(&lab, &seen());
    assert_eq!((list.len(), list[0].severity, list[0].subject.as_str()), (1, Severity::Warning, "node b"));
    assert!(
        list[0].what.starts_with("its certificate ends in 7 days: it should have been renewed"),
        "{list:?}"
    );
    assert!(list[0].remedy.contains("`date` on b"), "{list:?}");
    let renewals = BTreeMap::from([(NodeId(2), "no space left on device".to_owned())]);
    let list = told(&lab, &Observations { renewals, ..seen() });
    assert!(list[0].what.ends_with("the agent cannot renew it: no space left on device"), "{list:?}");
    let list = told(&lab, &Observations { has_leader: false, ..seen() });
    assert!(list[0].what.contains("the record may be behind"), "{list:?}");
    let list = told(&lab, &Observations { wall_ms: NOW_MS + 8 * DAY_MS, ..seen() });
    assert!(list[0].what.starts_with("its certificate ended 12 h ago"), "{list:?}");
}

#[test]
fn a_node_that_is_off_renews_its_certificate_when_it_is_back() {
    let mut lab = cluster();
    ends(&mut lab, 3, DAY_MS);
    lab.dies(3);
    let list = told(&lab, &seen());
    assert_eq!((list.len(), list[0].severity), (1, Severity::Info));
    assert!(list[0].what.starts_with("its certificate ends in 24 h: the node is off"), "{list:?}");
    assert!(list[0].remedy.contains("renews its certificate by itself"), "{list:?}");
}

#[test]
fn a_clock_by_which_all_certificates_have_ended_is_the_first_suspect() {
    let lab = cluster();
    let list = told(&lab, &Observations { wall_ms: NOW_MS + 400 * DAY_MS, ..seen() });
    assert_eq!(list.len(), 1);
    assert!(
        list[0].what.starts_with("by the clock of a the certificates of all nodes have ended"),
        "{list:?}"
    );
}

#[test]
fn a_rotation_that_waits_is_told_with_the_node_and_what_to_do() {
    let mut lab = cluster();
    lab.dies(3);
    rotates(&mut lab, Phase::Announced, &[1]);
    let list = told(&lab, &Observations { wall_ms: NOW_MS + 3 * HOUR_MS, ..seen() });
    let [off, living] = &list[..] else { panic!("{list:?}") };
    assert_eq!(off.severity, Severity::Warning);
    assert!(
        off.what.contains("has waited for c for 3 h: it has not learnt of authority 2, and is dead"),
        "{off:?}"
    );
    for remedy in ["`mainstay node remove c`", "`mainstay cluster authority leave-out c`", "join anew"] {
        assert!(off.remedy.contains(remedy), "{off:?}");
    }
    assert_eq!(living.severity, Severity::Warning);
    assert!(living.what.contains("waits for b, which is alive"), "{living:?}");
    assert!(living.remedy.contains("log of the agent on b"), "{living:?}");
    // A living node that has only begun is no problem yet.
    let list = told(&lab, &Observations { wall_ms: NOW_MS + 1000, ..seen() });
    assert_eq!((list[1].severity, list[1].remedy.as_str()), (Severity::Info, ""));
    let renewals = BTreeMap::from([(NodeId(2), "no space left on device".to_owned())]);
    let list = told(&lab, &Observations { wall_ms: NOW_MS + 1000, renewals, ..seen() });
    assert_eq!(list[1].severity, Severity::Warning);
    assert!(list[1].what.ends_with("its agent says: no space left on device"), "{list:?}");
    lab.state.identities.authorities.remove(&2);
    rotates(&mut lab, Phase::Issues, &[1, 2]);
    let list = told(&lab, &seen());
    assert!(list.len() == 1 && list[0].what.contains("it has no certificate of authority 2"), "{list:?}");
}

#[test]
fn a_node_that_was_left_out_is_told_how_it_comes_back_and_not_that_it_returns_by_itself() {
    let mut lab = cluster();
    lab.dies(3);
    lab.state.identities.forget(NodeId(3));
    lab.state.identities.left_out.insert(NodeId(3));
    let list = told(&lab, &seen());
    assert_eq!((list.len(), list[0].severity), (1, Severity::Critical));
    assert!(list[0].remedy.contains("--as c --token TOKEN --replace`"), "{list:?}");
    assert!(!advice(&lab.state, &seen()).iter().any(|one| one.remedy.contains("rejoins by itself")));
}
