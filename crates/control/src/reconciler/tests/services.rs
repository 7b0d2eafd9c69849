//! Services of a node: those that the engine guards, those that are killed, and the notes about
//! them.

use super::*;
use crate::maintenance::Scope;
use mainstay_ha::{REPEAT_GUARD_MS, Saved};
use mainstay_silence::GUARD_MARGIN_MS;
use mainstay_types::Severity;

fn is_kill(task: &ReconcilerTask) -> bool {
    matches!(task, ReconcilerTask::Service { effect: Effect::Kill { .. }, .. })
}

fn guard(tasks: &[ReconcilerTask]) -> Option<(u64, Vec<String>)> {
    tasks.iter().find_map(|task| match task {
        ReconcilerTask::Guard { number, services } => Some((*number, services.clone())),
        _ => None,
    })
}

/// Everything that was begun succeeds, and what follows from it, until nothing is begun any more.
fn succeed(lab: &mut Lab, mut tasks: Vec<ReconcilerTask>) -> Vec<ReconcilerTask> {
    let mut all = tasks.clone();
    loop {
        let done = |task: &ReconcilerTask| match task {
            ReconcilerTask::Service {
                effect: Effect::Run { ticket, .. } | Effect::Undo { ticket, .. } | Effect::Kill { ticket },
                ..
            } => Some(*ticket),
            _ => None,
        };
        let tickets: Vec<u64> = tasks.iter().filter_map(done).collect();
        if tickets.is_empty() {
            return all;
        }
        for ticket in tickets {
            lab.tell(Event::Service {
                name: "db".into(),
                event: ServiceEvent::StepDone { ticket, result: Ok(()) },
            });
        }
        tasks = lab.look();
        all.extend(tasks.clone());
    }
}

/// Its guard is confirmed and its lease taken; the service is about to start.
fn guarded() -> Lab {
    let mut lab = Lab::swept();
    let number = lab.asked_to_guard();
    lab.tell(Event::Guarded { number, confirmed: true });
    lab
}

/// With what the service has made durable.
fn running() -> (Lab, Saved) {
    let mut lab = guarded();
    lab.tell(Event::LeaseTaken { until: lab.now.plus_ms(60_000), silenced: Time(0) });
    let tasks = lab.look();
    let tasks = succeed(&mut lab, tasks);
    assert_eq!(lab.phase(), Some(ServicePhase::Running));
    let mut saved = tasks.into_iter().filter_map(|task| match task {
        ReconcilerTask::Service { effect: Effect::Persist(saved), .. } => Some(saved),
        _ => None,
    });
    let saved = saved.next_back().expect("it is made durable");
    (lab, saved)
}

/// A process that starts after another one, whose service runs.
fn adopting(lab: &Lab, saved: Saved) -> Reconciler {
    let service = &lab.state.services["db"];
    let adopted = Adopted {
        spec: service.spec.clone(),
        revision: service.revision,
        edition: service.edition,
        resource: R,
        saved,
    };
    Reconciler::new(ME, lab.now, BTreeMap::from([(R, MINE)]), BTreeMap::from([("db".into(), adopted)]))
}

fn apply(lab: &mut Lab, command: Command) {
    assert!(lab.state.apply(Entry { at_ms: 0, command }).is_ok());
}

#[test]
fn a_forgotten_service_is_swept_once_and_a_remembered_one_never() {
    let sweeps = |tasks: Vec<ReconcilerTask>| {
        tasks.iter().filter(|task| matches!(task, ReconcilerTask::Sweep { .. })).count()
    };
    let mut lab = Lab::new();
    assert_eq!((sweeps(lab.look()), sweeps(lab.look())), (1, 0));
    let (mut lab, saved) = running();
    lab.core = adopting(&lab, saved);
    lab.tell(Event::Lease(lab.now.plus_ms(60_000)));
    assert_eq!(sweeps(lab.look()), 0);
    assert!(lab.core.services.sweeping().is_empty() && lab.core.has_services());
}

/// A node that has not joined yet knows of no service.
#[test]
fn leftovers_are_swept_when_the_services_are_known() {
    let mut lab = Lab::new();
    let joined = std::mem::take(&mut lab.state);
    assert_eq!(lab.look(), []);
    lab.state = joined;
    assert!(lab.look().contains(&ReconcilerTask::Sweep { name: "db".into(), spec: lab.spec() }));
}

