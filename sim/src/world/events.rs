//! Delivery of events to machines, engines and agents. A process that stands still finds its inputs
//! in its backlog when it goes on.

#![allow(clippy::wrong_self_convention, reason = "to_engine and to_agent say to whom, they convert nothing")]

use super::silencer::Silencer;
use super::{Machine, What, World};
use crate::agent::{self, Agent};
use crate::disk::Disk;
use crate::engine::{Engine, EngineIn};
use crate::trace::Part;
use mainstay_types::{NodeId, ResourceId};
use std::collections::BTreeSet;

/// Number of datagrams that the socket of an agent holds while the agent stands still. Later ones
/// are lost.
const DATAGRAMS_MAX: usize = 1024;

impl World {
    pub(super) fn happen(&mut self, what: What) {
        match what {
            What::Step(place) => {
                let action = self.plan.steps[place].action;
                self.act(action);
            }
            What::ToEngine { node, boot, input } => self.to_engine(node, boot, input),
            What::ToAgent { node, boot, input } => self.to_agent(node, boot, *input),
            What::DeviceAttached { node, boot, resource, generation } => {
                self.device_attached(node, boot, resource, generation);
            }
            What::LeaveOver { node, boot } => self.leave_over(node, boot),
            What::HandedOver { node, boot } => self.handed_over(node, boot),
            What::LeftForLong { node, boot } => self.left_for_long(node, boot),
            What::DiskDone { node, resource, boot, ticket } => self.disk_done(node, resource, boot, ticket),
            What::Frame { pair, sender, flight } => self.frame_arrives(pair, sender, flight),
            What::Connect { pair, pause_us } => self.try_connect(pair, pause_us),
            What::Silence { pair, end, connection, since_us } => {
                self.silence(pair, end, connection, since_us)
            }
            What::Reset { pair, end, connection } => self.reset_arrives(pair, end, connection),
            What::EngineTick { node, boot, at_us } => {
                let process = &mut self.machine(node).engine_process;
                if process.boot == boot && process.armed_us == at_us {
                    process.armed_us = u64::MAX;
                    self.to_engine(node, boot, EngineIn::Tick);
                }
            }
            What::AgentTick { node, boot, at_us } => {
                let process = &mut self.machine(node).agent_process;
                if process.boot == boot && process.armed_us == at_us {
                    process.armed_us = u64::MAX;
                    self.to_agent(node, boot, agent::In::Tick);
                }
            }
            What::Inspection => self.inspection(),
            What::Consensus { at_us } => self.consensus_due(at_us),
            What::ServiceStep { node, boot, id } => self.service_step(node, boot, id),
            What::ProcessExited { node, boot, service } => self.process_exited(node, boot, service),
            What::SilencerWakes { node, boot } => self.silencer_wakes(node, boot),
            What::MountLooked { node, boot, service } => self.mount_looked(node, boot, service),
            What::PagesLooked { node, boot, service } => self.pages_looked(node, boot, service),
            What::JobStep(step) => self.job_step(step),
            What::StartEngine { node } => self.start_engine(node),
            What::StartAgent { node } => self.start_agent(node),
            What::PowerOn { node } => self.power_on(node),
            What::TidyUp { of } => self.tidy_up(of),
            What::Operator { resource } => self.operate(resource),
            What::Force { resource, pick, tries } => self.force(resource, pick, tries),
            What::Promised { resource, to, version, epoch, tries } => {
                self.force_promised(resource, to, (version, epoch), tries);
            }
            What::Deed { resource, sides, deed } => self.do_deed(resource, sides, deed),
            What::ResumeEngine { node, until_us } => self.resume_engine(node, until_us),
            What::ResumeAgent { node, until_us } => self.resume_agent(node, until_us),
        }
    }

    // Processes.

    /// Gives something to the engine of this boot, or to its backlog.
    pub(super) fn to_engine(&mut self, node: NodeId, boot: u64, input: EngineIn) {
        let now_us = self.now_us;
        let machine = self.machines.get_mut(&node).expect("known node");
        if machine.engine_process.boot != boot {
            return;
        }
        let Some(engine) = &mut machine.engine else { return };
        if machine.engine_process.paused_until_us > 0 {
            machine.engine_process.backlog.push_back(input);
            return;
        }
        let now = machine.clock.node_time(now_us);
        let greeting = matches!(input, EngineIn::Agent);
        machine.silencer.note(&input);
        engine.handle(now, input, &mut machine.disks, &mut self.oracle);
        machine.silencer.silenced = engine.silenced().max(machine.silencer.silenced);
        machine.silencer.barred = engine.barred();
        self.inspect_copied();
        self.engine_wishes(node);
        if greeting {
            self.watch_frozen(node);
        }
        self.silencer_looks(node);
        self.arm_engine(node);
        self.leaves(node);
    }

