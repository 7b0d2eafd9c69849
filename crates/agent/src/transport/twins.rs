//! Two machines with one identity, as a copied disk makes them.
//!
//! Guarantees
//! - While a process is heard as a node, no message of another process as the same node is taken.
//! - A process that follows another one on the same machine is taken at once: the connections of the one before it have ended.
//!   After a power cut they have not, and it is taken when nothing was heard of the one before for [`SILENCE`].

use crate::messages::LaneKind;
use crate::threads::lock;
use mainstay_types::NodeId;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A process that has said nothing for so long does not count as living. Heartbeats come several times as often.
const SILENCE: Duration = Duration::from_millis(1500);

/// The process that speaks as a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    run: u64,
    from: String,
    /// Lanes that it has open.
    lanes: usize,
    heard: Instant,
}

impl Holder {
    pub(super) fn new(run: u64, from: &str) -> Self {
        Self { run, from: from.to_owned(), lanes: 0, heard: Instant::now() }
    }

    fn lives(&self, now: Instant) -> bool {
        self.lanes > 0 && now.saturating_duration_since(self.heard) < SILENCE
    }
}

#[derive(Default)]
pub(super) struct Holders(Mutex<BTreeMap<NodeId, Holder>>);

/// An open lane; dropped when the connection ends.
pub(super) struct Open<'a> {
    holders: &'a Holders,
    /// `None` for questions, which may come from anybody.
    lane: Option<(NodeId, u64)>,
}

impl Holders {
    /// A connection of `node` begins.
    ///
    /// # Errors
    /// The address of another process that is heard as this node.
    pub(super) fn open(&self, node: NodeId, speaker: Holder, lane: LaneKind) -> Result<Open<'_>, String> {
        if speaker.run == 0 || lane == LaneKind::Call {
            return Ok(Open { holders: self, lane: None });
        }
        let mut holders = lock(&self.0);
        let holder = holders.entry(node).or_insert_with(|| speaker.clone());
        if holder.run != speaker.run {
            if holder.lives(speaker.heard) {
                return Err(holder.from.clone());
            }
            *holder = speaker.clone();
        }
        holder.lanes += 1;
        holder.heard = speaker.heard;
        Ok(Open { holders: self, lane: Some((node, speaker.run)) })
    }

    pub(super) fn heard(&self, node: NodeId, run: u64) {
        if let Some(holder) = lock(&self.0).get_mut(&node).filter(|holder| holder.run == run) {
            holder.heard = Instant::now();
        }
    }

    /// Where another process than this one is heard as `node`.
    pub(super) fn other(&self, node: NodeId, run: u64) -> Option<String> {
        let holders = lock(&self.0);
        let holder = holders.get(&node)?;
        (holder.run != run && holder.lives(Instant::now())).then(|| holder.from.clone())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Some((node, run)) = self.lane else { return };
        if let Some(holder) = lock(&self.holders.0).get_mut(&node).filter(|holder| holder.run == run) {
            holder.lanes -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    fn at(run: u64, host: u8) -> Holder {
        Holder::new(run, &format!("10.0.0.{host}"))
    }

    #[test]
    fn a_copy_of_a_node_is_refused_while_the_node_lives_and_its_next_process_is_not() {
        let holders = Holders::default();
        let lease = holders.open(NODE, at(1, 2), LaneKind::Lease).ok().unwrap();
        let log = holders.open(NODE, at(1, 2), LaneKind::Log).ok().unwrap();
        let first = "10.0.0.2".to_owned();
        assert_eq!(holders.open(NODE, at(7, 9), LaneKind::Lease).err(), Some(first.clone()));
        assert_eq!((holders.other(NODE, 7), holders.other(NODE, 1)), (Some(first.clone()), None));
        drop(lease);
        assert_eq!(holders.open(NODE, at(7, 9), LaneKind::Lease).err(), Some(first.clone()));
        // The process has ended, and all of its connections with it.
        drop(log);
        let next = holders.open(NODE, at(3, 2), LaneKind::Lease).ok().unwrap();
        assert_eq!(holders.other(NODE, 7), Some(first.clone()));
        drop(next);
        assert_eq!(holders.other(NODE, 7), None);
    }

    #[test]
    fn a_process_whose_power_was_cut_gives_way_after_a_while() {
        let holders = Holders::default();
        let _left = holders.open(NODE, at(1, 2), LaneKind::Lease).ok().unwrap();
        let later = Holder { heard: Instant::now() + SILENCE, ..at(3, 2) };
        assert!(holders.open(NODE, later, LaneKind::Lease).is_ok());
        // What the first connection still says when it ends concerns the first process only.
        assert_eq!(holders.other(NODE, 3), None);
    }

    #[test]
    fn whoever_does_not_say_which_process_it_is_is_taken_as_before() {
        let holders = Holders::default();
        let _one = holders.open(NODE, at(0, 2), LaneKind::Lease).ok().unwrap();
        assert!(holders.open(NODE, at(5, 9), LaneKind::Lease).is_ok());
        assert!(holders.open(NODE, at(0, 2), LaneKind::Log).is_ok());
    }
}
