//! Verdict on each resource when faults have stopped: it is whole, or it has stopped and says why.
//!
//! A stop is clear when a user can read it where users look (the advice in `mainstay status`).
//! There are three kinds of clear stops:
//! - There is no primary, and the control plane says what is missing. Each member of the in-sync
//!   set is away, is said to be of no use, or has lost what it had in memory.
//! - The last complete copy has a new disk, and the control plane says that.
//! - The resource was not begun yet, and the control plane says for whose first replica it waits.
//!
//! Nothing else excuses a resource that does not serve. Nothing at all excuses a request without an
//! answer, or a service that is said to run on a stopped resource.
//!
//! While some nodes are away, the others must do what can be done without them. A resource with a
//! usable in-sync member among them is served there. Its in-sync set then holds no node that is
//! away, and every other replica rejoins.

use super::operator::Unfinished;
use super::{World, resource_id};
use mainstay_control::advice::{Observations, advice};
use mainstay_control::state::{Resource, ServiceOnNode};
use mainstay_replica::PeerStatus;
use mainstay_store::Store;
use mainstay_types::{Member, Mode, NodeId, PeerState, Role, ServicePhase, SnapshotId, SnapshotState};

/// Id of the invariant that is broken, and what is wrong.
type Wrong = (&'static str, String);

/// Reason that a resource does not go on, as the control plane tells a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    /// No member of the in-sync set is of any use.
    Broken,
    /// Members of the in-sync set are away, and the others are of no use.
    Away,
    /// The last complete copy has a new disk.
    LastCopy,
    /// The resource waits for first replicas. Their disks were damaged, or they are away, before
    /// the control plane had heard of them.
    NotBegun,
    /// The snapshot that the resource was to be made of is gone with the disks that held it.
    NotMade,
}

impl World {
    /// Returns the first thing that keeps the cluster from its end, which is that every resource is
    /// whole or has stopped clearly.
    pub(super) fn unwell(&self) -> Option<Wrong> {
        if let Some(node) = self.away.iter().find(|node| self.state().alive(**node)) {
            return Some(("L1", format!("{node} is away and is not declared dead")));
        }
        (0..self.plan.shape.resources.len()).find_map(|number| self.end_of(number).err())
    }

    /// Counts how resources ended, except those that are whole at the end of a run that all must
    /// survive.
    pub(super) fn count_ends(&mut self) {
        for number in 0..self.plan.shape.resources.len() {
            let Ok(stop) = self.end_of(number) else { continue };
            let unsurvivable = self.plan.unsurvivable;
            if stop.is_none() && !unsurvivable && self.away.is_empty() {
                continue;
            }
            let core = !self.away.is_empty();
            self.trace.count(match (stop, unsurvivable) {
                (None, _) if core => "a core heals: served",
                (None, _) => "unsurvivable: whole",
                (Some(Stop::Away), _) => "a core heals: stopped, as those with everything are away",
                (Some(Stop::NotMade), _) => "stopped: what it was to be made of is gone",
                (Some(Stop::NotBegun), true) => "unsurvivable: not begun, a first replica cannot be used",
                (Some(Stop::NotBegun), false) => "a core heals: not begun, as replicas are away",
                (Some(Stop::Broken), true) => "unsurvivable: stopped, no replica with everything can be used",
                (Some(Stop::Broken), false) => "stopped: no replica with everything can be used",
                (Some(Stop::LastCopy), true) => {
                    "unsurvivable: stopped, the last complete copy has a new disk"
                }
                (Some(Stop::LastCopy), false) => "stopped: the last complete copy has a new disk",
            });
        }
    }

    /// `None`: the resource is as whole as it can be.
    fn end_of(&self, number: usize) -> Result<Option<Stop>, Wrong> {
        let Some((invariant, wrong)) = self.not_whole(number) else { return Ok(None) };
        if !self.may_stop(number) {
            return Err((invariant, wrong));
        }
        let stop = self.stated(number).map_err(|unclear| (invariant, format!("{wrong}; {unclear}")))?;
        match self.hangs(number) {
            Some(wrong) => Err(wrong),
            None => Ok(Some(stop)),
        }
    }

