//! The machine of a service against a node that may fail, linger or never answer in every step.

#[path = "machine/addresses.rs"]
mod addresses;
#[path = "machine/hook.rs"]
mod hook;
#[path = "machine/rest.rs"]
mod rest;
#[path = "machine/restart.rs"]
mod restart;

use mainstay_ha::{Effect, Event, HeldAddresses, Machine, Ready, Report, Saved, ServiceSpec, Step};
use mainstay_types::{Epoch, ServicePhase, Time};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn spec() -> ServiceSpec {
    ServiceSpec::parse(
        r#"
name = "db"
resource = "db"
[mount]
path = "/srv/db"
[[process]]
name = "one"
command = ["/bin/one"]
prepare = ["/bin/init"]
ready = { tcp = "127.0.0.1:1" }
[[process]]
name = "two"
command = ["/bin/two"]
[vip]
address = "10.0.0.7/24"
[policy]
restart_limit = 2
window_s = 600
"#,
    )
    .unwrap()
}

/// A simulated node: the parts of the service that are there.
struct Node {
    machine: Machine,
    now: Time,
    there: BTreeSet<Step>,
    /// Processes that were started and have ended by themselves.
    dead: BTreeSet<usize>,
    saved: Option<Saved>,
    log: Vec<Effect>,
    reports: Vec<Report>,
    /// Steps that fail when run.
    broken: BTreeSet<Step>,
    /// Steps that are never answered when run.
    hung: BTreeSet<Step>,
    /// Undos without force fail.
    stubborn: bool,
    /// A host outside the cluster has an address, or its interface is not here.
    stranger: bool,
    /// Addresses that are free beside that one.
    free: usize,
    without_interface: bool,
    /// How many runs of a step were not preceded by a persisted state since the last answer.
    unanswered: Vec<u64>,
}

impl Node {
    fn new() -> Self {
        Self {
            machine: Machine::new(spec()),
            now: Time(1_000_000),
            there: BTreeSet::new(),
            dead: BTreeSet::new(),
            saved: None,
            log: Vec::new(),
            reports: Vec::new(),
            broken: BTreeSet::new(),
            hung: BTreeSet::new(),
            stubborn: false,
            stranger: false,
            free: 0,
            without_interface: false,
            unanswered: Vec::new(),
        }
    }

    fn held(&self) -> HeldAddresses {
        let why = "10.0.0.7/24 is in use".to_owned();
        HeldAddresses { why, free: self.free, without_interface: self.without_interface }
    }

    fn give(&mut self, event: Event) {
        self.machine.handle(self.now, event);
        self.settle();
    }

    fn start(&mut self, epoch: u64) {
        self.give(Event::Start { epoch: Epoch(epoch), round: 1 });
    }

    /// Carries out effects until the machine waits for time or for a hung step.
    fn settle(&mut self) {
        while self.one() {}
    }

