//! Scrubs on a schedule, and what is remembered of scrubs (R17, [ADR
//! 16](../../../docs/adr/0016-scheduled-scrubs.md)).
//!
//! ```text
//! due ─▶ BeginScrub: the resource has the turn of its nodes ─▶ the primary's engine scrubs ─▶ ScrubEnded ─▶ whole: until the next is due
//!                                 │                                                              └─▶ not whole ─┐
//!                                 └─▶ another epoch: it has ended with its primary ─────────────────────────────┴─▶ again soon
//! ```
//!
//! - The schedule begins a scrub only when every replica is in sync. Of the resources that share a
//!   node, only one has its turn at a time.
//! - The state remembers how the last whole scrub ended, whichever replica becomes primary. It also
//!   remembers a scrub that came to nothing. That one is tried again after a while, and after a
//!   longer while if it fails again.
//! - An operator's scrub counts as well. If an operator ends a scrub, none begins before the next
//!   is due.
//! - The times at which scrubs are due are spread evenly over the interval, by the number of the
//!   resource.
//! - Wall clocks decide when scrubs begin, and nothing else. A wrong clock makes a scrub come
//!   early, or late by no more than two intervals and a half.

use crate::state::{Command, Outcome, Resource, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    EXTENT_BYTES, Epoch, Mode, NodeId, ResourceId, ScrubEnd, ScrubRepair, ScrubState, ScrubSummary, Severity,
    reach,
};
use serde::{Deserialize, Serialize};

/// After the first scrub that came to nothing; twice as long after the next, and so on.
const RETRY_MS: u64 = 600_000;

/// All about the scrubs of one resource.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scrubs {
    /// Wall clock of when the interval was chosen.
    pub since_ms: u64,
    /// Set while the schedule begins a scrub, or has begun one.
    pub turn: Option<Turn>,
    /// The last one that compared all replicas.
    pub whole: Option<Scrubbed>,
    /// The last scrub since then that did not compare all replicas.
    pub failed: Option<Scrubbed>,
    /// How many scrubs came to nothing since the last whole one, without those that an operator
    /// ended.
    pub failures: u32,
}

/// One scrub of the schedule, from when it is decided to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// The epoch in which the turn began. The turn ends when the epoch ends.
    pub epoch: Epoch,
    /// Wall clock, for display.
    pub at_ms: u64,
}

/// A scrub that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scrubbed {
    /// Epoch in which the scrub was led. With `ordinal` it tells which scrub of the leading replica
    /// this was. 0: no scrub was heard of.
    pub epoch: Epoch,
    pub ordinal: u64,
    /// Wall clock of the end.
    pub at_ms: u64,
    pub took_ms: u64,
    pub end: ScrubEnd,
    /// Extents of all volumes, and how many of them were compared.
    pub extents: u64,
    pub done: u64,
    /// Replicas that were not compared in all of these extents.
    pub lacking: Vec<NodeId>,
    /// Blocks that differed; of these, written anew, and overwritten by clients before that.
    pub different: u64,
    pub repaired: u64,
    pub overwritten: u64,
}

impl Scrubbed {
    /// Blocks that still differ, as far as is known.
    #[must_use]
    pub fn unrepaired(&self) -> u64 {
        self.different.saturating_sub(self.repaired).saturating_sub(self.overwritten)
    }
}

/// A scrub that the primary's engine is to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubTask {
    pub repair: ScrubRepair,
    pub rate: u64,
    /// Number of the engine's last scrub that the node knows, 0 for none. The engine begins a scrub
    /// only if it has begun none since that one.
    pub after: u64,
}

