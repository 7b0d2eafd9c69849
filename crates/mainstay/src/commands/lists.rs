//! Properties that every list has.

use super::{cluster, identities, report, resource, service, settings, snapshot, token};
use crate::cli::Cli;
use clap::{Command, CommandFactory};
use mainstay_cli::list::{Form, List};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A view of an answer.
fn view<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a view")
}

/// Longest name.
fn long() -> String {
    "a-long-name-of-thirty-two-letter".to_owned()
}

/// A list of each kind with one row, whose names are as long as names can be.
fn lists() -> Vec<(&'static str, List)> {
    const NOW_MS: u64 = 1_764_423_000_000;
    let resource = json!({
        "id": 1, "name": long(), "health": "degraded", "deleting": false, "volumes": [1_u64 << 40, 4096],
        "journal_bytes": 256 << 20, "epoch": 123_456, "version": 7, "primary": long(),
        "preferred": [long(), long()], "failure": null, "advice": [], "mode": "c", "min_copies": 2,
        "replicas": [
            { "node": long(), "in_sync": true, "live": null }, { "node": long(), "in_sync": false, "live": null }
        ]
    });
    let node = json!({
        "id": 1, "name": long(), "agent_address": "[2001:db8:1234:5678:9abc:def0:1234:5678]:7400",
        "engine_address": "192.0.2.111:7401", "status": "alive", "generation": 1, "voter": true,
        "leader": false, "connected": false, "pool_free_bytes": 123_u64 << 30
    });
    let cluster = json!({
        "id": 1, "name": "c", "revision": 1, "leader": "b", "this_node": "a", "lease_ms": 2000,
        "heartbeat_ms": 200, "nodes": [node]
    });
    let service = json!({
        "name": long(), "resource": long(), "node": long(), "phase": "backing-off", "phase_node": long(),
        "doing": "waits for its file system", "vip": "2001:db8:1234:5678:9abc:def0:1234:5678/64",
        "deleting": false, "failures": [{ "node": long(), "count": 3, "reason": "x" }], "advice": []
    });
    let on = json!({ "node": long(), "index": 7, "state": "held" });
    let snapshot =
        json!({ "id": 3, "name": long(), "at_ms": NOW_MS, "deleting": false, "nodes": [on, on, on] });
    let join = json!({ "id": "00c0ffee00c0ffee", "node": long(), "status": "superseded", "made_ms": 1, "until_ms": 2 });
    let api = json!({
        "name": long(), "id": "00c0ffee00c0ffee", "access": "operate", "made_ms": 0, "until_ms": NOW_MS + 1,
        "ended": false, "used_ms": 5
    });
    let setting = json!({
        "name": "min-copies", "value": "1", "from": "default", "default": "1",
        "values": "1 to 7, or off for as many as there are", "since": "0.1", "help": "Copies that a write needs."
    });
    let baseline = json!({
        "name": long(), "from_ms": NOW_MS, "to_ms": NOW_MS + 3_600_000, "made_ms": NOW_MS, "nodes": [long(), long()],
        "bytes": 20_480
    });
    vec![
        ("resource list", resource::overview(&[view(resource)])),
        ("node list", cluster::list_of(&view(cluster))),
        ("service list", service::overview(&[view(service)])),
        ("snapshot list", snapshot::overview(&[view(snapshot)])),
        ("cluster token list", identities::tokens_list(&[view(join)], NOW_MS)),
        ("token list", token::tokens_list(&[view(api)], NOW_MS)),
        ("settings", settings::listed(&[view(setting)])),
        (
            "report baseline list",
            report::baselines::list(&view(json!({ "baselines": [baseline], "missing": [] }))),
        ),
    ]
}

#[test]
fn every_list_fits_80_columns_with_long_names() {
    for (what, list) in lists() {
        for form in [Form::Table, Form::Wide] {
            let text = list.text(form, Some(80));
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{what}:\n{text}");
            if std::env::var_os("MAINSTAY_SHOW").is_some() {
                println!("--- {what} {form:?}\n{text}");
            }
        }
        // A row is a line, and each line has all columns.
        let csv = list.text(Form::Csv, Some(80));
        assert_eq!(csv.lines().count(), 2, "{what}:\n{csv}");
        assert_eq!(list.text(Form::Name, Some(80)).lines().count(), 1, "{what}");
        assert!(list.is_even(), "{what}: a row has a cell for each column");
    }
}

/// Paths of the commands that list something.
fn listing(command: &Command, path: &str, found: &mut Vec<(String, bool)>) {
    for inner in command.get_subcommands() {
        let path = format!("{path} {}", inner.get_name());
        if matches!(inner.get_name(), "list" | "settings") {
            let takes = inner
                .get_arguments()
                .any(|option| option.get_id() == "form" && option.get_short() == Some('o'));
            found.push((path.clone(), takes));
        }
        listing(inner, &path, found);
    }
}

#[test]
fn every_command_that_lists_something_takes_a_form() {
    let mut found = Vec::new();
    listing(&Cli::command(), "mainstay", &mut found);
    assert!(found.len() >= 9, "{found:?}");
    let without: Vec<_> = found.iter().filter(|(_, takes)| !takes).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn no_list_for_programs_has_a_size_with_a_unit() {
    let mut sizes = 0;
    for (what, list) in lists() {
        let unit =
            |text: &str| ["KiB", "MiB", "GiB", "TiB"].iter().any(|unit| text.contains(&format!(" {unit}")));
        sizes += usize::from(unit(&list.text(Form::Wide, None)));
        let csv = list.text(Form::Csv, None);
        assert!(!unit(&csv), "{what}:\n{csv}");
    }
    assert_eq!(sizes, 3, "lists of resources, nodes and baselines show sizes to people");
}