    pub(super) fn arm_engine(&mut self, node: NodeId) {
        let machine = self.machines.get_mut(&node).expect("known node");
        let Some(deadline) = machine.engine.as_ref().and_then(Engine::next_deadline) else { return };
        let at_us = machine.clock.true_time(deadline).max(self.now_us);
        if at_us < machine.engine_process.armed_us {
            machine.engine_process.armed_us = at_us;
            let boot = machine.engine_process.boot;
            self.at(at_us, What::EngineTick { node, boot, at_us });
        }
    }

    /// Gives something to the agent of this boot, or to its backlog.
    pub(super) fn to_agent(&mut self, node: NodeId, boot: u64, input: agent::In) {
        let now_us = self.now_us;
        let machine = self.machines.get_mut(&node).expect("known node");
        if machine.agent_process.boot != boot {
            return;
        }
        let Some(agent) = &mut machine.agent else { return };
        if machine.agent_process.paused_until_us > 0 {
            let backlog = &mut machine.agent_process.backlog;
            if backlog.len() < DATAGRAMS_MAX || !matches!(input, agent::In::Lease { .. }) {
                backlog.push_back(input);
            }
            return;
        }
        agent.set_wall_ms(self.consensus.wall_ms(node, now_us));
        agent.set_room(!machine.disks.values().any(Disk::is_full));
        agent.set_gone(super::moved::gone(&machine.moved));
        let now = machine.clock.node_time(now_us);
        if agent.looks_for_standstill(now) {
            let answers = machine.engine_process.paused_until_us == 0;
            let engine = machine.engine.as_ref().filter(|_| answers);
            agent.set_journals(engine.map_or_else(Vec::new, |engine| engine.journal_waits(now)));
        }
        agent.handle(now, input);
        self.agent_wishes(node);
        self.arm_agent(node);
    }

    pub(super) fn arm_agent(&mut self, node: NodeId) {
        let machine = self.machines.get_mut(&node).expect("known node");
        let Some(agent) = &machine.agent else { return };
        let at_us = machine.clock.true_time(agent.next_deadline()).max(self.now_us);
        if at_us < machine.agent_process.armed_us {
            machine.agent_process.armed_us = at_us;
            let boot = machine.agent_process.boot;
            self.at(at_us, What::AgentTick { node, boot, at_us });
        }
    }

    pub(super) fn start_engine(&mut self, node: NodeId) {
        let machine = self.machine(node);
        if !machine.powered || machine.engine.is_some() {
            return;
        }
        machine.engine = Some(machine.silencer.engine(node));
        machine.lifecycle_busy_us = 0;
        machine.being_opened.clear();
        let boot = machine.engine_process.boot;
        self.note(Some(node), Part::Engine, &[1, boot], || "engine starts".into());
        self.arm_engine(node);
        self.finds_left(node);
        self.meet(node);
        self.watch_frozen(node);
    }

    pub(super) fn start_agent(&mut self, node: NodeId) {
        let session = self.sessions.next();
        let now = self.node_time(node);
        let applied = self.machines[&node].applied;
        let machine = self.machines.get_mut(&node).expect("known node");
        if !machine.powered || machine.agent.is_some() {
            return;
        }
        let (log, state) = self.consensus.restarted(node, applied);
        machine.applied = log.applied;
        // Files that an earlier process has half made or half removed are not a replica, and go.
        let labels: BTreeSet<ResourceId> = machine.durable.stored().keys().copied().collect();
        machine.disks.retain(|resource, _| labels.contains(resource));
        machine.formatted.retain(|resource, _| labels.contains(resource));
        machine.broken.retain(|resource, _| labels.contains(resource));
        let durable = machine.durable.clone();
        machine.find_replicas();
        machine.agent = Some(Agent::new(node, durable, session, machine.boot, now, log, state));
        // What the agent adopts it may walk over, unless it knows of a maintenance.
        let adopts =
            |name: &String| !machine.services.presence(name).is_silent() && !machine.durable.rests(name);
        let names =
            machine.agent.as_ref().map(|agent| agent.state().services.keys().cloned().collect::<Vec<_>>());
        let adopted: Vec<String> = names.unwrap_or_default().into_iter().filter(adopts).collect();
        machine.climbing = adopted.into_iter().collect();
        let boot = machine.agent_process.boot;
        self.note(Some(node), Part::Agent, &[1, boot, log.applied], || {
            format!("agent starts, with the log up to entry {}", log.applied)
        });
        self.meet(node);
        self.watch_frozen(node);
        self.arm_agent(node);
        self.arm_consensus();
    }

