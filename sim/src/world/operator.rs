//! Wishes of an operator while the cluster runs. The operator does not give up: a command that gets
//! lost is sent again until the control plane has it (H7).

use super::{What, World, resource_id, service_resource};
use crate::agent;
use crate::consensus::OperatorAnswer;
use crate::engine::EngineIn;
use crate::plan::{Operator, Rests, Shape, Tie};
use crate::trace::Part;
use crate::words;
use mainstay_control::maintenance::Scope;
use mainstay_control::origin::SnapshotOf;
use mainstay_control::snapshots::{BEFORE_COPY, Snapshot};
use mainstay_control::state::{Command, Outcome};
use mainstay_host::Digest;
use mainstay_types::settings::Changes;
use mainstay_types::{
    BLOCK_BYTES, ConfigVersion, DataState, Epoch, Incarnation, Key, Member, Mode, NodeId, ResourceId,
    SnapshotState, VolumeId,
};

/// How long an operator waits before it looks again.
const PATIENCE_US: u64 = 700_000;
/// When the operator deletes a snapshot, after having asked for a resource that is made of it.
const TIDY_MS: [u64; 4] = [40, 120, 400, 2_000];
/// Time from the first digests to those that are taken while writes are held, and from the pause to
/// these.
const DIGEST_US: u64 = 200_000;

/// Number of attempts to force a promotion.
const FORCE_TRIES: u64 = 15;
/// Number of looks at whether a replica has promised, over the time that an agent waits for its
/// engine.
const PROMISE_TRIES: u64 = 50;
const PROMISE_US: u64 = 200_000;

/// State of a resource and its service that the operator wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    resource: Existence,
    service: bool,
    /// The service is not to run.
    stopped: bool,
    /// The number of the node that the service prefers.
    prefer: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Existence {
    /// The operator has not asked for the resource yet.
    No,
    Yes,
    /// Deleted.
    Gone,
}

/// Whether a wish of the operator is still to be fulfilled.
pub(crate) enum Unfinished {
    No,
    /// There is no such resource, as there should not be, and nothing of it is left.
    Gone,
    Yes(String),
}

impl Wanted {
    pub(super) fn of(shape: &Shape) -> Vec<Self> {
        let wanted = shape.resources.iter().map(|resource| Self {
            resource: if resource.late { Existence::No } else { Existence::Yes },
            service: resource.service,
            stopped: false,
            prefer: None,
        });
        wanted.collect()
    }
}

