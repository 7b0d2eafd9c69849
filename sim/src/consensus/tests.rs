use super::*;
use crate::agent::initial_state;
use crate::plan::{Away, Shape};
use mainstay_types::Severity;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Net {
    down: BTreeSet<NodeId>,
    cut: BTreeSet<(NodeId, NodeId)>,
}

impl Links for Net {
    fn running(&self, node: NodeId) -> bool {
        !self.down.contains(&node)
    }

    fn reachable(&self, from: NodeId, to: NodeId) -> bool {
        !self.cut.contains(&(from, to))
    }
}

impl Net {
    fn isolate(&mut self, node: NodeId, of: u32) {
        for other in (1..=of).map(NodeId) {
            self.cut.insert((node, other));
            self.cut.insert((other, node));
        }
    }
}

/// Deliveries that a node has had so far.
struct Delivered {
    index: u64,
    state: State,
    leads: bool,
    snapshots: u64,
}

struct Lab {
    consensus: Consensus,
    net: Net,
    now_us: u64,
    events: u64,
    told: BTreeMap<NodeId, Delivered>,
    /// Entry that was delivered under each index; every node must get the same one.
    seen: BTreeMap<u64, Arc<Entry>>,
    next_note: u64,
}

fn shape(nodes: u32) -> Shape {
    Shape {
        nodes,
        resources: Vec::new(),
        clock_ppm: Vec::new(),
        lease_ms: 2000,
        heartbeat_ms: 200,
        margin_ms: 50,
        latency_us: 200,
        disk_us: 100,
        datagram_loss: 0,
        datagram_duplicate: 0,
        datagram_late: 0,
        proposal_loss: 0,
        away: Away::default(),
        devices_stay: false,
    }
}

impl Lab {
    fn new(nodes: u32, seed: u64) -> Self {
        let state = initial_state(&shape(nodes));
        let voters: Vec<NodeId> = (1..=nodes).map(NodeId).collect();
        let told =
            |node: &NodeId| (*node, Delivered { index: 0, state: state.clone(), leads: false, snapshots: 0 });
        Self {
            told: voters.iter().map(told).collect(),
            consensus: Consensus::new(voters, 200, state, Random::new(seed)),
            net: Net::default(),
            now_us: 0,
            events: 0,
            seen: BTreeMap::new(),
            next_note: 0,
        }
    }

    /// With a leader.
    fn led(nodes: u32, seed: u64) -> Self {
        let mut lab = Self::new(nodes, seed);
        lab.run(2_000_000);
        assert!(lab.consensus.leader().is_some());
        lab
    }

    fn run(&mut self, us: u64) {
        let until = self.now_us + us;
        while let Some(at_us) = self.consensus.next_event_us().filter(|at| *at <= until) {
            self.now_us = self.now_us.max(at_us);
            self.events += 1;
            self.consensus.advance(self.now_us, &self.net);
            self.take();
        }
        self.now_us = until;
    }

    fn take(&mut self) {
        while let Some(Deliver { to, what }) = self.consensus.poll() {
            let told = self.told.get_mut(&to).unwrap();
            match what {
                Delivery::Committed { index, entry } => {
                    assert!(self.net.running(to), "{to} learns although it is down");
                    assert_eq!(index, told.index + 1, "{to} misses something");
                    let known = self.seen.entry(index).or_insert_with(|| entry.clone());
                    assert!(Arc::ptr_eq(known, &entry), "two entries at {index}");
                    told.state.apply(Entry::clone(&entry));
                    told.index = index;
                }
                Delivery::Snapshot { index, state } => {
                    assert!(index > told.index, "a snapshot goes back");
                    (told.index, told.state) = (index, *state);
                    told.snapshots += 1;
                }
                Delivery::Leader(leads) => {
                    assert_ne!(told.leads, leads, "{to} is told twice");
                    told.leads = leads;
                }
            }
        }
    }

