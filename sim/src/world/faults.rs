//! Faults of the plan, carried out on the cluster.
//!
//! Budget: in a survivable plan damage to a disk is done only while another whole replica is in
//! sync and undamaged. Damage that no cluster could survive is left out, and counted as such. See
//! `budget.rs` for the faults that a plan may hold at all.

use super::{Machine, What, World, resource_id};
use crate::budget::{Harm, harm};
use crate::disk::{Place, Record};
use crate::plan::{Action, DiskFault, Fault, ServiceFault, Target};
use crate::service::WATCH_US;
use crate::trace::Part;
use crate::words;
use mainstay_codec::Superblock;
use mainstay_control::labels::{self, Found, Label, directory_name};
use mainstay_store::{Area, SUPERBLOCK_COPIES};
use mainstay_types::{DataState, Incarnation, Index, NodeId, ResourceId};
use std::collections::BTreeMap;

/// Incarnation that the files of another replica name.
const OTHER: Incarnation = Incarnation(u64::MAX);

impl World {
    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Client { resource, op } => {
                if resource < self.plan.shape.resources.len() && !self.quiet {
                    self.client(resource, op);
                }
            }
            // Faults have stopped.
            Action::Fault(_) if self.healed => {}
            Action::Fault(fault) => self.fault(fault),
            Action::Operator(operator) => self.operator(operator),
        }
    }

    /// Returns the node that the target means at this moment, `None` if there is none.
    #[must_use]
    pub fn node_of(&self, target: Target) -> Option<NodeId> {
        match target {
            Target::Node(node) => self.machines.contains_key(&node).then_some(node),
            Target::Primary(n) => self.state().resources.get(&resource_id(n))?.record.primary,
            Target::Secondary(n, pick) => {
                let record = &self.state().resources.get(&resource_id(n))?.record;
                let others: Vec<NodeId> = record
                    .replicas
                    .iter()
                    .map(|member| member.node)
                    .filter(|node| Some(*node) != record.primary)
                    .collect();
                others.get(pick as usize % others.len().max(1)).copied()
            }
            Target::Leader => self.consensus.leader(),
        }
    }

    fn both(&self, a: Target, b: Target) -> Option<(NodeId, NodeId)> {
        let pair = (self.node_of(a)?, self.node_of(b)?);
        (pair.0 != pair.1).then_some(pair)
    }

    /// Does it now.
    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::PowerCut(target) => {
                if let Some(node) = self.node_of(target) {
                    self.power_cut(node);
                }
            }
            Fault::PowerOn(target) => {
                if let Some(node) = self.node_of(target) {
                    self.power_on(node);
                }
            }
            Fault::PowerCutAll => {
                for node in self.all_nodes() {
                    self.power_cut(node);
                }
            }
            Fault::PowerOnAll => {
                for node in self.all_nodes() {
                    self.power_on(node);
                }
            }
            Fault::KillEngine { target, restart_after_ms } => {
                if let Some(node) = self.node_of(target) {
                    self.kill_engine(node);
                    self.after(restart_after_ms * 1000, What::StartEngine { node });
                }
            }
            Fault::ReplaceEngine { target, gap_ms } => {
                if let Some(node) = self.node_of(target) {
                    self.replace_engine(node, gap_ms);
                }
            }
            Fault::KillAgent { target, restart_after_ms } => {
                if let Some(node) = self.node_of(target) {
                    self.kill_agent(node);
                    self.after(restart_after_ms * 1000, What::StartAgent { node });
                }
            }
            Fault::PauseMachine { target, ms } => {
                if let Some(node) = self.node_of(target) {
                    self.pause_engine(node, ms);
                    self.pause_agent(node, ms);
                }
            }
            Fault::PauseEngine { target, ms } => {
                if let Some(node) = self.node_of(target) {
                    self.pause_engine(node, ms);
                }
            }
            Fault::PauseAgent { target, ms } => {
                if let Some(node) = self.node_of(target) {
                    self.pause_agent(node, ms);
                }
            }
            Fault::StepClock { target, by_ms } => {
                if let Some(node) = self.node_of(target) {
                    self.trace.count("F42 wall clock steps");
                    // The size of the step is shown, and is not part of the hash.
                    self.note(Some(node), Part::Fault, &[6], || crate::prose::fault(&fault));
                    self.consensus.step_wall(node, by_ms);
                }
            }
            Fault::Disk { target, resource, fault } => {
                if let Some(node) = self.node_of(target)
                    && resource < self.plan.shape.resources.len()
                {
                    self.disk_fault(node, resource_id(resource), fault);
                }
            }
            Fault::LeaderChange => {
                self.trace.count("F46 leader change");
                self.note(None, Part::Fault, &[20], || "the control plane's leader is deposed".into());
                let links = super::Links { machines: &self.machines, network: &self.network };
                self.consensus.leader_change(self.now_us, &links);
                self.deliver_consensus();
            }
            Fault::LoseProposals => {
                self.trace.count("F47 proposals lost");
                self.note(None, Part::Fault, &[21], || {
                    "proposals on their way are lost, or their answers".into()
                });
                self.consensus.lose_proposals();
                self.deliver_consensus();
            }
            Fault::Snapshot(target) => {
                if let Some(node) = self.node_of(target) {
                    self.consensus.snapshot(node);
                }
            }
            Fault::Service { target, resource, fault } => {
                if let Some(node) = self.node_of(target) {
                    self.service_fault(node, resource_id(resource), fault);
                }
            }
            Fault::Trap { resource, moment, skip, deed } => {
                self.set_trap(resource_id(resource), moment, skip, deed)
            }
            fault => self.network_fault(fault),
        }
    }

    pub(super) fn all_nodes(&self) -> Vec<NodeId> {
        self.machines.keys().copied().collect()
    }

    fn network_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(a, b) => {
                if let Some((a, b)) = self.both(a, b) {
                    self.trace.count("F33 cut");
                    self.note(None, Part::Fault, &[10, u64::from(a.0), u64::from(b.0)], || {
                        format!("{a} and {b} are cut off from each other")
                    });
                    self.cut(a, b, true, true);
                    self.cut(b, a, true, true);
                }
            }
            Fault::CutAgents(a, b) => {
                if let Some((a, b)) = self.both(a, b) {
                    self.trace.count("F33 agents cut");
                    self.note(None, Part::Fault, &[11, u64::from(a.0), u64::from(b.0)], || {
                        format!("agents of {a} and {b} are cut off")
                    });
                    self.cut(a, b, true, false);
                    self.cut(b, a, true, false);
                }
            }
            Fault::CutEngines(a, b) => {
                if let Some((a, b)) = self.both(a, b) {
                    self.trace.count("F33 engines cut");
                    self.note(None, Part::Fault, &[12, u64::from(a.0), u64::from(b.0)], || {
                        format!("engines of {a} and {b} are cut off")
                    });
                    self.cut(a, b, false, true);
                    self.cut(b, a, false, true);
                }
            }
            Fault::CutOneWay(a, b) => {
                if let Some((a, b)) = self.both(a, b) {
                    self.trace.count("F34 cut one way");
                    self.note(None, Part::Fault, &[13, u64::from(a.0), u64::from(b.0)], || {
                        format!("nothing of {a} reaches {b}")
                    });
                    self.cut(a, b, true, true);
                }
            }
            Fault::Isolate(target) => {
                if let Some(node) = self.node_of(target) {
                    self.isolate(node);
                }
            }
            Fault::Partition(sides) => {
                self.trace.count("F33 partition");
                self.note(None, Part::Fault, &[15, sides], || crate::prose::fault(&Fault::Partition(sides)));
                let side = |node: NodeId| sides >> (node.0 - 1) & 1;
                for a in self.all_nodes() {
                    for b in self.all_nodes() {
                        if side(a) != side(b) {
                            self.cut(a, b, true, true);
                        }
                    }
                }
            }
            Fault::Heal => {
                self.note(None, Part::Fault, &[16], || "the network is whole".into());
                self.heal_network();
                self.links_changed();
            }
            Fault::SlowLink { a, b, factor } => {
                if let Some((a, b)) = self.both(a, b) {
                    self.trace.count("F36 slow link");
                    self.note(None, Part::Fault, &[17, u64::from(a.0), u64::from(b.0), factor], || {
                        format!("{a} to {b} takes {factor} times as long")
                    });
                    self.network.slow(a, b, factor);
                }
            }
            Fault::NarrowLink { a, b, kib_per_s } => {
                if let Some((a, b)) = self.both(a, b) {
                    self.trace.count("F36 narrow link");
                    self.note(None, Part::Fault, &[19, u64::from(a.0), u64::from(b.0), kib_per_s], || {
                        format!("{kib_per_s} KiB a second go through between {a} and {b}")
                    });
                    self.network.narrow(a, b, kib_per_s * 1024);
                }
            }
            Fault::Reset(a, b) => {
                if let Some(pair) = self.both(a, b) {
                    self.trace.count("F38 connection reset");
                    self.note(None, Part::Fault, &[18, u64::from(pair.0.0), u64::from(pair.1.0)], || {
                        format!("connection {} to {} breaks", pair.0, pair.1)
                    });
                    self.close(pair, crate::network::End::Initiator);
                }
            }
            Fault::CorruptFrame(a, b) => {
                if let Some(pair) = self.both(a, b) {
                    self.trace.count("F37 frame corrupted");
                    // Any frame, one with payload, or one with a copied extent.
                    let bytes = [0, 8 << 10, 256 << 10][self.chance.below(3) as usize];
                    self.network.corrupt_next.insert(pair, bytes);
                }
            }
            _ => {}
        }
    }

    pub(super) fn isolate(&mut self, node: NodeId) {
        self.trace.count("F33 isolated");
        self.note(Some(node), Part::Fault, &[14], || "is isolated".into());
        for other in self.all_nodes() {
            if other != node {
                self.cut(node, other, true, true);
                self.cut(other, node, true, true);
            }
        }
    }

    fn cut(&mut self, from: NodeId, to: NodeId, agents: bool, engines: bool) {
        if agents {
            self.network.cut_agents(from, to);
            self.links_changed();
        }
        if engines {
            self.cut_engines(from, to);
        }
    }

    /// Whether the resource survives the loss of the replica on `node`: another member is whole.
    fn survivable(&self, node: NodeId, resource: ResourceId) -> bool {
        let Some(known) = self.state().resources.get(&resource) else { return false };
        known.record.iss.iter().any(|member| {
            let machine = &self.machines[&member.node];
            member.node != node
                && machine.disks.contains_key(&resource)
                && !machine.damaged.contains_key(&resource)
        }) && known.record.epoch.0 > 0
    }

    pub(super) fn disk_fault(&mut self, node: NodeId, resource: ResourceId, fault: DiskFault) {
        match fault {
            DiskFault::Slow { factor } => {
                self.trace.count("F14 slow disk");
                self.note(Some(node), Part::Fault, &[30, resource.0, factor], || {
                    format!("disk of {} is {factor} times slower", words::resource(resource))
                });
                self.machine(node).paces.entry(resource).or_default().factor = factor.max(1);
                return;
            }
            DiskFault::Stall { ms } => {
                self.trace.count("F14 stalled disk");
                self.note(Some(node), Part::Fault, &[31, resource.0, ms], || {
                    format!("disk of {} stalls for {ms} ms", words::resource(resource))
                });
                let until = self.now_us + ms * 1000;
                self.machine(node).paces.entry(resource).or_default().stalled_until_us = until;
                return;
            }
            DiskFault::Late { what, ms } => {
                self.trace.count("F14 late operation");
                self.note(Some(node), Part::Fault, &[34, resource.0, ms], || {
                    format!("disk of {}: {}", words::resource(resource), crate::prose::disk_fault(fault))
                });
                self.machine(node).late.push((resource, what, ms));
                return;
            }
            _ => {}
        }
        let copy = matches!(fault, DiskFault::RotSuperblock { .. } | DiskFault::LostSuperblock { .. });
        let harmless = copy || fault == DiskFault::KeepImage;
        if !harmless && !self.plan.unsurvivable && !self.survivable(node, resource) {
            self.trace.count("left out: no cluster could survive it");
            return;
        }
        match fault {
            DiskFault::Replace => return self.replace_disk(node, resource),
            DiskFault::Remove => return self.operator_removes_files(node, resource),
            DiskFault::OtherFiles => return self.put_other_files(node, resource),
            DiskFault::Copied => return self.operator_copies_a_file(node, resource),
            _ => {}
        }
        let (placements, newest) = self.journal_placements(node, resource);
        let checkpoint = self.checkpoint(node, resource);
        let machine = self.machine(node);
        let Some(disk) = machine.disks.get_mut(&resource) else { return };
        let live = |record: &Record| record.last > checkpoint;
        let done = match fault {
            // Only a record with a successor: a replica cannot tell damage to the last one from a
            // crash.
            DiskFault::RotJournal { pick } => {
                disk.rot_record(pick, |record| placements.contains(&(record.offset, record.len)), live)
            }
            DiskFault::LostRecord { pick } => disk.lose_record(pick, &placements, live),
            DiskFault::MisdirectedRecord { pick } => disk.misdirect_record(pick, &placements, &newest, live),
            DiskFault::StaleRecord { pick } => disk.stale_record(pick, &placements, live),
            fault => disk.inject(fault),
        };
        let rotten =
            disk.damaged_blocks().map(|(volume, block)| (resource, volume, block)).collect::<Vec<_>>();
        self.rotted.extend(rotten);
        if !done {
            return;
        }
        if !harmless {
            self.damaged(node, resource, harm(fault) == Harm::Lie);
        }
        if matches!(fault, DiskFault::RotVolume { .. } | DiskFault::LostBlock { .. })
            && let Some(log) = self.oracle.logs.get_mut(&resource)
        {
            log.rotten();
        }
        let (name, text) = disk_words(fault);
        self.trace.count(name);
        self.note(Some(node), Part::Fault, &[32, resource.0], || {
            format!("disk of {}: {text}", words::resource(resource))
        });
    }

    /// Counts stale reads when they happen: those of blocks that are written first do not.
    pub(super) fn count_stale(&mut self, node: NodeId, resource: ResourceId) {
        let Some(disk) = self.machine(node).disks.get_mut(&resource) else { return };
        for fault in disk.fired() {
            self.trace.count(match fault {
                DiskFault::StaleRecord { .. } => "F4 stale journal read",
                DiskFault::StaleVersions { .. } => "F4 stale version table read",
                _ => continue,
            });
            self.note(Some(node), Part::Fault, &[37, resource.0], || {
                format!("disk of {}: a read was stale", words::resource(resource))
            });
        }
    }

    fn damaged(&mut self, node: NodeId, resource: ResourceId, lies: bool) {
        let incarnation = self.machines[&node].formatted.get(&resource).copied();
        if let Some(incarnation) = incarnation {
            self.machine(node).damaged.insert(resource, incarnation);
            self.oracle.damaged(resource, node, incarnation, lies);
        }
    }

    /// Places in the journal of the batches that a later durable record calls durable, and places
    /// of the others.
    fn journal_placements(&self, node: NodeId, resource: ResourceId) -> (Vec<Place>, Vec<Place>) {
        let Some(engine) = &self.machines[&node].engine else { return Default::default() };
        engine.hosts.get(&resource).map(|hosted| hosted.in_journal()).unwrap_or_default()
    }

    /// Returns the entry up to which the journal was trimmed.
    fn checkpoint(&self, node: NodeId, resource: ResourceId) -> Index {
        let copies =
            self.machines[&node].disks.get(&resource).into_iter().flat_map(|disk| {
                (0..SUPERBLOCK_COPIES as u64).filter_map(|copy| disk.peek(Area::Meta, copy))
            });
        let superblocks = copies.filter_map(|bytes| Superblock::decode(bytes).ok());
        superblocks.map(|superblock| superblock.checkpoint.at.index).max().unwrap_or_default()
    }

    /// R9: the machine is stopped, gets an empty disk for this resource, and is started again.
    pub(super) fn replace_disk(&mut self, node: NodeId, resource: ResourceId) {
        self.trace.count("R9 disk replaced");
        self.note(Some(node), Part::Fault, &[33, resource.0], || {
            format!("disk of {} is replaced by an empty one", words::resource(resource))
        });
        self.damaged(node, resource, false);
        self.power_cut(node);
        self.lose_files(node, resource);
        self.after(50_000, What::PowerOn { node });
    }

    /// An operator removes the files of a replica that cannot be used, as its remedy says. The
    /// agent finds out by itself.
    fn operator_removes_files(&mut self, node: NodeId, resource: ResourceId) {
        let machine = &self.machines[&node];
        // An operator can do nothing on a machine that stands still, and there must be files to
        // remove.
        if !machine.powered || Self::stopped(machine) || !machine.disks.contains_key(&resource) {
            return;
        }
        self.trace.count("R9 files removed");
        self.note(Some(node), Part::Fault, &[35, resource.0], || {
            format!("the files of {} are removed by an operator", words::resource(resource))
        });
        self.damaged(node, resource, false);
        if has_open(&self.machines[&node], resource) {
            self.kill_engine(node);
            self.after(50_000, What::StartEngine { node });
        }
        self.lose_files(node, resource);
    }

    /// The agent sees that the engine has files open that are no longer in their place.
    fn operator_copies_a_file(&mut self, node: NodeId, resource: ResourceId) {
        let machine = self.machine(node);
        let open = machine.powered && !Self::stopped(machine) && has_open(machine, resource);
        let Some(agent) = machine.agent.as_mut().filter(|_| open) else { return };
        agent.set_replaced(resource, true);
        self.trace.count("R9 file replaced by a copy");
        self.note(Some(node), Part::Fault, &[38, resource.0], || {
            format!("a file of {} is replaced by a copy of it", words::resource(resource))
        });
    }

    fn put_other_files(&mut self, node: NodeId, resource: ResourceId) {
        self.trace.count("F15 files of another replica");
        self.note(Some(node), Part::Fault, &[36, resource.0], || {
            format!("the files of {} are exchanged for those of another replica", words::resource(resource))
        });
        self.damaged(node, resource, false);
        self.kill_engine(node);
        self.after(50_000, What::StartEngine { node });
        self.lose_content(node, resource);
        self.make_files(node, resource, OTHER, None).expect("there is room, and nothing in its place");
    }

    /// The files of a replica are gone, and its label with them.
    fn lose_files(&mut self, node: NodeId, resource: ResourceId) {
        self.lose_content(node, resource);
        let machine = self.machine(node);
        match &mut machine.agent {
            Some(agent) => agent.files_lost(resource),
            None => machine.durable.files_lost(resource),
        }
    }

    fn lose_content(&mut self, node: NodeId, resource: ResourceId) {
        let machine = self.machine(node);
        machine.disks.remove(&resource);
        machine.formatted.remove(&resource);
        machine.paces.remove(&resource);
        machine.late.retain(|(of, ..)| *of != resource);
        machine.broken.remove(&resource);
        self.oracle.wiped(resource, node);
    }

    fn service_fault(&mut self, node: NodeId, resource: ResourceId, fault: ServiceFault) {
        if fault == ServiceFault::KeepAddress && self.overlaps_without_guard(node, resource) {
            self.trace.count("left out: no cluster could survive it");
            return;
        }
        let name = Self::service_name(resource);
        let (count, text) = match fault {
            ServiceFault::IgnoreStop => {
                ("F59 service ignores the stop signal", "will ignore the stop signal")
            }
            ServiceFault::Hang => ("F60 step hangs", "its next step hangs"),
            ServiceFault::FailStart => ("F62 service fails to start", "fails to start"),
            ServiceFault::KeepAddress => ("F63 address cannot be removed", "its address stays once"),
            ServiceFault::Dies => ("F65 process dies", "its process dies"),
            ServiceFault::LateInterface => {
                ("interface late", "has its address on an interface that came late")
            }
            ServiceFault::AddressByHand => ("address set by hand", "finds its address set by hand"),
            ServiceFault::Unmounted => ("file system unmounted", "its file system is unmounted"),
            ServiceFault::Replaced => ("foreign mount", "another file system is mounted in its place"),
            ServiceFault::StandsStill => ("process stands still", "has a process that stands still"),
            ServiceFault::FailProbe => ("probe fails once", "fails its next probe"),
            ServiceFault::Recovers => ("process recovers", "has a process that recovers from a crash"),
            ServiceFault::PagesTear => ("pages can tear", "has files whose pages can tear"),
            ServiceFault::Well => ("service well again", "is well again"),
        };
        self.trace.count(count);
        self.note(Some(node), Part::Fault, &[40, resource.0], || format!("{name} {text}"));
        self.machine(node).services.inject(&name, fault);
        self.presence_changed(node);
        let boot = self.machines[&node].boot;
        match fault {
            ServiceFault::Dies => self.process_exited(node, boot, name),
            ServiceFault::Unmounted | ServiceFault::Replaced => {
                self.after(WATCH_US, What::MountLooked { node, boot, service: name });
            }
            ServiceFault::PagesTear => self.pages_looked(node, boot, name),
            _ => {}
        }
    }

    /// Whether another node may take over while an address is still on this node. This is so when
    /// the node's engine is not there, and with it the guard.
    fn overlaps_without_guard(&self, node: NodeId, resource: ResourceId) -> bool {
        let state = self.state();
        let replicas = state.resources.get(&resource).map(|known| known.record.replicas.as_slice());
        let others = replicas.unwrap_or_default().iter().any(|member| member.node != node);
        others && self.machines[&node].engine.is_none()
    }
}

