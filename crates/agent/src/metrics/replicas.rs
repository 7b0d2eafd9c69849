//! Metrics of the engine: the replicas on this node, their work, and how long it took.

use super::families as f;
use super::text::{ENTRIES, LATENCY, Page, Samples, seconds};
use super::{EngineSeen, Gathered};
use mainstay_api::engine::PeerStatus;
use mainstay_api::metrics::{
    DamageCounts, OperationCounts, PeerCounts, PromotionStep, ReplicaMetrics, RequestKind, ScrubCounts,
};
use mainstay_types::{NodeId, PeerState, Role, SnapshotId, SnapshotState, StoreState, Time};
use std::collections::BTreeMap;

/// The replicas with what their labels need.
struct Shown<'a> {
    engine: &'a EngineSeen,
    /// Numbers of volumes as text.
    volumes: Vec<String>,
    names: &'a BTreeMap<NodeId, String>,
}

/// All families of the engine. Nothing when it did not answer.
pub fn all(page: &mut Page, seen: &Gathered) {
    let Some(engine) = &seen.engine else { return };
    let most = engine.replicas.iter().map(|one| one.status.volumes.len().max(one.counts.volumes.len())).max();
    let volumes = (0..most.unwrap_or(0)).map(|number| number.to_string()).collect();
    let names = &seen.names;
    let shown = Shown { engine, volumes, names };
    shown.node(page);
    shown.state(page);
    shown.snapshots(page);
    shown.sizes(page);
    shown.requests(page);
    shown.latencies(page);
    shown.disks(page);
    shown.peers(page);
    shown.copies(page);
    shown.scrubs(page);
    shown.damage(page);
    page.family(&f::PROMOTION_STEPS, |out| {
        for one in &engine.replicas {
            for (step, counts) in PromotionStep::ALL.into_iter().zip(one.counts.promotions) {
                if counts.count > 0 {
                    out.summary(&[&one.status.name, step.name()], counts.count, counts.sum_us);
                }
            }
        }
    });
}

impl<'a> Shown<'a> {
    /// Calls `each` with every replica.
    fn replicas(
        &self,
        page: &mut Page,
        family: &'static f::Family,
        mut each: impl FnMut(&mut Samples<'_>, &'a str, &'a ReplicaMetrics),
    ) {
        page.family(family, |out| {
            self.engine.replicas.iter().for_each(|one| each(out, &one.status.name, one));
        });
    }

    fn name(&self, node: NodeId) -> &'a str {
        self.names.get(&node).map_or("?", String::as_str)
    }

    fn node(&self, page: &mut Page) {
        page.one(&f::FENCED, self.engine.fenced);
        page.one(&f::ENGINE_CLOCK, seconds(self.engine.now.0));
        page.one(&f::ENGINE_TURNS, self.engine.turns);
        page.one(&f::ENGINE_POLLED, seconds(self.engine.polled_us));
        page.family(&f::LINK_UP, |out| {
            for link in &self.engine.links {
                out.add(&[self.name(link.node), "outgoing"], link.outgoing);
                out.add(&[self.name(link.node), "incoming"], link.incoming);
            }
        });
        page.family(&f::LINK_QUEUED, |out| {
            let links = self.engine.links.iter();
            links.for_each(|link| out.add(&[self.name(link.node)], link.queued_bytes));
        });
    }

