//! Leadership in the model of the control plane's log: elections, and leaders that hand over.

use super::{CHECK_US, Consensus, Deliver, Delivery, ELECTION_US_MAX, ELECTION_US_MIN, Links, Member};
use mainstay_control::handover::{Decision, Voter};

impl Consensus {
    /// Whether a majority would elect this member: it lacks no entry that one of them has.
    fn is_electable(&self, place: usize, links: &dyn Links) -> bool {
        let holds = self.members[place].holds;
        let votes = (0..self.members.len())
            .filter(|other| self.votes(*other))
            .filter(|other| self.members[*other].holds <= holds && self.talk(place, *other, links));
        self.may_lead(place) && self.is_majority(votes.count())
    }

    /// Returns the place of a member other than `but` that a majority would elect, if there is one.
    pub(super) fn candidate(&mut self, links: &dyn Links, but: Option<usize>) -> Option<usize> {
        let count = self.members.len();
        let first = self.random.below(count.max(1) as u64) as usize;
        (0..count)
            .map(|step| (first + step) % count)
            .filter(|place| Some(*place) != but)
            .find(|place| self.is_electable(*place, links))
    }

    /// Lets the leader hand over when it does not reach a living member both ways, as the driver
    /// does.
    fn hand_over(&mut self, at_us: u64, leader: usize, links: &dyn Links) {
        let now_ms = at_us / 1000;
        let mut others = Vec::with_capacity(self.members.len());
        for place in (0..self.members.len()).filter(|place| *place != leader) {
            if !self.votes(place) {
                continue;
            }
            let Member { node, holds, .. } = self.members[place];
            if self.talk(leader, place, links) {
                self.members[leader].handover.answered(now_ms, node);
            }
            let caught_up = holds >= self.members[leader].holds;
            others.push(Voter { node, alive: self.state.alive(node), caught_up });
        }
        let decision = self.members[leader].handover.lead(now_ms, &self.state.settings, &others);
        let Some(Decision { to, .. }) = decision else { return };
        let Some(place) = self.place(to) else { return };
        self.tally.handovers += 1;
        self.members[place].handover.given(now_ms);
        if self.is_electable(place, links) {
            self.lead(at_us, place, links);
        } else {
            // The vote has ended the old leader's term all the same.
            self.leader = None;
            self.members[leader].corrected_at_us.get_or_insert(at_us);
            self.election_at_us = Some(at_us + self.random.between(ELECTION_US_MIN, ELECTION_US_MAX));
        }
    }

    pub(super) fn watch_leader(&mut self, at_us: u64, links: &dyn Links) {
        let election_due = self.election_at_us.is_some_and(|due| due <= at_us);
        if at_us < self.check_at_us && !election_due {
            return;
        }
        self.check_at_us = at_us + CHECK_US;
        if let Some(leader) = self.leader.filter(|leader| self.has_majority(*leader, links)) {
            self.election_at_us = None;
            // It reached a majority, so the removed one of two voters has confirmed.
            self.lingering = None;
            self.hand_over(at_us, leader, links);
            return;
        }
        if self.election_at_us.is_some() && !election_due {
            return;
        }
        if election_due {
            if let Some(place) = self.candidate(links, None) {
                self.lead(at_us, place, links);
                return;
            }
            // No node can lead. A leader that misses its majority gives up by itself.
            if let Some(old) = self.leader.take() {
                self.tally.quorums_lost += 1;
                self.members[old].corrected_at_us.get_or_insert(at_us);
            }
        }
        self.election_at_us = Some(at_us + self.random.between(ELECTION_US_MIN, ELECTION_US_MAX));
    }

    pub(super) fn lead(&mut self, at_us: u64, place: usize, links: &dyn Links) {
        self.tally.elections += 1;
        self.leader = Some(place);
        self.election_at_us = None;
        for other in 0..self.members.len() {
            self.members[other].handover.follow();
            if other == place || !self.members[other].believes {
                continue;
            }
            // A leader that is cut off finds out when it misses its majority.
            let delay_us = if self.talk(place, other, links) {
                self.random.around(self.latency_us)
            } else {
                self.random.below(ELECTION_US_MAX)
            };
            self.members[other].corrected_at_us.get_or_insert(at_us + delay_us);
        }
        self.tell_leader(place, true);
        let round_trip_us = self.random.around(2 * self.latency_us);
        let mut inherits = true;
        for mut appended in std::mem::take(&mut self.appended) {
            // A log is inherited as a prefix.
            inherits &= appended.copies & (1 << place) != 0;
            if inherits {
                self.tally.inherited += 1;
                appended.commit_at_us = at_us + round_trip_us;
                self.appended.push_back(appended);
            } else {
                self.repeat_or_lose(at_us, appended.proposal, links);
            }
        }
        // The leader knows which entries are committed once it has committed one itself.
        let committed = self.committed();
        for (other, member) in self.members.iter_mut().enumerate() {
            if member.learned < committed {
                let delay_us = if other == place { round_trip_us } else { 2 * round_trip_us };
                member.learn_at_us = Some(at_us + delay_us);
            }
        }
    }

    pub(super) fn tell_leader(&mut self, place: usize, leads: bool) {
        let member = &mut self.members[place];
        member.corrected_at_us = None;
        if member.believes != leads {
            member.believes = leads;
            self.deliveries.push_back(Deliver { to: member.node, what: Delivery::Leader(leads) });
        }
    }
}
