//! Findings of a scrub: blocks that differ, which replica holds which content, and which content is
//! right.

use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Epoch, Index, NodeId, ScrubFinding, ScrubRepair, ScrubState, ScrubSummary, Time, reach,
};
use std::collections::BTreeMap;

/// Most findings that are kept of one scrub (R18). Further ones are only counted.
pub const FINDINGS_MAX: usize = 256;

/// A scrub, as it is or as it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubReport {
    /// In which it began, and which it is of those that this replica began since it was opened,
    /// from 1 on. No two scrubs of a resource have both in common.
    pub epoch: Epoch,
    pub ordinal: u64,
    pub state: ScrubState,
    pub repair: ScrubRepair,
    /// Bytes per second; 0: no limit of its own.
    pub rate: u64,
    pub began: Time,
    pub ended: Option<Time>,
    /// Extents of all volumes, as large as the volumes were when the scrub began.
    pub extents: u64,
    /// Extents that are judged, even if not every replica was compared.
    pub done: u64,
    /// Number of extents in which each replica was compared, by node. The primary has a number too.
    pub compared: BTreeMap<NodeId, u64>,
    /// Extents of which fewer than two replicas could say what they hold.
    pub uncompared: u64,
    /// Blocks that differed, and what became of them.
    pub different: u64,
    pub repaired: u64,
    /// Clients had written them anew before they could be repaired.
    pub overwritten: u64,
    /// At most [`FINDINGS_MAX`], in the order in which they were found.
    pub findings: Vec<ScrubFinding>,
    /// Entries of the log of the first and the last extent that were judged.
    pub from: Index,
    pub to: Index,
    /// How long the rest takes, in milliseconds.
    pub left_ms: Option<u64>,
}

impl ScrubReport {
    /// Blocks that still differ, as far as is known.
    #[must_use]
    pub fn unrepaired(&self) -> u64 {
        self.different - self.repaired - self.overwritten
    }

    /// The same in short, without what changes all the time while it is under way.
    #[must_use]
    pub fn summary(&self) -> ScrubSummary {
        let begun = ScrubSummary { state: self.state, ..ScrubSummary::running(self.epoch, self.ordinal) };
        let Some(ended) = self.ended else { return begun };
        ScrubSummary {
            took_ms: ended.ms_since(self.began),
            extents: self.extents,
            done: self.done,
            compared: self.compared.iter().map(|(node, extents)| (*node, *extents)).collect(),
            different: self.different,
            repaired: self.repaired,
            overwritten: self.overwritten,
            ..begun
        }
    }
}

/// A stretch of blocks of one extent on which replicas differ, before anything is done about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    /// First block within the extent, and one past the last.
    pub blocks: std::ops::Range<usize>,
    pub groups: Vec<Vec<NodeId>>,
    pub damaged: Vec<NodeId>,
    pub right: Option<usize>,
    pub proven: bool,
}

/// Answer of a replica about the blocks of an extent: the sum of each block; `None` for a block
/// that does not fit its own checksum.
pub(crate) type Held = Vec<Option<u64>>;

/// Compares the answers of replicas about the blocks of one extent. Each answer has the same number
/// of sums, and none for a block that the replica knows to be damaged. Such a replica has no vote
/// about that block. `unproven`: if no group has more than half of the votes, the primary is right,
/// unless another group is larger than the primary's.
pub(crate) fn compare(sums: &BTreeMap<NodeId, Held>, primary: NodeId, unproven: bool) -> Vec<Difference> {
    let Some(first) = sums.values().next() else { return Vec::new() };
    if first.iter().all(Option::is_some) && sums.values().all(|of| of == first) {
        return Vec::new();
    }
    let mut found: Vec<Difference> = Vec::new();
    for block in 0..first.len() {
        let groups = groups_at(sums, block);
        let damaged: Vec<NodeId> =
            sums.iter().filter(|(_, of)| of[block].is_none()).map(|(&node, _)| node).collect();
        if groups.len() == 1 && damaged.is_empty() {
            continue;
        }
        if let Some(last) = found.last_mut()
            && last.blocks.end == block
            && last.groups == groups
            && last.damaged == damaged
        {
            last.blocks.end += 1;
            continue;
        }
        let (right, proven) = judge(&groups, primary, unproven);
        found.push(Difference { blocks: block..block + 1, groups, damaged, right, proven });
    }
    found
}

