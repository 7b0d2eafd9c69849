use super::*;
use crate::state::{Command, Entry, Settings};
use proptest::prelude::*;

const NOW_MS: u64 = 1_800_000_000_000;

fn print(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

fn authority(number: u32) -> Authority {
    let bytes = |byte: u8| HexBytes(vec![byte; 500]);
    let (certificate, sealed_key) = (bytes(1), bytes(2));
    Authority { number, phase: Phase::Issues, certificate, fingerprint: print(1), sealed_key }
}

struct Cluster {
    state: State,
    at_ms: u64,
}

impl Cluster {
    /// One node, which votes, and an authority.
    fn new() -> Self {
        let mut cluster = Self { state: State::default(), at_ms: NOW_MS };
        cluster.done(Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
        cluster.done(Command::SetAuthority { authority: authority(1) });
        cluster.done(Command::AddNode {
            name: "a".into(),
            agent_addr: "10.0.0.1:7400".into(),
            engine_addr: "10.0.0.1:7401".into(),
            voter: true,
            witness: false,
            nonce: 1,
        });
        cluster.done(given(NodeId(1), print(101), NOW_MS));
        cluster
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.state.apply(Entry { at_ms: self.at_ms, command })
    }

    fn done(&mut self, command: Command) {
        let outcome = self.apply(command);
        assert!(outcome.is_ok(), "{outcome:?}");
    }

    /// The words of a refusal.
    fn refused(&mut self, command: Command) -> String {
        let before = self.state.clone();
        match self.apply(command) {
            Outcome::Refused(problem) => {
                assert_eq!(self.state, before, "a refusal changes nothing");
                problem.message
            }
            other => panic!("{other:?} is no refusal"),
        }
    }
}

fn given(node: NodeId, key: Fingerprint, until_ms: u64) -> Command {
    Command::GiveCertificate { node, key, fingerprint: print(9), authority: 1, until_ms }
}

fn token(id: u64, node: &str, life_ms: u64) -> Command {
    Command::CreateToken { id, hash: print(id as u8), node: node.into(), until_ms: NOW_MS + life_ms }
}

fn admission(name: &str, nonce: u64, by: Option<Admission>) -> Command {
    Command::AdmitNode {
        name: name.into(),
        agent_addr: format!("10.0.1.{nonce}:7400"),
        engine_addr: format!("10.0.1.{nonce}:7401"),
        witness: false,
        nonce,
        replace: false,
        level: 0,
        by,
    }
}

/// The right that token `id` gives to the machine with this key.
fn by(id: u64, key: u8) -> Option<Admission> {
    Some(Admission { token: id, hash: print(id as u8), key: print(key) })
}

#[test]
fn a_token_lets_one_node_in_under_its_name() {
    let mut cluster = Cluster::new();
    cluster.done(token(5, "b", HOUR_MS));
    let words = cluster.refused(admission("b", 7, None));
    assert!(words.contains("none was given"), "{words}");
    let words = cluster.refused(admission("b", 7, by(6, 102)));
    assert!(words.contains("does not know this token"), "{words}");
    let guessed = Some(Admission { token: 5, hash: print(6), key: print(102) });
    let words = cluster.refused(admission("b", 7, guessed));
    assert!(words.contains("does not know this token"), "{words}");
    let words = cluster.refused(admission("c", 7, by(5, 102)));
    assert!(words.contains("for a node named b, and not for c"), "{words}");
    cluster.done(admission("b", 7, by(5, 102)));
    assert_eq!(cluster.state.identities.members[&NodeId(2)].key, print(102));
    // A lost answer is asked for again. Another machine, or another request, gets nothing.
    cluster.done(admission("b", 7, by(5, 102)));
    assert_eq!(cluster.state.nodes.len(), 2);
    let words = cluster.refused(admission("b", 7, by(5, 103)));
    assert!(words.contains("another machine"), "{words}");
    cluster.refused(admission("b", 8, by(5, 102)));
    cluster.done(Command::RemoveNode { node: NodeId(2), lost: Default::default() });
    assert!(!cluster.state.identities.members.contains_key(&NodeId(2)), "its key goes with the node");
    let words = cluster.refused(admission("b", 8, by(5, 102)));
    assert!(words.contains("another request has used"), "{words}");
}

#[test]
fn a_token_ends_with_its_time_and_is_not_made_good_by_a_clock_that_is_behind() {
    let mut cluster = Cluster::new();
    cluster.done(token(5, "b", HOUR_MS));
    cluster.at_ms = NOW_MS + HOUR_MS;
    let words = cluster.refused(admission("b", 7, by(5, 102)));
    assert!(words.contains("this token ended less than a minute ago"), "{words}");
    cluster.at_ms = NOW_MS + 4 * HOUR_MS;
    let words = cluster.refused(admission("b", 7, by(5, 102)));
    assert!(words.contains("this token ended 3 h ago"), "{words}");
    cluster.at_ms = NOW_MS - 365 * 24 * HOUR_MS;
    let words = cluster.refused(admission("b", 7, by(5, 102)));
    assert!(words.contains("clock"), "{words}");
    cluster.at_ms = NOW_MS - HOUR_MS;
    cluster.done(admission("b", 7, by(5, 102)));
    // A request that was let in is answered again even if the token has ended meanwhile.
    cluster.at_ms = NOW_MS + 4 * HOUR_MS;
    cluster.done(admission("b", 7, by(5, 102)));
}

#[test]
fn a_revoked_token_lets_nobody_in_and_a_used_one_cannot_be_revoked() {
    let mut cluster = Cluster::new();
    cluster.done(token(5, "b", HOUR_MS));
    cluster.done(Command::RevokeToken { id: 5 });
    assert_eq!(cluster.apply(Command::RevokeToken { id: 5 }), Outcome::Unchanged);
    let words = cluster.refused(admission("b", 7, by(5, 102)));
    assert!(words.contains("revoked"), "{words}");
    cluster.done(token(6, "b", HOUR_MS));
    cluster.done(admission("b", 7, by(6, 102)));
    let words = cluster.refused(Command::RevokeToken { id: 6 });
    assert!(words.contains("was used"), "{words}");
    let words = cluster.refused(Command::RevokeToken { id: 7 });
    assert!(words.contains("no token 0000000000000007"), "{words}");
}

#[test]
fn the_token_of_a_join_that_came_to_nothing_is_good_again() {
    let mut cluster = Cluster::new();
    cluster.done(token(5, "b", HOUR_MS));
    cluster.done(admission("b", 7, by(5, 102)));
    cluster.done(Command::WithdrawNode { nonce: 7 });
    assert!(!cluster.state.identities.members.contains_key(&NodeId(2)));
    cluster.done(admission("b", 8, by(5, 102)));
    assert_eq!(cluster.state.identities.members[&NodeId(3)].key, print(102));
}

#[test]
fn tokens_live_for_a_day_at_most_and_are_limited() {
    let mut cluster = Cluster::new();
    for life_ms in [0, TOKEN_LIFE_MS + 1] {
        let words = cluster.refused(token(5, "b", life_ms));
        assert!(words.contains("at most 24 h"), "{words}");
    }
    let words = cluster.refused(token(5, "B b", HOUR_MS));
    assert!(words.contains("not a valid name"), "{words}");
    for id in 0..TOKENS_MAX as u64 {
        cluster.done(token(id, "b", TOKEN_LIFE_MS));
    }
    assert_eq!(cluster.apply(token(3, "b", TOKEN_LIFE_MS)), Outcome::Unchanged);
    assert!(matches!(cluster.apply(token(3, "c", TOKEN_LIFE_MS)), Outcome::Conflict { .. }));
    let words = cluster.refused(token(99, "b", HOUR_MS));
    assert!(words.contains("64 tokens are open"), "{words}");
    cluster.done(Command::RevokeToken { id: 3 });
    cluster.done(token(99, "b", HOUR_MS));
    // A token that ended more than a day ago is forgotten.
    cluster.at_ms = NOW_MS + TOKEN_LIFE_MS + REMEMBERED_MS;
    cluster.done(Command::CreateToken {
        id: 100,
        hash: print(100),
        node: "b".into(),
        until_ms: cluster.at_ms + HOUR_MS,
    });
    assert_eq!(cluster.state.identities.tokens.keys().copied().collect::<Vec<_>>(), [100]);
}

#[test]
fn the_record_keeps_a_bounded_number_of_tokens_and_the_open_ones_first() {
    let mut cluster = Cluster::new();
    cluster.done(token(9999, "b", TOKEN_LIFE_MS));
    for id in 0..TOKENS_KNOWN_MAX as u64 * 2 {
        cluster.done(token(id, "b", TOKEN_LIFE_MS));
        cluster.done(Command::RevokeToken { id });
    }
    assert!(cluster.state.identities.tokens.len() <= TOKENS_KNOWN_MAX);
    assert_eq!(cluster.state.identities.tokens[&9999].state, TokenState::Open);
}

#[test]
fn the_key_of_a_node_never_changes_and_its_certificate_does() {
    let mut cluster = Cluster::new();
    cluster.done(given(NodeId(1), print(101), NOW_MS + HOUR_MS));
    let certificate = cluster.state.identities.members[&NodeId(1)].certificate.unwrap();
    assert_eq!(certificate.until_ms, NOW_MS + HOUR_MS);
    assert_eq!(cluster.apply(given(NodeId(1), print(101), NOW_MS + HOUR_MS)), Outcome::Unchanged);
    let words = cluster.refused(given(NodeId(1), print(7), NOW_MS + HOUR_MS));
    assert!(words.contains("another key of node a"), "{words}");
    let words = cluster.refused(given(NodeId(2), print(7), NOW_MS));
    assert!(words.contains("there is no node"), "{words}");
    let other = Command::GiveCertificate {
        node: NodeId(1),
        key: print(101),
        fingerprint: print(9),
        authority: 2,
        until_ms: NOW_MS,
    };
    let words = cluster.refused(other);
    assert!(words.contains("no authority 2"), "{words}");
}

#[test]
fn a_cluster_gets_one_authority() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.apply(Command::SetAuthority { authority: authority(1) }), Outcome::Unchanged);
    let words = cluster.refused(Command::SetAuthority { authority: authority(2) });
    assert!(words.contains("has an authority already"), "{words}");
    assert_eq!(cluster.state.identities.issuing().map(|authority| authority.number), Some(1));
    let mut empty = Cluster::new();
    empty.state.identities = Identities::default();
    for bytes in [0, AUTHORITY_BYTES_MAX + 1] {
        let mut odd = authority(1);
        odd.sealed_key = HexBytes(vec![0; bytes]);
        empty.refused(Command::SetAuthority { authority: odd });
    }
}

