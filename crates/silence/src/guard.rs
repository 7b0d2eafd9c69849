//! The guard of a node: what it silences, when, and in which order (R19).
//!
//! Guarantees
//! - When the lease is not renewed, the guard silences the node [`GUARD_MARGIN_MS`] before its end,
//!   in the order of [`WHEN_THE_LEASE_ENDS`]. A lease that comes after that moment does not keep it
//!   from acting: the process stood still, and services of another node may run by now.
//! - From the moment at which it begins until the lease is renewed no process of a service begins:
//!   [`Effect::Bar`] comes before the first step.
//! - A lease that is renewed arms it again. Until then it tries again what it could not silence,
//!   and only that. Targets that are named after it has acted are silenced too.
//! - It says that nothing is left to silence only when that is so.
//! - When the engine is told to end, it silences the node once, within the lease
//!   ([`WHEN_THE_ENGINE_ENDS`]). From then on it takes no targets.
//! - Before devices of a resource fail within the lease, the services on it are killed.
//!
//! ```text
//!              not renewed, or the engine ends
//!   Watches ─────────────────────────────────────▶ Acts ── renewed meanwhile ──▶ Watches
//!    ▲  └── renewed too late ──▶ Overdue ──────────▶ │
//!    │                                              ▼ all was tried
//!    └──────────────── renewed ───────────────── Fenced ── something is left, or was named since ──▶ Acts
//! ```
//!
//! The runtime carries out the effects of an event before it gives the next one. The steps of a
//! [`Silencing`] are for one thread, which alone calls [`Guard::woken`].
//!
//! `T` is a target: all that is to be silenced of one resource, in the words of the caller.
//!
//! [`GUARD_MARGIN_MS`]: crate::GUARD_MARGIN_MS

use crate::{guard_acts_at, silencing_pause_ms};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{ResourceId, Time};
use std::collections::VecDeque;
use std::mem;

/// A time that has passed: the guard is to be woken now. The point 0 of the clock would not wake
/// it.
const AT_ONCE: Time = Time(1);

/// A step of a silencing. Each has a bounded wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Tells the agent that the engine is about to end.
    Agent,
    /// Removes the addresses.
    Addresses,
    /// Kills the processes.
    Processes,
    /// Tries again what could not be removed or killed, for a while.
    Rest,
    /// Has the devices fail.
    Devices,
    /// Detaches the mounts.
    Mounts,
}

/// Addresses go first: no client is to talk to what is killed next. Devices fail when no process is
/// there to see it.
pub const WHEN_THE_LEASE_ENDS: &[Step] = &[Step::Addresses, Step::Processes, Step::Devices, Step::Mounts];
/// The agent comes first: what it sees end now it must not start again. The lease goes on, so the
/// devices answer until file systems have written what they hold.
pub const WHEN_THE_ENGINE_ENDS: &[Step] =
    &[Step::Agent, Step::Addresses, Step::Processes, Step::Rest, Step::Mounts];
/// Steps for the rest of an earlier silencing.
const AGAIN: &[Step] = &[Step::Addresses, Step::Processes];

/// A silencing that is to be carried out now, step by step. [`Guard::silenced`] follows; or
/// [`Guard::ended`], if the engine ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silencing<T> {
    pub why: Why,
    /// End of the lease that counts.
    pub until: Time,
    pub targets: Vec<T>,
    pub steps: &'static [Step],
}

/// Reason of a silencing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The lease was not renewed.
    NotRenewed,
    /// The same, and something was left the last time.
    SomethingLeft,
    /// The engine was told to end.
    EngineEnds,
}

