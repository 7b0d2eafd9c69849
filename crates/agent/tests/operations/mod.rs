//! Changes that are carried out while their sender asks for other things.

use crate::description::{body, header, with_head};
use crate::support::TestNode;
use crate::{create, eventually, three_nodes};
use mainstay_api::rest::{
    AuditPage, OperationState, OperationView, ProblemDocument, ResourceView, TokenMade,
};
use serde_json::json;

/// Asks for an operation. Returns its path.
fn begin(node: &TestNode, request: &str, body_of: &str) -> String {
    let answer = with_head(node, request, "Prefer: respond-async\r\n", body_of);
    assert!(answer.starts_with("HTTP/1.0 202 "), "{answer}");
    assert_eq!(header(&answer, "preference-applied"), Some("respond-async"), "{answer}");
    let path = header(&answer, "location").unwrap().to_owned();
    let view: OperationView = serde_json::from_str(body(&answer)).unwrap();
    assert_eq!(path, format!("/v1/operations/{}", view.id));
    assert_eq!((view.action.as_str(), view.who.as_str()), (request, "root"));
    path
}

fn state(node: &TestNode, path: &str) -> OperationView {
    node.client().get(path).unwrap()
}

fn primary(node: &TestNode) -> Option<String> {
    node.client().get::<ResourceView>("/v1/resources/db").unwrap().primary
}

#[test]
fn an_operation_ends_when_its_work_is_done() {
    let nodes = three_nodes(104);
    let node = &nodes[0];
    let wanted = json!({ "name": "db", "volumes": [1 << 20], "journal_bytes": 16 << 20, "replicas": ["n1", "n2"], "preferred": ["n1"] });
    let made = begin(node, "POST /v1/resources", &wanted.to_string());
    eventually("the resource is made", || state(node, &made).state == OperationState::Succeeded);
    eventually("the replicas are in sync", || {
        let view: ResourceView = node.client().get("/v1/resources/db").unwrap();
        view.primary.is_some() && view.replicas.iter().all(|replica| replica.in_sync)
    });
    let to = if primary(node).as_deref() == Some("n1") { "n2" } else { "n1" };
    let moved = begin(node, "POST /v1/resources/db/move", &json!({ "to": to }).to_string());
    eventually("the primary is moved", || {
        let operation = state(node, &moved);
        assert_ne!(operation.state, OperationState::Failed, "{operation:?}");
        // The operation succeeds only when the primary has moved.
        operation.state == OperationState::Succeeded && primary(node).as_deref() == Some(to)
    });
    let operation = state(node, &moved);
    assert!(operation.ended_ms.is_some_and(|ended| ended >= operation.since_ms), "{operation:?}");
    assert_eq!(operation.message, format!("the primary of resource db is on {to}"));
    let all: Vec<OperationView> = node.client().get("/v1/operations").unwrap();
    assert_eq!(all.len(), 2);
    // A request that is refused at once makes no operation.
    let refused = with_head(node, "POST /v1/resources/none/move", "Prefer: respond-async\r\n", "{}");
    assert!(refused.starts_with("HTTP/1.0 404 ") && refused.contains("unknown-resource"), "{refused}");
    // A short change takes no notice of the wish.
    let short = with_head(node, "PUT /v1/nodes/n3/maintenance", "Prefer: respond-async\r\n", "{\"on\":true}");
    assert!(short.starts_with("HTTP/1.0 200 "), "{short}");
    assert_eq!(node.client().get::<Vec<OperationView>>("/v1/operations").unwrap().len(), 2);
    // Work that goes on after the answer is an operation too, and the answer names it.
    let back = if to == "n1" { "n2" } else { "n1" };
    let answer = with_head(node, "POST /v1/resources/db/move", "", &json!({ "to": back }).to_string());
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.contains("\"revision\""), "{answer}");
    let id = header(&answer, "mainstay-operation").unwrap_or_else(|| panic!("{answer}")).to_owned();
    let named = format!("/v1/operations/{id}");
    eventually("the primary is moved back", || state(node, &named).state == OperationState::Succeeded);
    assert_eq!(primary(node).as_deref(), Some(back));
    // A change that is done when it is answered is none.
    let done = with_head(node, "PUT /v1/nodes/n2/cordon", "", "{\"on\":true}");
    assert!(done.starts_with("HTTP/1.0 200 ") && header(&done, "mainstay-operation").is_none(), "{done}");
    let refused = with_head(node, "POST /v1/resources/none/move", "", "{}");
    assert!(refused.starts_with("HTTP/1.0 404 "), "{refused}");
    assert_eq!(node.client().get::<Vec<OperationView>>("/v1/operations").unwrap().len(), 3);
    // The record of a revoked token says for which node it was.
    let made: TokenMade = node.client().post("/v1/cluster/tokens", &json!({ "node": "n7" })).unwrap();
    let revoke = format!("DELETE /v1/cluster/tokens/{}", made.id);
    let revoked = with_head(node, &revoke, "", "");
    assert!(revoked.starts_with("HTTP/1.0 200 "), "{revoked}");
    let page: AuditPage = node.client().get("/v1/audit?lines=1").unwrap();
    assert_eq!(
        (page.records[0].action.as_str(), page.records[0].body.as_str()),
        (revoke.as_str(), r#"{"about":"the token by which node n7 may join"}"#)
    );
    // Another node does not know it.
    let elsewhere = with_head(&nodes[1], &format!("GET {moved}"), "", "");
    let problem: ProblemDocument = serde_json::from_str(body(&elsewhere)).unwrap();
    assert_eq!((problem.status, problem.code.as_str()), (404, "unknown-operation"));
}

