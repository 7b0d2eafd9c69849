//! Model of the control plane's log. It is not Raft itself: it keeps the promises of Raft, and
//! takes every liberty that Raft leaves.
//!
//! Promises:
//! - Committed entries have one order. Every node learns them in that order, and no committed entry
//!   is lost.
//! - The leader commits an entry only while it reaches a majority in both directions.
//! - A node that becomes leader holds every committed entry.
//!
//! Liberties:
//! - A proposal gets lost or arrives late. A later leader may commit it although its proposer is
//!   gone.
//! - Two nodes may each take themselves for the leader.
//! - Nodes learn late, in bursts, or by a snapshot that skips entries.
//! - A restarted node begins with an older state than it had before.
//!
//! A proposal takes effect at most once, as in `agent/src/raft/driver.rs`, whose constants are used
//! here.
//!
//! The log sends no answer to a proposer. Agents find out from the state, as they do after
//! `ConsensusLog::submit`.

mod lead;

use crate::agent::Log;
use crate::oracle::answers;
use crate::random::Random;
use mainstay_control::State;
use mainstay_control::handover::Handover;
use mainstay_control::state::{Command, Entry, Outcome};
use mainstay_types::{ConfigVersion, NodeId, ResourceId, ResourceRecord};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An election is held when a leader was missed for this long, as the driver's ticks have it.
const ELECTION_US_MIN: u64 = 400_000;
const ELECTION_US_MAX: u64 = 800_000;
/// Pause before a leader tries again to reach another member, in microseconds.
const HEARTBEAT_US: u64 = 100_000;
/// Pause before the leader tries again to reach a member that does not hear it, in microseconds. It
/// is longer than [`HEARTBEAT_US`] because that saves events and changes no result.
const ABSENT_US: u64 = 400_000;
/// Pause between two looks at the leader while nothing else happens. [`Consensus::links_changed`]
/// looks at once.
const CHECK_US: u64 = 250_000;
/// An unanswered proposal is sent again.
const REPEAT_US: u64 = 400_000;
/// How long a submitted proposal is repeated.
const PATIENCE_US: u64 = 3_000_000;
/// Entries that a member may lack and still be given one by one. A member that lacks more is given
/// the whole state.
const SNAPSHOT_LAG: u64 = 64;
/// Number of entries between two states that are kept, so that older states can be made again.
const CHECKPOINT_EVERY: u64 = 128;
/// A restarted node's state may be this many entries older than the one that it had.
const RESTART_LAG: u64 = 4;

/// Time that wall clocks show at the beginning of a run, in milliseconds since 1970.
pub const WALL_MS: u64 = 1_700_000_000_000;

/// Agents that run, and pairs of nodes whose agents reach each other, at this moment.
pub trait Links {
    /// The node's agent runs and is not paused.
    fn running(&self, node: NodeId) -> bool;
    /// Datagrams of the agent of `from` reach the agent of `to`.
    fn reachable(&self, from: NodeId, to: NodeId) -> bool;
}

/// A record has changed.
#[derive(Clone, Debug)]
pub struct Change {
    pub record: ResourceRecord,
    /// The former primary, if it is not primary any more and counts as dead.
    pub dead: Option<NodeId>,
}

/// Something that an agent learns.
#[derive(Clone, Debug)]
pub struct Deliver {
    pub to: NodeId,
    pub what: Delivery,
}

#[derive(Clone, Debug)]
pub enum Delivery {
    /// The next entry after what the node has. Indexes count from 1.
    Committed { index: u64, entry: Arc<Entry> },
    /// Everything up to `index`.
    Snapshot { index: u64, state: Box<State> },
    /// The node takes itself for the leader, or no longer.
    Leader(bool),
}

/// Counts of what happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub elections: u64,
    /// Proposals that never take effect.
    pub lost: u64,
    /// Proposals that one leader took in and a later one committed.
    pub inherited: u64,
    pub snapshots: u64,
    /// Leaders that did not reach a living member and handed over.
    pub handovers: u64,
    /// Leaders that missed their majority when no other member had one.
    pub quorums_lost: u64,
}

