//! The jobs of agents, step by step: the work of engines and file systems on the files of replicas,
//! with the time that it takes.
//!
//! A step that was begun may finish although its agent has ended, as a system call may. A label is
//! written and removed together with the answer. So a run can meet the crash before that and the
//! crash after it.

use super::{JobStep, What, World, shape_of};
use crate::agent::{self, StepError};
use crate::disk::{Sizes, SnapshotFiles};
use crate::engine::{EngineIn, RESERVE_BYTES};
use crate::plan::ResourceShape;
use crate::trace::Part;
use crate::words;
use mainstay_control::origin::{CONTENT, SnapshotOf};
use mainstay_control::reconciler::job::{Step, StepAnswer};
use mainstay_control::snapshots::Keep;
use mainstay_replica::ReplicaConfig;
use mainstay_store::{Store, StoreConfig, Tuning};
use mainstay_types::{BLOCK_BYTES, Incarnation, Index, Instance, JOURNAL_WRITES_MAX, NodeId, ResourceId};

impl World {
    pub(super) fn start_step(&mut self, step: JobStep) {
        let JobStep { node, engine_boot, resource, number, .. } = step;
        if let Some((number, words)) = step_words(&Self::resource_name(resource), &step.step) {
            self.note(Some(node), Part::Agent, &[4, resource.0, number], || words);
        }
        match step.step {
            Step::MakeFiles(..) | Step::Open => {
                let machine = self.machine(node);
                if matches!(step.step, Step::MakeFiles(..)) {
                    machine.making.insert(resource);
                } else if machine.engine.is_some() && machine.engine_process.boot == engine_boot {
                    machine.being_opened.entry(resource).or_default().opens += 1;
                }
                // One thread of the engine makes and opens replicas, in the order of the requests.
                let delay = 2_000 + self.chance.below(60_000);
                let at_us = delay + self.now_us.max(self.machines[&node].lifecycle_busy_us);
                self.machine(node).lifecycle_busy_us = at_us;
                self.at(at_us, What::JobStep(step));
            }
            Step::RemoveFiles | Step::WriteLabel(_) | Step::RemoveLabel => {
                let delay = 100 + self.files.below(20_000);
                self.after(delay, What::JobStep(step));
            }
            Step::Look => self.after(100, What::JobStep(step)),
            Step::Attach(record) => {
                self.instances += 1;
                let (record, instance) = (Box::new(record), Instance(self.instances));
                let input = EngineIn::AttachClient { resource, number, record, instance };
                self.socket_to_engine(node, engine_boot, input);
            }
            // When a replica is still being opened, the close waits for that. An earlier agent may
            // have asked for the opening. Seed 2558422.
            Step::Close if self.machines[&node].being_opened.contains_key(&resource) => {
                self.trace.count("R9 a replica is closed that is still being opened");
                self.machine(node).being_opened.entry(resource).or_default().closes.push(number);
            }
            Step::Close
            | Step::Tell(_)
            | Step::Detach
            | Step::Demote
            | Step::Grow(_)
            | Step::Scrub(_)
            | Step::Snapshots(_) => {
                if let Step::Snapshots(Keep { to: Some(_), .. }) = &step.step {
                    self.oracle.ask_back(resource);
                }
                let input = EngineIn::Step { resource, number, step: step.step };
                self.socket_to_engine(node, engine_boot, input);
            }
        }
    }

