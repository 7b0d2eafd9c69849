//! The floor: cost of the system calls of a write with nothing around them. One thread is the
//! primary, and one more is each secondary. They have the same device, rings, sockets, journal
//! writes and writes to volumes as engines do. They have no log, no checks, no sums and no record
//! of anything: what is written here cannot be found again. Reads are answered from memory, so a
//! file system and a database can be put on it.

use bytes::Bytes;
use mainstay_codec::Pieces;
use mainstay_engine::buffer::{BufMut, BufferPool};
use mainstay_engine::frontend::{Frontend, FrontendId, FrontendOp, FrontendRequest, FuseFrontend};
use mainstay_engine::loop_device::LoopDevice;
use mainstay_engine::ring::{Completion, Fd, Op, Owner, Ring, advance};
use mainstay_types::{JOURNAL_WRITES_MAX, VolumeId};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Before the payloads of a batch, on the wire and in the journal: how many there are, and for each
/// its place in units.
const HEAD_BYTES: usize = 4096;
const WORD: usize = 4;
const BATCH_MAX: usize = 96;
/// Total time, in microseconds, that waiting requests may wait before a journal write begins beside
/// others. As in engines.
const WAITED_US_MAX: u64 = 1_000;
/// Most bytes of a batch: its payloads are pieces of one operation.
const BATCH_BYTES_MAX: usize = 2 << 20;
const STAGING_BYTES: usize = 1 << 20;
const POOL_BYTES: usize = 64 << 20;
/// Bytes that wait to be written to the volume until a pass begins, as those of half a journal.
const LAG_BYTES: usize = 16 << 20;
/// Writes to the volume at once.
const PASS_WRITES: usize = 64;

const JOURNAL: u64 = 0;
const VOLUME: u64 = 1;
/// The peer's number is added.
const SEND: u64 = 16;
const RECEIVE: u64 = 32;

/// Sizes in bytes.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub volume: u64,
    pub journal: u64,
    /// Bytes that are written to the volume at once. Requests are of one or more of these units.
    pub unit: usize,
}

/// A device that is served so.
pub struct Floor {
    pub device: Fd,
    pub path: PathBuf,
    waker: mainstay_engine::ring::Waker,
    attached: Option<LoopDevice>,
    threads: Vec<JoinHandle<()>>,
}

