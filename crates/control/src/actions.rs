//! The next actions of a node, given the agreed state and what the node sees of itself.
//!
//! Level-triggered: the agent calls [`plan`] whenever something changed and about once per second.
//! It starts the planned actions unless the same ones are under way already. Every action is
//! idempotent. An action is planned only when the node has *observed* the result of the action
//! before it. That keeps the order that matters: services are silent before a role ends, and a role
//! has ended before it is handed over (R19). A node without a lease starts nothing (R10).

mod primary;

use crate::attachments::{ClientSeen, plan_clients};
use crate::origin::{Making, SnapshotOf};
use crate::scrubs::ScrubTask;
use crate::snapshots::Keep;
use crate::state::{Broken, Command, Links, Resource, State, cut, cut_code};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Code, ConfigVersion, Copies, Epoch, Incarnation, Instance, Member, NodeId, NodeStatus, Position,
    ResourceId, ResourceRecord, Role, ScrubState, ScrubSummary, ServicePhase, SnapshotId, SnapshotOn,
    VolumeId, reach,
};
use primary::plan_primary;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaObserved {
    pub role: Role,
    /// Highest epoch promised (R1).
    pub epoch: Epoch,
    /// Version of the record that it acts on; 0 for none.
    pub version: ConfigVersion,
    pub incarnation: Incarnation,
    pub instance: Instance,
    /// The end of its log. Set only if the record that it acts on counts on memory of another
    /// instance.
    pub reopened: Option<Position>,
    /// All devices exist and answer.
    pub devices_ready: bool,
    /// Epoch in which an engine before this one served the same devices and left them.
    pub continues: Option<Epoch>,
    /// Bytes of each volume, in the log and on the disk.
    pub volumes: Vec<u64>,
    /// The snapshots that its log has, in ascending order.
    pub snapshots: Vec<(SnapshotId, SnapshotOn)>,
    /// The last scrub that it led since it was opened, or the one that is under way.
    pub scrub: Option<ScrubSummary>,
    /// Whether a primary in mode A feeds every follower and copies to none. In the other modes the
    /// in-sync set tells that.
    pub feeds_all: bool,
    /// Copies on a primary: whether there are as many as are wanted.
    pub copies: Copies,
    /// Why the store is no longer used (R13), or why the engine asks to step down.
    pub failed: Option<String>,
    /// Why its directory is not its own any more: it was moved, deleted or replaced while the
    /// engine had it open.
    pub gone: Option<String>,
    /// The store is no longer used (R13), until an engine opens it again.
    pub store_failed: bool,
    /// The store is no longer used because the pool had no space.
    pub full: bool,
    /// The replica led, and another replica holds acknowledged entries that it lacks.
    pub older: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceObserved {
    pub phase: ServicePhase,
    /// Epoch of the last start.
    pub epoch: Epoch,
    pub round: u64,
    /// See [`mainstay_ha::Machine::spent_epoch`].
    pub spent_epoch: Option<Epoch>,
    /// See [`mainstay_ha::Machine::restarted`].
    pub restarted: u64,
    /// [`crate::state::Service::revision`] of the specification that the machine was made with.
    pub revision: u64,
    /// [`crate::state::Service::edition`] of the specification that the machine goes by now.
    pub edition: u64,
    /// The resource below the service, as the machine was made.
    pub resource: ResourceId,
}

/// A replica that cannot be used, for a reason that does not pass by itself (R12, R13).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unusable {
    /// In words for the operator.
    pub reason: String,
    /// The code of the error, by which the advice is chosen; may be empty.
    pub code: Code,
}

/// Why a replica is not used that led as an older copy.
pub(crate) const OLDER: &str =
    "its files are an older copy: another replica holds entries that were acknowledged and that it lacks";

