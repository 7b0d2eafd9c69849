//! Reports of the world and the engines, passed on to the oracles that judge them. The first
//! violation stays.

use super::{Oracle, Violation};
use crate::service::Presence;
use mainstay_codec::{Envelope, LogState, Message};
use mainstay_control::state::Forced;
use mainstay_ha::Effect as ServiceEffect;
use mainstay_host::{CoreMessage, Host};
use mainstay_replica::{Effect, ScrubReport};
use mainstay_store::Output;
use mainstay_types::{
    Epoch, Extent, Incarnation, Index, Instance, NodeId, ResourceId, ResourceRecord, SessionId, SnapshotId,
    VolumeId,
};

impl Oracle {
    /// True time from now on.
    pub fn at(&mut self, now_us: u64) {
        self.now_us = now_us;
        let check = self.ha.at(now_us);
        self.judge(check);
    }

    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    pub fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    pub fn judge(&mut self, check: Result<(), Violation>) {
        if let Err(violation) = check {
            self.fail(violation);
        }
    }

    /// Passes on an effect or an output of a host.
    pub fn seen(
        &mut self,
        resource: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
        seen: CoreMessage<'_>,
    ) {
        let Some(log) = self.logs.get_mut(&resource) else { return };
        let check = match seen {
            CoreMessage::Effect(effect) => match effect {
                Effect::Append(batch) => {
                    let sessions = self.sessions.get_mut(&resource);
                    let check = sessions.map_or(Ok(()), |sessions| sessions.appended(batch));
                    check.and_then(|()| log.appended(node, incarnation, batch))
                }
                Effect::Commit(index) => log.committed(node, incarnation, *index),
                Effect::Cut(to) => log.cut(node, incarnation, *to),
                Effect::Restart { at, chain, .. } => log.restart(node, incarnation, *at, *chain),
                Effect::Propose(proposal) => {
                    let slow = self.slow.get_mut(&resource);
                    let check = slow.map_or(Ok(()), |slow| slow.proposed(self.now_us, node, proposal));
                    check.and_then(|()| log.stated(proposal))
                }
                _ => Ok(()),
            },
            CoreMessage::Output(output) => match output {
                Output::Durable { index } => log.durable(node, incarnation, *index),
                Output::Promised { epoch } => log.promised(node, incarnation, *epoch),
                Output::CutDone { end, chain } => log.cut_done(node, incarnation, *end, *chain),
                Output::Restarted { at } => log.restarted(node, incarnation, *at),
                Output::CopyFinished => {
                    log.copy_finished(node, incarnation);
                    self.copied.push((resource, node));
                    Ok(())
                }
                _ => Ok(()),
            },
        };
        if let Some(fork) = log.take_fork() {
            let number = resource.0 as usize - 1;
            self.registers.roll_back(number, |volume, block| log.value_at(VolumeId(volume), block, fork));
            self.rolled_back.insert(resource, fork);
        }
        if let Some(at) = log.take_rolled_back() {
            let number = resource.0 as usize - 1;
            let blocks = log.blocks_given();
            let value_at = |volume, block| log.value_at(VolumeId(volume), block, at);
            self.registers.put_back(number, &blocks, value_at);
            self.rolled_back.insert(resource, at);
        }
        self.settle_soft(resource);
        if let Err(mut violation) = check {
            violation.text = format!("{}: {}", crate::words::resource(resource), violation.text);
            self.fail(violation);
        }
    }

    /// A client is told that a request is done.
    pub fn client_told(&mut self, resource: ResourceId, session: SessionId, number: u64, epoch: Epoch) {
        if let Some(sessions) = self.sessions.get_mut(&resource) {
            sessions.told(session, number, epoch);
        }
    }

    /// An engine is told to roll the resource back.
    pub fn ask_back(&mut self, resource: ResourceId) {
        self.registers.ask_back(resource.0 as usize - 1);
    }

