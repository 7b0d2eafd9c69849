//! The history of the work of nodes, asked for over the API.

use super::{eventually, one_node, three_nodes};
use mainstay_api::rest::{LoadPage, ResourceCreate, ResourceView};
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
    let refusal = |query: &str| load(query).unwrap_err().problem().code;
    assert_eq!(refusal("?node=n9"), Code::UnknownNode);
    assert_eq!(refusal("?from_ms=9&to_ms=9"), Code::BadRequest);
    // The files are for root alone, and an engine that hangs costs minutes and nothing else.
    let directory = mainstay_agent::history::directory(&node.state_dir());
    let names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| name.to_str().unwrap().ends_with(".minutes")), "{names:?}");
    node.engine_hangs(true);
    load("").unwrap();
}

#[test]
fn an_agent_answers_with_the_history_of_another_node() {
    let nodes = three_nodes(62);
    let page: LoadPage = nodes[0].client().get("/v1/load?node=n3").unwrap();
    assert_eq!(page.node, "n3");
}