/// Everything that a node sees of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observed {
    /// The wall clock, in milliseconds since 1970. It decides when scrubs are due, and nothing
    /// else.
    pub wall_ms: u64,
    /// The interfaces of the node; `None` until the agent has looked at them.
    pub links: Option<Links>,
    /// Why this node is not to be primary, if it is not; `None` while that is not known.
    pub unfit: Option<Option<String>>,
    /// The feature level of its build; `None` while other nodes may not know levels.
    pub level: Option<u32>,
    /// The lease is valid, and long enough to start something.
    pub lease_valid: bool,
    /// The engine answers. `replicas` counts only then.
    pub engine: bool,
    /// The pool has space. Counts only for replicas that are `full`.
    pub room: bool,
    /// Replicas whose files exist in a pool of this node, opened or not.
    pub stored: BTreeMap<ResourceId, Incarnation>,
    /// Stored replicas that the engine could not open at the last attempt, and why; only for
    /// reasons that do not pass by themselves (R12, R13).
    pub unusable: BTreeMap<ResourceId, Unusable>,
    /// Replicas that the engine has open.
    pub replicas: BTreeMap<ResourceId, ReplicaObserved>,
    /// Clients that the engine has open.
    pub clients: BTreeMap<ResourceId, ClientSeen>,
    /// Every service of which this node has a machine, by name.
    pub services: BTreeMap<String, ServiceObserved>,
    /// Services without a machine of which something may be left here, which counts as running
    /// (R19).
    pub sweeping: BTreeSet<String>,
    /// Resources whose role this node may have given up, on this version of the record. Its
    /// proposal ([`gives_up`]) may still be under way, and counts whatever has happened here since.
    pub given_up: BTreeMap<ResourceId, ConfigVersion>,
    /// Resources whose services run on while the engine is replaced; see
    /// [`crate::reconciler::succession`].
    pub kept: BTreeSet<ResourceId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Make an incarnation, format, open.
    CreateReplica {
        resource: ResourceId,
        /// The snapshot of another resource whose content the replica is to hold, as its own
        /// snapshot [`crate::origin::CONTENT`].
        of: Option<SnapshotOf>,
    },
    OpenReplica {
        resource: ResourceId,
    },
    /// Close and open again.
    ReopenReplica {
        resource: ResourceId,
    },
    /// Close what is open, whose files are not in their place any more, and go on with what is
    /// there.
    ReplaceReplica {
        resource: ResourceId,
    },
    /// Close and remove the files.
    DropReplica {
        resource: ResourceId,
    },
    GiveRecord(ResourceRecord),
    /// Have the engine open a client, if it has none, and tell it the record.
    AttachClient(ResourceRecord),
    /// Have the engine close it.
    DetachClient {
        resource: ResourceId,
    },
    /// Make these volumes of the engine's primary as large as this, in bytes.
    GrowVolumes {
        resource: ResourceId,
        volumes: Vec<(VolumeId, u64)>,
    },
    /// Have the engine's primary take and drop snapshots until its log has these, and roll back; or
    /// the target of a copy give up what it held before.
    KeepSnapshots {
        resource: ResourceId,
        wanted: Keep,
    },
    /// Have the engine's primary compare all replicas.
    Scrub {
        resource: ResourceId,
        task: ScrubTask,
    },
    /// Make the engine's replica a secondary. Its services are silent.
    Demote {
        resource: ResourceId,
    },
    StartService {
        name: String,
        epoch: Epoch,
        round: u64,
    },
    /// The service runs on the same devices in this epoch of the resource.
    ContinueService {
        name: String,
        epoch: Epoch,
    },
    StopService {
        name: String,
        reason: String,
    },
    /// An operator wants it restarted in place: [`mainstay_ha::Event::Restart`].
    RestartService {
        name: String,
        number: u64,
        process: Option<usize>,
    },
    /// The specification was changed so that what runs goes on: [`mainstay_ha::Machine::amend`].
    AmendService {
        name: String,
    },
    /// The lease is lost: [`mainstay_ha::Event::LeaseLost`].
    KillService {
        name: String,
    },
    /// The machine of a service that is silent and no longer wanted, or was changed: remove it.
    ForgetService {
        name: String,
    },
    Propose(Command),
}

