//! A node with a service, and an engine and threads that say what the test wants.

mod proposals;
mod replicas;
mod services;
mod succession;

use super::job::{Job, Step, StepAnswer, Trouble};
use super::*;
use crate::state::{Entry, ResourceSpec, Settings};
use mainstay_types::{Choices, Code, Copies, Instance, IssChange, Member, ShrinkReason, StepDownReason};

const ME: NodeId = NodeId(1);
const R: ResourceId = ResourceId(1);
const MINE: Incarnation = Incarnation(9);
const NOW: Time = Time(70_000_000);

/// A primary with a service that may start.
fn state() -> State {
    let mut state = State::default();
    let mut apply = |command| {
        assert!(state.apply(Entry { at_ms: 0, command }).is_ok());
        state.clone()
    };
    apply(Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() });
    apply(Command::AddNode {
        name: "n1".into(),
        agent_addr: "127.0.0.1:1".into(),
        engine_addr: "127.0.0.1:2".into(),
        voter: true,
        witness: false,
        nonce: 1,
    });
    apply(Command::VotersSeen { node: ME, voters_version: 1 });
    let spec = ResourceSpec {
        volumes: vec![1 << 20],
        journal_bytes: 16 << 20,
        replicas: vec![ME],
        preferred: vec![ME],
    };
    apply(Command::CreateResource { name: "db".into(), spec, choices: Choices::default(), origin: None });
    let version = ConfigVersion(1);
    let ready = apply(Command::ReplicaReady { resource: R, version, node: ME, incarnation: MINE });
    let expect_version = ready.resources[&R].record.version;
    apply(Command::Promote { resource: R, expect_version, by: ME, to: ME, reason: "test".into() });
    let spec = ServiceSpec::parse("name='db'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\n");
    apply(Command::ApplyService { spec: spec.unwrap() })
}

struct Lab {
    core: Reconciler,
    state: State,
    seen: NodeSeen,
    now: Time,
}

impl Lab {
    /// Connected, with a lease, a replica that serves, and nothing left of an earlier process.
    fn new() -> Self {
        let state = state();
        let record = &state.resources[&R].record;
        let replica = ReplicaSeen {
            role: Role::Primary,
            epoch: record.epoch,
            version: record.version,
            incarnation: MINE,
            instance: Instance(1),
            reopened: None,
            devices_ready: true,
            continues: None,
            volumes: vec![1 << 20],
            snapshots: Vec::new(),
            scrub: None,
            feeds_all: true,
            copies: Copies::Enough,
            store_failed: false,
            full: false,
            older: false,
        };
        let seen = NodeSeen {
            engine: true,
            replayed: true,
            replicas: BTreeMap::from([(R, replica)]),
            ..NodeSeen::default()
        };
        let mut core = Reconciler::new(ME, NOW, BTreeMap::from([(R, MINE)]), BTreeMap::new());
        // No earlier process has proposed anything about the record.
        core.found = true;
        let mut lab = Self { core, state, seen, now: NOW };
        lab.tell(Event::Lease(NOW.plus_ms(60_000)));
        lab.tell(Event::EngineConnected { lease_until: Time(0), silenced: Time(0) });
        lab
    }

    /// The service is being started.
    fn started() -> Self {
        let mut lab = Self::swept();
        let number = lab.asked_to_guard();
        lab.tell(Event::Guarded { number, confirmed: true });
        lab.tell(Event::LeaseTaken { until: lab.now.plus_ms(60_000), silenced: Time(0) });
        assert!(lab.look().iter().any(begins), "a step begins");
        lab
    }

    fn swept() -> Self {
        let mut lab = Self::new();
        assert!(lab.look().contains(&ReconcilerTask::Sweep { name: "db".into(), spec: lab.spec() }));
        lab.tell(Event::Swept { name: "db".into() });
        lab
    }

    /// A lab after the sweep, before the first request to the guard.
    fn swept_before_a_start() -> Self {
        let mut lab = Self::new();
        lab.look();
        lab.core.handle(lab.now, &lab.state, Event::Swept { name: "db".into() });
        lab
    }

    fn spec(&self) -> ServiceSpec {
        self.state.services["db"].spec.clone()
    }

    fn tell(&mut self, event: Event) -> Vec<ReconcilerTask> {
        self.core.handle(self.now, &self.state, event);
        self.tasks()
    }

    fn look(&mut self) -> Vec<ReconcilerTask> {
        self.core.reconcile(self.now, &self.state, &self.seen);
        self.tasks()
    }