#[test]
fn the_record_is_read_as_it_was_written() {
    let mut cluster = Cluster::new();
    cluster.done(token(5, "b", HOUR_MS));
    cluster.done(admission("b", 7, by(5, 102)));
    let text = serde_json::to_string(&cluster.state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), cluster.state);
}

/// One step of the model below.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create { id: u64, name: u8, life_h: u64 },
    Revoke { id: u64 },
    Admit { id: u64, secret: u64, name: u8, nonce: u64, key: u8 },
    Withdraw { nonce: u64 },
    Pass { hours: u64 },
}

fn nonce_of(name: u8, nonce: u64) -> u64 {
    10 + u64::from(name) * 2 + nonce
}

fn step() -> impl Strategy<Value = Step> {
    let (id, name, nonce, key) = (0..4_u64, 0..3_u8, 0..2_u64, 1..4_u8);
    prop_oneof![
        (id.clone(), name.clone(), 1..25_u64).prop_map(|(id, name, life_h)| Step::Create {
            id,
            name,
            life_h
        }),
        id.clone().prop_map(|id| Step::Revoke { id }),
        (id.clone(), id, name, nonce.clone(), key).prop_map(|(id, secret, name, nonce, key)| Step::Admit {
            id,
            // Mostly the right one.
            secret: if secret == 0 { id + 50 } else { id },
            name,
            // The numbers of requests are random, so no two names have the same one.
            nonce: nonce_of(name, nonce),
            key
        }),
        (0..3_u8, nonce).prop_map(|(name, nonce)| Step::Withdraw { nonce: nonce_of(name, nonce) }),
        (0..12_u64).prop_map(|hours| Step::Pass { hours }),
    ]
}