/// Whether a replica still asks to be relieved. It asked when it acted on version `asked` of the
/// record. It goes on asking until it acts on a later version, or serves after all; on a later
/// version it asks again if it has to. If the node forgot the request early, the replica would
/// count as whole too soon. If the node kept it, the replica could never be primary again.
#[must_use]
pub fn asks_for_relief(asked: ConfigVersion, version: ConfigVersion, role: Role) -> bool {
    version <= asked && !matches!(role, Role::Promoting | Role::Primary)
}

/// The record on which a node gives its role up with this command, because its services are silent
/// (R19). The command counts on that version of the record and on no later one, but it may be
/// committed late. So a node that has proposed it starts no service on that version any more. It
/// has itself promoted anew; then either the promotion or the command counts.
#[must_use]
pub fn gives_up(command: &Command) -> Option<(ResourceId, ConfigVersion)> {
    match command {
        Command::StepDown { resource, version, .. }
        | Command::ReplicaBroken { resource, version, .. }
        | Command::ReplicaReopened { resource, version, .. } => Some((*resource, *version)),
        _ => None,
    }
}

/// The actions that are due on `node`, in the order in which they should be started.
#[must_use]
pub fn plan(node: NodeId, state: &State, observed: &Observed) -> Vec<Action> {
    let mut actions = Vec::new();
    let Some(me) = state.nodes.get(&node) else { return actions };
    if me.voters_seen < state.voters_version {
        actions.push(Action::Propose(Command::VotersSeen { node, voters_version: state.voters_version }));
    }
    if let Some(links) = observed.links.as_ref().filter(|links| me.links != **links) {
        actions.push(Action::Propose(Command::NodeLinks { node, links: links.clone() }));
    }
    if let Some(level) = observed.level.filter(|level| me.level != *level) {
        actions.push(Action::Propose(Command::NodeLevel { node, level }));
    }
    if let Some(unfit) = observed.unfit.as_ref().filter(|unfit| state.unfit.get(&node) != unfit.as_ref()) {
        actions.push(Action::Propose(Command::NodeFitness { node, unfit: unfit.clone() }));
    }
    if me.status == NodeStatus::Dead || !observed.lease_valid {
        for (name, service) in &observed.services {
            if !service.phase.is_silent() && service.phase != ServicePhase::Killing {
                reach!("control: plan: a service is killed with the lease");
                actions.push(Action::KillService { name: name.clone() });
            }
        }
    }
    let all_silent = observed.services.values().all(|service| service.phase.is_silent());
    if me.status == NodeStatus::Dead && all_silent && observed.sweeping.is_empty() {
        reach!("control: plan: rejoin");
        actions.push(Action::Propose(Command::NodeRejoin { node, generation: me.generation }));
    }
    plan_unwanted_services(node, state, observed, &mut actions);
    if observed.engine {
        for resource in state.resources.values() {
            plan_resource(node, state, resource, observed, &mut actions);
        }
        plan_scrubs(node, state, observed, &mut actions);
        plan_clients(node, state, observed, &mut actions);
    }
    for resource in
        observed.stored.keys().filter(|id| !state.resources.contains_key(id) && id.0 <= state.last_resource)
    {
        actions.push(Action::DropReplica { resource: *resource });
    }
    actions
}

/// Whether the replica that is open here is an earlier one, neither the registered one nor a new
/// one. It has taken part in an epoch already, and its history may be over (R11). So it is not
/// registered in the place of the other (R9).
fn is_other(resource: &Resource, node: NodeId, replica: &ReplicaObserved) -> bool {
    let registered = resource.record.replica(node);
    replica.epoch > Epoch(0) && registered.is_some_and(|member| member.incarnation != replica.incarnation)
}