impl World {
    pub(super) fn operator(&mut self, operator: Operator) {
        let Some(resource) = operator.resource() else {
            if let Operator::JoinAgain { pick } = operator {
                let nodes = self.machines.len() as u64;
                self.trace.count("F51 operator joins a node again");
                self.submit(agent::add_node((pick % nodes) as u32 + 1));
            }
            return;
        };
        let Some(shape) = self.plan.shape.resources.get(resource) else { return };
        let (service, replicas) = (shape.service, shape.replicas.clone());
        let replica = |pick: u64| replicas[pick as usize % replicas.len()];
        match operator {
            Operator::Move { pick, .. } if service => {
                let to = NodeId(replica(pick));
                self.trace.count("F51 operator moves a service");
                self.note(None, Part::Control, &[50, resource as u64], || {
                    format!("operator moves s{resource} to {to}")
                });
                self.submit(Command::MoveService { name: Self::service_name(resource_id(resource)), to });
            }
            Operator::Move { pick, .. } => {
                let to = NodeId(replica(pick));
                self.trace.count("F51 operator moves a primary");
                self.note(None, Part::Control, &[51, resource as u64], || {
                    format!("operator moves the primary of resource {resource} to {to}")
                });
                self.submit(Command::MovePrimary { resource: resource_id(resource), to });
            }
            Operator::ApplyService { prefer, .. } if service => {
                if self.wanted[resource].resource == Existence::Yes {
                    self.trace.count("F51 operator applies a service");
                    let prefer = prefer.map(replica);
                    self.wanted[resource] = Wanted { service: true, prefer, ..self.wanted[resource] };
                    self.submit(Command::ApplyService { spec: agent::service(resource, prefer) });
                }
            }
            Operator::DeleteService { .. } if service => {
                self.trace.count("F51 operator deletes a service");
                self.wanted[resource].service = false;
                self.wanted[resource].stopped = false;
            }
            Operator::StopService { .. } if service && self.wanted[resource].service => {
                self.trace.count("F51 operator stops a service");
                self.wanted[resource].stopped = true;
            }
            Operator::Maintain { rests, for_ms, .. } => self.maintain(resource, rests, for_ms),
            Operator::EndMaintenance { .. } => {
                self.trace.count("F51 operator ends maintenance");
                if let Some(command) = self.maintenance_left(resource) {
                    self.submit(command);
                }
            }
            Operator::Cordon { drain, .. } => {
                let known = self.state().resources.get(&resource_id(resource));
                if let Some(node) = known.and_then(|known| known.record.primary) {
                    self.trace.count("F51 operator cordons or drains a node");
                    self.submit(Command::SetCordon { node, on: true, drain });
                }
            }
            Operator::Uncordon { .. } => {
                if let Some(command) = self.cordon_left() {
                    self.submit(command);
                }
            }
            Operator::Tie { other, tie, .. } if service => self.tie(resource, other, tie),
            Operator::StartService { .. } if service => {
                self.trace.count("F51 operator starts a service");
                self.wanted[resource].stopped = false;
            }
            Operator::RestartService { last, .. } if service => self.restart_service(resource, last),
            Operator::CreateResource { .. } => {
                self.trace.count("F51 operator makes a resource");
                self.wanted[resource].resource = Existence::Yes;
            }
            Operator::DeleteResource { .. } => {
                self.trace.count("F51 operator deletes a resource");
                let gone = Wanted { resource: Existence::Gone, service: false, stopped: false, prefer: None };
                self.wanted[resource] = gone;
                // The operator may try this before the service is gone, and gets a refusal.
                self.submit(Command::DeleteResource { resource: resource_id(resource) });
            }
            Operator::Digest { hold_ms, .. } => self.digest(resource_id(resource), hold_ms),
            Operator::Scrub { repair, rate, .. } => self.scrub(resource_id(resource), repair, rate),
            Operator::StopScrub { .. } => self.stop_scrub(resource_id(resource)),
            Operator::SetScrub { interval_ms, repair, .. } => {
                self.schedule_scrubs(resource_id(resource), interval_ms, repair);
            }
            Operator::AddReplica { pick, .. } => self.change_replicas(resource, None, Some(pick)),
            Operator::RemoveReplica { pick, .. } => self.change_replicas(resource, Some(pick), None),
            Operator::MoveReplica { from, to, .. } => self.change_replicas(resource, Some(from), Some(to)),
            Operator::Grow { volume, blocks, .. } => {
                self.trace.count("F57 operator wants a volume to grow");
                let (resource, volume) = (resource_id(resource), VolumeId(volume));
                self.submit(Command::GrowVolume { resource, volume, bytes: blocks * BLOCK_BYTES });
            }
            Operator::Snapshot { drop, .. } => self.snapshot(resource_id(resource), drop),
            Operator::RollBack { pick, keep, restart, .. } => {
                self.roll_back(resource_id(resource), pick, keep, restart);
            }
            Operator::MinCopies { copies, suspend_ms, .. } => {
                self.trace.count("F51 operator wants copies");
                self.want_copies(resource_id(resource), copies, suspend_ms);
            }
            Operator::SetMode { a: None, .. } => self.set_mode(resource_id(resource), Mode::C, None),
            Operator::SetMode { a, .. } => self.set_mode(resource_id(resource), Mode::A, a),
            Operator::ModeB { .. } => self.set_mode(resource_id(resource), Mode::B, None),
            Operator::Attach { pick, wait_ms, take_over, .. } => {
                self.attach(resource_id(resource), pick, wait_ms, take_over);
            }
            Operator::Detach { .. } => {
                self.trace.count("F51 operator detaches a resource");
                self.submit(Command::DetachResource { resource: resource_id(resource) });
            }
            Operator::Force { pick, .. } => self.force(resource, pick, FORCE_TRIES),
            Operator::ApplyService { .. }
            | Operator::DeleteService { .. }
            | Operator::StopService { .. }
            | Operator::Tie { .. }
            | Operator::StartService { .. }
            | Operator::RestartService { .. }
            | Operator::JoinAgain { .. } => {}
        }
        self.operate(resource);
    }