    fn tasks(&mut self) -> Vec<ReconcilerTask> {
        std::iter::from_fn(|| self.core.poll(self.now, &self.state)).collect()
    }

    /// The jobs that a look begins.
    fn orders(&mut self) -> Vec<Order> {
        let tasks = self.look().into_iter();
        tasks
            .filter_map(|task| if let ReconcilerTask::Job { order, .. } = task { Some(order) } else { None })
            .collect()
    }

    fn asked_to_guard(&mut self) -> u64 {
        let asked = |task| match task {
            ReconcilerTask::Guard { number, services } if services == ["db"] => Some(number),
            _ => None,
        };
        self.look().into_iter().find_map(asked).expect("the engine is asked")
    }

    fn ended(&mut self, result: Result<Ended, Failure>) {
        self.tell(Event::JobEnded { resource: R, result });
    }

    fn after_ms(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    fn phase(&self) -> Option<ServicePhase> {
        self.core.service_phase("db")
    }
}

fn begins(task: &ReconcilerTask) -> bool {
    matches!(task, ReconcilerTask::Service { effect: Effect::Run { .. }, .. })
}

fn failure(stays: bool) -> Failure {
    Failure { why: Unusable { reason: "because".into(), code: Code::Disk }, stays }
}

/// R19
#[test]
fn a_service_starts_when_nothing_is_left_of_an_earlier_one_and_the_guard_is_confirmed() {
    let mut lab = Lab::new();
    lab.look();
    assert_eq!(lab.phase(), None, "what an earlier one left counts as running");
    lab.tell(Event::Swept { name: "db".into() });
    let number = lab.asked_to_guard();
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped));
    lab.tell(Event::Guarded { number, confirmed: true });
    assert!(!lab.look().iter().any(begins), "the engine knows of no lease");
    assert_eq!(lab.phase(), Some(ServicePhase::Starting));
    assert!(lab.core.holds_steps());
    lab.tell(Event::LeaseTaken { until: lab.now.plus_ms(60_000), silenced: Time(0) });
    assert!(lab.look().iter().any(begins));
}

/// R19: the file that says what it was doing could not be read, say; its processes run.
#[test]
fn a_forgotten_service_is_not_reported_stopped_before_its_sweep() {
    let mut lab = Lab::new();
    let running = Command::ServiceStatus {
        name: "db".into(),
        node: ME,
        phase: ServicePhase::Running,
        epoch: Epoch(1),
        round: 1,
        detail: String::new(),
        failures: 0,
        passes: false,
        last_failure: String::new(),
    };
    assert!(lab.state.apply(Entry { at_ms: 0, command: running }).is_ok());
    let stopped = |task: &ReconcilerTask| {
        matches!(task, ReconcilerTask::Submit(Command::ServiceStatus { phase: ServicePhase::Stopped, .. }))
    };
    assert!(!lab.look().iter().any(stopped));
    lab.tell(Event::Swept { name: "db".into() });
    assert!(lab.look().iter().any(stopped));
}

/// R10: the look was in time, and what it led to has taken its time.
#[test]
fn a_lease_that_ends_between_look_and_start_starts_nothing() {
    let mut lab = Lab::swept();
    let number = lab.asked_to_guard();
    lab.tell(Event::Guarded { number, confirmed: true });
    lab.tell(Event::LeaseTaken { until: lab.now.plus_ms(60_000), silenced: Time(0) });
    lab.core.reconcile(lab.now, &lab.state, &lab.seen);
    lab.after_ms(59_600);
    assert!(!lab.tasks().iter().any(begins));
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped));
}

/// R19: whatever else there is to do.
#[test]
fn a_kill_comes_before_everything_else() {
    let mut lab = Lab::started();
    lab.seen.replicas.clear();
    lab.after_ms(59_700);
    let tasks = lab.look();
    let kill =
        |task: &ReconcilerTask| matches!(task, ReconcilerTask::Service { effect: Effect::Kill { .. }, .. });
    let at = tasks.iter().position(kill).expect("it is killed");
    let ours = |task: &ReconcilerTask| {
        matches!(task, ReconcilerTask::Service { .. } | ReconcilerTask::Reached { .. })
    };
    assert!(tasks[..at].iter().all(ours), "{tasks:?}");
    assert!(tasks[at..].iter().any(|task| matches!(task, ReconcilerTask::Job { .. })), "{tasks:?}");
}

