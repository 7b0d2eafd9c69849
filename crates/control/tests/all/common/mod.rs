//! Shared parts of the tests of the record: a cluster of three, a resource, and nodes that follow
//! their plans.

// Each test uses a part of it.
#![allow(dead_code)]

use mainstay_control::actions::{Action, Observed, ReplicaObserved, ServiceObserved, plan};
use mainstay_control::attachments::ClientSeen;
use mainstay_control::origin::CONTENT;
use mainstay_control::state::{Command, Entry, Outcome, ResourceSpec, Settings, State};
use mainstay_ha::ServiceSpec;
use mainstay_types::settings::Changes;
use mainstay_types::{
    Choices, ConfigVersion, Incarnation, Index, Instance, IssChange, Key, LagLimits, Member, MinCopies, Mode,
    NodeId, Position, ResourceId, Role, ScrubSummary, ServicePhase, SnapshotOn, SnapshotState,
};
use std::collections::{BTreeMap, BTreeSet};

pub const A: NodeId = NodeId(1);
pub const B: NodeId = NodeId(2);
pub const W: NodeId = NodeId(3);
pub const R: ResourceId = ResourceId(1);
const HELD_FROM_THE_BEGINNING: SnapshotOn = SnapshotOn { at: Index(0), state: SnapshotState::Held };

pub fn apply(state: &mut State, command: Command) -> Outcome {
    apply_at(state, 0, command)
}

/// `at_ms`: the wall clock of the node that proposes the command.
pub fn apply_at(state: &mut State, at_ms: u64, command: Command) -> Outcome {
    let outcome = state.apply(Entry { at_ms, command });
    if let Err(why) = state.check() {
        panic!("{why}");
    }
    outcome
}

/// A change of settings of the resource, based on a version of its record.
pub fn change_settings(version: ConfigVersion, values: &[(Key, u64)]) -> Command {
    let changes = values.iter().map(|(key, value)| (*key, Some(*value))).collect::<Changes>();
    Command::ChangeSettings { resource: Some(R), version: Some(version), changes }
}

/// A mode, with these limits if it is mode A.
pub fn change_mode(version: ConfigVersion, mode: Mode, lag: LagLimits, takeover: bool) -> Command {
    let of_a = [(Key::LagBytes, lag.bytes), (Key::LagTime, lag.ms), (Key::Takeover, takeover.into())];
    let of_a = of_a.into_iter().filter(|_| mode == Mode::A);
    let values: Vec<_> = [(Key::Mode, mode as u64)].into_iter().chain(of_a).collect();
    change_settings(version, &values)
}

/// How many copies there are to be. With one copy nothing waits for another.
pub fn change_copies(version: ConfigVersion, wanted: MinCopies) -> Command {
    let copies = (Key::MinCopies, u64::from(wanted.copies));
    match wanted.copies {
        1 => change_settings(version, &[copies]),
        _ => change_settings(version, &[copies, (Key::SuspendIo, wanted.suspend_ms)]),
    }
}

pub fn cluster() -> State {
    let mut state = State::default();
    apply(&mut state, Command::InitCluster { id: 9, name: "c".into(), settings: Settings::default() });
    for (i, name) in ["a", "b", "w"].into_iter().enumerate() {
        let added = apply(
            &mut state,
            Command::AddNode {
                name: name.into(),
                agent_addr: format!("10.0.0.{i}:7400"),
                engine_addr: format!("10.0.0.{i}:7401"),
                voter: true,
                witness: false,
                nonce: i as u64,
            },
        );
        assert!(added.is_ok(), "{added:?}");
        for node in 1..=i as u32 {
            let voters_version = state.voters_version;
            apply(&mut state, Command::VotersSeen { node: NodeId(node), voters_version });
        }
    }
    state
}

pub fn with_resource() -> State {
    let mut state = cluster();
    let spec = ResourceSpec {
        volumes: vec![1 << 20],
        journal_bytes: 16 << 20,
        replicas: vec![A, B],
        preferred: vec![A],
    };
    assert!(
        apply(
            &mut state,
            Command::CreateResource { name: "db".into(), spec, choices: Choices::default(), origin: None }
        )
        .is_ok()
    );
    state
}

pub fn ready() -> State {
    let mut state = with_resource();
    for node in [A, B] {
        let (version, incarnation) = (state.resources[&R].record.version, Incarnation(node.0.into()));
        apply(&mut state, Command::ReplicaReady { resource: R, version, node, incarnation });
    }
    assert!(promote(&mut state, A, A).is_ok());
    state
}

