//! Leases in true time (R10, S10). No node takes over from a dead node before the dead node's lease
//! has truly ended, even when a clock says so. No read completes on the dead node after that.

use super::Violation;
use mainstay_types::{NodeId, ResourceId};
use std::collections::BTreeMap;

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub struct LeaseOracle {
    /// Latest end of the lease that each node was ever told, in true microseconds. A lease is not
    /// shortened: a node that was told the later end may still act on it.
    until_us: BTreeMap<NodeId, u64>,
}

impl LeaseOracle {
    /// `node` holds a lease until this true time.
    ///
    /// # Errors
    /// S10, when the node counts as dead and the lease has not ended: others rely on its end.
    pub fn lease(&mut self, at_us: u64, node: NodeId, until_us: u64, alive: bool) -> Result<(), Violation> {
        let known = self.until_us.entry(node).or_default();
        *known = until_us.max(*known);
        if alive || until_us <= at_us {
            return Ok(());
        }
        let text = format!("{node} counts as dead and gets a lease for {} us more", until_us - at_us);
        Err(Violation { id: "S10", text })
    }

    /// A majority of voters has made `by` propose that `dead` counts as dead.
    ///
    /// # Errors
    /// S10, when it still holds its lease.
    pub fn declared_dead(&self, at_us: u64, by: NodeId, dead: NodeId) -> Result<(), Violation> {
        let ends_us = self.ends_us(dead);
        if at_us >= ends_us {
            return Ok(());
        }
        let text = format!("{by} declares {dead} dead, whose lease ends only {} us later", ends_us - at_us);
        Err(Violation { id: "S10", text })
    }

    /// When the lease of `node` ends; 0 if it never had one.
    #[must_use]
    pub fn ends_us(&self, node: NodeId) -> u64 {
        self.until_us.get(&node).copied().unwrap_or_default()
    }

    /// The control plane's record names another primary because the old one counts as dead.
    ///
    /// # Errors
    /// S10, when the old one still holds its lease.
    pub fn promoted(
        &self,
        at_us: u64,
        resource: ResourceId,
        old: NodeId,
        new: NodeId,
    ) -> Result<(), Violation> {
        let ends_us = self.ends_us(old);
        if at_us >= ends_us {
            return Ok(());
        }
        let text = format!(
            "{new} is made primary of {} in place of {old}, whose lease ends only {} us later",
            crate::words::resource(resource),
            ends_us - at_us
        );
        Err(Violation { id: "S10", text })
    }

    /// A client has been given data by `node`.
    ///
    /// # Errors
    /// S10, when the node's lease has ended.
    pub fn read_completed(&self, at_us: u64, node: NodeId) -> Result<(), Violation> {
        let ends_us = self.ends_us(node);
        if at_us <= ends_us {
            return Ok(());
        }
        let text = format!("a read completed on {node}, whose lease ended {} us before", at_us - ends_us);
        Err(Violation { id: "S10", text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: ResourceId = ResourceId(1);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    #[test]
    fn a_dead_node_is_replaced_only_after_its_lease() {
        let mut oracle = LeaseOracle::default();
        oracle.promoted(0, R, A, B).unwrap();
        oracle.lease(0, A, 5_000, true).unwrap();
        oracle.lease(0, B, 9_000, true).unwrap();
        assert_eq!(oracle.promoted(4_999, R, A, B).unwrap_err().id, "S10");
        oracle.promoted(5_000, R, A, B).unwrap();
        assert_eq!(oracle.promoted(5_000, R, B, A).unwrap_err().id, "S10");
    }

    #[test]
    fn no_node_is_declared_dead_within_its_lease_or_gets_a_lease_afterwards() {
        let mut oracle = LeaseOracle::default();
        oracle.lease(0, A, 5_000, true).unwrap();
        assert_eq!(oracle.declared_dead(4_999, B, A).unwrap_err().id, "S10");
        oracle.declared_dead(5_000, B, A).unwrap();
        oracle.lease(5_500, A, 5_400, false).unwrap();
        assert_eq!(oracle.lease(5_500, A, 6_000, false).unwrap_err().id, "S10");
    }

    #[test]
    fn no_read_completes_after_the_lease() {
        let mut oracle = LeaseOracle::default();
        assert_eq!(oracle.read_completed(1, A).unwrap_err().id, "S10", "a node that never had a lease");
        oracle.lease(0, A, 5_000, true).unwrap();
        oracle.read_completed(5_000, A).unwrap();
        assert_eq!(oracle.read_completed(5_001, A).unwrap_err().id, "S10");
        oracle.lease(0, A, 7_000, true).unwrap();
        oracle.read_completed(5_001, A).unwrap();
        // An earlier end that comes late takes nothing away from what was promised.
        oracle.lease(0, A, 6_000, true).unwrap();
        assert_eq!(oracle.promoted(6_500, R, A, B).unwrap_err().id, "S10");
    }
}