/// R19: at once, not at the next look.
#[test]
fn a_service_that_the_guard_silenced_is_killed_when_the_reconciler_hears_of_it() {
    let mut lab = Lab::started();
    assert_eq!(lab.tell(Event::LeaseLost { silenced: Time(NOW.0 - 1) }), [], "that was before it began");
    lab.after_ms(1);
    let tasks = lab.tell(Event::LeaseLost { silenced: lab.now });
    assert!(
        tasks.iter().any(|task| matches!(task, ReconcilerTask::Service { effect: Effect::Kill { .. }, .. }))
    );
    assert_eq!(lab.phase(), Some(ServicePhase::Killing));
}

#[test]
fn a_failed_job_is_tried_again_after_a_while_and_at_once_on_another_connection() {
    let mut lab = Lab::new();
    lab.seen.replicas.clear();
    let open = Order::Open { label: MINE };
    assert_eq!(lab.orders(), std::slice::from_ref(&open));
    assert_eq!(lab.orders(), [], "it is under way");
    lab.ended(Err(failure(false)));
    assert_eq!(lab.orders(), []);
    assert!(lab.core.next_deadline() <= lab.now.plus_ms(RETRY_JOB_MS));
    lab.after_ms(RETRY_JOB_MS);
    assert_eq!(lab.orders(), std::slice::from_ref(&open));
    lab.ended(Err(failure(false)));
    lab.tell(Event::EngineDisconnected);
    lab.tell(Event::EngineConnected { lease_until: Time(0), silenced: Time(0) });
    assert_eq!(lab.orders(), [open]);
}

/// R12: only what is about the disk is told to the cluster, and only until the replica is opened
/// after all.
#[test]
fn a_replica_that_cannot_be_opened_is_reported() {
    let mut lab = Lab::swept();
    lab.seen.replicas.clear();
    let reported = |lab: &mut Lab| {
        lab.after_ms(RETRY_JOB_MS);
        let broken =
            |task: &ReconcilerTask| matches!(task, ReconcilerTask::Submit(Command::ReplicaBroken { .. }));
        lab.look().iter().any(broken)
    };
    assert!(!reported(&mut lab));
    lab.ended(Err(failure(false)));
    assert!(!reported(&mut lab));
    lab.ended(Err(failure(true)));
    assert!(reported(&mut lab));
    lab.ended(Ok(Ended::Opened));
    assert!(!reported(&mut lab));
}

/// R9: an operator has removed the files.
#[test]
fn a_replica_whose_files_are_gone_is_made_anew() {
    let mut lab = Lab::new();
    lab.seen.replicas.clear();
    assert_eq!(lab.orders(), [Order::Open { label: MINE }]);
    lab.ended(Ok(Ended::Gone));
    assert_eq!(lab.orders(), [Order::Make { of: None }]);
    lab.ended(Ok(Ended::Made(Incarnation(10))));
    assert_eq!(lab.core.stored(), &BTreeMap::from([(R, Incarnation(10))]));
    assert_eq!(lab.orders(), [Order::Open { label: Incarnation(10) }]);
}

/// R18: the engine has done as it was told, and its devices take their time to go.
#[test]
fn the_same_is_not_told_again_and_again() {
    let mut lab = Lab::new();
    if let Some(replica) = lab.seen.replicas.get_mut(&R) {
        replica.version = ConfigVersion(0);
    }
    let record = Order::Tell(lab.state.resources[&R].record.clone());
    assert_eq!(lab.orders(), std::slice::from_ref(&record));
    lab.ended(Ok(Ended::Told));
    assert_eq!(lab.orders(), []);
    assert_eq!(lab.core.next_deadline(), lab.now.plus_ms(REPEAT_ORDER_MS));
    lab.after_ms(REPEAT_ORDER_MS);
    assert_eq!(lab.orders(), std::slice::from_ref(&record));
    lab.ended(Ok(Ended::Told));
    lab.tell(Event::EngineDisconnected);
    assert_eq!(lab.orders(), [record], "another process knows nothing");
}

