//! When a node gives its lease up because what it leads with stands still without an error (R19,
//! R28).
//!
//! An engine that is stopped, and a disk that hangs, report no error. The agent of such a node is
//! well, so its heartbeats go on, the node keeps its lease, and every write waits for ever. So the
//! agent measures how long they stand still, and stops renewing the lease of its node. What follows
//! is the same as for a node that is cut off: its services are silent before its lease ends, the
//! other nodes declare it dead, and another member takes over. No other proof is needed that two
//! nodes do not serve at the same time (R10).
//!
//! Guarantees
//! - A node gives its lease up when its engine, or the journal of a primary, has stood still for
//!   the length of a lease ([`STANDS_STILL_MS`] at least, [`STANDS_STILL_MS_MAX`] at most), and no
//!   earlier. Time in which the agent itself did not run does not count.
//! - It does so only while it is primary of a resource that another node could take over at this
//!   moment. A journal counts only if another such member answers meanwhile: if all of them wait,
//!   a move would help nothing.
//! - It asks for a lease again as soon as nothing is left to take over, or the cause is over. A
//!   journal that is no longer measured, because its replica does not lead any more, is not taken
//!   for well before the other nodes had the time to declare the node dead.
//!
//! ```text
//!            stands still for long, and another node could take over
//!   Holds ────────────────────────────────────────────────────────────▶ GivesUp(cause)
//!     ▲                                                                   │
//!     └──────────────── the cause is over, or nothing is to be taken over ┘
//! ```

use crate::state::{Resource, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{NodeId, ResourceId, Time, reach};
use std::collections::{BTreeMap, BTreeSet};

/// Shortest and longest time for which an engine or a journal stands still before its node gives
/// its lease up. Between them it is the length of the lease: a shorter standstill than that is what
/// the operator has chosen to bear. The longest time, the time between two looks and the margin of
/// the lease are less than 5 s together.
pub const STANDS_STILL_MS: u64 = 2500;
pub const STANDS_STILL_MS_MAX: u64 = 4000;
/// The most that counts of the time between two looks, in milliseconds. If an agent looks more
/// rarely, it did not run meanwhile, and an answer may be there that it has not read.
pub const LOOK_MS_MAX: u64 = 1000;

/// A cause for which a node gives its lease up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Still {
    /// The engine of this node owes an answer and gives none.
    Engine,
    /// The journal of this node's primary completes no write.
    Journal(ResourceId),
}

/// The journal of a replica that leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalWait {
    pub resource: ResourceId,
    /// Age of the oldest write that is not durable, in milliseconds; 0 if there is none.
    pub ms: u64,
    /// The nodes whose replicas acknowledge what they are sent.
    pub answering: BTreeSet<NodeId>,
}

/// Measures of an agent at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// For how long the engine has owed an answer, in milliseconds.
    pub engine_ms: u64,
    /// Every replica that leads, unless the engine does not tell.
    pub journals: Vec<JournalWait>,
}

/// Change that a look has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    GivesUp(Still),
    HoldsAgain(Still),
}

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub struct Standstill {
    looked: Option<Time>,
    /// How long each cause has been there in time that this agent ran, in milliseconds.
    lasted_ms: BTreeMap<Still, u64>,
    gives_up: Option<(Still, Time)>,
}

impl Measured {
    fn ages(&self) -> BTreeMap<Still, u64> {
        let journals = self.journals.iter().map(|journal| (Still::Journal(journal.resource), journal.ms));
        journals.chain([(Still::Engine, self.engine_ms)]).collect()
    }
}

impl Standstill {
    /// The cause for which this node does not renew its lease at this moment.
    #[must_use]
    pub fn gives_up(&self) -> Option<Still> {
        self.gives_up.map(|(still, _)| still)
    }

    /// Whether something has stood still for a moment, so that a look is due soon.
    #[must_use]
    pub fn suspects(&self) -> bool {
        !self.lasted_ms.is_empty()
    }