/// An effect that takes no time: the thread that has given the event carries it out at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Wake the guard at this time, and at no other.
    WakeAt(Time),
    /// From this time on no process of a service begins. The kill that follows is owed also where
    /// this cannot be noted.
    Bar(Time),
    /// Processes may begin again.
    Unbar,
    /// The guard has begun to act for the end of a lease.
    Fence,
    /// The lease was renewed.
    Unfence,
    /// The rest of what is being silenced stays: the lease was renewed, and the agent deals with
    /// it.
    GiveUp,
    /// Note that everything that began before this time was silenced, as far as that was possible.
    NoteSilenced(Time),
    /// Note that nothing is left to silence.
    NoteSilent(Time),
    /// Note that there is no lease any more.
    NoteNoLease,
}

/// The engine was told to end: the guard takes no targets, or no lease, any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineEnds;

/// See the top of this file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard<T> {
    lease_until: Option<Time>,
    targets: Vec<T>,
    /// Resources whose services are to be killed.
    doomed: Vec<ResourceId>,
    phase: Phase<T>,
    end: End,
    /// When the guard last finished silencing, 0 for never.
    silenced_at: Time,
    effects: VecDeque<Effect>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase<T> {
    /// The lease goes on, or there was none.
    Watches,
    /// The lease was renewed too late: the guard still has to act for the end of the one before.
    Overdue,
    /// A silencing is under way.
    Acts {
        /// Which one since the lease ended, from 1 on.
        attempt: u32,
        meanwhile: Meanwhile,
    },
    /// The guard has acted, and the lease was not renewed since.
    Fenced {
        attempts: u32,
        /// Parts of targets that the guard could not silence.
        left: Vec<T>,
        /// Targets were named since.
        named: bool,
    },
}

/// Events since a silencing began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    Nothing,
    /// Other targets were named.
    Named,
    Renewed,
    /// The lease was renewed, and then renewed too late.
    Overdue,
}

/// How far the end of the engine has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    No,
    Asked,
    Begun,
    Done,
}

fn acts_at(until: Time) -> Time {
    if planted(Bug::GuardActsLate) { until } else { guard_acts_at(until) }
}

impl<T: Clone + PartialEq> Guard<T> {
    /// A guard that has no lease yet.
    #[must_use]
    pub fn new(targets: Vec<T>) -> Self {
        Self {
            lease_until: None,
            targets,
            doomed: Vec::new(),
            phase: Phase::Watches,
            end: End::No,
            silenced_at: Time(0),
            effects: VecDeque::new(),
        }
    }

    /// A guard that takes over from the one before it. It silences what that one knew, when the
    /// lease ends that was noted, unless nothing was left to silence for that lease at `silent`.
    #[must_use]
    pub fn taking_over(lease_until: Time, silent: Time, known: Vec<T>) -> Self {
        let mut guard = Self::new(known);
        if silent < guard_acts_at(lease_until) && !guard.targets.is_empty() {
            guard.lease_until = Some(lease_until);
            guard.wake_for(lease_until);
        }
        guard
    }

    /// Returns the next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether the guard takes another lease. A lease that it takes is noted first.
    ///
    /// # Errors
    /// When the engine ends and its node is silent.
    pub fn takes_lease(&self) -> Result<(), EngineEnds> {
        if self.end == End::Done { Err(EngineEnds) } else { Ok(()) }
    }

    /// The lease now ends at `until`, whether that is later or earlier than before.
    pub fn lease(&mut self, now: Time, until: Time) {
        let late = match self.phase {
            Phase::Overdue | Phase::Acts { meanwhile: Meanwhile::Overdue, .. } => true,
            _ => self.lease_until.is_some_and(|until| now >= guard_acts_at(until)),
        };
        self.lease_until = Some(until);
        if self.end != End::No {
            // The devices answer for longer, and nothing else: this node is being silenced.
            return;
        }
        if late && !self.is_fenced() {
            match &mut self.phase {
                Phase::Acts { meanwhile, .. } => *meanwhile = Meanwhile::Overdue,
                phase => *phase = Phase::Overdue,
            }
            self.effects.push_back(Effect::WakeAt(AT_ONCE));
            return;
        }
        if now < guard_acts_at(until) {
            match &mut self.phase {
                Phase::Acts { meanwhile, .. } => *meanwhile = Meanwhile::Renewed,
                phase => {
                    *phase = Phase::Watches;
                    self.effects.extend([Effect::GiveUp, Effect::Unbar]);
                }
            }
            self.effects.push_back(Effect::Unfence);
        }
        if !self.is_fenced() {
            self.wake_for(until);
        }
    }

