//! Services that are tied to others: order, place, and what is refused.

use crate::common::*;
use mainstay_control::state::{Command, Outcome, ResourceSpec};
use mainstay_ha::ServiceSpec;
use mainstay_types::{Choices, Code, NodeId, ServicePhase};
use std::collections::BTreeMap;

fn spec(name: &str, more: &str) -> Command {
    let text = format!("name='{name}'\nresource='{name}'\n[mount]\npath='/srv/{name}'\n{more}");
    Command::ApplyService { spec: ServiceSpec::parse(&text).unwrap() }
}

/// Resources db, app and web on the nodes a and b, and the service db, which runs on a.
fn cluster_of_three() -> Nodes {
    let mut nodes = Nodes::new(with_resource());
    for name in ["app", "web"] {
        let volumes = vec![1 << 20];
        let spec =
            ResourceSpec { volumes, journal_bytes: 16 << 20, replicas: vec![A, B], preferred: vec![A] };
        let create =
            Command::CreateResource { name: name.into(), spec, choices: Choices::default(), origin: None };
        assert!(apply(&mut nodes.state, create).is_ok());
    }
    nodes.tell();
    place(&mut nodes, "db", "");
    assert_eq!(nodes.places("db"), [A]);
    nodes
}

fn place(nodes: &mut Nodes, name: &str, more: &str) {
    let outcome = apply(&mut nodes.state, spec(name, more));
    assert!(outcome.is_ok(), "{outcome:?}");
    nodes.tell();
}

fn refused(nodes: &mut Nodes, command: Command) -> (Code, String) {
    let Outcome::Refused(refusal) = apply(&mut nodes.state, command) else { panic!("not refused") };
    assert!(!refusal.remedy.is_empty());
    (refusal.code, refusal.message)
}

fn moves(nodes: &mut Nodes, name: &str, to: NodeId) {
    assert!(apply(&mut nodes.state, Command::MoveService { name: name.into(), to }).is_ok());
    nodes.tell();
}

fn why(nodes: &Nodes, name: &str) -> Vec<String> {
    nodes.state.explain(name, &BTreeMap::new()).into_iter().map(|fit| fit.why).collect()
}

#[test]
fn services_that_are_apart_run_on_different_nodes_or_one_of_them_waits() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\napart=['db']\n");
    assert_eq!((nodes.places("db"), nodes.places("app")), (vec![A], vec![B]));
    nodes.power_cut(B);
    assert!(die(&mut nodes.state, B).is_ok());
    nodes.tell();
    let app = nodes.state.resource_by_name("app").unwrap();
    assert_eq!((app.record.primary, nodes.places("app")), (Some(A), vec![]), "its data stay available");
    assert!(why(&nodes, "app")[0].contains("apart from db"), "{:?}", why(&nodes, "app"));
    // One that does not run makes no room necessary.
    apply(&mut nodes.state, Command::StopService { name: "db".into() });
    nodes.tell();
    assert_eq!((nodes.places("db"), nodes.places("app")), (vec![], vec![A]));
}

#[test]
fn a_constraint_that_is_made_later_is_kept_from_then_on() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "");
    assert_eq!(nodes.places("app"), [A]);
    place(&mut nodes, "app", "[placement]\navoid=['a']\n");
    assert_eq!(nodes.places("app"), [B]);
    place(&mut nodes, "app", "[placement]\nwith='db'\n");
    assert_eq!((nodes.places("db"), nodes.places("app")), (vec![A], vec![A]));
}

#[test]
fn services_that_are_with_one_another_move_together() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\nwith='db'\nafter=['db']\n");
    assert_eq!(nodes.places("app"), [A]);
    for name in ["db", "app"] {
        let to = if nodes.places("db") == [A] { B } else { A };
        moves(&mut nodes, name, to);
        assert_eq!((nodes.places("db"), nodes.places("app")), (vec![to], vec![to]), "{name}");
    }
    nodes.power_cut(A);
    assert!(die(&mut nodes.state, A).is_ok());
    nodes.tell();
    assert_eq!((nodes.places("db"), nodes.places("app")), (vec![B], vec![B]));
}

#[test]
fn a_service_starts_after_another_one_and_stops_before_it() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\nafter=['db']\n");
    assert_eq!(nodes.places("app"), [A]);
    apply(&mut nodes.state, Command::StopService { name: "db".into() });
    // One step of each node at a time: db is not told to stop while anything of app is left.
    for _ in 0..20 {
        for node in [A, B] {
            for action in mainstay_control::actions::plan(node, &nodes.state, &nodes.observed[&node]) {
                nodes.act(node, action);
                let stops =
                    nodes.observed[&A].services.get("db").is_none_or(|of| of.phase != ServicePhase::Running);
                assert!(!stops || nodes.places("app").is_empty(), "db stops before app");
            }
        }
    }
    nodes.tell();
    assert!(nodes.places("db").is_empty() && nodes.places("app").is_empty());
    assert!(why(&nodes, "app")[0].contains("an operator has stopped"), "{:?}", why(&nodes, "app"));
    apply(&mut nodes.state, Command::StartService { name: "db".into() });
    nodes.tell();
    assert_eq!((nodes.places("db"), nodes.places("app")), (vec![A], vec![A]));
}

