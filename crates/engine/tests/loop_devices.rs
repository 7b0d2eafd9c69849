//! Real kernel: volumes in memory, a FUSE mount, loop devices, file systems and fio on top.
//!
//! Needs root, `/dev/fuse`, `/dev/loop-control`, e2fsprogs, xfsprogs, util-linux and fio; says so
//! and passes where root is missing. Every test takes away what it made, also when it fails.

use mainstay_codec::Pieces;
use mainstay_devices::atomic::verdict::Writes;
use mainstay_devices::atomic::{self, Question};
use mainstay_devices::block_queue;
use mainstay_devices::descriptor_holder::DescriptorHolder;
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::devices::{Attachment, DeviceAdmin, DeviceJob, DeviceOutcome};
use mainstay_engine::frontend::{
    Frontend, FrontendId, FrontendOp, FrontendRequest, FuseFrontend, frontend_of, unmount_stale,
};
use mainstay_engine::loop_device::LoopDevice;
use mainstay_engine::ring::{Fd, Owner, Ring, Waker};
use mainstay_types::{FrontendKind, ResourceId, VolumeId};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const RESOURCE: ResourceId = ResourceId(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// Answer everything with EIO from now on.
    Fence,
    /// Leave requests unanswered from now on.
    Hang,
    /// Take the mount away, end when the kernel has let go.
    Detach,
    /// Require flushes from now on: an answered write may be lost before one.
    NeedFlushes,
    /// End at once, as a killed engine does.
    Die,
}

/// Requests of one kind to the devices: their number, their bytes, and the bytes of the largest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Count {
    requests: u64,
    bytes: u64,
    largest: u64,
}

type Counts = Arc<Mutex<BTreeMap<&'static str, Count>>>;

