//! Three whole engines in one process, on addresses of the loopback network, with a control plane made of a few
//! lines: a resource is made, promoted, written through its device, handed over, and compared.
//!
//! Needs root, /dev/fuse and loop devices.

use mainstay_api::engine::{
    EngineEvent, EngineLine, LineDecoder, Peer, ProposedChange, ReplicaStatus, Reply, Request, RequestLine,
    Role, write_line,
};
use mainstay_engine::EngineOptions;
use mainstay_types::{ConfigVersion, Epoch, Incarnation, Member, NodeId, ResourceId, ResourceRecord, Time};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const RESOURCE: ResourceId = ResourceId(1);
const VOLUME_BYTES: u64 = 64 << 20;
/// Long enough for an emulated machine.
const PATIENCE: Duration = Duration::from_secs(60);
const JOURNAL_BYTES: u64 = 16 << 20;

/// An engine, and the socket of its agent.
struct Engine {
    node: NodeId,
    stream: UnixStream,
    decoder: LineDecoder,
    next_id: u64,
    /// The newest report.
    status: Option<ReplicaStatus>,
    proposals: Vec<ProposedChange>,
    dir: PathBuf,
}

impl Engine {
    fn start(node: u32, base: &std::path::Path) -> Self {
        let run_dir = base.join(format!("n{node}")).join("run");
        let listen = format!("127.0.77.{node}:7401").parse().expect("an address");
        let options = EngineOptions::new(run_dir.clone(), listen);
        std::thread::spawn(move || panic!("engine {node} ended: {:?}", mainstay_engine::run(options)));
        let socket = run_dir.join("engine.sock");
        let stream = wait("the engine's socket", || UnixStream::connect(&socket).ok());
        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let mut engine = Self {
            node: NodeId(node),
            stream,
            decoder: LineDecoder::default(),
            next_id: 0,
            status: None,
            proposals: Vec::new(),
            dir: base.join(format!("n{node}")).join("replica"),
        };
        engine.ask(Request::Hello { node: NodeId(node), cluster: 77, generation: 1 });
        engine.ask(Request::Lease { until_us: Time(u64::MAX) });
        let peer = |n: u32| Peer { node: NodeId(n), addr: format!("127.0.77.{n}:7401") };
        engine.ask(Request::Peers { peers: (1..=3).map(peer).collect() });
        engine
    }

    fn listen(&mut self) -> Option<(u64, Reply)> {
        let mut bytes = [0; 4096];
        loop {
            match self.decoder.next_message::<EngineLine>().expect("a line") {
                Some(EngineLine::Reply { id, reply }) => return Some((id, reply)),
                Some(EngineLine::Event { event: EngineEvent::Replica(status) }) => self.status = Some(status),
                Some(EngineLine::Event { event: EngineEvent::Proposal(proposal) }) => {
                    self.proposals.push(proposal.change);
                }
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

    fn ask(&mut self, request: Request) -> Reply {
        self.next_id += 1;
        let id = self.next_id;
        write_line(&mut self.stream, &RequestLine { id, request }).expect("sent");
        let (_, reply) = wait("a reply", || self.listen().filter(|(found, _)| *found == id));
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        reply
    }

    fn until(&mut self, what: &str, mut is: impl FnMut(&ReplicaStatus) -> bool) -> ReplicaStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            self.listen();
            match &self.status {
                Some(status) if is(status) => return status.clone(),
                status => assert!(Instant::now() < end, "waited in vain for {what}: {status:#?}"),
            }
        }
    }

    fn device(&mut self) -> File {
        let status =
            self.until("a device", |status| status.role == Role::Primary && !status.devices.is_empty());
        let path = &status.devices[0].path;
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).expect("the device")
    }

    fn digest(&mut self) -> (u64, String) {
        match self.ask(Request::Digest { resource: RESOURCE }) {
            Reply::Digest(report) => (report.index.0, report.volumes[0].digest.clone()),
            other => panic!("{other:?}"),
        }
    }
}