    /// Engine and agent find each other on their socket.
    fn meet(&mut self, node: NodeId) {
        let machine = self.machine(node);
        let stopped = machine.engine_process.paused_until_us > 0 || machine.agent_process.paused_until_us > 0;
        if machine.engine.is_none() || machine.agent.is_none() || stopped {
            return;
        }
        let engine_boot = machine.engine_process.boot;
        machine.connected = true;
        let first = !std::mem::replace(&mut machine.met, true);
        self.socket_to_engine(node, engine_boot, EngineIn::Agent);
        if first {
            self.connect_all(node);
        }
    }

    /// The socket between both: a little delay, always in order.
    fn socket_time(&mut self, node: NodeId) -> u64 {
        let delay = 20 + self.chance.below(180);
        let at_us = self.now_us + delay;
        let machine = self.machine(node);
        machine.socket_floor_us = at_us.max(machine.socket_floor_us + 1);
        machine.socket_floor_us
    }

    pub(super) fn socket_to_agent(&mut self, node: NodeId, boot: u64, input: agent::In) {
        let at_us = self.socket_time(node);
        self.at(at_us, What::ToAgent { node, boot, input: Box::new(input) });
    }

    pub(super) fn socket_to_engine(&mut self, node: NodeId, boot: u64, input: EngineIn) {
        let at_us = self.socket_time(node);
        self.at(at_us, What::ToEngine { node, boot, input });
    }

    // Machines.

    pub(super) fn power_on(&mut self, node: NodeId) {
        let stays_off = self.away.contains(&node) && !self.plan.shape.away.cut;
        let machine = self.machine(node);
        if machine.powered || stays_off {
            return;
        }
        machine.powered = true;
        machine.boot += 1;
        let boot = machine.boot;
        self.note(Some(node), Part::Machine, &[1, boot], || "power on".into());
        let (engine, agent) = (5_000 + self.chance.below(100_000), 5_000 + self.chance.below(100_000));
        self.after(engine, What::StartEngine { node });
        self.after(agent, What::StartAgent { node });
        self.find_half_open();
    }

    /// F25: everything stops at once. Chance decides which volatile sectors the disks keep.
    pub(super) fn power_cut(&mut self, node: NodeId) {
        if !self.machines[&node].powered {
            return;
        }
        self.trace.count("F25 power cut");
        self.note(Some(node), Part::Fault, &[1], || "POWER CUT".into());
        let machine = self.machine(node);
        machine.note_held();
        machine.powered = false;
        machine.boot += 1;
        machine.met = false;
        machine.connected = false;
        machine.engine = None;
        machine.engine_process.ended();
        if let Some(agent) = machine.agent.take() {
            machine.durable = agent.into_durable();
        }
        machine.agent_process.ended();
        let torn: Vec<bool> = machine.disks.values_mut().map(Disk::power_cut).collect();
        for _ in torn.into_iter().filter(|torn| *torn) {
            self.trace.count("F1 writes torn or reordered by a power cut");
        }
        self.machine(node).set_moved_aside();
        self.leave_half_made(node);
        let machine = self.machine(node);
        machine.services.power_cut();
        machine.silencer = Silencer::default();
        machine.noted.clear();
        machine.left.clear();
        (machine.leaving, machine.handed) = (None, None);
        self.runs_on.retain(|(of, _), _| *of != node);
        self.presence_changed(node);
        self.drop_connections(node);
        self.forget_requests(node, |_, _| false);
        self.oracle.memory_gone(node);
        self.oracle.stopped(node);
        self.links_changed();
    }

    /// F21: kill -9.
    pub(super) fn kill_engine(&mut self, node: NodeId) {
        let machine = self.machine(node);
        machine.note_held();
        // A process on a machine that stands still cannot be killed.
        if Self::stopped(machine) {
            return;
        }
        let Some(engine) = machine.engine.take() else { return };
        machine.engine_process.ended();
        machine.met = false;
        machine.connected = false;
        let torn: Vec<bool> = machine.disks.values_mut().map(Disk::abandon).collect();
        let agent_boot = machine.agent_process.boot;
        for _ in torn.into_iter().filter(|torn| *torn) {
            self.trace.count("F1 writes torn or reordered by a kill");
        }
        self.machine(node).set_moved_aside();
        self.leave_half_made(node);
        self.trace.count("F21 engine killed");
        self.note(Some(node), Part::Fault, &[2], || "engine is killed".into());
        self.drop_connections(node);
        self.leave_devices(node, &engine);
        self.oracle.memory_gone(node);
        self.socket_to_agent(node, agent_boot, agent::In::EngineDisconnected);
        self.watch_frozen(node);
    }