    /// These targets are to be silenced, in place of those named before.
    ///
    /// # Errors
    /// When the engine ends: no step of a service may begin.
    pub fn set_targets(&mut self, targets: Vec<T>) -> Result<(), EngineEnds> {
        if self.end != End::No {
            return Err(EngineEnds);
        }
        if self.is_fenced() && self.targets != targets {
            match &mut self.phase {
                Phase::Acts { meanwhile, .. } => *meanwhile = Meanwhile::Named,
                Phase::Fenced { named, .. } => *named = true,
                Phase::Watches | Phase::Overdue => {}
            }
            self.effects.push_back(Effect::WakeAt(AT_ONCE));
        }
        self.targets = targets;
        Ok(())
    }

    #[must_use]
    pub fn targets(&self) -> &[T] {
        &self.targets
    }

    /// Devices of a resource are about to fail within the lease. Returns whether they may fail now,
    /// because no target `uses` them. Otherwise they wait until the services on the resource are
    /// killed: see [`Guard::take_doomed`].
    pub fn devices_fail(&mut self, resource: ResourceId, uses: impl Fn(&T) -> bool) -> bool {
        let unused = !self.targets.iter().any(uses);
        if !unused {
            self.doomed.push(resource);
            self.effects.push_back(Effect::WakeAt(AT_ONCE));
        }
        unused
    }

    /// The engine was told to end.
    pub fn end(&mut self, now: Time) {
        self.end = End::Asked;
        self.effects.extend([Effect::Bar(now), Effect::WakeAt(AT_ONCE)]);
    }

    /// Takes the resources whose services are to be killed now, before anything else. A resource is
    /// named as often as was asked, and each time is to be answered.
    pub fn take_doomed(&mut self) -> Vec<ResourceId> {
        mem::take(&mut self.doomed)
    }

    /// The guard was woken, at its time or at any other. Returns what is to be silenced now.
    pub fn woken(&mut self, now: Time) -> Option<Silencing<T>> {
        if self.end == End::Asked {
            self.end = End::Begun;
            return Some(self.begin(Why::EngineEnds, WHEN_THE_ENGINE_ENDS));
        }
        let until = self.lease_until?;
        match &mut self.phase {
            Phase::Acts { .. } => return None,
            Phase::Fenced { attempts, left, named: false } => {
                if left.is_empty() {
                    return None;
                }
                let (attempt, targets) = (*attempts + 1, mem::take(left));
                self.phase = Phase::Acts { attempt, meanwhile: Meanwhile::Nothing };
                return Some(Silencing { why: Why::SomethingLeft, until, targets, steps: AGAIN });
            }
            Phase::Watches if planted(Bug::GuardActsOnce) && self.silenced_at != Time(0) => return None,
            Phase::Watches if now < acts_at(until) => {
                self.wake_for(until);
                return None;
            }
            Phase::Watches | Phase::Overdue | Phase::Fenced { named: true, .. } => {}
        }
        if !planted(Bug::StartsNotBarred) {
            self.effects.push_back(Effect::Bar(now));
        }
        self.effects.push_back(Effect::Fence);
        Some(self.begin(Why::NotRenewed, WHEN_THE_LEASE_ENDS))
    }

    fn begin(&mut self, why: Why, steps: &'static [Step]) -> Silencing<T> {
        self.phase = Phase::Acts { attempt: 1, meanwhile: Meanwhile::Nothing };
        let until = self.lease_until.unwrap_or_default();
        Silencing { why, until, targets: self.targets.clone(), steps }
    }

