//! The connection to the engine of this node.
//!
//! The connection is made again whenever it breaks, and when the engine refuses the greeting. An
//! engine that was started again at once may find its address still in use by the process before
//! it.
//!
//! The thread of the connection states the greeting and the lease again right away. The reconciler
//! states everything else again when it hears of the new connection through
//! [`EngineInput::Connected`]. Nothing here waits without a limit, so an engine that hangs delays
//! neither a lease nor a request for status.

use crate::clock::boot_now;
use crate::threads::{lock, spawn};
use mainstay_api::engine::{
    ClientStatus, EngineEvent, EngineLine, FrontendStatus, LineError, ReplicaStatus, Reply, Request,
    RequestLine, WatchdogStatus, encode_line, read_line,
};
use mainstay_trust::Zeroizing;
use mainstay_types::{Code, Problem, ResourceId, Time};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// After the engine has refused the greeting.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// The engine's reader is its own thread; a line that it does not take within this time means that
/// it hangs.
const WRITE_TIMEOUT: Duration = Duration::from_millis(300);
/// Requests whose replies are outstanding.
const PENDING_MAX: usize = 1024;
/// Id of the request whose reply says what the engine has and does; until then the connection does
/// not count.
const FIRST_STATUS_ID: u64 = u64::MAX;
/// Id of the greeting: an engine that refuses it does nothing else.
const GREETING_ID: u64 = u64::MAX - 1;

/// How a connection ended.
enum Ended {
    Closed,
    Broken(LineError),
    Refused(Problem),
}

#[derive(Debug, thiserror::Error)]
pub enum EngineCallError {
    #[error("the engine of this node is not running or does not answer")]
    Disconnected,
    #[error("the engine did not answer within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Refused(Problem),
}

impl EngineCallError {
    /// The same as the engine would say it.
    #[must_use]
    pub fn into_problem(self) -> Problem {
        let (code, remedy) = match &self {
            Self::Refused(error) => return error.clone(),
            Self::Disconnected => (Code::EngineUnreachable, "Start the engine of this node."),
            Self::Timeout(_) => (Code::EngineTimeout, "Look at the engine's log."),
        };
        Problem::new(code, self.to_string(), remedy)
    }
}

/// News from the engine that no request has asked for.
#[derive(Clone, Debug)]
pub enum EngineInput {
    /// The engine has reported its replicas. `lease_until` is the end of this node's lease as the
    /// engine knows it, perhaps from an earlier agent process. `silenced` is
    /// [`EngineStatus::silenced_us`](mainstay_api::engine::EngineStatus).
    Connected {
        lease_until: Time,
        silenced: Time,
    },
    /// The engine's guard knows this lease now.
    Lease {
        until: Time,
        silenced: Time,
    },
    Disconnected,
    Event(Box<EngineEvent>),
}

/// Talks to the engine. Clones share the connection.
#[derive(Clone)]
pub struct EngineLink {
    shared: Arc<LinkShared>,
}

struct LinkShared {
    socket: PathBuf,
    writer: Mutex<Option<UnixStream>>,
    pending: Mutex<BTreeMap<u64, SyncSender<Reply>>>,
    next_id: AtomicU64,
    greeting: Mutex<Option<Request>>,
    lease_until: AtomicU64,
    replicas: Mutex<BTreeMap<ResourceId, ReplicaStatus>>,
    clients: Mutex<BTreeMap<ResourceId, ClientStatus>>,
    frontend: Mutex<Option<FrontendStatus>>,
    watchdog: Mutex<Option<WatchdogStatus>>,
    /// The first status of the present connection has arrived.
    synced: AtomicBool,
    /// Process at the other end; 0 if that is not known.
    pid: AtomicU32,
    /// When the oldest request was made since which nothing was heard, on the boot-time clock in
    /// microseconds; 0 if there is none.
    asked_since: AtomicU64,
    /// Until when the end of the connection is that of an engine whose successor comes, on the
    /// boot-time clock in microseconds.
    successor_until: AtomicU64,
    /// Since when the successor is missing, likewise; 0 if none is.
    missing_since: AtomicU64,
}