#[test]
fn a_drain_is_cancelled_and_a_move_is_not() {
    let mut nodes = three_nodes(105);
    create(&nodes[0], "db");
    eventually("a primary", || primary(&nodes[0]).is_some());
    let from = primary(&nodes[0]).unwrap();
    let other = if from == "n1" { 1 } else { 0 };
    let asked = if other == 1 { 0 } else { 2 };
    // The primary cannot leave: the other replica's node is dead.
    nodes[other].kill();
    let node = &nodes[asked];
    eventually("the other node is dead", || {
        let status: mainstay_api::rest::StatusView = node.client().get("/v1/status").unwrap();
        let nodes = status.cluster.unwrap().nodes;
        nodes.iter().any(|node| node.status == mainstay_api::rest::NodeStatus::Dead)
    });
    let path = format!("PUT /v1/nodes/{from}/cordon");
    // Its key gives the same operation again.
    let keyed = "Prefer: respond-async\r\nIdempotency-Key: \"drain\"\r\n";
    let on = "{\"on\":true,\"drain\":true}";
    let first = with_head(node, &path, keyed, on);
    let again = with_head(node, &path, keyed, on);
    let drain = header(&first, "location").unwrap_or_else(|| panic!("{first}")).to_owned();
    assert_eq!(header(&again, "location"), Some(drain.as_str()), "{again}");
    eventually("the drain is told", || state(node, &drain).message.contains("still there: db"));
    assert_eq!(state(node, &drain).state, OperationState::Running);
    let cancelled = with_head(node, &format!("DELETE {drain}"), "", "");
    assert!(cancelled.starts_with("HTTP/1.0 200 ") && cancelled.contains("\"cancelled\""), "{cancelled}");
    let open_again = format!("stays cordoned until `mainstay node uncordon {from}`");
    assert!(cancelled.contains(&open_again), "{cancelled}");
    let view: mainstay_api::rest::ClusterView = node.client().get("/v1/cluster").unwrap();
    let cordon = view.nodes.iter().find(|node| node.name == from).unwrap().cordon.as_ref().unwrap();
    assert!(!cordon.drain, "the drain has ended, and the node stays cordoned");
    // The record of the cancellation says what was cancelled.
    let page: AuditPage = node.client().get("/v1/audit?lines=20").unwrap();
    let deleted = page.records.iter().find(|record| record.action == format!("DELETE {drain}")).unwrap();
    assert_eq!(deleted.body, format!(r#"{{"about":"{path}, which root asked for"}}"#));
    let again = with_head(node, &format!("DELETE {drain}"), "", "");
    assert!(again.starts_with("HTTP/1.0 409 ") && again.contains("it has ended"), "{again}");
    // A new replica that no engine makes: its work runs, and has no end midway.
    let third = nodes[2].run_dir();
    nodes[2].engine_refuses_to_create();
    let node = &nodes[asked];
    assert!(third.exists());
    let added = begin(node, "POST /v1/resources/db/replicas", "{\"node\":\"n3\"}");
    eventually("the replica is told", || state(node, &added).message.contains("is being filled"));
    let refused = with_head(node, &format!("DELETE {added}"), "", "");
    assert!(refused.starts_with("HTTP/1.0 409 ") && refused.contains("not-cancelled"), "{refused}");
    assert!(refused.contains("remove-replica db n3"), "{refused}");
    // The same wish again, with and without an operation, is the one that is under way.
    let count = || node.client().get::<Vec<OperationView>>("/v1/operations").unwrap().len();
    let before = count();
    let again = begin(node, "POST /v1/resources/db/replicas", "{\"node\":\"n3\"}");
    assert_eq!(again, added);
    let again = with_head(node, "POST /v1/resources/db/replicas", "", "{\"node\":\"n3\"}");
    let named = header(&again, "mainstay-operation").unwrap_or_else(|| panic!("{again}"));
    assert_eq!(format!("/v1/operations/{named}"), added);
    assert!(body(&again).contains("gets a replica on n3 already: it is being filled"), "{again}");
    assert_eq!(count(), before);
}
