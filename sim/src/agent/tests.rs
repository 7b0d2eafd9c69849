//! Agents with a model of the log and an engine that does what it is told at once.

use super::*;
use crate::consensus::{Consensus, Deliver, Delivery, Links};
use crate::plan::{Away, ResourceShape, Shape};
use mainstay_control::reconciler::REPEAT_PROPOSAL_MS;
use mainstay_control::state::{ResourceSpec, Settings};
use mainstay_silence::GUARD_MARGIN_MS;
use mainstay_types::{
    BLOCK_BYTES, BackgroundLimits, Choices, ConfigVersion, Copies, Epoch, Instance, IssChange,
    JOURNAL_BYTES_MIN, Member, NodeStatus, Proposal, ProposedChange, Role, Severity, ShrinkReason,
    SlowLimits, StepDownReason,
};
use std::collections::BTreeSet;

const LATENCY_US: u64 = 300;
const LEASE_MS: u64 = 2000;
const MARGIN_MS: u64 = 50;
const R0: ResourceId = ResourceId(1);

/// An engine without data: a replica is whatever its record says.
#[derive(Default)]
struct Engine {
    replicas: BTreeMap<ResourceId, ReplicaReport>,
    guard: Vec<String>,
    lease_until: Time,
}

enum Happens {
    Agent { node: NodeId, process: u64, input: In },
    Step { node: NodeId, resource: ResourceId, number: u64, step: Step },
}

struct Node {
    agent: Option<Agent>,
    durable: Durable,
    /// Number of the agent process.
    process: u64,
    boot: u64,
    applied: u64,
    engine: Engine,
    /// Steps that were done to services, in words.
    steps: Vec<String>,
    /// Confirmations of the guard are kept back.
    mute_guard: bool,
    /// The lists that the engine was asked to guard, by number.
    guards: Vec<u64>,
}

struct Lab {
    nodes: BTreeMap<NodeId, Node>,
    consensus: Consensus,
    now_us: u64,
    events: BTreeMap<(u64, u64), Happens>,
    sequence: u64,
    cut: BTreeSet<(NodeId, NodeId)>,
}

struct Net<'a>(&'a BTreeMap<NodeId, Node>, &'a BTreeSet<(NodeId, NodeId)>);

impl Links for Net<'_> {
    fn running(&self, node: NodeId) -> bool {
        self.0[&node].agent.is_some()
    }

    fn reachable(&self, from: NodeId, to: NodeId) -> bool {
        !self.1.contains(&(from, to))
    }
}

fn shape(service: bool) -> Shape {
    Shape {
        nodes: 3,
        resources: vec![ResourceShape {
            replicas: vec![1, 2, 3],
            volumes: vec![16],
            grown: vec![16],
            journal_blocks: 32,
            service,
            destage_start_blocks: 8,
            memory_blocks: 8,
            window_blocks: 8,
            slow: SlowLimits::default(),
            background: BackgroundLimits::default(),
            late: false,
            origin: None,
            moves: false,
            modes: false,
        }],
        clock_ppm: vec![0; 3],
        lease_ms: LEASE_MS,
        heartbeat_ms: 200,
        margin_ms: MARGIN_MS,
        latency_us: LATENCY_US,
        disk_us: 100,
        datagram_loss: 0,
        datagram_duplicate: 0,
        datagram_late: 0,
        proposal_loss: 0,
        away: Away::default(),
        devices_stay: false,
    }
}

/// Nodes' clocks run alike, but do not agree.
fn clock(node: NodeId, now_us: u64) -> Time {
    Time(now_us + u64::from(node.0) * 1_000_000_000)
}

impl Lab {
    fn new(seed: u64, state: State) -> Self {
        let nodes: Vec<NodeId> = (1..=3).map(NodeId).collect();
        let node = |_| Node {
            agent: None,
            durable: Durable::default(),
            process: 0,
            boot: 1,
            applied: 0,
            engine: Engine::default(),
            steps: Vec::new(),
            mute_guard: false,
            guards: Vec::new(),
        };
        let mut lab = Self {
            nodes: nodes.iter().map(|id| (*id, node(id))).collect(),
            consensus: Consensus::new(nodes.clone(), LATENCY_US, state, Random::new(seed)),
            now_us: 0,
            events: BTreeMap::new(),
            sequence: seed,
            cut: BTreeSet::new(),
        };
        for id in nodes {
            lab.start(id);
        }
        lab
    }