#[derive(Debug)]
struct Member {
    node: NodeId,
    /// Entries up to this one are in its log.
    holds: u64,
    /// Entries up to this one were delivered.
    learned: u64,
    learn_at_us: Option<u64>,
    /// The member is to be given the whole state next time, see [`Consensus::snapshot`].
    snapshot: bool,
    /// The member takes itself for the leader.
    believes: bool,
    /// When it hears that it is not.
    corrected_at_us: Option<u64>,
    handover: Handover,
    /// How far its wall clock is off.
    wall_ms: i64,
    /// Entry up to which a removed member learns; `None`: the node was not removed.
    gone: Option<u64>,
}

#[derive(Debug)]
struct Proposal {
    from: NodeId,
    entry: Arc<Entry>,
    /// True time up to which the proposer repeats the proposal, in microseconds.
    patience_us: u64,
}

/// In the leader's log, not committed.
#[derive(Debug)]
struct Appended {
    proposal: Proposal,
    commit_at_us: u64,
    /// Members whose logs hold the entry, as bits by place in `members`.
    copies: u64,
}

/// See the top of this file.
#[derive(Debug)]
pub struct Consensus {
    members: Vec<Member>,
    latency_us: u64,
    random: Random,
    /// All committed entries applied.
    state: State,
    log: Vec<Arc<Entry>>,
    checkpoints: Vec<(u64, State)>,
    /// Place of the leader in `members`.
    leader: Option<usize>,
    /// A removed one of two voters that has not yet confirmed that the other one decides alone.
    lingering: Option<usize>,
    check_at_us: u64,
    /// Time at which a member tries to follow a leader that is missed, in microseconds.
    election_at_us: Option<u64>,
    /// Proposals on their way to a leader, with the time of arrival.
    travelling: Vec<(u64, Proposal)>,
    appended: VecDeque<Appended>,
    loss_permille: u64,
    /// Number of the next proposals that get lost or are late.
    lose: u64,
    /// Time that the next proposal is on its way, in microseconds. It is not repeated.
    late_us: Option<u64>,
    /// The newest time that the log has heard of.
    clock_us: u64,
    tally: Tally,
    deliveries: VecDeque<Deliver>,
    /// Version and primary of each record that was seen last.
    versions: BTreeMap<ResourceId, (ConfigVersion, Option<NodeId>)>,
    changes: VecDeque<Change>,
    /// Names of services that were forgotten.
    forgotten: VecDeque<String>,
    /// Answers to operators, each with the judgement of the oracle.
    answers: VecDeque<OperatorAnswer>,
}

/// The answer to an operator.
#[derive(Clone, Debug)]
pub struct OperatorAnswer {
    pub entry: Arc<Entry>,
    pub outcome: Outcome,
    /// The rule that is judged.
    pub rule: &'static str,
    pub judged: Result<&'static str, String>,
}

impl Consensus {
    /// Returns the log of `voters`, at most 64. All of them begin with `state`.
    #[must_use]
    pub fn new(voters: Vec<NodeId>, latency_us: u64, state: State, random: Random) -> Self {
        assert!(voters.len() <= 64, "copies are counted in 64 bits");
        let member = |node| Member {
            node,
            holds: 0,
            learned: 0,
            learn_at_us: None,
            snapshot: false,
            believes: false,
            corrected_at_us: None,
            handover: Handover::new(node),
            wall_ms: 0,
            gone: None,
        };
        Self {
            members: voters.into_iter().map(member).collect(),
            latency_us,
            random,
            checkpoints: vec![(0, state.clone())],
            state,
            log: Vec::new(),
            leader: None,
            lingering: None,
            check_at_us: 0,
            election_at_us: None,
            travelling: Vec::new(),
            appended: VecDeque::new(),
            loss_permille: 0,
            lose: 0,
            late_us: None,
            clock_us: 0,
            tally: Tally::default(),
            deliveries: VecDeque::new(),
            versions: BTreeMap::new(),
            changes: VecDeque::new(),
            forgotten: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// Share of proposals that are lost before they arrive, or arrive seconds late.
    pub fn set_loss(&mut self, permille: u64) {
        self.loss_permille = permille;
    }

    /// The node that leads, as long as it can.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.leader.map(|place| self.members[place].node)
    }

    /// The truth: every committed entry applied.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Number of committed entries.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.log.len() as u64
    }

    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// An agent proposes, and does not wait.
    pub fn submit(&mut self, at_us: u64, from: NodeId, command: Command, links: &dyn Links) {
        self.clock_us = self.clock_us.max(at_us);
        if !links.running(from) {
            return;
        }
        let entry = Arc::new(Entry { at_ms: self.wall_ms(from, at_us), command });
        let mut proposal = Proposal { from, entry, patience_us: at_us + PATIENCE_US };
        let mut arrives_us = at_us;
        if self.leader() != Some(from) {
            arrives_us += self.random.around(self.latency_us);
        }
        if let Some(late_us) = self.late_us.take() {
            proposal.patience_us = at_us;
            self.travelling.push((arrives_us + late_us, proposal));
            return;
        }
        let chosen = self.lose > 0;
        self.lose = self.lose.saturating_sub(1);
        if chosen || self.random.permille(self.loss_permille) {
            if self.random.coin() {
                self.tally.lost += 1;
                return;
            }
            // The proposal is somewhere on the way, and its proposer does not send it again.
            arrives_us += self.random.between(100_000, 3_000_000);
            proposal.patience_us = at_us;
        }
        self.travelling.push((arrives_us, proposal));
    }

