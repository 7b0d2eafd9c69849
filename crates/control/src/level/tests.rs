use super::*;
use crate::removal::tests::Lab;
use proptest::prelude::*;

fn told(lab: &mut Lab, levels: &[u32]) {
    for (node, level) in (1..).zip(levels) {
        lab.done(Command::NodeLevel { node: NodeId(node), level: *level });
    }
}

fn refusal(lab: &mut Lab, command: Command) -> Problem {
    match lab.apply(command.clone()) {
        Outcome::Refused(problem) => problem,
        other => panic!("{command:?}: {other:?}"),
    }
}

#[test]
fn the_level_of_the_cluster_rises_when_the_last_node_was_upgraded_and_never_falls() {
    let mut lab = Lab::new(3);
    assert!(!lab.state.knows_levels());
    told(&mut lab, &[2, 2, 1]);
    assert_eq!(lab.state.next_level(), Some(1));
    lab.done(Command::RaiseLevel { level: 1 });
    assert_eq!(lab.state.next_level(), None, "c has an older build");
    let advice = lab.state.level_advice().unwrap();
    assert_eq!(
        advice.what,
        "c runs an older build: functions of feature level 2 wait, and the cluster uses level 1"
    );
    let problem = refusal(&mut lab, Command::RaiseLevel { level: 2 });
    assert_eq!(problem.code, Code::FeatureLevel);
    assert!(problem.message.ends_with(": c has an older build"), "{problem}");
    // Until the level rises, a node may go back.
    told(&mut lab, &[1, 2, 2]);
    assert_eq!(lab.state.next_level(), None);
    told(&mut lab, &[2, 2, 2]);
    assert_eq!(lab.state.level_advice(), None);
    assert_eq!(lab.state.next_level(), Some(2));
    lab.done(Command::RaiseLevel { level: 2 });
    assert_eq!(lab.apply(Command::RaiseLevel { level: 1 }), Outcome::Unchanged);
    assert_eq!(lab.state.level, 2);
    let problem = refusal(&mut lab, Command::NodeLevel { node: NodeId(2), level: 1 });
    assert_eq!(problem.code, Code::BuildTooOld);
}

#[test]
fn a_dead_node_and_one_that_joins_hold_the_level_back_and_a_removed_node_does_not() {
    let mut lab = Lab::new(3);
    told(&mut lab, &[2, 2, 1]);
    lab.dies(3);
    assert_eq!(lab.state.next_level(), Some(1));
    lab.done(Command::RaiseLevel { level: 1 });
    assert_eq!(lab.state.next_level(), None, "c is dead and may return");
    lab.remove(3);
    assert_eq!(lab.state.next_level(), Some(2));
    lab.done(lab.admission("d", false));
    assert_eq!(lab.state.next_level(), None, "d joins");
    lab.done(Command::NodeLevel { node: NodeId(4), level: 2 });
    lab.done(Command::RaiseLevel { level: 2 });
    let older = match lab.admission("e", false) {
        Command::AdmitNode { name, agent_addr, engine_addr, witness, nonce, replace, by, .. } => {
            Command::AdmitNode { name, agent_addr, engine_addr, witness, nonce, replace, level: 1, by }
        }
        other => other,
    };
    assert_eq!(refusal(&mut lab, older).code, Code::BuildTooOld);
    assert_eq!(lab.state.nodes.len(), 3, "nothing is left of it");
}

/// An earlier build wrote no levels.
#[test]
fn a_record_without_levels_is_read_and_written_as_before() {
    let lab = Lab::new(2);
    let text = serde_json::to_string(&lab.state).unwrap();
    assert!(!text.contains("\"level\""), "{text}");
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), lab.state);
    let entry = r#"{"type":"admit-node","name":"c","agent_addr":"10.0.0.3:1","engine_addr":"10.0.0.3:2","witness":false,"nonce":3}"#;
    let Command::AdmitNode { level, .. } = serde_json::from_str(entry).unwrap() else {
        panic!("another command")
    };
    assert_eq!(level, 0);
}

#[test]
fn no_command_needs_a_level_that_this_build_has_not() {
    assert!(Command::RaiseLevel { level: 7 }.level() <= LEVEL);
}