impl Floor {
    /// `secondaries: None`: not even a journal, writes are answered as they come.
    pub fn start(base: &Path, sizes: Sizes, secondaries: Option<usize>) -> Self {
        let count = secondaries.unwrap_or(0);
        let name = secondaries.map_or("none".into(), |count| format!("{count}"));
        let base = base.join(format!("floor-{name}"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut threads = Vec::new();
        let mut peers = Vec::new();
        for peer in 0..count {
            let dir = base.join(format!("secondary-{peer}"));
            let store = Store::create(&dir, sizes);
            let socket = TcpStream::connect(address).expect("listening");
            threads.push(thread::spawn(move || Secondary::new(store, socket).run()));
            peers.push(listener.accept().expect("a peer").0);
        }
        let dir = base.join("primary");
        let store = secondaries.map(|_| Store::create(&dir, sizes));
        let mount = base.join("mount");
        let (told, tell) = mpsc::channel();
        threads.push(thread::spawn(move || {
            let pool = BufferPool::new(POOL_BYTES);
            let frontend = FuseFrontend::mount(FrontendId(1), &mount, &[sizes.volume], pool.clone());
            let frontend = frontend.expect("FUSE");
            let ring = Ring::new().expect("a ring");
            told.send((frontend.file(VolumeId(0)), ring.waker())).expect("awaited");
            let content = vec![0; sizes.volume as usize];
            Primary::new(ring, frontend, pool, store, peers, content, sizes.unit).run();
        }));
        let (file, waker) = tell.recv().expect("it has begun");
        let attached = LoopDevice::attach(&file).expect("a loop device");
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(attached.path());
        let device = Arc::new(direct.expect("the device").into());
        Self { device, path: attached.path().into(), waker, attached: Some(attached), threads }
    }

    pub fn stop(mut self) {
        drop(self.device);
        if let Some(attached) = self.attached.take() {
            attached.detach().expect("no program uses it");
        }
        self.waker.wake();
        for thread in self.threads {
            thread.join().expect("no thread fails");
        }
    }
}

/// Journal and volume.
struct Store {
    journal: Fd,
    volume: Fd,
    journal_bytes: u64,
    unit: usize,
    end: u64,
    /// Units that are to be written to the volume, by their place.
    waiting: BTreeMap<u64, Bytes>,
    pass: VecDeque<(u64, Bytes)>,
    writing: usize,
}

impl Store {
    fn create(dir: &Path, sizes: Sizes) -> Self {
        std::fs::create_dir_all(dir).expect("a directory");
        let file = |name: &str, bytes: u64| -> Fd {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
            let file: File = options.open(dir.join(name)).expect("a file");
            let pool = BufferPool::new(1 << 20);
            let chunk = pool.copy_of(&vec![1; 1 << 20]);
            for at in (0..bytes).step_by(1 << 20) {
                std::os::unix::fs::FileExt::write_all_at(&file, &chunk, at).expect("space");
            }
            file.sync_all().expect("flushed");
            Arc::new(file.into())
        };
        Self {
            journal: file("journal", sizes.journal),
            volume: file("volume", sizes.volume),
            journal_bytes: sizes.journal,
            unit: sizes.unit,
            end: 0,
            waiting: BTreeMap::new(),
            pass: VecDeque::new(),
            writing: 0,
        }
    }

    /// Writes a batch to the journal, durably.
    fn append(&mut self, ring: &mut Ring, pieces: VecDeque<Bytes>) {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if self.end + bytes > self.journal_bytes {
            self.end = 0;
        }
        let op = Op::Write { fd: Fd::clone(&self.journal), offset: self.end, pieces, durable: true };
        self.end += bytes;
        ring.submit(Owner::Disk, JOURNAL, op);
    }

    /// A unit of the journal that goes to the volume in time.
    fn keep(&mut self, ring: &mut Ring, place: u64, payload: Bytes) {
        self.waiting.insert(place, payload);
        if self.waiting.len() * self.unit >= LAG_BYTES && self.pass.is_empty() {
            self.pass = std::mem::take(&mut self.waiting).into_iter().collect();
        }
        self.destage(ring);
    }

    fn destage(&mut self, ring: &mut Ring) {
        while self.writing < PASS_WRITES
            && let Some((place, payload)) = self.pass.pop_front()
        {
            self.writing += 1;
            let (fd, offset) = (Fd::clone(&self.volume), place * self.unit as u64);
            let op = Op::Write { fd, offset, pieces: [payload].into(), durable: false };
            ring.submit(Owner::Disk, VOLUME, op);
        }
    }

    fn written(&mut self, ring: &mut Ring) {
        self.writing -= 1;
        self.destage(ring);
    }
}

/// Units that a request writes, each with its place in units. The kernel merges neighbouring
/// requests into one.
fn units(request: &FrontendRequest, unit: usize) -> impl Iterator<Item = (u64, Bytes)> {
    let FrontendOp::Write { offset, payload } = &request.op else { unreachable!("only writes are batched") };
    let first = offset / unit as u64;
    (0..payload.len() / unit).map(move |n| (first + n as u64, payload.slice(n * unit..(n + 1) * unit)))
}

/// How many of the requests are one batch: at least one.
fn in_batch(requests: &[FrontendRequest]) -> usize {
    let mut left = BATCH_BYTES_MAX;
    let fits = |request: &&FrontendRequest| {
        let FrontendOp::Write { payload, .. } = &request.op else { unreachable!("only writes are batched") };
        let fits = payload.len() <= left;
        left = left.saturating_sub(payload.len());
        fits
    };
    requests.iter().take(BATCH_MAX).take_while(fits).count().max(1)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(WORD).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
}

/// Queue of bytes to one peer. It has one send in flight at a time, as the order counts.
struct Outbox {
    socket: Fd,
    tag: u64,
    waiting: VecDeque<Bytes>,
    sending: bool,
}

impl Outbox {
    fn new(socket: Fd, tag: u64) -> Self {
        Self { socket, tag, waiting: VecDeque::new(), sending: false }
    }

    fn push(&mut self, ring: &mut Ring, pieces: impl IntoIterator<Item = Bytes>) {
        self.waiting.extend(pieces);
        self.send(ring);
    }

    fn send(&mut self, ring: &mut Ring) {
        if !self.sending && !self.waiting.is_empty() {
            self.sending = true;
            let (socket, pieces) = (Fd::clone(&self.socket), std::mem::take(&mut self.waiting));
            ring.submit(Owner::Transport, self.tag, Op::Send { socket, pieces });
        }
    }

    fn sent(&mut self, ring: &mut Ring, sent: usize, mut pieces: VecDeque<Bytes>) {
        self.sending = false;
        advance(&mut pieces, sent);
        pieces.extend(std::mem::take(&mut self.waiting));
        self.waiting = pieces;
        self.send(ring);
    }
}

/// Bytes from one peer that are not handled yet.
struct Inbox {
    socket: Fd,
    tag: u64,
    /// Whether the peer sends acknowledgements, which can wait for each other.
    patient: bool,
    held: Vec<u8>,
}

impl Inbox {
    fn new(socket: Fd, tag: u64, patient: bool) -> Self {
        Self { socket, tag, patient, held: Vec::new() }
    }

    fn receive(&self, ring: &mut Ring, buffer: BufMut) {
        let (socket, len) = (Fd::clone(&self.socket), buffer.capacity());
        let op = Op::Receive { socket, buffer, at: 0, len, whole: false };
        match self.patient {
            true => ring.submit_patient(Owner::Transport, self.tag, op),
            false => ring.submit(Owner::Transport, self.tag, op),
        };
    }
}

struct Primary {
    ring: Ring,
    frontend: FuseFrontend,
    pool: BufferPool,
    store: Option<Store>,
    outboxes: Vec<Outbox>,
    inboxes: Vec<Inbox>,
    /// How many batches the journal and then each peer has.
    have: Vec<u64>,
    answered: u64,
    /// Requests that were sent and put into the journal together, and are not answered.
    batches: VecDeque<Vec<FrontendRequest>>,
    /// Content of the volume.
    content: Vec<u8>,
    unit: usize,
    /// When the journal writes in flight began, taken to end in that order, and the least that one
    /// took in µs.
    writing: VecDeque<Instant>,
    least_us: u64,
}

impl Primary {
    fn new(
        ring: Ring,
        mut frontend: FuseFrontend,
        pool: BufferPool,
        store: Option<Store>,
        peers: Vec<TcpStream>,
        content: Vec<u8>,
        unit: usize,
    ) -> Self {
        // A write that is answered is durable, as with engines.
        frontend.flushes(false);
        let sockets = peers.into_iter().map(socket).enumerate();
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = sockets
            .map(|(n, socket)| {
                (
                    Outbox::new(Fd::clone(&socket), SEND + n as u64),
                    Inbox::new(socket, RECEIVE + n as u64, true),
                )
            })
            .unzip();
        let have = vec![0; 1 + outboxes.len()];
        let (batches, writing) = (VecDeque::new(), VecDeque::new());
        let (answered, least_us) = (0, u64::MAX);
        Self {
            ring,
            frontend,
            pool,
            store,
            outboxes,
            inboxes,
            have,
            answered,
            batches,
            content,
            unit,
            writing,
            least_us,
        }
    }

    fn run(mut self) {
        self.frontend.start(&mut self.ring);
        for inbox in &self.inboxes {
            inbox.receive(&mut self.ring, self.pool.get(HEAD_BYTES));
        }
        let (mut completions, mut requests) = (Vec::new(), Vec::new());
        loop {
            // For the oldest batch; while more wait to be one, the journal alone.
            let lack = self.have.iter().filter(|have| **have <= self.answered).count();
            let due = if self.batches.is_empty() || !requests.is_empty() { 1 } else { lack };
            if self.ring.turn_gathering(None, due, &mut completions).expect("a turn") {
                return;
            }
            for completion in completions.drain(..) {
                if completion.owner == Owner::Frontend {
                    self.frontend.completed(&mut self.ring, completion, &mut requests);
                } else {
                    self.completed(completion);
                }
            }
            self.answer();
            self.answer_others(&mut requests);
            while self.batch_is_due(requests.len() as u64) {
                self.begin(requests.drain(..in_batch(&requests)).collect());
            }
        }
    }

    /// Whether the waiting requests begin a batch now, decided as in engines. Requests that come
    /// while the journal is written go into the next batch. Enough of them get a batch beside the
    /// one in flight.
    fn batch_is_due(&self, waiting: u64) -> bool {
        let in_flight = self.writing.len();
        let worth = || waiting.saturating_mul(self.least_us) >= WAITED_US_MAX && self.least_us < u64::MAX;
        waiting > 0 && (in_flight == 0 || in_flight < JOURNAL_WRITES_MAX && worth())
    }

    fn completed(&mut self, Completion { tag, result, op, .. }: Completion) {
        let moved = result.expect("no operation fails") as usize;
        match (tag, op) {
            (JOURNAL, _) => {
                self.have[0] += 1;
                let began = self.writing.pop_front().expect("it was issued");
                self.least_us = self.least_us.min(began.elapsed().as_micros() as u64);
            }
            (VOLUME, _) => self.store.as_mut().expect("it has one").written(&mut self.ring),
            (tag, Op::Send { pieces, .. }) => {
                self.outboxes[(tag - SEND) as usize].sent(&mut self.ring, moved, pieces);
            }
            // One byte for each batch.
            (tag, Op::Receive { buffer, .. }) => {
                let peer = (tag - RECEIVE) as usize;
                self.have[1 + peer] += moved as u64;
                self.inboxes[peer].receive(&mut self.ring, buffer);
            }
            (tag, op) => unreachable!("{tag} {op:?}"),
        }
    }

    /// Answers all requests but writes, which stay. The writer reads no range before its write is
    /// answered.
    fn answer_others(&mut self, requests: &mut Vec<FrontendRequest>) {
        let writes = |request: &FrontendRequest| matches!(request.op, FrontendOp::Write { .. });
        for FrontendRequest { tag, op, .. } in requests.extract_if(.., |request| !writes(request)) {
            let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
            let pieces = match op {
                FrontendOp::Read { offset, len } => {
                    [self.pool.copy_of(&self.content[range(offset, len)])].into()
                }
                FrontendOp::Discard { offset, len } | FrontendOp::WriteZeroes { offset, len } => {
                    self.content[range(offset, len)].fill(0);
                    Pieces::new()
                }
                _ => Pieces::new(),
            };
            self.frontend.complete(&mut self.ring, tag, Ok(pieces));
        }
    }

    fn begin(&mut self, requests: Vec<FrontendRequest>) {
        let unit = self.unit;
        for (place, payload) in requests.iter().flat_map(|request| units(request, unit)) {
            self.content[place as usize * unit..(place as usize + 1) * unit].copy_from_slice(&payload);
        }
        let Some(store) = &mut self.store else {
            for request in requests {
                self.frontend.complete(&mut self.ring, request.tag, Ok(Pieces::new()));
            }
            return;
        };
        let mut head = self.pool.get(HEAD_BYTES);
        let mut payloads = VecDeque::with_capacity(1 + requests.len());
        let put = |head: &mut BufMut, at: usize, word: u32| {
            head.as_mut_slice()[at * WORD..(at + 1) * WORD].copy_from_slice(&word.to_le_bytes());
        };
        for (place, payload) in requests.iter().flat_map(|request| units(request, unit)) {
            payloads.push_back(payload);
            put(&mut head, payloads.len(), place as u32);
        }
        put(&mut head, 0, payloads.len() as u32);
        let head = head.freeze(HEAD_BYTES);
        let sent = head.slice(..(1 + payloads.len()) * WORD);
        for outbox in &mut self.outboxes {
            outbox.push(&mut self.ring, [sent.clone()].into_iter().chain(payloads.iter().cloned()));
        }
        payloads.push_front(head);
        store.append(&mut self.ring, payloads);
        self.writing.push_back(Instant::now());
        self.batches.push_back(requests);
    }

    fn answer(&mut self) {
        let Some(store) = &mut self.store else { return };
        let everywhere = self.have.iter().copied().min().expect("the journal at least");
        while self.answered < everywhere {
            self.answered += 1;
            for request in self.batches.pop_front().expect("it was begun") {
                self.frontend.complete(&mut self.ring, request.tag, Ok(Pieces::new()));
                for (place, payload) in units(&request, self.unit) {
                    store.keep(&mut self.ring, place, payload);
                }
            }
        }
    }
}

fn socket(stream: TcpStream) -> Fd {
    stream.set_nodelay(true).expect("a socket");
    Arc::new(stream.into())
}

struct Secondary {
    ring: Ring,
    pool: BufferPool,
    store: Store,
    outbox: Outbox,
    inbox: Inbox,
    /// Places and payloads of batches that the journal does not have yet.
    batches: VecDeque<(Vec<u32>, Vec<Bytes>)>,
}

impl Secondary {
    fn new(store: Store, stream: TcpStream) -> Self {
        let socket = socket(stream);
        Self {
            ring: Ring::new().expect("a ring"),
            pool: BufferPool::new(POOL_BYTES),
            store,
            outbox: Outbox::new(Fd::clone(&socket), SEND),
            inbox: Inbox::new(socket, RECEIVE, false),
            batches: VecDeque::new(),
        }
    }

    fn run(mut self) {
        self.inbox.receive(&mut self.ring, self.pool.get(STAGING_BYTES));
        let mut completions = Vec::new();
        loop {
            self.ring.turn(None, &mut completions).expect("a turn");
            for Completion { tag, result, op, .. } in completions.drain(..) {
                let moved = result.expect("no operation fails") as usize;
                match (tag, op) {
                    (JOURNAL, _) => self.journaled(),
                    (VOLUME, _) => self.store.written(&mut self.ring),
                    (_, Op::Send { pieces, .. }) => self.outbox.sent(&mut self.ring, moved, pieces),
                    (_, Op::Receive { .. }) if moved == 0 => return,
                    (_, Op::Receive { buffer, .. }) => {
                        self.arrived(&buffer.as_slice()[..moved]);
                        self.inbox.receive(&mut self.ring, buffer);
                    }
                    (tag, op) => unreachable!("{tag} {op:?}"),
                }
            }
        }
    }

    /// Batches that have come whole go to the journal.
    fn arrived(&mut self, bytes: &[u8]) {
        // As a rule nothing is left of the time before, and nothing is moved.
        let mut held = std::mem::take(&mut self.inbox.held);
        let mut rest = bytes;
        if !held.is_empty() {
            held.extend_from_slice(bytes);
            rest = &held;
        }
        while let Some(count) = words(rest).next() {
            let head = (1 + count as usize) * WORD;
            let Some(batch) = rest.get(..head + count as usize * self.store.unit) else { break };
            let mut block = self.pool.get(HEAD_BYTES);
            block.as_mut_slice()[..head].copy_from_slice(&batch[..head]);
            let payloads: Vec<Bytes> =
                batch[head..].chunks(self.store.unit).map(|unit| self.pool.copy_of(unit)).collect();
            let pieces = [block.freeze(HEAD_BYTES)].into_iter().chain(payloads.iter().cloned()).collect();
            self.store.append(&mut self.ring, pieces);
            self.batches.push_back((words(&batch[WORD..head]).collect(), payloads));
            rest = &rest[batch.len()..];
        }
        self.inbox.held = rest.to_vec();
    }

    fn journaled(&mut self) {
        let (places, payloads) = self.batches.pop_front().expect("it was written");
        self.outbox.push(&mut self.ring, [Bytes::from_static(&[1])]);
        for (place, payload) in places.into_iter().zip(payloads) {
            self.store.keep(&mut self.ring, u64::from(place), payload);
        }
    }
}
