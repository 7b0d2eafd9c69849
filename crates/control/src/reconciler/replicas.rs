//! Knowledge of this node about its own replicas beside the present reports of their engine: which
//! are stored, which have a job under way, and which cannot be used.

use super::job::{Ended, Order};
use super::{Failure, ReplicaSeen};
use crate::actions::{OLDER, ReplicaObserved, Unusable, asks_for_relief};
use mainstay_types::{ConfigVersion, Incarnation, ResourceId, Time};
use std::collections::BTreeMap;

/// A failed job of a replica is not started again before this time.
pub const RETRY_JOB_MS: u64 = 1000;
/// Least time between two equal orders to an engine (R18). The engine's reports show the effect of
/// an order after a durable write, or when its devices are gone.
pub const REPEAT_ORDER_MS: u64 = 100;

#[derive(Debug)]
pub(super) struct Replicas {
    /// By label.
    stored: BTreeMap<ResourceId, Incarnation>,
    /// Replicas with a job under way.
    busy: BTreeMap<ResourceId, Order>,
    /// Recent orders to the present engine process.
    told: BTreeMap<ResourceId, Vec<(Order, Time)>>,
    retry_at: BTreeMap<ResourceId, Time>,
    /// Replicas that the present engine process has given up.
    failed: BTreeMap<ResourceId, String>,
    /// Replicas that the engine process could not open, for a reason that does not pass by itself
    /// (R12).
    unusable: BTreeMap<ResourceId, Unusable>,
    /// Replicas that asked to be relieved: on which version of the record, and why.
    relief: BTreeMap<ResourceId, (ConfigVersion, String)>,
}

fn is_recent(now: Time, told: Time) -> bool {
    now.ms_since(told) < REPEAT_ORDER_MS
}

impl Replicas {
    pub fn new(stored: BTreeMap<ResourceId, Incarnation>) -> Self {
        Self {
            stored,
            busy: BTreeMap::new(),
            told: BTreeMap::new(),
            retry_at: BTreeMap::new(),
            failed: BTreeMap::new(),
            unusable: BTreeMap::new(),
            relief: BTreeMap::new(),
        }
    }

    pub fn stored(&self) -> &BTreeMap<ResourceId, Incarnation> {
        &self.stored
    }

    pub fn unusable(&self) -> &BTreeMap<ResourceId, Unusable> {
        &self.unusable
    }

    /// Another connection: whatever failed may succeed now.
    pub fn engine_connected(&mut self) {
        self.retry_at.clear();
    }

    /// Forgets the engine's reports about replicas: the next connection may be to another engine
    /// process.
    pub fn engine_disconnected(&mut self) {
        self.told.clear();
        self.failed.clear();
        self.unusable.clear();
        self.relief.clear();
    }

    pub fn given_up(&mut self, resource: ResourceId, reason: String) {
        self.failed.insert(resource, reason);
    }

    pub fn asks_for_relief(&mut self, resource: ResourceId, version: ConfigVersion, reason: String) {
        self.relief.insert(resource, (version, reason));
    }

    /// Whether a job begins now: none is under way, none failed a moment ago, and the same was not
    /// told a moment ago.
    pub fn begin(&mut self, now: Time, resource: ResourceId, order: &Order) -> bool {
        let waits = self.retry_at.get(&resource).is_some_and(|at| *at > now);
        let told = self.told.get(&resource).into_iter().flatten();
        let just_told = told.filter(|(_, at)| is_recent(now, *at)).any(|(told, _)| told == order);
        if waits || self.busy.contains_key(&resource) || just_told {
            return false;
        }
        self.retry_at.remove(&resource);
        self.busy.insert(resource, order.clone());
        true
    }

    pub fn ended(&mut self, now: Time, resource: ResourceId, result: Result<Ended, Failure>) {
        let Some(order) = self.busy.remove(&resource) else { return };
        match result {
            Ok(Ended::Made(incarnation)) => {
                self.stored.insert(resource, incarnation);
                self.unusable.remove(&resource);
            }
            Ok(Ended::Opened) => {
                self.unusable.remove(&resource);
                if matches!(order, Order::Reopen { .. } | Order::Replace { .. }) {
                    self.failed.remove(&resource);
                    self.relief.remove(&resource);
                }
            }
            Ok(Ended::Found(incarnation)) => {
                self.stored.insert(resource, incarnation);
                self.unusable.remove(&resource);
            }
            Ok(Ended::Gone) => {
                self.stored.remove(&resource);
                self.unusable.remove(&resource);
                if matches!(order, Order::Replace { .. }) {
                    self.failed.remove(&resource);
                    self.relief.remove(&resource);
                }
            }
            // The replica that was given up is gone. The next one is another replica.
            Ok(Ended::Dropped) => {
                self.stored.remove(&resource);
                self.failed.remove(&resource);
                self.relief.remove(&resource);
                self.unusable.remove(&resource);
            }
            Ok(Ended::Told) => {
                let told = self.told.entry(resource).or_default();
                told.retain(|(_, at)| is_recent(now, *at));
                told.push((order, now));
            }
            Err(Failure { why, stays }) => {
                self.retry_at.insert(resource, now.plus_ms(RETRY_JOB_MS));
                let opens = matches!(
                    order,
                    Order::Open { .. } | Order::Reopen { .. } | Order::Replace { .. } | Order::Make { .. }
                );
                if opens && stays {
                    self.unusable.insert(resource, why);
                }
            }
        }
    }

    /// When the next job that failed, or was of no effect yet, may be tried again, if that is to
    /// come.
    pub fn next_retry(&self, now: Time) -> Option<Time> {
        let told = self.told.values().flatten().map(|(_, at)| at.plus_ms(REPEAT_ORDER_MS));
        self.retry_at.values().copied().chain(told).filter(|at| *at > now).min()
    }

    pub fn observe(&self, resource: ResourceId, seen: &ReplicaSeen) -> ReplicaObserved {
        let relief = self
            .relief
            .get(&resource)
            .filter(|(asked, _)| asks_for_relief(*asked, seen.version, seen.role))
            .map(|(_, why)| why);
        let failed = self
            .failed
            .get(&resource)
            .or(relief)
            .cloned()
            .or_else(|| seen.store_failed.then(|| "its store failed and is no longer used".to_owned()))
            .or_else(|| seen.older.then(|| OLDER.to_owned()));
        ReplicaObserved {
            role: seen.role,
            epoch: seen.epoch,
            version: seen.version,
            incarnation: seen.incarnation,
            instance: seen.instance,
            reopened: seen.reopened,
            devices_ready: seen.devices_ready,
            continues: seen.continues,
            volumes: seen.volumes.clone(),
            snapshots: seen.snapshots.clone(),
            scrub: seen.scrub.clone(),
            feeds_all: seen.feeds_all,
            copies: seen.copies,
            failed,
            gone: None,
            store_failed: seen.store_failed,
            full: seen.full,
            older: seen.older,
        }
    }
}