    /// A silencing has ended. `left`: the parts of targets that are still there, if it is to be
    /// tried again; `None` if nothing is left to do.
    pub fn silenced(&mut self, now: Time, left: Option<Vec<T>>) {
        let Phase::Acts { attempt, meanwhile } = self.phase else { return };
        self.silenced_at = now;
        self.effects.push_back(Effect::NoteSilenced(now));
        match meanwhile {
            Meanwhile::Renewed | Meanwhile::Overdue => {
                let overdue = meanwhile == Meanwhile::Overdue;
                self.phase = if overdue { Phase::Overdue } else { Phase::Watches };
                self.effects.extend([Effect::GiveUp, Effect::Unbar]);
            }
            Meanwhile::Nothing | Meanwhile::Named => {
                let named = meanwhile == Meanwhile::Named;
                self.effects.extend(match &left {
                    Some(_) => Some(Effect::WakeAt(now.plus_ms(silencing_pause_ms(attempt)))),
                    None => (!named).then_some(Effect::NoteSilent(now)),
                });
                let left = left.unwrap_or_default();
                self.phase = Phase::Fenced { attempts: attempt, left, named };
            }
        }
    }

    /// The silencing for the end of the engine has ended. `silent`: nothing is left for the
    /// silencer, which ends when it sees that there is no lease.
    pub fn ended(&mut self, now: Time, silent: bool) {
        self.silenced_at = now;
        self.end = End::Done;
        self.phase = Phase::Fenced { attempts: 1, left: Vec::new(), named: false };
        self.effects.push_back(Effect::NoteSilenced(now));
        if silent {
            self.effects.extend([Effect::NoteSilent(now), Effect::NoteNoLease]);
        }
    }

