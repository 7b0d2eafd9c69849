//! The keeper of this node's lease, which also watches the leases of the others (R10).
//!
//! A thread sends the heartbeats. Heartbeats and acknowledgements of other nodes are taken on the
//! threads of their connections, so that each of them wakes up one thread only.
//!
//! Guarantees
//! - Heartbeats are sent, answered and counted on threads that never touch a disk and wait for no
//!   other thread but for each other. Suspicions are made durable on a thread of their own,
//!   proposals are handed over, frames are sent or queued.
//! - A suspicion is reported only after it is durable, and is known again after a restart.
//! - The engine hears of a longer lease at once.
//! - The reconciler gets a view of the log only from here, after the lease machine has taken it.
//!   Then it may say that this node acts on the voters of that view, because leases are counted by
//!   them already (R10).

use crate::clock::boot_now;
use crate::engine_link::EngineLink;
use crate::messages::{LeaseMessage, random_u64};
use crate::raft::store::{RaftStoreError, open_database};
use crate::raft::{ConsensusLog, View};
use crate::reserve::Reserve;
use crate::threads::{lock, spawn};
use crate::transport::Transport;
use mainstay_control::lease::{self, Effect, Event, LeaseMachine, Suspect};
use mainstay_control::state::Command;
use mainstay_types::{NodeId, Severity, Time};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Least number of bytes that are reserved for the growth of the file of suspicions.
const RESERVE_BYTES_MIN: u64 = 2 << 20;
/// Generations that were ever suspected here, and have not been superseded: node -> generation.
const SUSPECTS: TableDefinition<u32, u64> = TableDefinition::new("suspects");
/// Messages that wait for the thread; more are dropped.
const QUEUE_MAX: usize = 1024;

enum Input {
    Event(Event),
    View(Box<View>),
    Stop,
}

/// The way to the thread. Clones share it.
#[derive(Clone)]
pub struct LeaseKeeper {
    queue: SyncSender<Input>,
    /// `None` before the start and after the end.
    runner: Arc<Mutex<Option<Runner>>>,
    until: Arc<AtomicU64>,
}

/// Called whenever the end of the lease moved.
pub type OnLease = Box<dyn Fn(Time) + Send>;
/// Called with every view of the log, after leases are counted by it. Must not wait.
pub type OnView = Box<dyn Fn(View) + Send>;

/// Starts the threads. `path` is the file of the suspicions.
///
/// # Errors
/// When that file cannot be used.
pub fn start(
    node: NodeId,
    path: &Path,
    transport: Transport,
    log: Arc<dyn ConsensusLog>,
    engine: EngineLink,
    on_lease: OnLease,
    on_view: OnView,
) -> Result<LeaseKeeper, RaftStoreError> {
    let (database, reserve) = open_database(path, RESERVE_BYTES_MIN)?;
    let failed = |source: redb::Error| RaftStoreError::Database {
        path: PathBuf::from(path),
        source: Box::new(source),
    };
    let suspects = load(&database).map_err(failed)?;
    let machine = LeaseMachine::new(node, random_u64(), suspects, boot_now());
    let (queue, inputs) = sync_channel(QUEUE_MAX);
    let (persist, to_persist) = channel();
    let until = Arc::new(AtomicU64::new(0));
    let runner = Runner {
        machine,
        transport,
        log: log.clone(),
        engine,
        on_lease,
        persist,
        until: until.clone(),
        is_leader: false,
    };
    let runner = Arc::new(Mutex::new(Some(runner)));
    let keeper = LeaseKeeper { queue: queue.clone(), runner: runner.clone(), until };
    let persisted = queue.clone();
    spawn("agent-suspects", move || persist_loop(&database, &reserve, &to_persist, &persisted));
    let views = queue;
    // A view must not get lost. The thread takes it soon: it waits for nothing but the engine's
    // socket, and there not long.
    log.subscribe(Box::new(move |view: &View| drop(views.send(Input::View(Box::new(view.clone()))))));
    spawn("agent-lease", move || {
        run(&runner, &inputs, &on_view);
        *lock(&runner) = None;
    });
    Ok(keeper)
}

/// Makes the file of the suspicions, unless it is there.
///
/// # Errors
/// When it cannot be used.
pub fn prepare(path: &Path) -> Result<(), RaftStoreError> {
    let look = || {
        let (database, _) = open_database(path, RESERVE_BYTES_MIN)?;
        let damaged =
            |source| RaftStoreError::Database { path: path.to_path_buf(), source: Box::new(source) };
        load(&database).map(drop).map_err(damaged)
    };
    // The library panics at some kinds of damage.
    catch_unwind(AssertUnwindSafe(look))
        .unwrap_or_else(|_| Err(RaftStoreError::Unreadable { path: path.to_path_buf() }))
}