    fn state(&self, page: &mut Page) {
        self.replicas(page, &f::ROLE, |out, name, one| {
            out.add(&[name, &one.status.role.to_string()], 1_u64);
        });
        self.replicas(page, &f::SERVING, |out, name, one| {
            let devices = one.status.devices.len();
            let whole = one.status.attached || devices > 0 && devices == one.status.volumes.len();
            out.add(&[name], one.status.role == Role::Primary && whole);
        });
        self.replicas(page, &f::CONSISTENT, |out, name, one| {
            out.add(&[name], one.status.data == StoreState::Consistent);
        });
        self.replicas(page, &f::SUSPENDED, |out, name, one| out.add(&[name], suspended(one)));
        self.replicas(page, &f::NO_SPACE, |out, name, one| out.add(&[name], one.status.no_space.is_some()));
        self.replicas(page, &f::EPOCH, |out, name, one| out.add(&[name], one.status.epoch.0));
        self.replicas(page, &f::COMMIT, |out, name, one| out.add(&[name], one.status.commit.0));
        self.replicas(page, &f::DURABLE, |out, name, one| out.add(&[name], one.status.durable.0));
        self.replicas(page, &f::END, |out, name, one| out.add(&[name], one.status.end.0));
        self.replicas(page, &f::REQUIRED, |out, name, one| {
            if one.counts.required > 0 {
                out.add(&[name], one.counts.required);
            }
        });
        self.replicas(page, &f::COPIES, |out, name, one| {
            if one.counts.copies > 0 {
                out.add(&[name], one.counts.copies);
            }
        });
        self.replicas(page, &f::MIN_COPIES, |out, name, one| {
            if one.counts.copies > 0 {
                out.add(&[name], one.counts.min_copies);
            }
        });
        self.replicas(page, &f::IN_FLIGHT, |out, name, one| out.add(&[name], one.status.requests));
        self.replicas(page, &f::DISK_OPERATIONS, |out, name, one| {
            out.add(&[name], one.counts.disk_operations);
        });
    }

    fn snapshots(&self, page: &mut Page) {
        self.replicas(page, &f::SNAPSHOTS, |out, name, one| {
            let states = [SnapshotState::Held, SnapshotState::Taking, SnapshotState::Missing];
            // A resource without any has no lines of them.
            let taken = one.status.snapshots.iter().filter(|snapshot| snapshot.id != SnapshotId::BEFORE_COPY);
            for state in states.into_iter().filter(|_| taken.clone().next().is_some()) {
                let count = taken.clone().filter(|snapshot| snapshot.state == state).count();
                out.add(&[name, &state.to_string()], count);
            }
        });
        self.replicas(page, &f::CACHED, |out, name, one| {
            if let Some(bytes) = one.counts.cached_bytes {
                out.add(&[name], bytes);
            }
        });
    }

    fn sizes(&self, page: &mut Page) {
        self.replicas(page, &f::JOURNAL_SIZE, |out, name, one| out.add(&[name], one.status.journal_bytes));
        self.replicas(page, &f::JOURNAL_USED, |out, name, one| {
            out.add(&[name], one.status.journal_bytes_used);
        });
        self.replicas(page, &f::VOLUME_SIZE, |out, name, one| {
            for (bytes, number) in one.status.volumes.iter().zip(&self.volumes) {
                out.add(&[name, number], *bytes);
            }
        });
        self.replicas(page, &f::VOLUME_ALLOCATED, |out, name, one| {
            for (bytes, number) in one.status.allocated.iter().zip(&self.volumes) {
                out.add(&[name, number], *bytes);
            }
        });
    }

    fn requests(&self, page: &mut Page) {
        let count: fn(&OperationCounts) -> u64 = |done| done.count;
        let bytes: fn(&OperationCounts) -> u64 = |done| done.bytes;
        let errors: fn(&OperationCounts) -> u64 = |done| done.errors;
        for (family, value) in
            [(&f::REQUESTS, count), (&f::REQUEST_BYTES, bytes), (&f::REQUEST_ERRORS, errors)]
        {
            self.replicas(page, family, |out, name, one| {
                if !ever_served(one) {
                    return;
                }
                for (volume, number) in one.counts.volumes.iter().zip(&self.volumes) {
                    for (kind, done) in RequestKind::ALL.into_iter().zip(&volume.requests) {
                        out.add(&[name, number, kind.name()], value(done));
                    }
                }
            });
        }
    }

