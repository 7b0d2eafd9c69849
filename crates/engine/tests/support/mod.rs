//! Engines with a control plane made of a few lines, for the tests that run whole engines in one
//! process.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use mainstay_api::engine::{
    ClientStatus, DeviceUser, EngineEvent, EngineLine, JournalPlace, LineDecoder, Peer, ReplicaStatus, Reply,
    Request, RequestLine, write_line,
};
use mainstay_engine::EngineOptions;
use mainstay_types::{
    Code, ConfigVersion, Epoch, Incarnation, Index, Member, NodeId, ProposedChange, ResourceId,
    ResourceRecord, Role, Time,
};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const RESOURCE: ResourceId = ResourceId(1);
/// Long enough for an emulated machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const JOURNAL_BYTES: u64 = 16 << 20;

pub mod counting;
pub mod identities;

/// An engine, and the socket of its agent.
pub struct Engine {
    pub node: NodeId,
    stream: UnixStream,
    decoder: LineDecoder,
    next_id: u64,
    /// The newest report.
    pub status: Option<ReplicaStatus>,
    /// The newest report of a client; `None` when there is none.
    pub client: Option<ClientStatus>,
    pub proposals: Vec<ProposedChange>,
    pub dir: PathBuf,
    pub run_dir: PathBuf,
    /// Port of the engines of its cluster.
    port: u16,
}

impl Engine {
    /// With the devices that this kernel offers.
    pub fn start(node: u32, base: &Path) -> Self {
        Self::start_with(node, base, |_| {})
    }

    pub fn start_with(node: u32, base: &Path, configure: impl FnOnce(&mut EngineOptions)) -> Self {
        Self::start_on(node, base, configure, || {})
    }

    /// Calls `begin` on the shard's thread before the engine runs on it.
    pub fn start_on(
        node: u32,
        base: &Path,
        configure: impl FnOnce(&mut EngineOptions),
        begin: impl FnOnce() + Send + 'static,
    ) -> Self {
        let run_dir = base.join(format!("n{node}")).join("run");
        let mut options = EngineOptions::new(run_dir, addr(node, port_of(base)).parse().expect("an address"));
        configure(&mut options);
        std::thread::spawn(move || {
            begin();
            panic!("engine {node} ended: {:?}", mainstay_engine::run(options));
        });
        Self::connect(node, base)
    }

    /// To an engine that was started by other means.
    pub fn connect(node: u32, base: &Path) -> Self {
        let run_dir = base.join(format!("n{node}")).join("run");
        let socket = run_dir.join("engine.sock");
        let stream = wait("the engine's socket", || UnixStream::connect(&socket).ok());
        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let mut engine = Self {
            node: NodeId(node),
            stream,
            decoder: LineDecoder::default(),
            next_id: 0,
            status: None,
            client: None,
            proposals: Vec::new(),
            dir: base.join(format!("n{node}")).join("replica"),
            run_dir,
            port: port_of(base),
        };
        engine.ask(Request::Hello { node: NodeId(node), cluster: 77, generation: 1 });
        engine.ask(Request::Trust { proofs: Box::new(identities::proofs(node)) });
        engine.ask(Request::Lease { until_us: Time(u64::MAX) });
        engine.know(&[1, 2, 3]);
        engine
    }

    /// Connects this engine to these nodes, and to no others.
    pub fn know(&mut self, nodes: &[u32]) {
        let peers = nodes.iter().map(|&n| Peer { node: NodeId(n), addr: addr(n, self.port) }).collect();
        self.ask(Request::Peers { peers });
    }

    pub fn listen(&mut self) -> Option<(u64, Reply)> {
        let mut bytes = [0; 4096];
        loop {
            match self.decoder.next_message::<EngineLine>().expect("a line") {
                Some(EngineLine::Reply { id, reply }) => return Some((id, reply)),
                Some(EngineLine::Event { event: EngineEvent::Replica(status) }) => self.status = Some(status),
                Some(EngineLine::Event { event: EngineEvent::Proposal(proposal) }) => {
                    self.proposals.push(proposal.proposal.change);
                }
                Some(EngineLine::Event { event: EngineEvent::Client(status) }) => self.client = Some(status),
                Some(EngineLine::Event { event: EngineEvent::ClientGone { .. } }) => self.client = None,
                Some(EngineLine::Event { event: EngineEvent::LeaseLost { .. } }) => {}
                Some(EngineLine::Event { event }) => panic!("{}: {event:?}", self.node),
                None => match self.stream.read(&mut bytes) {
                    Ok(0) => panic!("engine {} closed its socket", self.node),
                    Ok(count) => self.decoder.push(&bytes[..count]),
                    Err(_) => return None,
                },
            }
        }
    }

    pub fn ask(&mut self, request: Request) -> Reply {
        let reply = self.reply(request);
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        reply
    }

    pub fn reply(&mut self, request: Request) -> Reply {
        let id = self.send(request);
        wait("a reply", || self.listen().filter(|(found, _)| *found == id)).1
    }

