//! The thread that drives the Raft core.
//!
//! Guarantees
//! - A vote, an entry or a snapshot is durable before any other node hears of it: messages that
//!   depend on them leave after [`RaftStore::persist`] returned.
//! - A proposal takes effect at most once, however often it is repeated here or forwarded to other
//!   leaders. It is repeated until its outcome was applied here or its proposer's patience ends.
//! - A change of members is durable as committed before the node acts on it, so a restart never
//!   falls back to an older majority.
//! - When the store fails, the thread ends and says so. The agent ends with it (R13).

mod age;
mod lead;
mod reach;
mod reads;
mod replay;

use self::age::Age;
use super::machine::Machine;
use super::store::{RaftStore, RaftStoreError, SNAPSHOT_EVERY_ENTRIES};
use super::wire;
use super::{ConsensusLog, ProposeError, View};
use crate::clock;
use crate::error::AgentError;
use crate::level;
use crate::messages::{LogLag, Proposal, ProposalId};
use crate::threads::{lock, spawn};
use crate::transport::Transport;
use mainstay_control::state::{Command, Entry as StateEntry, Outcome};
use mainstay_types::{NodeId, Problem, Time};
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfState, Entry, EntryType, Message, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};
use reach::Reach;
use reads::Reads;
use replay::Replay;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One tick; heartbeats every 2, elections after 8 to 16 of them: 100 ms, and 400 to 800 ms.
const TICK: Duration = Duration::from_millis(50);
const HEARTBEAT_TICKS: usize = 2;
const ELECTION_TICKS: usize = 8;
/// A wait that ended more than so many ticks late means that the machine has stood still.
const LATE_TICKS: u32 = 2;
/// Messages and proposals that wait for the thread; more messages are dropped.
const QUEUE_MAX: usize = 4096;
/// Proposals of this node whose outcome is awaited.
const WAITING_MAX: usize = 1024;
/// An unanswered proposal is sent again after this time.
const REPEAT_AFTER: Duration = Duration::from_millis(400);
/// How long a submitted proposal is repeated.
const SUBMIT_PATIENCE: Duration = Duration::from_secs(3);

/// Settings that a driver is started with.
pub struct RaftSettings {
    pub node: NodeId,
    /// Called when the thread ended because it cannot go on.
    pub on_fatal: Box<dyn FnOnce(AgentError) + Send>,
}

enum Input {
    Message(Box<Message>),
    Forwarded(Proposal),
    Propose {
        proposal: Proposal,
        reply: SyncSender<Outcome>,
        deadline: Instant,
    },
    /// Answer when the state here is no older than the majority's at this moment.
    Confirm {
        reply: SyncSender<()>,
        deadline: Instant,
    },
    Stop,
}

type Listener = Box<dyn Fn(&View) + Send>;

/// The rest of the agent's access to the log. Clones share it.
#[derive(Clone)]
pub struct RaftHandle {
    queue: SyncSender<Input>,
    shared: Arc<DriverShared>,
}

struct DriverShared {
    view: Mutex<View>,
    listeners: Mutex<Vec<Listener>>,
    stopped: AtomicBool,
    /// Age of the state, when no majority confirms it.
    age: Mutex<Age>,
    /// When the thread began to write to its disk, on the boot-time clock in microseconds; 0 while
    /// it does not.
    writes_since: AtomicU64,
    /// Voters that lack entries, if this node leads.
    lags: Mutex<BTreeMap<NodeId, LogLag>>,
}

