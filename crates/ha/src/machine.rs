//! One service on one node: the steps up, the steps down, and the way out when the lease ends.
//!
//! Guarantees:
//! - A step is started only after an [`Effect::Persist`] that says so. A restarted agent goes on
//!   from there (R21).
//! - A failed or overdue step undoes itself and every earlier one, in reverse. An undo that fails
//!   is repeated with force and without end. "Unknown" counts as running (R19), so
//!   [`ServicePhase::Stopped`] and [`ServicePhase::Failed`] are reported only when every undo has
//!   succeeded.
//! - When the lease is lost, the address goes first, then the processes are killed, then the mount
//!   is detached, all without waiting in between (R19). After that the service does not start again
//!   in the same epoch. A service that the engine's guard has silenced counts as lost with the
//!   lease. That also holds for a process that hears of it late, because it stood still or was
//!   restarted meanwhile ([`Event::Silenced`]).
//! - No step begins unless the caller of [`Machine::poll`] says that one may. A step that waits for
//!   that is dropped when the service is stopped, undone or killed. The step's time does not run
//!   while it waits.
//! - The address is taken only after this process has probed it, in this start, and since it was
//!   last off this node (R22).
//! - Where the node has hooks, each start begins with the operator's hook ([`Machine::run_hook`]).
//!   Nothing of the service begins before the hook has ended well. Its failure is a failed start. A
//!   part that is made anew runs no hook.
//! - The machine notices a process that ends by itself, whatever else it does. It starts the
//!   process again, and with it all that was started after it. Processes that end before the next
//!   attempt are one failure with the first (R21).
//! - A process with a probe is asked again and again from its readiness until its undo.
//!   `machine/watch.rs` says what the answers mean (R28).
//! - In maintenance ([`Machine::rest`]) the machine mends nothing: see `machine/rest.rs`.
//! - More than `restart_limit` failures within `window_s` stop the service with a reason (R21). If
//!   another host holds the address, the machine waits for it with everything else started, and
//!   counts no failure. With other addresses the service runs meanwhile; see
//!   `machine/addresses.rs`.
//!
//! Duties of the runtime:
//! - It carries out effects in the order in which they are polled.
//! - It answers every `Run`, `Undo` and `Kill` by one [`Event::StepDone`] with its ticket, and
//!   every `Probe` by one [`Event::Probed`]. The machine ignores late answers.
//! - Its steps and undos are idempotent. `Undo` also cancels a step that still runs.
//! - After a *reboot* it makes a machine with [`Machine::new`], after a restart of the agent with
//!   [`Machine::restore`].

mod addresses;
mod amend;
mod kill;
mod loss;
mod report;
mod rest;
mod restart;
mod saved;
mod undo;
mod watch;

pub use self::addresses::HeldAddresses;
pub use self::saved::Saved;
pub use self::watch::Finding;

