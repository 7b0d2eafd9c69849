//! L4: a scheduled scrub comes when it is due, and covers everything. This holds once the cluster
//! is well and every replica is in sync. Earlier changes of the primary and the wall clocks of
//! nodes make no difference.

use super::settle::ANSWER_US;
use super::{World, resource_id};
use crate::engine::Hosted;
use crate::words;
use mainstay_control::scrubs::Scrubs;
use mainstay_control::state::Command;
use mainstay_types::{Key, ResourceId, Role, ScrubRepair};

/// Longest interval in plans. Longer ones are those of resources for which no operator set any.
const INTERVAL_MS_MAX: u64 = 60_000;
const STEP_US: u64 = 200_000;

impl World {
    /// An operator says how often replicas are to be scrubbed.
    pub(super) fn schedule_scrubs(&mut self, resource: ResourceId, interval_ms: u64, repair: ScrubRepair) {
        self.trace.count("F51 operator schedules scrubs");
        let changes = [(Key::ScrubInterval, interval_ms), (Key::ScrubRepair, repair as u64)];
        let changes = changes.map(|(key, value)| (key, Some(value))).into();
        self.submit(Command::ChangeSettings { resource: Some(resource), version: None, changes });
    }

    fn scrubs_of(&self, resource: ResourceId) -> Option<&Scrubs> {
        Some(&self.state().resources.get(&resource).filter(|known| !known.deleting)?.scrubs)
    }

    /// Waits for one scrub of each resource that has a schedule, and ends the schedules.
    pub(super) fn scrubs_come_when_due(&mut self) {
        let scheduled = |world: &Self, resource| {
            let known = world.state().resources.get(&resource).filter(|known| !known.deleting);
            let interval = known.map_or(0, |known| known.record.policy.scrub.interval_ms);
            (1..=INTERVAL_MS_MAX).contains(&interval).then_some(interval)
        };
        for number in 0..self.plan.shape.resources.len() {
            let resource = resource_id(number);
            let Some(interval_ms) = scheduled(self, resource) else { continue };
            let before = self.scrubs_of(resource).and_then(|scrubs| scrubs.whole.clone());
            // Two and a half intervals if clocks are wrong. One more for a scrub that an operator
            // has ended, and one for a scrub of another resource.
            let until = self.now_us + 5 * interval_ms * 1000 + 2 * ANSWER_US;
            let came = |world: &Self| {
                world
                    .scrubs_of(resource)
                    .is_none_or(|scrubs| scrubs.whole.is_some() && scrubs.whole != before)
            };
            // A command of the operator of long ago may be decided only now. Seed 2518222.
            let wanted = |world: &Self| scheduled(world, resource) == Some(interval_ms);
            while wanted(self) && !came(self) && self.now_us < until && self.violation().is_none() {
                self.run_until(self.now_us + STEP_US);
            }
            if self.violation().is_some() {
                return;
            }
            if came(self) {
                self.trace.count("L4 a scrub came when it was due");
            } else if wanted(self) && self.can_scrub(resource) {
                let text = format!(
                    "{} is to be scrubbed every {interval_ms} ms, and was not: {:?}",
                    words::resource(resource),
                    self.scrubs_of(resource)
                );
                return self.wrong("L4", text);
            }
        }
        for number in 0..self.plan.shape.resources.len() {
            if scheduled(self, resource_id(number)).is_some() {
                self.schedule_scrubs(resource_id(number), 0, ScrubRepair::Off);
            }
        }
        // A scrub also stays unfinished while the resource has no serving primary. Seed 1525049.
        let goes_on = |world: &Self| {
            (0..world.plan.shape.resources.len())
                .map(resource_id)
                .filter(|id| world.leads(*id).is_some())
                .any(|id| world.scrubs_of(id).is_some_and(|scrubs| scrubs.turn.is_some()))
        };
        let until = self.now_us + 2 * ANSWER_US;
        while goes_on(self) && self.now_us < until && self.violation().is_none() {
            self.run_until(self.now_us + STEP_US);
        }
        if goes_on(self) && self.violation().is_none() {
            self.wrong("L4", "a scrub of a schedule does not end".to_owned());
        }
    }

    /// Whether nothing is in the way of a scrub.
    fn can_scrub(&self, resource: ResourceId) -> bool {
        let feeds_all = |leads: &Hosted| leads.host.replica().feeds_all();
        self.state().scrub_waits_for(resource).is_none() && self.leads(resource).is_some_and(feeds_all)
    }

    /// The primary's replica. A replica whose disk was replaced leads nothing, although the record
    /// names its node. Seed 1104279.
    pub(super) fn leads(&self, resource: ResourceId) -> Option<&Hosted> {
        let node = self.state().resources.get(&resource)?.record.primary?;
        let hosted = self.machines[&node].engine.as_ref()?.hosts.get(&resource)?;
        (hosted.role == Role::Primary).then_some(hosted)
    }
}