impl LeaseKeeper {
    /// Takes a message of another agent, and does at once what follows from it.
    pub fn message(&self, from: NodeId, message: LeaseMessage) {
        let event = match message {
            LeaseMessage::Heartbeat(heartbeat) => Event::Heartbeat { from, heartbeat },
            LeaseMessage::Ack(ack) => Event::Ack { from, ack },
        };
        if let Some(runner) = lock(&self.runner).as_mut() {
            runner.handle(event);
        }
    }

    /// Whether this node gives its lease up, because it stands still. To be said again and again:
    /// it may get lost.
    pub fn gives_up(&self, gives_up: bool) {
        drop(self.queue.try_send(Input::Event(Event::GivesUp(gives_up))));
    }

    /// When this node's lease ends.
    #[must_use]
    pub fn until(&self) -> Time {
        Time(self.until.load(Ordering::SeqCst))
    }

    /// Ends the threads.
    pub fn stop(&self) {
        drop(self.queue.try_send(Input::Stop));
    }
}

struct Runner {
    machine: LeaseMachine,
    transport: Transport,
    log: Arc<dyn ConsensusLog>,
    engine: EngineLink,
    on_lease: OnLease,
    persist: Sender<Suspect>,
    until: Arc<AtomicU64>,
    is_leader: bool,
}

/// The thread of the heartbeats. The time of the next one moves only on this thread, so no message
/// has to wake it up.
fn run(runner: &Mutex<Option<Runner>>, inputs: &Receiver<Input>, on_view: &OnView) {
    loop {
        let Some(next) = lock(runner).as_ref().map(|runner| runner.machine.next_deadline()) else { return };
        let wait = Duration::from_micros(next.0.saturating_sub(boot_now().0));
        let input = match inputs.recv_timeout(wait) {
            Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
        };
        let mut guard = lock(runner);
        let Some(runner) = guard.as_mut() else { return };
        match input {
            Some(Input::Event(event)) => runner.machine.handle(boot_now(), event),
            Some(Input::View(view)) => {
                runner.is_leader = view.is_leader;
                runner.machine.handle(boot_now(), Event::View(lease::View::of(&view.state)));
                on_view(*view);
            }
            Some(Input::Stop) | None => {}
        }
        let now = boot_now();
        if now >= runner.machine.next_deadline() {
            runner.machine.handle(now, Event::Tick);
        }
        runner.carry_out_all();
    }
}

impl Runner {
    fn handle(&mut self, event: Event) {
        self.machine.handle(boot_now(), event);
        self.carry_out_all();
    }

    fn carry_out_all(&mut self) {
        while let Some(effect) = self.machine.poll() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&self, effect: Effect) {
        match effect {
            Effect::SendHeartbeat { to, heartbeat } => {
                self.transport.send_lease(to, &LeaseMessage::Heartbeat(heartbeat));
            }
            Effect::SendAck { to, ack } => {
                self.transport.send_lease(to, &LeaseMessage::Ack(ack));
            }
            Effect::PersistSuspect(suspect) => {
                let state = self.log.view().state;
                let (subject, by) =
                    (format!("node {}", state.node_name(suspect.node)), state.node_name(self.own()));
                self.log.submit(Command::Note {
                    severity: Severity::Info,
                    subject,
                    text: format!("suspected by {by}: not heard for longer than its lease"),
                });
                tracing::warn!(node = %suspect.node, "a node has been silent for longer than its lease; making the suspicion durable");
                // The other thread ends only with the process.
                let _ = self.persist.send(suspect);
            }
            Effect::LeaseUntil(until) => {
                self.until.store(until.0, Ordering::SeqCst);
                self.engine.lease(until);
                (self.on_lease)(until);
            }
            Effect::ProposeDead(Suspect { node, generation }) => {
                if self.is_leader {
                    self.log.submit(Command::NodeDead { node, generation });
                }
            }
            Effect::ProposeRejoin { generation } => {
                let node = self.own();
                self.log.submit(Command::NodeRejoin { node, generation });
            }
        }
    }

    fn own(&self) -> NodeId {
        self.transport.own_node().unwrap_or_default()
    }
}

fn persist_loop(
    database: &Database,
    reserve: &Reserve,
    suspects: &Receiver<Suspect>,
    answer: &SyncSender<Input>,
) {
    while let Ok(suspect) = suspects.recv() {
        match save(database, suspect) {
            Ok(()) => {
                reserve.keep();
                if answer.send(Input::Event(Event::SuspectPersisted(suspect))).is_err() {
                    return;
                }
            }
            Err(error) => {
                // Not durable: never reported. The other voters decide without this one.
                tracing::error!(%error, "a suspicion could not be made durable; this voter stays silent about it");
            }
        }
    }
}

