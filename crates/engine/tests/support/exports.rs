//! Exports of an engine, and clients of them: programs that others wrote, and one of a few lines.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use crate::support::{Engine, fresh_dir};
use mainstay_api::engine::Request;
use mainstay_codec::nbd::handshake::GREETING_BYTES;
use mainstay_codec::nbd::{Command as Ask, Request as NbdRequest};
use mainstay_engine::EngineOptions;
use mainstay_engine::frontend::DeviceOption;
use mainstay_types::{FrontendKind, ResourceId, Role};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const VOLUME_BYTES: u64 = 64 << 20;
/// Longest time for one run of a client; machines that are emulated on a busy disk are slow.
const CLIENT_PATIENCE: Duration = Duration::from_secs(300);

/// Engines share the machine, so the tests of one program take turns.
static TURN: Mutex<()> = Mutex::new(());

pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn nbd(options: &mut EngineOptions) {
    options.device = DeviceOption::Only(FrontendKind::Nbd);
}

/// One engine with one resource, `db`, of two volumes, and the directory of all that.
pub fn serve(name: &str, node: u32) -> (Engine, PathBuf) {
    serve_with(fresh_dir(name), node, nbd)
}

pub fn serve_with(base: PathBuf, node: u32, configure: impl FnOnce(&mut EngineOptions)) -> (Engine, PathBuf) {
    let mut engine = Engine::start_with(node, &base, configure);
    engine.serve_alone(ResourceId(1), "db", vec![VOLUME_BYTES, 1 << 20]);
    engine.until("an export", |status| status.role == Role::Primary && !status.devices.is_empty());
    (engine, base)
}

pub fn end(mut engine: Engine, base: &Path) {
    engine.ask(Request::Drop { resource: ResourceId(1) });
    std::fs::remove_dir_all(base).expect("nothing holds the files any more");
}

pub fn socket(engine: &Engine) -> PathBuf {
    engine.run_dir.join("nbd.sock")
}

pub fn uri(engine: &Engine, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket(engine).display())
}

/// Runs a client to its end, while the engines are listened to; `at` is called now and then. Its
/// output.
pub fn run_while(engines: &mut [Engine], command: &mut Command, at: impl FnMut(&mut [Engine])) -> String {
    let shown = format!("{command:?}");
    let (success, output) = run_to_the_end(engines, command, at);
    assert!(success, "{shown}:\n{output}");
    output
}

/// Runs a client that is to fail. Its output.
pub fn run_in_vain(engine: &mut Engine, command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let (success, output) = run_to_the_end(std::slice::from_mut(engine), command, |_| {});
    assert!(!success, "{shown}:\n{output}");
    output
}

fn run_to_the_end(
    engines: &mut [Engine],
    command: &mut Command,
    mut at: impl FnMut(&mut [Engine]),
) -> (bool, String) {
    let shown = format!("{command:?}");
    let out = tempfile();
    let file = std::fs::File::create(&out).expect("a file");
    command.stdin(Stdio::null()).stderr(file.try_clone().expect("a copy")).stdout(file);
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{shown}: {error}; `make deps` installs what this test needs");
    });
    let until = Instant::now() + CLIENT_PATIENCE;
    let status = loop {
        engines.iter_mut().for_each(|engine| _ = engine.listen());
        at(engines);
        match child.try_wait().expect("a child") {
            Some(status) => break Some(status),
            None if Instant::now() > until => break None,
            None => {}
        }
    };
    if status.is_none() {
        child.kill().expect("ended");
        child.wait().expect("ended");
    }
    let output = std::fs::read_to_string(&out).unwrap_or_default();
    std::fs::remove_file(&out).expect("removed");
    let Some(status) = status else { panic!("{shown} has not ended:\n{output}") };
    (status.success(), output)
}

pub fn tempfile() -> PathBuf {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    *next += 1;
    std::env::temp_dir().join(format!("mainstay-nbd-{}-{next}", std::process::id()))
}

/// A port of this machine that was free a moment ago.
pub fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

pub fn run(engine: &mut Engine, program: &str, arguments: &[&str]) -> String {
    run_while(std::slice::from_mut(engine), Command::new(program).args(arguments), |_| {})
}

/// Bytes that a copy in the wrong place or order would show.
pub fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// A client of a few lines, for what the tools of others do not do.
pub struct Client<S> {
    pub stream: S,
}

impl Client<UnixStream> {
    pub fn at(engine: &Engine, export: &str) -> Self {
        let stream = UnixStream::connect(socket(engine)).expect("the server's socket");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        Self::go(stream, export)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn go(mut stream: S, export: &str) -> Self {
        stream.read_exact(&mut [0; GREETING_BYTES]).expect("a greeting");
        let mut option = 3u32.to_be_bytes().to_vec();
        option.extend(b"IHAVEOPT\0\0\0\x01");
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        stream.write_all(&option).expect("sent");
        stream.read_exact(&mut [0; 10]).expect("an export");
        Self { stream }
    }

    pub fn ask(&mut self, command: Ask, offset: u64, len: u32, payload: &[u8]) {
        let request = NbdRequest { command, cookie: offset, offset, len, bad_flags: false };
        self.stream.write_all(&[&request.encode()[..], payload].concat()).expect("sent");
    }

    pub fn reply(&mut self) -> (u32, u64) {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).expect("a reply");
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        (error, u64::from_be_bytes(reply[8..].try_into().expect("eight bytes")))
    }

    pub fn write(&mut self, offset: u64, payload: &[u8]) {
        self.ask(Ask::Write, offset, payload.len() as u32, payload);
        assert_eq!(self.reply(), (0, offset));
    }

    pub fn read(&mut self, offset: u64, into: &mut [u8]) {
        self.ask(Ask::Read { whole: false }, offset, into.len() as u32, &[]);
        assert_eq!(self.reply(), (0, offset));
        self.stream.read_exact(into).expect("content");
    }

    /// Whether the server has hung up.
    pub fn is_cut_off(&mut self) -> bool {
        let mut byte = [0];
        !matches!(self.stream.read(&mut byte), Ok(1..))
    }
}
