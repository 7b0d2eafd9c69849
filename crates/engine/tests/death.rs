//! No device fails under a service: an engine in a process of its own is killed, or withdraws its
//! device, under a file system that is written to.
//!
//! Needs root, /dev/fuse, loop devices, xfsprogs and a writable hierarchy of cgroups of version 2;
//! says so and passes where they are missing. `MAINSTAY_DEATHS=N` kills that many engines.

mod support;

use mainstay_api::engine::{GuardEntry, Request};
use mainstay_devices::descriptor_holder;
use mainstay_engine::EngineOptions;
use mainstay_engine::frontend::{DeviceOption, unmount_stale};
use mainstay_types::{FrontendKind, ResourceId, Time};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Engine, fresh_dir};

const ENGINE: &str = "MAINSTAY_TEST_ENGINE";
const WRITER: &str = "MAINSTAY_TEST_WRITER";
const RESOURCE: ResourceId = ResourceId(5);
/// The smallest that xfsprogs take.
const VOLUME_BYTES: u64 = 320 << 20;
const BLOCK: usize = 4096;
/// Number of writers. Each writes a growing file of its own. A shutdown of XFS may take the log of
/// that growth with it.
const WRITERS: u64 = 6;
/// Most blocks that each writer writes.
const BLOCKS_MAX: u64 = 8192;

/// Process of the engine; not a test of its own.
#[test]
fn engine_process() {
    let Ok(run_dir) = std::env::var(ENGINE) else { return };
    let (run_dir, listen) = run_dir.split_once(' ').expect("two words");
    let mut options = EngineOptions::new(run_dir.into(), listen.parse().expect("an address"));
    options.device = DeviceOption::Only(FrontendKind::Fuse);
    panic!("the engine ended: {:?}", mainstay_engine::run(options));
}

