//! Slow members (P11, P12): one leaves for its slowness only while enough copies remain, and does
//! not return before its quiet period is over.
//!
//! The oracle judges a primary's proposal by the record of the version that the proposal names. Two
//! kinds of members may return at once: one whose connection was broken meanwhile, and one that
//! returns because there are too few copies. That the period doubles is tested where it is decided.

use super::Violation;
use mainstay_types::{
    ConfigVersion, Epoch, IssChange, Member, NodeId, Proposal, ProposedChange, ResourceRecord, ShrinkReason,
    SlowLimits,
};
use std::collections::{BTreeMap, VecDeque};

/// Versions of the record that are remembered; proposals are late by less.
const RECORDS_MAX: usize = 64;
/// A clock of a node may be faster than true time by 1 %.
const CLOCK_PERCENT: u64 = 98;

/// See the top of this file. Of one resource; true time in microseconds.
#[derive(Clone, Debug)]
pub struct SlowOracle {
    limits: SlowLimits,
    records: VecDeque<ResourceRecord>,
    /// Members that a primary proposed to remove for their slowness: the primary, the version of
    /// the record, and the time of the first proposal.
    asked: BTreeMap<Member, (NodeId, ConfigVersion, u64)>,
    out: BTreeMap<Member, Out>,
    /// When a primary's connection to a node was last broken or made, by both.
    reconnected: BTreeMap<(NodeId, NodeId), u64>,
    /// When too few copies were last recorded.
    few_us: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Out {
    primary: NodeId,
    epoch: Epoch,
    asked_us: u64,
    left_us: u64,
}

impl SlowOracle {
    #[must_use]
    pub fn new(limits: SlowLimits) -> Self {
        Self {
            limits,
            records: VecDeque::new(),
            asked: BTreeMap::new(),
            out: BTreeMap::new(),
            reconnected: BTreeMap::new(),
            few_us: None,
        }
    }

    pub fn reconnected(&mut self, at_us: u64, primary: NodeId, peer: NodeId) {
        self.reconnected.insert((primary, peer), at_us);
    }

    /// Every version of the record, in order.
    pub fn record(&mut self, at_us: u64, record: &ResourceRecord) {
        if let Some(before) = self.records.back() {
            let left = before.iss.iter().filter(|member| !record.iss.contains(member));
            for member in left {
                // A proposal on an older version came to nothing (seed 1534684).
                if let Some((primary, version, asked_us)) = self.asked.get(member).copied()
                    && version >= before.version
                    && before.epoch == record.epoch
                {
                    let out = Out { primary, epoch: record.epoch, asked_us, left_us: at_us };
                    self.out.insert(*member, out);
                }
            }
        }
        // A proposal on an older version can no longer take effect.
        self.asked.retain(|_, (_, version, _)| *version >= record.version);
        self.out.retain(|member, out| !record.iss.contains(member) && out.epoch == record.epoch);
        let few = |record: &ResourceRecord| {
            record.iss.len() < (self.limits.min_copies as usize).max(record.copies_wanted())
        };
        if few(record) || self.records.back().is_some_and(few) {
            self.few_us = Some(at_us);
        }
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record.clone());
    }

    /// `primary` proposes a change.
    ///
    /// # Errors
    /// P12, when too few copies would remain; P11, when a member that was slow returns too early.
    pub fn proposed(&mut self, at_us: u64, primary: NodeId, proposal: &Proposal) -> Result<(), Violation> {
        let ProposedChange::Iss(change) = &proposal.change else { return Ok(()) };
        let version = proposal.version;
        match change {
            IssChange::Shrink { remove, why: ShrinkReason::Slow } => {
                let known = self.records.iter().find(|record| record.version == version);
                let Some(record) = known.filter(|record| record.iss.contains(remove)) else { return Ok(()) };
                self.asked.entry(*remove).or_insert((primary, version, at_us));
                let left = record.iss.len() - 1;
                let least = (self.limits.min_copies as usize).max(record.copies_wanted());
                if left >= least {
                    return Ok(());
                }
                let text = format!(
                    "{primary} wants {} to leave for its slowness, with which {left} copies remain of at least {least}",
                    remove.node
                );
                Err(Violation { id: "P12", text })
            }
            IssChange::Grow { add } => self.returns(at_us, primary, proposal.epoch, *add),
            IssChange::Shrink { .. }
            | IssChange::FailoverReady { .. }
            | IssChange::NotFailoverReady { .. }
            | IssChange::Memory { .. }
            | IssChange::Trust { .. }
            | IssChange::Part { .. } => Ok(()),
        }
    }