/// A shard with one frontend whose volumes are memory.
struct Shard {
    dir: PathBuf,
    file: PathBuf,
    counts: Counts,
    orders: mpsc::Sender<Order>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Shard {
    fn start(name: &str, bytes: u64) -> Self {
        let dir = std::env::temp_dir().join(format!("mainstay-test-{}-{name}", std::process::id()));
        let (orders, queue) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let counts = Counts::default();
        let (dir2, counts2) = (dir.clone(), Arc::clone(&counts));
        let thread = std::thread::spawn(move || serve(&dir2, bytes, &counts2, &queue, &ready));
        let (waker, file) = started.recv_timeout(Duration::from_secs(10)).expect("mounted");
        Self { dir, file, counts, orders, waker, thread: Some(thread) }
    }

    fn order(&self, order: Order) {
        // The shard may have ended before.
        let _ = self.orders.send(order);
        self.waker.wake();
    }

    fn count(&self, kind: &str) -> Count {
        self.counts.lock().expect("not poisoned").get(kind).copied().unwrap_or_default()
    }

    fn end(&mut self, order: Order) {
        self.order(order);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the shard ended well");
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.order(Order::Die);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        unmount_stale(&self.dir);
        let _ = fs::remove_dir(&self.dir);
    }
}

fn serve(
    dir: &Path,
    bytes: u64,
    counts: &Counts,
    orders: &mpsc::Receiver<Order>,
    ready: &mpsc::Sender<(Waker, PathBuf)>,
) {
    let pool = BufferPool::new(64 << 20);
    let mut ring = Ring::new().expect("a ring");
    let id = FrontendId(3);
    let mut frontend = FuseFrontend::mount(id, dir, &[bytes], pool.clone()).expect("a mount");
    frontend.start(&mut ring);
    ready.send((ring.waker(), frontend.file(VolumeId(0)))).expect("a caller waits");
    let mut memory = vec![0u8; bytes as usize];
    let (mut completions, mut requests) = (Vec::new(), Vec::new());
    let mut hang = false;
    while !frontend.is_closed() {
        ring.turn(None, &mut completions).expect("a turn");
        for order in orders.try_iter() {
            match order {
                Order::Fence => frontend.fail_all(&mut ring, libc::EIO),
                Order::Hang => hang = true,
                Order::Detach => frontend.detach(),
                Order::NeedFlushes => assert!(frontend.flushes(true)),
                Order::Die => return,
            }
        }
        for completion in completions.drain(..) {
            assert_eq!((completion.owner, frontend_of(completion.tag)), (Owner::Frontend, id));
            frontend.completed(&mut ring, completion, &mut requests);
        }
        for FrontendRequest { tag, op, .. } in requests.drain(..) {
            let (kind, len) = match &op {
                FrontendOp::Read { len, .. } => ("read", *len),
                FrontendOp::Write { payload, .. } => ("write", payload.len() as u64),
                FrontendOp::Discard { len, .. } => ("discard", *len),
                FrontendOp::WriteZeroes { len, .. } => ("write-zeroes", *len),
                FrontendOp::Flush => ("flush", 0),
                FrontendOp::Extents { .. } => unreachable!("the kernel cannot ask for this"),
            };
            let mut counts = counts.lock().expect("not poisoned");
            let mut note = |kind, len: u64| {
                let count = counts.entry(kind).or_default();
                *count = Count {
                    requests: count.requests + 1,
                    bytes: count.bytes + len,
                    largest: count.largest.max(len),
                };
            };
            note(kind, len);
            if let FrontendOp::Write { payload, .. } = &op {
                for run in runs_of_pages(payload) {
                    note(if run.is_multiple_of(PAGE) { "pages" } else { "torn pages" }, run);
                }
            }
            drop(counts);
            if !hang {
                let result = execute(&mut memory, &pool, op);
                frontend.complete(&mut ring, tag, Ok(result));
            }
        }
    }
}

/// Bytes of a page of a database, each of which is [`MARK`].
const PAGE: u64 = 16384;
const MARK: u8 = 0xa5;

/// Lengths of the runs of blocks in a request that belong to pages of a database. A run that is no
/// multiple of a page ends within one.
fn runs_of_pages(payload: &[u8]) -> Vec<u64> {
    let is_part: Vec<bool> =
        payload.chunks(4096).map(|block| block.iter().all(|&byte| byte == MARK)).collect();
    let runs = is_part.chunk_by(|a, b| a == b).filter(|run| run[0]);
    runs.map(|run| run.len() as u64 * 4096).collect()
}

fn execute(memory: &mut [u8], pool: &BufferPool, op: FrontendOp) -> Pieces {
    match op {
        FrontendOp::Read { offset, len } => {
            return [pool.copy_of(&memory[offset as usize..(offset + len) as usize])].into();
        }
        FrontendOp::Write { offset, payload } => {
            assert!((payload.as_ptr() as usize).is_multiple_of(4096), "payloads are aligned");
            memory[offset as usize..][..payload.len()].copy_from_slice(&payload);
        }
        FrontendOp::Discard { offset, len } | FrontendOp::WriteZeroes { offset, len } => {
            memory[offset as usize..(offset + len) as usize].fill(0);
        }
        FrontendOp::Flush | FrontendOp::Extents { .. } => {}
    }
    Pieces::new()
}

/// A file system mounted for the time of a test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path, at: &Path) -> Self {
        fs::create_dir_all(at).expect("a directory");
        run("mount", &[device.to_str().unwrap(), at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
        unmount_stale(&self.0);
        let _ = fs::remove_dir(&self.0);
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").arg("120").arg(program).args(arguments).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}\n{errors}", output.status);
    text
}

fn may_run() -> bool {
    // Writing to /dev/fuse's neighbours takes the same right as mounting.
    let root = fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t"));
    if !root || !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        eprintln!("skipped: needs root, /dev/fuse and /dev/loop-control");
        return false;
    }
    true
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

fn gone(device: &Path) -> bool {
    let name = device.file_name().unwrap().to_str().unwrap();
    !Path::new(&format!("/sys/block/{name}/loop/backing_file")).exists()
}

/// Answered writes are durable, so the kernel sends no flushes. A program that asks for one is told
/// that it is done.
#[test]
fn a_device_that_needs_no_flush_gets_none() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("unflushed", 16 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let file = fs::OpenOptions::new().read(true).write(true).open(device.path()).expect("open");
    for round in 0..3 {
        file.write_all_at(&[round + 1; 4096], u64::from(round) * 4096).expect("written");
        file.sync_all().expect("durable");
    }
    assert_eq!(shard.count("write").requests, 3, "a flush of the page cache writes what is in it");
    assert_eq!(shard.count("flush").requests, 0);
    drop(file);
    assert!(device.detach().expect("detached"), "no other program uses it");
    shard.end(Order::Detach);
}

/// A loop device keeps the cache setting of its number's earlier device. Without a cache, its users
/// would not flush.
#[test]
fn a_loop_device_has_a_cache_whatever_its_number_had_before() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("cached", 16 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let path = device.path().to_owned();
    let cache = Path::new("/sys/block").join(path.file_name().expect("a name")).join("queue/write_cache");
    fs::write(&cache, "write through").expect("a cache can be told to be none");
    assert!(device.detach().expect("detached"), "no other program uses it");
    // Others may take the number meanwhile, and then it is another one.
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let own =
        Path::new("/sys/block").join(device.path().file_name().expect("a name")).join("queue/write_cache");
    let found = fs::read_to_string(&own).expect("readable");
    // No other user is to get the number as it was left, whatever comes of this.
    fs::write(&cache, "write back").expect("a cache can be told to be one");
    assert_eq!(found.trim(), "write back");
    assert!(device.detach().expect("detached"), "no other program uses it");
    shard.end(Order::Detach);
}

#[test]
fn a_file_system_lives_on_a_loop_device() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("xfs", 512 << 20);
    shard.order(Order::NeedFlushes);
    let listed: Vec<_> = fs::read_dir(&shard.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, ["0"]);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let path = device.path().to_owned();
    assert_eq!(run("blockdev", &["--getss", text(&path)]).trim(), "4096");
    assert_eq!(run("blockdev", &["--getsize64", text(&path)]).trim(), (512u64 << 20).to_string());
    run("mkfs.xfs", &["-q", text(&path)]);
    assert!(shard.count("discard").bytes >= 500 << 20, "mkfs discards: {:?}", shard.counts);
    let at = shard.dir.with_extension("mnt");
    {
        let mounted = Mounted::new(&path, &at);
        let content: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(mounted.0.join("file"), &content).unwrap();
        fs::write(mounted.0.join("gone"), &content).unwrap();
        run("sync", &["-f", text(&mounted.0)]);
        fs::remove_file(mounted.0.join("gone")).unwrap();
        run("sync", &["-f", text(&mounted.0)]);
        let before = shard.count("discard").bytes;
        run("fstrim", &[text(&mounted.0)]);
        assert!(shard.count("discard").bytes >= before + content.len() as u64, "fstrim arrives");
        run("umount", &[text(&at)]);
        let mounted = Mounted::new(&path, &at);
        assert!(fs::read(mounted.0.join("file")).unwrap() == content, "content survives a mount");
    }
    assert!(shard.count("flush").requests > 0, "a file system flushes");
    assert_eq!(
        shard.count("write").largest,
        448 << 10,
        "what a file system writes in one piece arrives in requests of the limit"
    );
    run("xfs_repair", &["-n", text(&path)]);
    assert!(device.detach().expect("detached"), "no other program uses it");
    assert!(gone(&path));
    shard.end(Order::Detach);
    assert!(!shard.dir.exists(), "the mount point is taken away");
}