pub fn promote(state: &mut State, by: NodeId, to: NodeId) -> Outcome {
    let expect_version = state.resources[&R].record.version;
    apply(state, Command::Promote { resource: R, expect_version, by, to, reason: "test".into() })
}

pub fn die(state: &mut State, node: NodeId) -> Outcome {
    let generation = state.nodes[&node].generation;
    apply(state, Command::NodeDead { node, generation })
}

pub fn rejoin(state: &mut State, node: NodeId) {
    let generation = state.nodes[&node].generation;
    assert!(apply(state, Command::NodeRejoin { node, generation }).is_ok());
}

pub fn members(state: &State) -> Vec<NodeId> {
    state.resources[&R].record.iss.iter().map(|member| member.node).collect()
}

pub fn primary(state: &State) -> Option<NodeId> {
    state.resources[&R].record.primary
}

pub fn db_service() -> ServiceSpec {
    ServiceSpec::parse("name='db'\nresource='db'\n[mount]\npath='/srv/db'\n").unwrap()
}

/// Nodes that do what `plan` says over an engine and services that obey at once.
pub struct Nodes {
    pub state: State,
    pub observed: BTreeMap<NodeId, Observed>,
    pub up: BTreeMap<NodeId, bool>,
    /// Replicas made so far: each has an incarnation of its own.
    pub made: u64,
    /// Replicas that were made of a snapshot of another resource.
    pub made_of: BTreeSet<(NodeId, ResourceId)>,
    /// How often a primary was told to roll back and did.
    pub rollbacks: u32,
    /// Replicas opened so far: each has an instance of its own.
    pub opened: u64,
    /// Where the log of each would end, if it lost its memory.
    pub ends: BTreeMap<NodeId, Position>,
}

impl Nodes {
    pub fn new(state: State) -> Self {
        let well = Observed { lease_valid: true, engine: true, ..Observed::default() };
        Self {
            state,
            observed: [A, B, W].into_iter().map(|node| (node, well.clone())).collect(),
            up: [A, B, W].into_iter().map(|node| (node, true)).collect(),
            made: 0,
            made_of: BTreeSet::new(),
            rollbacks: 0,
            opened: 0,
            ends: [A, B, W].into_iter().map(|node| (node, Position::default())).collect(),
        }
    }

    pub fn settle(&mut self) {
        for _ in 0..60 {
            let mut quiet = true;
            for node in [A, B, W] {
                if !self.up[&node] {
                    continue;
                }
                for action in plan(node, &self.state, &self.observed[&node]) {
                    quiet = false;
                    self.act(node, action);
                    self.no_two_run();
                }
            }
            if quiet {
                return;
            }
        }
        panic!("the plans do not come to rest: {:?}", plan(A, &self.state, &self.observed[&A]));
    }

