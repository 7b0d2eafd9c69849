//! Requests of the agent to the shard (identity of this node, leases, records, opening and dropping
//! of replicas), and the reports that the agent gets.

use super::{Identity, Shard};
use crate::attachment::OpenClient;
use crate::devices::DeviceJob;
use crate::disk::{Content, Disk, NewJournal};
use crate::guard::GuardTarget;
use crate::ipc::Client;
use crate::lifecycle::{Expected, Job, Opened};
use crate::metrics_page;
use crate::open_replica::{AgentReply, Closing, OpenReplica, ShardParts};
use crate::transport::{Channel, Identities, Transport};
use mainstay_api::engine::{
    EngineStatus, FrontendStatus, GuardEntry, JournalPlace, Peer, Proofs, Reply, Request,
};
use mainstay_api::metrics::MetricsPage;
use mainstay_codec::JournalLabel;
use mainstay_replica::ScrubOrder;
use mainstay_silence::guard_acts_at;
use mainstay_store::StoreConfig;
use mainstay_trust::{CertificateDer, Credentials, Key, Payloads, Trust, Zeroizing};
use mainstay_types::{Code, FrontendKind, HexBytes, NodeId, ResourceId, Time};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;

impl Shard {
    pub(super) fn request(&mut self, now: Time, client: &Client, request: Request, answer: AgentReply) {
        match request {
            Request::Hello { node, cluster, .. } => {
                self.devices.submit(DeviceJob::Keep);
                answer(self.hello(Identity { cluster, node }));
            }
            Request::Status => answer(Reply::Status(self.status(now))),
            Request::Metrics { after } => answer(Reply::Metrics(self.metrics(now, after))),
            _ if self.identity.is_none() => {
                answer(Reply::refused(
                    Code::NoHello,
                    "the engine does not know its node yet",
                    "say hello first",
                ));
            }
            Request::Trust { proofs } => answer(self.set_identities(*proofs)),
            Request::Peers { peers } => answer(self.set_peers(&peers)),
            Request::Create { resource, .. } | Request::Open { resource, .. }
                if self.clients.contains_key(&resource) =>
            {
                let message = format!("a client of resource {resource} is open here");
                answer(Reply::refused(Code::Attached, message, "detach it first"));
            }
            Request::AttachClient { name, record, instance } => {
                self.attach_client(now, name, *record, instance, answer);
            }
            Request::DetachClient { resource } => self.detach_client(now, resource, answer),
            Request::Create {
                resource, volumes, journal_bytes, incarnation, dir, journal, content, ..
            } => {
                let journal = journal.map(|JournalPlace { path, volatile }| NewJournal {
                    path: path.into(),
                    label: JournalLabel { resource, incarnation, journal_bytes, volatile },
                });
                let config = StoreConfig { resource, incarnation, volumes, journal_bytes, sums: true };
                let content = content.map(Content::from);
                let (dir, client) = (dir.into(), client.clone());
                self.lifecycle.submit(Job::Create { dir, config, journal, content, client, answer });
            }
            Request::Open { resource, name, dir, incarnation, held } => {
                let expected = Expected { resource, incarnation, held };
                self.open(resource, name, dir.into(), expected, answer);
            }
            Request::Drop { resource } => self.drop_replica(now, resource, answer),
            Request::Lease { until_us } => {
                answer(match self.lease(now, until_us) {
                    Ok(silenced_us) => Reply::Lease { until_us, silenced_us },
                    Err(error) => {
                        let message = format!("the lease was not taken: {error}");
                        Reply::refused(Code::Lease, message, "restart the engine unless it is being stopped")
                    }
                });
            }
            Request::Guard { entries } => {
                answer(self.set_targets(&entries));
            }
            Request::Record { record } => {
                let primary = record.primary == self.identity.map(|identity| identity.node);
                // While it is attached elsewhere a client writes, in the same epoch.
                let own = primary && record.attached.is_none();
                let (resource, epoch) = (record.resource, record.epoch);
                self.devices.submit(DeviceJob::Record { resource, epoch, own });
                self.left.record(&self.devices, &self.options.run_dir, resource, epoch, own);
                self.on_replica(now, record.resource, answer, |replica, shared, answer| {
                    replica.record(shared, record);
                    answer(Reply::Ok);
                });
            }
            Request::Demote { resource } => self.on_replica(now, resource, answer, |replica, _, answer| {
                replica.demote(now);
                answer(Reply::Ok);
            }),
            Request::Grow { resource, volumes } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    for (volume, bytes) in volumes {
                        replica.grow(now, volume, bytes);
                    }
                    answer(Reply::Ok);
                });
            }
            Request::Promise { resource, epoch } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.promise_ahead(epoch, answer)
                });
            }
            Request::Snapshots { resource, wanted, mark, to } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.snapshots(now, &wanted, mark, to);
                    answer(Reply::Ok);
                });
            }
            Request::Pause { resource } => {
                self.on_replica(now, resource, answer, |replica, _, answer| replica.pause(now, answer));
            }
            Request::Resume { resource } => self.on_replica(now, resource, answer, |replica, _, answer| {
                replica.resume(now);
                answer(Reply::Ok);
            }),
            Request::Digest { resource } => {
                self.on_replica(now, resource, answer, |replica, shared, answer| {
                    replica.start_digest(shared, answer)
                });
            }
            Request::Scrub { resource, repair, rate, after } => {
                let order = ScrubOrder { repair, rate };
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.scrub(now, order, after, answer)
                });
            }
            Request::StopScrub { resource } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.stop_scrub(now);
                    answer(Reply::Ok);
                })
            }
            Request::ScrubStatus { resource } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    answer(Reply::Scrub { status: replica.scrub_status(now) });
                });
            }
            Request::Blank { resource, volume } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    answer(Reply::Blank { blank: replica.is_blank(volume) });
                });
            }
            Request::Successor { within_ms } => answer(self.successor_asked(now, within_ms)),
            Request::Detach { resource } => {
                self.on_replica(now, resource, answer, |replica, shared, answer| {
                    replica.fence(shared);
                    answer(Reply::Ok);
                })
            }
        }
    }

    fn on_replica(
        &mut self,
        now: Time,
        resource: ResourceId,
        answer: AgentReply,
        work: impl FnOnce(&mut OpenReplica, &mut ShardParts<'_>, AgentReply),
    ) {
        if self.replicas.contains_key(&resource) {
            self.with(now, resource, |replica, shared| work(replica, shared, answer));
        } else {
            answer(Reply::refused(
                Code::UnknownResource,
                format!("resource {resource} is not open here"),
                "open it first",
            ));
        }
    }

    fn hello(&mut self, identity: Identity) -> Reply {
        match self.identity {
            Some(known) if known == identity => Reply::Ok,
            Some(known) => Reply::refused(
                Code::OtherNode,
                format!("this engine serves node {} of cluster {:#x}", known.node, known.cluster),
                "restart the engine if this machine has another identity now",
            ),
            None => {
                let pool = self.pool.clone();
                match Transport::new(pool, identity.cluster, identity.node, self.options.listen) {
                    Ok(transport) => {
                        self.transport = Some(transport);
                        self.identity = Some(identity);
                        Reply::Ok
                    }
                    Err(error) => {
                        let cause =
                            std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                        Reply::refused(
                            Code::Listen,
                            format!("{error}: {cause}"),
                            "free the address, or configure another",
                        )
                    }
                }
            }
        }
    }

    fn set_identities(&mut self, proofs: Proofs) -> Reply {
        let der = |bytes: HexBytes| CertificateDer::from(bytes.0);
        let own = Key::read(Zeroizing::new(proofs.key.0))
            .and_then(|key| Credentials::new(&key, proofs.chain.into_iter().map(der).collect()));
        let own = match own {
            Ok(own) => own,
            Err(error) => {
                let message = format!("the certificate of this node cannot be used: {error}");
                let remedy = "look at the agent's log; the engine keeps the certificate that it had";
                return Reply::refused(Code::CertificateRefused, message, remedy);
            }
        };
        let trust = Arc::new(Trust {
            cluster: Some(proofs.cluster),
            authorities: proofs.authorities.into_iter().map(der).collect(),
            members: Some(proofs.members.into_iter().collect()),
        });
        let allowed = if proofs.allows_clear { Payloads::Clear } else { Payloads::Encrypted };
        if let Some(transport) = &mut self.transport {
            transport.set_identities(Identities { own, trust, allowed });
        }
        Reply::Ok
    }

    fn set_peers(&mut self, peers: &[Peer]) -> Reply {
        let mut addrs = BTreeMap::new();
        for peer in peers {
            let Ok(addr) = peer.addr.parse::<SocketAddr>() else {
                let message = format!("{} is not an address of the form IP:port", peer.addr);
                return Reply::refused(Code::Address, message, "state the engine's address as IP:port");
            };
            addrs.insert(peer.node, addr);
        }
        if let Some(transport) = &mut self.transport {
            transport.set_peers(&addrs);
        }
        Reply::Ok
    }

    fn set_targets(&mut self, entries: &[GuardEntry]) -> Reply {
        match entries.iter().map(GuardTarget::try_from).collect::<Result<Vec<_>, _>>() {
            Ok(targets) => {
                if let Err(error) = self.users.note(entries) {
                    let message = format!("cannot note the users of devices: {error}");
                    return Reply::refused(Code::RunDir, message, "make the run directory writable");
                }
                // The agent stops what ran on devices of an engine before this one, and it must be
                // able to stop.
                if let Err(error) = self.guard.set_targets(targets) {
                    return Reply::refused(
                        Code::Guard,
                        error.to_string(),
                        "wait until the engine runs again",
                    );
                }
                for entry in entries {
                    self.devices.submit(DeviceJob::GiveUp { resource: entry.resource });
                }
                Reply::Ok
            }
            Err(error) => Reply::refused(
                Code::Guard,
                error.to_string(),
                "state absolute paths and addresses with prefix",
            ),
        }
    }

    fn lease(&mut self, now: Time, until: Time) -> io::Result<Time> {
        // This thread may have stood still, and the guard with it: another node may have been
        // promoted meanwhile.
        if now >= self.lease_until {
            self.with_all(now, |replica, shared| replica.lease_ended(shared));
        }
        let silenced = self.guard.set_lease(until)?;
        self.lease_until = until;
        if self.fenced && now < guard_acts_at(until) {
            tracing::info!("the lease is valid");
            self.fenced = false;
            self.with_all(now, |replica, shared| replica.unfence(shared));
        }
        Ok(silenced)
    }

    fn open(
        &mut self,
        resource: ResourceId,
        name: String,
        dir: std::path::PathBuf,
        expected: Expected,
        answer: AgentReply,
    ) {
        if let Some(replica) = self.replicas.get(&resource) {
            if self.dropping.contains_key(&resource) {
                let message = "the replica is being closed";
                return answer(Reply::refused(Code::Busy, message, "open it again when it is closed"));
            }
            return answer(Reply::Opened { incarnation: replica.status().incarnation });
        }
        let waiting = self.being_opened.entry(resource).or_default();
        waiting.push(answer);
        if waiting.len() == 1 {
            // The answers wait here: the lifecycle's own would only reach the first caller.
            self.lifecycle.submit(Job::Open { resource, name, dir, expected, answer: Box::new(|_| {}) });
        }
    }

    pub(super) fn opened(&mut self, now: Time, opened: Opened) {
        let answers = self.being_opened.remove(&opened.resource).unwrap_or_default();
        let reply = match (opened.result, self.identity) {
            (Ok((store, _)), _) if store.config().resource != opened.resource => Reply::refused(
                Code::OtherResource,
                format!("the directory holds resource {}", store.config().resource),
                "state the directory of this resource",
            ),
            (Ok((store, files)), Some(identity)) => {
                let incarnation = store.config().incarnation;
                let id = self.next_disk;
                self.next_disk += 1;
                self.disks.insert(id, opened.resource);
                let disk = Disk::new(id, files, self.pool.clone());
                let disk = if self.options.preallocate { disk.preallocated() } else { disk };
                let caches = self.choice.kind.is_some_and(FrontendKind::caches);
                let replica =
                    OpenReplica::new(identity.node, opened.name, (store, disk), caches, &self.options);
                self.replicas.insert(opened.resource, replica);
                for peer in self.up.clone() {
                    self.with(now, opened.resource, |replica, _| replica.peer(now, peer, true));
                }
                let first = (opened.resource, Channel { peer: NodeId(0), initiated_by_us: false });
                while let Some((key, _)) = self.early.range(first..).next()
                    && key.0 == opened.resource
                {
                    let key = *key;
                    if let Some(envelope) = self.early.remove(&key) {
                        self.with(now, opened.resource, |replica, _| replica.message(now, key.1, envelope));
                    }
                }
                self.touched.insert(opened.resource);
                Reply::Opened { incarnation }
            }
            (Ok(_), None) => {
                Reply::refused(Code::NoHello, "the engine does not know its node yet", "say hello first")
            }
            (Err(error), _) => error.to_reply(),
        };
        if let Reply::Error(error) = &reply {
            tracing::error!(resource = %opened.resource, %error, "cannot open the replica");
        }
        for answer in answers {
            answer(reply.clone());
        }
        if self.dropping.contains_key(&opened.resource) {
            self.close(now, opened.resource);
        }
    }

    /// A replica that is still being opened is closed once it is open. The caller that drops it
    /// need not be the one that opened it, and may remove the files next.
    fn drop_replica(&mut self, now: Time, resource: ResourceId, answer: AgentReply) {
        self.dropping.entry(resource).or_default().push(answer);
        if !self.being_opened.contains_key(&resource) {
            self.close(now, resource);
        }
    }

    /// Closes a replica that is to be dropped. One that is not open counts as closed at once.
    pub(super) fn close(&mut self, now: Time, resource: ResourceId) {
        if self.replicas.contains_key(&resource) {
            self.with(now, resource, |replica, shared| replica.close(shared));
        } else {
            self.answer_dropped(resource);
        }
    }

    pub(super) fn finish_drop(&mut self, resource: ResourceId) {
        let closed = self.replicas.get(&resource).is_some_and(|replica| replica.closing() == Closing::Done);
        if !closed || !self.dropping.contains_key(&resource) {
            return;
        }
        self.replicas.remove(&resource);
        self.awaiting.remove(&resource);
        self.disks.retain(|_, owner| *owner != resource);
        if let Some(at) = self.deadlines.remove(&resource) {
            self.timers.remove(&(at, resource));
        }
        self.answer_dropped(resource);
    }

    /// Replicas that are not being closed. An agent that has just started would take those for
    /// open, and hear nothing of their end.
    pub(super) fn kept(&self) -> impl Iterator<Item = &OpenReplica> {
        let kept = self.replicas.iter().filter(|(resource, _)| !self.dropping.contains_key(resource));
        kept.map(|(_, replica)| replica)
    }

    fn answer_dropped(&mut self, resource: ResourceId) {
        for answer in self.dropping.remove(&resource).unwrap_or_default() {
            answer(Reply::Ok);
        }
    }

    /// See `metrics_page.rs`.
    fn metrics(&self, now: Time, after: Option<ResourceId>) -> MetricsPage {
        let peers = self.transport.as_ref().filter(|_| after.is_none()).map(Transport::peers);
        let first = self.clients.values().filter(|_| after.is_none()).take(metrics_page::CLIENTS_MAX);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        MetricsPage {
            now_us: now,
            fenced: self.fenced,
            turns: self.turns,
            polled_us: self.ring.polled().as_micros() as u64,
            links: metrics_page::links(peers.unwrap_or_default()),
            clients: first.map(OpenClient::status).collect(),
            ..metrics_page::replicas(self.replicas.range((from, Bound::Unbounded)))
        }
    }

    pub(super) fn status(&self, now: Time) -> EngineStatus {
        EngineStatus {
            node: self.identity.map(|identity| identity.node),
            listen: Some(self.options.listen.to_string()),
            now_us: now,
            lease_until_us: self.lease_until,
            fenced: self.fenced,
            silenced_us: self.guard.silenced(),
            frontend: Some(FrontendStatus { kind: self.choice.kind, reason: self.choice.reason.clone() }),
            watchdog: self.watchdog.status(),
            replicas: self.kept().map(|replica| replica.status_at(now)).collect(),
            clients: self.clients.values().map(OpenClient::status).collect(),
        }
    }
}
