//! Probes of processes that run: what their answers do to a service.

use mainstay_ha::{Effect, Event, Finding, Machine, Report, Saved, ServiceSpec, Step};
use mainstay_types::{Epoch, ServicePhase, Time};
use std::collections::BTreeMap;

const SPEC: &str = r#"
name = "db"
resource = "db"
[[process]]
name = "one"
command = ["/bin/one"]
start_timeout_s = 20
probe = { command = ["/bin/ask-one"] }
[[process]]
name = "two"
command = ["/bin/two"]
probe = { command = ["/bin/ask-two"] }
probe_interval_s = 7
[policy]
restart_limit = 2
"#;
const ONE: Step = Step::StartProcess { process: 0 };
const TWO: Step = Step::StartProcess { process: 1 };

fn silence() -> Finding {
    Finding::Unhealthy("there was no answer within 3 s".into())
}

/// A node on which every step succeeds at once, and whose processes answer probes as `answers`
/// says: healthy if nothing.
struct Node {
    machine: Machine,
    now: Time,
    answers: BTreeMap<usize, Finding>,
    /// Probes of these processes get no answer.
    mute: Vec<usize>,
    /// Readiness tests get no answer.
    never_ready: bool,
    /// Undos, each with whether it was by force.
    undone: Vec<(Step, bool)>,
    started: Vec<Step>,
    /// When each process was asked, in milliseconds.
    asked: Vec<(u64, usize)>,
    report: Option<Report>,
    saved: Option<Saved>,
}

impl Node {
    fn new() -> Self {
        Self::of(SPEC)
    }

    fn of(spec: &str) -> Self {
        let mut node = Self {
            machine: Machine::new(ServiceSpec::parse(spec).unwrap()),
            now: Time(0),
            answers: BTreeMap::new(),
            mute: Vec::new(),
            never_ready: false,
            undone: Vec::new(),
            started: Vec::new(),
            asked: Vec::new(),
            report: None,
            saved: None,
        };
        node.give(Event::Start { epoch: Epoch(1), round: 1 });
        node
    }