#[test]
fn a_service_goes_back_along_its_list_of_preferred_nodes() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[policy]\npreferred=['b', 'a']\nfailback=true\n");
    assert_eq!(nodes.places("app"), [B]);
    place(&mut nodes, "web", "[policy]\npreferred=['b', 'a']\n");
    assert_eq!(nodes.places("web"), [A], "without failback it stays where its resource is");
}

#[test]
fn what_rests_takes_along_what_depends_on_it() {
    use mainstay_control::maintenance::Scope;
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\nafter=['db']\n");
    place(&mut nodes, "web", "[placement]\nwith='app'\n");
    let of_db = Scope::Service { name: "db".into() };
    assert!(
        apply(&mut nodes.state, Command::SetMaintenance { scope: of_db.clone(), on: true, for_ms: None })
            .is_ok()
    );
    for name in ["db", "app", "web"] {
        assert_eq!(nodes.state.rests(name), Some(of_db.clone()), "{name}");
    }
    // db fails, and app is left alone.
    nodes.observed.get_mut(&A).unwrap().services.get_mut("db").unwrap().phase = ServicePhase::Stopped;
    nodes.tell();
    assert_eq!((nodes.places("db"), nodes.places("app")), (vec![], vec![A]));
    // An operator's order is another matter.
    apply(&mut nodes.state, Command::StopService { name: "db".into() });
    nodes.tell();
    assert!(nodes.places("app").is_empty());
}

#[test]
fn constraints_that_make_no_sense_are_refused_with_words() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\nafter=['db']\nwith='db'\n");
    for (name, more, words) in [
        ("web", "after=['nobody']", "placement.after: there is no service nobody"),
        ("web", "with='nobody'", "placement.with: there is no service nobody"),
        ("web", "apart=['nobody']", "placement.apart: there is no service nobody"),
        ("web", "avoid=['nowhere']", "placement.avoid: there is no node nowhere"),
        ("web", "avoid=['a', 'b']", "every node that holds a replica of web is avoided"),
        ("db", "after=['app']", "each of db, app would wait for the next one, for ever"),
        ("db", "with='app'", "db, app would be with one another in a circle"),
        ("db", "apart=['app']", "would have to be on one node and apart from one another"),
    ] {
        let (code, message) = refused(&mut nodes, spec(name, &format!("[placement]\n{more}\n")));
        assert_eq!(code, Code::BadPlacement, "{more}");
        assert!(message.contains(words), "{message}");
    }
    let (code, message) = refused(&mut nodes, Command::DeleteService { name: "db".into() });
    assert_eq!(code, Code::ServiceInUse);
    assert!(message.contains("service app names it"), "{message}");
    place(&mut nodes, "app", "");
    assert!(apply(&mut nodes.state, Command::DeleteService { name: "db".into() }).is_ok());
}

#[test]
fn a_move_that_a_constraint_forbids_is_refused_with_the_reason() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\navoid=['b']\n");
    let go = |name: &str, to| Command::MoveService { name: name.into(), to };
    let (_, message) = refused(&mut nodes, go("app", B));
    assert!(message.contains("never to run there (placement.avoid)"), "{message}");
    // db could go nowhere if web took its node.
    place(&mut nodes, "db", "[placement]\navoid=['b']\n");
    place(&mut nodes, "web", "[placement]\napart=['db']\n");
    assert_eq!((nodes.places("db"), nodes.places("web")), (vec![A], vec![B]));
    let (_, message) = refused(&mut nodes, go("web", A));
    assert!(message.contains("apart from db"), "{message}");
    // When db may go, the order moves both.
    place(&mut nodes, "db", "");
    moves(&mut nodes, "web", A);
    assert_eq!((nodes.places("db"), nodes.places("web")), (vec![B], vec![A]));
}

#[test]
fn the_reasons_name_what_keeps_a_service_from_each_node() {
    let mut nodes = cluster_of_three();
    place(&mut nodes, "app", "[placement]\napart=['db']\n");
    let lacks = BTreeMap::from([(A, vec!["process[0].user: there is no user db".to_owned()])]);
    let fits = nodes.state.explain("db", &lacks);
    assert_eq!(fits.len(), 3);
    assert!(fits[0].chosen && fits[0].why.starts_with("lacks: process[0].user"), "{fits:?}");
    assert_eq!(fits[2].why, "it holds no replica of resource db");
    assert_eq!(
        why(&nodes, "app"),
        ["apart from db, which has its place there", "runs there", "it holds no replica of resource app"]
    );
    nodes.power_cut(B);
    assert!(die(&mut nodes.state, B).is_ok());
    assert_eq!(why(&nodes, "db")[1], "it is dead");
}