/// R19: another engine knows nothing, whatever the one before has confirmed.
#[test]
fn a_new_engine_is_asked_to_guard_the_running_services() {
    let (mut lab, _) = running();
    assert_eq!(guard(&lab.look()), None, "it is confirmed");
    lab.tell(Event::EngineConnected { lease_until: lab.now.plus_ms(60_000), silenced: Time(0) });
    assert!(!lab.core.services.may_run(lab.now));
    let (number, services) = guard(&lab.look()).expect("it is asked");
    assert_eq!(services, ["db"]);
    lab.tell(Event::Guarded { number, confirmed: true });
    assert!(lab.core.services.may_run(lab.now), "it knew the lease when it connected");
    lab.tell(Event::EngineDisconnected);
    assert!(!lab.core.services.may_run(lab.now));
}

#[test]
fn the_engine_is_asked_again_when_it_does_not_confirm() {
    let mut lab = Lab::swept();
    let first = lab.asked_to_guard();
    assert_eq!(guard(&lab.look()), None, "a moment ago");
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped));
    assert_eq!(lab.core.next_deadline(), lab.now.plus_ms(REPEAT_GUARD_MS));
    lab.after_ms(REPEAT_GUARD_MS);
    assert!(lab.asked_to_guard() > first);
}

/// R19: of two machines of one name the later one was never guarded.
#[test]
fn a_service_that_is_made_anew_is_guarded_anew() {
    let (mut lab, saved) = running();
    lab.core = adopting(&lab, saved);
    lab.tell(Event::Lease(lab.now.plus_ms(60_000)));
    let until = lab.now.plus_ms(60_000);
    lab.tell(Event::EngineConnected { lease_until: until, silenced: Time(0) });
    let (number, _) = guard(&lab.look()).expect("it is asked");
    lab.tell(Event::Guarded { number, confirmed: true });
    assert!(lab.core.services.forget("db"), "as if it had stopped");
    assert!(!lab.core.services.forget("db"));
    let (later, services) = guard(&lab.look()).expect("it is asked again");
    assert!(later > number && services == ["db"]);
}

/// R19: an agent that was away when the guard acted.
#[test]
fn a_service_silenced_while_the_agent_was_away_is_killed() {
    let silenced = |event: &dyn Fn(Time) -> Event| {
        let (mut lab, _) = running();
        lab.after_ms(1);
        let tasks = lab.tell(event(lab.now));
        tasks.iter().any(is_kill) && lab.phase() == Some(ServicePhase::Killing)
    };
    let lease_until = Time(0);
    assert!(silenced(&|silenced| Event::EngineConnected { lease_until, silenced }));
    assert!(silenced(&|silenced| Event::LeaseTaken { until: lease_until, silenced }));
    assert!(silenced(&|silenced| Event::LeaseLost { silenced }));
}

/// R19: what failed is done again, and looked at in time.
#[test]
fn a_kill_that_failed_is_repeated_at_the_next_look() {
    let (mut lab, _) = running();
    lab.after_ms(1);
    let tasks = lab.tell(Event::LeaseLost { silenced: lab.now });
    let failed = tasks.iter().find_map(|task| match task {
        ReconcilerTask::Service { effect: Effect::Kill { ticket }, .. } => Some(*ticket),
        _ => None,
    });
    let ticket = failed.expect("it is killed");
    let event = ServiceEvent::StepDone { ticket, result: Err("it is still there".into()) };
    lab.tell(Event::Service { name: "db".into(), event });
    lab.look();
    let again = lab.core.next_deadline();
    assert_eq!(again, lab.now.plus_ms(200), "as the machine wants it, and not with the next usual look");
    lab.now = again;
    assert!(lab.core.is_due(again));
    assert!(lab.look().iter().any(is_kill));
}

/// R10, R19: the engine is gone when the lease is taken, or its list is not confirmed.
#[test]
fn a_step_that_is_held_waits_for_the_engine() {
    let mut lab = guarded();
    assert!(!lab.look().iter().any(begins));
    assert!(lab.core.holds_steps());
    lab.seen.engine = false;
    lab.tell(Event::LeaseTaken { until: lab.now.plus_ms(60_000), silenced: Time(0) });
    assert!(!lab.look().iter().any(begins));
    lab.seen.engine = true;
    assert!(lab.look().iter().any(begins));
}