    pub(super) fn job_step(&mut self, step: JobStep) {
        let JobStep { node, engine_boot, agent_boot, resource, number, .. } = step;
        let machine = &self.machines[&node];
        let by_engine = matches!(step.step, Step::MakeFiles(..) | Step::Open);
        let (ended, paused_until_us) = if by_engine {
            let process = &machine.engine_process;
            (process.boot != engine_boot || machine.engine.is_none(), process.paused_until_us)
        } else {
            let process = &machine.agent_process;
            (process.boot != agent_boot || machine.agent.is_none(), process.paused_until_us)
        };
        // An agent that waits for an engine learns by itself that the engine has ended.
        if ended {
            return;
        }
        // A process that stands still neither makes nor opens anything: it would open the same disk
        // twice.
        if paused_until_us > 0 {
            let again_us = paused_until_us.max(self.now_us) + 1;
            return self.at(again_us, What::JobStep(step));
        }
        let result = match step.step {
            Step::MakeFiles(incarnation, of) => {
                let asks = machine.agent_process.boot == agent_boot && machine.agent.is_some();
                self.machine(node).making.remove(&resource);
                // The engine removes files that no agent waits for any more. An agent that has
                // started again does not know of them.
                if !asks {
                    return;
                }
                if self.machine(node).put_back.remove(&resource) {
                    Ok(StepAnswer::Holds(self.machines[&node].formatted[&resource]))
                } else if self.is_missed(node, resource) {
                    Err(StepError::Unusable("its directory is gone from the pool".into()))
                } else {
                    let made = self.make_files(node, resource, incarnation, of);
                    made.map(|()| StepAnswer::Done).map_err(StepError::NotDone)
                }
            }
            Step::Open => self.open(node, engine_boot, resource).map(StepAnswer::Opened),
            // Only half-made files are removed, and there are none here.
            Step::RemoveFiles if machine.put_back.contains(&resource) => Ok(StepAnswer::Done),
            Step::RemoveFiles => {
                self.remove_files(node, resource);
                Ok(StepAnswer::Done)
            }
            Step::Look if machine.moved.contains(&resource) => {
                self.machine(node).set_aside(resource);
                Ok(StepAnswer::Gone)
            }
            Step::Look if !machine.disks.contains_key(&resource) => Ok(StepAnswer::Gone),
            _ => Ok(StepAnswer::Done),
        };
        if let Err(StepError::NotDone(reason) | StepError::Unusable(reason)) = &result {
            let (reason, opens) = (reason.clone(), matches!(step.step, Step::Open));
            self.note(Some(node), Part::Engine, &[7, resource.0], || {
                let what = if opens { "open" } else { "create" };
                format!("{what} of {} failed: {reason}", Self::resource_name(resource))
            });
        }
        let opened = matches!(step.step, Step::Open);
        self.socket_to_agent(node, agent_boot, agent::In::StepAnswered { resource, number, result });
        if opened {
            self.close_after_opening(node, engine_boot, resource);
        }
    }

    fn close_after_opening(&mut self, node: NodeId, engine_boot: u64, resource: ResourceId) {
        let machine = self.machine(node);
        let Some(waiting) = machine.being_opened.get_mut(&resource) else { return };
        waiting.opens -= 1;
        if waiting.opens > 0 {
            return;
        }
        let closes = machine.being_opened.remove(&resource).map(|waiting| waiting.closes);
        for number in closes.unwrap_or_default() {
            self.socket_to_engine(node, engine_boot, EngineIn::Step { resource, number, step: Step::Close });
        }
    }

    fn remove_files(&mut self, node: NodeId, resource: ResourceId) {
        self.check_dropped(node, resource);
        let machine = self.machine(node);
        machine.disks.remove(&resource);
        machine.formatted.remove(&resource);
        machine.broken.remove(&resource);
    }

    /// R11: files that are removed belong to no member of the in-sync set.
    fn check_dropped(&mut self, node: NodeId, resource: ResourceId) {
        let record = self.state().resources.get(&resource).filter(|known| !known.deleting);
        let member = record.and_then(|known| known.record.iss_member(node));
        let dropped = self.machines[&node].formatted.get(&resource);
        if let Some(member) = member
            && dropped == Some(&member.incarnation)
        {
            let text = format!(
                "{node} removes the files of {}, of which it is a member in sync",
                words::resource(resource)
            );
            self.wrong("R11", text);
        }
    }

    /// The engine of `node` ends: a replica that it was making stays half made.
    pub(super) fn leave_half_made(&mut self, node: NodeId) {
        for resource in std::mem::take(&mut self.machine(node).making) {
            let sizes = sizes_of(&self.store_config(node, resource, Incarnation(0)));
            let disk = crate::disk::Disk::new(crate::random::Random::new(0), &sizes);
            self.machine(node).disks.entry(resource).or_insert(disk);
        }
    }

