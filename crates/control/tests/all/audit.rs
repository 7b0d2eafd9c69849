//! The audit log of changes that somebody asked for.

use crate::common::{A, apply_at, ready};
use mainstay_control::audit::{AUDIT_MAX, Asked, AuditRecord, AuditResult};
use mainstay_control::state::{Command, Outcome, State, TEXT_BYTES_MAX};
use mainstay_types::{Access, Code};

fn asked(id: u64) -> Asked {
    Asked {
        id,
        at_ms: 10,
        who: "root".into(),
        from: None,
        login: None,
        access: Access::Admin,
        on: A,
        action: format!("PUT /v1/nodes/n{id}/cordon"),
        body: String::new(),
    }
}

fn begin(state: &mut State, id: u64) -> Outcome {
    apply_at(state, 0, Command::AuditBegun { asked: asked(id) })
}

fn end(state: &mut State, id: u64, code: Option<Code>) -> Outcome {
    apply_at(state, 0, Command::AuditEnded { id, result: AuditResult { took_ms: 20, status: 200, code } })
}

fn last(state: &State) -> &AuditRecord {
    state.audit.records.back().expect("a record")
}

#[test]
fn a_request_is_recorded_once_and_so_is_its_result() {
    let mut state = ready();
    assert_eq!(begin(&mut state, 7), Outcome::Done);
    assert_eq!(begin(&mut state, 7), Outcome::Unchanged);
    assert_eq!((state.audit.records.len(), last(&state).number, last(&state).asked.at_ms), (1, 1, 10));
    assert_eq!(last(&state).result, None, "an agent that dies now leaves a request without a result");

    assert_eq!(end(&mut state, 7, Some(Code::UnknownNode)), Outcome::Done);
    assert_eq!(end(&mut state, 7, None), Outcome::Unchanged, "the first result stays");
    let result = AuditResult { took_ms: 20, status: 200, code: Some(Code::UnknownNode) };
    assert_eq!(last(&state).result, Some(result));
    assert_eq!(end(&mut state, 8, None), Outcome::Unchanged, "nobody has asked for that");
}

#[test]
fn the_log_is_bounded_and_numbers_go_on() {
    let mut state = ready();
    let beyond = 3;
    for id in 1..=(AUDIT_MAX + beyond) as u64 {
        assert_eq!(begin(&mut state, id), Outcome::Done);
    }
    assert_eq!(state.audit.records.len(), AUDIT_MAX);
    let numbers: Vec<u64> = state.audit.records.iter().map(|record| record.number).collect();
    let expected: Vec<u64> = (beyond as u64 + 1..=(AUDIT_MAX + beyond) as u64).collect();
    assert_eq!(numbers, expected);
    assert_eq!(state.audit.last, (AUDIT_MAX + beyond) as u64);

    let long = Asked { id: u64::MAX, body: "é".repeat(TEXT_BYTES_MAX), ..asked(1) };
    assert_eq!(apply_at(&mut state, 0, Command::AuditBegun { asked: long }), Outcome::Done);
    assert!(last(&state).asked.body.len() <= TEXT_BYTES_MAX);
}

#[test]
fn a_record_without_an_audit_log_is_read_and_one_with_it_comes_back() {
    let mut state = ready();
    let text = serde_json::to_string(&state).unwrap();
    assert!(!text.contains("audit"), "an empty log takes no place");
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    begin(&mut state, 7);
    end(&mut state, 7, None);
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
}