#[test]
fn fio_verifies_its_own_writes() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("fio", 128 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    for (size, rw) in [("4k", "randwrite"), ("1m", "write"), ("4k-256k", "randrw")] {
        let name = if size.contains('-') { format!("--bsrange={size}") } else { format!("--bs={size}") };
        run(
            "fio",
            &[
                "--name=verify",
                &format!("--filename={}", text(device.path())),
                &format!("--rw={rw}"),
                &name,
                "--blockalign=4k",
                "--size=64m",
                "--ioengine=libaio",
                "--direct=1",
                "--iodepth=16",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--output-format=terse",
            ],
        );
    }
    assert!(shard.count("write").largest >= 448 << 10, "large writes arrive as such");
    let before = shard.count("discard");
    run("blkdiscard", &[text(device.path())]);
    assert!(shard.count("discard").bytes >= before.bytes + (128 << 20));
    run("blkdiscard", &["--zeroout", "--offset", "4096", "--length", "65536", text(device.path())]);
    let mut block = [1; 4096];
    fs::File::open(device.path()).unwrap().read_exact_at(&mut block, 4096).unwrap();
    assert_eq!(block, [0; 4096]);
    assert!(device.detach().expect("detached"));
    shard.end(Order::Detach);
}

#[test]
fn a_fenced_device_fails_writes_at_once() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("fence", 64 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    shard.order(Order::Hang);
    let path = device.path().to_owned();
    let writer = std::thread::spawn(move || {
        Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "count=1", "oflag=direct"])
            .arg(format!("of={}", text(&path)))
            .stderr(Stdio::null())
            .status()
            .expect("dd")
    });
    let end = Instant::now() + Duration::from_secs(10);
    while shard.count("write").requests == 0 {
        assert!(Instant::now() < end, "the write arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!writer.is_finished(), "no shard has answered");
    shard.order(Order::Fence);
    assert!(!writer.join().unwrap().success(), "the write that was outstanding fails");
    let file = fs::File::options().write(true).open(device.path()).unwrap();
    let error = file.write_all_at(&[0; 4096], 0).and_then(|()| file.sync_all()).expect_err("later ones too");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    drop(file);
    assert!(device.detach().expect("detached"));
    shard.end(Order::Detach);
}

#[test]
fn mount_and_loop_device_can_be_removed_after_the_engine_died() {
    if !may_run() {
        return;
    }
    for order in [Order::Die, Order::Detach] {
        let mut shard = Shard::start("death", 512 << 20);
        let device = LoopDevice::attach(&shard.file).expect("attached");
        let path = device.path().to_owned();
        run("mkfs.xfs", &["-q", text(&path)]);
        let mounted = Mounted::new(&path, &shard.dir.with_extension("mnt"));
        fs::write(mounted.0.join("file"), vec![7; 1 << 20]).unwrap();
        shard.end(order);
        let file = fs::File::options().write(true).open(mounted.0.join("file"));
        let failed = file.and_then(|file| file.write_all_at(&[1; 4096], 0).and_then(|()| file.sync_all()));
        assert!(failed.is_err(), "{order:?}: writing without an engine succeeds");
        drop(device);
        run("umount", &[text(&mounted.0)]);
        let end = Instant::now() + Duration::from_secs(10);
        while !gone(&path) {
            assert!(Instant::now() < end, "{order:?}: autoclear takes the loop device away");
            std::thread::sleep(Duration::from_millis(10));
        }
        unmount_stale(&shard.dir);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(text(&shard.dir)), "{mounts}");
    }
}