    fn returns(&self, at_us: u64, primary: NodeId, epoch: Epoch, add: Member) -> Result<(), Violation> {
        let Some(out) = self.out.get(&add).filter(|out| (out.primary, out.epoch) == (primary, epoch)) else {
            return Ok(());
        };
        let gone = self.reconnected.get(&(primary, add.node)).is_some_and(|broken| *broken >= out.asked_us);
        let few = self.few_us.is_some_and(|few| few >= out.left_us);
        let out_ms = at_us.saturating_sub(out.left_us) / 1000;
        if gone || few || out_ms >= self.limits.quiet_ms * CLOCK_PERCENT / 100 {
            return Ok(());
        }
        let text = format!(
            "{} left for its slowness and is to return {out_ms} ms later, where {} ms are the least",
            add.node, self.limits.quiet_ms
        );
        Err(Violation { id: "P11", text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::{Incarnation, ResourceId};

    fn member(node: u32) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(1) }
    }

    fn record(version: u64, iss: &[u32]) -> ResourceRecord {
        ResourceRecord {
            resource: ResourceId(1),
            version: ConfigVersion(version),
            epoch: Epoch(1),
            primary: Some(NodeId(1)),
            iss: iss.iter().copied().map(member).collect(),
            replicas: [1, 2, 3].map(member).to_vec(),
            ..ResourceRecord::new(ResourceId(1))
        }
    }

    fn proposal(version: u64, change: IssChange) -> Proposal {
        let (version, change) = (ConfigVersion(version), ProposedChange::Iss(change));
        Proposal { version, epoch: Epoch(1), change }
    }

    fn shrink(version: u64, node: u32) -> Proposal {
        proposal(version, IssChange::Shrink { remove: member(node), why: ShrinkReason::Slow })
    }

    fn grow(version: u64, node: u32) -> Proposal {
        proposal(version, IssChange::Grow { add: member(node) })
    }

    /// n2 has left at 1 s; its quiet period is 10 s.
    fn left() -> SlowOracle {
        let mut oracle = SlowOracle::new(SlowLimits::default());
        oracle.record(0, &record(1, &[1, 2, 3]));
        assert_eq!(oracle.proposed(900_000, NodeId(1), &shrink(1, 2)), Ok(()));
        oracle.record(1_000_000, &record(2, &[1, 3]));
        oracle
    }

    fn id(result: Result<(), Violation>) -> Option<&'static str> {
        result.err().map(|violation| violation.id)
    }

    #[test]
    fn too_few_copies_are_noticed() {
        let mut oracle = left();
        assert_eq!(id(oracle.proposed(2_000_000, NodeId(1), &shrink(2, 3))), Some("P12"));
    }

    #[test]
    fn an_early_return_is_noticed_and_a_late_one_is_none() {
        let mut oracle = left();
        assert_eq!(id(oracle.proposed(5_000_000, NodeId(1), &grow(2, 2))), Some("P11"));
        assert_eq!(oracle.proposed(11_000_000, NodeId(1), &grow(2, 2)), Ok(()));
    }

    #[test]
    fn the_gone_and_the_needed_return_at_once() {
        let mut gone = left();
        gone.reconnected(2_000_000, NodeId(1), NodeId(2));
        assert_eq!(gone.proposed(5_000_000, NodeId(1), &grow(2, 2)), Ok(()));
        let mut needed = left();
        needed.record(2_000_000, &record(3, &[1]));
        assert_eq!(needed.proposed(5_000_000, NodeId(1), &grow(3, 2)), Ok(()));
    }

    #[test]
    fn a_member_that_left_before_its_late_removal_may_return() {
        let mut oracle = SlowOracle::new(SlowLimits::default());
        oracle.record(0, &record(1, &[1, 2, 3]));
        oracle.record(800_000, &record(2, &[1, 2, 3]));
        assert_eq!(oracle.proposed(900_000, NodeId(1), &shrink(1, 2)), Ok(()));
        oracle.record(1_000_000, &record(3, &[1, 3]));
        assert_eq!(oracle.proposed(2_000_000, NodeId(1), &grow(3, 2)), Ok(()));
    }

    #[test]
    fn a_proposal_that_came_to_nothing_is_forgotten() {
        let mut oracle = left();
        assert_eq!(oracle.proposed(2_000_000, NodeId(1), &grow(2, 3)), Ok(()));
        oracle.record(3_000_000, &record(3, &[1, 2, 3]));
        assert_eq!(oracle.proposed(4_000_000, NodeId(1), &shrink(3, 2)), Ok(()));
        oracle.record(5_000_000, &record(4, &[1, 2, 3]));
        oracle.record(6_000_000, &record(5, &[1, 3]));
        assert_eq!(oracle.proposed(7_000_000, NodeId(1), &grow(5, 2)), Ok(()), "it left for another reason");
    }
}