    fn after(&mut self, delay_us: u64, happens: Happens) {
        self.sequence += 1;
        self.events.insert((self.now_us + delay_us, self.sequence), happens);
    }

    fn tell(&mut self, delay_us: u64, node: NodeId, input: In) {
        let process = self.nodes[&node].process;
        self.after(delay_us, Happens::Agent { node, process, input });
    }

    fn start(&mut self, id: NodeId) {
        let (log, state) = self.consensus.restarted(id, self.nodes[&id].applied);
        let now = clock(id, self.now_us);
        let node = self.nodes.get_mut(&id).unwrap();
        node.process += 1;
        node.applied = log.applied;
        let session = node.process << 8 | u64::from(id.0);
        let durable = std::mem::take(&mut node.durable);
        node.agent = Some(Agent::new(id, durable, session, node.boot, now, log, state));
        let reports: Vec<_> = node.engine.replicas.values().cloned().collect();
        let lease_until = node.engine.lease_until;
        for report in reports {
            self.tell(1000, id, In::Engine(EngineEvent::Replica(report)));
        }
        self.tell(1000, id, In::EngineConnected { lease_until, silenced: Time(0) });
        self.carry_out(id);
    }

    /// The agent ends.
    fn stop(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.process += 1;
        if let Some(agent) = node.agent.take() {
            node.durable = agent.into_durable();
        }
    }

    /// The machine ends, with everything on it.
    fn power_cut(&mut self, id: NodeId) {
        self.stop(id);
        let node = self.nodes.get_mut(&id).unwrap();
        node.boot += 1;
        node.engine = Engine::default();
    }

    fn submit(&mut self, command: Command) {
        let from = *self.nodes.iter().find(|(_, node)| node.agent.is_some()).unwrap().0;
        self.consensus.submit(self.now_us, from, command, &Net(&self.nodes, &self.cut));
    }

    fn run(&mut self, us: u64) {
        let until = self.now_us + us;
        self.run_until(until, |_| false);
    }

    /// Runs until `done`, at most for this time; `true` if it was.
    fn reach(&mut self, us: u64, done: impl FnMut(&Self) -> bool) -> bool {
        self.run_until(self.now_us + us, done)
    }