fn load(database: &Database) -> Result<Vec<Suspect>, redb::Error> {
    let read = database.begin_read()?;
    let table = match read.open_table(SUSPECTS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut suspects = Vec::new();
    for item in table.iter()? {
        let (node, generation) = item?;
        suspects.push(Suspect { node: NodeId(node.value()), generation: generation.value() });
    }
    Ok(suspects)
}

fn save(database: &Database, suspect: Suspect) -> Result<(), redb::Error> {
    let mut write = database.begin_write()?;
    write.set_durability(Durability::Immediate)?;
    {
        let mut table = write.open_table(SUSPECTS)?;
        let known = table.get(suspect.node.0)?.map_or(0, |value| value.value());
        table.insert(suspect.node.0, known.max(suspect.generation))?;
    }
    write.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::ProposeError;
    use mainstay_control::State;
    use mainstay_control::state::{Entry, Outcome, Settings};
    use std::sync::Mutex;

    type Listener = Box<dyn Fn(&View) + Send>;

    /// A log that says what the test wants.
    struct TestLog {
        view: View,
        listener: Mutex<Option<Listener>>,
    }

    impl ConsensusLog for TestLog {
        fn propose(&self, _: Command, _: Duration) -> Result<Outcome, ProposeError> {
            Err(ProposeError::Stopped)
        }

        fn submit(&self, _: Command) {}

        fn view(&self) -> View {
            self.view.clone()
        }

        fn subscribe(&self, listener: Listener) {
            listener(&self.view);
            *self.listener.lock().unwrap() = Some(listener);
        }
    }

    fn apply(state: &State, command: Command) -> View {
        let mut state = state.clone();
        assert!(state.apply(Entry { at_ms: 0, command }).is_ok());
        View { state: Arc::new(state), ..View::default() }
    }

    fn node(name: &str) -> Command {
        Command::AddNode {
            name: name.into(),
            agent_addr: format!("127.0.0.{}:1", name.len()),
            engine_addr: format!("127.0.0.{}:2", name.len()),
            voter: true,
            witness: false,
            nonce: name.len() as u64,
        }
    }

    /// R10: the receiver of a view says that this node counts leases by the voters of that view.
    #[test]
    fn listeners_get_a_view_only_after_leases_are_counted_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let init = Command::InitCluster { id: 1, name: "c".into(), settings: Settings::default() };
        let alone = apply(&apply(&State::default(), init).state, node("a"));
        let log = Arc::new(TestLog { view: alone.clone(), listener: Mutex::default() });
        let (views, seen) = channel();
        let (leases, granted) = channel();
        let (release, released) = channel::<()>();
        // The thread is held up where it says that this node, the only voter, has a lease.
        let on_lease = move |until| {
            let _ = leases.send(until);
            let _ = released.recv();
        };
        let keeper = start(
            NodeId(1),
            &dir.path().join("suspects.redb"),
            Transport::new(),
            log.clone(),
            EngineLink::start(&dir.path().join("engine.sock"), |_| ()),
            Box::new(on_lease),
            Box::new(move |view: View| drop(views.send(view))),
        )
        .unwrap();
        let patience = Duration::from_secs(20);
        assert!(granted.recv_timeout(patience).unwrap() > Time(0));
        assert_eq!(seen.recv_timeout(patience).unwrap().state.voters().len(), 1);
        let voters_version = alone.state.voters_version;
        let seen_by = apply(&alone.state, Command::VotersSeen { node: NodeId(1), voters_version });
        let two = apply(&seen_by.state, node("bb"));
        log.listener.lock().unwrap().as_ref().unwrap()(&two);
        assert!(
            seen.recv_timeout(Duration::from_millis(50)).is_err(),
            "leases are still counted by one voter"
        );
        drop(release);
        assert_eq!(seen.recv_timeout(patience).unwrap().state.voters().len(), 2);
        keeper.stop();
    }

    #[test]
    fn suspicions_are_known_again_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("suspects.redb");
        let suspect = |node, generation| Suspect { node: NodeId(node), generation };
        {
            let (database, _reserve) = open_database(&path, 0).unwrap();
            assert!(load(&database).unwrap().is_empty());
            for suspect in [suspect(2, 1), suspect(3, 5), suspect(2, 4), suspect(2, 3)] {
                save(&database, suspect).unwrap();
            }
        }
        let (database, _reserve) = open_database(&path, 0).unwrap();
        assert_eq!(load(&database).unwrap(), [suspect(2, 4), suspect(3, 5)]);
    }
}