    /// A resource, or a replica of it, is made of a snapshot of another resource. R17 judges the
    /// content of that snapshot at the moment when the resource is first made. In mode A, and after
    /// a forced promotion, another history may take the snapshot anew; no resource is made of that
    /// one.
    pub fn made_of(&mut self, resource: ResourceId, source: ResourceId, snapshot: SnapshotId) {
        let given = self.logs.get(&source).and_then(|log| log.snapshot_content(snapshot));
        let Some(log) = self.logs.get_mut(&resource) else { return };
        let check = match given {
            _ if log.was_given() => Ok(()),
            Some(given) => log.begin_with(given),
            None => {
                Err(Violation { id: "R17", text: format!("no replica has taken {snapshot} of {source}") })
            }
        };
        self.judge(check);
    }

    /// L4: a scrub finds differences only where a disk lied.
    pub fn differ(&mut self, resource: ResourceId, node: NodeId, report: &ScrubReport) {
        if self.logs.get(&resource).is_some_and(|log| !log.may_differ()) {
            let text = format!(
                "{node} finds that replicas of {} differ, and no disk lied: {:?}",
                crate::words::resource(resource),
                report.findings.first()
            );
            self.fail(Violation { id: "L4", text });
        }
    }

    /// Mode B: a client was told of a write that has this place in the log and is not committed.
    pub fn told_of(&mut self, resource: ResourceId, request: u64, index: Index) {
        self.registers.write_answered(request);
        self.soft.entry(resource).or_default().push_back((index, request));
        self.settle_soft(resource);
    }

    /// Tells the registers which writes are lost or committed, of those that clients were told of
    /// before the commit.
    fn settle_soft(&mut self, resource: ResourceId) {
        let Some(log) = self.logs.get_mut(&resource) else { return };
        let (lost, committed) = (log.take_lost(), log.highest_committed());
        let Some(soft) = self.soft.get_mut(&resource) else { return };
        if let Some(kept) = lost {
            let registers = &mut self.registers;
            soft.retain(|(index, request)| {
                let held = *index <= kept;
                if !held {
                    registers.write_lost(*request);
                }
                held
            });
        }
        while let Some((_, request)) = soft.front().filter(|(index, _)| *index <= committed).copied() {
            soft.pop_front();
            self.registers.write_kept(request);
        }
    }

    /// The engine of a node is gone, with all that was only in its memory.
    pub fn memory_gone(&mut self, node: NodeId) {
        for log in self.logs.values_mut() {
            log.memory_gone(node);
        }
        for resource in self.logs.keys().copied().collect::<Vec<_>>() {
            self.settle_soft(resource);
        }
    }

    /// An engine does not use this replica any more.
    pub fn gave_up(&mut self, resource: ResourceId, node: NodeId, incarnation: Incarnation) {
        if let Some(log) = self.logs.get_mut(&resource) {
            log.gave_up(node, incarnation);
        }
        self.settle_soft(resource);
    }

    /// A replica is open, in this instance.
    pub fn opened(
        &mut self,
        resource: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
        instance: Instance,
    ) {
        if let Some(log) = self.logs.get_mut(&resource) {
            log.opened(node, incarnation, instance);
        }
    }

    /// A primary has acknowledged everything up to `upto`, be it from memory (mode B).
    pub fn answered_up_to(
        &mut self,
        resource: ResourceId,
        (node, incarnation): (NodeId, Incarnation),
        when: (Epoch, bool),
        upto: Index,
    ) {
        if let Some(log) = self.logs.get_mut(&resource) {
            let check = log.acknowledged_up_to(node, incarnation, when, upto);
            self.judge(check);
        }
    }

    /// S5: a flush is answered. When a client asked for it, everything up to `upto` had been
    /// acknowledged.
    pub fn flushed(&mut self, resource: ResourceId, node: NodeId, upto: Index) {
        if let Some(log) = self.logs.get(&resource) {
            let check = log.flushed(node, upto);
            self.judge(check);
        }
    }