    pub fn act(&mut self, node: NodeId, action: Action) {
        let observed = self.observed.get_mut(&node).unwrap();
        match action {
            Action::CreateReplica { resource, of } => {
                self.made += 1;
                self.made_of.remove(&(node, resource));
                self.made_of.extend(of.map(|_| (node, resource)));
                observed.stored.insert(resource, Incarnation(self.made));
            }
            Action::OpenReplica { resource } => {
                let incarnation = observed.stored[&resource];
                let volumes = self.state.resources[&resource].spec.volumes.clone();
                self.opened += 1;
                let instance = Instance(self.opened);
                let mut replica =
                    ReplicaObserved { incarnation, instance, volumes, ..ReplicaObserved::default() };
                if self.made_of.contains(&(node, resource)) {
                    replica.snapshots = vec![(CONTENT, HELD_FROM_THE_BEGINNING)];
                }
                observed.replicas.insert(resource, replica);
            }
            Action::ReopenReplica { resource } => {
                let replica = observed.replicas.get_mut(&resource).unwrap();
                (replica.failed, replica.store_failed, replica.full) = (None, false, false);
            }
            Action::ReplaceReplica { resource } => {
                observed.stored.remove(&resource);
                observed.replicas.remove(&resource);
            }
            Action::DropReplica { resource } => {
                let dropped = Member { node, incarnation: observed.stored[&resource] };
                let registered = self.state.resources.get(&resource).map(|resource| &resource.record);
                let wanted = registered.is_some_and(|record| record.replicas.contains(&dropped));
                assert!(!wanted || self.state.resources[&resource].deleting, "dropped what is wanted");
                observed.stored.remove(&resource);
                observed.replicas.remove(&resource);
            }
            Action::GiveRecord(record) => {
                let replica = observed.replicas.get_mut(&record.resource).unwrap();
                replica.version = record.version;
                let counted = record.instances.get(&node).is_some_and(|counted| *counted != replica.instance);
                replica.reopened = counted.then_some(self.ends[&node]);
                if counted {
                    return;
                }
                let promoted = record.primary == Some(node) && record.epoch > replica.epoch;
                if promoted {
                    replica.role = Role::Primary;
                    replica.devices_ready = true;
                } else if record.primary != Some(node) {
                    replica.role = Role::Secondary;
                }
                replica.epoch = replica.epoch.max(record.epoch);
            }
            Action::AttachClient(record) => {
                self.opened += 1;
                let opened = ClientSeen { instance: Instance(self.opened), ..ClientSeen::default() };
                let client = observed.clients.entry(record.resource).or_insert(opened);
                client.version = record.version;
                let mine = record.attached.filter(|attached| attached.node == node);
                let claimed = mine.is_some_and(|attached| attached.instance == Some(client.instance));
                client.over |= client.ready && !claimed;
                client.ready |= claimed;
            }
            Action::DetachClient { resource } => {
                observed.clients.remove(&resource);
            }
            Action::KeepSnapshots { resource, wanted } => {
                let replica = observed.replicas.get_mut(&resource).unwrap();
                let on = SnapshotOn { at: Index(self.made), state: SnapshotState::Held };
                let keep = |id: &mainstay_types::SnapshotId| {
                    wanted.snapshots.contains(id) || wanted.mark == Some(*id)
                };
                replica.snapshots.retain(|(id, _)| keep(id));
                let rolled = wanted.to.and(wanted.mark);
                for id in wanted.snapshots.into_iter().chain(rolled) {
                    if replica.snapshots.iter().all(|(of, _)| *of != id) {
                        replica.snapshots.push((id, on));
                        self.rollbacks += u32::from(rolled == Some(id));
                    }
                }
                replica.snapshots.sort_by_key(|(id, _)| *id);
                let snapshots = replica.snapshots.clone();
                // The log brings them to all others that are open.
                for (_, other) in self.observed.iter_mut().filter(|(of, _)| **of != node) {
                    if let Some(replica) = other.replicas.get_mut(&resource) {
                        replica.snapshots.clone_from(&snapshots);
                    }
                }
            }
            Action::Scrub { resource, task } => {
                let replica = observed.replicas.get_mut(&resource).unwrap();
                let last = replica.scrub.as_ref().map_or(0, |scrub| scrub.ordinal);
                // The same is asked for again until it shows.
                if last > task.after {
                    return;
                }
                replica.scrub = Some(ScrubSummary::running(replica.epoch, last + 1));
            }
            Action::GrowVolumes { resource, volumes } => {
                let replica = observed.replicas.get_mut(&resource).unwrap();
                assert!(replica.role == Role::Primary, "only a primary makes entries (R8)");
                for (volume, bytes) in volumes {
                    let size = &mut replica.volumes[usize::from(volume.0)];
                    *size = bytes.max(*size);
                }
            }
            Action::Demote { resource } => {
                let mut on_it = observed.services.values().filter(|service| service.resource == resource);
                let silent = on_it.all(|service| service.phase.is_silent());
                assert!(silent, "demoted under a service (R19)");
                observed.replicas.get_mut(&resource).unwrap().role = Role::Secondary;
            }
            Action::StartService { name, epoch, round } => {
                let service = &self.state.services[&name];
                let resource = self.state.resource_of(service).expect("it has one").id;
                assert!(observed.lease_valid && observed.replicas[&resource].role == Role::Primary);
                let (revision, edition, phase) = (service.revision, service.edition, ServicePhase::Running);
                let seen = ServiceObserved {
                    phase,
                    epoch,
                    round,
                    revision,
                    edition,
                    resource,
                    ..Default::default()
                };
                observed.services.insert(name, seen);
            }
            Action::StopService { name, .. } => {
                // Stopping takes a while, and is asked for again meanwhile.
                let service = observed.services.get_mut(&name).unwrap();
                service.phase = match service.phase {
                    ServicePhase::Stopping => ServicePhase::Stopped,
                    _ => ServicePhase::Stopping,
                };
            }
            Action::ContinueService { name, epoch } => {
                let service = observed.services.get_mut(&name).unwrap();
                assert!(observed.kept.contains(&service.resource), "no engine has left its devices");
                service.epoch = epoch;
            }
            Action::RestartService { name, number, .. } => {
                observed.services.get_mut(&name).unwrap().restarted = number;
            }
            Action::AmendService { name } => {
                let edition = self.state.services[&name].edition;
                observed.services.get_mut(&name).unwrap().edition = edition;
            }
            Action::KillService { name } => {
                let service = observed.services.get_mut(&name).unwrap();
                service.phase = ServicePhase::Stopped;
                service.spent_epoch = Some(service.epoch);
            }
            Action::ForgetService { name } => {
                observed.services.remove(&name);
            }
            Action::Propose(command) => {
                let at_ms = observed.wall_ms;
                apply_at(&mut self.state, at_ms, command);
            }
        }
    }