impl State {
    /// The primary's node finds that a scrub is due.
    pub(crate) fn begin_scrub(&mut self, at_ms: u64, id: ResourceId, epoch: Epoch) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Unchanged };
        let scheduled = resource.record.policy.scrub.interval_ms != 0 && resource.scrubs.turn.is_none();
        if !scheduled || resource.record.epoch != epoch || self.scrub_waits_for(id).is_some() {
            reach!("control: a scrub cannot begin after all");
            return Outcome::Unchanged;
        }
        reach!("control: a scrub is to begin");
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        resource.scrubs.turn = Some(Turn { epoch, at_ms });
        Outcome::Done
    }

    /// The primary's node tells how a scrub of its engine ended.
    pub(crate) fn scrub_ended(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        node: NodeId,
        seen: &ScrubSummary,
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        let record = &resource.record;
        let leads = record.primary == Some(node) && record.epoch == seen.epoch;
        if !leads || !resource.scrubs.is_news(seen) {
            reach!("control: the end of a scrub is no news");
            return Outcome::Unchanged;
        }
        let extents =
            |node: &NodeId| seen.compared.iter().find(|(of, _)| of == node).map_or(0, |(_, on)| *on);
        let lacking: Vec<NodeId> =
            resource.spec.replicas.iter().filter(|node| extents(node) < seen.done).copied().collect();
        let end = match seen.state {
            ScrubState::Running => return Outcome::Unchanged,
            ScrubState::Done if lacking.is_empty() => ScrubEnd::Whole,
            ScrubState::Done => ScrubEnd::Partial,
            ScrubState::Stopped => ScrubEnd::Stopped,
            ScrubState::Interrupted => ScrubEnd::Interrupted,
        };
        let scrubbed = Scrubbed {
            epoch: seen.epoch,
            ordinal: seen.ordinal,
            at_ms,
            took_ms: seen.took_ms,
            end,
            extents: seen.extents,
            done: seen.done,
            lacking,
            different: seen.different,
            repaired: seen.repaired,
            overwritten: seen.overwritten,
        };
        self.remember_scrub(id, scrubbed);
        Outcome::Done
    }

    /// Ends turns whose epoch is over. Runs after every command.
    pub(crate) fn settle_scrubs(&mut self, at_ms: u64) {
        let over = |resource: &Resource| {
            let record = &resource.record;
            resource.scrubs.turn.is_some_and(|turn| record.primary.is_none() || record.epoch != turn.epoch)
        };
        if planted(Bug::ScrubOutlivesPrimary) {
            return;
        }
        let ids: Vec<ResourceId> =
            self.resources.values().filter(|resource| over(resource)).map(|resource| resource.id).collect();
        for id in ids {
            let Some(turn) = self.resources.get(&id).and_then(|resource| resource.scrubs.turn) else {
                continue;
            };
            reach!("control: a scrub of the schedule ends with its primary");
            let scrubbed = Scrubbed {
                epoch: turn.epoch,
                // The report of its engine comes too late.
                ordinal: 0,
                at_ms,
                took_ms: at_ms.saturating_sub(turn.at_ms),
                end: ScrubEnd::Interrupted,
                extents: 0,
                done: 0,
                lacking: Vec::new(),
                different: 0,
                repaired: 0,
                overwritten: 0,
            };
            self.remember_scrub(id, scrubbed);
        }
    }

    fn remember_scrub(&mut self, id: ResourceId, scrubbed: Scrubbed) {
        let (severity, text) = self.scrub_words(&scrubbed);
        let at_ms = scrubbed.at_ms;
        let Some(resource) = self.resources.get_mut(&id) else { return };
        let scrubs = &mut resource.scrubs;
        scrubs.turn = None;
        match scrubbed.end {
            ScrubEnd::Whole => {
                reach!("control: a scrub was whole");
                (scrubs.whole, scrubs.failed, scrubs.failures) = (Some(scrubbed), None, 0);
            }
            ScrubEnd::Stopped => {
                reach!("control: an operator has ended a scrub");
                scrubs.failed = Some(scrubbed);
            }
            ScrubEnd::Partial | ScrubEnd::Interrupted => {
                reach!("control: a scrub was not whole");
                (scrubs.failed, scrubs.failures) = (Some(scrubbed), scrubs.failures.saturating_add(1));
            }
        }
        self.note_on(at_ms, id, severity, text);
    }

    fn scrub_words(&self, scrubbed: &Scrubbed) -> (Severity, String) {
        let left = scrubbed.unrepaired();
        let found = match scrubbed.different {
            0 => String::new(),
            different => {
                format!(": {different} blocks differed, {left} of them still do")
            }
        };
        let what = match scrubbed.end {
            ScrubEnd::Whole if scrubbed.different == 0 => {
                let mib = (scrubbed.done * EXTENT_BYTES) >> 20;
                return (Severity::Info, format!("all replicas are equal: {mib} MiB were compared"));
            }
            ScrubEnd::Whole => "all replicas were compared".to_owned(),
            ScrubEnd::Partial => {
                let names: Vec<String> = scrubbed.lacking.iter().map(|node| self.node_name(*node)).collect();
                format!("not all of {} was compared", names.join(" "))
            }
            ScrubEnd::Stopped => "an operator has ended the comparison of replicas".to_owned(),
            ScrubEnd::Interrupted => "the comparison of replicas ended with its primary".to_owned(),
        };
        let severity = match scrubbed.end {
            _ if left > 0 => Severity::Critical,
            ScrubEnd::Stopped | ScrubEnd::Interrupted => Severity::Info,
            ScrubEnd::Whole | ScrubEnd::Partial => Severity::Warning,
        };
        (severity, format!("{what}{found}"))
    }

    /// Returns severity, problem and remedy of a resource whose scrubs need the operator's
    /// attention.
    pub(crate) fn advise_scrubs(
        &self,
        resource: &Resource,
        wall_ms: u64,
    ) -> Option<(Severity, String, String)> {
        if resource.deleting {
            return None;
        }
        let scrubs = &resource.scrubs;
        let left = scrubs.failed.iter().chain(&scrubs.whole).map(Scrubbed::unrepaired).find(|left| *left > 0);
        if let Some(left) = left {
            let remedy = format!(
                "`mainstay resource scrub {} --report` says which, and --repair writes them anew",
                resource.name
            );
            return Some((Severity::Critical, format!("{left} blocks differ between replicas"), remedy));
        }
        let late_ms = resource.scrub_late_ms(wall_ms)?;
        let what = format!("its replicas should have been compared {} hours ago", late_ms / 3_600_000);
        let remedy = match self.scrub_waits_for(resource.id) {
            Some(why) => format!("it waits: {why}"),
            None => format!(
                "see `mainstay resource status {}`, and begin one with `mainstay resource scrub {}`",
                resource.name, resource.name
            ),
        };
        Some((Severity::Warning, what, remedy))
    }

    /// Why no scrub can begin now, in words for the operator.
    #[must_use]
    pub fn scrub_waits_for(&self, id: ResourceId) -> Option<String> {
        let resource = self.resources.get(&id)?;
        let record = &resource.record;
        if record.primary.is_none() {
            return Some("there is no primary".to_owned());
        }
        let out = |node: &&NodeId| match record.replica(**node) {
            None => true,
            Some(_) if !self.lives_unbroken(resource, **node) => true,
            // A follower is compared as of the same entries.
            Some(_) if record.policy.mode() == Mode::A => false,
            Some(member) => !record.iss.contains(&member) || resource.reopened.contains_key(*node),
        };
        if let Some(node) = resource.spec.replicas.iter().find(out) {
            return Some(format!("the replica on {} is not in sync", self.node_name(*node)));
        }
        if resource.rollback.is_some() {
            return Some("the resource is rolled back".to_owned());
        }
        let shared = |other: &Resource| {
            other.spec.replicas.iter().copied().find(|node| resource.spec.replicas.contains(node))
        };
        let others = self.resources.values().filter(|other| other.id != id && other.scrubs.turn.is_some());
        let (other, node) = others.filter_map(|other| Some((other, shared(other)?))).next()?;
        (!planted(Bug::ScrubsTogether))
            .then(|| format!("resource {} is being compared on {}", other.name, self.node_name(node)))
    }
}