    fn maintain(&mut self, resource: usize, rests: Rests, for_ms: u64) {
        let id = resource_id(resource);
        let primary = self.state().resources.get(&id).and_then(|known| known.record.primary);
        let scope = match rests {
            Rests::Cluster => Scope::Cluster,
            Rests::Service => Scope::Service { name: Self::service_name(id) },
            Rests::Node => match primary {
                Some(node) => Scope::Node { node },
                None => return,
            },
        };
        self.trace.count("F51 operator begins maintenance");
        let for_ms = (for_ms > 0).then_some(for_ms.max(1000));
        self.submit(Command::SetMaintenance { scope, on: true, for_ms });
    }

    /// The command that ends a maintenance that keeps Mainstay's hands off a service.
    fn maintenance_left(&self, resource: usize) -> Option<Command> {
        let state = self.state();
        let of_service = state.rests(&Self::service_name(resource_id(resource)));
        let any = || state.maintenances().next().map(|(scope, _)| scope);
        let scope = if self.healed { of_service.or_else(any) } else { of_service }?;
        Some(Command::SetMaintenance { scope, on: false, for_ms: None })
    }

    fn cordon_left(&self) -> Option<Command> {
        let node = self.state().nodes.values().find(|node| node.cordon.is_some())?.id;
        Some(Command::SetCordon { node, on: false, drain: false })
    }

    fn tie(&mut self, resource: usize, other: usize, tie: Tie) {
        if resource == other || self.wanted[resource].resource != Existence::Yes {
            return;
        }
        self.trace.count("F51 operator ties services");
        self.wanted[resource].service = true;
        let mut spec = agent::service(resource, None);
        let other = Self::service_name(resource_id(other));
        match tie {
            Tie::After => spec.placement.after.push(other),
            Tie::With => spec.placement.with = Some(other),
            Tie::Apart => spec.placement.apart.push(other),
        }
        self.wanted[resource].prefer = None;
        self.submit(Command::ApplyService { spec });
    }

    /// The wish of an operator who goes home: nothing stays in maintenance, cordoned or tied.
    fn tidy(&self, resource: usize) -> Option<Command> {
        if !self.healed {
            return None;
        }
        let service = self.state().services.get(&Self::service_name(resource_id(resource)));
        let tied = service.is_some_and(|service| !service.deleting && !service.spec.placement.is_empty());
        let untie = || tied.then(|| Command::ApplyService { spec: agent::service(resource, None) });
        self.maintenance_left(resource).or_else(|| self.cordon_left()).or_else(untie)
    }

    /// Asks to remove, add or move a replica. `from` chooses the replica that goes, `to` the other
    /// node that gets one. A refused change is not asked for again, because the next wish may say
    /// something else.
    fn change_replicas(&mut self, resource: usize, from: Option<u64>, to: Option<u64>) {
        let id = resource_id(resource);
        let Some(known) = self.state().resources.get(&id).filter(|known| !known.deleting) else { return };
        let holders = known.spec.replicas.clone();
        let others: Vec<NodeId> =
            self.machines.keys().copied().filter(|node| !holders.contains(node)).collect();
        let choose = |nodes: &[NodeId], pick: u64| nodes.get(pick as usize % nodes.len().max(1)).copied();
        let from = from.and_then(|pick| choose(&holders, pick));
        let to = to.map(|pick| choose(&others, pick));
        let command = match (from, to) {
            // Every node has a replica.
            (_, Some(None)) | (None, None) => return,
            (None, Some(Some(node))) => {
                self.trace.count("F57 operator adds a replica");
                Command::AddReplica { resource: id, node }
            }
            (Some(node), None) => {
                self.trace.count("F57 operator removes a replica");
                Command::RemoveReplica { resource: id, node }
            }
            (Some(from), Some(Some(to))) => {
                self.trace.count("F57 operator moves a replica");
                Command::MoveReplica { resource: id, from, to }
            }
        };
        self.submit(command);
    }

    fn attach(&mut self, id: ResourceId, pick: u64, wait_ms: u64, take_over: bool) {
        let Some(known) = self.state().resources.get(&id) else { return };
        let holders = known.spec.replicas.clone();
        let others: Vec<NodeId> =
            self.machines.keys().copied().filter(|node| !holders.contains(node)).collect();
        let Some(node) = others.get(pick as usize % others.len().max(1)).copied() else { return };
        self.trace.count("F51 operator attaches a resource");
        self.submit(Command::AttachResource { resource: id, node, wait_ms, take_over });
    }