impl World {
    /// An operator copies the directory of a replica in the pool, while it is in use.
    ///
    /// # Panics
    /// When there is none.
    pub fn copy_directory(&mut self, node: NodeId, resource: ResourceId) {
        self.note(Some(node), Part::Fault, &[38, resource.0], || {
            format!("the directory of {} is copied", words::resource(resource))
        });
        let machine = self.machine(node);
        machine.disks.get_mut(&resource).expect("a replica").keep_image();
        machine.copied.insert(resource);
    }

    /// The file is gone in which a node keeps the last entries of its replicas.
    pub fn forget_held(&mut self, node: NodeId) {
        self.machine(node).held.clear();
    }

    /// An operator puts such a copy in the place of the replica, while the node is off.
    ///
    /// # Panics
    /// When there is none.
    pub fn put_copy_back(&mut self, node: NodeId, resource: ResourceId) {
        self.note(Some(node), Part::Fault, &[39, resource.0], || {
            format!("a copy of {} is put in its place", words::resource(resource))
        });
        // If its node has no such note, the replica is believed for a while.
        let lies = !self.machines[&node].held.contains_key(&resource);
        self.damaged(node, resource, lies);
        let machine = self.machine(node);
        assert!(!machine.powered && machine.copied.remove(&resource), "a copy, and a node that is off");
        machine.disks.get_mut(&resource).expect("a replica").restore_image();
    }
}