#[test]
fn a_relieved_replica_may_be_primary_again() {
    let mut lab = Lab::new();
    let mut seen = lab.seen.replicas[&R].clone();
    seen.role = Role::Fenced;
    let failed = |lab: &Lab, seen: &ReplicaSeen| lab.core.replicas.observe(R, seen).failed;
    let (version, epoch) = (seen.version, seen.epoch);
    lab.tell(asks_for_relief(ConfigVersion(version.0 - 1)));
    assert_eq!(failed(&lab, &seen), None, "that was about an earlier record");
    lab.tell(asks_for_relief(version));
    assert_eq!(failed(&lab, &seen).as_deref(), Some("restarted"));
    seen.version = ConfigVersion(version.0 + 1);
    assert_eq!(failed(&lab, &seen), None);
    // Another wish of the same engine is none to be relieved.
    let change = IssChange::Grow { add: Member { node: ME, incarnation: MINE } };
    lab.tell(proposed(version, epoch, ProposedChange::Iss(change)));
    assert_eq!(failed(&lab, &seen), None);
}

/// R19: a proposal that the node made when the service was silent counts on this record, however
/// late it arrives. So nothing starts on the record.
#[test]
fn a_node_that_may_have_given_its_role_up_starts_nothing_on_that_record() {
    let begins_anew =
        |task: &ReconcilerTask| matches!(task, ReconcilerTask::Job { order: Order::Demote, .. });
    let starts = |task: &ReconcilerTask| begins(task) || matches!(task, ReconcilerTask::Guard { .. });
    let mut lab = Lab::swept_before_a_start();
    let version = lab.state.resources[&R].record.version;
    lab.tell(asks_for_relief(version));
    let replica = lab.seen.replicas.get_mut(&R).expect("it is open");
    replica.role = Role::Fenced;
    let steps_down = |task: &ReconcilerTask| matches!(task, ReconcilerTask::Submit(Command::StepDown { .. }));
    assert!(lab.look().iter().any(steps_down));
    // It serves after all.
    lab.seen.replicas.get_mut(&R).expect("it is open").role = Role::Primary;
    let tasks = lab.look();
    assert!(tasks.iter().any(begins_anew) && !tasks.iter().any(starts), "{tasks:?}");
    let promote =
        Command::Promote { resource: R, expect_version: version, by: ME, to: ME, reason: "why".into() };
    assert!(lab.state.apply(Entry { at_ms: 0, command: promote }).is_ok());
    let record = lab.state.resources[&R].record.clone();
    let replica = lab.seen.replicas.get_mut(&R).expect("it is open");
    (replica.epoch, replica.version) = (record.epoch, record.version);
    lab.now = lab.now.plus_ms(REPEAT_ORDER_MS);
    let tasks = lab.look();
    assert!(tasks.iter().any(starts) && !tasks.iter().any(begins_anew), "{tasks:?}");
}

/// The earlier process may have proposed it, and this one would not know. What it has found in its
/// log it may not know yet either.
#[test]
fn a_new_process_takes_a_record_that_it_finds_for_one_that_may_be_given_up() {
    let mut lab = Lab::swept_before_a_start();
    lab.core.found = false;
    lab.seen.replayed = false;
    // The engine has not heard of the record, and could serve it.
    let replica = lab.seen.replicas.get_mut(&R).expect("it is open");
    (replica.role, replica.epoch, replica.version) = (Role::Secondary, Epoch(0), ConfigVersion(0));
    let promotes = |task: &ReconcilerTask| {
        matches!(task, ReconcilerTask::Submit(Command::Promote { by: ME, to: ME, .. }))
    };
    let told = |task: &ReconcilerTask| matches!(task, ReconcilerTask::Job { order: Order::Tell(_), .. });
    let promote = |lab: &mut Lab| {
        let expect_version = lab.state.resources[&R].record.version;
        let command = Command::Promote { resource: R, expect_version, by: ME, to: ME, reason: "why".into() };
        assert!(lab.state.apply(Entry { at_ms: 0, command }).is_ok());
    };
    // Two records come from what was in the log, the second with its end.
    for replayed in [false, true] {
        promote(&mut lab);
        lab.seen.replayed = replayed;
        for _ in 0..2 {
            lab.after_ms(REPEAT_PROPOSAL_MS);
            let tasks = lab.look();
            assert!(tasks.iter().any(promotes) && !tasks.iter().any(told), "{tasks:?}");
        }
    }
    // No earlier process has seen this one.
    promote(&mut lab);
    let tasks = lab.look();
    assert!(tasks.iter().any(told) && !tasks.iter().any(promotes), "{tasks:?}");
}

#[test]
fn the_same_is_not_proposed_again_and_again() {
    let mut lab = Lab::new();
    let change = IssChange::Shrink {
        remove: Member { node: NodeId(2), incarnation: MINE },
        why: ShrinkReason::Absent,
    };
    let event = proposed(ConfigVersion(1), Epoch(1), ProposedChange::Iss(change));
    assert_eq!(lab.tell(event.clone()).len(), 1);
    assert_eq!(lab.tell(event.clone()), []);
    lab.after_ms(REPEAT_PROPOSAL_MS);
    assert_eq!(lab.tell(event).len(), 1);
}