#[test]
fn a_service_file_with_fields_of_level_2_is_refused_below_it() {
    let mut lab = Lab::new(2);
    let service = |more: &str| {
        let text =
            format!("name='db'\nresource='r'\n[mount]\npath='/srv/db'\nfstype='ext4'\nmkfs=true\n{more}\n");
        Command::ApplyService { spec: mainstay_ha::ServiceSpec::parse(&text).unwrap() }
    };
    let made = "mkfs_options=['-O', 'bigalloc', '-C', '16384']";
    let asks = "[[process]]\nname='p'\ncommand=['a']\npages={size=16384, arguments=['--once']}";
    for more in [made, asks] {
        assert_eq!(refusal(&mut lab, service(more)).code, Code::FeatureLevel, "{more}");
        assert_eq!(service(more).level(), 2);
    }
    assert_eq!(service("").level(), 0);
}

/// A node of the model: the build on its disk, and whether its agent runs.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The node gets a build of this level, and its agent starts anew.
    Install(u32, u32),
    Dies(u32),
    Removed(u32),
    Joins(u32),
    /// The leader does its duty.
    Lead,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..=6_u32, 0..=3_u32).prop_map(|(node, level)| Step::Install(node, level)),
        1 => (1..=6_u32).prop_map(Step::Dies),
        1 => (1..=6_u32).prop_map(Step::Removed),
        1 => (0..=3_u32).prop_map(Step::Joins),
        4 => Just(Step::Lead),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nodes are upgraded, set back, lost, removed and joined in any order. An agent runs only
    /// while the record allows its build. So no agent ever applies an entry beyond its level.
    #[test]
    fn no_agent_that_runs_meets_a_level_beyond_its_build(steps in prop::collection::vec(step(), 1..60)) {
        let mut lab = Lab::new(3);
        let mut builds: std::collections::BTreeMap<NodeId, u32> = (1..=3).map(|n| (NodeId(n), 0)).collect();
        for step in steps {
            let before = lab.state.level;
            match step {
                Step::Install(node, level) => {
                    let node = NodeId(node);
                    if let Some(build) = builds.get_mut(&node) {
                        let was_running = *build >= lab.state.level;
                        *build = level;
                        let outcome = lab.apply(Command::NodeLevel { node, level });
                        let refused = matches!(outcome, Outcome::Refused(_));
                        prop_assert_eq!(refused, level < lab.state.level, "{:?} {}", outcome, was_running);
                    }
                }
                Step::Dies(node) => {
                    let node = NodeId(node);
                    if let Some(known) = lab.state.nodes.get(&node).cloned() {
                        lab.apply(Command::NodeDead { node, generation: known.generation });
                    }
                }
                Step::Removed(node) => {
                    let node = NodeId(node);
                    lab.apply(Command::RemoveNode { node, lost: Default::default() });
                    lab.all_see_the_voters();
                    builds.retain(|node, _| lab.state.nodes.contains_key(node));
                }
                Step::Joins(build) => {
                    let n = lab.state.last_node + 1;
                    let command = Command::AdmitNode {
                        name: format!("n{n}"),
                        agent_addr: format!("10.0.0.{n}:7400"),
                        engine_addr: format!("10.0.0.{n}:7401"),
                        witness: false,
                        nonce: n.into(),
                        replace: false,
                        level: build,
                        by: None,
                    };
                    let outcome = lab.apply(command);
                    prop_assert_eq!(outcome.is_ok(), build >= lab.state.level, "{:?}", outcome);
                    if let Outcome::NodeAdded { node, .. } = outcome {
                        builds.insert(node, build);
                        lab.apply(Command::SeatNode { node });
                        lab.all_see_the_voters();
                    }
                }
                Step::Lead => {
                    if let Some(level) = lab.state.next_level() {
                        lab.done(Command::RaiseLevel { level });
                        prop_assert_eq!(lab.state.next_level(), None);
                    }
                }
            }
            prop_assert!(lab.state.level >= before, "it fell");
            if lab.state.level > before {
                // Every node ran at least this build when it last spoke, or will not start.
                let behind = lab.state.nodes.values().find(|node| node.level < lab.state.level);
                prop_assert!(behind.is_none(), "{:?}", behind);
                let runs = builds.iter().find(|(node, build)| {
                    lab.state.nodes[node].level == **build && **build < lab.state.level
                });
                prop_assert!(runs.is_none(), "{:?}", runs);
            }
        }
    }
}
