//! A cluster of three with one resource and one service, and what goes wrong with it.

use super::*;
use serde_json::{Value, json};

fn replica(node: &str, role: &str) -> Value {
    json!({
        "node": node, "in_sync": true,
        "live": {
            "role": role, "data": "consistent", "epoch": 1, "version": 1, "commit": 9, "end": 9, "durable": 9,
            "devices": [], "peers": []
        }
    })
}

fn status() -> StatusView {
    let node = |name: &str| {
        json!({
            "id": 1, "name": name, "agent_address": "", "engine_address": "", "status": "alive",
            "generation": 1, "voter": true, "leader": false, "connected": true, "pool_free_bytes": null
        })
    };
    let status = json!({
        "cluster": {
            "id": 1, "name": "shop", "revision": 1, "leader": "n1", "this_node": "n1", "lease_ms": 2000,
            "heartbeat_ms": 200, "as_of_ms": 0, "nodes": [node("n1"), node("n2"), node("n3")]
        },
        "engine": { "connected": true, "message": "connected" },
        "lease_left_ms": 1500,
        "resources": [{
            "id": 1, "name": "db", "health": "ok", "deleting": false, "volumes": [4096], "journal_bytes": 4096,
            "epoch": 1, "version": 1, "primary": "n1", "preferred": [],
            "replicas": [replica("n1", "primary"), replica("n2", "secondary")], "failure": null, "advice": []
        }],
        "services": [{
            "name": "web", "resource": "db", "node": "n1", "phase": "running", "phase_node": "n1",
            "current": true, "vip": null, "deleting": false, "failures": [], "advice": []
        }],
        "advice": []
    });
    serde_json::from_value(status).expect("a status")
}

fn changed(change: impl FnOnce(&mut StatusView)) -> StatusView {
    let mut status = status();
    change(&mut status);
    status
}

#[test]
fn a_cluster_that_is_well_is_ok_with_its_numbers() {
    let found = cluster(&status());
    assert_eq!(
        found.line(),
        "MAINSTAY OK - cluster shop: 3 nodes alive, 1 resource ok, 1 service running | nodes=3;;;0 nodes_alive=3;;;0 \
         resources=1;;;0 resources_ok=1;;;0 services=1;;;0 services_running=1;;;0 advice=0;;;0"
    );
    assert_eq!(
        resource(&status(), "db").line(),
        "MAINSTAY OK - resource db: primary n1, 2 of 2 replicas in sync | replicas=2;;;0 replicas_in_sync=2;;;0 behind=0B;;;0"
    );
    let line = service(&status(), "web").line();
    assert!(line.starts_with("MAINSTAY OK - service web runs on n1; resource db: primary n1"), "{line}");
    assert!(line.contains("| running=1;;;0 failures=0;;;0 replicas=2"), "{line}");
}

#[test]
fn what_is_served_and_would_not_survive_everything_is_a_warning() {
    let degraded = changed(|status| {
        status.resources[0].health = Health::Degraded;
        status.resources[0].replicas[1].in_sync = false;
        status.cluster.as_mut().unwrap().nodes[1].status = NodeStatus::Dead;
    });
    let found = cluster(&degraded);
    assert_eq!(found.state, State::Warning);
    let said = "MAINSTAY WARNING - node n2 is dead; resource db is degraded: n2 not in sync | nodes=3";
    assert!(found.line().starts_with(said), "{}", found.line());
    assert_eq!(service(&degraded, "web").state, State::Warning, "its resource is degraded");
    for advised in [
        changed(|status| status.advice.push("the pool is nearly full".into())),
        changed(|status| status.resources[0].advice.push("look".into())),
        changed(|status| status.services[0].advice.push("waits for an address".into())),
        changed(|status| status.services[0].phase = ServicePhase::Starting),
    ] {
        assert_eq!(cluster(&advised).state, State::Warning, "{}", cluster(&advised).line());
    }
}

#[test]
fn what_is_not_served_is_critical_and_comes_first() {
    let down = changed(|status| {
        status.cluster.as_mut().unwrap().nodes[1].status = NodeStatus::Dead;
        status.resources[0].health = Health::Down;
        status.resources[0].failure = Some("no node\ncan | take over".into());
        status.services[0].phase = ServicePhase::Failed;
    });
    let line = cluster(&down).line();
    let said = "MAINSTAY CRITICAL - resource db has no primary: no node can / take over; service web does not run; node n2";
    assert!(line.starts_with(said) && line.lines().count() == 1 && line.matches('|').count() == 1, "{line}");
    for critical in [
        changed(|status| status.lease_left_ms = 0),
        changed(|status| status.engine.connected = false),
        changed(|status| status.cluster.as_mut().unwrap().as_of_ms = Some(12_000)),
        changed(|status| status.services[0].hindrances.push("its file system is frozen".into())),
        changed(|status| status.services[0].phase = ServicePhase::Stopped),
        changed(|status| {
            let live = status.resources[0].replicas[0].live.as_mut().unwrap();
            live.waiting_for.push("room in the journal".into());
        }),
    ] {
        assert_eq!(cluster(&critical).state, State::Critical, "{}", cluster(&critical).line());
    }
}

#[test]
fn a_service_that_an_operator_stopped_is_ok_and_a_witness_needs_no_engine() {
    let stopped = changed(|status| {
        status.services[0].phase = ServicePhase::Stopped;
        status.services[0].stopped_ms = Some(1);
    });
    assert_eq!((cluster(&stopped).state, service(&stopped, "web").state), (State::Ok, State::Ok));
    let witness = changed(|status| {
        status.engine.connected = false;
        status.cluster.as_mut().unwrap().nodes[0].witness = true;
    });
    assert_eq!(cluster(&witness).state, State::Ok);
}

#[test]
fn what_cannot_be_known_is_unknown() {
    let old = changed(|status| status.cluster.as_mut().unwrap().as_of_ms = None);
    assert_eq!((resource(&old, "db").state, service(&old, "web").state), (State::Unknown, State::Unknown));
    assert_eq!(cluster(&changed(|status| status.cluster = None)).state, State::Unknown);
    let missing = resource(&status(), "dbb");
    assert_eq!(missing.line(), "MAINSTAY UNKNOWN - there is no resource dbb (did you mean db?)");
    assert_eq!(service(&status(), "mail").line(), "MAINSTAY UNKNOWN - there is no service mail");
}

#[test]
fn many_problems_are_counted_and_long_ones_cut() {
    let many = changed(|status| {
        let node = status.cluster.as_ref().unwrap().nodes[0].clone();
        let dead = |n: usize| NodeView { name: format!("n{n}"), status: NodeStatus::Dead, ..node.clone() };
        status.cluster.as_mut().unwrap().nodes = (1..=9).map(dead).collect();
    });
    assert!(cluster(&many).line().contains("node n3 is dead (and 6 more) | "), "{}", cluster(&many).line());
    let long = Checked::of(State::Critical, "x".repeat(2000));
    assert!(long.line().chars().count() < 300, "{}", long.line());
}
