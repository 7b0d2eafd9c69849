//! Applying an entry of the control plane's log.

use crate::actions::Unusable;
use crate::api_tokens::NewApiToken;
use crate::facts::Fact;
use crate::force::Held;
use crate::grow::SIZE_REMEDY;
use crate::identities::{Certificate, NewToken};
use crate::members::{Newcomer, settling};
use crate::origin::SnapshotOf;
use crate::scrubs::Scrubs;
use crate::service::StatusReport;
use crate::settings::{check_asked, check_values};
use crate::state::{
    Cluster, Command, Entry, LEASE_MS, Links, NODES_MAX, Node, Outcome, RESOURCES_MAX, Reopened, Resource,
    ResourceSpec, Settings, State, cut, refused,
};
use mainstay_ha::valid_name;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BLOCK_BYTES, Choices, Code, JOURNAL_BYTES_MIN, Member, NodeId, NodeStatus, Problem, REPLICAS_MAX,
    ResourceId, ResourceRecord, Severity, VOLUMES_MAX, is_volume_size, reach,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const NAME_REMEDY: &str = "use 1 to 32 of a-z, 0-9 and '-', not starting with '-'";

impl Settings {
    /// Whether leases are safe with these (R10), and why not.
    pub fn validate(&self) -> Result<(), String> {
        if !LEASE_MS.contains(&self.lease_ms) {
            return Err(format!("lease_ms must be {} to {}", LEASE_MS.start(), LEASE_MS.end()));
        }
        if self.heartbeat_ms == 0 || self.heartbeat_ms > self.lease_ms / 4 {
            return Err("heartbeat_ms must be 1 to a quarter of lease_ms".into());
        }
        if self.margin_ms < self.lease_ms.div_ceil(40) || self.margin_ms > self.lease_ms {
            return Err("margin_ms must be at least 2.5 % of lease_ms and at most lease_ms".into());
        }
        Ok(())
    }
}

/// Fields of [`Command::AddNode`].
struct NewNode {
    name: String,
    agent_addr: String,
    engine_addr: String,
    voter: bool,
    witness: bool,
    nonce: u64,
}

impl State {
    /// Applies one committed entry. Deterministic.
    pub fn apply(&mut self, entry: Entry) -> Outcome {
        let at_ms = entry.at_ms;
        let outcome = self.command(at_ms, entry.command);
        self.settle_memory(at_ms);
        self.settle_modes(at_ms);
        self.settle_scrubs(at_ms);
        if matches!(outcome, Outcome::Done | Outcome::NodeAdded { .. } | Outcome::ResourceCreated { .. }) {
            self.revision += 1;
        }
        outcome
    }

