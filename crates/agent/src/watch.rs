//! The thread that notices what stands still on this node without an error, and tells when that
//! begins and ends (R28). It has the node give its lease up where another node could go on
//! ([`mainstay_control::standstill`], R19).
//!
//! Guarantees
//! - The thread waits for the engine no longer than it says here, and for no disk. So it can tell
//!   of a disk that hangs, and of an engine that is stopped.
//! - The thread sends its reports directly to all other agents as well, because the thread of this
//!   node's own log may hang.

use crate::clock::{boot_now, wall_ms};
use crate::engine_link::EngineLink;
use crate::lease::LeaseKeeper;
use crate::messages::{Hindered, Proposal, ProposalId, Waits};
use crate::raft::{ConsensusLog, RaftHandle};
use crate::reach::Reach;
use crate::service::hindrances::Hindrances;
use crate::threads::spawn;
use crate::transport::Transport;
use mainstay_api::engine::{EngineStatus, Reply, Request};
use mainstay_control::State;
use mainstay_control::causes::{News, Tellings, causes};
use mainstay_control::stalls::{Stall, Stalled};
use mainstay_control::standstill::{JournalWait, LOOK_MS_MAX, Measured, Standstill, Turn};
use mainstay_control::state::{Command, Entry};
use mainstay_types::{Copies, NodeId, PeerState, Role, Severity};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(500);
/// How often the engine is asked how its replicas are, unless one of them seems to stand still.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_TIMEOUT: Duration = Duration::from_millis(900);

/// Ends the thread when dropped.
pub struct Watch {
    ends: Arc<AtomicBool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// Starts the thread.
#[must_use]
pub fn start(
    node: NodeId,
    log: RaftHandle,
    (engine, hindrances, reach): (EngineLink, Hindrances, Reach),
    lease: LeaseKeeper,
    transport: Transport,
) -> Watch {
    let ends = Arc::new(AtomicBool::new(false));
    let ended = ends.clone();
    spawn("agent-watch", move || {
        let mut tellings = Tellings::default();
        let began = Instant::now();
        let mut asked = began;
        let mut status = None;
        let mut standstill = Standstill::default();
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            if asked.elapsed() >= ASK_EVERY || standstill.suspects() {
                asked = Instant::now();
                let serves = engine
                    .replicas(|replica| replica.role != Role::Secondary)
                    .into_values()
                    .any(|serves| serves);
                // The engine of a node with secondaries alone has nothing to tell here. One that
                // owes an answer already would only delay the next look.
                let answers = engine.silent_ms(boot_now()) < LOOK_MS_MAX;
                // Its watchdog changes, and a required one counts for more than the status.
                let wanted = serves || engine.watchdog().is_some();
                status = match (wanted && answers).then(|| engine.request(Request::Status, ASK_TIMEOUT)) {
                    Some(Ok(Reply::Status(status))) => Some(status),
                    _ => None,
                };
            }
            let state = log.view().state;
            let measured = measured(&engine, status.as_ref());
            if let Some(turn) = standstill.look(boot_now(), node, &state, &measured) {
                let severity = match turn {
                    Turn::GivesUp(_) => Severity::Critical,
                    Turn::HoldsAgain(_) => Severity::Info,
                };
                let subject = format!("node {}", state.node_name(node));
                note((severity, subject, turn.words(&state)), &state, &log, &transport, node);
            }
            lease.gives_up(standstill.gives_up().is_some());
            reach.look(node, &state, &transport);
            let mut seen = of_node(node, &waits(&log, &engine, &hindrances, &reach));
            seen.extend(status.iter().flat_map(|status| of_engine(node, status)));
            // Adds the causes that other nodes know, so that their consequences are not told here.
            let others = reach.disks().into_iter();
            seen.extend(others.map(|(other, ms)| Stall { what: Stalled::LogDisk(other), ms }));
            let mut seen = causes(&state, seen);
            seen.retain(|stall| !matches!(stall.what, Stalled::LogDisk(other) if other != node));
            let now_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            tell(&tellings.note(&seen, now_ms), &state, &log, &transport, node);
        }
    });
    Watch { ends }
}

