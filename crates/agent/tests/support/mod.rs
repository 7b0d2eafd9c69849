//! A node of a test: an agent in a child process, and an engine that threads of the test pretend.
//!
//! The agent is a process of its own, so that a test can kill it as a crash would.

use mainstay_agent::AgentOptions;
use mainstay_agent::history::TEST_MINUTE;
use mainstay_agent::https::ApiListen;
use mainstay_agent::identity::{Identity, LogMark};
use mainstay_agent::level::TEST_LEVEL;
use mainstay_agent::own_state::mark;
use mainstay_api::engine::{
    DeviceStatus, EngineEvent, EngineLine, EngineStatus, ReplicaStatus, Reply, Request, RequestLine,
    read_line, write_line,
};
use mainstay_api::metrics::{MetricsPage, ReplicaCounts, ReplicaMetrics};
use mainstay_api::rest::StatusView;
use mainstay_client::Client;
use mainstay_types::{Code, Index, ResourceId, Role, Time, VolumeId};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CHILD_VARIABLE: &str = "MAINSTAY_TEST_AGENT";
/// File for everything that the agent logs.
const LOG_VARIABLE: &str = "MAINSTAY_TEST_LOG";
/// Set for an agent that serves no console.
const NO_CONSOLE_VARIABLE: &str = "MAINSTAY_TEST_NO_CONSOLE";

/// Process of an agent, and no test of its own: it does nothing unless a test asks for it.
#[test]
fn agent_process() {
    let Ok(text) = std::env::var(CHILD_VARIABLE) else {
        return;
    };
    let (directory, listen) = text.split_once(' ').unwrap();
    let directory = PathBuf::from(directory);
    if let Some(path) = std::env::var_os(LOG_VARIABLE) {
        let file = std::fs::File::create(path).unwrap();
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(file).init();
    }
    let options = AgentOptions {
        fence_command: None,
        groups: crate::access::groups(),
        state_dir: directory.join("state"),
        run_dir: directory.join("run"),
        listen: Some(listen.to_owned()),
        metrics_listen: Some(with_port(listen, 7402)),
        router_listen: Some(with_port(listen, 7403)),
        api: Some(ApiListen {
            address: with_port(listen, 7404),
            files: None,
            console: std::env::var_os(NO_CONSOLE_VARIABLE).is_none(),
        }),
        cgroup_root: Some(cgroup_root(&directory)),
        log_writer: Vec::new(),
        journals: mainstay_pool::journals::Journals::default(),
        hooks: None,
    };
    let error = mainstay_agent::run(options).unwrap_err();
    panic!("the agent ended: {error:?}: {}", error.problem());
}

/// Another port of the address at which other agents find an agent.
fn with_port(agent: &str, port: u16) -> SocketAddr {
    let mut address: SocketAddr = agent.parse().unwrap();
    address.set_port(port);
    address
}

/// cgroup of the node's services. Without a writable hierarchy here no service can be started.
fn cgroup_root(directory: &Path) -> PathBuf {
    let name = format!("mainstay-test{}", directory.display().to_string().replace('/', "-"));
    match mainstay_agent::service::mount::cgroup2_mount() {
        Some(mount) => mount.join(name),
        None => directory.join("cgroup"),
    }
}

pub struct TestNode {
    directory: tempfile::TempDir,
    address: String,
    agent: Option<Child>,
    engine: Option<FakeEngine>,
    refuse_create: Arc<AtomicBool>,
    /// Feature level that its build pretends to have.
    level: Option<u32>,
    /// Whether the agent writes a log.
    logs: bool,
    /// Whether the agent serves the console.
    console: bool,
    /// Time between the records of its history.
    minute: Option<Duration>,
}

impl TestNode {
    pub fn new(net: u8, host: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for part in ["state", "run", "cgroup"] {
            std::fs::create_dir(directory.path().join(part)).unwrap();
        }
        Self {
            directory,
            address: format!("127.66.{net}.{host}:7400"),
            agent: None,
            engine: None,
            refuse_create: Arc::default(),
            level: None,
            logs: false,
            console: true,
            minute: None,
        }
    }

