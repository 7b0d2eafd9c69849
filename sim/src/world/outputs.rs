//! Outputs of engines and agents to the world, carried out with the time that each takes.

use super::{ClientRequest, JobStep, What, World};
use crate::agent::{self, EngineEvent, LeaseMessage, Out};
use crate::disk::Ticket;
use crate::engine::{EngineIn, EngineOut, is_of_client, is_of_device};
use crate::oracle::LogOracle;
use crate::plan::ClientOp;
use crate::service::{Footing, Silenced, WATCH_US};
use crate::trace::Part;
use crate::words;
use bytes::Bytes;
use mainstay_control::reconciler::job::StepAnswer;
use mainstay_control::state::Command;
use mainstay_ha::{Effect, Step};
use mainstay_host::DeviceAnswer;
use mainstay_replica::Op;
use mainstay_types::{BLOCK_BYTES, Index, NodeId, Range, ResourceId, Role, Time, VolumeId};

/// Longest time of one operation of a disk, in microseconds (F14). An operation that was begun
/// before faults ended has ended when every request must have an answer.
const OPERATION_US_MAX: u64 = 20_000_000;
/// Time that it takes to find out that nothing is left of a service.
const SWEEP_US: u64 = 500;

/// Time in which every voter learns of a removal, in milliseconds, unless it is stopped or cut off.
const REMOVAL_LEARNT_MS: u64 = 2_000;

impl World {
    // Engines.

    pub(super) fn engine_wishes(&mut self, node: NodeId) {
        loop {
            let Some(engine) = &mut self.machine(node).engine else { return };
            if engine.outs.is_empty() {
                return;
            }
            for out in std::mem::take(&mut engine.outs) {
                self.engine_out(node, out);
            }
        }
    }

    fn engine_out(&mut self, node: NodeId, out: EngineOut) {
        let boot = self.machines[&node].engine_process.boot;
        match out {
            EngineOut::Disk { resource, ticket } => {
                let delay = self.disk_delay(node, resource, ticket);
                self.after(delay, What::DiskDone { node, resource, boot, ticket });
            }
            EngineOut::Send { to, answer, envelope } => self.send(node, to, answer, &envelope),
            EngineOut::Complete { request, answer, soft } => self.complete(request, answer, soft),
            EngineOut::ToAgent(event) => {
                self.note_event(node, &event);
                let agent_boot = self.machines[&node].agent_process.boot;
                self.socket_to_agent(node, agent_boot, agent::In::Engine(event));
            }
            EngineOut::Attach { resource, generation } => {
                self.note(Some(node), Part::Engine, &[3, resource.0], || {
                    format!("{} makes its device", Self::resource_name(resource))
                });
                let turn = self.takes_turn(node, resource);
                if !is_of_client(generation) {
                    self.device_made(node, resource, turn);
                }
                let delay = 1_000 + self.chance.below(20_000);
                self.after(delay, What::DeviceAttached { node, boot, resource, generation });
            }
            EngineOut::Detach { resource, generation } => {
                self.note(Some(node), Part::Engine, &[4, resource.0], || {
                    format!("{} takes its device away", Self::resource_name(resource))
                });
                self.unseen(node, resource);
                self.device_lost(node, resource);
                if !is_of_client(generation) {
                    self.machine(node).noted.remove(&resource);
                }
                let delay = 1_000 + self.chance.below(20_000);
                self.after(
                    delay,
                    What::ToEngine { node, boot, input: EngineIn::Detached { resource, generation } },
                );
            }
            EngineOut::Guarded(number) => {
                let agent_boot = self.machines[&node].agent_process.boot;
                self.socket_to_agent(node, agent_boot, agent::In::GuardConfirmed(number));
            }
            EngineOut::Record { resource, epoch, own } => self.left_hears(node, resource, epoch, own),
            EngineOut::GiveUp(resource) => self.give_up_guarded(node, resource),
            EngineOut::KillUsers(resource) => self.kill_users(node, resource),
            EngineOut::Silence(services) => {
                if !services.is_empty() {
                    self.trace.count("R19 the guard silenced services");
                    self.note(Some(node), Part::Engine, &[5], || {
                        format!("guard silences {}", services.join(", "))
                    });
                }
                self.silence_services(node, services);
                self.give_up_handed(node);
            }
            EngineOut::RoleChanged { resource, role } => {
                let number = match role {
                    Role::Secondary => 0,
                    Role::Promoting => 1,
                    Role::Primary => 2,
                    Role::Fenced => 3,
                };
                let epoch = self.machines[&node]
                    .engine
                    .as_ref()
                    .and_then(|engine| engine.hosts.get(&resource))
                    .map(|hosted| hosted.host.replica().epoch())
                    .unwrap_or_default();
                self.note(Some(node), Part::Engine, &[6, resource.0, number], || {
                    words::role(resource, role, epoch)
                });
                self.oracle.role(node, resource, epoch, role == Role::Primary);
                if role == Role::Primary {
                    self.takes_turn(node, resource);
                    self.inspect(node, resource, false);
                }
            }
            EngineOut::Digested { resource, incarnation, digest } => {
                self.digested(node, resource, incarnation, digest);
            }
            EngineOut::Paused { resource } => {
                self.note(Some(node), Part::Engine, &[11, resource.0], || {
                    format!("{} holds new writes", Self::resource_name(resource))
                });
            }
            EngineOut::StepDone { resource, number } => {
                let agent_boot = self.machines[&node].agent_process.boot;
                let result = Ok(StepAnswer::Done);
                self.socket_to_agent(node, agent_boot, agent::In::StepAnswered { resource, number, result });
            }
            EngineOut::Connected { lease_until, silenced } => {
                let agent_boot = self.machines[&node].agent_process.boot;
                self.socket_to_agent(node, agent_boot, agent::In::EngineConnected { lease_until, silenced });
            }
        }
    }

