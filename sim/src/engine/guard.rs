//! The lease of an engine, and its guard's thread. Mirrors `engine/src/guard.rs`;
//! [`mainstay_silence::Guard`] decides.

use super::{Engine, EngineOut};
use crate::agent::EngineEvent;
use mainstay_silence::{Effect, Step, guard_acts_at};
use mainstay_types::Time;

impl Engine {
    pub(super) fn lease(&mut self, now: Time, until: Time) {
        if now >= self.lease_until {
            self.lease_ended(now);
        }
        self.guard.lease(now, until);
        self.lease_until = until;
        if self.fenced && now < guard_acts_at(until) {
            self.fenced = false;
            for resource in self.hosts.keys().copied().collect::<Vec<_>>() {
                self.offer(resource);
                self.touched.insert(resource);
            }
        }
        let silenced = self.silenced;
        self.outs.push(EngineOut::ToAgent(EngineEvent::Lease { until, silenced }));
        self.guard_runs(now);
    }

    /// The guard's thread: it acts at the times that the guard names. Whatever it does takes no
    /// time here, and succeeds (R19).
    pub(super) fn guard_runs(&mut self, now: Time) {
        self.guard_effects();
        while self.guard_wakes_at.take_if(|at| *at <= now).is_some() {
            for resource in self.guard.take_doomed() {
                self.outs.push(EngineOut::KillUsers(resource));
                self.killed(resource);
            }
            let silencing = self.guard.woken(now);
            self.guard_effects();
            let Some(silencing) = silencing else { continue };
            for step in silencing.steps {
                match step {
                    // With them go addresses and mounts.
                    Step::Processes => self.outs.push(EngineOut::Silence(silencing.targets.clone())),
                    Step::Devices => self.fence(),
                    Step::Agent | Step::Addresses | Step::Rest | Step::Mounts => {}
                }
            }
            self.guard.silenced(now, None);
            self.guard_effects();
            self.outs.push(EngineOut::ToAgent(EngineEvent::LeaseLost { silenced: self.silenced }));
        }
    }

    pub(super) fn guard_effects(&mut self) {
        while let Some(effect) = self.guard.poll() {
            match effect {
                Effect::WakeAt(at) => self.guard_wakes_at = Some(at),
                Effect::NoteSilenced(at) => self.silenced = at,
                Effect::Bar(at) => self.barred = at,
                Effect::Unbar => self.barred = Time(0),
                // Nothing is left over here.
                Effect::GiveUp => {}
                // The shard hears of the lease by itself, and of its end by the step.
                Effect::Fence | Effect::Unfence => {}
                // The world takes the notes of the silencer from this engine.
                Effect::NoteSilent(_) | Effect::NoteNoLease => {}
            }
        }
    }

    /// The devices answer errors until there is a lease again.
    fn fence(&mut self) {
        self.fenced = true;
        for resource in self.hosts.keys().copied().collect::<Vec<_>>() {
            self.silenced_for(resource);
        }
    }

    /// Tells every replica of this engine that the lease has ended, so that none of them leads any
    /// more (R10).
    fn lease_ended(&mut self, now: Time) {
        for (resource, hosted) in &mut self.hosts {
            hosted.host.lease_ended(now);
            self.touched.insert(*resource);
        }
    }
}
