//! The choice of the nodes that vote.
//!
//! A cluster of one, two or three members has as many voters. One of four has three, and a larger
//! one has five. The other members receive the log, hold data and run services as all others do,
//! and have no vote. They stand by: when a voter is removed or dead for long, one of them gets a
//! vote.
//!
//! The leader decides when ([`next_vote`]), and proposes one change at a time
//! ([`Command::SetVote`]). Every change is checked again when it is applied: it needs every living
//! node to count by the last one (R10), and leaves the living voters a majority.
//!
//! Nothing depends on how long the leader has seen a node dead: this only chooses among members,
//! each of which may vote.

use crate::members::settling;
use crate::state::{Command, Node, Outcome, State, refused};
use mainstay_types::{Code, NodeId, NodeStatus, Severity};

/// Time for which a voter is dead before another member votes in its place, in milliseconds.
pub const DEAD_VOTER_MS: u64 = 10 * 60 * 1000;

/// How many of this number of members are to vote.
#[must_use]
pub fn voters_wanted(members: usize) -> usize {
    match members {
        0..=3 => members,
        4 => 3,
        _ => 5,
    }
}

/// The next change of votes, if one is due. `long_dead` are dead for longer than [`DEAD_VOTER_MS`];
/// `able` tells whether a member answers, and has all entries of the log.
#[must_use]
pub fn next_vote(
    state: &State,
    leader: NodeId,
    long_dead: impl Fn(NodeId) -> bool,
    able: impl Fn(NodeId) -> bool,
) -> Option<Command> {
    if state.unaware_of_voters().is_some() {
        return None;
    }
    let members: Vec<&Node> = state.nodes.values().filter(|node| !node.candidate).collect();
    let voters: Vec<&Node> = members.iter().copied().filter(|node| node.voter).collect();
    let wanted = voters_wanted(members.len());
    let standing_by =
        members.iter().copied().find(|node| !node.voter && state.alive(node.id) && able(node.id));
    let change = |node: &Node, votes| {
        let command = Command::SetVote { node: node.id, votes };
        state.cannot_set_vote(node.id, votes).is_none().then_some(command)
    };
    if voters.len() < wanted {
        return standing_by.and_then(|node| change(node, true));
    }
    if standing_by.is_some()
        && let Some(dead) = voters.iter().find(|node| !state.alive(node.id) && long_dead(node.id))
    {
        return change(dead, false);
    }
    if voters.len() > wanted {
        // A dead one first, then a member that holds data rather than a witness, then the newest.
        let others = voters.into_iter().filter(|node| node.id != leader);
        let least = others.max_by_key(|node| (!state.alive(node.id), !node.witness, node.id));
        return least.and_then(|node| change(node, false));
    }
    None
}

impl State {
    fn cannot_set_vote(&self, id: NodeId, votes: bool) -> Option<Outcome> {
        let Some(node) = self.nodes.get(&id).filter(|node| !node.candidate) else {
            return Some(Outcome::Conflict { record: None });
        };
        if node.voter == votes {
            return Some(Outcome::Unchanged);
        }
        if votes && node.status != NodeStatus::Alive {
            let message = format!("node {} is dead", node.name);
            return Some(refused(Code::NodeDead, message, "it can vote when it is back"));
        }
        if let Some(behind) = self.unaware_of_voters() {
            return Some(settling(&behind.name));
        }
        let remain = self.nodes.values().filter(|other| other.voter && other.id != id);
        let (alive, all) =
            remain.fold((0, 0), |(alive, all), other| (alive + usize::from(self.alive(other.id)), all + 1));
        if !votes && alive * 2 <= all {
            let message = format!("the vote of {} is needed for a majority", node.name);
            return Some(refused(Code::VoteNeeded, message, "let another node join first"));
        }
        None
    }

    /// Gives a member a vote, or takes it.
    pub(crate) fn set_vote(&mut self, at_ms: u64, id: NodeId, votes: bool) -> Outcome {
        if let Some(refusal) = self.cannot_set_vote(id, votes) {
            return refusal;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return Outcome::Conflict { record: None } };
        node.voter = votes;
        let subject = format!("node {}", node.name);
        self.voters_version += 1;
        let text = if votes { "votes from now on" } else { "does not vote any more: enough other nodes do" };
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::removal::tests::Lab;

    #[test]
    fn a_cluster_has_one_to_three_or_five_voters() {
        let wanted: Vec<usize> = (0..8).map(voters_wanted).collect();
        assert_eq!(wanted, [0, 1, 2, 3, 3, 5, 5, 5]);
    }

    fn settle(lab: &mut Lab, long_dead: &[u32]) -> Vec<u32> {
        for _ in 0..20 {
            let dead = |node: NodeId| long_dead.contains(&node.0);
            let Some(command) = next_vote(&lab.state, NodeId(1), dead, |_| true) else { break };
            lab.done(command);
            lab.all_see_the_voters();
        }
        lab.state.voters().into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn a_fourth_node_stands_by_and_a_fifth_makes_five_voters() {
        let mut lab = Lab::new(3);
        lab.join("d");
        assert_eq!(settle(&mut lab, &[]), [1, 2, 3]);
        lab.join("e");
        assert_eq!(settle(&mut lab, &[]), [1, 2, 3, 4, 5]);
        lab.join("f");
        assert_eq!(settle(&mut lab, &[]), [1, 2, 3, 4, 5]);
        lab.remove(6);
        lab.remove(5);
        assert_eq!(settle(&mut lab, &[]), [1, 2, 3], "of four voters one too many");
    }

    #[test]
    fn a_member_that_stands_by_votes_in_place_of_one_that_is_removed_or_dead_for_long() {
        let mut lab = Lab::new(3);
        lab.join("d");
        lab.dies(3);
        assert_eq!(settle(&mut lab, &[]), [1, 2, 3], "dead for a moment");
        assert_eq!(settle(&mut lab, &[3]), [1, 2, 4]);
        lab.returns(3);
        assert_eq!(settle(&mut lab, &[]), [1, 2, 4], "the one that returns stands by");
        lab.remove(2);
        assert_eq!(settle(&mut lab, &[]), [1, 3, 4]);
    }

    #[test]
    fn a_vote_is_not_taken_if_the_living_need_it_and_not_before_all_count_by_the_last_change() {
        let mut lab = Lab::new(3);
        lab.dies(3);
        let Outcome::Refused(why) = lab.apply(Command::SetVote { node: NodeId(2), votes: false }) else {
            panic!("two of three live");
        };
        assert_eq!(why.code, Code::VoteNeeded);
        lab.returns(3);
        lab.join("d");
        lab.done(Command::SetVote { node: NodeId(4), votes: true });
        let Outcome::Refused(why) = lab.apply(Command::SetVote { node: NodeId(2), votes: false }) else {
            panic!("the others count by three voters");
        };
        assert_eq!(why.code, Code::MembershipSettling);
        assert_eq!(next_vote(&lab.state, NodeId(1), |_| true, |_| true), None);
        lab.all_see_the_voters();
        lab.done(Command::SetVote { node: NodeId(2), votes: false });
    }

    #[test]
    fn no_member_gets_a_vote_that_does_not_answer_or_is_dead() {
        let mut lab = Lab::new(3);
        lab.join("d");
        lab.dies(3);
        assert_eq!(next_vote(&lab.state, NodeId(1), |_| true, |_| false), None, "it does not answer");
        lab.dies(4);
        assert_eq!(next_vote(&lab.state, NodeId(1), |_| true, |_| true), None);
    }
}
