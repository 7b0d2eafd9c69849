//! Metrics under the names that drbd-reactor gives to those of DRBD 9 (drbd-reactor.prometheus(5)),
//! for dashboards and alert rules that know these.
//!
//! Guarantees
//! - A metric is told only if its value means here what it means there. What counts something that
//!   Mainstay does not have, or counts by volume what Mainstay counts by resource, is left out;
//!   docs/metrics.md lists that with what to use instead.
//! - States are told as drbd-reactor does it with `enums = true`: one sample for each state, with 1
//!   for the one that holds.

use super::families::{Family, Kind};
use super::text::{Page, Samples};
use super::{EngineSeen, Gathered, MemberSeen};
use mainstay_api::metrics::ReplicaMetrics;
use mainstay_types::{Role, StoreState};

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, labels, help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, labels: DEVICE, help }
}

const RESOURCE: &[&str] = &["name"];
const CONNECTION: &[&str] = &["name", "conn_name", "peer_node_id", "drbd_connection_state"];
const DEVICE: &[&str] = &["name", "volume"];

static RESOURCES: Family =
    gauge("drbd_resource_resources", &[], "Resources that have a replica or a client on this node.");
static ROLE: Family = gauge(
    "drbd_resource_role",
    &["name", "drbd_resource_role"],
    "Role of the replica. `Primary` is one that serves.",
);
static SUSPENDED: Family = gauge(
    "drbd_resource_suspended",
    RESOURCE,
    "Whether requests wait for more than disks and network do by themselves.",
);
static CONNECTION_STATE: Family = gauge(
    "drbd_connection_state",
    CONNECTION,
    "`Connected` if the engines of both nodes have their connections to each other, else `Connecting`.",
);
static DEVICE_STATE: Family = gauge(
    "drbd_device_state",
    &["name", "volume", "drbd_device_state"],
    "`UpToDate` for a replica in the in-sync set, `Outdated` for a whole one that is not, `Inconsistent` for one that is being filled, `Failed` for one whose disk or files cannot be used, `Diskless` for a client.",
);
static CLIENT: Family =
    gauge("drbd_device_client", DEVICE, "Whether the node has the device without a replica.");
static QUORUM: Family = gauge(
    "drbd_device_quorum",
    DEVICE,
    "Whether the node holds a lease, which a majority has confirmed. Without one it serves nothing.",
);
static SIZE: Family = gauge("drbd_device_size_bytes", DEVICE, "Size of the volume.");
static READ: Family = counter(
    "drbd_device_read_bytes_total",
    "Bytes read from the file of the volume. Only of resources with one volume.",
);
static WRITTEN: Family = counter(
    "drbd_device_written_bytes_total",
    "Bytes written to the file of the volume, without the journal. Only of resources with one volume.",
);
static UPPER: Family = gauge(
    "drbd_device_upperpending",
    DEVICE,
    "Requests of the device that are not answered. Only of resources with one volume.",
);
static LOWER: Family = gauge(
    "drbd_device_lowerpending",
    DEVICE,
    "Operations on files of the replica that have not ended. Only of resources with one volume.",
);

/// All of them, in the order in which they are documented.
#[cfg(test)]
pub const FAMILIES: &[&Family] = &[
    &RESOURCES,
    &ROLE,
    &SUSPENDED,
    &CONNECTION_STATE,
    &DEVICE_STATE,
    &CLIENT,
    &QUORUM,
    &SIZE,
    &READ,
    &WRITTEN,
    &UPPER,
    &LOWER,
];

const ROLES: [&str; 3] = ["Unknown", "Primary", "Secondary"];
const CONNECTION_STATES: [&str; 10] = [
    "StandAlone",
    "Disconnecting",
    "Unconnected",
    "Timeout",
    "BrokenPipe",
    "NetworkFailure",
    "ProtocolError",
    "TearDown",
    "Connecting",
    "Connected",
];
const DEVICE_STATES: [&str; 10] = [
    "Diskless",
    "Attaching",
    "Detaching",
    "Failed",
    "Negotiating",
    "Inconsistent",
    "Outdated",
    "DUnknown",
    "Consistent",
    "UpToDate",
];