    /// Does not wait for the reply, which [`Engine::listen`] gives under this number.
    pub fn send(&mut self, request: Request) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        write_line(&mut self.stream, &RequestLine { id, request }).expect("sent");
        id
    }

    /// Where the files of a replica are that was made with [`Engine::create`].
    pub fn replica_dir(&self) -> String {
        self.dir.display().to_string()
    }

    pub fn until(&mut self, what: &str, mut is: impl FnMut(&ReplicaStatus) -> bool) -> ReplicaStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            self.listen();
            match &self.status {
                Some(status) if is(status) => return status.clone(),
                status => assert!(Instant::now() < end, "waited in vain for {what}: {status:#?}"),
            }
        }
    }

    /// Users of the first volume's device that the kernel does not know of.
    pub fn users(&mut self) -> Vec<DeviceUser> {
        let Reply::Status(status) = self.ask(Request::Status) else { panic!("a status was asked for") };
        let devices = status.replicas.into_iter().flat_map(|replica| replica.devices);
        devices.filter(|device| device.volume.0 == 0).flat_map(|device| device.users).collect()
    }

    pub fn device(&mut self) -> File {
        let status =
            self.until("a device", |status| status.role == Role::Primary && !status.devices.is_empty());
        let path = &status.devices[0].path;
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).expect("the device")
    }

    /// Makes a replica of the resource here, without telling its record.
    pub fn create(&mut self, resource: ResourceId, name: &str, volumes: Vec<u64>) {
        self.create_with(resource, name, volumes, JOURNAL_BYTES);
    }

    pub fn create_with(&mut self, resource: ResourceId, name: &str, volumes: Vec<u64>, journal_bytes: u64) {
        self.create_at(&self.replica_dir(), resource, name, volumes, journal_bytes, None);
    }

    /// In a directory, with the journal elsewhere if that is said.
    pub fn create_at(
        &mut self,
        dir: &str,
        resource: ResourceId,
        name: &str,
        volumes: Vec<u64>,
        journal_bytes: u64,
        journal: Option<JournalPlace>,
    ) {
        self.ask(Request::Create {
            resource,
            name: name.into(),
            volumes,
            journal_bytes,
            incarnation: member(self.node.0).incarnation,
            dir: dir.into(),
            journal,
            content: None,
        });
        self.ask(Request::Open {
            resource,
            name: name.into(),
            dir: dir.into(),
            incarnation: None,
            held: Index(0),
        });
    }

    /// Makes the resource here, with this node as its only replica and primary.
    pub fn serve_alone(&mut self, resource: ResourceId, name: &str, volumes: Vec<u64>) {
        self.create(resource, name, volumes);
        self.lead_alone(1, resource);
    }

    /// This node becomes the only replica and primary of what it has open.
    pub fn lead_alone(&mut self, epoch: u64, resource: ResourceId) {
        let me = member(self.node.0);
        let record = ResourceRecord {
            resource,
            version: ConfigVersion(epoch),
            epoch: Epoch(epoch),
            primary: Some(me.node),
            iss: vec![me],
            replicas: vec![me],
            ..ResourceRecord::new(resource)
        };
        self.ask(Request::Record { record });
    }

    /// The commit index and what is there. `None` when the commit index moved meanwhile: a
    /// secondary learns a little later than the primary how far the last write before is committed.
    fn digest(&mut self) -> Option<(u64, String)> {
        match self.reply(Request::Digest { resource: RESOURCE }) {
            Reply::Digest(report) => Some((report.index.0, report.volumes[0].digest.clone())),
            Reply::Error(error) if error.code == Code::Busy => None,
            other => panic!("{other:?}"),
        }
    }
}

/// Waits until all are at the same position, and compares what they hold.
pub fn assert_equal(engines: &mut [Engine]) {
    let digests = wait("equal positions", || {
        let digests: Option<Vec<_>> = engines.iter_mut().map(Engine::digest).collect();
        digests.filter(|digests| digests.windows(2).all(|pair| pair[0].0 == pair[1].0))
    });
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

/// Address of a node's engine. Other runs of the tests use other addresses.
pub fn addr(node: u32, port: u16) -> String {
    let process = std::process::id();
    format!("127.{}.{}.{node}:{port}", 64 + (process >> 8) % 128, process % 256)
}

/// Engines live as long as their process, so those of each test, which have a directory of their
/// own, have a port of their own.
pub fn port_of(base: &Path) -> u16 {
    7401 + (mainstay_codec::crc32c(base.as_os_str().as_encoded_bytes()) % 1000) as u16
}

/// Listens to engines until what this returns is called, which gives them back: one drops an agent
/// that does not listen to its reports.
pub fn listen(mut engines: Vec<Engine>) -> impl FnOnce() -> Vec<Engine> {
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let listener = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            for engine in &mut engines {
                engine.listen();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        engines
    });
    move || {
        done.store(true, Ordering::Relaxed);
        listener.join().expect("a listener")
    }
}

/// A directory of this process that is empty.
pub fn fresh_dir(name: &str) -> PathBuf {
    let base = std::env::temp_dir().join(format!("mainstay-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&base);
    std::fs::create_dir_all(&base).expect("a directory");
    base
}

pub fn wait<T>(what: &str, mut try_it: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = try_it() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn member(node: u32) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(100 + u64::from(node)) }
}

pub fn record(version: u64, epoch: u64, primary: u32, iss: &[u32]) -> ResourceRecord {
    ResourceRecord {
        resource: RESOURCE,
        version: ConfigVersion(version),
        epoch: Epoch(epoch),
        primary: Some(NodeId(primary)),
        iss: iss.iter().copied().map(member).collect(),
        replicas: (1..=3).map(member).collect(),
        ..ResourceRecord::new(RESOURCE)
    }
}