    /// Writes an event that an engine reports unasked into the trace, unless another part does so.
    fn note_event(&mut self, node: NodeId, event: &EngineEvent) {
        match event {
            EngineEvent::LeaseLost { .. } => {
                self.trace.count("R19 the guard acted");
                self.note(Some(node), Part::Engine, &[9], || {
                    "the lease is as good as over: the guard takes devices and services away".into()
                });
            }
            EngineEvent::Failed { resource, reason } => {
                self.note(Some(node), Part::Engine, &[10, resource.0], || {
                    format!("{} is given up: {reason}", words::resource(*resource))
                });
            }
            EngineEvent::Client { resource, seen: Some(seen) } if seen.over => {
                self.trace.count("S18 a session is over");
                self.note(Some(node), Part::Engine, &[12, resource.0], || {
                    format!("the session of its client of {} is over", words::resource(*resource))
                });
            }
            EngineEvent::Replica(_)
            | EngineEvent::Client { .. }
            | EngineEvent::Proposal { .. }
            | EngineEvent::Lease { .. } => {}
        }
    }

    fn disk_delay(&mut self, node: NodeId, resource: ResourceId, ticket: Ticket) -> u64 {
        let mean = self.plan.shape.disk_us;
        let pace = self.machines[&node].paces.get(&resource).copied().unwrap_or_default();
        let mut delay = self.disk_times.around(mean) * pace.factor;
        // F14: now and then one operation takes much longer than those around it, and they overtake
        // it.
        if self.disk_times.permille(5) {
            delay *= self.disk_times.between(2, 64);
        }
        delay = delay.min(OPERATION_US_MAX).max(pace.stalled_until_us.saturating_sub(self.now_us));
        let machine = self.machine(node);
        if !machine.late.is_empty()
            && let Some(kind) = machine.disks.get(&resource).and_then(|disk| disk.kind(ticket))
            && let Some(at) = machine.late.iter().position(|(of, what, _)| (*of, *what) == (resource, kind))
        {
            // The operation takes at least this long; the delay is not added. After a disk had
            // stood still, one operation took longer than a copy may. Seed 2946138.
            delay = delay.max(machine.late.remove(at).2 * 1000);
        }
        delay
    }

    pub(super) fn disk_done(&mut self, node: NodeId, resource: ResourceId, boot: u64, ticket: Ticket) {
        let machine = self.machines.get_mut(&node).expect("known node");
        if machine.engine_process.boot != boot {
            return;
        }
        let Some(disk) = machine.disks.get_mut(&resource) else { return };
        let Some(finished) = disk.finish(ticket) else { return };
        self.count_stale(node, resource);
        self.to_engine(node, boot, EngineIn::Disk { resource, finished });
    }

