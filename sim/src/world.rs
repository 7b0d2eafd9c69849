//! The event loop: machines, and the order of events on them. One thread runs one queue, ordered by
//! true time.
//!
//! The world makes none of the decisions of a core. It carries messages and outputs from one core
//! to another, takes the time that this needs, and lets the plan interfere. Its files:
//! - `world/events.rs`: delivery of events.
//! - `world/outputs.rs`: outputs of engines and agents.
//! - `world/links.rs`: connections.
//! - `world/left_devices.rs`: devices of engines that died.
//! - `world/faults.rs`, `world/traps.rs`, `world/operator.rs`: the plan.
//! - `world/settle.rs`: healing, convergence, the last look.
//! - `world/verdict.rs`: the state of each resource at the end.

mod events;
mod faults;
mod inspect;
mod jobs;
mod left_devices;
mod links;
mod moved;
mod operator;
mod outputs;
mod progress;
mod queue;
mod schedule;
mod scrub;
mod settle;
mod silencer;
mod succession;
mod traps;
mod verdict;

use crate::agent::{self, Agent, Durable};
use crate::clock::Clock;
use crate::consensus::{self, Consensus};
use crate::disk::{Disk, Ticket};
use crate::engine::{Engine, EngineIn};
use crate::network::{End, Flight, Network, Pair};
use crate::oracle::{Oracle, Violation};
use crate::plan::{Deed, DiskOp, Plan, ResourceShape};
use crate::random::Random;
use crate::service::Services;
use crate::trace::{Part, Trace};
use crate::words;
use left_devices::LeftDevice;
use mainstay_control::State;
use mainstay_control::origin::SnapshotOf;
use mainstay_control::reconciler::job::Step;
use mainstay_replica::Op;
use mainstay_types::{ConfigVersion, Epoch, Incarnation, Index, Member, NodeId, ResourceId, Time, VolumeId};
use operator::Wanted;
use queue::Queue;
use silencer::Silencer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use succession::{Handed, Leaving};
use traps::Trap;

/// Event of the world's queue.
pub(crate) enum What {
    /// A step of the plan, by its place.
    Step(usize),
    ToEngine {
        node: NodeId,
        boot: u64,
        input: EngineIn,
    },
    ToAgent {
        node: NodeId,
        boot: u64,
        input: Box<agent::In>,
    },
    /// The device of a resource is there.
    DeviceAttached {
        node: NodeId,
        boot: u64,
        resource: ResourceId,
        generation: u64,
    },
    /// The time is up for which devices of an engine before this one may wait.
    LeftForLong {
        node: NodeId,
        boot: u64,
    },
    DiskDone {
        node: NodeId,
        resource: ResourceId,
        boot: u64,
        ticket: Ticket,
    },
    Frame {
        pair: Pair,
        sender: End,
        flight: Flight,
    },
    Connect {
        pair: Pair,
        pause_us: u64,
    },
    /// A side gives its connection up, if it has heard nothing since `since_us`.
    Silence {
        pair: Pair,
        end: End,
        connection: u64,
        since_us: u64,
    },
    /// A side learns that the other has given the connection up.
    Reset {
        pair: Pair,
        end: End,
        connection: u64,
    },
    EngineTick {
        node: NodeId,
        boot: u64,
        at_us: u64,
    },
    AgentTick {
        node: NodeId,
        boot: u64,
        at_us: u64,
    },
    Consensus {
        at_us: u64,
    },
    /// An engine that is about to leave has not done so in time, or has.
    LeaveOver {
        node: NodeId,
        boot: u64,
    },
    /// No successor has taken the devices in time, or one has.
    HandedOver {
        node: NodeId,
        boot: u64,
    },
    /// A look into a replica.
    Inspection,
    ServiceStep {
        node: NodeId,
        boot: u64,
        id: u64,
    },
    ProcessExited {
        node: NodeId,
        boot: u64,
        service: String,
    },
    SilencerWakes {
        node: NodeId,
        boot: u64,
    },
    /// The agent looks at the mount of a service.
    MountLooked {
        node: NodeId,
        boot: u64,
        service: String,
    },
    /// The agent looks after the arguments of the processes of a service.
    PagesLooked {
        node: NodeId,
        boot: u64,
        service: String,
    },
    /// A step of a job of the agent that needs the disk.
    JobStep(JobStep),
    StartEngine {
        node: NodeId,
    },
    StartAgent {
        node: NodeId,
    },
    PowerOn {
        node: NodeId,
    },
    /// The operator still wants a promotion to be forced.
    Force {
        resource: usize,
        pick: u64,
        tries: u64,
    },
    /// A replica was asked to promise this epoch. Then the promotion that begins the epoch can be
    /// forced on this version of the record.
    Promised {
        resource: ResourceId,
        to: Member,
        version: ConfigVersion,
        epoch: Epoch,
        tries: u64,
    },
    /// An operator deletes a snapshot of which a resource is being made.
    TidyUp {
        of: SnapshotOf,
    },
    /// The operator looks whether its wishes for this resource are fulfilled.
    Operator {
        resource: usize,
    },
    /// A trap does its harm. `sides` are the node that acted and its peer.
    Deed {
        resource: ResourceId,
        sides: (NodeId, NodeId),
        deed: Deed,
    },
    ResumeEngine {
        node: NodeId,
        until_us: u64,
    },
    ResumeAgent {
        node: NodeId,
        until_us: u64,
    },
}