    /// S17: judges what a primary in mode A has just acknowledged, against its followers that are
    /// within the limits.
    pub fn followed(&mut self, resource: ResourceId, host: &Host, most: u64) {
        let (Some(log), replica) = (self.logs.get(&resource), host.replica()) else { return };
        let check = log.followed(replica.waited_followers().map(|(node, _)| node), replica.committed(), most);
        self.judge(check);
    }

    /// A replica has sent this to a primary.
    pub fn answered(&mut self, node: NodeId, incarnation: Incarnation, envelope: &Envelope) {
        if let Message::AttachReply(_) | Message::Ack { .. } = envelope.message
            && let Some(log) = self.logs.get_mut(&envelope.resource)
        {
            let check = log.answered(node, incarnation, envelope.epoch);
            self.judge(check);
        }
    }

    /// A primary has completed writes to its clients; all up to `commit` may be among them. `late`:
    /// its lease had ended by then.
    pub fn acknowledged(
        &mut self,
        resource: ResourceId,
        node: NodeId,
        (epoch, late): (Epoch, bool),
        commit: Index,
    ) {
        if let Some(log) = self.logs.get_mut(&resource) {
            let check = log.acknowledged(node, epoch, late, commit);
            self.judge(check);
        }
    }

    /// R18: the journal has less than its reserve left.
    pub fn reserve_used(&mut self, resource: ResourceId, node: NodeId, incarnation: Incarnation, left: u64) {
        if let Some(log) = self.logs.get(&resource) {
            let check = log.reserve_used(node, incarnation, left);
            self.judge(check);
        }
    }

    /// `forced`: the last promotion outside the in-sync set.
    pub fn record(&mut self, record: &ResourceRecord, forced: Option<&Forced>) {
        if let Some(slow) = self.slow.get_mut(&record.resource) {
            slow.record(self.now_us, record);
        }
        if let Some(sessions) = self.sessions.get_mut(&record.resource) {
            sessions.record(record);
        }
        if let Some(log) = self.logs.get_mut(&record.resource) {
            if let Some(forced) = forced {
                log.forced(forced);
            }
            let check = log.record(record);
            self.judge(check);
            self.settle_soft(record.resource);
        }
    }

    /// The connection that `node` opened to `peer` has been broken or made.
    pub fn reconnected(&mut self, node: NodeId, peer: NodeId) {
        for slow in self.slow.values_mut() {
            slow.reconnected(self.now_us, node, peer);
        }
    }

    pub fn recovered(
        &mut self,
        resource: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
        state: &LogState,
        promised: Epoch,
    ) {
        if let Some(log) = self.logs.get_mut(&resource) {
            let check = log.recovered(node, incarnation, promised, state);
            self.judge(check);
        }
    }

    /// The disk of a replica has lost something, or may have.
    pub fn damaged(&mut self, resource: ResourceId, node: NodeId, incarnation: Incarnation, lies: bool) {
        if let Some(log) = self.logs.get_mut(&resource) {
            log.damaged(node, incarnation, lies);
        }
    }

    pub fn wiped(&mut self, resource: ResourceId, node: NodeId) {
        if let Some(log) = self.logs.get_mut(&resource) {
            log.wiped(node);
        }
    }

    /// R26, S4, S13: judges what a replica holds by itself, and compares it with the log at
    /// `applied`.
    pub fn check_replica(
        &mut self,
        resource: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
        applied: Index,
        whole: bool,
        read: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) {
        let torn = self.torn(resource, (node, incarnation), applied, read);
        let Some(log) = self.logs.get(&resource) else { return };
        let check = log.check_replica(node, incarnation, applied, whole, read);
        self.judge(torn.and(check));
    }