    /// Lets the agent log everything, from its next start on.
    pub fn log_everything(&mut self) {
        self.logs = true;
    }

    /// Lets the agent serve no console, from its next start on.
    pub fn without_console(&mut self) {
        self.console = false;
    }

    /// Lets the agent record its work this often, from its next start on.
    pub fn record_every(&mut self, time: Duration) {
        self.minute = Some(time);
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Installs a build of this feature level. The agent that runs stays.
    pub fn install(&mut self, level: u32) {
        self.level = Some(level);
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn metrics_address(&self) -> SocketAddr {
        with_port(&self.address, 7402)
    }

    pub fn router_address(&self) -> SocketAddr {
        with_port(&self.address, 7403)
    }

    pub fn api_address(&self) -> SocketAddr {
        with_port(&self.address, 7404)
    }

    pub fn client(&self) -> Client {
        Client::new(self.run_dir().join("agent.sock")).with_timeout(Duration::from_secs(90))
    }

    pub fn run_dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Starts engine and agent, and waits until the agent answers.
    pub fn start(&mut self) {
        self.start_engine();
        self.start_agent();
    }

    pub fn start_engine(&mut self) {
        self.engine =
            Some(FakeEngine::start(&self.run_dir().join("engine.sock"), self.refuse_create.clone()));
    }

    fn spawn_agent(&self) -> Child {
        self.agent_command().spawn().unwrap()
    }

    fn agent_command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "support::agent_process", "--nocapture"])
            .env(CHILD_VARIABLE, format!("{} {}", self.directory.path().display(), self.address))
            .envs(self.level.map(|level| (TEST_LEVEL, level.to_string())))
            .envs(self.logs.then(|| (LOG_VARIABLE, self.log_path())))
            .envs((!self.console).then_some((NO_CONSOLE_VARIABLE, "1")))
            .envs(self.minute.map(|time| (TEST_MINUTE, time.as_millis().to_string())))
            .stdout(Stdio::null());
        command
    }

    pub fn start_agent(&mut self) {
        self.agent = Some(self.spawn_agent());
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.client().get::<StatusView>("/v1/status").is_err() {
            assert!(Instant::now() < deadline, "the agent did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// kill -9 of the agent, and the end of the engine.
    pub fn kill(&mut self) {
        self.kill_agent();
        self.engine = None;
    }

    pub fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    /// Whether services can be started here at all.
    pub fn has_cgroups(&self) -> bool {
        std::fs::create_dir_all(cgroup_root(self.directory.path()).join("probe")).is_ok()
            && cgroup_root(self.directory.path()).join("probe/cgroup.procs").exists()
    }

    /// Processes of a service.
    pub fn pids(&self, service: &str, process: &str) -> Vec<String> {
        let path = cgroup_root(self.directory.path()).join(service).join(process).join("main/cgroup.procs");
        std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub fn engine_role(&self) -> Option<Role> {
        let engine = self.engine.as_ref()?;
        engine.shared.replicas.lock().unwrap().values().map(|replica| replica.role).next()
    }

    /// The engine takes requests for metrics and does not answer them.
    pub fn engine_hangs(&self, hangs: bool) {
        self.engine.as_ref().unwrap().shared.hangs.store(hangs, Ordering::SeqCst);
    }

    /// The engine says that its replicas have committed this entry.
    pub fn engine_commits(&self, index: u64) {
        let engine = self.engine.as_ref().unwrap();
        let mut replicas = engine.shared.replicas.lock().unwrap();
        replicas.values_mut().for_each(|replica| replica.commit = Index(index));
    }

    pub fn stop_engine(&mut self) {
        self.engine = None;
    }

    pub fn engine_refuses_to_create(&self) {
        self.refuse_create.store(true, Ordering::SeqCst);
    }

    pub fn lease_left_ms(&self) -> u64 {
        self.client().get::<StatusView>("/v1/status").unwrap().lease_left_ms
    }

    /// Names of the files in the state directory.
    pub fn state_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path().join("state")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Loses what the node knows of its cluster, as if the node had not received it yet.
    pub fn forget_state(&self) {
        std::fs::remove_file(self.state_dir().join("agent.redb")).unwrap();
        let mut identity = Identity::load(&self.state_dir()).unwrap().unwrap();
        mark(&self.state_dir(), &mut identity, LogMark::Awaited).unwrap();
    }

    /// Takes over the state on the disk of `other`.
    pub fn copy_state_of(&self, other: &Self) {
        for name in other.state_files() {
            let from = other.directory.path().join("state").join(&name);
            if from.is_file() {
                std::fs::copy(from, self.directory.path().join("state").join(name)).unwrap();
            }
        }
    }

    /// Starts the agent; `false` if it ends within this time.
    pub fn agent_lives_for(&mut self, time: Duration) -> bool {
        let mut child = self.spawn_agent();
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.agent = Some(child);
        true
    }

    /// Starts the agent, which ends within this time. Returns what it said.
    pub fn agent_ends(&mut self, time: Duration) -> String {
        let mut child = self.agent_command().stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + time;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                child.kill().unwrap();
                panic!("the agent runs");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned()
    }

    pub fn pool_is_empty(&self) -> bool {
        let pool = self.directory.path().join("state/pools/default");
        std::fs::read_dir(pool).map(|mut entries| entries.next().is_none()).unwrap_or(true)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
        let root = cgroup_root(self.directory.path());
        if root.join("cgroup.procs").exists() {
            drop(std::fs::write(root.join("cgroup.kill"), "1"));
            std::thread::sleep(Duration::from_millis(50));
            mainstay_agent::service::cgroup::remove(&root);
        }
    }
}

/// Answers as an engine whose replicas have no data.
struct FakeEngine {
    shared: Arc<EngineShared>,
}

struct EngineShared {
    stopped: AtomicBool,
    hangs: AtomicBool,
    refuse_create: Arc<AtomicBool>,
    replicas: Mutex<BTreeMap<ResourceId, ReplicaStatus>>,
    connections: Mutex<Vec<UnixStream>>,
    lease_until: Mutex<Time>,
}

impl FakeEngine {
    fn start(socket: &Path, refuse_create: Arc<AtomicBool>) -> Self {
        drop(std::fs::remove_file(socket));
        let listener = UnixListener::bind(socket).unwrap();
        let shared = Arc::new(EngineShared {
            stopped: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            refuse_create,
            replicas: Mutex::default(),
            connections: Mutex::default(),
            lease_until: Mutex::default(),
        });
        let thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if thread.stopped.load(Ordering::SeqCst) {
                    return;
                }
                thread.connections.lock().unwrap().push(stream.try_clone().unwrap());
                let shared = thread.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { shared }
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            drop(connection.shutdown(std::net::Shutdown::Both));
        }
    }
}

impl EngineShared {
    fn serve(&self, stream: UnixStream) {
        let mut writer = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        while let Ok(Some(RequestLine { id, request })) = read_line(&mut reader) {
            if matches!(request, Request::Metrics { .. }) && self.hangs.load(Ordering::SeqCst) {
                continue;
            }
            let (reply, event) = self.answer(request);
            if let Some(status) = event {
                let event = EngineEvent::Replica(status);
                drop(write_line(&mut writer, &EngineLine::Event { event }));
            }
            if write_line(&mut writer, &EngineLine::Reply { id, reply }).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Request) -> (Reply, Option<ReplicaStatus>) {
        let mut replicas = self.replicas.lock().unwrap();
        match request {
            Request::Create { incarnation, dir, volumes, .. } => {
                if self.refuse_create.load(Ordering::SeqCst) {
                    return (Reply::refused(Code::NoSpace, "no space left", "Make room."), None);
                }
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(format!("{dir}/meta"), serde_json::to_vec(&(incarnation, volumes)).unwrap())
                    .unwrap();
                (Reply::Created { incarnation }, None)
            }
            Request::Open { resource, name, dir, .. } => {
                let meta = std::fs::read(format!("{dir}/meta")).unwrap();
                let (incarnation, volumes) = serde_json::from_slice(&meta).unwrap();
                // The promised epoch is kept with the data, as a real engine does.
                let epoch = std::fs::read(format!("{dir}/epoch"))
                    .ok()
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                    .unwrap_or_default();
                let status = ReplicaStatus {
                    resource,
                    name: format!("{name}\n{dir}"),
                    incarnation,
                    volumes,
                    epoch,
                    ..ReplicaStatus::default()
                };
                replicas.insert(resource, status.clone());
                (Reply::Opened { incarnation }, Some(shown(&status)))
            }
            Request::Drop { resource } => {
                replicas.remove(&resource);
                (Reply::Ok, None)
            }
            Request::Record { record } => {
                let Some(status) = replicas.get_mut(&record.resource) else { return (Reply::Ok, None) };
                let primary = record.primary.is_some_and(|node| {
                    record
                        .replicas
                        .iter()
                        .any(|member| member.node == node && member.incarnation == status.incarnation)
                });
                if primary && record.epoch > status.epoch {
                    status.role = Role::Primary;
                    status.promoted_at_us = mainstay_agent::clock::boot_now();
                    status.devices = (0..status.volumes.len())
                        .map(|volume| DeviceStatus {
                            volume: VolumeId(volume as u16),
                            path: format!("/dev/none{volume}"),
                            ..DeviceStatus::default()
                        })
                        .collect();
                } else if !primary {
                    status.role = Role::Secondary;
                    status.devices.clear();
                }
                status.version = record.version;
                if record.epoch > status.epoch {
                    status.epoch = record.epoch;
                    let (_, dir) = status.name.split_once('\n').unwrap();
                    std::fs::write(format!("{dir}/epoch"), serde_json::to_vec(&status.epoch).unwrap())
                        .unwrap();
                }
                (Reply::Ok, Some(shown(status)))
            }
            Request::Demote { resource } => {
                let Some(status) = replicas.get_mut(&resource) else { return (Reply::Ok, None) };
                status.role = Role::Secondary;
                status.devices.clear();
                (Reply::Ok, Some(shown(status)))
            }
            Request::Lease { until_us } => {
                *self.lease_until.lock().unwrap() = until_us;
                (Reply::Lease { until_us, silenced_us: Time(0) }, None)
            }
            // One at a time, as if each filled a page; of many as many as an engine gives.
            Request::Metrics { after } => {
                let at_once = if replicas.len() > 100 { 32 } else { 1 };
                let mut left = replicas.values().filter(|one| after.is_none_or(|after| one.resource > after));
                let counted = |status| ReplicaMetrics { status, counts: ReplicaCounts::default() };
                let page: Vec<_> = left.by_ref().take(at_once).map(shown).map(counted).collect();
                let more_after = page.last().map(|one| one.status.resource).filter(|_| left.next().is_some());
                (Reply::Metrics(MetricsPage { replicas: page, more_after, ..MetricsPage::default() }), None)
            }
            Request::Status => {
                let replicas = replicas.values().map(shown).collect();
                let lease_until_us = *self.lease_until.lock().unwrap();
                (Reply::Status(EngineStatus { replicas, lease_until_us, ..EngineStatus::default() }), None)
            }
            _ => (Reply::Ok, None),
        }
    }
}

fn shown(status: &ReplicaStatus) -> ReplicaStatus {
    let name = status.name.split('\n').next().unwrap().to_owned();
    ReplicaStatus { name, ..status.clone() }
}