/// Starts the thread on an opened store.
///
/// # Errors
/// When the store's content cannot be used.
pub fn start(
    store: RaftStore,
    transport: Transport,
    settings: RaftSettings,
) -> Result<RaftHandle, RaftStoreError> {
    let machine = Machine::restore(store.newest_snapshot())?;
    let applied = store.newest_snapshot().get_metadata().index;
    let conf_state = store.newest_snapshot().get_metadata().get_conf_state().clone();
    let replay = Replay::new(store.last());
    let config = core_config(settings.node, applied);
    let raw = RawNode::new(&config, store, &slog::Logger::root(ToTracing, slog::o!()))
        .map_err(|error| RaftStoreError::Core { source: Box::new(error) })?;
    let (queue, inputs) = sync_channel(QUEUE_MAX);
    let mut driver = Driver {
        node: settings.node,
        raw,
        machine,
        applied,
        replay,
        conf_state,
        transport,
        waiting: BTreeMap::new(),
        snapshots_sent: BTreeMap::new(),
        reach: Reach::new(settings.node),
        reads: Reads::default(),
        confirmed: BTreeMap::new(),
        seated: None,
        dead_since: BTreeMap::new(),
        parting: None,
        shared: Arc::new(DriverShared {
            view: Mutex::default(),
            listeners: Mutex::new(Vec::new()),
            stopped: AtomicBool::new(false),
            age: Mutex::default(),
            writes_since: AtomicU64::new(0),
            lags: Mutex::default(),
        }),
        answers: Vec::new(),
        state_changed: true,
    };
    // Applies entries that are known to be committed before any thread sees the state.
    driver.process_ready()?;
    lock(&driver.shared.age).applied(driver.applied, clock::boot_now());
    driver.publish();
    let handle = RaftHandle { queue, shared: driver.shared.clone() };
    spawn("agent-raft", move || {
        let shared = driver.shared.clone();
        let end = Ending { shared, on_fatal: Some(settings.on_fatal) };
        let result = driver.run(&inputs);
        end.finish(result);
    });
    Ok(handle)
}

fn core_config(node: NodeId, applied: u64) -> raft::Config {
    raft::Config {
        id: u64::from(node.0),
        election_tick: ELECTION_TICKS,
        heartbeat_tick: HEARTBEAT_TICKS,
        applied,
        max_size_per_msg: 1 << 20,
        max_inflight_msgs: 64,
        check_quorum: true,
        pre_vote: true,
        ..raft::Config::default()
    }
}

/// Reports the end of the thread, be it by an error or by a panic of the Raft core.
struct Ending {
    shared: Arc<DriverShared>,
    on_fatal: Option<Box<dyn FnOnce(AgentError) + Send>>,
}

impl Ending {
    fn finish(mut self, result: Result<(), RaftStoreError>) {
        let on_fatal = self.on_fatal.take();
        if let (Err(error), Some(on_fatal)) = (result, on_fatal) {
            on_fatal(error.into());
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if let Some(on_fatal) = self.on_fatal.take() {
            on_fatal(AgentError::Fatal("the thread of the control plane's log panicked".to_owned()));
        }
    }
}

impl RaftHandle {
    /// Takes a message that another agent's Raft core sent.
    pub fn message(&self, bytes: &[u8]) {
        let message = match wire::decode(bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(%error, "dropped an unreadable message of another agent");
                return;
            }
        };
        // Dropping is allowed; the core repeats what matters.
        drop(self.queue.try_send(Input::Message(Box::new(message))));
    }

    /// Takes a proposal that another agent forwarded because this node leads, as far as it knows.
    pub fn forwarded(&self, proposal: Proposal) {
        drop(self.queue.try_send(Input::Forwarded(proposal)));
    }

    fn queue_proposal(
        &self,
        command: Command,
        reply: SyncSender<Outcome>,
        timeout: Duration,
    ) -> Result<ProposalId, ProposeError> {
        let id = ProposalId::random();
        let entry = StateEntry { at_ms: clock::wall_ms(), command };
        let deadline = Instant::now() + timeout;
        let input = Input::Propose { proposal: Proposal { id, entry }, reply, deadline };
        match self.queue.try_send(input) {
            Ok(()) => Ok(id),
            Err(TrySendError::Full(_)) => Err(ProposeError::Busy),
            Err(TrySendError::Disconnected(_)) => Err(ProposeError::Stopped),
        }
    }

    /// Ends the thread. Outstanding proposals are reported as unknown.
    pub fn stop(&self) {
        drop(self.queue.try_send(Input::Stop));
    }

    /// For how long the disk has not completed a write of the log, in milliseconds; 0 if none is
    /// open.
    #[must_use]
    pub fn disk_waits_ms(&self) -> u64 {
        match self.shared.writes_since.load(Ordering::SeqCst) {
            0 => 0,
            since => clock::boot_now().ms_since(Time(since)),
        }
    }

    /// The voters that lack entries, and since when, if this node leads.
    #[must_use]
    pub fn lags(&self) -> BTreeMap<NodeId, LogLag> {
        lock(&self.shared.lags).clone()
    }

    /// Milliseconds since this node last knew that its state is the present one, without asking
    /// anybody; `None` if that is unknown.
    #[must_use]
    pub fn age_ms(&self) -> Option<u64> {
        lock(&self.shared.age).ms(clock::boot_now())
    }