/// Whether `name` leaves nothing behind on this node.
fn silent(observed: &Observed, name: &str) -> bool {
    observed.services.get(name).is_none_or(|service| service.phase.is_silent())
        && !observed.sweeping.contains(name)
}

/// Services that must not run here: deleted, changed, or of a resource whose primary is elsewhere.
fn plan_unwanted_services(node: NodeId, state: &State, observed: &Observed, actions: &mut Vec<Action>) {
    for (name, seen) in &observed.services {
        let wanted = state.services.get(name).filter(|service| !service.deleting);
        if wanted.is_some_and(|service| service.revision == seen.revision && service.edition != seen.edition)
        {
            reach!("control: plan: a service is changed in place");
            actions.push(Action::AmendService { name: name.clone() });
        }
        let reason = match wanted {
            None => "it is being deleted",
            Some(service) if service.revision != seen.revision => "its specification changed",
            Some(service) if service.stopped.is_some() => "an operator stops it",
            Some(service) => match state.resource_of(service) {
                Some(resource) if resource.record.primary == Some(node) => continue,
                _ => "the primary is on another node",
            },
        };
        reach!("control: plan: an unwanted service");
        match seen.phase {
            phase if phase.is_silent() => {
                // R19: remembers an epoch in which the service was silenced until a later epoch is
                // recorded. A restarted agent may see an older state first, in which there was no
                // primary or no service yet.
                let resource = match state.services.get(name) {
                    Some(service) if service.deleting => None,
                    Some(service) => state.resource_of(service),
                    None => state.resources.get(&seen.resource),
                };
                let recorded = resource.map(|of| of.record.epoch);
                let spent = seen.spent_epoch.filter(|_| !planted(Bug::SpentEpochForgotten));
                if recorded.is_none_or(|epoch| spent.is_none_or(|spent| spent < epoch)) {
                    actions.push(Action::ForgetService { name: name.clone() });
                }
            }
            // The service was told already.
            ServicePhase::Killing => {}
            // Services that come after it stop first, as long as its primary is here.
            _ if waits_for_followers(node, state, name, observed) => {
                reach!("control: plan: a service stops after those that come after it");
            }
            _ => actions.push(Action::StopService { name: name.clone(), reason: reason.into() }),
        }
    }
    for (name, service) in &state.services {
        // A restarted node has no machine for what it ran before, which is gone since the restart.
        // Only the node itself can say so, and the client that deletes the service waits for it.
        let here = |name| observed.services.contains_key(name) || observed.sweeping.contains(name);
        let forgotten = service.nodes.get(&node).filter(|on| !on.phase.is_silent() && !here(name));
        if let Some(on) = forgotten {
            reach!("control: plan: nothing is left of a service that was not stopped");
            actions.push(Action::Propose(Command::ServiceStatus {
                name: name.clone(),
                node,
                phase: ServicePhase::Stopped,
                epoch: on.epoch,
                round: on.round,
                detail: "the node has started again".into(),
                failures: on.failures,
                passes: on.passes,
                last_failure: on.last_failure.clone(),
            }));
        }
    }
    for (name, service) in state.services.iter().filter(|(_, service)| service.deleting) {
        // The node that may run the service says when it is gone. Without a primary, the node of
        // the first living replica says so.
        let speaker = state.resource_of(service).and_then(|resource| {
            resource
                .record
                .primary
                .or_else(|| resource.spec.replicas.iter().copied().find(|node| state.alive(*node)))
        });
        let silent_elsewhere = service
            .nodes
            .iter()
            .all(|(other, on)| *other == node || on.phase.is_silent() || !state.alive(*other));
        if speaker.is_none_or(|speaker| speaker == node)
            && silent_elsewhere
            && !observed.services.contains_key(name)
            && !observed.sweeping.contains(name)
        {
            reach!("control: plan: a deleted service is gone");
            actions.push(Action::Propose(Command::ServiceGone { name: name.clone() }));
        }
    }
}

