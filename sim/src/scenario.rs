//! Stories about a cluster, told in a few lines. Every step runs until its expectation is true, and
//! panics with the expectation that failed.
//!
//! ```
//! use mainstay_sim::scenario::Scenario;
//! let mut sim = Scenario::three();
//! sim.write(7);
//! sim.power_cut(1);
//! sim.expect_primary_within_ms(2, 8_000);
//! sim.write(7);
//! sim.settle();
//! ```

mod moments;

use crate::plan::{Action, Away, ClientOp, DiskFault, Fault, Operator};
use crate::plan::{Plan, ResourceShape, Rests, ServiceFault, Shape, Target, Tie};
use crate::world::{World, resource_id};
use mainstay_control::state::Command;
use mainstay_replica::PeerStatus;
use mainstay_types::{
    BLOCK_BYTES, BackgroundLimits, Mode, NodeId, PeerState, ResourceId, ResourceRecord, ServicePhase,
    SlowLimits,
};
use std::collections::BTreeSet;

/// See the top of this file. Nodes are numbers from 1; the resource is number 0 unless said
/// otherwise.
pub struct Scenario {
    pub world: World,
}

impl Shape {
    /// `nodes` nodes with one resource on the first `replicas` of them, a service on top if asked
    /// for.
    #[must_use]
    pub fn small(nodes: u32, replicas: u32, service: bool) -> Self {
        Self {
            nodes,
            resources: vec![ResourceShape {
                replicas: (1..=replicas).collect(),
                volumes: vec![1024, 512],
                grown: vec![1024, 512],
                journal_blocks: 64,
                service,
                destage_start_blocks: 8,
                memory_blocks: 16,
                window_blocks: 32,
                // Stories about a node that is gone are not about a member that is slow.
                slow: SlowLimits {
                    ack_ms: 0,
                    quiet_ms: 3_000,
                    quiet_max_ms: 12_000,
                    ..SlowLimits::default()
                },
                background: BackgroundLimits::default(),
                late: false,
                origin: None,
                moves: false,
                modes: false,
            }],
            clock_ppm: vec![0; nodes as usize],
            lease_ms: 2000,
            heartbeat_ms: 200,
            margin_ms: 50,
            latency_us: 200,
            disk_us: 300,
            datagram_loss: 0,
            datagram_duplicate: 0,
            datagram_late: 0,
            proposal_loss: 0,
            away: Away::default(),
            devices_stay: false,
        }
    }
}

/// The node with this number.
#[must_use]
pub fn n(node: u32) -> Target {
    Target::Node(NodeId(node))
}