    fn command(&mut self, at_ms: u64, command: Command) -> Outcome {
        if self.cluster.is_none() && !matches!(command, Command::InitCluster { .. }) {
            return refused(
                Code::NoCluster,
                "there is no cluster yet",
                "run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS`",
            );
        }
        if let Some(refusal) = self.lacks_level(command.level()) {
            return Outcome::Refused(refusal);
        }
        match command {
            Command::InitCluster { id, name, settings } => self.init(at_ms, id, name, settings),
            Command::AuditBegun { asked } => self.audit_begun(asked),
            Command::AuditEnded { id, result } => self.audit_ended(id, result),
            Command::AddNode { name, agent_addr, engine_addr, voter, witness, nonce } => {
                self.add_node(at_ms, NewNode { name, agent_addr, engine_addr, voter, witness, nonce })
            }
            Command::AdmitNode { name, agent_addr, engine_addr, witness, nonce, replace, level, by } => {
                let new = Newcomer { name, agent_addr, engine_addr, witness, nonce, replace, level, by };
                self.admit_node(at_ms, new)
            }
            Command::NodeLevel { node, level } => self.node_level(at_ms, node, level),
            Command::RaiseLevel { level } => self.raise_level(at_ms, level),
            Command::SetAuthority { authority } => self.set_authority(authority),
            Command::GiveCertificate { node, key, fingerprint, authority, until_ms } => {
                self.give_certificate(node, key, Certificate { fingerprint, authority, until_ms })
            }
            Command::CreateToken { id, hash, node, until_ms } => {
                self.create_token(at_ms, id, NewToken { hash, node, until_ms })
            }
            Command::RevokeToken { id } => self.revoke_token(at_ms, id),
            Command::AnnounceAuthority { authority } => self.announce_authority(at_ms, authority),
            Command::ConfirmAuthority { node, authority, certified } => {
                self.confirm_authority(node, authority, certified)
            }
            Command::AdvanceRotation { authority, from } => self.advance_rotation(at_ms, authority, from),
            Command::CancelRotation { authority } => self.cancel_rotation(at_ms, authority),
            Command::LeaveOut { authority, nodes } => self.leave_out(at_ms, authority, &nodes),
            Command::CreateApiToken { name, id, hash, access, until_ms } => {
                self.create_api_token(at_ms, NewApiToken { name, id, hash, access, until_ms })
            }
            Command::RevokeApiToken { name } => self.revoke_api_token(at_ms, &name),
            Command::ApiTokenUsed { id } => self.api_token_used(at_ms, id),
            Command::RemoveNode { node, lost } => self.remove_node(at_ms, node, &lost),
            Command::ReplaceNode { node, by } => self.replace_node(at_ms, node, by),
            Command::SetVote { node, votes } => self.set_vote(at_ms, node, votes),
            Command::SetAddress { node, agent_addr, engine_addr } => {
                self.set_address(at_ms, node, &agent_addr, &engine_addr)
            }
            Command::SeatNode { node } => self.seat_node(at_ms, node),
            Command::WithdrawNode { nonce } => self.withdraw_node(at_ms, nonce),
            Command::VotersSeen { node, voters_version } => self.voters_seen(node, voters_version),
            Command::NodeLinks { node, links } => self.node_links(node, links),
            Command::NodeFitness { node, unfit } => self.node_fitness(at_ms, node, unfit),
            Command::Fenced { node, generation, result } => self.fenced(at_ms, node, generation, result),
            Command::ConfirmOff { node } => self.confirm_off(at_ms, node),
            Command::NodeDead { node, generation } => self.node_dead(at_ms, node, generation),
            Command::NodeRejoin { node, generation } => self.rejoin(at_ms, node, generation),
            Command::CreateResource { name, spec, choices, origin } => {
                self.create_resource(at_ms, name, spec, choices, origin)
            }
            Command::ReplicaReady { resource, version, node, incarnation } => {
                self.replica_ready(at_ms, resource, version, Member { node, incarnation })
            }
            Command::ReplicaBroken { resource, version, node, incarnation, reason, code } => {
                let why = Unusable { reason, code };
                self.replica_broken(at_ms, resource, version, Member { node, incarnation }, why)
            }
            Command::ReplicaOpened { resource, node, incarnation } => {
                self.replica_opened(at_ms, resource, Member { node, incarnation })
            }
            Command::ReplicaReopened { resource, version, node, incarnation, instance, end } => {
                let reopened = Reopened { instance, end: Some(end) };
                self.replica_reopened(at_ms, resource, version, Member { node, incarnation }, reopened)
            }
            Command::DeleteResource { resource } => self.delete_resource(at_ms, resource),
            Command::AddReplica { resource, node } => self.add_replica(at_ms, resource, node),
            Command::RemoveReplica { resource, node } => self.remove_replica(at_ms, resource, node),
            Command::MoveReplica { resource, from, to } => self.move_replica(at_ms, resource, from, to),
            Command::MovePrimary { resource, to } => self.move_primary(at_ms, resource, to),
            Command::FinishMove { resource, from, to } => self.finish_move(at_ms, resource, from, to),
            Command::ReplicaGone { resource, node } => self.replica_gone(at_ms, resource, node),
            Command::GrowVolume { resource, volume, bytes } => {
                self.grow_volume(at_ms, resource, volume, bytes)
            }
            Command::MakeFileSystem { resource, epoch, volume, uuid } => {
                self.make_file_system(at_ms, resource, epoch, volume, uuid)
            }
            Command::TakeSnapshot { resource, name } => self.take_snapshot(at_ms, resource, name),
            Command::DropSnapshot { resource, name } => self.drop_snapshot(at_ms, resource, &name),
            Command::RollBack { resource, last, name, keep, restart } => {
                self.roll_back(at_ms, (resource, last), &name, keep, restart)
            }
            Command::SnapshotsSeen { resource, node, seen } => {
                self.snapshots_seen(at_ms, resource, node, &seen)
            }
            Command::BeginScrub { resource, epoch } => self.begin_scrub(at_ms, resource, epoch),
            Command::ScrubEnded { resource, node, seen } => self.scrub_ended(at_ms, resource, node, &seen),
            Command::VolumeGrown { resource, epoch, volume, bytes } => {
                self.volume_grown(at_ms, resource, epoch, volume, bytes)
            }
            Command::AttachResource { resource, node, wait_ms, take_over } => {
                self.attach_resource(at_ms, resource, node, wait_ms, take_over)
            }
            Command::DetachResource { resource } => self.detach_resource(at_ms, resource),
            Command::ClaimAttachment { resource, session, node, instance } => {
                self.claim_attachment(resource, session, node, instance)
            }
            Command::ChangeSettings { resource, version, changes } => {
                self.change_settings(at_ms, resource, version, &changes)
            }
            Command::ForcePromote { resource, version, to, end, heard } => {
                self.force_promote(at_ms, resource, version, to, Held { end, heard })
            }
            Command::ChangeIss { resource, version, epoch, change } => {
                self.change_iss(at_ms, resource, version, epoch, change)
            }
            Command::Promote { resource, expect_version, by, to, reason } => {
                self.promote(at_ms, resource, expect_version, by, to, &reason)
            }
            Command::StepDown { resource, version, node, reason } => {
                self.step_down(at_ms, resource, version, node, &reason)
            }
            Command::SetMaintenance { scope, on, for_ms } => self.set_maintenance(at_ms, scope, on, for_ms),
            Command::MaintenanceCounted { scope, number, left_ms } => {
                self.maintenance_counted(at_ms, &scope, number, left_ms)
            }
            Command::SetCordon { node, on, drain } => self.set_cordon(at_ms, node, on, drain),
            Command::ApplyService { spec } => self.apply_service(at_ms, spec),
            Command::DeleteService { name } => self.delete_service(at_ms, &name),
            Command::ServiceGone { name } => self.service_gone(at_ms, &name),
            Command::MoveService { name, to } => self.move_service(at_ms, &name, to),
            Command::StopService { name } => self.stop_service(at_ms, &name),
            Command::StartService { name } => self.start_service(at_ms, &name),
            Command::RestartService { name, process } => self.restart_service(at_ms, &name, process),
            Command::ServiceRestarted { name, number } => self.service_restarted(at_ms, &name, number),
            Command::RetryService { name, round } => self.retry_service(at_ms, &name, round),
            // Several nodes see the same trouble at the same time.
            Command::Note { severity: Severity::Critical, subject, text }
                if self.was_told(at_ms, &cut(subject.clone()), &text) =>
            {
                Outcome::Unchanged
            }
            Command::Note { severity, subject, text } => {
                self.note(at_ms, severity, cut(subject), text);
                Outcome::Done
            }
            Command::ServiceStatus {
                name,
                node,
                phase,
                epoch,
                round,
                detail,
                failures,
                passes,
                last_failure,
            } => {
                let report =
                    StatusReport { node, phase, epoch, round, detail, failures, passes, last_failure };
                self.service_status(at_ms, &name, report)
            }
        }
    }