impl EngineLink {
    /// Starts connecting to `socket`; `input` is called on the connection's thread and must not
    /// wait.
    #[must_use]
    pub fn start(socket: &Path, input: impl Fn(EngineInput) + Send + 'static) -> Self {
        let shared = Arc::new(LinkShared {
            socket: socket.to_path_buf(),
            writer: Mutex::new(None),
            pending: Mutex::new(BTreeMap::new()),
            next_id: AtomicU64::new(1),
            greeting: Mutex::new(None),
            lease_until: AtomicU64::new(0),
            replicas: Mutex::new(BTreeMap::new()),
            clients: Mutex::new(BTreeMap::new()),
            frontend: Mutex::new(None),
            watchdog: Mutex::new(None),
            synced: AtomicBool::new(false),
            pid: AtomicU32::new(0),
            asked_since: AtomicU64::new(0),
            successor_until: AtomicU64::new(0),
            missing_since: AtomicU64::new(0),
        });
        let thread = shared.clone();
        spawn("agent-engine", move || {
            let mut refused = None;
            loop {
                let pause = match run_connection(&thread, &input) {
                    Some(Ended::Refused(error)) => {
                        // Said once, however often it is tried.
                        if refused.as_ref() != Some(&error) {
                            tracing::warn!(%error, remedy = error.remedy, "the engine refuses this agent; it is asked again");
                        }
                        refused = Some(error);
                        REFUSED_PAUSE
                    }
                    Some(Ended::Broken(error)) => {
                        tracing::warn!(%error, "lost the connection to the engine; it is made again");
                        RECONNECT_PAUSE
                    }
                    Some(Ended::Closed) | None => RECONNECT_PAUSE,
                };
                std::thread::sleep(pause);
            }
        });
        Self { shared }
    }

    /// States the identity of this node, now and on every new connection.
    pub fn greet(&self, greeting: Request) {
        let changed = lock(&self.shared.greeting).replace(greeting.clone()).as_ref() != Some(&greeting);
        if changed {
            self.shared.write(GREETING_ID, greeting);
        }
    }

    /// Tells the engine how long the lease lasts, now and on every new connection. Never waits for
    /// an answer.
    pub fn lease(&self, until: Time) {
        self.shared.lease_until.store(until.0, Ordering::SeqCst);
        self.post(Request::Lease { until_us: until });
    }

    /// When the lease ends that was told last.
    #[must_use]
    pub fn lease_until(&self) -> Time {
        Time(self.shared.lease_until.load(Ordering::SeqCst))
    }

    /// Sends a request whose reply does not matter.
    pub fn post(&self, request: Request) {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        self.shared.write(id, request);
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// When there is no connection, no reply in time, or the engine refuses.
    pub fn request(&self, request: Request, timeout: Duration) -> Result<Reply, EngineCallError> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = sync_channel(1);
        {
            let mut pending = lock(&self.shared.pending);
            if pending.len() >= PENDING_MAX {
                return Err(EngineCallError::Timeout(Duration::ZERO));
            }
            pending.insert(id, sender);
        }
        let sent = self.shared.write(id, request);
        let reply = if sent { receiver.recv_timeout(timeout) } else { Err(RecvTimeoutError::Disconnected) };
        lock(&self.shared.pending).remove(&id);
        match reply {
            Ok(Reply::Error(error)) => Err(EngineCallError::Refused(error)),
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Timeout) => Err(EngineCallError::Timeout(timeout)),
            Err(RecvTimeoutError::Disconnected) => Err(EngineCallError::Disconnected),
        }
    }

    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.synced.load(Ordering::SeqCst)
    }

    /// For how long the engine has owed an answer and said nothing, in milliseconds. Every lease
    /// asks for one. 0 while there is no engine to be asked, unless its successor is missing.
    #[must_use]
    pub fn silent_ms(&self, now: Time) -> u64 {
        let of = |since: &AtomicU64| match since.load(Ordering::SeqCst) {
            0 => 0,
            since => now.ms_since(Time(since)),
        };
        of(&self.shared.asked_since).max(of(&self.shared.missing_since))
    }

    /// If the connection ends before this time, the engine leaves its devices to a successor.
    pub fn awaits_successor(&self, until: Time) {
        self.shared.successor_until.store(until.0, Ordering::SeqCst);
    }

    /// Returns an extract of the last status of every replica on the present connection. `seen`
    /// makes the extract.
    #[must_use]
    pub fn replicas<T>(&self, seen: impl Fn(&ReplicaStatus) -> T) -> BTreeMap<ResourceId, T> {
        lock(&self.shared.replicas).iter().map(|(id, status)| (*id, seen(status))).collect()
    }

    /// Returns an extract of the last status of every client on the present connection. The number
    /// of waiting requests may be of an earlier moment.
    #[must_use]
    pub fn clients<T>(&self, seen: impl Fn(&ClientStatus) -> T) -> BTreeMap<ResourceId, T> {
        lock(&self.shared.clients).iter().map(|(id, status)| (*id, seen(status))).collect()
    }

    /// How the engine makes devices, while it is connected.
    #[must_use]
    pub fn frontend(&self) -> Option<FrontendStatus> {
        lock(&self.shared.frontend).clone()
    }

    /// Its watchdog as it was in the last status, while it is connected.
    #[must_use]
    pub fn watchdog(&self) -> Option<WatchdogStatus> {
        lock(&self.shared.watchdog).clone()
    }

    /// The engine's process, while it is connected.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        Some(self.shared.pid.load(Ordering::SeqCst)).filter(|pid| *pid != 0)
    }

    /// Takes a status in as if an engine had said it.
    #[cfg(test)]
    pub fn hear(&self, status: ReplicaStatus) {
        lock(&self.shared.replicas).insert(status.resource, status);
    }

    /// Forgets a replica that was dropped.
    pub fn forget(&self, resource: ResourceId) {
        lock(&self.shared.replicas).remove(&resource);
    }
}