fn wait<T>(what: &str, mut try_it: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = try_it() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn member(node: u32) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(100 + u64::from(node)) }
}

fn record(version: u64, epoch: u64, primary: u32, iss: &[u32]) -> ResourceRecord {
    ResourceRecord {
        resource: RESOURCE,
        version: ConfigVersion(version),
        epoch: Epoch(epoch),
        primary: Some(NodeId(primary)),
        iss: iss.iter().copied().map(member).collect(),
        replicas: (1..=3).map(member).collect(),
    }
}

/// Memory with the alignment that direct I/O needs.
fn block(fill: u8) -> mainstay_engine::buffer::BufMut {
    let mut buffer = mainstay_engine::buffer::BufferPool::new(0).get(4096);
    buffer.as_mut_slice().fill(fill);
    buffer
}

fn write_blocks(device: &File, blocks: &[u64], fill: u8) {
    for &at in blocks {
        device.write_all_at(&block(fill).as_slice()[..4096], at * 4096).expect("written");
    }
}

fn assert_block(device: &File, at: u64, fill: u8) {
    let mut buffer = block(!fill);
    device.read_exact_at(&mut buffer.as_mut_slice()[..4096], at * 4096).expect("read");
    assert!(buffer.as_slice()[..4096].iter().all(|byte| *byte == fill), "block {at} is not all {fill}");
}

fn assert_equal(engines: &mut [Engine]) {
    let digests = wait("equal positions", || {
        let digests: Vec<_> = engines.iter_mut().map(Engine::digest).collect();
        digests.windows(2).all(|pair| pair[0].0 == pair[1].0).then_some(digests)
    });
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

/// Engines share the process, so the tests of this file take turns.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_resource_is_written_handed_over_and_equal_everywhere() {
    let _turn = TURN.lock();
    let base = std::env::temp_dir().join(format!("mainstay-engines-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&base);
    std::fs::create_dir_all(&base).expect("a directory");
    let mut engines: Vec<_> = (1..=3).map(|node| Engine::start(node, &base)).collect();
    for (engine, node) in engines.iter_mut().zip(1..) {
        let dir = engine.dir.display().to_string();
        engine.ask(Request::Create {
            resource: RESOURCE,
            name: format!("r-n{node}"),
            volumes: vec![VOLUME_BYTES],
            journal_bytes: JOURNAL_BYTES,
            incarnation: member(node).incarnation,
            dir: dir.clone(),
        });
        engine.ask(Request::Open { resource: RESOURCE, name: format!("r-n{node}"), dir });
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }

    // More than the journal holds, with hot blocks, so that destage, checkpoint and trim all happen.
    let device = engines[0].device();
    for round in 0..3u8 {
        let mut large = mainstay_engine::buffer::BufferPool::new(0).get(1 << 20);
        large.as_mut_slice().fill(round + 1);
        for at in 0..20u64 {
            device.write_all_at(&large.as_slice()[..1 << 20], at << 20).expect("written");
            write_blocks(&device, &[7, 5000 + at], 100 + round);
        }
        // On a slow machine this takes long, and an engine drops an agent that does not listen to its reports.
        for engine in &mut engines {
            engine.listen();
        }
    }
    assert_block(&device, 7, 102);
    assert_block(&device, 6, 3);
    assert_block(&device, 9000, 0);
    drop(device);
    assert_equal(&mut engines);

    // A planned handover: the old primary gives its device back first.
    engines[0].ask(Request::Demote { resource: RESOURCE });
    engines[0].until("the old primary to be secondary", |status| status.role == Role::Secondary);
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(2, 2, 2, &[1, 2, 3]) });
    }
    let device = engines[1].device();
    assert_block(&device, 7, 102);
    write_blocks(&device, &[7, 8, 16000], 42);

    // A member is removed, misses writes, and is asked back when it has caught up.
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(3, 2, 2, &[1, 2]) });
    }
    write_blocks(&device, &[8], 43);
    let grown = wait("a proposal to grow", || {
        engines[1].listen();
        engines[1].proposals.pop()
    });
    assert_eq!(grown, ProposedChange::Grow { add: member(3) });
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(4, 2, 2, &[1, 2, 3]) });
    }
    write_blocks(&device, &[9], 44);
    assert_block(&device, 8, 43);
    drop(device);
    assert_equal(&mut engines);

    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// R10, R19: without a lease nothing is served, and devices answer with errors.
