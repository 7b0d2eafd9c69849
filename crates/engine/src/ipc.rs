//! The engine's side of its socket: connections, lines, queues. The shard gives requests their
//! meaning.
//!
//! Guarantees:
//! - Every request gets exactly one reply, also when the shard forgets it.
//! - Only the connection that said [`Request::Hello`] last may change anything; an earlier one is
//!   closed.
//! - A connection that does not read what it is sent is closed when its queue is full (R18). The
//!   agent behind it reconnects and is told everything again.
//! - Only root may connect.

use mainstay_api::engine::{
    EngineEvent, EngineLine, LineDecoder, LineError, Reply, Request, RequestLine, encode_line, write_line,
};
use mainstay_types::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Most connections at once; more are refused.
const CONNECTIONS_MAX: usize = 32;
/// Most lines that wait to be sent on one connection.
const QUEUE_LINES_MAX: usize = 1024;
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 16 << 10;
/// No connection has this number.
const NO_AGENT: u64 = 0;

/// A message from the socket to the shard.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a few per second; no list of them is kept")]
pub enum IpcMessage {
    /// A new connection, which expects the state of all replicas as events.
    Connected(Client),
    Request {
        client: Client,
        request: Request,
        reply: ReplySender,
    },
}

/// One connection, to send events to it alone.
#[derive(Clone, Debug)]
pub struct Client {
    id: u64,
    /// `None` stands for the rest of a line that was sent in part.
    lines: SyncSender<Option<EngineLine>>,
    stream: Arc<UnixStream>,
    writing: Arc<Writing>,
}

/// State of a connection that is written to.
#[derive(Debug, Default)]
struct Writing {
    /// Lines in the queue, and the one that the thread of the connection is writing.
    waiting: AtomicUsize,
    /// Rest of a line that the socket has not taken yet. The lock is held during every write.
    rest: Mutex<Vec<u8>>,
}

/// How much of a line has left.
enum Sent {
    Whole,
    Part,
    Nothing,
}

impl Client {
    /// Sends an event. Does not block; a connection whose queue is full is closed.
    pub fn send(&self, event: EngineEvent) {
        self.line(EngineLine::Event { event });
    }

    fn line(&self, line: EngineLine) {
        // A node that nobody uses sends little else, ten times a second. So it need not wake up the
        // thread of the connection.
        let is_short = matches!(line, EngineLine::Reply { reply: Reply::Lease { .. }, .. });
        match if is_short { self.send_now(&line) } else { Sent::Nothing } {
            Sent::Whole => {}
            Sent::Part => self.enqueue(None),
            Sent::Nothing => self.enqueue(Some(line)),
        }
    }

    fn enqueue(&self, line: Option<EngineLine>) {
        self.writing.waiting.fetch_add(1, Ordering::SeqCst);
        if self.lines.try_send(line).is_err() {
            self.close();
        }
    }

    /// Sends as much as goes without a wait, unless an earlier line waits.
    fn send_now(&self, line: &EngineLine) -> Sent {
        let (Ok(mut rest), Ok(bytes)) = (self.writing.rest.try_lock(), encode_line(line)) else {
            return Sent::Nothing;
        };
        if self.writing.waiting.load(Ordering::SeqCst) > 0 || !rest.is_empty() {
            return Sent::Nothing;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match SockRef::from(&*self.stream).send_with_flags(&bytes, flags) {
            Ok(length) if length == bytes.len() => Sent::Whole,
            Ok(length) => {
                *rest = bytes[length..].to_vec();
                Sent::Part
            }
            // The thread of the connection finds out what is wrong, if anything is.
            Err(_) => Sent::Nothing,
        }
    }

    /// Whether the other end has closed the connection, or has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&*self.stream, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A hang-up is told whether it is asked for or not.
        poll(&mut polled, Some(&now)).is_ok_and(|_| polled[0].revents().contains(PollFlags::HUP))
    }

