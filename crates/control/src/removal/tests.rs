use crate::State;
use crate::era::Anew;
use crate::state::{Command, Entry, Outcome, ResourceSpec, Settings};
use mainstay_types::{
    Choices, Code, ConfigVersion, Epoch, Incarnation, NodeId, NodeStatus, Problem, ResourceId,
};
use std::collections::BTreeSet;

/// A cluster of nodes a, b, … with the numbers 1, 2, …
pub(crate) struct Lab {
    pub state: State,
}

const DB: ResourceId = ResourceId(1);

impl Lab {
    pub(crate) fn new(nodes: u32) -> Self {
        let mut lab = Self { state: State::default() };
        let settings = Settings::default();
        lab.done(Command::InitCluster { id: 1, name: "c".into(), settings });
        for n in 1..=nodes {
            lab.done(Command::AddNode {
                name: name(n),
                agent_addr: format!("10.0.0.{n}:7400"),
                engine_addr: format!("10.0.0.{n}:7401"),
                voter: true,
                witness: false,
                nonce: n.into(),
            });
            lab.all_see_the_voters();
        }
        lab
    }

    pub(crate) fn apply(&mut self, command: Command) -> Outcome {
        let outcome = self.state.apply(Entry { at_ms: 7, command });
        self.state.check().expect("the invariants hold");
        outcome
    }

    pub(crate) fn done(&mut self, command: Command) {
        let outcome = self.apply(command.clone());
        assert!(outcome.is_ok(), "{command:?}: {outcome:?}");
    }

    fn refused(&mut self, command: Command) -> Problem {
        let before = self.state.clone();
        let Outcome::Refused(problem) = self.apply(command.clone()) else {
            panic!("{command:?} was not refused");
        };
        assert_eq!(self.state, before, "a refusal changes nothing");
        problem
    }

    pub(crate) fn all_see_the_voters(&mut self) {
        let voters_version = self.state.voters_version;
        for node in self.state.nodes.keys().copied().collect::<Vec<_>>() {
            if self.state.alive(node) {
                self.apply(Command::VotersSeen { node, voters_version });
            }
        }
    }

    pub(crate) fn admission(&self, name: &str, replace: bool) -> Command {
        let n = self.state.last_node + 1;
        Command::AdmitNode {
            name: name.into(),
            agent_addr: format!("10.0.0.{n}:7400"),
            engine_addr: format!("10.0.0.{n}:7401"),
            witness: false,
            nonce: n.into(),
            replace,
            level: self.state.level,
            by: None,
        }
    }

    pub(crate) fn join(&mut self, name: &str) -> NodeId {
        self.done(self.admission(name, false));
        let node = NodeId(self.state.last_node);
        self.done(Command::SeatNode { node });
        self.all_see_the_voters();
        node
    }

    pub(crate) fn dies(&mut self, node: u32) {
        let generation = self.state.nodes[&NodeId(node)].generation;
        self.done(Command::NodeDead { node: NodeId(node), generation });
    }

    pub(crate) fn returns(&mut self, node: u32) {
        let generation = self.state.nodes[&NodeId(node)].generation;
        self.done(Command::NodeRejoin { node: NodeId(node), generation });
    }

    pub(crate) fn remove(&mut self, node: u32) {
        self.done(removal(node));
        self.all_see_the_voters();
    }

    /// A resource with replicas on these nodes, all in sync, and the first of them primary.
    fn resource(&mut self, name: &str, nodes: &[u32]) -> ResourceId {
        let replicas: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
        let preferred = vec![replicas[0]];
        let spec = ResourceSpec {
            volumes: vec![64 << 20],
            journal_bytes: 64 << 20,
            replicas: replicas.clone(),
            preferred,
        };
        self.done(Command::CreateResource {
            name: name.into(),
            spec,
            choices: Choices::default(),
            origin: None,
        });
        let resource = ResourceId(self.state.last_resource);
        for node in &replicas {
            let version = self.version(resource);
            let incarnation = Incarnation(u64::from(node.0) + 100);
            self.done(Command::ReplicaReady { resource, version, node: *node, incarnation });
        }
        let (expect_version, reason) = (self.version(resource), String::new());
        let (by, to) = (replicas[0], replicas[0]);
        if self.state.resources[&resource].record.primary.is_none() {
            self.done(Command::Promote { resource, expect_version, by, to, reason });
        }
        assert_eq!(self.state.resources[&resource].record.iss.len(), nodes.len());
        resource
    }

    fn version(&self, resource: ResourceId) -> ConfigVersion {
        self.state.resources[&resource].record.version
    }

    fn in_sync(&self, resource: ResourceId) -> Vec<u32> {
        self.state.resources[&resource].record.iss.iter().map(|member| member.node.0).collect()
    }
}