impl Scrubs {
    /// Whether the state knows neither this scrub nor a later one.
    fn is_news(&self, seen: &ScrubSummary) -> bool {
        let known = [&self.whole, &self.failed].into_iter().flatten();
        known
            .map(|last| (last.epoch, last.ordinal))
            .max()
            .is_none_or(|last| last < (seen.epoch, seen.ordinal))
    }
}

/// A place in the interval for each resource, spread as evenly as possible. The finalizer of
/// SplitMix64 (Steele, Lea, Flood 2014).
fn place(id: ResourceId, interval_ms: u64) -> u64 {
    let mut mixed = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % interval_ms
}

impl Resource {
    /// The first moment after `at_ms` that is the resource's own in an interval.
    fn next_place(&self, at_ms: u64) -> u64 {
        let interval = self.record.policy.scrub.interval_ms;
        let into = (at_ms % interval + interval - place(self.id, interval)) % interval;
        at_ms.saturating_add(interval - into)
    }

    /// When the next one is due, failures aside. `None`: never.
    fn scrub_planned_ms(&self, now_ms: u64) -> Option<u64> {
        let (interval_ms, since_ms) = (self.record.policy.scrub.interval_ms, self.scrubs.since_ms);
        if interval_ms == 0 {
            return None;
        }
        // A time that far in the future comes from a wrong clock.
        let possible = |at_ms: &u64| *at_ms <= now_ms.saturating_add(interval_ms);
        let whole = self.scrubs.whole.as_ref().map(|last| last.at_ms.saturating_sub(last.took_ms));
        // If an operator asked for a scrub shortly before the next was due, it counts as that one.
        let whole = whole.filter(possible).map(|at_ms| at_ms.saturating_add(interval_ms / 2));
        let since = Some(since_ms).filter(possible);
        Some(self.next_place(whole.max(since).unwrap_or(0)))
    }