impl Machine {
    /// Finds the directories of the pool that the agent takes for replicas.
    pub(super) fn find_replicas(&mut self) {
        let label = |resource: ResourceId, incarnation: Incarnation| {
            Found::Label(Label { resource, name: "r".into(), incarnation })
        };
        let own = |resource| directory_name(resource, "r");
        let mut found = Vec::new();
        for (&resource, &incarnation) in self.durable.stored() {
            found.push((own(resource), label(resource, incarnation)));
            if self.copied.contains(&resource) {
                found.push((own(resource) + "-copy", label(resource, incarnation)));
            }
        }
        for (resource, (directory, _)) in labels::sort(found, &BTreeMap::new()).replicas {
            if directory != own(resource)
                && let Some(disk) = self.disks.get_mut(&resource)
            {
                disk.restore_image();
            }
        }
    }

    /// Notes the entries that the replicas of the engine hold, when the engine ends.
    pub(super) fn note_held(&mut self) {
        for (&resource, hosted) in self.engine.iter().flat_map(|engine| &engine.hosts) {
            let (store, log) = (hosted.host.store(), hosted.host.store().log_state());
            if log.data != DataState::Consistent || hosted.host.failed().is_some() {
                continue;
            }
            let incarnation = store.config().incarnation;
            let index = log.commit.min(log.end.index);
            let held = self.held.entry(resource).or_insert((incarnation, index));
            if held.0 != incarnation {
                *held = (incarnation, index);
            }
            held.1 = held.1.max(index);
        }
    }
}