/// Adds all families. Without an engine nothing is known of replicas.
pub fn all(page: &mut Page, seen: &Gathered) {
    let Some(engine) = &seen.engine else { return };
    page.one(&RESOURCES, engine.replicas.len() + engine.clients.len());
    page.family(&ROLE, |out| {
        for one in &engine.replicas {
            let role = if one.status.role == Role::Primary { "Primary" } else { "Secondary" };
            states(out, &[&one.status.name], &ROLES, role);
        }
    });
    page.family(&SUSPENDED, |out| {
        engine.replicas.iter().for_each(|one| out.add(&[&one.status.name], super::replicas::suspended(one)));
    });
    if let Some(member) = &seen.member {
        connections(page, engine, member);
        devices(page, engine, member);
    }
    for (family, value) in [
        (&READ, (|one| one.counts.disk.volume_read) as fn(&ReplicaMetrics) -> u64),
        (&WRITTEN, |one| one.counts.disk.volume_written),
        (&UPPER, |one| one.status.requests as u64),
        (&LOWER, |one| one.counts.disk_operations),
    ] {
        page.family(family, |out| {
            let single = engine.replicas.iter().filter(|one| one.status.volumes.len() == 1);
            single.for_each(|one| out.add(&[&one.status.name, "0"], value(one)));
        });
    }
}

/// Adds a sample for each state.
fn states(out: &mut Samples<'_>, labels: &[&str], all: &[&str], present: &str) {
    for state in all {
        out.add(&[labels, &[state]].concat(), *state == present);
    }
}

/// Adds the connections to the nodes with other replicas.
fn connections(page: &mut Page, engine: &EngineSeen, member: &MemberSeen) {
    let state = &*member.view.state;
    page.family(&CONNECTION_STATE, |out| {
        for resource in engine.replicas.iter().filter_map(|one| state.resources.get(&one.status.resource)) {
            for peer in resource.spec.replicas.iter().filter(|node| **node != member.node) {
                let link = engine.links.iter().find(|link| link.node == *peer);
                let is_up = link.is_some_and(|link| link.outgoing && link.incoming);
                let labels = [&*resource.name, &*state.node_name(*peer), &*peer.0.to_string()];
                let present = if is_up { "Connected" } else { "Connecting" };
                states(out, &labels, &CONNECTION_STATES, present);
            }
        }
    });
}

/// Adds the devices of replicas and clients.
fn devices(page: &mut Page, engine: &EngineSeen, member: &MemberSeen) {
    let replicas = || engine.replicas.iter().map(|one| (&one.status.name, &one.status.volumes));
    let clients = || engine.clients.iter().map(|one| (&one.name, &one.volumes));
    page.family(&DEVICE_STATE, |out| {
        for one in &engine.replicas {
            let present = device_state(one, member);
            (0..one.status.volumes.len()).for_each(|volume| {
                states(out, &[&one.status.name, &volume.to_string()], &DEVICE_STATES, present)
            });
        }
        for (name, volumes) in clients() {
            (0..volumes.len())
                .for_each(|volume| states(out, &[name, &volume.to_string()], &DEVICE_STATES, "Diskless"));
        }
    });
    page.family(&CLIENT, |out| {
        let all = replicas().map(|one| (one, false)).chain(clients().map(|one| (one, true)));
        for ((name, volumes), is_client) in all {
            (0..volumes.len()).for_each(|volume| out.add(&[name, &volume.to_string()], is_client));
        }
    });
    page.family(&QUORUM, |out| {
        for (name, volumes) in replicas() {
            (0..volumes.len())
                .for_each(|volume| out.add(&[name, &volume.to_string()], member.lease_left_us > 0));
        }
    });
    page.family(&SIZE, |out| {
        for (name, volumes) in replicas().chain(clients()) {
            let numbered = volumes.iter().enumerate();
            numbered.for_each(|(volume, bytes)| out.add(&[name, &volume.to_string()], *bytes));
        }
    });
}

/// The state of a replica's disk, as DRBD names it.
fn device_state(one: &ReplicaMetrics, member: &MemberSeen) -> &'static str {
    let recorded = member.view.state.resources.get(&one.status.resource);
    match one.status.data {
        StoreState::Failed => "Failed",
        StoreState::Inconsistent => "Inconsistent",
        StoreState::Consistent => match recorded {
            Some(resource) if resource.broken(member.node).is_some() => "Failed",
            Some(resource) if resource.record.iss_member(member.node).is_some() => "UpToDate",
            Some(_) => "Outdated",
            None => "DUnknown",
        },
    }
}
