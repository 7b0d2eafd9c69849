//! A router with real sockets: databases and agents are threads of the test.

use mainstay_api::rest::{DestinationView, DestinationsPage, NodePlace, ServicePhase};
use mainstay_router::RouterError;
use mainstay_router::settings::{Ms, Settings};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const PATIENCE: Duration = Duration::from_secs(30);

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < deadline, "{what} did not happen in time");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A port of this machine that was free a moment ago, and the next one, too.
fn free_ports() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let step = NEXT.fetch_add(2, Ordering::Relaxed);
        let port = 20_000 + ((u64::from(std::process::id()) * 64 + step) % 10_000) as u16;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 1) {
            return port;
        }
    }
}

/// An agent that tells what the test says.
#[derive(Clone)]
struct FakeAgent {
    address: SocketAddr,
    page: Arc<(Mutex<DestinationsPage>, Condvar)>,
    /// Whether it closes every connection without an answer.
    dead: Arc<Mutex<bool>>,
}

impl FakeAgent {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let page = DestinationsPage { cluster: 1, revision: 1, as_of_ms: Some(0), destinations: vec![] };
        let agent = Self {
            address: listener.local_addr().unwrap(),
            page: Arc::new((Mutex::new(page), Condvar::new())),
            dead: Arc::default(),
        };
        let serving = agent.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let agent = serving.clone();
                thread::spawn(move || agent.answer(stream));
            }
        });
        agent
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("GET /v1/destinations?"), "{head}");
        let number = |name: &str| -> u64 {
            let rest = head.split_once(name).unwrap().1;
            rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        let (after, wait) = (number("after="), Duration::from_millis(number("wait_ms=")));
        let (page, changed) = &*self.page;
        let is_old = |page: &mut DestinationsPage| page.revision <= after && !*self.dead.lock().unwrap();
        let (page, _) = changed.wait_timeout_while(page.lock().unwrap(), wait, is_old).unwrap();
        if *self.dead.lock().unwrap() {
            return;
        }
        let body = serde_json::to_string(&*page).unwrap();
        drop(page);
        let length = body.len();
        // The router may have ended.
        let _ =
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    }

    fn tell(&self, revision: u64, destinations: Vec<DestinationView>) {
        let (page, changed) = &*self.page;
        let mut page = page.lock().unwrap();
        (page.revision, page.destinations) = (revision, destinations);
        changed.notify_all();
    }

    fn set_dead(&self, dead: bool) {
        *self.dead.lock().unwrap() = dead;
        self.page.1.notify_all();
    }
}

/// The service `db` on node 1 or 2, which have the addresses 127.0.0.1 and 127.0.0.2.
fn on(epoch: u64, node: u8, phase: ServicePhase) -> DestinationView {
    DestinationView {
        resource: "db".into(),
        service: Some("db".into()),
        epoch,
        primary: Some(NodePlace { node: format!("n{node}"), address: format!("127.0.0.{node}") }),
        phase: Some(phase),
        readers: vec![],
    }
}

/// A router in this process, its agent, and the port of the database on its nodes.
struct Bench {
    agent: FakeAgent,
    door: SocketAddr,
    readers: SocketAddr,
    port: u16,
    stop: UnboundedSender<()>,
    running: JoinHandle<Result<(), RouterError>>,
}