/// A token as the model sees it: name, end, who has used it and with which key, whether revoked.
#[derive(Clone, Copy)]
struct Modelled {
    name: u8,
    until_h: u64,
    used: Option<(u64, u8)>,
    revoked: bool,
}

proptest! {
    #[test]
    fn nodes_are_let_in_exactly_as_the_tokens_allow(steps in prop::collection::vec(step(), 1..60)) {
        let names = ["b", "c", "d"];
        let mut cluster = Cluster::new();
        let mut tokens: BTreeMap<u64, Modelled> = BTreeMap::new();
        // Requests that let a node in, with its key: a token may be forgotten before the node
        // votes.
        let mut let_in: BTreeMap<u64, u8> = BTreeMap::new();
        let mut hour = 0;
        for step in steps {
            cluster.at_ms = NOW_MS + hour * HOUR_MS;
            match step {
                Step::Pass { hours } => hour += hours,
                Step::Create { id, name, life_h } => {
                    // The record forgets old tokens when a new one is made. Here ids are used
                    // again.
                    let known = cluster.state.identities.tokens.contains_key(&id);
                    let until_ms = cluster.at_ms + life_h * HOUR_MS;
                    let node = names[usize::from(name)].into();
                    let made = cluster.apply(Command::CreateToken { id, hash: print(id as u8), node, until_ms });
                    prop_assert_eq!(made == Outcome::Done, !known && life_h <= 24);
                    if made == Outcome::Done {
                        tokens.insert(id, Modelled { name, until_h: hour + life_h, used: None, revoked: false });
                    }
                }
                Step::Revoke { id } => {
                    let revoked = cluster.apply(Command::RevokeToken { id }).is_ok();
                    if let Some(token) = tokens.get_mut(&id).filter(|_| revoked) {
                        prop_assert!(token.used.is_none());
                        token.revoked = true;
                    }
                }
                Step::Withdraw { nonce } => {
                    cluster.done(Command::WithdrawNode { nonce });
                    let used = |token: &&mut Modelled| token.used.is_some_and(|(by, _)| by == nonce);
                    tokens.values_mut().filter(used).for_each(|token| token.used = None);
                    let_in.remove(&nonce);
                }
                Step::Admit { id, secret, name, nonce, key } => {
                    let by = Some(Admission { token: id, hash: print(secret as u8), key: print(key) });
                    let is_in = cluster.apply(admission(names[usize::from(name)], nonce, by)).is_ok();
                    let known = cluster.state.identities.tokens.contains_key(&id);
                    let allowed = tokens.get(&id).is_some_and(|token| {
                        let open = !token.revoked && hour < token.until_h && token.used.is_none();
                        known && secret == id && token.name == name && (open || token.used == Some((nonce, key)))
                    });
                    prop_assert!(allowed || !is_in, "{step:?} was let in");
                    // A repetition uses up no further token.
                    if is_in && !let_in.contains_key(&nonce) && let Some(token) = tokens.get_mut(&id) {
                        token.used = Some((nonce, key));
                        let_in.insert(nonce, key);
                    }
                }
            }
            // Each node that joins has the key that it was let in with.
            for node in cluster.state.nodes.values().filter(|node| node.candidate) {
                let key = cluster.state.identities.members.get(&node.id).map(|known| known.key);
                prop_assert_eq!(key, let_in.get(&node.nonce).map(|key| print(*key)));
            }
        }
    }
}