/// Number of events in one second above which they are a storm, and no work.
const EVENTS_MAX: u64 = 30_000;

/// Pace of a disk. Faults of its content are in `disk.rs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) factor: u64,
    pub(crate) stalled_until_us: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { factor: 1, stalled_until_us: 0 }
    }
}

/// Process that may be stopped with SIGSTOP; its inputs wait meanwhile.
pub(crate) struct Process<T> {
    /// Rises with every start and every end.
    pub(crate) boot: u64,
    /// 0: it runs.
    pub(crate) paused_until_us: u64,
    pub(crate) paused_since_us: u64,
    /// Inputs that wait until the process goes on. Some remain for a moment after that.
    pub(crate) backlog: VecDeque<T>,
    /// When the next tick is due, as far as it is scheduled.
    pub(crate) armed_us: u64,
}

impl<T> Process<T> {
    fn new() -> Self {
        Self { boot: 1, paused_until_us: 0, paused_since_us: 0, backlog: VecDeque::new(), armed_us: u64::MAX }
    }

    pub(crate) fn ended(&mut self) {
        self.boot += 1;
        self.paused_until_us = 0;
        self.backlog.clear();
        self.armed_us = u64::MAX;
    }
}

/// One machine of the cluster.
pub(crate) struct Machine {
    pub(crate) node: NodeId,
    pub(crate) clock: Clock,
    pub(crate) powered: bool,
    pub(crate) boot: u64,
    pub(crate) engine: Option<Engine>,
    pub(crate) engine_process: Process<EngineIn>,
    pub(crate) agent: Option<Agent>,
    pub(crate) agent_process: Process<agent::In>,
    pub(crate) durable: Durable,
    /// The last entry of the control plane's log that the agent has applied and made durable.
    pub(crate) applied: u64,
    pub(crate) disks: BTreeMap<ResourceId, Disk>,
    /// Incarnations of the replicas on the disks.
    pub(crate) formatted: BTreeMap<ResourceId, Incarnation>,
    /// Replicas whose directories an operator has copied within the pool. The copy has the content
    /// of the disk's image.
    pub(crate) copied: BTreeSet<ResourceId>,
    /// Replicas whose directories an operator has moved out of the pool while the engine has them
    /// open.
    pub(crate) moved: BTreeSet<ResourceId>,
    /// Moved replicas that no engine has open any more.
    pub(crate) aside: BTreeMap<ResourceId, (Disk, Incarnation)>,
    /// Replicas whose directories were put back, and of which the agent has not heard.
    pub(crate) put_back: BTreeSet<ResourceId>,
    /// Services of which a start or restart is under way that was allowed when it began.
    pub(crate) climbing: BTreeSet<String>,
    /// Last entry that each replica held, durable and committed, as far as its node may know. See
    /// `agent/src/held.rs`, which knows it a second later.
    pub(crate) held: BTreeMap<ResourceId, (Incarnation, Index)>,
    /// Replicas that the engine is making.
    pub(crate) making: BTreeSet<ResourceId>,
    pub(crate) paces: BTreeMap<ResourceId, Pace>,
    /// Operations that will take this many milliseconds, the next of its kind each.
    pub(crate) late: Vec<(ResourceId, DiskOp, u64)>,
    /// Replicas that could not be recovered, and why.
    pub(crate) broken: BTreeMap<ResourceId, String>,
    /// Replicas whose disk was damaged, by incarnation, and that are not whole again with a new
    /// disk.
    pub(crate) damaged: BTreeMap<ResourceId, Incarnation>,
    pub(crate) services: Services,
    pub(crate) silencer: Silencer,
    /// Notes of the devices that the engine has made.
    noted: BTreeMap<ResourceId, LeftDevice>,
    /// Devices that an engine has left.
    left: BTreeMap<ResourceId, LeftDevice>,
    /// The engine reads no more from its devices, because it is about to leave them.
    leaving: Option<Leaving>,
    /// The engine before has left devices for the next one.
    handed: Option<Handed>,
    /// The engine and the agent of this boot have met.
    pub(crate) met: bool,
    /// The engine and the agent that run now have met.
    pub(crate) connected: bool,
    pub(crate) socket_floor_us: u64,
    /// Until when the engine's thread that makes and opens replicas has work.
    pub(crate) lifecycle_busy_us: u64,
    /// Replicas that it opens.
    pub(crate) being_opened: BTreeMap<ResourceId, BeingOpened>,
}

