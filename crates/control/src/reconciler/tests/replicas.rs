//! Knowledge of a node about its replicas, and how long it lasts.

use super::*;

const OPEN: Order = Order::Open { label: MINE };

fn relieved(lab: &mut Lab) -> Option<String> {
    lab.look().into_iter().find_map(|task| match task {
        ReconcilerTask::Submit(Command::StepDown { reason, .. }) => Some(reason),
        _ => None,
    })
}

fn other_engine(lab: &mut Lab) {
    lab.tell(Event::EngineDisconnected);
    lab.tell(Event::EngineConnected { lease_until: Time(0), silenced: Time(0) });
    lab.after_ms(REPEAT_PROPOSAL_MS);
}

/// R13: another engine process opens it anew.
#[test]
fn reports_on_a_replica_end_with_their_engine() {
    let mut lab = Lab::swept();
    assert_eq!(relieved(&mut lab), None);
    lab.tell(Event::ReplicaFailed { resource: R, reason: "a write failed".into() });
    assert_eq!(relieved(&mut lab).as_deref(), Some("a write failed"));
    other_engine(&mut lab);
    assert_eq!(relieved(&mut lab), None);

    let version = lab.seen.replicas[&R].version;
    if let Some(replica) = lab.seen.replicas.get_mut(&R) {
        replica.role = Role::Fenced;
    }
    lab.tell(asks_for_relief(version));
    assert_eq!(relieved(&mut lab).as_deref(), Some("restarted"));
    other_engine(&mut lab);
    assert_eq!(relieved(&mut lab), None);

    if let Some(replica) = lab.seen.replicas.get_mut(&R) {
        replica.store_failed = true;
    }
    assert!(relieved(&mut lab).is_some_and(|reason| reason.contains("store failed")));
}

fn after(order: &Order, failure: Failure) -> Replicas {
    let mut replicas = Replicas::new(BTreeMap::from([(R, MINE)]));
    assert!(replicas.begin(NOW, R, order));
    replicas.ended(NOW, R, Err(failure));
    replicas
}

/// R12: what could not be opened is of no use until it was opened, made anew or removed, or another
/// engine tries.
#[test]
fn a_replica_is_unusable_until_a_job_has_dealt_with_it() {
    assert!(after(&OPEN, failure(false)).unusable().is_empty());
    let make = Order::Make { of: None };
    assert!(after(&make, failure(false)).unusable().is_empty());
    assert!(!after(&make, failure(true)).unusable().is_empty(), "something else is in its place");
    let later = NOW.plus_ms(RETRY_JOB_MS);
    let ends = [
        (Ended::Made(Incarnation(10)), Some(Incarnation(10))),
        (Ended::Opened, Some(MINE)),
        (Ended::Found(Incarnation(8)), Some(Incarnation(8))),
        (Ended::Gone, None),
        (Ended::Dropped, None),
    ];
    for (end, stored) in ends {
        let mut replicas = after(&OPEN, failure(true));
        assert_eq!(replicas.unusable()[&R].reason, "because");
        assert!(replicas.begin(later, R, &OPEN));
        replicas.ended(later, R, Ok(end));
        assert!(replicas.unusable().is_empty(), "{end:?}");
        assert_eq!(replicas.stored().get(&R).copied(), stored, "{end:?}");
    }
    let mut replicas = after(&OPEN, failure(true));
    replicas.engine_disconnected();
    assert!(replicas.unusable().is_empty());
}

/// A replica that comes after the removed one is another replica.
#[test]
fn reports_on_a_removed_replica_are_forgotten() {
    let seen = Lab::new().seen.replicas[&R].clone();
    let fenced = ReplicaSeen { role: Role::Fenced, ..seen };
    let failed = |said: &dyn Fn(&mut Replicas)| {
        let mut replicas = Replicas::new(BTreeMap::from([(R, MINE)]));
        said(&mut replicas);
        let before = replicas.observe(R, &fenced).failed;
        assert!(replicas.begin(NOW, R, &Order::Drop));
        replicas.ended(NOW, R, Ok(Ended::Dropped));
        (before, replicas.observe(R, &fenced).failed)
    };
    let given_up = failed(&|replicas| replicas.given_up(R, "given up".into()));
    assert_eq!(given_up, (Some("given up".into()), None));
    let relief = failed(&|replicas| replicas.asks_for_relief(R, fenced.version, "restarted".into()));
    assert_eq!(relief, (Some("restarted".into()), None));
}

#[test]
fn a_failed_job_or_a_given_order_is_due_again_once() {
    let replicas = after(&OPEN, failure(false));
    let due = NOW.plus_ms(RETRY_JOB_MS);
    assert_eq!(replicas.next_retry(NOW), Some(due));
    assert_eq!(replicas.next_retry(due), None, "what is due now is not yet to come");
    let mut replicas = Replicas::new(BTreeMap::from([(R, MINE)]));
    assert!(replicas.begin(NOW, R, &Order::Demote));
    replicas.ended(NOW, R, Ok(Ended::Told));
    assert_eq!(replicas.next_retry(NOW), Some(NOW.plus_ms(REPEAT_ORDER_MS)));
    assert!(replicas.begin(NOW, R, &OPEN), "something else may be told at once");
}

/// Two orders of which neither is of an effect yet would otherwise be given in turn as fast as the
/// engine answers.
#[test]
fn no_order_is_repeated_at_once_even_with_another_order_between() {
    let mut replicas = Replicas::new(BTreeMap::from([(R, MINE)]));
    let orders = [Order::Demote, Order::Grow(Vec::new())];
    let begun = |replicas: &mut Replicas, now: Time| {
        let mut begin = |order: &Order| {
            let begins = replicas.begin(now, R, order);
            if begins {
                replicas.ended(now, R, Ok(Ended::Told));
            }
            begins
        };
        [begin(&orders[0]), begin(&orders[1])]
    };
    assert_eq!(begun(&mut replicas, NOW), [true; 2]);
    let later = NOW.plus_ms(REPEAT_ORDER_MS);
    assert_eq!(begun(&mut replicas, Time(later.0 - 1)), [false; 2]);
    assert_eq!(replicas.next_retry(Time(later.0 - 1)), Some(later));
    assert_eq!(begun(&mut replicas, later), [true; 2]);
}

/// The cluster has decided on something else since; the engine is told, and asks again if it has
/// to.
#[test]
fn a_wish_to_be_relieved_that_is_based_on_an_older_record_is_none() {
    let mut lab = Lab::new();
    let seen = ReplicaSeen { role: Role::Fenced, ..lab.seen.replicas[&R].clone() };
    let old = ConfigVersion(seen.version.0 - 1);
    lab.tell(asks_for_relief(old));
    assert_eq!(lab.core.replicas.observe(R, &ReplicaSeen { version: old, ..seen }).failed, None);
}