    /// R26: judges the content of a replica, or of a snapshot there, at this entry.
    fn torn(
        &self,
        resource: ResourceId,
        (node, incarnation): (NodeId, Incarnation),
        at: Index,
        read: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) -> Result<(), Violation> {
        let Some(log) = self.logs.get(&resource) else { return Ok(()) };
        // Content of before a rollback is judged only while it is the newest.
        let older = self.rolled_back.get(&resource).is_some_and(|rolled_back| at < *rolled_back);
        if older || !log.is_judged(node, incarnation) {
            return Ok(());
        }
        for (volume, blocks) in log.written() {
            let content: Vec<_> = blocks.filter_map(|block| Some((block, read(volume, block)?))).collect();
            self.registers.check_whole((resource.0 as usize - 1, volume.0), &content).map_err(|wrong| {
                let text = format!("{node} holds half of a write at {at}: {}", wrong.text);
                Violation { id: wrong.id, text }
            })?;
        }
        Ok(())
    }

    /// S14, R26: compares what a snapshot holds with the log at its entry, and judges it by itself.
    pub fn check_snapshot(
        &mut self,
        resource: ResourceId,
        (node, incarnation): (NodeId, Incarnation),
        (snapshot, at): (SnapshotId, Index),
        read: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) {
        let Some(log) = self.logs.get(&resource) else { return };
        let check = log.check_snapshot((node, incarnation), (snapshot, at), read);
        let check = check.map_err(|wrong| {
            let text = format!("snapshot {snapshot} of {resource}: {}", wrong.text);
            Violation { id: "S14", text }
        });
        let torn = match snapshot {
            // This snapshot holds an older history, which says nothing of the present one.
            SnapshotId::BEFORE_COPY => Ok(()),
            _ => self.torn(resource, (node, incarnation), at, read),
        };
        self.judge(check.and(torn));
    }

    /// S12: compares the versions of a replica's extents with the log at `applied`.
    pub fn check_versions(
        &mut self,
        resource: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
        applied: Index,
        version_of: &mut dyn FnMut(VolumeId, Extent) -> Index,
    ) {
        if let Some(log) = self.logs.get_mut(&resource) {
            let check = log.check_versions(node, incarnation, applied, version_of);
            self.judge(check);
        }
    }

    // Services and leases.

    /// The lease of a node ends at this true time.
    pub fn lease(&mut self, node: NodeId, until_us: u64, alive: bool) {
        let check = self.leases.lease(self.now_us, node, until_us, alive);
        self.judge(check);
    }

    /// `by` proposes that `dead` counts as dead.
    pub fn declared_dead(&mut self, by: NodeId, dead: NodeId) {
        let check = self.leases.declared_dead(self.now_us, by, dead);
        self.judge(check);
    }

    /// Another node is primary because the old one counts as dead.
    pub fn promoted(&mut self, resource: ResourceId, old: NodeId, new: NodeId) {
        let check = self.leases.promoted(self.now_us, resource, old, new);
        self.judge(check);
    }

    pub fn read_completed(&mut self, node: NodeId) {
        let check = self.leases.read_completed(self.now_us, node);
        self.judge(check);
    }

    pub fn role(&mut self, node: NodeId, resource: ResourceId, epoch: Epoch, serving: bool) {
        self.ha.role(self.now_us, node, resource, epoch, serving);
    }

    /// A step of a service on `node` begins.
    pub fn step(&mut self, node: NodeId, resource: ResourceId, effect: &ServiceEffect) {
        let check = self.ha.step(self.now_us, node, resource, effect);
        self.judge(check);
    }

    /// See [`HaOracle::address_stays`].
    pub fn address_stays(&mut self, node: NodeId, resource: ResourceId, stays: bool) {
        self.ha.address_stays(node, resource, stays);
    }

    pub fn presence(&mut self, node: NodeId, resource: ResourceId, presence: Presence) {
        let check = self.ha.observe(self.now_us, node, resource, presence);
        self.judge(check);
    }

    /// The engine or the whole machine is gone.
    pub fn stopped(&mut self, node: NodeId) {
        self.ha.stopped(node);
    }
}
