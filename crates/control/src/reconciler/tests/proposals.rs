//! Reports of a node about its services, until the cluster state says the same.

use super::*;
use crate::state::ServiceOnNode;

fn report(phase: ServicePhase) -> Report {
    Report {
        phase,
        epoch: Epoch(1),
        round: 2,
        detail: String::new(),
        failures: 3,
        passes: false,
        last_failure: String::new(),
    }
}

/// The state in which the cluster knows this of the service here.
fn known(state: &State, report: &Report) -> State {
    let mut state = state.clone();
    let Report { phase, epoch, round, detail, failures, passes, last_failure } = report.clone();
    let service = state.services.get_mut("db").expect("it was applied");
    let on = ServiceOnNode {
        phase,
        epoch,
        round,
        detail,
        failures,
        failed_round: None,
        passes,
        last_failure,
        last_failure_ms: 0,
        at_ms: 0,
    };
    service.nodes.insert(ME, on);
    state
}

fn due(proposals: &mut Proposals, now: Time, state: &State) -> usize {
    proposals.due_reports(now, state, ME).len()
}

#[test]
fn a_report_is_repeated_until_the_cluster_knows_it() {
    let state = state();
    let mut proposals = Proposals::default();
    proposals.report("db".into(), report(ServicePhase::Running));
    assert!(proposals.is_unsaid(&state, ME, "db"));
    assert_eq!(due(&mut proposals, NOW, &state), 1);
    assert_eq!(due(&mut proposals, NOW, &state), 0, "it was said a moment ago");
    let later = NOW.plus_ms(REPEAT_PROPOSAL_MS);
    assert_eq!(proposals.next_repeat(NOW, &state, ME), Some(later));
    assert_eq!(due(&mut proposals, later, &state), 1);
    let knows = known(&state, &report(ServicePhase::Running));
    let later = later.plus_ms(REPEAT_PROPOSAL_MS);
    assert!(!proposals.is_unsaid(&knows, ME, "db"));
    assert_eq!((due(&mut proposals, later, &knows), proposals.next_repeat(later, &knows, ME)), (0, None));
    // An older one that was on its way has taken its place.
    assert_eq!(due(&mut proposals, later, &state), 1);
}

#[test]
fn a_report_counts_as_known_only_in_all_its_parts() {
    let state = state();
    let said = report(ServicePhase::Running);
    let others = [
        Report { phase: ServicePhase::Starting, ..said.clone() },
        Report { epoch: Epoch(0), ..said.clone() },
        Report { round: 1, ..said.clone() },
        Report { failures: 2, ..said.clone() },
    ];
    for other in others {
        let mut proposals = Proposals::default();
        proposals.report("db".into(), said.clone());
        assert_eq!(due(&mut proposals, NOW, &known(&state, &other)), 1, "{other:?}");
    }
    let mut proposals = Proposals::default();
    proposals.report("db".into(), said.clone());
    assert_eq!(due(&mut proposals, NOW, &known(&state, &said)), 0);
}

/// One of the same name that is applied later is another one.
#[test]
fn a_report_of_a_service_that_is_gone_is_nothing() {
    let with = state();
    let mut without = with.clone();
    without.services.clear();
    let mut proposals = Proposals::default();
    proposals.report("db".into(), report(ServicePhase::Running));
    assert!(!proposals.is_unsaid(&without, ME, "db"));
    assert_eq!(due(&mut proposals, NOW, &without), 0);
    assert_eq!(due(&mut proposals, NOW, &with), 0);
    proposals.report("db".into(), report(ServicePhase::Stopped));
    proposals.forget_report("db");
    assert_eq!(due(&mut proposals, NOW, &with), 0);
}

#[test]
fn a_proposal_may_be_due_again() {
    let state = state();
    let mut proposals = Proposals::default();
    let command =
        Command::Note { severity: mainstay_types::Severity::Info, subject: "a".into(), text: "b".into() };
    assert!(proposals.is_new(NOW, &command));
    let later = NOW.plus_ms(REPEAT_PROPOSAL_MS);
    assert_eq!(proposals.next_repeat(NOW, &state, ME), Some(later));
    assert_eq!(proposals.next_repeat(later, &state, ME), None);
}

/// Before a usual look would come.
#[test]
fn a_proposal_is_looked_at_again_when_it_may_be_repeated() {
    let mut lab = Lab::swept();
    let change = IssChange::Shrink {
        remove: Member { node: NodeId(2), incarnation: MINE },
        why: ShrinkReason::Absent,
    };
    let (version, epoch) = (ConfigVersion(1), Epoch(1));
    lab.tell(proposed(version, epoch, ProposedChange::Iss(change)));
    let number = lab.asked_to_guard();
    lab.tell(Event::Guarded { number, confirmed: true });
    lab.look();
    assert_eq!(lab.core.next_deadline(), lab.now.plus_ms(REPEAT_PROPOSAL_MS));
}