    fn give(&mut self, event: Event) {
        self.machine.handle(self.now, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll(true) {
            let answer = match effect {
                Effect::Persist(saved) => {
                    self.saved = Some(saved);
                    None
                }
                Effect::Report(report) => {
                    self.report = Some(report);
                    None
                }
                Effect::Run { step: Step::CheckReady { .. }, .. } if self.never_ready => None,
                Effect::Run { ticket, step, .. } => {
                    self.started.push(step);
                    Some(Event::StepDone { ticket, result: Ok(()) })
                }
                Effect::Undo { ticket, step, force, .. } => {
                    self.undone.push((step, force));
                    Some(Event::StepDone { ticket, result: Ok(()) })
                }
                Effect::Kill { ticket } => Some(Event::StepDone { ticket, result: Ok(()) }),
                Effect::Probe { ticket, process, .. } => {
                    self.asked.push((self.now.0 / 1_000, process));
                    let finding = self.answers.get(&process).cloned().unwrap_or(Finding::Healthy);
                    let heard = !self.mute.contains(&process);
                    heard.then_some(Event::Probed { ticket, process, finding })
                }
            };
            if let Some(answer) = answer {
                self.machine.handle(self.now, answer);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while let Some(due) = self.machine.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.give(Event::Tick);
        }
        self.now = end;
    }

    fn words(&self) -> &str {
        self.report.as_ref().map_or("", |report| &report.detail)
    }

    fn is_running(&self) -> bool {
        self.machine.phase() == ServicePhase::Running
    }
}

#[test]
fn a_process_that_runs_is_asked_at_its_interval() {
    let mut node = Node::new();
    node.pass(14_000);
    assert!(node.is_running() && node.undone.is_empty());
    let of = |process: usize| -> Vec<u64> {
        node.asked.iter().filter(|(_, asked)| *asked == process).map(|(at, _)| *at).collect()
    };
    assert_eq!(of(0), [2_000, 4_000, 6_000, 8_000, 10_000, 12_000, 14_000]);
    assert_eq!(of(1), [7_000, 14_000]);
}

#[test]
fn a_process_that_does_not_answer_is_killed_and_started_again_with_all_above_it() {
    let mut node = Node::new();
    node.answers.insert(0, silence());
    node.pass(5_999);
    assert!(node.is_running() && node.undone.is_empty(), "two failures are not three");
    assert_eq!(node.words(), "process one does not answer: there was no answer within 3 s");
    node.answers.clear();
    node.answers.insert(0, silence());
    node.pass(1);
    assert_eq!(node.undone, [(TWO, false), (ONE, true)], "the process above it stops in order");
    let failure = node.report.as_ref().unwrap().last_failure.clone();
    let said = "process one does not answer: there was no answer within 3 s (3 probes in a row failed)";
    assert_eq!(failure, said);
    node.answers.clear();
    node.pass(2_000);
    assert!(node.is_running());
    assert_eq!(node.words(), "", "a healthy service has nothing to say");
    assert_eq!(node.report.unwrap().failures, 1);
}

#[test]
fn the_upper_process_alone_is_restarted_if_it_does_not_answer() {
    let mut node = Node::new();
    node.answers.insert(1, silence());
    node.pass(21_000);
    assert_eq!(node.undone, [(TWO, true)]);
}

#[test]
fn failures_count_only_in_a_row() {
    let mut node = Node::new();
    for _ in 0..10 {
        node.answers.insert(0, silence());
        node.pass(4_000);
        node.answers.clear();
        node.pass(2_000);
        assert_eq!(node.words(), "");
    }
    assert!(node.undone.is_empty() && node.is_running());
}

#[test]
fn failures_of_an_earlier_process_do_not_count_for_the_one_after_it() {
    let mut node = Node::new();
    node.answers.insert(0, silence());
    node.pass(4_000);
    node.give(Event::ProcessExited { process: 0, status: "signal 9".into() });
    node.undone.clear();
    assert!(node.is_running(), "a first restart comes at once");
    node.pass(5_999);
    assert!(node.undone.is_empty() && node.is_running(), "two of its own");
    node.pass(1);
    assert_eq!(node.undone.last(), Some(&(ONE, true)));
}

#[test]
fn a_process_that_recovers_from_a_crash_is_left_alone_and_told_of() {
    let mut node = Node::new();
    node.answers.insert(0, Finding::Recovering("the database system is starting up".into()));
    node.pass(600_000);
    assert!(node.undone.is_empty() && node.is_running());
    assert_eq!(node.words(), "process one recovers: the database system is starting up");
}

#[test]
fn a_probe_that_the_node_cannot_ask_restarts_nothing_and_is_told_of() {
    let mut node = Node::new();
    node.answers.insert(0, Finding::NotAsked("/bin/ask-one cannot be started".into()));
    node.pass(600_000);
    assert!(node.undone.is_empty() && node.is_running());
    assert_eq!(node.words(), "whether process one answers is not known: /bin/ask-one cannot be started");
}

/// The operator lowers the limit below the failures that were counted already.
#[test]
fn only_another_failed_probe_restarts_a_process_under_a_lower_limit() {
    let mut node = Node::new();
    node.answers.insert(0, silence());
    node.pass(4_000);
    let lower = SPEC.replacen("probe = ", "probe_failures = 2\nprobe = ", 1);
    node.machine.amend(ServiceSpec::parse(&lower).unwrap(), node.now);
    node.answers.insert(0, Finding::NotAsked("no memory".into()));
    node.pass(10_000);
    assert!(node.undone.is_empty() && node.is_running());
    node.answers.insert(0, silence());
    node.pass(2_000);
    assert_eq!(node.undone.last(), Some(&(ONE, true)));
}

#[test]
fn a_probe_that_never_ends_counts_as_failed() {
    let mut node = Node::new();
    node.mute.push(0);
    node.pass(2_000 + 2 * 5_000 + 4_999);
    assert!(node.undone.is_empty());
    node.pass(1);
    assert_eq!(node.undone.last(), Some(&(ONE, true)));
    assert!(node.report.unwrap().last_failure.contains("its probe did not end in time"));
}

#[test]
fn an_answer_that_comes_late_counts_for_nothing() {
    let mut node = Node::new();
    node.mute.push(0);
    node.pass(7_000);
    let late = Event::Probed { ticket: 5, process: 0, finding: silence() };
    for _ in 0..5 {
        node.give(late.clone());
    }
    assert!(node.undone.is_empty() && node.is_running());
}

#[test]
fn no_process_is_asked_while_the_service_stops_or_is_killed() {
    for event in [Event::Stop, Event::LeaseLost] {
        let mut node = Node::new();
        node.pass(1_000);
        node.give(event);
        node.pass(60_000);
        assert_eq!(node.asked, []);
        assert!(node.machine.phase().is_silent());
    }
}

#[test]
fn a_service_whose_process_never_answers_again_is_given_up_on_this_node() {
    let mut node = Node::new();
    node.answers.insert(0, silence());
    node.pass(120_000);
    assert_eq!(node.machine.phase(), ServicePhase::Failed);
    assert!(node.machine.reason().contains("process one does not answer"));
    assert!(!node.report.unwrap().passes, "the program is at fault");
}

#[test]
fn a_start_waits_for_a_recovery_and_not_for_a_process_that_is_silent() {
    let mut node = Node::new();
    node.give(Event::Stop);
    node.never_ready = true;
    node.give(Event::Start { epoch: Epoch(1), round: 1 });
    let tell = |node: &mut Node, recovers: bool| {
        let why = "the database system is starting up".to_owned();
        node.give(Event::NotReady { process: 0, why, recovers });
    };
    for _ in 0..20 {
        tell(&mut node, true);
        assert_eq!(node.words(), "wait until one is ready: the database system is starting up");
        node.pass(19_000);
    }
    assert_eq!(node.machine.phase(), ServicePhase::Starting);
    node.undone.clear();
    tell(&mut node, false);
    node.pass(1_000);
    assert_eq!(node.undone, [(ONE, false)]);
    assert_eq!(
        node.report.unwrap().last_failure,
        "wait until one is ready did not finish within 20 s: the database system is starting up"
    );
}

#[test]
fn a_probe_that_is_added_to_a_running_service_is_asked() {
    let plain = SPEC.replace("probe = { command = [\"/bin/ask-one\"] }\n", "");
    let mut node = Node::of(&plain);
    node.pass(6_000);
    assert_eq!(node.asked, []);
    node.machine.amend(ServiceSpec::parse(SPEC).unwrap(), node.now);
    node.carry_out();
    assert!(node.is_running());
    node.pass(6_000);
    assert_eq!(node.asked.iter().filter(|(_, process)| *process == 0).count(), 3);
}

#[test]
fn a_restarted_agent_goes_on_asking() {
    let mut node = Node::new();
    node.answers.insert(0, silence());
    node.pass(4_000);
    let saved = node.saved.clone().unwrap();
    node.machine = Machine::restore(ServiceSpec::parse(SPEC).unwrap(), saved, node.now);
    node.carry_out();
    assert!(node.is_running());
    node.pass(5_999);
    assert!(node.undone.is_empty(), "it counts anew");
    node.pass(1);
    assert_eq!(node.undone.last(), Some(&(ONE, true)));
}

#[test]
fn a_process_that_is_gone_is_restarted_by_one_monitor() {
    let agent = "ocf = { agent = \"ocf:heartbeat:Dummy\", monitor_interval_s = 5 }";
    let mut node = Node::of(&SPEC.replace(
        "command = [\"/bin/one\"]\nstart_timeout_s = 20\nprobe = { command = [\"/bin/ask-one\"] }",
        agent,
    ));
    assert!(node.started.contains(&Step::CheckReady { process: 0 }), "its start is not waited for");
    node.answers.insert(0, silence());
    node.pass(5_000);
    assert!(node.is_running() && node.undone.is_empty(), "one failure is not two");
    node.answers.insert(0, Finding::Gone("exit code 7".into()));
    node.pass(4_999);
    assert!(node.undone.is_empty());
    node.answers.clear();
    node.answers.insert(0, Finding::Gone("exit code 7".into()));
    node.pass(1);
    assert_eq!(node.undone, [(TWO, false), (ONE, true)]);
    assert_eq!(node.report.unwrap().last_failure, "process one does not run: exit code 7");
}
