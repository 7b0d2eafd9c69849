//! Services while the engine of their node is replaced.

use super::*;
use crate::reconciler::succession::KEPT_MS_MAX;

/// The service runs in the first epoch.
fn running() -> Lab {
    let mut lab = Lab::started();
    for ticket in 1..=8 {
        let event = ServiceEvent::StepDone { ticket, result: Ok(()) };
        lab.tell(Event::Service { name: "db".into(), event });
    }
    assert_eq!(lab.phase(), Some(ServicePhase::Running));
    lab
}

/// The engine goes, and another one comes that has nothing open.
fn another_engine(lab: &mut Lab) -> ReplicaSeen {
    lab.tell(Event::EngineDisconnected);
    let before = lab.seen.replicas.remove(&R).expect("a replica");
    lab.seen.engine = false;
    lab.look();
    lab.after_ms(500);
    lab.seen.engine = true;
    lab.tell(Event::EngineConnected { lease_until: lab.now.plus_ms(60_000), silenced: Time(0) });
    before
}

/// The next engine opens the replica, guards the service and is primary in the next epoch.
/// `continues`: the epoch of the devices that it has taken.
fn serves_again(lab: &mut Lab, before: ReplicaSeen, continues: Option<Epoch>) {
    let (mut opens, mut guards) = (false, None);
    for task in lab.look() {
        match task {
            ReconcilerTask::Job { order: Order::Open { label }, .. } => opens |= label == MINE,
            ReconcilerTask::Guard { number, .. } => guards = Some(number),
            _ => {}
        }
    }
    assert!(opens, "the replica is opened");
    lab.tell(Event::Guarded { number: guards.expect("the engine is to guard it"), confirmed: true });
    lab.ended(Ok(Ended::Opened));
    let secondary = ReplicaSeen { role: Role::Secondary, devices_ready: false, ..before };
    lab.seen.replicas.insert(R, secondary.clone());
    let promotion = lab.look().into_iter().find_map(|task| match task {
        ReconcilerTask::Submit(command @ Command::Promote { to: ME, .. }) => Some(command),
        _ => None,
    });
    let command = promotion.expect("it is promoted again");
    assert!(lab.state.apply(Entry { at_ms: 0, command }).is_ok());
    let record = lab.state.resources[&R].record.clone();
    assert_eq!(record.epoch, Epoch(2), "R5: no epoch is served twice");
    assert!(lab.orders().contains(&Order::Tell(record.clone())));
    lab.ended(Ok(Ended::Told));
    let (role, epoch, version) = (Role::Primary, record.epoch, record.version);
    let primary = ReplicaSeen { role, epoch, version, devices_ready: true, continues, ..secondary };
    lab.seen.replicas.insert(R, primary);
    lab.look();
}

fn epoch(lab: &Lab) -> Epoch {
    lab.core.services.machine("db").expect("a machine").epoch()
}

#[test]
fn a_service_goes_on_with_the_devices_that_the_engine_left() {
    let mut lab = running();
    lab.tell(Event::Succession);
    let before = another_engine(&mut lab);
    assert_eq!(lab.phase(), Some(ServicePhase::Running));
    serves_again(&mut lab, before, Some(Epoch(1)));
    assert_eq!((lab.phase(), epoch(&lab)), (Some(ServicePhase::Running), Epoch(2)));
    assert!(!lab.core.keeps(R), "from now on as any other service");
    let before = another_engine(&mut lab);
    lab.look();
    assert_ne!(lab.phase(), Some(ServicePhase::Running), "{before:?}");
}

#[test]
fn a_service_is_stopped_when_its_engine_starts_anew_without_a_word() {
    let mut lab = running();
    another_engine(&mut lab);
    lab.look();
    assert_eq!(lab.phase(), Some(ServicePhase::Stopping));
}

/// The engine made other devices, or those are of another epoch.
#[test]
fn a_service_does_not_go_on_with_other_devices() {
    for continues in [None, Some(Epoch(2)), Some(Epoch(0))] {
        let mut lab = running();
        lab.tell(Event::Succession);
        let before = another_engine(&mut lab);
        serves_again(&mut lab, before, continues);
        // The start in the other epoch stops it first.
        assert_eq!((lab.phase(), epoch(&lab)), (Some(ServicePhase::Stopping), Epoch(1)), "{continues:?}");
    }
}

/// R20
#[test]
fn a_service_is_not_kept_for_ever() {
    let mut lab = running();
    lab.tell(Event::Succession);
    another_engine(&mut lab);
    lab.look();
    assert_eq!(lab.phase(), Some(ServicePhase::Running));
    lab.after_ms(KEPT_MS_MAX);
    lab.look();
    assert_eq!(lab.phase(), Some(ServicePhase::Stopping));
}

/// R19
#[test]
fn a_service_that_is_silenced_meanwhile_does_not_go_on() {
    let mut lab = running();
    lab.tell(Event::Succession);
    lab.tell(Event::EngineDisconnected);
    lab.after_ms(500);
    let (lease_until, silenced) = (lab.now.plus_ms(60_000), lab.now);
    lab.tell(Event::EngineConnected { lease_until, silenced });
    assert_eq!(lab.phase(), Some(ServicePhase::Killing));
    lab.look();
    assert!(!lab.core.keeps(R));
}
