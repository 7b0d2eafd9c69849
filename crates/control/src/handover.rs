//! When the leader of the control plane's log hands the lead to another voter.
//!
//! Proposals travel to the leader only, and entries come from it only. A voter whose link to the
//! leader is cut keeps its lease, because the other voters acknowledge its heartbeats. But nothing
//! that it proposes arrives: a primary could not even shrink its in-sync set. The log's own
//! elections do not help, because the leader has its majority.
//!
//! So the leader hands over when a voter has not answered it for a certain time. By then the voter
//! would count as dead if no other voter heard it either. An earlier handover would do harm: the
//! leader would hand over whenever a node dies, just when the death is to be recorded. The new
//! leader might not reach the dead node when that returns.
//!
//! - The leader hands over only to a voter that answers now and lacks next to nothing. Then there
//!   is a leader again after a round trip.
//! - The leader cannot know which voter hears the silent one. Each leader picks the next voter by
//!   number, so that every voter gets its turn.
//! - A node that has given or was given the lead waits before it hands over. Each wait is longer
//!   than the one before, until the leader hears every voter. So the lead does not circulate when
//!   no voter hears the silent one.
//!
//! Pure; the time is in milliseconds of any clock of this node. Safety does not depend on any of
//! this.

use crate::state::Settings;
use mainstay_types::{NodeId, reach};
use std::collections::BTreeMap;

/// Time to record a death after the last voter's suspicion: a durable write and a few round trips.
const DEATH_MS: u64 = 1000;
/// A voter that answered within this time, four heartbeats of the log, answers now.
const ANSWERS_MS: u64 = 400;
/// The first wait between two handovers. It doubles with each one.
const PAUSE_MS_MIN: u64 = 5000;
const PAUSE_MS_MAX: u64 = 60_000;

/// State of another voter, as the leader knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Voter {
    pub node: NodeId,
    /// The cluster state says that the voter is alive.
    pub alive: bool,
    /// The voter has all or nearly all committed entries.
    pub caught_up: bool,
}

/// A handover of the lead that is due now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    pub to: NodeId,
    /// The voter that the leader does not hear, which is the reason.
    pub silent: NodeId,
}

/// The memory of one node. It may be lost at any time.
#[derive(Clone, Debug)]
pub struct Handover {
    node: NodeId,
    /// When this node found itself leading.
    leads_since_ms: Option<u64>,
    /// When each voter last answered this leader.
    answered_ms: BTreeMap<NodeId, u64>,
    not_before_ms: u64,
    pause_ms: u64,
}