/// Scrubs of the resources whose primary is here. One is begun at a time: the one that is due for
/// longest.
fn plan_scrubs(node: NodeId, state: &State, observed: &Observed, actions: &mut Vec<Action>) {
    let mut due: Option<(u64, &Resource)> = None;
    for resource in state.resources.values() {
        let (id, record) = (resource.id, &resource.record);
        let Some(replica) = observed.replicas.get(&id) else { continue };
        let leads = record.primary == Some(node)
            && replica.role == Role::Primary
            && replica.epoch == record.epoch
            && replica.failed.is_none();
        if !leads || resource.deleting || !observed.lease_valid {
            continue;
        }
        let seen = replica.scrub.as_ref();
        if let Some(report) = resource.scrub_report(node, seen) {
            reach!("control: plan: tell how a scrub ended");
            actions.push(Action::Propose(report));
        } else if let Some(task) = resource.scrub_task(seen) {
            reach!("control: plan: a scrub begins");
            actions.push(Action::Scrub { resource: id, task });
        } else if resource.scrubs.turn.is_none()
            && replica.feeds_all
            && seen.is_none_or(|seen| seen.state != ScrubState::Running)
            && let Some(at_ms) = resource.scrub_due_ms(observed.wall_ms)
            && at_ms <= observed.wall_ms
            && due.is_none_or(|(first, _)| at_ms < first)
            && state.scrub_waits_for(id).is_none()
        {
            due = Some((at_ms, resource));
        }
    }
    if let Some((_, resource)) = due {
        reach!("control: plan: a scrub is due");
        let (resource, epoch) = (resource.id, resource.record.epoch);
        actions.push(Action::Propose(Command::BeginScrub { resource, epoch }));
    }
}