/// Leaves free space in holes of `hole` bytes only, as in a file system that has grown old.
fn age(at: &Path, hole: u64) {
    use rustix::fs::{FallocateFlags, fallocate};
    let filler = fs::File::create(at.join("filler")).expect("made");
    let mut bytes = 0;
    for step in [16 << 20, 1 << 20, 65536, 16384] {
        while fallocate(&filler, FallocateFlags::empty(), bytes, step).is_ok() {
            bytes += step;
        }
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for at in (0..bytes - hole).step_by(4 * hole as usize).take(4000) {
        fallocate(&filler, punch, at, hole).expect("a hole");
    }
    run("sync", &["-f", text(at)]);
}

/// Writes the pages of a reserved file, one by one and in no order, as InnoDB does with O_DIRECT.
fn write_pages(file: &Path, pages: u64) {
    use std::os::unix::fs::OpenOptionsExt;
    let reserved = fs::File::create(file).expect("made");
    rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, pages * PAGE).expect("reserved");
    drop(reserved);
    let direct = fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(file).expect("opened");
    let buffer = vec![MARK; PAGE as usize + 4096];
    let aligned = &buffer[buffer.as_ptr().align_offset(4096)..][..PAGE as usize];
    for number in 0..pages {
        // 7 has no part in common with the number of pages.
        direct.write_all_at(aligned, number * 7 % pages * PAGE).expect("written");
    }
}

