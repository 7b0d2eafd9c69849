//! Voters that the leader reaches both ways, as the Raft core's messages show it. The leader hands
//! over when a voter is out of its reach.

use super::{TICK, node_of};
use mainstay_control::State;
use mainstay_control::handover::{Decision, Handover, Voter};
use mainstay_types::NodeId;
use raft::eraftpb::{Message, MessageType};
use raft::{RawNode, StateRole, Storage};

/// A learner that has answered and lacks at most this many entries becomes a voter, and such a
/// voter may be given the lead.
const LAG_MAX: u64 = 16;

pub(super) struct Reach {
    node: NodeId,
    handover: Handover,
    /// Time as far as this thread was awake. While it waits for the disk it hears no voter.
    awake_ms: u64,
}

impl Reach {
    pub(super) fn new(node: NodeId) -> Self {
        Self { node, handover: Handover::new(node), awake_ms: 0 }
    }

    pub(super) fn tick(&mut self) {
        self.awake_ms += TICK.as_millis() as u64;
    }

    pub(super) fn follow(&mut self) {
        self.handover.follow();
    }

    /// A message has arrived that the core is about to take.
    pub(super) fn note<S: Storage>(&mut self, raw: &RawNode<S>, message: &Message) {
        if message.term != raw.raft.term {
            return;
        }
        match message.get_msg_type() {
            // Only answers prove that the link carries both ways. A voter that hears nothing of its
            // leader asks for votes.
            MessageType::MsgHeartbeatResponse | MessageType::MsgAppendResponse => {
                if raw.raft.state == StateRole::Leader
                    && let Some(from) = node_of(message.from)
                {
                    self.handover.answered(self.awake_ms, from);
                }
            }
            MessageType::MsgTimeoutNow => self.handover.given(self.awake_ms),
            _ => {}
        }
    }

    /// Asked at every tick of a leader.
    pub(super) fn hand_over<S: Storage>(
        &mut self,
        raw: &mut RawNode<S>,
        voters: &[u64],
        state: &State,
    ) -> Option<Decision> {
        let others: Vec<Voter> = voters
            .iter()
            .filter_map(|&id| Some((id, node_of(id)?)))
            .filter(|(_, node)| *node != self.node)
            .map(|(id, node)| Voter { node, alive: state.alive(node), caught_up: is_caught_up(raw, id) })
            .collect();
        let decision = self.handover.lead(self.awake_ms, &state.settings, &others)?;
        // If the other one does not take it within an election time, the core goes on as the
        // leader.
        raw.transfer_leader(u64::from(decision.to.0));
        Some(decision)
    }
}

/// Whether `node` has acknowledged the log up to [`LAG_MAX`] entries before its committed end. One
/// that has acknowledged nothing has not, however short the log: the core counts every new member
/// as active until it first looks for silent ones.
pub(super) fn is_caught_up<S: Storage>(raw: &RawNode<S>, node: u64) -> bool {
    let committed = raw.raft.raft_log.committed;
    let progress = raw.raft.prs().get(node);
    progress.is_some_and(|progress| progress.matched > 0 && progress.matched + LAG_MAX >= committed)
}

#[cfg(test)]
mod tests {
    use super::super::core_config;
    use super::*;
    use mainstay_control::state::Node;
    use mainstay_types::NodeStatus;
    use raft::eraftpb::{ConfChange, ConfChangeType};
    use raft::storage::MemStorage;
    use std::collections::BTreeSet;

    const VOTERS: [u64; 3] = [1, 2, 3];

    /// Three Raft cores with the agent's settings, and links that can be cut one way.
    struct Lab {
        cores: Vec<(RawNode<MemStorage>, Reach)>,
        cut: BTreeSet<(u64, u64)>,
        state: State,
        handovers: Vec<(u64, u64, u64)>,
    }

    impl Lab {
        /// Node 2 leads and is heard by all.
        fn new() -> Self {
            let core = |id: &u64| {
                let node = node_of(*id).unwrap();
                let storage = MemStorage::new_with_conf_state((VOTERS.to_vec(), vec![]));
                let logger = slog::Logger::root(slog::Discard, slog::o!());
                (RawNode::new(&core_config(node, 0), storage, &logger).unwrap(), Reach::new(node))
            };
            let cores = VOTERS.iter().map(core).collect();
            let mut state = State::default();
            for id in VOTERS {
                let node = Node {
                    id: node_of(id).unwrap(),
                    name: format!("n{id}"),
                    agent_addr: String::new(),
                    engine_addr: String::new(),
                    status: NodeStatus::Alive,
                    generation: 1,
                    voter: true,
                    witness: false,
                    candidate: false,
                    replaces: None,
                    voters_seen: 0,
                    nonce: id,
                    links: mainstay_control::state::Links::default(),
                    maintenance: None,
                    level: 0,
                    cordon: None,
                };
                state.nodes.insert(node.id, node);
            }
            let mut lab = Self { cores, cut: BTreeSet::new(), state, handovers: Vec::new() };
            lab.cores[1].0.campaign().unwrap();
            lab.run_ms(10_000);
            assert_eq!((lab.leaders(), lab.handovers.len()), (vec![2, 2, 2], 0));
            lab
        }