/// Process of a service; not a test of its own. It reports on its standard error which blocks the
/// file system has acknowledged.
#[test]
fn writer_process() {
    let Ok(dir) = std::env::var(WRITER) else { return };
    let threads = (0..WRITERS).map(|writer| {
        let path = PathBuf::from(&dir).join(writer.to_string());
        std::thread::spawn(move || {
            let file = File::create(path).expect("a file");
            for block in 0..BLOCKS_MAX {
                let written = file.write_all_at(&content(writer, block), block * BLOCK as u64);
                let said = match written.and_then(|()| file.sync_data()) {
                    Ok(()) => format!("\nack {writer} {block}\n"),
                    Err(error) => format!("\nerror {writer} {block} {error}\n"),
                };
                let error = said.starts_with("\nerror");
                std::io::stderr().write_all(said.as_bytes()).expect("an agent listens");
                if error {
                    return;
                }
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("it ends"));
}

fn content(writer: u64, block: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    bytes[..8].copy_from_slice(&writer.to_le_bytes());
    bytes[8..16].copy_from_slice(&(block + 1).to_le_bytes());
    bytes
}

/// A service: a cgroup with processes.
struct Service {
    cgroup: PathBuf,
    mount: PathBuf,
}

impl Service {
    fn new(base: &Path, name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let root = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
        let cgroup = Path::new(root).join(format!("mainstay-test-{name}-{}", std::process::id()));
        fs::create_dir(&cgroup).ok()?;
        let mount = base.join("mnt");
        fs::create_dir_all(&mount).expect("a directory");
        Some(Self { cgroup, mount })
    }

    fn entry(&self) -> GuardEntry {
        let cgroups = vec![self.cgroup.to_str().expect("text").into()];
        GuardEntry { resource: RESOURCE, cgroups, ..GuardEntry::default() }
    }

    fn mount(&self, device: &str) {
        run("mount", &["-t", "xfs", "-o", "nouuid", device, self.mount.to_str().expect("text")]);
    }

    fn unmount(&self) {
        run("umount", &[self.mount.to_str().expect("text")]);
    }

    /// In the cgroup before it does anything.
    fn write(&self) -> Child {
        let own = std::env::current_exe().expect("this program");
        let script = "echo $$ >\"$0/cgroup.procs\" && exec \"$@\" --exact writer_process --nocapture";
        let mut command = Command::new("sh");
        command.args(["-ec", script]).arg(&self.cgroup).arg(own).env(WRITER, &self.mount);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("a shell")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        let _ = Command::new("umount").arg("-l").arg(&self.mount).stderr(Stdio::null()).status();
        for _ in 0..100 {
            if fs::remove_dir(&self.cgroup).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An engine's process, killed at the end.
struct Process {
    child: Child,
    mount: PathBuf,
}

impl Process {
    fn start(node: u32, base: &Path) -> Self {
        let run_dir = base.join(format!("n{node}")).join("run");
        fs::create_dir_all(&run_dir).expect("a directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "engine_process", "--nocapture"]);
        command.env(ENGINE, format!("{} {}", run_dir.display(), support::addr(node, support::port_of(base))));
        let log = File::options().create(true).append(true).open(base.join("engine.log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let mount = run_dir.join("fuse").join("death");
        Self { child: command.spawn().expect("an engine"), mount }
    }

    fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Nothing, unless the test has failed, or the next engine will do it.
        unmount_stale(&self.mount);
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().expect("started");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Reports of the writers until their process ended: the last acknowledged block of each, and
/// errors.
#[derive(Default)]
struct Said {
    acknowledged: BTreeMap<u64, u64>,
    errors: Vec<String>,
}

impl Said {
    fn take(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["ack", writer, block] => {
                let number = |word: &str| word.parse().expect("a number");
                self.acknowledged.insert(number(writer), number(block));
            }
            ["error", ..] => self.errors.push(line.to_owned()),
            _ => {}
        }
    }
}

fn may_run(base: &Path, name: &str) -> Option<Service> {
    let root = fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t"));
    let missing = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
    let service = if root && missing.is_none() { Service::new(base, name) } else { None };
    if service.is_none() {
        eprintln!("skipped: needs root, /dev/fuse, /dev/loop-control and cgroups of version 2");
    }
    service
}

/// An engine in a process of its own, and a service on its device.
struct Lab {
    node: u32,
    base: PathBuf,
    service: Service,
    process: Option<Process>,
    engine: Engine,
    epoch: u64,
}

impl Lab {
    fn new(node: u32, name: &str) -> Option<Self> {
        Self::with(node, name, |engine| {
            descriptor_holder::start(&engine.run_dir).expect("an agent that keeps devices")
        })
    }

    /// `agent` comes before the device.
    fn with(node: u32, name: &str, agent: impl FnOnce(&Engine)) -> Option<Self> {
        let base = fresh_dir(name);
        let service = may_run(&base, name)?;
        let process = Process::start(node, &base);
        let mut engine = Engine::connect(node, &base);
        agent(&engine);
        engine.serve_alone(RESOURCE, "death", vec![VOLUME_BYTES]);
        run("mkfs.xfs", &["-q", &device(&mut engine)]);
        Some(Self { node, base, service, process: Some(process), engine, epoch: 1 })
    }

    /// `end` makes the device fail while the service writes. It sees no error, and whatever it was
    /// acknowledged is there when it is served again, after `back`.
    fn round(&mut self, what: &str, end: impl FnOnce(&mut Self), back: impl FnOnce(&mut Self)) {
        self.service.mount(&device(&mut self.engine));
        self.engine.ask(Request::Guard { entries: vec![self.service.entry()] });
        let mut writer = self.service.write();
        let lines = listen(writer.stderr.take().expect("piped"));
        // Enough to be in the midst of it.
        let mut said = Said::default();
        while said.acknowledged.len() < WRITERS as usize || said.acknowledged.values().sum::<u64>() < 100 {
            said.take(&lines.recv_timeout(Duration::from_secs(60)).expect("it writes"));
        }
        let start = Instant::now();
        end(self);
        let status = writer.wait().expect("a child");
        let took = start.elapsed();
        lines.iter().for_each(|line| said.take(&line));
        let writes: u64 = said.acknowledged.values().sum();
        eprintln!("{what}: {writes} writes, {took:?} to the end of the service");
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "{what}, {status}: it has ended by itself: {:?}",
            said.errors
        );
        assert_eq!(said.errors, Vec::<String>::new(), "{what}: its device has failed while it lived");
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
        self.service.unmount();
        back(self);
        self.service.mount(&device(&mut self.engine));
        for (writer, last) in &said.acknowledged {
            assert_whole(&self.service.mount.join(writer.to_string()), *writer, *last);
        }
        self.service.unmount();
        self.engine.ask(Request::Guard { entries: vec![] });
    }

    /// This node is primary in the next epoch.
    fn promote(&mut self) {
        self.epoch += 1;
        self.engine.lead_alone(self.epoch, RESOURCE);
    }

    fn kill_engine(&mut self) {
        self.process.take().expect("an engine").kill();
    }

    fn start_engine(&mut self) {
        self.process = Some(Process::start(self.node, &self.base));
        self.engine = Engine::connect(self.node, &self.base);
        self.engine.create(RESOURCE, "death", vec![VOLUME_BYTES]);
        self.promote();
    }

    fn end(mut self) {
        self.engine.ask(Request::Drop { resource: RESOURCE });
        let base = self.base.clone();
        drop(self);
        fs::remove_dir_all(&base).expect("nothing holds the files any more");
    }
}

#[test]
fn a_service_sees_no_error_when_its_engine_is_killed_and_loses_nothing() {
    let Some(mut lab) = Lab::new(5, "death") else { return };
    let deaths = std::env::var("MAINSTAY_DEATHS").map_or(1, |text| text.parse().expect("a number"));
    for death in 1..=deaths {
        lab.round(&format!("death {death}"), Lab::kill_engine, Lab::start_engine);
    }
    lab.end();
}

/// An agent that was restarted is handed what it has to keep.
#[test]
fn a_service_sees_no_error_when_its_engine_is_killed_after_its_agent_was_restarted() {
    let Some(mut lab) = Lab::with(8, "restarted", |_| ()) else { return };
    device(&mut lab.engine);
    descriptor_holder::start(&lab.engine.run_dir).expect("an agent that keeps devices");
    // Says hello.
    lab.engine = Engine::connect(lab.node, &lab.base);
    lab.round("death after a restart", Lab::kill_engine, Lab::start_engine);
    lab.end();
}

/// A living engine kills as well before it lets a device fail.
#[test]
fn a_service_sees_no_error_when_its_device_is_withdrawn_and_loses_nothing() {
    let Some(mut lab) = Lab::new(6, "withdrawn") else { return };
    let detach = |lab: &mut Lab| drop(lab.engine.ask(Request::Detach { resource: RESOURCE }));
    // The device is offered again, because no other node is primary.
    lab.round("withdrawn", detach, |_| ());
    let superseded = |lab: &mut Lab| {
        lab.epoch += 1;
        let mut record = support::record(lab.epoch, lab.epoch, 7, &[6, 7]);
        (record.resource, record.replicas) = (RESOURCE, vec![support::member(6), support::member(7)]);
        lab.engine.ask(Request::Record { record });
    };
    lab.round("another is primary", superseded, Lab::promote);
    let lose_lease = |lab: &mut Lab| {
        let until_us = mainstay_engine::ring::now().plus_ms(600);
        lab.engine.ask(Request::Lease { until_us });
    };
    lab.round("the lease ends", lose_lease, |lab| {
        lab.engine.ask(Request::Lease { until_us: Time(u64::MAX) });
    });
    lab.end();
}

fn device(engine: &mut Engine) -> String {
    let status = engine.until("a device", |status| !status.devices.is_empty());
    status.devices[0].path.clone()
}

fn listen(output: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<String> {
    let (tell, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Every block up to the last acknowledged one is there.
fn assert_whole(path: &Path, writer: u64, last: u64) {
    let bytes = fs::read(path).expect("the file of a writer");
    for block in 0..=last {
        let found = bytes.chunks(BLOCK).nth(block as usize);
        assert_eq!(
            found.map(|found| &found[..16]),
            Some(&content(writer, block)[..16]),
            "writer {writer}: block {block} of {last} was acknowledged and is not there"
        );
    }
}
