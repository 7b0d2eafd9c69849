//! A resource that has the name already which a new one is to get: whether it is what was asked
//! for, and if not, what differs.
//!
//! Guarantees
//! - A request that was made before, and interrupted, is the same request: nothing differs.
//! - A refusal names each field with what is there and what was asked for, and what can change it.

use super::resources::{JOURNAL_BYTES_DEFAULT, nodes_named};
use super::settings;
use mainstay_api::rest::ResourceCreate;
use mainstay_control::state::{Resource, State};
use mainstay_types::settings::differing;
use mainstay_types::{Choices, Code, NodeId, Problem, size_typed};

/// A field of a resource that is not as asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    pub field: String,
    pub there: String,
    pub asked: String,
    /// Commands that bring what is there to what was asked for; none if nothing can.
    pub commands: Vec<String>,
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

/// Differences between a resource and a request for one of its name.
///
/// # Errors
/// When the request names an unknown node.
pub(super) fn differences(
    state: &State,
    resource: &Resource,
    request: &ResourceCreate,
) -> Result<Vec<Difference>, Problem> {
    let (spec, name) = (&resource.spec, &resource.name);
    let mut found = Vec::new();
    let mut note = |field: &str, there: String, asked: String, commands: Vec<String>| {
        if there != asked {
            found.push(Difference {
                field: field.to_owned(),
                there: or_none(there),
                asked: or_none(asked),
                commands,
            });
        }
    };
    let whose = |names: &[String]| nodes_named(state, names);
    let names =
        |nodes: &[NodeId]| nodes.iter().map(|node| state.node_name(*node)).collect::<Vec<_>>().join(" ");
    // The origin of a resource is known only until it has been filled.
    let there = resource.origin.as_ref().map(|origin| state.origin_names(origin));
    let there = there.map_or_else(String::new, |(snapshot, resource)| format!("{resource}@{snapshot}"));
    let asked =
        request.from.as_ref().map_or_else(String::new, |from| format!("{}@{}", from.resource, from.snapshot));
    note("from (a snapshot)", there, asked, Vec::new());
    if request.from.is_none() || !request.volumes.is_empty() {
        let numbers = 0..spec.volumes.len().max(request.volumes.len());
        for number in numbers {
            let [there, asked] =
                [&spec.volumes, &request.volumes].map(|volumes| volumes.get(number).copied());
            let larger = there.zip(asked).is_some_and(|(there, asked)| asked > there);
            let [there, asked] = [there, asked].map(|bytes| bytes.map_or_else(String::new, size_typed));
            let size = &asked;
            let grow = format!("`mainstay resource resize {name} {size} --volume {number}`");
            note(
                &format!("size of volume {number}"),
                there,
                asked,
                if larger { vec![grow] } else { Vec::new() },
            );
        }
    }
    let journal_bytes = request.journal_bytes.unwrap_or(match request.from {
        Some(_) => spec.journal_bytes,
        None => JOURNAL_BYTES_DEFAULT,
    });
    note("journal", size_typed(spec.journal_bytes), size_typed(journal_bytes), Vec::new());
    let mut nodes = whose(&request.replicas)?;
    nodes.sort_unstable();
    if nodes.is_empty() {
        let count = request.replica_count.map_or_else(|| 2.min(state.nodes.len()), |count| count as usize);
        note("number of replicas", spec.replicas.len().to_string(), count.to_string(), Vec::new());
    } else {
        let more = nodes.iter().filter(|node| !spec.replicas.contains(node));
        let fewer = spec.replicas.iter().filter(|node| !nodes.contains(node));
        let more =
            more.map(|node| format!("`mainstay resource add-replica {name} {}`", state.node_name(*node)));
        let fewer =
            fewer.map(|node| format!("`mainstay resource remove-replica {name} {}`", state.node_name(*node)));
        note("replicas", names(&spec.replicas), names(&nodes), more.chain(fewer).collect());
    }
    note("preferred nodes", names(&spec.preferred), names(&whose(&request.preferred)?), Vec::new());
    let chosen = settings::choices(&request.settings)?;
    let asked = Choices::resolve(&state.choices, &chosen, spec.journal_bytes);
    for setting in differing(&resource.record.policy, &asked) {
        let [there, asked] =
            [&resource.record.policy, &asked].map(|policy| setting.write(setting.value_in(policy)));
        let set = format!("`mainstay resource set {name} {}={asked}`", setting.name);
        note(setting.name, there, asked, vec![set]);
    }
    Ok(found)
}