        fn cut(&mut self, from: u64, to: u64) {
            self.cut.insert((from, to));
        }

        fn leaders(&self) -> Vec<u64> {
            self.cores.iter().map(|(raw, _)| raw.raft.leader_id).collect()
        }

        fn run_ms(&mut self, ms: u64) {
            for _ in 0..ms / TICK.as_millis() as u64 {
                for (raw, reach) in &mut self.cores {
                    reach.tick();
                    raw.tick();
                    if raw.raft.state != StateRole::Leader {
                        reach.follow();
                    } else if let Some(Decision { to, silent }) = reach.hand_over(raw, &VOTERS, &self.state) {
                        self.handovers.push((raw.raft.id, u64::from(to.0), u64::from(silent.0)));
                    }
                }
                self.exchange();
            }
        }

        fn exchange(&mut self) {
            loop {
                let mut messages = Vec::new();
                for (raw, _) in &mut self.cores {
                    while raw.has_ready() {
                        let mut ready = raw.ready();
                        messages.append(&mut ready.take_messages());
                        raw.mut_store().wl().append(ready.entries()).unwrap();
                        if let Some(hard_state) = ready.hs() {
                            raw.mut_store().wl().set_hardstate(hard_state.clone());
                        }
                        messages.append(&mut ready.take_persisted_messages());
                        let mut light = raw.advance(ready);
                        messages.append(&mut light.take_messages());
                        raw.advance_apply();
                    }
                }
                if messages.is_empty() {
                    return;
                }
                messages.retain(|message| !self.cut.contains(&(message.from, message.to)));
                for message in messages {
                    let (raw, reach) = &mut self.cores[message.to as usize - 1];
                    reach.note(raw, &message);
                    // As in the driver: a message that the core refuses is of no use.
                    drop(raw.step(message));
                }
            }
        }
    }

    /// R29: a short log must not give its vote to a node that has not received it.
    #[test]
    fn a_new_learner_is_caught_up_only_after_its_first_acknowledgement() {
        let mut lab = Lab::new();
        let (leader, _) = &mut lab.cores[1];
        assert!(leader.raft.raft_log.committed < LAG_MAX);
        let mut change = ConfChange { node_id: 4, ..ConfChange::default() };
        change.set_change_type(ConfChangeType::AddLearnerNode);
        drop(leader.apply_conf_change(&change).unwrap());
        assert!(leader.raft.prs().get(4).unwrap().recent_active, "the core has a guess of its own");
        assert!(!is_caught_up(leader, 4));
        let mut answer = Message { from: 4, to: 2, term: leader.raft.term, ..Message::default() };
        answer.set_msg_type(MessageType::MsgAppendResponse);
        answer.index = leader.raft.raft_log.last_index();
        leader.step(answer).unwrap();
        assert!(is_caught_up(leader, 4));
    }

    #[test]
    fn a_leader_out_of_touch_with_one_voter_gives_the_lead_to_the_third() {
        for cuts in [vec![(1, 2), (2, 1)], vec![(1, 2)], vec![(2, 1)]] {
            let mut lab = Lab::new();
            for (from, to) in &cuts {
                lab.cut(*from, *to);
            }
            lab.run_ms(2900);
            assert_eq!(lab.cores[1].0.raft.state, StateRole::Leader, "{cuts:?}: too early");
            lab.run_ms(300);
            assert_eq!(lab.leaders(), [3, 3, 3], "{cuts:?}");
            // A proposal of the voter that was cut off arrives, and the voter learns of it.
            let before = lab.cores[0].0.raft.raft_log.committed;
            lab.cores[0].0.propose(Vec::new(), b"shrink".to_vec()).unwrap();
            lab.run_ms(200);
            assert!(lab.cores[0].0.raft.raft_log.committed > before, "{cuts:?}");
            lab.run_ms(100_000);
            assert_eq!((lab.leaders(), lab.handovers), (vec![3, 3, 3], vec![(2, 3, 1)]), "{cuts:?}");
        }
    }

    #[test]
    fn a_leader_that_misses_only_the_dead_keeps_the_lead() {
        let mut lab = Lab::new();
        lab.state.nodes.get_mut(&NodeId(1)).unwrap().status = NodeStatus::Dead;
        lab.cut(1, 2);
        lab.cut(2, 1);
        lab.run_ms(20_000);
        assert!(lab.handovers.is_empty(), "{:?}", lab.handovers);
        assert_eq!(lab.cores[1].0.raft.state, StateRole::Leader);
    }

    #[test]
    fn an_unheard_voter_does_not_send_the_lead_round_and_round() {
        let mut lab = Lab::new();
        for other in [2, 3] {
            lab.cut(1, other);
            lab.cut(other, 1);
        }
        // It would count as dead long before.
        lab.run_ms(120_000);
        assert!((3..=8).contains(&lab.handovers.len()), "{:?}", lab.handovers);
        let mut early = Lab::new();
        early.cut(1, 2);
        early.cut(1, 3);
        early.run_ms(7000);
        assert_eq!(early.handovers, [(2, 3, 1)]);
    }
}