    fn latencies(&self, page: &mut Page) {
        self.replicas(page, &f::REQUEST_SECONDS, |out, name, one| {
            for (kind, took) in RequestKind::ALL.into_iter().zip(&one.counts.requests_us) {
                if !took.is_empty() {
                    out.histogram(&[name, kind.name()], took, &LATENCY);
                }
            }
        });
        self.replicas(page, &f::JOURNAL_SECONDS, |out, name, one| {
            if !one.counts.journal_us.is_empty() {
                out.histogram(&[name], &one.counts.journal_us, &LATENCY);
            }
        });
        self.replicas(page, &f::ACK_SECONDS, |out, name, one| {
            for peer in one.counts.peers.iter().filter(|peer| !peer.acknowledged_us.is_empty()) {
                out.histogram(&[name, self.name(peer.node)], &peer.acknowledged_us, &LATENCY);
            }
        });
        self.replicas(page, &f::COMMIT_SECONDS, |out, name, one| {
            if !one.counts.commit_us.is_empty() {
                out.histogram(&[name], &one.counts.commit_us, &LATENCY);
            }
        });
        self.replicas(page, &f::READ_SECONDS, |out, name, one| {
            if !one.counts.read_us.is_empty() {
                out.histogram(&[name], &one.counts.read_us, &LATENCY);
            }
        });
        self.replicas(page, &f::BATCH_ENTRIES, |out, name, one| {
            if !one.counts.batch_entries.is_empty() {
                out.histogram(&[name], &one.counts.batch_entries, &ENTRIES);
            }
        });
    }

    fn disks(&self, page: &mut Page) {
        self.replicas(page, &f::DISK_WRITTEN, |out, name, one| {
            out.add(&[name, "journal"], one.counts.disk.journal_written);
            out.add(&[name, "volume"], one.counts.disk.volume_written);
            out.add(&[name, "metadata"], one.counts.disk.metadata_written);
            out.add(&[name, "snapshot"], one.counts.disk.snapshot_written);
        });
        self.replicas(page, &f::DISK_READ, |out, name, one| {
            out.add(&[name, "journal"], one.counts.disk.journal_read);
            out.add(&[name, "volume"], one.counts.disk.volume_read);
        });
        self.replicas(page, &f::ZEROED, |out, name, one| out.add(&[name], one.counts.disk.zeroed));
    }

    /// Calls `each` with every peer of every primary.
    fn each_peer(
        &self,
        page: &mut Page,
        family: &'static f::Family,
        mut each: impl FnMut(&mut Samples<'_>, [&'a str; 2], &'a PeerStatus),
    ) {
        self.replicas(page, family, |out, name, one| {
            for peer in &one.status.peers {
                each(out, [name, self.name(peer.node)], peer);
            }
        });
    }

    /// Adds one counter of every peer that was fed from here.
    fn each_fed(&self, page: &mut Page, family: &'static f::Family, value: fn(&PeerCounts) -> u64) {
        self.replicas(page, family, |out, name, one| {
            for peer in &one.counts.peers {
                out.add(&[name, self.name(peer.node)], value(peer));
            }
        });
    }

    fn peers(&self, page: &mut Page) {
        let now = self.engine.now;
        self.each_peer(page, &f::PEER_STATE, |out, [name, peer], one| {
            out.add(&[name, peer, &one.state.to_string()], 1_u64);
        });
        self.each_peer(page, &f::PEER_CONNECTED, |out, labels, one| {
            out.add(&labels, one.state != PeerState::Disconnected);
        });
        self.each_peer(page, &f::PEER_LAG_ENTRIES, |out, labels, one| out.add(&labels, one.lag_entries));
        self.each_peer(page, &f::PEER_LAG_BYTES, |out, labels, one| out.add(&labels, one.lag_bytes));
        self.each_peer(page, &f::PEER_LAG_SECONDS, |out, labels, one| {
            let since = if one.lag_since_us == Time(0) { now } else { one.lag_since_us };
            out.add(&labels, seconds(now.us_since(since)));
        });
        self.each_peer(page, &f::PEER_LAG_INEXACT, |out, labels, one| out.add(&labels, one.lag_more));
        self.each_peer(page, &f::PEER_SLOW, |out, labels, one| out.add(&labels, one.slow.is_some()));
        self.replicas(page, &f::PEER_SLOW_EXITS, |out, name, one| {
            // Counted since this node leads, so only while it does.
            for peer in one.counts.peers.iter().filter(|_| one.counts.required > 0) {
                out.add(&[name, self.name(peer.node)], peer.times_slow);
            }
        });
        self.each_fed(page, &f::PEER_SENT, |peer| peer.sent_bytes);
        self.each_fed(page, &f::PEER_BATCHES, |peer| peer.sent_batches);
    }