    pub(super) fn make_files(
        &mut self,
        node: NodeId,
        resource: ResourceId,
        incarnation: Incarnation,
        of: Option<SnapshotOf>,
    ) -> Result<(), String> {
        let content = of.map(|of| self.content(node, resource, of)).transpose()?;
        // The origin in the control plane's state counts, whether or not the node knows it.
        let known = self.state().resources.get(&resource).and_then(|known| known.origin.as_ref());
        if let Some(of) = known.map(|origin| origin.of).or(of) {
            self.oracle.made_of(resource, of.resource, of.snapshot);
        }
        let mut config = self.store_config(node, resource, incarnation);
        if let Some(known) = self.state().resources.get(&resource) {
            known.first_sizes().clone_into(&mut config.volumes);
        }
        let stream = self.sessions.next();
        let mut disk = crate::disk::Disk::new(crate::random::Random::new(stream), &sizes_of(&config));
        let held = content.map(|files| {
            disk.adopt(CONTENT, files);
            CONTENT
        });
        Store::format_holding(&mut disk.media(), &config, held.as_slice())
            .map_err(|error| error.to_string())?;
        let machine = self.machine(node);
        if machine.disks.contains_key(&resource) {
            return match machine.formatted.get(&resource) {
                Some(found) if *found == incarnation => Ok(()),
                _ => Err("the directory holds another replica".into()),
            };
        }
        machine.disks.insert(resource, disk);
        machine.formatted.insert(resource, incarnation);
        machine.broken.remove(&resource);
        Ok(())
    }

    /// The files of a snapshot, for a replica of another resource.
    fn content(
        &mut self,
        node: NodeId,
        resource: ResourceId,
        of: SnapshotOf,
    ) -> Result<SnapshotFiles, String> {
        let source = self.machines[&node].disks.get(&of.resource);
        let files = source.and_then(|disk| disk.snapshot_files(of.snapshot));
        let files = files.ok_or("the snapshot that it is made of is not there")?;
        self.trace.count("F57 a replica is made of a snapshot");
        let rotted = self.rotted.iter().filter(|(found, ..)| *found == of.resource);
        let rotted: Vec<_> = rotted.map(|(_, volume, block)| (resource, *volume, *block)).collect();
        self.rotted.extend(rotted);
        Ok(files)
    }

    fn store_config(&self, node: NodeId, resource: ResourceId, incarnation: Incarnation) -> StoreConfig {
        let shape = shape_of(&self.plan, resource);
        StoreConfig {
            resource,
            incarnation,
            volumes: shape.volumes.iter().map(|blocks| blocks * BLOCK_BYTES).collect(),
            journal_bytes: shape.journal_blocks * BLOCK_BYTES,
            sums: self.sums.get(&resource).is_none_or(|of| of.on(node)),
        }
    }