fn name(n: u32) -> String {
    char::from_u32(u32::from(b'a') + n - 1).expect("a letter").to_string()
}

fn removal(node: u32) -> Command {
    Command::RemoveNode { node: NodeId(node), lost: BTreeSet::new() }
}

#[test]
fn a_dead_node_is_removed_with_its_replicas_and_its_vote_and_its_number_is_not_used_again() {
    let mut lab = Lab::new(3);
    lab.resource("db", &[1, 2, 3]);
    lab.dies(3);
    let version = lab.state.voters_version;
    lab.remove(3);
    assert_eq!(lab.in_sync(DB), [1, 2]);
    assert_eq!(lab.state.resources[&DB].spec.replicas, [NodeId(1), NodeId(2)]);
    assert_eq!(lab.state.voters().len(), 2);
    assert_eq!(lab.state.voters_version, version + 1);
    assert!(lab.state.is_removed(NodeId(3)) && !lab.state.is_removed(NodeId(4)));
    assert_eq!(lab.state.node_name(NodeId(3)), "c");
    let back = Command::NodeRejoin { node: NodeId(3), generation: 1 };
    assert_eq!(lab.apply(back), Outcome::Conflict { record: None });
    assert_eq!(lab.apply(removal(3)), Outcome::Unchanged, "a repeated command");
    assert_eq!(lab.join("c"), NodeId(4));
    let late = Command::ReplicaReady {
        resource: DB,
        version: lab.version(DB),
        node: NodeId(3),
        incarnation: Incarnation(5),
    };
    lab.apply(late);
}

#[test]
fn a_living_node_is_removed_unless_it_is_primary_or_has_the_last_complete_copy() {
    let mut lab = Lab::new(3);
    lab.resource("db", &[1, 2]);
    let refused = lab.refused(removal(1));
    assert_eq!(refused.code, Code::IsPrimary);
    assert!(refused.remedy.contains("mainstay resource move db"), "{}", refused.remedy);
    let service = mainstay_ha::ServiceSpec::parse("name='s'\nresource='db'\n[mount]\npath='/srv/s'\n")
        .expect("it is right");
    lab.done(Command::ApplyService { spec: service });
    assert!(lab.refused(removal(1)).remedy.contains("mainstay service move s --to"));
    lab.done(removal(2));
    assert_eq!(lab.in_sync(DB), [1]);
}

#[test]
fn a_dead_node_with_the_last_complete_copy_is_not_removed() {
    let mut lab = Lab::new(3);
    lab.resource("db", &[1, 2]);
    lab.dies(2);
    assert_eq!(lab.in_sync(DB), [1]);
    lab.returns(2);
    lab.dies(1);
    let refused = lab.refused(removal(1));
    assert_eq!(refused.code, Code::LastCopy);
    assert!(refused.remedy.contains("force-promote db"), "{}", refused.remedy);
}

#[test]
fn the_only_replica_goes_with_its_node_only_if_the_operator_names_it() {
    let mut lab = Lab::new(3);
    lab.resource("db", &[1, 2]);
    let scratch = lab.resource("scratch", &[3]);
    lab.dies(3);
    let refused = lab.refused(removal(3));
    assert_eq!(refused.code, Code::LastReplica);
    assert!(refused.remedy.contains("--force") && refused.message.contains("scratch"));
    assert_eq!(lab.state.lost_with(NodeId(3)), BTreeSet::from([scratch]));
    let stale = Command::RemoveNode { node: NodeId(2), lost: BTreeSet::from([scratch]) };
    assert_eq!(lab.refused(stale).code, Code::Conflict);
    lab.done(Command::RemoveNode { node: NodeId(3), lost: BTreeSet::from([scratch]) });
    assert!(lab.state.resource_by_name("scratch").is_none());
    assert_eq!(lab.in_sync(DB), [1, 2]);
}

#[test]
fn a_living_node_that_is_one_of_two_voters_is_removed_and_a_dead_one_is_not() {
    let mut lab = Lab::new(2);
    let refused = lab.refused(removal(2));
    assert_eq!(refused.code, Code::FeatureLevel, "older builds would refuse the entry");
    assert!(refused.message.ends_with("a, b have an older build"), "{refused}");
    for node in [1, 2] {
        lab.done(Command::NodeLevel { node: NodeId(node), level: 1 });
    }
    assert_eq!(lab.refused(removal(2)).code, Code::FeatureLevel);
    lab.done(Command::RaiseLevel { level: 1 });
    let mut dead = Lab { state: lab.state.clone() };
    dead.dies(2);
    let refused = dead.refused(removal(2));
    assert_eq!(refused.code, Code::VoteNeeded);
    assert!(refused.message.contains("both have to confirm"), "{refused}");
    let refused = dead.refused(removal(1));
    assert_eq!(refused.code, Code::VoteNeeded, "the other one is dead");
    lab.remove(2);
    assert_eq!(lab.state.voters(), BTreeSet::from([NodeId(1)]));
    assert!(lab.state.is_removed(NodeId(2)));
    assert_eq!(lab.refused(removal(1)).code, Code::LastNode);
    // And a second node joins again.
    lab.join("b");
    assert_eq!(lab.state.voters(), BTreeSet::from([NodeId(1), NodeId(3)]));
}