    fn run_until(&mut self, until: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let agent = self
                .nodes
                .iter()
                .filter_map(|(id, node)| Some((*id, node.agent.as_ref()?.next_deadline())))
                .map(|(id, due)| (due.0.saturating_sub(clock(id, 0).0), id))
                .min();
            let log = self.consensus.next_event_us();
            let next = [event, agent.map(|(at, _)| at), log].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= until) else {
                self.now_us = until;
                return done(self);
            };
            self.now_us = self.now_us.max(at);
            if event == Some(at) {
                let (_, happens) = self.events.pop_first().unwrap();
                self.happen(happens);
            } else if log == Some(at) {
                self.consensus.advance(self.now_us, &Net(&self.nodes, &self.cut));
            } else if let Some((_, id)) = agent {
                self.handle(id, In::Tick);
            }
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some(Deliver { to, what }) = self.consensus.poll() {
            let applied = &mut self.nodes.get_mut(&to).unwrap().applied;
            let input = match what {
                Delivery::Committed { index, entry } => {
                    *applied = index;
                    In::Committed(entry)
                }
                Delivery::Snapshot { index, state } => {
                    *applied = index;
                    In::Snapshot { index, state }
                }
                Delivery::Leader(leads) => In::Leader(leads),
            };
            self.handle(to, input);
        }
    }

    fn happen(&mut self, happens: Happens) {
        match happens {
            Happens::Agent { node, process, input } => {
                if self.nodes[&node].process == process {
                    self.handle(node, input);
                }
            }
            Happens::Step { node, resource, number, step } => self.step(node, resource, number, step),
        }
    }

    fn handle(&mut self, id: NodeId, input: In) {
        let now = clock(id, self.now_us);
        if let Some(agent) = &mut self.nodes.get_mut(&id).unwrap().agent {
            agent.handle(now, input);
        }
        self.carry_out(id);
    }

    fn carry_out(&mut self, id: NodeId) {
        while let Some(out) = self.nodes.get_mut(&id).unwrap().agent.as_mut().and_then(Agent::poll) {
            match out {
                Out::SendLease { to, message } => {
                    if !self.cut.contains(&(id, to)) {
                        self.tell(LATENCY_US, to, In::Lease { from: id, message });
                    }
                }
                Out::Submit(command) => {
                    self.consensus.submit(self.now_us, id, command, &Net(&self.nodes, &self.cut));
                }
                Out::Lease(until) => {
                    self.nodes.get_mut(&id).unwrap().engine.lease_until = until;
                    self.tell(100, id, In::Engine(EngineEvent::Lease { until, silenced: Time(0) }));
                }
                Out::Guard { number, services } => {
                    let node = self.nodes.get_mut(&id).unwrap();
                    node.engine.guard = services;
                    node.guards.push(number);
                    if !node.mute_guard {
                        self.tell(100, id, In::GuardConfirmed(number));
                    }
                }
                Out::Step { resource, number, step } => {
                    self.after(500, Happens::Step { node: id, resource, number, step });
                }
                Out::PersistSuspect(suspect) => self.tell(1000, id, In::SuspectPersisted(suspect)),
                // The oracles'.
                Out::Service { effect: Effect::Report(_), .. } => {}
                Out::Service { name, effect } => {
                    let node = self.nodes.get_mut(&id).unwrap();
                    let (ticket, words) = match effect {
                        Effect::Run { ticket, step, .. } => {
                            assert!(node.engine.guard.contains(&name), "{name} starts unguarded");
                            (ticket, format!("run {step:?}"))
                        }
                        Effect::Undo { ticket, step, .. } => (ticket, format!("undo {step:?}")),
                        Effect::Kill { ticket } => (ticket, "kill".into()),
                        Effect::Probe { ticket, process, .. } => {
                            let finding = mainstay_ha::Finding::Healthy;
                            let answer = In::Probed { service: name, ticket, process, finding };
                            self.tell(5000, id, answer);
                            continue;
                        }
                        other @ (Effect::Persist(_) | Effect::Report(_)) => {
                            panic!("{other:?} is not for the world")
                        }
                    };
                    node.steps.push(words);
                    self.tell(5000, id, In::StepDone { service: name, ticket, result: Ok(()) });
                }
                Out::WatchProcess { process, .. } => {
                    self.nodes.get_mut(&id).unwrap().steps.push(format!("watch {process}"));
                }
                // Engines here leave no devices.
                Out::FailLeft | Out::AddressStays { .. } => {}
                Out::Sweep(name) => {
                    self.nodes.get_mut(&id).unwrap().steps.push(format!("sweep {name}"));
                    self.tell(100, id, In::Swept(name));
                }
            }
        }
    }

    fn step(&mut self, id: NodeId, resource: ResourceId, number: u64, step: Step) {
        let node = self.nodes.get_mut(&id).unwrap();
        let report = |incarnation| ReplicaReport {
            resource,
            seen: ReplicaSeen {
                role: Role::Secondary,
                epoch: Epoch(0),
                version: ConfigVersion(0),
                incarnation,
                instance: Instance(1),
                reopened: None,
                devices_ready: false,
                continues: None,
                volumes: vec![16 * BLOCK_BYTES],
                snapshots: Vec::new(),
                scrub: None,
                feeds_all: false,
                copies: Copies::Enough,
                store_failed: false,
                full: false,
                older: false,
            },
            proposal: None,
        };
        let mut answer = StepAnswer::Done;
        match step {
            Step::Open => {
                let incarnation = node.agent.as_ref().unwrap().durable.stored[&resource];
                node.engine.replicas.insert(resource, report(incarnation));
                answer = StepAnswer::Opened(incarnation);
            }
            Step::Close => {
                node.engine.replicas.remove(&resource);
            }
            Step::Tell(record) => {
                if let Some(ReplicaReport { seen, .. }) = node.engine.replicas.get_mut(&resource) {
                    let newer = record.epoch > seen.epoch;
                    seen.version = record.version;
                    seen.epoch = record.epoch.max(seen.epoch);
                    if newer {
                        let serves = record.primary == Some(id);
                        seen.role = if serves { Role::Primary } else { Role::Secondary };
                        seen.devices_ready = serves;
                    }
                }
            }
            // None grows here.
            Step::Grow(_) | Step::Scrub(_) | Step::Snapshots(_) | Step::Attach(_) | Step::Detach => {}
            Step::Demote => {
                if let Some(ReplicaReport { seen, .. }) = node.engine.replicas.get_mut(&resource) {
                    seen.role = Role::Secondary;
                    seen.devices_ready = false;
                }
            }
            Step::MakeFiles(..)
            | Step::RemoveFiles
            | Step::WriteLabel(_)
            | Step::RemoveLabel
            | Step::Look => {}
        }
        if let Some(report) = self.nodes[&id].engine.replicas.get(&resource).cloned() {
            self.handle(id, In::Engine(EngineEvent::Replica(report)));
        }
        self.handle(id, In::StepAnswered { resource, number, result: Ok(answer) });
    }

    fn truth(&self) -> &State {
        self.consensus.state()
    }

    fn primary(&self) -> Option<NodeId> {
        self.truth().resources.get(&R0)?.record.primary
    }

    /// The node whose engine serves and that is primary.
    fn serving(&self) -> Option<NodeId> {
        let primary = self.primary()?;
        let replica = self.nodes[&primary].engine.replicas.get(&R0)?;
        let replica = &replica.seen;
        (replica.role == Role::Primary && replica.epoch == self.truth().resources[&R0].record.epoch)
            .then_some(primary)
    }

    fn service(&self, node: NodeId) -> Option<ServicePhase> {
        self.truth().services.get("s0")?.nodes.get(&node).map(|on| on.phase)
    }

    fn runs_service(&self) -> Option<NodeId> {
        self.serving().filter(|node| self.service(*node) == Some(ServicePhase::Running))
    }
}