    /// Proposes something that can be found again.
    fn note(&mut self, from: NodeId) -> String {
        self.next_note += 1;
        let text = format!("note {}", self.next_note);
        let command = Command::Note { severity: Severity::Info, subject: "test".into(), text: text.clone() };
        self.consensus.submit(self.now_us, from, command, &self.net);
        text
    }

    fn times(&self, text: &str) -> usize {
        self.consensus.state().events.iter().filter(|event| event.text == text).count()
    }

    fn leader(&self) -> NodeId {
        self.consensus.leader().unwrap()
    }

    fn others(&self) -> Vec<NodeId> {
        self.told.keys().copied().filter(|node| *node != self.leader()).collect()
    }

    fn stop(&mut self, node: NodeId) {
        self.net.down.insert(node);
    }

    fn start(&mut self, node: NodeId) {
        self.net.down.remove(&node);
        let told = self.told.get_mut(&node).unwrap();
        let (Log { applied: index, .. }, state) = self.consensus.restarted(node, told.index);
        assert!(index <= told.index, "{node} starts with what it never had");
        *told = Delivered { index, state, leads: false, snapshots: told.snapshots };
    }

    fn assert_all_equal(&self) {
        for (node, told) in &self.told {
            assert_eq!(told.index, self.consensus.committed(), "{node} lags");
            assert_eq!(told.state, *self.consensus.state(), "{node} has another state");
        }
    }
}

#[test]
fn entries_come_to_all_in_order_and_once() {
    for seed in 0..20 {
        let mut lab = Lab::led(3, seed);
        let mut notes = Vec::new();
        for n in 0..100 {
            notes.push(lab.note(NodeId(n % 3 + 1)));
            lab.run(u64::from(n) * 7);
        }
        lab.run(1_000_000);
        lab.assert_all_equal();
        for note in notes {
            assert_eq!(lab.times(&note), 1, "seed {seed}: {note}");
        }
    }
}

#[test]
fn nothing_that_was_committed_is_lost_or_repeated() {
    let (mut lost, mut inherited) = (0, 0);
    for seed in 0..60 {
        let mut lab = Lab::led(5, seed);
        let mut random = Random::new(seed ^ 0xabcd);
        for _ in 0..150 {
            let node = NodeId(random.between(1, 5) as u32);
            match random.below(12) {
                0 => lab.stop(node),
                1 | 2 if lab.net.down.contains(&node) => lab.start(node),
                3 => lab.net.isolate(node, 5),
                4 => lab.net.cut.clear(),
                5 => drop(lab.consensus.leader_change(lab.now_us, &lab.net)),
                6 => lab.consensus.lose_proposals(),
                7 => lab.consensus.snapshot(node),
                _ => drop(lab.note(node)),
            }
            lab.run(random.below(300_000));
        }
        lab.net.cut.clear();
        for node in std::mem::take(&mut lab.net.down) {
            lab.start(node);
        }
        lab.run(5_000_000);
        lab.assert_all_equal();
        for (index, entry) in &lab.seen {
            assert!(
                Arc::ptr_eq(&lab.consensus.log[*index as usize - 1], entry),
                "seed {seed}: {index} is lost"
            );
        }
        for n in 1..=lab.next_note {
            assert!(lab.times(&format!("note {n}")) <= 1, "seed {seed}: note {n} took effect twice");
        }
        lost += lab.consensus.tally().lost;
        inherited += lab.consensus.tally().inherited;
    }
    assert!(lost > 0 && inherited > 0, "lost {lost}, inherited {inherited}");
}

#[test]
fn a_proposal_in_flight_at_a_leader_change_is_lost_or_committed() {
    let (mut lost, mut committed) = (0, 0);
    for seed in 0..100 {
        let mut lab = Lab::led(3, seed);
        let leader = lab.leader();
        let note = lab.note(leader);
        lab.run(1);
        assert_eq!(lab.times(&note), 0, "it takes a round trip");
        // Its proposer dies with it and cannot say it again.
        lab.stop(leader);
        lab.run(5_000_000);
        assert_ne!(lab.leader(), leader);
        if lab.times(&note) == 1 { committed += 1 } else { lost += 1 }
    }
    assert!(lost > 10 && committed > 10, "lost {lost}, committed {committed}");
}