#[test]
fn a_node_whose_vote_the_living_need_is_not_removed_and_voters_change_one_at_a_time() {
    let mut lab = Lab::new(3);
    lab.dies(3);
    let refused = lab.refused(removal(2));
    assert_eq!(refused.code, Code::VoteNeeded);
    assert!(refused.message.contains("c is dead") && refused.remedy.contains("node remove c"));
    lab.remove(3);
    let mut lab = Lab::new(1);
    assert_eq!(lab.refused(removal(1)).code, Code::LastNode);
    let mut lab = Lab::new(5);
    lab.done(removal(5));
    // The others still count by five voters.
    assert_eq!(lab.refused(removal(4)).code, Code::MembershipSettling);
    lab.all_see_the_voters();
    lab.done(removal(4));
}

#[test]
fn a_node_that_asked_to_join_and_never_voted_is_removed() {
    let mut lab = Lab::new(1);
    lab.done(lab.admission("b", false));
    lab.done(removal(2));
    assert!(lab.state.is_removed(NodeId(2)));
    assert_eq!(lab.apply(Command::SeatNode { node: NodeId(2) }), Outcome::Unchanged);
    assert_eq!(lab.join("b"), NodeId(3));
}

#[test]
fn a_client_a_move_and_a_deletion_end_with_the_node() {
    let mut lab = Lab::new(4);
    let db = lab.resource("db", &[1, 2]);
    lab.done(Command::AttachResource { resource: db, node: NodeId(3), wait_ms: 5_000, take_over: false });
    lab.done(Command::MoveReplica { resource: db, from: NodeId(2), to: NodeId(4) });
    let old = lab.resource("old", &[1, 3]);
    lab.done(Command::DeleteResource { resource: old });
    lab.done(Command::ReplicaGone { resource: old, node: NodeId(1) });
    lab.remove(3);
    assert_eq!(lab.state.resources[&db].record.attached, None);
    assert!(!lab.state.resources.contains_key(&old), "nothing waits for the removed node");
    lab.remove(4);
    assert!(lab.state.resources[&db].moving.is_empty());
    assert_eq!(lab.in_sync(db), [1, 2]);
}

#[test]
fn enough_replicas_remain_for_the_copies_that_are_wanted() {
    let mut lab = Lab::new(3);
    let db = lab.resource("db", &[1, 2]);
    let changes = [(mainstay_types::Key::MinCopies, Some(2))].into();
    lab.done(Command::ChangeSettings { resource: Some(db), version: None, changes });
    assert_eq!(lab.refused(removal(2)).code, Code::TooFewReplicas);
}

#[test]
fn a_machine_takes_the_name_and_the_replicas_of_a_dead_node_when_it_is_seated() {
    let mut lab = Lab::new(3);
    let db = lab.resource("db", &[1, 3]);
    let admission = lab.admission("c", true);
    assert_eq!(lab.refused(admission).code, Code::NodeAlive);
    assert_eq!(lab.refused(lab.admission("x", true)).code, Code::UnknownNode);
    lab.dies(3);
    assert_eq!(lab.refused(lab.admission("c", false)).code, Code::NameTaken);
    lab.done(lab.admission("c", true));
    let new = NodeId(4);
    assert_eq!(lab.state.node_by_name("c").map(|node| node.id), Some(NodeId(3)), "until it is seated");
    assert_eq!(lab.refused(lab.admission("c", true)).code, Code::NameTaken, "a third machine");
    lab.all_see_the_voters();
    lab.done(Command::SeatNode { node: new });
    assert!(lab.state.is_removed(NodeId(3)));
    assert_eq!(lab.state.node_by_name("c").map(|node| node.id), Some(new));
    assert_eq!(lab.state.resources[&db].spec.replicas, [NodeId(1), new]);
    // One change of voters: the old vote has gone, and the new one comes by an entry of its own.
    assert_eq!(lab.state.voters(), BTreeSet::from([NodeId(1), NodeId(2)]));
    lab.all_see_the_voters();
    let vote = crate::votes::next_vote(&lab.state, NodeId(1), |_| false, |_| true);
    assert_eq!(vote, Some(Command::SetVote { node: new, votes: true }));
}