fn question(path: &Path) -> Question {
    let run_dir = "/nonexistent".into();
    Question { path: path.to_owned(), page: PAGE, writes: Writes::Direct, files: Vec::new(), run_dir }
}

#[test]
fn a_page_is_one_request_on_ext4_with_clusters_and_the_check_says_so() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("clusters", 128 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let path = device.path().to_owned();
    run("mkfs.ext4", &["-q", "-E", "nodiscard", "-O", "bigalloc", "-C", "16384", text(&path)]);
    {
        let mounted = Mounted::new(&path, &shard.dir.with_extension("mnt"));
        let fresh = atomic::check(&question(&mounted.0)).expect("it can be looked at");
        assert!(fresh.atomic && fresh.files == 0, "{fresh:?}");
        age(&mounted.0, PAGE);
        write_pages(&mounted.0.join("t.ibd"), 500);
        let answer = atomic::check(&question(&mounted.0)).expect("it can be looked at");
        assert!(answer.atomic && (answer.files, answer.pages) == (1, 500), "{answer:?}");
        assert_eq!((shard.count("pages").bytes, shard.count("torn pages").requests), (500 * PAGE, 0));
        // A limit that an administrator has raised counts.
        block_queue::set(&path, "max_sectors_kb", "1280");
        let raised = atomic::check(&question(&mounted.0)).expect("it can be looked at");
        assert_eq!(raised.findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["device-limit"]);
    }
    assert!(device.detach().expect("detached"), "no other program uses it");
    shard.end(Order::Detach);
}

#[test]
fn pages_are_torn_on_an_old_xfs_and_the_check_says_so() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("old-xfs", 320 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let path = device.path().to_owned();
    run("mkfs.xfs", &["-q", "-K", text(&path)]);
    {
        let mounted = Mounted::new(&path, &shard.dir.with_extension("mnt"));
        age(&mounted.0, 12288);
        // More than XFS holds back for itself in one piece.
        write_pages(&mounted.0.join("t.ibd"), 1500);
        assert!(shard.count("torn pages").requests > 100, "{:?}", shard.counts);
        let answer = atomic::check(&question(&mounted.0)).expect("it can be looked at");
        let codes: Vec<_> = answer.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["file-system-blocks", "file-cut"]);
    }
    assert!(device.detach().expect("detached"), "no other program uses it");
    shard.end(Order::Detach);
}

/// A connection that no engine keeps in this test.
fn connection() -> Fd {
    Arc::new(fs::File::open("/dev/null").expect("a file").into())
}

#[test]
fn the_admin_thread_attaches_and_detaches() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("admin", 16 << 20);
    let (done, outcomes) = mpsc::channel();
    let holder = DescriptorHolder::new(&shard.dir);
    let admin = DeviceAdmin::start(Some(FrontendKind::Fuse), &shard.dir, holder, move |outcome| {
        done.send(outcome).expect("the test waits")
    })
    .unwrap();
    let next = || outcomes.recv_timeout(Duration::from_secs(10)).expect("an outcome");
    let missing = shard.dir.join("1");
    admin.submit(DeviceJob::Attach {
        resource: RESOURCE,
        volume: VolumeId(1),
        attachment: Attachment::Loop { backing: missing, connection: connection() },
    });
    assert!(matches!(next(), DeviceOutcome::AttachFailed { volume: VolumeId(1), .. }));
    admin.submit(DeviceJob::Attach {
        resource: RESOURCE,
        volume: VolumeId(0),
        attachment: Attachment::Loop { backing: shard.file.clone(), connection: connection() },
    });
    let DeviceOutcome::Attached { device, .. } = next() else { panic!("attached") };
    let path = device.path().to_owned();
    admin.submit(DeviceJob::Detach { resource: RESOURCE, devices: vec![device] });
    let DeviceOutcome::Detached { errors, .. } = next() else { panic!("detached") };
    assert!(errors.is_empty() && gone(&path), "{errors:?}");
    shard.end(Order::Detach);
}

