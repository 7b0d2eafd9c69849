//! The history of the work of nodes, asked for over the API.

use super::{eventually, one_node, three_nodes};
use mainstay_api::rest::{
    Accepted, BaselineSave, BaselinesPage, LoadPage, Report, ResourceCreate, ResourceView,
};
use mainstay_client::Client;
use mainstay_types::Code;
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn an_agent_records_its_engine_and_another_agent_can_be_asked() {
    let mut node = one_node(61);
    let request = ResourceCreate {
        name: "db".into(),
        volumes: vec![64 << 20],
        journal_bytes: Some(16 << 20),
        replicas: vec!["n1".into()],
        replica_count: None,
        preferred: vec![],
        settings: BTreeMap::new(),
        from: None,
    };
    let _: ResourceView = node.client().post("/v1/resources", &request).unwrap();
    node.kill_agent();
    node.record_every(Duration::from_millis(200));
    node.start_agent();
    let load = |query: &str| node.client().get::<LoadPage>(&format!("/v1/load{query}"));
    let serves = |page: &LoadPage| {
        let points = page.points.iter().flat_map(|point| &point.resources);
        points.map(|load| (load.resource.as_str(), load.primary_ms)).any(|(name, ms)| name == "db" && ms > 0)
    };
    eventually("a record", || serves(&load("").unwrap()));
    let page = load("?node=n1&resources=db&step_ms=60000").unwrap();
    assert!(serves(&page) && page.since_ms.is_some(), "{page:?}");
    assert_eq!((page.node.as_str(), page.step_ms), ("n1", 60_000));
    assert!(!serves(&load("?resources=other").unwrap()));
    // The report of the same hour, compared with one of which nothing is recorded.
    let report: Report = node.client().get("/v1/report?compare_from_ms=0").unwrap();
    let db = report.resources.iter().find(|one| one.resource == "db").unwrap();
    assert!(db.primaries["n1"] > 0 && db.total.primary_ms > 0, "{report:?}");
    assert_eq!((report.step_ms, report.points()), (60_000, 60));
    assert_eq!((report.nodes[0].node.as_str(), report.missing.len()), ("n1", 0));
    assert_eq!(report.compared.unwrap().missing.len(), 1, "nothing is recorded of 1970");
    assert!(report.changes.iter().any(|change| change.resource == "db"), "{:?}", report.changes);
    let refusal = |query: &str| load(query).unwrap_err().problem().code;
    assert_eq!(refusal("?node=n9"), Code::UnknownNode);
    assert_eq!(refusal("?from_ms=9&to_ms=9"), Code::BadRequest);
    baselines(&node.client(), &page);
    // The files are for root alone, and an engine that hangs costs minutes and nothing else.
    let directory = mainstay_agent::history::directory(&node.state_dir());
    let names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| name.to_str().unwrap().ends_with(".minutes")), "{names:?}");
    node.engine_hangs(true);
    load("").unwrap();
}

/// Keeps the figures of an hour, reports and compares them, and deletes them.
fn baselines(client: &Client, page: &LoadPage) {
    let list = || client.get::<BaselinesPage>("/v1/baselines").unwrap().baselines;
    let save = |name: &str, from_ms, to_ms| {
        client.put::<_, Accepted>(&format!("/v1/baselines/{name}"), &BaselineSave { from_ms, to_ms })
    };
    let refused = |name: &str, from_ms, to_ms| save(name, from_ms, to_ms).unwrap_err().problem();
    assert_eq!(refused("14", page.from_ms, page.to_ms).code, Code::BadName);
    let nothing = refused("early", 0, 3_600_000);
    assert!(nothing.message.contains("n1 keeps nothing: it has no record of this time"), "{nothing}");
    assert!(list().is_empty(), "a save that was refused keeps nothing");
    let accepted = save("friday", page.from_ms, page.to_ms).unwrap();
    assert_eq!(accepted.message, "the baseline friday is kept on n1");
    assert_eq!(refused("friday", page.from_ms, page.to_ms).code, Code::NameTaken);
    let kept = list();
    assert_eq!((kept[0].name.as_str(), kept[0].from_ms, kept[0].to_ms), ("friday", page.from_ms, page.to_ms));
    assert_eq!(kept[0].nodes, ["n1"]);
    let report: Report = client.get("/v1/report?baseline=friday&compare_baseline=friday").unwrap();
    assert_eq!((report.baseline.as_deref(), report.from_ms), (Some("friday"), page.from_ms));
    assert!(report.resources.iter().any(|one| one.resource == "db"), "{report:?}");
    assert_eq!(report.compared.unwrap().resources, report.resources);
    let of_db: Report = client.get("/v1/report?baseline=friday&resource=db").unwrap();
    assert_eq!((of_db.resource.as_deref(), of_db.resources.len()), (Some("db"), 1));
    let unknown = client.get::<Report>("/v1/report?resource=dbb").unwrap_err().problem();
    assert_eq!((unknown.code, unknown.remedy.starts_with("Did you mean db?")), (Code::UnknownResource, true));
    let unknown = client.get::<Report>("/v1/report?compare_baseline=fridy").unwrap_err().problem();
    assert_eq!(
        (unknown.code, unknown.remedy.starts_with("Did you mean friday?")),
        (Code::UnknownBaseline, true)
    );
    let accepted: Accepted = client.delete("/v1/baselines/friday").unwrap();
    assert_eq!(accepted.message, "the baseline friday is deleted on n1");
    let gone = client.delete::<Accepted>("/v1/baselines/friday").unwrap_err().problem();
    assert_eq!(gone.code, Code::UnknownBaseline);
    assert!(list().is_empty());
}

#[test]
fn an_agent_answers_with_the_history_of_another_node() {
    let nodes = three_nodes(62);
    let page: LoadPage = nodes[0].client().get("/v1/load?node=n3").unwrap();
    assert_eq!(page.node, "n3");
}

#[test]
fn a_report_names_each_node_without_a_history_and_why() {
    let mut nodes = three_nodes(63);
    let report: Report = nodes[0].client().get("/v1/report").unwrap();
    let why = |node: &str, report: &Report| {
        let of_node = format!("{node}: ");
        report.missing.iter().find_map(|text| text.strip_prefix(&of_node).map(str::to_owned)).unwrap()
    };
    assert_eq!(report.missing.len(), 3, "{:?}", report.missing);
    assert!(why("n3", &report).contains("no record of this time"), "{:?}", report.missing);
    nodes[2].kill_agent();
    let report: Report = nodes[0].client().get("/v1/report").unwrap();
    assert!(!why("n3", &report).contains("no record"), "{:?}", report.missing);
    assert!(why("n2", &report).contains("no record of this time"), "{:?}", report.missing);
    let said = report.findings.iter().filter(|text| text.starts_with("No history came from n"));
    assert_eq!(said.count(), 3, "{:?}", report.findings);
}
