use super::*;
use crate::era::Anew;
use crate::removal::tests::Lab;
use crate::state::{Command, Entry};
use mainstay_types::NodeId;

const NOW_MS: u64 = 1_800_000_000_000;

fn make(name: &str, id: u64, life_ms: u64) -> Command {
    let hash = Fingerprint([u8::try_from(id % 251).unwrap(); 32]);
    Command::CreateApiToken {
        name: name.into(),
        id,
        hash,
        access: Access::Operate,
        until_ms: NOW_MS + life_ms,
    }
}

/// A cluster of three nodes whose builds know tokens.
fn cluster() -> State {
    let mut lab = Lab::new(3);
    for node in 1..=3 {
        lab.done(Command::NodeLevel { node: NodeId(node), level: API_TOKENS_LEVEL });
    }
    lab.done(Command::RaiseLevel { level: API_TOKENS_LEVEL });
    lab.state
}

const API_TOKENS_LEVEL: u32 = crate::level::API_TOKENS;

fn apply_at(state: &mut State, at_ms: u64, command: Command) -> Outcome {
    let outcome = state.apply(Entry { at_ms, command });
    state.check().expect("the invariants hold");
    outcome
}

fn refusal(state: &mut State, at_ms: u64, command: Command) -> Code {
    let before = state.clone();
    match apply_at(state, at_ms, command) {
        Outcome::Refused(problem) => {
            assert_eq!(*state, before, "a refusal changes nothing");
            problem.code
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_of_the_api_is_good_until_it_ends_or_is_revoked() {
    let mut state = cluster();
    assert_eq!(apply_at(&mut state, NOW_MS, make("ci", 5, DAY_MS)), Outcome::Done);
    assert_eq!(apply_at(&mut state, NOW_MS + 9, make("ci", 5, DAY_MS)), Outcome::Unchanged);
    let (name, token) = state.api_token(5).map(|(name, token)| (name.to_owned(), *token)).unwrap();
    assert_eq!((name.as_str(), token.access, token.made_ms), ("ci", Access::Operate, NOW_MS));
    assert_eq!(state.api_token(6), None);
    assert_eq!(token.is_shut(NOW_MS), None);
    assert_eq!(token.is_shut(NOW_MS + DAY_MS - 1), None);
    assert_eq!(token.is_shut(NOW_MS + DAY_MS), Some(Shut::Ended));
    // Clocks differ a little. One that is far behind would make the token good for longer.
    assert_eq!(token.is_shut(NOW_MS - HOUR_MS), None);
    assert_eq!(token.is_shut(NOW_MS - HOUR_MS - 1), Some(Shut::ClockBehind));
    let revoked = Command::RevokeApiToken { name: "ci".into() };
    assert_eq!(apply_at(&mut state, NOW_MS, revoked.clone()), Outcome::Done);
    assert_eq!(state.api_token(5), None);
    assert_eq!(refusal(&mut state, NOW_MS, revoked), Code::UnknownApiToken);
    let texts: Vec<&str> = state.events.iter().rev().take(2).map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["was revoked", "was made, with the right `operate`"]);
}

#[test]
fn names_lives_and_the_number_of_tokens_of_the_api_are_bounded() {
    let mut state = cluster();
    for name in ["", "CI", "-ci", "a b"] {
        assert_eq!(refusal(&mut state, NOW_MS, make(name, 5, DAY_MS)), Code::BadName, "{name}");
    }
    for life_ms in [0, API_TOKEN_LIFE_MS + 1] {
        assert_eq!(refusal(&mut state, NOW_MS, make("ci", 5, life_ms)), Code::BadTokenLife);
    }
    assert_eq!(apply_at(&mut state, NOW_MS, make("ci", 5, API_TOKEN_LIFE_MS)), Outcome::Done);
    assert_eq!(refusal(&mut state, NOW_MS, make("ci", 6, DAY_MS)), Code::NameTaken);
    // A token that has ended gives its name to another one, and does not come back with it.
    let later = NOW_MS + API_TOKEN_LIFE_MS;
    assert_eq!(apply_at(&mut state, later, make("ci", 6, API_TOKEN_LIFE_MS + DAY_MS)), Outcome::Done);
    assert_eq!((state.api_token(5), state.api_tokens.len()), (None, 1));
    for id in 100..100 + API_TOKENS_MAX as u64 - 1 {
        assert_eq!(apply_at(&mut state, NOW_MS, make(&format!("t{id}"), id, DAY_MS)), Outcome::Done);
    }
    assert_eq!(refusal(&mut state, NOW_MS, make("more", 7, DAY_MS)), Code::TooManyApiTokens);
}

#[test]
fn the_use_of_a_token_of_the_api_is_noted_once_an_hour() {
    let mut state = cluster();
    assert_eq!(apply_at(&mut state, NOW_MS, make("ci", 5, DAY_MS)), Outcome::Done);
    let used = |state: &mut State, at_ms| apply_at(state, at_ms, Command::ApiTokenUsed { id: 5 });
    assert_eq!(used(&mut state, NOW_MS + 1), Outcome::Done);
    assert_eq!(used(&mut state, NOW_MS + 2), Outcome::Unchanged);
    assert_eq!(used(&mut state, NOW_MS), Outcome::Unchanged, "by a clock that is behind");
    assert_eq!(used(&mut state, NOW_MS + 1 + USE_NOTED_MS), Outcome::Done);
    assert_eq!(state.api_tokens["ci"].used_ms, Some(NOW_MS + 1 + USE_NOTED_MS));
    assert_eq!(apply_at(&mut state, NOW_MS, Command::ApiTokenUsed { id: 6 }), Outcome::Unchanged);
}

#[test]
fn a_cluster_below_the_level_of_tokens_has_none() {
    let mut lab = Lab::new(3);
    let refused = refusal(&mut lab.state, NOW_MS, make("ci", 5, DAY_MS));
    assert_eq!(refused, Code::FeatureLevel);
    let text = serde_json::to_string(&lab.state).unwrap();
    assert!(!text.contains("api_tokens"), "{text}");
}

#[test]
fn the_state_is_read_as_it_was_written_and_has_the_hash_alone() {
    let mut state = cluster();
    assert_eq!(apply_at(&mut state, NOW_MS, make("ci", 5, DAY_MS)), Outcome::Done);
    assert_eq!(apply_at(&mut state, NOW_MS, Command::ApiTokenUsed { id: 5 }), Outcome::Done);
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    let parts: serde_json::Value = serde_json::from_str(&text).unwrap();
    let parts: Vec<&str> =
        parts["api_tokens"]["ci"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(parts, ["access", "hash", "id", "made_ms", "until_ms", "used_ms"]);
}

#[test]
fn a_cluster_that_begins_anew_has_no_tokens_of_the_api() {
    for how in [Anew::MajorityLost, Anew::Restored] {
        let mut state = cluster();
        assert_eq!(apply_at(&mut state, NOW_MS, make("ci", 5, DAY_MS)), Outcome::Done);
        state.begin_anew(NOW_MS, NodeId(1), 9, how);
        assert!(state.api_tokens.is_empty(), "{how:?}");
    }
}