    // Agents.

    pub(super) fn agent_wishes(&mut self, node: NodeId) {
        while let Some(out) = self.machine(node).agent.as_mut().and_then(agent::Agent::poll) {
            self.agent_out(node, out);
        }
    }

    /// H19: the voters learn of a removal soon, and a lease that was acknowledged before that ends.
    fn judge_removed_lease(&mut self, node: NodeId, until_us: u64) {
        let allowed_us = self.now_us + (self.plan.shape.lease_ms + REMOVAL_LEARNT_MS) * 1000;
        let over_us = *self.lease_over_us.entry(node).or_insert(allowed_us);
        if until_us > over_us {
            let late_ms = (until_us - over_us) / 1000;
            self.wrong(
                "H19",
                format!("{node} was removed, and gets a lease for {late_ms} ms more than it may"),
            );
        }
    }

    fn agent_out(&mut self, node: NodeId, out: Out) {
        let agent_boot = self.machines[&node].agent_process.boot;
        let engine_boot = self.machines[&node].engine_process.boot;
        match out {
            Out::SendLease { to, message } => self.datagram(node, to, message),
            Out::Submit(command) => {
                self.note(Some(node), Part::Agent, &[3], || format!("asks to {}", words::command(&command)));
                self.judge_command(node, &command);
                self.spring_at_proposal(node, &command);
                let links = super::Links { machines: &self.machines, network: &self.network };
                self.consensus.submit(self.now_us, node, command, &links);
                self.deliver_consensus();
            }
            Out::Lease(until) => {
                let until_us = self.machines[&node].clock.true_time(until);
                let is_removed = self.state().is_removed(node);
                if is_removed {
                    self.judge_removed_lease(node, until_us);
                }
                // Until the voters have learnt of a removal, the node that goes is as good as
                // others.
                let alive = is_removed || self.state().alive(node);
                self.oracle.lease(node, until_us, alive);
                self.socket_to_engine(node, engine_boot, EngineIn::Lease(until));
            }
            Out::Guard { number, services } => {
                self.socket_to_engine(node, engine_boot, EngineIn::Guard { number, services });
            }
            Out::Step { resource, number, step } => {
                self.start_step(JobStep { node, engine_boot, agent_boot, resource, number, step });
            }
            Out::PersistSuspect(suspect) => {
                self.note(
                    Some(node),
                    Part::Agent,
                    &[5, u64::from(suspect.node.0), suspect.generation],
                    || format!("suspects {} in generation {}", suspect.node, suspect.generation),
                );
                let delay = self.disk_times.around(self.plan.shape.disk_us) * 2;
                self.after(
                    delay,
                    What::ToAgent {
                        node,
                        boot: agent_boot,
                        input: Box::new(agent::In::SuspectPersisted(suspect)),
                    },
                );
            }
            Out::WatchProcess { name, .. } => {
                if !self.machines[&node].services.presence(&name).running {
                    self.tell_exited(node, name, 1_000);
                }
            }
            Out::Sweep(name) => {
                self.machine(node).services.silence(&name);
                self.presence_changed(node);
                let input = Box::new(agent::In::Swept(name));
                self.after(SWEEP_US, What::ToAgent { node, boot: agent_boot, input });
            }
            Out::FailLeft => self.fail_left(node),
            Out::AddressStays { name, stays } => {
                self.oracle.address_stays(node, super::service_resource(&name), stays);
            }
            Out::Service { name, effect } => {
                let resource = super::service_resource(&name);
                let number = resource.0 as usize - 1;
                let device_ok = self.devices(number).contains(&node);
                self.note(Some(node), Part::Service, &[1, number as u64], || {
                    format!("{name}: {}", crate::service::words(&effect))
                });
                let machine = self.machine(node);
                let footing = Footing { device_ok, barred: machine.silencer.barred != Time(0) };
                self.judge_start(node, &name, &effect);
                if let Effect::Report(report) = &effect {
                    self.judge_goes_on(node, resource, report);
                }
                let machine = self.machine(node);
                let (delay, id) = machine.services.start(&name, &effect, footing);
                self.oracle.step(node, resource, &effect);
                self.presence_changed(node);
                let boot = self.machines[&node].boot;
                if let Some(delay) = delay {
                    self.after(delay, What::ServiceStep { node, boot, id });
                }
            }
        }
    }