#[test]
fn a_leader_in_the_minority_commits_nothing() {
    for seed in 0..30 {
        let mut lab = Lab::led(3, seed);
        let old = lab.leader();
        let other = lab.others()[0];
        lab.net.isolate(old, 3);
        let before = lab.consensus.committed();
        let note = lab.note(old);
        lab.run(300_000);
        assert!(lab.told[&old].leads, "seed {seed}: it cannot know yet");
        assert_eq!(lab.consensus.committed(), before, "seed {seed}");
        lab.run(2_700_000);
        let here = lab.note(other);
        lab.run(1_000_000);
        assert_ne!(lab.leader(), old, "seed {seed}");
        assert!(!lab.told[&old].leads, "seed {seed}: it has missed its majority for long");
        assert_eq!((lab.times(&note), lab.times(&here)), (0, 1), "seed {seed}");
        assert_eq!(lab.told[&old].index, before, "seed {seed}: it is cut off and learns nothing");
    }
}

#[test]
fn two_nodes_may_take_themselves_for_the_leader_for_a_while() {
    let mut both = 0;
    for seed in 0..50 {
        let mut lab = Lab::led(3, seed);
        lab.net.isolate(lab.leader(), 3);
        for _ in 0..200 {
            lab.run(10_000);
            if lab.told.values().filter(|told| told.leads).count() == 2 {
                both += 1;
                break;
            }
        }
    }
    assert!(both > 10, "{both}");
}

#[test]
fn without_a_majority_no_node_leads() {
    let mut lab = Lab::led(3, 7);
    for node in lab.others() {
        lab.stop(node);
    }
    let last = lab.leader();
    let note = lab.note(last);
    lab.run(3_000_000);
    assert_eq!(lab.consensus.leader(), None);
    assert!(!lab.told[&last].leads);
    assert_eq!(lab.times(&note), 0);
}

#[test]
fn one_way_links_are_no_majority() {
    let mut lab = Lab::led(3, 3);
    let (old, others) = (lab.leader(), lab.others());
    for other in &others {
        lab.net.cut.insert((*other, old));
    }
    let before = lab.consensus.committed();
    lab.note(old);
    lab.run(300_000);
    assert_eq!(lab.consensus.committed(), before, "the answer of no operator comes back");
    lab.run(2_000_000);
    assert!(others.contains(&lab.leader()));
}

#[test]
fn only_a_node_with_every_entry_becomes_leader() {
    for seed in 0..50 {
        let mut lab = Lab::led(3, seed);
        let (old, others) = (lab.leader(), lab.others());
        lab.net.isolate(others[1], 3);
        let note = lab.note(old);
        lab.run(100_000);
        assert_eq!(lab.times(&note), 1);
        lab.stop(old);
        lab.net.cut.clear();
        lab.run(3_000_000);
        assert_eq!(lab.leader(), others[0], "seed {seed}: the other one lacks an entry");
        assert_eq!(lab.told[&others[1]].index, lab.consensus.committed(), "seed {seed}");
    }
}

#[test]
fn a_node_that_lags_far_or_is_chosen_gets_a_snapshot() {
    let mut lab = Lab::led(3, 1);
    let (leader, late, chosen) = (lab.leader(), lab.others()[0], lab.others()[1]);
    lab.stop(late);
    lab.consensus.snapshot(chosen);
    for _ in 0..=SNAPSHOT_LAG {
        lab.note(leader);
    }
    lab.run(1_000_000);
    assert_eq!((lab.told[&chosen].snapshots, lab.told[&late].snapshots), (1, 0));
    lab.net.down.clear();
    lab.run(1_000_000);
    assert_eq!((lab.told[&chosen].snapshots, lab.told[&late].snapshots), (1, 1));
    lab.assert_all_equal();
}