#[test]
fn agents_elect_and_replace_a_primary() {
    for seed in 0..20 {
        let mut lab = Lab::new(seed, State::default());
        lab.run(2_000_000);
        let settings = Settings { lease_ms: LEASE_MS, heartbeat_ms: 200, margin_ms: MARGIN_MS };
        lab.submit(Command::InitCluster { id: 1, name: "sim".into(), settings });
        for n in 1..=3 {
            // The control plane adds a voter only after every voter has taken notice of the one
            // before.
            let added = (0..50).any(|_| {
                lab.submit(initial::add_node(n));
                lab.reach(100_000, |lab| lab.truth().nodes.contains_key(&NodeId(n)))
            });
            assert!(added, "seed {seed}: n{n} is not added");
        }
        let spec = ResourceSpec {
            volumes: vec![16 * BLOCK_BYTES],
            journal_bytes: JOURNAL_BYTES_MIN,
            replicas: vec![NodeId(1), NodeId(2), NodeId(3)],
            preferred: Vec::new(),
        };
        lab.submit(Command::CreateResource {
            name: "r0".into(),
            spec,
            choices: Choices::default(),
            origin: None,
        });
        assert!(lab.reach(5_000_000, |lab| lab.serving().is_some()), "seed {seed}: no node serves");
        let record = &lab.truth().resources[&R0].record;
        assert_eq!((record.epoch, record.iss.len()), (Epoch(1), 3), "seed {seed}");
        lab.run(5_000_000);
        let old = lab.serving().unwrap();
        assert_eq!(
            lab.truth().resources[&R0].record.epoch,
            Epoch(1),
            "seed {seed}: a calm cluster stays calm"
        );

        let stopped_us = lab.now_us;
        let lease_end = lab.nodes[&old].agent.as_ref().unwrap().lease_until();
        lab.stop(old);
        assert!(lab.reach(6_000_000, |lab| !lab.truth().alive(old)), "seed {seed}: {old} does not die");
        assert!(clock(old, lab.now_us) > lease_end, "seed {seed}: {old} is dead before its lease has ended");
        assert!(lab.now_us > stopped_us + (LEASE_MS - 400) * 1000, "seed {seed}");
        assert!(lab.reach(1_000_000, |lab| lab.serving().is_some()), "seed {seed}: no follower is fed");
        let new = lab.serving().unwrap();
        assert_ne!(new, old);
        let record = &lab.truth().resources[&R0].record;
        assert_eq!((record.epoch, record.iss_member(old)), (Epoch(2), None), "seed {seed}");

        // It comes back with a new generation.
        lab.start(old);
        assert!(lab.reach(5_000_000, |lab| lab.truth().alive(old)), "seed {seed}: {old} does not rejoin");
        assert_eq!(lab.truth().nodes[&old].generation, 2);
        lab.run(3_000_000);
        assert_eq!(lab.serving(), Some(new), "seed {seed}: no service moves back by itself");
        for node in lab.nodes.values() {
            assert_eq!(node.agent.as_ref().unwrap().state(), lab.truth(), "seed {seed}");
        }
    }
}