use self::kill::KillAction;
use self::watch::Watched;
use crate::spec::ServiceSpec;
use crate::steps::{HELD_ADDRESS_MS, PROBE_TIMEOUT_MS, Step, step_words, steps_of};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Epoch, ServicePhase, Time, reach};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// This node is primary in `epoch` and the devices exist. `round` rises when the operator
    /// clears failures.
    Start {
        epoch: Epoch,
        round: u64,
    },
    Stop,
    /// An operator wants `process`, or all processes, restarted in place. `number` tells one such
    /// wish from the next.
    Restart {
        number: u64,
        process: Option<usize>,
    },
    /// A process was started with arguments that do not hold any more. `why` goes on with "it is
    /// started again", and `remedy` is for the operator. The runtime repeats this until the process
    /// is started again.
    Outdated {
        process: usize,
        why: String,
        remedy: String,
    },
    /// The lease ended or is about to: silence everything now (R19).
    LeaseLost,
    /// The resource is served in another epoch, on the same devices: an engine has left them to its
    /// successor, and no other node was primary in between. A service that runs goes on.
    Continued {
        epoch: Epoch,
    },
    /// The engine's guard silenced the services on this node, and was done at this point of the
    /// boot-time clock. A service that began later is not concerned.
    Silenced {
        at: Time,
    },
    /// Answer to `Run`, `Undo` or `Kill`; an error says why, in words for the operator.
    StepDone {
        ticket: u64,
        result: Result<(), String>,
    },
    /// Answer to the `Run` of [`Step::ProbeAddress`] or [`Step::AddAddress`], instead of
    /// [`Event::StepDone`]: not all addresses can be taken.
    AddressHeld {
        ticket: u64,
        held: HeldAddresses,
    },
    /// A started process ended by itself. Told before the answer to an undo or a kill of it.
    ProcessExited {
        process: usize,
        status: String,
    },
    /// The result of this step is gone or has changed. `mendable`: a new attempt on this node may
    /// help. Otherwise the service fails here at once, so that it goes to another node.
    Lost {
        step: Step,
        why: String,
        mendable: bool,
    },
    /// Answer to [`Effect::Probe`].
    Probed {
        ticket: u64,
        process: usize,
        finding: Finding,
    },
    /// Finding of the readiness test of a process that is being started, in words for the operator.
    /// `recovers`: the process recovers from a crash, and may take as long as it needs.
    NotReady {
        process: usize,
        why: String,
        recovers: bool,
    },
    Tick,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Make this durable before anything that follows is done.
    Persist(Saved),
    Run {
        ticket: u64,
        step: Step,
        timeout_ms: u64,
    },
    /// `force`: no more courtesy, an earlier attempt failed.
    Undo {
        ticket: u64,
        step: Step,
        force: bool,
        timeout_ms: u64,
    },
    /// SIGKILL to all processes of the service; done when none is left.
    Kill {
        ticket: u64,
    },
    /// Ask whether a process that runs answers.
    Probe {
        ticket: u64,
        process: usize,
        timeout_ms: u64,
    },
    Report(Report),
}

/// Report on a service, for the operator and the control plane.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    pub phase: ServicePhase,
    /// Epoch of the last start; 0 before the first.
    pub epoch: Epoch,
    pub round: u64,
    /// Work that is being done on the service, or the reason why it failed.
    pub detail: String,
    /// Failures within the window.
    pub failures: u32,
    /// Whether the last failure was none of the service's programs: its cause may pass by itself.
    #[serde(default)]
    pub passes: bool,
    /// Why it failed the last time; empty if it never did.
    #[serde(default)]
    pub last_failure: String,
}

/// Continuation after every step down to `floor` is undone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Then {
    Stop,
    Fail,
    /// Wait, then go forward from `floor`.
    Retry,
    /// Go forward from `floor` at once: an operator asked for it.
    Restart,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Stopped,
    Failed,
    /// `steps[at]` is being run.
    Forward {
        at: usize,
    },
    Running,
    /// `steps[at]` is being undone, or waits for the next attempt of that.
    Backward {
        at: usize,
        floor: usize,
        then: Then,
        attempt: u32,
    },
    BackingOff {
        from: usize,
    },
    Killing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    NotAsked,
    Running { ticket: u64 },
    Free,
}

/// Reason of a kill that the engine's guard or the silencer has begun.
const SILENCED: &str =
    "Mainstay itself ended it there, because the node's engine held no lease any more or was ended";