#[test]
fn a_restarted_node_begins_with_its_entries_or_fewer() {
    let mut older = 0;
    for seed in 0..30 {
        let mut lab = Lab::led(3, seed);
        for _ in 0..CHECKPOINT_EVERY + 10 {
            lab.note(lab.leader());
            lab.run(5_000);
        }
        lab.run(1_000_000);
        let node = lab.others()[0];
        let had = lab.told[&node].index;
        lab.stop(node);
        lab.start(node);
        let Delivered { index, state, .. } = &lab.told[&node];
        let mut replayed = initial_state(&shape(3));
        for entry in &lab.consensus.log[..*index as usize] {
            replayed.apply(Entry::clone(entry));
        }
        assert_eq!(replayed, *state, "seed {seed}");
        older += u64::from(*index < had);
        lab.run(1_000_000);
        lab.assert_all_equal();
    }
    assert!(older > 3 && older < 27, "{older} of 30 have forgotten something");
}

#[test]
fn lost_proposals_are_lost_or_late() {
    let (mut lost, mut late) = (0, 0);
    for seed in 0..60 {
        let mut lab = Lab::led(3, seed);
        lab.consensus.lose_proposals();
        let note = lab.note(lab.others()[0]);
        lab.run(50_000);
        assert_eq!(lab.times(&note), 0, "seed {seed}");
        lab.run(5_000_000);
        if lab.times(&note) == 1 { late += 1 } else { lost += 1 }
    }
    assert!(lost > 10 && late > 10, "lost {lost}, late {late}");
}

#[test]
fn a_change_of_leaders_is_immediate_and_needs_a_second_node() {
    let mut lab = Lab::led(3, 9);
    let old = lab.leader();
    assert!(lab.consensus.leader_change(lab.now_us, &lab.net));
    assert_ne!(lab.leader(), old);
    lab.run(100_000);
    assert!(!lab.told[&old].leads && lab.told[&lab.leader()].leads);
    let mut alone = Lab::led(1, 9);
    assert!(!alone.consensus.leader_change(alone.now_us, &alone.net));
    let note = alone.note(NodeId(1));
    alone.run(100_000);
    assert_eq!(alone.times(&note), 1);
}

#[test]
fn an_idle_cluster_has_hardly_any_events() {
    let mut lab = Lab::led(3, 2);
    lab.note(NodeId(1));
    lab.run(1_000_000);
    let before = lab.events;
    lab.run(100_000_000);
    let per_second = (lab.events - before) / 100;
    assert!(per_second <= 4, "{per_second} events per second");
}

#[test]
fn a_leader_that_does_not_reach_a_living_voter_hands_over_once() {
    for one_way in [false, true] {
        for seed in 0..30 {
            let mut lab = Lab::led(3, seed);
            let (old, others) = (lab.leader(), lab.others());
            let (cut_off, third) = (others[0], others[1]);
            lab.net.cut.insert((cut_off, old));
            if !one_way {
                lab.net.cut.insert((old, cut_off));
            }
            lab.consensus.links_changed(lab.now_us);
            lab.run(2_700_000);
            assert_eq!(lab.leader(), old, "seed {seed}: a short silence is nothing");
            lab.run(1_000_000);
            assert_eq!(lab.leader(), third, "seed {seed}");
            let note = lab.note(cut_off);
            lab.run(1_000_000);
            assert_eq!(lab.times(&note), 1, "seed {seed}: what it proposes arrives");
            lab.assert_all_equal();
            lab.run(100_000_000);
            assert_eq!((lab.leader(), lab.consensus.tally().handovers), (third, 1), "seed {seed}");
        }
    }
}

#[test]
fn an_unreachable_voter_does_not_send_the_lead_round_and_round() {
    let mut lab = Lab::led(3, 4);
    lab.net.isolate(lab.others()[0], 3);
    lab.run(7_000_000);
    assert_eq!(lab.consensus.tally().handovers, 1);
    // In truth it counts as dead by now.
    lab.run(115_000_000);
    assert!((3..=8).contains(&lab.consensus.tally().handovers), "{:?}", lab.consensus.tally());
}