/// A client that waits for the end of a service hears of it from its node, and only from what the
/// node remembers.
#[test]
fn a_service_is_forgotten_when_its_end_was_told() {
    let (mut lab, _) = running();
    apply(&mut lab, Command::DeleteService { name: "db".into() });
    let stopping =
        |tasks: &[ReconcilerTask]| tasks.iter().any(|task| matches!(task, ReconcilerTask::Stopping { .. }));
    let tasks = lab.look();
    assert!(stopping(&tasks));
    assert!(!stopping(&lab.look()), "it is told once");
    let tasks = succeed(&mut lab, tasks);
    assert_eq!(lab.phase(), Some(ServicePhase::Stopped), "it is remembered");
    let forgets =
        |tasks: &[ReconcilerTask]| tasks.contains(&ReconcilerTask::ForgetService { name: "db".into() });
    assert!(!forgets(&tasks) && !forgets(&lab.look()));
    lab.after_ms(REPEAT_PROPOSAL_MS);
    for task in lab.look() {
        if let ReconcilerTask::Submit(command @ Command::ServiceStatus { .. }) = task {
            apply(&mut lab, command);
        }
    }
    assert!(forgets(&lab.look()));
    assert_eq!(lab.phase(), None);
    if let Some(service) = lab.state.services.get_mut("db") {
        service.nodes.clear();
    }
    assert!(!lab.core.proposals.is_unsaid(&lab.state, ME, "db"), "what it said is forgotten with it");
}

/// R28: the phase stays, and what the probes of the service find is news all the same.
#[test]
fn a_finding_about_a_running_service_is_told_to_the_cluster_and_that_it_has_passed() {
    let (mut lab, _) = running();
    let machine = lab.core.services.machine("db").expect("it runs");
    let (epoch, round) = (machine.epoch(), machine.round());
    for detail in ["", "process db does not answer: too many connections", ""] {
        let report = Report {
            phase: ServicePhase::Running,
            epoch,
            round,
            detail: detail.into(),
            failures: 0,
            passes: false,
            last_failure: String::new(),
        };
        lab.core.proposals.report("db".into(), report);
        for command in lab.core.proposals.due_reports(lab.now, &lab.state, ME) {
            apply(&mut lab, command);
        }
        assert_eq!(lab.state.services["db"].nodes[&ME].detail, detail);
        assert!(!lab.core.proposals.is_unsaid(&lab.state, ME, "db"));
    }
}

/// The service comes to rest. A look begins before the reconciler has asked the service for its
/// last report.
#[test]
fn the_last_report_of_a_service_is_heard_before_the_service_is_forgotten() {
    let (mut lab, _) = running();
    apply(&mut lab, Command::DeleteService { name: "db".into() });
    let mut tasks = lab.look();
    let undone = |task: &ReconcilerTask| match task {
        ReconcilerTask::Service { effect: Effect::Undo { ticket, .. }, .. } => Some(*ticket),
        _ => None,
    };
    while let Some(ticket) = tasks.iter().find_map(undone) {
        // All that it has said so far is known.
        lab.after_ms(REPEAT_PROPOSAL_MS);
        for task in lab.look() {
            if let ReconcilerTask::Submit(command @ Command::ServiceStatus { .. }) = task {
                apply(&mut lab, command);
            }
        }
        let event = ServiceEvent::StepDone { ticket, result: Ok(()) };
        lab.core.handle(lab.now, &lab.state, Event::Service { name: "db".into(), event });
        tasks = lab.look();
    }
    let ended = |task: &ReconcilerTask| matches!(task, ReconcilerTask::Reached { report, .. } if report.phase == ServicePhase::Stopped);
    assert!(tasks.iter().any(ended), "{tasks:?}");
    assert!(!tasks.contains(&ReconcilerTask::ForgetService { name: "db".into() }));
}

#[test]
fn the_end_of_the_lease_is_looked_at_in_time() {
    let (mut lab, _) = running();
    lab.tell(Event::Lease(lab.now.plus_ms(GUARD_MARGIN_MS + 300)));
    lab.look();
    assert_eq!(lab.core.next_deadline(), lab.now.plus_ms(300));
    lab.tell(Event::Lease(lab.now));
    assert!(lab.core.is_due(lab.now), "it is not what the last look was based on");
    lab.look();
    assert!(!lab.core.is_due(lab.now));
    lab.tell(Event::Lease(lab.now.plus_ms(60_000)));
    assert!(lab.core.is_due(lab.now), "nor is this");
}