    /// When the next one is due, in milliseconds since 1970, if it is `now_ms`. `None`: never by
    /// itself.
    #[must_use]
    pub fn scrub_due_ms(&self, now_ms: u64) -> Option<u64> {
        let planned = self.scrub_planned_ms(now_ms)?;
        let interval = self.record.policy.scrub.interval_ms;
        let possible = |failed: &&Scrubbed| failed.at_ms <= now_ms.saturating_add(interval);
        let Some(failed) = self.scrubs.failed.as_ref().filter(possible) else { return Some(planned) };
        let again = match failed.end {
            ScrubEnd::Stopped => self.next_place(failed.at_ms),
            _ => {
                let doubled = RETRY_MS.saturating_mul(1 << self.scrubs.failures.saturating_sub(1).min(20));
                failed.at_ms.saturating_add(doubled.min(interval / 4))
            }
        };
        Some(planned.max(again))
    }

    /// By how many milliseconds it is late, if that is more than it should ever be: a quarter of
    /// the interval.
    #[must_use]
    pub fn scrub_late_ms(&self, now_ms: u64) -> Option<u64> {
        let late = now_ms.checked_sub(self.scrub_planned_ms(now_ms)?)?;
        (self.scrubs.turn.is_none() && late > self.record.policy.scrub.interval_ms / 4).then_some(late)
    }

    /// Returns the report of a scrub that the primary's engine has led and that has ended, unless
    /// the state knows of it.
    pub(crate) fn scrub_report(&self, node: NodeId, seen: Option<&ScrubSummary>) -> Option<Command> {
        let seen =
            seen.filter(|seen| seen.state != ScrubState::Running && seen.epoch == self.record.epoch)?;
        let news = self.scrubs.is_news(seen);
        news.then(|| Command::ScrubEnded { resource: self.id, node, seen: seen.clone() })
    }

    /// Returns the scrub that the primary's engine is to begin now, if one is due and none runs.
    pub(crate) fn scrub_task(&self, seen: Option<&ScrubSummary>) -> Option<ScrubTask> {
        self.scrubs.turn.filter(|turn| turn.epoch == self.record.epoch)?;
        let scrub = self.record.policy.scrub;
        let (repair, rate) = (scrub.repair, scrub.rate);
        if seen.is_some_and(|seen| seen.state == ScrubState::Running) {
            return None;
        }
        Some(ScrubTask { repair, rate, after: seen.map_or(0, |seen| seen.ordinal) })
    }
}