/// Requests that wait for a replica which an engine is opening.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeingOpened {
    /// How many are to hear that it is open.
    pub(crate) opens: usize,
    /// Numbers of the steps that close it then.
    pub(crate) closes: Vec<u64>,
}

impl Machine {
    /// Files of a replica, or a label without any.
    pub(crate) fn has_some_of(&self, resource: ResourceId) -> bool {
        let labels = self.agent.as_ref().map_or_else(|| self.durable.stored(), Agent::labels);
        self.disks.contains_key(&resource) || labels.contains_key(&resource)
    }
}

/// A step of a job, on its way to where it is done.
#[derive(Clone, Debug)]
pub(crate) struct JobStep {
    pub(crate) node: NodeId,
    pub(crate) engine_boot: u64,
    pub(crate) agent_boot: u64,
    pub(crate) resource: ResourceId,
    pub(crate) number: u64,
    pub(crate) step: Step,
}

/// A request of a client that has no answer yet.
#[derive(Clone, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) node: NodeId,
    pub(crate) resource: usize,
    pub(crate) at_us: u64,
    pub(crate) blocks: u64,
    pub(crate) read: bool,
    pub(crate) flush: bool,
    /// The request is one of a node without a replica.
    pub(crate) client: bool,
    pub(crate) op: Op,
    /// Last entry that was acknowledged and not yet committed when the client sent the request
    /// (mode B). `None` if there was none. A flush is judged by it.
    pub(crate) soft: Option<Index>,
}

