//! Processor time of copying between two connections on loopback: with one lane of the router, and
//! with a task of tokio for each session on a runtime of one thread. Prints the time of the copying
//! thread. Clients and servers are other threads and do not count.
//!
//! `cargo run --release -p mainstay-router --example copy_cost`

use mainstay_router::copy::PIECE_BYTES;
use mainstay_router::lane::{Lane, Session, SessionId};
use mainstay_router::switch::GroupId;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BULK_BYTES: u64 = 1 << 30;
const EXCHANGES: u64 = 32_000;
const QUESTION_BYTES: usize = 100;
const ANSWER_BYTES: usize = 1000;
/// The least of so many counts: on a busy machine the others are too high.
const ROUNDS: usize = 15;

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    sessions: usize,
    bulk: bool,
}

fn main() {
    let cases = [
        Case { name: "ping-pong, 1 session", sessions: 1, bulk: false },
        Case { name: "ping-pong, 16 sessions", sessions: 16, bulk: false },
        Case { name: "bulk, 1 session", sessions: 1, bulk: true },
        Case { name: "bulk, 4 sessions", sessions: 4, bulk: true },
    ];
    for case in cases {
        let kinds = [("lane", on_lane as Proxy), ("tokio", on_tokio)];
        let mut least = [f64::INFINITY; 2];
        // By turns, so that what else the machine does meets both.
        for _ in 0..ROUNDS {
            for (least, (_, proxy)) in least.iter_mut().zip(kinds) {
                *least = least.min(run(case, proxy));
            }
        }
        for (least, (kind, _)) in least.iter().zip(kinds) {
            let (units, unit) = if case.bulk {
                ((BULK_BYTES >> 30) as f64 / 1000.0, "ms of processor time per GiB")
            } else {
                (EXCHANGES as f64 / 1e6, "us of processor time per exchange")
            };
            println!("{:24} {kind:5}: {:8.2} {unit}", case.name, least / units);
        }
    }
}

/// Copies for so many sessions until they have ended, and returns seconds of processor time.
type Proxy = fn(TcpListener, SocketAddr, usize) -> f64;

/// Returns seconds of processor time of the copying thread.
fn run(case: Case, proxy: Proxy) -> f64 {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = server.local_addr().expect("bound");
    let door = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = door.local_addr().expect("bound");
    let serving = thread::spawn(move || {
        let served: Vec<_> = (0..case.sessions)
            .map(|_| {
                let (stream, _) = server.accept().expect("a session");
                thread::spawn(move || serve(stream, case.bulk))
            })
            .collect();
        served.into_iter().for_each(|one| one.join().expect("served"));
    });
    let proxying = thread::spawn(move || proxy(door, to, case.sessions));
    let clients: Vec<_> = (0..case.sessions).map(|_| thread::spawn(move || ask(address, case))).collect();
    clients.into_iter().for_each(|one| one.join().expect("asked"));
    serving.join().expect("served");
    proxying.join().expect("copied")
}

/// Seconds of processor time of all threads of this process with this name.
fn used(name: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let of_name = tasks.filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let nanoseconds = of_name.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

fn serve(mut stream: TcpStream, bulk: bool) {
    stream.set_nodelay(true).expect("a socket");
    let mut buffer = vec![0; PIECE_BYTES];
    if bulk {
        while stream.read(&mut buffer).expect("bytes") > 0 {}
        return;
    }
    while stream.read_exact(&mut buffer[..QUESTION_BYTES]).is_ok() {
        stream.write_all(&buffer[..ANSWER_BYTES]).expect("a client");
    }
}

fn ask(address: SocketAddr, case: Case) {
    let mut stream = TcpStream::connect(address).expect("the proxy");
    stream.set_nodelay(true).expect("a socket");
    let mut buffer = vec![0; PIECE_BYTES];
    if case.bulk {
        for _ in 0..BULK_BYTES / case.sessions as u64 / PIECE_BYTES as u64 {
            stream.write_all(&buffer).expect("the proxy");
        }
        stream.shutdown(Shutdown::Write).expect("open");
        assert_eq!(stream.read(&mut buffer).expect("the end"), 0);
        return;
    }
    for _ in 0..EXCHANGES / case.sessions as u64 {
        stream.write_all(&buffer[..QUESTION_BYTES]).expect("the proxy");
        stream.read_exact(&mut buffer[..ANSWER_BYTES]).expect("an answer");
    }
}

fn on_lane(door: TcpListener, to: SocketAddr, sessions: usize) -> f64 {
    const NAME: &str = "router-lane";
    let (sender, over) = channel();
    let lane = Lane::start(Box::new(move |_, _| sender.send(()).expect("heard"))).expect("a thread");
    let before = used(NAME);
    for number in 0..sessions {
        let (client, _) = door.accept().expect("a client");
        let server = TcpStream::connect(to).expect("the server");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
            stream.set_nonblocking(true).expect("a socket");
        }
        let (id, group) = (SessionId(number as u64), GroupId(0));
        lane.carry(Session { id, group, client, server, header: Vec::new(), meter: Default::default() });
    }
    (0..sessions).for_each(|_| over.recv().expect("an end"));
    used(NAME) - before
}

fn on_tokio(door: TcpListener, to: SocketAddr, sessions: usize) -> f64 {
    const NAME: &str = "tokio-lane";
    let (sender, over) = channel();
    let (end, ends) = channel::<()>();
    let copying = thread::Builder::new().name(NAME.into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            door.set_nonblocking(true).expect("a socket");
            let door = tokio::net::TcpListener::from_std(door).expect("a socket");
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..sessions {
                let (client, _) = door.accept().await.expect("a client");
                tasks.spawn(async move {
                    let server = tokio::net::TcpStream::connect(to).await.expect("the server");
                    for stream in [&client, &server] {
                        stream.set_nodelay(true).expect("a socket");
                    }
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::join!(copy(from_client, to_server), copy(from_server, to_client));
                });
            }
            while tasks.join_next().await.is_some() {}
        });
        sender.send(()).expect("measured");
        // Its time can be read as long as it lives.
        let _ = ends.recv();
    });
    let copying = copying.expect("a thread");
    over.recv().expect("an end");
    let used = used(NAME);
    drop(end);
    copying.join().expect("copied");
    used
}

async fn copy(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf) {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut buffer).await.expect("bytes");
        if read == 0 {
            return to.shutdown().await.expect("open");
        }
        to.write_all(&buffer[..read]).await.expect("a reader");
    }
}