    /// Judges a step of a start by the state that its node has applied.
    ///
    /// - H15: a service begins only where no service is left that it is apart from, where it is not
    ///   avoided, where the service is that it runs with, and while those run that it comes after.
    /// - H16: in maintenance no step begins, unless an operator has ordered it, or it is a part of
    ///   what began before.
    fn judge_start(&mut self, node: NodeId, name: &str, effect: &Effect) {
        let machine = &self.machines[&node];
        let presence = machine.services.presence(name);
        let step = match effect {
            Effect::Run { step: Step::ProbeAddress | Step::CheckReady { .. }, .. } => return,
            Effect::Run { step, .. } => *step,
            Effect::Undo { .. } | Effect::Kill { .. } => {
                self.machine(node).climbing.remove(name);
                return;
            }
            _ => return,
        };
        let complete = presence.mounted && presence.running && presence.address;
        let Some(state) = machine.agent.as_ref().map(agent::Agent::state) else { return };
        let Some(service) = state.services.get(name) else { return };
        let ordered = service.ordered == Some(service.round) || service.restart.is_some();
        let allowed = state.rests(name).is_none() || ordered;
        let begun = machine.climbing.contains(name) && !complete;
        let bent = (presence.is_silent() && step == Step::Mount).then(|| self.bent(node, name)).flatten();
        if state.maintenances().next().is_some() {
            self.trace.count("H16 steps while something is in maintenance");
        }
        // A restarted agent repeats the step whose end it has not noted. That begins nothing.
        let stands = match step {
            Step::Mount => presence.mounted,
            Step::AddAddress => presence.address,
            Step::StartProcess { .. } => presence.running,
            _ => false,
        };
        if !allowed && !begun && !stands {
            let why = format!("{node} begins a step of {name}, which is in maintenance: {step:?}");
            self.wrong("H16", why);
        } else if allowed {
            self.machine(node).climbing.insert(name.to_owned());
        }
        if let Some(why) = bent {
            self.wrong("H15", format!("{name} begins on {node}, and {why}"));
        }
    }

    /// Returns the constraint that a service breaks that begins on a node now.
    fn bent(&self, node: NodeId, name: &str) -> Option<String> {
        let machine = &self.machines[&node];
        let state = machine.agent.as_ref()?.state();
        let placement = &state.services.get(name)?.spec.placement;
        let known = |other: &&String| state.services.get(*other).is_some_and(|other| !other.deleting);
        let theirs = state
            .services
            .iter()
            .filter(|(_, of)| !of.deleting && of.spec.placement.apart.iter().any(|of| of == name));
        let mut rivals = placement.apart.iter().filter(known).chain(theirs.map(|(other, _)| other));
        if let Some(rival) = rivals.find(|rival| !machine.services.presence(rival).is_silent()) {
            return Some(format!("{rival} is there, which it is to be apart from"));
        }
        let primary = |other: &String| {
            state.resource_of(state.services.get(other)?).and_then(|resource| resource.record.primary)
        };
        if let Some(with) = placement.with.as_ref().filter(|with| primary(with) != Some(node)) {
            return Some(format!("{with} is not there, which it is to run with"));
        }
        if placement.avoid.contains(&state.node_name(node)) {
            return Some("it is never to run there".into());
        }
        let runs = |other: &&String| {
            let on = primary(other).and_then(|at| state.services.get(*other)?.nodes.get(&at));
            on.is_some_and(|on| on.phase == mainstay_types::ServicePhase::Running)
        };
        let missing = placement.after.iter().find(|other| !runs(other))?;
        Some(format!("{missing} does not run, which it comes after"))
    }

    /// Judges reports of an agent on its own services and on the lives of other nodes. Each must be
    /// true when the agent makes it.
    fn judge_command(&mut self, node: NodeId, command: &Command) {
        match command {
            Command::NodeDead { node: dead, generation } => {
                let known = self.state().nodes.get(dead);
                if known.is_some_and(|known| known.generation == *generation) && self.state().alive(*dead) {
                    self.oracle.declared_dead(node, *dead);
                }
            }
            Command::ServiceStatus { name, node: of, phase, .. } if *of == node && phase.is_silent() => {
                let presence = self.machines[&node].services.presence(name);
                if !presence.is_silent() {
                    self.wrong(
                        "H4",
                        format!("{node} says that {name} is {phase:?}; there is still {presence:?}"),
                    );
                }
            }
            _ => {}
        }
    }