#[test]
fn a_lease_that_runs_out_fences_the_device() {
    let _turn = TURN.lock();
    let base = std::env::temp_dir().join(format!("mainstay-fence-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&base);
    std::fs::create_dir_all(&base).expect("a directory");
    let mut engine = Engine::start(9, &base);
    let dir = engine.dir.display().to_string();
    let resource = ResourceId(9);
    let me = member(9);
    engine.ask(Request::Create {
        resource,
        name: "fenced".into(),
        volumes: vec![VOLUME_BYTES],
        journal_bytes: JOURNAL_BYTES,
        incarnation: me.incarnation,
        dir: dir.clone(),
    });
    engine.ask(Request::Open { resource, name: "fenced".into(), dir });
    let record = ResourceRecord {
        resource,
        version: ConfigVersion(1),
        epoch: Epoch(1),
        primary: Some(me.node),
        iss: vec![me],
        replicas: vec![me],
    };
    engine.ask(Request::Record { record });
    let device = engine.device();
    write_blocks(&device, &[1], 7);
    let until = mainstay_engine::ring::now().plus_ms(800);
    engine.ask(Request::Lease { until_us: until });
    wait("the device to fail", || {
        let failed = device.write_all_at(&block(1).as_slice()[..4096], 4096).is_err();
        failed.then_some(())
    });
    assert!(mainstay_engine::ring::now() < until, "the device failed only after the lease had ended");
    engine.ask(Request::Drop { resource });
    drop(device);
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// R18: small writes go on for ever, wherever in the ring the journal's free part lies.
#[test]
fn small_writes_go_round_the_journal_again_and_again() {
    let _turn = TURN.lock();
    let base = std::env::temp_dir().join(format!("mainstay-round-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&base);
    std::fs::create_dir_all(&base).expect("a directory");
    let mut engine = Engine::start(8, &base);
    let dir = engine.dir.display().to_string();
    let (resource, me) = (ResourceId(8), member(8));
    engine.ask(Request::Create {
        resource,
        name: "round".into(),
        volumes: vec![VOLUME_BYTES],
        journal_bytes: JOURNAL_BYTES,
        incarnation: me.incarnation,
        dir: dir.clone(),
    });
    engine.ask(Request::Open { resource, name: "round".into(), dir });
    let record = ResourceRecord {
        resource,
        version: ConfigVersion(1),
        epoch: Epoch(1),
        primary: Some(me.node),
        iss: vec![me],
        replicas: vec![me],
    };
    engine.ask(Request::Record { record });
    let device = engine.device();
    // Each takes two blocks of the journal: four times round.
    let writes = 4 * JOURNAL_BYTES / 8192;
    let (done, all) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let block = block(5);
        let whole =
            (0..writes).all(|at| device.write_all_at(&block.as_slice()[..4096], at % 997 * 4096).is_ok());
        done.send(whole).expect("waited for");
    });
    let until = Instant::now() + Duration::from_secs(180);
    let whole = loop {
        match all.try_recv() {
            Ok(whole) => break Ok(whole),
            Err(_) if Instant::now() > until => break Err("the writer hangs"),
            // An engine drops an agent that does not listen to its reports.
            Err(_) => _ = engine.listen(),
        }
    };
    if whole.is_err() {
        // Ends the write that hangs, so that the test can fail.
        engine.ask(Request::Detach { resource });
    }
    writer.join().expect("a writer");
    assert_eq!(whole, Ok(true), "the journal has gone round without a stop");
    engine.ask(Request::Drop { resource });
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}