/// The refusal that names what differs.
pub(super) fn refusal(name: &str, differences: &[Difference]) -> Problem {
    let one = |difference: &Difference| {
        let Difference { field, there, asked, .. } = difference;
        format!("{field}: {there} there, {asked} asked for")
    };
    let list: Vec<String> = differences.iter().map(one).collect();
    let message = format!("there is a resource {name} already, and it is another one: {}", list.join("; "));
    let commands: Vec<&str> = differences.iter().flat_map(|one| &one.commands).map(String::as_str).collect();
    let changed = match commands.join(" and ") {
        commands if commands.is_empty() => String::new(),
        commands => format!(" To change the one that is there, run {commands}."),
    };
    Problem::new(Code::NameTaken, message, format!("Choose another name for a new resource.{changed}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::SettingValue;
    use mainstay_control::state::{Command, Entry, Outcome, ResourceSpec, Settings};

    fn state() -> State {
        let mut state = State::default();
        let mut apply = |command| state.apply(Entry { at_ms: 1, command });
        apply(Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
        for n in 1..=3u8 {
            apply(Command::AddNode {
                name: format!("n{n}"),
                agent_addr: format!("10.0.0.{n}:7400"),
                engine_addr: format!("10.0.0.{n}:7401"),
                voter: false,
                witness: false,
                nonce: n.into(),
            });
        }
        let spec = ResourceSpec {
            volumes: vec![1 << 30],
            journal_bytes: JOURNAL_BYTES_DEFAULT,
            replicas: vec![NodeId(1), NodeId(2)],
            preferred: Vec::new(),
        };
        let made = apply(Command::CreateResource {
            name: "db".into(),
            spec,
            choices: Choices::default(),
            origin: None,
        });
        assert!(matches!(made, Outcome::ResourceCreated { .. }), "{made:?}");
        state
    }

    fn asked() -> ResourceCreate {
        serde_json::from_value(serde_json::json!({ "name": "db", "volumes": [1u64 << 30] })).unwrap()
    }

    fn refused(request: &ResourceCreate) -> Problem {
        let state = state();
        let found = differences(&state, state.resource_by_name("db").unwrap(), request).unwrap();
        refusal("db", &found)
    }

    #[test]
    fn a_request_that_is_repeated_differs_in_nothing() {
        let state = state();
        let db = state.resource_by_name("db").unwrap();
        let named = ResourceCreate { replicas: vec!["n2".into(), "n1".into()], ..asked() };
        for request in [asked(), named, ResourceCreate { replica_count: Some(2), ..asked() }] {
            assert_eq!(differences(&state, db, &request), Ok(Vec::new()), "{request:?}");
        }
        let unknown = ResourceCreate { replicas: vec!["n9".into()], ..asked() };
        assert_eq!(differences(&state, db, &unknown).unwrap_err().code, Code::UnknownNode);
    }

    #[test]
    fn each_differing_field_is_named_with_the_command_that_changes_it() {
        let copies = [("min-copies".to_owned(), SettingValue::Number(2))].into();
        let never = [("scrub-interval".to_owned(), SettingValue::Text("off".into()))].into();
        for (request, said, remedy) in [
            (
                ResourceCreate { volumes: vec![2 << 30], ..asked() },
                "size of volume 0: 1GiB there, 2GiB asked for",
                "`mainstay resource resize db 2GiB --volume 0`",
            ),
            (
                ResourceCreate { volumes: vec![1 << 29], ..asked() },
                "size of volume 0: 1GiB there, 512MiB asked for",
                "Choose another name",
            ),
            (
                ResourceCreate { volumes: vec![1 << 30, 4096], ..asked() },
                "size of volume 1: none there, 4KiB asked for",
                "Choose another name",
            ),
            (
                ResourceCreate { journal_bytes: Some(64 << 20), ..asked() },
                "journal: 256MiB there, 64MiB asked for",
                "Choose another name",
            ),
            (
                ResourceCreate { replicas: vec!["n1".into(), "n3".into()], ..asked() },
                "replicas: n1 n2 there, n1 n3 asked for",
                "`mainstay resource add-replica db n3` and `mainstay resource remove-replica db n2`",
            ),
            (
                ResourceCreate { replica_count: Some(3), ..asked() },
                "number of replicas: 2 there, 3 asked for",
                "Choose",
            ),
            (
                ResourceCreate { preferred: vec!["n2".into()], ..asked() },
                "preferred nodes: none there, n2 asked for",
                "Choose",
            ),
            (
                ResourceCreate { settings: copies, ..asked() },
                "min-copies: 1 there, 2 asked for",
                "`mainstay resource set db min-copies=2`",
            ),
            (
                ResourceCreate { settings: never, ..asked() },
                "scrub-interval: 30d there, off asked for",
                "`mainstay resource set db scrub-interval=off`",
            ),
        ] {
            let problem = refused(&request);
            assert_eq!(problem.code, Code::NameTaken);
            assert!(problem.message.contains(said) && !problem.message.contains(';'), "{}", problem.message);
            assert!(problem.remedy.contains(remedy), "{}", problem.remedy);
        }
    }
}