/// A lease does not end because the agent was restarted; what this process has counted says more.
#[test]
fn a_restarted_agent_takes_the_lease_from_the_engine_until_it_has_counted_one() {
    let lab = Lab::new();
    let (now, state) = (lab.now, &lab.state);
    let mut core = Reconciler::new(ME, now, BTreeMap::new(), BTreeMap::new());
    let connected = |ms| Event::EngineConnected { lease_until: now.plus_ms(ms), silenced: Time(0) };
    core.handle(now, state, connected(5_000));
    assert!(core.knows_lease() && core.lease.until == now.plus_ms(5_000));
    core.handle(now, state, Event::Lease(now.plus_ms(9_000)));
    core.handle(now, state, connected(7_000));
    assert_eq!(core.lease.until, now.plus_ms(9_000));
}

#[test]
fn a_node_waits_a_moment_to_hear_of_its_lease_unless_it_is_dead() {
    let lab = Lab::new();
    let fresh = || Reconciler::new(ME, lab.now, BTreeMap::from([(R, MINE)]), BTreeMap::new());
    let look = |core: &mut Reconciler, state: &State, now| {
        core.reconcile(now, state, &lab.seen);
        std::iter::from_fn(|| core.poll(now, state)).count()
    };
    let mut core = fresh();
    let later = lab.now.plus_ms(LEASE_UNKNOWN_MS_MAX);
    assert_eq!(look(&mut core, &lab.state, lab.now.plus_ms(100)), 0);
    assert_eq!(core.next_deadline(), later);
    assert!(look(&mut core, &lab.state, later) > 0);
    let mut dead = lab.state.clone();
    let generation = dead.nodes[&ME].generation;
    assert!(dead.apply(Entry { at_ms: 0, command: Command::NodeDead { node: ME, generation } }).is_ok());
    assert!(look(&mut fresh(), &dead, lab.now.plus_ms(100)) > 0);
}

/// R21: its cause may have passed by itself. The pauses grow, so that a cause that stays costs
/// little.
#[test]
fn a_halted_service_is_tried_again_after_a_while_and_ever_more_rarely() {
    let mut lab = Lab::new();
    let mut pause_ms = crate::reconciler::RETRY_HALTED_MS;
    for _ in 0..8 {
        let round = lab.state.services["db"].round;
        let failed = Command::ServiceStatus {
            name: "db".into(),
            node: ME,
            phase: ServicePhase::Failed,
            epoch: Epoch(1),
            round,
            detail: "the address is in use".into(),
            failures: 4,
            passes: true,
            last_failure: String::new(),
        };
        assert!(lab.state.apply(Entry { at_ms: 0, command: failed }).is_ok());
        assert!(lab.state.services["db"].halted.is_some());
        let retry = Command::RetryService { name: "db".into(), round };
        let asked = |tasks: &[ReconcilerTask]| tasks.contains(&ReconcilerTask::Submit(retry.clone()));
        assert!(!asked(&lab.look()));
        lab.now = lab.now.plus_ms(pause_ms - 1);
        assert!(!asked(&lab.look()), "too early");
        lab.now = lab.now.plus_ms(1);
        assert!(asked(&lab.look()), "after {pause_ms} ms");
        assert!(lab.state.apply(Entry { at_ms: 0, command: retry }).is_ok());
        pause_ms = (2 * pause_ms).min(crate::reconciler::RETRY_HALTED_MS_MAX);
    }
    assert_eq!(pause_ms, crate::reconciler::RETRY_HALTED_MS_MAX);
}