    pub(super) fn is_whole(&self, number: usize) -> bool {
        self.not_whole(number).is_none()
    }

    /// Whether the resource may stop for good: every disk that holds everything is damaged, gone,
    /// or away.
    fn may_stop(&self, number: usize) -> bool {
        let id = resource_id(number);
        let damaged = |known: &Resource| {
            let damaged = |member: &Member| self.machines[&member.node].damaged.contains_key(&id);
            known.record.epoch.0 > 0 && known.record.iss.iter().all(damaged)
        };
        self.plan.unsurvivable
            || !self.away.is_empty()
            || self.state().resources.get(&id).is_some_and(|known| damaged(known) || self.never_made(known))
    }

    /// Tells whether the resource was to be made of a snapshot that no replica holds any more.
    fn never_made(&self, known: &Resource) -> bool {
        let observations = Observations { has_leader: true, ..Observations::default() };
        let subject = format!("resource {}", known.name);
        known.origin.is_some()
            && advice(self.state(), &observations)
                .iter()
                .any(|advice| advice.subject == subject && advice.what.starts_with("cannot be made"))
    }

    /// Returns why it has stopped, as the control plane tells a user. Otherwise returns what is
    /// unclear.
    fn stated(&self, number: usize) -> Result<Stop, String> {
        let id = resource_id(number);
        let known = self.state().resources.get(&id).ok_or("the state does not have it")?;
        let record = &known.record;
        let observations = Observations { has_leader: true, ..Observations::default() };
        let said: Vec<String> =
            advice(self.state(), &observations).into_iter().map(|advice| advice.what).collect();
        if let Some(origin) = known.origin.as_ref().filter(|_| record.epoch.0 == 0) {
            if self.never_made(known) {
                return Ok(Stop::NotMade);
            }
            let waits =
                |member: &Member| record.replica(member.node).is_some() || self.away.contains(&member.node);
            let says = said.iter().any(|what| what.starts_with("is being made of"));
            return if says && origin.holders.iter().all(waits) {
                Ok(Stop::NotBegun)
            } else {
                Err(format!("it is not made, and could be: {said:?}"))
            };
        }
        if record.epoch.0 == 0 {
            let missing = |node: &&NodeId| record.replica(**node).is_none();
            let waits = known.spec.replicas.iter().filter(missing).all(|node| {
                let says = |what: &String| {
                    what.starts_with("waits for the replicas of") && what.contains(&node.to_string())
                };
                let useless = self.away.contains(node) || self.machines[node].broken.contains_key(&id);
                useless && said.iter().any(says)
            });
            return if waits {
                Ok(Stop::NotBegun)
            } else {
                Err(format!("it waits for other nodes than those of no use: {said:?}"))
            };
        }
        let failure = known.failure.as_ref().ok_or("no text says why")?;
        if !said.contains(failure) {
            return Err(format!("no advice says that {failure}"));
        }
        let replaced = |member: &Member| {
            failure.contains("new disk")
                && self.machines[&member.node].formatted.get(&id) != Some(&member.incarnation)
        };
        if record.iss.len() == 1 && record.iss.iter().all(replaced) {
            return Ok(Stop::LastCopy);
        }
        if let Some(primary) = record.primary {
            return Err(format!("{primary} is primary"));
        }
        let away = record.iss.iter().any(|member| self.away.contains(&member.node));
        let useless = |member: &&Member| {
            let node = member.node;
            let forgot = away && known.reopened.contains_key(&node);
            self.away.contains(&node) || known.broken.contains_key(&node) || forgot
        };
        match record.iss.iter().find(|member| !useless(member)) {
            Some(member) => Err(format!("no text says why {} does not take over", member.node)),
            None if away => Ok(Stop::Away),
            None => Ok(Stop::Broken),
        }
    }

    /// Returns what waits in vain for a resource that has stopped: a request without an answer, or
    /// a service that is said to run.
    fn hangs(&self, number: usize) -> Option<Wrong> {
        if let Some(text) = self.unanswered(number) {
            return Some(("L5", text));
        }
        let name = Self::service_name(resource_id(number));
        let service = self.state().services.get(&name)?;
        let runs = |(node, on): (&NodeId, &ServiceOnNode)| {
            (on.phase == ServicePhase::Running && !self.away.contains(node)).then_some(*node)
        };
        let node = service.nodes.iter().find_map(runs)?;
        Some(("L7", format!("{name} is said to run on {node}, and its resource has stopped")))
    }