    /// F42: the wall clock of this node steps by this many milliseconds. The step shows in the
    /// node's proposals.
    pub fn step_wall(&mut self, node: NodeId, by_ms: i64) {
        if let Some(place) = self.place(node) {
            self.members[place].wall_ms += by_ms;
        }
    }

    /// Returns the time that the wall clock of this node shows, in milliseconds since 1970.
    #[must_use]
    pub fn wall_ms(&self, node: NodeId, at_us: u64) -> u64 {
        let off_ms = self.place(node).map_or(0, |place| self.members[place].wall_ms);
        (WALL_MS + at_us / 1000).saturating_add_signed(off_ms)
    }

    /// When [`Consensus::advance`] is due.
    #[must_use]
    pub fn next_event_us(&self) -> Option<u64> {
        let arrival = self.travelling.iter().map(|(at_us, _)| *at_us).min();
        let commit = self.appended.front().filter(|_| self.leader.is_some()).map(|first| first.commit_at_us);
        let members = self.members.iter().flat_map(|member| [member.learn_at_us, member.corrected_at_us]);
        members.chain([arrival, commit, self.election_at_us, Some(self.check_at_us)]).flatten().min()
    }

    /// Lets everything happen that is due.
    pub fn advance(&mut self, at_us: u64, links: &dyn Links) {
        self.clock_us = self.clock_us.max(at_us);
        self.watch_leader(at_us, links);
        self.arrive(at_us, links);
        self.commit(at_us, links);
        self.learn(at_us, links);
        for place in 0..self.members.len() {
            if self.members[place].corrected_at_us.is_some_and(|due| due <= at_us) {
                self.tell_leader(place, false);
            }
        }
    }

    /// The next thing that an agent learns, in order.
    pub fn poll(&mut self) -> Option<Deliver> {
        self.deliveries.pop_front()
    }

    /// Tells the model that an agent has started or stopped, or that a link has changed. Calling
    /// this is optional; it makes the times of elections more exact.
    pub fn links_changed(&mut self, at_us: u64) {
        self.check_at_us = self.check_at_us.min(at_us);
    }

    /// Starts the agent of `node` again, which had applied entries up to `applied` before. Returns
    /// the entries in its log, and the state that it begins with.
    pub fn restarted(&mut self, node: NodeId, applied: u64) -> (Log, State) {
        // The new process does not repeat the proposals of the former one. A proposal that is on
        // its way may still arrive.
        for (_, proposal) in self.travelling.iter_mut().filter(|(_, proposal)| proposal.from == node) {
            proposal.patience_us = 0;
        }
        for appended in self.appended.iter_mut().filter(|appended| appended.proposal.from == node) {
            appended.proposal.patience_us = 0;
        }
        let back = if self.random.coin() { self.random.below(RESTART_LAG + 1) } else { 0 };
        let Some(place) = self.place(node) else { return (Log::default(), self.state_at(0)) };
        if self.leader == Some(place) {
            self.leader = None;
            self.check_at_us = 0;
        }
        let committed = self.committed();
        let member = &mut self.members[place];
        let found = member.holds;
        let index = applied.min(member.learned).saturating_sub(back);
        member.learned = index;
        member.learn_at_us =
            (index < committed).then(|| self.clock_us + self.random.between(1, HEARTBEAT_US));
        member.believes = false;
        member.corrected_at_us = None;
        member.handover = Handover::new(node);
        (Log { applied: index, found }, self.state_at(index))
    }