#[test]
fn a_service_runs_on_the_primary_and_follows_it() {
    let mut lab = Lab::new(1, initial_state(&shape(true)));
    assert!(lab.reach(10_000_000, |lab| lab.runs_service().is_some()), "it runs nowhere");
    let old = lab.runs_service().unwrap();
    let runs =
        ["ProbeAddress", "Mount", "StartProcess { process: 0 }", "CheckReady { process: 0 }", "AddAddress"];
    let expected: Vec<String> =
        std::iter::once("sweep s0".to_owned()).chain(runs.iter().map(|step| format!("run {step}"))).collect();
    assert_eq!(lab.nodes[&old].steps, expected);
    lab.power_cut(old);
    assert!(lab.reach(10_000_000, |lab| lab.runs_service().is_some_and(|node| node != old)));

    // After a reboot nothing of it is there, and nothing goes on.
    lab.nodes.get_mut(&old).unwrap().steps.clear();
    lab.start(old);
    lab.run(5_000_000);
    assert!(lab.truth().alive(old));
    assert_eq!(lab.nodes[&old].steps, ["sweep s0"]);
    assert_eq!(lab.nodes[&old].agent.as_ref().unwrap().service_phase("s0"), None);
}

#[test]
fn a_restarted_agent_goes_on_with_its_service() {
    let mut lab = Lab::new(2, initial_state(&shape(true)));
    assert!(lab.reach(10_000_000, |lab| lab.runs_service().is_some()));
    let node = lab.runs_service().unwrap();
    let epoch = lab.truth().resources[&R0].record.epoch;
    // A restarted agent may have forgotten the last entries. These notes come last, so it does not
    // forget that it is primary.
    for n in 0..8 {
        lab.submit(Command::Note { severity: Severity::Info, subject: "test".into(), text: n.to_string() });
        lab.run(10_000);
    }
    lab.run(1_000_000);
    lab.stop(node);
    lab.nodes.get_mut(&node).unwrap().steps.clear();
    lab.run(200_000);
    lab.start(node);
    let phase = lab.nodes[&node].agent.as_ref().unwrap().service_phase("s0");
    assert_eq!(phase, Some(ServicePhase::Starting));
    lab.run(3_000_000);
    assert_eq!(lab.nodes[&node].agent.as_ref().unwrap().service_phase("s0"), Some(ServicePhase::Running));
    assert_eq!(lab.nodes[&node].steps[0], "watch 0");
    let undone = |step: &String| step.starts_with("undo") || step.starts_with("sweep");
    let steps = &lab.nodes[&node].steps;
    assert!(!steps.iter().any(undone), "{steps:?}");
    assert_eq!(lab.truth().resources[&R0].record.epoch, epoch);
}

#[test]
fn no_service_starts_before_the_engine_has_confirmed_the_guard() {
    let mut lab = Lab::new(3, initial_state(&shape(true)));
    for node in lab.nodes.values_mut() {
        node.mute_guard = true;
    }
    assert!(lab.reach(10_000_000, |lab| lab.serving().is_some()));
    lab.run(3_000_000);
    let node = lab.serving().unwrap();
    assert_eq!(lab.nodes[&node].engine.guard, ["s0"], "it was asked");
    assert_eq!(lab.nodes[&node].steps, ["sweep s0"], "nothing runs");
    // The engine answers all that it was asked.
    lab.nodes.get_mut(&node).unwrap().mute_guard = false;
    let asked = lab.nodes[&node].guards.clone();
    assert!(asked.len() > 1);
    for number in asked {
        // While more lists are on their way to the engine, the agent cannot tell which services the
        // engine will silence.
        assert_eq!(lab.nodes[&node].steps, ["sweep s0"], "the list before number {number} is confirmed");
        lab.handle(node, In::GuardConfirmed(number));
    }
    assert!(lab.reach(2_000_000, |lab| lab.runs_service() == Some(node)));
}