/// See the module documentation.
#[derive(Debug)]
pub struct Machine {
    spec: ServiceSpec,
    steps: Vec<Step>,
    /// The steps begin with the hook.
    hooked: bool,
    /// The steps of the next start begin with the hook.
    hooks_next: bool,
    mode: Mode,
    epoch: Epoch,
    round: u64,
    spent_epoch: Option<Epoch>,
    began: Time,
    failures: Vec<Time>,
    reason: String,
    passes: bool,
    /// Reason of the last failure, kept also when the service runs again.
    last_failure: String,
    restarted: u64,
    /// The service is in maintenance.
    rests: bool,
    /// Losses that were noticed in maintenance, by step, and whether a new attempt here may help.
    losses: BTreeMap<usize, (String, bool)>,
    /// An agent was restarted in maintenance. Its successor has not walked over the steps yet.
    unwalked: bool,
    probe: Probe,
    /// Why an address is not taken, though nothing has failed.
    address_held: Option<String>,
    /// Addresses that the last [`Step::AddAddress`] of this start took.
    taken: usize,
    /// Since when this start waits for an address.
    waits_since: Option<Time>,
    /// Addresses may be here although steps below theirs are undone or made anew.
    kept: bool,
    /// A former agent has done the steps below this one already. They are only walked over again.
    adopt_below: usize,
    /// The answer that the current step or undo waits for.
    awaited: Option<u64>,
    deadline: Option<Time>,
    kill_awaited: BTreeMap<u64, KillAction>,
    kill_failed: Vec<KillAction>,
    pending_start: Option<(Epoch, u64)>,
    /// The processes that are probed now, by their number.
    watched: BTreeMap<usize, Watched>,
    /// Process that is undone because it did not answer. It is not asked to end.
    unanswering: Option<usize>,
    /// Why the process that is waited for is not ready.
    not_ready: Option<String>,
    next_ticket: u64,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// A service of which nothing runs on this node. `spec` has been validated.
    #[must_use]
    pub fn new(spec: ServiceSpec) -> Self {
        let steps = steps_of(&spec, false);
        Self {
            spec,
            steps,
            hooked: false,
            hooks_next: false,
            mode: Mode::Stopped,
            epoch: Epoch(0),
            round: 0,
            spent_epoch: None,
            began: Time(0),
            failures: Vec::new(),
            reason: String::new(),
            passes: false,
            last_failure: String::new(),
            restarted: 0,
            rests: false,
            losses: BTreeMap::new(),
            unwalked: false,
            probe: Probe::NotAsked,
            address_held: None,
            taken: 0,
            waits_since: None,
            kept: false,
            adopt_below: 0,
            awaited: None,
            deadline: None,
            kill_awaited: BTreeMap::new(),
            kill_failed: Vec::new(),
            pending_start: None,
            watched: BTreeMap::new(),
            unanswering: None,
            not_ready: None,
            next_ticket: 1,
            effects: VecDeque::new(),
        }
    }

    /// Goes on where an earlier agent process was, without a reboot in between. `spec` is the one
    /// that was in force then.
    #[must_use]
    pub fn restore(spec: ServiceSpec, saved: Saved, now: Time) -> Self {
        let mut machine = Self::new(spec);
        (machine.hooked, machine.hooks_next) = (saved.hooked, saved.hooked);
        machine.steps = steps_of(&machine.spec, machine.hooked);
        machine.epoch = saved.epoch;
        machine.round = saved.round;
        machine.spent_epoch = saved.spent_epoch;
        machine.began = saved.began;
        machine.failures = saved.failures;
        machine.reason = saved.reason;
        machine.passes = saved.passes;
        machine.last_failure = saved.last_failure;
        machine.restarted = saved.restarted;
        machine.rests = saved.rests;
        machine.kept = saved.kept;
        machine.next_ticket = saved.next_ticket;
        let last = machine.steps.len().saturating_sub(1);
        match saved.mode {
            // R21: a restarted agent goes on from what was persisted.
            Mode::Forward { .. } | Mode::Running if planted(Bug::RestartForgets) => machine.report(),
            mode @ (Mode::Stopped | Mode::Failed) => {
                reach!("ha: nothing to adopt after a restart");
                machine.mode = mode;
                machine.report();
            }
            // Every earlier step is walked again: it is idempotent, and a process that died
            // meanwhile is noticed and started again.
            Mode::Forward { at } => {
                reach!("ha: a start is adopted after a restart");
                machine.adopt_below = at;
                machine.forward(0, now);
            }
            Mode::Running if machine.rests && !planted(Bug::MaintenanceForgotten) => {
                // To walk over the steps would start a process that has died.
                reach!("ha: a running service in maintenance is adopted after a restart");
                machine.mode = Mode::Running;
                machine.unwalked = true;
                machine.report();
            }
            Mode::Running => {
                reach!("ha: a running service is adopted after a restart");
                machine.adopt_below = machine.steps.len();
                // R22: the machine does not know whether the address is still here. If it is, the
                // probe finds no other host.
                machine.forward(0, now);
            }
            Mode::Backward { at, floor, then, attempt } => {
                reach!("ha: an undo is adopted after a restart");
                machine.backward(at.min(last), floor, then, attempt, now);
            }
            Mode::BackingOff { from } => {
                reach!("ha: a pause is adopted after a restart");
                machine.mode = Mode::BackingOff { from };
                machine.deadline = Some(now.plus_ms(machine.backoff_ms()));
                machine.report();
            }
            Mode::Killing => {
                reach!("ha: a kill is adopted after a restart");
                machine.kill(now);
            }
        }
        machine.watch(now);
        machine
    }