    fn set_mode(&mut self, id: ResourceId, mode: Mode, a: Option<(u64, u64, bool)>) {
        let Some(known) = self.state().resources.get(&id) else { return };
        let mut changes = Changes::from([(Key::Mode, Some(mode as u64))]);
        if let Some((blocks, ms, takeover)) = a {
            // The limit that no operator ever chose is larger than these journals.
            let bytes = (blocks * BLOCK_BYTES).min(known.spec.journal_bytes / 2);
            let of_mode = [(Key::LagBytes, bytes), (Key::LagTime, ms), (Key::Takeover, takeover.into())];
            changes.extend(of_mode.map(|(key, value)| (key, Some(value))));
        }
        let version = Some(known.record.version);
        self.trace.count("F51 operator changes a mode");
        self.submit(Command::ChangeSettings { resource: Some(id), version, changes });
    }

    fn want_copies(&mut self, id: ResourceId, copies: u32, suspend_ms: u64) {
        let Some(known) = self.state().resources.get(&id) else { return };
        let version = Some(known.record.version);
        // With one copy nothing waits for another.
        let suspend = (copies > 1).then_some(suspend_ms);
        let changes = Changes::from([(Key::MinCopies, Some(copies.into())), (Key::SuspendIo, suspend)]);
        self.submit(Command::ChangeSettings { resource: Some(id), version, changes });
    }

    fn snapshot(&mut self, id: ResourceId, drop: Option<u64>) {
        let Some(known) = self.state().resources.get(&id) else { return };
        let command = match drop {
            None => {
                let name = format!("s{}", known.last_snapshot + 1);
                self.trace.count("F57 operator takes a snapshot");
                Command::TakeSnapshot { resource: id, name }
            }
            Some(pick) => {
                let kept = (!known.before_copy.is_empty()).then(|| BEFORE_COPY.to_owned());
                let names = known.snapshots.values().map(|known| known.name.clone()).chain(kept);
                let names: Vec<_> = names.collect();
                let Some(name) = names.get(pick as usize % names.len().max(1)).cloned() else { return };
                self.trace.count("F57 operator deletes a snapshot");
                Command::DropSnapshot { resource: id, name }
            }
        };
        self.submit(command);
    }

    fn roll_back(&mut self, id: ResourceId, pick: u64, keep: bool, restart: bool) {
        let Some(known) = self.state().resources.get(&id) else { return };
        let names: Vec<_> = known.snapshots.values().map(|known| known.name.clone()).collect();
        let Some(name) = names.get(pick as usize % names.len().max(1)).cloned() else { return };
        let keep = keep.then(|| format!("s{}", known.last_snapshot + 1));
        let last = known.last_snapshot;
        self.trace.count("F57 operator rolls back to a snapshot");
        self.submit(Command::RollBack { resource: id, last, name, keep, restart });
    }

    /// Forces a promotion, as `agent/src/http/modes.rs` does it: of a replica that its engine
    /// reports as whole. If there is none, looks again after some time, `tries` times at most.
    pub(super) fn force(&mut self, resource: usize, pick: u64, tries: u64) {
        let id = resource_id(resource);
        let Some(known) = self.state().resources.get(&id) else { return };
        let (record, state) = (&known.record, self.state());
        let whole = |member: &&Member| {
            let engine = self.machines[&member.node].engine.as_ref();
            let hosted = engine.and_then(|engine| engine.hosts.get(&id));
            state.cannot_force(id, member.node).is_none()
                && hosted.is_some_and(|hosted| {
                    hosted.host.replica().status().data == DataState::Consistent
                        && hosted.host.store().config().incarnation == member.incarnation
                        && hosted.host.failed().is_none()
                })
        };
        let able: Vec<Member> = record.replicas.iter().filter(whole).copied().collect();
        let Some(to) = able.get(pick as usize % able.len().max(1)).copied() else {
            if tries > 0 {
                self.after(PATIENCE_US, What::Force { resource, pick, tries: tries - 1 });
            }
            return;
        };
        let (version, epoch) = (record.version, record.epoch.next());
        let boot = self.machines[&to.node].engine_process.boot;
        self.to_engine(to.node, boot, EngineIn::Promise(id, epoch));
        let tries = PROMISE_TRIES;
        self.after(PROMISE_US, What::Promised { resource: id, to, version, epoch, tries });
    }

