//! The node's limit for filling replicas elsewhere (`c-max-rate`), divided evenly among the
//! resources that fill some.
//!
//! Guarantee: what all of them may fill together is at most the limit. A resource whose record
//! brings another limit takes that whole at first, so every resource is told its share anew then.

use mainstay_types::ResourceId;
use std::collections::BTreeMap;

/// Limits of the resources that fill, as their records have them, in bytes per second. They differ
/// only until the last record of a change has come.
#[derive(Debug, Default)]
pub struct FillRates(BTreeMap<ResourceId, u64>);

impl FillRates {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the limit of a resource that fills; `None` for one that does not, or has no limit.
    /// Returns the share of each of [`Self::resources`] if that is to be told anew.
    pub fn note(&mut self, resource: ResourceId, limit: Option<u64>) -> Option<u64> {
        let before = match limit {
            Some(limit) => self.0.insert(resource, limit),
            None => self.0.remove(&resource),
        };
        if before == limit {
            return None;
        }
        let limit = self.0.values().copied().min()?;
        Some((limit / self.0.len() as u64).max(1))
    }

    /// The resources that fill.
    #[must_use]
    pub fn resources(&self) -> Vec<ResourceId> {
        self.0.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ResourceId = ResourceId(1);
    const B: ResourceId = ResourceId(2);

    #[test]
    fn the_limit_is_divided_among_resources_that_fill() {
        let mut rates = FillRates::default();
        assert_eq!(rates.note(A, None), None, "no resource fills");
        assert_eq!(rates.note(A, Some(100)), Some(100));
        assert_eq!(rates.note(A, Some(100)), None, "A has its share");
        assert_eq!(rates.note(B, Some(100)), Some(50));
        assert_eq!((rates.note(A, None), rates.resources()), (Some(100), vec![B]));
        assert_eq!((rates.note(B, None), rates.is_empty()), (None, true));
    }

    #[test]
    fn every_record_with_another_limit_is_followed_by_new_shares() {
        let mut rates = FillRates::default();
        rates.note(A, Some(100));
        rates.note(B, Some(100));
        assert_eq!(rates.note(A, Some(40)), Some(20));
        assert_eq!(rates.note(B, Some(40)), Some(20), "B took the whole limit with its record");
        assert_eq!(rates.note(A, Some(400)), Some(20), "B has not heard of it");
        assert_eq!(rates.note(B, Some(400)), Some(200));
        assert_eq!(rates.note(A, None), Some(400), "A has no limit any more, and B has");
    }
}