    /// F46: another voter leads, now. `false` if no other voter can.
    pub fn leader_change(&mut self, at_us: u64, links: &dyn Links) -> bool {
        self.clock_us = self.clock_us.max(at_us);
        let candidate = self.candidate(links, self.leader);
        if let Some(place) = candidate {
            self.lead(at_us, place, links);
        }
        candidate.is_some()
    }

    /// F47: proposals that are on their way get lost or are applied late, and so do some of the
    /// next ones.
    pub fn lose_proposals(&mut self) {
        self.lose = self.random.between(1, 4);
        for (at_us, mut proposal) in std::mem::take(&mut self.travelling) {
            if self.random.coin() {
                self.tally.lost += 1;
            } else {
                proposal.patience_us = at_us;
                let late_us = self.random.between(100_000, 3_000_000);
                self.travelling.push((at_us + late_us, proposal));
            }
        }
    }

    /// F47: the next proposal is on its way for this many microseconds, and is not repeated.
    pub fn delay_next(&mut self, late_us: u64) {
        self.late_us = Some(late_us);
    }

    /// F48: the next time the node lacks entries, it gets the whole state.
    pub fn snapshot(&mut self, node: NodeId) {
        if let Some(place) = self.place(node) {
            self.members[place].snapshot = true;
        }
    }