    /// Waits for the promise. Until then a primary that is cut off may begin to copy to the
    /// replica.
    pub(super) fn force_promised(
        &mut self,
        resource: ResourceId,
        to: Member,
        (version, epoch): (ConfigVersion, Epoch),
        tries: u64,
    ) {
        let engine = self.machines[&to.node].engine.as_ref();
        let Some(hosted) = engine.and_then(|engine| engine.hosts.get(&resource)) else { return };
        let replica = hosted.host.replica();
        if replica.promised_ahead() != Some(epoch) {
            if tries > 0 {
                let tries = tries - 1;
                self.after(PROMISE_US, What::Promised { resource, to, version, epoch, tries });
            }
            return;
        }
        let status = replica.status();
        if status.data != DataState::Consistent {
            return self.wrong("S8", format!("{} has promised {epoch} and is not whole", to.node));
        }
        self.trace.count("F54 operator forces a promotion");
        let (end, heard) = (status.durable, status.heard);
        self.submit(Command::ForcePromote { resource, version, to, end, heard });
    }

    pub(super) fn wants_service(&self, resource: usize) -> bool {
        self.wanted[resource].service
    }

    /// Whether the operator has stopped the service.
    pub(super) fn wants_stopped(&self, resource: usize) -> bool {
        self.wanted[resource].stopped
    }

    fn restart_service(&mut self, resource: usize, last: bool) {
        self.trace.count("F51 operator restarts a service");
        let name = Self::service_name(resource_id(resource));
        let processes = self.state().services.get(&name).map(|known| &known.spec.processes);
        let process = processes.and_then(|list| list.last()).filter(|_| last);
        let process = process.map(|process| process.name.clone());
        self.submit(Command::RestartService { name, process });
    }

    /// Does what is due, and looks again later if more is to do.
    pub(super) fn operate(&mut self, resource: usize) {
        if self.operate_once(resource) {
            self.after(PATIENCE_US, What::Operator { resource });
        }
    }

    /// Asks for a wish that is not fulfilled yet. Returns `false` if none is left.
    pub(super) fn operate_once(&mut self, resource: usize) -> bool {
        let (id, wanted) = (resource_id(resource), self.wanted[resource]);
        let name = Self::service_name(id);
        let has_service = self.plan.shape.resources[resource].service;
        let known = self.state().resources.get(&id);
        let (exists, deleting) = (known.is_some(), known.is_some_and(|known| known.deleting));
        let service = self.state().services.get(&name).map(|service| service.deleting);
        let stopped = self.state().services.get(&name).is_some_and(|service| service.stopped.is_some());
        let attached = known.is_some_and(|known| known.record.attached.is_some());
        if let Some(command) = self.tidy(resource) {
            self.submit(command);
            return true;
        }
        let command = match wanted.resource {
            Existence::Gone if attached => Command::DetachResource { resource: id },
            Existence::Gone if exists && service.is_none() && !deleting => {
                Command::DeleteResource { resource: id }
            }
            Existence::Yes if !exists => match self.origin_of(resource) {
                Ok(origin) => {
                    // Operators believe too early that the resource is made.
                    for (of, ms) in origin.iter().flat_map(|of| TIDY_MS.map(|ms| (*of, ms))) {
                        self.after(ms * 1000, What::TidyUp { of });
                    }
                    agent::create_resource(resource, &self.plan.shape.resources[resource], origin)
                }
                Err(None) => return true,
                Err(Some(command)) => *command,
            },
            // No service runs on an attached resource.
            Existence::Yes if has_service && wanted.service && service.is_none() && attached => {
                Command::DetachResource { resource: id }
            }
            Existence::Yes if has_service && wanted.service && service.is_none() => {
                // The service has a preferred node, if that node still has a replica.
                let held = |node: &u32| {
                    known.is_some_and(|known| known.spec.replicas.iter().any(|held| held.0 == *node))
                };
                Command::ApplyService { spec: agent::service(resource, wanted.prefer.filter(held)) }
            }
            Existence::Yes if service == Some(false) && wanted.service && wanted.stopped && !stopped => {
                Command::StopService { name }
            }
            Existence::Yes if service == Some(false) && wanted.service && !wanted.stopped && stopped => {
                Command::StartService { name }
            }
            Existence::Gone | Existence::Yes if !wanted.service && service == Some(false) => {
                Command::DeleteService { name }
            }
            Existence::Yes if exists && !deleting && self.wants_fewer(resource) => {
                self.want_copies(id, 1, 0);
                return true;
            }
            // A deletion takes its time.
            _ => return service == Some(true) || deleting,
        };
        self.submit(command);
        true
    }