impl Bench {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let agent = FakeAgent::start();
        let (door, port) = (free_ports(), free_ports());
        let text = format!(
            "agents = [\"{}\"]\n[[route]]\nservice = \"db\"\nport = {port}\nlisten = \"127.0.0.1:{door}\"\n",
            agent.address
        );
        let mut settings = mainstay_router::settings::parse(&text).unwrap();
        settings.limits.threads = Some(2);
        change(&mut settings);
        let (stop, stops) = unbounded_channel();
        let running = thread::spawn(move || mainstay_router::run(settings, stops));
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self { agent, door: address(door), readers: address(door + 1), port, stop, running }
    }

    /// The database of a node, where each session is served by `serve`.
    fn database(&self, node: u8, serve: fn(TcpStream)) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, node], self.port))).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(stream));
            }
        });
    }

    /// A session, as soon as the router takes one.
    fn session(&self) -> TcpStream {
        eventually("a session", || {
            let stream = TcpStream::connect(self.door).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Some(stream)
        })
    }

    fn is_refused(&self) -> bool {
        let connected = TcpStream::connect_timeout(&self.door, Duration::from_secs(5));
        connected.err().map(|error| error.kind()) == Some(ErrorKind::ConnectionRefused)
    }

    fn end(self) {
        self.stop.send(()).unwrap();
        // The router may have ended already.
        let _ = self.stop.send(());
        self.running.join().unwrap().unwrap();
    }
}

/// Sends everything back, and ends when its client does.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}

/// Whether a question of this session is answered by an echo.
fn answers(stream: &mut TcpStream, question: &[u8]) -> bool {
    let mut answer = vec![0; question.len()];
    stream.write_all(question).is_ok() && stream.read_exact(&mut answer).is_ok() && answer == question
}

/// The end that a session comes to.
fn end_of(stream: &mut TcpStream) -> Option<ErrorKind> {
    stream.read(&mut [0]).err().map(|error| error.kind())
}

/// Byte at this place of a long transfer.
fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send_pattern(stream: &mut TcpStream, bytes: u64) {
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + 50_000);
        let piece: Vec<u8> = (at..end).map(pattern).collect();
        stream.write_all(&piece).unwrap();
        at = end;
    }
}

/// Reads to the end, and returns how many bytes of the pattern there were.
fn read_pattern(stream: &mut TcpStream) -> u64 {
    let mut buffer = vec![0; 70_000];
    let mut at = 0;
    loop {
        let read = stream.read(&mut buffer).unwrap();
        if read == 0 {
            return at;
        }
        for byte in &buffer[..read] {
            assert_eq!(*byte, pattern(at), "byte {at}");
            at += 1;
        }
    }
}

#[test]
fn clients_are_refused_at_once_while_there_is_no_destination() {
    let bench = Bench::start();
    bench.database(1, echo);
    thread::sleep(Duration::from_millis(300));
    assert!(bench.is_refused(), "no destination is known yet");
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Starting)]);
    thread::sleep(Duration::from_millis(300));
    assert!(bench.is_refused(), "the service starts");
    bench.agent.tell(3, vec![on(1, 1, ServicePhase::Running)]);
    assert!(answers(&mut bench.session(), b"SELECT 1"));
    bench.agent.tell(4, vec![on(1, 1, ServicePhase::Stopped)]);
    eventually("a refusal", || bench.is_refused().then_some(()));
    bench.agent.tell(5, vec![on(1, 1, ServicePhase::Running)]);
    assert!(answers(&mut bench.session(), b"SELECT 2"));
    // No copy can be read, so nothing listens for readers.
    let readers = TcpStream::connect(bench.readers).unwrap_err();
    assert_eq!(readers.kind(), ErrorKind::ConnectionRefused);
    let mut with_reader = on(1, 1, ServicePhase::Running);
    with_reader.readers = vec![NodePlace { node: "n2".into(), address: "127.0.0.2".into() }];
    bench.database(2, echo);
    bench.agent.tell(6, vec![with_reader]);
    let mut reader = eventually("a reader", || TcpStream::connect(bench.readers).ok());
    assert!(answers(&mut reader, b"SELECT 3"));
    bench.end();
}