    /// Carries out one effect.
    fn one(&mut self) -> bool {
        let Some(effect) = self.machine.poll(true) else { return false };
        self.log.push(effect.clone());
        match effect {
            Effect::Persist(saved) => self.saved = Some(saved),
            Effect::Report(report) => {
                if report.phase.is_silent() {
                    assert!(self.there.is_empty(), "silent with {:?}", self.there);
                }
                if report.phase == ServicePhase::Running {
                    let said = self.machine.rests() && !report.detail.is_empty();
                    assert!(said || self.dead.is_empty(), "running without {:?}", self.dead);
                }
                self.reports.push(report);
            }
            Effect::Run { ticket, step, .. } => {
                self.check_order(step);
                if step == Step::ProbeAddress && self.stranger {
                    let held = self.held();
                    self.machine.handle(self.now, Event::AddressHeld { ticket, held });
                } else if step == Step::AddAddress && self.stranger {
                    if self.free > 0 {
                        self.take(step);
                    }
                    let held = self.held();
                    self.machine.handle(self.now, Event::AddressHeld { ticket, held });
                } else if self.hung.contains(&step) {
                    // The step may have happened or not. The test assumes that it has.
                    self.take(step);
                    self.unanswered.push(ticket);
                } else if self.broken.contains(&step) {
                    self.take(step);
                    self.machine.handle(self.now, Event::StepDone { ticket, result: Err("broken".into()) });
                } else {
                    self.take(step);
                    self.machine.handle(self.now, Event::StepDone { ticket, result: Ok(()) });
                }
            }
            Effect::Undo { ticket, step, force, .. } => {
                if !force {
                    let kept = self.saved.as_ref().is_some_and(Saved::keeps_address) && step != Step::Mount;
                    let stays = |other: &Step| kept && *other == Step::AddAddress;
                    let above: Vec<&Step> = self
                        .there
                        .iter()
                        .filter(|other| rank(**other) > rank(step) && !stays(other))
                        .collect();
                    assert!(above.is_empty(), "undo of {step:?} under {above:?}");
                }
                let result = if self.stubborn && !force { Err("busy".into()) } else { Ok(()) };
                if result.is_ok() {
                    self.there.remove(&step);
                    if let Step::StartProcess { process } = step {
                        self.dead.remove(&process);
                    }
                }
                self.machine.handle(self.now, Event::StepDone { ticket, result });
            }
            // No process here has a probe; `probes.rs` has those.
            Effect::Probe { .. } => unreachable!("a probe without a process that has one"),
            Effect::Kill { ticket } => {
                self.there.retain(|step| !matches!(step, Step::StartProcess { .. } | Step::Prepare { .. }));
                self.dead.clear();
                self.machine.handle(self.now, Event::StepDone { ticket, result: Ok(()) });
            }
        }
        true
    }

    fn take(&mut self, step: Step) {
        if let Step::StartProcess { process } = step {
            self.dead.remove(&process);
        }
        if !matches!(
            step,
            Step::StartHook | Step::ProbeAddress | Step::CheckReady { .. } | Step::Prepare { .. }
        ) {
            self.there.insert(step);
        }
    }

    fn check_order(&self, step: Step) {
        match step {
            Step::Prepare { .. } | Step::StartProcess { .. } => assert!(self.there.contains(&Step::Mount)),
            Step::AddAddress => {
                for process in 0..2 {
                    assert!(self.there.contains(&Step::StartProcess { process }));
                }
            }
            _ => {}
        }
    }

    /// A process ends by itself, if it runs.
    fn exit(&mut self, process: usize) {
        if self.there.contains(&Step::StartProcess { process }) && self.dead.insert(process) {
            self.give(Event::ProcessExited { process, status: "exit 1".into() });
        }
    }

    /// The agent is restarted. The new one hears of processes that ended meanwhile.
    fn restart(&mut self) {
        let Some(saved) = self.saved.clone() else { return self.settle() };
        self.machine = Machine::restore(spec(), saved, self.now);
        for process in self.dead.clone() {
            self.machine.handle(self.now, Event::ProcessExited { process, status: "unknown".into() });
        }
        self.settle();
    }

    /// Lets time pass, ticking at every deadline.
    fn pass(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline.max(self.now);
            self.give(Event::Tick);
        }
        self.now = end;
    }

    fn phase(&self) -> ServicePhase {
        self.machine.phase()
    }

    fn undone(&self) -> Vec<Step> {
        self.log
            .iter()
            .filter_map(|effect| match effect {
                Effect::Undo { step, .. } => Some(*step),
                _ => None,
            })
            .collect()
    }
}

fn rank(step: Step) -> usize {
    match step {
        Step::StartHook | Step::ProbeAddress => 0,
        Step::Mount => 1,
        Step::Prepare { process } => 2 + process * 3,
        Step::StartProcess { process } => 3 + process * 3,
        Step::CheckReady { process } => 4 + process * 3,
        Step::AddAddress => 100,
    }
}

const STEPS: [Step; 7] = [
    Step::ProbeAddress,
    Step::Mount,
    Step::Prepare { process: 0 },
    Step::StartProcess { process: 0 },
    Step::CheckReady { process: 0 },
    Step::StartProcess { process: 1 },
    Step::AddAddress,
];

