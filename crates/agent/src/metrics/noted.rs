//! Counts that only the agent can make: promotions by their cause, starts of services.
//!
//! The agent reads why this node is named primary off the replicated state, by comparing each view
//! with the one before. But an agent that starts goes through much of its cluster's past again,
//! entry by entry. So a promotion counts when the engine says that it serves the epoch, and began
//! to serve after this agent was started. That happens once for each promotion. Starts of services
//! are counted as the reconciler hears of them.
//!
//! All of it happens on threads that must not wait. A view costs a look at every record, and a
//! scrape holds the lock only while it copies.

use mainstay_api::engine::ReplicaStatus;
use mainstay_api::metrics::StepCounts;
use mainstay_control::State;
use mainstay_control::state::Resource;
use mainstay_types::{Epoch, NodeId, NodeStatus, ResourceId, Role, ServicePhase, Time};
use std::collections::BTreeMap;

/// Why this node became primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// There was no primary before.
    First,
    /// The primary before is dead, or could not go on.
    Failover,
    /// The primary before lives and still has the replica.
    Handover,
    /// An operator forced the promotion (R11).
    Forced,
    /// The node took over automatically, as a follower in mode A.
    Takeover,
}

impl Cause {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Failover => "failover",
            Self::Handover => "handover",
            Self::Forced => "forced",
            Self::Takeover => "takeover",
        }
    }
}

/// See the top of this file.
#[derive(Clone, Default, Debug)]
pub struct Noted {
    pub promotions: BTreeMap<(ResourceId, Cause), u64>,
    /// By the name of the service.
    pub starts: BTreeMap<String, StepCounts>,
    /// Start of the agent; earlier promotions do not count.
    since: Time,
    /// Epoch and primary of each record, as of the last view; `None` before the first.
    records: Option<BTreeMap<ResourceId, (Epoch, Option<NodeId>)>>,
    /// Epochs in which this node was named primary and that are not counted.
    due: BTreeMap<ResourceId, (Epoch, Cause)>,
    /// The last epoch that the engine has begun to serve.
    served: BTreeMap<ResourceId, Epoch>,
    /// Services that are being started here, and since when.
    starting: BTreeMap<String, Time>,
}

impl Noted {
    #[must_use]
    pub fn new(since: Time) -> Self {
        Self { since, ..Self::default() }
    }

    /// The state of the cluster has changed, or is seen for the first time.
    pub fn state(&mut self, own: NodeId, state: &State) {
        let records = state.resources.values();
        let records = records.map(|one| (one.id, (one.record.epoch, one.record.primary))).collect();
        if let Some(before) = self.records.replace(records) {
            for resource in state.resources.values() {
                let (epoch, primary) = before.get(&resource.id).copied().unwrap_or_default();
                if resource.record.epoch > epoch {
                    self.due.remove(&resource.id);
                    if resource.record.primary == Some(own) {
                        let named = (resource.record.epoch, cause(own, state, resource, primary));
                        self.due.insert(resource.id, named);
                        self.settle(resource.id);
                    }
                }
            }
        }
        self.promotions.retain(|(resource, _), _| state.resources.contains_key(resource));
        self.due.retain(|resource, _| state.resources.contains_key(resource));
        self.served.retain(|resource, _| state.resources.contains_key(resource));
        self.starts.retain(|name, _| state.services.contains_key(name));
    }

    /// Takes the engine's report of a replica on this node.
    pub fn replica(&mut self, status: &ReplicaStatus) {
        if status.role == Role::Primary && status.promoted_at_us > self.since {
            self.served.insert(status.resource, status.epoch);
            self.settle(status.resource);
        }
    }

    /// Counts a promotion that is both named and served.
    fn settle(&mut self, resource: ResourceId) {
        if let Some(&(epoch, cause)) = self.due.get(&resource)
            && self.served.get(&resource) == Some(&epoch)
        {
            self.due.remove(&resource);
            *self.promotions.entry((resource, cause)).or_default() += 1;
        }
    }

    /// A service has reached this on this node.
    pub fn reached(&mut self, service: &str, phase: ServicePhase, now: Time) {
        match phase {
            // A step after the other is reported with the same phase.
            ServicePhase::Starting if self.starting.contains_key(service) => {}
            ServicePhase::Starting => drop(self.starting.insert(service.to_owned(), now)),
            ServicePhase::Running => {
                if let Some(since) = self.starting.remove(service) {
                    self.starts.entry(service.to_owned()).or_default().note(now.us_since(since));
                }
            }
            _ => drop(self.starting.remove(service)),
        }
    }
}