    /// Whether the thread has ended and closed its store.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }
}

impl ConsensusLog for RaftHandle {
    fn propose(&self, command: Command, timeout: Duration) -> Result<Outcome, ProposeError> {
        let (reply, outcome) = sync_channel(1);
        let id = self.queue_proposal(command, reply, timeout)?;
        outcome.recv_timeout(timeout + TICK).map_err(|_| ProposeError::Unknown { id })
    }

    fn submit(&self, command: Command) {
        let (reply, _) = sync_channel(1);
        if let Err(error) = self.queue_proposal(command, reply, SUBMIT_PATIENCE) {
            tracing::debug!(%error, "a proposal was dropped; its proposer finds out again");
        }
    }

    fn view(&self) -> View {
        lock(&self.shared.view).clone()
    }

    fn confirmed_view(&self, patience: Duration) -> View {
        let (reply, confirmed) = sync_channel(1);
        let input = Input::Confirm { reply, deadline: Instant::now() + patience };
        let is_current =
            self.queue.try_send(input).is_ok() && confirmed.recv_timeout(patience + TICK).is_ok();
        let mut view = self.view();
        if !is_current {
            view.age_ms = lock(&self.shared.age).ms(clock::boot_now());
        }
        view
    }

    fn subscribe(&self, listener: Listener) {
        let mut listeners = lock(&self.shared.listeners);
        listener(&lock(&self.shared.view));
        listeners.push(listener);
    }
}

struct Waiting {
    proposal: Proposal,
    reply: SyncSender<Outcome>,
    deadline: Instant,
    repeat_at: Instant,
}

struct Driver {
    node: NodeId,
    raw: RawNode<RaftStore>,
    machine: Machine,
    applied: u64,
    replay: Replay,
    /// Members after the last applied entry.
    conf_state: ConfState,
    transport: Transport,
    waiting: BTreeMap<ProposalId, Waiting>,
    snapshots_sent: BTreeMap<u64, Instant>,
    reach: Reach,
    reads: Reads,
    /// Last entry that each lagging voter has confirmed, and since when. The time counts from its
    /// last confirmation, or from when it began to lack entries.
    confirmed: BTreeMap<u64, (u64, Instant)>,
    /// When a vote was last asked for a node.
    seated: Option<Instant>,
    /// Since when this node has known each dead node as dead.
    dead_since: BTreeMap<NodeId, Instant>,
    /// A removed node that is still a member of the log, the last entry of the log at that time,
    /// and since when.
    parting: Option<(u64, u64, Instant)>,
    shared: Arc<DriverShared>,
    state_changed: bool,
    /// Outcomes that are told only once the view shows them: the proposer reads its own change.
    answers: Vec<(SyncSender<Outcome>, Outcome)>,
}

impl Driver {
    /// How many ticks this node may sleep through if nothing arrives: as many as change nothing but
    /// the time until the next election.
    fn ticks_at_once(&self) -> u32 {
        let raft = &self.raw.raft;
        let nothing_waits = self.waiting.is_empty() && self.reads.is_empty();
        if raft.state != StateRole::Follower || !nothing_waits {
            return 1;
        }
        let left = raft.randomized_election_timeout().saturating_sub(raft.election_elapsed);
        u32::try_from(left.min(ELECTION_TICKS)).unwrap_or(1).max(1)
    }

    fn tick(&mut self, count: u32) {
        for _ in 0..count {
            self.reach.tick();
            self.raw.tick();
        }
    }