impl Scenario {
    /// Runs until the resource is served for the first time, by a primary whose in-sync set has all
    /// replicas.
    ///
    /// # Panics
    /// When it is not within 20 simulated seconds.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let plan = Plan { seed, shape, steps: Vec::new(), heal_at_ms: 0, unsurvivable: false };
        let mut scenario = Self { world: World::new(plan, true) };
        scenario.world.show_messages();
        scenario.until("the resource is served", 20_000, |world| {
            !world.devices(0).is_empty() && iss(world).len() == world.plan.shape.resources[0].replicas.len()
        });
        scenario
    }

    #[must_use]
    pub fn three() -> Self {
        Self::new(Shape::small(3, 3, false), 1)
    }

    /// Two replicas and a witness.
    #[must_use]
    pub fn two_and_a_witness() -> Self {
        Self::new(Shape::small(3, 2, false), 1)
    }

    /// Three replicas with a service on top, which runs.
    #[must_use]
    pub fn with_service() -> Self {
        let mut scenario = Self::new(Shape::small(3, 3, true), 1);
        let [primary, ..] = scenario.cast();
        scenario.expect_service_on_within_ms(primary, 10_000);
        scenario
    }

    /// Three replicas whose journals have so few blocks.
    #[must_use]
    pub fn small_journal(blocks: u64, seed: u64) -> Self {
        let mut shape = Shape::small(3, 3, false);
        shape.resources[0].journal_blocks = blocks;
        Self::new(shape, seed)
    }

    /// The same, and nothing is destaged before it has to be.
    #[must_use]
    pub fn lazy_journal(blocks: u64, seed: u64) -> Self {
        let mut shape = Shape::small(3, 3, false);
        shape.resources[0].journal_blocks = blocks;
        shape.resources[0].destage_start_blocks = 2 * blocks;
        Self::new(shape, seed)
    }

    /// Returns the numbers of three nodes of the story: first the primary, then the other replicas,
    /// then nodes without a replica.
    ///
    /// # Panics
    /// When there is no primary, or there are less than three nodes.
    #[must_use]
    pub fn cast(&self) -> [u32; 3] {
        let primary = self.primary().expect("a node is primary");
        let replicas = &self.world.plan.shape.resources[0].replicas;
        let mut nodes: Vec<u32> = (1..=self.world.plan.shape.nodes).collect();
        nodes.sort_by_key(|node| (*node != primary, !replicas.contains(node), *node));
        let [primary, second, third, ..] = nodes[..] else { panic!("three nodes: {nodes:?}") };
        [primary, second, third]
    }

    /// Runs until `condition` holds, which is asked after every event.
    ///
    /// # Panics
    /// When it does not within `ms`, or when an oracle finds something wrong; the trace's end is in
    /// the message.
    pub fn until(&mut self, what: &str, ms: u64, condition: impl Fn(&World) -> bool) {
        let end = self.world.now_us() + ms * 1000;
        while !condition(&self.world) {
            let more = self.world.step(end);
            self.check();
            if !more {
                self.fail(&format!("not within {ms} ms: {what}"));
            }
        }
    }

    fn check(&self) {
        if let Some(violation) = self.world.violation() {
            self.fail(&format!("{}: {}", violation.id, violation.text));
        }
    }

    fn fail(&self, what: &str) -> ! {
        let lines = self.world.trace().lines();
        let tail: Vec<String> = lines[lines.len().saturating_sub(40)..]
            .iter()
            .map(|line| {
                let node = line.node.map_or_else(|| "-".to_owned(), |node| node.to_string());
                format!("{:>10.3} {node:>3} {}", line.at_us as f64 / 1e3, line.text)
            })
            .collect();
        panic!("{what}\n{}", tail.join("\n"));
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.run_us(ms * 1000);
    }

    pub fn run_us(&mut self, us: u64) {
        self.world.run_until(self.world.now_us() + us);
        self.check();
    }

    /// Writes a block through the device and waits for the acknowledgement.
    pub fn write(&mut self, block: u64) {
        self.write_blocks(block, 1);
    }

    /// The same with several blocks in one request.
    pub fn write_blocks(&mut self, block: u64, blocks: u64) {
        self.until("there is a device", 15_000, |world| !world.devices(0).is_empty());
        let before = self.world.acknowledged();
        self.client(ClientOp::Write { volume: 0, block, blocks });
        self.until("the write is acknowledged", 15_000, |world| world.acknowledged() > before);
    }

    /// Writes `count` blocks one after the other, each acknowledged before the next. They may be
    /// more than a journal holds.
    pub fn write_many(&mut self, count: u64) {
        for block in 0..count {
            self.write(block);
        }
    }

    /// Writes through the device of this node, whether or not other nodes still have one.
    pub fn write_at(&mut self, node: u32, block: u64) {
        let before = self.world.acknowledged();
        self.world.ask(NodeId(node), 0, ClientOp::Write { volume: 0, block, blocks: 1 });
        self.until("the write is acknowledged", 15_000, |world| world.acknowledged() > before);
    }

    pub fn write_without_waiting(&mut self, block: u64) {
        self.client(ClientOp::Write { volume: 0, block, blocks: 1 });
    }

    /// Sends a flush and does not wait for its answer. The oracle judges the answer and its time.
    pub fn flush_without_waiting(&mut self) {
        self.client(ClientOp::Flush);
    }

    /// Reads a block. The read must succeed, and the oracle judges its content.
    pub fn read(&mut self, block: u64) {
        self.read_volume(0, block);
    }

    /// The same of any volume. Returns the number of the write that the block is from, 0 if there
    /// was none.
    pub fn read_volume(&mut self, volume: u16, block: u64) -> u64 {
        self.until("there is a device", 15_000, |world| !world.devices(0).is_empty());
        let refused = self.world.refused;
        self.client(ClientOp::Read { volume, block, blocks: 1 });
        self.until("the read is answered", 15_000, |world| world.asked.values().all(|asked| !asked.read));
        assert_eq!(self.world.refused, refused, "the read is answered with data");
        self.world.found[0]
    }

    pub fn client(&mut self, op: ClientOp) {
        self.world.client(0, op);
    }

    /// Expects that no write is acknowledged for this time.
    pub fn expect_no_acknowledgement_for_ms(&mut self, ms: u64) {
        let before = self.world.acknowledged();
        self.run_ms(ms);
        if self.world.acknowledged() > before {
            self.fail(&format!("a write is acknowledged within {ms} ms"));
        }
    }

    pub fn expect_acknowledged_within_ms(&mut self, ms: u64) {
        self.until("every request is answered", ms, |world| world.asked.is_empty());
    }

    /// Requests without an answer.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.world.asked.len()
    }

    /// Expects that no node has a device for this time.
    pub fn expect_no_device_for_ms(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.run_ms(20);
            if let Some(node) = self.world.devices(0).first() {
                self.fail(&format!("{node} serves, and no node should"));
            }
        }
    }

    /// Waits until there is no device anywhere.
    pub fn expect_no_device_within_ms(&mut self, ms: u64) {
        self.until("no node serves", ms, |world| world.devices(0).is_empty());
    }

    /// Does what a plan could do.
    pub fn fault(&mut self, fault: Fault) {
        self.world.fault(fault);
        self.check();
    }

    pub fn power_cut(&mut self, node: u32) {
        self.fault(Fault::PowerCut(n(node)));
    }

    pub fn power_on(&mut self, node: u32) {
        self.fault(Fault::PowerOn(n(node)));
    }

    pub fn cut(&mut self, a: u32, b: u32) {
        self.fault(Fault::Cut(n(a), n(b)));
    }

    pub fn isolate(&mut self, node: u32) {
        self.fault(Fault::Isolate(n(node)));
    }

    pub fn heal(&mut self) {
        self.fault(Fault::Heal);
    }

    pub fn kill_engine(&mut self, node: u32) {
        self.fault(Fault::KillEngine { target: n(node), restart_after_ms: 100 });
    }

    pub fn kill_agent(&mut self, node: u32) {
        self.fault(Fault::KillAgent { target: n(node), restart_after_ms: 100 });
    }

    pub fn pause_machine(&mut self, node: u32, ms: u64) {
        self.fault(Fault::PauseMachine { target: n(node), ms });
    }

    pub fn disk(&mut self, node: u32, fault: DiskFault) {
        self.fault(Fault::Disk { target: n(node), resource: 0, fault });
    }

    /// Faults of disks may concern all replicas from here on.
    pub fn spare_no_disk(&mut self) {
        self.world.plan.unsurvivable = true;
    }

    /// An operator copies the directory of the replica in the pool.
    pub fn copy_directory(&mut self, node: u32) {
        self.world.copy_directory(NodeId(node), resource_id(0));
    }

    /// The node has lost what it knew of its replicas beside their directories.
    pub fn forget_held(&mut self, node: u32) {
        self.world.forget_held(NodeId(node));
    }

    /// An operator puts that copy in the place of the replica. The node is off.
    pub fn put_copy_back(&mut self, node: u32) {
        self.world.put_copy_back(NodeId(node), resource_id(0));
    }

    /// An operator moves the directory of the replica out of the pool, whether an engine has it
    /// open or not.
    pub fn move_directory(&mut self, node: u32) {
        self.world.move_directory(NodeId(node), resource_id(0));
    }

    /// An operator puts that directory back, unless something else is in its place.
    pub fn put_directory_back(&mut self, node: u32) {
        self.world.put_directory_back(NodeId(node), resource_id(0));
    }

    pub fn service(&mut self, node: u32, fault: ServiceFault) {
        self.fault(Fault::Service { target: n(node), resource: 0, fault });
    }

    /// The operator wants the primary of a resource without a service on this node.
    pub fn move_primary(&mut self, to: u32) {
        self.move_service(to);
    }

    /// The operator wants the service on this node.
    pub fn move_service(&mut self, to: u32) {
        let replicas = &self.world.plan.shape.resources[0].replicas;
        let pick = replicas.iter().position(|node| *node == to).expect("it has a replica") as u64;
        self.world.act(Action::Operator(Operator::Move { resource: 0, pick }));
    }

    /// The operator attaches the resource to this node, which has no replica. Waits until its
    /// device is there.
    pub fn attach(&mut self, node: u32) {
        self.attach_for(node, 60_000);
    }

    /// Like [`Self::attach`]; requests wait for `wait_ms` at most.
    pub fn attach_for(&mut self, node: u32, wait_ms: u64) {
        self.attach_or_take(node, wait_ms, false);
    }

    /// Like [`Self::attach`], also when the resource is attached to another node.
    pub fn take_over(&mut self, node: u32) {
        self.attach_or_take(node, 60_000, true);
    }

    fn attach_or_take(&mut self, node: u32, wait_ms: u64, take_over: bool) {
        let node = NodeId(node);
        // The agent that was asked may be cut off from the others.
        for _ in 0..20 {
            self.ask(Command::AttachResource { resource: ResourceId(1), node, wait_ms, take_over });
            self.run_ms(20);
        }
        self.until("the client has a device", 10_000, |world| world.devices(0).contains(&node));
    }

    /// The operator wants the devices on the primary again.
    pub fn detach(&mut self) {
        for _ in 0..20 {
            self.ask(Command::DetachResource { resource: ResourceId(1) });
            self.run_ms(20);
        }
        self.until("the primary has the device", 10_000, |world| {
            record(world).primary.is_some_and(|primary| world.devices(0).contains(&primary))
        });
    }

    /// Which nodes have devices.
    ///
    /// # Panics
    /// When it is others.
    pub fn expect_devices(&self, nodes: &[u32]) {
        let nodes: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
        assert_eq!(self.world.devices(0), nodes);
    }

    /// Returns the session of the node that the resource is attached to; 0 if it is attached to
    /// none.
    #[must_use]
    pub fn session(&self) -> u64 {
        record(&self.world).attached.map_or(0, |attached| attached.session.0)
    }

    /// The operator wants a replica on this node too.
    pub fn add_replica(&mut self, node: u32) {
        self.ask(Command::AddReplica { resource: ResourceId(1), node: NodeId(node) });
    }

    /// The operator wants a volume to have this many blocks.
    pub fn grow(&mut self, volume: u16, blocks: u64) {
        self.world.plan.shape.resources[0].grown[usize::from(volume)] = blocks;
        self.world.act(Action::Operator(Operator::Grow { resource: 0, volume, blocks }));
    }

    /// The operator wants no replica on this node.
    pub fn remove_replica(&mut self, node: u32) {
        self.ask(Command::RemoveReplica { resource: ResourceId(1), node: NodeId(node) });
    }

    /// The operator wants the replica of one node on another one.
    pub fn move_replica(&mut self, from: u32, to: u32) {
        self.ask(Command::MoveReplica { resource: ResourceId(1), from: NodeId(from), to: NodeId(to) });
    }

    /// The operator wants mode A, with a lag of at most this many blocks and milliseconds.
    pub fn mode_a(&mut self, blocks: u64, ms: u64) {
        self.set_mode_a(blocks, ms, false);
    }

    /// The same, and a follower is to take over by itself.
    pub fn mode_a_with_takeover(&mut self, blocks: u64, ms: u64) {
        self.set_mode_a(blocks, ms, true);
    }

    fn set_mode_a(&mut self, blocks: u64, ms: u64, takeover: bool) {
        self.world.act(Action::Operator(Operator::SetMode { resource: 0, a: Some((blocks, ms, takeover)) }));
        self.until("mode A", 5_000, |world| record(world).policy.mode() == Mode::A);
    }

    /// The operator wants mode B. Waits until the memory of all that are in sync counts.
    pub fn mode_b(&mut self) {
        self.world.act(Action::Operator(Operator::ModeB { resource: 0 }));
        self.until("mode B", 5_000, |world| {
            let record = record(world);
            record.policy.mode() == Mode::B && record.instances.len() == record.iss.len()
        });
    }

    pub fn mode_c(&mut self) {
        self.world.act(Action::Operator(Operator::SetMode { resource: 0, a: None }));
        self.until("mode C", 5_000, |world| record(world).policy.mode() == Mode::C);
    }

    /// The operator wants this many copies. With fewer, requests wait for `suspend_ms`.
    pub fn want_copies(&mut self, copies: u32, suspend_ms: u64) {
        self.world.act(Action::Operator(Operator::MinCopies { resource: 0, copies, suspend_ms }));
        self.until("copies are wanted", 5_000, |world| record(world).policy.min_copies.copies == copies);
    }

    /// The operator goes on without the entries that only dead nodes have, from the first replica
    /// that can be promoted.
    pub fn force(&mut self) {
        self.world.act(Action::Operator(Operator::Force { resource: 0, pick: 0 }));
    }

    /// Returns the first and the last entry that the last forced promotion lost, as the control
    /// plane states them. `None` if it states no loss.
    #[must_use]
    pub fn stated_loss(&self) -> Option<(u64, u64)> {
        let loss = self.world.state().resources[&ResourceId(1)].forced.as_ref()?.loss?;
        Some((loss.after.index.0 + 1, loss.until.index.0))
    }

    /// Returns the report of a node that it has made its replica, with the record as it is now.
    ///
    /// # Panics
    /// When the node has no replica.
    #[must_use]
    pub fn report_of(&self, node: u32) -> Command {
        let record = &self.world.state().resources[&ResourceId(1)].record;
        let member = record.replica(NodeId(node)).expect("it has a replica");
        Command::ReplicaReady {
            resource: record.resource,
            version: record.version,
            node: member.node,
            incarnation: member.incarnation,
        }
    }

    /// A command that was proposed long ago is decided now.
    pub fn arrives_late(&mut self, command: Command) {
        self.ask(command);
    }

    /// Until exactly these nodes hold a replica, all in sync, and no other has files of one.
    ///
    /// # Panics
    /// When it takes longer.
    pub fn expect_replicas_within_ms(&mut self, nodes: &[u32], ms: u64) {
        let wanted: Vec<NodeId> = nodes.iter().copied().map(NodeId).collect();
        self.until(&format!("the replicas are on {nodes:?}"), ms, |world| {
            let known = &world.state().resources[&ResourceId(1)];
            let in_sync: Vec<NodeId> = known.record.iss.iter().map(|member| member.node).collect();
            let stored: Vec<NodeId> = world.holders(ResourceId(1));
            (&known.spec.replicas, &in_sync, &stored) == (&wanted, &wanted, &wanted)
        });
    }

    fn ask(&mut self, command: Command) {
        self.world.submit(command);
    }

    /// The operator removes a node, and does not give up until the control plane has it.
    ///
    /// # Panics
    /// When it is not removed within 10 s.
    pub fn remove_node(&mut self, node: u32) {
        let is_removed = |sim: &Self| sim.world.state().is_removed(NodeId(node));
        for _ in 0..50 {
            self.ask(Command::RemoveNode { node: NodeId(node), lost: BTreeSet::new() });
            self.run_ms(200);
            if is_removed(self) {
                return;
            }
        }
        panic!(
            "n{node} is not removed: {:?}",
            self.world.state().cannot_remove(NodeId(node), &BTreeSet::new())
        );
    }

    /// Waits until the control plane counts the node as dead.
    pub fn until_dead(&mut self, node: u32) {
        self.until(&format!("n{node} counts as dead"), 10_000, |world| !world.state().alive(NodeId(node)));
    }

    /// Expects that the agent of this node holds no lease from now on, for so long.
    ///
    /// # Panics
    /// When it holds one.
    pub fn expect_no_lease_for_ms(&mut self, node: u32, ms: u64) {
        for _ in 0..ms / 100 {
            self.run_ms(100);
            let machine = &self.world.machines[&NodeId(node)];
            let until =
                machine.agent.as_ref().map_or(0, |agent| machine.clock.true_time(agent.lease_until()));
            assert!(until <= self.world.now_us(), "n{node} holds a lease");
        }
    }

    /// Returns the node that leads the control plane.
    #[must_use]
    pub fn leader(&self) -> Option<u32> {
        self.world.node_of(Target::Leader).map(|node| node.0)
    }

    /// The operator deletes the service.
    pub fn delete_service(&mut self) {
        self.world.act(Action::Operator(Operator::DeleteService { resource: 0 }));
    }

    /// The operator stops the service, starts it, or restarts it where it runs.
    pub fn stop_service(&mut self) {
        self.world.act(Action::Operator(Operator::StopService { resource: 0 }));
    }

    /// The operator begins a maintenance without an end.
    pub fn maintain(&mut self, rests: Rests) {
        self.world.act(Action::Operator(Operator::Maintain { resource: 0, rests, for_ms: 0 }));
        self.until("something is in maintenance", 5000, |world| {
            world.state().maintenances().next().is_some()
        });
    }

    pub fn end_maintenance(&mut self) {
        self.world.act(Action::Operator(Operator::EndMaintenance { resource: 0 }));
    }

    /// The operator ties the service of one resource to that of another one.
    pub fn tie(&mut self, resource: usize, other: usize, tie: Tie) {
        self.world.act(Action::Operator(Operator::Tie { resource, other, tie }));
    }

    pub fn start_service(&mut self) {
        self.world.act(Action::Operator(Operator::StartService { resource: 0 }));
    }

    pub fn restart_service(&mut self) {
        self.world.act(Action::Operator(Operator::RestartService { resource: 0, last: false }));
    }

    pub fn expect_service_deleted_within_ms(&mut self, ms: u64) {
        self.until("the service is deleted", ms, |world| world.state().services.is_empty());
    }

    /// Keeps a replica away for longer than a journal reaches back, and lets it return: it has to
    /// be copied.
    pub fn leave_far_behind(&mut self, node: u32) {
        self.power_cut(node);
        for block in 0..80 {
            self.write(block * 13 % 1024);
        }
        self.power_on(node);
    }

    /// Waits until extents are being copied to this replica.
    pub fn expect_copy_within_ms(&mut self, node: u32, ms: u64) {
        self.until(&format!("n{node} is being copied to"), ms, |world| {
            peer(world, node).and_then(|peer| peer.copied).is_some_and(|(done, total)| done < total)
        });
    }

    /// Waits until the primary sees a replica like this.
    pub fn until_peer(&mut self, node: u32, ms: u64, condition: impl Fn(&PeerState) -> bool) {
        self.until(&format!("n{node} has got so far"), ms, |world| {
            peer(world, node).is_some_and(|peer| condition(&peer.state))
        });
    }

    pub fn until_iss_changes(&mut self, ms: u64) {
        let before = self.iss();
        self.until("the in-sync set changes", ms, |world| iss(world) != before);
    }

    pub fn until_epoch(&mut self, epoch: u64, ms: u64) {
        self.until(&format!("epoch {epoch} begins"), ms, |world| record(world).epoch.0 >= epoch);
    }

    /// Waits until another node is primary.
    pub fn until_primary_is_not(&mut self, node: u32, ms: u64) {
        self.until(&format!("another node than n{node} is primary"), ms, |world| {
            record(world).primary.is_some_and(|primary| primary != NodeId(node))
        });
    }

    pub fn until_count(&mut self, name: &str, count: u64, ms: u64) {
        self.until(&format!("{count} times: {name}"), ms, |world| {
            world.trace().counters().get(name).is_some_and(|found| *found >= count)
        });
    }

    /// Number of times that a fault was injected or an event was seen, under the names of the
    /// counters page.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.world.trace().counters().get(name).copied().unwrap_or(0)
    }

    /// Something like this is in the trace, which tells events and messages.
    pub fn expect_seen(&self, text: &str) {
        if !self.world.trace().lines().iter().any(|line| line.text.contains(text)) {
            self.fail(&format!("nowhere in the trace: {text}"));
        }
    }

    /// Expects that no line of the trace contains this text.
    pub fn expect_not_seen(&self, text: &str) {
        if let Some(line) = self.world.trace().lines().iter().find(|line| line.text.contains(text)) {
            self.fail(&format!("this should not have happened: {}", line.text));
        }
    }

    /// Waits until the journal of this node takes no entry but an epoch start.
    pub fn until_journal_is_full(&mut self, node: u32, ms: u64) {
        self.until(&format!("the journal of n{node} is full"), ms, |world| {
            let engine = world.machines[&NodeId(node)].engine.as_ref();
            let hosted = engine.and_then(|engine| engine.hosts.get(&resource_id(0)));
            hosted.is_some_and(|hosted| hosted.host.store().room() < 2 * BLOCK_BYTES)
        });
    }

    /// Deposes leaders of the control plane until this node leads it.
    pub fn make_leader(&mut self, node: u32) {
        self.until("a node leads the control plane", 5_000, |world| world.node_of(Target::Leader).is_some());
        while self.world.node_of(Target::Leader) != Some(NodeId(node)) {
            self.fault(Fault::LeaderChange);
        }
        self.run_ms(200);
    }

    #[must_use]
    pub fn epoch(&self) -> u64 {
        record(&self.world).epoch.0
    }

    /// Returns the reason that the control plane gives an operator for the lack of a primary.
    /// `None` if it gives none.
    #[must_use]
    pub fn stated_failure(&self) -> Option<String> {
        self.world.state().resources[&resource_id(0)].failure.clone()
    }

    #[must_use]
    pub fn primary(&self) -> Option<u32> {
        record(&self.world).primary.map(|node| node.0)
    }

    #[must_use]
    pub fn iss(&self) -> Vec<u32> {
        iss(&self.world)
    }

    /// Waits until `node` is primary and its device exists.
    pub fn expect_primary_within_ms(&mut self, node: u32, ms: u64) {
        self.until(&format!("n{node} serves"), ms, |world| world.devices(0) == [NodeId(node)]);
    }

    /// Waits until the in-sync set is this.
    pub fn expect_iss_within_ms(&mut self, nodes: &[u32], ms: u64) {
        let want = nodes.to_vec();
        self.until(&format!("the in-sync set is {want:?}"), ms, |world| iss(world) == want);
    }

    /// Waits until the service is complete on `node`: process, address, and the control plane
    /// knows.
    pub fn expect_service_on_within_ms(&mut self, node: u32, ms: u64) {
        self.until(&format!("the service runs on n{node}"), ms, |world| {
            let presence = world.machines[&NodeId(node)].services.presence("s0");
            let told = world.state().services["s0"].nodes.get(&NodeId(node));
            let stands = world.machines[&NodeId(node)].services.stands("s0");
            let runs = presence.running && presence.address && stands;
            runs && told.is_some_and(|on| on.phase == ServicePhase::Running)
        });
    }

    /// Whether a process of the service runs on `node` with arguments that do not hold any more.
    #[must_use]
    pub fn is_outdated(&self, node: u32) -> bool {
        self.world.machines[&NodeId(node)].services.outdated("s0").is_some()
    }

    /// Waits until nothing of the service is left on `node`.
    pub fn expect_service_gone_within_ms(&mut self, node: u32, ms: u64) {
        self.until(&format!("nothing of the service is left on n{node}"), ms, |world| {
            world.machines[&NodeId(node)].services.presence("s0").is_silent()
        });
    }

    /// Heals everything and waits until the cluster is whole; then all replicas must be equal and
    /// every acknowledged write must be there.
    pub fn settle(&mut self) {
        self.world.settle();
        self.check();
    }
}

fn record(world: &World) -> &ResourceRecord {
    &world.state().resources[&resource_id(0)].record
}

fn iss(world: &World) -> Vec<u32> {
    record(world).iss.iter().map(|member| member.node.0).collect()
}

fn peer(world: &World, node: u32) -> Option<PeerStatus> {
    let primary = record(world).primary?;
    let hosted = world.machines[&primary].engine.as_ref()?.hosts.get(&resource_id(0))?;
    let status = hosted.host.replica().status();
    status.peers.into_iter().find(|peer| peer.member.node == NodeId(node))
}