fn plan_resource(
    node: NodeId,
    state: &State,
    resource: &Resource,
    observed: &Observed,
    actions: &mut Vec<Action>,
) {
    let id = resource.id;
    let stored = observed.stored.get(&id).copied();
    if !resource.spec.replicas.contains(&node) && !resource.deleting {
        plan_unwanted_replica(node, state, resource, stored, observed, actions);
        return;
    }
    if resource.deleting {
        reach!("control: plan: a replica of a deleted resource");
        if stored.is_some() || observed.replicas.contains_key(&id) {
            actions.push(Action::DropReplica { resource: id });
        } else if resource.spec.replicas.contains(&node) && !resource.gone.contains(&node) {
            actions.push(Action::Propose(Command::ReplicaGone { resource: id, node }));
        }
        return;
    }
    // R11: a replica of a history that is over goes first, under its own name.
    if let Some(leaving) = resource.leaving.get(&node).copied() {
        if stored == Some(leaving) {
            plan_unwanted_replica(node, state, resource, stored, observed, actions);
            return;
        }
        reach!("control: plan: a replica of another history is gone");
        actions.push(Action::Propose(Command::ReplicaGone { resource: id, node }));
    }
    let Some(incarnation) = stored else {
        // A service that an earlier agent left has no device any more. It must not go on when the
        // next replica has the name.
        stop_service(state, id, observed, "the replica is gone", actions);
        if let (Some(reason), Some(registered)) = (observed.unusable.get(&id), resource.record.replica(node))
        {
            // Something in the replica's place is no replica. Only an operator removes it.
            plan_unusable(node, state, resource, registered.incarnation, reason, observed, actions);
        }
        match resource.making(node, observed) {
            Making::Now(of) => {
                reach!("control: plan: make a replica");
                actions.push(Action::CreateReplica { resource: id, of });
            }
            Making::NotYet => {
                reach!("control: plan: a replica waits for what it is made of");
            }
        }
        return;
    };
    // Only the registered disk counts (R9). The engine may have another one open.
    let open = observed.replicas.get(&id).filter(|replica| replica.incarnation == incarnation);
    let kept = observed.kept.contains(&id);
    let Some(replica) = open else {
        if !kept {
            // A service on the replica has lost its device with the engine.
            stop_service(state, id, observed, "the engine restarted", actions);
        }
        if let Some(reason) = observed.unusable.get(&id) {
            plan_unusable(node, state, resource, incarnation, reason, observed, actions);
        }
        // To open the stored replica, the engine closes what it has open. No service may use that
        // any more then (R19).
        if observed.replicas.contains_key(&id) && !service_silent(state, id, observed) {
            return;
        }
        // The node tries again all the same: an operator may repair what is under the replica.
        reach!("control: plan: open a replica");
        actions.push(Action::OpenReplica { resource: id });
        return;
    };
    if let Some(registered) = resource.record.replica(node).filter(|_| is_other(resource, node, replica)) {
        stop_service(state, id, observed, "its files are of an earlier replica", actions);
        let reason = format!(
            "its directory holds files that this node had earlier (incarnation {:016x}), and not those that the cluster knows (incarnation {:016x})",
            incarnation.0, registered.incarnation.0
        );
        let why = Unusable { reason, code: Code::EarlierReplica };
        plan_unusable(node, state, resource, registered.incarnation, &why, observed, actions);
        return;
    }
    if resource.record.replica(node).map(|member| member.incarnation) != Some(incarnation) {
        stop_service(state, id, observed, "the disk is new", actions);
        let asked = (resource.record.version, Member { node, incarnation });
        if resource.refused == Some(asked) {
            reach!("control: plan: what was refused is not asked again");
            if resource.record.primary == Some(node) && service_silent(state, id, observed) {
                // An empty replica has nothing to serve, and an operator may go on from another
                // one.
                reach!("control: plan: a primary whose disk is gone steps down");
                actions.push(Action::Propose(Command::StepDown {
                    resource: id,
                    version: resource.record.version,
                    node,
                    reason: "its disk is new, and its old one had the only complete copy".into(),
                }));
            }
        } else if service_silent(state, id, observed) {
            reach!("control: plan: report a replica");
            actions.push(report_replica(node, resource, incarnation));
        }
        return;
    }
    if replica.full && observed.room && resource.record.primary != Some(node) {
        stop_service(state, id, observed, "the replica is opened again", actions);
        if service_silent(state, id, observed) {
            // No acknowledged flush was lost, and durable data is in the journal. So this is like a
            // start of the engine.
            reach!("control: plan: open again what had no space");
            actions.push(Action::ReopenReplica { resource: id });
        }
        return;
    }
    // Beside another member, the primary feeds this replica like others. Alone, it would be
    // promoted again and again, and never be of use.
    let older = replica.older && resource.record.iss_member(node).is_some();
    if (replica.store_failed || older || replica.gone.is_some()) && resource.record.primary != Some(node) {
        // A primary steps down instead. Once it has done so, this applies to it, too.
        let (reason, code) = if let Some(gone) = &replica.gone {
            (gone.as_str(), Code::DirectoryGone)
        } else if replica.store_failed {
            (replica.failed.as_deref().unwrap_or("its store failed"), Code::default())
        } else {
            (OLDER, Code::LedAsOlderCopy)
        };
        let why = Unusable { reason: reason.into(), code };
        plan_unusable(node, state, resource, incarnation, &why, observed, actions);
        // While the cluster counts on the replica, it stays open: its directory may be put back
        // (R11).
        let left = resource.broken(node).is_some() && resource.record.iss_member(node).is_none();
        if replica.gone.is_some() && left && service_silent(state, id, observed) {
            reach!("control: plan: what is in the place of a running replica is looked at");
            actions.push(Action::ReplaceReplica { resource: id });
            return;
        }
    } else if !replica.store_failed
        && !older
        && replica.gone.is_none()
        && (resource.broken(node).is_some() || resource.lost_the_last_copy(node))
    {
        reach!("control: plan: a broken replica was opened after all");
        actions.push(Action::Propose(Command::ReplicaOpened { resource: id, node, incarnation }));
    }
    if let Some(report) = resource.snapshots_report(node, &replica.snapshots) {
        reach!("control: plan: report snapshots");
        actions.push(Action::Propose(report));
    }
    if let Some(wanted) = resource.unwanted_before_copy(node, &replica.snapshots) {
        reach!("control: plan: what was held before a copy is given up");
        actions.push(Action::KeepSnapshots { resource: id, wanted });
    }
    for (&from, &to) in resource.moving.iter().filter(|(_, to)| **to == node) {
        if state.move_is_done(resource, from, to) || planted(Bug::MoveEndsEarly) {
            reach!("control: plan: a move ends");
            actions.push(Action::Propose(Command::FinishMove { resource: id, from, to }));
        }
    }
    if plan_reopened(node, state, resource, replica, observed, actions) {
        return;
    }
    if resource.record.primary == Some(node) {
        plan_primary(node, state, resource, replica, observed, actions);
        return;
    }
    // The node gives the record even while a service is still stopping: the sooner a superseded
    // replica refuses, the better.
    if replica.version < resource.record.version {
        reach!("control: plan: give the record to a secondary");
        actions.push(Action::GiveRecord(resource.record.clone()));
    }
    let may_promote = resource.record.primary.is_none()
        && observed.lease_valid
        && replica.failed.is_none()
        && state.first_promotion_is_due(id);
    if may_promote && state.target(id) == Some(node) {
        reach!("control: plan: promote oneself where there was no primary");
        actions.push(propose_promote(node, resource, node, "there was no primary"));
    }
}