    fn run(&mut self, inputs: &Receiver<Input>) -> Result<(), RaftStoreError> {
        let mut next_tick = Instant::now() + TICK;
        loop {
            let ticks_max = self.ticks_at_once();
            // Ticks missed while the disk was slow are not made up for, so they cause no election.
            next_tick = next_tick.max(Instant::now());
            let end = next_tick + TICK * (ticks_max - 1);
            let mut input = inputs.recv_timeout(end.saturating_duration_since(Instant::now()));
            let passed = ticks_passed(next_tick, Instant::now(), ticks_max);
            next_tick += TICK * passed;
            // The last tick may begin an election, so it comes after the messages.
            let slept = passed.min(ticks_max - 1);
            self.tick(slept);
            // Everything that has arrived is taken before the disk is touched: one transaction for
            // all.
            for _ in 0..QUEUE_MAX {
                match input {
                    Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    Ok(input) => self.take(input)?,
                    Err(RecvTimeoutError::Timeout) => break,
                }
                input = inputs.recv_timeout(Duration::ZERO);
            }
            if passed > 0 {
                self.tick(passed - slept);
                self.repeat_proposals();
                self.reads.tick(&mut self.raw);
                self.lead();
            }
            self.shared.writes_since.store(clock::boot_now().0.max(1), Ordering::SeqCst);
            self.process_ready()?;
            self.maintain_snapshot()?;
            self.shared.writes_since.store(0, Ordering::SeqCst);
            self.publish();
            let confirmed = self.reads.answer(self.applied);
            let mut age = lock(&self.shared.age);
            let now = clock::boot_now();
            age.told(self.reads.told());
            age.applied(self.applied, now);
            if confirmed {
                age.confirmed(now);
            }
            drop(age);
            for (proposer, outcome) in self.answers.drain(..) {
                // The proposer may have given up at this moment, which is its right.
                drop(proposer.try_send(outcome));
            }
        }
    }

    /// # Errors
    /// When the leader knows entries that this node has confirmed and lost. The core would panic,
    /// and a node with less than it confirmed must not vote.
    fn take(&mut self, input: Input) -> Result<(), RaftStoreError> {
        match input {
            // An address that has changed hands must not make one node answer for another.
            Input::Message(message) if message.to != u64::from(self.node.0) => {
                tracing::debug!(from = message.from, to = message.to, "dropped a message for another node");
            }
            // A leader tells a voter no higher commit index than that of entries which the voter
            // has confirmed to it.
            Input::Message(message)
                if message.get_msg_type() == MessageType::MsgHeartbeat
                    && message.term >= self.raw.raft.term
                    && message.commit > self.raw.raft.raft_log.last_index() =>
            {
                return Err(self.raw.store().lost(message.commit));
            }
            Input::Message(message) => {
                let from = message.from;
                if from == self.raw.raft.leader_id && message.term == self.raw.raft.term {
                    self.heard();
                }
                self.reach.note(&self.raw, &message);
                if let Err(error) = self.raw.step(*message) {
                    tracing::debug!(from, %error, "the Raft core refused a message");
                }
            }
            // A proposer whose state is newer sends the proposal again.
            Input::Forwarded(proposal) => {
                if self.raw.raft.state == StateRole::Leader && self.lacks_level(&proposal).is_none() {
                    self.append(&proposal);
                }
            }
            Input::Propose { proposal, reply, deadline } => {
                if let Some(refusal) = self.lacks_level(&proposal) {
                    self.answers.push((reply, Outcome::Refused(refusal)));
                } else if self.waiting.len() < WAITING_MAX {
                    self.submit(&proposal);
                    let repeat_at = Instant::now() + REPEAT_AFTER;
                    let waiting = Waiting { proposal, reply, deadline, repeat_at };
                    self.waiting.insert(waiting.proposal.id, waiting);
                }
            }
            Input::Confirm { reply, deadline } => self.reads.ask(&mut self.raw, reply, deadline),
            Input::Stop => {}
        }
        Ok(())
    }

    /// The refusal of a proposal that an older build could not read. It must not get into the log.
    fn lacks_level(&self, proposal: &Proposal) -> Option<Problem> {
        self.machine.state.lacks_level(proposal.entry.command.level())
    }

    /// This node leads, or has heard its leader, just now.
    fn heard(&self) {
        lock(&self.shared.age).heard(clock::boot_now());
    }

    fn submit(&mut self, proposal: &Proposal) {
        if self.raw.raft.state == StateRole::Leader {
            self.append(proposal);
        } else if let Some(leader) = node_of(self.raw.raft.leader_id) {
            self.transport.send_proposal(leader, proposal);
        }
    }

    fn append(&mut self, proposal: &Proposal) {
        match serde_json::to_vec(proposal) {
            Ok(bytes) => {
                if let Err(error) = self.raw.propose(Vec::new(), bytes) {
                    tracing::debug!(id = %proposal.id, %error, "a proposal was dropped; its proposer repeats it");
                }
            }
            Err(error) => tracing::error!(id = %proposal.id, %error, "a proposal cannot be encoded"),
        }
    }