/// Why this node is primary in a new epoch, in which `before` was in the last view.
fn cause(own: NodeId, state: &State, resource: &Resource, before: Option<NodeId>) -> Cause {
    let forced = resource.forced.as_ref().filter(|forced| forced.epoch == resource.record.epoch);
    match (forced, before) {
        (Some(forced), _) if forced.told.is_some() => Cause::Forced,
        (Some(_), _) => Cause::Takeover,
        // If `before` is this node, the view has missed the primary in between. The next arm counts
        // that as a failover.
        (None, Some(before)) if before != own => {
            let lives = state.nodes.get(&before).is_some_and(|node| node.status == NodeStatus::Alive);
            let member = resource.record.iss_member(before).is_some();
            if lives && member { Cause::Handover } else { Cause::Failover }
        }
        (None, Some(_)) => Cause::Failover,
        (None, None) if resource.record.epoch <= Epoch(1) => Cause::First,
        (None, None) => Cause::Failover,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_control::state::{Command, Entry, Outcome, ResourceSpec, Settings};
    use mainstay_types::{Choices, ConfigVersion, Incarnation};

    const N1: NodeId = NodeId(1);
    const N2: NodeId = NodeId(2);

    fn apply(state: &mut State, command: Command) -> Outcome {
        let outcome = state.apply(Entry { at_ms: 0, command });
        assert!(!matches!(outcome, Outcome::Refused(_) | Outcome::Conflict { .. }), "{outcome:?}");
        outcome
    }

    fn add_node(state: &mut State, name: &str, nonce: u64) -> NodeId {
        let command = Command::AddNode {
            name: name.into(),
            agent_addr: format!("{name}:7400"),
            engine_addr: format!("{name}:7401"),
            voter: true,
            witness: false,
            nonce,
        };
        let Outcome::NodeAdded { node, .. } = apply(state, command) else { panic!("no node") };
        let seen = Command::VotersSeen { node, voters_version: state.voters_version };
        apply(state, seen);
        node
    }

    /// Two nodes with a replica each.
    fn cluster() -> (State, ResourceId) {
        let mut state = State::default();
        let settings = Settings::default();
        apply(&mut state, Command::InitCluster { id: 1, name: "c".into(), settings });
        assert_eq!(add_node(&mut state, "n1", 1), N1);
        assert_eq!(add_node(&mut state, "n2", 2), N2);
        let spec = ResourceSpec {
            volumes: vec![1 << 30],
            journal_bytes: 64 << 20,
            replicas: vec![N1, N2],
            preferred: vec![N1],
        };
        let Outcome::ResourceCreated { resource } = apply(
            &mut state,
            Command::CreateResource { name: "db".into(), spec, choices: Choices::default(), origin: None },
        ) else {
            panic!("no resource")
        };
        (state, resource)
    }

    fn version(state: &State, resource: ResourceId) -> ConfigVersion {
        state.resources[&resource].record.version
    }

    fn ready(state: &mut State, resource: ResourceId, node: NodeId) {
        let version = version(state, resource);
        let incarnation = Incarnation(100 + u64::from(node.0));
        apply(state, Command::ReplicaReady { resource, version, node, incarnation });
    }

    fn promote(state: &mut State, resource: ResourceId, by: NodeId, to: NodeId) {
        let expect_version = version(state, resource);
        apply(state, Command::Promote { resource, expect_version, by, to, reason: "test".into() });
    }

    #[test]
    fn a_promotion_counts_where_it_leads_and_by_its_cause() {
        let (mut state, resource) = cluster();
        let mut noted = [Noted::default(), Noted::default()];
        // The engines serve what the record says, and say so again and again.
        let mut look = |state: &State, promoted_at: u64| {
            for (noted, own) in noted.iter_mut().zip([N1, N2]) {
                noted.state(own, state);
                let record = &state.resources[&resource].record;
                let primary = record.primary == Some(own);
                noted.replica(&ReplicaStatus {
                    resource,
                    role: if primary { Role::Primary } else { Role::Secondary },
                    epoch: record.epoch,
                    promoted_at_us: Time(if primary { promoted_at } else { 0 }),
                    ..ReplicaStatus::default()
                });
            }
            noted.clone().map(|noted| {
                noted.promotions.into_iter().map(|((_, cause), count)| (cause, count)).collect::<Vec<_>>()
            })
        };
        assert_eq!(look(&state, 0), [vec![], vec![]]);
        ready(&mut state, resource, N1);
        ready(&mut state, resource, N2);
        if state.resources[&resource].record.primary.is_none() {
            promote(&mut state, resource, N1, N1);
        }
        let first = state.clone();
        // Named, and not served yet: it was served before this agent was started, or is not at all.
        assert_eq!(look(&state, 0), [vec![], vec![]]);
        assert_eq!(look(&state, 150), [vec![(Cause::First, 1)], vec![]]);
        promote(&mut state, resource, N1, N2);
        assert_eq!(look(&state, 200), [vec![(Cause::First, 1)], vec![(Cause::Handover, 1)]]);
        // The same state again is nothing new.
        assert_eq!(look(&state, 200), [vec![(Cause::First, 1)], vec![(Cause::Handover, 1)]]);
        let generation = state.nodes[&N2].generation;
        apply(&mut state, Command::NodeDead { node: N2, generation });
        assert_eq!(state.resources[&resource].record.primary, Some(N1));
        let counted = vec![(Cause::First, 1), (Cause::Failover, 1)];
        assert_eq!(look(&state, 300), [counted, vec![(Cause::Handover, 1)]]);
        // An agent that starts goes through the past again, and its engine serves since before.
        let mut new = Noted::new(Time(1000));
        for state in [&State::default(), &first, &state] {
            new.state(N1, state);
            let (role, epoch) = (Role::Primary, Epoch(3));
            let status = ReplicaStatus {
                resource,
                role,
                epoch,
                promoted_at_us: Time(300),
                ..ReplicaStatus::default()
            };
            new.replica(&status);
        }
        assert!(new.promotions.is_empty(), "{new:?}");
    }

    #[test]
    fn a_start_counts_when_the_service_runs() {
        let mut noted = Noted::default();
        let phases = [
            (ServicePhase::Running, 1),
            (ServicePhase::Starting, 10),
            (ServicePhase::Starting, 20),
            (ServicePhase::Running, 110),
            (ServicePhase::Running, 120),
            (ServicePhase::Starting, 200),
            (ServicePhase::Stopping, 210),
            (ServicePhase::Starting, 300),
            (ServicePhase::Running, 350),
        ];
        for (phase, at) in phases {
            noted.reached("db", phase, Time(at));
        }
        assert_eq!(noted.starts["db"], StepCounts { count: 2, sum_us: 100 + 50 });
    }
}