    pub(super) fn kill_agent(&mut self, node: NodeId) {
        let machine = self.machine(node);
        if Self::stopped(machine) {
            return;
        }
        let Some(agent) = machine.agent.take() else { return };
        machine.durable = agent.into_durable();
        machine.connected = false;
        machine.agent_process.ended();
        self.trace.count("F21 agent killed");
        self.note(Some(node), Part::Fault, &[3], || "agent is killed".into());
        self.holder_died(node);
        self.watch_frozen(node);
    }

    pub(super) fn pause_engine(&mut self, node: NodeId, ms: u64) {
        let until_us = self.now_us + ms * 1000;
        let now_us = self.now_us;
        let machine = self.machine(node);
        if machine.engine.is_none() || machine.engine_process.paused_until_us > 0 {
            return;
        }
        machine.engine_process.paused_until_us = until_us;
        machine.engine_process.paused_since_us = now_us;
        self.trace.count("F24 engine paused");
        self.note(Some(node), Part::Fault, &[4, ms], || format!("engine stops for {ms} ms"));
        self.stops_answering(node);
        self.watch_frozen(node);
        self.at(until_us, What::ResumeEngine { node, until_us });
    }

    pub(super) fn pause_agent(&mut self, node: NodeId, ms: u64) {
        let until_us = self.now_us + ms * 1000;
        let machine = self.machine(node);
        if machine.agent.is_none() || machine.agent_process.paused_until_us > 0 {
            return;
        }
        machine.agent_process.paused_until_us = until_us;
        self.trace.count("F24 agent paused");
        self.note(Some(node), Part::Fault, &[5, ms], || format!("agent stops for {ms} ms"));
        self.watch_frozen(node);
        self.at(until_us, What::ResumeAgent { node, until_us });
    }

    pub(super) fn resume_engine(&mut self, node: NodeId, until_us: u64) {
        let process = &mut self.machine(node).engine_process;
        if process.paused_until_us != until_us {
            return;
        }
        process.paused_until_us = 0;
        let boot = process.boot;
        self.note(Some(node), Part::Engine, &[2], || "engine goes on".into());
        self.watch_frozen(node);
        // The guard is a thread of its own. It may wake before the engine's other threads, or after
        // them.
        let early = self.chance.coin();
        if early {
            self.to_engine(node, boot, EngineIn::Tick);
        }
        while let Some(input) = self.machine(node).engine_process.backlog.pop_front() {
            self.to_engine(node, boot, input);
        }
        if !early {
            self.to_engine(node, boot, EngineIn::Tick);
        }
        self.meet_if_strange(node);
    }

    pub(super) fn resume_agent(&mut self, node: NodeId, until_us: u64) {
        let process = &mut self.machine(node).agent_process;
        if process.paused_until_us != until_us {
            return;
        }
        process.paused_until_us = 0;
        let boot = process.boot;
        self.note(Some(node), Part::Agent, &[2], || "agent goes on".into());
        self.watch_frozen(node);
        while let Some(input) = self.machine(node).agent_process.backlog.pop_front() {
            self.to_agent(node, boot, input);
        }
        self.arm_agent(node);
        self.meet_if_strange(node);
    }

    /// An engine that started while the agent stood still, or the other way round.
    fn meet_if_strange(&mut self, node: NodeId) {
        if !self.machines[&node].connected {
            self.meet(node);
        }
    }

    /// Tells the oracle whether this machine can still silence its services. It cannot while engine
    /// and silencer stand still, and the agent is stopped or dead. Without a watchdog (*not yet*)
    /// its services then outlive its lease. The oracle allows that for as long as it lasts.
    pub(super) fn watch_frozen(&mut self, node: NodeId) {
        let machine = &self.machines[&node];
        let engine = machine.engine_process.paused_until_us > 0;
        let agent = machine.agent.is_none() || machine.agent_process.paused_until_us > 0;
        if machine.powered && engine && agent {
            self.oracle.ha.frozen(node);
        } else {
            self.oracle.ha.thawed(self.now_us, node);
        }
        self.links_changed();
    }

    pub(super) fn resource_name(resource: ResourceId) -> String {
        crate::words::resource(resource)
    }

    pub(super) fn service_name(resource: ResourceId) -> String {
        format!("s{}", resource.0 - 1)
    }

    pub(super) fn stopped(machine: &Machine) -> bool {
        machine.engine_process.paused_until_us > 0 && machine.agent_process.paused_until_us > 0
    }
}