    pub fn runs_on(&self) -> Vec<NodeId> {
        let runs = |observed: &Observed| observed.services.values().any(|service| !service.phase.is_silent());
        self.observed.iter().filter(|(_, observed)| runs(observed)).map(|(node, _)| *node).collect()
    }

    /// The nodes on which something of this service is.
    pub fn places(&self, name: &str) -> Vec<NodeId> {
        let runs = |observed: &Observed| observed.services.get(name).is_some_and(|of| !of.phase.is_silent());
        self.observed.iter().filter(|(_, observed)| runs(observed)).map(|(node, _)| *node).collect()
    }

    /// Tells the cluster what each node sees of its services, and lets the nodes act on that.
    pub fn tell(&mut self) {
        for _ in 0..8 {
            self.settle();
            let before = self.state.clone();
            for node in [A, B, W] {
                let seen = self.observed[&node].services.clone();
                for (name, of) in seen {
                    let Some(known) = self.state.services.get(&name) else { continue };
                    let told = known.nodes.get(&node);
                    if told.is_some_and(|on| (on.phase, on.epoch, on.round) == (of.phase, of.epoch, of.round))
                    {
                        continue;
                    }
                    let command = Command::ServiceStatus {
                        name,
                        node,
                        phase: of.phase,
                        epoch: of.epoch,
                        round: of.round,
                        detail: String::new(),
                        failures: 0,
                        passes: false,
                        last_failure: String::new(),
                    };
                    apply(&mut self.state, command);
                }
            }
            if self.state == before {
                return;
            }
        }
        panic!("the services do not come to rest: {:?}", self.state.services);
    }

    pub fn no_two_run(&self) {
        for name in self.state.services.keys() {
            assert!(self.places(name).len() <= 1, "{name}: {:?} (H1)", self.places(name));
        }
    }

    /// The node stops; its memory is gone, its disk stays.
    pub fn power_cut(&mut self, node: NodeId) {
        self.up.insert(node, false);
        let observed = self.observed.get_mut(&node).unwrap();
        observed.replicas.clear();
        observed.services.clear();
    }

    /// The primary's engine has filled the replica of `node` and takes it into the in-sync set
    /// (R4).
    pub fn grows(&mut self, node: NodeId) -> Outcome {
        let record = self.state.resources[&R].record.clone();
        let add = record.replica(node).expect("a registered replica");
        let change = IssChange::Grow { add };
        let (version, epoch) = (record.version, record.epoch);
        apply(&mut self.state, Command::ChangeIss { resource: R, version, epoch, change })
    }

    pub fn engine_restart(&mut self, node: NodeId) {
        let observed = self.observed.get_mut(&node).unwrap();
        for replica in observed.replicas.values_mut() {
            self.opened += 1;
            *replica = ReplicaObserved {
                epoch: replica.epoch,
                incarnation: replica.incarnation,
                instance: Instance(self.opened),
                ..ReplicaObserved::default()
            };
        }
    }
}

pub fn running() -> Nodes {
    let mut nodes = Nodes::new(with_resource());
    nodes.settle();
    assert_eq!(primary(&nodes.state), Some(A));
    apply(&mut nodes.state, Command::ApplyService { spec: db_service() });
    nodes.settle();
    assert_eq!(nodes.runs_on(), vec![A]);
    nodes
}