#[test]
fn sessions_of_a_node_that_died_silently_are_reset_at_the_epoch_change() {
    let bench = Bench::start();
    bench.database(1, |mut stream| {
        drop(stream.write_all(b"1"));
        // The server says nothing more and closes nothing, like a machine without power.
        thread::sleep(PATIENCE * 2);
    });
    bench.database(2, |mut stream| {
        drop(stream.write_all(b"2"));
        echo(stream);
    });
    let node = |stream: &mut TcpStream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        byte[0]
    };
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let mut old: Vec<TcpStream> = (0..20).map(|_| bench.session()).collect();
    assert!(old.iter_mut().all(|stream| node(stream) == b'1'));
    let changed = Instant::now();
    bench.agent.tell(3, vec![on(2, 2, ServicePhase::Starting)]);
    for stream in &mut old {
        assert_eq!(end_of(stream), Some(ErrorKind::ConnectionReset));
    }
    assert!(changed.elapsed() < Duration::from_secs(5), "{:?}", changed.elapsed());
    eventually("a refusal", || bench.is_refused().then_some(()));
    bench.agent.tell(4, vec![on(2, 2, ServicePhase::Running)]);
    let mut new = bench.session();
    assert_eq!(node(&mut new), b'2');
    assert!(answers(&mut new, b"SELECT 1"));
    bench.end();
}

#[test]
fn a_half_closed_session_goes_on_in_the_other_direction() {
    const BYTES: u64 = 3_000_001;
    // The client asks and closes its side; the answer comes afterwards, all of it.
    let bench = Bench::start();
    bench.database(1, |mut stream| {
        assert_eq!(read_pattern(&mut stream), BYTES);
        thread::sleep(Duration::from_millis(200));
        send_pattern(&mut stream, BYTES);
    });
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let mut client = bench.session();
    send_pattern(&mut client, BYTES);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_pattern(&mut client), BYTES);
    bench.end();

    // The server closes its side first; the client still sends.
    let bench = Bench::start();
    bench.database(1, |mut stream| {
        send_pattern(&mut stream, BYTES);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_pattern(&mut stream), BYTES);
        let done = read_pattern(&mut stream);
        assert_eq!(done, 0);
        TOLD.fetch_add(1, Ordering::Relaxed);
    });
    static TOLD: AtomicU64 = AtomicU64::new(0);
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let mut client = bench.session();
    assert_eq!(read_pattern(&mut client), BYTES);
    thread::sleep(Duration::from_millis(200));
    send_pattern(&mut client, BYTES);
    client.shutdown(Shutdown::Write).unwrap();
    eventually("all bytes at the server", || (TOLD.load(Ordering::Relaxed) == 1).then_some(()));
    bench.end();
}