    fn repeat_proposals(&mut self) {
        let now = Instant::now();
        self.waiting.retain(|_, waiting| waiting.deadline > now);
        let due: Vec<Proposal> = self
            .waiting
            .values_mut()
            .filter(|waiting| waiting.repeat_at <= now)
            .map(|waiting| {
                waiting.repeat_at = now + REPEAT_AFTER;
                waiting.proposal.clone()
            })
            .collect();
        for proposal in due {
            self.submit(&proposal);
        }
    }

    fn process_ready(&mut self) -> Result<(), RaftStoreError> {
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            self.send(ready.take_messages());
            self.reads.take(ready.take_read_states());
            let snapshot = Some(ready.snapshot()).filter(|snapshot| !snapshot.is_empty()).cloned();
            let must_write = snapshot.is_some() || !ready.entries().is_empty() || ready.must_sync();
            if let Some(hard_state) = ready.hs() {
                self.raw.mut_store().note_hard_state(hard_state);
            }
            if must_write {
                let entries = ready.take_entries();
                if let Some(first) = entries.first() {
                    self.replay.replaced_from(first.index);
                }
                self.raw.mut_store().persist(&entries, None, snapshot.as_ref())?;
            }
            if let Some(snapshot) = &snapshot {
                self.machine = Machine::restore(snapshot)?;
                self.applied = snapshot.get_metadata().index;
                self.replay.replaced_from(self.applied + 1);
                self.conf_state = snapshot.get_metadata().get_conf_state().clone();
                self.state_changed = true;
                self.answer_remembered();
            }
            self.send(ready.take_persisted_messages());
            let committed = ready.take_committed_entries();
            self.apply(&committed)?;
            let mut light = self.raw.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.raw.mut_store().note_commit(commit);
            }
            self.send(light.take_messages());
            let committed = light.take_committed_entries();
            self.apply(&committed)?;
            self.raw.advance_apply();
        }
        Ok(())
    }

    fn apply(&mut self, entries: &[Entry]) -> Result<(), RaftStoreError> {
        if let Some(last) = entries.last()
            && entries.iter().any(|entry| entry.get_entry_type() != EntryType::EntryNormal)
        {
            let store = self.raw.mut_store();
            store.note_commit(last.index);
            store.persist(&[], None, None)?;
        }
        for entry in entries {
            self.applied = entry.index;
            match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => {}
                EntryType::EntryNormal => self.apply_proposal(entry)?,
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    let mut change = ConfChange::default();
                    change.merge_from_bytes(&entry.data).map_err(|error| RaftStoreError::Entry {
                        index: entry.index,
                        what: error.to_string(),
                    })?;
                    self.conf_state = self
                        .raw
                        .apply_conf_change(&change)
                        .map_err(|source| RaftStoreError::Core { source: Box::new(source) })?;
                }
            }
        }
        Ok(())
    }

    fn apply_proposal(&mut self, entry: &Entry) -> Result<(), RaftStoreError> {
        // An entry that this version cannot read must stop the node: without that entry its state
        // would be another one.
        let proposal = level::read_entry(&entry.data)
            .map_err(|what| RaftStoreError::Entry { index: entry.index, what })?;
        let outcome = self.machine.apply(&proposal)?;
        self.state_changed = true;
        if let Some(waiting) = self.waiting.remove(&proposal.id) {
            self.answers.push((waiting.reply, outcome));
        }
        Ok(())
    }

    /// Proposals whose outcome came with a snapshot.
    fn answer_remembered(&mut self) {
        let (machine, answers) = (&self.machine, &mut self.answers);
        self.waiting.retain(|id, waiting| {
            let Some(outcome) = machine.remembered(*id) else {
                return true;
            };
            answers.push((waiting.reply.clone(), outcome.clone()));
            false
        });
    }

    fn maintain_snapshot(&mut self) -> Result<(), RaftStoreError> {
        let store = self.raw.store();
        let old = store.newest_snapshot().get_metadata().index;
        let due = self.applied >= old + SNAPSHOT_EVERY_ENTRIES || store.snapshot_wanted();
        if !due || self.applied == 0 || self.applied == old {
            return Ok(());
        }
        let data = self.machine.encode()?;
        let (applied, conf_state) = (self.applied, self.conf_state.clone());
        self.raw.mut_store().save_snapshot(applied, conf_state, data)
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let (to, is_snapshot) = (message.to, message.get_msg_type() == MessageType::MsgSnapshot);
            let sent = match (node_of(to), message.write_to_bytes()) {
                (Some(node), Ok(bytes)) => self.transport.send_raft(node, &bytes),
                _ => false,
            };
            if is_snapshot {
                if sent {
                    self.snapshots_sent.insert(to, Instant::now());
                } else {
                    self.raw.report_snapshot(to, SnapshotStatus::Failure);
                }
            } else if !sent {
                self.raw.report_unreachable(to);
            }
        }
    }

    fn publish(&mut self) {
        let nodes = |ids: &[u64]| ids.iter().filter_map(|&id| node_of(id)).collect::<BTreeSet<_>>();
        let leader = node_of(self.raw.raft.leader_id);
        let is_leader = self.raw.raft.state == StateRole::Leader;
        if is_leader {
            // The core gives the lead up within an election time of losing its majority.
            self.heard();
        }
        let (voters, learners) = (nodes(&self.conf_state.voters), nodes(&self.conf_state.learners));
        let replayed = self.replay.is_over(self.applied);
        let listeners = lock(&self.shared.listeners);
        let mut view = lock(&self.shared.view);
        let same = view.leader == leader
            && view.is_leader == is_leader
            && view.voters == voters
            && view.learners == learners
            && view.replayed == replayed;
        let (term, applied) = (self.raw.raft.term, self.applied);
        if same && !self.state_changed {
            (view.term, view.applied) = (term, applied);
            return;
        }
        if view.leader != leader {
            tracing::info!(node = %self.node, ?leader, "the control plane's leader changed");
            for waiting in self.waiting.values_mut() {
                waiting.repeat_at = Instant::now();
            }
        }
        let state =
            if self.state_changed { Arc::new(self.machine.state.clone()) } else { view.state.clone() };
        self.state_changed = false;
        *view = View { state, leader, is_leader, voters, learners, replayed, term, applied, age_ms: Some(0) };
        let published = view.clone();
        drop(view);
        for listener in listeners.iter() {
            listener(&published);
        }
    }
}