/// Groups of replicas that agree about a block, the largest first; of equal ones, the group with
/// the lowest node first. A replica that knows its block to be damaged is in no group.
fn groups_at(sums: &BTreeMap<NodeId, Held>, block: usize) -> Vec<Vec<NodeId>> {
    let mut groups: Vec<(u64, Vec<NodeId>)> = Vec::new();
    for (&node, of) in sums {
        let Some(of) = of[block] else { continue };
        match groups.iter_mut().find(|(sum, _)| *sum == of) {
            Some((_, group)) => group.push(node),
            None => groups.push((of, vec![node])),
        }
    }
    let mut groups: Vec<_> = groups.into_iter().map(|(_, group)| group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

fn judge(groups: &[Vec<NodeId>], primary: NodeId, unproven: bool) -> (Option<usize>, bool) {
    let Some(most) = groups.first().map(Vec::len) else {
        reach!("replica: a block is damaged on every replica");
        return (None, false);
    };
    if planted(Bug::MinorityWins) {
        return (Some(groups.len() - 1), true);
    }
    if 2 * most > groups.iter().map(Vec::len).sum() {
        return (Some(0), true);
    }
    let primaries = groups.iter().position(|group| group.contains(&primary));
    (primaries.filter(|&at| unproven && groups[at].len() == most), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 is damage.
    fn compared(sums: &[(u32, &[u64])], unproven: bool) -> Vec<Difference> {
        let held = |sums: &[u64]| sums.iter().map(|sum| Some(*sum).filter(|sum| *sum > 0)).collect();
        let sums = sums.iter().map(|(node, sums)| (NodeId(*node), held(sums))).collect();
        compare(&sums, NodeId(2), unproven)
    }

    fn nodes(groups: &[&[u32]]) -> Vec<Vec<NodeId>> {
        groups.iter().map(|group| group.iter().copied().map(NodeId).collect()).collect()
    }

    #[test]
    fn a_majority_of_replicas_is_right_with_or_without_the_primary() {
        assert_eq!(compared(&[(1, &[5, 6]), (2, &[5, 6]), (3, &[5, 6])], true), []);
        let found = compared(&[(1, &[5, 6, 6, 7]), (2, &[5, 8, 9, 7]), (3, &[5, 6, 6, 1])], false);
        assert_eq!(found.len(), 2, "neighbours that the same replicas differ on are one");
        assert_eq!((found[0].blocks.clone(), found[0].right, found[0].proven), (1..3, Some(0), true));
        assert_eq!(found[0].groups, nodes(&[&[1, 3], &[2]]));
        assert_eq!((found[1].blocks.clone(), &found[1].groups), (3..4, &nodes(&[&[1, 2], &[3]])));
    }

    #[test]
    fn without_a_majority_the_primary_is_right_if_that_is_asked_for() {
        let two: &[(u32, &[u64])] = &[(1, &[5]), (2, &[6])];
        assert_eq!((compared(two, false)[0].right, compared(two, true)[0].right), (None, Some(1)));
        assert!(!compared(two, true)[0].proven);
        // With two votes against two no group is larger than the primary's. With two votes against
        // the primary alone, one is.
        let four: &[(u32, &[u64])] = &[(1, &[5]), (2, &[6]), (3, &[5]), (4, &[6])];
        assert_eq!(compared(four, true)[0].right, Some(1));
        let five: &[(u32, &[u64])] = &[(1, &[5]), (2, &[6]), (3, &[5]), (4, &[7]), (5, &[8])];
        assert_eq!(compared(five, true)[0].right, None);
        let three: &[(u32, &[u64])] = &[(1, &[5]), (2, &[6]), (3, &[7])];
        assert_eq!((compared(three, true)[0].right, compared(three, false)[0].right), (Some(1), None));
    }

    #[test]
    fn a_replica_that_knows_its_damage_has_no_vote() {
        // Of two replicas the secondary is right, with and without an order to believe the primary.
        for unproven in [false, true] {
            let found = compared(&[(1, &[5, 6]), (2, &[0, 6])], unproven);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].blocks.clone(), found[0].right, found[0].proven), (0..1, Some(0), true));
            assert_eq!((&found[0].groups, &found[0].damaged), (&nodes(&[&[1]]), &vec![NodeId(2)]));
        }
        // Two that are left do not agree: the primary counts, if it is one of them.
        let left: &[(u32, &[u64])] = &[(1, &[5]), (2, &[6]), (3, &[0])];
        assert_eq!((compared(left, false)[0].right, compared(left, true)[0].right), (None, Some(1)));
        let others: &[(u32, &[u64])] = &[(1, &[5]), (2, &[0]), (3, &[6])];
        assert_eq!(compared(others, true)[0].right, None);
        let nobody = compared(&[(1, &[0, 0]), (2, &[0, 7])], true);
        assert_eq!((nobody[0].right, nobody[1].right), (None, Some(0)));
        // Alone, damage is known nevertheless.
        assert_eq!(compared(&[(2, &[5, 0])], true)[0].blocks, 1..2);
    }
}