    fn place(&self, node: NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == node)
    }

    fn talk(&self, a: usize, b: usize, links: &dyn Links) -> bool {
        let (from, to) = (self.members[a].node, self.members[b].node);
        links.running(from)
            && (a == b || links.running(to) && links.reachable(from, to) && links.reachable(to, from))
    }

    /// Whether the member counts for a majority. The log's own members follow the state a little
    /// later. The model takes both for one, but for a removed one of two voters.
    fn votes(&self, place: usize) -> bool {
        self.lingering == Some(place) || self.may_lead(place)
    }

    /// Whether the member votes by the state.
    fn may_lead(&self, place: usize) -> bool {
        let known = self.state.nodes.get(&self.members[place].node);
        known.is_some_and(|node| node.voter) || self.state.nodes.is_empty()
    }

    /// Whether this number of voters is a majority.
    fn is_majority(&self, count: usize) -> bool {
        let all = (0..self.members.len()).filter(|place| self.votes(*place)).count();
        count * 2 > all
    }

    /// Members that were removed learn no more, or only of their removal, and do not lead.
    fn part(&mut self, at_us: u64) {
        for place in 0..self.members.len() {
            let node = self.members[place].node;
            if self.members[place].gone.is_some() || !self.state.is_removed(node) {
                continue;
            }
            // The others do not wait until it knows.
            let until = if self.random.coin() { 0 } else { self.committed() + 1 };
            self.members[place].gone = Some(until);
            if self.state.voters().len() == 1 {
                self.lingering = Some(place);
            }
            if self.leader == Some(place) {
                self.leader = None;
                self.members[place].corrected_at_us.get_or_insert(at_us);
                self.election_at_us = Some(at_us + self.random.between(1, ELECTION_US_MIN));
            }
        }
    }

    fn has_majority(&self, leader: usize, links: &dyn Links) -> bool {
        let heard =
            (0..self.members.len()).filter(|other| self.votes(*other) && self.talk(leader, *other, links));
        self.is_majority(heard.count())
    }

    fn repeat_or_lose(&mut self, at_us: u64, proposal: Proposal, links: &dyn Links) {
        // Queues overflow and connections break, so a proposer repeats only some of its proposals.
        let repeated =
            proposal.patience_us > at_us && links.running(proposal.from) && self.random.below(4) > 0;
        if repeated {
            let again_us = at_us + self.random.between(1, REPEAT_US);
            self.travelling.push((again_us, proposal));
        } else {
            self.tally.lost += 1;
        }
    }

    fn arrive(&mut self, at_us: u64, links: &dyn Links) {
        let mut place = 0;
        while place < self.travelling.len() {
            if self.travelling[place].0 > at_us {
                place += 1;
                continue;
            }
            // Not `swap_remove`: two proposals of one node must keep their order.
            let (_, proposal) = self.travelling.remove(place);
            let from = proposal.from;
            let leader = self.leader.filter(|leader| {
                let node = self.members[*leader].node;
                // An agent takes nothing of a node that was removed.
                !self.state.is_removed(from)
                    && links.running(node)
                    && (node == from || links.reachable(from, node))
            });
            if let Some(leader) = leader {
                let commit_at_us = at_us + self.random.around(2 * self.latency_us);
                let after_us = self.appended.back().map_or(0, |last| last.commit_at_us);
                let commit_at_us = commit_at_us.max(after_us);
                // The leader may be gone before it has sent the entry to every voter.
                let copies = 1 << leader | self.random.next() & self.heard_by(leader, links);
                self.appended.push_back(Appended { proposal, commit_at_us, copies });
            } else if proposal.patience_us > at_us && links.running(from) {
                self.travelling.insert(place, (at_us + REPEAT_US, proposal));
                place += 1;
            } else {
                self.tally.lost += 1;
            }
        }
    }

    /// Returns the members that receive messages of the leader, as bits by place in `members`.
    fn heard_by(&self, leader: usize, links: &dyn Links) -> u64 {
        let from = self.members[leader].node;
        let mut heard = 1 << leader;
        for (place, member) in self.members.iter().enumerate() {
            if links.running(from) && links.running(member.node) && links.reachable(from, member.node) {
                heard |= 1 << place;
            }
        }
        heard
    }

    /// Marks the entries of the leader's log as held by every member that the leader reaches.
    fn spread(&mut self, leader: usize, links: &dyn Links) {
        let heard = self.heard_by(leader, links);
        for appended in &mut self.appended {
            appended.copies |= heard;
        }
    }

    /// Keeps every version of every record, for the oracles.
    fn watch_records(&mut self) {
        for resource in self.state.resources.values() {
            let record = &resource.record;
            let known = self.versions.insert(resource.id, (record.version, record.primary));
            if known.is_some_and(|(version, _)| version == record.version) {
                continue;
            }
            let old = known.and_then(|(_, old)| old).filter(|old| Some(*old) != record.primary);
            let dead = old.filter(|old| !self.state.alive(*old));
            self.changes.push_back(Change { record: record.clone(), dead });
        }
    }

    /// Takes the next committed version of a record that was not taken yet.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Takes the next forgotten service that was not taken yet.
    pub fn poll_forgotten(&mut self) -> Option<String> {
        self.forgotten.pop_front()
    }

    /// Takes the next answer to an operator that was not taken yet.
    pub fn poll_answer(&mut self) -> Option<OperatorAnswer> {
        self.answers.pop_front()
    }

    fn apply(&mut self, entry: &Arc<Entry>) -> Outcome {
        let stopped = answers::stopped(&self.state);
        let rests = self.state.maintenances().next().is_some() && !answers::is_operators(&entry.command);
        let before = rests.then(|| self.state.clone());
        let outcome = self.apply_judged(entry);
        if let Some(before) = before {
            let judged = answers::stay_in_place(&before, &self.state);
            let outcome = outcome.clone();
            self.answers.push_back(OperatorAnswer { entry: entry.clone(), outcome, rule: "H16", judged });
        }
        let judged = answers::stay_stopped(&stopped, &entry.command, &self.state);
        if judged.is_err() {
            let outcome = outcome.clone();
            self.answers.push_back(OperatorAnswer { entry: entry.clone(), outcome, rule: "H14", judged });
        }
        outcome
    }

    fn apply_judged(&mut self, entry: &Arc<Entry>) -> Outcome {
        if !answers::is_operators(&entry.command) {
            let outcome = self.state.apply(Entry::clone(entry));
            if matches!(entry.command, Command::BeginScrub { .. }) && outcome == Outcome::Done {
                let judged = answers::scrubs_are_apart(&self.state);
                self.answers.push_back(OperatorAnswer {
                    entry: entry.clone(),
                    outcome: outcome.clone(),
                    rule: "L4",
                    judged,
                });
            }
            return outcome;
        }
        let before = answers::without_events(&self.state);
        let outcome = self.state.apply(Entry::clone(entry));
        if matches!(entry.command, Command::RemoveNode { .. }) && outcome == Outcome::Done {
            let judged = answers::a_majority_lives(&self.state);
            let (entry, outcome) = (entry.clone(), outcome.clone());
            self.answers.push_back(OperatorAnswer { entry, outcome, rule: "H20", judged });
        }
        let judged = answers::judge(&before, entry, &outcome, &answers::without_events(&self.state));
        let answer = OperatorAnswer { entry: entry.clone(), outcome: outcome.clone(), rule: "H7", judged };
        self.answers.push_back(answer);
        outcome
    }

    fn commit(&mut self, at_us: u64, links: &dyn Links) {
        let Some(leader) = self.leader else { return };
        if self.appended.front().is_none_or(|first| first.commit_at_us > at_us) {
            return;
        }
        if !self.has_majority(leader, links) {
            self.spread(leader, links);
            for appended in &mut self.appended {
                appended.commit_at_us = appended.commit_at_us.max(at_us + HEARTBEAT_US);
            }
            return;
        }
        while let Some(first) = self.appended.pop_front() {
            if first.commit_at_us > at_us || self.leader.is_none() {
                self.appended.push_front(first);
                break;
            }
            let entry = first.proposal.entry;
            let outcome = self.apply(&entry);
            self.watch_records();
            if let (Command::ServiceGone { name }, Outcome::Done) = (&entry.command, outcome) {
                self.forgotten.push_back(name.clone());
            }
            self.part(at_us);
            self.log.push(entry);
            let committed = self.committed();
            if committed.is_multiple_of(CHECKPOINT_EVERY) {
                self.checkpoints.push((committed, self.state.clone()));
            }
        }
        let committed = self.committed();
        for place in 0..self.members.len() {
            if self.talk(leader, place, links) {
                self.members[place].holds = committed;
            }
            let delay_us = if place == leader { 0 } else { self.random.around(self.latency_us) };
            self.members[place].learn_at_us.get_or_insert(at_us + delay_us);
        }
    }

    fn learn(&mut self, at_us: u64, links: &dyn Links) {
        // The leader first: the others learn from it.
        for place in self.leader.into_iter().chain(0..self.members.len()) {
            if self.members[place].learn_at_us.is_none_or(|due| due > at_us) {
                continue;
            }
            let committed = self.committed();
            let learned = self.members[place].learned;
            if learned >= committed {
                self.members[place].learn_at_us = None;
                continue;
            }
            let known = match self.leader {
                _ if self.members[place].gone.is_some_and(|until| learned >= until) => 0,
                Some(leader) if leader == place && self.has_majority(leader, links) => committed,
                Some(leader) if leader != place && self.talk(leader, place, links) => {
                    self.members[leader].learned
                }
                _ => 0,
            };
            let again_us = if known > learned {
                self.deliver(place, known);
                self.random.around(self.latency_us)
            } else if known == learned {
                HEARTBEAT_US
            } else {
                ABSENT_US
            };
            self.members[place].learn_at_us =
                (self.members[place].learned < committed).then_some(at_us + again_us);
        }
    }

    /// Delivers some or all of what is known up to `known`.
    fn deliver(&mut self, place: usize, known: u64) {
        let Member { node, learned, snapshot, .. } = self.members[place];
        let lag = known - learned;
        if snapshot || lag > SNAPSHOT_LAG {
            self.tally.snapshots += 1;
            let state = Box::new(self.state_at(known));
            self.deliveries.push_back(Deliver { to: node, what: Delivery::Snapshot { index: known, state } });
            let member = &mut self.members[place];
            member.snapshot = false;
            member.learned = known;
            member.holds = member.holds.max(known);
            return;
        }
        let end =
            if lag > 1 && self.random.below(4) == 0 { learned + self.random.between(1, lag) } else { known };
        for index in learned + 1..=end {
            let entry = self.log[index as usize - 1].clone();
            self.deliveries.push_back(Deliver { to: node, what: Delivery::Committed { index, entry } });
        }
        let member = &mut self.members[place];
        member.learned = end;
        member.holds = member.holds.max(end);
    }

    /// The state after entry `index`.
    fn state_at(&self, index: u64) -> State {
        if index == self.committed() {
            return self.state.clone();
        }
        let newest = self.checkpoints.iter().rev().find(|(at, _)| *at <= index);
        let (at, mut state) = newest.cloned().unwrap_or_default();
        for entry in &self.log[at as usize..index as usize] {
            state.apply(Entry::clone(entry));
        }
        state
    }
}

#[cfg(test)]
mod tests;