impl Handover {
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            leads_since_ms: None,
            answered_ms: BTreeMap::new(),
            not_before_ms: 0,
            pause_ms: PAUSE_MS_MIN,
        }
    }

    /// A voter has answered this node as its leader: the link carries both ways.
    pub fn answered(&mut self, now_ms: u64, voter: NodeId) {
        self.answered_ms.insert(voter, now_ms);
    }

    /// Another leader hands the lead to this node.
    pub fn given(&mut self, now_ms: u64) {
        self.not_before_ms = now_ms + self.pause_ms;
        self.pause_ms = (2 * self.pause_ms).min(PAUSE_MS_MAX);
    }

    /// This node does not lead.
    pub fn follow(&mut self) {
        self.leads_since_ms = None;
        self.answered_ms.clear();
    }

    /// This node leads, with these other voters. To be asked every 300 ms or more often.
    pub fn lead(&mut self, now_ms: u64, settings: &Settings, others: &[Voter]) -> Option<Decision> {
        let since_ms = *self.leads_since_ms.get_or_insert(now_ms);
        let answered_ms = &self.answered_ms;
        let answers = |node: NodeId| answered_ms.get(&node).is_some_and(|at| now_ms - at <= ANSWERS_MS);
        let alive = || others.iter().filter(|voter| voter.alive);
        if alive().all(|voter| answers(voter.node)) {
            // Voters that come and go still cost at most one handover per pause.
            self.pause_ms = PAUSE_MS_MIN;
            return None;
        }
        let silence_ms = settings.lease_ms + settings.margin_ms + DEATH_MS;
        let last_ms = |node: NodeId| answered_ms.get(&node).copied().unwrap_or(since_ms);
        let silent = alive().find(|voter| now_ms - last_ms(voter.node) >= silence_ms)?.node;
        if now_ms < self.not_before_ms {
            reach!(
                "control: the leader does not hear a living voter, and has just handed over or been handed the lead"
            );
            return None;
        }
        // The next one by number, and after the last one the first.
        let able = alive().filter(|voter| voter.caught_up && answers(voter.node));
        let to = able.map(|voter| voter.node).min_by_key(|to| (*to < self.node, *to))?;
        reach!("control: the leader hands over, because it does not hear a living voter");
        self.given(now_ms);
        Some(Decision { to, silent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT_MS: u64 = 100;
    const SETTINGS: Settings = Settings { lease_ms: 2000, heartbeat_ms: 200, margin_ms: 50 };
    /// The first look after 3,050 ms.
    const SILENT_MS: u64 = 3100;

    /// Node 2 leads, since 10,000; the others are 1, 3 and so on.
    struct Lab {
        handover: Handover,
        others: Vec<Voter>,
        silent: Vec<u32>,
        now_ms: u64,
    }

    impl Lab {
        fn new(others: &[u32], silent: &[u32]) -> Self {
            let voter = |node: &u32| Voter { node: NodeId(*node), alive: true, caught_up: true };
            Self {
                handover: Handover::new(NodeId(2)),
                others: others.iter().map(voter).collect(),
                silent: silent.to_vec(),
                now_ms: 10_000,
            }
        }

        fn other(&mut self, node: u32) -> &mut Voter {
            self.others.iter_mut().find(|voter| voter.node.0 == node).unwrap()
        }

        /// Lets time pass until the leader hands over. Returns the new leader, the time, and the
        /// silent voter.
        fn hands_over_within(&mut self, ms: u64) -> Option<(u32, u64, u32)> {
            let start_ms = self.now_ms;
            while self.now_ms < start_ms + ms {
                self.now_ms += HEARTBEAT_MS;
                for voter in &self.others {
                    if !self.silent.contains(&voter.node.0) {
                        self.handover.answered(self.now_ms, voter.node);
                    }
                }
                if let Some(Decision { to, silent }) =
                    self.handover.lead(self.now_ms, &SETTINGS, &self.others)
                {
                    return Some((to.0, self.now_ms - start_ms, silent.0));
                }
            }
            None
        }
    }

    #[test]
    fn a_leader_that_hears_all_keeps_the_lead() {
        assert_eq!(Lab::new(&[1, 3], &[]).hands_over_within(100_000), None);
        assert_eq!(Lab::new(&[], &[]).hands_over_within(100_000), None);
    }

    #[test]
    fn a_leader_hands_over_when_a_living_voter_is_silent_for_long() {
        let mut lab = Lab::new(&[1, 3], &[]);
        assert_eq!(lab.hands_over_within(20_000), None);
        lab.silent = vec![1];
        assert_eq!(lab.hands_over_within(20_000), Some((3, SILENT_MS, 1)));
    }

    #[test]
    fn a_voter_silent_from_the_beginning_has_as_much_time() {
        let mut lab = Lab::new(&[1, 3], &[1]);
        assert_eq!(lab.hands_over_within(20_000), Some((3, SILENT_MS + HEARTBEAT_MS, 1)));
    }

    #[test]
    fn a_short_silence_is_nothing() {
        let mut lab = Lab::new(&[1, 3], &[]);
        for _ in 0..20 {
            lab.silent = vec![1];
            assert_eq!(lab.hands_over_within(SILENT_MS - HEARTBEAT_MS), None);
            lab.silent = Vec::new();
            assert_eq!(lab.hands_over_within(HEARTBEAT_MS), None);
        }
    }

    #[test]
    fn the_dead_may_be_silent() {
        let mut lab = Lab::new(&[1, 3], &[1]);
        lab.other(1).alive = false;
        assert_eq!(lab.hands_over_within(100_000), None);
    }

    #[test]
    fn a_leader_keeps_the_lead_if_no_other_voter_answers_and_has_everything() {
        assert_eq!(Lab::new(&[1, 3], &[1, 3]).hands_over_within(100_000), None);
        let mut lab = Lab::new(&[1, 3, 4], &[1]);
        lab.other(3).caught_up = false;
        lab.other(4).alive = false;
        assert_eq!(lab.hands_over_within(100_000), None);
        // The earlier refusals of voter 3 change nothing.
        lab.other(3).caught_up = true;
        assert_eq!(lab.hands_over_within(100_000), Some((3, HEARTBEAT_MS, 1)));
    }

    #[test]
    fn the_next_by_number_gets_the_lead() {
        assert_eq!(Lab::new(&[1, 3, 4, 5], &[4]).hands_over_within(20_000).unwrap().0, 3);
        assert_eq!(Lab::new(&[1, 3, 4, 5], &[3]).hands_over_within(20_000).unwrap().0, 4);
        assert_eq!(Lab::new(&[1, 3], &[3]).hands_over_within(20_000).unwrap().0, 1);
    }

    #[test]
    fn the_pauses_double_until_all_are_heard() {
        let mut lab = Lab::new(&[1, 3], &[]);
        assert_eq!(lab.hands_over_within(20_000), None);
        lab.silent = vec![1];
        // The chosen voter did not take the lead, or the cluster elected this node again.
        let mut waits = Vec::new();
        for _ in 0..7 {
            waits.push(lab.hands_over_within(100_000).unwrap().1);
        }
        assert_eq!(waits, [SILENT_MS, 5000, 10_000, 20_000, 40_000, 60_000, 60_000]);
        lab.silent = Vec::new();
        assert_eq!(lab.hands_over_within(60_000), None);
        lab.silent = vec![1];
        waits = (0..2).map(|_| lab.hands_over_within(100_000).unwrap().1).collect();
        assert_eq!(waits, [SILENT_MS, 5000]);
    }

    #[test]
    fn a_leader_that_was_given_the_lead_keeps_it_for_a_while() {
        let mut lab = Lab::new(&[1, 3], &[1]);
        lab.handover.given(lab.now_ms);
        assert_eq!(lab.hands_over_within(100_000), Some((3, 5000, 1)));
        // Another leader gives the lead back. The wait is longer now, although this node did not
        // lead in between.
        lab.handover.follow();
        lab.now_ms += 5000;
        lab.handover.given(lab.now_ms);
        assert_eq!(lab.hands_over_within(100_000), Some((3, 20_000, 1)));
    }

    #[test]
    fn a_new_leader_forgets_the_voters_that_it_heard_when_it_last_led() {
        let mut lab = Lab::new(&[1, 3], &[]);
        assert_eq!(lab.hands_over_within(4000), None);
        lab.handover.follow();
        lab.now_ms += 60_000;
        lab.silent = vec![1];
        assert_eq!(lab.hands_over_within(20_000), Some((3, SILENT_MS + HEARTBEAT_MS, 1)));
    }

    #[test]
    fn a_flapping_voter_costs_one_handover_per_pause() {
        let mut lab = Lab::new(&[1, 3], &[]);
        let mut times = Vec::new();
        while lab.now_ms < 100_000 {
            lab.silent = vec![1];
            if lab.hands_over_within(3200).is_some() {
                times.push(lab.now_ms);
            }
            lab.silent = Vec::new();
            assert_eq!(lab.hands_over_within(200), None);
        }
        assert!(
            times.len() > 3 && times.windows(2).all(|pair| pair[1] - pair[0] >= PAUSE_MS_MIN),
            "{times:?}"
        );
    }
}