    fn unanswered(&self, number: usize) -> Option<String> {
        let late = |asked: &super::ClientRequest| {
            asked.resource == number && self.now_us > self.answer_due_us(asked)
        };
        let (request, asked) = self.asked.iter().find(|(_, asked)| late(asked))?;
        let hosted = self.machines[&asked.node].engine.as_ref()?.hosts.get(&resource_id(number));
        let waiting = hosted.map(|hosted| hosted.host.replica().status().waiting_for);
        Some(format!(
            "#{request} asked at {} ms on {} has no answer: {waiting:?}",
            asked.at_us / 1000,
            asked.node
        ))
    }

    /// Returns what keeps the resource from being whole, as far as the nodes that are not away can
    /// achieve it.
    fn not_whole(&self, number: usize) -> Option<Wrong> {
        let id = resource_id(number);
        let name = format!("r{number}");
        let all_here = self.away.is_empty();
        let known = self.state().resources.get(&id);
        match self.unfinished(number) {
            Unfinished::No => {}
            Unfinished::Gone => return None,
            // A change that an operator asked for may need the nodes that are away.
            Unfinished::Yes(_) if !all_here && known.is_none_or(|known| known.deleting) => return None,
            Unfinished::Yes(_) if !all_here => {}
            Unfinished::Yes(text) => return Some(("L1", text)),
        }
        let Some(known) = known else {
            return Some(("L1", format!("{name} does not exist")));
        };
        let record = &known.record;
        let Some(primary) = record.primary else {
            return Some((
                "L1",
                format!("{name} has no primary: {}", known.failure.clone().unwrap_or_default()),
            ));
        };
        let Some(hosted) = self.machines[&primary].engine.as_ref().and_then(|engine| engine.hosts.get(&id))
        else {
            return Some((
                "L1",
                format!("the primary {primary} of {name} is not open: {:?}", self.machines[&primary].broken),
            ));
        };
        let holder = record.attached.map_or(primary, |attached| attached.node);
        let offered = self.devices(number).contains(&holder) || self.away.contains(&holder);
        if hosted.role == Role::Primary && !offered && holder != primary {
            let client = self.machines[&holder].engine.as_ref().map(|engine| {
                engine.clients.get(&id).map(|hosted| (hosted.device, format!("{:?}", hosted.client)))
            });
            return Some((
                "L1",
                format!("{holder} has no devices of {name}: {:?}, {client:?}", record.attached),
            ));
        }
        if hosted.role != Role::Primary || !offered {
            let waiting = hosted.host.replica().status().waiting_for;
            return Some((
                "L1",
                format!(
                    "{primary} does not serve {name}: {:?}, device {:?}, {waiting:?}",
                    hosted.role, hosted.device
                ),
            ));
        }
        if all_here && let Some((volume, bytes)) = known.growing.iter().next() {
            return Some(("L1", format!("{volume} of {name} does not grow to {bytes} bytes")));
        }
        if all_here && let Some(text) = self.snapshots_unsettled(known, hosted.host.store()) {
            return Some(("L1", text));
        }
        if !self.all_in_sync(known, &hosted.host.replica().status().peers) {
            let status = hosted.host.replica().status();
            return Some(("L2", format!("{name} is not whole: {record:?}; peers {:?}", status.peers)));
        }
        if let Some(node) = self.keeps_too_long(known) {
            return Some((
                "L1",
                format!("{node} keeps what it held of {name} before it was copied to, and is whole"),
            ));
        }
        if let Some(text) = self.unanswered(number) {
            return Some(("L5", text));
        }
        self.service_not_well(number, primary).map(|text| ("L7", text))
    }