/// Reports a replica that was opened anew although the record counts on what it had in memory: its
/// node says so, and how far its log reaches. The report is of use only on the present version of
/// the record. On an earlier one, a replica that has lost its memory since may have fed it. Returns
/// true if the replica was opened anew.
fn plan_reopened(
    node: NodeId,
    state: &State,
    resource: &Resource,
    replica: &ReplicaObserved,
    observed: &Observed,
    actions: &mut Vec<Action>,
) -> bool {
    let (id, record) = (resource.id, &resource.record);
    let counted = record.instances.get(&node).is_some_and(|counted| *counted != replica.instance);
    let leads = matches!(replica.role, Role::Promoting | Role::Primary);
    if !counted || leads || replica.store_failed || planted(Bug::InstanceNotChecked) {
        return false;
    }
    stop_service(state, id, observed, "the replica was opened anew", actions);
    if replica.version < record.version {
        reach!("control: plan: give the record to what was opened anew");
        actions.push(Action::GiveRecord(record.clone()));
        return true;
    }
    let said = resource
        .reopened
        .get(&node)
        .is_some_and(|known| known.instance == replica.instance && known.end.is_some());
    if let Some(end) = replica.reopened.filter(|_| !said && service_silent(state, id, observed)) {
        reach!("control: plan: a replica was opened anew");
        actions.push(Action::Propose(Command::ReplicaReopened {
            resource: id,
            version: record.version,
            node,
            incarnation: replica.incarnation,
            instance: replica.instance,
            end,
        }));
    }
    true
}

fn report_replica(node: NodeId, resource: &Resource, incarnation: Incarnation) -> Action {
    let version = resource.record.version;
    Action::Propose(Command::ReplicaReady { resource: resource.id, version, node, incarnation })
}