    pub(super) fn tidy_up(&mut self, of: SnapshotOf) {
        let known = self.state().resources.get(&of.resource);
        let Some(name) = known.and_then(|known| Some(known.snapshots.get(&of.snapshot)?.name.clone())) else {
            return;
        };
        self.trace.count("F57 operator deletes what is cloned");
        self.submit(Command::DropSnapshot { resource: of.resource, name });
    }

    /// The snapshot that a resource is to be made of. `Err`: the operator waits for one, and
    /// perhaps asks for it.
    fn origin_of(&self, resource: usize) -> Result<Option<SnapshotOf>, Option<Box<Command>>> {
        let Some(source) = self.plan.shape.resources[resource].origin.map(resource_id) else {
            return Ok(None);
        };
        let Some(known) = self.state().resources.get(&source).filter(|known| !known.deleting) else {
            return Ok(None);
        };
        // For a while operators ask in vain for a snapshot that only other nodes hold.
        let here = &self.plan.shape.resources[resource].replicas;
        let held = |node: NodeId, snapshot: &Snapshot| {
            snapshot.nodes.get(&node).is_some_and(|on| on.state == SnapshotState::Held)
                && (here.contains(&node.0) || !self.healed)
        };
        let mut able = known.snapshots.iter().filter(|(_, snapshot)| {
            !snapshot.dropping && known.record.iss.iter().any(|member| held(member.node, snapshot))
        });
        if let Some((&snapshot, _)) = able.next_back() {
            return Ok(Some(SnapshotOf { resource: source, snapshot }));
        }
        // Perhaps no pool can keep a snapshot, or the other resource stays unwell for long.
        if self.healed {
            return Ok(None);
        }
        let name = format!("s{}", known.last_snapshot + 1);
        let wish = Command::TakeSnapshot { resource: source, name };
        Err(known.snapshots.is_empty().then(|| Box::new(wish)))
    }

    /// Whether more copies are wanted than there can be after faults have stopped. Some replicas
    /// stay away then, or may be lost for good.
    fn wants_fewer(&self, resource: usize) -> bool {
        let known = self.state().resources.get(&resource_id(resource));
        let wanted = known.is_some_and(|known| known.record.policy.min_copies.copies > 1);
        wanted && self.healed && (self.plan.unsurvivable || !self.plan.shape.away.nodes.is_empty())
    }

    /// Returns the wish of the operator that is not fulfilled yet, if there is one.
    pub(super) fn unfinished(&self, resource: usize) -> Unfinished {
        let (id, wanted) = (resource_id(resource), self.wanted[resource]);
        let service = self.state().services.get(&Self::service_name(id));
        if !wanted.service
            && let Some(service) = service
        {
            return Unfinished::Yes(format!(
                "s{resource} was deleted and is still there: {:?}",
                service.nodes
            ));
        }
        match wanted.resource {
            Existence::Yes => self.unfinished_replicas(resource).map_or(Unfinished::No, Unfinished::Yes),
            Existence::No => Unfinished::Gone,
            Existence::Gone => {
                if let Some(known) = self.state().resources.get(&id) {
                    return Unfinished::Yes(format!(
                        "r{resource} was deleted; it is gone from {:?} only",
                        known.gone
                    ));
                }
                match self.machines.values().find(|machine| machine.has_some_of(id)) {
                    Some(machine) => Unfinished::Yes(format!(
                        "r{resource} was deleted; {} still has its files, or a label of it",
                        machine.node
                    )),
                    None => Unfinished::Gone,
                }
            }
        }
    }

    /// Whether replicas are still moving, or are where none is wanted. A service may have used up
    /// its attempts on a node. Then the primary does not move there until an operator has cleared
    /// the failures (R21), and the advice says so.
    fn unfinished_replicas(&self, resource: usize) -> Option<String> {
        let id = resource_id(resource);
        let known = self.state().resources.get(&id)?;
        let service = self.state().service_of(id).map(|(_, service)| service);
        let waits = |(from, to): (&NodeId, &NodeId)| {
            known.record.primary == Some(*from) && service.is_some_and(|service| service.failed_on(*to))
        };
        if !known.moving.iter().all(waits) || !known.leaving.is_empty() {
            return Some(format!(
                "the replicas of r{resource} still move {:?} or leave {:?}",
                known.moving, known.leaving
            ));
        }
        let stray = |machine: &&crate::world::Machine| {
            machine.has_some_of(id) && !known.spec.replicas.contains(&machine.node)
        };
        let stray = self.machines.values().find(stray)?;
        Some(format!("{} has files or a label of r{resource} and is to hold no replica", stray.node))
    }