#[test]
fn large_transfers_in_both_directions_at_once_arrive_byte_for_byte() {
    const BYTES: u64 = 48 << 20;
    let bench = Bench::start();
    bench.database(1, |stream| {
        let mut sink = stream.try_clone().unwrap();
        let sending = thread::spawn(move || {
            send_pattern(&mut sink, BYTES);
            sink.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(read_pattern(&mut { stream }), BYTES);
        sending.join().unwrap();
    });
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = bench.session();
            let mut sink = client.try_clone().unwrap();
            let sending = thread::spawn(move || {
                send_pattern(&mut sink, BYTES);
                sink.shutdown(Shutdown::Write).unwrap();
            });
            thread::spawn(move || {
                assert_eq!(read_pattern(&mut client), BYTES);
                sending.join().unwrap();
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    bench.end();
}

#[test]
fn a_reader_that_takes_nothing_stops_its_sender() {
    static SENT: AtomicU64 = AtomicU64::new(0);
    let bench = Bench::start();
    bench.database(1, |mut stream| {
        let piece = vec![0; 1 << 16];
        while stream.write_all(&piece).is_ok() {
            SENT.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    });
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let client = bench.session();
    let stopped = eventually("a sender that waits", || {
        let before = SENT.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(500));
        (before > 0 && SENT.load(Ordering::Relaxed) == before).then_some(before)
    });
    // All of it lies in the kernel's buffers of two connections, and one piece in the router.
    assert!(stopped < 64 << 20, "{stopped} bytes were taken");
    // Other sessions are not held up.
    let mut other = bench.session();
    other.read_exact(&mut [0; 4096]).unwrap();
    drop(client);
    bench.end();
}

#[test]
fn a_thousand_sessions_are_carried_and_reset_together() {
    let bench = Bench::start();
    bench.database(1, echo);
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    drop(bench.session());
    let mut sessions: Vec<TcpStream> = (0..1000).map(|_| bench.session()).collect();
    for round in 0..3u8 {
        for (at, stream) in sessions.iter_mut().enumerate() {
            assert!(answers(stream, &[round, at as u8, (at >> 8) as u8]), "session {at}");
        }
    }
    bench.agent.tell(3, vec![on(2, 2, ServicePhase::Stopped)]);
    for stream in &mut sessions {
        assert_eq!(end_of(stream), Some(ErrorKind::ConnectionReset));
    }
    bench.end();
}

#[test]
fn a_planned_stop_resets_idle_sessions_and_waits_for_answers() {
    let bench = Bench::with(|settings| settings.limits.drain = Ms(20_000));
    bench.database(1, |mut stream| {
        let mut question = [0];
        while stream.read_exact(&mut question).is_ok() {
            // Some questions take long.
            thread::sleep(Duration::from_secs(if question[0] == b'l' { 3 } else { 0 }));
            drop(stream.write_all(&question));
        }
    });
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let (mut idle, mut busy) = (bench.session(), bench.session());
    assert!(answers(&mut idle, b"q") && answers(&mut busy, b"q"));
    busy.write_all(b"l").unwrap();
    thread::sleep(Duration::from_millis(200));
    let told = Instant::now();
    bench.agent.tell(3, vec![on(1, 1, ServicePhase::Stopping)]);
    assert_eq!(end_of(&mut idle), Some(ErrorKind::ConnectionReset));
    assert!(told.elapsed() < Duration::from_millis(2600), "{:?}", told.elapsed());
    assert!(bench.is_refused());
    let mut answer = [0];
    busy.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"l");
    assert_eq!(end_of(&mut busy), Some(ErrorKind::ConnectionReset));
    bench.end();
}

#[test]
fn a_router_that_is_told_to_end_drains_and_ends() {
    let bench = Bench::start();
    bench.database(1, echo);
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let mut session = bench.session();
    assert!(answers(&mut session, b"q"));
    bench.stop.send(()).unwrap();
    assert_eq!(end_of(&mut session), Some(ErrorKind::ConnectionReset));
    bench.running.join().unwrap().unwrap();
    assert_eq!(TcpStream::connect(bench.door).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn any_living_agent_will_do_and_without_one_known_destinations_last_a_while() {
    let second = FakeAgent::start();
    let address = second.address.to_string();
    let bench = Bench::with(|settings| {
        settings.agents.push(address);
        settings.limits.max_age = Ms(3_000);
    });
    bench.database(1, echo);
    bench.database(2, echo);
    bench.agent.set_dead(true);
    second.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let mut session = bench.session();
    assert!(answers(&mut session, b"q"));
    second.set_dead(true);
    thread::sleep(Duration::from_millis(500));
    assert!(answers(&mut bench.session(), b"q"), "the last news are young enough");
    eventually("a refusal", || bench.is_refused().then_some(()));
    assert!(answers(&mut session, b"q"), "the session needs no agent");
    // The other agent comes back, and knows more.
    bench.agent.tell(9, vec![on(2, 2, ServicePhase::Running)]);
    bench.agent.set_dead(false);
    assert_eq!(end_of(&mut session), Some(ErrorKind::ConnectionReset));
    assert!(answers(&mut bench.session(), b"q"));
    bench.end();
}

#[test]
fn the_database_learns_the_address_of_the_client() {
    let bench = Bench::with(|settings| settings.routes[0].proxy_protocol = true);
    bench.database(1, |mut stream| {
        let mut header = [0; 28];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(&header[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c");
        // The client hears from which address and port it came.
        stream.write_all(&header[16..26]).unwrap();
        echo(stream);
    });
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    let mut session = bench.session();
    let mut addresses = [0; 10];
    session.read_exact(&mut addresses).unwrap();
    let port = session.local_addr().unwrap().port().to_be_bytes();
    assert_eq!(addresses, [127, 0, 0, 1, 127, 0, 0, 1, port[0], port[1]]);
    assert!(answers(&mut session, b"q"));
    bench.end();
}

#[test]
fn a_full_route_and_an_absent_database_reset_the_client() {
    let bench = Bench::with(|settings| settings.routes[0].max_sessions = 1);
    bench.agent.tell(2, vec![on(1, 1, ServicePhase::Running)]);
    // The service is said to run, and nothing listens.
    let mut session = bench.session();
    assert_eq!(end_of(&mut session), Some(ErrorKind::ConnectionReset));
    bench.database(1, echo);
    let mut first = bench.session();
    eventually("an answer", || {
        let answered = answers(&mut first, b"q");
        if !answered {
            first = bench.session();
        }
        answered.then_some(())
    });
    let mut second = bench.session();
    assert_eq!(end_of(&mut second), Some(ErrorKind::ConnectionReset));
    assert!(answers(&mut first, b"q"));
    bench.end();
}

/// Returns the answer to a request, with its head.
fn http(address: SocketAddr, path: &str) -> String {
    let mut stream = eventually("a status", || TcpStream::connect(address).ok());
    write!(stream, "GET {path} HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn load_balancers_and_prometheus_are_told_the_state_of_the_router() {
    let status = SocketAddr::from(([127, 0, 0, 1], free_ports()));
    let bench = Bench::with(|settings| settings.status_listen = Some(status));
    bench.database(1, echo);
    let code = |path: &str| http(status, path).split(' ').nth(1).unwrap().to_owned();
    eventually("health", || (code("/health") == "200").then_some(()));
    assert_eq!(code("/primary"), "503");
    bench.agent.tell(2, vec![on(5, 1, ServicePhase::Running)]);
    let mut session = bench.session();
    assert!(answers(&mut session, b"12345"));
    assert_eq!(
        [code("/primary"), code("/primary/db"), code("/primary/x"), code("/x")],
        ["200", "200", "404", "404"]
    );
    assert!(http(status, "/primary/db").ends_with("db: n1 in epoch 5, 1 sessions\n"));
    bench.agent.tell(3, vec![on(6, 2, ServicePhase::Starting)]);
    assert_eq!(end_of(&mut session), Some(ErrorKind::ConnectionReset));
    let labels = "service=\"db\",door=\"primary\"";
    eventually("the counts of the past session", || {
        let page = http(status, "/metrics");
        let has = |sample: &str| page.contains(&format!("\nmainstay_router_{sample}\n"));
        (has(&format!("sessions{{{labels}}} 0"))
            && has(&format!("sessions_total{{{labels}}} 1"))
            && has(&format!("listening{{{labels}}} 0"))
            && has(&format!("bytes_total{{{labels},from=\"client\"}} 5"))
            && has(&format!("resets_total{{{labels},reason=\"moved\"}} 1"))
            && has(&format!("agent_up{{agent=\"{}\"}} 1", bench.agent.address)))
        .then_some(())
    });
    bench.end();
}

#[test]
fn a_port_that_is_taken_ends_the_router_with_its_name() {
    let port = free_ports();
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let text = format!(
        "agents = [\"127.0.0.1:1\"]\n[[route]]\nservice = \"db\"\nport = 1\nlisten = \"127.0.0.1:{port}\"\n"
    );
    let settings = mainstay_router::settings::parse(&text).unwrap();
    let error = mainstay_router::run(settings, unbounded_channel().1).unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port} for db")), "{error}");
    drop(taken);
}