    /// Tells whether every replica has everything, or follows, and no other replica is counted.
    fn all_in_sync(&self, known: &Resource, peers: &[PeerStatus]) -> bool {
        let record = &known.record;
        let here = |node: &NodeId| !self.away.contains(node);
        let all_here = self.away.is_empty();
        // The target of a move may be away. Then the old replica stays until the target is back.
        let moves = !(all_here || known.moving.is_empty() && known.leaving.is_empty());
        let expected = known.spec.replicas.iter().filter(|node| here(node)).count();
        let whole = match record.policy.mode() {
            Mode::A => {
                let fed = |peer: &PeerStatus| {
                    matches!(peer.state, PeerState::Following | PeerState::InSync | PeerState::Joining)
                };
                let registered = record.replicas.iter().filter(|member| here(&member.node)).count();
                registered == expected
                    && (record.unverified.is_empty() || !all_here)
                    && peers.iter().filter(|peer| here(&peer.member.node)).all(fed)
            }
            Mode::B | Mode::C => record.iss.len() == expected,
        };
        // In mode B the memory of all members counts. In the other modes everything becomes durable
        // in time.
        let counted = if record.policy.mode() == Mode::B { record.iss.len() } else { 0 };
        (whole || moves)
            && record.instances.len() == counted
            && record.iss.iter().all(|member| here(&member.node))
    }

    /// R16: returns an in-sync member that still keeps what it held before it was copied to, or of
    /// which the control plane still says so.
    fn keeps_too_long(&self, known: &Resource) -> Option<NodeId> {
        let members = known.record.iss.iter().map(|member| member.node);
        let mut here = members.filter(|node| !self.away.contains(node));
        here.find(|node| {
            let disk = self.machines[node].disks.get(&known.id);
            known.before_copy.contains_key(node)
                || disk.is_some_and(|disk| disk.has_snapshot(SnapshotId::BEFORE_COPY))
        })
    }

    /// L7: it runs on the primary, or is stopped for a stated reason. H14: nothing is left of it
    /// anywhere if an operator has stopped it.
    fn service_not_well(&self, number: usize, primary: NodeId) -> Option<String> {
        if !self.plan.shape.resources[number].service || !self.wants_service(number) {
            return None;
        }
        let name = Self::service_name(resource_id(number));
        let Some(service) = self.state().services.get(&name) else {
            return Some(format!("{name} is unknown"));
        };
        if self.wants_stopped(number) != service.stopped.is_some() {
            return Some(format!("{name} does not know whether an operator has stopped it"));
        }
        if service.stopped.is_some() {
            let here = self.machines.values().filter(|machine| !self.away.contains(&machine.node));
            let mut left = here.filter(|machine| !machine.services.presence(&name).is_silent());
            let node = left.next()?.node;
            return Some(format!("{name} is stopped by an operator, and something of it is on {node}"));
        }
        let running = service.nodes.get(&primary).is_some_and(|on| on.phase == ServicePhase::Running);
        let presence = self.machines[&primary].services.presence(&name);
        let stands = self.machines[&primary].services.stands(&name);
        let stated = service.halted.is_some() || service.failed_on(primary);
        if stated || running && stands && presence.running && presence.address {
            return None;
        }
        Some(format!(
            "{name} is neither running on {primary} nor stopped for a stated reason: {:?}",
            service.nodes
        ))
    }

    /// R17: returns the first wish for a snapshot that is not settled. A wish is settled when it is
    /// in the log of the primary, and every replica has the snapshot, or cannot have it and has
    /// said so.
    fn snapshots_unsettled(&self, known: &Resource, primary: &Store) -> Option<String> {
        let name = &known.name;
        if known.origin.is_some() {
            return Some(format!("{name} does not hold what it is made of"));
        }
        if known.rollback.is_some() {
            return Some(format!("{name} is not rolled back"));
        }
        for (id, snapshot) in &known.snapshots {
            if snapshot.dropping {
                return Some(format!("snapshot {id} of {name} is not deleted"));
            }
            let told = |member: &Member| {
                let on = snapshot.nodes.get(&member.node);
                on.is_some_and(|on| on.state != SnapshotState::Taking)
            };
            if let Some(member) = known.record.iss.iter().find(|member| !told(member)) {
                return Some(format!("{} does not say what it has of snapshot {id} of {name}", member.node));
            }
        }
        let strange = primary.snapshots().find(|(id, _)| !known.snapshots.contains_key(id));
        strange.map(|(id, _)| format!("{id} of {name} is in the log, and no operator wants it"))
    }
}