/// See the top of this file.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) now_us: u64,
    queue: Queue,
    pub(crate) machines: BTreeMap<NodeId, Machine>,
    pub(crate) network: Network,
    pub(crate) connecting: BTreeSet<Pair>,
    pub(crate) consensus: Consensus,
    consensus_armed_us: u64,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    pub(crate) asked: BTreeMap<u64, ClientRequest>,
    pub(crate) next_request: u64,
    /// Node that has or had the devices of each resource last, and how often that changed.
    turns: BTreeMap<ResourceId, (NodeId, u64)>,
    /// Replicas that were opened so far: each time a number of its own.
    instances: u64,
    /// Devices that were made so far.
    made: u64,
    /// Services that run, with the epoch that their nodes name and the devices that they began on.
    runs_on: BTreeMap<(NodeId, ResourceId), (Epoch, u64)>,
    pub(crate) acknowledged: u64,
    /// Requests that were answered with an error.
    pub(crate) refused: u64,
    /// Result of the read that was answered last: for each block, the number of the write that it
    /// is from.
    pub(crate) found: Vec<u64>,
    pub(crate) chance: Random,
    pub(crate) datagrams: Random,
    pub(crate) disk_times: Random,
    pub(crate) sessions: Random,
    pub(crate) inspections: Random,
    pub(crate) files: Random,
    /// Which replicas have checksums of their blocks; all of those that are not here.
    sums: BTreeMap<ResourceId, scrub::Sums>,
    /// Resources whose rotten blocks are being scrubbed.
    scrubbed: BTreeSet<ResourceId>,
    /// Blocks of volumes that have ever rotted on a replica.
    rotted: BTreeSet<(ResourceId, VolumeId, u64)>,
    /// Random numbers for the blocks that rot at the end, and for client writes while they are
    /// scrubbed.
    scrubs: Random,
    /// Random numbers for client writes while replicas are copied at the end.
    load: Random,
    /// Set, and not sprung yet.
    traps: Vec<Trap>,
    /// Wishes of the operator, by resource.
    wanted: Vec<Wanted>,
    /// The first digest of each resource, by history and position, and whose it is.
    digests: BTreeMap<(ResourceId, usize, Index), (NodeId, Vec<u64>)>,
    /// A second of true time, and what has happened in it.
    busy: (u64, u64),
    /// Faults have stopped.
    pub(crate) healed: bool,
    /// Clients have stopped, too.
    pub(crate) quiet: bool,
    /// Nodes that are still away although faults have stopped.
    away: Vec<NodeId>,
    /// True times from which on no lease of a removed node may last (H19).
    lease_over_us: BTreeMap<NodeId, u64>,
}

/// The control plane's name and number of resource `n` of a shape.
#[must_use]
pub fn resource_id(n: usize) -> ResourceId {
    ResourceId(n as u64 + 1)
}

/// The resource below a service: `s0` stands on `r0`.
pub(crate) fn service_resource(name: &str) -> ResourceId {
    resource_id(name.trim_start_matches('s').parse().unwrap_or(0))
}

pub(crate) fn shape_of(plan: &Plan, resource: ResourceId) -> &ResourceShape {
    &plan.shape.resources[resource.0 as usize - 1]
}