#[test]
fn starts_in_order_and_stops_in_reverse() {
    let mut node = Node::new();
    node.start(1);
    assert_eq!(node.phase(), ServicePhase::Running);
    let run: Vec<Step> = node
        .log
        .iter()
        .filter_map(|effect| if let Effect::Run { step, .. } = effect { Some(*step) } else { None })
        .collect();
    assert_eq!(run, STEPS);
    node.give(Event::Stop);
    assert_eq!(node.phase(), ServicePhase::Stopped);
    assert_eq!(
        node.undone(),
        [
            Step::AddAddress,
            Step::StartProcess { process: 1 },
            Step::StartProcess { process: 0 },
            Step::Prepare { process: 0 },
            Step::Mount
        ]
    );
}

#[test]
fn every_step_is_persisted_before_it_runs() {
    let mut node = Node::new();
    node.start(1);
    node.give(Event::Stop);
    let mut persisted = false;
    for effect in &node.log {
        match effect {
            Effect::Persist(_) => persisted = true,
            Effect::Run { step: Step::ProbeAddress, .. } => assert!(persisted),
            Effect::Run { .. } | Effect::Undo { .. } => assert!(std::mem::take(&mut persisted), "{effect:?}"),
            _ => {}
        }
    }
}

#[test]
fn every_failing_or_hanging_step_is_undone_and_finally_given_up() {
    for step in STEPS {
        for hangs in [false, true] {
            let mut node = Node::new();
            if hangs {
                node.hung.insert(step)
            } else {
                node.broken.insert(step)
            };
            node.start(1);
            node.pass(20 * 60_000);
            assert_eq!(node.phase(), ServicePhase::Failed, "{step:?} hangs: {hangs}");
            assert!(node.there.is_empty());
            assert!(!node.machine.reason().is_empty());
            let failures =
                node.reports.iter().filter(|report| report.phase == ServicePhase::BackingOff).count();
            assert_eq!(failures, 2, "{step:?} hangs: {hangs}");
            // Another order of the same round does not start it again; a later round does.
            node.start(2);
            assert_eq!(node.phase(), ServicePhase::Failed);
            node.broken.clear();
            node.hung.clear();
            node.give(Event::Start { epoch: Epoch(2), round: 2 });
            assert_eq!(node.phase(), ServicePhase::Running, "{step:?}");
        }
    }
}

#[test]
fn a_flapping_process_backs_off_and_stops_with_its_reason() {
    let mut node = Node::new();
    node.start(1);
    for expected in [ServicePhase::Running, ServicePhase::Starting, ServicePhase::Failed] {
        node.give(Event::ProcessExited { process: 1, status: "exit 3".into() });
        assert_eq!(node.phase(), expected);
        node.pass(60_000);
    }
    assert!(node.there.is_empty());
    assert!(node.machine.reason().contains("exit 3"), "{}", node.machine.reason());
}

#[test]
fn a_crash_restarts_only_the_steps_that_depend_on_the_process() {
    let mut node = Node::new();
    node.start(1);
    node.log.clear();
    node.give(Event::ProcessExited { process: 1, status: "signal 11".into() });
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert_eq!(node.undone(), [Step::StartProcess { process: 1 }], "the address stays");
}

fn lost_mount(mendable: bool) -> Event {
    Event::Lost { step: Step::Mount, why: "it is not mounted".into(), mendable }
}

#[test]
fn a_mount_that_vanished_is_made_again_under_all_that_stands_on_it() {
    let mut node = Node::new();
    node.start(1);
    node.log.clear();
    node.give(lost_mount(true));
    let down = [
        Step::AddAddress,
        Step::StartProcess { process: 1 },
        Step::StartProcess { process: 0 },
        Step::Prepare { process: 0 },
        Step::Mount,
    ];
    assert_eq!(node.undone(), down);
    let told = node.reports.last().unwrap().last_failure.clone();
    assert!(told.contains("not mounted"), "{told}");
    assert_eq!(node.phase(), ServicePhase::Running);
}

