//! The cluster state as the HTTP API shows it.

use crate::clock::wall_ms;
use crate::messages::{LogLag, Waits};
use crate::service::lacks::Lack;
use crate::watch;
use mainstay_api::engine::{self, EngineStatus};
use mainstay_api::rest::{
    AttachedView, ClientView, ClusterView, CordonView, DestinationView, DeviceView, EventView, EventsPage,
    ForceView, ForcedView, GrowingView, Health, LeavingView, MaintenanceView, MoveView, NodePlace, NodeView,
    OriginView, PeerView, ReplicaLive, ReplicaView, ResourceView, RollbackView, RolledBackView, ScrubbedView,
    ScrubsView, ServiceFailure, ServiceView, SlowView, SnapshotOnView, SnapshotView,
};
use mainstay_control::State;
use mainstay_control::advice::Feed;
use mainstay_control::behind::Behind;
use mainstay_control::labels::Notice;
use mainstay_control::maintenance::Scope;
use mainstay_control::rollback::Rollback;
use mainstay_control::scrubs::Scrubbed;
use mainstay_control::snapshots::{BEFORE_COPY, BeforeCopy, Snapshot};
use mainstay_control::stalls::{STALL_MS, Stall};
use mainstay_control::state::{EventRecord, Resource, Service};
use mainstay_types::{
    Attachment, Mode, NodeId, PeerState, Problem, ResourceId, Role, ServicePhase, SnapshotId, SnapshotOn,
    SnapshotState, StoreState, Time, duration, size_words,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Answers of the nodes to the questions of a moment ago; a node that did not answer is absent.
#[derive(Default)]
pub struct Live {
    pub engines: BTreeMap<NodeId, EngineStatus>,
    pub pools: BTreeMap<NodeId, u64>,
    /// Replicas that could not be made.
    pub failures: BTreeMap<NodeId, BTreeMap<ResourceId, Problem>>,
    /// Needs of services that nodes do not meet, by node and service.
    pub lacks: BTreeMap<NodeId, BTreeMap<String, Vec<Lack>>>,
    /// Paths of each node that are not as they should be, directories of pools for example.
    pub left: BTreeMap<NodeId, BTreeMap<String, Notice>>,
    /// Requests that each node waits for.
    pub waits: BTreeMap<NodeId, Waits>,
}

impl Live {
    /// Stalls of all nodes and engines.
    #[must_use]
    pub fn stalls(&self) -> Vec<Stall> {
        let nodes = self.waits.iter().flat_map(|(node, waits)| watch::of_node(*node, waits));
        let engines = self.engines.iter().flat_map(|(node, engine)| watch::of_engine(*node, engine));
        nodes.chain(engines).collect()
    }

    /// Why nodes cannot renew their certificates, in their own words.
    #[must_use]
    pub fn renewals(&self) -> BTreeMap<NodeId, String> {
        let said = self.waits.iter().filter_map(|(node, waits)| Some((*node, waits.renewal.clone()?)));
        said.collect()
    }

    /// How each replica is fed, as the engines of the primaries say.
    #[must_use]
    pub fn feeds(&self) -> BTreeMap<(ResourceId, NodeId), Feed> {
        let leads =
            |replica: &&engine::ReplicaStatus| matches!(replica.role, Role::Primary | Role::Promoting);
        let replicas = self.engines.values().flat_map(|engine| engine.replicas.iter().filter(leads));
        replicas
            .flat_map(|replica| {
                replica.peers.iter().map(|peer| ((replica.resource, peer.node), feed_of(peer)))
            })
            .collect()
    }

    /// The lag of the replica on a living node that is not in sync, and what the operator can do,
    /// in words. `None` if it is in sync, if it need not be, or if no primary says so.
    #[must_use]
    pub fn behind(&self, state: &State, resource: &Resource, node: NodeId) -> Option<(String, String)> {
        let record = &resource.record;
        let out = record.policy.mode() != Mode::A && record.iss_member(node).is_none() && state.alive(node);
        let primary = record.primary.filter(|_| out)?;
        let mut replicas = self.engines.get(&primary)?.replicas.iter();
        let replica = replicas.find(|replica| replica.resource == resource.id)?;
        let peer = replica.peers.iter().find(|peer| peer.node == node)?;
        let now = self.engines.get(&primary)?.now_us;
        let behind = Behind {
            state: peer.state,
            bytes: peer.lag_bytes,
            at_least: peer.lag_more,
            copied_permille: peer.copied_permille,
            copy_left: peer.copy.map(|copy| (copy.left_ms, copy.bytes_per_s)),
            returns_in_ms: peer.slow.map(|slow| slow.returns_us.ms_since(now)),
        };
        Some(behind.words(&resource.name, &state.node_name(node), &state.node_name(primary)))
    }

    /// Returns the lag of a voter that lacks entries of the leader's log, from [`STALL_MS`] on.
    fn log_lag(&self, node: NodeId) -> Option<LogLag> {
        self.waits.values().find_map(|waits| waits.lags.get(&node)).copied().filter(|lag| lag.ms >= STALL_MS)
    }
}

fn feed_of(peer: &engine::PeerStatus) -> Feed {
    let waits_ms = peer.latency_us / 1000;
    match peer.state {
        PeerState::Disconnected => Feed::Unconnected,
        PeerState::Failed => Feed::Refused,
        _ if waits_ms >= STALL_MS => Feed::Stands(waits_ms),
        _ => Feed::Moves,
    }
}

/// Connections of the cluster, as the asked agent itself knows them.
pub struct Connections<'a> {
    pub this_node: NodeId,
    pub leader: Option<NodeId>,
    pub connected: &'a dyn Fn(NodeId) -> bool,
    /// Age of the state, in milliseconds; 0 if a majority confirmed it just now, `None` if it is
    /// unknown.
    pub age_ms: Option<u64>,
}