/// Requests that this node waits for at this moment.
#[must_use]
pub fn waits(log: &RaftHandle, engine: &EngineLink, hindrances: &Hindrances, reach: &Reach) -> Waits {
    let hindered = hindrances.list(Instant::now()).into_iter();
    Waits {
        engine_ms: engine.silent_ms(boot_now()),
        disk_ms: log.disk_waits_ms(),
        lags: log.lags(),
        services: hindered.map(|(service, what, ms)| Hindered { service, what, ms }).collect(),
        unheard: reach.unheard(),
        cropped: reach.cropped(),
        renewal: None,
    }
}

/// Returns the stalls of a node that its agent reports.
#[must_use]
pub fn of_node(node: NodeId, waits: &Waits) -> Vec<Stall> {
    let mut list = vec![
        Stall { what: Stalled::Engine(node), ms: waits.engine_ms },
        Stall { what: Stalled::LogDisk(node), ms: waits.disk_ms },
    ];
    list.extend(waits.lags.iter().map(|(voter, lag)| Stall { what: Stalled::Voter(*voter), ms: lag.ms }));
    let unheard = waits.unheard.iter();
    list.extend(unheard.map(|(other, ms)| Stall { what: Stalled::Unheard(node, *other), ms: *ms }));
    let cropped = waits.cropped.iter();
    list.extend(cropped.map(|(other, ms)| Stall { what: Stalled::Cropped(node, *other), ms: *ms }));
    list.extend(waits.services.iter().map(|Hindered { service, what, ms }| Stall {
        what: Stalled::Service(service.clone(), node, what.clone()),
        ms: *ms,
    }));
    list.retain(Stall::counts);
    list
}

/// Returns the stalls of the primaries on a node that its engine reports.
#[must_use]
pub fn of_engine(node: NodeId, engine: &EngineStatus) -> Vec<Stall> {
    let mut list = Vec::new();
    let serving = |replica: &&mainstay_api::engine::ReplicaStatus| {
        matches!(replica.role, Role::Primary | Role::Promoting)
    };
    for replica in engine.replicas.iter().filter(serving) {
        let id = replica.resource;
        list.push(Stall { what: Stalled::Journal(id, node), ms: replica.journal_latency_us / 1000 });
        let required = |state: PeerState| matches!(state, PeerState::InSync | PeerState::Joining);
        for peer in replica.peers.iter().filter(|peer| required(peer.state)) {
            list.push(Stall { what: Stalled::Replica(id, peer.node), ms: peer.latency_us / 1000 });
        }
        if replica.copies != Copies::Enough {
            list.push(Stall { what: Stalled::Copies(id, replica.copies), ms: 0 });
        }
    }
    list.retain(Stall::counts);
    list
}

/// Measures that count for giving the lease up. `status` is of this moment, or not known.
fn measured(engine: &EngineLink, status: Option<&EngineStatus>) -> Measured {
    let leads = |replica: &&mainstay_api::engine::ReplicaStatus| replica.role == Role::Primary;
    let journals = status.into_iter().flat_map(|status| &status.replicas).filter(leads).map(|replica| {
        let answers = |peer: &&mainstay_api::engine::PeerStatus| {
            matches!(peer.state, PeerState::InSync | PeerState::Joining | PeerState::Following)
                && peer.latency_us / 1000 < LOOK_MS_MAX
        };
        JournalWait {
            resource: replica.resource,
            ms: replica.journal_latency_us / 1000,
            answering: replica.peers.iter().filter(answers).map(|peer| peer.node).collect(),
        }
    });
    Measured { engine_ms: engine.silent_ms(boot_now()), journals: journals.collect() }
}

/// Tells what has begun, and what has ended.
fn tell(news: &[News], state: &State, log: &RaftHandle, transport: &Transport, node: NodeId) {
    for one in news {
        note(one.words(state), state, log, transport, node);
    }
}

/// Makes an event of it, also where this node's own log hangs.
fn note(
    (severity, subject, text): (Severity, String, String),
    state: &State,
    log: &RaftHandle,
    transport: &Transport,
    node: NodeId,
) {
    tracing::warn!(subject, "{text}");
    let command = Command::Note { severity, subject, text };
    let entry = Entry { at_ms: wall_ms(), command };
    let proposal = Proposal { id: ProposalId::random(), entry };
    log.forwarded(proposal.clone());
    // The leader takes it, once.
    for other in state.nodes.keys().filter(|other| **other != node) {
        transport.send_proposal(*other, &proposal);
    }
}