fn has_open(machine: &Machine, resource: ResourceId) -> bool {
    machine.engine.as_ref().is_some_and(|engine| engine.hosts.contains_key(&resource))
}

fn disk_words(fault: DiskFault) -> (&'static str, &'static str) {
    match fault {
        DiskFault::Slow { .. } | DiskFault::Stall { .. } | DiskFault::Late { .. } => {
            ("F14 slow disk", "slow")
        }
        DiskFault::ReadOnly => ("F11 disk full or read-only", "every write fails"),
        DiskFault::Full => ("F11 pool full", "new blocks of volumes find no space"),
        DiskFault::Room => ("F11 pool has space again", "has space again"),
        DiskFault::WriteError => ("F7 write error", "the next write fails"),
        DiskFault::FlushError => ("F8 flush error", "the next flush fails"),
        DiskFault::ReadError => ("F6 read error", "the next read fails"),
        DiskFault::Vanish => ("F12 disk gone", "gone"),
        DiskFault::RotSuperblock { .. } => {
            ("F16 superblock copy damaged", "one copy of the superblock is damaged")
        }
        DiskFault::RotSuperblocks => ("F16 superblocks damaged", "all copies of the superblock are damaged"),
        DiskFault::RotJournal { .. } => ("F5 journal rot", "a bit of the journal flips"),
        DiskFault::RotVersions { .. } => ("F5 version table rot", "a bit of the version table flips"),
        DiskFault::LostRecord { .. } => {
            ("F2 lost journal write", "a record of the journal was never written")
        }
        DiskFault::MisdirectedRecord { .. } => {
            ("F3 misdirected journal write", "a record of the journal has landed elsewhere in it")
        }
        DiskFault::StaleRecord { .. } => {
            ("stale journal read waits", "the next read of a record of the journal is stale")
        }
        DiskFault::LostVersions { .. } => {
            ("F2 lost version table write", "a page of the version table was never written")
        }
        DiskFault::MisdirectedVersions { .. } => {
            ("F3 misdirected version table write", "a page of the version table has landed on another")
        }
        DiskFault::StaleVersions { .. } => {
            ("stale version table read waits", "the next read of a page of the version table is stale")
        }
        DiskFault::LostSuperblock { .. } => {
            ("F2 lost superblock copy", "the last write of one copy of the superblock was lost")
        }
        DiskFault::LostBlock { .. } => ("F2 lost volume write", "a block of a volume was never written"),
        DiskFault::RotVolume { .. } => ("F5 volume rot", "a bit of a volume flips"),
        DiskFault::LostWrite => ("F2 lost write", "the next write is lost"),
        DiskFault::Misdirect => ("F3 misdirected write", "the next write lands elsewhere"),
        DiskFault::StaleRead => ("F4 stale read", "the next read is stale"),
        DiskFault::LyingFlush => ("F9 lying flush", "flushes are lies"),
        DiskFault::KeepImage => ("F15 image kept", "an image is kept"),
        DiskFault::OldImage => ("F15 old image", "an older image is put back"),
        DiskFault::Replace => ("R9 disk replaced", "replaced"),
        DiskFault::Remove => ("R9 files removed", "removed"),
        DiskFault::OtherFiles => ("F15 files of another replica", "exchanged"),
        DiskFault::Copied => ("R9 file replaced by a copy", "replaced by a copy"),
    }
}