/// R21, S320: nodes come and go in a row. The service is tried again a minute after this process
/// has seen its last failure, whatever the wall clocks of the proposers say.
#[test]
fn a_failed_service_is_tried_again_a_minute_after_its_failure_if_nodes_have_changed() {
    let mut lab = Lab::new();
    let round = lab.state.services["db"].round;
    let failed = |failures| Command::ServiceStatus {
        name: "db".into(),
        node: ME,
        phase: ServicePhase::Failed,
        epoch: Epoch(1),
        round,
        detail: "exit 1".into(),
        failures,
        passes: false,
        last_failure: String::new(),
    };
    assert!(lab.state.apply(Entry { at_ms: 7_200_000, command: failed(4) }).is_ok());
    let retry = ReconcilerTask::Submit(Command::RetryService { name: "db".into(), round });
    assert!(!lab.look().contains(&retry));
    lab.now = lab.now.plus_ms(crate::reconciler::RETRY_FAILED_MS + 1000);
    assert!(!lab.look().contains(&retry), "no node has come or gone");
    lab.state.services.get_mut("db").expect("it is there").nodes_changed = true;
    assert!(lab.look().contains(&retry), "its failure is old");
    // It failed once more before the proposal was applied.
    assert!(lab.state.apply(Entry { at_ms: 1, command: failed(5) }).is_ok());
    lab.now = lab.now.plus_ms(crate::reconciler::REPEAT_PROPOSAL_MS);
    assert!(!lab.look().contains(&retry), "it has just failed");
    lab.now = lab.now.plus_ms(crate::reconciler::RETRY_FAILED_MS);
    assert!(lab.look().contains(&retry));
}

/// The engine ends within the lease, and has confirmed its list before.
#[test]
fn a_confirmation_given_before_the_engine_silenced_its_node_lets_nothing_begin() {
    let (mut lab, _) = running();
    lab.after_ms(1_000);
    let killed = lab.tell(Event::LeaseLost { silenced: lab.now });
    assert!(killed.iter().any(is_kill));
    succeed(&mut lab, killed);
    // The cluster gives the resource another epoch at once.
    let record = &mut lab.state.resources.get_mut(&R).expect("it is there").record;
    record.epoch = Epoch(record.epoch.0 + 1);
    record.version = ConfigVersion(record.version.0 + 1);
    let replica = lab.seen.replicas.get_mut(&R).expect("it is there");
    (replica.epoch, replica.version) = (record.epoch, record.version);
    lab.core.found = true;
    let mut asked = None;
    for _ in 0..3 {
        let tasks = lab.look();
        asked = guard(&tasks).or(asked);
        let tasks = succeed(&mut lab, tasks);
        assert!(!tasks.iter().any(begins), "{tasks:?}");
        lab.after_ms(REPEAT_GUARD_MS);
    }
    // An engine that goes on confirms anew, and has a lease anew.
    let (number, _) = asked.expect("it is asked again");
    lab.tell(Event::Guarded { number, confirmed: true });
    lab.tell(Event::LeaseTaken { until: lab.now.plus_ms(60_000), silenced: Time(0) });
    assert!(lab.look().iter().any(begins));
}

#[test]
fn a_process_that_mainstay_starts_again_because_pages_can_tear_is_an_event_once() {
    let (mut lab, _) = running();
    let outdated = |process| Event::Service {
        name: "db".into(),
        event: ServiceEvent::Outdated {
            process,
            why: "without --once, because pages can tear now: 1 shared file, such as /srv/db/t.ibd".into(),
            remedy: "Write the file anew.".into(),
        },
    };
    let notes = |tasks: Vec<ReconcilerTask>| -> Vec<Command> {
        let submitted = tasks.into_iter().filter_map(|task| match task {
            ReconcilerTask::Submit(command @ Command::Note { .. }) => Some(command),
            _ => None,
        });
        submitted.collect()
    };
    assert_eq!(notes(lab.tell(outdated(9))), [], "there is no such process");
    let maintenance =
        |on| Command::SetMaintenance { scope: Scope::Service { name: "db".into() }, on, for_ms: None };
    apply(&mut lab, maintenance(true));
    lab.look();
    assert_eq!(notes(lab.tell(outdated(0))), [], "in maintenance nothing is started again");
    apply(&mut lab, maintenance(false));
    lab.look();
    let told = notes(lab.tell(outdated(0)));
    let [note] = told.as_slice() else { panic!("{told:?}") };
    apply(&mut lab, note.clone());
    let event = lab.state.events.back().expect("it is an event");
    assert_eq!((event.severity, event.subject.as_str()), (Severity::Warning, "service db"));
    assert_eq!(
        event.text,
        "Mainstay starts its process p on n1 again without --once, because pages can tear now: 1 shared file, \
         such as /srv/db/t.ibd. To have them back, on n1: Write the file anew. Then run `mainstay service restart db`"
    );
    assert_eq!(notes(lab.tell(outdated(0))), [], "it is being stopped already");
    let tasks = lab.look();
    succeed(&mut lab, tasks);
    assert_eq!(lab.phase(), Some(ServicePhase::Running));
}