    fn datagram(&mut self, from: NodeId, to: NodeId, message: LeaseMessage) {
        let shape = &self.plan.shape;
        let (loss, duplicate, late) = (shape.datagram_loss, shape.datagram_duplicate, shape.datagram_late);
        if !self.network.agents_open(from, to) {
            return;
        }
        if self.datagrams.permille(loss) {
            self.trace.count("F30 datagram lost");
            return;
        }
        let copies = if self.datagrams.permille(duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let mut delay = self.network.delay(from, to);
            if self.datagrams.permille(late) {
                self.trace.count("F32 datagram late");
                delay += self.datagrams.below(3_000_000);
            }
            let boot = self.machines[&to].agent_process.boot;
            let input = Box::new(agent::In::Lease { from, message: message.clone() });
            self.after(delay, What::ToAgent { node: to, boot, input });
        }
        if copies > 1 {
            self.trace.count("F31 datagram twice");
        }
    }

    // Services.

    pub(super) fn service_step(&mut self, node: NodeId, boot: u64, id: u64) {
        let machine = &self.machines[&node];
        if machine.boot != boot {
            return;
        }
        if Self::stopped(machine) {
            let again = machine.agent_process.paused_until_us;
            return self.at(again, What::ServiceStep { node, boot, id });
        }
        if let Some(probe) = self.machine(node).services.finish_probe(id) {
            let crate::service::ProbeResult { service, ticket, process, finding } = probe;
            self.note(Some(node), Part::Service, &[2, ticket], || {
                format!("{service}: process {process}: {finding:?}")
            });
            let boot = self.machines[&node].agent_process.boot;
            return self.to_agent(node, boot, agent::In::Probed { service, ticket, process, finding });
        }
        let machine = &self.machines[&node];
        let step = if self.trace.keeps_lines() { machine.services.under_way(id) } else { String::new() };
        let Some(done) = self.machine(node).services.finish(id) else { return };
        self.presence_changed(node);
        let resource = super::service_resource(&done.service);
        self.oracle.ha.answered(node, resource, done.ticket, done.result.is_ok());
        let agent_boot = self.machines[&node].agent_process.boot;
        self.note(
            Some(node),
            Part::Service,
            &[2, done.ticket, u64::from(done.result.is_ok())],
            || match &done.result {
                Ok(()) => format!("{}: {step}: done", done.service),
                Err(why) => format!("{}: {step}: failed: {why}", done.service),
            },
        );
        self.to_agent(
            node,
            agent_boot,
            agent::In::StepDone {
                service: done.service.clone(),
                ticket: done.ticket,
                result: done.result.clone(),
            },
        );
    }

    /// At once, and without the agent (R19).
    pub(super) fn silence_services(&mut self, node: NodeId, services: Vec<String>) {
        for service in services {
            self.oracle.ha.silenced(node, super::service_resource(&service));
            let machine = self.machine(node);
            let barred = machine.silencer.barred != Time(0);
            let Silenced { ended, began_late } = machine.services.silence_barred(&service, barred);
            if began_late > 0 {
                self.trace.count("R19 a process was to begin while its node was silenced");
            }
            if ended {
                self.tell_exited(node, service, 1_000);
            }
        }
        self.presence_changed(node);
    }

    /// Kills the services on the resource, because its device is about to fail. Their mounts and
    /// addresses stay.
    pub(super) fn kill_users(&mut self, node: NodeId, resource: ResourceId) {
        let service = Self::service_name(resource);
        if self.machine(node).services.kill(&service) {
            self.trace.count("R19 a service was killed before its device failed");
            self.note(Some(node), Part::Engine, &[14, resource.0], || {
                format!("{service} is killed, because its device is about to fail")
            });
            self.tell_exited(node, service, 1_000);
        }
        self.presence_changed(node);
    }