    /// Takes in what is measured now.
    pub fn look(&mut self, now: Time, node: NodeId, state: &State, seen: &Measured) -> Option<Turn> {
        let passed_ms = self.looked.map_or(0, |looked| now.ms_since(looked)).min(LOOK_MS_MAX);
        self.looked = Some(now);
        let ages = seen.ages();
        let old: BTreeMap<Still, u64> =
            ages.iter().filter(|(_, ms)| **ms >= LOOK_MS_MAX).map(|(still, ms)| (*still, *ms)).collect();
        self.lasted_ms.retain(|still, _| old.contains_key(still));
        for (still, ms) in old {
            let lasted = self.lasted_ms.entry(still).or_insert(LOOK_MS_MAX - passed_ms);
            *lasted = ms.min(lasted.saturating_add(passed_ms));
        }
        if let Some((still, since)) = self.gives_up {
            let is_over = match ages.get(&still) {
                Some(ms) => *ms < LOOK_MS_MAX,
                None => now.ms_since(since) >= death_ms(state),
            };
            if !is_over && led(node, state, still).any(|_| true) {
                return None;
            }
            reach!("control: a node that stood still asks for a lease again");
            self.gives_up = None;
            return Some(Turn::HoldsAgain(still));
        }
        let long_ms = state.settings.lease_ms.clamp(STANDS_STILL_MS, STANDS_STILL_MS_MAX);
        let counts = |(still, ms): &(&Still, &u64)| {
            **ms >= long_ms && helps(node, state, seen, **still) && !planted(Bug::StandstillKept)
        };
        let still = *self.lasted_ms.iter().find(counts)?.0;
        reach!("control: a node gives its lease up because it stands still");
        self.gives_up = Some((still, now));
        Some(Turn::GivesUp(still))
    }
}

/// Time within which a node that does not renew its lease is declared dead, if a majority is there.
/// It is counted generously: the node that waits too long only lacks a lease for longer.
fn death_ms(state: &State) -> u64 {
    2 * (state.settings.lease_ms + state.settings.margin_ms) + 1000
}

/// The resources of which this node is primary, which wait for `still`, and which another node
/// could take over; with the other nodes.
fn led(node: NodeId, state: &State, still: Still) -> impl Iterator<Item = Vec<NodeId>> {
    let concerned = move |resource: &&Resource| match still {
        Still::Engine => true,
        Still::Journal(id) => id == resource.id,
    };
    // In maintenance no other node takes over, so nothing is gained.
    let leads = move |resource: &&Resource| {
        resource.record.primary == Some(node) && !resource.deleting && state.held(resource).is_none()
    };
    let resources = state.resources.values().filter(concerned).filter(leads);
    let others = move |resource: &Resource| -> Vec<NodeId> {
        let followers = resource.record.failover_ready.iter().map(|member| member.node);
        let followers = followers
            .filter(|other| resource.record.policy.takeover() && state.lives_whole(resource, *other));
        state.candidates(resource).into_iter().chain(followers).filter(|other| *other != node).collect()
    };
    resources.map(others).filter(|others| !others.is_empty() || planted(Bug::StandstillAlone))
}

/// Whether another node could go on with what waits here for `still`.
fn helps(node: NodeId, state: &State, seen: &Measured, still: Still) -> bool {
    let answering = match still {
        Still::Engine => return led(node, state, still).any(|_| true),
        Still::Journal(id) => seen.journals.iter().find(|journal| journal.resource == id),
    };
    let answers = |other: &NodeId| answering.is_some_and(|journal| journal.answering.contains(other));
    led(node, state, still).any(|others| others.iter().any(answers) || planted(Bug::StandstillAlone))
}

impl Turn {
    /// The turn in words, for an event about this node.
    #[must_use]
    pub fn words(&self, state: &State) -> String {
        let cause = |still: &Still| match still {
            Still::Engine => "its engine does not answer".to_owned(),
            Still::Journal(id) => {
                let name = state.resources.get(id).map(|resource| resource.name.clone());
                let name = name.unwrap_or_else(|| id.to_string());
                format!("the journal of {name} completes no write, and reports no error")
            }
        };
        match self {
            Self::GivesUp(still) => {
                format!("gives its lease up, so that another node takes over: {}", cause(still))
            }
            Self::HoldsAgain(still) => {
                format!("asks for a lease again; it had given it up because {}", cause(still))
            }
        }
    }
}