#[test]
fn a_replica_that_asked_to_be_relieved_is() {
    let mut lab = Lab::new(6, initial_state(&shape(false)));
    assert!(lab.reach(10_000_000, |lab| lab.serving().is_some()));
    let old = lab.serving().unwrap();
    let report = lab.nodes.get_mut(&old).unwrap().engine.replicas.get_mut(&R0).unwrap();
    let (version, epoch) = (report.seen.version, report.seen.epoch);
    report.seen.role = Role::Fenced;
    report.proposal = Some(Proposal {
        version,
        epoch,
        change: ProposedChange::StepDown { reason: StepDownReason::Restarted },
    });
    let report = report.clone();
    lab.handle(old, In::Engine(EngineEvent::Replica(report)));
    assert!(lab.reach(5_000_000, |lab| lab.serving().is_some_and(|node| node != old)));
    lab.run(1_000_000);
    assert!(lab.nodes[&old].engine.replicas[&R0].seen.version > version);
}

#[test]
fn a_service_is_killed_before_the_lease_ends() {
    let mut lab = Lab::new(4, initial_state(&shape(true)));
    assert!(lab.reach(10_000_000, |lab| lab.runs_service().is_some()));
    let old = lab.runs_service().unwrap();
    for other in (1..=3).map(NodeId) {
        lab.cut.insert((old, other));
        lab.cut.insert((other, old));
    }
    let killed = |lab: &Lab| lab.nodes[&old].steps.iter().any(|step| step == "kill");
    assert!(lab.reach(5_000_000, killed));
    let end = lab.nodes[&old].agent.as_ref().unwrap().lease_until();
    let left_ms = end.ms_since(clock(old, lab.now_us));
    assert!((GUARD_MARGIN_MS - 1..=GUARD_MARGIN_MS).contains(&left_ms), "{left_ms} ms before the end");
    assert!(lab.truth().alive(old));
    assert!(lab.reach(5_000_000, |lab| lab.runs_service().is_some_and(|node| node != old)));
    // The log is whole again: the old one learns of it and comes back, and nothing of the service
    // with it.
    lab.cut.clear();
    assert!(lab.reach(5_000_000, |lab| lab.truth().nodes[&old].status == NodeStatus::Alive));
    lab.run(3_000_000);
    assert!(lab.nodes[&old].agent.as_ref().unwrap().service_phase("s0").is_none_or(ServicePhase::is_silent));
}

#[test]
fn a_moved_service_is_silent_before_the_role_moves() {
    let mut lab = Lab::new(5, initial_state(&shape(true)));
    assert!(lab.reach(10_000_000, |lab| lab.runs_service().is_some()));
    let old = lab.runs_service().unwrap();
    let to = NodeId(old.0 % 3 + 1);
    lab.submit(Command::MoveService { name: "s0".into(), to });
    assert!(lab.reach(10_000_000, |lab| lab.primary() == Some(to)));
    let agent = lab.nodes[&old].agent.as_ref().unwrap();
    assert!(agent.service_phase("s0").is_none_or(ServicePhase::is_silent));
    assert_eq!(lab.nodes[&old].engine.replicas[&R0].seen.role, Role::Secondary);
    assert!(lab.reach(10_000_000, |lab| lab.runs_service() == Some(to)));
}

#[test]
fn a_proposal_of_the_engine_is_made_and_not_repeated_at_once() {
    let mut lab = Lab::new(6, initial_state(&shape(false)));
    assert!(lab.reach(10_000_000, |lab| lab.serving().is_some()));
    lab.run(2_000_000);
    let node = lab.serving().unwrap();
    let record = lab.truth().resources[&R0].record.clone();
    let remove: Member = record.iss.iter().copied().find(|member| member.node != node).unwrap();
    let change = ProposedChange::Iss(IssChange::Shrink { remove, why: ShrinkReason::Absent });
    let proposal = Proposal { version: record.version, epoch: record.epoch, change };
    let agent = lab.nodes.get_mut(&node).unwrap().agent.as_mut().unwrap();
    let now = clock(node, lab.now_us);
    let mut submitted = 0;
    for _ in 0..3 {
        agent.handle(now, In::Engine(EngineEvent::Proposal { resource: R0, proposal }));
        while let Some(out) = agent.poll() {
            submitted += u32::from(matches!(out, Out::Submit(Command::ChangeIss { .. })));
        }
    }
    assert_eq!(submitted, 1);
    agent.handle(
        now.plus_ms(REPEAT_PROPOSAL_MS),
        In::Engine(EngineEvent::Proposal { resource: R0, proposal }),
    );
    assert!(
        std::iter::from_fn(|| agent.poll()).any(|out| matches!(out, Out::Submit(Command::ChangeIss { .. })))
    );
}