    fn init(&mut self, at_ms: u64, id: u64, name: String, settings: Settings) -> Outcome {
        match &self.cluster {
            Some(cluster) if cluster.id == id => return Outcome::Unchanged,
            Some(_) => {
                return refused(
                    Code::ClusterExists,
                    "the node is a member of a cluster",
                    "use `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN`",
                );
            }
            None => {}
        }
        if !valid_name(&name) {
            return refused(Code::BadName, format!("'{name}' is not a valid name"), NAME_REMEDY);
        }
        if let Err(why) = settings.validate() {
            return refused(Code::BadSettings, why, "correct the value, or leave it out");
        }
        reach!("control: a cluster is made");
        self.note(at_ms, Severity::Info, format!("cluster {name}"), "created");
        self.cluster = Some(Cluster { id, name, era: 0, earlier: Vec::new() });
        self.settings = settings;
        Outcome::Done
    }

    fn add_node(&mut self, at_ms: u64, new: NewNode) -> Outcome {
        let NewNode { name, agent_addr, engine_addr, voter, witness, nonce } = new;
        if !valid_name(&name) {
            return refused(Code::BadName, format!("'{name}' is not a valid name"), NAME_REMEDY);
        }
        if let Some(node) = self.node_by_name(&name) {
            return if node.nonce == nonce {
                reach!("control: a node is added again");
                Outcome::NodeAdded { node: node.id, generation: node.generation }
            } else {
                refused(
                    Code::NameTaken,
                    format!(
                        "there is a node {name} already, at {}, and the one that asks is at {agent_addr}",
                        node.agent_addr
                    ),
                    "choose another name with --as",
                )
            };
        }
        if self.nodes.len() >= NODES_MAX {
            return refused(
                Code::TooManyNodes,
                format!("a cluster has at most {NODES_MAX} nodes"),
                "make another cluster of the further nodes",
            );
        }
        if let Some(node) =
            self.nodes.values().find(|node| node.agent_addr == agent_addr || node.engine_addr == engine_addr)
        {
            return refused(
                Code::AddressTaken,
                format!("node {} has this address", node.name),
                "give another address",
            );
        }
        if let Some(refusal) = self.address_of_a_service(&[&agent_addr, &engine_addr]) {
            return Outcome::Refused(refusal);
        }
        if voter {
            if let Some(node) = self.unaware_of_voters() {
                reach!("control: a voter must wait for the last change of voters");
                return settling(&node.name);
            }
            self.voters_version += 1;
        }
        reach!("control: a node is added");
        self.last_node += 1;
        let id = NodeId(self.last_node);
        let node = Node {
            id,
            name: name.clone(),
            agent_addr,
            engine_addr,
            status: NodeStatus::Alive,
            generation: 1,
            voter,
            witness,
            candidate: false,
            replaces: None,
            voters_seen: self.voters_version,
            nonce,
            // A node that is added with the first entries says its level afterwards.
            level: self.level,
            links: Links::default(),
            maintenance: None,
            cordon: None,
        };
        self.nodes.insert(id, node);
        let text = if witness { "joined the cluster as a witness" } else { "joined the cluster" };
        self.note(at_ms, Severity::Info, format!("node {name}"), text);
        Outcome::NodeAdded { node: id, generation: 1 }
    }