#[must_use]
pub fn cluster(state: &State, connections: &Connections<'_>, live: &Live) -> ClusterView {
    let (id, name) =
        state.cluster.as_ref().map_or((0, String::new()), |cluster| (cluster.id, cluster.name.clone()));
    ClusterView {
        id,
        name,
        revision: state.revision,
        leader: connections.leader.map(|node| state.node_name(node)),
        this_node: state.node_name(connections.this_node),
        lease_ms: state.settings.lease_ms,
        heartbeat_ms: state.settings.heartbeat_ms,
        level: state.level,
        as_of_ms: connections.age_ms,
        joining_ms: None,
        maintenance: maintenance(state, &Scope::Cluster),
        sends_clear: state.sends_clear(),
        nodes: nodes(state, connections, live),
    }
}

#[must_use]
pub fn nodes(state: &State, connections: &Connections<'_>, live: &Live) -> Vec<NodeView> {
    let mut views: Vec<NodeView> = state
        .nodes
        .values()
        .map(|node| NodeView {
            id: node.id.0,
            name: node.name.clone(),
            agent_address: node.agent_addr.clone(),
            engine_address: node.engine_addr.clone(),
            status: node.status,
            generation: node.generation,
            voter: node.voter,
            witness: node.witness,
            candidate: node.candidate,
            leader: connections.leader == Some(node.id),
            connected: node.id == connections.this_node || (connections.connected)(node.id),
            pool_free_bytes: live.pools.get(&node.id).copied(),
            log_lag_ms: live.log_lag(node.id).map(|lag| lag.ms),
            log_lag_entries: live.log_lag(node.id).map_or(0, |lag| lag.entries),
            maintenance: maintenance(state, &Scope::Node { node: node.id }),
            level: node.level,
            cordon: node.cordon.map(|cordon| CordonView {
                since_ms: cordon.at_ms,
                drain: cordon.drain,
                primaries: state
                    .resources
                    .values()
                    .filter(|resource| resource.record.primary == Some(node.id))
                    .map(|resource| resource.name.clone())
                    .collect(),
            }),
        })
        .collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

#[must_use]
pub fn resources(state: &State, live: &Live) -> Vec<ResourceView> {
    let mut views: Vec<ResourceView> =
        state.resources.values().map(|one| resource(state, one, live)).collect();
    views.sort_by(|a, b| a.name.cmp(&b.name));
    views
}

#[must_use]
pub fn resource(state: &State, resource: &Resource, live: &Live) -> ResourceView {
    let record = &resource.record;
    let replicas: Vec<ReplicaView> = resource
        .spec
        .replicas
        .iter()
        .map(|&node| ReplicaView {
            node: state.node_name(node),
            in_sync: is_in_sync(resource, node, live) && !resource.reopened.contains_key(&node),
            broken: resource.broken(node).map(|broken| broken.reason.clone()),
            live: live.engines.get(&node).and_then(|engine| {
                let here = engine.replicas.iter().find(|replica| replica.resource == resource.id)?;
                Some(replica_live(state, here, engine.now_us))
            }),
        })
        .collect();
    ResourceView {
        id: resource.id.0,
        name: resource.name.clone(),
        health: health(state, resource, live),
        deleting: resource.deleting,
        volumes: resource.spec.volumes.clone(),
        journal_bytes: resource.spec.journal_bytes,
        epoch: record.epoch.0,
        version: record.version.0,
        primary: record.primary.map(|node| state.node_name(node)),
        preferred: resource.spec.preferred.iter().map(|&node| state.node_name(node)).collect(),
        replicas,
        growing: resource
            .growing
            .iter()
            .map(|(volume, &bytes)| GrowingView { volume: volume.0, bytes })
            .collect(),
        snapshots: {
            let taken = resource.snapshots.iter().map(|(id, known)| snapshot(state, *id, known));
            taken.chain(before_copy(state, resource)).collect()
        },
        rollback: resource
            .rollback
            .as_ref()
            .filter(|_| resource.origin.is_none())
            .map(|rollback| rollback_view(resource, rollback)),
        origin: resource.origin.as_ref().map(|origin| {
            let (snapshot, resource) = state.origin_names(origin);
            OriginView { resource, snapshot }
        }),
        rolled_back: resource.rolled_back.as_ref().map(|done| RolledBackView {
            snapshot: done.to.clone(),
            index: done.entry.map(|index| index.0),
            at_ms: done.at_ms,
        }),
        scrubs: scrubs(state, resource),
        moves: resource
            .moving
            .iter()
            .map(|(&from, &to)| MoveView { from: state.node_name(from), to: state.node_name(to) })
            .collect(),
        primary_moves_to: resource.desired_node.map(|node| state.node_name(node)),
        leaving: resource
            .leaving
            .keys()
            .map(|&node| LeavingView { node: state.node_name(node), dead: !state.alive(node) })
            .collect(),
        mode: record.policy.mode(),
        min_copies: record.policy.min_copies.copies,
        suspend_ms: record.policy.min_copies.suspend_ms,
        lag_bytes: record.policy.lag().bytes,
        lag_ms: record.policy.lag().ms,
        takeover: record.policy.takeover(),
        failover_ready: record.failover_ready.iter().map(|member| state.node_name(member.node)).collect(),
        memory: record.instances.keys().map(|node| state.node_name(*node)).collect(),
        forced: resource.forced.as_ref().map(|forced| ForcedView {
            node: state.node_name(forced.to),
            epoch: forced.epoch.0,
            at_ms: forced.at_ms,
            end: forced.told.map(|(end, _)| end.0),
            lost: forced.loss.map(|loss| (loss.after.index.0 + 1, loss.until.index.0)),
        }),
        attached: record.attached.as_ref().map(|attached| attached_view(state, resource, attached, live)),
        detaching: detaching(state, resource, live),
        failure: resource.failure.clone().or_else(|| resource.origin.as_ref()?.failure.clone()),
        advice: Vec::new(),
    }
}

/// Whether the replica of a node is in sync: by the record, or by the primary's engine if that acts
/// on a newer one.
fn is_in_sync(resource: &Resource, node: NodeId, live: &Live) -> bool {
    let record = &resource.record;
    let newer = record.primary.and_then(|primary| {
        let mut replicas = live.engines.get(&primary)?.replicas.iter();
        replicas.find(|one| one.resource == resource.id && one.version > record.version)
    });
    let says = |replica: &engine::ReplicaStatus| {
        let peer = replica.peers.iter().find(|peer| peer.node == node)?;
        Some(peer.state == PeerState::InSync)
    };
    newer.and_then(says).unwrap_or_else(|| record.iss_member(node).is_some())
}

fn attached_view(state: &State, resource: &Resource, attached: &Attachment, live: &Live) -> AttachedView {
    let client = live.engines.get(&attached.node).and_then(|engine| {
        let here = engine.clients.iter().find(|client| client.resource == resource.id)?;
        // A client of an earlier session goes first.
        (Some(here.instance) == attached.instance).then(|| client_view(state, here, engine.now_us))
    });
    AttachedView {
        node: state.node_name(attached.node),
        session: attached.session.0,
        wait_ms: attached.wait_ms,
        live: client,
    }
}

/// `now`: of the engine that said so.
fn client_view(state: &State, client: &engine::ClientStatus, now: Time) -> ClientView {
    let waits = client.waits_since_us;
    ClientView {
        primary: client.primary.map(|node| state.node_name(node)),
        requests: client.requests as u64,
        waits_ms: if waits == Time(0) { 0 } else { now.ms_since(waits) },
        streams: client.streams,
        over: client.over.map(|over| over.words().to_owned()),
        devices: devices(&client.devices),
        failure: client.failure.clone(),
    }
}

fn devices(list: &[engine::DeviceStatus]) -> Vec<DeviceView> {
    let view = |device: &engine::DeviceStatus| DeviceView {
        volume: device.volume.0,
        path: device.path.clone(),
        atomic_write_max: device.atomic_write_max,
        not_atomic: device.not_atomic.clone(),
    };
    list.iter().map(view).collect()
}

/// Nodes that have a client open and are not attached.
fn detaching(state: &State, resource: &Resource, live: &Live) -> Vec<String> {
    let attached = resource.record.attached.map(|attached| attached.node);
    let has = |(node, engine): &(&NodeId, &EngineStatus)| {
        Some(**node) != attached && engine.clients.iter().any(|client| client.resource == resource.id)
    };
    live.engines.iter().filter(has).map(|(node, _)| state.node_name(*node)).collect()
}

/// Returns the cost of a forced promotion of the replica on `node`.
///
/// # Errors
/// In words: the replica cannot be asked, or is not whole.
pub fn force(state: &State, resource: &Resource, node: NodeId, live: &Live) -> Result<ForceView, String> {
    let name = state.node_name(node);
    let engine = live.engines.get(&node).ok_or_else(|| format!("the engine of {name} does not answer"))?;
    let here = engine.replicas.iter().find(|replica| replica.resource == resource.id);
    let here = here.ok_or_else(|| format!("the engine of {name} has not opened its replica"))?;
    // A replica that the engine has open instead of the registered disk does not count (R9).
    if resource.record.replica(node).is_none_or(|known| known.incarnation != here.incarnation) {
        return Err(format!("{name} has a new disk, and not the replica that the cluster knows"));
    }
    if here.data != StoreState::Consistent {
        return Err(format!(
            "the replica of {name} is not whole: a copy to it did not end, or its store failed"
        ));
    }
    let record = &resource.record;
    let lost_with: Vec<String> = record.iss.iter().map(|member| state.node_name(member.node)).collect();
    let (end, heard) = (here.durable.0, here.heard.0);
    let known = match heard.saturating_sub(end) {
        0 => "it has heard of nothing that it lacks, but may not have heard of everything".to_owned(),
        entries => {
            format!("it lacks {entries} entries that it has heard of, up to {heard}, and may lack more")
        }
    };
    let limits = match record.policy.mode() {
        Mode::A => format!(
            "; while it was within the limits, writes waited for it when it lacked {}, or what was older than {}",
            size_words(record.policy.lag().bytes),
            duration::typed(record.policy.lag().ms)
        ),
        Mode::B | Mode::C => String::new(),
    };
    let from = lost_with.join(" or ");
    let kept = resource.before_copy.iter();
    let kept: Vec<String> =
        kept.map(|(node, kept)| format!("{} up to entry {}", state.node_name(*node), kept.at.0)).collect();
    let removed = if kept.is_empty() {
        String::new()
    } else {
        format!(
            "What is kept of the time before replicas were copied to is removed ({}): to have that, make a resource of it first, \
             with `--from {}@{BEFORE_COPY}`. ",
            kept.join(", "),
            resource.name
        )
    };
    let cost = format!(
        "{name} holds the log up to {end}. Every acknowledged write after that is lost: {known}{limits}. Only {from} has everything. \
         {removed}When it returns, the exact loss is told, and its replica is deleted and filled anew: to keep what only it has, copy its \
         directory to a place outside of the pool before"
    );
    Ok(ForceView { node: name, version: record.version.0, end, heard, lost_with, cost })
}

fn health(state: &State, resource: &Resource, live: &Live) -> Health {
    let record = &resource.record;
    if let Some(origin) = resource.origin.as_ref().filter(|_| !resource.deleting) {
        return if origin.failure.is_some() { Health::Down } else { Health::Changing };
    }
    if resource.deleting || record.replicas.len() < resource.spec.replicas.len() && record.primary.is_none() {
        return Health::Changing;
    }
    let Some(primary) = record.primary else {
        return if !state.candidates(resource).is_empty() { Health::Changing } else { Health::Down };
    };
    let role = live
        .engines
        .get(&primary)
        .and_then(|engine| engine.replicas.iter().find(|replica| replica.resource == resource.id))
        .map(|replica| replica.role);
    match role {
        Some(Role::Promoting | Role::Secondary) => Health::Changing,
        Some(Role::Fenced) => Health::Down,
        Some(Role::Primary) if record.policy.mode() == Mode::A => {
            let follows = |node: &NodeId| {
                record.replica(*node).is_some() && state.alive(*node) && resource.broken(*node).is_none()
            };
            let stalls = live.stalls().iter().any(|stall| stall.what.resource() == Some(resource.id));
            if !stalls && resource.spec.replicas.iter().all(follows) { Health::Ok } else { Health::Degraded }
        }
        Some(Role::Primary) | None
            if !resource.spec.replicas.iter().all(|node| is_in_sync(resource, *node, live)) =>
        {
            Health::Degraded
        }
        // Writes to the resource wait, even if all replicas are in sync.
        Some(Role::Primary)
            if live.stalls().iter().any(|stall| stall.what.resource() == Some(resource.id)) =>
        {
            Health::Degraded
        }
        Some(Role::Primary) => Health::Ok,
        // The primary's node did not answer; nothing says that it does not serve.
        None => Health::Degraded,
    }
}

/// `now`: of the engine that said so.
/// Engines know nodes by their numbers.
fn named(state: &State, replica: &engine::ReplicaStatus, what: &str) -> String {
    let mut what = what.to_owned();
    for peer in &replica.peers {
        what = what.replace(&format!("member {} ", peer.node), &format!("{} ", state.node_name(peer.node)));
    }
    what
}

fn replica_live(state: &State, replica: &engine::ReplicaStatus, now: Time) -> ReplicaLive {
    ReplicaLive {
        role: replica.role,
        data: replica.data,
        epoch: replica.epoch.0,
        version: replica.version.0,
        commit: replica.commit.0,
        end: replica.end.0,
        durable: replica.durable.0,
        journal_latency_us: replica.journal_latency_us,
        allocated: replica.allocated.clone(),
        no_space: replica.no_space.clone(),
        unreadable: replica.unreadable.clone(),
        waiting_for: replica.waiting_for.iter().map(|what| named(state, replica, what)).collect(),
        caches: replica.caches,
        devices: devices(&replica.devices),
        peers: replica
            .peers
            .iter()
            .map(|peer| PeerView {
                node: state.node_name(peer.node),
                state: peer.state,
                lag_entries: peer.lag_entries,
                lag_bytes: peer.lag_bytes,
                lag_ms: if peer.lag_since_us == Time(0) { 0 } else { now.ms_since(peer.lag_since_us) },
                lag_more: peer.lag_more,
                progress_percent: (peer.state == PeerState::Copying)
                    .then(|| u8::try_from(peer.copied_permille.min(1000) / 10).unwrap_or(100)),
                latency_us: peer.latency_us,
                copy_bytes_per_s: peer.copy.map(|copy| copy.bytes_per_s),
                copy_left_ms: peer.copy.map(|copy| copy.left_ms),
                // A peer that is gone is told as gone.
                slow: peer
                    .slow
                    .filter(|_| peer.state != PeerState::Disconnected && state.alive(peer.node))
                    .map(|slow| SlowView {
                        out_ms: now.ms_since(slow.since_us),
                        latency_us: slow.latency_us,
                        returns_in_ms: slow.returns_us.ms_since(now),
                    }),
            })
            .collect(),
    }
}

#[must_use]
pub fn services(state: &State) -> Vec<ServiceView> {
    state.services.iter().map(|(name, one)| service(state, name, one)).collect()
}

/// The maintenance of exactly this scope.
fn maintenance(state: &State, scope: &Scope) -> Option<MaintenanceView> {
    let known = state.maintenance_of(scope)?;
    Some(MaintenanceView {
        of: scope.words(state),
        since_ms: known.at_ms,
        left_ms: known.left_ms.map(|(_, left_ms)| left_ms),
        end: scope.off(state),
    })
}

/// The maintenance because of which a service is left alone.
#[must_use]
pub fn maintenance_of_service(state: &State, name: &str) -> Option<MaintenanceView> {
    maintenance(state, &state.rests(name)?)
}

#[must_use]
pub fn service(state: &State, name: &str, service: &Service) -> ServiceView {
    let primary = state.resource_of(service).and_then(|resource| resource.record.primary);
    // The primary's own report counts; without one, that of a node where something is left.
    let shown = primary
        .and_then(|node| service.nodes.get(&node).map(|on| (node, on)))
        .or_else(|| service.nodes.iter().find(|(_, on)| !on.phase.is_silent()).map(|(&node, on)| (node, on)))
        .or_else(|| service.nodes.iter().next().map(|(&node, on)| (node, on)));
    let failures = service
        .nodes
        .iter()
        .filter(|(node, _)| service.failures_on(**node) > 0)
        .map(|(&node, on)| ServiceFailure {
            node: state.node_name(node),
            count: service.failures_on(node),
            at_ms: (on.last_failure_ms > 0).then_some(on.last_failure_ms),
            reason: if on.last_failure.is_empty() { on.detail.clone() } else { on.last_failure.clone() },
        })
        .collect();
    // R28: what the probes of a running service find.
    let finding = shown.map(|(_, on)| on).filter(|on| on.phase == ServicePhase::Running);
    let finding = finding.map(|on| &on.detail).filter(|detail| !detail.is_empty());
    ServiceView {
        name: name.to_owned(),
        resource: service.spec.resource.clone(),
        node: primary.map(|node| state.node_name(node)),
        phase: shown.map_or_else(ServicePhase::default, |(_, on)| on.phase),
        phase_node: shown.map(|(node, _)| state.node_name(node)),
        doing: shown
            .filter(|(_, on)| !on.phase.is_silent() && on.phase != ServicePhase::Running)
            .map_or_else(String::new, |(_, on)| on.detail.clone()),
        current: shown.is_some_and(|(_, on)| on.round >= service.round),
        vip: Some(mainstay_ha::listed_addresses(&service.spec.vips))
            .filter(|addresses| !addresses.is_empty()),
        deleting: service.deleting,
        failures,
        advice: service.halted.iter().chain(finding).cloned().collect(),
        stopped_ms: service.stopped.map(|stopped| stopped.at_ms),
        restarting: service.restart.is_some(),
        maintenance: maintenance_of_service(state, name),
        hindrances: Vec::new(),
    }
}

/// Nodes at which clients find each resource and each service.
#[must_use]
pub fn destinations(state: &State) -> Vec<DestinationView> {
    let place = |node: NodeId| {
        let node = state.nodes.get(&node)?;
        let host = node.agent_addr.parse::<SocketAddr>().map(|address| address.ip().to_canonical());
        let address = host.map_or_else(|_| node.agent_addr.clone(), |host| host.to_string());
        Some(NodePlace { node: node.name.clone(), address })
    };
    let view = |resource: &Resource, service: Option<(&String, &Service)>| {
        let record = &resource.record;
        let phase = |service: &Service| {
            let on = record.primary.and_then(|primary| service.nodes.get(&primary));
            // A report of an earlier epoch may be of before the node died.
            on.filter(|on| on.epoch == record.epoch).map_or(ServicePhase::Stopped, |on| on.phase)
        };
        DestinationView {
            resource: resource.name.clone(),
            service: service.map(|(name, _)| name.clone()),
            epoch: record.epoch.0,
            primary: record.primary.and_then(place),
            phase: service.map(|(_, service)| phase(service)),
            readers: Vec::new(),
        }
    };
    let resources = state.resources.values().map(|resource| view(resource, None));
    let services = state
        .services
        .iter()
        .filter_map(|(name, service)| Some(view(state.resource_of(service)?, Some((name, service)))));
    resources.chain(services).collect()
}

#[must_use]
pub fn event(event: &EventRecord) -> EventView {
    EventView {
        index: event.index,
        at_ms: event.at_ms,
        severity: event.severity,
        subject: event.subject.replacen(' ', "/", 1),
        text: event.text.clone(),
    }
}

/// The first events after an index, at most `most`.
#[must_use]
pub fn events_of(state: &State, after: u64, most: usize) -> EventsPage {
    let first = state.events.front().map_or(state.last_event + 1, |event| event.index);
    let newer = state.events.iter().filter(|event| event.index > after);
    let events: Vec<EventView> = newer.take(most).map(event).collect();
    EventsPage { events, last: state.last_event, gap: after + 1 < first && after < state.last_event }
}

fn rollback_view(resource: &Resource, rollback: &Rollback) -> RollbackView {
    let name = |id: SnapshotId| resource.snapshots.get(&id).map(|known| known.name.clone());
    RollbackView { snapshot: name(rollback.to).unwrap_or_default(), keep: rollback.keep.and_then(name) }
}

fn scrubs(state: &State, resource: &Resource) -> ScrubsView {
    let (scrubs, policy, now_ms) = (&resource.scrubs, resource.record.policy.scrub, wall_ms());
    let one = |last: &Scrubbed| ScrubbedView {
        at_ms: last.at_ms,
        took_ms: last.took_ms,
        end: last.end,
        lacking: last.lacking.iter().map(|node| state.node_name(*node)).collect(),
        different: last.different,
        repaired: last.repaired,
        overwritten: last.overwritten,
        unrepaired: last.unrepaired(),
    };
    ScrubsView {
        now_ms,
        interval_ms: policy.interval_ms,
        repair: policy.repair,
        rate: policy.rate,
        running: scrubs.turn.is_some(),
        whole: scrubs.whole.as_ref().map(one),
        failed: scrubs.failed.as_ref().map(one),
        due_ms: resource.scrub_due_ms(now_ms),
        late_ms: resource.scrub_late_ms(now_ms),
        waits_for: state.scrub_waits_for(resource.id),
    }
}

/// Returns the states that replicas keep from before they were copied to, as one snapshot. `None`
/// if no replica keeps one.
pub fn before_copy(state: &State, resource: &Resource) -> Option<SnapshotView> {
    let at_ms = resource.before_copy.values().map(|kept| kept.since_ms).max()?;
    let on = |(node, kept): (&NodeId, &BeforeCopy)| SnapshotOnView {
        node: state.node_name(*node),
        index: kept.at.0,
        state: SnapshotState::Held,
    };
    let (id, name) = (SnapshotId::BEFORE_COPY.0, BEFORE_COPY.to_owned());
    let nodes = resource.before_copy.iter().map(on).collect();
    let deleting = resource.before_copy.values().all(|kept| kept.dropping);
    Some(SnapshotView { id, name, at_ms, deleting, nodes })
}

/// A snapshot in words.
pub fn snapshot(state: &State, id: SnapshotId, known: &Snapshot) -> SnapshotView {
    let on = |(node, on): (&NodeId, &SnapshotOn)| SnapshotOnView {
        node: state.node_name(*node),
        index: on.at.0,
        state: on.state,
    };
    SnapshotView {
        id: id.0,
        name: known.name.clone(),
        at_ms: known.at_ms,
        deleting: known.dropping,
        nodes: known.nodes.iter().map(on).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_control::state::{Links, Node};
    use mainstay_types::{NodeStatus, SlowStatus};

    fn node(id: u32, status: NodeStatus) -> Node {
        Node {
            id: NodeId(id),
            name: format!("n{id}"),
            agent_addr: String::new(),
            engine_addr: String::new(),
            status,
            generation: 1,
            voter: true,
            witness: false,
            candidate: false,
            replaces: None,
            voters_seen: 0,
            nonce: 0,
            links: Links::default(),
            maintenance: None,
            level: 0,
            cordon: None,
        }
    }

    #[test]
    fn a_node_that_is_dead_or_disconnected_is_not_called_slow() {
        let mut state = State::default();
        let peer = |state| engine::PeerStatus {
            node: NodeId(2),
            state,
            slow: Some(SlowStatus { since_us: Time(0), latency_us: 645_000, returns_us: Time(0) }),
            ..Default::default()
        };
        let mut is_slow = |status, link| {
            state.nodes.insert(NodeId(2), node(2, status));
            let replica = engine::ReplicaStatus { peers: vec![peer(link)], ..Default::default() };
            replica_live(&state, &replica, Time(0)).peers[0].slow.is_some()
        };
        assert!(is_slow(NodeStatus::Alive, PeerState::CatchingUp));
        assert!(!is_slow(NodeStatus::Alive, PeerState::Disconnected));
        assert!(!is_slow(NodeStatus::Dead, PeerState::CatchingUp));
    }

    #[test]
    fn only_a_replica_that_acknowledges_moves() {
        let feed =
            |state, latency_us| feed_of(&engine::PeerStatus { state, latency_us, ..Default::default() });
        assert_eq!(feed(PeerState::CatchingUp, 2_000_000), Feed::Moves);
        assert_eq!(feed(PeerState::CatchingUp, 9_000_000), Feed::Stands(9000));
        assert_eq!(feed(PeerState::Disconnected, 0), Feed::Unconnected);
        assert_eq!(feed(PeerState::Failed, 0), Feed::Refused);
    }
}