    /// H11: a device of the resource is about to fail, and no process of its service is there.
    pub(super) fn unseen(&mut self, node: NodeId, resource: ResourceId) {
        let service = Self::service_name(resource);
        if self.machines[&node].services.presence(&service).running {
            self.wrong("H11", format!("a device fails on {node}, and a process of {service} can see it"));
        }
    }

    /// Tells the agent that a process has ended. By then the process itself is gone already.
    fn tell_exited(&mut self, node: NodeId, service: String, delay_us: u64) {
        let boot = self.machines[&node].agent_process.boot;
        let input = agent::In::ProcessExited { service, process: 0, status: "killed".into() };
        self.after(delay_us, What::ToAgent { node, boot, input: Box::new(input) });
    }

    pub(super) fn process_exited(&mut self, node: NodeId, boot: u64, service: String) {
        if self.machines[&node].boot != boot {
            return;
        }
        if self.machine(node).services.exits(&service) {
            self.presence_changed(node);
            self.note(Some(node), Part::Service, &[3], || format!("{service}: its process ended by itself"));
            let agent_boot = self.machines[&node].agent_process.boot;
            let input = agent::In::ProcessExited { service, process: 0, status: "exit 1".into() };
            self.to_agent(node, agent_boot, input);
        }
    }

    /// The agent looks at the mount of a service.
    pub(super) fn mount_looked(&mut self, node: NodeId, boot: u64, service: String) {
        if self.machines[&node].boot != boot {
            return;
        }
        let Some((why, mendable)) = self.machines[&node].services.lost(&service) else { return };
        let agent_boot = self.machines[&node].agent_process.boot;
        self.to_agent(node, agent_boot, agent::In::MountLost { service, why, mendable });
    }

    /// S726: the agent tells the machine of a process whose arguments do not hold any more, until
    /// the process is started again. A later agent knows of it, because the earlier one noted it.
    pub(super) fn pages_looked(&mut self, node: NodeId, boot: u64, service: String) {
        if self.machines[&node].boot != boot {
            return;
        }
        let Some((process, why)) = self.machines[&node].services.outdated(&service) else { return };
        self.trace.count("S726 a process has arguments that do not hold any more");
        let agent_boot = self.machines[&node].agent_process.boot;
        let input = agent::In::Outdated { service: service.clone(), process, why };
        self.to_agent(node, agent_boot, input);
        self.after(WATCH_US, What::PagesLooked { node, boot, service });
    }

    /// Tells the service on the device that the device is gone.
    pub(super) fn device_lost(&mut self, node: NodeId, resource: ResourceId) {
        let service = Self::service_name(resource);
        if let Some(delay) = self.machine(node).services.device_lost(&service) {
            let boot = self.machines[&node].boot;
            self.after(delay, What::ProcessExited { node, boot, service });
        }
    }

    pub(super) fn presence_changed(&mut self, node: NodeId) {
        if self.machine(node).services.was_robbed() {
            self.wrong("H8", format!("an address that an administrator had set on {node} was taken away"));
        }
        for number in 0..self.plan.shape.resources.len() {
            if self.plan.shape.resources[number].service {
                let resource = super::resource_id(number);
                let presence = self.machines[&node].services.presence(&Self::service_name(resource));
                self.oracle.presence(node, resource, presence);
            }
        }
        while let Some(violation) = self.machine(node).services.violation() {
            self.wrong(violation.id, violation.text);
        }
    }

    // Clients.

    pub(crate) fn client(&mut self, resource: usize, op: ClientOp) {
        for node in self.asked_nodes(resource) {
            self.ask(node, resource, op);
        }
    }