fn proposed(version: ConfigVersion, epoch: Epoch, change: ProposedChange) -> Event {
    Event::Proposed { resource: R, proposal: Proposal { version, epoch, change } }
}

fn asks_for_relief(version: ConfigVersion) -> Event {
    proposed(version, Epoch(1), ProposedChange::StepDown { reason: StepDownReason::Restarted })
}

/// Carries a job out, whose steps end as `answer` says, and gives its steps and its end.
fn run(
    order: Order,
    mut answer: impl FnMut(&Step) -> Result<StepAnswer, &'static str>,
) -> (Vec<Step>, Result<Ended, Trouble<&'static str>>) {
    let mut job = Job::new(order, || Incarnation(5));
    let mut steps = Vec::new();
    while let Some(step) = job.step() {
        job = job.answered(answer(&step));
        steps.push(step);
    }
    (steps, job.end().expect("it has no step"))
}

#[test]
fn a_replica_is_made_before_its_label_and_removed_after_it() {
    let (steps, end) = run(Order::Make { of: None }, |_| Ok(StepAnswer::Done));
    let made = [Step::RemoveFiles, Step::MakeFiles(Incarnation(5), None), Step::WriteLabel(Incarnation(5))];
    assert_eq!((&steps[..], end), (&made[..], Ok(Ended::Made(Incarnation(5)))));
    let (steps, end) = run(Order::Drop, |_| Ok(StepAnswer::Done));
    let dropped = [Step::Close, Step::RemoveLabel, Step::RemoveFiles];
    assert_eq!((&steps[..], end), (&dropped[..], Ok(Ended::Dropped)));
    for failing in dropped {
        let (steps, end) =
            run(Order::Drop, |step| if *step == failing { Err("no") } else { Ok(StepAnswer::Done) });
        assert_eq!((steps.last(), end), (Some(&failing), Err(Trouble::Step("no"))));
    }
}

#[test]
fn the_remains_of_a_replica_that_could_not_be_made_go() {
    for failing in [Step::MakeFiles(Incarnation(5), None), Step::WriteLabel(Incarnation(5))] {
        // It does not matter whether that succeeds.
        for removed in [Ok(StepAnswer::Done), Err("neither")] {
            let mut failed = false;
            let (steps, end) = run(Order::Make { of: None }, |step| {
                let result = if failed { removed } else { Ok(StepAnswer::Done) };
                failed |= *step == failing;
                if *step == failing { Err("no") } else { result }
            });
            assert_eq!((steps.last(), end), (Some(&Step::RemoveFiles), Err(Trouble::Step("no"))));
        }
    }
}

/// R9
#[test]
fn a_replica_is_opened_only_if_its_files_are_there_and_match_its_label() {
    let opens = |found: u64, gone: bool| {
        let mut opens = 0;
        run(Order::Open { label: MINE }, |step| match step {
            Step::Look if gone => Ok(StepAnswer::Gone),
            Step::Open if opens == 0 || found != 7 => {
                opens += 1;
                Ok(StepAnswer::Opened(Incarnation(found)))
            }
            Step::Open => Ok(StepAnswer::Opened(MINE)),
            _ => Ok(StepAnswer::Done),
        })
    };
    assert_eq!(opens(MINE.0, false), (vec![Step::Look, Step::Open], Ok(Ended::Opened)));
    assert_eq!(opens(MINE.0, true), (vec![Step::Look], Ok(Ended::Gone)));
    let other = Trouble::OtherDisk { found: Incarnation(8), label: MINE };
    let again = vec![Step::Look, Step::Open, Step::Close, Step::Open];
    assert_eq!(opens(8, false), (again.clone(), Err(other)));
    assert_eq!(opens(7, false), (again, Ok(Ended::Opened)), "the engine had other files open, of before");
    let holds = |order, at: Step| {
        run(order, |step| Ok(if *step == at { StepAnswer::Holds(Incarnation(7)) } else { StepAnswer::Done }))
            .1
    };
    let found = Ok(Ended::Found(Incarnation(7)));
    assert_eq!(holds(Order::Open { label: MINE }, Step::Look), found);
    assert_eq!(holds(Order::Make { of: None }, Step::MakeFiles(Incarnation(5), None)), found);
}