    /// Whether the engine was told to end, and its node was silenced for that.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end == End::Done
    }

    /// Whether the guard acts or has acted, and the lease was not renewed since.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        use Meanwhile::{Named, Nothing};
        matches!(self.phase, Phase::Fenced { .. } | Phase::Acts { meanwhile: Nothing | Named, .. })
    }

    /// Whether a silencing is under way.
    #[must_use]
    pub fn acts(&self) -> bool {
        matches!(self.phase, Phase::Acts { .. })
    }

    /// Parts of targets that will be tried again.
    #[must_use]
    pub fn left(&self) -> &[T] {
        if let Phase::Fenced { left, .. } = &self.phase { left } else { &[] }
    }

    /// Time up to which everything that had begun here was silenced; 0 for never. While the guard
    /// acts this is now, as no step can be known to begin after the silencing.
    #[must_use]
    pub fn silenced_at(&self, now: Time) -> Time {
        if self.acts() { now } else { self.silenced_at }
    }

    /// For the end of the lease; or for now, so that services that are to be killed are not
    /// forgotten.
    fn wake_for(&mut self, until: Time) {
        let at = if self.doomed.is_empty() { acts_at(until) } else { AT_ONCE };
        self.effects.push_back(Effect::WakeAt(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GUARD_MARGIN_MS;

    const UNTIL: Time = Time(10_000_000);
    const ACTS_AT: Time = Time(UNTIL.0 - GUARD_MARGIN_MS * 1000);
    const SOON: Time = Time(1_000_000);
    const LATER: Time = Time(2 * UNTIL.0);

    /// A guard of one service, within its lease.
    fn armed() -> Guard<&'static str> {
        let mut guard = Guard::new(vec!["s0"]);
        guard.lease(SOON, UNTIL);
        let _ = effects(&mut guard);
        guard
    }

    fn effects(guard: &mut Guard<&'static str>) -> Vec<Effect> {
        std::iter::from_fn(|| guard.poll()).collect()
    }

    fn acts(guard: &mut Guard<&'static str>, now: Time) -> Silencing<&'static str> {
        let silencing = guard.woken(now).expect("it acts");
        assert_eq!(effects(guard), [Effect::Bar(now), Effect::Fence]);
        assert_eq!((silencing.why, silencing.steps), (Why::NotRenewed, WHEN_THE_LEASE_ENDS));
        silencing
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_acted_upon_in_time_and_once() {
        let mut guard = armed();
        assert_eq!(guard.woken(Time(ACTS_AT.0 - 1)), None, "not yet");
        assert_eq!(effects(&mut guard), [Effect::WakeAt(ACTS_AT)]);
        let silencing = acts(&mut guard, ACTS_AT);
        assert_eq!((silencing.until, silencing.targets), (UNTIL, vec!["s0"]));
        let now = ACTS_AT.plus_ms(5);
        assert!(guard.acts() && guard.silenced_at(now) == now);
        guard.silenced(now, None);
        assert_eq!(effects(&mut guard), [Effect::NoteSilenced(now), Effect::NoteSilent(now)]);
        assert!(guard.is_fenced() && guard.silenced_at(LATER) == now);
        assert_eq!(guard.woken(UNTIL), None, "once");
    }

    /// Reason for the order: a client must not talk to a process that is being killed, and no
    /// process must see its device fail.
    #[test]
    fn addresses_go_before_processes_and_devices_fail_after_them() {
        let place = |of: Step| WHEN_THE_LEASE_ENDS.iter().position(|step| *step == of);
        assert!(place(Step::Addresses) < place(Step::Processes));
        assert!(place(Step::Processes) < place(Step::Devices));
        assert!(place(Step::Devices) < place(Step::Mounts));
        assert!(!WHEN_THE_ENGINE_ENDS.contains(&Step::Devices), "they answer while file systems flush");
        assert_eq!(WHEN_THE_ENGINE_ENDS.first(), Some(&Step::Agent));
    }

    #[test]
    fn a_renewal_arms_the_guard_again_and_ends_its_attempts() {
        let mut guard = armed();
        acts(&mut guard, ACTS_AT);
        guard.silenced(UNTIL, Some(vec!["part"]));
        assert_eq!(guard.left(), ["part"]);
        let _ = effects(&mut guard);
        guard.lease(UNTIL, LATER);
        let acts_at = guard_acts_at(LATER);
        let armed = [Effect::GiveUp, Effect::Unbar, Effect::Unfence, Effect::WakeAt(acts_at)];
        assert_eq!(effects(&mut guard), armed);
        assert!(!guard.is_fenced() && guard.left().is_empty());
        acts(&mut guard, acts_at);
    }

    #[test]
    fn only_the_rest_is_tried_again_at_first_often_and_then_at_leisure() {
        let mut guard = armed();
        acts(&mut guard, ACTS_AT);
        let mut now = ACTS_AT;
        for attempt in 1..40 {
            guard.silenced(now, Some(vec!["part"]));
            let next = now.plus_ms(silencing_pause_ms(attempt));
            assert_eq!(effects(&mut guard), [Effect::NoteSilenced(now), Effect::WakeAt(next)]);
            now = next;
            let silencing = guard.woken(now).expect("tried again");
            assert_eq!((silencing.why, silencing.targets), (Why::SomethingLeft, vec!["part"]));
            assert!(!silencing.steps.contains(&Step::Devices) && effects(&mut guard).is_empty());
        }
        guard.silenced(now, None);
        assert_eq!(effects(&mut guard).last(), Some(&Effect::NoteSilent(now)));
    }

    /// The process stood still when the lease ended, and what comes first afterwards is a lease.
    #[test]
    fn a_lease_that_comes_too_late_does_not_keep_the_guard_from_acting() {
        let mut guard = armed();
        for now in [ACTS_AT, UNTIL] {
            guard.lease(now, LATER);
            assert_eq!(effects(&mut guard), [Effect::WakeAt(AT_ONCE)]);
        }
        assert!(!guard.is_fenced());
        acts(&mut guard, UNTIL);
        // The next one comes in time, while it acts.
        guard.lease(UNTIL.plus_ms(1), LATER);
        assert_eq!(effects(&mut guard), [Effect::Unfence, Effect::WakeAt(guard_acts_at(LATER))]);
        guard.silenced(UNTIL.plus_ms(2), Some(vec!["part"]));
        let noted = Effect::NoteSilenced(UNTIL.plus_ms(2));
        assert_eq!(effects(&mut guard), [noted, Effect::GiveUp, Effect::Unbar], "the rest is the agent's");
        assert_eq!(guard.woken(UNTIL.plus_ms(3)), None);
        assert_eq!(effects(&mut guard), [Effect::WakeAt(guard_acts_at(LATER))]);
    }

    #[test]
    fn targets_that_are_named_late_are_silenced_too() {
        let mut guard = armed();
        acts(&mut guard, ACTS_AT);
        guard.set_targets(vec!["s0", "s1"]).expect("it guards");
        guard.silenced(ACTS_AT, None);
        let noted = [Effect::WakeAt(AT_ONCE), Effect::NoteSilenced(ACTS_AT)];
        assert_eq!(effects(&mut guard), noted, "not all is silent");
        assert_eq!(acts(&mut guard, UNTIL).targets, ["s0", "s1"]);
        guard.silenced(UNTIL, None);
        let _ = effects(&mut guard);
        guard.set_targets(vec!["s0", "s1"]).expect("it guards");
        assert_eq!(guard.woken(UNTIL), None, "the same");
        guard.set_targets(vec!["s2"]).expect("it guards");
        assert!(effects(&mut guard).contains(&Effect::WakeAt(AT_ONCE)));
        assert_eq!(acts(&mut guard, UNTIL).targets, ["s2"]);
    }

    #[test]
    fn an_engine_that_ends_silences_its_node_once_and_takes_nothing_new() {
        let mut guard = armed();
        guard.end(SOON);
        assert_eq!(effects(&mut guard), [Effect::Bar(SOON), Effect::WakeAt(AT_ONCE)]);
        assert_eq!(guard.set_targets(vec!["s1"]), Err(EngineEnds));
        let silencing = guard.woken(SOON).expect("it silences");
        assert_eq!((silencing.why, silencing.steps), (Why::EngineEnds, WHEN_THE_ENGINE_ENDS));
        guard.lease(SOON, LATER);
        assert!(guard.takes_lease().is_ok() && effects(&mut guard).is_empty(), "the devices answer");
        guard.ended(SOON, true);
        let noted = [Effect::NoteSilenced(SOON), Effect::NoteSilent(SOON), Effect::NoteNoLease];
        assert_eq!(effects(&mut guard), noted);
        assert_eq!(guard.takes_lease(), Err(EngineEnds));
        assert!(guard.has_ended() && guard.woken(LATER).is_none());
    }

    #[test]
    fn services_are_killed_before_their_device_fails_and_a_renewal_does_not_forget_them() {
        let mut guard = armed();
        assert!(guard.devices_fail(ResourceId(1), |_| false), "no service is there to see it");
        assert!(!guard.devices_fail(ResourceId(0), |target| *target == "s0"));
        guard.lease(SOON, LATER);
        assert_eq!(effects(&mut guard).last(), Some(&Effect::WakeAt(AT_ONCE)));
        assert_eq!(guard.take_doomed(), [ResourceId(0)]);
        assert_eq!(guard.woken(SOON), None, "the lease goes on");
        assert_eq!(effects(&mut guard), [Effect::WakeAt(guard_acts_at(LATER))]);
        assert!(guard.take_doomed().is_empty());
    }

    #[test]
    fn the_next_guard_takes_over_a_silencing_that_its_predecessor_owed() {
        let owed = |silent| {
            let mut guard = Guard::taking_over(UNTIL, silent, vec!["s0"]);
            guard.woken(LATER).is_some()
        };
        assert!(owed(Time(0)) && owed(Time(ACTS_AT.0 - 1)));
        assert!(!owed(ACTS_AT), "a silencer has done it");
        assert_eq!(Guard::taking_over(UNTIL, Time(0), Vec::<&str>::new()).woken(LATER), None);
    }
}