/// How many ticks have passed at `now` in a wait of up to `ticks_max` of them, if the first was due
/// at `first`. A wait that ended a little late leaves the last of several ticks, which may begin an
/// election, to the next wait. Only one tick has passed if the machine, or this process, has stood
/// still: time in which no message can be heard causes no election.
fn ticks_passed(first: Instant, now: Instant, ticks_max: u32) -> u32 {
    let Some(late) = now.checked_duration_since(first) else { return 0 };
    match u32::try_from(late.as_millis() / TICK.as_millis()).map_or(u32::MAX, |whole| whole.saturating_add(1))
    {
        passed if passed <= ticks_max => passed,
        passed if passed <= ticks_max + LATE_TICKS => (ticks_max - 1).max(1),
        _ => 1,
    }
}

fn node_of(id: u64) -> Option<NodeId> {
    u32::try_from(id).ok().filter(|id| *id != 0).map(NodeId)
}

/// Passes the Raft core's log on.
struct ToTracing;

impl slog::Drain for ToTracing {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, _values: &slog::OwnedKVList) -> Result<(), slog::Never> {
        match record.level() {
            slog::Level::Critical | slog::Level::Error => tracing::error!(target: "raft", "{}", record.msg()),
            slog::Level::Warning => tracing::debug!(target: "raft", "{}", record.msg()),
            _ => tracing::trace!(target: "raft", "{}", record.msg()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_that_sleeps_counts_the_ticks_that_it_slept_through() {
        let first = Instant::now();
        let passed = |ms, max| ticks_passed(first, first + Duration::from_millis(ms), max);
        assert_eq!([0, 49, 50, 99, 100].map(|ms| passed(ms, 8)), [1, 1, 2, 2, 3]);
        assert_eq!(ticks_passed(first + TICK, first, 8), 0, "a message came before the first tick");
        assert_eq!(passed(350, 8), 8, "nothing came until the time of the election");
        // The machine was busy for a moment: an election waits until messages were looked for.
        assert_eq!([400, 499].map(|ms| passed(ms, 8)), [7, 7]);
        assert_eq!([500, 60_000].map(|ms| passed(ms, 8)), [1, 1], "the machine stood still");
        assert_eq!([0, 50, 60_000].map(|ms| passed(ms, 1)), [1, 1, 1]);
    }
}