/// S711, S712: what the device says fits what the kernel says, and a write of that kind is one
/// request. The memory of 256 KiB is in fewer pieces than a request may have.
#[test]
fn a_loop_device_says_how_long_a_whole_write_may_be() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("whole", 16 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let name = device.path().file_name().expect("a name").to_owned();
    let setting = Path::new("/sys/block").join(name).join("queue/max_sectors_kb");
    let kb: u64 = fs::read_to_string(&setting).expect("a setting").trim().parse().expect("a number");
    match device.atomic_write_max() {
        Ok(bytes) => assert!(bytes == kb << 10 && bytes <= 1 << 20, "{bytes} bytes at {kb} KiB"),
        Err(why) => assert!(kb > 1024 && why.contains(&kb.to_string()), "{why} at {kb} KiB"),
    }
    let file =
        fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(device.path()).expect("opened");
    let buffer = BufferPool::new(0).get(256 << 10);
    for at in [7 << 12, (1 << 20) - 4096, (3 << 20) + (200 << 10)] {
        let before = shard.count("write").requests;
        file.write_all_at(&buffer.as_slice()[..256 << 10], at).expect("written");
        assert_eq!(shard.count("write").requests, before + 1, "cut at {at}");
    }
    // FUSE takes 256 pages at once, and no request has so many, wherever its memory begins.
    let large = BufferPool::new(0).get(2 << 20);
    let before = shard.count("write").bytes;
    file.write_all_at(&large.as_slice()[512..512 + (1 << 20)], 7 << 12).expect("written");
    assert_eq!(shard.count("write").bytes, before + (1 << 20));
    drop(file);
    device.detach().expect("detached");
    shard.end(Order::Detach);
}

/// S752: the kernel cuts a write of many pages between them, though its memory is in more pieces
/// than a request may have.
#[test]
fn a_write_of_many_pages_is_cut_between_them() {
    if !may_run() {
        return;
    }
    let mut shard = Shard::start("many-pages", 64 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    let file =
        fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(device.path()).expect("opened");
    // 512 KiB that begin inside a page of memory lie in 129.
    let mut buffer = BufferPool::new(0).get_sparse(1 << 20);
    buffer.as_mut_slice().fill(MARK);
    let len = 512usize << 10;
    for (number, start) in [0usize, 512, 3072].into_iter().enumerate() {
        file.write_all_at(&buffer.as_slice()[start..start + len], (number * len) as u64).expect("written");
    }
    assert_eq!(shard.count("torn pages").requests, 0, "{:?}", shard.counts);
    assert_eq!(shard.count("pages").bytes, 3 * len as u64);
    assert!(shard.count("write").requests >= 6, "each was cut");
    drop(file);
    device.detach().expect("detached");
    shard.end(Order::Detach);
}

/// Measurement, not a test: prints the speed of a device.
/// `cargo test --release -- --ignored --nocapture speed`
#[test]
#[ignore = "a measurement, not a test"]
fn speed() {
    let mut shard = Shard::start("speed", 512 << 20);
    let device = LoopDevice::attach(&shard.file).expect("attached");
    for (rw, size, depth) in [
        ("randwrite", "4k", 1),
        ("randwrite", "4k", 32),
        ("randread", "4k", 1),
        ("randread", "4k", 32),
        ("write", "1m", 8),
    ] {
        let report = run(
            "fio",
            &[
                "--name=speed",
                &format!("--filename={}", text(device.path())),
                &format!("--rw={rw}"),
                &format!("--bs={size}"),
                &format!("--iodepth={depth}"),
                "--ioengine=io_uring",
                "--direct=1",
                "--time_based",
                "--runtime=3",
            ],
        );
        let line = report.lines().find(|line| line.contains("IOPS=")).unwrap_or_default();
        println!("{rw} {size} depth {depth}: {}", line.trim());
    }
    device.detach().expect("detached");
    shard.end(Order::Detach);
}