impl World {
    /// A cluster whose machines are all switched on at time 0.
    #[must_use]
    pub fn new(plan: Plan, keep_lines: bool) -> Self {
        let root = Random::new(plan.seed);
        let nodes: Vec<NodeId> = (1..=plan.shape.nodes).map(NodeId).collect();
        let state = agent::initial_state(&plan.shape);
        let mut consensus =
            Consensus::new(nodes.clone(), plan.shape.latency_us, state.clone(), root.stream("consensus"));
        consensus.set_loss(plan.shape.proposal_loss);
        let mut oracle = Oracle::new();
        for (number, resource) in plan.shape.resources.iter().enumerate() {
            oracle.add_resource(resource_id(number), &resource.volumes, resource.slow);
        }
        let machines = nodes
            .iter()
            .map(|node| {
                let stream = root.stream(&format!("machine {node}"));
                let ppm = plan.shape.clock_ppm.get(node.0 as usize - 1).copied().unwrap_or(0);
                let machine = Machine {
                    node: *node,
                    clock: Clock::new(1_000_000_000 * u64::from(node.0) + 777, ppm),
                    powered: false,
                    boot: 1,
                    engine: None,
                    engine_process: Process::new(),
                    agent: None,
                    agent_process: Process::new(),
                    durable: Durable::default(),
                    applied: 0,
                    disks: BTreeMap::new(),
                    formatted: BTreeMap::new(),
                    copied: BTreeSet::new(),
                    moved: BTreeSet::new(),
                    aside: BTreeMap::new(),
                    put_back: BTreeSet::new(),
                    climbing: BTreeSet::new(),
                    held: BTreeMap::new(),
                    making: BTreeSet::new(),
                    paces: BTreeMap::new(),
                    late: Vec::new(),
                    broken: BTreeMap::new(),
                    damaged: BTreeMap::new(),
                    services: Services::new(*node, stream.stream("services")),
                    silencer: Silencer::default(),
                    noted: BTreeMap::new(),
                    left: BTreeMap::new(),
                    leaving: None,
                    handed: None,
                    met: false,
                    connected: false,
                    socket_floor_us: 0,
                    lifecycle_busy_us: 0,
                    being_opened: BTreeMap::new(),
                };
                (*node, machine)
            })
            .collect();
        let mut world = Self {
            network: Network::new(plan.shape.latency_us, root.stream("network")),
            now_us: 0,
            queue: Queue::default(),
            machines,
            connecting: BTreeSet::new(),
            consensus,
            consensus_armed_us: u64::MAX,
            oracle,
            trace: Trace::new(keep_lines),
            asked: BTreeMap::new(),
            next_request: 1,
            turns: BTreeMap::new(),
            instances: 0,
            made: 0,
            runs_on: BTreeMap::new(),
            acknowledged: 0,
            refused: 0,
            found: Vec::new(),
            chance: root.stream("chance"),
            datagrams: root.stream("datagrams"),
            disk_times: root.stream("disk times"),
            sessions: root.stream("sessions"),
            inspections: root.stream("inspections"),
            files: root.stream("files"),
            sums: scrub::sums_of(&plan, &mut root.stream("sums")),
            scrubbed: BTreeSet::new(),
            rotted: BTreeSet::new(),
            scrubs: root.stream("scrubs"),
            load: root.stream("load"),
            traps: Vec::new(),
            wanted: Wanted::of(&plan.shape),
            digests: BTreeMap::new(),
            busy: (0, 0),
            healed: false,
            quiet: false,
            away: Vec::new(),
            lease_over_us: BTreeMap::new(),
            plan,
        };
        for node in nodes {
            if world.machines[&node].clock.drifts() {
                world.trace.count("F43 clock at another rate");
            }
            world.power_on(node);
        }
        for place in 0..world.plan.steps.len() {
            let at_us = world.plan.steps[place].at_ms * 1000;
            world.at(at_us, What::Step(place));
        }
        world.arm_consensus();
        world.arm_inspection();
        world
    }

    pub(crate) fn at(&mut self, at_us: u64, what: What) {
        self.queue.push(at_us.max(self.now_us), what);
    }

    pub(crate) fn after(&mut self, delay_us: u64, what: What) {
        self.at(self.now_us + delay_us, what);
    }

    /// Lets the next thing happen that is due by then. `false`: there is none, or something is
    /// wrong.
    pub(crate) fn step(&mut self, until_us: u64) -> bool {
        if self.oracle.violation().is_some() {
            return false;
        }
        let Some((at_us, what)) = self.queue.pop(until_us) else { return false };
        self.now_us = at_us;
        self.rest(at_us);
        self.oracle.at(at_us);
        self.happen(what);
        true
    }

    /// Runs until this true time, or until something is wrong.
    pub fn run_until(&mut self, until_us: u64) {
        while self.step(until_us) {}
        if self.oracle.violation().is_none() {
            self.now_us = self.now_us.max(until_us);
        }
    }