    fn voters_seen(&mut self, node: NodeId, voters_version: u64) -> Outcome {
        let version = voters_version.min(self.voters_version);
        match self.nodes.get_mut(&node) {
            Some(node) if node.voters_seen < version => {
                reach!("control: a node has seen the voters");
                node.voters_seen = version;
                Outcome::Done
            }
            _ => Outcome::Unchanged,
        }
    }

    fn rejoin(&mut self, at_ms: u64, id: NodeId, generation: u64) -> Outcome {
        let voters_version = self.voters_version;
        if let Some(refusal) = self.is_left_out(id) {
            return Outcome::Refused(refusal);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return Outcome::Conflict { record: None } };
        if node.generation != generation {
            reach!("control: a rejoin of another generation");
            return Outcome::Conflict { record: None };
        }
        let was_dead = node.status == NodeStatus::Dead;
        if !planted(Bug::GenerationReused) {
            node.generation += 1;
        }
        node.status = NodeStatus::Alive;
        if was_dead {
            reach!("control: a dead node rejoins");
            // The leader acts only on a state that holds this entry, hence all changes of voters
            // before it.
            node.voters_seen = voters_version;
        }
        if !was_dead {
            reach!("control: a living node gets a new generation");
        }
        let subject = format!("node {}", node.name);
        let text = if was_dead { "is back" } else { "was not heard by some voters for a while, and is well" };
        if was_dead {
            let fact = Fact::NodeBack { node: node.name.clone() };
            self.note_fact(at_ms, Severity::Info, subject, text, fact);
        } else {
            self.note(at_ms, Severity::Info, subject, text);
        }
        self.fence_is_moot(at_ms, id);
        if was_dead {
            self.try_services_again(id);
        }
        // The node may hold the whole member for whose sake broken members stayed in sync.
        for resource in self.resources.keys().copied().collect::<Vec<_>>() {
            self.drop_broken(at_ms, resource);
        }
        Outcome::Done
    }