#[test]
fn a_machine_that_gives_up_joining_leaves_the_dead_node_and_one_that_returns_is_not_replaced() {
    let mut lab = Lab::new(3);
    lab.resource("db", &[1, 3]);
    lab.dies(3);
    let before = lab.state.nodes.clone();
    lab.done(lab.admission("c", true));
    lab.done(Command::WithdrawNode { nonce: 4 });
    assert_eq!(lab.state.nodes, before);
    lab.done(lab.admission("c", true));
    lab.returns(3);
    assert_eq!(lab.refused(Command::SeatNode { node: NodeId(5) }).code, Code::NodeAlive);
}

#[test]
fn another_member_takes_over_the_replicas_of_a_dead_node() {
    let mut lab = Lab::new(4);
    let db = lab.resource("db", &[1, 2]);
    let both = lab.resource("both", &[1, 2, 4]);
    let replace = |node, by| Command::ReplaceNode { node: NodeId(node), by: NodeId(by) };
    assert_eq!(lab.refused(replace(2, 4)).code, Code::NodeAlive);
    lab.dies(2);
    assert_eq!(lab.refused(replace(2, 2)).code, Code::NotEligible);
    lab.done(replace(2, 4));
    assert_eq!(lab.state.resources[&db].spec.replicas, [NodeId(1), NodeId(4)]);
    assert_eq!(lab.state.resources[&both].spec.replicas, [NodeId(1), NodeId(4)]);
    assert_eq!(lab.apply(replace(2, 4)), Outcome::Unchanged);
}

#[test]
fn a_member_moves_to_a_free_address() {
    let mut lab = Lab::new(3);
    let set = |node, host: &str| Command::SetAddress {
        node: NodeId(node),
        agent_addr: format!("{host}:7400"),
        engine_addr: format!("{host}:7401"),
    };
    assert_eq!(lab.refused(set(3, "10.0.0.1")).code, Code::AddressTaken);
    assert_eq!(lab.refused(set(3, "127.0.0.1")).code, Code::BadAddress);
    assert_eq!(lab.refused(set(3, "0.0.0.0")).code, Code::BadAddress);
    lab.done(set(3, "10.0.9.3"));
    assert_eq!(lab.state.nodes[&NodeId(3)].agent_addr, "10.0.9.3:7400");
    assert_eq!(lab.apply(set(3, "10.0.9.3")), Outcome::Unchanged);
    lab.done(set(2, "10.0.0.3"));
}

#[test]
fn after_a_lost_majority_the_cluster_goes_on_with_one_voter_and_serves_only_what_is_complete() {
    let mut lab = Lab::new(3);
    let (db, other) = (lab.resource("db", &[2, 1]), lab.resource("other", &[2, 3]));
    let (epoch, before) = (lab.state.resources[&db].record.epoch, lab.version(db));
    let lacking = lab.state.begin_anew(9, NodeId(1), 77, Anew::MajorityLost);
    lab.state.check().expect("the invariants hold");
    assert_eq!(lacking, ["other"]);
    assert_eq!(lab.state.voters(), BTreeSet::from([NodeId(1)]));
    assert_eq!(lab.state.cluster.as_ref().map(|cluster| cluster.era), Some(77));
    let record = &lab.state.resources[&db].record;
    assert_eq!(record.primary, Some(NodeId(1)));
    assert!(record.epoch > Epoch(epoch.0 + 1000) && record.version > before);
    assert_eq!(lab.in_sync(db), [1]);
    let record = &lab.state.resources[&other].record;
    assert_eq!(record.primary, None);
    assert!(lab.state.nodes.values().all(|node| node.id == NodeId(1) || node.status == NodeStatus::Dead));
    // The others can be removed and replaced, once what only they have is given up by name.
    let refused = lab.refused(removal(3));
    assert_eq!(refused.code, Code::LastCopy);
    assert!(refused.remedy.contains("mainstay resource delete other"), "{}", refused.remedy);
    lab.done(Command::DeleteResource { resource: other });
    lab.remove(3);
    lab.done(lab.admission("b", true));
}

#[test]
fn after_a_backup_was_put_back_nothing_is_served_that_others_may_have_written_since() {
    let mut lab = Lab::new(3);
    let (db, own) = (lab.resource("db", &[1, 2]), lab.resource("own", &[1]));
    let lacking = lab.state.begin_anew(9, NodeId(1), 77, Anew::Restored);
    lab.state.check().expect("the invariants hold");
    assert_eq!(lacking, ["db"]);
    assert_eq!(lab.state.resources[&db].record.primary, None);
    assert_eq!(lab.state.cannot_force(db, NodeId(1)), None, "an operator may go on from it");
    assert_eq!(lab.state.resources[&own].record.primary, Some(NodeId(1)));
}