    /// Whether starts from now on begin with the operator's hook. A start that is under way goes on
    /// as it began.
    pub fn run_hook(&mut self, hooks: bool) {
        self.hooks_next = hooks;
    }

    #[must_use]
    pub fn phase(&self) -> ServicePhase {
        match self.mode {
            Mode::Stopped => ServicePhase::Stopped,
            Mode::Failed => ServicePhase::Failed,
            // Everything else is started. The service reports what it waits for, as in a pause
            // after a failure.
            Mode::Forward { at }
                if self.address_held.is_some() && self.is_last(at) && self.awaited.is_none() =>
            {
                ServicePhase::BackingOff
            }
            Mode::Forward { .. } => ServicePhase::Starting,
            Mode::Running => ServicePhase::Running,
            Mode::Backward { .. } => ServicePhase::Stopping,
            // After a partial undo the mount and other processes may still be there.
            Mode::BackingOff { from } if from > 0 => ServicePhase::Starting,
            Mode::BackingOff { .. } => ServicePhase::BackingOff,
            Mode::Killing => ServicePhase::Killing,
        }
    }

    /// Epoch of the last start; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Round of the last start.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The epoch in which the service was killed because the lease ended: it needs a later one to
    /// start.
    #[must_use]
    pub fn spent_epoch(&self) -> Option<Epoch> {
        self.spent_epoch
    }

    /// Why the service failed or stopped last; empty when there is nothing to say.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    #[must_use]
    pub fn spec(&self) -> &ServiceSpec {
        &self.spec
    }

