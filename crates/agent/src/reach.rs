//! Other nodes as this node reaches them: no connection, or one on which large answers get lost.
//!
//! Guarantees
//! - Every agent knows this of itself and says it when it is asked. So a third node also tells of a
//!   link that is broken between two nodes.
//! - A question is asked on a thread of its own, one at a time for each node, and has a time limit.
//! - An answer counts as lost only if the small answer that is asked for right after it arrives. A
//!   node that is slow, or of an earlier release, is not told.

use crate::clock::boot_now;
use crate::messages::{Call, CallReply};
use crate::threads::{lock, spawn};
use crate::transport::Transport;
use mainstay_control::State;
use mainstay_trust::Expect;
use mainstay_types::{NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Length of the answer that is asked for, in bytes: several packets of full size.
pub const LARGE: usize = 8192;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// A write that takes this long, in milliseconds, is not merely under way.
const HANGS_MS: u64 = 1000;
/// Pause between two questions to a node.
const EVERY: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Known {
    /// Nodes without a connection, and since when.
    unheard: BTreeMap<NodeId, Time>,
    /// Nodes whose large answers get lost, and since when.
    cropped: BTreeMap<NodeId, Time>,
    /// Milliseconds for which the disk of each node had not completed a write when the node was
    /// asked, and when it was asked.
    disks: BTreeMap<NodeId, (u64, Time)>,
    asked: BTreeMap<NodeId, Instant>,
    being_asked: BTreeSet<NodeId>,
}

/// See the top of this file. Clones share what they know.
#[derive(Clone, Default)]
pub struct Reach(Arc<Mutex<Known>>);

impl Reach {
    /// Looks at the connections, and asks the nodes whose turn it is. Waits for nothing.
    pub fn look(&self, own: NodeId, state: &State, transport: &Transport) {
        let others: BTreeMap<NodeId, String> = state
            .nodes
            .values()
            .filter(|node| node.id != own && state.alive(node.id))
            .map(|node| (node.id, node.agent_addr.clone()))
            .collect();
        let mut known = lock(&self.0);
        known.unheard.retain(|node, _| others.contains_key(node));
        known.cropped.retain(|node, _| others.contains_key(node));
        known.asked.retain(|node, _| others.contains_key(node));
        known.disks.retain(|node, _| others.contains_key(node));
        for (node, address) in others {
            if !transport.is_connected(node) {
                known.unheard.entry(node).or_insert_with(boot_now);
                known.cropped.remove(&node);
                continue;
            }
            known.unheard.remove(&node);
            let is_due = known.asked.get(&node).is_none_or(|at| at.elapsed() >= EVERY);
            if is_due && known.being_asked.insert(node) {
                known.asked.insert(node, Instant::now());
                let (this, transport) = (self.clone(), transport.clone());
                spawn("agent-reach", move || this.ask(node, &address, &transport));
            }
        }
    }

    fn ask(&self, node: NodeId, address: &str, transport: &Transport) {
        let call = |question: Call| transport.call(address, Expect::Node(node), &question, PATIENCE);
        let began = boot_now();
        let is_lost = || {
            let asked = Instant::now();
            let reply = call(Call::Large);
            reply.is_err() && asked.elapsed() >= PATIENCE
        };
        let answers = || call(Call::AmI).is_ok();
        if let Ok(CallReply::Waits(waits)) = call(Call::Waits) {
            lock(&self.0).disks.insert(node, (waits.disk_ms, boot_now()));
        }
        let is_lost = is_lost() && answers() && is_lost() && answers();
        let mut known = lock(&self.0);
        known.being_asked.remove(&node);
        if is_lost {
            known.cropped.entry(node).or_insert(began);
        } else {
            known.cropped.remove(&node);
        }
    }

    /// For how long there has been no connection to each of these nodes, in milliseconds.
    #[must_use]
    pub fn unheard(&self) -> BTreeMap<NodeId, u64> {
        aged(&lock(&self.0).unheard)
    }

    /// For how long large answers of each of these nodes have been lost, in milliseconds.
    #[must_use]
    pub fn cropped(&self) -> BTreeMap<NodeId, u64> {
        aged(&lock(&self.0).cropped)
    }

    /// For how long the disk of each node has not completed a write, in milliseconds, as the node
    /// said last.
    #[must_use]
    pub fn disks(&self) -> BTreeMap<NodeId, u64> {
        let now = boot_now();
        let hangs = |(node, (ms, at)): (&NodeId, &(u64, Time))| {
            (*ms >= HANGS_MS).then(|| (*node, ms + now.ms_since(*at)))
        };
        lock(&self.0).disks.iter().filter_map(hangs).collect()
    }
}

fn aged(since: &BTreeMap<NodeId, Time>) -> BTreeMap<NodeId, u64> {
    let now = boot_now();
    since.iter().map(|(node, at)| (*node, now.ms_since(*at))).collect()
}