    fn create_resource(
        &mut self,
        at_ms: u64,
        name: String,
        mut spec: ResourceSpec,
        choices: Choices,
        of: Option<SnapshotOf>,
    ) -> Outcome {
        if !valid_name(&name) {
            return refused(Code::BadName, format!("'{name}' is not a valid name"), NAME_REMEDY);
        }
        if self.resource_by_name(&name).is_some() {
            return refused(
                Code::NameTaken,
                format!("there is a resource {name} already"),
                "choose another name",
            );
        }
        if self.resources.len() >= RESOURCES_MAX {
            return refused(
                Code::TooManyResources,
                "the cluster has as many resources as it can hold",
                "delete one that is not needed, or give a resource several volumes",
            );
        }
        if let Err((message, remedy)) = self.check_spec(&spec) {
            return refused(Code::BadResource, message, remedy);
        }
        let chosen = choices.iter().map(|(key, value)| (key, Some(value))).collect();
        let policy = Choices::resolve(&self.choices, &choices, spec.journal_bytes);
        if let Err(refusal) = check_values(&chosen, true).and_then(|()| check_asked(&chosen, &policy)) {
            return *refusal;
        }
        let origin = match of.map(|of| self.origin(of, &spec)).transpose() {
            Ok(origin) => origin,
            Err(refusal) => return *refusal,
        };
        spec.replicas.sort_unstable();
        let id = ResourceId(self.last_resource + 1);
        let mut resource = Resource {
            id,
            name: name.clone(),
            spec,
            choices,
            record: ResourceRecord { policy, ..ResourceRecord::new(id) },
            deleting: false,
            gone: BTreeSet::new(),
            failure: None,
            waits_for: None,
            desired_node: None,
            refused: None,
            broken: BTreeMap::new(),
            moving: BTreeMap::new(),
            leaving: BTreeMap::new(),
            growing: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            first_sizes: Vec::new(),
            snapshots: BTreeMap::new(),
            before_copy: BTreeMap::new(),
            last_snapshot: 0,
            rollback: None,
            rolled_back: None,
            origin: None,
            scrubs: Scrubs { since_ms: at_ms, ..Scrubs::default() },
            forced: None,
            reopened: BTreeMap::new(),
        };
        if let Err(refusal) = resource.check_policy(&resource.choices, &policy, &chosen) {
            return *refusal;
        }
        reach!("control: a resource is made");
        self.last_resource = id.0;
        let mut text = "created".to_owned();
        if let Some(origin) = origin {
            let (snapshot, source) = self.origin_names(&origin);
            text = format!("created, of snapshot {snapshot} of {source}");
            resource.begin_as(origin, snapshot, at_ms);
        }
        self.resources.insert(id, resource);
        self.note(at_ms, Severity::Info, format!("resource {name}"), text);
        Outcome::ResourceCreated { resource: id }
    }

    fn check_spec(&self, spec: &ResourceSpec) -> Result<(), (String, String)> {
        let fail = |message: String, remedy: &str| Err((message, remedy.to_string()));
        if spec.volumes.is_empty() || spec.volumes.len() > VOLUMES_MAX {
            return fail(format!("{} volumes", spec.volumes.len()), "use 1 to 64 volumes");
        }
        if let Some(bytes) = spec.volumes.iter().find(|bytes| !is_volume_size(**bytes)) {
            return fail(format!("a volume of {bytes} bytes"), SIZE_REMEDY);
        }
        if spec.journal_bytes < JOURNAL_BYTES_MIN || !spec.journal_bytes.is_multiple_of(BLOCK_BYTES) {
            return fail(
                format!("a journal of {} bytes", spec.journal_bytes),
                "use a multiple of 4096 bytes, at least 16 MiB",
            );
        }
        let nodes: BTreeSet<NodeId> = spec.replicas.iter().copied().collect();
        if nodes.is_empty() || nodes.len() != spec.replicas.len() || nodes.len() > REPLICAS_MAX {
            return fail("the replicas are not 1 to 32 different nodes".into(), "name each node once");
        }
        if let Some(node) = nodes.iter().find(|node| !self.nodes.contains_key(node)) {
            return fail(format!("there is no node {node}"), "see `mainstay node list`");
        }
        if let Some(node) = nodes.iter().find(|node| self.nodes.get(node).is_some_and(|node| node.witness)) {
            return fail(
                format!("{} is a witness and holds no data", self.node_name(*node)),
                "name other nodes",
            );
        }
        let joins = |node: &&NodeId| self.nodes.get(node).is_some_and(|node| node.candidate);
        if let Some(node) = nodes.iter().find(joins) {
            let name = self.node_name(*node);
            return fail(
                format!("{name} has not joined yet"),
                "wait until `mainstay node list` does not show it as joining any more",
            );
        }
        if let Some(node) = spec.preferred.iter().find(|node| !nodes.contains(node)) {
            return fail(
                format!("preferred node {} holds no replica", self.node_name(*node)),
                "prefer nodes that hold a replica",
            );
        }
        Ok(())
    }

    /// The refusal to delete a resource that is in use.
    pub(crate) fn cannot_delete(&self, id: ResourceId) -> Option<Problem> {
        if let Some((name, _)) = self.service_of(id) {
            reach!("control: a resource in use is not deleted");
            return Some(Problem::new(
                Code::ResourceInUse,
                format!("service {name} runs on it"),
                format!("delete the service first: `mainstay service delete {name}`"),
            ));
        }
        let attached = self.resources.get(&id).and_then(|resource| self.refuse_attached(resource));
        match attached.or_else(|| self.needed_by_clone(id, None)) {
            Some(Outcome::Refused(problem)) => Some(problem),
            _ => None,
        }
    }

