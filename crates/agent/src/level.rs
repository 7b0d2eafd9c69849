//! The feature level of this process (`mainstay_control::level`), and what it takes of the log.
//!
//! Guarantees
//! - An agent does not run on a state that has a higher level than its build. It finds that out in
//!   its own files, from a member that it asks when it starts, or at the entry that raises the
//!   level, and ends before it reads what comes after that. Nothing of its files is changed.
//! - An entry with any content that this build does not know ends the agent. Applied without that
//!   content, it could make another state of the cluster than on the other nodes.

use crate::messages::Proposal;
use crate::raft::store::RaftStoreError;
use mainstay_control::level::LEVEL;
use serde::Deserialize;
use serde_json::Value;

/// Pretends another level of the build, in tests.
pub const TEST_LEVEL: &str = "MAINSTAY_TEST_LEVEL";

/// Returns the level of this build.
#[must_use]
pub fn own() -> u32 {
    #[cfg(debug_assertions)]
    if let Some(level) = std::env::var(TEST_LEVEL).ok().and_then(|text| text.parse().ok()) {
        return level;
    }
    LEVEL
}

/// The level of a state that may have content which this build does not know.
#[derive(Deserialize)]
struct StateLevel {
    #[serde(default)]
    level: u32,
}

/// Checks the level of a state as JSON before all of it is read.
///
/// # Errors
/// When it is beyond this build.
pub fn check_state(json: &[u8]) -> Result<(), RaftStoreError> {
    // Text that is no state is refused later, by the code that reads all of it.
    serde_json::from_slice::<StateLevel>(json).map_or(Ok(()), |state| check(state.level))
}

/// The same for a state machine.
///
/// # Errors
/// When the level is beyond this build.
pub fn check_machine(json: &[u8]) -> Result<(), RaftStoreError> {
    #[derive(Deserialize)]
    struct Machine {
        state: StateLevel,
    }
    serde_json::from_slice::<Machine>(json).map_or(Ok(()), |machine| check(machine.state.level))
}

/// Checks a level of the cluster.
///
/// # Errors
/// When it is beyond this build.
pub fn check(cluster: u32) -> Result<(), RaftStoreError> {
    let own = own();
    if cluster > own { Err(RaftStoreError::TooOld { own, cluster }) } else { Ok(()) }
}

/// Reads an entry of the log.
///
/// # Errors
/// When the entry has content that this build does not know: the path of that content.
pub fn read_entry(bytes: &[u8]) -> Result<Proposal, String> {
    let proposal: Proposal = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let written: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let known = serde_json::to_value(&proposal).map_err(|error| error.to_string())?;
    match unknown(&written, &known) {
        Some(path) => Err(format!("this build does not know `{path}`")),
        None => Ok(proposal),
    }
}

/// The path of a part of `written` that is not in `known`, which was read from it. An empty value
/// means "as before" and is no such part.
fn unknown(written: &Value, known: &Value) -> Option<String> {
    let below =
        |name: &str, path: String| if path.is_empty() { name.to_owned() } else { format!("{name}.{path}") };
    match (written, known) {
        // A variant of an enumeration that has got another name.
        (Value::Object(written), Value::Object(known)) if written.len() == 1 && known.len() == 1 => {
            let ((name, written), (_, known)) = (written.iter().next()?, known.iter().next()?);
            unknown(written, known).map(|path| below(name, path))
        }
        (Value::Object(written), Value::Object(known)) => {
            written.iter().find_map(|(name, value)| match known.get(name) {
                Some(known) => unknown(value, known).map(|path| below(name, path)),
                None => (!is_empty(value)).then(|| name.clone()),
            })
        }
        (Value::Array(written), Value::Array(known)) => {
            let mut pairs = written.iter().zip(known).enumerate();
            pairs.find_map(|(n, (written, known))| {
                unknown(written, known).map(|path| below(&n.to_string(), path))
            })
        }
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_u64() == Some(0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::ProposalId;
    use mainstay_control::State;
    use mainstay_control::state::{Command, Entry};
    use mainstay_types::NodeId;

    fn entry(command: &str) -> Result<Proposal, String> {
        read_entry(format!(r#"{{"id":[1,2],"entry":{{"at_ms":1,"command":{command}}}}}"#).as_bytes())
    }

    #[test]
    fn an_entry_with_content_that_this_build_does_not_know_is_not_read() {
        let command = Command::ConfirmOff { node: NodeId(1) };
        let own = Proposal { id: ProposalId(1, 2), entry: Entry { at_ms: 1, command } };
        assert!(read_entry(&serde_json::to_vec(&own).unwrap()).is_ok());
        assert!(entry(r#"{"type":"confirm-off","node":1}"#).is_ok());
        let error = entry(r#"{"type":"confirm-off","node":1,"why":"smoke"}"#).unwrap_err();
        assert_eq!(error, "this build does not know `entry.command.why`");
        let error = entry(r#"{"type":"node-links","node":1,"links":{"macs":[],"addresses":[],"speed":[1]}}"#);
        assert_eq!(error.unwrap_err(), "this build does not know `entry.command.links.speed`");
        assert!(entry(r#"{"type":"switch-off","node":1}"#).unwrap_err().contains("unknown variant"));
    }

    /// A newer build writes its fields also where they say nothing.
    #[test]
    fn empty_content_and_entries_of_earlier_builds_are_read() {
        assert!(
            entry(r#"{"type":"confirm-off","node":1,"why":null,"hard":false,"tries":0,"by":""}"#).is_ok()
        );
        let admission = r#"{"type":"admit-node","name":"c","agent_addr":"a","engine_addr":"b","witness":false,"nonce":3}"#;
        assert!(entry(admission).is_ok());
        let ready = serde_json::json!({ "delay": 5 });
        assert_eq!(unknown(&ready, &serde_json::json!({ "delay_s": 5 })), None);
    }

    #[test]
    fn a_state_beyond_this_build_is_refused_before_it_is_read() {
        let state = State { level: LEVEL, ..State::default() };
        assert!(check_state(&serde_json::to_vec(&state).unwrap()).is_ok());
        let newer = format!(r#"{{"level":{},"nodes":"in another form"}}"#, LEVEL + 1);
        let Err(RaftStoreError::TooOld { own, cluster }) = check_state(newer.as_bytes()) else {
            panic!("it would be read")
        };
        assert_eq!((own, cluster), (LEVEL, LEVEL + 1));
        let machine = format!(r#"{{"state":{newer},"recent":7}}"#);
        assert!(check_machine(machine.as_bytes()).is_err());
    }
}