    fn scrubs(&self, page: &mut Page) {
        let compared = |one: &ReplicaMetrics| one.counts.scrubs.extents > 0 || one.counts.scrubs.running;
        let mut family = |family, value: fn(&ScrubCounts) -> Option<u64>| {
            self.replicas(page, family, |out, name, one| {
                if let Some(value) = value(&one.counts.scrubs).filter(|_| compared(one)) {
                    out.add(&[name], value);
                }
            });
        };
        family(&f::SCRUB_EXTENTS, |scrubs| Some(scrubs.extents));
        family(&f::SCRUB_DIFFERENT, |scrubs| Some(scrubs.different));
        family(&f::SCRUB_REPAIRED, |scrubs| Some(scrubs.repaired));
        family(&f::SCRUB_RUNNING, |scrubs| Some(u64::from(scrubs.running)));
        family(&f::SCRUB_UNREPAIRED, |scrubs| scrubs.unrepaired);
    }

    fn damage(&self, page: &mut Page) {
        let mut family = |family, value: fn(&DamageCounts) -> u64| {
            self.replicas(page, family, |out, name, one| {
                if one.counts.damage != DamageCounts::default() {
                    out.add(&[name], value(&one.counts.damage));
                }
            });
        };
        family(&f::DAMAGE_FOUND, |damage| damage.found);
        family(&f::DAMAGE_MENDED, |damage| damage.mended);
        family(&f::DAMAGE_UNREADABLE, |damage| damage.unreadable);
        family(&f::DAMAGE_COPIED, |damage| damage.copied);
    }

    fn copies(&self, page: &mut Page) {
        self.each_fed(page, &f::COPY_SENT, |peer| peer.copied_bytes);
        self.each_fed(page, &f::COPY_EXTENTS, |peer| peer.copied_extents);
        self.replicas(page, &f::COPY_RECEIVED, |out, name, one| out.add(&[name], one.counts.copied_bytes));
        self.replicas(page, &f::COPY_RECEIVED_EXTENTS, |out, name, one| {
            out.add(&[name], one.counts.copied_extents);
        });
        self.each_peer(page, &f::COPY_PROGRESS, |out, labels, one| {
            if one.state == PeerState::Copying {
                out.add(&labels, super::text::Value::Real(f64::from(one.copied_permille) / 1000.0));
            }
        });
        self.each_peer(page, &f::COPY_RATE, |out, labels, one| {
            if let Some(copy) = one.copy {
                out.add(&labels, copy.bytes_per_s);
            }
        });
        self.each_peer(page, &f::COPY_REMAINING, |out, labels, one| {
            if let Some(copy) = one.copy {
                out.add(&labels, seconds(copy.left_ms.saturating_mul(1000)));
            }
        });
        self.replicas(page, &f::FILLING_THROTTLED, |out, name, one| {
            if one.counts.required > 0 {
                out.add(&[name], one.counts.filling_slowed);
            }
        });
    }
}

/// Whether requests wait for something that disks and network do not bring about by themselves.
pub fn suspended(one: &ReplicaMetrics) -> bool {
    let leads = matches!(one.status.role, Role::Promoting | Role::Primary);
    leads && (one.status.paused || one.status.requests > 0 && !one.status.waiting_for.is_empty())
}

/// Whether the replica ever served here. A replica that never did, as most secondaries, has no
/// requests to show.
fn ever_served(one: &ReplicaMetrics) -> bool {
    let asked = one.counts.requests_us.iter().any(|took| !took.is_empty());
    asked || one.status.role != Role::Secondary
}