    /// R18: counts events, and reports a violation at [`EVENTS_MAX`] of them in one second.
    /// Processes that answer themselves again and again would never end.
    fn rest(&mut self, at_us: u64) {
        let second = at_us / 1_000_000;
        if self.busy.0 != second {
            self.busy = (second, 0);
        }
        self.busy.1 += 1;
        if self.busy.1 == EVENTS_MAX {
            self.wrong("R18", format!("{EVENTS_MAX} things happen within second {second}"));
        }
    }

    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.oracle.violation()
    }

    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Shows the messages of engines to each other in the trace, too.
    pub fn show_messages(&mut self) {
        self.trace.show_messages();
    }

    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Writes that were acknowledged to clients.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The control plane as it truly is: every committed entry applied.
    #[must_use]
    pub fn state(&self) -> &State {
        self.consensus.state()
    }

    pub(crate) fn machine(&mut self, node: NodeId) -> &mut Machine {
        self.machines.get_mut(&node).expect("nodes come from the shape")
    }

    pub(crate) fn node_time(&self, node: NodeId) -> Time {
        self.machines[&node].clock.node_time(self.now_us)
    }

    pub(crate) fn note(
        &mut self,
        node: Option<NodeId>,
        part: Part,
        numbers: &[u64],
        text: impl FnOnce() -> String,
    ) {
        self.trace.event(self.now_us, node, part, numbers, text);
    }

    pub(crate) fn wrong(&mut self, id: &'static str, text: String) {
        self.oracle.fail(Violation { id, text });
    }

    /// The nodes that have files of this resource.
    #[must_use]
    pub fn holders(&self, resource: ResourceId) -> Vec<NodeId> {
        let holds = |machine: &&Machine| machine.disks.contains_key(&resource);
        self.machines.values().filter(holds).map(|machine| machine.node).collect()
    }

    /// Where a device of this resource can be used.
    #[must_use]
    pub fn devices(&self, resource: usize) -> Vec<NodeId> {
        let id = resource_id(resource);
        let offered = |machine: &Machine| {
            let Some(engine) = &machine.engine else { return false };
            engine.hosts.get(&id).is_some_and(|hosted| hosted.device.is_offered())
                || engine.clients.get(&id).is_some_and(|hosted| hosted.device.is_offered())
        };
        self.machines.values().filter(|machine| offered(machine)).map(|machine| machine.node).collect()
    }

    /// Whether the engine of `node` has the devices of the resource without a replica of it.
    pub(crate) fn has_client(&self, node: NodeId, resource: usize) -> bool {
        let engine = self.machines[&node].engine.as_ref();
        engine.is_some_and(|engine| engine.clients.contains_key(&resource_id(resource)))
    }

    /// Schedules the control plane's log anew, if it wants to be called earlier than it is.
    pub(crate) fn arm_consensus(&mut self) {
        if let Some(at_us) = self.consensus.next_event_us()
            && at_us < self.consensus_armed_us
        {
            self.consensus_armed_us = at_us;
            self.at(at_us, What::Consensus { at_us });
        }
    }

    /// Links have changed: the control plane's log looks again at which node leads and which nodes
    /// reach each other.
    pub(crate) fn links_changed(&mut self) {
        self.consensus.links_changed(self.now_us);
        self.arm_consensus();
    }

    pub(crate) fn consensus_due(&mut self, at_us: u64) {
        if at_us == self.consensus_armed_us {
            self.consensus_armed_us = u64::MAX;
            let before = self.consensus.tally().quorums_lost;
            self.consensus.advance(self.now_us, &Links { machines: &self.machines, network: &self.network });
            if self.consensus.tally().quorums_lost > before {
                self.trace.count("F50 quorum lost");
            }
            self.deliver_consensus();
        }
    }

    /// Delivers the news of the control plane's log to the agents, and tells the oracles the
    /// present truth.
    pub(crate) fn deliver_consensus(&mut self) {
        self.watch_records();
        while let Some(consensus::Deliver { to, what }) = self.consensus.poll() {
            let boot = self.machines[&to].agent_process.boot;
            let input = match what {
                consensus::Delivery::Committed { index, entry } => {
                    self.note(Some(to), Part::Control, &[1, index], || {
                        format!("entry {index}: {}", words::command(&entry.command))
                    });
                    if self.machines[&to].agent.is_some() {
                        self.machine(to).applied = index;
                    }
                    agent::In::Committed(entry)
                }
                consensus::Delivery::Snapshot { index, state } => {
                    self.note(Some(to), Part::Control, &[2, index], || {
                        format!("gets the state of the control plane whole, up to log entry {index}")
                    });
                    self.trace.count("F48 snapshot installed");
                    if self.machines[&to].agent.is_some() {
                        self.machine(to).applied = index;
                    }
                    agent::In::Snapshot { index, state }
                }
                consensus::Delivery::Leader(is) => {
                    self.note(Some(to), Part::Control, &[3, u64::from(is)], || {
                        if is {
                            "leads the control plane".into()
                        } else {
                            "no longer leads the control plane".into()
                        }
                    });
                    agent::In::Leader(is)
                }
            };
            self.to_agent(to, boot, input);
        }
        self.arm_consensus();
    }

    /// Tells the oracles every new version of a record, and which services are gone.
    fn watch_records(&mut self) {
        while let Some(answer) = self.consensus.poll_answer() {
            self.operator_is_told(answer);
        }
        while let Some(name) = self.consensus.poll_forgotten() {
            self.oracle.ha.forgotten(service_resource(&name));
        }
        while let Some(consensus::Change { record, dead }) = self.consensus.poll_change() {
            let iss: Vec<String> = record.iss.iter().map(|member| member.node.to_string()).collect();
            self.note(None, Part::Control, &[4, record.resource.0, record.version.0, record.epoch.0], || {
                let primary = record.primary.map_or("none".into(), |node| node.to_string());
                format!(
                    "record of {}: {} epoch {}, primary {primary}, in sync {}",
                    words::resource(record.resource),
                    record.version,
                    record.epoch.0,
                    iss.join(" ")
                )
            });
            // The resource is made of the snapshot as it is now, whatever becomes of its origin's
            // history afterwards.
            let known = self.state().resources.get(&record.resource);
            if let Some(of) = known.and_then(|known| known.origin.as_ref()).map(|origin| origin.of) {
                self.oracle.made_of(record.resource, of.resource, of.snapshot);
            }
            if let (Some(old), Some(new)) = (dead, record.primary) {
                self.oracle.promoted(record.resource, old, new);
            }
            // A member that is in sync with a new disk is whole again.
            for member in &record.iss {
                let machine = self.machines.get_mut(&member.node).expect("members are nodes");
                let other =
                    machine.damaged.get(&record.resource).is_some_and(|old| *old != member.incarnation);
                // When two disks were lost one after the other, the record may still name the first
                // one.
                if other && machine.formatted.get(&record.resource) == Some(&member.incarnation) {
                    machine.damaged.remove(&record.resource);
                }
            }
            if let Err(why) = crate::oracle::answers::nothing_names_the_removed(self.state()) {
                self.wrong("H19", why);
            }
            let forced = self.state().resources.get(&record.resource).and_then(|known| known.forced.clone());
            self.oracle.record(&record, forced.as_ref());
        }
    }
}

/// View of the machines and the network that tells the control plane's log which agents run and
/// which of them reach each other.
pub(crate) struct Links<'a> {
    pub(crate) machines: &'a BTreeMap<NodeId, Machine>,
    pub(crate) network: &'a Network,
}

impl consensus::Links for Links<'_> {
    fn running(&self, node: NodeId) -> bool {
        self.machines
            .get(&node)
            .is_some_and(|machine| machine.agent.is_some() && machine.agent_process.paused_until_us == 0)
    }

    fn reachable(&self, from: NodeId, to: NodeId) -> bool {
        self.network.agents_open(from, to)
    }
}