    /// Proposes the command through any agent that runs. An operator without an answer would try
    /// the next node in the same way.
    pub(crate) fn submit(&mut self, command: Command) {
        let running: Vec<NodeId> = self
            .machines
            .values()
            .filter(|machine| machine.agent.is_some() && machine.agent_process.paused_until_us == 0)
            .map(|machine| machine.node)
            .collect();
        let Some(by) = self.chance.pick(&running).copied() else { return };
        self.note(Some(by), Part::Control, &[53], || format!("operator: {}", words::command(&command)));
        self.spring_at_proposal(by, &command);
        let links = super::Links { machines: &self.machines, network: &self.network };
        self.consensus.submit(self.now_us, by, command, &links);
        self.deliver_consensus();
    }

    /// Checks the answer to an operator (H7), scrubs of the schedule (L4), and that what was
    /// stopped stays so (H14).
    pub(super) fn operator_is_told(&mut self, answer: OperatorAnswer) {
        let OperatorAnswer { entry, outcome, rule, judged } = answer;
        let asked = words::command(&entry.command);
        if self.trace.keeps_lines() {
            let text = format!("operator is told, of '{asked}': {}", words::outcome(&outcome));
            self.trace.remark(self.now_us, None, Part::Control, text);
        }
        if let (Outcome::Done, Some(service)) = (&outcome, clears_failures(&entry.command)) {
            self.oracle.ha.cleared(service_resource(service));
        }
        match judged {
            Ok(name) => self.trace.count(name),
            Err(why) => {
                self.wrong(rule, format!("{asked}: {why}"));
            }
        }
    }

    /// Compares replicas, as `agent/src/http.rs` does it, but without waiting. Digests are taken at
    /// once, and again while the primary holds new writes for `hold_ms`.
    fn digest(&mut self, resource: ResourceId, hold_ms: u64) {
        self.trace.count("operator compares replicas");
        let primary = self.state().resources.get(&resource).and_then(|known| known.record.primary);
        let mut due = Vec::new();
        for machine in self.machines.values() {
            let (node, boot) = (machine.node, machine.engine_process.boot);
            let mut add = |delay_us, input| due.push((delay_us, What::ToEngine { node, boot, input }));
            add(0, EngineIn::Digest(resource));
            if primary == Some(node) {
                add(DIGEST_US, EngineIn::Pause(resource));
                add(2 * DIGEST_US + hold_ms * 1000, EngineIn::Resume(resource));
            }
            add(2 * DIGEST_US, EngineIn::Digest(resource));
        }
        for (delay_us, what) in due {
            self.after(delay_us, what);
        }
    }

    /// S13: two replicas at one position have equal digests, unless a fault has damaged one of
    /// them.
    pub(super) fn digested(
        &mut self,
        node: NodeId,
        resource: ResourceId,
        incarnation: Incarnation,
        digest: Digest,
    ) {
        let machine = &self.machines[&node];
        let hosted = machine.engine.as_ref().and_then(|engine| engine.hosts.get(&resource));
        let whole = hosted.is_some_and(|hosted| {
            hosted.host.store().log_state().data == DataState::Consistent && hosted.host.failed().is_none()
        });
        if !whole || machine.damaged.get(&resource) == Some(&incarnation) {
            return;
        }
        self.trace.count("digest of a replica");
        let history = self.oracle.logs.get(&resource).and_then(|log| log.history(node, incarnation));
        let Some(history) = history else { return };
        let key = (resource, history, digest.index);
        match self.digests.get(&key) {
            None => {
                self.digests.insert(key, (node, digest.volumes));
            }
            Some((other, sums)) if *other == node || *sums == digest.volumes => {
                if *other != node {
                    self.trace.count("digests compared");
                }
            }
            Some((other, _)) => {
                let text =
                    format!("{node} and {other} differ at {} of {}", digest.index, words::resource(resource));
                self.wrong("S13", text);
            }
        }
    }
}

/// Returns the service that starts anew after this command, as if it had never failed (R21).
fn clears_failures(command: &Command) -> Option<&str> {
    match command {
        Command::MoveService { name, .. } | Command::StartService { name } => Some(name),
        Command::ApplyService { spec } => Some(&spec.name),
        _ => None,
    }
}