/// Both processes end. The second one ends in whatever the machine does about the first one.
#[test]
fn a_process_that_ends_while_another_one_is_started_again_is_noticed() {
    // While the other one is being undone.
    let mut node = Node::new();
    node.start(1);
    node.dead.insert(1);
    node.machine.handle(node.now, Event::ProcessExited { process: 1, status: "exit 2".into() });
    assert_eq!(node.phase(), ServicePhase::Stopping);
    node.dead.insert(0);
    node.give(Event::ProcessExited { process: 0, status: "exit 3".into() });
    assert!(node.undone().contains(&Step::StartProcess { process: 0 }), "{:?}", node.undone());
    let reason = node.reports.last().unwrap().last_failure.clone();
    assert!(reason.contains("exit 2") && reason.contains("exit 3"), "{reason}");
    assert_eq!(node.phase(), ServicePhase::Running);
    assert_eq!(node.reports.last().unwrap().failures, 1, "both are one failure");
    // While the pause before the next attempt lasts.
    node.exit(1);
    node.log.clear();
    node.exit(0);
    assert_eq!(node.undone(), [Step::StartProcess { process: 0 }]);
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    // While the undo of the other one fails, and while no agent hears of it.
    node.pass(601_000);
    node.stubborn = true;
    node.exit(1);
    assert_eq!(node.phase(), ServicePhase::Stopping);
    node.dead.insert(0);
    node.restart();
    node.pass(30_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(node.dead.is_empty());
    // Before its own start is answered.
    node.pass(601_000);
    node.stubborn = false;
    node.hung.insert(Step::StartProcess { process: 1 });
    node.exit(1);
    assert_eq!(node.phase(), ServicePhase::Starting);
    node.hung.clear();
    node.exit(1);
    for ticket in std::mem::take(&mut node.unanswered) {
        node.give(Event::StepDone { ticket, result: Ok(()) });
    }
    assert_eq!(node.phase(), ServicePhase::Starting, "it has ended already");
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
}

#[test]
fn a_mount_that_vanished_with_its_process_counts_once() {
    let mut node = Node::new();
    node.start(1);
    for _ in 0..2 {
        // Before the undo of the process has ended.
        node.machine.handle(node.now, Event::ProcessExited { process: 1, status: "exit 1".into() });
        node.give(lost_mount(true));
        node.pass(60_000);
        assert_eq!(node.phase(), ServicePhase::Running, "two failures are allowed, and these are two");
    }
}

#[test]
fn a_service_whose_file_system_died_fails_at_once_on_this_node() {
    for process_first in [false, true] {
        let mut node = Node::new();
        node.start(1);
        if process_first {
            node.give(Event::ProcessExited { process: 1, status: "exit 1".into() });
        }
        node.give(lost_mount(false));
        assert_eq!(node.phase(), ServicePhase::Failed);
        assert!(node.there.is_empty());
        assert!(node.machine.reason().contains("any more"), "{}", node.machine.reason());
    }
}

#[test]
fn the_first_restart_comes_at_once_and_the_pauses_double() {
    let mut more = spec();
    more.policy.restart_limit = 9;
    let mut node = Node::new();
    node.machine = Machine::new(more);
    node.start(1);
    let die = |node: &mut Node| node.give(Event::ProcessExited { process: 1, status: "exit 1".into() });
    die(&mut node);
    assert_eq!(node.phase(), ServicePhase::Running, "at once");
    for pause_ms in [2_000, 4_000, 8_000] {
        die(&mut node);
        node.pass(pause_ms - 1);
        assert_ne!(node.phase(), ServicePhase::Running, "within {pause_ms} ms");
        node.pass(1);
        assert_eq!(node.phase(), ServicePhase::Running, "after {pause_ms} ms");
    }
}

#[test]
fn failures_long_ago_do_not_count() {
    let mut node = Node::new();
    node.start(1);
    for _ in 0..10 {
        node.give(Event::ProcessExited { process: 0, status: "exit 1".into() });
        node.pass(601_000);
        assert_eq!(node.phase(), ServicePhase::Running);
    }
}

#[test]
fn a_service_that_dies_slowly_is_given_up_and_one_that_dies_more_rarely_is_restarted_in_place() {
    let die = |node: &mut Node| node.give(Event::ProcessExited { process: 1, status: "exit 1".into() });
    // Three failures within 600 s, the agent restarted between them.
    let mut node = Node::new();
    node.start(1);
    for _ in 0..2 {
        die(&mut node);
        node.pass(299_999);
        assert_eq!(node.phase(), ServicePhase::Running);
        node.restart();
    }
    die(&mut node);
    assert_eq!(node.phase(), ServicePhase::Failed);
    node.pass(86_400_000);
    assert_eq!(node.phase(), ServicePhase::Failed, "this node does not try it again by itself");
    // Never more than two within 600 s.
    let mut node = Node::new();
    node.start(1);
    for _ in 0..20 {
        die(&mut node);
        assert_ne!(node.phase(), ServicePhase::Failed);
        node.pass(2_000);
        assert_eq!(node.phase(), ServicePhase::Running, "the pause does not grow beyond the window");
        node.pass(298_000);
    }
}

#[test]
fn an_undo_that_fails_is_repeated_with_force() {
    let mut node = Node::new();
    node.stubborn = true;
    node.start(1);
    node.give(Event::Stop);
    assert_eq!(node.phase(), ServicePhase::Stopping);
    node.pass(30_000);
    assert_eq!(node.phase(), ServicePhase::Stopped);
    assert!(node.there.is_empty());
}

#[test]
fn the_kill_path_takes_the_address_first_and_waits_for_nothing() {
    for step in STEPS {
        let mut node = Node::new();
        node.hung.insert(step);
        node.start(1);
        if step == Step::AddAddress || step == Step::ProbeAddress {
            assert_eq!(node.phase(), ServicePhase::Starting);
        }
        node.machine.handle(node.now, Event::LeaseLost);
        let mut order = Vec::new();
        // All three are there before any of them is answered.
        let effects: Vec<Effect> = std::iter::from_fn(|| node.machine.poll(true)).collect();
        for effect in &effects {
            match effect {
                Effect::Undo { step, force: true, .. } => order.push(format!("{step:?}")),
                Effect::Kill { .. } => order.push("Kill".into()),
                Effect::Persist(_) => assert_eq!(order.len(), 3, "the disk may be slower than the lease"),
                Effect::Report(report) => assert_eq!(report.phase, ServicePhase::Killing),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(order, ["AddAddress", "Kill", "Mount"]);
        for effect in effects {
            if let Effect::Undo { ticket, .. } | Effect::Kill { ticket } = effect {
                assert_eq!(node.phase(), ServicePhase::Killing);
                node.machine.handle(node.now, Event::StepDone { ticket, result: Ok(()) });
            }
        }
        node.there.clear();
        node.settle();
        assert_eq!(node.phase(), ServicePhase::Stopped);
        // The same epoch's devices are dead; only a later one will do.
        node.hung.clear();
        node.start(1);
        assert_eq!(node.phase(), ServicePhase::Stopped);
        node.start(2);
        assert_eq!(node.phase(), ServicePhase::Running);
    }
}

/// Steps that the runtime would begin now.
fn begun(machine: &mut Machine) -> Vec<Step> {
    std::iter::from_fn(|| machine.poll(true))
        .filter_map(|effect| if let Effect::Run { step, .. } = effect { Some(step) } else { None })
        .collect()
}

/// R10: an agent that was stopped for long wakes up. Its queue holds an answer and the end of its
/// lease.
#[test]
fn a_step_that_an_answer_made_due_does_not_begin_after_the_lease_was_lost() {
    let mut node = Node::new();
    node.hung.insert(Step::Mount);
    node.start(1);
    let ticket = *node.unanswered.last().unwrap();
    node.machine.handle(node.now, Event::StepDone { ticket, result: Ok(()) });
    node.machine.handle(node.now, Event::LeaseLost);
    assert_eq!(
        begun(&mut node.machine),
        [],
        "a file system is prepared, or a process started, without a lease"
    );
    assert_eq!(node.phase(), ServicePhase::Killing);
}

/// R10: a restarted agent walks its steps again, unless it hears first that its lease has ended.
#[test]
fn a_step_that_a_restart_made_due_does_not_begin_after_the_lease_was_lost() {
    let mut node = Node::new();
    node.start(1);
    let mut machine = Machine::restore(spec(), node.saved.clone().unwrap(), node.now);
    machine.handle(node.now, Event::LeaseLost);
    assert_eq!(begun(&mut machine), []);
    assert_eq!(machine.phase(), ServicePhase::Killing);
    // Without the end of the lease the step does begin. So the check above says something.
    let mut machine = Machine::restore(spec(), node.saved.clone().unwrap(), node.now);
    assert_eq!(begun(&mut machine), [Step::ProbeAddress, Step::Mount]);
}

/// R22: the answer that an earlier agent's process got about the address may be old, and the guard
/// may have taken the address off.
#[test]
fn a_restarted_agent_asks_for_the_address_again() {
    let mut node = Node::new();
    node.start(1);
    node.machine = Machine::restore(spec(), node.saved.clone().unwrap(), node.now);
    node.hung.insert(Step::ProbeAddress);
    node.settle();
    node.log.clear();
    assert_eq!(node.phase(), ServicePhase::Starting, "the address waits for its probe");
    let ticket = node.unanswered.pop().unwrap();
    node.give(Event::StepDone { ticket, result: Ok(()) });
    assert_eq!(node.phase(), ServicePhase::Running);
}

/// R22: a process died. The address may be lost until it is started again, so it is asked for.
#[test]
fn the_address_is_asked_for_again_after_a_pause() {
    let mut node = Node::new();
    node.start(1);
    node.log.clear();
    node.hung.insert(Step::ProbeAddress);
    node.give(Event::ProcessExited { process: 1, status: "exit 1".into() });
    assert!(!node.undone().contains(&Step::AddAddress));
    assert_eq!(node.phase(), ServicePhase::Starting);
    let run: Vec<Step> = runs(&node.log);
    assert_eq!(run, [Step::ProbeAddress, Step::StartProcess { process: 1 }]);
    let ticket = node.unanswered.pop().unwrap();
    node.give(Event::StepDone { ticket, result: Ok(()) });
    assert_eq!(node.phase(), ServicePhase::Running);
}

/// No other node could take the address either, and no program is at fault.
#[test]
fn an_address_in_a_strangers_hands_is_waited_for_and_is_no_failure() {
    let mut node = Node::new();
    node.stranger = true;
    node.start(1);
    for _ in 0..300 {
        node.pass(2_000);
        assert_eq!(node.phase(), ServicePhase::BackingOff);
    }
    let last = node.reports.last().unwrap();
    assert!(last.failures == 0 && last.detail.contains("in use"), "{last:?}");
    assert!(
        node.there.contains(&Step::StartProcess { process: 1 }) && !node.there.contains(&Step::AddAddress)
    );
    node.stranger = false;
    node.pass(4_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert_eq!(node.reports.last().unwrap().detail, "");
    // If the service is stopped while it waits, nothing stays.
    let mut node = Node::new();
    node.stranger = true;
    node.start(1);
    node.give(Event::Stop);
    assert_eq!(node.phase(), ServicePhase::Stopped);
    assert!(node.there.is_empty());
}

#[test]
fn a_failure_of_the_surroundings_may_pass_and_one_of_a_program_may_not() {
    for (step, passes) in [
        (Step::Mount, true),
        (Step::ProbeAddress, true),
        (Step::AddAddress, true),
        (Step::StartProcess { process: 0 }, false),
        (Step::CheckReady { process: 0 }, false),
    ] {
        let mut node = Node::new();
        node.broken.insert(step);
        node.start(1);
        for _ in 0..20 {
            node.pass(60_000);
        }
        let last = node.reports.last().unwrap();
        assert_eq!((last.phase, last.passes), (ServicePhase::Failed, passes), "{step:?}");
    }
    let mut node = Node::new();
    node.broken.insert(Step::Mount);
    node.start(1);
    node.broken.clear();
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    for _ in 0..3 {
        node.give(Event::ProcessExited { process: 1, status: "exit 1".into() });
        node.pass(5_000);
    }
    let last = node.reports.last().unwrap();
    assert!(last.phase == ServicePhase::Failed && !last.passes, "its own fault came last: {last:?}");
}

fn runs(log: &[Effect]) -> Vec<Step> {
    log.iter()
        .filter_map(|effect| if let Effect::Run { step, .. } = effect { Some(*step) } else { None })
        .collect()
}

/// R19: the guard acted while the agent stood still or was not there. The machine does not go on
/// with a service that was silenced. A service that began later is another start.
#[test]
fn a_service_that_the_guard_silenced_is_killed_and_a_later_start_is_not() {
    let mut node = Node::new();
    node.start(1);
    let began = node.now;
    let mut machine = Machine::restore(spec(), node.saved.clone().unwrap(), Time(began.0 + 7));
    machine.handle(Time(began.0 + 8), Event::Silenced { at: Time(began.0 - 1) });
    assert_eq!(machine.phase(), ServicePhase::Starting, "that was before its start");
    machine.handle(Time(began.0 + 8), Event::Silenced { at: began });
    assert_eq!(machine.phase(), ServicePhase::Killing);
    assert_eq!(machine.spent_epoch(), Some(Epoch(1)));
    assert_eq!(begun(&mut machine), []);
    // Nothing is left of the service that was silenced.
    let mut node = Node::new();
    node.give(Event::Silenced { at: node.now });
    assert_eq!(node.phase(), ServicePhase::Stopped);
    node.start(1);
    assert_eq!(node.phase(), ServicePhase::Running);
}

/// Effects that come while no step may run.
fn held(machine: &mut Machine) -> Vec<Effect> {
    std::iter::from_fn(|| machine.poll(false)).collect()
}

/// R19
#[test]
fn no_step_begins_while_the_service_is_held() {
    let mut node = Node::new();
    let start = Event::Start { epoch: Epoch(1), round: 1 };
    node.machine.handle(node.now, start.clone());
    assert!(runs(&held(&mut node.machine)).is_empty() && node.machine.is_held());
    // It cannot be late before it has begun.
    node.now = node.now.plus_ms(600_000);
    node.machine.handle(node.now, Event::Tick);
    assert_eq!(node.phase(), ServicePhase::Starting);
    node.settle();
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(node.reports.iter().all(|report| report.failures == 0));
    // A stop drops the effects that wait. The machine then asks again for the probe that was among
    // them.
    let mut node = Node::new();
    node.machine.handle(node.now, start);
    held(&mut node.machine);
    node.machine.handle(node.now, Event::Stop);
    assert!(!node.machine.is_held());
    node.settle();
    assert_eq!(node.phase(), ServicePhase::Stopped);
    assert!(runs(&node.log).is_empty());
    node.start(1);
    assert_eq!(node.phase(), ServicePhase::Running);
}

#[test]
fn a_kill_that_fails_is_repeated_until_it_is_proven() {
    let mut node = Node::new();
    node.start(1);
    node.machine.handle(node.now, Event::LeaseLost);
    let effects: Vec<Effect> = std::iter::from_fn(|| node.machine.poll(true)).collect();
    for effect in effects {
        match effect {
            Effect::Kill { ticket } => {
                node.machine.handle(node.now, Event::StepDone { ticket, result: Err("in D state".into()) });
            }
            Effect::Undo { ticket, step, .. } => {
                node.there.remove(&step);
                node.machine.handle(node.now, Event::StepDone { ticket, result: Ok(()) });
            }
            _ => {}
        }
    }
    assert_eq!(node.phase(), ServicePhase::Killing);
    node.settle();
    node.pass(1_000);
    assert_eq!(node.phase(), ServicePhase::Stopped);
}

#[test]
fn stop_during_each_step_of_a_start() {
    for step in STEPS {
        let mut node = Node::new();
        node.hung.insert(step);
        node.start(1);
        node.give(Event::Stop);
        assert_eq!(node.phase(), ServicePhase::Stopped, "{step:?}");
        assert!(node.there.is_empty());
        // The answer that comes late changes nothing.
        for ticket in std::mem::take(&mut node.unanswered) {
            node.give(Event::StepDone { ticket, result: Ok(()) });
        }
        assert_eq!(node.phase(), ServicePhase::Stopped);
    }
}

#[test]
fn another_epoch_takes_everything_down_before_it_starts() {
    let mut node = Node::new();
    node.start(1);
    node.log.clear();
    node.start(2);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert_eq!(node.machine.epoch(), Epoch(2));
    assert!(node.undone().contains(&Step::Mount));
}

#[test]
fn a_restarted_agent_adopts_without_preparing_again() {
    let mut node = Node::new();
    node.start(1);
    node.machine = Machine::restore(spec(), node.saved.clone().unwrap(), node.now);
    node.log.clear();
    node.settle();
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(!node.log.iter().any(|effect| matches!(effect, Effect::Run { step: Step::Prepare { .. }, .. })));
    assert!(node.undone().is_empty());
}

/// The second process gets a readiness test and the first one loses its own, wherever the machine
/// is.
#[test]
fn a_specification_changes_in_place_wherever_the_machine_is() {
    let mut changed = spec();
    changed.processes[0].ready = None;
    changed.processes[1].ready = Some(Ready::DelayS(3));
    changed.policy.restart_limit = 1;
    changed.mount.as_mut().unwrap().grow = false;
    assert!(!spec().needs_restart(&changed));
    for step in STEPS {
        let mut node = Node::new();
        node.hung.insert(step);
        node.start(1);
        node.machine.amend(changed.clone(), node.now);
        node.settle();
        node.hung.clear();
        for ticket in std::mem::take(&mut node.unanswered) {
            node.give(Event::StepDone { ticket, result: Ok(()) });
        }
        assert_eq!(node.phase(), ServicePhase::Running, "{step:?}");
        assert!(node.undone().is_empty(), "{step:?}");
        // The noted state is about the present steps.
        let mut machine = Machine::restore(changed.clone(), node.saved.clone().unwrap(), node.now);
        assert!(begun(&mut machine).contains(&Step::Mount));
        assert_eq!(machine.phase(), ServicePhase::Starting);
    }
    // No running part is touched, and the next steps go by the new specification.
    let mut node = Node::new();
    node.start(1);
    node.log.clear();
    node.machine.amend(changed.clone(), node.now);
    node.settle();
    assert!(node.log.iter().all(|effect| matches!(effect, Effect::Persist(_))), "{:?}", node.log);
    node.exit(1);
    node.machine.amend(spec(), node.now);
    node.machine.amend(changed, node.now);
    node.pass(5_000);
    assert_eq!(node.phase(), ServicePhase::Running);
    assert!(runs(&node.log).contains(&Step::CheckReady { process: 1 }));
    node.exit(1);
    assert_eq!(node.reports.last().unwrap().phase, ServicePhase::Failed, "one restart is allowed");
}

/// The operator has cleared the failures. The running service goes on, and says so.
#[test]
fn another_round_of_a_running_service_clears_its_failures() {
    let mut node = Node::new();
    node.start(1);
    node.exit(1);
    node.pass(5_000);
    assert_eq!(node.reports.last().unwrap().failures, 1);
    node.log.clear();
    node.give(Event::Start { epoch: Epoch(1), round: 2 });
    let last = node.reports.last().unwrap();
    assert_eq!((last.round, last.failures, last.phase), (2, 0, ServicePhase::Running));
    assert!(runs(&node.log).is_empty() && node.undone().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Silence is reported only when nothing is left (asserted in `Node::one`), whatever happens
    /// and wherever the agent is restarted. A service that is told to stop ends up silent.
    #[test]
    fn silence_is_never_a_lie(events in prop::collection::vec((0u8..10, 0usize..7, 0u64..70_000), 1..60)) {
        let mut node = Node::new();
        let mut epoch = 1;
        for (kind, which, ms) in events {
            match kind {
                0 => node.start(epoch),
                1 => node.give(Event::Stop),
                2 => node.give(Event::LeaseLost),
                3 => node.exit(which % 2),
                4 => {
                    if !node.broken.remove(&STEPS[which]) {
                        node.broken.insert(STEPS[which]);
                    }
                }
                5 => {
                    if !node.hung.remove(&STEPS[which]) {
                        node.hung.insert(STEPS[which]);
                    }
                }
                6 => node.stubborn = !node.stubborn,
                7 => {
                    epoch += 1;
                    let (at, round) = (Epoch(epoch), which as u64);
                    // The agent dies after some of the effects.
                    node.machine.handle(node.now, Event::Start { epoch: at, round });
                    for _ in 0..which {
                        node.one();
                    }
                    node.restart();
                }
                8 => {
                    let process = (which < 3).then_some(which % 2);
                    node.give(Event::Restart { number: ms, process });
                }
                _ => node.pass(ms),
            }
            let runs = node.phase() == ServicePhase::Running;
            prop_assert!(!runs || node.dead.is_empty(), "running without {:?}", node.dead);
        }
        node.hung.clear();
        node.broken.clear();
        node.give(Event::Stop);
        node.pass(400_000);
        prop_assert!(node.phase().is_silent(), "{:?}", node.phase());
        prop_assert!(node.there.is_empty());
    }
}