    fn close(&self) {
        // Fails only when it is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Sends the one reply to a request, now or later, from any thread.
#[derive(Debug)]
pub struct ReplySender {
    client: Client,
    id: u64,
    sent: bool,
}

impl ReplySender {
    pub fn send(mut self, reply: Reply) {
        self.sent = true;
        self.client.line(EngineLine::Reply { id: self.id, reply });
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if !self.sent {
            let reply = Reply::refused(Code::Interrupted, "the engine gave up the request", "repeat it");
            self.client.line(EngineLine::Reply { id: self.id, reply });
        }
    }
}

struct IpcShared {
    connections: Mutex<BTreeMap<u64, Client>>,
    /// The connection that said hello last.
    agent: AtomicU64,
}

impl IpcShared {
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Client>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_agent(&self, client: &Client) {
        let before = self.agent.swap(client.id, Ordering::AcqRel);
        if before != client.id
            && let Some(before) = self.connections().get(&before)
        {
            tracing::info!("another agent connection replaces the one before");
            before.close();
        }
    }
}

/// The listening socket and its connections. Dropping it closes all of them.
pub struct IpcServer {
    path: PathBuf,
    listener: Arc<UnixListener>,
    shared: Arc<IpcShared>,
    thread: Option<JoinHandle<()>>,
}

impl IpcServer {
    /// Listens at `path`. A socket that a dead engine left there is replaced; one that a live
    /// engine listens on is an error (`AddrInUse`).
    ///
    /// `forward` is called on a thread per connection, in the order of the connection's requests;
    /// it may block, which holds back that connection only.
    pub fn start(path: &Path, forward: impl Fn(IpcMessage) + Send + Sync + 'static) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            let text = format!("an engine already listens at {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        // Made under another name, so that no client finds the socket before its permissions are
        // right.
        let fresh = path.with_extension("new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = Arc::new(UnixListener::bind(&fresh)?);
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
        fs::rename(&fresh, path)?;
        let shared = Arc::new(IpcShared { connections: Mutex::default(), agent: AtomicU64::new(NO_AGENT) });
        let (listener2, shared2) = (Arc::clone(&listener), Arc::clone(&shared));
        let forward: Arc<dyn Fn(IpcMessage) + Send + Sync> = Arc::new(forward);
        let thread = thread::Builder::new()
            .name("ipc".into())
            .spawn(move || accept(&listener2, &shared2, &forward))?;
        Ok(Self { path: path.to_owned(), listener, shared, thread: Some(thread) })
    }

    /// Sends an event to all connections. Does not block.
    pub fn send_all(&self, event: &EngineEvent) {
        for client in self.shared.connections().values() {
            client.send(event.clone());
        }
    }

    /// Whether an agent that has said hello is connected.
    #[must_use]
    pub fn has_agent(&self) -> bool {
        self.shared.connections().contains_key(&self.shared.agent.load(Ordering::Acquire))
    }
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        // On Linux this makes `accept` return.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for client in self.shared.connections().values() {
            client.close();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, shared: &Arc<IpcShared>, forward: &Arc<dyn Fn(IpcMessage) + Send + Sync>) {
    for id in NO_AGENT + 1.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Too many open files, or too little memory, for now.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
                ) =>
            {
                tracing::warn!(%error, "cannot accept a connection");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(_) => return,
        };
        if shared.connections().len() >= CONNECTIONS_MAX {
            tracing::warn!("too many connections to the engine; one is refused");
            continue;
        }
        if let Err(error) = serve(id, stream, shared, forward) {
            tracing::warn!(%error, "cannot serve a connection");
            shared.connections().remove(&id);
        }
    }
}

/// Starts the two threads of a connection.
fn serve(
    id: u64,
    stream: UnixStream,
    shared: &Arc<IpcShared>,
    forward: &Arc<dyn Fn(IpcMessage) + Send + Sync>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let stream = Arc::new(stream);
    let (lines, queue) = sync_channel(QUEUE_LINES_MAX);
    let writing = Arc::new(Writing::default());
    let client = Client { id, lines, stream: Arc::clone(&stream), writing: Arc::clone(&writing) };
    shared.connections().insert(id, client.clone());
    thread::Builder::new()
        .name(format!("ipc-write-{id}"))
        .spawn(move || write_lines(&stream, &queue, &writing))?;
    let (shared, forward) = (Arc::clone(shared), Arc::clone(forward));
    thread::Builder::new().name(format!("ipc-read-{id}")).spawn(move || {
        forward(IpcMessage::Connected(client.clone()));
        match read_requests(&client, &shared, &*forward) {
            Ok(()) | Err(LineError::Io(_)) => {}
            Err(error) => tracing::warn!(%error, "a connection to the engine is closed"),
        }
        client.close();
        shared.connections().remove(&client.id);
    })?;
    Ok(())
}

/// Ends when the connection does, or when its queue has no sender any more.
fn write_lines(stream: &UnixStream, queue: &Receiver<Option<EngineLine>>, writing: &Writing) {
    let mut writer = stream;
    for line in queue {
        let mut rest = writing.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut write = || -> Result<(), LineError> {
            writer.write_all(&std::mem::take(&mut *rest))?;
            line.as_ref().map_or(Ok(()), |line| write_line(&mut writer, line))
        };
        let written = write();
        writing.waiting.fetch_sub(1, Ordering::SeqCst);
        if let Err(error) = written {
            if !matches!(error, LineError::Io(_)) {
                tracing::error!(%error, "a message to the agent could not be sent");
            }
            // Part of a line may have been sent.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn read_requests(client: &Client, shared: &IpcShared, forward: &dyn Fn(IpcMessage)) -> Result<(), LineError> {
    let mut decoder = LineDecoder::default();
    let mut buffer = [0; READ_BYTES];
    loop {
        let len = match (&*client.stream).read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        decoder.push(&buffer[..len]);
        while let Some(RequestLine { id, request }) = decoder.next_message()? {
            let reply = ReplySender { client: client.clone(), id, sent: false };
            match request {
                Request::Hello { .. } => shared.make_agent(client),
                Request::Status => {}
                _ if shared.agent.load(Ordering::Acquire) == client.id => {}
                _ => {
                    let message = "only the connection that said hello last may ask this";
                    reply.send(Reply::refused(Code::NotTheAgent, message, "say hello first"));
                    continue;
                }
            }
            forward(IpcMessage::Request { client: client.clone(), request, reply });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::{EngineStatus, read_line};
    use mainstay_types::{NodeId, ResourceId, Time};
    use std::io::BufReader;
    use std::sync::mpsc;

    struct Server {
        dir: PathBuf,
        server: Option<IpcServer>,
        messages: mpsc::Receiver<IpcMessage>,
    }

    impl Server {
        fn start(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("mainstay-ipc-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).expect("a directory");
            // As a killed engine leaves it.
            drop(UnixListener::bind(dir.join("engine.sock")));
            let (forward, messages) = mpsc::channel();
            let forward = move |message| drop(forward.send(message));
            let server = IpcServer::start(&dir.join("engine.sock"), forward).expect("a server");
            Self { dir, server: Some(server), messages }
        }

        fn connect(&self) -> BufReader<UnixStream> {
            let stream = UnixStream::connect(self.dir.join("engine.sock")).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
            let reader = BufReader::new(stream);
            assert!(matches!(self.next(), IpcMessage::Connected(_)));
            reader
        }

        fn next(&self) -> IpcMessage {
            self.messages.recv_timeout(Duration::from_secs(10)).expect("a message")
        }

        fn request(&self) -> (Request, ReplySender) {
            let IpcMessage::Request { request, reply, .. } = self.next() else { panic!("not a request") };
            (request, reply)
        }

        fn server(&self) -> &IpcServer {
            self.server.as_ref().expect("until the end")
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.server = None;
            let _ = fs::remove_dir(&self.dir);
        }
    }

    fn ask(stream: &mut BufReader<UnixStream>, id: u64, request: Request) {
        write_line(stream.get_mut(), &RequestLine { id, request }).expect("sent");
    }

    fn line(stream: &mut BufReader<UnixStream>) -> EngineLine {
        read_line(stream).expect("a line").expect("not the end")
    }

    fn hello() -> Request {
        Request::Hello { node: NodeId(1), cluster: 2, generation: 3 }
    }

    #[test]
    fn requests_are_answered_in_any_order_and_events_reach_all() {
        let server = Server::start("order");
        let mode = fs::metadata(server.dir.join("engine.sock")).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = IpcServer::start(&server.dir.join("engine.sock"), |_| ()).map(drop).expect_err("in use");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(matches!(server.next(), IpcMessage::Connected(_)), "the attempt has connected");
        let (mut agent, mut other) = (server.connect(), server.connect());
        ask(&mut agent, 1, hello());
        ask(&mut agent, 2, Request::Lease { until_us: Time(7) });
        let (first, second) = (server.request(), server.request());
        assert_eq!((first.0, second.0), (hello(), Request::Lease { until_us: Time(7) }));
        assert!(server.server().has_agent());
        second.1.send(Reply::Ok);
        first.1.send(Reply::Status(EngineStatus::default()));
        assert_eq!(line(&mut agent), EngineLine::Reply { id: 2, reply: Reply::Ok });
        let EngineLine::Reply { id: 1, .. } = line(&mut agent) else { panic!("the other reply") };
        let event = EngineEvent::Failed { resource: ResourceId(1), reason: "x".into() };
        server.server().send_all(&event);
        assert_eq!(line(&mut agent), EngineLine::Event { event: event.clone() });
        assert_eq!(line(&mut other), EngineLine::Event { event });
    }

    #[test]
    fn only_the_last_agent_may_change_anything() {
        let server = Server::start("agent");
        let mut first = server.connect();
        ask(&mut first, 1, Request::Pause { resource: ResourceId(1) });
        let EngineLine::Reply { id: 1, reply: Reply::Error(refused) } = line(&mut first) else {
            panic!("refused")
        };
        assert_eq!(refused.code, Code::NotTheAgent);
        ask(&mut first, 2, Request::Status);
        server.request().1.send(Reply::Ok);
        assert_eq!(line(&mut first), EngineLine::Reply { id: 2, reply: Reply::Ok });
        ask(&mut first, 3, hello());
        server.request().1.send(Reply::Ok);
        assert_eq!(line(&mut first), EngineLine::Reply { id: 3, reply: Reply::Ok });
        let mut second = server.connect();
        ask(&mut second, 1, hello());
        drop(server.request());
        let EngineLine::Reply { id: 1, reply: Reply::Error(lost) } = line(&mut second) else {
            panic!("an answer")
        };
        assert_eq!(lost.code, Code::Interrupted, "a forgotten request is answered");
        assert!(
            read_line::<EngineLine>(&mut first).is_ok_and(|end| end.is_none()),
            "the first one is closed"
        );
    }

    #[test]
    fn answers_about_the_lease_arrive_whole_and_behind_what_was_sent_before() {
        let server = Server::start("lease");
        let mut agent = server.connect();
        ask(&mut agent, 1, hello());
        server.request().1.send(Reply::Ok);
        assert_eq!(line(&mut agent), EngineLine::Reply { id: 1, reply: Reply::Ok });
        let answer =
            |id| EngineLine::Reply { id, reply: Reply::Lease { until_us: Time(id), silenced_us: Time(0) } };
        let lease = |agent: &mut BufReader<UnixStream>, id| {
            ask(agent, id, Request::Lease { until_us: Time(id) });
            server.request().1.send(Reply::Lease { until_us: Time(id), silenced_us: Time(0) });
        };
        // The socket takes some of the events at once, and the rest when the agent reads.
        let event = EngineEvent::Failed { resource: ResourceId(1), reason: "x".repeat(10_000) };
        for _ in 0..QUEUE_LINES_MAX / 2 {
            server.server().send_all(&event);
        }
        lease(&mut agent, 2);
        for _ in 0..QUEUE_LINES_MAX / 2 {
            assert_eq!(line(&mut agent), EngineLine::Event { event: event.clone() });
        }
        assert_eq!(line(&mut agent), answer(2));
        for id in 3..300 {
            lease(&mut agent, id);
            assert_eq!(line(&mut agent), answer(id));
        }
        // Far more than the socket takes, so that a line is cut.
        (300..1300).for_each(|id| lease(&mut agent, id));
        (300..1300).for_each(|id| assert_eq!(line(&mut agent), answer(id)));
    }

    #[test]
    fn nonsense_and_silence_close_only_their_own_connection() {
        let server = Server::start("bad");
        let (mut bad, mut deaf) = (server.connect(), server.connect());
        bad.get_mut().write_all(b"{\"id\":1}\n").expect("sent");
        assert!(read_line::<EngineLine>(&mut bad).is_ok_and(|end| end.is_none()));
        let event = EngineEvent::Failed { resource: ResourceId(1), reason: "x".repeat(10_000) };
        for _ in 0..QUEUE_LINES_MAX + 200 {
            server.server().send_all(&event);
        }
        while read_line::<EngineLine>(&mut deaf).is_ok_and(|line| line.is_some()) {}
        let mut good = server.connect();
        ask(&mut good, 1, Request::Status);
        server.request().1.send(Reply::Ok);
        assert_eq!(line(&mut good), EngineLine::Reply { id: 1, reply: Reply::Ok });
    }

    #[test]
    fn a_client_that_has_closed_its_end_is_gone() {
        let server = Server::start("gone");
        let mut agent = server.connect();
        ask(&mut agent, 1, Request::Status);
        let IpcMessage::Request { client, .. } = server.next() else { panic!("not a request") };
        assert!(!client.is_gone());
        drop(agent);
        assert!(client.is_gone());
    }
}