impl LinkShared {
    fn write(&self, id: u64, request: Request) -> bool {
        let Ok(line) = encode_line(&RequestLine { id, request }) else {
            tracing::error!("a request to the engine is longer than a line may be and is not sent");
            return false;
        };
        // The line may contain the private key of this node.
        let line = Zeroizing::new(line);
        let mut writer = lock(&self.writer);
        let Some(stream) = writer.as_mut() else {
            return false;
        };
        let now = boot_now().0.max(1);
        // Fails if something is owed already.
        let _ = self.asked_since.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
        if stream.write_all(&line).is_ok() {
            return true;
        }
        // A line may have been cut: the connection is of no use any more. Its reader notices and
        // reconnects.
        if let Some(stream) = writer.take() {
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
        false
    }
}

/// None if there was none.
fn run_connection(shared: &LinkShared, input: &impl Fn(EngineInput)) -> Option<Ended> {
    let Ok(stream) = UnixStream::connect(&shared.socket) else {
        // There is no process that could owe an answer. An engine that hangs still accepts
        // connections.
        shared.asked_since.store(0, Ordering::SeqCst);
        return None;
    };
    let writer = stream.try_clone().ok()?;
    writer.set_write_timeout(Some(WRITE_TIMEOUT)).ok()?;
    let pid = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
    shared.pid.store(u32::try_from(pid).unwrap_or(0), Ordering::SeqCst);
    *lock(&shared.writer) = Some(writer);
    let greeting = lock(&shared.greeting).clone();
    if let Some(greeting) = greeting {
        shared.write(GREETING_ID, greeting);
        let until_us = Time(shared.lease_until.load(Ordering::SeqCst));
        // An agent that has just started knows of no lease; the engine may still have one of its
        // predecessor.
        if until_us != Time(0) {
            shared.write(0, Request::Lease { until_us });
        }
    }
    shared.write(FIRST_STATUS_ID, Request::Status);
    let ended = read_lines(stream, shared, input);
    if shared.synced.load(Ordering::SeqCst) && boot_now().0 < shared.successor_until.load(Ordering::SeqCst) {
        shared.missing_since.store(boot_now().0.max(1), Ordering::SeqCst);
    }
    *lock(&shared.writer) = None;
    shared.synced.store(false, Ordering::SeqCst);
    shared.pid.store(0, Ordering::SeqCst);
    // No caller may wait for replies of a connection that is gone.
    lock(&shared.pending).clear();
    lock(&shared.replicas).clear();
    lock(&shared.clients).clear();
    *lock(&shared.frontend) = None;
    *lock(&shared.watchdog) = None;
    input(EngineInput::Disconnected);
    Some(ended)
}

fn read_lines(stream: UnixStream, shared: &LinkShared, input: &impl Fn(EngineInput)) -> Ended {
    let mut reader = BufReader::new(stream);
    loop {
        let line = read_line::<EngineLine>(&mut reader);
        if matches!(line, Ok(Some(_))) {
            shared.asked_since.store(0, Ordering::SeqCst);
        }
        match line {
            Ok(Some(EngineLine::Reply { id: FIRST_STATUS_ID, reply: Reply::Status(status) })) => {
                let found = status.replicas.into_iter().map(|replica| (replica.resource, replica)).collect();
                *lock(&shared.replicas) = found;
                let found = status.clients.into_iter().map(|client| (client.resource, client)).collect();
                *lock(&shared.clients) = found;
                *lock(&shared.frontend) = status.frontend;
                *lock(&shared.watchdog) = status.watchdog;
                shared.synced.store(true, Ordering::SeqCst);
                shared.successor_until.store(0, Ordering::SeqCst);
                shared.missing_since.store(0, Ordering::SeqCst);
                let lease_until = if status.fenced { Time(0) } else { status.lease_until_us };
                input(EngineInput::Connected { lease_until, silenced: status.silenced_us });
            }
            Ok(Some(EngineLine::Reply { id: GREETING_ID, reply: Reply::Error(error) })) => {
                return Ended::Refused(error);
            }
            Ok(Some(EngineLine::Reply { reply: Reply::Lease { until_us, silenced_us }, .. })) => {
                input(EngineInput::Lease { until: until_us, silenced: silenced_us });
            }
            Ok(Some(EngineLine::Reply { id, reply })) => {
                if let Reply::Status(status) = &reply {
                    lock(&shared.watchdog).clone_from(&status.watchdog);
                }
                let waiting = lock(&shared.pending).remove(&id);
                if let Some(waiting) = waiting {
                    // The asker may have given up at this moment, which is its right.
                    drop(waiting.try_send(reply));
                } else if let Reply::Error(error) = reply {
                    tracing::debug!(%error, "the engine refused a request that waits for no reply");
                }
            }
            Ok(Some(EngineLine::Event { event })) => {
                match &event {
                    EngineEvent::Replica(status) => {
                        lock(&shared.replicas).insert(status.resource, status.clone());
                    }
                    EngineEvent::Client(status) => {
                        lock(&shared.clients).insert(status.resource, status.clone());
                    }
                    EngineEvent::ClientGone { resource } => {
                        lock(&shared.clients).remove(resource);
                    }
                    _ => {}
                }
                input(EngineInput::Event(Box::new(event)));
            }
            Ok(None) => return Ended::Closed,
            Err(LineError::Json(error)) => {
                // One line that this version does not know does not spoil the others.
                tracing::debug!(%error, "ignored a line of the engine");
            }
            Err(error) => return Ended::Broken(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::{EngineStatus, RequestLine};
    use mainstay_types::NodeId;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;

    /// Reads what the agent says up to its first request for status, and answers its greeting so,
    /// and that request.
    fn serve(listener: &UnixListener, to_greeting: Reply) -> BufReader<UnixStream> {
        let (mut stream, _) = listener.accept().expect("the agent connects");
        let mut lines = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut answer = |id, reply| {
            let line = encode_line(&EngineLine::Reply { id, reply }).expect("short");
            // The agent may have hung up.
            drop(stream.write_all(&line));
        };
        loop {
            match read_line::<RequestLine>(&mut lines).expect("a line") {
                Some(RequestLine { id, request: Request::Hello { .. } }) => answer(id, to_greeting.clone()),
                Some(RequestLine { id, request: Request::Status }) => {
                    answer(id, Reply::Status(EngineStatus::default()));
                    return lines;
                }
                Some(_) => {}
                None => panic!("the agent hung up"),
            }
        }
    }

    /// An engine that was killed and started again at once could not listen: its address was still
    /// in use. It must be greeted again.
    #[test]
    fn an_engine_that_refuses_the_greeting_is_greeted_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("engine.sock");
        let (heard, inputs) = channel();
        let link = EngineLink::start(&socket, move |input| drop(heard.send(input)));
        link.greet(Request::Hello { node: NodeId(1), cluster: 2, generation: 3 });
        let listener = UnixListener::bind(&socket).expect("a socket");
        for _ in 0..2 {
            let refusal =
                Problem::new(Code::Listen, "address in use", "free the address, or configure another");
            let _open = serve(&listener, Reply::Error(refusal));
            let input = inputs.recv_timeout(Duration::from_secs(10)).expect("an input");
            assert!(matches!(input, EngineInput::Disconnected), "{input:?}");
            assert!(!link.is_connected());
        }
        let _lines = serve(&listener, Reply::Ok);
        let input = inputs.recv_timeout(Duration::from_secs(10)).expect("an input");
        assert!(matches!(input, EngineInput::Connected { .. }), "{input:?}");
        assert!(link.is_connected());
    }
}