/// Plans the removal of a replica where the node is to hold none. The replica goes once the state
/// names it as leaving. If the state does not know it yet, the node reports it first. So a node
/// that acts on an older state never drops a replica that the operator has asked for since.
fn plan_unwanted_replica(
    node: NodeId,
    state: &State,
    resource: &Resource,
    stored: Option<Incarnation>,
    observed: &Observed,
    actions: &mut Vec<Action>,
) {
    let id = resource.id;
    let leaving = resource.leaving.get(&node).copied();
    match stored {
        Some(incarnation) if leaving == Some(incarnation) => {
            stop_service(state, id, observed, "the replica is removed", actions);
            if service_silent(state, id, observed) {
                reach!("control: plan: a removed replica goes");
                actions.push(Action::DropReplica { resource: id });
            }
        }
        Some(incarnation) => {
            reach!("control: plan: report a replica that the cluster does not want");
            actions.push(report_replica(node, resource, incarnation));
        }
        None if leaving.is_some() => {
            reach!("control: plan: a removed replica is gone");
            actions.push(Action::Propose(Command::ReplicaGone { resource: id, node }));
        }
        None => {}
    }
}

/// Reports a replica that cannot be used, once its services are silent (R19). Then no other node
/// counts on it, and another replica is promoted. If this replica is not the registered one, the
/// registered one is gone. Without the report, the cluster would not learn that until this one can
/// be opened.
fn plan_unusable(
    node: NodeId,
    state: &State,
    resource: &Resource,
    incarnation: Incarnation,
    why: &Unusable,
    observed: &Observed,
    actions: &mut Vec<Action>,
) {
    let id = resource.id;
    let Unusable { reason, code } = why;
    // If no replica was ever registered, no other node counts on anything, and all wait for this
    // node.
    let Some(registered) = resource.record.replica(node).map(|member| member.incarnation) else { return };
    let reason = if registered == incarnation {
        reason.clone()
    } else {
        format!("its disk is a new one, which cannot be used either: {reason}")
    };
    // The operator reads the present reason: a label that was empty may be gone meanwhile.
    let said = |known: &Broken| {
        let of_directories = [Code::NoLabel, Code::DirectoryGone].contains(code);
        known.code == cut_code(code.clone()) && (!of_directories || known.reason == cut(reason.clone()))
    };
    if !resource.broken(node).is_some_and(said) && service_silent(state, id, observed) {
        reach!("control: plan: report a broken replica");
        actions.push(Action::Propose(Command::ReplicaBroken {
            resource: id,
            version: resource.record.version,
            node,
            incarnation: registered,
            reason,
            code: code.clone(),
        }));
    }
}

fn service_silent(state: &State, resource: ResourceId, observed: &Observed) -> bool {
    // R19: a role ends, and is handed over, only when nothing of the service is left.
    planted(Bug::HandedOverTooEarly)
        || state.service_of(resource).is_none_or(|(name, _)| silent(observed, name))
}

fn stop_service(
    state: &State,
    resource: ResourceId,
    observed: &Observed,
    reason: &str,
    actions: &mut Vec<Action>,
) {
    let Some((name, _)) = state.service_of(resource) else { return };
    let Some(seen) = observed.services.get(name) else { return };
    if !seen.phase.is_silent() && seen.phase != ServicePhase::Killing {
        reach!("control: plan: a service must stop first");
        actions.push(Action::StopService { name: name.clone(), reason: reason.into() });
    }
}

/// Whether a service that is to stop waits until those that come after it are silent. It does not
/// when its primary is elsewhere: then it must be silent at once (R19).
fn waits_for_followers(node: NodeId, state: &State, name: &str, observed: &Observed) -> bool {
    let resource = state.services.get(name).and_then(|service| state.resource_of(service));
    resource.is_some_and(|resource| resource.record.primary == Some(node))
        && observed.lease_valid
        && !state.followers_are_silent(name, node, observed)
}

fn propose_promote(by: NodeId, resource: &Resource, to: NodeId, reason: &str) -> Action {
    Action::Propose(Command::Promote {
        resource: resource.id,
        expect_version: resource.record.version,
        by,
        to,
        reason: reason.into(),
    })
}