    /// A request to the device on `node`. Its number names it in the trace.
    pub fn ask(&mut self, node: NodeId, resource: usize, op: ClientOp) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        let range = |volume: u16, block: u64, blocks: u64| Range {
            volume: VolumeId(volume),
            offset: block * BLOCK_BYTES,
            len: blocks * BLOCK_BYTES,
        };
        let (op, write, read) = match op {
            ClientOp::Write { volume, block, blocks } => (
                Op::Write { range: range(volume, block, blocks), payload: payload(request, blocks) },
                Some((volume, block, blocks, request)),
                None,
            ),
            ClientOp::Discard { volume, block, blocks } => {
                (Op::Discard { range: range(volume, block, blocks) }, Some((volume, block, blocks, 0)), None)
            }
            ClientOp::WriteZeroes { volume, block, blocks } => (
                Op::WriteZeroes { range: range(volume, block, blocks) },
                Some((volume, block, blocks, 0)),
                None,
            ),
            ClientOp::Read { volume, block, blocks } => {
                (Op::Read { range: range(volume, block, blocks) }, None, Some((volume, block, blocks)))
            }
            ClientOp::Flush => (Op::Flush, None, None),
        };
        let now_us = self.now_us;
        if let Some((volume, block, blocks, value)) = write {
            self.oracle.registers.invoke_write(
                request,
                now_us,
                (resource, volume),
                block..block + blocks,
                value,
            );
        }
        if let Some((volume, block, blocks)) = read {
            self.oracle.registers.invoke_read(request, now_us, (resource, volume), block..block + blocks);
        }
        let blocks = write.map(|write| write.2).or(read.map(|read| read.2)).unwrap_or(0);
        let asked = ClientRequest {
            node,
            resource,
            at_us: now_us,
            blocks,
            read: read.is_some(),
            flush: write.is_none() && read.is_none(),
            client: self.has_client(node, resource),
            op: op.clone(),
            soft: self.oracle.logs.get(&super::resource_id(resource)).and_then(LogOracle::soft_end),
        };
        self.asked.insert(request, asked);
        self.note(Some(node), Part::Client, &[1, request], || {
            format!("#{request} {}", op_words(resource, &op))
        });
        let id = super::resource_id(resource);
        // The kernel keeps what is asked of a left device, and of one that is about to be left.
        let machine = &self.machines[&node];
        if !machine.left.contains_key(&id) && machine.leaving.is_none() {
            let boot = self.machines[&node].engine_process.boot;
            self.to_engine(node, boot, EngineIn::Request { resource: id, request, op });
        }
        request
    }

    pub(super) fn complete(&mut self, request: u64, answer: DeviceAnswer, soft: Option<Index>) {
        let Some(asked) = self.asked.remove(&request) else { return };
        self.note(
            Some(asked.node),
            Part::Client,
            &[2, request, u64::from(answer.is_ok())],
            || match &answer {
                Ok(pieces) if asked.read => {
                    format!("#{request} reads {}", contents(pieces))
                }
                Ok(_) => format!("#{request} done"),
                Err(error) => format!("#{request} failed: {error}"),
            },
        );
        let now_us = self.now_us;
        let checked = match answer {
            Err(error) => {
                if is_of_device(&error) {
                    self.unseen(asked.node, super::resource_id(asked.resource));
                }
                self.refused += 1;
                if !asked.flush {
                    self.oracle.registers.unknown(request);
                }
                return;
            }
            Ok(_) if asked.flush => {
                if let Some(upto) = asked.soft {
                    self.trace.count("flush of what was in memory");
                    self.oracle.flushed(super::resource_id(asked.resource), asked.node, upto);
                }
                return;
            }
            Ok(pieces) if asked.read => {
                // The client's read was answered under the primary's lease.
                if asked.client {
                    self.trace.count("read of a client");
                } else {
                    self.oracle.read_completed(asked.node);
                }
                match values(&pieces) {
                    Some(values) if values.len() as u64 == asked.blocks => {
                        let checked = self.oracle.registers.read_done(request, now_us, &values);
                        self.found = values;
                        checked
                    }
                    Some(values) => {
                        return self.wrong(
                            "S16",
                            format!("#{request} read {} blocks instead of {}", values.len(), asked.blocks),
                        );
                    }
                    None => {
                        return self.wrong(
                            "S16",
                            format!("#{request} read a block that is torn or mixed from several"),
                        );
                    }
                }
            }
            Ok(_) => {
                self.acknowledged += 1;
                if !asked.client {
                    self.check_copies(asked.node, asked.resource);
                }
                if asked.client {
                    self.trace.count("write of a client acknowledged");
                }
                if let Some(index) = soft {
                    self.trace.count("write acknowledged from memory");
                    return self.oracle.told_of(super::resource_id(asked.resource), request, index);
                }
                self.oracle.registers.write_done(request, now_us)
            }
        };
        if let Err(violation) = checked {
            self.oracle.fail(violation);
        }
    }

    /// Checks that a primary acknowledges a write only with as many copies as are wanted. Every
    /// recorded member holds an acknowledged write (S8), so the check counts these members. It
    /// applies only to a primary that knows the newest record.
    fn check_copies(&mut self, node: NodeId, resource: usize) {
        let id = super::resource_id(resource);
        let Some(record) = self.state().resources.get(&id).map(|known| &known.record) else { return };
        let (recorded, wanted) = (record.iss.len(), record.copies_wanted());
        if wanted == 1 {
            return;
        }
        let hosted = self.machines[&node].engine.as_ref().and_then(|engine| engine.hosts.get(&id));
        let knows = |version| hosted.is_some_and(|one| one.host.replica().record_version() == version);
        let leads = record.primary == Some(node) && knows(record.version);
        self.trace.count("write acknowledged with copies wanted");
        if leads && recorded < wanted {
            let text = format!("a write is acknowledged with {recorded} copies, and {wanted} are wanted");
            self.wrong("R2", text);
        }
    }

    /// Forgets the requests whose answers were to come from this node, but for those to keep. No
    /// answer comes any more.
    pub(super) fn forget_requests(&mut self, node: NodeId, keep: impl Fn(u64, &ClientRequest) -> bool) {
        let gone = self.asked.iter().filter(|(request, asked)| asked.node == node && !keep(**request, asked));
        let gone: Vec<u64> = gone.map(|(request, _)| *request).collect();
        for request in gone {
            if let Some(asked) = self.asked.remove(&request)
                && !asked.flush
            {
                self.oracle.registers.unknown(request);
            }
        }
    }
}

const ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// Blocks that each carry the number of their write at both ends, with zeroes between.
fn payload(value: u64, blocks: u64) -> Bytes {
    let mut bytes = vec![0; (blocks * BLOCK_BYTES) as usize];
    for block in bytes.chunks_mut(BLOCK_BYTES as usize) {
        block[..8].copy_from_slice(&value.to_le_bytes());
        block[BLOCK_BYTES as usize - 8..].copy_from_slice(&value.to_le_bytes());
    }
    bytes.into()
}

/// The values that blocks hold. `None` if a block is not one that a client ever wrote.
pub(super) fn values(pieces: &[Bytes]) -> Option<Vec<u64>> {
    let mut values = Vec::new();
    for block in pieces.iter().flat_map(|piece| piece.chunks(BLOCK_BYTES as usize)) {
        values.push(value(block)?);
    }
    Some(values)
}

pub(super) fn value(block: &[u8]) -> Option<u64> {
    let first = u64::from_le_bytes(block.first_chunk().copied()?);
    let last = u64::from_le_bytes(block.last_chunk().copied()?);
    let between = block.get(8..BLOCK_BYTES as usize - 8)?;
    let whole = first == last && block.len() as u64 == BLOCK_BYTES && between == &ZEROES[..between.len()];
    whole.then_some(first)
}

/// The write that each block is from, in words.
fn contents(pieces: &[Bytes]) -> String {
    let words: Vec<String> = values(pieces)
        .unwrap_or_default()
        .into_iter()
        .map(|value| if value == 0 { "zeroes".into() } else { format!("#{value}") })
        .collect();
    if words.len() > 1 && words.iter().all(|word| word == &words[0]) {
        return format!("{} times {}", words.len(), words[0]);
    }
    words.join(" ")
}

fn op_words(resource: usize, op: &Op) -> String {
    let place = |range: &Range| {
        format!("r{resource}/{} {}", range.volume, words::blocks(range.first_block(), range.end_block()))
    };
    match op {
        Op::Write { range, .. } => format!("write {}", place(range)),
        Op::Read { range } => format!("read {}", place(range)),
        Op::Discard { range } => format!("discard {}", place(range)),
        Op::WriteZeroes { range } => format!("write zeroes {}", place(range)),
        Op::Flush => format!("flush r{resource}"),
        Op::Resize { volume, bytes } => {
            format!("make r{resource}/{volume} {} blocks large", bytes / BLOCK_BYTES)
        }
        Op::Snapshot { id } => format!("take {id} of r{resource}"),
        Op::DropSnapshot { id } => format!("drop {id} of r{resource}"),
        Op::Rollback { to, mark } => format!("roll r{resource} back to {to}, as {mark}"),
    }
}
