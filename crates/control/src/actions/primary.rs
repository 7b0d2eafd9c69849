//! The next actions of a node that the record of a resource names primary: it takes the role up or
//! hands it over, and runs the service.

use super::{
    Action, Observed, ReplicaObserved, ServiceObserved, propose_promote, service_silent, stop_service,
    waits_for_followers,
};
use crate::state::{Command, Resource, Service, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Copies, Epoch, NodeId, Role, ServicePhase, reach};

/// The record names this node primary.
pub(super) fn plan_primary(
    node: NodeId,
    state: &State,
    resource: &Resource,
    replica: &ReplicaObserved,
    observed: &Observed,
    actions: &mut Vec<Action>,
) {
    let id = resource.id;
    let record = &resource.record;
    let service = state.service_of(id);
    let seen = service.and_then(|(name, _)| observed.services.get(name));
    // Reports of an earlier epoch are not about the log that this record is about.
    let serving = matches!(replica.role, Role::Promoting | Role::Primary) && replica.epoch == record.epoch;
    let given_up = observed.given_up.get(&id) == Some(&record.version) && !planted(Bug::GivenUpServes);
    // The devices wait for the next epoch of this node, and the service with them.
    let kept = observed.kept.contains(&id) && !given_up;
    if let Some(why) = &replica.failed {
        stop_service(state, id, observed, "the replica failed", actions);
        if service_silent(state, id, observed) {
            reach!("control: plan: step down");
            let reason = why.clone();
            actions.push(Action::Propose(Command::StepDown {
                resource: id,
                version: record.version,
                node,
                reason,
            }));
        }
        return;
    }
    if !serving {
        // An engine that restarted or was demoted may have promised an epoch that it does not serve
        // now. Such an epoch must never be served again, because its log may differ from what the
        // others were sent (R5).
        let fresh = replica.epoch < record.epoch && !given_up;
        if fresh || planted(Bug::SameEpochTwice) {
            if !kept {
                stop_service(state, id, observed, "the primary's epoch changed", actions);
            }
            if kept || service_silent(state, id, observed) {
                reach!("control: plan: give the record to a new primary");
                actions.push(Action::GiveRecord(record.clone()));
            }
            return;
        }
        // R19: the role goes to another node only when nothing of the service is left.
        let stays = kept && (state.target(id) == Some(node) || planted(Bug::KeptServiceStays));
        if !stays {
            stop_service(state, id, observed, "the engine does not serve", actions);
        }
        if (stays || service_silent(state, id, observed))
            && observed.lease_valid
            && let Some(to) = state.target(id)
        {
            let reason = match to == node {
                true if given_up => "it may have given its role up",
                true => "the engine restarted or its lease had ended",
                false => "moved",
            };
            if to == node && given_up {
                reach!("control: plan: promote a node again that may have given its role up");
            } else if to == node {
                reach!("control: plan: promote again after a restart");
            } else {
                reach!("control: plan: hand over");
            }
            actions.push(propose_promote(node, resource, to, reason));
        }
        return;
    }
    if replica.version < record.version {
        reach!("control: plan: give the record to the primary");
        actions.push(Action::GiveRecord(record.clone()));
    }
    if !observed.lease_valid {
        reach!("control: plan: a primary without a lease starts nothing");
        return;
    }
    if replica.role == Role::Primary {
        let (volumes, grown) = resource.growth(&replica.volumes);
        actions.extend(grown.into_iter().map(Action::Propose));
        if !volumes.is_empty() {
            reach!("control: plan: a volume grows");
            actions.push(Action::GrowVolumes { resource: id, volumes });
        }
        let present = replica.version == record.version;
        let silent = service_silent(state, id, observed);
        if let Some(wanted) = resource.wanted_snapshots(&replica.snapshots, silent).filter(|_| present) {
            reach!("control: plan: a snapshot is taken or dropped");
            actions.push(Action::KeepSnapshots { resource: id, wanted });
        }
    }
    if resource.rollback.is_some() {
        reach!("control: plan: a service waits for a rollback");
        stop_service(state, id, observed, "the resource is rolled back", actions);
        return;
    }
    let spent = seen.is_some_and(|seen| seen.spent_epoch == Some(record.epoch));
    let target = state.target(id).unwrap_or(node);
    if target != node || spent {
        if let Some((name, _)) = service.filter(|_| !spent)
            && seen.is_some_and(|seen| !seen.phase.is_silent())
            && waits_for_followers(node, state, name, observed)
        {
            reach!("control: plan: a service moves after those that come after it have stopped");
            return;
        }
        let reason = if spent { "the lease had ended" } else { "the service moves" };
        stop_service(state, id, observed, reason, actions);
        if service_silent(state, id, observed) {
            reach!("control: plan: demote");
            actions.push(Action::Demote { resource: id });
        }
        return;
    }
    let Some((name, service)) = service.filter(|(_, service)| service.is_wanted()) else { return };
    let serves = replica.role == Role::Primary && replica.devices_ready;
    if !(serves || planted(Bug::ServiceBeforeEpochStart)) || service.failed_on(node) {
        reach!("control: plan: a service cannot start yet");
        return;
    }
    let (barred, awaits) = (state.barred(name, node), state.awaits(name));
    if barred.is_some() || awaits.is_some() || !state.rivals_are_silent(name, observed) {
        reach!("control: plan: a service waits for a constraint");
        let rests = state.rests(name).is_some();
        let goes_on = |bar: &crate::tied::Bar| rests && !bar.ordered;
        let reason = barred.filter(|_| !rests).or(awaits.filter(|bar| !goes_on(bar)).map(|bar| bar.why));
        if let Some(reason) = reason.filter(|_| !waits_for_followers(node, state, name, observed)) {
            stop_service(state, id, observed, &reason, actions);
        }
        return;
    }
    if replica.copies != Copies::Enough {
        // While requests wait, the service can mount nothing. If it ran, it could only fail when
        // they fail.
        reach!("control: plan: a service waits for copies");
        let another = !kept && seen.is_some_and(|seen| seen.epoch != record.epoch);
        if replica.copies == Copies::Refusing || another {
            reach!("control: plan: a service stops for want of copies");
            let reason = "fewer copies are in sync than are wanted (min-copies)";
            stop_service(state, id, observed, reason, actions);
        }
        return;
    }
    if let Some(seen) = seen.filter(|seen| kept && seen.phase == ServicePhase::Running)
        && seen.epoch < record.epoch
        && seen.revision == service.revision
        && (replica.continues == Some(seen.epoch) || planted(Bug::OtherDevicesGoOn))
    {
        actions.push(Action::ContinueService { name: name.clone(), epoch: record.epoch });
        return;
    }
    let start = match seen {
        None => true,
        Some(seen) if seen.revision != service.revision => false,
        Some(seen) => match seen.phase {
            ServicePhase::Stopped => true,
            ServicePhase::Failed => seen.round < service.round,
            // The devices of the earlier epoch are gone. The machine takes the service down and
            // starts it again.
            ServicePhase::Running | ServicePhase::Starting | ServicePhase::BackingOff => {
                seen.epoch != record.epoch
            }
            ServicePhase::Stopping | ServicePhase::Killing => false,
        },
    };
    // The service goes on, and hears that its failures are cleared.
    let told = seen.is_some_and(|seen| {
        let goes_on =
            matches!(seen.phase, ServicePhase::Running | ServicePhase::Starting | ServicePhase::BackingOff);
        goes_on
            && seen.revision == service.revision
            && seen.epoch == record.epoch
            && seen.round < service.round
    });
    if start && !state.may_begin(name, service) {
        reach!("control: plan: a service in maintenance is not started");
        if seen.is_some_and(|seen| seen.epoch != record.epoch) {
            // The devices of the earlier epoch are gone.
            stop_service(state, id, observed, "the primary's epoch changed", actions);
        }
        return;
    }
    if start && given_up {
        reach!("control: plan: a node that may have given its role up starts no service");
        stop_service(state, id, observed, "the node may have given its role up", actions);
        if service_silent(state, id, observed) {
            actions.push(Action::Demote { resource: id });
        }
        return;
    }
    if start || told {
        reach!("control: plan: start a service");
        actions.push(Action::StartService { name: name.clone(), epoch: record.epoch, round: service.round });
        return;
    }
    plan_restart((node, state), name, service, record.epoch, observed, actions);
}

/// An operator wants a service restarted that runs in this epoch, or that was restarted in it.
fn plan_restart(
    (node, state): (NodeId, &State),
    name: &str,
    service: &Service,
    epoch: Epoch,
    observed: &Observed,
    actions: &mut Vec<Action>,
) {
    let seen = observed.services.get(name);
    let runs = |seen: &&ServiceObserved| seen.phase == ServicePhase::Running && seen.epoch == epoch;
    let (Some(restart), Some(seen)) = (&service.restart, seen.filter(runs)) else { return };
    let number = restart.number;
    if seen.restarted < number && !state.followers_are_silent(name, node, observed) {
        reach!("control: plan: a restart waits for those that come after it");
        return;
    }
    let name = name.to_owned();
    if seen.restarted >= number {
        reach!("control: plan: a restart is done");
        actions.push(Action::Propose(Command::ServiceRestarted { name, number }));
    } else {
        reach!("control: plan: restart a service");
        let process = service.restarts_process();
        actions.push(Action::RestartService { name, number, process });
    }
}