    pub(crate) fn delete_resource(&mut self, at_ms: u64, id: ResourceId) -> Outcome {
        if let Some(problem) = self.cannot_delete(id) {
            return Outcome::Refused(problem);
        }
        let Some(resource) = self.resources.get_mut(&id) else {
            return refused(
                Code::UnknownResource,
                format!("there is no resource {id}"),
                "see `mainstay resource list`",
            );
        };
        if resource.deleting {
            return Outcome::Unchanged;
        }
        reach!("control: a resource is being deleted");
        resource.deleting = true;
        resource.broken.clear();
        resource.reopened.clear();
        resource.moving.clear();
        resource.record.primary = None;
        resource.record.version = resource.record.version.next();
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Warning, subject, "is being deleted");
        self.finish_deletion(at_ms, id);
        Outcome::Done
    }

    fn replica_gone(&mut self, at_ms: u64, id: ResourceId, node: NodeId) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        if !resource.deleting {
            return self.replica_left(at_ms, id, node);
        }
        if !resource.gone.insert(node) {
            return Outcome::Unchanged;
        }
        self.finish_deletion(at_ms, id);
        Outcome::Done
    }

    /// Forgets a deleted resource when all living nodes have removed their replicas. A dead node
    /// has been silent since its lease ended. When it returns, it finds files of an unknown
    /// resource and removes what it made (R27). Ids are never used again, so the name is free.
    pub(crate) fn finish_deletion(&mut self, at_ms: u64, id: ResourceId) {
        let Some(resource) = self.resources.get(&id).filter(|resource| resource.deleting) else { return };
        let left = resource.spec.replicas.iter().filter(|node| !resource.gone.contains(node));
        let left: Vec<NodeId> = left.copied().collect();
        if left.iter().any(|node| self.alive(*node)) {
            return;
        }
        let mut text = "deleted".to_owned();
        if !left.is_empty() {
            reach!("control: a resource is gone, and a dead node has its files");
            let names: Vec<String> = left.iter().map(|node| self.node_name(*node)).collect();
            text = format!("deleted; {} is dead, and removes the files when it returns", names.join(", "));
        }
        reach!("control: a resource is gone");
        let subject = format!("resource {}", resource.name);
        self.resources.remove(&id);
        self.note(at_ms, Severity::Info, subject, text);
    }

    /// Whether the invariants hold; tests call it after every command.
    pub fn check(&self) -> Result<(), String> {
        let mut names: BTreeMap<&str, ResourceId> = BTreeMap::new();
        for (id, resource) in &self.resources {
            let record = &resource.record;
            let fail = |what: &str| Err(format!("{}: {what}: {record:?}", resource.name));
            if names.insert(&resource.name, *id).is_some() {
                return fail("two resources of one name");
            }
            if record.epoch.0 > 0 && record.iss.is_empty() {
                return fail("empty in-sync set (R11)");
            }
            if record.primary.is_some_and(|primary| record.iss_member(primary).is_none()) {
                return fail("the primary is not in sync (R8)");
            }
            if record.primary.is_some_and(|primary| !self.alive(primary)) {
                return fail("the primary is dead");
            }
            if record.iss.iter().any(|member| !record.replicas.contains(member)) {
                return fail("a member without a replica");
            }
            if !record.iss.is_sorted() || !record.replicas.is_sorted() {
                return fail("not sorted");
            }
            if let Err(what) = self.check_replicas(resource) {
                return fail(what);
            }
            if let Err(what) = Self::check_attached(resource) {
                return fail(what);
            }
            if let Err(what) = self.check_settings(resource) {
                return fail(what);
            }
            if let Err(what) = Self::check_copies(resource) {
                return fail(what);
            }
            if let Err(what) = Self::check_mode(resource) {
                return fail(what);
            }
            if let Err(what) = Self::check_memory(resource) {
                return fail(what);
            }
            if let Err(what) = self.check_origin(resource) {
                return fail(what);
            }
            if let Err(what) = self.check_removed(resource) {
                return fail(what);
            }
            if let Err(what) = self.check_broken(resource) {
                return fail(what);
            }
        }
        self.check_levels()?;
        self.check_fences()?;
        self.check_identities()?;
        Ok(())
    }
}