    fn open(&mut self, node: NodeId, boot: u64, resource: ResourceId) -> Result<Incarnation, StepError> {
        let shape = shape_of(&self.plan, resource).clone();
        let tuning = Tuning {
            // A page or two, so that some must be read again.
            sums_bytes_max: 2 * BLOCK_BYTES,
            destage_start_bytes: shape.destage_start_blocks * BLOCK_BYTES,
            // One resource in three, those of stories among them, destages everything in one pass.
            // The others destage a third or a fifth of the journal.
            pass_parts: 1 + 2 * ((shape.journal_blocks + 2) % 3),
            pass_bytes_min: 0,
            memory_bytes_max: shape.memory_blocks * BLOCK_BYTES,
            write_bytes_max: 16 * BLOCK_BYTES,
            // As shipped, but for one resource in four.
            journal_writes_max: if shape.journal_blocks % 4 == 1 { 1 } else { JOURNAL_WRITES_MAX },
            destage_write_bytes_max: 4 * BLOCK_BYTES,
            destage_writes_max: 4,
            destage_bunch: 2,
            destage_bytes_max: 1 << 20,
            installs_max: 2,
            runs_max: 64,
            hole_bytes_min: 2 * BLOCK_BYTES,
            reserve_bytes: RESERVE_BYTES,
            // Two blocks, but for one resource in four.
            fill_bytes_min: if shape.journal_blocks % 4 == 2 { u64::MAX } else { 2 * BLOCK_BYTES },
            batch_bytes_max: (request_blocks(&shape) + 1) * BLOCK_BYTES,
        };
        let machine = self.machines.get_mut(&node).expect("known node");
        if let Some(hosted) = machine.engine.as_ref().and_then(|engine| engine.hosts.get(&resource)) {
            if hosted.closes() {
                return Err(StepError::NotDone("the replica is being closed".into()));
            }
            return Ok(hosted.host.store().config().incarnation);
        }
        let Some(disk) = machine.disks.get_mut(&resource) else {
            return Err(StepError::NotDone("there is no such replica".into()));
        };
        let formatted = machine.formatted.get(&resource);
        let held = machine.held.get(&resource).filter(|(incarnation, _)| formatted == Some(incarnation));
        let held = held.map_or(Index(0), |(_, index)| *index);
        let store = match Store::recover_known(&mut disk.media(), tuning, held) {
            Ok(mut store) => {
                machine.broken.remove(&resource);
                for lost in disk.sweep_snapshots(&store.snapshots_on_disk().collect()) {
                    store.snapshot_lost(lost);
                }
                store
            }
            Err(error) => {
                let source =
                    std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
                let reason = format!("{error}{source}");
                machine.broken.insert(resource, reason.clone());
                let damaged = machine.damaged.contains_key(&resource);
                self.trace.count("R12 a replica refused to open");
                self.count_stale(node, resource);
                if !damaged {
                    self.wrong(
                        "S4",
                        format!("{node} does not open {resource}, whose disk is well: {reason}"),
                    );
                }
                return Err(StepError::Unusable(reason));
            }
        };
        self.count_stale(node, resource);
        let log = store.log_state();
        let log_incarnation = store.config().incarnation;
        self.note(Some(node), Part::Engine, &[8, resource.0, log.end.index.0, log.commit.0], || {
            format!(
                "{} is open: its log ends at {}, committed up to {}, {}",
                Self::resource_name(resource),
                log.end,
                log.commit,
                words::data(log.data)
            )
        });
        self.oracle.recovered(resource, node, store.config().incarnation, &log, store.promised());
        self.instances += 1;
        let instance = Instance(self.instances);
        self.oracle.opened(resource, node, log_incarnation, instance);
        let mut config = ReplicaConfig::new(resource, node, log_incarnation, store.config().volumes.clone());
        config.instance = instance;
        config.window_bytes = shape.window_blocks * BLOCK_BYTES;
        config.join_lag_bytes = 16 * BLOCK_BYTES;
        config.copy_extents_max = 2;
        // The largest batch must fit into the half of the journal that destaging always frees.
        config.request_bytes_max = request_blocks(&shape) * BLOCK_BYTES;
        let (store, config, incarnation) = (Box::new(store), Box::new(config), log_incarnation);
        self.to_engine(node, boot, EngineIn::Opened { resource, store, config });
        self.inspect(node, resource, false);
        Ok(incarnation)
    }
}

fn sizes_of(config: &StoreConfig) -> Sizes {
    let meta = Store::meta_bytes(config);
    Sizes { meta, journal: config.journal_bytes, volumes: config.volumes.clone() }
}

/// Most blocks that clients may have in flight: the largest batch must find room in half of the
/// journal.
fn request_blocks(shape: &ResourceShape) -> u64 {
    (shape.journal_blocks / 4).max(2)
}

/// Returns the step of an agent or its engine in words, with its number in the trace. `None` for
/// steps that the trace does not show.
fn step_words(resource: &str, step: &Step) -> Option<(u64, String)> {
    Some(match step {
        Step::MakeFiles(_, None) => (1, format!("has an empty replica of {resource} made")),
        Step::MakeFiles(_, Some(of)) => {
            (14, format!("has a replica of {resource} made of {} of r{}", of.snapshot, of.resource.0 - 1))
        }
        Step::Open => (2, format!("has {resource} opened")),
        Step::Close => (3, format!("has the replica of {resource} closed, to remove it")),
        Step::Tell(record) => (4, format!("tells {resource} its record {}", record.version)),
        Step::Grow(_) => (9, format!("tells {resource} to make volumes larger")),
        Step::Snapshots(wanted) => {
            let names: Vec<_> = wanted.snapshots.iter().map(ToString::to_string).collect();
            let back = wanted.to.map(|to| format!(" and to go back to {to}")).unwrap_or_default();
            (10, format!("tells {resource} to have the snapshots {}{back}", names.join(" ")))
        }
        Step::Scrub(_) => (13, format!("tells {resource} to compare its replicas")),
        Step::Attach(record) => (11, format!("tells its client of {resource} the record {}", record.version)),
        Step::Detach => (12, format!("has its client of {resource} closed")),
        Step::Demote => (5, format!("tells {resource} to stop being primary")),
        Step::RemoveLabel => (6, format!("removes the label of its replica of {resource}")),
        Step::RemoveFiles => (7, format!("removes what is there of the files of {resource}")),
        Step::WriteLabel(_) => (8, format!("labels its replica of {resource}")),
        Step::Look => return None,
    })
}