    /// When [`Event::Tick`] is due; `None` while nothing is awaited.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadline.into_iter().chain(self.next_probe()).min()
    }

    /// The next effect, in order. While `may_run` is false, a step waits, and so do all effects
    /// after it. Then the engine does not guard the service, or not within a lease that it knows of
    /// (R19).
    pub fn poll(&mut self, may_run: bool) -> Option<Effect> {
        if !may_run && matches!(self.effects.front(), Some(Effect::Run { .. })) {
            reach!("ha: a step waits for the guard");
            return None;
        }
        self.effects.pop_front()
    }

    /// Whether a step waits until it may begin.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::Run { .. }))
    }

    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::ProcessExited { process, status } if self.notes_losses() => {
                self.note_exit(process, &status);
            }
            Event::Lost { step, .. } if self.is_kept(step) => self.lose_kept(),
            Event::Lost { step, why, mendable } if self.notes_losses() => self.note_loss(step, why, mendable),
            Event::Start { epoch, round } => self.on_start(epoch, round, now),
            Event::Stop => self.on_stop(now),
            Event::Restart { number, process } => self.on_restart(number, process, now),
            Event::Outdated { process, why, .. } => self.on_outdated(process, &why, now),
            Event::LeaseLost => self.on_lease_lost("the node's lease ended", now),
            Event::Continued { epoch } => self.on_continued(epoch),
            Event::Silenced { at } if self.began <= at && !planted(Bug::GuardForgotten) => {
                self.on_lease_lost(SILENCED, now);
            }
            Event::Silenced { .. } => {}
            Event::StepDone { ticket, result } => self.on_step_done(ticket, result, now),
            Event::AddressHeld { ticket, held } => self.on_address_held(ticket, held, now),
            Event::ProcessExited { process, status } => self.on_process_exited(process, &status, now),
            Event::Lost { step, why, mendable } => self.on_lost(step, &why, mendable, now),
            Event::Probed { ticket, process, finding } => self.on_probed(ticket, process, finding, now),
            Event::NotReady { process, why, recovers } => self.on_not_ready(process, why, recovers, now),
            Event::Tick => {
                self.ask_probes(now);
                self.on_tick(now);
            }
        }
        self.watch(now);
    }

    fn on_start(&mut self, epoch: Epoch, round: u64, now: Time) {
        match self.mode {
            Mode::Forward { .. } | Mode::Running | Mode::BackingOff { .. } if self.epoch == epoch => {
                if round > self.round {
                    reach!("ha: another round of what runs");
                    self.round = round;
                    self.failures.clear();
                    self.persist();
                    self.report();
                }
            }
            _ if self.spent_epoch.is_some_and(|spent| epoch <= spent) => {
                reach!("ha: a start in an epoch whose lease was lost");
            }
            Mode::Failed if round <= self.round => {
                reach!("ha: a start of what failed");
            }
            Mode::Stopped | Mode::Failed => self.begin(epoch, round, now),
            // The devices of another epoch are other devices: everything on top is taken down
            // first.
            Mode::Forward { .. } | Mode::Running | Mode::BackingOff { .. } => {
                reach!("ha: a start in another epoch");
                self.on_stop(now);
                if self.mode == Mode::Stopped {
                    self.begin(epoch, round, now);
                } else {
                    self.pending_start = Some((epoch, round));
                }
            }
            Mode::Backward { .. } | Mode::Killing => {
                reach!("ha: a start waits until all is undone");
                self.pending_start = Some((epoch, round));
            }
        }
    }

    fn begin(&mut self, epoch: Epoch, round: u64, now: Time) {
        if round > self.round {
            self.failures.clear();
        }
        reach!("ha: a start begins");
        self.hooked = self.hooks_next;
        self.steps = steps_of(&self.spec, self.hooked);
        self.losses.clear();
        self.unwalked = false;
        self.epoch = epoch;
        self.round = round;
        self.began = now;
        self.reason.clear();
        self.passes = false;
        self.address_held = None;
        self.taken = 0;
        self.waits_since = None;
        self.kept = false;
        self.probe = Probe::NotAsked;
        self.adopt_below = 0;
        self.forward(0, now);
    }

    /// The epoch in which a service was silenced is over for good, so none goes on from that.
    fn on_continued(&mut self, epoch: Epoch) {
        let spent = self.spent_epoch.is_some_and(|spent| self.epoch <= spent);
        if self.mode == Mode::Running && epoch > self.epoch && !spent {
            self.epoch = epoch;
            self.persist();
            self.report();
        }
    }

    fn on_stop(&mut self, now: Time) {
        self.pending_start = None;
        match &mut self.mode {
            Mode::Stopped | Mode::Failed | Mode::Killing => {}
            Mode::Forward { at } => {
                reach!("ha: stopped while starting");
                let top = *at;
                self.backward(self.top(top), 0, Then::Stop, 0, now);
            }
            Mode::Running => {
                reach!("ha: stopped while running");
                self.backward(self.steps.len().saturating_sub(1), 0, Then::Stop, 0, now);
            }
            Mode::BackingOff { from } => match from.checked_sub(1) {
                None => {
                    reach!("ha: stopped while backing off");
                    self.settle(Mode::Stopped);
                }
                Some(at) => {
                    reach!("ha: stopped while backing off with something left");
                    self.backward(at, 0, Then::Stop, 0, now);
                }
            },
            Mode::Backward { floor, then, .. } => {
                reach!("ha: stopped while being undone");
                // A service that has used up its attempts stays failed, even if it is also told to
                // stop.
                if matches!(then, Then::Retry | Then::Restart) {
                    *then = Then::Stop;
                }
                *floor = 0;
                self.persist();
            }
        }
    }

    fn on_step_done(&mut self, ticket: u64, result: Result<(), String>, now: Time) {
        if self.mode == Mode::Killing {
            self.on_kill_done(ticket, result, now);
            return;
        }
        if self.probe == (Probe::Running { ticket }) {
            self.on_probe_done(result, now);
            return;
        }
        let current =
            self.awaited == Some(ticket) || (planted(Bug::AnyAnswerCounts) && self.awaited.is_some());
        if !current {
            reach!("ha: a late answer");
            return;
        }
        self.awaited = None;
        match (&self.mode, result) {
            (Mode::Forward { at }, Ok(())) => {
                let next = at + 1;
                if self.is_last(*at) {
                    self.all_taken();
                }
                self.forward(next, now);
            }
            (Mode::Forward { at }, Err(why)) => {
                let at = *at;
                reach!("ha: a step failed");
                let why = format!("{} failed: {why}", step_words(&self.spec, self.steps[at]));
                self.passes = self.steps[at].is_of_surroundings();
                self.fail(at, 0, why, now);
            }
            (Mode::Backward { at, floor, then, .. }, result)
                if result.is_ok() || planted(Bug::FailedUndoCounts) =>
            {
                reach!("ha: a step is undone");
                let (at, floor, then) = (*at, *floor, then.clone());
                self.undone(at, floor, then, now);
            }
            (Mode::Backward { .. }, Err(why)) => self.undo_failed(&why, now),
            _ => {}
        }
    }

    fn on_tick(&mut self, now: Time) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.deadline = None;
        match self.mode {
            Mode::Stopped | Mode::Failed => {}
            Mode::Running => self.ask_held_again(now),
            Mode::Killing => self.retry_kill(now),
            // The next attempt waits for the end of the maintenance.
            Mode::BackingOff { .. } if self.rests && !planted(Bug::MaintenanceMends) => {}
            Mode::BackingOff { from } => {
                reach!("ha: another attempt after a pause");
                self.go_on_from(from, now);
            }
            Mode::Forward { at } if self.is_held() => {
                // A step that has not begun cannot be late.
                self.deadline = Some(now.plus_ms(self.spec.timeout_ms(self.steps[at])));
            }
            Mode::Forward { at }
                if self.address_held.is_some() && self.probe == Probe::NotAsked && self.is_last(at) =>
            {
                self.forward(at, now);
            }
            Mode::Forward { at } => {
                reach!("ha: a step took too long");
                self.passes = self.steps[at].is_of_surroundings();
                self.awaited = None;
                self.probe = Probe::NotAsked;
                let seconds = self.spec.timeout_ms(self.steps[at]).div_ceil(1000);
                let found = self.not_ready.take().map(|why| format!(": {why}")).unwrap_or_default();
                let step = step_words(&self.spec, self.steps[at]);
                self.fail(at, 0, format!("{step} did not finish within {seconds} s{found}"), now);
            }
            Mode::Backward { at, floor, ref then, attempt } => {
                let then = then.clone();
                if self.awaited.take().is_some() {
                    reach!("ha: an undo took too long");
                    self.undo_failed("it did not finish in time", now);
                } else {
                    self.backward(at, floor, then, attempt, now);
                }
            }
        }
    }

    /// Runs `steps[at]` and, as far as they need no waiting, the following ones.
    fn forward(&mut self, mut at: usize, now: Time) {
        self.awaited = None;
        self.deadline = None;
        self.unanswering = None;
        self.not_ready = None;
        loop {
            let Some(step) = self.steps.get(at).copied() else {
                reach!("ha: running");
                self.adopt_below = 0;
                self.kept = false;
                self.mode = Mode::Running;
                self.reason.clear();
                if self.address_held.is_some() {
                    self.deadline = Some(now.plus_ms(HELD_ADDRESS_MS));
                }
                self.persist();
                self.report();
                return;
            };
            self.mode = Mode::Forward { at };
            match step {
                // Preparing beside a running process could destroy what it works on. The hook has
                // let this start go on already.
                Step::StartHook | Step::Prepare { .. } if at < self.adopt_below => {}
                Step::ProbeAddress => {
                    if self.probe == Probe::NotAsked {
                        self.persist();
                        self.ask_probe();
                    }
                }
                // R22
                Step::AddAddress if self.probe != Probe::Free && !planted(Bug::AddressNotProbed) => {
                    reach!("ha: the address waits for its probe");
                    if self.probe == Probe::NotAsked {
                        self.ask_probe();
                    }
                    self.deadline = Some(now.plus_ms(PROBE_TIMEOUT_MS));
                    self.persist();
                    self.report();
                    return;
                }
                _ => {
                    self.persist();
                    self.report();
                    self.awaited = Some(self.run(step));
                    self.deadline = Some(now.plus_ms(self.spec.timeout_ms(step)));
                    return;
                }
            }
            at += 1;
        }
    }

    fn ask_probe(&mut self) {
        let ticket = self.run(Step::ProbeAddress);
        self.probe = Probe::Running { ticket };
    }

    fn run(&mut self, step: Step) -> u64 {
        let ticket = self.ticket();
        let timeout_ms = self.spec.timeout_ms(step);
        self.effects.push_back(Effect::Run { ticket, step, timeout_ms });
        ticket
    }

    fn settle(&mut self, mode: Mode) {
        self.mode = mode;
        self.address_held = None;
        self.kept = false;
        self.awaited = None;
        self.deadline = None;
        self.probe = Probe::NotAsked;
        self.unanswering = None;
        self.persist();
        self.report();
    }

    fn start_pending(&mut self, now: Time) {
        if let Some((epoch, round)) = self.pending_start.take() {
            reach!("ha: the start that waited");
            self.on_start(epoch, round, now);
        }
    }

    fn ticket(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }
}