#[test]
fn steps_of_the_engine_end_with_the_connection() {
    let mut agent = Agent::new(
        NodeId(1),
        Durable::default(),
        9,
        1,
        Time(0),
        Log::default(),
        initial_state(&shape(false)),
    );
    let steps = |agent: &mut Agent| -> Vec<(u64, Step)> {
        std::iter::from_fn(|| agent.poll())
            .filter_map(
                |out| if let Out::Step { number, step, .. } = out { Some((number, step)) } else { None },
            )
            .collect()
    };
    let done = |number| In::StepAnswered { resource: R0, number, result: Ok(StepAnswer::Done) };
    // Makes a replica until the engine has formatted it, and gives its incarnation and the number
    // of that step.
    let makes = |agent: &mut Agent, now: Time| {
        let found = steps(agent);
        let [(number, Step::RemoveFiles)] = found[..] else { panic!("{found:?}") };
        agent.handle(now, done(number));
        let found = steps(agent);
        let [(number, Step::MakeFiles(incarnation, _))] = found[..] else { panic!("{found:?}") };
        (number, incarnation)
    };
    let connected = In::EngineConnected { lease_until: Time(0), silenced: Time(0) };
    agent.handle(Time(0), connected.clone());
    let (late, first) = makes(&mut agent, Time(0));
    agent.handle(Time(0).plus_ms(5000), In::Tick);
    assert_eq!(steps(&mut agent), [], "it is under way");
    agent.handle(Time(0).plus_ms(5000), In::EngineDisconnected);
    let cleared = steps(&mut agent);
    let [(number, Step::RemoveFiles)] = cleared[..] else { panic!("{cleared:?}") };
    agent.handle(Time(0).plus_ms(5001), done(number));
    agent.handle(Time(0).plus_ms(5001), connected);
    let (number, second) = makes(&mut agent, Time(0).plus_ms(5001));
    assert_ne!(first, second, "what the first attempt left is nothing");
    agent.handle(Time(0).plus_ms(5002), done(late));
    assert_eq!(steps(&mut agent), [], "an answer to the first attempt has no reader");
    agent.handle(Time(0).plus_ms(7000), done(number));
    let labels = steps(&mut agent);
    let [(number, Step::WriteLabel(label))] = labels[..] else { panic!("{labels:?}") };
    assert_eq!((label, agent.durable.stored().get(&R0)), (second, None));
    agent.handle(Time(0).plus_ms(7000), done(number));
    assert_eq!(agent.durable.stored().get(&R0), Some(&second));
    assert!(matches!(steps(&mut agent)[..], [(_, Step::Look)]), "no report of it has come yet");
    // The engine says nothing.
    agent.handle(Time(0).plus_ms(7001), done(number + 1));
    assert!(matches!(steps(&mut agent)[..], [(_, Step::Open)]));
    agent.handle(Time(0).plus_ms(7001 + 120_000), In::Tick);
    assert_eq!(steps(&mut agent), [], "it is tried again a second later");
    agent.handle(Time(0).plus_ms(8001 + 120_000), In::Tick);
    assert!(matches!(steps(&mut agent)[..], [(_, Step::Look)]));
}

#[test]
fn a_suspicion_outlives_the_process_and_the_machine() {
    let mut durable = Durable::default();
    durable.suspect(Suspect { node: NodeId(2), generation: 1 });
    let mut agent =
        Agent::new(NodeId(1), durable, 9, 7, Time(0), Log::default(), initial_state(&shape(false)));
    let heartbeat =
        Heartbeat { generation: 1, session: 5, seq: 1, holds: true, gives_up: false, suspects: Vec::new() };
    for from in [NodeId(2), NodeId(3)] {
        agent.handle(Time(1), In::Lease { from, message: LeaseMessage::Heartbeat(heartbeat.clone()) });
    }
    let acknowledged: Vec<NodeId> = std::iter::from_fn(|| agent.poll())
        .filter_map(|out| match out {
            Out::SendLease { to, message: LeaseMessage::Ack(_) } => Some(to),
            _ => None,
        })
        .collect();
    assert_eq!(acknowledged, [NodeId(3)]);
}
